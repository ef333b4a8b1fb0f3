"""Two steps of LoRA on the pocket policy: what changes, what is kept, what goes on and what is exported."""

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from arpo.cli import main
from arpo.config.load import load
from arpo.config.wire import build_plan, build_setup
from arpo.engine.fused import FusedForward
from arpo.engine.lora import adapted_layers, is_adapted
from arpo.engine.models import load_policy
from arpo.errors import CheckpointError
from arpo.train.loop import Setup, train
from arpo.train.progress import Reporter
from arpo.train.runfolder import RunFolder, read_rows
from arpo.train.state import restore

SETTINGS = (
    "model.path=pocket",
    "model.lora.rank=4",
    "data.tasks=12",
    "rollout.total=3",
    "rollout.initial=2",
    "rollout.max_tokens=40",
    "entropy.window=4",
    "loss.entropy_bonus=0.01",
    "loss.kl=0.01",
    "optim.lr=1e-3",
    "train.prompts=2",
    "train.keep_checkpoints=3",
)
PACED = ("timing_s/", "throughput/", "seconds", "latency", "waited_s", "in_flight", "engine/idle_share")
IDS = torch.arange(20)[None] * 11 % 500


def go(folder: Path, *more: str, resume: bool = False) -> Setup:
    """Train; the live objects as they are afterwards."""
    resolved = load([], [*SETTINGS, *more], environ={})
    with Reporter("r", quiet=True) as said, RunFolder.open(folder, resolved.table(), resume=resume) as opened:
        setup = build_setup(resolved.config, said.warn)
        train(setup, build_plan(resolved.config), opened, said)
    return setup


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=IDS, use_cache=False).logits[0]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Setup]:
    """A run of two steps and its live objects; nobody writes to it."""
    folder = tmp_path_factory.mktemp("lora") / "r"
    return folder, go(folder, "train.steps=2")


@pytest.mark.slow
def test_the_adapter_changes_and_the_base_does_not(trained: tuple[Path, Setup]) -> None:
    folder, setup = trained
    assert isinstance(setup.agent.engine._forward, FusedForward)  # type: ignore[attr-defined]
    start = load_policy("pocket", device="cpu")[0].state_dict()
    layers = list(adapted_layers(setup.model))
    assert len(layers) == 7 * setup.model.config.num_hidden_layers
    assert all(bool((layer.lora_B["default"].weight != 0).any()) for _, layer in layers)
    base = {k.replace(".base_layer.", "."): v for k, v in setup.model.state_dict().items() if ".lora_" not in k}
    assert base.keys() == start.keys()
    assert all(torch.equal(base[name], value) for name, value in start.items())
    first, second = read_rows(folder / "metrics.jsonl")
    assert first["kl"] == 0 < second["kl"], "the reference is where the run began"
    assert min(first["grad_norm"], second["grad_norm"]) > 0


@pytest.mark.slow
def test_a_checkpoint_holds_the_adapter_alone(trained: tuple[Path, Setup]) -> None:
    folder, setup = trained
    checkpoint = folder / "checkpoints" / "step_2"
    names = {file.name for file in checkpoint.iterdir()}
    assert {"adapter_model.safetensors", "adapter_config.json", "learner.pt", "tokenizer.json"} < names
    assert not names & {"model.safetensors", "config.json"}
    size = sum(p.numel() for p in setup.model.parameters() if p.requires_grad)
    assert (checkpoint / "adapter_model.safetensors").stat().st_size < 4.5 * size < 4 * setup.model.num_parameters() / 5
    config = json.loads((checkpoint / "adapter_config.json").read_text())
    assert (config["r"], config["base_model_name_or_path"], config["peft_type"]) == (4, "pocket", "LORA")


@pytest.mark.slow
def test_a_resumed_run_is_the_uninterrupted_one(trained: tuple[Path, Setup], tmp_path: Path) -> None:
    straight, resumed = trained[0], shutil.copytree(trained[0], tmp_path / "resumed")
    shutil.rmtree(resumed / "checkpoints" / "step_2")  # as if killed before it was written
    go(resumed, "train.steps=2", resume=True)
    states = [load_file(run / "checkpoints" / "step_2" / "adapter_model.safetensors") for run in (straight, resumed)]
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][name], value) for name, value in states[1].items())
    learners = [torch.load(run / "checkpoints" / "step_2" / "learner.pt") for run in (straight, resumed)]
    moments = [learner["optimizer"]["state"][5]["exp_avg"] for learner in learners]
    assert torch.equal(*moments)
    assert bool((moments[0] != 0).any())
    assert unpaced(straight) == unpaced(resumed)


def unpaced(run: Path) -> list[dict[str, float]]:
    """The rows without what depends on the machine's pace."""
    rows = read_rows(run / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2]
    return [{k: v for k, v in row.items() if not any(word in k for word in PACED)} for row in rows]


@pytest.mark.slow
def test_a_run_does_not_go_on_from_another_base(trained: tuple[Path, Setup]) -> None:
    folder, setup = trained
    weight = setup.model.model.layers[2].mlp.down_proj.base_layer.weight
    assert restore(folder / "checkpoints", setup.tokenizer, setup.learner, pytest.fail).step == 2
    before = weight.detach().clone()
    weight.data += 1e-6
    try:
        with pytest.raises(CheckpointError, match=r"step_2 holds an adapter that was trained on other weights"):
            restore(folder / "checkpoints", setup.tokenizer, setup.learner, pytest.fail)
    finally:
        weight.data.copy_(before)


@pytest.mark.slow
def test_the_export_is_an_ordinary_model(
    trained: tuple[Path, Setup], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, setup = trained
    out = tmp_path / "deep" / "merged"
    assert main(["export", "--run", str(folder), "--out", str(out)]) == 0
    assert str(out) in capsys.readouterr().out.replace("\n", "")
    exported = AutoModelForCausalLM.from_pretrained(out)
    assert not is_adapted(exported)
    merged, adapted = (logits(copy.deepcopy(model).double()) for model in (exported, setup.model))
    torch.testing.assert_close(merged, adapted, rtol=0, atol=1e-5)
    assert float((logits(exported) - logits(load_policy("pocket", device="cpu")[0])).abs().max()) > 1e-3
    again, tokenizer = load_policy(out, device="cpu")
    assert torch.equal(logits(again), logits(exported))
    assert tokenizer.get_vocab() == setup.tokenizer.get_vocab()
    assert [path.name for path in out.parent.iterdir()] == ["merged"]
    assert (
        main(["export", "--run", str(folder), "--out", str(tmp_path / "one"), "--step", "1", "--dtype", "bfloat16"])
        == 0
    )
    early = AutoModelForCausalLM.from_pretrained(tmp_path / "one")
    assert early.dtype == torch.bfloat16
    assert not torch.equal(logits(early).float(), logits(exported))


@pytest.mark.slow
def test_exports_that_cannot_be(
    trained: tuple[Path, Setup], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(trained[0], tmp_path / "r")

    def said(*more: str, run: Path = folder, out: str = "new") -> str:
        assert main(["export", "--run", str(run), "--out", str(tmp_path / out), *more]) == 2
        return " ".join(capsys.readouterr().err.split())

    assert "is not a run folder" in said(run=tmp_path)
    assert "exists and will not be overwritten" in said(out="r")
    assert "step_7 does not exist; checkpoints here: 1, 2" in said("--step", "7")
    assert "no floating-point type" in said("--dtype", "int8")
    (folder / "checkpoints" / "step_2" / "adapter_model.safetensors").write_bytes(b"")
    assert "is corrupt: adapter_model.safetensors has 0 bytes" in said("--step", "2")
    shutil.rmtree(folder / "checkpoints")
    assert "holds no checkpoint yet" in said()
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
def test_every_command_takes_adapters(trained: tuple[Path, Setup], capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = str(trained[0] / "checkpoints" / "step_2")
    small = ["evaluation.tasks=3", "rollout.max_tokens=40"]
    for chosen in (f"model.path={checkpoint}", f"model.lora.path={checkpoint}"):
        assert main(["eval", chosen, *small, "--json"]) == 0
    first, second = capsys.readouterr().out.split("\n{")
    figures = [json.loads(text) for text in (first, "{" + second)]
    assert figures[0]["n"] == figures[1]["n"] == 3
    assert figures[0]["generated_tokens"] == figures[1]["generated_tokens"], "merged or not, the same policy"
    assert main(["rollout", f"model.path={checkpoint}", *small, "--question", "Area of Norway?", "--json"]) == 0
    assert main(["eval", "model.lora.dropout=0.1", *small]) == 2
    assert "no importance ratio would be exact" in capsys.readouterr().err


@pytest.mark.slow
def test_the_cold_start_of_an_adapter_saves_a_merged_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    overrides = ["model.lora.rank=2", "sft.steps=2", "sft.batch_tokens=300", "sft.lr=1e-3"]
    assert main(["sft", "--quiet", *overrides, "--name", "s"]) == 0
    learnt = load_policy(tmp_path / "runs" / "s" / "model", device="cpu")[0].state_dict()
    start = load_policy("pocket", device="cpu")[0].state_dict()
    assert learnt.keys() == start.keys()
    changed = {
        name.rpartition(".")[0].rpartition(".")[2] for name in start if not torch.equal(learnt[name], start[name])
    }
    assert changed == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
