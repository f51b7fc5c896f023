# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Where GPU instances go: the driver's choice, ids, conflicts, engine budgets."""

from __future__ import annotations

import ctypes
import itertools
import pathlib

import nvml_client as client
import pynvml as nv
import pytest
import yaml

from nvmlsim import load_boards

SEQUENCES = yaml.safe_load(pathlib.Path(__file__).with_name("slot_sequences.yaml").read_text(encoding="utf-8"))
BOARDS = load_boards()

# starts of a size in memory slices -> ids, on an eight-slice grid
NUMBERING = {
    "N": {1: [7, 8, 9, 10, 11, 12, 13], 2: [3, 4, 5, 6], 4: [1, 2], 8: [0]},
    "S": {1: [11, 12, 13, 14, 7, 8, 9], 2: [5, 6, 3, 4], 4: [2, 1], 8: [0]},
}
A100 = {"1g": 19, "1g+me": 20, "1g-double": 15, "2g": 14, "3g": 9, "4g": 5, "7g": 0}
RTX = {
    "1g": 14,
    "1g+me": 21,
    "1g+gfx": 47,
    "1g+me.all": 65,
    "1g-me": 67,
    "2g": 5,
    "2g+me.all": 64,
    "2g-me": 66,
    "4g": 0,
}
A30 = {"1g": 14, "1g+me": 21, "2g": 5, "2g+me": 6, "4g": 0}


def profile_id(board: str, kind: str) -> int:
    table = A30 if board.startswith("a30") else RTX if board.startswith("rtx") else A100
    return table[kind]


def create_all(ids):
    """Create one after the other without placement; ids and starts, or the code of the failure."""
    handle = client.mig_gpu()
    made = []
    for profile in ids:
        try:
            made.append(client.place(client.create(handle, profile))[:2])
        except nv.NVMLError as error:
            made.append((client.NAMES[error.value], None))
    return made


def described(sequence):
    return f"{sequence['board']}-{sequence['chip']}-{'_'.join(sequence['create'])}"


@pytest.mark.parametrize("sequence", SEQUENCES, ids=described)
def test_the_driver_chooses_the_slots_that_real_boards_were_seen_to_choose(node, sequence):
    simulator = node(f"1x{sequence['board']}", chips=sequence["chip"])
    made = simulator.call(create_all, [profile_id(sequence["board"], kind) for kind in sequence["create"]])
    expected = ["INSUFFICIENT_RESOURCES" if wanted == "FULL" else wanted for wanted in sequence["ids"]]
    assert [found for found, _ in made] == expected
    if "starts" in sequence:
        assert [start for _, start in made if start is not None] == sequence["starts"]


@pytest.mark.parametrize(
    "sequence", [s for s in SEQUENCES if s["chip"] == "N" and s["board"].startswith("a100")], ids=described
)
def test_a_chip_of_type_s_takes_the_same_starts(node, sequence):
    ids = [profile_id(sequence["board"], kind) for kind in sequence["create"]]
    both = [node(f"1x{sequence['board']}", chips=chip).call(create_all, ids) for chip in "NS"]
    assert [start for _, start in both[0]] == [start for _, start in both[1]]


@pytest.mark.parametrize("chip", ["N", "S"])
@pytest.mark.parametrize("board", ["a100-sxm4-40gb", "h100-sxm5-80gb", "b200-180gb"])
def test_the_id_of_an_instance_says_where_it_is(node, board, chip):
    def ids():
        handle = client.mig_gpu()
        found = {}
        for profile in client.profiles(handle):
            for start, size in client.placements(handle, profile.id):
                gi = client.create(handle, profile.id, (start, size))
                found[profile.id, start, size] = client.place(gi)
                nv.nvmlGpuInstanceDestroy(gi)
        return found

    for (_, start, size), placed in node(f"1x{board}", chips=chip).call(ids).items():
        assert placed == (NUMBERING[chip][size][start // size], start, size)


def test_chips_of_both_types_can_sit_in_one_computer(node):
    def first_ids():
        return [client.place(client.create(client.mig_gpu(i), 19))[0] for i in range(3)]

    assert node("3xa100-sxm4-40gb", chips="NS").call(first_ids) == [13, 9, 13]


def test_the_same_slot_gets_the_same_id_again(node):
    def twice():
        handle = client.mig_gpu()
        found = []
        for _ in range(2):
            gi = client.create(handle, 14, (2, 2))
            found.append(client.place(gi))
            nv.nvmlGpuInstanceDestroy(gi)
        return found

    assert node().call(twice) == [(4, 2, 2), (4, 2, 2)]


def test_rtx_pro_6000_counts_in_twelfths(node):
    def places():
        handle = client.mig_gpu()
        return {profile: client.placements(handle, profile) for profile in (14, 47, 5, 66, 0, 32)}

    ones, twos, four = [(0, 3), (3, 3), (6, 3), (9, 3)], [(0, 6), (6, 6)], [(0, 12)]
    assert node("1xrtx-pro-6000-server").call(places) == {14: ones, 47: ones, 5: twos, 66: twos, 0: four, 32: four}


@pytest.mark.parametrize(
    ("at", "expected"),
    [
        ((0, 4), "SUCCESS"),
        ((4, 4), "INSUFFICIENT_RESOURCES"),  # taken
        ((2, 4), "INVALID_ARGUMENT"),  # not in the list
        ((0, 2), "INVALID_ARGUMENT"),  # of another size
        ((8, 4), "INVALID_ARGUMENT"),
    ],
)
def test_a_placement_is_free_or_taken_or_no_placement(node, at, expected):
    def attempt():
        handle = client.mig_gpu()
        client.create(handle, 9, (4, 4))
        return client.code(client.create, handle, 9, at)

    assert node().call(attempt) == expected


def test_an_instance_excludes_all_that_overlap_it_and_nothing_else(node):
    def pairs():
        handle = client.mig_gpu()
        spots = [(p.id, at) for p in client.profiles(handle) if p.id != 20 for at in client.placements(handle, p.id)]
        results = {}
        for first, second in itertools.product(spots, repeat=2):
            gi = client.create(handle, *first)
            try:
                other = client.create(handle, *second)
            except nv.NVMLError as error:
                results[first, second] = client.NAMES[error.value]
            else:
                nv.nvmlGpuInstanceDestroy(other)
                results[first, second] = "SUCCESS"
            nv.nvmlGpuInstanceDestroy(gi)
        return results

    for ((_, (start, size)), (_, (other, other_size))), result in node().call(pairs).items():
        overlap = start < other + other_size and other < start + size
        assert result == ("INSUFFICIENT_RESOURCES" if overlap else "SUCCESS")


@pytest.mark.parametrize(
    ("board", "instances", "more", "expected"),
    [
        ("a100-sxm4-40gb", ["1g+me"], "1g+me", "INSUFFICIENT_RESOURCES"),  # one JPEG, one OFA
        ("a100-sxm4-40gb", ["1g+me"], "1g", "SUCCESS"),
        ("a100-sxm4-40gb", ["4g", "3g"], None, "SUCCESS"),
        ("h100-sxm5-80gb", ["1g+me"], "1g+me", "INSUFFICIENT_RESOURCES"),
        ("a30-24gb", ["2g+me"], "1g+me", "INSUFFICIENT_RESOURCES"),
        ("a30-24gb", ["2g+me"], "2g", "SUCCESS"),
        ("rtx-pro-6000-server", ["1g+me"], "1g+me", "INSUFFICIENT_RESOURCES"),
        ("rtx-pro-6000-server", ["1g+me.all"], "1g", "INSUFFICIENT_RESOURCES"),  # takes all media engines
        ("rtx-pro-6000-server", ["1g+me.all"], "1g+gfx", "INSUFFICIENT_RESOURCES"),
        ("rtx-pro-6000-server", ["1g+me.all"], "2g", "INSUFFICIENT_RESOURCES"),
        ("rtx-pro-6000-server", ["1g+me.all"], "1g+me.all", "INSUFFICIENT_RESOURCES"),
        ("rtx-pro-6000-server", ["1g+me.all"], "1g-me", "SUCCESS"),
        ("rtx-pro-6000-server", ["1g+me.all"], "2g-me", "SUCCESS"),
        ("rtx-pro-6000-server", ["1g"], "2g+me.all", "INSUFFICIENT_RESOURCES"),
        ("rtx-pro-6000-server", ["1g-me", "1g-me"], "2g+me.all", "SUCCESS"),
    ],
)
def test_media_engines_are_a_budget(node, board, instances, more, expected):
    def attempt():
        handle = client.mig_gpu()
        for kind in instances:
            client.create(handle, profile_id(board, kind))
        if more is None:
            return "SUCCESS"
        profile = profile_id(board, more)
        capacity = nv.nvmlDeviceGetGpuInstanceRemainingCapacity(handle, profile)
        result = client.code(client.create, handle, profile)
        assert (capacity > 0) == (result == "SUCCESS")
        return result

    assert node(f"1x{board}").call(attempt) == expected


def test_the_list_of_placements_does_not_depend_on_what_is_taken(node):
    def before_and_after():
        handle = client.mig_gpu()
        before = client.placements(handle, 19)
        client.create(handle, 9)
        return before, client.placements(handle, 19)

    before, after = node().call(before_and_after)
    assert before == after == [(start, 1) for start in range(7)]


def test_the_instance_count_of_a_profile_does_not_depend_on_what_is_taken(node):
    def counts():
        handle = client.mig_gpu()
        client.create(handle, 9)
        info = nv.nvmlDeviceGetGpuInstanceProfileInfo(handle, 0)
        return info.instanceCount, nv.nvmlDeviceGetGpuInstanceRemainingCapacity(handle, 19)

    assert node().call(counts) == (7, 4)


def test_the_number_of_placements_can_be_asked_alone(node):
    def count():
        handle = client.mig_gpu()
        number = ctypes.c_uint()
        nv.nvmlDeviceGetGpuInstancePossiblePlacements(handle, 15, None, ctypes.byref(number))
        return number.value

    assert node().call(count) == 4


def test_a_gpu_instance_of_an_unknown_profile_is_an_invalid_argument(node):
    def attempt():
        handle = client.mig_gpu()
        return client.code(client.create, handle, 77), client.code(client.placements, handle, 77)

    create, _ = node().call(attempt)
    assert create in ("INVALID_ARGUMENT", "NOT_SUPPORTED")


def test_instances_are_listed_by_profile_and_found_by_id(node):
    def listed():
        handle = client.mig_gpu()
        for kind in ("3g", "2g", "1g", "1g"):
            client.create(handle, A100[kind])
        by_id = {gi: client.place(nv.nvmlDeviceGetGpuInstanceById(handle, gi)) for gi in (2, 3, 9, 10)}
        return client.gpu_instances(handle), by_id, client.code(nv.nvmlDeviceGetGpuInstanceById, handle, 1)

    listed, by_id, missing = node().call(listed)
    assert listed == {2: (9, 4, 4), 3: (14, 0, 2), 9: (19, 2, 1), 10: (19, 3, 1)}
    assert by_id == {2: (2, 4, 4), 3: (3, 0, 2), 9: (9, 2, 1), 10: (10, 3, 1)}
    assert missing == "NOT_FOUND"


def test_a_handle_of_a_destroyed_instance_is_an_invalid_argument(node):
    def stale():
        handle = client.mig_gpu()
        gi = client.create(handle, 9, (0, 4))
        nv.nvmlGpuInstanceDestroy(gi)
        return client.code(nv.nvmlGpuInstanceDestroy, gi), client.code(nv.nvmlGpuInstanceGetInfo, gi)

    assert node().call(stale) == ("INVALID_ARGUMENT", "INVALID_ARGUMENT")


def test_a_null_array_of_instances_is_an_invalid_argument(node):
    def attempt():
        return client.code(nv.nvmlDeviceGetGpuInstances, client.mig_gpu(), 19, None, ctypes.byref(ctypes.c_uint()))

    assert node().call(attempt) == "INVALID_ARGUMENT"
