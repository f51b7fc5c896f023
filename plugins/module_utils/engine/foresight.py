# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a change comes to before anything is touched: wish, plan, clients to stop, and every reason to refuse.

This file is private to the collection gpufleet.mig and may change at any time. The worker asks here under the lock;
check mode asks here too, so that it gives the verdict of the real run.

An unfinished change of an earlier run is part of the answer: it is finished together with the new wish, or taken back.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shlex
import time
import typing as t

from . import clients, compare, driver, layouts, planner, refusals, report, reset, state
from .model import (
    ComputeInstance,
    Gpu,
    GpuInstance,
    Job,
    MigError,
    Node,
    Orders,
    Plan,
    Process,
    Step,
    Wanted,
)
from .transaction import changes_of, known_to_need_a_reboot, may_have_created_ci, may_have_created_gi
from .words import identity, on


class Foreseen(t.NamedTuple):
    """What a change comes to under the lock, before anything is touched.

    ``before`` is the node as read. ``wanted`` is None where there is no wish, only an unfinished change to take back;
    then ``plan`` is None too. ``stopping`` are the clients that are stopped for it, in this order. ``origin`` is what a
    failure goes back to, ``earlier`` are the writes of the unfinished change, and ``rebooted`` says that there was a
    reboot since.
    """

    before: Node
    wanted: t.Optional[Wanted]
    verdict: str
    plan: t.Optional[Plan]
    recovered: str
    stopping: tuple[str, ...]
    origin: Node
    earlier: tuple[Step, ...]
    rebooted: bool = False


def foresee(places: state.Places, node: Node, job: Job, manager: t.Optional[clients.Manager] = None) -> Foreseen:
    """What ``change`` would do to this node, read with holders. Raises what it would refuse, and touches nothing."""
    respect_lease(places, job)
    unfinished = state.read_journal(places)
    proven = is_proven(state.read_wanted(places), unfinished)
    return foresee_under_lock(places, node, job, unfinished, proven, manager or clients.manager_of())


def foresee_under_lock(
    places: state.Places,
    node: Node,
    job: Job,
    unfinished: t.Optional[state.Journal],
    proven: bool,
    manager: clients.Manager,
) -> Foreseen:
    """As foresee(), with what is known already. A ``proven`` change is over: nothing is left to finish or take back."""
    lease = state.read_lease(places)
    node = with_what_was_found_out(node, lease)
    to_finish = None if proven else unfinished
    origin, earlier = _origin(node, to_finish), _earlier(node, to_finish)
    recovered = "" if unfinished is None else "forward" if proven else job.orders.recover
    started_anew = to_finish is not None and rebooted(to_finish)
    if recovered == "back":
        stopping = _stopped(_kinds_of_the_way_back(node, origin), job, manager)
        _require_takable_back(_without(node, stopping), origin, earlier, job.orders)
        wanted = None if job.resolve is None else job.resolve(node)
        verdict = compare.MATCH if wanted is None else compare.verdict(origin, wanted).verdict
        return Foreseen(node, wanted, verdict, None, recovered, stopping, origin, earlier, started_anew)
    # What a proven change led to is wanted still, and may have been lost in a reboot since.
    wanted = wish_of(node, job, unfinished)
    verdict, differences = compare.verdict(node, wanted)
    if verdict == compare.UNKNOWN:
        sentences = " ".join(report.differences_in_words(node, differences))
        raise MigError(f"Cannot tell whether the node is as wanted, and nothing was changed: {sentences}")
    plan = planner.plan_node(node, wanted)
    _require_no_second_reboot(places, node, wanted, plan, job, lease)
    kinds = _kinds_of(node, plan, job) if verdict != compare.MATCH or job.resets else set()
    stopping = _stopped(kinds, job, manager)
    refusals.require_possible(node, plan, job.orders, stopping, functools.partial(_stoppable, kinds, job, manager))
    _require_resettable(node, plan, job, stopping, manager)
    return Foreseen(node, wanted, verdict, plan, recovered, stopping, origin, earlier, started_anew)


def wish_of(node: Node, job: Job, unfinished: t.Optional[state.Journal]) -> Wanted:
    """The wish of this job; an unfinished change is finished on the GPUs that the wish does not speak of."""
    own = Wanted("", "unfinished", {}) if job.resolve is None else job.resolve(node)
    if unfinished is None:
        return own
    touched = {_key(dump) for dump in unfinished.before if dump.get("index") in unfinished.gpus}
    # A boot brings back what it can: one GPU that does not answer must not keep it from the others.
    present = {_key_of(gpu) for gpu in node.gpus if not (job.restores and (gpu.problems or gpu.index in own.wishes))}
    target = [dump for dump in unfinished.target if _key(dump) in touched & present]
    rest = layouts.resolve(node, target) if target else own
    return own._replace(wishes={**rest.wishes, **own.wishes})


def _kinds_of(node: Node, plan: Plan, job: Job) -> set[str]:
    """The kinds of change, as clients have them, that a plan makes."""
    kinds = {"reset"} if job.resets else set()
    for gpu_plan in plan.gpus:
        waits = node.gpus[gpu_plan.gpu].mode_current != gpu_plan.enabled
        if waits or refusals.mode_step(gpu_plan) is not None:
            kinds.add("mode")
        if waits and job.orders.allow_reset:
            kinds.add("reset")
        if any(step.kind != "set_mode" for step in gpu_plan.steps):
            kinds.add("instances")
    return kinds


def _stopped(kinds: t.AbstractSet[str], job: Job, manager: clients.Manager) -> tuple[str, ...]:
    """The clients that are stopped for these kinds of change. Raises ClientError for what must not be stopped."""
    allowed = kinds and job.orders.evict == "clients"
    return clients.select(job.orders.clients, kinds, manager) if allowed else ()


def _stoppable(kinds: t.AbstractSet[str], job: Job, manager: clients.Manager) -> tuple[str, ...]:
    """The clients that would be stopped, were it allowed; none where that is refused too."""
    try:
        return clients.select(job.orders.clients, kinds, manager)
    except clients.ClientError:
        return ()


def due_for_reset(node: Node, plan: Plan, orders: Orders) -> list[int]:
    """GPUs whose wanted mode is pending already, and that may be reset to make it current."""
    if not orders.allow_reset:
        return []
    waiting = [each.gpu for each in plan.gpus if compare.waits(node.gpus[each.gpu], each.enabled)]
    return [index for index in waiting if not driver.mode_change_needs_reboot(node.gpus[index])]


def _require_resettable(node: Node, plan: Plan, job: Job, stopping: t.Sequence[str], manager: clients.Manager) -> None:
    """Refuse before anything is written what needs a reset that cannot be had."""
    gpus = sorted({*job.resets, *due_for_reset(node, plan, job.orders)})
    if not gpus:
        return
    if job.orders.evict == "none":
        promised = [(node.gpus[index], refusals.reservations_of(node.gpus[index])) for index in gpus]
        refusals.require_not_promised(promised)
    obstacles = reset.obstacles(
        _without(node, stopping), gpus, by_driver=False, manager=manager, manage_drm=job.orders.manage_drm
    )
    if obstacles:
        raise MigError(f"{' '.join(obstacles)} Nothing was changed.", **identity(node.gpus[gpus[0]]))


def _without(node: Node, units: t.Collection[str]) -> Node:
    """The node as it is when these clients are stopped."""

    return _only_with(node, lambda process: not clients.belongs(process.owner, units)) if units else node


def without_pods(node: Node) -> Node:
    """The node as it is when its pods have left."""
    return _only_with(node, lambda process: not process.owner.pod)


def _only_with(node: Node, stays: t.Callable[[Process], bool]) -> Node:
    def others(gpu: Gpu) -> Gpu:
        instances = tuple(
            gi._replace(compute=tuple(ci._replace(processes=tuple(filter(stays, ci.processes))) for ci in gi.compute))
            for gi in gpu.instances
        )
        return gpu._replace(instances=instances, processes=tuple(filter(stays, gpu.processes)))

    return node._replace(gpus=tuple(others(gpu) for gpu in node.gpus))


def respect_lease(places: state.Places, job: Job) -> None:
    """Raise LockedError while another run keeps this node for a reset or reboot that it waits for.

    Not so for what only brings back what is remembered, which is what a boot does meanwhile.
    """
    lease = state.read_lease(places)
    if lease is not None and not job.restores and state.lease_blocks(lease, job.orders.run_id, time.time()):
        until = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(lease.expires))
        raise state.LockedError(
            f"{state.printable(lease.who) or 'Another run'} keeps this node until {until} for the run"
            f" {state.printable(lease.run_id)}, since it waits for {state.printable(lease.reason)}: wait for that run,"
            " or continue it with the same run_id.",
            lock=lease._asdict(),
        )


# --- one reboot for one wish ---------------------------------------------------------------------------------------


def digest(wanted: Wanted) -> str:
    """A wish as a short text: equal for equal wishes of this node, whatever the node has at the moment."""
    said = [
        (
            index,
            wish.enabled,
            wish.mode_only,
            sorted(repr((each.profile.id, each.placement, each.compute)) for each in wish.instances),
        )
        for index, wish in sorted(wanted.wishes.items())
    ]
    return hashlib.sha256(repr((wanted.label, said)).encode()).hexdigest()


def with_what_was_found_out(node: Node, lease: t.Optional[state.Lease]) -> Node:
    """The node with what an earlier run met: GPUs that waited for a reboot cannot be reset, whatever they say."""
    return known_to_need_a_reboot(node, lease.pci) if lease is not None and lease.reason == state.A_REBOOT else node


def is_wish_of(lease: state.Lease, wanted: Wanted, job: Job) -> bool:
    """Whether this job wants what is waited for. Who only ends an unfinished change has no other wish than that."""
    return job.resolve is None or lease.wish == digest(wanted)


def _require_no_second_reboot(
    places: state.Places, node: Node, wanted: Wanted, plan: Plan, job: Job, lease: t.Optional[state.Lease]
) -> None:
    """Refuse before anything is written what would have the node rebooted again for what it was rebooted for."""
    if lease is None or not (job.orders.allow_reboot and state.was_rebooted_for(lease)):
        return
    waiting = refusals.need_reboot(node, plan)
    if waiting and is_wish_of(lease, wanted, job):
        raise second_reboot(places, waiting)


def second_reboot(places: state.Places, waiting: t.Sequence[Gpu]) -> MigError:
    """The refusal of a reboot that would be the second for one wish."""
    path = os.path.join(places.state, "reboot.json")
    modes = "; ".join(
        f"{driver.describe(gpu)} has MIG {on(gpu.mode_current)}"
        + (f" with {on(gpu.mode_pending)} pending" if gpu.mode_pending != gpu.mode_current else "")
        for gpu in waiting
    )
    return MigError(
        f"This node was rebooted for this wish already, and it would need another reboot: {modes}. Look into"
        f" 'dmesg', and at the hypervisor where there is one, for why the reboot did not help; 'rm {shlex.quote(path)}'"
        " allows one more.",
        **identity(waiting[0]),
        current=on(waiting[0].mode_current),
        wanted=on(not waiting[0].mode_current),
    )


# --- an unfinished change ------------------------------------------------------------------------------------------


def _key(dump: t.Mapping[str, t.Any]) -> tuple[t.Any, ...]:
    return dump.get("pci_bus_id"), dump.get("uuid")


def _key_of(gpu: Gpu) -> tuple[str, str]:
    return gpu.pci_bus_id, gpu.uuid


def _origin(node: Node, unfinished: t.Optional[state.Journal]) -> Node:
    """The node as it was before the unfinished change, or as it is now where there is none.

    After a reboot that is all GPUs: none has its instances any more. A mode that was pending before the change has
    become current in it, as whoever stored it wanted.
    """
    if unfinished is None:
        return node
    everything = rebooted(unfinished)
    former = {_key(d): d for d in unfinished.before if everything or d.get("index") in unfinished.gpus}

    def origin(gpu: Gpu) -> Gpu:
        dump = former.get(_key_of(gpu))
        if dump is None:
            return gpu
        was = layouts.load(dump, gpu)._replace(index=gpu.index)
        return reset.foreseen(was) if everything and reset.is_pending(was) else was

    return node._replace(gpus=tuple(map(origin, node.gpus)))


def _earlier(node: Node, unfinished: t.Optional[state.Journal]) -> tuple[Step, ...]:
    """The writes of the unfinished change, with the indices that its GPUs have now."""
    if unfinished is None:
        return ()
    now = {_key_of(gpu): gpu.index for gpu in node.gpus}
    moved = {dump.get("index"): now.get(_key(dump)) for dump in unfinished.before}
    return tuple(step._replace(gpu=index) for step in unfinished.steps if (index := moved.get(step.gpu)) is not None)


def rebooted(unfinished: state.Journal) -> bool:
    """Whether the node was started anew since the layout from before was there."""
    return unfinished.boot_id != state.boot_id()


def is_proven(persisted: t.Optional[state.Persisted], unfinished: t.Optional[state.Journal]) -> bool:
    """Whether all that was left to do for a change was to remove its journal: what it led to is remembered."""
    return unfinished is not None and persisted is not None and persisted.txid == unfinished.txid


def lost_gpus(node: Node, unfinished: state.Journal) -> list[str]:
    """GPUs of the unfinished change that are not in the node any more, in words."""
    present = {_key_of(gpu) for gpu in node.gpus}
    return [
        f"GPU {dump.get('index')} ({dump.get('pci_bus_id')}, {dump.get('uuid')}) is not in this node any more"
        for dump in unfinished.before
        if dump.get("index") in unfinished.gpus and _key(dump) not in present
    ]


def what_there_was(origin: Node, unfinished: state.Journal) -> list[state.Record]:
    """The layouts before the unfinished change, those of GPUs that are not in the node any more among them."""
    there = {_key_of(gpu): layouts.dump(gpu) for gpu in origin.gpus}
    return [there.get(_key(dump), dump) for dump in unfinished.before]


def _kinds_of_the_way_back(node: Node, origin: Node) -> set[str]:
    pairs = list(zip(node.gpus, origin.gpus))
    kinds = {"mode"} if any(now.mode_current != was.mode_current for now, was in pairs) else set()
    if any(changes_of(was, now) for now, was in pairs):
        kinds.add("instances")
    return kinds


def _require_takable_back(node: Node, origin: Node, steps: t.Sequence[Step], orders: Orders) -> None:
    """Refuse to take a change back while somebody uses an instance that it made, or a GPU whose mode has to change.

    So too while somebody was promised such an instance, unless that may be taken, and where it takes a reboot.
    """
    for gpu in node.gpus:
        was = origin.gpus[gpu.index].mode_current
        if None not in (was, gpu.mode_current) and gpu.mode_current != was and driver.mode_change_needs_reboot(gpu):
            raise MigError(
                f"{driver.describe(gpu)} has MIG {on(gpu.mode_current)} since a reboot, and only another one turns it"
                f" {on(was)} again, so the unfinished change is not taken back. Finish it, and wish for MIG {on(was)}"
                " with allow_reboot then.",
                **identity(gpu),
                current=on(gpu.mode_current),
                wanted=on(was),
            )
    busy = [(gpu, _in_the_way_back(gpu, origin.gpus[gpu.index], steps)) for gpu in node.gpus]
    refusals.require_idle(busy, unseen=node.unseen)
    if orders.evict == "none":
        going = [(gpu, _new_compute(gpu, origin.gpus[gpu.index], steps)) for gpu in node.gpus]
        refusals.require_not_promised(
            [(gpu, tuple(r for ci in new for r in ci.reservations)) for gpu, new in going if new]
        )


def _in_the_way_back(gpu: Gpu, was: Gpu, steps: t.Sequence[Step]) -> tuple[Process, ...]:
    if gpu.mode_current not in (None, was.mode_current):
        return (*gpu.processes, *(process for gi in gpu.instances for ci in gi.compute for process in ci.processes))
    former = {(gi.profile.id, gi.placement) for gi in was.instances}
    stays = any((gi.profile.id, gi.placement) in former for gi in gpu.instances)
    first = refusals.using_the_whole(gpu) if former and not stays else ()
    return (*first, *(process for ci in _new_compute(gpu, was, steps) for process in ci.processes))


def _new_compute(gpu: Gpu, was: Gpu, steps: t.Sequence[Step]) -> tuple[ComputeInstance, ...]:
    """The CIs of a GPU that the way back destroys: those that these steps may have created."""
    former = {(gi.profile.id, gi.placement): gi for gi in was.instances}

    def is_new(instance: GpuInstance, compute: ComputeInstance) -> bool:
        kept = former.get((instance.profile.id, instance.placement))
        if kept is None:
            return may_have_created_gi(steps, gpu.index, instance)
        there = any((ci.placement, ci.slices) == (compute.placement, compute.slices) for ci in kept.compute)
        return not there and may_have_created_ci(steps, gpu.index, instance, compute)

    return tuple(ci for gi in gpu.instances for ci in gi.compute if is_new(gi, ci))
