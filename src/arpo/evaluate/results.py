"""The results of a command: `results.json` for programs, `results.md` for people.

Both say what was measured on what, by which rule or judge, with what command; a figure without that is worth nothing a
month later.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from arpo.evaluate.against import Against
from arpo.evaluate.figures import Cost, SetFigures
from arpo.evaluate.folder import RESULTS, TABLE
from arpo.evaluate.intervals import Interval
from arpo.evaluate.result import Accuracy
from arpo.train.runfolder import storage, write_atomic

SOURCES = (
    "pass@1 is the mean of a question's n answers, then of the questions; pass@k the unbiased estimate from n answers "
    "(Chen et al. 2021, equation 1; for scores between 0 and 1, the expected best of k); maj@n what the most frequent "
    "answer is worth, the first on a tie. Intervals are 95 %, over questions: Wilson's where every value is 0 or 1, "
    "else the bootstrap's. What has no verdict is left out and counted as lost or unjudged."
)


@dataclass(frozen=True)
class SetResult:
    """One set: where it is from (`facts`: title, source, edition, licence), its figures, what else is to be said.

    `stands_for`: the judge in whose place the headline metric is, "" if it is the set's own.
    """

    name: str
    facts: Mapping[str, str]
    figures: SetFigures
    stands_for: str = ""
    notes: tuple[str, ...] = ()
    against: Against | None = None

    @property
    def metric(self) -> str:
        """The headline metric."""
        return next(iter(self.figures.metrics))

    @property
    def label(self) -> str:
        """The headline metric for tables."""
        return f"{self.metric} (in place of {self.stands_for})" if self.stands_for else self.metric

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        compared = None if self.against is None else self.against.to_dict()
        known: dict[str, Any] = dict(self.facts) | {"metric": self.metric, "in_place_of": self.stands_for or None}
        known |= {"notes": list(self.notes), "against": compared}
        return known | self.figures.to_dict()


@dataclass(frozen=True)
class Results:
    """All sets of a command. `about`: command, date, model, ..., in words; `against`: the folder compared with."""

    about: Mapping[str, str]
    metrics: Mapping[str, Mapping[str, Any]]
    sets: Sequence[SetResult]
    against: str | None = None
    smoke: bool = field(default=False)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON. `metrics`: who or what decided, by name."""
        return {
            "about": dict(self.about),
            "metrics": {name: dict(card) for name, card in self.metrics.items()},
            "smoke": self.smoke,
            "against": self.against,
            "sets": {one.name: one.to_dict() for one in self.sets},
        }

    def markdown(self) -> str:
        """The report. Tables that would be empty are left out."""
        parts = [
            f"# Evaluation of {self.about['model']}",
            _table(("", ""), [(name, f"`{value}`" if name == "command" else value) for name, value in self._header()]),
            "## Scores",
            _table(self._score_columns(), [self._score_row(one) for one in self.sets]),
            self._said(),
            SOURCES,
            *self._section("## By type", ("set", "type", "questions", "score", "95 % interval"), self._types()),
            "## Cost",
            _table(self._cost_columns(), [self._cost_row(one) for one in self.sets]),
            *self._section("### Calls", ("set", "tool", "ran", "from cache or shared", "failed"), self._calls()),
            *self._section(f"## Against {self.against}", _AGAINST, self._differences()),
        ]
        return "\n\n".join(part for part in parts if part) + "\n"

    def save(self, folder: Path) -> None:
        """Write both files, each whole or not at all."""
        with storage(folder):
            write_atomic(folder / RESULTS, json.dumps(self.to_dict(), indent=1, ensure_ascii=False) + "\n")
            write_atomic(folder / TABLE, self.markdown())

    def _header(self) -> list[tuple[str, str]]:
        return [*self.about.items(), *((f"metric {name}", _card(card)) for name, card in self.metrics.items())]

    @property
    def _passes(self) -> list[int]:
        """The k above 1, which is the score itself."""
        return sorted({k for one in self.sets for k in one.figures.passes} - {1})

    def _score_columns(self) -> tuple[str, ...]:
        samples = max(one.figures.samples for one in self.sets)
        vote = (f"maj@{samples}",) if samples > 1 else ()
        passes = tuple(f"pass@{k}" for k in self._passes)
        return ("set", "questions", "metric", "pass@1", "95 % interval", *passes, *vote, "other metrics", "no verdict")

    def _score_row(self, one: SetResult) -> tuple[str, ...]:
        found = one.figures
        passes = tuple(_value(found.passes.get(k)) for k in self._passes)
        vote = (_value(found.vote),) if found.samples > 1 else ()
        others = ", ".join(f"{name} {_value(value)}" for name, value in list(found.metrics.items())[1:])
        missing = str(found.lost + found.unjudged)
        score = (_value(found.headline), _range(found.headline))
        return (one.name, str(found.questions), one.label, *score, *passes, *vote, others, missing)

    def _said(self) -> str:
        further = [f"- {one.name}: {_listed(one.figures.further)}." for one in self.sets if one.figures.further]
        return "\n".join([*further, *(f"- {one.name}: {note}." for one in self.sets for note in one.notes)])

    def _types(self) -> list[tuple[str, ...]]:
        return [
            (one.name, name, str(found.n), _value(found), _range(found))
            for one in self.sets
            if len(one.figures.families) > 1
            for name, found in one.figures.families.items()
        ]

    def _cost_columns(self) -> tuple[str, ...]:
        first = self.sets[0].figures.cost
        money = () if first.money is None else (first.currency,)
        tokens = ("tokens sampled", "read", "in results", "aside")
        return ("set", *tokens, "calls per trajectory", "no answer", "cut off", "seconds", *money)

    def _cost_row(self, one: SetResult) -> tuple[str, ...]:
        found, cost = one.figures, one.figures.cost
        tokens = tuple(f"{count:,}" for count in (cost.sampled, cost.read, cost.results, cost.aside))
        shares = (f"{found.unanswered:.0%}", f"{found.cut:.0%}")
        return (one.name, *tokens, f"{found.calls:.2f}", *shares, f"{cost.seconds:.0f}", *_money(cost))

    def _calls(self) -> list[tuple[str, ...]]:
        return [
            (one.name, tool, f"{use.ran:,}", f"{use.free:,}", f"{use.failed:,}")
            for one in self.sets
            for tool, use in one.figures.cost.tools.items()
        ]

    def _differences(self) -> list[tuple[str, ...]]:
        return [_difference_row(one, one.against) for one in self.sets if one.against is not None]

    def _section(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> tuple[str, ...]:
        return (title, _table(columns, rows)) if rows else ()


_AGAINST = ("set", "metric", "paired questions", "there", "here", "difference", "95 % interval", "excludes 0")


def _difference_row(one: SetResult, found: Against) -> tuple[str, ...]:
    value, low, high = found.difference
    shares = (f"{found.theirs:.3f}", f"{found.ours:.3f}", f"{value:+.3f}")
    ends = f"{low:+.3f} to {high:+.3f}"
    return (one.name, one.metric, str(found.pairs), *shares, ends, "yes" if found.difference.significant else "no")


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table. Bars in cells are escaped, line ends become blanks."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(_cell(cell) for cell in line)} |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _listed(found: Mapping[str, float]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value:.3f}" for name, value in found.items())


def _value(found: Accuracy | None) -> str:
    return "-" if found is None else f"{found.accuracy:.3f}"


def _range(found: Accuracy | None) -> str:
    return "-" if found is None else _ends(found.ci95)


def _ends(interval: Interval) -> str:
    return f"{interval.low:.3f} to {interval.high:.3f}"


def _card(card: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in card.items() if name != "metric")


def _money(cost: Cost) -> tuple[str, ...]:
    return () if cost.money is None else (f"{cost.money['total']:.4f}",)
