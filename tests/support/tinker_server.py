"""SkyRL's Tinker server as a process of its own, over the pocket policy in float32."""

import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from ports import free_port

STARTER = Path(__file__).parents[2] / "examples" / "skyrl_server.py"
PATIENCE = 600
"""Seconds for a server to start on a busy machine: it imports JAX twice."""
RANK = 8
BACKEND = (
    f'{{"max_lora_adapters": 16, "max_lora_rank": {RANK}, "train_micro_batch_size": 1, "sample_max_num_sequences": 8}}'
)
"""Sizes stand still, so that JAX compiles few programs."""


@dataclass(frozen=True)
class Served:
    url: str
    process: subprocess.Popen[bytes]
    checkpoints: Path

    def kill(self) -> None:
        """Like a crash of the machine: the API and its engine at once."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(60)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.kill()


def start(model: Path, folder: Path) -> Served:
    """A server that answers; RuntimeError with its log if it does not come up. `folder`: for what it writes."""
    port = free_port()
    log, url = folder / f"server-{port}.log", f"http://127.0.0.1:{port}"
    command = [
        *(os.environ["ARPO_SKYRL_PYTHON"], str(STARTER), "--base-model", str(model), "--backend-config", BACKEND),
        *("--checkpoints-base", str(folder / "kept"), "--database-url", f"sqlite:///{folder / 'tinker.db'}"),
        *("--port", str(port)),
    ]
    environ = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "XLA_FLAGS": "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true",
    }
    with log.open("wb") as out:
        process = subprocess.Popen(command, env=environ, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
    served = Served(url, process, folder / "kept")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    until = time.monotonic() + PATIENCE
    while process.poll() is None and time.monotonic() < until:
        try:
            opener.open(f"{url}/api/v1/healthz", timeout=5)
            return served
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    served.stop()
    raise RuntimeError(f"the server did not come up:\n{log.read_text(errors='replace')[-4000:]}")
