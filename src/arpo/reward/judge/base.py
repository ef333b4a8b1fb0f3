"""What a judge is asked and how its reply is read: a protocol.

A verdict is only as good as the words that asked for it, so the words are part of the measurement: a protocol has a
hash over everything that shapes the reply, and that hash is recorded with every verdict.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any


@dataclass(frozen=True, slots=True)
class Grade:
    """What a reply says. `score`: 0 or 1; `word`: the grade by name; `confidence`: percent, where asked for."""

    score: float
    word: str
    confidence: float | None = None


Read = Callable[[str], Grade | None]
"""From a reply to its grade; None if the reply does not have the form that was asked for."""


@dataclass(frozen=True)
class JudgeProtocol:
    """One way to ask a judge.

    `prompt`: holds {question}, {gold} and {answer} (see `arpo.reward.judge.quoting` for their other names). `reminder`:
    said once to a judge whose reply had another form. `schema`: JSON schema of the reply, for servers that can hold a
    model to it. `asks_confidence`: the judge is shown the confidence that the answer states. `silence`: the grade of an
    answer that says nothing. `follows`: the published protocol that has these fields and grades.
    """

    name: str
    prompt: str
    reminder: str
    read: Read
    follows: str
    schema: Mapping[str, Any] | None = None
    asks_confidence: bool = False
    silence: str = "incorrect"
    preamble: str = field(default="", kw_only=True)

    @cached_property
    def hash(self) -> str:
        """16 hexadecimal digits of SHA-256 over name, preamble, prompt, reminder and schema."""
        parts = [self.name, self.preamble, self.prompt, self.reminder, self.schema]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def object_schema(**properties: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON schema of an object with exactly these properties, in this order."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }
