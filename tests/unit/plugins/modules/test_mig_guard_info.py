# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""mig_guard_info reports what speaks against a change, fails for none of it, and passes over what it is told to."""

from __future__ import annotations

import datetime
import os
import time
import typing as t

import pytest

from ansible_collections.gpufleet.mig.plugins.module_utils.engine import driver, guards
from ansible_collections.gpufleet.mig.plugins.module_utils.engine.driver import MemoryHealth
from ansible_collections.gpufleet.mig.plugins.module_utils.engine.model import DriverError
from ansible_collections.gpufleet.mig.plugins.modules import mig_guard_info
from ansible_collections.gpufleet.mig.tests.unit.plugins.module_utils.engine import boards

UNIT = "nvidia-mig-manager.service"
OWNER = guards.Report((guards.Finding("owner", f"{UNIT} is enabled: disable it.", (UNIT,)),))
PENDING = MemoryHealth(True, True, True, False)


class Said:
    """What the host and the memory of GPUs have to say, and of what the module warns."""

    def __init__(self):
        self.host: t.Optional[guards.Report] = guards.NOTHING
        self.health = {}
        self.warnings = []

    def on_host(self, kinds, sight, watch=None):
        if self.host is None:
            watch.begin("read /proc of process 4711")
            time.sleep(600)  # longer than any test; the alarm of the watch ends it
        return self.host


@pytest.fixture(name="said")
def what_is_said(host, monkeypatch):
    """Nothing, until a test says so: what this machine has is not for these tests."""
    said = Said()

    def session(binding, watch):
        made = host.session(binding, watch)
        made.read_memory_health = lambda index: said.health.get(index, MemoryHealth(True, True, False, False))
        return made

    monkeypatch.setattr(driver, "Session", session)
    monkeypatch.setattr(guards, "on_host", said.on_host)
    monkeypatch.setattr(
        "ansible.module_utils.basic.AnsibleModule.warn", lambda _module, text: said.warnings.append(text)
    )
    host.node = boards.node(boards.gpu("a100-sxm4-40gb"), boards.gpu("a30-24gb", 1))
    return said


def in_seconds(seconds):
    return (datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=seconds)).isoformat()


@pytest.mark.parametrize("check_mode", [False, True])
def test_a_node_that_is_in_order_has_nothing_to_say(host, said, check_mode):
    result = host.run(mig_guard_info, check_mode=check_mode, deadline=in_seconds(900), needs=60)
    assert said.warnings == []
    assert {key: result[key] for key in ("changed", "available", "findings", "stop", "unknown")} == {
        "changed": False,
        "available": True,
        "findings": [],
        "stop": [],
        "unknown": [],
    }


def test_what_is_found_stops_a_change_and_is_no_failure(host, said):
    said.host, said.health[1] = OWNER, PENDING
    result = host.run(mig_guard_info)
    assert "failed" not in result
    memory, owner = result["findings"]
    assert owner == {
        "name": "owner",
        "msg": f"{UNIT} is enabled: disable it.",
        "units": [UNIT],
        "labels": [],
        "advice": False,
        "ignored": False,
    }
    assert (memory["name"], memory["units"]) == ("memory", [])
    assert result["stop"] == [memory["msg"], owner["msg"]]
    assert said.warnings == []


def test_what_is_passed_over_becomes_a_warning(host, said):
    said.host, said.health[1] = OWNER, PENDING
    result = host.run(mig_guard_info, ignore=["owner", "driver"])
    memory, owner = result["findings"]
    assert (memory["ignored"], owner["ignored"]) == (False, True)
    assert result["stop"] == [memory["msg"]]
    assert said.warnings == [owner["msg"]]


def test_advice_is_a_warning_whether_it_is_passed_over_or_not(host, said):
    host.node = boards.node(boards.gpu("a30-24gb", persistence=False))
    for ignore in ([], ["persistence"]):
        result = host.run(mig_guard_info, ignore=ignore)
        assert result["stop"] == []
        assert result["findings"][0]["advice"]
        assert said.warnings.pop() == result["findings"][0]["msg"]
        assert said.warnings == []


def test_what_cannot_be_told_is_a_warning_and_stops_nothing(host, said):
    said.host = guards.Report((), ("Whether it is so cannot be told.",))
    result = host.run(mig_guard_info)
    assert (result["findings"], result["stop"]) == ([], [])
    assert result["unknown"] == said.warnings == ["Whether it is so cannot be told."]


def test_kinds_and_gpus_are_handed_on(host, said):
    said.health = {0: PENDING, 1: PENDING}
    assert len(host.run(mig_guard_info, gpus=["1"])["stop"]) == 1
    assert host.run(mig_guard_info, kinds=["reset"])["stop"] == []


def test_a_gpu_that_is_not_there_is_an_error(host, said):
    result = host.run(mig_guard_info, gpus=["7"])
    assert result["failed"]
    assert "7" in result["msg"]


def test_a_deadline_that_is_near_stops_a_change_that_takes_longer(host, said):
    result = host.run(mig_guard_info, deadline=in_seconds(300), needs=600)
    assert [finding["name"] for finding in result["findings"]] == ["deadline"]
    assert len(result["stop"]) == 1
    assert host.run(mig_guard_info, deadline=in_seconds(-5), ignore=["deadline"])["stop"] == []


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"deadline": "2026-12-24T06:00:00"}, "without an offset"),
        ({"deadline": "soon"}, "no time"),
        ({"needs": -1}, "needs is -1"),
        ({"needs": "inf"}, "needs is inf"),
        ({"needs": "nan"}, "needs is nan"),
        ({"kinds": []}, "kinds is empty"),
        ({"kinds": ["boot"]}, "kinds"),
        ({"ignore": ["nvml"]}, "ignore"),
        ({"operation_timeout": 0}, "operation_timeout"),
    ],
)
def test_what_is_asked_in_a_wrong_way_is_refused(host, said, arguments, told):
    result = host.run(mig_guard_info, **arguments)
    assert result["failed"]
    assert told in result["msg"]


@pytest.mark.parametrize("error", ["LIBRARY_NOT_FOUND", "DRIVER_NOT_LOADED", "LIB_RM_VERSION_MISMATCH"])
def test_a_driver_that_does_not_answer_stops_a_change_beside_what_the_host_says(host, said, error):
    said.host = OWNER
    host.node = DriverError(f"nvmlInit failed with {error}: do something.", call="nvmlInit", error=error)
    result = host.run(mig_guard_info)
    assert "failed" not in result
    assert (result["available"], result["problem"]["error"]) == (False, error)
    assert [finding["name"] for finding in result["findings"]] == ["nvml", "owner"]
    assert result["stop"][0].startswith(f"nvmlInit failed with {error}: do something.")


def test_a_driver_that_hangs_stops_a_change(host, said):
    host.node = None
    result = host.run(mig_guard_info, operation_timeout=0.2)
    assert (result["available"], result["problem"]["error"]) == (False, "NO_ANSWER")
    assert len(result["stop"]) == 1


def test_a_process_that_cannot_be_read_is_a_warning(host, said):
    said.host, said.health[0] = None, PENDING
    result = host.run(mig_guard_info, operation_timeout=0.2)
    assert [finding["name"] for finding in result["findings"]] == ["memory"]
    assert "read /proc of process 4711" in result["unknown"][0]


def test_a_node_without_binding_asks_the_action_to_bring_it(host, said):
    host.node = DriverError("No binding.", call="import pynvml", error="BINDING_MISSING")
    assert host.run(mig_guard_info)["binding_missing"] is True


def test_nothing_is_left_behind_in_check_mode_or_out_of_it(host, said):
    host.remembers = False
    host.run(mig_guard_info)
    host.run(mig_guard_info, check_mode=True)
    assert not os.path.exists(host.state_dir)
