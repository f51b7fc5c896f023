# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A cluster as a program, for those that are no tests in Python: the demo, and the scenarios on booted nodes.

    python -m ansible_collections.gpufleet.mig.tests.kubernetes.serve FOLDER NAME=STATE...

Each node has the GPUs of a simulated one, by its state file. When ``FOLDER/kubeconfig`` is there, the API answers. It
ends when it is told to, and by itself when the first state file is gone: a demo that was killed leaves nothing behind.

What can go wrong with a node is ordered by a file ``FOLDER/NAME.json``, which may change at any time:

    {"starts": {"dcgm-*": 5}, "ends": {"train-*": "never"}, "broken": true}

``starts`` and ``ends`` are those of Machine, and ``broken`` has the device plugin crash whenever it is started.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import signal
import threading
import typing as t
from pathlib import Path

from ansible_collections.gpufleet.mig.tests.kubernetes.api import Api
from ansible_collections.gpufleet.mig.tests.kubernetes.client import Data
from ansible_collections.gpufleet.mig.tests.kubernetes.gpus import Gpu, Outcome, recorded
from ansible_collections.gpufleet.mig.tests.kubernetes.hosts import gpus_of
from ansible_collections.gpufleet.mig.tests.kubernetes.kubelet import Cluster, Machine
from ansible_collections.gpufleet.mig.tests.kubernetes.stage import Stage
from nvmlsim import Simulator

EVERY = 0.2  # seconds after which files are looked at again


def obey(machine: Machine, orders: t.Mapping[str, t.Any]) -> None:
    """Has a machine behave as a file says."""
    for what, seconds in (("starts", machine.starts), ("ends", machine.ends)):
        seconds.clear()
        given = orders.get(what) or {}
        seconds.update({name: math.inf if value == "never" else float(value) for name, value in given.items()})
    machine.outcome = crashes if orders.get("broken") else recorded


def crashes(gpus: t.Sequence[Gpu], strategy: str) -> Outcome:
    """A plugin that cannot run on this node, and labels all the same."""
    return recorded(gpus, strategy)._replace(exit=1, resources={})


class Orders:
    """The files by which machines are told what to do."""

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        self._folder = folder
        self._cluster = cluster
        self._read: dict[str, str] = {}

    def look(self) -> None:
        for name, machine in self._cluster.machines.items():
            file = self._folder / f"{name}.json"
            text = file.read_text() if file.exists() else "{}"
            if text and text != self._read.get(name, "{}"):
                obey(machine, json.loads(text))
                self._read[name] = text
                self._cluster.wake()


def serve(
    folder: Path,
    states: t.Mapping[str, Path],
    made: t.Callable[[Machine], object] = lambda _machine: None,
    info: t.Callable[[str], Data | None] = lambda _name: None,
) -> int:
    """Runs a cluster of these nodes until it is told to end, or there are no nodes any more.

    ``made`` gets each machine before anything runs on it, ``info`` is what the kubelet of a node says of its machine.
    """
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_arguments: stop.set())
    folder.mkdir(parents=True, exist_ok=True)
    first = next(iter(states.values()))
    kubeconfig = folder / "kubeconfig"
    with Api() as api:
        written = api.write_kubeconfig(folder / "kubeconfig.new")
        cluster = Cluster(written)
        stage = Stage(cluster)
        for name, state in states.items():
            made(stage.node(name, functools.partial(gpus_of, Simulator(state)), info(name)))
        with cluster:
            orders = Orders(folder, cluster)
            written.rename(kubeconfig)  # whoever waits for it finds all nodes
            while not stop.wait(EVERY) and first.exists() and not cluster.error:
                orders.look()
            if not first.exists():
                cluster.error = ""  # what it could not find any more is no mistake
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("nodes", nargs="+", metavar="NAME=STATE")
    options = parser.parse_args()
    states = (node.partition("=") for node in options.nodes)
    return serve(options.folder, {name: Path(state) for name, _equals, state in states})


if __name__ == "__main__":
    raise SystemExit(main())
