#!/usr/bin/python
# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A package manager for hosts that exist in tests only: its packages are folders, and it installs by copying one."""

from __future__ import annotations

import os
import shutil

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: packager
short_description: Install a package of a host that exists in tests only
description:
  - Copies the files of a package.
options:
  name:
    description: A folder, a colon, and the folder that its files go to.
    type: str
    required: true
  state:
    description: What is wanted.
    type: str
    choices: [present]
    default: present
author:
  - the gpufleet.mig authors (@gpufleet)
"""

EXAMPLES = r"""
- packager:
    name: /packages/python3-pynvml:/usr/lib/python3/dist-packages
"""

RETURN = r"""
"""


def main() -> None:
    """Entry point."""
    arguments = {"name": {"type": "str", "required": True}, "state": {"choices": ["present"], "default": "present"}}
    module = AnsibleModule(argument_spec=arguments, supports_check_mode=True)
    package, target = module.params["name"].split(":")
    missing = [name for name in os.listdir(package) if not os.path.exists(os.path.join(target, name))]
    if not module.check_mode:
        for name in missing:
            shutil.copy(os.path.join(package, name), target)
    module.exit_json(changed=bool(missing))


if __name__ == "__main__":
    main()
