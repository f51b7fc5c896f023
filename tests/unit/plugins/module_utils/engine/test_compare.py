# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Match, differ, or cannot tell."""

from __future__ import annotations

import pytest

from ansible_collections.gpufleet.mig.plugins.module_utils.engine import compare, configs
from ansible_collections.gpufleet.mig.plugins.module_utils.engine.model import (
    ComputeWish,
    GpuWish,
    InstanceWish,
    Placement,
    Problem,
    Wanted,
)
from ansible_collections.gpufleet.mig.tests.unit.plugins.module_utils.engine import boards

A100 = "a100-sxm4-40gb"
LOST = Problem("nvmlDeviceGetMigMode", "GPU_IS_LOST", "reset or reboot")


def wish(label, board=A100):
    return configs.resolve(boards.dgx(board, 1), label=label).wishes[0]


def exact(gi_start, name="3g.20gb", compute=None):
    profile = next(each for each in boards.profiles(A100) if each.name == name)
    place = next(each for each in profile.placements if each.start == gi_start)
    return InstanceWish(profile, tuple(compute or [ComputeWish(profile.slices)]), place)


def gpu(*instances, **fields):
    return boards.gpu(A100, instances=list(instances), **fields)


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (gpu(("3g.20gb", 0), ("3g.20gb", 4)), wish("all-3g.20gb")),
        (gpu(("3g.20gb", 0), ("2g.10gb", 4)), wish("2g.10gb,3g.20gb")),
        (gpu(("2g.10gb", 0), ("3g.20gb", 4)), wish("2g.10gb,3g.20gb")),
        (gpu(("3g.20gb", 4, [1, 2])), wish("2c.3g.20gb,1c.3g.20gb")),
        (gpu(), wish("all-enabled")),
        (gpu(mode=False), wish("all-disabled")),
        (gpu(("3g.20gb", 4)), GpuWish(enabled=True, mode_only=True)),
    ],
)
def test_the_same_instances_match_wherever_they_are(found, wanted):
    assert compare.differences(found, wanted) == ()


@pytest.mark.parametrize(
    ("found", "wanted", "sentences"),
    [
        (gpu(), wish("all-3g.20gb"), ["2 x 3g.20gb are missing"]),
        (gpu(("3g.20gb", 0)), wish("all-3g.20gb"), ["1 x 3g.20gb is missing"]),
        (gpu(("3g.20gb", 0)), wish("all-enabled"), ["1 x 3g.20gb is not wanted"]),
        (
            gpu(("1g.5gb", 0), ("1g.5gb", 1)),
            wish("3g.20gb,1g.5gb"),
            ["1 x 3g.20gb is missing", "1 x 1g.5gb is not wanted"],
        ),
        (
            gpu(("3g.20gb", 0)),
            wish("2c.3g.20gb,1c.3g.20gb"),
            ["1 x 3g.20gb with 2c + 1c is missing", "1 x 3g.20gb is not wanted"],
        ),
        (
            gpu(("3g.20gb", 0, [1])),
            wish("3g.20gb"),
            ["1 x 3g.20gb is missing", "1 x 3g.20gb with 1c is not wanted"],
        ),
        (
            gpu(("3g.20gb", 0, [])),
            wish("3g.20gb"),
            ["1 x 3g.20gb is missing", "1 x 3g.20gb without compute instance is not wanted"],
        ),
        (gpu(mode=False), wish("all-enabled"), ["MIG is off, wanted on"]),
        (gpu(("3g.20gb", 0)), wish("all-disabled"), ["MIG is on, wanted off"]),
        (
            gpu(mode_current=False),
            wish("all-1g.5gb"),
            ["MIG is off, wanted on, which is pending until the next reset or reboot"],
        ),
        (
            gpu(("3g.20gb", 0), mode_pending=False),
            wish("3g.20gb"),
            ["MIG is on but off from the next reset or reboot on"],
        ),
    ],
)
def test_every_difference_is_a_sentence(found, wanted, sentences):
    assert list(compare.differences(found, wanted)) == sentences


def test_a_gi_without_ci_differs_unless_wished():
    orphan = exact(0)._replace(compute=())
    assert compare.differences(gpu(("3g.20gb", 0, [])), GpuWish(True, (orphan,))) == ()


def test_names_do_not_matter_but_profile_ids_do():
    found = gpu(("3g.20gb", 0))
    renamed = tuple(gi._replace(profile=gi.profile._replace(name="3g.19gb", gb=19)) for gi in found.instances)
    assert compare.differences(found._replace(instances=renamed), wish("3g.20gb")) == ()
    other = tuple(gi._replace(profile=gi.profile._replace(id=99)) for gi in found.instances)
    assert compare.differences(found._replace(instances=other), wish("3g.20gb"))


def test_a_plain_and_a_wide_ci_of_one_slice_are_not_the_same():
    board = "h100-sxm5-80gb"
    found = boards.gpu(board, instances=[("2g.20gb", 0, [1])])
    assert compare.differences(found, wish("1c.2g.20gb", board)) == ()
    gi = found.instances[0]
    wide = gi._replace(compute=(gi.compute[0]._replace(variant="rev1"),))
    assert compare.differences(found._replace(instances=(wide,)), wish("1c.2g.20gb", board)) == (
        "1 x 2g.20gb with 1c is missing",
        "1 x 2g.20gb with 1c (rev1) is not wanted",
    )


def test_the_wide_ci_that_fills_a_double_memory_gi_is_just_the_one_that_fills_it():
    board = "h100-sxm5-80gb"
    assert compare.differences(boards.gpu(board, instances=[("1g.20gb", 2)]), wish("1g.20gb", board)) == ()


def test_an_exact_wish_wants_its_places():
    assert compare.differences(gpu(("3g.20gb", 4)), GpuWish(True, (exact(4),))) == ()
    assert compare.differences(gpu(("3g.20gb", 4)), GpuWish(True, (exact(0),))) == (
        "1 x 3g.20gb at 0 is missing",
        "1 x 3g.20gb at 4 is not wanted",
    )


def test_an_exact_wish_wants_the_places_of_its_compute_instances():
    inside = [ComputeWish(1, Placement(0, 1)), ComputeWish(1, Placement(2, 1))]
    wanted = GpuWish(True, (exact(4, compute=inside),))
    assert compare.differences(gpu(("3g.20gb", 4, [(1, 2), (1, 0)])), wanted) == ()
    assert compare.differences(gpu(("3g.20gb", 4, [1, 1])), wanted) == (
        "1 x 3g.20gb at 4 with 1c at 0 + 1c at 2 is missing",
        "1 x 3g.20gb at 4 with 1c at 0 + 1c at 1 is not wanted",
    )


def test_an_exact_wish_can_want_a_gpu_instance_without_compute_instance():
    orphan = GpuWish(True, (exact(4)._replace(compute=()),))
    assert compare.differences(gpu(("3g.20gb", 4, [])), orphan) == ()
    assert compare.differences(gpu(("3g.20gb", 4)), orphan) == (
        "1 x 3g.20gb at 4 without compute instance is missing",
        "1 x 3g.20gb at 4 is not wanted",
    )


def test_an_exact_wish_can_want_a_variant_of_a_compute_instance():
    found = boards.gpu("h100-sxm5-80gb", instances=[("2g.20gb", 0, [1])])
    gi = found.instances[0]
    plain, wide = (InstanceWish(gi.profile, (ComputeWish(1, None, variant),)) for variant in ("", "rev1"))
    assert compare.differences(found, GpuWish(True, (plain,))) == ()
    assert compare.differences(found, GpuWish(True, (wide,))) == (
        "1 x 2g.20gb with 1c (rev1) is missing",
        "1 x 2g.20gb with 1c is not wanted",
    )


def test_an_exact_wish_can_want_one_of_two_kinds_that_fill_a_gpu_instance():
    found = boards.gpu("h100-sxm5-80gb", instances=[("1g.20gb", 2)])
    gi = found.instances[0]
    wanted = InstanceWish(gi.profile, (ComputeWish(1, profile_id=0),), gi.placement)
    assert compare.differences(found, GpuWish(True, (wanted,))) == (
        "1 x 1g.20gb at 2 with compute profile 0 is missing",
        "1 x 1g.20gb at 2 with compute profile 7 is not wanted",
    )


def test_exact_wishes_choose_before_others():
    anywhere = exact(4)._replace(placement=None)
    for instances in ([("3g.20gb", 0), ("3g.20gb", 4)], [("3g.20gb", 4), ("3g.20gb", 0)]):
        assert compare.differences(gpu(*instances), GpuWish(True, (anywhere, exact(4)))) == ()
        assert compare.differences(gpu(*instances), GpuWish(True, (anywhere, exact(0)))) == ()


# --- the verdict on a node -------------------------------------------------------------------------------------------


def test_a_node_matches_when_all_gpus_do_that_the_wish_speaks_of():
    node = boards.node(gpu(("3g.20gb", 0), ("3g.20gb", 4)), boards.gpu(A100, 1, problems=(LOST,)))
    wanted = configs.resolve(node, label="all-3g.20gb", gpus=[0])
    assert compare.verdict(node, wanted) == ("match", {})


def test_a_gpu_that_does_not_answer_is_never_a_match():
    node = boards.node(gpu(), boards.gpu(A100, 1))
    wanted = configs.resolve(node, label="all-enabled")
    assert compare.verdict(node, wanted).verdict == "match"
    lost = boards.node(node.gpus[0], boards.gpu(A100, 1, problems=(LOST,)))
    sentence = "it does not answer: nvmlDeviceGetMigMode says GPU_IS_LOST"
    assert compare.verdict(lost, wanted) == ("unknown", {1: (sentence,)})
    silent = boards.node(node.gpus[0], boards.gpu(A100, 1, mode_current=None))
    assert compare.verdict(silent, wanted) == ("unknown", {1: ("it does not say whether it is in MIG mode",)})


def test_a_gpu_that_is_gone_cannot_be_told():
    wanted = configs.resolve(boards.dgx(A100, 2), label="all-enabled")
    gone = compare.verdict(boards.dgx(A100, 1), wanted)
    assert gone == ("unknown", {1: ("it is not there any more",)})


def test_a_certain_difference_outweighs_what_cannot_be_told():
    wanted = configs.resolve(boards.dgx(A100, 2), label="all-1g.5gb")
    node = boards.node(gpu(), boards.gpu(A100, 1, problems=(LOST,)))
    verdict = compare.verdict(node, wanted)
    assert verdict.verdict == "differ"
    assert list(verdict.differences) == [0, 1]


def test_nothing_wanted_is_a_match():
    assert compare.verdict(boards.dgx("tesla-t4", 2), Wanted("all-1g", "generated", {})) == ("match", {})
