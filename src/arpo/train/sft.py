"""Supervised fine-tuning on token-exact demonstrations, by TRL's SFTTrainer.

What goes in is already token ids with labels, so that training sees exactly the tokens that a rollout would produce,
and no loss falls on prompts or tool results. Around TRL's loss stand three things of ours: batches filled by tokens
instead of rows, an optimiser of choice, and a clock that ends the run at a step or a second, whichever comes first,
with the decay of the learning rate finished by then.

Several processes (RANK, WORLD_SIZE in the environment, as torchrun sets them) train data-parallel; on CPU over gloo.
"""

import copy
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch.utils.data import DataLoader, IterableDataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback
from transformers.trainer_callback import PrinterCallback, TrainerControl, TrainerState
from trl import SFTConfig, SFTTrainer

from arpo.train.batches import Row
from arpo.train.muon import make_optimizer
from arpo.train.sft_settings import SftSettings

_FLOOR = 0.02
"""What the learning rate decays to, as a share of its peak."""
_NO_LIMIT = 10**9


@dataclass
class Clock:
    """How far a run is, in [0, 1]: the larger of its share of the steps and its share of the seconds."""

    steps: int | None
    seconds: float | None
    warmup: int
    decay: float
    step: int = 0
    progress: float = 0.0
    _start: float = field(default_factory=time.monotonic)

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._start

    def restart(self) -> None:
        self._start = time.monotonic()

    def advance(self, step: int) -> None:
        """Read the time; every process takes over what the first one read, so that all stop at the same step."""
        shares = [step / self.steps if self.steps else 0.0, self.elapsed / self.seconds if self.seconds else 0.0]
        self.step, self.progress = step, _agreed(min(1.0, max(shares)))

    def factor(self) -> float:
        """The learning rate as a share of its peak: linear warm-up, constant, linear decay."""
        warm = min(1.0, (self.step + 1) / self.warmup) if self.warmup else 1.0
        cool = min(1.0, (1 - self.progress) / self.decay + _FLOOR) if self.decay else 1.0
        return warm * cool


def _agreed(value: float) -> float:
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return value
    shared = torch.tensor([value], dtype=torch.float64)
    torch.distributed.broadcast(shared, 0)
    return float(shared)


class _Stream(IterableDataset[list[dict[str, list[int]]]]):
    """Batches as lists of TRL's row dicts, in the order in which the source yields them."""

    def __init__(self, batches: Iterator[list[Row]]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[list[dict[str, list[int]]]]:
        for batch in self._batches:
            yield [as_dict(row) for row in batch]


def as_dict(row: Row) -> dict[str, list[int]]:
    return {"input_ids": row.input_ids, "labels": row.labels}


class TokenTrainer(SFTTrainer):
    """SFTTrainer fed with ready batches. TRL inspects the columns of a data set, so the first batch serves as one."""

    def __init__(self, *, batches: Iterator[list[Row]], first: list[Row], **kwargs: Any) -> None:
        self._batches, self._first = batches, first
        super().__init__(train_dataset=Dataset.from_list([as_dict(row) for row in first]), **kwargs)

    def get_train_dataloader(self) -> DataLoader:
        def whole() -> Iterator[list[Row]]:
            yield self._first
            yield from self._batches

        return DataLoader(_Stream(whole()), batch_size=None, collate_fn=self._collate)

    def _collate(self, rows: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
        """TRL's padding on the right. There the causal mask alone keeps padding out of every token that has a label,
        and an attention mask of ones spares the slower attention with an explicit mask."""
        batch = self.data_collator(rows)
        batch["attention_mask"] = torch.ones_like(batch["attention_mask"])
        return batch


class _Keeper(TrainerCallback):
    """Drives the clock, stops in time, and tells the progress."""

    def __init__(self, clock: Clock, every: float, say: Callable[[str], None]) -> None:
        self._clock, self._every, self._say = clock, every, say
        self._said = 0.0
        self.history: list[dict[str, float]] = []

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self._clock.restart()

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> TrainerControl:
        self._clock.advance(state.global_step)
        control.should_log = self._due()
        control.should_training_stop = control.should_training_stop or self._clock.progress >= 1
        return control

    def _due(self) -> bool:
        """Every process must log at the same steps (logging gathers), so the agreed progress decides."""
        spent = self._clock.elapsed if self._clock.seconds is None else self._clock.progress * self._clock.seconds
        due = _agreed(spent) - self._said >= self._every or self._clock.progress >= 1
        if due:
            self._said = _agreed(spent)
        return due

    def on_log(self, args: Any, state: TrainerState, control: TrainerControl, logs: Any = None, **_: Any) -> None:
        if not logs or "loss" not in logs or not state.is_world_process_zero:
            return
        self.history.append({"step": state.global_step, "seconds": self._clock.elapsed, **logs})
        self._say(
            f"cold start: {self._clock.elapsed:4.0f} s, step {state.global_step}, loss {float(logs['loss']):.3f}, "
            f"tokens right {logs['mean_token_accuracy']:.3f}, {logs['num_tokens'] / self._clock.elapsed:,.0f} tokens/s"
        )


def fit(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    batches: Iterator[list[Row]],
    settings: SftSettings,
    *,
    clock: Clock | None = None,
    say: Callable[[str], None] = print,
) -> list[dict[str, float]]:
    """Train `model` in place on this process's share of batches; the logged metrics, on the first process.

    `batches` is read lazily; it may look at `clock` (see `new_clock`) to make a curriculum.
    """
    clock = clock or new_clock(settings)
    keeper = _Keeper(clock, settings.log_seconds, say)
    optimizer = make_optimizer(
        model,
        lr=settings.lr,
        muon_lr=settings.muon_lr,
        betas=settings.betas,
        weight_decay=settings.weight_decay,
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: clock.factor())
    with tempfile.TemporaryDirectory(prefix="arpo-sft-") as scratch:
        trainer = TokenTrainer(
            model=model,
            args=_arguments(settings, clock, scratch),
            processing_class=tokenizer,
            batches=batches,
            first=next(batches),
            optimizers=(optimizer, schedule),
            callbacks=[keeper],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return keeper.history


def new_clock(settings: SftSettings) -> Clock:
    """The clock of a run. With neither steps nor seconds it would never end: ValueError."""
    if settings.steps is None and settings.max_seconds is None:
        raise ValueError("sft.steps or sft.max_seconds must say when to stop")
    return Clock(settings.steps, settings.max_seconds, settings.warmup_steps, settings.decay)


def _arguments(settings: SftSettings, clock: Clock, scratch: str) -> SFTConfig:
    cpu = not torch.cuda.is_available()
    with warnings.catch_warnings():
        # TRL's own default goes by this name, which transformers has renamed; it must be set under it to be off.
        warnings.filterwarnings("ignore", "`gradient_checkpointing` is deprecated", FutureWarning)
        return _config(settings, clock, scratch, cpu)


def _config(settings: SftSettings, clock: Clock, scratch: str, cpu: bool) -> SFTConfig:
    return SFTConfig(
        output_dir=scratch,
        max_steps=clock.steps or _NO_LIMIT,
        max_length=None,
        per_device_train_batch_size=1,
        max_grad_norm=settings.max_grad_norm,
        gradient_checkpointing=settings.gradient_checkpointing,
        logging_strategy="no",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        dataset_kwargs={"skip_prepare_dataset": True},
        use_cpu=cpu,
        bf16=not cpu and torch.cuda.is_bf16_supported(),
        ddp_backend="gloo" if cpu and int(os.environ.get("WORLD_SIZE", "1")) > 1 else None,
        ddp_find_unused_parameters=False,
        seed=settings.seed,
    )


def save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path, dtype: torch.dtype) -> None:
    """Hugging Face layout: model.safetensors, config.json, the tokenizer's files. The model in memory is left as is."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: tensor.detach().to(dtype) for name, tensor in model.state_dict().items()}
    for tied in model.all_tied_weights_keys:
        weights.pop(tied, None)
    model.save_pretrained(folder, state_dict=weights)
    config = copy.deepcopy(model.config)
    config.dtype, config.use_cache = dtype, True  # the model's own say fp32, and no cache since it was trained
    config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
