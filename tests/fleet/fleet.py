# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Fleets of simulated hosts on this machine, each behind a Python of its own, and playbooks that run over them."""

from __future__ import annotations

import collections
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import typing as t

from nvmlsim import Simulator

ROOT = pathlib.Path(__file__).resolve().parents[2]
COLLECTIONS = ROOT / ".venv/collections"
BIN = pathlib.Path(sys.executable).parent

# Nothing listens there.
DOWN = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 9, "ansible_ssh_timeout": 5}

_RECAP = re.compile(
    r"^(?P<host>\S+) +: ok=\d+ +changed=(?P<changed>\d+) +unreachable=(?P<unreachable>\d+) +failed=(?P<failed>\d+)",
    re.M,
)


class Ran(t.NamedTuple):
    """A run of ansible-playbook: exit status, all that it printed, and the recap by host."""

    rc: int
    out: str
    recap: dict[str, dict[str, int]]

    @property
    def failed(self) -> set[str]:
        return {host for host, counts in self.recap.items() if counts["failed"]}

    @property
    def changed(self) -> set[str]:
        return {host for host, counts in self.recap.items() if counts["changed"]}

    @property
    def lost(self) -> set[str]:
        return {host for host, counts in self.recap.items() if counts["unreachable"]}


class Fleet:
    """Hosts by name, with GPUs as on the command line of nvmlsim, and their inventory.

    ``variables`` and ``groups`` are those of the inventory: variables of all hosts, and variables and hosts of groups.
    """

    def __init__(self, folder: pathlib.Path, hosts: t.Mapping[str, str]) -> None:
        self.folder = folder
        self.simulators: dict[str, Simulator] = {}
        self.hosts: dict[str, dict[str, t.Any]] = {}
        self.variables: dict[str, t.Any] = {
            "ansible_connection": "local",
            "mig_state_dir": f"{folder}/state/{{{{ inventory_hostname }}}}",
        }
        self.groups: dict[str, dict[str, t.Any]] = {}
        for name, gpus in hosts.items():
            self.add(name, gpus)

    def add(self, name: str, gpus: str, **options: t.Any) -> None:
        """Make a host that answers; options are those of Simulator.create()."""
        (self.folder / "nodes").mkdir(exist_ok=True)
        simulator = Simulator.create(self.folder / "nodes" / name, gpus, **options)
        self.simulators[name] = simulator
        python = self.folder / f"python-{name}"
        env = simulator.env()
        settings = "\n".join(
            f"export {key}={shlex.quote(env[key])}" for key in ("LD_LIBRARY_PATH", "NVMLSIM_STATE", "PATH")
        )
        python.write_text(f'#!/bin/sh\n{settings}\nexec {shlex.quote(sys.executable)} "$@"\n')
        python.chmod(0o755)
        self.hosts[name] = {"ansible_python_interpreter": str(python)}

    def group(self, name: str, *hosts: str, **variables: t.Any) -> None:
        """Put hosts into a group with these variables."""
        self.groups[name] = {"hosts": dict.fromkeys(hosts), "vars": variables}

    def run(
        self, playbook: str, *arguments: str, environment: t.Mapping[str, str] | None = None, **variables: t.Any
    ) -> Ran:
        """Run a playbook of the collection, or one of a path; variables are extra variables as data."""
        process = self.start(playbook, *arguments, environment=environment, **variables)
        out, _nothing = process.communicate(timeout=600)
        recap = {
            found["host"]: {key: int(found[key]) for key in ("changed", "unreachable", "failed")}
            for found in _RECAP.finditer(out)
        }
        return Ran(process.returncode, out, recap)

    def start(
        self, playbook: str, *arguments: str, environment: t.Mapping[str, str] | None = None, **variables: t.Any
    ) -> subprocess.Popen[str]:
        """As run(), and leave it running."""
        name = playbook if playbook.endswith(".yml") else f"gpufleet.mig.{playbook}"
        extra = ["-e", json.dumps(variables)] if variables else []
        home = self.folder / "home"
        return subprocess.Popen(
            [str(BIN / "ansible-playbook"), name, "-i", str(self.inventory()), *extra, *arguments],
            env={
                **os.environ,
                "ANSIBLE_COLLECTIONS_PATH": str(COLLECTIONS),
                "ANSIBLE_HOME": str(home),
                "ANSIBLE_LOCAL_TEMP": str(home / "tmp"),
                "ANSIBLE_REMOTE_TEMP": str(home / "remote"),
                "ANSIBLE_NOCOLOR": "1",
                "ANSIBLE_NOCOWS": "1",
                "ANSIBLE_FORKS": "4",
                **(environment or {}),
            },
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def inventory(self) -> pathlib.Path:
        """Write the inventory as it is now."""
        path = self.folder / "inventory.json"
        content = {"all": {"hosts": self.hosts, "vars": self.variables, "children": self.groups}}
        path.write_text(json.dumps(content))
        return path

    def devices(self, *names: str) -> dict[str, str]:
        """The GPU instances of each host as ``4x1g.6gb``, over all its GPUs; the simulator's own word."""
        return {name: _counts(self.simulators[name].layouts()) for name in names or self.simulators}

    def first_instance(self, name: str) -> int:
        """The id of a GPU instance of the first GPU of this host."""
        return int(self.simulators[name].describe()["gpus"][0]["instances"][0]["id"])

    def writes(self, reset: bool = True) -> dict[str, int]:
        """Successful writes to the driver of each host that had any, since this was asked last."""
        found = {name: len(simulator.writes(ok=True)) for name, simulator in self.simulators.items()}
        if reset:
            for simulator in self.simulators.values():
                simulator.reset_calls()
        return {name: count for name, count in found.items() if count}


def _counts(layouts: t.Iterable[t.Iterable[tuple[t.Any, ...]]]) -> str:
    profiles = collections.Counter(instance[0].removeprefix("MIG ") for gpu in layouts for instance in gpu)
    return ",".join(f"{count}x{profile}" for profile, count in sorted(profiles.items()))
