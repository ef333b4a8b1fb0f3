"""Tasks as verl's rows: what is written reads back equal, and what does not fit is left out or refused."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from arpo.config.load import load
from arpo.config.schema import Config
from arpo.errors import ConfigError, DataError
from arpo.task import Message, Task
from arpo.verl.dataset import read_rows, read_task, write_rows, write_task
from arpo.verl.prepare import prepare

TASKS = (
    Task("a", (Message("user", "What's 1 + 1?\n${x}"),), ("2", "two"), "number", {"file": "x.jsonl", "row": "3"}),
    Task("b", (Message("system", 'Be "brief".'), Message("user", "Où?")), ("là",)),
)


def test_a_task_reads_back_equal() -> None:
    for task in TASKS:
        assert read_task(write_task(task)) == task


def test_rows_have_the_columns_that_verl_wants(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "train.parquet"
    write_rows(path, TASKS, "train")
    rows = pq.read_table(path).to_pylist()
    assert rows[1]["prompt"] == [{"role": "system", "content": 'Be "brief".'}, {"role": "user", "content": "Où?"}]
    assert rows[0]["data_source"] == "arpo"
    assert rows[0]["reward_model"] == {"style": "rule", "ground_truth": "2"}
    assert [row["extra_info"]["index"] for row in rows] == [0, 1]
    assert read_rows(path) == list(TASKS)
    assert [file.name for file in path.parent.iterdir()] == ["train.parquet"]


def test_a_row_that_is_none_of_ours_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"extra_info\.arpo_task"):
        read_task('{"id": "a"}')
    with pytest.raises(DataError, match="no tasks for"):
        write_rows(tmp_path / "train.parquet", [], "train")


def config(folder: Path, *overrides: str) -> Config:
    """Three questions in a file, the last of them long."""
    rows = [
        {"question": "Which city is the capital of Chad?", "answer": "N'Djamena"},
        {"question": "Which city is the capital of Peru?", "answer": "Lima"},
        {"question": "Which city is the capital of Chad? " * 20, "answer": "N'Djamena"},
    ]
    file = folder / "train.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = (
        "data.type=files",
        f'data.train=["{file}"]',
        f'data.heldout=["{file}"]',
        "train.prompts=2",
        "tools.1.backend=monty",
    )
    return load([], (*given, *overrides), environ={}).config


def test_long_prompts_are_left_out_and_the_longest_is_measured(tmp_path: Path) -> None:
    whole = prepare(config(tmp_path))
    assert (len(whole.tasks), whole.left_out, len(whole.heldout)) == (3, 0, 0)
    short = prepare(config(tmp_path, "data.max_prompt_tokens=40"))
    assert (len(short.tasks), short.left_out) == (2, 1)
    assert short.longest_prompt <= 40 < whole.longest_prompt


def test_files_are_written_where_the_overrides_say(tmp_path: Path) -> None:
    ready = prepare(config(tmp_path, "data.max_prompt_tokens=40", "train.eval_every=1", "evaluation.tasks=1"))
    place = ready.place(tmp_path / "verl", gpus=1, nodes=1, cpus=None)
    ready.write(place)
    assert read_rows(place.train) == list(ready.tasks)
    assert place.heldout is not None
    assert read_rows(place.heldout) == list(ready.heldout)


@pytest.mark.parametrize(
    ("overrides", "error", "named"),
    [
        (("train.prompts=4",), DataError, "train.prompts = 4"),
        (("data.max_prompt_tokens=3",), DataError, "data.max_prompt_tokens = 3"),
        (("engine.max_context=20",), ConfigError, "engine.max_context = 20"),
        (("rollout.branching.at=state",), ConfigError, 'rollout.branching.at = "state"'),
        (("model.path=./nowhere",), Exception, "nowhere"),
    ],
)
def test_what_training_would_refuse_is_refused_first(
    tmp_path: Path, overrides: tuple[str, ...], error: type[Exception], named: str
) -> None:
    with pytest.raises(error, match=named.replace("(", r"\(")):
        prepare(config(tmp_path, *overrides))


def test_the_example_is_taken_by_both_dry_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from arpo.config.dry_run import examine
    from arpo.verl.overrides import translate

    example = Path(__file__).parents[2] / "examples" / "verl-factbook.toml"
    quick = ("model.path=pocket", "tools.1.backend=monty", "data.tasks=40", f"run.out={tmp_path}")
    resolved = load([example], quick, environ={})
    here = load([example], [*quick, "engine.type=local"], environ={})
    assert examine(here).mistakes == []
    ready = prepare(resolved.config)
    place = ready.place(tmp_path / "verl", gpus=1, nodes=1, cpus=None)
    told = {one.key: one.value for one in translate(resolved.config, place).overrides}
    assert told["actor_rollout_ref.rollout.gpu_memory_utilization"] == 0.5
    assert told["trainer.v1.trainer_mode"] == "arpo"
    assert list(tmp_path.iterdir()) == []
