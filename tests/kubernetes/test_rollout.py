# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The playbook mig over nodes of a cluster: simulated GPUs, an API, and on each node what NVIDIA's pods see there."""

from __future__ import annotations

import json

import pytest

from ansible_collections.gpufleet.mig.tests.kubernetes.gpus import Gpu
from ansible_collections.gpufleet.mig.tests.kubernetes.hosts import BOARD, fleet_of, gpus_of

WHOLE = {"nvidia.com/gpu": 1}
SEVEN = {"nvidia.com/mig-1g.5gb": 7}
SELECTORS = {
    "kubernetes_plugin_selector": "app=nvidia-device-plugin",
    "kubernetes_discovery_selector": "app=gpu-discovery",
}
DEPLOY = "nvidia.com/gpu.deploy."


@pytest.fixture
def fleet(stage, tmp_path):
    """Hosts node-1 and node-2 with an A100 each, as nodes of the cluster."""
    made = fleet_of(stage, tmp_path / "fleet", ("node-1", "node-2"))
    for name, simulator in made.simulators.items():
        stage.node(name, lambda simulator=simulator: gpus_of(simulator))
    return made


def run(fleet, *arguments, **variables):
    """A rollout with the labels that the pods of this cluster have."""
    return fleet.run("mig", *arguments, **{**SELECTORS, **variables})


def marks(stage, name):
    found = stage.client.get(f"/api/v1/nodes/{name}")["metadata"].get("annotations") or {}
    return [key for key in found if key.startswith("gpufleet.mig/")]


def test_check_do_and_do_again(api, stage, fleet):
    stage.plain("mixed")
    stage.pod("train", "node-1", grace=0, **WHOLE)
    assert all(stage.settles(name, **WHOLE) for name in fleet.simulators)
    api.forget()
    checked = run(fleet, "--check", mig_profile="all-1g.5gb")
    assert checked.rc == 0, checked.out
    assert "for the scheduler 1 nvidia.com/gpu -> 7 nvidia.com/mig-1g.5gb" in checked.out
    assert api.writes == []
    assert fleet.writes() == {}

    ran = run(fleet, mig_profile="all-1g.5gb")
    assert ran.rc == 0, ran.out
    for name in fleet.simulators:
        assert stage.settles(name, **SEVEN), stage
        assert not stage.is_cordoned(name)
        assert marks(stage, name) == []
    assert stage.names("node-1") == []

    fleet.writes()
    api.forget()
    again = run(fleet, mig_profile="all-1g.5gb")
    assert again.rc == 0, again.out
    assert again.changed == set()
    assert (api.writes, fleet.writes()) == ([], {})


def test_a_scheduler_that_only_a_play_names_is_refused_since_the_plan_knew_nothing_of_it(api, stage, fleet):
    stage.plain("single")
    assert all(stage.settles(name, **WHOLE) for name in fleet.simulators)
    del fleet.variables["mig_scheduler"]
    book = fleet.folder / "play.yml"
    book.write_text(
        json.dumps([{"import_playbook": "gpufleet.mig.mig", "vars": {"mig_scheduler": "kubernetes", **SELECTORS}}])
    )
    api.forget()
    ran = fleet.run(str(book), mig_profile="all-balanced")
    assert ran.rc == 2
    assert "mig_scheduler is kubernetes by what a play says" in ran.out
    assert (api.writes, fleet.writes()) == ([], {})


def test_hosts_of_two_clusters_are_not_planned_by_what_one_of_them_says(api, stage, fleet, tmp_path):
    fleet.group("other_cluster", "node-2", kubernetes_auth={"kubeconfig": str(tmp_path / "other")})
    api.forget()
    ran = run(fleet, mig_profile="all-1g.5gb")
    assert ran.rc == 2
    assert "Hosts of this run have different values of kubernetes_auth" in ran.out
    assert "Run once for each cluster, with mig_hosts" in " ".join(ran.out.split())
    assert (api.requests, fleet.writes()) == ([], {})


def test_where_the_cluster_does_not_answer_no_host_is_touched_not_even_one_that_is_no_node_of_it(fleet, tmp_path):
    fleet.add("bare", f"1x{BOARD}")
    fleet.group("without_scheduler", "bare", mig_scheduler="")
    fleet.variables["kubernetes_auth"] = {"kubeconfig": str(tmp_path / "none")}
    ran = run(fleet, mig_profile="all-1g.5gb")
    assert ran.rc == 2
    assert "No host was touched." in " ".join(ran.out.split())
    assert "Apply" not in ran.out
    assert fleet.writes() == {}


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"kubernetes_node": "node-1"}, "node-1 and node-2 are said to be the same node of Kubernetes, node-1"),
        ({"kubernetes_ready_timeout": "5m"}, "kubernetes_ready_timeout is '5m'; give a number of seconds"),
    ],
)
def test_what_would_drain_another_node_or_not_give_it_back_is_refused_before_any_drain(api, stage, fleet, said, words):
    stage.plain("mixed")
    assert all(stage.settles(name, **WHOLE) for name in fleet.simulators)
    api.forget()
    for more in (["--check"], []):
        ran = run(fleet, *more, mig_profile="all-1g.5gb", **said)
        assert ran.rc == 2
        assert words in " ".join(ran.out.split())
    assert (api.writes, fleet.writes()) == ([], {})


def test_the_plan_says_which_pods_have_to_leave_and_refuses_where_one_cannot(api, stage, fleet):
    stage.plain("mixed")
    assert all(stage.settles(name, **WHOLE) for name in fleet.simulators)
    stage.pod("train", "node-1", **WHOLE)
    stage.pod("alone", "node-2", owner="")
    assert stage.runs("train")
    assert stage.runs("alone")
    api.forget()
    ran = run(fleet, "--check", mig_profile="all-1g.5gb")
    assert ran.rc == 2
    out = " ".join(ran.out.split())
    assert "Node node-2 cannot be drained: pod default/alone has no controller that would make another of it" in out
    assert "pods that have to leave node-1: default/train" in out
    assert api.writes == []


def test_a_node_without_a_device_plugin_is_not_drained_for_what_nobody_would_offer(api, stage, fleet):
    stage.plain("mixed")
    assert all(stage.settles(name, **WHOLE) for name in fleet.simulators)
    api.forget()
    ran = run(fleet, mig_profile="all-1g.5gb", kubernetes_plugin_selector="app=other", kubernetes_strategy="mixed")
    assert ran.rc == 2
    assert "No device plugin is on node node-1, and nobody would offer what it gets" in " ".join(ran.out.split())
    assert (api.writes, fleet.writes()) == ([], {})


def test_a_node_that_somebody_has_cordoned_for_something_else_is_neither_changed_nor_given_back(
    api, stage, fleet, play
):
    stage.plain("mixed")
    assert all(stage.settles(name, **WHOLE) for name in fleet.simulators)
    auth = {"kubeconfig": str(stage.kubeconfig)}
    play({"gpufleet.mig.kubernetes_node": {"name": "node-1", "state": "drained", "run": "driver", "auth": auth}})
    api.forget()
    ran = run(fleet, mig_profile="all-1g.5gb")
    assert ran.rc == 2
    said = "Node node-1 was cordoned by the run 'driver', which is no rollout, and is left to it"
    assert said in " ".join(ran.out.split())
    assert (api.writes, fleet.writes(), stage.is_cordoned("node-1")) == ([], {}, True)

    at_the_drain = {"name": "node-1", "state": "drained", "drained_for": "all-1g.5gb", "auth": auth}
    (result,) = play({"gpufleet.mig.kubernetes_node": at_the_drain})
    assert result["msg"].startswith(said)


def test_a_node_that_is_right_and_does_not_offer_it_is_told(stage, fleet):
    stage.plain("mixed")
    assert all(stage.settles(name, **WHOLE) for name in fleet.simulators)
    for name in fleet.simulators:
        stage.client.patch(f"/api/v1/nodes/{name}/status", {"status": {"allocatable": {"nvidia.com/gpu": "0"}}})
    ran = run(fleet, "--check", mig_profile="all-disabled")
    out = " ".join(ran.out.split())
    assert "does not offer what it has (" in out
    assert "look at its device plugin (kube-system/nvidia-device-plugin" in out


def test_a_pod_of_a_daemonset_that_has_a_device_is_not_drained_away_under_it(api, stage, fleet):
    stage.plain("mixed")
    assert all(stage.settles(name, **WHOLE) for name in fleet.simulators)
    stage.daemonset("agent", **WHOLE)
    for name in fleet.simulators:
        assert stage.cluster.wait_for(lambda name=name: len(stage.pods(name, app="agent")) == 1)
    api.forget()
    ran = run(fleet, mig_profile="all-1g.5gb")
    assert ran.rc == 2
    assert "has devices of this node, and daemonset agent brings it back" in " ".join(ran.out.split())
    assert (api.writes, fleet.writes()) == ([], {})


AUTH = {"kubeconfig": "{{ inventory_dir }}/{{ cluster }}.kubeconfig"}


def test_a_connection_is_filled_in_with_the_variables_of_the_hosts_whose_it_is(stage, fleet):
    """One host asks for all of a play, and it may be of no cluster, or of another one."""
    stage.plain("mixed")
    assert all(stage.settles(name, **WHOLE) for name in fleet.simulators)
    fleet.add("bare", f"1x{BOARD}")
    fleet.hosts = {"bare": fleet.hosts["bare"], **fleet.hosts}
    (fleet.folder / "east.kubeconfig").symlink_to(stage.kubeconfig)
    fleet.variables.update(kubernetes_auth=AUTH, cluster="west", mig_scheduler="")
    fleet.group("east", "node-1", "node-2", cluster="east", mig_scheduler="kubernetes")
    ran = run(fleet, mig_profile="all-1g.5gb")
    assert ran.rc == 0, ran.out
    assert "for the scheduler 1 nvidia.com/gpu -> 7 nvidia.com/mig-1g.5gb" in ran.out
    assert fleet.devices() == dict.fromkeys(("bare", "node-1", "node-2"), "7x1g.5gb")
    for name in ("node-1", "node-2"):
        assert stage.settles(name, **SEVEN), stage
        assert not stage.is_cordoned(name)


def test_connections_that_are_alike_until_they_are_filled_in_are_not_one_cluster(api, stage, fleet):
    (fleet.folder / "node-1.kubeconfig").symlink_to(stage.kubeconfig)
    fleet.variables.update(kubernetes_auth=AUTH, cluster="{{ inventory_hostname }}")
    ran = run(fleet, mig_profile="all-1g.5gb")
    assert ran.rc == 2
    assert "Hosts of this run have different values of kubernetes_auth" in ran.out
    assert (api.requests, fleet.writes()) == ([], {})

    stage.plain("mixed")
    assert stage.settles("node-1", **WHOLE)
    ran = run(fleet, "--check", mig_profile="all-1g.5gb", mig_hosts="node-1")
    assert ran.rc == 0, ran.out
    assert "for the scheduler 1 nvidia.com/gpu -> 7 nvidia.com/mig-1g.5gb" in ran.out


def test_strategy_and_layout_are_changed_by_one_rollout_where_pods_are_replaced_on_deletion(stage, fleet):
    """The daemonset has the new strategy, and the pod of a node goes on with the old one until its node is changed."""
    stage.plain("mixed")
    assert all(stage.settles(name, **WHOLE) for name in fleet.simulators)
    assert run(fleet, mig_profile="all-balanced").rc == 0
    stage.next_pods("single")
    ran = run(fleet, mig_profile="all-1g.5gb")
    assert ran.rc == 0, ran.out
    assert "-> 7 nvidia.com/gpu" in ran.out
    for name in fleet.simulators:
        assert stage.settles(name, **{"nvidia.com/gpu": 7}), stage


def test_a_layout_that_the_strategy_cannot_have_is_refused_before_any_drain(api, stage, fleet):
    stage.plain("single")
    assert all(stage.settles(name, **WHOLE) for name in fleet.simulators)
    api.forget()
    ran = run(fleet, mig_profile="all-balanced")
    assert ran.rc == 2
    assert "refused (scheduler), node-1 and node-2:" in ran.out
    assert "choose the strategy mixed" in ran.out
    assert (api.writes, fleet.writes()) == ([], {})


def test_a_budget_that_keeps_a_pod_stops_the_rollout_and_the_node_is_given_back(stage, fleet):
    stage.plain("mixed")
    stage.pod("train", "node-1", grace=0, labels={"app": "train"}, **WHOLE)
    assert stage.runs("train")
    stage.budget("keep", {"app": "train"}, allowed=0)
    ran = run(fleet, mig_profile="all-1g.5gb", kubernetes_drain_timeout=2)
    assert ran.rc == 2
    assert "Left are default/train (Kubernetes did not evict pod default/train" in ran.out
    assert "No GPU was touched" in ran.out, ran.out
    assert fleet.writes() == {}
    assert not stage.is_cordoned("node-1")
    assert stage.names("node-1") == ["train"]


def test_what_the_operator_deploys_goes_for_a_mode_change_and_comes_back(stage, fleet):
    stage.operator()
    labels = {"nvidia.com/gpu.present": "true", **{f"{DEPLOY}{part}": "true" for part in ("device-plugin", "dcgm")}}
    for name in fleet.simulators:
        stage.client.patch(f"/api/v1/nodes/{name}", {"metadata": {"labels": labels}})
        assert stage.settles(name, **WHOLE)
    ran = run(
        fleet,
        mig_profile="all-1g.5gb",
        kubernetes_plugin_selector="app=nvidia-device-plugin-daemonset",
        kubernetes_discovery_selector="",
    )
    assert ran.rc == 0, ran.out
    for name in fleet.simulators:
        assert stage.settles(name, **SEVEN), stage
        assert {key: stage.labels(name)[key] for key in labels} == labels
        assert marks(stage, name) == []


def test_a_node_that_does_not_offer_what_it_has_stays_cordoned_and_the_next_run_goes_on(stage, fleet):
    stage.plain("mixed")
    assert all(stage.settles(name, **WHOLE) for name in fleet.simulators)
    machine = stage.cluster.machines["node-1"]
    sees, machine.layout = machine.layout, lambda: [Gpu(BOARD)]  # a plugin that goes on to see the old layout
    ran = run(fleet, mig_profile="all-1g.5gb", kubernetes_ready_timeout=3)
    assert ran.rc == 2
    assert "The layout of node node-1 is right, and Kubernetes does not offer it after 3 s" in ran.out
    assert stage.is_cordoned("node-1")
    assert set(fleet.writes()) == {"node-1"}

    machine.layout = sees
    ran = run(fleet, mig_profile="all-1g.5gb")
    assert ran.rc == 0, ran.out
    assert not stage.is_cordoned("node-1")
    assert stage.settles("node-1", **SEVEN)
    assert stage.settles("node-2", **SEVEN)


def test_a_node_that_does_not_offer_what_it_has_keeps_no_other_of_its_wave_cordoned(stage, fleet):
    stage.plain("mixed")
    assert all(stage.settles(name, **WHOLE) for name in fleet.simulators)
    stage.cluster.machines["node-1"].layout = lambda: [Gpu(BOARD)]
    ran = run(fleet, mig_profile="all-1g.5gb", mig_serial="2", kubernetes_ready_timeout=10)
    assert ran.rc == 2
    assert ran.failed == {"node-1"}, ran.out
    assert "does not offer it after 10 s" in ran.out
    assert "This host stays drained." in ran.out
    assert (stage.is_cordoned("node-1"), stage.is_cordoned("node-2")) == (True, False)
    assert marks(stage, "node-2") == []
