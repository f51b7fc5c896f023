# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The engine's data as plain dicts and lists, for module results.

This file is private to the collection gpufleet.mig and may change at any time. ``None`` means "cannot tell".
"""

from __future__ import annotations

import typing as t

from . import catalog, configs, drawing, profiles
from .driver import describe, mode_change_needs_reboot
from .model import (
    ComputeInstance,
    Engines,
    Gpu,
    GpuInstance,
    GpuPlan,
    Node,
    Placement,
    Plan,
    Process,
    Profile,
    Step,
)

Report = dict[str, t.Any]


def node_report(node: Node) -> Report:
    """A node as mig_info returns it."""
    return {
        "driver_version": node.driver_version,
        "nvml_version": node.nvml_version,
        "cuda_version": node.cuda_version,
        "gpus": [gpu_report(gpu) for gpu in node.gpus],
        "config": configs.as_config(node),
    }


def gpu_report(gpu: Gpu) -> Report:
    """A GPU as mig_info returns it; the reset facts say what makes a pending mode current."""
    pending = gpu.mode_current != gpu.mode_pending
    by_reboot = mode_change_needs_reboot(gpu)
    return {
        "index": gpu.index,
        "uuid": gpu.uuid,
        "pci_bus_id": gpu.pci_bus_id,
        "pci_device_id": _pci_id(gpu.pci_device_id),
        "pci_subsystem_id": _pci_id(gpu.pci_subsystem_id),
        "name": gpu.name,
        "architecture": gpu.architecture,
        "compute_capability": gpu.compute_capability,
        "memory_mib": gpu.memory_mib,
        "minor": gpu.minor,
        "persistence": gpu.persistence,
        "virtualization": gpu.virtualization,
        "mig_capable": gpu.mig_capable,
        "hint": catalog.what_mig_needs(gpu),
        "mig_current": gpu.mode_current,
        "mig_pending": gpu.mode_pending,
        "reset_required": pending and not by_reboot,
        "reboot_required": pending and by_reboot,
        "instances": [instance_report(gpu, instance) for instance in gpu.instances],
        "processes": [_listed_report(process) for process in gpu.processes if process.listed],
        "profiles": None if gpu.profiles is None else [_profile_report(gpu, profile) for profile in gpu.profiles],
        "errors": [problem._asdict() for problem in gpu.problems],
        "config": configs.as_config(gpu),
        "layout": drawing.draw_gpu(gpu),
    }


def instance_report(gpu: Gpu, instance: GpuInstance) -> Report:
    """A GI with its CIs; ids and UUIDs of planned ones are None."""
    return {
        "id": instance.id,
        "profile": instance.profile.name,
        "profile_id": instance.profile.id,
        "slices": instance.profile.slices,
        "placement": _placement_report(instance.placement),
        "compute_instances": [_compute_report(gpu, instance, compute) for compute in instance.compute],
    }


def process_report(process: Process) -> Report:
    """A process with whom it belongs to, as gpu_holder_info and a refusal return it."""
    owner = process.owner._asdict()
    return {
        "pid": process.pid,
        "name": process.name,
        "kind": owner.pop("kind"),
        "uses": process.kind,
        "cooperative": process.cooperative,
        "listed": process.listed,
        "opened": list(process.opened),
        "used_mib": process.used_mib,
        **owner,
    }


def _listed_report(process: Process) -> Report:
    """A process as one of NVML's lists has it; whom it belongs to was not looked up for a mere report."""
    return {"pid": process.pid, "name": process.name, "used_mib": process.used_mib, "kind": process.kind}


def plan_report(plan: Plan, node: Node) -> list[Report]:
    """What happens to each GPU that has something to happen; instances of ``created`` list the CIs that share them."""
    return [_gpu_plan_report(gpu_plan, node.gpus[gpu_plan.gpu]) for gpu_plan in plan.gpus if gpu_plan.steps]


def differences_in_words(node: Node, differences: t.Mapping[int, tuple[str, ...]]) -> list[str]:
    """What compare.verdict found, with the GPU of each sentence."""
    return [
        f"{describe(node.gpus[index])}: {sentence}."
        for index, sentences in differences.items()
        for sentence in sentences
    ]


def diff_text(before: Node, after: t.Union[Node, Plan]) -> dict[str, str]:
    """Pictures of all GPUs for Ansible's diff: before, and after, which is a second reading or a plan."""
    if isinstance(after, Node):
        pictures = {gpu.index: drawing.draw_gpu(gpu) for gpu in after.gpus}
    else:
        pictures = {p.gpu: drawing.draw_layout(before.gpus[p.gpu], p.after, p.enabled) for p in after.gpus if p.steps}
    now = {gpu.index: drawing.draw_gpu(gpu) for gpu in before.gpus}
    return {"before": _lines(before, now), "after": _lines(before, {**now, **pictures})}


def uuid_map(before: Node, after: Node) -> dict[str, t.Optional[str]]:
    """What became of each MIG device: UUID before to UUID after, or None when it has no successor.

    A device that is still there maps to its own UUID, which does not prove that nobody touched it: UUIDs are the same
    for the same place. The others map, GPU by GPU and place by place, to new devices of the same kind.
    """
    mapped: dict[str, t.Optional[str]] = {}
    later = {gpu.uuid: _devices(gpu) for gpu in after.gpus}
    for gpu in before.gpus:
        former, present = _devices(gpu), later.get(gpu.uuid, {})
        new = [uuid for uuid in present if uuid not in former]
        for uuid, kind in former.items():
            heir = uuid if uuid in present else next((other for other in new if present[other] == kind), None)
            if heir in new:
                new.remove(heir)
            mapped[uuid] = heir
    return mapped


def _devices(gpu: Gpu) -> dict[str, tuple[int, int]]:
    """MIG UUID to what it is (GI profile id, compute slices), by place."""
    return {
        compute.uuid: (instance.profile.id, compute.slices)
        for instance in gpu.instances
        for compute in instance.compute
        if compute.uuid
    }


def _compute_report(gpu: Gpu, instance: GpuInstance, compute: ComputeInstance) -> Report:
    legacy = None
    if gpu.uuid and instance.id is not None and compute.id is not None:
        legacy = f"MIG-{gpu.uuid}/{instance.id}/{compute.id}"
    return {
        "id": compute.id,
        "profile": compute.name,
        "profile_id": compute.profile_id,
        "slices": compute.slices,
        "variant": compute.variant,
        "placement": _placement_report(compute.placement),
        "uuid": compute.uuid,
        "legacy_uuid": legacy,
        "mig_index": compute.mig_index,
        "processes": [_listed_report(process) for process in compute.processes if process.listed],
    }


def _profile_report(gpu: Gpu, profile: Profile) -> Report:
    return {
        "name": profile.name,
        "id": profile.id,
        "enum": profile.enum,
        "slices": profile.slices,
        "memory_mib": profile.memory_mib,
        "max": profiles.maximum(profile, gpu.profiles or ()),
        "remaining": _remaining(gpu, profile),
        "placements": [_placement_report(placement) for placement in profile.placements],
    }


def _remaining(gpu: Gpu, profile: Profile) -> int:
    """How many more of a profile fit beside what is there: by free places, and by what is left of each engine."""
    if not gpu.mode_current:
        return 0
    taken = {s for instance in gpu.instances for s in _span(instance.placement)}
    places = 0
    for placement in sorted(profile.placements):
        if taken.isdisjoint(_span(placement)):
            taken.update(_span(placement))
            places += 1
    budget = profiles.engine_budget(gpu.profiles or ())
    used: list[int] = [sum(each) for each in zip(Engines(), *(gi.profile.engines for gi in gpu.instances))]
    engines = zip(budget, used, profile.engines)
    by_engine: list[int] = [(total - taken_up) // each for total, taken_up, each in engines if each > 0]
    return max(0, min([places, *by_engine]))


def _gpu_plan_report(gpu_plan: GpuPlan, gpu: Gpu) -> Report:
    destroyed = {step.gi_id for step in gpu_plan.steps if step.kind == "destroy_gi"}
    return {
        "gpu": gpu.index,
        "pci_bus_id": gpu.pci_bus_id,
        "uuid": gpu.uuid,
        "mig": gpu_plan.enabled,
        "kept": [instance_report(gpu, instance) for instance in gpu_plan.after if instance.id is not None],
        "destroyed": [instance_report(gpu, instance) for instance in gpu.instances if instance.id in destroyed],
        "created": [instance_report(gpu, instance) for instance in gpu_plan.after if instance.id is None],
        "steps": [_step_report(step) for step in gpu_plan.steps],
        "provisional": gpu_plan.provisional,
        "layout": drawing.draw_layout(gpu, gpu_plan.after, gpu_plan.enabled),
    }


def _step_report(step: Step) -> Report:
    """A step with the fields that its kind uses."""
    fields = {key: value for key, value in step._asdict().items() if value not in (None, "") and key != "gpu"}
    for key in ("placement", "compute_placement"):
        if key in fields:
            fields[key] = _placement_report(fields[key])
    return fields


def _placement_report(placement: t.Optional[Placement]) -> t.Optional[Report]:
    return None if placement is None else placement._asdict()


def _span(placement: Placement) -> range:
    return range(placement.start, placement.start + placement.size)


def _pci_id(number: int) -> str:
    """``(device << 16) | vendor`` as mig-parted's device-filter spells it; empty where it is unknown."""
    return f"0x{number:08X}" if number else ""


def _lines(node: Node, pictures: dict[int, str]) -> str:
    return "".join(f"{pictures[gpu.index]}\n" for gpu in node.gpus)
