# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a node keeps for itself: the layout it shall have, the change it is in, and who is at work.

This file is private to the collection gpufleet.mig and may change at any time.

=============================== ==============================================================================
``STATE/wanted.json``           the layout that was proven last, GPU by GPU; what a boot restores
``STATE/previous.json``         the one before
``STATE/wish.json``             what an image wants of GPUs that it has not met; until there is a wanted.json
``STATE/journal.json``          a change that has begun and not ended
``STATE/cdi.json``              how the role containers has set up what containers are told of the GPUs
``STATE/reboot.json``           what the node waits for a reset or reboot for, and the lease of the run that does
``STATE/recovery-TXID.json``    the layout that a failed change could not restore
``RUN/lock``                    who is at work, as text; that somebody is says the kernel's lock on it
``RUN/result.json``             the outcome of a change whose caller has perhaps not heard of it
``RUN/boot.json``               what the last boot, or loading the driver anew, came to
=============================== ==============================================================================

STATE is ``/var/lib/gpufleet-mig``, RUN is ``/run/gpufleet-mig``. All files are JSON with a ``schema``, readable by
their owner only. A file is written beside its place, brought to the disk and then put there, so that whoever reads
finds the old one or the new one, also after a power loss. A file that cannot be understood is an error that names it:
nothing here is ever ignored, and nothing is removed but what the caller says.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import json
import os
import re
import shlex
import stat
import time
import typing as t
from datetime import datetime, timezone

from . import profiles
from .model import Gpu, MigError, Node, Placement, Step, WishError

if t.TYPE_CHECKING:
    from .bounded import Watch

Record = dict[str, t.Any]
_T = t.TypeVar("_T")

SCHEMA = 1
A_RESET, A_REBOOT = "a reset", "a reboot"
DEFAULT_STATE_DIR = "/var/lib/gpufleet-mig"
DEFAULT_RUN_DIR = "/run/gpufleet-mig"
# Whatever is directly in one of these belongs to the system or to a person.
_FOLDERS_OF_FOLDERS = ("/", "//", "/home", "/usr", "/usr/local", "/var")
# What a state folder may have, up to the first dot or hyphen: also where a damaged file was put away beside its place.
_OWN_NAMES = (
    "binding",
    "cdi",
    "drained",
    "engine",
    "journal",
    "previous",
    "reboot",
    "recovery",
    "run",
    "runtime",
    "wanted",
    "wish",
)

# A lease that ends later than this comes from a clock that has been set since, and must not block for ever.
MAX_LEASE = 3600.0

_MAX_BYTES = 16 * 1024 * 1024
# With less than this on its file system a folder counts as full.
_LEAST_ROOM = 256 * 1024
_POLL_SECONDS = 0.1
_TXID = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,63}")
_SIGKILL_PENDING = 1 << 8
_UNKNOWN_KIND = -1


class StateError(MigError):
    """A file of ours cannot be read, understood or written.

    ``details`` has ``file`` and ``reason``: ``damaged``, ``schema``, ``permission``, ``unsafe`` or ``io``.
    """


class LockedError(MigError):
    """Another run is at work on this node. ``details`` has ``lock``: who, as far as that is known."""


class Places(t.NamedTuple):
    """The two folders: ``state`` outlives a reboot, ``run`` need not."""

    state: str
    run: str


class Journal(t.NamedTuple):
    """A change that has begun: enough to finish it or to take it back, by whoever comes next.

    ``before`` are dumps (layouts.dump) of all MIG-capable GPUs, ``target`` those of the GPUs that the wish covers as
    they were planned. ``steps`` are all planned writes: what they would create may exist and is then ours. ``clients``
    are units that ran and were to be stopped, in the order of stopping; they start in reverse. ``gpus`` have steps.
    ``drm`` says that the kernel module nvidia_drm was loaded and was to be unloaded meanwhile, ``remember`` that the
    layout is one for the next boot, too.
    """

    txid: str
    boot_id: str
    started: str
    who: str
    what: str
    label: str
    before: tuple[Record, ...]
    target: tuple[Record, ...]
    steps: tuple[Step, ...]
    clients: tuple[str, ...] = ()
    gpus: tuple[int, ...] = ()
    drm: bool = False
    remember: bool = True


class Persisted(t.NamedTuple):
    """A layout that was read back and found right: one dump (layouts.dump) for each GPU.

    A dump without the key ``instances`` is of a GPU of which only the MIG mode is ours to keep.
    """

    txid: str
    written: str
    who: str
    label: str
    source: str
    driver_version: str
    gpus: tuple[Record, ...]


class Wish(t.NamedTuple):
    """What an image wants of whatever GPUs it will meet, as options of mig_config. Nothing in it comes from a GPU.

    ``label`` is empty where ``label_by_gpu`` says it all, ``expected_gpus`` is None where any number is right.
    """

    written: str
    label: str
    label_by_gpu: Record
    configs: Record
    unlisted: str
    allow_empty: bool
    expected_gpus: t.Optional[int]


class Lease(t.NamedTuple):
    """What the node waits for, ``reason`` being A_RESET or A_REBOOT, and since when: in the boot ``boot_id``.

    A run with a ``run_id`` keeps the node to itself until ``expires`` (seconds since 1970). ``wish`` stands for what is
    wanted (foresight.digest): whoever wants the same after a reboot has had that reboot. ``gpus`` and ``pci`` are the
    GPUs that wait for it, by index and by place; an index may be another one after a reboot.
    """

    run_id: str
    boot_id: str
    expires: float
    who: str
    reason: str
    gpus: tuple[int, ...] = ()
    wish: str = ""
    pci: tuple[str, ...] = ()


def places(state_dir: t.Optional[str]) -> Places:
    """The folders of this node, or those below ``state_dir``. Raises WishError.

    The default that somebody spells out is still the default: two locks for one node would be none.
    """
    folder = os.path.normpath(state_dir or DEFAULT_STATE_DIR)
    if folder == DEFAULT_STATE_DIR:
        return Places(folder, DEFAULT_RUN_DIR)
    _require_own(folder)
    return Places(folder, os.path.join(folder, "run"))


def _require_own(folder: str) -> None:
    """Raise WishError for a folder that is not, or would not be, there for this collection only: it goes as a whole."""
    shown = profiles.quoted(folder)
    choose = f"choose one that is there for nothing else, such as {DEFAULT_STATE_DIR}"
    if not os.path.isabs(folder):
        raise WishError(f"state_dir is {shown}; it must be an absolute path on the node: {choose}.")
    if os.path.dirname(folder) in _FOLDERS_OF_FOLDERS:
        raise WishError(f"state_dir is {shown}, which is a folder of the system: {choose}.")
    try:
        found = sorted(name for name in os.listdir(folder) if name != "lost+found")
    except OSError:
        return  # not there yet, or not for us to read: then nothing can be written there either
    if found and not any(re.split("[.-]", name.lstrip("."))[0] in _OWN_NAMES for name in found):
        raise WishError(f"state_dir is {shown}, which has {profiles.quoted(found[0])} of somebody else: {choose}.")


def boot_id() -> str:
    """The kernel's name for this boot; empty where it cannot be read."""
    return _word_of("/proc/sys/kernel/random/boot_id")


def machine_id() -> str:
    """The name that this system has for itself, see machine-id(5); empty where there is none."""
    return _word_of("/etc/machine-id")


def _word_of(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            return file.read().strip()
    except (OSError, ValueError):
        return ""


def new_txid() -> str:
    """A name for a change: its time in UTC and a random part, fit for file and unit names."""
    return f"{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}-{os.urandom(4).hex()}"


def utc_now() -> str:
    """The time as it stands in all files: ``2026-01-31T23:59:59+00:00``."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


# --- the unfinished change -----------------------------------------------------------------------------------------


def read_journal(places: Places) -> t.Optional[Journal]:
    """The change that has begun and not ended; None when there is none. Raises StateError."""
    return _read_as(_journal, os.path.join(places.state, "journal.json"))


def _journal(data: Record) -> Journal:
    journal = Journal(
        txid=_txid(data),
        boot_id=_text(data, "boot_id"),
        started=_text(data, "started"),
        who=_text(data, "who"),
        what=_text(data, "what"),
        label=_text(data, "label"),
        before=_mappings(data, "before"),
        target=_mappings(data, "target"),
        steps=tuple(_step(step) for step in _mappings(data, "steps")),
        clients=_texts(data, "clients"),
        gpus=_numbers(data, "gpus"),
        drm=_flag(data, "drm"),
        remember=_flag(data, "remember"),
    )
    known = {dump.get("index") for dump in journal.before}
    unknown = {*journal.gpus, *(step.gpu for step in journal.steps)} - known
    if unknown:
        raise ValueError(f"nothing is in before of GPU {min(unknown)}, which it is about")
    return journal


def write_journal(places: Places, journal: Journal) -> None:
    """Remember that a change begins; it has reached the disk when this returns. Raises StateError."""
    steps = [_step_record(step) for step in journal.steps]
    _write(os.path.join(places.state, "journal.json"), {**journal._asdict(), "steps": steps})


def clear_journal(places: Places) -> None:
    """Remember that the change has ended. Raises StateError."""
    _remove(os.path.join(places.state, "journal.json"))


# --- the layout that a boot restores -------------------------------------------------------------------------------


def read_wanted(places: Places) -> t.Optional[Persisted]:
    """The layout that was proven last; None when there is none. Raises StateError."""
    return _read_as(_persisted, os.path.join(places.state, "wanted.json"))


def read_previous(places: Places) -> t.Optional[Persisted]:
    """The layout that was wanted before the one that is. Raises StateError."""
    return _read_as(_persisted, os.path.join(places.state, "previous.json"))


def write_wanted(
    places: Places, persisted: Persisted, whole_node: bool = False, before: t.Sequence[Record] = ()
) -> None:
    """Remember a layout that was read back. GPUs that it does not have keep theirs, unless it is that of the
    ``whole_node``: then they are not in the node any more, and forgotten. Raises StateError.

    ``before`` are the same GPUs as they were before the change, if there was one. They become the previous layout, or
    else what was wanted does, unless it is the same: a change that was killed in here and is healed must not take
    itself for the previous one.
    """
    wanted, previous = (os.path.join(places.state, name) for name in ("wanted.json", "previous.json"))
    former = _read_as(_persisted, wanted)
    covered = {key for dump in persisted.gpus for key in _identities(dump)}
    others = former.gpus if former and not whole_node else ()
    kept = [dump for dump in others if covered.isdisjoint(_identities(dump))]
    merged = persisted._replace(gpus=(*persisted.gpus, *kept))
    was = former
    if before and not (former and _forms(before) <= _forms(former.gpus)):
        # Nobody had wanted what was there.
        was = persisted._replace(label="", source="found", gpus=(*before, *kept))
    keep_as = None
    if was is not None and _forms(was.gpus) != _forms(merged.gpus):
        if was is former:
            keep_as = previous
        else:
            _write(previous, was._asdict())
    _write(wanted, merged._asdict(), keep_as)


def _forms(dumps: t.Iterable[Record]) -> set[t.Any]:
    return set(map(_form, dumps))


def persisted_verdict(persisted: t.Optional[Persisted], node: Node, gpus: t.Optional[t.Collection[int]] = None) -> str:
    """Whether a boot would restore what is there now: ``match``, ``differ`` or ``absent`` (nothing is remembered).

    With ``gpus`` (indices) only those are looked at, and each has to be remembered. Without, a GPU that nobody
    remembers must be out of MIG mode, which it keeps by itself. Where all GPUs of the node are looked at, a board that
    is remembered and not there is a difference.
    """
    if persisted is None:
        return "absent"
    for gpu in node.gpus:
        if gpus is not None and gpu.index not in gpus:
            continue
        dump = _remembered(persisted, gpu)
        if dump is None:
            if gpus is not None or gpu.mode_current or (gpu.mode_current is None and gpu.mig_capable is not False):
                return "differ"
        elif gpu.problems or dump.get("uuid") != gpu.uuid or not _is_as_remembered(gpu, _form(dump)):
            return "differ"
    if (gpus is None or is_whole(node, gpus)) and _missing(persisted, node):
        return "differ"
    return "match"


def is_whole(node: Node, gpus: t.Collection[int]) -> bool:
    """Whether these are all GPUs of the node that may have MIG."""
    return all(gpu.index in gpus for gpu in node.gpus if gpu.mig_capable is not False)


def _missing(persisted: Persisted, node: Node) -> bool:
    """Whether a board is remembered that is certainly not in the node: one that does not answer may be it."""
    present = {identity for gpu in node.gpus for identity in (gpu.pci_bus_id, gpu.uuid)}
    return "" not in present and any(present.isdisjoint(_identities(dump)) for dump in persisted.gpus)


def _persisted(data: Record) -> Persisted:
    gpus = _mappings(data, "gpus")
    for dump in gpus:
        if _form(dump)[1] is None:
            raise ValueError("mig_current of a GPU is missing")
    texts = ("written", "who", "label", "source", "driver_version")
    return Persisted(txid=_txid(data), gpus=gpus, **{key: _text(data, key) for key in texts})


def _identities(dump: Record) -> set[str]:
    """Raises ValueError for a dump that is not one."""
    found = [dump.get("pci_bus_id"), dump.get("uuid")]
    if not all(identity is None or isinstance(identity, str) for identity in found):
        raise ValueError("pci_bus_id and uuid of a GPU must be text")
    return {identity for identity in found if identity}


def _remembered(persisted: Persisted, gpu: Gpu) -> t.Optional[Record]:
    """What is remembered of this board, which may have been moved, or of another one that was in its place."""
    same_board = (dump for dump in persisted.gpus if dump.get("uuid") == gpu.uuid)
    same_place = (dump for dump in persisted.gpus if dump.get("pci_bus_id") == gpu.pci_bus_id)
    return next(itertools.chain(same_board, same_place), None)


# Each GI with its CIs by what they are and where.
_Instances = tuple[tuple[t.Any, ...], ...]


class _Form(t.NamedTuple):
    """A layout as it can be compared. ``instances`` is None where only the mode counts."""

    identity: str
    mode: t.Optional[bool]
    instances: t.Optional[_Instances]


def _form(dump: Record) -> _Form:
    """Raises ValueError for a dump that is not one."""
    mode = None if dump.get("mig_current") is None else _flag(dump, "mig_current")
    instances = _instances_form(dump) if "instances" in dump else None
    return _Form("/".join(sorted(_identities(dump))), mode, instances)


def _instances_form(dump: Record) -> _Instances:
    instances = []
    for instance in _mappings(dump, "instances"):
        place = _placement(instance.get("placement"))
        compute = sorted(
            _compute_form(
                _number(ci, "slices"),
                _text(ci, "variant"),
                None if ci.get("placement") is None else _placement(ci["placement"]),
                None if ci.get("profile_id") is None else _number(ci, "profile_id"),
            )
            for ci in _mappings(instance, "compute_instances")
        )
        instances.append((_number(instance, "profile_id"), *place, tuple(compute)))
    return tuple(sorted(instances))


def _is_as_remembered(gpu: Gpu, form: _Form) -> bool:
    if gpu.mode_current != form.mode:
        return False
    if form.instances is None:
        return True
    # A record from elsewhere may not say which of several kinds of as many slices a CI is.
    says_kinds = all(ci[3] != _UNKNOWN_KIND for instance in form.instances for ci in instance[3])
    present = (
        (
            gi.profile.id,
            *gi.placement,
            tuple(
                sorted(
                    _compute_form(ci.slices, ci.variant, ci.placement, ci.profile_id if says_kinds else None)
                    for ci in gi.compute
                )
            ),
        )
        for gi in gpu.instances
    )
    return form.instances == tuple(sorted(present))


def _compute_form(
    slices: int, variant: str, place: t.Optional[Placement], profile_id: t.Optional[int]
) -> tuple[int, str, int, int]:
    """How far a CI that fills its GI reaches is told differently by different drivers; where it starts is not."""
    start = 0 if place is None else place.start
    return slices, variant, start, _UNKNOWN_KIND if profile_id is None else profile_id


# --- what an image wants -------------------------------------------------------------------------------------------


def read_wish(places: Places) -> t.Optional[Wish]:
    """What the image wants of this node's GPUs; None when it wants nothing. Raises StateError."""
    return _read_as(_wish, os.path.join(places.state, "wish.json"))


def _wish(data: Record) -> Wish:
    return Wish(
        label_by_gpu=_mapping(data, "label_by_gpu"),
        configs=_mapping(data, "configs"),
        allow_empty=_flag(data, "allow_empty"),
        expected_gpus=None if data.get("expected_gpus") is None else _number(data, "expected_gpus"),
        **{key: _text(data, key) for key in ("written", "label", "unlisted")},
    )


def write_wish(places: Places, wish: Wish) -> None:
    """Have the first boot want this of its GPUs. Raises StateError."""
    _write(os.path.join(places.state, "wish.json"), wish._asdict())


def clear_wish(places: Places) -> None:
    """Have no boot want anything that was not proven before. Raises StateError."""
    _remove(os.path.join(places.state, "wish.json"))


# --- what a boot came to -------------------------------------------------------------------------------------------


def read_boot(places: Places) -> t.Optional[Record]:
    """What the last boot came to; None when that was before the last reboot. Raises StateError."""
    record = _read(os.path.join(places.run, "boot.json"))
    return record if record is not None and record.pop("boot_id", "") == boot_id() else None


def write_boot(places: Places, record: Record) -> None:
    """Keep what a boot came to, for whoever asks. Raises StateError."""
    _write(os.path.join(places.run, "boot.json"), {**record, "boot_id": boot_id()})


# --- what is waited for, and the lease of the run that does --------------------------------------------------------


def read_drain(places: Places) -> t.Optional[str]:
    """The label for which the role mig has drained this node and not given it back; None where it is not drained.

    The label is empty where nobody wrote it down. Raises StateError.
    """
    return _read_as(lambda data: str(data.get("label") or ""), os.path.join(places.state, "drained.json"))


def read_cdi(places: Places) -> t.Optional[Record]:
    """How the role containers has set up what containers are told of the GPUs; None where it has not.

    Raises StateError.
    """
    return _read_as(_cdi, os.path.join(places.state, "cdi.json"))


def _cdi(data: Record) -> Record:
    texts = {key: _text(data, key) for key in ("spec", "management_spec", "unit", "management", "root")}
    return {**texts, "folders": _texts(data, "folders")}


def read_lease(places: Places) -> t.Optional[Lease]:
    """The lease on this node, valid or not. Raises StateError."""
    return _read_as(_lease, os.path.join(places.state, "reboot.json"))


def _lease(data: Record) -> Lease:
    expires = data.get("expires")
    if isinstance(expires, bool) or not isinstance(expires, (int, float)):
        raise ValueError("expires is not a number")
    texts = ("run_id", "boot_id", "who", "reason", "wish")
    return Lease(
        expires=float(expires),
        gpus=_numbers(data, "gpus"),
        pci=_texts(data, "pci"),
        **{key: _text(data, key) for key in texts},
    )


def write_lease(places: Places, lease: Lease) -> None:
    """Keep this node for one run, for MAX_LEASE at most: a longer one would not be believed. Raises StateError."""
    expires = min(lease.expires, time.time() + MAX_LEASE)
    _write(os.path.join(places.state, "reboot.json"), lease._replace(expires=expires)._asdict())


def clear_lease(places: Places) -> None:
    """Give the node back. Raises StateError."""
    _remove(os.path.join(places.state, "reboot.json"))


def lease_blocks(lease: t.Optional[Lease], run_id: str, now: float) -> bool:
    """Whether this lease keeps the run ``run_id`` from the node at the time ``now`` (seconds since 1970).

    It does so after a reboot too, that being what it is for. It does not when it has expired, when it ends so late
    that the clock must have been set since, or when it names no run that could come back for it.
    """
    if lease is None or not lease.run_id or lease.run_id == run_id:
        return False
    return now < lease.expires <= now + MAX_LEASE


def rebooted_for(places: Places) -> t.Optional[Lease]:
    """What the node was rebooted for and no run has continued yet; None when there is no such thing. Raises StateError.

    Until then ``wanted.json`` has what was there before: whoever restores that leaves these GPUs alone.
    """
    lease = read_lease(places)
    return lease if lease is not None and was_rebooted_for(lease) else None


def was_rebooted_for(lease: Lease) -> bool:
    """Whether the node waited for a reboot, and was rebooted since."""
    return lease.reason == A_REBOOT and bool(lease.wish) and lease.boot_id != boot_id()


def ends_waiting(lease: Lease, node: Node, gpus: t.Collection[int]) -> bool:
    """Whether a node that is as wanted on these GPUs (indices) waits for nothing any more."""
    covered = {node.gpus[index].pci_bus_id for index in gpus}
    return all(gpu.pci_bus_id in covered for gpu in node.gpus if gpu.pci_bus_id in lease.pci)


# --- the result that nobody has taken yet --------------------------------------------------------------------------


def read_result(places: Places) -> t.Optional[Record]:
    """The outcome of a change whose caller has not confirmed to have it. Raises StateError."""
    return _read(os.path.join(places.run, "result.json"))


def write_result(places: Places, result: Record) -> None:
    """Keep an outcome until its caller has it. Raises StateError."""
    _write(os.path.join(places.run, "result.json"), result)


def clear_result(places: Places) -> None:
    """The caller has it. Raises StateError."""
    _remove(os.path.join(places.run, "result.json"))


# --- the layout that could not be restored -------------------------------------------------------------------------


def write_recovery(places: Places, txid: str, dumps: t.Sequence[Record]) -> str:
    """Write the layout that a failed change should have restored; returns the path of the file. Raises StateError."""
    path = os.path.join(places.state, f"recovery-{txid}.json")
    _write(path, {"txid": txid, "written": utc_now(), "gpus": list(dumps)})
    return path


# --- one at a time -------------------------------------------------------------------------------------------------


class Lock:
    """This process has the node to itself. Made by ``acquire``.

    The kernel's lock says that somebody is at work, and ends with the process; the text in the file says who, and may
    be of a process that is dead. A child that this process forks does not keep the lock when this process is gone.
    """

    _held: t.ClassVar[set[int]] = set()

    def __init__(self, descriptor: int, said: Record) -> None:
        self._descriptor = descriptor
        self._said = said

    @classmethod
    @contextlib.contextmanager
    def acquire(
        cls, places: Places, txid: str, who: str, what: str, timeout: float, watch: t.Optional[Watch] = None
    ) -> t.Iterator[Lock]:
        """Wait up to ``timeout`` seconds for the node, and have it until the end of the ``with`` statement.

        Raises LockedError, which says who has it, and StateError.
        """
        descriptor = _wait_for_lock(places, timeout, watch)
        cls._held.add(descriptor)
        try:
            lock = cls(descriptor, {"pid": os.getpid(), "txid": txid, "who": who, "what": what, "since": utc_now()})
            lock.expect(None)
            yield lock
        finally:
            cls._held.discard(descriptor)
            os.close(descriptor)

    def expect(self, seconds: t.Optional[float]) -> None:
        """Say that what is done now ends within so many seconds, for those who wait; None: no word about it."""
        # Not the time of day, which can be set: this clock is the same for all processes of one boot.
        deadline = None if seconds is None else time.monotonic() + seconds
        content = json.dumps({"schema": SCHEMA, **self._said, "deadline": deadline}).encode()
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, content, 0)

    @classmethod
    def _forget_after_fork(cls) -> None:
        """In a new child: drop its copies of the locks, which last as long as any copy is open."""
        for descriptor in cls._held:
            os.close(descriptor)
        cls._held.clear()


os.register_at_fork(after_in_child=Lock._forget_after_fork)


def holder(places: Places) -> t.Optional[Record]:
    """Who is at work on this node now; None when nobody is. Does not wait and writes nothing. Raises StateError.

    The keys are ``pid``, ``txid``, ``who``, ``what``, ``since`` and ``deadline``, or none when they are not known.
    """
    path = os.path.join(places.run, "lock")
    with _reading(path):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return None
        try:
            if _try_lock(descriptor, fcntl.LOCK_SH):
                return None
            return _said_by_holder(os.pread(descriptor, _MAX_BYTES, 0))
        finally:
            os.close(descriptor)


def in_progress(places: Places) -> t.Optional[Record]:
    """What is going on or was left unfinished on this node; None when nothing is, or this user may not know.

    The keys are ``txid``, ``who``, ``what``, ``label``, ``started``, ``running`` (somebody is at work now) and
    ``boot`` (``this`` or ``earlier``); or ``unreadable`` alone, a sentence about the file that should say it.
    """
    try:
        journal = read_journal(places)
        at_work = holder(places)
    except StateError as error:
        return None if error.details["reason"] == "permission" else {"unreadable": str(error)}
    if journal is not None:
        return {
            "txid": journal.txid,
            "who": journal.who,
            "what": journal.what,
            "label": journal.label,
            "started": journal.started,
            "running": at_work is not None,
            "boot": "this" if journal.boot_id == boot_id() else "earlier",
        }
    if at_work is None:
        return None
    said = {key: at_work.get(key, "") for key in ("txid", "who", "what")}
    return {**said, "label": "", "started": at_work.get("since", ""), "running": True, "boot": "this"}


def _wait_for_lock(places: Places, timeout: float, watch: t.Optional[Watch]) -> int:
    path = os.path.join(places.run, "lock")
    give_up_at = time.monotonic() + timeout
    while True:
        if watch is not None:
            watch.begin("wait for the lock of this node")
            watch.check()
        descriptor = _open_lock(path)
        if _try_lock(descriptor, fcntl.LOCK_EX) and _is_still_there(descriptor, path):
            return descriptor
        # Whoever only looks (holder) shares the lock for a moment, and is nobody to give up for.
        is_looked_at = _try_lock(descriptor, fcntl.LOCK_SH)
        content = os.pread(descriptor, _MAX_BYTES, 0)
        os.close(descriptor)
        if time.monotonic() >= give_up_at and not is_looked_at:
            said = _said_by_holder(content)
            if watch is not None:
                watch.begin(f"read the state of process {said.get('pid')}")
            raise LockedError(_who_has_it(path, said), lock=said)
        time.sleep(0 if is_looked_at else _POLL_SECONDS)


def _open_lock(path: str) -> int:
    with _writing(path):
        our_folder(os.path.dirname(path))
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _try_lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_still_there(descriptor: int, path: str) -> bool:
    """Whether the file that is locked is the one that others would lock: somebody may have cleaned up meanwhile."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _said_by_holder(content: bytes) -> Record:
    """What is written in the lock file; nothing when that is being written just now."""
    try:
        data = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        return {}
    said: Record = {key: data[key] for key in ("txid", "who", "what", "since") if isinstance(data.get(key), str)}
    numbers = {key: data[key] for key in ("pid", "deadline") if isinstance(data.get(key), (int, float))}
    return {**said, **numbers}


def _who_has_it(path: str, said: Record, root: str = "/") -> str:
    pid = said.get("pid")
    if pid is None:
        return f"Another run has this node and has not said which (lock {path}): run again when it has ended."
    who = f" of {printable(said['who'])}" if said.get("who") else ""
    what = f" ({printable(said['what'])})" if said.get("what") else ""
    sentence = f"Process {pid}{who}{what} has this node since {printable(said.get('since', 'an unknown time'))}"
    fate = _fate(path, pid, said.get("deadline"), root)
    return f"{sentence}{fate or ': run again when it has ended, or wait longer with lock_timeout'}."


def _fate(path: str, pid: int, deadline: t.Optional[float], root: str) -> str:
    """The rest of the sentence about a process that will not give the lock back by itself; empty when it may."""
    try:
        with open(os.path.join(root, "proc", str(pid), "status"), encoding="utf-8", errors="replace") as file:
            status = dict(line.split(":", 1) for line in file if ":" in line)
    except FileNotFoundError:
        return f" and has ended, but a process that it started keeps the lock: find it with 'fuser -v {path}'"
    except OSError:
        return ""
    try:
        killed = any(int(status.get(field, "0"), 16) & _SIGKILL_PENDING for field in ("SigPnd", "ShdPnd"))
    except ValueError:
        killed = False
    if killed or (deadline is not None and time.monotonic() > deadline):
        return " and was told to end and has not: the driver hangs, reboot the node"
    if status.get("State", "").strip().startswith("D"):
        return (
            " and sleeps in a call that the kernel does not interrupt: if that lasts, the driver hangs, reboot the node"
        )
    return ""


# --- files ---------------------------------------------------------------------------------------------------------


def printable(text: str) -> str:
    """Text from a file or from outside as one line of bounded length."""
    text = profiles.printable(text)
    return text if len(text) <= 200 else f"{text[:200]}..."


def _read(path: str) -> t.Optional[Record]:
    """The content of a file of ours; None when it does not exist. Raises StateError."""
    with _reading(path):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        with open(descriptor, "rb") as file:
            _require_ours(os.path.dirname(path))
            content = file.read(_MAX_BYTES + 1)
    if len(content) > _MAX_BYTES:
        raise _damaged(path, f"it has more than {_MAX_BYTES} bytes")
    if not content:
        raise _damaged(path, "it is empty")
    try:
        data = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"it is not JSON: {printable(str(error))}") from None
    if not isinstance(data, dict) or not isinstance(data.get("schema"), int):
        raise _damaged(path, "it has no schema")
    if data["schema"] != SCHEMA:
        raise StateError(
            f"{path} was written by another version of gpufleet.mig (schema {data['schema']}, this one reads {SCHEMA}):"
            f" use that version, or {_move_away(path)}.",
            file=path,
            reason="schema",
        )
    del data["schema"]
    return data


def _read_as(understand: t.Callable[[Record], _T], path: str) -> t.Optional[_T]:
    """What a file of ours says; None when it does not exist. ``understand`` raises ValueError. Raises StateError."""
    data = _read(path)
    if data is None:
        return None
    try:
        return understand(data)
    except ValueError as error:
        raise _damaged(path, str(error)) from None


def _write(path: str, data: Record, keep_as: t.Optional[str] = None) -> None:
    """Put a file in its place, all of it or nothing; the file that was there stays as ``keep_as``.

    Two fsyncs, whatever the size: of the content before it can be seen under its name, and of the folder.
    """
    content = json.dumps({"schema": SCHEMA, **data}, indent=1).encode() + b"\n"
    folder, name = os.path.split(path)
    new = os.path.join(folder, f".{name}.new")
    with _writing(path):
        our_folder(folder)
        _unlink(new)
        try:
            _create(new, content)
        except OSError:
            _unlink(new)  # on a full disk its part of the content is in the way too
            raise
        if keep_as is not None:
            kept = os.path.join(folder, f".{os.path.basename(keep_as)}.new")
            _unlink(kept)
            os.link(path, kept)
            os.replace(kept, keep_as)
        os.replace(new, path)
        _sync_folder(folder)


def _create(path: str, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        while content:
            content = content[os.write(descriptor, content) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path: str) -> None:
    with _writing(path):
        if _unlink(path):
            _sync_folder(os.path.dirname(path))


def _unlink(path: str) -> bool:
    """Remove a file; whether it was there."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    return True


def our_folder(folder: str) -> None:
    """Make a folder that only we may enter, where there is none. Raises StateError for one that is not ours alone."""
    _make_folder(folder)
    _require_ours(folder)


def _make_folder(folder: str) -> None:
    if os.path.isdir(folder):
        return
    parent = os.path.dirname(folder)
    _make_folder(parent)
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    _sync_folder(parent)


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def require_room(places: Places) -> None:
    """Raise StateError where the records of a change would not find room, as far as that shows without writing one."""
    for folder in places:
        there = folder
        while not os.path.isdir(there) and there != os.path.dirname(there):
            there = os.path.dirname(there)
        with _writing(folder):
            system = os.statvfs(there)
            if system.f_flag & os.ST_RDONLY:
                raise OSError(errno.EROFS, os.strerror(errno.EROFS))
            full = system.f_bfree * system.f_frsize < _LEAST_ROOM
            if full or (system.f_files and not system.f_ffree):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _require_ours(folder: str) -> None:
    """Root neither believes nor writes files in a folder where others can replace them. Raises StateError."""
    if os.geteuid() != 0:
        return
    status = os.stat(folder)
    if status.st_uid != 0 or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise StateError(
            f"{folder} is not used, since others than root can write to it (owner {status.st_uid}, mode"
            f" {stat.S_IMODE(status.st_mode):04o}): look at what is in it, then give it to root alone with"
            f" 'chown root {shlex.quote(folder)}; chmod go-w {shlex.quote(folder)}'.",
            file=folder,
            reason="unsafe",
        )


@contextlib.contextmanager
def _reading(path: str) -> t.Iterator[None]:
    try:
        yield
    except PermissionError:
        raise StateError(
            f"{path} is readable by root only: run as root, which 'sudo' or 'become: true' does.",
            file=path,
            reason="permission",
        ) from None
    except OSError as error:
        raise StateError(
            f"{path} cannot be read ({error.strerror}): {_move_away(path)}.", file=path, reason="io"
        ) from None


@contextlib.contextmanager
def _writing(path: str) -> t.Iterator[None]:
    try:
        yield
    except OSError as error:
        helps = "make room, or make its file system writable for root, and run again"
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EEXIST):
            helps = "no folder can be there, so choose another one (state_dir, in roles mig_state_dir)"
        raise StateError(
            f"{path} cannot be written ({error.strerror}): {helps}.",
            file=path,
            reason="permission" if isinstance(error, PermissionError) else "io",
        ) from None


def _damaged(path: str, what: str) -> StateError:
    return StateError(f"{path} is damaged ({what}): {_move_away(path)}.", file=path, reason="damaged")


def _move_away(path: str) -> str:
    return f"move it away with 'mv {shlex.quote(path)} {shlex.quote(path + '.damaged')}' and run again"


# --- values in files: ValueError, with words about the key, for one that is not as it must be -----------------------


def _text(data: Record, key: str) -> str:
    value = data.get(key)
    if not isinstance(value, str):
        raise ValueError(f"{key} is not text")
    return value


def _txid(data: Record) -> str:
    value = _text(data, "txid")
    if not _TXID.fullmatch(value):
        raise ValueError("txid is not one")
    return value


def _flag(data: Record, key: str) -> bool:
    value = data.get(key)
    if not isinstance(value, bool):
        raise ValueError(f"{key} is not a boolean")
    return value


def _number(data: Record, key: str) -> int:
    value = data.get(key)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{key} is not a number")
    return value


def _mapping(data: Record, key: str) -> Record:
    value = data.get(key)
    if not isinstance(value, dict):
        raise ValueError(f"{key} is not a mapping")
    return value


def _items(data: Record, key: str, kind: type[t.Any], words: str) -> tuple[t.Any, ...]:
    values = data.get(key)
    if not isinstance(values, list) or not all(
        isinstance(each, kind) and not isinstance(each, bool) for each in values
    ):
        raise ValueError(f"{key} is not a list of {words}")
    return tuple(values)


def _mappings(data: Record, key: str) -> tuple[Record, ...]:
    return _items(data, key, dict, "mappings")


def _texts(data: Record, key: str) -> tuple[str, ...]:
    return _items(data, key, str, "texts")


def _numbers(data: Record, key: str) -> tuple[int, ...]:
    return _items(data, key, int, "numbers")


def _placement(value: t.Any) -> Placement:
    if not isinstance(value, dict):
        raise ValueError("a placement is not a mapping")
    return Placement(_number(value, "start"), _number(value, "size"))


_STEP_NUMBERS = ("gi_id", "ci_id", "profile_id", "slices")
_STEP_PLACEMENTS = ("placement", "compute_placement")
_STEP_TEXTS = ("name", "variant")


def _step_record(step: Step) -> Record:
    record = step._asdict()
    for key in _STEP_PLACEMENTS:
        if record[key] is not None:
            record[key] = record[key]._asdict()
    return record


def _step(record: Record) -> Step:
    enabled = None if record.get("enabled") is None else _flag(record, "enabled")
    numbers = {key: _number(record, key) for key in _STEP_NUMBERS if record.get(key) is not None}
    placements = {key: _placement(record[key]) for key in _STEP_PLACEMENTS if record.get(key) is not None}
    texts = {key: _text(record, key) for key in _STEP_TEXTS if key in record}
    fields: Record = {**texts, **numbers, **placements}
    return Step(kind=_text(record, "kind"), gpu=_number(record, "gpu"), enabled=enabled, **fields)
