# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the driver says against a change, asked of simulated GPUs: health of the memory, persistence, version."""

from __future__ import annotations

import functools

import pytest

from ansible_collections.gpufleet.mig.plugins.module_utils.engine import bounded, driver, guards
from ansible_collections.gpufleet.mig.plugins.module_utils.engine.model import DriverError, WishError
from ansible_collections.gpufleet.mig.tests.engine.helpers import NOBODY


def see(node, gpus="all", **options):
    """The node as the module sees it: in a child, with a watch."""
    opener = functools.partial(driver.Session, None)
    return node.call(lambda: bounded.ask(lambda watch: guards.read(opener, watch, gpus), 10.0), **options)


def said(node, kinds=guards.KINDS, root="/nowhere", **options):
    report = guards.on_gpus(see(node, **options), kinds, root)
    return [finding.name for finding in report.findings], [finding.sentence for finding in report.findings], report


@pytest.mark.parametrize("version", ["525", "535", "550", "580", "615"])
def test_gpus_that_are_in_order_say_nothing_and_nothing_is_written(make_node, version):
    node = make_node("1xa100-sxm4-40gb,1xh100-sxm5-80gb,1xtesla-t4", driver=version)
    assert said(node)[2] == guards.NOTHING
    assert node.simulator.writes() == []


def test_only_gpus_that_can_do_mig_and_are_meant_are_looked_at(make_node):
    node = make_node("2xa100-sxm4-40gb,1xtesla-t4")
    assert sorted(see(node).health) == [0, 1]
    assert sorted(see(node, ["1", "2"]).health) == [1]
    node.simulator.memory(0, remap="pending")
    assert said(node, gpus=["1"])[2] == guards.NOTHING


def test_a_gpu_that_is_not_there_is_an_error(make_node):
    with pytest.raises(WishError, match="7"):
        see(make_node(), ["7"])


def test_what_waits_in_a_memory_is_told_of_its_gpu(make_node):
    node = make_node("2xa100-sxm4-40gb")
    node.simulator.memory(1, ecc=False, remap="pending")
    names, sentences, _report = said(node)
    assert names == ["memory", "memory"]
    uuid = node.simulator.describe()["gpus"][1]["uuid"]
    assert all("of GPU 1 (" in sentence and uuid in sentence for sentence in sentences)
    node.simulator.reset(gpu=1)
    assert said(node)[0] == []


def test_a_board_that_is_to_be_replaced_is_told_after_every_reset(make_node):
    node = make_node()
    node.simulator.memory(0, remap="failed")
    node.simulator.reset(gpu=0)
    assert said(node, ["reset"])[0] == ["memory"]


def test_while_there_are_instances_the_driver_does_not_tell_and_that_is_no_alarm(make_node):
    node = make_node()
    node.enable(0)
    node.create(0, [("3g.20gb", 0, [(0, 3)])])
    node.simulator.memory(0, remap="pending")
    assert see(node).health[0] == driver.MemoryHealth(True, True, None, None)
    assert said(node)[2] == guards.NOTHING


def test_persistence_that_is_off_is_told_once_for_all(make_node):
    names, sentences, _report = said(make_node("2xa30-24gb", persistence=False))
    assert names == ["persistence"]
    assert "GPU 0, 1" in sentences[0]


def test_a_driver_that_is_known_to_be_bad_is_told_beside_a_kubelet(make_node, tmp_path):
    node = make_node(driver="570.124.06")
    assert said(node)[0] == []
    socket = tmp_path / "var/lib/kubelet/device-plugins/kubelet.sock"
    socket.parent.mkdir(parents=True)
    socket.touch()
    assert said(node, root=str(tmp_path))[0] == ["driver"]
    assert said(make_node(driver="570.172.08"), root=str(tmp_path))[0] == []


@pytest.mark.parametrize("function", ["nvmlDeviceGetEccMode", "nvmlDeviceGetRemappedRows"])
def test_a_question_that_fails_is_cannot_tell_for_that_gpu(make_node, function):
    node = make_node("2xa100-sxm4-40gb")
    node.simulator.fault(function, code="UNKNOWN", gpu=1)
    names, _sentences, report = said(node)
    assert names == []
    (sentence,) = report.unknown
    assert "of GPU 1 (" in sentence
    assert f"{function} failed with UNKNOWN" in sentence


def test_a_lost_gpu_does_not_hide_what_the_others_say(make_node):
    node = make_node("2xa100-sxm4-40gb")
    node.simulator.fault("nvmlDevice*", code="GPU_IS_LOST", gpu=0)
    node.simulator.memory(1, remap="failed")
    names, _sentences, report = said(node)
    assert names == ["memory"]
    assert "GPU_IS_LOST" in report.unknown[0]


def test_a_driver_that_hangs_in_between_is_no_answer(make_node):
    node = make_node()
    node.simulator.fault("nvmlDeviceGetRemappedRows", hang=True)
    opener = functools.partial(driver.Session, None)
    with pytest.raises(bounded.NoAnswer, match="read the health of the memory of GPU 0"):
        node.call(lambda: bounded.ask(lambda watch: guards.read(opener, watch, "all"), 0.3))


def test_a_driver_that_is_not_there_is_an_error(make_node):
    node = make_node()
    node.simulator.fault("nvmlInit", code="DRIVER_NOT_LOADED")
    with pytest.raises(DriverError, match="DRIVER_NOT_LOADED"):
        see(node)


def test_no_privilege_is_needed(make_shared_node):
    node = make_shared_node()
    node.simulator.memory(0, remap="pending")
    assert said(node, **NOBODY)[0] == ["memory"]
