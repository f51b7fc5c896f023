#!/usr/bin/python
# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Report which GPUs and MIG devices the kubelet of a node has given to pods."""

from __future__ import annotations

DOCUMENTATION = r"""
module: kubelet_reservation_info
short_description: Report which GPUs and MIG devices the kubelet of a node has given to pods
version_added: 0.1.0
description:
  - Asks the kubelet through its socket for pod resources which devices of C(nvidia.com/) its pods have, whether or not
    a process has them open now. M(gpufleet.mig.mig_config) takes the answer as
    O(gpufleet.mig.mig_config#module:reservations), and then plans around these devices or refuses to destroy them.
  - Runs on the node, needs nothing but Python, and no access to the API of Kubernetes.
  - Never changes anything. A node without a kubelet is not a failure (RV(available)). A kubelet that is there and gives
    no whole answer is one, since nobody must take that for "no pod has a device".
extends_documentation_fragment:
  - gpufleet.mig.attributes
  - gpufleet.mig.attributes.info_module
attributes:
  action:
    support: none
options:
  socket:
    description: Path of the kubelet's socket for pod resources. Some distributions keep it below another folder.
    type: path
    default: /var/lib/kubelet/pod-resources/kubelet.sock
  timeout:
    description: How many seconds one question to the kubelet may take, from connecting to the last byte of its answer.
    type: float
    default: 10
  allocatable:
    description:
      - Also ask which devices the kubelet could give to pods, as the device plugin has told it (RV(allocatable)).
      - The task fails where the kubelet does not answer this, as before Kubernetes 1.23 unless its feature gate
        C(KubeletPodResourcesGetAllocatable) is on.
    type: bool
    default: false
notes:
  - Needs root, since only root may open the socket.
  - Some releases of the kubelet go on listing the devices of pods that have ended, until the pods are removed.
seealso:
  - module: gpufleet.mig.mig_config
  - module: gpufleet.mig.gpu_holder_info
author:
  - the gpufleet.mig authors (@gpufleet)
"""

EXAMPLES = r"""
- name: Ask which devices pods have
  gpufleet.mig.kubelet_reservation_info:
  register: kubelet
  become: true

- name: Divide the GPUs around them
  gpufleet.mig.mig_config:
    label: all-1g.10gb
    reservations: "{{ kubelet.reservations }}"
  become: true

- name: Ask on a node of k0s, and which devices there are to give
  gpufleet.mig.kubelet_reservation_info:
    socket: /var/lib/k0s/kubelet/pod-resources/kubelet.sock
    allocatable: true
  register: kubelet
  become: true

- name: Wait until the device plugin has told of seven devices
  gpufleet.mig.kubelet_reservation_info:
    allocatable: true
  register: kubelet
  until: kubelet.allocatable['nvidia.com/mig-1g.5gb'] | default([]) | length == 7
  retries: 30
  delay: 2
  become: true
"""

RETURN = r"""
available:
  description: Whether a kubelet answered. If not, RV(problem) says why, and there are no reservations.
  returned: success
  type: bool
  sample: true
problem:
  description: Why no kubelet answered.
  returned: when RV(available) is false
  type: dict
  contains:
    error:
      description:
        - V(NO_SOCKET) where there is no socket.
        - V(NOT_LISTENING) where no process listens on it. A kubelet that was killed leaves it behind, and its pods go
          on running, so this is also a warning.
      type: str
      sample: NO_SOCKET
    message:
      description: What happened, in one sentence.
      type: str
    remedy:
      description: What to do about it.
      type: str
reservations:
  description:
    - The devices of pods, as O(gpufleet.mig.mig_config#module:reservations) wants them, in the order of the kubelet.
    - Replicas of one device that one container has, by time-slicing or MPS, are one entry.
  returned: success
  type: list
  elements: dict
  contains:
    device:
      description: UUID of the GPU or MIG device.
      type: str
      sample: MIG-b80c8fef-a677-5340-85fb-2c162d75df03
    holder:
      description: The pod and its container, in words.
      type: str
      sample: pod training/bert-0 (container worker)
    source:
      description: Who says so. A device that is gone is passed over then by M(gpufleet.mig.mig_config).
      type: str
      sample: kubelet
unresolved:
  description:
    - Devices of pods that are not named by a UUID, such as GPUs that are passed on to virtual machines, and claims of
      NVIDIA's DRA driver. Each is a warning.
    - They are in no reservation. As long as there are any, nobody can tell from this which GPUs no pod has.
    - Given to M(gpufleet.mig.mig_config) as O(gpufleet.mig.mig_config#module:reservations) each counts for all GPUs.
  returned: success
  type: list
  elements: dict
  contains:
    holder:
      description: The pod and its container, in words.
      type: str
      sample: pod vms/windows (container compute)
    resource:
      description: Name of the resource, or of the DRA driver.
      type: str
      sample: nvidia.com/GA100_A100
    device:
      description: What the kubelet calls the device.
      type: str
      sample: "0000:41:00.0"
    source:
      description: Who says so.
      type: str
      sample: kubelet
allocatable:
  description:
    - The devices of each resource of C(nvidia.com/) that the kubelet could give to pods, as the device plugin calls
      them, those that pods have included. With time-slicing or MPS these are replicas, with C(::) and a number.
  returned: when O(allocatable) is true and RV(available) is true
  type: dict
  sample:
    nvidia.com/mig-1g.5gb:
      - MIG-334b6b31-12a2-5bfc-bf4f-870c0954b343
      - MIG-b80c8fef-a677-5340-85fb-2c162d75df03
error:
  description:
    - Why there was no whole answer. It is the name of a status of gRPC or of an error of HTTP/2 that the kubelet gave.
    - Otherwise V(NotAllowed), V(TooLate), V(Malformed), or V(CallError).
  returned: failure
  type: str
  sample: UNIMPLEMENTED
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpufleet.mig.plugins.module_utils import node_kubelet


def main() -> None:
    """Entry point."""
    node_kubelet.look(AnsibleModule(argument_spec=node_kubelet.ARGUMENTS, supports_check_mode=True))


if __name__ == "__main__":
    main()
