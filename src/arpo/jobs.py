"""Several of this package's own commands, run side by side and said aloud.

Whoever reads the output can make every figure again by hand. Each command is a process with one thread, a few at a
time; one that left its mark in an earlier run is not run again, and one that was interrupted is taken up where it
stopped.
"""

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from arpo.errors import ArpoError
from arpo.train.progress import Reporter
from arpo.train.signals import StopRequest, graceful

TRAINING_ENDED = "finished"
"""A file in a run folder whose training used up its budget: `arpo train` ends with 0 there."""
_INTERRUPTED = (75, 130)


@dataclass(frozen=True)
class Job:
    """One command. It is not run if `done` exists."""

    arguments: tuple[str, ...]
    done: Path


class JobError(ArpoError):
    """A command failed."""


def run(jobs: Sequence[Job], reporter: Reporter, at_once: int | None = None) -> int:
    """Run what is not done, `at_once` commands at a time (all of them); the first code of those that were interrupted.

    Ctrl-C reaches the commands from the terminal, SIGTERM is passed on: each finishes its step and saves, and no
    further one is started. Raises JobError if a command fails.
    """
    waiting = [job for job in jobs if not job.done.exists()]
    if not waiting:
        return 0
    with graceful(lambda _: None) as stop, ThreadPoolExecutor(at_once or len(waiting)) as threads:
        codes = list(threads.map(lambda job: _one(job, reporter, stop), waiting))
    for job, code in zip(waiting, codes, strict=True):
        if code not in (0, *_INTERRUPTED):
            raise JobError(f"`arpo {shlex.join(job.arguments)}` failed with exit code {code}; its message stands above")
    return next((code for code in codes if code), 0)


def _one(job: Job, reporter: Reporter, stop: StopRequest) -> int:
    if stop:
        return stop.exit_code
    reporter.say(f"$ arpo {shlex.join(job.arguments)}")
    code = _wait(_start(job, reporter), stop)
    if code == 0 and job.done.name == TRAINING_ENDED:
        job.done.touch()
    return code


def _start(job: Job, reporter: Reporter) -> subprocess.Popen[str]:
    """A child with one thread, whose lines are passed on as they come."""
    process = subprocess.Popen(
        [sys.executable, "-m", "arpo", *job.arguments],
        env=os.environ | {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1"},
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    threading.Thread(target=_pass_on, args=(process, reporter), daemon=True).start()
    return process


def _pass_on(process: subprocess.Popen[str], reporter: Reporter) -> None:
    for line in process.stderr or ():
        reporter.console.print(line.rstrip(), markup=False, soft_wrap=True)


def _wait(process: subprocess.Popen[str], stop: StopRequest) -> int:
    """The exit code; 128 + signal if one killed it."""
    told = False
    while (code := process.poll()) is None:
        if stop.signal == signal.SIGTERM and not told:
            process.terminate()
            told = True
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.2)
    return 128 - code if code < 0 else code
