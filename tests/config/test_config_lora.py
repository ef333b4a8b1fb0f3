"""The optional table `[model.lora]`: absent, switched on by any of its keys, off again, written and read back."""

from pathlib import Path

import pytest
import tomli_w

from arpo.config.load import load
from arpo.engine.settings import LoraSettings
from arpo.errors import ConfigError


def test_any_key_of_it_switches_it_on_and_none_off(tmp_path: Path) -> None:
    assert load([], [], environ={}).config.model.lora is None
    assert "lora" not in load([], [], environ={}).table()["model"]
    resolved = load([], ["model.lora.rank=8", "model.lora.target_modules=q_proj,v_proj"], environ={})
    assert resolved.config.model.lora == LoraSettings(rank=8, target_modules=("q_proj", "v_proj"))
    assert resolved.provenance["model.lora.rank"] == "command line"
    (tmp_path / "c.toml").write_text(tomli_w.dumps(resolved.table()))
    assert load([tmp_path / "c.toml"], [], environ={}).config == resolved.config
    (tmp_path / "empty.toml").write_text("[model.lora]\n")
    assert load([tmp_path / "empty.toml"], [], environ={}).config.model.lora == LoraSettings()
    assert load([tmp_path / "c.toml"], ["model.lora=none"], environ={}).config.model.lora is None
    word = load([], ["model.lora.target_modules=all-linear"], environ={})
    assert word.config.model.lora == LoraSettings()


def test_a_misspelt_key_gets_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match=r"unknown key model\.lora\.rnk; did you mean model\.lora\.rank"):
        load([], ["model.lora.rnk=8"], environ={})
    with pytest.raises(ConfigError, match=r"model\.lora.*dropout = 0\.1"):
        load([], ["model.lora.dropout=0.1"], environ={})
