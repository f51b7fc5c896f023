# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What is known of boards when their driver does not say it: profiles before MIG is on, and what MIG needs at all.

This file is private to the collection gpufleet.mig and may change at any time.

Drivers up to 535 list no profiles while MIG is off. A plan made from this table is *provisional*: it is made again with
the driver's own list as soon as MIG is on, so what is wrong here costs a mode switch back, never an instance. It
decides nothing where the driver speaks for itself.

Boards that came later need a driver that lists profiles at any time, so three kinds are enough: of boards with one kind
of chip, ids, places and engines are the same, and the gigabytes in a name are the profile's share of the memory.
Sources: NVIDIA's MIG user guide, and listings of real boards (nvidia-smi mig -lgip, -lgipp). Of the boards marked
"by its siblings" no listing is public; they have the chip of the ones they stand with.
"""

from __future__ import annotations

import typing as t

from .model import Engines, Gpu, Placement, Profile

_NVIDIA = 0x10DE


class _Row(t.NamedTuple):
    """A profile of a kind of board: numbers of NVML, compute slices, memory slices and where these can begin."""

    enum: int
    id: int
    slices: int
    size: int
    starts: tuple[int, ...]
    engines: Engines
    attributes: tuple[str, ...] = ()


_ANY = (0, 1, 2, 3, 4, 5, 6)  # the eighth memory slice goes to larger instances only

_A100 = (
    _Row(0, 19, 1, 1, _ANY, Engines(copy=1)),
    _Row(1, 14, 2, 2, (0, 2, 4), Engines(copy=2, decoder=1)),
    _Row(2, 9, 3, 4, (0, 4), Engines(copy=3, decoder=2)),
    _Row(3, 5, 4, 4, (0,), Engines(copy=4, decoder=2)),
    _Row(4, 0, 7, 8, (0,), Engines(copy=7, decoder=5, jpeg=1, ofa=1)),
    _Row(7, 20, 1, 1, _ANY, Engines(copy=1, decoder=1, jpeg=1, ofa=1), ("+me",)),
    _Row(9, 15, 1, 2, (0, 2, 4, 6), Engines(copy=1, decoder=1)),
)

_A30 = (
    _Row(0, 14, 1, 1, (0, 1, 2, 3), Engines(copy=1, decoder=1)),
    _Row(1, 5, 2, 2, (0, 2), Engines(copy=2, decoder=2)),
    _Row(3, 0, 4, 4, (0,), Engines(copy=4, decoder=4, jpeg=1, ofa=1)),
    _Row(7, 21, 1, 1, (0, 1, 2, 3), Engines(copy=1, decoder=1, jpeg=1, ofa=1), ("+me",)),
    _Row(8, 6, 2, 2, (0, 2), Engines(copy=2, decoder=2, jpeg=1, ofa=1), ("+me",)),
)

_H100 = (
    _Row(0, 19, 1, 1, _ANY, Engines(copy=1, decoder=1, jpeg=1)),
    _Row(1, 14, 2, 2, (0, 2, 4), Engines(copy=2, decoder=2, jpeg=2)),
    _Row(2, 9, 3, 4, (0, 4), Engines(copy=3, decoder=3, jpeg=3)),
    _Row(3, 5, 4, 4, (0,), Engines(copy=4, decoder=4, jpeg=4)),
    _Row(4, 0, 7, 8, (0,), Engines(copy=8, decoder=7, jpeg=7, ofa=1)),
    _Row(7, 20, 1, 1, _ANY, Engines(copy=1, decoder=1, jpeg=1, ofa=1), ("+me",)),
    _Row(9, 15, 1, 2, (0, 2, 4, 6), Engines(copy=1, decoder=1, jpeg=1)),
)

# PCI device id to what the board offers.
_BOARDS: dict[int, tuple[_Row, ...]] = {
    0x20B0: _A100,  # A100 SXM4 40 GB
    0x20B1: _A100,  # A100 PCIe 40 GB
    0x20F1: _A100,  # A100 PCIe 40 GB
    0x20B2: _A100,  # A100 SXM4 80 GB
    0x20B5: _A100,  # A100 PCIe 80 GB
    0x20B6: _A100,  # PG506-232, by its siblings
    0x20BD: _A100,  # A800 SXM4 40 GB, by its siblings
    0x20F3: _A100,  # A800 SXM4 80 GB, by its siblings
    0x20F5: _A100,  # A800 PCIe 80 GB, by its siblings
    0x20F6: _A100,  # A800 40 GB Active, by its siblings
    0x20B7: _A30,
    0x2321: _H100,  # H100 NVL
    0x2322: _H100,  # H800 PCIe, by its siblings
    0x2324: _H100,  # H800 SXM5, by its siblings
    0x2329: _H100,  # H20
    0x232C: _H100,  # H20-3e, by its siblings
    0x2330: _H100,  # H100 SXM5 80 GB
    0x2331: _H100,  # H100 PCIe
    0x2337: _H100,  # H100 SXM5 64 GB, by its siblings
    0x2338: _H100,  # H100 SXM5 96 GB, by its siblings
    0x2339: _H100,  # H100 SXM5 94 GB, by its siblings
    0x233A: _H100,  # H800 NVL, by its siblings
    0x233D: _H100,  # H100 SXM5 96 GB, by its siblings
    0x2342: _H100,  # GH200 96 GB
    0x2348: _H100,  # GH200 144 GB
}


class _Needs(t.NamedTuple):
    """What a board needs before its driver says that it can do MIG, by the vendor's guide."""

    driver: str
    vbios: str = ""
    display: bool = True


# Boards that people also draw with. Until they are set up for MIG, the driver says that they cannot do it.
_NEEDS: dict[int, _Needs] = {
    0x2BB5: _Needs("575.51.03", display=False),  # RTX PRO 6000 Blackwell Server Edition
    0x2BB1: _Needs("575.51.03", "98.02.55.00.00"),  # RTX PRO 6000 Blackwell Workstation Edition
    0x2BB4: _Needs("575.51.03", "98.02.6A.00.00"),  # RTX PRO 6000 Blackwell Max-Q Workstation Edition
    0x2BB3: _Needs("575.57.08", "98.02.73.00.00"),  # RTX PRO 5000 Blackwell
    0x2C31: _Needs("575.64"),  # RTX PRO 4500 Blackwell; display mode by its siblings
}


def what_mig_needs(gpu: Gpu) -> str:
    """What to look at where the driver says that a board cannot do MIG although its model can; empty for all others."""
    needs = _NEEDS.get(gpu.pci_device_id >> 16) if gpu.pci_device_id & 0xFFFF == _NVIDIA else None
    if gpu.mig_capable is not False or needs is None:
        return ""
    vbios = f" and vBIOS {needs.vbios} or newer" if needs.vbios else ""
    display = " and its display mode set to compute (NVIDIA's displaymodeselector, then a reboot)"
    return (
        f"its model can do MIG, but its driver says that it cannot now; it needs driver {needs.driver} or newer"
        f"{vbios}{display if needs.display else ''}"
    )


def profiles_of(gpu: Gpu) -> t.Optional[tuple[Profile, ...]]:
    """The driver's own profiles of a GPU; where it lists none because MIG is off, those of this table.

    None where neither says anything: a board that is not in the table, or whose memory is not known.
    """
    if gpu.profiles is not None or gpu.mode_current is not False or not gpu.mig_capable:
        return gpu.profiles
    device, vendor = gpu.pci_device_id >> 16, gpu.pci_device_id & 0xFFFF
    rows = _BOARDS.get(device) if vendor == _NVIDIA else None
    if rows is None or gpu.memory_mib is None:
        return None
    return tuple(_profile(row, gpu.memory_mib, max(each.size for each in rows)) for row in rows)


def _profile(row: _Row, memory_mib: int, memory_slices: int) -> Profile:
    """A row on a board with so much memory, which is counted in whole GiB for the name of a profile, rounded up."""
    gb = int(row.size / memory_slices * -(-memory_mib // 1024) + 0.5)
    return Profile(
        enum=row.enum,
        id=row.id,
        name=f"{row.slices}g.{gb}gb{''.join(row.attributes)}",
        slices=row.slices,
        gb=gb,
        memory_mib=memory_mib * row.size // memory_slices,
        attributes=row.attributes,
        engines=row.engines,
        placements=tuple(Placement(start, row.size) for start in row.starts),
    )
