#!/usr/bin/python
# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Write down what an image wants of the GPUs that it will meet."""

from __future__ import annotations

DOCUMENTATION = r"""
module: mig_boot_wish
short_description: Write down what an image wants of the GPUs that it will meet
version_added: 0.1.0
description:
  - Writes C(wish.json) below O(state_dir), which the boot unit follows as long as the node remembers no layout that
    was proven. See the role P(gpufleet.mig.boot#role).
  - What is wished for is checked as far as that goes without a GPU, so that an image does not ship a label that nobody
    knows or a config that is malformed. Whether a GPU offers a profile is found out by the boot that meets it.
  - It is for images. Where C(wanted.json) is there, a wish would never be followed and is refused. On a machine whose
    driver and systemd run there is a warning, since the next boot of that machine would follow it.
  - Touches neither driver nor GPUs and derives nothing from them, so it works in an image that is being built.
extends_documentation_fragment:
  - gpufleet.mig.attributes
  - gpufleet.mig.attributes.actiongroup_mig
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
  idempotent:
    support: full
options:
  state:
    description: Whether there is a wish.
    type: str
    choices:
      present: The boot follows what the other options say.
      absent: The boot follows nothing but what was proven.
    default: present
  label:
    description:
      - Name of the wanted config, as O(gpufleet.mig.mig_config#module:label). Every GPU finds out what it means for
        its own model, so that one image serves boards of several kinds.
      - This or O(label_by_gpu) is needed.
    type: str
  label_by_gpu:
    description: Label by kind of GPU, as O(gpufleet.mig.mig_config#module:label_by_gpu).
    type: dict
  configs:
    description: Labels with their entries, as O(gpufleet.mig.mig_config#module:configs).
    type: dict
  config_file:
    description:
      - Path of a mig-parted config file on the controller, as O(gpufleet.mig.mig_config#module:config_file).
      - Cannot be combined with O(configs).
    type: str
  unlisted:
    description: What becomes of MIG-capable GPUs that the C(devices) lists of the config leave out.
    type: str
    choices:
      ignore: They are left as they are.
      disable: MIG is turned off on them.
      fail: The boot unit fails for them.
    default: ignore
  allow_empty:
    description: Allow a config that turns MIG on without any instance.
    type: bool
    default: false
  expected_gpus:
    description: Number of GPUs that a machine with this image must have. With another number the boot unit fails.
    type: int
  state_dir:
    description:
      - Folder for what belongs to this collection.
      - By default C(/var/lib/gpufleet-mig).
    type: path
notes:
  - Needs root where O(state_dir) does.
seealso:
  - module: gpufleet.mig.mig_config
  - module: gpufleet.mig.mig_runtime
author:
  - the gpufleet.mig authors (@gpufleet)
"""

EXAMPLES = r"""
- name: Seven small instances on whatever GPUs the machine has
  gpufleet.mig.mig_boot_wish:
    label: all-1g

- name: One image for boards of several kinds
  gpufleet.mig.mig_boot_wish:
    label: all-disabled
    label_by_gpu:
      NVIDIA A100-SXM4-40GB: 3g.20gb,4x1g.5gb
      "0x233010DE": thirds
    config_file: mig-parted.yaml
    unlisted: disable
    allow_empty: false
    expected_gpus: 8

- name: A label of one's own
  gpufleet.mig.mig_boot_wish:
    label: halves
    configs:
      halves:
        - devices: all
          mig-enabled: true
          mig-devices: {3g.40gb: 2}

- name: Leave the GPUs of new machines as they are
  gpufleet.mig.mig_boot_wish:
    state: absent

- name: Write it into the tree of an image
  gpufleet.mig.mig_boot_wish:
    label: all-balanced
    state_dir: /srv/image/var/lib/gpufleet-mig
"""

RETURN = r"""
wish:
  description: What is written, or would be; null where there is no wish.
  type: dict
  returned: success
  sample:
    {"allow_empty": false, "configs": {}, "expected_gpus": null, "label": "all-1g", "label_by_gpu": {},
     "unlisted": "ignore"}
file:
  description: Where it is.
  type: str
  returned: success
  sample: /var/lib/gpufleet-mig/wish.json
msg:
  description: What the first boot does, in one sentence. On failure, what is wrong, and what to do next.
  type: str
  returned: always
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpufleet.mig.plugins.module_utils import ansible_bridge, node_wish


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec=node_wish.ARGUMENTS, supports_check_mode=True)
    ansible_bridge.run(module, node_wish.write)


if __name__ == "__main__":
    main()
