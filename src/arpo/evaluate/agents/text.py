"""Text formats of prompted agents: what their dialects share.

Such an agent is told its format in the prompt, was never trained on it, and is judged by its answer alone: a trajectory
is well-formed if it ends with one. Calls stand in the model's own text. Where a stop string ends them, the result
follows in the same turn, as the papers have it; where the model has ended its turn itself, the result is a turn of the
user's. As in every dialect, only what the policy sampled is read, and no result yields a control token.
"""

from collections.abc import Sequence

import numpy as np

from arpo.evaluate.agents.voice import Voice, without_thoughts
from arpo.protocol.base import Call, ParseResult
from arpo.protocol.boxed import last_boxed
from arpo.task import Task
from arpo.tree import Finish

BOXED = "Write the final answer once, as short as possible, in this form: \\boxed{the answer}"


class TextDialect:
    r"""A format for one model. This one knows no calls: reasoning, then the last `\boxed{}` is the answer.

    `stop`: as in Dialect; `within`: what stands around a result in the policy's own turn; `apart`: around one that is a
    turn of its own; `opening`: what the policy's turn begins with, written by us.
    """

    name = "text"
    stop: tuple[str, ...] = ()
    within: tuple[str, str] = ("\n", "\n")
    apart: tuple[str, str] = ("", "")
    opening = ""

    def __init__(self, voice: Voice, instructions: str) -> None:
        self.voice, self.instructions = voice, instructions
        self.tokenizer = voice.tokenizer
        self.end_tokens = voice.end_tokens
        self._ends = tuple(voice.decode([token]) for token in voice.end_tokens)
        self._frame = voice.template.message_frame("user", *self.apart, "")

    def prompt(self, task: Task) -> np.ndarray:
        """The prompt's token ids, int32 `[T]`."""
        messages = [{"role": message.role, "content": message.content} for message in task.messages]
        return self._opened(self.voice.prompt(self.instructions, messages))

    def result(self, text: str, *, finish: Finish = Finish.CALL, call: Call | None = None) -> np.ndarray:
        """A tool's text as tokens, int32 `[T]`, up to the policy's next token."""
        shown = self.defused(text.strip())
        if finish is Finish.STOP:
            return self._opened(self.voice.template.framed(self._frame, shown, finish))
        before, after = self.within
        return np.array(self.voice.plain.encode(f"{before}{shown}{after}"), np.int32)

    def notice(self, text: str, *, finish: Finish = Finish.CALL, call: Call | None = None) -> np.ndarray:
        """A message of the harness; it stands where a result would, and looks like one."""
        return self.result(text, finish=finish, call=call)

    def defused(self, text: str) -> str:
        """`text` of others without what this format takes for its own marks."""
        return text

    def decode(self, tokens: Sequence[int]) -> str:
        """Exact text, control tokens included."""
        return self.voice.decode(tokens)

    def said(self, text: str) -> str:
        """A segment's text without reasoning blocks and the end token."""
        ended = next((end for end in self._ends if text.endswith(end)), "")
        return without_thoughts(text.removesuffix(ended))

    def parse(self, tokens: Sequence[int], finish: Finish) -> ParseResult:
        """Read one whole policy segment."""
        return ParseResult(answer=self.answer(self.decode(tokens)))

    def answer(self, policy_text: str) -> str | None:
        """The final answer in the policy's own text, or None."""
        return last_boxed(self.said(policy_text))

    def format_errors(self, pieces: Sequence[str]) -> list[str]:
        """`no answer`, or nothing."""
        return [] if pieces and self.answer(pieces[-1]) is not None else ["no answer"]

    def _opened(self, ids: np.ndarray) -> np.ndarray:
        return np.concatenate([ids, np.array(self.voice.plain.encode(self.opening), np.int32)])
