# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A simulated NVIDIA driver library for tests and demos of MIG partitioning. See README.md beside this folder."""

from __future__ import annotations

from nvmlsim.boards import Board, ComputeInstanceProfile, Engines, GpuInstanceProfile, load_boards, load_systems
from nvmlsim.errors import ChildKilled, SimulatorError
from nvmlsim.simulator import Call, Holder, Simulator

__all__ = [
    "Board",
    "Call",
    "ChildKilled",
    "ComputeInstanceProfile",
    "Engines",
    "GpuInstanceProfile",
    "Holder",
    "Simulator",
    "SimulatorError",
    "load_boards",
    "load_systems",
]
