"""How far a judge, or a rule, agrees with people: verdicts on answers that were labelled by hand.

A judge that was never audited on answers of the kind it will see is a guess. A few hundred rows suffice to tell one
that accepts everything from one that can be trained against.
"""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from arpo.errors import ArpoError, DataError
from arpo.reward.judge.figures import Agreement, agreement
from arpo.reward.verdict import Metric, Verdict
from arpo.task import AnswerKind, Task, ask

_LABELS = {"true": True, "correct": True, "yes": True, "1": True}
_LABELS |= {"false": False, "incorrect": False, "no": False, "0": False, "not_attempted": False}
_AT_ONCE = 64
"""Answers under judgement at once; a judge limits its own requests besides."""


@dataclass(frozen=True, slots=True)
class Labelled:
    """An answer and whether people find it right. `row` counts from 1."""

    row: int
    task: Task
    answer: str
    right: bool


@dataclass(frozen=True)
class Audit:
    """`verdicts`: one per row, in their order. `found`: over the rows with a verdict, a score of 0.5 or more being
    "right"; `unjudged`: the others.
    """

    rows: tuple[Labelled, ...]
    verdicts: tuple[Verdict, ...]
    found: Agreement
    unjudged: int

    @property
    def disagreements(self) -> list[tuple[Labelled, Verdict]]:
        """Rows whose verdict is not the label."""
        pairs = zip(self.rows, self.verdicts, strict=True)
        return [(row, said) for row, said in pairs if said.score is not None and row.right != (said.score >= 0.5)]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        names = {True: "right", False: "wrong"}
        cells = {f"{names[a]}_called_{names[b]}": count for (a, b), count in self.found.confusion.items()}
        by = {
            who: sum(said.by == who and said.score is not None for said in self.verdicts)
            for who in ("rule", "judge", "cache")
        }
        figures = {"n": self.found.n, "agreement": self.found.agreement, "kappa": self.found.kappa}
        return {**figures, **cells, "unjudged": self.unjudged, "by": by, "disagreements": self._listed()}

    def _listed(self) -> list[dict[str, Any]]:
        return [
            {
                "row": row.row,
                "label": row.right,
                "grade": said.grade,
                "answer": row.answer,
                "gold": list(row.task.answers),
            }
            for row, said in self.disagreements
        ]


async def audit(rows: Sequence[Labelled], metric: Metric, on_progress: Callable[[], None] = lambda: None) -> Audit:
    """The metric's verdicts on labelled answers. ArpoError if there is not one verdict."""
    gate = asyncio.Semaphore(_AT_ONCE)

    async def one(row: Labelled) -> Verdict:
        async with gate:
            verdict = await metric(row.task, row.answer)
        on_progress()
        return verdict

    verdicts = await asyncio.gather(*(one(row) for row in rows))
    known = [(row.right, said.score >= 0.5) for row, said in zip(rows, verdicts, strict=True) if said.score is not None]
    if not known:
        reason = verdicts[0].reason if verdicts else "there are no rows"
        raise ArpoError(f"not one of {len(rows)} answers has a verdict ({reason})")
    labels, found = zip(*known, strict=True)
    return Audit(tuple(rows), tuple(verdicts), agreement(labels, found), len(rows) - len(known))


def read_labelled(path: Path) -> list[Labelled]:
    """Rows of a JSONL file: `question`, `gold` (text, or a list of them), `answer`, `label`, and a `kind` if wanted.

    `label`: true or false, 1 or 0, "correct" or "incorrect", "yes" or "no". DataError naming file and row.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not a readable UTF-8 file ({error})") from error
    rows = [_labelled(f"{path}, row {row}", row, line) for row, line in enumerate(lines, 1) if line.strip()]
    if not rows:
        raise DataError(f"{path}: there are no rows in it")
    return rows


def _labelled(where: str, row: int, line: str) -> Labelled:
    try:
        found = json.loads(line)
    except ValueError as error:
        raise DataError(f"{where}: not JSON ({error})") from error
    if not isinstance(found, dict):
        raise DataError(f"{where}: not a JSON object")
    kind = found.get("kind", "auto")
    if kind not in get_args(AnswerKind):
        raise DataError(f"{where}: kind = {kind!r} is none of {', '.join(get_args(AnswerKind))}")
    task = ask(_text(where, found, "question"), *_golds(where, found), id=f"row {row}", kind=kind)
    return Labelled(row, task, _text(where, found, "answer"), _label(where, found))


def _text(where: str, row: Mapping[str, Any], name: str) -> str:
    value = row.get(name)
    if not isinstance(value, str):
        raise DataError(f"{where}: {name} is {value!r:.80}, not a text")
    return value


def _golds(where: str, row: Mapping[str, Any]) -> list[str]:
    golds = row.get("gold")
    golds = [golds] if isinstance(golds, str) else golds
    if not isinstance(golds, list) or not golds or not all(isinstance(gold, str) for gold in golds):
        raise DataError(f"{where}: gold is {row.get('gold')!r:.80}, not a text or a list of texts")
    return golds


def _label(where: str, row: Mapping[str, Any]) -> bool:
    label = str(row.get("label")).lower()
    if label not in _LABELS:
        raise DataError(f"{where}: label is {row.get('label')!r:.80}, none of {', '.join(_LABELS)}")
    return _LABELS[label]
