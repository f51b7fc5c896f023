# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a change left on a node is mended by the next run, but never what belongs to one that is still at work."""

from __future__ import annotations

import json

import pytest

from ansible_collections.gpufleet.mig.plugins.plugin_utils import _cordon, _healing, _mig_manager

PLUGIN = "nvidia.com/gpu.deploy.device-plugin"
PAUSED = {PLUGIN: _cordon.PAUSED}
NOON = 1769860800.0  # 2026-01-31T12:00:00Z


def node(cordon=None, **labels):
    annotations = {_cordon.ANNOTATION: json.dumps(cordon)} if cordon else {}
    told = {"time": "2026-01-31T12:00:00Z", "fieldsV1": {"f:metadata": {"f:labels": {f"f:{_mig_manager.STATE}": {}}}}}
    metadata = {"name": "n1", "resourceVersion": "7", "labels": labels, "annotations": annotations}
    return {"metadata": {**metadata, "managedFields": [told]}, "spec": {}}


def state(value):
    return {_mig_manager.DEPLOYED: "true", _mig_manager.STATE: value}


OURS = {"run": "killed", "was_unschedulable": False, "drained_for": "all-1g.5gb"}


def left(seen, seconds=0.0, managed=True, run="next"):
    return _healing.left_behind("n1", seen, managed, run, NOON + seconds, 900.0)


@pytest.mark.parametrize(
    "seen", [node(), node(**{PLUGIN: "true"}), node(**{PLUGIN: "false"}), node(**state("success"))]
)
def test_a_node_on_which_nothing_was_left_is_left_alone(seen):
    assert left(seen) == _healing.NOTHING


def test_labels_that_are_paused_without_a_change_come_back():
    assert left(node(**PAUSED)).heal == (f"What was paused on node n1 for a change that is over comes back: {PLUGIN}.",)
    assert left(node(**PAUSED, **state("failed"))).heal, "a manager that has ended, and forgot it"


@pytest.mark.parametrize("value", ["pending", "rebooting"])
def test_what_a_manager_that_is_at_work_has_paused_is_left_to_it_until_it_took_too_long(value):
    seen = node(**PAUSED, **state(value))
    assert left(seen, 899).heal == ()
    (why_not,) = left(seen, 899).why_not
    assert why_not == (
        f"The MIG manager of node n1 is at work ({value} since 2026-01-31T12:00:00Z): what it has paused is left to it."
    )
    paused, stuck = left(seen, 901).heal
    assert "comes back" in paused
    assert stuck == (
        f"The MIG manager of node n1 says {value} since 2026-01-31T12:00:00Z, which is longer than a change takes, and"
        " is called again."
    )


def test_a_manager_that_has_failed_at_what_is_there_is_called_again():
    (failed,) = left(node(**state("failed"))).heal
    assert failed == (
        "The MIG manager of node n1 says failed since 2026-01-31T12:00:00Z of a layout that is there, tries no more by"
        " itself, and is started anew and called again."
    )
    assert left(node(**state("failed")), managed=False) == _healing.NOTHING


def test_a_manager_is_not_called_where_it_does_not_change_the_node():
    assert left(node(**state("pending")), 901, managed=False).heal == ()


def test_the_cordon_of_a_rollout_that_did_not_give_its_node_back_is_found_with_its_layout():
    found = left(node(OURS))
    assert found.drained_for == "all-1g.5gb"
    assert found.heal == ("Node n1 was cordoned for all-1g.5gb by the run 'killed', and not given back since.",)


def test_the_cordon_of_a_run_that_is_no_rollout_is_left_to_it_with_what_it_has_paused():
    theirs = {"run": "theirs", "was_unschedulable": False}
    found = left(node(theirs, **PAUSED))
    assert (found.heal, found.drained_for) == ((), None)
    assert "was cordoned by the run 'theirs', which is no rollout, and is left to it" in found.keeps
    assert left(node(theirs), run="theirs").drained_for == ""


def test_the_cordon_of_somebody_else_is_none_of_ours():
    seen = node()
    seen["spec"]["unschedulable"] = True
    assert left(seen) == _healing.NOTHING
