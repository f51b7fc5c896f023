# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# The code is in plugins/action/kubernetes_mig_manager.py: the API is asked from the controller.

from __future__ import annotations

DOCUMENTATION = r"""
module: kubernetes_mig_manager
short_description: Have the MIG manager of NVIDIA's operator bring a node to a layout
version_added: 0.1.0
description:
  - Runs on the controller and asks the Kubernetes API, as C(kubectl) would. Nothing is asked of the host of the task,
    and no GPU is touched by this collection. What becomes of the GPUs is up to the manager.
  - The config is put into a config map of its own, under a name that ends with a hash of its content, and the label
    C(nvidia.com/mig.config) of the node gets this name. So a config that was edited under its label acts, and nodes
    that have the old one keep it.
  - The task waits until the manager says C(success). If it says C(failed) the label goes back to what it was, and so
    does the node. A manager that got stuck is called again by a second name of the same content. One that is at work,
    as for a run that was killed, is waited for first.
  - A manager that has said C(failed) before, or whose pod crashes, is started anew once by deleting its pod, and is
    waited for. It tries nothing again by itself, and one that came while the driver was away fails until it is made
    anew.
  - Fails at once where nobody would act on the label, because the node has no C(nvidia.com/mig.capable=true), because
    its manager is switched off or not there, or because the ClusterPolicy names another config map.
  - A node that was taken over from its manager (M(gpufleet.mig.kubernetes_node) with V(taken_over)) is given back with
    O(hand_back). It gets a label that names what it has, so that the manager finds nothing to do. It counts as taken
    over until the manager has said C(success), so that a run after one that was killed or failed ends it.
extends_documentation_fragment:
  - gpufleet.mig.attributes
  - gpufleet.mig.attributes.actiongroup_kubernetes
  - gpufleet.mig.kubernetes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
  idempotent:
    support: full
options:
  name:
    description: The name of the node in Kubernetes.
    type: str
    required: true
  label:
    description: The label of the layout, such as V(all-1g.5gb), with which the name begins.
    type: str
    required: true
  config:
    description: What the node shall have, as entries of NVIDIA's config file format for mig-parted.
    type: list
    elements: dict
    required: true
  config_map:
    description: The config map. It must not be the operator's own, which the operator makes again as it was.
    type: str
    default: gpufleet-mig
  namespace:
    description: The namespace of the operator.
    type: str
    default: gpu-operator
  set_policy:
    description:
      - Whether the ClusterPolicy gets the name of the config map where it has another one. That is for all nodes of the
        cluster, and their managers are started again by it. What the other config map has is copied before.
    type: bool
    default: false
  hand_back:
    description:
      - Whether the node is given back to its manager, where it was taken over from it. A node that was not stays as it
        is. O(config) must be what it has.
    type: bool
    default: false
  manager_selector:
    description: Label selectors of the pods of the MIG manager.
    type: raw
    default: [app=nvidia-mig-manager]
  run:
    description: A name of the run for others who look at the node.
    type: str
    default: ansible
  timeout:
    description: Seconds until the manager must have said how it went.
    type: float
    default: 900
  ready_timeout:
    description: Seconds until a pod of the manager on this node must be ready.
    type: float
    default: 300
  known_after:
    description:
      - Seconds after which the manager knows a config that is new in the config map, which it reads from a volume.
        Until then it is called again when it says C(failed).
    type: float
    default: 150
  stays:
    description:
      - Seconds in which the label must stay as it was set. A tool that follows a repository and has another value for
        it sets it back within this time.
    type: float
    default: 10
seealso:
  - module: gpufleet.mig.kubernetes_node
  - module: gpufleet.mig.kubernetes_devices
author:
  - the gpufleet.mig authors (@gpufleet)
"""

EXAMPLES = r"""
- name: Have seven small devices on each GPU of a node
  gpufleet.mig.kubernetes_mig_manager:
    name: "{{ inventory_hostname }}"
    label: all-1g.5gb
    config:
      - devices: all
        mig-enabled: true
        mig-devices:
          1g.5gb: 7
    auth:
      context: production
"""

RETURN = r"""
msg:
  description: What the node has, or why it has not, with the next action.
  returned: always
  type: str
node:
  description: The name of the node.
  returned: always
  type: str
config:
  description: The name of the config, which is the value of the label.
  returned: always
  type: str
altered:
  description:
    - Whether the manager was called, or started anew. False on failure means that nothing happened to the GPUs.
  returned: always
  type: bool
rolled_back:
  description: Whether the node has again what it had before, after the manager failed.
  returned: always
  type: bool
"""
