"""A reward of one's own: what it sees, what it may return, and what its mistakes say."""

import sys
from textwrap import dedent

import pytest

from arpo.errors import ConfigError
from arpo.reward.compose import Reading
from arpo.reward.custom import CustomReward, RewardError
from arpo.task import ask
from arpo.tree import Outcome, ToolEvent

TASK = ask("How many?", "42", id="row 7")
EVENT = ToolEvent("search", '{"query": "x"}', "ok")
READING = Reading("42", ("thinking", "<answer>42</answer>"), (), (EVENT,), 12)
OUTCOME = Outcome(1.1, "42", {"accuracy": 1.0, "format": 0.0, "multi_tool": 0.1})


@pytest.fixture
def rewards(tmp_path, monkeypatch):
    """Writes a module of rewards; returns what makes CustomReward of one."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_rewards", raising=False)

    def write(source: str, **options):
        (tmp_path / "my_rewards.py").write_text(dedent(source))
        monkeypatch.delitem(sys.modules, "my_rewards", raising=False)
        return CustomReward("my_rewards:reward", **options)

    yield write
    sys.modules.pop("my_rewards", None)


async def added(custom: CustomReward) -> Outcome:
    return await custom.added(OUTCOME, READING, TASK)


async def test_it_sees_the_trajectory(rewards):
    custom = rewards("""
        def reward(sample):
            assert sample.task.answers == ("42",) and sample.answer == "42"
            assert sample.texts[0] == "thinking" and sample.events[0].name == "search" and sample.events[0].executed
            assert sample.faults == () and sample.length == 12
            assert sample.accuracy == 1.0 and sample.reward == 1.1 and dict(sample.parts)["multi_tool"] == 0.1
            return 0.5
    """)
    outcome = await added(custom)
    assert outcome.parts == {**OUTCOME.parts, "custom": 0.5}
    assert outcome.reward == pytest.approx(1.6)
    assert outcome.answer == "42"


async def test_it_may_be_async_and_name_its_parts(rewards):
    custom = rewards(
        """
        import asyncio
        async def reward(sample):
            await asyncio.sleep(0)
            return {"style": 1, "brevity": -0.5, "format": -0.25}
        """,
        weight=2.0,
    )
    outcome = await added(custom)
    assert outcome.parts == {"accuracy": 1.0, "multi_tool": 0.1, "format": -0.25, "style": 2.0, "brevity": -1.0}
    assert outcome.reward == pytest.approx(sum(outcome.parts.values()))


async def test_a_callable_object_that_returns_an_awaitable(rewards):
    custom = rewards("""
        class Reward:
            def __call__(self, sample):
                async def later():
                    return True
                return later()
        reward = Reward()
    """)
    assert (await added(custom)).parts["custom"] == 1.0


async def test_none_is_no_reward(rewards):
    outcome = await added(rewards("def reward(sample): return None"))
    assert (outcome.reward, outcome.answer) == (None, "42")


async def test_numbers_of_numpy_count(rewards):
    assert (await added(rewards("import numpy\ndef reward(sample): return numpy.float32(0.5)"))).parts["custom"] == 0.5
    array = rewards("import numpy\ndef reward(sample): return {'a': numpy.array(2), 'b': numpy.bool_(True)}")
    assert (await added(array)).parts == {**OUTCOME.parts, "a": 2.0, "b": 1.0}


@pytest.mark.parametrize(
    "value", ["'1'", "float('nan')", "float('inf')", "[1, 2]", "{'a': 'b'}", "{1: 1.0}", "object()", "{'a': None}"]
)
async def test_what_is_no_reward_ends_the_run(rewards, value):
    with pytest.raises(RewardError, match=r"my_rewards:reward.*row 7.*finite number"):
        await added(rewards(f"def reward(sample): return {value}"))


@pytest.mark.parametrize("keyword", ["def", "async def"])
async def test_what_it_raises_ends_the_run_and_names_function_and_task(rewards, keyword):
    with pytest.raises(RewardError, match=r"my_rewards:reward.*row 7: ZeroDivisionError") as raised:
        await added(rewards(f"{keyword} reward(sample): return 1 / 0"))
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


async def test_parts_cannot_be_written_to(rewards):
    with pytest.raises(RewardError, match="does not support item assignment"):
        await added(rewards("def reward(sample): sample.parts['accuracy'] = 1.0"))
    with pytest.raises(RewardError, match="answer"):
        await added(rewards("def reward(sample): sample.answer = '43'"))


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("no_such_module_here:reward", "PYTHONPATH"),
        ("math:no_such_function", "no_such_function"),
        ("math:pi", "not a function"),
    ],
)
def test_a_wrong_path_is_told_at_once(path, said):
    with pytest.raises(ConfigError, match=said):
        CustomReward(path)


def test_a_module_that_fails_to_import(rewards):
    with pytest.raises(ConfigError, match=r"my_rewards:reward.*RuntimeError: no licence"):
        rewards("raise RuntimeError('no licence')")
