"""Demonstrations from files: ShareGPT and Alpaca rows to messages, and messages to token-exact pieces.

ShareGPT: `conversations` (or `messages`), a list of {from, value} with from in human, gpt, function_call, observation,
system; beside it `system` and `tools`. Alpaca: `instruction`, `input`, `output`, beside them `system` and `history`, a
list of [question, answer]. JSON (a list) or JSONL (one row a line). A row that cannot be used stops the reading with
its file and number.

Loss falls on what the policy writes: the turns of gpt and function_call, without the `<result>...</result>` spans that
trajectories written in one turn hold. The pieces are cut at the places where a rollout encodes separately (the prompt,
each result), so that training sees the tokens that a rollout would produce.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from arpo.errors import DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Role = Literal["system", "user", "assistant", "tool"]
Piece = tuple[str, bool]

_ROLES: Mapping[str, Role] = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "function_call": "assistant",
    "observation": "tool",
    "tool": "tool",
    "system": "system",
}
_RESULT = re.compile(r"(\n?<result>.*?</result>\n?)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Turn:
    """One message; `trainable` if the policy is to learn to write it."""

    role: Role
    content: str
    trainable: bool


@dataclass(frozen=True, slots=True)
class Conversation:
    """One demonstration. `tools`: JSON schemas for the chat template, or None. `origin`: file and row, for messages."""

    turns: tuple[Turn, ...]
    tools: tuple[Mapping[str, Any], ...] | None
    origin: str


class _UnusableError(ValueError):
    """Why a row cannot be used; becomes a DataError that names the row."""


def read_conversations(path: str | Path) -> list[Conversation]:
    """All conversations of a file, in order. Raises DataError naming file and row."""
    path = Path(path)
    found = [_conversation(row, f"{path}, row {number}") for number, row in _rows(path)]
    if not found:
        raise DataError(f"{path}: the file holds no conversation")
    return found


def _rows(path: Path) -> Iterator[tuple[int, Any]]:
    if path.suffix not in (".json", ".jsonl"):
        raise DataError(f"{path}: conversations are read from .json (a list) or .jsonl, not {path.suffix or 'this'!r}")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 ({error.reason} at byte {error.start}); save the file as UTF-8") from error
    return _json_rows(path, text) if path.suffix == ".json" else _jsonl_rows(path, text)


def _json_rows(path: Path, text: str) -> Iterator[tuple[int, Any]]:
    try:
        rows = json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(f"{path}: not JSON, or cut off ({error})") from error
    if not isinstance(rows, list):
        raise DataError(f"{path}: a .json file is a list of rows; for one row per line name it .jsonl")
    yield from enumerate(rows, 1)


def _jsonl_rows(path: Path, text: str) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            yield number, json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(f"{path}, row {number}: not JSON ({error.msg}); the file may be cut off there") from error


def _conversation(row: Any, origin: str) -> Conversation:
    try:
        if not isinstance(row, dict):
            raise _UnusableError(f"a row is an object, not {type(row).__name__}")
        turns = _sharegpt(row) if "conversations" in row or "messages" in row else _alpaca(row)
        _check(turns)
        return Conversation(tuple(_with_system(row, turns)), _tools(row), origin)
    except _UnusableError as error:
        raise DataError(f"{origin}: {error}") from error


def _sharegpt(row: Mapping[str, Any]) -> list[Turn]:
    listed = row.get("conversations", row.get("messages"))
    if not isinstance(listed, list):
        raise _UnusableError("'conversations' is a list of {from, value}")
    return [_turn(number, entry) for number, entry in enumerate(listed, 1)]


def _turn(number: int, entry: Any) -> Turn:
    if not isinstance(entry, dict):
        raise _UnusableError(f"turn {number} is an object with 'from' and 'value', not {type(entry).__name__}")
    name, value = str(entry.get("from", entry.get("role"))), entry.get("value", entry.get("content"))
    if name not in _ROLES:
        raise _UnusableError(f"turn {number} is from {name!r}; known: {', '.join(_ROLES)}")
    if not isinstance(value, str):
        raise _UnusableError(f"turn {number} has no text under 'value'")
    content = _call(number, value) if name == "function_call" else value
    return Turn(_ROLES[name], content, _ROLES[name] == "assistant")


def _call(number: int, value: str) -> str:
    """A function call (JSON) as the text that chat models of the hermes kind write for it."""
    try:
        calls = json.loads(value)
    except json.JSONDecodeError as error:
        raise _UnusableError(f"turn {number}: a function_call is JSON, {error.msg}") from error
    calls = calls if isinstance(calls, list) else [calls]
    if not all(isinstance(call, dict) and "name" in call for call in calls):
        raise _UnusableError(f"turn {number}: a function_call has a name and arguments")
    return "\n".join(f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>" for call in calls)


def _alpaca(row: Mapping[str, Any]) -> list[Turn]:
    for key in ("instruction", "output"):
        if not isinstance(row.get(key), str):
            raise _UnusableError(
                f"no text under {key!r}; a row has 'conversations' (ShareGPT) or 'instruction' and 'output' (Alpaca)"
            )
    turns: list[Turn] = []
    for pair in row.get("history") or []:
        if not (isinstance(pair, list) and len(pair) == 2 and all(isinstance(text, str) for text in pair)):
            raise _UnusableError("'history' is a list of [question, answer]")
        turns += [Turn("user", pair[0], False), Turn("assistant", pair[1], True)]
    extra = row.get("input") or ""
    if not isinstance(extra, str):
        raise _UnusableError("'input' is a text")
    question = f"{row['instruction']}\n{extra}" if extra else row["instruction"]
    return [*turns, Turn("user", question, False), Turn("assistant", row["output"], True)]


def _check(turns: list[Turn]) -> None:
    if not any(turn.trainable and turn.content.strip() for turn in turns):
        raise _UnusableError("nothing in it is written by the model (gpt, function_call or output)")
    if turns[0].role not in ("system", "user"):
        raise _UnusableError(f"it begins with a turn of the role {turns[0].role!r}; the first is human or system")
    if any(turn.role == "system" for turn in turns[1:]):
        raise _UnusableError("a system turn stands after the first turn")


def _with_system(row: Mapping[str, Any], turns: list[Turn]) -> list[Turn]:
    system = row.get("system")
    if not system:
        return turns
    if not isinstance(system, str):
        raise _UnusableError("'system' is a text")
    if turns[0].role == "system":
        raise _UnusableError("the system prompt stands both under 'system' and in the first turn; keep one")
    return [Turn("system", system, False), *turns]


def _tools(row: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...] | None:
    tools = row.get("tools")
    if isinstance(tools, str) and tools.strip():
        try:
            tools = json.loads(tools)
        except json.JSONDecodeError as error:
            raise _UnusableError(f"'tools' is a JSON list of schemas, {error.msg}") from error
    if not tools:
        return None
    if not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
        raise _UnusableError("'tools' is a list of schemas")
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
