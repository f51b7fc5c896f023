# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the tests ask of NVML, in short words. Everything here runs in a process that sees a simulated node."""

from __future__ import annotations

import contextlib
import ctypes
import typing as t

import pynvml as nv

NAMES = {
    value: name[len("NVML_ERROR_") :]
    for name, value in vars(nv).items()
    if name.startswith("NVML_ERROR_") and isinstance(value, int)
}
MOST_PLACES = 64


def gpu(index: int = 0) -> t.Any:
    """Handle of a GPU, in a session that is open from now on."""
    nv.nvmlInit()
    return nv.nvmlDeviceGetHandleByIndex(index)


def mig_gpu(index: int = 0) -> t.Any:
    """Handle of a GPU whose MIG mode is on."""
    handle = gpu(index)
    nv.nvmlDeviceSetMigMode(handle, 1)
    return handle


def turn_on(index: int = 0) -> None:
    """Switch a GPU's MIG mode on."""
    mig_gpu(index)


def make(index: int, profile_id: int, at: t.Optional[tuple[int, int]] = None) -> None:
    """Create a GPU instance and keep no handle of it."""
    create(mig_gpu(index), profile_id, at)


def code(function: t.Callable[..., t.Any], *args: t.Any, **kwargs: t.Any) -> str:
    """Name of the result of a call: ``SUCCESS``, ``IN_USE`` ..."""
    try:
        function(*args, **kwargs)
    except nv.NVMLError as error:
        return NAMES[error.value]
    return "SUCCESS"


def raw(name: str, *args: t.Any) -> int:
    """The number that a function of the library returns, for functions and arguments that pynvml does not offer."""
    return int(getattr(ctypes.CDLL("libnvidia-ml.so.1"), name)(*args))


def profile(handle: t.Any, name: str) -> t.Any:
    """GPU instance profile by name: ``1g.5gb+me`` or the beginning of one up to the memory, ``1g``."""
    for found in profiles(handle):
        text = found.name.replace("MIG ", "")
        if name in (text, text.split(".")[0]):
            return found
    raise AssertionError(f"no profile {name}")


def profiles(handle: t.Any) -> list[t.Any]:
    """All GPU instance profiles."""
    return _walk(lambda enum: nv.nvmlDeviceGetGpuInstanceProfileInfo(handle, enum))


def _walk(ask: t.Callable[[int], t.Any]) -> list[t.Any]:
    """What is answered for every enum that there is, walking them as clients do."""
    found = []
    for enum in range(256):
        try:
            found.append(ask(enum))
        except nv.NVMLError as error:
            if error.value == nv.NVML_ERROR_INVALID_ARGUMENT:
                return found
            if error.value != nv.NVML_ERROR_NOT_SUPPORTED:
                raise
    raise AssertionError("the walk over profiles does not end")


def placements(handle: t.Any, profile_id: int) -> list[tuple[int, int]]:
    """Possible placements of a GPU instance profile."""
    array = (nv.c_nvmlGpuInstancePlacement_t * MOST_PLACES)()
    count = ctypes.c_uint()
    nv.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile_id, array, ctypes.byref(count))
    return [(array[i].start, array[i].size) for i in range(count.value)]


def create(handle: t.Any, profile_id: int, at: t.Optional[tuple[int, int]] = None) -> t.Any:
    """Create a GPU instance, at a place when one is given."""
    if at is None:
        return nv.nvmlDeviceCreateGpuInstance(handle, profile_id)
    place = nv.c_nvmlGpuInstancePlacement_t(*at)
    return nv.nvmlDeviceCreateGpuInstanceWithPlacement(handle, profile_id, ctypes.byref(place))


def place(gi: t.Any) -> tuple[int, int, int]:
    """Id, start and size of a GPU instance."""
    info = nv.nvmlGpuInstanceGetInfo(gi)
    return info.id, info.placement.start, info.placement.size


def gpu_instances(handle: t.Any) -> dict[int, tuple[int, int, int]]:
    """All GPU instances: id -> profile id, start, size."""
    found = {}
    for each in profiles(handle):
        array = (nv.c_nvmlGpuInstance_t * MOST_PLACES)()
        count = ctypes.c_uint()
        nv.nvmlDeviceGetGpuInstances(handle, each.id, array, ctypes.byref(count))
        for gi in array[: count.value]:
            info = nv.nvmlGpuInstanceGetInfo(gi)
            found[info.id] = (info.profileId, info.placement.start, info.placement.size)
    return found


def compute_profiles(gi: t.Any) -> list[t.Any]:
    """All compute instance profiles of a GPU instance."""
    return _walk(lambda enum: nv.nvmlGpuInstanceGetComputeInstanceProfileInfo(gi, enum, 0))


def compute_placements(gi: t.Any, profile_id: int) -> list[tuple[int, int]]:
    """Possible placements of a compute instance profile."""
    array = (nv.c_nvmlComputeInstancePlacement_t * MOST_PLACES)()
    count = ctypes.c_uint()
    nv.nvmlGpuInstanceGetComputeInstancePossiblePlacements(gi, profile_id, array, ctypes.byref(count))
    return [(array[i].start, array[i].size) for i in range(count.value)]


def create_compute(gi: t.Any, profile_id: int, at: t.Optional[tuple[int, int]] = None) -> t.Any:
    """Create a compute instance, at a place when one is given."""
    if at is None:
        return nv.nvmlGpuInstanceCreateComputeInstance(gi, profile_id)
    place = nv.c_nvmlComputeInstancePlacement_t(*at)
    return nv.nvmlGpuInstanceCreateComputeInstanceWithPlacement(gi, profile_id, ctypes.byref(place))


def compute_place(ci: t.Any) -> tuple[int, int, int]:
    """Id, start and size of a compute instance."""
    info = nv.nvmlComputeInstanceGetInfo(ci)
    return info.id, info.placement.start, info.placement.size


def create_device(handle: t.Any, name: str, at: t.Optional[tuple[int, int]] = None) -> tuple[t.Any, t.Any]:
    """A GPU instance and the compute instance that fills it."""
    gi = create(handle, profile(handle, name).id, at)
    widest = max(compute_profiles(gi), key=lambda each: (each.sliceCount, each.multiprocessorCount))
    return gi, create_compute(gi, widest.id)


def mig_devices(handle: t.Any) -> dict[int, t.Any]:
    """MIG device handles by index, skipping holes as clients do."""
    found = {}
    for index in range(nv.nvmlDeviceGetMaxMigDeviceCount(handle)):
        with contextlib.suppress(nv.NVMLError_NotFound):
            found[index] = nv.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
    return found


def mig_uuids(index: int = 0) -> list[str]:
    """UUIDs of a GPU's MIG devices in a session of its own, in index order."""
    devices = mig_devices(gpu(index))
    return [nv.nvmlDeviceGetUUID(device) for device in devices.values()]


def mode(index: int = 0) -> list[int]:
    """Current and pending MIG mode."""
    return list(nv.nvmlDeviceGetMigMode(gpu(index)))
