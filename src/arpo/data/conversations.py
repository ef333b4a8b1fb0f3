"""Demonstrations from files: rows to messages, and messages to token-exact pieces.

Where the rows may lie is said in `arpo.data.rows`, in which shapes turns come (ShareGPT, OpenAI, Alpaca) in
`arpo.data.turns`; beside the turns stand `system` and `tools`. A row that cannot be used stops the reading with its
file and number.

Loss falls on what the policy writes: the turns of gpt and function_call, without the `<result>...</result>` spans that
trajectories written in one turn hold. The pieces are cut at the places where a rollout encodes separately (the prompt,
each result), so that training sees the tokens that a rollout would produce.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arpo.data.columns import UnusableError, gold_of
from arpo.data.rows import Row, read_rows
from arpo.data.turns import Role, Turn, turns_of
from arpo.errors import DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = [
    "Conversation",
    "Piece",
    "Role",
    "Turn",
    "conversation_of",
    "is_conversation",
    "read_conversations",
    "to_pieces",
]

Piece = tuple[str, bool]

_RESULT = re.compile(r"(\n?<result>.*?</result>\n?)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Conversation:
    """One demonstration. `tools`: JSON schemas for the chat template, or None. `origin`: file and row, for messages."""

    turns: tuple[Turn, ...]
    tools: tuple[Mapping[str, Any], ...] | None
    origin: str


def read_conversations(source: str | Path) -> list[Conversation]:
    """All conversations of a source, in order. Raises DataError naming file and row."""
    found: list[Conversation] = []
    for row in read_rows(source):
        try:
            found.append(conversation_of(row))
        except UnusableError as error:
            raise DataError(f"{row.where}: {error}") from error
    if not found:
        raise DataError(f"{source}: the file holds no conversation")
    return found


def is_conversation(columns: Mapping[str, Any]) -> bool:
    """Whether a row is a demonstration. Messages are one if the model has the last word; those that end with a question
    are a task, also one whose gold answer is missing."""
    if columns.get("conversations") is not None:
        return True
    if columns.get("instruction") is not None and columns.get("output") is not None:
        return True
    listed = columns.get("messages")
    roles = [one.get("role") for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    return bool(roles) and (roles[-1] == "assistant" or ("assistant" in roles and gold_of(columns) is None))


def conversation_of(row: Row) -> Conversation:
    """The conversation of a row. Raises UnusableError."""
    turns = turns_of(row.columns)
    _check(turns)
    return Conversation(tuple(_with_system(row.columns, turns)), _tools(row.columns), row.where)


def _check(turns: list[Turn]) -> None:
    if not any(turn.trainable and turn.content.strip() for turn in turns):
        raise UnusableError("nothing in it is written by the model (gpt, assistant, function_call or output)")
    if turns[0].role not in ("system", "user"):
        raise UnusableError(f"it begins with a turn of the role {turns[0].role!r}; the first is human or system")
    if any(turn.role == "system" for turn in turns[1:]):
        raise UnusableError("a system turn stands after the first turn")


def _with_system(row: Mapping[str, Any], turns: list[Turn]) -> list[Turn]:
    system = row.get("system")
    if not system:
        return turns
    if not isinstance(system, str):
        raise UnusableError("'system' is a text")
    if turns[0].role == "system":
        raise UnusableError("the system prompt stands both under 'system' and in the first turn; keep one")
    return [Turn("system", system, False), *turns]


def _tools(row: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...] | None:
    tools = row.get("tools")
    if isinstance(tools, str) and tools.strip():
        try:
            tools = json.loads(tools)
        except json.JSONDecodeError as error:
            raise UnusableError(f"'tools' is a JSON list of schemas, {error.msg}") from error
    if not tools:
        return None
    if not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
        raise UnusableError("'tools' is a list of schemas")
    return tuple(tools)


def to_pieces(conversation: Conversation, tokenizer: "PreTrainedTokenizerBase") -> list[Piece]:
    """`(text, trainable)` pieces through the tokenizer's chat template; joined, they are the rendered conversation.

    Raises DataError where the template is not incremental, i.e. rewrites earlier turns when a later one is added: the
    model would be trained on a text that no rollout of its own could have led to.
    """
    pieces: list[Piece] = []
    done = ""
    for number, turn in enumerate(conversation.turns):
        if not turn.trainable:
            continue
        prompt = _render(conversation, tokenizer, number, opened=True)
        whole = _render(conversation, tokenizer, number + 1, opened=False)
        if not (prompt.startswith(done) and whole.startswith(prompt)):
            raise DataError(
                f"{conversation.origin}: the chat template rewrites earlier turns at turn {number + 1}; split the "
                "conversation before it, or use a template that keeps them"
            )
        pieces.append((prompt[len(done) :], False))
        pieces += _written(whole[len(prompt) :], turn.content, tokenizer.eos_token or "")
        done = whole
    return [piece for piece in pieces if piece[0]]


def _render(conversation: Conversation, tokenizer: "PreTrainedTokenizerBase", count: int, *, opened: bool) -> str:
    messages = [{"role": turn.role, "content": turn.content} for turn in conversation.turns[:count]]
    tools = list(conversation.tools) if conversation.tools else None
    rendered = tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=opened)
    assert isinstance(rendered, str)
    return rendered


def _written(text: str, content: str, end: str) -> list[Piece]:
    """An assistant turn: results masked, the end token trained, what the template puts after it masked."""
    body = len(content) if text.startswith(content) else len(content.strip())
    stop = text.find(end, body) + len(end) if end and end in text[body:] else len(text)
    spans = [(span, index % 2 == 0) for index, span in enumerate(_RESULT.split(text[:stop]))]
    return [*spans, (text[stop:], False)]
