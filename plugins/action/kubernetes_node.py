# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Takes a Kubernetes node out of use and gives it back. It runs on the controller and asks the host nothing."""

from __future__ import annotations

import time
import typing as t

from ansible.plugins.action import ActionBase

from ansible_collections.gpufleet.mig.plugins.plugin_utils import _cordon, _healing, _mig_manager, _rollout
from ansible_collections.gpufleet.mig.plugins.plugin_utils._action import answered, list_of
from ansible_collections.gpufleet.mig.plugins.plugin_utils._kubernetes_api import Api, ApiProblem, Json

_POLL_SECONDS = 1.0
# Until the controller of daemonsets has told the pods to end that a label of their node keeps away.
_SECONDS_UNTIL_TOLD = 10.0
_NAMES_SHOWN = 8

Result = dict[str, t.Any]

_STATES = ("cordoned", "drained", "paused", "resumed", "uncordoned", "taken_over")

ARGUMENTS: dict[str, t.Any] = {
    "name": {"type": "str", "required": True},
    "state": {"type": "str", "required": True, "choices": list(_STATES)},
    "run": {"type": "str", "default": "ansible"},
    "drained_for": {"type": "str"},
    "take_over_drain": {"type": "bool", "default": False},
    "pods": {"type": "str", "choices": ["all", "gpu"], "default": "all"},
    "force": {"type": "bool", "default": False},
    "delete_emptydir_data": {"type": "bool", "default": False},
    "grace_period": {"type": "int"},
    "labels": {"type": "list", "elements": "str", "default": []},
    "paused_pods": {"type": "raw", "default": []},
    "stays": {"type": "float", "default": 10},
    "timeout": {"type": "float", "default": 600},
    "auth": {"type": "dict", "default": {}},
}


class Refused(Exception):
    """The node is not as it was asked for; the message says why, with the next action."""


class ActionModule(ActionBase):
    """The API is asked from here, as kubectl would ask it."""

    TRANSFERS_FILES = False
    _supports_check_mode = True
    _supports_async = False
    _requires_connection = False

    def run(self, tmp: t.Optional[str] = None, task_vars: t.Optional[dict[str, t.Any]] = None) -> dict[str, t.Any]:
        result: Result = {**super().run(tmp, task_vars), "changed": False}
        arguments = answered(self, ARGUMENTS)
        node = _Node(arguments, check_mode=self._task.check_mode)
        try:
            node.become(arguments["state"])
        except (ApiProblem, Refused) as problem:
            node.result.update(failed=True, msg=str(problem))
        return {**result, **node.result}


class _Node:
    """One node, and in ``result`` what was done to it so far."""

    def __init__(self, arguments: t.Mapping[str, t.Any], check_mode: bool) -> None:
        self._arguments = arguments
        self._name: str = arguments["name"]
        self._check_mode = check_mode
        self.result: Result = {"changed": False, "node": self._name}

    def become(self, state: str) -> None:
        """What the states of the module mean."""
        {
            "cordoned": self.cordon,
            "drained": self.drain,
            "paused": self.pause,
            "resumed": self.resume,
            "uncordoned": self.uncordon,
            "taken_over": self.take_over,
        }[state]()

    def cordon(self) -> None:
        """No new pod comes; those that are there stay."""
        self._mark(Api(self._arguments["auth"]))

    def uncordon(self) -> None:
        """As it was before a run of ours."""
        api = Api(self._arguments["auth"])
        before = _cordon.read(api.node(self._name))
        changed = self._patch(api, _cordon.to_uncordon)
        self.result.update(was_unschedulable=before.was_unschedulable if before else None)
        if before is None:
            self.result["msg"] = f"Node {self._name} was not cordoned by gpufleet.mig, and stays as it is."
        else:
            stays = "stays cordoned, as it was before" if before.was_unschedulable else "takes pods again"
            self.result["msg"] = f"Node {self._name} {stays}."
        self.result["changed"] = changed

    def pause(self) -> None:
        """What its labels deploy on the node is gone."""
        api = Api(self._arguments["auth"])
        labels, run = self._arguments["labels"], self._arguments["run"]
        self.result["changed"] = self._patch(api, lambda node: _cordon.to_pause(node, labels, run))
        if self._check_mode:
            return
        staying = self._until_operands_are_gone(api, "paused", may_stay=True)
        self.result["staying"] = staying
        if staying:
            self.result["warnings"] = [self._who_stays(staying)]

    def _who_stays(self, pods: t.Sequence[str]) -> str:
        return (
            f"Pods {', '.join(pods)} stay on node {self._name}, and a change of the MIG mode that needs a reset is"
            " refused while they have the driver open: have their daemonset keep away from nodes with the label"
            f" {_cordon.PAUSES}, or name in kubernetes_pause_labels the label by which it chooses nodes."
        )

    def resume(self) -> None:
        """Its labels have the values that they had."""
        self.result["changed"] = self._patch(Api(self._arguments["auth"]), _cordon.to_resume)

    def take_over(self) -> None:
        """The operator has no MIG manager on it."""
        api = Api(self._arguments["auth"])
        self.result["changed"] = self._patch(api, lambda node: _cordon.to_take_over(node, self._arguments["run"]))
        if self._check_mode:
            return
        stays_until = time.monotonic() + (self._arguments["stays"] if self.result["changed"] else 0)
        remedy = "; or name in kubernetes_manager_selector the pods of the MIG manager alone"
        self._until_operands_are_gone(api, "taken over from the operator's MIG manager", remedy)
        # Others who set the same label, such as a tool that follows a repository, do it soon.
        while True:
            if _mig_manager.is_deployed(api.node(self._name)):
                raise Refused(
                    f"Somebody else has set the label {_mig_manager.DEPLOYED} of node {self._name} to true again: have"
                    " that changed where it comes from, and run again."
                )
            if time.monotonic() >= stays_until:
                return
            time.sleep(_POLL_SECONDS)

    def _until_operands_are_gone(self, api: Api, what: str, remedy: str = "", may_stay: bool = False) -> list[str]:
        """Wait until its pods are gone; returns those that stay, where they may.

        A pod that nobody has told to end for a while is of a daemonset that heeds none of the labels.
        """
        begun = time.monotonic()
        while True:
            left = [_cordon.pod_of(pod) for pod in self._operands(api)]
            waited = time.monotonic() - begun
            untold = [pod for pod in left if may_stay and waited >= _SECONDS_UNTIL_TOLD and not pod.leaving]
            if len(untold) == len(left):
                return [str(pod) for pod in untold]
            if waited >= self._arguments["timeout"]:
                raise Refused(
                    f"Node {self._name} is {what}, and after {self._arguments['timeout']:g} s its pods"
                    f" {', '.join(map(str, left))} have not ended: end them yourself, and run again{remedy}."
                )
            time.sleep(_POLL_SECONDS)

    def _operands(self, api: Api) -> list[Json]:
        return api.pods(list_of(self._arguments["paused_pods"]), self._name)

    def drain(self) -> None:
        """Nothing is evicted where one of the pods must not be, and no pod is waited for that long."""
        api = Api(self._arguments["auth"])
        first = self._leaving(api)
        if first.blocked:
            raise Refused(f"Node {self._name} is not drained: {' '.join(first.blocked)}")
        self._mark(api)
        self.result["pods"] = [str(pod) for pod in first.pods]
        if self._check_mode:
            self.result["changed"] = self.result["changed"] or any(not pod.leaving for pod in first.pods)
            return
        self._evict_all(api)

    def _evict_all(self, api: Api) -> None:
        give_up_at = time.monotonic() + self._arguments["timeout"]
        while True:
            # Again each time: a pod may have come before the scheduler saw the cordon.
            left = self._leaving(api)
            if left.blocked:
                raise Refused(f"Node {self._name} is not drained: {' '.join(left.blocked)}")
            refused = self._evict(api, left.pods)
            if not left.pods:
                return
            if time.monotonic() >= give_up_at:
                raise Refused(self._who_is_left(left.pods, refused))
            time.sleep(_POLL_SECONDS)

    def _evict(self, api: Api, pods: t.Iterable[_cordon.Pod]) -> dict[str, str]:
        """Ask the pods to leave that were not asked yet; why they do not, by pod."""
        refused = {}
        for pod in pods:
            if pod.leaving:
                continue
            why = api.evict(pod.namespace, pod.name, self._arguments["grace_period"])
            if why:
                refused[str(pod)] = why
            else:
                self.result["changed"] = True
        return refused

    def _leaving(self, api: Api) -> _cordon.Leaving:
        return _cordon.leaving(
            api.pods_on(self._name),
            only_gpu=self._arguments["pods"] == "gpu",
            force=self._arguments["force"],
            delete_emptydir_data=self._arguments["delete_emptydir_data"],
        )

    def _mark(self, api: Api) -> None:
        before = _cordon.read(api.node(self._name))
        self.result["found_run"] = before.run if before else ""
        self.result["changed"] = self._patch(api, self._to_cordon)

    def _to_cordon(self, node: Json) -> t.Optional[Json]:
        """The record of a rollout for another layout stays, also one that came since the plan was made."""
        run, drained_for = self._arguments["run"], self._arguments["drained_for"]
        before = _cordon.read(node)
        if before and drained_for is not None and _cordon.is_kept_by_another(before, run):
            raise Refused(_healing.cordoned_by_another(self._name, before.run))
        if _cordon.is_for_another(before, drained_for) and not self._arguments["take_over_drain"]:
            label = str(before.drained_for) if before else ""
            raise Refused(_rollout.drained_by_another(f"node {self._name}", label))
        return _cordon.to_cordon(node, run, drained_for)

    def _patch(self, api: Api, patch_for: t.Callable[[Json], t.Optional[Json]]) -> bool:
        return api.patch_node(self._name, patch_for, check=self._check_mode)

    def _who_is_left(self, pods: t.Sequence[_cordon.Pod], refused: t.Mapping[str, str]) -> str:
        told = [f"{pod} ({refused.get(str(pod), 'it was told to end and has not')})" for pod in pods[:_NAMES_SHOWN]]
        more = len(pods) - len(told)
        others = f" and {more} more" if more > 0 else ""
        return (
            f"Node {self._name} is not drained after {self._arguments['timeout']:g} s. Left are"
            f" {', '.join(told)}{others}. Make room elsewhere or end them yourself, and run again; or give it more time"
            " (timeout)."
        )
