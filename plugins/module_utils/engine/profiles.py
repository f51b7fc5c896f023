# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Names of profiles, which profile of a GPU a name means, and how many of them fit.

This file is private to the collection gpufleet.mig and may change at any time.

A name is never compared as text with what the driver prints: the gigabytes in it are a rounded share of the total
memory and differ between drivers for one and the same board (3g.39gb and 3g.40gb, 1g.23gb and 1g.24gb).
"""

from __future__ import annotations

import functools
import re
import typing as t

from .model import ComputeInstance, ComputeProfile, Engines, Placement, Profile, WishError

EXAMPLES = "1g.5gb, 1g.5gb+me, 1c.3g.20gb or 1g"

_NAME = re.compile(
    r"(?:(?P<compute>[1-9]\d?)c\.)?"
    r"(?P<slices>[1-9]\d?)g"
    r"(?:\.(?P<gb>\d{1,4})gb)?"
    r"(?P<attributes>(?:[+-][a-z]+(?:\.[a-z]+)*)*)",
    re.ASCII,
)
_ATTRIBUTE = re.compile(r"[+-][a-z.]+")
_LABEL_ATTRIBUTE = re.compile(r"(?<=g|b)\.(?=[a-z])")


# NVML's enum of compute instance profiles (nvml.h): compute slices and variant.
COMPUTE_PROFILE_ENUMS: dict[int, tuple[int, str]] = {
    0: (1, ""),
    1: (2, ""),
    2: (3, ""),
    3: (4, ""),
    4: (7, ""),
    5: (8, ""),
    6: (6, ""),
    7: (1, "rev1"),
    8: (7, "nvl"),
}
COMPUTE_VARIANTS = ("", "rev1", "nvl")


class ProfileName(t.NamedTuple):
    """A profile as a person names it. Without ``1c`` ``compute`` is ``None``, and for a bare ``1g`` so is ``gb``."""

    compute: t.Optional[int]
    slices: int
    gb: t.Optional[int]
    attributes: tuple[str, ...] = ()

    def __str__(self) -> str:
        compute = "" if self.compute is None else f"{self.compute}c."
        memory = "" if self.gb is None else f".{self.gb}gb"
        return f"{compute}{self.slices}g{memory}{''.join(self.attributes)}"


def quoted(value: object) -> str:
    """A value that somebody gave, safe and short enough for a message: in its own letters, quotes where it is text.

    What cannot be printed, and could break a line or turn the direction of the text, is escaped.
    """
    try:
        text = repr(value)
    except ValueError:
        # Python refuses to write numbers of thousands of digits in decimal (sys.int_info), and writes them in hex.
        text = (
            hex(value) if isinstance(value, int) else f"{type(value).__name__} with a number that is too long to show"
        )
    return text if len(text) <= 80 else f"{text[:70]}... ({len(text)} characters)"


def printable(text: str) -> str:
    """Text from outside as one line that can be shown, of whatever length and in whatever letters."""
    return "".join(character if character.isprintable() else "?" for character in text)


def counted(number: t.Optional[int], thing: str) -> str:
    """``1 slice``, ``2 slices``."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


# --- names ----------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1024)
def parse(text: str) -> ProfileName:
    """What a profile name says. Raises WishError for text that is no profile name on any board."""
    match = _NAME.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise WishError(f"{quoted(text)} is not a profile name such as {EXAMPLES}")
    compute, gb = (None if part is None else int(part) for part in match.group("compute", "gb"))
    slices = int(match["slices"])
    if compute is not None and compute > slices:
        raise WishError(
            f"{quoted(text)} asks for {compute} compute slices of a GPU instance that has {slices}; at most {slices}c."
            f"{slices}g is possible"
        )
    # A CI that fills its GI is what the name without "c" means.
    partial = None if compute == slices else compute
    return ProfileName(partial, slices, gb, tuple(_ATTRIBUTE.findall(match.group("attributes"))))


def find(name: ProfileName, profiles: tuple[Profile, ...]) -> Profile:
    """The one profile of a GPU that a name means.

    Exactly that name if the GPU has it, else its only profile with the same slices and attributes within 1 GB;
    without memory in the name, the one with least memory. Raises WishError that lists what there is.
    """
    alike = [each for each in profiles if each.slices == name.slices and each.attributes == name.attributes]
    if name.gb is None and alike:
        return min(alike, key=lambda each: (each.gb, each.memory_mib))
    for each in alike:
        if each.gb == name.gb:
            return each
    close = [each for each in alike if name.gb is not None and abs(each.gb - name.gb) <= 1]
    if len(close) == 1:
        return close[0]
    raise WishError(_no_such_profile(name, profiles), profile=str(name), offered=[each.name for each in profiles])


def _no_such_profile(name: ProfileName, profiles: tuple[Profile, ...]) -> str:
    wanted = str(name._replace(compute=None))
    if not profiles:
        return f"no profile {wanted} and no other"
    same_slices = [each.name for each in profiles if each.slices == name.slices]
    others = [each.name for each in profiles if each.slices != name.slices]
    plural = "slice" if name.slices == 1 else "slices"
    if not same_slices:
        return f"no profile {wanted} and none of {name.slices} {plural}, only {', '.join(others)}"
    besides = f"; besides {', '.join(others)}" if others else ""
    return f"no profile {wanted}; of {name.slices} {plural} it has {', '.join(same_slices)}{besides}"


def name_of(profile: Profile, compute_slices: int) -> str:
    """Name of the MIG device that a CI of so many slices makes: ``3g.20gb``, or ``1c.3g.20gb`` for a partial one."""
    return profile.name if compute_slices == profile.slices else f"{compute_slices}c.{profile.name}"


def label_of(profile_name: str) -> str:
    """The label that fills a GPU with this profile: ``all-1g.5gb.me`` for ``1g.5gb+me``; ``-me`` stays."""
    return "all-" + profile_name.replace("+", ".")


def parse_label(label: str) -> t.Optional[ProfileName]:
    """The profile that a label of the form ``all-<profile>`` is about, ``None`` for any other label."""
    if not label.startswith("all-"):
        return None
    try:
        name = parse(_with_plus(label[len("all-") :]))
    except WishError:
        return None
    return name if name.compute is None else None


def _with_plus(text: str) -> str:
    """``1g.24gb.me.all`` as ``1g.24gb+me.all``: the first dot before a letter was a plus."""
    return _LABEL_ATTRIBUTE.sub("+", text, count=1)


# --- how many fit ---------------------------------------------------------------------------------------------------


def engine_budget(profiles: t.Iterable[Profile]) -> Engines:
    """Engines of the whole GPU: as many of each kind as its best equipped profile takes. NVML has no call for it."""
    return Engines(*map(max, zip(Engines(), *(each.engines for each in profiles))))


def engines_exceeded(wanted: t.Iterable[Profile], profiles: tuple[Profile, ...]) -> dict[str, tuple[int, int]]:
    """Kinds of engines of which these instances would need more than the GPU has, as ``{kind: (needed, has)}``."""
    has = engine_budget(profiles)
    needed = Engines(*map(sum, zip(Engines(), *(each.engines for each in wanted))))
    return {kind: (n, h) for kind, n, h in zip(Engines._fields, needed, has) if n > h}


def fits(wanted: t.Sequence[Profile], profiles: tuple[Profile, ...]) -> bool:
    """Whether all these GIs can be on one GPU together, which offers ``profiles``. Exact."""
    return not engines_exceeded(wanted, profiles) and places_for(wanted) is not None


def places_for(wanted: t.Sequence[Profile]) -> t.Optional[tuple[Placement, ...]]:
    """Some placements, in the order of ``wanted``, that keep all these GIs apart; ``None`` if none exist."""
    # Those with fewest places first; equal profiles side by side, since only their first to last order is tried.
    order = sorted(range(len(wanted)), key=lambda index: (len(wanted[index].placements), wanted[index].id))
    chosen: list[Placement] = []
    hopeless: set[tuple[int, int, int]] = set()

    def place(position: int, occupied: int, first: int) -> bool:
        if position == len(order):
            return True
        state = (position, occupied, first)
        if state in hopeless:
            return False
        profile = wanted[order[position]]
        same_follows = position + 1 < len(order) and wanted[order[position + 1]].id == profile.id
        for index in range(first, len(profile.placements)):
            placement = profile.placements[index]
            if occupied & span(placement):
                continue
            chosen.append(placement)
            if place(position + 1, occupied | span(placement), index + 1 if same_follows else 0):
                return True
            chosen.pop()
        hopeless.add(state)
        return False

    if not place(0, 0, 0):
        return None
    by_index = dict(zip(order, chosen))
    return tuple(by_index[index] for index in range(len(wanted)))


def maximum(profile: Profile, profiles: tuple[Profile, ...]) -> int:
    """How many GIs of a profile fit an empty GPU, by placements and engines. NVML's own count is wrong on A30."""
    has = engine_budget(profiles)
    limits = [has_kind // needs for has_kind, needs in zip(has, profile.engines) if needs]
    free_from = 0
    disjoint = 0
    for placement in sorted(profile.placements, key=lambda each: each.start + each.size):
        if placement.start >= free_from:
            disjoint += 1
            free_from = placement.start + placement.size
    return min([disjoint, *limits])


def span(placement: Placement) -> int:
    """The slices of a placement as a bit mask."""
    return ((1 << placement.size) - 1) << placement.start


# --- compute instances ----------------------------------------------------------------------------------------------


def compute_sizes(profile: Profile) -> tuple[int, ...]:
    """Sizes, in compute slices, of the CIs that a GI of this profile can have, largest first.

    As the driver listed them, else as on every board whose list is known: 1, 2 and 4 slices, 3 only in GIs with an
    odd number of slices, and the whole.
    """
    if profile.compute is not None:
        listed = {each.slices for each in profile.compute if not each.variant or each.slices == profile.slices}
        return tuple(sorted(listed, reverse=True))
    usual = {1, 2, 4} if profile.slices % 2 == 0 else {1, 2, 3, 4}
    return tuple(sorted({size for size in usual if size < profile.slices} | {profile.slices}, reverse=True))


def compute_profile(
    profile: Profile, slices: int, variant: str = "", profile_id: t.Optional[int] = None
) -> t.Optional[ComputeProfile]:
    """The driver's CI profile of so many slices, ``None`` where it is not listed.

    When it fills the GI and there are several, the one of ``profile_id``, else the one with most multiprocessors (H100
    1g.20gb has only a wide one); for a part of the GI the one of ``variant``, usually the plain one.
    """
    listed = [each for each in profile.compute or () if each.slices == slices]
    if slices == profile.slices:
        exactly = next((each for each in listed if each.id == profile_id), None)
        return exactly or max(listed, key=lambda each: each.multiprocessors, default=None)
    return next((each for each in listed if each.variant == variant), None)


def is_wanted_kind(profile: Profile, ci: ComputeInstance, profile_id: t.Optional[int]) -> bool:
    """Whether a CI of a GI is of the kind that a saved one of as many slices was.

    Where the GI does not have that kind, as with another driver, any will do.
    """
    if None in (profile_id, ci.profile_id) or ci.profile_id == profile_id:
        return True
    return profile.compute is not None and profile_id not in {each.id for each in profile.compute}


def compute_placements(
    gpu_architecture: str, gi_profile: Profile, slices: int, variant: str = "", profile_id: t.Optional[int] = None
) -> tuple[Placement, ...]:
    """Where a CI of so many slices can be in a GI, preferred ones first; empty when the GI has no such CI.

    As the driver listed them. It does so only for an existing GI; for others this is what it is expected to list:
    starts aligned to the next power of two, and on Ampere after those also every other span that fits. The rev1 CI of
    one slice spans two (H100: 0:2 in a 2g.20gb).
    """
    listed = compute_profile(gi_profile, slices, variant, profile_id)
    if listed is not None and listed.placements:
        return listed.placements
    if variant and slices < gi_profile.slices:
        unknown = gi_profile.compute is None and (slices, variant) == (1, "rev1")
        return tuple(Placement(start, 2) for start in range(0, gi_profile.slices - 1, 2)) if unknown else ()
    if slices not in compute_sizes(gi_profile):
        return ()
    starts = range(gi_profile.slices - slices + 1)
    step = _power_of_two(slices)
    aligned = [start for start in starts if start % step == 0]
    others = [start for start in starts if start % step] if _is_ampere(gpu_architecture) else []
    return tuple(Placement(start, slices) for start in aligned + others)


def is_unlisted_compute_placement(
    gpu_architecture: str, gi_profile: Profile, slices: int, variant: str, placement: Placement
) -> bool:
    """Whether a CI can be in this place of a GI although ``compute_placements`` does not name it.

    Nobody is sent there, but somebody may have saved a CI that was there: Ampere takes any span that fits, also those
    that it does not list, and how wide a variant is only the saved one tells while no GI lists it.
    """
    if placement.start + placement.size > gi_profile.slices:
        return False
    if variant:
        return gi_profile.compute is None and slices < gi_profile.slices
    return placement.size == slices and slices in compute_sizes(gi_profile) and _is_ampere(gpu_architecture)


def compute_footprint(architecture: str, placement: Placement) -> Placement:
    """The compute slices that a CI blocks for other CIs of its GI.

    On Ampere its own. Later chips hand out whole branches of a binary tree, so that a 3c blocks four; the branch may
    reach past the end of the GI, where nothing else can be.
    """
    if _is_ampere(architecture):
        return placement
    return Placement(placement.start, _power_of_two(placement.size))


def fit_compute(architecture: str, profile: Profile, sizes: t.Sequence[int]) -> t.Optional[tuple[Placement, ...]]:
    """Some placements, in the order of ``sizes``, with which all these CIs fit one GI; ``None`` if none exist."""
    if not sizes:
        return ()
    chosen: list[Placement] = []

    def place(occupied: int) -> bool:
        if len(chosen) == len(sizes):
            return True
        for placement in compute_placements(architecture, profile, sizes[len(chosen)]):
            blocked = span(compute_footprint(architecture, placement))
            if not occupied & blocked:
                chosen.append(placement)
                if place(occupied | blocked):
                    return True
                chosen.pop()
        return False

    return tuple(chosen) if place(0) else None


def _is_ampere(architecture: str) -> bool:
    return architecture.lower() == "ampere"


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()
