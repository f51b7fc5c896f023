#!/usr/bin/python
# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""See whether the metrics of an exporter have every MIG instance."""

from __future__ import annotations

DOCUMENTATION = r"""
module: mig_metrics_info
short_description: See whether the metrics of an exporter have every MIG instance
version_added: 0.1.0
description:
  - Reads the metrics of dcgm-exporter on the node, until they have a series for each MIG instance that there is and
    none that is gone, or the time is over. Exporters were seen to stall or to lose instances when a layout changed.
  - Series are told apart by the labels C(UUID) (or C(uuid), C(gpu_uuid), and without them C(gpu)) and C(GPU_I_ID).
  - What is not right is a warning and never a failure. The exporter has no share in the layout.
  - Never changes anything, and does not ask the driver.
extends_documentation_fragment:
  - gpufleet.mig.attributes
  - gpufleet.mig.attributes.info_module
attributes:
  action:
    support: none
options:
  url:
    description:
      - Where the node itself reads the metrics, without a proxy and without following redirects, such as
        V(http://localhost:9400/metrics).
      - For an exporter in a pod this needs C(hostNetwork) or a C(hostPort).
    type: str
    required: true
  gpus:
    description:
      - The GPUs with their instances, as RV(gpufleet.mig.mig_info#module:gpus) or
        RV(gpufleet.mig.mig_config#module:after).
    type: list
    elements: dict
    required: true
  timeout:
    description: Seconds until the exporter must have what there is. It collects every 30 seconds by default.
    type: float
    default: 60
  validate_certs:
    description: Whether the certificate of a C(https) URL is verified.
    type: bool
    default: true
notes:
  - The number of a GPU is that of DCGM. It is only looked at where there is no UUID.
  - An instance without a compute instance has no device, and is not expected.
seealso:
  - module: gpufleet.mig.mig_info
author:
  - the gpufleet.mig authors (@gpufleet)
"""

EXAMPLES = r"""
- name: Look at the GPUs
  gpufleet.mig.mig_info:
  register: mig
  become: true

- name: See whether all of them are monitored
  gpufleet.mig.mig_metrics_info:
    url: http://localhost:9400/metrics
    gpus: "{{ mig.gpus }}"
"""

RETURN = r"""
right:
  description: Whether the metrics have every MIG instance, and no other of these GPUs.
  type: bool
  returned: success
  sample: true
missing:
  description: Instances of which there are no metrics.
  type: list
  elements: str
  returned: success
  sample: ["1g.5gb (GPU 0, GI 9)"]
stale:
  description: Instances of which there are metrics, and that are not there.
  type: list
  elements: str
  returned: success
  sample: ["GI 2 of GPU gpu-8f2c1d90-3e5a-4b17-9c2e-5da9abb51763"]
msg:
  description: What was seen, and what to do.
  type: str
  returned: always
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpufleet.mig.plugins.module_utils import node_metrics


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec=node_metrics.ARGUMENTS, supports_check_mode=True)
    module.exit_json(**node_metrics.look(module))


if __name__ == "__main__":
    main()
