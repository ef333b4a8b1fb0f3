"""`arpo eval --benchmark` from the command line, on a model with random weights."""

import json
from pathlib import Path

import pytest
from judge_server import JudgeServer

from arpo.cli import main

SHORT = ("rollout.max_tokens=24", "rollout.max_calls=1", "tools.1.backend=monty")
"""Without the sandbox, whose interpreter takes seconds to start: no call is made here that it would run."""


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder in the published layout: a set compared by rule, and one that takes a judge."""
    rows = {
        "hotpotqa": [{"question": f"Who is number {n}?", "answer": [f"Name {n}", "nobody"]} for n in range(8)],
        "SimpleQA": [{"question": f"In which year was {n}?", "answer": [str(1900 + n)]} for n in range(3)],
    }
    for name, found in rows.items():
        (tmp_path / "sets" / name).mkdir(parents=True)
        (tmp_path / "sets" / name / "test.jsonl").write_text("\n".join(map(json.dumps, found)))
    return tmp_path / "sets"


def fails(capsys: pytest.CaptureFixture[str], *tokens: str) -> str:
    capsys.readouterr()
    assert main(["eval", *tokens]) == 2
    said = capsys.readouterr().err
    assert "Traceback" not in said
    return " ".join(said.split())


def test_smoke_measures_every_set_that_it_finds_without_a_judge(
    tiny: Path, files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokens = ["eval", "--smoke", "--files", str(files), "--model", str(tiny), *SHORT, "--quiet"]
    assert main([*tokens, "--json"]) == 0
    results = json.loads(capsys.readouterr().out)
    sets = results["sets"]
    assert {name: found["questions"] for name, found in sets.items()} == {"hotpotqa": 5, "simpleqa": 3}
    assert (sets["simpleqa"]["metric"], sets["simpleqa"]["in_place_of"]) == ("f1", "simpleqa")
    assert sets["hotpotqa"]["in_place_of"] is None
    assert "temperature 0.6, top-p 0.95" in results["about"]["sampling"]
    folder = tmp_path / "runs" / "eval" / "policy-tiny"
    assert json.loads((folder / "results.json").read_text()) == results
    assert "f1 (in place of simpleqa)" in (folder / "results.md").read_text()
    assert main(tokens) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "simpleqa: measured by the rule f1 in place of simpleqa, which asks a judge (--smoke)" in said
    assert "results.md" in said


def test_the_same_command_goes_on_and_another_policy_is_refused(
    tiny: Path, files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokens = ["--benchmark", "hotpotqa", "--files", str(files), "--model", str(tiny), *SHORT]
    there = [*tokens, "--out", "e", "--samples", "2"]
    assert main(["eval", *there, "--limit", "3", "--k", "1", "--k", "2"]) == 0
    lines = (tmp_path / "e" / "hotpotqa" / "samples.jsonl").read_text().splitlines()
    assert len(lines) == 6
    assert main(["eval", *there, "--limit", "4", "--metric", "em", "--json"]) == 0
    found = json.loads(capsys.readouterr().out.split("results.json\n")[-1])["sets"]["hotpotqa"]
    assert (found["questions"], found["samples"], found["metric"]) == (4, 2, "em")
    assert set(found["pass@k"]) == {"1", "2"}
    assert (tmp_path / "e" / "hotpotqa" / "samples.jsonl").read_text().splitlines()[:6] == lines
    assert "rollout.max_tokens: was 24, is 30" in fails(capsys, *there, "rollout.max_tokens=30")
    paired = [*tokens, "--samples", "2", "--limit", "4", "--out", "b", "evaluation.seed=1", "--against", "e", "--quiet"]
    assert "has no verdict of the metric 'f1'" in fails(capsys, *paired)
    assert main(["eval", *paired, "--metric", "em"]) == 0
    assert "difference" in capsys.readouterr().out
    compared = json.loads((tmp_path / "b" / "results.json").read_text())["sets"]["hotpotqa"]["against"]
    assert (compared["pairs"], compared["unpaired"]) == (4, 0)
    assert "## Against e" in (tmp_path / "b" / "results.md").read_text()


def test_a_judge_over_http(tiny: Path, files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokens = ["--benchmark", "simpleqa", "--files", str(files), "--model", str(tiny), *SHORT, "--out", "e"]
    with JudgeServer(lambda prompt: "INCORRECT") as server:
        judge = ["--judge-url", server.url, "--judge-model", "m"]
        assert main(["eval", *tokens, *judge, "--json"]) == 0
    results = json.loads(capsys.readouterr().out)
    assert results["sets"]["simpleqa"]["metric"] == "simpleqa"
    assert (results["metrics"]["simpleqa"]["model"], len(results["metrics"]["simpleqa"]["prompt_hash"])) == ("m", 16)


def test_what_cannot_work_is_refused_before_the_model_is_loaded(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*tokens: str) -> str:
        return fails(capsys, "--model", "./nowhere", "--files", str(files), *tokens)

    said = refused("--benchmark", "simpleqa")
    assert "simpleqa is measured by 'simpleqa', which needs a judge: give --judge-url URL and --judge-model" in said
    assert "--metric f1" in said
    assert "did you mean hotpotqa?" in refused("--benchmark", "hotpoqa")
    assert "holds no math500 (there is: hotpotqa, simpleqa)" in refused("--benchmark", "math500")
    assert "did you mean f1_cjk?" in refused("--benchmark", "hotpotqa", "--metric", "f1_cj")
    assert "one question or more" in refused("--benchmark", "hotpotqa", "--limit", "0")
    assert "no such folder of an earlier evaluation" in refused("--benchmark", "hotpotqa", "--against", "gone")
    assert "--ids names a subset of one set, not of 2" in refused("--benchmark", "hotpotqa,simpleqa", "--ids", "x.txt")
    assert "k = 4 cannot be estimated from samples = 2" in refused("--benchmark", "all", "--samples", "2", "--k", "4")
    assert "all samples = 2 answers the same" in refused(
        "--benchmark", "all", "--samples", "2", "evaluation.temperature=0"
    )
    assert "give local, vllm, or the URL of a server" in refused("--benchmark", "all", "--engine", "tpu")
    assert "--files goes with --benchmark" in refused()
    assert "--smoke reads local files" in fails(capsys, "--smoke")
    assert "there is no agent 'polcy'; did you mean 'policy'?" in refused("--benchmark", "hotpotqa", "--agent", "polcy")
    assert "evaluation.judge.model is not set" in refused("--benchmark", "all", "--judge-url", "http://127.0.0.1:9/v1")
