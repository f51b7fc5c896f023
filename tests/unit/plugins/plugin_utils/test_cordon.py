# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A cordon remembers what was before it, and only pods that may leave are made to."""

from __future__ import annotations

import json

import pytest

from ansible_collections.gpufleet.mig.plugins.plugin_utils import _cordon


def node(unschedulable=None, annotation=None):
    annotations = {"other": "stays", **({} if annotation is None else {_cordon.ANNOTATION: annotation})}
    return {
        "metadata": {"name": "n", "resourceVersion": "7", "annotations": annotations},
        "spec": {} if unschedulable is None else {"unschedulable": unschedulable},
    }


def patched(found, patch):
    """What a merge patch makes of a node."""
    annotations = {**found["metadata"]["annotations"], **patch["metadata"]["annotations"]}
    spec = {**found["spec"], **patch["spec"]}
    return {
        "metadata": {**found["metadata"], "annotations": {k: v for k, v in annotations.items() if v is not None}},
        "spec": {k: v for k, v in spec.items() if v is not None},
    }


@pytest.mark.parametrize("before", [None, True])
def test_a_node_is_given_back_as_it_was(before):
    found = node(before)
    cordoned = patched(found, _cordon.to_cordon(found, "run-1"))
    assert _cordon.is_cordoned(cordoned)
    assert _cordon.read(cordoned) == ("run-1", bool(before), None)
    assert _cordon.to_cordon(cordoned, "run-1") is None
    assert patched(cordoned, _cordon.to_uncordon(cordoned)) == found


def test_a_cordon_of_somebody_else_is_not_taken_back():
    assert _cordon.to_uncordon(node(True)) is None
    assert _cordon.to_uncordon(node()) is None


@pytest.mark.parametrize("before", [None, True])
def test_the_cordon_of_a_run_that_was_killed_is_taken_over_with_what_was_before_it(before):
    found = node(before)
    first = patched(found, _cordon.to_cordon(found, "killed"))
    second = patched(first, _cordon.to_cordon(first, "next"))
    assert _cordon.read(second) == ("next", bool(before), None)
    assert patched(second, _cordon.to_uncordon(second)) == found


def test_a_node_that_somebody_uncordoned_meanwhile_is_cordoned_again():
    found = node()
    cordoned = patched(found, _cordon.to_cordon(found, "run"))
    del cordoned["spec"]["unschedulable"]
    assert _cordon.to_cordon(cordoned, "run")["spec"] == {"unschedulable": True}


@pytest.mark.parametrize("annotation", ["", "{", "[]", "null", '{"was_unschedulable": "yes"}'])
def test_an_annotation_that_cannot_be_read_does_not_keep_a_node_cordoned(annotation):
    assert _cordon.read(node(True, annotation)).was_unschedulable is False
    assert _cordon.to_uncordon(node(True, annotation))["spec"] == {"unschedulable": None}


def test_a_patch_is_for_the_version_that_was_read_and_touches_nothing_else():
    patch = _cordon.to_cordon(node(), "run")
    assert patch == {
        "metadata": {
            "resourceVersion": "7",
            "annotations": {_cordon.ANNOTATION: json.dumps({"run": "run", "was_unschedulable": False})},
        },
        "spec": {"unschedulable": True},
    }


def test_what_a_rollout_drains_a_node_for_is_remembered_with_its_cordon():
    found = node()
    drained = patched(found, _cordon.to_cordon(found, "run-1", "all-1g.5gb"))
    cordon = _cordon.read(drained)
    assert cordon == ("run-1", False, "all-1g.5gb")
    assert _cordon.to_cordon(drained, "run-1", "all-1g.5gb") is None
    assert patched(drained, _cordon.to_uncordon(drained)) == found


@pytest.mark.parametrize(
    ("cordon", "drained_for", "another"),
    [
        (None, "all-1g.5gb", False),
        (_cordon.Cordon("a", False, "all-1g.5gb"), "all-1g.5gb", False),
        (_cordon.Cordon("a", False, "all-1g.5gb"), "all-balanced", True),
        (_cordon.Cordon("a", False, "all-1g.5gb"), None, False),
        (_cordon.Cordon("a", False, ""), "all-balanced", False),
        (_cordon.Cordon("a", False), "all-balanced", False),
    ],
)
def test_a_node_that_a_rollout_drained_for_another_layout_is_told_from_others(cordon, drained_for, another):
    assert _cordon.is_for_another(cordon, drained_for) is another


# --- pause --------------------------------------------------------------------------------------------------------

PLUGIN, EXPORTER, DCGM = (f"nvidia.com/gpu.deploy.{part}" for part in ("device-plugin", "dcgm-exporter", "dcgm"))
NAMES = (PLUGIN, EXPORTER, DCGM)


def labelled(**labels):
    found = node()
    found["metadata"]["labels"] = {"other": "stays", **labels}
    return found


def relabelled(found, patch):
    """What a merge patch of metadata makes of a node."""
    metadata = dict(found["metadata"])
    for key in ("annotations", "labels"):
        merged = {**metadata.get(key, {}), **patch["metadata"].get(key, {})}
        metadata[key] = {name: value for name, value in merged.items() if value is not None}
    return {**found, "metadata": metadata}


def test_paused_labels_get_back_what_they_were_and_false_stays_false():
    found = labelled(**{PLUGIN: "true", EXPORTER: "false", DCGM: "special"})
    paused = relabelled(found, _cordon.to_pause(found, NAMES, "run"))
    assert paused["metadata"]["labels"] == {
        "other": "stays",
        PLUGIN: _cordon.PAUSED,
        EXPORTER: "false",
        DCGM: _cordon.PAUSED,
        _cordon.PAUSES: _cordon.PAUSED,
    }
    assert _cordon.to_pause(paused, NAMES, "run") is None
    assert relabelled(paused, _cordon.to_resume(paused)) == found


def test_the_pause_of_a_run_that_was_killed_is_taken_over_with_what_was_before_it():
    found = labelled(**{PLUGIN: "special"})
    first = relabelled(found, _cordon.to_pause(found, NAMES, "killed"))
    second = relabelled(first, _cordon.to_pause(first, NAMES, "next"))
    assert _cordon.read_pause(second) == ("next", {PLUGIN: "special", _cordon.PAUSES: None})
    assert relabelled(second, _cordon.to_resume(second)) == found


def test_labels_that_a_mig_manager_left_paused_are_healed():
    left = labelled(**{PLUGIN: _cordon.PAUSED, EXPORTER: "false"})
    assert _cordon.to_resume(left)["metadata"]["labels"] == {PLUGIN: "true"}
    paused = relabelled(left, _cordon.to_pause(left, NAMES, "run"))
    assert _cordon.read_pause(paused).labels == {PLUGIN: "true", _cordon.PAUSES: None}


def test_a_label_that_somebody_set_meanwhile_is_theirs():
    found = labelled(**{PLUGIN: "true"})
    paused = relabelled(found, _cordon.to_pause(found, NAMES, "run"))
    paused["metadata"]["labels"][PLUGIN] = "false"
    assert relabelled(paused, _cordon.to_resume(paused))["metadata"]["labels"][PLUGIN] == "false"


def test_every_label_that_is_paused_comes_back_whoever_paused_it():
    """The MIG manager pauses more of them than we do."""
    left = labelled(**{"nvidia.com/gpu.deploy.nvsm": _cordon.PAUSED})
    assert _cordon.to_resume(left)["metadata"]["labels"] == {"nvidia.com/gpu.deploy.nvsm": "true"}


@pytest.mark.parametrize("found", [labelled(), labelled(**{PLUGIN: "false"})])
def test_a_node_without_such_labels_gets_one_that_daemonsets_may_heed_and_that_goes_again(found):
    paused = relabelled(found, _cordon.to_pause(found, NAMES, "run"))
    assert paused["metadata"]["labels"] == {**found["metadata"]["labels"], _cordon.PAUSES: _cordon.PAUSED}
    assert _cordon.to_pause(paused, NAMES, "run") is None
    assert relabelled(paused, _cordon.to_resume(paused))["metadata"]["labels"] == found["metadata"]["labels"]
    forgotten = labelled(**{_cordon.PAUSES: _cordon.PAUSED})
    assert _cordon.to_resume(forgotten)["metadata"]["labels"] == {_cordon.PAUSES: None}


def test_a_node_that_is_not_paused_is_not_resumed():
    assert _cordon.to_resume(labelled(**{PLUGIN: "true"})) is None
    assert _cordon.to_resume(node()) is None


# --- takeover -----------------------------------------------------------------------------------------------------

MANAGER = "nvidia.com/gpu.deploy.mig-manager"


def test_a_node_that_was_taken_over_from_the_mig_manager_is_given_back_as_it_was():
    found = labelled(**{MANAGER: "true"})
    taken = relabelled(found, _cordon.to_take_over(found, "run"))
    assert taken["metadata"]["labels"][MANAGER] == "false"
    assert _cordon.to_take_over(taken, "run") is None
    assert _cordon.is_taken_over(taken)
    given_back = relabelled(taken, _cordon.to_hand_back(taken, "as-it-is-1"))
    assert given_back["metadata"]["labels"] == {
        "other": "stays",
        MANAGER: "true",
        "nvidia.com/mig.config": "as-it-is-1",
    }
    assert _cordon.is_taken_over(given_back), "until its manager has confirmed it"
    assert not _cordon.has_been_given_back_by_others(given_back)
    assert _cordon.to_hand_back(given_back, "as-it-is-1") is None
    assert _cordon.to_hand_back(given_back, "as-it-is-2")["metadata"]["labels"][MANAGER] == "true"
    assert _cordon.to_take_over(given_back, "run"), "and it can be taken over again"
    over = relabelled(given_back, _cordon.to_end_hand_back(given_back))
    assert not _cordon.is_taken_over(over)
    assert _cordon.to_end_hand_back(over) is None


@pytest.mark.parametrize("labels", [{}, {MANAGER: "false"}])
def test_a_node_on_which_no_mig_manager_is_deployed_is_neither_taken_over_nor_given_back(labels):
    assert _cordon.to_take_over(labelled(**labels), "run") is None
    assert _cordon.to_hand_back(labelled(**labels), "a-1") is None


def test_a_manager_that_somebody_gave_back_since_stays_as_they_left_it():
    found = labelled(**{MANAGER: "true"})
    taken = relabelled(found, _cordon.to_take_over(found, "run"))
    taken["metadata"]["labels"][MANAGER] = "theirs"
    assert _cordon.has_been_given_back_by_others(taken)
    given_back = relabelled(taken, _cordon.to_hand_back(taken, "a-1"))
    assert given_back["metadata"]["labels"][MANAGER] == "theirs"
    assert _cordon.TAKEN_OVER not in given_back["metadata"]["annotations"]


def pod(name="p", owner="ReplicaSet", resources=None, phase="Running", **differently):
    owners = [{"kind": owner, "name": "ds", "controller": True}] if owner else []
    metadata = {"namespace": "team", "name": name, "uid": f"uid-{name}", "ownerReferences": owners}
    spec = {"containers": [{"resources": resources or {}}], **differently.pop("spec", {})}
    return {"metadata": {**metadata, **differently}, "spec": spec, "status": {"phase": phase}}


def leaving(*pods, **options):
    return _cordon.leaving(pods, **{"only_gpu": False, "force": False, "delete_emptydir_data": False, **options})


@pytest.mark.parametrize(
    "stays",
    [
        pod(owner="DaemonSet"),
        pod(owner="Node", annotations={"kubernetes.io/config.mirror": "x"}),
        pod(phase="Succeeded"),
        pod(phase="Failed", owner=None),
    ],
)
def test_pods_that_kubectl_drain_leaves_alone_stay(stays):
    assert leaving(stays) == ((), ())


GPU = {"limits": {"nvidia.com/mig-1g.5gb": "1"}}


@pytest.mark.parametrize(
    ("each", "words"),
    [
        (pod(owner="DaemonSet", resources=GPU), "daemonset ds brings it back: keep that away from this node"),
        (
            pod(owner="Node", resources=GPU, annotations={"kubernetes.io/config.mirror": "x"}),
            "the kubelet runs it by itself: take its manifest off this node",
        ),
    ],
)
@pytest.mark.parametrize("only_gpu", [False, True])
def test_a_pod_that_comes_back_to_its_devices_keeps_a_node_from_being_drained_whatever_is_forced(each, words, only_gpu):
    found = leaving(each, only_gpu=only_gpu, force=True, delete_emptydir_data=True)
    (why,) = found.blocked
    assert why == f"pod team/p has devices of this node, and {words} until the change is over."


def test_such_a_pod_that_ends_is_waited_for_and_one_that_is_over_is_not():
    ending = pod(owner="DaemonSet", resources=GPU, deletionTimestamp="2026-11-30T00:00:00Z")
    assert [str(each) for each in leaving(ending).pods] == ["team/p"]
    assert leaving(ending).blocked == ()
    assert leaving(pod(owner="DaemonSet", resources=GPU, phase="Failed")) == ((), ())


@pytest.mark.parametrize(
    ("each", "is_one"),
    [
        (pod(resources=GPU), True),
        (pod(resources={"requests": {"nvidia.com/gpu": 1}}), True),
        (pod(spec={"initContainers": [{"resources": GPU}]}), True),
        (pod(spec={"resourceClaims": [{"name": "gpu"}]}), True),
        (pod(resources={"limits": {"cpu": "1"}}), False),
        (pod(resources=None, spec={"initContainers": None}), False),
    ],
)
def test_pods_that_have_gpus_are_told_from_others(each, is_one):
    assert _cordon.asks_for_gpu(each) is is_one
    assert bool(leaving(each, only_gpu=True).pods) is is_one
    assert len(leaving(each).pods) == 1


def test_a_pod_that_nobody_would_make_again_is_not_evicted_unless_that_is_permitted():
    alone = pod("alone", owner=None)
    (reason,) = leaving(alone).blocked
    assert reason == "pod team/alone has no controller that would make another of it: end it yourself, or set force."
    assert leaving(alone, force=True).blocked == ()


def test_a_pod_that_would_lose_data_is_not_evicted_unless_that_is_permitted():
    keeps = pod("keeps", spec={"volumes": [{"name": "cache", "emptyDir": {}}, {"name": "c", "configMap": {}}]})
    (reason,) = leaving(keeps).blocked
    assert "would lose what it has in cache (emptyDir)" in reason
    assert leaving(keeps, delete_emptydir_data=True).blocked == ()


def test_a_pod_that_leaves_already_is_waited_for_and_blocks_nothing():
    found = leaving(pod("going", owner=None, deletionTimestamp="2026-01-31T00:00:00Z"))
    assert [(str(each), each.leaving) for each in found.pods] == [("team/going", True)]
    assert found.blocked == ()
