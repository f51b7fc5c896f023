# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Writes down what an image wants of GPUs that it has not met.

This file is private to the collection gpufleet.mig and may change at any time.
"""

from __future__ import annotations

import json
import os
import typing as t

from .ansible_bridge import Result
from .engine import state, wishes
from .engine.model import WishError

if t.TYPE_CHECKING:
    from ansible.module_utils.basic import AnsibleModule

_SYSTEMD = "/run/systemd/system"
_DRIVER = "/proc/driver/nvidia/version"

ARGUMENTS: dict[str, t.Any] = {
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    "label": {"type": "str"},
    "label_by_gpu": {"type": "dict"},
    "configs": {"type": "dict"},
    "config_file": {"type": "str"},
    "unlisted": {"type": "str", "choices": ["ignore", "disable", "fail"], "default": "ignore"},
    "allow_empty": {"type": "bool", "default": False},
    "expected_gpus": {"type": "int"},
    "state_dir": {"type": "path"},
}


def write(module: AnsibleModule) -> Result:
    """Bring wish.json to what the task says."""
    places = state.places(module.params["state_dir"])
    before = state.read_wish(places)
    after = _wish(module) if module.params["state"] == "present" else None
    if after is not None:
        _require_image(module, places)
    changed = _said(before) != _said(after)
    if changed and not module.check_mode:
        if after is None:
            state.clear_wish(places)
        else:
            state.write_wish(places, after)
    path = os.path.join(places.state, "wish.json")
    return {
        "changed": changed,
        "file": path,
        "wish": _said(after),
        "diff": {"before_header": path, "after_header": path, "before": _lines(before), "after": _lines(after)},
        "msg": _sentence(after),
    }


def _require_image(module: AnsibleModule, places: state.Places) -> None:
    """Refuse a wish that no boot would follow, and warn of one that a machine follows which is no image."""
    if state.read_wanted(places) is not None:
        raise WishError(
            f"{os.path.join(places.state, 'wanted.json')} is there: this host remembers the layout that was proven here"
            " and would never follow a wish. Give it another layout with mig_config (or the role mig); where this is to"
            " become an image, remove that file first."
        )
    if places.state == state.DEFAULT_STATE_DIR and all(os.path.exists(path) for path in (_SYSTEMD, _DRIVER)):
        module.warn(
            "The driver and systemd run here, so this is a machine and no image: its next boot gives its GPUs what is"
            " wished for. Divide them now with mig_config (or the role mig), which looks who uses them."
        )


def _wish(module: AnsibleModule) -> state.Wish:
    """What the task says, checked as far as that goes without a GPU. Raises WishError."""
    params = module.params
    if not params["label"] and not params["label_by_gpu"]:
        raise WishError(
            "Nothing is wished for: give label, label_by_gpu or both, in the playbooks mig_profile or"
            " mig_profile_by_gpu; or state absent."
        )
    wish = state.Wish(
        written=state.utc_now(),
        label=params["label"] or "",
        label_by_gpu=params["label_by_gpu"] or {},
        configs=params["configs"] or {},
        unlisted=params["unlisted"],
        allow_empty=params["allow_empty"],
        expected_gpus=params["expected_gpus"],
    )
    if wish.expected_gpus is not None and wish.expected_gpus < 0:
        raise WishError(f"expected_gpus is {wish.expected_gpus}; it is a number of GPUs.")
    wishes.check(wish)
    return wish


def _said(wish: t.Optional[state.Wish]) -> t.Optional[Result]:
    """All but the time."""
    return None if wish is None else {key: value for key, value in wish._asdict().items() if key != "written"}


def _lines(wish: t.Optional[state.Wish]) -> str:
    return "" if wish is None else json.dumps(_said(wish), indent=1, sort_keys=True) + "\n"


def _sentence(wish: t.Optional[state.Wish]) -> str:
    if wish is None:
        return "The first boot wants nothing of its GPUs."
    kinds = f"{len(wish.label_by_gpu)} labels by kind of GPU" if len(wish.label_by_gpu) != 1 else "a label for one kind"
    parts = [*([f"label {wish.label}"] if wish.label else []), *([kinds] if wish.label_by_gpu else [])]
    return f"The first boot gives its GPUs what is wished for: {' and '.join(parts)}."
