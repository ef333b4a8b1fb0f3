"""Ways to compare an answer with the gold answers, by name: the modes of `score_answer`, and judges.

A benchmark names its metrics, a configuration its accuracy; both mean an entry here. A metric that needs a judge and
gets none is refused: another rule in its place would give figures that look like the ones asked for.
"""

import asyncio
import difflib
from typing import Any, cast, get_args

from arpo.errors import ArpoError, ConfigError
from arpo.reward.answers import Mode, best_score
from arpo.reward.judge.settings import JudgeSettings
from arpo.reward.verdict import Metric, Verdict
from arpo.task import Task

RULES: tuple[str, ...] = get_args(Mode)
"""Decided by rule: the modes of `score_answer`."""
JUDGES: tuple[str, ...] = ("judge", "judge_paper", "hle", "simpleqa", "xbench")
"""Decided by a model; one protocol each, in `arpo.reward.judge`."""
NAMES = RULES + JUDGES


def needs_judge(name: str) -> bool:
    """Whether the metric asks a model. ConfigError, with the nearest name, for an unknown one."""
    if name not in NAMES:
        guess = difflib.get_close_matches(name, NAMES, n=1)
        raise ConfigError(
            f"no metric is named {name!r}; " + (f"did you mean {guess[0]}?" if guess else f"known: {', '.join(NAMES)}")
        )
    return name in JUDGES


def build(name: str, judge: JudgeSettings | None = None) -> Metric:
    """The metric of that name; `judge`: who judges, where it needs a judge.

    Nothing is asked yet: see `Metric.check`. Raises ConfigError for an unknown name, for a missing judge and for what
    is wrong with its settings (key, prompt file).
    """
    if not needs_judge(name):
        return RuleMetric(cast(Mode, name))
    if judge is None:
        raise ConfigError(
            f"the metric {name!r} needs a judge: set base_url and model of a chat server (table [reward.judge] or "
            f"[evaluation.judge]; `arpo eval --judge-url URL --judge-model NAME`), or choose a rule "
            f"({', '.join(RULES)})"
        )
    from arpo.reward.judge.metric import JudgeMetric
    from arpo.reward.judge.registry import protocol

    return JudgeMetric(protocol(name, judge.prompt), judge)


class RuleMetric:
    """`best_score` over a task's answers in one mode, off the event loop."""

    def __init__(self, mode: Mode) -> None:
        self.mode: Mode = mode
        self.name: str = mode
        self._failed = 0

    async def __call__(self, task: Task, answer: str | None) -> Verdict:
        """See Metric."""
        try:
            return Verdict(await asyncio.to_thread(best_score, answer, task.answers, mode=self.mode, kind=task.kind))
        except ArpoError as error:  # the checker broke, which says nothing about the answer
            self._failed += 1
            return Verdict(None, reason=str(error))

    async def check(self) -> None:
        """Rules are always there."""

    def card(self) -> dict[str, Any]:
        """See Metric."""
        return {"metric": self.name, "by": "rule"}

    def drain(self) -> dict[str, float]:
        """See Metric: `reward/verify_failed`, answers that could not be compared because the checker broke."""
        failed, self._failed = self._failed, 0
        return {"reward/verify_failed": float(failed)}

    async def close(self) -> None:
        """Nothing to release: what checks mathematics is shared by the process."""
