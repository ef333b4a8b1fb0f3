"""`arpo data`: check data before a run learns from them, write a repaired copy, convert between formats."""

import json as codec
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

if TYPE_CHECKING:
    from arpo.data.findings import FileReport, Group

app = App(name="data", help="Data: check files, write a repaired copy, convert between formats.")

_FEW = 12
"""Row numbers that are printed."""

Source = Annotated[
    str,
    Parameter(name="FILE", help=".jsonl, .json, .parquet, a folder of these, a pattern, or hf:NAME[/CONFIG][@SPLIT]."),
]
Plain = Annotated[bool, Parameter(negative="", help="For programs.")]


@app.command
def check(
    *files: Source,
    against: Annotated[
        tuple[str, ...],
        Parameter(consume_multiple=True, negative="", help="Test sets: a question that is in one is an error."),
    ] = (),
    tokenizer: Annotated[str | None, Parameter(help="Whose tokens to count: a model's name or folder.")] = None,
    max_prompt_tokens: Annotated[int | None, Parameter(help="Longer prompts are found.")] = None,
    algebra: Annotated[
        bool, Parameter(negative="", help="Note answers that computer algebra does not understand; takes longer.")
    ] = False,
    json: Plain = False,
) -> int:
    """Find what is wrong with task files, demonstrations and search caches, row by row.

    Exit code 0: nothing, or notes; 7: warnings at the most; 1: errors.
    """
    from arpo.data.check import check
    from arpo.data.check_length import prompt_limit
    from arpo.data.findings import exit_code

    reports = check(files, against=against, limit=prompt_limit(tokenizer, max_prompt_tokens), algebra=algebra)
    code = exit_code(reports)
    if json:
        print(codec.dumps({"exit_code": code, "files": [_plain(report) for report in reports]}, indent=1))
        return code
    for report in reports:
        print("\n".join(_lines(report)))
    print(_total(reports))
    return code


def _plain(report: "FileReport") -> dict[str, object]:
    groups = [group.plain() for group in report.groups()]
    return {"file": report.file, "form": report.form, "rows": report.rows, "findings": groups}


def _lines(report: "FileReport") -> Iterator[str]:
    from arpo.data.escapes import visible

    yield visible(f"{report.file}: {report.rows:,} {_FORMS.get(report.form, 'rows')}")
    for group in report.groups():
        yield from (visible(line) for line in _found(group))
    if not report.findings:
        yield "  nothing found"


_FORMS = {"tasks": "tasks", "conversations": "conversations", "search cache": "entries of a search cache"}


def _found(group: "Group") -> Iterator[str]:
    from arpo.data.findings import KINDS

    place = f" in {group.place}" if group.place else ""
    against = f" ({group.against})" if group.against else ""
    yield f"  {group.severity:<7} {len(group.rows):>6,}  {group.kind}{place}: {KINDS[group.kind].meaning}{against}"
    if group.rows == (0,):
        yield f"                  {group.excerpts[0]}"
        return
    more = ", ..." if len(group.rows) > _FEW else ""
    yield f"                  rows {', '.join(map(str, group.rows[:_FEW]))}{more}"
    if group.excerpts[0]:
        yield f"                  row {group.rows[0]}: {group.excerpts[0]}"


def _total(reports: Sequence["FileReport"]) -> str:
    from arpo.data.findings import SEVERITIES

    groups = [group for report in reports for group in report.groups()]
    counts = {name: sum(len(group.rows) for group in groups if group.severity == name) for name in SEVERITIES}
    said = ", ".join(f"{count:,} {name}{'' if count == 1 else 's'}" for name, count in counts.items())
    files = f"{len(reports)} file{'' if len(reports) == 1 else 's'}"
    return f"{files}, {sum(report.rows for report in reports):,} rows: {said}"


@app.command
def fix(
    file: Annotated[
        Path, Parameter(help="A .jsonl, .json or .parquet file of tasks, demonstrations or search results.")
    ],
    out: Annotated[Path, Parameter(help="The repaired copy, in the same format.")],
    *,
    drop_duplicates: Annotated[
        bool, Parameter(negative="", help="Set aside rows with the question of an earlier row.")
    ] = False,
    without: Annotated[
        tuple[str, ...],
        Parameter(consume_multiple=True, negative="", help="Set aside rows whose question is in one of these files."),
    ] = (),
    overwrite: Annotated[bool, Parameter(negative="", help="Replace OUT and what lies beside it.")] = False,
) -> int:
    """Write a copy without what `arpo data check` calls an error.

    Repairs are logged in OUT.log.jsonl; rows that cannot be repaired, or are not wanted, go to OUT.rejected.jsonl.
    """
    from arpo.data.fix import beside, fix

    fixed = fix(file, out, drop_duplicates=drop_duplicates, without=without, overwrite=overwrite)
    print(f"{out}: {fixed.written:,} of {fixed.rows:,} rows, {fixed.repaired:,} of them repaired")
    for what, count in fixed.repairs.most_common():
        print(f"  repaired   {count:>6,}  {what}")
    for reason, count in fixed.reasons.most_common():
        print(f"  set aside  {count:>6,}  {reason}")
    if fixed.repaired:
        print(f"every change: {beside(out, 'log')}")
    if fixed.rejected:
        print(f"{fixed.rejected:,} rows set aside: {beside(out, 'rejected')}")
    return 0


@app.command
def convert(
    source: Annotated[str, Parameter(name="IN", help="Tasks or demonstrations, from wherever they are read.")],
    out: Annotated[Path, Parameter(help="The file to write: .parquet for verl, .jsonl or .json otherwise.")],
    *,
    to: Annotated[str, Parameter(help="Tasks: verl, jsonl. Demonstrations: sharegpt, alpaca, openai.")],
    overwrite: Annotated[bool, Parameter(negative="", help="Replace OUT.")] = False,
) -> int:
    """Write tasks or demonstrations in another format. What the format cannot hold is counted and said."""
    from arpo.data.convert import convert

    count, losses = convert(source, out, to, overwrite=overwrite)
    print(f"{out}: {count:,} rows as {to}")
    for what, rows in losses.most_common():
        if rows:
            print(f"  lost in {rows:,} row{'' if rows == 1 else 's'}: {what}", file=sys.stderr)
    return 0
