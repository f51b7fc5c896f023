# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""An audit says of each host what is so, what is not, and what cannot be told, and leaves no host out."""

from __future__ import annotations

import datetime
import json
import re

import pytest

from ansible_collections.gpufleet.mig.plugins.plugin_utils import _audit

NOW = datetime.datetime(2026, 12, 24, 6, 0, tzinfo=datetime.timezone(datetime.timedelta(hours=1)))


def gpu(index=0, count=7, profile="1g.5gb", **more):
    instance = {"profile": profile, "compute_instances": [{"profile": profile}]}
    return {"gpu": index, "layout": f"GPU {index} |{profile}|", "instances": [instance] * count} | more


MATCH = {
    "verdict": "match",
    "converged": True,
    "label": "all-1g.5gb",
    "label_source": "generated",
    "before": [gpu()],
    "after": [gpu()],
    "persisted": "match",
    "drained": False,
    "reset_required": [],
    "reboot_required": [],
    "msg": "all-1g.5gb (generated): as wanted.",
}
DIFFER = {
    **MATCH,
    "verdict": "differ",
    "converged": False,
    "before": [gpu(count=6)],
    "after": [gpu()],
    "differences": ["GPU 0: 1 x 1g.5gb at 6 is missing."],
}
MANAGED = {**MATCH, "persisted": "absent", "remember": False}
IN_ORDER = ("as wanted", "as wanted, brought back by somebody else")
CHANGE = {"txid": "1", "who": "alice", "what": "mig_config label x", "running": True}
FAILED = {"failed": True, "altered": False, "changed": False, "msg": "label 'x' is unknown"}
SEEN = {"available": True, "persisted": "match", "in_progress": None, "gpus": [{**gpu(), "index": 0, "errors": []}]}
LOST = {**SEEN, "gpus": [{**gpu(count=0), "index": 0, "errors": [{"call": "x", "error": "GPU_IS_LOST"}]}]}
GONE = {"unreachable": True, "msg": "Failed to connect to the host via ssh"}


def judge(plan, seen=None):
    """What an audit says of the one host that gave these answers."""
    return _audit.make({"a": plan}, {} if seen is None else {"a": seen}, NOW)["hosts"]["a"]


STATES = {
    "as wanted": (MATCH, None, "match", "match"),
    "not as wanted": (DIFFER, None, "differ", "match"),
    "somebody changes it": ({**DIFFER, "in_progress": CHANGE}, None, "unfinished", "match"),
    "a change of it was interrupted": (
        {**MATCH, "recovered": {**CHANGE, "direction": "forward"}},
        None,
        "unfinished",
        "match",
    ),
    "as wanted, forgotten at a boot": ({**MATCH, "persisted": "absent", "converged": False}, None, "match", "absent"),
    "as wanted, another at a boot": ({**MATCH, "persisted": "differ", "converged": False}, None, "match", "differ"),
    "as wanted, brought back by somebody else": (MANAGED, None, "match", "elsewhere"),
    "as wanted by somebody else, another at a boot": ({**MANAGED, "persisted": "differ"}, None, "match", "differ"),
    "not as wanted, brought back by somebody else": (
        {**DIFFER, "persisted": "absent", "remember": False},
        None,
        "differ",
        "elsewhere",
    ),
    "a wish that somebody else cannot bring": (
        {**FAILED, "remember": False},
        {**SEEN, "persisted": "absent"},
        "refused",
        "elsewhere",
    ),
    "as wanted, records unreadable": ({**MATCH, "persisted": None}, None, "match", "unknown"),
    "a wish that cannot be had": (FAILED, SEEN, "refused", "match"),
    "no wish": ({**FAILED, "msg": "No layout is named for this host: give label"}, SEEN, "refused", "match"),
    "a GPU that does not answer": (FAILED, {**LOST, "persisted": "differ"}, "unknown", "unknown"),
    "no driver": (FAILED, {"available": False, "problem": {}}, "unknown", "unknown"),
    "both modules failed": (FAILED, {"failed": True, "msg": "sudo: a password is required"}, "unknown", "unknown"),
    "nobody looked a second time": (FAILED, None, "unknown", "unknown"),
    "another run keeps it": ({**FAILED, "in_progress": CHANGE}, SEEN, "unfinished", "match"),
    "a change was interrupted and the wish is wrong": (FAILED, {**SEEN, "in_progress": CHANGE}, "unfinished", "match"),
    "does not answer": (GONE, None, "unreachable", "unknown"),
    "lost between two questions": (FAILED, {"unreachable": True}, "unknown", "unknown"),
    "was never asked": ({}, None, "unknown", "unknown"),
    "says something else than a result": ("nonsense", ["nonsense"], "unknown", "unknown"),
}


@pytest.mark.parametrize("name", STATES)
def test_each_host_has_one_state_and_what_a_boot_would_bring(name):
    plan, seen, state, boot = STATES[name]
    host = judge(plan, seen)
    assert (host["state"], host["boot"]) == (state, boot)
    assert host["ok"] == (name in IN_ORDER)


@pytest.mark.parametrize("name", [name for name in STATES if name not in IN_ORDER])
def test_whatever_is_not_in_order_says_the_next_action(name):
    plan, seen, _state, _boot = STATES[name]
    assert judge(plan, seen)["next"].endswith(".")


def test_a_host_that_stays_drained_is_not_in_order():
    host = judge({**MATCH, "drained": True})
    assert (host["state"], host["ok"]) == ("match", False)
    assert "never taken back" in host["next"]
    said = _audit.make({"a": {**MATCH, "drained": True}, "b": MATCH}, {}, NOW)["msg"]
    assert said == "1 of 2 hosts is not in order: 2 are as wanted, 1 still drained."


def test_a_missing_wish_is_said_in_words_of_the_operator():
    host = judge({**FAILED, "msg": "No layout is named for this host: give label"}, SEEN)
    assert host["msg"].startswith("No layout is named for it: set mig_profile")


def test_devices_are_counted_by_profile():
    host = judge({**DIFFER, "before": [gpu(0, 2), gpu(1, 1, "3g.20gb")], "after": [gpu(0), gpu(1, 2, "3g.20gb")]})
    assert host["devices"] == {"1g.5gb": 2, "3g.20gb": 1}
    assert host["devices_wanted"] == {"1g.5gb": 7, "3g.20gb": 2}


@pytest.mark.parametrize(
    "plan",
    [
        {**DIFFER, "after": DIFFER["before"], "reset_required": [0]},
        {**DIFFER, "in_progress": CHANGE},
        FAILED,
        GONE,
    ],
)
def test_what_is_wanted_is_not_told_where_it_could_not_be_planned(plan):
    host = judge(plan)
    assert (host["after"], host["devices_wanted"]) == ([], None)


def test_gpus_whose_mode_waits_are_named():
    assert judge({**DIFFER, "reset_required": [3], "reboot_required": [1]})["pending"] == [1, 3]
    assert judge(FAILED, {**SEEN, "gpus": [{"index": 2, "reset_required": True}, {"index": 4}]})["pending"] == [2]


def test_every_host_is_in_the_audit_and_counted_once():
    plans = {name: plan for name, (plan, _seen, _state, _boot) in STATES.items()}
    seen = {name: seen for name, (_plan, seen, _state, _boot) in STATES.items() if seen is not None}
    document = _audit.make(plans, seen, NOW)
    assert list(document["hosts"]) == list(STATES)
    assert sum(document["counts"].values()) == sum(document["boots"].values()) == len(STATES)
    assert not document["ok"]
    assert document["msg"].startswith(f"{len(STATES) - len(IN_ORDER)} of {len(STATES)} hosts are not in order: ")
    assert json.loads(json.dumps(document)) == document


def test_a_fleet_in_order_is_one_sentence():
    document = _audit.make({"a": MATCH, "b": MATCH}, {}, NOW)
    assert (document["ok"], document["msg"]) == (True, "2 hosts: all in order.")
    assert document["finished"] == "2026-12-24T05:00:00Z"


def test_an_audit_of_nobody_is_not_in_order():
    document = _audit.make({}, {}, NOW)
    assert not document["ok"]
    assert "correct mig_hosts" in document["msg"]
    assert "correct mig_hosts" in _audit.text(document)


# --- text ----------------------------------------------------------------------------------------------------------


def test_text_shows_what_is_there_and_what_is_wanted():
    pictures = {"before": [gpu(0, layout="|6|"), gpu(1)], "after": [gpu(0, layout="|7|"), gpu(1)]}
    counts = "1 is as wanted, 1 differs, 1 does not answer."
    lines = _audit.text(_audit.make({"a": {**DIFFER, **pictures}, "b": MATCH, "c": GONE}, {}, NOW)).splitlines()
    assert lines == [
        f"MIG audit of 2026-12-24T05:00:00Z: 2 of 3 hosts are not in order: {counts}",
        "",
        "a differs (wish: all-1g.5gb, generated)",
        "    GPU 0: 1 x 1g.5gb at 6 is missing.",
        "    now     |6|",
        "    wanted  |7|",
        "    -> Run the playbook gpufleet.mig.mig on it, with --check --diff first.",
        "",
        "c does not answer",
        "    Failed to connect to the host via ssh",
        "    -> See whether it is up, and whether Ansible can log in.",
        "",
        "In order: b.",
    ]


@pytest.mark.parametrize("name", [name for name in STATES if name not in IN_ORDER])
def test_text_names_every_host_that_is_not_in_order(name):
    plan, seen, _state, _boot = STATES[name]
    text = _audit.text(_audit.make({"node": plan}, {"node": seen}, NOW))
    assert re.search(r"^node [a-z ]+", text, re.MULTILINE)
    assert "    -> " in text


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"persisted": "differ"}, "something else than this collection made it"),
        ({"persisted": "absent"}, "Nothing is remembered for a boot."),
        ({"persisted": "differ", "remember": False}, "It remembers a layout of its own beside the manager of MIG"),
        ({"drained": True}, "It is drained"),
        ({"reboot_required": [0, 2]}, "The MIG mode of GPU 0, 2 waits for a reset or reboot."),
    ],
)
def test_text_says_what_else_is_known(more, said):
    assert said in _audit.text(_audit.make({"a": {**DIFFER, **more}}, {}, NOW))


def test_who_brings_the_layout_back_elsewhere_is_neither_drift_nor_said_to_be_right():
    document = _audit.make({"a": MANAGED, "b": MATCH, "c": {**MANAGED, "persisted": "differ"}}, {}, NOW)
    assert document["msg"] == "1 of 3 hosts is not in order: 3 are as wanted, 1 not after a boot."
    text = " ".join(_audit.text(document).split())
    assert "In order: a, b. What a boot brings these hosts is up to the MIG manager of the operator" in text
    assert text.endswith("is not asked here: a.")
    assert "run the playbook gpufleet.mig.uninstall on it" in document["hosts"]["c"]["next"]
    assert of(read(_audit.metrics(document)), "host_boot_drift") == {"b": 0, "c": 1}


def test_text_of_a_thousand_good_hosts_stays_short():
    text = _audit.text(_audit.make({f"node{number:04}": MATCH for number in range(1000)}, {}, NOW))
    assert len(text) < 1000
    assert " ".join(text.split()).endswith("node0019 and 980 more.")


def test_text_of_a_host_cannot_move_the_cursor_or_make_a_line():
    plan = {**FAILED, "msg": "first\nsecond\x1b[2J\r\u2028third Größe 日本"}
    text = _audit.text(_audit.make({"a\nb": plan}, {"a\nb": SEEN}, NOW))
    assert "a?b cannot have its wish" in text
    assert "first?second?[2J??third Größe 日本" in text


# --- metrics -------------------------------------------------------------------------------------------------------


def read(text):
    """What a reader of Prometheus' text format gets: {(name, labels): value}."""
    found = {}
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        match = re.fullmatch(r'([a-z_]+)(?:\{((?:[a-z]+="(?:[^"\\]|\\[\\"n])*",?)*)\})? (\d+)', line)
        assert match, line
        labels = {
            key: re.sub(r"\\(.)", lambda part: {"n": "\n"}.get(part[1], part[1]), value)
            for key, value in re.findall(r'([a-z]+)="((?:[^"\\]|\\.)*)"', match[2] or "")
        }
        key = (match[1].removeprefix("gpufleet_mig_"), frozenset(labels.items()))
        assert key not in found, line
        found[key] = int(match[3])
    return found


def of(samples, name):
    """The samples of one name, by host."""
    return {dict(labels).get("host"): value for (sample, labels), value in samples.items() if sample == name}


def test_metrics_of_a_host_that_cannot_tell_look_neither_like_drift_nor_like_its_absence():
    plans = {"good": MATCH, "bad": DIFFER, "lost": FAILED, "gone": GONE}
    samples = read(_audit.metrics(_audit.make(plans, {"lost": {"available": False}}, NOW)))
    assert of(samples, "host_drift") == {"good": 0, "bad": 1}
    assert of(samples, "host_boot_drift") == {"good": 0, "bad": 0}
    assert of(samples, "host_drained") == {"good": 0, "bad": 0}
    assert of(samples, "host_pending_gpus") == {"good": 0, "bad": 0}
    assert of(samples, "host_ok") == {"good": 1, "bad": 0, "lost": 0, "gone": 0}
    assert of(samples, "host_state") == dict.fromkeys(plans, 1)
    assert samples["hosts", frozenset({("state", "unknown")})] == 1
    assert samples["hosts", frozenset({("state", "refused")})] == 0
    assert samples["audit_timestamp_seconds", frozenset()] == 1798088400


def test_metrics_count_devices_that_are_there_and_that_are_wanted():
    samples = read(_audit.metrics(_audit.make({"a": DIFFER}, {}, NOW)))
    labels = frozenset({("host", "a"), ("profile", "1g.5gb")})
    assert (samples["devices", labels], samples["devices_wanted", labels]) == (6, 7)


NAMES = ['quo"te', "back\\slash", "new\nline", 'end\\"', "{{ 7 * 7 }}", "Größe-日本", 'a",state="match"} 1\nx{host="b']


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_read_back_as_it_is(name):
    assert of(read(_audit.metrics(_audit.make({name: MATCH}, {}, NOW))), "host_ok") == {name: 1}


def test_a_name_that_is_no_unicode_does_not_spoil_the_file():
    text = _audit.metrics(_audit.make({"a\udcff": MATCH}, {}, NOW))
    assert of(read(text.encode().decode()), "host_ok") == {"a?": 1}


def test_metrics_say_what_they_are_before_their_samples():
    lines = _audit.metrics(_audit.make({"a": MATCH}, {}, NOW)).splitlines()
    names = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(names) == len(set(names)) == 10
    for number, line in enumerate(lines):
        if line.startswith("# HELP"):
            name = line.split()[2]
            assert lines[number + 1] == f"# TYPE {name} gauge"
            assert lines[number + 2].startswith(name)
