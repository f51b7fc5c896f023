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


def plan(play, kubeconfig, plans, machines=None, **options):
    machines = machines or {}
    asked = {
        "nodes": dict.fromkeys(plans, ""),
        "plans": {
            host: {"before": [OFF], "after": [after], "machine": machines.get(host, {})}
            for host, after in plans.items()
        },
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


# --- which machine a node is -----------------------------------------------------------------------------------------


def test_one_node_of_two_hosts_is_refused_for_both(stage, play, kubeconfig):
    stage.node("node-1")
    stage.node("node-3")
    names = {"gpu01": "node-1", "node-1": "", "node-3": ""}
    hosts = plan(play, kubeconfig, dict.fromkeys(names, SEVEN), nodes=names, strategies={})["hosts"]
    for host in ("gpu01", "node-1"):
        assert "gpu01 and node-1 are said to be the same node of Kubernetes, node-1" in hosts[host]["refusals"][0]
    assert "the same node" not in " ".join(hosts["node-3"]["refusals"])


def test_a_node_that_reports_another_machine_than_the_host_is_refused(stage, play, kubeconfig):
    stage.node("node-1", info={"machineID": "aa", "bootID": "bb"})
    stage.node("node-2", info={"machineID": "aa", "bootID": "bb"})
    machines = {"node-1": {"machine_id": "cc", "boot_id": "dd"}, "node-2": {"machine_id": "aa", "boot_id": "dd"}}
    strategies = dict.fromkeys(machines, "mixed")
    hosts = plan(play, kubeconfig, dict.fromkeys(machines, SEVEN), machines=machines, strategies=strategies)["hosts"]
    (refusal,) = hosts["node-1"]["refusals"]
    assert refusal.startswith("Node node-1 of Kubernetes is another machine than this host (aa there, cc here): set")
    assert hosts["node-2"]["refusals"] == [], "it has booted, and its kubelet has not said so yet"


def test_a_setting_that_cannot_be_used_is_refused_for_the_host_that_has_it(stage, play, kubeconfig):
    for name in ("node-1", "node-2"):
        stage.node(name)
    plans = dict.fromkeys(("node-1", "node-2"), SEVEN)
    settings = {"kubernetes_ready_timeout": {"node-1": "5m", "node-2": ""}, "kubernetes_pods": {"node-1": "gpu"}}
    found = plan(play, kubeconfig, plans, settings=settings, strategies=dict.fromkeys(plans, "mixed"))["hosts"]
    assert found["node-1"]["refusals"] == ["kubernetes_ready_timeout is '5m'; give a number of seconds, such as 300."]
    assert found["node-2"]["refusals"] == []


def test_an_option_of_the_connection_that_does_not_exist_is_named_before_any_cluster_is_asked(api, play, kubeconfig):
    auth = {"kubeconfig": str(kubeconfig), "contxt": "production"}
    result = plan(play, kubeconfig, {"node-1": SEVEN}, auth=auth)
    assert result["failed"]
    assert result["msg"].startswith(
        "auth (of the role, kubernetes_auth) has contxt, which kubernetes.core does not know;"
    )
    assert api.requests == []
