"""The scorer: everything a configuration asks for, over trees; what nobody can score has no reward."""

import pytest
from judge_server import JudgeServer, Reply
from pydantic import ValidationError
from reward_trees import Characters, call, chain, policy, segment

from arpo.errors import ConfigError, EngineError
from arpo.reward import mathematics
from arpo.reward.compose import score
from arpo.reward.custom import RewardError
from arpo.reward.paper import paper_reward
from arpo.reward.scorer import Scorer
from arpo.reward.settings import RewardSettings
from arpo.task import ask
from arpo.tree import Finish, RolloutTree, Source

TASK = ask("How many?", "42", kind="number")
YES, NO = '{"reason": "", "verdict": "correct"}', '{"reason": "", "verdict": "incorrect"}'


def settings(server: JudgeServer, **changes) -> RewardSettings:
    judge = {"base_url": server.url, "model": "m", "retries": 0, **changes.pop("judge", {})}
    return RewardSettings(**{"accuracy": "judge", "judge": judge, **changes})


async def scored(rewards: RewardSettings, *trees, task=TASK):
    """One outcome per tree, and the counters."""
    async with Scorer(rewards, Characters()) as scorer:
        outcomes = [(await scorer.scored(tree, task)).outcomes[0] for tree in trees]
        return outcomes, scorer.drain()


async def test_by_rule_it_is_what_score_says():
    trees = [
        chain("\\boxed{42}"),
        chain("\\boxed{41}"),
        chain("!\\boxed{42}"),
        chain("s", call("search"), "\\boxed{42}"),
    ]
    rewards = RewardSettings(tool_cost=0.1)
    outcomes, _ = await scored(rewards, *trees)
    assert outcomes == [score(tree, TASK, Characters(), rewards)[0] for tree in trees]


async def test_a_judge_decides_what_rules_do_not():
    with JudgeServer(lambda prompt: YES if "forty-two" in prompt else NO) as server:
        trees = [chain(f"\\boxed{{{answer}}}") for answer in ("42", "forty-two", "41", "...")]
        outcomes, counts = await scored(settings(server, success_bonus=0.5), *trees, chain("! \\boxed{forty-two}"))
    assert [outcome.reward for outcome in outcomes] == [1.5, 1.5, 0.0, 0.0, -1.0]
    assert outcomes[1].parts["accuracy"] == 1.0
    assert len(server.requests) == 2
    wanted = {"asked": 2.0, "by_rule": 1.0, "rejected": 1.0, "outages": 0.0}
    assert {name: counts[f"reward/judge/{name}"] for name in wanted} == wanted


async def test_an_outage_is_no_reward():
    with JudgeServer(lambda prompt: Reply(500)) as server:
        outcomes, counts = await scored(settings(server), chain("\\boxed{forty-two}"), chain("\\boxed{42}"))
    assert [outcome.reward for outcome in outcomes] == [None, 1.0]
    assert (outcomes[0].answer, counts["reward/judge/outages"]) == ("forty-two", 1.0)


async def test_a_broken_trajectory_is_not_judged():
    with JudgeServer(lambda prompt: YES) as server:
        outcomes, _ = await scored(settings(server), chain("\\boxed{forty-two}", last=Finish.ERROR))
    assert (outcomes[0].reward, server.requests) == (None, [])


async def test_a_run_starts_with_a_judge_that_answers():
    with JudgeServer(lambda prompt: "yes") as server:
        rewards = settings(server)
        async with Scorer(rewards, Characters()) as scorer:
            await scorer.check()
            assert scorer.card()["model"] == "m"
    async with Scorer(rewards, Characters()) as scorer:
        with pytest.raises(EngineError, match=r"judge\.base_url"):
            await scorer.check()
    async with Scorer(RewardSettings(), Characters()) as scorer:
        await scorer.check()
        assert scorer.card() == {"metric": "hybrid", "by": "rule"}


async def test_a_custom_reward_is_added_or_decides_alone(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "scorer_rewards.py").write_text(
        "def short(sample): return 0.25 * (sample.length < 20)\n"
        "def whole(sample): return {'accuracy': float(sample.answer in sample.task.answers), 'format': 0.0}\n"
        "def picky(sample): return None if sample.answer == '41' else 0\n"
        "def broken(sample): return sample.nothing\n"
    )
    right, wrong = chain("\\boxed{42}"), chain("\\boxed{41}")
    rewards = RewardSettings(custom="scorer_rewards:short", custom_weight=2.0)
    (one, two), _ = await scored(rewards, right, wrong)
    assert (one.reward, two.reward, one.parts["custom"]) == (1.5, 0.5, 0.5)
    (one, two), _ = await scored(RewardSettings(accuracy="none", custom="scorer_rewards:whole"), right, wrong)
    assert (one.reward, two.reward, one.parts["accuracy"]) == (1.0, 0.0, 1.0)
    (one, two), _ = await scored(RewardSettings(custom="scorer_rewards:picky"), right, wrong)
    assert (one.reward, two.reward) == (1.0, None)
    with pytest.raises(RewardError, match=r"scorer_rewards:broken.*task ask.*AttributeError"):
        await scored(RewardSettings(custom="scorer_rewards:broken"), right)
    with pytest.raises(ConfigError, match="scorer_rewards:none"):
        Scorer(RewardSettings(custom="scorer_rewards:none"), Characters())
    with pytest.raises(ConfigError, match="Scorer"):
        score(right, TASK, Characters(), rewards)


async def test_formulas_are_counted():
    task = ask("?", "x^2 + 2x + 1", kind="math")
    (right, wrong), counts = await scored(RewardSettings(), chain("\\boxed{(x+1)^2}"), chain("\\boxed{x}"), task=task)
    assert (right.reward, wrong.reward) == (1.0, 0.0)
    assert counts["reward/verify_calls"] >= 2
    assert counts["reward/verify_timeout"] == 0
    assert mathematics.counters().calls >= 2


THOUGHT, RESULT = "<think>hm</think>", "<result>something</result>"
ANSWER = "<answer>\\boxed{Barack Obama, the president}</answer>"


@pytest.mark.parametrize(
    ("texts", "reward"),
    [
        ([f"{THOUGHT}{ANSWER}"], 0.8),
        ([f"{THOUGHT}<search>q</search>", RESULT, ANSWER], 0.8),
        ([f"{THOUGHT}<search>q</search>", RESULT, "<python>1</python>", RESULT, ANSWER], 0.9),
        ([f"{THOUGHT}<search>q</search>", f"{RESULT}</python>", ANSWER], 0.9),
        ([f"<think>hm{ANSWER}"], -1.0),
        ([f"{THOUGHT}<search>q</search>", "cut off", ANSWER], -1.0),
        ([f"{THOUGHT}Barack Obama"], -1.0),
        ([f"{THOUGHT}<answer>\\boxed{{nobody}}</answer>"], 0.0),
    ],
)
async def test_the_official_composition_reads_the_whole_text(texts, reward):
    segments = [segment("Q <think>", Source.PROMPT, -1)]
    for place, text in enumerate(texts):
        tool = place % 2 == 1
        segments.append(segment(text, Source.TOOL, place, event=call("search")) if tool else policy(text, place))
    tree = RolloutTree("t", tuple(segments), (len(texts),))
    task = ask("Who?", "Joe Biden", "Barack Obama")
    rewards = RewardSettings(composition="official", accuracy="paper", tool_cost=0.0)
    (outcome,), _ = await scored(rewards, tree, task=task)
    published = paper_reward("".join(texts), task.answers)
    assert outcome.reward == published.score == pytest.approx(reward)
    assert outcome.reward == sum(outcome.parts.values())
    assert (outcome.parts["accuracy"], outcome.parts["format"]) == (published.f1, min(reward, 0.0))


async def test_settings_of_the_checker_reach_it():
    default = mathematics.MathematicsSettings()
    try:
        async with Scorer(RewardSettings(mathematics={"max_chars": 5}), Characters()) as scorer:
            tree = chain("\\boxed{x + y + z + 1}")
            (outcome,) = await scorer.outcomes(tree, ask("?", "1 + x + y + z", kind="math"))
        assert outcome.reward == 0.0
    finally:
        mathematics.configure(default)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"accuracy": "hle"}, r"\[reward\.judge\]"),
        ({"accuracy": "none"}, "custom"),
        ({"composition": "official"}, 'accuracy = "paper"'),
        ({"composition": "official", "accuracy": "paper", "format_penalty": -0.5}, "format_penalty"),
        ({"mathematics": {"seconds": 0}}, "seconds"),
        ({"custom": "rewards.py"}, "module:function"),
        ({"custom": "rewards:"}, "module:function"),
        ({"judge": {"base_url": "http://h/v1"}}, "model"),
        ({"judge": {"base_url": "http://h/v1", "model": "m", "retires": 1}}, "retires"),
    ],
)
def test_contradictions_are_refused(changes, said):
    with pytest.raises(ValidationError, match=said):
        RewardSettings(**changes)
