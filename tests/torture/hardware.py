# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a GPU allows, for the generator and the judge: derived from the simulator's board data, without the product.

An *instance* here is ``Instance(kind, start, size, compute)``: the name of a GPU instance's profile, its memory slices,
and its compute instances as (profile id, start, size). A *layout* is a tuple of them, sorted.
"""

from __future__ import annotations

import functools
import itertools
import random
import typing as t

from nvmlsim import load_boards

Span = tuple[int, int]
Compute = tuple[int, int, int]

# A figure that nobody published makes a board unfit to decide anything; these do not touch what can be created.
HARMLESS_GUESSES = {"reported counts", "min_driver", "compute instances of 1g-double", "narrow compute instances"}
WIDE_VARIANTS_FROM = 7  # nvml.h: NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE_REV1 and later are special kinds


class Instance(t.NamedTuple):
    """A GPU instance at its place, with its compute instances."""

    kind: str
    start: int
    size: int
    compute: tuple[Compute, ...] = ()


class ComputeKind(t.NamedTuple):
    """A profile of a compute instance; ``special`` ones are not what a plain wish of so many slices means."""

    id: int
    slices: int
    multiprocessors: int
    special: bool
    places: tuple[Span, ...]


class Kind(t.NamedTuple):
    """A profile of a GPU instance."""

    name: str
    id: int
    slices: int
    attributes: str
    memory_mib: int
    engines: tuple[int, ...]
    places: tuple[Span, ...]
    compute: tuple[ComputeKind, ...]

    @property
    def filling(self) -> ComputeKind:
        """The compute instance that fills this GPU instance: as many slices, and most multiprocessors."""
        return max((c for c in self.compute if c.slices == self.slices), key=lambda c: c.multiprocessors)

    def plain(self, slices: int) -> t.Optional[ComputeKind]:
        """The compute instance that a wish of so many slices means."""
        if slices == self.slices:
            return self.filling
        return next((c for c in self.compute if c.slices == slices and not c.special), None)


class Hardware(t.NamedTuple):
    """One model of GPU under one driver."""

    key: str
    mig: bool
    ampere: bool
    keeps_mode: bool
    budget: tuple[int, ...]
    kinds: tuple[Kind, ...]

    def kind(self, name: str) -> Kind:
        return next(kind for kind in self.kinds if kind.name == name)


def boards(mig: bool) -> list[str]:
    """Keys of the boards whose figures are complete, or of those that cannot do MIG."""
    return [
        key
        for key, board in load_boards().items()
        if not board.not_simulated
        and (bool(board.mig_capable and set(board.inferred) <= HARMLESS_GUESSES) if mig else not board.mig_capable)
    ]


@functools.cache
def hardware(key: str, branch: int, wide_ci_span: int = 2, plain_ci: bool = True) -> Hardware:
    """A board as a driver of this branch offers it."""
    board = load_boards(wide_ci_span=wide_ci_span, double_memory_plain_ci=plain_ci)[key]
    kinds = []
    known_enums = 10 if branch < 570 else 13 if branch < 575 else 17 if branch < 595 else 18
    for profile in board.profiles:
        if profile.since > branch or profile.enum >= known_enums:
            continue
        known = 7 if branch < 525 else 8
        compute = tuple(
            ComputeKind(c.id, c.slices, c.multiprocessors or 0, c.enum >= WIDE_VARIANTS_FROM, c.placements)
            for c in profile.compute
            if c.enum < known
        )
        attributes = profile.name.partition("gb")[2]
        kinds.append(
            Kind(
                profile.name,
                profile.id,
                profile.slices,
                attributes,
                profile.memory_mib,
                tuple(profile.engines),
                profile.placements,
                compute,
            )
        )
    return Hardware(
        key, board.mig_capable, board.architecture == "ampere", board.keeps_mode, tuple(board.engines), tuple(kinds)
    )


# --- GPU instances -------------------------------------------------------------------------------------------------


def slots(start: int, size: int) -> int:
    """A span as a set of bits."""
    return ((1 << size) - 1) << start


def room(hw: Hardware, placed: t.Iterable[tuple[str, int, int]]) -> list[tuple[Kind, Span]]:
    """Every (kind, place) that can still be created beside what is placed, given as (kind, start, size)."""
    taken, left = 0, list(hw.budget)
    for name, start, size in placed:
        taken |= slots(start, size)
        left = [have - used for have, used in zip(left, hw.kind(name).engines)]
    return [
        (kind, place)
        for kind in hw.kinds
        if all(needed <= have for needed, have in zip(kind.engines, left))
        for place in kind.places
        if not slots(*place) & taken
    ]


@functools.cache
def fits(hw: Hardware, names: tuple[str, ...], fixed: tuple[tuple[str, int, int], ...] = ()) -> bool:
    """Whether GPU instances of these kinds can be placed beside those that are fixed."""
    if not names:
        return not over_budget(hw, [name for name, _start, _size in fixed])
    free = [place for kind, place in room(hw, fixed) if kind.name == names[0]]
    return any(fits(hw, names[1:], tuple(sorted((*fixed, (names[0], *place))))) for place in free)


def over_budget(hw: Hardware, names: t.Iterable[str]) -> bool:
    used = [0] * len(hw.budget)
    for name in names:
        used = [have + more for have, more in zip(used, hw.kind(name).engines)]
    return any(have > limit for have, limit in zip(used, hw.budget))


@functools.cache
def maximum(hw: Hardware, name: str) -> int:
    """How many of one kind an empty GPU holds."""
    return next(count for count in itertools.count(1) if not fits(hw, (name,) * (count + 1)))


# --- compute instances ---------------------------------------------------------------------------------------------


def compute_taken(hw: Hardware, span: Span) -> int:
    """What a compute instance keeps others from: since Hopper they are nodes of a binary tree."""
    size = span[1] if hw.ampere else next(power for power in (1, 2, 4, 8) if power >= span[1])
    return slots(span[0], size)


def compute_places(hw: Hardware, kind: Kind, compute: ComputeKind) -> tuple[Span, ...]:
    """Where a compute instance can be: where the board lists it."""
    return compute.places


def compute_fits(hw: Hardware, kind: Kind, wanted: tuple[int, ...], kept: tuple[Compute, ...]) -> bool:
    """Whether compute instances of these profile ids fit beside the kept ones (all of them stay)."""
    if not wanted:
        return True
    taken = 0
    for _id, start, size in kept:
        taken |= compute_taken(hw, (start, size))
    profile = next(c for c in kind.compute if c.id == wanted[0])
    return any(
        compute_fits(hw, kind, wanted[1:], (*kept, (profile.id, *place)))
        for place in compute_places(hw, kind, profile)
        if not compute_taken(hw, place) & taken
    )


# --- random layouts ------------------------------------------------------------------------------------------------


def random_layout(dice: random.Random, hw: Hardware, plain: bool = False) -> tuple[Instance, ...]:
    """Some instances side by side; ``plain`` ones all with the compute instance that fills them."""
    placed: list[Instance] = []
    few = dice.random() < 0.25
    while True:
        free = room(hw, [(i.kind, i.start, i.size) for i in placed])
        if not free or (placed and dice.random() < (0.35 if few else 0.08)):
            return tuple(sorted(placed, key=lambda i: i.start))
        # One kind first, then its place, else the many places of small kinds leave nothing for large ones.
        names = sorted({kind.name for kind, _place in free})
        name = dice.choice(names)
        kind, place = dice.choice([pair for pair in free if pair[0].name == name])
        placed.append(Instance(name, *place, random_compute(dice, hw, kind, plain)))


def random_compute(dice: random.Random, hw: Hardware, kind: Kind, plain: bool) -> tuple[Compute, ...]:
    """The compute instances of one GPU instance: mostly the one that fills it, sometimes several, some, or none."""
    chance = 1.0 if plain else dice.random()
    if chance > 0.3:
        profile = kind.filling
        return ((profile.id, *profile.places[0]),)
    if chance < 0.08:
        return ()
    chosen: list[Compute] = []
    taken = 0
    while True:
        free = [
            (c.id, *place)
            for c in kind.compute
            if not c.special
            for place in compute_places(hw, kind, c)
            if not compute_taken(hw, place) & taken
        ]
        if not free or len(chosen) == 7 or (chosen and dice.random() < 0.2):
            return tuple(sorted(chosen, key=lambda c: c[1]))
        chosen.append(dice.choice(free))
        taken |= compute_taken(hw, chosen[-1][1:])
