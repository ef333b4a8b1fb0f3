"""Real processes, really killed: a run loses at most one step and never has a row twice."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from arpo.train.runfolder import read_rows

STEPS = 4
TINY = (
    "data.tasks=40",
    "tools.1.backend=monty",  # answers at once: in single precision the order of answers shows in the last digits
    "rollout.total=3",
    "rollout.initial=2",
    "rollout.max_tokens=160",
    "entropy.window=4",
    "optim.lr=1e-4",
    "train.prompts=2",
    "train.checkpoint_every=1",
    f"train.steps={STEPS}",
)
PACED = ("timing_s/", "throughput/", "seconds", "latency", "waited_s", "in_flight", "engine/idle_share")


def start(out: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "arpo", "train", *TINY, f"run.out={out}", "run.name=r", "--quiet", *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


def rows(out: Path) -> list[dict[str, float]]:
    """What the metrics file says, every line of it, without what depends on the machine's pace."""
    lines = (out / "r" / "metrics.jsonl").read_text().splitlines()
    parsed = [json.loads(line) for line in lines]
    return [{k: v for k, v in row.items() if not any(word in k for word in PACED)} for row in parsed]


def written(out: Path) -> int:
    return len(read_rows(out / "r" / "metrics.jsonl"))


def wait_for(condition: object, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 400
    while not condition() and process.poll() is None:  # type: ignore[operator]
        assert time.monotonic() < deadline, "the run makes no progress"
        time.sleep(0.002)


@pytest.mark.slow
def test_killed_anywhere_and_resumed_it_is_the_uninterrupted_run(tmp_path: Path) -> None:
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    process = start(straight)
    assert process.wait() == 0, process.stderr.read() if process.stderr else ""
    rng = random.Random(7)
    for target in (1, 2):
        process = start(killed, "--resume")
        wait_for(lambda target=target: written(killed) >= target, process)
        time.sleep(rng.random() * 0.25)  # somewhere in the next step, its row or its checkpoint
        process.kill()
        process.wait()
        assert written(killed) < STEPS, "the run was over before it was killed"
    steps_before = written(killed)
    process = start(killed, "--resume")
    assert process.wait() == 0, process.stderr.read() if process.stderr else ""
    assert [row["step"] for row in rows(killed)] == list(range(1, STEPS + 1))
    assert rows(killed) == rows(straight)
    assert sorted(f.name for f in (killed / "r" / "rollouts").iterdir()) == [
        f"step_{step:06d}.parquet" for step in range(1, STEPS + 1)
    ]
    assert steps_before >= 2


@pytest.mark.slow
def test_ctrl_c_once_finishes_the_step_and_saves(tmp_path: Path) -> None:
    process = start(tmp_path, "train.steps=100000")
    wait_for(lambda: written(tmp_path) >= 1, process)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=300) == 130
    newest = (tmp_path / "r" / "checkpoints" / "latest").read_text().strip()
    assert newest == f"step_{written(tmp_path)}"
    assert not list((tmp_path / "r" / "checkpoints").glob(".*"))
