# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Whether a node is as wanted: match, differ, or cannot tell.

This file is private to the collection gpufleet.mig and may change at any time.

Instances are compared by profile id, and CIs by slices: names and UUIDs prove nothing. The first differ between
drivers, the second are the same again after an instance was destroyed and made anew.
"""

from __future__ import annotations

import typing as t

from .model import (
    ComputeInstance,
    ComputeWish,
    Gpu,
    GpuInstance,
    GpuWish,
    InstanceWish,
    Node,
    Placement,
    Profile,
    Wanted,
)
from .profiles import is_wanted_kind

MATCH = "match"
DIFFER = "differ"
UNKNOWN = "unknown"


class Verdict(t.NamedTuple):
    """The verdict on a node, and by GPU index the sentences that say why it is not a match."""

    verdict: str
    differences: dict[int, tuple[str, ...]]


def verdict(node: Node, wanted: Wanted) -> Verdict:
    """Compare all GPUs that the wish speaks of. One that certainly differs outweighs others that cannot be told."""
    by_index = {gpu.index: gpu for gpu in node.gpus}
    sentences: dict[int, tuple[str, ...]] = {}
    answers = set()
    for index, wish in wanted.wishes.items():
        gpu = by_index.get(index, Gpu(index=index))
        found = differences(gpu, wish)
        if found:
            sentences[index] = found
            answers.add(DIFFER if _can_tell(gpu) else UNKNOWN)
    overall = next((answer for answer in (DIFFER, UNKNOWN) if answer in answers), MATCH)
    return Verdict(overall, sentences)


def differences(gpu: Gpu, wish: GpuWish) -> tuple[str, ...]:
    """In which ways a GPU is not as wanted, one sentence each; empty when it is."""
    if not _can_tell(gpu):
        return (_why_not(gpu),)
    if gpu.mode_current != wish.enabled:
        return (_mode_sentence(gpu, wish),)
    found = []
    if gpu.mode_pending is not None and gpu.mode_pending != wish.enabled:
        found.append(f"MIG is {_on(wish.enabled)} but {_on(gpu.mode_pending)} from the next reset or reboot on")
    if wish.enabled and not wish.mode_only:
        found += _instance_sentences(gpu.instances, wish.instances)
    return tuple(found)


def waits(gpu: Gpu, enabled: bool) -> bool:
    """Whether this mode is stored but not current."""
    return gpu.mode_current != enabled and gpu.mode_pending == enabled


def _can_tell(gpu: Gpu) -> bool:
    return not gpu.problems and gpu.mode_current is not None


def _why_not(gpu: Gpu) -> str:
    if gpu.problems:
        problem = gpu.problems[0]
        return f"it does not answer: {problem.call} says {problem.error}"
    return "it does not say whether it is in MIG mode" if gpu.uuid else "it is not there any more"


def _mode_sentence(gpu: Gpu, wish: GpuWish) -> str:
    sentence = f"MIG is {_on(not wish.enabled)}, wanted {_on(wish.enabled)}"
    if gpu.mode_pending == wish.enabled:
        return f"{sentence}, which is pending until the next reset or reboot"
    return sentence


def _on(enabled: bool) -> str:
    return "on" if enabled else "off"


def _instance_sentences(instances: t.Sequence[GpuInstance], wishes: t.Sequence[InstanceWish]) -> list[str]:
    surplus = list(instances)
    missing = []
    # Wishes that fix a place choose first: what suits them may suit others too, not the other way round.
    for wish in sorted(wishes, key=_freedom):
        suitable = next((gi for gi in surplus if _is_as_wished(gi, wish)), None)
        if suitable is None:
            missing.append(_said(wish))
        else:
            surplus.remove(suitable)
    exactly = any(wish.placement for wish in wishes)
    unwanted = [_described(gi, exactly) for gi in surplus]
    return [
        *(f"{_times(text, count)} missing" for text, count in _counted(missing)),
        *(f"{_times(text, count)} not wanted" for text, count in _counted(unwanted)),
    ]


def _freedom(wish: InstanceWish) -> tuple[bool, bool]:
    return wish.placement is None, all(ci.placement is None for ci in wish.compute)


def _is_as_wished(gi: GpuInstance, wish: InstanceWish) -> bool:
    if gi.profile.id != wish.profile.id or (wish.placement is not None and wish.placement != gi.placement):
        return False
    if len(gi.compute) != len(wish.compute):
        return False
    remaining = list(gi.compute)
    for wished in sorted(wish.compute, key=lambda each: each.placement is None):
        suitable = next((ci for ci in remaining if _is_ci_as_wished(gi, ci, wished)), None)
        if suitable is None:
            return False
        remaining.remove(suitable)
    return True


def _is_ci_as_wished(gi: GpuInstance, ci: ComputeInstance, wish: ComputeWish) -> bool:
    if (ci.slices, ci.variant) != (wish.slices, wish.variant) or wish.placement not in (None, ci.placement):
        return False
    return is_wanted_kind(gi.profile, ci, wish.profile_id)


def _said(wish: InstanceWish) -> str:
    return f"{wish.profile.name}{_at(wish.placement)}{_inside(wish.profile, wish.compute)}"


def _described(gi: GpuInstance, exactly: bool) -> str:
    """A GI in words; as exactly as an exact wish, since a right instance in a wrong place looks right otherwise."""
    compute = [ComputeWish(ci.slices, None, ci.variant) for ci in gi.compute]
    if exactly:
        compute = [ComputeWish(ci.slices, ci.placement, ci.variant, ci.profile_id) for ci in gi.compute]
    return f"{gi.profile.name}{_at(gi.placement if exactly else None)}{_inside(gi.profile, compute)}"


def _at(placement: t.Optional[Placement]) -> str:
    return "" if placement is None else f" at {placement.start}"


def _inside(profile: Profile, compute: t.Sequence[ComputeWish]) -> str:
    """The CIs of a GI in words; nothing for the usual single one that fills it."""
    if not compute:
        return " without compute instance"
    if [ci.slices for ci in compute] == [profile.slices]:
        kinds = [each.id for each in profile.compute or () if each.slices == profile.slices]
        several = len(kinds) > 1 and compute[0].profile_id in kinds
        return f" with compute profile {compute[0].profile_id}" if several else ""
    largest_first = sorted(compute, key=lambda ci: (-ci.slices, ci.variant, ci.placement or Placement(0, 0)))
    return f" with {' + '.join(map(_compute_in_words, largest_first))}"


def _compute_in_words(ci: ComputeWish) -> str:
    return f"{ci.slices}c{f' ({ci.variant})' if ci.variant else ''}{_at(ci.placement)}"


def _counted(texts: t.Iterable[str]) -> list[tuple[str, int]]:
    counts: dict[str, int] = {}
    for text in texts:
        counts[text] = counts.get(text, 0) + 1
    return list(counts.items())


def _times(text: str, count: int) -> str:
    return f"{count} x {text} {'is' if count == 1 else 'are'}"
