"""`at = "stale_state"`: the public code's measurement, reproduced on purpose and named so.

What is reproduced: the signal is the entropy of the segment that ended in the call, the baseline that of the
trajectory's first segment, and children open right after the result. What is not: other prompts' baselines, sums of ten
terms, copies. So a decision depends on nothing behind its branching point.
"""

from collections.abc import Sequence

import numpy as np
import pytest
from pydantic import ValidationError
from rollout_fakes import ToyDialect, agent, by_turn, current, engine, grow, steps, texts, toolbox

from arpo.protocol.base import ParseResult
from arpo.rollout.agent import Agent
from arpo.rollout.scheduler import rollout
from arpo.rollout.settings import (
    AepoRule,
    BernoulliRule,
    EntropyRule,
    EntropySettings,
    RandomRule,
    RolloutSettings,
    UniformRule,
)
from arpo.seeds import uniform
from arpo.task import ask
from arpo.tree import Finish, Source

STALE = RolloutSettings(total=4, initial=2, branching=EntropyRule(at="stale_state"), max_tokens=400)
DOUBTS_AFTER_THE_FIRST_RESULT = by_turn("abcd<s>q</s>", [("abcdefg<p>1</p>", 5.0)], [("abcdef[42]$", 0.1)])


async def test_the_first_call_sees_no_change_however_uncertain_what_follows_it() -> None:
    tree = await grow(by_turn([("abcd<s>q</s>", 3.0)], [("abcd[42]$", 9.0)]), STALE)
    assert [(d.depth, d.delta, d.wanted) for d in tree.decisions] == [(1, 0.0, 0)] * 4
    assert all(d.h_tool == d.h_root == pytest.approx(3.0) for d in tree.decisions)


async def test_the_second_call_reads_the_segment_that_ended_in_it_and_children_open_after_its_result() -> None:
    tree = await grow(DOUBTS_AFTER_THE_FIRST_RESULT, STALE)
    opened = [d for d in tree.decisions if d.opened]
    assert [(d.depth, d.tool, d.opened) for d in opened] == [(2, "python", 1)] * 2
    for decision in opened:
        assert (decision.h_root, decision.h_tool) == (pytest.approx(0.1), pytest.approx(5.0))
        assert tree.segments[decision.node].source is Source.TOOL
        assert len(tree.children[decision.node]) == 2
    assert texts(tree) == ["why?abcd<s>q</s>{Q}abcdefg<p>1</p>{1}abcdef[42]$"] * 4


async def test_only_the_first_tokens_of_the_segment_count() -> None:
    late = by_turn("abcd<s>q</s>", [("abcd", 0.1), ("efgh<p>1</p>", 9.0)], "[42]$")
    tree = await grow(late, STALE, entropy=EntropySettings(window=4))
    assert [d.wanted for d in tree.decisions] == [0] * len(tree.decisions)
    tree = await grow(late, STALE, entropy=EntropySettings(window=5))
    assert sum(d.opened for d in tree.decisions) == 2


async def test_nobody_pauses() -> None:
    """Every engine call is a whole segment, and nothing is thrown away."""
    asked = engine(DOUBTS_AFTER_THE_FIRST_RESULT)
    tree = await grow(asked, STALE)
    policy = [s for s in tree.segments if s.is_policy]
    assert len(asked.requests) == len(policy)
    assert not any(s.finish is Finish.WINDOW for s in policy)
    assert tree.wasted_tokens == 0
    assert tree.generated_tokens == asked.stats.sampled_tokens


async def test_children_keep_their_roots_baseline_and_are_measured_on_their_own_segments() -> None:
    """The public code measures a child's baseline anew; here a group has one per root, as everywhere."""

    def continuation(prefix: tuple[int, ...], seed: int) -> Sequence:
        turn, said = current(prefix)
        own = 1.0 + (seed % 1000) / 1000
        turns = [[("abcd<s>q</s>", 0.5)], [("ab<p>1</p>", own)], [("cd<p>2</p>", own)], [("[42]$", 0.1)]]
        return steps(turns[turn])[said:]

    tree = await grow(continuation, STALE.model_copy(update={"total": 5}), entropy=EntropySettings(window=20))
    assert {d.h_root for d in tree.decisions} == {0.5}
    for decision in tree.decisions:
        called = tree.segments[tree.segments[decision.node].parent]
        assert called.finish is Finish.CALL
        assert decision.h_tool == pytest.approx(float(np.mean(called.entropies)))
    assert {d.depth for d in tree.decisions} == {1, 2, 3}


async def test_every_reason_names_the_form() -> None:
    tree = await grow(DOUBTS_AFTER_THE_FIRST_RESULT, STALE)
    assert tree.decisions
    assert all(d.reason.startswith("stale_state: ") for d in tree.decisions)


async def test_the_official_coin_falls_with_alpha_at_the_first_call() -> None:
    coin = STALE.model_copy(update={"branching": BernoulliRule(at="stale_state", base_probability=0.5)})
    seen = set()
    for seed in range(12):
        tree = await grow(DOUBTS_AFTER_THE_FIRST_RESULT, coin, seed=seed)
        first = [d for d in tree.decisions if d.depth == 1]
        assert {d.probability for d in first} == {0.5}
        place = ("test", seed, "toy", "r0", 1, "branch")
        assert bool(first[0].wanted) == (uniform(*place) < 0.5)
        seen.add(bool(first[0].wanted))
        assert all(d.probability > 0.5 for d in tree.decisions if d.depth == 2)
    assert seen == {True, False}


class _Reconsidering(ToyDialect):
    """A stop string after a `w` ends nothing: the policy samples on."""

    def parse(self, tokens: Sequence[int], finish: Finish) -> ParseResult:
        text = self.decode(tokens)
        return ParseResult(goes_on=True) if text.endswith("w</s>") else super().parse(tokens, finish)


async def test_a_segment_sampled_in_several_pieces_is_one_segment() -> None:
    script = engine(by_turn("abcd<s>q</s>", [("ab<s>w</s>", 1.0), ("cd<p>1</p>", 7.0)], "[42]$"))
    toy = Agent(script, _Reconsidering(), toolbox(), 128)
    settings = STALE.model_copy(update={"total": 3})
    tree = await rollout(
        ask("why?", "42", id="toy"), toy, settings=settings, entropy=EntropySettings(window=20), seed_parts=("t",)
    )
    second = [d for d in tree.decisions if d.depth == 2]
    assert second[0].h_tool == pytest.approx((1.0 * 10 + 7.0 * 10) / 20)


async def test_too_few_tokens_before_the_call_open_nothing() -> None:
    brief = by_turn("abcd<s>q</s>", [("<p>1</p>", 9.0)], "[42]$")
    tree = await grow(brief, STALE, entropy=EntropySettings(window=20, min_tokens=9))
    assert sum(d.opened for d in tree.decisions) == 0
    assert "entropy.min_tokens is 9" in tree.decisions[-1].reason


async def test_a_server_that_estimates_entropies_may_be_used_because_a_window_is_read() -> None:
    from arpo.engine.base import Capabilities

    sampled = engine(DOUBTS_AFTER_THE_FIRST_RESULT, capabilities=Capabilities(entropy="sampled", weight_update=True))
    tree = await rollout(
        ask("why?", "42", id="toy"),
        agent(sampled),
        settings=STALE,
        entropy=EntropySettings(window=4),
        seed_parts=("test", 0),
    )
    assert sum(d.opened for d in tree.decisions) == 2


@pytest.mark.parametrize("rule", [RandomRule, UniformRule])
def test_rules_that_read_no_entropy_refuse_it(rule: type) -> None:
    with pytest.raises(ValidationError, match='set at = "state"'):
        rule(at="stale_state")


def test_it_takes_no_look_ahead() -> None:
    with pytest.raises(ValidationError, match="stale_state"):
        EntropyRule(at="stale_state", lookahead=True)


def test_the_monitor_makes_initial_meaningless() -> None:
    """AEPO's first trajectory decides N, so a smaller group needs no second number."""
    assert RolloutSettings(total=4, branching=AepoRule()).total == 4
    with pytest.raises(ValidationError, match="exceeds total"):
        RolloutSettings(total=4, branching=AepoRule(monitor=False))
