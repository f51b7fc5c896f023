# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Who changes the GPUs of a Kubernetes node: one of several, and never two. Pure.

This file is private to the collection gpufleet.mig and may change at any time. Objects are what the API returns.

With ``engine`` it is this collection, by NVML. With ``operator`` it is the MIG manager of NVIDIA's operator, which is
told by a label what the node shall have. NVIDIA's DRA driver is a third, where it makes MIG devices as pods ask for
them.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.mig.plugins.plugin_utils import _healing, _mig_manager

ENGINE, OPERATOR = "engine", "operator"
MODES = (ENGINE, OPERATOR)
DRA_DRIVER = "gpu.nvidia.com"

Json = t.Mapping[str, t.Any]


class Owner(t.NamedTuple):
    """Why the GPUs of a node must not be changed so, and what is done beside the change; a sentence each."""

    refusals: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


NOBODY = Owner()


class Cluster(t.NamedTuple):
    """What was asked of the API for all nodes at once, and how long a MIG manager may take (``patience``).

    ``slices`` are those of the DRA driver, None where we may not ask for them.
    """

    managers: t.Sequence[Json]
    policy: t.Optional[Json]
    config_map: str
    slices: t.Optional[t.Sequence[Json]]
    now: float
    patience: float


def judge(cluster: Cluster, name: str, node: Json, plan: t.Mapping[str, t.Any], mode: str, takeover: bool) -> Owner:
    """Whether a node may be changed in this mode, by the plan of its host."""
    if mode not in MODES:
        return Owner((f"kubernetes_mode of node {name} is {mode!r}, and must be one of {', '.join(MODES)}.",))
    if mode == OPERATOR:
        others = _by_the_operator(cluster, name, node, plan)
    else:
        others = _by_us(cluster, name, node, plan, takeover)
    dra = _beside_dra(cluster, name)
    return Owner(dra.refusals + others.refusals, dra.warnings + others.warnings)


def _by_the_operator(cluster: Cluster, name: str, node: Json, plan: t.Mapping[str, t.Any]) -> Owner:
    why_not = _mig_manager.why_not(name, node, cluster.policy, cluster.config_map, cluster.managers)
    why_not = why_not or _why_not_from_engine(name, plan)
    return Owner((why_not,)) if why_not else NOBODY


def _by_us(cluster: Cluster, name: str, node: Json, plan: t.Mapping[str, t.Any], takeover: bool) -> Owner:
    why_not = _mig_manager.why_not_beside(name, node)
    if not why_not:
        return NOBODY
    if not takeover:
        return Owner((why_not,))
    if _mig_manager.is_at_work(node, cluster.now, cluster.patience):
        return Owner((f"{_healing.at_work(name, node)}: wait until it has ended, and run again.",))
    # It is taken over for a change, and otherwise left to its manager.
    return NOBODY if plan.get("verdict") == "match" else Owner(warnings=(f"Node {name} {_IS_TAKEN_OVER}",))


def _beside_dra(cluster: Cluster, name: str) -> Owner:
    if cluster.slices is None:
        return Owner(warnings=(f"Whether NVIDIA's DRA driver makes MIG devices on node {name} {_MAY_NOT_ASK}",))
    return Owner(tuple(_why_not_beside_dra(name, cluster.slices)))


_MAY_NOT_ASK = "cannot be told: permit this user to list resourceslices.resource.k8s.io."
_IS_TAKEN_OVER = (
    f"is taken over from the operator's MIG manager ({_mig_manager.DEPLOYED}=false): gpufleet.mig.uninstall gives it"
    " back with mig_hand_back."
)


def _why_not_from_engine(name: str, plan: t.Mapping[str, t.Any]) -> str:
    """What this collection remembers of a node it does again at each boot, beside the MIG manager."""
    if plan.get("recovered"):
        return (
            f"A change of node {name} by this collection is unfinished: end it with kubernetes_mode set to engine, or"
            " take it back with mig_recover set to back."
        )
    if plan.get("persisted", "absent") != "absent":
        return (
            f"Node {name} remembers a layout by this collection, which its next boot would bring back beside the MIG"
            " manager: run gpufleet.mig.uninstall for it, or set kubernetes_mode to engine."
        )
    return ""


def _why_not_beside_dra(name: str, slices: t.Iterable[Json]) -> t.Iterator[str]:
    """Devices of which one takes from another share counters; a driver that only hands out what is there has none."""
    shared = [
        each["metadata"]["name"]
        for each in slices
        if (each.get("spec") or {}).get("nodeName") == name and _has_counters(each["spec"])
    ]
    if shared:
        yield (
            f"NVIDIA's DRA driver makes and removes MIG devices on node {name} as pods ask for them (ResourceSlice"
            f" {shared[0]} has counters that its devices share): switch the driver's feature gate DynamicMIG off, or"
            " leave the GPUs of this node to it."
        )


def _has_counters(spec: Json) -> bool:
    devices = spec.get("devices") or []
    return bool(spec.get("sharedCounters")) or any(
        # Until v1beta1 what a device has was one level below.
        each.get("consumesCounters") or (each.get("basic") or {}).get("consumesCounters")
        for each in devices
    )


def policy_as_asked_for(
    policy: t.Optional[dict[str, t.Any]], options: t.Mapping[str, t.Any]
) -> t.Optional[dict[str, t.Any]]:
    """The ClusterPolicy as it is when the config map is named in it, where that is permitted."""
    if policy is None or not options["set_policy"]:
        return policy
    return {**policy, "spec": _mig_manager.naming(options["config_map"])}
