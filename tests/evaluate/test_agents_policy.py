"""Methods by name, and the first of them: the rollout's own loop without branches."""

import pytest
from method_fakes import browser, made, python, search, turns
from rollout_fakes import ToyTool, agent, babble, texts, toolbox

from arpo.errors import ConfigError
from arpo.evaluate.agents.base import independent
from arpo.evaluate.agents.registry import NAMES, build
from arpo.rollout.scheduler import rollout
from arpo.rollout.settings import EntropySettings, NoBranching, RolloutSettings
from arpo.task import ask
from arpo.tools.base import ToolContext, ToolStatus

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


async def test_a_choice_of_tools_shares_limits_and_counters():
    box = toolbox(ToyTool("search"), ToyTool("python"), timeout=3.0)
    few = box.only(("search",))
    assert few.names == ("search",)
    assert few.limits["search"].timeout == 3.0
    await few.call("search", {"text": "x"}, ToolContext())
    assert (await few.call("python", {"text": "x"}, ToolContext())).status is ToolStatus.TOOL_ERROR
    assert box.stats["search"].calls == 1
    assert box.take_stats()["search"].calls == 1
    assert few.stats["search"].calls == 0


@pytest.mark.parametrize("dialect", ["tags", "hermes"])
def test_a_dialect_is_given_other_tools(dialect):
    spoken = made(turns(), search(), python(), dialect=dialect).dialect
    other = spoken.with_tools([browser()])
    assert (spoken.tool_names, other.tool_names) == (("search", "python"), ("browse",))
    assert type(other) is type(spoken)
    assert "browse" in other.decode(other.prompt(TASK))
