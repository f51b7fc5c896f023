# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Clients of the GPUs that may be stopped for a change and are started again after it: units and containers.

This file is private to the collection gpufleet.mig and may change at any time.

Only what is active is stopped, one after the other, and exactly that is started again, in reverse order. No unit is
enabled, disabled or unmasked, and systemd is never made to read its files again. What stopping a unit would take along,
and what could not be started again, is refused before anything is stopped.

systemd and the container runtimes are asked through their own commands, without a shell, each with a deadline: a daemon
that does not answer must not hold up the node. A runtime is only asked while its daemon runs, since the question would
start it. Names and what the commands print are data.

Here and in all records a client that runs is a text: the name of its unit, or ``docker:`` and the whole id of a
container.
"""

from __future__ import annotations

import json
import os
import re
import time
import typing as t
from types import MappingProxyType

from . import commands
from .model import Client, MigError, Owner, WishError
from .profiles import printable

if t.TYPE_CHECKING:
    from .bounded import Watch
    from .state import Places

KINDS = ("instances", "mode", "reset")
# In place of kinds: for no change whatever.
NEVER = "never"
# Starting a target also starts what was off before, and slices, scopes and devices cannot be started at all.
_TYPES = ("service", "socket", "timer", "path")
_OTHER_TYPES = ("target", "slice", "scope", "device", "mount", "automount", "swap", "snapshot")
_UNIT_NAME = re.compile(r"[A-Za-z0-9:_.@\\-]+")
_LONGEST_NAME = 255


class _Runtime(t.NamedTuple):
    """A container runtime: the unit that has to be active for its client program to be called, if there is one.

    Without the variables the program could look for its daemon elsewhere: on another host, if root once said so.
    """

    unit: str
    environment: t.Mapping[str, str]


# By the name of the client program.
_RUNTIMES = {
    "docker": _Runtime("docker.service", {"DOCKER_HOST": "unix:///run/docker.sock"}),
    "podman": _Runtime("", {}),
    "nerdctl": _Runtime("containerd.service", {}),
}
_CONTAINER = re.compile(rf"(?P<runtime>{'|'.join(_RUNTIMES)}):(?P<id>[0-9a-f]{{64}})")
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*(?:=.*)?")
# Where nerdctl says that a container goes when it ends; the others have it among the settings of the host.
_GOES_LABEL = "nerdctl/auto-remove"
# The unit that runs a container, as podman knows it.
_RUN_BY_LABEL = "PODMAN_SYSTEMD_UNIT"
# What a container is in the words that systemd has for units; all other states are shown as they are.
_ACTIVE_OF_STATUS = {
    "running": "active",
    "paused": "active",
    "restarting": "activating",
    "stopping": "deactivating",
    "removing": "deactivating",
    "created": "inactive",
    "exited": "inactive",
    "stopped": "inactive",
}

# activating includes a service that waits to be restarted after it failed; "exited" is a sub-state of active.
_UP = ("active", "activating", "reloading", "refreshing")
_PROPERTIES = (
    *("Id", "LoadState", "ActiveState", "SubState", "MainPID", "Result", "Type", "Transient", "NRestarts", "Job"),
    # Units that systemd stops along with this one.
    *("RequiredBy", "RequisiteOf", "BoundBy", "ConsistsOf", "PropagatesStopTo"),
)
_STOPPED_ALONG = ("RequiredBy", "RequisiteOf", "BoundBy", "ConsistsOf", "PropagatesStopTo")
# Services of these types count as started as soon as they have a process, before it has shown that it can run.
_STARTED_AT_ONCE = ("simple", "exec", "idle")

_ANSWER_SECONDS = 20.0
_POLL_SECONDS = 0.1
_SETTLE_SECONDS = 1.0
# For the runtime to start containers when none of us is left.
_START_SECONDS = 300
# Between our own deadline, which is told with its cause, and the end of the process that misses it.
_SPARE_SECONDS = 2 * _ANSWER_SECONDS
_LONGEST_QUOTE = 600


class ClientError(MigError):
    """A client could not be stopped or started. ``details`` has ``unit``."""


class UnitState(t.NamedTuple):
    """A unit as systemd shows it, or a container. ``id`` is its own name, also when it was asked for by an alias.

    ``load`` is loaded, masked, not-found, ...; ``active`` is active, inactive, failed, activating, deactivating, ...
    ``dependents`` are the units that systemd stops along with it. ``transient`` units are gone once they are stopped.
    ``restarts`` counts how often systemd had to restart it by itself. ``queued`` says that a job for it waits or runs.
    ``name`` is what people call a container, and ``obstacle`` why it could not be put back as it is.
    """

    id: str
    load: str
    active: str
    sub: str = ""
    main_pid: int = 0
    result: str = ""
    type: str = ""
    transient: bool = False
    restarts: int = 0
    queued: bool = False
    dependents: tuple[str, ...] = ()
    name: str = ""
    obstacle: str = ""

    @property
    def up(self) -> bool:
        return self.active in _UP

    @property
    def title(self) -> str:
        """Its id, and its name where that says more."""
        return f"{self.id} ({self.name})" if self.name else self.id


class Manager(t.Protocol):
    """What stops and starts clients. Everything raises ClientError, and returns within the time given."""

    def state(self, unit: str) -> UnitState: ...

    def stop(self, unit: str, timeout: float) -> None: ...

    def start(self, unit: str, timeout: float) -> None: ...


def manager_of(root: str = "/") -> Manager:
    """What a host has, where systemd runs; otherwise a manager that knows no client."""
    return Host() if _systemd_runs(root) else NoManager()


def belongs(owner: Owner, clients: t.Collection[str]) -> bool:
    """Whether a process of this owner is one of these clients', and ends with it."""
    return owner.unit in clients or any(f"{runtime}:{owner.container}" in clients for runtime in _RUNTIMES)


# --- what a caller may name ----------------------------------------------------------------------------------------


def is_container(client: str) -> bool:
    """Whether a client is a container, and not a unit."""
    return _CONTAINER.fullmatch(client) is not None


def parse(value: t.Any) -> tuple[Client, ...]:
    """Clients as the option of that name has them, in stop order.

    That is unit names, ``{"unit": ..., "for": [...]}``, and ``{"container": "LABEL=VALUE", "runtime": ...}``. What is
    ``for`` never is not stopped, by whatever name another entry has it.
    """
    if value is None:
        return ()
    if not isinstance(value, (list, tuple)):
        raise WishError("clients must be a list of systemd units and of containers.")
    return tuple(_client(entry, f"clients[{index}]") for index, entry in enumerate(value))


def _client(entry: t.Any, where: str) -> Client:
    if isinstance(entry, str):
        return Client(_unit_name(entry, where))
    if isinstance(entry, dict) and "container" in entry:
        return _container(entry, where)
    if not isinstance(entry, dict) or not isinstance(entry.get("unit"), str):
        raise WishError(
            f'{where} must be the name of a systemd unit, or have it as "unit", or the label of containers as'
            ' "container".'
        )
    _require_known(entry, ("unit", "for"), where)
    return Client(_unit_name(entry["unit"], where), _kinds(entry.get("for", list(KINDS)), where))


def _container(entry: t.Mapping[t.Any, t.Any], where: str) -> Client:
    _require_known(entry, ("container", "runtime", "for"), where)
    label, runtime = entry["container"], entry.get("runtime")
    if not _is_label(label):
        raise WishError(f"{where}.container is {_quoted(label)}; it must be a label, LABEL or LABEL=VALUE.")
    if runtime not in tuple(_RUNTIMES):
        known = ", ".join(_RUNTIMES)
        raise WishError(f"{where}.runtime is {_quoted(runtime)}; it must say whose containers these are: {known}.")
    return Client("", _kinds(entry.get("for", list(KINDS)), where), label, runtime)


def _is_label(value: t.Any) -> bool:
    shaped = isinstance(value, str) and len(value) <= _LONGEST_NAME and _LABEL.fullmatch(value)
    return bool(shaped) and value.isprintable()


def _require_known(entry: t.Mapping[t.Any, t.Any], known: t.Sequence[str], where: str) -> None:
    unknown = sorted(str(key) for key in entry if key not in known)
    if unknown:
        names = " and ".join(f'"{name}"' for name in known)
        raise WishError(f"{where} has {_quoted(unknown[0])}, which is not known here. It may have {names}.")


def _kinds(value: t.Any, where: str) -> frozenset[str]:
    kinds = [value] if isinstance(value, str) else value
    if kinds == [NEVER]:
        return frozenset()
    known = ", ".join(KINDS)
    if not isinstance(kinds, (list, tuple)) or not kinds:
        raise WishError(f"{where}.for must name at least one kind of change: {known}; or be {NEVER}.")
    if NEVER in kinds:
        raise WishError(
            f"{where}.for has {NEVER} beside kinds of change; it must be {NEVER} alone, or name only these."
        )
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown:
        raise WishError(f"{where}.for has {_quoted(unknown[0])}, which is no kind of change. There are: {known}.")
    return frozenset(kinds)


def _unit_name(given: str, where: str) -> str:
    stem, dot, suffix = given.rpartition(".")
    name = given
    if dot and suffix in _OTHER_TYPES:
        raise WishError(f"{where}: {_quoted(given)} is a {suffix}. Name the units themselves ({', '.join(_TYPES)}).")
    if not dot or suffix not in _TYPES:
        stem, name = given, f"{given}.service"
    if not stem or not _UNIT_NAME.fullmatch(name) or len(name) > _LONGEST_NAME:
        raise WishError(f"{where}: {_quoted(given)} is no name of a systemd unit.")
    if stem.endswith("@"):
        raise WishError(f"{where}: {name} is a template, not a unit. Name its instances.")
    return name


# --- what is to be stopped -----------------------------------------------------------------------------------------


def select(
    clients: t.Sequence[Client], kinds: t.AbstractSet[str], manager: Manager, root: str = "/"
) -> tuple[str, ...]:
    """The clients to stop for these kinds of change, by their own names, in the order in which to stop them.

    These are the ones that are concerned and active now, in the order in which they were named, except that a unit
    comes before the one that it depends on, and a container before the daemon of its runtime. One that is never to be
    stopped is left out by whatever name another entry has it. Raises ClientError for what must not be stopped; nothing
    is stopped yet.
    """
    states = {client: _states_of(client, manager) for client in dict.fromkeys(clients)}
    kept = frozenset(state.id for client, found in states.items() if not client.kinds for state in found)
    choice = _Choice(manager, [each for found in states.values() for each in found], kept, _units_around_us(root))
    for client in clients:
        if client.kinds & kinds:
            for state in states[client]:
                choice.add(state)
    return tuple(choice.order)


def _states_of(client: Client, manager: Manager) -> tuple[UnitState, ...]:
    """What a client names: one unit, or the containers that run now and have its label."""
    if not client.container:
        return (manager.state(client.unit),)
    return manager.containers(client.runtime, client.container) if isinstance(manager, Host) else ()


class _Choice:
    """Collects clients in stop order, each with those that would be stopped along with it.

    ``kept`` are those among the ``named`` that are never stopped.
    """

    def __init__(
        self, manager: Manager, named: t.Sequence[UnitState], kept: frozenset[str], around_us: frozenset[str]
    ) -> None:
        self.order: list[str] = []
        self._manager = manager
        self._named = {state.id: state for state in named}
        self._kept = kept
        self._around_us = around_us
        self._seen: set[str] = set()

    def add(self, state: UnitState) -> None:
        if not state.up or state.id in self._seen or state.id in self._kept:
            return
        self._seen.add(state.id)
        self._check(state)
        for name in state.dependents:
            dependent = self._manager.state(name)
            self._require_not_kept(dependent, state)
            if dependent.up and dependent.id not in self._named:
                remedy = "Name it there too, or stop it yourself before"
                if not dependent.id.endswith(tuple(f".{suffix}" for suffix in _TYPES)):
                    remedy = f"Take {state.id} off the clients, or let that only want it (WantedBy=), not require it"
                raise ClientError(
                    f"Stopping {state.id} would also stop {_line(dependent.id)}, which depends on it and is not among"
                    f" the clients. {remedy}.",
                    unit=state.id,
                )
            self.add(dependent)
        for container in self._containers_of(state.id):
            self._require_not_kept(container, state)
            self.add(container)
        self.order.append(state.id)

    def _require_not_kept(self, along: UnitState, stopped: UnitState) -> None:
        """Raise ClientError if ``along``, which ends with a client that is to be stopped, is never to be stopped."""
        if along.up and along.id in self._kept:
            raise ClientError(
                f"Stopping {stopped.id} would also stop {along.title}, which is among the clients as one that is"
                f" {NEVER} stopped. Take {stopped.id} off the clients too, or allow both to be stopped.",
                unit=stopped.id,
            )

    def _containers_of(self, unit: str) -> list[UnitState]:
        """The named containers whose runtime is this unit: they end with it, and cannot be started without it."""
        return [
            state
            for state in self._named.values()
            if (container := _CONTAINER.fullmatch(state.id)) and _RUNTIMES[container["runtime"]].unit == unit
        ]

    def _check(self, state: UnitState) -> None:
        """Raise ClientError for a unit that could not be started again, or whose end would be ours."""
        if not _UNIT_NAME.fullmatch(state.id):
            raise ClientError(f"systemd calls a client {_quoted(state.id)}, which is no name of a unit.", unit="")
        reason = state.obstacle
        if state.load != "loaded":
            reason = f"is active but {_line(state.load)}, so that it could not be started again"
        elif state.transient:
            reason = "is a transient unit, so that nothing of it would be left to start again"
        elif state.id in self._around_us:
            reason = "is what this process runs in, so that stopping it would end the change"
        if reason:
            raise ClientError(f"{state.title} {reason}. Stop it yourself, or take it off the clients.", unit=state.id)


def _units_around_us(root: str) -> frozenset[str]:
    """The system's units that this process runs in. What comes below a user's own systemd has other namesakes."""
    names: set[str] = set()
    for path in _control_groups(root):
        for name in path.split("/"):
            names.add(name)
            if name.startswith("user@"):
                break
    return frozenset(names)


# --- stopping and starting -----------------------------------------------------------------------------------------


def stop_all(
    units: t.Sequence[str],
    manager: Manager,
    timeout: float,
    watch: t.Optional[Watch] = None,
    gone: t.Optional[t.Callable[[str], bool]] = None,
) -> None:
    """Stop these clients one after the other, each within ``timeout``, and wait until each has ended.

    ``gone`` says whether a client has let go of the GPUs: a process may outlive its unit. Raises ClientError for the
    first that does not stop. It is for the caller to start all of them again, also the one that failed: it may end yet.
    """
    for unit in units:
        if watch is not None:
            watch.check()
        _stop(unit, manager, timeout, watch, gone)


def _stop(
    unit: str,
    manager: Manager,
    timeout: float,
    watch: t.Optional[Watch],
    gone: t.Optional[t.Callable[[str], bool]],
) -> None:
    deadline = time.monotonic() + timeout
    _begin(watch, f"stop {unit}", timeout)
    if manager.state(unit).up:
        manager.stop(unit, timeout)
    while True:
        state = manager.state(unit)
        if state.up:
            raise ClientError(
                f"{state.title} was stopped and is {_line(state.active)} again: a socket, a timer or somebody started"
                " it. Name what does so among the clients too, before it.",
                unit=unit,
            )
        ended = state.active != "deactivating"
        if ended and (gone is None or gone(unit)):
            return
        if time.monotonic() >= deadline:
            raise ClientError(
                f"{state.title} is stopped, but a process of it still has a GPU open after {timeout:g} s."
                " End that process, which gpu_holder_info names, and run again."
                if ended
                else f"{state.title} is still stopping after {timeout:g} s. Look into {_log_of(unit)}.",
                unit=unit,
            )
        time.sleep(_POLL_SECONDS)
        _begin(watch, f"wait until {unit} has ended", timeout)


def start_all(
    units: t.Sequence[str], manager: Manager, timeout: float, watch: t.Optional[Watch] = None
) -> dict[str, str]:
    """Start clients again, one after the other, in reverse of the order in which they were stopped.

    Every one is tried, whatever becomes of the others. Returns those that do not run, each with the reason. Never
    raises.
    """
    reasons = {}
    for unit in reversed(units):
        _begin(watch, f"start {unit}", timeout)
        try:
            _start(unit, manager, timeout)
        except MigError as error:
            reasons[unit] = str(error).rstrip(".")
    return reasons


def do_not_run_again(reasons: t.Mapping[str, str]) -> tuple[str, ...]:
    """A sentence for each client that ``start_all`` could not start, with what there is to do."""
    return tuple(
        f"{unit} ran before and does not run again: {reason}. Look into {_log_of(unit)}, and start it with"
        f" '{_start_by_hand(unit)}'."
        for unit, reason in reasons.items()
    )


def did_not_run(reasons: t.Mapping[str, str]) -> tuple[str, ...]:
    """A sentence for each client that did not run with a layout which is therefore taken back."""
    return tuple(
        f"{unit} does not run with it: {reason}. Look into {_log_of(unit)}." for unit, reason in reasons.items()
    )


def _start(unit: str, manager: Manager, timeout: float) -> None:
    """Raises ClientError with the reason why the unit does not run."""
    state = manager.state(unit)
    if state.active == "active":
        return
    if state.load != "loaded":
        raise ClientError(f"it is {_line(state.load)} now", unit=unit)
    problem = ""
    try:
        manager.start(unit, timeout)
    except ClientError as error:
        problem = f" ({str(error).rstrip('.')})"
    state = manager.state(unit)
    if problem or not _runs_or_has_run(state):
        result = f", {_line(state.result)}" if state.result not in ("", "success") else ""
        queued = ", and systemd has yet to start it" if state.queued else ""
        it = f"it ({state.name})" if state.name else "it"
        raise ClientError(f"{it} is {_line(state.active)}{result}{queued}{problem}", unit=unit)


def _log_of(client: str) -> str:
    """The command that shows what a client has said."""
    container = _CONTAINER.fullmatch(client)
    return f"'{container['runtime']} logs {container['id'][:12]}'" if container else f"'journalctl -u {client}'"


def _start_by_hand(client: str) -> str:
    container = _CONTAINER.fullmatch(client)
    return f"{container['runtime']} start {container['id'][:12]}" if container else f"systemctl start {client}"


def _runs_or_has_run(state: UnitState) -> bool:
    """Whether a unit that was started is up, is in systemd's queue, or has done its work and ended well."""
    return state.up or state.queued or (state.type == "oneshot" and state.result == "success")


def _begin(watch: t.Optional[Watch], what: str, timeout: float) -> None:
    if watch is not None:
        watch.begin(what, timeout + _SPARE_SECONDS)


# --- managers ------------------------------------------------------------------------------------------------------


class NoManager:
    """A host without a running systemd: there are no clients, so there is nothing to stop."""

    def state(self, unit: str) -> UnitState:
        return UnitState(unit, "not-found", "inactive", "dead")

    def stop(self, unit: str, timeout: float) -> None:  # noqa: ARG002
        raise self._none(unit)

    def start(self, unit: str, timeout: float) -> None:  # noqa: ARG002
        raise self._none(unit)

    def _none(self, unit: str) -> ClientError:
        return ClientError(f"{unit} is a unit of systemd, which does not run on this node.", unit=unit)


class Systemd:
    """The systemd of this host, asked through ``systemctl``.

    ``settle`` is for how many seconds a service has to stay up after its start, where systemd calls it started as soon
    as it has a process: those that cannot run end right after.
    """

    def __init__(self, settle: float = _SETTLE_SECONDS) -> None:
        self._settle = settle

    def state(self, unit: str) -> UnitState:
        late = f"systemd does not tell how {unit} is. See whether 'systemctl status' answers on this node."
        answer = _systemctl("show", f"--property={','.join(_PROPERTIES)}", "--", unit, late=late)
        values = dict(line.split("=", 1) for line in answer.out.splitlines() if "=" in line)
        if answer.code != 0 or not values.get("Id"):
            raise ClientError(f"systemctl cannot show {unit}: {_said(answer)}.", unit=unit)
        return UnitState(
            id=values["Id"],
            load=values.get("LoadState", ""),
            active=values.get("ActiveState", ""),
            sub=values.get("SubState", ""),
            main_pid=_number(values.get("MainPID", "")),
            result=values.get("Result", ""),
            type=values.get("Type", ""),
            transient=values.get("Transient") == "yes",
            restarts=_number(values.get("NRestarts", "")),
            queued=_number(values.get("Job", "")) != 0,
            dependents=tuple(dict.fromkeys(" ".join(values.get(name, "") for name in _STOPPED_ALONG).split())),
        )

    def stop(self, unit: str, timeout: float) -> None:
        look = f"Look into 'journalctl -u {unit}'."
        late = f"{unit} did not stop within {timeout:g} s. {look}"
        answer = _systemctl("stop", "--", unit, seconds=timeout, late=late)
        if answer.code != 0:
            raise ClientError(f"{unit} could not be stopped: {_said(answer)}. {look}", unit=unit)

    def start(self, unit: str, timeout: float) -> None:
        # A unit that is ordered after the one that we run in would wait for us, and we for it.
        booting = self.is_booting()
        options = ("--no-block",) if booting else ()
        # Otherwise one that could not run with another layout, and was restarted too often, is refused with this one.
        _systemctl("reset-failed", "--", unit)
        late = f"it did not start within {timeout:g} s"
        answer = _systemctl("start", *options, "--", unit, seconds=timeout, late=late)
        if answer.code != 0:
            raise ClientError(_said(answer), unit=unit)
        if not booting:
            self._stays_up(unit)

    def is_booting(self) -> bool:
        return _systemctl("is-system-running").out.strip() in ("initializing", "starting")

    def _stays_up(self, unit: str) -> None:
        """Raise ClientError for a service that ends, or is restarted by systemd, right after its start."""
        state = first = self.state(unit)
        deadline = time.monotonic() + self._settle
        while state.type in _STARTED_AT_ONCE:
            if state.active != "active" or state.restarts > first.restarts:
                raise ClientError("it ended right after its start", unit=unit)
            if time.monotonic() >= deadline:
                return
            time.sleep(_POLL_SECONDS)
            state = self.state(unit)


class Containers:
    """The containers of one runtime, asked through its client program, and only while its daemon runs.

    A call would have systemd start a daemon that does not run, and while the host boots that daemon may be waiting for
    us. So where no call may be made no container runs, and while the host boots a start is left to systemd.
    """

    def __init__(self, runtime: str, systemd: Systemd, settle: float) -> None:
        self._runtime = runtime
        self._unit = _RUNTIMES[runtime].unit
        self._systemd = systemd
        self._settle = settle

    def running(self, label: str) -> tuple[UnitState, ...]:
        """The containers that have this label, or this value of it, and run now."""
        if self._why_not():
            return ()
        answer = self._call("ps", "--quiet", "--no-trunc", "--filter", f"label={label}")
        if answer.code != 0:
            raise ClientError(f"'{self._runtime} ps' failed: {_said(answer)}.", unit="")
        clients = [f"{self._runtime}:{word}" for word in answer.out.split()]
        strange = [client for client in clients if not _CONTAINER.fullmatch(client)]
        if strange:
            raise ClientError(f"{self._runtime} lists {_quoted(strange[0])}, which is no id of a container.", unit="")
        states = self._inspect(clients) if clients else {}
        gone = UnitState("", "not-found", "inactive")
        # The order in which they were started is the runtime's own: the newest comes first, which is right for a stop.
        return tuple(state for client in clients if (state := states.get(client, gone)).up)

    def state(self, client: str) -> UnitState:
        if self._why_not():
            return UnitState(client, "loaded", "inactive", queued=self._systemd.is_booting())
        return self._inspect([client]).get(client, UnitState(client, "not-found", "inactive", "dead"))

    def stop(self, client: str, timeout: float) -> None:
        """The runtime ends a container that does not stop within the time, as systemd does with a service."""
        self._require_usable(client)
        look = f"Look into {_log_of(client)}."
        words = ("stop", "-t", str(max(1, round(timeout))), _id(client))
        late = f"{client} did not stop within {timeout:g} s. {look}"
        answer = self._call(*words, seconds=timeout + _ANSWER_SECONDS, late=late)
        if answer.code != 0:
            raise ClientError(f"{client} could not be stopped: {_said(answer)}. {look}", unit=client)

    def start(self, client: str, timeout: float) -> None:
        if self._systemd.is_booting():
            self._leave_to_systemd(client)
            return
        self._require_usable(client)
        answer = self._call("start", _id(client), seconds=timeout, late=f"it did not start within {timeout:g} s")
        if answer.code != 0:
            raise ClientError(_said(answer), unit=client)
        self._stays_up(client)

    def _why_not(self) -> str:
        """Why the client program must not be called now, or nothing."""
        if commands.find(self._runtime) is None:
            return f"{self._runtime} is not on this node"
        if self._systemd.is_booting():
            return "this node is still booting"
        active = self._systemd.state(self._unit).active if self._unit else "active"
        return "" if active == "active" else f"{self._unit} is {_line(active)}, and {self._runtime} would start it"

    def _require_usable(self, client: str) -> None:
        reason = self._why_not()
        if reason:
            raise ClientError(reason, unit=client)

    def _call(self, *words: str, seconds: t.Optional[float] = None, late: str = "") -> commands.Answer:
        silent = f"{self._runtime} does not answer '{words[0]}'. Look at it on this node."
        environment = _RUNTIMES[self._runtime].environment
        return _run(self._runtime, *words, seconds=seconds, late=late or silent, environment=environment)

    def _inspect(self, clients: t.Sequence[str]) -> dict[str, UnitState]:
        """What these containers are, by client; those that are not there are left out."""
        answer = self._call("container", "inspect", *map(_id, clients))
        try:
            shown = json.loads(answer.out or "[]")
            found = {f"{self._runtime}:{each['Id']}": _container_state(self._runtime, each) for each in shown}
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            why = f"{self._runtime} shows its containers in a way that is not known here."
            raise ClientError(why, unit="") from None
        if answer.code != 0 and "no such" not in answer.err.lower():
            raise ClientError(f"'{self._runtime} container inspect' failed: {_said(answer)}.", unit="")
        return found

    def _stays_up(self, client: str) -> None:
        """Raise ClientError for a container that ends, or is restarted by its runtime, right after its start."""
        state = first = self.state(client)
        deadline = time.monotonic() + self._settle
        while True:
            if state.active != "active" or state.restarts > first.restarts:
                raise ClientError("it ended right after its start", unit=client)
            if time.monotonic() >= deadline:
                return
            time.sleep(_POLL_SECONDS)
            state = self.state(client)

    def _leave_to_systemd(self, client: str) -> None:
        """Have systemd start it once the daemon runs; nothing here waits for that."""
        answer = _systemd_run(
            f"gpufleet-mig-start-{self._runtime}-{_id(client)[:12]}",
            f"Starts a container that a change of the GPUs stopped: {client}",
            _start_containers([client]),
            "--no-block",
            *_with_daemon(self._runtime, ()),
        )
        if answer.code != 0:
            raise ClientError(_said(answer), unit=client)


class Host:
    """All that a host with systemd has: its units, and the containers of the runtimes beside it."""

    def __init__(self, settle: float = _SETTLE_SECONDS) -> None:
        self._systemd = Systemd(settle)
        self._containers = {runtime: Containers(runtime, self._systemd, settle) for runtime in _RUNTIMES}

    def containers(self, runtime: str, label: str) -> tuple[UnitState, ...]:
        """The containers of a runtime that have a label and run now."""
        return self._containers[runtime].running(label)

    def state(self, unit: str) -> UnitState:
        return self._of(unit).state(unit)

    def stop(self, unit: str, timeout: float) -> None:
        self._of(unit).stop(unit, timeout)

    def start(self, unit: str, timeout: float) -> None:
        self._of(unit).start(unit, timeout)

    def _of(self, client: str) -> Manager:
        container = _CONTAINER.fullmatch(client)
        return self._containers[container["runtime"]] if container else self._systemd


def _id(client: str) -> str:
    return client.partition(":")[2]


def _container_state(runtime: str, shown: t.Mapping[str, t.Any]) -> UnitState:
    """One container of what ``inspect`` printed, which is the same for all runtimes in what is looked at here."""
    status = str(shown["State"]["Status"])
    labels = (shown.get("Config") or {}).get("Labels") or {}
    goes = (shown.get("HostConfig") or {}).get("AutoRemove") or labels.get(_GOES_LABEL) == "true"
    code = shown["State"].get("ExitCode") or 0
    obstacle = ""
    if goes:
        obstacle = "is removed when it stops (--rm), so that it could not be started again"
    elif status == "paused":
        obstacle = "is paused, and would not be afterwards"
    elif labels.get(_RUN_BY_LABEL):
        obstacle = f"is run by the unit {_quoted(labels[_RUN_BY_LABEL])}, which is to be named instead"
    return UnitState(
        id=f"{runtime}:{shown['Id']}",
        load="loaded",
        active=_ACTIVE_OF_STATUS.get(status, status),
        sub=status,
        result=f"exit code {code}" if code else "",
        restarts=int(shown.get("RestartCount") or 0),
        name=_line(str(shown.get("Name") or "").lstrip("/")),
        obstacle=obstacle,
    )


# --- what outlives a change ----------------------------------------------------------------------------------------


def arm(places: Places, txid: str, seconds: float, units: t.Sequence[str], manager: Manager) -> str:
    """Have systemd start ``units`` (in stop order) in so many seconds, unless ``disarm`` comes before.

    It is for the case that nobody is left who starts them, so it first waits until nobody holds the lock of a change.
    Containers have a timer of their own for each runtime. Returns a sentence if that could not be set up, else nothing.
    Without systemd there is no client either.
    """
    if not isinstance(manager, (Systemd, Host)):
        return ""
    owners = {each: found["runtime"] if (found := _CONTAINER.fullmatch(each)) else "" for each in units}
    sentences = []
    for runtime in ("", *_RUNTIMES):
        own = [each for each in units if owners[each] == runtime]
        if own:
            sentences.append(_set_timer(places, txid, seconds, runtime, own, units))
    return " ".join(filter(None, sentences))


def _set_timer(
    places: Places, txid: str, seconds: float, runtime: str, own: t.Sequence[str], stopped: t.Collection[str]
) -> str:
    """Set the timer that starts ``own`` of what was stopped: containers of this runtime, or units where it is empty."""
    try:
        start = _start_containers(own) if runtime else _start_units(own)
        answer = _systemd_run(
            f"{_dead_man(txid)}-{runtime}" if runtime else _dead_man(txid),
            f"Starts what the change {txid} of the GPUs stopped, as recorded in {places.state}",
            # What a container leaves running must not keep the lock.
            (_found("flock"), "--close", f"{places.run}/lock", *start),
            f"--on-active={max(1, round(seconds))}s",
            "--timer-property=AccuracySec=1s",
            *(_with_daemon(runtime, stopped) if runtime else ()),
        )
        problem = _said(answer) if answer.code != 0 else ""
    except ClientError as error:
        problem = str(error).rstrip(".")
    return f"No timer could be set that starts the clients if this change breaks off: {problem}." if problem else ""


def _systemd_run(unit: str, description: str, words: t.Sequence[str], *options: str) -> commands.Answer:
    """Have systemd run a command as a unit of its own."""
    return _run(
        "systemd-run",
        "--quiet",
        "--no-ask-password",
        f"--unit={unit}",
        f"--description={description}",
        *options,
        "--",
        # systemd replaces variables in arguments.
        *(word.replace("$", "$$") for word in words),
    )


def _start_units(units: t.Sequence[str]) -> tuple[str, ...]:
    return (_found("systemctl"), "--no-block", "--no-ask-password", "start", "--", *reversed(units))


def _start_containers(clients: t.Sequence[str]) -> tuple[str, ...]:
    """The command that starts containers of one runtime, and that a runtime which does not answer does not hold up."""
    runtime = clients[0].partition(":")[0]
    end = (_found("timeout"), f"--kill-after={round(_ANSWER_SECONDS)}", str(_START_SECONDS))
    return (*end, _found(runtime), "start", *map(_id, reversed(clients)))


def _with_daemon(runtime: str, stopped: t.Collection[str]) -> tuple[str, ...]:
    """Options for a unit that calls a runtime: it waits for the daemon, which it starts only if we stopped it."""
    unit, environment = _RUNTIMES[runtime]
    needs = "Requires" if unit in stopped else "Requisite"
    return (
        *((f"--property={needs}={unit}", f"--property=After={unit}") if unit else ()),
        *(f"--setenv={name}={value}" for name, value in environment.items()),
    )


def disarm(txid: str, root: str = "/") -> str:
    """Take back what ``arm`` set up, if it did, also while it waits for the lock. Returns a sentence if that failed."""
    if not _systemd_runs(root):
        return ""
    # Of those that are there: a unit that is not makes a stop by its name fail.
    units = f"{_dead_man(txid)}*"
    try:
        answer = _systemctl("stop", "--", units)
        problem = _said(answer) if answer.code != 0 else ""
    except ClientError as error:
        problem = str(error).rstrip(".")
    by_hand = f"\"systemctl stop '{units}'\""
    return f"The timer that starts clients could not be stopped: {problem}. Do it with {by_hand}." if problem else ""


def _dead_man(txid: str) -> str:
    return f"gpufleet-mig-deadman-{txid}"


def leave_session(txid: str, watch: t.Optional[Watch] = None, root: str = "/") -> str:
    """Move this process out of the login that started it, into a scope of its own: logins end, and take all with them.

    Returns a sentence if that failed. Nothing is done where this process is in no login.
    """
    if not _systemd_runs(root) or not _in_a_login(root):
        return ""
    pid = os.getpid()
    if watch is not None:
        watch.begin("leave the login session", _SPARE_SECONDS)
    # The properties are an array of (name, variant): its length, then for each its name, type and value.
    properties = (
        *("PIDs", "au", "1", str(pid)),
        *("Slice", "s", "system.slice"),
        *("Description", "s", f"Change {txid} of the GPUs"),
    )
    try:
        answer = _run(
            *("busctl", "--system", "call", "org.freedesktop.systemd1", "/org/freedesktop/systemd1"),
            *("org.freedesktop.systemd1.Manager", "StartTransientUnit", "ssa(sv)a(sa(sv))"),
            *(f"gpufleet-mig-{txid}-{pid}.scope", "fail", "3", *properties, "0"),
        )
        problem = _said(answer) if answer.code != 0 else ""
    except ClientError as error:
        problem = str(error).rstrip(".")
    deadline = time.monotonic() + _ANSWER_SECONDS
    while not problem and _in_a_login(root):
        if time.monotonic() >= deadline:
            problem = "systemd accepted it and did not do it"
        time.sleep(_POLL_SECONDS)
    return f"This change still belongs to the login that started it, and may end with it: {problem}." if problem else ""


def _in_a_login(root: str) -> bool:
    return any(
        name == "user.slice" or (name.startswith("session-") and name.endswith(".scope"))
        for path in _control_groups(root)
        for name in path.split("/")
    )


def _control_groups(root: str) -> list[str]:
    """The paths that systemd gave this process: of version 2, and of its own hierarchy of version 1."""
    try:
        with open(os.path.join(root, "proc/self/cgroup"), encoding="utf-8", errors="replace") as file:
            lines = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        return []
    return [line[2] for line in lines if len(line) == 3 and line[1] in ("", "name=systemd")]


def _systemd_runs(root: str) -> bool:
    """The test of sd_booted(3)."""
    return os.path.isdir(os.path.join(root, "run/systemd/system"))


# --- commands of the host ------------------------------------------------------------------------------------------


def _said(answer: commands.Answer) -> str:
    """What a command printed, as one line that can be shown."""
    return _line(answer.err or answer.out).rstrip(".") or f"it ended with {answer.code} and said nothing"


def _systemctl(verb: str, *words: str, seconds: t.Optional[float] = None, late: str = "") -> commands.Answer:
    return _run("systemctl", "--no-pager", "--no-ask-password", verb, *words, seconds=seconds, late=late)


def _run(
    program: str,
    *words: str,
    seconds: t.Optional[float] = None,
    late: str = "",
    environment: t.Mapping[str, str] = MappingProxyType({}),
) -> commands.Answer:
    """Run a command. Raises ClientError when it is missing or not back in time; ``late`` is what to say then."""
    allowed = _ANSWER_SECONDS if seconds is None else seconds
    found = _found(program)
    try:
        return commands.run((found, *words), allowed, environment, patience=1.0)
    except (OSError, ValueError) as error:
        raise ClientError(f"{program} could not be run: {error}.") from error
    except commands.Late:
        raise ClientError(late or f"systemd did not answer {program} within {allowed:g} s.") from None


def _found(program: str) -> str:
    """The absolute path of a program."""
    found = commands.find(program)
    if found is None:
        raise ClientError(f"{program} was not found on this node, although systemd runs. Install it.")
    return found


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else 0


def _line(text: str) -> str:
    """Text from outside as one line that can be shown, and not too long a one."""
    line = "; ".join(part.strip() for part in text.splitlines() if part.strip())
    return printable(line if len(line) <= _LONGEST_QUOTE else f"{line[:_LONGEST_QUOTE]}...")


def _quoted(value: t.Any) -> str:
    return f"'{printable(str(value)[:_LONGEST_NAME])}'"
