"""The server engine against a server whose distribution is known exactly: ids, log-probs, brackets, ends."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from completion_server import END, VOCAB, Characters, CompletionServer, Reply, restless
from rollout_fakes import ToyDialect, ToyTool, encode, toolbox

from arpo.engine.base import SampleParams
from arpo.engine.openai import OpenAIEngine
from arpo.engine.settings import OpenAISettings
from arpo.engine.stopping import completes
from arpo.errors import ArpoError, ConfigError, EngineDownError, EngineError
from arpo.rollout.agent import Agent
from arpo.rollout.scheduler import rollout
from arpo.rollout.settings import EntropyRule, EntropySettings, RolloutSettings
from arpo.seeds import derive
from arpo.task import ask
from arpo.tree import Finish, Segment

APIS = ("openai", "sglang")


@contextmanager
def served(api: str = "openai", **options: Any) -> Iterator[tuple[CompletionServer, OpenAIEngine]]:
    """A server and an engine that talks to it. `options`: of the engine's settings, or of the server."""
    of_settings = {name: options.pop(name) for name in list(options) if name in OpenAISettings.model_fields}
    with CompletionServer(flavour={"openai": "vllm", "sglang": "sglang"}[api], **options) as server:
        settings = OpenAISettings(base_url=server.url, api=api, **of_settings)
        engine = OpenAIEngine(Characters(), settings)
        server.requests.clear()
        yield server, engine


def saying(text: str, *, otherwise: str = "x") -> Callable[[Sequence[int]], np.ndarray]:
    """After "?", almost surely `text`, and then `otherwise` for ever."""

    def logits(prefix: Sequence[int]) -> np.ndarray:
        _, asked, said = "".join(chr(token) for token in prefix).partition("?")
        scores = restless(prefix) * 0.1
        scores[ord(text[len(said)] if len(said) < len(text) else otherwise)] += 40.0 * bool(asked)
        return scores

    return logits


def text(segment: Segment) -> str:
    return "".join(chr(token) for token in segment.tokens)


async def closed(engine: OpenAIEngine, segment: Any) -> Segment:
    result: Segment = await segment
    await engine.close()
    return result


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0, 1.7])
async def test_ids_log_probs_and_entropies_are_exact(api: str, temperature: float) -> None:
    with served(api, top_k=8) as (server, engine):
        prefix = encode("why?").tolist()
        segment = await closed(engine, engine.sample(prefix, SampleParams(30, temperature=temperature), 7))
        assert len(segment) == len(segment.logprobs) == len(segment.entropies) == len(segment.slacks)
        assert segment.version == 0
        for place, token in enumerate(segment.tokens):
            before = [*prefix, *segment.tokens[:place].tolist()]
            assert segment.logprobs[place] == pytest.approx(server.logp(before, temperature)[token], abs=1e-5)
            gap = abs(segment.entropies[place] - server.entropy(before, temperature))
            assert gap <= segment.slacks[place] + 1e-5
        assert segment.slacks.max() > 0.01


@pytest.mark.parametrize("api", APIS)
async def test_the_sampled_token_is_no_part_of_the_top(api: str) -> None:
    """With one log-prob per token, an unlikely sample must not stand for the likeliest."""
    with served(api, top_k=1) as (server, engine):
        prefix = encode("why?").tolist()
        segment = await closed(engine, engine.sample(prefix, SampleParams(60), 3))
        unlikely = 0
        for place, token in enumerate(segment.tokens):
            before = [*prefix, *segment.tokens[:place].tolist()]
            unlikely += int(token != server.logp(before).argmax())
            assert abs(segment.entropies[place] - server.entropy(before)) <= segment.slacks[place] + 1e-5
        assert unlikely


async def test_an_older_server_spells_ids_in_the_names_of_tokens() -> None:
    with served(token_ids=False) as (server, engine), served() as (_, newer):
        prefix, params = encode("why?"), SampleParams(20)
        old = await closed(engine, engine.sample(prefix, params, 7))
        assert old == await closed(newer, newer.sample(prefix, params, 7))
        assert server.requests[0][1]["return_tokens_as_token_ids"] is True


async def test_without_top_k_entropy_is_minus_the_log_prob() -> None:
    with served(top_k=0) as (_, engine):
        assert engine.capabilities.entropy == "sampled"
        segment = await closed(engine, engine.sample(encode("why?"), SampleParams(20), 7))
        assert np.array_equal(segment.entropies, -segment.logprobs)
        assert len(segment.slacks) == 0


async def test_equal_seeds_draw_equal_tokens_and_every_64_bit_seed_is_taken() -> None:
    with served() as (server, engine):
        seeds = [7, 7, 8, (1 << 64) - 1, 1 << 63]
        first, again, other, *_ = [await engine.sample(encode("why?"), SampleParams(20), seed) for seed in seeds]
        await engine.close()
        assert first == again
        assert first != other
        assert all(0 <= request["seed"] < 1 << 63 for _, request in server.requests)


async def test_what_the_server_found_in_its_cache_is_counted_where_it_says_so() -> None:
    def cached(path: str, request: Any, reply: Reply) -> Reply:
        if path.endswith("completions"):
            reply.body["usage"]["prompt_tokens_details"] = {"cached_tokens": 3}
        return reply

    with served() as (server, engine):
        await engine.sample(encode("why?"), SampleParams(5), 7)
        assert (engine.stats.calls, engine.stats.prefix_tokens, engine.stats.sampled_tokens) == (1, 4, 5)
        assert engine.stats.computed_tokens == engine.stats.reused_tokens == 0
        server.tamper = cached
        await closed(engine, engine.sample(encode("why?"), SampleParams(5), 7))
        assert (engine.stats.reused_tokens, engine.stats.prefilled_tokens, engine.stats.computed_tokens) == (3, 1, 5)


async def test_nothing_that_bends_the_distribution_is_left_to_the_server() -> None:
    with served() as (server, engine):
        await closed(engine, engine.sample(encode("why?"), SampleParams(2), 7))
        request = server.requests[0][1]
        assert (request["top_k"], request["min_p"], request["repetition_penalty"]) == (-1, 0.0, 1.0)
        assert (request["presence_penalty"], request["frequency_penalty"]) == (0.0, 0.0)
        assert request["skip_special_tokens"] is False
        assert request["prompt"] == encode("why?").tolist()


# --- where a segment ends --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("api", APIS)
async def test_an_end_token_is_the_last_of_the_segment(api: str) -> None:
    with served(api, logits=saying("ab$")) as (_, engine):
        segment = await closed(engine, engine.sample(encode("why?"), SampleParams(20, end_tokens=(END,)), 7))
        assert (text(segment), segment.finish) == ("ab$", Finish.STOP)


async def test_the_tokenizer_names_the_end_where_the_params_do_not() -> None:
    with served(logits=saying("ab$")) as (_, engine):
        segment = await closed(engine, engine.sample(encode("why?"), SampleParams(20), 7))
        assert (text(segment), segment.finish) == ("ab$", Finish.STOP)


@pytest.mark.parametrize("api", APIS)
async def test_an_end_that_is_not_ours_is_gone_past(api: str) -> None:
    """The server obeys its model's end token; the dialect has another."""
    with served(api, logits=saying("a$b$c#"), eos=END) as (server, engine):
        segment = await closed(engine, engine.sample(encode("why?"), SampleParams(20, end_tokens=(ord("#"),)), 7))
        assert (text(segment), segment.finish) == ("a$b$c#", Finish.STOP)
        assert len(server.requests) == 3
        bodies = [request for _, request in server.requests]
        assert len({body.get("seed") or body["sampling_params"]["sampling_seed"] for body in bodies}) == 3
        assert len(segment.entropies) == len(segment.slacks) == 6


@pytest.mark.parametrize("api", APIS)
async def test_a_stop_string_ends_a_call(api: str) -> None:
    with served(api, logits=saying("<s>q</s>zz")) as (_, engine):
        segment = await closed(engine, engine.sample(encode("why?"), SampleParams(20, stop=ToyDialect.stop), 7))
        assert (text(segment), segment.finish) == ("<s>q</s>", Finish.CALL)


@pytest.mark.parametrize("cut", [1, 2, 3])
@pytest.mark.parametrize("api", APIS)
async def test_a_stop_string_that_a_window_cut_in_two_is_completed(api: str, cut: int) -> None:
    said = "<s>q</s>"
    with served(api, logits=saying(said + "zz" * 50)) as (server, engine):
        prefix = encode("why?" + said[:-cut])
        segment = await closed(engine, engine.sample(prefix, SampleParams(90, stop=ToyDialect.stop), 7))
        assert (text(segment), segment.finish) == (said[-cut:], Finish.CALL)
        asked = [
            request.get("max_tokens") or request["sampling_params"]["max_new_tokens"] for _, request in server.requests
        ]
        assert asked == [3 if cut == 3 else cut]


async def test_a_beginning_that_comes_to_nothing_costs_one_more_request() -> None:
    with served(logits=saying("</x and on" + "z" * 50)) as (server, engine):
        segment = await closed(engine, engine.sample(encode("why?</"), SampleParams(30, stop=ToyDialect.stop), 7))
        assert (text(segment), segment.finish) == ("x and on" + "z" * 22, Finish.LENGTH)
        assert [request["max_tokens"] for _, request in server.requests] == [2, 28]


async def test_what_the_server_takes_for_a_stop_string_and_we_do_not_is_gone_past() -> None:
    """A server that trims: it stops at text that our own rule does not count."""

    def early(path: str, request: Any, reply: Reply) -> Reply:
        if path.endswith("completions") and len(request["prompt"]) == 4 and request["max_tokens"] > 1:
            choice = reply.body["choices"][0]
            choice |= {"finish_reason": "stop", "token_ids": choice["token_ids"][:3]}
            choice["logprobs"] |= {name: value[:3] for name, value in choice["logprobs"].items()}
        return reply

    with served(logits=saying("abcdefgh$")) as (server, engine):
        server.tamper = early
        segment = await closed(engine, engine.sample(encode("why?"), SampleParams(20, stop=("zz",)), 7))
        assert (text(segment), segment.finish) == ("abcdefgh$", Finish.STOP)


async def test_a_segment_ends_at_its_limit_and_at_the_end_of_the_context() -> None:
    with served(logits=saying("x" * 200), max_model_len=50) as (_, engine):
        short = await engine.sample(encode("why?"), SampleParams(5), 7)
        whole = await engine.sample(encode("why?"), SampleParams(500), 7)
        await engine.close()
        assert (len(short), short.finish) == (5, Finish.LENGTH)
        assert (len(whole), whole.finish) == (46, Finish.LENGTH)
        assert engine.capabilities.max_context == 50


async def test_segments_end_as_the_local_rule_says() -> None:
    """Whatever is sampled, wherever the prefix ends: the first token that ends it by our rule is the last."""
    stop, ends = ("ab", "bca", "</s>"), (ord("c"), END)

    def few(prefix: Sequence[int]) -> np.ndarray:
        scores = np.full(VOCAB, -30.0)
        scores[[ord(char) for char in "ab</s>d$"]] = 0.0
        scores[ord("c")] = -2.0
        scores[ord("a")] = (len(prefix) % 3) * 0.1  # so that the probe sees differences
        return scores

    met = set()
    with served(logits=few) as (server, engine):
        for seed in range(60):
            prefix = encode("why?" + ["", "a", "bc", "</", "b", "</s"][seed % 6])
            segment = await engine.sample(prefix, SampleParams(25, stop=stop, end_tokens=ends), derive(seed))
            met.add(segment.finish)
            whole = prefix.tolist()
            for place, token in enumerate(segment.tokens.tolist(), start=1):
                whole.append(token)
                over = token in ends or completes(server.decode, whole, stop)
                assert over == (place == len(segment) and segment.finish is not Finish.LENGTH)
        await engine.close()
    assert met == {Finish.STOP, Finish.CALL, Finish.LENGTH}


# --- what it cannot do -----------------------------------------------------------------------------------------------


async def test_raw_log_probs_are_refused_where_they_would_lie() -> None:
    with served(logprobs_mode="raw_logprobs") as (_, engine):
        with pytest.raises(ConfigError, match="processed_logprobs"):
            await engine.sample(encode("why?"), SampleParams(5, temperature=0.7), 7)
        greedy = await engine.sample(encode("why?"), SampleParams(5, temperature=0.0), 7)
        narrow = await engine.sample(encode("why?"), SampleParams(5, top_p=0.5), 7)
        await engine.close()
        assert len(greedy) == len(narrow) == 5


async def test_raw_log_probs_under_top_p_are_those_of_the_whole_distribution() -> None:
    with served(logprobs_mode="raw_logprobs") as (server, engine):
        prefix = encode("why?").tolist()
        segment = await closed(engine, engine.sample(prefix, SampleParams(1, top_p=0.5), 7))
        assert segment.logprobs[0] == pytest.approx(server.logp(prefix)[segment.tokens[0]], abs=1e-6)


async def test_truncated_log_probs_are_refused() -> None:
    with served() as (_, engine):
        with pytest.raises(ConfigError, match=r"top_p = 0\.9"):
            await engine.sample(encode("why?"), SampleParams(5, top_p=0.9), 7)
        await engine.close()


async def test_sglang_reports_the_whole_distribution_under_top_p() -> None:
    with served("sglang") as (server, engine):
        prefix = encode("why?").tolist()
        segment = await closed(engine, engine.sample(prefix, SampleParams(1, temperature=0.7, top_p=0.5), 7))
        assert segment.logprobs[0] == pytest.approx(server.logp(prefix, 0.7)[segment.tokens[0]], abs=1e-6)


@pytest.mark.parametrize(("prefix", "words"), [("", "empty prefix"), ("x" * 50, "no room"), ("x" * 60, "no room")])
async def test_a_prefix_that_cannot_be_continued(prefix: str, words: str) -> None:
    with served(max_model_len=50) as (server, engine):
        with pytest.raises(EngineError, match=words):
            await engine.sample(encode(prefix), SampleParams(5), 7)
        await engine.close()
        assert server.requests == []


async def test_saving_and_loading_belong_to_the_server(tmp_path: Any) -> None:
    with served() as (_, engine):
        with pytest.raises(ArpoError, match="trained"):
            engine.save(tmp_path)
        with pytest.raises(ArpoError, match="start it"):
            engine.load(tmp_path)
        await engine.close()


# --- weights ---------------------------------------------------------------------------------------------------------


async def test_without_a_publisher_only_the_version_that_is_there_can_be_published() -> None:
    with served() as (_, engine):
        assert not engine.capabilities.weight_update
        await engine.publish(object(), 0)
        with pytest.raises(ConfigError, match="version 3"):
            await engine.publish(object(), 3)
        await engine.close()


async def test_publishing_waits_for_what_samples_and_holds_back_what_comes() -> None:
    log: list[str] = []

    class Recorder:
        async def publish(self, weights: Any, version: int) -> None:
            log.append(f"publish {version} with {server.in_flight} in flight")
            await asyncio.sleep(0.05)
            log.append("published")

    async def one(name: str) -> Segment:
        segment = await engine.sample(encode("why?"), SampleParams(10), 7)
        log.append(name)
        return segment

    with CompletionServer(saying("x" * 50), pace=0.01) as server:
        engine = OpenAIEngine(Characters(), OpenAISettings(base_url=server.url), publisher=Recorder())
        assert engine.capabilities.weight_update
        before = [asyncio.create_task(one("before")) for _ in range(3)]
        await asyncio.sleep(0.03)
        publishing = asyncio.create_task(engine.publish("weights", 4))
        await asyncio.sleep(0)
        after = asyncio.create_task(one("after"))
        segments = await asyncio.gather(*before, after)
        await publishing
        await engine.close()
    assert log == ["before", "before", "before", "publish 4 with 0 in flight", "published", "after"]
    assert [segment.version for segment in segments] == [0, 0, 0, 4]
    assert engine.version == 4


async def test_a_failed_publication_leaves_the_version_and_the_engine_usable() -> None:
    class Broken:
        async def publish(self, weights: Any, version: int) -> None:
            raise EngineError("no room")

    with CompletionServer() as server:
        engine = OpenAIEngine(Characters(), OpenAISettings(base_url=server.url), publisher=Broken())
        with pytest.raises(EngineError, match="no room"):
            await engine.publish("weights", 1)
        segment = await closed(engine, engine.sample(encode("why?"), SampleParams(3), 7))
        assert segment.version == 0


def test_an_engine_outlives_an_event_loop() -> None:
    with served() as (_, engine):
        first = asyncio.run(engine.sample(encode("why?"), SampleParams(5), 7))
        again = asyncio.run(engine.sample(encode("why?"), SampleParams(5), 7))
        assert first == again


# --- a rollout -------------------------------------------------------------------------------------------------------


def talkative(prefix: Sequence[int]) -> np.ndarray:
    """Calls, answers and idle talk in the toy dialect, each turn now and then."""
    said = "".join(chr(token) for token in prefix)
    turn = said[max(said.rfind("?"), said.rfind("}"), said.rfind("!")) + 1 :]
    scores = np.random.default_rng([len(prefix), *prefix[-8:]]).normal(0.0, 0.5, VOCAB) - 30.0
    scripts = ["<s>q</s>", "<s>r</s>", "[a]$", "[b]$"] if said.count("}") < 4 else ["[a]$", "[b]$"]
    for script in scripts:
        if script.startswith(turn) and len(turn) < len(script):
            scores[ord(script[len(turn)])] = 1.0 + scripts.index(script) * 0.3
    if scores.max() < 0:
        scores[[ord("x"), ord("$")]] = 0.0, 0.4
    return scores


@pytest.mark.parametrize("api", APIS)
async def test_a_whole_rollout(api: str) -> None:
    settings = RolloutSettings(total=8, initial=4, max_tokens=60, branching=EntropyRule(base_probability=0.6))
    with served(api, logits=talkative, concurrency=3, top_k=5) as (server, engine):
        trees = []
        for _ in range(2):
            agent = Agent(engine, ToyDialect(), toolbox(ToyTool("search"), ToyTool("python")), VOCAB)
            tree = await rollout(
                ask("why?", "a", id="toy"),
                agent,
                settings=settings,
                entropy=EntropySettings(window=4),
                seed_parts=("test", 1),
            )
            trees.append(tree)
        await engine.close()
    tree = trees[0]
    assert len(tree.leaves) == 8
    assert [s.tokens.tolist() for s in tree.segments] == [s.tokens.tolist() for s in trees[1].segments]
    assert tree.decisions == trees[1].decisions
    assert any(decision.opened for decision in tree.decisions)
    for path in tree.paths():
        for place in np.flatnonzero(path.policy_T):
            before = path.token_T[:place].tolist()
            expected = server.logp(before)[path.token_T[place]]
            assert path.logprob_T[place] == pytest.approx(expected, abs=1e-4)
    assert engine.stats.sampled_tokens >= sum(len(s) for s in tree.segments if s.is_policy)


async def toy_rollout(engine: OpenAIEngine) -> Any:
    agent = Agent(engine, ToyDialect(), toolbox(ToyTool("search"), ToyTool("python")), VOCAB)
    return await rollout(
        ask("why?", "a", id="toy"),
        agent,
        settings=RolloutSettings(total=4, initial=4, max_tokens=60),
        entropy=EntropySettings(window=4),
        seed_parts=("test", 1),
    )


async def test_a_server_that_dies_in_the_middle_ends_the_rollout() -> None:
    with served(logits=talkative, pace=0.01, retries=0, breaker=1) as (server, engine):
        tasks = asyncio.all_tasks()
        growing = asyncio.create_task(toy_rollout(engine))
        while len(server.requests) < 6:
            await asyncio.sleep(0.002)
        await asyncio.to_thread(server.kill)
        with pytest.raises(EngineDownError, match="connection lost"):
            await growing
        await engine.close()
        assert asyncio.all_tasks() == tasks


async def test_one_request_that_fails_costs_one_trajectory() -> None:
    left = 1

    def broken(path: str, request: Any, reply: Reply) -> Reply:
        nonlocal left
        if path.endswith("completions") and left and len(request["prompt"]) > 10:
            left -= 1
            return Reply(body={})
        return reply

    with served(logits=talkative) as (server, engine):
        server.tamper = broken
        tree = await toy_rollout(engine)
        await engine.close()
    assert left == 0
    assert [tree.segments[leaf].finish for leaf in tree.leaves].count(Finish.ERROR) == 1
