#!/usr/bin/python
# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Set up a container engine for NVIDIA's runtime or for CDI."""

from __future__ import annotations

DOCUMENTATION = r"""
module: mig_container_engine
short_description: Set up a container engine for CDI or NVIDIA's runtime
version_added: 0.1.0
description:
  - Changes the settings of Docker, containerd, CRI-O or Podman in the file that is meant for that, and keeps all
    others.
  - Restarts nothing. RV(restart_pending) says whether the engine runs with older settings, also when an earlier run
    changed them.
  - An engine that the node does not have is passed over, so one list serves a fleet.
  - For Docker C(daemon.json) is changed as data. C(nvidia-ctk runtime configure) drops other C(features), and the
    arguments of a runtime that is there.
  - For containerd C(nvidia-ctk runtime configure) makes the settings, on a copy, and only what differs is written. It
    knows both versions of the format and how they merge files. Where an C(imports) line can be added to the file of the
    node, the rest of it stays letter by letter. The file beside it has the settings of the CRI plugin again, so run
    this module after every change of these.
  - CRI-O and Podman get a file of their own beside theirs, and only where a runtime is wanted. They find CDI devices
    without being told.
  - The role P(gpufleet.mig.containers#role) uses it.
extends_documentation_fragment:
  - gpufleet.mig.attributes
  - gpufleet.mig.attributes.actiongroup_mig
  - gpufleet.mig.state
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
    details:
      - Of C(daemon.json) only what this module changes is shown, since there may be passwords in it.
  idempotent:
    support: full
options:
  engine:
    description: The engine.
    type: str
    choices: [docker, containerd, crio, podman]
    required: true
  cdi:
    description: Whether it has to know CDI devices.
    type: bool
    default: true
  runtime:
    description: Whether it has to know NVIDIA's runtime, under the name V(nvidia). containerd gets it with O(cdi) too.
    type: bool
    default: false
  default_runtime:
    description: Whether that runtime is the default one. With V(false) what is the default stays so.
    type: bool
    default: false
  runtime_path:
    description: Absolute path of that runtime on the node.
    type: path
    default: /usr/bin/nvidia-container-runtime
  config:
    description:
      - The file. By default C(/etc/docker/daemon.json), C(/etc/containerd/config.toml),
        C(/etc/crio/crio.conf.d/99-gpufleet-mig.conf) or C(/etc/containers/containers.conf.d/60-gpufleet-mig.conf).
      - Of containerd it is the main one; C(conf.d/99-nvidia.toml) is beside it.
    type: path
  root:
    description: Folder in which these files are. Only of use for trials.
    type: path
    default: /
notes:
  - Needs root, and for containerd the NVIDIA Container Toolkit on the node.
seealso:
  - module: gpufleet.mig.mig_cdi
author:
  - the gpufleet.mig authors (@gpufleet)
"""

EXAMPLES = r"""
- name: Let Docker know CDI devices
  gpufleet.mig.mig_container_engine:
    engine: docker
  register: docker
  become: true

- name: Restart it where it may be
  ansible.builtin.systemd_service:
    name: "{{ docker.unit }}"
    state: restarted
  when: docker.restart_pending and docker.drained
  become: true

- name: Let containerd run every container with NVIDIA's runtime
  gpufleet.mig.mig_container_engine:
    engine: containerd
    default_runtime: true
  become: true
"""

RETURN = r"""
engine:
  description: The engine.
  type: str
  returned: success
  sample: docker
present:
  description: Whether the node has this engine, and it was not left alone. RV(msg) says why.
  type: bool
  returned: success
  sample: true
unit:
  description: Its systemd unit, empty where it has none.
  type: str
  returned: success
  sample: docker.service
files:
  description: Files that were changed, or would be.
  type: list
  elements: str
  returned: success
  sample: [/etc/docker/daemon.json]
restart_pending:
  description: Whether the engine runs and was started before its settings were written.
  type: bool
  returned: success
  sample: false
drained:
  description: Whether the role P(gpufleet.mig.mig#role) has drained this node and not given it back.
  type: bool
  returned: success
  sample: false
msg:
  description: What was done and what there is to do, in one sentence.
  type: str
  returned: always
  sample: Docker is set up.
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpufleet.mig.plugins.module_utils import ansible_bridge, node_engines


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec=node_engines.ARGUMENTS, supports_check_mode=True)
    ansible_bridge.run(module, node_engines.configure)


if __name__ == "__main__":
    main()
