"""When a run gets an accelerator, and when it does not."""

from types import SimpleNamespace
from typing import Any

import pytest

from arpo.config.processes import build_accelerator
from arpo.config.schema import Config


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What Accelerator was called with."""
    calls: list[dict[str, Any]] = []
    built = SimpleNamespace(
        distributed_type=SimpleNamespace(value="MULTI_CPU"),
        mixed_precision="no",
        parallelism_config=None,
        state=SimpleNamespace(),
    )
    monkeypatch.setattr("accelerate.Accelerator", lambda **options: calls.append(options) or built)
    for name in ("WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    return calls


def config(**model: Any) -> Config:
    return Config.model_validate({"model": {"path": "pocket"} | model})


@pytest.mark.parametrize("environment", [{}, {"WORLD_SIZE": "1", "LOCAL_RANK": "0"}, {"WORLD_SIZE": "8"}])
def test_one_process_has_none(
    asked: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert build_accelerator(config()) is None
    assert not asked


def test_several_launched_processes_have_one_on_the_configured_device(
    asked: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert build_accelerator(config(device="cpu")) is not None
    assert asked == [{"cpu": True}]
    build_accelerator(config(device="meta"))
    assert asked[1] == {"cpu": False}
