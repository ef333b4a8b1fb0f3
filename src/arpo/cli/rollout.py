"""`arpo rollout`: one question's tree, in the terminal or for a program."""

import asyncio
import json as codec
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.console import Console

from arpo.cli.options import Configs, Options, resolve

if TYPE_CHECKING:
    from arpo.tree import RolloutTree


def rollout(
    *config: Configs,
    question: Annotated[str, Parameter(name=["--question", "-Q"], help="What to ask the policy.")],
    answer: Annotated[
        tuple[str, ...], Parameter(negative="", help="A right answer; without one nothing is rewarded.")
    ] = (),
    agent: Annotated[
        str | None, Parameter(help="Let a baseline answer (docs/agents.md), evaluation.samples times.")
    ] = None,
    options: Options | None = None,
    json: Annotated[bool, Parameter(negative="", help="The tree as JSON.")] = False,
) -> int:
    """Ask the policy one question and print the tree of trajectories."""
    resolved = resolve(config, options or Options())

    from arpo.config.asking import asked
    from arpo.config.wire import build_policy, grow
    from arpo.evaluate.agents.registry import build as build_method
    from arpo.task import ask
    from arpo.view.terminal import render_tree, tree_json

    if agent is not None:
        build_method(agent)  # a wrong name is said before a model is loaded
    policy, task = build_policy(resolved.config), ask(question, *answer)

    async def run() -> "RolloutTree":
        async with policy:
            if agent is not None:
                return (await asked(resolved.config, policy, task, agent)).tree
            return await grow(resolved.config, policy, task)

    tree = asyncio.run(run())
    if json:
        print(codec.dumps(tree_json(tree, policy.agent.dialect.decode, task), indent=2))
    else:
        Console().print(render_tree(tree, policy.agent.dialect.decode, task))
    return 0
