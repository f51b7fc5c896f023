# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a boot does for the GPUs: it waits for them, ends what was interrupted, and gives each what it had.

This file is private to the collection gpufleet.mig and may change at any time.

A change is all or nothing; a boot is not, since what was before it is lost anyway. A GPU that is gone, that was
replaced or that fails gets nothing, is named, and keeps no other from its own. It starts nothing and stops nothing.

What is to be had is in ``wanted.json``, which only holds what was proven. An image has none; until the first boot has
made one, its ``wish.json`` counts. Neither is ever written over by what a boot could only do in part.
"""

from __future__ import annotations

import functools
import os
import time
import typing as t

from . import compare, configs, driver, layouts, reading, state, wishes, worker
from .model import DriverError, Gpu, Job, MigError, Node, Orders, Wanted, WishError
from .reading import Opener
from .transaction import Outcome
from .words import on, parts_of

# How the record of an unfinished change says that a boot was finishing it.
_FINISHING = "gpufleet-mig boot, finishing"

_NVIDIA = "0x10de"
_DISPLAY_CONTROLLER = "0x03"
# What waiting does not bring.
_HOPELESS = ("BINDING_MISSING", "DRIVER_TOO_OLD")
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 2.0


class Failure(t.NamedTuple):
    """A GPU that does not have what it should, and why; empty text is none in particular.

    ``waits`` says that a reset or reboot is all that is missing.
    """

    gpu: str
    sentence: str
    waits: bool = False


class Booted(t.NamedTuple):
    """What a boot came to.

    ``source`` is the file that was followed, empty where there was none. ``done`` are sentences about what was done,
    ``left`` about GPUs that somebody else goes on with.
    """

    source: str
    before: Node = Node(())
    after: Node = Node(())
    changed: bool = False
    done: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    failures: tuple[Failure, ...] = ()
    warnings: tuple[str, ...] = ()


class NotReady(MigError):
    """Driver or GPUs did not come in time."""


class _Target(t.NamedTuple):
    """One GPU that is to get something. ``name`` is what it is called, also where it is not there."""

    name: str
    resolve: t.Callable[[Node], Wanted]


def boot(
    places: state.Places, opener: Opener, orders: Orders, wait: float, fallback: bool = False, root: str = "/"
) -> Booted:
    """Give the GPUs of this node what they had before the boot, or what the image wants of them.

    ``wait`` is how many seconds driver and GPUs may take to come. With ``fallback`` a GPU that cannot have what is
    remembered of it gets what it had before that. Raises MigError where nothing could be tried.
    """
    remembered = state.read_wanted(places)
    wish = None if remembered else state.read_wish(places)
    if not remembered and not wish and state.read_journal(places) is None:
        return Booted("", done=("Nothing is remembered of the GPUs of this node: there is nothing to do.",))
    if wish and _gpus_on_the_bus(root) == []:
        return Booted("wish.json", done=("This machine has no NVIDIA GPU: there is nothing to do.",))
    node = _wait_for_gpus(opener, orders, remembered, wait, root)
    # The unit that NVIDIA's refreshes the specification with is ordered after us, and would wait for us.
    orders = orders._replace(tells_containers=False)
    return _Boot(places, opener, orders, remembered, wish, node).run(fallback, root)


class _Boot:
    """The work on a node whose driver answers."""

    def __init__(
        self,
        places: state.Places,
        opener: Opener,
        orders: Orders,
        remembered: t.Optional[state.Persisted],
        wish: t.Optional[state.Wish],
        node: Node,
    ) -> None:
        self._places = places
        self._opener = opener
        self._orders = orders
        self._remembered = remembered
        self._wish = wish
        self._before = node
        self._node = node
        self._changed = False
        self._done: list[str] = []
        self._left: list[str] = []
        self._failures: list[Failure] = []
        self._warnings: list[str] = []

    def run(self, fallback: bool, root: str) -> Booted:
        """Everything; GPU by GPU where that is needed."""
        waiting = self._leave_to_a_run()
        if not waiting:
            self._end_what_was_interrupted()
        if self._wish:
            self._follow(self._wish, waiting, root)
        elif self._remembered:
            self._restore(self._remembered, waiting, fallback)
        return Booted(
            source="wanted.json" if self._remembered else "wish.json" if self._wish else "",
            before=self._before,
            after=self._node,
            changed=self._changed,
            done=tuple(self._done),
            left=tuple(self._left),
            failures=tuple(self._failures),
            warnings=tuple(dict.fromkeys(self._warnings)),
        )

    # --- what others have begun ------------------------------------------------------------------------------------

    def _leave_to_a_run(self) -> set[int]:
        """GPUs whose new mode was stored by a run that goes on after the reset or reboot that makes it current.

        What is remembered of them is from before that run, and going back may take another reboot.
        """
        record = state.read_lease(self._places)
        if record is None:
            return set()
        waiting = {gpu.index for gpu in self._node.gpus if gpu.pci_bus_id in record.pci}
        self._left += [
            f"{driver.describe(self._node.gpus[index])} is left as it is for the run of"
            f" {state.printable(record.who) or 'somebody'} that waits for {state.printable(record.reason)}: run it"
            " again if it does not come back by itself."
            for index in sorted(waiting)
        ]
        return waiting

    def _end_what_was_interrupted(self) -> None:
        """Finish a change in the middle of which the node went down.

        Where it went down again while a boot was finishing it, it is taken back: that may be what the node dies of.
        """
        unfinished = state.read_journal(self._places)
        if unfinished is None:
            return
        back = unfinished.what.startswith(_FINISHING)
        named = f"The unfinished change {unfinished.txid} ({state.printable(unfinished.what)})"
        orders = self._orders._replace(recover="back" if back else "forward")
        try:
            outcome = self._change(Job(None, orders, what=f"{_FINISHING} {unfinished.txid}", restores=True))
            error = outcome.error
        except (state.LockedError, state.StateError):
            raise
        except MigError as refusal:
            error = refusal
        if error is not None:
            self._failures.append(Failure("", f"{named} could not be {'taken back' if back else 'finished'}: {error}"))
        else:
            self._done.append(f"{named} is {'taken back' if back else 'finished'}.")
        # What it led to is remembered now.
        self._remembered = state.read_wanted(self._places)
        self._wish = None if self._remembered else self._wish

    # --- what is remembered ----------------------------------------------------------------------------------------

    def _restore(self, remembered: state.Persisted, waiting: set[int], fallback: bool) -> None:
        """Bring back what is remembered of every GPU."""
        dumps = [dump for dump in remembered.gpus if not any(_is_of(self._node.gpus[index], dump) for index in waiting)]
        targets = [_remembered_target(dump, remembered) for dump in dumps]
        failed = self._give(targets, "gpufleet-mig boot, from wanted.json", restores=True)
        self._warnings += _other_uuids(self._node, [d for d, target in zip(dumps, targets) if target not in failed])
        previous = state.read_previous(self._places) if failed and fallback else None
        if previous is not None:
            self._fall_back(previous, {target.name for target in failed})

    def _fall_back(self, previous: state.Persisted, failed: set[str]) -> None:
        """Give GPUs that could not have what is remembered what they had before that, and say so."""
        targets = [_remembered_target(dump, previous) for dump in previous.gpus if _name(dump) in failed]
        known = len(self._failures)
        without = self._give(targets, "gpufleet-mig boot, from previous.json", restores=True)
        # Why it could not have the older layout either is no news: it has none.
        del self._failures[known:]
        self._done += [
            f"{target.name} has the layout from before the one that is remembered."
            for target in targets
            if target not in without
        ]

    # --- what an image wants ---------------------------------------------------------------------------------------

    def _follow(self, wish: state.Wish, waiting: set[int], root: str) -> None:
        """Make the layouts that the image wants, and remember them once all GPUs have theirs.

        Until then the next boot starts from the wish again: a GPU that failed must not be forgotten.
        """
        configs.check_expected(self._node, wish.expected_gpus)
        driven = [gpu.address for gpu in _gpus_on_the_bus(root) or () if gpu.is_bound]
        for address in _not_there(self._node, driven):
            why = f"The GPU at {address} is on the PCI bus, and the driver does not show it: see 'dmesg'."
            self._failures.append(Failure(address, why))
        targets = [
            _Target(driver.describe(gpu), functools.partial(_as_wished, wish=wish, place=gpu.pci_bus_id or gpu.index))
            for gpu in self._node.gpus
            if gpu.mig_capable is not False and gpu.index not in waiting
        ]
        self._give(targets, "gpufleet-mig boot, from wish.json", restores=bool(self._failures or waiting))

    # --- giving GPUs what they shall have --------------------------------------------------------------------------

    def _give(self, targets: t.Sequence[_Target], what: str, restores: bool) -> list[_Target]:
        """Bring GPUs to what is wanted of them, all in one change if that goes; returns those that do not have it.

        A change that fails because of some GPUs is made again without them. What ``restores`` is not remembered anew,
        and neither is what only some of the GPUs have.
        """
        failed: list[_Target] = []
        left = list(targets)

        def give_up(target: _Target, sentence: str, waits: bool = False) -> None:
            left.remove(target)
            failed.append(target)
            self._failures.append(Failure(target.name, sentence, waits))

        for target in targets:
            try:
                target.resolve(self._node)
            except WishError as refusal:
                give_up(target, f"{str(refusal).rstrip('.')}.")
        while left:
            restores = restores or bool(failed)
            wanted = _together(self._node, left)
            as_wanted = compare.verdict(self._node, wanted).verdict == compare.MATCH
            if as_wanted and (restores or not wanted.wishes) and state.read_journal(self._places) is None:
                break
            resolve = functools.partial(_together, targets=tuple(left))
            error, pending = self._attempt(Job(resolve, self._orders, what=what, restores=restores))
            if error is None and not pending:
                break
            blamed = [target for target in left if _concerns(target, self._node, error, pending)]
            for target in blamed or tuple(left):
                give_up(target, str(error or _pending_in_words(target, self._node)), waits=error is None)
        return failed

    def _attempt(self, job: Job) -> tuple[t.Optional[MigError], tuple[int, ...]]:
        """Have a change made; what failed, and the GPUs whose mode is stored and not current."""
        try:
            outcome = self._change(job)
        except (state.LockedError, state.StateError):
            raise
        except MigError as refusal:
            return refusal, ()
        return outcome.error, (*outcome.reset_required, *outcome.reboot_required)

    def _change(self, job: Job) -> Outcome:
        """Have a change made; the node is known anew then."""
        outcome = worker.change(self._places, self._opener, job)
        if outcome.error is not None and outcome.error.details.get("error") == "NO_ANSWER":
            raise outcome.error
        self._node = outcome.after
        self._changed = self._changed or outcome.changed
        self._warnings += outcome.warnings
        return outcome


# --- targets --------------------------------------------------------------------------------------------------------


def _remembered_target(dump: state.Record, persisted: state.Persisted) -> _Target:
    resolve = functools.partial(_as_remembered, dump=dump, label=persisted.label, source=persisted.source)
    return _Target(_name(dump), resolve)


def _as_remembered(node: Node, dump: state.Record, label: str, source: str) -> Wanted:
    """What is remembered of one GPU, in terms of this node. Raises WishError."""
    all_known = all(gpu.uuid and gpu.pci_bus_id for gpu in node.gpus)
    if all_known and not any(_is_of(gpu, dump) for gpu in node.gpus):
        raise WishError(f"{_name(dump)} is not in this node any more: see 'lspci -d 10de:' and 'dmesg'")
    return layouts.resolve(node, {"gpus": [dump]})._replace(label=label, source=source)


def _as_wished(node: Node, wish: state.Wish, place: t.Union[str, int]) -> Wanted:
    """What the image wants of one GPU: by its PCI id, or its index where it does not say that. Raises WishError."""
    return wishes.resolve(node, wish, gpus=[place])


def _is_of(gpu: Gpu, dump: state.Record) -> bool:
    """Whether this was saved of this board, or of one in its place."""
    return gpu.uuid == dump.get("uuid") or configs.is_at(gpu, dump.get("pci_bus_id") or "")


def _name(dump: state.Record) -> str:
    facts = [dump.get(key) for key in ("pci_bus_id", "uuid", "name")]
    known = ", ".join(state.printable(str(fact)) for fact in facts if fact)
    return f"GPU {dump.get('index')} ({known})"


def _together(node: Node, targets: t.Sequence[_Target]) -> Wanted:
    """What is wanted of all of these; nothing of one that cannot have it any more."""
    found: list[Wanted] = []
    for target in targets:
        try:
            found.append(target.resolve(node))
        except WishError:
            continue
    return Wanted(
        label=" + ".join(dict.fromkeys(each.label for each in found if each.label)),
        source=" + ".join(dict.fromkeys(each.source for each in found if each.label)),
        wishes={index: wish for each in found for index, wish in each.wishes.items()},
    )


def _concerns(target: _Target, node: Node, error: t.Optional[MigError], pending: t.Collection[int]) -> bool:
    """Whether it is because of this GPU that a change failed, or waits."""
    try:
        meant = [node.gpus[index] for index in target.resolve(node).wishes]
    except WishError:
        return True  # it was fine before
    details = error.details if error else {}
    uuid, index = details.get("uuid"), details.get("gpu")
    return any(gpu.index in pending or (gpu.uuid == uuid if uuid else gpu.index == index) for gpu in meant)


def _pending_in_words(target: _Target, node: Node) -> str:
    gpu = node.gpus[next(iter(target.resolve(node).wishes))]
    event = "a reboot" if driver.mode_change_needs_reboot(gpu) else "a reset or reboot"
    return f"{target.name} needs {event} before MIG is {on(gpu.mode_pending)}, which is stored."


def _other_uuids(node: Node, dumps: t.Sequence[state.Record]) -> list[str]:
    """MIG devices that are where they were and have another UUID: whoever pinned one has to know."""
    said = []
    for dump in dumps:
        gpu = next((gpu for gpu in node.gpus if _is_of(gpu, dump)), None)
        if gpu is None or not gpu.mode_current:
            continue
        was, now = parts_of(layouts.load(dump, gpu)), parts_of(gpu)
        said += [
            f"{driver.describe(gpu)}: {now[key][0]} has the UUID {now[key][1]} now, and had {uuid}."
            for key, (_words, uuid) in was.items()
            if uuid and key in now and now[key][1] and now[key][1] != uuid
        ]
    return said


# --- waiting for GPUs -----------------------------------------------------------------------------------------------


class _OnTheBus(t.NamedTuple):
    """A GPU as the kernel lists it, whether or not there is a driver for it."""

    address: str
    is_bound: bool


def _gpus_on_the_bus(root: str) -> t.Optional[list[_OnTheBus]]:
    """NVIDIA's GPUs in this machine that are meant for its driver; None where that cannot be told.

    Virtual functions belong to virtual machines, and so do GPUs that another driver has, such as vfio-pci.
    """
    folder = os.path.join(root, "sys/bus/pci/devices")
    try:
        addresses = sorted(os.listdir(folder))
    except OSError:
        return None
    gpus = []
    for address in addresses:
        device = os.path.join(folder, address)
        if _fact(device, "vendor") != _NVIDIA or not _fact(device, "class").startswith(_DISPLAY_CONTROLLER):
            continue
        bound_to = os.path.basename(os.path.realpath(os.path.join(device, "driver")))
        is_bound = os.path.exists(os.path.join(device, "driver"))
        if not os.path.exists(os.path.join(device, "physfn")) and (not is_bound or bound_to == "nvidia"):
            gpus.append(_OnTheBus(address, is_bound))
    return gpus


def _fact(device: str, name: str) -> str:
    try:
        with open(os.path.join(device, name), encoding="ascii", errors="replace") as file:
            return file.read(64).strip().lower()
    except OSError:
        return ""


def _expected(remembered: t.Optional[state.Persisted], root: str) -> list[str]:
    """PCI addresses of the GPUs that are worth waiting for.

    One that is not on the bus will not come. One that the driver does not take, as it is too old for it, neither: but
    as long as nobody knows what this machine has (``remembered`` is None), none is left out.
    """
    bus = _gpus_on_the_bus(root)
    known = [dump.get("pci_bus_id") or "" for dump in remembered.gpus] if remembered else []
    if bus is None:
        return [address for address in known if address]
    places = [Gpu(0, pci_bus_id=gpu.address) for gpu in bus]
    return [
        place.pci_bus_id
        for gpu, place in zip(bus, places)
        if remembered is None or gpu.is_bound or any(configs.is_at(place, address) for address in known)
    ]


def _wait_for_gpus(
    opener: Opener, orders: Orders, remembered: t.Optional[state.Persisted], wait: float, root: str
) -> Node:
    """The node as soon as its driver has all GPUs, or as it is when the time is over. Raises NotReady, DriverError."""
    nobody_comes = _gpus_on_the_bus(root) == []
    deadline = time.monotonic() + (0 if nobody_comes else wait)
    pause = _FIRST_PAUSE
    while True:
        node: t.Optional[Node] = None
        reason = ""
        try:
            node = reading.observe(opener, orders)
        except DriverError as error:
            if error.error in _HOPELESS:
                raise
            reason = str(error)
        if node is not None and not _not_there(node, _expected(remembered, root)):
            return node
        left = deadline - time.monotonic()
        if left <= 0 and node is not None:
            return node
        if left <= 0:
            raise NotReady(_why_not_ready(reason, nobody_comes, wait, root), error="NOT_READY")
        time.sleep(min(pause, left))
        pause = min(2 * pause, _LONGEST_PAUSE)


def _not_there(node: Node, addresses: t.Sequence[str]) -> list[str]:
    """Addresses at which the driver has no GPU; none of them while there is one that does not say where it is."""
    if not all(gpu.pci_bus_id for gpu in node.gpus):
        return []
    return [address for address in addresses if not any(configs.is_at(gpu, address) for gpu in node.gpus)]


def _why_not_ready(reason: str, nobody_comes: bool, wait: float, root: str) -> str:
    if nobody_comes:
        return f"There is no NVIDIA GPU on the PCI bus of this machine, and its driver does not answer. {reason}"
    kernel = os.uname().release
    if driver.is_built_for(kernel, root) is False:
        reason = (
            f"There is no module nvidia for the running kernel {kernel}: build the driver for it, as 'dkms autoinstall'"
            f" does, or start the kernel that it was built for. {reason}"
        )
    return f"The driver did not answer within {wait:g} s. {reason}"
