"""The demo, small: the same commands, the same files, a hundredth of the budget."""

import json
from pathlib import Path

import pytest

from arpo import demo
from arpo.errors import ConfigError

SMALL = (
    "tools.1.preload=[]",
    "data.tasks=60",
    "train.prompts=4",
    "train.max_generated_tokens=3000",
    "train.eval_every=1",
    "train.eval_tasks=6",
    "evaluation.tasks=24",
)


@pytest.mark.slow
def test_the_demo_leaves_a_report_and_its_figures(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    assert demo.run(out, SMALL) == 0
    summary = json.loads((out / "summary.json").read_text())
    for name in ("cold_start", "grpo", "arpo"):
        figures = summary[name]
        low, high = figures["ci95"]
        assert low <= figures["heldout_accuracy"] <= high
        assert figures["evaluation"]["generated_tokens"] > 0
    assert summary["cold_start"]["generated_tokens"] == 0
    for name in ("grpo", "arpo"):
        assert summary[name]["generated_tokens"] >= 3000
        assert summary[name]["tool_calls"] > 0
        assert summary[name]["seconds"] > 0
    assert set(summary["entropy"]) == {"start", "after_search", "after_python"}
    report = (out / "report.html").read_text()
    assert "<svg" in report
    assert "://" not in report.replace("http://www.w3.org", "")
    assert (out / "accuracy.svg").read_text().startswith("<svg")
    configs = [(out / name / "config.toml").read_text() for name in ("grpo", "arpo")]
    assert configs[0] != configs[1]

    with pytest.raises(ConfigError, match="--resume"):
        demo.run(out, SMALL)
    before = (out / "arpo" / "metrics.jsonl").read_text()
    assert demo.run(out, SMALL, resume=True) == 0
    assert (out / "arpo" / "metrics.jsonl").read_text() == before


def test_a_folder_that_is_no_demo_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="left alone"):
        demo.run(tmp_path, overwrite=True)
    assert (tmp_path / "notes.txt").exists()
