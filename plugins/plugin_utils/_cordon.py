# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which patch cordons a Kubernetes node, pauses what uses its GPUs or takes them over, and remembers how it was. Pure.

This file is private to the collection gpufleet.mig and may change at any time. Nodes and pods are what the API returns
as JSON.

A node that somebody cordons is marked in one place, ``spec.unschedulable``, which does not say by whom. So the same
patch leaves an annotation with the run and with what was there before, and only what this annotation names is taken
back. It outlives a run that was killed. Labels by which NVIDIA's daemonsets choose nodes are paused the same way, and
the one by which the operator deploys its MIG manager is set to false the same way.
"""

from __future__ import annotations

import json
import typing as t

from ansible_collections.gpufleet.mig.plugins.plugin_utils._mig_manager import CONFIG, DEPLOYED, STATE

ANNOTATION = "gpufleet.mig/cordon"
PAUSES = "gpufleet.mig/paused"
TAKEN_OVER = "gpufleet.mig/taken-over"
_PREFIX = "nvidia.com/"
_MIRROR = "kubernetes.io/config.mirror"
_OVER = ("Succeeded", "Failed")

Json = t.Mapping[str, t.Any]
Patch = dict[str, t.Any]


class Cordon(t.NamedTuple):
    """What the annotation says: whose cordon it is, and whether the node was cordoned before.

    ``drained_for`` is the label of the layout for which a rollout drains the node, None where none does.
    """

    run: str
    was_unschedulable: bool
    drained_for: t.Optional[str] = None


class Pause(t.NamedTuple):
    """What the other annotation says: whose pause it is, and the value of each label before it, None without it."""

    run: str
    labels: t.Mapping[str, t.Optional[str]]


class Pod(t.NamedTuple):
    """A pod that has to leave. ``uid`` tells it from one of the same name that came later."""

    namespace: str
    name: str
    uid: str
    leaving: bool

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class Leaving(t.NamedTuple):
    """The pods that have to leave a node, and a sentence for each that must not be made to."""

    pods: tuple[Pod, ...]
    blocked: tuple[str, ...]


# --- cordon -------------------------------------------------------------------------------------------------------


def read(node: Json) -> t.Optional[Cordon]:
    """The cordon of a run of ours, or None. What cannot be read is taken for one of a node that was in use."""
    said = _noted(node, ANNOTATION)
    if said is None:
        return None
    drained_for = said.get("drained_for")
    return Cordon(
        str(said.get("run", "")),
        said.get("was_unschedulable") is True,
        None if drained_for is None else str(drained_for),
    )


def to_cordon(node: Json, run: str, drained_for: t.Optional[str] = None) -> t.Optional[Patch]:
    """The patch that cordons a node for a run; None where that is done. It keeps what was before an earlier run."""
    before = read(node)
    was = is_cordoned(node) if before is None else before.was_unschedulable
    wanted = Cordon(run, was, drained_for)
    if before == wanted and is_cordoned(node):
        return None
    return {**_patch(node, {ANNOTATION: _note(wanted)}), "spec": {"unschedulable": True}}


def is_kept_by_another(cordon: Cordon, run: str) -> bool:
    """Whether another run has cordoned the node for something else than a rollout, such as an upgrade of its driver."""
    return cordon.drained_for is None and cordon.run != run


def is_for_another(cordon: t.Optional[Cordon], drained_for: t.Optional[str]) -> bool:
    """Whether a rollout has drained the node for another layout than this one, as far as both are known by a label."""
    return bool(cordon and cordon.drained_for and drained_for is not None and cordon.drained_for != drained_for)


def to_uncordon(node: Json) -> t.Optional[Patch]:
    """The patch that makes a node as it was before a run of ours; None where none has cordoned it."""
    cordon = read(node)
    if cordon is None:
        return None
    return {**_patch(node, {ANNOTATION: None}), "spec": {"unschedulable": cordon.was_unschedulable or None}}


def is_cordoned(node: Json) -> bool:
    """Whether no new pod comes to this node."""
    return bool((node.get("spec") or {}).get("unschedulable"))


# --- pause --------------------------------------------------------------------------------------------------------

# What NVIDIA's MIG manager writes too. A daemonset that selects another value has no pod on the node then.
PAUSED = "paused-for-mig-change"
_DEPLOYED, _NOT_DEPLOYED = "true", "false"


def read_pause(node: Json) -> t.Optional[Pause]:
    """The pause of a run of ours, or None."""
    said = _noted(node, PAUSES)
    if said is None:
        return None
    labels = said.get("labels")
    return Pause(str(said.get("run", "")), labels if isinstance(labels, dict) else {})


def to_pause(node: Json, names: t.Iterable[str], run: str) -> t.Optional[Patch]:
    """The patch that pauses what these labels deploy on the node; None where that is done.

    A label that is not there, or says false, stays so. One that is paused already, as the MIG manager leaves it when it
    ends in the middle, was true before: it pauses no other. A label of our own is made, for daemonsets that no label
    deploys: they keep away from a node that has it.
    """
    before = read_pause(node)
    labels = _labels(node)
    kept = {PAUSES: None, **(before.labels if before else {})}
    for name in names:
        value = labels.get(name)
        if value not in (None, _NOT_DEPLOYED):
            kept.setdefault(name, _DEPLOYED if value == PAUSED else str(value))
    wanted = Pause(run, kept)
    to_set = {name: PAUSED for name in kept if labels.get(name) != PAUSED}
    if before == wanted and not to_set:
        return None
    return _patch(node, {PAUSES: _note(wanted)}, to_set)


def to_resume(node: Json) -> t.Optional[Patch]:
    """The patch that gives paused labels their values back, also those that a MIG manager left; None where none is.

    Nothing else has this value. A label that somebody else has set meanwhile stays as it is.
    """
    pause = read_pause(node)
    recorded = {PAUSES: None, **(pause.labels if pause else {})}
    paused = sorted(name for name, value in _labels(node).items() if value == PAUSED)
    if pause is None and not paused:
        return None
    return _patch(node, {PAUSES: None}, {name: recorded.get(name, _DEPLOYED) for name in paused})


def is_under_way(node: Json) -> bool:
    """Whether a change of this node has begun and not ended, ours or one of the MIG manager."""
    begun = any(_noted(node, annotation) is not None for annotation in (ANNOTATION, PAUSES))
    return begun or PAUSED in _labels(node).values()


def _labels(node: Json) -> t.Mapping[str, str]:
    return node["metadata"].get("labels") or {}


# --- takeover -----------------------------------------------------------------------------------------------------


def to_take_over(node: Json, run: str) -> t.Optional[Patch]:
    """The patch that takes the operator's MIG manager off a node; None where it is not deployed there.

    The operator sets this label only where it is missing.
    """
    value = _labels(node).get(DEPLOYED)
    if value != _DEPLOYED:
        return None
    return _patch(node, {TAKEN_OVER: json.dumps({"run": run, "before": value})}, {DEPLOYED: _NOT_DEPLOYED})


def is_taken_over(node: Json) -> bool:
    """Whether a run of ours has taken the MIG manager off this node, and nobody has given it back."""
    return _noted(node, TAKEN_OVER) is not None


def to_hand_back(node: Json, config: str) -> t.Optional[Patch]:
    """The patch that gives a node back to the MIG manager from which it was taken; None where there is nothing to do.

    ``config`` is the name of what the node has, which the manager finds as soon as it is there. That it was given back
    is noted, so that a run that was killed before the manager has confirmed it, or in vain, is ended by the next.
    Where somebody else has set the manager's label since, all labels stay as they are.
    """
    said = _noted(node, TAKEN_OVER)
    if said is None:
        return None
    if has_been_given_back_by_others(node):
        return _patch(node, {TAKEN_OVER: None})
    before = str(said.get("before", _DEPLOYED))
    if said.get("handed_back") == config and _labels(node).get(DEPLOYED) == before:
        return None
    note = json.dumps({**said, "handed_back": config}, sort_keys=True)
    return _patch(node, {TAKEN_OVER: note}, {DEPLOYED: before, CONFIG: config, STATE: None})


def has_been_given_back_by_others(node: Json) -> bool:
    """Whether the manager's label of a node that was taken over is not ours any more, though we gave nothing back."""
    said = _noted(node, TAKEN_OVER)
    return said is not None and "handed_back" not in said and _labels(node).get(DEPLOYED) != _NOT_DEPLOYED


def to_end_hand_back(node: Json) -> t.Optional[Patch]:
    """The patch that forgets that a node was taken over, when its manager has confirmed what it has."""
    return None if _noted(node, TAKEN_OVER) is None else _patch(node, {TAKEN_OVER: None})


# --- annotations --------------------------------------------------------------------------------------------------


def _noted(node: Json, annotation: str) -> t.Optional[t.Mapping[str, t.Any]]:
    """What an annotation of ours says, empty where it cannot be read; None without it."""
    text = _annotations(node).get(annotation)
    if text is None:
        return None
    try:
        said = json.loads(text)
    except ValueError:
        said = None
    return said if isinstance(said, dict) else {}


def _note(what: t.Union[Cordon, Pause]) -> str:
    return json.dumps({key: value for key, value in what._asdict().items() if value is not None}, sort_keys=True)


def _patch(
    node: Json,
    annotations: t.Mapping[str, t.Optional[str]],
    labels: t.Optional[t.Mapping[str, t.Optional[str]]] = None,
) -> Patch:
    """A merge patch for just these keys, and for no other node than the one that was read."""
    metadata: Patch = {"resourceVersion": node["metadata"]["resourceVersion"], "annotations": dict(annotations)}
    return {"metadata": {**metadata, **({"labels": dict(labels)} if labels else {})}}


# --- drain --------------------------------------------------------------------------------------------------------


def leaving(pods: t.Iterable[Json], *, only_gpu: bool, force: bool, delete_emptydir_data: bool) -> Leaving:
    """Which of the pods of a node have to leave it, as for ``kubectl drain --ignore-daemonsets``.

    Pods that are over and pods of daemonsets stay, and so do those that the kubelet runs by itself. One of them that
    has devices of the node must not: it would come back to them however often it was evicted. ``only_gpu`` keeps
    all that ask for no resource of NVIDIA.
    """
    found: list[Pod] = []
    blocked: list[str] = []
    for pod in pods:
        each, comes_back = pod_of(pod), _who_brings_back(pod)
        if _is_over(pod) or not (_has_devices(pod) if comes_back else asks_for_gpu(pod) or not only_gpu):
            continue
        found.append(each)
        if not each.leaving:
            blocked += [comes_back] if comes_back else _reasons(each, pod, force, delete_emptydir_data)
    return Leaving(tuple(found), tuple(blocked))


def pod_of(pod: Json) -> Pod:
    """A pod of the API by what is needed of it here."""
    metadata = pod["metadata"]
    return Pod(metadata["namespace"], metadata["name"], metadata["uid"], "deletionTimestamp" in metadata)


def asks_for_gpu(pod: Json) -> bool:
    """Whether a container of this pod has a device of NVIDIA's device plugin, or a claim of the DRA driver."""
    return _has_devices(pod) or bool((pod.get("spec") or {}).get("resourceClaims"))


def _has_devices(pod: Json) -> bool:
    spec = pod.get("spec") or {}
    containers = [*(spec.get("containers") or []), *(spec.get("initContainers") or [])]
    asked = [
        name
        for container in containers
        for kind in ("limits", "requests")
        for name in ((container.get("resources") or {}).get(kind) or {})
    ]
    return any(name.startswith(_PREFIX) for name in asked)


def _is_over(pod: Json) -> bool:
    return (pod.get("status") or {}).get("phase") in _OVER


def _who_brings_back(pod: Json) -> str:
    """Why it is of no use to evict this pod from its node, in a sentence; empty where it is."""
    sets = [owner.get("name", "") for owner in _owners(pod) if owner.get("kind") == "DaemonSet"]
    if not sets and _MIRROR not in _annotations(pod):
        return ""
    who = f"daemonset {sets[0]} brings it back: keep that away from this node" if sets else ""
    return (
        f"pod {pod_of(pod)} has devices of this node, and"
        f" {who or 'the kubelet runs it by itself: take its manifest off this node'} until the change is over."
    )


def _reasons(each: Pod, pod: Json, force: bool, delete_emptydir_data: bool) -> t.Iterator[str]:
    """Why this pod must not be evicted, a sentence each."""
    if not force and not any(owner.get("controller") for owner in _owners(pod)):
        yield f"pod {each} has no controller that would make another of it: end it yourself, or set force."
    volumes = (pod.get("spec") or {}).get("volumes") or []
    local = [volume["name"] for volume in volumes if "emptyDir" in volume]
    if local and not delete_emptydir_data:
        yield (
            f"pod {each} would lose what it has in {', '.join(local)} (emptyDir): end it yourself, or set"
            " delete_emptydir_data."
        )


def _owners(pod: Json) -> t.Sequence[Json]:
    return pod["metadata"].get("ownerReferences") or []


def _annotations(item: Json) -> t.Mapping[str, str]:
    return item["metadata"].get("annotations") or {}
