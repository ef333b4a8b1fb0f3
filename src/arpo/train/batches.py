"""Rows of tokens and length-bucketed batches of them, filled by tokens instead of by rows."""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

IGNORED = -100
"""A label without loss (the convention of torch's cross entropy)."""


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence: token ids `[T]` and labels `[T]` (the id itself, or IGNORED), both plain lists."""

    input_ids: list[int]
    labels: list[int]

    def __len__(self) -> int:
        return len(self.input_ids)


def encode_pieces(tokenizer: "PreTrainedTokenizerBase", traces: Sequence[Sequence[tuple[str, bool]]]) -> list[Row]:
    """Token-exact rows: every piece `(text, trainable)` is encoded by itself, as it is in a rollout."""
    texts = [text for pieces in traces for text, _ in pieces]
    encoded = iter(tokenizer(texts, add_special_tokens=False)["input_ids"])
    return [_row([(next(encoded), trainable) for _, trainable in pieces]) for pieces in traces]


def _row(pieces: Iterable[tuple[list[int], bool]]) -> Row:
    input_ids: list[int] = []
    labels: list[int] = []
    for ids, trainable in pieces:
        input_ids += ids
        labels += ids if trainable else [IGNORED] * len(ids)
    return Row(input_ids, labels)


def bucket(rows: Iterable[Row], tokens: int, rng: random.Random) -> list[list[Row]]:
    """Batches of rows of similar length, each at most `tokens` with padding (but at least one row), in random order."""
    batches: list[list[Row]] = []
    for row in sorted(rows, key=len):
        if batches and (len(batches[-1]) + 1) * len(row) <= tokens:
            batches[-1].append(row)
        else:
            batches.append([row])
    rng.shuffle(batches)
    return batches


def repeat(rows: Sequence[Row], tokens: int, rng: random.Random, rank: int, world: int) -> Iterator[list[Row]]:
    """Epoch after epoch over the rows; every process gets its share, and all the same number of batches per epoch."""
    while True:
        batches = bucket(rows, tokens, rng)
        if len(batches) < world:
            batches *= world
        yield from batches[rank : len(batches) - len(batches) % world : world]


def stream(draw: Callable[[], list[Row]], tokens: int, rng: random.Random) -> Iterator[list[Row]]:
    """Endless batches of fresh rows; `draw` makes a few hundred at a time, enough to fill every length's bucket."""
    while True:
        yield from bucket(draw(), tokens, rng)
