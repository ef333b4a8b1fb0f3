"""Judges: models that say whether an answer means what the gold answer means, where no rule can."""

from arpo.reward.judge.settings import JudgeSettings

__all__ = ["JudgeSettings"]
