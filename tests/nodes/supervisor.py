# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The process behind a node: boots it, and boots it again when it asks for that.

    python -m tests.nodes.supervisor FOLDER    FOLDER is the node's, with node.json in it

It lives in namespaces of its own for processes and mounts. When it is killed, all that runs in the node ends at once,
as if the power were cut, and its mounts go with it. What outlives a reboot, the network namespace, is made before.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import typing as t
from pathlib import Path

from . import cgroups
from .places import HOST_TOOLS

REBOOT = 133  # what systemd-nspawn ends with when the node asked for a reboot
MOUNT_FAILED = 90
COMMAND = (sys.executable, "-m", "tests.nodes.supervisor")  # in the folder that holds tests/


def enter(folder: Path, group: str) -> t.NoReturn:
    """Leaves this machine's namespaces and its caller's control group, and goes on as ``supervise``."""
    cgroups.join(group)
    record_process(folder)
    words = ["unshare", "--pid", "--fork", "--kill-child=KILL", "--mount", "--mount-proc", "--propagation", "private"]
    os.execvp(words[0], [*words, "--", *COMMAND, str(folder), "inside"])


def record_process(folder: Path) -> None:
    """Our pid, and when we started: the pid alone may be somebody else's later."""
    half = folder / "process.half"
    half.write_text(json.dumps({"pid": os.getpid(), "started": start_time(os.getpid())}))
    half.rename(folder / "process.json")


def start_time(pid: int) -> int:
    """When a process started, in ticks since this machine's boot; 0 when there is no such process any more."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return 0 if fields[0] in "ZX" else int(fields[19])


def supervise(folder: Path, node: dict[str, t.Any]) -> int:
    """Boots the node until it is switched off; what systemd-nspawn ended with."""
    merged = folder / "merged"
    layers = f"lowerdir={':'.join(node['layers'])},upperdir={folder / 'upper'},workdir={folder / 'work'}"
    if subprocess.run(["mount", "-t", "overlay", "overlay", "-o", layers, merged], check=False).returncode:
        return MOUNT_FAILED
    # systemd-nspawn leaves files here that nobody clears away.
    scratch = Path("/run/systemd/nspawn")
    scratch.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", scratch], check=True)

    command = boot_command(folder, node)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(HOST_TOOLS / "usr/lib/x86_64-linux-gnu/systemd")}
    while True:
        restart_gpus(folder)
        note(folder, "boot")
        code = run_until_off(command, environment)
        note(folder, f"end {code}")
        if code != REBOOT:
            return code


def run_until_off(command: list[str], environment: dict[str, str]) -> int:
    process = subprocess.Popen(command, env=environment)
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())  # systemd-nspawn then halts the node
    return process.wait()


def boot_command(folder: Path, node: dict[str, t.Any]) -> list[str]:
    """systemd-nspawn in the node's network namespace."""
    return [
        # Not by nspawn's own option for this: /sys would show this machine's network.
        *("nsenter", f"--net=/run/netns/{node['id']}", "--"),
        *(str(HOST_TOOLS / "usr/bin/systemd-nspawn"), "--quiet", "--boot", f"--directory={folder / 'merged'}"),
        *(f"--machine={node['id']}", f"--hostname={node['name']}", f"--bind={folder / 'sim'}:/run/sim-host"),
        *("--register=no", "--keep-unit", "--suppress-sync=yes", "--console=pipe"),
        *("--link-journal=no", "--resolv-conf=off", "--timezone=off"),
        *node["nspawn"],
    ]


def restart_gpus(folder: Path) -> None:
    """What a reboot does to GPUs depends on their generation; the simulator knows."""
    state = folder / "sim" / "gpus"
    if state.exists():
        from nvmlsim import Simulator

        Simulator(state).reboot()


def note(folder: Path, event: str) -> None:
    with open(folder / "boots", "a") as log:
        log.write(f"{time.time():.3f} {event}\n")


def main() -> int:
    folder = Path(sys.argv[1])
    node = json.loads((folder / "node.json").read_text())
    if sys.argv[2:] != ["inside"]:
        enter(folder, node["id"])
    return supervise(folder, node)


if __name__ == "__main__":
    sys.exit(main())
