"""The launcher where verl is installed and no GPU is: it checks everything, then says so before Ray starts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("verl")
import torch

from arpo.errors import ConfigError
from arpo.verl import launch

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="here is a GPU, so the job would start")
PATIENCE = 500
"""Seconds for a process that imports verl: half a minute on a free core."""


def arpo(*words: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    command = [sys.executable, "-m", "arpo", "launch", "verl", *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE)


def test_without_a_gpu_the_reason_is_said_and_nothing_is_started_or_written(tmp_path: Path) -> None:
    config = tmp_path / "same.toml"
    config.write_text('[run]\nname = "same"\n[data]\ntasks = 8\n[train]\nprompts = 2\n')
    done = arpo("--config", str(config), "tools.1.backend=monty", "--gpus", "2", folder=tmp_path)
    assert done.returncode == 2
    assert "no CPU platform for the actor" in done.stderr
    assert "Traceback" not in done.stderr
    assert "overrides=(" in done.stdout
    assert [file.name for file in tmp_path.iterdir()] == ["same.toml"]


def test_the_plugin_is_seen_and_knows_what_it_registered() -> None:
    launch.check_plugin("sync", "vllm")
    launch.check_plugin("arpo", "vllm_topk")
    with pytest.raises(ConfigError, match="no trainer 'other'"):
        launch.check_plugin("other", "vllm")
    with pytest.raises(ConfigError, match="no rollout 'other'"):
        launch.check_plugin("sync", "other")


def test_the_installed_verl_is_one_that_this_was_written_for() -> None:
    assert launch.check_version().startswith("0.9.")
