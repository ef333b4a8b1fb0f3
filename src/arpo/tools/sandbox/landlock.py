"""The file rules of the Landlock rung: read what the interpreter needs, write a folder of one's own, nothing else.

Landlock takes rights away by path and for good, needs no privilege and no namespaces. What it hides is contents: that
a file exists can still be found out. Each newer version of it can deny more: TCP from 4 (the filter of system calls
denies all sockets anyway), signals and abstract sockets of others from 6.
"""

import ctypes
import os
import struct

from arpo.tools.sandbox import native
from arpo.tools.sandbox.view import DEVICES, View

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_MAKE_CHAR, _MAKE_BLOCK = 1 << 6, 1 << 11
_TRUNCATE, _IOCTL_DEV = 1 << 14, 1 << 15
_FILE_RIGHTS = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_HANDLED = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1}
_ALL = (1 << 16) - 1
"""From version 5 on."""
_TCP = 3
_SCOPES = 3
SCOPES_FROM = 6
_VERSION_QUESTION = 1
_PATH_BENEATH = 1


def version() -> int:
    """Of the kernel's Landlock; 0 if it has none or it is off."""
    try:
        return native.call("landlock_create_ruleset", None, ctypes.c_size_t(0), _VERSION_QUESTION)
    except (OSError, KeyError):
        return 0


def confine(view: View, own: str, abi: int) -> None:
    """Take all rights but those from this process and its descendants. `own`: its folder. Raises OSError."""
    handled = _HANDLED.get(abi, _ALL)
    words = [handled, *([_TCP] if abi >= 4 else []), *([_SCOPES] if abi >= SCOPES_FROM else [])]
    attributes = struct.pack(f"={len(words)}Q", *words)
    rules = native.call("landlock_create_ruleset", attributes, ctypes.c_size_t(len(attributes)), 0)
    reading = _EXECUTE | _READ_FILE | _READ_DIR
    for folder in view.folders:
        _grant_but(rules, folder, view.hidden, reading)
    for path in view.files:
        _grant(rules, path, _EXECUTE | _READ_FILE)
    for name in DEVICES:
        _grant(rules, f"/dev/{name}", (_READ_FILE | _WRITE_FILE) & handled)
    _grant(rules, own, handled & ~(_EXECUTE | _MAKE_CHAR | _MAKE_BLOCK | _IOCTL_DEV))
    native.prctl(native.PR_SET_NO_NEW_PRIVS, 1)
    native.call("landlock_restrict_self", rules, 0)
    os.close(rules)


def _grant_but(rules: int, folder: str, hidden: list[str], rights: int) -> None:
    """On a folder without the hidden paths in it: rights on a folder hold for all below, so it is taken apart."""
    within = [path for path in hidden if path.startswith(folder + "/")]
    if not within:
        _grant(rules, folder, rights)
        return
    _grant(rules, folder, _READ_DIR)
    for entry in os.scandir(folder):
        if entry.path in within:
            continue
        if entry.is_dir(follow_symlinks=False):
            _grant_but(rules, entry.path, within, rights)
        elif entry.is_file(follow_symlinks=False):
            _grant(rules, entry.path, rights & _FILE_RIGHTS)


def _grant(rules: int, path: str, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        rule = struct.pack("=Qi", rights, descriptor)
        native.call("landlock_add_rule", rules, _PATH_BENEATH, rule, 0)
    finally:
        os.close(descriptor)
