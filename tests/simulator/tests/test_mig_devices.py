# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""MIG devices: their handles, order, UUIDs, and the memory that a session has of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import nvml_client as client
import pynvml as nv
import pytest


def balanced():
    """3g at 4 (GI 2), 2g at 0 (GI 3) with two CIs, 1g at 2 (GI 9) without CI, 1g at 3 (GI 10)."""
    handle = client.mig_gpu()
    client.create_device(handle, "3g")
    gi = client.create(handle, 14)
    client.create_compute(gi, 0)
    client.create_compute(gi, 0)
    client.create(handle, 19)
    client.create_device(handle, "1g")


def test_devices_are_in_the_order_of_their_ids_without_holes(node):
    simulator = node()
    simulator.call(balanced)

    def read():
        devices = client.mig_devices(client.gpu())
        return [
            (index, nv.nvmlDeviceGetGpuInstanceId(d), nv.nvmlDeviceGetComputeInstanceId(d), nv.nvmlDeviceGetIndex(d))
            for index, d in devices.items()
        ]

    assert simulator.call(read) == [(0, 2, 0, 0), (1, 3, 0, 1), (2, 3, 1, 2), (3, 10, 0, 3)]


def test_a_gpu_instance_without_compute_instance_is_no_device(node):
    def read():
        handle = client.mig_gpu()
        client.create(handle, 9)
        return client.mig_devices(handle), client.gpu_instances(handle)

    devices, instances = node().call(read)
    assert devices == {}
    assert instances == {2: (9, 4, 4)}


def test_an_index_without_device_and_one_that_no_gpu_can_have(node):
    def ask():
        balanced()
        handle = client.gpu()
        ask = nv.nvmlDeviceGetMigDeviceHandleByIndex
        return client.code(ask, handle, 5), client.code(ask, handle, 7), client.code(ask, handle, 99)

    assert node().call(ask) == ("NOT_FOUND", "INVALID_ARGUMENT", "INVALID_ARGUMENT")


def test_devices_are_not_counted_as_gpus(node):
    def count():
        balanced()
        return nv.nvmlDeviceGetCount()

    assert node("2xa100-sxm4-40gb").call(count) == 2


def test_a_handle_is_of_a_gpu_or_of_a_device(node):
    def ask():
        balanced()
        handle = client.gpu()
        device = client.mig_devices(handle)[0]
        parent = nv.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device)
        return {
            "is": (nv.nvmlDeviceIsMigDeviceHandle(handle).value, nv.nvmlDeviceIsMigDeviceHandle(device).value),
            "parent": nv.nvmlDeviceGetUUID(parent) == nv.nvmlDeviceGetUUID(handle),
            "of a gpu": [
                client.code(nv.nvmlDeviceGetGpuInstanceId, handle),
                client.code(nv.nvmlDeviceGetComputeInstanceId, handle),
                client.code(nv.nvmlDeviceGetDeviceHandleFromMigDeviceHandle, handle),
                client.code(nv.nvmlDeviceGetAttributes, handle),
            ],
        }

    found = node().call(ask)
    assert found["is"] == (0, 1)
    assert found["parent"]
    assert set(found["of a gpu"]) <= {"INVALID_ARGUMENT", "NOT_SUPPORTED"}


def test_names_and_sizes_of_devices(node):
    def read():
        balanced()
        handle = client.gpu()
        return [
            (
                nv.nvmlDeviceGetName(d),
                a.multiprocessorCount,
                a.sharedCopyEngineCount,
                a.gpuInstanceSliceCount,
                a.computeInstanceSliceCount,
                a.memorySizeMB,
            )
            for d in client.mig_devices(handle).values()
            for a in [nv.nvmlDeviceGetAttributes(d)]
        ]

    gpu = "NVIDIA A100-SXM4-40GB"
    assert node().call(read) == [
        (f"{gpu} MIG 3g.20gb", 42, 3, 3, 3, 20096),
        (f"{gpu} MIG 1c.2g.10gb", 14, 2, 2, 1, 9984),
        (f"{gpu} MIG 1c.2g.10gb", 14, 2, 2, 1, 9984),
        (f"{gpu} MIG 1g.5gb", 14, 1, 1, 1, 4864),
    ]


def test_equal_devices_have_equal_attributes(node):
    """The device plugin compares the whole struct."""

    def read():
        handle = client.mig_gpu()
        for _ in range(7):
            client.create_device(handle, "1g")
        return {bytes(nv.nvmlDeviceGetAttributes(d)) for d in client.mig_devices(handle).values()}

    assert len(node().call(read)) == 1


def test_memory_of_a_device_is_its_instance_s(node):
    def read():
        handle = client.mig_gpu()
        client.create_device(handle, "3g")
        return nv.nvmlDeviceGetMemoryInfo(client.mig_devices(handle)[0]).total >> 20

    assert node().call(read) == 20096


# ---- UUIDs ---------------------------------------------------------------------------------------------------------


def test_both_spellings_of_a_uuid_find_the_device(node):
    def find():
        balanced()
        handle = client.gpu()
        gpu = nv.nvmlDeviceGetUUID(handle)
        device = client.mig_devices(handle)[2]
        uuid = nv.nvmlDeviceGetUUID(device)
        found = [nv.nvmlDeviceGetHandleByUUID(text.encode()) for text in (uuid, f"MIG-{gpu}/3/1")]
        ids = [(nv.nvmlDeviceGetGpuInstanceId(d), nv.nvmlDeviceGetComputeInstanceId(d)) for d in found]
        missing = client.code(nv.nvmlDeviceGetHandleByUUID, f"MIG-{gpu}/3/2".encode())
        unknown = client.code(nv.nvmlDeviceGetHandleByUUID, b"MIG-00000000-0000-0000-0000-000000000000")
        return uuid, ids, missing, unknown

    uuid, ids, missing, unknown = node().call(find)
    assert uuid.startswith("MIG-")
    assert len(uuid) == 40
    assert ids == [(3, 1), (3, 1)]
    assert (missing, unknown) == ("NOT_FOUND", "NOT_FOUND")


def test_a_uuid_is_of_the_place_not_of_what_is_in_it(node):
    def same_place(profile):
        handle = client.gpu()
        gi = client.create(handle, 9, (4, 4))
        ci = client.create_compute(gi, profile)
        uuid = nv.nvmlDeviceGetUUID(nv.nvmlComputeInstanceGetInfo(ci).device)
        nv.nvmlComputeInstanceDestroy(ci)
        nv.nvmlGpuInstanceDestroy(gi)
        return uuid

    simulator = node()
    simulator.call(client.turn_on)
    whole, again, one_slice = (simulator.call(same_place, profile) for profile in (2, 2, 0))
    assert whole == again == one_slice


def test_places_gpus_and_nodes_have_different_uuids(node):
    def all_uuids():
        found = []
        for index in (0, 1):
            handle = client.mig_gpu(index)
            for _ in range(7):
                client.create_device(handle, "1g")
            found += [
                nv.nvmlDeviceGetUUID(handle),
                *(nv.nvmlDeviceGetUUID(d) for d in client.mig_devices(handle).values()),
            ]
        return found

    first = node("2xa100-sxm4-40gb").call(all_uuids)
    same = node("2xa100-sxm4-40gb").call(all_uuids)
    other = node("2xa100-sxm4-40gb", seed="another host").call(all_uuids)
    assert len(set(first)) == 16
    assert first == same
    assert not set(first) & set(other)


def test_the_state_shows_the_uuids_that_nvml_gives(node):
    simulator = node()
    simulator.call(balanced)
    shown = [
        (ci["mig_index"], ci["uuid"]) for gi in simulator.describe()["gpus"][0]["instances"] for ci in gi["compute"]
    ]
    assert [uuid for _, uuid in sorted(shown)] == simulator.call(client.mig_uuids)


# ---- a session remembers devices -----------------------------------------------------------------------------------

DESTROY_SECOND = """
import pynvml as nv
nv.nvmlInit()
gi = nv.nvmlDeviceGetGpuInstanceById(nv.nvmlDeviceGetHandleByIndex(0), 1)
nv.nvmlComputeInstanceDestroy(nv.nvmlGpuInstanceGetComputeInstanceById(gi, 0))
nv.nvmlGpuInstanceDestroy(gi)
"""


@pytest.mark.parametrize("fresh", [False, True], ids=["same session", "new session"])
def test_a_session_still_lists_devices_that_somebody_else_destroyed(node, fresh):
    simulator = node()

    def look():
        handle = client.mig_gpu()
        client.create_device(handle, "3g", (0, 4))
        client.create_device(handle, "3g", (4, 4))
        before = len(client.mig_devices(handle))
        subprocess.run([sys.executable, "-c", DESTROY_SECOND], check=True, env=simulator.env())
        if fresh:
            nv.nvmlShutdown()
            handle = client.gpu()
        return before, len(client.mig_devices(handle)), sorted(client.gpu_instances(handle))

    assert simulator.call(look) == (2, 1 if fresh else 2, [2])


@pytest.mark.parametrize(("assume", "listed"), [({}, 2), ({"own_destroys_stay_listed": "no"}, 1)])
def test_whether_a_session_forgets_what_it_destroyed_itself_is_an_assumption(node, assume, listed):
    def look():
        handle = client.mig_gpu()
        gi, ci = client.create_device(handle, "3g", (0, 4))
        client.create_device(handle, "3g", (4, 4))
        client.mig_devices(handle)
        nv.nvmlComputeInstanceDestroy(ci)
        nv.nvmlGpuInstanceDestroy(gi)
        return len(client.mig_devices(handle))

    assert node(assume=assume).call(look) == listed


def test_a_session_sees_devices_that_are_new(node):
    simulator = node()
    simulator.call(client.turn_on)
    create = DESTROY_SECOND.splitlines()[:3] + [
        "gi = nv.nvmlDeviceCreateGpuInstance(nv.nvmlDeviceGetHandleByIndex(0), 9)",
        "nv.nvmlGpuInstanceCreateComputeInstance(gi, 2)",
    ]

    def look():
        handle = client.gpu()
        before = len(client.mig_devices(handle))
        subprocess.run([sys.executable, "-c", "\n".join(create)], check=True, env=simulator.env())
        return before, len(client.mig_devices(handle))

    assert simulator.call(look) == (0, 1)


def test_the_handle_of_a_device_outlives_a_killed_neighbour(node):
    """Only the state file is shared: nothing of a process that dies stays locked."""
    simulator = node()
    simulator.call(balanced)

    def die():
        nv.nvmlInit()
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(Exception, match="killed by signal 9"):
        simulator.call(die)
    assert len(simulator.call(client.mig_uuids)) == 4
