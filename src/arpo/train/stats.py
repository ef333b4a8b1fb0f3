"""One step's trees as one metrics row: what the rollout, the tools and the branching did.

Everything is read from the trees, not from counters of live objects, so a resumed or re-run step gives the same row.
Names follow what users of other trainers know (`reward`, `frac_reward_zero_std`, `completions/mean_length`, ...).
"""

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from arpo.tree import Finish, RolloutTree, ToolEvent


def mean(values: Sequence[float]) -> float:
    """The mean, 0.0 of nothing."""
    return float(np.mean(values)) if len(values) else 0.0


def rollout_stats(trees: Sequence[RolloutTree]) -> dict[str, float]:
    """Metrics of scored trees. Rewards of None count in `reward/none_frac` and nowhere else."""
    return _reward_stats(trees) | _length_stats(trees) | _tool_stats(trees) | _branch_stats(trees)


def has_signal(tree: RolloutTree) -> bool:
    """Whether the rewards of the group differ: without that no advantage is non-zero."""
    rewards = [reward for reward in tree.rewards if reward is not None]
    return len(rewards) > 1 and max(rewards) - min(rewards) > 0


def _reward_stats(trees: Sequence[RolloutTree]) -> dict[str, float]:
    outcomes = [outcome for tree in trees for outcome in tree.outcomes]
    rewards = [outcome.reward for outcome in outcomes if outcome.reward is not None]
    groups = [[r for r in tree.rewards if r is not None] for tree in trees]
    stats = {
        "reward": mean(rewards),
        "reward/std": mean([float(np.std(group)) for group in groups if group]),
        "reward/none_frac": 1 - len(rewards) / max(len(outcomes), 1),
        "frac_reward_zero_std": mean([not has_signal(tree) for tree in trees]),
    }
    parts: dict[str, list[float]] = defaultdict(list)
    for outcome in outcomes:
        for name, value in outcome.parts.items():
            parts[name].append(value)
    return stats | {f"reward/{name}/mean": mean(values) for name, values in sorted(parts.items())}


def _length_stats(trees: Sequence[RolloutTree]) -> dict[str, float]:
    lengths: list[int] = []
    ends: list[Finish] = []
    entropies: list[np.ndarray] = []
    for tree in trees:
        sizes = np.array([len(s) if s.is_policy else 0 for s in tree.segments])
        for leaf in tree.leaves:
            lengths.append(int(sizes[list(tree.ancestry(leaf))].sum()))
            ends.append(tree.segments[leaf].finish)
        entropies.extend(s.entropies for s in tree.segments if s.is_policy)
    return {
        "completions/mean_length": mean(lengths),
        "completions/clipped_ratio": mean([end is Finish.LENGTH for end in ends]),
        "void_turn_frac": mean([end is not Finish.STOP for end in ends]),
        "entropy": mean(np.concatenate(entropies).tolist()) if entropies else 0.0,
        "arpo/shared_token_frac": 1 - 1 / mean([tree.sharing for tree in trees]) if trees else 0.0,
    }


def _tool_stats(trees: Sequence[RolloutTree]) -> dict[str, float]:
    """`requested` calls were answered, `executed` ones ran, `shared` ones were answered by an equal call of the group.

    What is said of a single tool is said of the calls that ran, but for `requested` and `infra_errors`: trajectories
    that a failure of its machinery ended.
    """
    events = [s.event for tree in trees for s in tree.segments if s.event is not None]
    leaves = sum(len(tree.leaves) for tree in trees)
    requested, executed = (sum(getattr(t, name) for t in trees) for name in ("requested_calls", "tool_calls"))
    stats = {
        "tools/calls_per_rollout": executed / max(leaves, 1),
        "tools/refused_frac": mean([not event.executed for event in events]),
        "tools/requested": float(requested),
        "tools/executed": float(executed),
        "tools/shared": float(requested - executed),
    }
    failures = Counter(event.name for event in events if event.status == "infra_error")
    for name in sorted({event.name for event in events if event.executed} | set(failures)):
        mine = [event for event in events if event.executed and event.name == name]
        stats[f"tools/{name}/infra_errors"] = float(failures[name])
        stats[f"tools/{name}/requested"] = float(len(mine))
        stats |= _one_tool(name, [event for event in mine if not event.shared])
    failed = sum(tree.segments[leaf].finish is Finish.ERROR for tree in trees for leaf in tree.leaves)
    return stats | {"tools/infra_errors": float(failed)}


def _one_tool(name: str, ran: Sequence[ToolEvent]) -> dict[str, float]:
    latency = [event.latency for event in ran] or [0.0]
    return {
        f"tools/{name}/calls": float(len(ran)),
        f"tools/{name}/success_rate": mean([event.status == "ok" for event in ran]),
        f"tools/{name}/latency_p50": float(np.percentile(latency, 50)),
        f"tools/{name}/latency_p95": float(np.percentile(latency, 95)),
        f"tools/{name}/timeouts": float(sum(event.status == "timeout" for event in ran)),
        f"tools/{name}/cache_hit": mean([event.cached for event in ran]),
    }


def _branch_stats(trees: Sequence[RolloutTree]) -> dict[str, float]:
    decisions = [decision for tree in trees for decision in tree.decisions]
    stats = {
        "arpo/branches": mean([sum(d.opened for d in tree.decisions) for tree in trees]),
        "arpo/branch_prob": mean([d.probability for d in decisions if np.isfinite(d.probability)]),
        "arpo/decisions": mean([len(tree.decisions) for tree in trees]),
        "arpo/busiest_share": mean([share for tree in trees if (share := busiest_share(tree)) is not None]),
        "arpo/undecided_share": mean([d.undecided for d in decisions]),
    }
    for tool in sorted({d.tool for d in decisions}):
        deltas = [d.delta for d in decisions if d.tool == tool and np.isfinite(d.delta)]
        stats[f"arpo/delta_entropy/{tool}"] = mean(deltas)
    return stats


def busiest_share(tree: RolloutTree) -> float | None:
    """Share of the group's branches that one trajectory opened, the one with the most; None without branches.

    A branching point belongs to the trajectory that was there first: the first leaf below it.
    """
    owner: dict[int, int] = {}
    for leaf in tree.leaves:
        for node in tree.ancestry(leaf):
            owner.setdefault(node, leaf)
    opened: Counter[int] = Counter()
    for decision in tree.decisions:
        opened[owner[decision.node]] += decision.opened
    total = sum(opened.values())
    return max(opened.values()) / total if total else None
