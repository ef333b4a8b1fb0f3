"""What a policy reads of the records that a search found.

A style is part of the environment: a policy taught on one reads another worse. So the styles are few, frozen, and told
by name. Whatever the style, every run of white space within a title or a snippet becomes one blank; a result could
otherwise contain a line that reads like the start of the next one.
"""

from collections.abc import Callable, Sequence
from typing import Literal

from arpo.tools.search.record import Record

Style = Literal["line", "page", "search_r1", "markdown"]
"""line: `title | text ; title | text`. page: `Page 1: text`, one line each. search_r1: `Doc 1(Title: title) text`, one
line each. markdown: a numbered list of titles with address and text below them.
"""
NO_RESULTS = "no results"
"""In the style "line"."""
NO_SEARCH_RESULTS = "No search results found."
"""In all others."""
MAX_SNIPPET: dict[Style, int | None] = {"line": None, "page": 1000, "search_r1": None, "markdown": 1000}
"""Longest text of one record in characters, unless told otherwise."""


def render(records: Sequence[Record], style: Style, *, max_snippet: int | None = None) -> str:
    """The text of all `records`; where there is none, a sentence that says so.

    `max_snippet`: longest text of one record in characters; None: as MAX_SNIPPET says.
    """
    limit = MAX_SNIPPET[style] if max_snippet is None else max_snippet
    return _RENDERERS[style](records, limit) or (NO_RESULTS if style == "line" else NO_SEARCH_RESULTS)


def _squeezed(text: str, limit: int | None = None) -> str:
    return " ".join(text.split())[:limit]


def _line(records: Sequence[Record], limit: int | None) -> str:
    texts = ((record.title, record.snippet[:limit]) for record in records)
    return " ; ".join(_squeezed(f"{title} | {text}" if title else text) for title, text in texts)


def _page(records: Sequence[Record], limit: int | None) -> str:
    texts = dict.fromkeys(_squeezed(record.snippet, limit) or _squeezed(record.title, limit) for record in records)
    return "\n".join(f"Page {number}: {text}" for number, text in enumerate(texts, 1))


def _search_r1(records: Sequence[Record], limit: int | None) -> str:
    return "\n".join(
        f"Doc {number}(Title: {_squeezed(record.title)}) {_squeezed(record.snippet, limit)}"
        for number, record in enumerate(records, 1)
    )


def _markdown(records: Sequence[Record], limit: int | None) -> str:
    blocks = []
    for number, record in enumerate(records, 1):
        below = (_squeezed(record.url), _squeezed(record.snippet, limit))
        title = _squeezed(record.title) or "(no title)"
        blocks.append("\n   ".join((f"{number}. {title}", *(text for text in below if text))))
    return "\n".join(blocks)


_RENDERERS: dict[Style, Callable[[Sequence[Record], int | None], str]] = {
    "line": _line,
    "page": _page,
    "search_r1": _search_r1,
    "markdown": _markdown,
}
