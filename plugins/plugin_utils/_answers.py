# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What hosts answered about their GPUs, read with care: another version of a module may speak, or a host may lie.

This file is private to the collection gpufleet.mig and may change at any time.
"""

from __future__ import annotations

import collections
import typing as t


def devices(gpus: t.Iterable[t.Any]) -> dict[str, int]:
    """How many MIG devices of each profile these GPUs have; in a brief plan they are counted already."""
    counts: collections.Counter[str] = collections.Counter()
    for gpu in map(mapping, gpus):
        for profile, count in mapping(gpu.get("devices")).items():
            counts[text(profile)] += count if isinstance(count, int) else 0
        for instance in sequence(gpu.get("instances")):
            for compute in sequence(mapping(instance).get("compute_instances")):
                counts[text(mapping(compute).get("profile"))] += 1
    return dict(sorted(counts.items()))


def pictures(gpus: t.Iterable[t.Any]) -> list[str]:
    """A line of text for each GPU."""
    return [text(mapping(gpu).get("layout")) for gpu in gpus]


def mapping(value: t.Any) -> t.Mapping[str, t.Any]:
    """The value if it is a mapping, otherwise an empty one."""
    return value if isinstance(value, t.Mapping) else {}


def sequence(value: t.Any) -> t.Sequence[t.Any]:
    """The value if it is a list, otherwise an empty one."""
    return value if isinstance(value, (list, tuple)) else ()


def text(value: t.Any) -> str:
    """The value as text, empty where there is none."""
    return "" if value is None else str(value)
