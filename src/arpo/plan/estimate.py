"""One step of training on given hardware: everything of `work` and `phases`, put together.

A plan is arithmetic. It loads nothing, and it knows neither how long trajectories will be nor which share of a peak a
program reaches: both are assumptions that can be given (`Ask`, `Use`), and the answer names them.
"""

from dataclasses import asdict, dataclass, field
from typing import Any

from arpo.config.dry_run_counts import USED
from arpo.config.dry_run_memory import Memory
from arpo.config.schema import Config
from arpo.errors import ConfigError
from arpo.plan.hardware import Device, Use
from arpo.plan.latency import DEFAULT, Mix, parse_mix
from arpo.plan.phases import (
    Decoding,
    Phase,
    Replica,
    Update,
    decoding,
    engine,
    path,
    publication,
    replica,
    tools,
    update,
)
from arpo.plan.shapes import Shape, shape_of
from arpo.plan.work import PROMPT, RESULT, Work, trajectory, with_share, work
from arpo.settings import Frozen

_WIDTH = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


class Ask(Frozen):
    """What is asked beside the configuration. `gpus` train together (FSDP2) and sample in `gpus / tensor_parallel`
    engines; `workers` run tools at once, over all tools. Trajectories use the share `used` of what the configuration
    allows, or sample `sampled` tokens and make `calls` calls; results have `result` tokens, prompts `prompt`.
    `branch_share`: a rule fires after this share of the results (None: as the dry run grows groups).
    """

    gpus: int = 1
    tensor_parallel: int = 1
    workers: int = 64
    tools: str = DEFAULT
    used: float = USED
    prompt: int = PROMPT
    sampled: int | None = None
    calls: int | None = None
    result: int = RESULT
    branch_share: float | None = None

    @property
    def mix(self) -> Mix:
        return parse_mix(self.tools)


@dataclass(frozen=True)
class Plan:
    """All that is known of one step. Seconds everywhere; `notes`: what would not work as it stands."""

    shape: Shape
    device: Device
    gpus: int
    replicas: int
    in_flight: int
    use: Use
    work: Work
    replica: Replica
    decoding: Decoding
    engine: Phase
    tools: Phase
    path: Phase
    update: Update
    publication: Phase
    memory: Memory | None
    notes: list[str] = field(default_factory=list)

    @property
    def rollout(self) -> tuple[float, float]:
        """At least the longest of engine, tools and one trajectory; at most one after the other."""
        three = (self.engine.seconds, self.tools.seconds, self.path.seconds)
        return max(three), sum(three)

    @property
    def limit(self) -> str:
        """Which of the three the rollout waits for."""
        return max((self.engine, self.tools, self.path), key=lambda phase: phase.seconds).name

    @property
    def step(self) -> tuple[float, float]:
        """One step of training, rollout and update one after the other."""
        rest = self.update.phase.seconds + self.publication.seconds
        return self.rollout[0] + rest, self.rollout[1] + rest

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        found = asdict(self)
        found["shape"]["parameters"] = self.shape.parameters
        found["work"] |= {"sharing": self.work.sharing, "trajectories": self.work.trajectories}
        found["update"]["saved"] = self.update.saved
        if self.memory is not None:
            found["memory"]["total"] = self.memory.total
        ranges = {"rollout_s": self.rollout, "rollout_limit": self.limit, "step_s": self.step}
        return found | ranges | {"checked": "not on a GPU"}


def plan(
    config: Config, ask: Ask, device: Device, use: Use, *, has_tools: bool = True, with_memory: bool = True
) -> Plan:
    """One step under `config`. `with_memory`: builds the model's shapes, which takes seconds. Raises ConfigError where
    the question makes no sense.
    """
    _check(ask)
    shape, width = shape_of(config.model.path), _WIDTH[config.model.dtype]
    work_, replicas = step_work(config, ask, has_tools=has_tools), ask.gpus // ask.tensor_parallel
    one = replica(shape, device, use, devices=ask.tensor_parallel, width=width)
    in_flight, latency = config.rollout.concurrency * (config.train.processes or 1), ask.mix.mean
    now = decoding(work_, one, replicas, in_flight)
    memory = memory_of(config, shape, work_.trajectory.prompt, ask.gpus) if with_memory else None
    updates = config.train.prompts // (config.train.mini_batch or config.train.prompts)
    return Plan(
        shape=shape,
        device=device,
        gpus=ask.gpus,
        replicas=replicas,
        in_flight=min(in_flight, config.train.prompts),
        use=use,
        work=work_,
        replica=one,
        decoding=now,
        engine=engine(work_, one, replicas, now),
        tools=tools(work_, latency, ask.workers),
        path=path(work_, latency, now),
        update=update(
            work_,
            shape,
            device,
            use,
            devices=ask.gpus,
            micro_tokens=config.optim.micro_tokens,
            updates=updates,
            checkpointing=config.optim.gradient_checkpointing,
            forwards=int(config.loss.old == "trainer") + int(config.loss.kl > 0 or config.credit.needs_reference),
            width=width,
        ),
        publication=publication(shape, device, use, width),
        memory=memory,
        notes=_notes(config, ask, device, use, one, memory),
    )


def step_work(config: Config, ask: Ask, *, has_tools: bool = True) -> Work:
    """The tokens and calls of a step under `config`."""
    mean = trajectory(
        config.rollout,
        ask.used,
        has_tools=has_tools,
        prompt=ask.prompt,
        result=ask.result,
        sampled=ask.sampled,
        calls=ask.calls,
    )
    return work(with_share(config.rollout, ask.branch_share), mean, config.train.prompts, config.entropy.window)


def _check(ask: Ask) -> None:
    if ask.gpus < 1 or ask.tensor_parallel < 1 or ask.gpus % ask.tensor_parallel:
        raise ConfigError(f"--gpus {ask.gpus}: a multiple of --tensor-parallel {ask.tensor_parallel} is needed")
    if ask.workers < 1:
        raise ConfigError(f"--workers {ask.workers}: at least one runs the tools")
    if not 0 < ask.used <= 1:
        raise ConfigError(f"--used {ask.used:g}: a share of the limits, between 0 and 1")


def memory_of(config: Config, shape: Shape, prompt: int, gpus: int) -> Memory | None:
    """Of one of the devices, as the dry run counts it: shares of weights, gradients and optimiser under FSDP2."""
    from arpo.config.dry_run_memory import estimate

    return estimate(config, shape.module(config.model.dtype), prompt, processes=gpus if gpus > 1 else None)


def _notes(config: Config, ask: Ask, device: Device, use: Use, one: Replica, memory: Memory | None) -> list[str]:
    notes = []
    longest = ask.prompt + config.rollout.max_tokens
    if one.room < longest:
        notes.append(
            f"no room: {use.engine:.0%} of {device.name}'s memory, less the weights, holds {max(one.room, 0):,} tokens "
            f"of keys and values, and one trajectory takes up to {longest:,}; raise --tensor-parallel or --engine-share"
        )
    budget = device.memory * (1 - use.engine)
    own = 0 if memory is None else sum(part.size for part in memory.parts if part.name != "engine's weights")
    if own > budget:
        notes.append(
            f"training takes {own / 1e9:,.0f} GB of a device that has {budget / 1e9:,.0f} GB beside the engine"
        )
    return notes
