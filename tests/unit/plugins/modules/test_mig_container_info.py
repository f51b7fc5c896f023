# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A device is promised to a container as long as that exists, however it asked, and no runtime is asked that is off."""

from __future__ import annotations

import json
import typing as t

import pytest

from ansible_collections.gpufleet.mig.plugins.module_utils import node_containers
from ansible_collections.gpufleet.mig.plugins.module_utils.engine import clients, holders
from ansible_collections.gpufleet.mig.plugins.module_utils.engine.model import Node
from ansible_collections.gpufleet.mig.plugins.modules import mig_container_info
from ansible_collections.gpufleet.mig.tests.unit.plugins.module_utils.engine import boards
from ansible_collections.gpufleet.mig.tests.unit.plugins.module_utils.engine.cdi_host import A100, Host

ID = "3f2a1bc0d4e5".ljust(64, "0")


def gpus() -> Node:
    """GPU 0 with a 3g, a 2g and a 1g, GPU 1 without MIG."""
    first = boards.gpu(A100, instances=[("1g.5gb", 0), ("2g.10gb", 2), ("3g.20gb", 4)])._replace(minor=0)
    return Node((first, boards.gpu("tesla-t4", index=1, mode=False)._replace(minor=1)))


def uuids(node: Node) -> list[str]:
    return [str(ci.uuid) for gpu in node.gpus for gi in gpu.instances for ci in gi.compute]


class Runtimes:
    """A host with docker that has these containers."""

    def __init__(self, host: t.Any, tree: Host) -> None:
        self.host, self.tree, self.node = host, tree, gpus()
        host.node = self.node
        tree.behave(active="active")
        self.have([])

    def have(self, containers: t.Sequence[t.Mapping[str, t.Any]], runtime: str = "docker") -> None:
        shown = [{"Id": ID, "Name": "/trainer", "State": {"Status": "exited"}, **each} for each in containers]
        (self.tree.programs / "ids").write_text("".join(f"{each['Id']}\n" for each in shown))
        (self.tree.programs / "shown").write_text(f"{json.dumps(shown)}\n")
        folder = self.tree.programs
        said = f'while read -r line; do printf "%s\\n" "$line"; done <{folder}'
        self.program(runtime, f'case "$1" in ps) {said}/ids ;; *) {said}/shown ;; esac')

    def program(self, name: str, script: str) -> None:
        place = self.tree.programs / name
        place.write_text(f'#!/bin/sh\necho "$*" >> {self.tree.programs}/asked\n{script}\n')
        place.chmod(0o755)

    @property
    def asked(self) -> list[str]:
        place = self.tree.programs / "asked"
        return place.read_text().splitlines() if place.exists() else []

    def run(self, **options: t.Any) -> dict[str, t.Any]:
        return dict(self.host.run(mig_container_info, **options))

    def devices(self, **container: t.Any) -> tuple[list[str], list[str], bool]:
        """Of one container that was made so: its devices, what is gone of them, whether it was made for all."""
        self.have([container])
        (found,) = self.run()["containers"]
        return found["devices"], found["gone"], found["all"]


@pytest.fixture
def there(tmp_path, monkeypatch, host):
    runtimes = Runtimes(host, Host(tmp_path / "tree", monkeypatch))
    monkeypatch.setattr(clients, "manager_of", lambda: clients.Host(settle=0))
    return runtimes


def request(*ids: str, driver: str = "", count: int = 0) -> dict[str, t.Any]:
    return {
        "HostConfig": {
            "DeviceRequests": [{"Driver": driver, "Count": count, "DeviceIDs": list(ids), "Capabilities": [["gpu"]]}]
        }
    }


def test_a_container_that_does_not_run_keeps_what_it_was_made_for(there):
    mig = uuids(there.node)
    there.have([request(mig[0])])
    result = there.run()
    holder = "container trainer (docker 3f2a1bc0d4e5, exited)"
    assert result["reservations"] == [{"device": mig[0], "holder": holder, "source": "docker"}]
    (found,) = result["containers"]
    assert found == {
        "runtime": "docker",
        "id": ID,
        "name": "trainer",
        "status": "exited",
        "devices": [mig[0]],
        "gone": [],
        "all": False,
        "description": holder,
    }
    assert result["changed"] is False


def test_what_is_reserved_is_what_the_engine_takes(there):
    there.have([request(uuids(there.node)[2])])
    sources = holders.reservations_of(there.run()["reservations"])
    reserved = holders.attach(there.node, (), sources).gpus[0]
    assert [len(ci.reservations) for gi in reserved.instances for ci in gi.compute].count(1) == 1


def test_every_way_to_ask_for_a_device_means_that_device(there):
    node = there.node
    first = uuids(node)[0]
    gi = node.gpus[0].instances[0]
    place = f"0:{gi.compute[0].mig_index}"
    ways = {
        "--gpus device=UUID": request(first),
        "--gpus device=INDEX": request(place),
        "the spelling before driver 470": request(f"MIG-{node.gpus[0].uuid}/{gi.id}/{gi.compute[0].id}"),
        "other letters": request(first.upper().replace("MIG", "mig")),
        "--device of docker": request(f"nvidia.com/gpu={place}", driver="cdi"),
        "--device of podman": {"HostConfig": {"Devices": [{"PathOnHost": f"nvidia.com/gpu={first}"}]}},
        "command": {"Config": {"CreateCommand": ["podman", "run", "--device", f"nvidia.com/gpu={place}", "x"]}},
        "command with =": {"Config": {"CreateCommand": ["podman", "run", f"--device=nvidia.com/gpu={place}", "x"]}},
        "annotation": {"Config": {"Annotations": {"cdi.k8s.io/a": f"nvidia.com/gpu={first},vendor.com/net=0"}}},
        "variable": {"HostConfig": {"Runtime": "nvidia"}, "Config": {"Env": [f"NVIDIA_VISIBLE_DEVICES={first}"]}},
        "variable, podman": {"OCIRuntime": "nvidia", "Config": {"Env": ["A=b", f"NVIDIA_VISIBLE_DEVICES={place}"]}},
    }
    for way, container in ways.items():
        assert there.devices(**container) == ([first], [], False), way


def test_device_files_mean_the_instance_or_the_gpu_without_mig(there, monkeypatch):
    node = there.node
    gi = node.gpus[0].instances[1]
    table = {(0, gi.id, None): 20, (0, gi.id, gi.compute[0].id): 21}
    monkeypatch.setattr(holders, "capability_minors", lambda root="/": table)
    paths = ["/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap20", "/dev/nvidia-caps/nvidia-cap21", "/dev/fuse"]
    devices = {"HostConfig": {"Devices": [{"PathOnHost": path} for path in paths]}}
    assert there.devices(**devices) == ([gi.compute[0].uuid], [], False)
    whole = {"HostConfig": {"Devices": [{"PathOnHost": "/dev/nvidia1"}]}}
    assert there.devices(**whole) == ([node.gpus[1].uuid], [], False)


def test_a_gpu_in_mig_mode_means_all_that_is_on_it(there):
    assert there.devices(**request("0")) == (uuids(there.node), [], False)
    assert there.devices(**request(there.node.gpus[1].uuid)) == ([there.node.gpus[1].uuid], [], False)


@pytest.mark.parametrize(
    "container",
    [
        request(count=-1),
        request(count=2),
        request("nvidia.com/gpu=all", driver="cdi"),
        {"HostConfig": {"Runtime": "nvidia"}, "Config": {"Env": ["NVIDIA_VISIBLE_DEVICES=all"]}},
    ],
)
def test_whoever_takes_whatever_there_is_keeps_nothing_from_being_changed(there, container):
    assert there.devices(**container) == ([], [], True)
    assert there.run()["reservations"] == []


def test_a_device_that_is_gone_is_told_and_reserves_nothing(there):
    assert there.devices(**request("MIG-gone", "0:9", "7")) == ([], ["MIG-gone", "0:9", "7"], False)
    assert there.run()["reservations"] == []


@pytest.mark.parametrize(
    "container",
    [
        {},
        {"HostConfig": None, "Config": None},
        {"HostConfig": {"DeviceRequests": None, "Devices": [{"PathOnHost": "/dev/fuse"}], "Runtime": "runc"}},
        {"HostConfig": {"Runtime": "runc"}, "Config": {"Env": ["NVIDIA_VISIBLE_DEVICES=all"]}},
        {"HostConfig": {"Runtime": "nvidia"}, "Config": {"Env": ["NVIDIA_VISIBLE_DEVICES=void"]}},
        {"HostConfig": {"DeviceRequests": [{"Driver": "cdi", "DeviceIDs": ["vendor.com/net=0"]}]}},
        {"HostConfig": {"DeviceRequests": ["odd", {"Driver": "other", "Count": 1, "Capabilities": ["odd", [7]]}]}},
    ],
)
def test_containers_without_a_gpu_are_nobodys_business(there, container):
    there.have([container])
    result = there.run()
    assert (result["containers"], result["reservations"]) == ([], [])


def test_a_name_is_safe_to_print(there):
    there.have([{**request("0:0"), "Name": "/a\x1b[31m\n"}])
    (reservation,) = there.run()["reservations"]
    assert reservation["holder"].isprintable()


# --- who is asked ----------------------------------------------------------------------------------------------------


def test_only_a_runtime_that_is_there_and_runs_is_asked(there):
    there.tree.behave(active="inactive")
    there.have([request("0:0")])
    result = there.run()
    assert result["containers"] == []
    reasons = {each["runtime"]: each["reason"] for each in result["unasked"]}
    assert "docker.service is inactive" in reasons["docker"]
    assert reasons["podman"] == "podman is not on this node"
    assert there.asked == []


def test_nobody_is_asked_while_the_node_boots(there):
    there.tree.behave(active="active", system="starting")
    there.have([request("0:0")])
    assert "still booting" in there.run(runtimes=["docker"])["unasked"][0]["reason"]
    assert there.asked == []


def test_without_systemd_nobody_is_asked(there, monkeypatch):
    monkeypatch.setattr(clients, "manager_of", clients.NoManager)
    there.have([request("0:0")])
    assert {each["reason"] for each in there.run()["unasked"]} == {"systemd does not run on this node"}
    assert there.asked == []


def test_containers_are_asked_about_in_parts(there, monkeypatch):
    monkeypatch.setattr(node_containers, "_AT_ONCE", 2)
    there.have([{**request("0:0"), "Id": f"{number:064x}"} for number in range(5)])
    there.run(runtimes=["docker"])
    assert [len(line.split()) - 2 for line in there.asked if line.startswith("container inspect")] == [2, 2, 1]


@pytest.mark.parametrize(
    "script",
    ["exit 1", "echo odd", f'[ "$1" = ps ] && echo {ID} || echo "{{"', f'[ "$1" = ps ] && echo {ID} || exit 1'],
)
def test_a_runtime_that_does_not_answer_is_a_failure_since_something_might_be_promised(there, script):
    there.program("docker", script)
    result = there.run(runtimes=["docker"])
    assert result["failed"]
    assert "leave it out of runtimes" in result["msg"]


def test_a_container_that_goes_in_the_middle_is_no_failure(there):
    there.program(
        "docker", f'[ "$1" = ps ] && echo {ID} && exit; echo "Error: No such container" >&2; echo "[]"; exit 1'
    )
    assert there.run(runtimes=["docker"])["containers"] == []
