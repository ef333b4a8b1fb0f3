"""SkyRL's Tinker server for real, on its JAX backend, on a CPU. `make test-tinker` runs this folder.

`make test` does not: without ARPO_TINKER_TESTS=1 nothing here is collected. ARPO_SKYRL_PYTHON names the interpreter
that has skyrl. What the tests measure is printed as a Markdown table at the end.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from figures import figures, pytest_terminal_summary  # noqa: F401 (pytest looks them up here)

if os.environ.get("ARPO_TINKER_TESTS") != "1":
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pocket policy (a Qwen3 of 0.9 M parameters) in float32, as a folder for the server.

    Its logits are scaled down: as it is, it knows what to say, and no log-prob could rise.
    """
    import torch

    from arpo.engine.models import load_policy

    folder = tmp_path_factory.mktemp("base")
    model, tokenizer = load_policy("pocket", dtype="float32", device="cpu")
    with torch.no_grad():
        model.model.norm.weight.mul_(0.75)
    for part in (model, tokenizer):
        part.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def server(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from tinker_server import start

    served = start(base, tmp_path_factory.mktemp("server"))
    yield served
    served.stop()


@pytest.fixture(scope="session")
def settings(server: Any) -> Any:
    """Engine settings for the server of the session."""
    from tinker_server import RANK

    from arpo.engine.settings import TinkerSettings

    return TinkerSettings(base_url=server.url, rank=RANK, retries=1)


@pytest.fixture(scope="session")
def tuned(server: Any) -> Callable[..., list[str]]:
    """Overrides of a configuration that trains the pocket policy at the server, small enough to compile little."""
    from tinker_server import RANK

    def options(*more: str) -> list[str]:
        return [
            *("model.path=pocket", "engine.type=tinker", f"engine.base_url={server.url}", f"engine.rank={RANK}"),
            *("data.tasks=12", "rollout.total=4", "rollout.initial=2", "rollout.max_tokens=64", "entropy.window=4"),
            *("rollout.branching.type=uniform", "credit.type=hard", "optim.max_grad_norm=inf", "optim.lr=2e-3"),
            *("train.prompts=1", "engine.retries=1"),
            *more,
        ]

    return options
