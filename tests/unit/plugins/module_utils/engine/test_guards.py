# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What speaks against a change is said with the next action, what cannot be told says so, and nothing else is said."""

from __future__ import annotations

import datetime
import json
import os
import re

import pytest

from ansible_collections.gpufleet.mig.plugins.module_utils.engine import guards
from ansible_collections.gpufleet.mig.plugins.module_utils.engine.driver import MemoryHealth
from ansible_collections.gpufleet.mig.plugins.module_utils.engine.model import DriverError, Problem, WishError
from ansible_collections.gpufleet.mig.tests.unit.plugins.module_utils.engine import boards
from ansible_collections.gpufleet.mig.tests.unit.plugins.module_utils.engine.fake_systemd import Fake

MIG_MANAGER = "nvidia-mig-manager.service"
FABRIC_MANAGER = "nvidia-fabricmanager.service"
HEALTHY = MemoryHealth(True, True, False, False)
ALL = guards.KINDS
POD = (
    "0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod214f3ba8_4b69_4bdb_a7d5_5ecc73f04ae9.slice/"
    f"cri-containerd-{'2' * 64}.scope\n"
)
NOW = datetime.datetime(2026, 12, 24, 5, 0, tzinfo=datetime.timezone.utc)


class Tree:
    """What a host shows in /proc, /sys, /run and /var."""

    def __init__(self, path):
        self.path = path
        self.process(1, "systemd", cgroup="0::/init.scope\n")
        self.file("proc/2/status", "Name:\tkthreadd\nState:\tS (sleeping)\nUid:\t0\t0\t0\t0\n")
        self.folder("sys/module/nvidia")
        self.folder("run/systemd/system")

    def __str__(self):
        return str(self.path)

    def file(self, name, text=""):
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def folder(self, name):
        (self.path / name).mkdir(parents=True, exist_ok=True)

    def process(self, pid, name, *arguments, uid=0, cgroup="", environment=None, config=None, opened=()):
        """A process as /proc has it; ``environment`` None is one that cannot be read."""
        folder = f"proc/{pid}"
        status = f"Name:\t{name[:15]}\nState:\tS (sleeping)\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nVmSize:\t 100 kB\n"
        self.file(f"{folder}/status", status)
        self.file(f"{folder}/comm", f"{name[:15]}\n")
        self.file(f"{folder}/cgroup", cgroup or f"0::/system.slice/{name}.service\n")
        self.file(f"{folder}/cmdline", "\0".join((name, *arguments, "")))
        if environment is not None:
            self.file(f"{folder}/environ", "".join(f"{key}={value}\0" for key, value in environment.items()))
        if config is not None:
            self.file(f"{folder}/root/config/config.json", config)
        self.folder(f"{folder}/fd")
        for number, target in enumerate(opened):
            os.symlink(target, self.path / folder / "fd" / str(number))

    def switch(self):
        """An NVSwitch of a DGX."""
        self.file("sys/bus/pci/devices/0000:c4:00.0/vendor", "0x10de\n")
        self.file("sys/bus/pci/devices/0000:c4:00.0/class", "0x068000\n")

    def kubelet(self):
        self.process(900, "kubelet")
        self.file("var/lib/kubelet/device-plugins/kubelet.sock")

    def display(self, *, of="nvidia"):
        """nvidia_drm, and a device of it; the node's own display is another one."""
        self.folder("sys/module/nvidia_drm")
        for name, driver in (("card0", "ast"), ("card1", of)):
            self.folder(f"sys/class/drm/{name}/device")
            os.symlink(f"../drivers/{driver}", self.path / f"sys/class/drm/{name}/device/driver")


@pytest.fixture(name="tree")
def tree_of_a_host(tmp_path):
    return Tree(tmp_path / "root")


@pytest.fixture(name="fake", autouse=True)
def fake_systemd(tmp_path, monkeypatch):
    fake = Fake(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{fake.folder}:{os.environ['PATH']}")
    return fake


def sight(*gpus, health=HEALTHY, version="580.95.05"):
    node = boards.node(*(gpus or (boards.gpu("a100-sxm4-40gb"),)), driver_version=version)
    return guards.Sight(node, {gpu.index: health for gpu in node.gpus if gpu.mig_capable is not False})


def everything(tree, kinds=ALL, seen=None):
    """All guards but the deadline, as the module asks them."""
    seen = seen or sight()
    return guards.on_gpus(seen, kinds, str(tree)) + guards.on_host(kinds, seen, root=str(tree))


def only(report):
    """The one finding of a report, which is one sentence with a next action and can be shown."""
    assert report.unknown == ()
    (finding,) = report.findings
    assert finding.sentence.isprintable()
    assert finding.sentence.endswith(".")
    assert not re.search(r"[a-z)]\. [A-Z]", finding.sentence)
    assert ": " in finding.sentence
    return finding


# --- hosts on which nothing speaks against it ----------------------------------------------------------------------


def a_plain_dgx(tree, fake):
    """The unit of mig-parted is installed there and off, NVSwitches and Fabric Manager are in order."""
    fake.unit(MIG_MANAGER, "inactive", UnitFileState="disabled")
    fake.unit(FABRIC_MANAGER, UnitFileState="enabled")
    tree.switch()
    tree.process(700, "nv-fabricmanager", cgroup=f"0::/system.slice/{FABRIC_MANAGER}\n")
    for pid, name in enumerate(("nvidia-persistenced", "nvsm_core", "nv-hostengine", "dcgm-exporter"), start=710):
        tree.process(pid, name)
    tree.display()
    tree.process(720, "Xorg", cgroup="0::/system.slice/gdm.service\n", opened=("/dev/dri/card0",))
    tree.file("run/cloud-init/status.json", "{}")
    tree.file("run/cloud-init/result.json", "{}")


def a_plain_slurm_node(tree, _fake):
    job = "0::/system.slice/slurmstepd.scope/job_7/step_batch/user/task_0\n"
    for pid, name in enumerate(("slurmd", "munged", "nvidia-persistenced"), start=700):
        tree.process(pid, name)
    tree.process(710, "python", cgroup=job, uid=1000)
    # Whoever is not root partitions nothing, however a program of his is called.
    tree.process(711, "nvidia-mig-manager", cgroup=job, uid=1000)
    tree.process(712, "nvidia-mig-parted", cgroup=job, uid=1000)
    tree.process(713, "nvidia-cuda-mps-server", cgroup=job, uid=1000)


def a_kubernetes_node(tree, _fake):
    """With device plugin, exporter, and a DRA driver and HAMi that share GPUs without partitioning them."""
    tree.kubelet()
    tree.process(800, "nvidia-device-plugin", "--config-file=/config.yaml", cgroup=POD, environment={"NODE_NAME": "n1"})
    tree.process(801, "dcgm-exporter", cgroup=POD)
    tree.process(802, "gpu-feature-discovery", cgroup=POD)
    gates = {"FEATURE_GATES": "MPSSupport=true,DynamicMIG=false,"}
    tree.process(803, "gpu-kubelet-plugin", "-v", "4", cgroup=POD, environment=gates)
    tree.process(804, "compute-domain-kubelet-plugin", cgroup=POD, environment={})
    tree.file("var/lib/kubelet/plugins/gpu.nvidia.com/dra.sock")
    hami = {"NODE_NAME": "n1", "HOOK_PATH": "/usr/local"}
    config = json.dumps({"nodeconfig": [{"name": "n2", "operatingmode": "mig"}, {"name": "n1"}]})
    arguments = ("--config-file=/device-config.yaml", "--disable-core-limit=false")
    tree.process(805, "nvidia-device-plugin", *arguments, cgroup=POD, environment=hami, config=config)
    tree.process(806, "vGPUmonitor", cgroup=POD)


def a_host_without_systemd(tree, _fake):
    (tree.path / "run/systemd/system").rmdir()


@pytest.mark.parametrize("board", ["a100-sxm4-40gb", "h100-sxm5-80gb"])
@pytest.mark.parametrize("host", [a_plain_dgx, a_plain_slurm_node, a_kubernetes_node, a_host_without_systemd])
def test_nothing_is_said_of_a_host_that_is_in_order(tree, fake, host, board):
    host(tree, fake)
    seen = sight(boards.gpu(board), boards.gpu("tesla-t4", 1, persistence=False))
    assert everything(tree, seen=seen) == guards.NOTHING
    assert not fake.calls("stop", "start", "disable", "mask")


# --- owner ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("active", "enabled", "said"),
    [
        ("inactive", "enabled", "is enabled, and"),
        ("inactive", "enabled-runtime", "is enabled, and"),
        ("failed", "enabled", "is enabled, and"),
        ("activating", "disabled", "is active, and"),
        ("active", "enabled", "is enabled and active, and"),
    ],
)
def test_the_unit_of_mig_parted_is_named_for_a_takeover(tree, fake, active, enabled, said):
    fake.unit(MIG_MANAGER, active, UnitFileState=enabled)
    finding = only(everything(tree))
    assert finding.name == "owner"
    assert finding.sentence.startswith(f"{MIG_MANAGER} {said}")
    assert f"systemctl disable --now {MIG_MANAGER}" in finding.sentence
    assert finding.units == (MIG_MANAGER,)


@pytest.mark.parametrize("enabled", ["disabled", "masked", "static"])
def test_a_unit_of_mig_parted_that_is_off_owns_nothing(tree, fake, enabled):
    fake.unit(MIG_MANAGER, "inactive", UnitFileState=enabled)
    assert everything(tree) == guards.NOTHING


@pytest.mark.parametrize("program", ["nvidia-mig-manager", "nvidia-k8s-mig-manager"])
def test_the_mig_manager_of_kubernetes_is_named_with_its_pod_and_no_unit(tree, program):
    tree.process(4711, program, cgroup=POD)
    finding = only(everything(tree))
    assert finding.name == "owner"
    assert "4711" in finding.sentence
    assert "pod 214f3ba8-4b69-4bdb-a7d5-5ecc73f04ae9" in finding.sentence
    assert "NVIDIA's MIG manager for Kubernetes" in finding.sentence
    assert "nvidia.com/gpu.deploy.mig-manager" in finding.sentence
    assert (finding.units, finding.labels) == ((), ("nvidia.com/gpu.deploy.mig-manager",))


def test_a_run_of_mig_parted_is_waited_for_and_what_started_it_is_left_alone(tree):
    tree.process(4711, "nvidia-mig-parted", "apply", cgroup="0::/system.slice/cron.service\n")
    finding = only(everything(tree))
    assert (finding.name, finding.units) == ("owner", ())
    assert "of cron.service" in finding.sentence
    assert "right now: wait" in finding.sentence


@pytest.mark.parametrize(
    ("arguments", "gates"),
    [
        ((), "TimeSlicingSettings=true,DynamicMIG=true,"),
        ((), "dynamicmig=true"),
        ((), "AllAlpha=true"),
        (("--feature-gates=DynamicMIG=true",), ""),
    ],
)
def test_the_dra_driver_is_an_owner_where_it_makes_mig_devices(tree, arguments, gates):
    tree.process(803, "gpu-kubelet-plugin", *arguments, cgroup=POD, environment={"FEATURE_GATES": gates})
    finding = only(everything(tree))
    assert finding.name == "owner"
    assert "NVIDIA's DRA driver for Kubernetes" in finding.sentence
    assert "DynamicMIG" in finding.sentence


def test_a_gate_that_is_switched_off_wins_over_all_gates(tree):
    gates = {"FEATURE_GATES": "AllAlpha=true,DynamicMIG=false"}
    tree.process(803, "gpu-kubelet-plugin", cgroup=POD, environment=gates)
    assert everything(tree) == guards.NOTHING


HAMI = {"NODE_NAME": "n1", "HOOK_PATH": "/usr/local"}
IN_MIG_MODE = json.dumps({"nodeconfig": [{"name": "n1", "operatingmode": "mig"}]})


def test_hami_is_an_owner_where_its_config_says_mig_of_this_node(tree):
    tree.process(805, "nvidia-device-plugin", cgroup=POD, environment=HAMI, config=IN_MIG_MODE)
    finding = only(everything(tree))
    assert finding.name == "owner"
    assert "HAMi's device plugin with the operatingmode mig" in finding.sentence


@pytest.mark.parametrize(
    "config",
    [None, "", "[]", "{}", '{"nodeconfig": 3}', '{"nodeconfig": [3]}', "[" * 100000],
    ids=["absent", "empty", "a list", "without nodes", "a number", "numbers", "endless"],
)
def test_a_config_of_hami_that_makes_no_sense_tells_nothing(tree, config):
    tree.process(805, "nvidia-device-plugin", cgroup=POD, environment=HAMI, config=config)
    report = everything(tree)
    assert report.findings == ()
    assert "HAMi's device plugin, makes MIG devices cannot be told" in report.unknown[0]


def test_a_pipe_in_the_place_of_a_config_keeps_nobody_waiting(tree):
    tree.process(805, "nvidia-device-plugin", cgroup=POD, environment=HAMI, config="")
    config = tree.path / "proc/805/root/config/config.json"
    config.unlink()
    os.mkfifo(config)
    assert everything(tree).findings == ()


@pytest.mark.parametrize(
    ("name", "arguments", "told"),
    [
        ("gpu-kubelet-plugin", (), "NVIDIA's DRA driver"),
        ("nvidia-device-plugin", ("--disable-core-limit=false",), "HAMi"),
    ],
)
def test_settings_that_only_root_may_read_are_not_guessed(tree, name, arguments, told):
    tree.process(803, name, *arguments, cgroup=POD)
    report = everything(tree)
    assert report.findings == ()
    (sentence,) = report.unknown
    assert told in sentence
    assert "cannot be told: run as root" in sentence


def test_hidden_processes_are_said_and_so_is_a_socket_that_one_of_them_may_have(tree):
    tree.path.joinpath("proc/1").rename(tree.path / "hidden")
    tree.file("var/lib/kubelet/plugins/gpu.nvidia.com/dra.sock")
    report = everything(tree)
    assert report.findings == ()
    assert [sentence.split(",")[0] for sentence in report.unknown] == [
        "Whether NVIDIA's DRA driver for Kubernetes",
        "Whether another manager of MIG",
    ]


def test_what_has_ended_and_is_not_collected_yet_owns_nothing(tree):
    tree.file("proc/4711/status", "Name:\tnvidia-mig-mana\nState:\tZ (zombie)\nUid:\t0\t0\t0\t0\n")
    assert everything(tree) == guards.NOTHING


def test_names_of_processes_are_data(tree):
    tree.process(4711, "nvidia-mig-manager", cgroup="0::/system.slice/\x1b[31mred\u2028.service\n")
    assert only(everything(tree)).sentence.isprintable()


# --- systemd that does not answer ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("behaviour", "why"),
    [
        ({"hang": True}, "did not answer systemctl within 0.5 s"),
        (
            {"refuse": "Failed to connect to bus:\n no such file."},
            "systemctl says: Failed to connect to bus: no such file;",
        ),
        ({"refuse": ""}, "systemctl ended with 1"),
    ],
)
def test_a_systemd_that_does_not_answer_is_asked_once_and_said(tree, fake, monkeypatch, behaviour, why):
    monkeypatch.setattr(guards, "_ANSWER_SECONDS", 0.5)
    fake.set(systemctl=behaviour)
    tree.switch()
    report = guards.on_host(ALL, None, root=str(tree))
    assert report.findings == ()
    (sentence,) = report.unknown
    assert why in sentence
    assert "systemctl status" in sentence
    assert len(fake.calls()) == 1


@pytest.mark.parametrize("state", ["offline", "unknown"])
def test_a_state_that_means_nothing_is_cannot_tell(tree, fake, state):
    fake.set(system=state)
    report = everything(tree)
    assert report.findings == ()
    assert f"the system is {state}" in report.unknown[0]


# --- boot ----------------------------------------------------------------------------------------------------------


@pytest.fixture(name="starting")
def a_systemd_that_starts(tmp_path, monkeypatch):
    """A systemd with jobs, which the fake has not."""
    program = tmp_path / "starting/systemctl"
    program.parent.mkdir()

    def make(state, jobs=""):
        program.write_text(
            f"""#!/bin/sh
case "$*" in
*is-system-running*) echo {state}; exit 1;;
*list-jobs*) printf '%s' '{jobs}';;
esac
"""
        )
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")

    return make


def test_a_node_that_starts_is_told_with_what_it_waits_for(tree, starting):
    jobs = "101 kubelet.service start waiting\n" + "".join(f"{n} u{n}.service start running\n" for n in range(5))
    starting("starting", jobs)
    finding = only(everything(tree))
    assert finding.name == "boot"
    assert "(waits for u0.service, u1.service, u2.service and 2 more)" in finding.sentence
    assert "systemctl is-system-running --wait" in finding.sentence


def test_cloud_init_is_named_while_the_node_starts(tree, starting):
    starting("initializing")
    tree.file("run/cloud-init/status.json", "{}")
    assert "still starting (cloud-init runs): wait" in only(everything(tree)).sentence


def test_a_start_with_nothing_to_name_is_said_all_the_same(tree, starting):
    starting("starting")
    assert "The node is still starting: wait" in only(everything(tree)).sentence


def test_a_node_that_shuts_down_is_left_alone(tree, starting):
    starting("stopping")
    assert "shutting down" in only(everything(tree)).sentence


@pytest.mark.parametrize("state", ["running", "degraded", "maintenance"])
def test_after_the_start_a_cloud_init_that_was_killed_means_nothing(tree, fake, state):
    fake.set(system=state)
    tree.file("run/cloud-init/status.json", "{}")
    assert everything(tree) == guards.NOTHING


def test_without_systemd_cloud_init_alone_tells(tree):
    (tree.path / "run/systemd/system").rmdir()
    tree.file("run/cloud-init/status.json", "{}")
    assert "cloud-init status --wait" in only(everything(tree)).sentence


# --- memory --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("health", "said"),
    [
        (HEALTHY._replace(remap_pending=True), "rows that wait to be remapped"),
        (HEALTHY._replace(ecc_pending=False), "is on and will be off after the next reset"),
        (HEALTHY._replace(ecc_current=False), "is off and will be on after the next reset"),
    ],
)
def test_what_waits_in_the_memory_speaks_against_all_but_a_reset(tree, health, said):
    for kinds in (ALL, ["instances"], ["mode"]):
        finding = only(everything(tree, kinds, sight(health=health)))
        assert finding.name == "memory"
        assert finding.sentence.count("GPU 0 (") == 1
        assert said in finding.sentence
    assert everything(tree, ["reset"], sight(health=health)) == guards.NOTHING


def test_a_remapping_that_failed_speaks_against_everything(tree):
    health = HEALTHY._replace(remap_failed=True)
    assert "have the board replaced" in only(everything(tree, ["reset"], sight(health=health))).sentence


def test_a_memory_of_which_the_driver_says_nothing_is_no_reason(tree):
    assert everything(tree, seen=sight(health=MemoryHealth())) == guards.NOTHING


def test_each_gpu_is_told_by_itself(tree):
    seen = sight(*(boards.gpu("a30-24gb", index) for index in range(3)))
    seen.health[1] = HEALTHY._replace(remap_pending=True, ecc_pending=False)
    assert [finding.sentence.count("GPU 1 (") for finding in everything(tree, seen=seen).findings] == [1, 1]


def test_a_gpu_that_does_not_answer_is_cannot_tell(tree):
    problem = Problem("nvmlDeviceGetEccMode", "UNKNOWN", "look into 'dmesg'")
    report = everything(tree, seen=sight(health=MemoryHealth(problems=(problem,))))
    assert report.findings == ()
    assert "nvmlDeviceGetEccMode failed with UNKNOWN; look into 'dmesg'." in report.unknown[0]
    lost = boards.gpu("a30-24gb", mig_capable=None, problems=(Problem("nvmlDeviceGetUUID", "GPU_IS_LOST", "reboot"),))
    report = everything(tree, seen=sight(lost, health=MemoryHealth()))
    assert report.findings == ()
    assert "GPU_IS_LOST" in report.unknown[0]


# --- driver --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["570.124.06", "570.133.20", "570.148.08", "570.158.01", "575.51.03", "575.57.08"])
def test_drivers_that_are_known_to_be_bad_are_told_where_they_are(tree, version):
    """The device plugin hung with these, in public, on nodes with MIG devices beside whole GPUs."""
    tree.kubelet()
    finding = only(everything(tree, seen=sight(version=version)))
    assert finding.name == "driver"
    assert finding.sentence.startswith(f"Driver {version} is known to be bad with MIG")
    assert "https://github.com/NVIDIA/gpu-operator/issues/1361" in finding.sentence
    assert "580.65.06" in finding.sentence


@pytest.mark.parametrize("version", ["560.35.05", "570.86.15", "570.172.08", "575.64.03", "580.65.06", "580.95.05", ""])
def test_drivers_that_are_not_known_to_be_bad_are_not_told(tree, version):
    tree.kubelet()
    assert everything(tree, seen=sight(version=version)) == guards.NOTHING


def test_what_hits_a_kubelet_is_not_told_where_there_is_none(tree):
    assert everything(tree, seen=sight(version="570.124.06")) == guards.NOTHING


def test_every_row_of_the_table_has_a_day_a_source_and_a_way_out():
    for row in guards.BAD_DRIVERS:
        assert datetime.date.fromisoformat(row.told)
        assert row.source.startswith("https://")
        assert row.what
        assert row.remedy
        assert guards._numbers(row.first) <= guards._numbers(row.last)


# --- persistence ---------------------------------------------------------------------------------------------------


def test_persistence_that_is_off_is_advice(tree):
    seen = sight(*(boards.gpu("a30-24gb", index, persistence=index == 1) for index in range(3)))
    finding = only(everything(tree, seen=seen))
    assert (finding.name, finding.advice) == ("persistence", True)
    assert "of GPU 0, 2 is off" in finding.sentence
    assert everything(tree, seen=sight(boards.gpu("a30-24gb", persistence=None))) == guards.NOTHING


# --- nvidia_drm ----------------------------------------------------------------------------------------------------


def with_a_display(tree):
    tree.display()
    tree.process(720, "Xorg", cgroup="0::/system.slice/gdm.service\n", opened=("/dev/dri/card1",))
    tree.process(
        721, "gnome-shell", cgroup="0::/user.slice/user-1000.slice/session-2.scope\n", opened=("/dev/dri/card1",)
    )


def test_who_uses_nvidia_drm_is_named_with_unit_and_session_where_something_is_reset(tree):
    with_a_display(tree)
    finding = only(everything(tree, ["reset"]))
    assert finding.name == "drm"
    assert "Process 720 (Xorg) of gdm.service; Process 721 (gnome-shell) of login session 2 use" in finding.sentence
    assert "stop them ('systemctl stop gdm.service')" in finding.sentence
    assert finding.units == ("gdm.service",)


@pytest.mark.parametrize(
    ("board", "virtualization", "kinds", "matters"),
    [
        ("a100-sxm4-40gb", "none", ["mode"], True),
        ("a100-sxm4-40gb", "none", ["instances"], False),
        ("a100-sxm4-40gb", "passthrough", ["instances", "mode"], False),
        ("h100-sxm5-80gb", "none", ["instances", "mode"], False),
        ("h100-sxm5-80gb", "none", ["mode", "reset"], True),
    ],
)
def test_a_display_server_matters_where_a_gpu_is_reset(tree, board, virtualization, kinds, matters):
    with_a_display(tree)
    report = everything(tree, kinds, sight(boards.gpu(board, virtualization=virtualization)))
    assert [finding.name for finding in report.findings] == (["drm"] if matters else [])


def test_a_display_server_on_another_board_does_not_matter(tree):
    with_a_display(tree)
    (tree.path / "sys/class/drm/card1/device/driver").unlink()
    os.symlink("../drivers/mgag200", tree.path / "sys/class/drm/card1/device/driver")
    assert everything(tree) == guards.NOTHING


def test_a_module_that_nobody_uses_is_for_whoever_resets(tree):
    tree.display()
    assert everything(tree) == guards.NOTHING


def test_a_host_that_does_not_show_its_modules_is_cannot_tell(tree):
    (tree.path / "sys/module/nvidia").rmdir()
    report = everything(tree, ["reset"])
    assert report.findings == ()
    assert "nvidia_drm" in report.unknown[0]
    assert everything(tree, ["instances"]) == guards.NOTHING


# --- vgpu ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("virtualization", ["vgpu", "host-vgpu", "host-vsga"])
def test_gpus_that_serve_virtual_machines_are_told(tree, virtualization):
    finding = only(everything(tree, seen=sight(boards.gpu("a100-sxm4-40gb", virtualization=virtualization))))
    assert finding.name == "vgpu"
    assert "MIG of vGPU hosts and guests is not supported" in finding.sentence


@pytest.mark.parametrize(("functions", "told"), [("4\n", True), ("0\n", False), ("many", False)])
def test_virtual_functions_tell_a_vgpu_host_too(tree, functions, told):
    gpu = boards.gpu("a100-sxm4-40gb", pci_bus_id="00000000:4B:00.0")
    tree.file("sys/bus/pci/devices/0000:4b:00.0/sriov_numvfs", functions)
    report = everything(tree, seen=sight(gpu))
    assert [finding.name for finding in report.findings] == (["vgpu"] if told else [])
    if told:
        assert "has 4 virtual functions (sriov_numvfs)" in only(report).sentence


def test_an_old_driver_is_not_taken_for_a_vgpu(tree):
    assert everything(tree, seen=sight(version="515.65.01")) == guards.NOTHING


# --- mps -----------------------------------------------------------------------------------------------------------


def test_a_control_daemon_of_mps_is_told_with_its_unit(tree):
    tree.process(77, "nvidia-cuda-mps-control", "-d", uid=1000, cgroup="0::/system.slice/nvidia-mps.service\n")
    tree.process(78, "nvidia-cuda-mps-server", cgroup="0::/system.slice/nvidia-mps.service\n")
    finding = only(everything(tree))
    assert (finding.name, finding.units) == ("mps", ("nvidia-mps.service",))
    assert finding.sentence.startswith(
        "Process 77 (nvidia-cuda-mps) of nvidia-mps.service is the control daemon of MPS"
    )


def test_the_unit_of_a_user_is_not_taken_for_one_of_the_system(tree):
    cgroup = "0::/user.slice/user-1000.slice/user@1000.service/app.slice/mps.service\n"
    tree.process(77, "nvidia-cuda-mps-control", "-d", uid=1000, cgroup=cgroup)
    assert only(everything(tree)).units == ()


# --- fabric --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("active", "said"),
    [
        (None, f"({FABRIC_MANAGER} is not-found)"),
        ("inactive", f"({FABRIC_MANAGER} is inactive)"),
        ("failed", "is failed"),
    ],
)
def test_a_board_with_switches_whose_fabric_manager_does_not_run_is_told(tree, fake, active, said):
    tree.switch()
    if active:
        fake.unit(FABRIC_MANAGER, active)
    else:
        fake.unit(FABRIC_MANAGER, "inactive", LoadState="not-found")
    finding = only(everything(tree))
    assert finding.name == "fabric"
    assert said in finding.sentence


def test_a_fabric_manager_in_a_container_runs_too(tree):
    tree.switch()
    tree.process(700, "nv-fabricmanager", cgroup=POD)
    assert everything(tree) == guards.NOTHING


def test_a_board_without_switches_needs_no_fabric_manager(tree, fake):
    fake.unit(FABRIC_MANAGER, "failed")
    assert everything(tree) == guards.NOTHING


# --- NVML that does not answer -------------------------------------------------------------------------------------

NOT_LOADED = DriverError("nvmlInit failed with DRIVER_NOT_LOADED: load it.", call="nvmlInit", error="DRIVER_NOT_LOADED")


def kernels(tree, running, **modules):
    tree.file("proc/sys/kernel/osrelease", f"{running}\n")
    for name, dependencies in modules.items():
        tree.file(f"lib/modules/{name.replace('_', '.')}/modules.dep", dependencies)


def test_a_driver_that_does_not_answer_always_stops(tree):
    (finding,) = guards.without_nvml(NOT_LOADED, str(tree)).findings
    assert (finding.name, finding.sentence, finding.advice) == ("nvml", str(NOT_LOADED), False)
    assert "nvml" not in guards.NAMES


def test_a_kernel_for_which_the_driver_was_not_built_is_named(tree):
    """A kernel was updated, and the build of the driver for it failed."""
    kernels(
        tree,
        "6.2",
        **{
            "6_2": "kernel/fs/ext4.ko:\n",
            "6_1": "updates/dkms/nvidia.ko.zst: kernel/a.ko\n",
            "6_0": "x/nvidiafb.ko:\n",
        },
    )
    sentence = guards.without_nvml(NOT_LOADED, str(tree)).findings[0].sentence
    assert "The driver has no module for the kernel 6.2, which runs, only for 6.1: build it" in sentence


@pytest.mark.parametrize("case", ["built", "cannot tell", "in a container", "another error"])
def test_a_module_that_may_be_there_is_not_missed(tree, case):
    kernels(tree, "6.2", **{"6_2": "extra/nvidia.ko.xz:\n" if case == "built" else "kernel/fs/ext4.ko:\n"})
    error = NOT_LOADED
    if case == "cannot tell":
        (tree.path / "lib/modules/6.2/modules.dep").unlink()
    if case == "in a container":
        tree.folder("run/nvidia/driver")
    if case == "another error":
        error = DriverError("It hangs.", call="nvmlInit", error="NO_ANSWER")
    assert guards.without_nvml(error, str(tree)).findings[0].sentence == str(error)


def test_what_the_host_says_is_told_without_nvml_too(tree, fake):
    fake.unit(MIG_MANAGER, UnitFileState="enabled")
    assert [finding.name for finding in guards.on_host(["mode"], None, root=str(tree)).findings] == ["owner"]


# --- deadline ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "2026-12-24T06:00:00+01:00",
        "2026-12-24T05:00:00Z",
        "2026-12-24 05:00:00z",
        "2026-12-24 06:00:00+01:00",
        "2026-12-24T06:00+0100",
        "2026-12-24T06:00:00.000+01",
        " 2026-12-24T00:30:00-04:30 ",
    ],
)
def test_a_deadline_is_the_same_time_however_it_is_written(text):
    assert guards.parse_time("deadline", text) == NOW


@pytest.mark.parametrize("text", ["2026-12-24T06:00:00", "2026-12-24 06:00"])
def test_a_time_of_which_the_offset_is_not_known_is_refused(text):
    with pytest.raises(WishError, match="without an offset from UTC, which is another time on each host; write it as"):
        guards.parse_time("deadline", text)


@pytest.mark.parametrize(
    "text", ["tomorrow", "2026-12-24", "06:00Z", "2026-13-24T06:00:00Z", "2026-12-24T25:00Z", "1798088400", "\x1b[2J"]
)
def test_what_is_no_time_is_refused_and_shown_safely(text):
    with pytest.raises(WishError, match="which is no time.*; write it as") as caught:
        guards.parse_time("deadline", text)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("seconds", "needs", "said"),
    [
        (600, 600, None),
        (600, 0, None),
        (599, 600, "is in 599 s, and the change may take 600 s"),
        (0, 0, "is over"),
        (-1, 0, "is over"),
    ],
)
def test_a_change_that_would_end_too_late_is_not_begun(seconds, needs, said):
    deadline = NOW + datetime.timedelta(seconds=seconds)
    report = guards.on_deadline(deadline, needs, NOW)
    if said is None:
        assert report == guards.NOTHING
    else:
        finding = only(report)
        assert finding.name == "deadline"
        assert said in finding.sentence
        assert deadline.isoformat() in finding.sentence
