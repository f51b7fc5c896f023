# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Who has a GPU or an instance open or reserved, and whom those processes belong to.

This file is private to the collection gpufleet.mig and may change at any time.

The driver refuses to destroy what any process has open, and its own lists show only those that compute or draw:
monitoring, a display server or a daemon that leaks its handles is in none. So the open files of all processes are
looked at as well. A device is known by its number, since a container can give it any name; where the number is not
NVIDIA's, it counts if it is the very file that has this name on the node.

Processes come and go meanwhile. Each is read through its own open folder of /proc, so that facts of two processes that
had the same number one after the other are never mixed.
"""

from __future__ import annotations

import os
import re
import stat
import typing as t

from .bounded import Watch
from .model import ComputeInstance, Gpu, GpuInstance, Node, Owner, Process, Reservation, WishError
from .owners import owner
from .profiles import printable

# Where sources of reservations plug in: a scheduler, a kubelet or a container runtime knows devices by their UUIDs
# (MIG-…, MIG-GPU-…/gi/ci of old, or GPU-… for a whole GPU) and says to whom each is promised.
Source = t.Callable[[Node], t.Iterable[tuple[str, Reservation]]]

# A GPU, and for a capability file the GI and the CI: minor of the GPU, id of the GI, id of the CI.
_Place = tuple[int, t.Optional[int], t.Optional[int]]
_Instance = tuple[t.Optional[int], t.Optional[int]]

# Where device files are that have no number of NVIDIA's, as on simulated nodes; /run/nvidia/driver is where a driver
# that runs in a container has its root.
_DEVICE_FOLDERS = ("/dev", "/run/nvidia/driver/dev")
_NVIDIA_MAJOR = 195
_LAST_GPU_MINOR = 247  # above are reserved numbers, nvidia-modeset (254) and nvidiactl (255), which are no GPU

# File systems on which a device file can be opened. A file on any other one, such as NFS, is never asked for its
# number: where the server does not answer, the question would never return.
_WITH_DEVICES = frozenset(
    ("devtmpfs", "tmpfs", "ramfs", "rootfs", "overlay", "aufs", "ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs")
)

# Daemons that hand over to the driver when it asks them: their units, and their names as the kernel cuts them.
_COOPERATIVE_UNITS = ("nvidia-persistenced.service", "nvidia-fabricmanager.service")
_COOPERATIVE_NAMES = ("nvidia-persiste", "nv-fabricmanage")

_GIVEN = "given"  # by whoever wrote the task
_UUID = re.compile(r"(?:GPU|MIG)-", re.IGNORECASE)
_INITIAL_PID_NAMESPACE = "pid:[4026531836]"
_MOST_NAMED = 8
_LONGEST_PATH = 256


class OpenDevice(t.NamedTuple):
    """A device file that a process has open, by the name that the process opened it by.

    It is the file of the GPU with this ``minor`` (0 in /dev/nvidia0), or the capability file of one of its GIs, or of
    a CI in that.
    """

    pid: int
    name: str
    path: str
    minor: int
    gi_id: t.Optional[int] = None
    ci_id: t.Optional[int] = None
    uid: t.Optional[int] = None
    owner: Owner = Owner()
    cooperative: bool = False


class Survey(t.NamedTuple):
    """What was found, and why there may be more, in phrases. With an empty ``unseen`` there was nothing else to see."""

    opened: tuple[OpenDevice, ...]
    unseen: tuple[str, ...] = ()


# --- open device files ---------------------------------------------------------------------------------------------


def scan(watch: t.Optional[Watch] = None, root: str = "/") -> tuple[OpenDevice, ...]:
    """The device files of GPUs and instances that processes have open; ``root`` is where /proc is."""
    return survey(watch, root).opened


def survey(watch: t.Optional[Watch] = None, root: str = "/") -> Survey:
    """As scan(), and what could not be seen, so that "nobody" is only said where it is known.

    Raises OSError where there is no /proc.
    """
    proc = os.path.join(root, "proc")
    devices = _Devices(root)
    mounts = _Mounts()
    opened: list[OpenDevice] = []
    refused = 0
    pids = sorted(int(name) for name in os.listdir(proc) if name.isdigit())
    for pid in pids:
        if watch:
            watch.begin(f"read /proc of process {pid}")
        try:
            with _Folder(os.path.join(proc, str(pid))) as process:
                opened += _opened_by(pid, process, devices, mounts)
        except (FileNotFoundError, ProcessLookupError):
            pass  # it ended meanwhile, and has nothing open any more
        except OSError:
            refused += 1
    if watch:
        watch.idle()
    unseen = []
    if refused:
        who = "1 process" if refused == 1 else f"{refused} processes"
        unseen.append(f"the open files of {who} cannot be read" + ("" if os.geteuid() == 0 else " without root"))
    if 1 not in pids:
        unseen.append("/proc does not show all processes")
    if _in_a_container(proc):
        unseen.append("this runs in a container or nested node, from where processes outside of it cannot be seen")
    if devices.unmapped:
        holding = ", ".join(map(str, sorted(devices.unmapped)))
        unseen.append(
            f"/proc/driver/nvidia-caps/mig-minors cannot be read, so it is not known which instance process {holding}"
            " has open"
        )
    return Survey(tuple(opened), tuple(unseen))


def _in_a_container(proc: str) -> bool:
    try:
        return os.readlink(os.path.join(proc, "self", "ns", "pid")) != _INITIAL_PID_NAMESPACE
    except OSError:
        return False


def _opened_by(pid: int, process: _Folder, devices: _Devices, mounts: _Mounts) -> list[OpenDevice]:
    files = _open_files(process, mounts)
    places = {(path, place) for path, status in files if (place := devices.place_of(pid, path, status)) is not None}
    if not places:
        return []
    who = _who(process)
    return [
        OpenDevice(pid, who.name, path, minor, gi_id, ci_id, who.uid, who.owner, who.cooperative)
        for path, (minor, gi_id, ci_id) in sorted(places, key=str)
    ]


def _open_files(process: _Folder, mounts: _Mounts) -> list[tuple[str, t.Optional[os.stat_result]]]:
    """Name and status of what may be a device among the open files of a process."""
    with process.folder("fd") as folder:
        numbers = folder.names()
        files = [_open_file(process, folder, number, mounts) for number in numbers]
    if not numbers:
        # The first thread of a process can end before the others, and then shows nothing of what they have open.
        for thread in process.folder_names("task"):
            with process.folder(f"task/{thread}") as task, task.folder("fd") as folder:
                files += [_open_file(task, folder, number, mounts) for number in folder.names()]
    return [file for file in files if file is not None]


def _open_file(
    process: _Folder, folder: _Folder, number: str, mounts: _Mounts
) -> t.Optional[tuple[str, t.Optional[os.stat_result]]]:
    try:
        path = folder.link(number)
        # What is no file of a file system is socket:[…], pipe:[…] or the like.
        if not path.startswith("/"):
            return None
        status = folder.status(number) if mounts.may_hold_devices(process, number) else None
    except FileNotFoundError:
        return None  # closed meanwhile
    return printable(path.removesuffix(" (deleted)"))[:_LONGEST_PATH], status


class _Folder:
    """A folder of /proc that is kept open: what is read in it belongs to one process, also when that ends meanwhile."""

    def __init__(self, path: str, inside: t.Optional[int] = None) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=inside)

    def __enter__(self) -> _Folder:
        return self

    def __exit__(self, *exception: object) -> None:
        os.close(self._fd)

    def folder(self, name: str) -> _Folder:
        return _Folder(name, self._fd)

    def names(self) -> list[str]:
        return os.listdir(self._fd)

    def folder_names(self, name: str) -> list[str]:
        """The names in a folder in this one; none where it is not there."""
        try:
            with self.folder(name) as folder:
                return folder.names()
        except FileNotFoundError:
            return []

    def link(self, name: str) -> str:
        return os.readlink(name, dir_fd=self._fd)

    def status(self, name: str) -> t.Optional[os.stat_result]:
        """What a name refers to; None where it cannot be told."""
        try:
            return os.stat(name, dir_fd=self._fd)
        except OSError:
            return None

    def read(self, name: str) -> str:
        """The text of a file in it."""
        fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._fd)
        with open(fd, "rb") as file:
            return file.read().decode("utf-8", "replace")

    def read_if_there(self, name: str) -> str:
        try:
            return self.read(name)
        except OSError:
            return ""


class _Mounts:
    """The file system types of all mounts, by the kernel's numbers of mounts, which are unique over all namespaces."""

    def __init__(self) -> None:
        self._types: dict[str, str] = {}
        self._asked: t.Optional[_Folder] = None

    def may_hold_devices(self, process: _Folder, number: str) -> bool:
        """Whether an open file of a process is on a file system on which a device file can be."""
        mount = re.search(r"^mnt_id:\s*(\d+)$", process.read_if_there(f"fdinfo/{number}"), re.MULTILINE)
        if mount is None:
            return False
        # Memory that is shared as a file is on a mount of the kernel's own, which is in nobody's list.
        if mount[1] not in self._types and self._asked is not process:
            self._read(process)
        return self._types.get(mount[1]) in _WITH_DEVICES

    def _read(self, process: _Folder) -> None:
        self._asked = process
        for line in process.read_if_there("mountinfo").split("\n"):
            mount, _separator, rest = line.partition(" - ")
            self._types[mount.partition(" ")[0]] = rest.partition(" ")[0]


class _Devices:
    """Which GPU or instance a device file belongs to, on the node below ``root``."""

    def __init__(self, root: str) -> None:
        self._root = os.path.realpath(root)
        majors = _character_majors(os.path.join(root, "proc", "devices"))
        self._gpu_majors = {_NVIDIA_MAJOR, *majors.get("nvidia", ()), *majors.get("nvidia-frontend", ())}
        self._capability_majors = majors.get("nvidia-caps", set())
        self._capabilities = _capabilities(os.path.join(root, "proc", "driver", "nvidia-caps", "mig-minors"))
        folders = {*_DEVICE_FOLDERS, *(os.path.join(os.path.realpath(root), each[1:]) for each in _DEVICE_FOLDERS)}
        places = "|".join(map(re.escape, sorted(folders)))
        self._name = re.compile(rf"(?:{places})/(?:nvidia(?P<gpu>\d+)|nvidia-caps/nvidia-cap(?P<cap>\d+))")
        self.unmapped: set[int] = set()

    def place_of(self, pid: int, path: str, status: t.Optional[os.stat_result]) -> t.Optional[_Place]:
        """What a process has open with this file; None when it is neither of a GPU nor of an instance."""
        if status is not None and stat.S_ISCHR(status.st_mode):
            major, minor = os.major(status.st_rdev), os.minor(status.st_rdev)
            if major in self._gpu_majors:
                return _gpu(minor)
            if major in self._capability_majors:
                return self._capability(pid, minor)
        name = self._name.fullmatch(path)
        if name is None or not self._may_be_ours(path, status):
            return None
        return _gpu(int(name["gpu"])) if name["gpu"] else self._capability(pid, int(name["cap"]))

    def _may_be_ours(self, path: str, status: t.Optional[os.stat_result]) -> bool:
        """Whether a file of this name is the one of this node: in another mount namespace it may be any file."""
        if status is None or status.st_nlink == 0:
            return True  # it cannot be compared any more, and whoever has a device open must not be overlooked
        try:
            here = path if path.startswith(self._root) else os.path.join(self._root, path[1:])
            return os.path.samestat(status, os.stat(here))
        except OSError:
            return False

    def _capability(self, pid: int, minor: int) -> t.Optional[_Place]:
        if not self._capabilities:
            self.unmapped.add(pid)
        return self._capabilities.get(minor)


def _gpu(minor: int) -> t.Optional[_Place]:
    return (minor, None, None) if minor <= _LAST_GPU_MINOR else None


def _character_majors(path: str) -> dict[str, set[int]]:
    """Major numbers of character devices by the names of their drivers, from /proc/devices."""
    majors: dict[str, set[int]] = {}
    characters, _heading, _blocks = _text_of(path).partition("Block devices:")
    for line in characters.splitlines():
        number, _space, name = line.strip().partition(" ")
        if number.isdigit():
            majors.setdefault(name.strip(), set()).add(int(number))
    return majors


def _capabilities(path: str) -> dict[int, _Place]:
    """What each capability file is for, by its minor number: the driver's table of ``gpu0/gi7/ci0/access 67``.

    The files for configuring and for monitoring all instances are in it too. They keep nobody's instance.
    """
    found: dict[int, _Place] = {}
    pattern = r"^gpu(\d+)/gi(\d+)(?:/ci(\d+))?/access (\d+)$"
    for gpu, gi_id, ci_id, minor in re.findall(pattern, _text_of(path), re.MULTILINE):
        found[int(minor)] = (int(gpu), int(gi_id), int(ci_id) if ci_id else None)
    return found


def capability_minors(root: str = "/") -> dict[_Place, int]:
    """The minor number of each capability file: by minor of the GPU, id of the GI, id of the CI or None."""
    table = _capabilities(os.path.join(root, "proc", "driver", "nvidia-caps", "mig-minors"))
    return {place: minor for minor, place in table.items()}


def capability_majors(root: str = "/") -> set[int]:
    """The major number of capability files, as the kernel has it now; empty where it names none."""
    return _character_majors(os.path.join(root, "proc", "devices")).get("nvidia-caps", set())


def _text_of(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


# --- whose a process is --------------------------------------------------------------------------------------------


class _Who(t.NamedTuple):
    name: str = ""
    uid: t.Optional[int] = None
    owner: Owner = Owner()
    cooperative: bool = False


def _who(process: _Folder) -> _Who:
    """Name, user and owner of a process. Raises OSError when it has ended."""
    name = printable(process.read("comm").rstrip("\n"))
    belongs_to = owner(process.read_if_there("cgroup"))
    uid = re.search(r"^Uid:\s*(\d+)", process.read_if_there("status"), re.MULTILINE)
    number = int(uid[1]) if uid else None
    return _Who(name, number, belongs_to, _is_cooperative(name, number, belongs_to))


def _is_cooperative(name: str, uid: t.Optional[int], belongs_to: Owner) -> bool:
    """Whether it hands over to the driver: the daemons that do, by their unit, or by name if root started them.

    In a container they are out of reach of who asks them, and hold a GPU like anybody else.
    """
    if belongs_to.container or belongs_to.pod:
        return False
    return belongs_to.unit in _COOPERATIVE_UNITS or (name in _COOPERATIVE_NAMES and uid == 0)


def _who_has(pid: int, watch: t.Optional[Watch], root: str) -> _Who:
    """Whose the process of this number is; nothing is known of one that has ended or is not seen from here."""
    if watch:
        watch.begin(f"read /proc of process {pid}")
    try:
        with _Folder(os.path.join(root, "proc", str(pid))) as process:
            return _who(process)
    except OSError:
        return _Who()
    finally:
        if watch:
            watch.idle()


# --- a node with its holders ---------------------------------------------------------------------------------------


def attach(
    node: Node,
    opened: t.Iterable[OpenDevice],
    reservations: t.Iterable[Source] = (),
    root: str = "/",
    watch: t.Optional[Watch] = None,
    tolerant: bool = False,
) -> Node:
    """The node with those who have its GPUs and instances open, and those to whom they are promised.

    A process that has the capability file of an instance open is in the processes of that CI; one that has the file of
    the GI only is in all CIs of it. Who has the GPU itself open, or something that is gone, is in the processes of the
    GPU. Processes that NVML listed are told whom they belong to. Raises WishError when a person reserves what is not
    there, unless ``tolerant``: the change that goes on may have taken it already. A kubelet goes on listing devices of
    pods that have lost them, and these are ``gone``.
    """
    everything = tuple(opened)
    known = {each.pid: _Who(each.name, each.uid, each.owner, each.cooperative) for each in everything}

    def who(pid: int) -> _Who:
        if pid not in known:
            known[pid] = _who_has(pid, watch, root)
        return known[pid]

    gpus = []
    for gpu in node.gpus:
        # Where the driver does not say its number, whatever is open may be this GPU.
        of_this = [each for each in everything if gpu.minor in (None, each.minor)]
        gpus.append(_with_processes(gpu, of_this, who))
    node = node._replace(gpus=tuple(gpus))
    gone = []
    for source in reservations:
        for device, reservation in source(node):
            reserved = _with_reservation(node, device, reservation)
            if reserved is None and reservation.source != _GIVEN:
                gone.append(f"{printable(device)} of {reservation.holder}")
            elif reserved is None and not tolerant:
                raise WishError(
                    f"{printable(device)} is reserved for {reservation.holder}, but this node has no such device; look"
                    " at what mig_info shows, and correct the reservation"
                )
            node = reserved or node
    return node._replace(gone=tuple(dict.fromkeys(gone)))


def _with_processes(gpu: Gpu, opened: t.Sequence[OpenDevice], who: t.Callable[[int], _Who]) -> Gpu:
    """The GPU with what each process has open put where it belongs."""
    files_of: dict[int, list[OpenDevice]] = {}
    for each in opened:
        files_of.setdefault(each.pid, []).append(each)
    at: dict[t.Optional[tuple[int, int]], dict[int, tuple[str, ...]]] = {}
    for pid, files in files_of.items():
        places: list[t.Optional[tuple[int, int]]] = [*_places(gpu, files)]
        for place in places or [None]:
            paths = tuple(file.path for file in files if place is None or _concerns(file, place))
            at.setdefault(place, {})[pid] = paths
    instances = tuple(
        instance._replace(
            compute=tuple(
                compute._replace(
                    processes=_merged(compute.processes, at.get(_ids(instance, compute), {}), who),
                )
                for compute in instance.compute
            )
        )
        for instance in gpu.instances
    )
    return gpu._replace(instances=instances, processes=_merged(gpu.processes, at.get(None, {}), who))


def _ids(instance: GpuInstance, compute: ComputeInstance) -> tuple[int, int]:
    return t.cast("tuple[int, int]", (instance.id, compute.id))


def _places(gpu: Gpu, files: t.Sequence[OpenDevice]) -> list[tuple[int, int]]:
    """The CIs (GI id, CI id) that a process has open with these files.

    The file of a GI without any of its CIs counts for all of them. A file of an instance that is not there any more
    counts for none.
    """
    found = []
    for instance in gpu.instances:
        named = {file.ci_id for file in files if file.gi_id == instance.id}
        here = [compute for compute in instance.compute if compute.id in named or named == {None}]
        found += [_ids(instance, compute) for compute in here]
    return found


def _concerns(file: OpenDevice, place: _Instance) -> bool:
    """Whether a file is one of those by which a CI is used: the GPU's, its GI's and its own."""
    gi_id, ci_id = place
    return file.gi_id in (None, gi_id) and file.ci_id in (None, ci_id)


def _merged(
    processes: t.Sequence[Process], opened: t.Mapping[int, tuple[str, ...]], who: t.Callable[[int], _Who]
) -> tuple[Process, ...]:
    """Those that were known, with what was found out about them, and after them the others; each once."""
    found = {process.pid: process for process in processes}
    for pid, paths in opened.items():
        known = found.get(pid) or Process(pid, who(pid).name, kind="open", listed=False)
        found[pid] = known._replace(opened=paths)
    return tuple(
        process._replace(owner=who(pid).owner, cooperative=who(pid).cooperative) for pid, process in found.items()
    )


# --- an inventory --------------------------------------------------------------------------------------------------


class Holding(t.NamedTuple):
    """One process at one place: a CI, or with None for both ids the GPU.

    ``gpu`` is NVML's index and None where NVML does not answer; ``minor`` is the number in /dev/nvidia0. ``user`` is
    a name, a number where the node's own /etc/passwd has none, or empty.
    """

    gpu: t.Optional[int]
    minor: t.Optional[int]
    gi_id: t.Optional[int]
    ci_id: t.Optional[int]
    process: Process
    user: str = ""


class Inventory(t.NamedTuple):
    """Everybody who holds something, and as in Survey what could not be seen."""

    holdings: tuple[Holding, ...]
    unseen: tuple[str, ...] = ()


def inventory(node: t.Optional[Node], watch: t.Optional[Watch] = None, root: str = "/") -> Inventory:
    """Everybody who holds something of this node, or without a reading of NVML all that the open files tell."""
    found = survey(watch, root)
    holdings = _by_files(found.opened) if node is None else holdings_of(attach(node, found.opened, (), root, watch))
    uids = {each.pid: each.uid for each in found.opened}
    for each in holdings:
        if each.process.pid not in uids:
            uids[each.process.pid] = _who_has(each.process.pid, watch, root).uid
    names = _user_names(root)
    named = [each._replace(user=_user(uids[each.process.pid], names)) for each in holdings]
    return Inventory(tuple(named), found.unseen)


def holdings_of(node: Node) -> tuple[Holding, ...]:
    """The processes of a node one by one: of each GPU those that hold it as a whole, then those in its CIs."""
    found = []
    for gpu in node.gpus:
        found += [Holding(gpu.index, gpu.minor, None, None, process) for process in gpu.processes]
        for instance in gpu.instances:
            for compute in instance.compute:
                found += [
                    Holding(gpu.index, gpu.minor, instance.id, compute.id, process) for process in compute.processes
                ]
    return tuple(found)


def _by_files(opened: t.Sequence[OpenDevice]) -> tuple[Holding, ...]:
    """What can be told by open files alone: of each process the innermost places that they are for."""
    files_of: dict[tuple[int, int], list[OpenDevice]] = {}
    for each in opened:
        files_of.setdefault((each.minor, each.pid), []).append(each)
    found = []
    for (minor, _pid), files in sorted(files_of.items()):
        who = files[0]
        places = dict.fromkeys((file.gi_id, file.ci_id) for file in files)
        for gi_id, ci_id in places:
            if any(_is_in(other, (gi_id, ci_id)) for other in places):
                continue
            paths = tuple(file.path for file in files if _concerns(file, (gi_id, ci_id)))
            process = Process(who.pid, who.name, None, "open", who.owner, False, paths, who.cooperative)
            found.append(Holding(None, minor, gi_id, ci_id, process))
    return tuple(found)


def _is_in(place: _Instance, other: _Instance) -> bool:
    """Whether a place (GI id, CI id) of a GPU is inside of another one."""
    return place != other and other in ((None, None), (place[0], None))


def _user(uid: t.Optional[int], names: t.Mapping[int, str]) -> str:
    return "" if uid is None else names.get(uid, str(uid))


def _user_names(root: str) -> dict[int, str]:
    """Names of the node's own users. A directory service is not asked: where it does not answer, nor would this."""
    fields = [line.split(":") for line in _text_of(os.path.join(root, "etc", "passwd")).split("\n")]
    return {int(each[2]): printable(each[0]) for each in reversed(fields) if len(each) > 2 and each[2].isdigit()}


# --- reservations --------------------------------------------------------------------------------------------------


def reservations_of(entries: t.Iterable[t.Mapping[str, t.Any]]) -> tuple[Source, ...]:
    """Sources for what the caller knows to be reserved: ``{"device": "MIG-…", "holder": "Slurm job 123"}`` each.

    Where nobody has typed that, ``source`` says who does: ``kubelet``. Raises WishError when an entry is not of this
    form.
    """
    promised = []
    for number, entry in enumerate(entries):
        texts = (
            [entry.get(key, default) for key, default in (("device", None), ("holder", None), ("source", _GIVEN))]
            if isinstance(entry, t.Mapping)
            else [None]
        )
        if not all(isinstance(text, str) and text.strip() for text in texts):
            raise WishError(
                f"reservations[{number}] must say a device (MIG-… or GPU-…) and its holder, both as text; correct it"
            )
        device, holder, source = (printable(str(text).strip()) for text in texts)
        promised.append((device, Reservation(holder, source)))
    return (lambda _node: promised,) if promised else ()


def gone_in_words(node: Node) -> str:
    """A sentence about promises of devices that are not there any more; nothing where there are none."""
    if not node.gone:
        return ""
    return (
        f"Reserved and passed over, since this node has no such device any more: {_some(node.gone)}. A pod or container"
        " that still runs has lost its device, and has to be deleted."
    )


def _with_reservation(node: Node, device: str, reservation: Reservation) -> t.Optional[Node]:
    """The node with one promise more; None when it has no such device."""
    if reservation.source != _GIVEN and not _UUID.match(device):
        # Nobody knows which GPU this is, such as one that the kubelet has by another name. So it may be each of them.
        everywhere = reservation._replace(source=f"{reservation.source}; on which GPU {device} is, is not known")
        return node._replace(
            gpus=tuple(gpu._replace(reservations=(*gpu.reservations, everywhere)) for gpu in node.gpus)
        )
    for position, gpu in enumerate(node.gpus):
        reserved = _reserve(gpu, device.lower(), reservation)
        if reserved is not None:
            return node._replace(gpus=(*node.gpus[:position], reserved, *node.gpus[position + 1 :]))
    return None


def _reserve(gpu: Gpu, device: str, reservation: Reservation) -> t.Optional[Gpu]:
    """The GPU with the promise, if this device (in lower case) is the GPU or one of its MIG devices."""
    if device == gpu.uuid.lower() and device:
        return gpu._replace(reservations=(*gpu.reservations, reservation))
    found = False
    instances = []
    for instance in gpu.instances:
        compute = []
        for each in instance.compute:
            legacy = f"mig-{gpu.uuid}/{instance.id}/{each.id}".lower()
            if device in ((each.uuid or "").lower(), legacy):
                found = True
                each = each._replace(reservations=(*each.reservations, reservation))
            compute.append(each)
        instances.append(instance._replace(compute=tuple(compute)))
    return gpu._replace(instances=tuple(instances)) if found else None


# --- in words ------------------------------------------------------------------------------------------------------


def words(process: Process) -> str:
    """A process in a sentence: ``process 4711 (python) of Slurm job 123``."""
    name = f" ({process.name})" if process.name else ""
    parts = [f"process {process.pid}{name}", *_owner_in_words(process.owner)]
    said = " ".join(parts[:2]) + "".join(f", {part}" for part in parts[2:])
    if process.listed:
        return said
    return f"{said}, which has {_some(process.opened)} open and is in no list of the driver"


def does(process: Process, what: str) -> str:
    """A sentence about a process: ``process 4711 (python) of Slurm job 123 uses the GPU``."""
    return f"{words(process)}{'' if process.listed else ','} {what}"


def process_in_words(pid: int, root: str = "/") -> str:
    """The same of a process of which only the number is known."""
    who = _who_has(pid, None, root)
    return words(Process(pid, who.name, owner=who.owner))


def _owner_in_words(belongs_to: Owner) -> list[str]:
    """Phrases that follow a process, from what matters most."""
    said = []
    if belongs_to.job:
        said.append(f"of Slurm job {belongs_to.job}")
    if belongs_to.pod:
        said.append(f"of pod {belongs_to.pod}")
    if belongs_to.container:
        runtime = f" ({belongs_to.runtime})" if belongs_to.runtime else ""
        container = f"container {_short(belongs_to.container)}{runtime}"
        said.append(container if belongs_to.pod else f"in {container}")
    if said:
        return said
    if belongs_to.session:
        return [f"of login session {belongs_to.session}"]
    manager, _slash, unit = belongs_to.unit.rpartition("/")
    if manager:
        return [f"of {unit} of {manager}"]
    return [f"of {unit}"] if unit else []


def _short(container: str) -> str:
    """An id as the tools of the runtimes show and take it."""
    return container[:12] if re.fullmatch("[0-9a-f]{64}", container) else container


def _some(things: t.Sequence[str]) -> str:
    """``a, b and 3 more``."""
    shown = list(things[:_MOST_NAMED])
    if len(things) > len(shown):
        shown.append(f"{len(things) - len(shown)} more")
    return f"{', '.join(shown[:-1])} and {shown[-1]}" if len(shown) > 1 else "".join(shown) or "a device file"


def why_in_use(node: Node, gpu: int, gi_id: t.Optional[int] = None, unseen: t.Sequence[str] = ()) -> str:
    """Who holds a GI (or with None the GPU), after the driver said IN_USE: one or two sentences.

    ``node`` is what attach() returned, ``gpu`` an index, ``unseen`` what survey() could not see.
    """
    board = next(each for each in node.gpus if each.index == gpu)
    inside = {
        process.pid: process
        for instance in board.instances
        if gi_id in (None, instance.id)
        for compute in instance.compute
        for process in compute.processes
    }
    around = {process.pid: process for process in board.processes}
    if gi_id is None:
        inside.update(around)
    if inside:
        return f"It is held by {_some([words(each) for each in inside.values()])}; stop what is running there."
    if around:
        return (
            "No process is seen in the instance itself, but the GPU is open, and monitoring is known to keep instances"
            f" that way: {_some([words(each) for each in around.values()])}; stop it."
        )
    if unseen:
        return f"Nobody is found who holds it, but not everything could be seen: {'; '.join(unseen)}."
    return (
        "Nobody is found who holds it: no process is in a list of the driver, and none has a device file of it open."
        " If running it again does not help, look into 'dmesg'."
    )
