"""vLLM for real: SmolLM2-135M behind a server on loopback and in this process. `make test-vllm` runs this folder.

`make test` does not: without ARPO_VLLM_TESTS=1 nothing here is collected. What the tests measure is printed as a
Markdown table at the end.
"""

import asyncio
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from figures import figures, pytest_terminal_summary  # noqa: F401 (pytest looks them up here)
from ports import free_port

if os.environ.get("ARPO_VLLM_TESTS") != "1":
    collect_ignore_glob = ["test_*.py"]

CONTEXT = 1024
SEQUENCES = 16
PATIENCE = 900
"""Seconds for a server to start: vLLM imports for half a minute on a free core."""


@dataclass(frozen=True)
class Served:
    url: str
    process: subprocess.Popen[bytes]


@pytest.fixture(scope="session")
def policy() -> tuple[Any, Any]:
    """(model, tokenizer) of SmolLM2 in float32: the trainer's copy."""
    from arpo.engine.models import load_policy

    return load_policy("smollm2", device="cpu")


@pytest.fixture(scope="session")
def weights(policy: tuple[Any, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("smollm2")
    for part in policy:
        part.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def server(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """`vllm serve` as docs/engines.md says to start it; its log is shown if it does not come up."""
    port = free_port()
    log = tmp_path_factory.mktemp("server") / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(weights)),
                *("--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--max-model-len", str(CONTEXT)),
                *("--logprobs-mode", "processed_logprobs", "--max-logprobs", "64", "--enforce-eager"),
                *("--max-num-seqs", str(SEQUENCES), "--enable-prompt-tokens-details", "--generation-config", "vllm"),
                *("--no-enable-chunked-prefill", "--max-num-batched-tokens", "4096"),
                *("--worker-extension-cls", "arpo.engine.vllm_worker.WorkerExtension"),
            ],
            env=os.environ | {"VLLM_SERVER_DEV_MODE": "1"},
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        _await(url, process, log)
        yield Served(f"{url}/v1", process)
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()


def _await(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    for _ in range(PATIENCE):
        if process.poll() is not None:
            break
        try:
            opener.open(f"{url}/health", timeout=5)
            return
        except (urllib.error.URLError, OSError):
            time.sleep(1)
    pytest.fail(f"the server did not come up:\n{log.read_text(errors='replace')[-4000:]}")


@pytest.fixture(scope="session")
def engine_server(server: Served, policy: tuple[Any, Any]) -> Iterator[Any]:
    from arpo.engine.registry import build
    from arpo.engine.settings import ModelSettings, OpenAISettings

    settings = OpenAISettings(base_url=server.url, publish="vllm", top_k=20, concurrency=SEQUENCES, retries=1)
    engine = build(settings, ModelSettings(), policy[1], None, vocab_size=policy[0].config.vocab_size)
    yield engine
    asyncio.run(engine.close())


@pytest.fixture(scope="session")
def engine_inside(weights: Path, policy: tuple[Any, Any]) -> Iterator[Any]:
    from arpo.engine.registry import build
    from arpo.engine.settings import ModelSettings, VllmSettings

    settings = VllmSettings(max_context=CONTEXT, options={"max_num_seqs": SEQUENCES})
    engine = build(settings, ModelSettings(path=str(weights), device="cpu"), policy[1], None)
    yield engine
    asyncio.run(engine.close())


@pytest.fixture(params=["inside", "server"])
def engine(request: pytest.FixtureRequest) -> Any:
    """Each vLLM engine in turn; `engine.kind` names it."""
    built = request.getfixturevalue(f"engine_{request.param}")
    built.kind = {"inside": "in process", "server": "server"}[request.param]
    return built
