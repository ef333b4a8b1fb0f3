"""What one step of training is made of, in tokens: the work that everything else is priced by.

Groups are grown on paper as in the dry run (`config.dry_run_counts`): every trajectory samples L tokens and makes T
calls, spread evenly, each answered by r tokens; N + U trajectories start at the prompt of p tokens, and a branch at
depth d opens right behind result d. From there on it is a trajectory of its own, so with n = L + T r:

    sampled   (N + U) L + sum L (T + 1 - d) / (T + 1)
    calls     (N + U) T + sum (T - d)
    stem(d)   L d / (T + 1) + d r                      response tokens that a branch shares with its sibling
    unique    p + (N + U) n + sum (n - stem(d))
    flat      M (p + n)                                rho = flat / unique
    pairs     p^2 / 2 + (N + U) ((p + n)^2 - p^2) / 2 + sum ((p + n)^2 - (p + stem(d))^2) / 2

Pairs are those of query and key that a causal kernel visits; flat they are M (p + n)^2 / 2. Labels, the states whose
next token is scored, are the sampled tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from arpo.config.dry_run_counts import Group, group_load, grown
from arpo.errors import ConfigError
from arpo.rollout.settings import RandomRule, RolloutSettings

PROMPT = 512
"""Tokens of a prompt where nothing is known of it."""
RESULT = 400
"""Tokens of a tool result where nothing is known: the published search cache's median of 1,625 characters
(docs/search.md), at about four characters to a token."""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """The mean trajectory: prompt tokens p, sampled tokens L, calls T, tokens of a result r."""

    prompt: int
    sampled: int
    calls: int
    result: int

    @property
    def response(self) -> int:
        """n"""
        return self.sampled + self.calls * self.result

    @property
    def whole(self) -> int:
        return self.prompt + self.response

    def stem(self, depth: int) -> float:
        """Response tokens up to behind result `depth`."""
        return self.sampled * depth / (self.calls + 1) + depth * self.result


@dataclass(frozen=True, slots=True)
class Work:
    """One step. `prompts` groups of `group` trajectories each; `branches`, `top_ups` per group; the rest per step.

    `sampled`: by the policy, look-ahead included, each token once; `unique`, `flat`: tokens that a tree and padded-free
    rows hold; `pairs`, `flat_pairs`; `labels`, `flat_labels`.
    """

    trajectory: Trajectory
    prompts: int
    group: int
    branches: float
    top_ups: float
    sampled: float
    calls: float
    unique: float
    flat: float
    pairs: float
    flat_pairs: float
    labels: float
    flat_labels: float

    @property
    def trajectories(self) -> int:
        return self.prompts * self.group

    @property
    def sharing(self) -> float:
        """rho"""
        return self.flat / self.unique


def trajectory(
    rollout: RolloutSettings,
    used: float,
    *,
    has_tools: bool = True,
    prompt: int = PROMPT,
    result: int = RESULT,
    sampled: int | None = None,
    calls: int | None = None,
) -> Trajectory:
    """The mean trajectory that uses a share `used` of its limits, or what is given instead of them.

    Raises ConfigError where it does not fit into `rollout.max_tokens`.
    """
    made = calls if calls is not None else round(rollout.max_calls * used + 0.49) if has_tools else 0
    drawn = sampled if sampled is not None else round(rollout.max_tokens * used + 0.49)
    room = rollout.max_tokens - drawn
    if drawn < 1 or made < 0 or prompt < 1 or result < 0 or room < 0:
        raise ConfigError(
            f"a trajectory of {prompt} + {drawn} tokens and {made} calls with results of {result}: it takes at least 1 "
            f"token of prompt and 1 sampled one, and no more than rollout.max_tokens = {rollout.max_tokens} of these"
        )
    return Trajectory(prompt, drawn, made, min(result, room // made) if made else 0)


def with_share(rollout: RolloutSettings, share: float | None) -> RolloutSettings:
    """The same rollout, in which a rule fires with probability `share` after every result; None: as it is."""
    if share is None or not rollout.may_branch:
        return rollout
    if not 0 < share <= 1:
        raise ConfigError(f"--branch-share {share:g}: it lies between 0 and 1; without branches set rollout.initial")
    return rollout.model_copy(update={"branching": RandomRule(probability=share, at="state")})


def work(rollout: RolloutSettings, mean: Trajectory, prompts: int, window: int = 20) -> Work:
    """One step of `prompts` groups of such trajectories. `window`: k, what look-ahead spends at every result."""
    groups = grown(rollout, mean.calls, mean.sampled)
    loads = [group_load(rollout, group, mean.calls, mean.sampled, window) for group in groups]
    plain = [group_load(rollout, group, mean.calls, mean.sampled, 0)[0] for group in groups]
    return Work(
        trajectory=mean,
        prompts=prompts,
        group=rollout.total,
        branches=_mean([len(group.depths) for group in groups]),
        top_ups=_mean([group.top_ups for group in groups]),
        sampled=prompts * _mean([tokens for tokens, _ in loads]),
        calls=prompts * _mean([calls for _, calls in loads]),
        unique=prompts * _mean([_unique(group, mean) for group in groups]),
        flat=float(prompts * rollout.total * mean.whole),
        pairs=prompts * _mean([_pairs(group, mean) for group in groups]),
        flat_pairs=prompts * rollout.total * mean.whole**2 / 2,
        labels=prompts * _mean(plain),
        flat_labels=float(prompts * rollout.total * mean.sampled),
    )


def _unique(group: Group, mean: Trajectory) -> float:
    whole = group.roots + group.top_ups
    return mean.prompt + whole * mean.response + sum(mean.response - mean.stem(depth) for depth in group.depths)


def _pairs(group: Group, mean: Trajectory) -> float:
    def below(start: float) -> float:
        return (mean.whole**2 - start**2) / 2

    branches = sum(below(mean.prompt + mean.stem(depth)) for depth in group.depths)
    return mean.prompt**2 / 2 + (group.roots + group.top_ups) * below(mean.prompt) + branches


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
