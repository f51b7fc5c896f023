# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Plays what makes a cluster of an API: kubelets, daemonset controller, scheduler, and NVIDIA's pods on the nodes.

    with Cluster(kubeconfig) as cluster:
        cluster.add(Machine("node-1", layout=lambda: gpus))

Everything is done over the API of the kubeconfig, so it serves api.py and a real kube-apiserver alike.

What of the originals matters to an adapter, and is played here:

- A pod that is deleted ends when its process does, at the latest after its grace period; only a pod in
  ``Machine.ends`` takes time, or for ever. A daemonset's next pod comes only when the last one is gone.
- The device plugin reads the node's GPUs when it starts, and never again. When it ends, allocatable is 0; a resource
  that the next one does not offer stays on the node as 0, its capacity for another five minutes as it was. A layout
  that it refuses lets it crash, again and again, with a pause.
- gpu-feature-discovery labels when it starts; labels that no longer hold go.
- mig-manager (mig-parted's Go version) acts when the label's value changes. It pauses the operands by their labels and
  waits for their pods; if that takes too long, it leaves everything as it is, with state ``pending``. Its promise to
  restore the labels when it fails is kept only until its first success: the flag for that is never reset.
- gpu-operator hands a changed strategy, or another ConfigMap, of its ClusterPolicy on to its daemonsets.
"""

from __future__ import annotations

import copy
import dataclasses
import datetime
import fnmatch
import hashlib
import http.client
import itertools
import json
import math
import threading
import time
import traceback
import typing as t
from pathlib import Path

from ansible_collections.gpufleet.mig.tests.kubernetes.client import ApiError, Client, Data, path_of
from ansible_collections.gpufleet.mig.tests.kubernetes.gpus import Gpu, Outcome, recorded
from ansible_collections.gpufleet.mig.tests.kubernetes.store import matches_selector

NODES = "/api/v1/nodes"
PODS = "/api/v1/pods"
DAEMONSETS = "/apis/apps/v1/daemonsets"
REPLICASETS = "/apis/apps/v1/replicasets"
POLICIES = "/apis/nvidia.com/v1/clusterpolicies"

OPERATOR = "gpu-operator"
DEFAULT_CONFIGS = "default-mig-parted-config"

UNSCHEDULABLE = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
REVISION = "controller-revision-hash"
CONFIG = "nvidia.com/mig.config"
STATE = "nvidia.com/mig.config.state"
DEPLOY = "nvidia.com/gpu.deploy."
PAUSED = "paused-for-mig-change"
# What mig-manager pauses, in its order; the pods of the first four it waits for by their label app.
OPERANDS = {
    "device-plugin": "nvidia-device-plugin-daemonset",
    "gpu-feature-discovery": "gpu-feature-discovery",
    "dcgm-exporter": "nvidia-dcgm-exporter",
    "dcgm": "nvidia-dcgm",
    "nvsm": "",
}
PARTS = ("device-plugin", "gpu-feature-discovery", "mig-manager")
AWAY = (OSError, http.client.HTTPException)  # how one notices that the API is


@dataclasses.dataclass
class Machine:
    """A node as its kubelet and NVIDIA's pods on it see it. A test may change any of this at any time."""

    name: str
    layout: t.Callable[[], t.Sequence[Gpu]]
    outcome: t.Callable[[t.Sequence[Gpu], str], Outcome] = recorded
    starts: dict[str, float] = dataclasses.field(default_factory=dict)
    """Pattern of pod names -> seconds until they run; ``math.inf`` for an image that cannot be had."""
    ends: dict[str, float] = dataclasses.field(default_factory=dict)
    """Pattern of pod names -> seconds until they have ended; ``math.inf`` for a process that nothing ends."""
    crash_pause: float = 0.2
    """Seconds until a device plugin that crashed is started again. A real kubelet's are 10, 20, 40, ..."""
    keeps_capacity: float = 300.0
    """Seconds that the capacity of a resource outlives its plugin."""
    begins: t.Callable[[Data], object] | None = None
    """Called with a pod that starts: where nodes are more than played, its processes are made there."""
    finishes: t.Callable[[Data], object] | None = None
    """Called with a pod that ends: before it is gone from the API, unless it was deleted without grace."""
    manager: Manager | None = None
    kept: dict[str, str] = dataclasses.field(default_factory=dict)
    """Labels of the node that somebody else sets back whenever they change: a GitOps tool, say."""

    # What the kubelet remembers
    seen: dict[tuple[str, str], float] = dataclasses.field(default_factory=dict)
    plugin: str = ""
    started: set[str] = dataclasses.field(default_factory=set)
    begun: dict[str, Data] = dataclasses.field(default_factory=dict)
    crashed: dict[str, float] = dataclasses.field(default_factory=dict)
    lost: dict[str, float] = dataclasses.field(default_factory=dict)
    labels: set[str] = dataclasses.field(default_factory=set)

    def left(self, what: str, pod: Data) -> float:
        """Seconds until this pod has started or ended (``what``); it counts from when the kubelet saw it first."""
        patterns = self.starts if what == "start" else self.ends
        name = pod["metadata"]["name"]
        takes = next((some for pattern, some in list(patterns.items()) if fnmatch.fnmatchcase(name, pattern)), 0.0)
        if what == "end" and not math.isinf(takes):
            takes = min(takes, pod["metadata"].get("deletionGracePeriodSeconds", 0))
        first = self.seen.setdefault((what, pod["metadata"]["uid"]), time.monotonic())
        return first + takes - time.monotonic()


class Cluster:
    """The controllers and the kubelets, in one thread that looks again whenever anything happens."""

    def __init__(self, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig
        self.client = Client(kubeconfig, "stand-in kubelet")
        self.machines: dict[str, Machine] = {}
        self.happened = threading.Condition()
        self.count = 0
        self.stop = threading.Event()
        self.error = ""
        self.trouble = ""  # what the API said last when something did not work
        self.threads = [threading.Thread(target=self._run, daemon=True)]
        watched = {NODES: self.node_event, PODS: self.wake, DAEMONSETS: self.wake, REPLICASETS: self.wake}
        watched[POLICIES] = self.wake
        for path, seen in watched.items():
            self.threads.append(threading.Thread(target=self._watch, args=(path, seen), daemon=True))

    def __enter__(self) -> Cluster:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop.set()
        self.wake()
        self.threads[0].join(30)
        for machine in self.machines.values():
            if machine.manager:
                machine.manager.stop()
        if self.error:
            raise AssertionError(f"a stand-in broke down:\n{self.error}")

    def add(self, machine: Machine) -> Machine:
        self.machines[machine.name] = machine
        if machine.manager:
            machine.manager.start(self, machine)
        self.wake()
        return machine

    def wait_for(self, what: t.Callable[[], object], seconds: float = 20.0) -> bool:
        """Whether something came true in time. It is looked at again after everything that happens in the cluster."""
        deadline = time.monotonic() + seconds
        while True:
            with self.happened:
                before = self.count
            if what():
                return True
            with self.happened:
                left = deadline - time.monotonic()
                if left <= 0 or self.error:
                    return False
                if self.count == before:
                    self.happened.wait(min(left, 0.5))

    def wake(self, *_event: object) -> None:
        with self.happened:
            self.count += 1
            self.happened.notify_all()

    def node_event(self, event: Data) -> None:
        metadata = event["object"].get("metadata") or {}
        machine = self.machines.get(metadata.get("name", ""))
        if machine and machine.manager:
            machine.manager.node_changed(metadata.get("labels") or {})
        self.wake()

    def break_down(self) -> None:
        """A mistake in a stand-in, or a layout that nobody recorded: the test ends with it."""
        self.error = traceback.format_exc()
        self.stop.set()
        self.wake()

    # The threads

    def _watch(self, path: str, seen: t.Callable[[Data], object]) -> None:
        while not self.stop.is_set():
            try:
                self.client.watch(path, seen, self.stop)
            except ApiError as error:
                if error.code == 404:
                    return  # a cluster that does not know this kind
                self.stop.wait(0.2)
            except AWAY:
                self.stop.wait(0.2)
            except Exception:
                self.break_down()

    def _run(self) -> None:
        while not self.stop.is_set():
            with self.happened:
                before = self.count
            try:
                due = self.look()
            except (ApiError, *AWAY) as error:
                self.trouble = repr(error)
                due = 0.2  # somebody was faster, perhaps: look again
            except Exception:
                self.break_down()
            with self.happened:
                if self.count == before and not self.stop.is_set():
                    self.happened.wait(min(due, 1.0))

    def look(self) -> float:
        """Does what is due; the seconds until something else is."""
        self.keep_policies()
        nodes = {node["metadata"]["name"]: node for node in self.client.select(NODES)}
        pods = self.client.select(PODS)
        daemonsets = self.client.select(DAEMONSETS)
        for pod in pods:
            pod.update(apiVersion="v1", kind="Pod")
        for daemonset in daemonsets:
            daemonset.update(apiVersion="apps/v1", kind="DaemonSet")
            self.keep_daemonset(daemonset, nodes, pods)
        self.collect(daemonsets, nodes, pods)
        for replicaset in self.client.select(REPLICASETS):
            self.keep_replicaset({"apiVersion": "apps/v1", "kind": "ReplicaSet", **replicaset}, pods)
        self.schedule(nodes, pods)
        due = [1.0]
        for machine in list(self.machines.values()):
            if machine.name in nodes:
                self.keep_labels(machine, nodes[machine.name])
                self.keep_taint(nodes[machine.name])
                mine = [pod for pod in pods if pod["spec"].get("nodeName") == machine.name]
                due.append(self.run_node(machine, nodes[machine.name], mine))
        return max(min(due), 0.01)

    # gpu-operator, as far as a ClusterPolicy that is changed changes its daemonsets

    def keep_policies(self) -> None:
        for policy in (self.client.find(POLICIES) or {"items": []})["items"]:
            strategy = (policy["spec"].get("mig") or {}).get("strategy", "single")
            config = (policy["spec"].get("migManager") or {}).get("config") or {}
            for daemonset in self.client.select(f"/apis/apps/v1/namespaces/{OPERATOR}/daemonsets"):
                spec = daemonset["spec"]["template"]["spec"]
                changed = copy.deepcopy(spec)
                for variable in (one for container in changed["containers"] for one in container.get("env") or []):
                    if variable["name"] == "MIG_STRATEGY":
                        variable["value"] = strategy
                for volume in changed.get("volumes") or []:
                    if volume["name"] == "mig-parted-config":
                        volume["configMap"]["name"] = config.get("name") or DEFAULT_CONFIGS
                if changed != spec:
                    path = f"/apis/apps/v1/namespaces/{OPERATOR}/daemonsets/{daemonset['metadata']['name']}"
                    self.client.patch(path, {"spec": {"template": {"spec": changed}}})

    def keep_labels(self, machine: Machine, node: Data) -> None:
        labels = node["metadata"].get("labels") or {}
        changed = {name: value for name, value in machine.kept.items() if labels.get(name) != value}
        if changed:
            self.client.patch(path_to(machine.name), {"metadata": {"labels": changed}})

    def keep_taint(self, node: Data) -> None:
        """As the node lifecycle controller does: so a cordon makes somebody else write to the node."""
        taints = node["spec"].get("taints") or []
        others = [taint for taint in taints if taint["key"] != UNSCHEDULABLE["key"]]
        wanted = [*others, UNSCHEDULABLE] if node["spec"].get("unschedulable") else others
        if len(wanted) != len(taints):
            version = node["metadata"]["resourceVersion"]
            body = {"metadata": {"resourceVersion": version}, "spec": {"taints": wanted or None}}
            self.client.patch(path_to(node["metadata"]["name"]), body)

    # Daemonset controller, garbage collector, scheduler

    def keep_daemonset(self, daemonset: Data, nodes: dict[str, Data], pods: list[Data]) -> None:
        metadata, template = daemonset["metadata"], daemonset["spec"]["template"]
        revision = hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:10]
        mine = [pod for pod in pods if is_owned_by(pod, metadata["uid"])]
        wanted = {name for name in self.machines if name in nodes and selects(template["spec"], nodes[name])}
        rolling = daemonset["spec"]["updateStrategy"]["type"] == "RollingUpdate"
        for pod in mine:
            current = pod["metadata"]["labels"].get(REVISION) == revision or not rolling
            if "deletionTimestamp" not in pod["metadata"] and not (pod["spec"]["nodeName"] in wanted and current):
                self.client.delete_if_there(path_of(pod))
        for name in wanted - {pod["spec"]["nodeName"] for pod in mine}:
            self.client.create(f"/api/v1/namespaces/{metadata['namespace']}/pods", pod_of(daemonset, name, revision))
        ready = [pod for pod in mine if is_ready(pod) and pod["spec"]["nodeName"] in wanted]
        current_pods = [pod for pod in mine if pod["metadata"]["labels"].get(REVISION) == revision]
        status = {
            "currentNumberScheduled": len(mine),
            "desiredNumberScheduled": len(wanted),
            "numberAvailable": len(ready),
            "numberMisscheduled": len([pod for pod in mine if pod["spec"]["nodeName"] not in wanted]),
            "numberReady": len(ready),
            "observedGeneration": metadata["generation"],
            "updatedNumberScheduled": len(current_pods),
        }
        if {key: (daemonset.get("status") or {}).get(key, 0) for key in status} != status:
            self.client.patch(path_of(daemonset) + "/status", {"status": status})

    def keep_replicaset(self, replicaset: Data, pods: list[Data]) -> None:
        """In place of each pod that goes it makes another, for the scheduler to find a node for."""
        mine = [pod for pod in pods if is_owned_by(pod, replicaset["metadata"]["uid"])]
        alive = [pod for pod in mine if "deletionTimestamp" not in pod["metadata"]]
        for _missing in range(replicaset["spec"].get("replicas", 1) - len(alive)):
            namespace = replicaset["metadata"]["namespace"]
            self.client.create(f"/api/v1/namespaces/{namespace}/pods", pod_of(replicaset))

    def collect(self, daemonsets: list[Data], nodes: dict[str, Data], pods: list[Data]) -> None:
        """Pods whose daemonset is gone are deleted, those whose node is gone are removed."""
        uids = {daemonset["metadata"]["uid"] for daemonset in daemonsets}
        for pod in pods:
            node = pod["spec"].get("nodeName")
            owners = [owner for owner in pod["metadata"].get("ownerReferences", []) if owner["kind"] == "DaemonSet"]
            if node and node not in nodes:
                self.client.delete_if_there(path_of(pod), gracePeriodSeconds=0)
            elif owners and owners[0]["uid"] not in uids and "deletionTimestamp" not in pod["metadata"]:
                self.client.delete_if_there(path_of(pod))

    def schedule(self, nodes: dict[str, Data], pods: list[Data]) -> None:
        """Puts waiting pods onto nodes that have what they request, one after the other."""
        for pod in pods:
            if pod["spec"].get("nodeName") or "deletionTimestamp" in pod["metadata"]:
                continue
            lacking: set[str] = set()
            for name, node in nodes.items():
                if name in self.machines and not node["spec"].get("unschedulable") and selects(pod["spec"], node):
                    lacks = what_lacks(pod, node, [one for one in pods if one["spec"].get("nodeName") == name])
                    if not lacks:
                        target = {"apiVersion": "v1", "kind": "Node", "name": name}
                        self.client.create(path_of(pod) + "/binding", {**binding_of(pod), "target": target})
                        pod["spec"]["nodeName"] = name
                        break
                    lacking |= lacks
            else:
                reasons = ", ".join(f"1 Insufficient {name}" for name in sorted(lacking)) or "no node is schedulable"
                message = f"0/{len(nodes)} nodes are available: {reasons}."
                condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
                if condition not in pod["status"].get("conditions", []):
                    self.client.patch(path_of(pod) + "/status", {"status": {"conditions": [condition]}})

    # Kubelet

    def run_node(self, machine: Machine, node: Data, pods: list[Data]) -> float:
        due = [1.0]
        known = {pod["metadata"]["uid"] for pod in pods}
        if machine.plugin and machine.plugin not in known:
            self.end_plugin(machine)
        for uid in machine.begun.keys() - known:
            self.finish(machine, uid)
        for pod in pods:
            if "deletionTimestamp" in pod["metadata"]:
                due.append(self.end_pod(machine, pod))
            elif pod["status"].get("phase") in ("Succeeded", "Failed"):
                continue
            elif pod["metadata"]["uid"] not in machine.started:
                left = machine.left("start", pod)
                due.append(left)
                if left <= 0:
                    self.start_pod(machine, pod)
            elif pod["metadata"]["uid"] in machine.crashed:
                left = machine.crashed[pod["metadata"]["uid"]] - time.monotonic()
                due.append(left)
                if left <= 0:
                    self.start_pod(machine, pod)
        for name, until in list(machine.lost.items()):
            due.append(until - time.monotonic())
            if time.monotonic() >= until:
                del machine.lost[name]
                self.client.patch(f"{path_to(machine.name)}/status", {"status": {"capacity": {name: "0"}}})
        return min(due)

    def end_pod(self, machine: Machine, pod: Data) -> float:
        uid = pod["metadata"]["uid"]
        left = machine.left("end", pod)
        if left > 0:
            return left
        if machine.plugin == uid:
            self.end_plugin(machine)
        self.finish(machine, uid)
        self.client.delete_if_there(path_of(pod), gracePeriodSeconds=0, preconditions={"uid": uid})
        return 1.0

    def finish(self, machine: Machine, uid: str) -> None:
        pod = machine.begun.pop(uid, None)
        if pod and machine.finishes:
            machine.finishes(pod)

    def start_pod(self, machine: Machine, pod: Data) -> None:
        uid, part = pod["metadata"]["uid"], part_of(pod)
        restarts = 0
        if uid in machine.crashed:
            restarts = pod["status"]["containerStatuses"][0]["restartCount"] + 1
        outcome = machine.outcome(machine.layout(), strategy_of(pod)) if part in PARTS[:2] else None
        machine.crashed.pop(uid, None)
        exit_status = outcome.exit if outcome and part == "device-plugin" else None
        if exit_status is not None:
            machine.crashed[uid] = time.monotonic() + machine.crash_pause
        elif machine.begins and uid not in machine.begun:
            machine.begun[uid] = pod
            machine.begins(pod)
        if exit_status is None and outcome and part == "device-plugin":
            machine.plugin = uid
            self.report(machine, outcome.resources)
        elif exit_status is None and outcome:
            self.label(machine, outcome.labels)
        self.client.patch(path_of(pod) + "/status", {"status": running(pod, exit_status, restarts)})
        machine.started.add(uid)

    # What kubelet and gpu-feature-discovery tell about a node

    def end_plugin(self, machine: Machine) -> None:
        machine.plugin = ""
        self.report(machine, {})

    def report(self, machine: Machine, resources: dict[str, int]) -> None:
        """Sets allocatable and capacity of NVIDIA's resources to what a plugin offers."""
        status = self.client.get(path_to(machine.name)).get("status") or {}
        old = {
            name: amount for name, amount in (status.get("capacity") or {}).items() if name.startswith("nvidia.com/")
        }
        offered = {name: str(amount) for name, amount in resources.items()}
        for name in set(old) - set(offered):
            if old[name] != "0":
                machine.lost.setdefault(name, time.monotonic() + machine.keeps_capacity)
        for name in offered:
            machine.lost.pop(name, None)
        allocatable = {name: offered.get(name, "0") for name in {**old, **offered}}
        told = {"capacity": {**old, **offered}, "allocatable": allocatable}
        self.client.patch(f"{path_to(machine.name)}/status", {"status": told})

    def label(self, machine: Machine, labels: dict[str, str]) -> None:
        stamped = {**labels, "nvidia.com/gfd.timestamp": str(int(time.time()))}
        gone = dict.fromkeys(machine.labels - set(stamped))
        machine.labels = set(stamped)
        self.client.patch(path_to(machine.name), {"metadata": {"labels": {**gone, **stamped}}})


def path_to(node: str) -> str:
    return f"{NODES}/{node}"


def selects(spec: Data, node: Data) -> bool:
    labels = node["metadata"].get("labels") or {}
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    terms = (affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}).get("nodeSelectorTerms")
    if terms is not None and not any(matches_selector(term, labels) for term in terms):
        return False
    return all(labels.get(key) == value for key, value in (spec.get("nodeSelector") or {}).items())


def is_owned_by(pod: Data, uid: str) -> bool:
    return any(owner["uid"] == uid for owner in pod["metadata"].get("ownerReferences", []))


def is_ready(pod: Data) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or []
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def pod_of(controller: Data, node: str = "", revision: str = "") -> Data:
    """The next pod of a daemonset, for a node, or of a replicaset, for the scheduler."""
    metadata, template = controller["metadata"], controller["spec"]["template"]
    owner = {"apiVersion": "apps/v1", "kind": controller["kind"], "name": metadata["name"], "uid": metadata["uid"]}
    template_metadata = template.get("metadata") or {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": f"{metadata['name']}-",
            "namespace": metadata["namespace"],
            "labels": {**(template_metadata.get("labels") or {}), **({REVISION: revision} if revision else {})},
            "annotations": template_metadata.get("annotations") or {},
            "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": True}],
        },
        "spec": {**template["spec"], **({"nodeName": node} if node else {})},
    }


def binding_of(pod: Data) -> Data:
    metadata = {"name": pod["metadata"]["name"], "namespace": pod["metadata"]["namespace"]}
    return {"apiVersion": "v1", "kind": "Binding", "metadata": metadata}


def requests_of(pod: Data) -> dict[str, int]:
    """What a pod requests of NVIDIA's resources."""
    found: dict[str, int] = {}
    for container in pod["spec"]["containers"]:
        for name, amount in ((container.get("resources") or {}).get("requests") or {}).items():
            if name.startswith("nvidia.com/"):
                found[name] = found.get(name, 0) + int(amount)
    return found


def what_lacks(pod: Data, node: Data, others: list[Data]) -> set[str]:
    """The resources of which a node has too few left for a pod."""
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    left = {name: int(amount) for name, amount in allocatable.items() if name.startswith("nvidia.com/")}
    for other in others:
        if other["status"].get("phase") not in ("Succeeded", "Failed"):
            for name, amount in requests_of(other).items():
                left[name] = left.get(name, 0) - amount
    return {name for name, amount in requests_of(pod).items() if left.get(name, 0) < amount}


def part_of(pod: Data) -> str:
    """Which of NVIDIA's programs a pod runs, by the names of its containers; daemonsets may have any name."""
    names = [container["name"] for container in pod["spec"]["containers"]]
    return next((part for part in PARTS if any(part in name for name in names)), "")


def strategy_of(pod: Data) -> str:
    """The MIG strategy, where the programs look for it: command line, then environment; ``none`` by default."""
    for container in pod["spec"]["containers"]:
        words = [*(container.get("command") or []), *(container.get("args") or [])]
        for word, following in itertools.pairwise([*words, ""]):
            if word.startswith("--mig-strategy"):
                return t.cast(str, word.partition("=")[2] or following)
        for variable in container.get("env") or []:
            if variable["name"] == "MIG_STRATEGY":
                return t.cast(str, variable["value"])
    return "none"


def running(pod: Data, exit_status: int | None, restarts: int) -> Data:
    """The status of a pod whose containers run, or (``exit_status``) crashed."""
    crashed = exit_status is not None
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    ready = "False" if crashed else "True"
    message = "back-off 10s restarting failed container"
    containers = []
    for container in pod["spec"]["containers"]:
        state: Data = {"running": {"startedAt": now}}
        last: Data = {}
        if crashed:
            state = {"waiting": {"reason": "CrashLoopBackOff", "message": message}}
            last = {"terminated": {"exitCode": exit_status, "reason": "Error", "startedAt": now, "finishedAt": now}}
        told = {"name": container["name"], "image": container["image"], "imageID": "", "restartCount": restarts}
        containers.append({**told, "ready": not crashed, "started": not crashed, "state": state, "lastState": last})
    kinds = {"PodScheduled": "True", "Initialized": "True", "ContainersReady": ready, "Ready": ready}
    conditions = [{"type": kind, "status": status, "lastTransitionTime": now} for kind, status in kinds.items()]
    return {"phase": "Running", "startTime": now, "conditions": conditions, "containerStatuses": containers}


# --- mig-manager ------------------------------------------------------------------------------------------------


class UnknownConfigError(Exception):
    """Raised by ``is_applied``: the config file has no such entry."""


class NeedsRebootError(Exception):
    """Raised by ``apply``: the MIG mode does not change without a reboot."""


class DiedError(Exception):
    """mig-manager is gone without having said so."""


@dataclasses.dataclass
class Manager:
    """mig-manager on one node; it acts while a ready pod of its daemonset is there.

    ``dies_at`` is where it stops for good, leaving everything as it is: ``pending``, ``paused`` or ``applied``. It goes
    on with its next pod only.
    """

    is_applied: t.Callable[[str], bool]
    apply: t.Callable[[str], object]
    namespace: str = OPERATOR
    dies_at: str = ""
    pod_timeout: float = 300.0
    without_driver: set[str] = dataclasses.field(default_factory=set)
    """The uids of pods that were made while the driver was away: they fail at everything, also when it is back."""
    runs: list[str] = dataclasses.field(default_factory=list)
    """The names of the configs that it began with, one for each time."""
    busy: bool = False
    current: str = ""
    calls: int = 0
    pod: str = ""

    def start(self, cluster: Cluster, machine: Machine) -> None:
        self.cluster, self.machine = cluster, machine
        self.client = Client(cluster.kubeconfig, "stand-in mig-manager")
        self.stopped = False
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def stop(self) -> None:
        self.stopped = True
        self.cluster.wake()
        self.thread.join(30)

    def node_changed(self, labels: dict[str, str]) -> None:
        """A label that was taken away does not wake it, one that was given back does, whatever its value."""
        value = labels.get(CONFIG, "")
        if value != self.current:
            self.current = value
            self.calls += bool(value)

    def _run(self) -> None:
        try:
            pod = ""
            while not self.stopped:
                self._wait_for_another(pod)
                pod = self._pod()
                if pod:
                    self._live(pod)
        except AWAY:
            pass  # and so is the test
        except Exception:
            if not self.stopped:
                self.cluster.break_down()

    def _wait_for_another(self, pod: str) -> None:
        self._wait(lambda: self._pod() not in ("", pod))

    def _wait_for_call(self, calls: int, pod: str) -> None:
        self._wait(lambda: self.calls > calls or self._pod() != pod)

    def _wait(self, what: t.Callable[[], object], seconds: float = math.inf) -> bool:
        deadline = time.monotonic() + seconds
        while not self.stopped and time.monotonic() < deadline:
            if self.cluster.wait_for(lambda: self.stopped or what(), min(1.0, deadline - time.monotonic())):
                return not self.stopped
        return False

    def _pod(self) -> str:
        """The uid of the pod that this is, or nothing."""
        for pod in self.client.select(PODS, fieldSelector=f"spec.nodeName={self.machine.name}"):
            if part_of(pod) == "mig-manager" and is_ready(pod) and "deletionTimestamp" not in pod["metadata"]:
                return t.cast(str, pod["metadata"]["uid"])
        return ""

    def _labels(self) -> dict[str, str]:
        node = self.client.find(path_to(self.machine.name))
        return (node or {"metadata": {}})["metadata"].get("labels") or {}

    def _live(self, pod: str) -> None:
        """One process: waits for changes of the label until its pod is gone."""
        self.restored_once = False
        self.pod = pod
        self.node_changed(self._labels())
        last_read = ""
        while True:
            calls = self.calls  # before the comparison: a change beside it must not be missed
            if last_read == self.current:
                self._wait_for_call(calls, pod)
            if self.stopped or self._pod() != pod:
                return
            last_read = self.current
            self.busy = True
            try:
                self.reconfigure(last_read)
            except DiedError:
                self._wait(lambda: self._pod() != pod)
                return
            finally:
                self.busy = False

    # The steps of mig-parted's pkg/mig/reconfigure, one function each

    def reconfigure(self, config: str) -> None:
        self.runs.append(config)
        labels = self._labels()
        if self.pod in self.without_driver:
            self.set_state("failed", labels)
            return
        try:
            if self.is_applied(config):
                self.set_state("success", labels)
                return
        except UnknownConfigError:
            self.set_state("failed", labels)
            return
        self.set_labels({STATE: "pending"})
        self.die_at("pending")
        self.set_labels(self.deploy_labels(labels, PAUSED))
        self.die_at("paused")
        deadline = time.monotonic() + self.pod_timeout
        if not self._wait(lambda: not self.clients(), deadline - time.monotonic()):
            return  # everything stays as it is
        try:
            self.apply(config)
        except NeedsRebootError:
            self.set_labels({STATE: "rebooting"})
            return
        except Exception:
            self.set_state("failed", labels)
            return
        self.die_at("applied")
        self.restored_once = True
        self.set_labels(self.deploy_labels(labels, "true"))
        self.set_state("success", labels)

    def clients(self) -> list[str]:
        """The pods that it waits for."""
        pods = self.client.select(PODS, fieldSelector=f"spec.nodeName={self.machine.name}")
        apps = set(OPERANDS.values()) - {""}
        found = []
        for pod in pods:
            metadata = pod["metadata"]
            ours = metadata["namespace"] == self.namespace and (metadata.get("labels") or {}).get("app") in apps
            owners = metadata.get("ownerReferences") or [{"kind": ""}]
            theirs = owners[0]["kind"] == "DaemonSet" and f"{DEPLOY}client" in (pod["spec"].get("nodeSelector") or {})
            if ours or theirs:
                found.append(metadata["name"])
        return found

    def deploy_labels(self, before: dict[str, str], value: str) -> dict[str, str]:
        """The operands' labels with this value; those that were ``false`` stay so, absent ones are made."""
        names = [*OPERANDS, *(["client"] if before.get(f"{DEPLOY}client") else [])]
        return {f"{DEPLOY}{name}": "false" if before.get(f"{DEPLOY}{name}") == "false" else value for name in names}

    def set_state(self, state: str, labels: dict[str, str]) -> None:
        if not self.restored_once:
            self.set_labels(self.deploy_labels(labels, "true"))
        self.set_labels({STATE: state})

    def set_labels(self, labels: dict[str, str]) -> None:
        self.client.patch(path_to(self.machine.name), {"metadata": {"labels": labels}})

    def die_at(self, where: str) -> None:
        if self.dies_at == where:
            self.dies_at = ""
            raise DiedError
