# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""mig_info reports whatever there is, and says so where there is nothing."""

from __future__ import annotations

import os

import pytest

from ansible_collections.gpufleet.mig.plugins.module_utils.engine import state
from ansible_collections.gpufleet.mig.plugins.module_utils.engine.model import DriverError
from ansible_collections.gpufleet.mig.plugins.modules import mig_info
from ansible_collections.gpufleet.mig.tests.unit.plugins.module_utils.engine import boards


def test_a_node_is_reported_with_its_instances(host):
    host.node = boards.node(boards.gpu("a100-sxm4-40gb", instances=[("3g.20gb", 4), ("1g.5gb", 0)]))
    result = host.run(mig_info)
    assert result["available"] is True
    assert result["changed"] is False
    assert {instance["profile"] for instance in result["gpus"][0]["instances"]} == {"1g.5gb", "3g.20gb"}
    assert "problem" not in result


@pytest.mark.parametrize("error", ["LIBRARY_NOT_FOUND", "DRIVER_NOT_LOADED", "LIB_RM_VERSION_MISMATCH"])
def test_a_node_whose_driver_does_not_answer_is_a_report_and_no_failure(host, error):
    host.node = DriverError(f"nvmlInit failed with {error}: do something.", call="nvmlInit", error=error)
    result = host.run(mig_info)
    assert "failed" not in result
    assert result["available"] is False
    assert result["problem"]["error"] == error
    assert result["problem"]["remedy"]
    assert "gpus" not in result
    assert "binding_missing" not in result


def test_a_node_without_binding_asks_the_action_to_bring_it(host):
    host.node = DriverError("No binding.", call="import pynvml", error="BINDING_MISSING")
    result = host.run(mig_info)
    assert result["binding_missing"] is True
    assert "failed" not in result


def test_a_binding_that_came_along_is_not_kept(host, tmp_path):
    archive = tmp_path / "binding.zip"
    archive.touch()
    host.node, host.remembers = boards.node(boards.gpu("a30-24gb")), False
    host.run(mig_info, _binding=str(archive))
    assert host.binding_places[0] == str(archive)
    assert not os.path.exists(host.state_dir)
    assert not (tmp_path / "state").exists()


def test_a_node_without_changes_is_in_none_and_is_as_remembered(host):
    host.node = boards.node(boards.gpu("a30-24gb"))
    result = host.run(mig_info)
    assert (result["in_progress"], result["persisted"]) == (None, "match")


def test_a_change_that_is_running_is_told_without_waiting_for_it(host):
    host.node = boards.node(boards.gpu("a30-24gb"))
    with state.Lock.acquire(host.places, "20260101T000000Z-00000001", "bob", "mig_config label all-1g.6gb", 1.0):
        result = host.run(mig_info)
    assert (result["available"], result["in_progress"]["running"], result["in_progress"]["who"]) == (True, True, "bob")


def test_a_driver_that_does_not_answer_is_a_report_in_time(host):
    host.node = None
    result = host.run(mig_info, operation_timeout=0.2)
    assert result["available"] is False
    assert (result["problem"]["error"], result["problem"]["call"]) == ("NO_ANSWER", "open NVML")
    assert "reboot the node" in result["problem"]["message"]
    assert result["problem"]["remedy"]


def test_a_damaged_record_is_a_warning_and_no_failure(host, tmp_path, monkeypatch):
    warnings = []
    monkeypatch.setattr("ansible.module_utils.basic.AnsibleModule.warn", lambda _module, text: warnings.append(text))
    host.node = boards.node(boards.gpu("a30-24gb"))
    host.remember()
    host.remembers = False
    (tmp_path / "state" / "wanted.json").write_text("{")
    result = host.run(mig_info)
    assert (result["available"], result["persisted"]) == (True, None)
    assert "wanted.json is damaged" in str(warnings)


def test_records_that_belong_to_root_are_not_told_to_others_and_are_no_failure(host, tmp_path, monkeypatch):
    warnings = []
    monkeypatch.setattr("ansible.module_utils.basic.AnsibleModule.warn", lambda _module, text: warnings.append(text))
    host.node = boards.node(boards.gpu("a30-24gb"))
    host.remember()
    host.remembers = False
    really_open = os.open

    def open_as_nobody(path, *arguments, **options):
        if str(path).startswith(str(tmp_path / "state")):
            raise PermissionError(13, "Permission denied", path)
        return really_open(path, *arguments, **options)

    monkeypatch.setattr(os, "open", open_as_nobody)
    result = host.run(mig_info)
    assert (result["available"], result["persisted"], result["in_progress"]) == (True, None, None)
    assert warnings == []
