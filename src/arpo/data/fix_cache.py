"""A published search cache without the entries that carry a transcript's markup, in its own format."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from arpo.data.fix import Fixed, beside
from arpo.data.sinks import dumped, replacing, write_lines
from arpo.tools.search.legacy import entries, fault


def fix_cache(source: Path, out: Path) -> Fixed:
    """Write the usable entries; what is left out goes beside them with its reason. Of equal queries the last counts."""
    pairs = entries(source)
    last = {query: number for number, (query, _) in enumerate(pairs, 1)}
    fixed = Fixed(rows=len(pairs))
    kept: dict[str, Any] = {}
    rejected: list[str] = []
    for number, query, text, (kind, reason) in _judged(pairs, last):
        if not kind:
            kept[query] = text
            continue
        fixed.reasons[kind] += 1
        rejected.append(dumped({"row": number, "reasons": [reason], "query": query, "text": text}))
    fixed.written, fixed.rejected = len(kept), len(rejected)
    with replacing(out) as file:
        file.write(json.dumps(kept, indent=2, ensure_ascii=False).encode())
    beside(out, "log").unlink(missing_ok=True)
    beside(out, "rejected").unlink(missing_ok=True)
    if rejected:
        write_lines(beside(out, "rejected"), rejected)
    return fixed


def _judged(pairs: list[tuple[str, Any]], last: dict[str, int]) -> Iterator[tuple[int, str, Any, tuple[str, str]]]:
    for number, (query, text) in enumerate(pairs, 1):
        reason = ("corrupt_entry", why) if (why := fault(query, text)) else ("", "")
        if last[query] != number:
            reason = ("repeated_query", f"the query occurs again as entry {last[query]}, which counts")
        yield number, query, text, reason
