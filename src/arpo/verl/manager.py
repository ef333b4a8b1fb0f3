"""verl's agent loop manager with our workers, and someone who notices when one of them dies.

verl's trainer waits until every prompt that it has sent has ended. A worker that is killed (by the kernel for memory,
with its node, by hand) ends none of its prompts, so the trainer would wait for ever. Here each worker holds a call that
never returns; when it fails, the worker is dead: what its open prompts had posted is taken back, they end as "failure",
and another worker takes its place. The step then goes on with the other groups, and if there are none verl stops with
an error. Prompts are not tried again: what killed one worker may kill the next.

Before anything is sent, everything that would fail every prompt has been looked for: in this process what the two
configurations disagree on, in the workers tools, dialect and rules.

Source of the interface: verl 0.9.1, `trainer/ppo/v1/agent_loop_tq.py` and `replay_buffer.py` (the statuses).
"""

import logging
import threading
from collections.abc import Iterable, Mapping
from typing import Any
from uuid import uuid4

import ray
import transfer_queue as tq
from ray.exceptions import RayActorError, RayError, RayTaskError
from verl.trainer.ppo.v1 import AgentLoopManagerTQ
from verl.utils.ray_utils import auto_await

from arpo.errors import ArpoError, EngineDownError
from arpo.verl.checks import check, read_config
from arpo.verl.worker import ArpoLoopWorker

_POLL = 1.0
"""Seconds between two looks at the pulses."""
_PATIENCE = 3
"""Deaths per worker without a dispatch between them that all survived; after that the job stops."""
logger = logging.getLogger(__name__)


class ArpoLoopManager(AgentLoopManagerTQ):
    """`actor_rollout_ref.rollout.agent.agent_loop_manager_class = arpo.verl.manager.ArpoLoopManager`."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Raises ConfigError where verl's configuration and ours disagree."""
        super().__init__(*arguments, **options)
        check(self.config, read_config(self.config))
        self.agent_loop_workers_class = ray.remote(ArpoLoopWorker)
        self._lock = threading.Lock()
        self._prompts: dict[Any, dict[str, str]] = {}
        self._pulses: dict[Any, Any] = {}
        self._deaths = 0
        self._deaths_seen = 0
        self._closed = threading.Event()

    @classmethod
    @auto_await  # type: ignore[untyped-decorator]
    async def create(cls, *arguments: Any, **options: Any) -> "ArpoLoopManager":
        """The manager with workers that are ready. Raises what keeps a worker from working, ConfigError above all."""
        manager = cls(*arguments, **options)
        await manager._init_agent_loop_workers()
        _answers([worker.ready.remote() for worker in manager.agent_loop_workers])
        for worker in manager.agent_loop_workers:
            manager._watch(worker)
        threading.Thread(target=manager._keep_watch, name="arpo-watch", daemon=True).start()
        return manager

    def generate_sequences(self, prompts: Any) -> None:
        """Share `prompts` out to the workers, without waiting for what becomes of them.

        Raises EngineDownError if a worker has found verl's server gone, or if workers go on dying.
        """
        self._stop_if_hopeless()
        validate = bool(prompts["validate"]) if "validate" in prompts else False
        self._forget_closed()
        for place, chunk in enumerate(prompts.chunk(len(self.agent_loop_workers))):
            self._send(place, chunk, "val" if validate else "train")

    def close(self) -> None:
        """End the workers and the watch. verl itself ends with its Ray session and never asks for it."""
        self._closed.set()
        for worker in self.agent_loop_workers:
            ray.kill(worker)

    def troubles(self) -> list[str]:
        """Why workers could not reach verl's server; a worker that is dead says nothing."""
        said = []
        for worker in list(self.agent_loop_workers):
            try:
                said.append(ray.get(worker.trouble.remote()))
            except RayActorError:
                continue
        return [text for text in said if text]

    def _stop_if_hopeless(self) -> None:
        if found := self.troubles():
            raise EngineDownError(f"{found[0]}; no further prompt can be rolled out. Resume from the last checkpoint")
        with self._lock:
            self._deaths = self._deaths if self._deaths > self._deaths_seen else 0
            self._deaths_seen = self._deaths
            deaths = self._deaths
        if deaths > _PATIENCE * len(self.agent_loop_workers):
            raise EngineDownError(
                f"agent loop workers have died {deaths} times in a row; look for their reason in Ray's logs (memory?)"
            )

    def _forget_closed(self) -> None:
        """Prompts that verl has taken out of TransferQueue are nobody's any more."""
        known = {uid for items in (tq.kv_list() or {}).values() for uid in items}
        with self._lock:
            for worker, prompts in self._prompts.items():
                self._prompts[worker] = {uid: where for uid, where in prompts.items() if uid in known}

    def _send(self, place: int, chunk: Any, where: str) -> None:
        """A dead worker is noticed here or by the watch, whichever is first; its prompts end as failure either way."""
        with self._lock:
            worker = self.agent_loop_workers[place]
            self._prompts.setdefault(worker, {}).update(dict.fromkeys(map(str, chunk["uid"]), where))
        try:
            _answers([worker.generate_sequences.remote(chunk)])
        except RayActorError:
            if worker not in self._pulses:
                _bury({str(uid): where for uid in chunk["uid"]})

    # --- the watch -------------------------------------------------------------------------------------------------

    def _watch(self, worker: Any) -> None:
        with self._lock:
            self._pulses[worker] = worker.pulse.remote()

    def _keep_watch(self) -> None:
        while ray.is_initialized() and not self._closed.is_set():
            with self._lock:
                pulses = dict(self._pulses)
            if not pulses:
                self._closed.wait(_POLL)
                continue
            gone, _ = ray.wait(list(pulses.values()), num_returns=1, timeout=_POLL)
            for worker in [worker for worker, pulse in pulses.items() if pulse in gone and not self._closed.is_set()]:
                try:
                    self._replace(worker)
                except Exception:
                    logger.exception("a worker died and its prompts could not be ended; verl may wait for them")

    def _replace(self, dead: Any) -> None:
        """End what `dead` left open, and put another worker where it was."""
        with self._lock:
            self._deaths += 1
            del self._pulses[dead]
            open_prompts = self._prompts.pop(dead, {})
        lost = _bury(open_prompts)
        logger.error("an agent loop worker died; %d of its prompts are lost, another worker takes its place", lost)
        fresh = self.agent_loop_workers_class.options(name=f"agent_loop_worker_{uuid4().hex[:8]}").remote(
            self.config, self.llm_client, self.teacher_client, self.reward_loop_worker_handles
        )
        with self._lock:
            self.agent_loop_workers[self.agent_loop_workers.index(dead)] = fresh
        _answers([fresh.ready.remote()])
        self._watch(fresh)


def _answers(calls: Iterable[Any]) -> list[Any]:
    """What the calls return; an error of ours is raised as it was, without Ray's wrapping."""
    try:
        return ray.get(list(calls))
    except RayTaskError as error:
        if isinstance(error.cause, ArpoError):
            raise error.cause from None
        raise
    except RayActorError:
        raise
    except RayError as error:
        raise EngineDownError(f"an agent loop worker cannot be reached: {error}") from error


def _bury(prompts: Mapping[str, str]) -> int:
    """End those of the prompts (uid to partition) that are open, and take back what they posted; how many they were."""
    lost = 0
    for where in set(prompts.values()):
        known: dict[str, Any] = (tq.kv_list(where) or {}).get(where, {})
        open_uids = {uid for uid in prompts if known.get(uid, {}).get("status") in ("pending", "running")}
        rows = [key for key in known if key.rsplit("_", 2)[0] in open_uids and key not in open_uids]
        if rows:
            tq.kv_clear(keys=rows, partition_id=where)
        for uid in open_uids:
            tq.kv_put(key=uid, partition_id=where, tag={"status": "failure"})
        lost += len(open_uids)
    return lost
