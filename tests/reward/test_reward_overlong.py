"""The soft price on length: where it sets in, what it counts, and what it refuses."""

import numpy as np
import pytest
from pydantic import ValidationError

from arpo.reward.compose import overlong_penalty, score
from arpo.reward.settings import OverlongSettings, RewardSettings
from arpo.task import ask
from arpo.tree import Finish, RolloutTree, Segment, Source, ToolEvent

SOFT = OverlongSettings(limit=10, buffer=4, penalty=0.5)


@pytest.mark.parametrize(
    ("length", "penalty"), [(0, 0.0), (6, 0.0), (7, 0.125), (8, 0.25), (9, 0.375), (10, 0.5), (11, 0.5), (99, 0.5)]
)
def test_nothing_then_a_slope_then_all(length: int, penalty: float) -> None:
    assert overlong_penalty(length, SOFT) == penalty


def test_off_by_default() -> None:
    assert RewardSettings().overlong is None
    assert overlong_penalty(10**6, None) == 0.0


class Silent:
    """A dialect in which every trajectory is well-formed and answers 42."""

    def decode(self, tokens):
        return "42"

    def answer(self, text):
        return text

    def format_errors(self, pieces):
        return []


def segment(size: int, source: Source, parent: int, **options) -> Segment:
    numbers = np.zeros(size if source is Source.POLICY else 0, np.float32)
    return Segment(np.arange(size, dtype=np.int32), source, parent, numbers, numbers, **options)


def test_only_tokens_of_the_policy_count_on_the_own_path() -> None:
    """prompt 50 - policy 5 - tool 100 - {policy 3, policy 1}: lengths 8 and 6."""
    said = {"version": 0, "finish": Finish.STOP}
    tree = RolloutTree(
        "t",
        (
            segment(50, Source.PROMPT, -1),
            segment(5, Source.POLICY, 0, version=0, finish=Finish.CALL),
            segment(100, Source.TOOL, 1, event=ToolEvent("search", "{}", "ok")),
            segment(3, Source.POLICY, 2, **said),
            segment(1, Source.POLICY, 2, **said),
        ),
        (3, 4),
    ).validate()
    outcomes = score(tree, ask("How many?", "42", kind="number"), Silent(), RewardSettings(overlong=SOFT))
    assert [one.parts["overlong"] for one in outcomes] == [-0.25, 0.0]
    assert [one.reward for one in outcomes] == [0.75, 1.0]


@pytest.mark.parametrize("wrong", [{"limit": 3}, {"limit": 3, "buffer": 0}, {"limit": 3, "buffer": 2, "penalty": 0}])
def test_incomplete_or_meaningless_settings_are_refused(wrong: dict) -> None:
    with pytest.raises(ValidationError):
        OverlongSettings(**wrong)


def test_a_buffer_longer_than_the_limit_is_refused() -> None:
    with pytest.raises(ValidationError, match="buffer = 4 exceeds limit = 3: every trajectory would be penalised"):
        OverlongSettings(limit=3, buffer=4)
