"""verl on two cores: its composed configuration, Ray, TransferQueue, client and load balancer are its own; only the
server is not vLLM but the pocket policy in an actor that speaks the same interface.

The server's draws depend on the prefix and on how often it was asked before, so that a group's trajectories are the
same ones whatever finishes first.
"""

import asyncio
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from arpo.config.schema import Config
from arpo.engine.base import SampleParams
from arpo.verl.overrides import translate
from arpo.verl.prepare import prepare

CPUS = 16
"""Logical: TransferQueue's actors wait for ever for theirs where Ray counts fewer."""


def small(**tables: Any) -> Config:
    """A configuration of four prompts of four leaves each, two of them from branches."""
    base: dict[str, Any] = {
        "data": {"type": "factbook", "tasks": 8},
        "rollout": {"total": 4, "initial": 2, "max_tokens": 192},
        "train": {"prompts": 4, "steps": 2, "eval_every": 1, "eval_tasks": 2},
        "evaluation": {"tasks": 2, "samples": 2},
    }
    merged = base | {name: base.get(name, {}) | table for name, table in tables.items()}
    return Config.model_validate(merged)


def compose(config: Config, folder: Path, *more: str) -> Any:
    """verl's own ppo_trainer configuration under the launcher's overrides, and the files that it names."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir

    import verl

    ready = prepare(config)
    place = ready.place(folder, gpus=1, nodes=1, cpus=None)
    ready.write(place)
    overrides = [item.text for item in translate(config, place).overrides if not item.key.startswith("hydra.")]
    small_ones = (
        "actor_rollout_ref.rollout.agent.num_workers=1",
        "transfer_queue.enable=true",
        "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
        "data.dataloader_num_workers=0",
    )
    with initialize_config_dir(str(Path(verl.__file__).parent / "trainer" / "config"), version_base=None):
        return hydra_compose("ppo_trainer", overrides=[*overrides, *small_ones, *more])


def variant(hydra: Any, config: Config) -> Any:
    """The same composed configuration for another of ours, as the launcher would say it."""
    from copy import deepcopy

    from arpo.verl.overrides import is_stock

    other = deepcopy(hydra)
    other.arpo.config = config.model_dump_json()
    other.trainer.v1.trainer_mode = "sync" if is_stock(config) else "arpo"
    return other


class PolicyServer:
    """An actor that answers as verl's vLLM server does, with the pocket policy behind it."""

    def __init__(self, step: int = 0, die_after: int | None = None) -> None:
        """`step`: the version that it says it has; `die_after`: requests after which the process is gone."""
        from arpo.engine.local import LocalEngine
        from arpo.engine.models import load_policy

        self._engine = LocalEngine(*load_policy("pocket", device="cpu"))
        self._step, self._left = step, die_after
        self._asked: Counter[bytes] = Counter()
        self._ids: list[str] = []

    async def generate(
        self, request_id: str, prompt_ids: Sequence[int], sampling_params: dict[str, Any], **media: Any
    ) -> Any:
        from verl.workers.rollout.replica import TokenOutput

        if self._left is not None:
            self._left -= 1
            if self._left < 0:
                os._exit(1)
        key = np.asarray(prompt_ids, np.int32).tobytes()
        self._asked[key] += 1
        params = SampleParams(
            max_tokens=sampling_params["max_tokens"],
            temperature=sampling_params["temperature"],
            top_p=sampling_params["top_p"],
            stop=tuple(sampling_params["stop"]),
            end_tokens=tuple(sampling_params["stop_token_ids"]),
        )
        segment = await self._engine.sample(prompt_ids, params, crc32(key) * 64 + self._asked[key])
        return TokenOutput(
            token_ids=segment.tokens.tolist(),
            log_probs=segment.logprobs.tolist() if sampling_params["logprobs"] else None,
            stop_reason="completed",
            extra_fields={"global_steps": self._step},
        )

    async def forget(self) -> None:
        """Draw as from the start."""
        self._asked.clear()

    async def asked(self) -> int:
        """Requests so far, forgotten ones aside."""
        return sum(self._asked.values())


class StuckServer(PolicyServer):
    """Answers so many requests and then none, until it is told to go on."""

    def __init__(self, answers: int) -> None:
        super().__init__()
        self._answers, self._held = answers, True

    async def generate(self, *arguments: Any, **options: Any) -> Any:
        self._answers -= 1
        while self._held and self._answers < 0:
            await asyncio.sleep(0.05)
        return await super().generate(*arguments, **options)

    async def stuck(self) -> bool:
        return self._answers < 0

    async def let_go(self) -> None:
        self._held = False


def client_of(hydra: Any, server: Any) -> Any:
    """verl's client and load balancer in front of that one server."""
    import ray
    from verl.workers.rollout.llm_server import LLMServerClient
    from verl.workers.rollout.router import GlobalRequestLoadBalancer

    balancer = ray.remote(num_cpus=0)(GlobalRequestLoadBalancer).remote({"policy": server})
    return LLMServerClient(hydra, balancer)


def trainer_of(hydra: Any, manager: Any) -> Any:
    """The trainer that verl would make of the configuration, without GPUs: everything but the actor."""
    from verl.trainer.ppo.v1 import get_trainer_cls
    from verl.utils.skip import SkipManager

    SkipManager.init(hydra)
    trainer = get_trainer_cls(hydra.trainer.v1.trainer_mode)(hydra)
    trainer.agent_loop_manager, trainer.global_steps = manager, 1
    trainer._init_tokenizer()
    trainer._init_dataloader()
    return trainer


def sample(trainer: Any, prompts: int) -> Any:
    """One batch through verl's own submission and replay buffer."""
    trainer._add_batch_to_generate()
    batch, _ = trainer.replay_buffer.sample(global_steps=1, partition_id="train", batch_size=prompts)
    return batch


def rows_of(batch: Any, *fields: str) -> Any:
    import transfer_queue as tq

    return tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=list(fields))


def clear() -> None:
    """Leave nothing in TransferQueue for the next test."""
    import transfer_queue as tq

    for partition, items in (tq.kv_list() or {}).items():
        if items:
            tq.kv_clear(keys=list(items), partition_id=partition)
