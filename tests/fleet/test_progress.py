# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the callback gpufleet.mig.rollout says of real runs. What it makes of events is tested without Ansible."""

from __future__ import annotations

import json

import pytest

from ansible_collections.gpufleet.mig.tests.fleet.fleet import DOWN


@pytest.fixture
def told(tmp_path):
    """Run a playbook with the callback: the run, the lines of the callback, and how each host ended, by rollout."""
    path = tmp_path / "result.json"

    def run(fleet, *arguments, **variables):
        ran = fleet.run(
            *arguments,
            environment={"ANSIBLE_CALLBACKS_ENABLED": "gpufleet.mig.rollout", "GPUFLEET_MIG_ROLLOUT_JSON": str(path)},
            **variables,
        )
        assert "Callback dispatch" not in ran.out, ran.out
        lines = [line.removeprefix("mig: ") for line in ran.out.splitlines() if line.startswith("mig: ")]
        rollouts = json.loads(path.read_text())["rollouts"] if path.exists() else []
        return ran, lines, [{name: host["outcome"] for name, host in each["hosts"].items()} for each in rollouts]

    return run


def play(fleet, name, content):
    path = fleet.folder / f"{name}.yml"
    path.write_text(json.dumps(content))
    return str(path)


def test_every_host_is_told_by_how_it_ended_in_a_play_of_ones_own_and_in_a_rollout(make_fleet, told):
    names = ("fine", "right", "broken", "worse", "gone", "held", "late")
    fleet = make_fleet(*names, no="1xa100-sxm4-40gb")
    own = play(fleet, "own", [{"hosts": "right,worse", "gather_facts": False, "roles": ["gpufleet.mig.mig"]}])
    ran, lines, outcomes = told(fleet, own, mig_profile="all-2g.12gb")
    assert ran.rc == 0, ran.out
    assert lines == [
        "result over 2 hosts:",
        "     2  changed        right, worse",
        "next: nothing, all hosts are right.",
    ]
    assert outcomes == [{"right": "changed", "worse": "changed"}]

    fleet.hosts["down"] = {**DOWN}
    for name in (*names, "down"):
        fleet.hosts[name]["mig_profile"] = "all-1g"
    fleet.hosts["right"]["mig_profile"] = fleet.hosts["no"]["mig_profile"] = "all-2g.12gb"
    fleet.simulators["broken"].fault("write", nth=3, code="UNKNOWN")
    fleet.simulators["worse"].fault("nvmlDeviceCreateGpuInstanceWithPlacement", code="INSUFFICIENT_RESOURCES")
    before = play(
        fleet,
        "before",
        [
            {"ansible.builtin.set_fact": DOWN, "when": "inventory_hostname == 'gone'"},
            {"ansible.builtin.fail": {"msg": "Not \x1b[31mnow."}, "when": "inventory_hostname == 'held'"},
        ],
    )
    ran, lines, outcomes = told(
        fleet,
        "mig",
        mig_preflight="warn",
        mig_serial="5,1",
        mig_max_fail_percentage=50,
        mig_canary="fine,broken,worse,gone,held",
        mig_pre_tasks=before,
    )
    assert ran.rc != 0
    assert outcomes == [
        {
            "fine": "changed",
            "right": "right",
            "broken": "rolled_back",
            "worse": "incomplete",
            "gone": "lost",
            "held": "refused",
            "late": "not_reached",
            "no": "refused",
            "down": "lost",
        }
    ], ran.out
    text = "\n".join(lines)
    assert lines[0].startswith("wave 1 of 2: 5 hosts (fine, broken, worse, gone, held); 0 of 6 hosts done, 6 left;")
    assert "fine: changed; " in text
    assert "  - 1 GPU  |                            MIG off" in text
    assert "held: Not ?[31mnow. No GPU was touched." in text
    assert "missing: GPU 0" in text
    assert "The layout from before is restored." in text
    assert "wave 2 of 2" not in text
    assert lines[-1].startswith(
        "next: look at broken (rolled back); held, no (refused); worse (incomplete); gone, down ("
    )


def test_check_mode_goes_through_the_waves_and_tells_what_would_change(make_fleet, told):
    fleet = make_fleet("a", "b", "c")
    ran, lines, outcomes = told(fleet, "mig", "--check", mig_profile="all-1g", mig_serial="1,2")
    assert ran.rc == 0, ran.out
    assert outcomes == [dict.fromkeys("abc", "would_change")]
    assert [line.split("; ")[0] for line in lines if not line.startswith(" ")][:3] == [
        "wave 1 of 2: a",
        "a: would change",
        "wave 2 of 2: b and c",
    ]
    assert "b: would change as a; " in "\n".join(lines)
    # There is a basis from the second wave on.
    assert ["about" in line for line in lines if line.startswith("wave")] == [False, True]
    assert lines[-1] == "next: make the change with the same playbook, without --check."


def test_a_preflight_that_stops_all_is_told_with_the_hosts_that_were_not_reached(make_fleet, told):
    fleet = make_fleet("a", "b", no="1xa100-sxm4-40gb")
    fleet.hosts["down"] = DOWN
    ran, lines, outcomes = told(fleet, "mig", mig_profile="all-2g.12gb")
    assert ran.rc == 2
    assert outcomes == [{"a": "not_reached", "b": "not_reached", "no": "refused", "down": "lost"}]
    assert lines[0].startswith("the rollout did not begin: no would refuse the change and down cannot be reached")
    assert lines[1] == "result of the rollout over 4 hosts:"
    assert lines[-1].startswith("next: do what that says")


def test_two_rollouts_of_a_run_have_their_own_waves_and_tables_and_a_later_failure_is_told(make_fleet, told):
    fleet = make_fleet("a", "b")
    after = play(
        fleet, "after", [{"ansible.builtin.fail": {"msg": "Jobs crash."}, "when": "inventory_hostname == 'b'"}]
    )
    site = play(
        fleet,
        "site",
        [
            {"import_playbook": "gpufleet.mig.mig", "vars": {"mig_hosts": name, "mig_profile": "all-1g"}}
            for name in "ab"
        ],
    )
    ran, lines, outcomes = told(fleet, site, mig_post_tasks=after)
    assert ran.rc == 2, ran.out
    assert outcomes == [{"a": "changed"}, {"b": "changed"}]
    assert [line.split(";")[0] for line in lines if line.startswith("wave")] == ["wave 1 of 1: a", "wave 1 of 1: b"]
    assert "        b: a later step failed: Jobs crash." in lines
    first, second = [line for line in lines if line.startswith("next")]
    assert first == "next: nothing, all hosts are right."
    assert second.startswith("next: look at b (right, and failed later); then run the same playbook again")


def test_a_run_without_any_mig_says_nothing_and_writes_nothing(make_fleet, told):
    fleet = make_fleet("a")
    other = play(
        fleet,
        "other",
        [{"hosts": "all", "gather_facts": False, "tasks": [{"ansible.builtin.debug": {"msg": "Hello."}}]}],
    )
    ran, lines, outcomes = told(fleet, other)
    assert ran.rc == 0, ran.out
    assert (lines, outcomes) == ([], [])
