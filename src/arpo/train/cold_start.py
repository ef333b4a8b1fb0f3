"""The pocket policy's cold start: from random weights to a policy that uses the tools, in minutes, by one call.

Two stages. The first learns from expert demonstrations and leaves the *clean* policy; the second goes on with
demonstrations of varied strategies and leaves the one that reinforcement learning starts from. On two cores, two
processes of one thread each train faster than one process of two threads.
"""

import argparse
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arpo.data.factbook.traces import TraceSource
from arpo.errors import ArpoError
from arpo.seeds import derive
from arpo.train.batches import Row, encode_pieces, stream
from arpo.train.sft_settings import SftSettings

if TYPE_CHECKING:
    from arpo.train.sft import Clock

CLEAN, VARIED = "pocket-clean", "pocket"
"""Folder names, as they are packaged under arpo/assets."""
_DRAWN = 300
"""Demonstrations drawn at a time, from which batches of like length are filled."""

CLEAN_RECIPE = SftSettings(
    style="clean", steps=1400, batch_tokens=1500, lr=3e-3, muon_lr=0.03, warmup_steps=20, decay=0.4
)
VARIED_RECIPE = SftSettings(
    style="varied", steps=200, batch_tokens=1500, lr=1e-3, muon_lr=0.01, warmup_steps=10, decay=0.5
)


class ColdStartError(ArpoError):
    """A worker process of the cold start failed."""


def cold_start_pocket(
    out: Path,
    *,
    seconds_clean: float | None = None,
    seconds_varied: float | None = None,
    processes: int = 2,
    seed: int = 0,
) -> tuple[Path, Path]:
    """Train the pocket policy in `processes` worker processes; the folders of the varied and of the clean policy.

    Each stage takes the steps of its recipe, or ends, decay finished, after the seconds given if these are over first.
    Prints progress lines. Raises ColdStartError if a worker fails; its own message stands above in the output.
    """
    limits = [f"--{name}={value}" for name, value in (("clean", seconds_clean), ("varied", seconds_varied)) if value]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command += ["-m", "arpo.train.cold_start", str(out), f"--seed={seed}", *limits]
    paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    threads = max(1, (os.cpu_count() or 1) // processes)
    environment |= {"OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}
    if subprocess.run(command, env=environment, check=False).returncode != 0:
        raise ColdStartError(f"the cold start failed (see above); its command was: {' '.join(command)}")
    return out / VARIED, out / CLEAN


def train_stages(out: Path, stages: list[tuple[str, SftSettings]], seed: int) -> None:
    """What one worker does: fresh weights, then stage after stage, each saved by the first process."""
    import torch

    from arpo.data.pocket import build_pocket, train_tokenizer
    from arpo.train.sft import fit, new_clock, save

    rank = int(os.environ.get("RANK", "0"))
    torch.manual_seed(derive("pocket", "weights", seed) % 2**32)
    tokenizer = train_tokenizer()
    model = build_pocket(tokenizer)
    source = TraceSource()
    for name, settings in stages:
        clock = new_clock(settings)
        rng = random.Random(derive("pocket", name, seed, rank))
        batches = _batches(source, tokenizer, settings, rng, clock)
        fit(model, tokenizer, batches, settings, clock=clock, say=lambda line: print(line, flush=True))
        if rank == 0:
            save(model, tokenizer, out / name, torch.bfloat16)
            print(f"cold start: wrote {out / name}", flush=True)


def _batches(
    source: TraceSource, tokenizer: Any, settings: SftSettings, rng: random.Random, clock: "Clock"
) -> Iterator[list[Row]]:
    style = settings.style

    def draw() -> list[Row]:
        # Lookups come first in learning to copy at all; the second stage has no such need.
        done = clock.progress if style == "clean" else 1.0
        return encode_pieces(tokenizer, [source.draw(rng, style, done).pieces for _ in range(_DRAWN)])

    return stream(draw, settings.batch_tokens, rng)


def _main() -> None:
    parser = argparse.ArgumentParser(description="one worker of the pocket policy's cold start; see cold_start_pocket")
    parser.add_argument("out", type=Path)
    parser.add_argument("--clean", type=float, help="seconds for the first stage")
    parser.add_argument("--varied", type=float, help="seconds for the second stage")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    stages = [
        (CLEAN, CLEAN_RECIPE.model_copy(update={"max_seconds": arguments.clean})),
        (VARIED, VARIED_RECIPE.model_copy(update={"max_seconds": arguments.varied})),
    ]
    train_stages(arguments.out, stages, arguments.seed)


if __name__ == "__main__":
    _main()
