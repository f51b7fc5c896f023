# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A fixture that makes simulated nodes."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import typing as t
from pathlib import Path

import pytest

from ansible_collections.gpufleet.mig.tests.engine.helpers import Installation, SimulatedNode
from ansible_collections.gpufleet.mig.tests.unit.plugins.module_utils.engine import fake_nvidia_ctk
from nvmlsim import Simulator


@pytest.fixture
def make_node(tmp_path):
    """Make a simulated node: GPUs as on the simulator's command line."""
    made: list[SimulatedNode] = []

    def make(gpus: str = "1xa100-sxm4-40gb", **options: t.Any) -> SimulatedNode:
        made.append(SimulatedNode(Simulator.create(tmp_path / f"node{len(made)}", gpus, **options)))
        return made[-1]

    return make


@pytest.fixture
def install(make_node, tmp_path):
    """Make a node with a state directory, and one of these labels on it."""

    def make(label: str = "", gpus: str = "1xa100-sxm4-40gb", **options: t.Any) -> Installation:
        installed = Installation(make_node(gpus, **options), tmp_path / "state")
        if label:
            assert installed.change(label=label).error is None
            installed.simulator.reset_calls()
        return installed

    return make


@pytest.fixture
def toolkit(tmp_path, monkeypatch):
    """A toolkit that finds what NVML shows."""
    program = tmp_path / "programs" / "nvidia-ctk"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\n{Path(fake_nvidia_ctk.__file__).read_text()}")
    program.chmod(0o755)
    (program.parent / "behaviour.json").write_text("{}")
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    return tmp_path / "cdi" / "nvidia.yaml"


@pytest.fixture
def set_up_for_cdi(toolkit, monkeypatch):
    """Set a node up as the role containers does."""

    def set_up(installed: Installation, **settings: t.Any) -> None:
        # A process sees the node by itself, but the programs that it starts do so by their environment.
        monkeypatch.setenv("LD_LIBRARY_PATH", installed.simulator.env()["LD_LIBRARY_PATH"])
        folder = Path(installed.places.state)
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        management = {"management": "never", "management_spec": str(toolkit.parent / "management.yaml")}
        record = {"schema": 1, "spec": str(toolkit), "folders": [str(toolkit.parent)], "unit": "never", **management}
        (folder / "cdi.json").write_text(json.dumps({**record, "root": "/", **settings}))

    return set_up


@pytest.fixture
def make_shared_node():
    """Make a simulated node that other users than ours can open, as they can open /dev/nvidia*; only root may write."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o777)

    def make(gpus: str = "1xa100-sxm4-40gb", **options: t.Any) -> SimulatedNode:
        simulator = Simulator.create(folder / "node", gpus, **{"privileged": "root", **options})
        for name in os.listdir(folder):
            (folder / name).chmod(0o666)
        return SimulatedNode(simulator)

    yield make
    shutil.rmtree(folder)
