"""`arpo doctor`: what works here, or at a server, and how to fix what does not."""

import json as codec
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from arpo.errors import ArpoError

if TYPE_CHECKING:
    from arpo.config.doctor import Finding


def doctor(
    *,
    engine: Annotated[
        str | None, Parameter(help="Base URL of a server, such as http://127.0.0.1:8000/v1: check it for rollouts.")
    ] = None,
    model: Annotated[str | None, Parameter(help="With --engine: the served model. Default: the only one.")] = None,
    key_variable: Annotated[
        str | None, Parameter(help="With --engine: environment variable of its key. Default: OPENAI_API_KEY.")
    ] = None,
    json: Annotated[bool, Parameter(negative="", help="The findings as JSON.")] = False,
) -> int:
    """Check this machine, or with --engine a server; exit code 1 if something that a run needs is broken."""
    from arpo.config.doctor import broken

    findings = _findings(engine, model, key_variable)
    if json:
        print(codec.dumps([finding.to_dict() for finding in findings], indent=2))
    else:
        console = Console()
        console.print(_table(findings, tell_optional=engine is not None))
        if engine is not None:
            console.print(escape(_verdict(broken(findings), findings)), highlight=False, soft_wrap=True)
    return 1 if broken(findings) else 0


def _findings(engine: str | None, model: str | None, key_variable: str | None) -> "list[Finding]":
    if engine is not None:
        from arpo.config.engine_doctor import examine_engine

        return examine_engine(engine, model, key_variable or "OPENAI_API_KEY")
    if model is not None or key_variable is not None:
        raise ArpoError("--model and --key-variable are about a server: give --engine URL as well")
    from arpo.config.doctor import examine

    return examine()


def _verdict(is_broken: bool, findings: "list[Finding]") -> str:
    if is_broken:
        first = next(finding for finding in findings if finding.required and finding.status != "ok")
        return f"Not fit for a rollout: mend {first.name!r} first and run this again."
    return f"Fit for a rollout: engine.type=openai engine.base_url={findings[0].detail}"


def _table(findings: "list[Finding]", tell_optional: bool = False) -> Table:
    colours = {"ok": "green", "missing": "yellow", "problem": "red", "not checked": "dim"}
    table = Table("", "status", box=None, pad_edge=False)
    table.add_column("found", overflow="fold")
    table.add_column("remedy", overflow="fold")
    for finding in findings:
        status = f"[{colours[finding.status]}]{finding.status}[/]"
        name = finding.name if finding.required or not tell_optional else f"{finding.name} (optional)"
        table.add_row(name, status, escape(finding.detail), escape(finding.fix))
    return table
