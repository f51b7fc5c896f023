# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The controller's half of mig_boot_wish: reads the config file, makes data of survey text."""

from __future__ import annotations

from ansible_collections.gpufleet.mig.plugins.action import mig_config


class ActionModule(mig_config.ActionModule):
    """A wish is given as mig_config takes it, and none is needed to take one away."""

    wishes = ()
