"""One question put to a baseline, as `arpo rollout --agent` does it."""

from method_fakes import TASK, made, search

from arpo.config.asking import asked
from arpo.config.load import load
from arpo.config.wire import Policy
from arpo.reward.scorer import Scorer
from arpo.task import ask


def policy_of(agent, config) -> Policy:
    return Policy(None, agent.dialect.tokenizer, agent, Scorer(config.reward, agent.dialect))


async def test_a_baseline_answers_as_often_as_an_evaluation_would_and_is_scored_in_its_format():
    config = load((), ["evaluation.samples=2", "rollout.max_tokens=500"], environ={}).config
    policy = policy_of(made(lambda _: " I know.\nAction: Finish[1284000]", search()), config)
    solved = await asked(config, policy, TASK, "react")
    assert [outcome.answer for outcome in solved.tree.outcomes] == ["1284000"] * 2
    assert [outcome.parts["accuracy"] for outcome in solved.tree.outcomes] == [1.0, 1.0]
    assert {params.temperature for _, params, _ in policy.agent.engine.requests} == {0.6}


async def test_without_an_answer_nothing_is_scored():
    config = load((), ["rollout.max_tokens=500"], environ={}).config
    policy = policy_of(made(lambda _: "\\boxed{1}", search()), config)
    assert (await asked(config, policy, ask("Why?"), "direct")).tree.outcomes == ()
