"""Starting verl: what must be there first, and a process that is waited for.

The checks run before Ray starts, because verl itself finds out late: it imports a plug-in that fails without a word,
starts Ray, TransferQueue and the workers, and only then looks for a device of a kind that it has (NVIDIA, ROCm and
Ascend in 0.9.1; there is no CPU platform for the actor).

The job runs in a session of its own, so that Ctrl-C reaches it once, through us: the first SIGINT lets verl close what
it has opened, a second one ends it. Its exit code is ours.
"""

import importlib.metadata
import importlib.util
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any

from arpo.errors import ConfigError, EngineDownError
from arpo.verl.command import Cluster

OLDEST, NEWEST = (0, 9, 1), (0, 10)
"""verl from the first of these on, below the second: its extension points move with every minor version."""
CPUS = 32
"""Logical CPUs that a Ray on this machine is told it has at the least: TransferQueue's actors wait for ever for theirs
where Ray counts fewer than 16, and the agent workers want some besides."""


def logical_cpus(cluster: Cluster) -> int | None:
    """For `ray_kwargs.ray_init.num_cpus`; None where Ray is already running, which then refuses to be told."""
    if cluster.address is not None or "RAY_ADDRESS" in os.environ:
        return None
    return max(CPUS, os.cpu_count() or 1)


def check(cluster: Cluster, gpus: int, trainer_mode: str, rollout_name: str) -> None:
    """Raise ConfigError for what is missing here, naming the remedy. Nothing is started but, with "auto", a look at
    the Ray that is running."""
    if cluster.submits:
        _needs("ray", "submits the job")
        return
    check_version()
    _needs("ray", "runs verl's workers")
    _needs("transfer_queue", "carries verl's samples")
    if cluster.address is None and "RAY_ADDRESS" not in os.environ:
        check_devices(gpus)
    check_plugin(trainer_mode, rollout_name)
    if cluster.address == "auto":
        check_running(gpus)


def _needs(module: str, purpose: str) -> None:
    if importlib.util.find_spec(module) is None:
        raise ConfigError(f'the package {module}, which {purpose}, is not installed; run: pip install "arpo[verl]"')


def check_version() -> str:
    """verl's version. ConfigError if it is not installed or none that this adapter was written for."""
    try:
        found = importlib.metadata.version("verl")
    except importlib.metadata.PackageNotFoundError:
        raise ConfigError(
            'verl is not installed here; run: pip install "arpo[verl]" (a --dry-run needs nothing of it)'
        ) from None
    numbers = tuple(int(part) for part in found.split(".")[:3] if part.isdigit())
    if not OLDEST <= numbers < NEWEST:
        raise ConfigError(f'verl {found} is installed; this needs >= 0.9.1 and < 0.10: pip install "verl>=0.9.1,<0.10"')
    return found


def check_devices(gpus: int) -> None:
    """ConfigError where this machine has no device that verl can train on, or fewer than asked for."""
    import torch

    ascend = importlib.util.find_spec("torch_npu") is not None
    if not torch.cuda.is_available() and not ascend:
        raise ConfigError(
            "this machine has no GPU that torch can use, and verl 0.9.1 has no CPU platform for the actor; run this "
            "on a machine with one, give the --address of a Ray cluster, or train here with `arpo train`. What would "
            "be run is shown by --dry-run"
        )
    if torch.cuda.is_available() and torch.cuda.device_count() < gpus:
        raise ConfigError(f"--gpus {gpus} but torch sees {torch.cuda.device_count()}; give what there is")


def check_plugin(trainer_mode: str, rollout_name: str) -> None:
    """verl loads plug-ins by entry point and keeps their errors to itself: see that ours is there."""
    if not any(point.value == "arpo.verl.plugin" for point in importlib.metadata.entry_points(group="verl.plugins")):
        raise ConfigError("verl does not see arpo's plug-in (entry point verl.plugins); install arpo anew with pip")
    importlib.import_module("arpo.verl.plugin")  # its error, if it has one, which verl would swallow
    from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    if trainer_mode not in TRAINER_REGISTRY:
        raise ConfigError(f"verl knows no trainer {trainer_mode!r}; it has {', '.join(sorted(TRAINER_REGISTRY))}")
    if rollout_name not in RolloutReplicaRegistry._registry:
        raise ConfigError(f"verl knows no rollout {rollout_name!r}; VERL_USE_EXTERNAL_PLUGINS may keep arpo's out")


def check_running(gpus: int) -> None:
    """ConfigError unless the Ray that this machine belongs to has as many GPUs."""
    import ray

    try:
        ray.init(address="auto", logging_level="ERROR", log_to_driver=False)
    except ConnectionError as error:
        raise EngineDownError(f"--address auto, but no Ray is running here: {error}") from error
    try:
        found = int(ray.cluster_resources().get("GPU", 0))
    finally:
        ray.shutdown()
    if found < gpus:
        raise ConfigError(
            f"the Ray cluster has {found} GPUs and the job asks for {gpus}; verl 0.9.1 has no CPU platform for the "
            "actor: start Ray with GPUs, or lower --gpus and --nodes"
        )


def run(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run it to its end and give its exit code (128 + n for a signal). SIGINT, SIGTERM and SIGHUP are passed on; the
    third SIGINT kills."""
    process = subprocess.Popen(list(command), env={**os.environ, **environment}, start_new_session=True)
    interrupts = 0

    def forward(number: int, frame: FrameType | None) -> None:
        nonlocal interrupts
        interrupts += number == signal.SIGINT
        _send(process, signal.SIGKILL if interrupts > 2 else number)

    previous: dict[int, Any] = {
        number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        code = process.wait()
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code


def _send(process: subprocess.Popen[bytes], number: int) -> None:
    if process.poll() is None:
        os.killpg(process.pid, number)
