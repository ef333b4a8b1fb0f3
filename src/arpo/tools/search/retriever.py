"""A retriever behind a URL as a source of records: the client of Search-R1's protocol.

    POST URL {"queries": ["..."], "topk": k, "return_scores": true}
    -> {"result": [[{"document": {"id": "7", "contents": "\\"Title\\"\\ntext"}, "score": 12.5}]]}

Servers that give no scores answer with the documents alone; both are read. What is lost on the way (no connection, 429,
5xx) may work in a moment and is a TransientError, so that the toolbox tries again; what a server answers wrongly, say
a page of HTML, will not get better and is an error that quotes it.

A connection belongs to an event loop, so the client is made when a loop asks first, and again for the next loop. The
environment's proxies are not used: the address in the settings is the one that is asked.
"""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import httpx

from arpo.tools.base import TransientError
from arpo.tools.search.corpus import title_and_text
from arpo.tools.search.record import Record

_CONNECT = 5.0
"""Seconds for a connection to be made."""
_MOST_BYTES = 8 << 20
"""Of an answer, decompressed."""
_EXCERPT = 200
"""Characters of a server's own words that a message quotes."""


class RetrieverError(Exception):
    """The server answered with something that is no answer."""


class RetrieverSource:
    """The records of the retriever at `url`. `timeout`: seconds for one answer."""

    name = "search_server"

    def __init__(self, url: str, timeout: float) -> None:
        self.url = url
        self._limits = httpx.Timeout(timeout, connect=min(_CONNECT, timeout))
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client: httpx.AsyncClient | None = None

    async def find(self, query: str, k: int) -> list[Record]:
        """The server's `k` best documents. Raises TransientError or RetrieverError."""
        body = {"queries": [query], "topk": k, "return_scores": True}
        rows = _rows(self.url, await self._post(body))
        return [_record(self.url, rank, row) for rank, row in enumerate(rows[:k], 1)]

    async def _post(self, body: Mapping[str, Any]) -> bytes:
        try:
            async with self._for_this_loop().stream("POST", self.url, json=body) as response:
                data = await _read(self.url, response)
        except httpx.RequestError as error:
            raise TransientError(f"{self.url}: no answer ({type(error).__name__}: {error})") from error
        _judge(self.url, response, data)
        return data

    def _for_this_loop(self) -> httpx.AsyncClient:
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            self._client = httpx.AsyncClient(timeout=self._limits, trust_env=False)
            self._loop = loop
        return self._client

    async def close(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None and self._loop is asyncio.get_running_loop():
            await client.aclose()


async def _read(url: str, response: httpx.Response) -> bytes:
    data = bytearray()
    async for chunk in response.aiter_bytes():
        data += chunk
        if len(data) > _MOST_BYTES:
            raise RetrieverError(f"{url}: an answer of more than {_MOST_BYTES >> 20} MiB; is this a retriever?")
    return bytes(data)


def _judge(url: str, response: httpx.Response, data: bytes) -> None:
    """Raise the error that the status stands for, if it stands for one."""
    status = response.status_code
    if status == 429 or status >= 500:
        raise TransientError(f"{url}: status {status}: {_words(data)}", after=_after(response))
    if status != 200:
        raise RetrieverError(f"{url}: status {status}: {_words(data)}; check `url`, it usually ends in /retrieve")


def _after(response: httpx.Response) -> float | None:
    """Seconds that the server asks for; a date instead of seconds is left unread, and the usual back-off is used."""
    text = response.headers.get("retry-after", "")
    return float(text) if text.isdecimal() else None


def _words(data: bytes) -> str:
    text = " ".join(data[: 4 * _EXCERPT].decode("utf-8", "replace").split())
    return text[:_EXCERPT] or "(empty)"


def _rows(url: str, data: bytes) -> list[Any]:
    try:
        answer = json.loads(data)
    except ValueError as error:
        raise RetrieverError(f"{url}: not JSON but {_words(data)!r}; check that `url` is a retriever's") from error
    result = answer.get("result") if isinstance(answer, dict) else None
    if not isinstance(result, list) or len(result) != 1 or not isinstance(result[0], list):
        raise RetrieverError(f'{url}: needs {{"result": [[...]]}} with one list per query, got {_words(data)!r}')
    return result[0]


def _record(url: str, rank: int, row: Any) -> Record:
    """One item of an answer: `{"document": {...}, "score": 1.5}`, or the document alone."""
    document = row.get("document", row) if isinstance(row, dict) else None
    if not isinstance(document, dict) or not isinstance(document.get("text", document.get("contents")), str):
        raise RetrieverError(
            f"{url}: result {rank} needs a string under 'contents' or 'text', got {str(row)[:_EXCERPT]!r}"
        )
    title, text = title_and_text(document)
    score = row.get("score")
    number = float(score) if isinstance(score, int | float) and not isinstance(score, bool) else None
    return Record(rank=rank, title=title, snippet=text, score=number, id=str(document.get("id", "")))
