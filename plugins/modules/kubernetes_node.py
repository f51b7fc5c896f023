# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# The code is in plugins/action/kubernetes_node.py: the API is asked from the controller.

from __future__ import annotations

DOCUMENTATION = r"""
module: kubernetes_node
short_description: Take a Kubernetes node out of use for a change, and give it back as it was
version_added: 0.1.0
description:
  - Runs on the controller and asks the Kubernetes API, as C(kubectl) would. Nothing is asked of the host of the task.
  - A cordon of this module remembers what was before it. One patch makes the node unschedulable and leaves the
    annotation C(gpufleet.mig/cordon), which names the run and whether the node was cordoned already. V(uncordoned)
    gives back what this annotation names and nothing else, so that a node which somebody else had cordoned stays so.
  - The annotation outlives a run that was killed. The next run finds it, keeps what was before the first of the two,
    and gives the node back.
  - NVIDIA's operator deploys what uses GPUs by labels of the node. V(paused) sets O(labels) to
    C(paused-for-mig-change), as NVIDIA's MIG manager does, keeps what they were in the annotation
    C(gpufleet.mig/paused), and waits until O(paused_pods) are gone. A label that is not there or says C(false) stays
    so. V(resumed) gives the values back, also those of labels that a MIG manager has left paused.
  - A daemonset that no label deploys can keep away from nodes with the label C(gpufleet.mig/paused), which V(paused)
    makes and V(resumed) removes. Those of the role P(gpufleet.mig.device_plugin#role) do. Pods of a daemonset that
    heeds no label stay; they are returned as RV(staying), with a warning.
  - The operator deploys its MIG manager to a node by the label C(nvidia.com/gpu.deploy.mig-manager). V(taken_over)
    sets it to C(false) where it says C(true), keeps what it was in the annotation C(gpufleet.mig/taken-over), and waits
    until O(paused_pods) are gone. M(gpufleet.mig.kubernetes_mig_manager) gives the node back.
  - A node is drained by evictions, so that disruption budgets count. While a budget does not permit an eviction it is
    asked for again, until O(timeout). Nothing is deleted past a budget.
  - Pods of daemonsets, static pods and pods that are over stay. If a pod has no controller or keeps data in an
    C(emptyDir) volume, nothing is evicted and the task fails with their names, unless O(force) or
    O(delete_emptydir_data) permit it.
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
  state:
    description: What becomes of the node.
    type: str
    required: true
    choices:
      cordoned: No new pod comes to it.
      drained: No new pod comes to it, and its pods have left.
      paused: What O(labels) deploy on it is gone.
      resumed: Labels have the values that they had before they were paused.
      uncordoned: It is as it was before this module cordoned it.
      taken_over: The operator's MIG manager is not deployed to it.
  run:
    description: A name of the run for others who look at the node.
    type: str
    default: ansible
  drained_for:
    description:
      - The label of the layout for which a rollout drains the node, kept with its cordon. A node that another rollout
        has drained for another layout, and not given back, is refused then.
      - Without it the cordon is that of a run which is no rollout, and is left to it by every rollout.
    type: str
  take_over_drain:
    description: Whether a node that was drained for another layout is taken over all the same.
    type: bool
    default: false
  pods:
    description: The pods that have to leave.
    type: str
    choices:
      all: All that C(kubectl drain) would evict.
      gpu: Those of them that ask for a resource of NVIDIA (C(nvidia.com/...)) or have resource claims.
    default: all
  force:
    description: Whether pods without a controller are evicted too. Nobody makes another of them.
    type: bool
    default: false
  delete_emptydir_data:
    description: Whether pods with C(emptyDir) volumes are evicted too. What they have there is lost.
    type: bool
    default: false
  grace_period:
    description: Seconds that a pod gets to end. Default is what each pod says itself.
    type: int
  labels:
    description: Labels of the node by which daemonsets choose it, such as V(nvidia.com/gpu.deploy.device-plugin).
    type: list
    elements: str
    default: []
  paused_pods:
    description: Label selectors of the pods that O(labels) deploy, or for V(taken_over) of those of the MIG manager.
    type: raw
    default: []
  stays:
    description:
      - Seconds in which the label of a node that was taken over must stay as it was set. A tool that follows a
        repository and has another value for it sets it back within this time.
    type: float
    default: 10
  timeout:
    description: Seconds until all pods must have left.
    type: float
    default: 600
seealso:
  - module: gpufleet.mig.mig_config
  - module: gpufleet.mig.kubernetes_mig_manager
author:
  - the gpufleet.mig authors (@gpufleet)
"""

EXAMPLES = r"""
- name: Have pods that use GPUs leave a node
  gpufleet.mig.kubernetes_node:
    name: "{{ inventory_hostname }}"
    state: drained
    pods: gpu
    run: "{{ awx_job_id | default('by hand') }}"
    timeout: 1800
    auth:
      context: production

- name: Give it back
  gpufleet.mig.kubernetes_node:
    name: "{{ inventory_hostname }}"
    state: uncordoned
    auth:
      context: production
"""

RETURN = r"""
msg:
  description: What was done, in one sentence, or why it was not and what to do next.
  returned: on failure and for O(state=uncordoned)
  type: str
node:
  description: The name of the node.
  returned: always
  type: str
found_run:
  description: The run whose cordon was found, empty where there was none.
  returned: for O(state=cordoned) and O(state=drained)
  type: str
was_unschedulable:
  description: Whether the node had been cordoned before, null where it was not cordoned by this module.
  returned: for O(state=uncordoned)
  type: bool
staying:
  description: Those of O(paused_pods) that no label keeps away from the node, as namespace and name.
  returned: for O(state=paused), but in check mode
  type: list
  elements: str
pods:
  description: The pods that had to leave, as namespace and name.
  returned: for O(state=drained)
  type: list
  elements: str
"""
