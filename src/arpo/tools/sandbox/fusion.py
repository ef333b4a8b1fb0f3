"""Code run by a SandboxFusion service, over its HTTP interface.

Code goes to `/run_code` as a small program that seeds, runs it and shows its last value; code that has earlier cells
goes to `/run_jupyter`, which runs cells in one kernel. How strictly code is kept apart is the service's doing: its
`isolation: none`, the default of a local installation, keeps nothing apart.

An answer of the service about the code is a result. No connection, no answer in time and the statuses of an overloaded
server raise TransientError, everything else that is no answer is INFRA_ERROR; neither is text that a model sees.
"""

import asyncio
import base64
import json
import re
import time
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

import httpx

from arpo.retry import retry_after
from arpo.tools.base import TransientError
from arpo.tools.results import cap
from arpo.tools.sandbox.base import ExecLimits, ExecRequest, ExecResult, ExecStatus, SandboxCaps
from arpo.tools.sandbox.notebook import error_line, seeds
from arpo.tools.sandbox.values import show_last_value

_TRANSIENT = (429, 500, 502, 503, 504)
_LARGEST = 16 << 20
"""Bytes of an answer that are read; the service keeps 1 MiB of output."""
_GRACE = 12.0
"""Seconds after the run's time limit: the service gives a notebook ten to start."""
_CELL = "cell"
_LINE = re.compile(rf'File "{_CELL}", line (\d+)')


class FusionSandbox:
    """Runs code at a SandboxFusion service."""

    name = "fusion"
    caps = SandboxCaps(isolation="remote", files=True, network=False, processes=True, memory="process")

    def __init__(self, url: str, key: str | None = None) -> None:
        """`url`: of the service; `key`: sent as a bearer token, for services behind a gateway."""
        self.url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, httpx.AsyncClient] = WeakKeyDictionary()

    async def run(self, request: ExecRequest) -> ExecResult:
        """Run it at the service. Raises TransientError where it may help to ask again."""
        if request.earlier:
            return _of_notebook(await self._ask("/run_jupyter", _notebook(request), request.limits), request)
        return _of_program(await self._ask("/run_code", _program(request), request.limits), request)

    async def _ask(self, path: str, body: Mapping[str, Any], limits: ExecLimits) -> Mapping[str, Any]:
        """The service's answer, of which `status` is SandboxError where there is none that can be used."""
        wait = httpx.Timeout(limits.wall_s + _GRACE, connect=10.0)
        try:
            async with self._client().stream("POST", self.url + path, json=body, timeout=wait) as response:
                data = await _read(response)
        except (httpx.TransportError, httpx.DecodingError) as error:
            raise TransientError(f"{self.url}{path}: {type(error).__name__}: {error}") from error
        if response.status_code in _TRANSIENT:
            raise TransientError(
                f"{self.url}{path}: HTTP {response.status_code}",
                retry_after(response.headers.get("Retry-After"), time.time()),
            )
        if response.status_code != 200 or data is None:
            return _unusable(f"{self.url}{path}: HTTP {response.status_code}, more than can be read, or no answer")
        return _parsed(data)

    def _client(self) -> httpx.AsyncClient:
        """One per event loop, which its connections belong to."""
        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            self._clients[loop] = httpx.AsyncClient(headers=self._headers, trust_env=False)
        return self._clients[loop]

    async def health(self) -> str:
        """Whether 6 * 7 is 42 there."""
        try:
            result = await self.run(ExecRequest(code="6 * 7"))
        except TransientError as error:
            return f"no answer: {error}; check that the service runs and that `url` is right"
        if result.stdout.strip() == "42":
            return ""
        return f"{self.url}: 6 * 7 gave {result.stdout or result.error!r}; check that `url` is a SandboxFusion service"

    async def close(self) -> None:
        """Close the connections of the running loop; those of loops that are gone are gone with them."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.aclose()


async def _read(response: httpx.Response) -> bytes | None:
    """The body; None if it is larger than is read."""
    data = bytearray()
    async for chunk in response.aiter_bytes():
        data += chunk
        if len(data) > _LARGEST:
            return None
    return bytes(data)


def _unusable(why: str) -> Mapping[str, Any]:
    return {"status": "SandboxError", "message": why}


def _parsed(data: bytes) -> Mapping[str, Any]:
    try:
        answer = json.loads(data)
    except (ValueError, RecursionError):
        answer = None
    return answer if isinstance(answer, dict) else _unusable("the service's answer is no JSON object")


def _program(request: ExecRequest) -> dict[str, Any]:
    """The code as a string, so that its lines keep their numbers and it may begin with a future import."""
    code = ascii(show_last_value(request.code))
    program = f'{seeds(request)}\nexec(compile({code}, "{_CELL}", "exec"), {{"__name__": "__main__"}})\n'
    return {
        "language": "python",
        "code": program,
        "run_timeout": request.limits.wall_s,
        "memory_limit_MB": request.limits.memory_mb,
        "stdin": request.stdin.decode(errors="replace"),
        "files": _files(request),
    }


def _notebook(request: ExecRequest) -> dict[str, Any]:
    return {
        "cells": [seeds(request), *request.earlier, request.code],
        "total_timeout": request.limits.wall_s,
        "files": _files(request),
    }


def _files(request: ExecRequest) -> dict[str, str]:
    return {name: base64.b64encode(content).decode() for name, content in request.files.items()}


def _of_program(answer: Mapping[str, Any], request: ExecRequest) -> ExecResult:
    run = answer.get("run_result")
    if not isinstance(run, dict) or answer.get("status") not in ("Success", "Failed"):
        return _failed(answer)
    stdout, stderr = _text(run.get("stdout")), _text(run.get("stderr"))
    if run.get("status") == "TimeLimitExceeded":
        return _result(request, ExecStatus.TIMEOUT, stdout, stderr, run)
    if run.get("status") != "Finished":
        return _failed(answer)
    code = run.get("return_code")
    if code == 0:
        return _result(request, ExecStatus.OK, stdout, stderr, run)
    stderr, error = _split(stderr)
    status = ExecStatus.OOM if error.startswith("MemoryError") else ExecStatus.ERROR
    many_lines = "\n" in request.code.strip()
    shown = error if many_lines else re.sub(r" \(line \d+\)$", "", error)
    return _result(request, status, stdout, stderr, run, shown or f"the process ended with code {code}")


def _split(stderr: str) -> tuple[str, str]:
    """What was written before the traceback, and the exception in one line."""
    before, mark, traceback = stderr.rpartition("Traceback (most recent call last):\n")
    if not mark:
        return stderr, ""
    lines = [line for line in traceback.splitlines() if line and not line.startswith(" ")]
    numbers = _LINE.findall(traceback)
    error = lines[0] if lines else ""
    return before, f"{error} (line {numbers[-1]})" if numbers and error else error


def _of_notebook(answer: Mapping[str, Any], request: ExecRequest) -> ExecResult:
    driver, cells = answer.get("driver"), answer.get("cells")
    if not isinstance(driver, dict):
        return _failed(answer)
    if driver.get("status") == "TimeLimitExceeded":
        return _result(request, ExecStatus.TIMEOUT, "", "", driver)
    if answer.get("status") != "Success" or not isinstance(cells, list) or len(cells) != len(request.earlier) + 2:
        return _failed(answer)
    cell = cells[-1] if isinstance(cells[-1], dict) else {}
    stdout, stderr = _text(cell.get("stdout")), _text(cell.get("stderr"))
    if cell.get("error"):
        return _result(request, ExecStatus.ERROR, stdout, stderr, driver, _cell_error(cell["error"]))
    return _result(request, ExecStatus.OK, stdout, stderr, driver, value=_shown(cell.get("display")))


def _cell_error(errors: Any) -> str:
    first = errors[0] if isinstance(errors, list) and isinstance(errors[0], dict) else {}
    traceback = first.get("traceback")
    lines = map(_text, traceback) if isinstance(traceback, list) else ()
    return error_line(_text(first.get("ename")) or "Error", _text(first.get("evalue")), lines)


def _shown(display: Any) -> str | None:
    """The last thing shown that has a text."""
    texts = [one["text/plain"] for one in display or () if isinstance(one, dict) and "text/plain" in one]
    return _text(texts[-1]) if texts else None


def _failed(answer: Mapping[str, Any]) -> ExecResult:
    why = _text(answer.get("message")) or f"status {answer.get('status')!r} without a result"
    return ExecResult(status=ExecStatus.INFRA_ERROR, error=cap(why, 500), backend=FusionSandbox.name)


def _result(
    request: ExecRequest,
    status: ExecStatus,
    stdout: str,
    stderr: str,
    run: Mapping[str, Any],
    error: str = "",
    value: str | None = None,
) -> ExecResult:
    most, seconds = request.limits.output_bytes, run.get("execution_time")
    return ExecResult(
        status=status,
        stdout=cap(stdout, most),
        stderr=cap(stderr, most),
        error=error,
        value=None if value is None else cap(value, most),
        truncated=max(len(stdout), len(stderr)) > most,
        wall_s=float(seconds) if isinstance(seconds, int | float) else 0.0,
        backend=FusionSandbox.name,
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
