# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The product as an operator meets it: the module mig_config, with everything behind it, in a process of its own.

This is the only file of the campaign that calls the product. A stand-in for AnsibleModule takes what the module says;
the judge gets it as plain data:

    how            converged: read, compared, nothing to do | refused: an error while nothing was written | outcome
    message        of a failure, the sentence for people, with error and call of the driver when it has them
    changed, altered, rolled_back, missing, reset_required, reboot_required, recovery, recovered, resumed, stopped,
    not_started, warnings
"""

from __future__ import annotations

import contextlib
import os
import syslog
import typing as t

import pynvml

from ansible_collections.gpufleet.mig.plugins.module_utils import node_change
from ansible_collections.gpufleet.mig.plugins.module_utils.engine import (
    clients,
    foresight,
    holders,
    kinds,
    layouts,
    model,
    state,
    worker,
)
from ansible_collections.gpufleet.mig.plugins.modules import mig_config
from ansible_collections.gpufleet.mig.tests.torture.traps import Traps
from ansible_collections.gpufleet.mig.tests.torture.units import Units

Result = dict[str, t.Any]

# All that the module imports when it needs it. A fork that has it already is a thousand times as quick.
LOADED = (foresight, kinds, layouts, node_change, worker)


class Module:
    """What mig_config knows of an AnsibleModule. What nobody said has the default that the module declares."""

    said: t.ClassVar[Result] = {}
    ran: t.ClassVar[Module]

    def __init__(self, argument_spec: Result, **rules: t.Any) -> None:
        unsaid = {name: option.get("default") for name, option in argument_spec.items()}
        self.params = {**unsaid, **self.said}
        self.check_mode = False
        Module.ran = self
        self.warnings: list[str] = []
        self.answer: Result = {}

    def warn(self, sentence: str) -> None:
        self.warnings.append(sentence)

    def exit_json(self, **answer: t.Any) -> t.NoReturn:
        self.answer = answer
        raise SystemExit(0)

    def fail_json(self, **answer: t.Any) -> t.NoReturn:
        self.answer = answer
        raise SystemExit(1)


def prepare(boot_id: str, units: Units, opened: t.Callable[[], t.Sequence[dict[str, t.Any]]], traps: Traps) -> None:
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
    mig_config.AnsibleModule = Module  # type: ignore[assignment,misc]
    state.boot_id = lambda: boot_id
    holders.scan = scan
    holders.survey = lambda watch=None, root="/": holders.Survey(scan())
    # systemd is not there, and is not what is tested here; neither is the log of this computer.
    clients.manager_of = lambda root="/": units
    clients.arm = lambda *arguments, **options: ""
    clients.disarm = lambda *arguments, **options: ""
    clients.leave_session = lambda *arguments, **options: ""
    syslog.syslog = lambda *arguments: None  # type: ignore[assignment]


def run(places: state.Places, ask: t.Optional[Result], ordered: Result) -> Result:
    """What mig_config does with these options; ``ask`` is None to end an unfinished change and do nothing else."""
    os.environ["SUDO_USER"] = ordered["who"]
    asked = dict(ask or {})
    asked["gpus"] = [str(gpu) for gpu in asked.get("gpus", ["all"])]
    options = {key: value for key, value in ordered.items() if key != "who"}
    options["clients"] = [{"unit": name, "for": kinds_} for name, kinds_ in ordered["clients"]]
    Module.said = {**options, **asked, "state_dir": places.state}
    with contextlib.suppress(SystemExit):
        mig_config.main()
    return as_data(Module.ran.answer, Module.ran.warnings)


def as_data(answer: Result, warnings: list[str]) -> Result:
    failed = bool(answer.get("failed"))
    of_units = answer.get("clients") or {}
    common = {
        "message": answer["msg"] if failed else "",
        "call": answer.get("call"),
        "error": answer.get("error"),
        "changed": answer["changed"],
        "altered": answer["altered"],
        "warnings": warnings,
    }
    if failed and "txid" not in answer:
        return {"how": "refused", **common}
    if answer.get("converged"):
        return {"how": "converged", **common}
    return {
        "how": "outcome",
        **common,
        "rolled_back": answer.get("rolled_back"),
        "missing": answer.get("missing", []),
        "reset_required": answer.get("reset_required", []),
        "reboot_required": answer.get("reboot_required", []),
        "pending_left": answer.get("pending_left", []),
        "recovery": (answer.get("recovery") or {}).get("path", ""),
        "recovered": (answer.get("recovered") or {}).get("direction", ""),
        "resumed": bool(answer.get("resumed")),
        "stopped": of_units.get("stopped", []),
        "not_started": of_units.get("not_started", []),
        "said": answer["msg"],
    }
