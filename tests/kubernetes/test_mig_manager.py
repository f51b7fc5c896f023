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

SEVEN = [{"devices": "all", "mig-enabled": True, "mig-devices": {"1g.5gb": 7}}]
NAME = _mig_manager.name_of("all-1g.5gb", SEVEN)
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
