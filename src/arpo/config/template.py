"""The compact template: four tables under `arpo`, every knob of which acts.

Its trigger asks for two things at once, entropy after the tool above an absolute threshold (nats) *and* a rise of
entropy over the root's; that is the rule `absolute_and_delta` here.
"""

from collections.abc import Callable, Mapping
from typing import Any

from arpo.config.conversion import Conversion
from arpo.config.names import nearest
from arpo.errors import ConfigError
from arpo.learn.settings import ClipLoss

RULE = "absolute_and_delta"

Knob = str | Callable[[Conversion, Any, str], None]


def _importance_clip(result: Conversion, value: Any, source: str) -> None:
    """Below 1 it is a clip range around ratio 1, from 1 on an upper bound of the ratio itself."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0 or value == 1:
        raise ConfigError(
            f"{source} = {value!r}: expected a clip range between 0 and 1, or a largest ratio above 1 "
            "(1 itself would leave no gradient)"
        )
    if value < 1:
        result.put("loss.clip_low", value, source)
        result.put("loss.clip_high", value, source)
        return
    result.put("loss.max_ratio", value, source)
    if value < 1 + ClipLoss().clip_high:
        result.put("loss.clip_high", value - 1, source)
        result.note(f"{source} = {value} lies inside the default clip range, so loss.clip_high is narrowed to it")


KNOBS: Mapping[str, Knob] = {
    "entropy_monitor.window_size": "entropy.window",
    "entropy_monitor.tool_call_entropy_threshold": "rollout.branching.entropy_threshold",
    "entropy_monitor.entropy_delta_weight": "rollout.branching.entropy_weight",
    "entropy_monitor.min_tokens_after_tool": "entropy.min_tokens",
    "adaptive_branch.base_sample_prob": "rollout.branching.base_probability",
    "adaptive_branch.branch_count": "rollout.branches",
    "adaptive_branch.branch_trigger_threshold": "rollout.branching.threshold",
    "adaptive_branch.max_branch_depth": "rollout.budget.max_forks",
    "advantage_attribution.mode": "credit.type",
    "advantage_attribution.importance_weight_clip": _importance_clip,
    "advantage_attribution.shared_prefix_average": "credit.shared_prefix_average",
    "tool_policy.max_tool_calls_per_trajectory": "rollout.max_calls",
    "tool_policy.tool_call_penalty": "reward.tool_cost",
    "tool_policy.success_reward_bonus": "reward.success_bonus",
    "tool_policy.redundant_call_penalty": "reward.redundant_penalty",
}
_TABLES = tuple(dict.fromkeys(knob.partition(".")[0] for knob in KNOBS))


def is_template(table: Mapping[str, Any]) -> bool:
    """Whether a file's top-level table is this template (with or without the `arpo` table around it)."""
    return "arpo" in table or any(name in table for name in _TABLES)


def convert(table: Mapping[str, Any], source: str) -> Conversion:
    """Map every knob. An unknown one is an error with the nearest name."""
    stray = [key for key in table if "arpo" in table and key != "arpo"]
    if stray:
        raise ConfigError(f"{source}: unknown key {stray[0]} beside arpo; the template holds the table arpo alone")
    result = Conversion()
    result.put("rollout.branching.type", RULE, "the template's trigger: absolute entropy and its rise")
    for knob, value in _knobs(table.get("arpo", table), source):
        target = KNOBS[knob]
        if isinstance(target, str):
            result.put(target, value, f"arpo.{knob}")
        else:
            target(result, value, f"arpo.{knob}")
    return result


def _knobs(table: Any, source: str) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, knobs in _mapping(table, source, "arpo").items():
        if name not in _TABLES:
            raise ConfigError(_unknown(source, name, _TABLES))
        for knob, value in _mapping(knobs, source, f"arpo.{name}").items():
            if f"{name}.{knob}" not in KNOBS:
                raise ConfigError(_unknown(source, f"{name}.{knob}", tuple(KNOBS)))
            found.append((f"{name}.{knob}", value))
    return found


def _mapping(value: Any, source: str, name: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{source}: {name} = {value!r}: expected a table")
    return value


def _unknown(source: str, name: str, known: tuple[str, ...]) -> str:
    guess = nearest(name, known)
    hint = f"did you mean arpo.{guess}?" if guess else f"known: {', '.join(f'arpo.{one}' for one in known)}"
    return f"{source}: unknown key arpo.{name}; {hint}"
