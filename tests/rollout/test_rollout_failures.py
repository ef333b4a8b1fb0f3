"""Whatever fails, a group has M trajectories, no reward is invented, and no task stays behind."""

import asyncio
from collections.abc import Sequence

import pytest
from rollout_fakes import ToyDialect, agent, babble, by_turn, decode, grow, texts

from arpo.engine.base import SampleParams
from arpo.engine.scripted import ScriptedEngine
from arpo.errors import EngineDownError, EngineError
from arpo.reward.compose import score
from arpo.reward.settings import RewardSettings
from arpo.rollout.scheduler import rollout_many
from arpo.rollout.settings import EntropySettings, NoBranching, RolloutSettings, UniformRule
from arpo.task import ask
from arpo.tree import Finish, Segment


class Flaky(ScriptedEngine):
    """Fails the requests that `fails(number, seed)` names."""

    def __init__(self, policy, fails, error: type[EngineError] = EngineError) -> None:  # type: ignore[no-untyped-def]
        super().__init__(policy, decode, end_tokens=ToyDialect.end_tokens, delay=lambda prefix, seed: (seed % 3) / 1000)
        self._fails, self._error = fails, error

    async def sample(self, tokens: Sequence[int], params: SampleParams, seed: int) -> Segment:
        if self._fails(len(self.requests), seed):
            self.requests.append((tuple(tokens), params, seed))
            raise self._error("no answer after 5 retries")
        return await super().sample(tokens, params, seed)


@pytest.mark.parametrize(
    "settings",
    [
        RolloutSettings(total=6, initial=6, branching=NoBranching(), max_tokens=150),
        RolloutSettings(total=8, initial=3, max_tokens=150, branching=UniformRule()),
        RolloutSettings(total=8, initial=3, max_tokens=150, branching=UniformRule(at="state")),
        RolloutSettings(total=8, initial=2, max_tokens=150, branching=UniformRule(at="before_window")),
    ],
    ids=["none", "after window", "state", "before window"],
)
async def test_m_trajectories_whichever_request_fails(settings: RolloutSettings) -> None:
    lost = 0
    for seed in range(12):
        flaky = Flaky(babble, lambda number, s: s % 5 == 0)
        tree = await grow(flaky, settings, seed=seed)  # validated: exactly M leaves, nothing after a failure
        ends = [tree.segments[leaf].finish for leaf in tree.leaves]
        outcomes = score(tree, ask("why?", "42", id="toy"), ToyDialect(), RewardSettings())
        for finish, outcome in zip(ends, outcomes, strict=True):
            assert (finish is Finish.ERROR) == (outcome.reward is None)
        lost += ends.count(Finish.ERROR)
    assert lost > 0
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_the_first_request_may_fail() -> None:
    settings = RolloutSettings(total=3, initial=3, branching=NoBranching())
    tree = await grow(Flaky(by_turn("[42]$"), lambda number, seed: number == 0), settings)
    assert texts(tree) == ["why?", "why?[42]$", "why?[42]$"]
    assert [tree.segments[leaf].finish for leaf in tree.leaves] == [Finish.ERROR, Finish.STOP, Finish.STOP]


async def test_an_engine_that_is_gone_ends_everything() -> None:
    gone = Flaky(by_turn("<s>q</s>", "[42]$"), lambda number, seed: number >= 5, EngineDownError)
    with pytest.raises(EngineDownError, match="no answer after 5 retries"):
        await rollout_many(
            [ask("why?", "1", id="a"), ask("how?", "2", id="b")],
            agent(gone),
            settings=RolloutSettings(total=4, initial=4, branching=NoBranching()),
            entropy=EntropySettings(),
            seed_parts=(0,),
        )
    assert asyncio.all_tasks() == {asyncio.current_task()}
