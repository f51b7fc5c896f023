# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# The code is in plugins/action/kubernetes_devices.py: the API is asked from the controller.

from __future__ import annotations

DOCUMENTATION = r"""
module: kubernetes_devices
short_description: Have a Kubernetes node offer exactly the MIG devices that it has
version_added: 0.1.0
description:
  - Runs on the controller and asks the Kubernetes API, as C(kubectl) would. Nothing is asked of the host of the task.
  - NVIDIA's device plugin reads the MIG devices of its node when it starts, and offers them from then on, also when
    they are gone. So after a change its pod on this node is deleted, and then that of gpu-feature-discovery, and then
    that of the exporter. Each is waited for until the pod in its place is ready, before the next one goes.
  - The node is right when its allocatable resources are those that follow from the layout and the strategy of its
    plugin, and its labels too. A resource that is gone and that the kubelet goes on to name with 0 is reported and
    tolerated.
  - If the node does not become right in time the task fails and says what is missing, and what the kubelet says of the
    pod. The layout of the GPUs is right then, and its components are not.
  - A node that is right is only looked at, unless O(restart) is set.
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
    support: partial
    details: With O(restart) the pods are started again each time.
options:
  name:
    description: The name of the node in Kubernetes.
    type: str
    required: true
  gpus:
    description:
      - The GPUs with their layout, as RV(gpufleet.mig.mig_config#module:after) or
        RV(gpufleet.mig.mig_info#module:gpus).
    type: list
    elements: dict
    required: true
  strategy:
    description:
      - The strategy, V(none), V(single) or V(mixed). Default is that of the device plugin of the node, and without one
        that of its label C(nvidia.com/mig.strategy).
    type: str
    default: ''
  restart:
    description:
      - Whether the pods are started again although the node looks right. It does when MIG devices were replaced by
        others of the same profile, of which the device plugin knows nothing.
    type: bool
    default: false
  plugin_selector:
    description: Label selectors of the pods of the device plugin. A pod needs to match one of them.
    type: raw
    required: true
  discovery_selector:
    description: The same for gpu-feature-discovery. Where it is empty labels are not looked at.
    type: raw
    default: []
  exporter_selector:
    description: The same for the exporter of DCGM.
    type: raw
    default: []
  timeout:
    description: Seconds that each step may take.
    type: float
    default: 300
seealso:
  - module: gpufleet.mig.kubernetes_node
  - module: gpufleet.mig.kubernetes_plan
author:
  - the gpufleet.mig authors (@gpufleet)
"""

EXAMPLES = r"""
- name: Offer the new MIG devices
  gpufleet.mig.kubernetes_devices:
    name: "{{ inventory_hostname }}"
    gpus: "{{ changed.after }}"
    restart: "{{ changed is changed }}"
    plugin_selector: [app.kubernetes.io/name=nvidia-device-plugin]
    discovery_selector: [app.kubernetes.io/name=gpu-feature-discovery]
    exporter_selector: [app.kubernetes.io/name=dcgm-exporter]
    auth:
      context: production
"""

RETURN = r"""
msg:
  description: What the node offers, or what it does not and why, with the next action.
  returned: always but in check mode
  type: str
node:
  description: The name of the node.
  returned: always
  type: str
resources:
  description: Number of devices by resource that follow from the layout.
  returned: when the strategy of the node can have the layout
  type: dict
labels:
  description: Labels of gpu-feature-discovery that follow from the layout.
  returned: when the strategy of the node can have the layout
  type: dict
restarted:
  description: Pods that were deleted so that others take their place, in this order, as namespace and name.
  returned: always
  type: list
  elements: str
stale:
  description: Resources that are gone and that the kubelet goes on to name with 0.
  returned: always
  type: list
  elements: str
"""
