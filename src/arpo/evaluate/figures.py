"""From the samples of one question set to its figures.

Questions are the unit: a question's n answers are one observation (their mean, the best of k, the vote), and intervals
are over questions. What has no verdict (lost to the infrastructure, a judge that was out of reach) is left out of every
mean and counted beside it.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from arpo.evaluate.estimates import Same, best_of, majority
from arpo.evaluate.result import Accuracy, accuracy
from arpo.evaluate.samples import Sample
from arpo.evaluate.settings import PriceSettings
from arpo.reward.judge.figures import calibration_error, simpleqa_figures

Questions = Sequence[Sequence[Sample]]
"""The samples of every question."""


@dataclass(frozen=True)
class ToolUse:
    """Calls of one tool: those that ran, that a cache or an equal call answered, that ended in an error."""

    ran: int
    free: int
    failed: int


@dataclass(frozen=True)
class Cost:
    """What was used up, and what that comes to. `money` is None where no price is set."""

    sampled: int
    read: int
    results: int
    aside: int
    seconds: float
    tools: Mapping[str, ToolUse]
    judgements: int
    money: Mapping[str, float] | None
    currency: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        tools = {name: {"ran": use.ran, "free": use.free, "failed": use.failed} for name, use in self.tools.items()}
        tokens = {"sampled": self.sampled, "read": self.read, "results": self.results, "aside": self.aside}
        money = None if self.money is None else dict(self.money) | {"currency": self.currency}
        return {
            "tokens": tokens,
            "tools": tools,
            "judgements": self.judgements,
            "seconds": round(self.seconds, 3),
            "money": money,
        }


@dataclass(frozen=True)
class SetFigures:
    """One set. A figure is None if no question has what it takes (a verdict; k of them).

    `metrics`: mean of n by metric, the headline first; the rest is of the headline: `passes` by k, `vote`, `families`.
    `lost`, `unjudged`: trajectories without a verdict, and why. `unanswered`, `malformed`, `cut`: shares of the
    trajectories that gave no final answer, broke the format, ran out of tokens. `calls`: that ran, per trajectory.
    `grades`: a judge's words, counted; `further`: figures that belong to a protocol.
    """

    questions: int
    samples: int
    metrics: Mapping[str, Accuracy | None]
    passes: Mapping[int, Accuracy | None]
    vote: Accuracy | None
    families: Mapping[str, Accuracy]
    lost: int
    unjudged: int
    unanswered: float
    malformed: float
    cut: float
    calls: float
    grades: Mapping[str, Mapping[str, int]]
    further: Mapping[str, float]
    cost: Cost

    @property
    def headline(self) -> Accuracy | None:
        """pass@1: the mean of n in the first metric."""
        return next(iter(self.metrics.values()))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "questions": self.questions,
            "samples": self.samples,
            "metrics": {name: _plain(found) for name, found in self.metrics.items()},
            "pass@k": {str(k): _plain(found) for k, found in self.passes.items()},
            f"maj@{self.samples}": _plain(self.vote),
            "per_type": {name: found.to_dict() for name, found in self.families.items()},
            "lost": self.lost,
            "unjudged": self.unjudged,
            "unanswered": self.unanswered,
            "malformed": self.malformed,
            "cut_off": self.cut,
            "calls_per_trajectory": self.calls,
            "further": dict(self.further),
            "grades": {name: dict(counts) for name, counts in self.grades.items()},
            "cost": self.cost.to_dict(),
        }


def figures(
    questions: Questions,
    metrics: Sequence[str],
    *,
    passes: Sequence[int],
    prices: PriceSettings,
    same: Callable[[str], Same],
    seed: int = 0,
) -> SetFigures:
    """The figures of a set. `same`: for a task's id, whether two answers say the same. Raises ValueError if it is
    empty."""
    rows = [row for question in questions for row in question]
    if not rows:
        raise ValueError("no samples, no figures")
    headline = metrics[0]
    known = [_known(question, headline) for question in questions]
    total = len(rows)
    return SetFigures(
        questions=len(questions),
        samples=max(len(question) for question in questions),
        metrics={name: _mean([_known(question, name) for question in questions], seed) for name in metrics},
        passes={k: _estimate([best_of(found, k) for found in known if len(found) >= k], seed) for k in passes},
        vote=_vote(questions, headline, same, seed),
        families=_families(questions, headline, seed),
        lost=sum(row.lost for row in rows),
        unjudged=sum(not row.lost and row.score(headline) is None for row in rows),
        unanswered=sum(not row.lost and row.answer is None for row in rows) / total,
        malformed=sum(row.faults > 0 for row in rows) / total,
        cut=sum(row.finish == "length" for row in rows) / total,
        calls=sum(sum(row.ran.values()) for row in rows) / total,
        grades={name: dict(found) for name in metrics if (found := _grades(rows, name))},
        further=_further(rows, metrics),
        cost=cost(rows, prices),
    )


def question_scores(questions: Questions, metric: str) -> list[float | None]:
    """The mean of each question's answers, None where none has a verdict."""
    found = [_known(question, metric) for question in questions]
    return [float(np.mean(scores)) if scores else None for scores in found]


def cost(rows: Sequence[Sample], prices: PriceSettings) -> Cost:
    """What these trajectories used up."""
    names = dict.fromkeys(name for row in rows for name in (*row.ran, *row.free, *row.failed))
    tools = {
        name: ToolUse(*(sum(counts.get(name, 0) for counts in column) for column in _call_columns(rows)))
        for name in sorted(names)
    }
    sampled, aside = sum(row.sampled for row in rows), sum(row.aside_tokens for row in rows)
    read = sum(row.read for row in rows)
    judgements = sum(verdict.by == "judge" for row in rows for verdict in row.verdicts.values())
    return Cost(
        sampled=sampled,
        read=read,
        results=sum(row.results for row in rows),
        aside=aside,
        seconds=_seconds(rows),
        tools=tools,
        judgements=judgements,
        money=_money(prices, sampled + aside, read, tools, judgements),
        currency=prices.currency,
    )


def _call_columns(rows: Sequence[Sample]) -> tuple[list[Mapping[str, int]], ...]:
    return [row.ran for row in rows], [row.free for row in rows], [row.failed for row in rows]


def _money(
    prices: PriceSettings, sampled: int, read: int, tools: Mapping[str, ToolUse], judgements: int
) -> dict[str, float] | None:
    if not (prices.sampled_tokens or prices.read_tokens or prices.judgement or prices.tools):
        return None
    parts = {
        "model": (sampled * prices.sampled_tokens + read * prices.read_tokens) / 1e6,
        "tools": sum(use.ran * prices.tools.get(name, 0.0) for name, use in tools.items()),
        "judge": judgements * prices.judgement,
    }
    return parts | {"total": sum(parts.values())}


def _seconds(rows: Sequence[Sample]) -> float:
    """Time from the start of the first question to the end of the last, of each attempt, added up."""
    spans: dict[int, tuple[float, float]] = {}
    for row in rows:
        if row.number == 0:
            first, last = spans.get(row.attempt, (row.at, row.at))
            spans[row.attempt] = (min(first, row.at - row.seconds), max(last, row.at))
    return sum(last - first for first, last in spans.values())


def _known(question: Sequence[Sample], metric: str) -> list[float]:
    return [score for row in question if (score := row.score(metric)) is not None]


def _mean(scores: Sequence[Sequence[float]], seed: int) -> Accuracy | None:
    return _estimate([float(np.mean(found)) for found in scores if found], seed)


def _estimate(values: Sequence[float], seed: int) -> Accuracy | None:
    return accuracy(values, seed) if values else None


def _vote(questions: Questions, metric: str, same: Callable[[str], Same], seed: int) -> Accuracy | None:
    """What the most frequent answer of each question is worth; 0 where nobody answered."""
    values: list[float] = []
    for question in questions:
        rows = [row for row in question if row.score(metric) is not None]
        if rows:
            winner = majority([row.answer for row in rows], same(rows[0].task))
            values.append(0.0 if winner is None else float(rows[winner].score(metric) or 0.0))
    return _estimate(values, seed)


def _families(questions: Questions, metric: str, seed: int) -> dict[str, Accuracy]:
    found: dict[str, list[float]] = {}
    for question, value in zip(questions, question_scores(questions, metric), strict=True):
        if value is not None:
            found.setdefault(question[0].family, []).append(value)
    return {name: accuracy(values, seed) for name, values in sorted(found.items())}


def _grades(rows: Sequence[Sample], metric: str) -> Counter[str]:
    """A judge's own words, counted."""
    return Counter(verdict.grade for row in rows if (verdict := row.verdicts[metric]).grade)


def _further(rows: Sequence[Sample], metrics: Sequence[str]) -> dict[str, float]:
    """Calibration where confidences were stated, SimpleQA's own figures where its protocol judged."""
    found: dict[str, float] = {}
    for name in metrics:
        verdicts = [row.verdicts[name] for row in rows]
        stated = any(verdict.confidence is not None for verdict in verdicts)
        if stated and (error := calibration_error(verdicts)) is not None:
            found["calibration_error"] = error
        if name == "simpleqa" and (figure := simpleqa_figures(verdicts)) is not None:
            found |= {"simpleqa_f_score": figure.f_score, "correct_given_attempted": figure.correct_given_attempted}
    return found


def _plain(found: Accuracy | None) -> dict[str, Any] | None:
    return None if found is None else found.to_dict()
