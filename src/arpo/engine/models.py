"""From a name to (model, tokenizer), or to an error that says what is wrong with the name.

Everything ends as a plain float model that `save_pretrained` can write: a GGUF file is de-quantised and rebuilt from
its configuration and state dict (a slow affair; `smollm2` has a quick way of its own), an adapter is merged into its
base. A checkpoint with missing tensors or a tokenizer that does not fit is refused: transformers would fill the gaps
with random numbers and only warn.
"""

import importlib.resources
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from arpo.engine import lora, smollm2
from arpo.errors import ArpoError

PACKAGED = ("pocket", "pocket-clean")


def load_policy(name_or_path: str | Path, *, dtype: str = "float32", device: str = "auto") -> tuple[Any, Any]:
    """A transformers causal LM in eval mode and its tokenizer; see ModelSettings for the names.

    Raises ArpoError where the name leads nowhere, a file is corrupt, or model and tokenizer do not fit.
    """
    name, target, number = str(name_or_path), pick_device(device), pick_dtype(dtype)
    with _quiet():
        model, tokenizer = _read(name, number)
    _check_fit(name, model, tokenizer)
    return model.to(target).eval(), tokenizer


def load_skeleton(name_or_path: str | Path, *, dtype: str = "float32") -> Any:
    """The module of that policy without its weights, on torch's meta device: every layer and shape, no memory.

    Names and errors as for `load_policy`; of an adapter folder its base.
    """
    name, number = str(name_or_path), pick_dtype(dtype)
    with _quiet():
        config = _read_config(name)
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config, dtype=number).eval()


def _read_config(name: str) -> Any:
    if name == "smollm2":
        return smollm2.load_config(smollm2.find())
    if _needs_weights(name):
        return _read_config(lora.base_of(Path(name).expanduser()))
    source, options = _locate(name)
    return _load(AutoConfig, source, options)


def load_tokenizer(name_or_path: str | Path) -> tuple[Any, int]:
    """The tokenizer of that policy and how many tokens its distribution has, without its weights where they can wait.

    For engines that hold the weights elsewhere. Names and errors as for `load_policy`.
    """
    name = str(name_or_path)
    if name == "smollm2":
        tokenizer = smollm2.load_tokenizer(smollm2.find())
        return tokenizer, len(tokenizer)
    source, options = ("", {"gguf_file": name}) if _needs_weights(name) else _locate(name)
    if options:  # a GGUF file and an adapter say how large the vocabulary is only once they are read
        model, tokenizer = load_policy(name, device="cpu")
        return tokenizer, int(model.get_output_embeddings().weight.shape[0])
    with _quiet():
        config = _load(AutoConfig, source, {})
        return _load(AutoTokenizer, source, {}), int(config.get_text_config().vocab_size)


def _needs_weights(name: str) -> bool:
    folder = Path(name).expanduser()
    return (folder / lora.ADAPTER_CONFIG).is_file() and not (folder / "config.json").is_file()


def pick_dtype(name: str) -> torch.dtype:
    """The torch dtype of that name."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise ArpoError(f"model.dtype {name!r} is no floating-point type; use float32, bfloat16 or float16")
    return dtype


def pick_device(name: str) -> torch.device:
    """The torch device of that name, checked to be there; "auto": the best one."""
    if name == "auto":
        best = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
        return torch.device(best)
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ArpoError(f"model.device {name!r} cannot be used here ({_first_line(error)}); try 'auto'") from error
    return device


def _read(name: str, dtype: torch.dtype) -> tuple[Any, Any]:
    if name == "smollm2":
        return smollm2.load(smollm2.find(), dtype)
    folder = Path(name).expanduser()
    if name not in PACKAGED and (folder / lora.ADAPTER_CONFIG).is_file() and not (folder / "config.json").is_file():
        return _read_adapted(folder, dtype)
    source, options = _locate(name)
    return _load_model(source, options, dtype), _load(AutoTokenizer, source, options)


def _read_adapted(folder: Path, dtype: torch.dtype) -> tuple[Any, Any]:
    """An adapter's base with the adapter merged in; the tokenizer is the adapter's where its folder has one."""
    lora.require_peft()
    base = lora.base_of(folder)
    if Path(base).expanduser().resolve() == folder.resolve():
        raise ArpoError(f"adapter {str(folder)!r} names itself as its base; correct {lora.ADAPTER_CONFIG}")
    try:
        model, tokenizer = _read(base, dtype)
    except ArpoError as error:
        raise ArpoError(f"adapter {str(folder)!r}: its base cannot be loaded: {error}") from error
    lora.apply_folder(model, folder)
    own = (folder / "tokenizer_config.json").is_file()
    return model, _load(AutoTokenizer, str(folder), {}) if own else tokenizer


def _locate(name: str) -> tuple[str, dict[str, str]]:
    """What transformers is to read, and the options it needs (`gguf_file`)."""
    if name in PACKAGED:
        return _packaged(name)
    path = Path(name).expanduser()
    if path.is_dir():
        return _folder(path)
    if path.is_file() and path.suffix == ".gguf":
        return str(path.parent), {"gguf_file": path.name}
    if path.exists():
        raise ArpoError(f"model {name!r} is a file; give its folder, or a .gguf file")
    if path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
        raise ArpoError(f"model folder {name!r} does not exist; check model.path")
    return name, {}


def _packaged(name: str) -> tuple[str, dict[str, str]]:
    folder = Path(str(importlib.resources.files("arpo"))) / "assets" / name
    if not (folder / "config.json").is_file():
        raise ArpoError(
            f"the packaged policy {name!r} is not in this installation ({folder}); "
            "reinstall arpo, or train one with `arpo sft`"
        )
    return str(folder), {}


def _folder(path: Path) -> tuple[str, dict[str, str]]:
    if (path / "config.json").is_file():
        if (path / lora.ADAPTER_CONFIG).is_file():
            lora.require_peft()  # without it transformers would load the base and say nothing
        return str(path), {}
    files = sorted(file.name for file in path.glob("*.gguf"))
    if len(files) == 1:
        return str(path), {"gguf_file": files[0]}
    found = f"{len(files)} GGUF files" if files else "neither config.json nor a .gguf file"
    raise ArpoError(f"model folder {str(path)!r} holds {found}; give a folder that save_pretrained wrote, or one file")


def _load_model(source: str, options: dict[str, str], dtype: torch.dtype) -> Any:
    if options and importlib.util.find_spec("gguf") is None:
        raise ArpoError(f"{source}: reading a GGUF file needs the package gguf; run: pip install 'arpo[smollm2]'")
    model, report = _load(AutoModelForCausalLM, source, options, dtype=dtype, output_loading_info=True)
    if report["missing_keys"]:
        names = sorted(report["missing_keys"])
        raise ArpoError(f"{source}: {len(names)} tensors are missing, {names[0]!r} first; fetch or save it again")
    if lora.is_adapted(model):  # an adapter on the hub, or beside its base in one folder
        lora.merge(model)
    return _plain(model) if options else model


def _plain(model: Any) -> Any:
    """The same weights without the trace of GGUF quantisation, which refuses to be saved."""
    values = model.config.to_dict()
    values.pop("quantization_config", None)
    plain = type(model)(type(model.config).from_dict(values)).to(model.dtype)
    plain.load_state_dict(model.state_dict())
    plain.generation_config = model.generation_config
    return plain


def _load(loader: Any, source: str, options: dict[str, str], **more: Any) -> Any:
    try:
        return loader.from_pretrained(source, **options, **more)
    except Exception as error:  # transformers, safetensors and tokenizers raise anything, plain Exception included
        if Path(source).exists():
            remedy = "a file is missing or corrupt; save or fetch it again"
        else:
            remedy = "no such folder here, and the hub did not give it; check the name, the network and HF_TOKEN"
        raise ArpoError(f"model {source!r} cannot be loaded: {remedy} ({_first_line(error)})") from error


def _check_fit(name: str, model: Any, tokenizer: Any) -> None:
    rows = model.get_input_embeddings().weight.shape[0]
    highest = max(tokenizer.get_vocab().values())
    if highest >= rows:
        raise ArpoError(
            f"model {name!r}: its tokenizer gives ids up to {highest}, its embedding has {rows} rows; "
            "they do not belong together"
        )


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


@contextmanager
def _quiet() -> Iterator[None]:
    """No progress bars and no advice while loading; the errors above say what matters."""
    logging = transformers.utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
