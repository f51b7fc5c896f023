# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a change that ended in the middle has left on a Kubernetes node, though its GPUs may be as wanted. Pure.

This file is private to the collection gpufleet.mig and may change at any time. Nodes are what the API returns.

Three things are left behind: a cordon of a rollout, labels that are paused, and a MIG manager that got stuck or has
failed. Each is left alone while somebody may still be at work. A rollout is, for all others, as long as its cordon
names another layout; a run that has cordoned the node for something else than a rollout is until it gives the node
back; a MIG manager is while it says so, for as long as a change may take.
"""

from __future__ import annotations

import datetime
import typing as t

from ansible_collections.gpufleet.mig.plugins.plugin_utils import _cordon, _mig_manager

Json = t.Mapping[str, t.Any]


class LeftBehind(t.NamedTuple):
    """What a run mends (``heal``), and why it does not (``why_not``), a sentence each.

    ``keeps`` is why it may not change the node either, which somebody else keeps; empty where nobody does.
    ``drained_for`` is the label of the layout for which a rollout has drained the node and not given it back, None
    where none has.
    """

    heal: tuple[str, ...] = ()
    why_not: tuple[str, ...] = ()
    drained_for: t.Optional[str] = None
    keeps: str = ""


NOTHING = LeftBehind()


def left_behind(name: str, node: Json, managed: bool, run: str, now: float, patience: float) -> LeftBehind:
    """What was left on a node, for a run of this name.

    ``managed`` is whether the MIG manager changes this node and may be called again, and ``patience`` how many seconds
    it may take.
    """
    cordon = _cordon.read(node)
    if cordon and _cordon.is_kept_by_another(cordon, run):
        return LeftBehind(keeps=cordoned_by_another(name, cordon.run))
    drained_for = None if cordon is None else cordon.drained_for or ""
    if _mig_manager.is_at_work(node, now, patience):
        return LeftBehind(
            why_not=(f"{at_work(name, node)}: what it has paused is left to it.",), drained_for=drained_for
        )
    heal = [
        *([_cordoned_by_a_rollout(name, cordon)] if cordon else []),
        *(_paused(name, node)),
        *([_stuck(name, node)] if managed and _mig_manager.is_stuck(node, now, patience) else []),
        *([_failed(name, node)] if managed and _mig_manager.has_failed(node) else []),
    ]
    return LeftBehind(tuple(heal), (), drained_for)


def at_work(name: str, node: Json) -> str:
    """That the MIG manager is changing this node, without a point."""
    return f"The MIG manager of node {name} is at work ({_mig_manager.state_of(node) or 'called'}{_since(node)})"


def _stuck(name: str, node: Json) -> str:
    return (
        f"The MIG manager of node {name} says {_mig_manager.state_of(node) or 'nothing'}{_since(node)}, which is longer"
        " than a change takes, and is called again."
    )


def _failed(name: str, node: Json) -> str:
    return (
        f"The MIG manager of node {name} says {_mig_manager.FAILED}{_since(node)} of a layout that is there, tries no"
        " more by itself, and is started anew and called again."
    )


def _since(node: Json) -> str:
    since = _mig_manager.since_when(node)
    if since is None:
        return ""
    return f" since {datetime.datetime.fromtimestamp(since, datetime.timezone.utc):%Y-%m-%dT%H:%M:%SZ}"


def _cordoned_by_a_rollout(name: str, cordon: _cordon.Cordon) -> str:
    layout = f" for {cordon.drained_for}" if cordon.drained_for else ""
    return f"Node {name} was cordoned{layout} by the run {cordon.run!r}, and not given back since."


def cordoned_by_another(name: str, run: str) -> str:
    """Why a node is not touched that somebody has cordoned for something else."""
    return (
        f"Node {name} was cordoned by the run {run!r}, which is no rollout, and is left to it: if there is no such run"
        " any more, give it back with kubernetes_node and state uncordoned."
    )


def _paused(name: str, node: Json) -> t.Iterator[str]:
    patch = _cordon.to_resume(node)
    if patch is None:
        return
    labels = ", ".join(patch["metadata"].get("labels") or {}) or "no label any more"
    yield f"What was paused on node {name} for a change that is over comes back: {labels}."
