"""From the name of a model to what a benchmark of rollouts measures: the demo's configuration, at another size."""

import asyncio
import importlib.resources
from collections.abc import Iterator
from contextlib import contextmanager

from arpo.bench.presets import parse_group
from arpo.bench.rollout_arms import Subject
from arpo.bench.rollout_presets import Size
from arpo.bench.rollout_sentences import SentenceDialect
from arpo.config.load import load
from arpo.config.schema import Config
from arpo.config.wire import build_policy
from arpo.data.factbook.questions import make_tasks
from arpo.engine.settings import LocalSettings
from arpo.errors import ConfigError
from arpo.tools.sandbox.settings import PythonSettings


def build_subject(
    model: str, size: Size, *, tasks: int, device: str = "auto", dtype: str = "float32", overrides: tuple[str, ...] = ()
) -> Subject:
    """The policy `model` on factbook questions with the search and the Python tool, as the demo has them.

    A policy that was not taught the tags has its sentences searched for. `overrides`: further ones. Raises ArpoError
    as `build_policy` does.
    """
    initial, total = parse_group(size.group)
    changes = {
        "model.path": model,
        "model.device": device,
        "model.dtype": dtype,
        "rollout.initial": initial,
        "rollout.total": total,
        "rollout.max_tokens": size.max_tokens,
        "rollout.max_calls": size.max_calls,
    }
    config = _demo(*(f"{key}={value}" for key, value in changes.items()), *overrides)
    if not isinstance(config.engine, LocalSettings):
        raise ConfigError(f'engine.type = "{config.engine.type}": the benchmark measures the local engine')
    questions = make_tasks("train", tasks, config.data.seed if config.data.type == "factbook" else 0)
    policy = build_policy(config, questions)
    dialect = policy.agent.dialect
    taught = policy.tokenizer.init_kwargs.get("arpo_style") == "compact"
    return Subject(
        name=model,
        model=policy.model,
        tokenizer=policy.tokenizer,
        dialect=dialect if taught else SentenceDialect(dialect),
        toolbox=policy.agent.toolbox,
        tasks=questions,
        rollout=config.rollout,
        entropy=config.entropy,
        engine=config.engine,
    )


@contextmanager
def opened_subject(model: str, size: Size, *, tasks: int, device: str, dtype: str) -> Iterator[Subject]:
    """`build_subject`, whose tools are closed in the end."""
    subject = build_subject(model, size, tasks=tasks, device=device, dtype=dtype)
    try:
        yield subject
    finally:
        asyncio.run(subject.toolbox.close())


def _demo(*changes: str) -> Config:
    """The demo's configuration with `changes`, and Python in a tenth of a millisecond: tools are to take what `--tools`
    says, and sandboxes would compete with the engine for the cores."""
    with importlib.resources.as_file(importlib.resources.files("arpo") / "assets" / "demo.toml") as path:
        config = load([path], changes, environ={}).config
    quick = PythonSettings(backend="monty")
    tools = tuple(quick if isinstance(tool, PythonSettings) else tool for tool in config.tools)
    return config.model_copy(update={"tools": tools})
