"""What a check of data can find, how bad each of it is, and the counts that a report is made of.

A finding is about one row. Reports group them by kind and place, because one accident of a writing script hits every
row: "10,000 rows, the first are 1, 2, 3" is what a reader needs, and one excerpt of it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

Severity = Literal["note", "warning", "error"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")
CLEAN, WARNED, BROKEN = 0, 7, 1
"""Exit codes of a check: nothing but notes, warnings at the most, errors."""


@dataclass(frozen=True, slots=True)
class Kind:
    """How bad a kind of finding is, and what it means."""

    severity: Severity
    meaning: str


_ERROR, _WARNING, _NOTE = SEVERITIES
KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "unreadable_file": Kind(_ERROR, "the file cannot be read"),
        "unreadable_row": Kind(_ERROR, "the row cannot be read"),
        "missing_prompt": Kind(_ERROR, "no prompt"),
        "bad_prompt": Kind(_ERROR, "a prompt that is none"),
        "missing_answer": Kind(_ERROR, "no gold answer"),
        "bad_answer": Kind(_ERROR, "a gold answer that is none"),
        "blank_answer": Kind(_ERROR, "the gold answer is empty"),
        "bad_kind": Kind(_ERROR, "a kind of answer that there is not"),
        "bad_conversation": Kind(_ERROR, "a conversation that cannot be learnt from"),
        "mixed_rows": Kind(_ERROR, "a demonstration in a file of tasks"),
        "duplicate_id": Kind(_ERROR, "the id is also that of an earlier row"),
        "broken_escape": Kind(_ERROR, "a control character where a LaTeX command was meant"),
        "control_character": Kind(_WARNING, "a control character"),
        "unbalanced_box": Kind(_WARNING, "a box that is never closed"),
        "nested_box": Kind(_WARNING, "a box within a box"),
        "unbalanced_answer": Kind(_ERROR, "braces that do not match: cut off? no boxed answer can hold this"),
        "torn_answer": Kind(_ERROR, "half of a LaTeX pair: the answer was cut off"),
        "boxed_answer": Kind(_WARNING, "the gold answer is itself boxed; in the policy's box, boxes would be nested"),
        "inconsistent_hybrid": Kind(_ERROR, "an answer that does not score 1 against itself, in mode hybrid"),
        "inconsistent_math": Kind(_NOTE, "algebra does not find it equal to itself: only the same signs will be right"),
        "inconsistent_paper": Kind(_WARNING, "an answer that does not score 1 against itself, in mode paper"),
        "leaked_answer": Kind(_WARNING, "the question holds its own answer in a box"),
        "duplicate_question": Kind(_WARNING, "the question of an earlier row, word for word"),
        "near_duplicate": Kind(_WARNING, "the question of an earlier row but for spacing, punctuation or case"),
        "contradicting_answers": Kind(_WARNING, "an earlier row has the same question and another answer"),
        "overlap": Kind(_WARNING, "the question is also in another of the files"),
        "test_overlap": Kind(_ERROR, "the question is in a file that this one must not overlap"),
        "refused_prompt": Kind(_ERROR, "the chat template of the model refuses the prompt"),
        "long_prompt": Kind(_WARNING, "the prompt has more tokens than allowed"),
        "missing_column": Kind(_NOTE, "a column that other rows have is not there, or null"),
        "corrupt_entry": Kind(_ERROR, "an entry of a search cache that would teach a policy markup"),
        "repeated_query": Kind(_WARNING, "a query that occurs more than once; the last one counts"),
        "empty_result": Kind(_NOTE, "a search that found nothing"),
    }
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing about one row (0: about the file). `place`: which part of the row; `against`: which other file."""

    kind: str
    row: int
    excerpt: str = ""
    place: str = ""
    against: str = ""

    @property
    def severity(self) -> Severity:
        """How bad it is."""
        return KINDS[self.kind].severity


@dataclass(frozen=True, slots=True)
class Group:
    """All findings of one kind and place in a file. `rows`: each row once, in order."""

    kind: str
    place: str
    against: str
    rows: tuple[int, ...]
    excerpts: tuple[str, ...]

    @property
    def severity(self) -> Severity:
        """How bad it is."""
        return KINDS[self.kind].severity

    def plain(self, most: int = 20) -> dict[str, Any]:
        """For programs: at most so many row numbers and excerpts."""
        return {
            "kind": self.kind,
            "severity": self.severity,
            "meaning": KINDS[self.kind].meaning,
            "place": self.place,
            "against": self.against,
            "count": len(self.rows),
            "rows": list(self.rows[:most]),
            "excerpts": list(self.excerpts[:most]),
        }


@dataclass(slots=True)
class FileReport:
    """What was found in one file. `form`: what its rows are (tasks, conversations, search cache)."""

    file: str
    form: str = "tasks"
    rows: int = 0
    findings: list[Finding] = field(default_factory=list)

    def groups(self) -> list[Group]:
        """The worst first, then the most frequent."""
        sorted_in: dict[tuple[str, str, str], list[Finding]] = {}
        for finding in self.findings:
            sorted_in.setdefault((finding.kind, finding.place, finding.against), []).append(finding)
        groups = [_group(*key, found) for key, found in sorted_in.items()]
        return sorted(groups, key=lambda group: (SEVERITIES.index(group.severity), -len(group.rows)))

    def count(self, kind: str) -> int:
        """How many rows have a finding of this kind."""
        return len({finding.row for finding in self.findings if finding.kind == kind})


def _group(kind: str, place: str, against: str, found: Sequence[Finding]) -> Group:
    first = {finding.row: finding.excerpt for finding in reversed(found)}
    rows = tuple(sorted(first))
    return Group(kind, place, against, rows, tuple(first[row] for row in rows[:20]))


def exit_code(reports: Iterable[FileReport]) -> int:
    """0: nothing, or notes; 7: warnings at the most; 1: errors."""
    found = {finding.severity for report in reports for finding in report.findings}
    if "error" in found:
        return BROKEN
    return WARNED if "warning" in found else CLEAN
