"""Rollout trees as Parquet: one row per segment, so that questions over a run are plain SQL.

A tree is stored as it is, every shared token once: tokens, log-probs and entropies are lists, the tool event a struct,
the branching decisions at a node a list of structs. What concerns one trajectory (reward, answer, reward components)
stands on the row of its leaf, what concerns the tree (meta, look-ahead tokens) on the row of its prompt. Two columns
are there for queries only and are not read back: `text` and `trajectories`, the number of leaves under a node. The
round trip is exact, NaN included; only strings that are not Unicode at all (lone surrogates) are escaped.

    SELECT step, avg(reward), sum((leaf IS NOT NULL)::int) FROM 'rollouts/*.parquet' GROUP BY step
"""

import os
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from arpo.errors import DataError, StorageError
from arpo.tree import Decision, Finish, Outcome, RolloutTree, Segment, Source, ToolEvent, TreeError

Decode = Callable[[Sequence[int]], str]

_EVENT = pa.struct(
    [
        ("name", pa.string()),
        ("arguments", pa.string()),
        ("status", pa.string()),
        ("latency", pa.float64()),
        ("cached", pa.bool_()),
        ("executed", pa.bool_()),
        ("redundant", pa.bool_()),
        ("shared", pa.bool_()),
        ("note", pa.string()),
    ]
)
_OLDER_EVENT = pa.struct([field for field in _EVENT if field.name != "note"])
"""Events of files from before calls had notes; they are still read."""
_DECISION = pa.struct(
    [
        ("place", pa.int32()),
        ("tool", pa.string()),
        ("depth", pa.int32()),
        ("h_root", pa.float64()),
        ("h_tool", pa.float64()),
        ("delta", pa.float64()),
        ("probability", pa.float64()),
        ("wanted", pa.int32()),
        ("opened", pa.int32()),
        ("reason", pa.string()),
        ("undecided", pa.bool_()),
    ]
)
SCHEMA = pa.schema(
    [
        ("step", pa.int64()),
        ("tree", pa.int32()),
        ("task_id", pa.string()),
        ("node", pa.int32()),
        ("parent", pa.int32()),
        ("source", pa.string()),
        ("finish", pa.string()),
        ("version", pa.int64()),
        ("trajectories", pa.int32()),
        ("text", pa.string()),
        ("tokens", pa.list_(pa.int32())),
        ("logprobs", pa.list_(pa.float32())),
        ("entropies", pa.list_(pa.float32())),
        ("slacks", pa.list_(pa.float32())),
        ("event", _EVENT),
        ("decisions", pa.list_(_DECISION)),
        ("leaf", pa.int32()),
        ("scored", pa.bool_()),
        ("reward", pa.float64()),
        ("answer", pa.string()),
        ("parts", pa.map_(pa.string(), pa.float64())),
        ("meta", pa.map_(pa.string(), pa.string())),
        ("wasted_tokens", pa.int64()),
        ("top_ups", pa.int32()),
    ]
)
"""`tree`: place in the file (a task may be rolled out twice); `leaf`: place among the trajectories, null inside."""


def write_trees(path: Path | str, trees: Iterable[RolloutTree], *, step: int, decode: Decode) -> None:
    """Write `trees` to `path` whole or not at all. `decode` gives the `text` column. Raises StorageError."""
    columns: dict[str, list[Any]] = {name: [] for name in SCHEMA.names}
    for place, tree in enumerate(trees):
        for row in _rows(tree, decode):
            for name, value in ({"step": step, "tree": place} | row).items():
                columns[name].append(value)
    table = pa.table({name: pa.array(columns[name], SCHEMA.field(name).type) for name in SCHEMA.names}, SCHEMA)
    _replace(Path(path), table)


def read_trees(path: Path | str) -> list[RolloutTree]:
    """The trees of one file, in order, validated. Raises DataError: missing, truncated, not ours, or not a tree."""
    table = _load(Path(path))
    arrays = {name: _split(table.column(name)) for name in ("tokens", "logprobs", "entropies", "slacks")}
    plain = [name for name in SCHEMA.names if name not in arrays and name not in ("text", "trajectories", "step")]
    rows = table.select(plain).to_pylist()
    groups: dict[int, list[dict[str, Any]]] = {}
    for i, row in enumerate(rows):
        groups.setdefault(row["tree"], []).append(row | {name: arrays[name][i] for name in arrays})
    try:
        return [_tree(group).validate() for group in groups.values()]
    except (TreeError, ValueError, TypeError, KeyError) as error:
        raise DataError(f"{path}: a row does not belong to a valid rollout tree: {error}. Remove the file.") from error


def _rows(tree: RolloutTree, decode: Decode) -> Iterable[dict[str, Any]]:
    order = {leaf: place for place, leaf in enumerate(tree.leaves)}
    decisions: dict[int, list[dict[str, Any]]] = {}
    for place, decision in enumerate(tree.decisions):
        decisions.setdefault(decision.node, []).append(_decision_row(place, decision))
    for node, s in enumerate(tree.segments):
        yield {
            "task_id": _unicode(tree.task_id),
            "node": node,
            "parent": s.parent,
            "source": str(s.source),
            "finish": str(s.finish),
            "version": s.version,
            "trajectories": int(tree.multiplicity[node]),
            "text": _unicode(decode(s.tokens.tolist())),
            "tokens": s.tokens,
            "logprobs": s.logprobs,
            "entropies": s.entropies,
            "slacks": s.slacks,
            "event": None if s.event is None else _event_row(s.event),
            "decisions": decisions.get(node, []),
            "meta": [(_unicode(k), _unicode(v)) for k, v in tree.meta.items()] if node == 0 else None,
            "wasted_tokens": tree.wasted_tokens if node == 0 else None,
            "top_ups": tree.top_ups if node == 0 else None,
        } | _leaf_row(tree, order.get(node))


def _leaf_row(tree: RolloutTree, leaf: int | None) -> dict[str, Any]:
    row: dict[str, Any] = {"leaf": leaf, "scored": None, "reward": None, "answer": None, "parts": None}
    if leaf is None:
        return row
    if not tree.outcomes:
        return row | {"scored": False}
    outcome = tree.outcomes[leaf]
    answer = None if outcome.answer is None else _unicode(outcome.answer)
    parts = [(_unicode(name), float(value)) for name, value in outcome.parts.items()]
    return row | {"scored": True, "reward": outcome.reward, "answer": answer, "parts": parts}


def _event_row(event: ToolEvent) -> dict[str, Any]:
    values = {name: getattr(event, name) for name in _EVENT.names}
    return values | {name: _unicode(values[name]) for name in ("name", "arguments", "status", "note")}


def _decision_row(place: int, decision: Decision) -> dict[str, Any]:
    values = {name: getattr(decision, name) for name in _DECISION.names if name != "place"}
    return values | {"place": place, "tool": _unicode(decision.tool), "reason": _unicode(decision.reason)}


def _unicode(text: str) -> str:
    """`text` with lone surrogates, which Parquet cannot hold, escaped."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _tree(rows: list[dict[str, Any]]) -> RolloutTree:
    rows = sorted(rows, key=lambda row: row["node"])
    if [row["node"] for row in rows] != list(range(len(rows))):
        raise ValueError(f"tree {rows[0]['task_id']}: nodes are missing or doubled")
    leaves = sorted((row for row in rows if row["leaf"] is not None), key=lambda row: row["leaf"])
    decisions = sorted(
        ((d["place"], _decision(row["node"], d)) for row in rows for d in row["decisions"]), key=lambda pair: pair[0]
    )
    return RolloutTree(
        task_id=rows[0]["task_id"],
        segments=tuple(_segment(row) for row in rows),
        leaves=tuple(row["node"] for row in leaves),
        decisions=tuple(decision for _, decision in decisions),
        outcomes=tuple(Outcome(row["reward"], row["answer"], dict(row["parts"])) for row in leaves if row["scored"]),
        meta=dict(rows[0]["meta"]),
        wasted_tokens=rows[0]["wasted_tokens"],
        top_ups=rows[0]["top_ups"],
    )


def _segment(row: dict[str, Any]) -> Segment:
    return Segment(
        tokens=row["tokens"],
        source=Source(row["source"]),
        parent=row["parent"],
        logprobs=row["logprobs"],
        entropies=row["entropies"],
        slacks=row["slacks"],
        finish=Finish(row["finish"]),
        version=row["version"],
        event=None if row["event"] is None else ToolEvent(**row["event"]),
    )


def _decision(node: int, row: dict[str, Any]) -> Decision:
    return Decision(node=node, **{name: value for name, value in row.items() if name != "place"})


def _split(column: pa.ChunkedArray) -> list[np.ndarray]:
    """The lists of a column as numpy arrays that share its memory."""
    lists: list[np.ndarray] = []
    for chunk in column.chunks:
        values, offsets = chunk.values.to_numpy(zero_copy_only=False), chunk.offsets.to_pylist()
        lists += [values[start:end] for start, end in pairwise(offsets)]
    return lists


def _load(path: Path) -> pa.Table:
    if not path.is_file():
        raise DataError(f"{path}: no such file of rollout trees.")
    try:
        with pq.ParquetFile(path) as file:
            table = file.read(use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: not readable as Parquet, perhaps truncated: {error}. Remove the file.") from error
    found = {field.name: field.type for field in table.schema}
    if found.get("event") == _OLDER_EVENT:
        found["event"] = _EVENT
    wrong = [field.name for field in SCHEMA if found.get(field.name) != field.type]
    if wrong:
        raise DataError(
            f"{path}: not a file of rollout trees: columns {', '.join(wrong)} are missing or of other types."
        )
    return table


def _replace(path: Path, table: pa.Table) -> None:
    """Write beside `path`, then rename: a reader sees the old file or the new one, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, temporary, compression="zstd")
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise StorageError(f"{path}: rollout trees cannot be written: {error}. Free some space and resume.") from error
    finally:
        temporary.unlink(missing_ok=True)
