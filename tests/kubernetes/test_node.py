# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""kubernetes_node: a node is taken out of use and given back as it was, whatever happens on the way."""

from __future__ import annotations

import json
import math
import typing as t

import pytest

from ansible_collections.gpufleet.mig.tests.kubernetes.running import Kill

NODE = "/api/v1/nodes/node-1"
GPU = {"nvidia.com/gpu": 1}
CORDON = "gpufleet.mig/cordon"


@pytest.fixture
def node(play, kubeconfig):
    """Runs kubernetes_node once, or once for each of several states."""

    def run(*states: str, check: bool = False, **options: t.Any) -> t.Any:
        auth = {"kubeconfig": str(kubeconfig)}
        asked = [{"name": "node-1", "state": state, "auth": auth, "timeout": 20, **options} for state in states]
        results = play(*({"gpufleet.mig.kubernetes_node": each} for each in asked), check=check)
        return results if len(states) > 1 else results[0]

    return run


def found(stage):
    """Whether the node is cordoned, and what is remembered of it."""
    seen = stage.client.get(NODE)
    text = (seen["metadata"].get("annotations") or {}).get(CORDON)
    return bool(seen["spec"].get("unschedulable")), json.loads(text) if text else None


def test_what_a_survey_left_open_is_the_default(stage, node):
    stage.node("node-1")
    stage.pod("web", "node-1", grace=0)
    assert stage.runs("web")
    done = node("drained", pods="", force="", grace_period="", timeout="", drained_for="")
    assert (done["changed"], stage.names("node-1")) == (True, []), done
    assert found(stage)[1]["drained_for"] == "", "of a rollout, whose layout has no label"


def test_check_do_do_again_and_give_back(api, stage, node):
    stage.node("node-1")
    stage.pod("train", "node-1", grace=0, **GPU)
    stage.pod("web", "node-1", grace=0)
    assert stage.runs("train")
    assert stage.runs("web")
    api.forget()

    foretold = node("drained", check=True, pods="gpu", run="run-1")
    assert foretold["changed"]
    assert foretold["pods"] == ["default/train"]
    assert api.writes == []
    assert found(stage) == (False, None)

    done, again = node("drained", "drained", pods="gpu", run="run-1")
    assert done["changed"]
    assert not again["changed"]
    assert stage.names("node-1") == ["web"]
    assert found(stage) == (True, {"run": "run-1", "was_unschedulable": False})
    assert not node("drained", check=True, pods="gpu", run="run-1")["changed"]

    foretold = node("uncordoned", check=True)
    assert foretold["changed"]
    assert found(stage)[0]
    given_back, again = node("uncordoned", "uncordoned")
    assert (given_back["changed"], again["changed"]) == (True, False)
    assert found(stage) == (False, None)
    assert "was not cordoned by gpufleet.mig" in again["msg"]


def test_a_node_that_is_drained_for_another_layout_is_left_to_that_run_unless_it_is_taken_over(stage, node):
    stage.node("node-1")
    node("cordoned", run="first", drained_for="all-1g.5gb")
    kept = found(stage)
    refused = node("drained", run="second", drained_for="all-balanced")
    assert refused["failed"]
    assert "Another run has drained node node-1 for all-1g.5gb, and not given it back." in refused["msg"]
    assert "run again with -e mig_take_over_drain=true" in refused["msg"]
    assert found(stage) == kept
    taken = node("cordoned", run="second", drained_for="all-balanced", take_over_drain=True)
    assert taken["found_run"] == "first"
    assert found(stage) == (True, {"run": "second", "was_unschedulable": False, "drained_for": "all-balanced"})


def test_a_node_that_was_cordoned_before_stays_so(stage, node):
    stage.node("node-1")
    stage.client.patch(NODE, {"spec": {"unschedulable": True}})
    cordoned, given_back = node("cordoned", "uncordoned")
    assert cordoned["changed"]
    assert given_back["was_unschedulable"] is True
    assert "stays cordoned, as it was before" in given_back["msg"]
    assert found(stage) == (True, None)


def test_the_cordon_of_somebody_else_is_not_taken_back(api, stage, node):
    stage.node("node-1")
    stage.client.patch(NODE, {"spec": {"unschedulable": True}})
    api.forget()
    assert not node("uncordoned")["changed"]
    assert api.writes == []
    assert found(stage) == (True, None)


# What a drain of one pod asks. The first two are the client's own.
REQUESTS = [
    "get /version",
    "get /apis",
    "list /api/v1/pods",
    f"get {NODE}",
    f"get {NODE}",
    f"patch {NODE}",
    "list /api/v1/pods",
    "create /api/v1/namespaces/default/pods/train/eviction",
    "list /api/v1/pods",
]


def test_a_drain_asks_no_more_than_it_needs(api, stage, node):
    stage.node("node-1")
    stage.pod("train", "node-1", grace=0)
    assert stage.runs("train")
    api.forget()
    node("drained")
    asked = [str(request) for request in api.requests if not request.of_a_stand_in]
    assert asked[: len(REQUESTS)] == REQUESTS
    assert set(asked[len(REQUESTS) :]) <= {REQUESTS[-1]}, "until the pod is gone"


@pytest.mark.parametrize("carried_out", [True, False], ids=["carried out", "not carried out"])
@pytest.mark.parametrize("number", range(1, len(REQUESTS) + 1))
def test_wherever_a_run_is_killed_the_next_one_drains_and_gives_back(
    api, stage, node, play, kubeconfig, number, carried_out
):
    stage.node("node-1")
    stage.pod("train", "node-1", grace=0)
    assert stage.runs("train")
    api.forget()
    asked = {"name": "node-1", "state": "drained", "run": "killed", "auth": {"kubeconfig": str(kubeconfig)}}
    play({"gpufleet.mig.kubernetes_node": asked}, kill=Kill(api, number, carried_out))

    drained, given_back = node("drained", "uncordoned", run="next")
    assert "failed" not in drained or not drained["failed"]
    assert drained["found_run"] in ("", "killed")
    assert stage.names("node-1") == []
    assert given_back["was_unschedulable"] is False
    assert found(stage) == (False, None)


def test_somebody_who_was_quicker_is_not_overwritten(api, stage, node):
    stage.node("node-1")
    api.fail(NODE, verb="patch", code=409, times=3)
    assert node("cordoned")["changed"]
    assert found(stage) == (True, {"run": "ansible", "was_unschedulable": False})


def test_a_server_that_is_busy_is_asked_again(api, stage, node):
    stage.node("node-1")
    api.fail(NODE, verb="patch", code=429, times=2)
    assert node("cordoned")["changed"]


def test_a_node_that_others_change_all_the_time_is_given_up_with_a_word(api, stage, node):
    stage.node("node-1")
    api.fail(NODE, verb="patch", code=409, times=1000)
    given_up = node("cordoned")
    assert given_up["failed"]
    assert "was changed by others each time" in given_up["msg"]


def test_a_server_that_refuses_or_does_not_answer_is_told_in_its_own_words(api, stage, node):
    stage.node("node-1")
    api.fail(NODE, verb="patch", code=500, times=1)
    failed = node("cordoned")
    assert failed["failed"]
    assert failed["msg"].startswith("Kubernetes did not patch node node-1: ")


def test_a_node_that_is_not_there_is_told(api, node):
    for state in ("cordoned", "uncordoned"):
        failed = node(state)
        assert failed["failed"]
        assert 'nodes "node-1" not found' in failed["msg"]


def test_a_budget_that_does_not_permit_it_is_waited_for(stage, node):
    stage.node("node-1")
    stage.pod("train", "node-1", grace=0, labels={"app": "train"})
    assert stage.runs("train")
    budget = stage.budget("keep", {"app": "train"}, allowed=0)
    refused = node("drained", timeout=2)
    assert refused["failed"]
    assert "is not drained after 2 s. Left are default/train" in refused["msg"]
    assert "disruption budget" in refused["msg"]
    assert found(stage)[0]
    assert stage.names("node-1") == ["train"]

    stage.allow(budget, allowed=1)
    assert node("drained")["changed"]
    assert stage.names("node-1") == []


def test_a_pod_that_does_not_end_is_named(stage, node):
    machine = stage.node("node-1")
    machine.ends["stuck"] = math.inf
    stage.pod("stuck", "node-1", grace=1)
    assert stage.runs("stuck")
    failed = node("drained", timeout=2)
    assert failed["failed"]
    assert "default/stuck (it was told to end and has not)" in failed["msg"]


def test_nothing_is_evicted_and_the_node_stays_in_use_where_one_pod_must_not_go(api, stage, node):
    stage.node("node-1")
    stage.pod("train", "node-1", grace=0)
    stage.pod("alone", "node-1", grace=0, owner="")
    assert stage.runs("alone")
    api.forget()
    failed = node("drained")
    assert failed["failed"]
    assert "pod default/alone has no controller that would make another of it" in failed["msg"]
    assert api.writes == []
    assert node("drained", force=True)["changed"]
    assert stage.names("node-1") == []


DEPLOY = "nvidia.com/gpu.deploy."
PAUSE = {
    "labels": [f"{DEPLOY}{part}" for part in ("device-plugin", "gpu-feature-discovery", "dcgm-exporter", "dcgm")],
    "paused_pods": ["app=nvidia-device-plugin-daemonset", "app=gpu-feature-discovery"],
}


def test_check_pause_pause_again_and_resume(api, stage, node):
    stage.operator()
    stage.operator_node("node-1", **{f"{DEPLOY}dcgm-exporter": "false"})
    assert stage.settles("node-1", **{"nvidia.com/gpu": 1})
    before = stage.labels("node-1")
    api.forget()
    assert node("paused", check=True, **PAUSE)["changed"]
    assert api.writes == []

    first, second = node("paused", "paused", **PAUSE)
    assert (first["changed"], second["changed"]) == (True, False)
    assert stage.allocatable("node-1") == {"nvidia.com/gpu": "0"}
    assert stage.labels("node-1")[f"{DEPLOY}dcgm-exporter"] == "false"

    resumed, again = node("resumed", "resumed", labels=PAUSE["labels"])
    assert (resumed["changed"], again["changed"]) == (True, False)
    assert stage.settles("node-1", **{"nvidia.com/gpu": 1})
    assert stage.labels("node-1") == before


def test_pods_that_no_label_deploys_keep_away_from_a_paused_node_and_come_back(stage, node):
    stage.node("node-1")
    stage.plain("mixed")
    assert stage.settles("node-1", **{"nvidia.com/gpu": 1})
    plain = {"labels": PAUSE["labels"], "paused_pods": ["app=nvidia-device-plugin", "app=gpu-discovery"]}
    paused, again = node("paused", "paused", **plain)
    assert (paused["changed"], paused["staying"], again["changed"]) == (True, [], False)
    assert stage.pods("node-1") == []
    assert node("resumed")["changed"]
    assert stage.settles("node-1", **{"nvidia.com/gpu": 1})
    assert "gpufleet.mig/paused" not in stage.client.get(NODE)["metadata"]["labels"]


def test_a_pod_that_heeds_no_label_stays_and_is_told(stage, node):
    stage.node("node-1")
    stage.daemonset("theirs", "nvidia-device-plugin-ctr", strategy="mixed")
    assert stage.settles("node-1", **{"nvidia.com/gpu": 1})
    paused = node("paused", labels=PAUSE["labels"], paused_pods=["app=theirs"])
    assert not paused.get("failed")
    (stays,) = paused["staying"]
    assert stays.startswith("kube-system/theirs-")
    assert "have their daemonset keep away from nodes with the label gpufleet.mig/paused" in paused["warnings"][0]


def test_a_pod_that_a_pause_does_not_end_is_named(stage, node):
    stage.operator()
    machine = stage.operator_node("node-1")
    assert stage.settles("node-1", **{"nvidia.com/gpu": 1})
    machine.ends["nvidia-device-plugin*"] = math.inf
    failed = node("paused", **{**PAUSE, "timeout": 2})
    assert failed["failed"]
    assert "its pods gpu-operator/nvidia-device-plugin-daemonset" in failed["msg"]


def test_pods_of_daemonsets_stay(stage, node):
    stage.node("node-1")
    stage.plain("mixed")
    assert stage.settles("node-1", **{"nvidia.com/gpu": 1})
    assert node("drained")["pods"] == []
    assert len(stage.pods("node-1")) == 2
