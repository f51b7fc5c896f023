#!/usr/bin/python
# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Report the GPUs of a node and how MIG divides them."""

from __future__ import annotations

DOCUMENTATION = r"""
module: mig_info
short_description: Report the GPUs of a node and how MIG divides them
version_added: 0.1.0
description:
  - Reads the driver, every GPU, its MIG mode, its GPU instances and compute instances, and the profiles that the
    driver offers on it.
  - Never changes anything, and never fails because of what a node lacks. A node without driver, library or binding
    gets a report that says so (RV(available) and RV(problem)), and a GPU that does not answer has its errors in
    RV(gpus[].errors) while the others are reported in full.
  - Never waits. While somebody changes the node, or when a change was interrupted, RV(in_progress) says so.
  - RV(gpus) is a complete record of the layout. O(gpufleet.mig.mig_config#module:layout) restores it.
  - Needs no Python package on the node. Where it has no nvidia-ml-py, the one of the controller comes with the task
    and leaves nothing behind.
extends_documentation_fragment:
  - gpufleet.mig.attributes
  - gpufleet.mig.attributes.info_module
  - gpufleet.mig.attributes.actiongroup_mig
  - gpufleet.mig.state
options:
  operation_timeout:
    description:
      - How many seconds one call to the driver, or reading one GPU, may take. A driver that takes longer is reported
        as one that does not answer.
    type: float
    default: 60
notes:
  - Listing all instances needs root. Without it the instances that the user may access are reported, and
    RV(persisted) and RV(in_progress) are V(null) since the records of the node belong to root.
seealso:
  - module: gpufleet.mig.mig_config
  - module: gpufleet.mig.gpu_holder_info
author:
  - the gpufleet.mig authors (@gpufleet)
"""

EXAMPLES = r"""
- name: Look at the GPUs
  gpufleet.mig.mig_info:
  register: mig

- name: Show each GPU as a picture
  ansible.builtin.debug:
    msg: "{{ mig.gpus | map(attribute='layout') }}"
  when: mig.available

- name: Make sure that every host of the group has a working driver
  ansible.builtin.assert:
    that: mig.available
    fail_msg: "{{ mig.problem.message | default('') }}"

- name: Find out soon whether the driver answers
  gpufleet.mig.mig_info:
    operation_timeout: 10

- name: Keep the layout of each host in a file of the controller
  ansible.builtin.copy:
    content: "{{ mig | to_nice_json }}"
    dest: "saved/{{ inventory_hostname }}.json"
    mode: "0644"
  delegate_to: localhost
"""

RETURN = r"""
available:
  description: Whether NVML answered. If not, RV(problem) says why, and all further values are absent.
  returned: always
  type: bool
  sample: true
problem:
  description: Why NVML did not answer.
  returned: when RV(available) is false
  type: dict
  contains:
    call:
      description: The function that failed.
      type: str
      sample: nvmlInit
    error:
      description: Name of the error, NVML's own without C(NVML_ERROR_), V(BINDING_MISSING), or V(NO_ANSWER).
      type: str
      sample: DRIVER_NOT_LOADED
    message:
      description: What happened, in one sentence.
      type: str
    remedy:
      description: What to do about it.
      type: str
in_progress:
  description: The change of this node that is begun and not finished, V(null) when there is none or it cannot be told.
  returned: always
  type: dict
  contains:
    txid:
      description: Name of the change in the records of the node.
      type: str
    who:
      description: Who began it.
      type: str
    what:
      description: What it is, such as V(mig_config label all-1g.5gb).
      type: str
    label:
      description: The label that it applies.
      type: str
    started:
      description: When it began, in UTC.
      type: str
    running:
      description: Whether it is running now. If not, it was interrupted, and the next run of
        M(gpufleet.mig.mig_config) ends it.
      type: bool
    boot:
      description: Whether it began in V(this) boot of the node or in an V(earlier) one.
      type: str
    unreadable:
      description: Why the record of the change cannot be read. It is the only key then.
      type: str
persisted:
  description:
    - Whether a boot would bring the node up as it is, V(match) or V(differ), or V(absent) when nothing is remembered
      for it.
    - V(null) when it cannot be told.
  returned: when RV(available) is true
  type: str
  sample: match
driver_version:
  description: Version of the NVIDIA driver.
  returned: when RV(available) is true
  type: str
  sample: 580.95.05
nvml_version:
  description: Version of the NVML library.
  returned: when RV(available) is true
  type: str
  sample: 13.580.95.05
cuda_version:
  description: CUDA version that the driver supports.
  returned: when RV(available) is true
  type: str
  sample: "13.0"
config:
  description:
    - The layout of the node as entries of NVIDIA's mig-parted config format.
    - Given to O(gpufleet.mig.mig_config#module:config) on the same node they ask for what is there.
  returned: when RV(available) is true
  type: list
  elements: dict
  sample: [{"devices": [0], "mig-enabled": true, "mig-devices": {"1g.5gb": 7}}]
gpus:
  description: The GPUs of the node in NVML's order. A value of V(null) means that the driver did not say.
  returned: when RV(available) is true
  type: list
  elements: dict
  contains:
    index:
      description: NVML's index. It may differ after a reboot.
      type: int
    uuid:
      description: UUID of the GPU.
      type: str
      sample: GPU-5f5e5b1c-0000-0000-0000-000000000000
    pci_bus_id:
      description: PCI bus id with a domain of eight digits.
      type: str
      sample: "00000000:07:00.0"
    pci_device_id:
      description: PCI device and vendor as in mig-parted's C(device-filter).
      type: str
      sample: "0x20B010DE"
    pci_subsystem_id:
      description: PCI subsystem and its vendor.
      type: str
      sample: "0x134F10DE"
    name:
      description: Product name.
      type: str
      sample: NVIDIA A100-SXM4-40GB
    architecture:
      description: Architecture of the chip.
      type: str
      sample: ampere
    compute_capability:
      description: CUDA compute capability.
      type: str
      sample: "8.0"
    memory_mib:
      description: Memory of the whole GPU in MiB.
      type: int
      sample: 40960
    minor:
      description: Number in the name of the device file, C(/dev/nvidia0).
      type: int
    persistence:
      description: Whether persistence mode is on.
      type: bool
    virtualization:
      description: How the GPU is virtualized, V(none) on bare metal.
      type: str
      sample: none
    mig_capable:
      description: Whether the GPU can do MIG, V(null) when it cannot be told.
      type: bool
    hint:
      description: What a GPU needs that cannot do MIG now although its model can, or empty.
      type: str
    mig_current:
      description: Whether MIG is on now.
      type: bool
    mig_pending:
      description: Whether MIG will be on after the next reset, reload or reboot.
      type: bool
    reset_required:
      description: Whether a reset of the GPU makes the pending mode current.
      type: bool
    reboot_required:
      description: Whether it takes a reboot to make the pending mode current.
      type: bool
    layout:
      description: The instances as one line of text.
      type: str
    instances:
      description: GPU instances by their place, also those that have no compute instance.
      type: list
      elements: dict
      contains:
        id:
          description: The driver's id of the GPU instance.
          type: int
        profile:
          description: Name of its profile.
          type: str
          sample: 1g.5gb
        profile_id:
          description: The driver's id of its profile.
          type: int
        slices:
          description: Number of compute slices.
          type: int
        placement:
          description: RV(ignore:start) and RV(ignore:size) in memory slices.
          type: dict
          sample: {"start": 0, "size": 1}
        compute_instances:
          description: Its compute instances. Each is one MIG device.
          type: list
          elements: dict
          contains:
            id:
              description: The driver's id of the compute instance.
              type: int
            profile:
              description: Name of its profile.
              type: str
              sample: 1c.3g.20gb
            profile_id:
              description: The driver's id of its profile.
              type: int
            slices:
              description: Number of compute slices.
              type: int
            variant:
              description: Which of several kinds of this size it is, V(rev1) or V(nvl), or empty.
              type: str
            placement:
              description: Start and size in compute slices of the GPU instance.
              type: dict
              sample: {"start": 0, "size": 1}
            uuid:
              description: UUID of the MIG device.
              type: str
              sample: MIG-41b36cd7-2f8c-5a43-8a6b-0f4bd4f3a8f2
            legacy_uuid:
              description: The MIG device in the spelling of drivers before 470, which later ones still accept.
              type: str
              sample: MIG-GPU-5f5e5b1c-0000-0000-0000-000000000000/7/0
            mig_index:
              description: Index of the MIG device on its GPU.
              type: int
            processes:
              description: Processes that NVML lists in this device.
              type: list
              elements: dict
    processes:
      description: Processes that NVML lists on the GPU outside of any instance.
      type: list
      elements: dict
    profiles:
      description: Profiles that the driver offers on this GPU, V(null) when it does not list them now.
      type: list
      elements: dict
      contains:
        name:
          description: The driver's name of the profile.
          type: str
          sample: 1g.5gb
        id:
          description: The driver's id of the profile.
          type: int
        enum:
          description: NVML's enumeration value of the profile.
          type: int
        slices:
          description: Number of compute slices.
          type: int
        memory_mib:
          description: Memory of an instance in MiB.
          type: int
        max:
          description: How many fit an empty GPU, counted from places and engines.
          type: int
        remaining:
          description: How many more fit now.
          type: int
        placements:
          description: Where an instance may be placed.
          type: list
          elements: dict
    errors:
      description: Calls that failed while this GPU was read.
      type: list
      elements: dict
      contains:
        call:
          description: The NVML function.
          type: str
        error:
          description: NVML's name of the error.
          type: str
          sample: GPU_IS_LOST
        remedy:
          description: What to do about it.
          type: str
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpufleet.mig.plugins.module_utils import ansible_bridge


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={**ansible_bridge.COMMON_ARGUMENTS, **ansible_bridge.READ_ARGUMENTS}, supports_check_mode=True
    )
    ansible_bridge.run(module, ansible_bridge.info)


if __name__ == "__main__":
    main()
