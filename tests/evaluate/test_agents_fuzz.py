"""Whatever a model writes, the text formats read it: no exception, at most one meaning, no time wasted."""

import time

from hypothesis import given, settings
from hypothesis import strategies as st
from method_fakes import made, python, search, turns

from arpo.evaluate.agents.react import ReactDialect
from arpo.evaluate.agents.tir import TirDialect
from arpo.evaluate.agents.voice import voice_of
from arpo.tree import Finish

VOICE = voice_of(made(turns(), search()).dialect, "test")
DIALECTS = (TirDialect(VOICE, "python", "code"), ReactDialect(VOICE, [search(), python()]))
CODE = ("```", "```python\n", "\n```\n", "print(1)")
MARKS = (
    "\nAction:",
    " search[",
    "]",
    "\nObservation:",
    "Finish[",
    "Thought:",
    "Answer: 5",
)
OTHERS = (
    "<think>",
    "</think>",
    "\\boxed{",
    "}",
    "print(1)",
    "x",
    "\n",
    " ",
    "<|im_end|>",
    "{",
    '"query"',
    "💥",
    "\x08",
)
SCRAPS = st.sampled_from((*CODE, *MARKS, *OTHERS))


@settings(max_examples=150, deadline=None)
@given(st.lists(SCRAPS, max_size=12).map("".join), st.sampled_from([Finish.CALL, Finish.STOP, Finish.LENGTH]))
def test_any_text_has_at_most_one_meaning(text, finish):
    for dialect in DIALECTS:
        read = dialect.parse(dialect.tokenizer.encode(text, add_special_tokens=False), finish)
        assert sum([read.call is not None, read.answer is not None, read.goes_on]) <= 1
        assert not (read.call and finish is Finish.LENGTH)
        assert len(dialect.format_errors([text])) <= 1
        dialect.result(text)


def test_no_text_takes_long():
    """Linear in the length: what takes quadratic time would take minutes here."""
    for scrap in ("```", " ", "\nAction:", "]", "[", "\n", "<think>", "```python\n", "\nObservation:", "`", "\\boxed{"):
        text = "\nAction: search[" + scrap * 20_000 + "x"
        begun = time.perf_counter()
        for dialect in DIALECTS:
            dialect.answer(text)
            dialect.defused(text)
            dialect.said(text)
        assert time.perf_counter() - begun < 20
