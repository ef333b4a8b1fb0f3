"""What a search found, in full: for a reader that is not the policy.

A search tool shows the policy a few lines. A method that has documents read aside gives the reader the records as the
source has them.
"""

from collections.abc import Mapping
from typing import Any

from arpo.tools.base import ToolResult

_EACH = 6000
"""Characters of one record."""


def records(result: ToolResult) -> list[Mapping[str, Any]]:
    """The records behind a search's result, if its tool gives any."""
    found = result.data.get("records", ())
    return [record for record in found if isinstance(record, Mapping)] if isinstance(found, list | tuple) else []


def documents(result: ToolResult) -> str:
    """All records as numbered texts with title and address; what the policy would be shown if there are none."""
    texts = [_document(number, record) for number, record in enumerate(records(result), 1)]
    return "\n\n".join(texts) or result.text


def _document(number: int, record: Mapping[str, Any]) -> str:
    head = [str(record.get(key) or "") for key in ("title", "url", "published")]
    body = str(record.get("snippet") or "")[:_EACH]
    return "\n".join([f"[{number}] " + " | ".join(part for part in head if part), body]).strip()
