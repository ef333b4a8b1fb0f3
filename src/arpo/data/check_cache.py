"""A published search cache (one JSON object from queries to rendered results), entry by entry."""

from pathlib import Path

from arpo.data.escapes import excerpt
from arpo.data.findings import FileReport, Finding
from arpo.data.rows import row_by_line
from arpo.tools.search.legacy import entries, fault
from arpo.tools.search.render import NO_SEARCH_RESULTS


def is_cache(source: str | Path) -> bool:
    """Whether a file is one JSON object, as caches are; rows come in a list or one a line."""
    path = Path(source)
    if path.suffix != ".json" or not path.is_file():
        return False
    with path.open("rb") as file:
        head = file.read(4096).lstrip(b"\xef\xbb\xbf \t\r\n")
    return head.startswith(b"{") and not row_by_line(path)


def check_cache(path: Path) -> FileReport:
    """Entries that carry markup, that repeat a query, or that found nothing. Raises DataError for no JSON object."""
    report = FileReport(str(path), "search cache")
    seen: dict[str, int] = {}
    for number, (query, text) in enumerate(entries(path), 1):
        report.rows = number
        if reason := fault(query, text):
            report.findings.append(Finding("corrupt_entry", number, f"{reason}: {excerpt(query)}"))
        elif text == NO_SEARCH_RESULTS:
            report.findings.append(Finding("empty_result", number, excerpt(query)))
        if query in seen:
            report.findings.append(Finding("repeated_query", number, f"entry {seen[query]}: {excerpt(query)}"))
        seen[query] = number
    return report
