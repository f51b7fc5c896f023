# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Where things are, and what they are called."""

from __future__ import annotations

import hashlib
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SIMULATOR = ROOT / "tests" / "simulator"
SCENARIOS = ROOT / "extensions" / "molecule"
STORE = ROOT / ".venv" / "nodes"  # everything that is made, so that one `rm -rf .venv` is a fresh start
HOST_TOOLS = STORE / "host"
LAYERS = STORE / "layers"
KEY = STORE / "key"
FLEETS = STORE / "run"
CLUSTERS = STORE / "clusters"
LOGS = ROOT / ".venv" / "log"

# Names that the whole machine shares (network namespaces, cgroups) begin with this: two checkouts do not meet.
CHECKOUT = "gf" + hashlib.sha256(bytes(ROOT)).hexdigest()[:5]

# Short, because the path of a socket must be: ssh keeps its shared connections here.
SOCKETS = Path("/run/gpufleet-nodes")
