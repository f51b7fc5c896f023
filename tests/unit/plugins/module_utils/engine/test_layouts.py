# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A layout that was saved is had again, exactly, on the same board and on no other."""

from __future__ import annotations

import json
import typing as t

import pytest

from ansible_collections.gpufleet.mig.plugins.module_utils.engine import compare, layouts, planner, report
from ansible_collections.gpufleet.mig.plugins.module_utils.engine.model import (
    ComputeWish,
    Gpu,
    GpuInstance,
    GpuWish,
    Node,
    Placement,
    Problem,
    Wanted,
    WishError,
)
from ansible_collections.gpufleet.mig.tests.unit.plugins.module_utils.engine import boards, oracle

A100 = "a100-sxm4-40gb"
A100_80 = "a100-sxm4-80gb"
A30 = "a30-24gb"
H100 = "h100-sxm5-80gb"

LOST = Problem("nvmlDeviceGetMigMode", "GPU_IS_LOST", "power-cycle the node")
SAVED = boards.gpu(A100, instances=[("3g.20gb", 4, [1, 2]), ("2g.10gb", 2, []), ("1g.5gb", 0)])


def saved(of: Gpu = SAVED, /, **fields: t.Any) -> layouts.Layout:
    """A layout as it comes back from a file, with other values in some fields; ... leaves a field out."""
    data = {**json.loads(json.dumps(layouts.dump(of))), **fields}
    return {key: value for key, value in data.items() if value is not ...}


def what_it_is(gpu: Gpu, instances: t.Iterable[GpuInstance]) -> list[t.Any]:
    """A layout without ids and UUIDs. The only place of a CI that fills its GI may be told in two lengths."""
    return sorted(
        (
            gi.placement,
            gi.profile.id,
            sorted(
                (ci.slices, ci.variant, None if ci.slices == gi.profile.slices else ci.placement) for ci in gi.compute
            ),
        )
        for gi in instances
    )


# --- there and back ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("board", boards.keys(mig=True))
def test_any_layout_is_had_again_on_the_empty_gpu(board: str) -> None:
    maker = oracle.CaseMaker(board, 3)
    for _each in range(25):
        gpu = maker.furnished()
        for empty in (boards.gpu(board), boards.gpu(board, mode=False)):
            wish = layouts.resolve(boards.node(empty), [saved(gpu)]).wishes[0]
            plan = planner.plan_gpu(empty, wish)
            oracle.check_plan(empty, wish, plan)
            assert what_it_is(gpu, plan.after) == what_it_is(gpu, gpu.instances)
            assert compare.differences(gpu, wish) == ()


@pytest.mark.parametrize("board", [A30, A100, H100])
def test_any_layout_is_had_again_from_any_other(board: str) -> None:
    maker = oracle.CaseMaker(board, 4)
    for _each in range(100):
        wanted, present = maker.furnished(), maker.furnished()
        wish = layouts.resolve(boards.node(present), saved(wanted)).wishes[0]
        plan = planner.plan_gpu(present, wish)
        assert oracle.check_plan(present, wish, plan) == oracle.best(present, wish)
        after = present._replace(instances=plan.after)
        assert what_it_is(after, after.instances) == what_it_is(wanted, wanted.instances)


def test_what_is_there_already_costs_nothing() -> None:
    maker = oracle.CaseMaker(A100, 5)
    for _each in range(100):
        gpu = maker.furnished()
        wish = layouts.resolve(boards.node(gpu), [saved(gpu)]).wishes[0]
        assert planner.plan_gpu(gpu, wish).steps == ()


def test_a_layout_is_read_back_as_the_gpu_that_it_was() -> None:
    gpu = layouts.load(saved(), boards.gpu(A100))
    assert layouts.dump(gpu) == layouts.dump(SAVED)
    assert {gi.profile.memory_mib for gi in gpu.instances} == {20096, 9984, 4864}  # of the present GPU
    assert gpu.architecture == "ampere"


def test_a_layout_is_read_back_although_the_board_is_gone() -> None:
    gpu = layouts.load(saved())
    assert layouts.dump(gpu) == layouts.dump(SAVED)
    assert gpu.instances[0].profile[:6] == (-1, 9, "3g.20gb", 3, 20, 0)


def test_a_profile_whose_name_nobody_knows_is_read_back_by_its_id() -> None:
    data = saved()
    data["instances"][0].update(profile="3u.odd", slices=3)
    assert layouts.load(data).instances[0].profile[1:5] == (9, "3u.odd", 3, 0)
    assert layouts.load(data, boards.gpu(A100)).instances[0].profile.name == "3g.20gb"


def test_a_gpu_that_did_not_answer_is_saved_as_unknown() -> None:
    silent = Gpu(index=3, uuid="GPU-1", problems=(LOST,))
    assert layouts.load(saved(silent)).mode_current is None
    with pytest.raises(WishError, match="does not say whether MIG was on"):
        layouts.resolve(boards.node(boards.gpu(A100)._replace(uuid="GPU-1")), [saved(silent)])


def test_whoever_uses_the_gpu_now_is_not_in_a_layout_of_then() -> None:
    now = boards.gpu(A100, instances=[("3g.20gb", 4)], busy={4}, problems=(LOST,))
    gpu = layouts.load(saved(), now)
    assert (gpu.processes, gpu.reservations, gpu.problems) == ((), (), ())


# --- what is wanted ---------------------------------------------------------------------------------------------------


def test_every_place_and_compute_instance_is_wanted_as_it_was() -> None:
    wanted = layouts.resolve(boards.dgx(A100, 1), [saved()])
    assert (wanted.label, wanted.source) == ("", "layout")
    assert [(each.profile.name, each.placement, each.compute) for each in wanted.wishes[0].instances] == [
        ("3g.20gb", Placement(4, 4), (ComputeWish(1, Placement(0, 1)), ComputeWish(2, Placement(1, 2)))),
        ("2g.10gb", Placement(2, 2), ()),
        ("1g.5gb", Placement(0, 1), (ComputeWish(1, profile_id=0),)),
    ]
    assert wanted.wishes[0].said == "3g.20gb at 4, 2g.10gb at 2, 1g.5gb at 0, as saved"


@pytest.mark.parametrize("profile_id", [0, 7])
def test_of_two_kinds_of_compute_instances_that_fill_a_double_memory_instance_the_saved_one_is_wanted(
    profile_id: int,
) -> None:
    gpu = boards.gpu(H100, instances=[("1g.20gb", 2)])
    gi = gpu.instances[0]
    kinds = {each.id: each for each in boards.compute_profiles(H100, "1g.20gb")}
    there = {
        each: gi._replace(compute=(gi.compute[0]._replace(profile_id=each, placement=kinds[each].placements[0]),))
        for each in kinds
    }
    wish = layouts.resolve(boards.dgx(H100, 1), [saved(gpu._replace(instances=(there[profile_id],)))]).wishes[0]
    assert wish.instances[0].compute == (ComputeWish(1, profile_id=profile_id),)
    assert planner.plan_gpu(boards.gpu(H100), wish).steps[-1].profile_id == profile_id
    for present, instance in there.items():
        now = gpu._replace(instances=(instance,))
        as_saved = present == profile_id
        assert (compare.differences(now, wish) == ()) is as_saved
        assert [step.kind for step in planner.plan_gpu(now, wish).steps] == (
            [] if as_saved else ["destroy_ci", "create_ci"]
        )
        # A label does not care which of the two it is, and takes nothing away from those who have either.
        label = GpuWish(True, (wish.instances[0]._replace(compute=(ComputeWish(1),), placement=None),))
        assert compare.differences(now, label) == ()
        assert planner.plan_gpu(now, label).steps == ()


def test_where_the_driver_does_not_have_the_saved_kind_the_one_it_has_will_do() -> None:
    gpu = boards.gpu(H100, instances=[("1g.20gb", 2)])
    data = saved(gpu)
    data["instances"][0]["compute_instances"][0]["profile_id"] = 5
    wish = layouts.resolve(boards.node(gpu), [data]).wishes[0]
    assert compare.differences(gpu, wish) == ()
    assert planner.plan_gpu(gpu, wish).steps == ()


def test_a_wide_compute_instance_in_a_larger_gpu_instance_stays_wide() -> None:
    gpu = boards.gpu(H100, instances=[("2g.20gb", 2, [1])])
    gi = gpu.instances[0]
    wide = gi.compute[0]._replace(variant="rev1", profile_id=7, placement=Placement(0, 2))
    gpu = gpu._replace(instances=(gi._replace(compute=(wide,)),))
    expected = (ComputeWish(1, Placement(0, 2), "rev1"),)
    assert layouts.resolve(boards.dgx(H100, 1), [saved(gpu)]).wishes[0].instances[0].compute == expected
    older = saved(gpu)
    del older["instances"][0]["compute_instances"][0]["variant"]  # the number of its profile says it too
    assert layouts.resolve(boards.dgx(H100, 1), [older]).wishes[0].instances[0].compute == expected


def test_mig_off_and_mig_without_instances_are_layouts_too() -> None:
    node = boards.dgx(A100, 3)
    off, empty, modes = (boards.gpu(A100, index, mode=index != 0) for index in range(3))
    wanted = layouts.resolve(node, [saved(off), saved(empty), saved(modes, instances=...)])
    assert [(wish.enabled, wish.instances, wish.mode_only) for wish in wanted.wishes.values()] == [
        (False, (), False),
        (True, (), False),
        (True, (), True),
    ]


def test_the_mode_that_was_current_is_wanted_not_the_one_that_was_pending() -> None:
    pending = boards.gpu(A100, mode=False, mode_pending=True)
    assert layouts.resolve(boards.dgx(A100, 1), [saved(pending)]).wishes[0].enabled is False


def test_gpus_that_the_layout_leaves_out_are_left_alone_and_told() -> None:
    node = boards.node(boards.gpu(A100), boards.gpu(A100), boards.gpu("tesla-t4"))
    wanted = layouts.resolve(node, [saved()])
    assert (list(wanted.wishes), wanted.unlisted, wanted.skipped) == ([0], (1,), (2,))


def test_gpus_narrow_the_layout() -> None:
    node = boards.dgx(A100, 2)
    both = [saved(gpu) for gpu in node.gpus]
    assert list(layouts.resolve(node, both, gpus=[1]).wishes) == [1]
    elsewhere = saved(uuid="GPU-0", pci_bus_id="00000000:F0:00.0")
    assert list(layouts.resolve(node, [elsewhere, *both], gpus="0").wishes) == [0]
    with pytest.raises(WishError, match="GPU 1 .* is not in the layout"):
        layouts.resolve(node, both[:1], gpus="0,1")


# --- which board ------------------------------------------------------------------------------------------------------


def shifted(node: Node) -> Node:
    """The same boards in the same places, counted from the other end."""
    return Node(tuple(gpu._replace(index=index) for index, gpu in enumerate(reversed(node.gpus))))


def test_a_board_is_found_by_its_pci_id_whatever_its_index_is_now() -> None:
    node = boards.dgx(A100, 3)
    assert list(layouts.resolve(shifted(node), [saved(node.gpus[0])]).wishes) == [2]
    short = saved(node.gpus[0], pci_bus_id="0000:07:00.0", uuid="")
    assert list(layouts.resolve(shifted(node), [short]).wishes) == [2]


def test_a_board_that_was_moved_to_another_slot_keeps_its_layout() -> None:
    node = boards.dgx(A100, 2)
    first, second = node.gpus
    swapped = Node(
        (first._replace(pci_bus_id=second.pci_bus_id, index=1), second._replace(pci_bus_id=first.pci_bus_id, index=0))
    )
    wanted = layouts.resolve(swapped, [saved(first, instances=[]), saved(second, mig_current=False)])
    assert {index: wish.enabled for index, wish in wanted.wishes.items()} == {1: True, 0: False}


def test_the_index_counts_only_where_nothing_better_is_said() -> None:
    node = boards.dgx(A100, 2)
    assert list(layouts.resolve(node, [saved(index=1, uuid=..., pci_bus_id=...)]).wishes) == [1]
    assert list(layouts.resolve(node, [saved(index=..., gpu=1, uuid=..., pci_bus_id=...)]).wishes) == [1]
    with pytest.raises(WishError, match=r"GPU 1 of the layout \(00000000:F0:00\.0, .*\) is not in this node: it has"):
        layouts.resolve(node, [saved(index=1, uuid=..., pci_bus_id="00000000:F0:00.0")])


def test_another_board_at_that_place_is_refused_until_it_is_accepted() -> None:
    new = boards.gpu(A100)._replace(uuid="GPU-00000000-0000-0000-0000-000000000001")
    with pytest.raises(WishError, match="was replaced") as refusal:
        layouts.resolve(boards.node(new), [saved()])
    assert SAVED.uuid in str(refusal.value)
    assert new.uuid in str(refusal.value)
    assert "accept_replacement" in str(refusal.value)
    assert refusal.value.details == {
        "gpu": 0,
        "pci_bus_id": new.pci_bus_id,
        "uuid": new.uuid,
        "old_uuid": SAVED.uuid,
        "old_name": SAVED.name,
    }
    assert layouts.resolve(boards.node(new), [saved()], accept_replacement=True).wishes[0].enabled


def test_without_uuid_another_model_at_that_place_is_refused_and_an_older_spelling_of_the_same_is_not() -> None:
    node = boards.node(boards.gpu(A100_80))
    with pytest.raises(
        WishError, match="was replaced: .* NVIDIA A100-SXM4-40GB, and now there is NVIDIA A100-SXM4-80GB"
    ):
        layouts.resolve(node, [saved(uuid=...)])
    assert layouts.resolve(boards.dgx(A100, 1), [saved(uuid=..., name="A100-SXM4-40GB")]).wishes


def test_on_another_model_that_was_accepted_the_same_kinds_of_instances_are_wanted() -> None:
    node = boards.node(boards.gpu(A100_80))
    wish = layouts.resolve(node, [saved()], accept_replacement=True).wishes[0]
    assert [each.profile.name for each in wish.instances] == ["3g.40gb", "2g.20gb", "1g.10gb"]


def test_an_instance_that_the_new_model_does_not_have_is_refused_by_name() -> None:
    # A30 has a profile of the same id that is another one: 4g.24gb is 0, as 7g is on the boards with seven slices.
    whole = boards.gpu(A100, instances=[("7g.40gb", 0)])
    node = boards.node(boards.gpu(A30))
    with pytest.raises(WishError, match=r"GPU 0 \(NVIDIA A30\) does not offer 7g\.40gb \(id 0\).*4g\.24gb \(id 0\)"):
        layouts.resolve(node, [saved(whole)], accept_replacement=True)


def test_a_name_that_the_driver_prints_differently_today_is_the_same_profile() -> None:
    data = saved(boards.gpu(A100_80, instances=[("3g.40gb", 0)]))
    data["instances"][0]["profile"] = "3g.39gb"
    wish = layouts.resolve(boards.dgx(A100_80, 1), [data]).wishes[0]
    assert wish.instances[0].profile.name == "3g.40gb"
    del data["instances"][0]["profile_id"]
    assert layouts.resolve(boards.dgx(A100_80, 1), [data]).wishes[0] == wish


def test_two_layouts_for_one_board_are_refused() -> None:
    with pytest.raises(WishError, match="are both GPU 0 at 00000000:07:00.0"):
        layouts.resolve(boards.dgx(A100, 1), [saved(), saved(pci_bus_id=...)])


def test_a_board_that_does_not_answer_is_refused_as_such_and_not_taken_for_a_new_one() -> None:
    node = boards.node(boards.gpu(A100)._replace(uuid="", problems=(LOST,)))
    with pytest.raises(WishError, match="does not answer: nvmlDeviceGetMigMode says GPU_IS_LOST"):
        layouts.resolve(node, [saved()])


@pytest.mark.parametrize("gpus", ["all", "1"])
def test_a_board_that_cannot_even_say_who_it_is_is_refused_by_the_call_that_failed(gpus: str) -> None:
    both = [saved(gpu) for gpu in boards.dgx(A100, 2).gpus]
    node = Node((boards.gpu(A100), Gpu(1, problems=(LOST,))))
    with pytest.raises(WishError, match="GPU 1 does not answer: nvmlDeviceGetMigMode says GPU_IS_LOST"):
        layouts.resolve(node, both, gpus=gpus)


def test_a_board_that_cannot_do_mig_is_skipped_unless_it_should_have_it() -> None:
    t4 = boards.gpu("tesla-t4")
    wanted = layouts.resolve(boards.node(t4), [saved(t4)])
    assert (wanted.wishes, wanted.skipped) == ({}, (0,))
    with pytest.raises(WishError, match="cannot do MIG, but GPU 1 of the layout"):
        layouts.resolve(boards.node(t4), [saved(uuid=t4.uuid)])


# --- forms ------------------------------------------------------------------------------------------------------------


def wanted_of(layout: t.Any) -> Wanted:
    return layouts.resolve(boards.dgx(A100, 2), layout)


def test_whatever_mig_info_says_is_a_layout() -> None:
    node = boards.node(SAVED, boards.gpu(A100, 1))
    result = {"changed": False, **json.loads(json.dumps(report.node_report(node)))}
    expected = wanted_of([saved(gpu) for gpu in node.gpus])
    assert wanted_of(result) == wanted_of(result["gpus"]) == expected
    assert wanted_of(result["gpus"][0]).wishes == {0: expected.wishes[0]}


def test_a_file_of_the_node_is_a_layout_when_its_schema_is_known() -> None:
    assert wanted_of({"schema": 1, "txid": "x", "gpus": [saved()]}) == wanted_of([saved()])
    with pytest.raises(WishError, match="schema of the layout is 2; only 1 is known"):
        wanted_of({"schema": 2, "gpus": [saved()]})


def checkpoint(*instances: t.Any, mode: int = 1, uuid: str = SAVED.uuid, version: t.Any = "v1") -> layouts.Layout:
    """What ``nvidia-mig-parted checkpoint`` writes for one GPU."""
    device = {"UUID": uuid, "MigMode": mode, "GpuInstances": list(instances) or None}
    return {"Version": version, "MigState": {"Devices": [device]}}


def placed(profile: int, start: int, size: int, *compute: int) -> layouts.Layout:
    inside = [{"ProfileID": each, "EngProfileID": 0} for each in compute] or None
    return {"ProfileID": profile, "Placement": {"Start": start, "Size": size}, "ComputeInstances": inside}


def test_a_checkpoint_of_mig_parted_is_a_layout_in_the_numbers_of_nvml() -> None:
    wish = wanted_of(checkpoint(placed(2, 4, 4, 0, 1), placed(1, 2, 2), placed(7, 0, 1, 0))).wishes[0]
    assert [(each.profile.name, each.placement, each.compute) for each in wish.instances] == [
        ("3g.20gb", Placement(4, 4), (ComputeWish(1), ComputeWish(2))),
        ("2g.10gb", Placement(2, 2), ()),
        ("1g.5gb+me", Placement(0, 1), (ComputeWish(1, profile_id=0),)),
    ]
    assert wanted_of(checkpoint(mode=0)).wishes[0] == GpuWish(False, said="MIG off, as saved")
    assert wanted_of(checkpoint()).wishes[0].enabled


def test_the_wide_compute_instance_of_a_checkpoint_fills_a_small_instance_and_is_a_variant_in_a_larger_one() -> None:
    node = boards.dgx(H100, 1)
    wish = layouts.resolve(node, checkpoint(placed(9, 0, 2, 7), placed(1, 2, 2, 7), uuid=node.gpus[0].uuid)).wishes[0]
    assert [each.compute for each in wish.instances] == [
        (ComputeWish(1, profile_id=7),),
        (ComputeWish(1, None, "rev1"),),
    ]


def test_a_board_that_a_checkpoint_has_and_the_node_has_not_is_refused() -> None:
    with pytest.raises(WishError, match=r"GPU 1 of the checkpoint \(GPU-0\) is not in this node"):
        wanted_of(checkpoint(uuid="GPU-0"))


def with_instance(**fields: t.Any) -> layouts.Layout:
    instance = {**saved()["instances"][0], **fields}
    return saved(instances=[{key: value for key, value in instance.items() if value is not ...}])


def with_compute(**fields: t.Any) -> layouts.Layout:
    compute = {**saved()["instances"][0]["compute_instances"][0], **fields}
    return with_instance(compute_instances=[{key: value for key, value in compute.items() if value is not ...}])


@pytest.mark.parametrize(
    ("layout", "sentence"),
    [
        (None, "the layout must be a list, not nothing"),
        ("all-1g.5gb", "the layout must be a list, not text 'all-1g.5gb'"),
        ([], "the layout names no GPU"),
        ({}, "this is a mapping of nothing"),
        ({"before": [], "after": [], "changed": True}, "give what it has under before or after"),
        ({"gpus": {}}, "the layout must be a list, not a mapping"),
        ([[]], "GPU 1 of the layout must be a mapping, not a list"),
        ([saved(index=..., uuid=..., pci_bus_id=...)], "GPU 1 of the layout has none of pci_bus_id, uuid and index"),
        ([saved(), saved(index="one")], "index of GPU 2 of the layout must be a whole number from 0 on"),
        ([saved(uuid=7)], "uuid of GPU 1 of the layout must be text, not the number 7"),
        ([saved(pci_bus_id="slot 7")], "pci_bus_id of GPU 1 of the layout is 'slot 7', which is no PCI id"),
        ([saved(mig_current=...)], "GPU 1 of the layout lacks mig_current"),
        ([saved(mig_current="on")], "mig_current of GPU 1 of the layout must be true or false, not text 'on'"),
        ([saved(mig_current=False)], "GPU 1 of the layout has instances while mig_current is not true"),
        ([saved(instances={})], "instances of GPU 1 of the layout must be a list, not a mapping"),
        ([saved(instances=["3g.20gb"])], "instance 1 of GPU 1 of the layout must be a mapping"),
        ([with_instance(profile=...)], "instance 1 of GPU 1 of the layout lacks profile"),
        ([with_instance(profile="3x", slices=...)], "profile of instance 1 of GPU 1 of the layout: '3x' is not a"),
        ([with_instance(profile_id=-1)], "profile_id of instance 1 of GPU 1 of the layout must be a whole number"),
        ([with_instance(profile_id=77)], "does not offer 3g.20gb (id 77), which GPU 1 of the layout"),
        ([with_instance(placement=...)], "instance 1 of GPU 1 of the layout lacks placement"),
        ([with_instance(placement={"start": 0})], "size of placement of instance 1 of GPU 1 of the layout must be"),
        ([with_instance(placement={"start": 0, "size": 0})], "must be at least 1"),
        ([with_instance(compute_instances=...)], "lacks compute_instances; write [] for a GPU instance without any"),
        ([with_compute(slices=4)], "compute instance 1 of instance 1 of GPU 1 of the layout has 4 compute slices, in"),
        ([with_compute(slices=..., profile=...)], "slices of compute instance 1 of instance 1 of GPU 1 of the layout"),
        ([with_compute(variant="rev9")], "variant of compute instance 1 of instance 1 of GPU 1 of the layout is"),
        ([with_compute(placement=[0, 1])], "placement of compute instance 1 of instance 1 of GPU 1 of the layout must"),
        (checkpoint(version="v2"), "Version of the checkpoint is 'v2'; only v1 is known"),
        ({"Version": "v1", "MigState": []}, "MigState of the checkpoint must be a mapping"),
        ({"Version": "v1", "MigState": {"Devices": None}}, "the checkpoint names no GPU"),
        (checkpoint(uuid=""), "GPU 1 of the checkpoint lacks UUID"),
        (checkpoint(mode=2), "MigMode of GPU 1 of the checkpoint is 2"),
        (checkpoint(placed(2, 0, 4), mode=0), "has GpuInstances while MigMode is 0"),
        (checkpoint(placed(33, 0, 4)), "does not offer the profile of number 33"),
        (checkpoint(placed(2, 0, 4, 33)), "ProfileID of compute instance 1 of instance 1 of GPU 1 of the checkpoint"),
    ],
)
def test_what_is_no_layout_is_refused_with_the_key(layout: t.Any, sentence: str) -> None:
    with pytest.raises(WishError) as refusal:
        wanted_of(layout)
    assert sentence in str(refusal.value)


@pytest.mark.parametrize("key", ["uuid", "name", "pci_bus_id"])
def test_text_from_a_file_cannot_move_the_cursor(key: str) -> None:
    with pytest.raises(WishError) as refusal:
        wanted_of([saved(**{"uuid": "GPU-0", "pci_bus_id": "00000000:F0:00.0", key: "\x1b[2J\n"})])
    assert str(refusal.value).isprintable()


def test_a_place_that_the_board_does_not_have_is_refused_by_the_plan() -> None:
    wanted = wanted_of([with_instance(placement={"start": 3, "size": 4})])
    with pytest.raises(WishError, match=r"GPU 0 has no place 3:4 for 3g\.20gb, only 0:4, 4:4"):
        planner.plan_node(boards.dgx(A100, 2), wanted)
