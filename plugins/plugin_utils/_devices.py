# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Devices of a host, chosen by name or by profile, in the words of those who start containers.

This file is private to the collection gpufleet.mig and may change at any time.
"""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpufleet.mig.plugins.module_utils.engine import cdi_names
from ansible_collections.gpufleet.mig.plugins.module_utils.engine.cdi_names import Device
from ansible_collections.gpufleet.mig.plugins.module_utils.engine.profiles import printable, quoted

# A GPU as a whole, where a profile may stand.
_GPU = "gpu"
_COUNTED = re.compile(
    r"(?:(?P<count>[0-9]{1,4}) ?[xX] ?)?(?P<profile>gpu|(?:[0-9]+c\.)?[0-9]+g\.[0-9]+gb(?:[+-][a-z0-9.]+)*)", re.I
)
_MOST_NAMED = 16


class CannotChoose(Exception):
    """What is asked for is not there; the message says what is."""


class Demand(t.NamedTuple):
    """So many devices of a profile, or the one of this name."""

    name: str
    times: int = 0


def choose(
    gpus: cdi_names.Gpus,
    wanted: t.Any,
    unused: bool,
    without: t.Sequence[t.Any],
    holders: t.Sequence[t.Mapping[str, t.Any]],
) -> tuple[Device, ...]:
    """The devices in the order in which they were asked for, of a profile the first free ones. Raises CannotChoose."""
    everything = cdi_names.devices(gpus)
    taken = _taken(gpus, everything, unused, without, holders)
    demands = _demands(wanted)
    if not demands:
        # A container that asks for no device by name may get all of them, by what its image says.
        raise CannotChoose("No device is asked for: name one, or leave the request out of the container.")
    found: dict[int, list[Device]] = {}
    # What is asked for by its name is not given away to who asked for any of its kind.
    for number, demand in enumerate(demands):
        if not demand.times:
            device = _named(gpus, everything, demand.name, taken)
            taken[device.uuid] = "asked for twice"
            found[number] = [device]
    for number, demand in enumerate(demands):
        if demand.times:
            found[number] = _of_profile(everything, demand, taken)
            taken.update({device.uuid: "given out here already" for device in found[number]})
    return tuple(device for number in sorted(found) for device in found[number])


def _taken(
    gpus: cdi_names.Gpus,
    everything: t.Sequence[Device],
    unused: bool,
    without: t.Sequence[t.Any],
    holders: t.Sequence[t.Mapping[str, t.Any]],
) -> dict[str, str]:
    """Why a device is not to be given out, by UUID. A name that means nothing here leaves out nothing."""
    taken = {device.uuid: "in use" for device in everything if unused and device.busy}
    for each in without:
        if isinstance(each, t.Mapping):
            name, why = str(each.get("device", "")), f"reserved for {printable(str(each.get('holder') or 'somebody'))}"
        else:
            name, why = str(each), "left out"
        taken.update({device.uuid: why for device in cdi_names.named(gpus, name)})
    for holder in holders:
        place = (holder.get("gpu"), holder.get("gi"), holder.get("ci"))
        if not holder.get("cooperative"):
            taken.update(
                {device.uuid: "in use" for device in everything if (device.gpu, device.gi, device.ci) == place}
            )
    return taken


def _demands(wanted: t.Any) -> list[Demand]:
    """What is asked for, as text with commas, a list of such, or counts by profile. Raises CannotChoose."""
    if isinstance(wanted, t.Mapping):
        found = [_demand_of_count(name, count) for name, count in wanted.items()]
    elif isinstance(wanted, (list, tuple)):
        found = [demand for each in wanted for demand in _demands(each)]
    elif isinstance(wanted, int) and not isinstance(wanted, bool):
        found = [Demand(str(wanted))]
    elif isinstance(wanted, str):
        found = [_demand(word.strip()) for word in wanted.split(",") if word.strip()]
    else:
        raise CannotChoose(f"{quoted(wanted)} names no device; give a UUID, GPU:INDEX, or a profile such as 2x1g.10gb.")
    return found


def _demand(word: str) -> Demand:
    counted = _COUNTED.fullmatch(word)
    if counted is None:
        return Demand(word)
    return _demand_of_count(counted["profile"], int(counted["count"] or 1))


def _demand_of_count(name: t.Any, count: t.Any) -> Demand:
    counted = _COUNTED.fullmatch(str(name))
    if counted is None or counted["count"] is not None:
        raise CannotChoose(
            f"{quoted(name)} is no profile; a mapping has profiles with their counts, such as 1g.10gb with 2."
        )
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise CannotChoose(f"{name} is asked for {quoted(count)} times; give a number from 1 on.")
    return Demand(counted["profile"].lower(), count)


def _named(gpus: cdi_names.Gpus, everything: t.Sequence[Device], name: str, taken: t.Mapping[str, str]) -> Device:
    whole = cdi_names.in_mig_mode(gpus, name.removeprefix(cdi_names.PREFIX))
    if whole is not None:
        inside = [device for device in everything if device.gpu == whole]
        raise CannotChoose(
            f"GPU {whole} is in MIG mode, so that a container can only have what is on it: {_listed(inside, taken)}."
        )
    found = cdi_names.named(gpus, name)
    if not found:
        raise CannotChoose(f"There is no device {quoted(name)} on this host. It has {_listed(everything, taken)}.")
    device = found[0]
    if device.uuid in taken:
        raise CannotChoose(f"{device.words} is {taken[device.uuid]}. This host has {_listed(everything, taken)}.")
    return device


def _of_profile(everything: t.Sequence[Device], demand: Demand, taken: t.Mapping[str, str]) -> list[Device]:
    wanted = "" if demand.name == _GPU else demand.name
    alike = [device for device in everything if device.profile.lower() == wanted]
    free = [device for device in alike if device.uuid not in taken]
    if len(free) < demand.times:
        what = "whole GPUs" if demand.name == _GPU else f"devices {demand.name}"
        free_of_them = f", {len(free)} of them free" if len(free) < len(alike) else ""
        raise CannotChoose(
            f"{demand.times} {what} are asked for, and this host has {len(alike)}{free_of_them}. It has"
            f" {_listed(everything, taken)}."
        )
    return free[: demand.times]


def _listed(devices: t.Sequence[Device], taken: t.Mapping[str, str]) -> str:
    shown = [f"{each.words}{f' ({taken[each.uuid]})' if each.uuid in taken else ''}" for each in devices[:_MOST_NAMED]]
    if len(devices) > len(shown):
        shown.append(f"{len(devices) - len(shown)} more")
    return ", ".join(shown) or "no device that a container could have"


def requests(devices: t.Sequence[Device]) -> dict[str, t.Any]:
    """The same devices in the words of each tool. All of them name devices by UUID, which no other layout reuses."""
    uuids = [device.uuid for device in devices]
    names = [f"{cdi_names.PREFIX}{uuid}" for uuid in uuids]
    # Docker reads the value as CSV, in which commas need quotes.
    gpus = f'"device={",".join(uuids)}"'
    device = {"driver": "nvidia", "device_ids": uuids, "capabilities": ["gpu"]}
    return {
        "devices": [
            {
                "uuid": each.uuid,
                "index": each.place,
                "gpu": each.gpu,
                "profile": each.profile,
                "legacy_uuid": each.legacy,
            }
            for each in devices
        ],
        "uuids": uuids,
        "cdi": names,
        "run_cdi": [word for name in names for word in ("--device", name)],
        "run_gpus": ["--gpus", gpus],
        "visible_devices": ",".join(uuids),
        "compose": {"deploy": {"resources": {"reservations": {"devices": [device]}}}},
        "compose_cdi": {"devices": names},
    }
