"""Which sandbox is chosen, and what is said where a rung does not work."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from arpo.config import doctor
from arpo.errors import ToolSetupError
from arpo.tools.sandbox import ladder, launcher, remedies
from arpo.tools.sandbox.loader import RungError

_REFUSES = """
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
code = [(0x20, 0, 0, 0)]
for number in map(int, sys.argv[1].split(",")):
    code += [(0x15, 0, 1, number), (0x06, 0, 0, 0x00050001)]
code.append((0x06, 0, 0, 0x7FFF0000))
program = b"".join(struct.pack("=HBBI", *one) for one in code)
buffer = ctypes.create_string_buffer(program, len(program))
header = ctypes.create_string_buffer(struct.pack("=HxxxxxxQ", len(code), ctypes.addressof(buffer)), 16)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, header, 0, 0) == 0
from arpo.errors import ToolSetupError
from arpo.tools.sandbox import ladder
try:
    box = ladder.choose(sys.argv[2], ())
except ToolSetupError as error:
    print(error)
else:
    print(box.name, box.refused)
    box.end()
"""
"""As in a container: the calls are refused by a filter of the process that starts the sandbox."""
_UNSHARE, _CLONE, _LANDLOCK = 272, 56, 444


def where(refused: str, backend: str = "auto") -> str:
    run = subprocess.run(
        [sys.executable, "-c", _REFUSES, refused, backend], capture_output=True, text=True, timeout=100
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


x86 = pytest.mark.skipif(os.uname().machine != "x86_64", reason="these are numbers of x86_64")


@x86
def test_without_namespaces_the_second_rung_is_taken():
    text = where(f"{_UNSHARE}")
    if "landlock" not in text.split()[0]:
        pytest.skip(f"this machine has no landlock rung: {text}")
    assert "namespace: unshare: Operation not permitted; to allow it: " in text


@x86
def test_where_nothing_works_the_remedies_are_named():
    text = where(f"{_UNSHARE},{_LANDLOCK}")
    assert text.startswith("tool 'python': no sandbox works here. namespace: unshare: Operation not permitted")
    assert "landlock: the kernel's Landlock is missing or off; to allow it: " in text
    assert "backend" in text


@x86
def test_a_rung_that_was_asked_for_is_not_replaced():
    text = where(f"{_UNSHARE}", "namespace")
    assert "no sandbox works here" in text
    assert "landlock" not in text


@pytest.mark.parametrize(
    ("name", "value", "command"),
    [
        ("kernel/unprivileged_userns_clone", "0", "sudo sysctl -w kernel.unprivileged_userns_clone=1"),
        ("user/max_user_namespaces", "0", "sudo sysctl -w user.max_user_namespaces=15000"),
        ("kernel/apparmor_restrict_unprivileged_userns", "1", "apparmor_restrict_unprivileged_userns=0"),
    ],
)
def test_switches_of_the_kernel(tmp_path, monkeypatch, name, value, command):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    switch = tmp_path / "sys" / name
    switch.parent.mkdir(parents=True)
    switch.write_text(value + "\n")
    (found,) = remedies.for_namespaces(tmp_path, tmp_path)
    assert command in found
    (tmp_path / ".dockerenv").touch()
    assert "--security-opt seccomp=unconfined" in remedies.for_namespaces(tmp_path, tmp_path)[-1]


def test_landlock_that_is_not_switched_on(tmp_path):
    modules = tmp_path / "sys/kernel/security/lsm"
    modules.parent.mkdir(parents=True)
    modules.write_text("lockdown,yama")
    assert "lsm=landlock,lockdown,yama" in remedies.for_landlock(tmp_path)[0]
    modules.write_text("landlock,yama")
    assert "5.13" in remedies.for_landlock(tmp_path)[0]


def test_a_sandbox_that_gives_wrong_answers_is_refused(monkeypatch):
    monkeypatch.setattr(launcher.LocalSandbox, "probe", lambda self: "a trivial run gave error")
    with pytest.raises(RungError, match="a trivial run gave error"):
        ladder._tried("namespace", (), 1)


def test_other_systems_are_told_what_to_do(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(ToolSetupError, match=r"needs Linux .*monty"):
        ladder.choose()


def test_the_doctor_says_which_rung_works():
    found = {finding.name: finding for finding in doctor._sandbox()}["sandbox"]
    try:
        box = ladder.choose(preload=())
    except ToolSetupError:
        assert found.status == "problem"
        assert "no sandbox works here" in found.fix
        return
    box.end()
    assert found.status == "ok"
    assert found.detail.startswith(f"{box.name}: files, network")


def test_the_doctor_says_what_forbids_it(monkeypatch):
    def refuse(**options):
        raise ToolSetupError("sudo sysctl -w user.max_user_namespaces=15000")

    monkeypatch.setattr(ladder, "choose", refuse)
    (finding,) = doctor._sandbox()
    assert (finding.status, finding.required) == ("problem", True)
    assert "sysctl" in finding.fix


def test_the_doctor_names_missing_packages(monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "scipy" else found(name))
    findings = list(doctor._sandbox())
    assert findings[-1].fix == "pip install scipy" or findings[0].status == "problem"


def _readable_python() -> str | None:
    """An interpreter that any user can run, of a version that the library supports."""
    for name in ("python3", "python3.13", "python3.12", "python3.11"):
        path = shutil.which(name, path="/usr/bin:/usr/local/bin")
        if path:
            asked = [path, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]
            if subprocess.run(asked, capture_output=True).returncode == 0:
                return path
    return None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("rung", ["namespace", "landlock"])
def test_as_an_ordinary_user(rung, tmp_path):
    python, source = _readable_python(), Path(ladder.__file__).parents[3]
    if python is None or not shutil.which("setpriv"):
        pytest.skip("no interpreter that all users can read, or no setpriv")
    for folder in (source, *source.parents):
        if not folder.stat().st_mode & 0o005:
            pytest.skip(f"{folder} cannot be read by other users")
    code = f"""
import asyncio, os
from arpo.errors import ToolSetupError
from arpo.tools.sandbox import ladder
from arpo.tools.sandbox.base import ExecRequest
try:
    box = ladder.choose({rung!r}, ())
except ToolSetupError as error:
    print("refused:", error)
else:
    first = asyncio.run(box.run(ExecRequest(code="import os\\nos.getuid()")))
    second = asyncio.run(box.run(ExecRequest(code="open('/etc/passwd')")))
    print(os.getuid(), first.status, first.value, second.status, second.error)
    box.end()
"""
    user = ["setpriv", "--reuid=65533", "--regid=65533", "--clear-groups", "env", "-i", f"PYTHONPATH={source}"]
    run = subprocess.run(
        [*user, "PYTHONDONTWRITEBYTECODE=1", python, "-c", code], capture_output=True, text=True, timeout=100, cwd="/"
    )
    if run.stdout.startswith("refused:"):
        pytest.skip(run.stdout)
    inside = "1000" if rung == "namespace" else "65533"
    assert run.stdout.startswith(f"65533 ok {inside} error "), run.stderr
    assert "Error: [Errno" in run.stdout
