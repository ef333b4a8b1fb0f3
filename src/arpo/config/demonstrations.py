"""The cold start that a configuration describes: which demonstrations, in which batches, and where the model goes."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from arpo.config.schema import Config
from arpo.config.wire import adapt, no_progress_bars
from arpo.errors import ConfigError, DataError
from arpo.seeds import derive
from arpo.train.batches import IGNORED, Row, bucket, encode_pieces, repeat, stream
from arpo.train.sft_settings import SftSettings

DRAWN = 300
"""Demonstrations generated at a time, enough to fill batches of like length."""


def cold_start(config: Config, folder: Path, say: Callable[[str], None]) -> Path:
    """Fine-tune `model.path` on the demonstrations of `sft` and save it in `folder`; the folder.

    With `model.lora` an adapter learns, and is merged into the weights that are saved.
    Raises DataError naming file and row, ConfigError where there is nothing to learn from or no end.
    """
    from arpo.engine.lora import merge
    from arpo.engine.models import load_policy, pick_dtype
    from arpo.train.sft import fit, new_clock, save

    no_progress_bars()
    conversations = [one for path in config.sft.files for one in _read(path)]
    model, tokenizer = load_policy(config.model.path, dtype="float32", device=config.model.device)
    adapt(config, model)
    rng = random.Random(derive(config.sft.seed, "sft"))
    if conversations:
        rows = _rows(conversations, tokenizer, config.sft)
        settings = _bounded(config.sft, len(bucket(rows, config.sft.batch_tokens, random.Random(0))))
        batches = repeat(rows, settings.batch_tokens, rng, rank=0, world=1)
    else:
        settings = _limited(config.sft)
        batches = _generated(config, tokenizer, rng)
    fit(model, tokenizer, batches, settings, clock=new_clock(settings), say=say)
    merge(model)
    save(model, tokenizer, folder, pick_dtype(config.model.dtype))
    return folder


def _read(path: str) -> list[Any]:
    from arpo.data.conversations import read_conversations

    return read_conversations(path)


def _rows(conversations: list[Any], tokenizer: Any, settings: SftSettings) -> list[Row]:
    from arpo.data.conversations import to_pieces

    rows = encode_pieces(tokenizer, [to_pieces(one, tokenizer) for one in conversations])
    for conversation, row in zip(conversations, rows, strict=True):
        if all(label == IGNORED for label in row.labels):
            raise DataError(
                f"{conversation.origin}: the chat template of this model renders nothing that it could learn to write; "
                "choose a chat model"
            )
        if len(row) > settings.max_length:
            raise DataError(
                f"{conversation.origin}: {len(row)} tokens are more than sft.max_length = {settings.max_length}; "
                "shorten the conversation or raise the limit"
            )
    return rows


def _bounded(settings: SftSettings, batches: int) -> SftSettings:
    """With neither steps nor seconds: one pass."""
    endless = settings.steps is None and settings.max_seconds is None
    return settings.model_copy(update={"steps": batches}) if endless else settings


def _limited(settings: SftSettings) -> SftSettings:
    if settings.steps is None and settings.max_seconds is None:
        raise ConfigError("generated demonstrations never run out: set sft.steps or sft.max_seconds")
    return settings


def _generated(config: Config, tokenizer: Any, rng: random.Random) -> Iterator[list[Row]]:
    """Factbook demonstrations, which are written in the pocket policy's own format."""
    from arpo.data.factbook.traces import TraceSource

    if tokenizer.init_kwargs.get("arpo_style") != "compact":
        raise ConfigError(
            f"generated demonstrations are written for the pocket policy, not for model {config.model.path!r}; "
            "name conversations for it in sft.files"
        )
    source = TraceSource()

    def draw() -> list[Row]:
        return encode_pieces(tokenizer, [source.draw(rng, config.sft.style).pieces for _ in range(DRAWN)])

    return stream(draw, config.sft.batch_tokens, rng)
