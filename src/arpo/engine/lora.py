"""Low-rank adapters (LoRA, Hu et al. 2021, arXiv 2106.09685) inside a policy, by peft.

The adapter is injected in place: the policy stays the transformers module that it was, with some linear layers
exchanged for W x + s B A x, so engine, learner and every attention kernel work on it unchanged. Only A and B require
gradients. They are float32 whatever the precision of W, so that steps of 1e-6 are not lost.

Who cannot run an adapter (an engine with weights of its own, another program) gets the *merged* weights W + s B A,
added up in float32 and rounded once. peft's functions are called directly: transformers' own wrapper of them asks, in
some releases, for a peft that does not exist yet.

Refused: adapters on anything but linear layers, and on an output embedding that is tied to the input (merging would
untie it, and the result would no longer be a model of the base's kind).
"""

import copy
import importlib.util
import json
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from arpo.engine.settings import LoraSettings
from arpo.engine.shards import cut
from arpo.errors import ArpoError, ConfigError

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
_NAME = "default"
_PREFIX = "base_model.model."
"""Before every name in an adapter file: peft's own wrapper, which is not there when the adapter is injected."""
_BEYOND = (
    "modules_to_save",
    "trainable_token_indices",
    "target_parameters",
    "layer_replication",
    "alora_invocation_tokens",
)
"""Options of peft's that add more than low-rank updates of linear layers."""


def require_peft() -> None:
    """Raise ArpoError if peft is not installed."""
    if importlib.util.find_spec("peft") is None:
        raise ArpoError("LoRA adapters need the package peft, which is not installed; run: pip install 'arpo[lora]'")


def adapted_layers(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Name and module of every layer that holds an adapter."""
    return ((name, module) for name, module in model.named_modules() if is_adapted_layer(module))


def is_adapted_layer(module: nn.Module) -> bool:
    """Whether this layer is one of peft's, around the original one."""
    return hasattr(module, "lora_A") and hasattr(module, "base_layer")


def is_adapted(model: nn.Module) -> bool:
    """Whether the model holds an adapter."""
    return any(True for _ in adapted_layers(model))


def attach(model: Any, settings: LoraSettings, *, base: str, seed: int) -> None:
    """Inject the adapter that the settings describe; afterwards only its parameters require gradients.

    `base`: the name that the model was loaded by, written into adapter_config.json. A fresh adapter changes nothing
    (B = 0); its A is drawn from `seed`. Raises ConfigError for targets that cannot be adapted, ArpoError for an adapter
    folder that is not one.
    """
    require_peft()
    if is_adapted(model):
        raise ArpoError("the model holds an adapter already; a second one beside it is not supported")
    if settings.path is not None:
        _inject(model, read_config(Path(settings.path).expanduser()), base, seed)
        load_adapter(model, Path(settings.path).expanduser())
        return
    _inject(model, _fresh(settings), base, seed)
    if settings.target_modules != "all-linear":
        _check_names(model, settings.target_modules)


def _fresh(settings: LoraSettings) -> Any:
    from peft import LoraConfig

    named = settings.target_modules
    return LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=settings.dropout,
        target_modules=named if named == "all-linear" else list(named),
        bias="none",
        task_type="CAUSAL_LM",
    )


def read_config(folder: Path) -> Any:
    """The peft configuration of an adapter folder. Raises ArpoError unless it is a LoRA of linear layers alone."""
    require_peft()
    from peft import PeftConfig

    try:
        config = PeftConfig.from_pretrained(str(folder))
    except (OSError, ValueError, TypeError, KeyError) as error:
        what = "is no adapter folder" if not (folder / ADAPTER_CONFIG).is_file() else f"has a broken {ADAPTER_CONFIG}"
        raise ArpoError(f"{folder} {what}; give a folder that peft wrote ({type(error).__name__}: {error})") from error
    kind = getattr(config.peft_type, "value", config.peft_type)
    beyond = [option for option in _BEYOND if getattr(config, option, None)]
    if kind != "LORA" or beyond or config.bias != "none":
        what = f"peft_type = {kind}" if kind != "LORA" else f"{beyond[0] if beyond else 'bias'} is set"
        raise ArpoError(f"{folder / ADAPTER_CONFIG}: {what}; only a LoRA of linear layers, nothing beside it, is read")
    return config


def _inject(model: Any, config: Any, base: str, seed: int) -> None:
    from peft import inject_adapter_in_model

    here = Path(base).expanduser()
    config.base_model_name_or_path = str(here.resolve()) if here.is_dir() else base
    config.inference_mode = False
    config.lora_dropout = 0.0
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "fan_in_fan_out")  # peft finds out by itself, and says so
        warnings.filterwarnings("ignore", ".*tie_word_embeddings")  # refused below
        torch.manual_seed(seed % 2**63)
        try:
            inject_adapter_in_model(config, model, _NAME)
        except ValueError as error:
            raise ConfigError(
                f"model.lora.target_modules: {str(error).splitlines()[0]} {_linear_names(model)}"
            ) from error
    _check_kinds(model)
    for name, parameter in model.named_parameters():
        if ".lora_" in name:
            parameter.data = parameter.data.to(torch.promote_types(parameter.dtype, torch.float32))
    model.train(model.training)  # the new modules, too


def _check_kinds(model: Any) -> None:
    inputs = model.get_input_embeddings().weight
    for name, layer in adapted_layers(model):
        if type(layer.base_layer) not in (nn.Linear, Conv1D):
            raise ConfigError(
                f"model.lora.target_modules: {name} is a {type(layer.base_layer).__name__}; only linear layers are "
                f"adapted. {_linear_names(model)}"
            )
        if layer.base_layer.weight is inputs:
            raise ConfigError(
                f"model.lora.target_modules: {name} is tied to the input embedding, and an adapter would untie the "
                f"two; leave it out, or untie the model first. {_linear_names(model)}"
            )


def _check_names(model: Any, names: tuple[str, ...]) -> None:
    found = [f".{name}" for name, _ in adapted_layers(model)]
    for wanted in names:
        if not any(name.endswith(f".{wanted}") for name in found):
            raise ConfigError(f"model.lora.target_modules: no layer is called {wanted!r}. {_linear_names(model)}")


def _linear_names(model: Any) -> str:
    """What could be named instead."""
    inputs = model.get_input_embeddings().weight
    plain = {
        name.removesuffix(".base_layer").rpartition(".")[2]
        for name, module in model.named_modules()
        if type(module) in (nn.Linear, Conv1D) and ".lora_" not in name and module.weight is not inputs
    }
    return f"Linear layers here: {', '.join(sorted(plain))}"


# --- merging ---------------------------------------------------------------------------------------------------------


def folded(layer: Any) -> Any:
    """A linear layer to read weights from: the layer itself, or for an adapted one a copy with the adapter added in.

    The copy is float32 (float64 for a float64 model).
    """
    if not is_adapted_layer(layer):
        return layer
    twin = copy.deepcopy(layer).to(torch.promote_types(layer.base_layer.weight.dtype, torch.float32))
    twin.merge(safe_merge=True)
    return twin.base_layer


@torch.no_grad()
def merged_state_dict(model: Any) -> dict[str, torch.Tensor]:
    """The state dict of the same policy without adapters: names, order and precision of the base model.

    Adapted layers are new tensors, all others the model's own storage, as in `state_dict`. The model is not touched. Of
    a model without an adapter this is its state dict.
    """
    state = model.state_dict()
    plain = {name.replace(".base_layer.", "."): value for name, value in state.items() if ".lora_" not in name}
    for name, layer in adapted_layers(model):
        for part, value in folded(layer).state_dict().items():
            plain[f"{name}.{part}"] = value.to(state[f"{name}.base_layer.{part}"].dtype)
    return plain


@torch.no_grad()
def merge(model: Any) -> None:
    """Add the adapter into the weights, in place: a plain model, all of whose parameters train."""
    for name, layer in list(adapted_layers(model)):
        for part, value in folded(layer).state_dict().items():
            getattr(layer.base_layer, part).copy_(value)
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, layer.base_layer)
    vars(model).pop("peft_config", None)
    model._hf_peft_config_loaded = False
    model.requires_grad_(True)


@contextmanager
def base_weights(model: Any) -> Iterator[None]:
    """The model without its adapter while this lasts: the reference of a KL term, with no second copy in memory.

    One within another changes nothing.
    """
    layers = [layer for _, layer in adapted_layers(model) if not layer.disable_adapters]
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)


# --- files -----------------------------------------------------------------------------------------------------------


def save_weights(model: Any, folder: Path, state: Mapping[str, torch.Tensor] | None = None) -> None:
    """Write a model in Hugging Face layout; of one with an adapter the adapter alone, in peft's layout.

    `state`: the model's state dict put together where the model holds shards; of an adapter its own entries suffice.
    """
    if not is_adapted(model):
        model.save_pretrained(folder, state_dict=state)
        return
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    config = copy.copy(model.peft_config[_NAME])
    config.inference_mode = True
    config.save_pretrained(str(folder))
    tensors = {f"{_PREFIX}{name}": value.contiguous() for name, value in _adapter_state(model, state).items()}
    save_file(tensors, folder / ADAPTER_WEIGHTS, metadata={"format": "pt"})


@torch.no_grad()
def load_adapter(model: Any, folder: Path) -> None:
    """Take the adapter of a folder into a model that has one of the same shape. ArpoError if it does not fit."""
    new, own = _read_adapter(folder), _adapter_state(model)
    wrong = sorted(k for k in own.keys() | new.keys() if k not in own or k not in new or own[k].shape != new[k].shape)
    if wrong:
        shapes = [tuple(state[wrong[0]].shape) if wrong[0] in state else "missing" for state in (new, own)]
        raise ArpoError(
            f"adapter {folder} does not fit the model: {len(wrong)} tensors differ, {wrong[0]!r} is {shapes[0]} there "
            f"and {shapes[1]} here; it was made for another base model, rank or set of target modules"
        )
    for name, value in own.items():
        value.copy_(cut(new[name], value))


def _adapter_state(model: Any, state: Mapping[str, torch.Tensor] | None = None) -> dict[str, torch.Tensor]:
    """The adapter's tensors (not copies) without the adapter's name in theirs."""
    from peft import get_peft_model_state_dict

    return get_peft_model_state_dict(model, state, adapter_name=_NAME, save_embedding_layers=False)


def _read_adapter(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    file = folder / ADAPTER_WEIGHTS
    try:
        return {name.removeprefix(_PREFIX): value for name, value in load_file(file).items()}
    except (OSError, SafetensorError) as error:
        raise ArpoError(f"{file} is missing or corrupt; save or fetch the adapter again ({error})") from error


def base_of(folder: Path) -> str:
    """Name of the model that an adapter folder belongs to."""
    try:
        base = json.loads((folder / ADAPTER_CONFIG).read_text(encoding="utf-8")).get("base_model_name_or_path")
    except (OSError, ValueError, AttributeError) as error:
        raise ArpoError(
            f"{folder / ADAPTER_CONFIG} cannot be read; save or fetch the adapter again ({error})"
        ) from error
    if not base or not isinstance(base, str):
        raise ArpoError(f"{folder / ADAPTER_CONFIG} names no base model; set base_model_name_or_path in it")
    return base


def apply_folder(model: Any, folder: Path) -> None:
    """Merge the adapter of a folder into a plain model, in place."""
    _inject(model, read_config(folder), base_of(folder), seed=0)
    load_adapter(model, folder)
    merge(model)
