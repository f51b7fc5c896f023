# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What cannot be asked of Kubernetes is said in a sentence; what can is tested against an API in tests/kubernetes."""

from __future__ import annotations

import sys

import pytest

from ansible_collections.gpufleet.mig.plugins.plugin_utils._kubernetes_api import Api, ApiProblem


@pytest.mark.parametrize("lacks", ["kubernetes", "ansible_collections.kubernetes.core.plugins.module_utils.k8s.client"])
def test_a_controller_without_the_client_or_the_collection_is_told_what_to_install(monkeypatch, lacks):
    monkeypatch.setitem(sys.modules, lacks, None)
    with pytest.raises(ApiProblem, match="install the collection kubernetes.core and the Python package kubernetes"):
        Api({})
