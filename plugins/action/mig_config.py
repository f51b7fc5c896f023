# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The controller's half of mig_config: reads the files, makes data of survey text, brings the NVML binding."""

from __future__ import annotations

import typing as t

from ansible.module_utils.parsing.convert_bool import boolean

from ansible_collections.gpufleet.mig.plugins.module_utils.engine.profiles import quoted
from ansible_collections.gpufleet.mig.plugins.plugin_utils._action import BadInput, MigAction, without_unanswered


class ActionModule(MigAction):
    """The module never sees a file of the controller, nor text where it expects data."""

    # One of these is needed.
    wishes: t.ClassVar[tuple[str, ...]] = ("label", "label_by_gpu", "config", "layout", "previous", "recover")

    def run(self, tmp: t.Optional[str] = None, task_vars: t.Optional[dict[str, t.Any]] = None) -> dict[str, t.Any]:
        result = super().run(tmp, task_vars)
        # Ansible keeps no arguments of a task, and who judges many hosts has to know, also of one that failed.
        remember = without_unanswered(self._task.args).get("remember", True)
        return result if boolean(remember, strict=False) else {**result, "remember": False}

    def arguments(self, given: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
        arguments = super().arguments(given)
        if "config_file" in arguments:
            if "configs" in arguments:
                raise BadInput(
                    "configs and config_file both give labels; say which one is meant by giving one of them."
                )
            arguments["configs"] = self.read_config_file(arguments.pop("config_file"))
        if "layout_file" in arguments:
            if "layout" in arguments:
                raise BadInput(
                    "layout and layout_file both give a layout; say which one is meant by giving one of them."
                )
            path, arguments["layout"] = self.read_file("layout_file", arguments.pop("layout_file"))
            if not arguments["layout"]:
                raise BadInput(f"layout_file {path!r} is empty; give a layout that mig_info or mig_config returned.")
        # As all options that are not wished for, so that they may stand beside another wish.
        if "previous" in arguments and not _truth_of("previous", arguments["previous"]):
            del arguments["previous"]
        if arguments.get("label_by_gpu") == {}:
            del arguments["label_by_gpu"]
        if self.wishes and not any(option in arguments for option in self.wishes):
            raise BadInput(
                "No layout is named for this host: give label (in the playbooks mig_profile), such as all-1g.5gb, or"
                " one of label_by_gpu, config, layout, layout_file, previous and recover."
            )
        return arguments


def _truth_of(option: str, value: t.Any) -> bool:
    """What Ansible takes for a boolean. Raises BadInput."""
    try:
        return bool(boolean(value))
    except TypeError:
        raise BadInput(f"{option} is {quoted(value)}; give true or false.") from None
