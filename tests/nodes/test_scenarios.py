# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Each Molecule scenario is one test. What it printed is in .venv/log/molecule-NAME.log."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from . import scenarios
from .fleet import Fleet
from .places import ROOT

LOGS = ROOT / ".venv" / "log"
LINES_SHOWN = 120


@pytest.mark.parametrize("name", scenarios.names())
def test_scenario(name: str) -> None:
    LOGS.mkdir(parents=True, exist_ok=True)
    log = LOGS / f"molecule-{name}.log"
    try:
        code = scenarios.run(name, log=log)
    finally:
        Fleet(name).down()
    said = log.read_text(errors="replace")
    assert code == 0, f"scenario {name} failed, see {log}:\n{last_lines(log)}"
    # Of its own: those that all scenarios share are about what did not happen.
    verified = re.findall(r"All assertions passed", said)
    assert verified, f"scenario {name} asserted nothing, see {log}"


def last_lines(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-LINES_SHOWN:])
