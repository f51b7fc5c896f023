# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A node that the operator's MIG manager has is taken over for a change, and given back; other owners are told."""

from __future__ import annotations

import math

import pytest

from ansible_collections.gpufleet.mig.plugins.plugin_utils import _cordon, _mig_manager
from ansible_collections.gpufleet.mig.tests.kubernetes.api import Api
from ansible_collections.gpufleet.mig.tests.kubernetes.gpus import gpus
from ansible_collections.gpufleet.mig.tests.kubernetes.hosts import fleet_of, gpus_of, managed_node
from ansible_collections.gpufleet.mig.tests.kubernetes.kubelet import path_to

WHOLE = {"nvidia.com/gpu": 1}
SEVEN = {"nvidia.com/mig-1g.5gb": 7}


@pytest.fixture
def fleet(stage, tmp_path):
    """Hosts node-1 and node-2, which the operator's MIG manager has."""
    made = fleet_of(stage, tmp_path / "fleet", ("node-1", "node-2"))
    made.variables.update(kubernetes_label_stays=0, kubernetes_set_policy=True, kubernetes_manager_timeout=20)
    stage.operator()
    for name, simulator in made.simulators.items():
        managed_node(stage, name, simulator, **{_mig_manager.CONFIG: "all-disabled"})
        assert stage.settles(name, **WHOLE)
        assert stage.cluster.wait_for(lambda name=name: stage.labels(name).get(_mig_manager.STATE) == "success")
    return made


def is_taken_over(stage, name="node-1"):
    return _cordon.is_taken_over(stage.client.get(path_to(name)))


def make(fleet, *arguments, **variables):
    return fleet.run("mig", *arguments, "--limit", "node-1", mig_profile="all-1g.5gb", **variables)


def test_a_node_is_taken_over_for_its_change_and_handed_back_with_the_layout_that_it_has(api, stage, fleet):
    api.forget()
    refused = make(fleet)
    assert refused.rc == 2
    assert "set mig_takeover to have it taken off this node, or kubernetes_mode to operator" in refused.out
    checked = make(fleet, "--check", mig_takeover=True)
    assert checked.rc == 0, checked.out
    assert "is taken over from the operator's MIG manager" in checked.out
    assert (api.writes, fleet.writes()) == ([], {})

    taken = make(fleet, mig_takeover=True)
    assert taken.rc == 0, taken.out
    assert gpus_of(fleet.simulators["node-1"]) == gpus(1, mig="7x1g.5gb")
    assert stage.labels("node-1")[_mig_manager.DEPLOYED] == "false"
    assert stage.pods("node-1", app="nvidia-mig-manager") == []
    assert (is_taken_over(stage), stage.is_cordoned("node-1")) == (True, False)
    assert stage.labels("node-2")[_mig_manager.DEPLOYED] == "true", "another node stays with its manager"
    assert stage.settles("node-1", **SEVEN), stage
    again = make(fleet, mig_takeover=True)
    assert again.changed == set()

    fleet.writes()
    back = fleet.run("uninstall", "--limit", "node-1", mig_hand_back=True)
    assert back.rc == 0, back.out
    labels = stage.labels("node-1")
    assert (labels[_mig_manager.DEPLOYED], labels[_mig_manager.STATE]) == ("true", "success")
    assert labels[_mig_manager.CONFIG].startswith("as-handed-back-")
    assert not is_taken_over(stage)
    assert fleet.writes() == {}, "the manager finds what it shall have"
    assert gpus_of(fleet.simulators["node-1"]) == gpus(1, mig="7x1g.5gb")
    assert fleet.run("uninstall", "--limit", "node-1", mig_hand_back=True).changed == set()


def test_a_manager_that_does_not_go_is_named_and_no_gpu_is_touched(stage, fleet):
    stage.cluster.machines["node-1"].ends["nvidia-mig-manager*"] = math.inf
    failed = make(fleet, mig_takeover=True, kubernetes_ready_timeout=2)
    assert failed.rc == 2
    assert "its pods gpu-operator/nvidia-mig-manager-" in failed.out
    assert "No GPU was touched." in failed.out
    assert fleet.writes() == {}
    assert is_taken_over(stage), "so that it can be handed back"


def test_somebody_who_gives_the_node_back_to_its_manager_is_told(stage, play):
    stage.operator()
    machine = stage.operator_node("node-1")
    assert stage.settles("node-1", **WHOLE)
    machine.kept = {_mig_manager.DEPLOYED: "true"}
    asked = {"name": "node-1", "state": "taken_over", "auth": {"kubeconfig": str(stage.kubeconfig)}, "stays": 5}
    (failed,) = play({"gpufleet.mig.kubernetes_node": asked})
    assert failed["failed"]
    assert (
        "Somebody else has set the label nvidia.com/gpu.deploy.mig-manager of node node-1 to true again"
        in failed["msg"]
    )


# --- a third owner ------------------------------------------------------------------------------------------------


def plan(play, kubeconfig):
    asked = {"nodes": {"node-1": ""}, "plans": {"node-1": {}}, "strategies": {"node-1": "mixed"}}
    options = {"plugin_selector": ["app=nvidia-device-plugin"], "auth": {"kubeconfig": str(kubeconfig)}}
    (result,) = play({"gpufleet.mig.kubernetes_plan": {**asked, **options}})
    return result["hosts"]["node-1"]


def test_a_dra_driver_that_makes_mig_devices_is_refused_by_name(api, stage, play):
    stage.node("node-1")
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": "node-1-gpu.nvidia.com-x"},
        "spec": {"driver": "gpu.nvidia.com", "nodeName": "node-1", "sharedCounters": [{"name": "gpu-0"}]},
    }
    stage.client.create("/apis/resource.k8s.io/v1/resourceslices", body)
    (refusal,) = plan(play, stage.kubeconfig)["refusals"]
    assert "ResourceSlice node-1-gpu.nvidia.com-x has counters that its devices share" in refusal


def test_who_may_not_ask_for_dra_devices_is_told_and_not_stopped(api, stage, play):
    stage.node("node-1")
    api.fail("*/resourceslices", code=403)
    said = plan(play, stage.kubeconfig)
    assert said["refusals"] == []
    assert "permit this user to list resourceslices.resource.k8s.io" in said["warnings"][0]


def test_a_cluster_without_dra_is_planned_for(tmp_path, play):
    with Api(without=("resource.k8s.io",)) as older:
        kubeconfig = older.write_kubeconfig(tmp_path / "older")
        said = plan(play, kubeconfig)
    assert "Kubernetes has no node node-1" in said["refusals"][0]
