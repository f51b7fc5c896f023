# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The stand-in for nvidia-smi: what it resets, what it refuses, its messages and its exit status."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time

import nvml_client as client
import pynvml as nv
import pytest

PCI = ["00000000:07:00.0", "00000000:0F:00.0", "00000000:47:00.0"]
IN_USE = "currently being used by one or more other processes"


def smi(simulator, *words):
    done = simulator.run(["nvidia-smi", *words])
    assert done.stderr == ""
    return done.returncode, done.stdout


def partitioned(node, gpus="3xa100-sxm4-40gb", **options):
    """A node with an instance on each GPU, so that it shows which were reset."""
    simulator = node(gpus, **options)
    for index in range(len(simulator.layouts())):
        simulator.call(client.make, index, 9)
    return simulator


def make_device():
    client.create_device(client.mig_gpu(), "3g")


def left(simulator):
    """GPUs that still have their instance."""
    return [index for index, layout in enumerate(simulator.layouts()) if layout]


def test_the_gpus_that_are_named_are_reset_and_no_others(node):
    simulator = partitioned(node)
    assert smi(simulator, "--gpu-reset", "-i", "0,2") == (
        0,
        f"GPU {PCI[0]} was successfully reset.\nGPU {PCI[2]} was successfully reset.\nAll done.\n",
    )
    assert left(simulator) == [1]


@pytest.mark.parametrize("spelling", ["1", PCI[1], PCI[1].lower(), PCI[1][4:], "UUID"])
def test_a_gpu_is_named_by_index_pci_address_or_uuid(node, spelling):
    simulator = partitioned(node)
    gpu = simulator.describe()["gpus"][1]["uuid"] if spelling == "UUID" else spelling
    assert smi(simulator, "-r", f"--id={gpu}")[0] == 0
    assert left(simulator) == [0, 2]


def test_without_i_all_gpus_are_reset(node):
    simulator = partitioned(node)
    assert smi(simulator, "-r")[0] == 0
    assert left(simulator) == []


def test_a_pending_mode_becomes_current(node):
    simulator = node()
    with simulator.occupy(gpu=0, kind="client"):
        simulator.call(lambda: nv.nvmlDeviceSetMigMode(client.gpu(), 1))
    assert simulator.call(client.mode) == [0, 1]
    assert smi(simulator, "-r", "-i", "0")[0] == 0
    assert simulator.call(client.mode) == [1, 1]


@pytest.mark.parametrize("kind", ["compute", "graphics", "hidden", "client"])
def test_a_gpu_in_use_is_not_reset_and_the_others_are(node, kind):
    simulator = partitioned(node)
    with simulator.occupy(gpu=1, kind=kind):
        status, text = smi(simulator, "-r", "-i", "1")
        assert status == 255
        assert f"could not be reset:\n  GPU {PCI[1]}: In use by another client\n\n1 device is {IN_USE}" in text
        assert left(simulator) == [0, 1, 2]


def test_of_several_gpus_those_that_can_be_reset_are(node):
    simulator = partitioned(node)
    with simulator.occupy(gpu=1, kind="client"):
        status, text = smi(simulator, "-r", "-i", "0,1")
    assert status == 255
    assert f"GPU {PCI[0]} was successfully reset." in text
    assert f"GPU {PCI[1]}: In use by another client" in text
    assert "All done." not in text
    assert left(simulator) == [1, 2]


@pytest.mark.parametrize(("kind", "status"), [("compute", 255), ("graphics", 0), ("hidden", 0), ("client", 0)])
def test_a_computation_on_any_other_gpu_keeps_from_a_reset(node, kind, status):
    simulator = partitioned(node)
    with simulator.occupy(gpu=2, kind=kind):
        assert smi(simulator, "-r", "-i", "0")[0] == status
    assert left(simulator) == ([0, 1, 2] if status else [1, 2])


def test_an_instance_in_use_keeps_its_gpu_from_a_reset(node):
    simulator = node()
    simulator.call(make_device)
    instance = simulator.describe()["gpus"][0]["instances"][0]["id"]
    with simulator.occupy(gpu=0, gi=instance, ci=0, kind="hidden"):
        assert smi(simulator, "-r", "-i", "0")[0] == 255


def test_a_process_with_an_open_session_of_nvml_keeps_from_a_reset(node):
    """It has the device files open, whatever it does with them."""
    simulator = partitioned(node)
    code = "import pynvml, sys; pynvml.nvmlInit(); print(flush=True); sys.stdin.read()"
    reader = subprocess.Popen(
        [sys.executable, "-c", code], env=simulator.env(), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        reader.stdout.readline()
        assert smi(simulator, "-r", "-i", "0")[0] == 255
    finally:
        reader.communicate()
    assert smi(simulator, "-r", "-i", "0")[0] == 0


def test_a_session_that_was_shut_down_is_no_obstacle(node):
    simulator = partitioned(node)

    def reset_after_a_session():
        nv.nvmlInit()
        during = smi(simulator, "-r", "-i", "0")[0]
        nv.nvmlShutdown()
        return during, smi(simulator, "-r", "-i", "0")[0]

    assert simulator.call(reset_after_a_session) == (255, 0)


def test_ampere_in_a_virtual_machine_is_not_reset(node):
    simulator = node("2xa100-sxm4-40gb", virtualization="passthrough")
    assert smi(simulator, "-r", "-i", "0") == (3, f"Resetting GPU {PCI[0]} is not supported.\n")


def test_hopper_in_a_virtual_machine_is(node):
    simulator = partitioned(node, "1xh100-sxm5-80gb", virtualization="passthrough")
    assert smi(simulator, "-r", "-i", "0")[0] == 0


def test_without_privilege_nothing_is_reset(node):
    simulator = node("1xa100-sxm4-40gb", privileged="nobody")
    status, text = smi(simulator, "-r", "-i", "0")
    assert status == 4
    assert f"GPU {PCI[0]}: Insufficient Permissions" in text
    assert IN_USE not in text


@pytest.mark.parametrize(
    ("gpus", "fabric_manager", "named", "status"),
    [
        ("3xa100-sxm4-40gb", True, "0", 0),
        ("3xa100-sxm4-40gb", False, "0", 255),
        ("3xa100-sxm4-40gb", False, "0,1,2", 0),
        ("3xa100-sxm4-40gb", None, "0", 0),
        ("2xh100-sxm5-80gb", False, "0", 0),
        ("2xa100-pcie-40gb", False, "0", 0),
    ],
)
def test_nvswitch_boards_of_ampere_need_fabric_manager_or_all_their_gpus(node, gpus, fabric_manager, named, status):
    simulator = node(gpus, fabric_manager=fabric_manager)
    found, text = smi(simulator, "-r", "-i", named)
    assert found == status
    assert ("while Fabric Manager is not running" in text) == (status != 0)
    if status:
        assert PCI[1] in text
        assert PCI[2] in text
        assert not simulator.writes()


@pytest.mark.parametrize("words", [[], ["--nonsense"], ["-r", "-L"], ["-i", "0"], ["-r", "-i", "9"], ["-r", "-i"]])
def test_a_wrong_command_line_has_an_exit_status_of_its_own(node, words):
    assert smi(node(), *words)[0] == 2


def test_without_a_driver_the_message_is_the_well_known_one(node):
    env = {name: value for name, value in node().env().items() if name != "NVMLSIM_STATE"}
    done = subprocess.run(["nvidia-smi", "-L"], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 9
    assert "couldn't communicate with the NVIDIA driver" in done.stdout


def test_l_lists_gpus_and_mig_devices(node):
    simulator = node("1xa100-sxm4-40gb,1xtesla-t4")
    simulator.call(make_device)
    gpus = simulator.describe()["gpus"]
    mig = gpus[0]["instances"][0]["compute"][0]["uuid"]
    status, text = smi(simulator, "-L")
    assert status == 0
    assert text.splitlines() == [
        f"GPU 0: NVIDIA A100-SXM4-40GB (UUID: {gpus[0]['uuid']})",
        f"  MIG 3g.20gb     Device  0: (UUID: {mig})",
        f"GPU 1: {gpus[1]['name']} (UUID: {gpus[1]['uuid']})",
    ]


def test_resets_are_in_the_record_one_per_gpu_as_writes(node):
    simulator = node("2xa100-sxm4-40gb")
    with simulator.occupy(gpu=1, kind="client"):
        smi(simulator, "-r")
    assert [(call.function, call.gpu, call.code) for call in simulator.writes()] == [
        ("nvidia-smi --gpu-reset", 0, "SUCCESS"),
        ("nvidia-smi --gpu-reset", 1, "IN_USE"),
    ]


@pytest.mark.parametrize(("when", "still_there"), [("before", [0, 1, 2]), ("after", [0, 2])])
@pytest.mark.parametrize("function", ["nvidia-smi", "nvidia-smi --gpu-reset", "write"])
def test_a_fault_lets_a_reset_fail(node, function, when, still_there):
    simulator = partitioned(node)
    simulator.fault(function, code="UNKNOWN", when=when, gpu=1)
    status, text = smi(simulator, "-r", "-i", "1")
    assert status == 255
    assert f"  GPU {PCI[1]}: Unknown Error\n" in text
    assert left(simulator) == still_there


def test_a_lost_gpu_has_an_exit_status_of_its_own(node):
    simulator = node()
    simulator.fault("nvidia-smi", code="GPU_IS_LOST")
    assert smi(simulator, "-r", "-i", "0")[0] == 15


def test_a_reset_can_hang_and_be_killed(node):
    simulator = partitioned(node)
    simulator.fault("nvidia-smi", hang=True, when="after")
    process = subprocess.Popen(["nvidia-smi", "-r", "-i", "0"], env=simulator.env(), stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 30
    while 0 in left(simulator) and time.monotonic() < deadline:
        pass
    assert process.poll() is None
    process.kill()
    process.wait()
    assert simulator.writes()[-1].code == "UNFINISHED"
    simulator.clear_faults()
    assert smi(simulator, "-r", "-i", "1")[0] == 0


def test_the_stand_in_comes_first_on_the_search_path_however_often_it_is_asked_for(node):
    simulator = node()
    env = simulator.env(simulator.env())
    programs = os.path.dirname(shutil.which("nvidia-smi", path=env["PATH"]))
    assert env["PATH"].split(os.pathsep)[0] == programs
    assert env["PATH"].split(os.pathsep).count(programs) == 1
    assert simulator.call(shutil.which, "nvidia-smi") == os.path.join(programs, "nvidia-smi")


def test_a_computer_without_a_way_to_reset_resets_nothing(node):
    simulator = node("1xa100-sxm4-40gb,1xh100-sxm5-80gb", resettable=False)
    assert [gpu["resettable"] for gpu in simulator.describe()["gpus"]] == [False, False]
    assert smi(simulator, "-r", "-i", "1") == (3, f"Resetting GPU {PCI[1]} is not supported.\n")
