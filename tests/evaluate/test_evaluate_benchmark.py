"""A set answered, judged and kept: what is on disk afterwards, and what a second start does and does not do again."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from eval_world import Adder, Exactly, ledger, questions, runner
from judge_server import JudgeServer, Reply
from rollout_fakes import ToyTool, babble, decode, toolbox

from arpo.data.trees import read_trees
from arpo.errors import DataError
from arpo.evaluate.estimates import Same
from arpo.evaluate.figures import figures
from arpo.evaluate.ledger import PENDING, SAMPLES, TREES, read_samples
from arpo.evaluate.samples import Sample, from_line
from arpo.evaluate.settings import PriceSettings
from arpo.reward.judge.settings import JudgeSettings
from arpo.reward.metrics import build
from arpo.tools.base import ToolResult, ToolStatus

TASKS = questions(6)


def drawn(folder: Path) -> list[tuple[str, list[str], tuple[float | None, ...]]]:
    """The trees of a folder without what depends on the clock."""
    return [
        (tree.task_id, [decode(path.token_T.tolist()) for path in tree.paths()], tree.rewards)
        for tree in read_trees(folder / TREES)
    ]


async def test_every_trajectory_is_a_line_and_a_tree(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    rows = await runner(Adder([1])).measure(
        TASKS, [Exactly()], ledger(tmp_path), lambda done, total: seen.append((done, total))
    )
    assert [[row.score("em") for row in question] for question in rows] == [[1], [0], [1], [1], [1], [1]]
    assert [question[0].family for question in rows] == ["even", "odd"] * 3
    first = rows[0][0]
    prompt, call, result = len("0+1?"), len("<s>q</s>"), len("{Q}")
    assert (first.answer, first.finish, first.lost, first.number) == ("1", "stop", False, 0)
    assert (first.sampled, first.results, first.ran) == (call + len("[1]$"), result, {"search": 1})
    assert first.read == prompt + (prompt + call + result)
    assert sorted(read_samples(tmp_path), key=lambda row: row.task) == [question[0] for question in rows]
    trees = read_trees(tmp_path / TREES)
    assert [tree.task_id for tree in trees] == [task.id for task in TASKS]
    assert [tree.outcomes[0].parts for tree in trees[:2]] == [{"accuracy": 1, "em": 1}, {"accuracy": 0, "em": 0}]
    assert list((tmp_path / PENDING).iterdir()) == []
    assert seen == [(i, 6) for i in range(1, 7)]


async def test_a_second_start_asks_nothing_again(tmp_path: Path) -> None:
    again, metric = Adder(), Exactly()
    before = await runner(Adder()).measure(TASKS[:4], [Exactly()], ledger(tmp_path))
    after = await runner(again, attempt=1).measure(TASKS, [metric], ledger(tmp_path))
    assert sorted(again.asked) == [4, 5]
    assert len(metric.seen) == 2
    assert after[:4] == before
    assert [question[0].attempt for question in after] == [0, 0, 0, 0, 1, 1]
    assert [tree.task_id for tree in read_trees(tmp_path / TREES)] == [task.id for task in TASKS]


async def test_a_kill_costs_the_questions_in_flight_and_no_other(tmp_path: Path) -> None:
    class KilledError(Exception):
        pass

    def stop(done: int, total: int) -> None:
        if done == 3:
            raise KilledError

    with pytest.raises(KilledError):
        await runner(Adder(), samples=2, at_once=1).measure(TASKS, [Exactly()], ledger(tmp_path), stop)
    kept = len(read_samples(tmp_path)) // 2
    assert 3 <= kept < 6
    with (tmp_path / SAMPLES).open("ab") as file:
        file.write((tmp_path / SAMPLES).read_bytes().splitlines()[0][:50])
    assert not (tmp_path / TREES).exists()
    again = Adder()
    rows = await runner(again, samples=2).measure(TASKS, [Exactly()], ledger(tmp_path))
    assert len(set(again.asked)) == 6 - kept
    whole = await runner(Adder(), samples=2).measure(TASKS, [Exactly()], ledger(tmp_path / "other"))
    assert [[(row.answer, row.number) for row in question] for question in rows] == [
        [(row.answer, row.number) for row in question] for question in whole
    ]
    assert drawn(tmp_path) == drawn(tmp_path / "other")


CHILD = """
import asyncio, sys
from pathlib import Path
from eval_world import Adder, Exactly, ledger, questions, runner
from rollout_fakes import ToyTool, toolbox
slow = toolbox(ToyTool("search", delay=lambda context: 0.2), ToyTool("python"))
work = runner(Adder(), tools=slow, samples=2, at_once=1).measure(questions(6), [Exactly()], ledger(Path(sys.argv[1])))
asyncio.run(work)
"""


async def test_a_process_that_is_killed_loses_nothing_that_was_done(tmp_path: Path) -> None:
    support = str(Path(__file__).parents[1] / "support")
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path)], env=os.environ | {"PYTHONPATH": support})
    file, deadline = tmp_path / SAMPLES, time.monotonic() + 120
    while child.poll() is None and not (file.exists() and file.stat().st_size):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    before, again = file.read_bytes(), Adder()
    rows = await runner(again, samples=2).measure(TASKS, [Exactly()], ledger(tmp_path))
    done = {row.task for row in rows_of(before)}
    assert 0 < len(done) < 6
    assert {f"q{x}" for x in again.asked} == {task.id for task in TASKS} - done
    assert file.read_bytes().startswith(before[: before.rfind(b"\n") + 1])
    assert [[row.score("em") for row in question] for question in rows] == [[1, 1]] * 6
    assert [tree.rewards for tree in read_trees(tmp_path / TREES)] == [(1.0, 1.0)] * 6


def rows_of(content: bytes) -> list[Sample]:
    """The whole lines."""
    return [from_line(line) for line in content[: content.rfind(b"\n") + 1].splitlines()]


async def test_half_a_question_is_asked_again(tmp_path: Path) -> None:
    await runner(babble, samples=3).measure(TASKS[:2], [Exactly()], ledger(tmp_path))
    file = tmp_path / SAMPLES
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:-1]))
    found = ledger(tmp_path)
    assert [len(found.rows(task, 3)) for task in TASKS[:2]] in ([3, 0], [0, 3])
    await runner(babble, samples=3).measure(TASKS[:2], [Exactly()], found)
    assert len(file.read_bytes().splitlines()) == 5 + 3


async def test_what_the_infrastructure_lost_is_asked_again_and_has_no_verdict(tmp_path: Path) -> None:
    luck = random.Random(1)

    def reply(text: str) -> ToolResult | str:
        return ToolResult(ToolStatus.INFRA_ERROR, "down") if luck.random() < 0.5 else "fine"

    metric = Exactly()
    broken = toolbox(ToyTool("search", reply), ToyTool("python"))
    rows = await runner(Adder(), tools=broken).measure(TASKS, [metric], ledger(tmp_path))
    lost = [question[0].task for question in rows if question[0].lost]
    assert 0 < len(lost) < 6
    assert all(question[0].score("em") is None for question in rows if question[0].lost)
    assert len(metric.seen) == 6 - len(lost)
    assert sum(tree.rewards == (None,) for tree in read_trees(tmp_path / TREES)) == len(lost)
    again = Adder()
    rows = await runner(again).measure(TASKS, [metric], ledger(tmp_path))
    assert len(again.asked) == len(lost)
    assert [question[0].score("em") for question in rows] == [1] * 6
    assert [tree.rewards for tree in read_trees(tmp_path / TREES)] == [(1.0,)] * 6


async def test_a_judge_that_was_away_is_asked_again_without_sampling(tmp_path: Path) -> None:
    away = Exactly("judge", by="judge", down=["1", "3"])
    rows = await runner(Adder()).measure(TASKS, [away], ledger(tmp_path))
    assert [question[0].score("judge") for question in rows] == [None, 1, None, 1, 1, 1]
    assert read_trees(tmp_path / TREES)[0].rewards == (None,)
    again, back = Adder(), Exactly("judge", by="judge")
    rows = await runner(again).measure(TASKS, [back], ledger(tmp_path))
    assert again.asked == []
    assert sorted(back.seen) == ["1", "3"]
    assert [question[0].score("judge") for question in rows] == [1] * 6
    trees = read_trees(tmp_path / TREES)
    assert [(tree.task_id, tree.rewards) for tree in trees] == [(task.id, (1.0,)) for task in TASKS]


async def test_a_judge_behind_a_server_grades_what_rules_do_not_settle(tmp_path: Path) -> None:
    async def measured(server: JudgeServer) -> list[Sample]:
        metric = build("simpleqa", JudgeSettings(base_url=server.url, model="m", retries=0, key_env="NO_KEY_AT_ALL"))
        rows = await runner(Adder([1, 2])).measure(TASKS[:4], [metric], ledger(tmp_path))
        await metric.close()
        return [question[0] for question in rows]

    with JudgeServer(lambda prompt: Reply(status=503)) as away:
        assert [row.score("simpleqa") for row in await measured(away)] == [1, None, None, 1]
    with JudgeServer(lambda prompt: "C" if "1+1?" in prompt else "B") as server:
        rows = await measured(server)
    assert [row.verdicts["simpleqa"].grade for row in rows] == ["correct", "not_attempted", "incorrect", "correct"]
    assert [row.verdicts["simpleqa"].by for row in rows] == ["rule", "judge", "judge", "rule"]
    assert len(server.prompts) == 2
    found = figures([[row] for row in rows], ["simpleqa"], passes=[1], prices=PriceSettings(judgement=1), same=strict)
    assert found.grades == {"simpleqa": {"correct": 2, "not_attempted": 1, "incorrect": 1}}
    assert found.further["correct_given_attempted"] == pytest.approx(2 / 3)
    assert found.cost.money is not None
    assert found.cost.money["judge"] == 2


def strict(task: str) -> Same:
    return lambda first, second: first == second


async def test_another_metric_or_judge_takes_the_answers_that_were_kept(tmp_path: Path) -> None:
    await runner(Adder([0])).measure(TASKS, [Exactly("em")], ledger(tmp_path))
    again, second = Adder(), Exactly("judge", model="small")
    rows = await runner(again).measure(TASKS, [second, Exactly("em")], ledger(tmp_path))
    assert again.asked == []
    assert set(rows[0][0].verdicts) == {"em", "judge"}
    other = Exactly("judge", model="large")
    await runner(again).measure(TASKS, [other], ledger(tmp_path))
    assert (again.asked, len(other.seen)) == ([], 6)
    moved = Exactly("judge", model="large", base_url="http://elsewhere/v1", cache={"hits": 3})
    await runner(again).measure(TASKS, [moved], ledger(tmp_path))
    assert moved.seen == []


async def test_a_question_that_reads_otherwise_is_another_question(tmp_path: Path) -> None:
    await runner(Adder()).measure(TASKS, [Exactly()], ledger(tmp_path))
    changed = questions(7)[1:]
    renamed = [type(task)(TASKS[i].id, task.messages, task.answers) for i, task in enumerate(changed)]
    again = Adder()
    rows = await runner(again).measure(renamed, [Exactly()], ledger(tmp_path))
    assert sorted(again.asked) == [1, 2, 3, 4, 5, 6]
    assert [question[0].answer for question in rows] == ["2", "3", "4", "5", "6", "7"]


async def test_fewer_questions_keep_what_there_is(tmp_path: Path) -> None:
    await runner(Adder()).measure(TASKS, [Exactly()], ledger(tmp_path))
    assert len(await runner(Adder()).measure(TASKS[:2], [Exactly("f1")], ledger(tmp_path))) == 2
    assert [tree.task_id for tree in read_trees(tmp_path / TREES)] == [task.id for task in TASKS]


async def test_samples_of_a_question_differ_and_do_not_depend_on_the_limit(tmp_path: Path) -> None:
    few = await runner(babble, samples=3).measure(TASKS[2:4], [Exactly()], ledger(tmp_path / "few"))
    many = await runner(babble, samples=3).measure(TASKS, [Exactly()], ledger(tmp_path / "many"))
    assert [[row.answer for row in question] for question in few] == [
        [row.answer for row in question] for question in many[2:4]
    ]
    tree = read_trees(tmp_path / "few" / TREES)[0]
    assert len({decode(path.token_T.tolist()) for path in tree.paths()}) > 1


def test_damage_is_named(tmp_path: Path) -> None:
    (tmp_path / SAMPLES).write_text('{"task": "q0"}\n')
    with pytest.raises(DataError, match=r"samples\.jsonl, line 1: not a sample"):
        ledger(tmp_path)
    (tmp_path / SAMPLES).write_text("not json\n")
    with pytest.raises(DataError, match="line 1"):
        ledger(tmp_path)


async def test_a_tree_that_is_gone_is_named(tmp_path: Path) -> None:
    await runner(Adder()).measure(TASKS[:1], [Exactly()], ledger(tmp_path))
    (tmp_path / TREES).unlink()
    with pytest.raises(DataError, match="the trajectories of q0 are missing"):
        await runner(Adder()).measure(TASKS[:1], [Exactly("f1")], ledger(tmp_path))
