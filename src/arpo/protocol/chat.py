r"""What the dialects of chat models share: the model's own template around calls that each of them writes differently.

A call ends the assistant's turn, its result is a turn of its own, and the template's generation prompt opens the next
one. All of that is one run of ids, the `Frame`, found once per tokenizer (`template`). Results go into it encoded
without control tokens and with the dialect's own tags defused, as everywhere.
"""

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
from jinja2 import TemplateError

from arpo.errors import ConfigError
from arpo.protocol.arguments import Schemas
from arpo.protocol.base import Call, ParseResult, ToolSpec
from arpo.protocol.reading import SegmentReader
from arpo.protocol.settings import DialectSettings
from arpo.protocol.template import ChatTemplate, Frame, Message
from arpo.task import Task
from arpo.tree import Finish

log = logging.getLogger(__name__)
MANNERS = "Call a tool when you need one, one call at a time."
BOXED = "When you know the answer, write it once, as short as possible, in this form: \\boxed{the answer}"
TAGGED = "When you know the answer, write it once, as short as possible, in this form: <answer> the answer </answer>"


class ChatDialect(SegmentReader):
    """One chat model's format. A subclass says how calls look and how they are read.

    `call_end`: the stop string, "" where calls end with an end token; `call_token`: that token if it ends nothing else.
    `spelling`: what must stand in a call as the model's template writes it. Where the template knows no tools, a result
    is a message of the first of `roles` that it knows, with `around` around the text. `more_ends`: end tokens that no
    template shows.
    """

    name = ""
    call_end = ""
    call_token = ""
    spelling: tuple[str, ...] = ()
    roles: tuple[str, ...] = ("user",)
    around: tuple[str, str] = ("", "")
    more_ends: tuple[str, ...] = ()

    def __init__(self, tokenizer: Any, tools: Sequence[ToolSpec], settings: DialectSettings) -> None:
        """`tokenizer`: a transformers tokenizer. Raises ConfigError if it does not fit the dialect."""
        self.tokenizer = tokenizer
        self._tools = tuple(tools)
        self.schemas = Schemas(tools, settings.unknown_arguments)
        self.template = ChatTemplate(tokenizer, tools, settings.template, settings.date)
        self.stop: tuple[str, ...] = (self.call_end,) if self.call_end else ()
        self.frame = self._frame()
        self.end_tokens = self._ends()
        foreign = (*self.template.foreign(self.frame), *(part.strip() for part in self.around if part))
        opens_in_think = self.frame.closing.rstrip().endswith("<think>")
        super().__init__(settings, opens_in_think, [self.decode([token]) for token in self.end_tokens], foreign)

    @property
    def tool_names(self) -> tuple[str, ...]:
        """The tools that the prompt offers."""
        return tuple(self.schemas.parameters)

    def with_tools(self, tools: Sequence[ToolSpec]) -> "ChatDialect":
        """The same language for other tools."""
        return type(self)(self.tokenizer, tools, self.settings)

    def explain(self) -> str:
        """How to call the tools, for a template that has no words for it."""
        raise NotImplementedError

    # ------------------------------------------------------------------ to the policy

    def prompt(self, task: Task) -> np.ndarray:
        """The prompt's token ids, int32 `[T]`; no text of the task yields a control token."""
        return self.template.ids(self.messages(task))

    def messages(self, task: Task) -> list[Message]:
        """The task's conversation with our instructions in its system message."""
        own = [message.content for message in task.messages if message.role == "system"]
        rest: list[Message] = [{"role": m.role, "content": m.content} for m in task.messages if m.role != "system"]
        system = "\n\n".join([*own, self.system_prompt()])
        if not self.template.folds_system:
            return [{"role": "system", "content": system}, *rest]
        return [{**rest[0], "content": f"{system}\n\n{rest[0]['content']}"}, *rest[1:]]

    def system_prompt(self) -> str:
        """What we add to the template's own words: how to answer and, where it has none for it, how to call."""
        lines = [] if self.template.speaks_tools or not self._tools else [self.explain()]
        lines += [MANNERS] if self._tools else []
        return "\n".join([*lines, BOXED if self.settings.answer == "boxed" else TAGGED])

    def result(self, text: str, *, finish: Finish = Finish.CALL, call: Call | None = None) -> np.ndarray:
        """A tool's text and the turns around it, int32 `[T]`, up to the policy's next token.

        Without a `call`, a template that names the tool in its result is given the first one's name.
        """
        name = call.tool if call else next(iter(self.tool_names), "")
        return self.template.framed(self.frame, self._defuse(text.strip()), finish, name)

    def notice(self, text: str, *, finish: Finish = Finish.CALL, call: Call | None = None) -> np.ndarray:
        """A message of the harness; it stands where a result would, and looks like one."""
        return self.result(text, finish=finish, call=call)

    def _defuse(self, text: str) -> str:
        """Our own tags in foreign text, in any spelling, lose their opening bracket."""
        return self._loose.sub(lambda match: "&lt;" + match[0][1:], text)

    # ------------------------------------------------------------------ from the policy

    def decode(self, tokens: Sequence[int]) -> str:
        """Exact text, control tokens included."""
        ids = np.asarray(tokens, np.int64).tolist()
        text: str = self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text

    def parse(self, tokens: Sequence[int], finish: Finish) -> ParseResult:
        """Read one whole policy segment; `finish` is how its last piece ended."""
        return self.read_segment(self.decode(tokens), finish)

    # ------------------------------------------------------------------ setting up

    def _frame(self) -> Frame:
        """The frame of results, checked against what the dialect expects of the template."""
        template, (before, after) = self.template, self.around
        if not template.speaks_tools:
            frame = self._message_frame()
        else:
            frame = template.call_frame(self.call_end, self.call_token)
            missing = [text for text in self.spelling if text not in frame.calls]
            if missing:
                raise ConfigError(
                    f"protocol.type = {self.name!r}: the chat template of {self.tokenizer.name_or_path!r} writes calls "
                    f"without {missing[0]}, namely like this: {frame.calls.strip()!r}; set protocol.type to the "
                    "dialect that the model was trained on"
                )
        if template.rewrites(self.roles[0], before, after, self.call_end):
            log.warning(
                "the chat template of %r changes earlier turns when the conversation goes on; here every token stays "
                "as it was sampled",
                self.tokenizer.name_or_path,
            )
        return frame

    def _message_frame(self) -> Frame:
        for role in self.roles:
            try:
                return self.template.message_frame(role, *self.around, self.call_end)
            except TemplateError as error:
                problem = error
        raise ConfigError(
            f"the chat template of {self.tokenizer.name_or_path!r} refuses a result as a message of "
            f"{' or '.join(self.roles)}: {problem}; give the tokenizer another chat_template"
        )

    def _ends(self) -> tuple[int, ...]:
        """The end-of-sequence token, and what the template puts behind a call and behind last words."""
        ended = self.template.special_in(self.frame.ended)[-1:]
        known = self.tokenizer.get_vocab()
        texts = [*ended, *self.template.turn_ends, *(text for text in self.more_ends if text in known)]
        ids = [] if self.tokenizer.eos_token_id is None else [int(self.tokenizer.eos_token_id)]
        ids += [int(self.tokenizer.convert_tokens_to_ids(text)) for text in texts]
        if not ids:
            raise ConfigError(f"the tokenizer {self.tokenizer.name_or_path!r} has no end token; set its eos_token")
        return tuple(dict.fromkeys(ids))
