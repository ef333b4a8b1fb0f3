"""Tools with a state per trajectory inside a tree: branches replay or copy and never share; a group can be dropped."""

import itertools
from collections.abc import Mapping
from typing import Any, Literal

import pytest
from rollout_fakes import ToyTool, by_turn, current, grow, steps, texts, toolbox

from arpo.engine.scripted import Scripted
from arpo.errors import ConfigError, ToolDownError
from arpo.rollout.scheduler import unforkable
from arpo.rollout.settings import NoBranching, RolloutSettings
from arpo.tools.base import ToolContext, ToolResult, ToolStatus
from arpo.tools.toolbox import Limit, ToolBox
from arpo.tree import Finish

GRPO = RolloutSettings(total=4, initial=4, branching=NoBranching(), max_tokens=400)
ARPO = RolloutSettings(total=6, initial=3, max_tokens=400)


class Notes:
    """An environment: a list of what was said, one per trajectory. `states`: all that were ever made."""

    name = "notes"

    def __init__(self, fork: Literal["replay", "copy", "refuse"]) -> None:
        self.fork = fork
        self.states: list[list[str]] = []
        self.steps = 0
        self.open = 0

    async def start(self, context: ToolContext) -> list[str]:
        self.open += 1
        self.states.append([])
        return self.states[-1]

    async def step(self, state: list[str], tool: str, arguments: Mapping[str, Any], context: ToolContext) -> str:
        self.steps += 1
        state.append(arguments["text"])
        return "".join(state)

    def copy(self, state: list[str]) -> list[str]:
        self.open += 1
        self.states.append(list(state))
        return self.states[-1]

    async def end(self, state: list[str]) -> None:
        self.open -= 1


class NoteTool(ToyTool):
    """`search`, as the toy dialect calls it, on a trajectory's notes."""

    def __init__(self, fork: Literal["replay", "copy", "refuse"] = "replay") -> None:
        super().__init__("search")
        self.environment = Notes(fork)

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        assert context.session is not None
        said = await context.session.run(self.environment, self.name, arguments, context)
        return ToolResult(ToolStatus.OK, str(said))


def note_taker(prefix: tuple[int, ...], seed: int) -> list[Scripted]:
    """Notes a letter three times, another one in every trajectory, in doubt after each result; then answers."""
    turn, said = current(prefix)
    letter = "abcdefgh"[seed % 8]
    doubt = 5.0 if turn else 0.1
    turns = [[("....", doubt), (f"<s>{letter}</s>", 0.1)]] * 3 + [[("....", doubt), ("[42]$", 0.1)]]
    return steps(turns[turn])[said:]


def notes_of(text: str) -> list[tuple[str, str]]:
    """(letter noted, notes shown) per call of a trajectory."""
    parts = text.split("<s>")[1:]
    return [(part[0], part[part.index("{") + 1 : part.index("}")]) for part in parts]


@pytest.mark.parametrize("fork", ["replay", "copy"])
async def test_every_trajectory_sees_its_own_notes_and_nobody_elses(fork: Literal["replay", "copy"]) -> None:
    tool = NoteTool(fork)
    tree = await grow(note_taker, ARPO, tools=toolbox(tool))
    assert sum(decision.opened for decision in tree.decisions) == 3
    for text in texts(tree):
        letters = [letter for letter, _ in notes_of(text)]
        assert len(letters) == 3
        assert [shown for _, shown in notes_of(text)] == ["".join(letters[: n + 1]) for n in range(3)]
    states = tool.environment.states
    assert len({id(state) for state in states}) == len(states)
    assert tool.environment.open == 0, "all states are released, those of branches that never opened too"


async def test_a_copied_state_spares_the_replay() -> None:
    replaying, copying = NoteTool("replay"), NoteTool("copy")
    first = await grow(note_taker, ARPO, tools=toolbox(replaying))
    second = await grow(note_taker, ARPO, tools=toolbox(copying))
    assert texts(first) == texts(second)
    assert copying.environment.steps < replaying.environment.steps


async def test_a_call_answered_by_an_equal_one_is_part_of_the_state() -> None:
    """Equal histories: one call runs and answers all four; the next ones differ and build on it all the same."""

    def continuation(prefix: tuple[int, ...], seed: int) -> list[Scripted]:
        turn, said = current(prefix)
        letter = "s" if not turn else "abcdefgh"[seed % 8]
        return steps(["....<s>" + letter + "</s>", "....<s>" + letter + "</s>", "....[42]$"][turn])[said:]

    tool = NoteTool()
    tree = await grow(continuation, GRPO, tools=toolbox(tool))
    assert (tree.requested_calls, tree.tool_calls) < (8, 8)
    assert tree.tool_calls < tree.requested_calls
    for text in texts(tree):
        letters = [letter for letter, _ in notes_of(text)]
        assert notes_of(text)[-1][1] == "".join(letters)


async def test_a_state_that_cannot_be_forked_refuses_branching_at_the_start() -> None:
    box = toolbox(NoteTool("refuse"))
    assert unforkable(box) == ["search"]
    with pytest.raises(ConfigError, match=r'search cannot be forked .*branching.type = "none"'):
        await grow(note_taker, ARPO, tools=box)
    tree = await grow(note_taker, GRPO, tools=toolbox(NoteTool("refuse")))
    assert len(tree.leaves) == 4


async def test_a_tool_that_drops_its_group_leaves_m_trajectories_without_reward() -> None:
    count = itertools.count()

    def reply(text: str) -> ToolResult:
        down = next(count) >= 1
        data = {"drop_group": True} if down else {}
        return ToolResult(ToolStatus.INFRA_ERROR if down else ToolStatus.OK, "", data=data)

    tool = ToyTool("search", reply)
    tree = await grow(by_turn("abcd<s>q</s>", "abcd<s>r</s>", "[42]$"), ARPO, tools=toolbox(tool))
    assert len(tree.leaves) == 6
    assert {tree.segments[leaf].finish for leaf in tree.leaves} == {Finish.ERROR}


async def test_only_a_tool_that_reads_it_gets_the_question_and_the_reasoning() -> None:
    class Reader(ToyTool):
        reads_context = True
        stateless = True

    reader, other = Reader("search"), ToyTool("python")
    tree = await grow(by_turn("hm<s>q</s>", "so<p>1</p>", "[42]$"), GRPO, tools=toolbox(reader, other))
    contexts = [context for _, context in reader.calls]
    assert {(context.question, context.reasoning) for context in contexts} == {("why?", "hm<s>q</s>")}
    assert {(context.question, context.reasoning) for _, context in other.calls} == {("", "")}
    assert len(tree.leaves) == 4


async def test_a_reader_is_shared_among_equal_histories_only() -> None:
    def continuation(prefix: tuple[int, ...], seed: int) -> list[Scripted]:
        turn, said = current(prefix)
        return steps(["abcdefgh"[seed % 8] * 4 + "<s>q</s>", "[42]$"][turn])[said:]

    class Reader(ToyTool):
        stateless = True

    plain, reader = Reader("search"), Reader("search")
    reader.reads_context = True
    shared = await grow(continuation, GRPO, tools=toolbox(plain))
    apart = await grow(continuation, GRPO, tools=toolbox(reader))
    assert shared.tool_calls == 1
    assert apart.tool_calls > 1


def test_tools_without_a_state_never_hinder_branching() -> None:
    assert unforkable(ToolBox([ToyTool("search")])) == []


async def test_a_tool_that_fails_the_step_ends_the_rollout_with_a_sentence() -> None:
    tool = ToyTool("search", lambda text: ToolResult(ToolStatus.INFRA_ERROR, "", data={"error": "no route"}))
    box = ToolBox([tool], {"search": Limit(breaker_after=2, outage="fail_step")})
    different = {"share_calls": "off"}
    settings = RolloutSettings.model_validate(dict(GRPO) | different)
    with pytest.raises(ToolDownError, match=r"tool 'search' is down .*no route.*resume the run"):
        await grow(by_turn("hm<s>q</s>", "[42]$"), settings, tools=box)
