# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Each Molecule scenario is one test.

Below .venv/log lies what it printed (molecule-NAME.log) and, if it failed, what its nodes knew (nodes-NAME.log).
"""

from __future__ import annotations

import re

import pytest

from . import observe, scenarios
from .fleet import Fleet
from .places import LOGS


@pytest.mark.parametrize("name", scenarios.names())
def test_scenario(name: str) -> None:
    LOGS.mkdir(parents=True, exist_ok=True)
    log = LOGS / f"molecule-{name}.log"
    told = observe.tell_file(name)
    told.unlink(missing_ok=True)
    try:
        code = scenarios.run(name, log=log)
    finally:
        Fleet(name).down()
    said = log.read_text(errors="replace")
    nodes = told.read_text(errors="replace") if told.exists() else ""
    assert code == 0, f"scenario {name} failed, see {log}\n\n{what_failed(said)}\n\n{nodes}"
    assert assertions_of_verify(said), f"scenario {name} asserted nothing in its verify.yml, see {log}"


def assertions_of_verify(said: str) -> int:
    """How many assertions held in the steps called verify; those that the role itself makes do not count."""
    steps = re.split(r"> (\w+)\] Executing$", said, flags=re.MULTILINE)[1:]
    return sum(text.count("All assertions passed") for step, text in zip(steps[::2], steps[1::2]) if step == "verify")


def what_failed(said: str) -> str:
    """The last play before Molecule gave up."""
    until_then = said.partition("CRITICAL ")[0]
    return until_then[until_then.rfind("\nPLAY [") :][-6000:]
