"""Small uses of each package in the loader, so that what it loads or builds at first use is there for every run."""

import importlib
from collections.abc import Callable, Iterable
from typing import Any


def up(packages: Iterable[str]) -> None:
    """Only what is loaded anyway; a package that changed its ways is left cold."""
    for name in packages:
        use = _USES.get(name)
        if use is not None:
            try:
                use(importlib.import_module(name))
            except Exception:  # noqa: BLE001  (cold is no fault)
                continue


def _numpy(numpy: Any) -> None:
    numpy.linalg.inv(numpy.eye(3) + 1.0)
    repr(numpy.arange(6.0).reshape(2, 3))


def _sympy(sympy: Any) -> None:
    x = sympy.Symbol("x")
    str(sympy.solve(x**2 - 3 * x + 2, x))
    str(sympy.integrate(sympy.sin(x) * x, x))
    str(sympy.simplify(sympy.sin(x) ** 2 + sympy.cos(x) ** 2))


def _pandas(pandas: Any) -> None:
    frame = pandas.DataFrame({"a": [1, 2], "b": ["c", "d"]})
    repr(frame.groupby("b").sum())


def _scipy(scipy: Any) -> None:
    for name in ("special", "linalg", "optimize", "integrate"):
        importlib.import_module(f"{scipy.__name__}.{name}")


_USES: dict[str, Callable[[Any], None]] = {"numpy": _numpy, "sympy": _sympy, "pandas": _pandas, "scipy": _scipy}
