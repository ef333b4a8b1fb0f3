"""Which dialect a run speaks."""

import datetime
from typing import Any, Literal

from pydantic import Field, model_validator

from arpo.settings import Frozen

_CHAT_ONLY = ("repair", "calls_in_think", "unknown_arguments", "answer", "template", "date", "response_template")
_TAKEN = ("tools", "conversation", "messages", "chat_template", "tokenize", "add_generation_prompt", "return_dict")


class DialectSettings(Frozen):
    r"""`type`: the format of calls. "tags" fits any model and takes one text per call; the others are what families of
    chat models were trained on, with the model's own chat template and tools of any schema.

    `style` (tags): "full" for chat models (system prompt, chat template), "compact" for the pocket policy; "auto":
    compact if and only if the tokenizer says so (`arpo_style`).

    The rest is for the chat models' dialects. `repair`: mend broken calls and report it; off, they are refused.
    `calls_in_think`: a call inside `<think>` is one (some models really call there). `unknown_arguments`: refuse a call
    with arguments that the tool does not have, or drop them and report it. `answer`: the last `\boxed{}` of what is
    said, or the last `<answer>` element. `template`: variables of the chat template, such as `enable_thinking`. `date`:
    what templates print as today. `response_template` (openai): how transformers reads this model's messages, a table
    or the path of a JSON file; None: the tokenizer's own, or what TRL knows.
    """

    type: Literal["tags", "hermes", "qwen_xml", "llama", "openai"] = "tags"
    style: Literal["auto", "full", "compact"] = "auto"
    repair: bool = False
    calls_in_think: bool = False
    unknown_arguments: Literal["reject", "drop"] = "reject"
    answer: Literal["boxed", "tag"] = "boxed"
    template: dict[str, Any] = Field(default_factory=dict)
    date: str = "2025-01-01"
    response_template: dict[str, Any] | str | None = None

    @model_validator(mode="after")
    def _no_option_without_effect(self) -> "DialectSettings":
        if self.type == "tags":
            idle = [
                name
                for name in _CHAT_ONLY
                if getattr(self, name) != type(self).model_fields[name].get_default(call_default_factory=True)
            ]
        else:
            idle = ["style"] if self.style != "auto" else []
            idle += ["response_template"] if self.response_template is not None and self.type != "openai" else []
            idle += ["calls_in_think"] if self.calls_in_think and self.type not in ("hermes", "qwen_xml") else []
        if idle:
            raise ValueError(f"{idle[0]} has no effect with type = {self.type!r}; leave protocol.{idle[0]} out")
        return self

    @model_validator(mode="after")
    def _template_variables_are_free(self) -> "DialectSettings":
        taken = [name for name in self.template if name in _TAKEN]
        if taken:
            raise ValueError(f"template.{taken[0]} is set by the dialect itself; leave it out")
        return self

    @model_validator(mode="after")
    def _date_is_one(self) -> "DialectSettings":
        try:
            datetime.date.fromisoformat(self.date)
        except ValueError as error:
            raise ValueError(f"date = {self.date!r} is no day; write it like 2025-01-01") from error
        return self
