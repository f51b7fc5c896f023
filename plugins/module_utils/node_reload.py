# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What speaks against having systemd read its units anew: containers and pods that use GPUs and can lose them by that.

This file is private to the collection gpufleet.mig and may change at any time.

Where systemd keeps the cgroups of containers it writes their device rules anew then, and knows nothing of devices that
were let in beside it. The container runs on, and has its GPUs no more until it is made again.
"""

from __future__ import annotations

import typing as t

from . import node_containers, node_kubelet
from .engine import clients, state
from .engine.model import MigError
from .engine.profiles import printable
from .grpc.errors import CallError, NobodyListens

if t.TYPE_CHECKING:
    from ansible.module_utils.basic import AnsibleModule

Result = dict[str, t.Any]

ARGUMENTS: dict[str, t.Any] = {
    "state_dir": {"type": "path"},
    "allow": {"type": "bool", "default": False},
    "option": {"type": "str", "default": "allow"},
    "runtimes": node_containers.ARGUMENTS["runtimes"],
    "socket": node_kubelet.ARGUMENTS["socket"],
}

_KUBELET_SECONDS = 10.0
# What a runtime says of a container none of whose processes is there.
_AT_REST = ("created", "configured", "initialized", "exited", "stopped", "dead")


class Users(t.NamedTuple):
    """Who uses GPUs, in words, and what could not be asked, a sentence each."""

    names: tuple[str, ...]
    unasked: tuple[str, ...]


def look(module: AnsibleModule) -> Result:
    """Who could lose GPUs; a failure where nobody has allowed that, and a warning of it in check mode."""
    drained = _is_drained(module.params["state_dir"])
    users = Users((), ()) if drained or not _systemd_runs() else _users(module.params)
    for sentence in users.unasked:
        module.warn(f"{sentence} Whether containers could lose GPUs when systemd reads its units anew cannot be told.")
    result: Result = {"changed": False, "drained": drained, "containers": list(users.names)}
    if not users.names:
        return {**result, "msg": "Nobody is known who could lose GPUs when systemd reads its units anew."}
    could = f"systemd has to read its units anew, by which these can lose their GPUs: {', '.join(users.names)}."
    if module.params["allow"]:
        return {**result, "msg": could}
    todo = f"Drain this host and run again, or end them; {module.params['option']}=true goes on beside them."
    if module.check_mode:
        module.warn(f"A run would be refused: {could} {todo}")
        return {**result, "msg": f"{could} {todo}"}
    return {**result, "failed": True, "msg": f"{could} Nothing was written. {todo}"}


def _is_drained(state_dir: t.Optional[str]) -> bool:
    return state.read_drain(state.places(state_dir)) is not None


def _systemd_runs() -> bool:
    return isinstance(clients.manager_of(), clients.Host)


def _users(params: t.Mapping[str, t.Any]) -> Users:
    try:
        if clients.Systemd().is_booting():
            return Users((), ("This host is still booting, and neither container engines nor its kubelet are asked.",))
    except MigError as problem:
        return Users((), (str(problem),))
    asked = [*(_of_runtime(each) for each in dict.fromkeys(params["runtimes"])), _of_kubelet(params["socket"])]
    return Users(
        tuple(dict.fromkeys(name for each in asked for name in each.names)),
        tuple(sentence for each in asked for sentence in each.unasked),
    )


def _of_runtime(runtime: str) -> Users:
    try:
        shown, _why_not = node_containers.existing(runtime)
    except MigError as problem:
        return Users((), (str(problem),))
    found = [each for each in shown if _runs(each) and node_containers.asked_by(each) != node_containers.NOTHING]
    return Users(tuple(node_containers.in_words(runtime, each) for each in found), ())


def _runs(shown: node_containers.Shown) -> bool:
    return node_containers.status_of(shown) not in _AT_REST


def _of_kubelet(socket: str) -> Users:
    """Pods have no device without the kubelet. One that was killed is no answer: its pods go on running."""
    try:
        given = node_kubelet.given(socket, _KUBELET_SECONDS)
    except NobodyListens as problem:
        return Users((), () if problem.missing else (f"{_sentence(problem)} Its pods may be running.",))
    except CallError as problem:
        return Users((), (f"The kubelet cannot be asked: {_sentence(problem)}",))
    return Users(tuple(dict.fromkeys(each.holder for each in given)), ())


def _sentence(problem: CallError) -> str:
    text = printable(str(problem))
    return f"{text[:1].upper()}{text[1:]}."
