"""Presets: what each promises of its method, and that it trains."""

import json
from pathlib import Path

import pytest

from arpo.cli import main
from arpo.config.load import load
from arpo.config.read import preset_names
from arpo.config.schema import Config
from arpo.data.trees import read_trees
from arpo.train.runfolder import read_rows


def preset(name: str, *overrides: str) -> Config:
    return load((), overrides, preset=name, environ={}).config


def test_official_is_the_public_codes_branching_and_says_so() -> None:
    config = preset("official")
    rollout, rule = config.rollout, config.rollout.branching
    assert (rule.type, rule.at, rule.base_probability, rule.entropy_weight) == ("bernoulli", "stale_state", 0.5, 0.2)
    assert (rollout.total, rollout.initial, rollout.branches, rollout.max_calls) == (16, 8, 1, 3)
    assert (config.entropy.window, config.entropy.normaliser) == (20, "ln_vocab")
    loss = config.loss
    assert (loss.aggregation, loss.clip_low, loss.clip_high, loss.dual_clip, loss.kl) == ("token_mean", 0.2, 0.2, 3, 0)
    assert (config.credit.type, config.train.prompts, config.train.mini_batch) == ("soft", 128, 16)


@pytest.mark.parametrize("name", ["paper", "paper-best-entropy", "paper-deep-search"])
def test_the_papers_presets_branch_where_the_paper_does(name: str) -> None:
    assert preset(name).rollout.branching.at == "before_window"


def test_tree_grpo_draws_its_branches_and_compares_within_trees() -> None:
    config = preset("tree-grpo")
    rule = config.rollout.branching
    assert (rule.type, rule.at, rule.probability) == ("random", "state", 0.5)
    assert config.credit.type == "tree_grpo"
    assert (config.rollout.total, config.rollout.initial) == (16, 5)


def test_aepo_needs_no_initial() -> None:
    """Its first trajectory decides how many start from the prompt, so the group may be smaller than that default."""
    rollout = preset("aepo", "rollout.total=4").rollout
    assert rollout.monitors
    assert rollout.may_branch
    assert (rollout.branching.penalty, rollout.branching.threshold) == (0.05, 0.5)


@pytest.mark.parametrize("name", preset_names())
def test_all_presets_share_batch_rate_and_temperature(name: str) -> None:
    """So that runs under them compare."""
    config = preset(name)
    assert (config.train.prompts, config.rollout.total, config.optim.lr) == (128, 16, 1e-6)
    assert (config.rollout.temperature, config.rollout.top_p, config.loss.kl) == (1.0, 1.0, 0.0)


@pytest.mark.parametrize("name", preset_names())
def test_only_the_forms_kept_for_reproduction_look_where_they_should_not(name: str) -> None:
    rule = preset(name).rollout.branching
    expected = {"official": "stale_state"} | {paper: "before_window" for paper in preset_names() if "paper" in paper}
    assert rule.type == "none" or rule.at in (expected.get(name), "state", "after_window")
    if name in expected:
        assert rule.at == expected[name]


@pytest.mark.parametrize("name", ["official", "tree-grpo", "aepo", "paper"])
def test_a_preset_trains_the_pocket_policy_as_its_dry_run_said(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two steps of a small group; the preset's own branching, credit and loss."""
    initial = [] if name == "aepo" else ["rollout.initial=2"]
    small = [
        *("model.path=pocket", "tools.1.backend=monty", "data.tasks=40", "train.steps=2", "train.prompts=1"),
        *("train.mini_batch=1", "rollout.total=4", "rollout.max_tokens=80", "entropy.window=4", *initial),
        *("optim.micro_tokens=1024", "train.checkpoint_every=2", f"run.out={tmp_path}", f"run.name={name}"),
    ]
    assert main(["train", "--preset", name, "--dry-run", "--json", *small]) == 0
    said = json.loads(capsys.readouterr().out)
    assert main(["train", "--preset", name, "--quiet", *small]) == 0
    steps = read_rows(tmp_path / name / "metrics.jsonl")
    assert len(steps) == said["batch"]["steps"] == 2
    trees = [tree for file in sorted((tmp_path / name / "rollouts").glob("*.parquet")) for tree in read_trees(file)]
    assert sum(len(tree.leaves) for tree in trees) == said["batch"]["all_trajectories"] == 8
    assert sum(tree.generated_tokens for tree in trees) <= 2 * said["costs"]["largest"]["tokens"]
    decisions = [decision for tree in trees for decision in tree.decisions]
    assert decisions
    named = {"official": "stale_state: ", "paper": "before_window: "}.get(name, "")
    assert all(decision.reason.startswith(named) for decision in decisions if decision.reason)
    if name == "official":
        first = [d for d in decisions if d.depth == 1]
        assert first
        assert {(d.delta, d.probability) for d in first} == {(0.0, 0.5)}
