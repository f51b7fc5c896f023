# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The API answers the Python client as kube-apiserver does. Those that do not say ``api`` hold for a real one, too."""

from __future__ import annotations

import json
import threading
import time
import typing as t
from pathlib import Path

import pytest
from kubernetes import client as kubernetes_client
from kubernetes import config as kubernetes_config
from kubernetes import dynamic, watch
from kubernetes.client.exceptions import ApiException

from ansible_collections.gpufleet.mig.tests.kubernetes.api import Api, NoAnswerError, Request
from ansible_collections.gpufleet.mig.tests.kubernetes.client import ApiError, Client, path_of
from ansible_collections.gpufleet.mig.tests.kubernetes.store import merge_patch

NODE = "/api/v1/nodes/node-1"
BUDGET = {"app": "train"}


class Clients:
    """The Python client, unmodified, with the names that the tests need."""

    def __init__(self, kubeconfig: Path) -> None:
        self.any = kubernetes_config.new_client_from_config(str(kubeconfig))
        self.core = kubernetes_client.CoreV1Api(self.any)
        self.apps = kubernetes_client.AppsV1Api(self.any)
        self.custom = kubernetes_client.CustomObjectsApi(self.any)

    def evict(self, name: str) -> t.Any:
        metadata = kubernetes_client.V1ObjectMeta(name=name, namespace="default")
        body = kubernetes_client.V1Eviction(metadata=metadata)
        return self.core.create_namespaced_pod_eviction(name, "default", body)


@pytest.fixture
def python(kubeconfig: Path) -> Clients:
    return Clients(kubeconfig)


def refused(call: t.Callable[[], object]) -> tuple[int, dict[str, t.Any]]:
    with pytest.raises(ApiException) as caught:
        call()
    return caught.value.status, json.loads(caught.value.body or "")


def test_objects_get_what_a_server_gives_them_and_lists_can_be_narrowed(still, python) -> None:
    still.node("node-1", **{"nvidia.com/gpu.present": "true"})
    still.node("node-2")
    still.pod("train", "node-1", **{"nvidia.com/gpu": 1})
    still.pod("infer", "node-2")

    node = python.core.read_node("node-1")
    assert node.metadata.uid
    assert node.metadata.creation_timestamp.year > 2000
    assert int(node.metadata.resource_version) > 0

    def names(listed: t.Any) -> list[str]:
        return [one.metadata.name for one in listed.items]

    assert names(python.core.list_node(label_selector="nvidia.com/gpu.present=true")) == ["node-1"]
    assert names(python.core.list_node(label_selector="!nvidia.com/gpu.present")) == ["node-2"]
    assert names(python.core.list_node(field_selector="metadata.name=node-2")) == ["node-2"]
    assert names(python.core.list_pod_for_all_namespaces(field_selector="spec.nodeName=node-1")) == ["train"]
    assert names(python.core.list_namespaced_pod("default", label_selector="app in (infer, other)")) == ["infer"]
    assert names(python.core.list_pod_for_all_namespaces(field_selector="status.phase=Running")) == []
    # What a server fills in: an adapter must not take it for drift.
    pod = python.core.read_namespaced_pod("train", "default")
    assert pod.status.phase == "Pending"
    assert pod.spec.restart_policy == "Always"
    assert pod.spec.containers[0].resources.requests == {"nvidia.com/gpu": "1"}


def test_the_kinds_of_refusal_are_told_apart(still, python) -> None:
    still.node("node-1")
    node = {"metadata": {"name": "node-1"}}

    code, body = refused(lambda: python.core.read_node("nowhere"))
    assert (code, body["reason"], body["message"]) == (404, "NotFound", 'nodes "nowhere" not found')
    code, body = refused(lambda: python.core.create_node(node))
    assert (code, body["reason"]) == (409, "AlreadyExists")
    code, body = refused(lambda: python.core.patch_node("node-1", {"metadata": {"resourceVersion": "1"}, "spec": {}}))
    assert (code, body["reason"]) == (409, "Conflict")
    assert body["message"].endswith("please apply your changes to the latest version and try again")
    old = {"preconditions": {"uid": "of-another"}}
    code, body = refused(lambda: python.core.delete_node("node-1", body=old))
    assert (code, body["reason"]) == (409, "Conflict")
    assert "the UID in the precondition (of-another) does not match the UID in record" in body["message"]
    code, body = refused(lambda: python.core.patch_node("node-1", {"metadata": {"labels": {"a": "two words"}}}))
    assert (code, body["reason"]) == (422, "Invalid")
    code, body = refused(lambda: python.core.patch_node("node-1", {"metadata": {"labels": {"a": True}}}))
    assert (code, body["reason"]) == (422, "Invalid")
    code, body = refused(lambda: python.core.create_namespaced_config_map("nowhere", {"metadata": {"name": "a"}}))
    assert (code, body["message"]) == (404, 'namespaces "nowhere" not found')
    code, body = refused(lambda: python.core.patch_node("node-1", [{"op": "test", "path": "/spec/a", "value": 1}]))
    assert (code, body["reason"]) == (422, "Invalid")


@pytest.mark.parametrize(
    ("kind", "change", "code", "words"),
    [
        ("configmaps", {"data": {"enabled": True}}, 400, "cannot be handled as a ConfigMap"),
        ("configmaps", {"metadata": {"name": "of_a_host"}}, 422, "a lowercase RFC 1123 subdomain must consist of"),
        ("configmaps", {"metadata": {"name": "a", "labels": {"a b": ""}}}, 422, "name part must consist of"),
        ("configmaps", {"metadata": {"name": "a", "labels": {"a": "b" * 64}}}, 422, "must be no more than 63"),
        (
            "daemonsets",
            {"spec": {"selector": {"matchLabels": {"app": "b"}}}},
            422,
            "`selector` does not match template",
        ),
    ],
)
def test_what_templates_get_wrong_is_refused(still, kind, change, code, words) -> None:
    container = {"name": "main", "image": "image:1"}
    template = {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [container]}}
    spec = {"selector": {"matchLabels": {"app": "a"}}, "template": template}
    versions = {"configmaps": ("api/v1", {}), "daemonsets": ("apis/apps/v1", {"spec": spec})}
    version, body = versions[kind]
    path = f"/{version}/namespaces/default/{kind}"
    with pytest.raises(ApiError) as caught:
        still.client.create(path, merge_patch({"metadata": {"name": "a"}, **body}, change))
    assert caught.value.code == code
    assert words in str(caught.value)


def test_the_selector_of_a_daemonset_is_for_ever(still) -> None:
    made = still.daemonset("plugin")
    change = {"selector": {"matchLabels": {"app": "b"}}, "template": {"metadata": {"labels": {"app": "b"}}}}
    with pytest.raises(ApiError, match="field is immutable"):
        still.client.patch(path_of(made), {"spec": change})


def test_a_selector_that_the_server_has_not_is_refused(still, python) -> None:
    code, body = refused(lambda: python.core.list_pod_for_all_namespaces(field_selector="spec.foo=1"))
    assert (code, body["message"]) == (400, "field label not supported: spec.foo")
    code, body = refused(lambda: python.apps.list_daemon_set_for_all_namespaces(field_selector="spec.foo=1"))
    assert (code, body["message"].partition(":")[0]) == (400, '"spec.foo" is not a known field selector')


def test_a_patch_changes_what_it_names(still, python) -> None:
    still.node("node-1", keep="me", remove="me")
    metadata = {"labels": {"remove": None, "new": "one"}, "annotations": {"gpufleet.mig/cordon": "{}"}}
    before = python.core.read_node("node-1").metadata.resource_version

    node = python.core.patch_node("node-1", {"metadata": metadata, "spec": {"unschedulable": True}})
    assert node.spec.unschedulable
    assert {"keep": "me", "new": "one"}.items() <= node.metadata.labels.items()
    assert "remove" not in node.metadata.labels
    assert node.metadata.resource_version != before
    again = python.core.patch_node("node-1", {"metadata": metadata, "spec": {"unschedulable": True}})
    assert again.metadata.resource_version == node.metadata.resource_version

    # Of lists, the strategic merge patch merges those that have a key; taints are not among them.
    conditions = [{"type": "GpuHealthy", "status": "True"}]
    status = python.core.patch_node_status("node-1", {"status": {"conditions": conditions}}).status
    assert {one.type for one in status.conditions} == {"Ready", "GpuHealthy"}
    for key in ("first", "second"):
        node = python.core.patch_node("node-1", {"spec": {"taints": [{"key": key, "effect": "NoSchedule"}]}})
    assert [taint.key for taint in node.spec.taints] == ["second"]
    # JSON patch, with a test of what one thinks is there.
    operations = [
        {"op": "test", "path": "/metadata/labels/new", "value": "one"},
        {"op": "replace", "path": "/metadata/labels/new", "value": "two"},
        {"op": "add", "path": "/metadata/labels/nvidia.com~1mig.config", "value": "all-1g.5gb"},
    ]
    labels = python.core.patch_node("node-1", operations).metadata.labels
    assert (labels["new"], labels["nvidia.com/mig.config"]) == ("two", "all-1g.5gb")


def test_status_is_written_through_its_subresource_only(still, python) -> None:
    still.node("node-1")
    amounts = {"nvidia.com/gpu": "8"}
    python.core.patch_node("node-1", {"status": {"capacity": amounts}})
    assert "nvidia.com/gpu" not in python.core.read_node("node-1").status.capacity
    python.core.patch_node_status("node-1", {"status": {"capacity": amounts}, "spec": {"unschedulable": True}})
    node = python.core.read_node("node-1")
    assert node.status.capacity["nvidia.com/gpu"] == "8"
    assert not node.spec.unschedulable


def test_custom_resources_have_their_own_rules(still, python) -> None:
    still.operator()
    where = ("nvidia.com", "v1", "clusterpolicies")
    policy = python.custom.get_cluster_custom_object(*where, "cluster-policy")
    body = {"spec": {"migManager": {"config": {"name": "ours"}}}}
    resource = dynamic.DynamicClient(python.any).resources.get(api_version="nvidia.com/v1", kind="ClusterPolicy")

    with pytest.raises(ApiException) as caught:
        resource.patch(body, name="cluster-policy", content_type="application/strategic-merge-patch+json")
    assert caught.value.status == 415
    patched = resource.patch(body, name="cluster-policy", content_type="application/merge-patch+json").to_dict()
    assert patched["spec"]["migManager"]["config"] == {"name": "ours", "default": "all-disabled"}
    assert patched["metadata"]["generation"] == policy["metadata"]["generation"] + 1
    del policy["metadata"]["resourceVersion"]
    code, _body = refused(lambda: python.custom.replace_cluster_custom_object(*where, "cluster-policy", policy))
    assert code == 422


def test_a_cluster_without_the_operator_does_not_know_its_kind(tmp_path) -> None:
    with Api(without=["nvidia.com"]) as api:
        python = Clients(api.write_kubeconfig(tmp_path / "kubeconfig"))
        with pytest.raises(ApiException) as caught:
            python.custom.list_cluster_custom_object("nvidia.com", "v1", "clusterpolicies")
        assert (caught.value.status, caught.value.body) == (404, "404 page not found\n")
        with pytest.raises(dynamic.exceptions.ResourceNotFoundError):
            dynamic.DynamicClient(python.any).resources.get(api_version="nvidia.com/v1", kind="ClusterPolicy")


def test_a_token_that_is_not_known_gets_nothing(api, kubeconfig) -> None:
    kubeconfig.write_text(kubeconfig.read_text().replace(api.token, "another"))
    code, body = refused(Clients(kubeconfig).core.list_node)
    assert (code, body["reason"]) == (401, "Unauthorized")


def test_an_eviction_keeps_to_the_budget_and_to_the_grace_period(still, python) -> None:
    still.node("node-1")
    budget = still.budget("train", BUDGET, allowed=0)
    for name, grace in (("one", 0), ("two", 30)):
        pod = still.pod(name, "node-1", labels=BUDGET, grace=grace)
        ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        still.client.patch(f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}/status", {"status": ready})

    code, body = refused(lambda: python.evict("one"))
    assert (code, body["reason"]) == (429, "TooManyRequests")
    assert body["message"] == "Cannot evict pod as it would violate the pod's disruption budget."
    assert body["details"]["causes"] == [
        {
            "reason": "DisruptionBudget",
            "message": "The disruption budget train needs 1 healthy pods and has 1 currently",
        }
    ]
    still.allow(budget, 2, healthy=2)
    python.evict("one")
    assert still.names() == ["two"]
    python.evict("two")
    pod = python.core.read_namespaced_pod("two", "default")
    assert pod.metadata.deletion_grace_period_seconds == 30
    assert still.client.get(path_of(budget))["status"]["disruptionsAllowed"] == 0
    # Again: it is ending already, which no budget forbids.
    python.evict("two")
    python.core.delete_namespaced_pod("two", "default", grace_period_seconds=0)
    assert refused(lambda: python.evict("two"))[0] == 404


def test_a_budget_that_nobody_has_counted_says_so(still, python) -> None:
    still.node("node-1")
    still.budget("new", BUDGET, allowed=None)
    still.pod("train", "node-1", labels=BUDGET)
    still.client.patch("/api/v1/namespaces/default/pods/train/status", {"status": {"phase": "Running"}})
    with pytest.raises(ApiException) as caught:
        python.evict("train")
    assert "The disruption budget new is still being processed by the server." in str(caught.value.body)


def test_two_budgets_for_a_pod_are_more_than_the_server_can_keep(still, python) -> None:
    still.node("node-1")
    for name in ("one", "two"):
        still.budget(name, BUDGET, allowed=1)
    still.pod("train", "node-1", labels=BUDGET)
    still.client.patch("/api/v1/namespaces/default/pods/train/status", {"status": {"phase": "Running"}})
    code, body = refused(lambda: python.evict("train"))
    assert (code, body.get("reason")) == (500, None)
    assert body["message"].startswith("This pod has more than one PodDisruptionBudget")
    assert still.names() == ["train"]


def test_a_dry_run_changes_nothing_and_is_no_write(api, still, python) -> None:
    still.node("node-1")
    still.pod("train", "node-1")
    api.forget()
    patched = python.core.patch_node("node-1", {"spec": {"unschedulable": True}}, dry_run="All")
    assert patched.spec.unschedulable
    python.core.delete_namespaced_pod("train", "default", dry_run="All")
    assert not still.is_cordoned("node-1")
    assert still.names() == ["train"]
    assert api.writes == []


def test_a_watch_tells_what_happens_to_those_that_are_selected(still, python) -> None:
    still.node("node-1", gpu="yes")
    seen: list[tuple[str, str]] = []

    def change() -> None:
        still.node("node-2", gpu="yes")
        still.client.patch("/api/v1/nodes/node-2", {"spec": {"unschedulable": True}})
        still.client.patch("/api/v1/nodes/node-1", {"metadata": {"labels": {"gpu": None}}})
        still.client.delete("/api/v1/nodes/node-2")

    for event in watch.Watch().stream(python.core.list_node, label_selector="gpu=yes", timeout_seconds=20):
        seen.append((event["type"], event["object"].metadata.name))
        if len(seen) == 1:
            threading.Thread(target=change).start()
        if len(seen) == 5:
            break
    assert seen == [
        ("ADDED", "node-1"),
        ("ADDED", "node-2"),
        ("MODIFIED", "node-2"),
        ("DELETED", "node-1"),
        ("DELETED", "node-2"),
    ]


def test_a_watch_from_a_version_that_is_forgotten_has_expired(api, still, python) -> None:
    still.node("node-1")
    still.node("node-2")
    api.compact()
    with pytest.raises(ApiException) as caught:
        list(watch.Watch().stream(python.core.list_node, resource_version="1", timeout_seconds=5))
    assert caught.value.status == 410


def test_faults_come_as_ordered_and_end(api, still, python) -> None:
    still.node("node-1")
    body = {"spec": {"unschedulable": True}}
    api.fail(NODE, verb="patch", code=409, times=2)
    api.fail(NODE, verb="patch", code=500)
    codes = [refused(lambda: python.core.patch_node("node-1", body))[0] for _attempt in range(3)]
    assert codes == [409, 409, 500]
    assert not still.is_cordoned("node-1")
    assert python.core.patch_node("node-1", body).spec.unschedulable

    # A server that has too much to do says so in plain text: it is not the answer of a disruption budget.
    api.fail(NODE, verb="patch", code=429)
    with pytest.raises(ApiException) as caught:
        python.core.patch_node("node-1", body)
    assert (caught.value.status, caught.value.body) == (429, "Too many requests, please try again later.\n")

    # The answer gets lost, not the change.
    api.fail(NODE, verb="patch", drop=True, carried_out=True)
    with pytest.raises(Exception, match="Connection"):
        python.core.patch_node("node-1", {"spec": {"unschedulable": False}})
    assert not still.is_cordoned("node-1")

    # Of a patch: a read that takes too long is silently tried again.
    api.fail(NODE, verb="patch", hang=5.0)
    began = time.monotonic()
    with pytest.raises(Exception, match="timed out"):
        python.core.patch_node("node-1", body, _request_timeout=0.2)
    assert time.monotonic() - began < 4


def test_an_object_can_go_in_the_middle(api, still, python) -> None:
    still.node("node-1")
    api.forget()
    api.delete_at(3, NODE)
    python.core.read_node("node-1")
    python.core.list_node()
    assert refused(lambda: python.core.patch_node("node-1", {"spec": {"unschedulable": True}}))[0] == 404


def test_hooks_see_every_request_of_the_client_and_can_cut_it_off(api, still, python) -> None:
    still.node("node-1")
    api.forget()
    seen: list[str] = []

    def hook(request: Request) -> None:
        seen.append(f"{request.number} {request}")
        if request.number == 2:
            raise NoAnswerError

    api.before_each = hook
    python.core.read_node("node-1")
    with pytest.raises(Exception, match="Connection"):
        python.core.patch_node("node-1", {"spec": {"unschedulable": True}})
    Client(still.kubeconfig).get(NODE)  # of a stand-in: none of the test's business
    assert seen == [f"1 get {NODE}", f"2 patch {NODE}"]
    assert [str(write) for write in api.writes] == [f"patch {NODE}"]
    assert api.writes[0].body == {"spec": {"unschedulable": True}}
    assert "OpenAPI-Generator" in api.writes[0].user_agent or "python" in api.writes[0].user_agent
