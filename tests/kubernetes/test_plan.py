# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""kubernetes_plan: the plans of all hosts are held against Kubernetes with a few questions, and nothing is changed."""

from __future__ import annotations

from ansible_collections.gpufleet.mig.plugins.plugin_utils._mig_manager import DEPLOYED

A100 = "NVIDIA A100-SXM4-40GB"
OFF = {"gpu": 0, "name": A100, "mig_current": False, "devices": {}}
SEVEN = {"gpu": 0, "name": A100, "mig_current": True, "devices": {"1g.5gb": 7}}
BALANCED = {**SEVEN, "devices": {"1g.5gb": 2, "2g.10gb": 1, "3g.20gb": 1}}


def plan(play, kubeconfig, plans, **options):
    asked = {
        "nodes": dict.fromkeys(plans, ""),
        "plans": {host: {"before": [OFF], "after": [after]} for host, after in plans.items()},
        "plugin_selector": ["app=nvidia-device-plugin"],
        "auth": {"kubeconfig": str(kubeconfig)},
        **options,
    }
    (result,) = play({"gpufleet.mig.kubernetes_plan": asked})
    return result


def test_a_fleet_is_looked_at_with_a_few_questions(api, stage, play, kubeconfig):
    names = [f"node-{number}" for number in range(1, 9)]
    for name in names:
        stage.node(name)
    stage.plain("single")
    assert all(stage.settles(name, **{"nvidia.com/gpu": 1}) for name in names)
    api.forget()
    result = plan(play, kubeconfig, {**dict.fromkeys(names, SEVEN), "node-8": BALANCED, "node-9": SEVEN})

    asked = [str(request) for request in api.requests if not request.of_a_stand_in]
    slices = "list /apis/resource.k8s.io/v1/resourceslices"
    daemonsets = "list /apis/apps/v1/daemonsets"
    assert asked == ["get /version", "get /apis", "list /api/v1/nodes", "list /api/v1/pods", daemonsets, slices]
    hosts = result["hosts"]
    assert hosts["node-1"]["before"] == {"nvidia.com/gpu": 1}
    assert hosts["node-1"]["after"] == {"nvidia.com/gpu": 7}
    assert hosts["node-1"]["labels"]["nvidia.com/gpu.product"] == "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb"
    assert "choose the strategy mixed" in hosts["node-8"]["refusals"][0]
    assert "Kubernetes has no node node-9" in hosts["node-9"]["refusals"][0]
    assert result["msg"] == "9 nodes looked at, 2 refused."


def test_a_host_may_have_another_name_in_kubernetes_and_a_strategy_of_its_own(stage, play, kubeconfig):
    stage.node("node-1")
    result = plan(play, kubeconfig, {"gpu01": SEVEN}, nodes={"gpu01": "node-1"}, strategies={"gpu01": "mixed"})
    assert result["hosts"]["gpu01"]["node"] == "node-1"
    assert result["hosts"]["gpu01"]["after"] == {"nvidia.com/mig-1g.5gb": 7}


def test_whether_a_node_is_taken_over_may_be_said_as_a_survey_does(still, play, kubeconfig):
    still.node("node-1", **{DEPLOYED: "true"})
    said = [" true ", "Yes", 1, True, "", "  ", None, "no", False]
    takeovers = {f"host-{number}": each for number, each in enumerate(said)}
    nodes = dict.fromkeys(takeovers, "node-1")
    hosts = plan(play, kubeconfig, dict.fromkeys(takeovers, SEVEN), nodes=nodes, takeovers=takeovers)["hosts"]
    taken = [any("is taken over from" in each for each in host["warnings"]) for host in hosts.values()]
    assert taken == [True] * 4 + [False] * 5


def test_a_word_that_says_neither_yes_nor_no_to_a_takeover_is_refused_with_the_variable(api, play, kubeconfig):
    result = plan(play, kubeconfig, {"node-1": SEVEN}, takeovers={"node-0": "", "node-1": "perhaps"})
    assert result["failed"]
    assert result["msg"] == "mig_takeover of node-1 is 'perhaps'; give true or false. No host was touched."
    assert api.requests == []


def test_a_server_that_does_not_answer_stops_the_plan(api, play, kubeconfig):
    api.fail("/api/v1/nodes", verb="list", code=500, times=1)
    result = plan(play, kubeconfig, {"node-1": SEVEN})
    assert result["failed"]
    assert result["msg"].startswith("Kubernetes did not list the nodes: ")
    assert result["msg"].endswith("No host was touched.")
