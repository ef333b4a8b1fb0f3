"""A plan in words: what a step holds, how long its phases take and what limits each, and how far to trust that."""

from collections.abc import Iterator

from arpo.plan.estimate import Plan
from arpo.plan.phases import Phase

_NAME = 26


def lines(plan: Plan) -> Iterator[str]:
    """What the terminal shows."""
    yield from _head(plan)
    yield ""
    yield from _work(plan)
    yield ""
    yield from _phases(plan)
    if plan.memory is not None:
        yield ""
        yield from _memory(plan)
    yield ""
    yield from (f"note: {text}" for text in plan.notes)
    yield "not checked on a GPU: shares of the peaks are assumed (docs/scaling.md), times may be off by a factor of two"


def _head(plan: Plan) -> Iterator[str]:
    shape, device = plan.shape, plan.device
    yield f"{shape.name}: {shape.parameters:,} parameters ({shape.source})"
    yield (
        f"{plan.gpus} x {device.name}: {device.flops / 1e12:,.4g} TFLOP/s, {device.bandwidth / 1e12:.3g} TB/s, "
        f"{device.memory / 1e9:,.0f} GB, link {device.link / 1e9:,.0f} GB/s ({device.source})"
    )


def _work(plan: Plan) -> Iterator[str]:
    work, mean = plan.work, plan.work.trajectory
    yield _line(
        "a trajectory",
        f"{mean.prompt:,} + {mean.response:,} tokens, {mean.sampled:,} of them sampled, {mean.calls} calls",
    )
    yield _line(
        "a step",
        f"{work.prompts} prompts x {work.group}, {work.branches:.1f} branches and {work.top_ups:.1f} top-ups a group",
    )
    yield _line("tokens sampled", f"{work.sampled:,.0f}")
    yield _line("tool calls", f"{work.calls:,.0f}")
    yield _line("tokens, each once", f"{work.unique:,.0f} of {work.flat:,.0f} (rho {work.sharing:.2f})")
    held = work.unique * plan.replica.kv
    room = max(plan.replica.room, 0) * plan.replica.kv * plan.replicas
    yield _line("keys and values", f"{held / 1e9:,.0f} GB for all of it; room for {room / 1e9:,.0f} GB")


def _phases(plan: Plan) -> Iterator[str]:
    now = plan.decoding
    yield f"{'':<{_NAME}}{'seconds':>10}  limited by"
    yield _phase(plan.engine, f"{now.step_limit}; {now.rows:,.0f} rows each ({now.limit}), {_time(now.step)} a step")
    yield _phase(plan.tools)
    yield _phase(plan.path)
    low, high = plan.rollout
    yield f"{'rollout':<{_NAME}}{_span(low, high):>10}  {plan.limit}; the second if nothing overlaps"
    update = plan.update
    shown = f"{update.phase.limit}; {update.operations / 1e15:,.1f} PFLOP, {update.saved:.2f} times as many unshared"
    yield _phase(update.phase, shown)
    yield _phase(plan.publication)
    low, high = plan.step
    yield f"{'a step':<{_NAME}}{_span(low, high):>10}"


def _phase(phase: Phase, limit: str | None = None) -> str:
    return f"{phase.name:<{_NAME}}{_seconds(phase.seconds):>10}  {limit or phase.limit}"


def _memory(plan: Plan) -> Iterator[str]:
    memory = plan.memory
    if memory is None:
        return
    for part in memory.parts:
        yield f"{part.name:<{_NAME}}{part.size / 1e9:>7,.1f} GB  {part.what}"
    yield f"{'memory, in all':<{_NAME}}{memory.total / 1e9:>7,.1f} GB  of {plan.device.memory / 1e9:,.0f} GB"


def _line(name: str, text: str) -> str:
    return f"{name:<{_NAME}}{text}"


def _span(low: float, high: float) -> str:
    return f"{_seconds(low)}-{_seconds(high)}"


def _seconds(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _time(value: float) -> str:
    return f"{value * 1e3:.3g} ms"
