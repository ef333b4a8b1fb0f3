r"""Whether gold answers score 1 against themselves: if not, the right answer earns nothing and training is misled.

An answer is compared with itself as a policy writes it, in a box. Two modes are asked: "hybrid", what a reward is here
by default, and "paper", the published reward, which deletes punctuation and articles and so never rewards the choice
"A". On demand "math" asks a computer algebra system about the answers of mathematical tasks. Where a row has several
gold answers, each of them must be right by one of them.
"""

from collections.abc import Iterator, Sequence
from typing import Literal

from arpo.data.check_rows import Entry
from arpo.data.escapes import excerpt
from arpo.data.findings import Finding
from arpo.reward.answers import best_score, score_many

Checked = Literal["hybrid", "paper", "math"]
MODES: tuple[Checked, ...] = ("hybrid", "paper")


def inconsistencies(entries: Sequence[Entry], modes: Sequence[Checked] = MODES) -> Iterator[Finding]:
    """Findings for every row with an answer that does not score 1 against itself, by mode."""
    for mode in modes:
        meant = [entry for entry in entries if mode != "math" or entry.kind == "math"]
        asked = [(entry, answer) for entry in meant for answer in entry.answers]
        pairs = [(_boxed(answer), answer) for _, answer in asked]
        scores = score_many(pairs, mode=mode, kinds=[entry.kind for entry, _ in asked])
        found: set[int] = set()
        for (entry, answer), score in zip(asked, scores, strict=True):
            if score < 1 and entry.number not in found and not _otherwise(answer, entry, mode):
                found.add(entry.number)
                yield Finding(f"inconsistent_{mode}", entry.number, f"{excerpt(answer)} | {entry.text}")


def _otherwise(answer: str, entry: Entry, mode: Checked) -> bool:
    """Whether another gold answer of the row makes it right."""
    return len(entry.answers) > 1 and best_score(_boxed(answer), entry.answers, mode=mode, kind=entry.kind) == 1


def _boxed(answer: str) -> str:
    return f"\\boxed{{{answer}}}"
