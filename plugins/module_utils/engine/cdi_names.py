# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The names by which containers ask for devices, and the devices of a node that they mean.

This file is private to the collection gpufleet.mig and may change at any time. It works on what mig_info returns, so
that a filter on the controller and a module on the node mean the same.
"""

from __future__ import annotations

import re
import typing as t

PREFIX = "nvidia.com/gpu="
_PLACE = re.compile(r"(?i:gpu|mig)?(?P<place>\d+(?::\d+)?)")


class Device(t.NamedTuple):
    """A MIG device, or a GPU without MIG. ``place`` is ``GPU:INDEX`` or the index of the GPU, as CDI has it.

    ``profile`` is empty for a GPU. ``legacy`` is the spelling of drivers before 470. ``busy`` says whether NVML lists a
    process there.
    """

    uuid: str
    place: str
    gpu: int
    profile: str = ""
    legacy: str = ""
    gi: t.Optional[int] = None
    ci: t.Optional[int] = None
    busy: bool = False

    @property
    def words(self) -> str:
        """``0:1 1g.10gb MIG-...``."""
        return " ".join(filter(None, (self.place, self.profile or "GPU", self.uuid)))


Gpus = t.Sequence[t.Mapping[str, t.Any]]


def devices(gpus: Gpus) -> tuple[Device, ...]:
    """All devices that a container can be given, in the order of their indices."""
    found = []
    for gpu in gpus:
        if not gpu["mig_current"]:
            found.append(Device(str(gpu["uuid"]), str(gpu["index"]), gpu["index"], busy=bool(gpu["processes"])))
            continue
        found += sorted(_mig_devices(gpu), key=lambda each: int(each.place.partition(":")[2] or 0))
    return tuple(found)


def _mig_devices(gpu: t.Mapping[str, t.Any]) -> t.Iterator[Device]:
    for instance in gpu["instances"]:
        for compute in instance["compute_instances"]:
            if not compute["uuid"]:
                continue
            index = compute["mig_index"]
            yield Device(
                uuid=str(compute["uuid"]),
                place="" if index is None else f"{gpu['index']}:{index}",
                gpu=gpu["index"],
                profile=str(compute["profile"]),
                legacy=str(compute["legacy_uuid"] or ""),
                gi=instance["id"],
                ci=compute["id"],
                busy=bool(compute["processes"]),
            )


def in_mig_mode(gpus: Gpus, name: str) -> t.Optional[int]:
    """The index of the GPU with MIG that a name means as a whole; None where it means something else."""
    for gpu in gpus:
        if gpu["mig_current"] and name.lower() in (str(gpu["uuid"]).lower(), str(gpu["index"]), f"gpu{gpu['index']}"):
            return int(gpu["index"])
    return None


def named(gpus: Gpus, name: str) -> tuple[Device, ...]:
    """The devices that a name means: one, all of a GPU that is in MIG mode, or none that there is.

    A name is a UUID in either spelling, ``GPU:INDEX`` or the index of a GPU, also with what CDI puts before it.
    """
    name = name.strip().removeprefix(PREFIX)
    whole = in_mig_mode(gpus, name)
    everything = devices(gpus)
    if whole is not None:
        return tuple(each for each in everything if each.gpu == whole)
    place = _PLACE.fullmatch(name)
    if place:
        return tuple(each for each in everything if each.place == place["place"])
    return tuple(each for each in everything if name.lower() in (each.uuid.lower(), each.legacy.lower()) and name)
