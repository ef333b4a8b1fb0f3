r"""Reading what a chat model sampled: reasoning, calls and what it says are told apart before anything counts.

Only the policy's own segment is read, and in it only what is meant: the reasoning block is not, for models try calls
out there. A stop string inside it ends nothing (`goes_on`), unless `calls_in_think` says that this model really calls
there. The answer is looked for in what is left when reasoning and calls are taken out, so neither a `\boxed{}` in a
draft nor one in a call's argument can be it.

A call that fits is executed; any other gets a code, a sentence that says what is wrong with it, and costs a call. Of
several calls in one segment the first is executed and the fact is reported.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from arpo.protocol.arguments import Fault
from arpo.protocol.base import Call, ParseCode, ParseResult
from arpo.protocol.boxed import last_boxed
from arpo.protocol.settings import DialectSettings
from arpo.tree import Finish

_THINK = re.compile(r"<(/?)think>")
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Attempt:
    """Something in a segment's text that was meant as a call: `text[start:end]`.

    `body`: what the dialect reads of it; None for an end without a beginning. `closed` False: its end is missing.
    """

    start: int
    end: int
    body: Any
    closed: bool = True


@dataclass(frozen=True, slots=True)
class View:
    """A segment's text without its end token, taken apart. `drafts`: attempts in the reasoning, which do not count."""

    text: str
    calls: tuple[Attempt, ...]
    drafts: tuple[Attempt, ...]
    speech: str


class SegmentReader:
    """Reads the segments of one dialect. A subclass says what an attempt at a call looks like and how it is read.

    `tags`: names of the dialect's own markup. `opens_in_think`: the generation prompt opens the reasoning block.
    `ends`: texts of the end tokens. `foreign`: texts that only a tool or the template writes.
    """

    tags: tuple[str, ...] = ()

    def __init__(
        self, settings: DialectSettings, opens_in_think: bool, ends: Sequence[str], foreign: Sequence[str]
    ) -> None:
        self.settings, self.opens_in_think = settings, opens_in_think
        self._end_texts, self._foreign = tuple(ends), tuple(foreign)
        names = "|".join(("think", "answer", *self.tags))
        self._loose = re.compile(rf"[<\uff1c\ufe64]\s*(?:[/\uff0f]\s*)?(?:{names})\s*[>\uff1e\ufe65]", re.IGNORECASE)
        self._exact = re.compile(rf"</?(?:{names})>")

    def attempts(self, text: str) -> list[Attempt]:
        """What was meant as a call in a segment's text, in order."""
        raise NotImplementedError

    def read(self, attempt: Attempt) -> Call | Fault:
        """The call that an attempt is, or what is wrong with it."""
        raise NotImplementedError

    # ------------------------------------------------------------------ parsing

    def read_segment(self, text: str, finish: Finish) -> ParseResult:
        """What a whole policy segment says; `finish` is how its last piece ended."""
        view = self.view(text)
        answer = self._answer(view.speech)
        if finish is Finish.CALL and not view.calls:
            return ParseResult(goes_on=True) if view.drafts else ParseResult(code=ParseCode.STRAY_CLOSE)
        if not view.calls or (answer is not None and finish is not Finish.CALL):
            return self._without_call(view, answer)
        if finish not in (Finish.CALL, Finish.STOP):
            return ParseResult(answer=answer, code=ParseCode.TRUNCATED)
        read = self._read(view.calls[0])
        if isinstance(read, Fault):
            return ParseResult(answer=answer, code=read.code, detail=read.detail, meant=True)
        return ParseResult(call=read, code=self._beside(view, answer))

    def view(self, text: str) -> View:
        """Take a segment's text apart."""
        text = self._without_end(text)
        thoughts = thinking(text, self.opens_in_think)
        calls: list[Attempt] = []
        drafts: list[Attempt] = []
        for attempt in self.attempts(text):
            drafted = any(start <= attempt.start < end for start, end in thoughts)
            (drafts if drafted and not self.settings.calls_in_think else calls).append(attempt)
        cuts = [*thoughts, *((attempt.start, attempt.end) for attempt in calls)]
        return View(text, tuple(calls), tuple(drafts), _without(text, cuts))

    def answer(self, policy_text: str) -> str | None:
        """The final answer in the policy's own text, outside of reasoning and calls, or None."""
        return self._answer(self.view(policy_text).speech)

    def _answer(self, speech: str) -> str | None:
        if self.settings.answer == "boxed":
            return last_boxed(speech)
        found = _ANSWER.findall(speech)
        if not found:
            return None
        boxed = last_boxed(found[-1])
        return boxed if boxed is not None else str(found[-1]).strip()

    def _read(self, attempt: Attempt) -> Call | Fault:
        if attempt.body is None:
            return Fault(ParseCode.STRAY_CLOSE)
        if not attempt.closed and not self.settings.repair:
            return Fault(ParseCode.TRUNCATED)
        return self.read(attempt)

    def _beside(self, view: View, answer: str | None) -> ParseCode | None:
        """What is to be reported of a segment whose call is executed."""
        if self._forged(view):
            return ParseCode.FORGED_RESULT
        if answer is not None:
            return ParseCode.CALL_AFTER_ANSWER
        return ParseCode.SEVERAL_CALLS if len(view.calls) > 1 else None

    def _without_call(self, view: View, answer: str | None) -> ParseResult:
        if self._forged(view):
            return ParseResult(answer=answer, code=ParseCode.FORGED_RESULT)
        if answer is not None:
            return ParseResult(answer=answer, code=ParseCode.CALL_AFTER_ANSWER if view.calls else None)
        if self._misspelt(view):
            return ParseResult(code=ParseCode.UNKNOWN_TAG, meant=True)
        return ParseResult()

    def _forged(self, view: View) -> bool:
        """True if the policy wrote what only a tool or the template writes."""
        return any(mark in view.text for mark in self._foreign)

    def _misspelt(self, view: View) -> bool:
        """True if what the policy said holds one of our tags in another spelling."""
        return any(not self._exact.fullmatch(match[0]) for match in self._loose.finditer(view.speech))

    def _without_end(self, text: str) -> str:
        """`text` without the end token that closes it, if one does."""
        ends = (end for end in self._end_texts if text.endswith(end))
        return text.removesuffix(next(ends, ""))

    # ------------------------------------------------------------------ format

    def format_errors(self, pieces: Sequence[str]) -> list[str]:
        """What is malformed in a trajectory's policy segments.

        Well-formed: reasoning is closed and not nested; every segment but the last ends in one call that fits its tool;
        the last one holds no call and an answer; the policy writes no results and no turns of others.
        """
        if not pieces:
            return ["no text"]
        errors = []
        for number, piece in enumerate(pieces, 1):
            view = self.view(piece)
            found = (*self._think_errors(view), *self._other_hands(view), *self._role(view, number == len(pieces)))
            errors += [f"segment {number}: {error}" for error in found]
        return errors

    def _think_errors(self, view: View) -> list[str]:
        opened = self.opens_in_think
        for match in _THINK.finditer(_without(view.text, [(call.start, call.end) for call in view.calls])):
            if bool(match[1]) != opened:
                return [f"{match[0]} " + ("inside <think>" if opened else "without its opening tag")]
            opened = not opened
        called = self.settings.calls_in_think and bool(view.calls)
        return ["<think> is not closed"] if opened and not called else []

    def _other_hands(self, view: View) -> list[str]:
        forged = ["a result that no tool gave"] if self._forged(view) else []
        return [*forged, "a misspelt tag"] if self._misspelt(view) else forged

    def _role(self, view: View, last: bool) -> list[str]:
        """What is wrong with a segment's part in the trajectory: a call, or the answer."""
        answer = self._answer(view.speech)
        if last:
            wrong = ["a call at the end"] if view.calls else []
            return wrong if answer is not None else [*wrong, "no answer"]
        early = ["an answer before the end"] if answer is not None else []
        if len(view.calls) != 1:
            return ["no call" if not view.calls else f"{len(view.calls)} calls", *early]
        read = self._read(view.calls[0])
        behind = ["text behind the call"] if view.text[view.calls[0].end :].strip() else []
        return [*([f"no call ({read.code})"] if isinstance(read, Fault) else []), *behind, *early]


def thinking(text: str, opened: bool) -> list[tuple[int, int]]:
    """Where `text` is reasoning: (start, end) of each block, tags included. `opened`: it begins inside one."""
    blocks, start = [], 0 if opened else -1
    for match in _THINK.finditer(text):
        if match[1] and start >= 0:
            blocks.append((start, match.end()))
            start = -1
        elif not match[1] and start < 0:
            start = match.start()
    return [*blocks, (start, len(text))] if start >= 0 else blocks


def _without(text: str, cuts: Sequence[tuple[int, int]]) -> str:
    """`text` without the given stretches, which may overlap."""
    kept, place = [], 0
    for start, end in sorted(cuts):
        kept.append(text[place : max(start, place)])
        place = max(place, end)
    return "".join([*kept, text[place:]])
