"""The run folder's promises: never two runs in one, never a lost or doubled row, never a half-written file."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from arpo.errors import ConfigError, StorageError
from arpo.train.runfolder import RunFolder, flatten, read_rows, storage, without_none, write_atomic

CONFIG = {"run": {"name": "a", "resume": False}, "rollout": {"total": 4}, "train": {"steps": 3, "max_seconds": None}}


def test_an_existing_run_is_refused_resumed_or_replaced(tmp_path: Path) -> None:
    path = tmp_path / "run"
    RunFolder.open(path, CONFIG).close()
    (path / "rollouts" / "step_000001.parquet").write_bytes(b"x")
    with pytest.raises(ConfigError, match=r"--resume.*--overwrite"):
        RunFolder.open(path, CONFIG)
    with RunFolder.open(path, CONFIG, resume=True) as folder:
        assert folder.rollout_file(1).exists()
    with RunFolder.open(path, CONFIG, overwrite=True) as folder:
        assert not folder.rollout_file(1).exists()


def test_overwrite_deletes_nothing_but_runs(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigError, match="not a run folder"):
        RunFolder.open(tmp_path, CONFIG, overwrite=True)
    assert (tmp_path / "thesis.tex").exists()


def test_a_resumed_run_keeps_its_configuration(tmp_path: Path) -> None:
    RunFolder.open(tmp_path / "run", CONFIG).close()
    longer = CONFIG | {"train": {"steps": 9}, "run": {"name": "a", "resume": True}}
    RunFolder.open(tmp_path / "run", longer, resume=True).close()
    other = CONFIG | {"rollout": {"total": 8}}
    with pytest.raises(ConfigError, match=r"rollout\.total: was 4, is 8"):
        RunFolder.open(tmp_path / "run", other, resume=True)


def test_attempts_and_versions_are_recorded(tmp_path: Path) -> None:
    RunFolder.open(tmp_path / "run", CONFIG).close()
    RunFolder.open(tmp_path / "run", CONFIG, resume=True).close()
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    assert len(facts["attempts"]) == 2
    assert facts["packages"]["torch"]


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from arpo.train.runfolder import RunFolder\n"
        "RunFolder.open(Path(sys.argv[1]), {}, resume=True)"
    )
    with RunFolder.open(tmp_path / "run", {}):
        done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "run")], capture_output=True, text=True)
    assert done.returncode != 0
    assert "in use by process" in done.stderr


def test_rewind_drops_later_steps_torn_lines_and_doubles(tmp_path: Path) -> None:
    with RunFolder.open(tmp_path / "run", CONFIG) as folder:
        for step in (1, 2, 2, 3):
            folder.append({"step": step, "reward": step / 10})
            folder.rollout_file(step).write_bytes(b"x")
        with folder.metrics.open("a") as file:
            file.write('{"step": 4, "rew')
        folder.rewind(2)
        assert [row["step"] for row in read_rows(folder.metrics)] == [1, 2]
        assert len(folder.metrics.read_text().splitlines()) == 2
        assert sorted(file.name for file in folder.rollouts.iterdir()) == ["step_000001.parquet", "step_000002.parquet"]


def test_a_refused_write_keeps_the_old_file_and_says_where(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    write_atomic(file, "old")
    with pytest.raises(StorageError, match=r"config\.toml.*intact"), storage(file):
        raise OSError(28, "No space left on device")
    assert file.read_text() == "old"


def test_not_a_number_never_reaches_the_metrics(tmp_path: Path) -> None:
    with RunFolder.open(tmp_path / "run", CONFIG) as folder, pytest.raises(ValueError, match="JSON"):
        folder.append({"step": 1, "reward": float("nan")})


def test_tables_flatten_and_lose_their_nulls() -> None:
    assert flatten(without_none(CONFIG)) == {
        "run.name": "a",
        "run.resume": False,
        "rollout.total": 4,
        "train.steps": 3,
    }


def test_what_stands_behind_the_tools_is_kept_with_every_attempt(tmp_path: Path) -> None:
    RunFolder.open(tmp_path / "run", CONFIG, tools={"python": {"backend": "namespace"}}).close()
    RunFolder.open(tmp_path / "run", CONFIG, resume=True, tools={"python": {"backend": "landlock"}}).close()
    attempts = json.loads((tmp_path / "run" / "run.json").read_text())["attempts"]
    assert [attempt["tools"]["python"]["backend"] for attempt in attempts] == ["namespace", "landlock"]


def test_who_compares_answers_is_kept_with_every_attempt(tmp_path: Path) -> None:
    RunFolder.open(tmp_path / "run", CONFIG, reward={"metric": "judge", "prompt_hash": "0123"}).close()
    RunFolder.open(tmp_path / "run", CONFIG, resume=True).close()
    attempts = json.loads((tmp_path / "run" / "run.json").read_text())["attempts"]
    assert [attempt["reward"] for attempt in attempts] == [{"metric": "judge", "prompt_hash": "0123"}, {}]


def test_a_judge_may_move_but_not_be_another(tmp_path: Path) -> None:
    def config(**judge: str) -> dict[str, object]:
        return {**CONFIG, "reward": {"judge": {"base_url": "http://a/v1", "model": "m"} | judge}}

    RunFolder.open(tmp_path / "run", config()).close()
    RunFolder.open(tmp_path / "run", config(base_url="http://b/v1"), resume=True).close()
    with pytest.raises(ConfigError, match=r"reward\.judge\.model"):
        RunFolder.open(tmp_path / "run", config(model="n"), resume=True)
