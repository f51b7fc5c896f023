# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""systemd reads no units anew beside containers that use GPUs, unless somebody has said so or the host is drained."""

from __future__ import annotations

import pathlib
import socket
import typing as t

import pytest

from ansible_collections.gpufleet.mig.plugins.module_utils.engine import clients
from ansible_collections.gpufleet.mig.plugins.modules import mig_reload_guard
from ansible_collections.gpufleet.mig.tests.unit.plugins.module_utils.engine.cdi_host import Host
from ansible_collections.gpufleet.mig.tests.unit.plugins.module_utils.grpc.stand_in import recorded, sends, serving

from .test_mig_container_info import Runtimes, request

RUNS = {"State": {"Status": "running"}}
TRAINER = "container trainer (docker 3f2a1bc0d4e5, running)"


class Guarded:
    """A host with docker, and what the module says there."""

    def __init__(self, runtimes: Runtimes, state_dir: str, warned: list[str]) -> None:
        self.runtimes, self.state_dir, self.warned = runtimes, state_dir, warned

    def run(self, **options: t.Any) -> dict[str, t.Any]:
        given = {"runtimes": ["docker"], "socket": "/nowhere/kubelet.sock", **options}
        return dict(self.runtimes.host.run(mig_reload_guard, **given))


@pytest.fixture
def there(tmp_path, monkeypatch, host):
    runtimes = Runtimes(host, Host(tmp_path / "tree", monkeypatch))
    monkeypatch.setattr(clients, "manager_of", lambda: clients.Host(settle=0))
    warned: list[str] = []
    monkeypatch.setattr("ansible.module_utils.basic.AnsibleModule.warn", lambda _module, text: warned.append(text))
    return Guarded(runtimes, host.state_dir, warned)


def test_a_container_that_runs_with_gpus_is_named_and_what_to_do(there):
    there.runtimes.have([{**request("GPU-1"), **RUNS}])
    refused = there.run(option="boot_reload_beside_containers")
    assert refused["failed"]
    assert refused["containers"] == [TRAINER]
    assert f"can lose their GPUs: {TRAINER}. Nothing was written. Drain this host" in refused["msg"]
    assert "boot_reload_beside_containers=true goes on" in refused["msg"]


@pytest.mark.parametrize("count", [-1, 2])
def test_one_that_was_made_for_whatever_there_is_counts_too(there, count):
    there.runtimes.have([{**request(count=count), **RUNS}])
    assert there.run()["containers"] == [TRAINER]


@pytest.mark.parametrize("status", ["created", "exited", "dead"])
def test_one_that_does_not_run_has_nothing_to_lose(there, status):
    there.runtimes.have([{**request("GPU-1"), "State": {"Status": status}}])
    assert "failed" not in there.run()
    assert there.run()["containers"] == []


def test_one_without_gpus_has_nothing_to_lose(there):
    there.runtimes.have([RUNS])
    assert there.run()["containers"] == []


def test_one_that_is_paused_comes_back_without_its_gpus(there):
    there.runtimes.have([{**request("GPU-1"), "State": {"Status": "paused"}}])
    assert there.run()["failed"]


def test_who_says_so_goes_on_and_is_told_beside_whom(there):
    there.runtimes.have([{**request("GPU-1"), **RUNS}])
    assert "failed" not in there.run(allow=True)
    assert there.run(allow=True)["containers"] == [TRAINER]


def test_on_a_host_that_is_drained_nobody_is_asked(there):
    there.runtimes.have([{**request("GPU-1"), **RUNS}])
    folder = pathlib.Path(there.state_dir)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "drained.json").write_text('{"schema": 1, "label": "all-1g.5gb"}')
    assert there.run()["drained"]
    assert there.runtimes.asked == []


def test_a_check_warns_of_the_refusal_and_goes_on_with_its_plan(there):
    there.runtimes.have([{**request("GPU-1"), **RUNS}])
    assert "failed" not in there.run(check_mode=True)
    (warning,) = there.warned
    assert warning.startswith("A run would be refused: ")
    assert TRAINER in warning


def test_an_engine_that_does_not_answer_is_a_warning_and_refuses_nothing(there):
    there.runtimes.program("docker", "echo broken >&2; exit 1")
    assert there.run()["containers"] == []
    (warning,) = there.warned
    assert "'docker ps' failed and said broken" in warning
    assert "cannot be told" in warning


def test_a_systemd_that_does_not_answer_is_a_warning(there, monkeypatch):
    def silent(_systemd):
        raise clients.ClientError("systemd did not answer systemctl within 20 s.", unit="")

    monkeypatch.setattr(clients.Systemd, "is_booting", silent)
    assert there.run()["containers"] == []
    assert there.warned[0].startswith("systemd did not answer")


def test_a_host_that_boots_is_a_warning_and_its_engines_are_left_alone(there, monkeypatch):
    monkeypatch.setattr(clients.Systemd, "is_booting", lambda _systemd: True)
    there.runtimes.have([{**request("GPU-1"), **RUNS}])
    assert there.run()["containers"] == []
    assert there.runtimes.asked == []
    assert "still booting" in there.warned[0]


def test_a_host_without_engines_hears_nothing(there):
    assert there.run(runtimes=["nerdctl", "podman"])["containers"] == []
    assert there.warned == []


def test_where_no_systemd_runs_nobody_is_asked(there, monkeypatch):
    monkeypatch.setattr(clients, "manager_of", clients.NoManager)
    there.runtimes.have([{**request("GPU-1"), **RUNS}])
    assert there.run()["containers"] == []
    assert there.runtimes.asked == []


def test_pods_that_the_kubelet_has_given_devices_are_named(there):
    with serving(sends(recorded()["go-list"])) as kubelet:
        refused = there.run(socket=kubelet.path)
    assert refused["failed"]
    assert all(each.startswith("pod ") for each in refused["containers"])


def test_a_kubelet_that_was_killed_is_a_warning(there):
    with serving() as folder:
        left = f"{folder.path}.left"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(left)
        assert there.run(socket=left)["containers"] == []
    (warning,) = there.warned
    assert "Its pods may be running. Whether containers could lose GPUs" in warning
