#!/usr/bin/python
# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Report which containers of a node were given which of its devices."""

from __future__ import annotations

DOCUMENTATION = r"""
module: mig_container_info
short_description: Report which containers were given which devices, also those that do not run
version_added: 0.1.0
description:
  - Lists the containers of Docker, Podman and nerdctl that were made with GPUs or MIG devices, whether they run or not,
    and what that reserves, for O(gpufleet.mig.mig_config#module:reservations).
  - A container that was made for one MIG device cannot start once that is gone. So its device is reserved as long as
    the container exists.
  - One that was made for whatever there is (C(--gpus all), a number of GPUs) reserves nothing, since it starts with
    another layout too. It is listed with V(all).
  - Never changes anything. A runtime whose client program is not there, whose daemon is not active, or that would be
    asked while the node boots, is not asked (RV(unasked)), since the question could start it. One that does not answer
    is a failure.
  - Who holds a device now is for M(gpufleet.mig.gpu_holder_info).
extends_documentation_fragment:
  - gpufleet.mig.attributes
  - gpufleet.mig.attributes.info_module
  - gpufleet.mig.attributes.actiongroup_mig
  - gpufleet.mig.state
options:
  runtimes:
    description: The runtimes to ask.
    type: list
    elements: str
    choices: [docker, podman, nerdctl]
    default: [docker, podman, nerdctl]
  operation_timeout:
    description: How many seconds one call to the driver may take. After that it is considered hung.
    type: float
    default: 60
notes:
  - Needs root. Only root's containers are seen, and of nerdctl only those of the namespace C(default), whose C(--gpus)
    is not shown. Containers of pods belong to the kubelet.
seealso:
  - module: gpufleet.mig.mig_config
  - module: gpufleet.mig.gpu_holder_info
author:
  - the gpufleet.mig authors (@gpufleet)
"""

EXAMPLES = r"""
- name: See what containers were promised
  gpufleet.mig.mig_container_info:
  register: containers
  become: true

- name: Change the layout, and keep what containers were promised
  gpufleet.mig.mig_config:
    label: all-1g.5gb
    reservations: "{{ containers.reservations }}"
  become: true
"""

RETURN = r"""
containers:
  description: Containers that were made with devices of NVIDIA's.
  type: list
  elements: dict
  returned: success
  contains:
    runtime:
      description: The runtime.
      type: str
      sample: docker
    id:
      description: Its id.
      type: str
    name:
      description: Its name.
      type: str
      sample: trainer
    status:
      description: What the runtime says that it does.
      type: str
      sample: exited
    devices:
      description: UUIDs of the devices that it was made for and that are there.
      type: list
      elements: str
    gone:
      description: Names of devices that it was made for and that are not there any more. It does not start.
      type: list
      elements: str
    all:
      description: Whether it was made for whatever there is.
      type: bool
    description:
      description: It in words.
      type: str
      sample: container trainer (docker 3f2a1bc0d4e5, exited)
reservations:
  description: What is promised to them, as C(device), C(holder) and C(source), which is the runtime.
  type: list
  elements: dict
  returned: success
  sample:
    - device: MIG-41b36cd7-2f8c-5a43-8a6b-0f4bd4f3a8f2
      holder: container trainer (docker 3f2a1bc0d4e5, exited)
      source: docker
unasked:
  description: Runtimes that were not asked, with C(runtime) and C(reason).
  type: list
  elements: dict
  returned: success
  sample: [{"runtime": "podman", "reason": "podman is not on this node"}]
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpufleet.mig.plugins.module_utils import ansible_bridge, node_containers


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec=node_containers.ARGUMENTS, supports_check_mode=True)
    ansible_bridge.run(module, node_containers.look)


if __name__ == "__main__":
    main()
