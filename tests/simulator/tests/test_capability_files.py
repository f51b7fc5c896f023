# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The folder STATE.capabilities, which a simulated computer shows as /proc/driver/nvidia/capabilities."""

from __future__ import annotations

import pathlib
import re

import nvml_client as client
import pynvml as nv
import pytest

from nvmlsim import ChildKilled


def folder_of(simulator):
    return pathlib.Path(f"{simulator.path}.capabilities")


def files(simulator):
    """Paths of the access files with the minor numbers in them."""
    folder = folder_of(simulator)
    return {
        str(path.relative_to(folder)): int(re.search(r"^DeviceFileMinor: (\d+)$", path.read_text(), re.MULTILINE)[1])
        for path in folder.rglob("access")
    }


@pytest.fixture
def shown(node):
    """A node of two GPUs that shows its instances."""
    simulator = node("2xa100-sxm4-40gb")
    folder_of(simulator).mkdir()
    return simulator


def make(index, *names):
    for name in names:
        client.create_device(client.mig_gpu(index), name)


def clear(index, *ids):
    gpu = client.gpu(index)
    for gi_id in ids:
        gi = nv.nvmlDeviceGetGpuInstanceById(gpu, gi_id)
        nv.nvmlComputeInstanceDestroy(nv.nvmlGpuInstanceGetComputeInstanceById(gi, 0))
        nv.nvmlGpuInstanceDestroy(gi)


def test_files_are_there_as_long_as_the_instances_are(shown):
    shown.call(make, 1, "3g", "3g")
    assert files(shown) == {
        "gpu1/mig/gi2/access": 3 + 135 + 18,
        "gpu1/mig/gi2/ci0/access": 3 + 135 + 18 + 1,
        "gpu1/mig/gi1/access": 3 + 135 + 9,
        "gpu1/mig/gi1/ci0/access": 3 + 135 + 9 + 1,
    }
    shown.call(clear, 1, 1, 2)
    assert files(shown) == {}
    assert list((folder_of(shown) / "gpu1" / "mig").iterdir()) == []


@pytest.mark.parametrize("event", ["reboot", "reload", "reset gpu=0"])
def test_what_ends_the_instances_ends_the_files(shown, event):
    shown.call(make, 0, "3g")
    assert len(files(shown)) == 2
    shown.event(event)
    assert files(shown) == {}


def test_a_call_that_fails_shows_nothing(shown):
    shown.fault("nvmlDeviceCreateGpuInstance*", code="INSUFFICIENT_RESOURCES")
    with pytest.raises(nv.NVMLError):
        shown.call(make, 0, "3g")
    assert files(shown) == {}


@pytest.mark.parametrize(("step", "left"), [(4, 2), (5, 1)], ids=["before it counts", "after it counts"])
def test_a_caller_that_is_killed_in_its_change_leaves_the_files_that_go_with_the_state(shown, step, left):
    shown.call(make, 0, "3g")
    shown.fault("nvmlComputeInstanceDestroy", kill=True, store=step)
    with pytest.raises(ChildKilled):
        shown.call(clear, 0, 2)
    assert len(files(shown)) == left


def test_without_the_folder_nothing_is_written(node):
    simulator = node()
    simulator.call(make, 0, "3g")
    assert not folder_of(simulator).exists()
