# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""GPUs and nodes for unit tests, as the driver would report them.

    gpu("a100-sxm4-40gb", instances=[("3g.20gb", 4), ("1g.5gb", 0)], busy={4})
    gpu("h100-sxm5-80gb", instances=[("3g.40gb", 0, [2, 1])])           # a 2c and a 1c inside one 3g
    node(gpu("a30-24gb"), gpu("tesla-t4", index=1))

The figures come from the simulator's board data, which is the project's only copy of them.
"""

from __future__ import annotations

import functools
import pathlib
import sys
import typing as t
import uuid

from ansible_collections.gpufleet.mig.plugins.module_utils.engine.model import (
    ComputeInstance,
    ComputeProfile,
    Engines,
    Gpu,
    GpuInstance,
    Node,
    Placement,
    Process,
    Profile,
)

_SIMULATOR = str(pathlib.Path(__file__).parents[4] / "simulator")
if _SIMULATOR not in sys.path:
    sys.path.append(_SIMULATOR)
from nvmlsim import load_boards  # noqa: E402  (the path above)

_VENDOR = 0x10DE
_VARIANT_OF_ENUM = {7: "rev1", 8: "nvl"}

# A GI is (profile name, start) or (profile name, start, CIs); a CI is its slices or (slices, start).
ComputeSpec = t.Union[int, tuple[int, int]]
InstanceSpec = t.Union[tuple[str, int], tuple[str, int, t.Sequence[ComputeSpec]]]
# Busy is the start of a GI (all its CIs are busy) or (start of the GI, start of the CI in it).
BusySpec = t.Union[int, tuple[int, int]]


@functools.cache
def _boards() -> dict[str, t.Any]:
    return dict(load_boards())


def keys(mig: t.Optional[bool] = None) -> list[str]:
    """Names of all boards, or only of those that can (``mig=True``) or cannot do MIG."""
    return [
        key
        for key, board in _boards().items()
        if mig is None or (bool(board.profiles) if mig else not board.mig_capable)
    ]


def confidence(board: str) -> str:
    """How well the figures of this board are known: ``high``, ``medium`` or ``low``."""
    return str(_boards()[board].confidence)


@functools.cache
def profiles(board: str) -> tuple[Profile, ...]:
    """All GI profiles of a board, with ``compute=None`` as for a GPU without instances."""
    return tuple(_profile(raw) for raw in _boards()[board].profiles)


@functools.cache
def compute_profiles(board: str, name: str) -> tuple[ComputeProfile, ...]:
    """The CI profiles that a GI of this name offers."""
    raw_profile = next(raw for raw in _boards()[board].profiles if raw.name == name)
    return tuple(
        ComputeProfile(
            enum=raw.enum,
            id=raw.id,
            slices=raw.slices,
            multiprocessors=raw.multiprocessors or 0,
            variant=_VARIANT_OF_ENUM.get(raw.enum, ""),
            placements=_places(raw.placements),
        )
        for raw in raw_profile.compute
    )


def gpu(
    board: str,
    index: int = 0,
    mode: t.Optional[bool] = True,
    instances: t.Sequence[InstanceSpec] = (),
    busy: t.Collection[BusySpec] = (),
    **fields: t.Any,
) -> Gpu:
    """One GPU of a board with these instances. ``mode`` is current and pending; ``fields`` overrides any field of Gpu.

    A GI without CIs given gets the one that fills it; ``[]`` makes an orphan. GI ids are those of a chip of type N.
    """
    raw = _boards()[board]
    unique = uuid.uuid5(uuid.NAMESPACE_OID, f"{board}/{index}")
    capable = raw.mig_capable
    offered = profiles(board)
    present = {spec[0] for spec in instances}
    offered = tuple(
        profile._replace(compute=compute_profiles(board, profile.name)) if profile.name in present else profile
        for profile in offered
    )
    by_name = {profile.name: profile for profile in offered}
    built = _with_mig_devices([_instance(by_name[spec[0]], spec, busy, unique, index, raw.grid) for spec in instances])
    observed = {
        "index": index,
        "uuid": f"GPU-{unique}",
        "pci_bus_id": _pci_bus_id(index),
        "pci_device_id": _number(raw.device_ids[0]),
        "pci_subsystem_id": (0x1400 + index) << 16 | _VENDOR,
        "name": raw.name,
        "memory_mib": raw.memory_mib,
        "architecture": raw.architecture,
        "compute_capability": raw.compute_capability,
        "minor": index,
        "persistence": True,
        "virtualization": "none",
        "mig_capable": capable,
        "mode_current": mode if capable else False,
        "mode_pending": mode if capable else False,
        "profiles": offered if capable else (),
        "instances": built,
        "processes": tuple(process for gi in built for ci in gi.compute for process in ci.processes),
    }
    return Gpu(**{**observed, **fields})


def node(*gpus: Gpu, driver_version: str = "580.95.05") -> Node:
    """A node of these GPUs, in the order given. One whose index is not its position is renamed to be there."""
    placed = tuple(
        each
        if each.index == position
        else each._replace(
            index=position, minor=position, pci_bus_id=_pci_bus_id(position), uuid=f"{each.uuid[:-2]}{position:02x}"
        )
        for position, each in enumerate(gpus)
    )
    return Node(gpus=placed, driver_version=driver_version, nvml_version="13.580.95", cuda_version="13.0")


def dgx(board: str, count: int = 8, **fields: t.Any) -> Node:
    """A node of ``count`` equal GPUs."""
    return node(*(gpu(board, index=index, **fields) for index in range(count)))


def _pci_bus_id(index: int) -> str:
    return f"00000000:{0x07 + 8 * index:02X}:00.0"


def _profile(raw: t.Any) -> Profile:
    base, attribute = _split_attribute(raw.name)
    return Profile(
        enum=raw.enum,
        id=raw.id,
        name=raw.name,
        slices=raw.slices,
        gb=int(base.split(".")[1][:-2]),
        memory_mib=raw.memory_mib or 0,
        attributes=(attribute,) if attribute else (),
        reported_count=raw.reported_count,
        engines=Engines(*raw.engines),
        placements=_places(raw.placements),
    )


def _split_attribute(name: str) -> tuple[str, str]:
    for sign in "+-":
        base, found, rest = name.partition(sign)
        if found:
            return base, found + rest
    return name, ""


def _places(pairs: t.Iterable[tuple[int, int]]) -> tuple[Placement, ...]:
    return tuple(Placement(start, size) for start, size in pairs)


def _number(value: t.Union[int, str]) -> int:
    return value if isinstance(value, int) else int(value, 16)


def _instance(
    profile: Profile,
    spec: InstanceSpec,
    busy: t.Collection[BusySpec],
    gpu_uuid: uuid.UUID,
    gpu_index: int,
    grid: int,
) -> GpuInstance:
    start = spec[1]
    placement = next((place for place in profile.placements if place.start == start), None)
    assert placement is not None, f"{profile.name} has no placement at {start}"
    gi_id = grid // placement.size - 1 + start // placement.size
    wanted: t.Sequence[ComputeSpec] = spec[2] if len(spec) > 2 else [profile.slices]  # type: ignore[misc]
    compute = []
    next_start = 0
    for ci_id, item in enumerate(wanted):
        slices = item[0] if isinstance(item, tuple) else item
        of_slices = [each for each in profile.compute or () if each.slices == slices]
        of_slices.sort(key=lambda each: each.variant)  # the plain one first
        kind = max(of_slices, key=lambda each: each.multiprocessors) if slices == profile.slices else of_slices[0]
        ci_start = item[1] if isinstance(item, tuple) else _first_start(kind, next_start)
        next_start = ci_start + slices
        is_busy = start in busy or (start, ci_start) in busy
        number = 1000 + 100 * gpu_index + 10 * start + ci_id
        compute.append(
            ComputeInstance(
                id=ci_id,
                slices=slices,
                placement=next(
                    (place for place in kind.placements if place.start == ci_start), Placement(ci_start, slices)
                ),
                variant="" if slices == profile.slices else kind.variant,
                profile_id=kind.id,
                name=profile.name if slices == profile.slices else f"{slices}c.{profile.name}",
                uuid=f"MIG-{uuid.uuid5(gpu_uuid, f'{gi_id}/{ci_id}')}",
                processes=(Process(pid=number, name="python", used_mib=512),) if is_busy else (),
            )
        )
    return GpuInstance(id=gi_id, profile=profile, placement=placement, compute=tuple(compute))


def _first_start(kind: ComputeProfile, start: int) -> int:
    return min((place.start for place in kind.placements if place.start >= start), default=start)


def _with_mig_devices(instances: list[GpuInstance]) -> tuple[GpuInstance, ...]:
    """Ordered by GI id, with the MIG index counted over all CIs, as a fresh driver session enumerates them."""
    counted = 0
    result = []
    for gi in sorted(instances, key=lambda each: each.id or 0):
        compute = []
        for ci in gi.compute:
            compute.append(ci._replace(mig_index=counted))
            counted += 1
        result.append(gi._replace(compute=tuple(compute)))
    return tuple(result)
