# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What every module of the collection says about itself in the same words."""

from __future__ import annotations


class ModuleDocFragment:
    """Attributes of modules; each module adds its own support of check mode and the like."""

    DOCUMENTATION = r"""
options: {}
attributes:
  action:
    support: full
    description: Has a corresponding action plugin, so some parts of the options are worked out on the controller.
  async:
    support: none
    description: Supports being used with the C(async) keyword.
  check_mode:
    description: Can run in C(check_mode) and return changed status prediction without modifying the target.
  diff_mode:
    description: Returns details on what has changed (or possibly needs changing in C(check_mode)), when in diff mode.
  idempotent:
    description: When run twice in a row outside check mode, with the same arguments, the second invocation
      indicates no change.
  platform:
    platforms: linux
    support: full
    description: Target OS that the module can be operated against.
"""

    # For modules that only read.
    INFO_MODULE = r"""
options: {}
attributes:
  check_mode:
    support: full
    details:
      - This action does not modify state.
  diff_mode:
    support: N/A
    details:
      - This action does not modify state.
  idempotent:
    support: full
    details:
      - This action does not modify state.
"""

    ACTIONGROUP_MIG = r"""
options: {}
attributes:
  action_group:
    description: Use C(group/gpufleet.mig.mig) in C(module_defaults) to set defaults for this module.
    support: full
    membership:
      - gpufleet.mig.mig
"""

    ACTIONGROUP_KUBERNETES = r"""
options: {}
attributes:
  action_group:
    description: Use C(group/gpufleet.mig.kubernetes) in C(module_defaults) to set defaults for this module.
    support: full
    membership:
      - gpufleet.mig.kubernetes
"""
