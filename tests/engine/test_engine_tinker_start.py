"""What is known of a Tinker server before anything is sampled: features, versions, settings that it cannot follow."""

import sys
from pathlib import Path
from typing import Any

import pytest

from arpo.config.dry_run import examine
from arpo.config.dry_run_checks import capabilities_of
from arpo.config.load import load
from arpo.config.tinker import connect, refuse, refuse_processes
from arpo.engine import tinker_service
from arpo.engine.settings import TinkerSettings
from arpo.engine.tinker_features import check_sdk, choose_model, features_of, parse_version
from arpo.errors import ConfigError, EngineDownError

EXAMPLE = Path(__file__).parents[2] / "examples" / "tinker-factbook.toml"
URL = "http://127.0.0.1:9"
SKYRL = {
    "info": {"title": "Tinker API Mock"},
    "components": {
        "schemas": {
            "ForwardBackwardInput": {"properties": {"loss_fn": {"enum": ["cross_entropy", "ppo"]}}},
            "AdamParams": {"properties": {"learning_rate": {}}},
            "SampleRequest": {"properties": {"topk_prompt_logprobs": {}}},
        }
    },
}
ONE = {"supported_models": [{"model_name": "base", "max_context_length": 4096}]}


def test_a_description_tells_what_a_server_would_drop() -> None:
    found = features_of(SKYRL, ONE)
    assert (found.skyrl, found.clips, found.top_k) == (True, False, False)
    assert found.losses == {"cross_entropy", "ppo"}
    assert found.models == {"base": 4096}


def test_without_a_description_the_documentation_holds() -> None:
    found = features_of(None, {})
    assert (found.skyrl, found.clips, found.top_k) == (False, True, True)
    assert "importance_sampling" in found.losses


@pytest.mark.parametrize(
    ("description", "chosen", "expected"),
    [
        (SKYRL, "auto", "sequence_mean"),
        (None, "auto", "sum"),
        (SKYRL, "sum", "sum"),
        (None, "sequence_mean", "sequence_mean"),
    ],
)
def test_how_a_server_averages(description: Any, chosen: Any, expected: str) -> None:
    assert features_of(description, ONE).reduction(TinkerSettings(reduction=chosen)) == expected


@pytest.mark.parametrize("version", ["0.38.0", "0.25.0", "0.16.1", "unknown"])
def test_an_sdk_that_skyrl_does_not_understand_is_refused(version: str) -> None:
    with pytest.raises(ConfigError, match=r'pip install "tinker>=0\.18,<0\.25"'):
        check_sdk(version, features_of(SKYRL, ONE), URL)


@pytest.mark.parametrize(("version", "description"), [("0.18.0", SKYRL), ("0.24.1", SKYRL), ("0.38.0", None)])
def test_an_sdk_that_fits(version: str, description: Any) -> None:
    check_sdk(version, features_of(description, ONE), URL)


def test_versions() -> None:
    assert parse_version("0.24.1.dev3+local") == (0, 24, 1)


@pytest.mark.parametrize(
    ("named", "path", "expected"), [(None, "base", "base"), (None, "pocket", "base"), ("base", "pocket", "base")]
)
def test_the_base_model_is_found(named: str | None, path: str, expected: str) -> None:
    assert choose_model(features_of(SKYRL, ONE), TinkerSettings(base_model=named), path) == expected


def test_a_base_model_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match="'other'; it has base"):
        choose_model(features_of(SKYRL, ONE), TinkerSettings(base_model="other"), "pocket")


@pytest.mark.parametrize(
    ("option", "key"),
    [
        ("model.lora.rank=4", "model.lora"),
        ("rollout.temperature=0.7", "rollout.temperature"),
        ("rollout.top_p=0.9", "rollout.top_p"),
        ("engine.logprobs=any", "engine.logprobs"),
        ("engine.weights=tinker://run/weights/one", "engine.weights"),
    ],
)
def test_what_no_server_trains_with_is_refused_by_key(option: str, key: str) -> None:
    config = load([], ["engine.type=tinker", option], environ={}).config
    with pytest.raises(ConfigError, match=key):
        refuse(config, trains=True)


def test_several_processes_have_nothing_to_share() -> None:
    config = load([], ["engine.type=tinker"], environ={}).config
    refuse_processes(config, 1)
    with pytest.raises(ConfigError, match="2 processes"):
        refuse_processes(config, 2)


@pytest.mark.parametrize("url", ["http://host:1/api/v1", "ftp://host", "http://user:word@host"])
def test_addresses(url: str) -> None:
    with pytest.raises(ValueError, match="base_url"):
        TinkerSettings(base_url=url)


def test_a_missing_sdk_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tinker", None)
    config = load([], ["engine.type=tinker"], environ={}).config
    with pytest.raises(ConfigError, match=r"arpo\[tinker\]"):
        connect(config, trains=True)


def test_a_server_that_is_not_there() -> None:
    with pytest.raises(EngineDownError, match=r"engine\.base_url"):
        tinker_service._ask(TinkerSettings(base_url=URL), "")


def test_a_dry_run_leaves_the_server_unasked() -> None:
    config = load([EXAMPLE], ["run.name=never-made"], environ={})
    found = examine(config)
    assert (found.mistakes, found.memory) == ([], None)
    assert any("Tinker server" in line for line in found.unchecked)


def test_a_dry_run_refuses_what_the_start_would() -> None:
    with pytest.raises(ConfigError, match=r"rollout\.temperature"):
        capabilities_of(load([EXAMPLE], ["rollout.temperature=0.7"], environ={}).config, None)
