# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Whether something happened on nodes: what runs, what was started anew, what was written, what the GPUs were told.

``remember`` looks, ``differences`` looks again. A run that was to change nothing has changed nothing only when none of
this differs, whatever it says itself.
"""

from __future__ import annotations

import json
import typing as t
from pathlib import Path

from .fleet import Fleet, Node
from .places import LOGS

OF_NO_INTEREST = (" sshd[", ": Invoked with ")  # in a journal: that we looked

Seen = dict[str, dict[str, t.Any]]

# Runs on the node.
LOOK = r'''
import json, os, subprocess

NOT_OURS = (
    "/home/admin/.ansible", "/home/operator/.ansible", "/root/.ansible", "/tmp", "/var/log", "/var/tmp",
    "/var/lib/systemd",  # stamps of timers, the seed of random numbers
)

OF_A_LOGIN = ("user@", "user-runtime-dir@")


def output(*words):
    return subprocess.run(words, stdout=subprocess.PIPE, check=True, universal_newlines=True).stdout


def units():
    """Every service that is up, and which start of it this is."""
    shown = output("systemctl", "show", "*.service", "--property=Id,ActiveState,InvocationID")
    each = [dict(line.split("=", 1) for line in block.splitlines()) for block in shown.split("\n\n") if block.strip()]
    up = [unit for unit in each if unit["ActiveState"] in ("active", "reloading")]
    return {unit["Id"]: unit["InvocationID"] for unit in up if not unit["Id"].startswith(OF_A_LOGIN)}


def files():
    """Everything that lies on the node's disk, and when it was written."""
    disk, found = os.stat("/").st_dev, {}
    for folder, folders, names in os.walk("/"):
        folders[:] = [
            name for name in folders
            if name != "__pycache__"
            and os.path.join(folder, name) not in NOT_OURS
            and os.lstat(os.path.join(folder, name)).st_dev == disk
        ]
        for name in names:
            path = os.path.join(folder, name)
            stat = os.lstat(path)
            if stat.st_dev == disk:
                found[path] = [stat.st_mtime_ns, stat.st_size, stat.st_mode, stat.st_uid, stat.st_ino]
    return found


reloads = output("journalctl", "--boot", "--quiet", "--output=cat", "_PID=1").splitlines().count("Reloading.")
boot = open("/proc/sys/kernel/random/boot_id").read().strip()
print(json.dumps({"unit": units(), "file": files(), "node": {"boot": boot, "reloads of systemd": reloads}}))
'''


def look(node: Node) -> Seen:
    seen: Seen = json.loads(node.run("/usr/bin/python3 -", text=LOOK).stdout)
    if (node.sim / "gpus").exists():
        seen["GPUs"] = {"calls that write": len(node.simulator.writes())}
    return seen


def remember(fleet: Fleet) -> None:
    for node in fleet.nodes():
        (node.folder / "remembered.json").write_text(json.dumps(look(node)))


def differences(fleet: Fleet) -> list[str]:
    """What is different from what was remembered, one line each."""
    lines = []
    for node in fleet.nodes():
        before: Seen = json.loads((node.folder / "remembered.json").read_text())
        after = look(node)
        for kind in sorted(before.keys() | after.keys()):
            lines += [f"{node.name}: {line}" for line in compare(kind, before.get(kind, {}), after.get(kind, {}))]
    return lines


def compare(kind: str, before: dict[str, t.Any], after: dict[str, t.Any]) -> t.Iterator[str]:
    for name in sorted(before.keys() | after.keys()):
        if name not in after:
            yield f"{kind} {name} is gone"
        elif name not in before:
            yield f"{kind} {name} is new"
        elif before[name] != after[name]:
            yield f"{kind} {name} is another: {before[name]}, now {after[name]}"


def tell_file(fleet: str) -> Path:
    return LOGS / f"nodes-{fleet}.log"


def tell(node: Node) -> str:
    """What helps to find out what went wrong on a node."""
    if not node.is_on():
        return f"== {node.name} is off"
    units = node.run("systemctl --failed --no-legend; systemctl list-jobs --no-legend", check=False).stdout
    journal = node.run("journalctl --no-pager --lines=400 --output=short-monotonic", check=False).stdout.splitlines()
    ours = [line for line in journal if not any(word in line for word in OF_NO_INTEREST)]
    gpus = node.simulator.show() if (node.sim / "gpus").exists() else "no GPUs\n"
    return "\n".join([f"== {node.name}", gpus, units, *ours[-80:], ""])
