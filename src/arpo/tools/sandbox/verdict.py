"""How a run ended, judged by what was seen from outside: who ended it, and how its process ended.

What the code's process told over its result pipe adds text (an error line, a value) and nothing else: a run is well
because its process ended with 0 while nobody had to end it, never because it says so.
"""

import json
import os
import signal
from dataclasses import dataclass
from typing import Any

from arpo.tools.sandbox.base import ExecLimits, ExecStatus

_OUT_OF_MEMORY = 75
_NEARLY = 0.9
"""Of the memory limit: a process that was killed above it ran out of memory."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """`error`: in one line what went wrong; `value`: of a last expression."""

    status: ExecStatus
    error: str = ""
    value: str | None = None


def judge(ended_by: ExecStatus | None, gone: dict[str, Any], told: bytes, limits: ExecLimits) -> Verdict:
    """`ended_by`: what this side ended the run for; `gone`: the loader's word; `told`: from the result pipe."""
    report = gone.get("report") or {}
    if ended_by is not None:
        return Verdict(ended_by, _words(ended_by, limits))
    if "status" not in report:
        return Verdict(ExecStatus.INFRA_ERROR, report.get("failed") or f"its first process ended ({gone.get('exit')})")
    cause = _CAUSES.get(report["cause"])
    if cause is not None:
        return Verdict(
            cause, f"more than {limits.pids} processes" if report["cause"] == "pids" else _words(cause, limits)
        )
    error, value = _heard(told)
    status: int = report["status"]
    if os.WIFSIGNALED(status):
        return _by_signal(os.WTERMSIG(status), report, limits)
    code = os.waitstatus_to_exitcode(status)
    if code == 0:
        return Verdict(ExecStatus.OK, value=value)
    if code == _OUT_OF_MEMORY and error:
        return Verdict(ExecStatus.OOM, error)
    return Verdict(ExecStatus.ERROR, error or f"the process ended with exit code {code}")


_CAUSES = {
    "memory": ExecStatus.OOM,
    "cpu": ExecStatus.TIMEOUT,
    "wall": ExecStatus.TIMEOUT,
    "pids": ExecStatus.ERROR,
    "killed": ExecStatus.KILLED,
    "files": ExecStatus.ERROR,
}


def _words(status: ExecStatus, limits: ExecLimits) -> str:
    return {
        ExecStatus.TIMEOUT: f"ended after {limits.wall_s:g} s of time or {limits.cpu_s:g} s of computing",
        ExecStatus.OOM: f"MemoryError: more than {limits.memory_mb} MiB used",
        ExecStatus.OUTPUT_LIMIT: "ended for far too much output",
        ExecStatus.KILLED: "ended from outside",
        ExecStatus.ERROR: f"more than {limits.file_mb} MiB written",
    }[status]


def _by_signal(number: int, report: dict[str, Any], limits: ExecLimits) -> Verdict:
    name = signal.Signals(number).name if number in signal.valid_signals() else str(number)
    if number == signal.SIGXCPU or (number == signal.SIGKILL and report["cpu_s"] >= limits.cpu_s):
        return Verdict(ExecStatus.TIMEOUT, _words(ExecStatus.TIMEOUT, limits))
    if number == signal.SIGKILL and report["memory_mb"] >= _NEARLY * limits.memory_mb:
        return Verdict(ExecStatus.OOM, _words(ExecStatus.OOM, limits))
    return Verdict(ExecStatus.ERROR, f"the process was ended by {name}{_MEANINGS.get(name, '')}")


_MEANINGS = {
    "SIGSEGV": " (invalid memory access, or too deep recursion)",
    "SIGABRT": " (it aborted itself)",
    "SIGSYS": " (a forbidden system call)",
    "SIGFPE": " (arithmetic error)",
    "SIGBUS": " (invalid memory access)",
    "SIGXFSZ": " (a file grew too large)",
}


def _heard(told: bytes) -> tuple[str, str | None]:
    """Error and value as told, if they are texts at all."""
    try:
        message = json.loads(told)
    except (ValueError, RecursionError):
        return "", None
    if not isinstance(message, dict):
        return "", None
    error, value = message.get("error"), message.get("value")
    clean = error.encode("utf-8", "replace").decode() if isinstance(error, str) else ""
    return " ".join(clean.split()), value.encode("utf-8", "replace").decode() if isinstance(value, str) else None
