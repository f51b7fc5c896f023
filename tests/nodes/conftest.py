# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Nodes need root, namespaces and apt. Where these are missing, nothing is tested here, and the reason is said."""

from __future__ import annotations

import pytest

from .build import why_not


@pytest.fixture(scope="session", autouse=True)
def _nodes_can_run() -> None:
    reason = why_not()
    if reason:
        pytest.skip(f"there can be no nodes on this machine: {reason}")
