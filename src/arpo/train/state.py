"""Where a run stands, and how it is put on disk and taken up again.

A checkpoint holds all that a step depends on: what the learner needs to go on (the policy and its tokenizer, the
optimiser), and the position (step, task cursor, what was spent). Draws depend on the seed and the position alone, so
that is all.
"""

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arpo.errors import CheckpointError
from arpo.learn.checkpoint import load_latest, save_checkpoint
from arpo.learn.trains import Trains
from arpo.train.team import ALONE, Team


@dataclass(frozen=True)
class Position:
    """`step`: finished steps. `cursor`: tasks drawn. The rest is what they cost: tokens the policy sampled, executed
    tool calls, seconds of rollout and update."""

    step: int = 0
    cursor: int = 0
    generated_tokens: int = 0
    tool_calls: int = 0
    seconds: float = 0.0

    def after(self, *, cursor: int, generated_tokens: int, tool_calls: int, seconds: float) -> "Position":
        """One step further."""
        return dataclasses.replace(
            self,
            step=self.step + 1,
            cursor=cursor,
            generated_tokens=self.generated_tokens + generated_tokens,
            tool_calls=self.tool_calls + tool_calls,
            seconds=self.seconds + seconds,
        )

    def metrics(self) -> dict[str, float]:
        """What was spent so far, under the metrics' names."""
        return {
            "num_tokens": self.generated_tokens,
            "num_tool_calls": self.tool_calls,
            "num_prompts": self.cursor,
            "seconds": self.seconds,
        }


def save(root: Path, position: Position, tokenizer: Any, learner: Trains, keep: int, team: Team = ALONE) -> None:
    """Write the checkpoint of `position` atomically; older ones beyond `keep` go.

    All processes of the team save; it is written by the first, and there when this returns.
    """

    def write(folder: Path) -> None:
        learner.save(folder, tokenizer)
        (folder / "position.json").write_text(json.dumps(dataclasses.asdict(position)))

    if team.first:
        save_checkpoint(root, position.step, write, keep)
    else:
        learner.save(root, tokenizer)
    team.wait()


def restore(root: Path, tokenizer: Any, learner: Trains, warn: Callable[[str], None], team: Team = ALONE) -> Position:
    """Load the newest whole checkpoint into the live objects; the start if there is none.

    The first process of the team chooses; all load. Raises CheckpointError if it belongs to another policy.
    """
    found = team.told(load_latest(root, tokenizer=tokenizer, say=warn) if team.first else None)
    if found is None:
        return Position()
    _, folder = found
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is not on this machine; all processes of a run must see its run folder")
    learner.load(folder)
    return Position(**json.loads((folder / "position.json").read_text()))
