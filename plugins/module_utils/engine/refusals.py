# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What keeps a plan from being started. Nothing here touches anything, so that check mode gives the same verdict.

This file is private to the collection gpufleet.mig and may change at any time.
"""

from __future__ import annotations

import typing as t

from . import clients, driver, holders, report, reset
from .model import Gpu, GpuPlan, MigError, Node, Orders, Plan, Process, Reservation, Step
from .reading import NO_ORDERS
from .words import compute_in_words, identity, joined, on

# Asked only where a refusal has to say what would help: whoever finds out has to ask systemd.
Stoppable = t.Callable[[], t.Collection[str]]


def require_possible(
    before: Node,
    plan: Plan,
    orders: Orders = NO_ORDERS,
    stopping: t.Collection[str] = (),
    stoppable: Stoppable = tuple,
) -> None:
    """Raise MigError for a plan that must not be started, naming everything that is in the way.

    ``stopping`` are the clients that are stopped before the plan is carried out: what they hold is no obstacle.
    ``stoppable`` returns those that would be, if that were allowed.
    """
    changing = [(before.gpus[gpu_plan.gpu], gpu_plan) for gpu_plan in plan.gpus if gpu_plan.steps]
    for gpu, _gpu_plan in changing:
        refusal = driver.why_not_writable(before.driver_version, gpu)
        if refusal:
            raise MigError(refusal, **identity(gpu))
    busy = [(gpu, (*gpu_plan.lost_busy, *_in_the_way_of_the_first(gpu, gpu_plan))) for gpu, gpu_plan in changing]
    require_idle(busy, stopping, before.unseen, stoppable=stoppable)
    if orders.evict == "none":
        require_not_promised([(gpu, gpu_plan.lost_reserved) for gpu, gpu_plan in changing if _takes_away(gpu_plan)])
    switched = [
        (gpu, gpu_plan.enabled)
        for gpu, gpu_plan in changing
        if mode_step(gpu_plan) is not None and gpu.mode_current != gpu_plan.enabled
    ]
    if orders.allow_reboot:
        _require_nothing_lost_in_a_reboot(before, need_reboot(before, plan), orders, stopping, stoppable)
    else:
        _require_no_reboot([(gpu, enabled) for gpu, enabled in switched if driver.mode_change_needs_reboot(gpu)])
    resetting = [
        gpu.index for gpu, _enabled in switched if needs_reset(gpu) and not driver.mode_change_needs_reboot(gpu)
    ]
    obstacles = reset.obstacles(before, resetting, by_driver=True, manage_drm=orders.manage_drm)
    if obstacles:
        raise MigError(f"{' '.join(obstacles)} Nothing was changed.", **identity(before.gpus[resetting[0]]))


def need_reboot(node: Node, plan: Plan) -> tuple[Gpu, ...]:
    """GPUs whose planned mode is not current and takes a reboot to become so, whether it is stored already or not."""
    planned = [(node.gpus[each.gpu], each.enabled) for each in plan.gpus]
    return tuple(
        gpu for gpu, enabled in planned if gpu.mode_current != enabled and driver.mode_change_needs_reboot(gpu)
    )


def _require_nothing_lost_in_a_reboot(
    node: Node, waiting: t.Sequence[Gpu], orders: Orders, stopping: t.Collection[str], stoppable: Stoppable
) -> None:
    """A reboot ends whatever computes on any GPU of the node, and takes all instances, also those that are promised."""
    if not waiting:
        return
    why = f" The mode of GPU {_indices(waiting)} needs a reboot of the node, which would end it."
    require_idle([(gpu, _ended_by_a_reboot(gpu)) for gpu in node.gpus], stopping, node.unseen, why, stoppable)
    if orders.evict == "none":
        require_not_promised([(gpu, reservations_of(gpu)) for gpu in node.gpus])


def _ended_by_a_reboot(gpu: Gpu) -> tuple[Process, ...]:
    """Work, as opposed to monitoring or a display, which come back by themselves."""
    whole = (process for process in gpu.processes if process.kind in ("compute", "mps"))
    return (*whole, *(process for gi in gpu.instances for ci in gi.compute for process in ci.processes))


def reservations_of(gpu: Gpu) -> tuple[Reservation, ...]:
    """The promises about a GPU and about its instances."""
    return (*gpu.reservations, *(each for gi in gpu.instances for ci in gi.compute for each in ci.reservations))


def _in_the_way_of_the_first(gpu: Gpu, gpu_plan: GpuPlan) -> tuple[Process, ...]:
    """Processes of the whole GPU that keep its first GI from being made: with none left, the driver answers IN_USE.

    A plan that only empties the GPU counts too, since its way back begins with a first GI.
    """
    kept = any(instance.id is not None for instance in gpu_plan.after)
    makes_or_loses = gpu.instances or any(step.kind == "create_gi" for step in gpu_plan.steps)
    return using_the_whole(gpu) if makes_or_loses and not kept else ()


def using_the_whole(gpu: Gpu) -> tuple[Process, ...]:
    """Processes that NVML lists for the GPU itself, in no instance."""
    return tuple(each for each in gpu.processes if each.listed)


def mode_step(gpu_plan: GpuPlan) -> t.Optional[Step]:
    """The step of a plan that switches the mode, if there is one."""
    return next((step for step in gpu_plan.steps if step.kind == "set_mode"), None)


def needs_reset(gpu: Gpu) -> bool:
    """Whether this GPU is reset, by the driver itself or by somebody else, when its MIG mode changes."""
    return gpu.architecture == "ampere"


def require_idle(
    in_the_way: t.Sequence[tuple[Gpu, tuple[Process, ...]]],
    stopping: t.Collection[str] = (),
    unseen: t.Sequence[str] = (),
    why: str = "",
    stoppable: Stoppable = tuple,
) -> None:
    """Refuse to take an instance, or a whole GPU when its mode is to change, away from a process.

    ``in_the_way`` has the processes on each GPU. All are named at once, so that nobody stops one job after the other,
    and ``unseen`` says why there may be others. ``why`` is a sentence for where it is not the plan that takes it away.
    ``stoppable`` returns clients that would be stopped, if that were allowed.
    """
    uses = []
    for gpu, processes in in_the_way:
        once = {each.pid: each for each in processes}
        uses += [
            (gpu, each) for each in once.values() if not each.cooperative and not clients.belongs(each.owner, stopping)
        ]
    if not uses:
        return
    gpus = list({gpu.index: gpu for gpu, _process in uses}.values())
    if len(gpus) == 1:
        said = f"{driver.describe(gpus[0])} is in use and nothing was changed: "
    else:
        said = f"GPU {joined([str(gpu.index) for gpu in gpus])} are in use and nothing was changed: "
    others = f" There may be others, since {' and '.join(unseen)}." if unseen else ""
    raise MigError(
        f"{said}{_uses_in_words(uses, len(gpus) > 1)}.{why}{others} {_way_out(uses, stoppable)}",
        **identity(gpus[0]),
        holders=[{"gpu": gpu.index, **report.process_report(process)} for gpu, process in uses],
    )


def _uses_in_words(uses: t.Sequence[tuple[Gpu, Process]], several: bool) -> str:
    """Each process with all that it uses, one after the other; of ``several`` GPUs each is named."""
    of_process: dict[int, list[tuple[Gpu, Process]]] = {}
    for gpu, process in uses:
        of_process.setdefault(process.pid, []).append((gpu, process))
    said = []
    for its in of_process.values():
        whole = [gpu for gpu, process in its if _place(gpu, process) is None]
        indices = joined([str(gpu.index) for gpu in whole])
        places = [f"GPU {indices}" if several else "the GPU"] if whole else []
        for gpu, process in its:
            place = _place(gpu, process)
            places += [] if place is None else [f"{place} of GPU {gpu.index}" if several else place]
        opened = tuple(dict.fromkeys(file for _gpu, process in its for file in process.opened))
        listed = any(process.listed for _gpu, process in its)
        it = its[0][1]._replace(opened=opened, listed=listed)
        said.append(holders.does(it, f"uses {joined(places)}"))
    return "; ".join(said)


def _place(gpu: Gpu, process: Process) -> t.Optional[str]:
    """The instance that a process of this GPU is in; None for the GPU itself."""
    place = None
    for instance in gpu.instances:
        for compute in instance.compute:
            if any(holder.pid == process.pid for holder in compute.processes):
                place = compute_in_words(instance, compute)
    return place


def _way_out(uses: t.Sequence[tuple[Gpu, Process]], stoppable: Stoppable) -> str:
    """What to do about processes that are in the way."""
    named = stoppable()
    if all(clients.belongs(process.owner, named) for _gpu, process in uses):
        return (
            "Only clients are in the way: run again with evict: clients (in the playbooks"
            " mig_evict=clients), which stops them for the change and starts them again."
        )
    return "Stop what is running there, and run again."


def _takes_away(gpu_plan: GpuPlan) -> bool:
    """Whether the plan destroys something or switches the mode, and does not only make what was not there."""
    return any(step.kind in ("destroy_ci", "destroy_gi", "set_mode") for step in gpu_plan.steps)


def require_not_promised(in_the_way: t.Sequence[tuple[Gpu, tuple[Reservation, ...]]]) -> None:
    """Refuse to take an instance that somebody was promised, or anything of a GPU that somebody was promised whole.

    ``in_the_way`` are the GPUs that something is taken from, with the promises about what is taken.
    """
    promised = [
        (gpu, tuple(dict.fromkeys((*reservations, *gpu.reservations))))
        for gpu, reservations in in_the_way
        if reservations or gpu.reservations
    ]
    if not promised:
        return
    said = [
        f"{driver.describe(gpu)} is reserved, and nothing was changed: "
        + "; ".join(
            f"{_by(each)} has {'the whole GPU' if each in gpu.reservations else 'an instance that would go'}"
            for each in reservations
        )
        for gpu, reservations in promised
    ]
    raise MigError(
        f"{'. '.join(said)}. Wait until they are released, or take them with evict: reserved.",
        **identity(promised[0][0]),
        reservations=[{"gpu": gpu.index, **each._asdict()} for gpu, reservations in promised for each in reservations],
    )


def _by(reservation: Reservation) -> str:
    return f"{reservation.holder} ({reservation.source})" if reservation.source else reservation.holder


def _require_no_reboot(waiting: t.Sequence[tuple[Gpu, bool]]) -> None:
    """Refuse mode changes that only a reboot makes current, with the commands that make them by hand, in order."""
    if not waiting:
        return
    first, first_enabled = waiting[0]
    turned = {enabled: [gpu for gpu, wanted in waiting if wanted == enabled] for enabled in (True, False)}
    occupied = [gpu for gpu in turned[False] if gpu.instances]
    with_compute = [gpu for gpu in occupied if any(instance.compute for instance in gpu.instances)]
    commands = [
        *([f"'nvidia-smi mig -dci -i {_indices(with_compute)}'"] if with_compute else []),
        *([f"'nvidia-smi mig -dgi -i {_indices(occupied)}'"] if occupied else []),
        *(f"'nvidia-smi -i {_indices(gpus)} -mig {int(enabled)}'" for enabled, gpus in turned.items() if gpus),
    ]
    modes = " and ".join(
        f"{on(enabled)}{f' (GPU {_indices(gpus)})' if all(turned.values()) else ''}"
        for enabled, gpus in turned.items()
        if gpus
    )
    only_empty = (
        f" Only a GPU without instances can be turned off: the label all-enabled on GPU {_indices(occupied)} removes"
        " them as well as the commands that destroy them do."
        if occupied
        else ""
    )
    verb = "is an Ampere GPU" if len(waiting) == 1 else "are Ampere GPUs"
    why = f"that nothing on this machine can reset: turning MIG {modes} takes effect at a reboot only"
    if all(gpu.virtualization == "passthrough" for gpu, _enabled in waiting):
        why = (
            f"passed through to a virtual machine: turning MIG {modes} takes effect at a reboot only and cannot be"
            " taken back before it"
        )
    raise MigError(
        f"{' and '.join(driver.describe(gpu) for gpu, _enabled in waiting)} {verb} {why}."
        " Nothing was changed; set allow_reboot to have it stored for a reboot of the node, or run"
        f" {', then '.join(commands)}, reboot, and run again.{only_empty}",
        **identity(first),
        current=on(first.mode_current),
        wanted=on(first_enabled),
    )


def _indices(gpus: t.Iterable[Gpu]) -> str:
    """GPUs as nvidia-smi takes them: ``0,1``."""
    return ",".join(str(gpu.index) for gpu in gpus)
