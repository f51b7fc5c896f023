# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Whom a process belongs to, as its control group says: unit, login session, container, pod or job.

This file is private to the collection gpufleet.mig and may change at any time.

A path of a control group is read from the outside to the inside, and the outermost word counts: what a container,
a user or a job calls its own groups is further in, so it cannot pass for something of the host.
"""

from __future__ import annotations

import re
import typing as t

from .model import Owner
from .profiles import printable

# What stands before a container's id, with the runtime that writes it. CRI-O and podman give the container's monitor
# (conmon) a group of its own, which ends with the container.
_RUNTIME_OF_PREFIX = {
    "docker": "docker",
    "cri-containerd": "containerd",
    "nerdctl": "containerd",
    "crio": "cri-o",
    "crio-conmon": "cri-o",
    "libpod": "podman",
    "libpod-conmon": "podman",
    "libpod-payload": "podman",
}
# Where the id stands alone, the group around it may tell. In a pod it does not: docker and containerd do the same.
_RUNTIME_OF_PARENT = {"docker": "docker", "libpod_parent": "podman", "default": "containerd", "k8s.io": "containerd"}
# Groups at the top in which every group is a container, by whatever name it was given.
_RUNTIME_OF_TOP = {"lxc": "lxc", "default": "containerd"}

_CONTAINER = re.compile(r"(?:(?P<prefix>[a-z][a-z0-9_.-]*)-)?(?P<id>[0-9a-f]{64})(?:\.scope)?")
# What containerd and CRI-O make of the path for systemd when they are not told to use systemd.
_MISREAD_SLICE = re.compile(r"(?P<slice>[^:]+\.slice):(?P<prefix>[^:]+):(?P<id>[0-9A-Za-z_.-]+)")
_POD_SLICE = re.compile(r"(?:[^/]*-)?kubepods(?:-besteffort|-burstable)?-pod(?P<uid>[0-9A-Za-z_.-]+)\.slice")
_POD = re.compile(r"pod(?P<uid>[0-9a-f]{32}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")
_SLURM = re.compile(r"slurm(?:_[^/]*)?|(?:[^/]*_)?slurmstepd\.scope")
_JOB = re.compile(r"job_(?P<id>[0-9A-Za-z]+)")
_STEP = re.compile(r"step_(?P<id>[0-9A-Za-z_.+-]+)")
_LXC = re.compile(r"lxc\.payload\.(?P<name>.+)")
_UNIT = re.compile(r".+\.(?:service|scope|socket|mount|swap)")
_USER_MANAGER = re.compile(r"user@\d+\.service")
_SESSION = re.compile(r"session-(?P<id>.+)\.scope")
# They start containers, which run on without them: to be found below one of them is no more than a lack of settings.
_DAEMONS = ("docker.service", "containerd.service", "crio.service", "podman.service")

_LONGEST_TEXT = 1 << 16
_LONGEST_WORD = 256


def owner(cgroup_text: str) -> Owner:
    """The owner that the content of ``/proc/PID/cgroup`` names; an empty Owner where it names none.

    Under cgroup v1 a process has a path for each controller. Units and sessions are systemd's own, so its hierarchy
    goes first; Slurm and some containers are only in the hierarchies of controllers.
    """
    owners = [_owner_of_path(path) for path in _paths(cgroup_text)]
    at_work = next((each for each in owners if each.kind in ("container", "pod", "job")), Owner())
    unit = next((each.unit for each in owners if each.unit), "")
    if at_work.container and unit in _DAEMONS:
        unit = ""
    session = _SESSION.fullmatch(unit)
    return at_work._replace(
        kind=at_work.kind or ("session" if session else "unit" if unit else ""),
        unit=unit,
        session=session["id"] if session else "",
    )


def _paths(cgroup_text: str) -> list[list[str]]:
    """The paths as lists of names, systemd's own hierarchy first, then that of cgroup v2."""
    found: list[tuple[int, list[str]]] = []
    # Only this ends a line: the kernel lets a user put other ends of lines into the name of a group.
    for line in cgroup_text[:_LONGEST_TEXT].split("\n"):
        hierarchy, _colon, rest = line.partition(":")
        controllers, _colon, path = rest.partition(":")
        # The kernel marks a group that was removed under its process.
        names = [_name(segment) for segment in path.removesuffix(" (deleted)").split("/")]
        rank = 0 if controllers == "name=systemd" else 1 if hierarchy == "0" else 2
        found.append((rank, [name for name in names if name not in ("", "..")]))
    return [path for _rank, path in sorted(found, key=lambda each: each[0])]


def _name(segment: str) -> str:
    """One name of a path, safe to print. systemd puts ``_`` before names that the kernel could take for its own."""
    segment = segment[:_LONGEST_WORD]
    segment = segment[1:] if segment.startswith("_") else segment
    return printable(segment)


def _owner_of_path(path: t.Sequence[str]) -> Owner:
    """What one path says; ``kind`` is empty or that of the outermost container, pod or job."""
    found: dict[str, str] = {}
    outside = path
    in_slurm = False
    for depth, name in enumerate(path):
        facts = _facts(path[:depth], name, in_slurm)
        if "container" in facts and "container" not in found:
            outside = path[: depth + 1]
        found = {**facts, **found}
        in_slurm = in_slurm or _SLURM.fullmatch(name) is not None
    return Owner(**found, unit=_unit(outside))


def _unit(path: t.Sequence[str]) -> str:
    """The unit that a path is in. One of a user's own systemd has the user's manager before it, and a slash.

    So it can never be taken for the unit of that name that the system's manager may have.
    """
    units = [name for name in path if _UNIT.fullmatch(name)]
    if len(units) > 1 and _USER_MANAGER.fullmatch(units[0]):
        return f"{units[0]}/{units[1]}"
    return units[0] if units else ""


def _facts(above: t.Sequence[str], name: str, in_slurm: bool) -> dict[str, str]:
    """What one name of a path says about container, pod or job; ``in_slurm``: whether one of Slurm's is above it."""
    misread = _MISREAD_SLICE.fullmatch(name)
    if misread:
        runtime = _RUNTIME_OF_PREFIX.get(misread["prefix"], "")
        return {"kind": "container", "container": misread["id"], "runtime": runtime, **_pod(misread["slice"])}
    if in_slurm and _JOB.fullmatch(name):
        return {"kind": "job", "job": name.partition("_")[2]}
    if in_slurm and _STEP.fullmatch(name):
        return {"step": name.partition("_")[2]}
    return _pod(name) or _container(above, name)


def _pod(name: str) -> dict[str, str]:
    pod = _POD_SLICE.fullmatch(name) or _POD.fullmatch(name)
    # systemd takes a dash for a level of its tree, so the kubelet writes the dashes of a pod's id otherwise.
    return {"kind": "pod", "pod": pod["uid"].replace("_", "-")} if pod else {}


def _container(above: t.Sequence[str], name: str) -> dict[str, str]:
    parent = above[-1] if above else ""
    container = _CONTAINER.fullmatch(name)
    if container:
        prefix = container["prefix"]
        runtime = _RUNTIME_OF_PREFIX.get(prefix, "") if prefix else _RUNTIME_OF_PARENT.get(parent, "")
        return {"kind": "container", "container": container["id"], "runtime": runtime}
    if len(above) == 1 and parent in _RUNTIME_OF_TOP:
        return {"kind": "container", "container": name, "runtime": _RUNTIME_OF_TOP[parent]}
    lxc = _LXC.fullmatch(name)
    return {"kind": "container", "container": lxc["name"], "runtime": "lxc"} if lxc else {}
