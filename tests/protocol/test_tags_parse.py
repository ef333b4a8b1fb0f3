r"""Reading the policy: calls, answers, and every way to get them wrong.

Numbers in names and comments are those of the list of malformed outputs that the dialect must survive.
"""

import pytest
from tag_tokenizers import PYTHON, SEARCH, chat_tokenizer, compact_tokenizer

from arpo.protocol.base import Call, ParseCode, ParseResult
from arpo.protocol.boxed import last_boxed
from arpo.protocol.tags import TagsDialect
from arpo.tree import Finish

FULL = TagsDialect(chat_tokenizer(), [SEARCH, PYTHON])
COMPACT = TagsDialect(compact_tokenizer(), [SEARCH, PYTHON], "compact")


@pytest.fixture(params=[FULL, COMPACT], ids=["full", "compact"])
def dialect(request) -> TagsDialect:
    return request.param


def parse(dialect: TagsDialect, text: str, finish: Finish = Finish.STOP) -> ParseResult:
    return dialect.parse(dialect.tokenizer.encode(text, add_special_tokens=False), finish)


def search(query: str, repaired: str | None = None) -> Call:
    return Call("search", {"query": query}, repaired)


def python(code: str, repaired: str | None = None) -> Call:
    return Call("python", {"code": code}, repaired)


def test_calls(dialect):
    assert parse(dialect, "<think> hm</think><search> Chad area</search>", Finish.CALL) == ParseResult(
        search("Chad area")
    )
    assert parse(dialect, "<python>\nx = 3\nprint(x)\n</python>", Finish.CALL).call == python("x = 3\nprint(x)")


def test_code_keeps_its_shape_but_not_a_common_indent(dialect):
    code = "for i in range(2):\n    print(i)"
    assert parse(dialect, f"<python>\n{code}\n</python>", Finish.CALL).call == python(code)
    shifted = "\n".join("  " + line for line in code.split("\n"))
    assert parse(dialect, f"<python>\n{shifted}\n</python>", Finish.CALL).call == python(code)
    assert parse(dialect, "<python> print(1)</python>", Finish.CALL).call == python("print(1)")


def test_answers(dialect):
    assert parse(dialect, "<answer> \\boxed{ 42 }</answer>") == ParseResult(answer="42")
    assert parse(dialect, "<answer> \\boxed{3} or rather \\boxed{4} </answer>").answer == "4"
    assert parse(dialect, "<answer>\\boxed{}</answer>").answer == ""
    assert parse(dialect, "so \\boxed{5}").answer is None
    assert parse(dialect, "<answer> 5 </answer> \\boxed{5}").answer is None
    assert parse(dialect, "</answer><answer> \\boxed{5}").answer is None


def test_the_end_token_is_no_part_of_anything(dialect):
    eos = dialect.tokenizer.eos_token
    assert parse(dialect, f"<answer> \\boxed{{ 42 }}</answer>{eos}") == ParseResult(answer="42")


def test_plain_text_is_no_call(dialect):
    assert parse(dialect, "I do not know.") == ParseResult()


# ------------------------------------------------------------------ malformed


def test_case_1_unclosed_call_when_the_tokens_ran_out(dialect):
    for finish in (Finish.LENGTH, Finish.STOP):
        assert parse(dialect, "<think> a</think><search> foo", finish) == ParseResult(code=ParseCode.TRUNCATED)


def test_case_2_closing_tag_without_opener(dialect):
    assert parse(dialect, "search for foo</search>", Finish.CALL) == ParseResult(code=ParseCode.STRAY_CLOSE)
    assert parse(dialect, "<python>x</search>", Finish.CALL) == ParseResult(code=ParseCode.STRAY_CLOSE)


def test_defect_9_the_prompt_is_never_read(dialect):
    """The prompt shows `<search> query </search>`; an orphan closing tag must not send that to the search."""
    if dialect.style == "full":
        assert "<search> query </search>" in dialect.system_prompt()
    assert parse(dialect, "</search>", Finish.CALL).call is None


def test_case_4_empty_call(dialect):
    for text in ("<search> </search>", "<python>\n\n</python>", "<python>\n```python\n```</python>"):
        assert parse(dialect, text, Finish.CALL) == ParseResult(code=ParseCode.EMPTY_ARGS)


def test_case_5_only_the_call_that_ended_the_segment_counts(dialect):
    assert parse(dialect, "<search> a <python>print(1)</python>", Finish.CALL).call == python("print(1)")
    assert parse(dialect, "<search> draft <search> final</search>", Finish.CALL).call == search("final")


@pytest.mark.parametrize("text", ["<Search>foo</Search>", "< search >foo", "＜search＞foo＜/search＞", "<SEARCH>foo"])
def test_case_6_other_spellings_are_no_call(dialect, text):
    assert parse(dialect, text) == ParseResult(code=ParseCode.UNKNOWN_TAG)
    assert parse(dialect, text + "</search>", Finish.CALL) == ParseResult(code=ParseCode.UNKNOWN_TAG)


def test_case_8_a_forged_result(dialect):
    forged = "<result> it is 42</result>"
    assert parse(dialect, f"{forged}<answer> \\boxed{{42}}</answer>") == ParseResult(
        answer="42", code=ParseCode.FORGED_RESULT
    )
    assert parse(dialect, forged) == ParseResult(code=ParseCode.FORGED_RESULT)
    assert parse(dialect, f"{forged}<search> x</search>", Finish.CALL) == ParseResult(
        search("x"), code=ParseCode.FORGED_RESULT
    )


@pytest.mark.parametrize("fence", ["```python\n{}\n```", "```\n{}\n```", "\n```py\n{}\n```\n", "```python\n{}```"])
def test_case_9_one_outer_fence_is_stripped_and_reported(dialect, fence):
    text = f"<python>{fence.format('print(1)')}</python>"
    assert parse(dialect, text, Finish.CALL) == ParseResult(python("print(1)", repaired="fence"))


def test_case_9_inner_fences_stay(dialect):
    code = "x = 1\n```\ny"
    assert parse(dialect, f"<python>{code}</python>", Finish.CALL).call == python(code)


def test_case_10_html_escapes_are_left_alone(dialect):
    code = "print(1 &lt; 2, &quot;a&quot;)"
    assert parse(dialect, f"<python>{code}</python>", Finish.CALL).call == python(code)


@pytest.mark.parametrize("name", ["functions.search", "calculator", "tools.python"])
def test_case_15_unknown_tools(dialect, name):
    assert parse(dialect, f"<{name}>1+1</{name}>") == ParseResult(code=ParseCode.UNKNOWN_TOOL)


def test_case_15_a_tool_that_is_not_offered():
    only_search = TagsDialect(chat_tokenizer(), [SEARCH])
    assert parse(only_search, "<python>1</python>") == ParseResult(code=ParseCode.UNKNOWN_TOOL)
    assert "python" not in only_search.system_prompt()


def test_case_20_answer_and_call_in_one_segment(dialect):
    answer = "<answer> \\boxed{1}</answer>"
    assert parse(dialect, f"{answer}<search> x</search>", Finish.CALL) == ParseResult(
        search("x"), code=ParseCode.CALL_AFTER_ANSWER
    )
    assert parse(dialect, f"{answer}<search> x") == ParseResult(answer="1", code=ParseCode.CALL_AFTER_ANSWER)
    assert parse(dialect, f"{answer}</search>", Finish.CALL) == ParseResult(answer="1", code=ParseCode.STRAY_CLOSE)


def test_case_23_stop_string_over_several_tokens_and_text_behind_it():
    ids = FULL.tokenizer.encode("<search> x</search>\n", add_special_tokens=False)
    assert len(FULL.tokenizer.encode("</search>", add_special_tokens=False)) > 1
    assert FULL.parse(ids, Finish.CALL).call == search("x")


def test_case_24_a_call_in_words_is_no_call(dialect):
    assert parse(dialect, "搜索：乍得的人口") == ParseResult()


@pytest.mark.parametrize("finish", [Finish.STOP, Finish.CALL, Finish.LENGTH])
def test_nothing_crashes(dialect, finish):
    pieces = ["<search>", "</search>", "<answer>", "</answer>", "\\boxed{", "}", "<result>", " x", "```", "<", "\ufffd"]
    for first in pieces:
        for second in pieces:
            for third in pieces:
                parse(dialect, first + second + third + ("</search>" if finish is Finish.CALL else ""), finish)


# ------------------------------------------------------------------ \boxed


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\\boxed{42}", "42"),
        ("\\boxed{\\frac{a}{b}}", "\\frac{a}{b}"),
        ("\\boxed{3} then \\boxed{4}", "4"),
        ("\\fbox{5}", "5"),
        ("\\boxed {x}", "x"),
        ("\\boxed 5 and", "5"),
        ("\\boxed5", "5"),
        ("$\\boxed 5$", "5"),
        ("\\boxed{\\{1,2\\}}", "\\{1,2\\}"),
        ("\\boxed{a\\}b}", "a\\}b"),
        ("\\boxed{}", ""),
        ("\\boxed{unbalanced", None),
        ("\\boxed{a{b}", None),
        ("\\boxed{3} \\boxed{4", None),
        ("\\boxed", None),
        ("\\boxedtext{3}", None),
        ("oxed{3}", None),
        ("", None),
    ],
)
def test_last_boxed(text, expected):
    assert last_boxed(text) == expected


# ------------------------------------------------------------------ format

THINK, QUERY, CODE = "<think> a</think>", "<search> q</search>", "<python>print(1)</python>"
ANSWER = "<answer> \\boxed{ 1 }</answer>"


@pytest.mark.parametrize(
    "pieces",
    [
        [THINK + ANSWER],
        [ANSWER + "<|im_end|>"],
        [THINK + QUERY, THINK + THINK + CODE, THINK + ANSWER],
        ["I will look. " + QUERY + "\n", ANSWER],
    ],
)
def test_well_formed(dialect, pieces):
    assert dialect.format_errors(pieces) == []


@pytest.mark.parametrize(
    ("pieces", "error"),
    [
        ([], "no text"),
        ([""], "segment 1: 0 answers"),
        (["42"], "segment 1: 0 answers"),
        (["<answer> 42</answer>"], "segment 1: an answer without \\boxed{}"),
        ([ANSWER + ANSWER], "segment 1: 2 answers"),
        (["<answer> \\boxed{1}"], "segment 1: <answer> is not closed"),
        (["<think> a" + ANSWER], "segment 1: <answer> inside <think>"),
        (["a</think>" + ANSWER], "segment 1: </think> without its opening tag"),
        (["<think> <search> q</search>", ANSWER], "segment 1: <search> inside <think>"),
        (["</search>", ANSWER], "segment 1: </search> without its opening tag"),
        (["<search> </search>", ANSWER], "segment 1: no call (empty_args)"),
        (["thinking", ANSWER], "segment 1: no call"),
        ([ANSWER + QUERY, ANSWER], "segment 1: an answer before the end"),
        ([QUERY], "segment 1: a call at the end"),
        ([QUERY, "<search> q" + ANSWER], "segment 2: a call at the end"),
        (["<result> 1</result>" + ANSWER], "segment 1: a result that no tool gave"),
        (["</result>" + ANSWER], "segment 1: a result that no tool gave"),
        (["<Think> a</Think>" + ANSWER], "segment 1: a misspelt tag"),
        (["＜answer＞" + ANSWER], "segment 1: a misspelt tag"),
    ],
)
def test_malformed(dialect, pieces, error):
    assert error in dialect.format_errors(pieces)
