# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Whoever is in the way of a change is named once, with all that it uses, and with what there is to do about it."""

from __future__ import annotations

import pytest

from ansible_collections.gpufleet.mig.plugins.module_utils.engine import refusals
from ansible_collections.gpufleet.mig.plugins.module_utils.engine.model import (
    ComputeInstance,
    Gpu,
    GpuInstance,
    MigError,
    Owner,
    Placement,
    Process,
    Profile,
)

TRAINING = Process(4711, "python", owner=Owner("job", job="123"))


def service(pid, unit, *files):
    """A process of a unit that no list of the driver shows."""
    return Process(pid, "daemon", kind="open", owner=Owner("unit", unit=unit), listed=False, opened=files)


def gpu(index, *instances):
    return Gpu(index, uuid=f"GPU-{index}", pci_bus_id=f"00000000:0{index}:00.0", instances=instances)


def instance(*processes):
    compute = ComputeInstance(0, 3, Placement(0, 3), name="3g.20gb", processes=processes)
    return GpuInstance(1, Profile(9, 9, "3g.20gb", 3, 20, 19968), Placement(0, 4), (compute,))


def refusal(*in_the_way, **options):
    with pytest.raises(MigError) as caught:
        refusals.require_idle(in_the_way, **options)
    return caught.value


def test_who_is_on_one_gpu_is_named_with_the_gpu_and_the_instance():
    error = refusal((gpu(0, instance(TRAINING)), (TRAINING, service(811, "dcgm.service", "/dev/nvidia0"))))
    assert str(error) == (
        "GPU 0 (00000000:00:00.0, GPU-0) is in use and nothing was changed: process 4711 (python) of Slurm job 123 uses"
        " compute instance 3g.20gb in GPU instance 3g.20gb at 0:4; process 811 (daemon) of dcgm.service, which has"
        " /dev/nvidia0 open and is in no list of the driver, uses the GPU. Stop what is running there, and run again."
    )
    assert (error.details["gpu"], [each["pid"] for each in error.details["holders"]]) == (0, [4711, 811])


def test_who_is_on_many_gpus_is_named_once_and_each_gpu_with_what_is_used_of_it():
    everywhere = [
        (
            gpu(index, *([instance(TRAINING)] if index == 3 else [])),
            (
                service(811, "dcgm.service", f"/dev/nvidia{index}"),
                service(812, "dcgm-exporter.service", f"/dev/nvidia{index}"),
                *([TRAINING] if index in (3, 5) else []),
            ),
        )
        for index in range(8)
    ]
    error = refusal(*everywhere)
    said = str(error)
    assert said.startswith("GPU 0, 1, 2, 3, 4, 5, 6 and 7 are in use and nothing was changed: process 811 (daemon) of")
    assert "/dev/nvidia0, /dev/nvidia1" in said
    assert "is in no list of the driver, uses GPU 0, 1, 2, 3, 4, 5, 6 and 7; process 812" in said
    assert "Slurm job 123 uses GPU 5 and compute instance 3g.20gb in GPU instance 3g.20gb at 0:4 of GPU 3." in said
    assert [said.count(word) for word in ("process 811", "process 812", "process 4711")] == [1, 1, 1]
    assert len(said) < 900
    assert len(error.details["holders"]) == 18


DCGM, EXPORTER = service(811, "nvidia-dcgm.service"), service(812, "dcgm-exporter.service")


@pytest.mark.parametrize(
    ("processes", "stoppable", "would_help"),
    [
        ((DCGM, EXPORTER), ("dcgm-exporter.service", "nvidia-dcgm.service"), True),
        ((DCGM, EXPORTER), ("nvidia-dcgm.service",), False),
        ((DCGM, TRAINING), ("nvidia-dcgm.service",), False),
        ((DCGM,), (), False),
    ],
)
def test_that_clients_may_be_stopped_is_said_where_nobody_else_is_in_the_way(processes, stoppable, would_help):
    said = str(refusal((gpu(0), processes), stoppable=lambda: stoppable))
    assert ("run again with evict: clients (in the playbooks mig_evict=clients)" in said) == would_help
    assert ("Stop what is running there" in said) != would_help


def test_nobody_asks_which_clients_could_be_stopped_where_nothing_is_in_the_way():
    def asked():
        raise AssertionError

    refusals.require_idle([(gpu(0), (DCGM,))], ("nvidia-dcgm.service",), stoppable=asked)
