"""The phase gate: rounds that wait for the slowest, and that end whatever happens to those who wait."""

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest
from rollout_fakes import VOCAB, ToyDialect, ToyTool, babble, by_turn, engine, toolbox

from arpo.bench.rollout_gate import GatedEngine, GatedToolBox, PhaseGate
from arpo.rollout.agent import Agent
from arpo.rollout.scheduler import rollout_many
from arpo.rollout.settings import EntropySettings, RolloutSettings
from arpo.task import ask
from arpo.tree import RolloutTree

SETTINGS = RolloutSettings(total=6, initial=3, max_tokens=200, max_calls=3)
TASKS = [ask(f"why{n}?", "42", id=f"toy/{n}") for n in range(3)]


class Watched:
    """Who is inside which phase, at every entry."""

    def __init__(self) -> None:
        self.now = {"sample": 0, "tool": 0}
        self.most = {"sample": 0, "tool": 0}
        self.mixed = 0
        self.switches = 0
        self._last = ""

    async def around(self, phase: str, work: Callable[[], Awaitable[object]]) -> object:
        other = "tool" if phase == "sample" else "sample"
        self.mixed += self.now[other] > 0
        self.switches += self._last != phase
        self._last = phase
        self.now[phase] += 1
        self.most[phase] = max(self.most[phase], self.now[phase])
        try:
            return await work()
        finally:
            self.now[phase] -= 1


def lockstep_agent(watched: Watched, policy=babble, luck: random.Random | None = None) -> Agent:  # type: ignore[no-untyped-def]
    """A toy agent behind a gate; engine and tools take times of their own."""
    luck = luck or random.Random(0)
    gate = PhaseGate()
    inner = engine(policy, delay=lambda prefix, seed: luck.random() / 500)
    sample = inner.sample

    async def watched_sample(*arguments):  # type: ignore[no-untyped-def]
        return await watched.around("sample", lambda: sample(*arguments))

    inner.sample = watched_sample  # type: ignore[method-assign]

    class WatchedTool(ToyTool):
        async def call(self, arguments, context):  # type: ignore[no-untyped-def]
            return await watched.around("tool", lambda: ToyTool.call(self, arguments, context))

    delay = lambda context: luck.random() / 200
    tools = toolbox(WatchedTool("search", delay=delay), WatchedTool("python", delay=delay))
    return Agent(GatedEngine(inner, gate), ToyDialect(), GatedToolBox(tools, gate), VOCAB)


async def grow(agent: Agent, settings: RolloutSettings = SETTINGS) -> list[RolloutTree]:
    return await rollout_many(
        TASKS, agent, settings=settings, entropy=EntropySettings(window=4), seed_parts=("gate", 0)
    )


async def test_sampling_and_tools_take_turns_and_a_rounds_tools_overlap() -> None:
    watched = Watched()
    trees = await grow(lockstep_agent(watched))
    assert [len(tree.leaves) for tree in trees] == [6, 6, 6]
    assert watched.mixed == 0, "nothing samples while a tool runs, and no tool runs while something samples"
    assert watched.most["tool"] > 3
    assert watched.most["sample"] > 3
    assert watched.now == {"sample": 0, "tool": 0}


@pytest.mark.parametrize(("branching", "rounds"), [({"type": "none"}, 3), ({"type": "entropy"}, 5)])
async def test_a_round_is_one_segment_and_one_call_of_everybody(branching: dict[str, str], rounds: int) -> None:
    """Two calls and an answer take three rounds. A pause for the entropy window starts none; the top-ups, which begin
    in the third round, where no branch can come any more, make it five."""
    watched = Watched()
    script = by_turn("abc<s>long query</s>", "abcdefgh<p>1</p>", "abcdefgh[a]$")
    settings = RolloutSettings(
        total=6, initial=6 if branching["type"] == "none" else 3, max_tokens=200, share_calls="off", branching=branching
    )
    trees = await grow(lockstep_agent(watched, script), settings)
    assert {tree.top_ups for tree in trees} == {6 - settings.initial}
    assert watched.switches == 2 * rounds - 1


async def test_the_gate_changes_no_trajectory() -> None:
    free = Agent(engine(babble), ToyDialect(), toolbox(), VOCAB)
    assert _tokens(await grow(lockstep_agent(Watched()))) == _tokens(await grow(free))


def _tokens(trees: list[RolloutTree]) -> list[list[list[int]]]:
    return [[path.token_T.tolist() for path in tree.paths()] for tree in trees]


@pytest.mark.parametrize("seed", range(8))
async def test_no_deadlock_when_those_who_wait_or_are_inside_are_cancelled(seed: int) -> None:
    luck, gate = random.Random(seed), PhaseGate()
    inside = {"sample": 0, "tool": 0}

    async def one() -> None:
        for _ in range(luck.randrange(1, 5)):
            for phase in ("sample", "tool"):
                async with gate.within(phase):  # type: ignore[arg-type]
                    inside[phase] += 1
                    assert inside["tool" if phase == "sample" else "sample"] == 0
                    try:
                        await asyncio.sleep(luck.random() / 300)
                    finally:
                        inside[phase] -= 1

    async with asyncio.timeout(20):
        tasks = [asyncio.create_task(one()) for _ in range(30)]
        while not all(task.done() for task in tasks):
            await asyncio.sleep(luck.random() / 200)
            running = [task for task in tasks if not task.done()]
            if running and luck.random() < 0.5:
                luck.choice(running).cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(result) for result in results} <= {type(None), asyncio.CancelledError}
        await asyncio.sleep(0.01)
        async with gate.within("tool"):  # whoever comes next finds the gate open
            assert gate.phase == "tool"


@pytest.mark.parametrize("turns_over_first", [True, False])
async def test_who_is_cancelled_at_the_very_turn_of_the_phase(turns_over_first: bool) -> None:
    """Whether the phase began just before or just after, the waiter is gone and the gate goes on."""
    gate = PhaseGate()

    async def tool() -> None:
        async with gate.within("tool"):
            await asyncio.sleep(0)

    async with gate.within("sample"):
        waiter, other = asyncio.create_task(tool()), asyncio.create_task(tool())
        await asyncio.sleep(0)
    if not turns_over_first:
        waiter.cancel()
    while gate.phase != "tool":
        gate._tick()
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    async with asyncio.timeout(5):
        await other
        async with gate.within("sample"):
            assert gate.phase == "sample"


async def test_a_rollout_that_is_cancelled_leaves_the_gate_open() -> None:
    agent = lockstep_agent(Watched())
    task = asyncio.create_task(grow(agent))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with asyncio.timeout(20):
        assert len(await grow(agent)) == 3


async def test_what_an_engine_says_is_passed_on(tmp_path) -> None:  # type: ignore[no-untyped-def]
    inner = engine(babble)
    gated = GatedEngine(inner, PhaseGate())
    await gated.publish(None, 3)
    gated.save(tmp_path)
    await gated.publish(None, 4)
    gated.load(tmp_path)
    await gated.close()
    assert (gated.version, gated.capabilities, gated.stats) == (3, inner.capabilities, inner.stats)
