# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""From what hosts plan to waves, without hosts."""

from __future__ import annotations

import pytest

from ansible_collections.gpufleet.mig.plugins.module_utils import ansible_bridge
from ansible_collections.gpufleet.mig.plugins.plugin_utils import _rollout
from ansible_collections.gpufleet.mig.plugins.plugin_utils._rollout import BadSetting, HostPlan, Settings


def gpu(*profiles, index=0):
    return {
        "gpu": index,
        "name": "NVIDIA A30",
        "mig_current": True,
        "layout": f"GPU {index}  |{'|'.join(profiles)}|",
        "instances": [{"profile": each, "compute_instances": [{"profile": each}]} for each in profiles],
    }


def result(**more):
    """What mig_config in check mode says of a host that is to be changed."""
    return {
        "verdict": "differ",
        "changed": True,
        "converged": False,
        "msg": "would change 1 GPU",
        "label": "all-1g",
        "before": [gpu("2g.12gb", "2g.12gb")],
        "after": [gpu("1g.6gb", "1g.6gb", "1g.6gb", "1g.6gb")],
        "reset_required": [],
        "reboot_required": [],
        "binding": "installed",
        "drained": False,
        "drained_for": "",
        **more,
    }


def host(name, state="change", before=None, after=None, **more):
    return HostPlan(name, state, devices_before=before or {}, devices_after=after or {}, **more)


def made(plans, **settings):
    chosen = Settings(**settings)
    return _rollout.waves(_rollout.in_order(plans, chosen.canary), plans, chosen)


# --- what a host plans ----------------------------------------------------------------------------------------------

RIGHT = {"verdict": "match", "changed": False, "converged": True}


@pytest.mark.parametrize(
    ("answer", "state", "reason"),
    [
        (None, "unplanned", ""),
        ({"unreachable": True, "msg": "no route"}, "unreachable", "cannot tell"),
        (result(), "change", ""),
        (result(**RIGHT), "right", ""),
        (result(**{**RIGHT, "converged": False}), "remember", ""),
        (result(**RIGHT, binding="payload"), "remember", ""),
        (result(**{**RIGHT, "drained": True, "drained_for": "all-1g"}), "remember", ""),
        (result(**{**RIGHT, "drained": True}), "remember", ""),
        (result(**{**RIGHT, "drained": True, "drained_for": "all-2g"}), "refused", "drained"),
        (result(**RIGHT, recovered={"direction": "forward"}), "change", ""),
        (result(drained=True, drained_for="all-2g", recovered={"direction": "back"}), "change", ""),
        (result(in_progress={"running": True}), "refused", "busy"),
        (result(in_progress={"running": False}), "change", ""),
        (result(reset_required=[0]), "refused", "pending"),
        (result(reboot_required=[0]), "refused", "pending"),
        (result(reboot_required=[0], allow_reboot=True), "change", ""),
        ({"msg": "in use", "holders": [{"pid": 1}]}, "refused", "busy"),
        ({"msg": "promised", "reservations": [{"holder": "job"}]}, "refused", "reserved"),
        ({"msg": "unknown", "known": []}, "refused", "impossible"),
        ({"msg": "no room", "picture": ""}, "refused", "impossible"),
        ({"msg": "gone", "error": "GPU_IS_LOST"}, "refused", "cannot tell"),
        ({"msg": "something"}, "refused", "refused"),
        ({}, "refused", "refused"),
    ],
)
def test_what_a_host_said_puts_it_into_one_state(answer, state, reason):
    plan = _rollout.read_plan("a", answer)
    assert (plan.state, plan.reason) == (state, reason)
    assert plan.msg or state == "unplanned"


def test_a_drain_of_another_run_can_be_taken_over():
    drained = result(drained=True, drained_for="all-2g")
    assert _rollout.read_plan("a", drained, Settings(take_over_drain=True)).state == "change"
    assert "mig_take_over_drain=true" in _rollout.read_plan("a", drained).msg


def test_who_goes_back_from_one_label_leaves_drains_for_others_alone():
    goes_back = {**RIGHT, "label_source": "previous", "drained": True, "drained_for": "all-2g"}
    settings = Settings(take_over_drain=True, rollback_of="all-3g")
    assert _rollout.read_plan("a", result(**goes_back), settings).reason == "drained"
    assert _rollout.read_plan("a", result(**goes_back), settings._replace(rollback_of="all-2g")).state == "remember"
    # It means nothing for a host that does not go back.
    assert _rollout.read_plan("a", result(drained=True, drained_for="all-2g"), settings).state == "change"


def test_the_table_names_gpus_that_are_left_alone_and_a_rollback_of_nothing():
    plans = [
        _rollout.read_plan("a", result(**RIGHT, unlisted=[0, 1])),
        _rollout.read_plan("b", result(**RIGHT, without_mig=[0])),
    ]
    told = _rollout.table(plans, [], Settings(rollback_of="al-1g"))
    assert "2 GPUs of a are named by no wish, and stay as they are" in told
    assert "1 GPU of b cannot do MIG, and stays as it is" in told
    assert "no host goes back: none has al-1g by its last change" in told


@pytest.mark.parametrize("preflight", ["strict", "warn"])
def test_a_rollout_that_reaches_nobody_does_not_end_well(preflight):
    plans = [_rollout.read_plan(name, {"unreachable": True, "msg": "no route"}) for name in "ab"]
    settings = Settings(preflight=preflight, tolerate_unreachable=True)
    assert _rollout.why_stopped(plans, settings).startswith("No host can be reached")


def test_devices_are_counted_by_profile_over_all_gpus():
    plan = _rollout.read_plan("a", result(before=[gpu("2g.12gb"), gpu("2g.12gb", "1g.6gb", index=1)]))
    assert plan.devices_before == {"2g.12gb": 2, "1g.6gb": 1}
    assert plan.devices_after == {"1g.6gb": 4}


def test_a_brief_plan_says_the_same_of_a_host_without_its_instances():
    full = result(before=[gpu("2g.12gb"), gpu("2g.12gb", "1g.6gb", index=1)], plan=[{"steps": ["many"]}])
    brief = ansible_bridge.brief(full, {"allow_reboot": True})
    assert brief["allow_reboot"] is True
    assert _rollout.read_plan("a", brief) == _rollout.read_plan("a", full)
    assert "plan" not in brief
    assert all("instances" not in each for each in (*brief["before"], *brief["after"]))


# --- waves ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("serial", "number", "sizes"),
    [
        ("1", 3, [1, 1, 1]),
        ("2", 5, [2, 2, 1]),
        ("1,10%,100%", 40, [1, 4, 35]),
        ("10%", 5, [1, 1, 1, 1, 1]),
        ("33.4%", 10, [3, 3, 3, 1]),
        ("1,2", 8, [1, 2, 2, 2, 1]),
        ("1000", 3, [3]),
        ("1", 0, []),
    ],
)
def test_waves_are_as_large_as_serial_says_and_the_last_size_repeats(serial, number, sizes):
    waves = made([host(f"h{i}") for i in range(number)], serial=_rollout.serial_of("mig_serial", serial))
    assert [len(wave) for wave in waves] == sizes
    assert [name for wave in waves for name in wave] == [f"h{i}" for i in range(number)]


def test_hosts_whose_gpus_stay_are_one_wave_at_the_end_and_no_part_of_a_percentage():
    plans = [host("r1", "remember"), *(host(f"h{i}") for i in range(4)), host("ok", "right"), host("r2", "remember")]
    assert made(plans, serial=("50%",)) == [["h0", "h1"], ["h2", "h3"], ["r1", "r2"]]


def test_hosts_that_are_right_or_refuse_or_do_not_answer_are_in_no_wave():
    plans = [host("a", "right"), host("b", "refused"), host("c", "unreachable"), host("d")]
    assert made(plans) == [["d"]]
    assert _rollout.left_out(plans, Settings()) == ["b", "c"]
    assert _rollout.left_out(plans, Settings(tolerate_unreachable=True)) == ["b"]


def test_a_kind_that_a_canary_has_tried_needs_no_other_first():
    plans = [host("a", boards=("A30",)), host("b", boards=("A100",)), host("c", boards=("A30",))]
    assert [plan.name for plan in _rollout.in_order(plans, ("c",))] == ["c", "b", "a"]


def test_a_wave_takes_no_more_devices_away_than_the_floor_leaves():
    plans = [host(f"h{i}", before={"1g": 10}, after={"1g": 10}) for i in range(5)]
    assert made(plans, serial=(5,), keep_available={"1g": 30}) == [["h0", "h1"], ["h2", "h3"], ["h4"]]


def test_hosts_that_bring_devices_go_before_those_that_take_them_where_the_floor_demands_it():
    plans = [host("takes", before={"1g": 10}), host("brings", after={"1g": 10}), host("stays", "right", {"1g": 5})]
    assert made(plans, keep_available={"1g": 15}) == [["brings"], ["takes"]]


def test_a_floor_that_no_wave_can_hold_is_refused_with_what_would_be_left():
    with pytest.raises(BadSetting, match="permits no wave 1: with a out, 0 of 5 1g would be left"):
        made([host("a", before={"1g": 7}, after={"1g": 7})], keep_available={"1g": 5})


def test_a_floor_that_is_not_reached_yet_stops_no_wave_that_takes_nothing_of_it():
    plans = [host("a", after={"1g": 7}), host("b", after={"1g": 7}), host("c", before={"2g": 3}, after={"1g": 7})]
    assert made(plans, serial=(3,), keep_available={"1g": 100}) == [["a", "b", "c"]]


def test_a_thousand_hosts_are_laid_out_under_a_floor():
    plans = [host(f"h{i}", before={"1g": 7}, after={"1g": 7}) for i in range(1000)]
    waves = made(plans, serial=("1%", "100%"), keep_available={"1g": 6300})
    assert sum(map(len, waves)) == 1000
    assert max(map(len, waves)) == 100


# --- words ----------------------------------------------------------------------------------------------------------


def test_a_strict_preflight_names_whom_it_stops_for_and_what_can_be_done():
    plans = [host("a"), host("b", "refused"), host("c", "unreachable")]
    said = _rollout.why_stopped(plans, Settings())
    assert "b would refuse the change and c cannot be reached, and no host was touched" in said
    assert "mig_tolerate_unreachable" in said
    assert _rollout.why_stopped(plans, Settings(preflight="warn")) == ""
    assert _rollout.why_stopped(plans[:1], Settings()) == ""
    assert "mig_tolerate_unreachable" not in _rollout.why_stopped(plans[:2], Settings())
    assert _rollout.why_stopped([plans[0], plans[2]], Settings(tolerate_unreachable=True)) == ""


def test_alike_hosts_and_alike_gpus_are_told_once():
    two = [gpu("2g.12gb", index=0), gpu("2g.12gb", index=1), gpu("1g.6gb", index=2)]
    after = [gpu("1g.6gb", index=0), gpu("1g.6gb", index=1), gpu("1g.6gb", index=2)]
    plans = [_rollout.read_plan(f"h{i}", result(before=two, after=after)) for i in range(20)]
    text = _rollout.table(plans, made(plans, serial=("100%",)), Settings(serial=("100%",)))
    assert "to change, 20 hosts (h0, h1, h2, h3, h4, h5, h6, h7, and 12 more):" in text
    assert "  - 2 GPUs  |2g.12gb|\n  +         |1g.6gb|\n    1 GPU as before" in text
    assert len(text.splitlines()) < 15


def test_what_hosts_say_cannot_control_a_terminal():
    plans = [_rollout.read_plan("a", {"msg": "no\x1b[2J\x07"})]
    assert "\x1b" not in _rollout.table(plans, [], Settings())


@pytest.mark.parametrize(
    ("name", "value", "means"),
    [
        ("mig_serial", 3, {"serial": (3,)}),
        ("mig_serial", ["1", 2.0, "5%"], {"serial": (1, 2, "5%")}),
        ("mig_max_fail_percentage", "12.5 %", {"max_fail_percentage": 12.5}),
        ("mig_preflight", False, {"preflight": "off"}),
        ("mig_preflight", " Warn ", {"preflight": "warn"}),
        ("mig_keep_available", "40x1g.10gb, 2 x 3g.40gb", {"keep_available": {"1g.10gb": 40, "3g.40gb": 2}}),
        ("mig_keep_available", {"1g.10gb": "40"}, {"keep_available": {"1g.10gb": 40}}),
        ("mig_tolerate_unreachable", "yes", {"tolerate_unreachable": True}),
        ("mig_canary", "a, b,", {"canary": ("a", "b")}),
    ],
)
def test_settings_are_read_as_typed_values_and_as_text(name, value, means):
    assert _rollout.settings_of({name: value}) == Settings(**means)


@pytest.mark.parametrize("value", ["", "0", "-1", "1.5", "0%", "101%", True, None, "one", ["1", ""], "1;2", "9" * 12])
def test_a_size_of_a_wave_that_is_none_is_refused(value):
    with pytest.raises(BadSetting, match="mig_serial"):
        _rollout.settings_of({"mig_serial": value})


# --- what the scheduler says --------------------------------------------------------------------------------------

SAID = {"before": {"nvidia.com/gpu": 1}, "after": {"nvidia.com/mig-1g.6gb": 4}, "refusals": [], "warnings": []}


def test_the_table_shows_what_the_scheduler_will_have():
    plan = _rollout.with_scheduler(_rollout.read_plan("a", result()), SAID)
    told = _rollout.table([plan], [["a"]], Settings())
    assert "for the scheduler 1 nvidia.com/gpu -> 4 nvidia.com/mig-1g.6gb" in told


def test_a_change_that_the_scheduler_cannot_do_with_is_refused_before_any_drain():
    said = {**SAID, "refusals": ["single needs MIG devices that are all alike."]}
    plan = _rollout.with_scheduler(_rollout.read_plan("a", result()), said)
    assert (plan.state, plan.reason, plan.msg) == ("refused", "scheduler", said["refusals"][0])
    # What is there already is only told.
    right = _rollout.with_scheduler(_rollout.read_plan("a", result(**RIGHT)), said)
    assert (right.state, right.notes) == ("right", tuple(said["refusals"]))


def test_a_warning_is_told_once_with_all_hosts_that_it_is_about():
    said = {**SAID, "warnings": ["as the plain profile"]}
    plans = [_rollout.with_scheduler(_rollout.read_plan(name, result()), said) for name in ("a", "b")]
    assert "note, a and b:\n  as the plain profile" in _rollout.table(plans, [["a"], ["b"]], Settings())


def planned(said, **answer):
    answered = _rollout.as_the_scheduler_remembers(result(**answer), said)
    return _rollout.with_scheduler(_rollout.read_plan("a", answered), said)


def test_a_host_that_is_right_is_visited_where_something_is_to_be_mended_and_the_table_says_what():
    plan = planned({**SAID, "heal": ["What was paused comes back."]}, **RIGHT)
    assert plan.state == "remember"
    assert "to mend, a:\n  What was paused comes back." in _rollout.table([plan], [["a"]], Settings())


def test_a_drain_that_only_the_scheduler_remembers_counts_as_one():
    said = {**SAID, "drained": True, "drained_for": "all-1g.6gb"}
    assert planned(said, **RIGHT, label="all-1g.6gb").state == "remember"
    refused = planned(said, **RIGHT, label="all-disabled")
    assert (refused.state, refused.reason) == ("refused", "drained")
    assert "Another run has drained this host for all-1g.6gb" in refused.msg


def test_a_host_that_the_schedulers_manager_changes_has_nothing_to_remember():
    nothing_kept = {**RIGHT, "converged": False, "binding": "payload"}
    assert planned({**SAID, "mode": "operator"}, **nothing_kept).state == "right"
    assert planned({**SAID, "mode": "engine"}, **nothing_kept).state == "remember"
    assert planned({**SAID, "mode": "operator"}).state == "change"


def test_a_host_that_did_not_answer_has_nothing_to_add_to():
    for answer in (None, {"unreachable": True}, {"failed": True, "msg": "no"}):
        assert _rollout.as_the_scheduler_remembers(answer, {"drained": True, "mode": "operator"}) == answer
