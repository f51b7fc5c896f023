# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The simulated machine on nodes that have booted: what its services hold, how they misbehave, how its driver loads."""

from __future__ import annotations

import json
import os
import time
import typing as t

import pytest

from nvmlsim import Simulator

from ..fleet import Fleet, Node
from . import behave, clear_behaviour

SERVICES = (
    *("docker.socket", "docker", "containerd", "gdm", "slurmd", "kubelet", "nvsm", "dcgm-exporter", "nvidia-dcgm"),
    *("nvidia-mps", "nvidia-fabricmanager", "nvidia-persistenced"),
)
# All of them: a single GPU of this board is reset with Fabric Manager only.
IN_ORDER = "nvidia-smi --gpu-reset"
A_THIRD = 9, 2  # ids of the profiles of a GPU instance and a compute instance of three slices


@pytest.fixture(name="fleet", scope="module")
def _fleet() -> t.Iterator[Fleet]:
    fleet = Fleet(f"machine-{os.getpid()}")
    try:
        fleet.up(["a100=2xa100-sxm4-40gb,fabric_manager=on", "h100=2xh100-sxm5-80gb"])
        yield fleet
    finally:
        fleet.down()


@pytest.fixture(name="ampere")
def _ampere(fleet: Fleet) -> t.Iterator[Node]:
    yield from as_it_was(fleet.node("a100"))


@pytest.fixture(name="hopper")
def _hopper(fleet: Fleet) -> t.Iterator[Node]:
    yield from as_it_was(fleet.node("h100"))


def as_it_was(node: Node) -> t.Iterator[Node]:
    yield node
    clear_behaviour(node.sim)
    tidy = [
        f"systemctl stop {' '.join(SERVICES)}",
        "systemctl reset-failed",
        "if [ -d /sys/module/nvidia_drm ]; then rmmod nvidia_drm; fi",
        "if [ ! -d /sys/module/nvidia ]; then modprobe nvidia; fi",
        "rm -rf /var/lib/sim-containers",
    ]
    node.run("; ".join(tidy))
    for gpu in range(2):
        node.simulator.reset(gpu)
        node.simulator.call(set_mode, gpu, 0)
    node.simulator.clear_faults()


def set_mode(gpu: int, mode: int) -> None:
    import pynvml as nv

    nv.nvmlInit()
    nv.nvmlDeviceSetMigMode(nv.nvmlDeviceGetHandleByIndex(gpu), mode)
    nv.nvmlShutdown()


def make_instance(gpu: int) -> None:
    import pynvml as nv

    nv.nvmlInit()
    handle = nv.nvmlDeviceGetHandleByIndex(gpu)
    nv.nvmlDeviceSetMigMode(handle, 1)
    nv.nvmlGpuInstanceCreateComputeInstance(nv.nvmlDeviceCreateGpuInstance(handle, A_THIRD[0]), A_THIRD[1])
    nv.nvmlShutdown()


def status(node: Node, command: str, **options: t.Any) -> int:
    return node.run(command, check=False, **options).returncode


def shown(node: Node, unit: str, *names: str) -> list[str]:
    lines = node.run(["systemctl", "show", f"--property={','.join(names)}", unit]).stdout.splitlines()
    values = dict(line.split("=", 1) for line in lines)
    return [values[name] for name in names]


def noted(node: Node, unit: str) -> list[str]:
    """What a unit did, in order."""
    lines = (node.sim / "log" / "units").read_text().splitlines()
    return [words[2] for line in lines if (words := line.split(" ", 2))[1] == unit]


def wait_for(condition: t.Callable[[], t.Any], what: str, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited for {what}"
        time.sleep(0.05)


# --- what services hold ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("unit", "process", "blocks"),
    [
        ("nvidia-persistenced", "nvidia-persiste", False),
        ("nvidia-fabricmanager", "nv-fabricmanage", False),
        ("nvidia-dcgm", "nv-hostengine", True),
        ("dcgm-exporter", "dcgm-exporter", True),
        ("nvsm", "nvsm_core", True),
    ],
)
def test_a_service_has_gpus_open_and_keeps_them_unless_it_hands_over(ampere, unit, process, blocks):
    ampere.run(f"systemctl start {unit}")
    wait_for(lambda: process in ampere.run("sim-driver status").stdout, f"{process} to open the GPUs")
    opened = ampere.run(f"ls -l /proc/$(pidof -x {process} || pgrep -x {process})/fd").stdout
    assert "/dev/nvidiactl" in opened
    assert "/dev/nvidia0" in opened
    assert "/dev/nvidia1" in opened
    assert status(ampere, IN_ORDER) == (255 if blocks else 0)
    ampere.run(f"systemctl stop {unit}")
    assert process not in ampere.run("sim-driver status").stdout
    assert status(ampere, IN_ORDER) == 0


@pytest.mark.parametrize("unit", ["kubelet", "slurmd", "nvidia-mps"])
def test_a_service_that_holds_no_gpu_keeps_none(ampere, unit):
    ampere.run(f"systemctl start {unit}")
    assert shown(ampere, unit, "ActiveState") == ["active"]
    assert status(ampere, IN_ORDER) == 0


def test_a_mode_change_of_ampere_stays_pending_while_monitoring_looks_on(ampere):
    ampere.run("systemctl start nvidia-dcgm")
    wait_for(lambda: ampere.simulator.describe()["gpus"][1]["holders"], "DCGM to hold the GPUs")
    ampere.simulator.call(set_mode, 0, 1)
    gpu = ampere.simulator.describe()["gpus"][0]
    assert (gpu["mode_current"], gpu["mode_pending"]) == (0, 1)


def test_instances_can_be_made_and_destroyed_while_monitoring_looks_on(hopper):
    hopper.simulator.call(set_mode, 0, 1)
    hopper.run("systemctl start nvidia-dcgm")
    wait_for(lambda: hopper.simulator.describe()["gpus"][1]["holders"], "DCGM to hold the GPUs")
    hopper.simulator.call(make_instance, 0)
    assert len(hopper.simulator.layouts()[0]) == 1


def test_monitoring_that_leaks_keeps_instances_without_being_in_a_list(hopper):
    hopper.simulator.call(make_instance, 0)
    behave(hopper.sim, "nvidia-dcgm", leak=True)
    hopper.run("systemctl start nvidia-dcgm")

    def kinds():
        return sorted(holder["kind"] for holder in hopper.simulator.describe()["gpus"][0]["holders"])

    wait_for(lambda: kinds() == ["client", "hidden"], "the leak")
    pid = shown(hopper, "nvidia-dcgm", "MainPID")[0]
    assert hopper.run(f"ls -l /proc/{pid}/fd").stdout.count("/dev/nvidia-caps/nvidia-cap") == 2


def test_persistence_and_fabric_manager_are_what_their_daemons_make_them(ampere):
    def facts():
        node = ampere.simulator.describe()
        return node["gpus"][0]["persistence"], node["fabric_manager"]

    ampere.run("systemctl start nvidia-persistenced nvidia-fabricmanager")
    assert facts() == (True, "on")
    assert status(ampere, "test -S /run/nvidia-persistenced/socket") == 0
    ampere.run("systemctl stop nvidia-persistenced nvidia-fabricmanager")
    assert facts() == (False, "off")


def test_fabric_manager_has_nothing_to_do_without_nvswitches(hopper):
    assert status(hopper, "systemctl start nvidia-fabricmanager") != 0


# --- how units are related ------------------------------------------------------------------------------------------


def test_nvsm_is_active_without_a_process_and_its_parts_stop_and_start_with_it(ampere):
    ampere.run("systemctl start nvsm")
    parts = [f"nvsm-{name}" for name in ("mqtt", "core", "api-gateway", "notifier")]
    assert shown(ampere, "nvsm", "ActiveState", "SubState", "MainPID") == ["active", "exited", "0"]
    assert [shown(ampere, part, "ActiveState") for part in parts] == [["active"]] * 4
    ampere.run("systemctl stop nvsm")
    assert [shown(ampere, part, "ActiveState") for part in parts] == [["inactive"]] * 4


def test_the_former_name_of_dcgm_means_the_same_unit(ampere):
    ampere.run("systemctl start dcgm")
    assert shown(ampere, "dcgm", "Id", "ActiveState") == ["nvidia-dcgm.service", "active"]


def test_a_display_manager_is_known_by_its_alias_once_it_is_enabled_and_needs_nvidia_drm(ampere):
    ampere.run("systemctl enable --now gdm 2>&1")
    assert shown(ampere, "display-manager", "Id") == ["gdm.service"]
    wait_for(lambda: "Xorg" in ampere.run("sim-driver status").stdout, "Xorg to open the GPUs")
    assert "Module nvidia_drm is in use" in ampere.run("rmmod nvidia_drm", check=False).stderr
    ampere.run("systemctl disable --now gdm 2>&1")
    assert status(ampere, IN_ORDER) == 255, "the module holds the GPUs as long as it is loaded"
    ampere.run("rmmod nvidia_drm")
    assert status(ampere, IN_ORDER) == 0


def test_starts_and_stops_are_noted_in_order(ampere):
    before = len(noted(ampere, "kubelet"))
    for number, command in enumerate(("start", "restart"), start=1):
        ampere.run(f"systemctl {command} kubelet")
        wait_for(lambda number=number: noted(ampere, "kubelet")[before:].count("start") == number, "kubelet to run")
    ampere.run("systemctl stop kubelet")
    assert noted(ampere, "kubelet")[before:] == ["start", "stop", "end"] * 2


# --- how they misbehave ---------------------------------------------------------------------------------------------


def test_a_refused_stop_fails_at_once_and_ends_nothing(ampere):
    ampere.run("systemctl start nvidia-dcgm")
    before = shown(ampere, "nvidia-dcgm", "MainPID")
    ampere.run(["sim-behave", "nvidia-dcgm", '{"stop": "refuse"}'])
    assert status(ampere, "systemctl stop nvidia-dcgm", timeout=10) == 4
    assert shown(ampere, "nvidia-dcgm", "ActiveState", "MainPID") == ["active", *before]
    ampere.run("sim-behave --clear; systemctl stop nvidia-dcgm")


@pytest.mark.parametrize("unit", ["nvidia-dcgm", "nvsm"])
def test_a_stop_can_take_its_time(ampere, unit):
    ampere.run(f"systemctl start {unit}")
    behave(ampere.sim, unit, stop="delay:1")
    started = time.monotonic()
    ampere.run(f"systemctl stop {unit}")
    assert time.monotonic() - started >= 1


@pytest.mark.parametrize("unit", ["nvidia-dcgm", "nvsm"])
def test_a_stop_can_hang_until_somebody_uses_force(ampere, unit):
    ampere.run(f"systemctl start {unit}")
    behave(ampere.sim, unit, stop="hang")
    assert status(ampere, f"timeout 1 systemctl stop {unit}") == 124
    assert shown(ampere, unit, "ActiveState") == ["deactivating"]
    ampere.run(f"systemctl kill --signal=KILL {unit}")
    wait_for(lambda: shown(ampere, unit, "ActiveState") == ["failed"], f"the end of {unit}")


@pytest.mark.parametrize(
    ("unit", "code"), [("nvidia-persistenced", 1), ("nvsm", 1), ("kubelet", 0)], ids=["forks", "oneshot", "simple"]
)
def test_a_start_can_fail_and_is_told_as_systemd_tells_it(ampere, unit, code):
    behave(ampere.sim, unit, start="fail")
    assert status(ampere, f"systemctl start {unit}") == code
    wait_for(lambda: shown(ampere, unit, "Result") == ["exit-code"], f"{unit} to fail")


def test_what_needs_a_driver_fails_without_one_and_dcgm_monitors_nothing(ampere):
    ampere.run("sim-driver unload")
    assert status(ampere, "systemctl start nvidia-persistenced") == 1
    ampere.run("systemctl start dcgm-exporter nvidia-dcgm")
    wait_for(lambda: shown(ampere, "dcgm-exporter", "ActiveState") == ["failed"], "the exporter to fail")
    wait_for(lambda: "start" in noted(ampere, "nvidia-dcgm")[-1:], "DCGM")
    assert shown(ampere, "nvidia-dcgm", "ActiveState") == ["active"]
    ampere.run("modprobe nvidia")
    assert status(ampere, IN_ORDER) == 0


def test_slurmd_and_cdi_do_not_bear_mig_mode_without_instances(hopper):
    hopper.simulator.call(set_mode, 0, 1)
    hopper.run("systemctl start slurmd")
    wait_for(lambda: shown(hopper, "slurmd", "ActiveState") == ["failed"], "slurmd to fail")
    assert status(hopper, "systemctl start nvidia-cdi-refresh") == 1
    hopper.simulator.call(make_instance, 0)
    hopper.run("systemctl reset-failed; systemctl start slurmd nvidia-cdi-refresh")
    wait_for(lambda: noted(hopper, "slurmd")[-1] == "start", "slurmd")
    uuid = hopper.simulator.describe()["gpus"][0]["instances"][0]["compute"][0]["uuid"]
    assert f'"{uuid}"' in hopper.run("cat /run/cdi/nvidia.yaml").stdout


# --- the driver -----------------------------------------------------------------------------------------------------


def test_a_capability_file_is_made_by_nvidia_modprobe_while_the_instance_exists(hopper):
    shown_at = "/proc/driver/nvidia/capabilities/gpu0/mig"
    assert status(hopper, f"nvidia-modprobe -f {shown_at}/gi1/access") == 1
    hopper.simulator.call(make_instance, 0)
    gi = hopper.simulator.describe()["gpus"][0]["instances"][0]["id"]
    hopper.run(f"nvidia-modprobe -f {shown_at}/gi{gi}/access -f {shown_at}/gi{gi}/ci0/access")
    minors = [3 + 9 * gi, 3 + 9 * gi + 1]
    for minor in minors:
        assert hopper.run(f"stat -c %F:%a /dev/nvidia-caps/nvidia-cap{minor}").stdout == "character special file:444\n"
    behave(hopper.sim, "nvidia-modprobe", fail=True)
    assert status(hopper, f"nvidia-modprobe -f {shown_at}/gi{gi}/access") == 1


@pytest.mark.parametrize(("options", "listed"), [("", True), ("--hidden", False)])
def test_a_process_of_a_user_holds_an_instance_until_it_is_killed(hopper, options, listed):
    hopper.simulator.call(make_instance, 0)
    gi = hopper.simulator.describe()["gpus"][0]["instances"][0]["id"]
    hold = f"sim-hold --gpu 0 --gi {gi} --ci 0 --user nobody --name job {options}"
    hopper.run(f"systemd-run --quiet --unit=job --collect sh -c '{hold} > /run/held'")
    wait_for(lambda: "as process" in hopper.run("cat /run/held", check=False).stdout, "the holder")
    pid = int(hopper.run("cat /run/held").stdout.split()[-1])
    assert hopper.run(f"cat /proc/{pid}/comm; stat -c %U /proc/{pid}").stdout == "job\nnobody\n"
    files = hopper.run(f"ls -l /proc/{pid}/fd").stdout
    assert ("/dev/nvidia0" in files, files.count("nvidia-caps/nvidia-cap")) == (True, 2)
    ask = "from ctypes import *; l = CDLL('libnvidia-ml.so.1'); l.nvmlInit_v2(); d = c_void_p(); "
    ask += "l.nvmlDeviceGetHandleByIndex_v2(0, byref(d)); n = c_uint(0); "
    ask += "l.nvmlDeviceGetComputeRunningProcesses_v3(d, byref(n), None); print(n.value)"
    assert hopper.run(["python3", "-c", ask]).stdout == f"{int(listed)}\n"
    hopper.run("systemctl stop job")
    assert hopper.run(["python3", "-c", ask]).stdout == "0\n"


def test_a_unit_that_hides_devices_does_not_reach_the_driver(ampere):
    run = "systemd-run --quiet --pipe --wait --collect"
    assert status(ampere, f"{run} -p ProtectHome=yes -p ProtectSystem=full -p PrivateTmp=yes nvidia-smi -L") == 0
    assert status(ampere, f"{run} -p PrivateDevices=yes nvidia-smi -L") == 9


def test_a_driver_in_use_is_not_reloaded(ampere):
    ampere.run("systemctl start nvidia-persistenced")
    assert "in use" in ampere.run("sim-driver reload", check=False).stderr
    assert "in use by: nvidia_uvm" in ampere.run("rmmod nvidia", check=False).stderr


@pytest.mark.parametrize(("which", "kept"), [("a100", 1), ("h100", 0)])
def test_a_reload_has_the_effect_of_the_generation_and_starts_what_a_rule_of_udev_wants(fleet, which, kept):
    node = fleet.node(which)
    node.simulator.call(make_instance, 0)
    rule = (
        'ACTION=="add", SUBSYSTEM=="module", KERNEL=="nvidia", TAG+="systemd", ENV{SYSTEMD_WANTS}+="kubelet.service"\n'
    )
    node.run("cat > /etc/udev/rules.d/90-test.rules", text=rule)
    try:
        node.run("sim-driver reload")
        gpu = node.simulator.describe()["gpus"][0]
        assert (gpu["mode_current"], gpu["instances"]) == (kept, [])
        wait_for(lambda: shown(node, "kubelet", "ActiveState") == ["active"], "the unit of the rule")
    finally:
        node.run("rm /etc/udev/rules.d/90-test.rules; systemctl stop kubelet")
        node.simulator.call(set_mode, 0, 0)


def test_nvidia_drm_is_loaded_and_unloaded_and_holds_gpus_meanwhile(ampere):
    ampere.run("modprobe nvidia-drm")
    assert ampere.run("ls /sys/class/drm/card1/device/driver/.. -d; cat /sys/module/nvidia_drm/initstate").stdout
    assert status(ampere, IN_ORDER) == 255
    assert ampere.run("ls /sys/class/net").stdout == "lo\n", "other classes are still there"
    ampere.run("rmmod nvidia_drm")
    assert status(ampere, IN_ORDER) == 0
    assert status(ampere, "rmmod nvidia_drm") == 1


# --- at boot --------------------------------------------------------------------------------------------------------


@pytest.fixture(name="reboot_with")
def _reboot_with(ampere: Node) -> t.Iterator[t.Callable[..., Node]]:
    file = ampere.sim / "driver.json"
    before = file.read_text()

    def reboot(**settings: t.Any) -> Node:
        file.write_text(json.dumps(settings))
        ampere.reboot()
        return ampere

    yield reboot
    file.write_text(before)
    ampere.reboot()


def gpus_on_the_bus(node: Node) -> int:
    return int(node.run("grep -l 0x0302 /sys/bus/pci/devices/*/class | wc -l").stdout)


def test_without_a_driver_there_are_gpus_on_the_bus_and_nothing_else(reboot_with):
    node = reboot_with(load=False)
    assert gpus_on_the_bus(node) == 2
    assert status(node, "nvidia-smi -L") == 9
    assert status(node, "ls /dev/nvidiactl /proc/driver/nvidia /sys/module/nvidia") == 2
    assert node.run("ls /dev/nvidia* /proc/driver", check=False).stdout.strip() in ("", "/proc/driver:")
    node.run("modprobe nvidia")
    assert status(node, "nvidia-smi -L") == 0


def test_a_slow_driver_that_nobody_waits_for_comes_after_the_boot(reboot_with):
    node = reboot_with(delay=3, background=True)
    assert (status(node, "nvidia-smi -L"), gpus_on_the_bus(node)) == (9, 2)
    wait_for(lambda: status(node, "nvidia-smi -L") == 0, "the driver")


def test_a_slow_driver_holds_up_those_that_are_ordered_after_it_and_no_login(ampere, reboot_with):
    ampere.run("systemctl enable nvidia-persistenced 2>&1")
    (ampere.sim / "driver.json").write_text('{"delay": 3}')
    boots = ampere.boots()
    ampere.run("systemctl reboot", check=False)
    wait_for(lambda: ampere.boots() == boots + 1, "the next boot")
    ampere.wait_for_ssh()
    assert ampere.run("systemctl is-system-running", check=False).stdout == "starting\n"
    assert ampere.wait() == "running"
    assert shown(ampere, "nvidia-persistenced", "ActiveState") == ["active"]
    ampere.run("systemctl disable --now nvidia-persistenced 2>&1")


def test_a_module_that_does_not_fit_the_kernel_is_not_loaded(reboot_with):
    node = reboot_with(load=False, broken=True)
    said = node.run("modprobe nvidia", check=False)
    assert (said.returncode, said.stderr) == (1, "modprobe: FATAL: the module nvidia was built for another kernel\n")


def test_without_nvidia_modprobe_the_number_of_capability_files_is_known(fleet):
    lone = Fleet(f"{fleet.name}-lone")
    try:
        (node,) = lone.up(["one=1xh100-sxm5-80gb"])
        (node.sim / "driver.json").write_text('{"nvidia_modprobe": false}')
        node.reboot()
        assert status(node, "test -e /usr/bin/nvidia-modprobe") == 1
        assert node.run("grep nvidia-caps /proc/devices").stdout == "241 nvidia-caps\n"
        assert status(node, "test -e /dev/nvidia-caps") == 1
        node.run("mkdir /dev/nvidia-caps && mknod -m 444 /dev/nvidia-caps/nvidia-cap12 c 241 12")
    finally:
        lone.down()


def test_a_reboot_ends_every_hold_and_has_the_effect_of_the_generation(fleet):
    nodes = [fleet.node(name) for name in ("a100", "h100")]
    for node in nodes:
        node.simulator.call(make_instance, 0)
        node.run("systemd-run --quiet --unit=job sim-hold --gpu 1")
        wait_for(lambda node=node: node.simulator.describe()["gpus"][1]["holders"], "the holder")
        node.reboot()
    described: list[t.Any] = [node.simulator.describe()["gpus"] for node in nodes]
    assert [(gpus[0]["mode_current"], gpus[0]["instances"], gpus[1]["holders"]) for gpus in described] == [
        (1, [], []),
        (0, [], []),
    ]
    assert nodes[0].run("ls /proc/driver/nvidia/capabilities/gpu0/mig").stdout == ""
    nodes[0].simulator.call(set_mode, 0, 0)


# --- containers -----------------------------------------------------------------------------------------------------


def containers(node: Node, *options: str) -> list[str]:
    return node.run(["docker", "ps", *options, "--format", "{{.Names}}"]).stdout.split()


def test_docker_runs_containers_in_control_groups_of_theirs_that_hold_their_gpus(ampere):
    ampere.run("systemctl start docker")
    identity = ampere.run("docker run -d --name one --label client=yes --gpus device=1 image").stdout.strip()
    ampere.run("docker run -d --name two image")
    assert containers(ampere, "--filter", "label=client=yes") == ["one"]
    assert ampere.run("docker ps -q --no-trunc --filter label=client").stdout == f"{identity}\n"
    pid = ampere.run("docker inspect --format '{{.State.Pid}}' one").stdout.strip()
    assert f"/system.slice/docker-{identity}.scope" in ampere.run(f"cat /proc/{pid}/cgroup").stdout
    assert status(ampere, IN_ORDER) == 255
    ampere.run("docker stop -t 5 one")
    assert status(ampere, IN_ORDER) == 0
    ampere.run("docker start one")
    assert sorted(containers(ampere)) == ["one", "two"]


def test_a_container_that_does_not_end_is_killed_when_its_time_is_over(ampere):
    ampere.run("systemctl start docker; docker run -d --name one -e SIM_STOP=ignore --gpus all image")
    started = time.monotonic()
    ampere.run("docker stop -t 1 one")
    assert time.monotonic() - started >= 1
    details = json.loads(ampere.run("docker container inspect one").stdout)[0]
    assert (details["State"]["Status"], details["State"]["ExitCode"]) == ("exited", 137)


def test_a_container_whose_device_is_gone_does_not_start(hopper):
    hopper.simulator.call(make_instance, 0)
    uuid = hopper.simulator.describe()["gpus"][0]["instances"][0]["compute"][0]["uuid"]
    hopper.run(f"systemctl start docker; docker run -d --name one --gpus device={uuid} image")
    hopper.run("docker stop one")
    hopper.simulator.reset(0)
    said = hopper.run("docker start one", check=False)
    assert (said.returncode, f"{uuid}: unknown device" in said.stderr) == (1, True)


def test_a_call_starts_the_daemon_where_systemd_listens_for_it_and_is_noted_otherwise(ampere):
    assert "Is the docker daemon running?" in ampere.run("docker ps", check=False).stderr
    assert noted(ampere, "docker")[-1] == "called while it does not run"
    ampere.run("systemctl start docker.socket; docker ps")
    assert shown(ampere, "docker", "ActiveState") == ["active"]


def test_containers_end_with_their_daemon_and_come_back_as_they_were_told(ampere):
    ampere.run("systemctl start docker")
    for name, policy in (("once", "no"), ("always", "always"), ("stopped", "unless-stopped")):
        ampere.run(f"docker run -d --name {name} --restart {policy} image")
    ampere.run("docker stop stopped")
    ampere.run("systemctl restart docker")
    assert containers(ampere) == ["always"]


def test_a_daemon_can_be_deaf(ampere):
    ampere.run("systemctl start docker")
    behave(ampere.sim, "docker", answer="hang")
    assert status(ampere, "timeout 1 docker ps") == 124


@pytest.mark.parametrize(
    ("program", "scope"), [("podman", "/machine.slice/libpod-"), ("nerdctl", "/system.slice/nerdctl-")]
)
def test_other_runtimes_are_there_when_a_test_wants_them(ampere, program, scope):
    assert status(ampere, f"command -v {program}") != 0
    ampere.run(f"ln -s /usr/lib/sim/optional/{program} /usr/bin/{program}")
    assert status(ampere, f"{program} ps") == (1 if program == "nerdctl" else 0), "nerdctl needs containerd"
    ampere.run(f"systemctl start containerd; {program} run -d --rm --name one --gpus all image")
    pid = ampere.run(f"{program} inspect --format '{{{{.State.Pid}}}}' one").stdout.strip()
    assert scope in ampere.run(f"cat /proc/{pid}/cgroup").stdout
    ampere.run(f"{program} stop one")
    assert ampere.run(f"{program} ps -aq").stdout == ""
    ampere.run(f"rm /usr/bin/{program}")


def test_the_state_can_be_watched_from_outside_while_the_node_uses_it(ampere):
    before = len(Simulator(ampere.sim / "gpus").calls())
    ampere.run("nvidia-smi -L")
    assert len(ampere.simulator.calls()) > before
