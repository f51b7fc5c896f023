# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Faults: each word of their grammar does what README.md says."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import nvml_client as client
import pynvml as nv
import pytest

from nvmlsim import ChildKilled, SimulatorError


def create_three():
    handle = client.gpu()
    return [client.code(client.create, handle, 19) for _ in range(3)]


def instances(simulator, gpu=0):
    return len(simulator.describe()["gpus"][gpu]["instances"])


@pytest.fixture
def mig_node(node):
    """A node whose GPUs have MIG on."""

    def make(gpus="1xa100-sxm4-40gb", **options):
        simulator = node(gpus, **options)
        for gpu in simulator.describe()["gpus"]:
            simulator.call(client.turn_on, gpu["index"])
        simulator.reset_calls()
        return simulator

    return make


def test_a_code_for_every_call(mig_node):
    simulator = mig_node()
    simulator.fault("nvmlDeviceCreateGpuInstance", code="GPU_IS_LOST")
    assert simulator.call(create_three) == ["GPU_IS_LOST"] * 3
    assert instances(simulator) == 0


def test_only_the_nth_call_counted_from_when_the_fault_is_set(mig_node):
    simulator = mig_node()
    assert simulator.call(create_three) == ["SUCCESS"] * 3
    simulator.fault("nvmlDeviceCreateGpuInstance", nth=2, code="UNKNOWN")
    assert simulator.call(create_three) == ["SUCCESS", "UNKNOWN", "SUCCESS"]
    assert instances(simulator) == 5


def test_the_nth_call_is_counted_over_all_processes(mig_node):
    simulator = mig_node()
    simulator.fault("nvmlDeviceCreateGpuInstance", nth=4, code="UNKNOWN")
    assert simulator.call(create_three) == ["SUCCESS"] * 3
    assert simulator.call(create_three) == ["UNKNOWN", "SUCCESS", "SUCCESS"]


def test_before_means_that_nothing_happened_after_that_it_did(mig_node):
    for when, left in (("before", 0), ("after", 1)):
        simulator = mig_node()
        simulator.fault("nvmlDeviceCreateGpuInstance", nth=1, when=when, code="TIMEOUT")
        assert simulator.call(lambda: client.code(client.create, client.gpu(), 19)) == "TIMEOUT"
        assert instances(simulator) == left


@pytest.mark.parametrize(("when", "left"), [("before", 0), ("after", 1)])
def test_the_caller_is_killed(mig_node, when, left):
    simulator = mig_node()
    simulator.fault("nvmlDeviceCreateGpuInstance", nth=1, when=when, kill=True)
    with pytest.raises(ChildKilled) as death:
        simulator.call(create_three)
    assert death.value.signal == signal.SIGKILL
    assert instances(simulator) == left
    assert [call.code for call in simulator.writes()] == ["UNFINISHED"]
    assert simulator.call(create_three) == ["SUCCESS"] * 3  # nothing stayed locked


def kill_when(ready, simulator, work):
    """Run ``work`` in a child; kill it once ``ready()`` holds."""
    child = os.fork()
    if child == 0:
        try:
            simulator.attach()
            work()
        finally:
            os._exit(1)
    deadline = time.monotonic() + 30
    while not ready() and time.monotonic() < deadline:
        pass
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL


@pytest.mark.parametrize(("when", "left"), [("before", 0), ("after", 1)])
def test_a_call_that_hangs_can_be_killed_and_keeps_nobody_else_waiting(mig_node, when, left):
    simulator = mig_node()
    simulator.fault("nvmlDeviceCreateGpuInstance", nth=1, when=when, hang=True)

    def hangs():
        return "seen=1" in simulator.describe()["faults"][0] and instances(simulator) == left

    kill_when(hangs, simulator, create_three)
    assert instances(simulator) == left
    assert simulator.writes()[0].code == "UNFINISHED"
    assert simulator.call(create_three) == ["SUCCESS"] * 3


def test_a_hanging_caller_ends_by_an_ordinary_signal(mig_node):
    simulator = mig_node()
    simulator.fault("nvmlDeviceGetCount", hang=True)
    code = "import pynvml; pynvml.nvmlInit(); print('in', flush=True); pynvml.nvmlDeviceGetCount()"
    process = subprocess.Popen([sys.executable, "-c", code], env=simulator.env(), stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"in\n"
    process.terminate()
    assert process.wait(timeout=10) == -signal.SIGTERM
    process.stdout.close()


def test_a_call_is_delayed(mig_node):
    simulator = mig_node()
    simulator.fault("nvmlDeviceGetMigMode", delay_ms=60)
    assert simulator.call(client.mode) == [1, 1]
    assert next(call for call in simulator.calls() if call.function == "nvmlDeviceGetMigMode").seconds >= 0.06


def test_a_delay_goes_together_with_a_code(mig_node):
    simulator = mig_node()
    simulator.fault("nvmlDeviceGetMigMode", delay_ms=60, code="TIMEOUT")
    start = time.monotonic()
    assert simulator.call(lambda: client.code(nv.nvmlDeviceGetMigMode, client.gpu())) == "TIMEOUT"
    assert time.monotonic() - start >= 0.06


def test_only_one_gpu(mig_node):
    simulator = mig_node("2xa100-sxm4-40gb")
    simulator.fault("nvmlDeviceCreateGpuInstance", gpu=1, code="GPU_IS_LOST")

    def attempt(index):
        return client.code(client.create, client.gpu(index), 19)

    assert simulator.call(attempt, 0) == "SUCCESS"
    assert simulator.call(attempt, 1) == "GPU_IS_LOST"


def test_the_nth_call_of_one_gpu_counts_that_gpu_only(mig_node):
    simulator = mig_node("2xa100-sxm4-40gb")
    simulator.fault("nvmlDeviceCreateGpuInstance", gpu=1, nth=2, code="UNKNOWN")

    def alternate():
        nv.nvmlInit()
        handles = [nv.nvmlDeviceGetHandleByIndex(index) for index in (0, 1)]
        return [client.code(client.create, handle, 19) for _ in range(3) for handle in handles]

    assert simulator.call(alternate) == ["SUCCESS", "SUCCESS", "SUCCESS", "UNKNOWN", "SUCCESS", "SUCCESS"]


@pytest.mark.parametrize("nth", range(1, 6))
def test_the_word_write_means_every_call_that_changes_something(node, nth):
    simulator = node()
    simulator.fault("write", nth=nth, code="UNKNOWN")

    def five_writes():
        handle = client.gpu()
        return [
            client.code(nv.nvmlDeviceSetPersistenceMode, handle, 1),
            client.code(nv.nvmlDeviceSetMigMode, handle, 1),
            client.code(nv.nvmlDeviceSetMigMode, handle, 1),
            client.code(client.create, handle, 19),
            client.code(client.create, handle, 19, (0, 1)),
        ]

    assert simulator.call(five_writes) == ["UNKNOWN" if number == nth else "SUCCESS" for number in range(1, 6)]


def test_reads_are_no_writes(mig_node):
    simulator = mig_node()
    simulator.fault("write", code="UNKNOWN")
    assert simulator.call(lambda: client.gpu_instances(client.gpu())) == {}


def test_a_name_without_version_means_all_its_versions(mig_node):
    simulator = mig_node()
    simulator.fault("nvmlDeviceGetCount", code="UNKNOWN")
    assert simulator.call(lambda: client.code(nv.nvmlDeviceGetCount) if client.gpu() else "") == "UNKNOWN"


@pytest.mark.parametrize("code", ["DRIVER_NOT_LOADED", "LIB_RM_VERSION_MISMATCH", "NO_PERMISSION"])
def test_the_session_does_not_open(node, code):
    simulator = node()
    simulator.fault("nvmlInit", code=code)
    assert simulator.call(lambda: client.code(nv.nvmlInit)) == code


def test_a_gpu_that_is_lost_leaves_the_others(node):
    simulator = node("3xa100-sxm4-40gb")
    simulator.fault("nvmlDeviceGetHandleByIndex", gpu=1, code="GPU_IS_LOST")

    def all_gpus():
        nv.nvmlInit()
        return [client.code(nv.nvmlDeviceGetHandleByIndex, index) for index in range(nv.nvmlDeviceGetCount())]

    assert simulator.call(all_gpus) == ["SUCCESS", "GPU_IS_LOST", "SUCCESS"]


def test_faults_are_shown_and_cleared(mig_node):
    simulator = mig_node()
    simulator.fault("write", nth=3, code="IN_USE", gpu=0)
    simulator.fault("nvmlDeviceGetUUID", hang=True, when="after")
    shown = simulator.describe()["faults"]
    assert len(shown) == 2
    assert "function=write" in shown[0]
    assert "code=IN_USE" in shown[0]
    assert "nth=3" in shown[0]
    assert "fault: " in simulator.show()
    simulator.clear_faults()
    assert simulator.describe()["faults"] == []
    assert simulator.call(create_three) == ["SUCCESS"] * 3


def test_faults_survive_the_process_that_set_them_and_a_reboot(mig_node):
    simulator = mig_node()
    simulator.fault("nvmlDeviceCreateGpuInstance", code="UNKNOWN")
    simulator.reboot()
    assert simulator.call(create_three) == ["UNKNOWN"] * 3


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        ("nvmlNoSuchThing", {"code": "IN_USE"}, "no function of NVML is called"),
        ("nvmlDeviceGetCount", {"code": "IN_USED"}, "code=IN_USED"),
        ("nvmlDeviceGetCount", {"code": "IN_USE", "nth": 0}, "nth=0"),
        ("nvmlDeviceGetCount", {"code": "IN_USE", "when": "meanwhile"}, "when=meanwhile"),
        ("nvmlDeviceGetCount", {"code": "IN_USE", "gpu": 99}, "gpu=99"),
        ("nvmlDeviceGetCount", {}, "say what happens"),
    ],
)
def test_a_fault_that_cannot_be_is_refused(node, function, options, message):
    with pytest.raises(SimulatorError, match=message):
        node().fault(function, **options)


# ---- torn state: killed at every step of a change ------------------------------------------------------------------


def one_change(name):
    handle = client.gpu()
    if name == "set mode":
        nv.nvmlDeviceSetMigMode(handle, 0)
    elif name == "create GI":
        client.create(handle, 19)
    else:
        gi = nv.nvmlDeviceGetGpuInstanceById(handle, 2)
        if name == "create CI":
            client.create_compute(gi, 0)
        elif name == "destroy CI":
            nv.nvmlComputeInstanceDestroy(nv.nvmlGpuInstanceGetComputeInstanceById(gi, 0))
        elif name == "destroy GI":
            nv.nvmlGpuInstanceDestroy(gi)


def prepare(name):
    handle = client.mig_gpu()
    if name == "set mode":
        return
    gi = client.create(handle, 9)  # GI 2
    if name in ("create GI", "destroy CI"):
        client.create_compute(gi, 0)


def state_of(simulator):
    gpu = simulator.describe()["gpus"][0]
    return gpu["mode_current"], gpu["mode_pending"], gpu["instances"]


@pytest.mark.parametrize("name", ["set mode", "create GI", "create CI", "destroy CI", "destroy GI"])
def test_a_caller_killed_at_any_step_leaves_the_state_before_or_after(node, name):
    whole = node()
    whole.call(prepare, name)
    before = state_of(whole)
    whole.call(one_change, name)
    after = state_of(whole)
    assert before != after

    seen = []
    for step in range(1, 7):
        simulator = node()
        simulator.call(prepare, name)
        simulator.fault("write", kill=True, store=step)
        with pytest.raises(ChildKilled):
            simulator.call(one_change, name)
        simulator.clear_faults()
        state = state_of(simulator)
        assert state in (before, after)
        seen.append(state == after)
        if state == before:
            simulator.call(one_change, name)
        assert state_of(simulator) == after
    assert seen == sorted(seen)
    assert set(seen) == {False, True}


def test_a_caller_killed_at_any_moment_leaves_the_state_before_or_after(node):
    """A real SIGKILL while a child creates and destroys without pause."""
    simulator = node()
    simulator.call(client.turn_on)

    def churn():
        handle = client.gpu()
        while True:
            gi = client.create(handle, 9, (0, 4))
            ci = client.create_compute(gi, 2)
            nv.nvmlComputeInstanceDestroy(ci)
            nv.nvmlGpuInstanceDestroy(gi)

    allowed = [(), (("MIG 3g.20gb", 0, 4, ()),), (("MIG 3g.20gb", 0, 4, (("MIG 3g.20gb", 0, 3),)),)]
    for round_number in range(40):
        child = os.fork()
        if child == 0:
            try:
                simulator.attach()
                churn()
            finally:
                os._exit(1)
        deadline = time.monotonic() + 10
        while not simulator.counts().get("nvmlGpuInstanceDestroy") and time.monotonic() < deadline:
            pass
        for _ in range(round_number * 50):  # other moments each time
            os.getppid()
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        assert simulator.layouts()[0] in allowed
        simulator.reset_calls()
        simulator.call(clean_up)


def clean_up():
    handle = client.gpu()
    for gi_id in client.gpu_instances(handle):
        gi = nv.nvmlDeviceGetGpuInstanceById(handle, gi_id)
        for ci_id in range(8):
            try:
                nv.nvmlComputeInstanceDestroy(nv.nvmlGpuInstanceGetComputeInstanceById(gi, ci_id))
            except nv.NVMLError_NotFound:
                continue
        nv.nvmlGpuInstanceDestroy(gi)
