"""A reward of your own: a plain Python function, named in the configuration as "module:function".

    def brief(sample: Sample) -> float:
        return 0.2 if sample.accuracy > 0 and sample.length < 200 else 0.0

It sees a trajectory after everything else was weighed, and returns a number (the part `custom`), a dict of named parts,
or None: no reward, the trajectory is left out of loss and baselines, as after an outage. A part with a name of ours
("accuracy", "format", ...) replaces ours. The function may be `async`; one that is not runs in threads, several calls
at once. What it raises ends the run: a reward that fails now and then would teach something nobody has written.
"""

import asyncio
import importlib
import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from arpo.errors import ArpoError, ConfigError
from arpo.reward.compose import Reading
from arpo.task import Task
from arpo.tree import Outcome, ToolEvent

__all__ = ["CustomReward", "RewardError", "Sample"]


class RewardError(ArpoError):
    """A custom reward raised, or returned what is no reward."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A trajectory as a custom reward sees it.

    `answer`: the final one, or None; `texts`: what the policy wrote between results, in order; `events`: its calls,
    with name, arguments, status, seconds and whether each was executed; `faults`: what is malformed, in words;
    `length`: tokens that the policy sampled; `parts`: what the reward consists of so far, by name, and read-only.
    """

    task: Task
    answer: str | None
    texts: tuple[str, ...]
    events: tuple[ToolEvent, ...]
    faults: tuple[str, ...]
    length: int
    parts: Mapping[str, float]

    @property
    def accuracy(self) -> float:
        """How right the answer is, 0 to 1; 0 for a malformed trajectory."""
        return self.parts["accuracy"]

    @property
    def reward(self) -> float:
        """The sum of the parts so far."""
        return sum(self.parts.values())


class CustomReward:
    """The function at a path, and what becomes of its results."""

    def __init__(self, path: str, weight: float = 1.0) -> None:
        """Imports it. ConfigError if that fails. `weight`: of parts with names of its own."""
        self.path, self.weight = path, weight
        self._function = _imported(path)

    async def added(self, outcome: Outcome, reading: Reading, task: Task) -> Outcome:
        """`outcome` with the function's parts; without a reward if it returns None. Raises RewardError."""
        sample = Sample(
            task=task,
            answer=reading.answer,
            texts=reading.texts,
            events=reading.events,
            faults=reading.faults,
            length=reading.length,
            parts=MappingProxyType(dict(outcome.parts)),
        )
        returned = await self._call(sample)
        if returned is None:
            return Outcome(None, outcome.answer)
        parts = dict(outcome.parts)
        for name, value in self._parts(returned, task).items():
            parts[name] = value if name in outcome.parts else self.weight * value
        return Outcome(sum(parts.values()), outcome.answer, parts)

    async def _call(self, sample: Sample) -> Any:
        try:
            if inspect.iscoroutinefunction(self._function):
                return await self._function(sample)
            returned = await asyncio.to_thread(self._function, sample)
            return await returned if inspect.isawaitable(returned) else returned
        except Exception as error:
            raise RewardError(
                f"reward.custom {self.path!r}, task {sample.task.id}: {type(error).__name__}: {error}"
            ) from error

    def _parts(self, returned: Any, task: Task) -> dict[str, float]:
        named = returned if isinstance(returned, Mapping) else {"custom": returned}
        for name, value in named.items():
            if not isinstance(name, str) or not _is_finite(value):
                raise RewardError(
                    f"reward.custom {self.path!r}, task {task.id}: it returned {returned!r:.200}; return a finite "
                    "number, a dict from names to finite numbers, or None"
                )
        return {name: float(value) for name, value in named.items()}


def _is_finite(value: Any) -> bool:
    """Whether it is a number, NumPy's and one-element tensors included."""
    if isinstance(value, str | bytes) or value is None:
        return False
    try:
        return math.isfinite(float(value))
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return False


def _imported(path: str) -> Any:
    module, _, name = path.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except Exception as error:
        raise ConfigError(
            f"reward.custom {path!r}: {type(error).__name__}: {error}; check that the module can be imported from here "
            f"(PYTHONPATH), and that it defines {name!r}"
        ) from error
    if not callable(function):
        raise ConfigError(f"reward.custom {path!r}: it is of type {type(function).__name__}, not a function")
    return function
