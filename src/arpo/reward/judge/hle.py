"""The judge of Humanity's Last Exam: extracts, explains, says yes or no, and notes the stated confidence.

Fields and grades follow the published judge (Phan et al. 2025, "Humanity's Last Exam"; centerforaisafety/hle), which
BrowseComp uses as well; the wording is ours. The confidence feeds the calibration error.
"""

from typing import Any, TypeGuard

from arpo.reward.judge.base import Grade, JudgeProtocol, object_schema
from arpo.reward.judge.quoting import PREAMBLE
from arpo.reward.judge.reading import json_object, labelled, spoken, word

_PROMPT = """Judge whether a response answers a question correctly. The correct answer is given; it is precise and
beyond doubt.

Question:
{question}
Correct answer:
{gold}
Response:
{answer}
Reply with one JSON object and nothing else, with these keys in this order:
"extracted_final_answer": the one final answer that the response commits to, or "None" if it commits to none.
"reasoning": what, if anything, sets the extracted answer apart from the correct answer. Compare the two only: do not
comment on the subject, do not solve the question, and do not defend any answer other than the correct one.
"correct": "yes" if the extracted answer is the correct answer or, for a number, differs by no more than rounding; "no"
if anything is inconsistent, ambiguous, not equivalent or missing.
"confidence": the confidence that the response states, a whole number of percent from 0 to 100; 100 if it states none.
"strict": true"""

_REMINDER = (
    "That was not the form asked for. Reply with the JSON object alone, with the keys extracted_final_answer, "
    'reasoning, correct ("yes" or "no"), confidence (a whole number from 0 to 100) and strict (true).'
)
_SCHEMA = object_schema(
    extracted_final_answer={"type": "string"},
    reasoning={"type": "string"},
    correct={"type": "string", "enum": ["yes", "no"]},
    confidence={"type": "integer"},
    strict={"type": "boolean", "enum": [True]},
)
_SCORES = {"yes": 1.0, "no": 0.0}


def read(reply: str) -> Grade | None:
    """The fields of a JSON object, or of lines `correct: yes` and `confidence: 80%` as BrowseComp's replies have."""
    said = spoken(reply)
    found = json_object(said)
    if found is None:
        found = {"correct": labelled(said, "correct"), "confidence": _percent(labelled(said, "confidence"))}
    correct, confidence = word(found.get("correct")), found.get("confidence")
    if correct not in _SCORES or not _is_percent(confidence):
        return None
    return Grade(_SCORES[correct], "correct" if correct == "yes" else "incorrect", float(confidence))


def _percent(text: str | None) -> int | None:
    """100 where a reply in lines leaves the confidence out."""
    digits = "100" if text is None else text.removesuffix("%").strip()
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= 3 else None


def _is_percent(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 100


PROTOCOL = JudgeProtocol(
    "hle",
    _PROMPT,
    _REMINDER,
    read,
    "the judge of centerforaisafety/hle, and BrowseComp's",
    _SCHEMA,
    asks_confidence=True,
    preamble=PREAMBLE,
)
