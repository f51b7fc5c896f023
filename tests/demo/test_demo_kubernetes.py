# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What `make demo-kubernetes` promises: what a node offers after each command, which pods fit, and no leftovers."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import time
import typing as t

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRATCH = ROOT / ".venv/demo"


def demo(*words: str) -> subprocess.Popen[str]:
    """The tour, as the leader of a process group that heeds Ctrl-C, as a shell with a terminal starts it."""
    options: dict[str, t.Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    command = ["env", "--default-signal=INT", "tools/demo_kubernetes.sh", *words]
    return subprocess.Popen(command, cwd=ROOT, text=True, start_new_session=True, **options)


def clusters() -> list[str]:
    """The command lines of all stand-in clusters of this checkout."""
    found = []
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_text().replace("\0", " ")
        except OSError:
            continue
        if "tests.kubernetes.serve" in words and str(SCRATCH) in words:
            found.append(words)
    return found


def test_a_node_goes_from_eight_gpus_to_56_slices_by_two_names_and_back_and_pods_fit_accordingly() -> None:
    tour = demo()
    said, _errors = tour.communicate(timeout=900)
    assert tour.returncode == 0, said[-3000:]
    steps = said.split("\n== ")[2:]
    offers = ["nvidia.com/gpu: 8", "nvidia.com/mig-1g.5gb: 56", "nvidia.com/gpu: 56", "nvidia.com/gpu: 8"]
    products = ["", "", "-MIG-1g.5gb", ""]
    for step, offer, product in zip(steps, offers, products, strict=True):
        assert step.count("$ ansible-playbook") == 1, "one command each"
        assert f"    allocatable  {offer}\n" in step
        assert f"nvidia.com/gpu.product=NVIDIA-A100-SXM4-40GB{product}\n" in step
    whole, mixed, single, back = steps
    for step in (whole, back):
        assert "pods inference    0 Running, 10 Pending" in step
        assert (
            "pods notebooks    8 Running, 4 Pending: 0/1 nodes are available: 1 Insufficient nvidia.com/gpu.\n" in step
        )
    assert "pods inference    10 Running\npods notebooks    0 Running, 12 Pending" in mixed
    assert "10 Pending: 0/1 nodes are available: 1 Insufficient nvidia.com/mig-1g.5gb.\n" in single
    assert "pods notebooks    12 Running\n" in single
    assert "for the scheduler 8 nvidia.com/gpu -> 56 nvidia.com/mig-1g.5gb" in mixed
    assert "\x1b" not in said, "no colours where there is no terminal"
    assert clusters() == []


def test_a_node_that_offers_something_else_fails_the_demo() -> None:
    tour = demo("-e", "mig_profile=all-balanced")
    said, _errors = tour.communicate(timeout=900)
    assert tour.returncode == 1, said[-3000:]
    assert said.endswith("This is not nvidia.com/mig-1g.5gb=56.\n")
    assert clusters() == []


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_nothing_stays_when_somebody_ends_the_demo(how: signal.Signals) -> None:
    before = set(SCRATCH.glob("*"))
    tour = demo()
    assert tour.stdout
    while "TASK [" not in tour.stdout.readline():  # a playbook is in the middle of its work
        assert tour.poll() is None
    os.killpg(tour.pid, how)  # as a terminal does it
    tour.communicate(timeout=60)
    assert tour.returncode not in (0, None)
    deadline = time.monotonic() + 10
    while clusters() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert clusters() == []
    assert set(SCRATCH.glob("*")) <= before
