"""Llama 3.1 to 3.3: a message that is a call and nothing else, as bare JSON or behind `<|python_tag|>`.

    {"name": "search", "parameters": {"query": "area of Chad"}}<|eot_id|>
    <|python_tag|>brave_search.call(query="area of Chad")<|eom_id|>
    <|python_tag|>print(2 ** 10)<|eom_id|>

No text ends a call, since a brace can end anything, so there is no stop string: the segment ends with the end token and
`parse` finds the call in it. A message that only ends in a call is none (people quote JSON); `repair` takes it, and
says so. Several calls, divided by `;`, are reported and the first one runs. What stands behind the python tag is JSON,
or the built-in form of a tool's name and keyword literals, or code for the tool that runs Python. Nothing of it is ever
evaluated. `brave_search` means the tool `search` where there is no tool of that name.
"""

import ast
import json
import re
from itertools import islice
from typing import Any

from arpo.protocol.arguments import Fault
from arpo.protocol.base import Call, ParseCode
from arpo.protocol.chat import ChatDialect
from arpo.protocol.reading import Attempt
from arpo.protocol.tolerant import LONGEST, UnreadableError, objects, strictly
from arpo.protocol.wrapped import json_call

TAG = "<|python_tag|>"
BUILT_IN = {"brave_search": "search", "code_interpreter": "python"}
"""Names that the models were trained on, and the tools that do the same here."""
_KEY = r"\{\s*[\"'](?:name|type|function|parameters|arguments)[\"']\s*:"
_BARE = re.compile(rf"\s*(?={_KEY})")
_QUOTED = re.compile(_KEY)
_TRIED = 8
"""Places in a message's prose where a call may begin that are looked at."""
_FORM = re.compile(r"\s*[A-Za-z_]\w*\.call\(")
_ONE_TEXT = re.compile(r"\s*([A-Za-z_]\w*)\.call\(\s*([A-Za-z_]\w*)\s*=\s*\"(.*)\"\s*\)\s*;?\s*", re.DOTALL)
_PROSE = "A call is the whole message: one JSON object and nothing before it."
_BROKEN = (ValueError, SyntaxError, MemoryError, RecursionError)
EXPLAIN = """You can call these tools, each given by its JSON schema:
{tools}
To call one, write nothing but one JSON object:
{{"name": "the tool", "parameters": {{"the argument": "its value"}}}}
The tool's output is the next message."""


class LlamaDialect(ChatDialect):
    """Llama's calls, for one tokenizer and one set of tools."""

    name = "llama"
    spelling = ('"parameters"',)
    roles = ("ipython", "user")
    more_ends = ("<|eot_id|>", "<|eom_id|>")

    def explain(self) -> str:
        """The tools' schemas and the format of a call."""
        tools = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in self.template.functions)
        return EXPLAIN.format(tools=tools)

    def attempts(self, text: str) -> list[Attempt]:
        """The message behind the reasoning, if it is a call; several divided by `;` are several."""
        start = text.rfind("</think>") + len("</think>") if "</think>" in text else 0
        tag = text.find(TAG, start)
        if tag >= 0:
            return self._tagged(text, tag)
        bare = _BARE.match(text, start)
        if bare:
            return _objects(text, bare.end(), "json")
        return self._in_prose(text, start) if text.rstrip().endswith("}") else []

    def read(self, attempt: Attempt) -> Call | Fault:
        """The call that JSON, the built-in form or code is."""
        kind, body = attempt.body
        if kind == "prose" and not self.settings.repair:
            return Fault(ParseCode.INVALID_JSON, _PROSE)
        if kind in ("json", "prose"):
            return json_call(body, self.schemas, self.settings.repair, ("prose",) if kind == "prose" else ())
        return self._named(*body) if kind == "form" else self._code(body)

    def _in_prose(self, text: str, start: int) -> list[Attempt]:
        """The first object that names a call and goes to the end of the message, or the first one at all."""
        places = [match.start() for match in islice(_QUOTED.finditer(text, start), _TRIED)]
        found = [_objects(text, place, "prose") for place in places]
        return next((one for one in found if _whole(one)), found[0] if found else [])

    def _tagged(self, text: str, tag: int) -> list[Attempt]:
        """What stands behind the python tag."""
        start = tag + len(TAG)
        body = text[start:]
        if body.lstrip().startswith("{"):
            found = _objects(text, start + len(body) - len(body.lstrip()), "json")
            return [Attempt(tag, found[0].end, found[0].body), *found[1:]]
        forms = built_in(body) if _FORM.match(body) else None
        if forms is None:
            return [Attempt(tag, len(text), ("code", body))]
        return [Attempt(tag, len(text), ("form", form)) for form in forms]

    def _named(self, name: str, arguments: dict[str, Any] | None) -> Call | Fault:
        if arguments is None:
            return Fault(ParseCode.INVALID_JSON, 'A call of this form is name.call(argument="value").')
        return self.schemas.fit(self._own_name(name), arguments)

    def _code(self, body: str) -> Call | Fault:
        """Code is for the tool that runs Python."""
        tool = self._own_name("code_interpreter")
        argument = self.schemas.sole_text(tool)
        if argument is None:
            return Fault(ParseCode.UNKNOWN_TOOL)
        return self.schemas.fit(tool, {argument: body.strip()})

    def _own_name(self, name: str) -> str:
        return name if self.schemas.resolve(name) else BUILT_IN.get(name, name)


def _objects(text: str, start: int, kind: str) -> list[Attempt]:
    spans = objects(text[start:])
    return [Attempt(start + one, start + end, (kind, text[start + one : start + end])) for one, end in spans]


def _whole(attempts: list[Attempt]) -> bool:
    """True if the last of several objects is one, so that nothing but objects stands up to the end."""
    try:
        strictly(attempts[-1].body[1])
    except UnreadableError:
        return False
    return True


def built_in(body: str) -> list[tuple[str, dict[str, Any] | None]] | None:
    """The calls `name.call(key=literal, ...)` that `body` holds, with None for arguments that are no literals.

    None if `body` is something else. The template writes values without escapes, so a single text is also read as it
    stands, quotes inside it included.
    """
    single = _ONE_TEXT.fullmatch(body)
    try:
        tree = ast.parse(body.strip(), mode="exec") if len(body) <= LONGEST else ast.Module([], [])
        calls = [statement.value for statement in tree.body if isinstance(statement, ast.Expr)]
        if tree.body and len(calls) == len(tree.body) and all(_is_call(call) for call in calls):
            return [_keywords(call) for call in calls if isinstance(call, ast.Call)]
    except _BROKEN:
        if single:
            return [(single[1], {single[2]: single[3]})]
    return None


def _is_call(node: ast.expr) -> bool:
    named = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "call"
    return named and isinstance(node.func.value, ast.Name)  # type: ignore[attr-defined]


def _keywords(call: ast.Call) -> tuple[str, dict[str, Any] | None]:
    name = call.func.value.id  # type: ignore[attr-defined]
    try:
        values = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords if keyword.arg}
    except _BROKEN:
        return name, None
    return name, values if len(values) == len(call.keywords) and not call.args else None
