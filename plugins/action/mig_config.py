# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The controller's half of mig_config: reads the config file, makes data of survey text, brings the NVML binding."""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.mig.plugins.plugin_utils._action import (
    BadInput,
    MigAction,
    data_of,
    list_of,
)


class ActionModule(MigAction):
    """The module never sees a file of the controller, nor text where it expects data."""

    def arguments(self, given: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
        arguments = super().arguments(given)
        for option in ("config", "configs", "label_by_gpu"):
            if option in arguments:
                arguments[option] = data_of(option, arguments[option])
        if "gpus" in arguments:
            arguments["gpus"] = list_of(arguments["gpus"])
        if "config_file" in arguments:
            if "configs" in arguments:
                raise BadInput(
                    "configs and config_file both give labels; say which one is meant by giving one of them."
                )
            arguments["configs"] = self.read_config_file(arguments.pop("config_file"))
        return arguments
