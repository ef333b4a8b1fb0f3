"""What is special about the Hermes format: prompts, results and trajectories of Qwen-like chat models."""

import random

import numpy as np
import pytest
from chat_models import PYTHON, SEARCH, Recorder, installed, talk, tokenizer

from arpo.engine.scripted import Scripted, ScriptedEngine
from arpo.errors import ConfigError
from arpo.protocol.base import Call, Dialect, ParseCode
from arpo.protocol.hermes import HermesDialect
from arpo.protocol.registry import build
from arpo.protocol.settings import DialectSettings
from arpo.protocol.tags import TagsDialect
from arpo.rollout.agent import Agent
from arpo.rollout.scheduler import rollout
from arpo.rollout.settings import EntropySettings, RolloutSettings
from arpo.task import Message, Task, ask
from arpo.tools.toolbox import ToolBox
from arpo.tree import Finish, Source

PLAIN = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
HERMES = DialectSettings(type="hermes")
CALL = '<tool_call>\n{"name": "search", "arguments": {"query": "area of Chad"}}\n</tool_call>'


def hermes(template: str = PLAIN, family: str = "qwen3", **options) -> HermesDialect:
    return HermesDialect(tokenizer(family, template), [SEARCH, PYTHON], DialectSettings(type="hermes", **options))


def test_it_is_a_dialect():
    one: Dialect = hermes()
    assert one.name == "hermes"
    assert one.stop == ("</tool_call>",)
    assert one.tool_names == ("search", "python")
    assert one.end_tokens == (one.tokenizer.convert_tokens_to_ids("<|im_end|>"),)


def test_a_template_without_tools_gets_our_words():
    one = hermes()
    text = one.decode(one.prompt(ask("How large is Chad?", "42")))
    for part in (
        '"name": "search"',
        '"top_k": {"type": "integer"}',
        "<tool_call>\n{",
        "one call at a time",
        "\\boxed{",
    ):
        assert part in text
    assert text.endswith("user\nHow large is Chad?<|im_end|>\n<|im_start|>assistant\n")
    assert one.decode(one.result("17")) == (
        "<|im_end|>\n<|im_start|>user\n<tool_response>\n17\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_template_with_tools_keeps_its_own_words():
    one = hermes(installed("qwen2_5"), "qwen2_5")
    text = one.decode(one.prompt(ask("How large is Chad?", "42")))
    assert "You may call one or more functions" in text
    assert text.count('"name": "search"') == 1
    assert one.system_prompt().startswith("Call a tool when you need one")


def test_a_task_keeps_its_own_system_message_first():
    task = Task("1", (Message("system", "Be brief."), Message("user", "Hi?")), ("x",))
    one = hermes()
    assert f"system\nBe brief.\n\n{one.system_prompt()}<|im_end|>" in one.decode(one.prompt(task))


def test_a_template_without_a_system_role():
    one = hermes("{% for m in messages %}{% if m.role != 'system' %}{{ m.content }}<|im_end|>{% endif %}{% endfor %}")
    assert f"{one.system_prompt()}\n\nHi?" in one.decode(one.prompt(ask("Hi?", "x")))


def test_questions_yield_no_control_token():
    one = hermes()
    clean, dirty = (one.prompt(ask(text, "x")).tolist() for text in ("Is it so?", "Is <|im_end|> <tool_call> so?"))
    controls = one.template.plain.control_ids
    assert [token for token in clean if token in controls] == [token for token in dirty if token in controls]
    assert "Is <|im_end|> <tool_call> so?" in one.decode(dirty)


def test_a_result_behind_an_end_token_does_not_repeat_it():
    one = hermes()
    end = one.tokenizer.convert_tokens_to_ids("<|im_end|>")
    called, stopped = (one.result("17", finish=finish).tolist() for finish in (Finish.CALL, Finish.STOP))
    assert called == [end, *stopped]
    assert one.decode(stopped).startswith("\n<|im_start|>user\n")
    assert one.notice("No.", finish=Finish.STOP).tolist() == one.result("No.", finish=Finish.STOP).tolist()
    assert one.result("17").dtype == np.int32


def test_bare_json_is_no_call():
    one = hermes()
    text = '{"name": "search", "arguments": {"query": "x"}}<|im_end|>'
    assert one.parse(one.tokenizer.encode(text, add_special_tokens=False), Finish.STOP).call is None


def test_arguments_as_a_json_string():
    text = '<tool_call>{"name": "search", "arguments": "{\\"query\\": \\"x\\"}"}</tool_call>'
    assert hermes().read_segment(text, Finish.CALL).call == Call("search", {"query": "x"})
    text = '<tool_call>{"name": "search", "arguments": "x"}</tool_call>'
    assert hermes().read_segment(text, Finish.CALL).code is ParseCode.INVALID_JSON
    text = '<tool_call>{"name": "search", "arguments": ["x"]}</tool_call>'
    assert hermes().read_segment(text, Finish.CALL).code is ParseCode.INVALID_ARGS


def test_a_nested_function_is_mended_only_on_request():
    text = '<tool_call>{"type": "function", "function": {"name": "search", "arguments": {"query": "x"}}}</tool_call>'
    assert hermes().read_segment(text, Finish.CALL).code is ParseCode.INVALID_JSON
    assert hermes(repair=True).read_segment(text, Finish.CALL).call.repaired == "nested function"


@pytest.mark.parametrize(
    ("pieces", "errors"),
    [
        ([CALL, "so \\boxed{42}<|im_end|>"], []),
        (["<think>\nhm\n</think>\n\n" + CALL, "<think>\nok\n</think>\n\n\\boxed{42}"], []),
        (["\\boxed{42}"], []),
        ([], ["no text"]),
        (["42"], ["segment 1: no answer"]),
        (["<think>\\boxed{42}</think>"], ["segment 1: no answer"]),
        (["<think>\\boxed{42}"], ["segment 1: <think> is not closed", "segment 1: no answer"]),
        (["a</think>\\boxed{42}"], ["segment 1: </think> without its opening tag"]),
        (["<think><think></think>\\boxed{42}"], ["segment 1: <think> inside <think>"]),
        ([CALL], ["segment 1: a call at the end", "segment 1: no answer"]),
        (["thinking", "\\boxed{42}"], ["segment 1: no call"]),
        ([f"\\boxed{{1}}{CALL}", "\\boxed{42}"], ["segment 1: an answer before the end"]),
        ([CALL + CALL, "\\boxed{42}"], ["segment 1: 2 calls"]),
        ([CALL + " and", "\\boxed{42}"], ["segment 1: text behind the call"]),
        (["<tool_call>{}</tool_call>", "\\boxed{42}"], ["segment 1: no call (invalid_json)"]),
        (["<tool_response>1</tool_response>\\boxed{42}"], ["segment 1: a result that no tool gave"]),
        (["<|im_start|>user\n1<|im_end|>\\boxed{42}"], ["segment 1: a result that no tool gave"]),
        (["<Think>a</Think>\\boxed{42}"], ["segment 1: a misspelt tag"]),
    ],
)
def test_format(pieces, errors):
    assert hermes().format_errors(pieces) == errors


def test_format_where_the_template_opens_the_reasoning():
    one = hermes(PLAIN.replace("assistant\n{%", "assistant\n<think>\n{%"))
    assert one.opens_in_think
    assert one.format_errors([f"hm</think>{CALL}", "so</think>\\boxed{42}"]) == []
    assert one.format_errors(["\\boxed{42}"]) == ["segment 1: <think> is not closed", "segment 1: no answer"]
    assert one.answer("\\boxed{1}</think>\\boxed{42}") == "42"


async def test_a_rollout_with_a_draft_a_broken_call_and_a_call():
    one = hermes()
    tools = [Recorder(SEARCH, "1,284,000 sq km"), Recorder(PYTHON, "4")]
    says = [
        f"<think>maybe {CALL}",
        " or rather not</think><tool_call>{]</tool_call>",
        f"<think>again</think>{CALL}",
        "<think>ok</think>\\boxed{42}<|im_end|>",
    ]
    tree = await talk(one, tools, says)
    assert [segment.source for segment in tree.segments[1:]] == [
        Source.POLICY,
        Source.NOTICE,
        Source.POLICY,
        Source.TOOL,
        Source.POLICY,
    ]
    assert tools[0].calls == [{"query": "area of Chad"}]
    draft, notice = tree.segments[1:3]
    assert one.decode(draft.tokens) == says[0] + says[1]
    assert notice.event.status == "invalid_json"
    assert "The call is no valid JSON: " in one.decode(notice.tokens)
    assert "Tools: search, python." in one.decode(notice.tokens)
    assert tree.segments[-1].finish is Finish.STOP


async def test_what_was_mended_is_kept_with_the_call():
    one = hermes()
    call = '<tool_call>{"name": "functions.search", "arguments": {"query": "x", "top_k": "3"}}</tool_call>'
    tree = await talk(one, [Recorder(SEARCH, "17")], [f"\\boxed{{1}}{call}", "\\boxed{17}<|im_end|>"])
    event = tree.segments[2].event
    assert (event.status, event.note) == ("ok", "prefix, types, call_after_answer")


async def test_a_draft_at_the_end_of_the_room_ends_the_trajectory():
    one = hermes()
    text = f"<think>maybe {CALL}"
    room = len(one.tokenizer.encode(text, add_special_tokens=False))
    tree = await talk(one, [Recorder(SEARCH, "17")], [text], max_tokens=room)
    assert tree.segments[-1].finish is Finish.LENGTH
    assert len(tree.segments) == 2


async def test_a_call_too_many_is_told_once():
    one = hermes()
    tools = [Recorder(SEARCH, "17")]
    tree = await talk(one, tools, [CALL, f"{CALL[:-12]}<|im_end|>", "\\boxed{17}<|im_end|>"], max_calls=1)
    assert len(tools[0].calls) == 1
    text = one.decode(tree.paths()[0].token_T)
    assert "<tool_response>\nNo tool calls left. Answer now.\n</tool_response>" in text
    assert "<|im_end|><|im_end|>" not in text


@pytest.mark.parametrize("seed", range(4))
async def test_groups_with_branches_drafts_and_mistakes_are_valid_trees(seed):
    """Random policies: whatever they say, trees are valid, no end token stands twice and every frame is whole."""
    one = hermes()
    texts = [
        f"<think>maybe {CALL}",
        f"</think>{CALL}",
        CALL,
        "<tool_call>{]</tool_call>",
        "\\boxed{42}<|im_end|>",
        "hm<|im_end|>",
        f"{CALL[:-12]}<|im_end|>",
        "talk " * 100,
    ]

    def babble(prefix: tuple[int, ...], drawn: int) -> list[Scripted]:
        luck = random.Random(drawn)
        ids = one.tokenizer.encode(luck.choice(texts) + "talk " * 300, add_special_tokens=False)
        return [Scripted(token, -0.5, 2 * luck.random()) for token in ids]

    agent = Agent(ScriptedEngine(babble, one.decode), one, ToolBox([Recorder(SEARCH, "17")]), len(one.tokenizer))
    chosen = RolloutSettings(total=8, initial=3, max_calls=3, max_tokens=500, max_result_tokens=120)
    task = ask("How large is Chad?", "42", id=f"chad-{seed}")
    tree = await rollout(task, agent, settings=chosen, entropy=EntropySettings(window=4), seed_parts=("x", seed))
    tree.validate(8)
    end = one.tokenizer.convert_tokens_to_ids("<|im_end|>")
    for path in tree.paths():
        pairs = zip(path.token_T.tolist(), path.token_T.tolist()[1:], strict=False)
        assert (end, end) not in set(pairs)
    for segment in tree.segments:
        if segment.source in (Source.TOOL, Source.NOTICE):
            assert one.decode(segment.tokens).endswith("<|im_end|>\n<|im_start|>assistant\n")


async def test_a_limit_that_would_cut_the_frame_of_a_result_is_refused():
    one = hermes()
    tools = ToolBox([Recorder(SEARCH, "17")])
    agent = Agent(ScriptedEngine(lambda prefix, drawn: [], one.decode), one, tools, len(one.tokenizer))
    chosen = RolloutSettings(total=1, initial=1, max_result_tokens=16)
    with pytest.raises(ConfigError, match=r"rollout\.max_result_tokens = 16 is too short for the \d+ tokens"):
        await rollout(ask("Hi?", "1"), agent, settings=chosen, entropy=EntropySettings(), seed_parts=("x",))


# ------------------------------------------------------------------ setting up


def test_the_template_must_speak_the_dialect():
    with pytest.raises(ConfigError, match=r"does not end calls with </tool_call>.*protocol\.type"):
        hermes(installed("llama3_1"), "llama")
    with pytest.raises(ConfigError, match=r"'hermes'.*without \"arguments\", namely like this: .*<function="):
        hermes(installed("qwen3_5_think"))


def test_a_chat_template_is_needed():
    with pytest.raises(ConfigError, match="has no chat template"):
        HermesDialect(tokenizer("qwen3", None), [SEARCH], HERMES)


def test_a_template_that_hides_results_is_refused():
    hides = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content[:5] }}<|im_end|>{% endfor %}"
    with pytest.raises(ConfigError, match="shows a tool's result neither as it is nor as a JSON string"):
        hermes(hides)


def test_a_template_that_refuses_results_is_refused():
    refuses = "{% for m in messages %}{% if loop.index > 2 %}{{ raise_exception('alternate!') }}{% endif %}"
    refuses += "{{ m.content }}<|im_end|>{% endfor %}"
    with pytest.raises(ConfigError, match="refuses a result as a message of user: alternate!"):
        hermes(refuses)


def test_the_registry_builds_what_settings_name():
    assert isinstance(build(HERMES, tokenizer("qwen3", PLAIN), [SEARCH]), HermesDialect)
    assert isinstance(build(DialectSettings(), tokenizer("qwen3", PLAIN), [PYTHON]), TagsDialect)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"repair": True}, "repair has no effect with type = 'tags'"),
        ({"type": "hermes", "style": "full"}, "style has no effect with type = 'hermes'"),
        ({"type": "hermes", "response_template": {"fields": {}}}, "response_template has no effect"),
        ({"type": "llama", "calls_in_think": True}, "calls_in_think has no effect"),
        ({"type": "hermes", "template": {"tools": []}}, "template.tools is set by the dialect itself"),
        ({"type": "hermes", "date": "today"}, "is no day; write it like 2025-01-01"),
    ],
)
def test_settings_without_effect_are_refused(options, problem):
    with pytest.raises(ValueError, match=problem):
        DialectSettings(**options)
