"""`arpo plan`: what a step of training takes on given hardware, on paper and in simulation."""

import json as codec
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from arpo.cli.options import Configs, Options, is_override, resolve

if TYPE_CHECKING:
    from arpo.config.load import Resolved
    from arpo.plan.estimate import Ask
    from arpo.plan.hardware import Device, Use

_BASE = (
    "model.dtype=bfloat16",
    "engine.type=vllm",
    "optim.gradient_checkpointing=true",
    "rollout.concurrency=128",
)
"""What a plan without a configuration takes besides the paper's settings."""


@Parameter(name="*")
@dataclass(frozen=True)
class Hardware:
    """Devices, by name or by number."""

    gpus: Annotated[int, Parameter(help="Devices that train together and sample.")] = 1
    hardware: Annotated[
        str,
        Parameter(help="h100, h200, b200, a100, l40s, 4090; cpu: this machine; or any name with its numbers."),
    ] = "h100"
    tensor_parallel: Annotated[int, Parameter(help="Devices that hold one copy of the sampling model.")] = 1
    flops: Annotated[float | None, Parameter(help="Operations per second of one device.")] = None
    bandwidth: Annotated[float | None, Parameter(help="Bytes per second of its memory.")] = None
    memory: Annotated[float | None, Parameter(help="Bytes of its memory.")] = None
    link: Annotated[float | None, Parameter(help="Bytes per second to another device.")] = None
    update_share: Annotated[float, Parameter(help="Share of the operations that an update reaches.")] = 0.4
    prefill_share: Annotated[float, Parameter(help="Share of the operations that a prefill reaches.")] = 0.5
    decode_share: Annotated[float, Parameter(help="Share of the bandwidth that decoding reaches.")] = 0.7
    link_share: Annotated[float, Parameter(help="Share of the link that a transfer reaches.")] = 0.7
    engine_share: Annotated[float, Parameter(help="Share of the memory that the sampling engine has.")] = 0.5
    step_overhead: Annotated[float, Parameter(help="Seconds of a decoding step beside reading and computing.")] = 0.002
    rows: Annotated[int, Parameter(help="Sequences that one engine runs at once at the most.")] = 256

    def device(self) -> "Device":
        from arpo.plan.hardware import device

        return device(self.hardware, flops=self.flops, bandwidth=self.bandwidth, memory=self.memory, link=self.link)

    def use(self) -> "Use":
        from arpo.plan.hardware import Use

        return Use(
            update=self.update_share,
            prefill=self.prefill_share,
            decode=self.decode_share,
            link=self.link_share,
            engine=self.engine_share,
            step=self.step_overhead,
            rows=self.rows,
        )


@Parameter(name="*")
@dataclass(frozen=True)
class Job:
    """What the policy does, as far as the configuration does not say it."""

    prompts: Annotated[int | None, Parameter(help="Prompts of a step (train.prompts).")] = None
    workers: Annotated[int, Parameter(help="Tool calls that run at once, over all tools.")] = 64
    tools: Annotated[
        str | None,
        Parameter(help="name:share of index, cache, python, live, browser, or name=median/p95:share; comma-separated."),
    ] = None
    used: Annotated[float, Parameter(help="Share of tokens and calls allowed that a trajectory uses.")] = 0.5
    prompt_tokens: Annotated[int | None, Parameter(help="Tokens of a prompt.")] = None
    sampled: Annotated[int | None, Parameter(help="Tokens that a trajectory samples, in place of --used.")] = None
    calls: Annotated[int | None, Parameter(help="Calls that it makes, in place of --used.")] = None
    result_tokens: Annotated[int | None, Parameter(help="Tokens of a tool result.")] = None
    branch_share: Annotated[float | None, Parameter(help="Share of the results after which the rule fires.")] = None

    def ask(self, hardware: Hardware) -> "Ask":
        from arpo.plan.estimate import Ask

        given = {
            "tools": self.tools,
            "prompt": self.prompt_tokens,
            "sampled": self.sampled,
            "calls": self.calls,
            "result": self.result_tokens,
            "branch_share": self.branch_share,
        }
        return Ask(
            gpus=hardware.gpus,
            tensor_parallel=hardware.tensor_parallel,
            workers=self.workers,
            used=self.used,
            **{name: value for name, value in given.items() if value is not None},
        )


def plan(
    *config: Configs,
    options: Options | None = None,
    hardware: Hardware | None = None,
    job: Job | None = None,
    json: Annotated[bool, Parameter(negative="", help="Everything as JSON.")] = False,
) -> int:
    """Estimate tokens, tool calls, memory and time of one step of training on given hardware.

    Without a configuration: the paper's settings, bfloat16, vLLM beside the trainer. The formulas stand in
    docs/scaling.md. Nothing is loaded and nothing is run.
    """
    from arpo.plan.estimate import plan as estimate
    from arpo.plan.text import lines

    hardware, job = hardware or Hardware(), job or Job()
    resolved, has_tools = _resolved(config, options or Options(), job)
    found = estimate(resolved.config, job.ask(hardware), hardware.device(), hardware.use(), has_tools=has_tools)
    print(codec.dumps(found.to_dict(), indent=2) if json else "\n".join(lines(found)))
    return 0


def _resolved(config: tuple[str, ...], options: Options, job: Job) -> "tuple[Resolved, bool]":
    """The configuration, and whether there are tools: a plan without a file has them."""
    from dataclasses import replace

    more = [] if job.prompts is None else [f"train.prompts={job.prompts}"]
    if any(not is_override(one) for one in config):
        resolved = resolve(config, options, *more)
        return resolved, bool(resolved.config.tools)
    model = options.model or "7B"
    options = replace(options, preset=options.preset or "paper", model=model)
    return resolve([*_BASE, *config], options, *more), True
