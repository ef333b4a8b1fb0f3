"""verl's agent loop worker, with our rollout in place of its loops: a prompt is grown as one tree of M leaves.

verl runs `rollout.n` independent sessions per prompt; here one tree is grown for it, and each leaf is posted as one
session by verl's own post-processing, so that tags, masks and whatever else verl derives are its own work. A leaf that
the infrastructure lost is not posted: it has no reward, and a row without one would be given one. Where fewer than two
are left there is nothing to compare, and the group ends as "failure" with no row at all.

The class that verl exports is a Ray actor already and cannot be subclassed; its body can.

Source of the interface: verl 0.9.1, `trainer/ppo/v1/agent_loop_tq.py`.
"""

import asyncio
import logging
import pickle
from typing import Any

import transfer_queue as tq
from verl.experimental.agent_loop import AgentLoopOutput
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics
from verl.trainer.ppo.v1 import AgentLoopWorkerTQ

from arpo.errors import ConfigError, EngineDownError
from arpo.tree import RolloutTree
from arpo.verl.checks import OURS, read_config, top_k_of
from arpo.verl.dataset import read_task
from arpo.verl.growing import Grower, Sampler
from arpo.verl.leaves import Leaf, leaves_of

_Body: Any = AgentLoopWorkerTQ.__ray_metadata__.modified_class
logger = logging.getLogger(__name__)


class ArpoLoopWorker(_Body):
    """To be made an actor with `ray.remote`. `ready` must have succeeded before prompts are sent."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._ours = read_config(self.config)
        self._ships_trees = self.config.trainer.v1.trainer_mode == OURS
        self._grower: Grower | None = None
        self._made_ready: asyncio.Event | None = None
        self._trouble = ""

    async def ready(self) -> None:
        """Build tools, dialect and scorer. Raises ConfigError or ToolSetupError: what would fail every prompt."""
        self._made_ready = asyncio.Event()
        try:
            grower = Grower(self._ours, self._sampler())
            await grower.ready()
            self._grower = grower
        finally:
            self._made_ready.set()

    def _sampler(self) -> Sampler:
        rollout = self.config.actor_rollout_ref.rollout
        room = rollout.prompt_length + rollout.response_length
        return Sampler(
            client=self.llm_client,
            tokenizer=self.tokenizer,
            vocab_size=int(self.model_config.hf_config.get_text_config().vocab_size),
            max_context=int(rollout.max_model_len or room),
            top_k=top_k_of(self.config) or 0,
            seeded=bool(rollout.get("full_determinism", False)),
        )

    async def pulse(self) -> None:
        """Never returns: whoever waits for it learns of this process's death."""
        await asyncio.Event().wait()

    async def trouble(self) -> str:
        """Why verl's server could not be reached, or "" if it could."""
        return self._trouble

    async def _run_prompt(
        self, prompt: dict[str, Any], sampling_params: dict[str, Any], trajectory: dict[str, Any], trace: bool = False
    ) -> None:
        """Grow the prompt's tree and post its leaves; the prompt's own status is put last."""
        uid, where = prompt["uid"], "val" if trajectory["validate"] else "train"
        await tq.async_kv_put(key=uid, partition_id=where, tag={"status": "running"})
        posted: list[str] = []
        try:
            tree = await self._tree(prompt, sampling_params, trajectory)
            await self._post(tree, prompt, trajectory["validate"], posted)
        except Exception as error:
            logger.error("no trajectories for prompt %s: %s", uid, error, exc_info=error)
            if isinstance(error, EngineDownError):
                self._trouble = str(error)
            if posted:
                await tq.async_kv_clear(keys=posted, partition_id=where)
                posted.clear()
        status = "finished" if posted else "failure"
        await tq.async_kv_put(key=uid, partition_id=where, tag={"status": status})

    async def _tree(
        self, prompt: dict[str, Any], sampling_params: dict[str, Any], trajectory: dict[str, Any]
    ) -> RolloutTree:
        if self._made_ready is not None:
            await self._made_ready.wait()
        if self._grower is None:
            raise ConfigError("the worker was not made ready; use arpo.verl.manager.ArpoLoopManager as the manager")
        rollout, greedy = self.config.actor_rollout_ref.rollout, not prompt.pop("__do_sample__", True)
        samples = prompt.pop("__rollout_n__", rollout.val_kwargs.n if trajectory["validate"] else rollout.n)
        settings = None
        if trajectory["validate"]:
            settings = self._grower.validating(int(samples), sampling_params["temperature"], sampling_params["top_p"])
        elif greedy or samples != self._ours.rollout.total:
            raise ConfigError(
                f"a row asks for {samples} samples{' at temperature 0' if greedy else ''}, and a tree has "
                f"rollout.total = {self._ours.rollout.total}; leave __rollout_n__ and __do_sample__ out of the data"
            )
        return await self._grower.grow(
            read_task(prompt["extra_info"]["arpo_task"]),
            name=str(prompt["uid"]),
            step=int(trajectory["step"]),
            draw=(str(trajectory["sample_index"]), int(trajectory["rollout_n"]), str(bool(trajectory["validate"]))),
            settings=settings,
        )

    async def _post(self, tree: RolloutTree, prompt: dict[str, Any], validate: bool, posted: list[str]) -> None:
        """Post every rewarded leaf; none if there is nothing to compare. `posted` takes their keys."""
        leaves = leaves_of(tree)
        lost = len(tree.leaves) - len(leaves)
        if lost:
            logger.warning("prompt %s: %d of %d trajectories were lost", prompt["uid"], lost, len(tree.leaves))
        if len(leaves) < (1 if validate else min(2, len(tree.leaves))):
            return
        fields = {key: value for key, value in prompt.items() if key != "agent_name"}
        for leaf in leaves:
            posted.append(f"{prompt['uid']}_{leaf.index}_0")
            output = _output(leaf)
            if self._ships_trees and not validate and leaf is leaves[0]:
                output.extra_fields["arpo_tree"] = pickle.dumps(tree)
            await self._agent_loop_postprocess(output, validate, **fields, session_id=leaf.index)


def _output(leaf: Leaf) -> Any:
    return AgentLoopOutput(
        prompt_ids=leaf.prompt_ids,
        response_ids=leaf.response_ids,
        response_mask=leaf.response_mask,
        response_logprobs=leaf.response_logprobs,
        reward_score=leaf.reward_score,
        num_turns=leaf.num_turns,
        metrics=AgentLoopMetrics(tool_calls=leaf.tool_seconds),
        extra_fields=leaf.extra_fields(),
    )
