"""Trees through verl: M leaves per prompt, rewards per leaf, and the advantages of every mode at verl's loss."""

from typing import Any

import numpy as np
import pytest
import torch
from verl_world import client_of, compose, rows_of, sample, small, trainer_of, variant

from arpo.verl.leaves import handed, leaves_of, token_credit

PROMPTS, M = 4, 4
FAMILIES = ("hard", "tree", "reinforce++", "treerl")


@pytest.fixture(scope="module")
def managers(cluster: None, server: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Configurations and a manager per credit; one manager for each mode of the trainer, made when first asked for."""
    from arpo.verl.manager import ArpoLoopManager

    folder = tmp_path_factory.mktemp("verl")
    composed: list[Any] = []
    made: dict[str, Any] = {}

    def build(credit: str) -> Any:
        config = small(credit={"type": credit}, loss={"type": "clip", "old": "sampler"})
        if not composed:
            composed.append(compose(config, folder))
        hydra = variant(composed[0], config)
        mode = hydra.trainer.v1.trainer_mode
        if mode not in made:
            made[mode] = ArpoLoopManager.create(config=hydra, llm_client=client_of(hydra, server))
        return config, hydra, made[mode]

    yield build
    for manager in made.values():
        manager.close()


def test_soft_credit_is_verls_own_grpo_over_the_leaves(managers: Any, fresh: Any) -> None:
    _, hydra, manager = managers("soft")
    assert hydra.trainer.v1.trainer_mode == "sync"
    trainer = trainer_of(hydra, manager)
    batch = sample(trainer, PROMPTS)
    assert len(batch.keys) == PROMPTS * M
    uids = {key.rsplit("_", 2)[0] for key in batch.keys}
    assert sorted(batch.keys) == sorted(f"{uid}_{leaf}_0" for uid in uids for leaf in range(M))
    assert {tag["min_global_steps"] for tag in batch.tags} == {0}
    trainer._compute_old_log_prob(batch, {})
    trainer._compute_advantage(batch, {})
    data = rows_of(batch, "advantages", "response_mask", "rm_scores", "rollout_log_probs")
    rewards = np.array([row.sum().item() for row in data["rm_scores"].unbind()])
    groups = np.array([key.rsplit("_", 2)[0] for key in batch.keys])
    assert any(np.ptp(rewards[groups == uid]) > 0 for uid in uids), "no group has a signal: nothing is shown"
    for key, advantage, mask, logp, reward in zip(
        batch.keys,
        data["advantages"].unbind(),
        data["response_mask"].unbind(),
        data["rollout_log_probs"].unbind(),
        rewards,
        strict=True,
    ):
        group = rewards[groups == key.rsplit("_", 2)[0]]
        # Our population deviation is sqrt((M - 1) / M) of the sample's that verl divides by.
        ours = (reward - group.mean()) / (group.std() + 1e-6) * np.sqrt((M - 1) / M) if np.ptp(group) else 0.0
        assert np.allclose(advantage.numpy(), ours * mask.numpy(), atol=1e-4)
        assert (logp[mask == 0] == 0).all()
        assert (logp[mask == 1] < 0).any()


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_arrives_token_by_token_at_verls_loss(
    family: str, managers: Any, fresh: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from verl.trainer.ppo.padding_utils import upsample_batch_to_divisible_size

    from arpo.verl.trainer import trees_of

    config, hydra, manager = managers(family)
    assert hydra.trainer.v1.trainer_mode == "arpo"
    trainer = trainer_of(hydra, manager)
    assert type(trainer.replay_buffer).__name__ == "ReplayBuffer"
    batch = sample(trainer, PROMPTS)
    assert len(batch.keys) == PROMPTS * M
    batch = upsample_batch_to_divisible_size(batch, 24, trainer.tokenizer.eos_token_id)
    metrics: dict[str, Any] = {}
    trainer._compute_old_log_prob(batch, metrics)
    before = [row.clone() for row in rows_of(batch, "rm_scores")["rm_scores"].unbind()]
    trainer._compute_advantage(batch, metrics)

    arrived = advantages_at_the_loss(hydra, batch, monkeypatch)
    extra = list(rows_of(batch, "extra_fields")["extra_fields"])
    masks = [mask.numpy() for mask in rows_of(batch, "response_mask")["response_mask"].unbind()]
    padding = [bool(tag.get("is_padding")) for tag in batch.tags]
    assert sum(padding) == 24 - PROMPTS * M
    trees = trees_of(batch.keys, [{} if pads else row for row, pads in zip(extra, padding, strict=True)])
    expected = by_hand(config, batch, extra, masks, padding, trees)
    assert any(np.abs(row).max() > 0.01 for row in expected)
    for row, mask, own in zip(arrived, masks, expected, strict=True):
        assert np.allclose(row[: len(mask)], own, atol=1e-5)
        assert not row[len(mask) :].any()
    assert metrics["arpo/branches"] == np.mean([sum(d.opened for d in tree.decisions) for tree in trees.values()])
    assert metrics["arpo/branches"] > 0
    after = rows_of(batch, "rm_scores")["rm_scores"].unbind()
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True)), "rewards were touched"
    leaves = {(uid, leaf.index): leaf for uid, tree in trees.items() for leaf in leaves_of(tree)}
    for key, row, pads in zip(batch.keys, after, padding, strict=True):
        uid, leaf, _ = key.rsplit("_", 2)
        assert row.sum().item() == pytest.approx(0.0 if pads else leaves[uid, int(leaf)].reward_score)


def by_hand(config: Any, batch: Any, extra: Any, masks: Any, padding: Any, trees: Any) -> list[np.ndarray]:
    """What the loss should be handed, from the trees alone."""
    from arpo.credit import assign_all

    settings = config.credit
    credits = dict(zip(trees, assign_all(list(trees.values()), settings), strict=True))
    rows, counted = [], []
    for key, fields, pads in zip(batch.keys, extra, padding, strict=True):
        uid = key.rsplit("_", 2)[0]
        rows.append(None if pads else token_credit(trees[uid], credits[uid])[fields["arpo_leaf"]])
        counted.append(not pads and credits[uid].has_signal)
    if settings.type == "hard":  # weights are all 1: what is handed over is the advantage but for flat groups' tokens
        total = sum(int(mask.sum()) for mask in masks)
        ours = sum(int(mask.sum()) for mask, seen in zip(masks, counted, strict=True) if seen)
        return [
            np.zeros(len(mask)) if row is None or not seen else row.advantage_T * total / ours
            for row, mask, seen in zip(rows, masks, counted, strict=True)
        ]
    groups = [
        -1 if pads else list(trees).index(key.rsplit("_", 2)[0]) for key, pads in zip(batch.keys, padding, strict=True)
    ]
    return handed(rows, groups, masks, config.loss, counted=counted)


def advantages_at_the_loss(hydra: Any, batch: Any, monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """The advantages that `ppo_loss` hands to the policy loss, one padded row per trajectory."""
    from verl.utils import tensordict_utils as tu
    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers.utils import losses

    seen: list[torch.Tensor] = []

    def spy(advantages: torch.Tensor, **rest: Any) -> Any:
        seen.append(advantages)
        return advantages.sum() * 0, {}

    monkeypatch.setattr(losses, "get_policy_loss_fn", lambda mode: spy)
    data = rows_of(batch, "response_mask", "old_log_probs", "advantages", "prompts", "responses", "input_ids")
    for name in ("dp_size", "batch_num_tokens", "global_batch_size"):
        tu.assign_non_tensor_data(data, name, 1 if name == "dp_size" else None)
    log_probs = torch.nested.as_nested_tensor(
        [torch.zeros(len(row)) for row in data["input_ids"].unbind()], layout=torch.jagged
    )
    actor = omega_conf_to_dataclass(hydra.actor_rollout_ref.actor)
    losses.ppo_loss(actor, {"log_probs": log_probs}, data)
    return list(seen[0].numpy())


def test_validation_samples_independent_trajectories(managers: Any, fresh: Any) -> None:
    _, hydra, manager = managers("soft")
    trainer = trainer_of(hydra, manager)
    trainer.reward_loop_manager = type("Rewards", (), {"reward_loop_worker_handles": ()})()
    metrics = trainer._validate()
    assert hydra.actor_rollout_ref.rollout.val_kwargs.n == 2
    assert "val-core/arpo/reward/mean@2" in metrics
    assert 0 <= metrics["val-aux/arpo/accuracy/mean@2"] <= 1
    assert metrics["val-aux/num_turns/min"] >= 2


def test_one_tree_asks_for_less_than_its_leaves_would_alone(managers: Any, fresh: Any) -> None:
    import ray

    _, hydra, manager = managers("hard")
    batch = sample(trainer_of(hydra, manager), PROMPTS)
    data = rows_of(batch, "num_turns", "prompts")
    turns = sum(int(number) // 2 for number in data["num_turns"])
    assert ray.get(fresh.asked.remote()) > 0
    assert turns >= PROMPTS * M
    assert len({tuple(row.tolist()) for row in data["prompts"].unbind()}) == PROMPTS
