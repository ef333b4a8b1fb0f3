"""What dies in mid-rollout: a worker, the server. Neither may hang the trainer, and neither may make a reward."""

import time
from typing import Any

import pytest
from verl_world import PolicyServer, StuckServer, client_of, compose, rows_of, sample, small, trainer_of

from arpo.errors import EngineDownError

PATIENCE = 240.0


@pytest.fixture(scope="module")
def hydra(cluster: None, tmp_path_factory: pytest.TempPathFactory) -> Any:
    config = small(credit={"type": "hard"}, train={"prompts": 2})
    return compose(config, tmp_path_factory.mktemp("faults"), "actor_rollout_ref.rollout.agent.num_workers=2")


def test_a_killed_workers_prompts_fail_and_the_step_goes_on(hydra: Any) -> None:
    import ray
    import transfer_queue as tq
    from verl_world import clear

    from arpo.verl.manager import ArpoLoopManager

    server = ray.remote(num_cpus=0)(StuckServer).remote(2)
    manager = ArpoLoopManager.create(config=hydra, llm_client=client_of(hydra, server))
    try:
        trainer = trainer_of(hydra, manager)
        trainer._add_batch_to_generate()
        until(lambda: ray.get(server.stuck.remote()))
        victim = manager.agent_loop_workers[0]
        ray.kill(victim)
        until(lambda: any(tag.get("status") == "failure" for tag in statuses(tq)))
        ray.get(server.let_go.remote())
        batch, _ = trainer.replay_buffer.sample(global_steps=1, partition_id="train", batch_size=2)
        uids = {key.rsplit("_", 2)[0] for key in batch.keys}
        assert len(uids) == 1, "one prompt was the dead worker's, the other one's leaves are the step"
        assert len(batch.keys) == 4
        assert not statuses(tq), "no prompt is left open"
        until(lambda: manager.agent_loop_workers[0] != victim)
        clear()
        batch = sample(trainer, 2)
        assert len(batch.keys) == 8, "the next step has all its groups again"
        assert all(row.sum().isfinite() for row in rows_of(batch, "rm_scores")["rm_scores"].unbind())
    finally:
        clear()
        manager.close()


def test_a_dead_server_ends_the_step_with_its_name_and_without_a_row(hydra: Any) -> None:
    import ray
    import transfer_queue as tq
    from verl_world import clear

    from arpo.verl.manager import ArpoLoopManager

    server = ray.remote(num_cpus=0)(PolicyServer).remote(die_after=3)
    manager = ArpoLoopManager.create(config=hydra, llm_client=client_of(hydra, server))
    try:
        trainer = trainer_of(hydra, manager)
        trainer.on_sample_end = lambda: None
        with pytest.raises(EngineDownError, match="LLM server is gone"):
            trainer.step({}, {})
        known = (tq.kv_list("train") or {}).get("train", {})
        assert not [key for key, tag in known.items() if not tag.get("is_prompt")], "a row was posted"
        with pytest.raises(EngineDownError, match="no further prompt"):
            trainer._add_batch_to_generate()
    finally:
        clear()
        manager.close()


def statuses(tq: Any) -> list[dict[str, Any]]:
    """Tags of the prompts that TransferQueue knows."""
    return [tag for tag in (tq.kv_list("train") or {}).get("train", {}).values() if tag.get("is_prompt")]


def until(holds: Any) -> None:
    """Wait for it, and fail if it does not come."""
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.2)
