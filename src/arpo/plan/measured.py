"""A step that was rolled out, in the plan's own terms: what its trees hold, and the mean trajectory behind them.

With these the plan can be held against a run: its counts exactly, its times as ratios.
"""

from collections.abc import Sequence
from statistics import mean, quantiles

from arpo.plan.latency import Latency, Mix
from arpo.plan.work import Trajectory, Work
from arpo.tree import RolloutTree


def trajectory_of(trees: Sequence[RolloutTree]) -> Trajectory:
    """The mean trajectory: prompt, sampled tokens, calls and tokens per result, each over all leaves and rounded."""
    sampled, calls, shown = [], [], []
    for tree in trees:
        for leaf in tree.leaves:
            nodes = [tree.segments[node] for node in tree.ancestry(leaf)[1:]]
            sampled.append(sum(len(node) for node in nodes if node.is_policy))
            calls.append(sum(node.event is not None and node.event.executed for node in nodes))
            shown.append(sum(len(node) for node in nodes if not node.is_policy))
    prompts = [len(tree.segments[0]) for tree in trees]
    made = round(mean(calls))
    result = round(sum(shown) / sum(calls)) if sum(calls) else 0
    return Trajectory(round(mean(prompts)), round(mean(sampled)), made, result if made else 0)


def share_of(trees: Sequence[RolloutTree]) -> float:
    """The share of the decisions after which the rule fired, at least a hundredth."""
    decisions = [decision for tree in trees for decision in tree.decisions]
    return max(mean(decision.wanted > 0 for decision in decisions) if decisions else 1.0, 0.01)


def mix_of(trees: Sequence[RolloutTree]) -> Mix:
    """The latencies of the calls that ran, as one tool."""
    seconds = [s.event.latency for t in trees for s in t.segments if s.event is not None and s.event.executed]
    ran = sorted(value for value in seconds if value > 0)
    if len(ran) < 2:
        return Mix(((Latency("measured", 0.0, 0.0), 1.0),))
    cuts = quantiles(ran, n=20)
    return Mix(((Latency("measured", cuts[9], max(cuts[18], cuts[9])), 1.0),))


def work_of(trees: Sequence[RolloutTree]) -> Work:
    """What the trees hold, counted and not estimated."""
    flat = [tree.path(leaf) for tree in trees for leaf in tree.leaves]
    return Work(
        trajectory=trajectory_of(trees),
        prompts=len(trees),
        group=len(trees[0].leaves),
        branches=mean(sum(decision.opened for decision in tree.decisions) for tree in trees),
        top_ups=mean(tree.top_ups for tree in trees),
        sampled=float(sum(tree.generated_tokens for tree in trees)),
        calls=float(sum(tree.requested_calls for tree in trees)),
        unique=float(sum(len(segment) for tree in trees for segment in tree.segments)),
        flat=float(sum(len(path) for path in flat)),
        pairs=float(sum(_pairs(tree) for tree in trees)),
        flat_pairs=float(sum(len(path) * (len(path) + 1) // 2 for path in flat)),
        labels=float(sum(_states(tree) for tree in trees)),
        flat_labels=float(sum(int(path.policy_T.sum()) for path in flat)),
    )


def _pairs(tree: RolloutTree) -> int:
    """Pairs of a token and itself or one before it on its way from the prompt."""
    before: list[int] = []
    pairs = 0
    for segment in tree.segments:
        start = before[segment.parent] if segment.parent >= 0 else 0
        size = len(segment)
        pairs += size * start + size * (size + 1) // 2
        before.append(start + size)
    return pairs


def _states(tree: RolloutTree) -> int:
    """States whose next token the policy sampled: siblings' first tokens come from one."""
    first: set[int] = set()
    states = 0
    for segment in tree.segments:
        if segment.is_policy and len(segment):
            states += len(segment) - 1
            first.add(segment.parent)
    return states + len(first)
