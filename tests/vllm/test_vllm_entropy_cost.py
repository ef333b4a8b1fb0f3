"""What exact entropies cost in vLLM: its own sampler with and without log-probs, and ours, turn by turn in one process.

Nothing here asserts a time; the figures are printed.
"""

import asyncio
import os
import statistics
import time
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(1800)]

ROUNDS = 6
ROWS = 16
TOKENS = 24
MODES = {"exact entropy": (True, 1), "log-prob alone": (False, 0), "top 20": (False, 20)}


def computed() -> float:
    """Seconds that this process and vLLM's workers have computed."""
    ticks = os.sysconf("SC_CLK_TCK")
    workers = [
        entry
        for entry in Path("/proc").glob("[0-9]*")
        if (entry / "comm").read_text().strip() == "VLLM::Worker" and _is_ours(int(entry.name))
    ]
    used = [sum(int(part) for part in (w / "stat").read_text().rpartition(")")[2].split()[11:13]) for w in workers]
    return time.process_time() + sum(used) / ticks


def _is_ours(pid: int) -> bool:
    while pid > 1:
        if pid == os.getpid():
            return True
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return False


async def draw(llm: Any, prefix: list[int], logprobs: int, name: str, seed: int) -> list[int]:
    from vllm import SamplingParams

    params = SamplingParams(max_tokens=TOKENS, seed=seed, logprobs=logprobs, ignore_eos=True, detokenize=False)
    async for output in llm.generate({"type": "token", "prompt_token_ids": prefix}, params, name):
        last = output
    return list(last.outputs[0].token_ids)


async def test_exact_entropies_change_no_token_and_cost_little(
    engine_inside: Any, policy: tuple[Any, Any], figures: dict[str, str]
) -> None:
    llm, prefix = engine_inside._llm, policy[1].encode("Once upon a time there was a small village")
    await engine_inside.sample(prefix, _one(), 0)
    seconds: dict[str, list[tuple[float, float]]] = {mode: [] for mode in MODES}
    drawn: dict[str, list[list[int]]] = {}
    for turn in range(ROUNDS + 1):
        # Whoever comes first in a round has the caches of the round before: they take turns.
        for mode in [list(MODES)[(turn + place) % len(MODES)] for place in range(len(MODES))]:
            ours, logprobs = MODES[mode]
            await llm.collective_rpc("arpo_report_entropies", args=(ours,))
            begin, cpu = time.perf_counter(), computed()
            drawn[mode] = await asyncio.gather(
                *(draw(llm, prefix, logprobs, f"{mode}-{turn}-{row}", row) for row in range(ROWS))
            )
            if turn:  # the first round compiles
                seconds[mode].append((time.perf_counter() - begin, computed() - cpu))
    await llm.collective_rpc("arpo_report_entropies", args=(True,))
    for other in ("log-prob alone", "top 20"):
        equal = sum(a == b for a, b in zip(drawn["exact entropy"], drawn[other], strict=True))
        assert equal >= ROWS - 1  # rows that begin in different steps may differ by rounding
    speed = statistics.median(ROWS * TOKENS / wall for wall, _ in seconds["exact entropy"])
    figures[f"tokens/s in process, {ROWS} sequences, float32, exact entropies"] = f"{speed:.0f}"
    for other in ("log-prob alone", "top 20"):
        pairs = list(zip(seconds["exact entropy"], seconds[other], strict=True))
        wall, cpu = (statistics.median(one[part] / two[part] for one, two in pairs) for part in (0, 1))
        figures[f"time with exact entropies / with vLLM's {other} (median of {ROUNDS} pairs)"] = (
            f"{wall:.3f} (processor time {cpu:.3f})"
        )


def _one() -> Any:
    from arpo.engine.base import SampleParams

    return SampleParams(1)
