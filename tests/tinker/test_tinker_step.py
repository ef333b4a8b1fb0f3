"""A whole ARPO step through the training loop at a real server, and what stays of it."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arpo.config.load import load
from arpo.config.wire import build_plan, build_setup
from arpo.data.trees import read_trees
from arpo.errors import CheckpointError
from arpo.reward.scorer import Scorer
from arpo.task import Task
from arpo.train.loop import Setup, train
from arpo.train.progress import Reporter
from arpo.train.runfolder import RunFolder, read_rows
from arpo.tree import Outcome, RolloutTree, Source


class EverySecond(Scorer):
    """Every second trajectory was right, whatever it says: a contrast in every group."""

    async def scored(self, tree: RolloutTree, task: Task) -> RolloutTree:
        return tree.with_outcomes(tuple(Outcome(float(i % 2 == 0)) for i in range(len(tree.leaves))))


def go(options: list[str], folder: Path, *, resume: bool = False) -> Setup:
    """Train; the live objects as they are afterwards."""
    resolved = load([], options, environ={})
    with Reporter("r", quiet=True) as said, RunFolder.open(folder, resolved.table(), resume=resume) as opened:
        setup = build_setup(resolved.config, said.warn)
        setup = replace(setup, scorer=EverySecond(resolved.config.reward, setup.agent.dialect))
        train(setup, build_plan(resolved.config), opened, said)
    return setup


@pytest.fixture(scope="module")
def trained(tuned: Callable[..., list[str]], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Setup]:
    """A run of one step and its live objects."""
    folder = tmp_path_factory.mktemp("runs") / "r"
    return folder, go(tuned("train.steps=1"), folder)


def tree_of(folder: Path) -> RolloutTree:
    return read_trees(folder / "rollouts" / "step_000001.parquet")[0]


def changes(tree: RolloutTree, now_N: np.ndarray) -> list[float]:
    """Mean change of the log-probs of each trajectory's own last node since it was sampled."""
    start_S = np.cumsum([0] + [len(segment) for segment in tree.segments])
    found = []
    for leaf in tree.leaves:
        found.append(float((now_N[start_S[leaf] : start_S[leaf + 1]] - tree.segments[leaf].logprobs).mean()))
    return found


def test_rewarded_branches_become_likelier(trained: tuple[Path, Setup], figures: dict[str, str]) -> None:
    folder, setup = trained
    tree = tree_of(folder)
    assert {Source.PROMPT, Source.POLICY, Source.TOOL} <= {segment.source for segment in tree.segments}
    assert len(tree.leaves) == 4
    assert tree.decisions  # a branch was decided on after the tool's answer

    change = changes(tree, setup.learner.logprobs([tree])[0])

    rewarded, others = change[::2], change[1::2]
    figures["change of log-prob per token after one step: rewarded, others"] = (
        f"{np.round(rewarded, 3)}, {np.round(others, 3)}"
    )
    assert np.mean(rewarded) > 0.01
    assert np.mean(rewarded) > np.mean(others) + 0.01


def test_the_step_is_in_the_metrics(trained: tuple[Path, Setup]) -> None:
    row = read_rows(trained[0] / "metrics.jsonl")[0]
    assert row["grad_norm"] > 0
    assert row["arpo/branches"] >= 1
    assert row["update/num_tokens"] > 0


def test_sampler_and_trainer_agree(tuned: Callable[..., list[str]], tmp_path: Path, figures: dict[str, str]) -> None:
    """With lr = 0 the weights after the step are those that sampled: what is left is the programs' own difference."""
    setup = go(tuned("train.steps=1", "optim.lr=0", "run.seed=5"), tmp_path / "r")
    tree = tree_of(tmp_path / "r")

    scored_N = setup.learner.logprobs([tree])[0]

    sampled_N = np.concatenate([s.logprobs if s.is_policy else np.zeros(len(s)) for s in tree.segments])
    difference = float(np.abs(scored_N - sampled_N).max())
    figures["log-prob of sampler and trainer: max abs difference"] = f"{difference:.1e} nats"
    assert difference < 1e-4


def test_the_reference_is_the_base(trained: tuple[Path, Setup], base: Path) -> None:
    from arpo.engine.models import load_policy
    from arpo.learn.settings import OptimSettings, loss_settings
    from arpo.learn.update import Learner

    tree, (model, _) = tree_of(trained[0]), load_policy(str(base), device="cpu")
    local = Learner(model, loss_settings("grpo"), OptimSettings(packing="padded"), total_updates=1)

    found_N = trained[1].learner.logprobs([tree], reference=True)[0]

    np.testing.assert_allclose(found_N, local.logprobs([tree])[0], atol=1e-4)


def test_a_run_goes_on_from_the_servers_path(trained: tuple[Path, Setup], tuned: Callable[..., list[str]]) -> None:
    folder, before = trained
    kept = json.loads((folder / "checkpoints" / "step_1" / "tinker.json").read_text())
    tree = tree_of(folder)
    logp_N = before.learner.logprobs([tree])[0]

    fresh = build_setup(load([], tuned(), environ={}).config, print).learner
    fresh.load(folder / "checkpoints" / "step_1")
    after = go(tuned("train.steps=2"), folder, resume=True)

    assert kept["path"].startswith("tinker://")
    assert (fresh.updates, after.learner.updates) == (1, 2)
    np.testing.assert_allclose(fresh.logprobs([tree])[0], logp_N, atol=1e-5)
    assert [row["step"] for row in read_rows(folder / "metrics.jsonl")] == [1, 2]


def test_a_lost_path_is_named(trained: tuple[Path, Setup], tmp_path: Path) -> None:
    learner: Any = trained[1].learner
    about = {"base_model": learner.service.base_model, "rank": learner.service.settings.rank}
    path = "tinker://model_none/weights/gone"
    (tmp_path / "tinker.json").write_text(json.dumps({"path": path, "updates": 1, **about}))
    with pytest.raises(CheckpointError, match="tinker://model_none/weights/gone"):
        learner.load(tmp_path)
