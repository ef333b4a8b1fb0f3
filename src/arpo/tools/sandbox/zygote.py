"""The loader: a process that has the packages loaded and makes a copy of itself for every run.

It is started by exec, never by a fork of the trainer (whose threads would hold locks for ever in the copy), with an
environment of a few fixed words and no descriptor but its control socket. It never runs a policy's code. Before it
serves, it shuts itself in: its rights go first, then its view of the files. It ends, and with it everything that it
started, when its control socket closes or the process that started it is gone.
"""

import ctypes
import gc
import importlib
import os
import selectors
import signal
import socket
import sys
import traceback
from dataclasses import dataclass
from typing import Any

from arpo.tools.sandbox import child, confined, messages, native, view, warm

_IDLE = 0.004
"""Seconds without anything to do before a spare is made."""


class SetupError(Exception):
    """The loader cannot do its work, and why, in words for the user."""


class RungBlockedError(SetupError):
    """The machine forbids it."""


@dataclass(eq=False, slots=True)
class Box:
    """A run's processes, waiting for a request (`run` None) or at work. The sockets lead to its two processes."""

    pid: int
    first: socket.socket
    code: socket.socket
    run: int | None = None
    report: dict[str, Any] | None = None


class Loader:
    """Serves requests until its control socket closes."""

    def __init__(self, control: socket.socket, config: dict[str, Any], rung: "confined.Rung") -> None:
        self.control = control
        self.rung = rung
        self.spares_wanted = int(config["spares"])
        self.spares: list[Box] = []
        self.busy: dict[int, Box] = {}
        self.boxes: dict[int, Box] = {}
        self.fault = ""
        self.selector = selectors.DefaultSelector()
        self.alarm, alarm_in = socket.socketpair()
        for end in (self.alarm, alarm_in):
            end.setblocking(False)
        self.alarm_in = alarm_in
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(alarm_in.fileno(), warn_on_full_buffer=False)
        self.selector.register(control, selectors.EVENT_READ)
        self.selector.register(self.alarm, selectors.EVENT_READ)

    def serve(self, parent: int | None) -> None:
        """Until the end. `parent`: a descriptor that becomes readable when the trainer is gone."""
        if parent is not None:
            self.selector.register(parent, selectors.EVENT_READ)
        while True:
            lacking = len(self.spares) < self.spares_wanted and not self.fault
            ready = self.selector.select(_IDLE if lacking else None)
            for key, _ in ready:
                if key.fileobj == parent or (key.fileobj is self.control and not self._obey()):
                    return
                if key.data is not None:
                    self._hear(key.data)
            self._bury()
            if lacking and not ready:
                self.spares.append(self._make())

    def _obey(self) -> bool:
        """One order of the trainer's. False at the end."""
        received = messages.receive(self.control)
        if received is None:
            return False
        order, descriptors = received
        if "kill" in order:
            box = self.busy.get(order["kill"])
            if box is not None:
                self._kill(box)
        else:
            self._start(order, descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
        return True

    def _start(self, order: dict[str, Any], descriptors: list[int]) -> None:
        box = self.spares.pop(0) if self.spares else self._make()
        box.run = order["run"]
        self.busy[order["run"]] = box
        try:
            messages.send(box.first, order)
            messages.send(box.code, order, descriptors)
        except OSError:
            self._kill(box)  # it is dead or dying: its end is reported like any other
        messages.send(self.control, {"started": order["run"]})

    def _make(self) -> Box:
        first, first_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        code, code_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = self.rung.fork()
        if pid == 0:
            self._become_first(first_end, code_end)
        first_end.close()
        code_end.close()
        box = Box(pid, first, code)
        self.boxes[pid] = box
        self.selector.register(first, selectors.EVENT_READ, box)
        return box

    def _become_first(self, first: socket.socket, code: socket.socket) -> None:
        """Never returns. A failure to set up is told to the loader."""
        try:
            child.fresh_signals()
            child.only_descriptors(0, 1, 2, first.fileno(), code.fileno(), *self.rung.descriptors())
            self.rung.live(first, code)
            os._exit(0)
        except BaseException as error:  # noqa: BLE001  (whatever it is, the loader has to know)
            messages.send(first, {"failed": f"{type(error).__name__}: {error}"})
        finally:
            os._exit(111)

    def _hear(self, box: Box) -> None:
        """What a box says of itself: that it cannot work, or how its run went."""
        try:
            received = messages.receive(box.first)
        except OSError:
            received = None
        if received is None:
            self.selector.unregister(box.first)
            return
        box.report = received[0]
        if "failed" in received[0]:
            self.fault = received[0]["failed"]

    def _bury(self) -> None:
        """Reap boxes that have ended; tell the trainer of those that had a run."""
        try:
            self.alarm.recv(4096)
        except BlockingIOError:
            return
        while True:
            try:
                pid, status, used = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            box = self.boxes.pop(pid, None)
            if box is not None:
                self._gone(box, status, used.ru_utime + used.ru_stime)

    def _gone(self, box: Box, status: int, cpu_s: float) -> None:
        if box.first in self.selector.get_map():
            self._hear(box)
        if box.first in self.selector.get_map():
            self.selector.unregister(box.first)
        box.first.close()
        box.code.close()
        self.rung.clear(box.pid)
        if box.run is None:
            if box in self.spares:
                self.spares.remove(box)
            return
        del self.busy[box.run]
        told = {"gone": box.run, "exit": status, "cpu_s": cpu_s, "report": box.report}
        messages.send(self.control, told)

    def _kill(self, box: Box) -> None:
        os.kill(box.pid, self.rung.end_signal)

    def end(self) -> None:
        """End every box and wait until it is gone."""
        for box in self.boxes.values():
            self._kill(box)
        while self.boxes:
            try:
                pid, _ = os.waitpid(-1, 0)
            except ChildProcessError:
                break
            if self.boxes.pop(pid, None) is not None:
                self.rung.clear(pid)
        self.rung.close()


def load(packages: list[str], paths: list[str]) -> dict[str, str]:
    """Import the packages; name -> version. Raises SetupError."""
    sys.path += [path for path in paths if path not in sys.path]
    versions = {}
    for name in packages:
        try:
            module = importlib.import_module(name)
        except Exception as error:
            raise SetupError(
                f"package {name!r} cannot be loaded ({type(error).__name__}: {error}); "
                f"install it with: pip install {name}, or take it out of the tool's setting `preload`"
            ) from error
        versions[name] = str(getattr(module, "__version__", ""))
    return versions


def settle() -> None:
    """What is loaded now stays: out of the collector's way, and in huge pages, which are cheap to copy."""
    gc.collect()
    gc.disable()
    gc.freeze()
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        areas = [line.split() for line in maps]
    for area in areas:
        if area[1].startswith("rw") and (len(area) < 6 or area[5] == "[heap]"):
            start, end = (int(text, 16) for text in area[0].split("-"))
            native.collapse(start, end)


def _watch_parent() -> int | None:
    """A descriptor that becomes readable when the parent ends."""
    try:
        descriptor = os.pidfd_open(os.getppid())
    except OSError:
        return None
    return descriptor


def _prepare(control: socket.socket) -> Loader:
    received = messages.receive(control)
    if received is None:
        raise SetupError("the control socket closed")
    config, _ = received
    try:
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write("1000")
    except OSError:
        pass  # a hardened /proc: the kernel then has no hint whom to end first
    try:
        rung = confined.RUNGS[config["rung"]]()
        versions = load(config["preload"], config["paths"])
        warm.up(config["preload"])
        rung.shut_in(view.needed(tuple(config["preload"])), config)
    except OSError as error:
        raise RungBlockedError(f"{error.strerror or error}") from error
    sys.path[:] = [path for path in sys.path if os.path.exists(path)]
    sys.path_importer_cache.clear()
    settle()
    native.prctl(native.PR_SET_DUMPABLE, 0)
    loader = Loader(control, config, rung)
    messages.send(control, {"ready": True, "packages": versions, "facts": rung.facts})
    return loader


def main(descriptor: int) -> None:
    """The life of a loader. Never returns."""
    os.umask(0o022)  # whatever the trainer's are: modes of what is made here, and signals, are as usual
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    control = socket.socket(fileno=descriptor)
    parent = _watch_parent()
    code = 1
    try:
        loader = _prepare(control)
        try:
            loader.serve(parent)
            code = 0
        finally:
            loader.end()
    except SetupError as error:
        messages.send(control, {"failed": str(error), "blocked": isinstance(error, RungBlockedError)})
    except BaseException:  # noqa: BLE001  (whatever it is, the trainer has to know)
        messages.send(control, {"failed": traceback.format_exc(limit=-3)[-2000:]})
    finally:
        ctypes.CDLL(None).fflush(None)
        os._exit(code)
