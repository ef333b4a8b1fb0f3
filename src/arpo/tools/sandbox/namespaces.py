"""The file system of the namespace rung, and how a process enters namespaces of its own.

Once per loader: a private mount namespace whose root is a small tmpfs with read-only binds of what the interpreter
needs at the same places, and nothing else; the old root is detached. Once per run: new namespaces of every kind, in
whose copy of those mounts nothing can be taken away (the kernel locks what a namespace inherits from another owner),
with an own /proc, and one tmpfs of limited size behind the folders that can be written.

Started by root, the loader builds the root with root's rights, so that an interpreter below /root can be seen, and
gives them up before it goes on; started by a user, it does so in a user namespace.
"""

import os

from arpo.tools.sandbox import native
from arpo.tools.sandbox.view import DEVICES, View

_BUILD_AT = "/sys"
"""Covered while the root is built: a folder that every system has and no interpreter lives in."""
INSIDE_ID = 1000
PER_RUN = (
    native.CLONE_NEWUSER
    | native.CLONE_NEWNS
    | native.CLONE_NEWPID
    | native.CLONE_NEWNET
    | native.CLONE_NEWIPC
    | native.CLONE_NEWUTS
    | native.CLONE_NEWCGROUP
)
_PROC_OPTIONS = ("hidepid=2,subset=pid", "hidepid=2", "")
_KEPT = {os.ST_NODEV: native.MS_NODEV, os.ST_NOEXEC: native.MS_NOEXEC, os.ST_NOATIME: 1024, os.ST_NODIRATIME: 2048}
WORK = "/home/sandbox"
_SHARED_MEMORY = "/dev/shm"
_ALL_WRITABLE = "/.writable"


def enter_mounts() -> None:
    """Mounts of this process's own. Before packages are loaded: some start threads, and with those it is not allowed.

    Raises OSError.
    """
    if os.geteuid() == 0:
        native.unshare(native.CLONE_NEWNS)
    else:
        uid, gid = os.geteuid(), os.getegid()
        native.unshare(native.CLONE_NEWUSER | native.CLONE_NEWNS)
        map_ids(uid, gid, uid, gid)


def enter_private_root(view: View) -> str:
    """Give this process, which has mounts of its own, a file system with nothing but the view; the folder in it for
    temporary files. Raises OSError.
    """
    native.mount(None, "/", None, native.MS_REC | native.MS_PRIVATE)
    native.mount("tmpfs", _BUILD_AT, "tmpfs", native.MS_NOSUID | native.MS_NODEV, "size=1m,mode=755")
    _fill(view)
    temporary = _make_writable_places(view)
    os.mkdir(_BUILD_AT + "/.old")
    native.pivot_root(_BUILD_AT, _BUILD_AT + "/.old")
    os.chdir("/")
    native.unmount("/.old")
    os.rmdir("/.old")
    native.mount(None, "/", None, native.MS_REMOUNT | native.MS_BIND | native.MS_RDONLY | native.MS_NOSUID)
    return temporary


def map_ids(uid: int, gid: int, inside_uid: int = INSIDE_ID, inside_gid: int = INSIDE_ID) -> None:
    """In a new user namespace: this process's ids outside, and what they are called inside. Raises OSError."""
    native.prctl(native.PR_SET_DUMPABLE, 1)  # else the files below are root's
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{inside_uid} {uid} 1"),
        ("gid_map", f"{inside_gid} {gid} 1"),
    ):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)


def _fill(view: View) -> None:
    for folder in view.folders:
        os.makedirs(_BUILD_AT + folder, mode=0o755, exist_ok=True)
        _bind(folder, protect=True)
    for path in view.files:
        _bind_file(path, protect=True)
    for path in view.hidden:
        _hide(path)
    for path, target in view.links.items():
        os.makedirs(os.path.dirname(_BUILD_AT + path), mode=0o755, exist_ok=True)
        if not os.path.lexists(_BUILD_AT + path):
            os.symlink(target, _BUILD_AT + path)
    _fill_dev()
    os.mkdir(_BUILD_AT + "/proc", 0o755)
    _bind("/proc", protect=False)  # a run may only mount its own where one can be seen; its own covers it


def _make_writable_places(view: View) -> str:
    """/tmp is one of them unless the interpreter lives there."""
    taken = any(path.startswith("/tmp/") for path in [*view.folders, *view.files])
    temporary = "/var/tmp" if taken else "/tmp"
    for folder in (_ALL_WRITABLE, WORK, temporary, _SHARED_MEMORY):
        os.makedirs(_BUILD_AT + folder, mode=0o755, exist_ok=True)
    return temporary


def _fill_dev() -> None:
    os.mkdir(_BUILD_AT + "/dev", 0o755)
    for name in DEVICES:
        _bind_file(f"/dev/{name}", protect=False)
    for name, target in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        os.symlink(f"/proc/self/fd{target}", f"{_BUILD_AT}/dev/{name}")


def _bind(path: str, *, protect: bool) -> None:
    target = _BUILD_AT + path
    native.mount(path, target, None, native.MS_BIND | native.MS_REC)
    if protect:
        flags = os.statvfs(target).f_flag
        native.protect_mount(target, sum(mount for seen, mount in _KEPT.items() if flags & seen))


def _bind_file(path: str, *, protect: bool) -> None:
    os.makedirs(os.path.dirname(_BUILD_AT + path), mode=0o755, exist_ok=True)
    with open(_BUILD_AT + path, "ab"):
        pass
    _bind(path, protect=protect)


def _hide(path: str) -> None:
    if os.path.isdir(path):
        native.mount("tmpfs", _BUILD_AT + path, "tmpfs", native.MS_RDONLY | native.MS_NOSUID, "size=4k,mode=755")
    else:
        native.mount("/dev/null", _BUILD_AT + path, None, native.MS_BIND)


def mount_proc() -> None:
    """This run's own /proc, as bare as the kernel can make it. Raises OSError where the machine allows none, as in a
    container whose own is covered in places: without one nobody could see what the run's processes use.
    """
    flags = native.MS_RDONLY | native.MS_NOSUID | native.MS_NODEV | native.MS_NOEXEC
    for options in _PROC_OPTIONS:
        try:
            native.mount("proc", "/proc", "proc", flags, options)
        except OSError:
            if options == _PROC_OPTIONS[-1]:
                raise
        else:
            return


def mount_writable(megabytes: int, temporary: str) -> None:
    """The working folder, that for temporary files and shared memory: one tmpfs of that many MiB together, from which
    nothing is executed. Raises OSError.
    """
    flags = native.MS_NOSUID | native.MS_NODEV | native.MS_NOEXEC
    files = 1024 + 64 * megabytes
    native.mount("tmpfs", _ALL_WRITABLE, "tmpfs", flags, f"size={megabytes}m,nr_inodes={files},mode=700")
    for number, target in enumerate((WORK, temporary, _SHARED_MEMORY)):
        os.mkdir(f"{_ALL_WRITABLE}/{number}", 0o700)
        native.mount(f"{_ALL_WRITABLE}/{number}", target, None, native.MS_BIND)
    native.unmount(_ALL_WRITABLE)
