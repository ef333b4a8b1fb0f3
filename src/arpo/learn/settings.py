"""What is minimised and how: the configuration of the learn room.

A loss is one model per published family, told apart by `type`, with the defaults its authors trained with; whatever
several families share stands once, on their base. Symbols as in the loss: r = policy / old policy probability of a
token, A its advantage.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from arpo.settings import Frozen
from arpo.variants import choose

Aggregation = Literal["token_mean", "sequence_mean", "constant", "group_sum"]


class LossBase(Frozen):
    """What every family has: averaging, regularisers, and the gap between sampler and trainer."""

    aggregation: Aggregation = "token_mean"
    """How much a token of weight w counts. `token_mean`: w / sum of all w in the mini-batch. `sequence_mean`: w / sum
    of its trajectory's w / trajectories. `constant`: w / (`length` * trajectories). `group_sum`: w / groups, for
    credit whose weights already sum to 1 over each group (`tree`)."""

    length: int = Field(4096, ge=1)
    """The tokens by which `constant` divides every trajectory, whatever its own length: the response limit. Read by no
    other aggregation."""

    kl: float = Field(0.0, ge=0)
    """Weight of the k3 estimate of KL(policy || reference); above 0 a reference model is held in memory."""

    entropy_bonus: float = Field(0.0, ge=0)
    """Weight of the mean token entropy, subtracted from the loss."""

    old: Literal["sampler", "trainer"] = "sampler"
    """Whose log-probs are the old policy's. `sampler`: those that came with the tokens. `trainer`: the trainer
    computes them again before the first mini-batch; needed where the sampler runs other kernels or another precision,
    and costs one more forward pass."""

    mismatch_cap: float | None = Field(None, ge=1)
    """C: each token's advantage is multiplied by w = min(old policy / sampler, C). 1.5 to 5 is usual; None: no such
    weight. With `old = "trainer"` only."""

    mismatch_reject: float | None = Field(None, gt=0)
    """Trajectories whose mean of rho - ln rho - 1 (rho = old policy / sampler) over their tokens in the loss exceeds
    this are dropped. 1e-3 to 1e-2 is usual; None: none is. With `old = "trainer"` only."""

    @model_validator(mode="after")
    def _ratio_counts_once(self) -> Self:
        for name in ("mismatch_cap", "mismatch_reject"):
            if self.old == "sampler" and getattr(self, name) is not None:
                raise ValueError(
                    f"{name} = {getattr(self, name)} with old = sampler: the ratio already is policy / sampler, so "
                    'correcting for old policy / sampler as well would count it twice; set loss.old = "trainer"'
                )
        return self


class ClippedLoss(LossBase):
    """Families that maximise min(r A, clip(r) A) or come close to it."""

    clip_low: float = Field(0.2, ge=0, lt=1)
    """r is clipped from below at 1 - clip_low (negative advantages)."""

    clip_high: float = Field(0.2, ge=0)
    """r is clipped from above at 1 + clip_high (positive advantages)."""

    dual_clip: float | None = Field(None, gt=1)
    """For A < 0 the loss of a token stops growing at r = dual_clip; None: it does not."""

    max_ratio: float | None = Field(None, gt=1)
    """Truncates r from above whatever the sign of A (no gradient beyond); None: it does not."""

    @model_validator(mode="after")
    def _bounds_are_ordered(self) -> Self:
        for name in ("dual_clip", "max_ratio"):
            bound = getattr(self, name)
            if bound is not None and bound < 1 + self.clip_high:
                raise ValueError(
                    f"{name} = {bound} lies below 1 + clip_high = {1 + self.clip_high}: it would cut what clip_high "
                    f"lets through; raise {name} or lower clip_high"
                )
        return self


class ClipLoss(ClippedLoss):
    """PPO's clipped surrogate with dual clip and token mean: what the ARPO paper trains with."""

    type: Literal["clip"] = "clip"
    dual_clip: float | None = Field(3.0, gt=1)


class GrpoLoss(ClippedLoss):
    """GRPO: the clipped surrogate, averaged within each trajectory first. Its authors add `kl` = 0.04."""

    type: Literal["grpo"] = "grpo"
    aggregation: Aggregation = "sequence_mean"


class DapoLoss(ClippedLoss):
    """DAPO: more room above than below, token mean. Its dynamic sampling is `train.resample_flat`."""

    type: Literal["dapo"] = "dapo"
    clip_high: float = Field(0.28, ge=0)


class DrGrpoLoss(ClippedLoss):
    """Dr. GRPO: every token counts the same however long its trajectory is."""

    type: Literal["dr_grpo"] = "dr_grpo"
    aggregation: Aggregation = "constant"


class ReinforceLoss(ClippedLoss):
    """REINFORCE++: the clipped surrogate with token mean; what sets it apart is its credit."""

    type: Literal["reinforce++"] = "reinforce++"


class GspoLoss(ClippedLoss):
    """GSPO: r is the geometric mean of the token ratios over the trajectory, and the clip range a thousand times
    narrower."""

    type: Literal["gspo"] = "gspo"
    aggregation: Aggregation = "sequence_mean"
    clip_low: float = Field(3e-4, ge=0, lt=1)
    clip_high: float = Field(4e-4, ge=0)


class CispoLoss(LossBase):
    """CISPO: the ratio is a weight, clipped from above; no token loses its gradient."""

    type: Literal["cispo"] = "cispo"

    clip_high: float = Field(4.0, ge=0)
    """The weight of a token is min(r, 1 + clip_high). Its authors tuned this bound alone and give no number; the
    default holds a weight at 5."""


class AepoLoss(ClippedLoss):
    """AEPO: the clipped surrogate, where a clipped token of positive advantage keeps the gradient it has at the bound.
    Ranges and dual clip as in ARPO, on which it is built."""

    type: Literal["aepo"] = "aepo"
    dual_clip: float | None = Field(3.0, gt=1)


LossSettings = Annotated[
    ClipLoss | GrpoLoss | DapoLoss | DrGrpoLoss | ReinforceLoss | GspoLoss | CispoLoss | AepoLoss,
    Field(discriminator="type"),
]


def loss_settings(type: str = "clip", **options: Any) -> LossSettings:
    """The settings of a family: `loss_settings("dapo", clip_high=0.3)`. Raises ConfigError with the nearest name."""
    return choose(LossSettings, "loss", type, options)


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

    packing: Literal["tree", "sequence", "padded"] = "tree"
    """What a forward pass reads. `tree`: each token of a tree once, however many trajectories share it. `sequence`:
    trajectories back to back, without padding and without sharing. `padded`: trajectories as padded rows. The result
    is the same, memory and speed are not."""

    micro_tokens: int = Field(16384, ge=1)
    """Tokens per forward pass, padding included. Changes memory and speed, never the result (a trajectory that is
    longer than this goes through alone)."""

    autocast: Literal["none", "bf16"] = "none"
    """`bf16`: matrix products of the forward pass in bfloat16, weights and loss as they are. `none`: all in the
    weights' own precision."""

    gradient_checkpointing: bool = False

    @model_validator(mode="after")
    def _betas_below_one(self) -> "OptimSettings":
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas = {self.betas}: each must lie in [0, 1)")
        return self
