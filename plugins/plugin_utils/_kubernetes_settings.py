# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Whether the settings of a host for Kubernetes can be used: asked before any host is touched, not when one is drained.

This file is private to the collection gpufleet.mig and may change at any time. What a survey left open is an empty text
and means the default.
"""

from __future__ import annotations

import math
import typing as t

from ansible.errors import AnsibleFilterError

from ansible_collections.gpufleet.mig.plugins.filter.survey import survey_bool

_CHOICES = {"kubernetes_pods": ("all", "gpu")}
# A number of seconds that it may be, as an example. Kubernetes knows only whole ones for the first.
_WHOLE = "kubernetes_grace_period"
_SECONDS = {
    _WHOLE: 60,
    "kubernetes_drain_timeout": 600,
    "kubernetes_ready_timeout": 300,
    "kubernetes_manager_timeout": 900,
    "kubernetes_config_map_delay": 150,
    "kubernetes_label_stays": 10,
}
_FLAGS = ("kubernetes_force", "kubernetes_delete_emptydir_data", "kubernetes_set_policy")
NAMES = (*_CHOICES, *_SECONDS, *_FLAGS)


def wrong(settings: t.Mapping[str, t.Any]) -> list[str]:
    """A sentence for each of these variables that has a value which it cannot have."""
    given = {name: value for name, value in settings.items() if value is not None and str(value).strip()}
    return [
        *(
            f"{name} is {_shown(given[name])}; it must be one of {', '.join(choices)}."
            for name, choices in _CHOICES.items()
            if name in given and str(given[name]) not in choices
        ),
        *(
            f"{name} is {_shown(given[name])}; give a {'whole ' if name == _WHOLE else ''}number of seconds, such as"
            f" {example}."
            for name, example in _SECONDS.items()
            if name in given and not _is_a_number(given[name], whole=name == _WHOLE)
        ),
        *(
            f"{name} is {_shown(given[name])}; it must be true or false."
            for name in _FLAGS
            if name in given and not _is_a_flag(given[name])
        ),
    ]


def of_a_drain(settings: t.Mapping[str, t.Any]) -> dict[str, bool]:
    """Which pods a drain has leave, as ``_cordon.leaving`` takes it. What cannot be used counts as the default."""
    return {
        "only_gpu": settings.get("kubernetes_pods") == "gpu",
        "force": _says_yes(settings.get("kubernetes_force")),
        "delete_emptydir_data": _says_yes(settings.get("kubernetes_delete_emptydir_data")),
    }


def _says_yes(value: t.Any) -> bool:
    return _is_a_flag(value) and survey_bool(value)


def _is_a_number(value: t.Any, whole: bool) -> bool:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
        return 0 <= number < math.inf and not (whole and str(int(number)) != str(value).strip())
    except (TypeError, ValueError):
        return False


def _is_a_flag(value: t.Any) -> bool:
    try:
        survey_bool(value)
    except AnsibleFilterError:
        return False
    return True


def _shown(value: t.Any) -> str:
    return repr(str(value)[:80])
