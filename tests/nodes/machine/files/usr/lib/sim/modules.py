# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""modprobe, rmmod and lsmod of this machine: NVIDIA's modules are simulated, others are left to kmod."""

from __future__ import annotations

import os
import sys
import typing as t

import driver
import simulated
import trees

KMOD = "/usr/bin/kmod"


def main(program: str, words: t.Sequence[str]) -> int:
    if program == "lsmod":
        return lsmod()
    options = [word for word in words if word.startswith("-")]
    modules = [word.replace("-", "_") for word in words if not word.startswith("-")]
    ours = [name for name in modules if name in trees.MODULES]
    if not ours:
        os.execv(KMOD, [program, *words])
    remove = program == "rmmod" or any(option in ("-r", "--remove") for option in options)
    try:
        for name in ours:
            remove_one(name, deep=program == "modprobe") if remove else add_one(name)
    except simulated.SimulationError as error:
        print(f"{program}: {'FATAL' if program == 'modprobe' else 'ERROR'}: {error}", file=sys.stderr)
        return 1
    return 0


def add_one(name: str) -> None:
    if name in ("nvidia", "nvidia_uvm"):
        driver.load()
    else:
        driver.load_drm()


def remove_one(name: str, deep: bool) -> None:
    """``deep``: modprobe also takes those below it that nobody uses then, down to the driver itself."""
    if not driver.is_loaded(name):
        raise simulated.SimulationError(f"Module {name} is not currently loaded")
    users = [user for user in trees.MODULES[name] if driver.is_loaded(user)]
    if users:
        raise simulated.SimulationError(f"Module {name} is in use by: {' '.join(users)}")
    if name == "nvidia_drm":
        driver.unload_drm()
        if deep:
            driver.remove_module("nvidia_modeset")
    elif name == "nvidia":
        driver.unload()
    else:
        driver.remove_module(name)


def lsmod() -> int:
    print("Module                  Size  Used by")
    for name in trees.MODULES:
        if driver.is_loaded(name):
            users = sorted(os.listdir(f"{driver.MODULE}/{name}/holders"))
            print(f"{name:<19} {1048576:>8}  {len(users)}{' ' + ','.join(users) if users else ''}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
