# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What containers of a node were given which of its devices, also those that do not run.

This file is private to the collection gpufleet.mig and may change at any time.

A container that was made for one MIG device cannot start once that is gone, so the device is promised to it as long as
it exists. A runtime is only asked while its daemon runs, and never while the node boots, as with clients.
"""

from __future__ import annotations

import json
import re
import typing as t

from . import ansible_bridge as bridge
from .engine import cdi_names, clients, holders, reading, report
from .engine.model import Orders
from .engine.profiles import printable

if t.TYPE_CHECKING:
    from ansible.module_utils.basic import AnsibleModule

RUNTIMES = ("docker", "podman", "nerdctl")

ARGUMENTS: dict[str, t.Any] = {
    **bridge.COMMON_ARGUMENTS,
    **bridge.READ_ARGUMENTS,
    "runtimes": {"type": "list", "elements": "str", "choices": list(RUNTIMES), "default": list(RUNTIMES)},
}

# How many containers are asked about at once: a command line has an end.
_AT_ONCE = 100
_ID = re.compile(r"[0-9a-f]{64}")
_GPU_FILE = re.compile(r"/dev/nvidia(\d+)")
_CAPABILITY_FILE = re.compile(r"/dev/nvidia-caps/nvidia-cap(\d+)")
_VISIBLE = "NVIDIA_VISIBLE_DEVICES="
_NOTHING = ("", "none", "void")
_ANNOTATION = "cdi.k8s.io/"

Shown = t.Mapping[str, t.Any]


class Asked(t.NamedTuple):
    """What a container asks for: devices by their names, device files by their paths, or whatever there is."""

    names: tuple[str, ...]
    files: tuple[str, ...]
    everything: bool


NOTHING = Asked((), (), False)


class Existing(clients.Containers):
    """All containers of a runtime."""

    def read(self) -> tuple[list[Shown], str]:
        """What ``inspect`` shows of each, or why the runtime was not asked. Raises ClientError."""
        why_not = self._why_not()
        if why_not:
            return [], why_not
        answer = self._call("ps", "--all", "--quiet", "--no-trunc")
        ids = answer.out.split()
        if answer.code != 0 or not all(map(_ID.fullmatch, ids)):
            raise self._strange("ps", answer.err or answer.out)
        found: list[Shown] = []
        for first in range(0, len(ids), _AT_ONCE):
            answer = self._call("container", "inspect", *ids[first : first + _AT_ONCE])
            # One that is removed in this moment is no failure.
            if answer.code != 0 and "no such" not in answer.err.lower():
                raise self._strange("container inspect", answer.err)
            try:
                found += [each for each in json.loads(answer.out or "[]") if isinstance(each, dict)]
            except (ValueError, TypeError, RecursionError):
                raise self._strange("container inspect", answer.out) from None
        return found, ""

    def _strange(self, what: str, said: str) -> clients.ClientError:
        words = printable(" ".join(said.split())[:200]) or "nothing"
        return clients.ClientError(
            f"'{self._runtime} {what}' failed and said {words}. Which devices its containers have cannot be told:"
            " look at it on this node, or leave it out of runtimes.",
            unit="",
        )


def look(module: AnsibleModule) -> bridge.Result:
    """Containers with devices, and what that reserves."""
    timeout = bridge.seconds(module.params, "operation_timeout")
    node = reading.observe(bridge.opener(module.params), Orders(operation_timeout=timeout))
    gpus = report.node_report(node)["gpus"]
    containers: list[bridge.Result] = []
    unasked: list[bridge.Result] = []
    for runtime in dict.fromkeys(module.params["runtimes"]):
        shown, why_not = existing(runtime)
        if why_not:
            unasked.append({"runtime": runtime, "reason": why_not})
        containers += [about for each in shown if (about := _about(runtime, each, gpus)) is not None]
    return {
        "changed": False,
        "containers": containers,
        "reservations": [
            {"device": device, "holder": each["description"], "source": each["runtime"]}
            for each in containers
            for device in each["devices"]
        ],
        "unasked": unasked,
    }


def existing(runtime: str) -> tuple[list[Shown], str]:
    """What ``inspect`` shows of each container of a runtime, or why that was not asked. Raises ClientError."""
    if not isinstance(clients.manager_of(), clients.Host):
        return [], "systemd does not run on this node"
    return Existing(runtime, clients.Systemd(), 0.0).read()


def _about(runtime: str, shown: Shown, gpus: cdi_names.Gpus) -> t.Optional[bridge.Result]:
    """A container in the words of the result; None for one that was given no device."""
    asked = asked_by(shown)
    if asked == NOTHING:
        return None
    devices, gone = _meant(asked, gpus)
    return {
        "runtime": runtime,
        "id": _id_of(shown),
        "name": _name_of(shown),
        "status": status_of(shown),
        "devices": devices,
        "gone": gone,
        "all": asked.everything,
        "description": in_words(runtime, shown),
    }


def in_words(runtime: str, shown: Shown) -> str:
    """A container as people know it: ``container trainer (docker 3f2a1bc0d4e5, running)``."""
    short = _id_of(shown)[:12]
    return f"container {_name_of(shown) or short} ({runtime} {short}, {status_of(shown)})"


def status_of(shown: Shown) -> str:
    """What the runtime says that a container does."""
    return printable(str(_mapping(shown, "State").get("Status") or "unknown"))


def _id_of(shown: Shown) -> str:
    return printable(str(shown.get("Id") or ""))


def _name_of(shown: Shown) -> str:
    return printable(str(shown.get("Name") or "").lstrip("/"))


def asked_by(shown: Shown) -> Asked:
    """What a container was made with, from what ``inspect`` shows; the runtimes differ in where they show it."""
    host, config = _mapping(shown, "HostConfig"), _mapping(shown, "Config")
    words: list[str] = []
    everything = False
    for request in _mappings(host, "DeviceRequests"):
        ids = [str(each) for each in _list(request, "DeviceIDs")]
        capabilities = [
            str(each) for group in _list(request, "Capabilities") if isinstance(group, list) for each in group
        ]
        if request.get("Driver") in ("nvidia", "cdi") or "gpu" in capabilities:
            words += ids
            everything = everything or (not ids and bool(request.get("Count")))
    words += [str(each.get("PathOnHost") or "") for each in _mappings(host, "Devices")]
    words += _of_command([str(each) for each in _list(config, "CreateCommand")])
    for notes in (_mapping(host, "Annotations"), _mapping(config, "Annotations")):
        words += [
            word for key, value in notes.items() if str(key).startswith(_ANNOTATION) for word in str(value).split(",")
        ]
    if "nvidia" in str(host.get("Runtime") or shown.get("OCIRuntime") or ""):
        words += _visible([str(each) for each in _list(config, "Env")])
    names = [word.removeprefix(cdi_names.PREFIX) for word in words if word and not _is_other(word)]
    everything = everything or "all" in names
    files = [name for name in names if name.startswith("/")]
    singles = [name for name in names if not name.startswith("/") and name != "all"]
    return Asked(tuple(dict.fromkeys(singles)), tuple(dict.fromkeys(files)), everything)


def _is_other(word: str) -> bool:
    """Whether it is no device of NVIDIA's: another device file, or a CDI device of another kind."""
    if word.startswith("/"):
        return not (_GPU_FILE.fullmatch(word) or _CAPABILITY_FILE.fullmatch(word))
    return "=" in word and not word.startswith(cdi_names.PREFIX)


def _of_command(words: t.Sequence[str]) -> list[str]:
    """CDI devices in the command that made a container, which podman remembers."""
    found = []
    for position, word in enumerate(words):
        option, equals, value = word.partition("=")
        if option == "--device":
            value = value if equals else "".join(words[position + 1 : position + 2])
            found += [value] if value.startswith(cdi_names.PREFIX) else []
    return found


def _visible(environment: t.Sequence[str]) -> list[str]:
    """What the variable says that NVIDIA's runtime reads. The last one counts."""
    said = [each[len(_VISIBLE) :] for each in environment if each.startswith(_VISIBLE)]
    words = [word.strip() for word in (said[-1] if said else "").split(",")]
    return [word for word in words if word not in _NOTHING]


def _meant(asked: Asked, gpus: cdi_names.Gpus) -> tuple[list[str], list[str]]:
    """UUIDs of what a container asks for, and the names of what is not there any more."""
    found: list[str] = []
    gone: list[str] = []
    for name in asked.names:
        devices = cdi_names.named(gpus, name)
        found += [each.uuid for each in devices]
        gone += [] if devices else [printable(name)]
    found += _by_files(asked.files, gpus)
    return list(dict.fromkeys(found)), gone


def _by_files(files: t.Sequence[str], gpus: cdi_names.Gpus) -> list[str]:
    """UUIDs of devices whose files a container was given one by one.

    A file of a GPU is that GPU where MIG is off. With MIG it comes with those of instances, and is nothing alone.
    """
    places = {minor: place for place, minor in holders.capability_minors().items()}
    minors = {gpu["minor"]: gpu for gpu in gpus}
    found = []
    for path in files:
        gpu_file, capability = _GPU_FILE.fullmatch(path), _CAPABILITY_FILE.fullmatch(path)
        if gpu_file and int(gpu_file[1]) in minors and not minors[int(gpu_file[1])]["mig_current"]:
            found.append(str(minors[int(gpu_file[1])]["uuid"]))
        place = places.get(int(capability[1])) if capability else None
        if place is not None and place[0] in minors:
            index = minors[place[0]]["index"]
            found += [
                each.uuid
                for each in cdi_names.devices(gpus)
                if (each.gpu, each.gi, each.ci) == (index, place[1], place[2])
            ]
    return found


def _mapping(data: Shown, key: str) -> Shown:
    value = data.get(key)
    return value if isinstance(value, dict) else {}


def _list(data: Shown, key: str) -> list[t.Any]:
    value = data.get(key)
    return value if isinstance(value, list) else []


def _mappings(data: Shown, key: str) -> list[Shown]:
    return [each for each in _list(data, key) if isinstance(each, dict)]
