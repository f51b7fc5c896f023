# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Simulated nodes for the engine: real nvidia-ml-py, simulated libnvidia-ml.

Everything that uses NVML runs in a forked child: one process can load one library only, and the drivers differ.
"""

from __future__ import annotations

import os
import typing as t

import pynvml  # noqa: F401  # pylint: disable=unused-import  # before any fork: a child that gave up its privilege need not be able to read it

from ansible_collections.gpufleet.mig.plugins.module_utils.engine import configs, driver, planner, transaction
from ansible_collections.gpufleet.mig.plugins.module_utils.engine.model import (
    ComputeInstance,
    Gpu,
    GpuInstance,
    Node,
    Placement,
    Plan,
    Wanted,
)
from nvmlsim import Simulator

# Who a test becomes to have no privilege; whoever runs the tests without any has none to give up.
NOBODY: dict[str, int] = {"uid": 65534} if os.geteuid() == 0 else {}

Instances = t.Sequence[tuple[str, int, t.Sequence[tuple[int, int]]]]


class SimulatedNode:
    """A node of simulated GPUs, with the engine's verbs."""

    def __init__(self, simulator: Simulator) -> None:
        self.simulator = simulator

    def call(self, function: t.Callable[..., t.Any], *arguments: t.Any, **options: t.Any) -> t.Any:
        """Run a function where pynvml sees this node."""
        return self.simulator.call(function, *arguments, **options)

    def in_session(self, function: t.Callable[[driver.Session], t.Any], **options: t.Any) -> t.Any:
        """Run a function with an open session of the engine's driver."""

        def with_session() -> t.Any:
            with driver.Session() as session:
                return function(session)

        return self.call(with_session, **options)

    def read(self, **options: t.Any) -> Node:
        return t.cast(Node, self.in_session(lambda session: session.read_node(), **options))

    def plan(self, **wish: t.Any) -> tuple[Node, Plan, Wanted]:
        """Read, resolve a wish (options of configs.resolve) and plan."""
        before = self.read()
        wanted = configs.resolve(before, **wish)
        return before, planner.plan_node(before, wanted), wanted

    def carry_out(
        self,
        planned: tuple[Node, Plan, Wanted],
        open_session: t.Callable[[], driver.Session] = driver.Session,
    ) -> transaction.Outcome:
        return t.cast(transaction.Outcome, self.call(transaction.apply, open_session, *planned))

    def apply(self, **wish: t.Any) -> transaction.Outcome:
        return self.carry_out(self.plan(**wish))

    def enable(self, *gpus: int) -> None:
        """MIG on, as an administrator would have it."""
        self.in_session(lambda session: [session.set_mig_mode(gpu, True) for gpu in gpus])

    def create(self, gpu: int, instances: Instances) -> None:
        """Create GIs: (profile name, start, CIs as (start, size)); no CIs makes an orphan."""

        def create(session: driver.Session) -> None:
            profiles = {profile.name: profile for profile in session.read_gpu(gpu).profiles or ()}
            for name, start, compute in instances:
                place = next(place for place in profiles[name].placements if place.start == start)
                gi_id = session.create_gpu_instance(gpu, profiles[name].id, place)
                for ci_start, size in compute:
                    session.create_compute_instance(gpu, gi_id, size, Placement(ci_start, size))

        self.in_session(create)

    def state(self) -> list[dict[str, t.Any]]:
        """What the simulator has, in the simulator's own words and without the engine: modes, places, UUIDs."""
        return [
            {
                "modes": (gpu["mode_current"], gpu["mode_pending"]),
                "instances": sorted(
                    (
                        gi["start"],
                        gi["size"],
                        gi["profile_id"],
                        gi["id"],
                        sorted((ci["start"], ci["size"], ci["profile_id"], ci["uuid"]) for ci in gi["compute"]),
                    )
                    for gi in gpu["instances"]
                ),
            }
            for gpu in self.simulator.describe()["gpus"]
        ]


def places(gpu: Gpu) -> list[tuple[str, int, list[tuple[int, int]]]]:
    """A layout as tests spell it: (profile name, start, CIs as (start, size))."""
    return [
        (
            gi.profile.name,
            gi.placement.start,
            [(ci.placement.start, ci.placement.size) for ci in gi.compute if ci.placement],
        )
        for gi in gpu.instances
    ]


def all_compute(gpu: Gpu) -> list[tuple[GpuInstance, ComputeInstance]]:
    return [(gi, ci) for gi in gpu.instances for ci in gi.compute]
