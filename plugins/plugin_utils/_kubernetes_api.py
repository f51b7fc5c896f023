# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The few questions and orders that this collection has for a Kubernetes API, each bounded, as plain JSON.

This file is private to the collection gpufleet.mig and may change at any time. The connection is that of
kubernetes.core, with its options and its environment variables.
"""

from __future__ import annotations

import json
import time
import typing as t

Json = dict[str, t.Any]

# Seconds to connect, and to wait for an answer.
_PATIENCE = (5, 30)
NOT_FOUND, CONFLICT = 404, 409
_FORBIDDEN, _TOO_MANY = 403, 429
_ATTEMPTS = 10
_BUSY_SECONDS = 1.0
# The newest first; a server that is older than all of them has no devices that are made as pods ask for them.
_DRA_VERSIONS = ("v1", "v1beta2", "v1beta1")
_POLICY = ("nvidia.com", "v1", "clusterpolicies")

_NEEDS = (
    "The controller, or its execution environment, lacks {what}: install the collection kubernetes.core and the Python"
    " package kubernetes there."
)


class ApiProblem(Exception):
    """The API cannot be asked, or refuses; the message is a sentence. ``status`` is that of HTTP, 0 without one."""

    def __init__(self, sentence: str, status: int = 0) -> None:
        super().__init__(sentence)
        self.status = status


class Api:
    """A Kubernetes API server."""

    def __init__(self, auth: t.Mapping[str, t.Any]) -> None:
        """Raises ApiProblem."""
        try:
            from kubernetes.client import AppsV1Api, CoreV1Api, CustomObjectsApi

            from ansible_collections.kubernetes.core.plugins.module_utils.args_common import AUTH_ARG_SPEC
            from ansible_collections.kubernetes.core.plugins.module_utils.k8s.client import get_api_client
        except ImportError as error:
            raise ApiProblem(_NEEDS.format(what=error.name or error)) from error
        _require_known(auth, AUTH_ARG_SPEC)
        try:
            client = get_api_client(**auth).client.client
        except Exception as error:  # kubernetes.core has no class of its own for all that can be wrong with options
            raise ApiProblem(f"No connection to Kubernetes can be made of auth: {error}") from error
        self._core, self._apps, self._custom = CoreV1Api(client), AppsV1Api(client), CustomObjectsApi(client)

    def node(self, name: str) -> Json:
        """A node. Raises ApiProblem, with status 404 where there is none."""
        return self._ask(f"read node {name}", self._core.read_node, name)

    def patch_node(self, name: str, patch_for: t.Callable[[Json], t.Optional[Json]], *, check: bool) -> bool:
        """Patch a node with what ``patch_for`` makes of it, which is None where nothing is to be done.

        Returns whether it was patched, or with ``check`` would be. The patch names the version that it was made for.
        Where somebody else was quicker it is made anew.
        """
        for _attempt in range(_ATTEMPTS):
            patch = patch_for(self.node(name))
            if patch is None or check:
                return patch is not None
            try:
                self._ask(f"patch node {name}", self._core.patch_node, name, body=patch)
                return True
            except ApiProblem as problem:
                if problem.status == _TOO_MANY:  # of a node it is never a disruption budget's, but a busy server's
                    time.sleep(_BUSY_SECONDS)
                elif problem.status != CONFLICT:
                    raise
        raise ApiProblem(
            f"Node {name} was changed by others each time that it was to be patched, or the server is busy: run again.",
            CONFLICT,
        )

    def nodes(self) -> dict[str, Json]:
        """All nodes, by name."""
        found = self._ask("list the nodes", self._core.list_node)
        return {node["metadata"]["name"]: node for node in found["items"]}

    def pods(self, selectors: t.Iterable[str], node: str = "") -> list[Json]:
        """The pods of all namespaces, or of a node, that one of these label selectors means; each once."""
        asked = (
            self._ask(f"list the pods with {each}", self._core.list_pod_for_all_namespaces, label_selector=each)
            for each in selectors
        )
        found = {pod["metadata"]["uid"]: pod for answer in asked for pod in answer["items"]}
        return [pod for pod in found.values() if not node or (pod.get("spec") or {}).get("nodeName") == node]

    def pods_on(self, node: str) -> list[Json]:
        """All pods of a node."""
        found = self._ask(
            f"list the pods of node {node}",
            self._core.list_pod_for_all_namespaces,
            field_selector=f"spec.nodeName={node}",
        )
        return list(found["items"])

    def daemonsets(self) -> dict[str, Json]:
        """The daemonsets of all namespaces by their uid, none where we may not list them."""
        try:
            found = self._ask("list the daemonsets", self._apps.list_daemon_set_for_all_namespaces)
        except ApiProblem as problem:
            if problem.status != _FORBIDDEN:
                raise
            return {}
        return {daemonset["metadata"]["uid"]: daemonset for daemonset in found["items"]}

    def config_map(self, namespace: str, name: str) -> t.Optional[Json]:
        """A config map, or None."""
        try:
            return self._ask(
                f"read config map {namespace}/{name}", self._core.read_namespaced_config_map, name, namespace
            )
        except ApiProblem as problem:
            if problem.status != NOT_FOUND:
                raise
        return None

    def put_config_map(self, namespace: str, name: str, found: t.Optional[Json], data: t.Mapping[str, str]) -> None:
        """Make a config map, or change the one that was ``found``. Where somebody was quicker this fails."""
        what = f"write config map {namespace}/{name}"
        if found is None:
            body: Json = {"metadata": {"name": name, "namespace": namespace}, "data": dict(data)}
            self._ask(what, self._core.create_namespaced_config_map, namespace, body)
            return
        version = {"resourceVersion": found["metadata"]["resourceVersion"]}
        body = {"metadata": version, "data": dict(data)}
        self._ask(what, self._core.patch_namespaced_config_map, name, namespace, body)

    def cluster_policy(self) -> t.Optional[Json]:
        """The ClusterPolicy of NVIDIA's operator, of which it heeds one; None without the operator."""
        try:
            found = self._ask("list the ClusterPolicies", self._custom.list_cluster_custom_object, *_POLICY)
        except ApiProblem as problem:
            if problem.status != NOT_FOUND:
                raise
            return None
        return next(iter(found["items"]), None)

    def patch_cluster_policy(self, name: str, patch: Json) -> None:
        """Raises ApiProblem."""
        self._ask(f"patch ClusterPolicy {name}", self._custom.patch_cluster_custom_object, *_POLICY, name, patch)

    def resource_slices(self, driver: str) -> t.Optional[list[Json]]:
        """The devices that a DRA driver offers; none in a cluster without DRA, None where we may not ask."""
        for version in _DRA_VERSIONS:
            try:
                found = self._ask(
                    "list the ResourceSlices",
                    self._custom.list_cluster_custom_object,
                    "resource.k8s.io",
                    version,
                    "resourceslices",
                    field_selector=f"spec.driver={driver}",
                )
            except ApiProblem as problem:
                if problem.status == _FORBIDDEN:
                    return None
                if problem.status != NOT_FOUND:
                    raise
            else:
                return list(found["items"])
        return []

    def delete_pod(self, namespace: str, name: str, uid: str) -> None:
        """Have this pod end, and none of the same name that came later. One that is gone already is no problem."""
        body = {"preconditions": {"uid": uid}}
        try:
            self._ask(f"delete pod {namespace}/{name}", self._core.delete_namespaced_pod, name, namespace, body=body)
        except ApiProblem as problem:
            if problem.status not in (NOT_FOUND, CONFLICT):
                raise

    def evict(self, namespace: str, name: str, grace_period: t.Optional[int]) -> str:
        """Ask for a pod to leave. Returns why not now, where that would break a disruption budget."""
        body: Json = {"metadata": {"namespace": namespace, "name": name}}
        if grace_period is not None:
            body["deleteOptions"] = {"gracePeriodSeconds": grace_period}
        try:
            self._ask(f"evict pod {namespace}/{name}", self._core.create_namespaced_pod_eviction, name, namespace, body)
        except ApiProblem as problem:
            if problem.status == _TOO_MANY:
                return str(problem)
            if problem.status != NOT_FOUND:
                raise
        return ""

    def _ask(self, what: str, call: t.Callable[..., t.Any], *arguments: t.Any, **options: t.Any) -> Json:
        """Raises ApiProblem with what was to be done and what the server, or the network, said."""
        from kubernetes.client import ApiException
        from urllib3.exceptions import HTTPError

        try:
            answer = call(*arguments, **options, _preload_content=False, _request_timeout=_PATIENCE)
            found: Json = json.loads(answer.data)
        except ApiException as error:
            raise ApiProblem(f"Kubernetes did not {what}: {_said(error)}", error.status or 0) from error
        except (HTTPError, OSError, ValueError) as error:
            raise ApiProblem(f"Kubernetes did not {what}: {error}") from error
        return found


def _require_known(auth: t.Mapping[str, t.Any], spec: t.Mapping[str, t.Mapping[str, t.Any]]) -> None:
    """Raise ApiProblem for an option that does not exist: without it another cluster might be asked than was meant."""
    known = {name for option, about in spec.items() for name in (option, *about.get("aliases", ()))}
    unknown = sorted(str(name) for name in auth if name not in known)
    if unknown:
        raise ApiProblem(
            f"auth (of the role, kubernetes_auth) has {', '.join(unknown)}, which kubernetes.core does not know; it has"
            f" {', '.join(sorted(spec))}."
        )


def _said(error: t.Any) -> str:
    """The message of a Status, which is what a server answers; otherwise the reason that HTTP gives."""
    try:
        return str(json.loads(error.body)["message"])
    except (TypeError, ValueError, KeyError):
        return str(error.reason)
