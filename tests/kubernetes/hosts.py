# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Hosts with simulated GPUs that are nodes of a cluster, and a mig-manager that changes these GPUs."""

from __future__ import annotations

import json
import sys
import typing as t
from pathlib import Path

from ansible_collections.gpufleet.mig.tests.fleet.fleet import Fleet
from ansible_collections.gpufleet.mig.tests.kubernetes.gpus import Gpu
from ansible_collections.gpufleet.mig.tests.kubernetes.kubelet import Machine
from ansible_collections.gpufleet.mig.tests.kubernetes.stage import Stage
from nvmlsim import Simulator

BOARD = "a100-sxm4-40gb"

_MIG_PARTED = Path(__file__).with_name("mig_parted.py")


def fleet_of(stage: Stage, folder: Path, names: t.Iterable[str]) -> Fleet:
    """Hosts with an A100 each, as nodes of the cluster."""
    folder.mkdir()
    made = Fleet(folder, dict.fromkeys(names, f"1x{BOARD}"))
    made.variables.update(
        mig_scheduler="kubernetes", kubernetes_auth={"kubeconfig": str(stage.kubeconfig)}, kubernetes_ready_timeout=30
    )
    return made


def gpus_of(simulator: Simulator) -> list[Gpu]:
    """What NVIDIA's pods see of a simulated node when they start."""
    found = []
    for gpu in simulator.describe()["gpus"]:
        devices = tuple(ci["name"].removeprefix("MIG ") for gi in gpu["instances"] for ci in gi["compute"])
        found.append(Gpu(BOARD, tuple(sorted(devices)) if gpu["mode_current"] else None))
    return found


def have(simulator: Simulator, gpus: t.Sequence[Gpu]) -> None:
    """Give a simulated node this layout, as somebody else does it."""
    done = simulator.run([sys.executable, str(_MIG_PARTED), json.dumps([gpu.mig for gpu in gpus])])
    if done.returncode:
        raise RuntimeError(done.stderr)


def managed_node(stage: Stage, name: str, simulator: Simulator, **labels: str) -> Machine:
    """A node of the operator whose mig-manager changes the GPUs of a simulated node."""
    return stage.operator_node(name, lambda: gpus_of(simulator), lambda wanted: have(simulator, wanted), **labels)
