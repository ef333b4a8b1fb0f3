"""The reward as ARPO's public code composes it, in our parts: for runs that are compared with its figures.

Everything is read from the text of the whole trajectory, results of tools included: whether both tools were used is
whether their closing tags occur, and a `<think>` that does not close costs the same as no answer. The rules are those
of `arpo.reward.paper`.
"""

from dataclasses import replace

from arpo.protocol.base import Dialect
from arpo.reward.compose import Reading, weigh
from arpo.reward.paper import BONUS, paper_reward
from arpo.reward.settings import RewardSettings
from arpo.task import Task
from arpo.tree import Outcome, RolloutTree


def response(tree: RolloutTree, leaf: int, dialect: Dialect) -> str:
    """All text after the prompt on the way to `leaf`, whoever wrote it."""
    segments = [tree.segments[node] for node in tree.ancestry(leaf) if tree.segments[node].parent >= 0]
    return dialect.decode([token for segment in segments for token in segment.tokens.tolist()])


def weigh_official(text: str, reading: Reading, task: Task, settings: RewardSettings) -> Outcome:
    """The outcome of a trajectory with that text: `accuracy`, `format` and `multi_tool` as published.

    The other parts of `weigh`, all of them 0 unless the settings say otherwise, are added.
    """
    found = paper_reward(text, task.answers)
    usual = weigh(replace(reading, faults=()), found.f1, settings).parts
    parts = dict(usual) | {
        "accuracy": found.f1,
        "format": -1.0 if found.fault else 0.0,
        "multi_tool": BONUS if found.score > found.f1 else 0.0,
    }
    return Outcome(sum(parts.values()), reading.answer, parts)
