"""The cold start's configuration."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from arpo.settings import Frozen


def _listed(value: Any) -> Any:
    if isinstance(value, str):
        return (value,)
    return tuple(value) if isinstance(value, list) else value


class SftSettings(Frozen):
    """Learning from demonstrations. Prompts and tool results carry no loss."""

    files: Annotated[tuple[str, ...], BeforeValidator(_listed)] = ()
    """Conversations (ShareGPT or Alpaca; JSON or JSONL). Empty: demonstrations are generated from the factbook."""

    style: Literal["clean", "varied"] = "varied"
    """Generated demonstrations: `clean` ones use the best strategy always, `varied` ones mix better and worse."""

    steps: int | None = Field(None, ge=1)
    """Optimiser steps; None: one pass over the files, or no limit but the time where demonstrations are generated."""

    max_seconds: float | None = Field(None, gt=0)
    """End by this time, the decay of the learning rate included; None: no limit."""

    batch_tokens: int = Field(3000, ge=64)
    """Tokens per process and optimiser step, padding included; a longer conversation is a batch of its own."""

    max_length: int = Field(4096, ge=16)
    """Longer conversations are an error that names the row: cut off, they would teach to stop half-way."""

    lr: float = Field(1e-5, gt=0)
    """Peak learning rate of AdamW."""

    muon_lr: float | None = Field(None, gt=0)
    """Peak learning rate of Muon for the matrices inside the layers; None: AdamW trains everything."""

    betas: tuple[float, float] = (0.9, 0.98)
    weight_decay: float = Field(0.0, ge=0)
    warmup_steps: int = Field(40, ge=0)
    decay: float = Field(0.4, ge=0, le=1)
    """The last part of the run, as a share of it, in which the learning rate falls linearly to 2 % of its peak."""

    max_grad_norm: float = Field(1.0, gt=0)
    gradient_checkpointing: bool = False
    log_seconds: float = Field(15.0, gt=0)
    """Time between progress lines."""

    seed: int = 0
