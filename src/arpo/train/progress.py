"""What a person sees while a run trains: a live line with ETA on a terminal, plain lines elsewhere."""

import sys
from collections.abc import Mapping
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn


class Reporter:
    """Prints one short line per step, and a bar with the time left when standard error is a terminal."""

    def __init__(self, label: str, *, quiet: bool = False, mute: bool = False) -> None:
        """`quiet`: warnings only; `mute`: nothing, for processes of which another one speaks."""
        self.label = label
        self.quiet = quiet or mute
        self.mute = mute
        self.console = Console(stderr=True, highlight=False)
        self._bar: Progress | None = None

    def __enter__(self) -> "Reporter":
        if self.console.is_terminal and not self.quiet:
            columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:.0f} %")
            self._bar = Progress(*columns, TimeRemainingColumn(), console=self.console, transient=True)
            self._bar.add_task(self.label, total=1.0)
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()

    def step(self, row: Mapping[str, float], done: float) -> None:
        """One finished step; `done` in [0, 1] of the run's budget."""
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=done)
        held = f" | held-out {row['heldout/accuracy']:.3f}" if "heldout/accuracy" in row else ""
        self.say(
            f"step {row['step']:.0f} ({done:.0%}) | reward {row['reward']:.3f} | accuracy "
            f"{row.get('reward/accuracy/mean', 0.0):.3f} | entropy {row['entropy']:.3f} | calls "
            f"{row['tools/calls_per_rollout']:.2f} | branches {row['arpo/branches']:.1f} | "
            f"{row['num_tokens']:,.0f} tokens{held}"
        )

    def say(self, text: str) -> None:
        """A plain line, unless quiet."""
        if not self.quiet:
            self.console.print(f"{self.label}: {text}", markup=False, soft_wrap=True)

    def warn(self, text: str) -> None:
        """A line that is printed even when quiet."""
        if self.mute:
            return
        self.console.print(f"{self.label}: warning: {text}", markup=False, style="yellow", soft_wrap=True)
        sys.stderr.flush()
