# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The controller's half of mig_cdi: lists out of text, and the NVML binding for a node that has none."""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.mig.plugins.plugin_utils._action import MigAction, list_of


class ActionModule(MigAction):
    """``/etc/cdi,/var/run/cdi`` in ``spec_dirs`` means what a list of them means."""

    def arguments(self, given: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
        """As every action of this collection, and a list out of text. Raises BadInput."""
        arguments = super().arguments(given)
        return {name: list_of(value) if name == "spec_dirs" else value for name, value in arguments.items()}
