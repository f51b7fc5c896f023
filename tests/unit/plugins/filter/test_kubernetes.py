# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The layout of a result is said in the words of NVIDIA's MIG manager."""

from __future__ import annotations

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.gpufleet.mig.plugins.filter.kubernetes import mig_parted_entries


def test_a_result_becomes_entries():
    whole = {
        "gpu": 0,
        "name": "NVIDIA A100-SXM4-40GB",
        "mig_current": True,
        "instances": [{"compute_instances": [{"profile": "3g.20gb"}]}] * 2,
    }
    assert mig_parted_entries([whole]) == [
        {"devices": "all", "mig-enabled": True, "mig-devices": {"3g.20gb": 2}},
    ]


@pytest.mark.parametrize("given", [None, {}, "text", [1]])
def test_what_is_no_result_is_told(given):
    with pytest.raises(AnsibleFilterError, match="takes the GPUs of a result"):
        mig_parted_entries(given)
