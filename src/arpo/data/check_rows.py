r"""What can be said of one row by itself: what is missing, what is broken in its texts, what its boxes look like.

Every trouble of a row is found, not the first alone; a repaired copy is judged by the same functions. What takes other
rows (duplicates, overlaps) or a comparison of answers is in `check_overlap` and `check_answers`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import blake2b
from typing import Any

from arpo.data.boxes import boxes, torn, unbalanced
from arpo.data.columns import (
    BlankError,
    MissingError,
    UnusableError,
    answers_of,
    kind_of,
    prompt_of,
)
from arpo.data.escapes import broken, excerpt, mended, stray
from arpo.data.findings import Finding
from arpo.data.normal import normal_question
from arpo.data.rows import Row
from arpo.reward.hybrid import rule
from arpo.task import AnswerKind, Message


@dataclass(frozen=True, slots=True)
class Entry:
    """What later steps need of a row. Digests: `whole` of what makes it a duplicate, `exact` and `normal` of the
    question as it is and normalised. `text`: its beginning, for excerpts. No answers: none that can be used.
    """

    number: int
    whole: bytes
    exact: bytes
    normal: bytes
    text: str
    answers: tuple[str, ...]
    kind: AnswerKind
    id: str | None


def examine(row: Row) -> tuple[Entry | None, tuple[Message, ...], list[Finding]]:
    """The entry of a row of a task file (None without a prompt), its messages, and all that is wrong with it."""
    if row.fault:
        return None, (), [Finding("unreadable_row", row.number, f"{row.fault}: {excerpt(row.raw)}")]
    found: list[Finding] = []
    messages, answers, kind = _read(row, found)
    found += prompt_findings(row.number, messages)
    for answer in answers:
        found += _answer_findings(row.number, answer)
    found += _leaks(row.number, messages, answers, kind)
    return (_entry(row, messages, answers, kind) if messages else None), messages, found


def _read(row: Row, found: list[Finding]) -> tuple[tuple[Message, ...], tuple[str, ...], AnswerKind]:
    messages: tuple[Message, ...] = ()
    answers: tuple[str, ...] = ()
    kind: AnswerKind = "auto"
    try:
        messages = prompt_of(row.columns)
    except UnusableError as error:
        kind_name = "missing_prompt" if isinstance(error, MissingError) else "bad_prompt"
        found.append(Finding(kind_name, row.number, _said(error, row.columns)))
    try:
        answers = answers_of(row.columns)
    except UnusableError as error:
        names = {BlankError: "blank_answer", MissingError: "missing_answer"}
        said = excerpt(messages[-1].content) if messages else str(error)
        found.append(Finding(names.get(type(error), "bad_answer"), row.number, said))
    try:
        kind = kind_of(row.columns)
    except UnusableError as error:
        found.append(Finding("bad_kind", row.number, str(error)))
    return messages, answers, kind


def _said(error: UnusableError, columns: Mapping[str, Any]) -> str:
    if isinstance(error, MissingError):
        return f"columns: {', '.join(columns) or 'none'}"
    return excerpt(str(error), length=120)


def prompt_findings(number: int, messages: tuple[Message, ...]) -> Iterator[Finding]:
    """What is wrong with the texts of a prompt."""
    for message in messages:
        if message.role == "system":
            yield from (replace(finding, row=number) for finding in _system_findings(message.content))
        else:
            yield from _message_findings(number, message.content, "question")


@lru_cache(64)
def _system_findings(text: str) -> tuple[Finding, ...]:
    """All rows of a file share a few system messages, the longest texts of all."""
    return tuple(_message_findings(0, text, "system message"))


def _message_findings(number: int, text: str, place: str) -> Iterator[Finding]:
    yield from text_findings(number, text, place)
    yield from _box_findings(number, text, place)


def text_findings(number: int, text: str, place: str) -> Iterator[Finding]:
    """Control characters of a text: of each kind the first."""
    if match := broken(text):
        yield Finding("broken_escape", number, excerpt(text, match.start()), place)
        text, _ = mended(text)
    if match := stray(text):
        yield Finding("control_character", number, excerpt(text, match.start()), place)


def _box_findings(number: int, text: str, place: str) -> Iterator[Finding]:
    found = boxes(text) if "box" in text else []
    if box := next((box for box in found if box.content is None), None):
        yield Finding("unbalanced_box", number, excerpt(text, box.start), place)
    if box := next((box for box in found if box.nested), None):
        yield Finding("nested_box", number, excerpt(text, box.start), place)


def _answer_findings(number: int, answer: str) -> Iterator[Finding]:
    yield from text_findings(number, answer, "answer")
    yield from _box_findings(number, answer, "answer")
    at = unbalanced(answer)
    if at is not None:
        yield Finding("unbalanced_answer", number, excerpt(answer, at), "answer")
    elif (at := torn(answer)) is not None:
        yield Finding("torn_answer", number, excerpt(answer, at), "answer")
    elif any(box.content is not None for box in boxes(answer)):
        yield Finding("boxed_answer", number, excerpt(answer), "answer")


def _leaks(number: int, messages: tuple[Message, ...], answers: tuple[str, ...], kind: AnswerKind) -> Iterator[Finding]:
    """A filled box in the question that is right, by rules alone."""
    for message in messages:
        for box in boxes(message.content) if message.role == "user" and "box" in message.content else ():
            if any(_says(box.content, answer, kind) for answer in answers):
                yield Finding("leaked_answer", number, excerpt(message.content, box.start), "question")


def _says(content: str | None, answer: str, kind: AnswerKind) -> bool:
    return bool(content and content.strip()) and rule(content or "", answer, kind).score == 1


def _entry(row: Row, messages: tuple[Message, ...], answers: tuple[str, ...], kind: AnswerKind) -> Entry:
    question = question_of(messages)
    name = row.columns.get("id")
    return Entry(
        number=row.number,
        whole=digest(question),
        exact=digest(question),
        normal=digest(normal_question(question) or question),
        text=excerpt(question),
        answers=answers,
        kind=kind,
        id=None if name is None else str(name),
    )


def question_of(messages: tuple[Message, ...]) -> str:
    """What is asked: everything but the system message, which all rows of a file share."""
    return "\n".join(message.content for message in messages if message.role != "system")


def digest(text: str) -> bytes:
    """16 bytes that stand for a text."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
