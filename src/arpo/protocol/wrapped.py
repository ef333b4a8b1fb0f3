"""Calls between `<tool_call>` and `</tool_call>`: what their dialects share, and a call that is one JSON object."""

import json
from collections.abc import Mapping
from typing import Any

from arpo.protocol.arguments import Fault, Schemas
from arpo.protocol.base import Call, ParseCode
from arpo.protocol.chat import ChatDialect
from arpo.protocol.reading import Attempt
from arpo.protocol.tolerant import UnreadableError, load, unfenced

OPEN, CLOSE = "<tool_call>", "</tool_call>"
RESPONSE = ("<tool_response>\n", "\n</tool_response>")
_ARGUMENTS = ("arguments", "parameters")
_ALLOWED = frozenset({"name", "type", "id", *_ARGUMENTS})


def wrapped(text: str) -> list[Attempt]:
    """What stands between the tags, in order; the last opening tag before a closing one is its own.

    A closing tag without an opening one gives an attempt without a body, an opening one without an end an open attempt.
    """
    found, place = [], 0
    while (end := text.find(CLOSE, place)) >= 0:
        start = text.rfind(OPEN, place, end)
        body = text[start + len(OPEN) : end] if start >= 0 else None
        found.append(Attempt(start if start >= 0 else end, end + len(CLOSE), body))
        place = end + len(CLOSE)
    start = text.find(OPEN, place)
    return [*found, Attempt(start, len(text), text[start + len(OPEN) :], closed=False)] if start >= 0 else found


class WrappedDialect(ChatDialect):
    """What the dialects share whose calls stand between the tags, however a call is written inside.

    `explanation`: what a prompt says of calls where the template says nothing; takes `tools`, `open` and `close`.
    """

    call_end = CLOSE
    tags = ("tool_call", "tool_response")
    around = RESPONSE
    explanation: str

    def explain(self) -> str:
        """The tools' schemas and the format of a call."""
        tools = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in self.template.functions)
        return self.explanation.format(tools=tools, open=OPEN, close=CLOSE)

    def attempts(self, text: str) -> list[Attempt]:
        """What stands between the tags."""
        return wrapped(text)


def json_call(body: str, schemas: Schemas, repair: bool, mended: tuple[str, ...] = ()) -> Call | Fault:
    """The call that one JSON object with a name and arguments is. `mended`: what was done to it before."""
    inner = unfenced(body)
    body, notes = (body, [*mended]) if inner is None else (inner, [*mended, "fence"])
    if not body.strip():
        return Fault(ParseCode.EMPTY_ARGS)
    try:
        value, note = load(body.strip(), repair)
    except UnreadableError as error:
        return Fault(ParseCode.INVALID_JSON, f"The call is no valid JSON: {error}.")
    return object_call(value, schemas, repair, [*notes, *([note] if note else [])])


def object_call(value: Any, schemas: Schemas, repair: bool, notes: list[str]) -> Call | Fault:
    """The call that a JSON value says, if it is an object with `name` and `arguments` (or `parameters`)."""
    if repair and isinstance(value, Mapping) and isinstance(value.get("function"), Mapping):
        value, notes = value["function"], [*notes, "nested function"]
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str) or not _ALLOWED.issuperset(value):
        return Fault(ParseCode.INVALID_JSON, 'A call is one JSON object with the keys "name" and "arguments".')
    given = [key for key in _ARGUMENTS if key in value]
    if len(given) > 1:
        return Fault(ParseCode.INVALID_JSON, 'A call has "arguments" or "parameters", not both.')
    return spoken(value["name"], value[given[0]] if given else {}, schemas, repair, notes)


def spoken(name: str, arguments: Any, schemas: Schemas, repair: bool, notes: list[str]) -> Call | Fault:
    """The call of `name`; `arguments` may be the JSON text of an object, as OpenAI writes them, or null for none."""
    if isinstance(arguments, str):
        try:
            arguments, note = load(arguments, repair)
        except UnreadableError as error:
            return Fault(ParseCode.INVALID_JSON, f"The arguments are no valid JSON: {error}.")
        notes = [*notes, *([note] if note else [])]
    arguments = {} if arguments is None else arguments
    if not isinstance(arguments, Mapping):
        return Fault(ParseCode.INVALID_ARGS, "The arguments of a call are one JSON object.")
    return schemas.fit(name, arguments, notes)
