"""The command that starts verl, and how it is shown: a Bash array in which every override has its origin beside it.

What is printed can be pasted as it stands: Bash and zsh read `#` comments between the elements of an array, so the
listing and the command are one text.
"""

import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from arpo.verl.overrides import Override, Translation

ENTRY = "verl.trainer.main_ppo"


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where Ray is. `address` None: none is running, verl starts one on this machine; "auto": the one that this
    machine belongs to; "ray://HOST:10001": through Ray's client; "http://HOST:8265": as a job, `ray job submit`."""

    address: str | None = None

    @property
    def submits(self) -> bool:
        """Whether the job is handed over instead of being started here."""
        return self.address is not None and self.address.startswith(("http://", "https://"))

    @property
    def environment(self) -> dict[str, str]:
        """What the process needs to find Ray."""
        return {} if self.address is None or self.submits else {"RAY_ADDRESS": self.address}

    def command(self, overrides: Sequence[str]) -> list[str]:
        """The whole command line. A job runs the cluster's own Python, any other this one."""
        if not self.submits:
            return [sys.executable, "-m", ENTRY, *overrides]
        return ["ray", "job", "submit", "--address", str(self.address), "--", "python", "-m", ENTRY, *overrides]


def arguments(translation: Translation, extra: Sequence[str]) -> list[str]:
    """What verl's Hydra is given. `extra` comes last and goes through untouched: of two that set one key Hydra takes
    the later, but for additions, which must not be made twice."""
    given = {_key(text) for text in extra}
    return [*(one.text for one in translation.overrides if _key(one.key) not in given), *extra]


def _key(text: str) -> str:
    return text.partition("=")[0].lstrip("+~")


def listing(translation: Translation, extra: Sequence[str], cluster: Cluster) -> Iterator[str]:
    """Lines of Bash: the overrides with their origins, what is not carried over, and the command."""
    given = {_key(text) for text in extra}
    yield "overrides=("
    for override in translation.overrides:
        if _key(override.key) not in given:
            yield f"  {shlex.quote(override.text)}  # {_origin(override)}"
    for text in extra:
        yield f"  {shlex.quote(text)}  # given after --"
    yield ")"
    for left in translation.uncarried:
        yield f"# not carried over: {', '.join(left.keys)}: {left.why}"
    settings = [f"{name}={shlex.quote(value)}" for name, value in cluster.environment.items()]
    command = [shlex.quote(word) for word in cluster.command([])]
    yield " ".join([*settings, *command, '"${overrides[@]}"'])


def _origin(override: Override) -> str:
    return override.origin if len(override.origin) <= 100 else f"{override.origin[:97]}..."
