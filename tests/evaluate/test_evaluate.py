"""An evaluation from tasks to figures, on the toy world of the rollout tests."""

import random

import pytest
from rollout_fakes import VOCAB, ToyDialect, ToyTool, babble, by_turn, decode, engine, steps, toolbox

from arpo.errors import ConfigError, DataError
from arpo.evaluate.agents.policy import Policy
from arpo.evaluate.compare import compare
from arpo.evaluate.run import evaluate, sampled
from arpo.reward.scorer import Scorer
from arpo.reward.settings import RewardSettings
from arpo.rollout.agent import Agent
from arpo.rollout.settings import NoBranching, RolloutSettings
from arpo.task import ask
from arpo.tools.base import ToolResult, ToolStatus

TASKS = [ask(f"{x}+1?", str(x + 1), id=f"q{x}", family="odd" if x % 2 else "even") for x in range(8)]
SETTINGS = sampled(RolloutSettings(max_tokens=200))


def adder(wrong: set[int]):
    """Searches, then answers x + 1, except for the `wrong` x, where it answers 0."""

    def continuation(prefix, seed):
        text = decode(prefix)
        x = int(text[: text.index("+")])
        said = text[max(text.rfind("?"), text.rfind("}")) + 1 :]
        whole = f"[{0 if x in wrong else x + 1}]$" if "}" in text else "<s>q</s>"
        return steps(whole)[len(said) :]

    return continuation


async def run(policy, tasks=TASKS, settings=SETTINGS, tools=None, seed=0, on_progress=None):
    dialect = ToyDialect()
    return await evaluate(
        tasks,
        Agent(policy if hasattr(policy, "sample") else engine(policy), dialect, tools or toolbox(), VOCAB),
        rollout=settings,
        scorer=Scorer(RewardSettings(), dialect),
        method=Policy(),
        seed=seed,
        on_progress=on_progress,
    )


async def test_it_counts_right_answers_costs_and_families():
    seen = []
    found = await run(adder({1, 2, 3}), on_progress=lambda done, total: seen.append((done, total)))
    assert found.accuracy == 5 / 8
    assert found.ci95.low < 5 / 8 < found.ci95.high
    assert found.scores == (1, 0, 0, 0, 1, 1, 1, 1)
    assert {name: family.accuracy for name, family in found.per_family.items()} == {"even": 0.75, "odd": 0.5}
    assert found.tool_calls == 8
    assert found.generated_tokens == 8 * (len("<s>q</s>") + len("[5]$"))
    assert found.seconds > 0
    assert [tree.meta["question"] for tree in found.trees] == [task.question for task in TASKS]
    assert seen == [(i, 8) for i in range(1, 9)]


async def test_two_policies_are_compared_on_the_same_questions():
    good, bad = await run(adder(set())), await run(adder({0, 1, 2, 3}))
    assert compare(bad.scores, good.scores).value == 0.5


async def test_lost_trajectories_are_no_wrong_answers():
    def reply(text):
        return ToolResult(ToolStatus.INFRA_ERROR, "down") if luck.random() < 0.5 else "fine"

    luck = random.Random(1)
    found = await run(adder(set()), tools=toolbox(ToyTool("search", reply), ToyTool("python")))
    assert 0 < found.failed < 8
    assert found.n == 8 - found.failed
    assert found.accuracy == 1.0


def drawn(found) -> list[str]:
    return [decode(path.token_T.tolist()) for tree in found.trees for path in tree.paths()]


async def test_the_same_seed_draws_the_same_whatever_finishes_first():
    luck = random.Random(0)
    first = await run(babble)
    late = await run(engine(babble, delay=lambda prefix, seed: luck.random() / 200))
    assert drawn(first) == drawn(late)
    assert drawn(first) != drawn(await run(babble, seed=1))


async def test_a_question_asked_twice_is_drawn_twice():
    assert len(set(drawn(await run(babble, [TASKS[0]] * 6)))) > 1


async def test_no_more_questions_are_in_flight_than_allowed():
    flying, most = 0, 0

    class Watched(ToyTool):
        async def call(self, arguments, context):
            nonlocal flying, most
            flying, most = flying + 1, max(most, flying + 1)
            try:
                return await super().call(arguments, context)
            finally:
                flying -= 1

    narrow = SETTINGS.model_copy(update={"concurrency": 2})
    await run(adder(set()), settings=narrow, tools=toolbox(Watched("search", delay=lambda _: 0.002), ToyTool("python")))
    assert most == 2


async def test_nothing_to_evaluate_and_branches_are_refused():
    with pytest.raises(DataError, match="no held-out tasks"):
        await run(by_turn("[1]$"), [])
    with pytest.raises(ConfigError, match='takes branching "none"'):
        await run(by_turn("[1]$"), settings=RolloutSettings())


async def test_a_broken_engine_is_heard():
    def broken(prefix, seed):
        raise OSError("device lost")

    with pytest.raises(OSError, match="device lost"):
        await run(broken)


def test_the_rollout_of_an_evaluation_keeps_the_limits_and_drops_the_branching():
    found = sampled(RolloutSettings(total=8, initial=4, max_calls=3, max_tokens=77), 2, 0.5, 0.9)
    assert (found.total, found.initial, found.max_calls, found.max_tokens) == (2, 2, 3, 77)
    assert (found.temperature, found.top_p) == (0.5, 0.9)
    assert found.branching == NoBranching()
    assert sampled(RolloutSettings(), 1, 0.0).temperature == 0
    with pytest.raises(ConfigError, match=r"evaluation\.samples = 2 answers to a question the same"):
        sampled(RolloutSettings(), 2, 0.0)


async def test_several_answers_to_a_question_are_one_tree_of_separate_leaves():
    found = await run(babble, TASKS[:2], sampled(RolloutSettings(max_tokens=200), 3))
    assert [len(tree.leaves) for tree in found.trees] == [3, 3]
    assert len(found.rewards) == 6
    assert found.n == 2
    for tree in found.trees:
        assert [len(tree.children[0]), max(map(len, tree.children[1:]))] == [3, 1]
        assert len({decode(path.token_T.tolist()) for path in tree.paths()}) > 1
