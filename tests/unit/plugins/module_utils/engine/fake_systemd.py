# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Stands in for systemctl, systemd-run and busctl: run under one of these names, from the folder of its state.

``state.json`` there has the units, and how each behaves when it is stopped and started; ``calls`` has a line of JSON
for each call. ``Fake`` is the side of the test.

A unit is a dict of the properties that ``systemctl show`` prints, and besides these:

``stop``   what its stop does: ``refuse`` (a text for stderr), ``hang``, ``back`` (it is active again at once),
           ``slow`` (it is deactivating for so many looks at it)
``start``  what its start does: ``refuse``, ``hang``, ``dies`` (it is failed after one look), ``loops`` (it is
           restarted at each look), ``limit`` (refused as started too often until reset-failed), ``finishes`` (it is
           inactive again after its work)
"""

from __future__ import annotations

import fnmatch
import json
import os
import pathlib
import signal
import stat
import subprocess
import sys

NAMES = ("systemctl", "systemd-run", "busctl")
ALONG = ("RequiredBy", "RequisiteOf", "BoundBy", "ConsistsOf", "PropagatesStopTo")


class Fake:
    """Puts the commands into a folder and says how they behave."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        text = pathlib.Path(__file__).read_text(encoding="utf-8")
        for name in NAMES:
            program = folder / name
            program.write_text(f"#!{sys.executable} -ES\n{text}", encoding="utf-8")
            program.chmod(program.stat().st_mode | stat.S_IXUSR)
        self.write({"units": {}, "aliases": {}, "system": "running"})

    def read(self):
        return json.loads((self.folder / "state.json").read_text(encoding="utf-8"))

    def write(self, state):
        (self.folder / "state.json").write_text(json.dumps(state), encoding="utf-8")

    def unit(self, name, active="active", stop=None, start=None, **properties):
        state = self.read()
        defaults = {"LoadState": "loaded", "SubState": "running" if active == "active" else "dead", "Type": "simple"}
        unit = {**defaults, "ActiveState": active, "Result": "success", "Transient": "no", **properties}
        state["units"][name] = {**unit, "stop": stop or {}, "start": start or {}}
        self.write(state)

    def set(self, **values):
        self.write({**self.read(), **values})

    def active(self):
        """The units that are active."""
        return {name for name, unit in self.read()["units"].items() if unit["ActiveState"] == "active"}

    def calls(self, *verbs):
        """The calls so far, each a list of words beginning with the program; of systemctl only with these verbs."""
        file = self.folder / "calls"
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        return [call for call in map(json.loads, lines) if not verbs or any(verb in call for verb in verbs)]

    def done(self, *verbs):
        """``stop nvidia-dcgm.service`` for each such call of systemctl, in order."""
        calls = [[word for word in call if not word.startswith("-")] for call in self.calls(*verbs)]
        return [" ".join(call[1:]) for call in calls if call[0] == "systemctl"]


class Program:
    """One call of one of the commands."""

    def __init__(self, program: str, words: list[str]) -> None:
        self.folder = pathlib.Path(program).parent
        self.state = json.loads((self.folder / "state.json").read_text(encoding="utf-8"))
        self.name = pathlib.Path(program).name
        self.words = words
        with open(self.folder / "calls", "a", encoding="utf-8") as file:
            file.write(json.dumps([self.name, *words]) + "\n")

    def run(self) -> int:
        if sys.stdin.read():
            return self.complain("somebody may type")
        behaviour = self.state.get(self.name, {})
        if "hang" in behaviour:
            self.hang()
        if "refuse" in behaviour:
            return self.complain(behaviour["refuse"])
        code = {"systemctl": self.systemctl, "systemd-run": self.systemd_run, "busctl": self.busctl}[self.name]()
        (self.folder / "state.json").write_text(json.dumps(self.state), encoding="utf-8")
        return code

    def complain(self, text: str) -> int:
        sys.stderr.write(text)
        return 1

    def hang(self) -> None:
        """With a child that keeps the output open, as a pager or an agent would."""
        child = subprocess.Popen(["sleep", "1000"])
        (self.folder / "hanging").write_text(f"{os.getpid()} {child.pid}", encoding="utf-8")
        signal.pause()

    # --- systemctl

    def systemctl(self) -> int:
        words = [word for word in self.words if not word.startswith("-")]
        verb, names = words[0], words[1:]
        if verb == "is-system-running":
            print(self.state["system"])
            return 0 if self.state["system"] == "running" else 1
        # Of a pattern nothing may be there, and that is no failure.
        found = [name for each in names for name in self.matching(each)]
        return max((self.on_unit(verb, self.state["aliases"].get(name, name)) for name in found), default=0)

    def matching(self, name) -> list[str]:
        return fnmatch.filter(self.state["units"], name) if "*" in name else [name]

    def on_unit(self, verb, name) -> int:
        unit = self.state["units"].get(name)
        if verb == "show":
            return self.show(name, unit)
        if unit is None:
            return self.complain(f"Unit {name} not loaded.\n") + 4
        return {"stop": self.stop, "start": self.start, "reset-failed": self.reset_failed}[verb](name, unit)

    def show(self, name, unit) -> int:
        wanted = next(word for word in self.words if word.startswith("--property=")).split("=", 1)[1].split(",")
        values = {"Id": name, "LoadState": "not-found", "ActiveState": "inactive", "SubState": "dead", **(unit or {})}
        for key in wanted:
            if key in values:
                print(f"{key}={values[key]}")
        if unit is not None:
            self.after_a_look(unit)
        return 0

    def after_a_look(self, unit) -> None:
        if unit["ActiveState"] == "deactivating":
            unit["looks"] -= 1
            if unit["looks"] == 0:
                unit["ActiveState"] = "inactive"
        elif unit.get("dying"):
            unit.update(ActiveState="failed", SubState="failed", Result="exit-code", dying=False)
        elif unit.get("looping"):
            unit["NRestarts"] = int(unit.get("NRestarts", 0)) + 1

    def stop(self, name, unit) -> int:
        how = unit["stop"]
        if "refuse" in how:
            return self.complain(how["refuse"])
        if "hang" in how:
            unit["ActiveState"], unit["looks"] = "deactivating", how["hang"]
            (self.folder / "state.json").write_text(json.dumps(self.state), encoding="utf-8")
            self.hang()
        unit.update(ActiveState="inactive", SubState="dead")
        if "back" in how:
            unit.update(ActiveState="active", SubState="running")
        if "slow" in how:
            unit.update(ActiveState="deactivating", looks=how["slow"])
        for key in ALONG:
            for other in unit.get(key, "").split():
                self.state["units"][other].update(ActiveState="inactive", SubState="dead")
        return 0

    def start(self, name, unit) -> int:
        how = unit["start"]
        if "limit" in how:
            unit.update(ActiveState="failed")
            return self.complain(f"Job for {name} failed.")
        if "refuse" in how:
            unit.update(ActiveState="failed", SubState="failed", Result="exit-code")
            return self.complain(how["refuse"])
        if "hang" in how:
            unit["ActiveState"] = "activating"
            (self.folder / "state.json").write_text(json.dumps(self.state), encoding="utf-8")
            self.hang()
        if "--no-block" in self.words:
            unit["Job"] = "17"
            return 0
        up = "inactive" if "finishes" in how else "active"
        unit.update(ActiveState=up, Result="success", dying="dies" in how, looping="loops" in how)
        return 0

    def reset_failed(self, name, unit) -> int:
        unit["start"].pop("limit", None)
        unit.update(ActiveState="inactive", Result="success")
        return 0

    # --- the others

    def systemd_run(self) -> int:
        name = next(word for word in self.words if word.startswith("--unit=")).split("=", 1)[1]
        timer = {"LoadState": "loaded", "ActiveState": "active", "SubState": "waiting", "stop": {}, "start": {}}
        self.state["units"][f"{name}.timer"] = timer
        return 0

    def busctl(self) -> int:
        moved = self.state.get("moved")
        if moved:
            pathlib.Path(moved).write_text("0::/system.slice/gpufleet-mig.scope\n", encoding="utf-8")
        return 0


if __name__ == "__main__":
    sys.exit(Program(sys.argv[0], sys.argv[1:]).run())
