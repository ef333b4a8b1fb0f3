"""Which estimators of the policy gradient are unbiased on a tree, and what their variance costs: exactly.

For every credit family and branching rule, all groups of the toy episode are enumerated with their probabilities, the
credit room computes values and weights of each, and expectation and variance of

    estimate = sum over trajectories and policy tokens of weight * value * grad ln pi / E[weight on the first decision]

are finite sums. The divisor is a constant per family and rule (the trajectories of a group where each copy counts 1,
1 for `tree`): what a loss that averages over a large mini-batch divides by. At ratio 1 this is the update's gradient.

Credit sees shapes and rewards, so it is computed once for all groups that agree in both; for `READ_ENTROPIES` families
also in the entropies.

Suffixes: G groups, N policy tokens of a group's tree, R coordinates of the gradient.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from arpo.credit import CreditSettings, assign, credit_settings
from arpo.errors import ConfigError
from arpo.study.enumeration import BUDGETS, RULES, Group, RuleName, groups
from arpo.study.episode import Episode

FAMILIES = (
    "tree",
    "rloo",
    "dr_grpo",
    "grpo",
    "soft",
    "hard",
    "reinforce++",
    "treepo",
    "tree_grpo",
    "treerl",
    "at2po",
    "gigpo",
    "aepo",
)
READ_ENTROPIES = frozenset({"aepo"})
"""Families whose credit depends on the entropies of the tokens; that of all others on shapes and rewards alone."""


@dataclass(frozen=True, slots=True)
class Row:
    """One estimator under one branching rule. With m its expectation and g the true gradient:

    `cos`: of the angle between m and g. `scale`: m's component along g, over |g|; 1 without bias. `off_direction`: m's
    component orthogonal to g, over its component along g (the tangent of that angle): what no learning rate mends.
    `bias`: |m - g| / |g|. `variance`: trace of the covariance / (scale |g|)^2, so the number of groups to average until
    noise equals signal. `tokens`, `calls`, `trajectories`: expected per group; `variance_tokens`, `variance_calls`:
    what that many groups cost.
    """

    family: str
    rule: RuleName
    cos: float
    off_direction: float
    scale: float
    bias: float
    variance: float
    tokens: float
    calls: float
    trajectories: float

    @property
    def variance_tokens(self) -> float:
        """Sampled tokens until noise equals signal."""
        return self.variance * self.tokens

    @property
    def variance_calls(self) -> float:
        """Executed tool calls until noise equals signal."""
        return self.variance * self.calls


@dataclass(frozen=True, eq=False)
class Cluster:
    """Groups of one shape with the same rewards: `probability_G`, and `pair_GN`, the decisions behind their tokens."""

    groups: tuple[Group, ...]
    probability_G: np.ndarray
    pair_GN: np.ndarray


def measure(episode: Episode, families: Sequence[str] = FAMILIES, rules: Sequence[RuleName] = RULES) -> Iterator[Row]:
    """A row for every rule and family. Raises ConfigError for an unknown one."""
    known = (*RULES, *BUDGETS)
    for rule in rules:
        if rule not in known:
            raise ConfigError(f"there is no way of branching {rule!r} in this study; known are {', '.join(known)}")
    chosen = [credit_settings(family) for family in families]
    for rule in rules:
        clusters = cluster(groups(episode, rule))
        for settings in chosen:
            yield _row(episode, rule, clusters, settings)


def cluster(found: Sequence[Group]) -> list[Cluster]:
    """Groups by shape and rewards."""
    alike: dict[tuple, list[Group]] = defaultdict(list)
    for group in found:
        alike[group.key].append(group)
    return [
        Cluster(tuple(same), np.array([g.probability for g in same]), np.array([g.pairs for g in same]))
        for same in alike.values()
    ]


def expectation(episode: Episode, clusters: Sequence[Cluster], settings: CreditSettings) -> tuple[np.ndarray, float]:
    """(mean of the estimate, float64 `[R]`; trace of its covariance)."""
    mean_R, square, divisor = np.zeros(len(episode.scores)), 0.0, 0.0
    for one in clusters:
        estimate_GR, mass_G = _estimates(episode, one, settings)
        mean_R += one.probability_G @ estimate_GR
        square += float(one.probability_G @ (estimate_GR**2).sum(axis=1))
        divisor += float((one.probability_G * mass_G).sum())
    mean_R /= divisor
    return mean_R, square / divisor**2 - float(mean_R @ mean_R)


def coefficients(group: Group, settings: CreditSettings) -> tuple[np.ndarray, float]:
    """What multiplies grad ln pi of each policy token: sum over its copies of weight * value, float64 `[N]`; and the
    total weight on the first decision."""
    tree = group.tree
    credit = assign(tree, settings)
    sizes = [len(segment) for segment in tree.segments]
    starts = np.cumsum([0, *sizes])
    total, mass = np.zeros(starts[-1]), 0.0
    for leaf, value, weight in zip(tree.leaves, credit.values, credit.weights, strict=True):
        if value is None or weight is None:
            raise ValueError(f"{settings.type} left out a trajectory that has a reward")
        path = tree.ancestry(leaf)
        place_T = np.concatenate([np.arange(starts[node], starts[node + 1]) for node in path])
        size_path = [sizes[node] for node in path]
        value_T = value if credit.per_token else np.repeat(value, size_path)
        total[place_T] += value_T * np.repeat(weight, size_path)
        mass += float(weight[1])
    return total[np.repeat([segment.is_policy for segment in tree.segments], sizes)], mass


def _estimates(episode: Episode, one: Cluster, settings: CreditSettings) -> tuple[np.ndarray, np.ndarray]:
    """Undivided estimate of every group, float64 `[G, R]`, and weight on its first decision, `[G]`."""
    first, which_G = _distinct(episode, one, settings)
    answers = [coefficients(one.groups[place], settings) for place in first]
    coefficient_GN = np.stack([coefficient_N for coefficient_N, _ in answers])[which_G]
    estimate_GR = np.zeros((len(one.groups), len(episode.scores)))
    for n, pair_G in enumerate(one.pair_GN.T):
        estimate_GR += coefficient_GN[:, n, None] * episode.scores[pair_G]
    return estimate_GR, np.array([mass for _, mass in answers])[which_G]


def _distinct(episode: Episode, one: Cluster, settings: CreditSettings) -> tuple[np.ndarray, np.ndarray]:
    """Places of groups that stand for all, as far as credit can tell, and which of them stands for each group `[G]`."""
    if settings.type not in READ_ENTROPIES:
        return np.zeros(1, np.int64), np.zeros(len(one.groups), np.int64)
    entropy_GN = episode.entropies[one.pair_GN // 2].round(9)
    _, first, which_G = np.unique(entropy_GN, axis=0, return_index=True, return_inverse=True)
    return first, which_G.ravel()


def _row(episode: Episode, rule: RuleName, clusters: Sequence[Cluster], settings: CreditSettings) -> Row:
    mean_R, variance = expectation(episode, clusters, settings)
    true_R = episode.gradient
    length = float(np.linalg.norm(true_R))
    along = float(mean_R @ true_R) / length
    across = float(np.linalg.norm(mean_R - along * true_R / length))
    tokens, calls, trajectories = _costs(clusters)
    return Row(
        family=settings.type,
        rule=rule,
        cos=along / float(np.hypot(along, across)),
        off_direction=across / abs(along),
        scale=along / length,
        bias=float(np.linalg.norm(mean_R - true_R)) / length,
        variance=variance / along**2,
        tokens=tokens,
        calls=calls,
        trajectories=trajectories,
    )


def _costs(clusters: Sequence[Cluster]) -> tuple[float, float, float]:
    """Expected sampled tokens, executed calls and trajectories of a group."""
    total = np.zeros(3)
    for one in clusters:
        tree = one.groups[0].tree
        cost = (tree.generated_tokens, tree.tool_calls, len(tree.leaves))
        total += one.probability_G.sum() * np.array(cost, np.float64)
    return float(total[0]), float(total[1]), float(total[2])


def to_dict(episode: Episode, rows: Sequence[Row]) -> dict[str, object]:
    """The study as plain values for JSON: the episode, its true gradient, a record per row."""
    return {
        "episode": {"first": list(episode.first_S), "reward": list(episode.reward_O)},
        "expected_reward": episode.expected_reward,
        "gradient": episode.gradient.tolist(),
        "rows": [
            asdict(row) | {"variance_tokens": row.variance_tokens, "variance_calls": row.variance_calls} for row in rows
        ],
    }
