# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Stands in for docker, podman and nerdctl: run under one of these names, from the folder of its state.

``containers.json`` there has the containers of each program, and how each behaves; ``container-calls`` has a line of
JSON for each call, with the variables that it got. ``FakeContainers`` is the side of the test.

A container is a dict with ``id``, ``name``, ``status``, ``labels``, ``goes`` (--rm), and besides these:

``stop``   what its stop does: ``refuse`` (a text for stderr), ``hang``, ``back`` (it runs again at once)
``start``  what its start does: ``refuse``, ``hang``, ``dies`` (it has exited after one look), ``loops`` (its runtime
           restarts it at each look)
"""

from __future__ import annotations

import json
import os
import pathlib
import signal
import stat
import subprocess
import sys

NAMES = ("docker", "podman", "nerdctl")


class FakeContainers:
    """Puts the programs into a folder and says what containers there are."""

    def __init__(self, folder: pathlib.Path, programs=NAMES) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        text = pathlib.Path(__file__).read_text(encoding="utf-8")
        for name in programs:
            program = folder / name
            program.write_text(f"#!{sys.executable} -ES\n{text}", encoding="utf-8")
            program.chmod(program.stat().st_mode | stat.S_IXUSR)
        self._write({name: {"containers": {}} for name in NAMES})

    def add(self, runtime, number, name="", status="running", goes=False, stop=None, start=None, **labels):
        """Make a container; returns it as clients.py calls it."""
        container = {"id": f"{number:064x}", "name": name or f"container{number}", "status": status, "labels": labels}
        state = self._read()
        state[runtime]["containers"][container["id"]] = {
            **container,
            "goes": goes,
            "restarts": 0,
            "code": 0,
            "stop": stop or {},
            "start": start or {},
        }
        self._write(state)
        return f"{runtime}:{container['id']}"

    def set(self, runtime, **behaviour):
        """What all calls of a program do: ``hang``, ``refuse``, ``prints`` (for ps), ``shows`` (for inspect)."""
        state = self._read()
        state[runtime].update(behaviour)
        self._write(state)

    def running(self):
        """The containers that run."""
        return {
            f"{runtime}:{each['id']}"
            for runtime, programs in self._read().items()
            for each in programs["containers"].values()
            if each["status"] == "running"
        }

    def calls(self, *verbs):
        """The calls so far, each a list of words beginning with the program; only those with one of these verbs."""
        return [call for call, _variables in self._calls() if not verbs or call[1] in verbs]

    def variables(self):
        """The variables of all calls."""
        return [variables for _call, variables in self._calls()]

    def done(self):
        """``stop docker:<id>`` for each order, in order."""
        return [f"{call[1]} {call[0]}:{call[-1]}" for call in self.calls("stop", "start")]

    def _calls(self):
        file = self.folder / "container-calls"
        return list(map(json.loads, file.read_text(encoding="utf-8").splitlines())) if file.exists() else []

    def _read(self):
        return json.loads((self.folder / "containers.json").read_text(encoding="utf-8"))

    def _write(self, state):
        (self.folder / "containers.json").write_text(json.dumps(state), encoding="utf-8")


class Program:
    """One call of one of the programs."""

    def __init__(self, program: str, words: list[str]) -> None:
        self.folder = pathlib.Path(program).parent
        self.file = self.folder / "containers.json"
        self.state = json.loads(self.file.read_text(encoding="utf-8"))
        self.name = pathlib.Path(program).name
        self.own = self.state[self.name]
        self.words = words
        variables = {name: value for name, value in os.environ.items() if name not in ("PATH", "LC_ALL", "LC_CTYPE")}
        with open(self.folder / "container-calls", "a", encoding="utf-8") as file:
            file.write(json.dumps([[self.name, *words], variables]) + "\n")

    def run(self) -> int:
        if "hang" in self.own:
            self.hang()
        if "refuse" in self.own:
            return self.complain(self.own["refuse"])
        verb, *words = self.words
        code = {"ps": self.ps, "container": self.inspect, "stop": self.stop, "start": self.start}[verb](words)
        self.save()
        return code

    def save(self) -> None:
        self.file.write_text(json.dumps(self.state), encoding="utf-8")

    def complain(self, text: str) -> int:
        sys.stderr.write(text)
        return 1

    def hang(self) -> None:
        """With a child that keeps the output open."""
        child = subprocess.Popen(["sleep", "1000"])
        (self.folder / "hanging").write_text(f"{os.getpid()} {child.pid}", encoding="utf-8")
        signal.pause()

    def ps(self, words) -> int:
        if "prints" in self.own:
            print(self.own["prints"])
            return 0
        key, _is, value = words[words.index("--filter") + 1].split("=", 1)[1].partition("=")
        for each in reversed(list(self.own["containers"].values())):
            has = key in each["labels"] and value in ("", each["labels"][key])
            if has and each["status"] in ("running", "paused", "restarting"):
                print(each["id"])
        return 0

    def inspect(self, words) -> int:
        if "shows" in self.own:
            print(self.own["shows"])
            return 0
        found = [self.own["containers"][word] for word in words[1:] if word in self.own["containers"]]
        print(json.dumps([self.shown(each) for each in found]))
        for each in found:
            self.after_a_look(each)
        return self.complain("Error: No such container\n") if len(found) < len(words[1:]) else 0

    def shown(self, each):
        settings = {"AutoRemove": each["goes"]} if self.name != "nerdctl" else {}
        labels = {**each["labels"], **({"nerdctl/auto-remove": "true"} if not settings and each["goes"] else {})}
        return {
            "Id": each["id"],
            "Name": f"/{each['name']}" if self.name == "docker" else each["name"],
            "State": {"Status": each["status"], "Running": each["status"] == "running", "ExitCode": each["code"]},
            "RestartCount": each["restarts"],
            "HostConfig": settings,
            "Config": {"Labels": labels},
        }

    def after_a_look(self, each) -> None:
        if each.pop("dying", False):
            each.update(status="exited", code=1)
        if each.get("looping"):
            each["restarts"] += 1

    def stop(self, words) -> int:
        each = self.own["containers"][words[-1]]
        how = each["stop"]
        if "refuse" in how:
            return self.complain(how["refuse"])
        if "hang" in how:
            self.hang()
        each.update(status="running" if "back" in how else "exited", code=143)
        return 0

    def start(self, words) -> int:
        each = self.own["containers"].get(words[-1])
        if each is None:
            return self.complain("Error: No such container")
        how = each["start"]
        if "refuse" in how:
            return self.complain(how["refuse"])
        if "hang" in how:
            self.hang()
        each.update(status="running", code=0, dying="dies" in how, looping="loops" in how)
        return 0


if __name__ == "__main__":
    sys.exit(Program(sys.argv[0], sys.argv[1:]).run())
