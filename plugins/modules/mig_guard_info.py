#!/usr/bin/python
# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Report what speaks against changing the GPUs of a node now."""

from __future__ import annotations

DOCUMENTATION = r"""
module: mig_guard_info
short_description: Report what speaks against changing the GPUs of a node now
version_added: 0.1.0
description:
  - Looks at a node before anything on it is stopped or changed, and reports what speaks against a change, each in one
    sentence with the next action.
  - Never changes anything, and never fails because of what it finds. Whoever calls it fails, or does not, by RV(stop).
  - What cannot be told is a warning and stops nothing. A driver that does not answer does stop a change, as the finding
    V(nvml), since then nobody knows what would be changed.
  - Who holds a GPU is for M(gpufleet.mig.gpu_holder_info) and for the refusals of M(gpufleet.mig.mig_config), which
    counts the GPUs too (O(gpufleet.mig.mig_config#module:expected_gpus)).
extends_documentation_fragment:
  - gpufleet.mig.attributes
  - gpufleet.mig.attributes.info_module
  - gpufleet.mig.attributes.actiongroup_mig
  - gpufleet.mig.state
options:
  gpus:
    description:
      - The GPUs that are about to change. V(all), or a list of NVML indices, GPU UUIDs and PCI bus ids.
      - GPUs that cannot do MIG are never looked at.
    type: list
    elements: str
    default: [all]
  kinds:
    description:
      - What is about to change. Some guards only matter for a reset, or for what comes with one.
    type: list
    elements: str
    choices:
      instances: GPU instances and compute instances.
      mode: The MIG mode, for which Ampere GPUs are reset by their driver.
      reset: GPUs are reset by C(nvidia-smi). Where it is the only kind, what waits for a reset is no reason against it.
    default: [instances, mode, reset]
  ignore:
    description:
      - Guards whose findings are passed over. They become warnings.
    type: list
    elements: str
    choices:
      owner: Another manager of MIG is set up or runs, the unit C(nvidia-mig-manager), NVIDIA's MIG manager for
        Kubernetes, its DRA driver with C(DynamicMIG), HAMi in the mode C(mig), or a run of C(nvidia-mig-parted).
      boot: The node is still starting, or shuts down.
      memory: Rows of the memory wait to be remapped or could not be, or the ECC mode changes with the next reset.
      driver: The driver is known to be bad with MIG.
      persistence: Persistence mode is off. This is advice and never stops a change.
      drm: A display server or the like uses the kernel module C(nvidia_drm), which keeps GPUs from being reset.
      vgpu: The GPU serves virtual machines, or is a vGPU.
      mps: A control daemon of MPS runs.
      fabric: The node has NVSwitches and Fabric Manager does not run.
      deadline: O(deadline) is over, or nearer than O(needs).
    default: []
  deadline:
    description:
      - Time after which no change may run, in ISO 8601 with its offset from UTC, such as
        V(2026-12-24T06:00:00+01:00) or V(2026-12-24T05:00:00Z).
      - A time without offset is refused, since it is another one on each host.
    type: str
  now:
    description:
      - The time that O(deadline) is compared with, in the same form. Default is what the clock of the controller
        says, since a deadline is meant for all hosts, and the clock of one of them may be wrong.
    type: str
  needs:
    description:
      - How many seconds the change may take. That much has to be left until O(deadline).
    type: float
    default: 0
  operation_timeout:
    description:
      - How many seconds one call to the driver, or reading one process, may take. After that it is considered hung.
    type: float
    default: 60
notes:
  - Needs root to see the processes of others, and the settings of those that may partition GPUs.
seealso:
  - module: gpufleet.mig.mig_config
  - module: gpufleet.mig.gpu_holder_info
author:
  - the gpufleet.mig authors (@gpufleet)
"""

EXAMPLES = r"""
- name: Look whether something speaks against a change
  gpufleet.mig.mig_guard_info:
  register: guards
  become: true

- name: Change nothing where something does
  ansible.builtin.assert:
    that: guards.stop == []
    fail_msg: "{{ guards.stop | join(' ') }}"

- name: Look before instances are changed at night, which takes five minutes, whatever drivers are known to be bad
  gpufleet.mig.mig_guard_info:
    kinds: [instances]
    deadline: "2026-12-24T06:00:00+01:00"
    needs: 300
    ignore: [driver]
  register: guards
  become: true

- name: Name the units of other managers of MIG
  ansible.builtin.debug:
    msg: "{{ guards.findings | selectattr('name', 'eq', 'owner') | map(attribute='units') | flatten }}"
"""

RETURN = r"""
available:
  description: Whether NVML answered. If not, RV(problem) says why, and there is a finding V(nvml).
  returned: when the node was looked at
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
      description: Name of the error, NVML's own without C(NVML_ERROR_), or V(BINDING_MISSING) or V(NO_ANSWER).
      type: str
      sample: DRIVER_NOT_LOADED
    message:
      description: What happened, in one sentence.
      type: str
    remedy:
      description: What to do about it.
      type: str
findings:
  description: What speaks against the change.
  returned: when the node was looked at
  type: list
  elements: dict
  contains:
    name:
      description: The guard, one of the choices of O(ignore), or V(nvml).
      type: str
      sample: owner
    msg:
      description: What was found and what to do about it, in one sentence.
      type: str
      sample: >-
        nvidia-mig-manager.service is enabled, and partitions the GPUs by a config of its own: take them over with
        'systemctl disable --now nvidia-mig-manager.service', or leave them to it.
    units:
      description:
        - Systemd units without which it would be gone.
        - Of V(owner) they are those that a takeover stops and disables. There are none for what runs in Kubernetes.
      type: list
      elements: str
      sample: [nvidia-mig-manager.service]
    labels:
      description: Labels of the node in Kubernetes by which another owner of the GPUs is deployed there.
      type: list
      elements: str
      sample: [nvidia.com/gpu.deploy.mig-manager]
    advice:
      description: Whether it is only worth knowing. It is a warning and never in RV(stop).
      type: bool
      sample: false
    ignored:
      description: Whether O(ignore) passes it over. It is a warning then, and not in RV(stop).
      type: bool
      sample: false
stop:
  description: The sentences of the findings that stop a change. If it is empty, nothing does.
  returned: when the node was looked at
  type: list
  elements: str
unknown:
  description: What could not be told, in sentences. Each is a warning.
  returned: when the node was looked at
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpufleet.mig.plugins.module_utils import ansible_bridge, node_guards


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec=node_guards.ARGUMENTS, supports_check_mode=True)
    ansible_bridge.run(module, node_guards.look)


if __name__ == "__main__":
    main()
