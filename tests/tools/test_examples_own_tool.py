"""The example of tools of one's own: it runs as it says, its ten lines are ten, and the documentation shows them."""

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

from arpo.config.load import load
from arpo.tools.base import ToolContext, ToolStatus
from arpo.tools.registry import build
from arpo.tools.sessions import Session, Step
from arpo.tools.toolbox import ToolBox

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "examples" / "own_tool.toml"


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch) -> ToolBox:
    monkeypatch.syspath_prepend(ROOT / "examples")
    monkeypatch.chdir(ROOT)
    return build(load([str(CONFIG)]).config.tools)


async def test_the_tool_answers_and_tells_the_model_what_it_got_wrong(tools: ToolBox) -> None:
    asked = [("Rome", "km"), ("Rome", "mi"), ("Atlantis", "km"), ("Rome", "yd")]
    results = [
        await tools.call("distance", {"start": "Oslo", "end": end, "unit": unit}, ToolContext()) for end, unit in asked
    ]
    assert [one.status for one in results] == [ToolStatus.OK] * 2 + [ToolStatus.TOOL_ERROR] * 2
    assert [one.text for one in results[:2]] == ["2006 km", "1247 mi"]
    assert results[2].text == "There is no Atlantis on the map; there are: oslo, rome, lima, tokyo."
    assert results[3].text.startswith("Wrong arguments for distance at $.unit: 'yd' is not one of")
    await tools.close()


async def test_the_game_is_won_by_halving_and_a_branch_goes_on_from_where_it_opened(tools: ToolBox) -> None:
    trunk = Session()

    async def guess(session: Session, number: int) -> str:
        result = await tools.call("guess", {"number": number}, ToolContext("task", session=session))
        session.append(Step(tools.tools[1].environment.name, "guess", {"number": number}, 0))  # type: ignore[attr-defined]
        return result.text

    low, high, said = 1, 50, ""
    branch = trunk.fork()
    while not said.startswith("Right"):
        middle = (low + high) // 2
        branch = trunk.fork()
        said = await guess(trunk, middle)
        low, high = (middle + 1, high) if "larger" in said else (low, middle - 1)
    assert await guess(branch, middle) == said, "the same number, after as many tries"
    await trunk.close()
    await branch.close()
    await tools.close()


def test_ten_lines_that_the_documentation_shows(tools: ToolBox) -> None:
    lines = inspect.getsource(inspect.unwrap(tools.tools[0])).splitlines()  # type: ignore[arg-type]
    assert len(lines) == 10
    shown = (ROOT / "docs" / "tools.md").read_text()
    assert "\n".join(f"    {line}".rstrip() for line in lines) in shown


@pytest.mark.slow
def test_from_the_shell_as_the_example_says() -> None:
    command = [
        sys.executable,
        "-m",
        "arpo",
        "tools",
        "call",
        "distance",
        str(CONFIG),
        "-a",
        "start=Oslo",
        "-a",
        "end=Rome",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "examples")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout) == (0, "2006 km\n"), done.stderr
