"""Protocols by name."""

from dataclasses import replace
from pathlib import Path

from arpo.errors import ConfigError
from arpo.reward.judge import generic, hle, paper, simpleqa, xbench
from arpo.reward.judge.base import JudgeProtocol
from arpo.reward.judge.quoting import check_prompt

PROTOCOLS = {module.PROTOCOL.name: module.PROTOCOL for module in (generic, paper, hle, simpleqa, xbench)}


def protocol(name: str, prompt: str | None = None) -> JudgeProtocol:
    """The protocol of that name; `prompt`: file with another wording for it, whose replies must have the same form.

    Raises ConfigError if the file cannot be read or has no place for question, gold answer or answer.
    """
    found = PROTOCOLS[name]
    if prompt is None:
        return found
    try:
        text = Path(prompt).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the judge's prompt {prompt}: not a readable UTF-8 file ({error})") from error
    check_prompt(text, f"the judge's prompt {prompt}")
    return replace(found, prompt=text.strip())
