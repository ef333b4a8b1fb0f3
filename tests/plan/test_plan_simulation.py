"""The real scheduler in virtual time: laws that hold whatever the numbers are, and limits with a known answer."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from arpo.errors import ConfigError
from arpo.plan.latency import Latency, Mix
from arpo.plan.phases import Replica
from arpo.plan.simulation.run import Scene, simulate
from arpo.plan.work import Trajectory, work
from arpo.rollout.settings import NoBranching, RolloutSettings, UniformRule

MODEL = Replica(
    flops=1e12, bandwidth=1e9, room=50_000, weights=1e7, kv=100.0, token=1e6, label=1e5, pair=10.0, overhead=0.0,
    chunk=256, rows=64,
)  # fmt: skip
"""A step takes 10 ms while a batch is small."""
MEAN = Trajectory(prompt=30, sampled=80, calls=3, result=20)
SLOW = Mix(((Latency("slow", 0.5, 1.5), 0.5), (Latency("quick", 0.01, 0.02), 0.5)))
NONE = Mix(((Latency("none", 0.0, 0.0), 1.0),))
ROLLOUT = RolloutSettings(total=8, initial=4, max_tokens=400, max_calls=6, concurrency=64)


def scene(**changes: Any) -> Scene:
    base = Scene(ROLLOUT, MEAN, prompts=4, replica=MODEL, replicas=2, workers=3, mix=SLOW)
    return replace(base, **changes)


def test_equal_seeds_give_equal_results_and_others_other_ones() -> None:
    first, again, other = (simulate(scene(seed=seed)) for seed in (1, 1, 2))
    assert first.outcome == again.outcome
    assert [tree.leaves for tree in first.trees] == [tree.leaves for tree in again.trees]
    assert first.outcome != other.outcome


@pytest.mark.parametrize("lockstep", [False, True])
def test_every_trajectory_ends_and_every_call_is_answered(lockstep: bool) -> None:
    found = simulate(scene(lockstep=lockstep))
    assert found.outcome.trajectories == 4 * 8
    assert found.tool.started == found.tool.ended == found.outcome.executed == found.toolbox.asked
    for server in found.engine.servers:
        assert not server.waiting
        assert not server.rows
        assert not server.filling
        assert server.cache.used == server.cache.idle <= server.cache.capacity


def test_lockstep_draws_the_same_trajectories_and_takes_longer() -> None:
    free, rounds = (simulate(scene(lockstep=lockstep)) for lockstep in (False, True))
    drawn = [[tree.generated_tokens, tree.requested_calls, tree.leaves] for tree in free.trees]
    assert drawn == [[tree.generated_tokens, tree.requested_calls, tree.leaves] for tree in rounds.trees]
    assert rounds.outcome.seconds > free.outcome.seconds


def test_latency_and_workers_change_no_tree() -> None:
    free, slow = simulate(scene(workers=1)), simulate(scene(mix=SLOW.slower(10)))
    for left, right in zip(free.trees, slow.trees, strict=True):
        assert [len(s) for s in left.segments] == [len(s) for s in right.segments]


def test_littles_law_holds_for_engine_and_tools() -> None:
    """Mean number present = rate x mean stay: the left side integrated over events, the right one per request."""
    found = simulate(scene())
    seconds = found.outcome.seconds
    present = sum(server.row_seconds + server.waited for server in found.engine.servers) / seconds
    rate = found.outcome.requests / seconds
    assert present == pytest.approx(rate * found.engine.in_system / found.outcome.requests, rel=0.02)
    workers = (1 - found.outcome.tools_idle) * 3
    assert workers == pytest.approx(found.toolbox.asked / seconds * found.tool.busy / found.toolbox.asked)


def test_without_latency_and_with_enough_workers_the_engine_is_what_limits() -> None:
    found = simulate(scene(mix=NONE, workers=1000, prompts=8, replicas=1))
    assert found.outcome.limit != "tools"
    assert found.outcome.engine_idle_full == pytest.approx(0.0, abs=1e-6)
    assert found.outcome.tool_wait == pytest.approx(0.0, abs=1e-9)


def test_one_worker_with_slow_calls_is_what_limits() -> None:
    found = simulate(scene(workers=1, mix=SLOW.slower(5), prompts=8))
    assert found.outcome.limit == "tools"
    assert found.outcome.seconds >= found.tool.busy
    assert found.outcome.tools_idle < 0.1


def test_one_sequence_takes_its_steps_one_after_the_other() -> None:
    settings = RolloutSettings(total=1, initial=1, max_tokens=400, max_calls=6, branching=NoBranching())
    found = simulate(scene(rollout=settings, prompts=1, replicas=1, spread=0.0, mix=NONE))
    steps = found.engine.stats.steps
    assert steps == 80  # one per token: a prefix that fits into a chunk costs no step of its own
    read = sum(MODEL.weights + MODEL.kv * length for length in _lengths_read(found.trees[0].segments))
    assert found.outcome.seconds == pytest.approx(read / MODEL.bandwidth, rel=0.02)


def _lengths_read(segments: Any) -> list[int]:
    """Cached tokens in each decoding step of one trajectory."""
    before, lengths = 0, []
    for segment in segments:
        if segment.is_policy:
            lengths += [before + n for n in range(len(segment))]
        before += len(segment)
    return lengths


def test_fixed_lengths_give_the_tokens_and_calls_of_the_paper() -> None:
    settings = ROLLOUT.model_copy(update={"branching": UniformRule(at="state")})
    found, paper = simulate(scene(rollout=settings, spread=0.0)).outcome, work(settings, MEAN, prompts=4)
    assert found.branches == 4 * paper.branches
    assert found.top_ups == 4 * paper.top_ups
    assert found.sampled == paper.sampled == paper.labels
    assert found.requested == paper.calls
    assert found.unique == paper.unique


def test_the_paper_s_sharing_is_the_tree_s() -> None:
    settings = ROLLOUT.model_copy(update={"branching": UniformRule(at="state")})
    trees, paper = simulate(scene(rollout=settings, spread=0.0)).trees, work(settings, MEAN, prompts=4)
    assert np.mean([tree.sharing for tree in trees]) == pytest.approx(paper.sharing)


def test_prefixes_are_computed_once_while_there_is_room_and_again_when_there_is_none() -> None:
    ample, tight = simulate(scene()), simulate(scene(replica=replace(MODEL, room=700)))
    fresh = ample.outcome.unique - ample.outcome.sampled
    assert ample.outcome.prefilled == fresh
    assert ample.outcome.pushed_out == 0
    assert tight.outcome.pushed_out > 0
    assert tight.outcome.prefilled > fresh
    assert [tree.leaves for tree in ample.trees] == [tree.leaves for tree in tight.trees]


def test_a_trajectory_that_fits_nowhere_is_an_error() -> None:
    with pytest.raises(ConfigError, match="more keys and values than fit"):
        simulate(scene(replica=replace(MODEL, room=60)))


def test_calls_that_others_of_the_group_make_too_run_once() -> None:
    alone, shared = simulate(scene()), simulate(scene(repeat=0.7))
    assert alone.outcome.executed == alone.outcome.requested
    assert shared.outcome.executed < shared.outcome.requested
    assert shared.tool.started == shared.outcome.executed


def test_mean_calls_and_tokens_are_those_that_were_asked_for() -> None:
    settings = RolloutSettings(total=8, initial=8, max_tokens=4000, max_calls=6, branching=NoBranching())
    found = simulate(scene(rollout=settings, prompts=32, mix=NONE, workers=64)).outcome
    assert found.requested / found.trajectories == pytest.approx(3, rel=0.1)
    assert found.sampled / found.trajectories == pytest.approx(80, rel=0.1)
