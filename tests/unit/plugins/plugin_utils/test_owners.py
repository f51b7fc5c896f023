# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The GPUs of a Kubernetes node have one owner, and a second one is refused by name."""

from __future__ import annotations

import pytest

from ansible_collections.gpufleet.mig.plugins.plugin_utils import _mig_manager, _owners

MANAGERS = [{"spec": {"nodeName": "n1"}}]
POLICY = {"metadata": {"name": "cluster-policy"}, "spec": {"migManager": {"config": {"name": "ours"}}}}
CLUSTER = _owners.Cluster(MANAGERS, POLICY, "ours", (), now=0.0, patience=900.0)
PLAN = {"verdict": "differ", "persisted": "absent"}


def node(**labels):
    named = {_mig_manager.CAPABLE: "true", _mig_manager.DEPLOYED: "true", **labels}
    return {"metadata": {"name": "n1", "resourceVersion": "7", "labels": named}}


OFF = {_mig_manager.DEPLOYED: "false"}
BUSY = {_mig_manager.STATE: "pending"}


def judge(mode="engine", seen=None, plan=None, takeover=False, **cluster):
    return _owners.judge(CLUSTER._replace(**cluster), "n1", seen or node(), plan or PLAN, mode, takeover)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"mode": "both"}, "kubernetes_mode of node n1 is 'both', and must be one of engine, operator"),
        ({}, "set mig_takeover to have it taken off this node, or kubernetes_mode to operator"),
        ({"takeover": True, "seen": node(**BUSY)}, "is at work (pending): wait until it has ended, and run again"),
        ({"mode": "operator", "seen": node(**OFF)}, "switches its MIG manager off"),
        ({"mode": "operator", "managers": []}, "No pod of the MIG manager runs on node n1"),
        ({"mode": "operator", "policy": None}, "There is no ClusterPolicy"),
        ({"mode": "operator", "plan": {**PLAN, "persisted": "differ"}}, "run gpufleet.mig.uninstall for it"),
        ({"mode": "operator", "plan": {**PLAN, "recovered": {"direction": "back"}}}, "is unfinished: end it with"),
    ],
)
def test_who_must_not_change_a_node_is_refused_with_what_to_do(asked, words):
    (refusal,) = judge(**asked).refusals
    assert words in refusal


@pytest.mark.parametrize("asked", [{"seen": node(**OFF)}, {"mode": "operator"}])
def test_one_owner_is_welcome(asked):
    assert judge(**asked) == _owners.NOBODY


def test_a_takeover_is_told_where_it_is_made_and_not_where_nothing_changes():
    (warning,) = judge(takeover=True).warnings
    assert "is taken over from the operator's MIG manager" in warning
    assert judge(takeover=True, plan={"verdict": "match"}) == _owners.NOBODY


def resource_slice(name="s-1", on="n1", **spec):
    return {"metadata": {"name": name}, "spec": {"driver": "gpu.nvidia.com", "nodeName": on, **spec}}


@pytest.mark.parametrize("mode", ["engine", "operator"])
@pytest.mark.parametrize(
    "slices",
    [
        [resource_slice(sharedCounters=[{"name": "gpu-0"}])],
        [resource_slice(), resource_slice("s-1", devices=[{"name": "gpu-0", "consumesCounters": [{}]}])],
        [resource_slice(devices=[{"name": "gpu-0", "basic": {"consumesCounters": [{}]}}])],
    ],
)
def test_a_dra_driver_that_makes_mig_devices_is_a_third_owner(mode, slices):
    (refusal,) = judge(mode, node(**OFF) if mode == "engine" else None, slices=slices).refusals
    assert "ResourceSlice s-1 has counters that its devices share" in refusal
    assert "switch the driver's feature gate DynamicMIG off" in refusal


def test_a_dra_driver_that_hands_out_what_is_there_is_none():
    there = resource_slice(devices=[{"name": "gpu-0-mig-1g5gb-19-0"}, {"name": "gpu-1", "basic": {}}])
    elsewhere = resource_slice(on="n2", sharedCounters=[{}])
    assert judge("operator", slices=[there, elsewhere]) == _owners.NOBODY


def test_who_may_not_ask_for_the_dra_drivers_devices_is_told():
    (warning,) = judge("operator", slices=None).warnings
    assert "permit this user to list resourceslices.resource.k8s.io" in warning
