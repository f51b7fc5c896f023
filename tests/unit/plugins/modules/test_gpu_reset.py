# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""gpu_reset resets what waits for it, says beforehand what it would do, and does nothing where nothing waits."""

from __future__ import annotations

import pytest

from ansible_collections.gpufleet.mig.plugins.module_utils.engine import reset
from ansible_collections.gpufleet.mig.plugins.module_utils.engine.model import Node, Process
from ansible_collections.gpufleet.mig.plugins.modules import gpu_reset
from ansible_collections.gpufleet.mig.tests.unit.plugins.module_utils.engine import boards


@pytest.fixture(autouse=True)
def without_the_modules_of_this_machine(monkeypatch):
    """Whether the machine that runs the tests has nvidia_drm loaded is none of theirs."""
    monkeypatch.setattr(reset, "drm_is_loaded", lambda root="/": False)


def pending(board="a100-sxm4-40gb", *, index=0, on=True, **facts):
    """A GPU whose MIG mode is on its way on, or off."""
    return boards.gpu(board, index=index, mode=not on)._replace(mode_pending=on, **facts)


@pytest.fixture(name="two")
def a_node_with_two_gpus(host):
    """GPU 0 waits for MIG, GPU 1 has instances."""
    host.node = boards.node(pending(), boards.gpu("a100-sxm4-40gb", index=1, instances=[("3g.20gb", 4)]))
    return host


def test_gpus_must_be_said(host):
    result = host.run(gpu_reset)
    assert result["failed"]
    assert "gpus" in result["msg"]


@pytest.mark.parametrize("check_mode", [True, False])
def test_where_nothing_is_pending_nothing_is_done(host, check_mode):
    host.node = boards.node(boards.gpu("a100-sxm4-40gb", instances=[("3g.20gb", 4)]), boards.gpu("tesla-t4", index=1))
    result = host.run(gpu_reset, check_mode=check_mode, gpus=["all"])
    assert (result["changed"], result["altered"], result["reset"]) == (False, False, [])
    assert result["before"] == result["after"]
    assert "txid" not in result


def test_check_mode_says_which_gpus_and_how_they_look_afterwards(two):
    result = two.run(gpu_reset, check_mode=True, gpus=["all"])
    assert (result["changed"], result["altered"], result["reset"]) == (True, False, [0])
    assert [gpu["mig_current"] for gpu in result["before"]] == [False, True]
    assert [gpu["mig_current"] for gpu in result["after"]] == [True, True]
    assert result["before"][1] == result["after"][1]
    assert result["diff"]["before"] != result["diff"]["after"]


def test_a_gpu_that_is_not_named_is_left_alone(two):
    assert two.run(gpu_reset, check_mode=True, gpus=["1"])["changed"] is False


def test_by_force_the_layout_is_the_same_afterwards(two):
    result = two.run(gpu_reset, check_mode=True, gpus=["1"], force=True)
    assert result["reset"] == [1]
    assert result["before"] == result["after"]


def test_instances_go_where_mig_is_on_its_way_off(host):
    host.node = boards.node(
        boards.gpu("a100-sxm4-40gb", instances=[("3g.20gb", 4)])._replace(mode_pending=False),
    )
    result = host.run(gpu_reset, check_mode=True, gpus=["0"])
    assert (result["after"][0]["mig_current"], result["after"][0]["instances"]) == (False, [])


@pytest.mark.parametrize("check_mode", [True, False])
def test_the_check_refuses_what_a_real_run_refuses(two, check_mode):
    nodes = two.node.gpus
    process = Process(2**22 + 1, "python")
    two.node = Node((nodes[0], nodes[1]._replace(processes=(process,))), two.node.driver_version)
    result = two.run(gpu_reset, check_mode=check_mode, gpus=["0"])
    assert result["failed"]
    assert (result["changed"], result["altered"]) == (False, False)
    assert f"process {process.pid} (python)" in result["msg"]
    assert "computes on GPU 1" in result["msg"]


def test_a_gpu_that_cannot_do_mig_is_passed_over_or_refused_by_name(host):
    host.node = boards.node(boards.gpu("tesla-t4"))
    assert host.run(gpu_reset, gpus=["all"], force=True)["reset"] == []
    result = host.run(gpu_reset, gpus=["0"], force=True)
    assert result["failed"]
    assert "cannot do MIG" in result["msg"]


@pytest.mark.parametrize("force", [True, False])
def test_a_machine_that_cannot_reset_says_so_in_check_mode_too(host, force):
    host.node = boards.node(pending(virtualization="passthrough"))
    result = host.run(gpu_reset, check_mode=True, gpus=["all"], force=force)
    assert result["failed"]
    assert "reboot the machine" in result["msg"]


def test_a_gpu_that_is_not_there_is_named(host):
    host.node = boards.node(boards.gpu("a30-24gb"))
    assert "'7'" in host.run(gpu_reset, gpus=["7"])["msg"]
