"""What is minimised and how: the configuration of the learn room."""

from typing import Literal

from pydantic import Field, model_validator

from arpo.settings import Frozen


class LossSettings(Frozen):
    """The clipped surrogate. Symbols as in the loss: r = policy / sampler probability of a token, A its advantage."""

    type: Literal["clip"] = "clip"
    clip_low: float = Field(0.2, ge=0, lt=1)
    """r is clipped from below at 1 - clip_low (negative advantages)."""

    clip_high: float = Field(0.2, ge=0)
    """r is clipped from above at 1 + clip_high (positive advantages)."""

    dual_clip: float | None = Field(3.0, gt=1)
    """For A < 0 the loss of a token stops growing at r = dual_clip; None: it does not."""

    aggregation: Literal["token_mean", "sequence_mean"] = "token_mean"
    """`token_mean`: weighted mean over all tokens of the mini-batch; `sequence_mean`: mean over trajectories of their
    own weighted token means."""

    kl: float = Field(0.0, ge=0)
    """Weight of the k3 estimate of KL(policy || reference); above 0 a reference model is held in memory."""

    max_ratio: float | None = Field(None, gt=1)
    """Truncates r from above whatever the sign of A (no gradient beyond); None: it does not."""

    entropy_bonus: float = Field(0.0, ge=0)
    """Weight of the mean token entropy, subtracted from the loss."""

    @model_validator(mode="after")
    def _bounds_are_ordered(self) -> "LossSettings":
        for name in ("dual_clip", "max_ratio"):
            bound = getattr(self, name)
            if bound is not None and bound < 1 + self.clip_high:
                raise ValueError(
                    f"{name} = {bound} lies below 1 + clip_high = {1 + self.clip_high}: it would cut what clip_high "
                    f"lets through; raise {name} or lower clip_high"
                )
        return self


class OptimSettings(Frozen):
    """AdamW, its schedule, and how much is computed at once."""

    lr: float = Field(1e-6, ge=0)
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = Field(0.0, ge=0)
    schedule: Literal["constant", "cosine"] = "constant"
    """After the warm-up: stay at `lr`, or fall along half a cosine that would reach 0 one update after the last."""

    warmup_steps: int = Field(0, ge=0)
    """Updates over which the rate rises linearly from lr / warmup_steps."""

    max_grad_norm: float = Field(1.0, gt=0)
    """The gradient's Euclidean norm is scaled down to this."""

    micro_tokens: int = Field(16384, ge=1)
    """Tokens per forward pass, padding included. Changes memory and speed, never the result (a trajectory that is
    longer than this goes through alone)."""

    gradient_checkpointing: bool = False

    @model_validator(mode="after")
    def _betas_below_one(self) -> "OptimSettings":
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas = {self.betas}: each must lie in [0, 1)")
        return self
