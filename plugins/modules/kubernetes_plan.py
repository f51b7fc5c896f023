# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# The code is in plugins/action/kubernetes_plan.py: the API is asked from the controller, and no host is.

from __future__ import annotations

DOCUMENTATION = r"""
module: kubernetes_plan
short_description: Hold the plans of hosts against what Kubernetes makes of MIG
version_added: 0.1.0
description:
  - Runs once for a play, on the controller, and changes nothing. It asks the Kubernetes API for all nodes once, and for
    the pods of the device plugin, however many hosts there are. So it does for the devices of NVIDIA's DRA driver, and
    where the MIG manager of NVIDIA's operator changes GPUs for its pods and the ClusterPolicy.
  - The strategy afterwards is that of the daemonset of the plugin, whose next pod comes with the change. Where the
    daemonsets may not be listed it is that of the pod.
  - For every host it foretells the resources and labels that NVIDIA's device plugin and gpu-feature-discovery make of
    the planned layout, with the strategy and version that the plugin of its node has.
  - For a host whose layout changes the pods of its node are asked for, and it is told which have to leave. It is
    refused where one of them must not be evicted, as by M(gpufleet.mig.kubernetes_node), so that nobody finds that out
    in the middle of a rollout.
  - A layout that the strategy cannot have is refused here, before any node is drained. With V(none) that is any MIG,
    with V(single) devices that are not all alike, and with all of them a GPU with MIG on and no device, and compute
    instances that are smaller than their GPU instance.
  - A host is refused whose node is that of another host too, or reports another machine than the host is, by its
    machine id and its boot id. To drain one machine and change another would cost jobs.
  - A node has one owner. It is refused here where the operator's MIG manager has the GPUs and we were to change them,
    where the manager was to change them and cannot or is not there, and where NVIDIA's DRA driver makes MIG devices
    as pods ask for them.
  - What a change that ended in the middle has left on a node is told, also where its GPUs are as wanted, so that the
    next run mends it. What may belong to somebody who is still at work is left to them.
  - M(gpufleet.mig.mig_rollout) reads the result where it is registered as C(__mig_scheduler).
extends_documentation_fragment:
  - gpufleet.mig.attributes
  - gpufleet.mig.attributes.actiongroup_kubernetes
  - gpufleet.mig.kubernetes
  - gpufleet.mig.attributes.info_module
options:
  nodes:
    description: The name of the node in Kubernetes, by host. An empty text is the name of the host.
    type: dict
    required: true
  plans:
    description: The result of M(gpufleet.mig.mig_config) in check mode, by host.
    type: dict
    required: true
  strategies:
    description:
      - The strategy, by host, V(none), V(single) or V(mixed). A host that is not named here, or with an empty text, has
        that of its device plugin, and without one that of its label C(nvidia.com/mig.strategy).
    type: dict
    default: {}
  modes:
    description:
      - Who changes the GPUs, by host, V(engine) for this collection and V(operator) for the MIG manager of NVIDIA's
        operator. A host that is not named here, or with an empty text, has V(engine), and is refused where its label
        says that the operator deploys a MIG manager there.
    type: dict
    default: {}
  takeovers:
    description:
      - Whether the GPUs are taken over from the operator's MIG manager for a change, by host.
      - Values may be text, as a survey sends it. An empty one says no, and what is no boolean is refused.
    type: dict
    default: {}
  settings:
    description:
      - Values of the variables of the role P(gpufleet.mig.kubernetes#role) that say who leaves and how long is waited,
        by variable and by host. A host with one that cannot be used is refused, before its node would be drained.
    type: dict
    default: {}
  manager_selector:
    description: Label selectors of the pods of the MIG manager.
    type: raw
    default: [app=nvidia-mig-manager]
  manager_timeout:
    description:
      - Seconds that the MIG manager may take for a node. One that says longer than this that it is at work is stuck.
        How long it does is what the API notes of who has set the label C(nvidia.com/mig.config.state).
    type: float
    default: 900
  config_map:
    description: The config map for the MIG manager, as O(gpufleet.mig.kubernetes_mig_manager#module:config_map).
    type: str
    default: gpufleet-mig
  set_policy:
    description: Whether the ClusterPolicy may get its name, as O(gpufleet.mig.kubernetes_mig_manager#module:set_policy)
      says.
    type: bool
    default: false
  run:
    description: The name of the run. What a run of this name has left on a node is its own.
    type: str
    default: ansible
  plugin_selector:
    description: Label selectors of the pods of the device plugin. A pod needs to match one of them.
    type: raw
    required: true
seealso:
  - module: gpufleet.mig.mig_rollout
  - module: gpufleet.mig.kubernetes_node
author:
  - the gpufleet.mig authors (@gpufleet)
"""

EXAMPLES = r"""
- name: Hold the plan of a host against Kubernetes
  gpufleet.mig.kubernetes_plan:
    nodes:
      gpu01: gpu01.example.com
    plans:
      gpu01: "{{ hostvars.gpu01.plan }}"
    plugin_selector:
      - app=nvidia-device-plugin-daemonset
      - app.kubernetes.io/name=nvidia-device-plugin
    auth:
      context: production
  run_once: true
  register: __mig_scheduler
"""

RETURN = r"""
msg:
  description: How many nodes were looked at and refused, or why none could be.
  returned: always
  type: str
hosts:
  description: What Kubernetes says of each host.
  returned: success
  type: dict
  contains:
    node:
      description: The name of its node.
      type: str
    mode:
      description: Who changes its GPUs, V(engine) or V(operator).
      type: str
    strategy:
      description: The strategy that counts, empty where it cannot be told.
      type: str
    before:
      description: Number of devices by resource that follow from the layout that is there.
      type: dict
    after:
      description: The same for the planned layout, empty where it is refused.
      type: dict
    labels:
      description: Labels of gpu-feature-discovery that follow from the planned layout.
      type: dict
    refusals:
      description: Why the planned layout cannot be had, each with what to do instead.
      type: list
      elements: str
    warnings:
      description: What is not as people may expect.
      type: list
      elements: str
    heal:
      description: What a change that ended in the middle has left on the node, and the next run mends.
      type: list
      elements: str
    leaving:
      description: The pods that have to leave the node where its layout changes, as C(namespace/name).
      type: list
      elements: str
    drained:
      description: Whether a rollout has cordoned the node and not given it back.
      type: bool
    drained_for:
      description: The label of the layout for which it has, or an empty text.
      type: str
    missing:
      description: What the node does not offer of what is there now, or offers too much.
      type: list
      elements: str
"""
