# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What can go wrong in the simulator itself, apart from the failures that it simulates."""

from __future__ import annotations


class SimulatorError(Exception):
    """The simulator cannot do what was asked. The message is one sentence for people."""


class ChildKilled(SimulatorError):
    """A function run by ``Simulator.call`` died of a signal before it returned; ``signal`` is its number."""

    def __init__(self, signal: int) -> None:
        super().__init__(f"the process that used the simulated driver was killed by signal {signal}")
        self.signal = signal
