# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The planner finds a layout whenever one exists, and the best: its plans are replayed and compared with the oracle."""

from __future__ import annotations

import itertools
import random
import typing as t

import pytest

from ansible_collections.gpufleet.mig.plugins.module_utils.engine import model, planner
from ansible_collections.gpufleet.mig.tests.unit.plugins.module_utils.engine import boards, oracle

A30 = "a30-24gb"
A100 = "a100-sxm4-40gb"
H100 = "h100-sxm5-80gb"
B200 = "b200-180gb"
RTX = "rtx-pro-6000-server"


Planner = t.Callable[[model.Gpu, model.GpuWish], model.GpuPlan]


def disagreement(case: oracle.Case, plan_gpu: Planner = planner.plan_gpu) -> t.Optional[str]:
    """What planner and oracle say differently about a case; ``None`` when they agree."""
    best = oracle.best(case.gpu, case.wish)
    try:
        plan = plan_gpu(case.gpu, case.wish)
    except model.WishError as error:
        return None if best is None else f"{oracle.plainly(case)}\n  oracle {best}\n  planner refuses: {error}"
    try:
        outcome = oracle.check_plan(case.gpu, case.wish, plan)
    except oracle.BrokenPlan as broken:
        return f"{oracle.plainly(case)}\n  oracle {best}\n  planner's plan is broken: {broken}"
    if outcome == best:
        return None
    steps = "\n    ".join(map(str, plan.steps))
    return f"{oracle.plainly(case)}\n  oracle  {best}\n  planner {outcome}\n    {steps}"


def assert_agreement(cases: t.Iterable[oracle.Case]) -> int:
    """Compare all cases; show the first three disagreements and count all. The number of cases."""
    number = 0
    found = []
    for case in cases:
        number += 1
        difference = disagreement(case)
        if difference is not None:
            found.append(difference)
    assert not found, f"{len(found)} of {number} cases:\n" + "\n".join(found[:3])
    return number


def transitions(board: str, exact: bool) -> t.Iterator[oracle.Case]:
    """From every layout to every layout; not exact: to the same instances, wherever they are best."""
    layouts = oracle.all_layouts(oracle.kinds_of(boards.gpu(board)))
    for before, after in itertools.product(layouts, repeat=2):
        gpu = oracle.gpu_with(board, before)
        yield oracle.Case(gpu, oracle.wish_for(gpu, after, exact))


def test_every_transition_between_the_layouts_of_a30_is_the_best() -> None:
    assert assert_agreement(transitions(A30, exact=False)) == 5776


def test_every_transition_to_an_exact_layout_of_a30_is_the_best() -> None:
    assert assert_agreement(transitions(A30, exact=True)) == 5776


def busy_transitions(board: str, seed: int, number: int) -> t.Iterator[oracle.Case]:
    """Random transitions, and of the instances before a random set is busy."""
    chance = random.Random(seed)
    layouts = oracle.all_layouts(oracle.kinds_of(boards.gpu(board)))
    names = {profile.id: profile.name for profile in boards.profiles(board)}
    for _each in range(number):
        before, after = chance.choice(layouts), chance.choice(layouts)
        busy = {slot.span[0] for slot in before if chance.random() < 0.5}
        gpu = boards.gpu(board, instances=[(names[slot.profile_id], slot.span[0]) for slot in before], busy=busy)
        yield oracle.Case(gpu, oracle.wish_for(gpu, after))


@pytest.mark.parametrize(("board", "number"), [(A30, 1000), (A100, 400), (H100, 200), (B200, 200), (RTX, 400)])
def test_busy_instances_are_spared_as_far_as_possible(board: str, number: int) -> None:
    assert assert_agreement(busy_transitions(board, 1, number)) == number


@pytest.mark.parametrize(("board", "number"), [(A30, 1500), (A100, 700), (H100, 700), (B200, 300), (RTX, 700)])
def test_a_random_change_is_the_best_one_and_refused_only_when_impossible(board: str, number: int) -> None:
    assert assert_agreement(oracle.CaseMaker(board, 1).cases(number)) == number


@pytest.mark.parametrize("board", [A30, A100, H100, B200, RTX])
def test_the_random_changes_are_of_every_kind(board: str) -> None:
    # What the tests above compare would be little if the sample were all of one kind.
    cases = list(oracle.CaseMaker(board, 1).cases(400))
    best = [oracle.best(case.gpu, case.wish) for case in cases]
    before = [gi for case in cases for gi in case.gpu.instances]
    wanted = [instance for case in cases for instance in case.wish.instances]
    counts = {
        "impossible": sum(outcome is None for outcome in best),
        "nothing to do": sum(outcome is not None and outcome.writes == 0 for outcome in best),
        "a busy CI is lost": sum(outcome is not None and outcome.busy_destroyed > 0 for outcome in best),
        "a reserved CI is lost": sum(outcome is not None and outcome.reserved_destroyed > 0 for outcome in best),
        "reserved CIs, none is lost": sum(
            outcome is not None
            and outcome.reserved_destroyed == 0
            and any(oracle.is_reserved(instance) for gi in case.gpu.instances for instance in gi.compute)
            for case, outcome in zip(cases, best)
        ),
        "cooperative process before": sum(
            process.cooperative for gi in before for instance in gi.compute for process in instance.processes
        ),
        "busy CIs, none is lost": sum(
            outcome is not None and outcome.busy_destroyed == 0 and bool(case.gpu.processes)
            for case, outcome in zip(cases, best)
        ),
        "GI without CI before": sum(not gi.compute for gi in before),
        "several CIs in a GI before": sum(len(gi.compute) > 1 for gi in before),
        "several CIs in a GI wanted": sum(len(instance.compute) > 1 for instance in wanted),
        "exact place wanted": sum(instance.placement is not None for instance in wanted),
        "exact place of a CI wanted": sum(ci.placement is not None for instance in wanted for ci in instance.compute),
        "MIG off before": sum(not case.gpu.mode_current for case in cases),
        "MIG off wanted": sum(not case.wish.enabled for case in cases),
        "only the mode wanted": sum(case.wish.mode_only for case in cases),
    }
    assert {kind: count for kind, count in counts.items() if count < 3} == {}


@pytest.mark.parametrize("board", [H100, B200])
def test_the_random_changes_have_variants_of_compute_instances(board: str) -> None:
    cases = list(oracle.CaseMaker(board, 1).cases(500))
    before = [instance for case in cases for gi in case.gpu.instances for instance in gi.compute]
    wanted = [ci for case in cases for instance in case.wish.instances for ci in instance.compute]
    assert sum(bool(instance.variant) for instance in before) >= 10
    assert sum(bool(ci.variant) for ci in wanted) >= 3
    # One profile of double memory has two kinds of CI that fill it.
    assert sum(ci.slices == 1 and ci.profile_id == 7 for ci in wanted) >= 3
    assert sum(ci.slices == 1 and ci.profile_id == 0 for ci in wanted) >= 3


# --- the comparison itself notices planners that are wrong ------------------------------------------------------------


def blind_to_processes(gpu: model.Gpu, wish: model.GpuWish) -> model.GpuPlan:
    """Plans as if nobody were at work, and is honest afterwards about whom it hits."""
    idle = tuple(
        gi._replace(compute=tuple(instance._replace(processes=()) for instance in gi.compute)) for gi in gpu.instances
    )
    plan = planner.plan_gpu(gpu._replace(instances=idle), wish)
    destroyed = {(step.gi_id, step.ci_id) for step in plan.steps if step.kind == "destroy_ci"}
    lost = [instance for gi in gpu.instances for instance in gi.compute if (gi.id, instance.id) in destroyed]
    processes = tuple(process for instance in lost for process in instance.processes if not process.cooperative)
    return plan._replace(lost_busy=processes)


def blind_to_reservations(gpu: model.Gpu, wish: model.GpuWish) -> model.GpuPlan:
    """Plans as if nothing were promised, and is honest afterwards about which promises it breaks."""
    free = tuple(
        gi._replace(compute=tuple(instance._replace(reservations=()) for instance in gi.compute))
        for gi in gpu.instances
    )
    plan = planner.plan_gpu(gpu._replace(instances=free), wish)
    destroyed = {(step.gi_id, step.ci_id) for step in plan.steps if step.kind == "destroy_ci"}
    lost = [instance for gi in gpu.instances for instance in gi.compute if (gi.id, instance.id) in destroyed]
    promises = dict.fromkeys(promise for instance in lost for promise in instance.reservations)
    after = {gi.id: gi for gi in gpu.instances}
    kept = {(gi.id, instance.id): instance for gi in gpu.instances for instance in gi.compute}
    return plan._replace(
        lost_reserved=tuple(promises),
        after=tuple(
            gi
            if gi.id is None
            else after[gi.id]._replace(
                compute=tuple(kept.get((gi.id, instance.id), instance) for instance in gi.compute)
            )
            for gi in plan.after
        ),
    )


def content_with_the_highest_places(gpu: model.Gpu, wish: model.GpuWish) -> model.GpuPlan:
    """Takes the possible layout with the highest starts, whatever it costs."""
    layouts = oracle.final_layouts(oracle.kinds_of(gpu), oracle.items_of(wish))
    if not layouts or not wish.enabled or wish.mode_only:
        return planner.plan_gpu(gpu, wish)
    highest = max(layouts, key=lambda layout: layout.starts)
    by_id = {profile.id: profile for profile in gpu.profiles or ()}
    exact = tuple(
        model.InstanceWish(
            by_id[slot.profile_id],
            tuple(
                model.ComputeWish(slices, place and model.Placement(*place), variant, kind)
                for slices, variant, place, kind in item.compute
            ),
            model.Placement(*slot.span),
        )
        for slot, item in highest.placed.items()
    )
    return planner.plan_gpu(gpu, wish._replace(instances=exact))


def refusing(gpu: model.Gpu, wish: model.GpuWish) -> model.GpuPlan:
    """Says that nothing is possible."""
    raise model.WishError("impossible")


def idle(gpu: model.Gpu, wish: model.GpuWish) -> model.GpuPlan:
    """Says that nothing is to be done."""
    return model.GpuPlan(gpu.index, wish.enabled, (), gpu.instances)


@pytest.mark.parametrize(
    "wrong", [blind_to_processes, blind_to_reservations, content_with_the_highest_places, refusing, idle]
)
def test_a_wrong_planner_is_noticed(wrong: Planner) -> None:
    cases = list(oracle.CaseMaker(A100, 1).cases(200))
    assert sum(disagreement(case, wrong) is not None for case in cases) >= 3
