"""A comparison, small: real trainings of the pocket policy, interrupted and taken up again."""

import json
from pathlib import Path

import pytest

from arpo.compare.plan import make_plan
from arpo.compare.run import run
from arpo.errors import ConfigError
from arpo.jobs import TRAINING_ENDED
from arpo.train.runfolder import read_rows

ENVIRONMENT = Path(__file__).resolve().parents[2] / "src" / "arpo" / "assets" / "compare.toml"
SMALL = (
    "data.tasks=40",
    "train.prompts=2",
    "train.mini_batch=2",
    "train.max_generated_tokens=1500",
    "train.eval_every=1",
    "train.eval_tasks=6",
)


def test_a_method_keeps_its_share_of_the_group() -> None:
    plan = make_plan(str(ENVIRONMENT), ("grpo", "paper", "aepo", "tree"), 2)
    grpo, paper, aepo, tree = (plan.resolved(arm).config for arm in plan.arms)
    assert (grpo.rollout.total, grpo.rollout.initial, grpo.rollout.branching.type) == (8, 8, "none")
    assert (paper.rollout.total, paper.rollout.initial, paper.rollout.branching.type) == (8, 4, "entropy")
    assert aepo.rollout.branching.type == "aepo"
    assert (tree.credit.type, tree.rollout.initial) == ("tree", 4)


def test_all_methods_share_what_the_environment_says() -> None:
    plan = make_plan(str(ENVIRONMENT), ("grpo", "dapo", "reinforce++", "paper", "tree"), 2, ("optim.lr=1e-3",))
    for config in (plan.resolved(arm).config for arm in plan.arms):
        assert config.optim.lr == 1e-3
        assert (config.train.prompts, config.train.mini_batch, config.rollout.max_tokens) == (16, 16, 400)
        assert config.train.max_generated_tokens == 250_000


@pytest.mark.parametrize(
    ("methods", "seeds", "said"),
    [
        (("grpo", "paper"), 1, "two or more"),
        (("grpo",), 2, "two methods"),
        (("grpo", "grpo"), 2, "grpo is named twice"),
        (("grpo", "grppo"), 2, "'grppo' is neither a preset"),
    ],
)
def test_what_cannot_be_compared_is_refused(methods: tuple[str, ...], seeds: int, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make_plan(str(ENVIRONMENT), methods, seeds)


def test_without_a_budget_nothing_is_equal(tmp_path: Path) -> None:
    environment = tmp_path / "own.toml"
    environment.write_text("[train]\neval_every = 2\nprompts = 16\n[rollout]\ntotal = 4\ninitial = 2\n")
    with pytest.raises(ConfigError, match="max_generated_tokens"):
        make_plan(str(environment), ("grpo", "paper"), 2)


def test_a_folder_that_is_no_comparison_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="left alone"):
        run(tmp_path, overwrite=True)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def ended(folder: Path, *accuracies: float) -> None:
    """A run that has used up its budget, as `arpo train` leaves it."""
    folder.mkdir(parents=True)
    rows = [
        {"step": step, "num_tokens": 900 * step, "num_tool_calls": 10 * step, "heldout/accuracy": accuracy}
        for step, accuracy in enumerate(accuracies, 1)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / TRAINING_ENDED).touch()


@pytest.mark.slow
def test_a_comparison_goes_on_and_leaves_a_table_a_picture_and_its_figures(tmp_path: Path) -> None:
    """Three runs are there already; the starting point is measured and the fourth run is trained, in real processes."""
    out = tmp_path / "compare"
    ended(out / "grpo-seed0", 0.2, 0.3)
    ended(out / "grpo-seed1", 0.25, 0.25)
    ended(out / "paper-seed0", 0.3, 0.4)
    (out / "environment.toml").write_bytes(ENVIRONMENT.read_bytes())
    before = (out / "grpo-seed1" / "metrics.jsonl").read_text()
    with pytest.raises(ConfigError, match="--resume"):
        run(out, None, ("grpo", "paper"), seeds=2, overrides=SMALL)
    assert run(out, None, ("grpo", "paper"), seeds=2, overrides=SMALL, at_once=2, resume=True, quiet=True) == 0
    assert (out / "grpo-seed1" / "metrics.jsonl").read_text() == before
    trained = read_rows(out / "paper-seed1" / "metrics.jsonl")
    assert trained[-1]["num_tokens"] >= 1500

    figures = json.loads((out / "compare.json").read_text())
    assert figures["seeds"] == [0, 1]
    assert figures["tokens"]["cost"] == min(1800, trained[-1]["num_tokens"])
    for axis in ("tokens", "calls"):
        for method in ("grpo", "paper"):
            accuracies = figures[axis]["methods"][method]["accuracies"]
            assert len(accuracies) == 2
            assert all(0 <= value <= 1 for value in accuracies)
    assert "| paper |" in (out / "compare.md").read_text()
    assert "<svg" in (out / "compare.svg").read_text()
