# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a simulated machine shows in /proc and /sys, looked at by hand and by those who read it: they have to agree."""

from __future__ import annotations

import os
import re
import struct
import typing as t
from pathlib import Path

import pytest
import trees

import nvmlsim
from ansible_collections.gpufleet.mig.plugins.module_utils.engine import driver, holders, reset

NVIDIA = "0x10de"


class Machine(t.NamedTuple):
    """The tree of a machine with its driver loaded, and the description that it was made from."""

    root: Path
    node: dict[str, t.Any]
    simulator: nvmlsim.Simulator

    @property
    def devices(self) -> Path:
        return self.root / "sys/bus/pci/devices"

    def facts(self, name: str) -> dict[str, str]:
        """A file of each PCI device, by address."""
        return {device.name: (device / name).read_text().strip() for device in self.devices.iterdir()}

    def addresses(self) -> list[str]:
        """Where NVML says that the GPUs are, as sysfs writes it."""
        return [f"0000:{gpu['pci'].partition(':')[2].lower()}" for gpu in self.node["gpus"]]


@pytest.fixture(name="machine")
def _machine(tmp_path: Path) -> t.Callable[..., Machine]:
    def make(gpus: str, *, loaded: bool = True, **options: t.Any) -> Machine:
        simulator = nvmlsim.Simulator.create(tmp_path / "gpus", gpus, **options)
        node = simulator.describe()
        root = tmp_path / "root"
        trees.pci(f"{root}/sys/bus/pci", node)
        trees.modules(f"{root}/sys/module")
        if loaded:
            trees.bind_driver(f"{root}/sys/bus/pci", node)
            trees.proc_driver(f"{root}/proc/driver", node, f"{simulator.path}.capabilities")
            for name in ("nvidia", "nvidia_uvm"):
                trees.add_module(f"{root}/sys/module", name, node["driver"])
        return Machine(root, node, simulator)

    return make


# --- PCI ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "gpus", ["dgx-a100", "2xh100-sxm5-80gb", "1xa30-24gb,1xtesla-t4,2xh200-sxm-141gb", "dgx-station-a100-160g"]
)
def test_the_gpus_of_nvidia_on_the_bus_are_those_of_nvml(machine, gpus):
    made = machine(gpus)
    classes, vendors = made.facts("class"), made.facts("vendor")
    found = sorted(place for place in classes if vendors[place] == NVIDIA and classes[place].startswith("0x03"))
    assert found == sorted(made.addresses())
    for gpu, place in zip(made.node["gpus"], made.addresses()):
        device, vendor = made.facts("device")[place], vendors[place]
        assert f"0x{int(device, 16):04X}{int(vendor, 16):04X}" == f"0x{gpu['device']:08X}"


def test_a_server_has_devices_that_are_nobody_s_gpu(machine):
    made = machine("1xa100-sxm4-40gb")
    others = {place: made.facts("class")[place] for place in made.facts("vendor") if place not in made.addresses()}
    assert sorted(others.values()) == ["0x030000", "0x060000"], "a bridge, and the display of the BMC"
    assert NVIDIA not in [made.facts("vendor")[place] for place in others]


@pytest.mark.parametrize(
    ("gpus", "kind"),
    [
        ("1xa100-sxm4-40gb", "0x030200"),
        ("1xtesla-t4", "0x030200"),
        ("1xgeforce-rtx-4090", "0x030000"),
        ("1xrtx-pro-6000-workstation", "0x030000"),
    ],
)
def test_boards_that_drive_displays_are_display_controllers(machine, gpus, kind):
    made = machine(gpus)
    assert made.facts("class")[made.addresses()[0]] == kind


def test_the_configuration_space_of_a_device_says_what_its_other_files_say(machine):
    """NVIDIA's tools read both: gpu-feature-discovery looks for a virtual GPU in the capabilities."""
    made = machine("1xa100-sxm4-40gb,1xtesla-t4,1xh200-sxm-141gb", fabric_manager=True)
    said = {name: made.facts(name) for name in ("vendor", "device", "class", "revision", "subsystem_device")}
    for device in made.devices.iterdir():
        space = (device / "config").read_bytes()
        vendor, product, command, status, kind, subsystem = struct.unpack_from("<HHHHI34xH", space)
        assert vendor == int(said["vendor"][device.name], 16)
        assert product == int(said["device"][device.name], 16)
        assert kind >> 8 == int(said["class"][device.name], 16)
        assert kind & 0xFF == int(said["revision"][device.name], 16)
        assert subsystem == int(said["subsystem_device"][device.name], 16)
        assert len(space) == 4096
        capabilities, at = [], space[0x34]
        while status & 0x10 and at:
            capabilities.append(space[at])
            at = space[at + 1]
        assert capabilities == [0x01, 0x05, 0x10], "and no other: a virtual GPU has 9 of NVIDIA's own"


def test_a_gpu_maps_its_registers_and_all_of_its_memory_where_nobody_else_does(machine):
    made = machine("2xa100-sxm4-40gb,1xh200-sxm-141gb")
    taken = []
    for gpu, place in zip(made.node["gpus"], made.addresses()):
        lines = [
            tuple(int(word, 16) for word in line.split(" "))
            for line in (made.devices / place / "resource").read_text().splitlines()
        ]
        assert len(lines) == 13
        sizes = {number: end - start + 1 for number, (start, end, flags) in enumerate(lines) if flags}
        assert sizes[0] == 16 << 20
        assert sizes[1] >= gpu["memory_mib"] << 20
        taken += [(start, end) for start, end, flags in lines if flags]
    for (_start, end), (start, _end) in zip(sorted(taken), sorted(taken)[1:]):
        assert end < start


@pytest.mark.parametrize(
    ("gpus", "options", "expected"),
    [
        ("1xa100-sxm4-40gb", {}, True),
        ("1xh100-sxm5-80gb", {}, True),
        ("1xa100-sxm4-40gb", {"virtualization": "passthrough"}, False),
        ("1xh100-sxm5-80gb", {"virtualization": "passthrough"}, True),
        ("1xa100-sxm4-40gb", {"resettable": False}, False),
    ],
    ids=["Ampere", "Hopper", "Ampere in a VM", "Hopper in a VM", "a server without reset"],
)
def test_a_device_has_a_reset_where_nvidia_smi_can_reset_it(machine, gpus, options, expected):
    made = machine(gpus, **options)
    assert os.path.exists(made.devices / made.addresses()[0] / "reset") is expected
    assert driver.is_resettable(made.node["gpus"][0]["pci"], str(made.root)) is expected
    assert (made.simulator.run(["nvidia-smi", "--gpu-reset", "-i", "0"]).returncode == 0) is expected


def test_devices_are_there_before_a_driver_takes_them_and_after_it_lets_go(machine):
    made = machine("2xa100-sxm4-40gb", loaded=False)
    bus = str(made.root / "sys/bus/pci")

    def drivers():
        return [
            os.path.basename(os.path.realpath(path)) if (path := made.devices / place / "driver").exists() else None
            for place in made.addresses()
        ]

    assert drivers() == [None, None]
    trees.bind_driver(bus, made.node)
    assert drivers() == ["nvidia", "nvidia"]
    trees.release_driver(bus, made.node)
    assert drivers() == [None, None]
    assert sorted(os.listdir(f"{bus}/drivers")) == ["ast"]


def test_a_machine_without_gpus_has_a_bus_too(tmp_path):
    trees.pci(str(tmp_path), None)
    assert len(os.listdir(tmp_path / "devices")) == 2


# --- NVSwitch -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("gpus", "number"), [("dgx-a100", 6), ("p5.48xlarge", 4)])
def test_boards_with_nvswitches_show_them_on_the_bus_and_by_the_driver(machine, gpus, number):
    made = machine(gpus, fabric_manager=True)
    switches = [place for place, kind in made.facts("class").items() if kind == "0x068000"]
    assert len(switches) == number
    assert sorted(os.listdir(made.root / "proc/driver/nvidia-nvswitch/devices")) == sorted(switches)
    assert reset.has_nvswitch(str(made.root))


def test_nvswitches_are_seen_without_the_driver(machine):
    assert reset.has_nvswitch(str(machine("dgx-a100", fabric_manager=False, loaded=False).root))


def test_a_node_without_nvswitches_shows_none(machine):
    assert not reset.has_nvswitch(str(machine("8xa100-pcie-40gb").root))


# --- capabilities ---------------------------------------------------------------------------------------------------


def test_every_instance_that_can_be_has_the_number_that_the_driver_gives_it(machine):
    made = machine("1xa100-sxm4-40gb")
    table = made.root / "proc/driver/nvidia-caps/mig-minors"
    numbers = dict(line.rsplit(" ", 1) for line in table.read_text().splitlines())
    assert (numbers["config"], numbers["monitor"]) == ("1", "2")
    assert len(numbers) == 2 + 32 * 15 * 9
    for gpu, gi, ci in [(0, 0, 0), (0, 7, 0), (1, 13, 7), (31, 14, 7)]:
        assert int(numbers[f"gpu{gpu}/gi{gi}/access"]) == 3 + 135 * gpu + 9 * gi
        assert int(numbers[f"gpu{gpu}/gi{gi}/ci{ci}/access"]) == 3 + 135 * gpu + 9 * gi + 1 + ci
    assert numbers["gpu0/gi7/ci0/access"] == "67"


def test_who_looks_for_holders_reads_the_table_as_it_is_meant(machine):
    known = holders._capabilities(str(machine("1xa100-sxm4-40gb").root / "proc/driver/nvidia-caps/mig-minors"))
    assert len(known) == 32 * 15 * 9, "files for configuring and monitoring are nobody's instance"
    assert (known[3], known[66], known[67], known[138]) == ((0, 0, None), (0, 7, None), (0, 7, 0), (1, 0, None))


def make_instances():
    import pynvml as nv

    nv.nvmlInit()
    gpu = nv.nvmlDeviceGetHandleByIndex(1)
    nv.nvmlDeviceSetMigMode(gpu, 1)
    instance = nv.nvmlDeviceCreateGpuInstance(gpu, 9)
    nv.nvmlGpuInstanceCreateComputeInstance(instance, 1)
    nv.nvmlGpuInstanceCreateComputeInstance(instance, 0)


def test_files_of_instances_have_the_numbers_of_the_table(machine):
    made = machine("2xa100-sxm4-40gb")
    made.simulator.call(make_instances)
    shown = made.root / "proc/driver/nvidia/capabilities"
    numbers = {}
    for file in Path(os.path.realpath(shown)).rglob("access"):
        number = re.search(r"^DeviceFileMinor: (\d+)$", file.read_text(), re.MULTILINE)
        numbers[str(file.relative_to(os.path.realpath(shown))).replace("/mig/", "/")] = number[1]
    table = dict(
        line.rsplit(" ", 1) for line in (made.root / "proc/driver/nvidia-caps/mig-minors").read_text().splitlines()
    )
    assert len(numbers) == 3
    assert numbers == {name: table[name] for name in numbers}


def test_who_may_configure_and_who_may_monitor_is_said_as_the_driver_says_it(machine):
    shown = machine("1xa100-sxm4-40gb").root / "proc/driver/nvidia/capabilities/mig"
    assert (shown / "config").read_text() == "DeviceFileMinor: 1\nDeviceFileMode: 256\nDeviceFileModify: 1\n"
    assert (shown / "monitor").read_text() == "DeviceFileMinor: 2\nDeviceFileMode: 292\nDeviceFileModify: 1\n"


# --- the rest of /proc/driver, and modules --------------------------------------------------------------------------


def test_the_driver_says_its_version_and_what_it_knows_of_each_gpu(machine):
    made = machine("1xa30-24gb,1xh100-sxm5-80gb", driver="570")
    assert made.node["driver"] in (made.root / "proc/driver/nvidia/version").read_text()
    assert (made.root / "sys/module/nvidia/version").read_text().strip() == made.node["driver"]
    for gpu, place in zip(made.node["gpus"], made.addresses()):
        text = (made.root / "proc/driver/nvidia/gpus" / place / "information").read_text()
        facts = {key.strip(): value.strip() for key, value in (line.split(":", 1) for line in text.splitlines())}
        assert (facts["Model"], facts["GPU UUID"]) == (gpu["name"], gpu["uuid"])
        assert (facts["Bus Location"], facts["Device Minor"]) == (place, str(gpu["minor"]))


def test_a_machine_without_its_driver_has_modules_but_not_those(machine):
    made = machine("1xa100-sxm4-40gb", loaded=False)
    assert reset.drm_is_loaded(str(made.root)) is False
    assert not (made.root / "sys/module/nvidia").exists()


def test_modules_count_those_that_use_them(machine):
    made = machine("1xa100-sxm4-40gb")
    folder = str(made.root / "sys/module")
    for name in ("nvidia_modeset", "nvidia_drm"):
        trees.add_module(folder, name, "580.1")
    assert reset.drm_is_loaded(str(made.root)) is True
    assert (made.root / "sys/module/nvidia/refcnt").read_text() == "2\n"
    assert os.listdir(f"{folder}/nvidia_modeset/holders") == ["nvidia_drm"]
    trees.proc_modules(str(made.root / "proc/modules"), folder)
    assert "nvidia 1048576 2 nvidia_modeset,nvidia_uvm, Live" in (made.root / "proc/modules").read_text()
    trees.remove_module(folder, "nvidia_drm")
    assert (made.root / "sys/module/nvidia_modeset/refcnt").read_text() == "0\n"
    assert reset.drm_is_loaded(str(made.root)) is False


def test_only_devices_of_nvidia_are_rendered_on_by_nvidia_drm(machine):
    made = machine("2xa100-sxm4-40gb")
    trees.drm_class(str(made.root / "sys/class/drm"), made.node)
    assert "card0" in os.listdir(made.root / "sys/class/drm")
    assert reset._drm_nodes(str(made.root)) == {
        "/dev/dri/card1",
        "/dev/dri/card2",
        "/dev/dri/renderD128",
        "/dev/dri/renderD129",
    }
