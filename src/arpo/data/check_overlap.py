"""Rows that say the same as other rows: within a file, between files, and with another answer.

Two questions are the same if their texts are, or if they are after `normal_question`. A question that comes twice with
two gold answers is trained towards both; whether the answers differ is asked of the reward's own comparison, so that
`3+\\sqrt{2}` does not contradict `\\sqrt{2}+3`.
"""

from collections.abc import Iterable, Iterator

from arpo.data.check_rows import Entry
from arpo.data.findings import Finding
from arpo.reward.answers import best_score


def repeats(entries: Iterable[Entry], *, near: bool = True) -> Iterator[Finding]:
    """Duplicates within one file: of ids, of rows, and if `near` of questions in other dress or with other answers.

    Several demonstrations of one question are what sampling gives; of them only whole copies are duplicates.
    """
    ids: dict[str, int] = {}
    whole: dict[bytes, Entry] = {}
    normal: dict[bytes, Entry] = {}
    for entry in entries:
        if entry.id is not None and ids.setdefault(entry.id, entry.number) != entry.number:
            yield Finding("duplicate_id", entry.number, f"{entry.id!r}, row {ids[entry.id]}")
        if entry.whole in whole:
            yield Finding("duplicate_question", entry.number, _of(whole[entry.whole]))
        elif near and entry.normal in normal:
            yield Finding("near_duplicate", entry.number, _of(normal[entry.normal]))
        whole.setdefault(entry.whole, entry)
        first = normal.setdefault(entry.normal, entry)
        if first is not entry and contradict(first, entry):
            said = f"row {first.number} says {first.answers[0]!r}, this one {entry.answers[0]!r}: {first.text}"
            yield Finding("contradicting_answers", entry.number, said)


def contradict(one: Entry, other: Entry) -> bool:
    """Whether no gold answer of the one is right for the other, in either direction."""
    if not one.answers or not other.answers:
        return False
    agree = (best_score(answer, one.answers, kind=one.kind) == 1 for answer in other.answers)
    return not any(agree) and not any(best_score(answer, other.answers, kind=other.kind) == 1 for answer in one.answers)


class Places:
    """Where questions stand, over any number of files; of each file the first row counts."""

    def __init__(self, files: Iterable[tuple[str, Iterable[Entry]]]) -> None:
        self._found: dict[bytes, dict[str, Entry]] = {}
        for name, entries in files:
            for entry in entries:
                self._found.setdefault(entry.normal, {}).setdefault(name, entry)

    def findings(self, file: str, entries: Iterable[Entry], kind: str) -> Iterator[Finding]:
        """The entries of `file` whose question is in another file."""
        for entry in entries:
            for name, match in self._found.get(entry.normal, {}).items():
                if name != file:
                    dress = "" if match.exact == entry.exact else ", in other dress"
                    yield Finding(kind, entry.number, f"row {match.number} there{dress}: {entry.text}", against=name)


def _of(entry: Entry) -> str:
    return f"row {entry.number}: {entry.text}"
