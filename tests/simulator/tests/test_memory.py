# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""ECC and remapped rows: what waits for a reset, what ends the wait, and when the driver does not tell."""

from __future__ import annotations

import nvml_client as client
import pynvml as nv
import pytest

from nvmlsim import SimulatorError


def health(index=0):
    handle = client.gpu(index)
    return tuple(nv.nvmlDeviceGetEccMode(handle)), tuple(nv.nvmlDeviceGetRemappedRows(handle))


def code_of_rows(index=0):
    return client.code(nv.nvmlDeviceGetRemappedRows, client.gpu(index))


def test_a_new_board_has_ecc_on_and_nothing_remapped(node):
    assert node().call(health) == ((1, 1), (0, 0, 0, 0))


@pytest.mark.parametrize("end", [lambda node: node.reset(gpu=1), lambda node: node.reboot()], ids=["reset", "reboot"])
def test_what_waits_for_a_reset_is_over_after_it(node, end):
    simulator = node("2xa100-sxm4-40gb")
    simulator.memory(1, ecc=False, remap="pending")
    assert simulator.call(health, 1) == ((1, 0), (0, 1, 1, 0))
    assert simulator.call(health, 0) == ((1, 1), (0, 0, 0, 0))
    end(simulator)
    assert simulator.call(health, 1) == ((0, 0), (0, 0, 0, 0))
    gpu = simulator.describe()["gpus"][1]
    assert (gpu["ecc"], gpu["ecc_pending"], gpu["remap"]) == (False, False, "none")


def test_a_mode_change_of_ampere_is_a_reset_and_one_of_hopper_is_not(node):
    simulator = node("1xa100-sxm4-40gb,1xh100-sxm5-80gb")
    for index in (0, 1):
        simulator.memory(index, remap="pending")
        simulator.call(client.turn_on, index)
    assert [gpu["remap"] for gpu in simulator.describe()["gpus"]] == ["none", "pending"]


def test_a_remapping_that_failed_is_for_ever(node):
    simulator = node()
    simulator.memory(0, remap="failed")
    simulator.reset(gpu=0)
    simulator.reboot()
    assert simulator.call(health) == ((1, 1), (0, 1, 0, 1))


def test_while_instances_exist_the_rows_are_not_told(node):
    simulator = node()
    simulator.call(client.make, 0, 19)
    assert simulator.call(code_of_rows) == "NOT_SUPPORTED"
    assert simulator.call(lambda: tuple(nv.nvmlDeviceGetEccMode(client.gpu()))) == (1, 1)


def test_a_board_from_before_ampere_remaps_no_rows(node):
    assert node("1xtesla-t4").call(code_of_rows) == "NOT_SUPPORTED"


def test_the_memory_of_a_gpu_that_is_not_there_is_refused(node):
    with pytest.raises(SimulatorError):
        node().memory(3, remap="pending")
    with pytest.raises(SimulatorError):
        node().memory(0, remap="broken")
