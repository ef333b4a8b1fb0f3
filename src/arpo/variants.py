"""Unions of settings models told apart by `type`: choosing one in code, with the errors a configuration file gets.

Files and the command line choose through `arpo.config`; this is for scripts and notebooks, where
`credit_settings(type="hard")` should fail as helpfully.
"""

import difflib
from collections.abc import Collection, Mapping
from typing import Any, get_args

from pydantic import ValidationError

from arpo.errors import ConfigError


def choose(union: Any, table: str, kind: str, options: Mapping[str, Any]) -> Any:
    """The model of `union` (`Annotated[A | B | ..., Field(discriminator="type")]`) whose type is `kind`.

    Raises ConfigError naming `table`, the value and the nearest known name.
    """
    models = {model.model_fields["type"].default: model for model in get_args(get_args(union)[0])}
    if kind not in models:
        raise ConfigError(f"{table}.type = {kind!r} is unknown; {_hint(kind, models)}")
    model = models[kind]
    for key in options:
        if key not in model.model_fields:
            hint = _hint(key, model.model_fields)
            raise ConfigError(f'unknown key {table}.{key} with {table}.type = "{kind}"; {hint}')
    try:
        return model(**options)
    except ValidationError as error:
        wrong = error.errors(include_url=False)
        lines = [f"{table}.{'.'.join(map(str, item['loc']))} = {item['input']!r}: {item['msg']}" for item in wrong]
        raise ConfigError("\n".join(lines)) from error


def _hint(name: str, known: Collection[str]) -> str:
    guess = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {guess[0]}?" if guess else f"known: {', '.join(known)}"
