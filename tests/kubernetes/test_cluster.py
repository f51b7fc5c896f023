# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The stand-ins behave as kubelet, controllers and NVIDIA's pods do. All of this holds on a real API server, too."""

from __future__ import annotations

import math

import pytest
import yaml

from ansible_collections.gpufleet.mig.tests.kubernetes.gpus import RECORDED, Gpu, gpus, key_of, recorded
from ansible_collections.gpufleet.mig.tests.kubernetes.kubelet import (
    CONFIG,
    DEFAULT_CONFIGS,
    DEPLOY,
    OPERATOR,
    PAUSED,
    POLICIES,
    STATE,
    Machine,
    NeedsRebootError,
    is_ready,
    path_to,
)
from ansible_collections.gpufleet.mig.tests.kubernetes.stage import Stage, everywhere

GPU = "nvidia.com/gpu"
SMALL = "nvidia.com/mig-1g.5gb"
PODS = "/api/v1/namespaces/default/pods"


def restart(stage: Stage, node: str, name: str) -> None:
    """Deletes the pod of this daemonset on this node."""
    for pod in stage.pods(node):
        if pod["metadata"]["name"].startswith(name):
            stage.client.delete(f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}")


def test_the_plugin_offers_what_it_found_when_it_started(stage) -> None:
    """The classic: eight full GPUs, 56 slices, and what stays behind on the node."""
    stage.node("node-1", gpus(8))
    stage.plain("mixed")
    assert stage.settles("node-1", **{GPU: 8}), stage
    assert stage.cluster.wait_for(lambda: stage.labels("node-1").get("nvidia.com/gpu.count") == "8")

    stage.gpus["node-1"] = gpus(8, mig="7x1g.5gb")
    uid = stage.pods("node-1", app="nvidia-device-plugin")[0]["metadata"]["uid"]
    assert stage.settles("node-1", **{GPU: 8}), "it must not notice by itself"
    restart(stage, "node-1", "nvidia-device-plugin")
    assert stage.settles("node-1", **{SMALL: 56}), stage
    assert stage.pods("node-1", app="nvidia-device-plugin")[0]["metadata"]["uid"] != uid
    assert stage.allocatable("node-1") == {GPU: "0", SMALL: "56"}
    assert stage.capacity("node-1") == {GPU: "8", SMALL: "56"}, "capacity outlives the plugin by five minutes"

    assert stage.labels("node-1")["nvidia.com/gpu.count"] == "8"
    assert "nvidia.com/mig-1g.5gb.count" not in stage.labels("node-1"), "labels follow gpu-feature-discovery only"
    restart(stage, "node-1", "gpu-discovery")
    assert stage.cluster.wait_for(lambda: "nvidia.com/mig-1g.5gb.count" in stage.labels("node-1"))
    stage.gpus["node-1"] = gpus(8)
    restart(stage, "node-1", "gpu-discovery")
    assert stage.cluster.wait_for(lambda: "nvidia.com/mig-1g.5gb.count" not in stage.labels("node-1"))


def test_a_capacity_that_nobody_offers_any_more_becomes_zero_in_the_end(stage) -> None:
    stage.node("node-1", gpus(1)).keeps_capacity = 0.1
    stage.plain("mixed")
    assert stage.settles("node-1", **{GPU: 1}), stage
    stage.gpus["node-1"] = gpus(1, mig="7x1g.5gb")
    restart(stage, "node-1", "nvidia-device-plugin")
    assert stage.cluster.wait_for(lambda: stage.capacity("node-1") == {GPU: "0", SMALL: "7"}), stage


def test_a_layout_that_the_plugin_refuses_lets_it_crash_until_it_is_right(stage) -> None:
    stage.node("node-1", gpus(1, mig="2x1g.5gb,1x2g.10gb,1x3g.20gb"))
    stage.plain("single")
    path = "nvidia-device-plugin"

    def waiting() -> bool:
        pods = stage.pods("node-1", app=path)
        states = [one for pod in pods for one in pod["status"].get("containerStatuses", [])]
        return any("waiting" in one["state"] and one["restartCount"] >= 2 for one in states)

    assert stage.cluster.wait_for(waiting), stage
    assert set(stage.allocatable("node-1").values()) <= {"0"}
    assert stage.labels("node-1")["nvidia.com/gpu.product"] == "NVIDIA-A100-SXM4-40GB-MIG-INVALID"
    stage.gpus["node-1"] = gpus(1, mig="7x1g.5gb")
    assert stage.settles("node-1", **{GPU: 7}), stage


def test_a_layout_that_nobody_recorded_stops_the_test(kubeconfig) -> None:
    with pytest.raises(LookupError, match="5x a30-24gb on"):
        recorded(gpus(5, "a30-24gb", "on"), "mixed")
    assert key_of([Gpu("a30-24gb", ("2g.12gb", "1g.6gb", "1g.6gb")), Gpu("a30-24gb")]) == (
        "1x a30-24gb 2x1g.6gb,1x2g.12gb; 1x a30-24gb off"
    )
    assert RECORDED.exists()


def test_a_daemonset_is_where_its_selector_says(stage) -> None:
    label = f"{DEPLOY}device-plugin"
    stage.node("node-1", gpus(1), **{label: "true"})
    stage.node("node-2", gpus(1))
    stage.daemonset("any-name", "nvidia-device-plugin-ctr", selects={label: "true"})
    assert stage.settles("node-1", **{GPU: 1}), stage
    assert stage.pods("node-2") == []

    stage.client.patch(path_to("node-1"), {"metadata": {"labels": {label: PAUSED}}})
    assert stage.cluster.wait_for(lambda: not stage.pods("node-1")), stage
    assert stage.allocatable("node-1") == {GPU: "0"}
    stage.client.patch(path_to("node-1"), {"metadata": {"labels": {label: "true"}}})
    assert stage.settles("node-1", **{GPU: 1}), stage

    # A changed template replaces the pods; a deleted daemonset takes them along.
    path = "/apis/apps/v1/namespaces/kube-system/daemonsets/any-name"
    env = [{"name": "any-name", "image": "other:2"}]
    stage.client.patch(path, {"spec": {"template": {"spec": {"containers": env}}}})
    assert stage.cluster.wait_for(
        lambda: [pod["spec"]["containers"][0]["image"] for pod in stage.pods()] == ["other:2"]
    )

    def counted() -> bool:
        found = stage.client.get(path)
        status = found["status"]  # zeros may be left out
        current = status["observedGeneration"] == found["metadata"]["generation"]
        return current and status["numberReady"] == status.get("updatedNumberScheduled") == 1

    assert stage.cluster.wait_for(counted), stage
    stage.client.delete(path)
    assert stage.cluster.wait_for(lambda: not stage.pods()), stage


def test_pods_end_when_they_do(stage) -> None:
    machine = stage.node("node-1")
    machine.ends = {"slow": 0.4, "stuck": math.inf}
    for name in ("quick", "slow", "stuck"):
        stage.pod(name, "node-1", grace=30)
        assert stage.runs(name)
        stage.client.delete(f"{PODS}/{name}")
    assert stage.is_gone("quick")
    assert stage.is_gone("slow")
    assert stage.names() == ["stuck"]
    assert "deletionTimestamp" in stage.pods()[0]["metadata"]
    machine.ends.clear()
    stage.cluster.wake()
    assert stage.is_gone("stuck")


def test_pods_start_when_they_do(stage) -> None:
    found = gpus(1, mig="7x1g.5gb")
    machine = stage.node("node-1", lambda: found)
    machine.starts = {"nvidia-device-plugin-*": math.inf, "never": math.inf}
    stage.plain("mixed")
    stage.pod("never", "node-1")
    assert stage.cluster.wait_for(lambda: stage.labels("node-1").get("nvidia.com/mig-1g.5gb.count") == "7"), stage
    assert stage.allocatable("node-1") == {}
    machine.starts["nvidia-device-plugin-*"] = 0.05
    stage.cluster.wake()
    assert stage.cluster.wait_for(lambda: stage.allocatable("node-1") == {SMALL: "7"}), stage
    assert [pod["status"]["phase"] for pod in stage.pods(app="never")] == ["Pending"]


def test_pods_of_a_node_that_is_gone_go_too(stage) -> None:
    stage.node("node-1")
    stage.pod("train", "node-1")
    assert stage.runs("train")
    stage.client.delete(path_to("node-1"))
    assert stage.is_gone("train")


def test_a_pod_comes_onto_a_node_that_has_what_it_requests(stage) -> None:
    stage.node("node-1", gpus(1, mig="7x1g.5gb"))
    stage.plain("mixed")
    assert stage.settles("node-1", **{SMALL: 7}), stage
    stage.pod("fits", **{SMALL: 5})
    assert stage.runs("fits")
    stage.pod("too-much", **{SMALL: 3})
    stage.pod("wrong", **{GPU: 1})

    def told(name: str) -> str:
        conditions = stage.client.get(f"{PODS}/{name}")["status"].get("conditions") or [{"message": ""}]
        return str(conditions[0].get("message"))

    assert stage.cluster.wait_for(lambda: told("wrong") == "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.")
    assert stage.cluster.wait_for(lambda: "1 Insufficient nvidia.com/mig-1g.5gb" in told("too-much"))
    stage.client.delete(f"{PODS}/fits")
    assert stage.runs("too-much")


@pytest.fixture
def operated(stage) -> Machine:
    """A node of gpu-operator with one GPU."""
    stage.operator("single")
    machine = stage.operator_node("node-1", gpus(1), **{CONFIG: "all-disabled", f"{DEPLOY}dcgm": "false"})
    assert stage.cluster.wait_for(lambda: stage.labels("node-1").get(STATE) == "success"), stage
    assert stage.settles("node-1", **{GPU: 1}), stage
    return machine


def want(stage: Stage, config: str | None) -> None:
    stage.client.patch(path_to("node-1"), {"metadata": {"labels": {CONFIG: config}}})


def test_mig_manager_applies_what_the_label_says(stage, operated) -> None:
    want(stage, "all-1g.5gb")
    assert stage.settles("node-1", **{GPU: 7}), stage
    assert stage.cluster.wait_for(lambda: stage.labels("node-1")[STATE] == "success")
    labels = stage.labels("node-1")
    assert (labels[f"{DEPLOY}device-plugin"], labels[f"{DEPLOY}dcgm"]) == ("true", "false")
    assert stage.cluster.wait_for(lambda: stage.labels("node-1")["nvidia.com/gpu.product"].endswith("MIG-1g.5gb"))

    # Another content under the same name is nothing to it; a label that was taken away and came back is.
    runs = list(operated.manager.runs)
    other = {"version": "v1", "mig-configs": {"all-1g.5gb": everywhere(**{"3g.20gb": 2})}}
    path = f"/api/v1/namespaces/{OPERATOR}/configmaps/{DEFAULT_CONFIGS}"
    stage.client.patch(path, {"data": {"config.yaml": yaml.safe_dump(other)}})
    want(stage, "all-1g.5gb")
    assert not stage.cluster.wait_for(lambda: operated.manager.runs != runs, seconds=0.3)
    want(stage, None)
    want(stage, "all-1g.5gb")
    assert stage.settles("node-1", **{GPU: 2}), stage


def test_the_operator_hands_on_what_its_policy_says(stage, operated) -> None:
    ours = {"version": "v1", "mig-configs": {"ours-1f3a": everywhere(**{"3g.20gb": 2})}}
    stage.config_map("ours", OPERATOR, **{"config.yaml": yaml.safe_dump(ours)})
    (manager,) = stage.pods("node-1", app="nvidia-mig-manager")
    spec = {"mig": {"strategy": "mixed"}, "migManager": {"config": {"name": "ours"}}}
    stage.client.patch(f"{POLICIES}/cluster-policy", {"spec": spec})

    def restarted() -> bool:
        pods = [pod for pod in stage.pods("node-1", app="nvidia-mig-manager") if is_ready(pod)]
        return bool(pods) and pods[0]["metadata"]["uid"] != manager["metadata"]["uid"]

    assert stage.cluster.wait_for(restarted), stage
    want(stage, "ours-1f3a")
    assert stage.settles("node-1", **{"nvidia.com/mig-3g.20gb": 2}), stage
    assert stage.cluster.wait_for(lambda: stage.labels("node-1").get("nvidia.com/mig.strategy") == "mixed"), stage


def test_mig_manager_fails_on_a_config_that_it_does_not_know(stage, operated) -> None:
    want(stage, "no-such")
    assert stage.cluster.wait_for(lambda: stage.labels("node-1")[STATE] == "failed")
    assert stage.allocatable("node-1") == {GPU: "1"}


def test_mig_manager_that_waits_too_long_for_a_pod_leaves_the_labels_paused(stage, operated) -> None:
    operated.ends = {"nvidia-dcgm-exporter-*": math.inf}
    operated.manager.pod_timeout = 0.3
    want(stage, "all-1g.5gb")
    assert stage.cluster.wait_for(lambda: stage.labels("node-1")[f"{DEPLOY}device-plugin"] == PAUSED)
    assert stage.cluster.wait_for(lambda: not operated.manager.busy)
    operated.ends.clear()
    stage.cluster.wake()
    assert stage.cluster.wait_for(lambda: not stage.pods("node-1", app="nvidia-dcgm-exporter"))
    labels = stage.labels("node-1")
    assert labels[STATE] == "pending"
    assert (labels[f"{DEPLOY}nvsm"], labels[f"{DEPLOY}dcgm"]) == (PAUSED, "false")
    assert stage.allocatable("node-1") == {GPU: "0"}
    # It goes on with another value only.
    want(stage, "all-disabled")
    assert stage.cluster.wait_for(lambda: stage.labels("node-1")[STATE] == "success")
    assert stage.settles("node-1", **{GPU: 1}), stage


@pytest.mark.parametrize(
    ("where", "paused", "changed"), [("pending", False, False), ("paused", True, False), ("applied", True, True)]
)
def test_mig_manager_that_dies_goes_on_with_its_next_pod(stage, operated, where, paused, changed) -> None:
    operated.manager.dies_at = where
    want(stage, "all-1g.5gb")
    assert stage.cluster.wait_for(lambda: not operated.manager.dies_at), stage
    labels = stage.labels("node-1")
    assert labels[STATE] == "pending"
    assert (labels[f"{DEPLOY}device-plugin"] == PAUSED) == paused
    assert (stage.gpus["node-1"] == gpus(1, mig="7x1g.5gb")) == changed
    assert not stage.cluster.wait_for(lambda: stage.labels("node-1")[STATE] != "pending", seconds=0.3)

    restart(stage, "node-1", "nvidia-mig-manager")
    assert stage.cluster.wait_for(lambda: stage.labels("node-1")[STATE] == "success"), stage
    assert stage.settles("node-1", **{GPU: 7}), stage


def test_mig_manager_that_fails_restores_the_labels_until_its_first_success(stage, operated) -> None:
    """Its flag for that is never reset, so what it leaves depends on what it did before."""

    def refuse(_config: str) -> None:
        raise RuntimeError("the driver said no")

    apply, operated.manager.apply = operated.manager.apply, refuse
    want(stage, "all-1g.5gb")
    assert stage.cluster.wait_for(lambda: stage.labels("node-1")[STATE] == "failed")
    assert stage.labels("node-1")[f"{DEPLOY}device-plugin"] == "true"

    operated.manager.apply = apply
    want(stage, "all-3g.20gb")
    assert stage.cluster.wait_for(lambda: stage.labels("node-1")[STATE] == "success")
    operated.manager.apply = refuse
    want(stage, "all-1g.5gb")
    assert stage.cluster.wait_for(lambda: stage.labels("node-1")[STATE] == "failed")
    assert stage.labels("node-1")[f"{DEPLOY}device-plugin"] == PAUSED


def test_mig_manager_that_needs_a_reboot_says_so_and_waits(stage, operated) -> None:
    def ask_for_a_reboot(_config: str) -> None:
        raise NeedsRebootError

    operated.manager.apply = ask_for_a_reboot
    want(stage, "all-1g.5gb")
    assert stage.cluster.wait_for(lambda: stage.labels("node-1")[STATE] == "rebooting")
    assert stage.labels("node-1")[f"{DEPLOY}device-plugin"] == PAUSED


def test_a_cordoned_node_is_tainted_by_somebody_else(stage) -> None:
    stage.node("node-1")

    def taints() -> list[str]:
        return [taint["key"] for taint in stage.client.get(path_to("node-1"))["spec"].get("taints") or []]

    stage.client.patch(
        path_to("node-1"), {"spec": {"unschedulable": True, "taints": [{"key": "a", "effect": "NoSchedule"}]}}
    )
    assert stage.cluster.wait_for(lambda: taints() == ["a", "node.kubernetes.io/unschedulable"])
    stage.client.patch(path_to("node-1"), {"spec": {"unschedulable": None}})
    assert stage.cluster.wait_for(lambda: taints() == ["a"])


def test_a_label_that_somebody_keeps_comes_back(stage) -> None:
    machine = stage.node("node-1", **{CONFIG: "theirs"})
    machine.kept = {CONFIG: "theirs"}
    want(stage, "ours")
    assert stage.cluster.wait_for(lambda: stage.labels("node-1")[CONFIG] == "theirs")


def test_mig_manager_runs_where_the_node_says_that_it_can_mig(stage) -> None:
    stage.operator()
    machine = stage.operator_node("node-1", gpus(1), **{"nvidia.com/mig.capable": "false"})
    assert stage.settles("node-1", **{GPU: 1}), stage
    assert stage.pods("node-1", app="nvidia-mig-manager") == []
    assert machine.manager.runs == []
    assert stage.client.get(f"/api/v1/namespaces/{OPERATOR}")["status"]["phase"] == "Active"


# --- what comes back, and what fits ------------------------------------------------------------------------------


def test_pods_of_a_replicaset_come_back_and_wait_where_they_do_not_fit(stage):
    stage.node("node-1", gpus(1))
    stage.plain("mixed")
    stage.replicas("train", 2, grace=0, **{"nvidia.com/gpu": 1})

    def phases():
        return sorted(pod["status"].get("phase", "") for pod in stage.pods(app="train"))

    assert stage.cluster.wait_for(lambda: phases() == ["Pending", "Running"]), stage
    (waiting,) = (pod for pod in stage.pods(app="train") if pod["status"].get("phase") == "Pending")
    assert stage.cluster.wait_for(lambda: why_waits(stage, waiting["metadata"]["name"]))
    told = why_waits(stage, waiting["metadata"]["name"])
    assert told == "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
    (running,) = (pod for pod in stage.pods(app="train") if pod["status"].get("phase") == "Running")
    stage.client.delete(f"/api/v1/namespaces/default/pods/{running['metadata']['name']}")
    assert stage.runs(waiting["metadata"]["name"])
    assert stage.cluster.wait_for(lambda: phases() == ["Pending", "Running"]), "another took its place"


def why_waits(stage, name):
    pod = stage.client.get(f"/api/v1/namespaces/default/pods/{name}")
    conditions = pod["status"].get("conditions") or []
    return next((one["message"] for one in conditions if one.get("reason") == "Unschedulable"), "")


def test_processes_of_pods_begin_and_end_with_them(stage):
    machine = stage.node("node-1", gpus(1))
    told = []
    machine.begins = lambda pod: told.append(("begins", pod["metadata"]["name"]))
    machine.finishes = lambda pod: told.append(("finishes", pod["metadata"]["name"]))
    stage.pod("train", "node-1", grace=0)
    assert stage.runs("train")
    stage.client.delete("/api/v1/namespaces/default/pods/train")
    assert stage.is_gone("train")
    both = [("begins", "train"), ("finishes", "train")]
    assert stage.cluster.wait_for(lambda: told == both), told
