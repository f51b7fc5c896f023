# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a node is read as: everything the driver says, nothing guessed, and few calls."""

from __future__ import annotations

import os
import signal

import pytest

from ansible_collections.gpufleet.mig.plugins.module_utils.engine import driver
from ansible_collections.gpufleet.mig.plugins.module_utils.engine.model import Engines, Placement
from ansible_collections.gpufleet.mig.tests.engine.helpers import NOBODY, all_compute, places
from nvmlsim import load_boards

BOARDS = load_boards()
MIG_BOARDS = sorted(key for key, board in BOARDS.items() if board.mig_capable and not board.not_simulated)
PLAIN_BOARDS = sorted(key for key, board in BOARDS.items() if not board.mig_capable and not board.not_simulated)


def test_a_node_is_read_with_its_versions_and_the_identity_of_every_gpu(make_node):
    node = make_node("2xa100-sxm4-40gb,1xh100-sxm5-80gb,1xtesla-t4")
    read = node.read()
    simulated = node.simulator.describe()

    assert read.driver_version == simulated["driver"]
    assert read.nvml_version == simulated["nvml"]
    assert read.cuda_version.split(".")[0].isdigit()
    assert [gpu.index for gpu in read.gpus] == [0, 1, 2, 3]
    assert not any(gpu.problems for gpu in read.gpus)
    for gpu, truth in zip(read.gpus, simulated["gpus"]):
        board = BOARDS[truth["key"]]
        assert (gpu.uuid, gpu.pci_bus_id, gpu.name) == (truth["uuid"], truth["pci"].upper(), board.name)
        assert gpu.pci_device_id == board.device_ids[0]
        assert (gpu.memory_mib, gpu.minor) == (board.memory_mib, truth["minor"])
        assert (gpu.architecture, gpu.compute_capability) == (board.architecture, board.compute_capability)
        assert (gpu.virtualization, gpu.persistence) == ("none", True)
        assert gpu.mig_capable is board.mig_capable


@pytest.mark.parametrize("key", MIG_BOARDS)
def test_the_profiles_of_a_board_are_the_drivers_with_names_ids_engines_and_places(make_node, key):
    gpu = make_node(f"1x{key}").read().gpus[0]

    assert gpu.problems == ()
    assert gpu.profiles is not None
    assert [(p.enum, p.id, p.name, p.slices, p.memory_mib, p.placements) for p in gpu.profiles] == [
        (p.enum, p.id, p.name, p.slices, p.memory_mib, tuple(Placement(*place) for place in p.placements))
        for p in sorted(BOARDS[key].profiles, key=lambda profile: profile.enum)
    ]
    for profile in gpu.profiles:
        spelled = f"{profile.slices}g.{profile.gb}gb{''.join(profile.attributes)}"
        assert spelled == profile.name
        truth = next(p for p in BOARDS[key].profiles if p.enum == profile.enum)
        assert profile.engines == Engines(*truth.engines)
        assert profile.compute is None


@pytest.mark.parametrize("key", PLAIN_BOARDS)
def test_a_gpu_without_mig_is_read_whole_and_is_known_not_to_have_it(make_node, key):
    gpu = make_node(f"1x{key}").read().gpus[0]

    assert gpu.mig_capable is False
    assert (gpu.mode_current, gpu.mode_pending) == (None, None)
    assert gpu.profiles == ()
    assert gpu.problems == ()


LAYOUTS = [
    ("a100-sxm4-40gb", [("2g.10gb", 0, [(0, 2)]), ("1g.5gb", 2, [(0, 1)]), ("3g.20gb", 4, [(0, 1), (1, 2)])]),
    ("a100-sxm4-40gb", [("7g.40gb", 0, [(start, 1) for start in range(7)])]),
    ("a100-sxm4-40gb", [("1g.10gb", 6, [(0, 1)]), ("4g.20gb", 0, [(0, 2)])]),
    ("a30-24gb", [("2g.12gb", 0, [(0, 1), (1, 1)]), ("1g.6gb", 3, [(0, 1)])]),
    ("h100-sxm5-80gb", [("4g.40gb", 0, [(0, 2), (2, 1), (3, 1)]), ("3g.40gb", 4, [(0, 3)])]),
    ("rtx-pro-6000-server", [("2g.48gb", 0, [(0, 2)]), ("1g.24gb+gfx", 6, [(0, 1)])]),
]


@pytest.mark.parametrize(("key", "layout"), LAYOUTS)
@pytest.mark.parametrize("chips", ["N", "S"])
def test_instances_are_read_as_they_are_with_ids_uuids_and_mig_indexes(make_node, key, layout, chips):
    node = make_node(f"1x{key}", chips=chips)
    node.enable(0)
    node.create(0, layout)
    gpu = node.read().gpus[0]

    assert sorted(places(gpu)) == sorted((name, start, list(compute)) for name, start, compute in layout)
    truth = node.simulator.describe()["gpus"][0]
    assert sorted(gi.id for gi in gpu.instances) == sorted(gi["id"] for gi in truth["instances"])
    devices = {(gi["id"], ci["id"]): (ci["uuid"], ci["mig_index"]) for gi in truth["instances"] for ci in gi["compute"]}
    assert {(gi.id, ci.id): (ci.uuid, ci.mig_index) for gi, ci in all_compute(gpu)} == devices
    for gi, ci in all_compute(gpu):
        assert ci.name == (gi.profile.name if ci.slices == gi.profile.slices else f"{ci.slices}c.{gi.profile.name}")


@pytest.mark.parametrize(("plain_too", "variants"), [("yes", ["", "rev1"]), ("no", ["rev1"])])
def test_the_double_memory_slice_of_hopper_is_one_whole_compute_instance(make_node, plain_too, variants):
    # Whether real drivers offer the plain CI beside the wide one is not known.
    node = make_node("1xh100-sxm5-80gb", assume={"double_memory_plain_ci": plain_too})
    node.enable(0)
    node.create(0, [("1g.20gb", 2, [(0, 1)])])
    (instance,) = node.read().gpus[0].instances

    assert [(ci.slices, ci.variant, ci.name) for ci in instance.compute] == [(1, "", "1g.20gb")]
    assert [profile.variant for profile in instance.profile.compute] == variants


def test_mig_devices_are_found_too_where_a_compute_instance_names_its_parent_as_device(make_node):
    node = make_node("2xa100-sxm4-40gb")
    for gpu in (0, 1):
        node.enable(gpu)
        node.create(gpu, [("3g.20gb", 4, [(0, 1), (1, 2)]), ("1g.5gb", 0, [(0, 1)]), ("1g.5gb", 1, [])])
    as_real_drivers_do = node.read()

    def read_as_the_header_says():
        with driver.Session() as session:
            binding = session._nvml
            ask = binding.nvmlComputeInstanceGetInfo_v2

            def with_parent(ci):
                info = ask(ci)
                info.device = binding.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(info.device)
                return info

            binding.nvmlComputeInstanceGetInfo_v2 = with_parent
            return session.read_node()

    assert node.call(read_as_the_header_says) == as_real_drivers_do


def test_a_gpu_instance_without_compute_instance_is_seen(make_node):
    node = make_node()
    node.enable(0)
    node.create(0, [("3g.20gb", 4, []), ("1g.5gb", 0, [(0, 1)])])

    assert places(node.read().gpus[0]) == [("1g.5gb", 0, [(0, 1)]), ("3g.20gb", 4, [])]


def test_compute_instances_are_found_behind_a_hole_in_their_ids(make_node):
    node = make_node()
    node.enable(0)
    node.create(0, [("7g.40gb", 0, [(0, 1), (1, 1), (2, 1)])])
    node.in_session(lambda session: session.destroy_compute_instance(0, 0, 1))

    (instance,) = node.read().gpus[0].instances
    assert [(ci.id, ci.placement) for ci in instance.compute] == [(0, Placement(0, 1)), (2, Placement(2, 1))]


def test_the_drivers_compute_profiles_come_with_the_gpu_instances_that_offer_them(make_node):
    node = make_node()
    node.enable(0)
    node.create(0, [("3g.20gb", 4, [(0, 3)])])
    gpu = node.read().gpus[0]

    by_name = {profile.name: profile for profile in gpu.profiles}
    assert by_name["1g.5gb"].compute is None
    offered = by_name["3g.20gb"].compute
    assert [(p.slices, p.id, p.multiprocessors) for p in offered] == [(1, 0, 14), (2, 1, 28), (3, 2, 42)]
    assert offered[0].placements == (Placement(0, 1), Placement(1, 1), Placement(2, 1))


# --- processes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["compute", "graphics"])
def test_a_process_is_found_in_its_instance_with_name_and_memory(make_node, kind):
    node = make_node("2xa100-sxm4-40gb")
    node.enable(1)
    node.create(1, [("1g.5gb", 0, [(0, 1)]), ("1g.5gb", 3, [(0, 1)])])
    busy = node.read().gpus[1].instances[1]
    with node.simulator.occupy(gpu=1, gi=busy.id, ci=0, kind=kind, memory_mib=100) as holder:
        gpu = node.read().gpus[1]
        name = driver.process_name(holder.pid)

    assert [[len(ci.processes) for ci in gi.compute] for gi in gpu.instances] == [[0], [1]]
    (process,) = gpu.instances[1].compute[0].processes
    assert (process.pid, process.kind, process.used_mib) == (holder.pid, kind, 100)
    assert process.name == name != ""
    assert gpu.processes == ()


def test_a_process_on_a_gpu_without_mig_holds_the_gpu(make_node):
    node = make_node("2xa100-sxm4-40gb")
    with node.simulator.occupy(gpu=1) as holder:
        first, second = node.read().gpus

    assert first.processes == ()
    assert [process.pid for process in second.processes] == [holder.pid]


def test_names_of_processes_are_safe_to_print():
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        with open("/proc/self/comm", "wb") as comm:
            comm.write(b"a\x1b[31m\xffb")
        os.write(writer, b".")
        signal.pause()
    os.read(reader, 1)
    try:
        name = driver.process_name(child)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reader)
        os.close(writer)
    assert name.startswith("a?[31m")
    assert name.isprintable()


def test_a_process_that_is_not_visible_from_here_has_no_name():
    assert driver.process_name(2**22 + 1) == ""


# --- what does not answer --------------------------------------------------------------------------------------------


def test_a_lost_gpu_does_not_hide_the_others(make_node):
    node = make_node("3xa100-sxm4-40gb")
    node.simulator.fault("nvmlDeviceGetHandleByIndex_v2", code="GPU_IS_LOST", gpu=1)
    gpus = node.read().gpus

    assert [bool(gpu.problems) for gpu in gpus] == [False, True, False]
    assert gpus[1].mig_capable is None
    assert gpus[1].profiles is None
    (problem,) = gpus[1].problems
    assert (problem.call, problem.error) == ("nvmlDeviceGetHandleByIndex", "GPU_IS_LOST")
    assert "Xid 79" in problem.remedy


def test_a_gpu_lost_while_it_is_read_keeps_what_was_read_and_is_not_asked_again(make_node):
    node = make_node("2xa100-sxm4-40gb")
    node.simulator.fault("nvmlDeviceGetMigMode", code="GPU_IS_LOST", gpu=0)
    lost, other = node.read().gpus

    assert lost.name == "NVIDIA A100-SXM4-40GB"
    assert lost.mig_capable is None
    assert [problem.error for problem in lost.problems] == ["GPU_IS_LOST"]
    assert other.problems == ()


@pytest.mark.parametrize(
    ("function", "missing"),
    [
        ("nvmlDeviceGetMemoryInfo", "memory_mib"),
        ("nvmlDeviceGetMigMode", "mig_capable"),
        ("nvmlDeviceGetUUID", "uuid"),
        ("nvmlDeviceGetName", "name"),
    ],
)
def test_a_fact_that_cannot_be_read_is_a_problem_and_the_rest_is_read(make_node, function, missing):
    node = make_node()
    node.simulator.fault(function, code="UNKNOWN")
    gpu = node.read().gpus[0]

    assert not getattr(gpu, missing)
    assert [(problem.call, problem.error) for problem in gpu.problems] == [(function, "UNKNOWN")]
    assert gpu.pci_bus_id != ""


@pytest.mark.parametrize(
    ("function", "fact", "unknown"),
    [
        ("nvmlDeviceGetPersistenceMode", "persistence", None),
        ("nvmlDeviceGetMinorNumber", "minor", None),
        ("nvmlDeviceGetVirtualizationMode", "virtualization", ""),
        ("nvmlDeviceGetArchitecture", "architecture", ""),
    ],
)
def test_an_optional_fact_that_the_driver_does_not_offer_is_unknown_and_no_problem(make_node, function, fact, unknown):
    node = make_node()
    node.simulator.fault(function, code="NOT_SUPPORTED")
    gpu = node.read().gpus[0]

    assert getattr(gpu, fact) == unknown
    assert gpu.problems == ()


@pytest.mark.parametrize("mode", ["none", "passthrough", "vgpu", "host-vgpu", "host-vsga"])
def test_the_virtualization_of_a_gpu_is_told(make_node, mode):
    assert make_node(virtualization=mode).read().gpus[0].virtualization == mode


NEEDS_PRIVILEGE = [
    "nvmlDeviceGetGpuInstances",
    "nvmlDeviceGetGpuInstancePossiblePlacements",
    "nvmlGpuInstanceGetComputeInstancePossiblePlacements",
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetGraphicsRunningProcesses",
    "nvmlDeviceGetMPSComputeRunningProcesses",
    "nvmlDeviceGetMemoryInfo",
]


def test_without_privilege_instances_are_found_one_by_one_and_the_gaps_are_named(make_node):
    node = make_node()
    node.enable(0)
    node.create(0, [("3g.20gb", 4, [(0, 1)]), ("1g.5gb", 0, [(0, 1)])])
    for function in NEEDS_PRIVILEGE:
        node.simulator.fault(function, code="NO_PERMISSION")
    gpu = node.read().gpus[0]

    assert places(gpu) == [("1g.5gb", 0, [(0, 1)]), ("3g.20gb", 4, [(0, 1)])]
    assert all(ci.uuid for gi, ci in all_compute(gpu))
    assert {problem.error for problem in gpu.problems} == {"NO_PERMISSION"}
    assert {problem.call.replace("_v3", "") for problem in gpu.problems} == {
        function for function in NEEDS_PRIVILEGE if not function.startswith("nvmlGpuInstanceGet")
    }
    assert all("root" in problem.remedy for problem in gpu.problems)


def test_a_user_without_privilege_reads_a_node_as_far_as_it_goes(make_shared_node):
    node = make_shared_node("1xa100-sxm4-40gb,1xtesla-t4")
    first, second = node.read(**NOBODY).gpus

    assert [profile.name for profile in first.profiles][0] == "1g.5gb"
    assert {(problem.call, problem.error) for problem in first.problems} == {
        ("nvmlDeviceGetGpuInstancePossiblePlacements", "NO_PERMISSION")
    }
    assert second.problems == ()


# --- drivers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["525.147.05", "535.183.01"])
def test_an_older_driver_lists_no_profiles_while_mig_is_off(make_node, version):
    node = make_node(driver=version)
    gpu = node.read().gpus[0]

    assert gpu.mig_capable is True
    assert gpu.profiles is None
    assert gpu.problems == ()
    node.enable(0)
    assert "1g.5gb" in [profile.name for profile in node.read().gpus[0].profiles]


@pytest.mark.parametrize("version", ["525.147.05", "535.183.01", "550.127.05", "580.95.05", "610.43.02"])
def test_a_layout_reads_alike_on_every_driver(make_node, version):
    node = make_node("1xa100-sxm4-40gb,1xa30-24gb", driver=version)
    node.enable(0, 1)
    node.create(0, [("3g.20gb", 4, [(0, 1), (1, 1)]), ("2g.10gb", 0, [(0, 2)])])
    node.create(1, [("1g.6gb", 3, [(0, 1)])])
    first, second = node.read().gpus

    assert places(first) == [("2g.10gb", 0, [(0, 2)]), ("3g.20gb", 4, [(0, 1), (1, 1)])]
    assert places(second) == [("1g.6gb", 3, [(0, 1)])]
    assert first.problems == second.problems == ()


@pytest.mark.parametrize("code", ["FUNCTION_NOT_FOUND", "ARGUMENT_VERSION_MISMATCH", "INVALID_ARGUMENT"])
@pytest.mark.parametrize("key", ["a100-sxm4-40gb", "a30-24gb", "h100-sxm5-80gb", "rtx-pro-6000-server"])
def test_names_are_computed_where_the_driver_has_no_struct_with_a_name(make_node, key, code):
    node = make_node(f"1x{key}")
    named = node.read().gpus[0].profiles
    node.simulator.fault("nvmlDeviceGetGpuInstanceProfileInfoV", code=code)

    assert node.read().gpus[0].profiles == named


def test_places_of_compute_instances_stay_unknown_where_the_driver_does_not_list_them(make_node):
    node = make_node()
    node.enable(0)
    node.create(0, [("3g.20gb", 4, [(0, 3)])])
    node.simulator.fault("nvmlGpuInstanceGetComputeInstancePossiblePlacements", code="FUNCTION_NOT_FOUND")
    gpu = node.read().gpus[0]

    assert gpu.problems == ()
    assert [profile.placements for profile in gpu.instances[0].profile.compute] == [(), (), ()]


@pytest.mark.parametrize("bound", [False, True])
def test_the_walk_over_profiles_ends_with_what_the_driver_knows(make_node, bound):
    node = make_node()
    if bound:
        # A driver that calls every unknown enum unsupported must not be asked for ever.
        node.simulator.fault("nvmlDeviceGetGpuInstanceProfileInfoV", code="NOT_SUPPORTED")
    node.simulator.reset_calls()
    gpu = node.read().gpus[0]

    assert (gpu.profiles is None) is bound
    assert node.simulator.counts()["nvmlDeviceGetGpuInstanceProfileInfoV"] <= 64


# --- cost ------------------------------------------------------------------------------------------------------------


def dgx_with_56_devices(make_node):
    node = make_node("8xa100-sxm4-40gb")
    node.enable(*range(8))
    for gpu in range(8):
        node.create(gpu, [("1g.5gb", start, [(0, 1)]) for start in range(7)])
    node.simulator.reset_calls()
    return node


def test_reading_a_full_dgx_a100_takes_few_calls_and_no_write(make_node):
    node = dgx_with_56_devices(make_node)
    read = node.read()

    assert sum(len(all_compute(gpu)) for gpu in read.gpus) == 56
    assert node.simulator.writes() == []
    assert sum(node.simulator.counts().values()) <= 616


def test_a_reader_that_needs_no_places_does_not_ask_for_them(make_node):
    node = dgx_with_56_devices(make_node)
    read = node.in_session(lambda session: session.read_node(placements=False))

    assert sum(len(all_compute(gpu)) for gpu in read.gpus) == 56
    assert "nvmlDeviceGetGpuInstancePossiblePlacements_v2" not in node.simulator.counts()
