# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A fleet goes back to where it came from, or out of MIG altogether."""

from __future__ import annotations

import pytest


def test_hosts_go_back_to_what_each_had_before_its_last_change_and_a_second_run_changes_nothing(make_fleet):
    fleet = make_fleet("never", "new", "old", "other")
    assert fleet.run("mig", mig_hosts="old,other", mig_profile="all-2g", mig_serial=2).rc == 0
    assert fleet.run("mig", mig_hosts="new,old", mig_profile="all-1g", mig_serial=2).rc == 0
    fleet.writes()

    checked = fleet.run("rollback", "--check", mig_rollback_of="all-1g", mig_serial=4)
    assert checked.rc == 0, checked.out
    assert fleet.writes() == {}
    ran = fleet.run("rollback", mig_rollback_of="all-1g", mig_serial=4)
    assert ran.rc == 0, ran.out
    assert "2  to change" in ran.out
    assert "2  already right" in ran.out
    # What was there before the first change of all was MIG off.
    assert fleet.devices() == {"never": "", "new": "", "old": "2x2g.12gb", "other": "2x2g.12gb"}
    assert set(fleet.writes()) == {"new", "old"}

    again = fleet.run("rollback", mig_rollback_of="all-1g", mig_serial=4)
    assert again.rc == 0
    assert "4  already right" in again.out
    assert fleet.writes() == {}


def test_a_host_without_a_record_is_refused_when_all_are_to_go_back(make_fleet):
    fleet = make_fleet("a", "b")
    assert fleet.run("mig", mig_hosts="a", mig_profile="all-2g").rc == 0
    fleet.writes()
    ran = fleet.run("rollback", mig_profile="all-1g")

    assert ran.rc == 2
    assert "This node has no record of a layout before its last change" in ran.out
    assert fleet.writes() == {}


def test_a_rollout_that_failed_half_way_is_taken_back_on_the_hosts_that_it_reached(make_fleet):
    fleet = make_fleet("a", "b", "c")
    assert fleet.run("mig", mig_profile="all-2g", mig_serial=3).rc == 0
    fleet.simulators["b"].fault("write", nth=3, code="UNKNOWN")
    assert fleet.run("mig", mig_profile="all-1g").rc == 2
    assert fleet.devices() == {"a": "4x1g.6gb", "b": "2x2g.12gb", "c": "2x2g.12gb"}
    fleet.writes()
    ran = fleet.run("rollback", mig_rollback_of="all-1g")

    assert ran.rc == 0, ran.out
    assert set(fleet.writes()) == {"a"}
    assert set(fleet.devices().values()) == {"2x2g.12gb"}


@pytest.mark.parametrize(
    ("playbook", "differently"),
    [
        ("rollback", {"mig_rollback": "no", "mig_profile": "all-1g"}),
        ("baseline", {"mig_profile": "all-1g"}),
        ("baseline", {"mig_rollback": True}),
    ],
)
def test_an_extra_variable_does_not_make_another_playbook_of_it(make_fleet, playbook, differently):
    fleet = make_fleet("a")
    assert fleet.run("mig", mig_profile="all-2g").rc == 0
    fleet.writes()
    ran = fleet.run(playbook, **differently)
    assert ran.rc == 2
    assert "and this playbook is for" in ran.out
    assert fleet.writes() == {}


def test_a_host_that_another_run_drains_is_left_to_it_but_for_the_label_that_is_taken_back(make_fleet, tmp_path):
    fleet = make_fleet("a")
    assert fleet.run("mig", mig_profile="all-2g").rc == 0
    drained = fleet.folder / "state" / "a" / "drained.json"
    record = '{"schema": 1, "label": "all-1g"}'
    drained.write_text(record, encoding="utf-8")
    given_back = tmp_path / "given-back"
    hook = tmp_path / "undrain.yml"
    hook.write_text(
        f"- ansible.builtin.copy: {{content: '', dest: '{given_back}'}}\n  delegate_to: localhost\n", encoding="utf-8"
    )
    hooks = {"mig_drain_tasks": str(hook), "mig_undrain_tasks": str(hook)}

    for of in ({"mig_rollback_of": "zzz"}, {}):
        ran = fleet.run("rollback", **of, **hooks)
        assert ran.rc == 2, ran.out
        assert "Another run has drained this host for all-1g" in ran.out
    ran = fleet.run("rollback", mig_rollback_of="all-1g")
    assert ran.rc == 2, "nobody could give it back"
    assert "without mig_undrain_tasks this run could not give it back" in ran.out
    assert drained.read_text(encoding="utf-8") == record
    assert not given_back.exists()

    ran = fleet.run("rollback", mig_rollback_of="all-1g", **hooks)
    assert ran.rc == 0, ran.out
    assert given_back.exists()
    assert not drained.exists()
    assert fleet.devices() == {"a": "2x2g.12gb"}


def test_the_baseline_is_no_mig_anywhere_whatever_the_inventory_wants(make_fleet):
    fleet = make_fleet("a", b="1xa100-sxm4-40gb")
    fleet.variables["mig_profile"] = "all-1g"
    fleet.hosts["b"]["mig_profile_by_gpu"] = {"NVIDIA A100-SXM4-40GB": "all-3g.20gb"}
    fleet.hosts["b"]["mig_unlisted"] = "ignore"
    assert fleet.run("mig", mig_serial=2).rc == 0
    assert "" not in fleet.devices().values()
    assert fleet.run("baseline", "--check").rc == 0
    assert "" not in fleet.devices().values()
    ran = fleet.run("baseline", mig_serial=2)

    assert ran.rc == 0, ran.out
    assert set(fleet.devices().values()) == {""}
    assert fleet.run("baseline").changed == set()
