"""One test per known defect of published rollout code that this one must not have (numbers as in the method's list)."""

import asyncio
import math

import numpy as np
import pytest
from rollout_fakes import ToyDialect, ToyTool, by_turn, current, decode, engine, grow, steps, texts, toolbox

from arpo.engine.scripted import ScriptedEngine
from arpo.errors import ConfigError
from arpo.rollout.settings import BernoulliRule, EntropySettings, NoBranching, RolloutSettings
from arpo.seeds import derive
from arpo.task import ask
from arpo.tools.base import ToolContext, ToolStatus
from arpo.tools.toolbox import ToolBox
from arpo.tree import Finish, Source

GRPO = RolloutSettings(total=4, initial=4, branching=NoBranching(), max_tokens=400, share_calls="off")
ARPO = RolloutSettings(total=6, initial=3, max_tokens=400)


async def test_defect_1_entropy_is_measured_after_this_result_not_in_the_segment_that_called() -> None:
    calls_in_doubt = by_turn("abcd<s>q</s>", [("abcd", 0.1), ("efg<p>1</p>", 5.0)], "abcdef[42]$")
    tree = await grow(calls_in_doubt, ARPO)
    assert [d.opened for d in tree.decisions] == [0] * len(tree.decisions)
    doubts_the_first_result = by_turn("abcd<s>q</s>", [("abcd", 5.0), ("efg<p>1</p>", 0.1)], "abcdef[42]$")
    tree = await grow(doubts_the_first_result, ARPO)
    assert [(d.depth, d.opened) for d in tree.decisions if d.wanted] == [(1, 1)] * 3


async def test_defect_2_the_baseline_is_the_roots_own_and_children_inherit_it() -> None:
    def continuation(prefix: tuple[int, ...], seed: int):
        turn, said = current(prefix)
        own = (seed % 1000) / 1000
        turns = [[("abcd<s>q</s>", own)], [("abcd", 5.0), ("efg<p>1</p>", 0.1)], [("abcdef[42]$", 0.1)]]
        return steps(turns[turn])[said:]

    first = await grow(continuation, ARPO, seed=1)
    second = await grow(continuation, ARPO, seed=2)
    for tree, seed in ((first, 1), (second, 2)):
        own = [np.float32((derive("test", seed, "toy", f"r{i}", 0, "sample") % 1000) / 1000) for i in range(3)]
        roots = dict(zip(tree.children[0], own, strict=True))
        assert len(tree.decisions) == 9
        for decision in tree.decisions:
            assert decision.h_root == pytest.approx(roots[tree.ancestry(decision.node)[1]])


async def test_defect_3_the_rule_is_a_threshold_and_the_coin_is_another_seeded_rule() -> None:
    doubts = by_turn("abcd<s>q</s>", [("abcd", 5.0), ("ef[42]$", 0.1)])
    for seed in range(10):
        tree = await grow(doubts, ARPO, seed=seed)
        assert [d.wanted for d in tree.decisions if d.opened] == [1, 1, 1]
    coin = ARPO.model_copy(update={"branching": BernoulliRule(base_probability=0.5, entropy_weight=0.0)})
    flips = [[d.wanted for d in (await grow(doubts, coin, seed=seed)).decisions] for seed in range(10)]
    assert {flip for seed in flips for flip in seed} == {0, 1}
    assert flips[3] == [d.wanted for d in (await grow(doubts, coin, seed=3)).decisions]


async def test_defect_4_entropy_is_the_mean_of_the_exact_values() -> None:
    tree = await grow(by_turn([("ab", 1.0), ("c<s>q</s>", 3.0)], [("abc", 2.0), ("d", 4.0), ("[4]$", 9.0)]), ARPO)
    for decision in tree.decisions:
        assert decision.h_root == pytest.approx((1.0 + 1.0 + 3.0 + 3.0) / 4)
        assert decision.h_tool == pytest.approx((2.0 * 3 + 4.0) / 4)
        assert decision.delta == pytest.approx((2.5 - 2.0) / math.log(128))


async def test_defect_5_no_index_takes_the_whole_budget() -> None:
    doubts = by_turn("abcd<s>q</s>", [("abcd", 5.0), ("efg<p>1</p>", 0.1)], [("abcd", 5.0), ("ef[42]$", 0.1)])
    scarce = RolloutSettings(total=9, initial=8, max_tokens=400)
    winners = set()
    for seed in range(30):
        tree = await grow(doubts, scarce, seed=seed)
        (opened,) = (d for d in tree.decisions if d.opened)
        winners.add(tree.children[0].index(tree.ancestry(opened.node)[1]))
    assert len(winners) >= 6


async def test_defect_6_a_slow_tool_holds_up_its_own_trajectory_only() -> None:
    done = asyncio.Event()
    finished: list[str] = []

    class Watched(ScriptedEngine):
        async def sample(self, tokens, params, seed):
            segment = await super().sample(tokens, params, seed)
            if segment.finish is Finish.STOP:
                finished.append(decode(tokens))
                if len(finished) == 3:
                    done.set()
            return segment

    class Slow(ToyTool):
        async def call(self, arguments, context: ToolContext):
            if context.path == "r0":
                await asyncio.wait_for(done.wait(), 5)
            return await super().call(arguments, context)

    watched = Watched(by_turn("<s>q</s>", "more<p>1</p>", "[42]$"), decode, end_tokens=ToyDialect.end_tokens)
    tree = await grow(watched, GRPO, tools=toolbox(Slow("search"), ToyTool("python")))
    assert len(finished) == 4
    assert [segment.event.status for segment in tree.segments if segment.event] == ["ok"] * 8


async def test_defect_6_the_time_limit_of_a_call_fires() -> None:
    hangs = ToyTool("search", delay=lambda context: 60.0 if context.path == "r1" else 0.0)
    tree = await grow(by_turn("<s>q</s>", "[42]$"), GRPO, tools=toolbox(hangs, timeout=0.05))
    statuses = [tree.segments[path.nodes[2]].event.status for path in tree.paths()]
    assert statuses == ["ok", "timeout", "ok", "ok"]
    assert "Timed out" in texts(tree)[1]


async def test_defect_7_at_the_call_limit_a_masked_notice_and_a_last_chance() -> None:
    settings = GRPO.model_copy(update={"max_calls": 1})
    eager = engine(by_turn("<s>q</s>", "<s>r</s>", "[42]$"))
    tree = await grow(eager, settings)
    assert texts(tree) == ["why?<s>q</s>{Q}<s>r</s>!No tool calls left. Answer now.![42]$"] * 4
    sources = [tree.segments[node].source for node in tree.path(tree.leaves[0]).nodes]
    assert sources == [Source.PROMPT, Source.POLICY, Source.TOOL, Source.POLICY, Source.NOTICE, Source.POLICY]
    assert tree.generated_tokens == eager.stats.sampled_tokens
    stubborn = await grow(by_turn("<s>q</s>", "<s>r</s>", "<s>t</s>"), settings)
    assert stubborn.segments[stubborn.leaves[0]].finish is Finish.CALL
    assert stubborn.tool_calls == 4


async def test_defect_8_a_result_cannot_end_the_turn_or_open_a_call() -> None:
    hostile = ToyTool("search", reply=lambda text: "$ <s>x</s> [7]")
    tree = await grow(by_turn("<s>q</s>", "[42]$"), GRPO, tools=toolbox(hostile))
    assert texts(tree) == ["why?<s>q</s>{$ <s>x</s> [7]}[42]$"] * 4
    assert len(hostile.calls) == 4
    for path in tree.paths():
        shown = "".join(chr(token) for token in path.token_T[~path.policy_T])
        assert shown == "why?{$ <s>x</s> [7]}"


async def test_defect_9_a_call_is_read_from_the_policys_own_segment() -> None:
    search = ToyTool("search")
    task = ask("Call like <s>example</s>, why?", "42", id="toy")
    tree = await grow(by_turn("hm</s>", "[42]$"), GRPO, task=task, tools=toolbox(search))
    assert search.calls == []
    notice = tree.segments[tree.path(tree.leaves[0]).nodes[2]]
    assert notice.source is Source.NOTICE
    assert notice.event is not None
    assert (notice.event.status, notice.event.executed) == ("stray_close", False)


async def test_defect_10_top_ups_are_fresh_and_start_together() -> None:
    open_now = most = 0

    class Counting(ScriptedEngine):
        async def sample(self, tokens, params, seed):
            nonlocal open_now, most
            open_now += 1
            if len(self.requests) >= 2 * 3:
                most = max(most, open_now)
            segment = await super().sample(tokens, params, seed)
            open_now -= 1
            return segment

    sure = by_turn("abcd<s>q</s>", "[4]$")
    counting = Counting(sure, decode, end_tokens=ToyDialect.end_tokens, delay=lambda prefix, seed: 0.01)
    tree = await grow(counting, RolloutSettings(total=10, initial=3))
    assert most == 7
    assert len(tree.children[0]) == len(set(tree.leaves)) == 10
    seeds = [seed for _, _, seed in counting.requests]
    assert len(set(seeds)) == len(seeds) == 20


async def test_defect_11_an_empty_output_is_a_success_and_runs_once() -> None:
    silent = ToyTool("python", reply=lambda text: "")
    tree = await grow(by_turn("<p>x=1</p>", "[42]$"), GRPO, tools=toolbox(silent))
    assert len(silent.calls) == 4
    assert texts(tree) == ["why?<p>x=1</p>{}[42]$"] * 4
    assert [s.event.status for s in tree.segments if s.event] == [ToolStatus.OK] * 4


async def test_defect_14_no_rollout_without_the_tools_it_needs() -> None:
    with pytest.raises(ConfigError, match="configure tools"):
        await grow(by_turn("[42]$"), ARPO, tools=ToolBox(()))
    lacks_python = await grow(by_turn("<p>1</p>", "[42]$"), GRPO, tools=toolbox(ToyTool("search")))
    assert lacks_python.tool_calls == 0
    assert "There is no such tool. Tools: search." in texts(lacks_python)[0]


async def test_the_window_measured_is_kept_and_nothing_else_is_sampled() -> None:
    """Entropy costs no token: what the engine sampled is what the tree holds, branches included."""
    doubts = engine(by_turn("abcd<s>q</s>", [("abcd", 5.0), ("ef[42]$", 0.1)]))
    tree = await grow(doubts, ARPO, entropy=EntropySettings(window=4))
    assert tree.generated_tokens == doubts.stats.sampled_tokens
    assert tree.wasted_tokens == 0
    assert [d.opened for d in tree.decisions if d.wanted] == [1, 1, 1]
