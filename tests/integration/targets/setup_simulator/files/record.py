# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Print what was called on simulated nodes since the last time: the number of calls and of NVML sessions, and the
writes by name.

Usage: record.py STATE...
"""

from __future__ import annotations

import json
import sys

from nvmlsim import Simulator


def main() -> None:
    """Print the record of each node, a line of JSON, and start new ones."""
    for state in sys.argv[1:]:
        calls = Simulator(state).calls(reset=True)
        sessions = [call for call in calls if call.function.startswith("nvmlInit")]
        writes = [call.function for call in calls if call.write]
        print(json.dumps({"total": len(calls), "sessions": len(sessions), "writes": writes}))


if __name__ == "__main__":
    main()
