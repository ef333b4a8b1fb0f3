"""The yardstick: turn by turn, transformers' `generate` on left-padded rows of whole prefixes, then all tools at once.

This is what one writes with the library alone: what was computed in the turn before is computed again, the shorter
prefixes are padded to the longest, and a turn goes on until its last row has ended. Prompts, tools, limits and rules of
the conversation are those of our rollouts of independent trajectories. A call runs once per trajectory that makes it.
"""

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from arpo.engine.stopping import Stopper
from arpo.protocol.base import Call, Dialect, ParseCode, ParseResult
from arpo.rollout.notices import NO_CALLS_LEFT, correction
from arpo.rollout.settings import RolloutSettings
from arpo.seeds import derive
from arpo.task import Task
from arpo.tools.base import ToolContext, ToolStatus
from arpo.tools.toolbox import ToolBox
from arpo.tree import Finish


@dataclass(eq=False, slots=True)
class Line:
    """One trajectory. `room`: response tokens left; `piece`: its last segment; `sampled`: policy tokens so far."""

    task: Task
    path: str
    tokens: list[int]
    room: int
    calls: int = 0
    warned: bool = False
    sampled: int = 0
    piece: list[int] = field(default_factory=list)


class GenerateRollout:
    """Rolls out independent trajectories; counts what it computes (`computed`: token positions, padding included).

    `seconds`: inside `generate`. `requested`: calls that were answered.
    """

    def __init__(
        self, model: Any, tokenizer: Any, dialect: Dialect, toolbox: ToolBox, settings: RolloutSettings
    ) -> None:
        self.model, self.dialect, self.toolbox, self.settings = model, dialect, toolbox, settings
        self.computed, self.requested, self.seconds = 0, 0, 0.0
        self._tokenizer = tokenizer
        self._stopper = Stopper(dialect.decode, range(len(tokenizer)))
        self._candidates = self._stopper.may_end(dialect.stop)
        self._context = int(getattr(model.config.get_text_config(), "max_position_embeddings", 1 << 30))
        self._stops = _single_tokens(tokenizer, dialect.stop)
        pad = tokenizer.pad_token_id
        self._pad = pad if pad is not None else dialect.end_tokens[0]

    async def run(self, tasks: Sequence[Task], seed_parts: tuple[str | int, ...]) -> list[Line]:
        """`settings.total` trajectories of each task, all of them side by side."""
        torch.manual_seed(derive(*seed_parts, "generate") >> 1)
        lines = [self._line(task, number) for task in tasks for number in range(self.settings.total)]
        live = lines
        while live:
            finishes = self._turn(live)
            goes_on = await asyncio.gather(
                *(self._respond(line, finish, seed_parts) for line, finish in zip(live, finishes, strict=True))
            )
            live = [line for line, more in zip(live, goes_on, strict=True) if more]
        return lines

    def _line(self, task: Task, number: int) -> Line:
        tokens = self.dialect.prompt(task).tolist()
        return Line(task, f"r{number}", tokens, min(self.settings.max_tokens, self._context - len(tokens)))

    # Sampling

    def _turn(self, live: Sequence[Line]) -> list[Finish]:
        """One segment for every line."""
        started = time.perf_counter()
        rows = self._generate([line.tokens for line in live], max(line.room for line in live))
        self.seconds += time.perf_counter() - started
        return [self._take(line, row) for line, row in zip(live, rows, strict=True)]

    def _generate(self, prefixes: Sequence[list[int]], count: int) -> list[list[int]]:
        width = max(map(len, prefixes))
        device = self.model.device
        ids = torch.tensor([[self._pad] * (width - len(one)) + one for one in prefixes], device=device)
        mask = torch.tensor([[0] * (width - len(one)) + [1] * len(one) for one in prefixes], device=device)
        with torch.inference_mode(), self._counted():
            output = self.model.generate(ids, attention_mask=mask, **self._options(count))
        rows: list[list[int]] = output[:, width:].tolist()
        return rows

    def _options(self, count: int) -> dict[str, Any]:
        """Stop strings that are one token are ends like others; only for the rest `generate` has to read text."""
        from transformers import GenerationConfig

        ends = [*self.dialect.end_tokens, *(self._stops or ())]
        temperature, top_p = self.settings.temperature, self.settings.top_p
        how = {"do_sample": True, "temperature": temperature, "top_p": top_p, "top_k": 0} if temperature else {}
        config = GenerationConfig(max_new_tokens=count, pad_token_id=self._pad, eos_token_id=ends, **how)
        if self._stops is not None:
            return {"generation_config": config}
        config.stop_strings = list(self.dialect.stop)
        return {"generation_config": config, "tokenizer": self._tokenizer}

    @contextmanager
    def _counted(self) -> Iterator[None]:
        def note(_: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
            ids = options["input_ids"] if "input_ids" in options else arguments[0]
            self.computed += ids.numel()

        handle = self.model.register_forward_pre_hook(note, with_kwargs=True)
        try:
            yield
        finally:
            handle.remove()

    def _take(self, line: Line, row: Sequence[int]) -> Finish:
        """Append the row's tokens up to where its segment ends."""
        line.piece, finish = [], Finish.LENGTH
        for token in row[: line.room]:
            line.piece.append(token)
            if token in self.dialect.end_tokens:
                finish = Finish.STOP
            elif token in self._candidates and self._stopper.ended([*line.tokens, *line.piece], self.dialect.stop):
                finish = Finish.CALL
            if finish is not Finish.LENGTH:
                break
        line.tokens += line.piece
        line.room -= len(line.piece)
        line.sampled += len(line.piece)
        return finish

    # Responding

    async def _respond(self, line: Line, finish: Finish, seed_parts: tuple[str | int, ...]) -> bool:
        """Answer a call; False if the trajectory is over. The rules are those of `arpo.rollout.group`."""
        parsed = self.dialect.parse(line.piece, finish)
        if parsed.answer is not None or (parsed.call is None and finish is not Finish.CALL):
            return False
        if line.calls >= self.settings.max_calls:
            warned, line.warned = line.warned, True
            return not warned and self._show(line, self.dialect.notice(NO_CALLS_LEFT).tolist())
        line.calls += 1
        if parsed.call is None or parsed.call.tool not in self.toolbox.names:
            return self._show(line, self._correction(parsed))
        return await self._call(line, parsed.call, seed_parts)

    def _correction(self, parsed: ParseResult) -> list[int]:
        code = ParseCode.UNKNOWN_TOOL if parsed.call is not None else parsed.code
        shown: list[int] = self.dialect.notice(correction(code, self.toolbox.names)).tolist()
        return shown

    async def _call(self, line: Line, call: Call, seed_parts: tuple[str | int, ...]) -> bool:
        seed = derive(*seed_parts, line.task.id, line.path, line.calls, "tool")
        context = ToolContext(line.task.id, line.path, seed, line.calls - 1)
        result = await self.toolbox.call(call.tool, call.arguments, context)
        if result.status is ToolStatus.INFRA_ERROR:
            return False
        self.requested += 1
        tokens = self.dialect.result(result.text).tolist()
        limit = self.settings.max_result_tokens
        tail = limit // 2
        return self._show(line, tokens if len(tokens) <= limit else tokens[: limit - tail] + tokens[-tail:])

    def _show(self, line: Line, tokens: list[int]) -> bool:
        if len(tokens) >= line.room:
            return False
        line.tokens += tokens
        line.room -= len(tokens)
        return True


def _single_tokens(tokenizer: Any, stop: Sequence[str]) -> list[int] | None:
    """The ids of the stop strings if each is one token and always comes as that one; None otherwise."""
    ids = [tokenizer.convert_tokens_to_ids(text) for text in stop]
    special = set(tokenizer.all_special_ids)
    return ids if all(token in special for token in ids) else None
