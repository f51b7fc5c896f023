# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Options that every module of the collection takes; the same set as in module_utils/ansible_bridge.py."""

from __future__ import annotations


class ModuleDocFragment:
    """Where the node keeps what belongs to this collection."""

    DOCUMENTATION = r"""
options:
  state_dir:
    description:
      - Folder on the node for what belongs to this collection, such as the NVML binding in C(binding/).
      - By default C(/var/lib/gpufleet-mig).
    type: path
  _binding:
    description:
      - Where the controller's half of this module put the NVML binding for a node that has none.
      - Not for playbooks.
    type: path
"""
