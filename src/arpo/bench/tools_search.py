"""What search over a local index costs: to build, to open, to ask, alone and from several processes.

Everything is timed in fresh processes, as a run has them: the build reads a JSONL file and notes its peak memory; each
asking process opens the index itself, asks every query once to fault its pages in, and then is timed. What a process
has for itself (`megabytes_private`) is what each further one costs; the rest of the index is shared.
"""

import itertools
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arpo.bench.tools_passages import made_passages, material
from arpo.errors import ArpoError
from arpo.tools.search import Document, build_index, open_index, read_corpus

CACHE = Path("../shared/data/arpo_rl/search_cache.json")
"""The published cache, where it lies beside the repository."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRow:
    """One kind of index. Latencies in milliseconds of one process that asks alone, megabytes of 10^6 bytes."""

    kind: str
    passages: int
    megabytes_text: float
    cached: bool
    """Whether the texts and queries of the published search cache are among them."""
    seconds_build: float
    megabytes_build: float
    """Memory at the peak of the build, beyond what the process had before; pages of files that it maps are counted."""
    megabytes_index: float
    ms_open: float
    p50_ms: float
    p95_ms: float
    cpu_ms: float
    """CPU time of a query, on average: what to read on a machine that others use, too."""
    queries_per_s: float
    processes: int
    queries_per_s_together: float
    """Of `processes` at once, over one index."""
    p50_ms_together: float
    megabytes_private: float
    """Memory that an asking process shares with no other, beyond what it had before it opened the index."""
    queries: int
    top_k: int


@dataclass(frozen=True, slots=True)
class _Build:
    seconds: float
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class _Asked:
    seconds_open: float
    seconds: list[float]
    """Per query."""
    cpu_seconds: float
    """Of all queries."""
    started: float
    ended: float
    private_bytes: int


def measure(
    *,
    passages: int = 100_000,
    queries: int = 300,
    kinds: Sequence[str] = ("bm25s", "tantivy"),
    processes: int = 2,
    top_k: int = 10,
    cache: Path | None = CACHE,
    seed: int = 0,
    say: Callable[[str], None] = lambda _: None,
) -> list[SearchRow]:
    """A row per kind of index, over the same passages and queries. `say` is told what goes on.

    Raises ConfigError if a kind's package is missing.
    """
    stuff = material(cache, queries, seed)
    with tempfile.TemporaryDirectory(prefix="arpo-bench-") as name:
        corpus = Path(name) / "passages.jsonl"
        say(f"search: writing {passages:,} passages")
        _write(corpus, made_passages(stuff.passages, passages, seed))
        rows = []
        for kind in kinds:
            say(f"search: {kind}")
            rows.append(_row(kind, corpus, passages, stuff.queries, stuff.cached, processes, top_k))
    return rows


def _write(corpus: Path, docs: Iterable[Document]) -> None:
    with corpus.open("w", encoding="utf-8") as file:
        for doc in docs:
            file.write(json.dumps({"id": doc.id, "title": doc.title, "text": doc.text}, ensure_ascii=False) + "\n")


def _row(
    kind: str, corpus: Path, count: int, queries: list[str], cached: bool, processes: int, top_k: int
) -> SearchRow:
    folder = corpus.with_name(kind)
    [build] = _in_processes(_timed_build, [(corpus, folder, kind)])
    [alone] = _in_processes(_timed_queries, [(folder, queries, top_k)])
    together = _in_processes(_timed_queries, [(folder, queries, top_k)] * processes)
    span = max(one.ended for one in together) - min(one.started for one in together)
    return SearchRow(
        kind=kind,
        passages=count,
        megabytes_text=corpus.stat().st_size / 1e6,
        cached=cached,
        seconds_build=build.seconds,
        megabytes_build=build.peak_bytes / 1e6,
        megabytes_index=sum(path.stat().st_size for path in folder.iterdir()) / 1e6,
        ms_open=alone.seconds_open * 1e3,
        p50_ms=statistics.median(alone.seconds) * 1e3,
        p95_ms=_percentile(alone.seconds, 0.95) * 1e3,
        cpu_ms=alone.cpu_seconds / len(queries) * 1e3,
        queries_per_s=len(queries) / sum(alone.seconds),
        processes=processes,
        queries_per_s_together=processes * len(queries) / span,
        p50_ms_together=statistics.median(second for one in together for second in one.seconds) * 1e3,
        megabytes_private=alone.private_bytes / 1e6,
        queries=len(queries),
        top_k=top_k,
    )


def _percentile(seconds: Sequence[float], share: float) -> float:
    ordered = sorted(seconds)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def _in_processes(job: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
    """What `job` returns in a fresh process for each of `arguments`, all at once, started off together."""
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(len(arguments))
    pipes = [context.Pipe(duplex=False) for _ in arguments]
    children = [
        context.Process(target=_child, args=(job, one, start, pipe[1]), daemon=True)
        for one, pipe in zip(arguments, pipes, strict=True)
    ]
    for child in children:
        child.start()
    for _, sender in pipes:
        sender.close()
    try:
        return [_received(receiver) for receiver, _ in pipes]
    finally:
        for child in children:
            child.terminate()
            child.join()


def _child(job: Callable[..., Any], arguments: tuple[Any, ...], start: Any, sender: Any) -> None:
    try:
        sender.send(job(*arguments, start))
    except ArpoError as error:
        start.abort()
        sender.send(error)


def _received(receiver: Any) -> Any:
    try:
        result = receiver.recv()
    except EOFError as error:
        raise ArpoError("a process of the benchmark of search died; is there enough memory?") from error
    if isinstance(result, ArpoError):
        raise result
    return result


def _timed_build(corpus: Path, folder: Path, kind: str, start: Any) -> _Build:
    before = _memory("VmRSS")
    started = time.perf_counter()
    build_index(read_corpus(corpus), folder, kind)
    return _Build(time.perf_counter() - started, _memory("VmHWM") - before)


def _timed_queries(folder: Path, queries: Sequence[str], top_k: int, start: Any) -> _Asked:
    before = _anonymous()
    opening = time.perf_counter()
    index = open_index(folder)
    opened = time.perf_counter() - opening
    for query in queries:
        index.query(query, top_k)
    start.wait()
    worked = time.process_time()
    clock = [time.perf_counter()]
    for query in queries:
        index.query(query, top_k)
        clock.append(time.perf_counter())
    seconds = [after - before for before, after in itertools.pairwise(clock)]
    return _Asked(opened, seconds, time.process_time() - worked, clock[0], clock[-1], _anonymous() - before)


def _memory(name: str) -> int:
    """A line of the process's status, in bytes."""
    return _line(Path("/proc/self/status"), name)


def _anonymous() -> int:
    """Bytes of memory that no file stands behind."""
    return _line(Path("/proc/self/smaps_rollup"), "Anonymous")


def _line(file: Path, name: str) -> int:
    lines = dict(line.split(":", 1) for line in file.read_text().splitlines() if ":" in line)
    return int(lines[name].split()[0]) * 1024
