"""The examples of rewards: they load, and the functions do what they say."""

import sys
from pathlib import Path

import pytest
from judge_server import JudgeServer, Reply
from reward_trees import Characters, call, chain

from arpo.config.load import load
from arpo.reward.scorer import Scorer, deciders
from arpo.reward.settings import RewardSettings
from arpo.task import ask

EXAMPLES = Path(__file__).parents[2] / "examples"
TASK = ask("Who?", "Ada", kind="text")


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    yield
    sys.modules.pop("custom_reward", None)


async def parts(function: str, *steps, **changes):
    async with Scorer(RewardSettings(custom=f"custom_reward:{function}", **changes), Characters()) as scorer:
        (outcome,) = await scorer.outcomes(chain(*steps), TASK)
    return outcome


@pytest.mark.parametrize("name", ["custom_reward", "judge"])
async def test_configurations_name_what_is_there(name):
    config = load((EXAMPLES / f"{name}.toml",), ("reward.judge.cache=null",) if name == "judge" else (), environ={})
    metric, custom = deciders(config.config.reward)
    assert (metric.name, custom is None) == (("judge", True) if name == "judge" else ("hybrid", False))
    await metric.close()


async def test_frugal():
    many = [step for _ in range(3) for step in ("s", call("search"))]
    assert (await parts("frugal", "\\boxed{Ada}")).parts["frugal"] == 0.2
    assert (await parts("frugal", *many, "\\boxed{Ada}")).parts["frugal"] == 0.0
    assert (await parts("frugal", "\\boxed{Bob}")).parts["guess"] == -0.1
    assert (await parts("frugal", *many, "\\boxed{Bob}")).parts["guess"] == 0.0


async def test_whole():
    assert (await parts("whole", "\\boxed{ada}", accuracy="none")).reward == 1.0
    assert (await parts("whole", "\\boxed{Bob}", accuracy="none")).reward == 0.0
    assert (await parts("whole", "nothing boxed", accuracy="none")).reward == -0.5


async def test_by_service(monkeypatch):
    import custom_reward

    replies = iter([Reply(body={"score": 0.25}), Reply(500)])
    with JudgeServer(lambda prompt: next(replies)) as server:
        monkeypatch.setattr(server, "_reply", lambda body, key: next(replies))
        monkeypatch.setattr(custom_reward, "SERVICE", server.url)
        assert (await parts("by_service", "\\boxed{Ada}")).parts["custom"] == 0.25
        assert (await parts("by_service", "\\boxed{Ada}")).reward is None
    assert (await parts("by_service", "\\boxed{Ada}")).reward is None
