"""Experiment trackers beside metrics.jsonl, which is always written. A tracker that fails never stops a run."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

from arpo.errors import ConfigError

TrackerName = Literal["tensorboard", "trackio", "wandb"]


class Tracker(Protocol):
    """Receives one row per step."""

    def log(self, row: Mapping[str, float], step: int) -> None: ...

    def close(self) -> None: ...


class _TensorBoard:
    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder / "tensorboard"))

    def log(self, row: Mapping[str, float], step: int) -> None:
        for name, value in row.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class _WandbLike:
    """wandb, and trackio, which has the same interface."""

    def __init__(self, module: Any, folder: Path) -> None:
        self._module = module
        module.init(project="arpo", name=folder.name)

    def log(self, row: Mapping[str, float], step: int) -> None:
        self._module.log(dict(row), step=step)

    def close(self) -> None:
        self._module.finish()


def _open(name: str, folder: Path) -> Tracker:
    if name == "tensorboard":
        return _TensorBoard(folder)
    import importlib

    return _WandbLike(importlib.import_module(name), folder)


class Trackers:
    """All trackers of a run, each isolated from the training: the first failure is said, then it is left out."""

    def __init__(self, names: tuple[TrackerName, ...], folder: Path, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._live: dict[str, Tracker] = {}
        for name in names:
            try:
                self._live[name] = _open(name, folder)
            except ImportError as error:
                raise ConfigError(
                    f"train.trackers names {name!r}, which cannot be imported ({error}); "
                    "install it with pip install 'arpo[trackers]' or take it off the list"
                ) from error

    def log(self, row: Mapping[str, float], step: int) -> None:
        for name in list(self._live):
            self._guard(name, lambda tracker: tracker.log(row, step))

    def close(self) -> None:
        for name in list(self._live):
            self._guard(name, lambda tracker: tracker.close())

    def _guard(self, name: str, action: Callable[[Tracker], None]) -> None:
        try:
            action(self._live[name])
        except Exception as error:  # noqa: BLE001  (third-party code; metrics.jsonl holds everything)
            self._warn(f"tracker {name} failed and is left out from here on ({error}); metrics.jsonl is complete")
            del self._live[name]
