"""The toy episode played by the rollout room itself: every group it grows is one that the study enumerates."""

import math
import random

import pytest
from rollout_fakes import decode, grow

from arpo.engine.scripted import Scripted
from arpo.rollout.settings import EntropyRule, EntropySettings, RolloutSettings
from arpo.study.enumeration import Bush, bushes_of
from arpo.study.episode import HISTORIES, WINDOW
from arpo.study.estimators import EPISODE
from arpo.tree import RolloutTree, Source

SEEDS = range(24)


def play(prefix: tuple[int, ...], seed: int) -> list[Scripted]:
    """The policy as a script: `<s>k</s>`, then three choices and the end token, each with its entropy."""
    text, luck = decode(prefix), random.Random(seed)
    if "}" not in text:
        choice = int(luck.random() >= EPISODE.first_S[0])
        return [Scripted(ord(char), -0.5, float(EPISODE.entropies[0])) for char in f"<s>{choice}</s>"]
    history = 0
    for char in text[text.index("<s>") + 3] + text[text.index("}") + 1 :]:
        history = 2 * history + 1 + int(char)
    steps = []
    while history < HISTORIES:
        choice = int(luck.random() >= EPISODE.first_S[history])
        steps.append(Scripted(ord(str(choice)), math.log(0.5), float(EPISODE.entropies[history])))
        history = 2 * history + 1 + choice
    return [*steps, Scripted(ord("$"), -0.1, 0.0)]


def bush(tree: RolloutTree, root: int) -> Bush:
    """What grew from `root`, in the study's terms."""
    paths = [tree.ancestry(leaf) for leaf in tree.leaves if root in tree.ancestry(leaf)]
    spoken = []
    for path in paths:
        text = "".join(
            decode(tree.segments[n].tokens.tolist()) for n in path if tree.segments[n].source is Source.POLICY
        )
        history, pairs = 0, []
        for char in text[3] + text[8:].rstrip("$"):
            pairs.append(2 * history + int(char))
            history = pairs[-1] + 1
        spoken.append(tuple(pairs))
    after_window = len(paths) > 1 and tree.segments[paths[0][-2]].is_policy
    cut = 1 + (WINDOW if after_window else 0)
    assert len({pairs[:cut] for pairs in spoken}) == 1
    return Bush(spoken[0][0], spoken[0][1:cut], tuple(sorted(pairs[cut:] for pairs in spoken)))


@pytest.mark.parametrize("at", ["state", "after_window", "before_window"])
async def test_a_rollout_grows_only_what_the_study_enumerates(at):
    settings = RolloutSettings(total=4, initial=2, branching=EntropyRule(at=at), max_calls=1)
    possible = {one for one, _ in bushes_of(EPISODE, at)}
    fresh = {one for one, _ in bushes_of(EPISODE, "iid")}
    opened = set()
    for seed in SEEDS:
        tree = await grow(play, settings, entropy=EntropySettings(window=WINDOW), seed=seed)
        grown = [bush(tree, root) for root in tree.children[0]]
        assert set(grown[:2]) <= possible
        assert set(grown[2:]) <= fresh
        assert sum(len(one.continuations) for one in grown) == 4
        opened |= {len(one.continuations) for one in grown[:2]}
    assert opened == {1, 2}
