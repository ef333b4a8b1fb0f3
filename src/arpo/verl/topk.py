"""A rollout replica of verl's whose vLLM server reports the K largest log-probs of every token it samples.

verl's server asks vLLM for the sampled token's log-prob alone, so that an entropy can only be estimated. This replica
differs in one thing: the request asks for K, and the answer carries them in `extra_fields`, from which the engine of
ours brackets entropies (`arpo.engine.topk`). It is chosen by the name `vllm_topk` in `actor_rollout_ref.rollout.name`,
with K in `rollout.custom.arpo_top_k`.

verl builds the request inside a method that does much else. So that this method stays verl's own, the engine is wrapped
instead: what it is asked to sample passes through here on its way to vLLM, and what came back is kept for the caller,
told apart by the context in which it was asked. Requests that want no log-probs are left as they are.

Source of the interfaces: verl 0.9.1, `workers/rollout/vllm_rollout/vllm_async_server.py` (`vLLMHttpServer.generate`,
`run_server`) and `workers/rollout/replica.py`; vLLM's `RequestOutput.outputs[0].logprobs`, one table per token from id
to log-prob and rank, K entries, or K + 1 where the sampled token is not among them.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from arpo.errors import ConfigError
from arpo.verl.sampler import TOP_K_REPLICA

FIELD = "arpo_top_logprobs"
"""Where a TokenOutput's `extra_fields` hold them: per sampled token K floats, the largest first."""
SETTING = "arpo_top_k"
"""K's key in `rollout.custom`."""
_last: ContextVar[list[Any] | None] = ContextVar("arpo_topk_last", default=None)


def register() -> None:
    """Make the replica known to verl. Imports neither vLLM nor Ray's server; that waits until one is built."""
    from verl.workers.rollout.base import _ROLLOUT_REGISTRY
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    RolloutReplicaRegistry.register(TOP_K_REPLICA, _load)
    _ROLLOUT_REGISTRY[TOP_K_REPLICA, "async"] = _ROLLOUT_REGISTRY["vllm", "async"]


def top_logprobs(tables: Sequence[Mapping[int, Any]], top_k: int) -> list[list[float]]:
    """The K largest log-probs of each token, descending, from vLLM's tables.

    Raises ValueError for a table with fewer than K: an entropy bracketed from it would be wrong.
    """
    rows = []
    for place, table in enumerate(tables):
        largest = sorted((float(entry.logprob) for entry in table.values()), reverse=True)[:top_k]
        if len(largest) < top_k:
            raise ValueError(f"token {place} came with {len(largest)} log-probs instead of {top_k}")
        rows.append(largest)
    return rows


def setting_of(custom: Mapping[str, Any] | None) -> int:
    """K, out of `rollout.custom`. ConfigError where it is missing or none."""
    value = (custom or {}).get(SETTING)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(
            f"actor_rollout_ref.rollout.name={TOP_K_REPLICA} needs a number of log-probs; give "
            f"+actor_rollout_ref.rollout.custom.{SETTING}=20"
        )
    return value


class TopKEngine:
    """vLLM's engine, asked for K log-probs wherever log-probs are asked for; all else is the engine's own."""

    def __init__(self, engine: Any, top_k: int) -> None:
        self._engine, self._top_k = engine, top_k

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def generate(self, *arguments: Any, sampling_params: Any, **options: Any) -> AsyncIterator[Any]:
        """As the engine's, and the last answer is kept in this context."""
        if sampling_params.logprobs is not None:
            sampling_params.logprobs = max(sampling_params.logprobs, self._top_k)
        async for output in self._engine.generate(*arguments, sampling_params=sampling_params, **options):
            seen = _last.get()
            if seen is not None:
                seen[:] = [output]
            yield output


class AsksForTopK:
    """What a server of verl's gains. To be put before verl's class, which has `config`, `run_server`, `generate`."""

    config: Any
    engine: Any

    async def run_server(self, args: Any) -> None:
        """Start as verl does, then stand between it and its engine."""
        top_k = setting_of(self.config.custom)
        await super().run_server(args)  # type: ignore[misc]
        self.engine = TopKEngine(self.engine, top_k)

    async def generate(self, *arguments: Any, **options: Any) -> Any:
        """verl's answer with `FIELD` in its extra fields, where log-probs were asked for and tokens came."""
        seen: list[Any] = []
        token = _last.set(seen)
        try:
            output = await super().generate(*arguments, **options)  # type: ignore[misc]
        finally:
            _last.reset(token)
        if seen and seen[0].outputs and seen[0].outputs[0].logprobs is not None:
            tables = seen[0].outputs[0].logprobs
            output.extra_fields[FIELD] = top_logprobs(tables, setting_of(self.config.custom))
        return output


def _load() -> type:
    """The replica class; called by verl where it builds one, so that vLLM is imported there alone."""
    import ray
    from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer, vLLMReplica

    server = type("ArpoTopKServer", (AsksForTopK, vLLMHttpServer), {})

    class TopKReplica(vLLMReplica):
        """verl's replica with the server above."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self.server_class = ray.remote(server)

    return TopKReplica
