"""Golden numbers on disk: written once by the library that they come from, recomputed and compared on demand."""

import argparse
import json
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

FOLDER = Path(__file__).resolve().parents[1] / "learn" / "golden"
TOLERANCE = 1e-6
"""Relative to the largest number of the list that a number stands in."""


def header(library: str) -> dict[str, str]:
    """Who computed: the library's version, torch's and Python's."""
    return {
        "library": library,
        "version": version(library),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def plain(value: Any) -> Any:
    """Tensors as nested lists of floats, dicts and lists walked through."""
    if isinstance(value, torch.Tensor):
        return value.detach().tolist() if not value.is_floating_point() else value.detach().double().tolist()
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def main(library: str, contents: dict[str, Any]) -> None:
    """Write `<library>-<version>.json`, or with `--check` compare with what stands there and fail on a difference."""
    parser = argparse.ArgumentParser(description=f"golden numbers of {library}")
    parser.add_argument("--check", action="store_true", help="compare with the pinned numbers instead of writing them")
    check = parser.parse_args().check
    fresh = {**header(library), **plain(contents)}
    path = FOLDER / f"{library}-{fresh['version']}.json"
    if check:
        compare(path, fresh)
        return
    FOLDER.mkdir(parents=True, exist_ok=True)
    path.write_text(_text(fresh))
    print(f"wrote {path.relative_to(FOLDER.parents[2])}: {_count(fresh)} numbers")


def compare(path: Path, fresh: dict[str, Any]) -> None:
    """Exit with the places that differ by more than TOLERANCE; torch and Python may be other releases."""
    pinned = json.loads(path.read_text())
    for name in ("torch", "python"):
        pinned.pop(name)
        fresh.pop(name)
    differences = list(_differences(pinned, fresh, path.stem))
    if differences:
        raise SystemExit("\n".join(["pinned and recomputed numbers differ:", *differences]))
    print(f"{path.name}: {_count(fresh)} numbers recomputed, all within {TOLERANCE} relative")


def _differences(pinned: Any, fresh: Any, place: str) -> list[str]:
    if isinstance(pinned, dict) and isinstance(fresh, dict):
        if pinned.keys() != fresh.keys():
            return [f"{place}: keys {sorted(pinned.keys() ^ fresh.keys())} stand on one side only"]
        return [line for key in pinned for line in _differences(pinned[key], fresh[key], f"{place}.{key}")]
    old, new = _numbers(pinned), _numbers(fresh)
    if old is not None and new is not None and old.shape == new.shape:
        gap = float((old - new).abs().max()) if old.numel() else 0.0
        scale = float(old.abs().max()) if old.numel() else 0.0
        return [] if gap <= TOLERANCE * scale else [f"{place}: off by {gap:.3g} of {scale:.3g}"]
    if isinstance(pinned, list) and isinstance(fresh, list) and len(pinned) == len(fresh):
        pairs = enumerate(zip(pinned, fresh, strict=True))
        return [line for k, (a, b) in pairs for line in _differences(a, b, f"{place}[{k}]")]
    return [] if pinned == fresh else [f"{place}: {pinned!r} was {fresh!r}"]


def _numbers(value: Any) -> torch.Tensor | None:
    try:
        return torch.tensor(value, dtype=torch.float64)
    except (TypeError, ValueError):
        return None


def _count(value: Any) -> int:
    if isinstance(value, dict | list):
        return sum(map(_count, value.values() if isinstance(value, dict) else value))
    return isinstance(value, int | float)


def _text(contents: dict[str, Any]) -> str:
    """JSON with one line per list of numbers."""
    return _block(contents, 0) + "\n"


def _block(value: Any, depth: int) -> str:
    pad = " " * (depth + 1)
    if isinstance(value, dict) and value:
        items = [f"{pad}{json.dumps(key)}: {_block(item, depth + 1)}" for key, item in value.items()]
        return "{\n" + ",\n".join(items) + "\n" + " " * depth + "}"
    if isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        return "[\n" + ",\n".join(pad + _block(item, depth + 1) for item in value) + "\n" + " " * depth + "]"
    return json.dumps(value)
