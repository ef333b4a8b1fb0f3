"""What a trajectory is worth: answers compared, format checked, parts added up."""

from arpo.reward.answers import best_score, score_answer, score_many

__all__ = ["best_score", "score_answer", "score_many"]
