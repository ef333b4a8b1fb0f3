r"""The tags dialect: `<think> <search> <python> <result> <answer> \boxed{}`, all in one assistant turn.

A tool is called by a pair of tags with its name; the policy's text between them is the input as it stands (no JSON, no
escapes). Three rules keep this safe. A call counts only if its closing tag is what ended the policy's own segment, and
its input is read from that segment alone, so neither the prompt's example nor a draft further up can be run. Results
are encoded without control tokens and with our own tags defused, so that a page cannot close its result and answer in
the policy's name. And answers are read from policy text only.

Two styles: "full" for chat models (a system prompt explains the tags, which are ordinary text) and "compact" for the
pocket policy (no system prompt; each tag is one special token that only a wrapper may produce).
"""

import re
import textwrap
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from arpo.errors import ConfigError
from arpo.protocol.base import Call, ParseCode, ParseResult, ToolSpec
from arpo.protocol.boxed import last_boxed
from arpo.protocol.plain import PlainEncoder
from arpo.task import Task
from arpo.tree import Finish

RESERVED = ("think", "result", "answer")
_FENCE = re.compile(r"\s*```[\w+-]*[ \t]*\n(.*?)\n?[ \t]*```\s*", re.DOTALL)
_ELEMENT = re.compile(r"<([A-Za-z_][\w.]*)>.*?</\1>", re.DOTALL)

SYSTEM = """Answer the user's question. Think step by step between <think> and </think>.
You can call tools. A call is a pair of tags with the tool's name around its input:
{tools}
End your text after the closing tag. The tool's output then follows between <result> and </result>; never write these \
two tags yourself. You can call tools several times, one call at a time.
When you know the answer, write it once, as short as possible, in this form: <answer> \\boxed{{the answer}} </answer>"""


class TagsDialect:
    """The tags dialect for one tokenizer and one set of tools."""

    name = "tags"

    def __init__(self, tokenizer: Any, tools: Sequence[ToolSpec], style: Literal["full", "compact"] = "full") -> None:
        """`tokenizer`: a transformers tokenizer. Raises ConfigError if it or a tool does not fit the dialect."""
        self.tokenizer = tokenizer
        self.style = style
        self._inputs = {tool.name: _input_of(tool) for tool in tools}
        self._tools = tuple(tools)
        self._plain = PlainEncoder(tokenizer)
        self.stop = tuple(f"</{name}>" for name in self._inputs)
        names = "|".join(re.escape(name) for name in (*RESERVED, *self._inputs))
        self._tag = re.compile(rf"<(/?)({names})>")
        self._loose_tag = re.compile(
            rf"[<\uff1c\ufe64]\s*(?:[/\uff0f]\s*)?(?:{names})\s*[>\uff1e\ufe65]", re.IGNORECASE
        )
        self._open, self._close = self._wrapper()
        self._folds_system = style == "full" and _folds_system(tokenizer)
        self.end_tokens = _end_tokens(tokenizer, style)

    @property
    def tool_names(self) -> tuple[str, ...]:
        """The tools that the prompt offers."""
        return tuple(self._inputs)

    def with_tools(self, tools: Sequence[ToolSpec]) -> "TagsDialect":
        """The same language for other tools."""
        return TagsDialect(self.tokenizer, tools, self.style)

    # ------------------------------------------------------------------ to the policy

    def prompt(self, task: Task) -> np.ndarray:
        """The prompt's token ids, int32 `[T]`."""
        if self.style == "compact":
            text = "".join(f" {message.content}" for message in task.messages if message.role == "user")
            return _array(self._plain.encode(text))
        text = self.tokenizer.apply_chat_template(self._messages(task), tokenize=False, add_generation_prompt=True)
        return _array(self.tokenizer.encode(text, add_special_tokens=False))

    def system_prompt(self) -> str:
        """What the full style tells a chat model."""
        lines = (
            f"<{tool.name}> {self._inputs[tool.name]} </{tool.name}>: {self._plain.disarm(tool.description)}"
            for tool in self._tools
        )
        return SYSTEM.format(tools="\n".join(lines))

    def result(self, text: str, *, finish: Finish = Finish.CALL, call: Call | None = None) -> np.ndarray:
        """A tool's text as tokens, int32 `[T]`, wrapped in result tags, whatever ended the segment before it."""
        text = self._defuse(text.strip())
        ids = self._plain.encode(f" {text}" if self.style == "compact" else text)
        return _array([*self._open, *ids, *self._close])

    def notice(self, text: str, *, finish: Finish = Finish.CALL, call: Call | None = None) -> np.ndarray:
        """A message of the harness; it stands where a result would, and looks like one."""
        return self.result(text)

    def _messages(self, task: Task) -> list[dict[str, str]]:
        own = [message.content for message in task.messages if message.role == "system"]
        rest = [{"role": m.role, "content": m.content} for m in task.messages if m.role != "system"]
        system = "\n\n".join([*own, self.system_prompt()])
        if not self._folds_system:
            return [{"role": "system", "content": system}, *rest]
        return [{**rest[0], "content": f"{system}\n\n{rest[0]['content']}"}, *rest[1:]]

    def _defuse(self, text: str) -> str:
        """Our own tags in foreign text, in any spelling, lose their opening bracket."""
        return self._loose_tag.sub(lambda match: "&lt;" + match[0][1:], text)

    def _wrapper(self) -> tuple[list[int], list[int]]:
        """Ids of the opening and closing result tags."""
        if self.style == "full":
            return tuple(self.tokenizer.encode(t, add_special_tokens=False) for t in ("\n<result>\n", "\n</result>\n"))
        for tag in (f"<{slash}{name}>" for name in (*RESERVED, *self._inputs) for slash in ("", "/")):
            if self.tokenizer.convert_tokens_to_ids(tag) not in self._plain.control_ids:
                raise ConfigError(
                    f"the compact style needs {tag} as one special token, and this tokenizer has none; "
                    'set protocol.style = "full", or use the pocket policy\'s tokenizer'
                )
        return ([self.tokenizer.convert_tokens_to_ids("<result>")], [self.tokenizer.convert_tokens_to_ids("</result>")])

    # ------------------------------------------------------------------ from the policy

    def decode(self, tokens: Sequence[int]) -> str:
        """Exact text, control tokens included."""
        ids = np.asarray(tokens, np.int64).tolist()
        text: str = self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text

    def parse(self, tokens: Sequence[int], finish: Finish) -> ParseResult:
        """Read one whole policy segment; `finish` is how its last piece ended."""
        text = self.decode(tokens)
        answer = self.answer(text)
        if finish is not Finish.CALL:
            return ParseResult(answer=answer, code=self._code_without_call(text, answer))
        call, code = self._call(text)
        if call is None:
            return ParseResult(answer=answer, code=code)
        if _forged(text):
            code = ParseCode.FORGED_RESULT
        elif "</answer>" in text:
            code = ParseCode.CALL_AFTER_ANSWER
        return ParseResult(call=call, code=code)

    def _call(self, text: str) -> tuple[Call | None, ParseCode | None]:
        """The call that the last closing tag in `text` ended, or why there is none."""
        closing = max(self.stop, key=text.rfind)
        end = text.rfind(closing)
        name = closing[2:-1]
        start = text.rfind(f"<{name}>", 0, end)
        if start < 0:
            return None, ParseCode.UNKNOWN_TAG if self._misspelt(text) else ParseCode.STRAY_CLOSE
        body = text[start + len(name) + 2 : end]
        fenced = _FENCE.fullmatch(body)
        body = textwrap.dedent((fenced[1] if fenced else body).strip("\n")).strip()
        if not body:
            return None, ParseCode.EMPTY_ARGS
        return Call(name, {self._inputs[name]: body}, "fence" if fenced else None), None

    def _code_without_call(self, text: str, answer: str | None) -> ParseCode | None:
        if _forged(text):
            return ParseCode.FORGED_RESULT
        dangling = self._dangling(text)
        if answer is not None:
            return ParseCode.CALL_AFTER_ANSWER if dangling > text.rfind("</answer>") else None
        if dangling >= 0:
            return ParseCode.TRUNCATED
        if self._misspelt(text):
            return ParseCode.UNKNOWN_TAG
        known = (*RESERVED, *self._inputs)
        return ParseCode.UNKNOWN_TOOL if any(m[1] not in known for m in _ELEMENT.finditer(text)) else None

    def _dangling(self, text: str) -> int:
        """Where the last opening tag of a tool stands that is never closed; -1 if there is none."""
        places = ((text.rfind(f"<{name}>"), text.rfind(f"</{name}>")) for name in self._inputs)
        return max((opened for opened, closed in places if opened > closed), default=-1)

    def _misspelt(self, text: str) -> bool:
        """True if `text` holds one of our tags in another spelling: capitals, blanks, full-width brackets."""
        return any(not self._tag.fullmatch(match[0]) for match in self._loose_tag.finditer(text))

    def answer(self, policy_text: str) -> str | None:
        r"""What the last `\boxed{}` in the last complete answer element holds, or None."""
        end = policy_text.rfind("</answer>")
        start = policy_text.rfind("<answer>", 0, max(end, 0))
        return last_boxed(policy_text[start:end]) if start >= 0 else None

    # ------------------------------------------------------------------ format

    def format_errors(self, pieces: Sequence[str]) -> list[str]:
        r"""What is malformed in a trajectory's policy segments.

        Well-formed: every segment's tags are ours, spelt right, paired and not nested; every segment but the last ends
        in one call that is not empty; the last one holds no call and exactly one answer with a `\boxed{}`; no result is
        written by the policy.
        """
        if not pieces:
            return ["no text"]
        errors = []
        for number, piece in enumerate(pieces, 1):
            last = number == len(pieces)
            errors += [f"segment {number}: {error}" for error in (*self._tag_errors(piece), *self._role(piece, last))]
        return errors

    def _tag_errors(self, piece: str) -> list[str]:
        errors = ["a result that no tool gave"] if _forged(piece) else []
        if self._misspelt(piece):
            errors.append("a misspelt tag")
        opened = ""
        for slash, name in self._tag.findall(piece):
            if bool(slash) != bool(opened) or (slash and name != opened):
                return [*errors, f"<{slash}{name}> " + (f"inside <{opened}>" if opened else "without its opening tag")]
            opened = "" if slash else name
        return [*errors, f"<{opened}> is not closed"] if opened else errors

    def _role(self, piece: str, last: bool) -> list[str]:
        """What is wrong with a segment's part in the trajectory: a call, or the answer."""
        if not last:
            call, code = self._call(piece) if any(stop in piece for stop in self.stop) else (None, None)
            wrong = [] if call else [f"no call ({code})" if code else "no call"]
            return [*wrong, "an answer before the end"] if "<answer>" in piece else wrong
        errors = ["a call at the end"] if any(f"<{name}>" in piece for name in self._inputs) else []
        if piece.count("<answer>") != 1:
            errors.append(f"{piece.count('<answer>')} answers")
        elif self.answer(piece) is None:
            errors.append("an answer without \\boxed{}")
        return errors


def _array(ids: Sequence[int]) -> np.ndarray:
    return np.array(ids, np.int32)


def _forged(text: str) -> bool:
    return "<result>" in text or "</result>" in text


def _input_of(tool: ToolSpec) -> str:
    """The name of the one text that a tool takes. Raises ConfigError for any other kind of tool."""
    properties = tool.parameters.get("properties", {})
    required = list(tool.parameters.get("required", properties))
    if tool.name in RESERVED or not re.fullmatch(r"[A-Za-z_]\w*", tool.name):
        raise ConfigError(f"tool {tool.name!r}: its name cannot be a tag of the tags dialect; rename it")
    if len(required) != 1 or properties.get(required[0], {}).get("type") != "string":
        raise ConfigError(
            f"tool {tool.name!r}: the tags dialect passes one text to a tool, and this one requires "
            f"{', '.join(required) or 'nothing'}; give it exactly one required string parameter"
        )
    return str(required[0])


_PROBE = "arpo probe"


def _render(tokenizer: Any, *messages: tuple[str, str]) -> str:
    if not tokenizer.chat_template:
        raise ConfigError(
            f"the tokenizer {tokenizer.name_or_path!r} has no chat template, which the full style needs; "
            "use an instruction-tuned model, or set the tokenizer's chat_template"
        )
    rows = [{"role": role, "content": content} for role, content in messages]
    text: str = tokenizer.apply_chat_template(rows, tokenize=False)
    return text


def _folds_system(tokenizer: Any) -> bool:
    """True if the chat template has no place for a system message, which then goes before the user's."""
    from jinja2 import TemplateError

    try:
        return _PROBE not in _render(tokenizer, ("system", _PROBE), ("user", "question"))
    except TemplateError:
        return True


def _end_tokens(tokenizer: Any, style: str) -> tuple[int, ...]:
    """The end-of-sequence token and whatever control token the chat template puts after an assistant's turn."""
    ends = [] if tokenizer.eos_token_id is None else [int(tokenizer.eos_token_id)]
    if style == "full":
        after = _render(tokenizer, ("user", "question"), ("assistant", _PROBE)).rpartition(_PROBE)[2]
        special = frozenset(tokenizer.all_special_ids)
        ends += [token for token in tokenizer.encode(after, add_special_tokens=False) if token in special][:1]
    if not ends:
        raise ConfigError(f"the tokenizer {tokenizer.name_or_path!r} has no end token; set its eos_token")
    return tuple(dict.fromkeys(ends))
