#!/usr/bin/python
# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Refuse what has systemd read its units anew while containers use GPUs."""

from __future__ import annotations

DOCUMENTATION = r"""
module: mig_reload_guard
short_description: Refuse what has systemd read its units anew while containers use GPUs
version_added: 0.1.0
description:
  - Where systemd keeps the cgroups of containers, C(systemctl daemon-reload) can take GPUs away from those that run.
    C(systemctl enable) and C(disable) read all units anew too. Run this module before a task that does one of them.
  - Fails with the names of running containers of Docker, Podman and nerdctl that were made with GPUs or MIG devices,
    and of pods to which the kubelet has given some. In check mode it warns of that.
  - Never changes anything, and does not ask the driver. A runtime whose client program is not there or whose daemon is
    not active is not asked, since the question could start it. One that does not answer is a warning.
  - A host that the role P(gpufleet.mig.mig#role) has drained and not given back, and one on which systemd does not run,
    is not asked.
extends_documentation_fragment:
  - gpufleet.mig.attributes
  - gpufleet.mig.attributes.info_module
attributes:
  action:
    support: none
options:
  state_dir:
    description:
      - Folder on the node for what belongs to this collection. The record of a drain is there.
      - By default C(/var/lib/gpufleet-mig).
    type: path
  allow:
    description: Whether to go on beside containers that use GPUs. They are reported all the same.
    type: bool
    default: false
  option:
    description: What a message tells to set to V(true) in order to go on, for roles that pass O(allow) on.
    type: str
    default: allow
  runtimes:
    description: The runtimes to ask.
    type: list
    elements: str
    choices: [docker, podman, nerdctl]
    default: [docker, podman, nerdctl]
  socket:
    description: Path of the kubelet's socket for pod resources. Some distributions keep it below another folder.
    type: path
    default: /var/lib/kubelet/pod-resources/kubelet.sock
notes:
  - Needs root. Only root's containers are seen, and of nerdctl only those of the namespace C(default), whose C(--gpus)
    is not shown.
  - Containers with C(--privileged) lose nothing and are not told apart. Nor are engines that keep cgroups themselves
    (C(native.cgroupdriver=cgroupfs)).
seealso:
  - module: gpufleet.mig.mig_container_info
  - module: gpufleet.mig.kubelet_reservation_info
author:
  - the gpufleet.mig authors (@gpufleet)
"""

EXAMPLES = r"""
- name: See that no container loses its GPUs
  gpufleet.mig.mig_reload_guard:
  become: true

- name: Have systemd read its units anew
  ansible.builtin.systemd_service:
    daemon_reload: true
  become: true
"""

RETURN = r"""
containers:
  description: Containers and pods that can lose GPUs, in words. None on a host that is drained.
  type: list
  elements: str
  returned: success or refused
  sample: ["container trainer (docker 3f2a1bc0d4e5, running)", "pod training/bert-0 (container worker)"]
drained:
  description: Whether the role P(gpufleet.mig.mig#role) has drained this host and not given it back.
  type: bool
  returned: success or refused
  sample: false
msg:
  description: What there is, and where it is refused what to do.
  type: str
  returned: always
  sample: Nobody is known who could lose GPUs when systemd reads its units anew.
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpufleet.mig.plugins.module_utils import node_reload
from ansible_collections.gpufleet.mig.plugins.module_utils.engine.model import MigError


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec=node_reload.ARGUMENTS, supports_check_mode=True)
    try:
        result = node_reload.look(module)
    except MigError as error:
        module.fail_json(msg=str(error))
    answer = module.fail_json if result.get("failed") else module.exit_json
    answer(**result)


if __name__ == "__main__":
    main()
