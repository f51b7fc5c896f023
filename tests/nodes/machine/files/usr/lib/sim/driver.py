# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The hardware and the kernel of this machine, as far as they are simulated.

sim-driver hardware    at boot: what a computer with these GPUs shows before any driver is loaded
sim-driver boot        at boot: load the driver as driver.json says, sooner or later or not at all
sim-driver load        load the driver: modules nvidia and nvidia_uvm
sim-driver unload      unload all of its modules, unless something uses them
sim-driver reload      both, as an upgrade of the driver does; modules are loaded that were loaded before
sim-driver status      which modules are loaded, and who has devices of theirs open
"""

from __future__ import annotations

import ctypes
import glob
import os
import re
import stat
import sys
import time
import typing as t

import simulated
import trees

PCI = f"{simulated.RUN}/pci"
PROC_DRIVER = f"{simulated.RUN}/proc-driver"
MODULE = f"{simulated.RUN}/module"
MODULES = f"{simulated.RUN}/modules"
CLASS = f"{simulated.RUN}/class"
DEVICES = f"{simulated.RUN}/devices"
# The number that NVIDIA's capability files usually have; only said where this machine has no nvidia-modprobe.
CAPS_MAJOR = 241
MODPROBE = "/usr/bin/nvidia-modprobe"
RULES = ("/etc/udev/rules.d", "/run/udev/rules.d", "/usr/local/lib/udev/rules.d", "/usr/lib/udev/rules.d")
GPU_FILES = ("/dev/nvidia",)
DRM_FILES = ("/dev/dri/",)
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MNT_DETACH = 1, 32, 4096, 16384, 2
# Holders of this process are holders of the kernel: it ends with the machine.
KERNEL = 1


def main(words: t.Sequence[str]) -> int:
    commands = {
        "hardware": hardware,
        "boot": boot,
        "load": load,
        "unload": unload,
        "reload": reload,
        "status": status,
    }
    if len(words) != 1 or words[0] not in commands:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    try:
        commands[words[0]]()
    except simulated.SimulationError as error:
        print(f"sim-driver: {error}", file=sys.stderr)
        return 1
    return 0


# ---- mounts --------------------------------------------------------------------------------------------------------


def mount(source: str, target: str, flags: int = MS_BIND) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(source.encode(), target.encode(), None, flags, None):
        raise simulated.SimulationError(f"{source} cannot be mounted at {target}: {os.strerror(ctypes.get_errno())}")


def unmount(target: str) -> None:
    ctypes.CDLL(None).umount2(target.encode(), MNT_DETACH)


def is_mounted(target: str) -> bool:
    with open("/proc/self/mountinfo", encoding="utf-8") as file:
        return any(line.split()[4] == target for line in file)


def show(folder: str, target: str) -> None:
    """A folder of ours in place of one of the kernel's."""
    if is_mounted(target):
        return
    if not os.path.isdir(target):
        # The /sys of a container is read-only and has not all of it.
        mount("", "/sys", MS_REMOUNT | MS_BIND)
        os.makedirs(target, exist_ok=True)
        mount("", "/sys", MS_REMOUNT | MS_BIND | MS_RDONLY)
    mount(folder, target)


# ---- at boot -------------------------------------------------------------------------------------------------------


def hardware() -> None:
    """PCI devices are there without a driver, and so are the folders in which one will show itself."""
    settings = simulated.settings()
    node = simulated.node()
    trees.pci(PCI, node)
    trees.modules(MODULE)
    trees.empty(PROC_DRIVER)
    show(PCI, "/sys/bus/pci")
    show(MODULE, "/sys/module")
    show(PROC_DRIVER, "/proc/driver")
    trees.proc_modules(MODULES, MODULE)
    if os.path.exists("/proc/modules"):  # not where this kernel can load none
        mount(MODULES, "/proc/modules")
    if settings.get("nvidia_modprobe") is False:
        # Whoever needs a capability file has to make it, and to know its number for that.
        with open("/proc/devices", encoding="ascii") as file:
            numbers = file.read()
        trees.write(DEVICES, numbers.replace("\n\n", f"\n{CAPS_MAJOR} nvidia-caps\n\n", 1))
        mount(DEVICES, "/proc/devices")
        if os.path.exists(MODPROBE):
            os.unlink(MODPROBE)
    if node and node["fabric_manager"] != "none":
        simulated.event("fabric-manager off")  # until its daemon starts


def boot() -> None:
    settings = simulated.settings()
    if not settings.get("load", True) or simulated.node() is None:
        return
    if settings.get("background") and os.fork():
        return  # as when udev loads a module: nobody waits for it
    time.sleep(float(settings.get("delay", 0)))
    load()
    if settings.get("drm"):
        load_drm()


# ---- the driver's modules ------------------------------------------------------------------------------------------


def is_loaded(name: str) -> bool:
    return os.path.isdir(f"{MODULE}/{name}")


def add_module(name: str, node: simulated.Node) -> None:
    trees.add_module(MODULE, name, node["driver"])
    trees.proc_modules(MODULES, MODULE)


def remove_module(name: str) -> None:
    trees.remove_module(MODULE, name)
    trees.proc_modules(MODULES, MODULE)


def require_node() -> simulated.Node:
    node = simulated.node()
    if node is None:
        raise simulated.SimulationError("this machine has no GPU")
    if simulated.settings().get("broken"):
        raise simulated.SimulationError("the module nvidia was built for another kernel")
    return node


def load() -> None:
    """Load nvidia and nvidia_uvm; what udev would start is started."""
    if is_loaded("nvidia"):
        return
    node = require_node()
    trees.proc_driver(PROC_DRIVER, node, simulated.CAPABILITIES)
    trees.bind_driver(PCI, node)
    for name in ("nvidia", "nvidia_uvm"):
        add_module(name, node)
    make_device_files(node)
    trees.link(simulated.LINK, simulated.STATE)
    simulated.note("driver", "loaded")
    start_what_rules_want()


def load_drm() -> None:
    load()
    if is_loaded("nvidia_drm"):
        return
    node = require_node()
    for name in ("nvidia_modeset", "nvidia_drm"):
        add_module(name, node)
    # No list of the driver's shows it, but it keeps every GPU from being reset.
    for gpu in node["gpus"]:
        simulated.occupy(f"add gpu={gpu['index']} pid={KERNEL} kind=client name=nvidia_drm")
    show_drm(node)
    simulated.note("driver", "nvidia_drm loaded")


def show_drm(node: simulated.Node) -> None:
    if not is_mounted("/sys/class"):
        trees.empty(CLASS)
        for name in os.listdir("/sys/class"):
            os.makedirs(f"{CLASS}/{name}")
            for entry in os.listdir(f"/sys/class/{name}"):
                if os.path.islink(f"/sys/class/{name}/{entry}"):
                    os.symlink(os.readlink(f"/sys/class/{name}/{entry}"), f"{CLASS}/{name}/{entry}")
        show(CLASS, "/sys/class")
    trees.drm_class(f"{CLASS}/drm", node)
    os.makedirs("/dev/dri", exist_ok=True)
    for name in trees.drm_devices(node):
        device_file(f"/dev/dri/{name}", 0o660)


def unload_drm() -> None:
    """Only nvidia_drm, as ``rmmod nvidia_drm`` does."""
    if simulated.has_open(DRM_FILES):
        raise simulated.SimulationError("Module nvidia_drm is in use")
    remove_module("nvidia_drm")
    simulated.occupy(f"remove pid={KERNEL}")
    trees.empty(f"{CLASS}/drm")
    for path in glob.glob("/dev/dri/*"):
        os.unlink(path)
    simulated.note("driver", "nvidia_drm unloaded")


def unload() -> None:
    """All modules of the driver, those first that use others."""
    if not is_loaded("nvidia"):
        return
    users = simulated.has_open(GPU_FILES)
    if users:
        raise simulated.SimulationError(f"Module nvidia is in use (processes {', '.join(map(str, users))})")
    if is_loaded("nvidia_drm"):
        unload_drm()
    simulated.event("reload")
    os.unlink(simulated.LINK)
    for name in reversed(list(trees.MODULES)):
        remove_module(name)
    for path in glob.glob("/dev/nvidia*") + glob.glob("/dev/nvidia-caps/*"):
        if stat.S_ISCHR(os.lstat(path).st_mode):
            os.unlink(path)
    node = simulated.node()
    if node:
        trees.release_driver(PCI, node)
    trees.empty(PROC_DRIVER)
    simulated.note("driver", "unloaded")


def reload() -> None:
    with_drm = is_loaded("nvidia_drm")
    unload()
    load()
    if with_drm:
        load_drm()


def status() -> None:
    for name in trees.MODULES:
        if is_loaded(name):
            print(name)
    for pid in simulated.has_open(GPU_FILES + DRM_FILES):
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            print(f"{pid} {file.read().strip()}")


# ---- device files --------------------------------------------------------------------------------------------------


def device_file(path: str, mode: int) -> None:
    """One that can be opened: there is no driver behind the real numbers, so these are those of /dev/null."""
    if not os.path.exists(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.mknod(path, stat.S_IFCHR | mode, os.makedev(1, 3))
        os.chmod(path, mode)


def make_device_files(node: simulated.Node) -> None:
    for gpu in node["gpus"]:
        device_file(f"/dev/nvidia{gpu['minor']}", 0o666)
    for name in ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"):
        device_file(f"/dev/{name}", 0o666)
    switches = trees.nvswitches(node)
    if switches:
        device_file("/dev/nvidia-nvswitchctl", 0o666)
    for number in range(len(switches)):
        device_file(f"/dev/nvidia-nvswitch{number}", 0o666)
    if os.path.exists(MODPROBE):
        device_file("/dev/nvidia-caps/nvidia-cap1", 0o400)
        device_file("/dev/nvidia-caps/nvidia-cap2", 0o444)


# ---- udev ----------------------------------------------------------------------------------------------------------


def start_what_rules_want() -> None:
    """What udev, which does not run in a container, would have systemd start when the module nvidia appears."""
    units = sorted({unit for line in rules() if concerns_module(line, "nvidia") for unit in wanted_units(line)})
    if units and os.path.isdir("/run/systemd/system"):
        import subprocess

        simulated.note("driver", f"udev starts {' '.join(units)}")
        subprocess.run(["systemctl", "start", "--no-block", "--", *units], check=False)


def rules() -> t.Iterator[str]:
    """The lines of all rules files; one hides those of the same name in a folder that comes later."""
    files: dict[str, str] = {}
    for folder in RULES:
        for path in glob.glob(f"{folder}/*.rules"):
            files.setdefault(os.path.basename(path), path)
    for name in sorted(files):
        with open(files[name], encoding="utf-8", errors="replace") as file:
            for line in file.read().replace("\\\n", "").splitlines():
                if line.strip() and not line.lstrip().startswith("#"):
                    yield line


def concerns_module(line: str, name: str) -> bool:
    """Whether a rule is for the event that this module has been added. Of other keys nothing is known here."""
    facts = {"SUBSYSTEM": "module", "ACTION": "add", "KERNEL": name, "DEVPATH": f"/module/{name}"}
    tests = re.findall(r'([A-Z]+(?:\{[^}]*\})?)\s*(==|!=)\s*"([^"]*)"', line)
    if ("SUBSYSTEM", "==", "module") not in tests:
        return False
    for key, comparison, patterns in tests:
        if key not in facts:
            return False
        if matches(facts[key], patterns) != (comparison == "=="):
            return False
    return True


def matches(text: str, patterns: str) -> bool:
    import fnmatch

    return any(fnmatch.fnmatchcase(text, pattern) for pattern in patterns.split("|"))


def wanted_units(line: str) -> list[str]:
    """Units that a rule asks for; systemd only looks at devices that have the tag."""
    if not re.search(r'TAG\s*\+?=\s*"systemd"', line):
        return []
    return " ".join(re.findall(r'ENV\{SYSTEMD_WANTS\}\s*\+?=\s*"([^"]*)"', line)).split()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
