"""Corpora: forms of rows, kinds of files, and what is said of bad ones."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from arpo.errors import DataError
from arpo.tools.search import Document, open_corpus, read_corpus
from arpo.tools.search.corpus import read_corpora

ROWS = [
    {"id": "a", "title": "Chad", "text": "capital: N'Djamena"},
    {"id": "b", "title": None, "text": "no title"},
]
DOCS = [Document("a", "Chad", "capital: N'Djamena"), Document("b", "", "no title")]


def parquet(path, rows, **options):
    pq.write_table(pa.Table.from_pylist(rows), path, **options)
    return path


def test_parquet_and_gzip_read_like_jsonl(tmp_path):
    lines = "\n".join(json.dumps(row) for row in ROWS)
    (tmp_path / "c.jsonl").write_text("\ufeff" + lines, encoding="utf-8")
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    parquet(tmp_path / "c.parquet", ROWS)
    for name in ("c.jsonl", "c.jsonl.gz", "c.parquet"):
        assert list(read_corpus(tmp_path / name)) == DOCS, name


def test_parquet_in_row_groups_with_numbers_for_ids_and_contents(tmp_path):
    rows = [{"id": n, "contents": f'"Title {n}"\nbody {n}', "embedding": [0.5] * 8} for n in range(3000)]
    docs = list(read_corpus(parquet(tmp_path / "c.parquet", rows, row_group_size=700)))
    assert len(docs) == 3000
    assert docs[2999] == Document("2999", "Title 2999", "body 2999")


def test_rows_without_ids_are_numbered_through_all_files(tmp_path):
    (tmp_path / "one.jsonl").write_text('{"text": "first"}\n\n{"text": "third line"}\n')
    parquet(tmp_path / "two.parquet", [{"text": "second file"}])
    docs = read_corpora([tmp_path / "one.jsonl", tmp_path / "two.parquet"])
    assert [doc.id for doc in docs] == ["000000001", "000000003", "000000004"]


def test_a_parquet_corpus_is_indexed_beside_it(tmp_path):
    path = parquet(tmp_path / "c.parquet", ROWS)
    assert open_corpus(path).query("chad", 1)[0].document == DOCS[0]
    assert (tmp_path / "c.parquet.index" / "manifest.json").is_file()


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([{"id": "1", "text": "fine"}, {"id": "2", "text": None}], r"row 2: needs a string under 'text'"),
        ([{"id": "1", "text": "fine"}, {"id": "2", "text": "..."}], r"row 2: no words"),
        ([{"id": "1", "body": "x"}], r"needs a column 'text' or 'contents', has \['id', 'body'\]"),
        ([{"id": "1", "text": 5}], r"row 1: needs a string"),
    ],
)
def test_bad_rows_of_parquet_are_named(tmp_path, rows, problem):
    with pytest.raises(DataError, match=rf"c\.parquet.*{problem}"):
        list(read_corpus(parquet(tmp_path / "c.parquet", rows)))


def test_files_that_are_cut_short(tmp_path):
    whole = parquet(tmp_path / "c.parquet", ROWS).read_bytes()
    (tmp_path / "c.parquet").write_bytes(whole[:-9])
    with pytest.raises(DataError, match=r"c\.parquet, after row 0: not Parquet, or cut short"):
        list(read_corpus(tmp_path / "c.parquet"))
    squeezed = gzip.compress("\n".join(json.dumps(row) for row in ROWS * 50).encode())
    (tmp_path / "c.jsonl.gz").write_bytes(squeezed[:-12])
    with pytest.raises(DataError, match=r"c\.jsonl\.gz, row \d+: .*cut short or not gzip"):
        list(read_corpus(tmp_path / "c.jsonl.gz"))


def test_deep_json_and_half_characters(tmp_path):
    path = tmp_path / "c.jsonl"
    path.write_text('{"id": "1", "text": "half \\ud83d and whole \\ud83d\\ude00"}\n' + "[" * 100_000 + "\n")
    docs = read_corpus(path)
    assert next(docs).text == "half ? and whole \U0001f600"
    with pytest.raises(DataError, match="row 2: not JSON"):
        next(docs)
