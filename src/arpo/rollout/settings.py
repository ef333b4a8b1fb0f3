"""Configuration of a rollout: how many trajectories, how long, and when to branch.

Names follow the algorithm's symbols: M `total`, N `initial`, Z `branches`, k `window`, alpha `base_probability`,
beta `entropy_weight`, tau `threshold`. The rules are told apart by `type`; each is a frozen model of its own options.
"""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from arpo.settings import Frozen

Position = Literal["state", "after_window", "before_window", "stale_state"]
"""Where children open: at the state after the result, after the measured window, or (biased, the paper's form, kept
for reproduction) before the window that was looked at. "stale_state" (the public code's form, kept for reproduction):
at the state after the result too, but decided on the segment that ended in the call, so the first call sees no change.
"""


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


class _Blind(_Placed):
    """A rule that reads no entropy: the controls."""

    @model_validator(mode="after")
    def _nothing_to_look_ahead_for(self) -> "_Blind":
        if self.lookahead:
            raise ValueError("lookahead = true would throw tokens away for nothing: this rule reads no entropy")
        return self

    @model_validator(mode="after")
    def _nothing_is_stale(self) -> "_Blind":
        if self.at == "stale_state":
            raise ValueError('at = "stale_state" names an entropy, and this rule reads none; set at = "state"')
        return self


class WeightedRule(_Placed):
    """Every rule with P = base_probability + entropy_weight * delta, or a variation of it."""

    base_probability: float = 0.5
    entropy_weight: float = 0.2


class EntropyRule(WeightedRule):
    """Branch iff P = base_probability + entropy_weight * delta > threshold (strictly)."""

    type: Literal["entropy"] = "entropy"
    threshold: float = 0.5


class BernoulliRule(WeightedRule):
    """Branch with probability P, seeded: what the public code does. `entropy_weight` 0 branches at random."""

    type: Literal["bernoulli"] = "bernoulli"


class AbsoluteAndDeltaRule(WeightedRule):
    """Branch iff the entropy after the result exceeds `entropy_threshold` (nats) and P > threshold, both strictly."""

    type: Literal["absolute_and_delta"] = "absolute_and_delta"
    entropy_threshold: float = Field(0.0, ge=0)
    threshold: float = 0.5


class RandomRule(_Blind):
    """Branch with one and the same `probability` everywhere, seeded: a control."""

    type: Literal["random"] = "random"
    probability: float = Field(0.5, gt=0, le=1)


class UniformRule(_Blind):
    """Branch after every tool result, as long as the budget lasts: a control."""

    type: Literal["uniform"] = "uniform"


class ReverseRule(WeightedRule):
    """Branch iff base_probability - entropy_weight * delta > threshold: where the result settled things. A control."""

    type: Literal["reverse"] = "reverse"
    threshold: float = 0.5


class AepoRule(WeightedRule):
    """Branch iff (base_probability + entropy_weight * delta) (1 - penalty * l) > threshold (strictly).

    l: branchings in a row directly before this one on the path. With `monitor`, the group's first trajectory runs
    alone and without branches; what it saw then decides N in place of `rollout.initial`:
    N = total * sigmoid(sharpness * (H_root - mean H_tool)), see `rollout.branching.monitored_initial`.

    From the paper (arXiv 2510.14545): the sigmoid, and a penalty that grows with l. From its code: the slope .05. Ours:
    l is counted along the path, not over the whole prompt; it counts decisions to branch, since the budget's answer may
    come later; P is compared with the threshold as it is, without a random term.
    """

    type: Literal["aepo"] = "aepo"
    threshold: float = 0.5
    penalty: float = Field(0.05, ge=0, le=1)
    monitor: bool = True
    sharpness: float = Field(1.0, ge=0)


class CredibleRule(WeightedRule):
    """The entropy rule where the tool result passed: it succeeded, is not empty, and scores above `min_score`.

    A tool that gives no score fails a `min_score`. None: no score is asked for.
    """

    type: Literal["credible"] = "credible"
    threshold: float = 0.5
    min_score: float | None = None


class NoBranching(Frozen):
    """Never branch: independent trajectories, as GRPO has them."""

    type: Literal["none"] = "none"


BranchingRule = (
    EntropyRule
    | BernoulliRule
    | AbsoluteAndDeltaRule
    | RandomRule
    | UniformRule
    | ReverseRule
    | AepoRule
    | CredibleRule
)
Rule = Annotated[BranchingRule | NoBranching, Field(discriminator="type")]


class BudgetSettings(Frozen):
    """Who gets the M - N branches when more are wanted than there are, and where none may open.

    `order`: "path" (by depth, then by a hash of the place), "spread" (by depth, then the largest rise of entropy first,
    then the hash), both the same whatever finishes first, or "arrival" (at once, not reproducible when tools are slow).
    `per_trajectory_cap`: branches that one trajectory opens at the most. `max_forks`: branching points on one path at
    the most. `max_depth`: no branch after a tool result that is deeper. `min_tokens_left`: no branch where fewer
    response tokens are left.
    """

    order: Literal["path", "spread", "arrival"] = "path"
    per_trajectory_cap: int | None = Field(None, ge=1)
    max_forks: int | None = Field(None, ge=1)
    max_depth: int | None = Field(None, ge=1)
    min_tokens_left: int = Field(0, ge=0)


class RolloutSettings(Frozen):
    """One prompt's group of trajectories.

    `max_tokens`: response tokens of a trajectory, tool results and notices included; a task whose prompt leaves less
    room in the engine's context gets what is left. `max_calls`: tool calls of a trajectory, malformed ones included.
    `share_calls`: equal tool calls run once: among trajectories with equal `histories`, or in the whole `group` for
    tools that keep no state (histories included). `concurrency`: prompts in flight at once.
    """

    total: int = Field(16, ge=1)
    initial: int = Field(8, ge=1)
    branches: int = Field(1, ge=1)
    max_tokens: int = Field(4096, ge=1)
    max_calls: int = Field(6, ge=0)
    temperature: float = Field(1.0, ge=0)
    top_p: float = Field(1.0, gt=0, le=1)
    max_result_tokens: int = Field(1024, ge=16)
    branching: Rule = EntropyRule()
    budget: BudgetSettings = BudgetSettings()
    share_calls: Literal["off", "histories", "group"] = "group"
    concurrency: int = Field(64, ge=1)

    @property
    def monitors(self) -> bool:
        """Whether the group's first trajectory decides how many start from the prompt, in place of `initial`."""
        return isinstance(self.branching, AepoRule) and self.branching.monitor

    @property
    def may_branch(self) -> bool:
        """Whether any branch could ever open."""
        return self.branching.type != "none" and (self.monitors or self.initial < self.total)

    @model_validator(mode="after")
    def _budget_adds_up(self) -> "RolloutSettings":
        if self.initial > self.total and not self.monitors:
            raise ValueError(
                f"initial = {self.initial} exceeds total = {self.total}: a group cannot start more trajectories than "
                "it holds; lower rollout.initial or raise rollout.total"
            )
        if self.branching.type == "none" and self.initial != self.total:
            raise ValueError(
                f"branching is off, so the {self.total - self.initial} trajectories beyond initial = {self.initial} "
                f"cannot come from branches; set rollout.initial = rollout.total = {self.total}"
            )
        if self.may_branch and self.budget.min_tokens_left >= self.max_tokens:
            raise ValueError(
                f"budget.min_tokens_left = {self.budget.min_tokens_left} is not below max_tokens = {self.max_tokens}, "
                "so no branch could ever open; lower rollout.budget.min_tokens_left or raise rollout.max_tokens"
            )
        if self.temperature == 0 and self.total > 1:
            raise ValueError(
                f"temperature = 0 makes all {self.total} trajectories the same; "
                "set rollout.total = rollout.initial = 1 or raise rollout.temperature"
            )
        return self
