"""Configuration of a rollout: how many trajectories, how long, and when to branch.

Names follow the algorithm's symbols: M `total`, N `initial`, Z `branches`, k `window`, alpha `base_probability`,
beta `entropy_weight`, tau `threshold`. The rules are told apart by `type`; each is a frozen model of its own options.
"""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from arpo.settings import Frozen

Position = Literal["state", "after_window", "before_window"]
"""Where children open: at the state after the result, after the measured window, or (biased, the paper's form, kept
for reproduction) before the window that was looked at."""


class EntropySettings(Frozen):
    """How entropy is measured. `window`: k tokens; `min_tokens`: fewer measured after a result than this, no branch."""

    window: int = Field(20, ge=1)
    normaliser: Literal["ln_vocab", "vocab", "none"] = "ln_vocab"
    min_tokens: int = Field(1, ge=1)

    @model_validator(mode="after")
    def _reachable(self) -> "EntropySettings":
        if self.min_tokens > self.window:
            raise ValueError(
                f"min_tokens = {self.min_tokens} exceeds window = {self.window}: no branch could ever open; "
                "lower entropy.min_tokens or raise entropy.window"
            )
        return self


class _Placed(Frozen):
    """What every branching rule says: where children open, and whether look-ahead tokens are spent to decide."""

    at: Position = "after_window"
    lookahead: bool = False
    """With `at = "state"`: average over k tokens sampled for this alone and thrown away, not over the next one only."""

    @model_validator(mode="after")
    def _lookahead_needs_state(self) -> "_Placed":
        if self.lookahead and self.at != "state":
            raise ValueError(f'lookahead = true goes with at = "state" only, not with at = "{self.at}"')
        return self


class EntropyRule(_Placed):
    """Branch iff P = base_probability + entropy_weight * delta > threshold (strictly)."""

    type: Literal["entropy"] = "entropy"
    base_probability: float = 0.5
    entropy_weight: float = 0.2
    threshold: float = 0.5


class BernoulliRule(_Placed):
    """Branch with probability P, seeded: what the public code does. `entropy_weight` 0 branches at random."""

    type: Literal["bernoulli"] = "bernoulli"
    base_probability: float = 0.5
    entropy_weight: float = 0.2


class AbsoluteAndDeltaRule(_Placed):
    """Branch iff the entropy after the result exceeds `entropy_threshold` (nats) and P > threshold, both strictly."""

    type: Literal["absolute_and_delta"] = "absolute_and_delta"
    entropy_threshold: float = Field(0.0, ge=0)
    base_probability: float = 0.5
    entropy_weight: float = 0.2
    threshold: float = 0.5


class NoBranching(Frozen):
    """Never branch: independent trajectories, as GRPO has them."""

    type: Literal["none"] = "none"


Rule = Annotated[EntropyRule | BernoulliRule | AbsoluteAndDeltaRule | NoBranching, Field(discriminator="type")]


class RolloutSettings(Frozen):
    """One prompt's group of trajectories.

    `max_tokens`: response tokens of a trajectory, tool results and notices included; a task whose prompt leaves less
    room in the engine's context gets what is left. `max_calls`: tool calls of a trajectory, malformed ones included.
    `max_branch_depth`: branching points on one path at the most. `budget_order`: who gets the M - N branches when
    more are wanted: "path" (by depth, then by a hash of the path: the same tree whatever finishes first; children may
    wait until it is certain that nobody with an earlier claim is left) or "arrival" (nobody waits; not reproducible
    when tools are slow). `concurrency`: prompts in flight at once.
    """

    total: int = Field(16, ge=1)
    initial: int = Field(8, ge=1)
    branches: int = Field(1, ge=1)
    max_tokens: int = Field(4096, ge=1)
    max_calls: int = Field(6, ge=0)
    temperature: float = Field(1.0, ge=0)
    top_p: float = Field(1.0, gt=0, le=1)
    max_branch_depth: int | None = Field(None, ge=1)
    max_result_tokens: int = Field(1024, ge=16)
    branching: Rule = EntropyRule()
    budget_order: Literal["path", "arrival"] = "path"
    concurrency: int = Field(64, ge=1)

    @model_validator(mode="after")
    def _budget_adds_up(self) -> "RolloutSettings":
        if self.initial > self.total:
            raise ValueError(
                f"initial = {self.initial} exceeds total = {self.total}: a group cannot start more trajectories than "
                "it holds; lower rollout.initial or raise rollout.total"
            )
        if self.branching.type == "none" and self.initial != self.total:
            raise ValueError(
                f"branching is off, so the {self.total - self.initial} trajectories beyond initial = {self.initial} "
                f"cannot come from branches; set rollout.initial = rollout.total = {self.total}"
            )
        if self.temperature == 0 and self.total > 1:
            raise ValueError(
                f"temperature = 0 makes all {self.total} trajectories the same; "
                "set rollout.total = rollout.initial = 1 or raise rollout.temperature"
            )
        return self
