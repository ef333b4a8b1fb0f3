"""Where each policy token of a tree stands: after what, and how many policy tokens into it."""

from dataclasses import dataclass

from arpo.tree import RolloutTree, Source

START = "start"
"""Origin of the tokens that follow the prompt."""
NOTICE = "notice"
"""Origin of the tokens that follow a message of the harness."""


@dataclass(frozen=True, slots=True)
class Origin:
    """`name`: `start`, `notice` or the tool whose result came before. `offset`: policy tokens since then."""

    name: str
    offset: int


def origins(tree: RolloutTree) -> list[Origin | None]:
    """One per node; None where the policy did not write. What continues a window counts on from it."""
    found: list[Origin | None] = []
    for segment in tree.segments:
        found.append(_origin(tree, found, segment.parent) if segment.is_policy else None)
    return found


def _origin(tree: RolloutTree, found: list[Origin | None], parent: int) -> Origin:
    before, known = tree.segments[parent], found[parent]
    if known is not None:
        return Origin(known.name, known.offset + len(before))
    if before.source is Source.PROMPT:
        return Origin(START, 0)
    if before.source is Source.TOOL and before.event is not None:
        return Origin(before.event.name, 0)
    return Origin(NOTICE, 0)
