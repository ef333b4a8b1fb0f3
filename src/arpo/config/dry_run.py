"""`arpo train --dry-run`: everything that training would do up to its first step, but for the weights.

Tasks are read, tools built, the tokenizer loaded and every prompt encoded; the model stands on torch's meta device, as
shapes. Whatever training would refuse is a mistake here, and all mistakes are told at once, not the first alone. What
cannot be looked at from here (a model on a hub that does not answer, a server) is listed as not checked, and the rest
is checked all the same.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from arpo.config.dry_run_checks import (
    Prompts,
    capabilities_of,
    check_learner,
    check_rollout,
    check_turns,
    dialect_of,
    prompts_of,
)
from arpo.config.dry_run_counts import Batch, Costs, batch, costs
from arpo.config.dry_run_memory import Memory, Serving, estimate, serving
from arpo.config.load import Resolved
from arpo.config.schema import Config
from arpo.config.tinker import is_remote
from arpo.engine.base import Capabilities
from arpo.engine.settings import OpenAISettings, TinkerSettings
from arpo.errors import ArpoError
from arpo.task import Task
from arpo.tools.toolbox import ToolBox

MISTAKE, INCOMPLETE = 2, 1
"""Exit codes: training would refuse this; not everything could be checked from here."""
_Value = TypeVar("_Value")


@dataclass(slots=True)
class DryRun:
    """What was found. None: not known, for a reason that stands in `mistakes` or `unchecked`."""

    name: str
    model: str
    tasks: int | None = None
    heldout: int | None = None
    tools: tuple[str, ...] | None = None
    prompts: Prompts | None = None
    batch: Batch | None = None
    costs: Costs | None = None
    memory: Memory | None = None
    serving: Serving | None = None
    mistakes: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        return MISTAKE if self.mistakes else INCOMPLETE if self.unchecked else 0

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        found = asdict(self)
        if self.memory is not None:
            found["memory"]["total"] = self.memory.total
        return found | {"exit_code": self.exit_code}


def examine(resolved: Resolved) -> DryRun:
    """Look at everything that a training run under this configuration needs. Nothing is written."""
    config = resolved.config
    found = DryRun(config.run.name, config.model.path)
    look = _Look(config, found)
    look.attempt(lambda: _folder(resolved))
    look.attempt(lambda: _processes(config))
    tasks = look.tasks()
    toolbox = look.toolbox(tasks)
    try:
        look.policy(tasks or [], toolbox)
    finally:
        if toolbox is not None:
            asyncio.run(toolbox.close())
    kept = None if tasks is None else len(tasks) - (found.prompts.left_out if found.prompts else 0)
    found.batch = batch(config.train, config.rollout, kept)
    room = found.prompts.room if found.prompts else config.rollout.max_tokens
    found.costs = costs(config.train, config.rollout, config.entropy.window, has_tools=bool(config.tools), room=room)
    _remark(config, found)
    return found


def _processes(config: Config) -> None:
    from arpo.config.processes import check_share

    if config.train.processes is not None:
        check_share(config, config.train.processes)


def _folder(resolved: Resolved) -> None:
    from arpo.train.runfolder import check_folder

    run = resolved.config.run
    check_folder(Path(run.out) / run.name, resolved.table(), resume=run.resume, overwrite=run.overwrite)


class _Look:
    """One part after the other; a part that fails takes only those with it that need it."""

    def __init__(self, config: Config, found: DryRun) -> None:
        self.config, self.found = config, found

    def attempt(self, part: Callable[[], _Value]) -> _Value | None:
        """What `part` gives; None if it raised what training would raise, which then is a mistake."""
        try:
            return part()
        except ArpoError as error:
            self.found.mistakes.append(str(error))
            return None

    def tasks(self) -> list[Task] | None:
        """Training tasks. Held-out ones are read where training would."""
        from arpo.config.wire import build_heldout, build_tasks

        tasks = self.attempt(lambda: build_tasks(self.config))
        if tasks is not None and not tasks:
            self.found.mistakes.append("no training tasks: check data.* in the config")
        self.found.tasks = None if tasks is None else len(tasks)
        if self.config.train.eval_every is not None:
            heldout = self.attempt(lambda: build_heldout(self.config)[: self.config.train.eval_tasks])
            self.found.heldout = None if heldout is None else len(heldout)
        return tasks

    def toolbox(self, tasks: Sequence[Task] | None) -> ToolBox | None:
        """The tools, built, and compared with what the tasks' own prompts offer."""
        from arpo.config.toolbox import build_toolbox
        from arpo.config.wire import refuse_unbacked_prompts

        toolbox = self.attempt(lambda: build_toolbox(self.config))
        if toolbox is not None:
            self.found.tools = toolbox.names
            self.attempt(lambda: refuse_unbacked_prompts(tasks or [], toolbox.names))
        return toolbox

    def policy(self, tasks: Sequence[Task], toolbox: ToolBox | None) -> None:
        """Tokenizer, dialect and prompts; the model's shapes, engine and learner."""
        from arpo.config.wire import no_progress_bars
        from arpo.engine.models import load_skeleton, load_tokenizer

        no_progress_bars()
        settings = self.config.model
        loaded = self._weights(lambda: load_tokenizer(settings.path))
        model = self._weights(lambda: load_skeleton(settings.path, dtype=settings.dtype)) if loaded else None
        remote = is_remote(self.config)  # the server's weights, memory and learner
        if model is not None and not remote:
            self.attempt(lambda: check_learner(self.config, model))
        able = self.attempt(lambda: capabilities_of(self.config, model))
        if able is not None:
            self.attempt(lambda: check_rollout(self.config, able, toolbox, loaded[1] if loaded else None))
        dialect = self.attempt(lambda: dialect_of(self.config, loaded[0], toolbox)) if loaded and toolbox else None
        if dialect is not None and toolbox is not None and tasks:
            context = None if able is None or able.max_context == Capabilities().max_context else able.max_context
            self.attempt(lambda: check_turns(self.config, tasks[0], dialect, toolbox))
            self.found.prompts = self.attempt(lambda: prompts_of(self.config, tasks, dialect, context))
        if model is not None and not remote:
            seen = self.found.prompts
            longest, context = (seen.tokens["most"], seen.context) if seen else (0, None)
            self.found.memory = self.attempt(lambda: estimate(self.config, model, longest, context))
            self.found.serving = self.attempt(lambda: serving(self.config, model, longest, context))

    def _weights(self, part: Callable[[], _Value]) -> _Value | None:
        """As `attempt`; but a hub that does not answer is no mistake of the configuration's."""
        try:
            return part()
        except ArpoError as error:
            known = self.found.unchecked if _on_a_hub(self.config.model.path) else self.found.mistakes
            known.append(str(error))
            return None


def _on_a_hub(name: str) -> bool:
    from arpo.engine.models import PACKAGED

    is_path = name.startswith((".", "~", "/")) or name.count("/") > 1 or Path(name).exists()
    return not is_path and name not in (*PACKAGED, "smollm2")


def _remark(config: Config, found: DryRun) -> None:
    """What is no mistake and yet worth knowing before hours are spent."""
    limit = config.train.max_generated_tokens
    if found.costs is not None and limit is not None:
        steps = limit / found.costs.expected.tokens
        found.notes.append(
            f"train.max_generated_tokens = {limit:,} ends the run, after some {steps:,.0f} steps at half of the limits"
        )
    if config.train.max_seconds is not None:
        found.notes.append(f"train.max_seconds = {config.train.max_seconds:,.0f} may end the run earlier")
    if isinstance(config.engine, OpenAISettings):
        for url in (config.engine.base_url, *config.engine.replicas):
            found.unchecked.append(f"the server at {url}: ask it with `arpo doctor --engine {url}`")
    if isinstance(config.engine, TinkerSettings):
        found.unchecked.append(
            f"the Tinker server at {config.engine.base_url}: its base models, losses, top log-probs and memory; the "
            "start of a run asks for them"
        )
    if found.prompts is not None and found.prompts.short:
        found.notes.append(
            f"{found.prompts.short:,} tasks leave less than rollout.max_tokens = {config.rollout.max_tokens:,} in a "
            f"context of {found.prompts.context:,}; they get what is left"
        )
    if found.batch is not None and found.tasks is not None and found.batch.prompts > found.tasks:
        found.notes.append(
            f"train.prompts = {found.batch.prompts} exceeds the {found.tasks} tasks, so a step asks some of them twice"
        )
    memory = found.memory
    if memory is not None and memory.processes > 1:
        found.notes.append(
            f"each process reads the whole weights ({memory.loaded / 2**30:,.1f} GiB) to its device before it keeps "
            "its share of them; start servers that stand on the same devices first"
        )
    if memory is not None and memory.available is not None and memory.total > memory.available:
        found.notes.append(
            f"the estimate of {memory.total / 2**30:,.1f} GiB exceeds the {memory.available / 2**30:,.1f} GiB of "
            f"{memory.device}"
        )
