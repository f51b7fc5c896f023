# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Layouts as lines of text: one GPU is one line, and lines of GPUs of one kind stand under each other.

This file is private to the collection gpufleet.mig and may change at any time.

    GPU 0  |3g.20gb                        |1g.5gb |.......|1g.5gb |       |
    GPU 1  |                            MIG off                            |

The width of a box is its share of the memory. Dots are room for more; blank at the end is memory that nothing can
use. ``2g.10gb: 1c 1c`` has two compute instances that share it; ``1g.5gb: no CI``, or ``1g.5gb!`` in a narrow box, has
none and cannot be used. Where a name is too long for its box, its memory is left out. Only ASCII, since this goes to
CI logs, terminals of any locale, and JSON.
"""

from __future__ import annotations

import typing as t

from .model import Gpu, GpuInstance, Placement, Profile
from .profiles import span

_WIDTH = 64  # of a whole GPU, a multiple of 4 and 8 slices; 12 slices make it 60


def draw_gpu(gpu: Gpu) -> str:
    """The present layout of a GPU."""
    if gpu.problems or gpu.mig_capable is None:
        reason = f" ({printable(gpu.problems[0].error)})" if gpu.problems else ""
        return _line(gpu, _sentence(gpu, f"cannot tell{reason}"))
    if not gpu.mig_capable:
        return _line(gpu, _sentence(gpu, "cannot do MIG"))
    if gpu.mode_current is None:
        return _line(gpu, _sentence(gpu, "cannot tell"))
    return draw_layout(gpu, gpu.instances, gpu.mode_current)


def draw_layout(gpu: Gpu, instances: t.Iterable[GpuInstance], enabled: bool = True) -> str:
    """A GPU with other instances than it has now, for instance those of a plan."""
    if not enabled:
        return _line(gpu, _sentence(gpu, "MIG off"))
    ordered = sorted(instances, key=lambda gi: gi.placement.start)
    if not ordered:
        return _line(gpu, _sentence(gpu, " MIG on, no instances ", fill="."))
    slices = _grid(gpu, ordered)
    unit = _unit(slices)
    cells = []
    position = 0
    for gi in ordered:
        cells += _free_cells(gpu, ordered, position, gi.placement.start, unit)
        cells.append(_cell(_texts(gi), gi.placement.size * unit - 1))
        position = gi.placement.start + gi.placement.size
    cells += _free_cells(gpu, ordered, position, slices, unit)
    return _line(gpu, f"|{'|'.join(cells)}|")


def draw_slots(wanted: t.Sequence[tuple[Profile, int]], offered: t.Iterable[Profile]) -> str:
    """Where instances of these profiles can be, to show why so many of each do not fit together.

    ::

        memory slice   0       1       2       3       4       5       6       7
        1 x 4g.20gb   |===============================|
        2 x 2g.10gb   |===============|===============|===============|
    """
    slices = _end([place for profile in offered for place in profile.placements])
    unit = _unit(slices)
    titles = [f"{count} x {printable(profile.name)}" for profile, count in wanted]
    margin = max(map(len, [*titles, "memory slice"])) + 2
    ruler = "".join(f"{number:<{unit}}" for number in range(slices))
    lines = ["memory slice".ljust(margin) + f" {ruler}".rstrip()]
    for title, (profile, _count) in zip(titles, wanted):
        for row in _rows_without_overlap(profile.placements):
            lines.append(title.ljust(margin) + _bars(row, unit))
            title = ""
    return "\n".join(lines)


def printable(text: str) -> str:
    """Text that came from elsewhere, without anything that could move a cursor or break a line."""
    return "".join(char if " " <= char <= "~" else "?" for char in text)


def _line(gpu: Gpu, picture: str) -> str:
    return f"GPU {gpu.index:<2} {picture}"


def _sentence(gpu: Gpu, text: str, fill: str = " ") -> str:
    slices = _grid(gpu, ())
    return f"|{text.center(_unit(slices) * slices - 1, fill)}|"


def _grid(gpu: Gpu, instances: t.Iterable[GpuInstance]) -> int:
    """Memory slices of a GPU: the highest end of any placement that it offers or has."""
    offered = [place for profile in gpu.profiles or () for place in profile.placements]
    return _end([*offered, *(gi.placement for gi in instances)])


def _end(placements: t.Iterable[Placement]) -> int:
    return max((place.start + place.size for place in placements), default=8)


def _unit(slices: int) -> int:
    """Characters per memory slice, one of them its left border."""
    return max(_WIDTH // max(slices, 1), 4)


def _free_cells(gpu: Gpu, instances: t.Sequence[GpuInstance], start: int, end: int, unit: int) -> list[str]:
    """The stretch between two instances, if any: dots where another instance would fit, blank where none would."""
    if start >= end:
        return []
    occupied = sum(span(gi.placement) for gi in instances)
    usable = 0
    for profile in gpu.profiles or ():
        for place in profile.placements:
            if not span(place) & occupied:
                usable |= span(place)
    cells: list[str] = []
    for index in range(start, end):
        filling = "." if usable >> index & 1 else " "
        if cells and cells[-1][0] == filling:
            cells[-1] += filling * unit
        else:
            cells.append(filling * (unit - 1))
    return cells


def _texts(gi: GpuInstance) -> list[str]:
    """What to write into the box of a GI, most telling first, for boxes that are too small for it."""
    name = printable(gi.profile.name)
    short = name.replace(f".{gi.profile.gb}gb", "")
    if not gi.compute:
        return [f"{name}: no CI", f"{short}: no CI", f"{name}!", f"{short}!"]
    if len(gi.compute) == 1 and gi.compute[0].slices == gi.profile.slices:
        return [name, short]
    parts = " ".join(f"{ci.slices}c" for ci in gi.compute)
    return [f"{name}: {parts}", f"{short}: {parts}", f"{short}:{parts.replace(' ', '')}"]


def _cell(texts: t.Sequence[str], width: int) -> str:
    text = next((each for each in texts if len(each) <= width), texts[-1])
    return text[:width].ljust(width)


def _rows_without_overlap(placements: t.Iterable[Placement]) -> list[list[Placement]]:
    rows: list[list[Placement]] = []
    for place in sorted(placements):
        for row in rows:
            if row[-1].start + row[-1].size <= place.start:
                row.append(place)
                break
        else:
            rows.append([place])
    return rows


def _bars(row: t.Iterable[Placement], unit: int) -> str:
    line = ""
    for place in row:
        line = line.ljust(place.start * unit + (1 if line else 0))
        line = line[: place.start * unit] + "|" + "=" * (place.size * unit - 1) + "|"
    return line
