# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A container that keeps a device from being changed is named, from its control group to the refusal."""

from __future__ import annotations

import pytest

from ansible_collections.gpufleet.mig.plugins.module_utils.engine import owners, planner, refusals
from ansible_collections.gpufleet.mig.plugins.module_utils.engine.model import (
    GpuWish,
    MigError,
    Node,
    Process,
    Reservation,
    Wanted,
)
from ansible_collections.gpufleet.mig.tests.unit.plugins.module_utils.engine import boards

ID = "3f2a1bc0d4e5".ljust(64, "0")


def busy(**fields):
    """A GPU with one device, and what is to be changed about its CI."""
    gpu = boards.gpu("a100-sxm4-40gb", instances=[("1g.5gb", 0)])
    (instance,) = gpu.instances
    (compute,) = instance.compute
    instance = instance._replace(compute=(compute._replace(**fields),))
    return Node((gpu._replace(instances=(instance,)),))


def refusal(node):
    """What is said when the device has to go."""
    plan = planner.plan_node(node, Wanted("empty", "given", {0: GpuWish(True, ())}))
    with pytest.raises(MigError) as caught:
        refusals.require_possible(node, plan)
    return str(caught.value)


@pytest.mark.parametrize(
    ("cgroup", "said"),
    [
        (f"0::/system.slice/docker-{ID}.scope", "in container 3f2a1bc0d4e5 (docker)"),
        (f"0::/machine.slice/libpod-{ID}.scope/container", "in container 3f2a1bc0d4e5 (podman)"),
        (f"0::/system.slice/nerdctl-{ID}.scope", "in container 3f2a1bc0d4e5 (containerd)"),
        (f"0::/system.slice/crio-{ID}.scope", "in container 3f2a1bc0d4e5 (cri-o)"),
    ],
)
def test_a_running_container_is_named_with_its_runtime(cgroup, said):
    process = Process(4711, "python", owner=owners.owner(cgroup))
    assert f"process 4711 (python) {said}" in refusal(busy(processes=(process,)))


def test_a_container_that_does_not_run_is_named_when_its_device_is_reserved():
    holder = "container trainer (docker 3f2a1bc0d4e5, exited)"
    assert holder in refusal(busy(reservations=(Reservation(holder, "given"),)))
