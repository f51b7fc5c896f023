# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""One change of one node, from the first client that is stopped to the last one that is started again.

This file is private to the collection gpufleet.mig and may change at any time.

All of it happens in one process of its own, the worker. It completes its work when the connection breaks and the
process that asked for it is gone, and it ends at once when an operation takes longer than allowed. Whoever asks for a
change never opens NVML.

Under the lock of the node the worker

1. reads the node and, if an earlier change was not finished, what that one was about;
2. resolves the wish, plans, and refuses what must not be started: nothing was touched until here;
3. writes the journal, which is enough for whoever comes next to finish the change or to take it back, and, where a mode
   may be stored for a reboot, the record that keeps anybody from rebooting twice for it;
4. stops clients, carries out the plan (transaction.py), sees to it that what was made can be used (capabilities.py)
   and that containers are told of it (cdi.py), starts the clients again;
5. writes down the layout that was proven, keeps the result for its caller, and removes the journal.

There is no record of single steps: what NVML shows is the progress. So the number of writes to the disk does not grow
with the change.
"""

from __future__ import annotations

import contextlib
import syslog
import time
import typing as t

from . import (
    bounded,
    capabilities,
    cdi,
    clients,
    compare,
    driver,
    holders,
    layouts,
    planner,
    refusals,
    reset,
    state,
    transaction,
)
from .bounded import Watch
from .foresight import (
    Foreseen,
    digest,
    due_for_reset,
    foresee_under_lock,
    is_proven,
    is_wish_of,
    lost_gpus,
    respect_lease,
    second_reboot,
    what_there_was,
    wish_of,
    with_what_was_found_out,
)
from .model import Gpu, Job, MigError, Node, Orders, Plan, Step, Wanted
from .reading import Opener, read
from .transaction import Course, Outcome
from .words import layout_in_words, step_in_words

# The dead-man timer only matters when both the worker and its caller are gone, and then waits for the lock.
_DEAD_MAN_SECONDS = 300.0
_WHY_HELD = "containers are not told of the layout, and it could get a device that is gone"


# --- the change ----------------------------------------------------------------------------------------------------


def change(places: state.Places, opener: Opener, job: Job, manager: t.Optional[clients.Manager] = None) -> Outcome:
    """Bring the node to what the job wants, and answer for it.

    Raises MigError while nothing was written. From the first write on, the outcome says it all: also when the worker
    was killed (then another one takes the change back), or when the driver does not answer (then nothing more is
    written, and the journal stays for whoever comes after the reboot).
    """
    manager = manager or clients.manager_of()
    try:
        return _in_a_worker(places, opener, job, manager)
    except bounded.NoAnswer as error:
        return _stuck(error)
    except bounded.Died as error:
        begun, steps = _told(error)
        unfinished = state.read_journal(places)
        # Who takes an earlier change back has no plan, and that change's journal until it is done.
        goes_back = begun is not None and begun.plan is None
        if begun is None or unfinished is None or (unfinished.txid != begun.txid and not goes_back):
            over = bool(steps) or goes_back
            what = "The change was over by then" if over else "It had not begun to change anything"
            raise MigError(f"{error} {what}: run again.", altered=over, **error.details) from None
        return _ended_for(places, opener, job, manager, error, begun, steps, unfinished)


def _in_a_worker(places: state.Places, opener: Opener, job: Job, manager: clients.Manager) -> Outcome:
    txid = state.new_txid()
    return bounded.ask(
        lambda watch: _Worker(places, opener, job, txid, watch, manager).run(),
        job.orders.operation_timeout,
        outlive=True,
    )


def recover(
    places: state.Places, opener: Opener, orders: Orders, manager: t.Optional[clients.Manager] = None
) -> t.Optional[Outcome]:
    """Finish an unfinished change or take it back, as ``orders.recover`` says; None when there is none."""
    if state.read_journal(places) is None and state.holder(places) is None:
        return None
    return change(places, opener, Job(None, orders, what=f"recover {orders.recover}"), manager)


class _Begun(t.NamedTuple):
    """What the worker tells its caller before it writes the journal, for the case that it never answers."""

    txid: str
    before: Node
    plan: t.Optional[Plan]
    stopped: tuple[str, ...]
    gpus: tuple[int, ...]


def _stuck(error: bounded.NoAnswer) -> Outcome:
    """The driver does not answer: say what is done, and leave everything as it is."""
    begun, steps = _told(error)
    if begun is None:
        raise error
    done = f" Done before that: {'; '.join(map(step_in_words, steps))}." if steps else " Nothing was done before that."
    still = f" Still stopped: {', '.join(begun.stopped)}." if begun.stopped else ""
    touched = {*begun.gpus, *(step.gpu for step in steps)}
    failure = MigError(
        f"{error}{done} Nothing more is written, and the change is finished or taken back by the next run.{still}",
        **error.details,
    )
    return Outcome(
        after=_without_what_is_unknown(begun.before, touched),
        altered=True,
        changed=True,
        steps_done=steps,
        rolled_back=False,
        missing=tuple(
            f"{driver.describe(begun.before.gpus[index])}: cannot tell what it has now; it had"
            f" {layout_in_words(begun.before.gpus[index])}"
            for index in sorted(touched)
        ),
        error=failure,
        before=begun.before,
        plan=begun.plan,
        txid=begun.txid,
        stopped=begun.stopped,
        not_started=tuple(f"{unit} was stopped and is not started while the driver hangs" for unit in begun.stopped),
    )


def _without_what_is_unknown(node: Node, touched: t.Collection[int]) -> Node:
    """The node as it was read, less what nobody can tell any more of the GPUs that were touched since."""

    def unread(gpu: Gpu) -> Gpu:
        return gpu._replace(mode_current=None, mode_pending=None, profiles=None, instances=(), processes=())

    return node._replace(gpus=tuple(unread(gpu) if gpu.index in touched else gpu for gpu in node.gpus))


def _ended_for(
    places: state.Places,
    opener: Opener,
    job: Job,
    manager: clients.Manager,
    error: bounded.Died,
    begun: _Begun,
    steps: tuple[Step, ...],
    unfinished: state.Journal,
) -> Outcome:
    """The worker was killed: another one takes back what it had begun, as it would have done itself.

    What was proven already is not taken back, and what was to be taken back is: then nothing failed.
    """
    back = Job(None, job.orders._replace(recover="back"), what=f"take back: {job.what}")
    try:
        healed = _in_a_worker(places, opener, back, manager)
    except MigError as second:
        touched = {*begun.gpus, *(step.gpu for step in steps)}
        why = str(second).rstrip(".")
        return Outcome(
            after=_without_what_is_unknown(begun.before, touched),
            altered=True,
            changed=True,
            steps_done=steps,
            rolled_back=False,
            missing=(
                f"the change was not taken back ({why}): the next run finishes it, or with recover: back takes it",
            ),
            error=error,
            before=begun.before,
            plan=begun.plan,
            txid=begun.txid,
        )
    healed = healed._replace(altered=True, steps_done=steps, before=begun.before, plan=begun.plan)
    if unfinished.txid != begun.txid:
        changed = not _same_layouts(begun.before, healed.after)
        return healed._replace(changed=changed, warnings=(*healed.warnings, str(error)))
    proven = healed.recovered == "forward"
    healed = healed._replace(recovered="", unfinished=None)
    if proven:
        return healed._replace(changed=True, txid=begun.txid)
    return healed._replace(error=error, changed=bool(healed.missing), rolled_back=not healed.missing, txid=begun.txid)


def _told(error: bounded.Unfinished) -> tuple[t.Optional[_Begun], tuple[Step, ...]]:
    begun = next((each for each in error.done if isinstance(each, _Begun)), None)
    return begun, tuple(each for each in error.done if isinstance(each, Step))


class _Worker:
    """The process that makes a change."""

    def __init__(
        self, places: state.Places, opener: Opener, job: Job, txid: str, watch: Watch, manager: clients.Manager
    ) -> None:
        self._places = places
        self._opener = opener
        self._job = job
        self._orders = job.orders
        self._watch = watch
        self._manager = manager
        self._txid = txid
        self._unfinished: t.Optional[state.Journal] = None
        self._to_finish: t.Optional[state.Journal] = None
        self._journal: t.Optional[state.Journal] = None
        self._awaited: t.Optional[state.Lease] = None
        self._recorded = False
        self._warnings: list[str] = []
        self._not_running: dict[str, str] = {}
        self._cdi: t.Optional[cdi.Settings] = None
        self._told = ""
        self._holds_containers = False

    def run(self) -> Outcome:
        """Everything, under the lock."""
        orders = self._orders
        lock = state.Lock.acquire(
            self._places, self._txid, orders.who, self._job.what, orders.lock_timeout, self._watch
        )
        with lock:
            respect_lease(self._places, self._job)
            self._awaited = state.read_lease(self._places)
            unfinished = self._unfinished = state.read_journal(self._places)
            # Damaged ones are refused now, not when the change is made.
            persisted = state.read_wanted(self._places)
            self._cdi = cdi.settings_of(self._places) if orders.tells_containers else None
            node = read(self._opener, self._watch, orders, with_holders=True, tolerant=unfinished is not None)
            try:
                proven = is_proven(persisted, unfinished)
                self._to_finish = None if proven else unfinished
                foreseen = foresee_under_lock(self._places, node, self._job, unfinished, proven, self._manager)
            except Exception as error:
                # The layout stays as it was found, but what an interrupted change stopped must not stay stopped.
                self._restart_what_was_stopped_before()
                raise self._with_clients(error) from error
            self._warn(holders.gone_in_words(node))
            if unfinished is not None:
                self._warnings += lost_gpus(node, unfinished)
            if foreseen.recovered == "back" and unfinished is not None:
                return self._take_back(foreseen, unfinished)
            if foreseen.verdict == compare.MATCH and not self._job.resets:
                return self._conclude(foreseen, unfinished)
            return self._change(foreseen, unfinished)

    # --- nothing to do to the GPUs ---------------------------------------------------------------------------------

    def _conclude(self, foreseen: Foreseen, unfinished: t.Optional[state.Journal]) -> Outcome:
        """The node is as wanted: tidy up after whoever brought it there, and remember it."""
        wanted = t.cast(Wanted, foreseen.wanted)
        outcome = Outcome(after=foreseen.before, altered=False, changed=False, wanted=wanted, plan=foreseen.plan)
        failure = self._unusable(outcome.after, wanted.wishes)
        self._restart_what_was_stopped_before()
        if failure is not None:
            return self._finished(outcome._replace(error=failure), foreseen, unfinished)
        outcome = self._remembered(outcome, wanted)
        outcome = outcome._replace(resumed=self._undelivered(wanted), error=self._clients_failure())
        if unfinished is not None:
            self._put_away(lambda: state.clear_journal(self._places))
        self._end_waiting(outcome.after, wanted)
        return self._finished(outcome, foreseen, unfinished)

    def _clients_failure(self) -> t.Optional[MigError]:
        if not self._not_started:
            return None
        return MigError(f"The layout is right, but {' '.join(self._not_started)}", not_started=list(self._not_started))

    def _undelivered(self, wanted: Wanted) -> t.Optional[dict[str, t.Any]]:
        """The result of an earlier run with this wish that nobody has heard of."""
        result = state.read_result(self._places)
        return result if result is not None and result.get("wish") == digest(wanted) else None

    # --- an unfinished change is taken back ------------------------------------------------------------------------

    def _take_back(self, foreseen: Foreseen, unfinished: state.Journal) -> Outcome:
        restart = self._to_restart(foreseen)
        gpus = tuple(sorted({step.gpu for step in foreseen.earlier}))
        if foreseen.stopping:
            unfinished = self._unfinished = unfinished._replace(clients=restart)
            state.write_journal(self._places, unfinished)
        self._watch.did(_Begun(self._txid, foreseen.before, None, restart, gpus))
        try:
            self._stop(foreseen.stopping, restart)
        except Exception as error:
            self._restart_what_was_stopped_before()
            raise self._with_clients(error) from error
        outcome = transaction.roll_back(self._open, foreseen.origin, foreseen.earlier, rebooted=foreseen.rebooted)
        changed = not _same_layouts(foreseen.before, outcome.after)
        outcome = outcome._replace(changed=changed, altered=changed, rolled_back=None, wanted=foreseen.wanted)
        missing = (*outcome.missing, *lost_gpus(foreseen.before, unfinished))
        unusable = self._unusable(outcome.after, range(len(outcome.after.gpus)))
        self._restart_what_was_stopped_before()
        if missing:
            failure = MigError(
                f"The unfinished change {unfinished.txid} could not be taken back.", txid=unfinished.txid
            )
            outcome = outcome._replace(rolled_back=False, missing=missing, error=failure)
            outcome = self._with_recovery_file(outcome, what_there_was(foreseen.origin, unfinished))
            if not outcome.recovery:
                return self._finished(outcome, foreseen, unfinished)
        elif unusable is not None:
            return self._finished(outcome._replace(error=unusable), foreseen, unfinished)
        elif self._not_started:
            outcome = outcome._replace(error=self._clients_failure())
        self._put_away(lambda: state.clear_journal(self._places))
        self._give_back()
        return self._finished(outcome, foreseen, unfinished)

    # --- the change ------------------------------------------------------------------------------------------------

    def _change(self, foreseen: Foreseen, unfinished: t.Optional[state.Journal]) -> Outcome:
        wanted, plan = t.cast(Wanted, foreseen.wanted), t.cast(Plan, foreseen.plan)
        due = due_for_reset(foreseen.before, plan, self._orders)
        if not plan.steps and not self._job.resets and not due:
            # A mode that is pending, and nothing here may make it current.
            self._record_reboot(foreseen.before, wanted, plan)
            outcome = transaction.apply(self._open, foreseen.before, plan, wanted, self._course(foreseen))
            return self._waiting(outcome, foreseen, unfinished)
        stopping, restart = foreseen.stopping, self._to_restart(foreseen)
        self._warn(clients.leave_session(self._txid, self._watch))
        self._journal = self._intent(foreseen, plan, restart)
        self._watch.did(_Begun(self._txid, foreseen.before, plan, restart, self._journal.gpus))
        try:
            state.write_journal(self._places, self._journal)
            self._record_reboot(foreseen.before, wanted, plan)
        except state.StateError:
            # It may be there all the same: on a full disk the name is the last to fail.
            self._as_it_was_found()
            raise
        try:
            self._stop(stopping, restart)
            outcome = self._apply(foreseen, wanted, plan)
        except Exception as error:
            # Nothing was written to the driver.
            self._start(restart)
            self._as_it_was_found()
            raise self._with_clients(error) from error
        waits = bool(outcome.reset_required or outcome.reboot_required)
        unusable = self._unusable(outcome.after, () if waits else self._journal.gpus)
        self._start(restart)
        failing = {unit: why for unit, why in self._not_running.items() if not self._is_held(unit)}
        if outcome.error is None and failing:
            why = f"The layout was changed, but {' '.join(clients.did_not_run(failing))}"
            outcome = self._taken_back(outcome, foreseen, restart, MigError(why))
        if unusable is not None and outcome.error is None and not waits:
            return self._left_unusable(outcome._replace(stopped=stopping, error=unusable), foreseen, unfinished)
        self._warn(str(unusable or ""))
        if outcome.error is None and not waits:
            try:
                outcome = self._remembered(outcome, t.cast(Wanted, outcome.wanted), foreseen.origin)
            except state.StateError as error:
                if self._is_remembered():
                    self._warn(str(error))
                else:
                    why = f"The layout was changed, but it could not be remembered for the next boot: {error}"
                    outcome = self._taken_back(outcome, foreseen, restart, MigError(why, **error.details))
        if outcome.error is None and outcome.reboot_required:
            failure = self._why_not_rebooted_for(outcome)
            outcome = self._taken_back(outcome, foreseen, restart, failure) if failure else outcome
        outcome = outcome._replace(stopped=stopping)
        if outcome.error is None and waits:
            return self._waiting(outcome, foreseen, unfinished)
        if outcome.error is None:
            self._put_away(lambda: self._keep_result(outcome, foreseen))
            self._end_waiting(outcome.after, t.cast(Wanted, outcome.wanted))
        else:
            self._await_as_found()
            outcome = self._with_recovery_file(outcome, tuple(map(layouts.dump, foreseen.origin.gpus)))
            if outcome.missing and not outcome.recovery:
                return self._finished(outcome, foreseen, unfinished)
        self._put_away(lambda: state.clear_journal(self._places))
        return self._finished(outcome, foreseen, unfinished)

    def _apply(self, foreseen: Foreseen, wanted: Wanted, plan: Plan) -> Outcome:
        before = foreseen.before
        if foreseen.stopping:
            # Whoever held a GPU through a client is gone now, or must not be disturbed after all.
            before = self._read_all()
            wanted, plan = self._replanned(before)
        # An earlier run may have unloaded it, and not have come to load it again.
        concerned = self._needs_no_drm(before, plan) or t.cast(state.Journal, self._journal).drm
        with self._without_drm() if concerned else contextlib.nullcontext():
            return transaction.apply(self._open, before, plan, wanted, self._course(foreseen))

    @contextlib.contextmanager
    def _without_drm(self) -> t.Iterator[None]:
        """Have nvidia_drm unloaded meanwhile, where it is loaded and ours to take away, and load it whatever happens.

        That it is to be loaded again is in the journal before it is unloaded.
        """
        if self._drm_is_to_go():
            journal = t.cast(state.Journal, self._journal)
            if not journal.drm:
                self._journal = journal._replace(drm=True)
                state.write_journal(self._places, self._journal)
            reset.unload_drm(self._watch)
        try:
            yield
        finally:
            self._warn(reset.load_drm(self._watch))

    def _unusable(self, node: Node, gpus: t.Iterable[int]) -> t.Optional[MigError]:
        """Why what is there on these GPUs cannot be used by everybody, after seeing to it that it can.

        The chain is instances, device files, CDI specification, proof, clients: each link needs the one before it.
        """
        self._told = ""
        self._holds_containers = self._cdi is not None
        try:
            capabilities.ensure(node, gpus, self._watch)
            if self._cdi is not None:
                self._tell_containers(node, self._cdi)
            self._holds_containers = False
        except Exception as error:  # pylint: disable=broad-except  # whatever it was, the layout must be told
            return error if isinstance(error, MigError) else MigError(f"{type(error).__name__}: {error}")
        return None

    def _tell_containers(self, node: Node, settings: cdi.Settings) -> None:
        """Have the CDI specification name what there is now. Raises MigError."""
        self._watch.begin("tell containers of the layout", cdi.MOST_SECONDS)
        try:
            self._told = cdi.refresh(node, settings).msg
        except MigError as error:
            # What was written before may be right for this layout, as on the way back.
            self._holds_containers = not cdi.is_proven(node, settings)
            why = f"The layout is there, but containers are not told of it: {error}"
            raise MigError(why, **error.details) from None
        finally:
            self._watch.idle()

    def _is_held(self, unit: str) -> bool:
        """Whether this client is a container that would get devices which are gone, or by now are somebody else's."""
        return self._holds_containers and clients.is_container(unit)

    def _left_unusable(self, outcome: Outcome, foreseen: Foreseen, unfinished: t.Optional[state.Journal]) -> Outcome:
        """The layout is right, and taking it back would help nobody; but the next run has something to go on with."""
        held = tuple(filter(self._is_held, self._not_running))
        journal = t.cast(state.Journal, self._journal)._replace(clients=held, drm=False)
        self._put_away(lambda: state.write_journal(self._places, journal))
        return self._finished(outcome, foreseen, unfinished)

    def _needs_no_drm(self, node: Node, plan: Plan) -> bool:
        """Whether nvidia_drm, which keeps GPUs from being reset, is loaded, in the way, and ours to take away."""
        switched = [node.gpus[each.gpu] for each in plan.gpus if node.gpus[each.gpu].mode_current != each.enabled]
        due = self._job.resets or due_for_reset(node, plan, self._orders)
        return (bool(due) or any(map(refusals.needs_reset, switched))) and self._drm_is_to_go()

    def _drm_is_to_go(self) -> bool:
        return self._orders.manage_drm and reset.drm_is_loaded() is True

    def _course(self, foreseen: Foreseen) -> Course:
        orders = self._orders
        return Course(
            orders=orders,
            replan=self._replanned,
            read=self._read_all,
            reset=self._reset if orders.allow_reset or self._job.resets else None,
            resets=self._job.resets,
            origin=foreseen.origin,
            earlier=foreseen.earlier,
            rebooted=foreseen.rebooted,
            did=self._watch.did,
        )

    def _read_all(self) -> Node:
        """The node with its holders and promises; those whose instances are gone by now are passed over."""
        node = read(self._opener, self._watch, self._orders, with_holders=True, tolerant=True)
        return with_what_was_found_out(node, self._awaited)

    def _replanned(self, node: Node) -> tuple[Wanted, Plan]:
        """The wish and the plan for the node as it is by now; what is new in the plan goes into the journal first."""
        wanted = wish_of(node, self._job, self._unfinished)
        plan = planner.plan_node(node, wanted)
        journal = t.cast(state.Journal, self._journal)
        new = tuple(step for step in plan.steps if step not in journal.steps)
        if new:
            steps = (*journal.steps, *new)
            gpus = tuple(sorted({step.gpu for step in steps}))
            self._journal = journal._replace(steps=steps, gpus=gpus, target=_target(node, plan))
            state.write_journal(self._places, self._journal)
        return wanted, plan

    def _reset(self, gpus: tuple[Gpu, ...]) -> None:
        # Where a mode has turned out to stay pending, nobody knew before that it would have to go.
        with self._without_drm() if self._drm_is_to_go() else contextlib.nullcontext():
            reset.reset(gpus, timeout=self._orders.operation_timeout, watch=self._watch)

    def _may_reset(self, foreseen: Foreseen, plan: Plan) -> tuple[int, ...]:
        """GPUs that this change resets, or may reset when their mode stays pending."""
        gpus = set(self._job.resets)
        if self._orders.allow_reset:
            now = foreseen.before.gpus
            gpus |= {each.gpu for each in plan.gpus if now[each.gpu].mode_current != each.enabled}
        return tuple(sorted(gpus))

    def _waiting(self, outcome: Outcome, foreseen: Foreseen, unfinished: t.Optional[state.Journal]) -> Outcome:
        """A mode is stored and not current: the rest is done by a later run, for which the node can be kept."""
        if not (outcome.reboot_required and self._recorded):
            if self._keeps_the_node():
                lease = self._lease_of(outcome)
                self._put_away(lambda: state.write_lease(self._places, lease))
            else:
                self._await_as_found()
        if unfinished is None or not outcome.altered:
            self._journal_as_found()
        outcome = self._finished(outcome, foreseen, unfinished)
        # An earlier change stays unfinished, and its journal, until somebody gets past the mode.
        return outcome._replace(recovered="", unfinished=None)

    def _taken_back(self, outcome: Outcome, foreseen: Foreseen, restart: tuple[str, ...], failure: MigError) -> Outcome:
        """The layout was changed, but the change cannot stay: the old one comes back, and the clients with it."""
        self._watch.go_through()
        try:
            self._stop(restart, restart)
        except MigError as error:
            # It may hold on to the new layout; the driver says so then, and so does the outcome.
            self._warn(str(error))
        steps = (*foreseen.earlier, *outcome.steps_done)
        back = transaction.roll_back(self._open, foreseen.origin, steps, failure, rebooted=foreseen.rebooted)
        self._warn(str(self._unusable(back.after, {step.gpu for step in steps}) or ""))
        self._start(restart)
        return back._replace(steps_done=outcome.steps_done, wanted=outcome.wanted, plan=outcome.plan)

    def _with_clients(self, error: Exception) -> Exception:
        """A refusal that also says which clients do not run again, and what else went wrong on the way."""
        told = (*self._not_started, *self._warnings)
        if not told or not isinstance(error, MigError):
            return error
        if self._not_started:
            error.details["not_started"] = list(self._not_started)
        error.args = (" ".join((str(error), *told)),)
        return error

    def _to_restart(self, foreseen: Foreseen) -> tuple[str, ...]:
        """What is stopped now and what an earlier run has stopped, in stop order."""
        earlier = self._unfinished.clients if self._unfinished else ()
        return (*(unit for unit in earlier if unit not in foreseen.stopping), *foreseen.stopping)

    # --- what is waited for ----------------------------------------------------------------------------------------

    def _record_reboot(self, node: Node, wanted: Wanted, plan: Plan) -> None:
        """Write down that the node may be rebooted for this wish, before anything that makes it necessary.

        Raises StateError: a reboot that nobody remembers could be repeated for ever.
        """
        waiting = refusals.need_reboot(node, plan)
        if self._orders.allow_reboot and (waiting or _stores_modes(node, plan)):
            self._recorded = True
            state.write_lease(self._places, self._lease(state.A_REBOOT, wanted, waiting))

    def _why_not_rebooted_for(self, outcome: Outcome) -> t.Optional[MigError]:
        """What forbids a reboot of which only the driver's answer said that it is needed."""
        if not self._orders.allow_reboot:
            return None
        awaited = self._awaited
        if awaited and state.was_rebooted_for(awaited) and is_wish_of(awaited, self._wanted(outcome), self._job):
            return second_reboot(self._places, [outcome.after.gpus[index] for index in outcome.reboot_required])
        lease = self._lease_of(outcome)
        try:
            if not self._recorded or state.read_lease(self._places) != lease:
                self._recorded = True
                state.write_lease(self._places, lease)
        except state.StateError as error:
            why = f"The mode is stored, but it cannot be recorded that the node is rebooted for it: {error}"
            return MigError(why, **error.details)
        return None

    def _lease_of(self, outcome: Outcome) -> state.Lease:
        waiting = outcome.reboot_required or outcome.reset_required
        what = state.A_REBOOT if outcome.reboot_required else state.A_RESET
        return self._lease(what, self._wanted(outcome), [outcome.after.gpus[index] for index in waiting])

    def _lease(self, what: str, wanted: Wanted, waiting: t.Sequence[Gpu]) -> state.Lease:
        """The record of what is waited for; where a reboot was waited for already, since when."""
        found = self._awaited
        if found is not None and not (
            what == found.reason == state.A_REBOOT and found.wish and is_wish_of(found, wanted, self._job)
        ):
            found = None
        keeps = self._keeps_the_node()
        return state.Lease(
            run_id=self._orders.run_id if keeps else "",
            boot_id=found.boot_id if found else state.boot_id(),
            expires=time.time() + min(self._orders.lease, state.MAX_LEASE) if keeps else 0.0,
            who=self._orders.who,
            reason=what,
            gpus=tuple(gpu.index for gpu in waiting),
            wish=found.wish if found else digest(wanted),
            pci=tuple(gpu.pci_bus_id for gpu in waiting),
        )

    def _keeps_the_node(self) -> bool:
        return self._orders.lease > 0 and bool(self._orders.run_id)

    def _await_as_found(self) -> None:
        """Nothing is to be waited for that was not before."""
        found = self._awaited
        if self._recorded and found is None:
            self._put_away(lambda: state.clear_lease(self._places))
        elif self._recorded:
            self._put_away(lambda: state.write_lease(self._places, t.cast(state.Lease, found)))
        self._recorded = False

    def _end_waiting(self, node: Node, wanted: Wanted) -> None:
        """The node is as wanted: what it waited for has come, unless that is about GPUs that were not looked at."""
        if self._job.restores:
            return
        if self._awaited is None or state.ends_waiting(self._awaited, node, wanted.wishes):
            self._put_away(lambda: state.clear_lease(self._places))
        else:
            self._await_as_found()

    def _give_back(self) -> None:
        """A change was taken back: nobody keeps the node for it, but what it was rebooted for it was rebooted for."""
        found = self._awaited
        if found is None or not state.was_rebooted_for(found):
            self._put_away(lambda: state.clear_lease(self._places))
        elif found.run_id:
            self._put_away(lambda: state.write_lease(self._places, found._replace(run_id="", expires=0.0)))

    def _wanted(self, outcome: Outcome) -> Wanted:
        return t.cast(Wanted, outcome.wanted)

    # --- clients ---------------------------------------------------------------------------------------------------

    def _stop(self, stopping: tuple[str, ...], restart: tuple[str, ...]) -> None:
        if not stopping:
            return
        self._warn(clients.arm(self._places, self._txid, _DEAD_MAN_SECONDS, restart, self._manager))
        clients.stop_all(stopping, self._manager, self._orders.client_timeout, self._watch, self._has_let_go)

    def _has_let_go(self, unit: str) -> bool:
        return not any(clients.belongs(each.owner, (unit,)) for each in holders.scan(self._watch))

    def _start(self, units: t.Sequence[str]) -> None:
        """Start what ran before; what does not start is told, and is no reason to stop here."""
        if units:
            held = [unit for unit in units if self._is_held(unit)]
            starting = [unit for unit in units if unit not in held]
            self._not_running = clients.start_all(starting, self._manager, self._orders.client_timeout, self._watch)
            self._not_running.update(dict.fromkeys(held, _WHY_HELD))
            # That of an earlier run that was killed would otherwise start what somebody has stopped since.
            earlier = self._unfinished.txid if self._unfinished is not None and self._unfinished.clients else ""
            for txid in filter(None, (self._txid, earlier)):
                self._watch.begin("disarm the timer that starts clients")
                self._warn(clients.disarm(txid))
            self._watch.idle()

    @property
    def _not_started(self) -> tuple[str, ...]:
        """Sentences about the clients that do not run again."""
        return clients.do_not_run_again(self._not_running)

    def _restart_what_was_stopped_before(self) -> None:
        """Clients, and the kernel module that it unloaded."""
        if self._unfinished is not None and self._unfinished.drm:
            self._warn(reset.load_drm(self._watch))
        if self._unfinished is not None and self._unfinished.clients:
            self._start(self._unfinished.clients)

    # --- records ---------------------------------------------------------------------------------------------------

    def _intent(self, foreseen: Foreseen, plan: Plan, restart: tuple[str, ...]) -> state.Journal:
        steps = (*foreseen.earlier, *plan.steps, *(Step("reset", index) for index in self._may_reset(foreseen, plan)))
        return state.Journal(
            txid=self._txid,
            # The boot in which the layout from before was there.
            boot_id=self._to_finish.boot_id if self._to_finish else state.boot_id(),
            started=state.utc_now(),
            who=self._orders.who,
            what=self._job.what,
            label=t.cast(Wanted, foreseen.wanted).label,
            before=tuple(layouts.dump(gpu) for gpu in foreseen.origin.gpus if gpu.mig_capable),
            target=_target(foreseen.before, plan),
            steps=steps,
            clients=restart,
            gpus=tuple(sorted({step.gpu for step in steps})),
            drm=self._needs_no_drm(foreseen.before, plan) or bool(self._unfinished and self._unfinished.drm),
            remember=self._orders.remember,
        )

    def _remembered(self, outcome: Outcome, wanted: Wanted, origin: t.Optional[Node] = None) -> Outcome:
        """Write down what was proven, unless that is written down already, and after a change what was there before."""
        ours = self._to_be_remembered(outcome.after, wanted)
        covered = [outcome.after.gpus[index] for index in sorted(wanted.wishes) if index in ours]
        if not covered:
            return outcome
        persisted = state.read_wanted(self._places)
        known = state.persisted_verdict(persisted, outcome.after, [gpu.index for gpu in covered]) == compare.MATCH
        # After a change it is written in any case: it says that this very change is over.
        if known and not outcome.altered:
            return outcome
        dumps = []
        for gpu in covered:
            dump = layouts.dump(gpu)
            if wanted.wishes[gpu.index].mode_only:
                del dump["instances"]
            dumps.append(dump)
        state.write_wanted(
            self._places,
            state.Persisted(
                txid=self._txid,
                written=state.utc_now(),
                who=self._orders.who,
                label=wanted.label,
                source=wanted.source,
                driver_version=outcome.after.driver_version,
                gpus=tuple(dumps),
            ),
            whole_node=self._job.resolve is not None
            and not self._leaves_the_record
            and state.is_whole(outcome.after, [gpu.index for gpu in covered]),
            before=[layouts.dump(origin.gpus[gpu.index]) for gpu in covered] if origin else (),
        )
        return outcome._replace(remembered=not known)

    @property
    def _leaves_the_record(self) -> bool:
        """Whether what is remembered is not up to this job's own wish; a change that it has finished may be."""
        return self._job.restores or not self._orders.remember

    def _to_be_remembered(self, node: Node, wanted: Wanted) -> t.Collection[int]:
        """GPUs whose layout the next boot shall restore. Who ends a change of somebody else goes by what that said."""
        theirs = self._to_finish is None or self._to_finish.remember
        if self._leaves_the_record:
            return self._of_the_unfinished(node) if theirs else ()
        return wanted.wishes if theirs else wish_of(node, self._job, None).wishes

    def _of_the_unfinished(self, node: Node) -> set[int]:
        """GPUs that the unfinished change was about."""
        if self._to_finish is None:
            return set()
        pci = {d.get("pci_bus_id") for d in self._to_finish.before if d.get("index") in self._to_finish.gpus}
        return {gpu.index for gpu in node.gpus if gpu.pci_bus_id in pci}

    def _is_remembered(self) -> bool:
        """Whether the record of this run is in its place, even if writing it ended with an error."""
        try:
            persisted = state.read_wanted(self._places)
        except state.StateError:
            return False
        return persisted is not None and persisted.txid == self._txid

    def _keep_result(self, outcome: Outcome, foreseen: Foreseen) -> None:
        """Keep what was done until the caller says that it has it: the connection to it may be gone."""
        result = {
            "txid": self._txid,
            "wish": digest(t.cast(Wanted, outcome.wanted)),
            "label": t.cast(Wanted, outcome.wanted).label,
            "changed": outcome.changed,
            "finished": state.utc_now(),
            "before": [layouts.dump(gpu) for gpu in foreseen.before.gpus],
            "uuid_map": outcome.uuid_map or {},
        }
        state.write_result(self._places, result)

    def _with_recovery_file(self, outcome: Outcome, dumps: t.Sequence[dict[str, t.Any]]) -> Outcome:
        if not outcome.missing:
            return outcome
        try:
            return outcome._replace(recovery=state.write_recovery(self._places, self._txid, dumps))
        except state.StateError as error:
            # Then the journal, which has that layout too, must not go: the next run can take the change back.
            self._warn(str(error))
            return outcome

    def _as_it_was_found(self) -> None:
        """Take this run's own records of what it is about away again."""
        self._journal_as_found()
        self._await_as_found()

    def _journal_as_found(self) -> None:
        unfinished = self._unfinished
        if self._journal is None:
            return
        if unfinished is None:
            self._put_away(lambda: state.clear_journal(self._places))
        else:
            self._put_away(lambda: state.write_journal(self._places, unfinished))

    def _put_away(self, write: t.Callable[[], None]) -> None:
        """Write a record without which the layout is what the outcome says all the same."""
        try:
            write()
        except state.StateError as error:
            self._warn(str(error))

    def _finished(self, outcome: Outcome, foreseen: Foreseen, unfinished: t.Optional[state.Journal]) -> Outcome:
        told = None
        if unfinished is not None:
            told = {key: getattr(unfinished, key) for key in ("txid", "who", "what", "label", "started")}
        outcome = outcome._replace(
            before=foreseen.before,
            txid=self._txid,
            recovered=foreseen.recovered,
            unfinished=told,
            not_started=self._not_started,
            cdi=self._told,
            warnings=tuple(self._warnings),
        )
        if outcome.altered:
            _log(self._txid, self._job, outcome)
        return outcome

    def _warn(self, sentence: t.Optional[str]) -> None:
        if sentence:
            self._warnings.append(sentence)

    def _open(self) -> t.ContextManager[driver.Session]:
        return self._opener(self._watch)


def _target(node: Node, plan: Plan) -> tuple[dict[str, t.Any], ...]:
    """The layouts at the end of a plan, as data."""
    return tuple(
        layouts.dump(
            node.gpus[each.gpu]._replace(mode_current=each.enabled, mode_pending=each.enabled, instances=each.after)
        )
        for each in plan.gpus
    )


def _stores_modes(node: Node, plan: Plan) -> bool:
    """Whether the plan switches a mode that may turn out to wait for a reboot."""
    return any(refusals.mode_step(each) is not None and refusals.needs_reset(node.gpus[each.gpu]) for each in plan.gpus)


def _same_layouts(one: Node, other: Node) -> bool:
    return [layouts.dump(gpu) for gpu in one.gpus] == [layouts.dump(gpu) for gpu in other.gpus]


def _log(txid: str, job: Job, outcome: Outcome) -> None:
    """Leave a record in the log of the host: who, what, before and after."""
    result = "failed" if outcome.error is not None else "done"
    syslog.openlog("gpufleet-mig", syslog.LOG_PID, syslog.LOG_DAEMON)
    syslog.syslog(syslog.LOG_NOTICE, f"{txid}: {job.what} by {job.orders.who or 'somebody'}: {result}")
    for was, now in zip((outcome.before or outcome.after).gpus, outcome.after.gpus):
        if layout_in_words(was) != layout_in_words(now):
            change_in_words = f"{driver.describe(was)}: {layout_in_words(was)} -> {layout_in_words(now)}"
            syslog.syslog(syslog.LOG_NOTICE, f"{txid}: {change_in_words}")
    syslog.closelog()
