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
from ansible_collections.gpufleet.mig.tests.kubernetes.kubelet import UnknownConfigError, path_to
from ansible_collections.gpufleet.mig.tests.kubernetes.running import Kill

WHOLE = {"nvidia.com/gpu": 1}
SEVEN = {"nvidia.com/mig-1g.5gb": 7}
POLICY = "/apis/nvidia.com/v1/clusterpolicies/cluster-policy"


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


# --- handing back that goes wrong ----------------------------------------------------------------------------------

NODE = path_to("node-1")
NONE = [{"devices": "all", "mig-enabled": False, "mig-devices": {}}]
AS_IT_IS = _mig_manager.name_of("as-handed-back", NONE)


@pytest.fixture
def taken(stage, play):
    """A node that was taken over from its manager, whose policy names our config map."""
    stage.operator()
    machine = stage.operator_node("node-1", **{_mig_manager.CONFIG: "all-disabled"})
    assert stage.settles("node-1", **WHOLE)
    stage.client.patch(POLICY, {"spec": _mig_manager.naming("gpufleet-mig")})
    asked = {"name": "node-1", "state": "taken_over", "auth": {"kubeconfig": str(stage.kubeconfig)}, "stays": 0}
    (done,) = play({"gpufleet.mig.kubernetes_node": asked})
    assert done["changed"]
    return machine


@pytest.fixture
def hand_back(stage, play):
    """Hands node-1 back to its manager, once or several times."""

    def run(times=1, kill=None, **options):
        asked = {
            "name": "node-1",
            "label": "as-handed-back",
            "config": NONE,
            "hand_back": True,
            "auth": {"kubeconfig": str(stage.kubeconfig)},
            "timeout": 20,
            **options,
        }
        results = play(*[{"gpufleet.mig.kubernetes_mig_manager": asked}] * times, kill=kill)
        return results if times != 1 else (results or [{}])[0]

    return run


def is_back(stage):
    labels = stage.labels("node-1")
    told = (labels[_mig_manager.DEPLOYED], labels[_mig_manager.STATE])
    return told == ("true", "success") and labels[_mig_manager.CONFIG] in _mig_manager.names_of(AS_IT_IS)


def ended(stage, hand_back):
    """A run that comes after one that failed or was killed hands the node back, and the one after it does nothing."""
    done, again = hand_back(times=2)
    assert done["changed"], done
    assert not again["changed"], again
    assert "was not taken over" in again["msg"]
    assert (is_back(stage), is_taken_over(stage)) == (True, False), stage
    return True


def test_a_manager_that_does_not_come_back_is_told_with_its_pod_and_waited_for_again(stage, taken, hand_back):
    taken.starts["nvidia-mig-manager*"] = math.inf
    failed = hand_back(timeout=3)
    assert failed["failed"]
    assert f"says nothing of {AS_IT_IS}: pod gpu-operator/nvidia-mig-manager-" in failed["msg"]
    assert "Mend that, and run again, which waits for it once more." in failed["msg"]
    assert is_taken_over(stage), "it does not count as handed back"
    taken.starts.clear()
    for pod in stage.pods("node-1", app="nvidia-mig-manager"):
        stage.client.delete(f"/api/v1/namespaces/gpu-operator/pods/{pod['metadata']['name']}")
    assert ended(stage, hand_back)


def test_a_manager_that_fails_at_what_is_there_is_told_and_called_by_another_name(stage, taken, hand_back):
    knows = taken.manager.is_applied

    def has_no_such_config(_config):
        raise UnknownConfigError

    taken.manager.is_applied = has_no_such_config
    failed = hand_back()
    assert failed["failed"]
    assert f"has it again, and says failed of {AS_IT_IS}: look at the log of its pod" in failed["msg"]
    taken.manager.is_applied = knows
    assert ended(stage, hand_back)
    assert stage.labels("node-1")[_mig_manager.CONFIG] == _mig_manager.other_name(AS_IT_IS, AS_IT_IS)


def test_a_node_that_is_gone_is_told_and_nothing_is_written(api, stage, taken, hand_back):
    stage.client.delete(NODE)
    api.forget()
    failed = hand_back()
    assert failed["failed"]
    assert "Kubernetes has no node node-1 that could be handed back: set kubernetes_node" in failed["msg"]
    assert "or leave mig_hand_back out. Nothing was done." in failed["msg"]
    assert api.writes == []


def test_a_node_that_goes_while_its_manager_is_waited_for_ends_the_wait(api, stage, taken, hand_back):
    taken.starts["nvidia-mig-manager*"] = math.inf

    def remove(request):
        if request.is_write and NODE in str(request):
            api.after_each = None
            stage.client.delete(NODE)

    api.after_each = remove
    failed = hand_back(timeout=3600)
    assert failed["failed"]
    assert "did not read node node-1" in failed["msg"]


def test_an_api_that_refuses_the_patch_leaves_the_node_taken_over(api, stage, taken, hand_back):
    before = stage.labels("node-1")
    api.fail(NODE, verb="patch", code=403)
    failed = hand_back()
    assert failed["failed"]
    assert "Kubernetes did not patch node node-1" in failed["msg"]
    assert not failed["altered"]
    assert (stage.labels("node-1"), is_taken_over(stage)) == (before, True)
    assert ended(stage, hand_back)


def test_who_has_given_it_back_since_is_told_and_nothing_is_set(stage, taken, hand_back):
    stage.client.patch(NODE, {"metadata": {"labels": {_mig_manager.DEPLOYED: "true"}}})
    done = hand_back()
    assert done["changed"]
    assert "Somebody else has given node node-1 back" in done["msg"]
    assert stage.labels("node-1")[_mig_manager.CONFIG] == "all-disabled"
    assert not is_taken_over(stage)


class AtWrite:
    """Counts writes where an API counts requests."""

    def __init__(self, api):
        self.api = api

    def at(self, number, act, _carried_out):
        left = [None] * number

        def count(request):
            if request.is_write and left:
                left.pop()
                if not left:
                    act()

        self.api.after_each = count


@pytest.mark.parametrize("number", range(1, 4))
def test_wherever_handing_back_is_killed_the_next_run_ends_it(api, stage, taken, hand_back, number):
    """Its writes are the config map, the label with its note, and the end of the note."""
    hand_back(kill=Kill(AtWrite(api), number))
    api.after_each = None
    if number == 3:
        assert (is_back(stage), is_taken_over(stage)) == (True, False)
        assert not hand_back()["changed"]
    else:
        assert ended(stage, hand_back)


def test_the_playbook_keeps_its_records_until_the_node_is_handed_back(stage, fleet):
    taken = make(fleet, mig_takeover=True)
    assert taken.rc == 0, taken.out
    machine = stage.cluster.machines["node-1"]
    machine.starts["nvidia-mig-manager*"] = math.inf
    failed = fleet.run("uninstall", "--limit", "node-1", mig_hand_back=True, kubernetes_manager_timeout=3)
    assert failed.rc == 2
    assert "run again, which waits for it once more" in failed.out
    assert (fleet.folder / "state" / "node-1" / "wanted.json").exists()
    machine.starts.clear()
    for pod in stage.pods("node-1", app="nvidia-mig-manager"):
        stage.client.delete(f"/api/v1/namespaces/gpu-operator/pods/{pod['metadata']['name']}")
    back = fleet.run("uninstall", "--limit", "node-1", mig_hand_back=True)
    assert back.rc == 0, back.out
    assert not is_taken_over(stage)
    assert gpus_of(fleet.simulators["node-1"]) == gpus(1, mig="7x1g.5gb")
    assert fleet.run("uninstall", "--limit", "node-1", mig_hand_back=True).changed == set()


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
