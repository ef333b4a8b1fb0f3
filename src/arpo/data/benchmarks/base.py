"""What one benchmark is: where it comes from, which rows and columns of it count, and how its answers are compared.

An entry is data plus one small function. The sets differ in their columns and in what a row means, never in how they
are located, read, limited or scored; so the function, `item`, turns one row into an `Item` and everything else is
shared (`arpo.data.benchmarks.files`). A row that is not part of the measured subset (an attachment, an image) says so
through `skip` and is counted, not dropped in silence.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from arpo.task import AnswerKind, Message, Task

Row = Mapping[str, Any]
"""One row's columns, as the file or the hub has them."""


class RowError(ValueError):
    """Why a row cannot be used; the reader adds the file and the row."""


@dataclass(frozen=True, slots=True)
class Item:
    """What a row says. `type`: the row of the per-type tables, "" where the set has none. `id`: the set's own."""

    question: str
    answers: tuple[str, ...]
    id: str = ""
    type: str = ""
    kind: AnswerKind | None = None
    """How to compare, where this row knows better than its set."""
    language: str = ""
    canary: str = ""
    """The line by which a set asks to be left out of training data; kept with the task, so that copies carry it."""


@dataclass(frozen=True)
class Benchmark:
    """One set of questions.

    `source`, `config`, `split`: where it is on the Hugging Face hub. `checked`: which of this was compared with the
    published rows, and what could not be. `size`: questions in the whole set. `metrics`: names in
    `arpo.reward.metrics`, the headline first; `rule`: the one that needs no judge, for trials without a server.
    `folders`: its names in published layouts (ROOT/FOLDER/test.jsonl), the first our own. `types`: what the per-type
    table tells apart, "" for nothing. `subset`, `skip`: which rows are measured, why a row is none of them ("" if it is).
    `instruction`: put below the question, "" for nothing. `gated`: the hub asks for a login and for consent.
    `secret`: the rows are published encrypted, so that no crawler reads them; results of such a set hold plain text.
    """

    name: str
    title: str
    source: str
    config: str | None
    split: str
    size: int
    licence: str
    paper: str
    metrics: tuple[str, ...]
    rule: str
    item: Callable[[Row], Item]
    kind: AnswerKind = "auto"
    folders: tuple[str, ...] = ()
    types: str = ""
    subset: str = ""
    skip: Callable[[Row], str] = field(default=lambda row: "")
    instruction: str = ""
    gated: bool = False
    secret: bool = False
    checked: str = ""
    notes: str = ""

    @property
    def metric(self) -> str:
        """The headline metric."""
        return self.metrics[0]

    def type_of(self, row: Row) -> str:
        """The row's place in the per-type table, "" where the set or the layout has none."""
        return self.item(row).type

    def task(self, row: Row, number: int) -> Task:
        """The task of one row; `number` is its place in the source, from 1. Raises RowError."""
        item = self.item(row)
        prompt = f"{item.question}\n\n{self.instruction}" if self.instruction else item.question
        provenance = {"benchmark": self.name, "family": item.type or self.name, "row": str(number)}
        provenance |= {key: value for key in ("language", "canary") if (value := getattr(item, key))}
        return Task(
            id=f"{self.name}:{item.id or number}",
            messages=(Message("user", prompt),),
            answers=item.answers,
            kind=item.kind or self.kind,
            provenance=provenance,
        )
