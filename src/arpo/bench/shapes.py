"""Rollout trees of a named shape, without a rollout: what the policy update is timed on.

A shape is written `prompt+response@where`: `300+800@1/2` is a prompt of 300 tokens and responses of about 800, of which
half is over where the branches open; `@root` opens all trajectories at the prompt; `@mixed` takes 1/4, 1/2 and 3/4 in
turn. Responses alternate as those of real agents do: about 60 tokens of the policy, 150 of a tool's result, and so on
to an answer. A branch opens right after a tool result, so the part before it is a whole number of such turns. What
comes after is of a different length in every trajectory (up to `jitter`), since equal lengths would flatter padded
rows.

Tokens are random ids of the vocabulary. Log-probs are a placeholder of the right size; `measure` puts the model's own
in their place. Everything follows from the shape and the vocabulary: no seed.
"""

import re
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from arpo.errors import ConfigError
from arpo.tree import Finish, Outcome, RolloutTree, Segment, Source, ToolEvent

POLICY_TOKENS, TOOL_TOKENS = 60, 150
"""Of one turn, about."""
_FORM = re.compile(r"(\d+)\+(\d+)@(root|mixed|\d+/\d+)")
_MIXED = (Fraction(1, 4), Fraction(1, 2), Fraction(3, 4))
_NUMBER_OF_ROOTS, _NUMBER_OF_TRAJECTORIES = 8, 16


@dataclass(frozen=True, slots=True)
class Shape:
    """One group. `where`: the fraction of the response at which branches open, in turn; empty: none open.

    `roots`: trajectories from the prompt; `total`: with the branches. `jitter`: the longest and the shortest rest of a
    response differ from the mean by this share.
    """

    prompt: int
    response: int
    where: tuple[Fraction, ...] = ()
    roots: int = _NUMBER_OF_ROOTS
    total: int = _NUMBER_OF_TRAJECTORIES
    jitter: float = 0.25

    def __str__(self) -> str:
        place = "root" if not self.where else str(self.where[0]) if len(self.where) == 1 else "mixed"
        return f"{self.prompt}+{self.response}@{place}"


def parse_shape(text: str, *, roots: int = _NUMBER_OF_ROOTS, total: int = _NUMBER_OF_TRAJECTORIES) -> Shape:
    """The shape of that name. Raises ConfigError if it is none, or one that cannot be built."""
    match = _FORM.fullmatch(text.strip())
    if match is None:
        raise ConfigError(f"shape {text!r}: write prompt+response@where, like 300+800@1/2, 300+800@root, 300+800@mixed")
    prompt, response, place = int(match[1]), int(match[2]), match[3]
    where = () if place == "root" else _MIXED if place == "mixed" else (_fraction(text, place),)
    if prompt < 1 or response < 8:
        raise ConfigError(f"shape {text!r}: it takes at least 1 token of prompt and 8 of response")
    if not 1 <= roots <= total:
        raise ConfigError(
            f"a group of {roots} + {total - roots}: it takes at least one root, and no fewer trajectories"
        )
    return Shape(prompt, response, where, roots if where else total, total)


def _fraction(text: str, place: str) -> Fraction:
    top, bottom = map(int, place.split("/"))
    if not 0 < top < bottom:
        raise ConfigError(f"shape {text!r}: branches open between 0 and 1 of the response, not at {place}")
    return Fraction(top, bottom)


def build_tree(shape: Shape, vocabulary: int) -> RolloutTree:
    """The group as a scored tree; half of the trajectories are rewarded."""
    builder = _Builder(shape, vocabulary)
    stems = [builder.root(index) for index in range(shape.roots)]
    leaves = [builder.rest(stem, index) for index, stem in enumerate(stems)]
    extra = range(shape.total - shape.roots)
    leaves += [builder.rest(stems[index % shape.roots], index % shape.roots) for index in extra]
    # Halves within halves, so that neither roots and branches nor a root and its branch agree.
    outcomes = tuple(Outcome(float((index + index // shape.roots) % 2)) for index in range(shape.total))
    return RolloutTree(str(shape), tuple(builder.segments), tuple(leaves), outcomes=outcomes).validate(shape.total)


class _Builder:
    """Appends segments."""

    def __init__(self, shape: Shape, vocabulary: int) -> None:
        self.shape = shape
        self.vocabulary = vocabulary
        self.rng = np.random.default_rng(0)
        self.segments = [Segment(self._tokens(shape.prompt), Source.PROMPT)]

    def root(self, index: int) -> int:
        """Start a trajectory and go to where its branches open; the node there."""
        node = 0
        for policy, tool in turns(self._stem(index)):
            node = self._tool(self._policy(node, policy, Finish.CALL), tool)
        return node

    def rest(self, node: int, index: int) -> int:
        """From a node to an answer; the leaf."""
        left = self.shape.response - self._stem(index)
        low, high = (max(2, round(left * (1 + sign * self.shape.jitter))) for sign in (-1, 1))
        *before, last = turns(int(self.rng.integers(low, high + 1)))
        for policy, tool in before:
            node = self._tool(self._policy(node, policy, Finish.CALL), tool)
        return self._policy(node, sum(last), Finish.STOP)

    def _stem(self, index: int) -> int:
        """Tokens of the response before the branches of root `index`."""
        where = self.shape.where
        return round(self.shape.response * where[index % len(where)]) if where else 0

    def _policy(self, parent: int, count: int, finish: Finish) -> int:
        level = -np.log(self.vocabulary)
        logp = self.rng.normal(level, 0.1, count).clip(max=0).astype(np.float32)
        entropy = np.full(count, -level, np.float32)
        return self._add(Segment(self._tokens(count), Source.POLICY, parent, logp, entropy, finish, 0))

    def _tool(self, parent: int, count: int) -> int:
        event = ToolEvent("search", "{}", "ok")
        return self._add(Segment(self._tokens(count), Source.TOOL, parent, event=event))

    def _add(self, segment: Segment) -> int:
        self.segments.append(segment)
        return len(self.segments) - 1

    def _tokens(self, count: int) -> np.ndarray:
        return self.rng.integers(0, self.vocabulary, count).astype(np.int32)


def turns(tokens: int) -> list[tuple[int, int]]:
    """(policy tokens, tool tokens) of the turns that make up `tokens`, in the usual proportion; empty for 0."""
    if tokens == 0:
        return []
    turn = POLICY_TOKENS + TOOL_TOKENS
    edges = np.linspace(0, tokens, max(1, round(tokens / turn)) + 1).round().astype(int)
    sizes = np.diff(edges).tolist()
    policies = [max(1, round(size * POLICY_TOKENS / turn)) for size in sizes]
    return [(policy, size - policy) for policy, size in zip(policies, sizes, strict=True)]


def with_logprobs(tree: RolloutTree, logp_N: np.ndarray, noise: float = 0.02) -> RolloutTree:
    """The tree as if sampled by a policy close to the model, whose log-probs are `logp_N`, segment after segment.

    `noise`: standard deviation (nats) of the difference, what a few optimiser steps or another kernel would leave.
    """
    rng = np.random.default_rng(1)
    moved_N = np.minimum(logp_N + rng.normal(0, noise, len(logp_N)), 0).astype(np.float32)
    own = np.split(moved_N, np.cumsum([len(s) for s in tree.segments])[:-1])
    segments = [replace(s, logprobs=o) if s.is_policy else s for s, o in zip(tree.segments, own, strict=True)]
    return replace(tree, segments=tuple(segments))
