# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Launches job templates as AWX does: answers are checked against the survey, become extra variables together with what
the survey proposes, and ansible-runner runs the playbook of the project in a private data dir.

The hosts are simulated nodes on this machine, reached by the local connection; each has a Python that sees its GPUs.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import typing as t
from pathlib import Path

from ansible_collections.gpufleet.mig.tests.awx.conftest import CORES, PROJECT, environment
from ansible_collections.gpufleet.mig.tests.awx.server import Awx, Data
from nvmlsim import Simulator

COLOR = re.compile(r"\x1b\[[0-9;]*m")


class Host:
    """A node with GPUs that a job can reach."""

    def __init__(self, name: str, folder: Path, gpus: str = "1xa100-sxm4-40gb") -> None:
        folder.mkdir(parents=True)
        self.name = name
        self.folder = folder
        self.simulator = Simulator.create(folder / "node", gpus)

    def variables(self, core: str) -> Data:
        """As in an inventory of AWX, where nobody needs to become root to change what is simulated."""
        seen = self.simulator.env({"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})
        python = self.folder / f"python-{core}"
        exports = "\n".join(f"export {name}={shlex.quote(value)}" for name, value in seen.items())
        python.write_text(f'#!/bin/sh\n{exports}\nexec {shlex.quote(str(CORES[core] / "python"))} "$@"\n')
        python.chmod(0o755)
        return {
            "ansible_connection": "local",
            "ansible_python_interpreter": str(python),
            "ansible_become": False,
            "mig_state_dir": str(self.folder / "state"),
        }

    def profiles(self) -> list[str]:
        """The instances of all GPUs."""
        return [name.removeprefix("MIG ") for gpu in self.simulator.layouts() for name, *_place in gpu]


class Job(t.NamedTuple):
    """How a job ended. ``changed`` is what the recap says of each host, ``events`` what AWX would store."""

    code: int
    output: str
    events: list[Data]

    @property
    def changed(self) -> dict[str, int]:
        (stats,) = [event["event_data"] for event in self.events if event["event"] == "playbook_on_stats"]
        reached: set[str] = set().union(*(stats[kind] for kind in ("ok", "failures", "dark")))
        return {name: stats["changed"].get(name, 0) for name in sorted(reached - {"localhost"})}


class Refused(Exception):
    """AWX does not launch the job; why not."""


class Launcher:
    """An AWX in which everything was made, with these hosts in its inventory."""

    def __init__(self, awx: Awx, folder: Path, hosts: list[Host], groups: dict[str, list[str]] | None = None) -> None:
        self.awx = awx
        self.folder = folder
        self.hosts = hosts
        self.groups = groups or {}
        self.group_variables: dict[str, Data] = {}
        self._launched = 0

    def launch(
        self, template: str, answers: Data, *, core: str = "2.19", limit: str = "", job_type: str | None = None
    ) -> Job:
        item = self.awx.named("job_templates", template)
        if job_type and not item["ask_job_type_on_launch"]:
            raise Refused("Field is not configured to prompt on launch.")
        variables = self._variables(item, answers)
        self._launched += 1
        ident = str(self._launched)
        private = self.folder / f"awx_{ident}"
        shutil.copytree(PROJECT, private / "project")
        self._write_inventory(private / "inventory" / "hosts", core)
        self._write_environment(private / "env", item, variables, limit or item["limit"], job_type or item["job_type"])
        words = [sys.executable, "-m", "ansible_runner", "run", str(private), "-p", item["playbook"], "-i", ident]
        done = subprocess.run(
            words,
            check=False,
            env=environment(core, self.folder),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        files = (private / "artifacts" / ident / "job_events").glob("*-*.json")
        events = sorted((json.loads(file.read_text()) for file in files), key=lambda event: event["counter"])
        return Job(done.returncode, COLOR.sub("", done.stdout), events)

    def _variables(self, item: Data, answers: Data) -> Data:
        """Extra variables, the weakest first: the template's, what the survey proposes, answers, what AWX tells."""
        spec = self.awx.surveys[item["id"]]["spec"]
        problems = [problem for question in spec for problem in problems_of(question, answers)]
        problems += [f"Variables {name} are not allowed" for name in answers.keys() - {q["variable"] for q in spec}]
        if problems:
            raise Refused("; ".join(problems))
        variables: Data = json.loads(item["extra_vars"] or "{}")
        variables.update({q["variable"]: q["default"] for q in spec if q.get("default") is not None})
        variables.update(answers)
        told = {
            "job_id": self._launched + 1,
            "job_launch_type": "manual",
            "job_template_id": item["id"],
            "job_template_name": item["name"],
            "user_name": "o'hara {{ 6 * 7 }}",
            "inventory_id": item["inventory"],
            "inventory_name": "MIG nodes",
            "project_revision": "1" * 40,
        }
        variables.update({f"{name}_{key}": value for name in ("awx", "tower") for key, value in told.items()})
        return variables

    def _write_inventory(self, file: Path, core: str) -> None:
        """A program that prints the inventory, as AWX gives it to a job."""
        groups = {"all": [host.name for host in self.hosts], **self.groups}
        printed: Data = {
            name: {"hosts": hosts, "vars": self.group_variables.get(name, {})} for name, hosts in groups.items()
        }
        printed["_meta"] = {"hostvars": {host.name: host.variables(core) for host in self.hosts}}
        file.parent.mkdir()
        file.write_text(f"#!{sys.executable}\nprint({json.dumps(printed)!r})\n")
        file.chmod(0o700)

    def _write_environment(self, folder: Path, item: Data, variables: Data, limit: str, job_type: str) -> None:
        folder.mkdir()
        words = ["--forks", str(item["forks"])]
        words += ["--become"] if item["become_enabled"] else []
        words += ["--check"] if job_type == "check" else []
        words += ["--diff"] if item["diff_mode"] else []
        words += ["-l", limit] if limit else []
        (folder / "cmdline").write_text(shlex.join(words))
        (folder / "extravars").write_text(as_awx_writes(variables, safe=json.loads(item["extra_vars"] or "{}")))
        (folder / "settings").write_text(json.dumps({"idle_timeout": 0, "job_timeout": item["timeout"]}))
        told = {
            "ANSIBLE_FORCE_COLOR": "True",
            "ANSIBLE_HOST_KEY_CHECKING": "False",
            "ANSIBLE_INVENTORY_UNPARSED_FAILED": "True",
            "ANSIBLE_PARAMIKO_RECORD_HOST_KEYS": "False",
            "ANSIBLE_RETRY_FILES_ENABLED": "False",
            "JOB_ID": str(self._launched),
        }
        (folder / "envvars").write_text(json.dumps(told))


def problems_of(question: Data, answers: Data) -> list[str]:
    """What AWX has against the answer to one question."""
    name = question["variable"]
    if name not in answers:
        return [f"'{name}' value missing"] if question["required"] and "default" not in question else []
    answer = answers[name]
    if question["type"] == "multiplechoice":
        return [] if answer in question["choices"] else [f"Value {answer} for '{name}' expected to be a choice."]
    if isinstance(answer, bool) or not isinstance(answer, int if question["type"] == "integer" else str):
        return [f"Value {answer} for '{name}' expected to be another type."]
    size = answer if isinstance(answer, int) else len(answer)
    fits = (question["min"] is None or size >= question["min"]) and (question["max"] is None or size <= question["max"])
    return [] if fits else [f"'{name}' value {answer} is too small or too large."]


def as_awx_writes(variables: Data, *, safe: Data) -> str:
    """YAML in which nothing that somebody typed is a template."""
    lines = []
    for name, value in variables.items():
        unsafe = isinstance(value, str) and not (name in safe and safe[name] == value)
        lines.append(f"{name}: {'!unsafe ' if unsafe else ''}{json.dumps(value, ensure_ascii=False)}")
    return "\n".join(lines) + "\n"
