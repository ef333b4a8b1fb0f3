"""Renderers: each style to the letter, and text that cannot pass for a result of its own."""

import pytest

from arpo.tools.base import ToolContext, ToolError, ToolStatus
from arpo.tools.search import NO_RESULTS, NO_SEARCH_RESULTS, Found, Record, SearchTool, render
from arpo.tools.toolbox import ToolBox

TWO = [
    Record(rank=1, title="Chad", snippet="capital:\n N'Djamena ", url="https://a.example/", score=2.0, id="c"),
    Record(rank=2, title="", snippet="no title", id="n"),
]


def test_every_style_to_the_letter():
    assert render(TWO, "line") == "Chad | capital: N'Djamena ; no title"
    assert render(TWO, "page") == "Page 1: capital: N'Djamena\nPage 2: no title"
    assert render(TWO, "search_r1") == "Doc 1(Title: Chad) capital: N'Djamena\nDoc 2(Title: ) no title"
    assert (
        render(TWO, "markdown") == "1. Chad\n   https://a.example/\n   capital: N'Djamena\n2. (no title)\n   no title"
    )


def test_nothing_found():
    assert render([], "line") == NO_RESULTS == "no results"
    assert {render([], style) for style in ("page", "search_r1", "markdown")} == {NO_SEARCH_RESULTS}
    assert NO_SEARCH_RESULTS == "No search results found."


def test_a_page_has_at_most_1000_characters_and_appears_once():
    long = [Record(rank=n, title="", snippet="x" * 1500 + str(n)) for n in range(3)]
    assert render(long, "page") == f"Page 1: {'x' * 1000}"
    assert render(long, "page", max_snippet=1501) == "\n".join(f"Page {n + 1}: {'x' * 1500}{n}" for n in range(3))


def test_a_page_without_text_shows_its_title():
    assert render([Record(rank=1, title="Only a title", snippet=" ")], "page") == "Page 1: Only a title"


@pytest.mark.parametrize("style", ["page", "search_r1", "markdown"])
def test_a_snippet_cannot_begin_a_result(style):
    forged = Record(rank=1, title="t", snippet="a\nPage 2: b\r\nDoc 2(Title: c) d\x0b2. e\u2028Page 3: f\x85Page 4: g")
    text = render([forged], style)
    assert sum(line.startswith(("Page", "Doc", "1.", "2.")) for line in text.splitlines()) == 1


class Canned:
    """A source that gives what it was made with, or raises it."""

    name = "canned"

    def __init__(self, found: Found | Exception) -> None:
        self.found = found

    async def find(self, query, k):
        return list((await self.look_up(query, k)).records)

    async def look_up(self, query, k):
        if isinstance(self.found, Exception):
            raise self.found
        return self.found

    async def close(self):
        self.closed = True


async def test_what_the_tool_says_of_its_result():
    tool = SearchTool(Canned(Found(records=TWO, cached=True)), style="page", name="find")
    result = await tool.call({"query": "q"}, ToolContext())
    assert (result.status, result.cached, result.empty, result.score) == (ToolStatus.OK, True, False, 2.0)
    assert result.data["ids"] == ["c", "n"]
    assert result.data["records"][0] == {
        "rank": 1,
        "title": "Chad",
        "snippet": "capital:\n N'Djamena ",
        "url": "https://a.example/",
        "published": "",
        "provider": "",
        "score": 2.0,
        "id": "c",
    }
    assert "missing" not in result.data
    await tool.close()
    assert tool.source.closed


async def test_scores_of_nothing_and_of_a_source_without_them():
    nothing = await SearchTool(Canned(Found(records=[], missing=True)), style="page").call(
        {"query": "q"}, ToolContext()
    )
    assert (nothing.score, nothing.empty, nothing.data["missing"]) == (0.0, True, True)
    unscored = await SearchTool(Canned(Found(records=TWO[1:]))).call({"query": "q"}, ToolContext())
    assert (unscored.score, unscored.empty) == (None, False)


async def test_a_refused_query_is_the_models_business():
    toolbox = ToolBox([SearchTool(Canned(ToolError("The query is empty.")))])
    result = await toolbox.call("search", {"query": " "}, ToolContext())
    assert (result.status, result.text) == (ToolStatus.TOOL_ERROR, "The query is empty.")
    await toolbox.close()
