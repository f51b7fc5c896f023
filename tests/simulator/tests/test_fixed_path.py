# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A computer that has its GPUs at a fixed path: no variable is needed, and without that path no driver is loaded.

Each program here runs in a mount namespace of its own with an empty /run, so the computer that runs the tests never
gets such a path.
"""

from __future__ import annotations

import json
import os
import sys

import pynvml as nv
import pytest

DEVICE = "mknod -m 666 /dev/nvidiactl c 1 3"
ASK = """
import json, pynvml as nv
try:
    nv.nvmlInit()
    print(json.dumps([nv.nvmlDeviceGetUUID(nv.nvmlDeviceGetHandleByIndex(i)) for i in range(nv.nvmlDeviceGetCount())]))
except nv.NVMLError as error:
    print(json.dumps(error.value))
"""


def in_a_computer(simulator, state, *command, device=DEVICE, **variables):
    """Run a command where /run/nvmlsim/state is a link to ``state``, or not there (None), and ``device`` made /dev."""
    made = f"mkdir /run/nvmlsim && ln -s {state} /run/nvmlsim/state &&" if state else ""
    script = f'mount -t tmpfs tmpfs /run && mount -t tmpfs tmpfs /dev && {device} && {made} exec "$@"'
    env = {name: value for name, value in simulator.env().items() if name != "NVMLSIM_STATE"}
    words = ["unshare", "--mount", "--propagation", "private", "sh", "-ec", script, "sh", *command]
    return simulator.run(words, env={**env, **variables})


def uuids(simulator):
    return [gpu["uuid"] for gpu in simulator.describe()["gpus"]]


@pytest.fixture(autouse=True)
def _only_as_root():
    assert os.geteuid() == 0, "a mount namespace needs root"


@pytest.mark.parametrize("variables", [{}, {"NVMLSIM_STATE": ""}], ids=["unset", "empty"])
def test_without_a_variable_the_gpus_of_the_fixed_path_are_seen(node, variables):
    simulator = node("2xa100-sxm4-40gb")
    done = in_a_computer(simulator, simulator.path, sys.executable, "-c", ASK, **variables)
    assert json.loads(done.stdout) == uuids(simulator), done.stderr


def test_the_variable_goes_before_the_fixed_path(node):
    fixed, named = node("1xa30-24gb"), node("2xh100-sxm5-80gb")
    done = in_a_computer(named, fixed.path, sys.executable, "-c", ASK, NVMLSIM_STATE=str(named.path))
    assert json.loads(done.stdout) == uuids(named), done.stderr


@pytest.mark.parametrize("state", [None, "/nowhere"], ids=["no path", "a link to nothing"])
def test_without_the_fixed_path_no_driver_is_loaded(node, state):
    done = in_a_computer(node(), state, sys.executable, "-c", ASK)
    assert json.loads(done.stdout) == nv.NVML_ERROR_DRIVER_NOT_LOADED, done.stderr


@pytest.mark.parametrize(
    ("device", "code"),
    [
        ("true", nv.NVML_ERROR_DRIVER_NOT_LOADED),
        (f"{DEVICE} && mount -o remount,nodev /dev", nv.NVML_ERROR_NO_PERMISSION),
    ],
    ids=["not there", "not to be opened"],
)
def test_who_cannot_open_the_device_does_not_reach_the_driver(node, device, code):
    simulator = node()
    done = in_a_computer(simulator, simulator.path, sys.executable, "-c", ASK, device=device)
    assert json.loads(done.stdout) == code, done.stderr


def test_nvidia_smi_finds_the_fixed_path_too(node):
    simulator = node("1xa30-24gb")
    listed = in_a_computer(simulator, simulator.path, "nvidia-smi", "-L")
    assert (listed.returncode, uuids(simulator)[0] in listed.stdout) == (0, True)
    assert in_a_computer(simulator, None, "nvidia-smi", "-L").returncode == 9


def test_a_driver_that_is_loaded_later_is_found_by_a_process_that_waited_for_it(node):
    simulator = node()
    script = (
        "import os, pynvml as nv\n"
        "try:\n    nv.nvmlInit()\n    print('loaded too early')\n"
        "except nv.NVMLError_DriverNotLoaded:\n"
        "    os.makedirs('/run/nvmlsim')\n"
        f"    os.symlink({str(simulator.path)!r}, '/run/nvmlsim/state')\n"
        "    nv.nvmlInit()\n    print(nv.nvmlDeviceGetCount())\n"
    )
    done = in_a_computer(simulator, None, sys.executable, "-c", script)
    assert done.stdout == "1\n", done.stderr
