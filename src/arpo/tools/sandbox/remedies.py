"""Why a rung does not work on this machine, as far as its settings tell, and the command that changes it."""

import os
from collections.abc import Iterator
from pathlib import Path

_SWITCHES = (
    ("kernel/unprivileged_userns_clone", "0", "sudo sysctl -w kernel.unprivileged_userns_clone=1"),
    ("user/max_user_namespaces", "0", "sudo sysctl -w user.max_user_namespaces=15000"),
    (
        "kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
    ),
)
_IN_CONTAINER = (
    "in Docker: docker run --security-opt seccomp=unconfined --security-opt apparmor=unconfined "
    "--security-opt systempaths=unconfined; in Kubernetes: securityContext.seccompProfile.type: Unconfined"
)


def for_namespaces(proc: Path = Path("/proc"), root: Path = Path("/")) -> list[str]:
    """What forbids user namespaces here, each with the command that allows them; a guess where nothing says so."""
    found = [
        f"/proc/sys/{name} is {value}: {command}"
        for name, value, command in _SWITCHES
        if _read(proc / "sys" / name) == value
    ]
    if in_container(root):
        found.append(_IN_CONTAINER)
    return found or ["the kernel has no user namespaces, or a security module forbids them (see: dmesg | tail)"]


def for_landlock(root: Path = Path("/")) -> list[str]:
    """How to get Landlock."""
    modules = _read(root / "sys/kernel/security/lsm")
    if modules and "landlock" not in modules.split(","):
        return [
            f"boot with the kernel parameter lsm=landlock,{modules} (in GRUB_CMDLINE_LINUX, then: sudo update-grub)"
        ]
    found = ["Landlock needs Linux 5.13 or newer, built with CONFIG_SECURITY_LANDLOCK"]
    return [*found, _IN_CONTAINER] if in_container(root) else found


def in_container(root: Path = Path("/")) -> bool:
    """Whether this looks like the inside of a container."""
    marks = (root / ".dockerenv", root / "run/.containerenv")
    return any(mark.exists() for mark in marks) or "KUBERNETES_SERVICE_HOST" in os.environ


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def lines(rung: str) -> Iterator[str]:
    """Of a rung by name."""
    yield from for_namespaces() if rung == "namespace" else for_landlock()
