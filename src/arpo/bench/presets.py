"""Which shapes are measured for which model when nobody names any.

`quick` takes ten minutes on two cores for both packaged models. `full` adds longer responses and takes an hour:
one gradient of SmolLM2 over 16 trajectories of 700 tokens is 9 TFLOP.
"""

from typing import get_args

from arpo.bench.shapes import Shape, parse_shape
from arpo.errors import ConfigError
from arpo.learn.attention import Form
from arpo.learn.settings import OptimSettings

PRESETS = ("quick", "full")
_SMOLLM2 = {
    "quick": ("150+200@1/2",),
    "full": ("150+200@1/2", "300+400@root", "300+400@1/4", "300+400@1/2", "300+400@3/4", "500+1500@1/2"),
}
_OTHERS = {
    "quick": ("200+400@root", "200+400@1/4", "200+400@1/2", "200+400@3/4"),
    "full": (
        *("150+200@1/2", "300+600@root", "300+600@1/4", "300+600@1/2", "300+600@3/4", "300+600@mixed"),
        *("500+1500@root", "500+1500@1/4", "500+1500@1/2", "500+1500@3/4"),
    ),
}


def select(models: str, shapes: str | None, preset: str, group: str) -> list[tuple[str, list[Shape]]]:
    """Models with their shapes. `models`, `shapes`: comma-separated; `group`: roots + branches, like `8+8`.

    Raises ConfigError naming what cannot be understood.
    """
    if preset not in PRESETS:
        raise ConfigError(f"--preset {preset}: known are {' and '.join(PRESETS)}")
    names = [name.strip() for name in models.split(",") if name.strip()]
    if not names:
        raise ConfigError("--model: name at least one model")
    roots, total = parse_group(group)
    chosen = {name: shapes.split(",") if shapes else _preset(name, preset) for name in names}
    return [(name, [parse_shape(one, roots=roots, total=total) for one in own]) for name, own in chosen.items()]


def budget(model: str, asked: int | None) -> int:
    """Tokens of one pass: those asked for, or the library's default, for SmolLM2 what fits into 16 GB."""
    if asked is not None and asked < 1:
        raise ConfigError(f"--micro-tokens {asked}: a pass takes at least one token")
    return asked or (4096 if model == "smollm2" else OptimSettings().micro_tokens)


def repeats(model: str, asked: int | None) -> int:
    """Rounds: those asked for, or three, two of SmolLM2, whose round takes minutes."""
    return asked if asked is not None else 2 if model == "smollm2" else 3


def _preset(model: str, preset: str) -> tuple[str, ...]:
    return (_SMOLLM2 if model == "smollm2" else _OTHERS)[preset]


def parse_group(text: str) -> tuple[int, int]:
    """(roots, trajectories)"""
    roots, plus, branches = text.partition("+")
    if not (plus and roots.strip().isdigit() and branches.strip().isdigit()):
        raise ConfigError(f"--group {text}: write trajectories from the prompt + branches, like 8+8")
    return int(roots), int(roots) + int(branches)


def attention_form(name: str | None) -> Form | None:
    """The form of attention over trees of that name; None: the device's best."""
    if name is None:
        return None
    for form in get_args(Form):
        if form == name:
            return form
    raise ConfigError(f"--attention {name}: known are {', '.join(get_args(Form))}")
