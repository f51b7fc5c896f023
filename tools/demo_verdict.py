# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Say what the last run of the demo cost, from the simulator's own record and state.

Usage: demo_verdict.py STATE. Exit status 0 when the node has 56 MIG devices and the recorded run wrote nothing, else 1.
"""

from __future__ import annotations

import json
import subprocess
import sys

DEVICES_WANTED = 56


def simulator(*command: str) -> dict:
    """Return what ``nvmlsim COMMAND --json`` prints."""
    return json.loads(
        subprocess.run(["nvmlsim", *command, "--json"], check=True, capture_output=True, text=True).stdout
    )


def main(state: str) -> int:
    gpus = simulator("show", state)["gpus"]
    devices = sum(len(gi["compute"]) for gpu in gpus for gi in gpu["instances"])
    record = simulator("calls", state)
    print(f"\nMIG devices on the node: {devices}")
    if record["writes"]:
        names = sorted({call["function"] for call in record["calls"] if call["write"]})
        print(f"The last run made {record['total']} NVML calls, {record['writes']} of them writes: {', '.join(names)}")
    else:
        print(f"The last run made {record['total']} NVML calls and no write call.")
    return 0 if devices == DEVICES_WANTED and not record["writes"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
