"""Rollout trees in Parquet: exact round trip, whole files or none, SQL over them, clear errors."""

import errno
from dataclasses import replace

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_trees import segment, small_tree, trees

from arpo.data.trees import read_trees, write_trees
from arpo.errors import DataError, StorageError
from arpo.tree import Outcome, RolloutTree, Source, ToolEvent


def decode(tokens) -> str:
    return "".join(chr(97 + token % 26) for token in tokens)


def exact(tree: RolloutTree) -> list[tuple]:
    """What plain equality would let pass: dtypes, bytes (NaN, signed zero), order."""
    arrays = [getattr(s, name) for s in tree.segments for name in ("tokens", "logprobs", "entropies")]
    return [(a.dtype, a.shape, a.tobytes()) for a in arrays] + [
        tuple(tree.meta.items()),
        repr(tree.outcomes),
        repr(tree.decisions),
    ]


@settings(max_examples=15, deadline=None)
@given(st.lists(trees(), max_size=3), st.integers(0, 10**6))
def test_round_trip_is_exact(tmp_path_factory, rollouts, step):
    path = tmp_path_factory.mktemp("trees") / "rollouts.parquet"
    write_trees(path, rollouts, step=step, decode=decode)
    back = read_trees(path)
    assert back == rollouts
    assert [exact(tree) for tree in back] == [exact(tree) for tree in rollouts]
    assert pq.read_table(path).column("step").to_pylist() == [step] * sum(len(tree.segments) for tree in rollouts)


def test_the_same_task_twice_stays_two_trees(tmp_path):
    write_trees(tmp_path / "t.parquet", [small_tree(), small_tree()], step=1, decode=decode)
    assert read_trees(tmp_path / "t.parquet") == [small_tree(), small_tree()]


def test_failed_trajectories_differ_from_unscored_ones(tmp_path):
    tree = small_tree()
    failed = tree.with_outcomes([Outcome(None)] * 3)
    write_trees(tmp_path / "t.parquet", [failed, replace(tree, outcomes=())], step=1, decode=decode)
    assert [t.outcomes for t in read_trees(tmp_path / "t.parquet")] == [(Outcome(None),) * 3, ()]


def test_text_that_is_not_unicode_is_escaped(tmp_path):
    event = ToolEvent("python", "print('\ud800')", "ok")
    tree = RolloutTree("t", (segment([1], Source.PROMPT), segment([2], Source.POLICY, 0)), (1,), meta={"q": "\udfff"})
    notice = segment([3], Source.TOOL, 1, event=event)
    tree = replace(tree, segments=(*tree.segments, notice), leaves=(2,))
    write_trees(tmp_path / "t.parquet", [tree], step=1, decode=lambda tokens: "\ud800")
    back = read_trees(tmp_path / "t.parquet")[0]
    assert back.segments[2].event == replace(event, arguments="print('\\ud800')")
    assert back.meta == {"q": "\\udfff"}


def test_duckdb_answers_questions_over_a_run(tmp_path):
    for step in (1, 2):
        write_trees(tmp_path / f"step_{step}.parquet", [small_tree()] * step, step=step, decode=decode)
    db = duckdb.connect()

    def ask(query: str) -> list[tuple]:
        return db.sql(query.replace("RUN", f"'{tmp_path}/*.parquet'")).fetchall()

    assert ask("select step, avg(reward) from RUN where leaf is not null group by 1 order by 1") == [
        (1, pytest.approx(0.1 / 3)),
        (2, pytest.approx(0.1 / 3)),
    ]
    calls = "select event.name, count(*) from RUN where event.executed group by 1"
    assert ask(calls) == [("search", 3)]
    after = """select t.event.name, avg(list_avg(p.entropies)) from RUN p
               join RUN t on (p.step, p.tree, p.parent) = (t.step, t.tree, t.node)
               where t.event is not null group by 1"""
    assert ask(after) == [("search", pytest.approx((0.1 + 0.3) / 2))]
    assert ask("select sum(len(tokens) * trajectories) / sum(len(tokens)) from RUN")[0][0] == pytest.approx(27 / 15)
    decisions = "select d.tool, d.delta, d.opened from (select unnest(decisions) as d from RUN where step = 1)"
    assert ask(decisions) == [("search", pytest.approx(0.2), 1)]
    assert ask("select parts['accuracy'] from RUN where step = 1 and leaf = 0") == [(1.0,)]
    assert ask("select meta['gold'], text from RUN where step = 1 and source = 'prompt'") == [("42", "bcd")]


def test_a_missing_file_is_a_data_error(tmp_path):
    with pytest.raises(DataError, match=r"absent\.parquet: no such file"):
        read_trees(tmp_path / "absent.parquet")


@pytest.mark.parametrize("keep", [0, 3, 40, -1])
def test_a_truncated_file_is_a_data_error(tmp_path, keep):
    path = tmp_path / "t.parquet"
    write_trees(path, [small_tree()], step=1, decode=decode)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DataError, match=r"t\.parquet: not readable as Parquet"):
        read_trees(path)


def test_another_parquet_file_is_a_data_error(tmp_path):
    pq.write_table(pa.table({"tokens": [1], "node": [0]}), tmp_path / "other.parquet")
    with pytest.raises(DataError, match="not a file of rollout trees: columns step, tree"):
        read_trees(tmp_path / "other.parquet")


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("parent", [-1, 0, 1, 2, 2, 7], "node 5 .*does not come before"),
        ("node", [0, 1, 2, 3, 4, 4], "missing or doubled"),
        ("source", ["prompt", "policy", "tool", "policy", "policy", "nobody"], "nobody"),
    ],
)
def test_a_damaged_row_is_a_data_error(tmp_path, column, values, message):
    path = tmp_path / "t.parquet"
    write_trees(path, [small_tree()], step=1, decode=decode)
    table = pq.read_table(path)
    i = table.column_names.index(column)
    field = table.schema.field(i)
    pq.write_table(table.set_column(i, field, pa.array(values, field.type)), path)
    with pytest.raises(DataError, match=message):
        read_trees(path)


def test_a_full_disk_leaves_the_old_file_and_no_rubbish(tmp_path, monkeypatch):
    path = tmp_path / "t.parquet"
    write_trees(path, [small_tree()], step=1, decode=decode)

    def full(table, where, **options):
        where.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("arpo.data.trees.pq.write_table", full)
    with pytest.raises(StorageError, match=r"t\.parquet.*No space left"):
        write_trees(path, [], step=2, decode=decode)
    assert read_trees(path) == [small_tree()]
    assert list(tmp_path.iterdir()) == [path]
