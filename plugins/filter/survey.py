# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Filters for values that may be text, as a survey or ``-e`` sends them."""

from __future__ import annotations

import typing as t

from ansible.errors import AnsibleFilterError
from ansible.module_utils.parsing.convert_bool import boolean

from ansible_collections.gpufleet.mig.plugins.plugin_utils import _bounded_yaml
from ansible_collections.gpufleet.mig.plugins.plugin_utils._action import list_of


def survey_list(value: t.Any, default: t.Iterable[t.Any] = ()) -> list[t.Any]:
    """The list that a value means; an empty text means ``default``.

    Text that is no list comes back in items all the same: whoever uses an item can say what is wrong with it in its own
    words, and a filter could only break off.
    """
    if value is None or (isinstance(value, str) and not value.strip()):
        return list(default)
    if isinstance(value, str):
        try:
            data = _bounded_yaml.parse(value)
        except _bounded_yaml.YamlProblem:
            data = value
        value = data if isinstance(data, (list, dict)) else value
    items = list_of(value)
    return list(items) if isinstance(items, (list, tuple)) else [items]


def survey_bool(value: t.Any, default: bool = False) -> bool:
    """Whether a value says yes; an empty text means ``default``. Raises for a word that says neither.

    Ansible's own filter makes no of such a word, and so of a typing error in a word that should have said yes.
    """
    if value is None or (isinstance(value, str) and not value.strip()):
        return default
    try:
        return bool(boolean(value))
    except TypeError:
        raise AnsibleFilterError(f"{value!r} says neither yes nor no; give true or false.") from None


class FilterModule:
    """The filters by their names."""

    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        """What Ansible asks for."""
        return {"survey_bool": survey_bool, "survey_list": survey_list}
