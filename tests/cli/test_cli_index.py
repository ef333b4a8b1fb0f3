"""`arpo index` and the mistakes of `arpo serve-search`, through the command line."""

import json
import socket

import pytest

from arpo.cli.app import run

ROWS = [
    {"id": "1", "title": "Chad", "text": "capital: N'Djamena"},
    {"id": "2", "title": "Austria", "text": "capital: Vienna \x1b[31mred"},
]


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


@pytest.mark.parametrize("kind", ["bm25s", "tantivy"])
def test_build_query_check(corpus, tmp_path, capsys, kind):
    if kind == "tantivy":
        pytest.importorskip("tantivy")
    out = tmp_path / "index"
    assert run(["index", "build", str(corpus), "--out", str(out), "--kind", kind]) == 0
    told = capsys.readouterr()
    assert told.out.startswith(f"{out}: 2 passages, {kind}, ")
    assert run(["index", "query", str(out), "vienna", "-k", "1"]) == 0
    line = capsys.readouterr().out
    assert line.startswith("1. ")
    assert "2  Austria | capital: Vienna" in line
    assert "\x1b" not in line
    assert run(["index", "query", str(out), "chad", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["query"], answer["results"][0]["text"]) == ("chad", "capital: N'Djamena")
    assert run(["index", "query", str(out), "zebra"]) == 0
    assert capsys.readouterr().out == "no results\n"
    assert run(["index", "check", str(out)]) == 0
    assert "2 passages" in capsys.readouterr().out


def test_a_damaged_index_has_its_own_exit_code(corpus, tmp_path, capsys):
    out = tmp_path / "index"
    run(["index", "build", str(corpus), "--out", str(out), "-q"])
    with (out / "docs.jsonl").open("ab") as file:
        file.write(b"x")
    assert run(["index", "check", str(out)]) == 1
    assert "docs.jsonl" in capsys.readouterr().err
    assert run(["index", "query", str(out), "vienna"]) == 2
    assert run(["index", "check", str(tmp_path / "nowhere")]) == 2


def test_bad_input_names_the_row_or_the_remedy(corpus, tmp_path, capsys):
    with corpus.open("a") as file:
        file.write('{"id": "3"}\n')
    assert run(["index", "build", str(corpus), "--out", str(tmp_path / "index")]) == 2
    assert "corpus.jsonl, row 3: needs a string under 'text' or 'contents'" in capsys.readouterr().err
    assert run(["index", "build", "--out", str(tmp_path / "index")]) == 2
    assert "needs a corpus" in capsys.readouterr().err
    assert run(["index", "build", str(corpus), "--out", str(tmp_path), "--kind", "lucene"]) == 2
    assert run(["index", "query", str(tmp_path / "nowhere"), "x"]) == 2
    assert run(["index", "query", str(corpus), "x", "-k", "0"]) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.jsonl"]


def test_the_factbook_can_be_asked_by_name(capsys):
    assert run(["index", "query", "factbook", "Chad capital", "-k", "1"]) == 0
    assert "Chad | capital: N'Djamena" in capsys.readouterr().out


def test_an_address_that_cannot_be_had(corpus, tmp_path, capsys):
    pytest.importorskip("uvicorn")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert run(["serve-search", str(corpus), "--port", port]) == 2
    assert f"cannot listen on 127.0.0.1, port {port}" in capsys.readouterr().err
    assert run(["serve-search", str(corpus), "--top-k", "0"]) == 2
    assert run(["serve-search", str(tmp_path / "nowhere")]) == 2
