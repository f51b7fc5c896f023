# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The controller's half of mig_guard_info: text becomes lists, its clock counts, and the NVML binding is brought."""

from __future__ import annotations

import datetime
import typing as t

from ansible_collections.gpufleet.mig.plugins.plugin_utils._action import MigAction, list_of


class ActionModule(MigAction):
    """``owner,boot`` in ``ignore`` and ``kinds`` means what a list of them means."""

    def arguments(self, given: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
        """As every action of this collection, and lists out of text. Raises BadInput."""
        arguments = super().arguments(given)
        arguments.setdefault("now", datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"))
        return {name: list_of(value) if name in ("ignore", "kinds") else value for name, value in arguments.items()}
