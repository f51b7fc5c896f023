# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Makes a layout as mig-parted does: the mode, then all instances anew. A program, so that it is a driver's client.

Its argument is JSON: for each GPU the profiles of its instances, or null for MIG off.
"""

from __future__ import annotations

import ctypes
import json
import sys
import typing as t

import pynvml as nvml

PROFILES = {"1g.5gb": 0, "2g.10gb": 1, "3g.20gb": 2, "4g.20gb": 3, "7g.40gb": 4}


def make(gpu: t.Any, profiles: list[str] | None) -> None:
    if nvml.nvmlDeviceGetMigMode(gpu)[0]:
        for profile in PROFILES.values():
            destroy_all(gpu, profile)
    nvml.nvmlDeviceSetMigMode(gpu, int(profiles is not None))
    # The large ones first, so that they find room.
    for name in sorted(profiles or [], reverse=True):
        instance = nvml.nvmlDeviceCreateGpuInstance(gpu, id_of(gpu, PROFILES[name]))
        nvml.nvmlGpuInstanceCreateComputeInstance(instance, id_of_whole(instance, PROFILES[name]))


def destroy_all(gpu: t.Any, profile: int) -> None:
    for instance in listed(nvml.nvmlDeviceGetGpuInstances, gpu, id_of(gpu, profile), nvml.c_nvmlGpuInstance_t):
        whole = id_of_whole(instance, profile)
        kind = nvml.c_nvmlComputeInstance_t
        for compute in listed(nvml.nvmlGpuInstanceGetComputeInstances, instance, whole, kind):
            nvml.nvmlComputeInstanceDestroy(compute)
        nvml.nvmlGpuInstanceDestroy(instance)


def listed(ask: t.Callable[..., t.Any], of: t.Any, profile_id: int, kind: t.Any) -> list[t.Any]:
    found, count = (kind * 7)(), ctypes.c_uint(7)
    ask(of, profile_id, found, ctypes.byref(count))
    return list(found[: count.value])


def id_of(gpu: t.Any, profile: int) -> int:
    return int(nvml.nvmlDeviceGetGpuInstanceProfileInfo(gpu, profile).id)


def id_of_whole(instance: t.Any, profile: int) -> int:
    return int(nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, profile, 0).id)


if __name__ == "__main__":
    nvml.nvmlInit()
    for index, profiles in enumerate(json.loads(sys.argv[1])):
        make(nvml.nvmlDeviceGetHandleByIndex(index), profiles)
    nvml.nvmlShutdown()
