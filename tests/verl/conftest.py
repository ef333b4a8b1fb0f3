"""verl for real, on CPUs: `make test-verl` runs this folder in a venv of its own.

`make test` does not: without ARPO_VERL_TESTS=1 nothing here is collected. Real are verl's configuration, Ray,
TransferQueue, verl's client, worker, replay buffer, dataset and trainer; the server is the pocket policy in an actor,
because vLLM wants a GPU here, and the actor's update is left out, because verl has no CPU platform for it.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

if os.environ.get("ARPO_VERL_TESTS") != "1":
    collect_ignore_glob = ["test_*.py"]

SUPPORT = Path(__file__).parents[1] / "support"


@pytest.fixture(scope="session")
def cluster() -> Iterator[None]:
    """Ray and TransferQueue, once."""
    import ray
    import transfer_queue as tq
    from omegaconf import OmegaConf
    from verl_world import CPUS

    variables = {"PYTHONPATH": str(SUPPORT), "OMP_NUM_THREADS": "1", "TRANSFER_QUEUE_ENABLE": "1"}
    ray.init(
        num_cpus=CPUS,
        include_dashboard=False,
        object_store_memory=200 * 2**20,
        runtime_env={"env_vars": variables},
        logging_level="ERROR",
    )
    os.environ["TRANSFER_QUEUE_ENABLE"] = "1"
    tq.init(OmegaConf.create({"backend": {"SimpleStorage": {"num_data_storage_units": 1}}}))
    yield
    tq.close()
    ray.shutdown()


@pytest.fixture(scope="session")
def server(cluster: None) -> Any:
    """The pocket policy behind verl's interface."""
    import ray
    from verl_world import PolicyServer

    return ray.remote(num_cpus=0)(PolicyServer).remote()


@pytest.fixture
def fresh(server: Any) -> Iterator[Any]:
    """The server as if nobody had asked it anything, and an empty TransferQueue afterwards."""
    import ray
    from verl_world import clear

    ray.get(server.forget.remote())
    yield server
    clear()
