"""The launcher as a program: what it prints runs as it stands, and what it starts is waited for."""

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from arpo.cli.app import run as arpo
from arpo.config.load import load
from arpo.config.schema import Config
from arpo.errors import ConfigError
from arpo.verl import launch
from arpo.verl.command import Cluster, arguments, listing
from arpo.verl.overrides import Place, translate

PLACE = Place(Path("/runs/it's/verl"), Path("/runs/it's/verl/train.parquet"), None, 100, gpus=2, cpus=32)


def pasted(lines: Sequence[str], folder: Path) -> list[str]:
    """What the command is given if Bash runs the listing."""
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nprintf "%s\\0" "$@" > {shlex.quote(str(folder / "given"))}\n')
    python.chmod(0o755)
    script = "\n".join(lines).replace(shlex.quote(sys.executable), shlex.quote(str(python)))
    subprocess.run(["bash", "-euc", script], check=True, timeout=120)
    return (folder / "given").read_text().split("\0")[:-1]


def test_the_listing_is_a_command_that_bash_runs(tmp_path: Path) -> None:
    config = load([], ["run.name=it's $5 `x`"], environ={}).config
    translation, extra = translate(config, PLACE), ["trainer.n_gpus_per_node=4", "+a='b c'"]
    given = pasted(list(listing(translation, extra, Cluster())), tmp_path)
    assert given == ["-m", "verl.trainer.main_ppo", *arguments(translation, extra)]
    assert [text for text in given if text.startswith("trainer.n_gpus_per_node")] == ["trainer.n_gpus_per_node=4"]
    assert given[-1] == "+a='b c'"


def test_every_override_has_its_origin_beside_it() -> None:
    lines = list(listing(translate(Config(), PLACE), ["a.b=1"], Cluster()))
    body = lines[lines.index("overrides=(") + 1 : lines.index(")")]
    assert all("  # " in line for line in body)
    assert "  actor_rollout_ref.rollout.n=16  # rollout.total" in body
    assert "  ray_kwargs.ray_init.num_cpus=32  # the launcher: TransferQueue waits for CPUs" in body
    assert body[-1] == "  a.b=1  # given after --"
    assert any(line.startswith("# not carried over: optim.packing: ") for line in lines)


def test_a_running_ray_is_found_by_its_address() -> None:
    assert Cluster("auto").environment == {"RAY_ADDRESS": "auto"}
    assert Cluster("ray://head:10001").command(["a=1"])[1:] == ["-m", "verl.trainer.main_ppo", "a=1"]
    submitted = Cluster("http://head:8265")
    assert submitted.environment == {}
    assert submitted.command(["a=1"])[:5] == ["ray", "job", "submit", "--address", "http://head:8265"]
    assert submitted.command(["a=1"])[-4:] == ["python", "-m", "verl.trainer.main_ppo", "a=1"]


def test_only_a_ray_of_our_own_is_told_its_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert (launch.logical_cpus(Cluster()) or 0) >= 16
    assert launch.logical_cpus(Cluster("auto")) is None
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    assert launch.logical_cpus(Cluster()) is None


SMALL = ("train.prompts=2", "data.tasks=8", "rollout.total=4", "rollout.initial=2", "tools.1.backend=monty")


def toml(folder: Path) -> Path:
    file = folder / "same.toml"
    file.write_text(f'[run]\nname = "same"\nout = "{folder / "runs"}"\n')
    return file


def test_a_dry_run_shows_the_command_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["launch", "verl", "--config", str(toml(tmp_path)), *SMALL, "--gpus", "2", "--dry-run"]
    assert arpo([*words, "--", "trainer.nnodes=3"]) == 0
    shown = capsys.readouterr().out
    assert f"# {tmp_path}/runs/same/verl/train.parquet: 8 training tasks" in shown
    assert "  trainer.nnodes=3  # given after --" in shown
    assert "  trainer.n_gpus_per_node=2  # --gpus" in shown
    assert {file.name for file in tmp_path.iterdir()} == {"same.toml"}
    assert "verl" not in sys.modules
    assert "ray" not in sys.modules


def test_without_verl_nothing_is_started_and_the_extra_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert arpo(["launch", "verl", "--config", str(toml(tmp_path)), *SMALL, "--gpus", "2"]) == 2
    assert 'pip install "arpo[verl]"' in capsys.readouterr().err
    assert {file.name for file in tmp_path.iterdir()} == {"same.toml"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--gpuz", "2"], "unknown option --gpuz"),
        (["loss.type=aepo", "--dry-run"], "loss.type"),
        (["rollout.totl=3", "--dry-run"], "did you mean rollout.total"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    assert arpo(["launch", "verl", "--config", str(toml(tmp_path)), *SMALL, *words]) == 2
    assert said in capsys.readouterr().err


def test_a_run_folder_that_is_there_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "runs" / "same").mkdir(parents=True)
    (tmp_path / "runs" / "same" / "config.toml").write_text("")
    assert arpo(["launch", "verl", "--config", str(toml(tmp_path)), *SMALL, "--dry-run"]) == 2
    assert "--overwrite" in capsys.readouterr().err


def test_another_verl_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for version, accepted in (("0.9.1", True), ("0.9.2.dev0", True), ("0.9.0", False), ("0.10.0", False)):
        monkeypatch.setattr("importlib.metadata.version", lambda name, found=version: found)
        if accepted:
            assert launch.check_version() == version
        else:
            with pytest.raises(ConfigError, match=r"0\.9\.1"):
                launch.check_version()


def test_a_machine_without_a_gpu_is_refused_in_plain_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ConfigError, match="no CPU platform for the actor"):
        launch.check_devices(1)


def test_exit_codes_pass_through() -> None:
    def code(program: str) -> int:
        return launch.run([sys.executable, "-c", program], {"GIVEN": "3"})

    assert code("import os; raise SystemExit(int(os.environ['GIVEN']))") == 3
    assert code("import os, signal; os.kill(os.getpid(), signal.SIGTERM)") == 128 + signal.SIGTERM


WAITS = """
import pathlib, signal, sys, time
def stop(number, frame):
    pathlib.Path(sys.argv[1], 'closed').touch()
    raise SystemExit(7)
signal.signal(signal.SIGINT, stop)
pathlib.Path(sys.argv[1], 'ready').touch()
time.sleep(600)
"""
LAUNCHES = """
import sys
from arpo.verl.launch import run
raise SystemExit(run([sys.executable, '-c', sys.argv[2], sys.argv[1]], {}))
"""


def test_ctrl_c_reaches_the_job_and_its_exit_code_comes_back(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", LAUNCHES, str(tmp_path), WAITS], env=dict(os.environ))
    deadline = time.monotonic() + 300
    while not (tmp_path / "ready").exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert process.wait(300) == 7
    assert (tmp_path / "closed").exists()
