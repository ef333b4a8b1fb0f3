"""State per trajectory: whatever is called, forked, shared, lost or given up, a branch is what a replay would be."""

import asyncio
import hashlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arpo.seeds import derive
from arpo.tools import sessions
from arpo.tools.base import ToolContext, ToolResult, ToolStatus
from arpo.tools.sessions import Fork, Session, Step
from arpo.tools.toolbox import Limit, ToolBox

HERE = ToolContext("task 7", "r1/2.1", seed=3, call_index=4, question="why?", reasoning="because")
Entry = tuple[str, int, int]


@dataclass
class Book:
    """A state: what was written, with the seed and number of every call."""

    start_seed: int
    entries: list[Entry] = field(default_factory=list)
    ended: int = 0


def answer(start_seed: int, entries: list[Entry]) -> str:
    """What the next page shows: depends on everything before."""
    return hashlib.sha256(repr((start_seed, entries)).encode()).hexdigest()[:12]


class Ledger:
    """An environment that can be made to fail, hang, or go on when told to stop."""

    def __init__(self, fork: Fork = "replay", name: str = "ledger") -> None:
        self.fork, self.name = fork, name
        self.states: list[Book] = []
        self.copies = 0
        self.steps = 0
        self.contexts: list[ToolContext] = []
        self.gates: list[asyncio.Event] = []

    async def start(self, context: ToolContext) -> Book:
        self.contexts.append(context)
        return self._new(Book(context.seed))

    def _new(self, book: Book) -> Book:
        self.states.append(book)
        return book

    async def step(
        self, state: Book, tool: str, arguments: Mapping[str, Any], context: ToolContext
    ) -> ToolResult | str:
        assert not state.ended, "a state that was released is used"
        self.steps += 1
        self.contexts.append(context)
        how = arguments.get("how", "call")
        if how == "stubborn":
            await self._stand_firm()
        state.entries.append((arguments["text"], context.seed, context.call_index))
        if how == "raise":
            raise OSError("half done")
        if how == "hang":
            await asyncio.sleep(60)
        shown = answer(state.start_seed, state.entries)
        return ToolResult(ToolStatus.TOOL_ERROR, shown) if how == "tool_error" else shown

    async def _stand_firm(self) -> None:
        gate = asyncio.Event()
        self.gates.append(gate)
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                continue

    def copy(self, state: Book) -> Book:
        assert not state.ended
        self.copies += 1
        return self._new(Book(state.start_seed, list(state.entries)))

    async def end(self, state: Book) -> None:
        state.ended += 1


def step_of(text: str, seed: int = 3, environment: str = "ledger", **more: Any) -> Step:
    return Step(environment, "write", {"text": text, **more}, seed)


def expected(log: list[Step], name: str = "ledger") -> str:
    entries = [(one.arguments["text"], one.seed, number) for number, one in enumerate(log)]
    return answer(derive(HERE.task_id, name, "start"), entries)


async def write(session: Session, ledger: Ledger, text: str, *, logged: bool = True, **more: Any) -> str:
    """One call, logged as a rollout does; returns what it showed."""
    result = await session.run(ledger, "write", {"text": text, **more}, HERE)
    if logged:
        session.append(step_of(text, environment=ledger.name, **more))
    return result if isinstance(result, str) else result.text


# Any interleaving


class World:
    """Sessions and two environments, and what every session's log is to be. One operation after another."""

    def __init__(self, fork: Fork) -> None:
        self.ledgers = [Ledger(fork, "a"), Ledger(fork, "b")]
        self.sessions = [Session()]
        self.logs: list[dict[str, list[Step]]] = [{"a": [], "b": []}]
        self.given_up: list[asyncio.Task[Any]] = []
        self.count = 0

    async def do(self, how: str, who: int, which: int) -> None:
        who, ledger = who % len(self.sessions), self.ledgers[which]
        if how == "fork":
            self.sessions.append(self.sessions[who].fork())
            self.logs.append({name: list(log) for name, log in self.logs[who].items()})
            return
        if how == "release":
            await self._release(ledger)
            return
        self.count += 1
        step = step_of(f"{how} {self.count}", seed=self.count, environment=ledger.name, how=how)
        log = self.logs[who][ledger.name]
        if how == "shared":
            self.sessions[who].append(step)
            log.append(step)
        else:
            await self._call(self.sessions[who], ledger, step, log, how)

    async def _release(self, ledger: Ledger) -> None:
        for gate in ledger.gates:
            gate.set()
        for _ in range(4):
            await asyncio.sleep(0)

    async def _call(self, session: Session, ledger: Ledger, step: Step, log: list[Step], how: str) -> None:
        context = ToolContext(HERE.task_id, "somewhere", seed=step.seed)
        task = asyncio.ensure_future(session.run(ledger, step.tool, step.arguments, context))
        if how in ("hang", "stubborn"):
            for _ in range(6):
                await asyncio.sleep(0)
            task.cancel()
            self.given_up.append(task)
            await asyncio.wait((task,), timeout=0 if how == "stubborn" else 5)
            return
        (result,) = await asyncio.gather(task, return_exceptions=True)
        if how == "raise":
            assert isinstance(result, OSError)
            return
        text = result if isinstance(result, str) else result.text  # type: ignore[union-attr]
        assert text == expected([*log, step], ledger.name), "not what a fresh instance shows that replays the log"
        if how != "unlogged":
            session.append(step)
            log.append(step)

    async def end(self) -> None:
        for session, logs in zip(self.sessions, self.logs, strict=True):
            for ledger in self.ledgers:
                assert session.steps(ledger.name) == logs[ledger.name]
        for session in self.sessions:
            await session.close()
        for ledger in self.ledgers:
            await self._release(ledger)
        await asyncio.gather(*self.given_up, return_exceptions=True)
        for ledger in self.ledgers:
            assert [book.ended for book in ledger.states] == [1] * len(ledger.states), "released exactly once"


HOWS = [
    "call",
    "call",
    "call",
    "fork",
    "fork",
    "shared",
    "tool_error",
    "raise",
    "hang",
    "stubborn",
    "unlogged",
    "release",
]
OPERATIONS = st.lists(st.tuples(st.sampled_from(HOWS), st.integers(0, 5), st.integers(0, 1)), max_size=25)


@pytest.mark.parametrize("fork", ["replay", "copy"])
@settings(max_examples=150, deadline=None)
@given(operations=OPERATIONS)
def test_a_branch_answers_as_a_fresh_instance_that_replays_its_log(
    fork: Fork, operations: list[tuple[str, int, int]]
) -> None:
    async def play() -> None:
        world = World(fork)
        try:
            for operation in operations:
                await world.do(*operation)
            await world.end()
        finally:  # lest a failure hang
            for ledger in world.ledgers:
                await world._release(ledger)

    asyncio.run(play())


# What is worth saying singly


async def test_a_failure_of_one_environment_is_not_hidden_by_a_call_of_another() -> None:
    first, second = Ledger(name="a"), Ledger(name="b")
    session = Session()
    await write(session, first, "lost", logged=False)
    await write(session, second, "kept")
    assert await write(session, first, "kept") == expected([step_of("kept")], "a")


async def test_a_call_without_effect_followed_by_a_shared_answer() -> None:
    ledger, session = Ledger(), Session()
    await write(session, ledger, "lost", logged=False)
    session.append(step_of("shared"))
    assert await write(session, ledger, "mine") == expected([step_of("shared"), step_of("mine")])


async def test_the_log_keeps_arguments_that_an_environment_changes() -> None:
    class Greedy(Ledger):
        async def step(self, state: Book, tool: str, arguments: Mapping[str, Any], context: ToolContext) -> str:
            arguments["items"].append("mine")
            state.entries.append((str(len(arguments["items"])), 0, 0))
            return str(state.entries)

    session, given = Session(), {"items": ["yours"]}
    shown = await session.run(Greedy(), "write", given, HERE)
    assert given == {"items": ["yours"]}
    session.append(Step("ledger", "write", given, 3))
    assert str(await session.fork().run(Greedy(), "write", given, HERE)).startswith(str(shown)[:-1])


async def test_an_environment_knows_of_a_call_what_a_replay_knows_too() -> None:
    ledger, session = Ledger(), Session()
    await write(session, ledger, "one")
    await write(session, ledger, "two")
    start, first, second = ledger.contexts
    assert start.seed == derive("task 7", "ledger", "start")
    assert (first.seed, first.call_index, second.call_index) == (3, 0, 1)
    assert {one.question for one in ledger.contexts} == {"why?"}
    assert {(one.path, one.reasoning, one.session) for one in ledger.contexts} == {("", "", None)}


async def test_nothing_is_copied_for_branches_that_never_run() -> None:
    ledger, session = Ledger("copy"), Session()
    await write(session, ledger, "one")
    children = [session.fork() for _ in range(3)]
    assert ledger.copies == 0
    await write(session, ledger, "two")
    assert ledger.copies == 1, "the first to change it takes a copy"
    await write(session, ledger, "three")
    assert ledger.copies == 1
    assert await write(children[0], ledger, "other") == expected([step_of("one"), step_of("other")])
    assert (ledger.copies, ledger.steps) == (2, 4)
    for one in (session, *children):
        await one.close()
    assert [book.ended for book in ledger.states] == [1, 1, 1]


async def test_a_branch_that_opens_before_a_call_is_logged_knows_nothing_of_it() -> None:
    ledger, session = Ledger("copy"), Session()
    await write(session, ledger, "one")
    await write(session, ledger, "two", logged=False)
    child = session.fork()
    session.append(step_of("two"))
    assert await write(child, ledger, "other") == expected([step_of("one"), step_of("other")])
    assert await write(session, ledger, "three") == expected([step_of("one"), step_of("two"), step_of("three")])


async def test_a_copy_that_fails_is_a_replay(caplog: pytest.LogCaptureFixture) -> None:
    class Uncopyable(Ledger):
        def copy(self, state: Book) -> Book:
            raise TypeError("cannot pickle")

    ledger, session = Uncopyable("copy"), Session()
    await write(session, ledger, "one")
    child = session.fork()
    assert await write(child, ledger, "two") == expected([step_of("one"), step_of("two")])
    assert "environment ledger: copying failed, so it is replayed: TypeError: cannot pickle" in caplog.text


async def test_what_must_not_be_replayed_is_kept_after_a_failure_and_has_no_branch() -> None:
    ledger, session = Ledger("refuse"), Session()
    await write(session, ledger, "one")
    child = session.fork()
    with pytest.raises(RuntimeError, match='no state after 1 calls; fork = "refuse"'):
        await write(child, ledger, "two")
    with pytest.raises(OSError, match="half done"):
        await write(session, ledger, "lost", how="raise", logged=False)
    await write(session, ledger, "two")
    (book,) = ledger.states
    assert [entry[0] for entry in book.entries] == ["one", "lost", "two"]
    session.append(step_of("elsewhere"))
    with pytest.raises(RuntimeError, match="no state after 3 calls"):
        await write(session, ledger, "three")
    assert book.ended == 1


async def test_a_start_that_fails_is_tried_again_by_the_next_call() -> None:
    class Late(Ledger):
        broken = True

        async def start(self, context: ToolContext) -> Book:
            if self.broken:
                raise OSError("no display")
            return await super().start(context)

    ledger, session = Late(), Session()
    with pytest.raises(OSError, match="no display"):
        await write(session, ledger, "one", logged=False)
    ledger.broken = False
    assert await write(session, ledger, "one") == expected([step_of("one")])


@pytest.mark.parametrize(
    ("habit", "says"), [("fail", "releasing a state failed: OSError: busy"), ("hang", "takes too long; it is left")]
)
async def test_a_state_that_cannot_be_released_keeps_nobody_waiting(
    habit: str, says: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sessions, "PATIENCE", 0.02)

    class Clinging(Ledger):
        async def end(self, state: Book) -> None:
            await super().end(state)
            if habit == "fail":
                raise OSError("busy")
            await asyncio.sleep(60)

    clinging, plain, session = Clinging(name="a"), Ledger(name="b"), Session()
    await write(session, clinging, "one")
    await write(session, plain, "one")
    with caplog.at_level(logging.WARNING):
        await session.close()
    assert says in caplog.text
    assert [book.ended for book in (*clinging.states, *plain.states)] == [1, 1]


async def test_closing_while_a_call_runs_leaves_the_release_to_it() -> None:
    ledger, session = Ledger(), Session()
    running = asyncio.ensure_future(write(session, ledger, "one", how="stubborn", logged=False))
    while not ledger.gates:
        await asyncio.sleep(0)
    await session.close()
    assert ledger.states[0].ended == 0
    ledger.gates[0].set()
    await running
    assert ledger.states[0].ended == 1


# Behind a tool box


def boxed(ledger: Any, timeout: float) -> ToolBox:
    async def call(arguments: Mapping[str, Any], context: ToolContext) -> Any:
        assert context.session is not None
        return await context.session.run(ledger, "write", arguments, context)

    tool = SimpleNamespace(name="write", description="", parameters={}, call=call, environment=ledger)
    return ToolBox([tool], {"write": Limit(timeout=timeout, grace=0.02)})


def context_of(session: Session) -> ToolContext:
    return ToolContext(HERE.task_id, seed=3, session=session)


class Slow(Ledger):
    """Takes its time for every call."""

    def __init__(self, seconds: Callable[[Mapping[str, Any]], float]) -> None:
        super().__init__()
        self.seconds = seconds

    async def step(
        self, state: Book, tool: str, arguments: Mapping[str, Any], context: ToolContext
    ) -> ToolResult | str:
        await asyncio.sleep(self.seconds(arguments))
        return await super().step(state, tool, arguments, context)


async def test_a_replay_does_not_count_against_the_time_limit_of_the_call() -> None:
    tools = boxed(Slow(lambda _: 0.06), timeout=0.2)
    session = Session(tuple(step_of(str(number)) for number in range(6)))
    result = await tools.call("write", {"text": "x"}, context_of(session))
    assert (result.status, result.text) == (
        ToolStatus.OK,
        expected([*(step_of(str(number)) for number in range(6)), step_of("x")]),
    )
    assert result.latency < tools.stats["write"].waited


async def test_the_call_after_a_replay_has_its_own_time_and_no_more() -> None:
    slow = Slow(lambda arguments: 60.0 if arguments["text"] == "x" else 0.06)
    tools = boxed(slow, timeout=0.2)
    session = Session(tuple(step_of(str(number)) for number in range(6)))
    result = await tools.call("write", {"text": "x"}, context_of(session))
    assert result.status is ToolStatus.TIMEOUT
    assert 0.2 <= result.latency < 1.2, "not the seven times 0.2 s that the replay could have had"


async def test_a_state_that_takes_for_ever_to_build_is_a_failure_of_the_machinery() -> None:
    class Endless(Ledger):
        async def start(self, context: ToolContext) -> Book:
            await asyncio.sleep(60)
            raise AssertionError

    for ledger, steps in ((Endless(), 0), (Slow(lambda arguments: 60.0), 2)):
        session = Session(tuple(step_of(str(number)) for number in range(steps)))
        result = await boxed(ledger, timeout=0.05).call("write", {"text": "x"}, context_of(session))
        assert result.status is ToolStatus.INFRA_ERROR
        assert "could not be built" in result.data["error"]


async def test_a_replay_that_swallows_its_cancellation_is_given_up() -> None:
    ledger = Ledger()
    tools = boxed(ledger, timeout=0.05)
    session = Session((step_of("one", how="stubborn"),))
    result = await tools.call("write", {"text": "x"}, context_of(session))
    assert result.status is ToolStatus.TIMEOUT
    assert tools.stats["write"].abandoned == 1
    ledger.gates[0].set()
    await tools.close()


async def test_a_call_that_is_given_up_changes_nothing_that_the_next_one_sees() -> None:
    ledger, session = Ledger(), Session()
    tools = boxed(ledger, timeout=0.05)
    lost = await tools.call("write", {"text": "lost", "how": "stubborn"}, context_of(session))
    assert lost.status is ToolStatus.TIMEOUT
    assert (await tools.call("write", {"text": "one"}, context_of(session))).text == expected([step_of("one")])
    session.append(step_of("one"))
    ledger.gates[0].set()
    two = await tools.call("write", {"text": "two"}, context_of(session))
    assert two.text == expected([step_of("one"), step_of("two")])
    await session.close()
    await tools.close()
    assert [book.ended for book in ledger.states] == [1, 1]
