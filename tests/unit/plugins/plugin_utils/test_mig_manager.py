# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""NVIDIA's MIG manager hears of every change, also of a config that was edited under its name."""

from __future__ import annotations

import re

import pytest
import yaml

from ansible_collections.gpufleet.mig.plugins.plugin_utils import _mig_manager
from ansible_collections.gpufleet.mig.plugins.plugin_utils._kubernetes import Gpu

SEVEN = [{"devices": "all", "mig-enabled": True, "mig-devices": {"1g.5gb": 7}}]
OFF = [{"devices": "all", "mig-enabled": False, "mig-devices": {}}]


def test_a_name_is_another_one_for_another_content_and_the_same_for_the_same():
    name = _mig_manager.name_of("team", SEVEN)
    assert name.startswith("team-")
    assert name == _mig_manager.name_of("team", [dict(reversed(SEVEN[0].items()))])
    assert name != _mig_manager.name_of("team", OFF)


@pytest.mark.parametrize("label", ["all-1g.5gb", "3g.20gb,2x2g.10gb", "", "é -", "x" * 300, "a" * 44 + "." * 40])
def test_every_name_is_a_label_value(label):
    for value in _mig_manager.names_of(_mig_manager.name_of(label, SEVEN)):
        assert re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", value)


def test_a_manager_is_called_again_by_another_name_of_the_same_content():
    name = _mig_manager.name_of("all-1g.5gb", SEVEN)
    other = _mig_manager.other_name(name, name)
    assert other != name
    assert _mig_manager.other_name(name, other) == name
    assert set(_mig_manager.names_of(name)) == {name, other}


A100, A30, T4 = "NVIDIA A100-SXM4-40GB", "NVIDIA A30", "Tesla T4"


@pytest.mark.parametrize(
    ("gpus", "entries"),
    [
        ([Gpu(0, A100, True, {"1g.5gb": 7}), Gpu(1, A100, True, {"1g.5gb": 7})], SEVEN),
        ([Gpu(0, A100, False, {})], OFF),
        ([Gpu(0, A100, True, {})], [{"devices": "all", "mig-enabled": True, "mig-devices": {}}]),
        (  # the same label makes different devices on different boards
            [Gpu(0, A30, True, {"1g.6gb": 4}), Gpu(1, A100, True, {"1g.5gb": 7}), Gpu(2, A30, True, {"1g.6gb": 4})],
            [
                {"devices": [0, 2], "mig-enabled": True, "mig-devices": {"1g.6gb": 4}},
                {"devices": [1], "mig-enabled": True, "mig-devices": {"1g.5gb": 7}},
            ],
        ),
        (  # mig-parted fails for a GPU that cannot do MIG where it shall have it
            [Gpu(0, T4, None, {}), Gpu(1, A100, True, {"1g.5gb": 7})],
            [{"devices": [1], "mig-enabled": True, "mig-devices": {"1g.5gb": 7}}],
        ),
        ([Gpu(0, T4, None, {})], []),
        ([], []),
    ],
)
def test_entries_say_exactly_what_each_gpu_has(gpus, entries):
    assert _mig_manager.entries_of(gpus) == entries


def test_nodes_of_one_kind_share_a_config_whatever_the_order_of_profiles():
    one = _mig_manager.entries_of([Gpu(0, A100, True, {"1g.5gb": 2, "3g.20gb": 1})])
    other = _mig_manager.entries_of([Gpu(0, A100, True, {"3g.20gb": 1, "1g.5gb": 2})])
    assert _mig_manager.name_of("a", one) == _mig_manager.name_of("a", other)


def test_a_config_is_added_to_those_that_other_nodes_use():
    before = yaml.safe_dump({"version": "v1", "mig-configs": {"all-disabled": OFF}})
    after = _mig_manager.with_config(before, "team-1", SEVEN)
    assert yaml.safe_load(after)["mig-configs"] == {"all-disabled": OFF, "team-1": SEVEN, "team-1-again": SEVEN}
    assert "&" not in after, "no anchors"
    assert _mig_manager.with_config(after, "team-1", SEVEN) == after
    assert yaml.safe_load(_mig_manager.with_config("", "team-1", SEVEN))["version"] == "v1"


@pytest.mark.parametrize("text", ["[", "[]", "mig-configs: []", "version: v1"])
def test_a_config_map_that_is_none_is_not_overwritten(text):
    with pytest.raises(_mig_manager.BadConfigMap):
        _mig_manager.with_config(text, "team-1", SEVEN)


def node(annotation=None, **labels):
    named = {f"nvidia.com/{name.replace('__', '-').replace('_', '.')}": value for name, value in labels.items()}
    annotations = {} if annotation is None else {_mig_manager.NOTE: annotation}
    return {"metadata": {"name": "n1", "resourceVersion": "7", "labels": named, "annotations": annotations}}


MANAGERS = [{"spec": {"nodeName": "n1"}}]
POLICY = {"metadata": {"name": "cluster-policy"}, "spec": {"migManager": {"config": {"name": "ours"}}}}


@pytest.mark.parametrize(
    ("seen", "managers", "policy", "config_map", "words"),
    [
        (node(mig_capable="true"), MANAGERS, POLICY, "default-mig-parted-config", "is the operator's own"),
        (node(), MANAGERS, POLICY, "ours", "has not the label nvidia.com/mig.capable=true"),
        (
            node(mig_capable="true", gpu_deploy_mig__manager="false"),
            MANAGERS,
            POLICY,
            "ours",
            "switches its MIG manager off",
        ),
        (node(mig_capable="true"), [{"spec": {"nodeName": "n2"}}], POLICY, "ours", "No pod of the MIG manager runs"),
        (node(mig_capable="true"), MANAGERS, None, "ours", "There is no ClusterPolicy"),
        (node(mig_capable="true"), MANAGERS, POLICY, "mine", "has the config map 'ours' for MIG and not 'mine'"),
    ],
)
def test_a_node_on_which_nobody_would_act_is_refused_at_once(seen, managers, policy, config_map, words):
    assert words in _mig_manager.why_not("n1", seen, policy, config_map, managers)


def test_a_node_with_a_manager_that_reads_our_config_map_is_not_refused():
    assert _mig_manager.why_not("n1", node(mig_capable="true"), POLICY, "ours", MANAGERS) == ""


def test_a_call_takes_away_the_last_state_and_remembers_what_was_before_the_first_call():
    first = _mig_manager.to_call(node(mig_config="all-disabled", mig_config_state="success"), "a-1", "run")
    assert first["metadata"]["labels"] == {_mig_manager.CONFIG: "a-1", _mig_manager.STATE: None}
    called = node(first["metadata"]["annotations"][_mig_manager.NOTE], mig_config="a-1")
    assert _mig_manager.before_of(called) == "all-disabled"
    assert _mig_manager.to_call(called, "a-1", "run") is None
    second = _mig_manager.to_call(called, "a-1-again", "next")
    again = node(second["metadata"]["annotations"][_mig_manager.NOTE], mig_config="a-1-again")
    assert _mig_manager.before_of(again) == "all-disabled"
    assert _mig_manager.to_forget(again)["metadata"]["annotations"] == {_mig_manager.NOTE: None}
    assert _mig_manager.to_forget(node(mig_config="a-1")) is None


def test_a_change_that_ended_well_is_over_though_its_run_was_killed_before_it_said_so():
    """Going back is going back to what was there, and not to what was before that."""
    over = node('{"before": "all-disabled"}', mig_config="a-1", mig_config_state="success")
    note = _mig_manager.to_call(over, "b-1", "next")["metadata"]["annotations"][_mig_manager.NOTE]
    assert _mig_manager.before_of(node(note)) == "a-1"


NOON = 1769860800.0  # 2026-01-31T12:00:00Z


def managed(state, at="2026-01-31T12:00:00Z", deployed="true", annotation=None):
    """A node of which the API knows when its manager has said this."""
    labels = {_mig_manager.DEPLOYED: deployed, **({_mig_manager.STATE: state} if state else {})}
    told = {"manager": "nvidia-mig-manager", "time": at, "fieldsV1": {"f:metadata": {"f:labels": {}}}}
    told["fieldsV1"]["f:metadata"]["f:labels"][f"f:{_mig_manager.STATE}"] = {}
    others = {"manager": "kubelet", "time": "2026-01-31T18:00:00Z", "fieldsV1": {"f:status": {}}}
    seen = node(annotation)
    seen["metadata"].update(labels=labels, managedFields=[others, told] if at else [others])
    return seen


@pytest.mark.parametrize(
    ("seen", "seconds", "at_work", "stuck"),
    [
        (managed("pending"), 899, True, False),
        (managed("pending"), 901, False, True),
        (managed("rebooting"), 901, False, True),
        (managed("success"), 901, False, False),
        (managed("failed"), 901, False, False),
        (managed("pending", at=""), 901, True, False),
        (managed("pending", at="then"), 901, True, False),
        (managed("pending", deployed="false"), 1, False, False),
        (managed(""), 1, False, False),
        (managed("", annotation='{"before": "a"}'), 1, True, False),
        (managed("", annotation='{"before": "a"}'), 901, False, True),
    ],
)
def test_a_manager_is_at_work_as_long_as_a_change_may_take_and_stuck_after_that(seen, seconds, at_work, stuck):
    assert _mig_manager.is_at_work(seen, NOON + seconds, 900) is at_work
    assert _mig_manager.is_stuck(seen, NOON + seconds, 900) is stuck


@pytest.mark.parametrize(("annotation", "before"), [(None, None), ("{", None), ("[]", None), ('{"before": null}', "")])
def test_what_is_remembered_may_be_missing_or_damaged(annotation, before):
    assert _mig_manager.before_of(node(annotation)) == before
