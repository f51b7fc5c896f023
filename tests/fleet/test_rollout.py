# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A rollout over many hosts: what is known before the first is touched, how waves go, and that a stop really stops."""

from __future__ import annotations

import json
import re
import subprocess

import pytest

from ansible_collections.gpufleet.mig.plugins.plugin_utils import _rollout
from ansible_collections.gpufleet.mig.tests.fleet.fleet import BIN, DOWN, ROOT

SIX = ("a", "b", "c", "d", "e", "f")
WISH = {"mig_profile": "all-1g"}
WAVES = {**WISH, "mig_serial": "1,2,100%"}
DONE = "4x1g.6gb"


def breaks(fleet, *names):
    """The third write to these hosts fails once, so that they are rolled back."""
    for name in names:
        fleet.simulators[name].fault("write", nth=3, code="UNKNOWN")


def gets_lost(fleet, *names):
    """These hosts answer until they are about to be changed, and then no more."""
    hook = fleet.folder / "lose.yml"
    hook.write_text(json.dumps([{"ansible.builtin.set_fact": DOWN, "when": f"inventory_hostname in {list(names)!r}"}]))
    return {"mig_pre_tasks": str(hook)}


def waves_of(ran):
    """The hosts of each wave that was begun."""
    return [found.split(", ") for found in re.findall(r'"msg": "Wave \d+ of \d+: (.+)"', ran.out)]


# --- a stop really stops ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "lost", "changed", "rc"),
    [
        ("", "", "abcdef", 0),
        # Its peer comes to an end, and no further wave begins.
        ("b", "", "ac", 2),
        ("a", "", "", 2),
        ("bc", "", "a", 2),
        # Ansible does not count hosts that it lost.
        ("", "b", "ac", 4),
        ("", "bc", "a", 4),
        ("c", "b", "a", 2),
        # Nothing comes after the last wave, and the run fails all the same.
        ("f", "", "abcde", 2),
        ("", "f", "abcde", 4),
    ],
)
def test_a_rollout_stops_after_the_wave_in_which_a_host_failed_or_was_lost(make_fleet, bad, lost, changed, rc):
    fleet = make_fleet(*SIX)
    breaks(fleet, *bad)
    ran = fleet.run("mig", **WAVES, **gets_lost(fleet, *lost))

    assert {name for name, devices in fleet.devices().items() if devices == DONE} == set(changed), ran.out
    assert set(fleet.devices().values()) <= {DONE, ""}, "a host that failed has its old layout"
    assert ran.rc in (rc, rc | 4), ran.out
    assert ran.failed == set(bad)
    assert ran.lost == set(lost)


def test_the_next_run_goes_on_where_the_rollout_stopped(make_fleet):
    fleet = make_fleet(*SIX)
    breaks(fleet, "b")
    assert fleet.run("mig", **WAVES).rc == 2
    fleet.writes()
    ran = fleet.run("mig", **WAVES)

    assert ran.rc == 0, ran.out
    assert ran.changed == {"b", "d", "e", "f"}
    assert set(fleet.writes()) == {"b", "d", "e", "f"}
    assert set(fleet.devices().values()) == {DONE}


@pytest.mark.parametrize(("accident", "rc"), [("breaks", 2), ("gets lost", 4)])
def test_as_much_of_a_wave_may_fail_as_is_allowed_and_the_run_fails_in_the_end(make_fleet, accident, rc):
    fleet = make_fleet(*SIX)
    settings = gets_lost(fleet, "b") if accident == "gets lost" else {}
    if accident == "breaks":
        breaks(fleet, "b")
    ran = fleet.run("mig", **WISH, mig_serial=2, mig_max_fail_percentage="50", **settings)

    assert ran.rc == rc, ran.out
    assert {name for name, devices in fleet.devices().items() if devices == DONE} == set("acdef")


def test_a_guard_that_refuses_one_host_lets_its_peers_finish_and_touches_nobody_else(make_fleet):
    fleet = make_fleet(*SIX)
    hook = fleet.folder / "refuse.yml"
    hook.write_text(json.dumps([{"ansible.builtin.fail": {"msg": "No."}, "when": "inventory_hostname == 'b'"}]))
    ran = fleet.run("mig", **WAVES, mig_pre_tasks=str(hook))

    assert ran.rc == 2
    assert ran.failed == {"b"}
    assert "No. No GPU was touched." in ran.out
    assert {name for name, devices in fleet.devices().items() if devices == DONE} == {"a", "c"}


# --- what is known before the first host is touched ---------------------------------------------------------------


@pytest.mark.parametrize("setting", ["strict", None, ""])
def test_nobody_is_touched_when_one_host_would_refuse(make_fleet, setting):
    fleet = make_fleet(*SIX[:3], d="1xa100-sxm4-40gb")
    settings = {} if setting is None else {"mig_preflight": setting}
    ran = fleet.run("mig", mig_profile="all-2g.12gb", mig_serial="100%", **settings)

    assert ran.rc == 2
    assert fleet.writes() == {}
    assert "3  to change" in ran.out
    assert "1  refused" in ran.out
    assert "refused (impossible), d:" in ran.out
    assert "d would refuse the change, and no host was touched" in ran.out
    assert "PLAY [Change hosts" not in ran.out


def test_with_a_warning_the_others_are_changed_and_the_run_fails_in_the_end(make_fleet):
    fleet = make_fleet(*SIX[:3], d="1xa100-sxm4-40gb")
    ran = fleet.run("mig", mig_profile="all-2g.12gb", mig_preflight="warn")

    assert ran.rc == 2
    assert ran.failed == {"d"}
    assert set(fleet.writes()) == {"a", "b", "c"}
    assert "TASK [This host was left out]" in ran.out


def test_without_a_preflight_no_host_is_asked_before_its_turn(make_fleet):
    fleet = make_fleet(*SIX[:3])
    breaks(fleet, "a")
    ran = fleet.run("mig", **WISH, mig_preflight="off")

    assert ran.rc == 2
    assert "3  not asked before" in ran.out
    assert fleet.simulators["b"].calls() == []


@pytest.mark.parametrize(
    ("settings", "rc", "changed"),
    [
        ({}, 2, ""),
        ({"mig_tolerate_unreachable": "yes"}, 0, "ab"),
        ({"mig_preflight": "warn"}, 2, "ab"),
        ({"mig_preflight": "warn", "mig_tolerate_unreachable": True}, 0, "ab"),
    ],
)
def test_a_host_that_was_down_before_stops_the_rollout_unless_that_is_tolerated(make_fleet, settings, rc, changed):
    fleet = make_fleet("a", "b")
    fleet.hosts["down"] = DOWN
    ran = fleet.run("mig", **WISH, **settings)

    assert ran.rc == rc, ran.out
    assert "unreachable (cannot tell), down:" in ran.out
    assert set(fleet.writes()) == set(changed)


def test_hosts_that_are_busy_or_promised_are_told_with_who_has_them(make_fleet):
    fleet = make_fleet("free", "busy", "promised")
    assert fleet.run("mig", **WISH, mig_serial=3).rc == 0
    fleet.writes()
    uuid = fleet.simulators["promised"].describe()["gpus"][0]["uuid"]
    fleet.hosts["promised"]["mig_reservations"] = [{"device": uuid, "holder": "Slurm job 4711"}]
    with fleet.simulators["busy"].occupy(gpu=0, gi=fleet.first_instance("busy"), ci=0):
        ran = fleet.run("mig", mig_profile="all-2g")

    assert ran.rc == 2
    assert "refused (busy), busy:" in ran.out
    assert "refused (reserved), promised:" in ran.out
    assert "Slurm job 4711" in ran.out
    assert fleet.writes() == {}


def test_a_reboot_that_is_allowed_is_planned_and_one_that_is_not_is_refused(make_fleet):
    fleet = make_fleet("a")
    fleet.add("vm", "1xa100-sxm4-40gb", virtualization="passthrough")
    ran = fleet.run("mig", "--check", **WISH, mig_serial=2, mig_allow_reboot="yes")
    assert ran.rc == 0, ran.out
    assert "2  to change" in ran.out

    ran = fleet.run("mig", "--check", **WISH, mig_serial=2)
    assert ran.rc == 2
    assert "refused, vm:" in ran.out
    assert "set allow_reboot to have it stored" in ran.out


def test_a_host_that_lost_a_gpu_is_told_before(make_fleet):
    fleet = make_fleet("a", "b", c="2xa30-24gb")
    ran = fleet.run("mig", **WISH, mig_expected_gpus=2)

    assert ran.rc == 2
    assert "expected_gpus says 2" in ran.out
    assert "a and b would refuse the change" in ran.out
    assert fleet.writes() == {}


def test_a_fleet_that_is_right_costs_one_task_for_each_host_and_writes_nothing(make_fleet):
    fleet = make_fleet(*SIX)
    assert fleet.run("mig", **WISH, mig_serial="100%").rc == 0
    fleet.writes()
    ran = fleet.run("mig", **WISH, mig_serial="100%")

    assert ran.rc == 0
    assert ran.changed == set()
    assert "6  already right" in ran.out
    assert len(re.findall(r"^ok: \[b\]", ran.out, re.M)) == 1
    assert fleet.writes() == {}


def test_check_mode_goes_through_all_waves_and_writes_nothing(make_fleet):
    fleet = make_fleet(*SIX)
    ran = fleet.run("mig", "--check", "--diff", **WAVES)

    assert ran.rc == 0, ran.out
    assert waves_of(ran) == [["a"], ["b", "c"], ["d", "e", "f"]]
    assert fleet.writes() == {}
    assert not (fleet.folder / "state").exists()


def test_a_run_that_finds_no_host_does_not_end_well(make_fleet):
    fleet = make_fleet("a")
    fleet.group("empty")
    for name in ("empty", "nobody"):
        ran = fleet.run("mig", **WISH, mig_hosts=name)
        assert ran.rc == 2, ran.out
        assert f"mig_hosts is {name}, and no host of the inventory" in ran.out
    # A name that was misspelled must not mean all hosts, nor one beside the limit of the run that all went well.
    for arguments, hosts, words in (
        ((), "{{ leaving }}", "'leaving' is undefined"),
        (("--limit", "a"), "empty", "No host is both in mig_hosts and within the limit"),
    ):
        ran = fleet.run("mig", *arguments, **WISH, mig_hosts=hosts)
        assert ran.rc, ran.out
        assert words in ran.out
    assert fleet.writes() == {}


@pytest.mark.parametrize("name", ["mig_profile", "mig_profile_by_gpu", "mig_expected_gpus", "mig_rollback"])
def test_a_variable_that_is_filled_in_with_one_that_is_not_there_stops_the_run(make_fleet, name):
    fleet = make_fleet("a")
    ran = fleet.run("mig", **{**WISH, name: "{{ nope }}"})
    assert ran.rc == 2
    assert "'nope' is undefined" in ran.out
    assert fleet.writes() == {}


def test_syntax_and_lists_can_be_had_without_a_plan(make_fleet):
    fleet = make_fleet("a")
    for option in ("--syntax-check", "--list-hosts", "--list-tasks"):
        assert fleet.run("mig", option, **WISH).rc == 0


# --- order and size of waves --------------------------------------------------------------------------------------


@pytest.mark.parametrize("serial", [[1, "50%", "100%"], "1,50%,100%", " 1 , 50% , 100% "])
def test_sizes_of_waves_are_a_list_or_text(make_fleet, serial):
    ran = make_fleet(*SIX).run("mig", "--check", **WISH, mig_serial=serial)
    assert waves_of(ran) == [["a"], ["b", "c", "d"], ["e", "f"]]


def test_without_a_size_one_host_goes_after_the_other(make_fleet):
    assert waves_of(make_fleet("a", "b").run("mig", "--check", **WISH)) == [["a"], ["b"]]


def test_settings_come_from_groups_and_extra_variables_win(make_fleet):
    fleet = make_fleet("a", "b", "c")
    fleet.group("gpus", "a", "b", "c", mig_serial="{{ 1 + at_least }}", at_least=1)
    assert waves_of(fleet.run("mig", "--check", **WISH)) == [["a", "b"], ["c"]]
    assert waves_of(fleet.run("mig", "--check", **WISH, mig_serial="3")) == [["a", "b", "c"]]


def test_a_setting_of_the_play_counts_for_all_hosts(make_fleet):
    fleet = make_fleet("a", "b", "c")
    fleet.hosts["b"]["mig_serial"] = 3
    site = fleet.folder / "site.yml"
    site.write_text(json.dumps([{"import_playbook": "gpufleet.mig.mig", "vars": {**WISH, "mig_serial": 2}}]))
    assert waves_of(fleet.run(str(site), "--check")) == [["a", "b"], ["c"]]


def test_settings_that_differ_between_hosts_are_refused_with_both(make_fleet):
    fleet = make_fleet("a", "b")
    fleet.hosts["b"]["mig_serial"] = "50%"
    ran = fleet.run("mig", **WISH)

    assert ran.rc == 2
    assert "mig_serial is not set for a and '50%' for b" in ran.out
    assert fleet.writes() == {}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"mig_serial": "0"}, "'0', which is no size of a wave"),
        ({"mig_serial": "101%"}, "'101%', which is no size of a wave"),
        ({"mig_max_fail_percentage": "some"}, "give a number from 0 to 100"),
        ({"mig_pause_between_waves": -1}, "give a number from 0 to 86400"),
        ({"mig_preflight": "perhaps"}, "it must be one of strict, warn, off"),
        ({"mig_keep_available": "many"}, "give numbers of MIG devices with their profile"),
        ({"mig_canary": "nobody"}, "neither a host nor a group of the inventory"),
        ({"mig_tolerate_unreachable": "perhaps"}, "give true or false"),
        ({"mig_keep_available": "1x1g.6gb", "mig_preflight": "off"}, "mig_preflight must not be off"),
        ({"mig_wave_tasks": ["/nowhere.yml"]}, "'/nowhere.yml', which is no file on the controller"),
        ({"mig_wave_tasks": {"a": 1}}, "give the path of a task file, or a list of them"),
        ({"mig_serial": "{{ nope }}"}, "mig_serial cannot be filled in: 'nope' is undefined"),
    ],
)
def test_settings_that_cannot_be_used_stop_the_rollout_before_the_first_host(make_fleet, settings, words):
    fleet = make_fleet("a")
    ran = fleet.run("mig", **WISH, **settings)

    assert ran.rc == 2
    assert words in " ".join(ran.out.split())
    assert "No host was touched." in ran.out
    assert fleet.writes() == {}


def test_template_syntax_in_the_answer_of_a_survey_is_text(make_fleet):
    fleet = make_fleet("a")
    # As AWX hands over what people typed.
    answers = fleet.folder / "answers.yml"
    answers.write_text("".join(f'mig_{name}: !unsafe "{{{{ 1 / 0 }}}}"\n' for name in ("serial", "profile", "canary")))
    ran = fleet.run("mig", "-e", f"@{answers}")
    assert ran.rc == 2
    assert "mig_serial has '{{ 1 / 0 }}', which is no size of a wave" in ran.out

    answers.write_text('mig_profile: !unsafe "{{ 1 / 0 }}"\n')
    ran = fleet.run("mig", "-e", f"@{answers}")
    assert ran.rc == 2
    assert "label '{{ 1 / 0 }}' is a template that nobody has filled in" in ran.out


def test_the_canaries_go_first_and_then_one_host_of_each_kind(make_fleet):
    fleet = make_fleet("a", "b", "c", d="1xa100-sxm4-40gb", e="1xa100-sxm4-40gb", f="1xh100-sxm5-80gb")
    fleet.group("mig_canary", "b")
    ran = fleet.run("mig", "--check", **WISH)
    assert waves_of(ran) == [["b"], ["d"], ["f"], ["a"], ["c"], ["e"]]

    ran = fleet.run("mig", "--check", **WISH, mig_canary="e, c", mig_serial="2,100%")
    assert waves_of(ran) == [["c", "e"], ["f", "a", "b", "d"]]


def test_a_capacity_floor_bounds_every_wave(make_fleet):
    fleet = make_fleet(*SIX)
    assert fleet.run("mig", **WISH, mig_serial=6).rc == 0
    # 24 devices of 1g.6gb; every host that changes takes 4 away for good.
    ran = fleet.run(
        "mig", mig_profile="all-2g", mig_serial="100%", mig_keep_available="16x1g.6gb", mig_preflight="warn"
    )
    assert ran.rc == 2
    assert "mig_keep_available permits no wave 2: with c out, 12 of 16 1g.6gb would be left." in " ".join(
        ran.out.split()
    )

    wish = {"mig_profile": "4x1g.6gb", "mig_serial": "100%", "mig_keep_available": {"1g.6gb": 16}}
    fleet.simulators["a"].reset_calls()
    assert "6  already right" in fleet.run("mig", "--check", **wish).out
    fleet.simulators["a"].reboot()
    fleet.simulators["b"].reboot()
    ran = fleet.run("mig", **wish)
    assert ran.rc == 0
    assert waves_of(ran) == [["a", "b"]]


# --- different hosts, one command ---------------------------------------------------------------------------------


def test_hosts_get_what_their_groups_say_and_an_extra_variable_wins_except_over_a_mapping_by_gpu(make_fleet):
    fleet = make_fleet("a", "b", c="1xa100-sxm4-40gb")
    fleet.group("halves", "a", mig_profile="all-2g")
    fleet.group("quarters", "b", mig_profile="all-1g")
    fleet.group("large", "c", mig_profile_by_gpu={"NVIDIA A100-SXM4-40GB": "all-3g.20gb"})
    assert fleet.run("mig", mig_serial=3).rc == 0
    assert fleet.devices() == {"a": "2x2g.12gb", "b": "4x1g.6gb", "c": "2x3g.20gb"}

    assert fleet.run("mig", mig_serial=3, mig_profile="all-1g").rc == 0
    assert fleet.devices() == {"a": "4x1g.6gb", "b": "4x1g.6gb", "c": "2x3g.20gb"}


def test_a_host_in_two_groups_with_different_wishes_gets_one_of_them_whole_and_the_plan_shows_which(make_fleet):
    fleet = make_fleet("a")
    fleet.group("one", "a", mig_profile="all-2g")
    fleet.group("two", "a", mig_profile="all-1g")
    assert (
        "+        |1g.6gb         |1g.6gb         |1g.6gb         |1g.6gb         |" in fleet.run("mig", "--check").out
    )
    fleet.groups["one"]["vars"]["ansible_group_priority"] = 10
    assert (
        "+        |2g.12gb                        |2g.12gb                        |" in fleet.run("mig", "--check").out
    )


def test_the_example_of_a_fleet_makes_groups_by_board_and_one_canary_of_each_kind():
    command = [str(BIN / "ansible-inventory"), "-i", str(ROOT / "examples/fleet"), "--list"]
    found = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
    assert len(found["gpu_A100_SXM4_40GB"]["hosts"]) == 40
    assert sorted(found["mig_canary"]["hosts"]) == ["infer01.example.com", "lab01.example.com", "train01.example.com"]
    hosts = found["_meta"]["hostvars"]
    assert hosts["train02.example.com"]["mig_profile"] == "all-disabled"
    assert hosts["lab01.example.com"]["mig_profile"] == "2x2g.12gb"
    settings = _rollout.settings_of(
        {name: hosts["infer07.example.com"].get(name) for name in ("mig_serial", "mig_keep_available")}
    )
    assert settings.keep_available == {"1g.5gb": 36 * 4 * 7}


# --- between waves ------------------------------------------------------------------------------------------------


def test_checks_of_the_operator_run_once_for_each_wave_and_stop_the_rollout_when_they_fail(make_fleet):
    fleet = make_fleet(*SIX)
    log = fleet.folder / "log"
    hook = fleet.folder / "check.yml"
    hook.write_text(
        json.dumps(
            [
                {
                    "ansible.builtin.lineinfile": {
                        "path": str(log),
                        "line": "{{ mig_wave.number }}/{{ mig_wave.of }} {{ mig_wave.hosts | join(',') }}",
                        "create": True,
                        "mode": "0600",
                    }
                },
                {"ansible.builtin.fail": {"msg": "Jobs crash."}, "when": "mig_wave.number | int == 2"},
            ]
        )
    )
    assert fleet.run("mig", "--check", **WAVES, mig_wave_tasks=str(hook)).rc == 0
    assert not log.exists()
    ran = fleet.run("mig", **WAVES, mig_wave_tasks=[str(hook)])

    assert ran.rc == 2
    assert "Jobs crash." in ran.out
    assert log.read_text().splitlines() == ["1/3 a", "2/3 b,c"]
    assert {name for name, devices in fleet.devices().items() if devices == DONE} == {"a", "b", "c"}


def test_waves_are_apart_as_long_as_was_asked_for_and_none_follows_the_last(make_fleet):
    ran = make_fleet("a", "b").run("mig", **WISH, mig_pause_between_waves="1 s")
    assert ran.rc == 0
    assert ran.out.count("Pausing for 1 seconds") == 1, ran.out
