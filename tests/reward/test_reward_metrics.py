"""Metrics by name: rules decide alone, judges want a server, and nothing stands in for anything else."""

import pytest
from judge_server import JudgeServer

from arpo.errors import ConfigError, VerifierError
from arpo.reward import best_score, metrics
from arpo.reward.judge.settings import JudgeSettings
from arpo.reward.settings import Accuracy, RewardSettings
from arpo.task import ask


@pytest.mark.parametrize(
    ("name", "answer", "gold", "score"),
    [
        ("hybrid", "-5", "5", 0.0),
        ("paper", "-5", "5", 1.0),
        ("f1", "Barack Obama, the 44th president", "Barack Obama", 0.6667),
        ("em", "The Eiffel Tower", "eiffel tower", 1.0),
        ("f1_cjk", "北京", "北京市", 0.8),
        ("gaia", "$1,234.50", "1234.5", 1.0),
    ],
)
async def test_rules(name, answer, gold, score):
    metric = metrics.build(name)
    await metric.check()
    verdict = await metric(ask("?", "nothing like it", gold), answer)
    await metric.close()
    assert verdict.score == pytest.approx(score, abs=1e-4)
    assert (verdict.by, metric.name) == ("rule", name)
    assert metric.card() == {"metric": name, "by": "rule"}
    assert metric.drain() == {"reward/verify_failed": 0.0}


async def test_the_task_says_what_kind_of_answer_it_wants():
    metric = metrics.build("hybrid")
    assert (await metric(ask("?", "7 pm", kind="exact"), "7 pm on Monday")).score == 0.0
    assert (await metric(ask("?", "seven in the evening", kind="text"), "seven evening")).score > 0.5


@pytest.mark.parametrize("name", metrics.RULES)
async def test_nothing_is_worth_nothing(name):
    assert [(await metrics.build(name)(ask("?", "5"), answer)).score for answer in (None, "", "  ")] == [0.0] * 3


async def test_a_broken_checker_is_no_verdict(monkeypatch):
    def broken(*_: object, **__: object) -> float:
        raise VerifierError("no process")

    monkeypatch.setattr(metrics, "best_score", broken)
    metric = metrics.build("math")
    verdict = await metric(ask("?", "x + 1"), "1 + x")
    assert (verdict.score, verdict.reason) == (None, "no process")
    assert [metric.drain()["reward/verify_failed"] for _ in range(2)] == [1.0, 0.0]


def test_names():
    assert {*metrics.NAMES, "none"} == set(Accuracy.__args__)
    assert [name for name in metrics.NAMES if metrics.needs_judge(name)] == list(metrics.JUDGES)
    with pytest.raises(ConfigError, match="did you mean simpleqa"):
        metrics.build("simple_qa")


@pytest.mark.parametrize("name", metrics.JUDGES)
def test_a_judge_is_never_replaced(name):
    with pytest.raises(ConfigError, match=rf"{name}.*--judge-url"):
        metrics.build(name)
    with pytest.raises(ValueError, match=r"\[reward\.judge\]"):
        RewardSettings(accuracy=name)


@pytest.mark.parametrize("name", metrics.JUDGES)
async def test_judges_are_built_by_name(name, tmp_path):
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("Ours: {question} {gold} {answer}")
    with JudgeServer(lambda prompt: "correct: yes\nconfidence: 100" if name == "hle" else "?") as server:
        metric = metrics.build(name, JudgeSettings(base_url=server.url, model="m", prompt=str(prompt)))
        await metric.check()
        await metric(ask("Who?", "Ada"), "Bob")
        await metric.close()
    assert metric.name == name
    assert "Ours:" in server.requests[1]["messages"][0]["content"]
    assert (
        metric.card()["prompt_hash"]
        != metrics.build(name, JudgeSettings(base_url="http://127.0.0.1:1/v1", model="m")).card()["prompt_hash"]
    )


def test_best_of_several_golds_is_public():
    assert best_score("Ada", ["Bob", "Ada"]) == 1.0
