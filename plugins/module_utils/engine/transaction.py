# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Carries out a plan on a node: all of it, or the node is as before.

This file is private to the collection gpufleet.mig and may change at any time.

Order of a change:

1. refuse, before the first write, what cannot or must not be done;
2. switch MIG modes, all GPUs, and read them back; reset what stays pending, if that is allowed. A mode that stays
   pending then ends the run before an instance is touched (only the GPUs that are to be disabled lose their instances
   first, since NVML demands it);
3. destroy and create instances, GPU by GPU;
4. close NVML, open it again, read, and compare with what was wanted.

A failure in 2 to 4 leads to the rollback, which compares what is there with what was there and repairs the difference.
It destroys nothing but what this run created, and it is not driven by a list of steps to undo: a call that failed may
have done its work all the same. The same way back serves a change that was interrupted, by whoever heals it.

On Ampere GPUs that are passed through to a virtual machine, or cannot be reset for another reason, a mode change takes
effect at the next reboot of the machine, and in a virtual machine the driver cannot take it back. It is refused before
it is stored, unless whoever asks for it may reboot the node (``allow_reboot``). Then all such modes are stored in one
run, and the result says ``reboot_required``; where they are stored already no write is made.

Locks, records on disk, clients and the process that all this runs in are worker.py's.
"""

from __future__ import annotations

import os
import time
import typing as t

from . import driver, holders, report
from .compare import differences, waits
from .model import (
    ComputeInstance,
    DriverError,
    Gpu,
    GpuInstance,
    GpuPlan,
    MigError,
    Node,
    Orders,
    Placement,
    Plan,
    Problem,
    Step,
    Wanted,
)
from .refusals import mode_step, needs_reset, require_idle, require_possible
from .words import compute_key, identity, layout_in_words, on, parts_of, step_in_words

OpenSession = t.Callable[[], t.ContextManager[driver.Session]]

# A GPU that resets itself to change its mode takes a few seconds; the driver said that it will come.
_SETTLE_SECONDS = 10.0
_SETTLE_POLL_SECONDS = 0.25

# How often a mode that somebody's short session of NVML kept pending is asked for again, and how long each time it is
# waited until nobody is known who has the GPU open.
_ASK_AGAIN = 3
_ASK_AGAIN_SECONDS = 0.5

# Modes, then the instances that the driver could only tell about afterwards, and once more for GPUs that had to wait.
_ROUNDS = 4


class Course(t.NamedTuple):
    """What a change needs beyond its first plan.

    ``replan`` resolves the wish again and plans again, for when the modes are current, on the node that ``read`` reads
    with its holders and promises. ``reset`` resets GPUs, without it a mode that stays pending ends the run; NVML is
    closed while it runs. ``resets`` are GPUs that are reset whatever their mode is. ``origin`` is what a failure goes
    back to if it is not the node as read, ``earlier`` are the writes of the unfinished change before this one, and
    ``rebooted`` says that the node was started anew since. ``did`` is told of every step that is done.
    """

    orders: Orders = Orders()
    stopping: tuple[str, ...] = ()
    replan: t.Optional[t.Callable[[Node], tuple[Wanted, Plan]]] = None
    read: t.Optional[t.Callable[[], Node]] = None
    reset: t.Optional[t.Callable[[tuple[Gpu, ...]], None]] = None
    resets: tuple[int, ...] = ()
    origin: t.Optional[Node] = None
    earlier: tuple[Step, ...] = ()
    rebooted: bool = False
    did: t.Optional[t.Callable[[Step], None]] = None


class Outcome(t.NamedTuple):
    """What became of a plan.

    ``altered``: a write was started, so the node may have been touched, even if it is as before again.
    ``changed``: the node is not as it was. ``rolled_back`` is None without a failure, else whether everything is as
    before again; what is not is in ``missing``, a sentence each, without its full stop.

    ``reset_required`` and ``reboot_required`` are GPU indices whose wanted mode is stored but not current; then
    no other instance was touched, ``error`` is None, and nothing is rolled back. ``steps_done`` has every write that
    had its effect: for a GPU that was to be disabled also the destroy_ci and destroy_gi that NVML demands before it
    takes the mode. These instances are gone although the GPU still waits for its mode; whoever reports it must say so.
    ``pending_left`` are GPUs whose mode this run made pending and could not take back.

    The rest is worker.py's: ``before`` as it was read under the lock, ``recovered`` is forward or back after the change
    that ``unfinished`` names, ``resumed`` the record of an earlier run that did this change and could not tell anybody,
    ``remembered`` whether the record of what the next boot restores was changed, ``recovery`` the file with a layout
    that could not be restored, ``stopped`` the clients that were stopped and ``not_started`` sentences about those that
    do not run again. ``cdi`` is what containers are told of the layout, in a sentence, on nodes that are set up for it.
    """

    after: Node
    altered: bool
    changed: bool
    steps_done: tuple[Step, ...] = ()
    rolled_back: t.Optional[bool] = None
    missing: tuple[str, ...] = ()
    reset_required: tuple[int, ...] = ()
    reboot_required: tuple[int, ...] = ()
    pending_left: tuple[int, ...] = ()
    error: t.Optional[MigError] = None
    uuid_map: t.Optional[dict[str, t.Optional[str]]] = None
    before: t.Optional[Node] = None
    wanted: t.Optional[Wanted] = None
    plan: t.Optional[Plan] = None
    txid: str = ""
    recovered: str = ""
    unfinished: t.Optional[dict[str, t.Any]] = None
    resumed: t.Optional[dict[str, t.Any]] = None
    remembered: bool = False
    recovery: str = ""
    stopped: tuple[str, ...] = ()
    not_started: tuple[str, ...] = ()
    cdi: str = ""
    warnings: tuple[str, ...] = ()


def apply(
    open_session: OpenSession, before: Node, plan: Plan, wanted: Wanted, course: t.Optional[Course] = None
) -> Outcome:
    """Bring the node from ``before`` to ``wanted`` by the steps of ``plan``.

    ``open_session`` opens a new NVML session each time (``driver.Session``). Raises MigError as long as nothing was
    written; from the first write on, a failure is the outcome's ``error`` and the rollback has been tried.
    """
    course = course or Course()
    require_possible(before, plan, course.orders, course.stopping)
    run = _Run(before, course.did)
    try:
        wanted, plan, waiting = _carry_out(open_session, run, before, plan, wanted, course)
        # NVML lists destroyed devices, and serves old handles, for as long as a session is open.
        after = _read(open_session)
        if not waiting:
            _require_wanted(after, wanted)
    except Exception as failure:  # pylint: disable=broad-except  # whatever it was, the node must not stay half-way
        if not run.started:
            raise
        error = failure if isinstance(failure, MigError) else MigError(f"{type(failure).__name__}: {failure}")
        steps = (*course.earlier, *run.started)
        back = roll_back(open_session, course.origin or before, steps, error, rebooted=course.rebooted)
        return back._replace(steps_done=tuple(run.done))
    return Outcome(
        after=after,
        altered=bool(run.started),
        changed=bool(run.done),
        steps_done=tuple(run.done),
        reset_required=tuple(index for index, what in waiting.items() if what == "reset"),
        reboot_required=tuple(index for index, what in waiting.items() if what == "reboot"),
        uuid_map=report.uuid_map(before, after),
        wanted=wanted,
        plan=plan,
    )


def _require_unchanged(session: driver.Session, before: Node, plan: Plan, course: Course) -> None:
    """Refuse when a GPU is not as it was planned for: another manager, a new job, indices that moved."""
    in_the_way = []
    for gpu_plan in plan.gpus:
        if not gpu_plan.steps:
            continue
        was = before.gpus[gpu_plan.gpu]
        now = session.read_gpu(gpu_plan.gpu)
        changes = changes_of(was, now)
        if changes:
            raise MigError(
                f"{driver.describe(was)} changed while this was planned, and nothing was written: {'; '.join(changes)}."
                " Run again.",
                **identity(was),
            )
        destroyed = {(step.gi_id, step.ci_id) for step in gpu_plan.steps if step.kind == "destroy_ci"}
        lost_busy = tuple(
            process
            for instance in now.instances
            for compute in instance.compute
            if (instance.id, compute.id) in destroyed
            for process in compute.processes
        )
        switched = mode_step(gpu_plan) is not None and now.mode_current != gpu_plan.enabled
        in_the_way.append((now, lost_busy + now.processes if switched else lost_busy))
    require_idle(in_the_way, course.stopping)


class _Run:
    """Performs steps and remembers them: a step in ``started`` may have had its effect, one in ``done`` had it."""

    def __init__(self, before: Node, did: t.Optional[t.Callable[[Step], None]] = None) -> None:
        self.started: list[Step] = []
        self.done: list[Step] = []
        self._did = did
        self._gi_ids: dict[tuple[int, Placement], int] = {}
        self.learn(before)

    def perform(self, session: driver.Session, step: Step) -> str:
        """Do one step; for a mode switch, returns NVML's name of what became of it."""
        session.check()
        self.started.append(step)
        activation = ""
        try:
            if step.kind == "set_mode":
                activation = session.set_mig_mode(step.gpu, bool(step.enabled))
            elif step.kind == "destroy_ci":
                session.destroy_compute_instance(step.gpu, _known(step.gi_id), _known(step.ci_id))
            elif step.kind == "destroy_gi":
                session.destroy_gpu_instance(step.gpu, _known(step.gi_id))
            elif step.kind == "create_gi":
                place = _known(step.placement)
                self._gi_ids[step.gpu, place] = session.create_gpu_instance(step.gpu, _known(step.profile_id), place)
            elif step.kind == "create_ci":
                gi_id = self._gi_ids[step.gpu, _known(step.placement)]
                kind = (_known(step.slices), step.compute_placement, step.variant, step.profile_id)
                session.create_compute_instance(step.gpu, gi_id, *kind)
            else:
                raise MigError(f"A plan has a step of the unknown kind {step.kind!r}.")
        except DriverError as error:
            raise _in_context(session, step, error) from error
        self.finish(step)
        return activation

    def learn(self, node: Node) -> None:
        """Remember the ids of the GIs that are there, for the steps that name a GI by its place."""
        for gpu in node.gpus:
            for instance in gpu.instances:
                if instance.id is not None:
                    self._gi_ids[gpu.index, instance.placement] = instance.id

    def finish(self, step: Step) -> None:
        """Remember a step that had its effect."""
        self.done.append(step)
        if self._did:
            self._did(step)


def may_have_created_gi(steps: t.Sequence[Step], index: int, instance: GpuInstance) -> bool:
    """Whether a GI at this place is ours: it was asked for here, even if the call failed afterwards."""
    return any(
        step.kind == "create_gi"
        and (step.gpu, step.placement, step.profile_id) == (index, instance.placement, instance.profile.id)
        for step in steps
    )


def may_have_created_ci(steps: t.Sequence[Step], index: int, instance: GpuInstance, compute: ComputeInstance) -> bool:
    """Whether a CI of this kind is one that was asked for in this GI."""
    return any(
        step.kind == "create_ci"
        and (step.gpu, step.placement, step.slices, step.variant)
        == (index, instance.placement, compute.slices, compute.variant)
        for step in steps
    )


def _in_context(session: driver.Session, step: Step, error: DriverError) -> DriverError:
    """A failed step as a sentence about the plan; for a busy instance, with who holds it, or that nobody admits it."""
    what = step_in_words(step)
    hint = ""
    if error.error == "IN_USE" and step.kind in ("destroy_ci", "destroy_gi"):
        hint = f" {_why_in_use(session, step)}"
    return DriverError(f"Could not {what}: {error}{hint}", step=what, **error.details)


def _why_in_use(session: driver.Session, step: Step) -> str:
    node, unseen = _with_holders_now(session, step.gpu)
    return holders.why_in_use(node, 0, step.gi_id, unseen)


def _is_held(session: driver.Session, index: int) -> bool:
    """Whether somebody else is known to have this GPU open who does not hand it over."""
    gpu = _with_holders_now(session, index)[0].gpus[0]
    inside = (process for gi in gpu.instances for ci in gi.compute for process in ci.processes)
    return any(not process.cooperative for process in (*gpu.processes, *inside))


def _with_holders_now(session: driver.Session, index: int) -> tuple[Node, tuple[str, ...]]:
    """A node of this one GPU, as its GPU 0, with its holders, and why there may be others."""
    node = Node(gpus=(session.read_gpu(index)._replace(index=0),))
    found = holders.survey()
    # This process has NVML open itself, which keeps nothing from being changed.
    opened = tuple(each for each in found.opened if each.pid != os.getpid())
    return holders.attach(node, opened), found.unseen


# --- the change ----------------------------------------------------------------------------------------------------


def _carry_out(
    open_session: OpenSession, run: _Run, seen: Node, plan: Plan, wanted: Wanted, course: Course
) -> tuple[Wanted, Plan, dict[int, str]]:
    """Do all that can be done now; returns what was wanted and planned last, and the GPUs whose mode waits.

    ``wanted`` and ``plan`` are made anew where the driver could not tell everything before the modes were current, and
    after a reset.
    """
    resets = course.resets
    unresettable: tuple[str, ...] = ()
    for _round in range(_ROUNDS):
        # Modes that are stored already: NVML is never asked twice, and the planner gives these GPUs no steps.
        waiting = {
            each.gpu: _what_helps(seen.gpus[each.gpu]) for each in plan.gpus if waits(seen.gpus[each.gpu], each.enabled)
        }
        provisional = any(gpu_plan.provisional for gpu_plan in plan.gpus)
        with open_session() as session:
            _require_unchanged(session, seen, plan, course)
            _switch_modes(session, run, seen, plan, waiting, course)
            due = _due_for_reset(waiting, resets, course)
            if not waiting and not due and not provisional:
                _change_instances(session, run, plan)
        if not due and (waiting or not provisional):
            return wanted, plan, waiting
        if due:
            unresettable += _reset(open_session, run, tuple(seen.gpus[index] for index in due), course)
        resets = ()
        seen = known_to_need_a_reboot(_known(course.read)(), unresettable)
        wanted, plan = _known(course.replan)(seen)
        require_possible(seen, plan, course.orders, course.stopping)
        run.learn(seen)
    raise MigError("The MIG modes of this node do not settle: look into 'dmesg', reboot the node, and run again.")


def known_to_need_a_reboot(node: Node, pci: t.Collection[str]) -> Node:
    """The node with what was found out about the GPUs at these places: that nothing here can reset them."""
    return node._replace(
        gpus=tuple(gpu._replace(resettable=False) if gpu.pci_bus_id in pci else gpu for gpu in node.gpus)
    )


def _what_helps(gpu: Gpu) -> str:
    """What makes a pending mode of this GPU current: ``reset`` or ``reboot``."""
    return "reboot" if driver.mode_change_needs_reboot(gpu) else "reset"


def _due_for_reset(waiting: t.Mapping[int, str], resets: t.Sequence[int], course: Course) -> tuple[int, ...]:
    if course.reset is None:
        return ()
    pending = [index for index, what in waiting.items() if what == "reset"]
    return tuple(sorted({*pending, *resets}))


def _reset(open_session: OpenSession, run: _Run, gpus: tuple[Gpu, ...], course: Course) -> tuple[str, ...]:
    """Reset these GPUs and read back that their pending mode is current; what the reset itself says is no evidence.

    Returns the places of those that nothing here can reset, where they may wait for a reboot.
    """
    steps = [Step("reset", gpu.index) for gpu in gpus]
    run.started.extend(steps)
    refusal: t.Optional[DriverError] = None
    try:
        _known(course.reset)(gpus)
    except DriverError as error:
        if error.error != "NOT_SUPPORTED" or not course.orders.allow_reboot:
            raise
        refusal = error
    impossible: list[str] = []
    with open_session() as session:
        for gpu in gpus:
            current, pending = session.read_mode(gpu.index)
            if current != pending and refusal is not None:
                if not needs_reset(gpu):
                    raise refusal  # a reboot would make it forget the mode
                impossible.append(gpu.pci_bus_id)
            elif current != pending:
                raise MigError(
                    f"{driver.describe(gpu)} was reset, and MIG is still {on(current)} with {on(pending)} pending:"
                    " look into 'dmesg' and reboot the node.",
                    **identity(gpu),
                    current=on(current),
                    wanted=on(pending),
                )
    for gpu, step in zip(gpus, steps):
        if gpu.pci_bus_id not in impossible:
            run.finish(step)
    return tuple(impossible)


def _switch_modes(
    session: driver.Session, run: _Run, seen: Node, plan: Plan, waiting: dict[int, str], course: Course
) -> None:
    """Switch all modes that are to change; GPUs whose mode stays pending go into ``waiting``.

    GPUs without instances in the way come first, so that a mode that stays pending is known before any is touched.
    Where that is for a reboot, the others that wait for one must not miss it: it takes their instances anyway.
    """
    switching = [gpu_plan for gpu_plan in plan.gpus if mode_step(gpu_plan)]
    for gpu_plan in switching:
        if not _empties_first(gpu_plan):
            _switch_mode(session, run, seen.gpus[gpu_plan.gpu], gpu_plan, waiting)
    for_a_reboot = course.orders.allow_reboot and set(waiting.values()) == {"reboot"}
    before = bool(waiting)
    for gpu_plan in filter(_empties_first, switching):
        if not before or (for_a_reboot and needs_reset(seen.gpus[gpu_plan.gpu])):
            for step in gpu_plan.steps:
                if step.kind != "set_mode":
                    run.perform(session, step)
            _switch_mode(session, run, seen.gpus[gpu_plan.gpu], gpu_plan, waiting)


def _switch_mode(session: driver.Session, run: _Run, gpu: Gpu, gpu_plan: GpuPlan, waiting: dict[int, str]) -> None:
    """Ask for one mode and read it back; the call's own success says nothing about it."""
    step = _known(mode_step(gpu_plan))
    activation = run.perform(session, step)
    activation = _asked_again(session, gpu, bool(step.enabled), activation)
    current, pending = _settled_mode(session, step, activation)
    if current == pending == step.enabled:
        return
    if pending == step.enabled:
        # NOT_SUPPORTED is what passed-through GPUs say: stored, but this machine cannot reset the GPU.
        waiting[step.gpu] = "reboot" if activation == "NOT_SUPPORTED" and needs_reset(gpu) else _what_helps(gpu)
        return
    action = "look into 'dmesg', reset the GPU or reboot the node"
    if driver.mode_change_needs_reboot(session.read_gpu(step.gpu)):
        # A machine that cannot reset the GPU cannot take an order back either.
        action = f"reboot the machine, which turns MIG {on(pending)}, and run again"
    raise MigError(
        f"MIG of GPU {step.gpu} was to be turned {on(step.enabled)}, the driver answered {activation}, but it is"
        f" {on(current)} with {on(pending)} pending: {action}.",
        gpu=step.gpu,
        call="nvmlDeviceSetMigMode",
        error=activation,
        current=on(current),
        wanted=on(step.enabled),
    )


def _asked_again(session: driver.Session, gpu: Gpu, enabled: bool, activation: str) -> str:
    """Ask once more for a mode that is stored but not current, once nobody is known who has the GPU open.

    The driver resets an Ampere GPU for its mode, and whoever has NVML open just then, if only for a moment, keeps it
    from that. Returns what the driver said last.
    """
    for _attempt in range(_ASK_AGAIN):
        if activation != "IN_USE" or not needs_reset(gpu) or session.read_mode(gpu.index) != (not enabled, enabled):
            break
        time.sleep(_ASK_AGAIN_SECONDS)
        if not _is_held(session, gpu.index):
            activation = session.set_mig_mode(gpu.index, enabled)
    return activation


def _settled_mode(session: driver.Session, step: Step, activation: str) -> tuple[bool, bool]:
    """Mode, current and pending, after a switch; waits a little where the driver said that it is done but is not."""
    deadline = time.monotonic() + _SETTLE_SECONDS
    while True:
        current, pending = session.read_mode(step.gpu)
        settled = current == step.enabled or activation != "SUCCESS"
        if settled or time.monotonic() > deadline:
            return current, pending
        time.sleep(_SETTLE_POLL_SECONDS)


def _change_instances(session: driver.Session, run: _Run, plan: Plan) -> None:
    """Everything that the mode switches did not do, GPU by GPU."""
    for gpu_plan in plan.gpus:
        if _empties_first(gpu_plan):
            continue
        for step in gpu_plan.steps:
            if step.kind != "set_mode":
                run.perform(session, step)


def _read(open_session: OpenSession) -> Node:
    with open_session() as session:
        return session.read_node()


def _require_wanted(after: Node, wanted: Wanted) -> None:
    """The only evidence of success: what was read back equals what was wanted."""
    found: list[str] = []
    for index, wish in wanted.wishes.items():
        gpu = after.gpus[index] if index < len(after.gpus) else Gpu(index)
        found.extend(f"{driver.describe(gpu)}: {sentence}" for sentence in differences(gpu, wish))
    if found:
        raise MigError(f"All calls succeeded, but the node is not as wanted: {'; '.join(found)}.")


# --- the way back --------------------------------------------------------------------------------------------------


def roll_back(
    open_session: OpenSession,
    before: Node,
    steps: t.Sequence[Step],
    error: t.Optional[MigError] = None,
    *,
    rebooted: bool = False,
) -> Outcome:
    """Repair what these steps changed, and say what could not be repaired; the first failure stays the failure.

    ``before`` is what to go back to, and ``steps`` are all that may have been started on the way from there. After a
    reboot no instance is left of either, and all GPUs are restored.
    """
    failures: list[str] = []
    touched = sorted({step.gpu for step in steps})
    if rebooted:
        touched = [gpu.index for gpu in before.gpus if gpu.mig_capable]
    try:
        with open_session() as session:
            for index in touched:
                _restore(session, steps, before.gpus[index], failures, rebooted)
        after = _read(open_session)
        missing = tuple(
            f"{driver.describe(before.gpus[index])}: {change}"
            for index in touched
            for change in changes_of(before.gpus[index], _at(after, index))
        )
    except Exception as second:  # pylint: disable=broad-except  # it must not hide the first failure
        after = before._replace(gpus=tuple(_unknown(g, second) if g.index in touched else g for g in before.gpus))
        failures.append(str(second))
        missing = tuple(
            f"{driver.describe(before.gpus[step.gpu])}: cannot tell whether it was taken back: {step_in_words(step)}"
            for step in steps
        )
    pending_left = tuple(
        index
        for index in touched
        if _at(after, index).mode_pending not in (None, _at(after, index).mode_current, before.gpus[index].mode_pending)
    )
    if missing:
        # These end with a full stop, and stand in a list whose other phrases do not.
        missing = tuple(dict.fromkeys((*missing, *(failure.rstrip(".") for failure in failures))))
    return Outcome(
        after=after,
        altered=True,
        changed=bool(missing),
        rolled_back=not missing,
        missing=missing,
        pending_left=pending_left,
        error=error,
        uuid_map=report.uuid_map(before, after),
    )


def _at(node: Node, index: int) -> Gpu:
    return node.gpus[index] if index < len(node.gpus) else Gpu(index)


def _unknown(gpu: Gpu, failure: Exception) -> Gpu:
    """A GPU of which only the identity is known any more."""
    error = failure.error if isinstance(failure, DriverError) else "UNKNOWN"
    call = str(failure.details.get("call", "")) if isinstance(failure, DriverError) else type(failure).__name__
    problem = Problem(call, error, driver.remedy(error))
    return gpu._replace(mode_current=None, mode_pending=None, profiles=None, instances=(), problems=(problem,))


def _restore(session: driver.Session, steps: t.Sequence[Step], was: Gpu, failures: list[str], rebooted: bool) -> None:
    """Bring one GPU back as far as it goes: every step is tried, whatever the others do."""

    def attempt(operation: t.Callable[..., t.Any], *arguments: t.Any) -> t.Any:
        try:
            return operation(*arguments)
        except DriverError as error:
            failures.append(str(error))
            return None

    index = was.index
    now = session.read_gpu(index)
    kinds = {step.kind for step in steps if step.gpu == index}
    # A mode that was pending already is not asked for again: on an idle GPU it would become current at once. Where a
    # reset made it current, the one that was current has to come back.
    became_current = (rebooted or "reset" in kinds) and now.mode_current != was.mode_current
    mode_to_restore = became_current or ("set_mode" in kinds and was.mode_current == was.mode_pending)
    if rebooted and now.mode_current != was.mode_current and driver.mode_change_needs_reboot(now):
        # Storing it would turn the GPU around at some later boot, when nobody expects it any more.
        failures.append(f"only another reboot turns MIG of GPU {index} {on(was.mode_current)} again")
        mode_to_restore = False
        if not now.mode_current:
            return
    if mode_to_restore and was.mode_current and not (now.mode_current and now.mode_pending):
        attempt(_set_mode, session, was, True)
        now = session.read_gpu(index)
        if not now.mode_current:
            failures.append(
                f"MIG of GPU {index} could not be turned on again at once, and without it nothing else comes"
            )
            return
    former = {(gi.profile.id, gi.placement): gi for gi in was.instances}
    for instance in now.instances:
        kept = former.get((instance.profile.id, instance.placement))
        created = kept is None and may_have_created_gi(steps, index, instance)
        for compute in instance.compute:
            extra = kept is not None and compute_key(compute) not in map(compute_key, kept.compute)
            if created or (extra and may_have_created_ci(steps, index, instance, compute)):
                attempt(session.destroy_compute_instance, index, instance.id, compute.id)
        if created:
            attempt(session.destroy_gpu_instance, index, instance.id)
    if mode_to_restore and not was.mode_current and (now.mode_current or now.mode_pending):
        attempt(_set_mode, session, was, False)
        return
    present = {(gi.profile.id, gi.placement): gi for gi in now.instances}
    for key, instance in former.items():
        there = present.get(key)
        gi_id = there.id if there else attempt(session.create_gpu_instance, index, *key)
        if gi_id is None:
            continue
        left = {compute_key(compute) for compute in there.compute} if there else set()
        for compute in sorted(instance.compute, key=lambda compute: compute.id or 0):
            if compute_key(compute) not in left:
                kind = (compute.slices, compute.placement, compute.variant, compute.profile_id)
                attempt(session.create_compute_instance, index, gi_id, *kind)


def _set_mode(session: driver.Session, gpu: Gpu, enabled: bool) -> None:
    _asked_again(session, gpu, enabled, session.set_mig_mode(gpu.index, enabled))


def changes_of(was: Gpu, now: Gpu) -> list[str]:
    """What differs between two readings of one GPU, a phrase each; identity, modes and layout, nothing else."""
    if now.problems and now.mode_current is None and was.mode_current is not None:
        calls = ", ".join(f"{problem.call}: {problem.error}" for problem in now.problems)
        return [f"the GPU does not answer ({calls}), and had {layout_in_words(was)}"]
    if was.uuid != now.uuid:
        return [f"another GPU has this index now ({now.uuid or 'without UUID'})"]
    found = []
    if now.problems and not was.problems:
        found.append("not everything could be read: " + ", ".join(f"{p.call}: {p.error}" for p in now.problems))
    if was.mode_current != now.mode_current:
        found.append(f"MIG is {on(now.mode_current)} and was {on(was.mode_current)}")
    if was.mode_pending != now.mode_pending:
        found.append(f"MIG {on(now.mode_pending)} is pending and {on(was.mode_pending)} was")
    former, present = parts_of(was), parts_of(now)
    found.extend(f"{former[key][0]} is gone" for key in former if key not in present)
    found.extend(f"{present[key][0]} is new" for key in present if key not in former)
    found.extend(
        f"{former[key][0]} has the UUID {present[key][1]} and had {former[key][1]}"
        for key in former
        if key in present and former[key][1] != present[key][1]
    )
    return found


def _empties_first(gpu_plan: GpuPlan) -> bool:
    """Whether this GPU is to be disabled and has instances, which must go before its mode can."""
    return mode_step(gpu_plan) is not None and gpu_plan.steps[0].kind != "set_mode"


_T = t.TypeVar("_T")


def _known(value: t.Optional[_T]) -> _T:
    """A field that every step of its kind has."""
    if value is None:
        raise MigError("A step of the plan lacks a value that its kind needs; this is a defect of gpufleet.mig.")
    return value
