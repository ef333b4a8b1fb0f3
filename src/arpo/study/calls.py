"""What tool calls cost, counted, beside what counting alone predicts.

"Half the tool calls" is arithmetic, not learning: with M trajectories of T calls of which N start from the prompt and
the others branch after `depth` calls, a tree makes [N*T + sum (T - depth)] / (M*T) of the calls that M independent
trajectories make, at least N/M. Measured calls stand beside this identity, and reward per call beside both: fewer
calls are worth something only if the reward does not fall with them. Equal calls of a group may run once besides
(`rollout.share_calls`); that is no merit of branching, so the ratio counts the calls that the tree asked for.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from arpo.tree import RolloutTree


@dataclass(frozen=True, slots=True)
class CallCounts:
    """`executed`: calls that ran; `requested`: calls of the trees' nodes, each node once, equal calls included. `flat`:
    calls on all trajectories, as if nothing were shared.

    `roots`: N with top-ups, `trajectories`: M, both summed over trees. `per_trajectory`: T = flat / trajectories.
    `measured` = requested / flat; `identity`: the formula above with this T; `bound` = N / M. Ratios are None without
    calls. `reward_per_call`: sum of rewards / executed calls.
    """

    trees: int
    roots: int
    trajectories: int
    executed: int
    requested: int
    flat: int
    per_trajectory: float
    measured: float | None
    identity: float | None
    bound: float
    reward_per_call: float | None


def count_calls(trees: Sequence[RolloutTree]) -> CallCounts:
    """Counts over `trees`. Raises ValueError without trees."""
    if not trees:
        raise ValueError("no trees, no calls to count")
    roots = sum(len(tree.children[0]) for tree in trees)
    trajectories = sum(len(tree.leaves) for tree in trees)
    executed = sum(tree.tool_calls for tree in trees)
    requested = sum(tree.requested_calls for tree in trees)
    flat = sum(_flat_calls(tree) for tree in trees)
    per_trajectory = flat / trajectories
    saved = [(per_trajectory - d.depth) * d.opened for tree in trees for d in tree.decisions]
    rewards = [reward for tree in trees for reward in tree.rewards if reward is not None]
    return CallCounts(
        trees=len(trees),
        roots=roots,
        trajectories=trajectories,
        executed=executed,
        requested=requested,
        flat=flat,
        per_trajectory=per_trajectory,
        measured=requested / flat if flat else None,
        identity=(roots * per_trajectory + sum(saved)) / flat if flat else None,
        bound=roots / trajectories,
        reward_per_call=sum(rewards) / executed if executed else None,
    )


def _flat_calls(tree: RolloutTree) -> int:
    called = [s.event is not None and s.event.executed for s in tree.segments]
    return sum(int(d) for d, ran in zip(tree.multiplicity, called, strict=True) if ran)
