"""Methods by name, and the first of them: the rollout's own loop without branches."""

import pytest
from rollout_fakes import agent, babble, texts

from arpo.errors import ConfigError
from arpo.evaluate.agents.base import independent
from arpo.evaluate.agents.registry import NAMES, build
from arpo.rollout.scheduler import rollout
from arpo.rollout.settings import EntropySettings, NoBranching, RolloutSettings
from arpo.task import ask

TASK = ask("why?", "42", id="toy")


@pytest.mark.parametrize("name", NAMES)
def test_every_name_builds_a_method_of_that_name(name):
    method = build(name)
    assert method.name == name
    assert method.about


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match=r"no agent 'polcy'; did you mean 'policy'\?"):
        build("polcy")


def test_limits_stay_and_branches_go():
    found = independent(RolloutSettings(total=8, initial=4, max_calls=3, max_tokens=77))
    assert (found.total, found.initial, found.max_calls, found.max_tokens) == (8, 8, 3, 77)
    assert found.branching == NoBranching()


async def test_the_policy_is_what_the_rollout_samples():
    settings = RolloutSettings(total=4, initial=2, max_tokens=200)
    method, acting = build("policy"), agent(babble)
    solved = await method.solve(TASK, method.fit(acting), settings, ("seed", 1))
    plain = await rollout(
        TASK, agent(babble), settings=independent(settings), entropy=EntropySettings(), seed_parts=("seed", 1)
    )
    assert texts(solved.tree.validate(4)) == texts(plain)
    assert (solved.aside_tokens, solved.aside_calls, dict(solved.aside_tools)) == (0, 0, {})
