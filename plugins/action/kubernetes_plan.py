# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Holds the plans of all hosts of a play against Kubernetes, once. It runs on the controller and asks no host."""

from __future__ import annotations

import time
import typing as t
from collections import defaultdict

from ansible.errors import AnsibleFilterError
from ansible.plugins.action import ActionBase

from ansible_collections.gpufleet.mig.plugins.filter.survey import survey_bool
from ansible_collections.gpufleet.mig.plugins.module_utils.engine.profiles import counted, quoted
from ansible_collections.gpufleet.mig.plugins.plugin_utils import (
    _cordon,
    _healing,
    _kubernetes,
    _kubernetes_settings,
    _owners,
)
from ansible_collections.gpufleet.mig.plugins.plugin_utils._action import BadInput, answered, list_of
from ansible_collections.gpufleet.mig.plugins.plugin_utils._kubernetes_api import Api, ApiProblem, Json

Result = dict[str, t.Any]

ARGUMENTS: dict[str, t.Any] = {
    "nodes": {"type": "dict", "required": True},
    "plans": {"type": "dict", "required": True},
    "strategies": {"type": "dict", "default": {}},
    "modes": {"type": "dict", "default": {}},
    "takeovers": {"type": "dict", "default": {}},
    "settings": {"type": "dict", "default": {}},
    "plugin_selector": {"type": "raw", "required": True},
    "manager_selector": {"type": "raw", "default": ["app=nvidia-mig-manager"]},
    "manager_timeout": {"type": "float", "default": 900},
    "config_map": {"type": "str", "default": "gpufleet-mig"},
    "set_policy": {"type": "bool", "default": False},
    "run": {"type": "str", "default": "ansible"},
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
        arguments = answered(self, ARGUMENTS)
        try:
            arguments["takeovers"] = {host: _says_yes(host, said) for host, said in arguments["takeovers"].items()}
            cluster = _Cluster(arguments)
            said = {host: cluster.says_of(host) for host in arguments["nodes"]}
        except (ApiProblem, BadInput) as problem:
            return {**result, "failed": True, "msg": f"{problem} No host was touched."}
        refused = sum(bool(each["refusals"]) for each in said.values())
        told = f"{counted(len(said), 'node')} looked at, {refused} refused."
        return {**result, "hosts": said, "msg": told}


def _says_yes(host: str, takeover: t.Any) -> bool:
    """Whether a host may be taken over, which may be said as a survey does. Raises BadInput."""
    try:
        return survey_bool(takeover)
    except AnsibleFilterError:
        raise BadInput(f"mig_takeover of {host} is {quoted(takeover)}; give true or false.") from None


class _Cluster:
    """What is asked once for all hosts. Raises ApiProblem."""

    def __init__(self, arguments: t.Mapping[str, t.Any]) -> None:
        self._arguments = arguments
        self._api = api = Api(arguments["auth"])
        managed = _owners.OPERATOR in arguments["modes"].values()
        self._nodes = api.nodes()
        self._hosts: dict[str, list[str]] = defaultdict(list)
        for host in arguments["nodes"]:
            self._hosts[self._name_of(host)].append(host)
        self._plugins = api.pods(list_of(arguments["plugin_selector"]))
        self._daemonsets = api.daemonsets()
        self._owners = _owners.Cluster(
            managers=api.pods(list_of(arguments["manager_selector"])) if managed else [],
            policy=_owners.policy_as_asked_for(api.cluster_policy(), arguments) if managed else None,
            config_map=arguments["config_map"],
            slices=api.resource_slices(_owners.DRA_DRIVER),
            now=time.time(),
            patience=arguments["manager_timeout"],
        )

    def _name_of(self, host: str) -> str:
        return str(self._arguments["nodes"][host] or host)

    def says_of(self, host: str) -> Result:
        """What Kubernetes has to say to the plan of a host."""
        name = self._name_of(host)
        plan = self._arguments["plans"].get(host) or {}
        mode = str(self._arguments["modes"].get(host) or _owners.ENGINE)
        before = _kubernetes.gpus_of(plan.get("before") or [])
        after = _kubernetes.gpus_of(plan.get("after") or plan.get("before") or [])
        strategy = str(self._arguments["strategies"].get(host) or "")
        node = self._nodes.get(name)
        plugin = _kubernetes.plugin_of(self._plugins, name, self._daemonsets)
        says = _kubernetes.says(name, node, plugin, before, after, strategy)
        owner, left = _owners.NOBODY, _healing.NOTHING
        if node is not None:
            takeover = self._arguments["takeovers"].get(host, False)
            owner = _owners.judge(self._owners, name, node, plan, mode, takeover)
            left = self._left_behind(name, node, mode, owner)
        changes = plan.get("verdict", "match") != "match" or bool(plan.get("recovered"))
        leaving = self._leaving(host, name) if changes and node is not None else _cordon.Leaving((), ())
        # While a change is under way the plugin may be away for it, and what is offered is another thing.
        idle = node is not None and not _cordon.is_under_way(node)
        nobody = [_kubernetes.of_nobody(name)] if changes and idle and not plugin else []
        ails = idle and not changes and says.missing
        return {
            "node": name,
            "mode": mode,
            "strategy": says.strategy,
            "before": dict(says.before.resources),
            "after": dict(says.after.resources),
            "labels": dict(says.after.labels),
            "refusals": [
                *self._mistakes(host, name, plan),
                *filter(None, [left.keeps]),
                *owner.refusals,
                *(says.refusals or nobody),
                *leaving.blocked,
            ],
            "leaving": list(map(str, leaving.pods)),
            "warnings": [
                *owner.warnings,
                *says.warnings,
                *left.why_not,
                *([_kubernetes.of_what_is_missing(name, says.missing, plugin)] if ails else []),
            ],
            "missing": list(says.missing),
            "heal": list(left.heal),
            "drained": left.drained_for is not None,
            "drained_for": left.drained_for or "",
        }

    def _mistakes(self, host: str, name: str, plan: t.Mapping[str, t.Any]) -> list[str]:
        """What is wrong with what was said of this host, whatever is planned."""
        which = [
            _kubernetes.of_several_hosts(name, self._hosts[name]),
            _kubernetes.of_another_machine(name, self._nodes.get(name), plan.get("machine") or {}),
        ]
        return [*_kubernetes_settings.wrong(self._settings_of(host)), *filter(None, which)]

    def _leaving(self, host: str, name: str) -> _cordon.Leaving:
        """The pods that a change of this host would have leave, and why it could not. Raises ApiProblem."""
        drain = _kubernetes_settings.of_a_drain(self._settings_of(host))
        found = _cordon.leaving(self._api.pods_on(name), **drain)
        return found._replace(blocked=tuple(f"Node {name} cannot be drained: {why}" for why in found.blocked))

    def _settings_of(self, host: str) -> dict[str, t.Any]:
        return {variable: values.get(host) for variable, values in self._arguments["settings"].items()}

    def _left_behind(self, name: str, node: Json, mode: str, owner: _owners.Owner) -> _healing.LeftBehind:
        """Where we may do nothing, nothing is mended."""
        left = _healing.left_behind(
            name,
            node,
            managed=mode == _owners.OPERATOR,
            run=self._arguments["run"],
            now=self._owners.now,
            patience=self._owners.patience,
        )
        return left._replace(heal=()) if owner.refusals else left
