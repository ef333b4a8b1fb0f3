"""Hermes, Qwen2.5, Qwen3: a JSON object between `<tool_call>` and `</tool_call>`, results in `<tool_response>`.

    <tool_call>
    {"name": "search", "arguments": {"query": "area of Chad", "top_k": 3}}
    </tool_call>

The closing tag is the stop string, so a segment holds one call and what would follow it is never sampled. Bare JSON
without the tags is no call: models quote JSON when they talk about it.
"""

from arpo.protocol.arguments import Fault
from arpo.protocol.base import Call
from arpo.protocol.reading import Attempt
from arpo.protocol.wrapped import OPEN, WrappedDialect, json_call

EXPLAIN = """You can call these tools, each given by its JSON schema:
{tools}
A call is one JSON object between these two tags:
{open}
{{"name": "the tool", "arguments": {{"the argument": "its value"}}}}
{close}
End your text after the closing tag. The tool's output follows between <tool_response> and </tool_response>; never \
write these two tags yourself."""


class HermesDialect(WrappedDialect):
    """JSON in tags, for one tokenizer and one set of tools."""

    name = "hermes"
    spelling = (OPEN, '"arguments"')
    explanation = EXPLAIN

    def read(self, attempt: Attempt) -> Call | Fault:
        """The call that the JSON object is."""
        mended = () if attempt.closed else ("unclosed",)
        return json_call(attempt.body, self.schemas, self.settings.repair, mended)
