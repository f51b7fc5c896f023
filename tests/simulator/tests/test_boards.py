# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Every board: what NVML says about it is what its data say, and the data make sense."""

from __future__ import annotations

import math

import nvml_client as client
import pynvml as nv
import pytest

from nvmlsim import SimulatorError, load_boards, load_systems

BOARDS = load_boards()
SIMULATED = [board for board in BOARDS.values() if not board.not_simulated]
CAPABLE = [board for board in SIMULATED if board.mig_capable]


def by_key(board):
    return board.key


def test_all_known_boards_are_there():
    assert len(BOARDS) == 41
    assert [board.key for board in BOARDS.values() if board.not_simulated] == ["thor-igpu"]
    assert {board.confidence for board in BOARDS.values()} == {"high", "medium", "low"}


@pytest.mark.parametrize("board", SIMULATED, ids=by_key)
def test_identity_of_a_board(node, board):
    simulator = node(f"1x{board.key}")

    def read():
        handle = client.gpu()
        pci = nv.nvmlDeviceGetPciInfo(handle)
        return (
            nv.nvmlDeviceGetName(handle),
            nv.nvmlDeviceGetMemoryInfo(handle).total >> 20,
            nv.nvmlDeviceGetCudaComputeCapability(handle),
            pci.pciDeviceId,
            pci.pciSubSystemId,
            pci.busId,
        )

    name, memory, capability, device, subsystem, bus = simulator.call(read)
    assert name == board.name
    assert memory == board.memory_mib
    assert capability == tuple(int(part) for part in board.compute_capability.split("."))
    assert device == board.device_ids[0]
    assert subsystem == (board.subsystem_ids[0] if board.subsystem_ids else 0)
    assert bus == "00000000:07:00.0"


@pytest.mark.parametrize("board", CAPABLE, ids=by_key)
def test_profiles_of_a_board(node, board):
    simulator = node(f"1x{board.key}", assume={"a30_counts": "right"})

    def read():
        handle = client.mig_gpu()
        rows = []
        for found in client.profiles(handle):
            engines = (
                found.copyEngineCount,
                found.decoderCount,
                found.encoderCount,
                found.jpegCount,
                found.ofaCount,
            )
            rows.append(
                (
                    found.name,
                    found.id,
                    found.sliceCount,
                    found.instanceCount,
                    found.multiprocessorCount,
                    engines,
                    found.memorySizeMB,
                    tuple(client.placements(handle, found.id)),
                )
            )
        return rows

    expected = [
        (
            f"MIG {profile.name}",
            profile.id,
            profile.slices,
            profile.count,
            profile.multiprocessors,
            tuple(profile.engines),
            profile.memory_mib,
            profile.placements,
        )
        for profile in sorted(board.profiles, key=lambda profile: profile.enum)
    ]
    assert simulator.call(read) == expected


@pytest.mark.parametrize("board", CAPABLE, ids=by_key)
def test_compute_profiles_of_a_board(node, board):
    simulator = node(f"1x{board.key}")

    def read():
        handle = client.mig_gpu()
        rows = {}
        for found in client.profiles(handle):
            gi = client.create(handle, found.id)
            rows[found.id] = [
                (
                    each.name,
                    each.id,
                    each.sliceCount,
                    each.instanceCount,
                    each.multiprocessorCount,
                    (
                        each.sharedCopyEngineCount,
                        each.sharedDecoderCount,
                        each.sharedEncoderCount,
                        each.sharedJpegCount,
                        each.sharedOfaCount,
                    ),
                    tuple(client.compute_placements(gi, each.id)),
                )
                for each in client.compute_profiles(gi)
            ]
            nv.nvmlGpuInstanceDestroy(gi)
        return rows

    expected = {
        profile.id: [
            (f"MIG {c.name}", c.id, c.slices, c.count, c.multiprocessors, tuple(c.engines), c.placements)
            for c in sorted(profile.compute, key=lambda c: c.enum)
        ]
        for profile in board.profiles
    }
    assert simulator.call(read) == expected


@pytest.mark.parametrize("board", CAPABLE, ids=by_key)
def test_as_many_instances_as_a_profile_says_fit_an_empty_gpu(node, board):
    simulator = node(f"1x{board.key}")

    def fill():
        handle = client.mig_gpu()
        made = {}
        for found in client.profiles(handle):
            assert client.placements(handle, found.id)
            capacity = nv.nvmlDeviceGetGpuInstanceRemainingCapacity(handle, found.id)
            instances = []
            while (
                client.code(lambda found=found, instances=instances: instances.append(client.create(handle, found.id)))
                == "SUCCESS"
            ):
                pass
            assert capacity == len(instances)
            assert nv.nvmlDeviceGetGpuInstanceRemainingCapacity(handle, found.id) == 0
            for gi in instances:
                nv.nvmlGpuInstanceDestroy(gi)
            made[found.id] = len(instances)
        return made

    assert simulator.call(fill) == {profile.id: profile.count for profile in board.profiles}


@pytest.mark.parametrize("board", CAPABLE, ids=by_key)
def test_data_of_a_board_are_consistent(board):
    assert len({profile.id for profile in board.profiles}) == len(board.profiles)
    assert len({profile.enum for profile in board.profiles}) == len(board.profiles)
    for profile in board.profiles:
        for start, size in profile.placements:
            assert start % size == 0
            assert start + size <= board.grid
        assert profile.default_ci in {compute.id for compute in profile.compute}
        assert profile.memory_mib * len(profile.placements) <= board.memory_mib * 8 / 7
        for compute in profile.compute:
            assert 0 < compute.multiprocessors <= profile.multiprocessors


@pytest.mark.parametrize("board", CAPABLE, ids=by_key)
def test_clients_that_compute_the_name_from_the_memory_get_the_same(board):
    """mig-parted and the device plugin do: eighths of the memory, rounded up, times the board's gigabytes."""
    for profile in board.profiles:
        eighths = math.ceil(8 * profile.memory_mib / board.memory_mib)
        gb = math.floor(eighths / 8 * math.ceil(board.memory_mib / 1024) + 0.5)
        assert f".{gb}gb" in profile.name


@pytest.mark.parametrize("board", [b for b in SIMULATED if not b.mig_capable], ids=by_key)
def test_a_board_without_mig_says_so(node, board):
    simulator = node(f"1x{board.key}")

    def ask():
        handle = client.gpu()
        return (
            client.code(nv.nvmlDeviceGetMigMode, handle),
            client.code(nv.nvmlDeviceSetMigMode, handle, 1),
            client.code(nv.nvmlDeviceGetGpuInstanceProfileInfo, handle, 0),
            nv.nvmlDeviceGetMaxMigDeviceCount(handle),
        )

    assert simulator.call(ask) == ("NOT_SUPPORTED", "NOT_SUPPORTED", "NOT_SUPPORTED", 0)


def test_the_a30_reports_counts_that_are_not_what_fits(node):
    def counts():
        handle = client.mig_gpu()
        return {found.name[4:]: found.instanceCount for found in client.profiles(handle)}

    assert node("1xa30-24gb").call(counts) == {"1g.6gb": 7, "1g.6gb+me": 1, "2g.12gb": 3, "2g.12gb+me": 1, "4g.24gb": 1}
    right = node("1xa30-24gb", assume={"a30_counts": "right"}).call(counts)
    assert right == {"1g.6gb": 4, "1g.6gb+me": 1, "2g.12gb": 2, "2g.12gb+me": 1, "4g.24gb": 1}


@pytest.mark.parametrize("driver", ["580", "615"])
def test_the_profile_enum_that_breaks_other_clients_is_not_offered(node, driver):
    """3g+gfx (0x11): clients that do not know it give up on the whole GPU."""

    def ask():
        return [
            client.code(nv.nvmlDeviceGetGpuInstanceProfileInfo, client.mig_gpu(i), 0x11) for i in range(len(chosen))
        ]

    chosen = [board for board in CAPABLE if board.confidence != "low"]
    gpus = ",".join(f"1x{board.key}" for board in chosen)
    assert "SUCCESS" not in node(gpus, driver=driver).call(ask)


def test_a_profile_can_have_the_name_that_another_driver_gives_it(node):
    simulator = node("1xh100-sxm5-80gb", rename={"3g.40gb": "3g.39gb"})

    def names():
        handle = client.mig_gpu()
        gi = client.create(handle, 9)
        found = nv.nvmlDeviceGetGpuInstanceProfileInfo(handle, 2).name
        return found, [each.name for each in client.compute_profiles(gi)]

    assert simulator.call(names) == ("MIG 3g.39gb", ["MIG 1c.3g.39gb", "MIG 2c.3g.39gb", "MIG 3g.39gb"])


@pytest.mark.parametrize("name", load_systems())
def test_a_system_has_its_gpus_in_the_order_of_their_pci_addresses(node, name):
    gpus = node(name).describe()["gpus"]
    assert [gpu["key"] for gpu in gpus] == list(load_systems()[name].gpus)
    assert [gpu["pci"] for gpu in gpus] == sorted(gpu["pci"] for gpu in gpus)


def test_the_display_gpu_of_a_dgx_station_is_number_three(node):
    def names():
        nv.nvmlInit()
        return [nv.nvmlDeviceGetName(nv.nvmlDeviceGetHandleByIndex(i)) for i in range(nv.nvmlDeviceGetCount())]

    assert node("dgx-station-a100-320g").call(names)[3] == "NVIDIA DGX Display"


def test_eight_gpus_have_the_pci_addresses_of_a_dgx_a100(node):
    pci = [gpu["pci"][9:] for gpu in node("dgx-a100").describe()["gpus"]]
    assert pci == ["07:00.0", "0F:00.0", "47:00.0", "4E:00.0", "87:00.0", "90:00.0", "B7:00.0", "BD:00.0"]


@pytest.mark.parametrize(
    ("gpus", "driver", "message"),
    [
        ("thor-igpu", "580", "is not simulated"),
        ("a100", "580", "no board 'a100' is known"),
        ("33xa30-24gb", "580", "1 to 32"),
        ("b200-180gb", "535", "b200-180gb needs driver 570.133.20 or newer"),
        ("a30-24gb", "515.65.01", "too old to simulate"),
        ("a30-24gb", "five", "is not of the form"),
    ],
)
def test_a_node_that_cannot_be_is_refused_by_name(node, gpus, driver, message):
    with pytest.raises(SimulatorError, match=message):
        node(gpus, driver=driver)
