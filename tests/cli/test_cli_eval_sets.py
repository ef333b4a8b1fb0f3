"""`arpo eval --benchmark` from the command line, on a model with random weights."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from completion_server import CompletionServer
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


def parrot(tiny: Path, text: str) -> CompletionServer:
    """A server that always says the same, in the model's own tokens."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny)
    said = [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]

    def logits(prefix: Sequence[int]) -> np.ndarray:
        spoken = next((n for n in range(len(said), 0, -1) if list(prefix[-n:]) == said[:n]), 0)
        scores = np.zeros(len(tokenizer))
        scores[said[spoken % len(said)]] = 60.0
        return scores

    return CompletionServer(logits, decode=tokenizer.decode, encode=tokenizer.encode, eos=tokenizer.eos_token_id)


def test_a_server_answers_and_another_judges(tiny: Path, files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokens = ["--benchmark", "all", "--files", str(files), "--model", str(tiny), *SHORT, "--out", "e", "--json"]
    prices = ["evaluation.prices.judgement=0.5", "evaluation.prices.sampled_tokens=10"]
    with parrot(tiny, "<answer> \\boxed{1901} </answer>") as server, JudgeServer(lambda prompt: "B") as judge:
        asked = ["--engine", server.url, "--judge-url", judge.url, "--judge-model", "m", *prices]
        assert main(["eval", *tokens, *asked]) == 0
    results = json.loads(capsys.readouterr().out)
    found, hotpotqa = results["sets"]["simpleqa"], results["sets"]["hotpotqa"]
    assert found["metric"] == "simpleqa"
    assert found["metrics"]["simpleqa"]["accuracy"] == pytest.approx(1 / 3)
    assert found["grades"]["simpleqa"] == {"correct": 1, "incorrect": 2}
    assert (found["unanswered"], found["malformed"], found["lost"]) == (0, 0, 0)
    assert found["cost"]["judgements"] == len([prompt for prompt in judge.prompts if "In which year" in prompt]) == 2
    assert found["cost"]["money"]["judge"] == 1.0
    assert next(iter(hotpotqa["metrics"])) == "f1"
    assert "judge_paper" in hotpotqa["metrics"]
    assert results["about"]["engine"] == f"openai {server.url}"
    card = results["metrics"]["simpleqa"]
    assert (card["model"], len(card["prompt_hash"])) == ("m", 16)


def test_training_does_not_take_log_probs_of_any_kind(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--model", str(tiny), "engine.type=openai", "engine.logprobs=any"]) == 2
    assert 'engine.logprobs = "any" is for evaluation; training needs "whole"' in capsys.readouterr().err


def test_held_out_tasks_take_several_answers(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokens = ["eval", "--model", str(tiny), *SHORT, "evaluation.tasks=3", "--samples", "2", "--out", "e", "--json"]
    assert main(tokens) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["n"] == 3
    kept = json.loads(Path("e", "evaluation.json").read_text())
    assert (len(kept["scores"]), len(kept["rewards"])) == (3, 6)


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
