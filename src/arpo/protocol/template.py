"""A tokenizer's chat template: what it renders, and what it puts between a call and the next turn of the assistant.

A rollout must never render a conversation twice. Templates rewrite what they showed before: some drop earlier
reasoning, some slip an empty `<think></think>` into an old turn, and all of them tokenise anew, so the trained tokens
would not be the sampled ones. Here the template speaks twice only: once for the prompt, and once, in advance, on a
made-up conversation with a probe for a result. The text around the probe is the `Frame`: everything that stands between
the policy's call and its next token but for the result itself. It is appended as ids and what came before is never
touched, so the trajectory keeps its prefix whatever the template would do to it. Where a template rewrites earlier
turns, `rewrites` says so: a server that renders each turn anew then shows the model something else.

The date that some templates print is a setting: a resumed run must have the prompts of the run it continues.
"""

import datetime
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jinja2 import TemplateError

from arpo.errors import ConfigError
from arpo.protocol.base import ToolSpec
from arpo.protocol.plain import PlainEncoder
from arpo.tree import Finish

Message = Mapping[str, Any]
_NAME, _VALUE, _SAID = "arpo_probe_tool", "arpoprobevalue", "arpo probe speech"
_RESULT = 'arpo "probe"\nresult'
_CALL_ID = "call00001"
"""Nine letters and digits: what the strictest templates ask of an id."""
_HIDDEN = re.compile("\ue000(\\d+)\ue001")
"""Stands for a control token in a prompt's text while the template renders it."""
_REFUSED = (TemplateError, TypeError)
"""What a template raises on a conversation that it was not written for."""
_MANNERS: tuple[dict[str, str], ...] = ({}, {"reasoning_content": _SAID})
"""An assistant's turn without and with reasoning."""


@dataclass(frozen=True, slots=True)
class Frame:
    """What a template puts around a result.

    `ended`: the text that ends the policy's turn, up to its end token; `opening`: from there to the result; `closing`:
    from the result to the policy's next token. `as_json`: the template writes results as JSON strings. `name`: what
    stands for the tool's name in `opening`, or "". `calls`: how the template wrote the probing call, for checks.
    """

    ended: str
    opening: str
    closing: str
    as_json: bool = False
    name: str = ""
    calls: str = ""


class ChatTemplate:
    """The chat template of one tokenizer for one set of tools."""

    def __init__(self, tokenizer: Any, tools: Sequence[ToolSpec], options: Mapping[str, Any], date: str) -> None:
        """`options`: variables of the template; `date`: ISO, what it prints as today. Raises ConfigError."""
        if not tokenizer.chat_template:
            raise ConfigError(
                f"the tokenizer {tokenizer.name_or_path!r} has no chat template, which this dialect needs; "
                'use an instruction-tuned model, set the tokenizer\'s chat_template, or set protocol.type = "tags"'
            )
        self.tokenizer = tokenizer
        self.plain = PlainEncoder(tokenizer)
        self.functions = [_disarmed(function(tool), self.plain) for tool in tools]
        source = tokenizer.get_chat_template(tools=self.functions or None)
        self._variables = {**options, "chat_template": _dated(source, datetime.date.fromisoformat(date))}
        special = [entry.content for entry in tokenizer.added_tokens_decoder.values() if entry.special]
        texts = sorted({*special, *map(str, tokenizer.all_special_tokens)} - {""}, key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, texts)) or r"(?!)")
        self.speaks_tools = self._lists_tools() and self._takes_calls()
        self.folds_system = self._folds_system()
        self.turn_ends = self._turn_ends()

    # ------------------------------------------------------------------ rendering

    def text(self, messages: Sequence[Message], *, generation: bool = True, tools: bool = True) -> str:
        """The conversation as the template writes it. Raises jinja2.TemplateError where the template refuses it."""
        listed = self.functions if tools and self.functions else None
        text: str = self.tokenizer.apply_chat_template(
            list(messages), tools=listed, tokenize=False, add_generation_prompt=generation, **self._variables
        )
        return text

    def ids(self, messages: Sequence[Message]) -> np.ndarray:
        """A prompt's token ids, int32 `[T]`. Control tokens come of the template's own text alone."""
        hidden: list[str] = []

        def hide(match: re.Match[str]) -> str:
            hidden.append(match[0])
            return f"\ue000{len(hidden) - 1}\ue001"

        contents = (self.plain.control.sub(hide, m["content"].replace("\ue000", "\ufffd")) for m in messages)
        rows = [{**m, "content": content} for m, content in zip(messages, contents, strict=True)]
        parts = _HIDDEN.split(self.text(rows, tools=self.speaks_tools))
        ids = [
            self.plain.encode(hidden[int(part)]) if odd % 2 else self._encoded(part) for odd, part in enumerate(parts)
        ]
        return np.array([token for part in ids for token in part], np.int32)

    def framed(self, frame: Frame, text: str, finish: Finish, name: str = "") -> np.ndarray:
        """A result's token ids, int32 `[T]`; `finish` as in `Dialect.result`, `name` the tool's."""
        opening = frame.opening.replace(frame.name, name) if frame.name else frame.opening
        opening = opening if finish is Finish.STOP else frame.ended + opening
        shown = json.dumps(text, ensure_ascii=False) if frame.as_json else text
        places = [match.end() for match in self.plain.control.finditer(opening)]
        head = max(places, default=0)
        found = self.plain.control.search(frame.closing)
        tail = found.start() if found else len(frame.closing)
        inner = opening[head:] + shown + frame.closing[:tail]
        ids = [*self._encoded(opening[:head]), *self.plain.encode(inner), *self._encoded(frame.closing[tail:])]
        return np.array(ids, np.int32)

    def _encoded(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False) if text else []
        return ids

    # ------------------------------------------------------------------ probing

    def call_frame(self, call_end: str, call_token: str = "") -> Frame:
        """The frame of a tool's result behind a call that ends in `call_end` ("": in the end token).

        `call_token`: an end token that ends calls only. Raises ConfigError if the template writes calls or results in
        another way.
        """
        opening, shown, closing = self._around(self.text([_user(), _call(), _result()]))
        place = opening.rindex(_VALUE)
        behind = opening[place + len(_VALUE) :]
        if call_end not in behind or call_token not in behind:
            raise ConfigError(
                f"the chat template of {self.tokenizer.name_or_path!r} does not end calls with "
                f"{call_end or call_token}, as this dialect does; set protocol.type to the dialect that the model was "
                "trained on"
            )
        ended, rest = self._split(behind[behind.index(call_end) + len(call_end) :], not call_end, call_token)
        calls = opening[opening.rindex(_NAME, 0, place) - _BEFORE : -len(rest) or None]
        return Frame(ended, rest, closing, shown != _RESULT, _NAME if _NAME in rest else "", calls)

    def message_frame(self, role: str, before: str, after: str, call_end: str) -> Frame:
        """The frame of a message of `role` behind an assistant's turn; `before` and `after` stand around its content.

        Raises jinja2.TemplateError if the template does not know the role.
        """
        opening, shown, closing = self._around(self.text([_user(), *_turn(role, before, after, call_end)]))
        ended, rest = self._split(opening[opening.rindex(_SAID) + len(_SAID) :].removeprefix(call_end))
        return Frame(ended, rest, closing, shown != _RESULT)

    def rewrites(self, role: str, before: str, after: str, call_end: str) -> bool:
        """True if a second call changes what the template shows of the conversation before it, or is refused by it."""
        for manner in _MANNERS:
            if self.speaks_tools:
                one, more = [_user(), _call(), _result()], [_call(**manner), _result()]
            else:
                one = [_user(), *_turn(role, before, after, call_end)]
                more = _turn(role, before, after, call_end)
            try:
                if self.text([*one, *more]).startswith(self.text(one)):
                    return False
            except _REFUSED:
                continue
        return True

    def foreign(self, frame: Frame) -> tuple[str, ...]:
        """Special tokens that stand in the frame but never in the policy's own turn: whoever writes them forges."""
        prompt = self.text([_user()])
        own: set[str] = {frame.ended, *self.turn_ends}
        for manner in _MANNERS if self.speaks_tools else ():
            turn = self.text([_user(), _call(**manner)], generation=False)
            own |= set(self.special_in(turn[len(prompt) :] if turn.startswith(prompt) else ""))
        return tuple(dict.fromkeys(x for x in self.special_in(frame.opening + frame.closing) if x not in own))

    def special_in(self, text: str) -> list[str]:
        """The special tokens that `text` holds, in order."""
        return [match[0] for match in self._special.finditer(text)]

    def _around(self, text: str) -> tuple[str, str, str]:
        for shown in (_RESULT, json.dumps(_RESULT, ensure_ascii=False)):
            before, found, after = text.partition(shown)
            if found:
                return before, shown, after
        raise ConfigError(
            f"the chat template of {self.tokenizer.name_or_path!r} shows a tool's result neither as it is nor as a "
            'JSON string; set protocol.type = "tags", or give the tokenizer another chat_template'
        )

    def _split(self, text: str, within: bool = False, token: str = "") -> tuple[str, str]:
        """The text that ends the policy's turn, and the rest. `within`: `text` begins inside the call.

        `token` ends it, if there is one; else what ends an assistant's last words, if it is there; else the first
        special token.
        """
        known = [text.index(end) for end in ((token,) if token else self.turn_ends) if end in text]
        first = self._special.search(text, *known)
        if first is None:
            return "", text
        return text[first.start() if within else 0 : first.end()], text[first.end() :]

    def _turn_ends(self) -> tuple[str, ...]:
        """The special token behind an assistant's last words (of the next turn, if need be), or nothing."""
        spoken: list[Message] = [_user(), {"role": "assistant", "content": _SAID}]
        for conversation in (spoken, [*spoken, _user()]):
            try:
                text = self.text(conversation, generation=False)
            except _REFUSED:
                continue
            first = self._special.search(text, text.rindex(_SAID) if _SAID in text else len(text))
            if first:
                return (first[0],)
        return ()

    def _lists_tools(self) -> bool:
        about = {"name": _NAME, "description": _SAID, "parameters": {"type": "object", "properties": {}}}
        tools = [{"type": "function", "function": about}]
        try:
            text = self.tokenizer.apply_chat_template([_user()], tools=tools, tokenize=False, **self._variables)
        except _REFUSED:
            return False
        return _NAME in text

    def _takes_calls(self) -> bool:
        try:
            text = self.text([_user(), _call(), _result()])
        except _REFUSED:
            return False
        return all(probe in text for probe in (_NAME, _VALUE, "result"))

    def _folds_system(self) -> bool:
        """True if the template has no place for a system message, which then goes before the user's."""
        try:
            return _SAID not in self.text([{"role": "system", "content": _SAID}, _user()])
        except _REFUSED:
            return True


_BEFORE = 40
"""Characters before the tool's name that are kept of the probing call."""


def function(tool: ToolSpec) -> dict[str, Any]:
    """A tool as templates want it (OpenAI's shape)."""
    about = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return {"type": "function", "function": about}


def _disarmed(value: Any, plain: PlainEncoder) -> Any:
    """Tools may come from servers of others: what they say of themselves must not become control tokens either."""
    if isinstance(value, str):
        return plain.disarm(value)
    if isinstance(value, Mapping):
        return {_disarmed(key, plain): _disarmed(one, plain) for key, one in value.items()}
    return [_disarmed(one, plain) for one in value] if isinstance(value, list | tuple) else value


def _dated(source: str, today: datetime.date) -> str:
    """A template whose calls for the present date are answered."""
    call = re.compile(r"strftime_now\(\s*([\"'])(.*?)\1\s*\)")
    return call.sub(lambda match: json.dumps(today.strftime(match[2])), source)


def _user() -> Message:
    return {"role": "user", "content": "arpo probe question"}


def _call(**more: str) -> Message:
    function = {"name": _NAME, "arguments": {"argument": _VALUE}}
    call = {"id": _CALL_ID, "type": "function", "function": function}
    return {"role": "assistant", "content": "", "tool_calls": [call], **more}


def _result() -> Message:
    return {"role": "tool", "name": _NAME, "tool_call_id": _CALL_ID, "content": _RESULT}


def _turn(role: str, before: str, after: str, call_end: str) -> list[Message]:
    """An assistant's turn in plain words and the answer to it."""
    return [
        {"role": "assistant", "content": f"{_SAID}{call_end}"},
        {"role": role, "content": f"{before}{_RESULT}{after}"},
    ]
