#!/usr/bin/python
# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Reset GPUs so that a pending MIG mode becomes current."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_reset
short_description: Reset GPUs so that a pending MIG mode becomes current
version_added: 0.1.0
description:
  - Resets the named GPUs through C(nvidia-smi --gpu-reset) and reads them again. A GPU that is not named is never
    reset.
  - Only GPUs whose MIG mode is pending are reset, unless O(force=true). Where nothing is pending, nothing is done.
  - A reset takes all instances of a GPU. Where MIG is on afterwards, they are put back in their places with the same
    profiles, and so with the same UUIDs.
  - The task fails before anything is touched if a process uses one of the GPUs, if anything computes on any other GPU
    of the node, if the kernel module C(nvidia_drm) is loaded, if an NVSwitch board of Ampere lacks Fabric Manager, or
    if this is a virtual machine that cannot reset its GPUs. It names every process with its unit, container, pod or
    job.
  - The daemons nvidia-persistenced and nvidia-fabricmanager hand over by themselves and are left running.
  - If a step fails, the layout from before is rebuilt, and RV(rolled_back) says whether that worked.
extends_documentation_fragment:
  - gpufleet.mig.attributes
  - gpufleet.mig.attributes.actiongroup_mig
  - gpufleet.mig.change
  - gpufleet.mig.state
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
  idempotent:
    support: partial
    details:
      - With O(force=true) the GPUs are reset each time.
options:
  gpus:
    description:
      - The GPUs that may be reset, as a list of NVML indices, GPU UUIDs and PCI bus ids, or V(all).
      - There is no default, so that nobody resets all GPUs by accident. With V(all), GPUs that cannot do MIG are passed
        over. Naming one of them is an error.
    type: list
    elements: str
    required: true
  force:
    description: Reset the GPUs even if no MIG mode is pending.
    type: bool
    default: false
  run_id:
    description: Name of the rollout that this task is part of, where M(gpufleet.mig.mig_config) keeps the node for it
      with O(gpufleet.mig.mig_config#module:lease).
    type: str
notes:
  - Needs root, so use C(become), and the command C(nvidia-smi), which comes with the driver.
  - MIG of Hopper and later GPUs is turned on and off without a reset. On Ampere the driver tries to reset the GPU by
    itself when M(gpufleet.mig.mig_config) asks for the mode, so a mode only stays pending if something was in the way.
  - The task takes no GPU away from a process. Stop what uses it, or name the units in O(clients) with
    O(evict=clients).
  - Values of a survey or of C(-e) arrive as text. O(gpus) also takes V("0,1").
seealso:
  - module: gpufleet.mig.mig_config
  - module: gpufleet.mig.mig_info
  - module: gpufleet.mig.gpu_holder_info
author:
  - the gpufleet.mig authors (@gpufleet)
"""

EXAMPLES = r"""
- name: Let the pending mode of whichever GPU become current
  gpufleet.mig.gpu_reset:
    gpus: all

- name: Show which GPUs would be reset, and what would be in the way
  gpufleet.mig.gpu_reset:
    gpus: all
  check_mode: true
  diff: true

- name: Reset what mig_config left pending
  gpufleet.mig.gpu_reset:
    gpus: "{{ mig.reset_required }}"
  when: mig.reset_required | length > 0

- name: Stop the monitoring for it, and start it again afterwards
  gpufleet.mig.gpu_reset:
    gpus: [0, 1]
    evict: clients
    clients:
      - dcgm-exporter.service
      - nvidia-dcgm.service

- name: Reset a GPU after an error, and give it its instances back
  gpufleet.mig.gpu_reset:
    gpus: ["00000000:07:00.0"]
    force: true

- name: On a node whose display driver is loaded
  gpufleet.mig.gpu_reset:
    gpus: [0]
    manage_drm: true
"""

RETURN = r"""
msg:
  description: What was found or done, in one sentence. On failure, what is wrong, and what to do next.
  returned: always
  type: str
reset:
  description: Indices of the GPUs that were reset. In check mode, of those that would be.
  returned: always, except when the task is refused
  type: list
  elements: int
  sample: [1]
before:
  description: The GPUs as they were read first, in the form of RV(gpufleet.mig.mig_config#module:before).
  returned: success
  type: list
  elements: dict
after:
  description: The GPUs as they were read last, in the form of RV(before). In check mode, as planned.
  returned: success, or on failure when RV(rolled_back) is false
  type: list
  elements: dict
uuid_map:
  description: UUID of each MIG device from before, and the UUID of the one that has its place and kind afterwards, or
    V(null).
  returned: after a reset, or on failure when RV(rolled_back) is false
  type: dict
binding:
  description:
    - Where the NVML binding came from. V(node) is the Python of the node, V(installed) is O(state_dir), V(payload)
      means that it came with the task and was not kept.
  returned: success
  type: str
  sample: installed
altered:
  description: Whether a reset or a write to the driver was started. False on failure means that nothing was touched.
  returned: always
  type: bool
clients:
  description: What became of O(clients).
  returned: after a reset
  type: dict
  contains:
    stopped:
      description: The units that were stopped, in this order.
      type: list
      elements: str
    not_started:
      description: A sentence for each unit that was stopped and does not run again.
      type: list
      elements: str
cdi:
  description:
    - What containers are told of the layout since this task, in a sentence, as RV(gpufleet.mig.mig_config#module:cdi).
  returned: after a reset, on nodes that the role P(gpufleet.mig.containers#role) has set up for it
  type: str
txid:
  description: Identifier of this change in the records of the node.
  returned: after a reset
  type: str
recovered:
  description: The unfinished change of an earlier run that this one finished, with its C(txid), C(who) and C(what).
  returned: when there was one
  type: dict
in_progress:
  description: The change that is running on this node, or that keeps it for another run.
  returned: when it keeps this task from its work
  type: dict
rolled_back:
  description: Whether the node is as it was before.
  returned: on failure after the first write
  type: bool
missing:
  description: What could not be restored, one sentence for each point.
  returned: when RV(rolled_back) is false
  type: list
  elements: str
recovery:
  description: A file on the node with the layout from before, and the layout itself, which
    O(gpufleet.mig.mig_config#module:layout) takes.
  returned: when RV(rolled_back) is false
  type: dict
  contains:
    path:
      description: Path of the file.
      type: str
    layout:
      description: The layout.
      type: list
      elements: dict
gpu:
  description: Index of the GPU that the failure is about.
  returned: on failure, when it is about one GPU
  type: int
pci_bus_id:
  description: PCI bus id of the GPU that the failure is about.
  returned: on failure, when it is about one GPU
  type: str
uuid:
  description: UUID of the GPU that the failure is about.
  returned: on failure, when it is about one GPU
  type: str
call:
  description: The command or NVML function that failed.
  returned: on failure of a command or a call to the driver
  type: str
  sample: nvidia-smi --gpu-reset
error:
  description: Name of the error in NVML's words, without C(NVML_ERROR_), or V(BINDING_MISSING).
  returned: on failure of a command or a call to the driver
  type: str
  sample: IN_USE
output:
  description: What the command printed, as one line.
  returned: on failure of C(nvidia-smi)
  type: str
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpufleet.mig.plugins.module_utils import ansible_bridge, node_change


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            **ansible_bridge.COMMON_ARGUMENTS,
            **ansible_bridge.CHANGE_ARGUMENTS,
            "gpus": {"type": "list", "elements": "str", "required": True},
            "force": {"type": "bool", "default": False},
            "run_id": {"type": "str"},
        },
        supports_check_mode=True,
    )
    ansible_bridge.run(module, node_change.reset)


if __name__ == "__main__":
    main()
