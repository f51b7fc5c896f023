#!/usr/bin/python
# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Divide the GPUs of a node by MIG as a label, config or saved layout says."""

from __future__ import annotations

DOCUMENTATION = r"""
module: mig_config
short_description: Divide the GPUs of a node by MIG as a label, config or saved layout says
version_added: 0.1.0
description:
  - Reads the node, works out the smallest change that leads to what is wanted, makes it, reads the node again in a
    fresh NVML session, and says whether it is as wanted.
  - Nothing is touched before the change of the whole node is known to be possible. A wish that this node cannot
    fulfil costs no instance.
  - Instances that already fit stay as they are, with what runs in them. An instance that a process uses is never
    destroyed. If the wish needs its place, the task fails before the first write.
  - If a step fails, the layout from before is rebuilt, and RV(rolled_back) says whether that worked. Where it did
    not, RV(recovery) is the lost layout in a form that O(layout) accepts.
  - The change is made by a process of its own on the node. It goes on if the connection breaks, and the next run that
    wishes for the same returns what it did (RV(resumed)). Only one change of a node runs at a time.
  - A change that was interrupted, by a kill or a power cut, is finished or taken back by the next run, as O(recover)
    says, and RV(recovered) tells it.
  - After a change the device files of all instances of the changed GPUs exist on the host, in C(/dev/nvidia-caps), and
    below the root of a driver that runs in a container, C(/run/nvidia/driver). They are looked at. If one is missing,
    the task fails with RV(missing_devices).
  - What was reached is remembered on the node for the next boot, unless O(remember) says otherwise. A node that is as
    wanted but was never remembered is remembered, which counts as a change.
  - A mode change that the driver keeps pending ends the task before any other instance is touched. RV(reset_required)
    and RV(reboot_required) then name the GPUs, RV(verdict) is V(differ), and the task does not fail. Run it again
    after the reset or reboot, or allow the reset with O(allow_reset). A mode that only a reboot makes current is not
    even stored without O(allow_reboot). Where MIG is to be turned off, the driver
    demands that the instances of that GPU go first, and only then says that the mode stays pending. RV(msg) tells
    which went.
  - Needs no Python package on the node. Where it has no nvidia-ml-py, the one of the controller is installed once
    into O(state_dir), and into nothing else. In check mode it comes with the task and leaves nothing behind.
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
    support: full
options:
  label:
    description:
      - Name of the wanted config.
      - A label of O(configs) or O(config_file) if there is one of this name.
      - Otherwise a label generated from the hardware, with the names that mig-parted gives them. V(all-disabled),
        V(all-enabled), V(all-balanced), and V(all-<profile>) with C(+) written as C(.), such as V(all-1g.5gb) or
        V(all-1g.5gb.me), for as many instances of one profile as each GPU holds. V(all-1g) is the base profile of
        one slice on boards of any size.
      - Otherwise counts of profiles for each GPU, such as V(7x1g.5gb) or V(3g.20gb,2x2g.10gb).
      - One of O(label), O(label_by_gpu), O(config), O(layout), O(layout_file), O(previous) and O(recover) is
        needed.
    type: str
  label_by_gpu:
    description:
      - Label by kind of GPU, for hosts and groups with several kinds. It wins over O(label) on the GPUs that it
        names.
      - Keys are PCI device ids, such as V(0x20B010DE) or V(0x20B0), with or without quotes, or product names, such as
        V(NVIDIA A100-SXM4-40GB), with or without V(NVIDIA). Values are what O(label) accepts.
      - A key that matches no GPU of the host is not an error, so that one mapping serves a fleet. If two keys match
        one GPU and their labels differ, the task fails.
      - GPUs that no key names follow O(label), or without it are treated as O(unlisted) says.
    type: dict
  config:
    description:
      - The wanted config itself, as entries like those below a label of NVIDIA's mig-parted config format.
      - RV(gpufleet.mig.mig_info#module:config) has this form.
    type: list
    elements: dict
  configs:
    description:
      - Labels with their entries, as in a mig-parted config file, either the whole document with C(version) and
        C(mig-configs), or only the mapping of labels.
    type: dict
  config_file:
    description:
      - Path of a mig-parted config file (C(version), then V(v1), and C(mig-configs)) on the controller.
      - A relative path is looked up as by other plugins, in C(files) and beside the role and the playbook, and then
        where C(ansible-playbook) was started. A file that is encrypted by Ansible Vault is decrypted.
      - Cannot be combined with O(configs).
    type: str
  layout:
    description:
      - The exact wanted layout with modes, places and compute instances, as it was saved earlier.
      - The result of M(gpufleet.mig.mig_info) or its RV(gpufleet.mig.mig_info#module:gpus), RV(before), RV(after) or
        RV(recovery) of this module, a file of O(state_dir), or a checkpoint of mig-parted.
      - GPUs are found by PCI bus id, and where that is missing by UUID or index. GPUs that the layout does not name are
        left as they are.
      - O(unlisted), O(allow_empty) and O(mode_only) are about labels and configs and do not concern it.
    type: raw
  layout_file:
    description:
      - Path of a file with what O(layout) accepts, as JSON or YAML, on the controller. It is looked up like
        O(config_file).
      - Cannot be combined with O(layout).
    type: str
  previous:
    description:
      - Wish for the layout that was there before the last change, from the record of the node.
      - A node whose last change was such a return wishes for what it has then, so that the task can run again.
    type: bool
  previous_of:
    description:
      - Take back only a change to this label. A node whose last change was to another label, or that never had one, is
        left as it is.
      - It counts with O(previous=true) only.
    type: str
  accept_replacement:
    description:
      - Give a saved layout also to a GPU with another UUID or of another model than the one that had this PCI bus id
        when it was saved. Without it the task fails and names both.
    type: bool
    default: false
  recover:
    description:
      - What becomes of an unfinished change of an earlier run. Without this option it is finished, as with V(forward).
      - Without a wish beside it the module does this and nothing else.
    type: str
    choices:
      forward: It is finished, together with the wish of this task, which wins on the GPUs that both are about.
      back: The layout from before it is restored, and the wish of this task is not followed in this run.
  gpus:
    description:
      - The GPUs to look at. V(all), or a list of NVML indices, GPU UUIDs and PCI bus ids.
      - The others are left as they are. An unfinished change of an earlier run is ended on all GPUs that it was about.
    type: list
    elements: str
    default: [all]
  unlisted:
    description: What becomes of MIG-capable GPUs that the C(devices) lists of the config leave out.
    type: str
    choices:
      ignore: They are left as they are, and listed in RV(unlisted).
      disable: MIG is turned off on them.
      fail: The task fails.
    default: ignore
  expected_gpus:
    description: Number of GPUs that this host must have. If the driver shows another number, the task fails before
      any change.
    type: int
  allow_empty:
    description:
      - Allow a config that turns MIG on without any instance. No job can use such a GPU.
      - The label V(all-enabled) needs no such permission.
    type: bool
    default: false
  mode_only:
    description: Only turn MIG on or off as the config says. Instances of a GPU on which MIG stays on are left as
      they are.
    type: bool
    default: false
  allow_reset:
    description: Allow to reset GPUs whose mode stays pending, when nothing uses them. What a reset needs is checked
      before.
    type: bool
    default: false
  allow_reboot:
    description:
      - Allow to store a mode that only a reboot of the node makes current, as on Ampere GPUs that are passed through to
        a virtual machine. Without it such a change is refused before anything is written.
      - The module reboots nothing. It stores every mode that waits for the reboot and returns RV(reboot_required).
        Reboot the node then, and run the same task again.
      - A GPU that turns out to switch at once needs no reboot, and RV(reboot_required) does not name it.
      - One reboot is allowed for one wish. If the mode is not current after it, the next run fails before it writes
        anything, instead of asking for a second.
      - The task fails if anything computes on any GPU of the node or, with O(evict=none), if an instance of it is
        reserved, since the reboot would end it.
    type: bool
    default: false
  pods_leave:
    description:
      - Whether whoever runs this has pods of Kubernetes leave the node before a change, as the role
        P(gpufleet.mig.kubernetes#role) does. In check mode what processes of pods use is no obstacle then.
      - A real run passes over nobody. What a pod still uses then is refused like anything else.
    type: bool
    default: false
  remember:
    description:
      - Whether what was reached is remembered on the node for the next boot.
      - With V(false) what the node remembers stays as it is, and a node that is as wanted is never changed for the sake
        of it. A boot brings back what is remembered, where the role P(gpufleet.mig.boot#role) is set up; O(previous)
        and C(gpufleet-mig verify) go by it as well.
      - It is for a layout that is to last until the next boot, and for nodes of which somebody else remembers what they
        shall have, such as the MIG manager of NVIDIA's operator.
      - An unfinished change of an earlier run that this task ends is remembered if that run was to remember it.
    type: bool
    default: true
  lease:
    description:
      - How many seconds this node is kept for O(run_id) when the result is that a reset or reboot is needed. Until then
        runs with another O(run_id) are refused. V(0) is not at all, and more than an hour counts as an hour.
    type: float
    default: 0
  brief:
    description:
      - Return a short plan in check mode, for playbooks that plan for thousands of hosts at once. RV(plan) is left out,
        and in RV(before) and RV(after) C(devices), the number of MIG devices by profile, takes the place of instances.
      - It counts in check mode only.
    type: bool
    default: false
  run_id:
    description: Name of the rollout that this task is part of, for O(lease), such as the id of an AWX job.
    type: str
notes:
  - Changing anything needs root, so use C(become). Check mode needs root to see all instances.
  - Values of a survey or of C(-e) arrive as text. O(gpus) also takes V("0,1"), O(clients) takes names with commas
    between them, and O(config), O(configs), O(label_by_gpu), O(layout), O(clients) and O(reservations) take YAML or
    JSON text. An empty text counts as not given.
  - Label and names are data. Template syntax in them is never evaluated by this module.
seealso:
  - module: gpufleet.mig.mig_info
  - module: gpufleet.mig.gpu_holder_info
  - module: gpufleet.mig.gpu_reset
author:
  - the gpufleet.mig authors (@gpufleet)
"""

EXAMPLES = r"""
- name: Seven small instances on every GPU
  gpufleet.mig.mig_config:
    label: all-1g.5gb

- name: Show what would change, and change nothing
  gpufleet.mig.mig_config:
    label: all-balanced
  check_mode: true
  diff: true

- name: A label of a file in NVIDIA's format
  gpufleet.mig.mig_config:
    label: custom-config
    config_file: mig-parted.yaml

- name: One mapping for a fleet of different boards
  gpufleet.mig.mig_config:
    label: all-disabled
    label_by_gpu:
      NVIDIA A100-SXM4-40GB: all-1g.5gb
      "0x233010DE": 3g.40gb,4x1g.10gb

- name: Two halves on the first two GPUs
  gpufleet.mig.mig_config:
    label: 2x3g.20gb
    gpus: [0, 1]

- name: MIG off on a GPU that is chosen by its place on the bus
  gpufleet.mig.mig_config:
    label: all-disabled
    gpus: ["00000000:07:00.0"]

- name: Entries in the task itself
  gpufleet.mig.mig_config:
    config:
      - devices: [0, 1, 2, 3]
        mig-enabled: false
      - devices: [4, 5, 6, 7]
        mig-enabled: true
        mig-devices:
          1g.5gb: 2
          2g.10gb: 1
          3g.20gb: 1

- name: Save the layout of a node
  gpufleet.mig.mig_info:
  register: saved

- name: Restore it later, places and all
  gpufleet.mig.mig_config:
    layout: "{{ saved.gpus }}"

- name: Restore what a file of the controller holds, on a board that was exchanged for another of its kind
  gpufleet.mig.mig_config:
    layout_file: saved/gpu01.json
    accept_replacement: true

- name: Stop the monitoring for the change, and let it go on afterwards
  gpufleet.mig.mig_config:
    label: all-balanced
    evict: clients
    clients:
      - nvidia-dcgm.service
      - {unit: nvidia-persistenced.service, for: [mode, reset]}
    allow_reset: true

- name: Leave alone what the scheduler has promised
  gpufleet.mig.mig_config:
    label: all-1g.10gb
    reservations:
      - {device: MIG-41b36cd7-2f8c-5a43-8a6b-0f4bd4f3a8f2, holder: Slurm job 4711}

- name: Go back to where the node was before it became all-1g.5gb
  gpufleet.mig.mig_config:
    previous: true
    previous_of: all-1g.5gb

- name: Take back a change that was interrupted, and do nothing else
  gpufleet.mig.mig_config:
    recover: back

- name: Whole GPUs until the next boot, which brings back what there was
  gpufleet.mig.mig_config:
    label: all-disabled
    remember: false

- name: Fail soon where the driver hangs or somebody else is at work
  gpufleet.mig.mig_config:
    label: all-1g.5gb
    operation_timeout: 20
    client_timeout: 30
    lock_timeout: 0

- name: In a virtual machine, have the mode of an A100 stored for the reboot
  gpufleet.mig.mig_config:
    label: all-1g.5gb
    allow_reboot: true
  register: stored

- name: Reboot for it
  ansible.builtin.reboot:
  when: stored.reboot_required | length > 0

- name: Go on where the reboot was needed
  gpufleet.mig.mig_config:
    label: all-1g.5gb
    allow_reboot: true
  when: stored.reboot_required | length > 0

- name: Keep the node for this rollout until it was rebooted
  gpufleet.mig.mig_config:
    label: all-disabled
    run_id: "{{ awx_job_id | default('by-hand') }}"
    lease: 1800
"""

RETURN = r"""
msg:
  description: What was found or done, in one sentence. On failure, what is wrong, and what to do next.
  returned: always
  type: str
verdict:
  description:
    - V(match) when the node, as read last, is as wanted.
    - V(differ) when it is not, as in check mode before a change, or while a mode is pending.
  returned: success
  type: str
  sample: match
label:
  description: The label that was applied.
  returned: success
  type: str
  sample: all-1g.5gb
label_source:
  description: Where the label came from, V(given), V(generated) or V(count), V(layout) for O(layout), V(previous) for
    O(previous).
  returned: success
  type: str
  sample: generated
differences:
  description: What is not as wanted, one sentence for each point.
  returned: when RV(verdict) is not V(match)
  type: list
  elements: str
plan:
  description: What is done to each GPU that needs a change, or would be done in check mode.
  returned: success, when something differed
  type: list
  elements: dict
  contains:
    gpu:
      description: Index of the GPU.
      type: int
    pci_bus_id:
      description: Its PCI bus id.
      type: str
    uuid:
      description: Its UUID.
      type: str
    mig:
      description: Whether MIG is on afterwards.
      type: bool
    kept:
      description: GPU instances that stay.
      type: list
      elements: dict
    destroyed:
      description: GPU instances that go.
      type: list
      elements: dict
    created:
      description: GPU instances that are made, with the compute instances that share them.
      type: list
      elements: dict
    steps:
      description: The driver writes in their order.
      type: list
      elements: dict
    provisional:
      description:
        - Whether the plan was made without the driver's own list of profiles, which drivers up to 535 do not give
          while MIG is off. It is made again when MIG is on.
      type: bool
    layout:
      description: The GPU afterwards, as one line of text.
      type: str
before:
  description:
    - The GPUs as they were read first. When RV(resumed) is there, as they were before that change.
    - O(layout) accepts it, to go back to where the node came from.
  returned: success
  type: list
  elements: dict
  contains:
    gpu:
      description: Index of the GPU.
      type: int
    name:
      description: Its product name.
      type: str
    pci_bus_id:
      description: Its PCI bus id.
      type: str
    uuid:
      description: Its UUID.
      type: str
    mig_current:
      description: Whether MIG is on.
      type: bool
    mig_pending:
      description: Whether MIG will be on after the next reset, reload or reboot.
      type: bool
    instances:
      description: GPU instances as in RV(gpufleet.mig.mig_info#module:gpus[].instances).
      type: list
      elements: dict
    layout:
      description: The GPU as one line of text.
      type: str
after:
  description: The GPUs as they were read last, in the form of RV(before). In check mode as planned.
  returned: success, or on failure when RV(rolled_back) is false
  type: list
  elements: dict
uuid_map:
  description:
    - UUID of each MIG device from before, and the UUID of the one that has its place and kind afterwards, or V(null).
    - An equal UUID does not mean that the device was left alone. The driver gives the same place the same UUID.
  returned: after a change, or on failure when RV(rolled_back) is false
  type: dict
unlisted:
  description: Indices of MIG-capable GPUs that the config does not speak of.
  returned: success
  type: list
  elements: int
without_mig:
  description: Indices of GPUs that cannot do MIG and were passed over.
  returned: success
  type: list
  elements: int
reset_required:
  description: Indices of GPUs whose wanted mode waits for a reset of the GPU.
  returned: success
  type: list
  elements: int
reboot_required:
  description:
    - Indices of GPUs whose wanted mode waits for a reboot. In check mode also those whose mode a real run would store
      for it.
  returned: success
  type: list
  elements: int
persisted:
  description:
    - Whether a boot would bring the GPUs of this task up as they are, V(match) or V(differ), or V(absent) when
      nothing is remembered for them. In check mode as it is now.
  returned: success
  type: str
  sample: match
machine:
  description: Which machine this is, by the names that others have for it too, such as Kubernetes for its nodes.
  returned: success
  type: dict
  contains:
    machine_id:
      description: The machine id of its system. Empty where it has none.
      type: str
      sample: 0b6e4e2f5f7c4f0b9d1f5a6c7d8e9f01
    boot_id:
      description: The kernel's name for its present boot.
      type: str
      sample: 5f1c1a52-7c6e-4a3b-8f7a-2f6b1c9d0e3a
remember:
  description: The option of this name, also where the task failed.
  returned: with O(remember=false)
  type: bool
converged:
  description: Whether there was nothing to do, not even to remember the layout, to finish a change of somebody else or
    to note that a reboot has come that was waited for.
  returned: success
  type: bool
in_progress:
  description: The change that another run has begun and not finished. In check mode a real run would wait for it or
    recover it.
  returned: in check mode and on failure, when there is one that is in the way
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
    pid:
      description: The process that makes it.
      type: int
    since:
      description: Since when it has the node, in UTC.
      type: str
    running:
      description: Whether it is running now. If not, it was interrupted.
      type: bool
    boot:
      description: Whether it began in V(this) boot of the node or in an V(earlier) one.
      type: str
recovered:
  description: The unfinished change that was ended, or would be in check mode. Its keys are those of RV(in_progress).
  returned: when there was one
  type: dict
  contains:
    direction:
      description: V(forward) when it was finished, V(back) when it was taken back.
      type: str
resumed:
  description:
    - The change that an earlier run for the same wish made, whose result reached nobody because the connection broke.
    - RV(ignore:changed), RV(before) and RV(uuid_map) are those of that change.
  returned: when there was one
  type: dict
  contains:
    txid:
      description: Name of the change in the records of the node.
      type: str
    label:
      description: The label that it applied.
      type: str
    finished:
      description: When it ended, in UTC.
      type: str
txid:
  description: Name of the change in the records of the node.
  returned: when something was done
  type: str
clients:
  description: What became of O(clients).
  returned: when something was done
  type: dict
  contains:
    stopped:
      description: Units that were stopped, in this order. In check mode those that would be.
      type: list
      elements: str
    not_started:
      description: Sentences about those of them that do not run again.
      type: list
      elements: str
cdi:
  description:
    - What containers are told of the layout since this task, in a sentence. It comes before clients start.
    - Only on nodes that the role P(gpufleet.mig.containers#role) has set up for it.
  returned: when the layout was changed, or a change was taken back
  type: str
  sample: "Containers are told of what there is, 7 MIG devices and 0 whole GPUs: nvidia.yaml brought up to date."
pending_left:
  description: Indices of GPUs whose wanted mode stays stored although the change was taken back, since the driver
    cannot forget it.
  returned: on failure, when there are any
  type: list
  elements: int
recovery:
  description: The layout that was lost, where it could not be rebuilt.
  returned: when RV(rolled_back) is false
  type: dict
  contains:
    path:
      description: File on the node that holds it. C(gpufleet-mig restore) accepts it.
      type: str
    layout:
      description: The same as data. O(layout) accepts it.
      type: raw
binding:
  description:
    - Where the NVML binding came from. V(node) is the Python of the node, V(installed) is O(state_dir), V(payload)
      means that it came with the task and was not kept.
  returned: success
  type: str
  sample: installed
allow_reboot:
  description: The option of this name.
  returned: in check mode with O(brief=true)
  type: bool
drained:
  description: Whether the role C(mig) has drained this node for a change and not given it back yet.
  returned: success
  type: bool
drained_for:
  description: The label of that change, or an empty text.
  returned: success
  type: str
  sample: all-1g.5gb
altered:
  description:
    - Whether a write to the driver was started. False on failure means that nothing was touched.
  returned: always
  type: bool
rolled_back:
  description: Whether the node is as it was before.
  returned: on failure after the first write
  type: bool
missing:
  description: What could not be restored, one sentence for each point.
  returned: when RV(rolled_back) is false
  type: list
  elements: str
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
  description: NVML function that failed.
  returned: on failure of a call to the driver
  type: str
  sample: nvmlGpuInstanceDestroy
error:
  description: Name of the error, NVML's own without C(NVML_ERROR_), V(BINDING_MISSING), or V(NO_ANSWER).
  returned: on failure of a call to the driver
  type: str
  sample: IN_USE
holders:
  description: The processes in the way of the change.
  returned: on failure, when something that must not be taken away is in use
  type: list
  elements: dict
  contains:
    gpu:
      description: Index of the GPU.
      type: int
    pid:
      description: Its process id.
      type: int
    name:
      description: Its name.
      type: str
    kind:
      description: What it belongs to, V(unit), V(container), V(pod), V(job) or V(session), or empty.
      type: str
    unit:
      description: Its systemd unit.
      type: str
    runtime:
      description: The container runtime.
      type: str
    container:
      description: Id of its container.
      type: str
    pod:
      description: UID of its pod.
      type: str
    job:
      description: Its Slurm job.
      type: str
    step:
      description: Its Slurm step.
      type: str
    session:
      description: Its login session.
      type: str
    uses:
      description: V(compute) or V(graphics) as the driver says, or V(open) when it has a device file open and is in
        no list.
      type: str
    listed:
      description: Whether a list of the driver names it.
      type: bool
    opened:
      description: Device files that it has open.
      type: list
      elements: str
    cooperative:
      description: Whether it hands the GPU over by itself and keeps nothing from being changed.
      type: bool
    used_mib:
      description: Memory that it uses, in MiB.
      type: int
reservations:
  description: The reservations in the way of the change.
  returned: on failure, when something that must not be taken away is reserved
  type: list
  elements: dict
  contains:
    gpu:
      description: Index of the GPU.
      type: int
    holder:
      description: Who it is promised to.
      type: str
    source:
      description: Who said so.
      type: str
missing_devices:
  description:
    - Device files of instances, such as V(/dev/nvidia-caps/nvidia-cap12), that are not there and could not be made.
      The layout is right and stays, and the change counts as unfinished until they are there.
  returned: on failure, when there are any
  type: list
  elements: str
old_uuid:
  description: UUID of the GPU that the layout was saved from.
  returned: on failure, when another GPU is in its place
  type: str
old_name:
  description: Product name of the GPU that the layout was saved from.
  returned: on failure, when another GPU is in its place
  type: str
operation:
  description: What the driver was to do when it did not answer any more.
  returned: on failure, when RV(error) is V(NO_ANSWER)
  type: str
  sample: read GPU 3
file:
  description: The file of the node's records that cannot be read, understood or written.
  returned: on failure, when there is one
  type: str
reason:
  description: Why not, V(damaged), V(schema), V(permission), V(unsafe) or V(io).
  returned: on failure, when RV(file) is there
  type: str
step:
  description: What was being done when the call to the driver failed, in words.
  returned: on failure of a call to the driver
  type: str
known:
  description: The labels that are known for this node, nearest first.
  returned: on failure, when the label is unknown
  type: list
  elements: str
picture:
  description: The slots of the GPU, and where the wanted profiles can be.
  returned: on failure, when the wish has no layout
  type: str
wanted:
  description: What was wanted where the failure happened.
  returned: on failure, where it applies
  type: str
current:
  description: What was found where the failure happened.
  returned: on failure, where it applies
  type: str
"""

import typing as t

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpufleet.mig.plugins.module_utils import ansible_bridge


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            **ansible_bridge.COMMON_ARGUMENTS,
            **ansible_bridge.CHANGE_ARGUMENTS,
            "label": {"type": "str"},
            "label_by_gpu": {"type": "dict"},
            "config": {"type": "list", "elements": "dict"},
            "configs": {"type": "dict"},
            "config_file": {"type": "str"},
            "layout": {"type": "raw"},
            "layout_file": {"type": "str"},
            "previous": {"type": "bool"},
            "previous_of": {"type": "str"},
            "accept_replacement": {"type": "bool", "default": False},
            "recover": {"type": "str", "choices": ["forward", "back"]},
            "gpus": {"type": "list", "elements": "str", "default": ["all"]},
            "unlisted": {"type": "str", "choices": ["ignore", "disable", "fail"], "default": "ignore"},
            "expected_gpus": {"type": "int"},
            "allow_empty": {"type": "bool", "default": False},
            "mode_only": {"type": "bool", "default": False},
            "allow_reset": {"type": "bool", "default": False},
            "allow_reboot": {"type": "bool", "default": False},
            "pods_leave": {"type": "bool", "default": False},
            "remember": {"type": "bool", "default": True},
            "lease": {"type": "float", "default": 0},
            "run_id": {"type": "str"},
            "brief": {"type": "bool", "default": False},
        },
        mutually_exclusive=[
            ("label", "config", "layout", "layout_file", "previous"),
            ("label_by_gpu", "config", "previous"),
            ("label_by_gpu", "layout", "layout_file"),
            ("configs", "config_file"),
        ],
        required_one_of=[("label", "label_by_gpu", "config", "layout", "layout_file", "previous", "recover")],
        supports_check_mode=True,
    )
    ansible_bridge.run(module, _config)


def _config(module: AnsibleModule) -> dict[str, t.Any]:
    result = ansible_bridge.config(module)
    return ansible_bridge.brief(result, module.params) if module.params["brief"] and module.check_mode else result


if __name__ == "__main__":
    main()
