"""Real processes by the real launcher: two train what one trains, whole or in shards; killed, stopped, taken up again.

Weights are float64, in which not even the company that a sequence is drawn in changes a token: so all that may differ
is the last digit of a sum that was added up in another order.
"""

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from launcher import DDP, FSDP, launched, one_thread
from safetensors.torch import load_file

from arpo.config.load import load
from arpo.config.wire import build_plan, build_setup
from arpo.data.trees import read_trees
from arpo.train.loop import train
from arpo.train.progress import Reporter
from arpo.train.runfolder import RunFolder, read_rows

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
EQUAL = 1e-12
"""Relative distance of all weights as one vector; one unit in the last place is 2e-16."""
LIMIT_S = 400
"""For one run, however busy the machine is; on an idle one it takes ten seconds."""
STEPS = 3
TINY = (
    "model.device=cpu",
    "model.dtype=float64",
    "data.tasks=40",
    "tools.1.backend=monty",
    "rollout.total=3",
    "rollout.initial=2",
    "rollout.max_tokens=100",
    "entropy.window=4",
    "loss.entropy_bonus=0.01",
    "optim.lr=1e-3",
    "optim.micro_tokens=400",
    "train.prompts=3",  # two for one process, one for the other
    "train.keep_checkpoints=99",
    "train.eval_every=3",
    "train.eval_tasks=3",
)
OWN = ("timing_s/", "throughput/", "seconds", "latency", "waited_s", "in_flight", "engine/", "cache_hit")
"""Of the machine's pace, and of what each process has cached for itself."""


def settings(out: Path, *more: str) -> list[str]:
    return [*TINY, f"run.out={out}", "run.name=r", *more]


def launch(out: Path, kind: tuple[str, ...], *more: str) -> subprocess.Popen[str]:
    """`accelerate launch` with two processes; what they say goes to a file beside the run."""
    command = launched(kind, [*settings(out, *more), "--resume"])
    out.mkdir(exist_ok=True)
    with (out / "said").open("w") as said:
        return subprocess.Popen(command, env=one_thread(), stdout=said, stderr=subprocess.STDOUT, text=True)


def alone(out: Path, *more: str) -> Path:
    """The same in this process."""
    config = load([], settings(out, *more)).config
    with Reporter("r", mute=True) as reporter, RunFolder.open(out / "r", {}, resume=(out / "r").exists()) as folder:
        train(build_setup(config, reporter.warn), build_plan(config), folder, reporter)
    return out / "r"


def finish(process: subprocess.Popen[str], out: Path) -> tuple[int, str]:
    try:
        process.wait(LIMIT_S)
    finally:
        if process.poll() is None:
            process.terminate()  # the launcher ends its processes
    return process.returncode, (out / "said").read_text()


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str], out: Path) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert process.poll() is None, (out / "said").read_text()
        assert time.monotonic() < deadline, "the run makes no progress"
        time.sleep(0.01)


def whole(out: Path, step: int) -> Callable[[], bool]:
    return lambda: (out / "r" / "checkpoints" / f"step_{step}" / "manifest.json").exists()


def workers(process: subprocess.Popen[str]) -> dict[int, int]:
    """Process ids by rank."""
    found = {}
    for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
        facts = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
        found |= {int(fact.removeprefix(b"RANK=")): int(child) for fact in facts if fact.startswith(b"RANK=")}
    return found


def distance(one: Path, other: Path, step: int) -> float:
    files = [load_file(run / "checkpoints" / f"step_{step}" / "model.safetensors") for run in (one, other)]
    assert files[0].keys() == files[1].keys()
    a, b = (torch.cat([w[name].flatten() for name in sorted(w)]) for w in files)
    assert a.dtype == torch.float64
    return float((a - b).norm() / a.norm())


def rows(run: Path) -> list[dict[str, float]]:
    found = read_rows(run / "metrics.jsonl")
    return [{k: v for k, v in row.items() if not any(word in k for word in OWN)} for row in found]


def same_trees(one: Path, other: Path, step: int) -> bool:
    """Token for token, group after group, with rewards."""
    both = [read_trees(run / "rollouts" / f"step_{step:06d}.parquet") for run in (one, other)]
    facts = [
        [(t.task_id, t.rewards, [s.tokens.tolist() for s in t.segments]) for t in trees]  # per process order, too
        for trees in both
    ]
    return facts[0] == facts[1]


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one process trains; some steps more than any other run here makes."""
    return alone(tmp_path_factory.mktemp("one"), "train.steps=5")


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("two")
    code, said = finish(launch(out, DDP, f"train.steps={STEPS}", "train.processes=2", "train.sharded=false"), out)
    assert code == 0, said
    assert said.count("step 1 (") == 1, "one process talks"
    return out / "r"


def test_two_processes_train_what_one_trains_and_one_takes_up_what_they_saved(
    one: Path, two: Path, tmp_path: Path
) -> None:
    """One test, because the runs that it compares cost ten seconds each and workers of a test run share nothing."""
    moved = [load_file(two / "checkpoints" / f"step_{step}" / "model.safetensors") for step in (1, STEPS)]
    assert any(not torch.equal(moved[0][name], moved[1][name]) for name in moved[0]), "something was learnt"
    for step in range(1, STEPS + 1):
        assert distance(one, two, step) < EQUAL
        assert same_trees(one, two, step)
    _the_rows_are_those_of_one_process(one, two)
    _one_takes_up_what_two_have_saved(one, two, tmp_path)


def _the_rows_are_those_of_one_process(one: Path, two: Path) -> None:
    ours = rows(two)
    assert [row["step"] for row in ours] == [1, 2, 3]
    assert "heldout/accuracy" in ours[2]
    assert ours[2]["heldout/n"] == 3
    for mine, theirs in zip(ours, rows(one), strict=False):
        assert mine == pytest.approx(theirs, rel=1e-9, abs=1e-9)
        assert (mine["reward"], mine["num_tokens"], mine["num_tool_calls"]) == (
            theirs["reward"],
            theirs["num_tokens"],
            theirs["num_tool_calls"],
        )


def _one_takes_up_what_two_have_saved(one: Path, two: Path, tmp_path: Path) -> None:
    shutil.copytree(two, tmp_path / "r")
    shutil.rmtree(tmp_path / "r" / "checkpoints" / "step_3")
    (tmp_path / "r" / "config.toml").unlink()  # this one was written with the launcher's settings
    assert distance(one, alone(tmp_path, "train.steps=3"), 3) < EQUAL


def test_killed_in_mid_rollout_and_stopped_all_end_and_go_on(one: Path, tmp_path: Path) -> None:
    """Two processes, one of which is killed; then shards, told to stop; then whole weights again."""
    first = launch(tmp_path, DDP, "train.steps=5")
    wait_for(whole(tmp_path, 1), first, tmp_path)
    time.sleep(0.3)  # in the rollout of the second step
    os.kill(workers(first)[1], signal.SIGKILL)
    killed = time.monotonic()
    code, said = finish(first, tmp_path)
    assert code != 0
    assert time.monotonic() - killed < 120, "no timeout of a collective"
    assert re.search(r"process 1 ended without a word.*\n?.*--resume", said), said
    left = [row["step"] for row in read_rows(tmp_path / "r" / "metrics.jsonl")]
    assert left == list(range(1, len(left) + 1))
    assert len(left) < 5

    second = launch(tmp_path, FSDP, "train.steps=5")
    wait_for(whole(tmp_path, 2), second, tmp_path)
    second.send_signal(signal.SIGTERM)
    code, said = finish(second, tmp_path)
    assert code != 0
    assert "stopping after this step" in said
    steps = [row["step"] for row in read_rows(tmp_path / "r" / "metrics.jsonl")]
    assert steps == list(range(1, steps[-1] + 1))
    assert whole(tmp_path, steps[-1])(), "all stopped at one step, and it was saved"
    for step in steps:
        assert distance(one, tmp_path / "r", step) < EQUAL
        assert same_trees(one, tmp_path / "r", step)
    assert rows(tmp_path / "r") == [pytest.approx(row, rel=1e-9, abs=1e-9) for row in rows(one)[: len(steps)]]
