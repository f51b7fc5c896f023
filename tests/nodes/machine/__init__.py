# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What makes a node a computer with GPUs: files for its tree, and how its services are told to misbehave."""

from .install import behave, clear_behaviour, install

__all__ = ["behave", "clear_behaviour", "install"]
