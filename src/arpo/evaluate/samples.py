"""One trajectory of an evaluation as a line of text: what it answered, what that was worth, what it cost.

The lines are what figures are computed from, now or later, and what a resumed evaluation goes on from; the tokens
themselves are in the trees beside them.
"""

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from arpo.evaluate.agents.base import Solved
from arpo.protocol.base import Dialect
from arpo.reward.compose import read
from arpo.reward.judge.quoting import stated_confidence
from arpo.reward.verdict import Metric, Verdict
from arpo.task import Task
from arpo.tree import Outcome, RolloutTree, Segment, Source

_CIRCUMSTANCES = ("base_url", "cache", "structured")
"""Of a metric's card: where it is asked and what is kept, which change no verdict."""
_ASK_CONFIDENCE = ("hle",)
LOST = Verdict(None, reason="lost to the infrastructure")


@dataclass(frozen=True)
class Sample:
    """One trajectory. Rows of a question differ in `number`, from 0.

    `task`, `key`: id and fingerprint of the question; `family`: its row of the per-type table. `answer`: the final one,
    or None; `confidence`: in percent, if the policy stated one beside it. `lost`: the infrastructure broke it, so that
    it has no verdict. `faults`: what is malformed in it. `finish`: how it ended. `sampled`, `read`, `results`: tokens
    that the model sampled, was given (each time that it was asked to go on), and that tools returned. `ran`, `free`,
    `failed`: calls by tool that ran, that a cache or an equal call answered, and that ended in an error.
    `aside_tokens`, `aside_calls`, `seconds` and the calls that no trajectory shows are those of the whole question and
    stand on its first row. `attempt`, `at`: which start of the command, and when the question ended, in seconds since.
    """

    task: str
    key: str
    family: str
    number: int
    answer: str | None
    lost: bool
    faults: int
    finish: str
    sampled: int
    read: int
    results: int
    ran: Mapping[str, int] = field(default_factory=dict)
    free: Mapping[str, int] = field(default_factory=dict)
    failed: Mapping[str, int] = field(default_factory=dict)
    aside_tokens: int = 0
    aside_calls: int = 0
    seconds: float = 0.0
    attempt: int = 0
    at: float = 0.0
    confidence: float | None = None
    verdicts: Mapping[str, Verdict] = field(default_factory=dict)
    """By metric."""
    cards: Mapping[str, str] = field(default_factory=dict)
    """By metric: fingerprint of who judged and how."""

    def judged_by(self, metrics: Sequence[Metric]) -> bool:
        """Whether each of these metrics, as it is set up now, has given its verdict."""
        return all(
            self.cards.get(metric.name) == card_of(metric) and self.score(metric.name) is not None for metric in metrics
        )

    def score(self, metric: str) -> float | None:
        """What the answer is worth, or None if nobody could say."""
        return self.verdicts[metric].score

    def outcome(self, metric: str) -> Outcome:
        """For the tree: the headline is the reward, every metric a part; the headline is called `accuracy` too."""
        scores = {name: verdict.score for name, verdict in self.verdicts.items()}
        reward = None if self.lost else scores[metric]
        if reward is None:
            return Outcome(None, self.answer)
        parts = {name: score for name, score in scores.items() if score is not None}
        return Outcome(reward, self.answer, {"accuracy": reward} | parts)

    def line(self) -> str:
        """JSON, with its line end."""
        return json.dumps(asdict(self), ensure_ascii=False) + "\n"


def from_line(line: bytes) -> Sample:
    """Read a line back. Raises ValueError for one that is torn or not ours."""
    try:
        row: dict[str, Any] = json.loads(line)
        verdicts = {name: Verdict(**verdict) for name, verdict in row.pop("verdicts").items()}
        return Sample(**row, verdicts=verdicts)
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"not a sample: {error}") from error


def key_of(task: Task) -> str:
    """Fingerprint of what is asked and what is right: 16 hex digits. Another prompt is another question."""
    content = [[(m.role, m.content) for m in task.messages], list(task.answers), task.kind]
    return hashlib.sha256(json.dumps(content, ensure_ascii=False).encode()).hexdigest()[:16]


def samples_of(
    task: Task, solved: Solved, dialect: Dialect, *, seconds: float = 0.0, attempt: int = 0, at: float = 0.0
) -> list[Sample]:
    """A question's trajectories in the order of the leaves, without verdicts."""
    rows: list[Sample] = []
    for number, leaf in enumerate(solved.tree.leaves):
        reading = read(solved.tree, leaf, dialect)
        segments = [solved.tree.segments[node] for node in solved.tree.ancestry(leaf)]
        first = number == 0
        sampled, read_tokens, results = _tokens(segments)
        ran, free, failed = _calls(segments, solved.aside_tools if first else {})
        rows.append(
            Sample(
                task=task.id,
                key=key_of(task),
                family=task.provenance.get("family", "all"),
                number=number,
                answer=reading.answer if reading else None,
                confidence=stated_confidence(reading.texts[-1]) if reading and reading.texts else None,
                lost=reading is None,
                faults=len(reading.faults) if reading else 0,
                finish=str(segments[-1].finish),
                sampled=sampled,
                read=read_tokens + (solved.aside_read if first else 0),
                results=results,
                ran=ran,
                free=free,
                failed=failed,
                aside_tokens=solved.aside_tokens if first else 0,
                aside_calls=solved.aside_calls if first else 0,
                seconds=seconds if first else 0.0,
                attempt=attempt,
                at=at,
            )
        )
    return rows


async def judged(task: Task, rows: Sequence[Sample], metrics: Sequence[Metric]) -> list[Sample]:
    """The rows of one question with the verdicts of `metrics`, besides those of others that they have."""
    return list(await asyncio.gather(*(_judged(task, row, metrics) for row in rows)))


async def _judged(task: Task, row: Sample, metrics: Sequence[Metric]) -> Sample:
    verdicts, cards = dict(row.verdicts), dict(row.cards)
    for metric in metrics:
        verdicts[metric.name] = LOST if row.lost else await metric(task, _said(row, metric))
        cards[metric.name] = card_of(metric)
    return replace(row, verdicts=verdicts, cards=cards)


def _said(row: Sample, metric: Metric) -> str | None:
    """What a metric is given: the final answer, with the confidence in it where the protocol asks for that."""
    if row.answer is None or row.confidence is None or metric.name not in _ASK_CONFIDENCE:
        return row.answer
    return f"Answer: {row.answer}\nConfidence: {row.confidence:g}%"


def card_of(metric: Metric) -> str:
    """Fingerprint of what a metric's verdicts depend on: 12 hex digits."""
    facts = {name: value for name, value in metric.card().items() if name not in _CIRCUMSTANCES}
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:12]


def scored_tree(tree: RolloutTree, rows: Sequence[Sample], metric: str) -> RolloutTree:
    """The tree with the outcomes that `rows`, one per leaf, tell."""
    return tree.with_outcomes([row.outcome(metric) for row in rows])


def _tokens(segments: Sequence[Segment]) -> tuple[int, int, int]:
    """Tokens sampled, read, returned. A policy segment after another one goes on with the same request."""
    sampled = sum(len(segment) for segment in segments if segment.is_policy)
    results = sum(len(segment) for segment in segments if segment.source is Source.TOOL)
    read_tokens, before, asked = 0, 0, False
    for segment in segments:
        read_tokens += before if segment.is_policy and not asked else 0
        before, asked = before + len(segment), segment.is_policy
    return sampled, read_tokens, results


def _calls(segments: Sequence[Segment], aside: Mapping[str, int]) -> tuple[dict[str, int], ...]:
    """Calls by tool: that ran, that were answered without running, that ended in an error."""
    ran, free, failed = Counter(aside), Counter[str](), Counter[str]()
    for event in (segment.event for segment in segments if segment.event is not None):
        if event.executed:
            (free if event.cached or event.shared else ran)[event.name] += 1
        if event.status != "ok":
            failed[event.name] += 1
    return dict(ran), dict(free), dict(failed)
