"""The scripted engine stops where a real engine stops, and the stop-string rule holds on its own."""

import asyncio

import numpy as np
import pytest

from arpo.engine import Capabilities, SampleParams
from arpo.engine.scripted import Scripted, ScriptedEngine
from arpo.engine.stopping import Stopper, completes
from arpo.tree import Finish, Source

EOS = 0


def decode(tokens):
    """Token n is the n-th letter; 0 is `.`."""
    return "".join("." if t == EOS else chr(96 + t) for t in tokens)


def spell(text):
    return [EOS if c == "." else ord(c) - 96 for c in text]


def engine(text, **options):
    script = [Scripted(token, -0.5 * i, 0.25 * i) for i, token in enumerate(spell(text))]
    return ScriptedEngine(lambda prefix, seed: script, decode, end_tokens=(EOS,), **options)


async def test_stop_string_ends_at_the_token_that_completes_it():
    segment = await engine("xyabcde").sample([1, 2], SampleParams(10, stop=("zz", "abc")), 7)
    assert decode(segment.tokens) == "xyabc"
    assert segment.finish is Finish.CALL
    assert segment.source is Source.POLICY
    assert segment.tokens.dtype == np.int32
    np.testing.assert_array_equal(segment.logprobs, np.float32([0, -0.5, -1, -1.5, -2]))
    np.testing.assert_array_equal(segment.entropies, np.float32([0, 0.25, 0.5, 0.75, 1]))


async def test_end_token_and_length():
    stopped = await engine("xy.zz").sample([1], SampleParams(10), 0)
    assert (decode(stopped.tokens), stopped.finish) == ("xy.", Finish.STOP)
    own_end = await engine("xy.zz").sample([1], SampleParams(10, end_tokens=tuple(spell("y"))), 0)
    assert (decode(own_end.tokens), own_end.finish) == ("xy", Finish.STOP)
    cut = await engine("xy.zz").sample([1], SampleParams(1), 0)
    assert (decode(cut.tokens), cut.finish) == ("x", Finish.LENGTH)


async def test_a_script_that_ends_too_early_is_an_error():
    with pytest.raises(ValueError, match="ends after 2 tokens"):
        await engine("xy").sample([1], SampleParams(10), 0)


async def test_script_sees_prefix_and_seed_and_counts_are_kept():
    def continuation(prefix, seed):
        return [Scripted(len(prefix)), Scripted(seed), Scripted(EOS)]

    scripted = ScriptedEngine(continuation, decode, end_tokens=(EOS,))
    segment = await scripted.sample([5, 5, 5], SampleParams(9), 11)
    assert segment.tokens.tolist() == [3, 11, EOS]
    assert scripted.requests == [((5, 5, 5), SampleParams(9), 11)]
    assert (scripted.stats.calls, scripted.stats.prefix_tokens, scripted.stats.sampled_tokens) == (1, 3, 3)


async def test_delays_shuffle_completion_not_content():
    order = []

    async def ask(scripted, prefix):
        segment = await scripted.sample(prefix, SampleParams(5), 0)
        order.append(prefix[0])
        return decode(segment.tokens)

    scripted = engine("ab.", delay=lambda prefix, seed: 0.02 / prefix[0])
    answers = await asyncio.gather(ask(scripted, [1]), ask(scripted, [2]), ask(scripted, [10]))
    assert order == [10, 2, 1]
    assert answers == ["ab."] * 3


async def test_version_capabilities_and_round_trip(tmp_path):
    scripted = engine("a.", capabilities=Capabilities(entropy="none"))
    assert scripted.capabilities.entropy == "none"
    await scripted.publish(None, 3)
    assert (await scripted.sample([1], SampleParams(5), 0)).version == 3
    scripted.save(tmp_path / "engine")
    other = engine("a.")
    other.load(tmp_path / "engine")
    assert (other.version, scripted.published) == (3, [3])


def test_a_stop_string_counts_only_when_the_last_token_completes_it():
    assert completes(decode, spell("xxabc"), ("abc",))
    assert not completes(decode, spell("abcx"), ("abc",))
    assert not completes(decode, spell("abcxc"), ("abc",))
    assert completes(decode, spell("abcabc"), ("abc",))
    assert not completes(decode, [], ("abc",))


def test_only_ids_that_hold_the_last_character_are_candidates():
    pieces = ["x", "</s", "earch", ">", ">\n", "\ufffd", "", "</search>"]

    def text(tokens):
        return "".join(pieces[t] for t in tokens)

    stopper = Stopper(text, range(len(pieces)))
    assert stopper.may_end(("</search>",)) == {3, 4, 5, 6, 7}
    assert stopper.may_end(("search", "</search>")) == {2, 3, 4, 5, 6, 7}
    assert stopper.ended([0, 1, 2, 4], ("</search>",))
    assert not stopper.ended([1, 2, 3, 0, 3], ("</search>",))
    with pytest.raises(ValueError, match="empty"):
        stopper.may_end(("",))
