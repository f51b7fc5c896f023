# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Has a Kubernetes node offer the devices that it has. It runs on the controller and asks the host nothing."""

from __future__ import annotations

import time
import typing as t

from ansible.plugins.action import ActionBase

from ansible_collections.gpufleet.mig.plugins.plugin_utils import _kubernetes
from ansible_collections.gpufleet.mig.plugins.plugin_utils._action import answered, list_of
from ansible_collections.gpufleet.mig.plugins.plugin_utils._kubernetes import Offer
from ansible_collections.gpufleet.mig.plugins.plugin_utils._kubernetes_api import Api, ApiProblem, Json

_POLL_SECONDS = 1.0

Result = dict[str, t.Any]

ARGUMENTS: dict[str, t.Any] = {
    "name": {"type": "str", "required": True},
    "gpus": {"type": "list", "elements": "dict", "required": True},
    "strategy": {"type": "str", "default": ""},
    "restart": {"type": "bool", "default": False},
    "plugin_selector": {"type": "raw", "required": True},
    "discovery_selector": {"type": "raw", "default": []},
    "exporter_selector": {"type": "raw", "default": []},
    "timeout": {"type": "float", "default": 300},
    "auth": {"type": "dict", "default": {}},
}


class Unhealthy(Exception):
    """The layout is right, and Kubernetes does not offer it; the message says what is missing and why."""


class ActionModule(ActionBase):
    """Pods are started again one after the other, and each is waited for before the next."""

    TRANSFERS_FILES = False
    _supports_check_mode = True
    _supports_async = False
    _requires_connection = False

    def run(self, tmp: t.Optional[str] = None, task_vars: t.Optional[dict[str, t.Any]] = None) -> dict[str, t.Any]:
        result: Result = {**super().run(tmp, task_vars), "changed": False}
        arguments = answered(self, ARGUMENTS)
        node = _Node(arguments, check_mode=self._task.check_mode)
        try:
            node.offer_what_is_there()
        except (ApiProblem, Unhealthy) as problem:
            node.result.update(failed=True, msg=str(problem))
        return {**result, **node.result}


class _Node:
    """One node, and in ``result`` what was done and seen so far."""

    def __init__(self, arguments: t.Mapping[str, t.Any], check_mode: bool) -> None:
        self._arguments = arguments
        self._name: str = arguments["name"]
        self._check_mode = check_mode
        self._selectors = {what: list_of(arguments[f"{what}_selector"]) for what in ("plugin", "discovery", "exporter")}
        self.result: Result = {"changed": False, "node": self._name, "restarted": [], "stale": []}

    def offer_what_is_there(self) -> None:
        """Start again what does not see a layout change by itself, in this order, and wait until it has seen it."""
        api = Api(self._arguments["auth"])
        restart: bool = self._arguments["restart"]
        anew = restart or bool(self._missing(api, self._wanted(api), "plugin"))
        if self._check_mode:
            self.result["changed"] = anew
            return
        if anew:
            self._restart(api, "plugin")
        # Its daemonset may have got another strategy since the pod before was made.
        wanted = self._wanted(api)
        self._wait_for(api, wanted, "plugin")
        for what in ("discovery", "exporter"):
            if restart or self._missing(api, wanted, what):
                self._restart(api, what)
            self._wait_for(api, wanted, what)
        allocatable = (api.node(self._name).get("status") or {}).get("allocatable") or {}
        self.result["stale"] = _kubernetes.stale_resources(wanted, allocatable)
        self.result["msg"] = f"Node {self._name} offers {_kubernetes.in_words(wanted.resources)}."

    def _wanted(self, api: Api) -> Offer:
        """What follows from the layout. Raises Unhealthy where it cannot be had with the strategy of the node."""
        says, plugin = self._says_with_a_plugin(api)
        if says.refusals:
            raise Unhealthy(" ".join(says.refusals))
        if plugin is None and says.after.resources and not self._check_mode:
            raise Unhealthy(
                f"The layout of node {self._name} is right, and no device plugin runs there that could offer it: look"
                f" at its daemonset, or set kubernetes_plugin_selector (now {', '.join(self._selectors['plugin'])})."
            )
        self.result.update(resources=dict(says.after.resources), labels=dict(says.after.labels))
        return says.after

    def _says_with_a_plugin(self, api: Api) -> tuple[_kubernetes.Says, t.Optional[_kubernetes.Plugin]]:
        """Where the label of a daemonset has just come back, it makes its pod in a moment."""
        gpus = _kubernetes.gpus_of(self._arguments["gpus"])
        give_up_at = time.monotonic() + self._arguments["timeout"]
        while True:
            plugin = _kubernetes.plugin_of(self._pods(api, "plugin"), self._name)
            node = api.node(self._name)
            says = _kubernetes.says(self._name, node, plugin, gpus, gpus, self._arguments["strategy"])
            is_late = self._check_mode or time.monotonic() >= give_up_at
            if plugin or is_late or not (says.refusals or says.after.resources):
                return says, plugin
            time.sleep(_POLL_SECONDS)

    def _restart(self, api: Api, what: str) -> None:
        """Delete the pods of a component on this node; their daemonset makes others."""
        for pod in self._pods(api, what):
            self._replace(api, what, pod["metadata"])

    def _replace(self, api: Api, what: str, pod: Json) -> None:
        name = f"{pod['namespace']}/{pod['name']}"
        api.delete_pod(pod["namespace"], pod["name"], pod["uid"])
        self.result["restarted"].append(name)
        self.result["changed"] = True
        self._until(
            lambda: self._is_replaced(api, what, pod["uid"]),
            lambda: f"no new pod in place of {name} is ready: {self._ailing(api, what)}",
        )

    def _is_replaced(self, api: Api, what: str, uid: str) -> bool:
        pods = self._pods(api, what)
        gone = all(pod["metadata"]["uid"] != uid for pod in pods)
        return gone and any(_kubernetes.is_ready(pod) for pod in pods)

    def _wait_for(self, api: Api, wanted: Offer, what: str) -> None:
        self._until(
            lambda: not self._missing(api, wanted, what),
            lambda: f"{'; '.join(self._missing(api, wanted, what))}; {self._ailing(api, what)}",
        )

    def _missing(self, api: Api, wanted: Offer, what: str) -> list[str]:
        """What the node does not show of the work of a component. Of an exporter a node shows nothing."""
        node = api.node(self._name)
        if what == "plugin":
            return _kubernetes.missing_resources(wanted, (node.get("status") or {}).get("allocatable") or {})
        if what == "discovery" and self._selectors[what]:
            return _kubernetes.missing_labels(wanted, node["metadata"].get("labels") or {})
        return []

    def _until(self, done: t.Callable[[], bool], why_not: t.Callable[[], str]) -> None:
        give_up_at = time.monotonic() + self._arguments["timeout"]
        while not done():
            if time.monotonic() >= give_up_at:
                raise Unhealthy(
                    f"The layout of node {self._name} is right, and Kubernetes does not offer it after"
                    f" {self._arguments['timeout']:g} s: {why_not()}. Correct that, and run again."
                )
            time.sleep(_POLL_SECONDS)

    def _ailing(self, api: Api, what: str) -> str:
        return _kubernetes.those_that_ail(self._pods(api, what)) or "its pods are ready"

    def _pods(self, api: Api, what: str) -> list[Json]:
        """The pods of a component on this node, each once."""
        return api.pods(self._selectors[what], self._name)
