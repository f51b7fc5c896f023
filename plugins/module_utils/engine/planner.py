# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""From what a GPU has to what is wanted of it, with the least damage. Pure: no driver, no files.

This file is private to the collection gpufleet.mig and may change at any time.

The search is complete and plain: every layout that the wish can have on the GPU is listed, each gets its ``Cost``,
and the least one wins. That is few enough layouts (hundreds at most on boards with 7 or 4 compute slices), because
the layout decides what happens to the instances that are there. A GI of the layout that stands where one of the same
profile stands now *is* that one, kept: destroying it to create its like in the same place could only lose more.
Every other existing GI is destroyed and every other GI of the layout is created. It is the same inside a kept GI,
where the CIs that fit the wish stay in their places.

The engines that a layout takes are those of the wish, wherever its instances are, so they are checked once. All is
destroyed before anything is created, hence what has to fit is the layout alone, not what there is on the way to it.
"""

from __future__ import annotations

import collections
import itertools
import typing as t

from .catalog import profiles_of
from .drawing import draw_slots
from .model import (
    ComputeInstance,
    ComputeWish,
    Gpu,
    GpuInstance,
    GpuPlan,
    GpuWish,
    InstanceWish,
    Node,
    Placement,
    Plan,
    Process,
    Profile,
    Step,
    Wanted,
    WishError,
)
from .profiles import (
    compute_footprint,
    compute_placements,
    compute_profile,
    compute_sizes,
    engines_exceeded,
    is_unlisted_compute_placement,
    is_wanted_kind,
    name_of,
    span,
)

_ALL_SLICES = -1  # as a bit mask


class Loss(t.NamedTuple):
    """What something costs that is there now, and the driver writes. The first terms of ``Cost``, in its order."""

    busy_cis: int
    reserved_cis: int
    cis: int
    gis: int
    writes: int


class Cost(t.NamedTuple):
    """The order of preference among layouts: the first term in which two of them differ decides, lower is better.

    ``busy_cis``      CIs destroyed that have a process, other than cooperative ones
    ``reserved_cis``  CIs destroyed that are promised to somebody, other than busy ones
    ``cis``           CIs destroyed
    ``gis``           GIs destroyed
    ``writes``        create and destroy calls, of GIs and CIs; follows from the two before it as long as every layout
                      is the whole wish, since what is destroyed and is not there in the end is created elsewhere
    ``room``          (profile, placement) pairs that could still be created afterwards, negative: more is better
    ``starts``        starts of all GIs, ascending

    The two last only make the choice unique, so that the same input gives the same plan: ``profiles``, ids of the GIs
    by ascending start, and ``compute``, sizes and starts of the CIs of each GI, where larger CIs to the left win.
    """

    busy_cis: int
    reserved_cis: int
    cis: int
    gis: int
    writes: int
    room: int
    starts: tuple[int, ...]
    profiles: tuple[int, ...]
    compute: tuple[tuple[tuple[int, int], ...], ...]


class _Regrouping(t.NamedTuple):
    """How the CIs of one GI become the wanted ones. ``created`` have no id yet, and are in the order of creation."""

    kept: tuple[ComputeInstance, ...]
    destroyed: tuple[ComputeInstance, ...]
    created: tuple[ComputeInstance, ...]


class _Seat(t.NamedTuple):
    """One GI of a layout: a wish in a place. ``existing`` is the GI that stands there and is kept for it, if any.

    ``loss`` is counted from a GPU that loses everything it has: a kept GI takes back what destroying it would cost.
    """

    profile: Profile
    placement: Placement
    slots: int
    existing: t.Optional[GpuInstance]
    regrouping: _Regrouping
    loss: Loss


class _Group(t.NamedTuple):
    """So many wishes that are alike, and every seat that one of them can take."""

    number: int
    seats: tuple[_Seat, ...]


_Layout = tuple[_Seat, ...]


# --- plans ----------------------------------------------------------------------------------------------------------


def plan_node(node: Node, wanted: Wanted) -> Plan:
    """Plan every GPU that the wish names, in the node's order. Raises WishError for the first that is impossible."""
    unknown = sorted(set(wanted.wishes) - {gpu.index for gpu in node.gpus})
    if unknown:
        raise WishError(f"The node has no GPU {unknown[0]}, only {len(node.gpus)} numbered from 0.", gpu=unknown[0])
    return Plan(tuple(plan_gpu(gpu, wanted.wishes[gpu.index]) for gpu in node.gpus if gpu.index in wanted.wishes))


def plan_gpu(gpu: Gpu, wish: GpuWish) -> GpuPlan:
    """The plan of least ``Cost`` for one GPU.

    A mode that is already pending as wanted is not asked for again, and nothing else can be done until it is current:
    such a plan has no steps, and ``after`` is what is wanted. Where the driver lists no profiles because MIG is off,
    the plan is ``provisional``. Raises WishError, with ``gpu`` and where it helps ``picture`` in its details, when the
    GPU has no layout for the wish or what it has now is not known.
    """
    if not wish.enabled and gpu.mig_capable is False:
        return GpuPlan(gpu.index, enabled=False, steps=(), after=())
    current, pending = _known_mode(gpu)
    waits = current != wish.enabled and pending == wish.enabled
    if not wish.enabled:
        return GpuPlan(gpu.index, False, (), ()) if waits else _plan_off(gpu, current, pending)
    if wish.mode_only:
        after = gpu.instances if current else ()
        plan = GpuPlan(gpu.index, True, (), after)
    else:
        provisional = bool(wish.instances) and gpu.profiles is None
        plan = _plan_instances(*_as_offered(gpu, wish))._replace(provisional=provisional)
    if waits:
        return plan._replace(steps=(), lost_busy=(), lost_reserved=())
    if current and pending:
        return plan
    plan = plan._replace(steps=(_set_mode(gpu, True), *plan.steps))
    # Either MIG is off, or it is on and the order to turn it off is taken back. Only the first disturbs anybody.
    return plan if current else _with_loss_of_gpu(plan, gpu)


def _plan_off(gpu: Gpu, current: bool, pending: bool) -> GpuPlan:
    """Turn MIG off, which the driver refuses while there are instances, or take back the order to turn it on."""
    if not current:
        return GpuPlan(gpu.index, False, (_set_mode(gpu, False),) if pending else (), ())
    steps = (*_destroy_steps(gpu, gpu.instances, ()), _set_mode(gpu, False))
    plan = _with_loss_of_cis(GpuPlan(gpu.index, False, steps, ()), [ci for gi in gpu.instances for ci in gi.compute])
    return _with_loss_of_gpu(plan, gpu)


def _as_offered(gpu: Gpu, wish: GpuWish) -> tuple[Gpu, GpuWish]:
    """The GPU with the profiles that a plan is made of, and the wish in these.

    A wish may come from elsewhere: from the catalogue, before MIG was on, or from a file.
    """
    if not wish.instances:
        return gpu, wish
    offered = profiles_of(gpu)
    if offered is None:
        raise WishError(
            f"GPU {gpu.index} cannot be planned: its driver lists no profiles while MIG is off; turn MIG on first"
            " (mode_only), then ask for instances.",
            gpu=gpu.index,
        )
    by_id = {profile.id: profile for profile in offered}
    for each in wish.instances:
        if each.profile.id not in by_id:
            raise WishError(
                f"GPU {gpu.index} ({gpu.name}) does not offer {each.profile.name} (id {each.profile.id}), only"
                f" {', '.join(profile.name for profile in offered)}.",
                gpu=gpu.index,
            )
    instances = tuple(each._replace(profile=by_id[each.profile.id]) for each in wish.instances)
    return gpu._replace(profiles=offered), wish._replace(instances=instances)


def _plan_instances(gpu: Gpu, wish: GpuWish) -> GpuPlan:
    """Bring a GPU with MIG on, or about to be, from its instances to the wanted ones."""
    layout = _best_layout(gpu, wish)
    kept = {seat.existing.id for seat in layout if seat.existing}
    destroyed = [gi for gi in gpu.instances if gi.id not in kept]
    regrouped = [seat for seat in layout if seat.existing and seat.regrouping.destroyed]
    lost_cis = [ci for gi in destroyed for ci in gi.compute]
    lost_cis += [ci for seat in regrouped for ci in seat.regrouping.destroyed]
    plan = GpuPlan(
        gpu=gpu.index,
        enabled=True,
        steps=(*_destroy_steps(gpu, destroyed, regrouped), *_create_steps(gpu, layout)),
        after=tuple(_instance_after(seat) for seat in layout),
    )
    return _with_loss_of_cis(plan, lost_cis)


def _known_mode(gpu: Gpu) -> tuple[bool, bool]:
    """Current and pending mode. Raises WishError where a plan would be a guess: what is not seen may be in use."""
    if gpu.problems:
        problem = gpu.problems[0]
        raise WishError(
            f"GPU {gpu.index} cannot be planned: {problem.call} failed with {problem.error}; {problem.remedy}.",
            gpu=gpu.index,
            call=problem.call,
            error=problem.error,
        )
    if gpu.mig_capable is False:
        raise WishError(f"GPU {gpu.index} ({gpu.name}) cannot do MIG.", gpu=gpu.index)
    if gpu.mode_current is None:
        raise WishError(f"GPU {gpu.index} does not say whether its MIG mode is on; reset it.", gpu=gpu.index)
    return gpu.mode_current, gpu.mode_current if gpu.mode_pending is None else gpu.mode_pending


def _with_loss_of_cis(plan: GpuPlan, lost: t.Sequence[ComputeInstance]) -> GpuPlan:
    """The plan, with whom it takes these CIs away from."""
    return plan._replace(
        lost_busy=_each_once(process for ci in lost for process in _blocking(ci.processes)),
        lost_reserved=tuple(dict.fromkeys(reservation for ci in lost for reservation in ci.reservations)),
    )


def _with_loss_of_gpu(plan: GpuPlan, gpu: Gpu) -> GpuPlan:
    """The plan, also with whom a change of the mode takes the whole GPU away from."""
    return plan._replace(
        lost_busy=_each_once((*plan.lost_busy, *_blocking(gpu.processes))),
        lost_reserved=tuple(dict.fromkeys((*plan.lost_reserved, *gpu.reservations))),
    )


def _blocking(processes: t.Iterable[Process]) -> tuple[Process, ...]:
    """Those that keep their instance from being taken; cooperative ones hand over to the driver."""
    return tuple(process for process in processes if not process.cooperative)


def _is_only_reserved(ci: ComputeInstance) -> bool:
    return bool(ci.reservations) and not _blocking(ci.processes)


def _each_once(processes: t.Iterable[Process]) -> tuple[Process, ...]:
    """A process is listed for its CI and for its GPU, and may use compute and graphics."""
    by_pid: dict[int, Process] = {}
    for process in processes:
        by_pid.setdefault(process.pid, process)
    return tuple(by_pid.values())


# --- the search -----------------------------------------------------------------------------------------------------


def _best_layout(gpu: Gpu, wish: GpuWish) -> _Layout:
    """The layout of least cost, by ascending start."""
    _require_engines(gpu, wish)
    groups = _groups(gpu, wish)
    everything = _sum(_loss(gi.compute, gis=1, writes=1) for gi in gpu.instances)
    room = _Room(gpu, wish)
    cheapest: t.Optional[tuple[Loss, int]] = None
    candidates: list[_Layout] = []
    for layout, slots in _layouts(groups):
        loss = _sum((everything, *(seat.loss for seat in layout)))
        so_far = (loss, -room.beside(slots))
        if cheapest is None or so_far < cheapest:
            cheapest, candidates = so_far, []
        if so_far == cheapest:
            candidates.append(tuple(sorted(layout, key=lambda seat: seat.placement)))
    if cheapest is None:
        raise _impossible(gpu, wish, "there is no way to place them side by side")
    loss, negative_room = cheapest
    return min(candidates, key=lambda layout: _cost(loss, negative_room, layout))


def _layouts(groups: t.Sequence[_Group], occupied: int = 0) -> t.Iterator[tuple[_Layout, int]]:
    """Every way to seat all groups side by side, each with the memory slices that it takes."""
    if not groups:
        yield (), occupied
        return
    free = [seat for seat in groups[0].seats if not seat.slots & occupied]
    for seats in itertools.combinations(free, groups[0].number):
        slots = _side_by_side(seats, occupied)
        if slots is not None:
            for others, all_slots in _layouts(groups[1:], slots):
                yield seats + others, all_slots


def _side_by_side(seats: t.Iterable[_Seat], occupied: int) -> t.Optional[int]:
    for seat in seats:
        if seat.slots & occupied:
            return None
        occupied |= seat.slots
    return occupied


def _cost(loss: Loss, negative_room: int, layout: _Layout) -> Cost:
    return Cost(
        *loss,
        room=negative_room,
        starts=tuple(seat.placement.start for seat in layout),
        profiles=tuple(seat.profile.id for seat in layout),
        compute=tuple(_compute_order(seat.regrouping) for seat in layout),
    )


class _Room:
    """Counts what could still be created beside a layout of the wish: profiles with engines left, places free."""

    def __init__(self, gpu: Gpu, wish: GpuWish) -> None:
        offered = gpu.profiles or ()
        taken = [each.profile for each in wish.instances]
        self._places = [
            span(placement)
            for profile in offered
            if not engines_exceeded([*taken, profile], offered)
            for placement in profile.placements
        ]
        self._known: dict[int, int] = {}

    def beside(self, slots: int) -> int:
        if slots not in self._known:
            self._known[slots] = sum(1 for place in self._places if not place & slots)
        return self._known[slots]


def _groups(gpu: Gpu, wish: GpuWish) -> list[_Group]:
    """The wishes, equal ones together, with their seats; those with few places to choose from first."""
    alike: dict[tuple[t.Any, ...], list[InstanceWish]] = {}
    for each in wish.instances:
        compute = tuple(sorted(each.compute, key=_compute_wish_order))
        alike.setdefault((each.profile.id, each.placement, compute), []).append(each)
    groups = [_Group(len(equal), tuple(_seats(gpu, equal[0]))) for equal in alike.values()]
    return sorted(groups, key=lambda group: len(group.seats))


def _seats(gpu: Gpu, wish: InstanceWish) -> t.Iterator[_Seat]:
    """Every place that this GI can have, in the driver's order."""
    profile = wish.profile
    there = {(gi.profile.id, gi.placement): gi for gi in gpu.instances}
    fresh = _regrouping(gpu, profile, (), wish.compute)
    if fresh is None:
        raise WishError(
            f"GPU {gpu.index}: a GPU instance {profile.name} cannot hold compute instances of"
            f" {', '.join(map(_compute_in_words, wish.compute))} slices together; it has {profile.slices} and"
            f" takes sizes of {_sizes_in_words(reversed(compute_sizes(profile)))}.",
            gpu=gpu.index,
        )
    for placement in _places_of(gpu, wish):
        existing = there.get((profile.id, placement))
        if existing is None:
            loss = _loss((), writes=1 + len(fresh.created))
            yield _Seat(profile, placement, span(placement), None, fresh, loss)
            continue
        # Never None: at worst all its CIs are destroyed, and then it is like a fresh one.
        regrouping = t.cast(_Regrouping, _regrouping(gpu, profile, existing.compute, wish.compute))
        changed = _loss(regrouping.destroyed, writes=len(regrouping.created))
        spared = _loss(existing.compute, gis=1, writes=1)
        loss = Loss(*(now - otherwise for now, otherwise in zip(changed, spared)))
        yield _Seat(profile, placement, span(placement), existing, regrouping, loss)


def _places_of(gpu: Gpu, wish: InstanceWish) -> tuple[Placement, ...]:
    profile = wish.profile
    if wish.placement is None:
        return profile.placements
    if wish.placement not in profile.placements:
        raise WishError(
            f"GPU {gpu.index} has no place {_place(wish.placement)} for {profile.name}, only"
            f" {', '.join(map(_place, profile.placements))} (start:size in memory slices).",
            gpu=gpu.index,
            picture=draw_slots([(profile, 1)], gpu.profiles or ()),
        )
    return (wish.placement,)


def _loss(cis: t.Sequence[ComputeInstance], gis: int = 0, writes: int = 0) -> Loss:
    """What it costs to destroy these CIs and so many GIs, with ``writes`` more calls than one for each CI."""
    return Loss(
        busy_cis=sum(1 for ci in cis if _blocking(ci.processes)),
        reserved_cis=sum(1 for ci in cis if _is_only_reserved(ci)),
        cis=len(cis),
        gis=gis,
        writes=len(cis) + writes,
    )


def _sum(losses: t.Iterable[Loss]) -> Loss:
    return Loss(*map(sum, zip(Loss(0, 0, 0, 0, 0), *losses)))


# --- compute instances of one GI ------------------------------------------------------------------------------------


def _regrouping(
    gpu: Gpu, profile: Profile, existing: tuple[ComputeInstance, ...], wishes: tuple[ComputeWish, ...]
) -> t.Optional[_Regrouping]:
    """The least loss with which the CIs of a GI become the wanted ones; ``None`` if it cannot hold these at all.

    Busy CIs destroyed count first, then reserved ones, then all; the writes follow from their number. Among equals, the
    new CIs get the places that ``compute_placements`` names first, and the kept ones are those furthest to the left.

    New ones come from left to right, but those of an exact layout in its order: the driver numbers them as they come,
    and with equal numbers they have equal UUIDs again.
    """
    sought = tuple(sorted(wishes, key=_compute_wish_order))
    best: t.Optional[tuple[tuple[t.Any, ...], _Regrouping]] = None
    for kept in _subsets(tuple(sorted(existing, key=_start))):
        destroyed = tuple(ci for ci in existing if ci not in kept)
        loss = _loss(destroyed)
        if best is not None and loss > best[0][0]:
            continue
        missing = _missing(profile, kept, sought)
        created = None if missing is None else _place_compute(gpu, profile, kept, missing)
        if created is None:
            continue
        ranks = tuple(rank for rank, _ci in created)
        order = (loss, ranks, tuple(map(_start, kept)))
        if best is None or order < best[0]:
            in_order = tuple(sorted((ci for _rank, ci in created), key=lambda ci: (_turn(ci, wishes), _start(ci))))
            best = order, _Regrouping(kept, destroyed, in_order)
    return best[1] if best else None


def _turn(ci: ComputeInstance, wishes: tuple[ComputeWish, ...]) -> int:
    """Which of the wishes wants this CI in this place; those that want it anywhere come last."""
    exact = ComputeWish(ci.slices, ci.placement, ci.variant)
    return wishes.index(exact) if exact in wishes else len(wishes)


def _subsets(cis: tuple[ComputeInstance, ...]) -> t.Iterator[tuple[ComputeInstance, ...]]:
    """All subsets, the largest first."""
    for size in range(len(cis), -1, -1):
        yield from itertools.combinations(cis, size)


def _missing(
    profile: Profile, kept: t.Iterable[ComputeInstance], wishes: tuple[ComputeWish, ...]
) -> t.Optional[tuple[ComputeWish, ...]]:
    """The wishes that these CIs do not serve; ``None`` if one of the CIs serves no wish."""
    missing = list(wishes)
    for ci in kept:
        # A wish for exactly this place can only be served by what is there; so it goes before one for any place.
        suitable = [
            each
            for each in missing
            if (each.slices, each.variant) == (ci.slices, ci.variant)
            and each.placement in (ci.placement, None)
            and is_wanted_kind(profile, ci, each.profile_id)
        ]
        if not suitable:
            return None
        missing.remove(min(suitable, key=lambda each: (each.placement is None, each.profile_id is None)))
    return tuple(missing)


def _place_compute(
    gpu: Gpu, profile: Profile, kept: t.Iterable[ComputeInstance], wishes: tuple[ComputeWish, ...]
) -> t.Optional[tuple[tuple[int, ComputeInstance], ...]]:
    """Places for new CIs beside the kept ones: for each its rank in ``compute_placements``, and the CI.

    Wishes for an exact place come first, then the largest; equal ones take their places in order. ``None`` if there
    is no way to place them. A wish for the CI that fills its GI is best left without a place: there is only one, which
    drivers list only for a GI that exists and not always as long as its slices (H100: 0:2 for the 1c of a 1g.20gb).
    """
    architecture = gpu.architecture

    def place(position: int, occupied: int, first: int) -> t.Optional[tuple[tuple[int, ComputeInstance], ...]]:
        if position == len(wishes):
            return ()
        wish = wishes[position]
        repeated = position + 1 < len(wishes) and wishes[position + 1] == wish
        for rank, placement in _compute_places(architecture, profile, wish):
            blocked = span(compute_footprint(architecture, placement))
            if rank < first or blocked & occupied:
                continue
            others = place(position + 1, occupied | blocked, rank + 1 if repeated else 0)
            if others is not None:
                return ((rank, _new_ci(profile, wish, placement)), *others)
        return None

    occupied = 0
    for ci in kept:
        occupied |= span(compute_footprint(architecture, ci.placement)) if ci.placement else _ALL_SLICES
    return place(0, occupied, 0)


def _compute_places(architecture: str, profile: Profile, wish: ComputeWish) -> list[tuple[int, Placement]]:
    """Where a wanted CI can be, each place with its rank in ``compute_placements``."""
    usual = compute_placements(architecture, profile, wish.slices, wish.variant, wish.profile_id)
    exact = wish.placement
    if exact is None:
        return list(enumerate(usual))
    if exact in usual:
        return [(usual.index(exact), exact)]
    if is_unlisted_compute_placement(architecture, profile, wish.slices, wish.variant, exact):
        return [(len(usual), exact)]
    return []


def _new_ci(profile: Profile, wish: ComputeWish, placement: Placement) -> ComputeInstance:
    kind = compute_profile(profile, wish.slices, wish.variant, wish.profile_id)
    return ComputeInstance(
        id=None,
        slices=wish.slices,
        placement=placement,
        variant=wish.variant,
        profile_id=kind.id if kind else wish.profile_id,
        name=name_of(profile, wish.slices),
    )


def _compute_wish_order(wish: ComputeWish) -> tuple[t.Any, ...]:
    profile_id = -1 if wish.profile_id is None else wish.profile_id
    return wish.placement is None, -wish.slices, wish.variant, wish.placement or Placement(0, 0), profile_id


def _compute_order(regrouping: _Regrouping) -> tuple[tuple[int, int], ...]:
    """Larger CIs first when two layouts differ in nothing else."""
    return tuple((-ci.slices, _start(ci)) for ci in sorted(regrouping.kept + regrouping.created, key=_start))


# --- steps ----------------------------------------------------------------------------------------------------------


def _set_mode(gpu: Gpu, enabled: bool) -> Step:
    return Step("set_mode", gpu.index, enabled=enabled)


def _destroy_steps(gpu: Gpu, instances: t.Sequence[GpuInstance], regrouped: t.Sequence[_Seat]) -> t.Iterator[Step]:
    """All CIs before the first GI, since a CI is where a holder that no list shows makes the driver refuse."""
    doomed = [(gi, ci) for gi in instances for ci in gi.compute]
    doomed += [(seat.existing, ci) for seat in regrouped if seat.existing for ci in seat.regrouping.destroyed]
    for gi, ci in sorted(doomed, key=lambda pair: (pair[0].placement, _start(pair[1]))):
        yield Step(
            "destroy_ci",
            gpu.index,
            gi_id=gi.id,
            ci_id=ci.id,
            placement=gi.placement,
            name=ci.name or name_of(gi.profile, ci.slices),
        )
    for gi in sorted(instances, key=lambda gi: gi.placement):
        yield Step("destroy_gi", gpu.index, gi_id=gi.id, placement=gi.placement, name=gi.profile.name)


def _create_steps(gpu: Gpu, layout: _Layout) -> t.Iterator[Step]:
    for seat in layout:
        if seat.existing is None:
            yield Step(
                "create_gi",
                gpu.index,
                profile_id=seat.profile.id,
                placement=seat.placement,
                name=seat.profile.name,
            )
        for ci in seat.regrouping.created:
            yield Step(
                "create_ci",
                gpu.index,
                profile_id=_unusual_kind(seat.profile, ci),
                placement=seat.placement,
                slices=ci.slices,
                compute_placement=ci.placement,
                name=ci.name,
                variant=ci.variant,
            )


def _unusual_kind(profile: Profile, ci: ComputeInstance) -> t.Optional[int]:
    """The profile of a CI where it has to be said: only an exact layout wants another kind than the driver's own."""
    usual = compute_profile(profile, ci.slices, ci.variant)
    return None if usual is not None and usual.id == ci.profile_id else ci.profile_id


def _instance_after(seat: _Seat) -> GpuInstance:
    compute = tuple(sorted(seat.regrouping.kept + seat.regrouping.created, key=_start))
    if seat.existing:
        return seat.existing._replace(compute=compute)
    return GpuInstance(id=None, profile=seat.profile, placement=seat.placement, compute=compute)


def _start(ci: ComputeInstance) -> int:
    return ci.placement.start if ci.placement else 0


# --- refusals -------------------------------------------------------------------------------------------------------


def _require_engines(gpu: Gpu, wish: GpuWish) -> None:
    exceeded = engines_exceeded([each.profile for each in wish.instances], gpu.profiles or ())
    if exceeded:
        needs = ", ".join(f"{needed} {kind} engines of {has}" for kind, (needed, has) in exceeded.items())
        raise _impossible(gpu, wish, f"together they need {needs}")


def _impossible(gpu: Gpu, wish: GpuWish, why: str) -> WishError:
    counts = collections.Counter(each.profile for each in wish.instances)
    said = wish.said or ", ".join(f"{number}x{profile.name}" for profile, number in counts.items())
    picture = draw_slots(list(counts.items()), gpu.profiles or ())
    return WishError(
        f"GPU {gpu.index} ({gpu.name}) cannot hold {said}: {why}; they can only be here:\n{picture}",
        gpu=gpu.index,
        picture=picture,
    )


def _place(placement: Placement) -> str:
    return f"{placement.start}:{placement.size}"


def _compute_in_words(wish: ComputeWish) -> str:
    """``2``, and of an exact layout ``2 at 1:2`` or ``1 (rev1) at 0:2``."""
    variant = f" ({wish.variant})" if wish.variant else ""
    return f"{wish.slices}{variant}{f' at {_place(wish.placement)}' if wish.placement else ''}"


def _sizes_in_words(sizes: t.Iterable[int]) -> str:
    return ", ".join(map(str, sizes))
