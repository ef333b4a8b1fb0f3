"""`arpo judge`: verdicts beside labels."""

import json

import pytest
from judge_server import JudgeServer, Reply

from arpo.cli.app import run

ROWS = [
    {"question": "Capital of France?", "gold": "Paris", "answer": "Paris", "label": True},
    {"question": "Capital of France?", "gold": "Paris", "answer": "the city on the Seine, Paris", "label": "correct"},
    {"question": "Capital of France?", "gold": ["Paris", "Paname"], "answer": "Lyon", "label": 0},
    {"question": "Capital of France?", "gold": "Paris", "answer": "Versailles", "label": "incorrect"},
    {"question": "Capital of France?", "gold": "Paris", "answer": ":", "label": False},
]
YES, NO = '{"reason": "", "verdict": "correct"}', '{"reason": "", "verdict": "incorrect"}'


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "labels.jsonl"
    path.write_text("\n".join(map(json.dumps, ROWS)) + "\n")
    return path


def test_agreement_with_labels(file, capsys):
    with JudgeServer(lambda prompt: NO if "Lyon" in prompt else YES) as server:
        options = ["--judge-url", server.url, "--judge-model", "m"]
        assert run(["judge", "audit", str(file), *options, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["n"], found["agreement"], found["unjudged"]) == (5, 0.8, 0)
        assert (found["right_called_right"], found["wrong_called_right"], found["wrong_called_wrong"]) == (2, 1, 2)
        assert found["kappa"] == pytest.approx((0.8 - 12 / 25) / (1 - 12 / 25))
        assert found["by"] == {"rule": 2, "judge": 3, "cache": 0}
        assert [(row["row"], row["answer"]) for row in found["disagreements"]] == [(4, "Versailles")]
        assert found["judge"]["prompt_hash"]
        assert run(["judge", "audit", str(file), *options]) == 0
    assert "Versailles" in capsys.readouterr().out


def test_rules_can_be_audited_too(file, capsys):
    assert run(["judge", "audit", str(file), "--metric", "em", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["right_called_wrong"] == 1


def test_what_has_no_verdict_is_left_out(file, capsys):
    with JudgeServer(lambda prompt: Reply(400) if "Lyon" in prompt else YES) as server:
        command = ["judge", "audit", str(file), "--judge-url", server.url, "--judge-model", "m", "--json"]
        assert run(command) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["n"], found["unjudged"]) == (4, 1)


def test_a_judge_that_is_not_there(file, capsys):
    with JudgeServer(lambda prompt: YES) as server:
        pass
    assert run(["judge", "audit", str(file), "--judge-url", server.url, "--judge-model", "m"]) == 5
    assert "judge.base_url" in capsys.readouterr().err
    assert run(["judge", "audit", str(file)]) == 2
    assert "--judge-url" in capsys.readouterr().err
    assert run(["judge", "audit", str(file), "--judge-url", server.url]) == 2
    assert "--judge-model" in capsys.readouterr().err
    assert run(["judge", "audit", str(file), "--judge-url", "host", "--judge-model", "m"]) == 2
    assert "no http" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("{", "not JSON"),
        ("[]", "not a JSON object"),
        ('{"question": "q", "gold": "g", "answer": "a", "label": "maybe"}', "label is 'maybe'"),
        ('{"question": "q", "gold": [], "answer": "a", "label": true}', "gold is"),
        ('{"question": "q", "gold": "g", "answer": 4, "label": true}', "answer is 4"),
        ('{"question": "q", "gold": "g", "answer": "a", "label": true, "kind": "prose"}', "kind = 'prose'"),
    ],
)
def test_a_wrong_row_is_named(file, capsys, row, said):
    with file.open("a") as opened:
        opened.write(row + "\n")
    assert run(["judge", "audit", str(file), "--metric", "em"]) == 2
    assert f"{file}, row 6" in (told := capsys.readouterr().err)
    assert said in told


def test_the_prompt_can_be_read(capsys):
    assert run(["judge", "prompt", "--metric", "hle"]) == 0
    shown = capsys.readouterr().out
    assert all(part in shown for part in ("extracted_final_answer", "{gold}", "never instructions"))
    assert run(["judge", "prompt", "--metric", "f1"]) == 2
    assert "is a rule" in capsys.readouterr().err
