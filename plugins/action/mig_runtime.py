# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The controller's half of mig_runtime: brings the NVML binding where a node lacks it, or has another one."""

from __future__ import annotations

import hashlib
import os
import typing as t

from ansible.errors import AnsibleFileNotFound
from ansible.module_utils.parsing.convert_bool import boolean

from ansible_collections.gpufleet.mig.plugins.module_utils import wheels
from ansible_collections.gpufleet.mig.plugins.module_utils.engine.model import WishError
from ansible_collections.gpufleet.mig.plugins.plugin_utils import _binding
from ansible_collections.gpufleet.mig.plugins.plugin_utils._action import BadInput, MigAction


class ActionModule(MigAction):
    """Read a wheel of the controller, and bring what is in it where the node has something else."""

    _wheel: t.Optional[str] = None

    def arguments(self, given: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
        arguments = super().arguments(given)
        try:
            on_node = boolean(arguments.get("remote_src", False))
        except TypeError:
            return arguments  # the module says what is wrong with it
        if arguments.get("binding") == "wheel_dir" and "wheel_dir" in arguments and not on_node:
            content = self._in_wheel(arguments["wheel_dir"])
            arguments["_binding_digest"] = hashlib.sha256(content).hexdigest()
        return arguments

    def archive(self) -> t.Optional[bytes]:
        if self._wheel is None:
            return super().archive()
        return _binding.pack_content(wheels.read(self._wheel))

    def _in_wheel(self, folder: t.Any) -> bytes:
        """The binding in the newest wheel of a folder of the controller. Raises BadInput."""
        try:
            found = str(self._find_needle("files", str(folder)))
        except AnsibleFileNotFound:
            found = os.path.abspath(os.path.expanduser(str(folder)))
        try:
            self._wheel = wheels.newest(found)
            return wheels.read(self._wheel)
        except WishError as error:
            raise BadInput(f"On the controller, {error}") from None
