# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What survives the end of a process, a reset, a reload of the driver and a reboot, on each generation."""

from __future__ import annotations

import nvml_client as client
import pynvml as nv
import pytest

from nvmlsim import SimulatorError

AMPERE = ["1xa100-sxm4-40gb", "1xa30-24gb"]
LATER = ["1xh100-sxm5-80gb", "1xb200-180gb", "1xrtx-pro-6000-server"]


def partition():
    handle = client.mig_gpu()
    client.create_device(handle, "2g")
    client.create_device(handle, "1g")


def mode_of(simulator):
    gpu = simulator.describe()["gpus"][0]
    return gpu["mode_current"], gpu["mode_pending"]


@pytest.mark.parametrize("gpus", AMPERE + LATER)
def test_everything_survives_the_process_that_made_it(node, gpus):
    simulator = node(gpus, persistence=False)
    simulator.call(partition)
    assert mode_of(simulator) == (1, 1)
    assert len(simulator.layouts()[0]) == 2
    assert len(simulator.call(client.mig_uuids)) == 2


@pytest.mark.parametrize("gpus", AMPERE + LATER)
@pytest.mark.parametrize("event", ["reset", "reload", "reboot"])
def test_instances_survive_none_of_the_events(node, gpus, event):
    simulator = node(gpus)
    simulator.call(partition)
    simulator.event("reset gpu=0" if event == "reset" else event)
    assert simulator.layouts() == [()]


@pytest.mark.parametrize("gpus", AMPERE)
@pytest.mark.parametrize("event", ["reset", "reload", "reboot"])
def test_ampere_keeps_the_mode_in_the_board(node, gpus, event):
    simulator = node(gpus)
    simulator.call(partition)
    simulator.event("reset gpu=0" if event == "reset" else event)
    assert mode_of(simulator) == (1, 1)


@pytest.mark.parametrize("gpus", LATER)
@pytest.mark.parametrize("event", ["reload", "reboot"])
def test_later_generations_lose_the_mode_with_the_driver(node, gpus, event):
    simulator = node(gpus)
    simulator.call(partition)
    simulator.event(event)
    assert mode_of(simulator) == (0, 0)


@pytest.mark.parametrize(("assume", "mode"), [({}, (1, 1)), ({"hopper_reset_keeps_mode": "no"}, (0, 0))])
def test_whether_hopper_keeps_the_mode_over_a_reset_is_an_assumption(node, assume, mode):
    simulator = node("1xh100-sxm5-80gb", assume=assume)
    simulator.call(partition)
    simulator.reset(gpu=0)
    assert mode_of(simulator) == mode


@pytest.mark.parametrize("event", ["reset gpu=0", "reload", "reboot"])
def test_a_pending_mode_of_ampere_becomes_current(node, event):
    simulator = node()
    with simulator.occupy(gpu=0, kind="client"):
        simulator.call(lambda: nv.nvmlDeviceSetMigMode(client.gpu(), 1))
    assert mode_of(simulator) == (0, 1)
    simulator.event(event)
    assert mode_of(simulator) == (1, 1)


def test_a_pending_mode_of_hopper_becomes_current_by_reset_and_is_lost_by_reboot(node):
    for event, mode in (("reset gpu=0", (1, 1)), ("reboot", (0, 0))):
        simulator = node("1xh100-sxm5-80gb")
        with simulator.occupy(gpu=0, kind="client"):
            simulator.call(lambda: nv.nvmlDeviceSetMigMode(client.gpu(), 1))
        simulator.event(event)
        assert mode_of(simulator) == mode


def test_a_reset_touches_one_gpu(node):
    simulator = node("2xa100-sxm4-40gb")
    for index in (0, 1):
        simulator.call(client.make, index, 9)
    simulator.reset(gpu=1)
    assert [len(layout) for layout in simulator.layouts()] == [1, 0]


@pytest.mark.parametrize("kind", ["client", "compute", "hidden"])
def test_a_gpu_in_use_is_not_reset(node, kind):
    simulator = node("2xa100-sxm4-40gb")
    simulator.call(client.make, 0, 9)
    with simulator.occupy(gpu=0, kind=kind):
        with pytest.raises(SimulatorError, match=r"(?i)in use"):
            simulator.reset(gpu=0)
        simulator.reset(gpu=1)
    assert len(simulator.layouts()[0]) == 1
    simulator.reset(gpu=0)


def test_a_driver_in_use_is_not_reloaded(node):
    simulator = node()
    with simulator.occupy(gpu=0, kind="client"), pytest.raises(SimulatorError, match=r"(?i)in use"):
        simulator.reload()
    simulator.reload()


def test_a_reboot_ends_all_holders(node):
    simulator = node()
    with simulator.occupy(gpu=0, kind="client"):
        simulator.reboot()
        assert simulator.describe()["gpus"][0]["holders"] == []
    assert simulator.describe()["boots"] == 1


def test_identities_survive_a_reboot(node):
    simulator = node()
    simulator.call(partition)
    before = simulator.call(client.mig_uuids)
    gpu = simulator.describe()["gpus"][0]["uuid"]
    simulator.reboot()
    simulator.call(partition)
    assert simulator.call(client.mig_uuids) == before
    assert simulator.describe()["gpus"][0]["uuid"] == gpu


def test_persistence_mode_is_as_configured_after_a_reboot(node):
    simulator = node()
    simulator.call(lambda: nv.nvmlDeviceSetPersistenceMode(client.gpu(), 0))
    assert not simulator.describe()["gpus"][0]["persistence"]
    simulator.reboot()
    assert simulator.describe()["gpus"][0]["persistence"]


def test_an_event_of_another_name_is_refused(node):
    with pytest.raises(SimulatorError):
        node().event("earthquake")
    with pytest.raises(SimulatorError):
        node().reset(gpu=7)
