"""What is rewarded."""

from typing import Literal

from pydantic import Field

from arpo.settings import Frozen


class RewardSettings(Frozen):
    """Hierarchical reward: malformed `format_penalty`, wrong 0, right its accuracy plus bonuses.

    `accuracy`: how answers are compared; "auto" asks the task (and, where that says "auto", the gold answer).
    `multi_tool_bonus`: for a right answer on whose way all of `multi_tools` were executed. `tool_cost`: per executed
    call, `redundant_penalty`: per call made before with the same arguments; both are taken off whatever the answer.
    """

    accuracy: Literal["auto", "f1", "em", "number"] = "auto"
    success_bonus: float = Field(default=0.0, ge=0)
    multi_tool_bonus: float = Field(default=0.1, ge=0)
    multi_tools: tuple[str, ...] = ("search", "python")
    format_penalty: float = Field(default=-1.0, le=0)
    tool_cost: float = Field(default=0.0, ge=0)
    redundant_penalty: float = Field(default=0.0, ge=0)
