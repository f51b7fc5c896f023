# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A command-line tool that brings GPUs to a layout, for the benchmark: what a playbook that wraps one has to run.

    mig_tool.py assert -f CONFIG -c LABEL     status 1 where a GPU is not as the config says
    mig_tool.py apply -f CONFIG -c LABEL      clears every GPU that is not, and creates what is wanted

Only as much as the benchmark needs: MIG mode is on, and every entry of a config is for all GPUs.
"""

from __future__ import annotations

import argparse
import collections
import json
import pathlib
import sys
import typing as t

import pynvml as nvml


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("word", choices=["assert", "apply"])
    parser.add_argument("-f", dest="file", type=pathlib.Path, required=True)
    parser.add_argument("-c", dest="label", required=True)
    options = parser.parse_args()
    (entry,) = json.loads(options.file.read_text().partition("\n")[2])["mig-configs"][options.label]
    wanted = collections.Counter(entry["mig-devices"])
    nvml.nvmlInit()
    gpus = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    different = [gpu for gpu in gpus if collections.Counter(name for name, _each in instances(gpu)) != wanted]
    if options.word == "assert":
        return 1 if different else 0
    for gpu in different:
        bring_to(gpu, wanted)
    return 0


def profiles(gpu: t.Any) -> dict[str, int]:
    """Id by name, without those of special kinds."""
    found = {}
    for number in range(nvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        try:
            info = nvml.nvmlDeviceGetGpuInstanceProfileInfo(gpu, number, 2)
        except nvml.NVMLError:
            continue
        name = info.name.decode() if isinstance(info.name, bytes) else info.name
        found[name.removeprefix("MIG ")] = info.id
    return found


def instances(gpu: t.Any) -> list[tuple[str, t.Any]]:
    """GPU instances with the name of their profile."""
    return [(name, each) for name, number in profiles(gpu).items() for each in listed(gpu, number)]


def listed(gpu: t.Any, number: int) -> list[t.Any]:
    array = (nvml.c_nvmlGpuInstance_t * 8)()
    count = nvml.c_uint(0)
    nvml.nvmlDeviceGetGpuInstances(gpu, number, array, nvml.byref(count))
    return [array[at] for at in range(count.value)]


def computing(instance: t.Any) -> list[t.Any]:
    found = []
    for number in range(nvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        array = (nvml.c_nvmlComputeInstance_t * 8)()
        count = nvml.c_uint(0)
        try:
            info = nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, number, 0)
            nvml.nvmlGpuInstanceGetComputeInstances(instance, info.id, array, nvml.byref(count))
        except nvml.NVMLError:
            continue
        found += [array[at] for at in range(count.value)]
    return found


def bring_to(gpu: t.Any, wanted: t.Mapping[str, int]) -> None:
    for _name, instance in instances(gpu):
        for compute in computing(instance):
            nvml.nvmlComputeInstanceDestroy(compute)
        nvml.nvmlGpuInstanceDestroy(instance)
    ids = profiles(gpu)
    for name, count in wanted.items():
        for _each in range(count):
            instance = nvml.nvmlDeviceCreateGpuInstance(gpu, ids[name])
            # The compute instance that fills it has the number of slices of its name.
            slices = {1: 0, 2: 1, 3: 2, 4: 3, 7: 4}[int(name[0])]
            info = nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, slices, 0)
            nvml.nvmlGpuInstanceCreateComputeInstance(instance, info.id)


if __name__ == "__main__":
    sys.exit(main())
