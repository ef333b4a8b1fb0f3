"""`arpo doctor`: what works here, and how to fix what does not."""

import json as codec
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.console import Console
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from arpo.config.doctor import Finding


def doctor(*, json: Annotated[bool, Parameter(negative="", help="The findings as JSON.")] = False) -> int:
    """Check this machine; exit code 1 if something that every run needs is broken."""
    from arpo.config.doctor import broken, examine

    findings = examine()
    if json:
        print(codec.dumps([finding.to_dict() for finding in findings], indent=2))
    else:
        Console().print(_table(findings))
    return 1 if broken(findings) else 0


def _table(findings: "list[Finding]") -> Table:
    colours = {"ok": "green", "missing": "yellow", "problem": "red"}
    table = Table("", "status", box=None, pad_edge=False)
    table.add_column("found", overflow="fold")
    table.add_column("remedy", overflow="fold")
    for finding in findings:
        status = f"[{colours[finding.status]}]{finding.status}[/]"
        table.add_row(finding.name, status, escape(finding.detail), escape(finding.fix))
    return table
