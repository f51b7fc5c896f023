# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Has NVIDIA's MIG manager bring a node to a layout. It runs on the controller and asks the host nothing."""

from __future__ import annotations

import math
import time
import typing as t

from ansible.plugins.action import ActionBase

from ansible_collections.gpufleet.mig.plugins.plugin_utils import _cordon, _kubernetes, _mig_manager, _owners
from ansible_collections.gpufleet.mig.plugins.plugin_utils._action import answered, list_of
from ansible_collections.gpufleet.mig.plugins.plugin_utils._kubernetes_api import (
    CONFLICT,
    NOT_FOUND,
    Api,
    ApiProblem,
    Json,
)

_ATTEMPTS = 10
_POLL_SECONDS = 1.0
_SECONDS_BETWEEN_CALLS = 10.0
_STUCK_SECONDS = 60.0

Result = dict[str, t.Any]

ARGUMENTS: dict[str, t.Any] = {
    "name": {"type": "str", "required": True},
    "label": {"type": "str", "required": True},
    "config": {"type": "list", "elements": "dict", "required": True},
    "config_map": {"type": "str", "default": "gpufleet-mig"},
    "namespace": {"type": "str", "default": "gpu-operator"},
    "set_policy": {"type": "bool", "default": False},
    "hand_back": {"type": "bool", "default": False},
    "manager_selector": {"type": "raw", "default": ["app=nvidia-mig-manager"]},
    "run": {"type": "str", "default": "ansible"},
    "timeout": {"type": "float", "default": 900},
    "ready_timeout": {"type": "float", "default": 300},
    "known_after": {"type": "float", "default": 150},
    "stays": {"type": "float", "default": 10},
    "auth": {"type": "dict", "default": {}},
}


class Refused(Exception):
    """The manager cannot do it, or has not; the message says why, with the next action."""


class ActionModule(ActionBase):
    """Labels are all that is written to the node; what becomes of its GPUs is up to the manager."""

    TRANSFERS_FILES = False
    _supports_check_mode = True
    _supports_async = False
    _requires_connection = False

    def run(self, tmp: t.Optional[str] = None, task_vars: t.Optional[dict[str, t.Any]] = None) -> dict[str, t.Any]:
        result: Result = {**super().run(tmp, task_vars), "changed": False}
        arguments = answered(self, ARGUMENTS)
        change = _Change(arguments, check_mode=self._task.check_mode)
        try:
            change.hand_back() if arguments["hand_back"] else change.make()
        except (ApiProblem, Refused, _mig_manager.BadConfigMap) as problem:
            change.result.update(failed=True, msg=str(problem))
        return {**result, **change.result}


class _Change:
    """A change of one node by its manager, and in ``result`` what was done so far."""

    def __init__(self, arguments: t.Mapping[str, t.Any], check_mode: bool) -> None:
        self._arguments = arguments
        self._name: str = arguments["name"]
        self._map: str = arguments["config_map"]
        self._check_mode = check_mode
        self._config = _mig_manager.name_of(arguments["label"], arguments["config"])
        # When the manager surely knows the config.
        self._known_at = -math.inf
        said = {"node": self._name, "config": self._config}
        self.result: Result = {"changed": False, "altered": False, "rolled_back": False, **said}

    def make(self) -> None:
        """Make the config known, call the manager by it, and wait; go back to the label from before if it fails."""
        api = Api(self._arguments["auth"])
        self._require_a_manager(api)
        self._make_known(api)
        self._have_a_manager_that_works(api)
        node = self._when_it_is_not_at_work(api)
        value = _mig_manager.value_of(node)
        is_called = value in _mig_manager.names_of(self._config)
        if is_called and _mig_manager.state_of(node) == "success":
            self.result["changed"] = self._patch(api, _mig_manager.to_forget) or self.result["changed"]
            self.result["msg"] = f"Node {self._name} has {value} already."
            return
        # Where it was called by this content and got stuck, it acts on another name of it only.
        wanted = _mig_manager.other_name(self._config, value) if is_called else self._config
        if self._check_mode:
            self.result.update(changed=True, msg=f"Node {self._name} would get {wanted} instead of {value or 'none'}.")
            return
        self._call_and_wait(api, wanted)
        self._require_that_it_stays(api)
        self._patch(api, _mig_manager.to_forget)
        self.result["msg"] = f"Node {self._name} has {self._config}."

    def hand_back(self) -> None:
        """Give a node that was taken over back to its manager, which finds that it has what it shall have.

        It counts as taken over until the manager has confirmed that, so that the next run ends what this one could not.
        """
        api = Api(self._arguments["auth"])
        node = self._node_to_hand_back(api)
        if not _cordon.is_taken_over(node):
            self.result["msg"] = f"Node {self._name} was not taken over from its MIG manager, and stays as it is."
            return
        if _cordon.has_been_given_back_by_others(node):
            self.result["changed"] = self._patch(api, lambda found: _cordon.to_hand_back(found, self._config))
            self.result["msg"] = f"Somebody else has given node {self._name} back to its MIG manager, and it stays so."
            return
        self._require(api, lambda found, policy: _mig_manager.why_not_named(self._name, found, policy, self._map))
        self._make_known(api)
        # One that has failed at this name acts on another one only.
        has_failed = _mig_manager.has_failed(node) and _mig_manager.value_of(node) in _mig_manager.names_of(
            self._config
        )
        wanted = _mig_manager.other_name(self._config, _mig_manager.value_of(node)) if has_failed else self._config
        is_told = self._patch(api, lambda found: _cordon.to_hand_back(found, wanted))
        # Where it was told by a run before, what ends that is yet to come.
        self.result["changed"] = self.result["changed"] or is_told or self._check_mode
        self.result["msg"] = f"The MIG manager of node {self._name} has it again, with {wanted}."
        if self._check_mode:
            return
        self.result["altered"] = True
        state = self._wait(api, time.monotonic() + self._arguments["timeout"])
        if state != "success":
            trouble = _kubernetes.those_that_ail(self._managers(api)) or "look at the log of its pod"
            raise Refused(
                f"The MIG manager of node {self._name} has it again, and {_says(state)} of {wanted}: {trouble}. Mend"
                " that, and run again, which waits for it once more."
            )
        self.result["changed"] = self._patch(api, _cordon.to_end_hand_back) or self.result["changed"]

    def _node_to_hand_back(self, api: Api) -> Json:
        try:
            return api.node(self._name)
        except ApiProblem as problem:
            if problem.status != NOT_FOUND:
                raise
            raise Refused(
                f"Kubernetes has no node {self._name} that could be handed back: set kubernetes_node to what 'kubectl"
                " get nodes' calls this host, or leave mig_hand_back out. Nothing was done."
            ) from problem

    def _require_a_manager(self, api: Api) -> None:
        managers = self._managers(api)
        self._require(api, lambda node, policy: _mig_manager.why_not(self._name, node, policy, self._map, managers))

    def _require(self, api: Api, why_not: t.Callable[[Json, t.Optional[Json]], str]) -> None:
        """Raise Refused where something speaks against it; otherwise the ClusterPolicy has our config map."""
        policy = _owners.policy_as_asked_for(api.cluster_policy(), self._arguments)
        why = why_not(api.node(self._name), policy)
        if why:
            raise Refused(f"{why} Nothing was done.")
        if self._arguments["set_policy"]:
            self._name_in_the_policy(api)

    def _have_a_manager_that_works(self, api: Api) -> None:
        """Start a manager anew, once, whose last word is that it failed, or whose pod crashes.

        One that came while the driver was away has no libraries of it, and fails until it is made again. The new one
        begins with the label as it is. That is waited for, since it would be taken for the answer to the next call.
        """
        node = api.node(self._name)
        stale = [pod for pod in self._managers(api) if _mig_manager.has_failed(node) or _kubernetes.is_broken(pod)]
        self.result["changed"] = self.result["changed"] or bool(stale)
        if self._check_mode:
            return
        if stale:
            self._patch(api, _mig_manager.to_unsay)
        for pod in stale:
            metadata = pod["metadata"]
            api.delete_pod(metadata["namespace"], metadata["name"], metadata["uid"])
        self._wait_for_a_ready_manager(api, {pod["metadata"]["uid"] for pod in stale})
        if stale and _mig_manager.value_of(node):
            self.result["altered"] = True
            self._wait(api, time.monotonic() + self._arguments["timeout"])

    def _wait_for_a_ready_manager(self, api: Api, stale: t.Collection[str]) -> None:
        """Raise Refused where there is none in time but those that had to go."""
        seconds = self._arguments["ready_timeout"]
        give_up_at = time.monotonic() + seconds
        while True:
            pods = self._managers(api)
            if any(_kubernetes.is_ready(pod) and pod["metadata"]["uid"] not in stale for pod in pods):
                return
            if time.monotonic() >= give_up_at:
                raise Refused(
                    f"No pod of the MIG manager on node {self._name} is ready after {seconds:g} s:"
                    f" {_kubernetes.those_that_ail(pods) or 'there is none'}. Nobody would act on the node's label:"
                    " look at the events and the log of the pod, and run again."
                )
            time.sleep(_POLL_SECONDS)

    def _managers(self, api: Api) -> list[Json]:
        return api.pods(list_of(self._arguments["manager_selector"]), self._name)

    def _when_it_is_not_at_work(self, api: Api) -> Json:
        """The node when its manager has ended what it was called for before, as by a run that was killed.

        It would say of that one how it went, and not of ours.
        """
        timeout = self._arguments["timeout"]
        give_up_at = time.monotonic() + timeout
        while True:
            node = api.node(self._name)
            at_work = _mig_manager.is_at_work(node, time.time(), timeout) and time.monotonic() < give_up_at
            if self._check_mode or not at_work:
                return node
            time.sleep(_POLL_SECONDS)

    def _name_in_the_policy(self, api: Api) -> None:
        """For all nodes of the cluster. What was named before is copied, so that their labels mean the same."""
        policy = api.cluster_policy()
        if policy is None:
            return
        manager = (policy.get("spec") or {}).get("migManager") or {}
        before = (manager.get("config") or {}).get("name")
        if before == self._map:
            return
        self.result["changed"] = True
        if self._check_mode:
            return
        if before and self._config_map(api) is None:
            found = api.config_map(self._arguments["namespace"], before)
            if found is not None:
                self._write(api, None, _text_of(found))
        naming = _mig_manager.naming(self._map)
        api.patch_cluster_policy(policy["metadata"]["name"], {"spec": naming})
        self._will_be_known(0.0)

    def _make_known(self, api: Api) -> None:
        """Put the config into the config map, beside those of other hosts, which may be doing the same right now."""
        for _attempt in range(_ATTEMPTS):
            found = self._config_map(api)
            before = _text_of(found)
            try:
                after = _mig_manager.with_config(before, self._config, self._arguments["config"])
            except _mig_manager.BadConfigMap as problem:
                where = f"{self._arguments['namespace']}/{self._map}"
                raise Refused(f"Config map {where} is not used, since {problem}: mend or remove it.") from problem
            if after == before:
                written = _mig_manager.last_change(found) if found else None
                if written is not None:
                    self._will_be_known(time.time() - written)
                return
            self.result["changed"] = True
            if self._check_mode or self._write(api, found, after):
                self._will_be_known(0.0)
                return
        raise Refused(f"Config map {self._map} was changed by others each time that it was to be: run again.")

    def _will_be_known(self, age: float) -> None:
        known_at = time.monotonic() + self._arguments["known_after"] - max(0.0, age)
        self._known_at = max(self._known_at, known_at)

    def _config_map(self, api: Api) -> t.Optional[Json]:
        return api.config_map(self._arguments["namespace"], self._map)

    def _write(self, api: Api, found: t.Optional[Json], text: str) -> bool:
        """Whether nobody else was quicker."""
        where = (self._arguments["namespace"], self._map)
        try:
            api.put_config_map(*where, found, {_mig_manager.FILE: text})
        except ApiProblem as problem:
            if problem.status != CONFLICT:
                raise
            return False
        return True

    def _call_and_wait(self, api: Api, value: str) -> None:
        give_up_at = time.monotonic() + self._arguments["timeout"]
        while True:
            self._label(api, value)
            state = self._wait(api, give_up_at)
            if state == "success":
                return
            # It reads the config map from a volume, which the kubelet brings up to date only now and then, and nobody
            # can see when. Until then it fails without touching anything, for lack of a config of this name.
            if state != "failed" or time.monotonic() + _SECONDS_BETWEEN_CALLS > self._known_at:
                break
            time.sleep(_SECONDS_BETWEEN_CALLS)
            value = _mig_manager.other_name(self._config, value)
        self._go_back(api, state)

    def _label(self, api: Api, value: str) -> None:
        run = self._arguments["run"]
        # Before it is asked for: whether it was done is not known where the answer gets lost.
        self.result["altered"] = True
        self.result["changed"] = (
            self._patch(api, lambda node: _mig_manager.to_call(node, value, run)) or self.result["changed"]
        )

    def _wait(self, api: Api, give_up_at: float) -> str:
        """What the manager says in the end: success, failed, or where it got stuck."""
        while True:
            late = time.monotonic() >= give_up_at
            try:
                state = _mig_manager.state_of(api.node(self._name))
            except ApiProblem as problem:
                # The manager goes on without the API server for a while, and so does this; but not without the node.
                if late or problem.status == NOT_FOUND:
                    raise
                state = ""
            if late or state in ("success", "failed"):
                return state
            time.sleep(_POLL_SECONDS)

    def _go_back(self, api: Api, state: str) -> None:
        """To the label from before. Raises Refused.

        A manager that gave up waiting for a pod acts on this at once; one that is stuck does when it is not any more.
        """
        trouble = f"The MIG manager of node {self._name} {_says(state)} of {self._config}{self._who_is_left(api)}"
        before = _mig_manager.before_of(api.node(self._name))
        if not before:
            raise Refused(f"{trouble}, and the node had no config before: look at the log of its pod, and run again.")
        self._label(api, before)
        timeout = self._arguments["timeout"] if state == "failed" else min(_STUCK_SECONDS, self._arguments["timeout"])
        if self._wait(api, time.monotonic() + timeout) != "success":
            raise Refused(
                f"{trouble}. The label has {before} again, as before, and the manager has not confirmed it: look at the"
                " log of its pod, and run again, by which a manager that has failed is started anew."
            )
        self._patch(api, _mig_manager.to_forget)
        self.result["rolled_back"] = True
        raise Refused(f"{trouble}. The node has {before} again, as before: look at the log of the manager's pod.")

    def _who_is_left(self, api: Api) -> str:
        """It waits for pods that use GPUs, and says nowhere for which."""
        ending = [str(pod) for pod in map(_cordon.pod_of, api.pods_on(self._name)) if pod.leaving]
        return f" (these pods were to end and have not: {', '.join(ending)})" if ending else ""

    def _require_that_it_stays(self, api: Api) -> None:
        """Others who set the same label, such as a tool that follows a repository, do it soon."""
        until = time.monotonic() + self._arguments["stays"]
        while True:
            value = _mig_manager.value_of(api.node(self._name))
            if value not in _mig_manager.names_of(self._config):
                raise Refused(
                    f"Somebody else has set the label {_mig_manager.CONFIG} of node {self._name} to {value!r} since:"
                    " have one of the two own it, and run again."
                )
            if time.monotonic() >= until:
                return
            time.sleep(_POLL_SECONDS)

    def _patch(self, api: Api, patch_for: t.Callable[[Json], t.Optional[Json]]) -> bool:
        return api.patch_node(self._name, patch_for, check=self._check_mode)


def _says(state: str) -> str:
    return f"says {state or 'nothing'}"


def _text_of(config_map: t.Optional[Json]) -> str:
    return str(((config_map or {}).get("data") or {}).get(_mig_manager.FILE, ""))
