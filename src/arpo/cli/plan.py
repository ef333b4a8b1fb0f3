"""`arpo plan`: what a step of training takes on given hardware, on paper and in simulation."""

import json as codec
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from arpo.cli.options import Configs, Options, is_override, resolve

if TYPE_CHECKING:
    from arpo.config.load import Resolved
    from arpo.config.schema import Config
    from arpo.plan.estimate import Ask, Plan
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

    gpus: Annotated[
        int | None, Parameter(help="Devices that train together and sample. Default: train.processes, or 1.")
    ] = None
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

    def ask(self, hardware: Hardware, processes: int) -> "Ask":
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
            gpus=processes if hardware.gpus is None else hardware.gpus,
            tensor_parallel=hardware.tensor_parallel,
            workers=self.workers,
            used=self.used,
            **{name: value for name, value in given.items() if value is not None},
        )


@Parameter(name="*")
@dataclass(frozen=True)
class Simulation:
    """The rollout in virtual time."""

    simulate: Annotated[bool, Parameter(negative="", help="Simulate the rollout, ours and lock-step rounds.")] = False
    sweep: Annotated[bool, Parameter(negative="", help="And what changes with workers, latency, batch, branches.")] = (
        False
    )
    spread: Annotated[float, Parameter(help="How much lengths and calls vary; 0: not at all.")] = 0.6
    repeat: Annotated[float, Parameter(help="Share of the calls that others of the group make, too.")] = 0.0
    figure: Annotated[Path | None, Parameter(help="Write an SVG of the sweep here.")] = None
    markdown: Annotated[Path | None, Parameter(help="Write the sweep's table here.")] = None

    @property
    def wanted(self) -> bool:
        return self.simulate or self.sweep or self.figure is not None or self.markdown is not None

    def run(self, found: "Plan", config: "Config", ask: "Ask", json: bool) -> int:
        """Simulate what was planned, and print it."""
        from arpo.plan.simulation.report import figure, lines, markdown
        from arpo.plan.simulation.sweep import pair, scene_of, sweep

        scene = scene_of(found, config, ask, spread=self.spread, repeat=self.repeat)
        alone = self.simulate and not (self.sweep or self.figure or self.markdown)
        pairs = [pair("as planned", scene)] if alone else list(sweep(scene, _say))
        if self.figure is not None:
            self.figure.write_text(figure(pairs, scene.mix))
        if self.markdown is not None:
            self.markdown.write_text("\n".join(markdown(pairs)) + "\n")
        print(codec.dumps([one.to_dict() for one in pairs], indent=2) if json else "\n".join(lines(scene, pairs)))
        return 0


def _check(options: Options, job: Job, json: bool) -> int:
    from dataclasses import asdict

    from arpo.plan.check import check, lines

    rows = check(options.model or "pocket", prompts=job.prompts or 4, group=(8, 16), max_tokens=400, steps=3, say=_say)
    found = [asdict(row) | {"ratio": row.ratio} for row in rows]
    print(codec.dumps(found, indent=2) if json else "\n".join(lines(rows)))
    return 0


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def plan(
    *config: Configs,
    options: Options | None = None,
    hardware: Hardware | None = None,
    job: Job | None = None,
    simulation: Simulation | None = None,
    check: Annotated[
        bool, Parameter(negative="", help="Predict steps of a packaged policy on this machine, and run them.")
    ] = False,
    json: Annotated[bool, Parameter(negative="", help="Everything as JSON.")] = False,
) -> int:
    """Estimate tokens, tool calls, memory and time of one step of training on given hardware.

    Without a configuration: the paper's settings, bfloat16, vLLM beside the trainer. The formulas stand in
    docs/scaling.md. Nothing is loaded and nothing is run. With --simulate or --sweep the rollout is run in virtual
    time: the real scheduler, a simulated engine, simulated tools.
    """
    from arpo.plan.estimate import plan as estimate
    from arpo.plan.text import lines

    hardware, job, simulation = hardware or Hardware(), job or Job(), simulation or Simulation()
    if check:
        return _check(options or Options(), job, json)
    resolved, has_tools = _resolved(config, options or Options(), job)
    ask = job.ask(hardware, resolved.config.train.processes or 1)
    device, use, wanted = hardware.device(), hardware.use(), simulation.wanted
    found = estimate(resolved.config, ask, device, use, has_tools=has_tools, with_memory=not wanted)
    if wanted:
        return simulation.run(found, resolved.config, ask, json)
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
