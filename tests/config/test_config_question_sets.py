"""Which sets and metrics a command means."""

import json
from pathlib import Path

import pytest

from arpo.config.load import load
from arpo.config.question_sets import Chosen, Request, choose, judge_of
from arpo.errors import ConfigError

JUDGE = ("evaluation.judge.base_url=http://127.0.0.1:9/v1", "evaluation.judge.model=m")


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for name in ("simpleqa", "math500", "hotpotqa"):
        (tmp_path / name).mkdir()
        rows = [{"question": f"{name} {n}?", "answer": str(n)} for n in range(4)]
        (tmp_path / name / "test.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return tmp_path


def chosen(files: Path, names: str, *overrides: str, **more: object) -> list[Chosen]:
    config = load([], overrides, environ={}).config
    return choose(config, Request(names.split(","), files, **more))  # type: ignore[arg-type]


def test_sets_come_in_the_order_of_the_tables_whatever_the_command_says(files: Path) -> None:
    assert [one.benchmark.name for one in chosen(files, "all", smoke=True)] == ["math500", "hotpotqa", "simpleqa"]
    assert [one.benchmark.name for one in chosen(files, "hotpotqa,math500")] == ["math500", "hotpotqa"]
    (found,) = chosen(files, "math500", limit=3)
    assert [task.question.split("\n")[0] for task in found.tasks] == ["math500 0?", "math500 1?", "math500 2?"]


def test_one_judge_is_asked_unless_more_are_named(files: Path) -> None:
    (found,) = chosen(files, "simpleqa", *JUDGE)
    assert found.metrics[0] == "simpleqa"
    assert not {"judge", "judge_paper"} & set(found.metrics)
    (found,) = chosen(files, "simpleqa", *JUDGE, "evaluation.metrics=judge,simpleqa,em")
    assert found.metrics == ("judge", "simpleqa", "em")


def test_without_a_judge_rules_remain_and_that_is_said(files: Path) -> None:
    (found,) = chosen(files, "hotpotqa")
    assert found.metrics[0] == "f1"
    assert "judge_paper" not in found.metrics
    assert found.notes == ("not measured by judge_paper, which needs a judge (--judge-url, --judge-model)",)
    (found,) = chosen(files, "simpleqa", "evaluation.metrics=em")
    assert (found.metrics, found.stands_for, found.notes) == (("em",), "", ())
    with pytest.raises(ConfigError, match="hotpotqa is measured by 'judge', which needs a judge"):
        chosen(files, "hotpotqa", "evaluation.metrics=f1,judge")


def test_a_smoke_test_takes_rules_even_where_there_is_a_judge(files: Path) -> None:
    (found,) = chosen(files, "simpleqa", *JUDGE, smoke=True)
    assert (found.metrics[0], found.stands_for) == ("f1", "simpleqa")
    (found,) = chosen(files, "hotpotqa", "evaluation.metrics=judge,em", smoke=True)
    assert (found.metrics, found.stands_for) == (("em",), "judge")
    (found,) = chosen(files, "hotpotqa", smoke=True)
    assert (found.metrics[0], found.stands_for, found.notes) == ("f1", "", ())


def test_the_rewards_judge_judges_where_no_other_is_named() -> None:
    reward = ("reward.judge.base_url=http://127.0.0.1:9/v1", "reward.judge.model=of-the-reward")
    both = judge_of(load([], [*reward, *JUDGE], environ={}).config)
    one = judge_of(load([], reward, environ={}).config)
    assert both is not None
    assert one is not None
    assert (both.model, one.model) == ("m", "of-the-reward")
    assert judge_of(load([], [], environ={}).config) is None
