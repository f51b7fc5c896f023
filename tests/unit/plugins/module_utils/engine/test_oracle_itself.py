# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The judge of the planner is judged: by cases worked out by hand, by walking, and by changing its order."""

from __future__ import annotations

import heapq
import itertools
import typing as t

import pytest

from ansible_collections.gpufleet.mig.plugins.module_utils.engine import model
from ansible_collections.gpufleet.mig.tests.unit.plugins.module_utils.engine import boards, oracle

A30 = "a30-24gb"
A100 = "a100-sxm4-40gb"
H100 = "h100-sxm5-80gb"
B200 = "b200-180gb"
RTX = "rtx-pro-6000-server"


def wish(gpu: model.Gpu, *instances: t.Any, **fields: t.Any) -> model.GpuWish:
    """``"1g.5gb"``, or ``("3g.20gb", [2, 1])`` with CIs, or ``("3g.20gb", [3], 4)`` with CIs and start."""
    by_name = {profile.name: profile for profile in gpu.profiles or ()}
    wanted = []
    for instance in instances:
        name, sizes, start = (*((instance,) if isinstance(instance, str) else instance), None, None)[:3]
        profile = by_name[name]
        place = next((place for place in profile.placements if place.start == start), None)
        compute = tuple(model.ComputeWish(slices) for slices in ([profile.slices] if sizes is None else sizes))
        wanted.append(model.InstanceWish(profile, compute, place))
    return model.GpuWish(enabled=True, instances=tuple(wanted), **fields)


def short(outcome: t.Optional[oracle.Outcome]) -> t.Any:
    """Busy CIs, CIs and GIs destroyed, writes, room, starts."""
    assert outcome is not None
    assert outcome.reserved_destroyed == 0
    return (outcome.busy_destroyed, *outcome[2:])


# --- what a GPU allows ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("board", "number"), [(A30, 76), (A100, 2319), (H100, 2319), (B200, 2319), (RTX, 717)])
def test_a_board_has_this_many_layouts(board: str, number: int) -> None:
    layouts = oracle.all_layouts(oracle.kinds_of(boards.gpu(board)))
    assert len(layouts) == number
    assert len({frozenset(layout) for layout in layouts}) == number


def test_the_empty_layout_and_the_layouts_with_media_engines_are_among_the_76_of_a30() -> None:
    layouts = oracle.all_layouts(oracle.kinds_of(boards.gpu(A30)))
    with_media_engines = {profile.id for profile in boards.profiles(A30) if profile.attributes}
    assert () in layouts
    assert sum(not any(slot.profile_id in with_media_engines for slot in layout) for layout in layouts) == 26


@pytest.mark.parametrize(
    ("board", "names", "possible"),
    [
        (A100, ["1g.5gb+me"], True),
        (A100, ["1g.5gb+me", "1g.5gb+me"], False),
        (A100, ["3g.20gb", "3g.20gb"], True),
        (A100, ["4g.20gb", "3g.20gb"], True),
        (A100, ["4g.20gb", "2g.10gb", "1g.5gb+me"], True),
        (A100, ["3g.20gb", "3g.20gb", "1g.5gb"], False),  # seven compute slices are enough, eight memory slices are not
        (A100, ["4g.20gb", "4g.20gb"], False),
        (A100, ["1g.5gb"] * 7, True),
        (A100, ["1g.5gb"] * 8, False),
        (A30, ["2g.12gb+me", "1g.6gb+me"], False),
        (A30, ["2g.12gb+me", "1g.6gb", "1g.6gb"], True),
        (RTX, ["1g.24gb+me.all", "1g.24gb-me", "1g.24gb-me", "1g.24gb-me"], True),
        (RTX, ["1g.24gb+me.all", "1g.24gb"], False),
        (RTX, ["2g.48gb+me.all", "2g.48gb-me"], True),
        (RTX, ["1g.24gb+me", "1g.24gb", "2g.48gb+gfx"], True),
    ],
)
def test_slices_and_engines_decide_what_is_possible(board: str, names: list[str], possible: bool) -> None:
    gpu = boards.gpu(board)
    assert (oracle.best(gpu, wish(gpu, *names)) is not None) is possible


@pytest.mark.parametrize(
    ("board", "name", "sizes", "possible"),
    [
        (A100, "3g.20gb", [1, 1, 1], True),
        (A100, "3g.20gb", [2, 1], True),
        (A100, "3g.20gb", [2, 2], False),
        (A100, "7g.40gb", [3, 3, 1], True),  # 3c at 0 and 4, 1c at 3
        (H100, "7g.80gb", [3, 3, 1], False),  # a 3c keeps a whole half of the tree from others
        (H100, "7g.80gb", [3, 2, 1], True),
        (H100, "7g.80gb", [4, 2, 1], True),
        (H100, "3g.40gb", [2, 1], True),
        (A100, "1g.5gb", [], True),
    ],
)
def test_compute_slices_decide_which_instances_share_a_gpu_instance(
    board: str, name: str, sizes: list[int], possible: bool
) -> None:
    gpu = boards.gpu(board)
    assert (oracle.best(gpu, wish(gpu, (name, sizes))) is not None) is possible


def test_unlisted_windows_follow_the_architecture_and_listed_ones_are_taken_as_they_are() -> None:
    unlisted = next(profile for profile in boards.gpu(A100).profiles or () if profile.name == "4g.20gb")
    listed = next(
        profile for profile in boards.gpu(A100, instances=[("4g.20gb", 0)]).profiles or () if profile.name == "4g.20gb"
    )
    assert oracle.compute_windows("ampere", unlisted, 2) == ((0, 2), (1, 2), (2, 2))
    assert oracle.compute_windows("hopper", unlisted, 2) == ((0, 2), (2, 2))
    assert oracle.compute_windows("ampere", listed, 2) == ((0, 2), (2, 2))
    assert oracle.compute_windows("hopper", unlisted._replace(slices=7), 3) == ((0, 3), (4, 3))


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_of_several_kinds_the_filling_one_has_most_multiprocessors_and_a_small_one_is_plain(
    order: tuple[int, int],
) -> None:
    plain = model.ComputeProfile(0, 0, 1, 16, "", (model.Placement(0, 1),))
    wide = model.ComputeProfile(7, 7, 1, 26, "rev1", (model.Placement(0, 2),))
    offered = tuple((plain, wide)[position] for position in order)
    one_slice = model.Profile(9, 15, "1g.20gb", 1, 20, 20096, compute=offered)
    assert oracle.compute_windows("hopper", one_slice, 1) == ((0, 2),)
    assert oracle.compute_windows("hopper", one_slice._replace(slices=2), 1) == ((0, 1),)


# --- worked out by hand ---------------------------------------------------------------------------------------------


def test_the_example_of_the_design() -> None:
    gpu = boards.gpu(A100, instances=[("3g.20gb", 4), ("2g.10gb", 0), ("1g.5gb", 2), ("1g.5gb", 3)])
    outcome = oracle.best(gpu, wish(gpu, "3g.20gb", *["1g.5gb"] * 4))
    assert short(outcome) == (0, 1, 1, 6, 0, (0, 1, 2, 3, 4))


def test_what_fits_stays_and_costs_nothing() -> None:
    gpu = boards.gpu(A100, instances=[("3g.20gb", 0), ("1g.5gb", 6)], busy={0, 6})
    # Free are 4 and 5: two places each of 1g and 1g+me, and 1g.10gb and 2g at 4.
    assert short(oracle.best(gpu, wish(gpu, "1g.5gb", "3g.20gb"))) == (0, 0, 0, 0, 6, (0, 6))


def test_a_busy_instance_is_spared_at_the_price_of_many_idle_ones() -> None:
    idle = [("1g.5gb", 0), ("1g.5gb", 1), ("1g.5gb", 2), ("1g.5gb", 3)]
    gpu = boards.gpu(A100, instances=[*idle, ("1g.5gb", 4)], busy={4})
    # 3g at 4 would destroy the one with a process. Free afterwards: both 1g at 5 and 6, 1g.10gb at 6.
    assert short(oracle.best(gpu, wish(gpu, "3g.20gb", "1g.5gb"))) == (0, 4, 4, 10, 5, (0, 4))


def test_with_nobody_at_work_the_fewest_compute_instances_go() -> None:
    gpu = boards.gpu(A100, instances=[("1g.5gb", start) for start in range(5)])
    # 3g at 4 destroys one; at 0 it would destroy four.
    assert short(oracle.best(gpu, wish(gpu, "3g.20gb", *["1g.5gb"] * 4))) == (0, 1, 1, 4, 0, (0, 1, 2, 3, 4))


def test_a_reserved_instance_is_spared_after_busy_ones_and_before_all_others() -> None:
    gpu = boards.gpu(A100, instances=[("1g.5gb", start) for start in range(5)])
    wanted = wish(gpu, "3g.20gb", *["1g.5gb"] * 3)
    # One too many in any case. Without reservation 3g goes to 4 and the surplus one of 0 to 3 goes too.
    best = oracle.best(gpu, wanted)
    assert best is not None
    assert best.compute_destroyed == 2
    # With it, 3g goes to 0, at the price of four idle ones of which two come back.
    best = oracle.best(reserved(gpu, 4), wanted)
    assert best is not None
    assert (best.reserved_destroyed, best.compute_destroyed) == (0, 4)
    busy = boards.gpu(A100, instances=[("1g.5gb", start) for start in range(5)], busy={0, 1, 2})
    best = oracle.best(reserved(busy, 4), wanted)
    assert best is not None
    assert (best.busy_destroyed, best.reserved_destroyed, best.compute_destroyed) == (0, 1, 2)


def test_a_busy_instance_that_is_reserved_too_counts_as_busy_only() -> None:
    gpu = boards.gpu(A30, instances=[("1g.6gb", 0)], busy={0})
    best = oracle.best(reserved(gpu, 0), wish(gpu, "4g.24gb"))
    assert best is not None
    assert (best.busy_destroyed, best.reserved_destroyed) == (1, 0)


def test_a_cooperative_process_makes_an_instance_neither_busy_nor_any_less_reserved() -> None:
    gpu = boards.gpu(A30, instances=[("1g.6gb", 0)], busy={0})
    gi = gpu.instances[0]
    handing_over = tuple(process._replace(cooperative=True) for process in gi.compute[0].processes)
    gpu = gpu._replace(instances=(gi._replace(compute=(gi.compute[0]._replace(processes=handing_over),)),))
    for each, number in ((gpu, 0), (reserved(gpu, 0), 1)):
        best = oracle.best(each, wish(gpu, "4g.24gb"))
        assert best is not None
        assert (best.busy_destroyed, best.reserved_destroyed) == (0, number)


def reserved(gpu: model.Gpu, *starts: int) -> model.Gpu:
    """The GPU with the CIs of the GIs at these places promised to somebody."""
    promise = (model.Reservation("job 1"),)
    return gpu._replace(
        instances=tuple(
            gi._replace(compute=tuple(instance._replace(reservations=promise) for instance in gi.compute))
            if gi.placement.start in starts
            else gi
            for gi in gpu.instances
        )
    )


def test_an_empty_gpu_instance_goes_before_one_with_a_compute_instance() -> None:
    gpu = boards.gpu(A30, instances=[("1g.6gb", 0, []), ("1g.6gb", 3)])
    # 2g at 0 destroys the orphan only; the 1g at 3 is kept. Free is place 2: 1g and 1g+me.
    assert short(oracle.best(gpu, wish(gpu, "2g.12gb", "1g.6gb"))) == (0, 0, 1, 3, 2, (0, 3))


def test_an_orphan_that_fits_is_kept_and_gets_its_compute_instance() -> None:
    gpu = boards.gpu(A30, instances=[("2g.12gb", 2, [])])
    # Free are 0 and 1: 1g and 1g+me at both, 2g and 2g+me at 0.
    assert short(oracle.best(gpu, wish(gpu, "2g.12gb"))) == (0, 0, 0, 1, 6, (2,))


def test_inside_a_gpu_instance_that_stays_only_the_surplus_compute_instance_goes() -> None:
    gpu = boards.gpu(A100, instances=[("3g.20gb", 4, [1, 1, 1]), ("4g.20gb", 0)], busy={(4, 2)})
    # The driver lists one window for a 2c in a 3g: 0 and 1.
    assert short(oracle.best(gpu, wish(gpu, ("3g.20gb", [1, 2]), "4g.20gb"))) == (0, 2, 0, 3, 0, (0, 4))


def test_a_compute_instance_in_the_middle_is_in_the_way_of_a_larger_one() -> None:
    gpu = boards.gpu(A100, instances=[("3g.20gb", 0, [(1, 1)])], busy={0})
    assert short(oracle.best(gpu, wish(gpu, ("3g.20gb", [2, 1]))))[:4] == (1, 1, 0, 3)


def test_a_compute_instance_of_the_wide_kind_is_not_the_plain_one_that_is_wanted() -> None:
    gpu = boards.gpu(H100, instances=[("2g.20gb", 0, [1])])
    gi = gpu.instances[0]
    wide = gi._replace(compute=(gi.compute[0]._replace(variant="rev1"),))
    assert short(oracle.best(gpu._replace(instances=(wide,)), wish(gpu, ("2g.20gb", [1]))))[:4] == (0, 1, 0, 2)
    assert short(oracle.best(gpu, wish(gpu, ("2g.20gb", [1]))))[:4] == (0, 0, 0, 0)


def test_on_an_empty_gpu_room_decides_then_the_lowest_start() -> None:
    gpu = boards.gpu(A100)
    # A 1g at 6 leaves, of 28 pairs: 6 of each 1g, three 1g.10gb, three 2g, 3g at 0, 4g at 0.
    assert short(oracle.best(gpu, wish(gpu, "1g.5gb"))) == (0, 0, 0, 2, 20, (6,))
    gpu = boards.gpu(A30)
    assert short(oracle.best(gpu, wish(gpu, "1g.6gb"))) == (0, 0, 0, 2, 8, (0,))


def test_the_engines_that_are_used_up_count_as_room_that_is_gone() -> None:
    gpu = boards.gpu(A30)
    # After 1g+me at 0 neither 1g+me nor 2g+me can be created: three 1g and one 2g are left.
    assert short(oracle.best(gpu, wish(gpu, "1g.6gb+me"))) == (0, 0, 0, 2, 4, (0,))


def test_an_exact_wish_is_met_where_it_says_and_nowhere_else() -> None:
    gpu = boards.gpu(A30, instances=[("1g.6gb", 0)])
    assert short(oracle.best(gpu, wish(gpu, ("1g.6gb", None, 3))))[:4] == (0, 1, 1, 4)
    assert oracle.best(gpu, wish(gpu, ("2g.12gb", None, 2), ("1g.6gb", None, 3))) is None


def test_exact_places_of_compute_instances_count() -> None:
    gpu = boards.gpu(A100, instances=[("3g.20gb", 0, [(1, 0), (1, 2)])])
    profile = gpu.instances[0].profile
    there = tuple(model.ComputeWish(1, model.Placement(start, 1)) for start in (0, 1))
    wanted = model.GpuWish(enabled=True, instances=(model.InstanceWish(profile, there),))
    assert short(oracle.best(gpu, wanted))[:4] == (0, 1, 0, 2)


def test_mig_off_takes_everything_and_mode_only_takes_nothing() -> None:
    gpu = boards.gpu(A100, instances=[("3g.20gb", 0), ("3g.20gb", 4, [1, 2])], busy={0})
    assert short(oracle.best(gpu, model.GpuWish(enabled=False))) == (1, 3, 2, 5, 0, ())
    assert short(oracle.best(gpu, model.GpuWish(enabled=True, mode_only=True))) == (0, 0, 0, 0, 0, (0, 4))


# --- by walking -----------------------------------------------------------------------------------------------------


def steps_possible(replay: oracle.Replay) -> t.Iterator[model.Step]:
    """Every single write that the driver would accept now."""
    index = replay.gpu.index
    for slot in oracle.creatable(replay.kinds, replay.slots()):
        place = model.Placement(*slot.span)
        yield model.Step("create_gi", index, profile_id=slot.profile_id, placement=place)
    for gi in replay.layout.values():
        if not gi.compute:
            yield model.Step("destroy_gi", index, gi_id=gi.id, placement=gi.placement)
        for instance in gi.compute:
            yield model.Step("destroy_ci", index, gi_id=gi.id, ci_id=instance.id, placement=gi.placement)
        taken = {
            one
            for instance in gi.compute
            for one in oracle.compute_taken(replay.gpu.architecture, oracle.span_of(instance.placement))
        }
        for slices in range(1, gi.profile.slices + 1):
            for window in oracle.compute_windows(replay.gpu.architecture, gi.profile, slices):
                if not oracle.compute_taken(replay.gpu.architecture, window) & taken:
                    yield model.Step(
                        "create_ci",
                        index,
                        placement=gi.placement,
                        slices=slices,
                        compute_placement=model.Placement(*window),
                    )


def after_step(replay: oracle.Replay, step: model.Step) -> t.Optional[oracle.Replay]:
    """The GPU one write later; ``None`` for destroying something new, which has no id yet and is never worth it."""
    if step.kind.startswith("destroy") and (step.gi_id is None or (step.kind == "destroy_ci" and step.ci_id is None)):
        return None
    later = oracle.Replay(replay.gpu)
    later.layout, later.lost = dict(replay.layout), list(replay.lost)
    later.lost_instances, later.writes = replay.lost_instances, replay.writes
    later.carry_out(step)
    return later


def best_by_walking(gpu: model.Gpu, wanted: model.GpuWish) -> t.Optional[oracle.Outcome]:
    """The best outcome over all sequences of writes: cheapest ways to every state (Dijkstra), then the best state."""
    count = itertools.count()
    start = oracle.Replay(gpu)
    queue = [(oracle.rank(start.outcome())[:5], next(count), start)]
    seen: set[t.Any] = set()
    ends: list[oracle.Outcome] = []
    while queue:
        _cost, _number, replay = heapq.heappop(queue)
        state = frozenset(oracle.described(gi) for gi in replay.layout.values())
        if state in seen:
            continue
        seen.add(state)
        try:
            oracle.check_layout(list(replay.layout.values()), wanted)
            ends.append(replay.outcome())
        except oracle.BrokenPlan:
            pass
        for step in steps_possible(replay):
            later = after_step(replay, step)
            if later is not None:
                heapq.heappush(queue, (oracle.rank(later.outcome())[:5], next(count), later))
    return min(ends, key=oracle.rank, default=None)


def test_no_sequence_of_writes_is_better_than_the_best_of_the_final_layouts() -> None:
    compared = impossible = 0
    for case in oracle.CaseMaker(A30, seed=7).cases(200):
        if not case.gpu.mode_current or not case.wish.enabled or case.wish.mode_only:
            continue
        # Without the media engine profiles, to keep the number of states small.
        ids = {profile.id for profile in case.gpu.profiles or () if not profile.attributes}
        used = {gi.profile.id for gi in case.gpu.instances} | {wanted.profile.id for wanted in case.wish.instances}
        if not used <= ids:
            continue
        profiles = tuple(profile for profile in case.gpu.profiles or () if profile.id in ids)
        gpu = case.gpu._replace(profiles=profiles)
        expected = best_by_walking(gpu, case.wish)
        assert oracle.best(gpu, case.wish) == expected, oracle.plainly(case)
        compared += 1
        impossible += expected is None
    assert compared >= 25
    assert impossible >= 2


# --- changing the order of preference ---------------------------------------------------------------------------------


def mutants() -> dict[str, tuple[oracle.Term, ...]]:
    """The order with one term left out, turned around, or exchanged with the next one."""
    found = {}
    terms = oracle.TERMS
    for position, term in enumerate(terms):
        before, after = terms[:position], terms[position + 1 :]
        found[f"without {term.name}"] = (*before, *after)
        found[f"{term.name} turned around"] = (*before, turned_around(term), *after)
        if after:
            found[f"{after[0].name} before {term.name}"] = (*before, after[0], term, *after[1:])
    return found


def turned_around(term: oracle.Term) -> oracle.Term:
    """The same criterion, larger is better."""

    def value(outcome: oracle.Outcome) -> t.Any:
        wanted = term.value(outcome)
        return tuple(-each for each in wanted) if isinstance(wanted, tuple) else -wanted

    return oracle.Term(f"{term.name} turned around", value)


# What is created less what is destroyed is given by what was there and what is wanted, so without detours the number of
# writes is twice the number of destroyed instances plus a constant: once CIs and GIs destroyed are equal, so are the
# writes. No plan can tell these orders apart from the right one; test_the_order_of_preference_term_by_term can.
EQUIVALENT = {
    "without instances",
    "without writes",
    "writes turned around",
    "writes before instances",
    "room before writes",
}


def hand_made_cases() -> list[oracle.Case]:
    """Cases that a random sample seldom has: one reserved CI against several idle ones, one CI against two orphans."""
    idle = boards.gpu(A100, instances=[("1g.5gb", start) for start in range(5)])
    orphans = boards.gpu(A30, instances=[("1g.6gb", 0, []), ("1g.6gb", 1, []), ("1g.6gb", 2)])
    return [
        oracle.Case(reserved(idle, 4), wish(idle, "3g.20gb", *["1g.5gb"] * 3)),
        oracle.Case(orphans, wish(orphans, "2g.12gb", "1g.6gb", "1g.6gb")),
    ]


Sample = list[tuple[oracle.Case, set[oracle.Outcome]]]


@pytest.fixture(scope="module")
def sample() -> Sample:
    """Possible cases with busy and reserved CIs, orphans and partial CIs, and all outcomes of each."""
    boards_and_numbers = ((A30, 300), (A100, 300), (H100, 150), (RTX, 150))
    cases = [case for board, number in boards_and_numbers for case in oracle.CaseMaker(board, 11).cases(number)]
    found = []
    for case in [*hand_made_cases(), *cases]:
        outcomes = oracle.outcomes(case.gpu, case.wish)
        if outcomes:
            found.append((case, outcomes))
    return found


def chosen_by(terms: t.Sequence[oracle.Term], outcomes: set[oracle.Outcome]) -> list[oracle.Outcome]:
    """All outcomes that are best in this order."""
    best = min(oracle.rank(outcome, terms) for outcome in outcomes)
    return [outcome for outcome in outcomes if oracle.rank(outcome, terms) == best]


@pytest.mark.parametrize("name", sorted(set(mutants()) - EQUIVALENT))
def test_a_planner_with_one_term_changed_is_noticed(name: str, sample: Sample) -> None:
    noticed = 0
    for _case, outcomes in sample:
        right = min(map(oracle.rank, outcomes))
        noticed += any(oracle.rank(choice) != right for choice in chosen_by(mutants()[name], outcomes))
    assert noticed > 0


@pytest.mark.parametrize("name", sorted(set(mutants()) - EQUIVALENT - {"without starts"}))
def test_an_oracle_with_one_term_changed_refuses_right_plans(name: str, sample: Sample) -> None:
    # An oracle that forgot its last term accepts too much instead, which the test above shows.
    refused = 0
    for _case, outcomes in sample:
        right = min(outcomes, key=oracle.rank)
        refused += right not in chosen_by(mutants()[name], outcomes)
    assert refused > 0


def test_writes_follow_from_what_is_destroyed(sample: Sample) -> None:
    for case, outcomes in sample:
        constant = {
            outcome.writes - 2 * (outcome.compute_destroyed + outcome.instances_destroyed) for outcome in outcomes
        }
        assert len(constant) == 1, oracle.plainly(case)


@pytest.mark.parametrize("name", sorted(EQUIVALENT))
def test_orders_that_no_plan_can_tell_apart_choose_the_same(name: str, sample: Sample) -> None:
    for case, outcomes in sample:
        assert chosen_by(mutants()[name], outcomes) == chosen_by(oracle.TERMS, outcomes), oracle.plainly(case)


# Better in one term, worse in all that come after it.
ORDER = (
    (oracle.Outcome(0, 9, 9, 9, 9, 0, (9, 9)), oracle.Outcome(1, 0, 0, 0, 0, 9, (0, 0)), "busy"),
    (oracle.Outcome(1, 0, 9, 9, 9, 0, (9, 9)), oracle.Outcome(1, 1, 0, 0, 0, 9, (0, 0)), "reserved"),
    (oracle.Outcome(1, 1, 0, 9, 9, 0, (9, 9)), oracle.Outcome(1, 1, 1, 0, 0, 9, (0, 0)), "compute"),
    (oracle.Outcome(1, 1, 1, 0, 9, 0, (9, 9)), oracle.Outcome(1, 1, 1, 1, 0, 9, (0, 0)), "instances"),
    (oracle.Outcome(1, 1, 1, 1, 0, 0, (9, 9)), oracle.Outcome(1, 1, 1, 1, 1, 9, (0, 0)), "writes"),
    (oracle.Outcome(1, 1, 1, 1, 1, 9, (9, 9)), oracle.Outcome(1, 1, 1, 1, 1, 8, (0, 0)), "room"),
    (oracle.Outcome(1, 1, 1, 1, 1, 1, (0, 9)), oracle.Outcome(1, 1, 1, 1, 1, 1, (1, 2)), "starts"),
)


@pytest.mark.parametrize(("better", "worse", "name"), ORDER, ids=[name for _better, _worse, name in ORDER])
def test_the_order_of_preference_term_by_term(better: oracle.Outcome, worse: oracle.Outcome, name: str) -> None:
    assert oracle.rank(better) < oracle.rank(worse)


@pytest.mark.parametrize("name", sorted(mutants()))
def test_every_change_of_the_order_breaks_a_line_of_the_order(name: str) -> None:
    terms = mutants()[name]
    assert any(oracle.rank(better, terms) >= oracle.rank(worse, terms) for better, worse, _name in ORDER)


# --- replaying plans --------------------------------------------------------------------------------------------------


class Example(t.NamedTuple):
    """The example of the design with its right plan; the 2g at 0 has a process."""

    gpu: model.Gpu
    wish: model.GpuWish
    plan: model.GpuPlan


@pytest.fixture
def example() -> Example:
    gpu = boards.gpu(A100, instances=[("3g.20gb", 4), ("2g.10gb", 0), ("1g.5gb", 2), ("1g.5gb", 3)], busy={0})
    wanted = wish(gpu, "3g.20gb", *["1g.5gb"] * 4)
    old = next(gi for gi in gpu.instances if gi.placement.start == 0)
    small = wanted.instances[-1].profile
    steps = [
        model.Step("destroy_ci", 0, gi_id=old.id, ci_id=0, placement=old.placement),
        model.Step("destroy_gi", 0, gi_id=old.id, placement=old.placement),
    ]
    after = [gi for gi in gpu.instances if gi is not old]
    window = model.Placement(0, 1)
    for start in (0, 1):
        place = model.Placement(start, 1)
        steps.append(model.Step("create_gi", 0, profile_id=small.id, placement=place))
        steps.append(model.Step("create_ci", 0, placement=place, slices=1, compute_placement=window))
        after.append(model.GpuInstance(None, small, place, (model.ComputeInstance(None, 1, window),)))
    return Example(gpu, wanted, model.GpuPlan(0, True, tuple(steps), tuple(after), old.compute[0].processes))


def test_a_right_plan_is_accepted_with_its_outcome(example: Example) -> None:
    outcome = oracle.check_plan(*example)
    assert outcome == oracle.best(example.gpu, example.wish)
    assert outcome == oracle.Outcome(1, 0, 1, 1, 6, 0, (0, 1, 2, 3, 4))


def with_step(plan: model.GpuPlan, position: int, **fields: t.Any) -> model.GpuPlan:
    """The plan with other fields in one step."""
    steps = list(plan.steps)
    steps[position] = steps[position]._replace(**fields)
    return plan._replace(steps=tuple(steps))


def reordered(plan: model.GpuPlan, *positions: int) -> model.GpuPlan:
    """The plan with only these steps, in this order."""
    return plan._replace(steps=tuple(plan.steps[position] for position in positions))


BROKEN: dict[str, tuple[t.Callable[[model.GpuPlan], model.GpuPlan], str]] = {
    "the plan of another GPU": (lambda plan: plan._replace(gpu=1), "another GPU"),
    "a step on another GPU": (lambda plan: with_step(plan, 0, gpu=1), "another GPU"),
    "the other mode": (lambda plan: plan._replace(enabled=False), "wrong mode"),
    "GI destroyed with its CI in it": (lambda plan: reordered(plan, 1, 2, 3, 4, 5), "still in it"),
    "CI destroyed twice": (lambda plan: reordered(plan, 0, 0, 1, 2, 3, 4, 5), "no such compute instance"),
    "GI destroyed twice": (lambda plan: reordered(plan, 0, 1, 1, 2, 3, 4, 5), "nothing is there"),
    "a GI id that is elsewhere": (lambda plan: with_step(plan, 0, gi_id=99), "another instance"),
    "no id": (lambda plan: with_step(plan, 1, gi_id=None), "does not say what"),
    "slices that are taken": (lambda plan: with_step(plan, 2, placement=model.Placement(2, 1)), "taken"),
    "a place that the profile has not": (
        lambda plan: with_step(plan, 2, placement=model.Placement(7, 1)),
        "no such place",
    ),
    "a profile that the GPU has not": (lambda plan: with_step(plan, 2, profile_id=77), "no such profile"),
    "CI before its GI": (lambda plan: reordered(plan, 0, 1, 3, 2, 4, 5), "nothing is there"),
    "create before destroy": (lambda plan: reordered(plan, 0, 2, 1, 3, 4, 5), "wrong order"),
    "CI nowhere": (lambda plan: with_step(plan, 3, compute_placement=None), "what or where"),
    "CI outside its GI": (lambda plan: with_step(plan, 3, compute_placement=model.Placement(1, 1)), "no such place"),
    "CI twice": (lambda plan: reordered(plan, 0, 1, 2, 3, 3, 4, 5), "compute slices are taken"),
    "a GI too few": (lambda plan: reordered(plan, 0, 1, 2, 3), "missing at the end"),
    "a CI too few": (lambda plan: reordered(plan, 0, 1, 2, 3, 4), "missing at the end"),
    "another layout said": (lambda plan: plan._replace(after=plan.after[:-1]), "another layout"),
    "an id said to be kept that is new": (
        lambda plan: plan._replace(after=(*plan.after[:-1], plan.after[-1]._replace(id=8))),
        "another layout",
    ),
    "silent about processes": (lambda plan: plan._replace(lost_busy=()), "lost_busy"),
    "mode switched without need": (
        lambda plan: plan._replace(steps=(model.Step("set_mode", 0, enabled=True), *plan.steps)),
        "mode that is there",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_plan_is_refused(name: str, example: Example) -> None:
    break_it, sentence = BROKEN[name]
    with pytest.raises(oracle.BrokenPlan, match=sentence):
        oracle.check_plan(example.gpu, example.wish, break_it(example.plan))


def test_a_plan_over_the_engine_budget_is_refused() -> None:
    gpu = boards.gpu(A30, instances=[("1g.6gb+me", 0)])
    profile = gpu.instances[0].profile
    replay = oracle.Replay(gpu)
    with pytest.raises(oracle.BrokenPlan, match="engines are taken"):
        replay.carry_out(model.Step("create_gi", 0, profile_id=profile.id, placement=model.Placement(1, 1)))


def test_instances_need_mig_on_and_mig_off_needs_them_gone() -> None:
    off = oracle.Replay(boards.gpu(A30, mode=False))
    with pytest.raises(oracle.BrokenPlan, match="with MIG off"):
        off.carry_out(model.Step("create_gi", 0, profile_id=14, placement=model.Placement(0, 1)))
    on = oracle.Replay(boards.gpu(A30, instances=[("1g.6gb", 0)]))
    with pytest.raises(oracle.BrokenPlan, match="takes instances with it"):
        on.carry_out(model.Step("set_mode", 0, enabled=False))


def test_a_worse_plan_is_carried_out_but_has_another_outcome(example: Example) -> None:
    # The 1g at 3 is destroyed and created again, which leads to the same layout.
    old = next(gi for gi in example.gpu.instances if gi.placement.start == 3)
    steps = list(example.plan.steps)
    steps[1:1] = [model.Step("destroy_ci", 0, gi_id=old.id, ci_id=0, placement=old.placement)]
    steps[3:3] = [model.Step("destroy_gi", 0, gi_id=old.id, placement=old.placement)]
    steps += [
        model.Step("create_gi", 0, profile_id=old.profile.id, placement=old.placement),
        model.Step("create_ci", 0, placement=old.placement, slices=1, compute_placement=model.Placement(0, 1)),
    ]
    anew = model.GpuInstance(None, old.profile, old.placement, (model.ComputeInstance(None, 1, model.Placement(0, 1)),))
    after = (*(gi for gi in example.plan.after if gi.placement.start != 3), anew)
    worse = oracle.check_plan(example.gpu, example.wish, example.plan._replace(steps=tuple(steps), after=after))
    assert worse == oracle.Outcome(1, 0, 2, 2, 10, 0, (0, 1, 2, 3, 4))
    assert worse in oracle.outcomes(example.gpu, example.wish)
    assert worse != oracle.best(example.gpu, example.wish)
