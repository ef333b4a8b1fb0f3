"""What a job on verl reads, made ready: tasks that fit, and the length of the longest prompt.

Everything that `arpo train` would refuse before its first step is refused here, with the same checks: tools that
cannot be built, prompts that offer others, branching rules that need better entropies than verl's server gives.
Nothing is written; `Ready.write` does that.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arpo.config.schema import Config
from arpo.engine.base import Capabilities
from arpo.errors import ConfigError, DataError
from arpo.task import Task
from arpo.verl.dataset import write_rows
from arpo.verl.overrides import Place
from arpo.verl.sampler import wants_top_k


@dataclass(frozen=True, slots=True)
class Ready:
    """Tasks as verl will see them. `left_out`: training tasks with longer prompts than `data.max_prompt_tokens`."""

    tasks: Sequence[Task]
    heldout: Sequence[Task]
    left_out: int
    longest_prompt: int

    def place(self, folder: Path, *, gpus: int, nodes: int, cpus: int | None) -> Place:
        """Where the files go: all of them lie in `folder`."""
        heldout = folder / "heldout.parquet" if self.heldout else None
        return Place(folder, folder / "train.parquet", heldout, self.longest_prompt, gpus, nodes, cpus)

    def write(self, place: Place) -> None:
        """Write the Parquet files, whole or not at all."""
        write_rows(place.train, self.tasks, "train")
        if place.heldout is not None:
            write_rows(place.heldout, self.heldout, "heldout")


def prepare(config: Config) -> Ready:
    """Read the tasks and encode every prompt. Raises what training would raise."""
    from arpo.config.toolbox import build_toolbox
    from arpo.config.wire import build_heldout, build_tasks, no_progress_bars, refuse_unbacked_prompts

    no_progress_bars()
    tasks = build_tasks(config)
    heldout = build_heldout(config)[: config.train.eval_tasks] if config.train.eval_every is not None else []
    toolbox = build_toolbox(config)
    try:
        refuse_unbacked_prompts([*tasks, *heldout], toolbox.names)
        return _fitted(config, tasks, heldout, toolbox)
    finally:
        asyncio.run(toolbox.close())


def _fitted(config: Config, tasks: Sequence[Task], heldout: Sequence[Task], toolbox: Any) -> Ready:
    from arpo.config.dry_run_checks import check_rollout, dialect_of
    from arpo.config.wire import fitting
    from arpo.engine.models import load_tokenizer

    tokenizer, vocab_size = load_tokenizer(config.model.path)
    kind = "topk" if wants_top_k(config) else "sampled"
    check_rollout(config, Capabilities(kind, weight_update=True), toolbox, vocab_size)
    dialect = dialect_of(config, tokenizer, toolbox)
    kept = fitting(tasks, config, dialect)
    _enough(config, len(kept))
    longest = max(len(dialect.prompt(task)) for task in [*kept, *heldout])
    _fits(config, longest)
    return Ready(kept, heldout, len(tasks) - len(kept), longest)


def _enough(config: Config, tasks: int) -> None:
    if tasks < config.train.prompts:
        raise DataError(
            f"{tasks} training tasks are fewer than train.prompts = {config.train.prompts}, and verl takes no task "
            "twice in a step; lower train.prompts, or give more tasks"
        )


def _fits(config: Config, longest: int) -> None:
    context = config.engine.max_context
    if context is not None and longest >= context:
        raise ConfigError(
            f"the longest prompt has {longest} tokens, which leaves nothing of engine.max_context = {context}; raise "
            "it, or set data.max_prompt_tokens"
        )
