"""`accelerate launch -m arpo.train` with two processes on this machine."""

import os
import sys
from collections.abc import Mapping, Sequence

DDP, FSDP = ("--multi_gpu",), ("--use_fsdp", "--fsdp_version", "2", "--fsdp_cpu_ram_efficient_loading", "false")


def launched(kind: Sequence[str], settings: Sequence[str]) -> list[str]:
    """The command line."""
    return [
        *(sys.executable, "-m", "accelerate.commands.launch", *kind, "--num_processes", "2"),
        *("--main_process_port", "0", "-m", "arpo.train", *settings),
    ]


def one_thread() -> Mapping[str, str]:
    """The environment of each process."""
    return os.environ | {"OMP_NUM_THREADS": "1"}
