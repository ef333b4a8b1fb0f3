"""How large a benchmark of rollouts is when nobody says.

`quick` takes twenty minutes on two cores for both packaged models; `full` is for an evening. SmolLM2 computes a hundred
and fifty times as much per token as the pocket policy, so its jobs are small. Exact entropy costs so little that only
many short pairs show it: half of the job's prompts, and several pairs for every round.
"""

from dataclasses import dataclass, replace

from arpo.bench.presets import PRESETS, parse_group
from arpo.bench.rollout import VERSUS, RolloutSetting, parse_tools, parse_versus
from arpo.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """A job. `group`: trajectories from the prompt + branches; `max_tokens`, `max_calls`: of a trajectory; the rest as
    in RolloutSetting."""

    prompts: int
    group: str
    max_tokens: int
    max_calls: int
    rounds: int
    tools: str
    in_flight: int | None
    entropy_rounds: int


_LONG = 3
"""A long run takes this many times the prompts that are in flight."""
_SMOLLM2 = {
    "quick": Size(
        prompts=1, group="4+4", max_tokens=32, max_calls=2, rounds=2, tools="0,heavy", in_flight=None, entropy_rounds=3
    ),
    "full": Size(
        prompts=4,
        group="8+8",
        max_tokens=256,
        max_calls=4,
        rounds=3,
        tools="0,50ms,heavy",
        in_flight=4,
        entropy_rounds=6,
    ),
}
_OTHERS = {
    "quick": Size(
        prompts=8,
        group="8+8",
        max_tokens=400,
        max_calls=7,
        rounds=3,
        tools="0,50ms,heavy",
        in_flight=16,
        entropy_rounds=12,
    ),
    "full": Size(
        prompts=16,
        group="8+8",
        max_tokens=400,
        max_calls=7,
        rounds=9,
        tools="0,50ms,heavy",
        in_flight=16,
        entropy_rounds=36,
    ),
}


def size(model: str, preset: str, **changes: int | str | None) -> Size:
    """The preset's job for that model; what `changes` names (and is not None) replaces it. ConfigError: no preset."""
    if preset not in PRESETS:
        raise ConfigError(f"--preset {preset}: known are {' and '.join(PRESETS)}")
    chosen = (_SMOLLM2 if model == "smollm2" else _OTHERS)[preset]
    changed = {name: value for name, value in changes.items() if value is not None}
    for name, value in changed.items():
        if isinstance(value, int) and value < 1:
            raise ConfigError(f"--{name.replace('_', '-')} {value}: at least one is needed")
    own = replace(chosen, **changed)  # type: ignore[arg-type]
    parse_group(own.group)
    return own


def setting(own: Size, versus: str | None, memory: bool) -> RolloutSetting:
    """What to measure on a job of that size."""
    return RolloutSetting(
        prompts=own.prompts,
        rounds=own.rounds,
        tools=parse_tools(own.tools),
        versus=VERSUS if versus is None else parse_versus(versus),
        in_flight=own.in_flight,
        long=_LONG * (own.in_flight or 0),
        entropy_rounds=own.entropy_rounds,
        memory=memory,
    )


def model_names(text: str) -> list[str]:
    """Comma-separated names. Raises ConfigError if there is none."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise ConfigError("--model: name at least one model")
    return names
