"""A step's tokens on paper: closed cases, and the real scheduler's trees."""

import pytest

from arpo.config.dry_run_counts import costs
from arpo.errors import ConfigError
from arpo.plan.work import Trajectory, trajectory, with_share, work
from arpo.rollout.settings import NoBranching, RandomRule, RolloutSettings, UniformRule
from arpo.train.settings import TrainSettings

MEAN = Trajectory(prompt=100, sampled=400, calls=3, result=50)


def test_independent_trajectories_share_their_prompt_alone() -> None:
    settings = RolloutSettings(total=4, initial=4, branching=NoBranching())
    found = work(settings, MEAN, prompts=2)
    assert found.sampled == found.labels == 2 * 4 * 400
    assert found.calls == 2 * 4 * 3
    assert found.unique == 2 * (100 + 4 * 550)
    assert found.flat == 2 * 4 * 650
    assert found.pairs == 2 * (100**2 + 4 * (650**2 - 100**2)) / 2
    assert found.flat_pairs == 2 * 4 * 650**2 / 2


def test_branches_at_the_first_result_save_what_stands_before_it() -> None:
    settings = RolloutSettings(total=4, initial=2, branching=UniformRule(at="state"))
    found = work(settings, MEAN, prompts=1)
    stem = 400 / 4 + 50
    assert found.branches == 2
    assert found.sampled == 2 * 400 + 2 * 300
    assert found.calls == 2 * 3 + 2 * 2
    assert found.unique == 100 + 2 * 550 + 2 * (550 - stem)
    assert found.sharing == pytest.approx(4 * 650 / found.unique)


def test_tokens_and_calls_are_those_of_the_dry_run() -> None:
    settings = RolloutSettings(total=16, initial=8, max_tokens=4096, max_calls=6)
    dry = costs(TrainSettings(prompts=128), settings, 20, has_tools=True, room=4096)
    found = work(settings, trajectory(settings, 0.5), prompts=128)
    assert (found.sampled, found.calls) == (dry.expected.tokens, dry.expected.calls)


def test_a_share_of_the_results_after_which_a_rule_fires() -> None:
    settings = RolloutSettings(total=16, initial=8)
    rare, often = (work(with_share(settings, share), MEAN, prompts=1) for share in (0.1, 1.0))
    assert isinstance(with_share(settings, 0.1).branching, RandomRule)
    assert rare.branches < often.branches == 8
    assert rare.top_ups + rare.branches == pytest.approx(8)
    assert rare.sampled > often.sampled


def test_results_take_no_more_than_the_response_leaves() -> None:
    settings = RolloutSettings(max_tokens=1000, max_calls=6)
    assert trajectory(settings, 0.5, result=400).result == 500 // 3


def test_a_trajectory_beyond_its_limits_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no more than rollout.max_tokens = 4096"):
        trajectory(RolloutSettings(), 0.5, sampled=5000)
    with pytest.raises(ConfigError, match="--branch-share 2"):
        with_share(RolloutSettings(), 2.0)
