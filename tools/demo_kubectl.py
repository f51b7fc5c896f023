# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What kubectl would do in the demo of Kubernetes, where there is none.

    demo_kubectl.py KUBECONFIG wait-for-api
    demo_kubectl.py KUBECONFIG create NAME REPLICAS RESOURCE
    demo_kubectl.py KUBECONFIG show [RESOURCE=COUNT]    what the nodes offer and which pods run

``show`` waits until the cluster is at rest. It ends with status 1 when nodes then offer anything else than RESOURCE.
"""

from __future__ import annotations

import sys
import time
import typing as t
from pathlib import Path

from ansible_collections.gpufleet.mig.tests.kubernetes.client import Client, Data

PODS = "/api/v1/namespaces/default/pods"
REPLICASETS = "/apis/apps/v1/namespaces/default/replicasets"
LABELS = ("gpu.product", "gpu.count", "mig.strategy", "mig-1g.5gb.count")
SECONDS = 30.0


def create(client: Client, name: str, replicas: str, resource: str) -> None:
    print(f"created {name}: {replicas} pods, each of which asks for 1 {resource}")
    container = {"name": "main", "image": "app:1", "resources": {"limits": {resource: "1"}}}
    template = {
        "metadata": {"labels": {"app": name}},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 0},
    }
    spec = {"replicas": int(replicas), "selector": {"matchLabels": {"app": name}}, "template": template}
    metadata = {"name": name, "namespace": "default"}
    client.create(REPLICASETS, {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": metadata, "spec": spec})


def wait_until(done: t.Callable[[], object]) -> bool:
    deadline = time.monotonic() + SECONDS
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def pods_of(client: Client, name: str) -> list[Data]:
    return client.select(PODS, labelSelector=f"app={name}")


def runs(pod: Data) -> bool:
    return pod["status"].get("phase") == "Running"


def why_waits(pod: Data) -> str:
    conditions = pod["status"].get("conditions") or []
    return next((one["message"] for one in conditions if one.get("reason") == "Unschedulable"), "")


def offered(node: Data) -> dict[str, int]:
    allocatable = node["status"].get("allocatable") or {}
    return {name: int(count) for name, count in allocatable.items() if name.startswith("nvidia.com/") and count != "0"}


def is_at_rest(client: Client) -> bool:
    """Whether every pod that there is to be is there, and runs or is known not to fit."""
    for replicaset in client.select(REPLICASETS):
        pods = pods_of(client, replicaset["metadata"]["name"])
        if len(pods) != replicaset["spec"]["replicas"] or not all(runs(pod) or why_waits(pod) for pod in pods):
            return False
        resource = next(iter(replicaset["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]))
        there = sum(offered(node).get(resource, 0) for node in client.select("/api/v1/nodes"))
        if sum(map(runs, pods)) != min(len(pods), there):
            return False
    return True


def show(client: Client, wanted: str = "") -> int:
    rested = wait_until(lambda: is_at_rest(client))
    nodes = client.select("/api/v1/nodes")
    print()
    for node in nodes:
        name, labels = node["metadata"]["name"], node["metadata"].get("labels") or {}
        cordoned = ", cordoned" if node["spec"].get("unschedulable") else ""
        offers = ", ".join(f"{resource}: {count}" for resource, count in offered(node).items())
        print(f"node {name}{cordoned}\n    allocatable  {offers or 'no GPU'}")
        for label in LABELS:
            if f"nvidia.com/{label}" in labels:
                print(f"    label        nvidia.com/{label}={labels[f'nvidia.com/{label}']}")
    for replicaset in client.select(REPLICASETS):
        name = replicaset["metadata"]["name"]
        pods = pods_of(client, name)
        waiting = [pod for pod in pods if not runs(pod)]
        reason = f", {len(waiting)} Pending: {why_waits(waiting[0])}" if waiting else ""
        print(f"pods {name:<10}   {len(pods) - len(waiting)} Running{reason}")
    as_wanted = not wanted or [f"{name}={count}" for node in nodes for name, count in offered(node).items()] == [wanted]
    if not as_wanted:
        print(f"This is not {wanted}.")
    return 0 if rested and as_wanted else 1


def main(kubeconfig: Path, command: str, *words: str) -> int:
    if command == "wait-for-api":
        return 0 if wait_until(kubeconfig.exists) else 1
    client = Client(kubeconfig, "stand-in kubectl")
    if command == "show":
        return show(client, *words)
    create(client, *words)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))
