# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A service manager of the test's own: its units are files, so that all processes of a case see the same ones."""

from __future__ import annotations

import json
import os
import time
import typing as t

from ansible_collections.gpufleet.mig.plugins.module_utils.engine import clients
from nvmlsim import control


class Units:
    """Units of a case, in a folder; a unit that holds a GPU has a process that is a holder in the simulated node."""

    def __init__(self, folder: str, node: str) -> None:
        self.folder = folder
        self.node = node

    def add(self, name: str, active: bool, enabled: bool, trouble: str, holds: t.Optional[int], pid: int) -> None:
        self._write(name, {"active": False, "enabled": enabled, "trouble": trouble, "holds": holds, "pid": pid})
        if active:
            self.begin(name)

    # --- as the product sees them (clients.Manager) ----------------------------------------------------------------

    def state(self, unit: str) -> clients.UnitState:
        if not os.path.exists(self._path(unit)):
            return clients.UnitState(unit, "not-found", "inactive", "dead")
        active = self.read(unit)["active"]
        return clients.UnitState(unit, "loaded", "active" if active else "inactive", "running" if active else "dead")

    def stop(self, unit: str, timeout: float) -> None:
        self._log("stop", unit)
        if self.read(unit)["trouble"] == "stop":
            raise clients.ClientError(f"{unit} could not be stopped: it is stubborn.", unit=unit)
        self.end(unit)

    def start(self, unit: str, timeout: float) -> None:
        self._log("start", unit)
        trouble = self.read(unit)["trouble"]
        if trouble == "start once":
            self._write(unit, {**self.read(unit), "trouble": ""})
        if trouble.startswith("start"):
            raise clients.ClientError(f"{unit} could not be started: it is broken.", unit=unit)
        self.begin(unit)

    # --- as they are -----------------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        return sorted(name[: -len(".json")] for name in os.listdir(self.folder) if name.endswith(".json"))

    def active(self) -> dict[str, bool]:
        return {name: bool(self.read(name)["active"]) for name in self.names()}

    def read(self, unit: str) -> dict[str, t.Any]:
        with open(self._path(unit), encoding="utf-8") as file:
            return t.cast("dict[str, t.Any]", json.load(file))

    def begin(self, unit: str) -> None:
        it = self.read(unit)
        if it["holds"] is not None:
            request = f'add gpu={it["holds"]} pid={it["pid"]} kind=client name="{unit}" mem=0'
            control.occupy(self.node, request)
        self._write(unit, {**it, "active": True})

    def end(self, unit: str) -> None:
        it = self.read(unit)
        if it["holds"] is not None and it["active"]:
            control.occupy(self.node, f"remove pid={it['pid']}")
        self._write(unit, {**it, "active": False})

    def reboot(self) -> None:
        """The computer starts anew, and with it the units that are enabled."""
        for unit in self.names():
            self._write(unit, {**self.read(unit), "active": False})
            if self.read(unit)["enabled"]:
                self.begin(unit)

    def log(self) -> list[list[t.Any]]:
        """What was asked of them: [time, word, unit]."""
        path = os.path.join(self.folder, "log")
        if not os.path.exists(path):
            return []
        with open(path, encoding="utf-8") as file:
            return [json.loads(line) for line in file]

    def _log(self, word: str, unit: str) -> None:
        with open(os.path.join(self.folder, "log"), "a", encoding="utf-8") as file:
            file.write(json.dumps([time.time(), word, unit]) + "\n")

    def _path(self, unit: str) -> str:
        return os.path.join(self.folder, f"{unit}.json")

    def _write(self, unit: str, it: dict[str, t.Any]) -> None:
        """Whole or not at all: whoever is at work here may be killed."""
        new = f"{self._path(unit)}.{os.getpid()}.new"
        with open(new, "w", encoding="utf-8") as file:
            json.dump(it, file)
        os.replace(new, self._path(unit))
