# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The filter that says a layout in the words of NVIDIA's MIG manager; what it needs is imported when it is called."""

from __future__ import annotations

import typing as t

from ansible.errors import AnsibleFilterError


def mig_parted_entries(gpus: t.Any) -> list[dict[str, t.Any]]:
    """Entries of mig-parted's config file, from the GPUs in a result of mig_config or mig_info."""
    from ansible_collections.gpufleet.mig.plugins.plugin_utils import _kubernetes, _mig_manager

    if not isinstance(gpus, (list, tuple)) or not all(isinstance(gpu, t.Mapping) for gpu in gpus):
        raise AnsibleFilterError(
            "mig_parted_entries takes the GPUs of a result, such as after of mig_config or gpus of mig_info."
        )
    return _mig_manager.entries_of(_kubernetes.gpus_of(gpus))


class FilterModule:
    """The filters by their names."""

    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        """What Ansible asks for."""
        return {"mig_parted_entries": mig_parted_entries}
