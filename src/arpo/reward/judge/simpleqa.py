"""SimpleQA's grader: correct, incorrect or not attempted.

Grades follow the published grader (Wei et al. 2024, "Measuring short-form factuality in large language models"); the
wording is ours. The published parser takes the first A, B or C anywhere in the reply, so that a reply in words is
misread: "CORRECT" holds a C and "NOT_ATTEMPTED" an A. Here the last line must be a grade and nothing else.
"""

import re

from arpo.reward.judge.base import Grade, JudgeProtocol
from arpo.reward.judge.quoting import PREAMBLE
from arpo.reward.judge.reading import last_line, spoken

_PROMPT = """Grade a predicted answer to a question, given the gold answer.

Question:
{question}
Gold answer:
{gold}
Predicted answer:
{answer}
A: CORRECT. The prediction contains all that the question asks for of the gold answer, and nothing in it contradicts
the gold answer. Wording, language, order, capitals and punctuation do not matter, nor does a slip in the spelling of a
name that is clearly the same name. A number must agree to the last digit that the gold answer gives. What the gold
answer says beyond the question, or what the question itself already says, may be missing.
B: INCORRECT. Something in the prediction contradicts the gold answer, even if it is hedged or one of several guesses.
C: NOT_ATTEMPTED. The prediction leaves out what is asked for but contradicts nothing: it declines, asks back, or says
too little.

Do not correct the prediction and do not apologise. Reply with a single letter: A, B or C."""

_REMINDER = "Reply with a single letter and nothing else: A (CORRECT), B (INCORRECT) or C (NOT_ATTEMPTED)."
_GRADES = {"A": "correct", "B": "incorrect", "C": "not_attempted"}
_FORM = re.compile(
    r"(?:(?:grade|answer|final grade)\s*[:：]\s*)?\(?(?P<letter>[ABC])?\)?\s*[:.\-–]?\s*"
    r"\(?(?P<word>CORRECT|INCORRECT|NOT[_ ]ATTEMPTED)?\)?",
    re.IGNORECASE,
)


def read(reply: str) -> Grade | None:
    """The grade in the last line: a letter, its word, or both where they agree."""
    match = _FORM.fullmatch(last_line(spoken(reply)))
    if match is None:
        return None
    named = {_GRADES[match["letter"].upper()]} if match["letter"] else set()
    named |= {match["word"].lower().replace(" ", "_")} if match["word"] else set()
    if len(named) != 1:
        return None
    (grade,) = named
    return Grade(float(grade == "correct"), grade)


PROTOCOL = JudgeProtocol(
    "simpleqa",
    _PROMPT,
    _REMINDER,
    read,
    "the grader of SimpleQA (simple-evals)",
    silence="not_attempted",
    preamble=PREAMBLE,
)
