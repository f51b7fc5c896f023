# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""MIG mode: when it changes at once, when it stays pending, who may change it, and what needs it."""

from __future__ import annotations

import contextlib
import ctypes
import subprocess
import sys

import nvml_client as client
import pynvml as nv
import pytest

from nvmlsim import SimulatorError

FAMILIES = {
    "ampere": "1xa100-sxm4-40gb",
    "hopper": "1xh100-sxm5-80gb",
    "blackwell": "1xb200-180gb",
    "rtx": "1xrtx-pro-6000-server",
}


def switch(enabled, index=0):
    """Activation status by name, then current and pending mode."""
    handle = client.gpu(index)
    status = nv.nvmlDeviceSetMigMode(handle, enabled)
    return client.NAMES.get(status, "SUCCESS"), *client.mode(index)


@pytest.mark.parametrize("gpus", FAMILIES.values(), ids=FAMILIES)
def test_an_idle_gpu_changes_its_mode_at_once(node, gpus):
    simulator = node(gpus)
    assert simulator.call(client.mode) == [0, 0]
    assert simulator.call(switch, 1) == ("SUCCESS", 1, 1)
    assert simulator.call(client.mode) == [1, 1]
    assert simulator.call(switch, 0) == ("SUCCESS", 0, 0)


@pytest.mark.parametrize("kind", ["client", "compute", "graphics", "hidden"])
@pytest.mark.parametrize("gpus", FAMILIES.values(), ids=FAMILIES)
def test_the_mode_of_a_gpu_in_use_stays_pending(node, gpus, kind):
    simulator = node(gpus)
    with simulator.occupy(gpu=0, kind=kind):
        assert simulator.call(switch, 1) == ("IN_USE", 0, 1)
        assert simulator.call(client.mode) == [0, 1]
    assert simulator.call(client.mode) == [0, 1]
    simulator.reset(gpu=0)
    assert simulator.call(client.mode) == [1, 1]


def test_a_holder_of_another_gpu_does_not_matter(node):
    simulator = node("2xa100-sxm4-40gb")
    with simulator.occupy(gpu=1, kind="client"):
        assert simulator.call(switch, 1) == ("SUCCESS", 1, 1)


@contextlib.contextmanager
def monitoring(simulator):
    """A process that has NVML open and does nothing with it, as a device plugin or an exporter does for hours."""
    code = "import pynvml, sys; pynvml.nvmlInit(); print(flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code]
    reader = subprocess.Popen(command, env=simulator.env(), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        reader.stdout.readline()
        yield
    finally:
        reader.communicate()


@pytest.mark.parametrize(
    ("gpus", "assume", "during"),
    [
        ("1xa100-sxm4-40gb", {}, ("IN_USE", 0, 1)),
        ("1xa100-sxm4-40gb", {"mode_beside_sessions": "SUCCESS"}, ("SUCCESS", 1, 1)),
        ("1xh100-sxm5-80gb", {}, ("SUCCESS", 1, 1)),
    ],
    ids=["Ampere", "Ampere, if that resets itself all the same", "Hopper, which needs no reset"],
)
def test_the_session_of_another_process_keeps_ampere_from_changing_its_mode(node, gpus, assume, during):
    simulator = node(gpus, assume=assume)
    with monitoring(simulator):
        assert simulator.call(switch, 1) == during
        refused = simulator.run(["nvidia-smi", "--gpu-reset", "-i", "0"])
        assert refused.returncode == 255, "a reset is refused beside it under either answer"
    simulator.reset(gpu=0)
    assert simulator.call(client.mode) == [1, 1]


def test_a_session_that_has_ended_keeps_no_gpu_from_changing_its_mode(node):
    simulator = node("1xa100-sxm4-40gb")
    with monitoring(simulator):
        pass
    assert simulator.call(switch, 1) == ("SUCCESS", 1, 1)


def test_setting_the_current_mode_takes_a_pending_one_back(node):
    simulator = node()
    with simulator.occupy(gpu=0, kind="client"):
        assert simulator.call(switch, 1) == ("IN_USE", 0, 1)
        assert simulator.call(switch, 0)[1:] == (0, 0)


@pytest.mark.parametrize(
    ("assume", "status"), [({}, "NOT_SUPPORTED"), ({"passthrough_activation": "RESET_REQUIRED"}, "RESET_REQUIRED")]
)
def test_ampere_in_a_virtual_machine_waits_for_its_reboot(node, assume, status):
    simulator = node("1xa100-sxm4-40gb", virtualization="passthrough", assume=assume)
    assert simulator.call(switch, 1) == (status, 0, 1)
    with pytest.raises(SimulatorError, match=r"(?i)not supported"):
        simulator.reset(gpu=0)
    simulator.reload()
    assert simulator.call(client.mode) == [0, 1]
    simulator.reboot()
    assert simulator.call(client.mode) == [1, 1]


@pytest.mark.parametrize(("assume", "after"), [({}, [0, 1]), ({"passthrough_cancel": "yes"}, [0, 0])])
def test_ampere_in_a_virtual_machine_may_not_let_go_of_a_pending_mode(node, assume, after):
    simulator = node("1xa100-sxm4-40gb", virtualization="passthrough", assume=assume)
    simulator.call(switch, 1)
    simulator.call(switch, 0)
    assert simulator.call(client.mode) == after


def test_hopper_in_a_virtual_machine_changes_at_once(node):
    assert node("1xh100-sxm5-80gb", virtualization="passthrough").call(switch, 1) == ("SUCCESS", 1, 1)


def test_a_client_recognises_a_virtual_machine(node):
    def read():
        return nv.nvmlDeviceGetVirtualizationMode(client.gpu())

    assert node(virtualization="passthrough").call(read) == nv.NVML_GPU_VIRTUALIZATION_MODE_PASSTHROUGH
    assert node().call(read) == nv.NVML_GPU_VIRTUALIZATION_MODE_NONE


@pytest.mark.parametrize(
    ("assume", "code", "mode", "instances"),
    [
        ({}, "IN_USE", [1, 1], 1),
        ({"disable_with_instances": "pending"}, "SUCCESS", [1, 0], 1),
        ({"disable_with_instances": "destroy"}, "SUCCESS", [0, 0], 0),
    ],
)
def test_switching_off_with_gpu_instances(node, assume, code, mode, instances):
    simulator = node(assume=assume)

    def attempt():
        handle = client.mig_gpu()
        client.create(handle, 9)
        return client.code(nv.nvmlDeviceSetMigMode, handle, 0), client.mode()

    assert simulator.call(attempt) == (code, mode)
    assert len(simulator.describe()["gpus"][0]["instances"]) == instances


def test_arguments_are_checked(node):
    def attempt():
        handle = client.gpu()
        status = ctypes.c_uint()
        library = ctypes.CDLL("libnvidia-ml.so.1")
        return (
            client.code(nv.nvmlDeviceSetMigMode, handle, 2),
            library.nvmlDeviceSetMigMode(handle, 1, None),
            library.nvmlDeviceGetMigMode(handle, None, ctypes.byref(status)),
            client.mode(),
        )

    invalid = nv.NVML_ERROR_INVALID_ARGUMENT
    assert node().call(attempt) == ("INVALID_ARGUMENT", invalid, invalid, [0, 0])


def test_a_mig_device_has_no_mode(node):
    def ask():
        handle = client.mig_gpu()
        client.create_device(handle, "3g")
        device = client.mig_devices(handle)[0]
        return client.code(nv.nvmlDeviceGetMigMode, device), client.code(nv.nvmlDeviceSetMigMode, device, 0)

    for code in node().call(ask):
        assert code in ("NOT_SUPPORTED", "INVALID_ARGUMENT")


def test_instances_need_the_mode(node):
    def attempt():
        handle = client.gpu()
        count, array = ctypes.c_uint(), (nv.c_nvmlGpuInstance_t * 8)()
        return [
            client.code(client.create, handle, 19),
            client.code(client.create, handle, 19, (0, 1)),
            client.code(nv.nvmlDeviceGetGpuInstances, handle, 19, array, ctypes.byref(count)),
            client.code(nv.nvmlDeviceGetGpuInstanceRemainingCapacity, handle, 19),
            client.code(nv.nvmlDeviceGetGpuInstanceById, handle, 1),
        ]

    assert node().call(attempt) == ["NOT_SUPPORTED"] * 5


def test_placements_are_listed_without_the_mode(node):
    assert node().call(lambda: client.placements(client.gpu(), 9)) == [(0, 4), (4, 4)]


@pytest.mark.parametrize(
    ("gpus", "most"),
    [("1xa100-sxm4-40gb", 7), ("1xa30-24gb", 4), ("1xrtx-pro-6000-server", 4), ("1xh200-sxm-141gb", 7)],
)
def test_the_largest_number_of_mig_devices_is_the_hardware_s(node, gpus, most):
    def ask():
        handle = client.gpu()
        off = nv.nvmlDeviceGetMaxMigDeviceCount(handle)
        nv.nvmlDeviceSetMigMode(handle, 1)
        return off, nv.nvmlDeviceGetMaxMigDeviceCount(handle)

    assert node(gpus).call(ask) == (0, most)


def test_persistence_mode(node):
    def switch_persistence():
        handle = client.gpu()
        before = nv.nvmlDeviceGetPersistenceMode(handle)
        nv.nvmlDeviceSetPersistenceMode(handle, 1 - before)
        return before, nv.nvmlDeviceGetPersistenceMode(handle)

    assert node().call(switch_persistence) == (1, 0)
    assert node(persistence=False).call(switch_persistence) == (0, 1)


def test_without_a_way_to_reset_ampere_changes_its_mode_by_a_reboot_only(node):
    simulator = node("1xa100-sxm4-40gb,1xh100-sxm5-80gb", resettable=False)
    assert simulator.call(client.code, client.turn_on) == "SUCCESS"
    assert simulator.call(client.mode) == [0, 1]
    simulator.reboot()
    assert simulator.call(client.mode) == [1, 1]
    simulator.call(client.turn_on, 1)
    assert simulator.call(client.mode, 1) == [1, 1], "Hopper needs no reset for it"
