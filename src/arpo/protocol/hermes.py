"""Hermes, Qwen2.5, Qwen3: a JSON object between `<tool_call>` and `</tool_call>`, results in `<tool_response>`.

    <tool_call>
    {"name": "search", "arguments": {"query": "area of Chad", "top_k": 3}}
    </tool_call>

The closing tag is the stop string, so a segment holds one call and what would follow it is never sampled. Bare JSON
without the tags is no call: models quote JSON when they talk about it.
"""

import json

from arpo.protocol.arguments import Fault
from arpo.protocol.base import Call
from arpo.protocol.chat import ChatDialect
from arpo.protocol.reading import Attempt
from arpo.protocol.wrapped import CLOSE, OPEN, RESPONSE, json_call, wrapped

EXPLAIN = """You can call these tools, each given by its JSON schema:
{tools}
A call is one JSON object between these two tags:
{open}
{{"name": "the tool", "arguments": {{"the argument": "its value"}}}}
{close}
End your text after the closing tag. The tool's output follows between <tool_response> and </tool_response>; never \
write these two tags yourself."""


class HermesDialect(ChatDialect):
    """JSON in tags, for one tokenizer and one set of tools."""

    name = "hermes"
    call_end = CLOSE
    tags = ("tool_call", "tool_response")
    spelling = (OPEN, '"arguments"')
    around = RESPONSE

    def explain(self) -> str:
        """The tools' schemas and the format of a call."""
        tools = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in self.template.functions)
        return EXPLAIN.format(tools=tools, open=OPEN, close=CLOSE)

    def attempts(self, text: str) -> list[Attempt]:
        """What stands between the tags."""
        return wrapped(text)

    def read(self, attempt: Attempt) -> Call | Fault:
        """The call that the JSON object is."""
        mended = () if attempt.closed else ("unclosed",)
        return json_call(attempt.body, self.schemas, self.settings.repair, mended)
