# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What `make demo` promises to a newcomer, and that its last line can say otherwise."""

from __future__ import annotations

import os
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]


def demo(**environment: str) -> subprocess.CompletedProcess[str]:
    """Run the tour and return what it said."""
    return subprocess.run(
        ["bash", str(ROOT / "tools/demo.sh")],
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=300,
    )


def test_the_demo_makes_56_devices_and_its_last_run_changes_and_writes_nothing() -> None:
    tour = demo()

    assert tour.returncode == 0, tour.stdout[-3000:]
    assert tour.stdout.count("would change 8 GPUs; 8 GPUs with 56 MIG devices") == 1
    assert tour.stdout.count("changed 8 GPUs; 8 GPUs with 56 MIG devices") == 1
    assert "+GPU 7  |1g.5gb |" in tour.stdout, "the plan is shown as a diff of pictures"
    last_run = tour.stdout.rpartition("Once more")[2]
    assert "changed=0" in last_run
    assert "MIG devices on the node: 56" in last_run
    assert "no write call" in last_run


def test_the_no_write_line_changes_when_an_instance_was_destroyed_before_the_last_run() -> None:
    tour = demo(DEMO_INTERFERE="1")

    last_run = tour.stdout.rpartition("Once more")[2]
    assert tour.returncode == 1, tour.stdout[-3000:]
    assert "no write call" not in last_run
    assert "2 of them writes: nvmlDeviceCreateGpuInstanceWithPlacement, nvmlGpuInstanceCreateCompute" in last_run
    assert "changed=1" in last_run
