r"""Whether gold answers score 1 against themselves: if not, the right answer earns nothing and training is misled.

An answer is compared with itself as a policy writes it, in a box. Two modes are asked: "hybrid", what a reward is here
by default, and "paper", the published reward, which deletes punctuation and articles and so never rewards the choice
"A". Where a row has several gold answers, each of them must be right.
"""

from collections.abc import Iterator, Sequence
from typing import Literal

from arpo.data.check_rows import Entry
from arpo.data.escapes import excerpt
from arpo.data.findings import Finding
from arpo.reward.answers import best_score

Checked = Literal["hybrid", "paper"]
MODES: tuple[Checked, ...] = ("hybrid", "paper")


def inconsistencies(entries: Sequence[Entry]) -> Iterator[Finding]:
    """Findings for every row with an answer that does not score 1 against itself, by mode."""
    for entry in entries:
        for mode in MODES:
            wrong = next((answer for answer in entry.answers if not _right(answer, entry, mode)), None)
            if wrong is not None:
                yield Finding(f"inconsistent_{mode}", entry.number, f"{excerpt(wrong)} | {entry.text}")


def _right(answer: str, entry: Entry, mode: Checked) -> bool:
    return best_score(f"\\boxed{{{answer}}}", entry.answers, mode=mode, kind=entry.kind) == 1
