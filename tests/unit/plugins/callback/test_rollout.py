# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What is said about a rollout while it goes on and at its end: events in, lines of text out."""

from __future__ import annotations

import json
import os
import time
import types

import pytest

from ansible_collections.gpufleet.mig.plugins.callback import rollout
from ansible_collections.gpufleet.mig.plugins.plugin_utils._progress import OUTCOMES, Progress

OFF = "GPU 0  |      MIG off      |"
ON = "GPU 0  |1g.5gb|1g.5gb|     |"


def gpu(layout=ON, index=0):
    return {"gpu": index, "name": "NVIDIA A30", "layout": layout.replace("GPU 0", f"GPU {index}"), "instances": []}


def good(changed=True, before=OFF, after=ON, **more):
    """What mig_config says after a success."""
    return {
        "changed": changed,
        "verdict": "match",
        "converged": False,
        "altered": changed,
        "msg": "changed 1 GPU",
        "before": [gpu(before)],
        "after": [gpu(after)],
        "reset_required": [],
        "reboot_required": [],
        **more,
    }


RIGHT = good(False, ON, ON, converged=True, binding="installed")
PLANNED = good(True, verdict="differ", altered=False, msg="would change 1 GPU")
IMPOSSIBLE = {"changed": False, "altered": False, "msg": "label is unknown", "known": []}
ROLLED_BACK = {"altered": True, "rolled_back": True, "msg": "It failed. The layout from before is restored."}
GONE = ["GPU 0: instance a is gone", "GPU 0: instance b is gone"]
INCOMPLETE = {
    "altered": True,
    "rolled_back": False,
    "msg": f"It failed. Not everything could be restored: {'; '.join(GONE)}.",
    "missing": GONE,
    "before": [gpu(ON)],
    "after": [gpu(OFF)],
}


class Clock:
    """A clock that stands still until it is told to go on."""

    def __init__(self):
        self.seconds = 1000.0

    def __call__(self):
        return self.seconds


class Run:
    """A run of the playbook: events, and all lines that were said."""

    def __init__(self, forks=5, check_mode=False):
        self.clock = Clock()
        self.progress = Progress(self.clock, forks, check_mode)
        self.waves = []

    def rollout(self, *waves, pause=0.0, **states):
        """A plan with these waves, given as hosts with blanks between; other hosts by their state."""
        self.waves = [wave.split() for wave in waves]
        hosts = {
            name: {"state": "change", "before": [OFF], "after": [ON], "msg": ""} for wave in self.waves for name in wave
        }
        hosts |= {name: {"state": state, "msg": f"{name} says {state}"} for name, state in states.items()}
        self.progress.rollout_planned(
            {"waves": self.waves, "hosts": hosts, "settings": {"pause_between_waves": pause, "keep_available": {}}}
        )

    def wave(self):
        return self.progress.play_begins([name for wave in self.waves for name in wave])

    def ends(self, *failed):
        """The table, by its rows without the beginning of each line."""
        return [line.removeprefix("mig: ") for line in self.progress.ends(set(failed))]

    def outcomes(self, number=-1):
        hosts = self.progress.as_data()["rollouts"][number]["hosts"]
        return {name: host["outcome"] for name, host in hosts.items()}


# --- while it goes on ---------------------------------------------------------------------------------------------


def test_a_plan_alone_says_nothing_since_its_table_has_said_it():
    run = Run()
    for name in "abc":
        assert run.progress.play_begins(["all"]) == []
        assert run.progress.planned(name, PLANNED) == []
    run.rollout("a b c")


def test_every_wave_is_named_with_its_hosts_and_what_is_left():
    run = Run()
    run.rollout("a", "b c")
    assert run.wave() == ["mig: wave 1 of 2: a; 0 of 3 hosts done, 3 left; 0 s elapsed"]
    run.progress.applied("a", good())
    run.clock.seconds += 10
    assert run.wave() == [
        "mig: wave 2 of 2: b and c; 1 of 3 hosts done, 2 left; 10 s elapsed, about 10 s to go",
    ]


def test_what_has_changed_is_shown_as_pictures_once_for_all_hosts_that_are_alike():
    run = Run()
    run.rollout("a b c")
    run.wave()
    first = run.progress.applied("a", good())
    assert first[0] == "mig: a: changed; 1 of 3 hosts done, 2 left; 0 s elapsed"
    assert first[1:] == ["mig:   - 1 GPU  |      MIG off      |", "mig:   +        |1g.5gb|1g.5gb|     |"]
    assert run.progress.applied("b", good()) == ["mig: b: changed as a; 2 of 3 hosts done, 1 left; 0 s elapsed"]
    assert len(run.progress.applied("c", good(before=ON, after=OFF))) == 3


def test_a_host_whose_gpus_stayed_as_they_were_has_no_picture():
    run = Run()
    run.rollout("a")
    run.wave()
    (line,) = run.progress.applied("a", good(before=ON, after=ON))
    assert line.startswith("mig: a: changed: only what it remembers, no GPU;")


def test_nothing_is_said_of_the_time_to_go_before_a_wave_is_done():
    run = Run()
    run.rollout("a b", "c")
    run.wave()
    run.clock.seconds += 60
    (line, *_pictures) = run.progress.applied("a", good())
    assert line.endswith("1 of 3 hosts done, 2 left; 1 min 00 s elapsed")


@pytest.mark.parametrize(
    ("forks", "pause", "expected"),
    [
        # One host took 60 s; four at a time take as long as one, and nine are three times that.
        (4, 0.0, "3 min 00 s"),
        # One after the other.
        (1, 0.0, "9 min 00 s"),
        # Half of the time until the second wave was a pause, and none follows the last.
        (4, 30.0, "1 min 30 s"),
    ],
)
def test_the_time_to_go_is_that_of_the_waves_done_by_hosts_that_are_asked_at_a_time(forks, pause, expected):
    run = Run(forks)
    run.rollout("a", "b c d e f g h i j", pause=pause)
    run.wave()
    run.clock.seconds += 60
    (line,) = run.wave()
    assert line.endswith(f"about {expected} to go")


def test_the_time_to_go_gets_less_within_a_wave_and_is_not_said_when_the_wave_takes_longer():
    run = Run()
    run.rollout("a", "b c d")
    run.wave()
    run.progress.applied("a", good())
    run.clock.seconds += 60
    run.wave()
    run.clock.seconds += 20
    assert run.progress.applied("b", good())[0].endswith("about 40 s to go")
    run.clock.seconds += 100
    assert run.progress.applied("c", good())[0].endswith("3 min 00 s elapsed")


def test_long_times_are_in_hours():
    run = Run()
    run.rollout("a b")
    run.wave()
    run.clock.seconds += 2 * 3600 + 5 * 60
    assert "2 h 05 min elapsed" in run.progress.applied("a", good())[0]


def test_a_host_that_waits_for_a_reboot_is_not_done_before_its_second_call():
    run = Run()
    run.rollout("a")
    run.wave()
    assert run.progress.applied("a", good(verdict="differ", reboot_required=[0], after=OFF)) == []
    assert "1 of 1 host done" in run.progress.applied("a", good(before=OFF))[0]
    run.ends()
    assert run.outcomes() == {"a": "changed"}


def test_a_plan_within_a_wave_ends_a_host_only_where_nothing_is_to_be_done_or_it_refuses():
    run = Run()
    run.rollout("a b c")
    run.wave()
    assert run.progress.planned("a", PLANNED) == []
    assert run.progress.planned("b", RIGHT)[0].startswith("mig: b: already right; 1 of 3 hosts done")
    assert run.progress.planned("c", IMPOSSIBLE)[0].startswith("mig: c: refused; 2 of 3 hosts done")


def test_names_and_messages_cannot_do_anything_to_a_terminal_nor_begin_a_line():
    run = Run()
    run.rollout("a\x1b[31m")
    lines = run.wave()
    lines += run.progress.applied(
        "a\x1b[31m", {"altered": False, "msg": "No\r\nmig: all is well\x07\u202e"}, failed=True
    )
    lines += run.progress.ends({"a\x1b[31m"})
    assert all(line.isprintable() and line.startswith("mig: ") for line in lines)
    assert not any(line.startswith("mig: all is well") for line in lines)


# --- the table ----------------------------------------------------------------------------------------------------


def test_every_host_is_in_the_table_once_by_how_it_ended():
    run = Run()
    run.rollout("fine broken worse held gone", "late", ok="right", no="refused", down="unreachable")
    run.wave()
    run.progress.applied("fine", good())
    run.progress.applied("broken", ROLLED_BACK, failed=True)
    run.progress.applied("worse", INCOMPLETE, failed=True)
    run.progress.failed("held", "A guard refuses. No GPU was touched.", for_good=True)
    run.progress.lost("gone", "No route to host")
    run.clock.seconds += 42
    *table, following = run.ends("broken", "worse", "held", "no", "down")

    assert table == [
        "result of the rollout over 9 hosts, 1 of 2 waves begun, 42 s:",
        "     1  changed        fine",
        "     1  already right  ok",
        "     1  rolled back    broken",
        "        broken: It failed. The layout from before is restored.",
        "     2  refused        held, no",
        "        held: A guard refuses. No GPU was touched.",
        "        no: no says refused",
        "     1  incomplete     worse",
        "        worse: It failed. Not everything could be restored: see below.",
        "          missing: GPU 0: instance a is gone",
        "          missing: GPU 0: instance b is gone",
        "     2  lost           gone, down",
        "        gone: No route to host",
        "        down: down says unreachable",
        "     1  not reached    late",
    ]
    assert following == (
        "next: look at broken (rolled back); held, no (refused); worse (incomplete); gone, down (lost); then run the"
        " same playbook again: hosts that are right are left alone."
    )


def test_when_all_went_well_nothing_is_left_to_do():
    run = Run()
    run.rollout("a")
    run.wave()
    run.progress.applied("a", good())
    assert run.ends()[-1] == "next: nothing, all hosts are right."


def test_of_hosts_that_are_well_some_are_named_and_of_others_all():
    run = Run()
    names = [f"h{number}" for number in range(20)]
    run.rollout(" ".join(names), **{f"x{number}": "refused" for number in range(20)})
    run.wave()
    for name in names:
        run.progress.applied(name, good())
    table = run.ends()
    assert "    20  changed        h0, h1, h2, h3, h4, h5, h6, h7, and 12 more" in table
    assert any("refused" in line and "x19" in line for line in table)


def test_a_preflight_that_stops_all_leaves_the_hosts_that_were_to_change_unreached():
    run = Run()
    run.progress.play_begins(["all"])
    run.progress.planned("b", PLANNED)
    run.progress.planned("a", PLANNED)
    run.progress.planned("ok", RIGHT)
    run.progress.planned("no", IMPOSSIBLE)
    run.progress.planned("down", {"unreachable": True, "msg": "No route to host"})
    run.progress.rollout_stopped("no would refuse the change, and no host was touched: remove the cause.")
    # The task ran for the first host of the play, which did nothing wrong.
    table = run.ends("a")

    assert table[0].startswith("the rollout did not begin: no would refuse the change")
    assert run.outcomes() == {
        "a": "not_reached",
        "b": "not_reached",
        "ok": "right",
        "no": "refused",
        "down": "lost",
    }
    assert "     2  not reached    a, b" in table
    assert table[-1].startswith("next: do what that says")


def test_a_rollout_whose_settings_cannot_be_used_says_so_without_any_host():
    run = Run()
    run.progress.rollout_stopped("mig_serial is empty. No host was touched.")
    assert run.ends() == [
        "the rollout did not begin: mig_serial is empty. No host was touched.",
        "next: do what that says, and run the same playbook again. No host was touched.",
    ]


def test_in_check_mode_hosts_would_change_and_the_next_step_is_to_do_it():
    run = Run(check_mode=True)
    run.rollout("a", "b", pause=3600)
    run.wave()
    assert run.progress.applied("a", PLANNED, foreseen=True)[0].startswith("mig: a: would change; 1 of 2 hosts done")
    run.clock.seconds += 5
    # Nobody waits between waves in check mode.
    assert run.wave()[0].endswith("about 5 s to go")
    run.progress.applied("b", PLANNED, foreseen=True)
    table = run.ends()
    assert "     2  would change   a, b" in table
    assert table[-1] == "next: make the change with the same playbook, without --check."


def test_a_change_that_would_end_with_a_pending_mode_would_be_refused_in_check_mode():
    run = Run(check_mode=True)
    run.rollout("a b")
    run.wave()
    waiting = {**PLANNED, "reboot_required": [0]}
    assert run.progress.applied("a", waiting, foreseen=True) == []
    assert run.progress.applied("b", waiting, foreseen=True) == []
    run.progress.failed("a", "The mode waits for a reboot.", for_good=True)
    run.ends("a")
    assert run.outcomes() == {"a": "refused", "b": "would_change"}


def test_a_real_change_that_ends_with_a_pending_mode_is_incomplete():
    run = Run()
    run.rollout("a b")
    run.wave()
    for name in "ab":
        run.progress.applied(name, good(verdict="differ", reboot_required=[0]))
    assert run.progress.failed("a", "The host did not come back.", for_good=True)[0].startswith("mig: a: incomplete;")
    # What is not known for good while it runs is known at the end.
    run.progress.failed("b", "reboot failed")
    run.ends("a", "b")
    assert run.outcomes() == {"a": "incomplete", "b": "incomplete"}


@pytest.mark.parametrize(
    ("result", "outcome"),
    [
        (IMPOSSIBLE, "refused"),
        (ROLLED_BACK, "rolled_back"),
        (INCOMPLETE, "incomplete"),
        # The layout is right and stays, and is not complete.
        ({"altered": True, "msg": "A device file is not there.", "missing_devices": ["/dev/a"]}, "incomplete"),
        # A module that ended without a word may have done anything.
        ({"msg": "MODULE FAILURE", "module_stdout": ""}, "incomplete"),
        ({"censored": "hidden by no_log"}, "incomplete"),
    ],
)
def test_a_failure_counts_as_harmless_only_where_the_result_says_so(result, outcome):
    run = Run()
    run.rollout("a")
    run.wave()
    assert run.progress.applied("a", result, failed=True)
    run.ends("a")
    assert run.outcomes() == {"a": outcome}


def test_the_gate_after_a_rollback_adds_what_became_of_the_host_and_does_not_count_it_twice():
    run = Run()
    run.rollout("a b")
    run.wave()
    run.progress.applied("a", ROLLED_BACK, failed=True)
    assert run.progress.failed("a", "It failed. This host stays drained.", for_good=True) == []
    assert "2 of 2 hosts done" in run.progress.applied("b", good())[0]
    table = run.ends("a")
    assert "        a: It failed. This host stays drained." in table


def test_a_host_whose_later_step_failed_has_changed_and_is_to_be_looked_at():
    run = Run()
    run.rollout("a b")
    run.wave()
    for name in "ab":
        run.progress.applied(name, good())
        run.progress.failed(name, "Jobs crash.")
    # The failure of b was rescued: Ansible does not count it.
    table = run.ends("a")
    assert "     2  changed        a, b" in table
    assert "        a: a later step failed: Jobs crash." in table
    assert table[-1].startswith("next: look at a (right, and failed later); then run the same playbook again")


def test_a_host_that_got_lost_after_its_change_is_lost_and_says_so():
    run = Run()
    run.rollout("a")
    run.wave()
    run.progress.applied("a", good())
    run.progress.lost("a", "Connection closed.")
    table = run.ends()
    assert "        a: Connection closed. It was lost after its change." in table
    assert run.outcomes() == {"a": "lost"}


def test_hosts_of_waves_that_were_not_begun_are_not_reached_whatever_else_failed():
    run = Run()
    run.rollout("a", "b", "c")
    run.wave()
    run.progress.applied("a", ROLLED_BACK, failed=True)
    # The play of those that were left out, and of others.
    run.progress.play_begins(["x"])
    run.progress.failed("b", "something else")
    run.ends("a", "b")
    assert run.outcomes() == {"a": "rolled_back", "b": "not_reached", "c": "not_reached"}


def test_a_host_that_ends_in_the_middle_of_its_wave_without_a_result_is_not_reached():
    run = Run()
    run.rollout("a b")
    run.wave()
    run.progress.planned("a", PLANNED)
    run.ends()
    assert run.outcomes() == {"a": "not_reached", "b": "not_reached"}


def test_without_a_preflight_hosts_are_counted_when_their_turn_comes():
    run = Run()
    run.waves = [["a"], ["b"], ["c"]]
    run.progress.rollout_planned({"waves": run.waves, "hosts": {name: {"state": "unplanned"} for name in "abc"}})
    run.wave()
    run.progress.planned("a", RIGHT)
    run.wave()
    run.progress.planned("b", IMPOSSIBLE)
    run.ends("b")
    assert run.outcomes() == {"a": "right", "b": "refused", "c": "not_reached"}


def test_several_rollouts_of_a_run_have_a_table_each():
    run = Run()
    run.progress.planned("a", PLANNED)
    run.rollout("a")
    run.wave()
    run.progress.applied("a", good())
    run.clock.seconds += 7
    run.progress.play_begins(["other"])
    run.clock.seconds += 100
    run.progress.planned("b", PLANNED)
    run.rollout("b")
    run.wave()
    run.progress.applied("b", good())
    run.clock.seconds += 5
    assert [line for line in run.ends() if line.startswith("result")] == [
        "result of the rollout over 1 host, 1 of 1 wave begun, 7 s:",
        "result of the rollout over 1 host, 1 of 1 wave begun, 5 s:",
    ]
    assert (run.outcomes(0), run.outcomes(1)) == ({"a": "changed"}, {"b": "changed"})


def test_a_second_playbook_of_a_command_does_not_tell_the_first_again():
    run = Run()
    run.rollout("a")
    run.wave()
    run.progress.applied("a", good())
    assert run.ends()
    assert run.ends() == []
    assert run.outcomes() == {"a": "changed"}


# --- without a rollout --------------------------------------------------------------------------------------------


def test_a_play_of_ones_own_has_only_the_table():
    run = Run()
    assert run.progress.play_begins(["a", "b", "c", "d"]) == []
    for name in "abcd":
        assert run.progress.planned(name, RIGHT if name == "c" else PLANNED) == []
    assert run.progress.applied("a", good()) == []
    assert run.progress.applied("b", ROLLED_BACK, failed=True) == []
    table = run.ends("b")
    assert table[0] == "result over 4 hosts:"
    assert run.outcomes() == {"a": "changed", "b": "rolled_back", "c": "right", "d": "not_reached"}


def test_hosts_that_were_only_asked_would_change():
    run = Run()
    run.progress.planned("a", PLANNED)
    run.progress.planned("b", RIGHT)
    # As the playbook audit does, which changes nothing however it is run.
    assert run.ends()[-1] == "next: make the change with the playbook gpufleet.mig.mig."
    assert run.outcomes() == {"a": "would_change", "b": "right"}


def test_a_host_that_is_lost_is_ours_where_a_module_of_ours_was_to_run():
    run = Run()
    run.progress.lost("a", "No route to host", ours=True)
    run.progress.lost("b", "No route to host")
    run.ends()
    assert run.outcomes() == {"a": "lost"}


def test_a_run_without_any_mig_says_nothing():
    run = Run()
    run.progress.play_begins(["all"])
    run.progress.failed("a", "something")
    run.progress.lost("b", "gone")
    assert run.ends("a") == []


def test_a_plan_that_is_hidden_is_no_rollout():
    run = Run()
    run.progress.rollout_planned({"censored": "hidden by no_log"})
    assert run.ends() == []


# --- from events of Ansible ---------------------------------------------------------------------------------------


@pytest.fixture
def callback(monkeypatch):
    """The plugin, with what it shows and warns of, and its options."""
    plugin = rollout.CallbackModule()
    plugin.lines, plugin.warnings, plugin.options = [], [], {"json": None}
    display = types.SimpleNamespace(display=plugin.lines.append, warning=plugin.warnings.append)
    monkeypatch.setattr(plugin, "_display", display)
    monkeypatch.setattr(plugin, "get_option", plugin.options.get)
    return plugin


def event(host, result, action="gpufleet.mig.mig_config", **task):
    """An event about a task, as far as the plugin looks at it."""
    fields = {
        "action": action,
        "resolved_action": action if "." in action else f"gpufleet.mig.{action}",
        "register": None,
        "check_mode": False,
        "ignore_unreachable": False,
        "name": "",
        **task,
    }
    return types.SimpleNamespace(
        host=types.SimpleNamespace(name=host), task=types.SimpleNamespace(**fields), result=result
    )


def stats(*failed):
    return types.SimpleNamespace(failures=dict.fromkeys(failed, 1))


def ended(callback, path, *failed):
    """How each host ended, as the file has it."""
    callback.options["json"] = str(path)
    callback.v2_playbook_on_stats(stats(*failed))
    (told,) = json.loads(path.read_text())["rollouts"]
    return {name: host["outcome"] for name, host in told["hosts"].items()}


class Closed:
    """A task or result that must not be looked at."""

    action = "ansible.builtin.command"

    def __getattr__(self, name):
        raise LookupError(name)


def test_tasks_of_others_that_succeed_are_not_looked_at(callback):
    callback.v2_runner_on_ok(types.SimpleNamespace(task=Closed()))


def test_tasks_of_others_cost_next_to_nothing(callback):
    other = event("a", {}, "ansible.builtin.command")
    begun = time.process_time()
    for _number in range(100_000):
        callback.v2_runner_on_ok(other)
    assert time.process_time() - begun < 1


@pytest.mark.parametrize("register", ["__mig_plan", {"__mig_plan": object()}])
def test_a_plan_is_known_by_what_it_is_registered_as_in_all_releases(callback, tmp_path, register):
    callback.v2_runner_on_ok(event("a", PLANNED, register=register, check_mode=True))
    callback.v2_runner_on_ok(event("b", PLANNED, register=register, check_mode=True))
    callback.v2_runner_on_ok(event("b", good(), register="__mig_applied"))
    assert ended(callback, tmp_path / "out") == {"a": "not_reached", "b": "changed"}


@pytest.mark.parametrize(
    ("check_mode", "result", "outcome"),
    [
        (True, PLANNED, "would_change"),
        (False, good(), "changed"),
        # ansible-core 2.21 hands over what was written.
        ("{{ dry }}", PLANNED, "would_change"),
        ("{{ dry }}", good(txid="1"), "changed"),
        ("{{ dry }}", good(altered=False, resumed={"txid": "1"}), "changed"),
    ],
)
def test_what_is_only_foreseen_is_not_told_as_done(callback, tmp_path, check_mode, result, outcome):
    callback.v2_runner_on_ok(event("a", result, check_mode=check_mode))
    assert ended(callback, tmp_path / "out") == {"a": outcome}


def test_a_loop_ends_as_the_worst_of_its_items_does(callback, tmp_path):
    callback.v2_runner_on_ok(event("a", {"changed": True, "results": [good(), good(False)]}))
    said = {"msg": "One or more items failed"}
    callback.v2_runner_on_failed(event("b", {**said, "results": [ROLLED_BACK, good(altered=True)]}))
    callback.v2_runner_on_failed(event("c", {**said, "results": [INCOMPLETE, ROLLED_BACK, IMPOSSIBLE]}))
    outcomes = {"a": "changed", "b": "rolled_back", "c": "incomplete"}
    assert ended(callback, tmp_path / "out", "b", "c") == outcomes


def test_a_short_name_is_ours_only_where_it_means_our_module(callback, tmp_path):
    callback.v2_runner_on_ok(event("a", good(), "mig_config"))
    callback.v2_runner_on_ok(event("b", good(), "mig_config", resolved_action="site.own.mig_config"))
    assert ended(callback, tmp_path / "out") == {"a": "changed"}


def test_a_lost_host_is_told_unless_that_is_to_be_ignored(callback, tmp_path):
    said = {"msg": "No route to host"}
    callback.v2_runner_on_ok(event("b", good()))
    callback.v2_runner_on_unreachable(event("a", said))
    callback.v2_runner_on_unreachable(event("b", said, "ansible.builtin.ping", ignore_unreachable=True))
    callback.v2_runner_on_unreachable(event("c", said, "ansible.builtin.ping"))
    callback.v2_runner_on_unreachable(event("d", said, register="__mig_plan", ignore_unreachable=True))
    assert ended(callback, tmp_path / "out") == {"b": "changed", "a": "lost", "d": "lost"}


def test_a_failure_that_is_ignored_is_none(callback, tmp_path):
    callback.v2_runner_on_ok(event("a", good()))
    callback.v2_runner_on_failed(event("a", {"msg": "No."}, "ansible.builtin.fail"), ignore_errors=True)
    ended(callback, tmp_path / "out")
    assert "No." not in (tmp_path / "out").read_text()


def test_a_rollout_is_told_from_its_events(callback):
    callback.v2_playbook_on_play_start(types.SimpleNamespace(hosts="all"))
    plan = {"waves": [["a"]], "hosts": {"a": {"state": "change"}}, "settings": {}}
    callback.v2_runner_on_ok(event("a", plan, "gpufleet.mig.mig_rollout"))
    callback.v2_playbook_on_play_start(types.SimpleNamespace(hosts=["a"]))
    callback.v2_runner_on_failed(event("a", {"msg": "No."}, "ansible.builtin.assert", name="Finish | gate"))
    callback.v2_playbook_on_stats(stats("a"))
    assert callback.lines[0].startswith("mig: wave 1 of 1: a;")
    assert callback.lines[1:3] == ["mig: a: refused; 1 of 1 host done, 0 left; 0 s elapsed", "mig:   No."]
    assert callback.lines[-1].startswith("mig: next: look at a (refused)")


def test_a_rollout_that_is_stopped_is_told_from_its_events(callback):
    callback.v2_runner_on_failed(event("a", {"msg": "No host was touched."}, "gpufleet.mig.mig_rollout"))
    callback.v2_playbook_on_stats(stats("a"))
    assert callback.lines[0] == "mig: the rollout did not begin: No host was touched."


def test_a_result_that_no_log_hides_counts_by_what_is_left_of_it(callback, tmp_path):
    hidden = {"changed": True, "censored": "hidden by no_log"}
    callback.v2_runner_on_ok(event("a", hidden, register="__mig_plan"))
    callback.v2_runner_on_ok(event("b", hidden))
    assert ended(callback, tmp_path / "out") == {"b": "changed"}


# --- the file -----------------------------------------------------------------------------------------------------


def test_the_file_has_every_host_with_all_that_is_known(callback, tmp_path):
    path = tmp_path / "result.json"
    callback.v2_runner_on_failed(event("a", INCOMPLETE))
    assert ended(callback, path, "a") == {"a": "incomplete"}
    told = json.loads(path.read_text())
    assert (told["schema"], told["check_mode"]) == (1, False)
    (section,) = told["rollouts"]
    assert set(section["counts"]) == set(OUTCOMES)
    assert section["counts"]["incomplete"] == 1
    assert section["hosts"]["a"]["missing"] == GONE
    assert (section["hosts"]["a"]["before"], section["hosts"]["a"]["after"]) == ([ON], [OFF])
    assert section["next"].startswith("look at a (incomplete)")


def test_the_file_is_replaced_as_a_whole_through_its_link_and_can_be_read_by_others(callback, tmp_path):
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    real.write_text("old")
    link.symlink_to(real)
    before = real.stat().st_ino
    callback.v2_runner_on_ok(event("a", good()))
    assert ended(callback, link) == {"a": "changed"}
    assert link.is_symlink()
    assert real.stat().st_ino != before
    assert real.stat().st_mode & 0o777 == 0o644
    assert sorted(os.listdir(tmp_path)) == ["link.json", "real.json"]


def test_a_run_without_any_mig_leaves_the_file_of_another_alone(callback, tmp_path):
    path = tmp_path / "result.json"
    path.write_text("old")
    callback.options["json"] = str(path)
    callback.v2_playbook_on_stats(stats())
    assert path.read_text() == "old"
    assert callback.lines == []


def test_a_file_that_cannot_be_written_is_a_warning_and_the_table_is_shown_all_the_same(callback, tmp_path):
    pipe, file = tmp_path / "pipe", tmp_path / "file"
    os.mkfifo(pipe)
    file.write_text("")
    for path, why in ((file / "out", "cannot be written on the controller"), (pipe, "is not a regular file")):
        callback.v2_runner_on_ok(event("a", good()))
        callback.options["json"] = str(path)
        callback.v2_playbook_on_stats(stats())
        assert callback.warnings[-1].startswith("The result of the rollout was not written. ")
        assert str(path) in callback.warnings[-1]
        assert why in callback.warnings[-1]
    assert callback.lines[-1] == "mig: next: nothing, all hosts are right."
    assert sorted(os.listdir(tmp_path)) == ["file", "pipe"]
