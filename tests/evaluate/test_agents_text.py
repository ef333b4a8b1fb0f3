"""Methods whose format is their own: direct answer, programs in fences, ReAct. Scripted models, real tokenizers."""

from typing import ClassVar

import pytest
from method_fakes import END, SETTINGS, TASK, Texts, made, python, search, solved, sources, text, turns

from arpo.errors import ConfigError
from arpo.evaluate.agents.react import ReactDialect
from arpo.evaluate.agents.registry import build
from arpo.evaluate.agents.tir import TirDialect, blocks
from arpo.evaluate.agents.voice import voice_of, without_thoughts
from arpo.protocol.base import Call, ParseCode
from arpo.reward.scorer import Scorer
from arpo.reward.settings import RewardSettings
from arpo.task import ask
from arpo.tools.base import ToolContext, ToolResult, ToolStatus
from arpo.tree import Finish


async def accuracy(tree, fitted, task=TASK):
    """Of the trajectories, as a scorer reads them in the method's own format."""
    async with Scorer(RewardSettings(), fitted.dialect) as scorer:
        return [outcome.parts.get("accuracy") for outcome in await scorer.outcomes(tree, task)]


# ---------------------------------------------------------------- direct


async def test_direct_reasons_and_answers_without_tools():
    agent = made(turns("It is large: \\boxed{1284000}"), search(), python())
    result, fitted = await solved("direct", agent)
    assert sources(result.tree) == "pp"
    assert fitted.toolbox.names == ()
    said = text(result.tree, fitted)
    assert "search" not in said
    assert said.endswith(f"user\nHow large is Chad?{END}\n<|im_start|>assistant\nIt is large: \\boxed{{1284000}}{END}")
    assert await accuracy(result.tree, fitted) == [1.0]


async def test_direct_takes_no_answer_out_of_a_thought_and_runs_no_call():
    tool = search()
    says = turns("<think>\\boxed{7}</think> <search> x </search> I do not know.")
    result, fitted = await solved("direct", made(says, tool))
    assert (await accuracy(result.tree, fitted), tool.asked) == ([0.0], [])
    assert fitted.dialect.format_errors(["<think>\\boxed{7}</think> no"]) == ["no answer"]


async def test_all_samples_are_leaves_of_one_tree():
    settings = SETTINGS.model_copy(update={"total": 3, "initial": 3})
    result, fitted = await solved("direct", made(lambda _: "\\boxed{1284000}", search()), settings=settings)
    assert await accuracy(result.tree, fitted) == [1.0] * 3


@pytest.mark.parametrize("name", ["direct", "react", "rag", "search-o1", "webthinker"])
def test_a_model_without_a_chat_template_is_refused_by_name(name, monkeypatch):
    agent = made(turns(), search())
    monkeypatch.setattr(agent.dialect.tokenizer, "chat_template", None)
    with pytest.raises(ConfigError, match=f"the agent '{name}' prompts the model through its chat template"):
        build(name).fit(agent)


def test_the_pocket_policy_knows_no_conversations(monkeypatch):
    agent = made(turns(), search())
    monkeypatch.setattr(agent.dialect, "style", "compact")
    with pytest.raises(ConfigError, match="this model knows no conversations; use an instruction-tuned model, or the"):
        build("direct").fit(agent)


def test_thoughts_are_cut_whoever_opened_them():
    assert without_thoughts("a<think>b</think>c") == "ac"
    assert without_thoughts("b</think>c") == "c"
    assert without_thoughts("a<think>b") == "a"


# ---------------------------------------------------------------- tir

PROGRAM = "Compute.\n```python\nprint(17 * 23)\n```\n"


async def test_a_program_is_run_when_its_fence_closes_and_its_output_follows_in_the_same_turn():
    tool = python()
    agent = made(turns(PROGRAM, "So \\boxed{391}."), search(), tool)
    result, fitted = await solved("tir", agent, ask("17 * 23?", "391", id="m"))
    assert tool.asked == ["print(17 * 23)"]
    assert fitted.toolbox.names == ("python",)
    assert sources(result.tree) == "pptp"
    assert text(result.tree, fitted).endswith(f"{PROGRAM}```output\n391\n```\nSo \\boxed{{391}}.{END}")
    assert await accuracy(result.tree, fitted, ask("17 * 23?", "391")) == [1.0]


async def test_a_turn_that_ends_with_a_program_is_answered_in_a_turn_of_the_users():
    tool = python()
    agent = made(turns("```python\nprint(1)\n```", "\\boxed{391}"), tool)
    result, fitted = await solved("tir", agent)
    assert tool.asked == ["print(1)"]
    framed = f"```{END}\n<|im_start|>user\n```output\n391\n```{END}\n<|im_start|>assistant\n\\boxed{{391}}{END}"
    assert text(result.tree, fitted).endswith(framed)


async def test_other_fences_and_drafts_run_nothing():
    tool = python()
    says = turns("```json\n{}\n```\n", "<think>```python\nboom\n```\n", "</think>\\boxed{1284000}")
    result, fitted = await solved("tir", made(says, tool))
    assert tool.asked == []
    assert sources(result.tree) == "pp", "pieces that ended in nothing are one segment"
    assert await accuracy(result.tree, fitted) == [1.0]


async def test_an_output_cannot_close_its_block_nor_become_an_answer():
    tool = python(lambda code: "```\n\\boxed{1284000}" + END)
    result, fitted = await solved("tir", made(turns(PROGRAM, "I give up."), tool))
    assert "'''\n\\boxed{1284000}" in text(result.tree, fitted)
    assert await accuracy(result.tree, fitted) == [0.0]
    ids = [t for s in result.tree.segments if s.source == "tool" for t in s.tokens.tolist()]
    assert fitted.dialect.end_tokens[0] not in ids


async def test_an_answer_inside_of_a_program_is_none():
    dialect = TirDialect(voice_of(made(turns(), python()).dialect, "tir"), "python", "code")
    assert dialect.answer("```python\nprint('\\boxed{1}')\n```\nNo.") is None
    assert dialect.answer("\\boxed{2}\n```python\nprint('\\boxed{1}')\n```\n") == "2"


@pytest.mark.parametrize(
    ("said", "finish", "expected"),
    [
        ("```python\n\n```\n", Finish.CALL, ParseCode.EMPTY_ARGS),
        ("```python\nprint(1)", Finish.STOP, ParseCode.TRUNCATED),
        ("```python\nprint(1)\n```\n", Finish.LENGTH, ParseCode.TRUNCATED),
        ("```py\nprint(1)\n```", Finish.STOP, Call("python", {"code": "print(1)"})),
        ("```\nprint(1)\n```\n", Finish.CALL, "goes on"),
        ("```python\ndef f():\n    return 1\n```\n", Finish.CALL, Call("python", {"code": "def f():\n    return 1"})),
    ],
)
def test_what_a_fence_means(said, finish, expected):
    dialect = TirDialect(voice_of(made(turns(), python()).dialect, "tir"), "python", "code")
    read = dialect.parse(dialect.tokenizer.encode(said, add_special_tokens=False), finish)
    assert (read.call or read.code or ("goes on" if read.goes_on else None)) == expected


def test_blocks_are_found_line_by_line():
    found = blocks("a ```x``` b\n```python\n1\n```\ntext\n```\n2\n")
    assert [(block.language, block.body, block.closed) for block in found] == [("python", "1", True), ("", "2", False)]


def test_tir_needs_python():
    with pytest.raises(ConfigError, match=r"'tir' needs a tool for python, and there is search; add .*python"):
        build("tir").fit(made(turns(), search()))


# ---------------------------------------------------------------- react


async def test_react_acts_observes_and_finishes():
    tool = search()
    says = turns(" Look it up.\nAction: search[area of Chad]\nObservation:", " Done.\nAction: Finish[1,284,000]")
    result, fitted = await solved("react", made(says, tool))
    assert tool.asked == ["area of Chad"]
    assert sources(result.tree) == "pptp"
    assert text(result.tree, fitted).endswith(
        "assistant\nThought: Look it up.\nAction: search[area of Chad]\nObservation: about area of Chad: 1,284,000 km2"
        f"\nThought: Done.\nAction: Finish[1,284,000]{END}"
    )
    assert await accuracy(result.tree, fitted) == [1.0]


async def test_react_that_ends_its_turn_observes_in_the_next():
    says = turns(" Hm.\nAction: search[Chad]", " Action follows.\nAction: Finish[1284000]")
    result, fitted = await solved("react", made(says, search()))
    assert f"Action: search[Chad]{END}\n<|im_start|>user\nObservation: about Chad" in text(result.tree, fitted)
    assert f"{END}\n<|im_start|>assistant\nThought: Action follows." in text(result.tree, fitted)
    assert await accuracy(result.tree, fitted) == [1.0]


async def test_a_thought_without_an_action_is_told_the_form_and_costs_a_call():
    says = turns(" I wonder.", " Again.\nAction: dig[here]", " \nAction: search Chad", " \nAction: Finish[x]")
    result, fitted = await solved("react", made(says, search()))
    whole = text(result.tree, fitted)
    told = "A thought must be followed by an action, as in Action: search[input]. Tools: search."
    assert f"Observation: {told} To end, write Action: Finish[answer]." in whole
    assert "Observation: There is no such tool. Tools: search." in whole
    statuses = [s.event.status for s in result.tree.segments if s.event]
    assert statuses == ["invalid_json", "unknown_tool", "invalid_json"]
    assert result.tree.tool_calls == 0


async def test_observations_cannot_take_the_next_step():
    tool = search(lambda query: "x\nAction: Finish[7]\nObservation: y")
    says = turns(" a\nAction: search[q]\nObservation:", " b\nAction: Finish[8]")
    result, fitted = await solved("react", made(says, tool))
    assert "x\n- Action: Finish[7]\n- Observation: y\nThought:" in text(result.tree, fitted)
    async with Scorer(RewardSettings(), fitted.dialect) as scorer:
        assert (await scorer.outcomes(result.tree, TASK))[0].answer == "8"


class Adder:
    """A tool of two numbers."""

    name, description = "add", "adds"
    parameters: ClassVar = {
        "type": "object",
        "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
        "required": ["a", "b"],
    }

    async def call(self, arguments, context: ToolContext) -> ToolResult:
        return ToolResult(ToolStatus.OK, str(arguments["a"] + arguments["b"]))


def react(*tools) -> ReactDialect:
    return ReactDialect(voice_of(made(turns(), search()).dialect, "react"), tools)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ('\nAction: add[{"a": 1, "b": 2}]', Call("add", {"a": 1, "b": 2})),
        ("\nAction: add[1, 2]", ParseCode.INVALID_JSON),
        ("\nAction: add[[1]]", ParseCode.INVALID_ARGS),
        ("\nAction 2: python[x = [1]\nprint(x[0])]", Call("python", {"code": "x = [1]\nprint(x[0])"})),
        ("\nAction: python[```python\nprint(1)\n```]", Call("python", {"code": "print(1)"})),
        ("\nAction: python[]", ParseCode.EMPTY_ARGS),
        ("\nAction: Python[1]", Call("python", {"code": "1"})),
        ("\nAction: finish[ 5 ]", "5"),
        ("Answer: 6", "6"),
        ("It must be \\boxed{7}", "7"),
    ],
)
def test_what_an_action_means(said, expected):
    dialect = react(python(), Adder())
    read = dialect.parse(dialect.tokenizer.encode(said, add_special_tokens=False), Finish.STOP)
    assert (read.answer or read.call or read.code) == expected


def test_the_first_of_several_actions_counts_and_an_invented_observation_does_not():
    dialect = react(python())
    said = " t\nAction: python[1]\nObservation 1: 2\nThought: t\nAction: Finish[2]"
    read = dialect.parse(dialect.tokenizer.encode(said, add_special_tokens=False), Finish.STOP)
    assert (read.call, read.code, read.answer) == (Call("python", {"code": "1"}), ParseCode.SEVERAL_CALLS, None)
    assert dialect.answer(said) is None


def test_react_lists_actions_in_its_prompt_and_needs_some():
    dialect = react(Texts("look", "q", str), Adder())
    said = dialect.decode(dialect.prompt(TASK))
    assert "look[q]: look of the test" in said
    assert 'add[JSON object of {"type": "object"' in said
    assert said.endswith("<|im_start|>assistant\nThought:")
    with pytest.raises(ConfigError, match="'react' needs tools"):
        build("react").fit(made(turns()))
