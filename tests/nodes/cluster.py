# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A Kubernetes cluster of the nodes of a fleet: an API in memory, and kubelets that make processes on the nodes.

The API and the stand-ins for kubelets are those of tests/kubernetes, and run outside of the nodes. A pod that was given
devices is a process on its node that holds them, in the control group of a pod; so are the device plugin and DCGM,
which have all GPUs open. The process ends with its pod.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import time
import typing as t
from pathlib import Path

from .fleet import Fleet, Node, NodeError
from .places import CLUSTERS, LOGS, ROOT

START_SECONDS = 30.0

Pod = dict[str, t.Any]

# Runs on the node: starts one process for each line of places, and waits until all of them hold what they are to hold.
BEGIN = """
set -e
mkdir -p /run/pods
said=/run/pods/{scope}
words=
for place in {places}; do words="$words sim-hold $(echo $place | tr , ' ') &"; done
setsid --fork systemd-run --quiet --scope --collect --unit={scope} --slice={slice} -- \
    sh -c "$words wait" >$said 2>&1 </dev/null
for _ in $(seq 100); do
    [ "$(grep -c ^holds $said)" -lt {count} ] || exit 0
    sleep 0.1
done
cat $said >&2
exit 1
"""


class Pods:
    """The processes of the pods of one node."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def begin(self, pod: Pod) -> None:
        places = self._places(pod)
        if places:
            words = {"scope": scope_of(pod), "slice": slice_of(pod), "count": len(places)}
            self._node.run("sh -s", text=BEGIN.format(places=" ".join(places), **words))

    def finish(self, pod: Pod) -> None:
        # A scope that is not there, since the pod had no process or it has ended, is as good.
        self._node.run(f"systemctl stop {scope_of(pod)}", check=False)

    def _places(self, pod: Pod) -> list[str]:
        """What a pod has open, in the words of sim-hold with commas between them."""
        # Only the program below finds the collection.
        from ansible_collections.gpufleet.mig.tests.kubernetes.kubelet import requests_of

        gpus = self._node.simulator.describe()["gpus"]
        names = [container["name"] for container in pod["spec"]["containers"]]
        if any(part in name for name in names for part in ("device-plugin", "dcgm")):
            return [f"--gpu,{gpu['index']},--client,--name,{names[0]}" for gpu in gpus]
        places = []
        for resource, count in requests_of(pod).items():
            free = [place for place in devices_of(gpus, resource) if place not in places]
            if len(free) < count:
                raise NodeError(f"{pod['metadata']['name']} was given {count} {resource}, and {len(free)} are free.")
            places += free[:count]
        return places


def devices_of(gpus: t.Sequence[dict[str, t.Any]], resource: str) -> list[str]:
    """The devices of a resource that nobody has."""
    found = []
    for gpu in gpus:
        taken = {(holder["gi"], holder["ci"]) for holder in gpu["holders"] if holder["kind"] == "compute"}
        if not gpu["mode_current"]:
            found += [f"--gpu,{gpu['index']}"] if resource == "nvidia.com/gpu" and not taken else []
            continue
        for gi in gpu["instances"]:
            for ci in gi["compute"]:
                profile = ci["name"].removeprefix("MIG ").replace("+", ".")
                if resource in ("nvidia.com/gpu", f"nvidia.com/mig-{profile}") and (gi["id"], ci["id"]) not in taken:
                    found.append(f"--gpu,{gpu['index']},--gi,{gi['id']},--ci,{ci['id']}")
    return found


def scope_of(pod: Pod) -> str:
    """As containerd names the control group of a container."""
    return f"cri-containerd-{hashlib.sha256(pod['metadata']['uid'].encode()).hexdigest()}.scope"


def slice_of(pod: Pod) -> str:
    return f"kubepods-burstable-pod{pod['metadata']['uid'].replace('-', '_')}.slice"


def folder_of(fleet: str) -> Path:
    """Where its kubeconfig is, and the files with orders for its nodes (see tests/kubernetes/serve.py)."""
    return CLUSTERS / fleet


def start(fleet: Fleet) -> Path:
    """Starts a cluster of all nodes of a fleet, which lives as long as they do; its kubeconfig."""
    folder = folder_of(fleet.name)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    LOGS.mkdir(parents=True, exist_ok=True)
    log = LOGS / f"cluster-{fleet.name}.log"
    with open(log, "wb") as output:
        words = ["setsid", "--fork", sys.executable, "-m", __spec__.name, fleet.name]
        options: dict[str, t.Any] = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output}
        subprocess.run(words, cwd=ROOT, check=True, **options)
    deadline = time.monotonic() + START_SECONDS
    kubeconfig = folder / "kubeconfig"
    while not kubeconfig.exists():
        if time.monotonic() > deadline:
            raise NodeError(f"The cluster of {fleet.name} did not start: {log.read_text(errors='replace')[-2000:]}")
        time.sleep(0.05)
    return kubeconfig


def main(name: str) -> int:
    sys.path.insert(0, str(ROOT / ".venv" / "collections"))
    from ansible_collections.gpufleet.mig.tests.kubernetes import serve

    fleet = Fleet(name)

    def made(machine: t.Any) -> None:
        pods = Pods(fleet.node(machine.name))
        machine.begins, machine.finishes = pods.begin, pods.finish

    def info(name: str) -> dict[str, str]:
        said = fleet.node(name).run("cat /etc/machine-id /proc/sys/kernel/random/boot_id").stdout.split()
        return dict(zip(("machineID", "bootID"), said, strict=True))

    return serve.serve(folder_of(name), {node.name: node.sim / "gpus" for node in fleet.nodes()}, made, info)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
