"""A judge as a metric: rules first, then what was kept, then the model; and None where nobody could say.

An outage never counts as a wrong answer: the verdict has no score and a reason, and is counted. So has a reply that
cannot be read, after the judge was told once more what form it should have.
"""

import asyncio
from collections import Counter
from typing import Any, Literal

from arpo.errors import ArpoError, EngineError
from arpo.retry import Clock
from arpo.reward.answers import best_score
from arpo.reward.judge.base import JudgeProtocol
from arpo.reward.judge.client import Client
from arpo.reward.judge.kept import CacheMiss, Kept
from arpo.reward.judge.quoting import filled, final_answer, says_nothing, stated_confidence
from arpo.reward.judge.settings import JudgeSettings
from arpo.reward.verdict import Verdict
from arpo.task import Task

COUNTERS = ("asked", "kept", "by_rule", "rejected", "outages", "unparsable", "repeated", "tokens")
"""What `drain` counts: questions sent; verdicts from the cache or shared; by rule; answers that say nothing; questions
without a verdict for an outage, or for a reply that could not be read; reminders sent; tokens."""
_QUOTED = 2000
"""Characters of an unreadable reply that the judge is shown again."""


class UnparsableError(EngineError):
    """The judge replied twice, and neither reply is a verdict."""


class JudgeMetric:
    """One protocol at one judge. Safe to call concurrently from one event loop."""

    def __init__(self, protocol: JudgeProtocol, settings: JudgeSettings, clock: Clock | None = None) -> None:
        """Asks nothing yet. Raises ConfigError for an unusable key, DataError for an unusable cache."""
        self.protocol, self.settings = protocol, settings
        self.name = protocol.name
        self.counts: Counter[str] = Counter()
        self._client = Client(settings, clock)
        self._kept = Kept(settings, self._facts())

    @property
    def judge(self) -> str:
        """Who judges and how: `model/protocol@hash of the prompt`."""
        return f"{self.settings.model}/{self.name}@{self.protocol.hash}"

    def _facts(self) -> dict[str, Any]:
        settings = self.settings
        return {
            "protocol": self.name,
            "prompt_hash": self.protocol.hash,
            "max_tokens": settings.max_tokens,
            "max_answer_chars": settings.max_answer_chars,
            "options": dict(settings.options),
        }

    async def __call__(self, task: Task, answer: str | None) -> Verdict:
        """See Metric. Raises StorageError if the cache cannot be written."""
        final, empty = final_answer(answer), says_nothing(final_answer(answer))
        confidence = stated_confidence(answer) if self.protocol.asks_confidence else None
        if self.settings.rule_first or empty:
            right = await _right_by_rule(final, task)
            self.counts["by_rule"] += right
            self.counts["rejected"] += empty and not right
            if right or empty:
                return Verdict(float(right), "correct" if right else self.protocol.silence, confidence)
        return await self._judged(task, final, confidence)

    async def _judged(self, task: Task, final: str, confidence: float | None) -> Verdict:
        prompt = filled(
            self.protocol.prompt,
            task.question,
            task.answers,
            final,
            limit=self.settings.max_answer_chars,
            confidence=confidence,
        )
        asked = {
            "question": task.question,
            "gold": list(task.answers),
            "answer": final,
            "confidence": confidence,
        }
        try:
            reply, kept = await self._kept.through(asked, lambda: self._ask(prompt))
        except UnparsableError as error:
            return self._nobody("unparsable", error)
        except (EngineError, CacheMiss) as error:
            return self._nobody("outages", error)
        self.counts["kept"] += kept
        grade = self.protocol.read(reply)
        if grade is None:  # a file that somebody else has filled
            return self._nobody("unparsable", UnparsableError(f"the kept reply has no verdict: {reply[:200]!r}"))
        return Verdict(grade.score, grade.word, confidence, "cache" if kept else "judge", self.judge)

    def _nobody(self, why: str, error: Exception) -> Verdict:
        self.counts[why] += 1
        by: Literal["judge", "nobody"] = "judge" if why == "unparsable" else "nobody"
        return Verdict(None, by=by, judge=self.judge, reason=str(error))

    async def _ask(self, prompt: str) -> str:
        """A reply that can be read. Raises UnparsableError if the second one cannot be, either."""
        messages = [{"role": "user", "content": prompt}]
        reply = await self._send(messages)
        if self.protocol.read(reply) is not None:
            return reply
        self.counts["repeated"] += 1
        messages += [
            {"role": "assistant", "content": reply[:_QUOTED] or "(nothing)"},
            {"role": "user", "content": self.protocol.reminder},
        ]
        second = await self._send(messages)
        if self.protocol.read(second) is None:
            raise UnparsableError(f"the judge's replies have no verdict of the form asked for: {second[:200]!r}")
        return second

    async def _send(self, messages: list[dict[str, str]]) -> str:
        """The reply, or "" if it was cut: its end, where the verdict stands, is missing."""
        self.counts["asked"] += 1
        reply = await self._client.ask(messages, self.protocol.schema)
        self.counts["tokens"] += reply.tokens
        return reply.text if reply.whole else ""

    async def check(self) -> None:
        """See Metric. A judge that only answers from its cache is not asked."""
        if self.settings.cache_mode != "read_only":
            await self._client.check()

    def card(self) -> dict[str, Any]:
        """See Metric."""
        return {
            "metric": self.name,
            "by": "judge",
            "base_url": self.settings.base_url,
            "model": self.settings.model,
            "follows": self.protocol.follows,
            "rule_first": self.settings.rule_first,
            "structured": self._client.structured,
            "cache": self._kept.card(),
        } | self._facts()

    def drain(self) -> dict[str, float]:
        """See Metric: `reward/judge/...` for each of COUNTERS."""
        found = {f"reward/judge/{name}": float(self.counts[name]) for name in COUNTERS}
        self.counts.clear()
        return found

    async def close(self) -> None:
        """See Metric."""
        await self._client.close()
        self._kept.close()


async def _right_by_rule(final: str, task: Task) -> bool:
    """Whether mode "hybrid" finds it right. Rules only save questions here, so where they fail the judge is asked."""
    try:
        return await asyncio.to_thread(best_score, final, task.answers, mode="hybrid", kind=task.kind) == 1.0
    except ArpoError:
        return False
