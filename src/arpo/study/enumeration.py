"""Every group of trajectories that a branching rule can produce in the toy episode, with its probability.

A group is a real `RolloutTree`, laid out as the rollout room lays it out, and the branching rules are the rollout
room's own `decide` on its own readings: `state` reads the entropy at the state after the result, the window rules read
the mean entropy of two tokens, of which the second depends on what was sampled as the first. Children open where `at`
says. Two groups that differ only in the order of exchangeable trajectories are one group; their probabilities add.

A *bush* is what grows from one root: a call, tokens that all its trajectories share, and one or two continuations.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations_with_replacement, product
from typing import Literal

import numpy as np

from arpo.rollout.branching import Reading, Verdict, decide, monitored_initial
from arpo.rollout.budget import Budget
from arpo.rollout.settings import AepoRule, BudgetSettings, EntropyRule, EntropySettings
from arpo.study.episode import VOCABULARY, WINDOW, Episode
from arpo.tree import Finish, Outcome, RolloutTree, Segment, Source, ToolEvent

Pairs = tuple[int, ...]
"""Decisions 2 s + k in order."""
RuleName = Literal[
    "iid",
    "uniform",
    "state",
    "after_window",
    "before_window",
    "state_filled",
    "after_window_filled",
    "scarce_path",
    "scarce_spread",
    "monitored",
]
RULES: tuple[RuleName, ...] = (
    "iid",
    "uniform",
    "state",
    "after_window",
    "before_window",
    "state_filled",
    "after_window_filled",
)
BUDGETS: tuple[RuleName, ...] = ("scarce_path", "scarce_spread", "monitored")
"""Ways of giving out a budget that does not suffice, or that the first trajectory sizes; measured on request."""
TOTAL, INITIAL, SCARCE = 4, 2, 3
Node = tuple[Finish, Pairs, int]
"""Kind (how a policy segment ended; NONE: not the policy's), decisions, parent."""
_PROMPT = Segment(np.array([1], np.int32), Source.PROMPT)
_ENTROPY = EntropySettings(window=WINDOW)
_MONITOR = AepoRule(sharpness=60.0)
"""Sharp, so that entropies as close as the toy's make a difference."""
_ALWAYS = EntropyRule(at="state", base_probability=1.0, entropy_weight=0.0)


@dataclass(frozen=True, slots=True)
class Bush:
    """`call`: the first decision; `shared`: window tokens before the branch; `continuations`: one or two, sorted."""

    call: int
    shared: Pairs
    continuations: tuple[Pairs, ...]

    def key(self) -> tuple:
        """For sorting."""
        return self.call, self.shared, self.continuations


@dataclass(frozen=True, eq=False)
class Group:
    """One group and its probability. `nodes`: kind, decisions and parent of every node, in the rollout room's order."""

    probability: float
    episode: Episode
    nodes: tuple[Node, ...]
    leaves: tuple[int, ...]
    top_ups: int = 0

    @property
    def key(self) -> tuple:
        """Shape and rewards: what credit depends on that reads neither tokens nor entropies."""
        shape = tuple((kind, len(pairs), parent) for kind, pairs, parent in self.nodes)
        return shape, self.leaves, self.rewards, self.top_ups

    @property
    def rewards(self) -> tuple[float, ...]:
        """Reward per trajectory."""
        return tuple(self.episode.reward(self.nodes[leaf][1][-1]) for leaf in self.leaves)

    @property
    def pairs(self) -> list[int]:
        """The decision behind each policy token, in order of nodes."""
        return [pair for _, pairs, _ in self.nodes for pair in pairs]

    @property
    def tree(self) -> RolloutTree:
        """The group as a scored tree."""
        segments = (
            replace(_segment(self.episode, kind, pairs), parent=parent) for kind, pairs, parent in self.nodes[1:]
        )
        outcomes = tuple(Outcome(reward) for reward in self.rewards)
        return RolloutTree("toy", (_PROMPT, *segments), self.leaves, outcomes=outcomes, top_ups=self.top_ups)


def groups(episode: Episode, rule: RuleName) -> list[Group]:
    """All groups under `rule`; their probabilities sum to 1.

    `iid`: four independent trajectories. Others: two roots, each of which may open one branch after its result.
    `uniform` always does, `state`, `after_window` and `before_window` where entropy rises above the root's; with
    `_filled` fresh trajectories fill the group up to four.

    Groups of three, filled up: with `scarce_path` and `scarce_spread` two roots may want the one branch, after the
    window; the rollout room's budget gives it to the earlier hash or to the larger rise. With `monitored` the first
    root does not branch and decides how many roots there are, as `aepo` has it.
    """
    if rule in BUDGETS:
        return list(_monitored(episode) if rule == "monitored" else _scarce(episode, rule))
    sampled = bushes_of(episode, rule)
    found: list[Group] = []
    for bushes, share in _multisets(sampled, TOTAL if rule == "iid" else INITIAL):
        size = TOTAL if rule.endswith("filled") else sum(len(bush.continuations) for bush in bushes)
        found.extend(_filled(episode, bushes, size, share))
    return found


def _rule(name: RuleName) -> EntropyRule | None:
    """The rollout room's rule; None: no branching. P > 0.5 exactly where entropy is above the root's."""
    known: dict[RuleName, EntropyRule | None] = {
        "iid": None,
        "uniform": _ALWAYS,
        "state": EntropyRule(at="state"),
        "after_window": EntropyRule(at="after_window"),
        "before_window": EntropyRule(at="before_window"),
        "state_filled": EntropyRule(at="state"),
        "after_window_filled": EntropyRule(at="after_window"),
        "scarce_path": EntropyRule(at="after_window"),
        "scarce_spread": EntropyRule(at="after_window"),
        "monitored": EntropyRule(at="after_window"),
    }
    return known[name]


def bushes_of(episode: Episode, name: RuleName) -> list[tuple[Bush, float]]:
    """What can grow from one of the first roots under a rule, with probabilities that sum to 1."""
    rule = _rule(name)
    total: dict[Bush, float] = defaultdict(float)
    for pairs, share in episode.outcomes():
        opens = rule is not None and _verdict(episode, rule, pairs).wanted > 0
        for bush, other in _grown(episode, rule if opens else None, pairs):
            total[bush] += share * other
    return sorted(total.items(), key=lambda item: item[0].key())


def _grown(episode: Episode, rule: EntropyRule | None, pairs: Pairs) -> Iterator[tuple[Bush, float]]:
    """What a root that decided `pairs` grows into if it branches where `rule` says, or not at all."""
    call, trunk = pairs[0], pairs[1:]
    if rule is None:
        yield Bush(call, (), (trunk,)), 1.0
        return
    cut = WINDOW if rule.at == "after_window" else 0
    for second, share in episode.outcomes(_next(trunk[cut - 1] if cut else call)):
        yield Bush(call, trunk[:cut], tuple(sorted((trunk[cut:], second)))), share


def _next(pair: int) -> int:
    """The history that a decision leads to."""
    return pair + 1


def _verdict(episode: Episode, rule: EntropyRule, pairs: Pairs) -> Verdict:
    """Ask the rollout room, with the reading that it would take of this trajectory."""
    width = 1 if rule.at == "state" else WINDOW
    reading = Reading(float(episode.entropies[0]), _after_tool(episode, pairs, width), width, ended=False, draw=0.0)
    return decide(rule, reading, _ENTROPY, VOCABULARY, 1)


def _after_tool(episode: Episode, pairs: Pairs, width: int) -> float:
    """Mean entropy of the first `width` decisions after the result."""
    return float(np.mean([episode.entropies[pair // 2] for pair in pairs[1 : 1 + width]]))


def _scarce(episode: Episode, name: RuleName) -> Iterator[Group]:
    rule = _rule(name)
    assert rule is not None
    settings = BudgetSettings(order="spread" if name == "scarce_spread" else "path")
    for bushes, share in _contended(episode, rule, INITIAL, SCARCE - INITIAL, settings):
        yield from _filled(episode, bushes, SCARCE, share)


def _contended(
    episode: Episode, rule: EntropyRule, roots: int, units: int, settings: BudgetSettings
) -> Iterator[tuple[tuple[Bush, ...], float]]:
    """Roots in the order of their hashes (which say nothing about them, so it may be fixed) with `units` branches."""
    for draws in product(episode.outcomes(), repeat=roots):
        verdicts = [_verdict(episode, rule, pairs) for pairs, _ in draws]
        lucky = _granted(verdicts, units, settings)
        options = [
            list(_grown(episode, rule if place in lucky else None, pairs)) for place, (pairs, _) in enumerate(draws)
        ]
        for chosen in product(*options):
            odds = math.prod(share for _, share in (*draws, *chosen))
            yield tuple(bush for bush, _ in chosen), odds


def _granted(verdicts: Sequence[Verdict], units: int, settings: BudgetSettings) -> set[int]:
    """Which of these trajectories get a branch: the rollout room's budget decides."""
    budget = Budget(units, settings, 1, lambda path, depth: int(path))
    for place in range(len(verdicts)):
        budget.enter(str(place))
    for place, verdict in enumerate(verdicts):
        if verdict.wanted:
            budget.claim(str(place), verdict.wanted, verdict.gain)
        budget.leave(str(place))
    return {int(grant.claim.path) for grant in budget.settle() if grant.opened}


def _monitored(episode: Episode) -> Iterator[Group]:
    """The first root alone decides N, from the entropy after its result; it does not branch."""
    branching = _rule("monitored")
    assert branching is not None
    for pairs, share in episode.outcomes():
        seen = [_after_tool(episode, pairs, WINDOW)]
        initial = monitored_initial(_MONITOR, SCARCE, float(episode.entropies[0]), seen)
        first = Bush(pairs[0], (), (pairs[1:],))
        for others, odds in _contended(episode, branching, initial - 1, SCARCE - initial, BudgetSettings()):
            yield from _filled(episode, (first, *others), SCARCE, share * odds)


def _filled(episode: Episode, bushes: Sequence[Bush], total: int, share: float) -> Iterator[Group]:
    """With fresh trajectories, so that there are `total`."""
    missing = total - sum(len(bush.continuations) for bush in bushes)
    for more, other in _multisets(bushes_of(episode, "iid"), missing):
        yield _group(episode, bushes, more, share * other)


def _multisets(bushes: Sequence[tuple[Bush, float]], count: int) -> Iterator[tuple[tuple[Bush, ...], float]]:
    """`count` independent draws without their order, each with its probability."""
    for chosen in combinations_with_replacement(range(len(bushes)), count):
        orders = math.factorial(count)
        for repeats in Counter(chosen).values():
            orders //= math.factorial(repeats)
        yield tuple(bushes[i][0] for i in chosen), orders * math.prod(bushes[i][1] for i in chosen)


def _group(episode: Episode, bushes: Sequence[Bush], more: Sequence[Bush], probability: float) -> Group:
    """Lay the nodes out: roots, then what branched off them, then top-ups."""
    nodes: list[Node] = [(Finish.NONE, (), -1)]
    leaves: list[int] = []
    forks = [_grow(nodes, leaves, bush) for bush in bushes]
    for bush, fork in zip(bushes, forks, strict=True):
        for pairs in bush.continuations[1:]:
            leaves.append(_place(nodes, Finish.STOP, pairs, fork))
    for bush in more:
        _grow(nodes, leaves, bush)
    return Group(probability, episode, tuple(nodes), tuple(leaves), len(more))


def _grow(nodes: list[Node], leaves: list[int], bush: Bush) -> int:
    """Place a bush's first trajectory; the node where its branches hang."""
    call = _place(nodes, Finish.CALL, (bush.call,), 0)
    fork = _place(nodes, Finish.NONE, (), call)
    if bush.shared:
        fork = _place(nodes, Finish.WINDOW, bush.shared, fork)
    leaves.append(_place(nodes, Finish.STOP, bush.continuations[0], fork))
    return fork


def _place(nodes: list[Node], kind: Finish, pairs: Pairs, parent: int) -> int:
    nodes.append((kind, pairs, parent))
    return len(nodes) - 1


@cache
def _segment(episode: Episode, kind: Finish, pairs: Pairs) -> Segment:
    """A node without its parent: the policy's tokens (3 and 4), or the tool's result."""
    if kind is Finish.NONE:
        return Segment(np.array([2], np.int32), Source.TOOL, event=ToolEvent("search", "{}", "ok"))
    pair_T = np.array(pairs)
    return Segment(
        tokens=(3 + pair_T % 2).astype(np.int32),
        source=Source.POLICY,
        logprobs=np.log(episode.probabilities.ravel()[pair_T]).astype(np.float32),
        entropies=episode.entropies[pair_T // 2].astype(np.float32),
        finish=kind,
        version=0,
    )
