# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What mig_guard_info answers: all guards asked once, and what stops a change told apart from what is passed over.

This file is private to the collection gpufleet.mig and may change at any time.
"""

from __future__ import annotations

import datetime
import functools
import typing as t

from . import ansible_bridge as bridge
from .engine import bounded, guards
from .engine.model import MigError, WishError

if t.TYPE_CHECKING:
    from ansible.module_utils.basic import AnsibleModule

ARGUMENTS: dict[str, t.Any] = {
    **bridge.COMMON_ARGUMENTS,
    **bridge.READ_ARGUMENTS,
    "gpus": {"type": "list", "elements": "str", "default": ["all"]},
    "kinds": {"type": "list", "elements": "str", "choices": list(guards.KINDS), "default": list(guards.KINDS)},
    "ignore": {"type": "list", "elements": "str", "choices": list(guards.NAMES), "default": []},
    "deadline": {"type": "str"},
    "now": {"type": "str"},
    "needs": {"type": "float", "default": 0},
}


def look(module: AnsibleModule) -> bridge.Result:
    """What speaks against a change. Nothing that is found is a failure; what was asked in a wrong way is one."""
    params = module.params
    if not params["kinds"]:
        raise WishError(f"kinds is empty; say what is about to change: {', '.join(guards.KINDS)}.")
    needs = bridge.seconds(params, "needs", least=0)
    deadline, now = (guards.parse_time(name, params[name]) if params[name] else None for name in ("deadline", "now"))
    about: bridge.Result = {"changed": False, "available": True}
    sight, report = None, guards.NOTHING
    try:
        sight = _read(params)
        report += guards.on_gpus(sight, params["kinds"])
    except WishError:
        raise
    except MigError as error:
        about.update(bridge.unavailable(error))
        report += guards.without_nvml(error)
    report += _on_host(params, sight)
    if deadline is not None:
        report += guards.on_deadline(deadline, needs, now or datetime.datetime.now(datetime.timezone.utc))
    return {**about, **_in_words(module, report)}


def _read(params: bridge.Params) -> guards.Sight:
    read = functools.partial(guards.read, bridge.opener(params), gpus=params["gpus"])
    return bounded.ask(read, bridge.seconds(params, "operation_timeout"))


def _on_host(params: bridge.Params, sight: t.Optional[guards.Sight]) -> guards.Report:
    """In a child too: reading /proc of a process that is stuck in the kernel can hang."""
    look = functools.partial(guards.on_host, params["kinds"], sight)
    try:
        return bounded.ask(look, bridge.seconds(params, "operation_timeout"))
    except bounded.Unfinished as error:
        return guards.Report((), (f"What services and processes of this node have to say cannot be told: {error}",))


def _in_words(module: AnsibleModule, report: guards.Report) -> bridge.Result:
    findings = [
        {
            "name": found.name,
            "msg": found.sentence,
            "units": list(found.units),
            "labels": list(found.labels),
            "advice": found.advice,
            "ignored": found.name in module.params["ignore"],
        }
        for found in report.findings
    ]
    for found in findings:
        if found["ignored"] or found["advice"]:
            module.warn(found["msg"])
    for sentence in report.unknown:
        module.warn(sentence)
    return {
        "findings": findings,
        "stop": [found["msg"] for found in findings if not found["ignored"] and not found["advice"]],
        "unknown": list(report.unknown),
    }
