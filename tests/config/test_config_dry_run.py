"""What a dry run finds, says and refuses; and that training then does what it said."""

import json
from pathlib import Path

import pytest

from arpo.cli import main
from arpo.config.dry_run import DryRun, examine
from arpo.config.dry_run_memory import estimate
from arpo.config.load import Resolved, load

QUICK = ("tools.1.backend=monty",)
FEW = "data.tasks=40"
"""A Python tool that starts at once; forty questions of the factbook."""


def resolved(*overrides: str) -> Resolved:
    few = () if "data.type=files" in overrides else (FEW,)
    return load((), (*QUICK, *few, *overrides), environ={})


def dry(*overrides: str) -> DryRun:
    return examine(resolved(*overrides))


def task_file(folder: Path, *questions: str) -> str:
    path = folder / "tasks.jsonl"
    path.write_text("".join(json.dumps({"question": question, "answer": "1"}) + "\n" for question in questions))
    return f"data.train={path}"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_default_run_would_start_and_leaves_nothing_behind(tmp_path: Path) -> None:
    found = dry()
    assert (found.exit_code, found.mistakes, found.unchecked) == (0, [], [])
    assert (found.tasks, found.tools, found.model) == (40, ("search", "python"), "pocket")
    assert found.prompts is not None
    assert found.prompts.context == 1024
    assert found.prompts.room == 1024 - found.prompts.tokens["median"]
    assert found.costs is not None
    assert found.costs.largest.tokens == 16 * 16 * found.prompts.room
    assert list(tmp_path.iterdir()) == []


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "runs" / "run").mkdir(parents=True)
    (tmp_path / "runs" / "run" / "config.toml").write_text("")
    found = dry("data.type=files", "data.train=nowhere.jsonl", "model.path=./no-such-folder", "tools.0.corpus=nothing")
    assert found.exit_code == 2
    said = "\n".join(found.mistakes)
    for part in ("nowhere.jsonl", "no-such-folder", "nothing", "--overwrite"):
        assert part in said
    assert len(found.mistakes) == 4
    assert found.batch is not None


@pytest.mark.parametrize(
    ("overrides", "part"),
    [
        (("rollout.max_result_tokens=16", "model.path=smollm2"), "rollout.max_result_tokens"),
        (("engine.entropy=none",), "needs entropies"),
        (("engine.type=openai",), "takes no new weights"),
        (("engine.type=vllm",), "vllm"),
        (("rollout.branching.at=state", "entropy.min_tokens=3"), "entropy.min_tokens = 3"),
        (("tools=[]", "rollout.initial=16"), "was taught to call the tool 'search'"),
        (("model.lora.rank=4", "model.lora.target_modules=nonsense"), "model.lora.target_modules"),
        (("rollout.total=1", "rollout.initial=1", "rollout.temperature=0"), "positive temperature"),
        (("model.device=cuda:77",), "cuda:77"),
    ],
)
def test_what_training_would_refuse_is_a_mistake(overrides: tuple[str, ...], part: str) -> None:
    if "model.path=smollm2" in overrides:
        pytest.importorskip("gguf")
    found = dry(*overrides)
    assert found.exit_code == 2
    assert part in "\n".join(found.mistakes)


def test_prompts_are_measured_and_long_ones_left_out(tmp_path: Path) -> None:
    data = ("data.type=files", task_file(tmp_path, "a b", "b b", "c " * 300))
    free = dry(*data)
    assert free.prompts is not None
    assert free.prompts.tokens["most"] > 300
    bounded = dry(*data, "data.max_prompt_tokens=50")
    assert bounded.prompts is not None
    assert (bounded.prompts.left_out, bounded.tasks) == (1, 3)
    assert bounded.batch is not None
    assert bounded.batch.epochs == 100 * 16 / 2
    assert "exceeds the 3 tasks" in " ".join(bounded.notes)
    nothing = dry(*data, "data.max_prompt_tokens=1")
    assert "longer than data.max_prompt_tokens = 1" in nothing.mistakes[0]


def test_a_prompt_that_leaves_no_room_is_named(tmp_path: Path) -> None:
    found = dry("data.type=files", task_file(tmp_path, "short", "word " * 2000))
    assert found.exit_code == 2
    assert "tasks.jsonl:2" in found.mistakes[0]
    assert "leaves no room" in found.mistakes[0]


def test_held_out_tasks_are_read_where_training_would(tmp_path: Path) -> None:
    data = ("data.type=files", task_file(tmp_path, "a"))
    assert dry(*data).heldout is None
    assert "data.heldout names no file" in dry(*data, "train.eval_every=2").mistakes[0]
    assert dry("train.eval_every=2", "train.eval_tasks=7").heldout == 7


def test_a_run_that_goes_on_is_compared_with_what_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "run"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text("[rollout]\ntotal = 3\n")
    found = dry("run.resume=true")
    assert "written under another configuration" in found.mistakes[0]
    assert (folder / "config.toml").read_text() == "[rollout]\ntotal = 3\n"


def test_a_server_is_not_asked_and_that_is_said() -> None:
    found = dry("engine.type=openai", "engine.publish=vllm", "engine.base_url=http://127.0.0.1:9/v1")
    assert (found.mistakes, found.exit_code) == ([], 1)
    assert "arpo doctor --engine http://127.0.0.1:9/v1" in found.unchecked[0]


def test_an_adapter_trains_little_and_needs_no_copy_for_kl() -> None:
    whole, adapter = dry("loss.kl=0.1"), dry("loss.kl=0.1", "model.lora.rank=4")
    assert whole.memory is not None
    assert adapter.memory is not None
    assert whole.memory.trained == whole.memory.parameters == 918_912
    assert adapter.memory.trained == adapter.memory.parameters - 918_912 < 918_912 / 4
    assert "reference" in {part.name for part in whole.memory.parts}
    assert "reference" not in {part.name for part in adapter.memory.parts}


def test_the_memory_of_half_precision_by_hand() -> None:
    """P = 918,912: 2 bytes each for weights, fused copy and gradients; 4 + 8 + 4 for the optimiser in float32."""
    config = resolved("model.dtype=bfloat16", "optim.micro_tokens=100", "rollout.max_tokens=40").config
    from arpo.engine.models import load_skeleton

    model = load_skeleton("pocket", dtype="bfloat16")
    text = model.config
    parts = {part.name: part.size for part in estimate(config, model, 50).parts}
    assert parts["weights"] == parts["engine's weights"] == parts["gradients"] == 2 * 918_912
    assert parts["optimiser"] == 16 * 918_912
    kv = text.num_key_value_heads * text.head_dim
    heads = text.num_attention_heads * text.head_dim
    layer = 4 * text.hidden_size + 3 * heads + 3 * kv + 4 * text.intermediate_size
    assert parts["activations"] == 100 * 2 * layer * (text.num_hidden_layers + 1)
    assert parts["logits"] == 3 * 4 * 100 * 512
    assert parts["keys and values"] == 2 * text.num_hidden_layers * kv * 2 * (16 * 16 * 90)


def test_the_terminal_and_json_tell_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    tokens = ["train", "--dry-run", *QUICK, FEW, "rollout.max_tokens=100", "train.max_generated_tokens=5000"]
    assert main(tokens) == 0
    text = capsys.readouterr().out
    assert text.splitlines()[-1] == "Training would start."
    assert "16 prompts, 256 trajectories, 1 optimiser step of 16 prompts" in text
    assert "note: train.max_generated_tokens = 5,000 ends the run" in text
    assert main([*tokens, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["exit_code"], found["batch"]["trajectories"]) == (0, 256)
    assert f"{found['costs']['expected']['tokens']:,.0f}" in text
    assert found["memory"]["total"] == sum(part["size"] for part in found["memory"]["parts"])


def test_mistakes_are_exit_code_2_and_stand_last(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--dry-run", *QUICK, FEW, "engine.entropy=none"]) == 2
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2].startswith("mistake: rollout.branching.type")
    assert lines[-1] == "Training would not start: 1 mistake."


def test_json_without_a_dry_run_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--json"]) == 2
    assert "--json goes with --dry-run" in capsys.readouterr().err
