"""Virtual time: order, limits, and what happens where nobody will ever wake up."""

import asyncio
import time

import pytest

from arpo.plan.simulation.clock import run_virtual


def test_hours_pass_at_once_and_in_order() -> None:
    async def main() -> list[tuple[str, float]]:
        seen: list[tuple[str, float]] = []

        async def sleeper(name: str, seconds: float) -> None:
            await asyncio.sleep(seconds)
            seen.append((name, asyncio.get_running_loop().time()))

        await asyncio.gather(sleeper("late", 7200.0), sleeper("early", 60.0), sleeper("at once", 0.0))
        return seen

    started = time.monotonic()
    names, times = zip(*run_virtual(main), strict=True)
    assert names == ("at once", "early", "late")
    assert times == pytest.approx((0.0, 60.0, 7200.0), abs=1e-6)
    assert time.monotonic() - started < 60  # a deadline: two hours went by


def test_time_limits_are_virtual_too() -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(100.0):
                await asyncio.sleep(1000.0)
        return asyncio.get_running_loop().time()

    assert run_virtual(main) == pytest.approx(100.0)


def test_a_simulation_in_which_nobody_can_go_on_says_so() -> None:
    async def main() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(RuntimeError, match="stands still"):
        run_virtual(main)
