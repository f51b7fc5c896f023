# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a computer with GPUs shows in /sys and /proc, made as ordinary files from the description of its GPUs.

Each function fills a folder and needs nothing but the description, so that what it makes can be looked at anywhere.
"""

from __future__ import annotations

import os
import shutil
import struct
import typing as t

# The driver's static table: how many GPUs, GPU instances and compute instances it has numbers for.
TABLE_GPUS, TABLE_GIS, TABLE_CIS = 32, 15, 8

# Boards that drive displays are VGA controllers; the others are 3D controllers.
DISPLAY_BOARDS = ("geforce", "rtx-pro", "dgx-display")
DISPLAY_CLASS, COMPUTE_CLASS, BRIDGE_CLASS = "0x030000", "0x030200", "0x068000"
NVIDIA, REVISION = 0x10DE, 0xA1

# How many NVSwitches a board of eight GPUs has, and their device id. Later ones are behind bridges of another maker.
NVSWITCHES = {"ampere": (6, 0x1AF1), "hopper": (4, 0x22A3)}
NVSWITCH_BUSES = (0xC4, 0xC5, 0xC6, 0xC7, 0xC8, 0xC9)

# The configuration space of a function of PCI Express, and where the list of capabilities begins in it. Memory is
# decoded and interrupts by wire are off, as with a driver; and there is such a list.
CONFIG_SIZE, CAPABILITIES_AT = 4096, 0x60
COMMAND, STATUS_CAPABILITY_LIST = 0x0406, 0x0010
# Power management, message signalled interrupts, PCI Express. Only a virtual GPU has NVIDIA's own (id 9) besides.
CAPABILITY_IDS = (0x01, 0x05, 0x10)

# Kinds of memory of a GPU, as the kernel counts them: registers, and memory that may be read ahead, with 64 bits.
REGISTERS, APERTURE = 0x40200, 0x14220C
RESOURCE_LINES = 13
MIB = 1 << 20

# Every server has these two as well, so that nobody takes all that is there for a GPU of NVIDIA's.
HOST_BRIDGE = ("0000:00:00.0", 0x1022, 0x1480, "0x060000")
BMC_DISPLAY = ("0000:c1:00.0", 0x1A03, 0x2000, DISPLAY_CLASS)

PARAMETERS = {
    "ResmanDebugLevel": 4294967295,
    "ModifyDeviceFiles": 1,
    "DeviceFileUID": 0,
    "DeviceFileGID": 0,
    "DeviceFileMode": 438,
    "InitializeSystemMemoryAllocations": 1,
    "EnableMSI": 1,
    "EnablePCIeGen3": 0,
    "MemoryPoolSize": 0,
    "PreserveVideoMemoryAllocations": 0,
    "EnableResizableBar": 0,
    "OpenRmEnableUnsupportedGpus": 1,
    "RegistryDwords": '""',
    "RmMsg": '""',
    "GpuBlacklist": '""',
    "ExcludedGpus": '""',
}


def write(path: str, text: str, mode: int = 0o444) -> None:
    _write_bytes(path, text.encode("utf-8"), mode)


def _write_bytes(path: str, content: bytes, mode: int) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if os.path.lexists(path):
        os.unlink(path)
    with open(path, "wb") as file:
        file.write(content)
    os.chmod(path, mode)


def link(path: str, target: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if os.path.lexists(path):
        os.unlink(path)
    os.symlink(target, path)


def empty(folder: str) -> None:
    """A folder that is mounted elsewhere loses its content and stays the same folder."""
    os.makedirs(folder, exist_ok=True)
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)


def address(gpu: t.Mapping[str, t.Any]) -> str:
    """As sysfs writes it: ``0000:07:00.0`` for NVML's ``00000000:07:00.0``."""
    domain, rest = gpu["pci"].split(":", 1)
    return f"{int(domain, 16):04x}:{rest.lower()}"


def gpus_of(node: t.Optional[t.Mapping[str, t.Any]]) -> list[dict[str, t.Any]]:
    return [] if node is None else node["gpus"]


def nvswitches(node: t.Optional[t.Mapping[str, t.Any]]) -> list[tuple[str, int]]:
    """PCI addresses and device ids of the NVSwitches."""
    if node is None or node["fabric_manager"] == "none":
        return []
    number, device = NVSWITCHES.get(node["gpus"][0]["arch"], (0, 0))
    return [(f"0000:{bus:02x}:00.0", device) for bus in NVSWITCH_BUSES[:number]]


# ---- /sys/bus/pci --------------------------------------------------------------------------------------------------


def pci(folder: str, node: t.Optional[t.Mapping[str, t.Any]]) -> None:
    """The devices of a computer, of which no driver has taken NVIDIA's yet."""
    empty(folder)
    _device(folder, HOST_BRIDGE[0], HOST_BRIDGE[1], HOST_BRIDGE[2], HOST_BRIDGE[3])
    _device(folder, BMC_DISPLAY[0], BMC_DISPLAY[1], BMC_DISPLAY[2], BMC_DISPLAY[3])
    _bind(folder, BMC_DISPLAY[0], "ast")
    for gpu in gpus_of(node):
        display = gpu["key"].startswith(DISPLAY_BOARDS)
        _device(
            folder,
            address(gpu),
            gpu["device"] & 0xFFFF,
            gpu["device"] >> 16,
            DISPLAY_CLASS if display else COMPUTE_CLASS,
            (gpu["subsystem"] & 0xFFFF or NVIDIA, gpu["subsystem"] >> 16),
        )
        write(f"{folder}/devices/{address(gpu)}/resource", _resources(_memory_of(gpu)))
        if gpu["resettable"]:
            write(f"{folder}/devices/{address(gpu)}/reset", "", 0o200)
    for place, device in nvswitches(node):
        _device(folder, place, NVIDIA, device, BRIDGE_CLASS, (NVIDIA, device))


def _device(folder: str, place: str, vendor: int, device: int, kind: str, subsystem: tuple[int, int] = (0, 0)) -> None:
    here = f"{folder}/devices/{place}"
    number = int(kind, 16)
    alias = (
        f"pci:v{vendor:08X}d{device:08X}sv{subsystem[0]:08X}sd{subsystem[1]:08X}"
        f"bc{number >> 16:02X}sc{number >> 8 & 0xFF:02X}i{number & 0xFF:02X}"
    )
    for name, text in {
        "class": kind,
        "vendor": f"0x{vendor:04x}",
        "device": f"0x{device:04x}",
        "subsystem_vendor": f"0x{subsystem[0]:04x}",
        "subsystem_device": f"0x{subsystem[1]:04x}",
        "revision": f"0x{REVISION:02x}",
        "numa_node": "0",
        "enable": "1",
        "modalias": alias,
    }.items():
        write(f"{here}/{name}", f"{text}\n")
    write(f"{here}/resource", _resources(()))
    _write_bytes(f"{here}/config", _configuration(vendor, device, number, subsystem), 0o644)


def _configuration(vendor: int, device: int, kind: int, subsystem: tuple[int, int]) -> bytes:
    """The configuration space of a device: the header says what the other files say, and the capabilities follow."""
    space = bytearray(CONFIG_SIZE)
    struct.pack_into("<HHHH", space, 0x00, vendor, device, COMMAND, STATUS_CAPABILITY_LIST)
    struct.pack_into("<I", space, 0x08, kind << 8 | REVISION)
    struct.pack_into("<HH", space, 0x2C, *subsystem)
    space[0x34] = CAPABILITIES_AT
    for number, capability_id in enumerate(CAPABILITY_IDS):
        here = CAPABILITIES_AT + 0x18 * number
        last = number == len(CAPABILITY_IDS) - 1
        struct.pack_into("<BB", space, here, capability_id, 0 if last else here + 0x18)
    return bytes(space)


def _memory_of(gpu: t.Mapping[str, t.Any]) -> tuple[tuple[int, int, int, int], ...]:
    """Number, start, size and kind of what a GPU maps: registers, all of its memory, and a window for the driver."""
    whole = 1 << (gpu["memory_mib"] * MIB - 1).bit_length()
    above = (gpu["index"] + 1) << 40
    return (
        (0, 0xC0000000 + gpu["index"] * 16 * MIB, 16 * MIB, REGISTERS),
        (1, above, whole, APERTURE),
        (3, above + whole, 32 * MIB, APERTURE),
    )


def _resources(ranges: t.Iterable[tuple[int, int, int, int]]) -> str:
    lines = ["0x0000000000000000 0x0000000000000000 0x0000000000000000"] * RESOURCE_LINES
    for number, start, size, kind in ranges:
        lines[number] = f"0x{start:016x} 0x{start + size - 1:016x} 0x{kind:016x}"
    return "".join(f"{line}\n" for line in lines)


def bind_driver(folder: str, node: t.Mapping[str, t.Any]) -> None:
    """The driver has taken its devices."""
    for gpu in node["gpus"]:
        _bind(folder, address(gpu), "nvidia")
    for place, _device_id in nvswitches(node):
        _bind(folder, place, "nvidia-nvswitch")
    write(f"{folder}/drivers/nvidia/new_id", "", 0o200)


def _bind(folder: str, place: str, driver: str) -> None:
    link(f"{folder}/devices/{place}/driver", f"../../drivers/{driver}")
    link(f"{folder}/drivers/{driver}/{place}", f"../../devices/{place}")


def release_driver(folder: str, node: t.Mapping[str, t.Any]) -> None:
    for place in [address(gpu) for gpu in node["gpus"]] + [each for each, _device_id in nvswitches(node)]:
        if os.path.lexists(f"{folder}/devices/{place}/driver"):
            os.unlink(f"{folder}/devices/{place}/driver")
    for driver in ("nvidia", "nvidia-nvswitch"):
        shutil.rmtree(f"{folder}/drivers/{driver}", ignore_errors=True)


# ---- /proc/driver --------------------------------------------------------------------------------------------------


def proc_driver(folder: str, node: t.Mapping[str, t.Any], capabilities: str) -> None:
    """What the modules show; ``capabilities`` is where the library keeps the files of instances."""
    empty(folder)
    here = f"{folder}/nvidia"
    write(
        f"{here}/version",
        f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {node['driver']}  Release Build  (simulated)\n"
        "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n",
    )
    write(f"{here}/params", "".join(f"{name}: {value}\n" for name, value in PARAMETERS.items()))
    write(f"{here}/registry", 'Binary: ""\n')
    for gpu in node["gpus"]:
        write(f"{here}/gpus/{address(gpu)}/information", _information(gpu, node["driver"]))
    os.makedirs(capabilities, exist_ok=True)
    empty(capabilities)
    for name, minor, mode in (("config", 1, 0o400), ("monitor", 2, 0o444)):
        write(f"{capabilities}/mig/{name}", capability(minor, mode), mode)
    for gpu in node["gpus"]:
        os.makedirs(f"{capabilities}/gpu{gpu['minor']}/mig", exist_ok=True)
    link(f"{here}/capabilities", capabilities)
    write(f"{folder}/nvidia-caps/mig-minors", mig_minors())
    write(f"{folder}/nvidia-caps/nvlink-minors", "fabric-mgmt 0\n")
    write(f"{folder}/nvidia-caps/sys-minors", "fabric-imex-mgmt 4323\n")
    write(f"{folder}/nvidia-uvm/fault_stats", "")
    switches = nvswitches(node)
    if switches:
        write(f"{folder}/nvidia-nvswitch/permissions", "DeviceFileMode: 438\nDeviceFileModify: 1\n")
    for number, (place, device) in enumerate(switches):
        write(
            f"{folder}/nvidia-nvswitch/devices/{place}/information",
            f"BIOS Version: 92.10.14.00.01\nDevice ID: 0x{device:04x}\nDevice Minor: {number}\n",
        )


def _information(gpu: t.Mapping[str, t.Any], driver: str) -> str:
    lines = {
        "Model": gpu["name"],
        "IRQ": str(64 + gpu["index"]),
        "GPU UUID": gpu["uuid"],
        "Video BIOS": "92.00.19.00.01",
        "Bus Type": "PCIe",
        "DMA Size": "47 bits",
        "DMA Mask": "0x7fffffffffff",
        "Bus Location": address(gpu),
        "Device Minor": str(gpu["minor"]),
        "GPU Firmware": driver,
        "GPU Excluded": "No",
    }
    return "".join(f"{name}: \t {value}\n" for name, value in lines.items())


def capability(minor: int, mode: int) -> str:
    return f"DeviceFileMinor: {minor}\nDeviceFileMode: {mode}\nDeviceFileModify: 1\n"


def mig_minors() -> str:
    """One number for each instance that any GPU could have, whether or not it is there."""
    lines = ["config 1", "monitor 2"]
    for gpu in range(TABLE_GPUS):
        for gi in range(TABLE_GIS):
            first = 3 + 9 * (TABLE_GIS * gpu + gi)
            lines.append(f"gpu{gpu}/gi{gi}/access {first}")
            lines += [f"gpu{gpu}/gi{gi}/ci{ci}/access {first + 1 + ci}" for ci in range(TABLE_CIS)]
    return "\n".join(lines) + "\n"


# ---- /sys/module ---------------------------------------------------------------------------------------------------

# What else is loaded on a server: a folder without NVIDIA's modules is not an empty one.
OTHER_MODULES = ("ast", "drm", "ext4", "ipmi_si", "kernel", "nvme", "overlay", "printk")
# Each with those that use it. They are loaded in this order.
MODULES = {
    "nvidia": ("nvidia_uvm", "nvidia_modeset"),
    "nvidia_uvm": (),
    "nvidia_modeset": ("nvidia_drm",),
    "nvidia_drm": (),
}


def modules(folder: str) -> None:
    """The modules of a computer before NVIDIA's are loaded."""
    empty(folder)
    for name in OTHER_MODULES:
        os.makedirs(f"{folder}/{name}/parameters")


def add_module(folder: str, name: str, driver: str) -> None:
    write(f"{folder}/{name}/version", f"{driver}\n")
    write(f"{folder}/{name}/initstate", "live\n")
    write(f"{folder}/{name}/refcnt", "0\n")
    os.makedirs(f"{folder}/{name}/holders", exist_ok=True)
    os.makedirs(f"{folder}/{name}/parameters", exist_ok=True)
    if name == "nvidia_drm":
        write(f"{folder}/{name}/parameters/modeset", "Y\n")
    _count_users(folder)


def remove_module(folder: str, name: str) -> None:
    shutil.rmtree(f"{folder}/{name}", ignore_errors=True)
    _count_users(folder)


def _count_users(folder: str) -> None:
    """Modules that use another one are its holders, and its count at the least."""
    for name, users in MODULES.items():
        if not os.path.isdir(f"{folder}/{name}"):
            continue
        loaded = [user for user in users if os.path.isdir(f"{folder}/{user}")]
        empty(f"{folder}/{name}/holders")
        for user in loaded:
            link(f"{folder}/{name}/holders/{user}", f"../../{user}")
        write(f"{folder}/{name}/refcnt", f"{len(loaded)}\n")


def proc_modules(path: str, folder: str) -> None:
    """The same modules as /proc/modules has them. The file is mounted there, so it has to stay the same one."""
    lines = []
    for name in reversed([*OTHER_MODULES, *MODULES]):
        if os.path.isdir(f"{folder}/{name}"):
            holders = f"{folder}/{name}/holders"
            users = sorted(os.listdir(holders)) if os.path.isdir(holders) else []
            used_by = "".join(f"{user}," for user in users) or "-"
            lines.append(f"{name} 1048576 {len(users)} {used_by} Live 0x0000000000000000\n")
    with open(path, "w", encoding="utf-8") as file:
        file.write("".join(lines))


# ---- /sys/class/drm ------------------------------------------------------------------------------------------------


def drm_devices(node: t.Mapping[str, t.Any]) -> dict[str, str]:
    """Names in /dev/dri and the PCI addresses of their devices. The display of the BMC is the first card."""
    found = {"card0": BMC_DISPLAY[0]}
    for gpu in node["gpus"]:
        found[f"card{gpu['index'] + 1}"] = address(gpu)
        found[f"renderD{128 + gpu['index']}"] = address(gpu)
    return found


def drm_class(folder: str, node: t.Mapping[str, t.Any]) -> None:
    """The class as it is with nvidia_drm loaded; ``folder`` is that of the class, three levels below that of buses."""
    empty(folder)
    for name, place in drm_devices(node).items():
        link(f"{folder}/{name}/device", f"../../../bus/pci/devices/{place}")
