# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""How NVIDIA's MIG manager is told what a node shall have, and what it says of it. Pure.

This file is private to the collection gpufleet.mig and may change at any time. Objects are what the API returns.

The manager acts when the value of the label ``nvidia.com/mig.config`` changes, and never because the config of this
name has. So the name that we give it ends with a hash of its content. There are two names for each content: a manager
that got stuck on one of them is called again by the other.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import re
import typing as t

import yaml

from ansible_collections.gpufleet.mig.plugins.plugin_utils._kubernetes import Gpu

CONFIG = "nvidia.com/mig.config"
STATE = "nvidia.com/mig.config.state"
CAPABLE = "nvidia.com/mig.capable"
DEPLOYED = "nvidia.com/gpu.deploy.mig-manager"
NOTE = "gpufleet.mig/config"
FILE = "config.yaml"

# What the manager says while it is at work.
_BUSY = ("pending", "rebooting")
# What it says when it has ended in vain.
FAILED = "failed"

# The config maps that the operator makes itself, and makes again as they were.
VENDORS = ("default-mig-parted-config",)

_LONGEST_LABEL = 63
_HASH = 10
_AGAIN = "-again"

Json = t.Mapping[str, t.Any]
Entries = t.Sequence[t.Mapping[str, t.Any]]


class BadConfigMap(Exception):
    """The content of a config map is no config file; the message is a sentence."""


# --- names and content --------------------------------------------------------------------------------------------


def name_of(label: str, entries: Entries) -> str:
    """A label value that is another one for each content: ``all-1g.5gb-3f2a9c1b04``."""
    text = json.dumps(list(entries), sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:_HASH]
    words = re.sub(r"[^A-Za-z0-9._-]+", "-", label).strip("-._")
    room = _LONGEST_LABEL - _HASH - 1 - len(_AGAIN)
    return f"{words[:room].rstrip('-._')}-{digest}".lstrip("-")


def entries_of(gpus: t.Iterable[Gpu]) -> list[dict[str, t.Any]]:
    """The entries of mig-parted's config file that say exactly this layout of a node.

    GPUs that cannot do MIG are not named. Where all others are alike, and these are all, the entry is for all GPUs, so
    that nodes of one kind share a config.
    """
    gpus = list(gpus)
    entries: list[dict[str, t.Any]] = []
    for gpu in gpus:
        if gpu.mig is None:
            continue
        content = {"mig-enabled": gpu.mig, "mig-devices": dict(sorted(gpu.devices.items())) if gpu.mig else {}}
        alike = next((entry for entry in entries if {**entry, **content} == entry), None)
        if alike is None:
            entries.append({"devices": [gpu.number], **content})
        else:
            alike["devices"].append(gpu.number)
    if len(entries) == 1 and len(entries[0]["devices"]) == len(gpus):
        entries[0]["devices"] = "all"
    return entries


def names_of(name: str) -> tuple[str, str]:
    """Both names of the same content."""
    return name, f"{name}{_AGAIN}"


def other_name(name: str, value: str) -> str:
    """The name of this content that is not the value of the label now."""
    return next(each for each in names_of(name) if each != value)


def with_config(text: str, name: str, entries: Entries) -> str:
    """The config file with these entries under both names; the same text where it has them. Raises BadConfigMap."""
    data = read(text)
    configs = data["mig-configs"]
    wanted = {each: _plain(entries) for each in names_of(name)}
    if all(configs.get(each) == content for each, content in wanted.items()):
        return text
    data["mig-configs"] = {**configs, **wanted}
    return yaml.dump(data, Dumper=_WithoutAliases, sort_keys=False)


class _WithoutAliases(yaml.SafeDumper):
    """Every entry is written out, so that people can read and edit it."""

    def ignore_aliases(self, data: t.Any) -> bool:
        del data
        return True


def read(text: str) -> dict[str, t.Any]:
    """A config file of mig-parted, empty for an empty text. Raises BadConfigMap."""
    try:
        data = yaml.safe_load(text) if text.strip() else {"version": "v1", "mig-configs": {}}
    except yaml.YAMLError as error:
        raise BadConfigMap(f"its {FILE} is no YAML ({error})") from None
    if not isinstance(data, dict) or not isinstance(data.get("mig-configs"), dict):
        raise BadConfigMap(f"its {FILE} has no mig-configs")
    return data


def _plain(entries: Entries) -> list[dict[str, t.Any]]:
    """Without what Ansible notes with its values, of which YAML knows nothing."""
    plain: list[dict[str, t.Any]] = json.loads(json.dumps(list(entries)))
    return plain


# --- who changes the GPUs -----------------------------------------------------------------------------------------


def why_not_beside(name: str, node: Json) -> str:
    """Why we must not change the GPUs of this node ourselves, with what to do; empty where we may."""
    if not is_deployed(node):
        return ""
    return (
        f"The MIG manager of NVIDIA's operator has the GPUs of node {name} ({DEPLOYED}=true), and two must not change"
        " them: set mig_takeover to have it taken off this node, or kubernetes_mode to operator."
    )


def is_deployed(node: Json) -> bool:
    """Whether the operator deploys its MIG manager to this node."""
    return (node["metadata"].get("labels") or {}).get(DEPLOYED) == "true"


# --- may it be used -----------------------------------------------------------------------------------------------


def why_not(name: str, node: Json, policy: t.Optional[Json], config_map: str, managers: t.Iterable[Json]) -> str:
    """Why the manager would not do what this node's label says, with what to do; empty where it would."""
    why = why_not_named(name, node, policy, config_map)
    if why:
        return why
    if (node["metadata"].get("labels") or {}).get(DEPLOYED) == "false":
        return (
            f"Node {name} has the label {DEPLOYED}=false, which switches its MIG manager off: remove it, or set"
            " kubernetes_mode to engine."
        )
    if not any((pod.get("spec") or {}).get("nodeName") == name for pod in managers):
        return (
            f"No pod of the MIG manager runs on node {name}, and nobody would act on its label: look at its daemonset."
        )
    return ""


def why_not_named(name: str, node: Json, policy: t.Optional[Json], config_map: str) -> str:
    """Why a manager on this node, if there were one, would not find a config of ours; empty where it would."""
    if config_map in VENDORS:
        return f"{config_map} is the operator's own, which it makes again as it was: choose another name for yours."
    if (node["metadata"].get("labels") or {}).get(CAPABLE) != "true":
        return (
            f"Node {name} has not the label {CAPABLE}=true, so that the operator runs no MIG manager there: look at"
            " gpu-feature-discovery on it."
        )
    return _why_not_the_policy(policy, config_map)


def naming(config_map: str) -> dict[str, t.Any]:
    """The part of a ClusterPolicy that names the config map."""
    return {"migManager": {"config": {"name": config_map}}}


def _why_not_the_policy(policy: t.Optional[Json], config_map: str) -> str:
    if policy is None:
        return (
            "There is no ClusterPolicy, by which the operator's MIG manager finds its config map: install the operator."
        )
    manager = (policy.get("spec") or {}).get("migManager") or {}
    named = (manager.get("config") or {}).get("name")
    if named != config_map:
        return (
            f"The ClusterPolicy {policy['metadata']['name']} has the config map {named!r} for MIG and not"
            f" {config_map!r}: set kubernetes_set_policy to have it named there, which is for all nodes of the cluster."
        )
    return ""


# --- is it at work ------------------------------------------------------------------------------------------------


def state_of(node: Json) -> str:
    """What the manager says of the config that the node's label names."""
    return str((node["metadata"].get("labels") or {}).get(STATE, ""))


def value_of(node: Json) -> str:
    """The name of the config that the node's label names."""
    return str((node["metadata"].get("labels") or {}).get(CONFIG, ""))


def is_at_work(node: Json, now: float, patience: float) -> bool:
    """Whether the manager is changing the node. It is, while it says so, for as long as a change may take.

    Where nobody knows since when it says so, it is taken for being at work.
    """
    return _owes_an_answer(node) and not is_stuck(node, now, patience)


def is_stuck(node: Json, now: float, patience: float) -> bool:
    """Whether the manager has said for longer than a change may take that it is at work.

    It ends without a word where a pod does not go in time, and where it is killed. Then it acts on another value of
    its label only.
    """
    since = since_when(node)
    return _owes_an_answer(node) and since is not None and now - since > patience


def _owes_an_answer(node: Json) -> bool:
    """It says that it is at work, or has not said anything yet to a call of ours."""
    is_called = state_of(node) == "" and before_of(node) is not None
    return is_deployed(node) and (is_called or state_of(node) in _BUSY)


def since_when(node: Json) -> t.Optional[float]:
    """When the manager was called last, or has said something, in seconds since 1970; None where nobody knows.

    The API notes with each object who has set which of its fields, and when that was last.
    """
    return _last_change(node, lambda labels: f"f:{STATE}" in labels or f"f:{CONFIG}" in labels)


def last_change(item: Json) -> t.Optional[float]:
    """When anybody has changed an object last, in seconds since 1970; None where nobody knows."""
    return _last_change(item, lambda _labels: True)


def _last_change(item: Json, counts: t.Callable[[t.Mapping[str, t.Any]], bool]) -> t.Optional[float]:
    times = [
        _seconds(str(each.get("time", "")))
        for each in item["metadata"].get("managedFields") or []
        if counts(((each.get("fieldsV1") or {}).get("f:metadata") or {}).get("f:labels") or {})
    ]
    return max((each for each in times if each is not None), default=None)


def _seconds(time: str) -> t.Optional[float]:
    try:
        return datetime.datetime.fromisoformat(time.replace("Z", "+00:00")).timestamp()
    except ValueError:
        return None


def has_failed(node: Json) -> bool:
    """Whether the last word of the manager is that it failed. It does not try again by itself."""
    return state_of(node) == FAILED


# --- the node -----------------------------------------------------------------------------------------------------


def to_call(node: Json, value: str, run: str) -> t.Optional[dict[str, t.Any]]:
    """The patch that gives a node this value, and takes away what was said of the last; None where it has it.

    It remembers the value from before the first of several, so that a failure can go back to it.
    """
    if value_of(node) == value:
        return None
    before = before_of(node)
    # A change that ended well is over, also where its run was killed before it said so.
    kept = value_of(node) if before is None or state_of(node) == "success" else before
    note = json.dumps({"run": run, "before": kept}, sort_keys=True)
    return _patch(node, {CONFIG: value, STATE: None}, note)


def to_unsay(node: Json) -> t.Optional[dict[str, t.Any]]:
    """The patch that takes away what the manager has said last; None where it has said nothing."""
    note = (node["metadata"].get("annotations") or {}).get(NOTE)
    return _patch(node, {STATE: None}, note) if state_of(node) else None


def to_forget(node: Json) -> t.Optional[dict[str, t.Any]]:
    """The patch that ends a change; None where there is nothing to forget."""
    return None if NOTE not in (node["metadata"].get("annotations") or {}) else _patch(node, {}, None)


def before_of(node: Json) -> t.Optional[str]:
    """The value of the label before a change of ours that has not ended, empty where there was none; None without."""
    text = (node["metadata"].get("annotations") or {}).get(NOTE)
    try:
        said = json.loads(text) if text else None
    except ValueError:
        return None
    return str(said.get("before") or "") if isinstance(said, dict) else None


def _patch(node: Json, labels: t.Mapping[str, t.Optional[str]], note: t.Optional[str]) -> dict[str, t.Any]:
    return {
        "metadata": {
            "resourceVersion": node["metadata"]["resourceVersion"],
            "labels": dict(labels),
            "annotations": {NOTE: note},
        }
    }
