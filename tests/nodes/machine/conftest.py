# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The scripts of a node are found as they are found there: by their names, beside each other."""

from __future__ import annotations

import sys

from .install import FILES

sys.path.insert(0, str(FILES / "usr/lib/sim"))
