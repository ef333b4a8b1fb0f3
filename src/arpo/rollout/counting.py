"""How many tool calls branching saves: an identity to print beside the measured count.

calls(tree) / calls(flat) = [N T + sum over branches (T - depth)] / (M T), for T calls per trajectory and a branch
opened after call `depth`; trajectories that no branch supplied start from the prompt and cost T. Never below N / M.
"Half the tool calls" is this identity, not a finding.
"""

from collections.abc import Sequence

from arpo.tree import RolloutTree


def expected_calls_ratio(total: int, initial: int, calls: int, depths: Sequence[int]) -> float:
    """The identity for branches after calls `depths` (1..calls), at most total - initial of them."""
    topped_up = total - initial - len(depths)
    if not 1 <= initial <= total or topped_up < 0:
        raise ValueError(f"{initial} initial trajectories and {len(depths)} branches do not fit a total of {total}")
    if calls < 1 or any(not 0 <= depth <= calls for depth in depths):
        raise ValueError(f"branch depths {tuple(depths)} must lie within the {calls} calls of a trajectory")
    saved = sum(depths)
    return (total * calls - saved) / (total * calls)


def measured_calls_ratio(tree: RolloutTree) -> float:
    """Calls executed for the tree over the calls that its trajectories would make one by one; 1.0 without calls."""
    executed = [segment.event is not None and segment.event.executed for segment in tree.segments]
    flat = sum(int(tree.multiplicity[node]) for node, ran in enumerate(executed) if ran)
    return sum(executed) / flat if flat else 1.0
