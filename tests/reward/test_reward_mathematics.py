"""The processes that compare formulas: real ones, late ones, killed ones, and what is left of them."""

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from arpo.errors import VerifierError
from arpo.reward import mathematics, score_answer, score_many
from arpo.reward.hybrid import Question
from arpo.reward.mathematics import MathematicsSettings
from arpo.reward.mathematics_pool import Counters, Pool

HOSTILE = "9^{9^{9^9}}"
SLOW = "\\sum_{n=1}^{1000000000} \\sin(n^{n})"
NUMBERS = itertools.count(100)


def easy() -> Question:
    """Something true that nobody has asked before."""
    number = next(NUMBERS)
    return Question(str(number), f"\\frac{{{2 * number}}}{{2}}")


@pytest.fixture(autouse=True)
def _as_it_was():
    yield
    mathematics.configure(MathematicsSettings())


@pytest.fixture(scope="module")
def pool():
    """One worker, whose process stays the same as long as nothing kills it."""
    shared = Pool(1, 1024, Counters())
    yield shared
    shared.close()


def gone(pid: int, seconds: float = 20.0) -> bool:
    """Whether a process that is not ours ends within that time."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.02)
    return False


def test_a_worker_answers_again_and_again(pool):
    assert pool.equal(easy(), 30.0)
    (worker,) = pool._all
    assert not pool.equal(Question("2", "3"), 30.0)
    assert pool.equal(Question("x+1", "1+x"), 30.0)
    assert pool._all == [worker]
    assert pool.counters.calls == 3


def test_what_is_known_is_not_asked_again(pool):
    question = easy()
    pool.equal(question, 30.0)
    before = pool.counters.copy()
    assert pool.equal(question, 30.0)
    assert pool.counters.calls == before.calls
    assert pool.counters.remembered == before.remembered + 1


def test_a_late_worker_is_killed_and_replaced(pool):  # 47
    assert pool.equal(easy(), 30.0)
    (late,) = pool._all
    before = pool.counters.copy()
    started = time.monotonic()
    assert not pool.equal(Question("7", HOSTILE), 0.7)
    assert time.monotonic() - started < 10.0
    assert pool.counters.timeouts == before.timeouts + 1
    assert late.process.returncode == -signal.SIGKILL, "killed, and reaped"
    assert pool.equal(easy(), 30.0)
    assert pool.counters.crashes == before.crashes


def test_a_worker_that_died_while_nobody_asked_is_replaced_silently(pool):
    assert pool.equal(easy(), 30.0)
    (worker,) = pool._all
    before = pool.counters.copy()
    os.kill(worker.process.pid, signal.SIGKILL)
    worker.process.wait()
    assert pool.equal(easy(), 30.0)
    assert pool.counters.crashes == before.crashes


def test_a_question_over_which_two_workers_die_is_to_blame(pool):
    """What kills workers here is the test; a parser that overflows its stack does the same."""
    before = pool.counters.copy()
    ended = threading.Event()
    killed: list[int] = []

    def kill_who_works_on_it() -> None:
        while not ended.is_set():
            for worker in list(pool._all):
                busy = worker not in pool._idle and worker.process.pid not in killed
                if busy and len(killed) < 2 and pool.counters.calls > before.calls + len(killed):
                    killed.append(worker.process.pid)
                    os.kill(worker.process.pid, signal.SIGKILL)
            time.sleep(0.01)

    killer = threading.Thread(target=kill_who_works_on_it)
    killer.start()
    try:
        assert not pool.equal(Question("8", SLOW), 60.0)
    finally:
        ended.set()
        killer.join()
    assert pool.counters.crashes == before.crashes + 2
    assert pool.equal(easy(), 30.0)


def test_waiting_for_a_worker_does_not_count(pool):
    pool.equal(easy(), 30.0)
    with ThreadPoolExecutor(2) as threads:
        late = threads.submit(pool.equal, Question("7", HOSTILE + "+1"), 1.5)
        time.sleep(0.2)
        assert threads.submit(pool.equal, easy(), 30.0).result()
        assert not late.result()


def test_limits_of_a_worker(pool):
    pool.equal(easy(), 30.0)
    limits = Path(f"/proc/{pool._all[0].process.pid}/limits").read_text()
    rows = {line[:26].strip(): line[26:].split() for line in limits.splitlines()}
    assert rows["Max address space"][:2] == [str(1024 << 20)] * 2
    assert rows["Max file size"][:2] == ["0", "0"]
    environment = Path(f"/proc/{pool._all[0].process.pid}/environ").read_bytes()
    assert b"PYTEST" not in environment


def test_no_worker_can_be_started(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    broken = Pool(1, 1024, Counters())
    with pytest.raises(VerifierError, match="did not start"):
        broken.equal(easy(), 5.0)
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(VerifierError, match="can be started"):
        broken.equal(easy(), 5.0)
    assert broken._places == 1, "its place is free again"


def test_threads_and_the_event_loop_share_the_workers():
    mathematics.configure(MathematicsSettings(workers=2, seconds=60))
    pairs = [(f"\\sqrt{{{n * n}}}", str(n + n % 2)) for n in range(12)]
    wanted = [float(n % 2 == 0) for n in range(12)]
    assert score_many(pairs, kinds=["math"] * 12) == wanted
    assert len(mathematics._this.pool._all) == 2

    async def all_at_once() -> list[float]:
        return await asyncio.gather(*(asyncio.to_thread(score_answer, *pair, kind="math") for pair in pairs))

    assert asyncio.run(all_at_once()) == wanted


def test_a_long_answer_is_not_asked_about():
    mathematics.configure(MathematicsSettings(max_chars=10))
    before = mathematics.counters()
    assert score_answer("1+1+1+1+1+1+1+x", "7+x") == 0.0
    assert mathematics.counters().too_long == before.too_long + 1


def test_a_forked_child_has_workers_of_its_own():
    assert mathematics.equal(easy())
    mine = {worker.process.pid for worker in mathematics._this.pool._all}
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            right = mathematics.equal(easy()) and mathematics.equal(easy())
            pids = {worker.process.pid for worker in mathematics._this.pool._all}
            os.write(writing, f"{right} {len(pids & mine)} {pids.pop()}".encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    right, shared, pid = os.read(reading, 100).decode().split()
    os.close(reading)
    assert (right, shared) == ("True", "0")
    assert gone(int(pid))
    assert mathematics.equal(easy()), "the parent's go on"
    assert mine == {worker.process.pid for worker in mathematics._this.pool._all}


PARENT = """
import sys, threading, time
from arpo.reward import mathematics
from arpo.reward.hybrid import Question
from arpo.reward.mathematics import MathematicsSettings

mathematics.configure(MathematicsSettings(workers=2, seconds=300))
threading.Thread(target=mathematics.equal, args=(Question("7", sys.argv[1]),), daemon=True).start()
assert mathematics.equal(Question("2", "1+1"))
while mathematics.counters().calls < 2:
    time.sleep(0.01)
time.sleep(0.3)
print(*(worker.process.pid for worker in mathematics._this.pool._all), flush=True)
time.sleep(float(sys.argv[2]))
"""


@pytest.mark.parametrize("lasts", [0, 300])
def test_nothing_outlives_its_parent(lasts):
    """Neither the worker that computes, in C code that no thread interrupts, nor the one that waits."""
    command = [sys.executable, "-c", PARENT, HOSTILE, str(lasts)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        if lasts:
            parent.kill()
    assert len(pids) == 2
    assert all(gone(pid) for pid in pids)


REFUSED = """
import importlib.util, os, socket, subprocess, sys
import sympy
spec = importlib.util.spec_from_file_location("worker", sys.argv[1])
worker = importlib.util.module_from_spec(spec)
spec.loader.exec_module(worker)
sys.addaudithook(worker.refuse)
open(sys.argv[1]).close()
refused = 0
for attempt in (
    lambda: os.system("touch ran"),
    lambda: open("ran", "w"),
    lambda: subprocess.run(["true"]),
    lambda: os.remove("here"),
    lambda: os.fork(),
    lambda: os.posix_spawn("/bin/true", ["true"], {}),
    lambda: os.mkdir("ran"),
    lambda: socket.create_connection(("127.0.0.1", 9)),
    lambda: sympy.sympify("__import__('os').system('touch ran')"),
):
    try:
        attempt()
    except (RuntimeError, sympy.SympifyError) as error:
        refused += "is refused" in str(error)
print(refused)
"""


def test_should_a_parser_ever_evaluate_text_nothing_leaves_the_worker(tmp_path):
    (tmp_path / "here").touch()
    script = Path(mathematics.__file__).with_name("mathematics_worker.py")
    done = subprocess.run(
        [sys.executable, "-c", REFUSED, script], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.stdout.strip() == "9", done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["here"]
