#!/usr/bin/python
# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Put the engine and the NVML binding on a node, for commands that run there without a controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: mig_runtime
short_description: Put on a node what runs there without a controller
version_added: 0.1.0
description:
  - Installs the engine of this collection, plain Python that needs nothing but the standard library, in C(engine/)
    below O(state_dir), NVIDIA's NVML binding in C(binding/), and the command C(gpufleet-mig).
  - The engine comes from the controller with this task, and so does the binding unless O(binding) says otherwise. The
    node needs no internet, no package manager and no C(pip). Packages of a Python are looked at and never changed.
  - What lies in C(binding/) is used by all modules of this collection too, whichever Python Ansible runs them with.
  - The role P(gpufleet.mig.runtime#role) uses it.
  - A new version takes the place of the old one at once. Whatever runs with the old one can end with it.
  - Touches neither driver nor GPUs, so it also works in an image that is being built.
extends_documentation_fragment:
  - gpufleet.mig.attributes
  - gpufleet.mig.state
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
    details:
      - Shows the versions, not the files.
  idempotent:
    support: full
options:
  python:
    description:
      - Absolute path of the Python on the node that will run the engine, version 3.9 or newer.
      - By default the one that runs this module.
    type: path
  binding:
    description: Where the NVML binding comes from.
    type: str
    choices:
      controller: From nvidia-ml-py of the controller, for a node whose O(python) has none.
      wheel_dir: From the newest C(nvidia_ml_py-*.whl) in O(wheel_dir), whatever else the node has.
      python: From what O(python) has, as in a virtual environment or of a package of the distribution. It is a failure
        when that has none. Where the Python that runs this module has none, it gets a copy in C(binding/).
    default: controller
  wheel_dir:
    description:
      - Folder with a wheel of nvidia-ml-py, for O(binding=wheel_dir).
      - On the controller it is looked for as files of a playbook are, and else from where ansible-playbook was started.
    type: path
  remote_src:
    description: Whether O(wheel_dir) is on the node. By default it is on the controller.
    type: bool
    default: false
  command:
    description:
      - Absolute path of the command to install. Folders that are missing are made.
      - By default no command is installed.
    type: path
  _binding_digest:
    description:
      - What the controller's half of this module found in the wheel.
      - Not for playbooks.
    type: str
seealso:
  - module: gpufleet.mig.mig_config
author:
  - the gpufleet.mig authors (@gpufleet)
"""

EXAMPLES = r"""
- name: Put the engine on the node
  gpufleet.mig.mig_runtime:
  register: runtime

- name: Choose the Python that will run it
  gpufleet.mig.mig_runtime:
    python: /usr/bin/python3.12

- name: Let people on the node use it too
  gpufleet.mig.mig_runtime:
    command: /usr/local/sbin/gpufleet-mig

- name: Use the binding of a wheel that the node keeps
  gpufleet.mig.mig_runtime:
    binding: wheel_dir
    wheel_dir: /srv/wheels
    remote_src: true

- name: Use a virtual environment that has nvidia-ml-py
  gpufleet.mig.mig_runtime:
    binding: python
    python: /opt/mig/bin/python

- name: Put it elsewhere, for instance into the tree of an image
  gpufleet.mig.mig_runtime:
    state_dir: /srv/image/var/lib/gpufleet-mig
"""

RETURN = r"""
engine:
  description: The engine that is installed now, or would be.
  type: dict
  returned: success
  contains:
    path:
      description: The link to its folder.
      type: str
      sample: /var/lib/gpufleet-mig/engine
    version:
      description: Name of this version, made of its content.
      type: str
      sample: 5f0c7c6fb1d24a0e
binding:
  description:
    - Where O(python) finds the NVML binding. V(installed) is the folder C(binding/) below O(state_dir), V(node) a
      package of that Python.
    - V(payload) stands for one that would be installed, in check mode.
  type: str
  returned: success
  sample: installed
command:
  description: The command that is installed now, or would be.
  type: str
  returned: when O(command) is set
  sample: /usr/local/sbin/gpufleet-mig
check_mode:
  description: Whether this was check mode, in which what would be installed before is not there.
  type: bool
  returned: when there is no binding
  sample: false
lacks_binding:
  description: That O(python) has no binding of its own, and O(binding=python).
  type: bool
  returned: on that failure
  sample: true
python:
  description: The Python that will run the engine.
  type: str
  returned: success
  sample: /usr/bin/python3.12
state_dir:
  description: The folder that all of it is in.
  type: str
  returned: success
  sample: /var/lib/gpufleet-mig
msg:
  description: What was done, in one sentence.
  type: str
  returned: always
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpufleet.mig.plugins.module_utils import ansible_bridge, node_runtime


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec=node_runtime.ARGUMENTS, supports_check_mode=True)
    ansible_bridge.run(module, node_runtime.install)


if __name__ == "__main__":
    main()
