# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What mig_cdi answers: the node is read, and containers are told of what is on it.

This file is private to the collection gpufleet.mig and may change at any time.
"""

from __future__ import annotations

import os
import typing as t

from . import ansible_bridge as bridge
from .engine import cdi, reading, state
from .engine.model import Node, Orders, WishError
from .engine.profiles import counted

if t.TYPE_CHECKING:
    from ansible.module_utils.basic import AnsibleModule

_WHEN = ["auto", "always", "never"]

ARGUMENTS: dict[str, t.Any] = {
    **bridge.COMMON_ARGUMENTS,
    **bridge.READ_ARGUMENTS,
    "spec": {"type": "path", "default": cdi.SPEC},
    "management_spec": {"type": "path", "default": cdi.MANAGEMENT_SPEC},
    "spec_dirs": {"type": "list", "elements": "path", "default": list(cdi.FOLDERS)},
    "unit": {"type": "str", "choices": _WHEN, "default": "auto"},
    "management": {"type": "str", "choices": _WHEN, "default": "auto"},
    "verify_only": {"type": "bool", "default": False},
    "root": {"type": "path", "default": "/"},
}


def make(module: AnsibleModule) -> bridge.Result:
    """Refresh, or only prove, what containers are told."""
    settings = _settings(module.params)
    timeout = bridge.seconds(module.params, "operation_timeout")
    _require_nobody_at_work(state.places(module.params["state_dir"]))
    node = reading.observe(bridge.opener(module.params), Orders(operation_timeout=timeout))
    if module.params["verify_only"]:
        return _proven(node, settings)
    outcome = cdi.refresh(node, settings, module.check_mode)
    return {
        "changed": outcome.changed,
        "empty": outcome.empty,
        "devices": list(outcome.devices),
        "device_files": list(outcome.missing),
        "written": list(outcome.written),
        "removed": list(outcome.removed),
        "unit": outcome.unit,
        "msg": outcome.msg,
    }


def _require_nobody_at_work(places: state.Places) -> None:
    """Raise LockedError while a change is going on, of which half a layout would be told."""
    progress = state.in_progress(places)
    if progress is not None and progress.get("running"):
        raise state.LockedError(
            f"{progress.get('who') or 'Another run'} is changing this node ({progress.get('what') or 'unknown'}), so"
            " containers are told of nothing now. Run again when it has ended.",
            in_progress=progress,
        )


def _settings(params: bridge.Params) -> cdi.Settings:
    """Where things are. Raises WishError."""
    paths = {"spec": [params["spec"]], "management_spec": [params["management_spec"]], "spec_dirs": params["spec_dirs"]}
    for option, values in paths.items():
        for value in values:
            if not os.path.isabs(value):
                raise WishError(f"{option} has {value!r}; give absolute paths of the node.")
    for option in ("spec", "management_spec"):
        folder, extension = os.path.dirname(params[option]), os.path.splitext(params[option])[1]
        if folder not in params["spec_dirs"] or extension not in (".yaml", ".json"):
            raise WishError(
                f"{option} is {params[option]!r}; container engines read files .yaml and .json in"
                f" {' and '.join(params['spec_dirs'])} only. Choose one there, or name its folder in spec_dirs."
            )
    return cdi.Settings(
        spec=params["spec"],
        management_spec=params["management_spec"],
        folders=tuple(params["spec_dirs"]),
        unit=params["unit"],
        management=params["management"],
        root=params["root"],
    )


def _proven(node: Node, settings: cdi.Settings) -> bridge.Result:
    cdi.require_whole(node)
    settings = cdi.located(settings)
    cdi.prove(node, settings)
    devices = [device.uuid for device in cdi.devices_of(node, settings.root) if device.mig]
    return {
        "changed": False,
        "empty": not cdi.devices_of(node, settings.root),
        "devices": devices,
        "device_files": [],
        "written": [],
        "removed": [],
        "unit": cdi.uses_unit(settings),
        "msg": f"Containers are told of what there is: {counted(len(devices), 'MIG device')}.",
    }
