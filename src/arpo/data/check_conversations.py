"""What can be said of one row, a task or a demonstration; of the latter, whether it can be learnt from.

A file holds the one or the other, told by its first row that can be read: a run reads it as one of them.
"""

from arpo.data.boxes import boxes
from arpo.data.check_rows import Entry, digest, examine, text_findings
from arpo.data.columns import UnusableError
from arpo.data.conversations import conversation_of, is_conversation
from arpo.data.escapes import excerpt
from arpo.data.findings import Finding
from arpo.data.normal import normal_question
from arpo.data.rows import Row
from arpo.task import Message


def form_of(row: Row) -> str:
    """What a file whose first row is this one holds: tasks or conversations."""
    return "conversations" if is_conversation(row.columns) else "tasks"


def judge(row: Row, form: str) -> tuple[Entry | None, tuple[Message, ...], list[Finding]]:
    """The entry of a row in a file of that form (None if it has none), its prompt, and all that is wrong with it."""
    if form == "conversations":
        entry, found = examine_conversation(row)
        return entry, (), found
    if not row.fault and is_conversation(row.columns):
        return None, (), [Finding("mixed_rows", row.number, f"columns: {', '.join(row.columns)}")]
    return examine(row)


def examine_conversation(row: Row) -> tuple[Entry | None, list[Finding]]:
    """The entry of a demonstration (None if it cannot be used), and all that is wrong with it.

    Its question is what the user says, so that demonstrations of test questions are found.
    """
    if row.fault:
        return None, [Finding("unreadable_row", row.number, f"{row.fault}: {excerpt(row.raw)}")]
    try:
        conversation = conversation_of(row)
    except UnusableError as error:
        return None, [Finding("bad_conversation", row.number, str(error))]
    found: list[Finding] = []
    for turn in conversation.turns:
        found += text_findings(row.number, turn.content, f"{turn.role} turn")
        if turn.trainable and any(box.content is None for box in boxes(turn.content)):
            found.append(Finding("unbalanced_box", row.number, excerpt(turn.content), f"{turn.role} turn"))
    question = "\n".join(turn.content for turn in conversation.turns if turn.role == "user")
    entry = Entry(
        number=row.number,
        whole=digest("\0".join(turn.content for turn in conversation.turns)),
        exact=digest(question),
        normal=digest(normal_question(question) or question),
        text=excerpt(question),
        answers=(),
        kind="auto",
        id=None,
    )
    return entry, found
