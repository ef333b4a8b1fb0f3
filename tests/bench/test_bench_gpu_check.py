"""The pieces of benchmarks/gpu.sh that a CPU can run: the GPU hour is not the time to find a typo."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

from arpo.engine.models import load_policy

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu_check.py"


@pytest.fixture
def check() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_check", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_both_forms_are_equal_and_a_difference_would_be_said(
    check: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert check.equal("cpu", "tiny") == 0
    assert "\nequal\n" in capsys.readouterr().out
    monkeypatch.setattr(check, "TOLERANCE", 1e-12)
    assert check.equal("cpu", "tiny") == 1
    assert "NOT EQUAL" in capsys.readouterr().out


def test_the_model_it_writes_can_be_loaded(check: ModuleType, tmp_path: Path) -> None:
    assert check.make(tmp_path / "model", "tiny") == 0
    model, tokenizer = load_policy(tmp_path / "model", device="cpu")
    assert model.config.model_type == "qwen2"
    assert model.config.num_hidden_layers == 2
    assert tokenizer.pad_token is not None


def test_the_published_widths(check: ModuleType) -> None:
    """Parameters of Qwen2.5 without the embedding, from its model cards: 0.36 and 1.31 billion."""
    billions = {}
    for size in ("0.5B", "1.5B"):
        s = check.SIZES[size]
        keys = s["hidden_size"] * s["num_key_value_heads"] // s["num_attention_heads"]
        layer = 2 * s["hidden_size"] * (s["hidden_size"] + keys) + 3 * s["hidden_size"] * s["intermediate_size"]
        billions[size] = s["num_hidden_layers"] * layer / 1e9
    assert billions == {"0.5B": pytest.approx(0.36, abs=0.01), "1.5B": pytest.approx(1.31, abs=0.01)}


def test_the_verdict(check: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = {"shape": "1500+4000@1/2", "rho": 1.78, "device_name": "a card", "torch": "2.0", "speedup": 1.5,
           "flops_ratio": 1.6, "speedup_over_flops_ratio": 0.94, "speedup_sequence": 1.4, "flops_ratio_sequence": 1.5,
           "speedup_over_flops_ratio_sequence": 0.93}  # fmt: skip
    (tmp_path / "rows.json").write_text(json.dumps([row]))
    assert check.verdict(tmp_path / "rows.json") == 0
    said = capsys.readouterr().out
    assert "1.50 times as fast at a work ratio of 1.60, 94% of it" in said
    assert "1.40 times as fast at a work ratio of 1.50, 93% of it" in said
