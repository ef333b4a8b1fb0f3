"""Values as Hydra's override grammar wants them, so that they arrive as they are.

Hydra reads `key=value` with a grammar of its own and OmegaConf then looks for `${...}`: a run named "2024" would become
a number, a path with a comma a list, a dollar an interpolation. Whatever could be read as something else is quoted
here. A configuration of ours travels as JSON whose quotes and dollars are written as JSON's own escapes, so that
nothing in it can mean anything to either of the two.

Source of the rules: Hydra 1.3, "Extended override syntax" (quoted values; backslashes count only before a quote), and
OmegaConf 2.3, "Variable interpolation". The latter's escape, a backslash before `${`, does not last: verl resolves its
configuration in place, after which the next look finds an interpolation. So `${` cannot be said, and is refused.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from arpo.errors import ConfigError

_PLAIN = re.compile(r"[A-Za-z_/][\w/.\-]*")
_WORDS = frozenset({"true", "false", "null", "nan", "inf"})
"""What the grammar reads as something else than a string, whatever its case."""
_BEFORE_QUOTE = re.compile(r"(\\*)'")
_AT_END = re.compile(r"(\\+)$")


def text_of(value: Any) -> str:
    """`value` in Hydra's grammar: None, numbers, strings, and lists and tables of them."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return value if _PLAIN.fullmatch(value) and value.lower() not in _WORDS else quoted(value)
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{text_of(str(name))}:{text_of(item)}" for name, item in value.items()) + "}"
    if isinstance(value, Sequence):
        return "[" + ",".join(text_of(item) for item in value) + "]"
    raise TypeError(f"{value!r} has no form in an override")


def quoted(text: str) -> str:
    """A string in single quotes that comes out as it went in. ConfigError if it holds `${`."""
    if "${" in text:
        raise ConfigError(f"{text!r} holds ${{, which verl would take for an interpolation; choose another name")
    inner = _BEFORE_QUOTE.sub(lambda found: found[1] * 2 + r"\'", text)
    return "'" + _AT_END.sub(lambda found: found[1] * 2, inner) + "'"


def quoted_json(text: str) -> str:
    """A JSON text in single quotes. Quotes and dollars stand only in its strings, where JSON can escape them."""
    return "'" + text.replace("'", r"\u0027").replace("$", r"\u0024") + "'"
