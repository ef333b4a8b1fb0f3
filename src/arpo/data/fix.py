"""A repaired copy of a file of tasks, demonstrations or search results: `arpo data fix`.

The copy has the format, the columns and the order of the original; rows that needed nothing are written as they were.
Every repair is logged (OUT.log.jsonl: row, field, what, before, after), and every row that is left out, because it
cannot be repaired or was not wanted, goes to OUT.rejected.jsonl as it was, with the reasons. Nothing is lost. What is
an error to `arpo data check` is repaired or set aside; warnings are left as they are unless an option says otherwise.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from arpo.data.check_answers import inconsistencies
from arpo.data.check_cache import is_cache
from arpo.data.check_conversations import form_of, judge
from arpo.data.check_rows import Entry
from arpo.data.findings import KINDS, Finding
from arpo.data.repairs import Change, repaired
from arpo.data.rows import Row, files_of, row_by_line, scan_rows
from arpo.data.sinks import dumped, refuse_existing, replacing, write_lines, write_list, write_parquet
from arpo.errors import ConfigError

_TOGETHER = 2000
"""Rows whose answers are compared at a time."""


@dataclass(slots=True)
class Fixed:
    """What became of a file. `repairs`: rows by what was repaired; `reasons`: rows by why they were set aside."""

    rows: int = 0
    written: int = 0
    repaired: int = 0
    rejected: int = 0
    repairs: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class _Case:
    """A row on its way. `before`: its columns as they were; `row` and `columns`: with its repairs."""

    before: Mapping[str, Any]
    row: Row
    columns: dict[str, Any]
    changes: list[Change]
    entry: Entry | None = None
    reasons: list[tuple[str, str]] = field(default_factory=list)


def fix(
    source: Path,
    out: Path,
    *,
    drop_duplicates: bool = False,
    without: Sequence[str | Path] = (),
    overwrite: bool = False,
) -> Fixed:
    """Write the repaired copy, the log and the rejected rows; the counts.

    `drop_duplicates`: rows with the question of an earlier row are set aside. `without`: so are those whose question is
    in one of these files. Raises ConfigError for an unusable OUT, DataError for a file that cannot be read at all.
    """
    _refuse(source, out, overwrite)
    if is_cache(source):
        from arpo.data.fix_cache import fix_cache

        return fix_cache(source, out)
    fixed = Fixed()
    unwanted = _Unwanted(without, drop_duplicates)
    with ExitStack() as stack:
        log, rejected = (_Notes(beside(out, what), stack) for what in ("log", "rejected"))
        cases = (_settled(case, unwanted, fixed, log, rejected) for case in _examined(source))
        fixed.written = _write(source, out, (case for case in cases if not case.reasons))
    return fixed


def beside(out: Path, what: str) -> Path:
    """OUT.log.jsonl and OUT.rejected.jsonl."""
    return out.with_name(f"{out.name}.{what}.jsonl")


def _refuse(source: Path, out: Path, overwrite: bool) -> None:
    if files_of(source) != [source]:
        raise ConfigError(f"{source}: one file at a time is repaired; name a file")
    if out.suffix != source.suffix:
        raise ConfigError(f"{out}: the copy has the format of {source.name}; name it {out.stem}{source.suffix}")
    if out.exists() and out.samefile(source):
        raise ConfigError(f"{out}: is the file itself; a copy has another name")
    for path in (out, beside(out, "log"), beside(out, "rejected")):
        refuse_existing(path, overwrite=overwrite)


def _examined(source: Path) -> Iterator[_Case]:
    """Rows repaired and judged, some at a time because their answers are compared together."""
    cases: list[_Case] = []
    form = ""
    for row in scan_rows(source):
        case = _repaired(row)
        form = form or ("" if row.fault else form_of(case.row))
        case.entry, _, found = judge(case.row, form)
        case.reasons = [_reason(finding) for finding in found if finding.severity == "error"]
        cases.append(case)
        if len(cases) == _TOGETHER:
            yield from _compared(cases)
            cases = []
    yield from _compared(cases)


def _repaired(row: Row) -> _Case:
    columns, changes = repaired(row.columns)
    return _Case(row.columns, replace(row, columns=columns), columns, changes)


def _reason(finding: Finding) -> tuple[str, str]:
    return finding.kind, f"{KINDS[finding.kind].meaning}: {finding.excerpt}"


def _compared(cases: list[_Case]) -> Iterator[_Case]:
    places = {case.row.number: case for case in cases}
    entries = [case.entry for case in cases if case.entry is not None and not case.reasons]
    for finding in inconsistencies(entries, ("hybrid",)):
        places[finding.row].reasons.append(_reason(finding))
    yield from cases


class _Unwanted:
    """Rows that are whole but not wanted: the questions of other files, those that were there before; and used ids."""

    def __init__(self, without: Iterable[str | Path], drop_duplicates: bool) -> None:
        self._drop = drop_duplicates
        self._others: dict[bytes, str] = {}
        self._seen: dict[bytes, int] = {}
        self._ids: set[str] = set()
        for source in without:
            for row in scan_rows(source):
                entry, _, _ = judge(row, form_of(row))
                if entry is not None:
                    self._others.setdefault(entry.normal, row.where)

    def judge(self, case: _Case) -> None:
        """Add the reasons to set the row aside, or the repair of an id that is taken."""
        entry = case.entry
        if entry is None or case.reasons:
            return
        if entry.normal in self._others:
            case.reasons.append(("overlap", f"the question is also in {self._others[entry.normal]}"))
        elif self._drop and entry.normal in self._seen:
            case.reasons.append(("duplicate", f"the question is also that of row {self._seen[entry.normal]}"))
        else:
            self._seen.setdefault(entry.normal, entry.number)
            self._free_id(case, entry)

    def _free_id(self, case: _Case, entry: Entry) -> None:
        if entry.id is not None and entry.id in self._ids:
            case.changes.append(Change("id", "an id that an earlier row has taken out", case.columns["id"], None))
            case.columns["id"] = None
        elif entry.id is not None:
            self._ids.add(entry.id)


class _Notes:
    """Lines for a file that is there only if there are any; an old one goes."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self._path, self._stack = path, stack
        self._file: IO[bytes] | None = None
        path.unlink(missing_ok=True)

    def add(self, line: str) -> None:
        if self._file is None:
            self._file = self._stack.enter_context(replacing(self._path))
        self._file.write(line.encode() + b"\n")


def _settled(case: _Case, unwanted: _Unwanted, fixed: Fixed, log: _Notes, rejected: _Notes) -> _Case:
    """The row counted and written down."""
    unwanted.judge(case)
    fixed.rows += 1
    if case.reasons:
        fixed.rejected += 1
        fixed.reasons.update({kind for kind, _ in case.reasons})
        kept = {"raw": case.row.raw} if case.row.fault else {"columns": case.before}
        rejected.add(dumped({"row": case.row.number, "reasons": [said for _, said in case.reasons]} | kept))
        return case
    fixed.repaired += bool(case.changes)
    fixed.repairs.update({change.what for change in case.changes})
    for change in case.changes:
        log.add(_logged(case.row.number, change))
    return case


def _logged(number: int, change: Change) -> str:
    before, after = change.before, change.after
    if isinstance(before, str) and isinstance(after, str):
        before, after = around(before, after)
    return dumped({"row": number, "field": change.field, "what": change.what, "before": before, "after": after})


def around(before: str, after: str, *, most: int = 400, margin: int = 60) -> tuple[str, str]:
    """Both texts, long ones cut down to the neighbourhood of their first difference."""
    if len(before) <= most:
        return before, after
    at = next((place for place, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), len(after))
    start = max(0, at - margin)
    return f"…{before[start : at + margin]}…", f"…{after[start : at + margin]}…"


def _write(source: Path, out: Path, cases: Iterable[_Case]) -> int:
    if source.suffix == ".parquet":
        import pyarrow.parquet as pq

        return write_parquet(out, (case.columns for case in cases), pq.read_schema(source))
    lines = (dumped(case.columns) if case.changes or not case.row.raw else case.row.raw for case in cases)
    by_line = source.suffix == ".jsonl" or row_by_line(source)
    return (write_lines if by_line else write_list)(out, lines)
