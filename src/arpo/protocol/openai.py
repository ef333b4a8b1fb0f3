"""OpenAI tool calls: any model whose messages transformers can read, in its own template and format.

`tool_calls` with `id`, `function.name` and `function.arguments` (a JSON string) is what a server says *after* it has
turned a model's text into JSON. No model samples that, and a rollout that took the server's JSON would have no ids of
what was sampled. So this dialect takes the other end of the same wire: the model's own chat template writes the
conversation, in which calls and results are OpenAI's messages, and a *response template* (transformers 5: the
tokenizer's `response_template`) reads a segment's text back into an OpenAI message. That gives gpt-oss, GLM, Gemma 4,
LFM 2.5 and whatever comes with such a template their native calls without a dialect of their own.

Where the tokenizer carries none, settings name one, or TRL's table of known chat templates is asked (that of gpt-oss is
here, because the model does not write calls quite as its chat template does). A call whose end
is a fixed text has it as stop string; else segments end with an end token. transformers types arguments leniently
("1" is true), so it is asked for text and the tool's schema decides, as in every dialect. Reasoning is what the
response template says it is: calls in it are never read.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from arpo.errors import ConfigError
from arpo.protocol.arguments import Fault, coerced
from arpo.protocol.base import Call, ParseCode, ToolSpec
from arpo.protocol.chat import ChatDialect
from arpo.protocol.reading import Attempt, View
from arpo.protocol.settings import DialectSettings
from arpo.protocol.wrapped import spoken

_REASONING = ("reasoning_content", "thinking", "reasoning")
_TOOL = r"to=functions\.(?P<name>[^\s<]+)"
_AS_JSON = r"\s*(?:<\|constrain\|>)?\s*json\s*<\|message\|>"
HARMONY: dict[str, Any] = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|start|>assistant",
    "fields": {
        "thinking": {"open": "<|channel|>analysis<|message|>", "close": "<|end|>", "content": "text"},
        "content": {"open": "<|channel|>final<|message|>", "close": "<|return|>", "content": "text"},
        "tool_calls": {
            "open_pattern": rf"(?:<\|channel\|>commentary\s+)?{_TOOL}\s*(?:<\|channel\|>commentary)?{_AS_JSON}",
            "close": "<|call|>",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
        },
    },
}
"""gpt-oss: the recipient before the channel, as its chat template writes it, or behind it, as the model does."""
_META = re.compile(r"[()\[\]{}*+?.^$|]")


class OpenaiDialect(ChatDialect):
    """A model's own calls as its response template reads them."""

    name = "openai"
    tags = ("tool_call", "tool_response")

    def __init__(self, tokenizer: Any, tools: Sequence[ToolSpec], settings: DialectSettings) -> None:
        """Raises ConfigError without a response template, or if the chat template knows no tools."""
        self.response_template = response_template(tokenizer, settings.response_template)
        end = call_end(self.response_template)
        special = {entry.content for entry in tokenizer.added_tokens_decoder.values() if entry.special}
        self.call_token = end if end in special else ""
        self.call_end = "" if any(token in end for token in special) else end
        self._untyped = self.response_template["fields"].get("tool_calls", {}).get("content") == "xml-inline"
        super().__init__(tokenizer, tools, settings)
        if not self.template.speaks_tools:
            raise ConfigError(
                f'protocol.type = "openai": the chat template of {tokenizer.name_or_path!r} knows no tools; '
                'set protocol.type = "tags" or "hermes"'
            )
        self._prefix = self.template.text([{"role": "user", "content": "question"}])

    def view(self, text: str) -> View:
        """What the response template reads in a segment."""
        try:
            message = self.tokenizer.parse_response(text, self.response_template, prefix=self._prefix)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            fault = Fault(ParseCode.INVALID_JSON, f"The call could not be read: {_first_line(error)}.")
            return View(self._without_end(text), (Attempt(0, len(text), fault),), (), "")
        end = self.call_end or self.call_token
        ends = text.count(end) if end else len(text)
        calls = message.get("tool_calls") or []
        attempts = [Attempt(0, len(text), call, closed=number < ends) for number, call in enumerate(calls)]
        thoughts = "".join(str(message.get(key) or "") for key in _REASONING)
        drafted = bool(self.call_end) and not calls and self.call_end in thoughts
        drafts = (Attempt(0, len(text), None),) if drafted else ()
        return View(self._without_end(text), tuple(attempts), drafts, str(message.get("content") or ""))

    def attempts(self, text: str) -> list[Attempt]:
        """The calls of a segment."""
        return list(self.view(text).calls)

    def read(self, attempt: Attempt) -> Call | Fault:
        """The call that an entry of `tool_calls` is."""
        if isinstance(attempt.body, Fault):
            return attempt.body
        called = attempt.body.get("function") if isinstance(attempt.body, Mapping) else None
        if not isinstance(called, Mapping) or not isinstance(called.get("name"), str):
            return Fault(ParseCode.INVALID_JSON, "The call names no tool.")
        arguments = called.get("arguments")
        tool = self.schemas.resolve(called["name"])
        if self._untyped and tool and isinstance(arguments, Mapping):
            arguments = coerced(dict(arguments), self.schemas.parameters[tool])
        return spoken(called["name"], arguments, self.schemas, self.settings.repair, [])


def response_template(tokenizer: Any, given: Mapping[str, Any] | str | None) -> dict[str, Any]:
    """The settings' response template, the tokenizer's, ours for gpt-oss, or what TRL knows. Raises ConfigError."""
    found: Mapping[str, Any] | None = _from_file(Path(given)) if isinstance(given, str) else given
    if found is None:
        known = HARMONY if "<|channel|>" in str(tokenizer.chat_template) else None
        found = getattr(tokenizer, "response_template", None) or known or _known_to_trl(tokenizer)
    if found is None:
        raise ConfigError(
            f'protocol.type = "openai": the tokenizer {tokenizer.name_or_path!r} has no response template and TRL '
            "knows none for its chat template; set protocol.response_template to one (see transformers' response "
            "parsing), or protocol.type to the model's own dialect"
        )
    if not isinstance(found.get("fields"), Mapping):
        raise ConfigError('protocol.response_template has no table "fields", so it is no response template')
    return dict(found)


def _from_file(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"protocol.response_template = {str(path)!r}: {error}; name a JSON file") from error
    if not isinstance(found, dict):
        raise ConfigError(f"protocol.response_template = {str(path)!r}: the file holds no JSON object")
    return found


def _known_to_trl(tokenizer: Any) -> Mapping[str, Any] | None:
    """TRL's response template for a chat template that it knows; None without TRL."""
    try:
        from trl.chat_template_utils import add_response_schema
    except ImportError:
        return None
    stand_in = SimpleNamespace(chat_template=tokenizer.chat_template)
    try:
        found: Mapping[str, Any] | None = getattr(add_response_schema(stand_in), "response_template", None)
    except ValueError:
        return None
    return found


def call_end(template: Mapping[str, Any]) -> str:
    """The fixed text that ends a call in a response template; "" if it is a pattern."""
    field = template.get("fields", {}).get("tool_calls", {})
    if isinstance(field.get("close"), str):
        return str(field["close"])
    pattern = re.sub(r"\\s\*$", "", str(field.get("close_pattern", "")))
    return re.sub(r"\\(\W)", r"\1", pattern) if _plain(pattern) else ""


def _plain(pattern: str) -> bool:
    """True if a regular expression means nothing but itself."""
    return bool(pattern) and not _META.search(re.sub(r"\\\W", "", pattern)) and not re.search(r"\\\w", pattern)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:160].rstrip(".")
