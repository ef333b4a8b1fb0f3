"""Demonstrations as rows of ShareGPT, OpenAI and Alpaca files, the reverse of `arpo.data.turns`.

A call is a text here (`<tool_call>` with JSON in it). It gets the field that the format has for calls only if reading
it back gives the same text; otherwise, as where a thought stands behind the call, the text stays in the turn.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from arpo.data.columns import UnusableError
from arpo.data.conversations import Conversation
from arpo.data.turns import Turn, call_text

Made = tuple[dict[str, Any], list[str]]

_CALLS = re.compile(r"(?s)(?P<text>.*?)\n?(?P<calls>(?:<tool_call>\n[^\n]*\n</tool_call>\n?)+)")
_CALL = re.compile(r"<tool_call>\n([^\n]*)\n</tool_call>")
_FROM = {"user": "human", "assistant": "gpt", "tool": "observation", "system": "system"}
UNTRAINED = "a turn of the model that is not to be learnt becomes one that is"


def sharegpt_row(conversation: Conversation) -> Made:
    """{conversations: [{from, value}], system, tools}; a turn that is nothing but calls is a function_call."""
    system, turns = _system(conversation)
    row: dict[str, Any] = {"conversations": [_sharegpt_turn(turn) for turn in turns]}
    if system is not None:
        row["system"] = system
    if conversation.tools:
        row["tools"] = json.dumps([dict(tool) for tool in conversation.tools], ensure_ascii=False)
    return row, _lost(turns)


def _sharegpt_turn(turn: Turn) -> dict[str, str]:
    text, calls = calls_of(turn)
    if calls and not text:
        value: Any = calls[0] if len(calls) == 1 else list(calls)
        return {"from": "function_call", "value": json.dumps(value, ensure_ascii=False)}
    return {"from": _FROM[turn.role], "value": turn.content}


def openai_row(conversation: Conversation) -> Made:
    """{messages: [{role, content, tool_calls, tool_call_id, weight}], tools}; calls are numbered through."""
    messages: list[dict[str, Any]] = []
    waiting: list[str] = []
    for turn in conversation.turns:
        message: dict[str, Any] = {"role": turn.role, "content": turn.content}
        text, calls = calls_of(turn)
        if calls:
            waiting = [f"call_{len(messages)}_{place}" for place in range(len(calls))]
            message = {"role": turn.role, "content": text or None, "tool_calls": _openai_calls(waiting, calls)}
        if turn.role == "tool" and waiting:
            message["tool_call_id"] = waiting.pop(0)
        if turn.role == "assistant" and not turn.trainable:
            message["weight"] = 0
        messages.append(message)
    row: dict[str, Any] = {"messages": messages}
    if conversation.tools:
        row["tools"] = [dict(tool) for tool in conversation.tools]
    return row, []


def _openai_calls(ids: Sequence[str], calls: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            "id": id,
            "type": "function",
            "function": {"name": call["name"], "arguments": json.dumps(call["arguments"], ensure_ascii=False)},
        }
        for id, call in zip(ids, calls, strict=True)
    ]


def alpaca_row(conversation: Conversation) -> Made:
    """{instruction, input, output, system, history, tools}. Raises UnusableError for turns of tools, or turns out of
    turn: the format knows questions and answers, one after the other."""
    system, turns = _system(conversation)
    roles = [turn.role for turn in turns]
    if len(turns) % 2 or roles != ["user", "assistant"] * (len(turns) // 2):
        raise UnusableError(
            f"{conversation.origin}: Alpaca holds questions and answers in turn, not {', '.join(roles)}; "
            "write sharegpt or openai"
        )
    texts = [turn.content for turn in turns]
    row: dict[str, Any] = {"instruction": texts[-2], "input": "", "output": texts[-1]}
    if len(texts) > 2:
        row["history"] = [texts[place : place + 2] for place in range(0, len(texts) - 2, 2)]
    if system is not None:
        row["system"] = system
    if conversation.tools:
        row["tools"] = json.dumps([dict(tool) for tool in conversation.tools], ensure_ascii=False)
    return row, _lost(turns)


def calls_of(turn: Turn) -> tuple[str, list[dict[str, Any]]]:
    """The text of a turn and the calls behind it; no calls where taking them apart would change the text."""
    match = _CALLS.fullmatch(turn.content) if turn.role == "assistant" else None
    if match is None:
        return turn.content, []
    try:
        calls = [json.loads(call) for call in _CALL.findall(match["calls"])]
    except ValueError:
        return turn.content, []
    if not all(isinstance(call, dict) and set(call) == {"name", "arguments"} for call in calls):
        return turn.content, []
    if not all(isinstance(call["name"], str) and isinstance(call["arguments"], dict) for call in calls):
        return turn.content, []
    again = "\n".join([match["text"]] * bool(match["text"]) + [call_text(call) for call in calls])
    return (match["text"], calls) if again == turn.content else (turn.content, [])


def _system(conversation: Conversation) -> tuple[str | None, Sequence[Turn]]:
    first, *rest = conversation.turns
    return (first.content, rest) if first.role == "system" else (None, conversation.turns)


def _lost(turns: Sequence[Turn]) -> list[str]:
    return [UNTRAINED for turn in turns if turn.role == "assistant" and not turn.trainable]
