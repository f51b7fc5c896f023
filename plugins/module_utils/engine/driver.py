# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""NVML: reads a node, performs single operations, and gives every failure its name and its remedy.

This file is private to the collection gpufleet.mig and may change at any time. It is the only one that imports
pynvml (nvidia-ml-py), and it does so when a session is made, so that everything else runs without it.

Codes are compared, never texts: pynvml has its own words for some codes and asks the library for others.
Instances are read from the GPU instances downwards, since a GPU instance without a compute instance has no MIG device
and is invisible to everything that walks those.
"""

from __future__ import annotations

import ctypes
import functools
import glob
import importlib
import math
import os
import pwd
import re
import stat
import sys
import types
import typing as t
from importlib.machinery import PathFinder

from .bounded import Watch
from .model import (
    ComputeInstance,
    ComputeProfile,
    DriverError,
    Engines,
    Gpu,
    GpuInstance,
    Node,
    Placement,
    Problem,
    Process,
    Profile,
)
from .profiles import counted, printable

OLDEST_DRIVER = 525

# Where a driver that runs in a container has its root.
DRIVER_ROOT = "/run/nvidia/driver"
_LIBRARY = "libnvidia-ml.so.1"
_MODULE_IN_LIST = re.compile(r"(?:\S*/)?nvidia\.ko(?:\.\w+)?:")
_LIBRARY_FOLDERS = ("usr/lib/*-linux-gnu", "usr/lib64", "usr/lib", "lib64", "lib/*-linux-gnu")

# NVML documents neither how many profiles nor how many placements a driver may know. Its enums end at 18 and its
# longest list has 12 entries today; the walk also ends at the first enum that the driver refuses as unknown.
_ENUM_BOUND = 64
_LIST_BOUND = 256
_GPU_INSTANCE_IDS = range(15)
_COMPUTE_INSTANCE_IDS = range(8)
_NOT_IN_AN_INSTANCE = 0xFFFFFFFF

_NVIDIA_VENDOR = "0x10de"
_VIRTUALIZATION = {0: "none", 1: "passthrough", 2: "vgpu", 3: "host-vgpu", 4: "host-vsga"}

# What NVML's enums say about a profile besides its slices (nvml.h); enums that came later say it in the name only.
_GPU_INSTANCE_ATTRIBUTES: dict[int, tuple[str, ...]] = {
    7: ("+me",),
    8: ("+me",),
    10: ("+gfx",),
    11: ("+gfx",),
    12: ("+gfx",),
    13: ("-me",),
    14: ("-me",),
    15: ("+me.all",),
    16: ("+me.all",),
    17: ("+gfx",),
}
_COMPUTE_INSTANCE_VARIANTS = {7: "rev1", 8: "nvl"}

# Optional facts: an old driver or another kind of board does not have them, and nothing depends on them.
_NOT_OFFERED = ("NOT_SUPPORTED", "FUNCTION_NOT_FOUND")
# After these there is nobody left to ask about this GPU.
_GONE = ("GPU_IS_LOST", "UNINITIALIZED", "DRIVER_NOT_LOADED")

_REMEDIES = {
    "BINDING_MISSING": "install the Python package nvidia-ml-py on this node, or let mig_config bring it along",
    "DRIVER_TOO_OLD": f"drivers from {OLDEST_DRIVER} on are supported: update the NVIDIA driver",
    "LIBRARY_NOT_FOUND": "libnvidia-ml.so.1 was not found: install the NVIDIA driver, or add its library folder to the"
    " dynamic linker's search path",
    "DRIVER_NOT_LOADED": "load the kernel module with 'modprobe nvidia', and look into 'dmesg' when that fails",
    "LIB_RM_VERSION_MISMATCH": "the loaded kernel module and libnvidia-ml are of different versions, as after a driver"
    " update: reboot, or unload the module and load it again",
    "NO_PERMISSION": "run as root, which 'become: true' does; in a container this also needs CAP_SYS_ADMIN or"
    " /dev/nvidia-caps/nvidia-cap1",
    "GPU_IS_LOST": "the GPU has fallen off the bus: look for Xid 79 in 'dmesg', then power-cycle the node",
    "FUNCTION_NOT_FOUND": "this driver does not have the function: update the NVIDIA driver",
    "RESET_REQUIRED": "reset the GPU with 'nvidia-smi --gpu-reset', or reboot the node",
    "IN_USE": "stop what holds the GPU or the instance, and run again",
    "INSUFFICIENT_RESOURCES": "the place is taken by now: look at what mig_info shows, and run again",
    "NOT_SUPPORTED": "the GPU, or this driver in the GPU's present mode, does not offer it",
    "INVALID_ARGUMENT": "the driver does not know this value: read the node again with mig_info",
    "NOT_FOUND": "it is gone: read the node again with mig_info",
    "NO_ANSWER": "look into 'dmesg' for messages of NVRM, and reboot the node",
    "TIMEOUT": "the driver did not answer in time: look into 'dmesg'",
}
_OTHER_REMEDY = "look into 'dmesg' for messages of NVRM"

# A function that the oldest usable nvidia-ml-py has and the unrelated package "pynvml" of old had not.
_NEWEST_NEEDED = "nvmlDeviceGetMPSComputeRunningProcesses_v3"

_PROFILE_NAME = re.compile(r"^(?P<slices>\d+)g\.(?P<gb>\d+)gb(?P<attributes>(?:[+-][a-z][a-z.]*)*)$")


def is_built_for(kernel: str, root: str = "/") -> t.Optional[bool]:
    """Whether a kernel, by its release, has the driver's module among its own; None where that cannot be told."""
    listed = os.path.join(root, "lib/modules", kernel, "modules.dep")
    try:
        with open(listed, encoding="utf-8", errors="replace") as file:
            return any(map(_MODULE_IN_LIST.match, file))
    except OSError:
        return None


def load_binding(*places: str, trusted: t.Sequence[str] = ()) -> types.ModuleType:
    """Import pynvml and return it, looking into ``trusted``, then ``places``, then wherever Python looks anyway.

    Both are folders or zip files. ``trusted`` came with this task, from whoever may run it: Ansible unpacks it under
    the login user even where the task became root. ``places`` have been lying on the node since, so root does not
    import from one that others can write to, unless a trusted one makes it needless.

    Raises DriverError with ``error="BINDING_MISSING"`` when there is no pynvml, when it is damaged or too old to know
    MIG, or when it must not be used. Nothing of it stays then, so that a later call finds a better one.
    """
    kept = [place for place in places if os.path.exists(place)]
    refusals = {place: reason for place in kept if (reason := why_not_safe(place)) is not None}
    if refusals and not trusted:
        raise DriverError(f"{next(iter(refusals.values()))}.", call="import pynvml", error="BINDING_MISSING")
    wanted = [*trusted, *(place for place in kept if place not in refusals)]
    added = [place for place in dict.fromkeys(wanted) if place not in sys.path]
    sys.path[:0] = added
    was_there = "pynvml" in sys.modules
    try:
        return _import_binding()
    except DriverError:
        for place in added:
            sys.path.remove(place)
            # What Python remembers of a folder hides a file that is put there within the same second.
            sys.path_importer_cache.pop(place, None)
        if not was_there:
            sys.modules.pop("pynvml", None)
        raise


def why_not_safe(place: str) -> t.Optional[str]:
    """Why root must not import from this folder or zip file, without a full stop; None where it may.

    Whoever can write to the folder, to what is in it, or to the folder around it decides what is imported. For any
    other user than root nothing is gained by that, so there it is never refused.
    """
    if os.geteuid() != 0:
        return None
    real = os.path.realpath(place)
    inside = [os.path.join(folder, name) for folder, folders, files in os.walk(real) for name in (*folders, *files)]
    for path in (os.path.dirname(real), real, *inside):
        try:
            status = os.stat(path)
        except OSError:
            continue  # a link to nowhere, or gone meanwhile: nothing to import
        # In a sticky folder, such as /tmp, others can add but neither remove nor rename.
        others_write = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not status.st_mode & stat.S_ISVTX
        if status.st_uid != 0 or others_write:
            ours = path in (real, *inside)
            return (
                f"The NVML binding in {place} is not used, since this runs as root and others can write to {path}"
                f" (owner {_user_name(status.st_uid)}, mode {stat.S_IMODE(status.st_mode):04o}):"
                f" {f'remove {place}' if ours else f'give {path} to root alone'}; mig_config installs its own"
            )
    return None


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _import_binding() -> types.ModuleType:
    try:
        binding = importlib.import_module("pynvml")
    except (Exception, SystemExit) as error:  # pylint: disable=broad-except  # a damaged file can raise anything
        reason = shortened(f"{type(error).__name__}: {error}")
        spec = PathFinder.find_spec("pynvml")
        if spec is None:
            raise _binding_missing(f"Python cannot import pynvml ({reason})") from None
        raise _binding_missing(f"{spec.origin} cannot be imported ({reason}); if it is damaged, remove it") from None
    if not hasattr(binding, _NEWEST_NEEDED):
        file = getattr(binding, "__file__", "pynvml")
        raise _binding_missing(f"{file} is too old or damaged, since it has no {_NEWEST_NEEDED}")
    return binding


def _binding_missing(what: str) -> DriverError:
    return DriverError(f"{what}: {_REMEDIES['BINDING_MISSING']}.", call="import pynvml", error="BINDING_MISSING")


def remedy(error: str) -> str:
    """The next action after NVML's error of this name, without a full stop."""
    return _REMEDIES.get(error, _OTHER_REMEDY)


def describe(gpu: Gpu) -> str:
    """A GPU in a sentence: ``GPU 0 (00000000:07:00.0, GPU-…)``."""
    facts = ", ".join(fact for fact in (gpu.pci_bus_id, gpu.uuid) if fact)
    return f"GPU {gpu.index} ({facts})" if facts else f"GPU {gpu.index}"


def why_not_writable(driver_version: str, gpu: Gpu) -> t.Optional[str]:
    """The sentence that refuses a change of this GPU because of what it is, or None when it may be changed."""
    if is_too_old(driver_version):
        return f"{describe(gpu)} has driver {driver_version}, and {remedy('DRIVER_TOO_OLD')}."
    if gpu.virtualization in ("vgpu", "host-vgpu", "host-vsga"):
        side = "a vGPU inside a virtual machine" if gpu.virtualization == "vgpu" else "in use by a vGPU host driver"
        return (
            f"{describe(gpu)} is {side}: MIG of vGPU hosts and guests is not supported, change it where they are run."
        )
    return None


def is_too_old(driver_version: str) -> bool:
    """Whether this is a driver from before the oldest supported one; a version that is no number is not."""
    major = driver_version.partition(".")[0]
    return major.isdigit() and int(major) < OLDEST_DRIVER


def mode_change_needs_reboot(gpu: Gpu) -> bool:
    """Whether only a reboot of the machine can make a pending MIG mode of this GPU current.

    Ampere resets itself to change its mode, which a hypervisor does not let it do; later GPUs need no reset for it, and
    forget in a reboot what was pending.
    """
    return gpu.architecture == "ampere" and (gpu.virtualization == "passthrough" or gpu.resettable is False)


def is_resettable(pci_bus_id: str, root: str = "/") -> t.Optional[bool]:
    """Whether the kernel has a reset for the GPU at this place, as it shows in ``/sys``; None where that is not known.

    Without one every other way to reset it fails too.
    """
    domain, _colon, place = pci_bus_id.lower().partition(":")
    if not re.fullmatch("[0-9a-f]+", domain):
        return None
    device = os.path.join(root, "sys/bus/pci/devices", f"{int(domain, 16):04x}:{place}")
    try:
        with open(os.path.join(device, "vendor"), encoding="ascii", errors="replace") as file:
            vendor = file.read(16).strip()
    except OSError:
        return None
    return os.path.exists(os.path.join(device, "reset")) if vendor == _NVIDIA_VENDOR else None


class MemoryHealth(t.NamedTuple):
    """The memory of a GPU: its ECC mode, and rows that are to be remapped or could not be. None is "cannot tell"."""

    ecc_current: t.Optional[bool] = None
    ecc_pending: t.Optional[bool] = None
    remap_pending: t.Optional[bool] = None
    remap_failed: t.Optional[bool] = None
    problems: tuple[Problem, ...] = ()


class Session:
    """One NVML session, for a ``with`` statement. Keep it short: NVML caches devices for as long as it is open.

    Every method raises DriverError; those that read a GPU put what they could not read into ``Gpu.problems`` instead.
    ``watch`` is told before each GPU that is read and each write, and ends the process when that takes too long.
    """

    def __init__(self, binding: t.Optional[types.ModuleType] = None, watch: t.Optional[Watch] = None) -> None:
        self._binding = binding
        self._watch = watch
        self._nvml: t.Any = None
        self._error_names: dict[int, str] = {}
        self._architectures: dict[int, str] = {}
        self._handles: dict[int, t.Any] = {}
        self._identities: dict[int, tuple[str, str]] = {}
        self._compute_tables: dict[t.Hashable, tuple[ComputeProfile, ...]] = {}
        self._names_profiles = True
        self._says_mig_device = True
        self.driver_version = ""

    def __enter__(self) -> Session:
        self._nvml = self._binding or load_binding()
        self._error_names = _names_of(self._nvml, "NVML_ERROR_")
        self._architectures = _names_of(self._nvml, "NVML_DEVICE_ARCH_")
        self._begin("open NVML")
        self._open()
        try:
            self.driver_version = _printable(self._call("nvmlSystemGetDriverVersion"))
        except DriverError:
            self._close()
            raise
        return self

    def _open(self) -> None:
        """Open NVML; where the system has no library of it, that of a driver that runs in a container."""
        try:
            self._call("nvmlInit")
        except DriverError as error:
            if error.error != "LIBRARY_NOT_FOUND" or not _load_library_of_a_container():
                raise
            self._call("nvmlInit")

    def __exit__(self, *exception: object) -> None:
        self._close()

    def _close(self) -> None:
        self._begin("close NVML")
        try:
            self._call("nvmlShutdown")
        except DriverError:
            # There is nothing to save in a session; what matters was said by the call before.
            pass
        if self._watch:
            self._watch.idle()

    def _begin(self, what: str) -> None:
        if self._watch:
            self._watch.begin(what)

    def check(self) -> None:
        """Raise Interrupted if somebody asked this process to stop."""
        if self._watch:
            self._watch.check()

    # --- reading ---------------------------------------------------------------------------------------------------

    def read_node(self, placements: bool = True) -> Node:
        """All GPUs in NVML's order; one that does not answer is in the list with its problems.

        ``placements=False`` spares one call for each profile, for readers that neither plan nor count.
        """
        count = self._call("nvmlDeviceGetCount")
        return Node(
            gpus=tuple(self.read_gpu(index, placements) for index in range(count)),
            driver_version=self.driver_version,
            nvml_version=_printable(self._optional("nvmlSystemGetNVMLVersion") or ""),
            cuda_version=_cuda_version(self._optional("nvmlSystemGetCudaDriverVersion")),
        )

    def read_gpu(self, index: int, placements: bool = True) -> Gpu:
        """One GPU. Never raises: whatever could not be read is in ``problems``."""
        self._begin(f"read GPU {index}")
        return _Reading(self, index, placements).gpu()

    def read_mode(self, index: int) -> tuple[bool, bool]:
        """MIG mode of a GPU: current and pending."""
        self._begin(f"read the MIG mode of GPU {index}")
        current, pending = self._call("nvmlDeviceGetMigMode", self._handle(index), gpu=index)
        return current == 1, pending == 1

    def read_memory_health(self, index: int) -> MemoryHealth:
        """What waits for a reset in the memory of a GPU. Never raises: what could not be read is in ``problems``."""
        self._begin(f"read the health of the memory of GPU {index}")
        ecc = rows = (None,) * 4
        problems = []
        try:
            handle = self._handle(index)
            ecc = self._if_offered("nvmlDeviceGetEccMode", handle, index) or ecc
            # The driver does not offer it while there are instances.
            rows = self._if_offered("nvmlDeviceGetRemappedRows", handle, index) or rows
        except DriverError as error:
            problems.append(Problem(str(error.details["call"]), error.error, remedy(error.error)))
        return MemoryHealth(_yes(ecc[0]), _yes(ecc[1]), _yes(rows[2]), _yes(rows[3]), tuple(problems))

    # --- writing ---------------------------------------------------------------------------------------------------

    def set_mig_mode(self, index: int, enabled: bool) -> str:
        """Ask for a MIG mode; returns NVML's name of what became of it (``SUCCESS``, ``IN_USE``, …).

        Success of the call only says that the wish was stored: read the mode back. The GPU may have been reset
        meanwhile, so its handle is fetched again, by UUID, since indices may have moved.
        """
        self._begin(f"turn MIG of GPU {index} {'on' if enabled else 'off'}")
        handle = self._handle(index)
        try:
            activation = self._call("nvmlDeviceSetMigMode", handle, 1 if enabled else 0, gpu=index)
        finally:
            self._handles.pop(index, None)
        return "SUCCESS" if activation == 0 else self._error_names.get(activation, f"ERROR_{activation}")

    def create_gpu_instance(self, index: int, profile_id: int, placement: Placement) -> int:
        """Create a GI at ``placement`` (memory slices) and return its id."""
        self._begin(f"create a GPU instance at {placement.start}:{placement.size} of GPU {index}")
        place = self._nvml.c_nvmlGpuInstancePlacement_t(placement.start, placement.size)
        # A pointer, never the struct: pynvml passes its argument on as it is, and NVML would read at a wild address.
        handle = self._call(
            "nvmlDeviceCreateGpuInstanceWithPlacement",
            self._handle(index),
            profile_id,
            ctypes.byref(place),
            gpu=index,
        )
        return int(self._call("nvmlGpuInstanceGetInfo", handle, gpu=index).id)

    def destroy_gpu_instance(self, index: int, gi_id: int) -> None:
        """Destroy a GI, which must not have CIs any more."""
        self._begin(f"destroy GPU instance {gi_id} of GPU {index}")
        self._call("nvmlGpuInstanceDestroy", self._gpu_instance(index, gi_id), gpu=index)

    def create_compute_instance(
        self,
        index: int,
        gi_id: int,
        slices: int,
        placement: t.Optional[Placement],
        variant: str = "",
        profile_id: t.Optional[int] = None,
    ) -> int:
        """Create a CI of ``slices`` in a GI and return its id; ``placement`` is in the GI's compute slices.

        The profile is the driver's own for this GI, and ``profile_id`` chooses among those of as many slices where it
        is known. A CI that fills its GI has one place only, which is not always as long as its slices say, so the
        driver's word goes before ``placement`` there.
        """
        self._begin(f"create a compute instance in GPU instance {gi_id} of GPU {index}")
        gi = self._gpu_instance(index, gi_id)
        gi_info = self._call("nvmlGpuInstanceGetInfo", gi, gpu=index)
        table = self._compute_table(index, gi, (index, int(gi_info.profileId)))
        exactly = (each for each in table if (each.id, each.slices) == (profile_id, slices))
        profile = next(exactly, None) or _compute_profile(table, slices, variant)
        if profile is None:
            offered = ", ".join(str(p.slices) for p in table) or "none"
            raise self._failure(
                "nvmlGpuInstanceGetComputeInstanceProfileInfo",
                "NOT_SUPPORTED",
                index,
                f"GPU instance {gi_id} offers no compute instance of {counted(slices, 'slice')} (it offers: {offered})",
            )
        place = placement
        if slices == _largest(table):
            place = profile.placements[0] if profile.placements else None
        if place is None:
            ci = self._call("nvmlGpuInstanceCreateComputeInstance", gi, profile.id, gpu=index)
        else:
            pointer = ctypes.byref(self._nvml.c_nvmlComputeInstancePlacement_t(place.start, place.size))
            ci = self._call("nvmlGpuInstanceCreateComputeInstanceWithPlacement", gi, profile.id, pointer, gpu=index)
        return int(self._call("nvmlComputeInstanceGetInfo_v2", ci, gpu=index).id)

    def destroy_compute_instance(self, index: int, gi_id: int, ci_id: int) -> None:
        """Destroy a CI, which is a MIG device; IN_USE while anything has it open, listed or not."""
        self._begin(f"destroy compute instance {ci_id} in GPU instance {gi_id} of GPU {index}")
        gi = self._gpu_instance(index, gi_id)
        ci = self._call("nvmlGpuInstanceGetComputeInstanceById", gi, ci_id, gpu=index)
        self._call("nvmlComputeInstanceDestroy", ci, gpu=index)

    # --- shared by both --------------------------------------------------------------------------------------------

    def _call(self, function: str, *arguments: t.Any, gpu: t.Optional[int] = None) -> t.Any:
        """Call NVML; every failure is a DriverError that says which function, error and GPU."""
        try:
            return getattr(self._nvml, function)(*arguments)
        except self._nvml.NVMLError as error:
            name = self._error_names.get(error.value, f"ERROR_{error.value}")
        raise self._failure(function, name, gpu)

    def _if_offered(self, function: str, handle: t.Any, index: int) -> t.Any:
        """NVML's answer about a GPU, or None where this driver has none for this board."""
        try:
            return self._call(function, handle, gpu=index)
        except DriverError as error:
            if error.error in _NOT_OFFERED:
                return None
            raise

    def _optional(self, function: str) -> t.Any:
        try:
            return self._call(function)
        except DriverError:
            return None

    def _failure(self, function: str, error: str, index: t.Optional[int], what: str = "") -> DriverError:
        details: dict[str, t.Any] = {"call": function, "error": error}
        where = ""
        if index is not None:
            pci_bus_id, uuid = self._identities.get(index, ("", ""))
            details.update(gpu=index, pci_bus_id=pci_bus_id, uuid=uuid)
            where = f" on {describe(Gpu(index, uuid=uuid, pci_bus_id=pci_bus_id))}"
        what = f" ({what})" if what else ""
        return DriverError(f"{function}{where} failed with {error}{what}: {remedy(error)}.", **details)

    def _handle(self, index: int) -> t.Any:
        """NVML's handle of a GPU: by UUID once that is known, since a reset or a lost GPU can move the indices."""
        if index not in self._handles:
            uuid = self._identities.get(index, ("", ""))[1]
            if uuid:
                self._handles[index] = self._call("nvmlDeviceGetHandleByUUID", uuid, gpu=index)
            else:
                self._handles[index] = self._call("nvmlDeviceGetHandleByIndex", index, gpu=index)
        return self._handles[index]

    def _gpu_instance(self, index: int, gi_id: int) -> t.Any:
        return self._call("nvmlDeviceGetGpuInstanceById", self._handle(index), gi_id, gpu=index)

    def _profile_info(self, index: int, enum: int) -> t.Any:
        """A GI profile: v2 struct with its name, or v1 struct from a driver that has no more."""
        handle = self._handle(index)
        if self._names_profiles:
            try:
                return self._call("nvmlDeviceGetGpuInstanceProfileInfoV", handle, enum, gpu=index)
            except DriverError as error:
                # INVALID_ARGUMENT for the first enum cannot mean the enum: it means the version of the struct.
                refused = error.error == "INVALID_ARGUMENT" and enum == 0
                if not refused and error.error not in ("FUNCTION_NOT_FOUND", "ARGUMENT_VERSION_MISMATCH"):
                    raise
                self._names_profiles = False
        return self._call("nvmlDeviceGetGpuInstanceProfileInfo", handle, enum, 1, gpu=index)

    def _compute_table(self, index: int, gi: t.Any, key: t.Hashable) -> tuple[ComputeProfile, ...]:
        """The CI profiles of one kind of GI, asked once for each ``key`` in this session."""
        if key not in self._compute_tables:
            function = "nvmlGpuInstanceGetComputeInstanceProfileInfo"
            answers = _walk(lambda enum: self._call(function, gi, enum, 0, 1, gpu=index))
            self._compute_tables[key] = tuple(
                ComputeProfile(
                    enum=enum,
                    id=int(info.id),
                    slices=int(info.sliceCount),
                    multiprocessors=int(info.multiprocessorCount),
                    variant=_COMPUTE_INSTANCE_VARIANTS.get(enum, ""),
                    placements=self._compute_placements(index, gi, int(info.id)),
                )
                for enum, info in answers
            )
        return self._compute_tables[key]

    def _compute_placements(self, index: int, gi: t.Any, profile_id: int) -> tuple[Placement, ...]:
        function = "nvmlGpuInstanceGetComputeInstancePossiblePlacements"
        try:
            return self._placements(function, self._nvml.c_nvmlComputeInstancePlacement_t, gi, profile_id, index)
        except DriverError as error:
            # Listing them came with R525 and needs privilege; without the list the planner knows the rule.
            if error.error in (*_NOT_OFFERED, "NO_PERMISSION"):
                return ()
            raise

    def _placements(
        self, function: str, struct: t.Any, handle: t.Any, profile_id: int, index: int
    ) -> tuple[Placement, ...]:
        """A list of placements; the array is far longer than any board's list, so one call is enough."""
        array, count = (struct * _LIST_BOUND)(), ctypes.c_uint(_LIST_BOUND)
        self._call(function, handle, profile_id, array, ctypes.byref(count), gpu=index)
        return tuple(Placement(place.start, place.size) for place in array[: count.value])


class _Gone(Exception):
    """The GPU does not answer any more: what was read so far is all there is."""


class _Reading:
    """Reads one GPU and notes what it could not read."""

    def __init__(self, session: Session, index: int, placements: bool) -> None:
        self._session = session
        self._index = index
        self._with_placements = placements
        self._facts: dict[str, t.Any] = {"profiles": None}
        self._problems: dict[tuple[str, str], Problem] = {}
        self._walked: t.Optional[dict[tuple[int, int], tuple[str, int]]] = None

    def gpu(self) -> Gpu:
        """Everything about this GPU that the driver says."""
        if is_too_old(self._session.driver_version):
            self._note("nvmlSystemGetDriverVersion", "DRIVER_TOO_OLD")
        try:
            self._read()
        except _Gone:
            pass
        return Gpu(self._index, problems=tuple(self._problems.values()), **self._facts)

    def _note(self, call: str, error: str) -> None:
        self._problems[call, error] = Problem(call, error, remedy(error))

    def _ask(self, function: str, *arguments: t.Any, otherwise: t.Any = None, quiet: tuple[str, ...] = ()) -> t.Any:
        """NVML's answer, or ``otherwise`` after a failure, which is noted unless it is one of ``quiet``."""
        return self._try(lambda: self._session._call(function, *arguments, gpu=self._index), otherwise, quiet)

    def _try(self, question: t.Callable[[], t.Any], otherwise: t.Any = None, quiet: tuple[str, ...] = ()) -> t.Any:
        try:
            return question()
        except DriverError as error:
            if error.error in quiet:
                return otherwise
            self._note(str(error.details["call"]), error.error)
            if error.error in _GONE:
                raise _Gone from None
            return otherwise

    def _read(self) -> None:
        handle = self._try(lambda: self._session._handle(self._index))
        if handle is None:
            return
        facts = self._facts
        facts.update(self._identity(handle))
        facts.update(self._board(handle))
        facts.update(self._mode(handle))
        if not facts["mig_capable"]:
            facts["profiles"] = () if facts["mig_capable"] is False else None
            facts["processes"] = self._processes(handle).pop(None, ())
            return
        facts["profiles"] = profiles = self._profiles()
        processes = self._processes(handle)
        if facts["mode_current"]:
            instances, profiles = self._instances(handle, profiles or (), processes)
            facts["instances"] = instances
            facts["profiles"] = profiles or None
        # Whoever could not be found in an instance that we see still holds the GPU.
        facts["processes"] = tuple(process for group in processes.values() for process in group)

    def _identity(self, handle: t.Any) -> dict[str, t.Any]:
        uuid = _printable(self._ask("nvmlDeviceGetUUID", handle, otherwise=""))
        pci = self._ask("nvmlDeviceGetPciInfo", handle)
        identity: dict[str, t.Any] = {"uuid": uuid}
        if pci is not None:
            identity.update(
                pci_bus_id=_printable(pci.busId).upper(),
                pci_device_id=int(pci.pciDeviceId),
                pci_subsystem_id=int(pci.pciSubSystemId),
            )
            identity["resettable"] = is_resettable(identity["pci_bus_id"])
        self._session._identities[self._index] = (identity.get("pci_bus_id", ""), uuid)
        return identity

    def _board(self, handle: t.Any) -> dict[str, t.Any]:
        memory = self._ask("nvmlDeviceGetMemoryInfo", handle)
        capability = self._ask("nvmlDeviceGetCudaComputeCapability", handle, quiet=_NOT_OFFERED)
        architecture = self._ask("nvmlDeviceGetArchitecture", handle, quiet=_NOT_OFFERED)
        persistence = self._ask("nvmlDeviceGetPersistenceMode", handle, quiet=_NOT_OFFERED)
        virtualization = self._ask("nvmlDeviceGetVirtualizationMode", handle, quiet=_NOT_OFFERED)
        return {
            "name": _printable(self._ask("nvmlDeviceGetName", handle, otherwise="")),
            "memory_mib": None if memory is None else int(memory.total) >> 20,
            "compute_capability": "" if capability is None else f"{capability[0]}.{capability[1]}",
            "architecture": self._session._architectures.get(architecture, "").lower(),
            "minor": self._ask("nvmlDeviceGetMinorNumber", handle, quiet=_NOT_OFFERED),
            "persistence": None if persistence is None else persistence == 1,
            "virtualization": _VIRTUALIZATION.get(virtualization, ""),
        }

    def _mode(self, handle: t.Any) -> dict[str, t.Any]:
        modes = self._ask("nvmlDeviceGetMigMode", handle, otherwise=(), quiet=("NOT_SUPPORTED",))
        if modes:
            return {"mig_capable": True, "mode_current": modes[0] == 1, "mode_pending": modes[1] == 1}
        asked_in_vain = any(call == "nvmlDeviceGetMigMode" for call, error in self._problems)
        return {"mig_capable": None if asked_in_vain else False}

    def _profiles(self) -> t.Optional[tuple[Profile, ...]]:
        """GI profiles; None when the driver lists none, as R535 and older do while MIG is off."""
        session, index = self._session, self._index
        answers = self._try(lambda: list(_walk(lambda enum: session._profile_info(index, enum))), otherwise=[])
        return tuple(self._profile(enum, info) for enum, info in answers) or None

    def _profile(self, enum: int, info: t.Any) -> Profile:
        slices, memory_mib = int(info.sliceCount), int(info.memorySizeMB)
        known = _GPU_INSTANCE_ATTRIBUTES.get(enum, ())
        name = _printable(getattr(info, "name", b"")).replace("MIG ", "", 1)
        if not name:
            gb = _advertised_gb(memory_mib, self._facts["memory_mib"])
            name = f"{slices}g.{gb}gb{''.join(known)}"
        spelled = _PROFILE_NAME.match(name)
        attributes = tuple(re.findall(r"[+-][a-z.]+", spelled["attributes"])) if spelled else ()
        return Profile(
            enum=enum,
            id=int(info.id),
            name=name,
            slices=slices,
            gb=int(spelled["gb"]) if spelled else _advertised_gb(memory_mib, self._facts["memory_mib"]),
            memory_mib=memory_mib,
            attributes=attributes or known,
            reported_count=int(info.instanceCount),
            engines=Engines(
                copy=int(info.copyEngineCount),
                decoder=int(info.decoderCount),
                encoder=int(info.encoderCount),
                jpeg=int(info.jpegCount),
                ofa=int(info.ofaCount),
            ),
            placements=self._gpu_placements(int(info.id)) if self._with_placements else (),
        )

    def _gpu_placements(self, profile_id: int) -> tuple[Placement, ...]:
        session, index = self._session, self._index
        function = "nvmlDeviceGetGpuInstancePossiblePlacements"
        struct = session._nvml.c_nvmlGpuInstancePlacement_t
        placements = self._try(
            lambda: session._placements(function, struct, session._handle(index), profile_id, index), otherwise=()
        )
        return t.cast("tuple[Placement, ...]", placements)

    def _instances(
        self, handle: t.Any, profiles: tuple[Profile, ...], processes: dict[t.Any, tuple[Process, ...]]
    ) -> tuple[tuple[GpuInstance, ...], tuple[Profile, ...]]:
        """GIs with their CIs, by place; and the profiles, now with the CI profiles of those that have a GI."""
        by_id = {profile.id: profile for profile in profiles}
        found = []
        for gi, info in self._gpu_instance_handles(handle, profiles):
            profile = by_id.get(int(info.profileId))
            if profile is None:
                self._note("nvmlDeviceGetGpuInstanceProfileInfo", "NOT_FOUND")
                continue
            if profile.compute is None:
                profile = profile._replace(compute=self._compute_profiles(gi, profile))
                by_id[profile.id] = profile
            compute = self._compute_instances(gi, int(info.id), profile, processes)
            placement = Placement(int(info.placement.start), int(info.placement.size))
            found.append(GpuInstance(int(info.id), profile, placement, compute))
        return tuple(sorted(found, key=lambda instance: instance.placement)), tuple(by_id.values())

    def _gpu_instance_handles(self, handle: t.Any, profiles: tuple[Profile, ...]) -> list[tuple[t.Any, t.Any]]:
        """Handle and NVML's info of every GI of this GPU that this process may see."""
        found: list[tuple[t.Any, t.Any]] = []
        taken: set[int] = set()
        for profile in profiles:
            if profile.placements and all(taken.intersection(_slices(place)) for place in profile.placements):
                continue  # GIs never overlap: where every place is taken there is nothing to list.
            handles = self._try(functools.partial(self._listed, handle, profile.id))
            if handles is None:
                # Listing needs privilege, an instance that this process may use does not.
                handles = self._by_id(handle)
                return [(gi, info) for gi in handles if (info := self._ask("nvmlGpuInstanceGetInfo", gi)) is not None]
            for gi in handles:
                info = self._ask("nvmlGpuInstanceGetInfo", gi)
                if info is not None:
                    found.append((gi, info))
                    taken.update(_slices(info.placement))
        return found

    def _listed(self, handle: t.Any, profile_id: int) -> list[t.Any]:
        array, count = (self._session._nvml.c_nvmlGpuInstance_t * _LIST_BOUND)(), ctypes.c_uint(_LIST_BOUND)
        self._session._call(
            "nvmlDeviceGetGpuInstances", handle, profile_id, array, ctypes.byref(count), gpu=self._index
        )
        return list(array[: count.value])

    def _by_id(self, handle: t.Any) -> list[t.Any]:
        asked = (
            self._ask("nvmlDeviceGetGpuInstanceById", handle, gi_id, quiet=("NOT_FOUND",))
            for gi_id in _GPU_INSTANCE_IDS
        )
        return [gi for gi in asked if gi is not None]

    def _compute_profiles(self, gi: t.Any, profile: Profile) -> t.Optional[tuple[ComputeProfile, ...]]:
        """CI profiles of a GI. Boards of one kind whose GI profile is equal in every figure are asked once."""
        board = (self._facts.get("pci_device_id"), self._facts.get("pci_subsystem_id"))
        key = (*board, profile._replace(compute=None, placements=()))
        table = self._try(lambda: self._session._compute_table(self._index, gi, key))
        return t.cast("t.Optional[tuple[ComputeProfile, ...]]", table)

    def _compute_instances(
        self, gi: t.Any, gi_id: int, profile: Profile, processes: dict[t.Any, tuple[Process, ...]]
    ) -> tuple[ComputeInstance, ...]:
        """CIs of a GI by id. Ids are handed out from 0; the search ends once the GI is full."""
        found: list[ComputeInstance] = []
        covered = 0
        for ci_id in _COMPUTE_INSTANCE_IDS:
            if covered >= profile.slices:
                break
            ci = self._ask("nvmlGpuInstanceGetComputeInstanceById", gi, ci_id, quiet=("NOT_FOUND",))
            info = None if ci is None else self._ask("nvmlComputeInstanceGetInfo_v2", ci)
            if info is None:
                continue
            covered += int(info.placement.size)
            found.append(self._compute_instance(info, gi_id, profile, processes.pop((gi_id, ci_id), ())))
        # Processes that NVML places in the GI without naming a CI hold all of it.
        shared = processes.pop((gi_id, _NOT_IN_AN_INSTANCE), ()) if found else ()
        return tuple(ci._replace(processes=ci.processes + shared) for ci in found)

    def _compute_instance(
        self, info: t.Any, gi_id: int, profile: Profile, processes: tuple[Process, ...]
    ) -> ComputeInstance:
        kind = next((kind for kind in profile.compute or () if kind.id == int(info.profileId)), None)
        placement = Placement(int(info.placement.start), int(info.placement.size))
        slices = placement.size if kind is None else kind.slices
        fills = slices == profile.slices
        uuid, mig_index = self._mig_device(info.device, gi_id, int(info.id))
        return ComputeInstance(
            id=int(info.id),
            slices=slices,
            placement=placement,
            variant="" if fills or kind is None else kind.variant,
            profile_id=int(info.profileId),
            name=profile.name if fills else f"{slices}c.{profile.name}",
            uuid=uuid,
            mig_index=mig_index,
            processes=processes,
        )

    def _mig_device(self, device: t.Any, gi_id: int, ci_id: int) -> tuple[t.Optional[str], t.Optional[int]]:
        """UUID and index of the MIG device of a CI.

        The header says that a CI's ``device`` is the parent, real drivers hand out the MIG device: believe neither.
        """
        if self._session._says_mig_device and device:
            uuid = self._ask("nvmlDeviceGetUUID", device)
            if uuid is not None and _printable(uuid) != self._facts["uuid"]:
                return _printable(uuid), self._ask("nvmlDeviceGetIndex", device, quiet=_NOT_OFFERED)
        self._session._says_mig_device = False
        return self._mig_devices().get((gi_id, ci_id), (None, None))

    def _mig_devices(self) -> dict[tuple[int, int], tuple[str, int]]:
        """UUID and index by (GI id, CI id), from a walk over the MIG devices, once for this reading."""
        if self._walked is None:
            handle = self._session._handle(self._index)
            indices = range(self._ask("nvmlDeviceGetMaxMigDeviceCount", handle, otherwise=0))
            self._walked = dict(found for mig_index in indices for found in self._mig_device_at(handle, mig_index))
        return self._walked

    def _mig_device_at(self, handle: t.Any, mig_index: int) -> list[tuple[tuple[int, int], tuple[str, int]]]:
        """Place, UUID and index of one MIG device; nothing for a hole in the indices."""
        mig = self._ask(
            "nvmlDeviceGetMigDeviceHandleByIndex", handle, mig_index, quiet=("NOT_FOUND", "INVALID_ARGUMENT")
        )
        if mig is None:
            return []
        gi_id, ci_id = self._ask("nvmlDeviceGetGpuInstanceId", mig), self._ask("nvmlDeviceGetComputeInstanceId", mig)
        uuid = _printable(self._ask("nvmlDeviceGetUUID", mig, otherwise=""))
        return [((gi_id, ci_id), (uuid, mig_index))]

    def _processes(self, handle: t.Any) -> dict[t.Any, tuple[Process, ...]]:
        """Processes by (GI id, CI id), or by None where they hold the GPU as a whole; a process is listed once."""
        found: dict[t.Any, dict[int, Process]] = {}
        for kind, function in (
            ("compute", "nvmlDeviceGetComputeRunningProcesses_v3"),
            ("graphics", "nvmlDeviceGetGraphicsRunningProcesses_v3"),
            ("mps", "nvmlDeviceGetMPSComputeRunningProcesses_v3"),
        ):
            for entry in self._ask(function, handle, otherwise=(), quiet=_NOT_OFFERED):
                inside = entry.gpuInstanceId != _NOT_IN_AN_INSTANCE
                place = (entry.gpuInstanceId, entry.computeInstanceId) if inside else None
                used = None if entry.usedGpuMemory is None else entry.usedGpuMemory >> 20
                process = Process(entry.pid, process_name(entry.pid), used, kind)
                found.setdefault(place, {}).setdefault(entry.pid, process)
        return {place: tuple(group.values()) for place, group in found.items()}


def _load_library_of_a_container() -> bool:
    """Load NVML's library from below the driver's own root: whoever asks for it by name gets this one from then on."""
    for folder in _LIBRARY_FOLDERS:
        for path in sorted(glob.glob(os.path.join(DRIVER_ROOT, folder, _LIBRARY))):
            try:
                ctypes.CDLL(path)
                return True
            except OSError:
                continue  # for another architecture
    return False


def process_name(pid: int) -> str:
    """Name of a process as the kernel has it, safe to print; empty when it is not visible from here."""
    try:
        with open(f"/proc/{pid}/comm", "rb") as file:
            return _printable(file.read(64).rstrip(b"\n"))
    except OSError:
        return ""


def _walk(question: t.Callable[[int], t.Any]) -> t.Iterator[tuple[int, t.Any]]:
    """Enum and answer for every profile that is there, from enum 0 to the first that the driver does not know."""
    for enum in range(_ENUM_BOUND):
        try:
            yield enum, question(enum)
        except DriverError as error:
            if error.error == "INVALID_ARGUMENT":
                return
            if error.error != "NOT_SUPPORTED":
                raise


def _compute_profile(table: tuple[ComputeProfile, ...], slices: int, variant: str) -> t.Optional[ComputeProfile]:
    """The CI profile of ``slices`` and ``variant``.

    Where variant "" is asked of a GI that has no plain profile of these slices, as in the 1g with double memory of
    Hopper, the one with the most multiprocessors is meant; so it is where a CI fills its GI.
    """
    candidates = [profile for profile in table if profile.slices == slices]
    if slices == _largest(table) and not variant:
        return max(candidates, key=lambda profile: profile.multiprocessors, default=None)
    return next((profile for profile in candidates if profile.variant == variant), None)


def _largest(table: tuple[ComputeProfile, ...]) -> int:
    """Compute slices of the CI that fills the GI which offers these CI profiles."""
    return max((profile.slices for profile in table), default=0)


def _advertised_gb(memory_mib: int, total_mib: t.Optional[int]) -> int:
    """The number in a profile's name, where the driver gives no name: the share of the memory in eighths.

    From go-nvlib (pkg/nvlib/device/mig_profile.go); it differs from the memory of the profile itself.
    """
    if not total_mib:
        return math.ceil(memory_mib / 1024)
    eighths = math.ceil(8 * memory_mib / total_mib)
    return math.floor(eighths / 8 * math.ceil(total_mib / 1024) + 0.5)


def _yes(value: t.Optional[int]) -> t.Optional[bool]:
    return None if value is None else value == 1


def _cuda_version(number: t.Optional[int]) -> str:
    return "" if number is None else f"{number // 1000}.{number % 1000 // 10}"


def _slices(placement: t.Any) -> range:
    return range(placement.start, placement.start + placement.size)


def _names_of(binding: t.Any, prefix: str) -> dict[int, str]:
    """pynvml's constants of one kind: value to name without the prefix."""
    return {value: name[len(prefix) :] for name, value in vars(binding).items() if name.startswith(prefix)}


def shortened(text: str) -> str:
    """Text from outside as one line of bounded length."""
    text = _printable(text)
    return text if len(text) <= 200 else f"{text[:200]}..."


def _printable(text: t.Union[str, bytes]) -> str:
    """Text from outside as one line that can be shown: names of boards and processes are data."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", "replace")
    return printable(text)
