# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A Kubernetes API of one's own, a cluster on it, and Ansible against it.

Tests that say ``stage`` or ``kubeconfig`` need not know what the API is: with KUBERNETES_TEST_CACHE it is a real one,
see real.py. Only those that order faults or look at the record say ``api``, and are left out then.
"""

from __future__ import annotations

import json
import os
import typing as t
from pathlib import Path

import pytest

from ansible_collections.gpufleet.mig.tests.kubernetes.api import Api
from ansible_collections.gpufleet.mig.tests.kubernetes.kubelet import Cluster
from ansible_collections.gpufleet.mig.tests.kubernetes.real import Real, cache_folder
from ansible_collections.gpufleet.mig.tests.kubernetes.rights import beyond
from ansible_collections.gpufleet.mig.tests.kubernetes.running import Kill, run_playbook
from ansible_collections.gpufleet.mig.tests.kubernetes.stage import Stage


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


# What installs a device plugin needs more, and these test the API itself.
OTHERS = ("test_api", "test_cluster", "test_collection", "test_device_plugin", "test_examples")


@pytest.fixture(autouse=True)
def rights(request: pytest.FixtureRequest) -> t.Iterator[None]:
    """Nothing is asked of the API that examples/kubernetes/rbac.yml does not allow."""
    ours = request.module.__name__.rpartition(".")[2] not in OTHERS and "kubeconfig" in request.fixturenames
    api = request.getfixturevalue("api") if ours and not cache_folder() else None
    yield
    if api:
        assert beyond(each for each in api.requests if not each.of_a_stand_in) == set()


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
def play(kubeconfig: Path, tmp_path: Path) -> t.Callable[..., list[Result]]:
    """Runs modules on the controller, one task each, and returns what each task said; a failure stops nothing.

    ``play({"kubernetes.core.k8s_info": {"kind": "Node"}}, check=True)``. A run that is killed returns nothing.
    """

    def run(*tasks: dict[str, t.Any], check: bool = False, kill: Kill | None = None) -> list[Result]:
        defaults = {"group/kubernetes.core.k8s": {"kubeconfig": str(kubeconfig)}}
        said = tmp_path / "results.json"
        told = [{**task, "register": f"result_{i}", "ignore_errors": True} for i, task in enumerate(tasks)]
        results = "{{ [" + ", ".join(f"result_{i}" for i in range(len(tasks))) + "] | to_json }}"
        told.append({"ansible.builtin.copy": {"content": results, "dest": str(said)}, "check_mode": False})
        book = tmp_path / "play.yml"
        book.write_text(
            json.dumps([{"hosts": "localhost", "gather_facts": False, "module_defaults": defaults, "tasks": told}])
        )
        words = ["-i", "localhost,", "-c", "local", str(book), *(["--check"] if check else [])]
        done = run_playbook(*words, home=tmp_path, kill=kill)
        if kill:
            return []
        assert done.code == 0, done.output[-3000:]
        return t.cast("list[Result]", json.loads(said.read_text()))

    return run
