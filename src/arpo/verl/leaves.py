"""A scored tree as the rows that verl trains on: one record per leaf, and what its loss is handed per token.

A leaf is a whole trajectory: the prompt, then everything that followed, with a mask on what the policy sampled. Shared
tokens stand in every leaf below them, because verl knows rows and no trees.

verl's loss knows advantages and no weights, and averages in its own way. Its surrogates are positively homogeneous in
the advantage, so a factor c >= 0 on a token's term is a factor on its advantage. What verl is handed is therefore

    A' = A * (our coefficient of the token) / (verl's coefficient of the token)

with our coefficient from `arpo.learn.losses.aggregation`, and verl's, over the R rows of the batch, T of whose tokens
are in the mask and T_r of them in row r:

    token_mean     token-mean                 1 / T          sequence_mean  seq-mean-token-mean   1 / (R T_r)
    constant       seq-mean-token-sum-norm    1 / (R L)      group_sum      seq-mean-token-sum    1 / R

R counts rows that carry nothing (padding, a group without signal): verl divides by them, we do not, and the quotient
puts it right. Exact where one mini-batch is the whole step; where there are several, verl divides each by its own
numbers, and the identity holds for their sum only if they are alike. Terms without an advantage (KL, entropy) are not
weighted. Source of verl's coefficients: verl 0.9.1, `core_algos.agg_loss` as `ppo_loss` calls it.

Nothing here imports verl, Ray or torch. Shapes: T response tokens of one trajectory, R rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from arpo.credit.base import Credit
from arpo.learn.losses.aggregation import coefficients
from arpo.learn.settings import LossBase
from arpo.tree import Path, RolloutTree

VERL_AGGREGATIONS: Mapping[str, str] = {
    "token_mean": "token-mean",
    "sequence_mean": "seq-mean-token-mean",
    "constant": "seq-mean-token-sum-norm",
    "group_sum": "seq-mean-token-sum",
}
"""verl's name of each aggregation of ours."""


@dataclass(frozen=True, slots=True, eq=False)
class TokenCredit:
    """One trajectory's response tokens: advantage and weight, float64 `[T]`, 0 where the policy sampled nothing."""

    advantage_T: np.ndarray
    weight_T: np.ndarray

    def masked(self, mask_T: np.ndarray) -> "TokenCredit":
        """The same without the tokens that `mask_T` leaves out."""
        kept_T = mask_T.astype(bool)
        return TokenCredit(np.where(kept_T, self.advantage_T, 0.0), np.where(kept_T, self.weight_T, 0.0))


@dataclass(frozen=True, slots=True, eq=False)
class Leaf:
    """One trajectory under verl's names. `index`: among the tree's leaves; `tool_seconds`: of the calls on its path.

    `response_mask` is 1 on what the policy sampled and nowhere else; `response_logprobs` 0.0 elsewhere. `parts`: the
    named components of the reward.
    """

    index: int
    prompt_ids: list[int]
    response_ids: list[int]
    response_mask: list[int]
    response_logprobs: list[float]
    reward_score: float
    num_turns: int
    tool_seconds: float
    parts: dict[str, float]
    versions: tuple[int, int]
    """The oldest and the newest weights that sampled it."""

    def extra_fields(self) -> dict[str, Any]:
        """What verl keeps beside the row: components of the reward for its tables, weight versions for its tags."""
        oldest, newest = self.versions
        return {
            "reward_extra_info": dict(self.parts),
            "min_global_steps": oldest,
            "max_global_steps": newest,
            "arpo_leaf": self.index,
        }


def leaves_of(tree: RolloutTree) -> list[Leaf]:
    """The tree's trajectories that have a reward, in the order of its leaves. ValueError for a tree without outcomes.

    What the infrastructure lost is not there: it has no row, so verl can make no reward of it.
    """
    if len(tree.outcomes) != len(tree.leaves):
        raise ValueError(f"tree {tree.task_id}: {len(tree.outcomes)} outcomes for {len(tree.leaves)} trajectories")
    return [_leaf(tree, index) for index, reward in enumerate(tree.rewards) if reward is not None]


def _leaf(tree: RolloutTree, index: int) -> Leaf:
    path, outcome = tree.path(tree.leaves[index]), tree.outcomes[index]
    assert outcome.reward is not None
    start = len(tree.segments[0])
    own = [tree.segments[node] for node in path.nodes[1:]]
    versions = [segment.version for segment in own if segment.is_policy] or [0]
    return Leaf(
        index=index,
        prompt_ids=path.token_T[:start].tolist(),
        response_ids=path.token_T[start:].tolist(),
        response_mask=path.policy_T[start:].astype(int).tolist(),
        response_logprobs=path.logprob_T[start:].astype(float).tolist(),
        reward_score=float(outcome.reward),
        num_turns=_turns(tree, path),
        tool_seconds=sum(segment.event.latency for segment in own if segment.event is not None),
        parts={name: float(value) for name, value in outcome.parts.items()},
        versions=(min(versions), max(versions)),
    )


def _turns(tree: RolloutTree, path: Path) -> int:
    """Turns as verl counts them: the user's, and each of the policy and of those who answer it. A turn that a branch
    cut in two is one."""
    policy = [tree.segments[node].is_policy for node in path.nodes]
    return sum(1 for node in range(len(policy)) if not (node and policy[node] and policy[node - 1]))


def token_credit(tree: RolloutTree, credit: Credit) -> list[TokenCredit | None]:
    """Per leaf, advantage and weight of each response token; None for a trajectory without reward."""
    found: list[TokenCredit | None] = []
    for leaf, value, weight in zip(tree.leaves, credit.values, credit.weights, strict=True):
        if value is None or weight is None:
            found.append(None)
            continue
        nodes = tree.ancestry(leaf)
        size = [len(tree.segments[node]) for node in nodes]
        value_T = value if credit.per_token else np.repeat(value, size)
        start = len(tree.segments[0])
        found.append(TokenCredit(value_T[start:].astype(np.float64), np.repeat(weight, size)[start:]))
    return found


def handed(
    credits: Sequence[TokenCredit | None],
    groups: Sequence[int],
    masks: Sequence[np.ndarray],
    loss: LossBase,
    *,
    counted: Sequence[bool] | None = None,
) -> list[np.ndarray]:
    """A' of each row, float64 `[T]`: what verl's aggregation makes our loss of, if these rows are one mini-batch.

    `credits`: None for a row that carries nothing (padding); `masks`: verl's mask `[T]` of each row, which may leave
    tokens out that the policy sampled (rejection); `groups`: which group each row is of. `counted`: rows that our loss
    looks at, all by default (a group without signal is none of them).
    """
    known = [
        TokenCredit(np.zeros(len(mask)), np.zeros(len(mask))) if credit is None else credit.masked(mask)
        for credit, mask in zip(credits, masks, strict=True)
    ]
    looked = [True] * len(known) if counted is None else list(counted)
    weights = [row.weight_T if seen else np.zeros_like(row.weight_T) for row, seen in zip(known, looked, strict=True)]
    ours = coefficients(weights, groups, loss)
    theirs = _their_coefficients([int(np.count_nonzero(mask)) for mask in masks], loss)
    return [row.advantage_T * own / other for row, own, other in zip(known, ours, theirs, strict=True)]


def _their_coefficients(tokens: Sequence[int], loss: LossBase) -> list[float]:
    """What verl multiplies each term of a row with. `tokens`: in the row's mask. 1.0 where the row has none."""
    rows, total = len(tokens), sum(tokens)
    if loss.aggregation == "token_mean":
        return [1 / total if total else 1.0] * rows
    if loss.aggregation == "sequence_mean":
        return [1 / (rows * own) if own else 1.0 for own in tokens]
    return [1 / (rows * loss.length) if loss.aggregation == "constant" else 1 / rows] * rows
