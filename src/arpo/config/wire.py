"""From a configuration to the live objects it describes.

The order is that of cost: tasks and tools first, so that a wrong path or a missing tool is said at once, the model
last. Nothing here decides anything that the configuration does not say.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from arpo.config.processes import build_team as build_team
from arpo.config.processes import twin_of
from arpo.config.schema import Config
from arpo.config.tinker import build_remote_learner, connect, is_remote, refuse_processes
from arpo.config.toolbox import build_toolbox as build_toolbox
from arpo.data.settings import FactbookSettings, FilesSettings
from arpo.engine.settings import OpenAISettings
from arpo.errors import ConfigError, DataError, ToolSetupError
from arpo.evaluate.agents.registry import build as build_method
from arpo.evaluate.result import EvalResult
from arpo.evaluate.run import OnProgress, evaluate, sampled
from arpo.evaluate.settings import HELD_OUT
from arpo.learn.trains import Trains
from arpo.learn.update import Learner
from arpo.protocol.base import Dialect
from arpo.reward.scorer import Scorer, deciders
from arpo.rollout.agent import Agent
from arpo.seeds import derive
from arpo.task import Task
from arpo.tools.toolbox import ToolBox
from arpo.train.loop import HeldOut, Plan, Setup
from arpo.train.publishing import Twin
from arpo.train.team import ALONE, Team
from arpo.tree import RolloutTree

_TOOL_NAMES = ("search", "python")
_TOOL_TAG = re.compile(rf"<({'|'.join(_TOOL_NAMES)})>.*?</\1>", re.DOTALL)
"""A prompt that shows such a pair offers the tool."""


@dataclass(frozen=True)
class Policy:
    """A policy that can act and be rewarded: its weights, its tokenizer, and everything around a trajectory.

    `model` is None where the weights are the engine's alone.
    """

    model: Any | None
    tokenizer: Any
    agent: Agent
    scorer: Scorer
    twin: Twin | None = None

    async def __aenter__(self) -> "Policy":
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self.agent.close()
        await self.scorer.close()


def build_policy(config: Config, tasks: Sequence[Task] = (), *, trains: bool = False, team: Team = ALONE) -> Policy:
    """Build the tools, then load the model and put dialect and engine around it.

    The model is loaded if the engine samples from it or it `trains`; else `Policy.model` is None. `team`: the processes
    that train together. Where they cut the model into shards, the engine is given a copy, `Policy.twin`.

    Raises ToolSetupError for a tool that cannot be built, and for one that `tasks` or the model's own vocabulary offer
    although it is not configured.
    """
    from arpo.engine.registry import build as build_engine
    from arpo.protocol.registry import build as build_dialect

    no_progress_bars()
    decided = deciders(config.reward)
    toolbox = build_toolbox(config)
    refuse_unbacked_prompts(tasks, toolbox.names)
    model, tokenizer, vocab_size = _weights(config, trains)
    refuse_unbacked_vocabulary(config.model.path, tokenizer, toolbox.names)
    dialect = build_dialect(config.protocol, tokenizer, toolbox.tools)
    twin = twin_of(config, model, team)
    sampled_from = model if twin is None else twin.module
    engine = build_engine(
        config.engine, config.model, tokenizer, sampled_from, vocab_size=vocab_size, rank=team.rank, size=team.size
    )
    lend_policy(toolbox, engine, tokenizer, config.model.path)
    agent = Agent(engine, dialect, toolbox, vocab_size)
    return Policy(model, tokenizer, agent, Scorer(config.reward, dialect, decided), twin)


def lend_policy(toolbox: ToolBox, engine: Any, tokenizer: Any, name: str) -> None:
    """Let the tools that want the policy's own words have them."""
    waiting: list[Any] = [tool for tool in toolbox.tools if getattr(tool, "wants_policy", False)]
    if not waiting:
        return
    from arpo.tools.browser.engine_text import EngineText

    for tool in waiting:
        tool.bind(EngineText(engine, tokenizer, name))


def _weights(config: Config, trains: bool) -> tuple[Any, Any, int]:
    """Model (or None), tokenizer, size of the vocabulary."""
    from arpo.engine.models import load_policy, load_tokenizer
    from arpo.engine.registry import needs_module

    if is_remote(config):
        return connect(config, trains=trains), *load_tokenizer(config.model.path)
    if not (trains or needs_module(config.engine)):
        if config.model.lora is not None:
            raise ConfigError(
                f'model.lora is for training; the engine "{config.engine.type}" samples from what it serves. Leave it '
                "out, and give a merged model (`arpo export` writes one) to the engine"
            )
        return None, *load_tokenizer(config.model.path)
    model, tokenizer = load_policy(config.model.path, dtype=config.model.dtype, device=config.model.device)
    adapt(config, model)
    return model, tokenizer, int(model.get_output_embeddings().weight.shape[0])


def adapt(config: Config, model: Any) -> None:
    """Give the model the adapter of `model.lora`, if there is one; its start is drawn from the run's seed."""
    from arpo.engine.lora import attach

    if config.model.lora is not None:
        attach(model, config.model.lora, base=config.model.path, seed=derive(config.run.seed, "lora"))


def no_progress_bars() -> None:
    """Our own lines say what goes on; bars of files being read and written would tear them."""
    from transformers.utils import logging

    logging.disable_progress_bar()


def build_tasks(config: Config) -> list[Task]:
    """Training tasks. Raises DataError naming the file and the row."""
    if isinstance(config.data, FactbookSettings):
        from arpo.data.factbook.questions import make_tasks

        return make_tasks("train", config.data.tasks, config.data.seed, config.data.families)
    return _from_files(config.data.train)


def build_heldout(config: Config) -> list[Task]:
    """`evaluation.tasks` held-out tasks (or all there are), the same for equal settings."""
    wanted, seed = config.evaluation.tasks, config.evaluation.seed
    if isinstance(config.data, FactbookSettings):
        from arpo.data.factbook.questions import make_tasks

        return make_tasks("heldout", wanted, seed, config.data.families)
    if not config.data.heldout:
        raise DataError("data.heldout names no file, so there is nothing to evaluate on; name one or more")
    tasks = _from_files(config.data.heldout)
    order = np.random.default_rng(derive(seed, "heldout")).permutation(len(tasks))
    return [tasks[int(place)] for place in order[:wanted]]


def _from_files(paths: Sequence[str]) -> list[Task]:
    from arpo.data.tasks import read_tasks

    tasks: dict[str, Task] = {}
    for path in paths:
        for task in read_tasks(path):
            task = _by_whole_path(task) if task.id in tasks else task
            if task.id in tasks:
                raise DataError(
                    f"{path}, row {task.provenance['row']}: the id {task.id!r} is also in "
                    f"{tasks[task.id].provenance['file']}; ids must differ between files too"
                )
            tasks[task.id] = task
    return list(tasks.values())


def _by_whole_path(task: Task) -> Task:
    """Of two files with one name in different folders, the later one's numbered rows are told by their whole path."""
    file, row = task.provenance["file"], task.provenance["row"]
    return replace(task, id=f"{file}:{row}") if task.id == f"{Path(file).name}:{row}" else task


def fitting(tasks: Sequence[Task], config: Config, dialect: Dialect) -> list[Task]:
    """The tasks whose prompt is within `data.max_prompt_tokens`. DataError if none is."""
    limit = config.data.max_prompt_tokens if isinstance(config.data, FilesSettings) else None
    if limit is None:
        return list(tasks)
    kept = [task for task in tasks if len(dialect.prompt(task)) <= limit]
    if not kept:
        raise DataError(f"all {len(tasks)} prompts are longer than data.max_prompt_tokens = {limit}; raise it")
    return kept


def refuse_unbacked_prompts(tasks: Sequence[Task], names: Collection[str]) -> None:
    """A task whose system message shows a tool that is not configured would train calls into the void."""
    for task in tasks:
        shown = [name for m in task.messages if m.role == "system" for name in _TOOL_TAG.findall(m.content)]
        for name in shown:
            if name not in names:
                raise ToolSetupError(
                    f"task {task.id}: its system message offers the tool {name!r}, which tools does not configure "
                    f"(there is: {', '.join(names) or 'none'}); add it to [[tools]] or change the message"
                )


def refuse_unbacked_vocabulary(path: str, tokenizer: Any, names: Collection[str]) -> None:
    """A compact policy has no system prompt: what it was taught to call stands in its special tokens."""
    if tokenizer.init_kwargs.get("arpo_style") != "compact":
        return
    for name in _TOOL_NAMES:
        if name not in names and f"<{name}>" in tokenizer.get_vocab():
            raise ToolSetupError(
                f"model {path!r} was taught to call the tool {name!r}, which tools does not configure (there is: "
                f"{', '.join(names) or 'none'}); add it to [[tools]]"
            )


def refuse_unread_logprobs(config: Config) -> None:
    """Importance ratios divide by the sampler's log-probs: they must be those of the whole distribution."""
    if isinstance(config.engine, OpenAISettings) and config.engine.logprobs == "any":
        raise ConfigError('engine.logprobs = "any" is for evaluation; training needs "whole"')


def build_setup(config: Config, warn: Callable[[str], None], team: Team | None = None) -> Setup:
    """Everything that training needs. `warn` is told how many tasks are left out. `team`: see `build_team`."""
    team = build_team(config) if team is None else team
    refuse_unread_logprobs(config)
    refuse_processes(config, team.size)
    tasks = build_tasks(config)
    heldout = build_heldout(config)[: config.train.eval_tasks] if config.train.eval_every is not None else []
    policy = build_policy(config, [*tasks, *heldout], trains=True, team=team)
    for note in getattr(policy.agent.engine, "notes", ()):
        warn(note)
    kept = fitting(tasks, config, policy.agent.dialect)
    if len(kept) < len(tasks):
        warn(f"{len(tasks) - len(kept)} tasks have prompts longer than data.max_prompt_tokens and are left out")
    return Setup(
        model=policy.model,
        tokenizer=policy.tokenizer,
        agent=policy.agent,
        scorer=policy.scorer,
        learner=build_learner(config, policy.model, team.accelerator),
        tasks=kept,
        heldout=_measuring(config, policy, heldout, team) if heldout else None,
        team=team,
        twin=policy.twin,
    )


def build_plan(config: Config) -> Plan:
    """The settings of a run, as the loop wants them."""
    return Plan(
        train=config.train,
        rollout=config.rollout,
        entropy=config.entropy,
        credit=config.credit,
        seed=config.run.seed,
    )


def build_learner(config: Config, model: Any, accelerator: Any = None) -> Trains:
    """The learner, with the policy as it started for a reference if loss or reward have a KL term."""
    per_step = config.train.prompts // (config.train.mini_batch or config.train.prompts)
    total_updates = config.train.steps * per_step
    if is_remote(config):
        return build_remote_learner(config, model, total_updates)
    needed = config.loss.kl > 0 or config.credit.needs_reference
    reference = _reference(config, model) if needed else None
    return Learner(
        model,
        config.loss,
        config.optim,
        total_updates=total_updates,
        temperature=config.rollout.temperature,
        reference=reference,
        accelerator=accelerator,
    )


def _reference(config: Config, model: Any) -> Any:
    """The policy as it started: a second copy of the weights, or the model without the fresh adapter that it trains."""
    from arpo.engine.models import load_policy

    if config.model.lora is not None and config.model.lora.path is None:
        return model
    reference, _ = load_policy(config.model.path, dtype=config.model.dtype, device=config.model.device)
    adapt(config, reference)
    return reference


def _measuring(config: Config, policy: Policy, tasks: Sequence[Task], team: Team) -> HeldOut:
    async def measure(step: int) -> Mapping[str, float]:
        return (await measure_policy(config, policy, tasks, team=team)).metrics()

    return measure


async def measure_policy(
    config: Config,
    policy: Policy,
    tasks: Sequence[Task],
    on_progress: OnProgress | None = None,
    team: Team = ALONE,
) -> EvalResult:
    """The policy's accuracy on these tasks, sampled as `evaluation` says, by all processes of the team together."""
    settings = config.evaluation
    method = build_method(settings.agent)
    agent = method.fit(policy.agent)
    async with AsyncExitStack() as opened:
        own = agent.dialect is policy.agent.dialect
        scorer = policy.scorer if own else await opened.enter_async_context(Scorer(config.reward, agent.dialect))
        return await evaluate(
            tasks,
            agent,
            rollout=sampled(config.rollout, settings.samples, *settings.sampling(HELD_OUT)),
            scorer=scorer,
            method=method,
            seed=settings.seed,
            on_progress=on_progress,
            team=team,
        )


async def grow(config: Config, policy: Policy, task: Task) -> RolloutTree:
    """One task's tree, as training would grow it; scored if the task has an answer."""
    from arpo.rollout.scheduler import rollout

    tree = await rollout(
        task,
        policy.agent,
        settings=config.rollout,
        entropy=config.entropy,
        seed_parts=(config.run.seed, "rollout"),
    )
    return await policy.scorer.scored(tree, task) if task.answers else tree
