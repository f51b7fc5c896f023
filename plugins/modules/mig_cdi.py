#!/usr/bin/python
# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Tell container engines of exactly the MIG devices that a node has, and prove it."""

from __future__ import annotations

DOCUMENTATION = r"""
module: mig_cdi
short_description: Tell container engines of exactly the MIG devices that a node has
version_added: 0.1.0
description:
  - Sees to it that the device files of all instances exist (C(/dev/nvidia-caps)), has the CDI specification say what
    there is, and reads it back.
  - The specification is right when every MIG device is in it by its UUID with all of its files, when no file in
    O(spec_dirs) names a device that the node has no more, and when it says what C(nvidia-ctk cdi generate) says now.
    What has changed is about this content. A specification that is right is not written.
  - Where NVIDIA's C(nvidia-cdi-refresh.service) is installed, it is restarted for that, with its own settings. Else the
    file is written as JSON, which is YAML too.
  - MIG on without any instance is no failure. There is nothing to write then, and a specification of devices that are
    gone is removed (RV(empty)).
  - Changes nothing on the GPUs. No container and no container engine is called, so it may run at boot.
  - The role P(gpufleet.mig.containers#role) uses it.
extends_documentation_fragment:
  - gpufleet.mig.attributes
  - gpufleet.mig.attributes.actiongroup_mig
  - gpufleet.mig.state
attributes:
  check_mode:
    support: full
    details:
      - C(nvidia-ctk) is asked what it would write, and that is compared.
  diff_mode:
    support: none
  idempotent:
    support: full
options:
  spec:
    description:
      - The file with the specification of C(nvidia.com/gpu).
      - Where NVIDIA's unit writes it and its settings name another file, that one counts.
    type: path
    default: /var/run/cdi/nvidia.yaml
  spec_dirs:
    description: Folders in which container engines look for specifications, those that count more come later.
    type: list
    elements: path
    default: [/etc/cdi, /var/run/cdi]
  unit:
    description: Whether NVIDIA's C(nvidia-cdi-refresh.service) writes the file.
    type: str
    choices:
      auto: Where it is installed.
      always: Always; where it is not installed the task fails.
      never: Never.
    default: auto
  management:
    description:
      - Whether there is a specification of C(management.nvidia.com/gpu) too, which is for what manages GPUs and not for
        what computes on them.
      - It is made in a mode of its own, and is refused without the device files for configuring and monitoring,
        C(nvidia-cap1) and C(nvidia-cap2).
    type: str
    choices:
      auto: Where there is one already, as the GPU operator makes it.
      always: Always.
      never: Never. One that is there is left as it is.
    default: auto
  management_spec:
    description: The file with that specification.
    type: path
    default: /var/run/cdi/management.nvidia.com-gpu.yaml
  verify_only:
    description: Only prove that containers are told of what there is, and fail with what is wrong. Nothing is changed.
    type: bool
    default: false
  operation_timeout:
    description:
      - How many seconds one call to the driver may take. After that it is considered hung, and nothing is written.
    type: float
    default: 60
  root:
    description: Folder in which C(/dev), C(/proc) and the files above are. Only of use for trials.
    type: path
    default: /
notes:
  - Needs root, and the NVIDIA Container Toolkit on the node.
seealso:
  - module: gpufleet.mig.mig_config
  - module: gpufleet.mig.mig_info
author:
  - the gpufleet.mig authors (@gpufleet)
"""

EXAMPLES = r"""
- name: Tell containers of the new layout
  gpufleet.mig.mig_cdi:
  become: true

- name: Only see whether they are told of what there is
  gpufleet.mig.mig_cdi:
    verify_only: true
  become: true

- name: Keep a specification for device plugins too
  gpufleet.mig.mig_cdi:
    management: always
  become: true

- name: Write it to /etc/cdi and leave NVIDIA's unit alone
  gpufleet.mig.mig_cdi:
    spec: /etc/cdi/nvidia.yaml
    unit: never
  become: true
"""

RETURN = r"""
empty:
  description: Whether there is no device for containers, since MIG is on without any instance.
  type: bool
  returned: success
  sample: false
devices:
  description: UUIDs of the MIG devices that containers are told of.
  type: list
  elements: str
  returned: success
  sample: [MIG-41b36cd7-2f8c-5a43-8a6b-0f4bd4f3a8f2]
device_files:
  description: Device files of instances that were missing and were made, or would be.
  type: list
  elements: str
  returned: success
  sample: [/dev/nvidia-caps/nvidia-cap66]
written:
  description: Specifications whose content has changed, or would.
  type: list
  elements: str
  returned: success
  sample: [/var/run/cdi/nvidia.yaml]
removed:
  description: Specifications that were removed, or would be, since all that they name is gone.
  type: list
  elements: str
  returned: success
  sample: []
unit:
  description: Whether NVIDIA's unit writes the specification on this node.
  type: bool
  returned: success
  sample: true
msg:
  description: What was done, in one sentence.
  type: str
  returned: always
  sample: "Containers are told of what there is: 7 MIG devices and 0 whole GPUs."
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpufleet.mig.plugins.module_utils import ansible_bridge, node_cdi


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec=node_cdi.ARGUMENTS, supports_check_mode=True)
    ansible_bridge.run(module, node_cdi.make)


if __name__ == "__main__":
    main()
