# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The judge of the planner: tries everything, and checks plans by replaying them.

Shares nothing with the planner but the data model. What a GPU allows is derived here a second time: spans of memory
slices, the engine budget (the largest amount of each engine that any profile takes), the windows of compute instances.

The order of preference is the list ``TERMS``; every term is a function of an ``Outcome``, smaller is better.
"""

from __future__ import annotations

import functools
import itertools
import random
import re
import typing as t

from ansible_collections.gpufleet.mig.plugins.module_utils.engine import model
from ansible_collections.gpufleet.mig.tests.unit.plugins.module_utils.engine import boards

Span = tuple[int, int]
"""Start and size, in slices."""

EngineCounts = tuple[int, ...]


class Slot(t.NamedTuple):
    """A profile at a place."""

    profile_id: int
    span: Span


ComputeItem = tuple[int, str, t.Optional[Span], t.Optional[int]]
"""A wanted CI: slices, variant, exact span or None, id of its profile or None."""


class Item(t.NamedTuple):
    """A wanted GI: its CIs, sorted so that equal wishes are equal; its exact span."""

    profile_id: int
    compute: tuple[ComputeItem, ...]
    span: t.Optional[Span]


class Outcome(t.NamedTuple):
    """Everything that the order of preference looks at. ``destroyed`` counts only what existed before the plan."""

    busy_destroyed: int
    reserved_destroyed: int
    compute_destroyed: int
    instances_destroyed: int
    writes: int
    room: int
    starts: tuple[int, ...]


class Term(t.NamedTuple):
    """One criterion: smaller values are better."""

    name: str
    value: t.Callable[[Outcome], t.Any]


TERMS: tuple[Term, ...] = (
    Term("busy", lambda outcome: outcome.busy_destroyed),
    Term("reserved", lambda outcome: outcome.reserved_destroyed),
    Term("compute", lambda outcome: outcome.compute_destroyed),
    Term("instances", lambda outcome: outcome.instances_destroyed),
    Term("writes", lambda outcome: outcome.writes),
    Term("room", lambda outcome: -outcome.room),
    Term("starts", lambda outcome: outcome.starts),
)


def is_busy(instance: model.ComputeInstance) -> bool:
    """Whether somebody works there who does not hand over when the driver asks."""
    return any(not process.cooperative for process in instance.processes)


def is_reserved(instance: model.ComputeInstance) -> bool:
    """Whether it is promised to somebody who is not at work yet; a busy one counts as busy only."""
    return bool(instance.reservations) and not is_busy(instance)


def rank(outcome: Outcome, terms: t.Sequence[Term] = TERMS) -> tuple[t.Any, ...]:
    """The tuple that is compared."""
    return tuple(term.value(outcome) for term in terms)


# --- what a GPU allows ----------------------------------------------------------------------------------------------


class Kind(t.NamedTuple):
    """A profile reduced to what decides where it can be."""

    profile_id: int
    engines: EngineCounts
    spans: tuple[Span, ...]


def kinds_of(gpu: model.Gpu) -> tuple[Kind, ...]:
    """All profiles of a GPU."""
    assert gpu.profiles is not None
    return tuple(
        Kind(profile.id, tuple(profile.engines), tuple((place.start, place.size) for place in profile.placements))
        for profile in gpu.profiles
    )


@functools.cache
def budget_of(kinds: tuple[Kind, ...]) -> EngineCounts:
    """How many of each engine there are: as many as the profile that takes most of them."""
    return tuple(max(amounts) for amounts in zip(*(kind.engines for kind in kinds)))


@functools.cache
def covered(span: Span) -> frozenset[int]:
    """The slices of a span."""
    return frozenset(range(span[0], span[0] + span[1]))


def creatable(kinds: tuple[Kind, ...], placed: t.Iterable[Slot]) -> list[Slot]:
    """Every slot whose slices are free and whose engines are left beside ``placed``."""
    engines_of = {kind.profile_id: kind.engines for kind in kinds}
    taken: set[int] = set()
    left = list(budget_of(kinds))
    for slot in placed:
        taken |= covered(slot.span)
        left = [amount - used for amount, used in zip(left, engines_of[slot.profile_id])]
    return [
        Slot(kind.profile_id, span)
        for kind in kinds
        if all(needed <= amount for needed, amount in zip(kind.engines, left))
        for span in kind.spans
        if not covered(span) & taken
    ]


@functools.cache
def all_layouts(kinds: tuple[Kind, ...]) -> tuple[tuple[Slot, ...], ...]:
    """Every set of GIs that can exist together, the empty one included."""
    found: list[tuple[Slot, ...]] = []

    def extend(placed: tuple[Slot, ...]) -> None:
        found.append(placed)
        for slot in creatable(kinds, placed):
            if not placed or slot > placed[-1]:
                extend((*placed, slot))

    extend(())
    return tuple(found)


class FinalLayout(t.NamedTuple):
    """One way to place a wish, with the two terms that depend on nothing else."""

    placed: dict[Slot, Item]
    room: int
    starts: tuple[int, ...]


@functools.cache
def final_layouts(kinds: tuple[Kind, ...], items: tuple[Item, ...]) -> tuple[FinalLayout, ...]:
    """Every way to place the items (sorted); exchanging equal items is not another way."""
    found: list[FinalLayout] = []

    def place(slots: tuple[Slot, ...]) -> None:
        if len(slots) == len(items):
            starts = tuple(sorted(slot.span[0] for slot in slots))
            found.append(FinalLayout(dict(zip(slots, items)), len(creatable(kinds, slots)), starts))
            return
        item = items[len(slots)]
        same_as_before = bool(slots) and item == items[len(slots) - 1]
        for slot in creatable(kinds, slots):
            if slot.profile_id != item.profile_id or item.span not in (None, slot.span):
                continue
            if not same_as_before or slot > slots[-1]:
                place((*slots, slot))

    place(())
    return tuple(found)


def compute_windows(
    architecture: str, profile: model.Profile, slices: int, variant: str = "", kind: t.Optional[int] = None
) -> tuple[Span, ...]:
    """Where a CI can be inside a GI: as the driver lists it, else by the rule of the architecture.

    Several kinds of as many slices differ in multiprocessors: the CI that fills a GI is the one with most of them if
    ``kind`` does not say which, a smaller CI is the plain one, or another one that is wanted by its variant. Ampere
    places a CI at any start; later chips have a binary tree, in which a span starts at a multiple of the next power of
    two. There is no rule for variants but one: rev1 has one slice and the multiprocessors of two, so it is on a pair of
    slices.
    """
    offered = [each for each in profile.compute or () if each.slices == slices and each.placements]
    if slices == profile.slices:
        offered.sort(key=lambda each: (each.id != kind, -each.multiprocessors))
    else:
        offered = [each for each in offered if each.variant == variant]
    if offered:
        return tuple(span_of(place) for place in offered[0].placements)
    if variant:
        pairs = tuple((start, 2) for start in range(0, profile.slices, 2) if start + 2 <= profile.slices)
        return pairs if profile.compute is None and variant == "rev1" and slices == 1 else ()
    step = 1 if architecture == "ampere" else power_of_two(slices)
    return tuple((start, slices) for start in range(0, profile.slices - slices + 1, step))


def windows_for(architecture: str, profile: model.Profile, item: ComputeItem) -> tuple[Span, ...]:
    """Where a wanted CI can be. One that was saved with its place can also be where the driver did not list a place.

    That is any span that fits on Ampere, and for a variant that no GI lists, since then nothing contradicts it.
    """
    slices, variant, exact, kind = item
    listed = compute_windows(architecture, profile, slices, variant, kind)
    if exact is None:
        return listed
    return (exact,) if exact in listed or fits_unlisted(architecture, profile, slices, variant, exact) else ()


def is_of_kind(profile: model.Profile, instance: model.ComputeInstance, kind: t.Optional[int]) -> bool:
    """Whether a CI has the profile that a saved one had; any will do where the GI has not got that one."""
    offered = [each.id for each in profile.compute or ()]
    missing = profile.compute is not None and kind not in offered
    return kind is None or instance.profile_id is None or instance.profile_id == kind or missing


def kind_created(profile: model.Profile, step: model.Step) -> t.Optional[int]:
    """The profile that the driver takes for a CI: the one asked for if the GI has it, else its own choice."""
    alike = [each for each in profile.compute or () if each.slices == step.slices]
    if step.slices != profile.slices:
        alike = [each for each in alike if each.variant == step.variant]
    if not alike:
        return step.profile_id
    return min(alike, key=lambda each: (each.id != step.profile_id, -each.multiprocessors)).id


def fits_unlisted(architecture: str, profile: model.Profile, slices: int, variant: str, span: Span) -> bool:
    """Whether the driver takes a CI on a span that it does not list."""
    if span[0] + span[1] > profile.slices:
        return False
    if variant:
        return profile.compute is None and slices != profile.slices
    kinds = {each.slices for each in profile.compute or ()}
    return architecture == "ampere" and span[1] == slices and (not kinds or slices in kinds)


def power_of_two(slices: int) -> int:
    """The least power of two that is not smaller."""
    return next(power for power in (1, 2, 4, 8) if power >= slices)


def compute_taken(architecture: str, span: Span) -> frozenset[int]:
    """The compute slices that a CI keeps others from: on the binary tree, its whole node."""
    return covered(span if architecture == "ampere" else (span[0], power_of_two(span[1])))


def compute_fits(
    architecture: str,
    profile: model.Profile,
    wished: tuple[ComputeItem, ...],
    kept: t.Sequence[model.ComputeInstance] = (),
) -> bool:
    """Whether a GI that has exactly the CIs ``kept`` can be completed to exactly the wished ones."""
    if len(kept) > len(wished):
        return False

    def complete(index: int, unused: tuple[model.ComputeInstance, ...], taken: frozenset[int]) -> bool:
        if index == len(wished):
            return not unused
        slices, variant, exact, kind = wished[index]
        for position, instance in enumerate(unused):
            fulfils = (instance.slices, instance.variant) == (slices, variant)
            if not fulfils or exact not in (None, span_of(instance.placement)):
                continue
            if not is_of_kind(profile, instance, kind):
                continue
            if complete(index + 1, unused[:position] + unused[position + 1 :], taken):
                return True
        for window in windows_for(architecture, profile, wished[index]):
            new = compute_taken(architecture, window)
            if not new & taken and complete(index + 1, unused, taken | new):
                return True
        return False

    already = [compute_taken(architecture, span_of(instance.placement)) for instance in kept]
    return complete(0, tuple(kept), frozenset().union(*already))


def span_of(placement: t.Optional[model.Placement]) -> Span:
    """A placement that must be there, as a plain pair."""
    assert placement is not None
    return (placement.start, placement.size)


# --- trying everything ----------------------------------------------------------------------------------------------


class Cost(t.NamedTuple):
    """The part of an ``Outcome`` that adds up over the GIs."""

    busy: int = 0
    reserved: int = 0
    compute: int = 0
    instances: int = 0
    writes: int = 0

    def plus(self, other: Cost) -> Cost:
        """The sum, field by field."""
        return Cost(*(one + two for one, two in zip(self, other)))


def outcome_of(cost: Cost, room: int, starts: tuple[int, ...]) -> Outcome:
    """Costs and layout together."""
    return Outcome(*cost, room, starts)


def destroying(lost: t.Iterable[model.ComputeInstance]) -> Cost:
    """What it costs to destroy some CIs."""
    lost = tuple(lost)
    return Cost(
        busy=sum(map(is_busy, lost)),
        reserved=sum(map(is_reserved, lost)),
        compute=len(lost),
        writes=len(lost),
    )


def choices(architecture: str, gi: model.GpuInstance, item: Item) -> set[Cost]:
    """What can be done with an existing GI where the final layout has one of its kind: the costs of every possibility.

    Keep it with any subset of its CIs that can be completed, or destroy it and create it again.
    """
    anew = 1 + len(item.compute)
    possible = {destroying(gi.compute).plus(Cost(instances=1, writes=1 + anew))}
    for number in range(len(gi.compute) + 1):
        for kept in itertools.combinations(gi.compute, number):
            if compute_fits(architecture, gi.profile, item.compute, kept):
                lost = [instance for instance in gi.compute if instance not in kept]
                possible.add(destroying(lost).plus(Cost(writes=len(item.compute) - number)))
    return possible


def items_of(wish: model.GpuWish) -> tuple[Item, ...]:
    """The wanted GIs in an order that does not depend on how the wish was written down."""
    items = [
        Item(
            instance.profile.id,
            tuple(sorted(map(compute_item, instance.compute), key=repr)),
            instance.placement and span_of(instance.placement),
        )
        for instance in wish.instances
    ]
    return tuple(sorted(items, key=repr))


def compute_item(wished: model.ComputeWish) -> ComputeItem:
    """A wanted CI as plain values."""
    return (wished.slices, wished.variant, wished.placement and span_of(wished.placement), wished.profile_id)


Possibilities = tuple[list[set[Cost]], FinalLayout]


def possibilities(gpu: model.Gpu, wish: model.GpuWish) -> t.Iterator[Possibilities]:
    """For each final layout: the alternatives at each place (choose one of each set and add them up)."""
    kinds = kinds_of(gpu)
    existing = {Slot(gi.profile.id, span_of(gi.placement)): gi for gi in gpu.instances}
    if not wish.enabled:
        yield [{removal(gi)} for gi in gpu.instances], FinalLayout({}, 0, ())
        return
    if wish.mode_only:
        starts = tuple(sorted(slot.span[0] for slot in existing))
        yield [{Cost()}], FinalLayout({}, len(creatable(kinds, existing)), starts)
        return
    items = items_of(wish)
    by_id = {profile.id: profile for profile in gpu.profiles or ()}
    if not all(compute_fits(gpu.architecture, by_id[item.profile_id], item.compute) for item in set(items)):
        return
    known: dict[tuple[Slot, Item], set[Cost]] = {}
    for layout in final_layouts(kinds, items):
        alternatives = []
        for slot, item in layout.placed.items():
            if slot not in existing:
                alternatives.append({Cost(writes=1 + len(item.compute))})
                continue
            if (slot, item) not in known:
                known[slot, item] = choices(gpu.architecture, existing[slot], item)
            alternatives.append(known[slot, item])
        alternatives += [{removal(gi)} for slot, gi in existing.items() if slot not in layout.placed]
        yield alternatives, layout


def removal(gi: model.GpuInstance) -> Cost:
    """What it costs to destroy a GI with all its CIs."""
    return destroying(gi.compute).plus(Cost(instances=1, writes=1))


def outcomes(gpu: model.Gpu, wish: model.GpuWish) -> set[Outcome]:
    """Every outcome that any plan without detours can have; empty when the wish is impossible."""
    found: set[Outcome] = set()
    for alternatives, layout in possibilities(gpu, wish):
        sums = {Cost()}
        for alternative in alternatives:
            sums = {so_far.plus(one) for so_far in sums for one in alternative}
        found |= {outcome_of(cost, layout.room, layout.starts) for cost in sums}
    return found


def best(gpu: model.Gpu, wish: model.GpuWish, terms: t.Sequence[Term] = TERMS) -> t.Optional[Outcome]:
    """The best outcome in an order of preference; ``None`` when the wish is impossible."""
    return min(outcomes(gpu, wish), key=lambda outcome: rank(outcome, terms), default=None)


# --- replaying a plan -----------------------------------------------------------------------------------------------


class BrokenPlan(AssertionError):
    """A plan that cannot be carried out, or that does not lead to what was wanted."""


def require(condition: object, message: str) -> None:
    """Refuse the plan unless the condition holds."""
    if not condition:
        raise BrokenPlan(message)


class Replay:
    """A GPU on which the steps of a plan are carried out one by one, as a driver would accept or refuse them."""

    def __init__(self, gpu: model.Gpu) -> None:
        self.gpu = gpu
        self.kinds = kinds_of(gpu)
        self.enabled = bool(gpu.mode_current)
        self.layout: dict[Span, model.GpuInstance] = {span_of(gi.placement): gi for gi in gpu.instances}
        self.lost: list[model.ComputeInstance] = []
        self.lost_instances = 0
        self.writes = 0

    def carry_out(self, step: model.Step) -> None:
        """One step."""
        require(step.gpu == self.gpu.index, f"{step} is for another GPU")
        getattr(self, f"_{step.kind}")(step)
        self.writes += step.kind != "set_mode"

    def _set_mode(self, step: model.Step) -> None:
        require(step.enabled is not None and step.enabled != self.enabled, f"{step} sets the mode that is there")
        require(step.enabled or not self.layout, f"{step} takes instances with it")
        self.enabled = bool(step.enabled)

    def _instance(self, step: model.Step) -> tuple[Span, model.GpuInstance]:
        """The GI that a step names, by its id where it has one, and in any case by its place."""
        require(self.enabled, f"{step} with MIG off")
        span = span_of(step.placement)
        require(span in self.layout, f"{step}: nothing is there")
        gi = self.layout[span]
        require(step.gi_id is None or step.gi_id == gi.id, f"{step}: another instance is there")
        return span, gi

    def _destroy_ci(self, step: model.Step) -> None:
        require(step.gi_id is not None and step.ci_id is not None, f"{step} does not say what")
        span, gi = self._instance(step)
        named = [instance for instance in gi.compute if instance.id == step.ci_id]
        require(len(named) == 1, f"{step}: no such compute instance")
        self.lost.append(named[0])
        self.layout[span] = gi._replace(compute=tuple(instance for instance in gi.compute if instance is not named[0]))

    def _destroy_gi(self, step: model.Step) -> None:
        require(step.gi_id is not None, f"{step} does not say what")
        span, gi = self._instance(step)
        require(not gi.compute, f"{step}: compute instances are still in it")
        del self.layout[span]
        self.lost_instances += 1

    def _create_gi(self, step: model.Step) -> None:
        require(self.enabled, f"{step} with MIG off")
        by_id = {profile.id: profile for profile in self.gpu.profiles or ()}
        require(step.profile_id in by_id, f"{step}: no such profile")
        new = Slot(t.cast(int, step.profile_id), span_of(step.placement))
        require(new in creatable(self.kinds, self.slots()), f"{step}: no such place, or slices or engines are taken")
        self.layout[new.span] = model.GpuInstance(None, by_id[new.profile_id], model.Placement(*new.span))

    def _create_ci(self, step: model.Step) -> None:
        span, gi = self._instance(step)
        require(step.slices and step.compute_placement, f"{step} does not say what or where")
        slices, window = t.cast(int, step.slices), span_of(step.compute_placement)
        architecture = self.gpu.architecture
        windows = windows_for(architecture, gi.profile, (slices, step.variant, window, step.profile_id))
        require(windows, f"{step}: no such place in this instance")
        for other in gi.compute:
            taken = compute_taken(architecture, span_of(other.placement)) & compute_taken(architecture, window)
            require(not taken, f"{step}: compute slices are taken")
        new = model.ComputeInstance(
            None, slices, model.Placement(*window), step.variant, kind_created(gi.profile, step)
        )
        self.layout[span] = gi._replace(compute=(*gi.compute, new))

    def slots(self) -> tuple[Slot, ...]:
        """The GIs that are there now."""
        return tuple(Slot(gi.profile.id, span) for span, gi in self.layout.items())

    def outcome(self) -> Outcome:
        """What the steps carried out so far cost, and what they left."""
        return Outcome(
            busy_destroyed=sum(map(is_busy, self.lost)),
            reserved_destroyed=sum(map(is_reserved, self.lost)),
            compute_destroyed=len(self.lost),
            instances_destroyed=self.lost_instances,
            writes=self.writes,
            room=len(creatable(self.kinds, self.slots())) if self.enabled else 0,
            starts=tuple(sorted(span[0] for span in self.layout)),
        )


ORDER_OF_STEPS = re.compile(r"(set_mode )?(destroy_ci )*(destroy_gi )*((create_ci )*(create_gi (create_ci )*)*)")
ORDER_WHEN_DISABLING = re.compile(r"(destroy_ci )*(destroy_gi )*(set_mode )?")


def check_plan(gpu: model.Gpu, wish: model.GpuWish, plan: model.GpuPlan) -> Outcome:
    """Replay a plan; raise ``BrokenPlan`` unless it can be carried out and leads to the wish. Its outcome."""
    require(plan.gpu == gpu.index, "the plan is for another GPU")
    require(plan.enabled == wish.enabled, "the plan says the wrong mode")
    kinds = "".join(f"{step.kind} " for step in plan.steps)
    order = ORDER_OF_STEPS if wish.enabled else ORDER_WHEN_DISABLING
    require(order.fullmatch(kinds), f"steps in the wrong order: {kinds}")
    replay = Replay(gpu)
    for step in plan.steps:
        replay.carry_out(step)
    require(replay.enabled == wish.enabled, "the mode at the end is not the wanted one")
    if not (wish.enabled and wish.mode_only):
        check_layout(list(replay.layout.values()), wish)
    require(
        sorted(map(described, plan.after)) == sorted(map(described, replay.layout.values())),
        "the plan says another layout than its steps lead to",
    )
    lost_busy = [process for instance in replay.lost for process in instance.processes if not process.cooperative]
    require(sorted(map(repr, plan.lost_busy)) == sorted(map(repr, lost_busy)), "lost_busy is not who loses a CI")
    promises = {promise for instance in replay.lost for promise in instance.reservations}
    require(set(plan.lost_reserved) == promises, "lost_reserved is not which promises are broken")
    require(len(plan.lost_reserved) == len(promises), "lost_reserved names a promise twice")
    return replay.outcome()


def check_layout(layout: list[model.GpuInstance], wish: model.GpuWish) -> None:
    """Whether GIs are exactly the wanted ones; exact placements of the wish count, any other place is as good."""
    left = list(layout)
    # Exact wishes take their instance first, so that a wish without a place cannot take it away from them.
    for wanted in sorted(wish.instances, key=lambda instance: (instance.placement is None, repr(instance.placement))):
        match = [gi for gi in left if is_wanted(gi, wanted)]
        require(match, f"missing at the end: {wanted.profile.name} with {wanted.compute}")
        left.remove(match[0])
    require(not left, f"too much at the end: {[gi.profile.name for gi in left]}")


def is_wanted(gi: model.GpuInstance, wanted: model.InstanceWish) -> bool:
    """Whether one GI is what one wish says."""
    if gi.profile.id != wanted.profile.id or wanted.placement not in (None, gi.placement):
        return False
    if len(gi.compute) != len(wanted.compute):
        return False
    return any(
        all(
            (instance.slices, instance.variant) == (ci.slices, ci.variant)
            and ci.placement in (None, instance.placement)
            and is_of_kind(gi.profile, instance, ci.profile_id)
            for instance, ci in zip(order, wanted.compute)
        )
        for order in itertools.permutations(gi.compute)
    )


def described(gi: model.GpuInstance) -> str:
    """A GI with its ids, kinds and places, without what a plan cannot know (names, MIG UUIDs, CI profile ids)."""
    compute = sorted(
        repr((instance.id, instance.slices, instance.variant, instance.placement and span_of(instance.placement)))
        for instance in gi.compute
    )
    return repr((gi.id, gi.profile.id, span_of(gi.placement), compute))


# --- cases ----------------------------------------------------------------------------------------------------------


class Case(t.NamedTuple):
    """A GPU and what is wanted of it."""

    gpu: model.Gpu
    wish: model.GpuWish


class Part(t.NamedTuple):
    """A CI that can be in a GI. Its span can be wider than its slices: the one of H100's 1g.20gb has 1 and spans 2.

    ``kind`` is the id of the profile where it fills its GI; there can be several.
    """

    slices: int
    variant: str
    span: Span
    kind: t.Optional[int] = None


def gpu_with(board: str, layout: t.Iterable[Slot]) -> model.Gpu:
    """A GPU of a board with these GIs, each with the CI that fills it."""
    names = {profile.id: profile.name for profile in boards.profiles(board)}
    return boards.gpu(board, instances=[(names[slot.profile_id], slot.span[0]) for slot in layout])


def wish_for(gpu: model.Gpu, layout: t.Iterable[Slot], exact: bool = False) -> model.GpuWish:
    """These GIs, each with the CI that fills it; ``exact`` also wants them where they are in the layout."""
    by_id = {profile.id: profile for profile in gpu.profiles or ()}
    return model.GpuWish(
        enabled=True,
        instances=tuple(
            model.InstanceWish(
                profile=by_id[slot.profile_id],
                compute=(model.ComputeWish(by_id[slot.profile_id].slices),),
                placement=model.Placement(*slot.span) if exact else None,
            )
            for slot in layout
        ),
    )


def exactly(gi: model.GpuInstance) -> model.InstanceWish:
    """The wish to have this GI as it is, where it is; the CI that fills it is wanted by its profile, not its place."""
    compute = tuple(
        model.ComputeWish(instance.slices, profile_id=instance.profile_id)
        if instance.slices == gi.profile.slices
        else model.ComputeWish(instance.slices, instance.placement, instance.variant)
        for instance in gi.compute
    )
    return model.InstanceWish(gi.profile, compute, gi.placement)


class CaseMaker:
    """Random cases of one board, the same ones for the same seed.

    Before: any possible layout; GIs filled, without CI, or partly filled with smaller CIs anywhere; some CIs busy, or
    reserved, or both, or with a cooperative process; CI placements listed by the driver or not; MIG off. Wanted:
    another layout, a change of the present one, impossible combinations, partial CIs and variants of them, exact
    layouts, MIG off, only the mode.
    """

    def __init__(self, board: str, seed: int) -> None:
        self.board = board
        self.random = random.Random(f"{board}/{seed}")
        self.pids = itertools.count(1000)

    @functools.cached_property
    def layouts_by_size(self) -> dict[int, list[tuple[Slot, ...]]]:
        """All layouts of the board by their number of GIs."""
        by_size: dict[int, list[tuple[Slot, ...]]] = {}
        for layout in all_layouts(kinds_of(boards.gpu(self.board))):
            by_size.setdefault(len(layout), []).append(layout)
        return by_size

    def furnished(self) -> model.Gpu:
        """A GPU with any layout and any CIs in it. Cheaper than a case: not all layouts of the board are listed."""
        gpu = boards.gpu(self.board)
        layout: tuple[Slot, ...] = ()
        for _each in range(self.random.randrange(8)):
            possible = creatable(kinds_of(gpu), layout)
            if possible:
                layout = (*layout, self.random.choice(possible))
        return self._furnish(gpu_with(self.board, layout))

    def cases(self, number: int) -> t.Iterator[Case]:
        """So many cases."""
        for _each in range(number):
            yield self.case()

    def case(self) -> Case:
        """One case."""
        gpu = self._furnish(gpu_with(self.board, self._layout()))
        if self._by_chance(0.05):
            gpu = gpu._replace(mode_current=False, mode_pending=False, instances=(), processes=())
        return Case(gpu, self._wish(gpu))

    def _layout(self) -> tuple[Slot, ...]:
        """Any layout; those of few large GIs as often as those of many small ones, which are far more."""
        return self.random.choice(self.layouts_by_size[self.random.choice(sorted(self.layouts_by_size))])

    def _by_chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def _furnish(self, gpu: model.Gpu) -> model.Gpu:
        """The same GIs with other CIs in them, some of them busy."""
        known = {profile.id: boards.compute_profiles(self.board, profile.name) for profile in gpu.profiles or ()}
        listed = self._by_chance(0.6)
        present = {gi.profile.id for gi in gpu.instances}
        by_id = {
            profile.id: profile._replace(compute=known[profile.id] if listed and profile.id in present else None)
            for profile in gpu.profiles or ()
        }
        busy_share = self.random.choice((0.0, 0.3, 0.7))
        instances = []
        for gi in gpu.instances:
            profile = by_id[gi.profile.id]
            parts = self._some_parts(gpu.architecture, profile)
            compute = tuple(self._compute_instance(number, part, busy_share) for number, part in enumerate(parts))
            instances.append(gi._replace(profile=profile, compute=compute))
        self.random.shuffle(instances)
        processes = tuple(process for gi in instances for instance in gi.compute for process in instance.processes)
        return gpu._replace(profiles=tuple(by_id.values()), instances=tuple(instances), processes=processes)

    def _some_parts(self, architecture: str, profile: model.Profile) -> list[Part]:
        """The CI that fills the GI, or none, or several small ones that fit beside each other.

        Few GIs have variants of a CI, so those that do have one more often.
        """
        variants = [part for part in self._parts(architecture, profile) if part.variant]
        if variants and self._by_chance(0.3):
            return [self.random.choice(variants)]
        chance = self.random.random()
        if chance < 0.1:
            return []
        if chance < 0.75:
            filling = [part for part in self._parts(architecture, profile) if part.slices == profile.slices]
            return [self.random.choice(filling)]
        possible = self._parts(architecture, profile)
        self.random.shuffle(possible)
        chosen: list[Part] = []
        taken: frozenset[int] = frozenset()
        for part in possible:
            if not compute_taken(architecture, part.span) & taken and self._by_chance(0.7):
                chosen.append(part)
                taken |= compute_taken(architecture, part.span)
        return chosen

    def _parts(self, architecture: str, profile: model.Profile) -> list[Part]:
        """All CIs that a GI can have, the wide ones too; where the driver lists no places, also those of the rule.

        On Ampere also those that somebody put where the driver does not list a place but takes it.
        """
        offered = boards.compute_profiles(self.board, profile.name)
        parts = {
            Part(each.slices, "", span_of(place), each.id)
            if each.slices == profile.slices
            else Part(each.slices, each.variant, span_of(place))
            for each in offered
            for place in each.placements
        }
        if profile.compute is None or architecture == "ampere":
            profile = profile._replace(compute=None)
            for slices in {each.slices for each in offered if each.slices < profile.slices}:
                parts |= {Part(slices, "", span) for span in compute_windows(architecture, profile, slices)}
        return sorted(parts)

    def _compute_instance(self, number: int, part: Part, busy_share: float) -> model.ComputeInstance:
        processes = []
        if self._by_chance(busy_share):
            processes.append(model.Process(next(self.pids), "python"))
        if self._by_chance(0.1):
            daemon = model.Process(next(self.pids), "nvidia-persiste", kind="open", listed=False, cooperative=True)
            processes.append(daemon)
        promises = self.random.choice((0, 0, 0, 0, 0, 1, 1, 2))
        return model.ComputeInstance(
            id=number,
            slices=part.slices,
            placement=model.Placement(*part.span),
            variant=part.variant,
            profile_id=part.kind,
            processes=tuple(processes),
            reservations=tuple(
                model.Reservation(f"job {self.random.randrange(10)}", "test") for _each in range(promises)
            ),
        )

    def _wish(self, gpu: model.Gpu) -> model.GpuWish:
        chance = self.random.random()
        if chance < 0.03:
            return model.GpuWish(enabled=False)
        if chance < 0.05:
            return model.GpuWish(enabled=True, mode_only=True)
        if chance < 0.35:
            instances = self._changed(gpu)
        elif chance < 0.45:
            profiles = gpu.profiles or ()
            instances = [
                self._instance(gpu, self.random.choice(profiles)) for _each in range(self.random.randint(1, 5))
            ]
        elif chance < 0.6:
            instances = [exactly(gi) for gi in self.furnished().instances]
        else:
            by_id = {profile.id: profile for profile in gpu.profiles or ()}
            exact = self.random.choice((0.0, 0.0, 0.0, 0.0, 0.3, 1.0))
            instances = []
            for slot in self._layout():
                place = model.Placement(*slot.span) if self._by_chance(exact) else None
                instances.append(self._instance(gpu, by_id[slot.profile_id], place))
        self.random.shuffle(instances)
        return model.GpuWish(enabled=True, instances=tuple(instances))

    def _changed(self, gpu: model.Gpu) -> list[model.InstanceWish]:
        """What is there, less some, plus some; the CIs mostly as they are."""
        instances = []
        kept = []
        for gi in gpu.instances:
            if self._by_chance(0.3):
                continue
            kept.append(Slot(gi.profile.id, span_of(gi.placement)))
            compute = tuple(model.ComputeWish(instance.slices) for instance in gi.compute)
            as_it_is = model.InstanceWish(gi.profile, tuple(sorted(compute, key=lambda wish: -wish.slices)))
            if self._by_chance(0.2):
                as_it_is = exactly(gi)
            instances.append(as_it_is if self._by_chance(0.7) else self._instance(gpu, gi.profile))
        by_id = {profile.id: profile for profile in gpu.profiles or ()}
        for _each in range(self.random.randint(0, 3)):
            possible = creatable(kinds_of(gpu), kept)
            if possible:
                kept.append(self.random.choice(possible))
                instances.append(self._instance(gpu, by_id[kept[-1].profile_id]))
        return instances

    def _instance(
        self, gpu: model.Gpu, profile: model.Profile, place: t.Optional[model.Placement] = None
    ) -> model.InstanceWish:
        chance = self.random.random()
        if chance < 0.7:
            sizes = [profile.slices]
        elif chance < 0.75:
            sizes = []
        else:
            # Mostly sizes that fit together, sometimes any whose sum is small enough.
            parts = self._some_parts(gpu.architecture, profile)
            sizes = [part.slices for part in parts if not part.variant]
            if self._by_chance(0.3):
                sizes = []
                while sum(sizes) < profile.slices and self._by_chance(0.8):
                    sizes.append(self.random.choice(self._parts(gpu.architecture, profile)).slices)
            elif place is not None and self._by_chance(0.5):
                parts.sort(key=lambda part: -part.slices)
                wishes = tuple(
                    model.ComputeWish(part.slices, profile_id=part.kind)
                    if part.slices == profile.slices
                    else model.ComputeWish(part.slices, model.Placement(*part.span), part.variant)
                    for part in parts
                )
                return model.InstanceWish(profile, wishes, place)
        compute = tuple(model.ComputeWish(slices) for slices in sorted(sizes, reverse=True))
        return model.InstanceWish(profile, compute, place)


def plainly(case: Case) -> str:
    """A case as text that can be typed in again."""
    before = []
    for gi in case.gpu.instances:
        compute = [
            (
                instance.id,
                instance.slices,
                instance.variant,
                span_of(instance.placement),
                is_busy(instance),
                is_reserved(instance),
            )
            for instance in gi.compute
        ]
        before.append((gi.id, gi.profile.name, span_of(gi.placement), compute))
    wanted = []
    for wish in case.wish.instances:
        compute_items = [compute_item(ci) for ci in wish.compute]
        wanted.append((wish.profile.name, compute_items, wish.placement and span_of(wish.placement)))
    listed = [profile.name for profile in case.gpu.profiles or () if profile.compute is not None]
    return (
        f"{case.gpu.name}, MIG {case.gpu.mode_current}, CI placements listed for {listed}\n"
        f"  before {before}\n  wanted enabled={case.wish.enabled} mode_only={case.wish.mode_only} {wanted}"
    )
