"""What a configuration amounts to: prompts, trajectories, optimiser steps, and what a step samples and calls.

The first are products. The others depend on the policy, so they are told twice: the most that the limits allow, and
what comes of trajectories that use *half* of what they may (tokens and calls, spread evenly). For those, groups are
grown on paper: the rollout's own budget gives out the branches, the rule fires with its own probability where that is
known beforehand (`random`, `bernoulli` at dH = 0) and else after every result.

With N trajectories from the prompt, U of them top-ups, and branches at depths d, T calls and L tokens per trajectory:

    calls  = (N + U) T + sum (T - d)
    tokens = (N + U) L + sum L (T + 1 - d) / (T + 1)

The first line is the counting identity of docs/method.md: N trajectories make all their calls, whatever branches save.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from arpo.rollout.budget import Budget, child_path
from arpo.rollout.settings import BernoulliRule, NoBranching, RandomRule, RolloutSettings
from arpo.seeds import derive, uniform
from arpo.train.settings import TrainSettings

USED = 0.5
"""Share of its tokens and calls that a trajectory of the expected step uses."""
_GROUPS = 64
"""Groups grown on paper, for rules that draw."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Of one step: `prompts`, `trajectories`, `updates` (optimiser steps) of `mini_batch` prompts. Of the whole run:
    `steps` and what they add up to; `epochs`: passes over the tasks, None if these are not known. With dynamic sampling
    a step draws up to `rounds` times its prompts, and epochs are those of one round.
    """

    prompts: int
    trajectories: int
    mini_batch: int
    updates: int
    rounds: int
    steps: int
    all_trajectories: int
    all_updates: int
    epochs: float | None


def batch(train: TrainSettings, rollout: RolloutSettings, tasks: int | None) -> Batch:
    """The arithmetic of a run over so many tasks."""
    size = train.mini_batch or train.prompts
    updates = train.prompts // size
    return Batch(
        prompts=train.prompts,
        trajectories=train.prompts * rollout.total,
        mini_batch=size,
        updates=updates,
        rounds=train.max_rounds if train.resample_flat else 1,
        steps=train.steps,
        all_trajectories=train.steps * train.prompts * rollout.total,
        all_updates=train.steps * updates,
        epochs=train.steps * train.prompts / tasks if tasks else None,
    )


@dataclass(frozen=True, slots=True)
class Load:
    """Tokens that the policy samples (look-ahead included) and tool calls that it makes."""

    tokens: float
    calls: float

    def times(self, factor: float) -> "Load":
        return Load(self.tokens * factor, self.calls * factor)


@dataclass(frozen=True, slots=True)
class Costs:
    """Loads of one step. `expected`: every trajectory samples `tokens` and makes `calls`; `branches`, `top_ups` per
    group. `independent`: the same trajectories without branches. `largest`: what the limits allow, all rounds included.
    """

    tokens: int
    calls: int
    branches: float
    top_ups: float
    expected: Load
    independent: Load
    largest: Load


def costs(train: TrainSettings, rollout: RolloutSettings, window: int, *, has_tools: bool, room: int) -> Costs:
    """What a step samples and calls. `window`: k, which look-ahead spends at every result; `room`: response tokens of a
    trajectory, which a short context may leave less of than `rollout.max_tokens`.
    """
    rollout = rollout.model_copy(update={"max_tokens": room})
    limit = rollout.max_calls if has_tools else 0
    calls, tokens = math.ceil(limit * USED), math.ceil(rollout.max_tokens * USED)
    paper = grown(rollout, calls, tokens)
    expected = [group_load(rollout, group, calls, tokens, window) for group in paper]
    most = rollout.max_tokens + (window * limit if _looks_ahead(rollout) else 0)
    rounds = train.max_rounds if train.resample_flat else 1
    return Costs(
        tokens=tokens,
        calls=calls,
        branches=sum(len(group.depths) for group in paper) / len(paper),
        top_ups=sum(group.top_ups for group in paper) / len(paper),
        expected=Load(*(sum(parts) / len(paper) for parts in zip(*expected, strict=True))).times(train.prompts),
        independent=Load(tokens, calls).times(train.prompts * rollout.total),
        largest=Load(most, limit).times(train.prompts * rollout.total * rounds),
    )


@dataclass(frozen=True, slots=True)
class Group:
    """`roots` from the prompt at first, branches by the depth they opened at, and fresh trajectories at the end."""

    roots: int
    depths: tuple[int, ...]
    top_ups: int


def grown(rollout: RolloutSettings, calls: int, tokens: int) -> list[Group]:
    """Groups on paper, in which every trajectory makes `calls` calls and samples `tokens`: one, or several for rules
    that draw.
    """
    return [_grown(rollout, calls, tokens, number) for number in range(_GROUPS if _draws(rollout) else 1)]


def group_load(rollout: RolloutSettings, group: Group, calls: int, tokens: int, window: int) -> tuple[float, float]:
    """Tokens and calls of one such group, by the formulas above."""
    whole = group.roots + group.top_ups
    sampled = whole * tokens + sum(tokens * (calls + 1 - depth) / (calls + 1) for depth in group.depths)
    called = whole * calls + sum(calls - depth for depth in group.depths)
    decisions = called if _looks_ahead(rollout) else 0
    return sampled + decisions * window, float(called)


def _grown(rollout: RolloutSettings, calls: int, tokens: int, number: int) -> Group:
    """One group, in which every trajectory makes `calls` calls."""
    roots = max(rollout.total // 2, min(2, rollout.total)) if rollout.monitors else rollout.initial
    if not rollout.may_branch:
        return Group(rollout.total, (), 0)
    seeds = ("dry run", number)
    budget = Budget(
        rollout.total - roots, rollout.budget, rollout.branches, lambda path, depth: derive(*seeds, path, depth)
    )
    paths = [f"r{root}" for root in range(int(rollout.monitors), roots)]  # the one that monitors does not branch
    for path in paths:
        budget.enter(path)
    depths: list[int] = []
    for depth in range(1, calls + 1):
        left = round(rollout.max_tokens - tokens * depth / (calls + 1))
        for path in paths:
            _decide(rollout, budget, path, left, uniform(*seeds, path, depth, "draw"))
        for grant in budget.settle():
            depths += [depth] * grant.opened
            paths += [child_path(grant.claim.path, depth, child) for child in range(1, grant.opened + 1)]
    return Group(roots, tuple(depths), rollout.total - roots - len(depths))


def _decide(rollout: RolloutSettings, budget: Budget, path: str, left: int, draw: float) -> None:
    fires = draw < _probability(rollout) and not budget.refusal(path, left)
    if fires:
        budget.claim(path, rollout.branches)
    else:
        budget.skip(path)


def _probability(rollout: RolloutSettings) -> float:
    rule = rollout.branching
    if isinstance(rule, RandomRule):
        return rule.probability
    return rule.base_probability if isinstance(rule, BernoulliRule) else 1.0


def _draws(rollout: RolloutSettings) -> bool:
    return rollout.may_branch and 0 < _probability(rollout) < 1


def _looks_ahead(rollout: RolloutSettings) -> bool:
    return rollout.may_branch and not isinstance(rollout.branching, NoBranching) and rollout.branching.lookahead


def quantiles(counts: Sequence[int]) -> Mapping[str, int]:
    """Least, median, 90 %, 99 % and largest of some counts (nearest rank, so each is one of them)."""
    ordered = sorted(counts)
    ranks = {"least": 0.0, "median": 0.5, "90 %": 0.9, "99 %": 0.99, "most": 1.0}
    return {name: ordered[max(0, math.ceil(share * len(ordered)) - 1)] for name, share in ranks.items()}
