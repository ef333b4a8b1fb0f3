"""Whole rollouts against real chat templates: the ids are those of the template's own rendering of the conversation.

Each case says what the policy samples, turn by turn, and what conversation that is. Where a template keeps prefixes the
rollout's trajectory and the rendered conversation must agree token for token, and only sampled tokens may be trained.
"""

from typing import Any

import pytest
from chat_models import PYTHON, SEARCH, Recorder, installed, talk, tokenizer

from arpo.data.conversations import Conversation, Turn, to_pieces
from arpo.protocol.registry import build
from arpo.protocol.settings import DialectSettings
from arpo.task import ask
from arpo.train.batches import IGNORED, encode_pieces
from arpo.tree import Finish, RolloutTree, Source

REPLY = 'Chad | "area": 1,284,000 sq km\nCapital: N\'Djamena'
ARGUMENTS = {"query": "area of Chad", "top_k": 3, "fields": ["area", "capital"]}
HERMES = (
    '<tool_call>\n{"name": "search", "arguments": {"query": "area of Chad", "top_k": 3, '
    '"fields": ["area", "capital"]}}\n</tool_call>'
)
XML = (
    "<tool_call>\n<function=search>\n<parameter=query>\narea of Chad\n</parameter>\n<parameter=top_k>\n3\n"
    '</parameter>\n<parameter=fields>\n["area", "capital"]\n</parameter>\n</function>\n</tool_call>'
)
LLAMA = (
    '{"name": "search", "parameters": {"query": "area of Chad", "top_k": 3, "fields": ["area", "capital"]}}<|eot_id|>'
)
HARMONY = (
    "<|channel|>analysis<|message|>I look it up.<|end|><|start|>assistant to=functions.search<|channel|>commentary "
    'json<|message|>{"query": "area of Chad", "top_k": 3, "fields": ["area", "capital"]}<|call|>'
)
GEMMA = (
    '<|tool_call>call:search{fields:[<|"|>area<|"|>,<|"|>capital<|"|>],query:<|"|>area of Chad<|"|>,'
    "top_k:3}<tool_call|>"
)
GEMMA_READS = {
    "start_anchor_pattern": r"(?:<\|turn>model\n|<tool_response\|>)",
    "fields": {
        "tool_calls": {
            "open_pattern": r"<\|tool_call>call:(?P<name>\w+)",
            "close": "<tool_call|>",
            "repeats": True,
            "content": "json",
            "content_args": {"string_delims": [['<|"|>', '<|"|>']], "unquoted_keys": True},
            "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
        },
        "content": {"close": "<turn|>", "content": "text"},
    },
}
THOUGHT = "I look it up."
CASES: dict[str, tuple[str, str, dict[str, Any], str, str]] = {
    "qwen2_5": ("qwen2_5", "hermes", {}, HERMES, "so \\boxed{42}<|im_end|>"),
    "qwen3": ("qwen3", "hermes", {}, f"<think>\n{THOUGHT}\n</think>\n\n{HERMES}", "so \\boxed{42}<|im_end|>"),
    "qwen3_instruct_2507": ("qwen3", "hermes", {}, HERMES, "so \\boxed{42}<|im_end|>"),
    "qwen3_vl": ("qwen3", "hermes", {}, HERMES, "so \\boxed{42}<|im_end|>"),
    "qwen3_5_think": (
        "qwen3",
        "qwen_xml",
        {},
        f"{THOUGHT}\n</think>\n\n{XML}",
        "ok\n</think>\n\n\\boxed{42}<|im_end|>",
    ),
    "qwen3_6": ("qwen3", "qwen_xml", {}, f"{THOUGHT}\n</think>\n\n{XML}", "ok\n</think>\n\n\\boxed{42}<|im_end|>"),
    "qwen3_8": ("qwen3", "qwen_xml", {}, f"{THOUGHT}\n</think>\n\n{XML}", "ok\n</think>\n\n\\boxed{42}<|im_end|>"),
    "qwen3_5_nothink": ("qwen3", "qwen_xml", {}, XML, "\\boxed{42}<|im_end|>"),
    "nemotron_3_nano": (
        "qwen3",
        "qwen_xml",
        {},
        f"{THOUGHT}\n</think>\n{XML}",
        "ok\n</think>\n\\boxed{42}<|im_end|>",
    ),
    "gemma4": ("gemma", "openai", {"response_template": GEMMA_READS}, GEMMA, "so \\boxed{42}<turn|>"),
    "llama3_1": ("llama", "llama", {}, LLAMA, "so \\boxed{42}<|eot_id|>"),
    "llama3_2": ("llama", "llama", {}, LLAMA, "so \\boxed{42}<|eot_id|>"),
    "gptoss": (
        "harmony",
        "openai",
        {},
        HARMONY,
        "<|channel|>final<|message|>so \\boxed{42}<|return|>",
    ),
}
"""By chat template: tokenizer family, dialect, its settings, what the policy samples as a call and as an answer."""


async def run(name: str, says: list[str], **more: Any) -> tuple[Any, Recorder, RolloutTree]:
    family, kind, settings, _, _ = CASES[name]
    tools = [Recorder(SEARCH, REPLY), Recorder(PYTHON, "4")]
    dialect = build(DialectSettings(type=kind, **{**settings, **more}), tokenizer(family, installed(name)), tools)
    return dialect, tools[0], await talk(dialect, tools, says)


def conversation(dialect: Any, call: str, turns: int) -> list[dict[str, Any]]:
    """The conversation of `turns` times `call` and its result, as a template is given it."""
    called = {"id": "call00001", "type": "function", "function": {"name": "search", "arguments": ARGUMENTS}}
    thought = {"reasoning_content": THOUGHT} if THOUGHT in call else {}
    turn = {"role": "assistant", "content": "", "tool_calls": [called], **thought}
    result = {"role": "tool", "name": "search", "tool_call_id": "call00001", "content": REPLY}
    return [*dialect.messages(ask("How large is Chad?", "42")), *[turn, result] * turns]


@pytest.mark.parametrize("name", CASES)
async def test_trajectories_are_what_the_template_renders(name):
    """Up to the last result and the generation prompt behind it, for one call and for two."""
    call, answer = CASES[name][3:]
    dialect, search, tree = await run(name, [call, call, answer])
    assert search.calls == [ARGUMENTS, ARGUMENTS]
    (path,) = tree.paths()
    sources = [segment.source for segment in tree.segments]
    assert sources == [Source.PROMPT, Source.POLICY, Source.TOOL, Source.POLICY, Source.TOOL, Source.POLICY]
    rendered = dialect.template.text(conversation(dialect, call, 2))
    ids = dialect.tokenizer.encode(rendered, add_special_tokens=False)
    said = tree.segments[-1].tokens.tolist()
    assert path.token_T.tolist() == [*ids, *said]
    assert dialect.decode(said) == answer
    for result in (2, 4):
        assert [segment.is_policy for segment in tree.segments][result] is False
    policy = [token for segment in tree.segments if segment.is_policy for token in segment.tokens.tolist()]
    sampled = [*dialect.tokenizer.encode(call, add_special_tokens=False)] * 2 + said
    assert policy == sampled == path.token_T[path.policy_T].tolist()
    assert dialect.answer(answer) == "42"
    assert dialect.format_errors([call, call, answer]) == []


@pytest.mark.parametrize("name", [name for name in CASES if "qwen" in name])
async def test_a_sampled_end_token_is_not_said_twice(name):
    """An engine without stop strings lets the policy end its turn itself; the same conversation comes of it."""
    call, answer = CASES[name][3:]
    tools = [Recorder(SEARCH, REPLY), Recorder(PYTHON, "4")]
    family, kind, settings, _, _ = CASES[name]
    dialect = build(DialectSettings(type=kind, **settings), tokenizer(family, installed(name)), tools)
    dialect.stop = ()
    tree = await talk(dialect, tools, [f"{call}<|im_end|>", answer])
    assert tools[0].calls == [ARGUMENTS]
    rendered = dialect.template.text(conversation(dialect, call, 1))
    ids = dialect.tokenizer.encode(rendered, add_special_tokens=False)
    assert tree.paths()[0].token_T.tolist()[: len(ids)] == ids


async def test_no_think_templates_keep_the_empty_block_that_was_sampled_after(caplog):
    """Qwen3 without thinking shows the model an empty block, and takes it out of earlier turns; ids stay."""
    call, answer = HERMES, "so \\boxed{42}<|im_end|>"
    dialect, search, tree = await run("qwen3", [call, call, answer], template={"enable_thinking": False})
    assert "changes earlier turns" in caplog.text
    text = dialect.decode(tree.paths()[0].token_T)
    assert text.count("<think>\n\n</think>\n\n") == 3
    assert len(search.calls) == 2
    rendered = dialect.template.text(conversation(dialect, call, 2))
    assert rendered.count("<think>\n\n</think>\n\n") < 3


def test_templates_that_keep_prefixes_raise_no_warning(caplog):
    for name, (family, kind, settings, _, _) in CASES.items():
        build(DialectSettings(type=kind, **settings), tokenizer(family, installed(name)), [SEARCH])
    assert "changes earlier turns" not in caplog.text


def test_prompts_print_the_date_of_the_settings():
    for name, shown in (("llama3_2", "15 Mar 2025"), ("gptoss", "2025-03-15")):
        family, kind, settings, _, _ = CASES[name]
        chosen = DialectSettings(type=kind, date="2025-03-15", **settings)
        dialect = build(chosen, tokenizer(family, installed(name)), [SEARCH])
        assert shown in dialect.decode(dialect.prompt(ask("Hi?", "x")))


def test_demonstrations_have_the_tokens_of_rollouts():
    """What cold start learns from a conversation file is what a rollout in the hermes dialect would hold."""
    dialect = build(DialectSettings(type="hermes"), tokenizer("qwen2_5", installed("qwen2_5")), [SEARCH])
    task = ask("How large is Chad?", "42")
    call = '{"name": "search", "arguments": {"query": "area of Chad"}}'
    turns = (
        *(Turn(message["role"], message["content"], False) for message in dialect.messages(task)),
        Turn("assistant", f"<tool_call>\n{call}\n</tool_call>", True),
        Turn("tool", REPLY, False),
        Turn("assistant", "so \\boxed{42}", True),
    )
    conversation = Conversation(turns, tuple(dialect.template.functions), "a row")
    (row,) = encode_pieces(dialect.tokenizer, [to_pieces(conversation, dialect.tokenizer)])
    said = [
        dialect.tokenizer.encode(text, add_special_tokens=False)
        for text in (f"<tool_call>\n{call}\n</tool_call><|im_end|>", "so \\boxed{42}<|im_end|>")
    ]
    whole = [*dialect.prompt(task).tolist(), *said[0], *dialect.result(REPLY, finish=Finish.STOP).tolist(), *said[1]]
    assert row.input_ids[: len(whole)] == whole
    assert [token for token in row.labels if token != IGNORED] == [*said[0], *said[1]]
