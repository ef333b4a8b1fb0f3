"""Every name that a configuration may hold, read off the models themselves.

A dotted name walks through nested models, through unions (told apart by `type`: all variants count) and through lists
(a position, `tools.0.top_k`). So checks and suggestions need no second list of keys that could fall behind.
"""

import difflib
import types
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel

from arpo.config.schema import Config

Model = type[BaseModel]


def models_in(annotation: Any) -> tuple[Model, ...]:
    """The models that a value of this type may be: one, the variants of a union, or none for plain values."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return (annotation,)
    origin = get_origin(annotation)
    if origin is Annotated:
        return models_in(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return tuple(model for part in get_args(annotation) for model in models_in(part))
    return ()


def item_annotation(annotation: Any) -> Any | None:
    """Type of the items if this is a list of models, else None."""
    if get_origin(annotation) is Annotated:
        return item_annotation(get_args(annotation)[0])
    if get_origin(annotation) is tuple and models_in(get_args(annotation)[0]):
        return get_args(annotation)[0]
    return None


def allows(annotation: Any, kind: type) -> bool:
    """Whether a value of the plain type `kind` may stand here (`type(None)`: whether None may)."""
    if get_origin(annotation) is Annotated:
        return allows(get_args(annotation)[0], kind)
    if get_origin(annotation) in (Union, types.UnionType):
        return any(allows(part, kind) for part in get_args(annotation))
    return (get_origin(annotation) or annotation) is kind


def tag_of(model: Model) -> str | None:
    """The `type` that selects this model in its union."""
    field = model.model_fields.get("type")
    return None if field is None else get_args(field.annotation)[0]


def variant(models: tuple[Model, ...], table: Mapping[str, Any]) -> Model | None:
    """The model that `table` is meant for; None if its `type` is missing or names none of them."""
    if len(models) == 1:
        return models[0]
    return next((model for model in models if tag_of(model) == table.get("type")), None)


def annotation_at(name: str) -> Any | None:
    """The type of the value at a dotted name, in whichever variant has it; None if there is no such name."""
    candidates: list[Any] = [Config]
    for part in name.split("."):
        candidates = [found for annotation in candidates for found in _step(annotation, part)]
    return candidates[0] if candidates else None


def _step(annotation: Any, part: str) -> Iterator[Any]:
    item = item_annotation(annotation)
    if item is not None and part.isdigit():
        yield item
    for model in models_in(annotation):
        if part in model.model_fields:
            yield model.model_fields[part].annotation


@cache
def known_names() -> tuple[str, ...]:
    """All dotted names; positions in lists are written 0."""
    return tuple(dict.fromkeys(_names(Config, "")))


def _names(model: Model, prefix: str) -> Iterator[str]:
    for key, field in model.model_fields.items():
        yield prefix + key
        inner, below = field.annotation, f"{prefix}{key}."
        item = item_annotation(inner)
        if item is not None:
            inner, below = item, f"{below}0."
        for nested in models_in(inner):
            yield from _names(nested, below)


ALIASES: Mapping[str, str] = {
    "n": "rollout.total",
    "initial_rollouts": "rollout.initial",
    "beam_size": "rollout.branches",
    "branch_probability": "rollout.branching.base_probability",
    "alpha": "rollout.branching.base_probability",
    "beta": "rollout.branching.entropy_weight",
    "tau": "rollout.branching.threshold",
    "max_branch_depth": "rollout.budget.max_forks",
    "budget_order": "rollout.budget.order",
    "normalizer": "entropy.normaliser",
}
"""What else people call a setting: last parts of names that no spelling distance would find."""


def nearest(name: str, names: tuple[str, ...] | None = None) -> str | None:
    """The known name that was probably meant: the one whose last part is the same or closest.

    Tables are not compared: they make up most of a long name, and would outweigh what was misspelt. Without `names`
    all names of the configuration and the aliases are looked through.
    """
    last = name.rpartition(".")[2]
    if names is None and last in ALIASES:
        return ALIASES[last]
    names = known_names() if names is None else names
    by_last = {other.rpartition(".")[2]: other for other in reversed(names)}
    part = difflib.get_close_matches(last, by_last, n=1, cutoff=0.7)
    return by_last[part[0]] if part else None
