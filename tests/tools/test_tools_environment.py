"""Classes as environments: their methods are tools that share one instance per trajectory and nothing else."""

import asyncio
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rollout_fakes import by_turn, current, grow, steps, texts
from tool_fakes import until

import arpo
from arpo.engine.scripted import Scripted
from arpo.errors import ToolSetupError
from arpo.rollout.scheduler import unforkable
from arpo.rollout.settings import NoBranching, RolloutSettings
from arpo.tools.base import ToolContext, ToolResult, ToolStatus, TransientError
from arpo.tools.environment import ClassEnvironment, is_environment, tools_of
from arpo.tools.registry import build
from arpo.tools.sessions import Session, Step
from arpo.tools.settings import ImportSettings
from arpo.tools.toolbox import Limit, ToolBox
from arpo.tree import RolloutTree

MADE: list[Any] = []
CLOSED: list[Any] = []


@pytest.fixture(autouse=True)
def _nothing_made() -> Iterator[None]:
    """Nothing is left of a test: no instance, and no thread."""
    MADE.clear()
    CLOSED.clear()
    yield
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("tool ")]


@arpo.environment
class Shop:
    """A shop with a till."""

    def __init__(self, stock: int = 3) -> None:
        self.stock = stock
        self.sold: list[str] = []
        self.question = ""
        self.gate = threading.Event()
        MADE.append(self)

    def reset(self, question: str, seed: int, task_id: str) -> None:
        self.question = f"{question} {task_id} {seed % 7}"

    def buy(self, item: str, count: int = 1) -> str:
        """Buy something.

        Args:
            item: what
            count: how many
        """
        if count > self.stock:
            raise arpo.ToolError(f"only {self.stock} left")
        self.stock -= count
        self.sold += [item] * count
        if item == "bomb":
            raise OSError("the shop is gone")
        if item == "wait":
            self.gate.wait(30)
        return f"{self.stock} left"

    def till(self) -> dict[str, Any]:
        """What was sold."""
        return {"sold": self.sold, "asked": self.question}

    def helper(self) -> str:
        return "no docstring, no tool"

    def _private(self) -> str:
        """Not a tool."""
        return ""

    def close(self) -> None:
        CLOSED.append(self)


@arpo.environment(fork="copy")
class Counter:
    """Counts, in the event loop."""

    async def reset(self, context: ToolContext) -> None:
        self.total = 0

    async def add(self, number: int) -> int:
        """Add a number.

        Args:
            number: what to add
        """
        await asyncio.sleep(0)
        self.total += number
        return self.total

    async def close(self) -> None:
        CLOSED.append(self)


def boxed(cls: type, options: dict[str, Any] | None = None, **limits: Any) -> ToolBox:
    tools = tools_of(cls, options)
    return ToolBox(tools, {tool.name: Limit(**limits) for tool in tools})


async def grown(cls: type, continuation: Any, settings: RolloutSettings) -> RolloutTree:
    """The tree that a scripted engine grows with the tools of a class."""
    tools = ToolBox(tools_of(cls))
    try:
        return await grow(continuation, settings, tools=tools)
    finally:
        await tools.close()


async def ask(tools: ToolBox, session: Session | None, name: str, **arguments: Any) -> ToolResult:
    """One call, logged as a rollout does."""
    context = ToolContext("t1", seed=9, session=session, question="why?")
    result = await tools.call(name, arguments, context)
    if session is not None and result.status in (ToolStatus.OK, ToolStatus.TOOL_ERROR):
        environment = tools.tools[0].environment  # type: ignore[attr-defined]
        session.append(Step(environment.name, name, arguments, 9))
    return result


async def test_methods_with_a_docstring_are_tools_of_one_state() -> None:
    assert is_environment(Shop)
    assert Shop(2).buy("pen") == "1 left", "the class is still a class"
    buy, till = tools_of(Shop)
    assert (buy.name, till.name, buy.environment is till.environment) == ("buy", "till", True)
    assert buy.parameters["properties"]["item"] == {"type": "string", "description": "what"}
    assert buy.parameters["required"] == ["item"]
    assert (buy.stateless, buy.idempotent, buy.reads_context) == (False, False, True)
    tools, session = boxed(Shop, {"stock": 5}), Session()
    assert (await ask(tools, session, "buy", item="pen", count=2)).text == "3 left"
    shown = await ask(tools, session, "till")
    assert shown.text.startswith('{"sold": ["pen", "pen"], "asked": "why? t1 ')
    await session.close()
    assert [MADE[-1]] == CLOSED
    await tools.close()


async def test_two_trajectories_never_share_an_instance_and_start_alike() -> None:
    tools, sessions = boxed(Shop), [Session(), Session()]
    for number, session in enumerate(sessions):
        for _ in range(number + 1):
            await ask(tools, session, "buy", item="pen")
    assert [shop.stock for shop in MADE] == [2, 1]
    assert MADE[0].question == MADE[1].question
    await asyncio.gather(*(session.close() for session in sessions))
    await tools.close()


async def test_a_call_at_fault_is_part_of_the_state_and_a_failure_is_not() -> None:
    tools, session = boxed(Shop), Session()
    await ask(tools, session, "buy", item="pen")
    assert (await ask(tools, session, "buy", item="pen", count=9)).text == "only 2 left"
    wrong = await ask(tools, session, "buy", item=4)
    assert wrong.text == "Wrong arguments for buy at $.item: 4 is not of type 'string'"
    lost = await ask(tools, session, "buy", item="bomb")
    assert (lost.status, lost.data["error"]) == (ToolStatus.INFRA_ERROR, "OSError: the shop is gone")
    assert (await ask(tools, session, "buy", item="pen")).text == "1 left", "the bomb was never bought"
    assert len(session.steps(tools.tools[0].environment.name)) == 4  # type: ignore[attr-defined]
    await session.close()
    await tools.close()
    assert len(CLOSED) == len(MADE) == 2


async def test_without_a_trajectory_every_call_is_the_first() -> None:
    tools = boxed(Shop)
    assert [(await ask(tools, None, "buy", item="pen")).text for _ in range(2)] == ["2 left"] * 2
    assert len(CLOSED) == 2
    await tools.close()


@pytest.mark.parametrize("cls", [Shop, Counter])
async def test_branches_of_a_session(cls: Any) -> None:
    tools, trunk = boxed(cls), Session()
    name, argument = ("buy", {"item": "pen"}) if cls is Shop else ("add", {"number": 2})
    await ask(tools, trunk, name, **argument)
    branch = trunk.fork()
    first = [(await ask(tools, one, name, **argument)).text for one in (trunk, branch)]
    assert first[0] == first[1] == ("1 left" if cls is Shop else "4")
    assert (await ask(tools, branch, name, **argument)).text == ("0 left" if cls is Shop else "6")
    assert (await ask(tools, trunk, name, **argument)).text == ("0 left" if cls is Shop else "6")
    for session in (trunk, branch):
        await session.close()
    await tools.close()
    assert len(CLOSED) == 2


async def test_a_thread_that_hangs_keeps_its_instance_and_closes_it_when_it_ends() -> None:
    tools, session = boxed(Shop, timeout=0.1), Session()
    assert (await ask(tools, session, "buy", item="wait")).status is ToolStatus.TIMEOUT
    assert (await ask(tools, session, "buy", item="pen")).text == "2 left", "a fresh instance"
    await session.close()
    hung, fresh = MADE
    assert [fresh] == CLOSED
    hung.gate.set()
    await until(lambda: [fresh, hung] == CLOSED)
    await tools.close()
    assert not [thread for thread in threading.enumerate() if "Shop" in thread.name]


@arpo.environment
class Faulty:
    """Fails where it is told to."""

    def __init__(self, at: str = "") -> None:
        MADE.append(self)
        self.at = at
        if at == "init":
            raise OSError("no license")

    def reset(self) -> None:
        if self.at == "reset":
            raise TransientError("busy", after=3)

    def go(self) -> Any:
        """Go."""
        return object() if self.at == "result" else "gone"

    def close(self) -> None:
        CLOSED.append(self)
        if self.at == "close":
            raise OSError("stuck")


@pytest.mark.parametrize(
    ("at", "error", "closed"),
    [("init", "OSError: no license", 0), ("reset", "TransientError: busy", 1), ("result", "TypeError", 1)],
)
async def test_failures_of_a_class_are_failures_of_the_machinery(at: str, error: str, closed: int) -> None:
    tools, session = boxed(Faulty, {"at": at}), Session()
    result = await ask(tools, session, "go")
    assert (result.status, result.text) == (ToolStatus.INFRA_ERROR, "")
    assert error in result.data["error"]
    await session.close()
    assert len(CLOSED) == closed
    await tools.close()


async def test_a_close_that_fails_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    tools, session = boxed(Faulty, {"at": "close"}), Session()
    assert (await ask(tools, session, "go")).text == "gone"
    await session.close()
    assert "Faulty: releasing a state failed: OSError: stuck" in caplog.text
    await tools.close()


# In a tree


@arpo.environment
class Notes:
    """What was noted so far."""

    def __init__(self) -> None:
        self.notes = ""

    def search(self, text: str) -> str:
        """Note a letter, under the name that the toy dialect knows."""
        self.notes += text
        return self.notes


@pytest.mark.parametrize("fork", ["replay", "copy"])
async def test_a_tree_of_trajectories_each_with_notes_of_its_own(fork: Any) -> None:
    def continuation(prefix: tuple[int, ...], seed: int) -> list[Scripted]:
        turn, said = current(prefix)
        letter, doubt = "abcdefgh"[seed % 8], 5.0 if turn else 0.1
        turns = [[("....", doubt), (f"<s>{letter}</s>", 0.1)]] * 3 + [[("....", doubt), ("[42]$", 0.1)]]
        return steps(turns[turn])[said:]

    cls = arpo.environment(type("Copied", (Notes,), {"__doc__": "Notes."}), fork=fork)
    tree = await grown(cls, continuation, RolloutSettings(total=6, initial=3, max_tokens=400))
    assert sum(decision.opened for decision in tree.decisions) == 3
    for text in texts(tree):
        parts = text.split("<s>")[1:]
        letters = [part[0] for part in parts]
        shown = [part[part.index("{") + 1 : part.index("}")] for part in parts]
        assert shown == ["".join(letters[: number + 1]) for number in range(3)]


def test_a_class_that_refuses_to_fork_is_known_before_anything_runs() -> None:
    cls = arpo.environment(type("Real", (Notes,), {}), fork="refuse")
    assert unforkable(ToolBox(tools_of(cls))) == ["search"]


async def test_a_state_that_is_never_replayed_sees_every_call_itself() -> None:
    """Four trajectories with equal histories: elsewhere one call would answer them all."""
    cls = arpo.environment(type("Outside", (Notes,), {}), fork="refuse")
    settings = RolloutSettings(total=4, initial=4, branching=NoBranching(), max_tokens=400)
    tree = await grown(cls, by_turn("<s>q</s>", "<s>r</s>", "[42]$"), settings)
    assert tree.tool_calls == tree.requested_calls == 8
    assert all("{qr}" in text for text in texts(tree))


# What cannot be one


class Silent:
    def go(self) -> str:
        return ""


class Untyped:
    def go(self, x) -> str:  # type: ignore[no-untyped-def]
        """Go."""
        return ""


class Curious:
    def reset(self, weather: str) -> None: ...

    def go(self) -> str:
        """Go."""
        return ""


@pytest.mark.parametrize(
    ("cls", "cause"),
    [
        (Silent, "no public method with a docstring"),
        (Untyped, "tool 'go': parameter 'x' has no annotation"),
        (Curious, "reset asks for 'weather'; it may ask for question, task_id, seed, context"),
    ],
)
def test_a_class_that_cannot_be_an_environment(cls: type, cause: str) -> None:
    with pytest.raises(ToolSetupError, match=cause):
        arpo.environment(cls)
    with pytest.raises(ToolSetupError, match="fork = 'share'; it is one of replay, copy, refuse"):
        arpo.environment(Notes, fork="share")  # type: ignore[type-var]


def test_options_that_do_not_fit_are_refused_at_the_start() -> None:
    with pytest.raises(ToolSetupError, match=r"its options do not fit Shop\(stock: int = 3\).*'colour'"):
        ClassEnvironment(Shop, {"colour": "red"})


# From the configuration


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "own_for_test.py").write_text(
        textwrap.dedent('''
            import arpo

            @arpo.tool(timeout=3, stateless=True)
            def shout(text: str) -> str:
                """Shout."""
                return text.upper()

            @arpo.environment
            class Dial:
                """A dial."""
                def __init__(self, start: int = 0): self.at = start
                def turn(self, by: int) -> int:
                    """Turn it."""
                    self.at += by
                    return self.at
                def read(self) -> int:
                    """Read it."""
                    return self.at

            def make(count: int):
                return [arpo.tool(name=f"shout{n}")(shout.__wrapped__) for n in range(count)]

            class Bad:
                pass

            def broken():
                raise arpo.tools.errors.Nothing
        ''')
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("own_for_test", None)


@pytest.mark.usefixtures("module")
async def test_a_config_names_a_tool_a_class_or_a_factory() -> None:
    tools = build(
        [
            ImportSettings(path="own_for_test:shout"),
            ImportSettings(path="own_for_test:Dial", options={"start": 5}, max_chars=300),
            ImportSettings(path="own_for_test:make", options={"count": 2}, timeout=7),
        ]
    )
    assert tools.names == ("shout", "turn", "read", "shout0", "shout1")
    assert [tools.limits[name].timeout for name in tools.names] == [3, 30, 30, 7, 7]
    assert (tools.limits["read"].max_chars, tools.limits["shout"].max_chars) == (300, 2000)
    session = Session()
    context = ToolContext(session=session)
    assert (await tools.call("turn", {"by": 2}, context)).text == "7"
    assert (await tools.call("shout", {"text": "hey"}, context)).text == "HEY"
    await session.close()
    await tools.close()
    own = build([ImportSettings(path="own_for_test:shout", timeout=9)])
    assert own.limits["shout"].timeout == 9, "what the settings say goes before the tool's own hint"
    await own.close()


@pytest.mark.usefixtures("module")
@pytest.mark.parametrize(
    ("path", "options", "cause"),
    [
        ("own_for_test:shout", {"x": 1}, "it is a tool already, so it takes no options"),
        ("own_for_test:Dial", {"x": 1}, "its options do not fit Dial"),
        ("own_for_test:Bad", {}, "lacks name, description, parameters, call"),
        ("own_for_test:Bad", {"x": 1}, "that `options` fit it"),
        ("own_for_test:broken", {}, "AttributeError"),
        ("own_for_test:nothing", {}, "it defines 'nothing'"),
    ],
)
def test_a_config_that_names_something_else(path: str, options: dict[str, Any], cause: str) -> None:
    with pytest.raises(ToolSetupError, match=f"tool '{path}'") as caught:
        build([ImportSettings(path=path, options=options)])
    assert cause in str(caught.value)
