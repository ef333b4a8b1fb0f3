"""Foreign text made harmless: nothing in it moves a cursor, and nothing opens a tag or a control token.

Dialects do the same once more with their own tags and their tokenizer's tokens. Here it is done for all formats that
are in use, because a page also goes to summarisers whose formats no dialect knows. Pages are long, so this is a few
passes by regular expressions.
"""

import re

_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_NAMES = """
    think thinking thought reasoning result results information observation answer search python code browse tool tools
    tool_call tool_calls tool_response tool_result function functions function_call function_calls function_results
    parameter parameters invoke execute system user assistant human start_of_turn end_of_turn bos eos pad unk sep cls
    mask s im_start im_end
"""
_OPEN, _SLASH = r"[<\uff1c\ufe64]", r"\s*[/\uff0f]?\s*"
_TAGS = re.compile(
    rf"{_OPEN}(?={_SLASH}(?:{'|'.join(_NAMES.split())})\s*[=>\s:/\uff1e\ufe65]|{_SLASH}[|\uff5c]|<{_SLASH}SYS)",
    re.IGNORECASE,
)
_BRACKETS = re.compile(r"\[(?=/?(?:INST|TOOL_CALLS|TOOL_RESULTS|AVAILABLE_TOOLS|SYSTEM_PROMPT|IMG|THINK)\])")


def harmless(text: str) -> str:
    """`text` with control and bidirectional characters and lone surrogates as U+FFFD, as `results.clean` has it."""
    return _UNSAFE.sub("\ufffd", text.replace("\r\n", "\n"))


def defuse(text: str) -> str:
    """`text` harmless, and with what opens tags and control tokens of the usual formats spelt out."""
    return _BRACKETS.sub("&#91;", _TAGS.sub("&lt;", harmless(text)))
