# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Puts nodes, pods, daemonsets and budgets into a cluster for a test, with few words and real names."""

from __future__ import annotations

import json
import typing as t
from pathlib import Path

import yaml

from ansible_collections.gpufleet.mig.tests.kubernetes.client import Client, Data, path_of
from ansible_collections.gpufleet.mig.tests.kubernetes.gpus import Gpu, gpus
from ansible_collections.gpufleet.mig.tests.kubernetes.kubelet import (
    DEFAULT_CONFIGS,
    DEPLOY,
    NODES,
    OPERANDS,
    OPERATOR,
    PODS,
    POLICIES,
    Cluster,
    Machine,
    Manager,
    UnknownConfigError,
    is_ready,
    path_to,
)

PAUSES = "gpufleet.mig/paused"
IMAGE = "nvcr.io/nvidia/k8s-device-plugin:v0.20.0"


def everywhere(**devices: int) -> list[Data]:
    """An entry of mig-parted's for all GPUs of a node; without devices MIG is off."""
    return [{"devices": "all", "mig-enabled": bool(devices), "mig-devices": devices}]


VENDOR_CONFIGS = {
    "version": "v1",
    "mig-configs": {
        "all-disabled": everywhere(),
        "all-1g.5gb": everywhere(**{"1g.5gb": 7}),
        "all-3g.20gb": everywhere(**{"3g.20gb": 2}),
        "all-balanced": everywhere(**{"1g.5gb": 2, "2g.10gb": 1, "3g.20gb": 1}),
    },
}


# What a kubelet says beside the names of its machine.
NODE_INFO = {
    "architecture": "amd64",
    "containerRuntimeVersion": "containerd://2.1.4",
    "kernelVersion": "6.8.0-60-generic",
    "kubeProxyVersion": "",
    "kubeletVersion": "v1.34.0",
    "operatingSystem": "linux",
    "osImage": "Ubuntu 24.04.3 LTS",
    "systemUUID": "",
    "machineID": "",
    "bootID": "",
}


def this_machine() -> Data:
    """What a kubelet on this machine says of it."""
    files = {"machineID": Path("/etc/machine-id"), "bootID": Path("/proc/sys/kernel/random/boot_id")}
    return {name: file.read_text().strip() for name, file in files.items() if file.exists()}


Layout = t.Union[list[Gpu], t.Callable[[], t.Sequence[Gpu]], None]


class Stage:
    """``cluster`` are the stand-ins, ``client`` a client whose requests are not the test's."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.client = Client(cluster.kubeconfig, "stand-in test")
        self.gpus: dict[str, list[Gpu]] = {}

    @property
    def kubeconfig(self) -> Path:
        return self.cluster.kubeconfig

    # What there is

    def node(self, name: str, layout: Layout = None, info: Data | None = None, **labels: str) -> Machine:
        """A ready node with these GPUs, or with those that a function finds; by default with one A100.

        Its kubelet says ``info`` of the machine; by default it runs on the one of the tests, as simulated hosts do.
        Change ``stage.gpus[name]`` to repartition it behind Kubernetes' back.
        """
        if not callable(layout):
            self.gpus[name] = gpus(1) if layout is None else layout
        ready = {
            "type": "Ready",
            "status": "True",
            "reason": "KubeletReady",
            "message": "kubelet is posting ready status",
        }
        amounts = {"cpu": "64", "memory": "512Gi", "pods": "110"}
        node = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **labels}},
            "spec": {},
            "status": {
                "capacity": amounts,
                "allocatable": amounts,
                "conditions": [ready],
                "nodeInfo": {**NODE_INFO, **(this_machine() if info is None else info)},
            },
        }
        self.client.create(NODES, node)
        return self.cluster.add(Machine(name, layout if callable(layout) else lambda: self.gpus[name]))

    def namespace(self, name: str) -> None:
        if not self.client.find(f"/api/v1/namespaces/{name}"):
            body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
            self.client.create("/api/v1/namespaces", body)

    def daemonset(
        self,
        name: str,
        container: str = "",
        *,
        namespace: str = "kube-system",
        labels: dict[str, str] | None = None,
        selects: dict[str, str] | None = None,
        strategy: str = "",
        volumes: list[Data] | None = None,
        keeps_away_from: str = "",
        **requests: int,
    ) -> Data:
        """A daemonset of any name. Its container's name says which of NVIDIA's programs it is, see ``part_of``.

        It has no pod on nodes with the label ``keeps_away_from``. Each of its pods requests these resources.
        """
        amounts = {resource: str(amount) for resource, amount in requests.items()}
        resources = {"limits": amounts} if amounts else {}
        terms = [{"matchExpressions": [{"key": keeps_away_from, "operator": "DoesNotExist"}]}]
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        labels = labels or {"app": name}
        env = [{"name": "MIG_STRATEGY", "value": strategy}] if strategy else []
        self.namespace(namespace)
        body = {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": {"name": name, "namespace": namespace, "labels": labels},
            "spec": {
                "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {
                        "nodeSelector": selects or {},
                        **({"affinity": {"nodeAffinity": required}} if keeps_away_from else {}),
                        "volumes": volumes or [],
                        "containers": [{"name": container or name, "image": IMAGE, "env": env, "resources": resources}],
                    },
                },
            },
        }
        return self.client.create(path_of(body, collection=True), body)

    def plain(self, strategy: str = "mixed", plugin: str = "nvidia-device-plugin", gfd: str = "gpu-discovery") -> None:
        """Device plugin and gpu-feature-discovery as daemonsets of their own, without the operator.

        They heed the label by which a node is paused, as those of the role device_plugin do.
        """
        self.daemonset(plugin, "nvidia-device-plugin-ctr", strategy=strategy, keeps_away_from=PAUSES)
        self.daemonset(gfd, "gpu-feature-discovery-ctr", strategy=strategy, keeps_away_from=PAUSES)

    def next_pods(
        self,
        strategy: str,
        plugin: str = "nvidia-device-plugin",
        gfd: str = "gpu-discovery",
        namespace: str = "kube-system",
    ) -> None:
        """Give both daemonsets another strategy, which a pod gets that takes the place of one that was deleted."""
        for name in (plugin, gfd):
            path = f"/apis/apps/v1/namespaces/{namespace}/daemonsets/{name}"
            spec = self.client.get(path)["spec"]
            spec["template"]["spec"]["containers"][0]["env"] = [{"name": "MIG_STRATEGY", "value": strategy}]
            self.client.patch(path, {"spec": {**spec, "updateStrategy": {"type": "OnDelete", "rollingUpdate": None}}})

    def operator(self, strategy: str = "mixed") -> None:
        """What gpu-operator has made of a ClusterPolicy by the time that its nodes are up."""
        self.namespace(OPERATOR)
        for part, app in OPERANDS.items():
            if app:
                names = {"device-plugin": "nvidia-device-plugin", "dcgm": "nvidia-dcgm-ctr"}
                selects = {f"{DEPLOY}{part}": "true"}
                wanted = strategy if part in ("device-plugin", "gpu-feature-discovery") else ""
                self.daemonset(app, names.get(part, part), namespace=OPERATOR, selects=selects, strategy=wanted)
        selects = {f"{DEPLOY}mig-manager": "true", "nvidia.com/mig.capable": "true"}
        volume = {"name": "mig-parted-config", "configMap": {"name": DEFAULT_CONFIGS}}
        self.daemonset("nvidia-mig-manager", namespace=OPERATOR, selects=selects, volumes=[volume])
        policy = {
            "apiVersion": "nvidia.com/v1",
            "kind": "ClusterPolicy",
            "metadata": {"name": "cluster-policy"},
            "spec": {
                "mig": {"strategy": strategy},
                "migManager": {"enabled": True, "config": {"name": DEFAULT_CONFIGS, "default": "all-disabled"}},
            },
        }
        self.client.create(POLICIES, policy)
        self.config_map(DEFAULT_CONFIGS, OPERATOR, **{"config.yaml": yaml.safe_dump(VENDOR_CONFIGS)})

    def operator_node(
        self,
        name: str,
        layout: Layout = None,
        apply: t.Callable[[list[Gpu]], object] | None = None,
        **labels: str,
    ) -> Machine:
        """A node with the operator's labels, and a mig-manager that reads the ClusterPolicy's ConfigMap.

        Where the layout is what a function finds, ``apply`` is what makes another of it.
        """
        deploy = {f"{DEPLOY}{part}": "true" for part in (*OPERANDS, "mig-manager")}
        all_labels = {"nvidia.com/gpu.present": "true", "nvidia.com/mig.capable": "true", **deploy, **labels}
        machine = self.node(name, layout, None, **all_labels)

        def keep(wanted: list[Gpu]) -> None:
            self.gpus[name] = wanted

        machine.manager = Manager(
            lambda config: self.wanted(config, machine.layout()) == machine.layout(),
            lambda config: (apply or keep)(self.wanted(config, machine.layout())),
        )
        return self.cluster.add(machine)

    def wanted(self, config: str, gpus: t.Sequence[Gpu]) -> list[Gpu]:
        """These GPUs as a config of the ClusterPolicy's ConfigMap wants them."""
        policy = self.client.select(POLICIES)[0]
        name = policy["spec"]["migManager"]["config"].get("name") or DEFAULT_CONFIGS
        config_map = self.client.find(f"/api/v1/namespaces/{OPERATOR}/configmaps/{name}") or {
            "data": {"config.yaml": ""}
        }
        configs = (yaml.safe_load(config_map["data"]["config.yaml"]) or {}).get("mig-configs") or {}
        if config not in configs:
            raise UnknownConfigError(config)
        after = list(gpus)
        for entry in configs[config]:
            profiles = [profile for profile, count in (entry.get("mig-devices") or {}).items() for _one in range(count)]
            for index, gpu in enumerate(after):
                if entry["devices"] == "all" or index in entry["devices"]:
                    after[index] = Gpu(gpu.board, tuple(sorted(profiles)) if entry["mig-enabled"] else None)
        return after

    def pod(
        self,
        name: str,
        node: str = "",
        *,
        namespace: str = "default",
        owner: str = "ReplicaSet",
        grace: int = 30,
        labels: dict[str, str] | None = None,
        **requests: int,
    ) -> Data:
        """A pod, on a node or for the scheduler: ``stage.pod("train", "node-1", **{"nvidia.com/gpu": 1})``."""
        self.namespace(namespace)
        owners = [{"apiVersion": "apps/v1", "kind": owner, "name": f"{name}-owner", "uid": f"uid-of-{name}-owner"}]
        resources = {"limits": {resource: str(amount) for resource, amount in requests.items()}}
        body: Data = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace, "labels": labels or {"app": name}},
            "spec": {
                "containers": [{"name": "main", "image": "training:1", "resources": resources if requests else {}}],
                "terminationGracePeriodSeconds": grace,
                **({"nodeName": node} if node else {}),
            },
        }
        if owner:
            body["metadata"]["ownerReferences"] = [{**owners[0], "controller": True}]
        return self.client.create(path_of(body, collection=True), body)

    def replicas(self, name: str, count: int, *, namespace: str = "default", grace: int = 30, **requests: int) -> Data:
        """So many pods for the scheduler that are made again when they go: ``stage.replicas("train", 2, ...)``."""
        self.namespace(namespace)
        amounts = {resource: str(amount) for resource, amount in requests.items()}
        container = {"name": "main", "image": "training:1", "resources": {"limits": amounts} if amounts else {}}
        labels = {"app": name}
        template = {
            "metadata": {"labels": labels},
            "spec": {"containers": [container], "terminationGracePeriodSeconds": grace},
        }
        body: Data = {
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "metadata": {"name": name, "namespace": namespace, "labels": labels},
            "spec": {"replicas": count, "selector": {"matchLabels": labels}, "template": template},
        }
        return self.client.create(path_of(body, collection=True), body)

    def budget(
        self, name: str, labels: dict[str, str], allowed: int | None, healthy: int = 1, namespace: str = "default"
    ) -> Data:
        """A disruption budget that allows so many evictions, as its controller would have counted, or has not."""
        version = "policy/v1" if self.client.find("/apis/policy/v1") else "policy/v1beta1"
        body = {
            "apiVersion": version,
            "kind": "PodDisruptionBudget",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"minAvailable": max(healthy - (allowed or 0), 0), "selector": {"matchLabels": labels}},
        }
        made = self.client.create(path_of(body, collection=True), body)
        return made if allowed is None else self.allow(made, allowed, healthy)

    def allow(self, budget: Data, allowed: int, healthy: int = 1) -> Data:
        status = {
            "disruptionsAllowed": allowed,
            "currentHealthy": healthy,
            "desiredHealthy": max(healthy - allowed, 0),
            "expectedPods": healthy,
            "observedGeneration": budget["metadata"].get("generation", 1),
        }
        return self.client.patch(path_of(budget) + "/status", {"status": status})

    def config_map(self, name: str, namespace: str, **data: str) -> Data:
        self.namespace(namespace)
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": namespace},
            "data": data,
        }
        return self.client.create(path_of(body, collection=True), body)

    # What is seen

    def allocatable(self, node: str) -> dict[str, str]:
        """NVIDIA's resources, those that are 0 as well."""
        return self._amounts(node, "allocatable")

    def capacity(self, node: str) -> dict[str, str]:
        return self._amounts(node, "capacity")

    def _amounts(self, node: str, field: str) -> dict[str, str]:
        told = self.client.get(path_to(node))["status"][field]
        return {name: amount for name, amount in told.items() if name.startswith("nvidia.com/")}

    def labels(self, node: str) -> dict[str, str]:
        """NVIDIA's labels, without the time."""
        labels = self.client.get(path_to(node))["metadata"]["labels"]
        stamp = "nvidia.com/gfd.timestamp"
        return {name: value for name, value in labels.items() if name.startswith("nvidia.com/") and name != stamp}

    def is_cordoned(self, node: str) -> bool:
        return bool(self.client.get(path_to(node))["spec"].get("unschedulable"))

    def pods(self, node: str = "", **labels: str) -> list[Data]:
        selectors = {"labelSelector": ",".join(f"{key}={value}" for key, value in labels.items())}
        if node:
            selectors["fieldSelector"] = f"spec.nodeName={node}"
        return self.client.select(PODS, **selectors)

    def names(self, node: str = "") -> list[str]:
        """Of the pods that no daemonset brings back."""
        owners = ((pod, pod["metadata"].get("ownerReferences") or [{"kind": ""}]) for pod in self.pods(node))
        return [pod["metadata"]["name"] for pod, owner in owners if owner[0]["kind"] != "DaemonSet"]

    def settles(self, node: str, seconds: float = 20.0, **resources: int) -> bool:
        """Whether every pod on the node becomes ready and allocatable is this, zeros left out."""

        def settled() -> bool:
            found = {name: int(amount) for name, amount in self.allocatable(node).items() if amount != "0"}
            pods = self.pods(node)
            return found == resources and bool(pods) and all(map(is_ready, pods))

        return self.cluster.wait_for(settled, seconds)

    def is_gone(self, name: str, namespace: str = "default", seconds: float = 20.0) -> bool:
        path = f"/api/v1/namespaces/{namespace}/pods/{name}"
        return self.cluster.wait_for(lambda: self.client.find(path) is None, seconds)

    def runs(self, name: str, namespace: str = "default", seconds: float = 20.0) -> bool:
        path = f"/api/v1/namespaces/{namespace}/pods/{name}"
        return self.cluster.wait_for(lambda: is_ready(self.client.find(path) or {}), seconds)

    def __repr__(self) -> str:
        """For the message of an assertion: what there is."""
        shown: dict[str, t.Any] = {"pods": {}, "nodes": {}, "trouble": self.cluster.trouble}
        for pod in self.pods():
            shown["pods"][pod["metadata"]["name"]] = [
                pod["spec"].get("nodeName"),
                pod["status"].get("phase"),
                is_ready(pod),
            ]
        for name in filter(lambda one: self.client.find(path_to(one)), self.gpus):
            shown["nodes"][name] = [self.allocatable(name), self.labels(name)]
        return json.dumps(shown, indent=1)
