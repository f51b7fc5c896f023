# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The controller's half of mig_runtime: brings the NVML binding where a node has none."""

from __future__ import annotations

from ansible_collections.gpufleet.mig.plugins.plugin_utils._action import MigAction


class ActionModule(MigAction):
    """Nothing beyond what every action of this collection does."""
