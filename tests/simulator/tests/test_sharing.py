# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Several processes and threads at once; users without privileges; the record of calls."""

from __future__ import annotations

import ctypes
import os
import random
import tempfile
import threading
import time

import nvml_client as client
import pynvml as nv
import pytest

from nvmlsim import Simulator

NOBODY = 65534
PROCESSES = 8


def in_parallel(simulator, work, count=PROCESSES):
    """Run ``work(number)`` in so many forked processes at once; their exit statuses."""
    children = []
    for number in range(count):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                simulator.attach()
                work(number)
                status = 0
            finally:
                os._exit(status)
        children.append(child)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def test_eight_processes_that_create_and_destroy_do_not_step_on_each_other(node):
    simulator = node()
    simulator.call(client.turn_on)

    def churn(number):
        choice = random.Random(number)
        handle = client.gpu()
        mine = []
        for _ in range(150):
            if mine and choice.random() < 0.5:
                gi, ci = mine.pop(choice.randrange(len(mine)))
                nv.nvmlComputeInstanceDestroy(ci)
                nv.nvmlGpuInstanceDestroy(gi)
            else:
                try:
                    mine.append(client.create_device(handle, choice.choice(["1g", "2g", "3g"])))
                except nv.NVMLError_InsufficientResources:
                    continue
        for gi, ci in mine:
            nv.nvmlComputeInstanceDestroy(ci)
            nv.nvmlGpuInstanceDestroy(gi)

    assert in_parallel(simulator, churn) == [0] * PROCESSES
    assert simulator.layouts() == [()]
    done = [call for call in simulator.writes(ok=True) if call.function.startswith("nvmlGpuInstanceDestroy")]
    made = [call for call in simulator.writes(ok=True) if call.function == "nvmlDeviceCreateGpuInstance"]
    assert len(done) == len(made) > 0


def test_seven_of_eight_processes_get_a_slice_and_never_the_same(node):
    simulator = node()
    simulator.call(client.turn_on)

    def take(number):
        client.create(client.gpu(), 19)

    assert sorted(in_parallel(simulator, take)) == [0] * 7 + [1]
    instances = simulator.describe()["gpus"][0]["instances"]
    assert sorted(gi["start"] for gi in instances) == list(range(7))


def test_a_reader_never_sees_half_a_change(node):
    """One process switches between two full layouts' worth of instances; readers see nothing that overlaps."""
    simulator = node()
    simulator.call(client.turn_on)

    def work(number):
        handle = client.gpu()
        if number == 0:
            for _ in range(100):
                made = [client.create(handle, 9, (start, 4)) for start in (0, 4)]
                for gi in made:
                    nv.nvmlGpuInstanceDestroy(gi)
                gi = client.create(handle, 0)
                nv.nvmlGpuInstanceDestroy(gi)
            return
        for _ in range(200):
            for gpu in simulator.describe()["gpus"]:
                taken = [s for gi in gpu["instances"] for s in range(gi["start"], gi["start"] + gi["size"])]
                assert len(taken) == len(set(taken))

    assert in_parallel(simulator, work, count=4) == [0] * 4


def test_threads_of_one_process_share_a_session(node):
    simulator = node()
    simulator.call(client.turn_on)

    def threads():
        handle = client.gpu()
        wrong = []

        def churn(start):
            for _ in range(100):
                gi = client.create(handle, 19, (start, 1))
                if client.place(gi)[1] != start:
                    wrong.append(start)
                nv.nvmlGpuInstanceDestroy(gi)

        workers = [threading.Thread(target=churn, args=(start,)) for start in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return wrong

    assert simulator.call(threads) == []
    assert simulator.layouts() == [()]


def test_the_record_is_complete_when_many_write_it(node):
    simulator = node()

    def ask(number):
        nv.nvmlInit()
        for _ in range(500):
            nv.nvmlDeviceGetCount()

    assert in_parallel(simulator, ask) == [0] * PROCESSES
    calls = simulator.calls()
    assert simulator.counts()["nvmlDeviceGetCount_v2"] == 500 * PROCESSES
    assert len([call for call in calls if call.function == "nvmlDeviceGetCount_v2"]) == 500 * PROCESSES
    assert [call.sequence for call in calls] == list(range(1, len(calls) + 1))
    assert len({call.pid for call in calls}) == PROCESSES


def test_the_record_keeps_counting_when_it_is_full(node):
    simulator = node()

    def ask():
        nv.nvmlInit()
        ask = nv.nvmlDeviceGetCount
        for _ in range(70_000):
            ask()

    simulator.call(ask)
    assert simulator.counts()["nvmlDeviceGetCount_v2"] == 70_000
    calls = simulator.calls()
    assert len(calls) >= 65_000
    assert calls[-1].function == "nvmlDeviceGetCount_v2"


def test_the_record_says_who_did_what_to_which_instance(node):
    simulator = node()

    def work():
        handle = client.mig_gpu()
        gi = client.create(handle, 9, (0, 4))
        ci = client.create_compute(gi, 0)
        nv.nvmlComputeInstanceDestroy(ci)
        client.code(client.create, handle, 0)
        nv.nvmlGpuInstanceDestroy(gi)
        return os.getpid()

    pid = simulator.call(work)
    assert [(c.pid, c.function, c.gpu, c.gi, c.ci, c.code, c.detail) for c in simulator.writes()] == [
        (pid, "nvmlDeviceSetMigMode", 0, None, None, "SUCCESS", "mode=1"),
        (pid, "nvmlDeviceCreateGpuInstanceWithPlacement", 0, 1, None, "SUCCESS", "profile=9 start=0 size=4"),
        (pid, "nvmlGpuInstanceCreateComputeInstance", 0, 1, 0, "SUCCESS", "profile=0"),
        (pid, "nvmlComputeInstanceDestroy", 0, 1, 0, "SUCCESS", ""),
        (pid, "nvmlDeviceCreateGpuInstance", 0, None, None, "INSUFFICIENT_RESOURCES", "profile=0"),
        (pid, "nvmlGpuInstanceDestroy", 0, 1, None, "SUCCESS", ""),
    ]
    assert len(simulator.writes(ok=True)) == 5
    assert simulator.calls()[0].started <= time.time()
    simulator.calls(reset=True)
    assert simulator.calls() == []
    assert simulator.counts() == {}


def test_watching_a_node_is_not_recorded(node):
    simulator = node()
    simulator.describe()
    simulator.show()
    assert simulator.calls() == []


def test_a_read_costs_microseconds(node):
    def ask():
        handle = client.gpu()
        for _ in range(2000):
            nv.nvmlDeviceGetMigMode(handle)

    simulator = node()
    simulator.call(ask)
    seconds = sorted(call.seconds for call in simulator.calls() if call.function == "nvmlDeviceGetMigMode")
    assert seconds[len(seconds) // 2] < 100e-6


# ---- privileges ----------------------------------------------------------------------------------------------------


@pytest.fixture
def open_node():
    """A node in a folder that everybody may enter."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)

        def make(gpus="1xa100-sxm4-40gb", **options):
            return Simulator.create(os.path.join(folder, "node"), gpus, **options)

        yield make


def privileged_calls():
    handle = client.gpu()
    count, array = ctypes.c_uint(), (nv.c_nvmlGpuInstance_t * 16)()
    gi = nv.nvmlDeviceGetGpuInstanceById(handle, 1)
    ci = nv.nvmlGpuInstanceGetComputeInstanceById(gi, 0)
    return {
        "set mode": client.code(nv.nvmlDeviceSetMigMode, handle, 0),
        "create": client.code(client.create, handle, 19),
        "create at": client.code(client.create, handle, 19, (4, 1)),
        "destroy": client.code(nv.nvmlGpuInstanceDestroy, gi),
        "capacity": client.code(nv.nvmlDeviceGetGpuInstanceRemainingCapacity, handle, 19),
        "list": client.code(nv.nvmlDeviceGetGpuInstances, handle, 9, array, ctypes.byref(count)),
        "create ci": client.code(client.create_compute, gi, 0),
        "destroy ci": client.code(nv.nvmlComputeInstanceDestroy, ci),
        "ci capacity": client.code(nv.nvmlGpuInstanceGetComputeInstanceRemainingCapacity, gi, 0),
        "persistence": client.code(nv.nvmlDeviceSetPersistenceMode, handle, 1),
        "processes": client.code(nv.nvmlDeviceGetComputeRunningProcesses, handle),
        "memory": client.code(nv.nvmlDeviceGetMemoryInfo, handle),
        "placements": client.code(client.placements, handle, 9),
    }


def open_calls():
    handle = client.gpu()
    device = client.mig_devices(handle)[0]
    return {
        "mode": client.code(nv.nvmlDeviceGetMigMode, handle),
        "profile": client.code(nv.nvmlDeviceGetGpuInstanceProfileInfo, handle, 0),
        "by id": client.code(nv.nvmlDeviceGetGpuInstanceById, handle, 1),
        "uuid": client.code(nv.nvmlDeviceGetUUID, device),
        "attributes": client.code(nv.nvmlDeviceGetAttributes, device),
        "device memory": client.code(nv.nvmlDeviceGetMemoryInfo, device),
    }


def one_device():
    client.create_device(client.mig_gpu(), "3g", (0, 4))


def test_another_user_changes_nothing_and_lists_little(open_node):
    if os.geteuid() != 0:
        return  # only root can become somebody else; the next test does without
    simulator = open_node(privileged="root")
    simulator.call(one_device)
    before = simulator.layouts()
    assert set(simulator.call(privileged_calls, uid=NOBODY).values()) == {"NO_PERMISSION"}
    assert set(simulator.call(open_calls, uid=NOBODY).values()) == {"SUCCESS"}
    assert simulator.layouts() == before
    assert simulator.call(client.mode) == [1, 1]


def test_nobody_can_be_privileged_without_a_second_user(node):
    simulator = node()
    simulator.call(one_device)
    assert "NO_PERMISSION" not in simulator.call(privileged_calls).values()
    refusing = node(privileged="nobody")
    assert refusing.call(lambda: client.code(nv.nvmlDeviceSetMigMode, client.gpu(), 1)) == "NO_PERMISSION"
    assert refusing.call(client.mode) == [0, 0]


def test_whether_listing_placements_needs_root_is_an_assumption(node):
    for assume, expected in (({}, "NO_PERMISSION"), ({"placements_need_root": "no"}, "SUCCESS")):
        simulator = node(privileged="nobody", assume=assume)
        assert simulator.call(lambda: client.code(client.placements, client.gpu(), 9)) == expected


def test_outside_mig_mode_everybody_may_read_processes_and_memory(node):
    def read():
        handle = client.gpu()
        return client.code(nv.nvmlDeviceGetComputeRunningProcesses, handle), client.code(
            nv.nvmlDeviceGetMemoryInfo, handle
        )

    assert node(privileged="nobody").call(read) == ("SUCCESS", "SUCCESS")
