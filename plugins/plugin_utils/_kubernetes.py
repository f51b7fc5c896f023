# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a Kubernetes node offers for a MIG layout: the resources and labels that NVIDIA's components make of it. Pure.

This file is private to the collection gpufleet.mig and may change at any time.

The rules are those of NVIDIA's device plugin (k8s-device-plugin: internal/rm, go-nvlib) and gpu-feature-discovery
(internal/lm), seen by running both, 0.20.0 and 0.19.3, on every kind of layout. The two do not always agree: under
``single`` the plugin compares the attributes of MIG devices and gpu-feature-discovery their names, so that both have to
be alike, which on one model of GPU is the same.
"""

from __future__ import annotations

import re
import types
import typing as t
from collections import Counter

from ansible_collections.gpufleet.mig.plugins.module_utils.engine.profiles import counted
from ansible_collections.gpufleet.mig.plugins.plugin_utils import _answers

STRATEGIES = ("none", "single", "mixed")
PREFIX = "nvidia.com/"
WHOLE_GPU = f"{PREFIX}gpu"

# The first release of the device plugin that has a resource for each kind of profile. Older ones looked for the plain
# name within the whole one, and took compute instances that are smaller than their GPU instance.
EXACT_SINCE = (0, 20)

# The part of a profile's name that says its kind: 1g.5gb+me, 1g.24gb-me, 1g.24gb+gfx, 1g.24gb+me.all.
_ATTRIBUTE = re.compile(r"[+-].*$")
_PARTIAL = re.compile(r"\d+c\.")
_VERSION = re.compile(r"v?(\d+)\.(\d+)(?:\.\d+)?(?:-.*)?")
_NOT_IN_A_LABEL = re.compile(r"[^A-Za-z0-9-_. ]")
# At the end of a resource that is shared, where the plugin is told to rename such, and of a product where it is not.
_SHARED = ".shared"
_SHARED_PRODUCT = "-SHARED"
_REPLICAS = re.compile(r"(nvidia\.com/(?:gpu|mig-.*))\.replicas")
# Both components pass over it.
_NOT_COUNTED = ("DGX Display", "NVIDIA DGX Display")


class Gpu(t.NamedTuple):
    """A GPU as Kubernetes sees it: ``mig`` is whether MIG is on, ``devices`` its MIG devices by profile.

    One that cannot do MIG has None.
    """

    number: int
    name: str
    mig: t.Optional[bool]
    devices: t.Mapping[str, int]


class Sharing(t.NamedTuple):
    """How the device plugin shares devices, by time-slicing or MPS, as far as its node says.

    ``replicas`` has resources of which it is known, each device once or more often. ``renamed`` is whether a resource
    that is shared has ``.shared`` at its end. ``says`` is whether the node says anything of this: then of a resource
    that is not in ``replicas`` it will when it is there.
    """

    strategy: str = ""
    replicas: t.Mapping[str, int] = {}
    renamed: bool = False
    says: bool = False

    def called(self, resource: str) -> str:
        """What it is called by those who ask for it."""
        return f"{resource}{_SHARED}" if self.renamed and self.replicas.get(resource, 1) > 1 else resource


class Offer(t.NamedTuple):
    """What a node offers: number of devices by resource, and the labels that follow from the layout.

    Of ``unknown`` resources it will only be seen how often each device is there, and it is once in the number.
    ``refusals`` say why this layout cannot be had with this strategy, ``warnings`` what is not as people may expect; a
    sentence each. With a refusal there are no resources.
    """

    resources: t.Mapping[str, int] = {}
    labels: t.Mapping[str, str] = {}
    refusals: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    unknown: frozenset[str] = frozenset()


_NOT_SHARED = Sharing()


def gpus_of(answer: t.Iterable[t.Any]) -> list[Gpu]:
    """The GPUs in ``before`` or ``after`` of a result of mig_config, brief or not, or in ``gpus`` of mig_info."""
    return [
        Gpu(
            int(gpu.get("gpu", gpu.get("index", 0))),
            _answers.text(gpu.get("name")),
            gpu.get("mig_current") if isinstance(gpu.get("mig_current"), bool) else None,
            _answers.devices([gpu]),
        )
        for gpu in map(_answers.mapping, answer)
    ]


def version_of(image: str) -> t.Optional[tuple[int, int]]:
    """Release of the device plugin by the tag of its image, such as ``(0, 20)``; None where the tag is no version."""
    found = _VERSION.fullmatch(image.partition("@")[0].rpartition("/")[2].partition(":")[2])
    return (int(found[1]), int(found[2])) if found else None


def offer(
    gpus: t.Iterable[Gpu],
    strategy: str,
    version: t.Optional[tuple[int, int]] = None,
    sharing: Sharing = _NOT_SHARED,
) -> Offer:
    """What the node of these GPUs offers. A version that is not known is taken for a new one."""
    counted_in = [gpu for gpu in gpus if gpu.name not in _NOT_COUNTED]
    refusals = (*_refusals(counted_in, strategy), *_why_not_shared(counted_in, strategy, sharing))
    if refusals:
        return Offer(refusals=refusals)
    exact = version is None or version >= EXACT_SINCE
    single = _resources(counted_in, strategy, exact)
    unknown = frozenset(single) - frozenset(sharing.replicas) if sharing.says else frozenset()
    return Offer(
        resources={sharing.called(name): count * sharing.replicas.get(name, 1) for name, count in single.items()},
        labels=_labels(counted_in, strategy, sharing),
        warnings=(*_warnings(counted_in, strategy, version), *_about_sharing(sharing, unknown)),
        unknown=unknown,
    )


def sharing_of(node: t.Mapping[str, t.Any]) -> Sharing:
    """How devices of a node are shared, by the labels of gpu-feature-discovery and by what the node offers.

    A GPU of which nothing is left beside MIG devices has 0 replicas there, and then nothing is said of whole GPUs.
    """
    labels = mine(node["metadata"].get("labels") or {})
    allocatable = mine((node.get("status") or {}).get("allocatable") or {})
    said = {found[1]: value for name, value in labels.items() if (found := _REPLICAS.fullmatch(name))}
    strategies = {value for name, value in labels.items() if name.endswith(".sharing-strategy")} - {"", "none"}
    renamed = any(name.endswith(_SHARED) for name in allocatable)
    return Sharing(
        next(iter(sorted(strategies)), ""),
        {name: int(value) for name, value in said.items() if value.isdecimal() and int(value) > 0},
        renamed,
        bool(said) or renamed,
    )


# --- what cannot be had -------------------------------------------------------------------------------------------


def _refusals(gpus: t.Sequence[Gpu], strategy: str) -> t.Iterator[str]:
    on = [gpu for gpu in gpus if gpu.mig]
    if strategy == "none":
        if on:
            yield (
                f"MIG is on for {_numbers(on)}, and with the strategy none a container would get a whole GPU that it"
                " cannot use: choose the strategy single or mixed, or a layout without MIG."
            )
        return
    empty = [gpu for gpu in on if not gpu.devices]
    if empty:
        yield (
            f"{_numbers(empty)} would have MIG on and no MIG device, so that the device plugin"
            f" {'ends with an error' if strategy == 'single' else 'offers nothing of it'}: give it instances, or turn"
            " MIG off there."
        )
    partial = sorted({profile for gpu in on for profile in gpu.devices if _PARTIAL.match(profile)})
    if partial:
        yield (
            f"The device plugin does not offer compute instances that are smaller than their GPU instance"
            f" ({', '.join(partial)}): choose a layout of whole GPU instances."
        )
    if strategy == "single" and on and not empty and not partial:
        yield from _why_not_single(gpus, on)


def _why_not_single(gpus: t.Sequence[Gpu], on: t.Sequence[Gpu]) -> t.Iterator[str]:
    """With single all MIG devices of the node have one name, ``nvidia.com/gpu``, and so must be alike."""
    off = [gpu for gpu in gpus if not gpu.mig]
    profiles = sorted({profile for gpu in on for profile in gpu.devices})
    boards = sorted({gpu.name for gpu in on})
    if off:
        why = f"{_numbers(off)} ({', '.join(sorted({gpu.name for gpu in off}))}) would have no MIG beside GPUs that do"
    elif len(profiles) > 1:
        why = f"the MIG devices would be of {len(profiles)} kinds ({', '.join(profiles)})"
    elif len(boards) > 1:
        why = f"the MIG devices would be on {len(boards)} models of GPU ({', '.join(boards)})"
    else:
        return
    yield f"The strategy single needs MIG devices that are all alike, and {why}: choose the strategy mixed."


def _why_not_shared(gpus: t.Sequence[Gpu], strategy: str, sharing: Sharing) -> t.Iterator[str]:
    """The plugin and gpu-feature-discovery end with an error where MIG meets MPS."""
    on = [gpu for gpu in gpus if gpu.mig]
    if sharing.strategy == "mps" and on and strategy != "none":
        yield (
            f"The device plugin shares GPUs by MPS, which it does not do with MIG devices, and {_numbers(on)} would"
            " have such: take sharing.mps out of its configuration, share by time-slicing, or choose a layout without"
            " MIG."
        )


def _about_sharing(sharing: Sharing, unknown: t.AbstractSet[str]) -> t.Iterator[str]:
    if sharing.strategy and unknown:
        yield (
            f"The device plugin shares devices ({sharing.strategy}), and whether it does so with"
            f" {', '.join(sorted(unknown))} is in its configuration, which is not read here: each device is foretold"
            " once, and any multiple of their number is taken for right."
        )


def _warnings(gpus: t.Sequence[Gpu], strategy: str, version: t.Optional[tuple[int, int]]) -> t.Iterator[str]:
    special = sorted({profile for gpu in gpus for profile in gpu.devices if _ATTRIBUTE.search(profile)})
    if strategy != "mixed" or not special:
        return
    names = ", ".join(special)
    if version is None:
        yield (
            f"Which version the device plugin has cannot be told from its image, and before 0.20 it offers {names} as"
            " the plain profile."
        )
    elif version < EXACT_SINCE:
        yield (
            f"This device plugin offers {names} as the plain profile, so that pods cannot ask for it: 0.20 has a"
            " resource of its own for each."
        )


# --- what there is ------------------------------------------------------------------------------------------------


def _resources(gpus: t.Sequence[Gpu], strategy: str, exact: bool) -> dict[str, int]:
    found: Counter[str] = Counter()
    for gpu in gpus:
        if strategy == "none" or not gpu.mig:
            found[WHOLE_GPU] += 1
            continue
        for profile, count in gpu.devices.items():
            found[WHOLE_GPU if strategy == "single" else resource_of(profile, exact)] += count
    return dict(sorted(found.items()))


def resource_of(profile: str, exact: bool = True) -> str:
    """The resource of a profile with the strategy mixed: ``nvidia.com/mig-1g.5gb.me`` for ``1g.5gb+me``."""
    return f"{PREFIX}mig-{_in_a_label(profile if exact else _ATTRIBUTE.sub('', profile))}"


def _labels(gpus: t.Sequence[Gpu], strategy: str, sharing: Sharing = _NOT_SHARED) -> dict[str, str]:
    """Labels of gpu-feature-discovery by which its work can be told. It shows one model of several, at random."""
    on = [gpu for gpu in gpus if gpu.mig]
    boards = {gpu.name for gpu in gpus}
    labels = {} if strategy == "none" else {f"{PREFIX}mig.strategy": strategy}
    devices = sum((Counter(gpu.devices) for gpu in on), Counter[str]())
    if strategy == "single" and on:
        ((profile, count),) = devices.items()
        product = f"{_product(on[0].name)}-MIG-{_in_a_label(profile)}"
        return {**labels, **_about_gpus(product, count, sharing)}
    if len(boards) == 1:
        none_whole = len(on) == len(gpus)
        labels |= _about_gpus(_product(next(iter(boards))), len(gpus), None if none_whole else sharing)
    if strategy == "mixed":
        for profile, count in sorted(devices.items()):
            labels[f"{resource_of(profile)}.count"] = str(count)
    return labels


def _about_gpus(product: str, count: int, sharing: t.Optional[Sharing]) -> dict[str, str]:
    """Without ``sharing`` no GPU is given as a whole, and none is there several times."""
    replicas = 0 if sharing is None else sharing.replicas.get(WHOLE_GPU, 1)
    if sharing is not None and replicas > 1 and not sharing.renamed:
        product += _SHARED_PRODUCT
    values = {"product": product, "count": str(count), "replicas": str(replicas)}
    return {f"{WHOLE_GPU}.{name}": value for name, value in values.items()}


def _product(name: str) -> str:
    return "-".join(_NOT_IN_A_LABEL.sub("", name).split())


def _in_a_label(profile: str) -> str:
    return profile.replace("+", ".")


def _numbers(gpus: t.Sequence[Gpu]) -> str:
    numbers = ", ".join(str(gpu.number) for gpu in gpus)
    return f"{'GPU' if len(gpus) == 1 else 'GPUs'} {numbers}"


# --- what a node says ---------------------------------------------------------------------------------------------


class Plugin(t.NamedTuple):
    """The device plugin of a node, by its pod. What its pod does not say is empty, or None.

    ``next_strategy`` and ``next_version`` are those of the next pod, which its daemonset makes when this one goes: with
    the update strategy OnDelete that may be long after it was told so. They are the same where no daemonset is known.
    """

    pod: str
    ready: bool
    strategy: str
    version: t.Optional[tuple[int, int]]
    next_strategy: str = ""
    next_version: t.Optional[tuple[int, int]] = None


class Says(t.NamedTuple):
    """What Kubernetes has to say to the plan of a host: what its node offers now and afterwards."""

    strategy: str
    before: Offer
    after: Offer
    refusals: tuple[str, ...]
    warnings: tuple[str, ...]
    missing: tuple[str, ...]


def plugin_of(
    pods: t.Iterable[t.Mapping[str, t.Any]],
    node: str,
    daemonsets: t.Mapping[str, t.Mapping[str, t.Any]] = types.MappingProxyType({}),
) -> t.Optional[Plugin]:
    """The device plugin of this node among these pods; of several the one that is ready. Daemonsets by their uid."""
    found = [_plugin(pod, daemonsets) for pod in pods if (pod.get("spec") or {}).get("nodeName") == node]
    return max(found, key=lambda plugin: plugin.ready, default=None)


def _plugin(pod: t.Mapping[str, t.Any], daemonsets: t.Mapping[str, t.Mapping[str, t.Any]]) -> Plugin:
    metadata = pod["metadata"]
    strategy, version = _runs_with(pod)
    owners = [owner.get("uid", "") for owner in metadata.get("ownerReferences") or []]
    template = next((daemonsets[uid]["spec"]["template"] for uid in owners if uid in daemonsets), pod)
    return Plugin(
        f"{metadata['namespace']}/{metadata['name']}", is_ready(pod), strategy, version, *_runs_with(template)
    )


def _runs_with(pod: t.Mapping[str, t.Any]) -> tuple[str, t.Optional[tuple[int, int]]]:
    """Strategy and version by the containers of a pod, or of the template of one."""
    containers = (pod.get("spec") or {}).get("containers") or []
    strategies = [strategy for container in containers for strategy in [_strategy_of(container)] if strategy]
    versions = [version_of(str(container.get("image", ""))) for container in containers]
    return strategies[0] if strategies else "", next((version for version in versions if version), None)


def _strategy_of(container: t.Mapping[str, t.Any]) -> str:
    """From the arguments, which win over the environment there."""
    words = [str(word) for word in [*(container.get("command") or []), *(container.get("args") or [])]]
    for word, following in zip(words, [*words[1:], ""]):
        option, has_value, value = word.partition("=")
        if option == "--mig-strategy":
            return value if has_value else following
    environment = {entry.get("name"): entry.get("value") for entry in container.get("env") or []}
    return str(environment.get("MIG_STRATEGY") or "")


def is_ready(pod: t.Mapping[str, t.Any]) -> bool:
    """Whether a pod runs, is ready, and is not about to go."""
    conditions = (pod.get("status") or {}).get("conditions") or []
    ready = any(each.get("type") == "Ready" and each.get("status") == "True" for each in conditions)
    return ready and "deletionTimestamp" not in pod["metadata"]


# What the kubelet calls a container that it starts again only after a pause, which gets longer each time.
_BROKEN = ("CrashLoopBackOff", "CreateContainerError", "CreateContainerConfigError", "RunContainerError")


def is_broken(pod: t.Mapping[str, t.Any]) -> bool:
    """Whether a pod has ended, or does not start for a reason that another one in its place may not have."""
    status = pod.get("status") or {}
    containers = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    waits_for = {((each.get("state") or {}).get("waiting") or {}).get("reason") for each in containers}
    return status.get("phase") in ("Failed", "Succeeded") or not waits_for.isdisjoint(_BROKEN)


def what_ails(pod: t.Mapping[str, t.Any]) -> str:
    """Why a pod is not ready, in the words of the kubelet; a phrase."""
    status = pod.get("status") or {}
    for container in [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]:
        now, last = (container.get(key) or {} for key in ("state", "lastState"))
        for state in (now.get("waiting"), last.get("terminated"), now.get("terminated")):
            words = [str(state[key]) for key in ("reason", "message") if state and state.get(key)]
            if words and words[0] != "Completed":
                return f"{container.get('name', 'a container')}: {', '.join(words)}"
    return f"it is {status.get('phase', 'not known')} and not ready"


def those_that_ail(pods: t.Iterable[t.Mapping[str, t.Any]]) -> str:
    """The pods that are not ready, and why; empty where all are."""
    return "; ".join(
        f"pod {pod['metadata']['namespace']}/{pod['metadata']['name']} is not ready ({what_ails(pod)})"
        for pod in pods
        if not is_ready(pod)
    )


def says(
    name: str,
    node: t.Optional[t.Mapping[str, t.Any]],
    plugin: t.Optional[Plugin],
    before: t.Sequence[Gpu],
    after: t.Sequence[Gpu],
    strategy: str = "",
) -> Says:
    """What Kubernetes says of a host that has ``before`` and shall have ``after``.

    ``strategy`` is the one that people set; empty for that of the node's device plugin, or of its label. Afterwards it
    is that of the next device plugin, since a change has another pod in place of this one. ``missing`` is what the node
    does not offer of what it has now.
    """
    nothing = Offer()
    if node is None:
        sentence = f"Kubernetes has no node {name}: set kubernetes_node to what 'kubectl get nodes' calls this host."
        return Says("", nothing, nothing, (sentence,), (), ())
    labels = node["metadata"].get("labels") or {}
    label = str(labels.get(f"{PREFIX}mig.strategy", ""))
    next_strategy = plugin.next_strategy if plugin else ""
    chosen = strategy or next_strategy or label
    runs_with = (plugin.strategy if plugin else "") or label or chosen
    if chosen not in STRATEGIES:
        return Says(chosen, nothing, nothing, (_strategy_unknown(name, chosen, plugin),), (), ())
    if plugin and next_strategy and next_strategy != chosen:
        sentence = (
            f"The device plugin of node {name} ({plugin.pod}) runs with the strategy {next_strategy}, and"
            f" kubernetes_strategy is {chosen}: give the plugin that strategy first, or leave kubernetes_strategy out."
        )
        return Says(chosen, nothing, nothing, (sentence,), (), ())
    sharing = sharing_of(node)
    now = offer(before, runs_with, plugin.version if plugin else None, sharing)
    then = offer(after, chosen, plugin.next_version if plugin else None, sharing)
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    missing = tuple(missing_resources(now, allocatable))
    return Says(chosen, now, then, then.refusals, then.warnings, missing)


def of_several_hosts(name: str, hosts: t.Sequence[str]) -> str:
    """Why a node cannot be drained for its host, which is one of several that are said to be this node; or empty."""
    if len(hosts) < 2:
        return ""
    return (
        f"{', '.join(hosts[:-1])} and {hosts[-1]} are said to be the same node of Kubernetes, {name}: set"
        " kubernetes_node of each to what 'kubectl get nodes' calls it, in the inventory and not with -e."
    )


def of_another_machine(name: str, node: t.Optional[t.Mapping[str, t.Any]], machine: t.Mapping[str, str]) -> str:
    """Why a node cannot be the host whose GPUs would change while this node is drained; empty where it can.

    A boot that the kubelet has not reported yet, or a system that was set up anew, differ in one of both names.
    """
    said = ((node or {}).get("status") or {}).get("nodeInfo") or {}
    names = [
        (said.get(theirs), machine.get(ours)) for theirs, ours in (("machineID", "machine_id"), ("bootID", "boot_id"))
    ]
    known = [(theirs, ours) for theirs, ours in names if theirs and ours]
    if not known or any(theirs == ours for theirs, ours in known):
        return ""
    theirs, ours = known[0]
    return (
        f"Node {name} of Kubernetes is another machine than this host ({theirs} there, {ours} here): set"
        " kubernetes_node to what 'kubectl get nodes' calls this host."
    )


def of_nobody(name: str) -> str:
    """Why a layout cannot be offered where there is no device plugin."""
    return (
        f"No device plugin is on node {name}, and nobody would offer what it gets: install one, such as by the role"
        " device_plugin, or name the labels of its pods in kubernetes_plugin_selector, and run again."
    )


def of_what_is_missing(name: str, missing: t.Iterable[str], plugin: t.Optional[Plugin]) -> str:
    """That a node does not offer what it has, though nothing is to be changed there."""
    where = f"its device plugin ({plugin.pod})" if plugin else "a device plugin, of which it has none"
    return f"Node {name} does not offer what it has ({'; '.join(missing)}): look at {where}."


def _strategy_unknown(name: str, strategy: str, plugin: t.Optional[Plugin]) -> str:
    if strategy:
        return f"The strategy of node {name} is {strategy!r}, and must be one of {', '.join(STRATEGIES)}."
    where = (
        f"the device plugin of node {name} ({plugin.pod})" if plugin else f"node {name}, which has no device plugin,"
    )
    return (
        f"What {where} makes of MIG cannot be told, since its arguments and environment do not say so and a"
        " configuration file of its is not read here: set kubernetes_strategy to none, single or mixed, and"
        " kubernetes_plugin_selector to the labels of its pods where these are your own."
    )


# --- is it there --------------------------------------------------------------------------------------------------


def mine(found: t.Mapping[str, t.Any]) -> dict[str, str]:
    """Those of ``status.allocatable`` or ``metadata.labels`` of a node that are NVIDIA's."""
    return {name: str(value) for name, value in found.items() if name.startswith(PREFIX)}


def missing_resources(wanted: Offer, allocatable: t.Mapping[str, t.Any]) -> list[str]:
    """What of the resources is not as wanted, a phrase each. A resource that the kubelet keeps with 0 is none."""
    found = {name: count for name, count in mine(allocatable).items() if count != "0"}
    wanted_counts = {name: str(count) for name, count in wanted.resources.items()}
    for name in wanted.unknown:
        for there in (name, f"{name}{_SHARED}"):
            if _is_multiple(found.get(there, ""), wanted_counts[name]):
                del found[there], wanted_counts[name]
                break
    return [
        f"{name} is {found.get(name, '0')} and not {wanted_counts.get(name, '0')}"
        for name in sorted({*found, *wanted_counts})
        if found.get(name) != wanted_counts.get(name)
    ]


def stale_resources(wanted: Offer, allocatable: t.Mapping[str, t.Any]) -> list[str]:
    """Resources that are gone and that the kubelet goes on to name, with 0."""
    return sorted(name for name, count in mine(allocatable).items() if count == "0" and name not in wanted.resources)


def missing_labels(wanted: Offer, labels: t.Mapping[str, t.Any]) -> list[str]:
    """What of the node's labels is not as wanted, a phrase each; also those of profiles that are gone."""
    found = mine(labels)
    if WHOLE_GPU in wanted.unknown:
        found = _as_if_not_shared(found)
    gone = [name for name in found if re.fullmatch(r"nvidia\.com/mig-.*\.count", name) and name not in wanted.labels]
    return [
        *(
            f"{name} is {found[name]} and not {value}" if name in found else f"{name} is not there and not {value}"
            for name, value in wanted.labels.items()
            if found.get(name) != value
        ),
        *(f"{name} is {found[name]} and no such device is there" for name in sorted(gone)),
    ]


def _is_multiple(found: str, wanted: str) -> bool:
    """Whether so many devices are there, each as often as the others."""
    return found.isdecimal() and int(found) > 0 and int(found) % int(wanted) == 0


def _as_if_not_shared(labels: t.Mapping[str, str]) -> dict[str, str]:
    """The labels of whole GPUs, or of all MIG devices under ``single``, as they would be with each device once."""
    replicas, product = (labels.get(f"{WHOLE_GPU}.{name}", "") for name in ("replicas", "product"))
    if not replicas.isdecimal() or int(replicas) < 2:
        return dict(labels)
    return {
        **labels,
        f"{WHOLE_GPU}.replicas": "1",
        f"{WHOLE_GPU}.product": product.removesuffix(_SHARED_PRODUCT),
    }


def in_words(resources: t.Mapping[str, int]) -> str:
    """``56 nvidia.com/mig-1g.5gb, 1 nvidia.com/gpu``, or that there is nothing."""
    told = [f"{count} {name}" for name, count in resources.items()]
    return ", ".join(told) or f"{counted(0, 'device')}"
