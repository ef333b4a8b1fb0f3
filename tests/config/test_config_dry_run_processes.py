"""A dry run of several processes: the memory of one of them, of one server, and a step on paper."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from arpo.cli import main
from arpo.config.dry_run_memory import Memory, estimate, serving
from arpo.config.load import load
from arpo.engine.models import load_skeleton
from arpo.engine.publishing import dealt
from arpo.engine.settings import OpenAISettings

PARAMETERS = 918_912
"""Of the pocket policy."""
BASE = ("model.dtype=bfloat16", "optim.micro_tokens=100", "rollout.max_tokens=40", "train.prompts=6")


def memory(*settings: str, processes: int | None = None) -> Memory:
    config = load([], [*BASE, *settings]).config
    return estimate(config, load_skeleton("pocket", dtype="bfloat16"), 50, processes=processes)


def sizes(found: Memory) -> dict[str, int]:
    return {part.name: part.size for part in found.parts}


def test_shards_are_shares_and_what_a_pass_gathers_is_whole() -> None:
    one, two = sizes(memory()), sizes(memory("train.processes=2", "train.sharded=true"))
    for name in ("weights", "gradients", "optimiser"):
        assert two[name] == one[name] / 2
    model: Any = load_skeleton("pocket", dtype="bfloat16")
    layer = sum(p.numel() for p in model.model.layers[0].parameters())
    root = PARAMETERS - len(model.model.layers) * layer
    assert two["gathered"] == 2 * (root + 2 * layer)
    assert two["engine's copy"] == 2 * PARAMETERS
    assert two["keys and values"] == one["keys and values"] / 2, "three groups of six"
    assert "buckets" not in two
    assert memory("train.processes=2", "train.sharded=true").loaded == 2 * PARAMETERS


def test_replicas_hold_everything_and_send_gradients() -> None:
    one, two = sizes(memory()), sizes(memory("train.processes=2", "train.sharded=false"))
    assert {name: two[name] for name in ("weights", "gradients", "optimiser")} == {
        name: one[name] for name in ("weights", "gradients", "optimiser")
    }
    assert two["buckets"] == one["gradients"]
    assert "gathered" not in two


def test_a_number_that_is_given_means_shards() -> None:
    assert sizes(memory(processes=4))["weights"] == 2 * PARAMETERS / 4
    assert memory(processes=4).processes == 4


def test_servers_hold_the_policy_and_what_they_are_asked_for() -> None:
    more = ("engine.type=openai", "engine.publish=vllm", "engine.replicas=http://127.0.0.1:9/v1", "rollout.total=4")
    config = load([], [*BASE, *more, "rollout.initial=4"]).config
    found = serving(config, load_skeleton("pocket", dtype="bfloat16"), 50)
    assert found is not None
    assert (found.servers, found.weights, found.sequences, found.longest) == (2, 2 * PARAMETERS, 12, 90)
    text = load_skeleton("pocket").config
    token = 2 * text.num_hidden_layers * text.num_key_value_heads * text.head_dim * 2
    assert (found.token, found.most) == (token, token * 12 * 90)
    assert serving(load([], BASE).config, load_skeleton("pocket"), 50) is None


def test_the_example_for_eight_gpus_fits_its_launcher() -> None:
    examples = Path(__file__).parents[2] / "examples"
    config = load((examples / "qwen2.5-7b-8gpu.toml",), (), environ={}).config
    launched = yaml.safe_load((examples / "fsdp2-8gpu.yaml").read_text())
    assert launched["num_processes"] == config.train.processes == 8
    assert launched["distributed_type"] == "FSDP"
    assert config.train.sharded
    assert launched["fsdp_config"]["fsdp_version"] == 2
    assert launched["fsdp_config"]["fsdp_cpu_ram_efficient_loading"] is False
    assert isinstance(config.engine, OpenAISettings)
    assert [dealt(config.engine, rank, 8).base_url[-7:] for rank in range(8)] == [f"800{rank}/v1" for rank in range(8)]


def test_processes_and_servers_without_work_are_mistakes(capsys: pytest.CaptureFixture[str]) -> None:
    tokens = ["train", "--dry-run", *BASE, "data.tasks=4", "train.processes=7"]
    assert main(tokens) == 2
    assert "train.prompts = 6 leaves some of 7 processes without a group" in capsys.readouterr().out
    servers = ["engine.type=openai", "engine.publish=vllm", "engine.replicas=http://127.0.0.1:9/v1"]
    assert main(["train", "--dry-run", *BASE, "data.tasks=4", "train.processes=1", *servers]) == 2
    assert "name 2 servers for 1 process" in capsys.readouterr().out


def test_the_terminal_tells_what_one_process_takes(capsys: pytest.CaptureFixture[str]) -> None:
    tokens = ["train", "--dry-run", *BASE, "data.tasks=4", "train.processes=2", "train.sharded=true"]
    assert main(tokens) == 0
    text = capsys.readouterr().out
    assert "each of 2 processes, on a device of its own:" in text
    assert "1/2 of 918,912 parameters" in text
    assert "reads the whole weights" in text
    assert "A step on paper" in text
    assert "2 x h100" in text
