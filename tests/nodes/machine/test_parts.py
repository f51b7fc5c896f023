# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the machine has besides the kernel: files in a tree, rules of udev, devices of containers."""

from __future__ import annotations

import os
import re
import subprocess

import containers
import driver
import mig_parted
import pytest
import simulated
import stand_in
import yaml

from .install import FILES, behave, clear_behaviour, install

UNITS = FILES / "usr/lib/systemd/system"


@pytest.fixture(name="tree", scope="module")
def _tree(tmp_path_factory):
    tree = tmp_path_factory.mktemp("tree")
    install(tree, "550.127.05")
    return tree


def test_a_tree_gets_the_library_of_its_driver_branch(tree, tmp_path):
    install(tmp_path, 615)
    name = "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"
    assert os.path.getsize(tree / name) > 0
    assert (tree / name).read_bytes() != (tmp_path / name).read_bytes()


def test_programs_can_be_run_and_are_complete(tree):
    for name in ("nvidia-smi", "nvidia-modprobe", "docker", "sim-hold", "sim-driver", "sim-behave"):
        assert os.access(tree / "usr/bin" / name, os.X_OK), name
    assert os.access(tree / "usr/lib/systemd/system-generators/sim-behaviour", os.X_OK)
    for name in ("modprobe", "rmmod", "lsmod"):
        text = (tree / "usr/sbin" / name).read_text()
        script = re.search(r"/usr/lib/sim/\w+\.py", text)[0]
        assert (tree / script[1:]).exists()
        assert subprocess.run(["sh", "-n", tree / "usr/sbin" / name], check=False).returncode == 0


def test_installing_again_changes_nothing(tree):
    def content():
        return {
            str(path): os.readlink(path) if path.is_symlink() else path.read_bytes()
            for path in sorted(tree.rglob("*"))
            if path.is_symlink() or path.is_file()
        }

    before = content()
    install(tree, "550")
    assert content() == before


def test_nothing_is_derived_from_a_gpu(tree):
    assert not [path for path in tree.rglob("*") if path.name in ("state", "gpus") or "GPU-" in path.name]


def test_links_of_a_tree_stay_in_it_when_it_is_not_the_root(tree):
    for path in tree.rglob("*"):
        if path.is_symlink():
            assert not os.readlink(path).startswith("/"), path
            assert path.exists(), path


# --- units ----------------------------------------------------------------------------------------------------------


def scripts_of(unit):
    return re.findall(r"^Exec\w+=/usr/bin/python3 -ESs /usr/lib/sim/(\S+) ?(.*)$", unit.read_text(), re.MULTILINE)


def test_every_stand_in_has_its_unit_and_every_unit_its_stand_in():
    run = [each for unit in UNITS.glob("*.service") for each in scripts_of(unit)]
    named = {words.split()[-1] for script, words in run if script == "stand_in.py"}
    assert named == {*stand_in.PARTS, *stand_in.ONESHOTS}
    for name in named:
        assert (UNITS / f"{name}.service").exists()


def test_every_unit_runs_a_script_that_is_there():
    for unit in UNITS.glob("*.service"):
        scripts = scripts_of(unit)
        assert scripts, unit.name
        assert all((FILES / "usr/lib/sim" / script).exists() for script, _words in scripts)


@pytest.mark.parametrize(("name", "part"), stand_in.PARTS.items())
def test_a_service_that_forks_says_where_its_pid_is(name, part):
    text = (UNITS / f"{name}.service").read_text()
    assert ("Type=forking" in text) == bool(part.forks)
    assert not part.forks or f"PIDFile={part.forks}" in text


@pytest.mark.parametrize(("name", "part"), stand_in.PARTS.items())
def test_who_holds_a_gpu_has_its_files_open(name, part):
    assert part.gpus or not part.holds
    assert part.gpus or not part.session


# --- rules of udev --------------------------------------------------------------------------------------------------

TOOLKIT = (
    'ACTION=="add", SUBSYSTEM=="module", KERNEL=="nvidia|nvidia_current", TAG+="systemd",'
    ' ENV{SYSTEMD_WANTS}+="nvidia-cdi-refresh.service"'
)


@pytest.mark.parametrize(
    ("rule", "units"),
    [
        (TOOLKIT, ["nvidia-cdi-refresh.service"]),
        (TOOLKIT.replace('+="nvidia-cdi-refresh.service"', '="a.service b.service"'), ["a.service", "b.service"]),
        ('SUBSYSTEM=="module", KERNEL=="nvidia*", ENV{SYSTEMD_WANTS}+="a.service", TAG+="systemd"', ["a.service"]),
    ],
)  # fmt: skip
def test_a_rule_for_the_module_starts_its_units(rule, units):
    assert driver.concerns_module(rule, "nvidia")
    assert driver.wanted_units(rule) == units


@pytest.mark.parametrize(
    "rule",
    [
        TOOLKIT.replace('"add"', '"remove"'),
        TOOLKIT.replace('"nvidia|nvidia_current"', '"nvidia_uvm"'),
        TOOLKIT.replace('"module"', '"pci"'),
        TOOLKIT.replace('KERNEL=="nvidia|', 'KERNEL!="nvidia|'),
        TOOLKIT.replace('ACTION=="add"', 'ACTION=="add", ENV{of_another_event}=="1"'),
    ],
    ids=["removed", "another module", "another subsystem", "not this module", "something unknown here"],
)
def test_a_rule_for_something_else_starts_nothing(rule):
    assert not driver.concerns_module(rule, "nvidia")


def test_without_the_tag_systemd_does_not_look():
    assert driver.wanted_units(TOOLKIT.replace('TAG+="systemd", ', "")) == []


# --- behaviour ------------------------------------------------------------------------------------------------------


def test_behaviour_is_read_by_the_name_of_the_unit_with_or_without_its_suffix(tmp_path, monkeypatch):
    monkeypatch.setattr(simulated, "HOST", str(tmp_path))
    assert simulated.behaviour("nvidia-dcgm") == {}
    behave(tmp_path, "nvidia-dcgm.service", stop="delay:2")
    assert simulated.behaviour("nvidia-dcgm") == {"stop": "delay:2"}
    (tmp_path / "behaviour" / "kubelet.service").write_text('{"start": "fail"}')
    assert simulated.behaviour("kubelet") == {"start": "fail"}
    clear_behaviour(tmp_path)
    assert simulated.behaviour("nvidia-dcgm") == simulated.behaviour("kubelet") == {}


def test_a_delay_has_seconds():
    assert [stand_in.order(text) for text in ("", "hang", "delay:2.5")] == [("", 0), ("hang", 0), ("delay", 2.5)]


# --- devices of containers ------------------------------------------------------------------------------------------

NODE = {
    "gpus": [
        {
            "index": 0,
            "uuid": "GPU-0",
            "mode_current": 1,
            "instances": [
                {"id": 1, "compute": [{"id": 0, "uuid": "MIG-a", "mig_index": 0}]},
                {"id": 2, "compute": [{"id": 0, "uuid": "MIG-b", "mig_index": 1}]},
            ],
        },
        {"index": 1, "uuid": "GPU-1", "mode_current": 0, "instances": []},
    ]
}


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        (["all"], [(0, 1), (0, 2), (1, None)]),
        (["0"], [(0, 1), (0, 2)]),
        (["0:1"], [(0, 2)]),
        (["MIG-a", "GPU-1"], [(0, 1), (1, None)]),
    ],
)
def test_a_container_gets_the_devices_that_it_names(devices, expected):
    found = containers.places(NODE, devices)
    assert [(gpu["index"], gi and gi["id"]) for gpu, gi, _ci in found] == expected


def test_a_container_with_a_device_that_is_gone_does_not_start():
    with pytest.raises(simulated.SimulationError, match="MIG-c: unknown device"):
        containers.places(NODE, ["MIG-c"])


@pytest.mark.parametrize(
    ("option", "devices"),
    [
        ("all", ["all"]),
        ("device=0,1:2", ["0", "1:2"]),
        ('"device=MIG-a"', ["MIG-a"]),
        ("nvidia.com/gpu=1", ["1"]),
        ("2", ["0", "1"]),
    ],
)
def test_devices_are_spelled_as_the_runtimes_take_them(option, devices):
    assert containers.devices_of(option) == devices


# ---- nvidia-mig-manager --------------------------------------------------------------------------------------------

CONFIG = [
    {"devices": [0, 2], "mig-enabled": True, "mig-devices": {"1g.5gb": 2, "1c.3g.20gb": 1}},
    {"devices": [1], "mig-enabled": False, "mig-devices": {}},
]


@pytest.mark.parametrize("indent", [2, 4])
@pytest.mark.parametrize("config", [CONFIG, [{"devices": "all", "mig-enabled": False}], []])
def test_a_config_is_read_as_it_is_written(indent, config):
    whole = {"version": "v1", "mig-configs": {"current": config, "other": [{"devices": [3]}]}}
    assert mig_parted.read("# managed\n" + yaml.safe_dump(whole, indent=indent)) == whole


def gpu(index, *names, on=True):
    devices = [{"compute": [{"name": f"MIG {name}"}]} for name in names]
    return {"index": index, "mode_current": int(on), "instances": devices}


@pytest.mark.parametrize(
    ("gpus", "differ"),
    [
        ([gpu(0, "1g.5gb", "1c.3g.20gb", "1g.5gb"), gpu(1, on=False)], []),
        ([gpu(0, "1g.5gb", "1c.3g.20gb"), gpu(1, on=False)], ["GPU 0 has other devices"]),
        ([gpu(1)], ["GPU 1 has another mode"]),
        ([gpu(3, "7g.40gb")], []),
        ([gpu(2, on=False)], ["GPU 2 has another mode", "GPU 2 has other devices"]),
    ],
)
def test_gpus_that_are_not_as_a_config_wants_them_are_found(gpus, differ):
    assert mig_parted.differences(gpus, CONFIG) == differ


def test_a_config_that_says_more_than_is_understood_is_not_taken_for_a_match():
    with pytest.raises(simulated.SimulationError, match="device-filter"):
        mig_parted.differences([], [{**CONFIG[0], "device-filter": "0x233010DE"}])
