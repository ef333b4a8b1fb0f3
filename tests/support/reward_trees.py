"""Small trees whose tokens are characters, for tests of rewards."""

import numpy as np

from arpo.protocol.boxed import last_boxed
from arpo.tree import Finish, RolloutTree, Segment, Source, ToolEvent


class Characters:
    """A dialect whose tokens are characters. Malformed: no `\\boxed` in the last text, or an exclamation mark."""

    def decode(self, tokens):
        return "".join(map(chr, tokens))

    def answer(self, text):
        return last_boxed(text)

    def format_errors(self, pieces):
        good = pieces and last_boxed(pieces[-1]) is not None and not any("!" in piece for piece in pieces)
        return [] if good else ["malformed"]


def segment(text: str, source: Source, parent: int, finish: Finish = Finish.NONE, event: ToolEvent | None = None):
    sampled = source is Source.POLICY
    numbers = np.zeros(len(text) if sampled else 0, np.float32)
    tokens = np.array([ord(char) for char in text], np.int32)
    return Segment(tokens, source, parent, numbers, numbers, finish, 0 if sampled else -1, event)


def policy(text: str, parent: int, finish: Finish = Finish.STOP, event: ToolEvent | None = None) -> Segment:
    return segment(text, Source.POLICY, parent, finish, event)


def call(name: str, status: str = "ok", **changes) -> ToolEvent:
    return ToolEvent(name, "{}", status, **changes)


def chain(*steps: str | ToolEvent, last: Finish = Finish.STOP) -> RolloutTree:
    """One trajectory: texts of the policy, and events that become tool segments (notices where nothing ran)."""
    segments = [segment("Q \\boxed{42}", Source.PROMPT, -1)]
    for place, step in enumerate(steps):
        parent, end = len(segments) - 1, place == len(steps) - 1
        if isinstance(step, str):
            segments.append(policy(step, parent, last if end else Finish.CALL))
        else:
            source = Source.TOOL if step.executed else Source.NOTICE
            segments.append(segment("result \\boxed{42}", source, parent, event=step))
    return RolloutTree("t", tuple(segments), (len(segments) - 1,)).validate()
