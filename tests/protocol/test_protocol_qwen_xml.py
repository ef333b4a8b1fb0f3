"""What is special about Qwen's XML: values without escapes and types, and where they end."""

import pytest
from chat_models import PYTHON, SEARCH, installed, tokenizer

from arpo.protocol.base import Call, ParseCode, ParseResult
from arpo.protocol.qwen_xml import QwenXmlDialect
from arpo.protocol.settings import DialectSettings
from arpo.task import ask
from arpo.tree import Finish

CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"


def xml(template: str = CHATML, **options) -> QwenXmlDialect:
    return QwenXmlDialect(tokenizer("qwen3", template), [SEARCH, PYTHON], DialectSettings(type="qwen_xml", **options))


XML, TOLERANT = xml(), xml(repair=True)


def parse(one: QwenXmlDialect, inner: str) -> ParseResult:
    return one.read_segment(f"<tool_call>{inner}</tool_call>", Finish.CALL)


def python(value: str) -> str:
    return f"\n<function=python>\n<parameter=code>\n{value}\n</parameter>\n</function>\n"


@pytest.mark.parametrize(
    "code",
    [
        "for i in range(3):\n    print(i)",
        "  indented",
        "print('</parameter>')",
        "x = '<parameter=code>'\nprint(x)",
        "if a < b and b > c: print('&amp;')",
        "\n\nprint(1)\n\n",
        'print("""\n```python\n""")',
    ],
)
def test_code_stands_as_it_is(code):
    assert parse(XML, python(code)).call == Call("python", {"code": code})


def test_line_breaks_around_a_value_are_optional():
    assert parse(XML, "<function=python><parameter=code>1 + 1</parameter></function>").call == Call(
        "python", {"code": "1 + 1"}
    )
    assert parse(XML, python("x").replace("\n", "\r\n")).call == Call("python", {"code": "x"})


def search(**values: str) -> str:
    inner = "".join(f"<parameter={name}>\n{value}\n</parameter>\n" for name, value in values.items())
    return f"\n<function=search>\n{inner}</function>\n"


def test_text_stays_text_and_other_types_are_read():
    call = parse(XML, search(query="1984", top_k="3", exact="True", fields='["a", "1"]')).call
    assert call == Call("search", {"query": "1984", "top_k": 3, "exact": True, "fields": ["a", "1"]})
    assert parse(XML, search(query="true")).call.arguments == {"query": "true"}
    assert parse(XML, search(query="x", top_k="3.0")).code is ParseCode.INVALID_ARGS


@pytest.mark.parametrize(
    "inner",
    [
        "<parameter=query>x</parameter>",
        '{"name": "search", "arguments": {"query": "x"}}',
        "<function=search><parameter=query>x</function>",
        "<function=search>query: x</function>",
        "<function=search><parameter=query>x</parameter>",
        "<function=search> and <parameter=query>x</parameter></function>",
        "<function>search</function>",
    ],
)
def test_anything_else_is_told_the_shape(inner):
    parsed = parse(XML, inner)
    assert (parsed.call, parsed.code, parsed.meant) == (None, ParseCode.INVALID_JSON, True)
    assert parsed.detail.startswith("A call is <function=name>")


def test_a_parameter_that_stands_twice():
    inner = "<function=search><parameter=query>x</parameter><parameter=query>y</parameter></function>"
    assert parse(XML, inner).code is ParseCode.INVALID_ARGS


@pytest.mark.parametrize(
    "inner",
    ["<function=search><parameter=query>x</parameter>", "<function=search>\n<parameter=query>\nx\n"],
)
def test_missing_ends_are_mended_only_on_request(inner):
    assert parse(XML, inner).call is None
    mended = parse(TOLERANT, inner).call
    assert (mended.tool, mended.arguments["query"].strip()) == ("search", "x")
    assert "unclosed" in mended.repaired


def test_our_words_where_the_template_has_none():
    text = XML.decode(XML.prompt(ask("Hi?", "x")))
    assert "<tool_call>\n<function=the_tool>\n<parameter=the_argument>" in text
    assert '"name": "python"' in text


def test_qwen_3_coder_s_words_where_the_template_has_them():
    one = xml(installed("qwen3_5_nothink"))
    text = one.decode(one.prompt(ask("Hi?", "x")))
    assert "<function=example_function_name>" in text
    assert "the_tool" not in text
