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


@dataclass(frozen=True, slots=True)
class Item:
    """What a row says. `type`: the row of the per-type tables, "" where the set has none. `id`: the set's own.

    `kind`: how to compare, where this row knows better than its set. `canary`: the line by which a set asks to be left
    out of training data; it stays with the task, so that copies carry it.
    """

    question: str
    answers: tuple[str, ...]
    id: str = ""
    type: str = ""
    kind: AnswerKind | None = None
    language: str = ""
    canary: str = ""


@dataclass(frozen=True)
class Benchmark:
    """One set of questions.

    `source`, `config`, `split`: where it is on the Hugging Face hub. `size`: questions in the whole split, rows that
    are not measured included. `metrics`: names in `arpo.reward.metrics`, the headline first; `rule`: the one of them
    that needs no judge, for trials without a server. `folders`: names of its folder in published layouts. `types`:
    what the per-type table tells apart, "" for nothing. `subset`: which rows are measured; `skip`: why a row is none
    of them ("" if it is). `instruction`: put below the question, "" for nothing. `gated`: the hub asks for a login and
    for consent. `secret`: the rows are published encrypted, so that no crawler reads them; results hold plain text.
    `editions`: published subsets by the fingerprint of their questions (`arpo.data.benchmarks.subset`). `checked`:
    what of this entry was compared with published rows, and what could not be.
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
    folders: tuple[str, ...]
    kind: AnswerKind = "auto"
    types: str = ""
    subset: str = ""
    skip: Callable[[Row], str] = field(default=lambda row: "")
    instruction: str = ""
    gated: bool = False
    secret: bool = False
    editions: Mapping[str, str] = field(default_factory=dict)
    checked: str = ""
    notes: str = ""

    @property
    def metric(self) -> str:
        """The headline metric."""
        return self.metrics[0]

    def type_of(self, row: Row) -> str:
        """The row's place in the per-type table, "" where the set or the layout has none. Raises UnusableError."""
        return self.item(row).type

    def task(self, item: Item, row: int, position: int) -> Task:
        """The task of an item. `row`: its number in the file, for messages; `position`: its place in the whole set."""
        prompt = f"{item.question}\n\n{self.instruction}" if self.instruction else item.question
        provenance = {"benchmark": self.name, "family": item.type or self.name, "row": str(row)}
        provenance |= {key: value for key in ("language", "canary") if (value := getattr(item, key))}
        return Task(
            id=f"{self.name}:{item.id or position}",
            messages=(Message("user", prompt),),
            answers=item.answers,
            kind=item.kind or self.kind,
            provenance=provenance,
        )
