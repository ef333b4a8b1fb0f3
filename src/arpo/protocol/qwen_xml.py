"""Qwen3-Coder, Qwen3.5 and later, Nemotron 3: a call as XML-like markup, one element per argument.

    <tool_call>
    <function=search>
    <parameter=query>
    area of Chad
    </parameter>
    <parameter=top_k>
    3
    </parameter>
    </function>
    </tool_call>

A value is the text between its tags without the line break on either side: no escapes, so code stands as it is. It
ends at the `</parameter>` behind which another parameter begins or the function ends, so that code may hold the word.
Types are not written down; the tool's schema decides what `3` is, and text is never taken for a number where the schema
wants text. `True` and `None` are read as well as `true` and `null`, because templates write them so.
"""

import re
from collections.abc import Mapping
from typing import Any

from arpo.protocol.arguments import Fault, coerced
from arpo.protocol.base import Call, ParseCode
from arpo.protocol.reading import Attempt
from arpo.protocol.tolerant import UnreadableError, load
from arpo.protocol.wrapped import OPEN, WrappedDialect

_FUNCTION = re.compile(r"\s*<function=([^<>\n]+)>(.*)</function>\s*", re.DOTALL)
_OPEN_FUNCTION = re.compile(r"\s*<function=([^<>\n]+)>(.*)", re.DOTALL)
_PARAMETER = re.compile(r"\s*<parameter=([^<>\n]+)>(.*?)</parameter>(?=\s*(?:<parameter=|\Z))", re.DOTALL)
_LAST_PARAMETER = re.compile(r"\s*<parameter=([^<>\n]+)>(.*)\Z", re.DOTALL)
_EDGES = re.compile(r"\A\r?\n|\r?\n\Z")
_SHAPE = "A call is <function=name> ... </function> with <parameter=name> ... </parameter> for each argument inside."
EXPLAIN = """You can call these tools, each given by its JSON schema:
{tools}
A call looks like this, with one parameter element for each argument:
{open}
<function=the_tool>
<parameter=the_argument>
its value
</parameter>
</function>
{close}
End your text after the closing tag. The tool's output follows between <tool_response> and </tool_response>; never \
write these two tags yourself."""


class QwenXmlDialect(WrappedDialect):
    """Markup in tags, for one tokenizer and one set of tools."""

    name = "qwen_xml"
    spelling = (OPEN, "<function=", "<parameter=")
    explanation = EXPLAIN

    def read(self, attempt: Attempt) -> Call | Fault:
        """The call that the markup is."""
        repair, body = self.settings.repair, str(attempt.body)
        if not body.strip():
            return Fault(ParseCode.EMPTY_ARGS)
        found, notes = _FUNCTION.fullmatch(body), [] if attempt.closed else ["unclosed"]
        if found is None and repair:
            found, notes = _OPEN_FUNCTION.fullmatch(body), ["unclosed"]
        values = _parameters(found[2], repair, notes) if found else None
        if found is None or values is None:
            return Fault(ParseCode.INVALID_JSON, _SHAPE)
        names = [name for name, _ in values]
        if len(set(names)) < len(names):
            return Fault(ParseCode.INVALID_ARGS, "A parameter stands twice.")
        name = found[1].strip()
        return self.schemas.fit(name, self._typed(name, dict(values)), notes)

    def _typed(self, name: str, values: Mapping[str, str]) -> dict[str, Any]:
        """The values as their types: text where the schema takes text, else what the text says."""
        tool = self.schemas.resolve(name)
        if tool is None:
            return dict(values)
        schemas = {argument: self.schemas.property_schema(tool, argument) for argument in values}
        return {argument: _value(text, schemas[argument]) for argument, text in values.items()}


def _parameters(body: str, repair: bool, notes: list[str]) -> list[tuple[str, str]] | None:
    """Names and values in a function's body; None if it holds anything else."""
    values, place = [], 0
    while found := _PARAMETER.match(body, place):
        values.append((found[1].strip(), _EDGES.sub("", found[2])))
        place = found.end()
    last = _LAST_PARAMETER.match(body, place) if repair else None
    if last:
        notes.append("unclosed")
        return [*values, (last[1].strip(), _EDGES.sub("", last[2]))]
    return None if body[place:].strip() else values


def _value(text: str, schema: Mapping[str, Any]) -> Any:
    """What a parameter's text is under its schema; without one, the JSON value that it is, if it is one."""
    if schema:
        return coerced(text, schema)
    try:
        return load(text)[0]
    except UnreadableError:
        return text
