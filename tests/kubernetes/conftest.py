# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A Kubernetes API of one's own, a cluster on it, and Ansible against it.

Tests that say ``stage`` or ``kubeconfig`` need not know what the API is: with KUBERNETES_TEST_CACHE it is a real one,
see real.py. Only those that order faults or look at the record say ``api``, and are left out then.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest

from ansible_collections.gpufleet.mig.tests.kubernetes.api import Api
from ansible_collections.gpufleet.mig.tests.kubernetes.kubelet import Cluster
from ansible_collections.gpufleet.mig.tests.kubernetes.real import Real, cache_folder
from ansible_collections.gpufleet.mig.tests.kubernetes.stage import Stage

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv"


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The Python client would ask a proxy for loopback, too."""
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


@pytest.fixture
def api() -> t.Iterator[Api]:
    """An empty cluster's API."""
    with Api() as server:
        yield server


@pytest.fixture(scope="session")
def real() -> t.Iterator[Real | None]:
    """The real API, if one is asked for."""
    cache = cache_folder()
    if cache:
        with Real(cache) as server:
            yield server
    else:
        yield None


@pytest.fixture
def kubeconfig(real: Real | None, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Of an empty cluster's API."""
    server: Api | Real = real or request.getfixturevalue("api")
    if real:
        real.wipe()
    return server.write_kubeconfig(tmp_path / "kubeconfig")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if cache_folder():
        played = [item for item in items if "api" in getattr(item, "fixturenames", ())]
        config.hook.pytest_deselected(items=played)
        items[:] = [item for item in items if item not in played]


@pytest.fixture
def stage(kubeconfig: Path) -> t.Iterator[Stage]:
    """A cluster without nodes whose controllers run."""
    with Cluster(kubeconfig) as cluster:
        yield Stage(cluster)


@pytest.fixture
def still(kubeconfig: Path) -> Stage:
    """Objects, and nobody who does anything with them."""
    return Stage(Cluster(kubeconfig))


Result = dict[str, t.Any]


@pytest.fixture
def play(kubeconfig: Path, tmp_path: Path, request: pytest.FixtureRequest) -> t.Callable[..., list[Result]]:
    """Runs modules on the controller, one task each, and returns what each task said; a failure stops nothing.

    ``play({"kubernetes.core.k8s_info": {"kind": "Node"}}, check=True)``. With ``kill_at`` it is killed, as a whole,
    when its request of this number arrives (``carried_out``: when that has been heard), and nothing is returned.
    """

    def run(*tasks: dict[str, t.Any], check: bool = False, kill_at: int = 0, carried_out: bool = True) -> list[Result]:
        defaults = {"group/kubernetes.core.k8s": {"kubeconfig": str(kubeconfig)}}
        said = tmp_path / "results.json"
        told = [{**task, "register": f"result_{i}", "ignore_errors": True} for i, task in enumerate(tasks)]
        results = "{{ [" + ", ".join(f"result_{i}" for i in range(len(tasks))) + "] | to_json }}"
        told.append({"ansible.builtin.copy": {"content": results, "dest": str(said)}, "check_mode": False})
        book = tmp_path / "play.yml"
        book.write_text(
            json.dumps([{"hosts": "localhost", "gather_facts": False, "module_defaults": defaults, "tasks": told}])
        )
        said.unlink(missing_ok=True)
        for discovered in tmp_path.glob("k8srcp-*.json"):
            discovered.unlink()  # so that every run makes the same requests
        words = [sys.executable, "-m", "ansible", "playbook", "-i", "localhost,", "-c", "local", str(book)]
        if kill_at:
            api: Api = request.getfixturevalue("api")
            api.at(kill_at, lambda: kill_all_of(running.pid), carried_out)
        running = subprocess.Popen(
            [*words, *(["--check"] if check else [])],
            cwd=tmp_path,
            env=environment(tmp_path),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        output, _nothing = running.communicate()
        if kill_at:
            assert running.returncode == -signal.SIGKILL, f"it ended before it was killed:\n{output[-3000:]}"
            return []
        assert running.returncode == 0, output[-3000:]
        return t.cast("list[Result]", json.loads(said.read_text()))

    return run


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
