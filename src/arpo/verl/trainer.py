"""verl's synchronous trainer with our advantages: `trainer.v1.trainer_mode = "arpo"`.

Everything is verl's but one number per token. Its own step runs first, as it stands: rollout correction, rejection and
what else it derives are written by it. Then the advantages are replaced by those of the configured family, computed
over the trees of the whole batch (which the workers send along with a group's first leaf), so that families which
normalise over a batch have it. Rewards (`rm_scores`) are left alone, and so verl's figures of them.

verl knows of the mode "sync" in several places and takes every other one for asynchronous; this trainer is as
synchronous as that one and says so.

Source of the interface: verl 0.9.1, `trainer/ppo/v1/trainer_base.py`.
"""

import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import transfer_queue as tq
from tensordict import TensorDict
from verl.trainer.ppo.v1 import PPOTrainerSync, register_trainer

from arpo.config.schema import Config
from arpo.credit import assign_all
from arpo.errors import EngineDownError, EngineError
from arpo.train.stats import rollout_stats
from arpo.tree import RolloutTree
from arpo.verl.checks import OURS, STOCK, check, read_config
from arpo.verl.leaves import TokenCredit, handed, token_credit


@register_trainer(OURS)
class ArpoTrainer(PPOTrainerSync):
    """PPOTrainerSync whose advantages are ours, per token. Adds the rollout's figures to verl's metrics."""

    def __init__(self, config: Any) -> None:
        """Raises ConfigError where verl's configuration and ours disagree."""
        self._ours = read_config(config)
        check(config, self._ours)
        super().__init__(config)

    @property
    def trainer_mode(self) -> str:
        """What verl's base class asks for: whether sampling is synchronous. It is."""
        return STOCK

    @trainer_mode.setter
    def trainer_mode(self, mode: str) -> None:
        """The base class sets what the configuration says; that was checked."""

    def step(self, metrics: dict[str, Any], timing_raw: dict[str, Any]) -> Any:
        """verl's step; where it found nothing to train on because the server is gone, the error says that."""
        try:
            return super().step(metrics, timing_raw)
        except RuntimeError as error:
            found = self.agent_loop_manager.troubles()
            if not found:
                raise
            raise EngineDownError(f"no trajectory of this step is left: {found[0]}") from error

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        batch = super()._compute_advantage(batch, metrics)
        data = tq.kv_batch_get(
            keys=batch.keys, partition_id=batch.partition_id, select_fields=["response_mask", "extra_fields"]
        )
        masks = [mask.numpy() for mask in data["response_mask"].unbind()]
        padding = [bool(tag.get("is_padding", False)) for tag in batch.tags]
        extra = [{} if pads else row for row, pads in zip(data["extra_fields"], padding, strict=True)]
        trees = trees_of(batch.keys, extra)
        metrics.update(rollout_stats(list(trees.values())))
        values = advantages(self._ours, batch.keys, extra, masks, trees)
        nested = torch.nested.as_nested_tensor(
            [torch.from_numpy(value.astype(np.float32)) for value in values], layout=torch.jagged
        )
        fields = TensorDict({"advantages": nested, "returns": nested.clone()}, batch_size=len(batch))
        return tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=fields)


def trees_of(keys: Sequence[str], extra: Sequence[Mapping[str, Any]]) -> dict[str, RolloutTree]:
    """The tree of every group (by its prompt's uid) among these rows, in the order of the rows.

    EngineError for a group whose tree did not come along. A row without extra fields (padding) is of no group.
    """
    found: dict[str, RolloutTree] = {}
    groups = {_group(key): None for key, fields in zip(keys, extra, strict=True) if fields}
    for key, fields in zip(keys, extra, strict=True):
        if "arpo_tree" in fields:
            found[_group(key)] = pickle.loads(fields["arpo_tree"])
    missing = [uid for uid in groups if uid not in found]
    if missing:
        raise EngineError(f"group {missing[0]}: its rows came without their tree; are all agent workers of ours?")
    return {uid: found[uid] for uid in groups}


def advantages(
    config: Config,
    keys: Sequence[str],
    extra: Sequence[Mapping[str, Any]],
    masks: Sequence[np.ndarray],
    trees: Mapping[str, RolloutTree],
) -> list[np.ndarray]:
    """What verl's loss is handed for each row, float64 `[T]`; zeros for padding. See `arpo.verl.leaves.handed`."""
    uids = list(trees)
    credits = dict(zip(uids, assign_all(list(trees.values()), config.credit), strict=True))
    per_leaf = {uid: token_credit(trees[uid], credits[uid]) for uid in uids}
    acts = bool(config.loss.kl or config.loss.entropy_bonus)
    rows: list[TokenCredit | None] = []
    for key, fields in zip(keys, extra, strict=True):
        rows.append(per_leaf[_group(key)][fields["arpo_leaf"]] if fields else None)
    return handed(
        rows,
        [uids.index(_group(key)) if fields else -1 for key, fields in zip(keys, extra, strict=True)],
        masks,
        config.loss,
        counted=[bool(f) and (acts or credits[_group(key)].has_signal) for key, f in zip(keys, extra, strict=True)],
    )


def _group(key: str) -> str:
    """The prompt's uid in a row's key, `{uid}_{session}_{index}`."""
    return key.rsplit("_", 2)[0]
