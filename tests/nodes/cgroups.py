# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Control groups: each node has one of its own, so that what a node runs can be found, and killed, without its help."""

from __future__ import annotations

import os
import signal
import time
import typing as t
from pathlib import Path

MOUNTED = Path("/sys/fs/cgroup")


def hierarchies() -> list[Path]:
    """The hierarchies that systemd in a node uses: the only one, or those of systemd's hybrid set-up."""
    if (MOUNTED / "cgroup.controllers").exists():
        return [MOUNTED]
    return [MOUNTED / name for name in ("systemd", "unified", "pids", "freezer") if (MOUNTED / name).is_dir()]


def join(name: str) -> None:
    """Moves this process into the group of a node, which is made."""
    for hierarchy in hierarchies():
        group = hierarchy / name
        group.mkdir(exist_ok=True)
        (group / "cgroup.procs").write_text(str(os.getpid()))


def names(prefix: str) -> set[str]:
    """The groups whose names begin like this."""
    return {group.name for hierarchy in hierarchies() for group in hierarchy.glob(f"{prefix}*") if group.is_dir()}


def processes(name: str) -> set[int]:
    """All that runs in a group and below it."""
    found: set[int] = set()
    for hierarchy in hierarchies():
        for listing in (hierarchy / name).glob("**/cgroup.procs"):
            try:
                found.update(map(int, listing.read_text().split()))
            except OSError:
                continue  # the group went away meanwhile
    return found


def end(name: str, timeout: float = 20.0) -> None:
    """Kills all that runs in a group and removes it."""
    deadline = time.monotonic() + timeout
    while alive := processes(name):
        for pid in alive:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        if time.monotonic() > deadline:
            raise TimeoutError(f"Processes of {name} survive a SIGKILL: {sorted(alive)}.")
        time.sleep(0.02)
    for hierarchy in hierarchies():
        while not removed(hierarchy / name):
            if time.monotonic() > deadline:
                raise TimeoutError(f"The control group {hierarchy / name} cannot be removed.")
            time.sleep(0.02)  # the kernel takes a moment to let go of a process that has ended


def removed(group: Path) -> bool:
    """Whether a group is gone, deepest first; it cannot go before its last process has."""
    for folder, _folders, _files in os.walk(group, topdown=False):
        try:
            os.rmdir(folder)
        except FileNotFoundError:
            continue
        except OSError:
            return False
    return True


__all__: t.Sequence[str] = ("end", "join", "names", "processes")
