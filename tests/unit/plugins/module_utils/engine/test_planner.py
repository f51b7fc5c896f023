# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the planner promises, one behaviour a test. That it is exact is test_planner_against_oracle's matter."""

from __future__ import annotations

import itertools
import random
import typing as t

import pytest

from ansible_collections.gpufleet.mig.plugins.module_utils.engine.model import (
    ComputeInstance,
    ComputeWish,
    Engines,
    Gpu,
    GpuInstance,
    GpuPlan,
    GpuWish,
    InstanceWish,
    Placement,
    Problem,
    Process,
    Profile,
    Reservation,
    Wanted,
    WishError,
)
from ansible_collections.gpufleet.mig.plugins.module_utils.engine.planner import Cost, Loss, plan_gpu, plan_node
from ansible_collections.gpufleet.mig.tests.unit.plugins.module_utils.engine import boards

A100 = "a100-sxm4-40gb"
H100 = "h100-sxm5-80gb"
A30 = "a30-24gb"
RTX = "rtx-pro-6000-server"

# A wished GI is a profile name, which means the CI that fills it, or (profile name, CI sizes).
InstanceText = t.Union[str, tuple[str, t.Sequence[int]]]


def wish(board: str, *instances: InstanceText) -> GpuWish:
    return GpuWish(enabled=True, instances=tuple(wished(board, each) for each in instances))


def wished(board: str, text: InstanceText, placement: t.Optional[Placement] = None) -> InstanceWish:
    name, sizes = (text, None) if isinstance(text, str) else text
    profile = next(each for each in boards.profiles(board) if each.name == name)
    sizes = [profile.slices] if sizes is None else sizes
    return InstanceWish(profile, tuple(ComputeWish(size) for size in sizes), placement)


PROMISE = Reservation("Slurm job 123", "slurm")


def promised(gpu: Gpu, *starts: int) -> Gpu:
    """The GPU with the CIs of the GIs at these places promised to somebody."""
    return gpu._replace(
        instances=tuple(
            gi._replace(compute=tuple(ci._replace(reservations=(PROMISE,)) for ci in gi.compute))
            if gi.placement.start in starts
            else gi
            for gi in gpu.instances
        )
    )


def layout(plan: GpuPlan) -> list[tuple[str, int]]:
    return [(gi.profile.name, gi.placement.start) for gi in plan.after]


def kept(plan: GpuPlan) -> list[tuple[str, int]]:
    return [(gi.profile.name, gi.placement.start) for gi in plan.after if gi.id is not None]


def compute(gi: GpuInstance) -> list[tuple[int, int]]:
    return [(ci.slices, ci.placement.start if ci.placement else -1) for ci in gi.compute]


def steps(plan: GpuPlan) -> list[str]:
    """The steps in short: ``destroy_ci 2g.10gb@0``, with the place of a CI inside its GI after a slash."""
    texts = []
    for step in plan.steps:
        if step.kind == "set_mode":
            texts.append(f"set_mode {'on' if step.enabled else 'off'}")
            continue
        assert step.placement is not None
        inside = f"/{step.compute_placement.start}" if step.compute_placement else ""
        texts.append(f"{step.kind} {step.name}@{step.placement.start}{inside}")
    return texts


def test_the_example_of_the_design_keeps_three_instances_and_writes_six_times() -> None:
    gpu = boards.gpu(A100, instances=[("3g.20gb", 4), ("2g.10gb", 0), ("1g.5gb", 2), ("1g.5gb", 3)])
    plan = plan_gpu(gpu, wish(A100, "3g.20gb", *["1g.5gb"] * 4))
    assert kept(plan) == [("1g.5gb", 2), ("1g.5gb", 3), ("3g.20gb", 4)]
    assert steps(plan) == [
        "destroy_ci 2g.10gb@0",
        "destroy_gi 2g.10gb@0",
        "create_gi 1g.5gb@0",
        "create_ci 1g.5gb@0/0",
        "create_gi 1g.5gb@1",
        "create_ci 1g.5gb@1/0",
    ]


def test_a_gpu_that_is_as_wanted_gets_no_steps() -> None:
    gpu = boards.gpu(A100, instances=[("3g.20gb", 0), ("2g.10gb", 4), ("1g.5gb", 6)], busy={0, 4, 6})
    plan = plan_gpu(gpu, wish(A100, "1g.5gb", "2g.10gb", "3g.20gb"))
    assert plan == GpuPlan(
        gpu=0, enabled=True, steps=(), after=tuple(sorted(gpu.instances, key=lambda gi: gi.placement))
    )


# --- the order of preference ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("busy", [0, 4])
def test_of_two_equal_instances_the_busy_one_stays(busy: int) -> None:
    gpu = boards.gpu(A100, instances=[("3g.20gb", 0), ("3g.20gb", 4)], busy={busy})
    plan = plan_gpu(gpu, wish(A100, "3g.20gb"))
    assert layout(plan) == kept(plan) == [("3g.20gb", busy)]
    assert plan.lost_busy == ()


def test_many_idle_instances_go_before_one_busy_one() -> None:
    gpu = boards.gpu(A100, instances=[("1g.5gb", 0), ("1g.5gb", 4), ("1g.5gb", 5), ("1g.5gb", 6)], busy={0})
    plan = plan_gpu(gpu, wish(A100, "3g.20gb", "1g.5gb"))
    assert layout(plan) == [("1g.5gb", 0), ("3g.20gb", 4)]
    assert plan.lost_busy == ()


def test_a_busy_instance_that_cannot_stay_is_named_with_its_processes() -> None:
    gpu = boards.gpu(A100, instances=[("1g.5gb", 0), ("1g.5gb", 4)], busy={0, 4})
    plan = plan_gpu(gpu, wish(A100, "7g.40gb"))
    assert plan.lost_busy == gpu.processes
    assert len(plan.lost_busy) == 2


def test_a_reserved_instance_stays_before_idle_ones_and_goes_before_busy_ones() -> None:
    gpu = boards.gpu(A100, instances=[("3g.20gb", 0), ("3g.20gb", 4)])
    for reserved in (0, 4):
        plan = plan_gpu(promised(gpu, reserved), wish(A100, "3g.20gb"))
        assert (layout(plan), plan.lost_reserved) == ([("3g.20gb", reserved)], ())
    busy = boards.gpu(A100, instances=[("3g.20gb", 0), ("3g.20gb", 4)], busy={0})
    plan = plan_gpu(promised(busy, 4), wish(A100, "3g.20gb"))
    assert (layout(plan), plan.lost_busy, plan.lost_reserved) == ([("3g.20gb", 0)], (), (PROMISE,))


def test_an_instance_that_is_in_use_and_reserved_is_no_more_than_in_use_and_its_promise_is_named() -> None:
    gpu = boards.gpu(A100, instances=[("3g.20gb", 0), ("3g.20gb", 4)], busy={0, 4})
    plan = plan_gpu(promised(gpu, 4), wish(A100, "7g.40gb"))
    assert (len(plan.lost_busy), plan.lost_reserved) == (2, (PROMISE,))


def test_a_promise_of_several_instances_is_named_once() -> None:
    gpu = boards.gpu(A100, instances=[("1g.5gb", 0), ("1g.5gb", 1)])
    plan = plan_gpu(promised(gpu, 0, 1), wish(A100, "7g.40gb"))
    assert plan.lost_reserved == (PROMISE,)


def test_inside_a_gpu_instance_the_reserved_compute_instance_stays() -> None:
    gpu = boards.gpu(A100, instances=[("3g.20gb", 0, [1, 1, 1])])
    gi = gpu.instances[0]
    last = gi.compute[2]._replace(reservations=(PROMISE,))
    gpu = gpu._replace(instances=(gi._replace(compute=(*gi.compute[:2], last)),))
    plan = plan_gpu(gpu, wish(A100, ("3g.20gb", [1])))
    assert plan.after[0].compute == (last,)
    assert plan.lost_reserved == ()


def test_a_cooperative_process_keeps_nothing_from_being_changed() -> None:
    gpu = boards.gpu(A100, instances=[("3g.20gb", 0), ("3g.20gb", 4)], busy={0})
    gi = next(each for each in gpu.instances if each.placement.start == 0)
    daemon = Process(77, "nvidia-persiste", kind="open", listed=False, cooperative=True)
    handed_over = gi._replace(compute=(gi.compute[0]._replace(processes=(daemon,), reservations=(PROMISE,)),))
    other = next(each for each in gpu.instances if each is not gi)
    gpu = gpu._replace(instances=(handed_over, other), processes=(daemon,))
    plan = plan_gpu(gpu, wish(A100, "7g.40gb"))
    assert (plan.lost_busy, plan.lost_reserved) == ((), (PROMISE,))
    assert plan_gpu(gpu, GpuWish(False)).lost_busy == ()
    assert plan_gpu(boards.gpu(A100, mode=False, processes=(daemon,)), wish(A100, "7g.40gb")).lost_busy == ()


@pytest.mark.parametrize("enabled", [True, False])
def test_a_change_of_the_mode_breaks_the_promises_of_the_gpu_and_of_its_instances(enabled: bool) -> None:
    other = Reservation("pod training-0", "kubelet")
    instances = [] if enabled else [("1g.5gb", 0)]
    gpu = promised(boards.gpu(A100, mode=not enabled, instances=instances, reservations=(other,)), 0)
    plan = plan_gpu(gpu, wish(A100, "7g.40gb") if enabled else GpuWish(False))
    assert plan.lost_reserved == ((other,) if enabled else (PROMISE, other))


def test_a_change_of_instances_leaves_the_promise_of_the_whole_gpu_alone() -> None:
    gpu = boards.gpu(A100, instances=[("1g.5gb", 0)], reservations=(PROMISE,))
    assert plan_gpu(gpu, wish(A100, "7g.40gb")).lost_reserved == ()


def test_a_mode_that_is_pending_already_breaks_no_promise() -> None:
    gpu = boards.gpu(A100, mode=False, mode_pending=True, reservations=(PROMISE,))
    assert plan_gpu(gpu, wish(A100, "7g.40gb")).lost_reserved == ()


def test_a_busy_compute_instance_counts_once_however_many_processes_it_has() -> None:
    crowd = tuple(Process(pid) for pid in range(10))
    gpu = boards.gpu(A100, instances=[("2g.10gb", 0), ("2g.10gb", 2, [1, 1])], busy={2})
    first = gpu.instances[0]
    crowded = first._replace(compute=(first.compute[0]._replace(processes=crowd),))
    gpu = gpu._replace(instances=(crowded, gpu.instances[1]))
    plan = plan_gpu(gpu, wish(A100, ("2g.10gb", [1, 1])))
    assert kept(plan) == [("2g.10gb", 2)]
    assert len(plan.lost_busy) == 10


def test_fewer_compute_instances_are_destroyed_even_if_more_gpu_instances_are() -> None:
    empty: list[boards.InstanceSpec] = [("1g.5gb", start, []) for start in (4, 5, 6)]
    gpu = boards.gpu(A100, instances=[("1g.5gb", 0), *empty])
    plan = plan_gpu(gpu, wish(A100, "3g.20gb", "1g.5gb", "1g.5gb", "1g.5gb"))
    assert kept(plan) == [("1g.5gb", 0)]
    assert ("3g.20gb", 4) in layout(plan)


def test_fewer_gpu_instances_are_destroyed_if_compute_instances_are_equal() -> None:
    gpu = boards.gpu(A100, instances=[("1g.5gb", start, []) for start in (0, 4, 5)])
    plan = plan_gpu(gpu, wish(A100, "3g.20gb", "1g.5gb", "1g.5gb", "1g.5gb"))
    assert kept(plan) == [("1g.5gb", 4), ("1g.5gb", 5)]
    assert ("3g.20gb", 0) in layout(plan)


@pytest.mark.parametrize(
    ("board", "name", "start"),
    [
        (A100, "1g.5gb", 6),
        (A100, "1g.10gb", 6),
        (A100, "2g.10gb", 4),
        (A100, "3g.20gb", 4),
        (H100, "1g.10gb+me", 6),
    ],
)
def test_an_instance_goes_where_it_leaves_most_room(board: str, name: str, start: int) -> None:
    assert layout(plan_gpu(boards.gpu(board), wish(board, name))) == [(name, start)]


def test_of_two_equal_instances_the_one_stays_that_leaves_more_room() -> None:
    gpu = boards.gpu(A100, instances=[("1g.5gb", 0), ("1g.5gb", 6)])
    assert kept(plan_gpu(gpu, wish(A100, "1g.5gb"))) == [("1g.5gb", 6)]


def test_room_is_no_reason_to_move_what_is_there() -> None:
    gpu = boards.gpu(A100, instances=[("1g.5gb", 0)])
    assert plan_gpu(gpu, wish(A100, "1g.5gb")).steps == ()


def test_room_counts_only_profiles_whose_engines_are_left() -> None:
    wanted = Profile(enum=7, id=1, name="1g.5gb+me", slices=1, gb=5, memory_mib=5, engines=Engines(ofa=1))
    wanted = wanted._replace(placements=(Placement(0, 1), Placement(3, 1)))
    # With places alone two of these are more than one of the next; but the only OFA is taken.
    without_engines = [wanted._replace(id=number, placements=(Placement(3, 1),)) for number in (2, 3)]
    with_engines = wanted._replace(id=4, engines=Engines(), placements=(Placement(0, 1),))
    gpu = boards.gpu(A100, profiles=(wanted, *without_engines, with_engines))
    plan = plan_gpu(gpu, GpuWish(True, (InstanceWish(wanted, (ComputeWish(1),)),)))
    assert layout(plan) == [("1g.5gb+me", 3)]


@pytest.mark.parametrize(("board", "name"), [(A30, "1g.6gb"), (A30, "2g.12gb"), (RTX, "1g.24gb"), (RTX, "2g.48gb+gfx")])
def test_with_equal_room_the_lower_start_wins(board: str, name: str) -> None:
    assert layout(plan_gpu(boards.gpu(board), wish(board, name))) == [(name, 0)]


def test_the_terms_of_the_cost_are_those_of_the_design_in_its_order() -> None:
    assert Cost._fields[:7] == ("busy_cis", "reserved_cis", "cis", "gis", "writes", "room", "starts")
    assert Loss._fields == Cost._fields[:5]


@pytest.mark.parametrize(
    ("board", "instances", "wishes"),
    [
        pytest.param(
            A100,
            [("1g.5gb", 0), ("2g.10gb", 2, [1, 1]), ("1g.5gb", 6, [])],
            ["2g.10gb", ("2g.10gb", [1, 1]), "1g.5gb", "1g.5gb+me", ("1g.5gb", [])],
            id="instances in places that matter",
        ),
        pytest.param(RTX, [], ["1g.24gb", "1g.24gb-me", "1g.24gb+gfx"], id="profiles that could change places"),
        pytest.param(A100, [], [("3g.20gb", [1, 1, 1]), "3g.20gb"], id="CIs that could change places"),
        pytest.param(A100, [], [("4g.20gb", [1, 2])], id="CIs in the order of the wish"),
    ],
)
def test_the_order_of_input_does_not_change_the_plan(
    board: str, instances: list[t.Any], wishes: list[InstanceText]
) -> None:
    gpu = boards.gpu(board, instances=instances)
    plans = {
        plan_gpu(gpu._replace(instances=ordered_instances), GpuWish(True, ordered_wishes))
        for ordered_instances in itertools.permutations(gpu.instances)
        for ordered_wishes in itertools.permutations(wish(board, *wishes).instances)
    }
    assert len(plans) == 1
    assert len({plan_gpu(gpu, GpuWish(True, each)) for each in _compute_orders(wish(board, *wishes).instances)}) == 1


def _compute_orders(wishes: tuple[InstanceWish, ...]) -> t.Iterator[tuple[InstanceWish, ...]]:
    yield wishes
    yield tuple(each._replace(compute=each.compute[::-1]) for each in wishes)


# --- what is kept ---------------------------------------------------------------------------------------------------


def test_a_gpu_instance_without_compute_instance_is_used_and_not_destroyed() -> None:
    gpu = boards.gpu(A100, instances=[("3g.20gb", 0, [])])
    plan = plan_gpu(gpu, wish(A100, "3g.20gb"))
    assert steps(plan) == ["create_ci 3g.20gb@0/0"]
    assert plan.after[0].id == gpu.instances[0].id


def test_a_gpu_instance_without_compute_instance_that_nobody_wants_is_destroyed() -> None:
    gpu = boards.gpu(A100, instances=[("3g.20gb", 4), ("1g.5gb", 0, [])])
    assert steps(plan_gpu(gpu, wish(A100, "3g.20gb"))) == ["destroy_gi 1g.5gb@0"]


def test_a_gpu_instance_without_compute_instance_can_be_what_is_wanted() -> None:
    gpu = boards.gpu(A100, instances=[("1g.5gb", 0), ("1g.5gb", 1, [])])
    assert plan_gpu(gpu, wish(A100, ("1g.5gb", []), "1g.5gb")).steps == ()


def test_compute_instances_are_regrouped_inside_their_gpu_instance() -> None:
    gpu = boards.gpu(H100, instances=[("3g.40gb", 0, [2, 1])], busy={(0, 2)})
    plan = plan_gpu(gpu, wish(H100, ("3g.40gb", [1, 1, 1])))
    assert steps(plan) == [
        "destroy_ci 2c.3g.40gb@0",
        "create_ci 1c.3g.40gb@0/0",
        "create_ci 1c.3g.40gb@0/1",
    ]
    assert [ci.id for ci in plan.after[0].compute] == [None, None, 1]
    assert plan.lost_busy == ()


def test_of_equal_compute_instances_the_busy_one_stays() -> None:
    gpu = boards.gpu(A100, instances=[("3g.20gb", 0, [1, 1, 1])], busy={(0, 1)})
    plan = plan_gpu(gpu, wish(A100, ("3g.20gb", [1])))
    assert compute(plan.after[0]) == [(1, 1)]
    assert plan.lost_busy == ()


def test_a_compute_instance_in_the_way_of_a_larger_one_is_destroyed() -> None:
    gpu = boards.gpu(H100, instances=[("3g.40gb", 0, [(1, 1)])])
    plan = plan_gpu(gpu, wish(H100, ("3g.40gb", [2, 1])))
    assert steps(plan) == ["destroy_ci 1c.3g.40gb@0", "create_ci 2c.3g.40gb@0/0", "create_ci 1c.3g.40gb@0/2"]


def test_a_new_compute_instance_goes_to_the_place_that_the_driver_names_first() -> None:
    gpu = boards.gpu(A100, instances=[("3g.20gb", 0, [1, 1, 1])])
    plan = plan_gpu(gpu, wish(A100, ("3g.20gb", [2, 1])))
    assert compute(plan.after[0]) == [(2, 0), (1, 2)]
    gpu = boards.gpu(A100, instances=[("4g.20gb", 0, [1, 1, 1, 1])])
    plan = plan_gpu(gpu, wish(A100, ("4g.20gb", [2, 1])))
    assert compute(plan.after[0]) == [(2, 0), (1, 2)]


def test_a_compute_instance_stays_though_a_new_one_would_like_its_place() -> None:
    gpu = boards.gpu(A100, instances=[("2g.10gb", 0, [(1, 0)])])
    plan = plan_gpu(gpu, wish(A100, ("2g.10gb", [1, 1])))
    assert steps(plan) == ["create_ci 1c.2g.10gb@0/1"]


def test_of_idle_compute_instances_the_leftmost_stay_whatever_the_order_they_are_listed_in() -> None:
    gpu = boards.gpu(A100, instances=[("3g.20gb", 0, [1, 1, 1])])
    instance = gpu.instances[0]
    for listed in itertools.permutations(instance.compute):
        plan = plan_gpu(gpu._replace(instances=(instance._replace(compute=listed),)), wish(A100, ("3g.20gb", [1, 1])))
        assert compute(plan.after[0]) == [(1, 0), (1, 1)]


def test_a_compute_instance_with_a_wider_share_of_processors_is_not_taken_for_the_plain_one() -> None:
    gpu = boards.gpu(H100, instances=[("2g.20gb", 0, [1])])
    instance = gpu.instances[0]
    wide = instance._replace(compute=(instance.compute[0]._replace(variant="rev1"),))
    plan = plan_gpu(gpu._replace(instances=(wide,)), wish(H100, ("2g.20gb", [1])))
    assert [step.kind for step in plan.steps] == ["destroy_ci", "create_ci"]


def test_a_compute_instance_of_hopper_blocks_its_whole_branch() -> None:
    sizes = [3, 3, 1]
    gpu = boards.gpu(H100, instances=[("7g.80gb", 0, [])])
    with pytest.raises(WishError, match="7g.80gb cannot hold compute instances of 3, 3, 1 slices together"):
        plan_gpu(gpu, wish(H100, ("7g.80gb", sizes)))
    gpu = boards.gpu(A100, instances=[("7g.40gb", 0, [])])
    plan = plan_gpu(gpu, wish(A100, ("7g.40gb", sizes)))
    assert compute(plan.after[0]) == [(3, 0), (1, 3), (3, 4)]


def test_wishes_that_differ_in_compute_instances_take_the_gpu_instances_that_have_them() -> None:
    gpu = boards.gpu(A100, instances=[("3g.20gb", 0, [3]), ("3g.20gb", 4, [1, 1, 1])])
    assert plan_gpu(gpu, wish(A100, ("3g.20gb", [1, 1, 1]), ("3g.20gb", [3]))).steps == ()
    assert plan_gpu(gpu, wish(A100, ("3g.20gb", [3]), ("3g.20gb", [1, 1, 1]))).steps == ()


def test_a_compute_instance_whose_place_is_unknown_lets_nothing_be_created_beside_it() -> None:
    gpu = boards.gpu(A100, instances=[("2g.10gb", 0, [1])])
    instance = gpu.instances[0]
    unknown = instance._replace(compute=(instance.compute[0]._replace(placement=None),))
    plan = plan_gpu(gpu._replace(instances=(unknown,)), wish(A100, ("2g.10gb", [1, 1])))
    assert [step.kind for step in plan.steps] == ["destroy_ci", "create_ci", "create_ci"]


# --- boards ---------------------------------------------------------------------------------------------------------


def test_twelve_memory_slices_are_planned_like_eight() -> None:
    gpu = boards.gpu(RTX, instances=[("1g.24gb", 0), ("1g.24gb", 9)], busy={9})
    plan = plan_gpu(gpu, wish(RTX, "2g.48gb", "1g.24gb", "1g.24gb"))
    assert layout(plan) == [("2g.48gb", 0), ("1g.24gb", 6), ("1g.24gb", 9)]
    assert plan.after[0].placement == Placement(0, 6)
    assert kept(plan) == [("1g.24gb", 9)]


def test_an_instance_with_all_media_engines_leaves_room_only_for_those_without() -> None:
    possible = plan_gpu(boards.gpu(RTX), wish(RTX, "1g.24gb+me.all", *["1g.24gb-me"] * 3))
    assert len(possible.after) == 4
    with pytest.raises(WishError, match=r"5 decoder engines of 4"):
        plan_gpu(boards.gpu(RTX), wish(RTX, "1g.24gb+me.all", "1g.24gb"))


def test_the_media_engines_of_an_instance_that_moves_are_free_for_its_successor() -> None:
    gpu = boards.gpu(A100, instances=[("1g.5gb+me", 0)])
    plan = plan_gpu(gpu, wish(A100, "4g.20gb", "1g.5gb+me"))
    assert layout(plan) == [("4g.20gb", 0), ("1g.5gb+me", 6)]
    kinds = [step.kind for step in plan.steps]
    assert kinds == ["destroy_ci", "destroy_gi", "create_gi", "create_ci", "create_gi", "create_ci"]


@pytest.mark.parametrize("board", [A30, A100, H100])
def test_two_instances_with_media_engines_are_refused_by_the_engine_that_lacks(board: str) -> None:
    name = next(profile.name for profile in boards.profiles(board) if profile.attributes == ("+me",))
    with pytest.raises(WishError, match=r"GPU 0 .* cannot hold 2x1g\.\d+gb\+me: .*2 ofa engines of 1"):
        plan_gpu(boards.gpu(board), wish(board, name, name))


# --- impossible and unknown -----------------------------------------------------------------------------------------


def test_possible_by_count_and_engines_but_not_by_placement_is_refused_with_a_picture() -> None:
    gpu = boards.gpu(A100, index=3, instances=[("3g.20gb", 0)])
    wanted = wish(A100, "3g.20gb", "3g.20gb", "1g.5gb")._replace(said="3g.20gb: 2, 1g.5gb: 1")
    with pytest.raises(WishError, match=r"GPU 3 .* cannot hold 3g.20gb: 2, 1g.5gb: 1: .*side by side") as refusal:
        plan_gpu(gpu, wanted)
    assert refusal.value.details["gpu"] == 3
    assert "2 x 3g.20gb" in refusal.value.details["picture"]
    assert refusal.value.details["picture"] in str(refusal.value)


def test_a_compute_size_that_the_instance_lacks_is_refused_with_the_sizes_it_has() -> None:
    with pytest.raises(WishError, match=r"3g.20gb cannot hold compute instances of 5 slices .* sizes of 1, 2, 3"):
        plan_gpu(boards.gpu(A100), wish(A100, ("3g.20gb", [5])))


def test_a_driver_that_lists_no_profiles_yet_gets_a_provisional_plan() -> None:
    listed, unlisted = boards.gpu(A100, mode=False), boards.gpu(A100, mode=False, profiles=None)
    plan = plan_gpu(unlisted, wish(A100, "3g.20gb", "1g.5gb+me"))
    assert plan.provisional
    assert plan.steps == plan_gpu(listed, wish(A100, "3g.20gb", "1g.5gb+me")).steps
    assert not plan_gpu(listed, wish(A100, "3g.20gb")).provisional
    assert not plan_gpu(unlisted, wish(A100)).provisional
    assert not plan_gpu(unlisted, GpuWish(True, mode_only=True)).provisional
    with pytest.raises(WishError, match="cannot hold 2x1g.5gb"):
        plan_gpu(unlisted, wish(A100, "1g.5gb+me", "1g.5gb+me"))


def test_a_plan_is_made_of_the_profiles_of_the_gpu_whatever_the_wish_was_made_of() -> None:
    # What the catalogue knew less of before MIG was on, the driver now says.
    gpu = boards.gpu(A100)
    other = tuple(
        each._replace(profile=each.profile._replace(name="3g.19gb", engines=Engines(ofa=1), placements=()))
        for each in wish(A100, "3g.20gb", "3g.20gb").instances
    )
    assert plan_gpu(gpu, GpuWish(True, other)) == plan_gpu(gpu, wish(A100, "3g.20gb", "3g.20gb"))


def test_a_profile_that_the_gpu_does_not_have_is_refused_with_those_it_has() -> None:
    with pytest.raises(WishError, match=r"does not offer 1g\.24gb\+gfx \(id 47\), only 1g\.5gb, "):
        plan_gpu(boards.gpu(A100), wish(RTX, "1g.24gb+gfx"))


def test_instances_of_an_unknown_board_whose_driver_lists_no_profiles_are_refused() -> None:
    gpu = boards.gpu(A100, mode=False, profiles=None, pci_device_id=0xFFFF10DE)
    with pytest.raises(WishError, match="GPU 0 cannot be planned: its driver lists no profiles while MIG is off"):
        plan_gpu(gpu, wish(A100, "1g.5gb"))


def test_mode_needs_no_profiles() -> None:
    gpu = boards.gpu(A100, mode=False, profiles=None)
    assert steps(plan_gpu(gpu, GpuWish(True, mode_only=True))) == ["set_mode on"]


def test_a_gpu_that_did_not_answer_is_not_planned() -> None:
    problem = Problem("nvmlDeviceGetGpuInstances", "GPU_IS_LOST", "reset the GPU or reboot the node")
    gpu = boards.gpu(A100, problems=(problem,))
    with pytest.raises(WishError, match="nvmlDeviceGetGpuInstances failed with GPU_IS_LOST; reset the GPU"):
        plan_gpu(gpu, wish(A100, "1g.5gb"))


def test_a_gpu_whose_mode_is_not_known_is_not_planned() -> None:
    with pytest.raises(WishError, match="GPU 0 does not say whether its MIG mode is on"):
        plan_gpu(boards.gpu(A100, mode=None), GpuWish(False))


def test_a_gpu_that_cannot_do_mig_is_refused_for_mig_and_fine_without() -> None:
    gpu = boards.gpu("tesla-t4")
    assert plan_gpu(gpu, GpuWish(False)) == GpuPlan(0, enabled=False, steps=(), after=())
    with pytest.raises(WishError, match=r"GPU 0 \(Tesla T4\) cannot do MIG"):
        plan_gpu(gpu, GpuWish(True, mode_only=True))


# --- exact layouts --------------------------------------------------------------------------------------------------


def test_an_exact_place_is_used_though_another_would_be_cheaper() -> None:
    gpu = boards.gpu(A100, instances=[("1g.5gb", 6)], busy={6})
    exact = GpuWish(True, (wished(A100, "1g.5gb", Placement(2, 1)),))
    plan = plan_gpu(gpu, exact)
    assert layout(plan) == [("1g.5gb", 2)]
    assert len(plan.lost_busy) == 1


def test_wishes_with_and_without_a_place_mix() -> None:
    wanted = GpuWish(True, (wished(A100, "1g.5gb"), wished(A100, "1g.5gb", Placement(0, 1)), wished(A100, "3g.20gb")))
    gpu = boards.gpu(A100, instances=[("1g.5gb", 0)])
    plan = plan_gpu(gpu, wanted)
    assert ("1g.5gb", 0) in kept(plan)
    assert ("3g.20gb", 4) in layout(plan)


def test_an_exact_compute_place_moves_a_compute_instance_that_is_elsewhere() -> None:
    gpu = boards.gpu(A100, instances=[("2g.10gb", 0, [(1, 0)])])
    exact = wished(A100, "2g.10gb", Placement(0, 2))._replace(compute=(ComputeWish(1, Placement(1, 1)),))
    plan = plan_gpu(gpu, GpuWish(True, (exact,)))
    assert steps(plan) == ["destroy_ci 1c.2g.10gb@0", "create_ci 1c.2g.10gb@0/1"]


def test_a_compute_instance_that_fills_its_gpu_instance_stays_however_long_the_driver_says_its_place_is() -> None:
    gpu = boards.gpu(H100, instances=[("1g.20gb", 0)])
    instance = gpu.instances[0]
    for size in (1, 2):
        compute_instance = instance.compute[0]._replace(placement=Placement(0, size))
        listed = gpu._replace(instances=(instance._replace(compute=(compute_instance,)),))
        exact = wished(H100, "1g.20gb", Placement(0, 2))
        assert plan_gpu(listed, GpuWish(True, (exact,))).steps == ()


def test_a_compute_instance_in_an_exact_place_serves_that_wish_and_not_a_free_one() -> None:
    gpu = boards.gpu(A100, instances=[("2g.10gb", 0, [(1, 1)])])
    mixed = wished(A100, "2g.10gb")._replace(compute=(ComputeWish(1), ComputeWish(1, Placement(1, 1))))
    plan = plan_gpu(gpu, GpuWish(True, (mixed,)))
    assert steps(plan) == ["create_ci 1c.2g.10gb@0/0"]


def test_a_place_that_the_profile_does_not_have_is_refused_with_those_it_has() -> None:
    exact = GpuWish(True, (wished(A100, "3g.20gb", Placement(2, 4)),))
    with pytest.raises(WishError, match="GPU 0 has no place 2:4 for 3g.20gb, only 0:4, 4:4") as refusal:
        plan_gpu(boards.gpu(A100), exact)
    assert "3g.20gb" in refusal.value.details["picture"]


def test_exact_places_that_overlap_are_refused() -> None:
    exact = (wished(A100, "3g.20gb", Placement(0, 4)), wished(A100, "1g.5gb", Placement(3, 1)))
    with pytest.raises(WishError, match="no way to place them side by side"):
        plan_gpu(boards.gpu(A100), GpuWish(True, exact))


@pytest.mark.parametrize("listed", [True, False])
def test_on_ampere_a_compute_instance_is_restored_also_where_the_driver_does_not_list_a_place(listed: bool) -> None:
    # The driver lists 0:2 for a 2c in a 3g, and takes 1:2 as well.
    gpu = boards.gpu(A100, instances=[("3g.20gb", 0)] if listed else [])
    exact = wished(A100, "3g.20gb", Placement(4, 4))._replace(compute=(ComputeWish(2, Placement(1, 2)),))
    anywhere = wished(A100, ("3g.20gb", [2]), Placement(4, 4))
    assert plan_gpu(gpu, GpuWish(True, (exact,))).after[0].compute[0].placement == Placement(1, 2)
    assert plan_gpu(gpu, GpuWish(True, (anywhere,))).after[0].compute[0].placement == Placement(0, 2)


def test_on_hopper_a_compute_instance_between_two_branches_is_refused_with_its_place() -> None:
    exact = wished(H100, "4g.40gb", Placement(0, 4))._replace(compute=(ComputeWish(2, Placement(1, 2)),))
    with pytest.raises(WishError, match=r"4g\.40gb cannot hold compute instances of 2 at 1:2 slices"):
        plan_gpu(boards.gpu(H100), GpuWish(True, (exact,)))


@pytest.mark.parametrize("listed", [True, False])
def test_a_variant_is_created_as_such_where_it_was(listed: bool) -> None:
    gpu = boards.gpu(H100, instances=[("2g.20gb", 2)] if listed else [])
    wide = wished(H100, "2g.20gb", Placement(0, 2))._replace(compute=(ComputeWish(1, Placement(0, 2), "rev1"),))
    plan = plan_gpu(gpu, GpuWish(True, (wide,)))
    created = plan.steps[-1]
    assert (created.slices, created.variant, created.compute_placement) == (1, "rev1", Placement(0, 2))
    assert (plan.after[0].compute[0].variant, plan.after[0].compute[0].name) == ("rev1", "1c.2g.20gb")


def test_a_variant_without_place_gets_the_one_it_has() -> None:
    # A checkpoint of mig-parted does not say where a compute instance was.
    wide = wished(H100, "2g.20gb", Placement(0, 2))._replace(compute=(ComputeWish(1, None, "rev1"),))
    assert plan_gpu(boards.gpu(H100), GpuWish(True, (wide,))).steps[-1].compute_placement == Placement(0, 2)


@pytest.mark.parametrize("starts", list(itertools.permutations(range(3))))
def test_compute_instances_of_an_exact_layout_come_in_its_order_and_so_get_their_numbers_again(
    starts: tuple[int, ...],
) -> None:
    inside = tuple(ComputeWish(1, Placement(start, 1)) for start in starts)
    exact = wished(A100, "3g.20gb", Placement(0, 4))._replace(compute=inside)
    created = plan_gpu(boards.gpu(A100), GpuWish(True, (exact,))).steps[1:]
    assert [step.compute_placement for step in created] == [Placement(start, 1) for start in starts]


def test_a_variant_that_is_there_stays() -> None:
    gpu = boards.gpu(H100, instances=[("2g.20gb", 0, [1])])
    gi = gpu.instances[0]
    wide = gi._replace(compute=(gi.compute[0]._replace(variant="rev1", placement=Placement(0, 2)),))
    wanted = InstanceWish(gi.profile, (ComputeWish(1, Placement(0, 2), "rev1"),), gi.placement)
    assert plan_gpu(gpu._replace(instances=(wide,)), GpuWish(True, (wanted,))).steps == ()


def test_a_variant_that_the_driver_does_not_list_is_refused_by_name() -> None:
    gpu = boards.gpu(A100, instances=[("2g.10gb", 0)])
    wide = wished(A100, "2g.10gb", Placement(2, 2))._replace(compute=(ComputeWish(1, Placement(0, 2), "rev1"),))
    with pytest.raises(WishError, match=r"compute instances of 1 \(rev1\) at 0:2 slices"):
        plan_gpu(gpu, GpuWish(True, (wide,)))


def test_an_exact_gpu_instance_without_compute_instance_is_made_so() -> None:
    gpu = boards.gpu(A100, instances=[("3g.20gb", 0)])
    orphan = wished(A100, ("3g.20gb", []), Placement(0, 4))
    assert [step.kind for step in plan_gpu(gpu, GpuWish(True, (orphan,))).steps] == ["destroy_ci"]
    assert [step.kind for step in plan_gpu(boards.gpu(A100), GpuWish(True, (orphan,))).steps] == ["create_gi"]


# --- mode -----------------------------------------------------------------------------------------------------------

ONE = [("1g.5gb", 0)]
TEARDOWN = ["destroy_ci 1g.5gb@0", "destroy_gi 1g.5gb@0"]
BUILD = ["create_gi 1g.5gb@6", "create_ci 1g.5gb@6/0"]


@pytest.mark.parametrize(
    ("current", "pending", "wanted", "expected"),
    [
        pytest.param(False, False, True, ["set_mode on", *BUILD], id="off to on: switch, then build"),
        pytest.param(False, True, True, [], id="on is pending: not asked for again, nothing else is possible"),
        pytest.param(True, False, True, ["set_mode on"], id="off is pending but on is wanted: taken back"),
        pytest.param(True, True, True, [], id="on stays on"),
        pytest.param(True, True, False, [*TEARDOWN, "set_mode off"], id="on to off: empty, then switch"),
        pytest.param(True, False, False, [], id="off is pending: not asked for again"),
        pytest.param(False, True, False, ["set_mode off"], id="on is pending but off is wanted: taken back"),
        pytest.param(False, False, False, [], id="off stays off"),
    ],
)
def test_mode_steps(current: bool, pending: bool, wanted: bool, expected: list[str]) -> None:
    gpu = boards.gpu(A100, mode=current, mode_pending=pending, instances=ONE if current else [])
    plan = plan_gpu(gpu, wish(A100, "1g.5gb") if wanted else GpuWish(False))
    assert steps(plan) == expected
    assert plan.enabled is wanted
    assert [gi.profile.name for gi in plan.after] == (["1g.5gb"] if wanted else [])


def test_what_is_impossible_is_refused_even_while_the_mode_is_pending() -> None:
    gpu = boards.gpu(A100, mode=False, mode_pending=True)
    with pytest.raises(WishError, match="side by side"):
        plan_gpu(gpu, wish(A100, "3g.20gb", "3g.20gb", "1g.5gb"))


@pytest.mark.parametrize("current", [False, True])
def test_mode_only_leaves_the_instances_of_a_gpu_that_stays_on(current: bool) -> None:
    gpu = boards.gpu(A100, mode=current, instances=ONE if current else [], busy={0})
    plan = plan_gpu(gpu, GpuWish(True, mode_only=True))
    assert steps(plan) == ([] if current else ["set_mode on"])
    assert plan.after == gpu.instances


def test_mode_only_off_empties_the_gpu() -> None:
    plan = plan_gpu(boards.gpu(A100, instances=ONE), GpuWish(False, mode_only=True))
    assert steps(plan) == [*TEARDOWN, "set_mode off"]


def test_mig_on_without_instances_empties_the_gpu() -> None:
    plan = plan_gpu(boards.gpu(A100, instances=ONE), GpuWish(True))
    assert steps(plan) == TEARDOWN
    assert plan.after == ()


JOB = Process(4711, "python")


@pytest.mark.parametrize(
    ("current", "pending", "wanted", "disturbed"),
    [
        pytest.param(False, False, True, True, id="switching on"),
        pytest.param(True, True, False, True, id="switching off"),
        pytest.param(False, True, True, False, id="no step while on is pending"),
        pytest.param(True, False, False, False, id="no step while off is pending"),
        pytest.param(True, False, True, False, id="taking back a pending off"),
        pytest.param(False, True, False, False, id="taking back a pending on"),
        pytest.param(True, True, True, False, id="no switch"),
    ],
)
def test_a_process_outside_all_instances_is_lost_only_by_a_mode_switch(
    current: bool, pending: bool, wanted: bool, disturbed: bool
) -> None:
    gpu = boards.gpu(A100, mode=current, mode_pending=pending, processes=(JOB,))
    plan = plan_gpu(gpu, wish(A100, "1g.5gb") if wanted else GpuWish(False))
    assert plan.lost_busy == ((JOB,) if disturbed else ())


def test_a_process_listed_for_its_instance_and_for_the_gpu_is_named_once() -> None:
    gpu = boards.gpu(A100, instances=ONE, busy={0})
    graphics = tuple(process._replace(kind="graphics") for process in gpu.processes)
    plan = plan_gpu(gpu._replace(processes=(*gpu.processes, *graphics, JOB)), GpuWish(False))
    assert [process.pid for process in plan.lost_busy] == [gpu.processes[0].pid, JOB.pid]


# --- steps ----------------------------------------------------------------------------------------------------------


def test_all_compute_instances_go_before_the_first_gpu_instance_and_creation_ascends() -> None:
    gpu = boards.gpu(A100, instances=[("3g.20gb", 4, [1, 1, 1]), ("2g.10gb", 0), ("2g.10gb", 2, [2])])
    plan = plan_gpu(gpu, wish(A100, ("2g.10gb", [1, 1]), "1g.5gb", "4g.20gb"))
    assert steps(plan) == [
        "destroy_ci 2g.10gb@0",
        "destroy_ci 2g.10gb@2",
        "destroy_ci 1c.3g.20gb@4",
        "destroy_ci 1c.3g.20gb@4",
        "destroy_ci 1c.3g.20gb@4",
        "destroy_gi 2g.10gb@0",
        "destroy_gi 2g.10gb@2",
        "destroy_gi 3g.20gb@4",
        "create_gi 4g.20gb@0",
        "create_ci 4g.20gb@0/0",
        "create_gi 2g.10gb@4",
        "create_ci 1c.2g.10gb@4/0",
        "create_ci 1c.2g.10gb@4/1",
        "create_gi 1g.5gb@6",
        "create_ci 1g.5gb@6/0",
    ]


def test_what_stays_keeps_its_ids_and_what_comes_has_none() -> None:
    gpu = boards.gpu(A100, instances=[("3g.20gb", 4), ("1g.5gb", 0)], busy={4})
    plan = plan_gpu(gpu, wish(A100, "3g.20gb", "2g.10gb"))
    assert plan.after[-1] == next(gi for gi in gpu.instances if gi.placement.start == 4)
    new = plan.after[0]
    assert (new.id, new.profile.name, new.placement) == (None, "2g.10gb", Placement(0, 2))
    assert new.compute == (
        ComputeInstance(id=None, slices=2, placement=Placement(0, 2), profile_id=None, name="2g.10gb"),
    )


@pytest.mark.parametrize("board", [A30, A100, H100, "b200-180gb", RTX])
def test_every_step_is_possible_when_its_turn_comes_and_the_last_one_leaves_what_is_wanted(board: str) -> None:
    generator = random.Random(board)
    for _attempt in range(150):
        before, target = _random_gpu(generator, board), _random_gpu(generator, board)
        wanted = GpuWish(
            True,
            tuple(
                InstanceWish(gi.profile, tuple(ComputeWish(ci.slices) for ci in gi.compute)) for gi in target.instances
            ),
        )
        plan = plan_gpu(before, wanted)
        result = _carried_out(board, before, plan)
        assert _multiset(result) == _multiset(target.instances)
        assert [gi.placement for gi in plan.after] == sorted(gi.placement for gi in result)


def _multiset(instances: t.Iterable[GpuInstance]) -> list[tuple[int, list[int]]]:
    return sorted((gi.profile.id, sorted(ci.slices for ci in gi.compute)) for gi in instances)


def _random_gpu(generator: random.Random, board: str) -> Gpu:
    """A GPU filled at random within its places and engines, with GIs whole, divided or without CI."""
    profiles = boards.profiles(board)
    budget = [max(counts) for counts in zip(*(profile.engines for profile in profiles))]
    places = [(profile, place) for profile in profiles for place in profile.placements]
    generator.shuffle(places)
    chosen: list[tuple[str, int, list[int]]] = []
    occupied: set[int] = set()
    for profile, place in places[: generator.randint(0, len(places))]:
        slots = set(range(place.start, place.start + place.size))
        left = [has - takes for has, takes in zip(budget, profile.engines)]
        if not slots & occupied and min(left) >= 0:
            occupied |= slots
            budget = left
            sizes = generator.choice([[profile.slices], [1] * profile.slices, [1], []])
            chosen.append((profile.name, place.start, sizes))
    return boards.gpu(board, instances=chosen, busy={gi[1] for gi in chosen if generator.random() < 0.3})


def _carried_out(board: str, gpu: Gpu, plan: GpuPlan) -> list[GpuInstance]:
    """The steps of a plan, each as strict as a driver."""
    there = {gi.placement: gi for gi in gpu.instances}
    for step in plan.steps:
        assert step.placement is not None
        if step.kind == "create_gi":
            profile = next(each for each in boards.profiles(board) if each.id == step.profile_id)
            assert step.placement in profile.placements
            for place in there:
                assert step.placement.start >= place.start + place.size or place.start >= (
                    step.placement.start + step.placement.size
                )
            there[step.placement] = GpuInstance(None, profile, step.placement)
            continue
        gi = there[step.placement]
        if step.kind == "destroy_gi":
            assert not gi.compute
            assert gi.id == step.gi_id
            del there[step.placement]
        elif step.kind == "destroy_ci":
            left = tuple(ci for ci in gi.compute if ci.id != step.ci_id)
            assert len(left) == len(gi.compute) - 1
            there[step.placement] = gi._replace(compute=left)
        else:
            assert step.kind == "create_ci"
            assert step.slices is not None
            assert step.compute_placement is not None
            new = range(step.compute_placement.start, step.compute_placement.start + step.compute_placement.size)
            for ci in gi.compute:
                assert ci.placement is not None
                assert not set(new) & set(range(ci.placement.start, ci.placement.start + ci.placement.size))
            offered = boards.compute_profiles(board, gi.profile.name)
            listed = [place for each in offered if each.slices == step.slices for place in each.placements]
            # The place of a CI that fills its GI is the driver's business, and not always as long as its slices say.
            assert step.compute_placement in listed or step.slices == gi.profile.slices
            created = ComputeInstance(None, step.slices, step.compute_placement)
            there[step.placement] = gi._replace(compute=(*gi.compute, created))
    return list(there.values())


# --- nodes ----------------------------------------------------------------------------------------------------------


def test_only_gpus_that_the_wish_names_are_planned_in_the_order_of_the_node() -> None:
    node = boards.node(*(boards.gpu(A100, index=index) for index in range(4)))
    wanted = Wanted("x", "given", {2: wish(A100, "1g.5gb"), 0: GpuWish(False)})
    plan = plan_node(node, wanted)
    assert [gpu_plan.gpu for gpu_plan in plan.gpus] == [0, 2]
    assert {step.gpu for step in plan.steps} == {0, 2}


def test_one_impossible_gpu_refuses_the_whole_node() -> None:
    node = boards.node(boards.gpu(A100), boards.gpu(A30, index=1))
    wanted = Wanted("x", "given", {0: wish(A100, "1g.5gb"), 1: wish(A30, "2g.12gb", "2g.12gb", "1g.6gb")})
    with pytest.raises(WishError) as refusal:
        plan_node(node, wanted)
    assert refusal.value.details["gpu"] == 1


def test_a_gpu_that_the_node_does_not_have_is_refused() -> None:
    node = boards.node(boards.gpu(A100))
    with pytest.raises(WishError, match="no GPU 5, only 1 numbered from 0"):
        plan_node(node, Wanted("x", "given", {5: GpuWish(False)}))
