"""What the simulated policy says: how many tokens, and whether a call or the answer follows.

Its tokens mean nothing but two things. The last one of every piece is a number of its own, under which is remembered
what the piece was; and the number of others is how much there is to compute. A prompt, too, ends in a number. So a
prefix names its place in the tree by its last number and the tokens behind it, and equal places are equal prefixes.

Lengths are log-normal around the mean of a segment; a segment that was cut at the entropy window goes on as one that
is known to be longer than the window. Whether a call follows is drawn with one probability, chosen such that the mean
number of calls is the wanted one under the limit. `spread = 0` makes all of it fixed: what the plan does on paper.
Every draw is a function of the seed that the scheduler passes, so neither timing nor latency changes a tree.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from arpo.plan.work import Trajectory
from arpo.protocol.base import Call, ParseCode, ParseResult
from arpo.seeds import uniform
from arpo.task import Task
from arpo.tree import Finish

_NORMAL = NormalDist()
FILL, FIRST_PROMPT, FIRST_PIECE = 1, 16, 1 << 20


@dataclass(frozen=True, slots=True)
class Piece:
    """A sampled piece: the segment's tokens so far, this piece's included; results before it; what follows it."""

    so_far: int
    depth: int
    finish: Finish
    query: str = ""


class Script:
    """Draws pieces and remembers them by their number. `limit`: calls that a trajectory may make; `repeat`: share of
    the calls that ask what others of the group ask at this depth, too.
    """

    def __init__(self, mean: Trajectory, limit: int, *, spread: float = 0.6, repeat: float = 0.0) -> None:
        self.mean, self.limit, self.spread, self.repeat = mean, limit, spread, repeat
        self.segment = mean.sampled / (mean.calls + 1)
        self.again = _again(mean.calls, limit)
        self.pieces: dict[int, Piece] = {}

    def draw(self, before: Piece | None, results: bool, group: int, most: int, seed: int) -> Piece:
        """The piece behind `before` (None: the prompt); `results`: a result or a notice stands in between."""
        depth = 0 if before is None else before.depth + (results and before.finish is Finish.CALL)
        open_ = 0 if before is None or results else before.so_far
        whole = self._length(open_, seed)
        if whole - open_ > most:
            return Piece(open_ + most, depth, Finish.LENGTH)
        if not self._calls(depth, seed):
            return Piece(whole, depth, Finish.STOP)
        return Piece(whole, depth, Finish.CALL, self._query(group, depth, seed))

    def keep(self, piece: Piece) -> int:
        """The number under which the piece is remembered from now on."""
        number = FIRST_PIECE + len(self.pieces)
        self.pieces[number] = piece
        return number

    def _length(self, least: int, seed: int) -> int:
        """Tokens of a segment that has more than `least`."""
        if not self.spread:
            return max(round(self.segment), least + 1)
        middle = math.log(self.segment) - self.spread**2 / 2
        below = _NORMAL.cdf((math.log(least) - middle) / self.spread) if least else 0.0
        share = below + (1 - below) * uniform(seed, "length")
        draw = _NORMAL.inv_cdf(min(max(share, 1e-12), 1 - 1e-12))
        return max(round(math.exp(middle + self.spread * draw)), least + 1)

    def _calls(self, depth: int, seed: int) -> bool:
        if not self.spread:
            return depth < self.mean.calls
        return depth < self.limit and uniform(seed, "calls") < self.again

    def _query(self, group: int, depth: int, seed: int) -> str:
        common = uniform(seed, "repeat") < self.repeat
        return f"{group}/{depth}" if common else str(seed)


def _again(calls: float, limit: int) -> float:
    """The q with q + q^2 + ... + q^limit = calls."""
    if calls >= limit:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(middle**n for n in range(1, limit + 1)) < calls else (low, middle)
    return low


class SimulatedDialect:
    """Reads and writes the script's tokens. Implements `arpo.protocol.base.Dialect`."""

    name = "simulated"
    stop: tuple[str, ...] = ("call",)
    end_tokens: tuple[int, ...] = ()

    def __init__(self, script: Script) -> None:
        self._script = script

    def prompt(self, task: Task) -> np.ndarray:
        """`task.id` is the group's number."""
        tokens = np.full(self._script.mean.prompt, FILL, np.int32)
        tokens[-1] = FIRST_PROMPT + int(task.id)
        return tokens

    def parse(self, tokens: Sequence[int], finish: Finish) -> ParseResult:
        piece = self._script.pieces[tokens[-1]]
        if finish is Finish.CALL:
            return ParseResult(call=Call("tool", {"query": piece.query}))
        return ParseResult(answer="done") if finish is Finish.STOP else ParseResult(code=ParseCode.TRUNCATED)

    def result(self, text: str, *, finish: Finish = Finish.CALL, call: Call | None = None) -> np.ndarray:
        return np.full(max(self._script.mean.result, 1), FILL, np.int32) if text else np.empty(0, np.int32)

    def notice(self, text: str, *, finish: Finish = Finish.CALL, call: Call | None = None) -> np.ndarray:
        return np.full(16, FILL, np.int32)

    def answer(self, policy_text: str) -> str | None:
        return "done"

    def format_errors(self, pieces: Sequence[str]) -> list[str]:
        return []

    def decode(self, tokens: Sequence[int]) -> str:
        return ""
