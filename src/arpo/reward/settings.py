"""What is rewarded."""

from typing import Literal

from pydantic import Field, field_validator, model_validator

from arpo.reward.answers import Mode
from arpo.reward.judge.settings import JudgeSettings
from arpo.reward.mathematics import MathematicsSettings
from arpo.settings import Frozen

Accuracy = Literal[Mode, "judge", "judge_paper", "hle", "simpleqa", "xbench", "none"]
"""A metric (`arpo.reward.metrics`), or none at all."""


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

    `composition`: "hierarchical", or "official": accuracy, format and bonus as ARPO's public code has them, from the
    whole text (`arpo.reward.paper`), for comparisons; it needs `accuracy = "paper"`.
    `accuracy`: how answers are compared. A mode of `score_answer`: "hybrid" asks the task for the kind of its answer
    (and, where that says "auto", the gold answer). Or a judge: "judge" or a protocol's name, with the table `judge`.
    Or "none": not at all, where a custom reward does it. `mathematics`: how formulas are compared.
    `custom`: "module:function", a reward of your own (`arpo.reward.custom`); what it returns is added, times
    `custom_weight`.
    `multi_tool_bonus`: for a right answer on whose way all of `multi_tools` were executed. `tool_cost`: per executed
    call, `redundant_penalty`: per call made before with the same arguments; both are taken off whatever the answer.
    `overlong`: a price on length, likewise; None: none.
    """

    composition: Literal["hierarchical", "official"] = "hierarchical"
    accuracy: Accuracy = "hybrid"
    mathematics: MathematicsSettings = MathematicsSettings()
    judge: JudgeSettings | None = None
    custom: str | None = None
    custom_weight: float = Field(default=1.0, allow_inf_nan=False)
    success_bonus: float = Field(default=0.0, ge=0)
    multi_tool_bonus: float = Field(default=0.1, ge=0)
    multi_tools: tuple[str, ...] = ("search", "python")
    format_penalty: float = Field(default=-1.0, le=0)
    tool_cost: float = Field(default=0.0, ge=0)
    redundant_penalty: float = Field(default=0.0, ge=0)
    overlong: OverlongSettings | None = None

    @field_validator("custom")
    @classmethod
    def _names_a_function(cls, path: str | None) -> str | None:
        module, colon, function = (path or "").partition(":")
        if path is not None and not (module and colon and function.isidentifier()):
            raise ValueError(f"custom = {path!r} is not of the form module:function")
        return path

    @model_validator(mode="after")
    def _somebody_decides(self) -> "RewardSettings":
        if self.accuracy in ("judge", "judge_paper", "hle", "simpleqa", "xbench") and self.judge is None:
            raise ValueError(
                f'accuracy = "{self.accuracy}" needs a judge: set base_url and model in [reward.judge], or compare by '
                'rule (accuracy = "hybrid")'
            )
        if self.accuracy == "none" and self.custom is None:
            raise ValueError(
                'accuracy = "none" leaves nothing that tells a right answer from a wrong one; set custom to a reward '
                'of your own ("module:function"), or accuracy to a mode'
            )
        return self

    @model_validator(mode="after")
    def _official_is_as_published(self) -> "RewardSettings":
        if self.composition == "hierarchical":
            return self
        if self.accuracy != "paper":
            raise ValueError(
                f'composition = "official" compares as published: set accuracy = "paper", not {self.accuracy}'
            )
        for name in ("multi_tool_bonus", "multi_tools", "format_penalty"):
            if getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f'composition = "official" has its own {name}; leave it out')
        return self
