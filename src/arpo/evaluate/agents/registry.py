"""From a name to a way of answering."""

from collections.abc import Mapping
from difflib import get_close_matches

from arpo.errors import ConfigError
from arpo.evaluate.agents.base import Method
from arpo.evaluate.agents.direct import Direct
from arpo.evaluate.agents.policy import Policy
from arpo.evaluate.agents.rag import Rag
from arpo.evaluate.agents.react import React
from arpo.evaluate.agents.search_o1 import SearchO1
from arpo.evaluate.agents.tir import Tir
from arpo.evaluate.agents.webthinker import WebThinker

_CLASSES: tuple[type[Method], ...] = (Policy, Direct, Tir, React, Rag, SearchO1, WebThinker)
_METHODS: Mapping[str, type[Method]] = {method.name: method for method in _CLASSES}
NAMES = tuple(_METHODS)


def build(name: str) -> Method:
    """The method `name`. Raises ConfigError with the nearest name if there is none."""
    if name in _METHODS:
        return _METHODS[name]()
    near = get_close_matches(name, NAMES, n=1)
    meant = f"; did you mean {near[0]!r}?" if near else ""
    raise ConfigError(f"there is no agent {name!r}{meant} There is: {', '.join(NAMES)}")
