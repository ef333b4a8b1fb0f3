"""verl's tables of the policy, the data and the sampler: `actor_rollout_ref.{model,rollout}` and `data`.

verl counts a trajectory as we do: `response_length` holds all that follows the prompt, tool results included. Its
server samples until prompt and response together are full, so that `max_model_len` is their sum unless the engine's
`max_context` says less.
"""

import importlib.resources
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from arpo.config.schema import Config
from arpo.engine.settings import VllmSettings
from arpo.evaluate.settings import HELD_OUT
from arpo.verl.overrides import Override, Place

PACKAGED = ("pocket", "pocket-clean")
MODEL, ROLLOUT = "actor_rollout_ref.model", "actor_rollout_ref.rollout"
TOP_K_REPLICA = "vllm_topk"
VLLM_OPTIONS: Mapping[str, str] = {
    "tensor_parallel_size": "tensor_model_parallel_size",
    **{
        name: name
        for name in (
            *("data_parallel_size", "gpu_memory_utilization", "enforce_eager", "max_num_batched_tokens"),
            *("max_num_seqs", "enable_chunked_prefill", "enable_prefix_caching", "scheduling_policy", "quantization"),
        )
    },
}
"""vLLM's engine arguments that have a key of their own in verl; the others go through `engine_kwargs.vllm`."""


def policy(config: Config) -> Sequence[Override]:
    """Weights, adapter, and how a forward pass reads them."""
    optim, lora = config.optim, config.model.lora
    listed = [
        Override(f"{MODEL}.path", weights(config.model.path), "model.path"),
        Override(
            f"{MODEL}.enable_gradient_checkpointing", optim.gradient_checkpointing, "optim.gradient_checkpointing"
        ),
        Override(f"{MODEL}.use_remove_padding", optim.packing != "padded", "optim.packing"),
    ]
    if lora is None:
        return listed
    targets = lora.target_modules if isinstance(lora.target_modules, str) else list(lora.target_modules)
    if lora.path is not None:
        return [*listed, Override(f"{MODEL}.lora_adapter_path", _absolute(lora.path), "model.lora.path")]
    return [
        *listed,
        Override(f"{MODEL}.lora_rank", lora.rank, "model.lora.rank"),
        Override(f"{MODEL}.lora_alpha", int(lora.alpha), "model.lora.alpha"),
        Override(f"{MODEL}.target_modules", targets, "model.lora.target_modules"),
    ]


def weights(path: str) -> str:
    """What verl is to load: a folder by its whole path (its workers run elsewhere), or a hub's name as it is."""
    if path in PACKAGED:
        return str(Path(str(importlib.resources.files("arpo"))) / "assets" / path)
    return _absolute(path) if Path(path).expanduser().is_dir() else path


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().resolve())


def data(config: Config, place: Place) -> Sequence[Override]:
    """The two files and how much of them makes a step."""
    train, seen = config.train, "data, data.max_prompt_tokens"
    kept_apart = "evaluation.tasks, evaluation.seed, train.eval_tasks"
    listed = [
        Override("data.train_files", str(place.train), "data"),
        Override("data.val_files", str(place.heldout or place.train), kept_apart),
        Override("data.train_batch_size", train.prompts, "train.prompts"),
        Override("data.max_prompt_length", place.longest_prompt, seen),
        Override("data.max_response_length", config.rollout.max_tokens, "rollout.max_tokens"),
        Override("data.shuffle", True, "run.seed"),
        Override("data.validation_shuffle", False, "the launcher"),
        Override("data.seed", config.run.seed, "run.seed"),
        Override("data.filter_overlong_prompts", False, "the launcher: the files hold what fits"),
        Override("data.return_raw_chat", True, "the launcher"),
    ]
    return listed if place.heldout else [*listed, Override("data.val_max_samples", 1, "train.eval_every")]


def rollout(config: Config, place: Place) -> Sequence[Override]:
    """M sessions per prompt, one for each leaf, and the server that they are sampled from."""
    settings, engine = config.rollout, config.engine
    room = place.longest_prompt + settings.max_tokens
    context = room if engine.max_context is None else min(room, engine.max_context)
    return [
        Override(f"{ROLLOUT}.name", TOP_K_REPLICA if wants_top_k(config) else "vllm", "engine.type, engine.entropy"),
        Override(f"{ROLLOUT}.n", settings.total, "rollout.total"),
        Override(f"{ROLLOUT}.temperature", settings.temperature, "rollout.temperature"),
        Override(f"{ROLLOUT}.top_p", settings.top_p, "rollout.top_p"),
        Override(f"{ROLLOUT}.top_k", -1, "the launcher"),
        Override(f"{ROLLOUT}.calculate_log_probs", True, "the launcher"),
        Override(f"{ROLLOUT}.seed", config.run.seed, "run.seed"),
        Override(f"{ROLLOUT}.dtype", precision(config), "model.dtype, optim.autocast"),
        Override(f"{ROLLOUT}.max_model_len", context, "engine.max_context, rollout.max_tokens"),
        *_validation(config),
        *_server(config),
    ]


def precision(config: Config) -> str:
    """That of the matrix products: the sampler's kernels should not be finer than the trainer's."""
    return "bfloat16" if config.optim.autocast == "bf16" else config.model.dtype


def wants_top_k(config: Config) -> bool:
    """Whether the server is the one that reports top log-probs."""
    return isinstance(config.engine, VllmSettings) and config.engine.entropy == "topk"


def _validation(config: Config) -> Sequence[Override]:
    settings, key = config.evaluation, f"{ROLLOUT}.val_kwargs"
    temperature, top_p = settings.sampling(HELD_OUT)
    return [
        Override(f"{key}.n", settings.samples, "evaluation.samples"),
        Override(f"{key}.temperature", temperature, "evaluation.temperature"),
        Override(f"{key}.top_p", top_p, "evaluation.top_p"),
        Override(f"{key}.do_sample", temperature > 0, "evaluation.temperature"),
    ]


def _server(config: Config) -> Sequence[Override]:
    engine = config.engine
    options: dict[str, Any] = dict(engine.options) if isinstance(engine, VllmSettings) else {}
    listed = [] if "tensor_parallel_size" in options else [_parallel()]
    listed += [
        Override(f"{ROLLOUT}.{VLLM_OPTIONS[name]}", value, f"engine.options.{name}")
        for name, value in options.items()
        if name in VLLM_OPTIONS
    ]
    listed += [
        Override(f"+{ROLLOUT}.engine_kwargs.vllm.{name}", value, f"engine.options.{name}")
        for name, value in options.items()
        if name not in VLLM_OPTIONS
    ]
    return [*listed, *_top_k(engine, options)] if isinstance(engine, VllmSettings) and wants_top_k(config) else listed


def _parallel() -> Override:
    return Override(f"{ROLLOUT}.tensor_model_parallel_size", 1, "the launcher: a server per GPU")


def _top_k(engine: VllmSettings, options: Mapping[str, Any]) -> Sequence[Override]:
    """vLLM refuses requests for more log-probs than `max_logprobs`, 20 unless it is told otherwise."""
    listed = [Override(f"+{ROLLOUT}.custom.arpo_top_k", engine.top_k, "engine.top_k")]
    if "max_logprobs" not in options:
        listed += [Override(f"+{ROLLOUT}.engine_kwargs.vllm.max_logprobs", engine.top_k, "engine.top_k")]
    return listed
