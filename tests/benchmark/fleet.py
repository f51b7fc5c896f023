# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a fleet costs its controller, as tables; the numbers also in ``.venv/bench-fleet.json``.

    make bench-fleet                         10, 100 and 1,000 simulated hosts, and 8 that boot where that is possible
    python tests/benchmark/fleet.py 10 100   fleets of these sizes only
    python tests/benchmark/fleet.py nodes    only those that boot

The playbook mig, ansible.builtin.ping and a playbook that wraps a command-line tool run over the same hosts, in turns.
Times depend on the machine, so only ratios within one run mean something; counts repeat exactly. What the numbers
mean: docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import collections
import datetime
import json
import os
import pathlib
import platform
import re
import shlex
import shutil
import statistics
import sys
import tempfile
import time
import typing as t

ROOT = pathlib.Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv"
sys.path.insert(0, str(VENV / "collections"))

from ansible_collections.gpufleet.mig.tests.benchmark.hosts import Host  # noqa: E402
from ansible_collections.gpufleet.mig.tests.fleet.fleet import Fleet  # noqa: E402
from nvmlsim import Simulator  # noqa: E402

NODE_FILES = ROOT / "tests" / "benchmark" / "node"
GPUS = "8xa100-sxm4-40gb"
LABEL, OTHER_LABEL = "all-1g.5gb", "all-2g.10gb"
LAYOUTS = {LABEL: {"1g.5gb": 7}, OTHER_LABEL: {"2g.10gb": 3}}
SIZES = (10, 100, 1000)
USUAL_ROUNDS = 3
# Few over many hosts, which are a sample as it is.
ROUNDS = {100: 1, 1000: 1}
LARGEST_CHANGE = LARGEST_WITH_TOOL = 100
NODES = 8
FORKS = 10
GOAL = 1.5
MIG, PING, TOOL = "playbook mig", "ping", "tool in tasks"

Row = dict[str, t.Any]


class Cost(t.NamedTuple):
    """What one run of a playbook took, in all.

    ``controller`` and ``node`` are seconds of processor time: that of ansible-playbook and its children without the
    Pythons that it started on hosts, and that of these, where they are on this machine. ``calls`` are these Pythons by
    host. ``tasks`` are the tasks that Ansible counts by host, without those that were skipped. ``peak`` is the memory
    of the largest process, in MiB.
    """

    wall: float
    controller: float
    node: float
    peak: float
    calls: collections.Counter[str]
    tasks: dict[str, int]
    changed: int
    out: str


class LargeFleet(Fleet):
    """Many hosts that are copies of one, as wanted, each with what the copied one remembers."""

    def __init__(self, folder: pathlib.Path, size: int) -> None:
        folder.mkdir(parents=True)
        super().__init__(folder, {})
        self._template = Host(folder / "template", GPUS)
        self._template.bring_to(label=LABEL)
        self._template.simulator.reset_calls()
        self._times = folder / "node-times"
        self.names = [f"gpu{number:04}" for number in range(1, size + 1)]
        (folder / "nodes").mkdir()
        (folder / "bin").mkdir()
        tool = folder / "bin" / "mig-tool"
        # -I: what this Python costs is part of the module that runs it, and counted there.
        tool.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -I {NODE_FILES / "mig_tool.py"} "$@"\n')
        tool.chmod(0o755)
        self.variables.update(
            ansible_pipelining=True, mig_profile=LABEL, tool_folder=f"{folder}/tool/{{{{ inventory_hostname }}}}"
        )
        for name in self.names:
            self._add_copy(name)

    def _add_copy(self, name: str) -> None:
        copy_sparsely(self._template.simulator.path, self.folder / "nodes" / name)
        for made in ("state", "tool"):
            (self.folder / made / name).mkdir(parents=True)
        (self.folder / "tool" / name / "config.yaml").write_text(tool_config(), encoding="utf-8")
        record = self._template.state_dir / "wanted.json"
        (self.folder / "state" / name / record.name).write_bytes(record.read_bytes())
        seen = {**self._template.simulator.env(), "NVMLSIM_STATE": str(self.folder / "nodes" / name)}
        settings = {
            **{key: seen[key] for key in ("LD_LIBRARY_PATH", "NVMLSIM_STATE")},
            "PATH": f"{self.folder / 'bin'}:{seen['PATH']}",
        }
        python = self.folder / f"python-{name}"
        lines = "\n".join(f"export {key}={shlex.quote(value)}" for key, value in settings.items())
        # Timed from outside, since to end a Python takes time too.
        timed = f'{{ time {shlex.quote(sys.executable)} "$@" 2>&3; }} 3>&2 2>>{shlex.quote(str(self._times))}'
        python.write_text(f'#!/bin/bash\n{lines}\nTIMEFORMAT="{name} %U %S"\n{timed}\n')
        python.chmod(0o755)
        self.hosts[name] = {"ansible_python_interpreter": str(python)}

    def go_back(self) -> None:
        """All hosts as they were in the beginning."""
        for name in self.names:
            copy_sparsely(self._template.simulator.path, self.folder / "nodes" / name)
            record = self.folder / "state" / name / "wanted.json"
            record.write_bytes((self._template.state_dir / record.name).read_bytes())

    def remove(self) -> None:
        """Give its room back."""
        shutil.rmtree(self.folder)

    def layouts(self) -> set[str]:
        """The layouts that there are; the simulator's own word."""
        self.simulators = {name: Simulator(self.folder / "nodes" / name) for name in self.names}
        return set(self.devices().values())

    def cost(self, playbook: str, **variables: t.Any) -> Cost:
        """Run a playbook over all hosts and wait for it. It has to succeed."""
        self._times.write_bytes(b"")
        cost = measured(self, playbook, **variables)
        lines = [line.split() for line in self._times.read_text(encoding="utf-8").splitlines()]
        node = sum(float(user) + float(system) for _name, user, system in lines)
        calls = collections.Counter(name for name, _user, _system in lines)
        return cost._replace(controller=cost.controller - node, node=node, calls=calls)


def measured(fleet: Fleet, playbook: str, **variables: t.Any) -> Cost:
    """The cost of a run, with all its processor time as that of the controller."""
    started = time.monotonic()
    # What Ansible shows by default, but for skipped tasks, of which mig has many in a change and others none.
    settings = {"ANSIBLE_FORKS": str(FORKS), "ANSIBLE_DISPLAY_SKIPPED_HOSTS": "no", "ANSIBLE_HOST_KEY_CHECKING": "no"}
    process = fleet.start(playbook, environment=settings, **variables)
    stdout = t.cast(t.IO[str], process.stdout)
    out = stdout.read()
    stdout.close()
    _process, status, used = os.wait4(process.pid, 0)
    wall = time.monotonic() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{playbook} ended with {process.returncode}:\n{out[-4000:]}")
    recap = re.findall(r"^(\S+) +: ok=(\d+) +changed=(\d+) ", out, re.MULTILINE)
    return Cost(
        wall=wall,
        controller=used.ru_utime + used.ru_stime,
        node=0.0,
        peak=used.ru_maxrss / 1024,
        calls=collections.Counter(),
        tasks={name: int(done) for name, done, _changed in recap},
        changed=sum(int(changed) for _name, _done, changed in recap),
        out=out,
    )


def copy_sparsely(source: pathlib.Path, target: pathlib.Path) -> None:
    """The file without room for what is zero: a node's state is mostly room."""
    block, content = 4096, source.read_bytes()
    with open(target, "wb") as file:
        file.truncate(len(content))
        for at in range(0, len(content), block):
            piece = content[at : at + block]
            if piece.strip(b"\0"):
                file.seek(at)
                file.write(piece)


# --- playbooks ----------------------------------------------------------------------------------------------------


def playbooks(folder: pathlib.Path) -> dict[str, str]:
    """What is compared, by title: the playbook of the collection, ping, and a tool as operators wrap it."""
    ping = [{"hosts": "all", "gather_facts": False, "tasks": [{"ansible.builtin.ping": None}]}]
    found = {MIG: "mig"}
    for title, file, content in ((PING, "ping.yml", ping), (TOOL, "tool.yml", tool_playbook())):
        (folder / file).write_text(json.dumps(content), encoding="utf-8")
        found[title] = str(folder / file)
    return found


def tool_playbook() -> list[Row]:
    """Probe, copy the config, ask whether it is as wanted, apply where it is not, assert."""
    file = "{{ tool_folder }}/config.yaml"
    words = {word: ["mig-tool", word, "-f", file, "-c", "{{ mig_profile }}"] for word in ("assert", "apply")}
    return [
        {
            "hosts": "all",
            "gather_facts": False,
            "tasks": [
                {"name": "Probe", "ansible.builtin.command": "nvidia-smi -L", "changed_when": False},
                {"name": "Config", "ansible.builtin.copy": {"content": tool_config(), "dest": file, "mode": "0644"}},
                {
                    "name": "Ask",
                    "ansible.builtin.command": {"argv": words["assert"]},
                    "register": "asked",
                    "changed_when": False,
                    "failed_when": "asked.rc not in [0, 1]",
                },
                {"name": "Apply", "ansible.builtin.command": {"argv": words["apply"]}, "when": "asked.rc != 0"},
                {"name": "Assert", "ansible.builtin.command": {"argv": words["assert"]}, "changed_when": False},
            ],
        }
    ]


def tool_config() -> str:
    configs = {
        label: [{"devices": "all", "mig-enabled": True, "mig-devices": devices}] for label, devices in LAYOUTS.items()
    }
    # Ansible makes data of what looks like JSON, so that it does not begin like that.
    return f"# labels\n{json.dumps({'version': 'v1', 'mig-configs': configs}, indent=2)}\n"


# --- measuring ----------------------------------------------------------------------------------------------------


def converged(fleet: LargeFleet, rounds: int) -> dict[str, list[Cost]]:
    """The runs by title, in turns, over hosts where nothing is to be done."""
    runs: dict[str, list[Cost]] = collections.defaultdict(list)
    for number in range(rounds):
        for title, playbook in playbooks(fleet.folder).items():
            # The tool takes long, and what it costs for each host hardly depends on how many there are.
            if title == TOOL and (number or len(fleet.names) > LARGEST_WITH_TOOL):
                continue
            cost = fleet.cost(playbook)
            if cost.changed:
                raise RuntimeError(f"{title} changed something on hosts that are as wanted:\n{cost.out[-4000:]}")
            runs[title].append(cost)
    return runs


def changed(fleet: LargeFleet) -> dict[str, list[Cost]]:
    """A run of each over hosts that all have to be changed, in one wave, and ping beside it."""
    runs: dict[str, list[Cost]] = {}
    for title, playbook in playbooks(fleet.folder).items():
        fleet.go_back()
        runs[title] = [fleet.cost(playbook, mig_profile=OTHER_LABEL, mig_serial="100%")]
        layouts = {LABEL: "56x1g.5gb", OTHER_LABEL: "24x2g.10gb"}
        if fleet.layouts() != {layouts[LABEL if title == PING else OTHER_LABEL]}:
            raise RuntimeError(f"{title} did not do what it should:\n{runs[title][0].out[-4000:]}")
    fleet.go_back()
    return runs


def rows_of(size: int, runs: t.Mapping[str, t.Sequence[Cost]]) -> list[Row]:
    """A line for each playbook; medians, divided by the number of hosts, and their ratios to ping."""
    ping = {what: middle(runs[PING], what) for what in ("controller", "node", "wall")}
    rows = []
    for title, costs in runs.items():
        last = costs[-1]
        # What is run once for all hosts counts as a task of the first.
        _first, *others = sorted(last.tasks)
        per_host = {what: middle(costs, what) / size * 1000 for what in ("controller", "node", "wall")}
        rows.append(
            {
                "hosts": size,
                "run": title,
                "runs": len(costs),
                "controller ms": round(per_host["controller"], 1),
                "of ping": round(middle(costs, "controller") / ping["controller"], 2),
                "wall ms": round(per_host["wall"], 1),
                "wall of ping": round(middle(costs, "wall") / ping["wall"], 2),
                "node ms": round(per_host["node"], 1) if ping["node"] else "",
                "node of ping": round(middle(costs, "node") / ping["node"], 2) if ping["node"] else "",
                "calls": span([last.calls[name] for name in others]) if ping["node"] else "",
                "tasks": span([last.tasks[name] for name in others]),
                "peak MiB": round(max(cost.peak for cost in costs)),
            }
        )
    return rows


def middle(costs: t.Sequence[Cost], what: str) -> float:
    return statistics.median(getattr(cost, what) for cost in costs)


def span(numbers: t.Sequence[int]) -> str:
    least, most = min(numbers), max(numbers)
    return str(least) if least == most else f"{least} to {most}"


def growth(report: t.Mapping[int, t.Mapping[str, t.Sequence[Cost]]]) -> list[Row]:
    """What a host more costs, from one size to the next: all that is paid once is gone from it."""
    rows = []
    sizes = sorted(report)
    for small, large in zip(sizes, sizes[1:], strict=False):
        more = large - small
        added = {
            title: {
                what: (middle(report[large][title], what) - middle(report[small][title], what)) / more
                for what in ("controller", "wall", "peak")
            }
            for title in report[large]
            if title in report[small]
        }
        for title, costs in added.items():
            rows.append(
                {
                    "hosts": f"{small} to {large}",
                    "run": title,
                    "controller ms": round(costs["controller"] * 1000, 1),
                    "of ping": round(costs["controller"] / added[PING]["controller"], 2),
                    "wall ms": round(costs["wall"] * 1000, 1),
                    "wall of ping": round(costs["wall"] / added[PING]["wall"], 2),
                    "peak KiB": round(costs["peak"] * 1024),
                }
            )
    return rows


def payloads(fleet: LargeFleet) -> list[Row]:
    """The size of the file that each module is sent as."""
    rows = []
    for number, (title, playbook) in enumerate(playbooks(fleet.folder).items()):
        remote = fleet.folder / f"remote-{number}"
        settings = {"ANSIBLE_KEEP_REMOTE_FILES": "1", "ANSIBLE_REMOTE_TEMP": str(remote)}
        ran = fleet.run(playbook, "--limit", fleet.names[0], environment=settings)
        if ran.rc:
            raise RuntimeError(ran.out)
        sent = {file.stem.partition("_")[2]: file.stat().st_size for file in remote.glob("*/AnsiballZ_*.py")}
        rows += [{"run": title, "module": module, "payload bytes": size} for module, size in sorted(sent.items())]
    return rows


# --- hosts that boot ----------------------------------------------------------------------------------------------


def booted(folder: pathlib.Path) -> dict[str, dict[str, list[Cost]]]:
    """The same over ssh, on nodes that boot: converged, and a change. The tool is not on them."""
    from ansible_collections.gpufleet.mig.tests.nodes.fleet import Fleet as Nodes

    nodes = Nodes(f"bench-{os.getpid()}")
    try:
        nodes.up([f"gpu{number}={GPUS}" for number in range(1, NODES + 1)])
        inventory = nodes.inventory()
        fleet = Fleet(folder, {})
        fleet.hosts = inventory["_meta"]["hostvars"]
        fleet.variables = {**inventory["nodes"]["vars"], "mig_profile": LABEL, "mig_allow_reset": True}
        books = playbooks(folder)
        measured(fleet, books[MIG], mig_serial="100%")
        runs: dict[str, list[Cost]] = {PING: [], MIG: []}
        for _round in range(USUAL_ROUNDS):
            for title, costs in runs.items():
                costs.append(measured(fleet, books[title]))
        change = {"mig_profile": OTHER_LABEL, "mig_serial": "100%"}
        changes = {title: [measured(fleet, books[title], **change)] for title in runs}
    finally:
        nodes.down()
    return {"converged": runs, "change": changes}


def why_no_nodes() -> str:
    """What keeps nodes from booting here; empty where nothing does."""
    from ansible_collections.gpufleet.mig.tests.nodes.build import why_not

    return str(why_not())


# --- showing ------------------------------------------------------------------------------------------------------


def show(title: str, rows: list[Row]) -> None:
    """A table, as bench.py prints them."""
    cells = [list(rows[0]), *([str(value) for value in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    print(f"\n{title}")
    for line in cells:
        print("  " + "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="What a fleet costs its controller.")
    parser.add_argument("fleet", nargs="*", help="numbers of simulated hosts, and the word nodes; all if none is given")
    arguments = parser.parse_args()
    wanted = arguments.fleet or [*map(str, SIZES), "nodes"]
    unknown = [word for word in wanted if word != "nodes" and not (word.isdigit() and int(word) > 1)]
    if unknown:
        parser.error(f"{unknown[0]!r} is neither a number of hosts from 2 nor nodes")
    report: dict[str, t.Any] = {
        "taken": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.machine()}, {os.cpu_count()} processors, Python {platform.python_version()}",
        "forks": FORKS,
    }

    def tell(part: str, title: str, rows: list[Row]) -> None:
        show(title, rows)
        report.setdefault(part, []).extend(rows)

    runs: dict[int, dict[str, list[Cost]]] = {}
    with tempfile.TemporaryDirectory(prefix="mig-bench-fleet-") as scratch:
        for size in sorted({int(word) for word in wanted if word.isdigit()}):
            fleet = LargeFleet(pathlib.Path(scratch) / str(size), size)
            if not runs:
                tell("payload", "What a module is sent as", payloads(fleet))
            runs[size] = converged(fleet, ROUNDS.get(size, USUAL_ROUNDS))
            tell(
                "converged", f"{size} hosts as wanted, for each host (goal: {GOAL} of ping)", rows_of(size, runs[size])
            )
            if size <= LARGEST_CHANGE:
                rows = rows_of(size, changed(fleet))
                tell("change", f"{size} hosts that all change, in one wave, for each host", rows)
            fleet.remove()
        if len(runs) > 1:
            tell("growth", "For each host more", growth(runs))
        if "nodes" in wanted:
            reason = why_no_nodes()
            if reason:
                print(f"\nNo node can be booted here: {reason}.")
            else:
                folder = pathlib.Path(scratch) / "nodes"
                folder.mkdir()
                for kind, costs in booted(folder).items():
                    tell("nodes", f"{NODES} hosts that booted, over ssh: {kind}", rows_of(NODES, costs))
    target = VENV / "bench-fleet.json"
    target.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(f"\n{report['machine']}, {FORKS} forks. The same is in {target.relative_to(ROOT)}.")


if __name__ == "__main__":
    main()
