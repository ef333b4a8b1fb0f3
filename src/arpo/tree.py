"""The one structure everything shares: a rollout tree.

A tree holds the M trajectories of one prompt with every shared token stored once. Its nodes are segments: the prompt
(node 0), then runs of tokens with one source each, children after parents. A trajectory is the path from node 0 to a
leaf; what two trajectories share is the nodes they share, so a prefix cannot be inexact. Trees are values: a rollout
builds one, nobody changes it afterwards (`with_outcomes` returns another). numpy only, so that every room can use it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property

import numpy as np


class Source(StrEnum):
    """Who wrote a segment."""

    PROMPT = "prompt"
    """The task: system prompt, question, generation prompt."""
    POLICY = "policy"
    """Sampled by the policy: the only tokens with log-probs, entropies and loss."""
    TOOL = "tool"
    """A tool's result."""
    NOTICE = "notice"
    """A message of the harness: a correction, or the last chance to answer."""


class Finish(StrEnum):
    """Why a policy segment ended."""

    STOP = "stop"
    """The policy sampled an end token."""
    CALL = "call"
    """The policy completed a stop string: a tool call."""
    LENGTH = "length"
    """The token budget of the trajectory ran out."""
    WINDOW = "window"
    """The scheduler cut here, after the entropy window, to branch; a child continues the segment."""
    ERROR = "error"
    """The infrastructure failed (tool or engine); the trajectory has no reward."""
    NONE = "none"
    """Not a policy segment."""


@dataclass(frozen=True, slots=True)
class ToolEvent:
    """The call behind a tool segment, or behind a notice that answers a malformed or refused call.

    `executed`: the tool really ran or answered from a cache; a refused or malformed call is requested but not executed.
    `latency` in seconds.
    """

    name: str
    arguments: str
    status: str
    latency: float = 0.0
    cached: bool = False
    executed: bool = True
    redundant: bool = False
    """The same call with the same arguments was made before on this path."""
    shared: bool = False
    """Answered by an equal call of this group: requested, and nothing ran for it."""
    note: str = ""
    """What the dialect reports of a call that was executed: what was mended in it, what else stood in its segment."""

    @property
    def facts(self) -> tuple[str, ...]:
        """How it went, in words for people."""
        run = () if self.shared else (f"{1000 * self.latency:.1f} ms",)
        marks = {"cached": self.cached, "redundant": self.redundant, "not executed": not self.executed}
        shared = ("same as an equal call",) if self.shared else ()
        notes = (self.note,) if self.note else ()
        return (self.status, *run, *shared, *(name for name, holds in marks.items() if holds), *notes)


def _same(a: float, b: float) -> bool:
    return a == b or (a != a and b != b)


@dataclass(frozen=True, slots=True, eq=False)
class Decision:
    """What the branching rule saw and did at one point; `node` is the last node before the new children.

    Equality takes NaN for equal to NaN, so that a tree equals its copy from a file.

    `h_root`, `h_tool`, `delta` in nats (`delta` after the normaliser); NaN where the rule does not use entropy.
    `probability`: P = alpha + beta * delta. `wanted`: extra children asked for; `opened`: those the budget gave.
    """

    node: int
    tool: str
    depth: int
    """Tool results on the path so far, this one included."""
    h_root: float
    h_tool: float
    delta: float
    probability: float
    wanted: int
    opened: int
    reason: str = ""
    undecided: bool = False
    """The bracket in which the engine knows its entropies reached across the threshold; its midpoint decided."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Decision):
            return NotImplemented
        numbers = ("h_root", "h_tool", "delta", "probability")
        plain = ("node", "tool", "depth", "wanted", "opened", "reason", "undecided")
        return all(_same(getattr(self, a), getattr(other, a)) for a in numbers) and all(
            getattr(self, a) == getattr(other, a) for a in plain
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a trajectory was worth. `reward` None: infrastructure failed, excluded from loss and baselines."""

    reward: float | None
    answer: str | None = None
    parts: Mapping[str, float] = field(default_factory=dict)
    """Named components: `accuracy`, `format`, `multi_tool`, ..."""


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """A run of tokens with one source.

    `tokens` int32 `[T]`; `logprobs`, `entropies` float32 `[T]` (nats, at the sampling temperature) for policy segments,
    empty otherwise. `slacks` float32 `[T]`: half the width of the bracket in which the engine knows each entropy, empty
    where it is exact. `parent`: node index, -1 for the prompt. `version`: of the weights that sampled it, or -1.
    `event`: the call that a tool segment or notice answers; on a policy segment, which must then be a leaf, the call
    whose result the trajectory never saw.
    """

    tokens: np.ndarray
    source: Source
    parent: int = -1
    logprobs: np.ndarray = field(default_factory=lambda: np.empty(0, np.float32))
    entropies: np.ndarray = field(default_factory=lambda: np.empty(0, np.float32))
    finish: Finish = Finish.NONE
    version: int = -1
    event: ToolEvent | None = None
    slacks: np.ndarray = field(default_factory=lambda: np.empty(0, np.float32))

    def __len__(self) -> int:
        return len(self.tokens)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Segment):
            return NotImplemented
        arrays = ("tokens", "logprobs", "entropies", "slacks")
        plain = ("source", "parent", "finish", "version", "event")
        return all(np.array_equal(getattr(self, a), getattr(other, a)) for a in arrays) and all(
            getattr(self, a) == getattr(other, a) for a in plain
        )

    @property
    def is_policy(self) -> bool:
        return self.source is Source.POLICY


class TreeError(ValueError):
    """A tree breaks an invariant; the message names the node."""


@dataclass(frozen=True, slots=True)
class Path:
    """One trajectory: the segments from the prompt to a leaf, flat. Arrays are `[T]`, T tokens in all.

    `node_T`: node of each token; `offset_T`: its place in that node. `logprob_T` and `entropy_T` are 0 where
    `policy_T` is False.
    """

    nodes: tuple[int, ...]
    token_T: np.ndarray
    policy_T: np.ndarray
    logprob_T: np.ndarray
    entropy_T: np.ndarray
    node_T: np.ndarray
    offset_T: np.ndarray

    def __len__(self) -> int:
        return len(self.token_T)


@dataclass(frozen=True)
class RolloutTree:
    """The M trajectories of one prompt.

    `segments[0]` is the prompt; parents come before children. `leaves`: the last node of each trajectory, in the
    order in which the trajectories were opened. `outcomes`: one per leaf, or empty before rewards are known.
    `meta`: short strings for people (question, gold answer, family).
    """

    task_id: str
    segments: tuple[Segment, ...]
    leaves: tuple[int, ...]
    decisions: tuple[Decision, ...] = ()
    outcomes: tuple[Outcome, ...] = ()
    meta: Mapping[str, str] = field(default_factory=dict)
    wasted_tokens: int = 0
    """Tokens sampled and thrown away (look-ahead)."""
    top_ups: int = 0
    """The last so many trajectories were started from the prompt because branches had left places empty."""

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """Child nodes of every node, in order."""
        lists: list[list[int]] = [[] for _ in self.segments]
        for node, segment in enumerate(self.segments):
            if segment.parent >= 0:
                lists[segment.parent].append(node)
        return tuple(tuple(kids) for kids in lists)

    @cached_property
    def multiplicity(self) -> np.ndarray:
        """Trajectories through each node, int `[nodes]`: the d of hard credit."""
        count = np.zeros(len(self.segments), np.int64)
        count[list(self.leaves)] = 1
        for node in range(len(self.segments) - 1, 0, -1):
            count[self.segments[node].parent] += count[node]
        return count

    @property
    def rewards(self) -> tuple[float | None, ...]:
        """Reward per leaf; empty before scoring."""
        return tuple(outcome.reward for outcome in self.outcomes)

    def ancestry(self, node: int) -> tuple[int, ...]:
        """Nodes from the prompt to `node`, both included."""
        chain = []
        while node >= 0:
            chain.append(node)
            node = self.segments[node].parent
        return tuple(reversed(chain))

    def path(self, leaf: int) -> Path:
        """The trajectory that ends in node `leaf`."""
        nodes = self.ancestry(leaf)
        parts = [self.segments[node] for node in nodes]

        def dense(name: str) -> np.ndarray:
            return np.concatenate([getattr(s, name) if s.is_policy else np.zeros(len(s), np.float32) for s in parts])

        return Path(
            nodes=nodes,
            token_T=np.concatenate([s.tokens for s in parts]),
            policy_T=np.concatenate([np.full(len(s), s.is_policy) for s in parts]),
            logprob_T=dense("logprobs"),
            entropy_T=dense("entropies"),
            node_T=np.concatenate([np.full(len(s), n) for s, n in zip(parts, nodes, strict=True)]),
            offset_T=np.concatenate([np.arange(len(s)) for s in parts]),
        )

    def paths(self) -> tuple[Path, ...]:
        """All trajectories, in leaf order."""
        return tuple(self.path(leaf) for leaf in self.leaves)

    def with_outcomes(self, outcomes: Sequence[Outcome]) -> "RolloutTree":
        """The same tree, scored."""
        return replace(self, outcomes=tuple(outcomes))

    @property
    def generated_tokens(self) -> int:
        """Tokens that the policy sampled for this tree, each once, look-ahead included: the cost in tokens."""
        return sum(len(s) for s in self.segments if s.is_policy) + self.wasted_tokens

    @property
    def tool_calls(self) -> int:
        """Calls that ran for this tree, each once: the cost in calls."""
        return sum(1 for s in self.segments if s.event is not None and s.event.executed and not s.event.shared)

    @property
    def requested_calls(self) -> int:
        """Calls that were answered, those included that an equal call of the group had answered already."""
        return sum(1 for s in self.segments if s.event is not None and s.event.executed)

    @property
    def sharing(self) -> float:
        """rho = sum of trajectory lengths / unique tokens: the bound on what computing shared tokens once can save."""
        lengths = np.array([len(s) for s in self.segments])
        return float((lengths * self.multiplicity).sum() / lengths.sum())

    def validate(self, total: int | None = None) -> "RolloutTree":
        """Check every invariant and return the tree; `total`: the M that it must have. Raises TreeError."""
        _check_nodes(self)
        _check_leaves(self, total)
        _check_ends(self)
        _check_outcomes(self)
        _check_decisions(self)
        return self


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise TreeError(message)


def _check_nodes(tree: RolloutTree) -> None:
    _require(bool(tree.segments), f"tree {tree.task_id}: no segments")
    _require(len(tree.segments[0]) > 0, f"tree {tree.task_id}: an empty prompt")
    _require(tree.wasted_tokens >= 0, f"tree {tree.task_id}: {tree.wasted_tokens} wasted tokens")
    for node, s in enumerate(tree.segments):
        for problem in _problems(node, s):
            raise TreeError(f"tree {tree.task_id}, node {node} ({s.source}): {problem}")


def _problems(node: int, s: Segment) -> Iterator[str]:
    """What is wrong with one node. Runs for every segment of a training run: nothing is formatted in vain."""
    if (s.source is Source.PROMPT) != (node == 0):
        yield "the prompt is node 0 and nothing else"
    if node == 0 and s.parent != -1:
        yield f"parent {s.parent}; the prompt has none (-1)"
    if node > 0 and not 0 <= s.parent < node:
        yield f"parent {s.parent} does not come before it"
    yield from _array_problems(s)
    sampled = s.is_policy
    if (s.finish is not Finish.NONE) != sampled:
        yield f"finish {s.finish}"
    if (s.version >= 0) != sampled:
        yield f"weight version {s.version}"
    if s.source is Source.TOOL and s.event is None:
        yield "a tool result without its event"
    if s.source is Source.PROMPT and s.event is not None:
        yield "a tool event in the prompt"
    if sampled and not len(s) and s.finish is not Finish.ERROR:
        yield "an empty policy segment"


def _array_problems(s: Segment) -> Iterator[str]:
    if s.tokens.dtype != np.int32 or s.tokens.ndim != 1:
        yield "tokens must be int32 [T]"
    if len(s) and s.tokens.min() < 0:
        yield "negative token ids"
    expected = len(s) if s.is_policy else 0
    for name in ("logprobs", "entropies"):
        array: np.ndarray = getattr(s, name)
        if array.shape != (expected,):
            yield f"{name} {array.shape} for {expected} sampled tokens"
        if array.dtype != np.float32:
            yield f"{name} must be float32"
        if expected and not np.isfinite(array).all():
            yield f"{name} hold NaN or infinity"
    if s.slacks.shape not in ((0,), (expected,)) or s.slacks.dtype != np.float32:
        yield f"slacks {s.slacks.shape} {s.slacks.dtype} for {expected} sampled tokens"
    elif len(s.slacks) and not (np.isfinite(s.slacks).all() and s.slacks.min() >= 0):
        yield "slacks must be finite and not negative"


def _check_leaves(tree: RolloutTree, total: int | None) -> None:
    name = f"tree {tree.task_id}"
    _require(len(set(tree.leaves)) == len(tree.leaves), f"{name}: a trajectory is listed twice")
    childless = {node for node, kids in enumerate(tree.children) if not kids}
    _require(set(tree.leaves) == childless, f"{name}: leaves {tree.leaves} are not its childless nodes {childless}")
    _require(total is None or len(tree.leaves) == total, f"{name}: {len(tree.leaves)} trajectories, not {total}")
    _require(0 <= tree.top_ups < len(tree.leaves), f"{name}: {tree.top_ups} top-ups of {len(tree.leaves)} trajectories")
    for leaf in tree.leaves[len(tree.leaves) - tree.top_ups :]:
        shared = tree.multiplicity[tree.ancestry(leaf)[1]] > 1
        _require(not shared, f"{name}, leaf {leaf}: a top-up shares its root with another trajectory")


def _check_ends(tree: RolloutTree) -> None:
    """A window is continued by the policy; nothing follows a failure, or a call without its result."""
    for node, (s, kids) in enumerate(zip(tree.segments, tree.children, strict=True)):
        problem = _end_problem(s, [tree.segments[kid] for kid in kids]) if s.is_policy else ""
        if problem:
            raise TreeError(f"tree {tree.task_id}, node {node} ({s.source}): {problem}")


def _end_problem(s: Segment, kids: Sequence[Segment]) -> str:
    if s.finish is Finish.WINDOW and not (kids and all(kid.is_policy for kid in kids)):
        return "cut after its window, but the policy does not continue it"
    if s.finish is Finish.ERROR and kids:
        return "something follows a failure of the infrastructure"
    if s.event is not None and kids:
        return "it holds a call that got no result, and yet something follows"
    return ""


def _check_outcomes(tree: RolloutTree) -> None:
    if not tree.outcomes:
        return
    name = f"tree {tree.task_id}"
    counts = f"{len(tree.outcomes)} outcomes for {len(tree.leaves)} trajectories"
    _require(len(tree.outcomes) == len(tree.leaves), f"{name}: {counts}")
    for leaf, outcome in zip(tree.leaves, tree.outcomes, strict=True):
        reward = outcome.reward
        _require(reward is None or np.isfinite(reward), f"{name}, leaf {leaf}: reward {reward}")
        failed = tree.segments[leaf].finish is Finish.ERROR
        _require(not failed or reward is None, f"{name}, leaf {leaf}: reward {reward} for a failure")


def _check_decisions(tree: RolloutTree) -> None:
    """Each decision points into the tree, each root has one baseline, and what was opened is there."""
    baseline: dict[int, float] = {}
    opened: dict[int, int] = {}
    for decision in tree.decisions:
        where = f"tree {tree.task_id}, decision at node {decision.node}"
        _require(0 <= decision.node < len(tree.segments), f"{where}: no such node")
        _require(0 <= decision.opened <= decision.wanted, f"{where}: opened {decision.opened} of {decision.wanted}")
        chain = tree.ancestry(decision.node)
        root = chain[1] if len(chain) > 1 else 0
        if np.isfinite(decision.h_root):
            known = baseline.setdefault(root, decision.h_root)
            _require(known == decision.h_root, f"{where}: baseline {decision.h_root}, its root's is {known}")
        opened[decision.node] = opened.get(decision.node, 0) + decision.opened
    for node, extra in opened.items():
        kids = len(tree.children[node])
        _require(extra == 0 or kids > extra, f"tree {tree.task_id}, node {node}: {extra} opened, {kids} children")
