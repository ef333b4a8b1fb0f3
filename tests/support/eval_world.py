"""A toy evaluation: questions "x+1?", a policy that knows some of them, metrics that count, samples made by hand."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rollout_fakes import VOCAB, ToyDialect, decode, engine, steps, toolbox

from arpo.engine.scripted import Scripted
from arpo.evaluate.agents.policy import Policy
from arpo.evaluate.benchmark import Runner
from arpo.evaluate.ledger import Ledger
from arpo.evaluate.run import sampled
from arpo.evaluate.samples import Sample
from arpo.reward.verdict import Verdict
from arpo.rollout.agent import Agent
from arpo.rollout.settings import RolloutSettings
from arpo.task import Task, ask
from arpo.tools.toolbox import ToolBox


def questions(count: int) -> list[Task]:
    return [ask(f"{x}+1?", str(x + 1), id=f"q{x}", family="odd" if x % 2 else "even") for x in range(count)]


class Adder:
    """Searches once, then answers x + 1, but for the `wrong` x, where it says 0. Counts the questions it was asked."""

    def __init__(self, wrong: Sequence[int] = ()) -> None:
        self.wrong, self.asked = set(wrong), []

    def __call__(self, prefix: tuple[int, ...], seed: int) -> Sequence[Scripted]:
        text = decode(prefix)
        x = int(text[: text.index("+")])
        if text.endswith("?"):
            self.asked.append(x)
        said = text[max(text.rfind("?"), text.rfind("}")) + 1 :]
        whole = f"[{0 if x in self.wrong else x + 1}]$" if "}" in text else "<s>q</s>"
        return steps(whole)[len(said) :]


class Exactly:
    """A metric that compares texts, and is out of reach for the answers that `down` names."""

    def __init__(self, name: str = "em", by: str = "rule", down: Sequence[str] = (), **card: Any) -> None:
        self.name, self.by, self.down, self._card = name, by, set(down), card
        self.seen: list[str | None] = []

    async def __call__(self, task: Task, answer: str | None) -> Verdict:
        self.seen.append(answer)
        if answer in self.down:
            return Verdict(None, by=self.by, reason="no connection")
        return Verdict(float(answer in task.answers), "yes" if answer in task.answers else "no", by=self.by)

    async def check(self) -> None: ...

    def card(self) -> Mapping[str, Any]:
        return {"metric": self.name, **self._card}

    def drain(self) -> Mapping[str, float]:
        return {}

    async def close(self) -> None: ...


def runner(
    policy: Callable[..., Sequence[Scripted]],
    *,
    samples: int = 1,
    attempt: int = 0,
    tools: ToolBox | None = None,
    at_once: int = 64,
) -> Runner:
    agent = Agent(engine(policy), ToyDialect(), tools or toolbox(), VOCAB)
    rollout = sampled(RolloutSettings(max_tokens=200, concurrency=at_once), samples)
    return Runner(Policy(), agent, rollout, 0, attempt)


def ledger(folder: Path) -> Ledger:
    return Ledger(folder, decode)


def sample(
    task: str = "q", number: int = 0, score: float | None = 1.0, answer: str | None = "a", **more: Any
) -> Sample:
    """A row with one metric, em."""
    row = Sample(
        task=task,
        key="k",
        family="all",
        number=number,
        answer=answer,
        lost=False,
        faults=0,
        finish="stop",
        sampled=10,
        read=100,
        results=5,
        verdicts={"em": Verdict(score)},
        cards={"em": "c"},
    )
    return replace(row, **more)
