# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The modules of kubernetes.core, unmodified, against the API and the stand-ins."""

from __future__ import annotations

import math
import typing as t

import pytest

from ansible_collections.gpufleet.mig.tests.kubernetes.running import Kill

pytestmark = pytest.mark.slow

CORE = "kubernetes.core."
LABELS = {"nvidia.com/mig.config": "all-1g.5gb"}
NODE = "/api/v1/nodes/node-1"


def label(value: dict[str, t.Any]) -> dict[str, t.Any]:
    definition = {"metadata": {"labels": value}}
    options = {"state": "patched", "api_version": "v1", "kind": "Node", "name": "node-1", "definition": definition}
    return {f"{CORE}k8s": options}


def drain(**options: t.Any) -> dict[str, t.Any]:
    wanted = {"ignore_daemonsets": True, "wait_sleep": 1, "wait_timeout": 10, **options}
    return {f"{CORE}k8s_drain": {"name": "node-1", "state": "drain", "delete_options": wanted}}


def test_labels_are_patched_once_and_foretold(api, stage, play) -> None:
    stage.node("node-1")
    stage.node("node-2", **{"nvidia.com/gpu.present": "true"})
    api.forget()
    (foretold,) = play(label(LABELS), check=True)
    assert foretold["changed"]
    assert api.writes == []
    first, second, found = play(
        label(LABELS),
        label(LABELS),
        {f"{CORE}k8s_info": {"kind": "Node", "label_selectors": ["nvidia.com/gpu.present=true"]}},
    )
    assert (first["changed"], second["changed"]) == (True, False)
    assert first["result"]["metadata"]["labels"]["nvidia.com/mig.config"] == "all-1g.5gb"
    assert [(one["kind"], one["metadata"]["name"]) for one in found["resources"]] == [("Node", "node-2")]
    assert {write.path for write in api.writes} == {NODE}


def test_objects_are_made_once_and_custom_ones_patched(api, stage, play) -> None:
    stage.operator()
    config = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "ours", "namespace": "gpu-operator"},
        "data": {"config.yaml": "version: v1\n"},
    }
    policy = {
        "state": "patched",
        "api_version": "nvidia.com/v1",
        "kind": "ClusterPolicy",
        "name": "cluster-policy",
        "definition": {"spec": {"migManager": {"config": {"name": "ours"}}}},
    }
    make, point = {f"{CORE}k8s": {"definition": config}}, {f"{CORE}k8s": policy}
    first, again, pointed, pointed_again, gone = play(
        make, make, point, point, {f"{CORE}k8s": {"definition": config, "state": "absent"}}
    )
    assert [one["changed"] for one in (first, again, pointed, pointed_again, gone)] == [True, False, True, False, True]
    assert pointed["result"]["spec"]["migManager"]["config"] == {"name": "ours", "default": "all-disabled"}
    assert stage.client.find("/api/v1/namespaces/gpu-operator/configmaps/ours") is None


def test_a_node_is_drained_and_comes_back(stage, play) -> None:
    stage.node("node-1")
    stage.plain("mixed")
    stage.pod("train", "node-1")
    assert stage.runs("train")
    drained, uncordoned = play(drain(), {f"{CORE}k8s_drain": {"name": "node-1", "state": "uncordon"}})
    assert drained["changed"], drained
    assert stage.names("node-1") == []
    assert stage.pods("node-1", app="nvidia-device-plugin")
    assert uncordoned["changed"]
    assert not stage.is_cordoned("node-1")


def test_a_drain_that_a_budget_or_a_pod_stops_says_so(stage, play) -> None:
    machine = stage.node("node-1")
    stage.budget("train", {"app": "train"}, allowed=0)
    stage.pod("train", "node-1", labels={"app": "train"})
    stage.pod("stuck", "node-1", namespace="other")
    assert stage.runs("train")
    assert stage.runs("stuck", "other")
    machine.ends = {"stuck": math.inf}
    (refused,) = play(drain())
    assert refused["failed"]
    assert "Cannot evict pod as it would violate the pod's disruption budget." in refused["msg"]
    assert stage.is_cordoned("node-1")
    stage.client.delete("/api/v1/namespaces/default/pods/train")
    (waited,) = play(drain(wait_timeout=1))
    assert "timeout reached while pods were still running." in waited["warnings"]


@pytest.mark.parametrize("carried_out", [True, False])
def test_a_run_that_is_killed_at_a_request_leaves_what_was_carried_out(api, stage, play, carried_out) -> None:
    stage.node("node-1")
    api.forget()
    play({f"{CORE}k8s_drain": {"name": "node-1", "state": "cordon"}})
    (number,) = [write.number for write in api.writes]
    stage.client.patch(NODE, {"spec": {"unschedulable": None}})
    api.forget()
    play({f"{CORE}k8s_drain": {"name": "node-1", "state": "cordon"}}, kill=Kill(api, number, carried_out))
    assert stage.is_cordoned("node-1") == carried_out
    assert [request.number for request in api.requests][-1] == number


def test_a_taint_and_a_restart_of_a_pod(stage, play) -> None:
    stage.node("node-1")
    stage.plain("mixed")
    assert stage.settles("node-1", **{"nvidia.com/gpu": 1}), stage
    (pod,) = stage.pods("node-1", app="nvidia-device-plugin")
    where = {"name": pod["metadata"]["name"], "namespace": pod["metadata"]["namespace"]}
    taints = [{"key": "gpufleet.mig/changing", "effect": "NoSchedule"}]
    # k8s_taint does not belong to the collection's action group, so the defaults of the group do not reach it.
    tainted, deleted = play(
        {f"{CORE}k8s_taint": {"kubeconfig": str(stage.kubeconfig), "name": "node-1", "taints": taints}},
        {f"{CORE}k8s": {"state": "absent", "kind": "Pod", "wait": True, "wait_timeout": 20, **where}},
    )
    assert tainted["changed"], tainted
    assert deleted["changed"], deleted
    assert stage.client.get(NODE)["spec"]["taints"] == taints
    assert stage.settles("node-1", **{"nvidia.com/gpu": 1}), stage
