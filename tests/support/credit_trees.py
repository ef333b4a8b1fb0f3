"""Small trees for the tests of advantages, and what a tree is without one of its leaves."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from arpo.credit import Credit
from arpo.tree import Finish, Outcome, RolloutTree, Segment, Source, ToolEvent

FAMILIES = (
    *("grpo", "soft", "hard", "tree", "rloo", "reinforce++", "dr_grpo"),
    *("tree_grpo", "treepo", "treerl", "at2po", "gigpo", "aepo"),
)


def policy(parent: int, length: int = 2, finish: Finish = Finish.STOP, entropies: Sequence[float] = ()) -> Segment:
    zeros = np.zeros(length, np.float32)
    entropy = np.array(entropies, np.float32) if len(entropies) else zeros
    return Segment(np.arange(length, dtype=np.int32), Source.POLICY, parent, zeros, entropy, finish, 0)


def tool(parent: int) -> Segment:
    return Segment(np.array([7], np.int32), Source.TOOL, parent, event=ToolEvent("search", "{}", "ok"))


def prompt() -> Segment:
    return Segment(np.array([1, 2], np.int32), Source.PROMPT)


def scored(segments: Sequence[Segment], leaves: Sequence[int], rewards: Sequence[float | None]) -> RolloutTree:
    return RolloutTree("t", tuple(segments), tuple(leaves), outcomes=tuple(Outcome(r) for r in rewards))


def forked(rewards: Sequence[float | None]) -> RolloutTree:
    """prompt 0 - policy 1 - tool 2 - {policy 3, policy 4}, and prompt 0 - policy 5: leaves 3, 4, 5."""
    segments = (prompt(), policy(0, finish=Finish.CALL), tool(1), policy(2), policy(2), policy(0))
    return scored(segments, (3, 4, 5), rewards).validate(3)


def flat(rewards: Sequence[float | None], length: int = 2) -> RolloutTree:
    """Independent trajectories of one policy node each."""
    segments = (prompt(), *(policy(0, length) for _ in rewards))
    return scored(segments, range(1, len(segments)), rewards).validate(len(rewards))


def uneven(rewards: Sequence[float | None]) -> RolloutTree:
    """Leaves 7, 8, 5, 9: a root that forks after a window, one of whose branches calls again and forks; a lone root.

    0 prompt - 1 policy - 2 tool - 3 policy (window) - 4 policy - 6 tool - 7 policy (leaf)
             |                                       |                    \\ 8 policy (leaf)
             \\ 9 policy (leaf)                       \\ 5 policy (leaf)
    """
    segments = (
        *(prompt(), policy(0, finish=Finish.CALL), tool(1), policy(2, finish=Finish.WINDOW)),
        *(policy(3, finish=Finish.CALL), policy(3), tool(4), policy(6), policy(6), policy(0)),
    )
    return scored(segments, (7, 8, 5, 9), rewards).validate(4)


def without(tree: RolloutTree, dropped: Sequence[int]) -> RolloutTree:
    """The tree that the other trajectories span: nodes that only `dropped` (places in `leaves`) pass through go too."""
    kept = [m for m in range(len(tree.leaves)) if m not in dropped]
    nodes = sorted({node for m in kept for node in tree.ancestry(tree.leaves[m])})
    place = {node: new for new, node in enumerate(nodes)} | {-1: -1}
    segments = tuple(replace(tree.segments[node], parent=place[tree.segments[node].parent]) for node in nodes)
    leaves = tuple(place[tree.leaves[m]] for m in kept)
    return RolloutTree(tree.task_id, segments, leaves, outcomes=tuple(tree.outcomes[m] for m in kept))


def by_node(tree: RolloutTree, credit: Credit) -> list[dict[int, float] | None]:
    """{policy node: value} along each trajectory."""
    return [_named(tree, leaf, value) for leaf, value in zip(tree.leaves, credit.values, strict=True)]


def _named(tree: RolloutTree, leaf: int, value: np.ndarray | None) -> dict[int, float] | None:
    if value is None:
        return None
    path = zip(tree.ancestry(leaf), value.tolist(), strict=True)
    return {node: own for node, own in path if tree.segments[node].is_policy}
