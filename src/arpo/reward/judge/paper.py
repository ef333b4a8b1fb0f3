"""The judge of the ARPO paper's evaluation (there Qwen2.5-72B-Instruct), for comparisons with its figures.

Its reply is read as published: within `<judgment>` tags if there are any, "correct" somewhere and neither "incorrect",
"wrong" nor "not correct" anywhere; every other reply means incorrect. That rule takes a remark like "not wrong" for a
no. What differs here: the temperature is 0 (published: the server's default), an outage is no verdict (published: as
good as wrong), and a reply without any text is none either. Source of the rule: the public repository RUC-NLPIR/ARPO,
evaluation.
"""

from arpo.reward.judge.base import Grade, JudgeProtocol
from arpo.reward.judge.quoting import PREAMBLE

_PROMPT = """Check a predicted answer to a question against the gold answer.

Question:
{question}
Gold answer:
{gold}
Predicted answer:
{answer}
The prediction is right if it agrees with the gold answer in meaning and in all key information. Reply with the one word
"Correct" if it does, and with the one word "Incorrect" if it does not."""

_REMINDER = 'Reply with one word: "Correct" or "Incorrect".'
_OPEN, _CLOSE = "<judgment>", "</judgment>"
_DENIALS = ("incorrect", "wrong", "not correct")


def read(reply: str) -> Grade | None:
    """As published: see the module."""
    said = _tagged(reply).strip().lower()
    if not said:
        return None
    right = "correct" in said and not any(denial in said for denial in _DENIALS)
    return Grade(float(right), "correct" if right else "incorrect")


def _tagged(reply: str) -> str:
    """What stands between the first opening and the first closing tag, or the whole reply."""
    start, end = reply.find(_OPEN), reply.find(_CLOSE)
    return reply[start + len(_OPEN) : end] if start >= 0 and end >= 0 else reply


PROTOCOL = JudgeProtocol(
    "judge_paper", _PROMPT, _REMINDER, read, "the LLM evaluator of RUC-NLPIR/ARPO", preamble=PREAMBLE
)
