"""OpenAI tool calls: models whose messages a response template reads, gpt-oss and others."""

import json
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from chat_models import PYTHON, SEARCH, Recorder, installed, talk, tokenizer

from arpo.errors import ConfigError
from arpo.protocol.base import Call, ParseCode, ParseResult
from arpo.protocol.openai import HARMONY, OpenaiDialect, call_end
from arpo.protocol.settings import DialectSettings
from arpo.tree import Finish, Source

GLM = {
    "start_anchor": "<|assistant|>",
    "fields": {
        "reasoning_content": {"open": "<think>", "close_pattern": r"</think>\s*", "content": "text"},
        "tool_calls": {
            "open_pattern": r"<tool_call>(?P<name>\S+)\n?",
            "close_pattern": r"</tool_call>\s*",
            "repeats": True,
            "content": "xml-inline",
            "content_args": {
                "tag_pattern": r"<arg_key>(?P<key>[^<]+)</arg_key>\s*\n<arg_value>(?P<value>.*?)</arg_value>",
                "value_parser": {"name": "text"},
            },
            "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
        },
        "content": {"close_pattern": r"<\|user\|>\s*|$", "content": "text"},
    },
}
GLM_CALL = (
    "<tool_call>search\n<arg_key>query</arg_key>\n<arg_value>area of Chad</arg_value>\n<arg_key>top_k</arg_key>\n"
    "<arg_value>3</arg_value>\n</tool_call>"
)
LLAMA_CALLS = {
    "open_pattern": r'\{"name":\s*"(?P<name>[^"]+)",\s*"parameters":\s*',
    "close_pattern": r"\}<\|eot_id\|>\s*",
    "repeats": True,
    "content": "json",
    "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
}
TO = "<|start|>assistant to=functions.search<|channel|>commentary json<|message|>"
BEHIND = "<|start|>assistant<|channel|>commentary to=functions.search <|constrain|>json<|message|>"
THINKS = "<|channel|>analysis<|message|>hm<|end|>"


def harmony(**options: Any) -> OpenaiDialect:
    chosen = DialectSettings(type="openai", **options)
    return OpenaiDialect(tokenizer("harmony", installed("gptoss")), [SEARCH, PYTHON], chosen)


def glm() -> OpenaiDialect:
    chosen = DialectSettings(type="openai", response_template=GLM)
    return OpenaiDialect(tokenizer("glm", installed("glm4moe")), [SEARCH, PYTHON], chosen)


def parse(one: OpenaiDialect, text: str, finish: Finish = Finish.STOP) -> ParseResult:
    return one.parse(one.tokenizer.encode(text, add_special_tokens=False), finish)


def test_gpt_oss_ends_calls_with_a_token_of_their_own():
    one = harmony()
    assert one.stop == ()
    assert {one.decode([token]) for token in one.end_tokens} == {"<|call|>", "<|return|>"}
    assert one.answer(f"{THINKS}<|start|>assistant<|channel|>final<|message|>so \\boxed{{42}}<|return|>") == "42"
    assert one.answer("<|channel|>analysis<|message|>\\boxed{1}<|end|>") is None


@pytest.mark.parametrize("opener", [TO, BEHIND])
def test_gpt_oss_calls_in_both_spellings(opener):
    text = f'{THINKS}{opener}{{"query": "area of Chad", "top_k": "3"}}<|call|>'
    assert parse(harmony(), text) == ParseResult(Call("search", {"query": "area of Chad", "top_k": 3}, "types"))


def test_gpt_oss_mistakes():
    one = harmony()
    assert parse(one, f'{THINKS}{TO}{{"query": }}<|call|>').code is ParseCode.INVALID_JSON
    assert parse(one, f"{THINKS}{TO}{{}}<|call|>").code is ParseCode.EMPTY_ARGS
    assert parse(one, f'{THINKS}{TO.replace("search", "find")}{{"a": 1}}<|call|>').code is ParseCode.UNKNOWN_TOOL
    assert parse(one, f'{THINKS}{TO}{{"query": "x"}}', Finish.LENGTH).call is None
    draft = '<|channel|>analysis<|message|>maybe to=functions.search json {"query": "x"}<|end|>'
    assert parse(one, draft + "<|start|>assistant<|channel|>final<|message|>\\boxed{42}<|return|>").answer == "42"


def test_gpt_oss_results_name_their_tool():
    one = harmony()
    shown = one.decode(one.result('say "hi"', finish=Finish.STOP, call=Call("python", {"code": "1"})))
    assert shown == (
        '<|start|>functions.python to=assistant<|channel|>commentary<|message|>"say \\"hi\\""<|end|><|start|>assistant'
    )
    assert "functions.search to=assistant" in one.decode(one.notice("One call at a time."))


def test_gpt_oss_format():
    one = harmony()
    call = f'{THINKS}{TO}{{"query": "x"}}<|call|>'
    answer = "<|channel|>final<|message|>\\boxed{42}<|return|>"
    assert one.format_errors([call, answer]) == []
    assert one.format_errors([call, call]) == ["segment 2: a call at the end", "segment 2: no answer"]
    assert one.format_errors([f"{THINKS}{TO}{{]<|call|>", answer]) == ["segment 1: no call (invalid_json)"]


async def test_glm_calls_end_with_a_stop_string_and_values_have_the_schema_s_types():
    one = glm()
    assert one.stop == ("</tool_call>",)
    assert parse(one, f"\n<think>hm</think>\n{GLM_CALL}", Finish.CALL) == ParseResult(
        Call("search", {"query": "area of Chad", "top_k": 3})
    )
    tools = [Recorder(SEARCH, "17"), Recorder(PYTHON, "4")]
    says = [f"\n<think>maybe {GLM_CALL}", f"</think>\n{GLM_CALL}", "\n<think>ok</think>\n\\boxed{17}<|user|>"]
    tree = await talk(one, tools, says)
    assert [segment.source for segment in tree.segments[1:]] == [Source.POLICY, Source.TOOL, Source.POLICY]
    assert tools[0].calls == [{"query": "area of Chad", "top_k": 3}]
    function = {"name": "search", "arguments": {"query": "area of Chad", "top_k": 3}}
    called = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}
    rendered = one.template.text([{"role": "user", "content": "x"}, called, {"role": "tool", "content": "17"}])
    frame = rendered[rendered.index("</tool_call>", rendered.index("area of Chad")) + len("</tool_call>") :]
    assert one.decode(tree.segments[2].tokens) == frame


def test_an_end_token_within_the_end_of_a_call_ends_the_turn_as_always():
    reads = {"start_anchor": "<|end_header_id|>", "fields": {"tool_calls": {**LLAMA_CALLS}, "content": {}}}
    one = OpenaiDialect(
        tokenizer("llama", installed("llama3_1")),
        [SEARCH, PYTHON],
        DialectSettings(type="openai", response_template=reads),
    )
    assert one.stop == ()
    assert one.decode(one.result("17", finish=Finish.STOP)).startswith("<|start_header_id|>ipython")
    text = '{"name": "search", "parameters": {"query": "x"}}<|eot_id|>'
    assert parse(one, text) == ParseResult(Call("search", {"query": "x"}))


@pytest.mark.parametrize(
    ("field", "end"),
    [
        ({"close": "<|call|>"}, "<|call|>"),
        ({"close_pattern": r"</tool_call>\s*"}, "</tool_call>"),
        ({"close_pattern": r"<tool_call\|>\s*"}, "<tool_call|>"),
        ({"close_pattern": r"\)(?:\]<\|end\|>)?\s*"}, ""),
        ({"close_pattern": r"\d+"}, ""),
        ({"close_pattern": r"\}<\|eot_id\|>\s*"}, "}<|eot_id|>"),
        ({}, ""),
    ],
)
def test_stop_strings_come_from_response_templates(field, end):
    assert call_end({"fields": {"tool_calls": field}}) == end


def built(family: str, template: str, response_template: Any = None) -> OpenaiDialect:
    chosen = DialectSettings(type="openai", response_template=response_template)
    return OpenaiDialect(tokenizer(family, template), [SEARCH], chosen)


def test_where_response_templates_come_from(tmp_path):
    with pytest.raises(ConfigError, match="name a JSON file"):
        built("qwen3", "x", str(tmp_path / "none.json"))
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(ConfigError, match="holds no JSON object"):
        built("qwen3", "x", str(tmp_path / "list.json"))
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(ConfigError, match='no table "fields"'):
        built("qwen3", "x", str(tmp_path / "other.json"))
    with pytest.raises(ConfigError, match='no table "fields"'):
        built("qwen3", "x", {"defaults": {}})
    (tmp_path / "glm.json").write_text(json.dumps(GLM))
    assert built("glm", installed("glm4moe"), str(tmp_path / "glm.json")).response_template == GLM
    own = tokenizer("glm", installed("glm4moe"))
    own.response_template = GLM
    assert OpenaiDialect(own, [SEARCH], DialectSettings(type="openai")).response_template == GLM
    assert harmony().response_template == HARMONY


def test_trl_is_asked_last_and_its_absence_told(monkeypatch):
    template, other = installed("glm4moe"), installed("qwen3")
    trl = ModuleType("trl")
    utilities = ModuleType("trl.chat_template_utils")

    def add_response_schema(processing_class: SimpleNamespace) -> SimpleNamespace:
        if processing_class.chat_template != template:
            raise ValueError("Unrecognized chat template")
        processing_class.response_template = GLM
        return processing_class

    utilities.add_response_schema = add_response_schema
    monkeypatch.setitem(sys.modules, "trl", trl)
    monkeypatch.setitem(sys.modules, "trl.chat_template_utils", utilities)
    assert built("glm", template).response_template == GLM
    with pytest.raises(ConfigError, match="has no response template and TRL knows none"):
        built("qwen3", other)
    monkeypatch.setitem(sys.modules, "trl.chat_template_utils", None)
    with pytest.raises(ConfigError, match=r"protocol\.response_template"):
        built("glm", template)


def test_a_template_without_tools_is_refused():
    chatml = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    with pytest.raises(ConfigError, match=r"knows no tools; set protocol\.type"):
        built("qwen3", chatml, GLM)
