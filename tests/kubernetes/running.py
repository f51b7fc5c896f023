# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Runs Ansible as a controller would, perhaps until a certain request."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import typing as t
from pathlib import Path

from ansible_collections.gpufleet.mig.tests.kubernetes.api import Api

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv"


class Done(t.NamedTuple):
    code: int
    output: str


class Kill(t.NamedTuple):
    """When a run is killed, as a whole: at its request of this number, which is carried out or dies with it."""

    api: Api
    at: int
    carried_out: bool = True


def run_playbook(*words: str, home: Path, kill: Kill | None = None, **variables: str) -> Done:
    """``ansible-playbook`` with these words, in a home of its own. A kill that comes too late is a failed test."""
    for discovered in home.glob("k8srcp-*.json"):
        discovered.unlink()  # so that every run makes the same requests
    if kill:
        kill.api.at(kill.at, lambda: kill_all_of(running.pid), kill.carried_out)
    running = subprocess.Popen(
        [sys.executable, "-m", "ansible", "playbook", *words],
        cwd=home,
        env={**environment(home), **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    output, _nothing = running.communicate()
    if kill:
        assert running.returncode == -signal.SIGKILL, f"it ended before it was killed:\n{output[-3000:]}"
    return Done(running.returncode, output)


def kill_all_of(pid: int) -> None:
    """Kills a process and what it has started: Ansible's workers have sessions of their own."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    found = [pid]
    for process in found:
        found += children.get(process, [])
    for process in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def environment(home: Path) -> dict[str, str]:
    """Of a controller: the collections of the tests, and nobody's settings."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("ANSIBLE_", "K8S_", "KUBE")) and not name.lower().endswith("_proxy")
    }
    return {
        **kept,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(home),
        "TMPDIR": str(home),  # the clients keep what they discovered in there, by the server's address
        "ANSIBLE_HOME": str(home / ".ansible"),
        "ANSIBLE_COLLECTIONS_PATH": os.environ.get("ANSIBLE_COLLECTIONS_PATH", str(VENV / "collections")),
        "ANSIBLE_PYTHON_INTERPRETER": sys.executable,
        "ANSIBLE_NOCOLOR": "1",
        "LC_ALL": "C.UTF-8",
    }
