# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The device files of instances: without them nobody but root can use what was made, and no container at all.

This file is private to the collection gpufleet.mig and may change at any time.

The driver guards every GI and CI by a capability, a character device below /dev/nvidia-caps whose minor number is in
/proc/driver/nvidia-caps/mig-minors. NVML makes instances and not these files: nvidia-modprobe does, which nvidia-smi
calls. Who runs in a container makes them in the /dev of the container. So they are made here, in the /dev of the host
and, where the driver runs in a container, below its root too; and looked at, since what makes them says little.
"""

from __future__ import annotations

import contextlib
import os
import stat
import typing as t

from . import commands, driver, holders
from .model import Gpu, MigError, Node
from .words import compute_in_words, instance_in_words

if t.TYPE_CHECKING:
    from .bounded import Watch

_PROGRAM = "nvidia-modprobe"
_SECONDS = 30.0
# Between our own deadline and the end of the process that misses it.
_SPARE_SECONDS = 10.0
_FOLDER = "dev/nvidia-caps"
_MODE = 0o444
_MOST_NAMED = 4


class Capability(t.NamedTuple):
    """The device file of one GI or CI: ``file`` is the driver's own word about it in /proc, ``what`` is for people."""

    gpu: Gpu
    what: str
    file: str
    minor: int

    @property
    def device(self) -> str:
        """Its path in a tree."""
        return f"{_FOLDER}/nvidia-cap{self.minor}"


def ensure(node: Node, gpus: t.Iterable[int], watch: t.Optional[Watch] = None, root: str = "/") -> None:
    """See to it that every instance of these GPUs (by index) has its device files.

    Raises MigError, which names those that are missing (details ``missing_devices``). Where the driver has no table of
    them, as on simulated nodes and before MIG, there is nothing to do.
    """
    minors = holders.capability_minors(root)
    if not minors:
        return
    if watch is not None:
        watch.begin("make the device files of instances", 2 * _SECONDS + _SPARE_SECONDS)
    concerned = set(gpus)
    needed = [each for gpu in node.gpus if gpu.index in concerned for each in _needed_by(gpu, minors)]
    majors = holders.capability_majors(root)
    reasons: dict[str, tuple[Capability, str]] = {}
    for tree in _trees(root):
        _make(tree, [each for each in needed if not _is_right(tree, each, majors)], majors, reasons)
    if watch is not None:
        watch.idle()
    if reasons:
        raise _failure(reasons)


def _needed_by(gpu: Gpu, minors: t.Mapping[t.Any, int]) -> list[Capability]:
    found = []
    for instance in gpu.instances:
        inside = [(ci.id, compute_in_words(instance, ci)) for ci in instance.compute]
        for ci_id, what in ((None, instance_in_words(instance)), *inside):
            minor = minors.get((gpu.minor, instance.id, ci_id))
            if minor is None:
                raise MigError(
                    f"{driver.describe(gpu)} has {what}, and the driver's table /proc/driver/nvidia-caps/mig-minors"
                    " names no device file for it: look into 'dmesg', and run 'nvidia-smi -L' on the host."
                )
            below = f"gi{instance.id}" + ("" if ci_id is None else f"/ci{ci_id}")
            file = f"/proc/driver/nvidia/capabilities/gpu{gpu.minor}/mig/{below}/access"
            found.append(Capability(gpu, what, file, minor))
    return found


def _trees(root: str) -> list[str]:
    """Where device files have to be: on the host, and where the driver has its root."""
    of_driver = os.path.join(root, driver.DRIVER_ROOT.lstrip("/"))
    return [root, of_driver] if os.path.isdir(os.path.join(of_driver, "dev")) else [root]


def _is_right(tree: str, capability: Capability, majors: t.Collection[int]) -> bool:
    """Whether the file is there and is this device; after the driver was loaded anew, its number may be another one."""
    try:
        status = os.lstat(os.path.join(tree, capability.device))
    except OSError:
        return False
    if not stat.S_ISCHR(status.st_mode):
        return False
    number = os.major(status.st_rdev), os.minor(status.st_rdev)
    return not majors or (number[0] in majors and number[1] == capability.minor)


def _make(
    tree: str,
    missing: t.Sequence[Capability],
    majors: t.Collection[int],
    reasons: dict[str, tuple[Capability, str]],
) -> None:
    """Make device files in one tree; why one could not be made goes into ``reasons``, by its path."""
    if not missing:
        return
    said = _ask_nvidia_modprobe(tree, [each.file for each in missing])
    for each in missing:
        if _is_right(tree, each, majors):
            continue
        why = _make_by_hand(tree, each, majors)
        if not _is_right(tree, each, majors):
            reasons[os.path.join(tree, each.device)] = (each, why or said or "it does not stay there")


def _ask_nvidia_modprobe(tree: str, files: t.Sequence[str]) -> str:
    """Have NVIDIA's own program make them, which knows what the administrator wants. Returns what went wrong."""
    words = _nvidia_modprobe_of(tree)
    if words is None:
        return f"{_PROGRAM} is not installed"
    arguments = [word for file in files for word in ("-f", file)]
    try:
        answer = commands.run((*words, *arguments), _SECONDS, {}, patience=2.0, merged=True)
    except OSError as error:
        return f"{words[0]} cannot be run: {error.strerror}"
    except commands.Late:
        return f"{_PROGRAM} did not come back within {_SECONDS:g} s"
    said = driver.shortened(" ".join(answer.out.split()))
    return f"{_PROGRAM} ended with {answer.code}{f' ({said})' if said else ''}" if answer.code else ""


def _nvidia_modprobe_of(tree: str) -> t.Optional[tuple[str, ...]]:
    """The program of this tree; that of a driver that runs in a container makes files below its own root."""
    if not tree.rstrip("/").endswith(driver.DRIVER_ROOT):
        program = commands.find(_PROGRAM)
        return None if program is None else (program,)
    return commands.find_below(tree, _PROGRAM)


def _make_by_hand(tree: str, capability: Capability, majors: t.Collection[int]) -> str:
    """As nvidia-modprobe makes it. Returns what went wrong; nothing where only nvidia-modprobe can know the number."""
    if not majors:
        return ""
    path = os.path.join(tree, capability.device)
    major = min(majors)
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(os.path.dirname(path), 0o755)
        with contextlib.suppress(FileNotFoundError):
            # One with the number that the driver had before; what is no device is somebody else's matter.
            if stat.S_ISCHR(os.lstat(path).st_mode):
                os.unlink(path)
        os.mknod(path, stat.S_IFCHR | _MODE, os.makedev(major, capability.minor))
        os.chmod(path, _MODE)  # whatever the umask is
    except OSError as error:
        return error.strerror or str(error)
    # By this name systemd finds the device when it gives a container its devices.
    with contextlib.suppress(OSError):
        os.symlink(
            f"../nvidia-caps/{os.path.basename(path)}", os.path.join(tree, f"dev/char/{major}:{capability.minor}")
        )
    return ""


def _failure(reasons: t.Mapping[str, tuple[Capability, str]]) -> MigError:
    said = [
        f"{path} (minor {each.minor}, {each.what} of GPU {each.gpu.index}): {why}"
        for path, (each, why) in list(reasons.items())[:_MOST_NAMED]
    ]
    if len(reasons) > _MOST_NAMED:
        said.append(f"and {len(reasons) - _MOST_NAMED} more")
    first = next(iter(reasons.values()))[0]
    return MigError(
        f"The instances are as wanted, but device files of theirs could not be made, without which no container can use"
        f" them: {'; '.join(said)}. Run '{_PROGRAM} -f {first.file}' on the host to see why, and run again.",
        missing_devices=list(reasons),
    )
