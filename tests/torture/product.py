# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The product as a module would run it, in a process that is a module's as far as the engine can tell.

This is the only file of the campaign that calls the engine. What it returns is plain data:

    how            converged: read, compared, nothing to do | refused: an error while nothing was written | outcome
    message        the sentence for people, error and call of the driver when it has them, details
    changed, altered, rolled_back, missing, reset_required, reboot_required, recovery, recovered, stopped, not_started
"""

from __future__ import annotations

import contextlib
import functools
import syslog
import typing as t

import pynvml

from ansible_collections.gpufleet.mig.plugins.module_utils.engine import (
    clients,
    compare,
    configs,
    driver,
    holders,
    layouts,
    model,
    reading,
    state,
    worker,
)
from ansible_collections.gpufleet.mig.tests.torture.traps import Traps
from ansible_collections.gpufleet.mig.tests.torture.units import Units

Result = dict[str, t.Any]


def prepare(boot_id: str, opened: t.Callable[[], t.Sequence[dict[str, t.Any]]], traps: Traps) -> None:
    """Make this process see the node of the case and not the computer that it runs on.

    ``opened`` says who has a device file open: {pid, name, gpu, gi, ci, unit} each.
    """

    def scan(watch: t.Any = None, root: str = "/") -> tuple[holders.OpenDevice, ...]:
        return tuple(
            holders.OpenDevice(
                pid=each["pid"],
                name=each["name"],
                path=f"/dev/nvidia{each['gpu']}" if each["gi"] is None else "/dev/nvidia-caps/nvidia-cap0",
                minor=each["gpu"],
                gi_id=each["gi"],
                ci_id=each["ci"],
                owner=model.Owner("unit", each["unit"]) if each["unit"] else model.Owner(),
            )
            for each in opened()
        )

    traps.set(pynvml)
    state.boot_id = lambda: boot_id
    holders.scan = scan
    holders.survey = lambda watch=None, root="/": holders.Survey(scan())
    # systemd is not there, and is not what is tested here; neither is the log of this computer.
    clients.arm = lambda *arguments, **options: ""
    clients.disarm = lambda *arguments, **options: ""
    clients.leave_session = lambda *arguments, **options: ""
    syslog.syslog = lambda *arguments: None  # type: ignore[assignment]


def run(places: state.Places, units: Units, ask: t.Optional[dict[str, t.Any]], ordered: dict[str, t.Any]) -> Result:
    """What mig_config does with these options; ``ask`` is None to end an unfinished change and do nothing else."""
    orders = model.Orders(
        **{
            **ordered,
            "clients": tuple(model.Client(name, frozenset(kinds)) for name, kinds in ordered.get("clients", ())),
            "reservations": tuple(ordered.get("reservations", ())),
        }
    )
    opener = functools.partial(driver.Session, pynvml)
    resolve = None if ask is None else functools.partial(resolved, ask=ask)
    try:
        node = reading.observe(opener, orders)
        if is_converged(places, node, resolve):
            return {"how": "converged", "message": "as wanted", "changed": False, "altered": False}
        job = model.Job(resolve, orders, what=f"torture {ask and ask.get('label') or 'layout'}")
        outcome = worker.change(places, opener, job, units)
        with contextlib.suppress(model.MigError):
            state.clear_result(places)  # as whoever has told somebody
    except model.MigError as error:
        altered = bool(error.details.get("altered"))
        return {"how": "refused", "message": str(error), **cause(error), "changed": False, "altered": altered}
    return as_data(outcome)


def resolved(node: model.Node, ask: dict[str, t.Any]) -> model.Wanted:
    options = dict(ask)
    if "layout" in options:
        return layouts.resolve(node, options.pop("layout"), **options)
    return configs.resolve(node, **options)


def is_converged(places: state.Places, node: model.Node, resolve: t.Any) -> bool:
    """As wanted, nothing unfinished, remembered for the next boot, nothing undelivered: the quiet case."""
    if state.in_progress(places) is not None:
        return False
    if resolve is None:
        return True
    wanted = resolve(node)
    undelivered = state.read_result(places)
    return bool(
        compare.verdict(node, wanted).verdict == compare.MATCH
        and (not wanted.wishes or state.persisted_verdict(state.read_wanted(places), node, wanted.wishes) == "match")
        and (undelivered is None or undelivered.get("wish") != worker.digest(wanted))
    )


def cause(error: model.MigError) -> Result:
    details = {key: value for key, value in error.details.items() if isinstance(value, (str, int, bool, type(None)))}
    return {"call": error.details.get("call"), "error": error.details.get("error"), "details": details}


def as_data(outcome: t.Any) -> Result:
    failure = {} if outcome.error is None else cause(outcome.error)
    return {
        "how": "outcome",
        "message": "" if outcome.error is None else str(outcome.error),
        **failure,
        "changed": outcome.changed,
        "altered": outcome.altered,
        "rolled_back": outcome.rolled_back,
        "missing": list(outcome.missing),
        "reset_required": list(outcome.reset_required),
        "reboot_required": list(outcome.reboot_required),
        "pending_left": list(outcome.pending_left),
        "recovery": outcome.recovery,
        "recovered": outcome.recovered,
        "resumed": outcome.resumed is not None,
        "stopped": list(outcome.stopped),
        "not_started": list(outcome.not_started),
        "warnings": list(outcome.warnings),
    }
