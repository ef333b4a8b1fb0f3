"""Two processes, a policy in shards, a server for each: what is published arrives, and a server that dies ends both."""

import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from completion_server import CompletionServer, Reply
from launcher import FSDP, launched, one_thread
from safetensors.torch import load_file

from arpo.engine.models import load_tokenizer
from arpo.train.runfolder import read_rows

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
LIMIT_S = 600
TINY = (
    "model.device=cpu",
    "data.tasks=40",
    "tools.1.backend=monty",
    "rollout.total=2",
    "rollout.initial=2",
    "rollout.max_tokens=24",
    "rollout.branching.type=none",
    "loss.entropy_bonus=0.01",
    "optim.lr=1e-3",
    "train.prompts=2",
    "train.steps=2",
    "engine.type=openai",
    "engine.publish=vllm",
    "engine.retries=1",
    "engine.breaker=1",
)


class Served(CompletionServer):
    """Takes weights as vLLM does, and samples from a distribution of its own."""

    def __init__(self, tokenizer: Any, vocabulary: int, dies_after: int | None = None) -> None:
        super().__init__(
            lambda prefix: np.random.default_rng([len(prefix), *prefix[-4:]]).normal(0.0, 2.0, vocabulary),
            decode=lambda tokens: tokenizer.decode(tokens, skip_special_tokens=False),
            encode=lambda text: tokenizer(text, add_special_tokens=False)["input_ids"],
            eos=tokenizer.eos_token_id,
            tamper=self.take,
        )
        self.dies_after = dies_after
        self.weights: list[dict[str, torch.Tensor]] = []
        self.sampled: list[int] = []

    def take(self, path: str, request: dict[str, Any] | None, reply: Reply) -> Reply:
        if path.startswith("/server_info"):
            return Reply(200, {"vllm_config": {"device_config": {"device_type": "cuda"}}})
        if path == "/collective_rpc":
            assert request is not None
            (file,) = Path(request["kwargs"]["weights_path"]).glob("*.safetensors")
            self.weights.append(load_file(file))
            return Reply(200, {})
        if path in ("/reset_prefix_cache", "/update_weight_version"):
            return Reply(200, {"success": True})
        if path == "/v1/completions" and self.weights:
            self.sampled.append(len(self.weights))
            if len(self.weights) - 1 == self.dies_after:
                return replace(reply, cut=0)  # the connection ends in the middle of the answer, again and again
        return reply


def test_what_shards_publish_arrives_at_all_servers_and_one_that_dies_ends_the_run(tmp_path: Path) -> None:
    tokenizer, vocabulary = load_tokenizer("pocket")
    with Served(tokenizer, vocabulary) as first, Served(tokenizer, vocabulary, dies_after=1) as second:
        servers = (f"engine.base_url={first.url}", f"engine.replicas={second.url}")
        done = subprocess.run(
            launched(FSDP, [*TINY, *servers, f"run.out={tmp_path}", "run.name=r"]),
            env=one_thread(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    said = done.stdout
    assert done.returncode != 0
    assert re.search(r"process 1 failed: Engine\w*Error.*Process 0 of 2 stops with it", said), said
    assert [row["step"] for row in read_rows(tmp_path / "r" / "metrics.jsonl")] == [1], "the second step left nothing"
    saved = load_file(tmp_path / "r" / "checkpoints" / "step_1" / "model.safetensors")
    assert len(first.weights) == len(second.weights) == 2, "as it started, and after the first step"
    assert first.sampled, "the first process asks the first server"
    assert second.sampled, "the second the second"
    for server in (first, second):
        assert server.weights[1].keys() == saved.keys()
        assert all(torch.equal(server.weights[1][name], saved[name]) for name in saved)
        assert any(not torch.equal(server.weights[0][name], saved[name]) for name in saved), "something was learnt"
