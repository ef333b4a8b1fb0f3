"""What a method asks the model beside a trajectory, and what that costs.

Reading documents, writing a section: the model works, but nothing of it is the trajectory's own text. Such a question
is sampled by the same engine at the same temperature as everything else, draws from a seed named by its place, and is
counted in full. Its answer goes back as text, which is context like any tool's result.
"""

from collections.abc import Callable, Mapping

from arpo.engine.base import Engine, SampleParams
from arpo.errors import EngineError
from arpo.evaluate.agents.base import Solved
from arpo.evaluate.agents.voice import Voice
from arpo.rollout.settings import RolloutSettings
from arpo.tools.results import cap
from arpo.tree import RolloutTree

TOKENS = 512
"""Of one answer, at the most."""
_DOCUMENT = 24_000
"""Characters of what is read at once, at the most."""
_SMALLEST = 100


class Aside:
    """Questions beside the trajectories of one task. `tokens`, `calls`, `read`: sampled, made, given so far."""

    def __init__(self, engine: Engine, voice: Voice, settings: RolloutSettings) -> None:
        self._engine, self._voice, self._settings = engine, voice, settings
        self._limit = min(TOKENS, settings.max_tokens)
        self.tokens = self.calls = self.read = 0

    async def ask(self, system: str, user: Callable[[str], str], document: str, seed: int) -> str:
        """The model's answer to `user(document)`, without reasoning blocks and outer blanks.

        A document that does not fit the engine's context is cut in the middle. Raises EngineError if the rest of the
        prompt alone does not fit.
        """
        tokens = self._fitting(system, user, cap(document, _DOCUMENT))
        params = SampleParams(
            max_tokens=self._limit,
            temperature=self._settings.temperature,
            top_p=self._settings.top_p,
            end_tokens=self._voice.end_tokens,
        )
        segment = await self._engine.sample(tokens, params, seed)
        self.tokens += len(segment)
        self.calls += 1
        self.read += len(tokens)
        return self._voice.spoken(segment.tokens.tolist()).strip()

    def solved(self, tree: RolloutTree, tools: Mapping[str, int] | None = None) -> Solved:
        """The trajectories with what was spent beside them; `tools`: calls that no trajectory shows."""
        return Solved(tree, self.tokens, self.calls, self.read, tools or {})

    def _fitting(self, system: str, user: Callable[[str], str], document: str) -> list[int]:
        room = self._engine.capabilities.max_context - self._limit
        while True:
            ids: list[int] = self._voice.prompt(system, [{"role": "user", "content": user(document)}]).tolist()
            if len(ids) <= room:
                return ids
            if len(document) <= _SMALLEST:
                raise EngineError(
                    f"a prompt of {len(ids)} tokens and an answer of {self._limit} do not fit the engine's context of "
                    f"{self._engine.capabilities.max_context}; use a model with a longer context, or lower "
                    "rollout.max_tokens"
                )
            document = cap(document, max(_SMALLEST, int(len(document) * min(0.9, room / len(ids)))))
