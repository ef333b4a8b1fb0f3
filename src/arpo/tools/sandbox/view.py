"""What code in a sandbox may read: the interpreter, its packages and the shared libraries they load; nothing else.

Found out in the loader process after it has imported the packages, so that libraries in unusual places (conda, nix,
wheels with libraries of their own) are seen where they are. Packages of ours are hidden: their data holds answers.
"""

import os
import sys
import sysconfig
from dataclasses import dataclass, field

_FILES = ("/etc/ld.so.cache",)
_DATA = ("/usr/share/zoneinfo",)
_OURS = ("arpo", "__editable__")
DEVICES = ("null", "zero", "full", "random", "urandom")


@dataclass(frozen=True, slots=True)
class View:
    """`folders`, `files`: to be seen at the same place; `links`: path -> target; `hidden`: paths within the folders."""

    folders: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    links: dict[str, str] = field(default_factory=dict)
    hidden: list[str] = field(default_factory=list)


def needed(packages: tuple[str, ...]) -> View:
    """Of this process, in which the packages are loaded."""
    links: dict[str, str] = {}
    wanted = [*_libraries(), *_python_folders(packages), *_DATA]
    folders = _outermost([_resolved(path, links) for path in wanted if os.path.isdir(path)])
    files = [_resolved(path, links) for path in (*_FILES, *_python_files()) if os.path.isfile(path)]
    files = sorted({path for path in files if not _inside(path, folders)})
    hidden = [entry.path for folder in folders for entry in _packages_of(folder) if entry.name.startswith(_OURS)]
    return View(folders, files, {path: link for path, link in links.items() if not _inside(path, folders)}, hidden)


def _libraries() -> list[str]:
    """Where shared libraries are: the folders of the C library, and of what is loaded now."""
    triplet = sysconfig.get_config_var("MULTIARCH") or "none"
    folders = [f"/usr/lib/{triplet}", f"/lib/{triplet}"]
    if not any(os.path.isdir(folder) for folder in folders):
        folders = ["/usr/lib", "/lib"]
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        loaded = {line.split(None, 5)[5].rstrip("\n") for line in maps if "/" in line}
    return [*folders, "/usr/lib64", "/lib64", *sorted({os.path.dirname(path) for path in loaded if ".so" in path})]


def _python_folders(packages: tuple[str, ...]) -> list[str]:
    """The standard library, and what of the search path holds packages."""
    folders = [sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")]
    for path in sys.path:
        known = os.path.basename(path) in ("site-packages", "dist-packages", "lib-dynload")
        if known or any(os.path.isdir(os.path.join(path, name)) for name in packages):
            folders.append(path)
    return folders


def _python_files() -> list[str]:
    config = os.path.join(sys.prefix, "pyvenv.cfg")
    archives = [path for path in sys.path if path.endswith(".zip")]
    return [sys.executable, os.path.realpath(sys.executable), config, *archives]


def _resolved(path: str, links: dict[str, str]) -> str:
    """The path without symbolic links, each of which is noted so that the path as given works too."""
    path = os.path.abspath(path)
    for _ in range(40):
        prefix = next((part for part in _prefixes(path) if os.path.islink(part)), None)
        if prefix is None:
            return path
        target = os.readlink(prefix)
        links[prefix] = target
        rest = path[len(prefix) :].lstrip("/")
        path = os.path.normpath(os.path.join(os.path.dirname(prefix), target, rest))
    raise OSError(f"too many symbolic links in {path}")


def _prefixes(path: str) -> list[str]:
    parts = path.strip("/").split("/")
    return ["/" + "/".join(parts[: count + 1]) for count in range(len(parts))]


def _outermost(folders: list[str]) -> list[str]:
    kept: list[str] = []
    for folder in sorted(set(folders)):
        if not _inside(folder, kept) and folder != "/":
            kept.append(folder)
    return kept


def _inside(path: str, folders: list[str]) -> bool:
    return any(path == folder or path.startswith(folder + "/") for folder in folders)


def _packages_of(folder: str) -> list["os.DirEntry[str]"]:
    """Entries of the folder, and of the folders for packages below it."""
    entries = list(os.scandir(folder))
    for name in ("site-packages", "dist-packages"):
        if os.path.isdir(os.path.join(folder, name)):
            entries += os.scandir(os.path.join(folder, name))
    return entries
