"""The command line from the outside: what it prints where, and with which exit code."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import arpo
from arpo.cli import main
from arpo.config.doctor import CHECKS, Finding, broken, examine

SOURCE = Path(arpo.__file__).parents[1]


def process(*tokens: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "arpo", *tokens],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"PYTHONPATH": str(SOURCE)} | environ,
    )


def test_a_mistake_in_a_real_process_is_one_line_and_exit_code_2() -> None:
    done = process("config", "show", "rollout.totl=3")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "arpo: error: command line: unknown key rollout.totl; did you mean rollout.total?\n"


def test_the_environment_sets_and_is_named() -> None:
    done = process("config", "show", "--json", ARPO_ROLLOUT__TOTAL="32")
    assert done.returncode == 0
    shown = json.loads(done.stdout)["rollout.total"]
    assert shown == {"value": 32, "from": "environment ARPO_ROLLOUT__TOTAL"}


def test_help_does_not_wait_for_torch() -> None:
    code = "import sys; from arpo.cli import main; main(['--help']); sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    for command in ("demo", "sft", "train", "eval", "rollout", "config", "doctor"):
        assert f" {command} " in done.stdout


def test_a_closed_pipe_is_no_error() -> None:
    command = f"{sys.executable} -m arpo config show | head -1; exit ${{PIPESTATUS[0]}}"
    environ = os.environ | {"PYTHONPATH": str(SOURCE)}
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, env=environ)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (["nonsense"], "nonsense"),
        (["train", "--nonsense"], "nonsense"),
        (["rollout"], "question"),
        (["config", "show", "--preset", "papr"], "no preset named 'papr'"),
        (["config", "show", "nowhere.toml"], "nowhere.toml: no such config file"),
        (["config", "show", "rollout.total=4"], "exceeds total"),
        (["config", "show", "rollout.branching.type=none"], "rollout.initial = rollout.total"),
        (["config", "show", "--set", "rollout.total"], "table.key=value"),
        (["config", "convert", "nowhere.json"], "nowhere.json: cannot be read"),
        (["train", "data.type=files", "data.train=nowhere.jsonl"], "nowhere.jsonl: no such file"),
        (["train", "run.resume=true", "--overwrite"], "exclude each other"),
        (["eval", "data.type=files", "data.train=nowhere.jsonl"], "data.heldout names no file"),
    ],
)
def test_mistakes_exit_with_2_and_say_what(tokens: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(tokens) == 2
    said = capsys.readouterr()
    assert message in " ".join(said.err.split())
    assert "Traceback" not in said.err
    assert said.out == ""


def test_version_and_bare_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == arpo.__version__
    assert main([]) == 0
    assert "doctor" in capsys.readouterr().out


def test_config_show_prints_what_would_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.toml").write_text("[rollout]\nmax_calls = 3\n")
    tokens = ["mine.toml", "rollout.total=32", "--preset", "paper", "--set", "train.steps=7", "--model", "smollm2"]
    assert main(["config", "show", *tokens, "--seed", "5", "--name", "x"]) == 0
    text = capsys.readouterr().out
    shown = tomllib.loads(text)
    assert (shown["rollout"]["total"], shown["rollout"]["max_calls"], shown["train"]["steps"]) == (32, 3, 7)
    assert (shown["model"]["path"], shown["run"]["seed"], shown["run"]["name"]) == ("smollm2", 5, "x")
    assert "max_calls = 3  # mine.toml" in text


def test_config_show_on_a_terminal_is_a_table(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    assert main(["config", "show", "rollout.total=32"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["rollout.total", "32", "command", "line"] in lines


def test_config_convert(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.json").write_text(json.dumps({"arpo": {"adaptive_branch": {"branch_count": 2}}}))
    (tmp_path / "s.sh").write_text("actor_rollout_ref.rollout.beam_size=2 trainer.nnodes=4")
    assert main(["config", "convert", "t.json", "-o", "out.toml"]) == 0
    assert tomllib.loads((tmp_path / "out.toml").read_text())["rollout"]["branches"] == 2
    assert main(["config", "convert", "t.json", "-o", "out.toml"]) == 2
    assert "exists" in capsys.readouterr().err
    assert main(["config", "convert", "s.sh"]) == 0
    said = capsys.readouterr()
    assert tomllib.loads(said.out)["rollout"]["branches"] == 1
    assert "note: actor_rollout_ref.rollout.beam_size = 2 counts the original" in said.err
    assert "not converted: trainer.nnodes = 4" in said.err


def test_doctor_finds_what_is_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    found = {finding["name"]: finding for finding in json.loads(capsys.readouterr().out)}
    for name in ("python", "torch", "transformers", "engine", "sandbox", "corpus"):
        assert found[name]["status"] == "ok", found[name]
        assert found[name]["required"]
    assert {"vllm", "trackio", "wandb", "tensorboard", "pocket", "smollm2", "disk: runs"} <= found.keys()
    assert all(finding["fix"] for finding in found.values() if finding["status"] != "ok")


def _explodes() -> list[Finding]:
    raise OSError("no such library")


def test_doctor_survives_a_broken_machine(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("arpo.config.doctor.CHECKS", (CHECKS[0], _explodes))
    assert [finding.status for finding in examine()] == ["ok", "problem"]
    assert main(["doctor"]) == 1
    assert "no such library" in capsys.readouterr().out


def test_what_is_optional_breaks_nothing() -> None:
    assert not broken([Finding("vllm", "missing", "", "pip install vllm")])
    assert broken([Finding("torch", "missing", "", "pip install torch", required=True)])


def test_doctor_sees_a_damaged_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from arpo.data.factbook.corpus import ensure_index, index_folder

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    ensure_index()
    largest = max(index_folder().iterdir(), key=lambda file: file.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:-100])
    monkeypatch.setattr("arpo.config.doctor.CHECKS", [check for check in CHECKS if check.__name__ == "_corpus"])
    (finding,) = examine()
    assert (finding.status, finding.fix) == ("problem", f"delete {index_folder()}")
