# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""GPUs, instances and steps in words, for messages.

This file is private to the collection gpufleet.mig and may change at any time.
"""

from __future__ import annotations

import typing as t

from .model import ComputeInstance, Gpu, GpuInstance, Placement, Step
from .profiles import counted


def identity(gpu: Gpu) -> dict[str, t.Any]:
    """What every failure about a GPU says in its details."""
    return {"gpu": gpu.index, "pci_bus_id": gpu.pci_bus_id, "uuid": gpu.uuid}


def on(enabled: t.Optional[bool]) -> str:
    """A MIG mode."""
    return "unknown" if enabled is None else "on" if enabled else "off"


def joined(things: t.Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return f"{', '.join(things[:-1])} and {things[-1]}" if len(things) > 1 else "".join(things)


def place(placement: t.Optional[Placement]) -> str:
    """``start:size`` in slices."""
    return "an unknown place" if placement is None else f"{placement.start}:{placement.size}"


def instance_in_words(instance: GpuInstance) -> str:
    """``GPU instance 3g.20gb at 4:4``."""
    return f"GPU instance {instance.profile.name} at {place(instance.placement)}"


def compute_in_words(instance: GpuInstance, compute: ComputeInstance) -> str:
    """A CI with its GI, and with its place where it does not fill it."""
    inside = "" if compute.slices == instance.profile.slices else f" at {place(compute.placement)}"
    return f"compute instance {compute.name}{inside} in {instance_in_words(instance)}"


def layout_in_words(gpu: Gpu) -> str:
    """Mode and all instances."""
    parts = ", ".join(words for words, uuid in parts_of(gpu).values())
    return f"MIG {on(gpu.mode_current)}" + (f" and {parts}" if parts else "")


def step_in_words(step: Step) -> str:
    """A driver write as an order: ``destroy GPU instance 3g.20gb at 4:4 of GPU 0``."""
    where = f"{step.name} at {place(step.placement)} of GPU {step.gpu}"
    return {
        "reset": f"reset GPU {step.gpu}",
        "set_mode": f"turn MIG of GPU {step.gpu} {on(step.enabled)}",
        "destroy_ci": f"destroy compute instance {step.ci_id} in GPU instance {where}",
        "destroy_gi": f"destroy GPU instance {where}",
        "create_gi": f"create GPU instance {where}",
        "create_ci": f"create a compute instance of {counted(step.slices, 'slice')} in GPU instance {where}",
    }.get(step.kind, step.kind)


def parts_of(gpu: Gpu) -> dict[t.Hashable, tuple[str, t.Optional[str]]]:
    """Every GI and CI of a GPU by what and where it is: its words and its UUID."""
    parts: dict[t.Hashable, tuple[str, t.Optional[str]]] = {}
    for instance in gpu.instances:
        key = (instance.profile.id, instance.placement)
        parts[key] = (instance_in_words(instance), None)
        for compute in instance.compute:
            parts[key, compute_key(compute)] = (compute_in_words(instance, compute), compute.uuid)
    return parts


def compute_key(compute: ComputeInstance) -> tuple[t.Optional[Placement], int, str]:
    """What and where a CI is inside its GI."""
    return compute.placement, compute.slices, compute.variant
