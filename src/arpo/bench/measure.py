"""The policy update, timed in its three forms: `tree`, `sequence` and `padded`, side by side.

Everything goes through the `Learner` as training uses it, on one model. What is timed is the gradient: packing,
forward and backward of all passes, norm. The optimiser's step comes after it and is the same for all forms; it is timed
once, apart. During the rounds it is left out, so the weights stay what they are and all forms do the same thing.

The forms take turns within one process, in an order that shifts by one from round to round, and a round gives one
ratio. So a machine that slows down for a minute slows all forms; the median over the rounds forgets it. Before the
rounds every form runs once to be observed, for its work and its peak of memory: on a CPU in a process of its own. And
the allocator is told to keep its memory, so that no form has to fault in the pages that another one gave back.
"""

import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from typing import Any

import torch

from arpo.bench.executed import recorded
from arpo.bench.peaks import device_name, keep_freed_memory, matrix_speed, now, peak_bytes
from arpo.bench.rows import Observed, Speed, Timing, UpdateRow, update_row
from arpo.bench.shapes import Shape, build_tree, with_logprobs
from arpo.bench.work import Pass, dominant, rates
from arpo.credit import assign
from arpo.credit.settings import credit_settings
from arpo.engine.models import load_policy
from arpo.errors import ArpoError, ConfigError
from arpo.learn.attention import Form
from arpo.learn.optim import Stepper
from arpo.learn.packing import Packing
from arpo.learn.settings import OptimSettings, loss_settings
from arpo.learn.update import Learner
from arpo.tree import RolloutTree

FORMS: tuple[Packing, ...] = ("tree", "sequence", "padded")
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Setting:
    """On what to measure. `model`, `device`, `dtype`: as for `load_policy`; `micro_tokens`: the budget of one pass,
    the same for all forms; `attention`: over trees, None for the device's best; `memory`: whether to measure its
    peak."""

    model: str
    device: str = "auto"
    dtype: str = "float32"
    micro_tokens: int = 16384
    rounds: int = 3
    attention: Form | None = None
    memory: bool = True


class HeldStepper(Stepper):
    """Leaves weights and gradient as they are, and remembers when the gradient was complete."""

    wall = 0.0
    cpu = 0.0

    def step(self, lr: float) -> None:
        self.wall, self.cpu = now(self.weights[0].device), time.process_time()


class Bench:
    """One model and one group, updated in any form."""

    def __init__(self, model: Any, tree: RolloutTree, micro_tokens: int, attention: Form | None = None) -> None:
        self.model = model
        self.device: torch.device = next(model.parameters()).device
        self.tree = tree
        self.credit = assign(tree, credit_settings("soft"))
        self.learners = {form: self._learner(form, micro_tokens) for form in FORMS}
        self.held = HeldStepper(model, self.learners["tree"].optim)
        for form, learner in self.learners.items():
            learner.stepper = self.held
            if attention is not None and form != "padded":
                learner.head.form = attention

    def _learner(self, form: Packing, micro_tokens: int) -> Learner:
        optim = OptimSettings(lr=0.0, packing=form, micro_tokens=micro_tokens, max_grad_norm=1e9)
        return Learner(self.model, loss_settings("grpo"), optim, total_updates=1)

    def adopt(self) -> None:
        """Take the tree for one that was sampled by a policy close to this model."""
        self.tree = with_logprobs(self.tree, self.learners["tree"].logprobs([self.tree])[0])

    def gradient(self, form: Packing) -> Timing:
        """Time one gradient, which stays on the weights until the next one."""
        self.held.clear()
        wall, cpu = now(self.device), time.process_time()
        self.learners[form].update([self.tree], [self.credit])
        return Timing(self.held.wall - wall, self.held.cpu - cpu)

    def observe(self, form: Packing, memory: bool) -> tuple[list[Pass], int | None]:
        """The passes of one gradient, and the bytes that it held at its peak beyond those held before."""
        self.held.clear()
        with recorded(self.learners[form].head) as passes:
            peak = peak_bytes(lambda: self.gradient(form), self.device) if memory else None
            if not memory:
                self.gradient(form)
        return passes, peak

    def step_seconds(self) -> float:
        """Of a step of the optimiser, at rate 0. The gradient is gone afterwards."""
        stepper = Stepper(self.model, self.learners["tree"].optim)
        started = now(self.device)
        stepper.step(0.0)
        return now(self.device) - started


def measure(setting: Setting, shapes: Sequence[Shape], say: Say) -> Iterator[UpdateRow]:
    """One row per shape; `say` hears what is being done. Raises ArpoError for a model that cannot be loaded."""
    if setting.rounds < 1:
        raise ConfigError(f"--rounds {setting.rounds}: at least one is needed")
    model, _ = load_policy(setting.model, dtype=setting.dtype, device=setting.device)
    if next(model.parameters()).device.type == "cpu":
        keep_freed_memory()
    for shape in shapes:
        bench = Bench(model, _tree(model, shape), setting.micro_tokens, setting.attention)
        yield _measure_shape(setting, shape, bench, say)


def _tree(model: Any, shape: Shape) -> RolloutTree:
    return build_tree(shape, model.config.get_text_config().vocab_size)


def _measure_shape(setting: Setting, shape: Shape, bench: Bench, say: Say) -> UpdateRow:
    bench.adopt()
    seen = {form: _observe(setting, shape, bench, form, say) for form in FORMS}
    if setting.memory and bench.device.type == "cpu":
        say(f"{setting.model} {shape}: warming up")
        bench.gradient("padded")  # the others fit into what it leaves to the allocator
    passes, peaks = {form: seen[form][0] for form in FORMS}, {form: seen[form][1] for form in FORMS}
    speed = _speed(bench, passes["tree"])
    rounds = [_round(setting, shape, bench, number, say) for number in range(setting.rounds)]
    observed = Observed(bench.tree, rates(bench.model), passes, peaks, rounds, speed, bench.step_seconds())
    names = {"model": setting.model, "shape": str(shape), "micro_tokens": setting.micro_tokens, "dtype": setting.dtype}
    return update_row(observed, **names, device=str(bench.device), device_name=device_name(bench.device))


def _round(setting: Setting, shape: Shape, bench: Bench, number: int, say: Say) -> dict[Packing, Timing]:
    say(f"{setting.model} {shape}: round {number + 1} of {setting.rounds}")
    order = [FORMS[(number + i) % len(FORMS)] for i in range(len(FORMS))]
    return {form: bench.gradient(form) for form in order}


def _observe(setting: Setting, shape: Shape, bench: Bench, form: Packing, say: Say) -> tuple[list[Pass], int | None]:
    say(f"{setting.model} {shape}: {form}, observed once")
    if bench.device.type != "cpu" or not setting.memory:
        return bench.observe(form, setting.memory)
    with ProcessPoolExecutor(1, _fresh_processes()) as pool:
        try:
            return pool.submit(_observe_alone, setting, shape, form, torch.get_num_threads()).result()
        except BrokenProcessPool as error:
            raise ArpoError(
                f"{setting.model} {shape}, {form}: the process that measures memory was killed, probably for want of "
                "memory; lower --micro-tokens or take a smaller shape"
            ) from error


def _fresh_processes() -> BaseContext:
    """Processes that have imported everything and computed nothing."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "transformers.models.auto"])
    return context


def _observe_alone(setting: Setting, shape: Shape, form: Packing, threads: int) -> tuple[list[Pass], int | None]:
    """In a fresh process."""
    torch.set_num_threads(threads)
    model, _ = load_policy(setting.model, dtype=setting.dtype, device=setting.device)
    return Bench(model, _tree(model, shape), setting.micro_tokens, setting.attention).observe(form, memory=True)


def _speed(bench: Bench, passes: Sequence[Pass]) -> Speed:
    """Of the matrix product that dominates the tree's largest pass."""
    largest = max(passes, key=lambda one: one.tokens)
    form = dominant(bench.model, largest.tokens, largest.labels)
    return Speed(form, matrix_speed(form, bench.model.dtype, bench.device))
