"""Everything a policy gets wrong, in every dialect where it makes sense. Numbers are those of the list of cases.

Each case is parsed to a call or to a code with a sentence for the policy, and what a rollout would do with it follows
from that: only `call` is executed.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from chat_models import PYTHON, SEARCH, tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

from arpo.protocol.base import Call, ParseCode, ParseResult
from arpo.protocol.chat import ChatDialect
from arpo.protocol.registry import build
from arpo.protocol.settings import DialectSettings
from arpo.tree import Finish

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.tool_calls %}{% for call in m.tool_calls %}"
    "<call>{{ call.function | tojson }}</call>{% endfor %}{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PLAIN = CHATML.replace("{% if tools %}{{ tools | tojson }}{% endif %}", "")
HEADERS = (
    "{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
READS = {
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "thinking": {"open": "<think>", "close": "</think>", "content": "text"},
        "tool_calls": {
            "open": "<call>",
            "close": "</call>",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close": "<|im_end|>", "content": "text"},
    },
}
FAMILY = {"hermes": "qwen3", "qwen_xml": "qwen3", "llama": "llama", "openai": "qwen3"}
END = {"hermes": "<|im_end|>", "qwen_xml": "<|im_end|>", "llama": "<|eot_id|>", "openai": "<|im_end|>"}
JSON = ("hermes", "llama", "openai")
WRAPPED = ("hermes", "qwen_xml")
ALL = ("hermes", "qwen_xml", "llama", "openai")
_TOKENIZERS = {kind: tokenizer(FAMILY[kind], {"llama": HEADERS, "openai": CHATML}.get(kind, PLAIN)) for kind in ALL}


@cache
def dialect(kind: str, **options: Any) -> ChatDialect:
    reads = {"response_template": READS} if kind == "openai" else {}
    built = build(DialectSettings(type=kind, **reads, **options), _TOKENIZERS[kind], [SEARCH, PYTHON])
    assert isinstance(built, ChatDialect)
    return built


def parse(one: ChatDialect, text: str, finish: Finish | None = None) -> ParseResult:
    """A segment as an engine leaves it: a stop string ends it, or an end token does, which is added here."""
    if finish is None:
        finish = Finish.CALL if one.stop and text.endswith(one.stop) else Finish.STOP
    text = text + END[one.name] if finish is Finish.STOP else text
    return one.parse(one.tokenizer.encode(text, add_special_tokens=False), finish)


WRAP: dict[str, Callable[[str], str]] = {
    "hermes": lambda body: f"<tool_call>\n{body}\n</tool_call>",
    "llama": lambda body: body,
    "openai": lambda body: f"<call>{body}</call>",
}
"""A JSON object as a call."""


def call_of(kind: str, name: str, **arguments: str) -> str:
    """A call as the dialect writes it; arguments are given as the text of their JSON value."""
    if kind == "qwen_xml":
        texts = {key: value[1:-1] if value.startswith('"') else value for key, value in arguments.items()}
        inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in texts.items())
        return f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"
    key = "parameters" if kind == "llama" else "arguments"
    inner = ", ".join(f'"{name}": {value}' for name, value in arguments.items())
    return WRAP[kind](f'{{"name": "{name}", "{key}": {{{inner}}}}}')


def good(kind: str) -> str:
    return call_of(kind, "search", query='"area of Chad"')


GOOD = Call("search", {"query": "area of Chad"})


@pytest.mark.parametrize("kind", ALL)
def test_a_clean_call(kind):
    assert parse(dialect(kind), good(kind)) == ParseResult(GOOD)


@pytest.mark.parametrize("kind", ALL)
def test_typed_arguments(kind):
    text = call_of(kind, "search", query='"x"', top_k="3", exact="true", fields='["a", "b"]')
    expected = Call("search", {"query": "x", "top_k": 3, "exact": True, "fields": ["a", "b"]})
    assert parse(dialect(kind), text) == ParseResult(expected)


@pytest.mark.parametrize("kind", ALL)
def test_answers_and_idle_talk(kind):
    one = dialect(kind)
    assert parse(one, "So \\boxed{3}, no, \\boxed{42}.") == ParseResult(answer="42")
    assert parse(one, "I do not know.") == ParseResult()
    tagged = dialect(kind, answer="tag")
    assert parse(tagged, "<answer> 42 </answer>") == ParseResult(answer="42")
    assert parse(tagged, "<answer> \\boxed{42} </answer>").answer == "42"
    assert parse(tagged, "\\boxed{42}").answer is None


@pytest.mark.parametrize("kind", ALL)
def test_case_1_cut_off_by_the_token_limit(kind):
    """Cut at any place, a call is never executed, and no cut is an answer."""
    one, text = dialect(kind), good(kind)
    for end in range(1, len(text) - 1):
        parsed = parse(one, text[:end], Finish.LENGTH)
        assert parsed.call is None
        assert parsed.answer is None
    assert parse(one, text[:-12], Finish.LENGTH).code is ParseCode.TRUNCATED


@pytest.mark.parametrize("kind", WRAPPED)
def test_case_1_unclosed_at_the_end_of_the_turn(kind):
    text = good(kind).removesuffix("</tool_call>")
    assert parse(dialect(kind), text) == ParseResult(code=ParseCode.TRUNCATED, meant=True)
    repaired = Call("search", {"query": "area of Chad"}, "unclosed")
    assert parse(dialect(kind, repair=True), text) == ParseResult(repaired)


@pytest.mark.parametrize("kind", WRAPPED)
def test_case_2_closing_tag_without_opener(kind):
    parsed = parse(dialect(kind), '{"name": "search"}</tool_call>')
    assert parsed == ParseResult(code=ParseCode.STRAY_CLOSE, meant=True)


@pytest.mark.parametrize("kind", ALL)
def test_case_4_empty_calls(kind):
    texts = [call_of(kind, "search"), call_of(kind, "search", query='""'), call_of(kind, "python", code='" "')]
    texts += ["<tool_call>\n\n</tool_call>"] if kind in WRAPPED else []
    for text in texts:
        assert parse(dialect(kind), text) == ParseResult(code=ParseCode.EMPTY_ARGS, meant=True)


@pytest.mark.parametrize("kind", ALL)
def test_case_5_the_first_of_several_calls_is_executed(kind):
    second = call_of(kind, "python", code='"1"')
    text = f"{good(kind)}{'; ' if kind == 'llama' else chr(10)}{second}"
    parsed = parse(dialect(kind), text, Finish.STOP)
    assert parsed == ParseResult(GOOD, code=ParseCode.SEVERAL_CALLS)


@pytest.mark.parametrize("kind", WRAPPED)
def test_case_5_the_last_opening_tag_before_the_end_counts(kind):
    assert parse(dialect(kind), f"<tool_call> draft {good(kind)}").call == GOOD


@pytest.mark.parametrize("kind", WRAPPED)
@pytest.mark.parametrize("tag", ["<Tool_Call>", "< tool_call >", "＜tool_call＞", "<TOOL_CALL>"])
def test_case_6_other_spellings_are_no_call(kind, tag):
    text = tag + good(kind).removeprefix("<tool_call>").removesuffix("</tool_call>")
    assert parse(dialect(kind), text) == ParseResult(code=ParseCode.UNKNOWN_TAG, meant=True)
    assert parse(dialect(kind), f"{tag}x</tool_call>").code is ParseCode.STRAY_CLOSE


@pytest.mark.parametrize("kind", ALL)
def test_case_8_forged_results(kind):
    one = dialect(kind)
    turn = "<|start_header_id|>ipython" if kind == "llama" else "<|im_end|>\n<|im_start|>user\n"
    assert parse(one, f"{turn} 42") == ParseResult(code=ParseCode.FORGED_RESULT)
    assert parse(one, f"{turn} so \\boxed{{42}}") == ParseResult(answer="42", code=ParseCode.FORGED_RESULT)
    assert "segment 1: a result that no tool gave" in one.format_errors([f"{turn} so \\boxed{{42}}"])
    if kind in WRAPPED:
        forged = "<tool_response>\n42\n</tool_response>"
        assert parse(one, f"{forged}{good(kind)}") == ParseResult(GOOD, code=ParseCode.FORGED_RESULT)


@pytest.mark.parametrize("kind", ALL)
def test_case_9_one_outer_fence_around_code(kind):
    code = '"```python\nprint(1)\n```"' if kind == "qwen_xml" else '"```python\\nprint(1)\\n```"'
    parsed = parse(dialect(kind), call_of(kind, "python", code=code))
    assert parsed == ParseResult(Call("python", {"code": "print(1)"}, "fence"))


@pytest.mark.parametrize("kind", ["hermes"])
def test_case_9_a_fence_around_the_json(kind):
    body = '```json\n{"name": "search", "arguments": {"query": "area of Chad"}}\n```'
    assert parse(dialect(kind), WRAP[kind](body)).call == Call("search", {"query": "area of Chad"}, "fence")


@pytest.mark.parametrize("kind", ALL)
def test_case_10_escapes_of_other_languages_stay(kind):
    parsed = parse(dialect(kind), call_of(kind, "python", code='"print(1 &lt; 2)"'))
    assert parsed.call == Call("python", {"code": "print(1 &lt; 2)"})


BROKEN = {
    "trailing comma": ('{"name": "search", "KEY": {"query": "area of Chad",},}', "commas"),
    "single quotes": ("{'name': 'search', 'KEY': {'query': 'area of Chad'}}", "python literals"),
    "missing brace": ('{"name": "search", "KEY": {"query": "area of Chad"}', "brackets"),
    "two missing": ('{"name": "search", "KEY": {"query": "area of Chad"', "brackets"),
    "spare brace": ('{"name": "search", "KEY": {"query": "area of Chad"}}}', "brackets"),
    "comma, no brace": ('{"name": "search", "KEY": {"query": "area of Chad",}', "brackets, commas"),
}


@pytest.mark.parametrize("kind", ["hermes", "llama"])
@pytest.mark.parametrize("case", BROKEN)
def test_cases_11_and_12_broken_json(kind, case):
    """Refused with the place of the fault; mended and reported only where settings ask for it."""
    body, mended = BROKEN[case]
    text = WRAP[kind](body.replace("KEY", "parameters" if kind == "llama" else "arguments"))
    strict = parse(dialect(kind), text)
    assert (strict.call, strict.code, strict.meant) == (None, ParseCode.INVALID_JSON, True)
    assert strict.detail.startswith("The call is no valid JSON: ")
    assert "character" in strict.detail
    tolerant = parse(dialect(kind, repair=True), text)
    assert tolerant == ParseResult(Call("search", {"query": "area of Chad"}, mended))


@pytest.mark.parametrize("kind", ["hermes", "llama"])
def test_case_11_python_constants(kind):
    text = call_of(kind, "search", query='"x"', exact="True")
    assert parse(dialect(kind), text).code is ParseCode.INVALID_JSON
    mended = parse(dialect(kind, repair=True), text)
    assert mended.call == Call("search", {"query": "x", "exact": True}, "python literals")


@pytest.mark.parametrize("kind", ["hermes", "llama"])
def test_case_11_line_breaks_in_strings(kind):
    text = call_of(kind, "python", code='"a = 1\nprint(a)"')
    assert parse(dialect(kind), text).code is ParseCode.INVALID_JSON
    mended = parse(dialect(kind, repair=True), text)
    assert mended.call == Call("python", {"code": "a = 1\nprint(a)"}, "line breaks")


@pytest.mark.parametrize("kind", ["hermes", "llama"])
@pytest.mark.parametrize(
    "query",
    ['"half \\ud83d"', "NaN", "1" * 5000, "[" * 100_000, '"a", "query": "b"', '"never closed'],
    ids=["surrogate", "nan", "digits", "depth", "twice", "string"],
)
def test_case_11_what_no_repair_mends(kind, query):
    text = call_of(kind, "search", query=query)
    for repair in (False, True):
        one = dialect(kind, repair=repair)
        parsed = one.read_segment(text, Finish.CALL if kind == "hermes" else Finish.STOP)
        assert parsed.call is None
        assert parsed.code is ParseCode.INVALID_JSON


def test_case_11_a_response_template_refuses_broken_json():
    parsed = parse(dialect("openai"), '<call>{"name": "search", "arguments": {"query": "x",}}</call>')
    assert (parsed.call, parsed.code, parsed.meant) == (None, ParseCode.INVALID_JSON, True)
    assert parsed.detail.startswith("The call could not be read")


@pytest.mark.parametrize("kind", ALL)
def test_braces_and_tags_in_arguments(kind):
    code = 'd = {\\"a\\": {}}; print(f\\"{d}}}\\")' if kind != "qwen_xml" else 'd = {"a": {}}; print(f"{d}}}")'
    parsed = parse(dialect(kind), call_of(kind, "python", code=f'"{code}"'))
    assert parsed == ParseResult(Call("python", {"code": 'd = {"a": {}}; print(f"{d}}}")'}))


@pytest.mark.parametrize("kind", JSON)
def test_case_14_both_words_for_arguments(kind):
    key = "arguments" if kind == "llama" else "parameters"
    parsed = parse(dialect(kind), WRAP[kind](f'{{"name": "search", "{key}": {{"query": "area of Chad"}}}}'))
    if kind == "openai":
        assert parsed.code is ParseCode.EMPTY_ARGS
    else:
        assert parsed == ParseResult(GOOD)


@pytest.mark.parametrize("kind", ["hermes", "llama"])
@pytest.mark.parametrize(
    "body",
    [
        '{"name": "search", "arguments": {"query": "x"}, "parameters": {"query": "y"}}',
        '{"name": "search", "query": "x"}',
        '{"name": ["search"], "arguments": {"query": "x"}}',
        '{"arguments": {"query": "x"}}',
    ],
    ids=["both", "flat", "list", "nameless"],
)
def test_case_14_arguments_are_never_dropped_in_silence(kind, body):
    assert parse(dialect(kind), WRAP[kind](body)).code is ParseCode.INVALID_JSON


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("name", ["functions.search", "tools.search"])
def test_case_15_known_name_spaces(kind, name):
    parsed = parse(dialect(kind), call_of(kind, name, query='"area of Chad"'))
    assert parsed == ParseResult(Call("search", {"query": "area of Chad"}, "prefix"))


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("name", ["calculator", "functions.calculator", "my.search", "Search"])
def test_case_15_unknown_tools(kind, name):
    parsed = parse(dialect(kind), call_of(kind, name, query='"x"'))
    assert parsed == ParseResult(code=ParseCode.UNKNOWN_TOOL, meant=True)


@pytest.mark.parametrize("kind", JSON)
def test_case_16_types_are_converted_where_nothing_is_lost(kind):
    text = call_of(kind, "search", query="1984", top_k='"5"', exact='"true"', fields='"[\\"a\\"]"')
    expected = {"query": "1984", "top_k": 5, "exact": True, "fields": ["a"]}
    assert parse(dialect(kind), text) == ParseResult(Call("search", expected, "types"))


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize(
    ("argument", "value"),
    [("top_k", '"five"'), ("top_k", "5.5"), ("top_k", '"05"'), ("exact", "1"), ("fields", '"a, b"'), ("top_k", '"٣"')],
)
def test_case_16_wrong_types_are_refused_with_their_place(kind, argument, value):
    parsed = parse(dialect(kind), call_of(kind, "search", query='"x"', **{argument: value}))
    assert (parsed.call, parsed.code, parsed.meant) == (None, ParseCode.INVALID_ARGS, True)
    assert parsed.detail.startswith(f"Wrong arguments for search at $.{argument}: ")


@pytest.mark.parametrize("kind", ALL)
def test_case_16_a_missing_argument(kind):
    parsed = parse(dialect(kind), call_of(kind, "search", top_k="3"))
    assert parsed.code is ParseCode.INVALID_ARGS
    assert "'query' is a required property" in parsed.detail


@pytest.mark.parametrize("kind", ALL)
def test_case_17_unknown_arguments(kind):
    text = call_of(kind, "search", query='"area of Chad"', lang='"en"')
    strict = parse(dialect(kind), text)
    assert strict.code is ParseCode.INVALID_ARGS
    assert strict.detail == "search has no argument 'lang'; it has: query, top_k, exact, fields."
    dropped = parse(dialect(kind, unknown_arguments="drop"), text)
    assert dropped == ParseResult(Call("search", {"query": "area of Chad"}, "dropped"))


@pytest.mark.parametrize("kind", WRAPPED)
def test_case_20_answer_and_call_in_one_segment(kind):
    one = dialect(kind)
    assert parse(one, f"\\boxed{{1}} {good(kind)}") == ParseResult(GOOD, code=ParseCode.CALL_AFTER_ANSWER)
    assert parse(one, "\\boxed{1} <tool_call> x") == ParseResult(answer="1", code=ParseCode.CALL_AFTER_ANSWER)


@pytest.mark.parametrize("kind", ALL)
def test_case_20_an_answer_in_an_argument_is_none(kind):
    code = '"print(\\\\boxed{1})"' if kind != "qwen_xml" else '"print(\\boxed{1})"'
    text = call_of(kind, "python", code=code)
    one = dialect(kind)
    assert parse(one, text).call is not None
    assert one.answer(text) is None


@pytest.mark.parametrize("kind", WRAPPED)
def test_case_23_text_behind_the_stop_string(kind):
    one = dialect(kind)
    ids = one.tokenizer.encode(good(kind) + "\n", add_special_tokens=False)
    assert one.parse(ids, Finish.CALL).call == GOOD


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("text", ["搜索：乍得的面积", "search: area of Chad", "<search>area of Chad</search>"])
def test_case_24_calls_of_other_languages_are_none(kind, text):
    assert parse(dialect(kind), text) == ParseResult()


@pytest.mark.parametrize("kind", ["hermes", "qwen_xml", "openai"])
def test_drafts_in_the_reasoning_are_not_executed(kind):
    """The stop string inside the block ends nothing; at the end of the turn the draft does not count either."""
    one, draft = dialect(kind), f"<think>maybe {good(kind)}"
    assert parse(one, draft) == ParseResult(goes_on=True)
    second = call_of(kind, "python", code='"2"')
    assert parse(one, f"{draft}, no</think>{second}") == ParseResult(Call("python", {"code": "2"}))
    assert parse(one, f"{draft}, no</think>\\boxed{{42}}") == ParseResult(answer="42")
    assert parse(one, "<think>\\boxed{1}</think>") == ParseResult()


@pytest.mark.parametrize("kind", WRAPPED)
def test_models_that_call_while_they_think_may(kind):
    one = dialect(kind, calls_in_think=True)
    assert parse(one, f"<think>I need {good(kind)}") == ParseResult(GOOD)
    assert one.format_errors([f"<think>I need {good(kind)}", "\\boxed{42}"]) == []


PIECES = (
    "<tool_call>",
    "</tool_call>",
    "{",
    "}",
    '"name": "search"',
    '"arguments": ',
    "<think>",
    "</think>",
    "\\boxed{1}",
)
PIECES += (
    "<function=search>",
    "<parameter=query>",
    "</parameter>",
    "</function>",
    "<|python_tag|>",
    "search.call(",
    ")",
)
PIECES += (
    "[",
    "]",
    ",",
    "'",
    '"',
    "\n",
    "\x00",
    "<tool_response>",
    "<|im_start|>",
    "é",
    "<call>",
    "</call>",
    "; ",
    "x",
)


@pytest.mark.parametrize("kind", ALL)
@settings(max_examples=60, deadline=None)
@given(parts=st.lists(st.sampled_from(PIECES), max_size=14), repair=st.booleans())
def test_nothing_a_policy_writes_raises(kind, parts, repair):
    one, text = dialect(kind, repair=repair), "".join(parts)
    for finish in (Finish.STOP, Finish.LENGTH, Finish.CALL):
        parsed = one.read_segment(text, finish)
        assert parsed.call is None or parsed.answer is None
        assert parsed.call is None or parsed.call.tool in ("search", "python")
    one.answer(text)
    one.format_errors([text, text])
