"""The judge for everything: is the answer the gold answer in other words?"""

from arpo.reward.judge.base import Grade, JudgeProtocol, object_schema
from arpo.reward.judge.quoting import PREAMBLE
from arpo.reward.judge.reading import json_object, labelled, last_line, spoken, word

_PROMPT = """You compare an answer with the gold answer to a question.

Question:
{question}
Gold answer:
{gold}
Answer to compare:
{answer}
The gold answer is right, whatever you know or believe about the question; do not solve the question yourself. The
answer is "correct" if it says what the gold answer says: the same person, place, thing, number, date or statement, in
any wording, language, spelling or format. More detail is welcome where it does not contradict the gold answer. The
answer is "incorrect" if it says something else, leaves out a part that the question asks for, gives several different
answers to choose from, hedges, or gives none. Numbers must have the same value, up to rounding to the precision of the
gold answer.

Reply with one JSON object and nothing else:
{"reason": "one sentence", "verdict": "correct" or "incorrect"}"""

_REMINDER = (
    "That was not the form asked for. Reply with the JSON object alone, with the keys reason and verdict, where "
    'verdict is "correct" or "incorrect".'
)
_SCHEMA = object_schema(reason={"type": "string"}, verdict={"type": "string", "enum": ["correct", "incorrect"]})
_SCORES = {"correct": 1.0, "incorrect": 0.0}


def read(reply: str) -> Grade | None:
    """The verdict of a JSON object, or of a last line `verdict: correct`."""
    said = spoken(reply)
    found = json_object(said)
    verdict = word(found.get("verdict")) if found is not None else word(labelled(last_line(said), "verdict"))
    return Grade(_SCORES[verdict], verdict) if verdict in _SCORES else None


PROTOCOL = JudgeProtocol("judge", _PROMPT, _REMINDER, read, "none; ours", _SCHEMA, preamble=PREAMBLE)
