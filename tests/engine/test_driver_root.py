# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A driver that runs in a container has its library below a root of its own, and the system has none."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

READ = """
import sys
from ansible_collections.gpufleet.mig.plugins.module_utils.engine import driver
driver.DRIVER_ROOT = sys.argv[1]
try:
    with driver.Session() as session:
        print(len(session.read_node().gpus), "GPUs")
    with driver.Session() as session:
        print(len(session.read_node().gpus), "GPUs")
except driver.DriverError as error:
    print(error.error)
"""


def read(root, simulator):
    """What a process says that sees no library but one below this root."""
    hidden = ("LD_LIBRARY_PATH", "LD_PRELOAD")
    environment = {key: value for key, value in os.environ.items() if key not in hidden}
    environment.update(NVMLSIM_STATE=str(simulator.path), PYTHONPATH=os.pathsep.join(sys.path))
    done = subprocess.run(
        [sys.executable, "-c", READ, str(root)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("folder", ["usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "lib64"])
def test_it_is_found_wherever_distributions_put_libraries(make_node, tmp_path, folder):
    simulator = make_node("2xa100-sxm4-40gb").simulator
    root = tmp_path / "root"
    (root / folder).mkdir(parents=True)
    shutil.copy(simulator.library / "libnvidia-ml.so.1", root / folder)
    assert read(root, simulator) == ["2 GPUs", "2 GPUs"]


def test_one_that_cannot_be_loaded_is_passed_over(make_node, tmp_path):
    simulator = make_node("1xa100-sxm4-40gb").simulator
    root = tmp_path / "root"
    for folder in ("usr/lib/a-linux-gnu", "usr/lib64"):
        (root / folder).mkdir(parents=True)
    (root / "usr/lib/a-linux-gnu/libnvidia-ml.so.1").write_text("not a library")
    shutil.copy(simulator.library / "libnvidia-ml.so.1", root / "usr/lib64")
    assert read(root, simulator) == ["1 GPUs", "1 GPUs"]


def test_without_any_the_library_is_said_to_be_missing(make_node, tmp_path):
    assert read(Path(tmp_path / "nothing"), make_node().simulator) == ["LIBRARY_NOT_FOUND"]
