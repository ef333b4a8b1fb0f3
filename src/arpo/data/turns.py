"""The turns of a demonstration, from the row shapes in which demonstrations come.

ShareGPT: `conversations`, a list of {from, value} with from in human, gpt, function_call, observation, system. OpenAI:
`messages`, a list of {role, content} with `tool_calls` on the assistant's and `tool_call_id` on the tool's; content is
a text or a list of text parts, `weight` 0 keeps a message out of the loss, and reasoning in a field of its own comes
first. Alpaca: `instruction`, `input`, `output`, and `history`, a list of [question, answer].

A call in a field of its own becomes the text that a chat model of the hermes kind writes for it: what the policy learns
is always a text.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from arpo.data.columns import UnusableError, text_of

Role = Literal["system", "user", "assistant", "tool"]

ROLES: Mapping[str, Role] = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "function_call": "assistant",
    "observation": "tool",
    "tool": "tool",
    "function": "tool",
    "system": "system",
    "developer": "system",
}
_REASONING = ("reasoning_content", "reasoning", "thinking")
_MEDIA = ("images", "audio", "refusal", "function_call")


@dataclass(frozen=True, slots=True)
class Turn:
    """One message; `trainable` if the policy is to learn to write it."""

    role: Role
    content: str
    trainable: bool


def turns_of(row: Mapping[str, Any]) -> list[Turn]:
    """The turns of a row in any of the shapes. Raises UnusableError."""
    key = next((key for key in ("conversations", "messages") if row.get(key) is not None), None)
    if key is None:
        return _alpaca(row)
    listed = row[key]
    if not isinstance(listed, list):
        raise UnusableError(f"{key!r} is a list of turns, {{from, value}} or {{role, content}}")
    _refuse_unknown_calls(listed)
    return [_turn(number, entry) for number, entry in enumerate(listed, 1)]


def _turn(number: int, entry: Any) -> Turn:
    if not isinstance(entry, dict):
        raise UnusableError(f"turn {number} is an object with 'from' and 'value', not {type(entry).__name__}")
    name = str(entry.get("from") if entry.get("from") is not None else entry.get("role"))
    if name not in ROLES:
        raise UnusableError(f"turn {number} is from {name!r}; known: {', '.join(ROLES)}")
    for field in _MEDIA:
        if entry.get(field):
            raise UnusableError(f"turn {number} has {field!r}; a turn is text and tool_calls")
    value = _content(number, entry)
    if name == "function_call":
        value = _calls(number, _parsed(number, value))
    learnt = ROLES[name] == "assistant" and entry.get("weight") != 0
    return Turn(ROLES[name], value, learnt)


def _content(number: int, entry: Mapping[str, Any]) -> str:
    """The text of a turn, its reasoning before and its calls behind it."""
    value = entry.get("value") if entry.get("value") is not None else entry.get("content")
    calls = entry.get("tool_calls") or []
    text = "" if calls and value is None else text_of(value)
    if text is None:
        raise UnusableError(f"turn {number} has no text under 'value' or 'content'")
    reasoning = next((entry[key] for key in _REASONING if entry.get(key)), "")
    if reasoning:
        text = f"<think>\n{reasoning}\n</think>\n\n{text}"
    if not calls:
        return text
    blocks = _calls(number, [_function(call) for call in calls])
    return f"{text}\n{blocks}" if text else blocks


def _function(call: Any) -> Any:
    """What a tool call calls. Parquet gives every call the arguments of all calls, null where they are not its own."""
    function = call.get("function") if isinstance(call, dict) else None
    arguments = function.get("arguments") if isinstance(function, dict) else None
    if not isinstance(function, dict) or not isinstance(arguments, dict):
        return function
    return function | {"arguments": {name: value for name, value in arguments.items() if value is not None}}


def _parsed(number: int, value: str) -> list[Any]:
    try:
        calls = json.loads(value)
    except json.JSONDecodeError as error:
        raise UnusableError(f"turn {number}: a function_call is JSON, {error.msg}") from error
    return calls if isinstance(calls, list) else [calls]


def _calls(number: int, calls: Sequence[Any]) -> str:
    """Function calls as the text that chat models of the hermes kind write for them."""
    if not calls or not all(isinstance(call, dict) and isinstance(call.get("name"), str) for call in calls):
        raise UnusableError(f"turn {number}: a function_call has a name and arguments")
    return "\n".join(call_text({"name": call["name"], "arguments": _arguments(number, call)}) for call in calls)


def call_text(call: Mapping[str, Any]) -> str:
    """One call, {name, arguments}, as text."""
    return f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>"


def _arguments(number: int, call: Mapping[str, Any]) -> Any:
    """The arguments of a call; OpenAI's are JSON in a string."""
    arguments = call.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments) if arguments.strip() else {}
        except json.JSONDecodeError as error:
            raise UnusableError(f"turn {number}: the arguments of {call['name']!r} are JSON, {error.msg}") from error
    if arguments is not None and not isinstance(arguments, dict):
        raise UnusableError(f"turn {number}: the arguments of {call['name']!r} are an object")
    return arguments or {}


def _refuse_unknown_calls(listed: Sequence[Any]) -> None:
    """A result must belong to a call that was made: a tool message without one is a cut conversation."""
    made: set[Any] = set()
    for number, entry in enumerate(listed, 1):
        if not isinstance(entry, dict):
            continue
        made |= {call.get("id") for call in entry.get("tool_calls") or [] if isinstance(call, dict)}
        wanted = entry.get("tool_call_id")
        if wanted is not None and wanted not in made:
            raise UnusableError(f"turn {number} is the result of the call {wanted!r}, which no turn before it makes")


def _alpaca(row: Mapping[str, Any]) -> list[Turn]:
    for key in ("instruction", "output"):
        if not isinstance(row.get(key), str):
            raise UnusableError(
                f"no text under {key!r}; a row has 'conversations' (ShareGPT), 'messages' (OpenAI), or 'instruction' "
                "and 'output' (Alpaca)"
            )
    turns: list[Turn] = []
    for pair in row.get("history") or []:
        if not (isinstance(pair, list) and len(pair) == 2 and all(isinstance(text, str) for text in pair)):
            raise UnusableError("'history' is a list of [question, answer]")
        turns += [Turn("user", pair[0], False), Turn("assistant", pair[1], True)]
    extra = row.get("input") or ""
    if not isinstance(extra, str):
        raise UnusableError("'input' is a text")
    question = f"{row['instruction']}\n{extra}" if extra else row["instruction"]
    return [*turns, Turn("user", question, False), Turn("assistant", row["output"], True)]
