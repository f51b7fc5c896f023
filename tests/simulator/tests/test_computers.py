# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A node that a computer of its own shares, as a container is one: other pids, daemons that come and go, reboots."""

from __future__ import annotations

import contextlib
import subprocess
import sys

import nvml_client as client
import pynvml as nv
import pytest

from nvmlsim import SimulatorError

HOLD = "import sys; from nvmlsim import Simulator; h = Simulator(sys.argv[1]).occupy(0, pid={pid}, kind='hidden')"
SESSION = "import pynvml as nv; nv.nvmlInit()"


@contextlib.contextmanager
def elsewhere(simulator, script):
    """A process with a pid namespace of its own, which runs a script and then waits for its end."""
    script += "; print('ready', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", f"import sys; {script}", str(simulator.path)]
    with subprocess.Popen(
        ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child=KILL", *command],
        env=simulator.env(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == "ready\n"
        yield
        process.stdin.close()
        assert process.wait(30) == 0


def reset(simulator):
    return simulator.run(["nvidia-smi", "--gpu-reset", "-i", "0"]).returncode


def test_a_holder_of_another_computer_is_not_forgotten_because_its_number_means_nothing_here(node):
    simulator = node()
    with elsewhere(simulator, HOLD.format(pid=1)):
        simulator.fault("nvmlDeviceGetName", code="UNKNOWN")  # a change from here, which drops those that have ended
        assert [holder["kind"] for holder in simulator.describe()["gpus"][0]["holders"]] == ["hidden"]
        assert reset(simulator) == 255
    simulator.reboot()
    assert reset(simulator) == 0


def test_a_holder_of_another_computer_that_has_ended_is_forgotten_from_around_it(node):
    simulator = node()
    script = (
        f"import subprocess; p = subprocess.Popen(['sleep', '600']); {HOLD.format(pid='p.pid')}; p.kill(); p.wait()"
    )
    with elsewhere(simulator, script):
        assert simulator.describe()["gpus"][0]["holders"] == []
        assert reset(simulator) == 0


def test_what_is_around_a_computer_holds_as_long_as_it_says(node):
    simulator = node()
    script = "from nvmlsim import Simulator; s = Simulator(sys.argv[1]); s.fault('nvmlDeviceGetName', code='UNKNOWN')"
    with simulator.occupy(0, kind="hidden"), elsewhere(simulator, script):
        assert reset(simulator) == 255
    assert reset(simulator) == 0


def test_a_session_of_another_computer_keeps_no_gpu_from_being_reset(node):
    simulator = node()
    with elsewhere(simulator, SESSION):
        assert reset(simulator) == 0


def test_no_session_lives_through_a_reboot(node):
    simulator = node()
    ready = "import sys, pynvml as nv; nv.nvmlInit(); print('ready', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", ready], env=simulator.env(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "ready\n"
        assert reset(simulator) == 255
        simulator.reboot()
        assert reset(simulator) == 0
        process.stdin.close()


def test_persistence_comes_and_goes_with_its_daemon(node):
    simulator = node("2xa30-24gb", persistence=False)

    def modes():
        return [nv.nvmlDeviceGetPersistenceMode(client.gpu(index)) for index in range(2)]

    assert simulator.call(modes) == [0, 0]
    simulator.event("persistence on")
    assert simulator.call(modes) == [1, 1]
    simulator.event("persistence off")
    assert simulator.call(modes) == [0, 0]
    assert simulator.writes() == []


def test_fabric_manager_can_start_and_end(node):
    simulator = node("2xa100-sxm4-40gb", fabric_manager=False)
    assert (simulator.describe()["fabric_manager"], reset(simulator)) == ("off", 255)
    simulator.event("fabric-manager on")
    assert (simulator.describe()["fabric_manager"], reset(simulator)) == ("on", 0)


def test_without_nvswitches_there_is_no_fabric_manager(node):
    simulator = node()
    with pytest.raises(SimulatorError, match="no NVSwitch"):
        simulator.event("fabric-manager on")
    assert simulator.describe()["fabric_manager"] == "none"
