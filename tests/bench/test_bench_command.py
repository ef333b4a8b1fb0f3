"""`arpo bench update` on a model with random weights: rows for programs, tables for people, errors for mistakes."""

import json
import math
from pathlib import Path

import pytest

from arpo.cli import main

ASKED = (
    *("model", "shape", "rho", "flops_ratio", "speedup", "speedup_over_flops_ratio", "memory_ratio", "gemm_share"),
    *("seconds_tree", "seconds_sequence", "seconds_padded", "tokens_per_s", "unique_tokens", "flat_tokens"),
    *("padded_tokens", "threads", "torch", "device", "dtype", "rounds", "spread"),
)


def update(model: Path, out: Path, *tokens: str) -> int:
    """Run the command on a group of four."""
    where = ("--model", str(model), "--group", "2+2", "--device", "cpu", "--json", str(out))
    return main(["bench", "update", *where, *tokens])


def test_rows_and_table(tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "rows.json"
    assert update(tiny_folder, out, "--shape", "20+40@1/2,20+40@root", "--rounds", "2", "--no-memory") == 0
    said = capsys.readouterr()
    assert "round 2 of 2" in said.err
    assert "20+40@1/2: rho" in " ".join(said.out.split())
    assert all(form in said.out for form in ("tree", "sequence", "padded", "speed-up"))
    half, root = json.loads(out.read_text())
    for row in (half, root):
        assert set(ASKED) <= set(row)
        numbers = [value for value in row.values() if isinstance(value, int | float)]
        assert all(math.isfinite(value) and value >= 0 for value in numbers)
        assert row["speedup_least"] <= row["speedup"] <= row["speedup_most"]
        assert row["rounds"] == 2
        assert row["rho"] == pytest.approx(row["flat_tokens"] / row["unique_tokens"])
        assert row["padded_tokens"] > row["computed_sequence"] > row["computed_tree"]
        assert row["flops_ratio"] > row["flops_ratio_sequence"] > 1
        assert row["speedup_over_flops_ratio"] == pytest.approx(row["speedup"] / row["flops_ratio"])
        assert row["memory_ratio"] is row["bytes_tree"] is None
    assert half["rho"] > root["rho"] > 1


@pytest.mark.slow
def test_memory_is_measured_in_processes_of_their_own(tiny_folder: Path, tmp_path: Path) -> None:
    """Long enough for the heap's granularity not to matter: four times the tokens, more memory."""
    out = tmp_path / "rows.json"
    assert update(tiny_folder, out, "--shape", "900+120@3/4", "--rounds", "1", "--quiet") == 0
    (row,) = json.loads(out.read_text())
    assert row["rho"] > 3
    assert row["bytes_padded"] > row["bytes_tree"] > 0
    assert row["memory_ratio"] == pytest.approx(row["bytes_padded"] / row["bytes_tree"])


def test_a_dense_mask_costs_its_square(tiny_folder: Path, tmp_path: Path) -> None:
    rows = {}
    for form in ("chains", "dense"):
        out = tmp_path / f"{form}.json"
        tokens = ("--shape", "20+40@1/2", "--attention", form, "--no-memory", "--rounds", "1", "--quiet")
        assert update(tiny_folder, out, *tokens) == 0
        (rows[form],) = json.loads(out.read_text())
    assert rows["dense"]["work_tree"] > rows["chains"]["work_tree"]
    assert rows["dense"]["work_padded"] == rows["chains"]["work_padded"]


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        (("--shape", "20x40"), "shape '20x40'"),
        (("--preset", "slow"), "--preset slow"),
        (("--attention", "sparse"), "--attention sparse"),
        (("--rounds", "0"), "--rounds 0"),
        (("--micro-tokens", "0"), "--micro-tokens 0"),
        (("--model", "./nowhere"), "'./nowhere' does not exist"),
    ],
)
def test_mistakes(tokens: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "update", *tokens]) == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_a_file_that_cannot_be_written(tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "missing" / "rows.json"
    assert update(tiny_folder, out, "--shape", "9+20@root", "--no-memory", "--rounds", "1", "--quiet") == 3
    said = capsys.readouterr()
    assert "rows.json" in said.err
    assert "speed-up" in said.out, "the figures are not lost"
