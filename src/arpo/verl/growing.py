"""The parts of ours that live in a worker of verl's: dialect, tools, scorer, and an engine over its client.

They are those of `arpo train`, built by the same functions from the same configuration; only weights and servers are
verl's. Nothing here imports verl or Ray, so that it can be read and tested without.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from arpo.config.schema import Config
from arpo.config.toolbox import build_toolbox
from arpo.config.wire import lend_policy, refuse_unbacked_vocabulary
from arpo.evaluate.run import sampled
from arpo.protocol.registry import build as build_dialect
from arpo.reward.scorer import Scorer, deciders
from arpo.rollout.agent import Agent
from arpo.rollout.scheduler import SeedParts, check, rollout, unforkable
from arpo.rollout.settings import RolloutSettings
from arpo.task import Task
from arpo.tree import RolloutTree
from arpo.verl.engine import VerlEngine


@dataclass(frozen=True)
class Sampler:
    """What is verl's: its client and tokenizer, and what is known of its servers. `top_k`: 0 for sampled log-probs."""

    client: Any
    tokenizer: Any
    vocab_size: int
    max_context: int
    top_k: int = 0
    seeded: bool = False


class Grower:
    """Grows trees under one configuration. `await ready()` before the first."""

    def __init__(self, config: Config, sampler: Sampler) -> None:
        """Raises ToolSetupError for a tool that cannot be built, ConfigError for what does not fit together."""
        self.config = config
        decided, toolbox = deciders(config.reward), build_toolbox(config)
        refuse_unbacked_vocabulary(config.model.path, sampler.tokenizer, toolbox.names)
        dialect = build_dialect(config.protocol, sampler.tokenizer, toolbox.tools)
        self._engine = VerlEngine(
            sampler.client,
            sampler.tokenizer,
            vocab_size=sampler.vocab_size,
            max_context=sampler.max_context,
            top_k=sampler.top_k,
            seeded=sampler.seeded,
        )
        lend_policy(toolbox, self._engine, sampler.tokenizer, config.model.path)
        self._agent = Agent(self._engine, dialect, toolbox, sampler.vocab_size)
        self._scorer = Scorer(config.reward, dialect, decided)

    async def ready(self) -> None:
        """What would fail every prompt fails here: ConfigError for rules that need more than this engine gives,
        EngineError for a judge that does not answer."""
        check(
            self.config.rollout,
            self._engine.capabilities,
            entropy=self.config.entropy,
            vocab_size=self._agent.vocab_size,
            tools=self._agent.toolbox.names,
            unforkable=unforkable(self._agent.toolbox),
        )
        await self._scorer.check()

    def validating(self, samples: int, temperature: float, top_p: float) -> RolloutSettings:
        """Independent trajectories under the limits of training."""
        return sampled(self.config.rollout, samples, temperature, top_p)

    async def grow(
        self, task: Task, *, name: str, step: int, draw: Sequence[str | int], settings: RolloutSettings | None = None
    ) -> RolloutTree:
        """The task's tree, scored. `name`: its requests' id; `draw`: tells it from others of the same step.

        Raises EngineDownError if verl's server is gone, DataError if the prompt leaves no room.
        """
        seeds: SeedParts = (self.config.run.seed, "verl", step, *draw)
        agent = replace(self._agent, engine=self._engine.of(name, max(step - 1, 0)))
        tree = await rollout(
            task,
            agent,
            settings=self.config.rollout if settings is None else settings,
            entropy=self.config.entropy,
            seed_parts=seeds,
        )
        return await self._scorer.scored(tree, task)
