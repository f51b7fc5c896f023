# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Holds the plans of all hosts of a play against Kubernetes, once. It runs on the controller and asks no host."""

from __future__ import annotations

import typing as t

from ansible.plugins.action import ActionBase

from ansible_collections.gpufleet.mig.plugins.module_utils.engine.profiles import counted
from ansible_collections.gpufleet.mig.plugins.plugin_utils import _kubernetes
from ansible_collections.gpufleet.mig.plugins.plugin_utils._action import list_of
from ansible_collections.gpufleet.mig.plugins.plugin_utils._kubernetes_api import Api, ApiProblem

Result = dict[str, t.Any]

ARGUMENTS: dict[str, t.Any] = {
    "nodes": {"type": "dict", "required": True},
    "plans": {"type": "dict", "required": True},
    "strategies": {"type": "dict", "default": {}},
    "modes": {"type": "dict", "default": {}},
    "plugin_selector": {"type": "raw", "required": True},
    "auth": {"type": "dict", "default": {}},
}


class ActionModule(ActionBase):
    """However many hosts there are, the API is asked for all nodes once, and once for each selector."""

    TRANSFERS_FILES = False
    _supports_check_mode = True
    _supports_async = False
    _requires_connection = False

    def run(self, tmp: t.Optional[str] = None, task_vars: t.Optional[dict[str, t.Any]] = None) -> dict[str, t.Any]:
        result: Result = {**super().run(tmp, task_vars), "changed": False}
        _validated, arguments = self.validate_argument_spec(ARGUMENTS)
        try:
            api = Api(arguments["auth"])
            nodes = api.nodes()
            pods = [pod for selector in list_of(arguments["plugin_selector"]) for pod in api.pods(selector)]
        except ApiProblem as problem:
            return {**result, "failed": True, "msg": f"{problem} No host was touched."}
        said = {host: _said(host, nodes, pods, arguments) for host in arguments["nodes"]}
        refused = sum(bool(each["refusals"]) for each in said.values())
        told = f"{counted(len(said), 'node')} looked at, {refused} refused."
        return {**result, "hosts": said, "msg": told}


def _said(host: str, nodes: t.Any, pods: t.Any, arguments: t.Mapping[str, t.Any]) -> Result:
    name = str(arguments["nodes"][host] or host)
    plan = arguments["plans"].get(host) or {}
    before = _kubernetes.gpus_of(plan.get("before") or [])
    after = _kubernetes.gpus_of(plan.get("after") or plan.get("before") or [])
    strategy, mode = (str(arguments[what].get(host) or "") for what in ("strategies", "modes"))
    plugin = _kubernetes.plugin_of(pods, name)
    says = _kubernetes.says(name, nodes.get(name), plugin, before, after, strategy, mode or "engine")
    return {
        "node": name,
        "strategy": says.strategy,
        "before": dict(says.before.resources),
        "after": dict(says.after.resources),
        "labels": dict(says.after.labels),
        "refusals": list(says.refusals),
        "warnings": list(says.warnings),
        "missing": list(says.missing),
    }
