# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Simulated nodes for the engine: real nvidia-ml-py, simulated libnvidia-ml.

Everything that uses NVML runs in a forked child: one process can load one library only, and the drivers differ.
"""

from __future__ import annotations

import functools
import json
import os
import typing as t
from pathlib import Path

import pynvml  # noqa: F401  # pylint: disable=unused-import  # before any fork: a child that gave up its privilege need not be able to read it

from ansible_collections.gpufleet.mig.plugins.module_utils.engine import (
    clients,
    configs,
    driver,
    planner,
    reading,
    state,
    transaction,
    worker,
)
from ansible_collections.gpufleet.mig.plugins.module_utils.engine.model import (
    ComputeInstance,
    Gpu,
    GpuInstance,
    Job,
    Node,
    Orders,
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


class FakeManager:
    """Units of a systemd that is not there. Their states are in a file, since every run has a process of its own."""

    def __init__(
        self,
        file: t.Optional[Path] = None,
        units: t.Optional[t.Mapping[str, str]] = None,
        refuses_to_stop: t.Collection[str] = (),
        refuses_to_start: t.Collection[str] = (),
    ) -> None:
        self.names = tuple(units or ())
        self._file = file
        self._refuses_to_stop = refuses_to_stop
        self._refuses_to_start = refuses_to_start
        if file:
            file.write_text(json.dumps({"states": dict(units or {}), "log": []}))

    def state(self, unit: str) -> clients.UnitState:
        active = self.states().get(unit)
        return clients.UnitState(unit, "loaded" if active else "not-found", active or "inactive")

    def stop(self, unit: str, timeout: float) -> None:
        if unit in self._refuses_to_stop:
            raise clients.ClientError(f"{unit} could not be stopped: it does not want to.", unit=unit)
        self._become(unit, "inactive", f"stop {unit}")

    def start(self, unit: str, timeout: float) -> None:
        if unit in self._refuses_to_start:
            raise clients.ClientError(f"{unit} could not be started: it does not want to.", unit=unit)
        self._become(unit, "active", f"start {unit}")

    def states(self) -> dict[str, str]:
        return dict(self._content()["states"])

    def log(self) -> list[str]:
        """What was done to units, in order."""
        return list(self._content()["log"])

    def _content(self) -> dict[str, t.Any]:
        empty: dict[str, t.Any] = {"states": {}, "log": []}
        return t.cast(dict[str, t.Any], json.loads(self._file.read_text())) if self._file else empty

    def _become(self, unit: str, active: str, done: str) -> None:
        content = self._content()
        content["states"][unit] = active
        content["log"].append(done)
        if self._file:
            self._file.write_text(json.dumps(content))


class Installation:
    """A simulated node with a state directory and units: what worker.py changes."""

    def __init__(
        self,
        node: SimulatedNode,
        state_dir: Path,
        units: t.Optional[t.Mapping[str, str]] = None,
        **refusals: t.Collection[str],
    ) -> None:
        self.node = node
        self.simulator = node.simulator
        self.places = state.places(str(state_dir))
        self.manager = FakeManager(state_dir.parent / f"{state_dir.name}-units.json", units, **refusals)
        self.opener: reading.Opener = functools.partial(driver.Session, None)
        self.caller = 0

    def call(self, function: t.Callable[..., t.Any], *arguments: t.Any, **options: t.Any) -> t.Any:
        return self.node.call(function, *arguments, **options)

    def read(self) -> Node:
        return self.node.read()

    def job(
        self,
        orders: t.Optional[Orders] = None,
        resolve: t.Optional[t.Callable[[Node], Wanted]] = None,
        resets: tuple[int, ...] = (),
        **wish: t.Any,
    ) -> Job:
        """A job with options of configs.resolve, or with a resolution of its own, or with neither: only to heal."""
        if wish:
            resolve = functools.partial(configs.resolve, **wish)
        return Job(resolve, orders or Orders(), resets, "a change of a test")

    def change(self, **options: t.Any) -> transaction.Outcome:
        """Make a change as a controller does, in a process of its own."""
        job = self.job(**options)

        def make() -> tuple[int, transaction.Outcome]:
            return os.getpid(), worker.change(self.places, self.opener, job, self.manager)

        self.caller, outcome = self.call(make)
        return t.cast(transaction.Outcome, outcome)

    def count_fsyncs(self, **options: t.Any) -> tuple[int, int]:
        """Make a change; how many fsyncs it took, and how many driver writes."""
        counter = Path(f"{self.simulator.path}-fsyncs")
        counter.write_bytes(b"")
        job = self.job(**options)
        real = os.fsync

        def counting(descriptor: int) -> None:
            with open(counter, "ab") as file:
                file.write(b".")
            real(descriptor)

        def make() -> transaction.Outcome:
            os.fsync = counting  # type: ignore[assignment]
            return worker.change(self.places, self.opener, job, self.manager)

        outcome = self.call(make)
        return counter.stat().st_size, len(outcome.steps_done)
