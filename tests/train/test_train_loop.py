"""The loop on a policy with random weights: what it draws, writes, resumes and refuses."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from arpo.config.load import load
from arpo.config.wire import build_plan, build_setup
from arpo.data.pocket import build_pocket, train_tokenizer
from arpo.errors import CheckpointError, ConfigError, DataError
from arpo.learn.losses import TokenInputs
from arpo.learn.packing import Pack
from arpo.learn.update import DivergenceError, Learner
from arpo.reward.scorer import Scorer
from arpo.train.loop import train
from arpo.train.progress import Reporter
from arpo.train.runfolder import RunFolder, read_rows
from arpo.tree import Outcome, RolloutTree

SETTINGS = (
    "data.tasks=12",
    "rollout.total=2",
    "rollout.initial=1",
    "rollout.max_tokens=12",
    "loss.entropy_bonus=0.01",
    "optim.lr=1e-3",
    "train.prompts=2",
    "train.steps=2",
)


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("policy")
    tokenizer = train_tokenizer()
    torch.manual_seed(0)
    build_pocket(tokenizer).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


class Said(Reporter):
    """Keeps what it is told."""

    def __init__(self) -> None:
        super().__init__("test", quiet=True)
        self.warnings: list[str] = []

    def warn(self, text: str) -> None:
        self.warnings.append(text)


def go(policy: Path, folder: Path, *more: str, resume: bool = False) -> tuple[int, list[str]]:
    config = load([], [*SETTINGS, f"model.path={policy}", *more]).config
    said = Said()
    with said, RunFolder.open(folder, {}, resume=resume) as opened:
        result = train(build_setup(config, said.warn), build_plan(config), opened, said)
    return result.position.step, said.warnings


def test_a_step_leaves_its_row_its_rollouts_and_its_checkpoint(policy: Path, tmp_path: Path) -> None:
    step, warnings = go(policy, tmp_path / "run")
    assert (step, warnings) == (2, [])
    rows = read_rows(tmp_path / "run" / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2]
    assert rows[1]["num_tokens"] > rows[0]["num_tokens"] > 0
    assert rows[1]["num_prompts"] == 4
    assert rows[0]["grad_norm"] > 0
    assert (tmp_path / "run" / "rollouts" / "step_000002.parquet").exists()
    assert (tmp_path / "run" / "checkpoints" / "step_2" / "model.safetensors").exists()


def test_flat_groups_are_drawn_again_and_paid_for(policy: Path, tmp_path: Path) -> None:
    more = ("train.resample_flat=true", "train.max_rounds=4", "train.steps=1", "loss.entropy_bonus=0")
    _, warnings = go(policy, tmp_path / "run", *more)
    (row,) = read_rows(tmp_path / "run" / "metrics.jsonl")
    assert row["frac_reward_zero_std"] == 1.0  # random weights: everything is malformed
    assert row["num_prompts"] == 4 * 2
    assert row["grad_norm"] == 0.0
    assert (row["dynamic/rounds"], row["dynamic/dropped_groups"], row["dynamic/missing_groups"]) == (4, 8, 2)
    (warning,) = warnings
    assert "step 1: 2 of 2 groups are missing after 4 rounds" in warning


def outcomes_of(groups: Sequence[tuple[float, ...]]) -> Callable[..., Awaitable[list[Outcome]]]:
    """Gives the groups of a run these rewards, in the order in which they are scored."""
    left = iter(groups)

    async def outcomes(*_: object) -> list[Outcome]:
        return [Outcome(reward) for reward in next(left)]

    return outcomes


def test_a_step_stops_drawing_when_its_groups_are_full(
    policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups 2, 5 and 6 of the stream differ: two groups are wanted, so three rounds of two are drawn and one is
    left over."""
    rewards = [(0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 0.0), (0.0, 1.0), (1.0, 0.0)]
    monkeypatch.setattr(Scorer, "outcomes", outcomes_of(rewards))
    used: list[list[tuple[float | None, ...]]] = []
    update = Learner.update

    def watched(self: Learner, trees: Sequence[RolloutTree], *more: object) -> dict[str, float]:
        used.append([tree.rewards for tree in trees])
        return update(self, trees, *more)

    monkeypatch.setattr(Learner, "update", watched)
    _, warnings = go(policy, tmp_path / "run", "train.resample_flat=true", "train.max_rounds=9", "train.steps=1")
    (row,) = read_rows(tmp_path / "run" / "metrics.jsonl")
    assert warnings == []
    assert (row["dynamic/rounds"], row["dynamic/dropped_groups"], row["dynamic/missing_groups"]) == (3, 3, 0)
    assert row["dynamic/surplus_groups"] == 1
    assert used == [[(1.0, 0.0), (0.0, 1.0)]]
    assert row["num_prompts"] == 6


def test_no_more_is_drawn_again_than_is_likely_needed(
    policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three of four groups differ, so 4 / 3 groups are drawn for the missing one."""
    rewards = [(1.0, 0.0), (0.0, 0.0), (0.0, 1.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0)]
    monkeypatch.setattr(Scorer, "outcomes", outcomes_of(rewards))
    go(policy, tmp_path / "run", "train.resample_flat=true", "train.prompts=4", "train.steps=1")
    (row,) = read_rows(tmp_path / "run" / "metrics.jsonl")
    assert (row["dynamic/rounds"], row["dynamic/missing_groups"], row["dynamic/surplus_groups"]) == (2, 0, 0)
    assert (row["num_prompts"], row["dynamic/dropped_groups"]) == (6, 2)


def test_without_resampling_nothing_is_said_of_it(policy: Path, tmp_path: Path) -> None:
    go(policy, tmp_path / "run", "train.steps=1")
    (row,) = read_rows(tmp_path / "run" / "metrics.jsonl")
    assert [name for name in row if name.startswith("dynamic/")] == []


def test_a_corrupt_checkpoint_is_passed_over_aloud(policy: Path, tmp_path: Path) -> None:
    go(policy, tmp_path / "run")
    weights = tmp_path / "run" / "checkpoints" / "step_2" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    step, warnings = go(policy, tmp_path / "run", "train.steps=3", resume=True)
    assert step == 3
    assert "step_2 is corrupt" in warnings[0]
    assert "step_1" in warnings[0]
    assert [row["step"] for row in read_rows(tmp_path / "run" / "metrics.jsonl")] == [1, 2, 3]


def test_a_checkpoint_of_another_tokenizer_is_refused(policy: Path, tmp_path: Path) -> None:
    go(policy, tmp_path / "run", "train.steps=1")
    tokenizer = train_tokenizer()
    tokenizer.add_tokens(["<other>"])
    other = tmp_path / "other"
    build_pocket(tokenizer).save_pretrained(other)
    tokenizer.save_pretrained(other)
    with pytest.raises(CheckpointError, match="another tokenizer"):
        go(other, tmp_path / "run", resume=True)


def test_no_tasks_no_training(policy: Path, tmp_path: Path) -> None:
    config = load([], [*SETTINGS, f"model.path={policy}"]).config
    said = Said()
    setup = replace(build_setup(config, said.warn), tasks=())
    with RunFolder.open(tmp_path / "run", {}) as folder, pytest.raises(DataError, match="no training tasks"):
        train(setup, build_plan(config), folder, said)


def test_an_engine_that_takes_no_weights_is_refused_before_anything_is_sampled(policy: Path, tmp_path: Path) -> None:
    config = load([], [*SETTINGS, f"model.path={policy}"]).config
    said = Said()
    setup = build_setup(config, said.warn)
    fixed = replace(setup.agent.engine.capabilities, weight_update=False)
    setup.agent.engine.capabilities = fixed  # type: ignore[misc]
    with RunFolder.open(tmp_path / "run", {}) as folder, pytest.raises(ConfigError, match=r"set engine\.publish"):
        train(setup, build_plan(config), folder, said)
    assert setup.agent.engine.stats.calls == 0


def test_divergence_names_the_step_and_the_prompts(
    policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last checkpoint is the one before it."""
    score = Learner._score

    def broken(self: Learner, pack: Pack) -> TokenInputs:
        tokens = score(self, pack)
        return replace(tokens, logp_U=tokens.logp_U * torch.nan) if self.updates == 1 else tokens

    monkeypatch.setattr(Learner, "_score", broken)
    with pytest.raises(DivergenceError, match=r"step 2, update 2: the loss is not finite \(tasks \S+, "):
        go(policy, tmp_path / "run")
    assert [path.name for path in (tmp_path / "run" / "checkpoints").glob("step_*")] == ["step_1"]
    assert len(read_rows(tmp_path / "run" / "metrics.jsonl")) == 1


def test_the_trainer_s_log_probs_and_a_reference_serve_all_mini_batches_of_a_step(policy: Path, tmp_path: Path) -> None:
    more = ("loss.type=reinforce++", "loss.old=trainer", "loss.mismatch_cap=2.0", "credit.type=reinforce++")
    step, _ = go(policy, tmp_path / "run", *more, "credit.kl=0.1", "train.mini_batch=1")
    assert step == 2
    rows = read_rows(tmp_path / "run" / "metrics.jsonl")
    for row in rows:
        assert 0 <= row["mismatch/kl"] < 1e-6  # the same weights in the same precision
        assert row["mismatch/ratio_max"] == pytest.approx(1, abs=1e-3)
    # the second mini-batch of a step is off-policy with respect to the log-probs of its beginning
    assert rows[0]["kl/trainer"] > 1e-6
    assert rows[0]["update/sharing"] >= 1
