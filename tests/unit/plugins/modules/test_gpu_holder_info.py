# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""gpu_holder_info reports whoever is found, and says what could not be seen."""

from __future__ import annotations

import os
import time

import pytest

from ansible_collections.gpufleet.mig.plugins.module_utils.engine import holders
from ansible_collections.gpufleet.mig.plugins.module_utils.engine.model import DriverError, Node, Owner
from ansible_collections.gpufleet.mig.plugins.modules import gpu_holder_info
from ansible_collections.gpufleet.mig.tests.unit.plugins.module_utils.engine import boards

DCGM = holders.OpenDevice(
    811, "nv-hostengine", "/dev/nvidia1", 1, uid=0, owner=Owner("unit", unit="nvidia-dcgm.service"), cooperative=False
)


@pytest.fixture(autouse=True)
def nobody_else(monkeypatch):
    """What has GPUs open on this machine is not for these tests."""
    found = holders.Survey((DCGM,))
    monkeypatch.setattr(holders, "survey", lambda watch, root: found)


def two_gpus() -> Node:
    return boards.node(
        boards.gpu("a100-sxm4-40gb", instances=[("1g.5gb", 0)], busy={0}, processes=()), boards.gpu("a30-24gb")
    )


def test_holders_are_reported_with_whom_they_belong_to(host):
    host.node = two_gpus()
    result = host.run(gpu_holder_info)
    assert (result["changed"], result["available"], result["unseen"]) == (False, True, [])
    listed, opened = result["holders"]
    assert (listed["gpu"], listed["gi"], listed["ci"], listed["pid"]) == (0, 7, 0, 1000)
    assert (listed["uses"], listed["listed"], listed["used_mib"]) == ("compute", True, 512)
    assert (opened["gpu"], opened["gi"], opened["ci"], opened["pid"]) == (1, None, None, 811)
    assert (opened["kind"], opened["unit"], opened["uses"]) == ("unit", "nvidia-dcgm.service", "open")
    assert (opened["listed"], opened["cooperative"], opened["opened"]) == (False, False, ["/dev/nvidia1"])
    assert opened["description"].startswith("process 811 (nv-hostengine) of nvidia-dcgm.service")


def test_every_documented_value_is_there_and_no_other(host):
    host.node = two_gpus()
    documented = {
        *("gpu", "minor", "gi", "ci", "pid", "name", "user", "kind", "uses", "listed", "opened", "cooperative"),
        *("used_mib", "unit", "runtime", "container", "pod", "job", "step", "session", "description"),
    }
    assert all(set(each) == documented for each in host.run(gpu_holder_info)["holders"])


def test_only_the_gpus_that_are_asked_for_are_reported(host):
    host.node = two_gpus()
    assert [each["pid"] for each in host.run(gpu_holder_info, gpus=["1"])["holders"]] == [811]


def test_a_gpu_that_is_not_there_is_an_error(host):
    host.node = two_gpus()
    result = host.run(gpu_holder_info, gpus=["7"])
    assert result["failed"]
    assert "7" in result["msg"]


@pytest.mark.parametrize("error", ["LIBRARY_NOT_FOUND", "DRIVER_NOT_LOADED"])
def test_without_nvml_the_open_files_are_reported(host, error):
    host.node = DriverError(f"nvmlInit failed with {error}: do something.", call="nvmlInit", error=error)
    result = host.run(gpu_holder_info, gpus=["0"])
    assert "failed" not in result
    assert (result["available"], result["problem"]["error"]) == (False, error)
    assert [(each["gpu"], each["minor"], each["pid"]) for each in result["holders"]] == [(None, 1, 811)]


def test_a_node_without_binding_asks_the_action_to_bring_it(host):
    host.node = DriverError("No binding.", call="import pynvml", error="BINDING_MISSING")
    assert host.run(gpu_holder_info)["binding_missing"] is True


def test_a_driver_that_hangs_does_not_hide_who_has_files_open(host):
    """That is when it matters most."""
    host.node = None
    result = host.run(gpu_holder_info, operation_timeout=0.2)
    assert (result["available"], result["problem"]["error"]) == (False, "NO_ANSWER")
    assert [each["pid"] for each in result["holders"]] == [811]


def test_a_process_that_cannot_be_read_does_not_hide_who_is_listed(host, monkeypatch):
    def hang(watch, root):
        watch.begin("read /proc of process 4711")
        time.sleep(600)  # longer than any test; the alarm of the watch ends it

    monkeypatch.setattr(holders, "survey", hang)
    host.node = two_gpus()
    result = host.run(gpu_holder_info, operation_timeout=0.2)
    assert [each["pid"] for each in result["holders"]] == [1000]
    assert "read /proc of process 4711" in result["unseen"][0]


def test_nothing_is_left_behind_in_check_mode_or_out_of_it(host, tmp_path):
    host.node = two_gpus()
    host.remembers = False
    host.run(gpu_holder_info)
    host.run(gpu_holder_info, check_mode=True)
    assert not os.path.exists(host.state_dir)
