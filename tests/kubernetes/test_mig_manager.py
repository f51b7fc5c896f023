# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""kubernetes_mig_manager: the operator's MIG manager brings a node to a layout, or it is said why it has not."""

from __future__ import annotations

import math
import threading
import time
import typing as t

import pytest
import yaml

from ansible_collections.gpufleet.mig.plugins.plugin_utils import _cordon, _mig_manager
from ansible_collections.gpufleet.mig.tests.kubernetes.gpus import gpus
from ansible_collections.gpufleet.mig.tests.kubernetes.kubelet import path_to, running

SEVEN = [{"devices": "all", "mig-enabled": True, "mig-devices": {"1g.5gb": 7}}]
NONE = [{"devices": "all", "mig-enabled": False, "mig-devices": {}}]
NAME = _mig_manager.name_of("all-1g.5gb", SEVEN)
WITHOUT = _mig_manager.name_of("none", NONE)
MAPS = "/api/v1/namespaces/gpu-operator/configmaps"
POLICY = "/apis/nvidia.com/v1/clusterpolicies/cluster-policy"


@pytest.fixture
def manager(play, kubeconfig):
    """Runs kubernetes_mig_manager once or several times."""

    def run(times: int = 1, check: bool = False, **options: t.Any) -> t.Any:
        asked = {
            "name": "node-1",
            "label": "all-1g.5gb",
            "config": SEVEN,
            "config_map": "ours",
            "auth": {"kubeconfig": str(kubeconfig)},
            "timeout": 20,
            "stays": 0,
            "known_after": 0,
            **options,
        }
        results = play(*[{"gpufleet.mig.kubernetes_mig_manager": asked}] * times, check=check)
        return results if times > 1 else results[0]

    return run


@pytest.fixture
def node(stage):
    """A node of the operator whose manager has done what it was told."""
    stage.operator()
    machine = stage.operator_node("node-1", **{"nvidia.com/mig.config": "all-disabled"})
    assert stage.settles("node-1", **{"nvidia.com/gpu": 1})
    assert stage.cluster.wait_for(lambda: stage.labels("node-1").get(_mig_manager.STATE) == "success")
    return machine


def value_of(stage):
    return stage.labels("node-1").get(_mig_manager.CONFIG)


def uids_of(stage):
    return {pod["metadata"]["uid"] for pod in stage.pods("node-1", app="nvidia-mig-manager")}


@pytest.fixture
def named(stage, node, manager):
    """The node when the ClusterPolicy names our config map, for which the operator has made the manager's pod anew."""
    assert manager(set_policy=True, label="none", config=NONE)["changed"]
    assert (value_of(stage), state_of(stage)) == (WITHOUT, "success")
    return node


def path_of(pod):
    return f"/api/v1/namespaces/gpu-operator/pods/{pod['metadata']['name']}"


def crash(stage):
    """The pod of the manager waits for the kubelet to start it again."""
    for pod in stage.pods("node-1", app="nvidia-mig-manager"):
        stage.client.patch(f"{path_of(pod)}/status", {"status": running(pod, exit_status=1, restarts=7)})


def configs(stage, name="ours"):
    return yaml.safe_load(stage.client.get(f"{MAPS}/{name}")["data"]["config.yaml"])["mig-configs"]


def test_check_do_do_again_and_check_again(api, stage, node, manager):
    vendors = stage.client.get(f"{MAPS}/default-mig-parted-config")["data"]
    api.forget()
    assert manager(check=True, set_policy=True)["changed"]
    assert api.writes == []

    first, second = manager(times=2, set_policy=True)
    assert (first["changed"], second["changed"]) == (True, False)
    assert value_of(stage) == NAME
    assert configs(stage)[NAME] == SEVEN
    assert stage.client.get(POLICY)["spec"]["migManager"]["config"]["name"] == "ours"
    assert stage.client.get(f"{MAPS}/default-mig-parted-config")["data"] == vendors, "the vendor's stays as it is"
    assert stage.settles("node-1", **{"nvidia.com/mig-1g.5gb": 7})
    assert not manager(check=True)["changed"]
    assert _mig_manager.NOTE not in (stage.client.get("/api/v1/nodes/node-1")["metadata"].get("annotations") or {})


def test_without_leave_the_policy_of_all_nodes_is_not_touched(api, stage, node, manager):
    api.forget()
    failed = manager()
    assert failed["failed"]
    assert "has the config map 'default-mig-parted-config' for MIG and not 'ours'" in failed["msg"]
    assert api.writes == []


def test_a_config_that_was_edited_under_its_name_acts(stage, node, manager):
    assert manager(set_policy=True)["changed"]
    edited = [{**SEVEN[0], "mig-devices": {"3g.20gb": 2}}]
    name = _mig_manager.name_of("all-1g.5gb", edited)
    assert manager(config=edited)["changed"]
    assert value_of(stage) == name
    assert set(configs(stage)) >= {NAME, name}, "other nodes may have the old one"


def test_a_manager_that_got_stuck_is_called_again_by_another_name_of_the_same_content(stage, node, manager):
    node.manager.dies_at = "pending"
    failed = manager(set_policy=True, timeout=3)
    assert failed["failed"]
    stage.client.patch("/api/v1/nodes/node-1", {"metadata": {"labels": {_mig_manager.CONFIG: NAME}}})
    for pod in stage.pods("node-1", app="nvidia-mig-manager"):
        stage.client.delete(f"/api/v1/namespaces/gpu-operator/pods/{pod['metadata']['name']}")
    done = manager()
    assert done["changed"]
    assert stage.gpus["node-1"] == gpus(1, mig="7x1g.5gb")


def test_a_failure_of_what_is_wanted_is_tried_again_by_the_next_run(api, stage, node, manager):
    """Nobody else does: the manager acts on another value of its label only."""
    assert manager(set_policy=True)["changed"]
    stage.client.patch(path_to("node-1"), {"metadata": {"labels": {_mig_manager.STATE: "failed"}}})
    api.forget()
    assert manager(check=True)["changed"]
    assert api.writes == []
    (before,) = uids_of(stage)
    done, again = manager(times=2)
    assert (done["changed"], again["changed"]) == (True, False)
    assert (value_of(stage), state_of(stage)) == (NAME, "success")
    (after,) = uids_of(stage)
    assert after != before
    assert node.manager.runs[-1] == NAME, "what it has needs no call by another name"


def test_a_manager_that_came_while_the_driver_was_away_is_started_anew_by_the_next_run(stage, named, manager):
    named.manager.without_driver.update(uids_of(stage))
    failed = manager()
    assert failed["failed"]
    assert "run again, by which a manager that has failed is started anew" in failed["msg"]
    done, again = manager(times=2)
    assert (done["changed"], again["changed"]) == (True, False)
    assert stage.gpus["node-1"] == gpus(1, mig="7x1g.5gb")
    assert named.manager.without_driver.isdisjoint(uids_of(stage))


def test_a_manager_that_fails_again_when_it_was_started_anew_is_told_and_not_started_once_more(stage, node, manager):
    def fails(_config):
        raise RuntimeError("no driver at all")

    assert manager(set_policy=True)["changed"]
    node.manager.is_applied = lambda _config: False
    node.manager.apply = fails
    stage.client.patch(path_to("node-1"), {"metadata": {"labels": {_mig_manager.STATE: "failed"}}})
    seen, began = uids_of(stage), len(node.manager.runs)
    failed = manager()
    assert failed["failed"]
    assert f"says failed of {NAME}" in failed["msg"]
    assert node.manager.runs[began:] == [NAME, f"{NAME}-again", NAME], "anew, called, and back"
    assert len(uids_of(stage) - seen) == 1


def test_a_manager_that_crashes_is_started_anew_instead_of_waiting_for_the_kubelet(stage, named, manager):
    crash(stage)
    (before,) = uids_of(stage)
    done = manager()
    assert done["changed"]
    assert uids_of(stage) != {before}
    assert stage.gpus["node-1"] == gpus(1, mig="7x1g.5gb")


def test_a_manager_that_does_not_get_ready_is_named_and_no_gpu_is_touched(stage, named, manager):
    named.starts["nvidia-mig-manager*"] = math.inf
    began = len(named.manager.runs)
    crash(stage)
    failed = manager(ready_timeout=2)
    assert failed["failed"]
    assert not failed["altered"]
    assert "No pod of the MIG manager on node node-1 is ready after 2 s: pod gpu-operator/nvidia-mig-m" in failed["msg"]
    assert "look at the events and the log of the pod, and run again" in failed["msg"]
    assert value_of(stage) == WITHOUT
    assert named.manager.runs[began:] == []
    named.starts.clear()
    assert manager()["changed"], "what was begun is ended by the next run"


def test_a_manager_that_only_starts_is_waited_for_and_not_started_anew(stage, named, manager):
    named.starts["nvidia-mig-manager*"] = 2.0
    (before,) = stage.pods("node-1", app="nvidia-mig-manager")
    stage.client.delete(path_of(before))
    assert stage.cluster.wait_for(lambda: uids_of(stage) not in (set(), {before["metadata"]["uid"]}))
    seen = uids_of(stage)
    assert manager()["changed"]
    assert uids_of(stage) == seen


def test_a_manager_that_is_at_work_is_waited_for(stage, node, manager):
    """As on what a run asked for that was killed: what it says is said of that one."""
    assert manager(set_policy=True)["changed"]
    apply = node.manager.apply

    def slowly(config):
        time.sleep(3)
        apply(config)

    node.manager.apply = slowly
    stage.client.patch("/api/v1/nodes/node-1", {"metadata": {"labels": {_mig_manager.CONFIG: "all-3g.20gb"}}})
    assert stage.cluster.wait_for(lambda: state_of(stage) == "pending")
    assert manager()["changed"]
    assert node.manager.runs[-2:] == ["all-3g.20gb", NAME]
    assert stage.gpus["node-1"] == gpus(1, mig="7x1g.5gb")


def test_a_config_map_that_others_write_at_the_same_time_is_written_again(api, stage, node, manager):
    api.fail(MAPS, verb="create", code=409)
    api.fail(f"{MAPS}/ours", verb="patch", code=409, times=2)
    assert manager(set_policy=True)["changed"]
    assert configs(stage)[NAME] == SEVEN


def test_an_api_that_is_away_for_a_moment_does_not_end_the_wait(api, stage, node, manager):
    apply = node.manager.apply

    def with_trouble(config):
        api.fail("/api/v1/nodes/node-1", verb="get", code=500, times=2)
        time.sleep(3)
        apply(config)

    node.manager.apply = with_trouble
    assert manager(set_policy=True)["changed"]
    assert stage.gpus["node-1"] == gpus(1, mig="7x1g.5gb")


def test_a_failure_goes_back_to_the_label_from_before(stage, node, manager):
    def fails(_config):
        raise RuntimeError("no room")

    node.manager.apply = fails
    failed = manager(set_policy=True)
    assert failed["failed"]
    assert failed["rolled_back"]
    assert f"says failed of {NAME}. The node has all-disabled again, as before" in failed["msg"]
    assert value_of(stage) == "all-disabled"


def test_a_manager_that_gave_up_waiting_for_a_pod_goes_back_and_the_pod_is_named(stage, node, manager):
    node.ends = {"nvidia-dcgm-exporter-*": math.inf}
    node.manager.pod_timeout = 0.3
    failed = manager(set_policy=True, timeout=4)
    assert failed["failed"]
    assert "these pods were to end and have not: gpu-operator/nvidia-dcgm-exporter-" in failed["msg"]
    assert failed["rolled_back"]
    assert value_of(stage) == "all-disabled"
    assert _cordon.PAUSED not in stage.labels("node-1").values()


def test_a_node_without_a_manager_is_refused_at_once(api, stage, manager):
    stage.node("node-1")
    stage.operator()
    api.forget()
    failed = manager()
    assert failed["failed"]
    assert "has not the label nvidia.com/mig.capable=true" in failed["msg"]
    assert "Nothing was done." in failed["msg"]
    assert api.writes == []


def test_somebody_who_turns_the_label_back_is_told(stage, node, manager):
    """As a tool does that follows a repository."""

    def follow_a_repository():
        if stage.cluster.wait_for(lambda: (value_of(stage), state_of(stage)) == (NAME, "success")):
            turned_back = {"metadata": {"labels": {_mig_manager.CONFIG: "all-disabled"}}}
            stage.client.patch("/api/v1/nodes/node-1", turned_back)

    follower = threading.Thread(target=follow_a_repository)
    follower.start()
    failed = manager(set_policy=True, stays=15)
    follower.join()
    assert failed["failed"]
    assert "Somebody else has set the label" in failed["msg"]


def state_of(stage):
    return stage.labels("node-1").get(_mig_manager.STATE)
