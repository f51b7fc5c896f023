# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Fixtures: simulated nodes, each test its own."""

from __future__ import annotations

import pathlib
import sys

import pytest

from nvmlsim import Simulator

sys.path.insert(0, str(pathlib.Path(__file__).parent))  # nvml_client


@pytest.fixture
def node(tmp_path):
    """Make a node: ``node("1xa30-24gb", driver="535")``."""
    made: list[Simulator] = []

    def make(gpus: str = "1xa100-sxm4-40gb", **options) -> Simulator:
        made.append(Simulator.create(tmp_path / f"node{len(made)}", gpus, **options))
        return made[-1]

    return make
