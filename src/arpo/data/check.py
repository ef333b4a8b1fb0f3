"""What is wrong with data before a run learns from them: `arpo data check`.

The published training set of the paper carries a backspace in every prompt, five gold answers that a script cut off,
and 442 questions of one file in another; none of it stops a run, all of it teaches. A check reads every row, goes on
behind those that cannot be read, and reports by kind (`findings`), file by file.

Files are compared with one another pairwise, and with the files of `against`: test sets, which training data must not
overlap.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from arpo.data.check_answers import MODES, inconsistencies
from arpo.data.check_cache import check_cache, is_cache
from arpo.data.check_columns import Columns
from arpo.data.check_conversations import form_of, judge
from arpo.data.check_length import TOGETHER, Prompt, PromptLimit
from arpo.data.check_overlap import Places, repeats
from arpo.data.check_rows import Entry
from arpo.data.findings import FileReport, Finding
from arpo.data.rows import Row, scan_rows
from arpo.errors import ConfigError, DataError

Source = str | Path


@dataclass(slots=True)
class _Sheet:
    """A file as later steps need it."""

    report: FileReport
    entries: list[Entry] = field(default_factory=list)
    columns: Columns = field(default_factory=Columns)
    prompts: list[tuple[int, Prompt]] = field(default_factory=list)
    """Not yet measured."""


def check(
    sources: Sequence[Source],
    *,
    against: Sequence[Source] = (),
    limit: PromptLimit | None = None,
    algebra: bool = False,
) -> list[FileReport]:
    """A report per file of `sources` (a folder may hold several). What cannot be read at all is a finding, too.

    `algebra`: compare mathematical answers with themselves by computer algebra, too, which takes a minute.
    Raises ConfigError without a source, DataError for a file of `against` that cannot be read.
    """
    if not sources:
        raise ConfigError("name the files to check: .jsonl, .json, .parquet, a folder, or hf:NAME")
    sheets = [sheet for source in sources for sheet in _sheets(source, limit)]
    others = [sheet for source in against for sheet in _task_sheets(source, None)]
    for sheet in sheets:
        near = sheet.report.form == "tasks"
        sheet.report.findings += [*sheet.columns.findings(), *repeats(sheet.entries, near=near)]
        sheet.report.findings += inconsistencies(sheet.entries, (*MODES, "math") if algebra else MODES)
    _compare(sheets, Places(_named(sheets)), "overlap")
    _compare(sheets, Places(_named(others)), "test_overlap")
    return [sheet.report for sheet in sheets]


def _named(sheets: Iterable[_Sheet]) -> Iterator[tuple[str, Sequence[Entry]]]:
    return ((sheet.report.file, sheet.entries) for sheet in sheets)


def _compare(sheets: Iterable[_Sheet], places: Places, kind: str) -> None:
    for sheet in sheets:
        sheet.report.findings += places.findings(sheet.report.file, sheet.entries, kind)


def _sheets(source: Source, limit: PromptLimit | None) -> list[_Sheet]:
    try:
        if is_cache(source):
            return [_Sheet(check_cache(Path(source)))]
        return _task_sheets(source, limit)
    except DataError as error:
        report = FileReport(str(source), "", 0, [Finding("unreadable_file", 0, str(error))])
        return [_Sheet(report)]


def _task_sheets(source: Source, limit: PromptLimit | None) -> list[_Sheet]:
    """A sheet per file of the source, its rows examined one by one."""
    sheets: dict[str, _Sheet] = {}
    for row in scan_rows(source):
        sheet = sheets.setdefault(row.file, _Sheet(FileReport(row.file, "")))
        if not sheet.report.form and not row.fault:
            sheet.report.form = form_of(row)
        _add(sheet, row, limit)
    if not sheets:
        raise DataError(f"{source}: holds not a single row")
    for sheet in sheets.values():
        _measure(sheet, limit)
    return list(sheets.values())


def _add(sheet: _Sheet, row: Row, limit: PromptLimit | None) -> None:
    sheet.report.rows += 1
    entry, messages, found = judge(row, sheet.report.form)
    sheet.report.findings += found
    if messages and limit is not None:
        sheet.prompts.append((row.number, messages))
        if len(sheet.prompts) == TOGETHER:
            _measure(sheet, limit)
    if entry is not None:
        sheet.entries.append(entry)
    if not row.fault:
        sheet.columns.add(row.number, row.columns)


def _measure(sheet: _Sheet, limit: PromptLimit | None) -> None:
    if limit is not None and sheet.prompts:
        sheet.report.findings += limit.findings(sheet.prompts)
        sheet.prompts.clear()
