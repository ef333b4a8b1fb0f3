"""Rollouts of tasks: start-up checks, one group per task, many tasks at once.

What happens inside a group is in `group`. An exception in any trajectory cancels everything else that was started here
and is raised as it is.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

from arpo.engine.base import Capabilities
from arpo.errors import ConfigError
from arpo.rollout.agent import Agent
from arpo.rollout.branching import needs_entropy, needs_window
from arpo.rollout.group import Group
from arpo.rollout.settings import EntropySettings, NoBranching, RolloutSettings
from arpo.task import Task
from arpo.tools.sessions import cannot_fork
from arpo.tools.toolbox import ToolBox
from arpo.tree import RolloutTree

SeedParts = tuple[str | int, ...]
Result = TypeVar("Result")


def check(
    settings: RolloutSettings,
    capabilities: Capabilities,
    *,
    entropy: EntropySettings | None = None,
    vocab_size: int | None = None,
    tools: Sequence[str] | None = None,
    unforkable: Sequence[str] = (),
) -> None:
    """Refuse what could not work before anything is sampled. Raises ConfigError naming the key and the remedy."""
    rule = settings.branching
    if vocab_size is not None and vocab_size < 2:
        raise ConfigError(f"a vocabulary of {vocab_size} tokens has no entropy; check the model and its tokenizer")
    if not settings.may_branch or isinstance(rule, NoBranching):
        return
    if needs_entropy(rule) and capabilities.entropy == "none":
        raise ConfigError(
            f'rollout.branching.type = "{rule.type}" needs entropies and the engine reports none; use an engine that '
            'reports them, or set rollout.branching.type = "none" and rollout.initial = rollout.total'
        )
    if needs_window(rule) and capabilities.entropy == "sampled":
        raise ConfigError(
            f'rollout.branching.at = "{rule.at}" reads the entropy of one token, and the engine estimates entropies '
            "from the sampled tokens alone, which takes a window to mean something; ask the engine for top_k "
            'log-probs, or set rollout.branching.at = "after_window"'
        )
    if rule.lookahead and not needs_entropy(rule):
        raise ConfigError(
            f'rollout.branching.type = "{rule.type}" with entropy_weight = 0 ignores entropy, so lookahead = true '
            "would throw tokens away for nothing; set rollout.branching.lookahead = false"
        )
    if tools is not None and not tools:
        raise ConfigError(
            f"without tools no branch can open, so the {settings.total - settings.initial} trajectories beyond "
            "rollout.initial are unreachable; configure tools, or set rollout.initial = rollout.total"
        )
    _refuse_unforkable(unforkable)
    if entropy is not None and rule.at == "state" and not rule.lookahead and entropy.min_tokens > 1:
        raise ConfigError(
            f'rollout.branching.at = "state" measures one token, so entropy.min_tokens = {entropy.min_tokens} is '
            "never met; set it to 1, or set rollout.branching.lookahead = true"
        )


def _refuse_unforkable(tools: Sequence[str]) -> None:
    if tools:
        raise ConfigError(
            f'the state behind {", ".join(tools)} cannot be forked (fork = "refuse"), so no branch can open; set '
            'rollout.branching.type = "none" and rollout.initial = rollout.total, or let it be replayed or copied'
        )


def unforkable(toolbox: ToolBox) -> list[str]:
    """The tools whose state does not let a trajectory branch."""
    return [tool.name for tool in toolbox.tools if cannot_fork(tool)]


async def rollout(
    task: Task,
    agent: Agent,
    *,
    settings: RolloutSettings,
    entropy: EntropySettings,
    seed_parts: SeedParts,
) -> RolloutTree:
    """The group of one task, validated: exactly `settings.total` trajectories.

    Raises DataError if the prompt leaves no room in the engine's context, ConfigError as `check` does.
    """
    check(
        settings,
        agent.engine.capabilities,
        entropy=entropy,
        vocab_size=agent.vocab_size,
        tools=agent.toolbox.names,
        unforkable=unforkable(agent.toolbox),
    )
    group = Group(task, agent, settings, entropy, seed_parts)
    return (await group.run()).validate(settings.total)


async def rollout_many(
    tasks: Sequence[Task],
    agent: Agent,
    *,
    settings: RolloutSettings,
    entropy: EntropySettings,
    seed_parts: SeedParts,
    deal: Callable[[Sequence[Any]], Sequence[Any]] = lambda whole: whole,
) -> list[RolloutTree]:
    """One tree per task, in order, `settings.concurrency` prompts in flight at once.

    A task that stands in the list more than once gets other seeds each time. `deal` picks those that are rolled out
    here, where several processes share the list; the seeds are the same wherever that is.
    """
    gate = asyncio.Semaphore(settings.concurrency)

    async def one(task: Task, seeds: SeedParts) -> RolloutTree:
        async with gate:
            return await rollout(task, agent, settings=settings, entropy=entropy, seed_parts=seeds)

    return await together(one(task, seeds) for task, seeds in deal(list(_seeded(tasks, seed_parts))))


def _seeded(tasks: Sequence[Task], seed_parts: SeedParts) -> Iterable[tuple[Task, SeedParts]]:
    met: Counter[str] = Counter()
    for task in tasks:
        again = met[task.id]
        met[task.id] += 1
        yield task, (*seed_parts, "again", again) if again else seed_parts


async def together(coroutines: Iterable[Coroutine[Any, Any, Result]]) -> list[Result]:
    """All results in order; the first failure cancels the rest and is raised itself."""
    try:
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(coroutine) for coroutine in coroutines]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in running]
