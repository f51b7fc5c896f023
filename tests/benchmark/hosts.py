# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Simulated hosts that are partitioned as operators do it: by the whole module mig_config, only without Ansible."""

from __future__ import annotations

import collections
import contextlib
import fcntl
import functools
import io
import json
import os
import pathlib
import shutil
import sys
import time
import typing as t

from ansible.module_utils.testing import patch_module_args

from ansible_collections.gpufleet.mig.plugins.module_utils.engine import configs, driver, reading
from ansible_collections.gpufleet.mig.plugins.module_utils.engine.model import Node
from ansible_collections.gpufleet.mig.plugins.modules import mig_config
from nvmlsim import Simulator

# Entries of a config: what both mig_config and nvidia-mig-parted understand.
Entries = list[dict[str, t.Any]]

OPENER: reading.Opener = functools.partial(driver.Session, None)


class Host:
    """A simulated node with a folder for its records.

    ``saved`` layouts are copies of the simulator's state, so that any number of runs can start from the very same one.
    """

    def __init__(self, folder: pathlib.Path, gpus: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.state_dir = folder / "state"
        self.simulator = Simulator.create(folder / "node", gpus)

    def mig_config(self, **arguments: t.Any) -> dict[str, t.Any]:
        """The result of one run of the module, in a process of its own."""
        result: dict[str, t.Any] = self.simulator.call(self.mig_config_here, arguments)
        return result

    def mig_config_here(self, arguments: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
        """As mig_config(), in a process that is one of this node already."""
        told = io.StringIO()
        given = {"state_dir": str(self.state_dir), **arguments}
        with contextlib.redirect_stdout(told), contextlib.suppress(SystemExit), patch_module_args(given):
            mig_config.main()
        result: dict[str, t.Any] = json.loads(told.getvalue())
        return result

    def bring_to(self, **wish: t.Any) -> None:
        """A change that is no measurement and has to succeed."""
        result = self.mig_config(**wish)
        if result.get("failed"):
            raise RuntimeError(f"{wish}: {result['msg']}")

    def read(self) -> Node:
        node: Node = self.simulator.call(reading.observe, OPENER)
        return node

    def labels(self) -> dict[str, Entries]:
        """What each label that needs no config means for this host, whose GPUs are of one kind."""
        return {
            label: [{"devices": "all", "mig-enabled": label != "all-disabled", "mig-devices": per_gpu[0]}]
            for label, per_gpu in configs.generated_labels(self.read()).items()
        }

    def save(self, name: str) -> pathlib.Path:
        copy = self.folder / f"saved-{name}"
        shutil.copyfile(self.simulator.path, copy)
        return copy

    def go_back_to(self, saved: pathlib.Path) -> None:
        """The node as it was saved, with an empty record of calls and no faults."""
        shutil.copyfile(saved, self.simulator.path)
        self.simulator.clear_faults()
        self.simulator.reset_calls()

    def profiles(self) -> list[collections.Counter[str]]:
        """Per GPU, how many instances of each profile there are, in the simulator's words."""
        return [collections.Counter(name for name, *_place in gpu) for gpu in self.simulator.layouts()]

    def modes(self) -> list[int]:
        return [gpu["mode_current"] for gpu in self.simulator.describe()["gpus"]]

    def sessions(self) -> int:
        """How often NVML was opened since the record began."""
        return sum(number for name, number in self.simulator.counts().items() if name.startswith("nvmlInit"))


class Footprint:
    """What a process and the children that it forks do to the host. Kept in a file, which all of them append to.

    ``file`` gets one line for each event: its name and, for a file, its path.
    """

    def __init__(self, file: pathlib.Path) -> None:
        file.write_bytes(b"")
        self._file = file

    def watch(self) -> None:
        """Begin, in this process. There is no end: an audit hook stays for as long as its process."""
        descriptor = os.open(self._file, os.O_WRONLY | os.O_APPEND)

        def note(event: str, subject: object = "") -> None:
            path = os.fsdecode(subject) if isinstance(subject, (str, bytes)) else ""
            os.write(descriptor, f"{event}\t{path}\n".encode())

        def hook(event: str, arguments: tuple[t.Any, ...]) -> None:
            if event in ("os.fork", "subprocess.Popen"):
                note("process")
            elif event == "fcntl.flock":
                note("locked" if arguments[1] & fcntl.LOCK_EX else "looked at the lock")
            elif event in ("os.rename", "os.remove", "os.mkdir", "os.rmdir") or (
                event == "open" and not isinstance(arguments[0], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
            ):
                note("written", arguments[0])

        def noted(event: str, function: t.Callable[..., t.Any]) -> t.Callable[..., t.Any]:
            def call(*arguments: t.Any) -> t.Any:
                note(event)
                return function(*arguments)

            return call

        # Python has no audit events for these two.
        os.fsync = noted("fsync", os.fsync)
        os.setsid = noted("detached", os.setsid)
        sys.addaudithook(hook)

    def counts(self) -> collections.Counter[str]:
        return collections.Counter(event for event, _subject in self._events())

    def paths(self, event: str) -> set[str]:
        """The files that this was done to; devices such as /dev/null are none."""
        return {path for name, path in self._events() if name == event and not path.startswith("/dev/")}

    def _events(self) -> list[tuple[str, str]]:
        lines = self._file.read_text(encoding="utf-8").splitlines()
        return [(event, path) for event, _tab, path in (line.partition("\t") for line in lines)]


def timed(function: t.Callable[[], t.Any]) -> float:
    started = time.perf_counter()
    function()
    return time.perf_counter() - started
