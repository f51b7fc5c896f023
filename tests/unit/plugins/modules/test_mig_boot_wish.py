# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What mig_boot_wish writes down for GPUs that nobody has met: checked as far as that goes, once, and as data."""

from __future__ import annotations

import json
import os
import stat

import pytest
from ansible.module_utils.testing import patch_module_args

from ansible_collections.gpufleet.mig.plugins.module_utils import node_wish
from ansible_collections.gpufleet.mig.plugins.module_utils.engine import state
from ansible_collections.gpufleet.mig.plugins.modules import mig_boot_wish

HALVES = {"halves": [{"devices": "all", "mig-enabled": True, "mig-devices": {"3g.40gb": 2}}]}


@pytest.fixture
def wish(tmp_path, capsys):
    def run(check_mode=False, **arguments):
        given = {"state_dir": str(tmp_path / "state"), "_ansible_check_mode": check_mode, "_ansible_diff": True}
        with patch_module_args({**given, **arguments}), pytest.raises(SystemExit):
            mig_boot_wish.main()
        return json.loads(capsys.readouterr().out)

    return run


@pytest.fixture
def written(tmp_path):
    return lambda: state.read_wish(state.places(str(tmp_path / "state")))


def test_four_steps(wish, written, tmp_path):
    given = {"label": "all-1g", "label_by_gpu": {"NVIDIA A30": "all-disabled"}, "expected_gpus": 8}
    predicted = wish(check_mode=True, **given)
    assert predicted["changed"]
    assert not (tmp_path / "state").exists()
    done = wish(**given)
    assert {**done, "invocation": None} == {**predicted, "invocation": None}
    assert done["diff"]["before"] == ""
    assert '"label": "all-1g"' in done["diff"]["after"]
    assert (written().label, written().label_by_gpu, written().expected_gpus) == (
        "all-1g",
        {"NVIDIA A30": "all-disabled"},
        8,
    )
    content = (tmp_path / "state/wish.json").read_bytes()
    assert not wish(**given)["changed"]
    assert not wish(check_mode=True, **given)["changed"]
    assert (tmp_path / "state/wish.json").read_bytes() == content
    assert stat.S_IMODE(os.stat(tmp_path / "state/wish.json").st_mode) == 0o600


def test_another_wish_takes_its_place_and_absent_takes_it_away(wish, written):
    wish(label="all-1g")
    assert wish(label="halves", configs=HALVES, unlisted="disable", allow_empty=True)["changed"]
    assert (written().label, written().configs, written().unlisted) == ("halves", HALVES, "disable")
    assert wish(state="absent", check_mode=True)["changed"]
    assert written() is not None
    assert wish(state="absent")["changed"]
    assert written() is None
    assert not wish(state="absent")["changed"]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({}, "give label, label_by_gpu or both, in the playbooks mig_profile or mig_profile_by_gpu"),
        ({"label": ""}, "Nothing is wished for"),
        ({"label": "all-1g.5gb; reboot"}, "is not allowed"),
        ({"label": "{{ mig_profile }}"}, "a template that nobody has filled in"),
        ({"label": "seldom"}, "label 'seldom' is unknown"),
        ({"label": "halves", "configs": {"quarters": HALVES["halves"]}}, "label 'halves' is unknown"),
        ({"label": "halves", "configs": {"halves": [{"devices": "all"}]}}, "lacks mig-enabled"),
        ({"label": "all-1g", "configs": {"version": "v2", "mig-configs": HALVES}}, "only v1 is known"),
        ({"label": "0x1g.5gb"}, "has a count of 0"),
        ({"label_by_gpu": {"NVIDIA A30": "sometimes"}}, "label 'sometimes' is unknown"),
        ({"label_by_gpu": {"0x20": "all-1g"}}, "a PCI device id looks like"),
        ({"label_by_gpu": {"NVIDIA A30": 7}}, "it must be text"),
        ({"label": "all-1g", "expected_gpus": -1}, "it is a number of GPUs"),
    ],
)
def test_what_no_gpu_could_make_right_does_not_get_into_an_image(wish, written, given, why):
    result = wish(**given)
    assert result["failed"]
    assert why in result["msg"]
    assert written() is None


@pytest.mark.parametrize(
    "label", ["all-1g", "all-3g.20gb", "all-1g.5gb.me", "all-balanced", "all-disabled", "7x1g.5gb"]
)
def test_labels_that_only_a_gpu_can_judge_are_taken(wish, written, label):
    assert "failed" not in wish(label=label)
    assert written().label == label


def test_a_wish_that_no_boot_would_follow_is_refused_and_may_be_taken_away(wish, written, tmp_path):
    wish(label="all-1g")
    proven = state.Persisted("20260131T120000Z-0badcafe", state.utc_now(), "alice", "all-1g", "generated", "580", ())
    state.write_wanted(state.places(str(tmp_path / "state")), proven)
    for check_mode in (True, False):
        result = wish(label="all-7g", check_mode=check_mode)
        assert result["failed"]
        assert "wanted.json is there" in result["msg"]
        assert "remove that file first" in result["msg"]
    assert written().label == "all-1g"
    assert wish(state="absent")["changed"]


@pytest.mark.parametrize("missing", ["", "_SYSTEMD", "_DRIVER"])
def test_a_machine_whose_driver_runs_is_told_that_its_next_boot_follows_the_wish(wish, tmp_path, monkeypatch, missing):
    for name in ("_SYSTEMD", "_DRIVER"):
        monkeypatch.setattr(node_wish, name, str(tmp_path / ("nowhere" if name == missing else "")))
    warnings = []
    monkeypatch.setattr(mig_boot_wish.AnsibleModule, "warn", lambda _module, text: warnings.append(text))
    wish(label="all-1g")
    assert warnings == []
    monkeypatch.setattr(state, "DEFAULT_STATE_DIR", str(tmp_path / "state"))
    wish(label="all-7g")
    assert ["its next boot gives its GPUs" in each for each in warnings] == ([] if missing else [True])


def test_only_root_of_the_image_may_have_written_what_its_root_will_do(wish, tmp_path):
    if os.geteuid():
        return
    (tmp_path / "state").mkdir()
    (tmp_path / "state").chmod(0o777)
    result = wish(label="all-1g")
    assert result["failed"]
    assert "others than root can write to it" in result["msg"]


def test_a_damaged_wish_is_named(wish, tmp_path):
    wish(label="all-1g")
    (tmp_path / "state/wish.json").write_text('{"schema": 1, "written": "", "label": 7}')
    result = wish(label="all-1g")
    assert result["failed"]
    assert "wish.json is damaged (label_by_gpu is not a mapping)" in result["msg"]
