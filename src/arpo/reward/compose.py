"""From a rollout tree to what each of its trajectories is worth.

Hierarchical: a malformed trajectory gets the format penalty, whatever it answers; a well-formed wrong one 0; a right
one its accuracy plus bonuses. Only tokens that the policy sampled are read, so nothing a page says can be an answer or
mend a format; and what counts as a use of a tool is that it was *executed*, not that it was asked for. A trajectory
that the infrastructure broke has no reward at all: 0 would be a lesson about nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast, get_args

from arpo.errors import ConfigError
from arpo.protocol.base import Dialect
from arpo.reward.answers import Mode, best_score
from arpo.reward.settings import OverlongSettings, RewardSettings
from arpo.task import Task
from arpo.tree import Finish, Outcome, RolloutTree, Segment, ToolEvent

INFRA_ERROR = "infra_error"


@dataclass(frozen=True, slots=True)
class Reading:
    """What a trajectory holds that a reward may look at.

    `answer`: the final one, or None; `texts`: what the policy wrote between results, in order; `faults`: what is
    malformed in them, in words; `events`: its calls; `length`: tokens that the policy sampled.
    """

    answer: str | None
    texts: tuple[str, ...]
    faults: tuple[str, ...]
    events: tuple[ToolEvent, ...]
    length: int


def score(tree: RolloutTree, task: Task, dialect: Dialect, settings: RewardSettings) -> tuple[Outcome, ...]:
    """One outcome per leaf, answers compared by rule: `read`, `best_score`, `weigh`.

    A `Scorer` does the same with everything that a configuration can ask for beyond rules.
    """
    return tuple(_by_rule(read(tree, leaf, dialect), task, settings) for leaf in tree.leaves)


def read(tree: RolloutTree, leaf: int, dialect: Dialect) -> Reading | None:
    """The trajectory that ends in `leaf`; None if the infrastructure broke it."""
    segments = [tree.segments[node] for node in tree.ancestry(leaf)]
    events = tuple(segment.event for segment in segments if segment.event is not None)
    if any(s.finish is Finish.ERROR for s in segments) or any(e.status == INFRA_ERROR for e in events):
        return None
    texts = policy_texts(segments, dialect)
    return Reading(
        answer=dialect.answer(texts[-1]) if texts else None,
        texts=tuple(texts),
        faults=tuple(dialect.format_errors(texts)),
        events=events,
        length=sum(len(segment) for segment in segments if segment.is_policy),
    )


def weigh(reading: Reading, accuracy: float, settings: RewardSettings) -> Outcome:
    """The outcome of a trajectory whose answer is worth `accuracy`: the sum of its parts.

    `accuracy` (0 if malformed), `success`, `multi_tool`, `format` (the penalty, or 0), `tool_cost`, `redundant` and
    `overlong` (all <= 0).
    """
    accuracy = 0.0 if reading.faults else accuracy
    parts = {
        "accuracy": accuracy,
        "success": settings.success_bonus if accuracy > 0 else 0.0,
        "multi_tool": settings.multi_tool_bonus if accuracy > 0 and _used_all(reading.events, settings) else 0.0,
        "format": settings.format_penalty if reading.faults else 0.0,
        "tool_cost": 0.0 - settings.tool_cost * sum(event.executed for event in reading.events),
        "redundant": 0.0 - settings.redundant_penalty * sum(event.redundant for event in reading.events),
        "overlong": 0.0 - overlong_penalty(reading.length, settings.overlong),
    }
    return Outcome(sum(parts.values()), reading.answer, parts)


def _by_rule(reading: Reading | None, task: Task, settings: RewardSettings) -> Outcome:
    plain = settings.composition == "hierarchical" and settings.custom is None
    if settings.accuracy not in get_args(Mode) or not plain:
        raise ConfigError(
            f'reward.accuracy = "{settings.accuracy}", reward.composition = "{settings.composition}", reward.custom = '
            f"{settings.custom!r}: more than comparisons by rule; score with an arpo.reward.scorer.Scorer"
        )
    if reading is None:
        return Outcome(None)
    if reading.faults:
        return weigh(reading, 0.0, settings)
    mode = cast(Mode, settings.accuracy)
    return weigh(reading, best_score(reading.answer, task.answers, mode=mode, kind=task.kind), settings)


def overlong_penalty(length: int, settings: OverlongSettings | None) -> float:
    """What `length` tokens cost, >= 0: the share of the buffer that is used up, times the penalty."""
    if settings is None:
        return 0.0
    used = (length - (settings.limit - settings.buffer)) / settings.buffer
    return settings.penalty * min(max(used, 0.0), 1.0)


def policy_texts(segments: Sequence[Segment], dialect: Dialect) -> list[str]:
    """The policy's own text between results and notices: pieces that were cut only to branch are joined."""
    runs: list[list[int]] = []
    joins = False
    for segment in segments:
        if segment.is_policy:
            runs = [*runs[:-1], [*runs[-1], *segment.tokens.tolist()]] if joins else [*runs, segment.tokens.tolist()]
        joins = segment.is_policy
    return [dialect.decode(run) for run in runs]


def _used_all(events: Sequence[ToolEvent], settings: RewardSettings) -> bool:
    executed = {event.name for event in events if event.executed}
    return bool(settings.multi_tools) and executed.issuperset(settings.multi_tools)
