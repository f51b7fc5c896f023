# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Compute instances: profiles, places, what differs between Ampere and later."""

from __future__ import annotations

import nvml_client as client
import pynvml as nv
import pytest


def in_gi(simulator, profile, work):
    """Run ``work`` with a new GPU instance of this profile id."""
    return simulator.call(lambda: work(client.create(client.mig_gpu(), profile)))


def test_ids_are_the_lowest_free_number(node):
    def work(gi):
        made = [client.create_compute(gi, 0) for _ in range(3)]
        first = [client.compute_place(ci)[0] for ci in made]
        nv.nvmlComputeInstanceDestroy(made[1])
        return first, client.compute_place(client.create_compute(gi, 0))[0]

    assert in_gi(node(), 9, work) == ([0, 1, 2], 1)


def test_a_full_gpu_instance_refuses_more(node):
    def work(gi):
        client.create_compute(gi, 2)
        left = [nv.nvmlGpuInstanceGetComputeInstanceRemainingCapacity(gi, each) for each in (0, 1, 2)]
        return left, [client.code(client.create_compute, gi, each) for each in (0, 1, 2)]

    assert in_gi(node(), 9, work) == ([0, 0, 0], ["INSUFFICIENT_RESOURCES"] * 3)


@pytest.mark.parametrize(
    ("board", "gi", "ci", "name"),
    [
        ("a100-sxm4-40gb", 19, 0, "MIG 1g.5gb"),
        ("a100-sxm4-40gb", 15, 0, "MIG 1g.10gb"),
        ("a100-sxm4-40gb", 0, 4, "MIG 7g.40gb"),
        ("a100-sxm4-40gb", 9, 0, "MIG 1c.3g.20gb"),
        ("h100-sxm5-80gb", 15, 7, "MIG 1g.20gb"),
        ("h100-pcie-80gb", 15, 0, "MIG 1g.20gb"),
        ("rtx-pro-6000-server", 66, 1, "MIG 2g.48gb-me"),
    ],
)
def test_a_compute_instance_that_fills_its_gpu_instance_has_its_name(node, board, gi, ci, name):
    def work(instance):
        client.create_compute(instance, ci)
        device = client.mig_devices(nv.nvmlDeviceGetHandleByIndex(0))[0]
        profile = next(each for each in client.compute_profiles(instance) if each.id == ci)
        return profile.name, nv.nvmlDeviceGetName(device)

    profile_name, device_name = in_gi(node(f"1x{board}"), gi, work)
    assert profile_name == name
    assert device_name.endswith(name)


def test_a_double_memory_instance_of_hopper_is_placed_on_two_slices(node):
    def work(gi):
        return client.compute_placements(gi, 7), client.compute_place(client.create_compute(gi, 7))

    assert in_gi(node("1xh100-sxm5-80gb"), 15, work) == ([(0, 2)], (0, 0, 2))
    one = node("1xh100-sxm5-80gb", assume={"wide_ci_span": 1})
    assert in_gi(one, 15, work) == ([(0, 1)], (0, 0, 1))


@pytest.mark.parametrize(
    ("board", "plain", "wide"),
    [("h100-sxm5-80gb", 16, 26), ("h200-sxm-141gb", 16, 26), ("b200-180gb", 18, 30)],
)
@pytest.mark.parametrize("offered", ["yes", "no"])
def test_whether_a_double_memory_instance_also_has_a_plain_slice_is_an_assumption(node, board, plain, wide, offered):
    """mig-parted creates profile 0 there; the listings only show profile 7."""

    def work(gi):
        listed = [(each.id, each.sliceCount, each.multiprocessorCount) for each in client.compute_profiles(gi)]
        return listed, client.code(client.create_compute, gi, 0)

    simulator = node(f"1x{board}", assume={"double_memory_plain_ci": offered})
    if offered == "yes":
        assert in_gi(simulator, 15, work) == ([(0, 1, plain), (7, 1, wide)], "SUCCESS")
    else:
        listed, result = in_gi(simulator, 15, work)
        assert listed == [(7, 1, wide)]
        assert result in ("NOT_SUPPORTED", "INVALID_ARGUMENT")


def test_a_two_slice_instance_of_hopper_offers_a_wide_and_a_narrow_slice(node):
    def work(gi):
        return [
            (each.id, each.sliceCount, each.instanceCount, each.multiprocessorCount)
            for each in client.compute_profiles(gi)
        ]

    assert in_gi(node("1xh100-sxm5-80gb"), 14, work) == [(0, 1, 2, 16), (1, 2, 1, 32), (7, 1, 1, 26)]


@pytest.mark.parametrize(
    ("at", "ampere", "hopper"),
    [
        ((0, 2), "SUCCESS", "SUCCESS"),
        ((1, 2), "SUCCESS", "INVALID_ARGUMENT"),  # any window on Ampere, aligned ones later
        ((2, 2), "SUCCESS", "SUCCESS"),
        ((3, 2), "SUCCESS", "INVALID_ARGUMENT"),
        ((6, 2), "INVALID_ARGUMENT", "INVALID_ARGUMENT"),  # beyond the seven slices
        ((0, 3), "INVALID_ARGUMENT", "INVALID_ARGUMENT"),  # of another size
    ],
)
def test_placement_of_a_compute_instance(node, at, ampere, hopper):
    def work(gi):
        return client.code(client.create_compute, gi, 1, at)

    assert in_gi(node("1xa100-sxm4-40gb"), 0, work) == ampere
    assert in_gi(node("1xh100-sxm5-80gb"), 0, work) == hopper


def test_a_taken_span_is_refused(node):
    def work(gi):
        client.create_compute(gi, 1, (2, 2))
        return client.code(client.create_compute, gi, 0, (3, 1)), client.code(client.create_compute, gi, 0, (4, 1))

    assert in_gi(node("1xa100-sxm4-40gb"), 0, work)[0] in ("INSUFFICIENT_RESOURCES", "IN_USE")
    assert in_gi(node("1xh100-sxm5-80gb"), 0, work) == ("IN_USE", "SUCCESS")
    other = node("1xh100-sxm5-80gb", assume={"taken_ci_span": "INSUFFICIENT_RESOURCES"})
    assert in_gi(other, 0, work)[0] == "INSUFFICIENT_RESOURCES"


def test_three_slices_on_hopper_take_the_room_of_four(node):
    """Aligned in a binary tree: after 3 slices at 0, slice 3 stays empty."""

    def work(gi):
        client.create_compute(gi, 2, (0, 3))
        return client.code(client.create_compute, gi, 0, (3, 1)), client.code(client.create_compute, gi, 2, (4, 3))

    assert in_gi(node("1xh100-sxm5-80gb"), 0, work) == ("IN_USE", "SUCCESS")


def test_three_slices_on_ampere_take_three(node):
    def work(gi):
        client.create_compute(gi, 2, (0, 3))
        return client.code(client.create_compute, gi, 0, (3, 1)), client.code(client.create_compute, gi, 2, (4, 3))

    assert in_gi(node("1xa100-sxm4-40gb"), 0, work) == ("SUCCESS", "SUCCESS")


@pytest.mark.parametrize("board", ["a100-sxm4-40gb", "h100-sxm5-80gb"])
@pytest.mark.parametrize("widths", [[0] * 7, [1, 1, 1, 0], [2, 2], [3, 1, 0], [2, 1, 0], [4]], ids=str)
def test_different_compute_instances_share_a_gpu_instance(node, board, widths):
    def work(gi):
        places = [client.compute_place(client.create_compute(gi, each)) for each in widths]
        taken = [slice_ for _, start, size in places for slice_ in range(start, start + size)]
        assert len(taken) == len(set(taken))
        return [number for number, _, _ in places]

    assert in_gi(node(f"1x{board}"), 0, work) == list(range(len(widths)))


def test_destroying_a_gpu_instance_never_takes_its_compute_instances_along(node):
    def work(gi):
        ci = client.create_compute(gi, 2)
        refused = client.code(nv.nvmlGpuInstanceDestroy, gi)
        nv.nvmlComputeInstanceDestroy(ci)
        return refused, client.code(nv.nvmlGpuInstanceDestroy, gi)

    assert in_gi(node(), 9, work) == ("IN_USE", "SUCCESS")


def test_a_destroyed_compute_instance_is_an_invalid_argument(node):
    def work(gi):
        ci = client.create_compute(gi, 2)
        nv.nvmlComputeInstanceDestroy(ci)
        return client.code(nv.nvmlComputeInstanceDestroy, ci)

    assert in_gi(node(), 9, work) == "INVALID_ARGUMENT"


def test_the_only_engine_profile_is_shared(node):
    def work(gi):
        ask = nv.nvmlGpuInstanceGetComputeInstanceProfileInfo
        return (
            client.code(ask, gi, 0, 0),
            client.code(ask, gi, 0, 1),
            client.code(ask, gi, 3, 0),
            client.code(ask, gi, 99, 0),
        )

    assert in_gi(node(), 9, work) == ("SUCCESS", "INVALID_ARGUMENT", "NOT_SUPPORTED", "INVALID_ARGUMENT")


def test_a_compute_instance_leads_to_its_mig_device(node):
    def work(gi):
        info = nv.nvmlComputeInstanceGetInfo(client.create_compute(gi, 2))
        device = nv.nvmlDeviceGetMigDeviceHandleByIndex(nv.nvmlDeviceGetHandleByIndex(0), 0)
        return nv.nvmlDeviceGetUUID(info.device), nv.nvmlDeviceGetUUID(device)

    by_instance, by_index = in_gi(node(), 9, work)
    assert by_instance == by_index
    assert by_instance.startswith("MIG-")


def test_an_unknown_compute_instance_is_not_found(node):
    def work(gi):
        client.create_compute(gi, 2)
        found = nv.nvmlGpuInstanceGetComputeInstanceById(gi, 0)
        return client.compute_place(found), client.code(nv.nvmlGpuInstanceGetComputeInstanceById, gi, 1)

    assert in_gi(node(), 9, work) == ((0, 0, 3), "NOT_FOUND")
