# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Options of modules that change GPUs; the same set as CHANGE_ARGUMENTS in module_utils/ansible_bridge.py."""

from __future__ import annotations


class ModuleDocFragment:
    """What a change may take away or stop, and how long it may take."""

    DOCUMENTATION = r"""
options:
  evict:
    description:
      - What the change may take away. Each choice includes the ones before it.
      - No process is ever killed. If something stays in the way, the task fails before the first write and names
        every process with its unit, container, pod or job, and every reservation.
    type: str
    choices:
      none: Nothing that a process uses or that is reserved.
      reserved: Instances that are reserved and that no process uses.
      clients: What running O(clients) use. They are stopped before the change and started again after it.
    default: none
  clients:
    description:
      - Systemd units and containers that use GPUs, in the order in which they are stopped. They are started in reverse
        order.
      - They are only stopped with O(evict=clients), only those that are running, and only when the change is of a
        kind that concerns them. Exactly those that were stopped are started again, also after a failure.
      - An item is the name of a unit, or a mapping with C(unit) and C(for). The latter is a list of the kinds of change
        that the unit must not run during, V(instances), V(mode) and V(reset). By default it is all of them.
      - With C(for=never) a unit, or the containers with a label, are not stopped, by whatever name another item has
        them. An item whose stop would take them along is refused.
      - Containers are named by a mapping with C(container), a label as C(LABEL) or C(LABEL=VALUE), with C(runtime),
        which is V(docker), V(podman) or V(nerdctl), and with C(for). They are all containers of that runtime that run
        and have the label. A runtime whose client program is not there, or whose daemon is not active, is not called
        and has none.
      - Units are never enabled, disabled or masked.
    type: list
    elements: raw
    default: []
  reservations:
    description:
      - Instances and GPUs that are promised to somebody who does not have them open now.
      - Each is a mapping with C(device), a MIG UUID or a GPU UUID, and C(holder), the words for messages, such as
        V(Slurm job 4711).
      - With C(source), such as V(kubelet), it comes from a program and not from a person, as those of
        M(gpufleet.mig.kubelet_reservation_info) and M(gpufleet.mig.mig_container_info) do. Then a device that is not
        there is passed over with a warning, and not refused, and a device that is not named by a UUID counts for every
        GPU of the node, since it may be each of them.
    type: list
    elements: dict
    default: []
  manage_drm:
    description:
      - Allow to unload the kernel module C(nvidia_drm), which keeps GPUs from being reset. It is loaded again
        afterwards.
    type: bool
    default: false
  lock_timeout:
    description:
      - How many seconds to wait while another run changes this node. Then the task fails and says who it is.
    type: float
    default: 300
  operation_timeout:
    description:
      - How many seconds one call to the driver, or reading one GPU, may take. After that the driver is considered hung,
        nothing further is written, and the task fails.
    type: float
    default: 60
  client_timeout:
    description: How many seconds stopping or starting one of O(clients) may take.
    type: float
    default: 90
"""
