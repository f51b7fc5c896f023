#!/usr/bin/python
# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Report which processes hold the GPUs of a node, and whom they belong to."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_holder_info
short_description: Report which processes hold the GPUs of a node, and whom they belong to
version_added: 0.1.0
description:
  - Lists the processes that use a GPU or a MIG device, with the unit, login session, container, pod or Slurm job that
    each belongs to.
  - It joins two sources. NVML lists what computes or draws. The open files of all processes also show what NVML lists
    nowhere, such as monitoring, a display server, or a daemon that keeps a handle of an instance that it does not use
    any more. The driver refuses to destroy an instance for any of them.
  - Never changes anything, and never fails because of what a node lacks. Where NVML does not answer, it reports what
    the open files tell (RV(available) and RV(problem)).
  - Whom a process belongs to is read from C(/proc/PID/cgroup). Docker, containerd, podman, CRI-O, Kubernetes, Slurm
    and systemd are told apart, under cgroup v1 and v2.
extends_documentation_fragment:
  - gpufleet.mig.attributes
  - gpufleet.mig.attributes.info_module
  - gpufleet.mig.attributes.actiongroup_mig
  - gpufleet.mig.state
options:
  gpus:
    description:
      - The GPUs to look at. V(all), or a list of NVML indices, GPU UUIDs and PCI bus ids.
      - Where NVML does not answer, all are reported.
    type: list
    elements: str
    default: [all]
  operation_timeout:
    description:
      - How many seconds one call to the driver, or reading one process, may take. After that it is considered hung, and
        the report says so.
    type: float
    default: 60
notes:
  - Reading the open files of other users' processes needs root. What could not be read is told in RV(unseen).
seealso:
  - module: gpufleet.mig.mig_info
  - module: gpufleet.mig.mig_config
author:
  - the gpufleet.mig authors (@gpufleet)
"""

EXAMPLES = r"""
- name: Look who uses the GPUs
  gpufleet.mig.gpu_holder_info:
  register: gpus
  become: true

- name: Show them in words
  ansible.builtin.debug:
    msg: "{{ gpus.holders | map(attribute='description') }}"

- name: Make sure that nothing but the driver's own daemons has the first GPU open
  gpufleet.mig.gpu_holder_info:
    gpus: [0]
  register: first
  become: true
  failed_when: first.unseen or first.holders | rejectattr('cooperative')

- name: Name the units that would have to stop for a change of the MIG mode
  ansible.builtin.debug:
    msg: "{{ gpus.holders | selectattr('kind', 'eq', 'unit') | map(attribute='unit') | unique }}"
"""

RETURN = r"""
available:
  description: Whether NVML answered. If not, RV(problem) says why, and RV(holders) is what the open files tell.
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
      description: Name of the error, NVML's own without C(NVML_ERROR_), or V(BINDING_MISSING) or V(NO_ANSWER).
      type: str
      sample: DRIVER_NOT_LOADED
    message:
      description: What happened, in one sentence.
      type: str
    remedy:
      description: What to do about it.
      type: str
unseen:
  description:
    - Why there may be more holders than RV(holders) shows, in phrases.
    - If it is empty, RV(holders) is complete. If it is not, an empty RV(holders) does not mean that nobody holds a GPU.
  returned: always
  type: list
  elements: str
  sample: ["the open files of 131 processes cannot be read without root"]
holders:
  description:
    - One entry for each process and place. A process that uses two MIG devices has two entries.
    - Processes that hold a GPU as a whole come before those in its MIG devices.
  returned: always
  type: list
  elements: dict
  contains:
    gpu:
      description: NVML's index of the GPU, V(null) where NVML does not answer.
      type: int
    minor:
      description: Number in the name of the GPU's device file, C(/dev/nvidia0).
      type: int
    gi:
      description: The driver's id of the GPU instance, V(null) where the GPU as a whole is held.
      type: int
    ci:
      description: The driver's id of the compute instance.
      type: int
    pid:
      description: Process id.
      type: int
    name:
      description: Name of the process as the kernel has it, which is its first 15 characters.
      type: str
      sample: nv-hostengine
    user:
      description: Who runs it, by the node's own C(/etc/passwd), or the user's number.
      type: str
      sample: root
    kind:
      description: What the process belongs to, V(unit), V(session), V(container), V(pod), V(job), or empty.
      type: str
      sample: unit
    uses:
      description: The list of NVML that shows it, V(compute), V(graphics) or V(mps), or V(open) for none.
      type: str
      sample: open
    listed:
      description: Whether NVML lists it here.
      type: bool
    opened:
      description: The device files of this place that it has open.
      type: list
      elements: str
      sample: [/dev/nvidia0, /dev/nvidia-caps/nvidia-cap66]
    cooperative:
      description: Whether it is one of the driver's daemons that keep nothing from being changed, since they hand over.
      type: bool
    used_mib:
      description: GPU memory that it uses in MiB, V(null) where the driver does not say.
      type: int
    unit:
      description:
        - Systemd unit. One of a user's own systemd has the unit of that before it, as in
          C(user@1000.service/jupyter.service).
        - Units inside of a container are not given.
      type: str
      sample: nvidia-dcgm.service
    runtime:
      description: Container runtime, V(docker), V(containerd), V(cri-o), V(podman), V(lxc), or empty where the control
        group does not tell.
      type: str
    container:
      description: Id of the container.
      type: str
    pod:
      description: UID of the Kubernetes pod.
      type: str
    job:
      description: Id of the Slurm job.
      type: str
    step:
      description: Step of the Slurm job.
      type: str
      sample: batch
    session:
      description: Id of the login session.
      type: str
    description:
      description: The process and whom it belongs to, in words.
      type: str
      sample: process 811 (nv-hostengine) of nvidia-dcgm.service, which has /dev/nvidia0 open and is in no list of the
        driver
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpufleet.mig.plugins.module_utils import ansible_bridge


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            **ansible_bridge.COMMON_ARGUMENTS,
            **ansible_bridge.READ_ARGUMENTS,
            "gpus": {"type": "list", "elements": "str", "default": ["all"]},
        },
        supports_check_mode=True,
    )
    ansible_bridge.run(module, ansible_bridge.holders)


if __name__ == "__main__":
    main()
