"""Rollouts of SmolLM2 on the factbook: examples/smollm2-factbook.toml with worked examples in the prompt.

The model has 135 M parameters and never saw our tags; after two exchanges that show a call it makes calls of its own.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from arpo.config.load import load
from arpo.config.wire import build_tasks, build_toolbox
from arpo.protocol.registry import build as build_dialect
from arpo.rollout.agent import Agent
from arpo.rollout.settings import RolloutSettings
from arpo.task import Message, Task

EXAMPLE = Path(__file__).parents[2] / "examples" / "smollm2-factbook.toml"
SHOWN = (
    Message("user", "What is the capital of Kenya?"),
    Message("assistant", "<search> capital of Kenya </search>"),
    Message("user", "Tell me the area of Norway."),
    Message("assistant", "<search> area of Norway </search>"),
)


def config() -> Any:
    return load([EXAMPLE], environ={}).config


def factbook_tasks(count: int) -> list[Task]:
    return [replace(task, messages=SHOWN + task.messages) for task in build_tasks(config())[:count]]


def agent_of(engine: Any, tokenizer: Any, vocab_size: int) -> Agent:
    settings = config()
    toolbox = build_toolbox(settings)
    return Agent(engine, build_dialect(settings.protocol, tokenizer, toolbox.tools), toolbox, vocab_size)


def rollout_settings(**changes: Any) -> RolloutSettings:
    """ARPO as in the example (the entropy rule decides), three of six trajectories from the prompt."""
    small = {"total": 6, "initial": 3, "max_tokens": 64, "temperature": 0.7}
    return config().rollout.model_copy(update=small | changes)
