# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Processes that hold a GPU or an instance: what they block, and which of NVML's lists show them."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess

import nvml_client as client
import pynvml as nv
import pytest

from nvmlsim import SimulatorError

NOWHERE = 0xFFFFFFFF


def make_two_devices():
    """On GPU 0: 3g at 0 is GI 1, 3g at 4 is GI 2; each with CI 0."""
    handle = client.mig_gpu()
    client.create_device(handle, "3g", (0, 4))
    client.create_device(handle, "3g", (4, 4))


def destroy(gi_id, ci_id=None):
    gi = nv.nvmlDeviceGetGpuInstanceById(client.gpu(), gi_id)
    if ci_id is None:
        return client.code(nv.nvmlGpuInstanceDestroy, gi)
    return client.code(nv.nvmlComputeInstanceDestroy, nv.nvmlGpuInstanceGetComputeInstanceById(gi, ci_id))


def rows(processes):
    return [(p.pid, p.gpuInstanceId, p.computeInstanceId) for p in processes]


@pytest.mark.parametrize("kind", ["compute", "graphics", "hidden"])
def test_a_compute_instance_in_use_cannot_be_destroyed(node, kind):
    simulator = node()
    simulator.call(make_two_devices)
    with simulator.occupy(gpu=0, gi=1, ci=0, kind=kind):
        assert simulator.call(destroy, 1, 0) == "IN_USE"
        assert simulator.call(destroy, 2, 0) == "SUCCESS"
    assert simulator.call(destroy, 1, 0) == "SUCCESS"


def test_a_gpu_instance_can_stay_in_use_when_its_compute_instance_is_gone(node):
    """A teardown that stops half way: on record from real nodes."""
    simulator = node()
    simulator.call(make_two_devices)
    with simulator.occupy(gpu=0, gi=1, kind="hidden"):
        assert simulator.call(destroy, 1, 0) == "SUCCESS"
        assert simulator.call(destroy, 1) == "IN_USE"
    assert simulator.call(destroy, 1) == "SUCCESS"


def test_a_holder_that_dies_holds_nothing(node):
    simulator = node()
    simulator.call(make_two_devices)
    process = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    simulator.occupy(gpu=0, gi=1, ci=0, pid=process.pid)
    assert simulator.call(destroy, 1, 0) == "IN_USE"
    process.kill()
    process.wait()
    assert simulator.describe()["gpus"][0]["holders"] == []
    assert simulator.call(destroy, 1, 0) == "SUCCESS"


def test_a_process_that_is_a_zombie_holds_nothing(node):
    """Its files are closed; only its exit status waits to be read."""
    simulator = node()
    simulator.call(make_two_devices)
    process = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    simulator.occupy(gpu=0, gi=1, ci=0, pid=process.pid)
    os.kill(process.pid, signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert simulator.call(destroy, 1, 0) == "SUCCESS"
    process.wait()


@pytest.mark.parametrize("kind", ["compute", "graphics", "hidden"])
def test_the_first_gpu_instance_needs_a_gpu_without_other_processes(node, kind):
    simulator = node()
    simulator.call(client.turn_on)
    with simulator.occupy(gpu=0, kind=kind):
        assert simulator.call(lambda: client.code(client.create, client.gpu(), 9)) == "IN_USE"
    assert simulator.call(lambda: client.code(client.create, client.gpu(), 9)) == "SUCCESS"


def test_a_monitoring_client_does_not_keep_instances_from_being_made(node):
    simulator = node()
    simulator.call(client.turn_on)
    with simulator.occupy(gpu=0, kind="client"):
        assert simulator.call(lambda: client.code(client.create, client.gpu(), 9)) == "SUCCESS"


def lists(index=0):
    handle = client.gpu(index)
    return (
        rows(nv.nvmlDeviceGetComputeRunningProcesses(handle)),
        rows(nv.nvmlDeviceGetGraphicsRunningProcesses(handle)),
        rows(nv.nvmlDeviceGetMPSComputeRunningProcesses(handle)),
    )


def test_each_list_shows_its_kind_and_hidden_holders_are_in_none(node):
    simulator = node("2xa100-sxm4-40gb")
    with (
        simulator.occupy(gpu=0, kind="compute") as compute,
        simulator.occupy(gpu=0, kind="graphics") as graphics,
        simulator.occupy(gpu=0, kind="hidden"),
        simulator.occupy(gpu=0, kind="client"),
    ):
        found = simulator.call(lists)
        assert found == ([(compute.pid, NOWHERE, NOWHERE)], [(graphics.pid, NOWHERE, NOWHERE)], [])
        assert simulator.call(lists, 1) == ([], [], [])
        assert len(simulator.describe()["gpus"][0]["holders"]) == 4
    assert simulator.call(lists) == ([], [], [])


def test_the_gpu_s_list_says_which_instance_a_process_uses(node):
    simulator = node()
    simulator.call(make_two_devices)

    def by_device():
        return [rows(nv.nvmlDeviceGetComputeRunningProcesses(d)) for d in client.mig_devices(client.gpu()).values()]

    with simulator.occupy(gpu=0, gi=1, ci=0) as first, simulator.occupy(gpu=0, gi=2, ci=0) as second:
        both = sorted([(first.pid, 1, 0), (second.pid, 2, 0)])
        assert sorted(simulator.call(lists)[0]) == both
        assert simulator.call(by_device) == [[(first.pid, 1, 0)], [(second.pid, 2, 0)]]


def test_a_list_is_read_in_two_calls(node):
    simulator = node()

    def protocol():
        handle = client.gpu()
        ask = ctypes.CDLL("libnvidia-ml.so.1").nvmlDeviceGetComputeRunningProcesses_v3
        count = ctypes.c_uint(0)
        alone = ask(handle, ctypes.byref(count), None), count.value
        array = (nv.c_nvmlProcessInfo_v2_t * 8)()
        small = ctypes.c_uint(1)
        too_small = ask(handle, ctypes.byref(small), array), small.value
        large = ctypes.c_uint(8)
        enough = ask(handle, ctypes.byref(large), array), large.value
        return alone, too_small, enough

    assert simulator.call(protocol) == ((0, 0), (0, 0), (0, 0))
    with simulator.occupy(gpu=0), simulator.occupy(gpu=0):
        more = nv.NVML_ERROR_INSUFFICIENT_SIZE
        assert simulator.call(protocol) == ((more, 2), (more, 2), (0, 2))


def test_all_versions_of_a_list_agree(node):
    simulator = node()

    def read():
        handle = client.gpu()
        return [
            rows(nv.nvmlDeviceGetComputeRunningProcesses_v2(handle)),
            rows(nv.nvmlDeviceGetComputeRunningProcesses_v3(handle)),
        ]

    with simulator.occupy(gpu=0) as holder:
        assert simulator.call(read) == [[(holder.pid, NOWHERE, NOWHERE)]] * 2


def test_memory_of_a_process(node):
    simulator = node()

    def read():
        return [p.usedGpuMemory for p in nv.nvmlDeviceGetComputeRunningProcesses(client.gpu())]

    with simulator.occupy(gpu=0, memory_mib=300):
        assert simulator.call(read) == [300 << 20]


def test_one_process_can_hold_several_places(node):
    simulator = node()
    simulator.call(make_two_devices)
    with simulator.occupy(gpu=0, gi=1, ci=0) as first, simulator.occupy(gpu=0, gi=2, ci=0, pid=first.pid):
        assert [simulator.call(destroy, gi, 0) for gi in (1, 2)] == ["IN_USE", "IN_USE"]


@pytest.mark.parametrize("place", [{"gpu": 5}, {"gpu": 0, "gi": 3}, {"gpu": 0, "gi": 1, "ci": 4}, {"gpu": 0, "ci": 0}])
def test_what_is_not_there_cannot_be_held(node, place):
    simulator = node()
    simulator.call(make_two_devices)
    with pytest.raises(SimulatorError):
        simulator.occupy(**place)
    assert simulator.describe()["gpus"][0]["holders"] == []


def test_a_process_that_is_not_there_holds_nothing(node):
    process = subprocess.Popen(["true"])
    process.wait()
    with pytest.raises(SimulatorError, match="no such process"):
        node().occupy(gpu=0, pid=process.pid)
