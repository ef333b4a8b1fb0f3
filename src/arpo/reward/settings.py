"""What is rewarded."""

from pydantic import Field, model_validator

from arpo.reward.answers import Mode
from arpo.settings import Frozen


class OverlongSettings(Frozen):
    """A price on length that sets in softly: 0 up to limit - buffer, falling linearly to -penalty at `limit`.

    Lengths are in tokens that the policy sampled: a long tool result costs nothing. `buffer`: tokens of the slope.
    Source: Yu et al. 2025, "DAPO: An Open-Source LLM Reinforcement Learning System at Scale", equation 13 (there
    limit 20480, buffer 4096, penalty 1).
    """

    limit: int = Field(ge=1)
    buffer: int = Field(ge=1)
    penalty: float = Field(default=1.0, gt=0)

    @model_validator(mode="after")
    def _buffer_within_limit(self) -> "OverlongSettings":
        if self.buffer > self.limit:
            raise ValueError(
                f"buffer = {self.buffer} exceeds limit = {self.limit}: every trajectory would be penalised; "
                "lower reward.overlong.buffer or raise reward.overlong.limit"
            )
        return self


class RewardSettings(Frozen):
    """Hierarchical reward: malformed `format_penalty`, wrong 0, right its accuracy plus bonuses.

    `accuracy`: how answers are compared, a mode of `score_answer`; "hybrid" asks the task for the kind of its answer
    (and, where that says "auto", the gold answer).
    `multi_tool_bonus`: for a right answer on whose way all of `multi_tools` were executed. `tool_cost`: per executed
    call, `redundant_penalty`: per call made before with the same arguments; both are taken off whatever the answer.
    `overlong`: a price on length, likewise; None: none.
    """

    accuracy: Mode = "hybrid"
    success_bonus: float = Field(default=0.0, ge=0)
    multi_tool_bonus: float = Field(default=0.1, ge=0)
    multi_tools: tuple[str, ...] = ("search", "python")
    format_penalty: float = Field(default=-1.0, le=0)
    tool_cost: float = Field(default=0.0, ge=0)
    redundant_penalty: float = Field(default=0.0, ge=0)
    overlong: OverlongSettings | None = None
