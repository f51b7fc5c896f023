# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""How modules of the collection reach a Kubernetes API."""

from __future__ import annotations


class ModuleDocFragment:
    """The options that they have in common."""

    DOCUMENTATION = r"""
requirements:
  - on the controller, or in its execution environment, the collection kubernetes.core and the Python package kubernetes
options:
  auth:
    description:
      - Options of kubernetes.core for the connection, such as C(kubeconfig), C(context), C(host), C(api_key),
        C(ca_cert) and C(validate_certs).
      - What is not set comes from the environment (C(K8S_AUTH_...)), from C(~/.kube/config), or from the pod that the
        controller runs in.
    type: dict
    default: {}
"""
