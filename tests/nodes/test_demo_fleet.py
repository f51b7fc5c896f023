# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What `make demo-fleet` promises: three nodes are divided, a second run does nothing, the nodes go however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import typing as t

import pytest

from . import cgroups
from .places import CHECKOUT, FLEETS, ROOT


def demo(*words: str) -> subprocess.Popen[str]:
    """The tour, as the leader of a process group that heeds Ctrl-C, as a shell with a terminal starts it."""
    options: dict[str, t.Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    command = ["env", "--default-signal=INT", "tools/demo_fleet.sh", *words]
    return subprocess.Popen(command, cwd=ROOT, text=True, start_new_session=True, **options)


def left_of(tour: subprocess.Popen[str]) -> list[str]:
    fleet = f"demo-{tour.pid}"
    folders = [str(FLEETS / fleet)] if (FLEETS / fleet).exists() else []
    return [*cgroups.names(f"{CHECKOUT}-{fleet}."), *folders]


def test_three_nodes_are_divided_and_a_second_run_does_nothing() -> None:
    tour = demo()
    said, _errors = tour.communicate(timeout=300)
    assert tour.returncode == 0, said[-3000:]
    for line in (
        "a100: system running, 0 MIG devices, running: dcgm-exporter nvidia-dcgm nvidia-fabricmanager",
        "a100: system running, 32 MIG devices, running: dcgm-exporter nvidia-dcgm nvidia-fabricmanager",
        "h100: system running, 16 MIG devices, running: dcgm-exporter nvidia-dcgm nvidia-persistenced",
        "mixed: system running, 4 MIG devices, running: dcgm-exporter nvidia-dcgm nvidia-persistenced",
    ):
        assert said.count(line) == 1, line
    last_run = said.rpartition("Once more")[2]
    assert last_run.count("changed=0") == 3
    assert last_run.endswith("Nothing happened.\n")
    assert left_of(tour) == []


def test_run_that_fails_fails_the_demo_and_the_nodes_go() -> None:
    tour = demo("-e", "mig_profile=no-such-label")
    said, _errors = tour.communicate(timeout=300)
    assert tour.returncode == 2, said[-3000:]
    assert "no-such-label" in said
    assert left_of(tour) == []


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_nodes_go_when_somebody_ends_the_demo(how: signal.Signals) -> None:
    tour = demo()
    deadline = time.monotonic() + 60
    while not any((FLEETS / f"demo-{tour.pid}").glob("*/boots")):
        assert time.monotonic() < deadline, "waited for a node to boot"
        time.sleep(0.02)
    os.killpg(tour.pid, how)  # as a terminal does it
    tour.communicate(timeout=60)
    assert tour.returncode not in (0, None)
    assert left_of(tour) == []
