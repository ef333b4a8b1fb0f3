"""Text out of documents, in processes that can be killed.

A few workers (see `worker`) wait for documents. They are started by exec, so they carry nothing of a training process,
and die with it. One that takes too long, crashes or sends too much is killed, one that has grown is retired, and the
next document gets a new one. A page that its worker did not survive is tried once more without looking for its main
text; what does not survive that either is told to the policy.
"""

import asyncio
import importlib.util
import json
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arpo.errors import ToolSetupError
from arpo.tools.browser.defusing import harmless
from arpo.tools.browser.errors import PageError
from arpo.tools.limits import Turns
from arpo.tools.running import off_the_clock
from arpo.workers import start

MAX_CHARS = 400_000
"""Of a document's text that is kept."""
_START = 60.0
"""Seconds that a worker may take to import its parsers, on a machine under load."""
_JOBS = 500
"""Documents after which a worker is retired."""
_GROWN = 0.6
"""Share of its memory limit above which a worker is retired."""
_SENTENCES = {
    "encrypted": "The document is encrypted and cannot be read.",
    "no_text": "There is no text in this document.",
    "too_big": "The document is too complicated to be read.",
    "broken": "The document is broken and cannot be read.",
}
_MARKUP = ("text/html", "application/xhtml+xml", "text/xml", "application/xml", "+xml")


@dataclass(frozen=True, slots=True)
class Extracted:
    """`text` of at most MAX_CHARS characters, Markdown where the document was a page; `method`: how it was got;
    `pages`: of a PDF that were read, 0 for others; `truncated`: the document has more.
    """

    title: str
    text: str
    method: str
    pages: int = 0
    truncated: bool = False


class _Died(Exception):  # noqa: N818
    """The worker did not survive the document."""


def require_parsers() -> None:
    """ToolSetupError if a package is missing."""
    for name in ("trafilatura", "pypdf", "protego"):
        if importlib.util.find_spec(name) is None:
            raise ToolSetupError(f"the browser needs the package {name}: pip install 'arpo[browser]'")


class _Worker:
    """One process and the socket to it."""

    def __init__(self, memory_mb: int) -> None:
        self.jobs, self.rss = 0, 0
        self.process, self._socket = start(Path(__file__).with_name("worker.py"), memory_mb)
        self._socket.setblocking(False)

    async def ready(self) -> None:
        """Wait until it has imported its parsers. RuntimeError if it cannot."""
        try:
            async with asyncio.timeout(_START):
                said = await self._hear()
        except (TimeoutError, _Died) as error:
            raise RuntimeError(f"the process for reading documents did not start within {_START:g} s") from error
        if "failed" in said:
            raise RuntimeError(f"the process for reading documents cannot start: {said['failed']}")

    async def ask(self, request: dict[str, Any], body: bytes, seconds: float) -> dict[str, Any]:
        """Its answer. Raises _Died if there is none; the worker is of no more use then."""
        loop = asyncio.get_running_loop()
        header = json.dumps(request | {"size": len(body)}).encode()
        try:
            async with asyncio.timeout(seconds):
                await loop.sock_sendall(self._socket, struct.pack(">I", len(header)) + header + body)
                answer = await self._hear()
        except (TimeoutError, OSError, ValueError) as error:
            raise _Died from error
        self.jobs, self.rss = self.jobs + 1, int(answer.get("rss", 0))
        return answer

    async def _hear(self) -> dict[str, Any]:
        (size,) = struct.unpack(">I", await self._receive(4))
        if size > 13 * MAX_CHARS:  # a character is twelve bytes of JSON at the most
            raise _Died
        said = json.loads(await self._receive(size))
        if not isinstance(said, dict):
            raise _Died
        return said

    async def _receive(self, size: int) -> bytes:
        loop, data = asyncio.get_running_loop(), bytearray()
        while len(data) < size:
            more = await loop.sock_recv(self._socket, min(size - len(data), 1 << 18))
            if not more:
                raise _Died
            data += more
        return bytes(data)

    def end(self) -> None:
        self._socket.close()
        self.process.kill()


class Extractor:
    """Up to `workers` processes, started when they are needed. Usable from event loops one after another."""

    def __init__(self, *, workers: int = 2, memory_mb: int = 1024, timeout: float = 10.0, max_pages: int = 50) -> None:
        self._memory_mb, self._timeout, self._max_pages = memory_mb, timeout, max_pages
        self._places = Turns(workers)
        self._idle: list[_Worker] = []
        self._ended: list[subprocess.Popen[bytes]] = []

    async def extract(self, body: bytes, content_type: str, charset: str) -> Extracted:
        """Title and text of a document. Raises PageError if there are none to be had, RuntimeError if no process can
        be started.
        """
        kind = _kind(content_type)
        request = {"kind": kind, "charset": charset, "max_chars": MAX_CHARS, "max_pages": self._max_pages}
        plain = kind == "html" and not content_type.endswith("html") and content_type != "application/xhtml+xml"
        answer = await self._ask(request | {"plain": plain}, body)
        if kind == "html" and not plain and answer.get("error") in ("died", "broken", "too_big"):
            answer = await self._ask(request | {"plain": True}, body)
        if "error" in answer:
            word = str(answer["error"])
            raise PageError("content", _SENTENCES.get(word, _SENTENCES["too_big"]), lasting=word != "died")
        return Extracted(
            harmless(str(answer["title"])),
            harmless(str(answer["text"]))[:MAX_CHARS],
            str(answer["method"])[:20],
            int(answer.get("pages", 0)),
            bool(answer["truncated"]),
        )

    async def _ask(self, request: dict[str, Any], body: bytes) -> dict[str, Any]:
        """One worker's answer, or the error "died"."""
        with off_the_clock():
            await self._places.enter()
        try:
            worker = await self._worker()
            kept = False
            try:
                answer = await worker.ask(request, body, self._timeout)
                kept = worker.jobs < _JOBS and worker.rss < _GROWN * self._memory_mb
            except _Died:
                answer = {"error": "died"}
            finally:
                self._put_back(worker, kept)
            return answer
        finally:
            self._places.leave()

    async def _worker(self) -> _Worker:
        """One that waits, or a new one."""
        self._ended = [process for process in self._ended if process.poll() is None]
        while self._idle:
            worker = self._idle.pop()
            if worker.process.poll() is None:
                return worker
            worker.end()
        worker = _Worker(self._memory_mb)
        try:
            with off_the_clock():
                await worker.ready()
        except BaseException:
            self._put_back(worker, False)
            raise
        return worker

    def _put_back(self, worker: _Worker, kept: bool) -> None:
        if kept:
            self._idle.append(worker)
        else:
            worker.end()
            self._ended.append(worker.process)

    async def close(self) -> None:
        """End all processes and wait until they are gone."""
        for worker in self._idle:
            self._put_back(worker, False)
        self._idle = []
        for process in self._ended:
            await asyncio.to_thread(process.wait)
        self._ended = []


def _kind(content_type: str) -> str:
    if content_type == "application/pdf":
        return "pdf"
    return "html" if content_type.endswith(_MARKUP) else "text"
