# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Carries out a plan on a node: all of it, or the node is as before.

This file is private to the collection gpufleet.mig and may change at any time.

Order of a change:

1. refuse, before the first write, what cannot or must not be done;
2. switch MIG modes, all GPUs, and read them back. A mode that stays pending ends the run before an instance is
   touched (only the GPUs that are to be disabled lose their instances first, since NVML demands it);
3. destroy and create instances, GPU by GPU;
4. close NVML, open it again, read, and compare with what was wanted.

A failure in 2 to 4 leads to the rollback, which compares what is there with what was there and repairs the difference.
It destroys nothing but what this run created, and it is not driven by a list of steps to undo: a call that failed may
have done its work all the same.

On Ampere GPUs that are passed through to a virtual machine a mode change takes effect at the next reboot of the
machine, and the driver cannot take it back. It is refused before it is stored, since nothing here may reboot a
machine; where it is stored already, the result says ``reboot_required`` and no write is made.
"""

from __future__ import annotations

import time
import typing as t

from . import driver, report
from .compare import differences
from .model import (
    ComputeInstance,
    DriverError,
    Gpu,
    GpuInstance,
    GpuPlan,
    MigError,
    Node,
    Placement,
    Plan,
    Problem,
    Process,
    Step,
    Wanted,
)
from .profiles import counted

OpenSession = t.Callable[[], t.ContextManager[driver.Session]]

# A GPU that resets itself to change its mode takes a few seconds; the driver said that it will come.
_SETTLE_SECONDS = 10.0
_SETTLE_POLL_SECONDS = 0.25


class Outcome(t.NamedTuple):
    """What became of a plan.

    ``altered``: a write was started, so the node may have been touched, even if it is as before again.
    ``changed``: the node is not as it was. ``rolled_back`` is None without a failure, else whether everything is as
    before again; what is not is in ``missing``, a sentence each, without its full stop.

    ``reset_required`` and ``reboot_required`` are GPU indices whose wanted mode is stored but not current; then
    no other instance was touched, ``error`` is None, and nothing is rolled back. ``steps_done`` has every write that
    had its effect: for a GPU that was to be disabled also the destroy_ci and destroy_gi that NVML demands before it
    takes the mode. These instances are gone although the GPU still waits for its mode; whoever reports it must say so.
    """

    after: Node
    altered: bool
    changed: bool
    steps_done: tuple[Step, ...] = ()
    rolled_back: t.Optional[bool] = None
    missing: tuple[str, ...] = ()
    reset_required: tuple[int, ...] = ()
    reboot_required: tuple[int, ...] = ()
    error: t.Optional[MigError] = None
    uuid_map: t.Optional[dict[str, t.Optional[str]]] = None


def apply(open_session: OpenSession, before: Node, plan: Plan, wanted: Wanted) -> Outcome:
    """Bring the node from ``before`` to ``wanted`` by the steps of ``plan``.

    ``open_session`` opens a new NVML session each time (``driver.Session``). Raises MigError as long as nothing was
    written; from the first write on, a failure is the outcome's ``error`` and the rollback has been tried.
    """
    require_possible(before, plan)
    run = _Run(before)
    # Their mode is stored already: NVML is never asked twice for it, and the planner gives them no steps.
    waiting = {gpu_plan.gpu: "reset" for gpu_plan in plan.gpus if _is_pending(before.gpus[gpu_plan.gpu], gpu_plan)}
    try:
        with open_session() as session:
            _require_unchanged(session, before, plan)
            _switch_modes(session, run, plan, waiting)
            if not waiting:
                _change_instances(session, run, plan)
        # NVML lists destroyed devices, and serves old handles, for as long as a session is open.
        after = _read(open_session)
        if not waiting:
            _require_wanted(after, wanted)
    except Exception as failure:  # pylint: disable=broad-except  # whatever it was, the node must not stay half-way
        if not run.started:
            raise
        error = failure if isinstance(failure, MigError) else MigError(f"{type(failure).__name__}: {failure}")
        return _rolled_back(open_session, before, run, error)
    reboot = tuple(
        index for index in waiting if waiting[index] == "reboot" or driver.mode_change_needs_reboot(before.gpus[index])
    )
    return Outcome(
        after=after,
        altered=bool(run.started),
        changed=bool(run.done),
        steps_done=tuple(run.done),
        reset_required=tuple(index for index in waiting if index not in reboot),
        reboot_required=reboot,
        uuid_map=report.uuid_map(before, after),
    )


def require_possible(before: Node, plan: Plan) -> None:
    """Raise MigError for a plan that must not be started, naming what is in the way. Touches nothing.

    Check mode calls it too, so that it gives the same verdict as the real run.
    """
    changing = [(before.gpus[gpu_plan.gpu], gpu_plan) for gpu_plan in plan.gpus if gpu_plan.steps]
    for gpu, _gpu_plan in changing:
        refusal = driver.why_not_writable(before.driver_version, gpu)
        if refusal:
            raise MigError(refusal, **_identity(gpu))
    _require_idle([(gpu, gpu_plan.lost_busy) for gpu, gpu_plan in changing])
    _require_no_reboot([(gpu, switch) for gpu, gpu_plan in changing if (switch := _mode_step(gpu_plan)) is not None])


def _require_idle(in_the_way: t.Sequence[tuple[Gpu, tuple[Process, ...]]]) -> None:
    """Refuse to take an instance, or a whole GPU when its mode is to change, away from a process.

    ``in_the_way`` has the processes on each GPU. All are named at once, so that nobody stops one job after the other.
    """
    busy = [(gpu, processes) for gpu, processes in in_the_way if processes]
    if not busy:
        return
    said = [
        f"{driver.describe(gpu)} is in use and nothing was changed: "
        + "; ".join(_process_in_words(gpu, process) for process in processes)
        for gpu, processes in busy
    ]
    raise MigError(
        f"{'. '.join(said)}. Stop what is running there, and run again.",
        **_identity(busy[0][0]),
        processes=[
            {"gpu": gpu.index, **report.process_report(process)} for gpu, processes in busy for process in processes
        ],
    )


def _require_no_reboot(switches: t.Sequence[tuple[Gpu, Step]]) -> None:
    """Refuse mode changes that only a reboot makes current, with the commands that make them by hand, in order."""
    waiting = [
        (gpu, bool(step.enabled))
        for gpu, step in switches
        if driver.mode_change_needs_reboot(gpu) and gpu.mode_current != step.enabled
    ]
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
        f"{_on(enabled)}{f' (GPU {_indices(gpus)})' if all(turned.values()) else ''}"
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
    raise MigError(
        f"{' and '.join(driver.describe(gpu) for gpu, _enabled in waiting)} {verb} passed through to a virtual machine:"
        f" turning MIG {modes} takes effect at a reboot only and cannot be taken back before it. Nothing was changed;"
        f" run {', then '.join(commands)}, reboot, and run again.{only_empty}",
        **_identity(first),
        current=_on(first.mode_current),
        wanted=_on(first_enabled),
    )


def _indices(gpus: t.Iterable[Gpu]) -> str:
    """GPUs as nvidia-smi takes them: ``0,1``."""
    return ",".join(str(gpu.index) for gpu in gpus)


def _process_in_words(gpu: Gpu, process: Process) -> str:
    place = "the GPU"
    for instance in gpu.instances:
        for compute in instance.compute:
            if any(holder.pid == process.pid for holder in compute.processes):
                place = _compute_in_words(instance, compute)
    name = f" ({process.name})" if process.name else ""
    return f"process {process.pid}{name} uses {place}"


def _require_unchanged(session: driver.Session, before: Node, plan: Plan) -> None:
    """Refuse when a GPU is not as it was planned for: another manager, a new job, indices that moved."""
    in_the_way = []
    for gpu_plan in plan.gpus:
        if not gpu_plan.steps:
            continue
        was = before.gpus[gpu_plan.gpu]
        now = session.read_gpu(gpu_plan.gpu)
        changes = _changes(was, now)
        if changes:
            raise MigError(
                f"{driver.describe(was)} changed while this was planned, and nothing was written: {'; '.join(changes)}."
                " Run again.",
                **_identity(was),
            )
        destroyed = {(step.gi_id, step.ci_id) for step in gpu_plan.steps if step.kind == "destroy_ci"}
        lost_busy = tuple(
            process
            for instance in now.instances
            for compute in instance.compute
            if (instance.id, compute.id) in destroyed
            for process in compute.processes
        )
        switched = _mode_step(gpu_plan) is not None and now.mode_current != gpu_plan.enabled
        in_the_way.append((now, lost_busy + now.processes if switched else lost_busy))
    _require_idle(in_the_way)


class _Run:
    """Performs steps and remembers them: a step in ``started`` may have had its effect, one in ``done`` had it."""

    def __init__(self, before: Node) -> None:
        self.started: list[Step] = []
        self.done: list[Step] = []
        self._gi_ids: dict[tuple[int, Placement], int] = {}
        for gpu in before.gpus:
            for instance in gpu.instances:
                if instance.id is not None:
                    self._gi_ids[gpu.index, instance.placement] = instance.id

    def perform(self, session: driver.Session, step: Step) -> str:
        """Do one step; for a mode switch, returns NVML's name of what became of it."""
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
                session.create_compute_instance(step.gpu, gi_id, _known(step.slices), step.compute_placement)
            else:
                raise MigError(f"A plan has a step of the unknown kind {step.kind!r}.")
        except DriverError as error:
            raise _in_context(session, step, error) from error
        self.done.append(step)
        return activation

    def touched(self) -> list[int]:
        """Indices of the GPUs that a started step named, in order."""
        return sorted({step.gpu for step in self.started})

    def may_have_created_gi(self, index: int, instance: GpuInstance) -> bool:
        """Whether a GI at this place is this run's: it was asked for here, even if the call failed afterwards."""
        return any(
            step.kind == "create_gi"
            and (step.gpu, step.placement, step.profile_id) == (index, instance.placement, instance.profile.id)
            for step in self.started
        )

    def may_have_created_ci(self, index: int, instance: GpuInstance, compute: ComputeInstance) -> bool:
        """Whether a CI of this size is one this run asked for in this GI."""
        return any(
            step.kind == "create_ci"
            and (step.gpu, step.placement, step.slices) == (index, instance.placement, compute.slices)
            for step in self.started
        )


def _in_context(session: driver.Session, step: Step, error: DriverError) -> DriverError:
    """A failed step as a sentence about the plan; for a busy instance, with who holds it, or that nobody admits it."""
    what = _step_in_words(step)
    hint = ""
    if error.error == "IN_USE" and step.kind in ("destroy_ci", "destroy_gi"):
        gpu = session.read_gpu(step.gpu)
        holders = [
            process
            for instance in gpu.instances
            if instance.id == step.gi_id
            for compute in instance.compute
            for process in compute.processes
        ]
        holders.extend(gpu.processes)
        if holders:
            hint = " Held by " + ", ".join(f"process {p.pid} ({p.name or 'name unknown'})" for p in holders) + "."
        else:
            hint = (
                " Something holds it though no process list shows it; monitoring such as DCGM and its exporters is"
                " the usual one."
            )
    return DriverError(f"Could not {what}: {error}{hint}", step=what, **error.details)


# --- the change ----------------------------------------------------------------------------------------------------


def _switch_modes(session: driver.Session, run: _Run, plan: Plan, waiting: dict[int, str]) -> None:
    """Switch all modes that are to change; GPUs whose mode stays pending go into ``waiting``.

    GPUs without instances in the way come first, so that a mode that stays pending is known before any is touched.
    """
    switching = [gpu_plan for gpu_plan in plan.gpus if _mode_step(gpu_plan)]
    for gpu_plan in switching:
        if not _empties_first(gpu_plan):
            _switch_mode(session, run, gpu_plan, waiting)
    if not waiting:
        for gpu_plan in filter(_empties_first, switching):
            for step in gpu_plan.steps:
                if step.kind != "set_mode":
                    run.perform(session, step)
            _switch_mode(session, run, gpu_plan, waiting)


def _switch_mode(session: driver.Session, run: _Run, gpu_plan: GpuPlan, waiting: dict[int, str]) -> None:
    """Ask for one mode and read it back; the call's own success says nothing about it."""
    step = _known(_mode_step(gpu_plan))
    activation = run.perform(session, step)
    current, pending = _settled_mode(session, step, activation)
    if current == pending == step.enabled:
        return
    if pending == step.enabled:
        # NOT_SUPPORTED is what passed-through GPUs say: stored, but this machine cannot reset the GPU.
        waiting[step.gpu] = "reboot" if activation == "NOT_SUPPORTED" else "reset"
        return
    raise MigError(
        f"MIG of GPU {step.gpu} was to be turned {_on(step.enabled)}, the driver answered {activation}, but it is"
        f" {_on(current)} with {_on(pending)} pending: look into 'dmesg', reset the GPU or reboot the node.",
        gpu=step.gpu,
        call="nvmlDeviceSetMigMode",
        error=activation,
        current=_on(current),
        wanted=_on(step.enabled),
    )


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


def _rolled_back(open_session: OpenSession, before: Node, run: _Run, error: MigError) -> Outcome:
    """Repair what this run changed and say what could not be repaired; the first failure stays the failure."""
    failures: list[str] = []
    try:
        with open_session() as session:
            for index in run.touched():
                _restore(session, run, before.gpus[index], failures)
        after = _read(open_session)
        missing = tuple(
            f"{driver.describe(before.gpus[index])}: {change}"
            for index in run.touched()
            for change in _changes(before.gpus[index], after.gpus[index] if index < len(after.gpus) else Gpu(index))
        )
    except Exception as second:  # pylint: disable=broad-except  # it must not hide the first failure
        touched = run.touched()
        after = before._replace(gpus=tuple(_unknown(g, second) if g.index in touched else g for g in before.gpus))
        failures.append(str(second))
        missing = tuple(
            f"{driver.describe(before.gpus[step.gpu])}: cannot tell whether it was taken back: {_step_in_words(step)}"
            for step in run.started
        )
    if missing:
        # These end with a full stop, and stand in a list whose other phrases do not.
        missing = (*missing, *(failure.rstrip(".") for failure in failures))
    return Outcome(
        after=after,
        altered=True,
        changed=bool(missing),
        steps_done=tuple(run.done),
        rolled_back=not missing,
        missing=missing,
        error=error,
        uuid_map=report.uuid_map(before, after),
    )


def _unknown(gpu: Gpu, failure: Exception) -> Gpu:
    """A GPU of which only the identity is known any more."""
    error = failure.error if isinstance(failure, DriverError) else "UNKNOWN"
    call = str(failure.details.get("call", "")) if isinstance(failure, DriverError) else type(failure).__name__
    problem = Problem(call, error, driver.remedy(error))
    return gpu._replace(mode_current=None, mode_pending=None, profiles=None, instances=(), problems=(problem,))


def _restore(session: driver.Session, run: _Run, was: Gpu, failures: list[str]) -> None:
    """Bring one GPU back as far as it goes: every step is tried, whatever the others do."""

    def attempt(operation: t.Callable[..., t.Any], *arguments: t.Any) -> t.Any:
        try:
            return operation(*arguments)
        except DriverError as error:
            failures.append(str(error))
            return None

    index = was.index
    now = session.read_gpu(index)
    asked_for_mode = any(step.kind == "set_mode" for step in run.started if step.gpu == index)
    # A mode that was pending already is not asked for again: on an idle GPU it would become current at once.
    mode_to_restore = asked_for_mode and was.mode_current == was.mode_pending
    if mode_to_restore and was.mode_current and not (now.mode_current and now.mode_pending):
        attempt(session.set_mig_mode, index, True)
        now = session.read_gpu(index)
    former = {(gi.profile.id, gi.placement): gi for gi in was.instances}
    for instance in now.instances:
        kept = former.get((instance.profile.id, instance.placement))
        ours = kept is None and run.may_have_created_gi(index, instance)
        for compute in instance.compute:
            extra = kept is not None and _compute_key(compute) not in map(_compute_key, kept.compute)
            if ours or (extra and run.may_have_created_ci(index, instance, compute)):
                attempt(session.destroy_compute_instance, index, instance.id, compute.id)
        if ours:
            attempt(session.destroy_gpu_instance, index, instance.id)
    if mode_to_restore and not was.mode_current and (now.mode_current or now.mode_pending):
        attempt(session.set_mig_mode, index, False)
        return
    present = {(gi.profile.id, gi.placement): gi for gi in now.instances}
    for key, instance in former.items():
        there = present.get(key)
        gi_id = there.id if there else attempt(session.create_gpu_instance, index, *key)
        if gi_id is None:
            continue
        left = {_compute_key(compute) for compute in there.compute} if there else set()
        for compute in sorted(instance.compute, key=lambda compute: compute.id or 0):
            if _compute_key(compute) not in left:
                arguments = (index, gi_id, compute.slices, compute.placement, compute.variant)
                attempt(session.create_compute_instance, *arguments)


def _changes(was: Gpu, now: Gpu) -> list[str]:
    """What differs between two readings of one GPU, a phrase each; identity, modes and layout, nothing else."""
    if now.problems and now.mode_current is None and was.mode_current is not None:
        calls = ", ".join(f"{problem.call}: {problem.error}" for problem in now.problems)
        return [f"the GPU does not answer ({calls}), and had {_layout_in_words(was)}"]
    if was.uuid != now.uuid:
        return [f"another GPU has this index now ({now.uuid or 'without UUID'})"]
    found = []
    if now.problems and not was.problems:
        found.append("not everything could be read: " + ", ".join(f"{p.call}: {p.error}" for p in now.problems))
    if was.mode_current != now.mode_current:
        found.append(f"MIG is {_on(now.mode_current)} and was {_on(was.mode_current)}")
    if was.mode_pending != now.mode_pending:
        found.append(f"MIG {_on(now.mode_pending)} is pending and {_on(was.mode_pending)} was")
    former, present = _parts(was), _parts(now)
    found.extend(f"{former[key][0]} is gone" for key in former if key not in present)
    found.extend(f"{present[key][0]} is new" for key in present if key not in former)
    found.extend(
        f"{former[key][0]} has the UUID {present[key][1]} and had {former[key][1]}"
        for key in former
        if key in present and former[key][1] != present[key][1]
    )
    return found


def _parts(gpu: Gpu) -> dict[t.Hashable, tuple[str, t.Optional[str]]]:
    """Every GI and CI of a GPU by what and where it is: its words and its UUID."""
    parts: dict[t.Hashable, tuple[str, t.Optional[str]]] = {}
    for instance in gpu.instances:
        key = (instance.profile.id, instance.placement)
        parts[key] = (_instance_in_words(instance), None)
        for compute in instance.compute:
            parts[key, _compute_key(compute)] = (_compute_in_words(instance, compute), compute.uuid)
    return parts


def _compute_key(compute: ComputeInstance) -> tuple[t.Optional[Placement], int, str]:
    return compute.placement, compute.slices, compute.variant


# --- words ---------------------------------------------------------------------------------------------------------


def _identity(gpu: Gpu) -> dict[str, t.Any]:
    return {"gpu": gpu.index, "pci_bus_id": gpu.pci_bus_id, "uuid": gpu.uuid}


def _on(enabled: t.Optional[bool]) -> str:
    return "unknown" if enabled is None else "on" if enabled else "off"


def _place(placement: t.Optional[Placement]) -> str:
    return "an unknown place" if placement is None else f"{placement.start}:{placement.size}"


def _instance_in_words(instance: GpuInstance) -> str:
    return f"GPU instance {instance.profile.name} at {_place(instance.placement)}"


def _compute_in_words(instance: GpuInstance, compute: ComputeInstance) -> str:
    inside = "" if compute.slices == instance.profile.slices else f" at {_place(compute.placement)}"
    return f"compute instance {compute.name}{inside} in {_instance_in_words(instance)}"


def _layout_in_words(gpu: Gpu) -> str:
    parts = ", ".join(words for words, uuid in _parts(gpu).values())
    return f"MIG {_on(gpu.mode_current)}" + (f" and {parts}" if parts else "")


def _step_in_words(step: Step) -> str:
    where = f"{step.name} at {_place(step.placement)} of GPU {step.gpu}"
    return {
        "set_mode": f"turn MIG of GPU {step.gpu} {_on(step.enabled)}",
        "destroy_ci": f"destroy compute instance {step.ci_id} in GPU instance {where}",
        "destroy_gi": f"destroy GPU instance {where}",
        "create_gi": f"create GPU instance {where}",
        "create_ci": f"create a compute instance of {counted(step.slices, 'slice')} in GPU instance {where}",
    }.get(step.kind, step.kind)


def _is_pending(gpu: Gpu, gpu_plan: GpuPlan) -> bool:
    """Whether the wanted mode is stored but not current."""
    return gpu.mode_current != gpu_plan.enabled and gpu.mode_pending == gpu_plan.enabled


def _mode_step(gpu_plan: GpuPlan) -> t.Optional[Step]:
    return next((step for step in gpu_plan.steps if step.kind == "set_mode"), None)


def _empties_first(gpu_plan: GpuPlan) -> bool:
    """Whether this GPU is to be disabled and has instances, which must go before its mode can."""
    return _mode_step(gpu_plan) is not None and gpu_plan.steps[0].kind != "set_mode"


_T = t.TypeVar("_T")


def _known(value: t.Optional[_T]) -> _T:
    """A field that every step of its kind has."""
    if value is None:
        raise MigError("A step of the plan lacks a value that its kind needs; this is a defect of gpufleet.mig.")
    return value
