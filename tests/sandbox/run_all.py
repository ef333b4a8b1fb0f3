"""The whole battery: as whoever starts this, and, if that is root, as an ordinary user as well.

    python tests/sandbox/run_all.py [arguments for pytest]

Prints one table of all attempts, rungs and users; ends with 1 if anything was not contained.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
sys.path.insert(0, str(REPOSITORY / "tests" / "support"))

NOBODY = 65534


def main(arguments: list[str]) -> int:
    with tempfile.TemporaryDirectory(prefix="arpo-table-", dir="/var/tmp") as folder:
        os.chmod(folder, 0o777)
        path = Path(folder) / "rows.jsonl"
        path.touch()
        path.chmod(0o666)
        codes = [_run(path, arguments, user) for user in ([None, NOBODY] if os.geteuid() == 0 else [None])]
        rows = [json.loads(line) for line in path.read_text().splitlines()]
    from battery_table import table

    print(table(rows))
    held = bool(rows) and not any(row["holes"] for row in rows)
    return 0 if held and not any(codes) else 1


def _run(path: Path, arguments: list[str], user: int | None) -> int:
    environment = os.environ | {"ARPO_SANDBOX_TESTS": "1", "ARPO_SANDBOX_TABLE": str(path), "OMP_NUM_THREADS": "1"}
    if user is not None:
        environment |= {"HOME": str(path.parent), "PYTHONDONTWRITEBYTECODE": "1", "USER": "nobody", "LOGNAME": "nobody"}
    command = [sys.executable, "-m", "pytest", str(HERE), "-p", "no:cacheprovider", *arguments]
    print(f"--- as user {os.geteuid() if user is None else user}", flush=True)
    prepare = None if user is None else lambda: _become(user)
    return subprocess.run(command, env=environment, cwd=REPOSITORY, preexec_fn=prepare).returncode


def _become(user: int) -> None:
    """An ordinary user, who may read the interpreter even if it lies where only root may look.

    In mounts of this process alone: a folder that is closed to others is covered by one that holds nothing but the
    way to what this process runs from.
    """
    from arpo.tools.sandbox import native

    native.unshare(native.CLONE_NEWNS)
    native.mount(None, "/", None, native.MS_REC | native.MS_PRIVATE)
    for needed in {Path(sys.base_prefix), Path(sys.prefix), REPOSITORY}:
        _open_way(needed.resolve())
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def _open_way(needed: Path) -> None:
    from arpo.tools.sandbox import native

    for closed in [*reversed(needed.parents), needed]:
        if not closed.stat().st_mode & 0o001:
            aside = tempfile.mkdtemp(prefix="arpo-way-", dir="/var/tmp")
            inside = needed.relative_to(closed)
            native.mount("tmpfs", aside, "tmpfs", native.MS_NOSUID, "mode=755,size=1m")
            os.makedirs(os.path.join(aside, inside), exist_ok=True)
            native.mount(str(needed), os.path.join(aside, inside), None, native.MS_BIND | native.MS_REC)
            native.mount(aside, str(closed), None, native.MS_BIND | native.MS_REC)
            native.unmount(aside)
            os.rmdir(aside)
            return


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
