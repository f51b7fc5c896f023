# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Where a process of the product is disturbed: before and after each write to the driver and each state file operation.

Everything is patched in a forked process, before the product forks its worker; nothing of it is in the product. Here
is also seen what must hold at such a point: that the journal is there and on the disk before the driver is touched,
and that the node is locked.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import signal
import struct
import typing as t

WRITES = (
    "nvmlDeviceSetMigMode",
    "nvmlDeviceCreateGpuInstance",
    "nvmlDeviceCreateGpuInstanceWithPlacement",
    "nvmlGpuInstanceDestroy",
    "nvmlGpuInstanceCreateComputeInstance",
    "nvmlGpuInstanceCreateComputeInstanceWithPlacement",
    "nvmlComputeInstanceDestroy",
)
FILE_OPERATIONS = ("replace", "rename", "link", "unlink", "fsync")
COUNTERS = ("write", "file")

# What is done by the simulator itself, which knows its calls better.
BY_SIMULATOR = ("error", "hang")


class Traps:
    """The patches of one process and of all that it forks.

    ``state`` and ``run`` are the product's folders; ``notes`` is a folder for what is seen. ``ask`` and ``answer`` are
    pipes to the stage, which does what cannot be done from inside.
    """

    def __init__(self, state: str, run: str, notes: str, disturb: t.Sequence[dict[str, t.Any]], ask: int, answer: int):
        self.state, self.run, self.notes = state, run, notes
        self.disturb = disturb
        self.ask, self.answer = ask, answer
        self.parent = os.getpid()
        self.counters = mmap.mmap(-1, 8 * len(COUNTERS))
        self.synced: set[tuple[int, int]] = set()
        self.dirty: set[str] = set()
        self.os = {name: getattr(os, name) for name in FILE_OPERATIONS}

    def set(self, binding: t.Any) -> None:
        """Patch this process."""
        for name in WRITES:
            setattr(binding, name, self.around_write(name, getattr(binding, name)))
        for name in FILE_OPERATIONS:
            setattr(os, name, self.around_file(name, self.os[name]))

    # --- what is seen ----------------------------------------------------------------------------------------------

    def note(self, kind: str, text: str) -> None:
        """A line for the judge. One write, so that lines of several processes do not mix."""
        descriptor = os.open(os.path.join(self.notes, kind), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(descriptor, f"{text}\n".encode())
        os.close(descriptor)

    def seen(self, counter: str) -> int:
        """How many of them there were so far, in all processes."""
        return int(struct.unpack_from("q", self.counters, 8 * COUNTERS.index(counter))[0])

    def count(self, counter: str) -> int:
        number = self.seen(counter) + 1
        struct.pack_into("q", self.counters, 8 * COUNTERS.index(counter), number)
        return number

    def look_around(self, function: str) -> None:
        """What must hold when the driver is written to."""
        if not os.path.exists(os.path.join(self.state, "journal.json")):
            self.note("wrong", f"{function} without a journal")
        if self.state in self.dirty:
            self.note("wrong", f"{function} while the folder of the journal is not on the disk")
        if not is_locked(os.path.join(self.run, "lock")):
            self.note("wrong", f"{function} without the lock of the node")

    # --- around what the product does ------------------------------------------------------------------------------

    def around_write(self, name: str, original: t.Callable[..., t.Any]) -> t.Callable[..., t.Any]:
        def call(*arguments: t.Any) -> t.Any:
            number = self.count("write")
            self.look_around(name)
            self.meet("write", number, "before")
            try:
                return original(*arguments)
            finally:
                self.meet("write", number, "after")

        return call

    def around_file(self, name: str, original: t.Callable[..., t.Any]) -> t.Callable[..., t.Any]:
        def call(*arguments: t.Any, **options: t.Any) -> t.Any:
            path = os.readlink(f"/proc/self/fd/{arguments[0]}") if name == "fsync" else os.fspath(arguments[-1])
            if not path.startswith((self.state, self.run)):
                return original(*arguments, **options)
            number = self.count("file")
            self.meet("file", number, "before")
            self.watch_durability(name, arguments, path, original)
            result = original(*arguments, **options)
            if name in ("replace", "rename") and path == os.path.join(self.state, "journal.json"):
                self.keep_journal(path)
            self.meet("file", number, "after")
            return result

        return call

    def watch_durability(self, name: str, arguments: t.Sequence[t.Any], path: str, original: t.Any) -> None:
        """A file must be on the disk before it gets its name, and the journal's name before anything is written."""
        if name == "fsync":
            self.synced.add(identity(os.fstat(arguments[0])))
            self.dirty.discard(path)
            return
        if name == "link":
            self.synced.add(identity(os.stat(arguments[0])))  # it had a name already
            return
        if name in ("replace", "rename"):
            if identity(os.stat(arguments[0])) not in self.synced:
                self.note("wrong", f"{path} gets its name before its content is on the disk")
            if path == os.path.join(self.state, "journal.json"):
                self.dirty.add(os.path.dirname(path))
        if name == "unlink" and os.path.lexists(path):
            self.synced.discard(identity(os.lstat(path)))

    def keep_journal(self, path: str) -> None:
        with open(path, encoding="utf-8") as file:
            self.note("journals", file.read().replace("\n", " "))

    # --- what goes wrong -------------------------------------------------------------------------------------------

    def meet(self, point: str, number: int, when: str) -> None:
        for index, each in enumerate(self.disturb):
            due = (each.get("on"), each.get("nth"), each.get("when")) == (point, number, when)
            if due and each["what"] not in BY_SIMULATOR and "store" not in each:
                self.note("fired", str(index))
                self.act(index, each)

    def act(self, index: int, each: dict[str, t.Any]) -> None:
        what = each["what"]
        if what == "kill":
            if each["who"] in ("parent", "both"):
                os.kill(self.parent, signal.SIGKILL)
            if each["who"] in ("worker", "both"):
                os.kill(os.getpid(), signal.SIGKILL)
        elif what == "term":
            os.kill(self.parent if each["who"] == "parent" else os.getpid(), signal.SIGTERM)
        elif what == "full":
            self.dirty.clear()  # whoever was told that it failed has nothing to rely on
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        else:
            os.write(self.ask, bytes([index]))
            os.read(self.answer, 1)


def identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def is_locked(path: str) -> bool:
    """Whether somebody has the lock: also this process, through another descriptor."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
