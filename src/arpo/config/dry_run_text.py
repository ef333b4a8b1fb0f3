"""A dry run in words: one block per part, figures lined up, mistakes last, where they are seen."""

from collections.abc import Iterator

from arpo.config.dry_run import DryRun
from arpo.config.dry_run_checks import Prompts
from arpo.config.dry_run_counts import USED, Batch, Costs, Load
from arpo.config.dry_run_memory import Memory, Serving

_NAME = 34


def lines(found: DryRun) -> Iterator[str]:
    """What the terminal shows."""
    yield f"{found.name}: a dry run; no weights were loaded, nothing was written"
    yield ""
    yield from (f"{name:<10}{text}" for name, text in _inputs(found))
    if found.batch is not None:
        yield from _batch(found.batch)
    if found.costs is not None and found.batch is not None:
        yield from _costs(found.costs, found.batch)
    if found.memory is not None:
        yield from _memory(found.memory)
    if found.serving is not None:
        yield from _serving(found.serving)
    yield ""
    yield from (f"note: {text}" for text in found.notes)
    yield from (f"not checked: {text}" for text in found.unchecked)
    yield from (f"mistake: {text}" for text in found.mistakes)
    yield _verdict(found)


def _verdict(found: DryRun) -> str:
    if found.mistakes:
        return f"Training would not start: {_many(len(found.mistakes), 'mistake')}."
    if found.unchecked:
        return "No mistake in what could be checked; training may still refuse the rest."
    return "Training would start."


def _inputs(found: DryRun) -> Iterator[tuple[str, str]]:
    tasks = "not known" if found.tasks is None else f"{found.tasks:,} for training"
    heldout = "" if found.heldout is None else f", {found.heldout:,} held out"
    left_out = found.prompts.left_out if found.prompts else 0
    yield "tasks", f"{tasks}{heldout}" + (f"; {left_out:,} left out, their prompts are too long" if left_out else "")
    if found.tools is not None:
        yield "tools", ", ".join(found.tools) or "none"
    yield "model", found.model
    yield "prompts", "not known" if found.prompts is None else _prompts(found.prompts)


def _prompts(prompts: Prompts) -> str:
    shown = ", ".join(f"{name} {size:,}" for name, size in prompts.tokens.items())
    return f"tokens: {shown}" + (f"; context {prompts.context:,}" if prompts.context is not None else "")


def _batch(batch: Batch) -> Iterator[str]:
    redrawn = f" (drawn anew up to {batch.rounds} times)" if batch.rounds > 1 else ""
    yield (
        f"{'a step':<10}{_many(batch.prompts, 'prompt')}{redrawn}, {_many(batch.trajectories, 'trajectory')}, "
        f"{_many(batch.updates, 'optimiser step')} of {_many(batch.mini_batch, 'prompt')}"
    )
    epochs = "" if batch.epochs is None else f", {batch.epochs:.2f} epochs"
    yield (
        f"{'the run':<10}{_many(batch.steps, 'step')}, {_many(batch.all_trajectories, 'trajectory')}, "
        f"{_many(batch.all_updates, 'optimiser step')}{epochs}"
    )


def _many(count: int, noun: str) -> str:
    plural = noun.removesuffix("y") + "ies" if noun.endswith("y") else noun + "s"
    return f"{count:,} {noun if count == 1 else plural}"


def _costs(costs: Costs, batch: Batch) -> Iterator[str]:
    yield ""
    yield f"{'':<{_NAME}}{'tokens sampled':>16}{'tool calls':>14}"
    yield _load("a step, half of the limits used", costs.expected)
    yield _load("  the same without branches", costs.independent)
    yield _load("a step, at the most", costs.largest)
    yield _load("the run, half of the limits used", costs.expected.times(batch.steps))
    opened = f"{costs.branches:.1f} branches and {costs.top_ups:.1f} top-ups a group"
    yield f"(half: {costs.tokens:,} tokens and {costs.calls} calls a trajectory, share {USED:g}; {opened})"


def _load(name: str, load: Load) -> str:
    return f"{name:<{_NAME}}{load.tokens:>16,.0f}{load.calls:>14,.0f}"


def _memory(memory: Memory) -> Iterator[str]:
    yield ""
    if memory.processes > 1:
        yield f"each of {memory.processes} processes, on a device of its own:"
    yield from (f"{part.name:<18}{_size(part.size):>12}  {part.what}" for part in memory.parts)
    known = "" if memory.available is None else f"of {_size(memory.available)}, "
    yield f"{'memory, in all':<18}{_size(memory.total):>12}  {known}{memory.device}"


def _serving(serving: Serving) -> Iterator[str]:
    yield ""
    yield f"each of {_many(serving.servers, 'server')}, on a device of its own or beside a process:"
    yield f"{'weights':<18}{_size(serving.weights):>12}  of the policy"
    yield (
        f"{'keys and values':<18}{_size(serving.most):>12}  at the most: {_many(serving.sequences, 'trajectory')} of "
        f"{serving.longest:,} tokens, {serving.token / 1024:,.0f} KiB a token"
    )


def _size(count: int) -> str:
    return f"{count / 2**30:,.1f} GiB" if count >= 2**30 else f"{count / 2**20:,.1f} MiB"
