"""A run on its way: its request, what was read of it so far, and until when to wait for it."""

import os
import time
from collections.abc import Callable
from typing import Any

from arpo.tools.sandbox.base import ExecRequest, ExecResult, ExecStatus
from arpo.tools.sandbox.streams import HeadTail
from arpo.tools.sandbox.verdict import Verdict

DEAF = 20.0
"""Seconds in which the loader has to start or end a run; later it is started anew."""


class Job:
    """A run on its way."""

    def __init__(self, request: ExecRequest, payload: bytes, finish: Callable[[ExecResult], None]) -> None:
        self.request = request
        self.payload = payload
        self.finish = finish
        self.tries = 0
        self.number = -1
        self.ended_by: ExecStatus | None = None
        self.over = False
        self.begin()

    def begin(self) -> None:
        """Before each try."""
        kept = self.request.limits.output_bytes
        self.outputs = (HeadTail(kept), HeadTail(kept))
        self.told = bytearray()
        self.pipes: dict[int, int] = {}
        self.started: float | None = None
        self.deadline = time.monotonic() + DEAF

    def result(self, verdict: Verdict, gone: dict[str, Any], backend: str) -> ExecResult:
        """What is told of it. `gone`: the loader's last word."""
        report = gone["report"] or {}
        out, err = self.outputs
        now = time.monotonic()
        return ExecResult(
            status=verdict.status,
            stdout=out.text(),
            stderr=err.text(),
            error=verdict.error,
            value=verdict.value,
            truncated=out.truncated or err.truncated,
            wall_s=now - (self.started or now),
            cpu_s=max(gone["cpu_s"], report.get("cpu_s", 0.0)),
            memory_mb=report.get("memory_mb", 0.0),
            backend=backend,
        )


def in_memory(data: bytes) -> int:
    """A descriptor from which the data can be read. Raises OSError."""
    descriptor = os.memfd_create("request")
    with open(descriptor, "wb", closefd=False) as file:
        file.write(data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
