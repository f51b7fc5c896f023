# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What keeps a GPU from being reset is said before anything is touched, and the reset touches the named GPUs only."""

from __future__ import annotations

import os
import time
import typing as t
from pathlib import Path

import pytest

from ansible_collections.gpufleet.mig.plugins.module_utils.engine import commands as programs
from ansible_collections.gpufleet.mig.plugins.module_utils.engine import reset
from ansible_collections.gpufleet.mig.plugins.module_utils.engine.clients import UnitState
from ansible_collections.gpufleet.mig.plugins.module_utils.engine.model import (
    ComputeInstance,
    DriverError,
    Gpu,
    GpuInstance,
    Node,
    Owner,
    Placement,
    Process,
    Profile,
)

PYTHON = Process(4711, "python", kind="compute", owner=Owner("job", job="123"))
EXPORTER = Process(812, "dcgm-exporter", kind="open", listed=False, owner=Owner("unit", unit="dcgm-exporter.service"))
FABRIC = Process(700, "nv-fabricmanage", kind="open", listed=False, cooperative=True)
PERSISTENCED = Process(701, "nvidia-persiste", kind="open", listed=False, cooperative=True)


def gpu(index: int = 0, architecture: str = "ampere", **facts: t.Any) -> Gpu:
    return Gpu(
        index,
        uuid=f"GPU-{index}",
        pci_bus_id=f"00000000:0{index}:00.0",
        architecture=architecture,
        mig_capable=True,
        **facts,
    )


def with_device(process: Process, index: int = 0) -> Gpu:
    """A GPU with one MIG device, which this process uses."""
    compute = ComputeInstance(0, 3, Placement(0, 3), processes=(process,))
    return gpu(index, instances=(GpuInstance(1, Profile(9, 9, "3g.20gb", 3, 20, 19968), Placement(0, 4), (compute,)),))


def node(*gpus: Gpu) -> Node:
    return Node(gpus)


@pytest.fixture(name="root")
def root_of_a_host(tmp_path):
    """A host with the driver loaded, without NVSwitch and without nvidia_drm."""
    return Host(tmp_path / "root")


class Host:
    """A tree with what is read of /proc, /sys and /run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "proc/self/fd").mkdir(parents=True)
        (path / "sys/module/nvidia").mkdir(parents=True)

    def __str__(self) -> str:
        return str(self.path)

    def load_drm(self) -> None:
        (self.path / "sys/module/nvidia_drm").mkdir()

    def process(self, pid: int, name: str, *opened: str, unit: str = "") -> None:
        folder = self.path / "proc" / str(pid)
        (folder / "fd").mkdir(parents=True)
        (folder / "comm").write_text(f"{name[:15]}\n")
        if unit:
            (folder / "cgroup").write_text(f"0::/system.slice/{unit}\n")
        for number, target in enumerate(opened):
            (folder / "fd" / str(number)).symlink_to(target)

    def pci_device(self, address: str, vendor: str, kind: str) -> None:
        folder = self.path / "sys/bus/pci/devices" / address
        folder.mkdir(parents=True)
        (folder / "vendor").write_text(f"{vendor}\n")
        (folder / "class").write_text(f"{kind}\n")

    def drm_device(self, name: str, driver: str) -> None:
        folder = self.path / "sys/class/drm" / name / "device"
        folder.mkdir(parents=True)
        (folder / "driver").symlink_to(f"../../../bus/pci/drivers/{driver}")


def obstacles(root: Host, *gpus: Gpu, named: t.Sequence[int] = (0,), **options: t.Any) -> tuple[str, ...]:
    return reset.obstacles(node(*gpus), named, root=str(root), **{"by_driver": False, **options})


def only(sentences: tuple[str, ...]) -> str:
    assert len(sentences) == 1, sentences
    return sentences[0]


# --- who uses the GPU ----------------------------------------------------------------------------------------------


def test_nothing_keeps_an_idle_gpu_from_being_reset(root):
    assert obstacles(root, gpu()) == ()


def test_no_gpu_no_obstacle(root):
    root.load_drm()
    assert obstacles(root, gpu(processes=(PYTHON,)), named=()) == ()


def test_whoever_has_the_gpu_open_is_named_with_what_to_do(root):
    sentence = only(obstacles(root, gpu(processes=(PYTHON, EXPORTER))))
    assert sentence.startswith("GPU 0 (00000000:00:00.0, GPU-0) cannot be reset while it is in use by ")
    assert "4711" in sentence
    assert "812" in sentence
    assert sentence.endswith("stop them, or name dcgm-exporter.service in clients and set evict to clients.")


def test_whoever_uses_an_instance_is_in_the_way_too(root):
    sentence = only(obstacles(root, with_device(PYTHON)))
    assert "4711" in sentence
    assert sentence.endswith(": stop it.")


def test_a_process_is_named_once(root):
    used = with_device(PYTHON)
    assert only(obstacles(root, used._replace(processes=(PYTHON._replace(kind="open"),)))).count("4711") == 1


@pytest.mark.parametrize("daemon", [FABRIC, PERSISTENCED])
def test_those_that_hand_over_are_left_running(root, daemon):
    (root.path / "run/nvidia-persistenced").mkdir(parents=True)
    (root.path / "run/nvidia-persistenced/socket").touch()
    assert obstacles(root, gpu(processes=(daemon,))) == ()


def test_persistenced_without_its_socket_cannot_hand_over(root):
    """It runs in a container, or its socket is in another mount namespace."""
    sentence = only(obstacles(root, gpu(processes=(PERSISTENCED,))))
    assert "701" in sentence
    assert "/run/nvidia-persistenced/socket" in sentence
    assert obstacles(root, gpu(), gpu(1, processes=(PERSISTENCED,))) == ()


def test_persistenced_may_have_its_socket_below_var(root):
    (root.path / "var/run/nvidia-persistenced").mkdir(parents=True)
    (root.path / "var/run/nvidia-persistenced/socket").touch()
    assert obstacles(root, gpu(processes=(PERSISTENCED,))) == ()


# --- computing on other GPUs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["compute", "mps"])
def test_computing_on_another_gpu_keeps_every_gpu_from_being_reset(root, kind):
    sentence = only(obstacles(root, gpu(), gpu(1, processes=(PYTHON._replace(kind=kind),))))
    assert "4711" in sentence
    assert "GPU 1 (00000000:01:00.0, GPU-1)" in sentence
    assert "stop it, or reboot the node" in sentence


def test_computing_on_an_instance_of_another_gpu_counts(root):
    assert "GPU 1" in only(obstacles(root, gpu(), with_device(PYTHON, 1)))


@pytest.mark.parametrize("kind", ["open", "graphics"])
def test_another_gpu_may_be_open_as_long_as_nobody_computes_on_it(root, kind):
    assert obstacles(root, gpu(), gpu(1, processes=(EXPORTER._replace(kind=kind),))) == ()


# --- what can never be reset ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_driver", [True, False])
def test_ampere_in_a_virtual_machine_needs_a_reboot(root, by_driver):
    sentence = only(obstacles(root, gpu(virtualization="passthrough"), by_driver=by_driver))
    assert "reboot the machine" in sentence


@pytest.mark.parametrize("by_driver", [True, False])
def test_where_the_kernel_has_no_reset_for_it_ampere_needs_a_reboot_on_bare_metal_too(root, by_driver):
    sentence = only(obstacles(root, gpu(resettable=False), by_driver=by_driver))
    assert "the kernel has no reset for it" in sentence
    assert "reboot the machine" in sentence


def test_hopper_in_a_virtual_machine_can_be_reset(root):
    assert obstacles(root, gpu(architecture="hopper", virtualization="passthrough")) == ()


@pytest.mark.parametrize("kind", ["vgpu", "host-vgpu", "host-vsga"])
def test_what_serves_virtual_machines_is_not_reset(root, kind):
    assert "vGPU" in only(obstacles(root, gpu(virtualization=kind)))


# --- NVSwitch ------------------------------------------------------------------------------------------------------


@pytest.fixture(name="hgx", params=["proc", "sys"])
def root_of_an_hgx(request, root):
    """A host with NVSwitches, as the driver or the bus shows them."""
    if request.param == "proc":
        (root.path / "proc/driver/nvidia-nvswitch/devices/0000:85:00.0").mkdir(parents=True)
    else:
        root.pci_device("0000:85:00.0", "0x10de", "0x068000")
    return root


def test_without_fabric_manager_an_nvswitch_board_of_ampere_names_the_other_gpus(hgx):
    sentence = only(obstacles(hgx, gpu(), gpu(1), gpu(2, "turing")))
    assert "nvidia-fabricmanager.service" in sentence
    assert "GPU 1 (00000000:01:00.0, GPU-1)" in sentence
    assert "GPU 2" not in sentence


def test_all_linked_gpus_at_once_need_no_fabric_manager(hgx):
    assert obstacles(hgx, gpu(), gpu(1), named=(0, 1)) == ()


def test_fabric_manager_is_found_by_its_process(hgx):
    hgx.process(700, "nv-fabricmanager")
    assert obstacles(hgx, gpu(), gpu(1)) == ()


@pytest.mark.parametrize(("active", "number"), [("active", 0), ("failed", 1), ("inactive", 1)])
def test_fabric_manager_is_asked_for_as_a_unit(hgx, active, number):
    class Manager:
        def state(self, unit: str) -> UnitState:
            assert unit == "nvidia-fabricmanager.service"
            return UnitState(unit, "loaded", active)

    assert len(obstacles(hgx, gpu(), gpu(1), manager=Manager())) == number


def test_later_nvswitch_boards_let_one_gpu_go(hgx):
    assert obstacles(hgx, gpu(architecture="hopper"), gpu(1, "hopper")) == ()


def test_a_bridge_of_somebody_else_is_no_nvswitch(root):
    root.pci_device("0000:00:1f.0", "0x8086", "0x068000")
    root.pci_device("0000:07:00.0", "0x10de", "0x030200")
    assert obstacles(root, gpu(), gpu(1)) == ()


# --- nvidia_drm ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_driver", [True, False])
def test_nvidia_drm_is_named_before_the_reset_fails(root, by_driver):
    root.load_drm()
    sentence = only(obstacles(root, gpu(), by_driver=by_driver))
    assert "nvidia_drm is loaded" in sentence
    assert "GPU 0 (00000000:00:00.0, GPU-0)" in sentence
    assert "manage_drm" in sentence
    assert "rmmod nvidia_drm" in sentence


def test_the_driver_s_own_reset_asks_for_nothing_else(hgx):
    assert obstacles(hgx, gpu(processes=(PYTHON,)), gpu(1, processes=(PYTHON,)), by_driver=True) == ()


def test_whoever_renders_is_named(root):
    root.load_drm()
    root.drm_device("card0", "ast")
    root.drm_device("card1", "nvidia")
    root.drm_device("renderD128", "nvidia")
    root.process(901, "Xorg", "/dev/null", "/dev/dri/card1", unit="gdm.service")
    root.process(902, "console", "/dev/dri/card0")
    sentence = only(obstacles(root, gpu()))
    assert "process 901 (Xorg) of gdm.service uses it" in sentence
    assert "902" not in sentence


def test_nvidia_drm_that_may_be_unloaded_is_no_obstacle_unless_somebody_uses_it(root):
    root.load_drm()
    root.drm_device("renderD128", "nvidia")
    assert obstacles(root, gpu(), manage_drm=True) == ()
    root.process(901, "vglrun", "/dev/dri/renderD128")
    assert "cannot be unloaded while process 901 (vglrun) uses it" in only(obstacles(root, gpu(), manage_drm=True))


def test_names_of_processes_are_data(root):
    root.load_drm()
    root.drm_device("renderD128", "nvidia")
    root.process(901, "a\x1b[2J\nb", "/dev/dri/renderD128")
    assert "\x1b" not in only(obstacles(root, gpu()))


def test_proc_modules_is_read_where_sys_module_is_not(root):
    (root.path / "sys/module/nvidia").rmdir()
    modules = root.path / "proc/modules"
    modules.write_text("nvidia_drm_helper 1 0 - Live 0x0\nnvidia 1 0 - Live 0x0\n")
    assert reset.drm_is_loaded(str(root)) is False
    modules.write_text("nvidia_drm 139264 4 - Live 0x0\nnvidia 1 1 nvidia_drm, Live 0x0\n")
    assert reset.drm_is_loaded(str(root)) is True


def test_where_neither_can_be_read_nobody_claims_to_know(root):
    (root.path / "sys/module/nvidia").rmdir()
    assert reset.drm_is_loaded(str(root)) is None
    assert obstacles(root, gpu()) == ()


# --- the reset -----------------------------------------------------------------------------------------------------


@pytest.fixture(name="commands")
def fake_commands(tmp_path, monkeypatch, root):
    """nvidia-smi, rmmod and modprobe that write down how they were called."""
    return Commands(tmp_path / "bin", monkeypatch, root)


class Commands:
    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, root: Host) -> None:
        self.folder = folder
        self.root = root
        folder.mkdir()
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}/usr/bin:/bin")
        self.make("nvidia-smi", "echo 'All done.'")
        self.make("rmmod", f"rmdir {root}/sys/module/nvidia_drm")
        self.make("modprobe", f"mkdir {root}/sys/module/nvidia_drm")

    def make(self, name: str, script: str) -> None:
        path = self.folder / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >> {self.folder}/calls\n{script}\n')
        path.chmod(0o755)

    @property
    def calls(self) -> list[str]:
        record = self.folder / "calls"
        return record.read_text().splitlines() if record.exists() else []

    def reset(self, *gpus: Gpu, **options: t.Any) -> None:
        reset.reset(gpus or (gpu(),), root=str(self.root), **options)

    def failure(self, *gpus: Gpu, **options: t.Any) -> DriverError:
        with pytest.raises(DriverError) as caught:
            self.reset(*gpus, **options)
        return caught.value


class Watch:
    def __init__(self) -> None:
        self.begun: list[tuple[str, float]] = []

    def begin(self, what: str, seconds: t.Optional[float] = None) -> None:
        self.begun.append((what, seconds or 0.0))


def test_the_named_gpus_are_reset_in_one_command_by_their_place_on_the_bus(commands):
    commands.reset(gpu(), gpu(3))
    assert commands.calls == ["nvidia-smi --gpu-reset -i 00000000:00:00.0,00000000:03:00.0"]


def test_no_gpu_is_no_command(commands):
    reset.reset((), root=str(commands.root))
    assert commands.calls == []


def test_a_gpu_whose_place_is_unknown_is_named_by_uuid(commands):
    commands.reset(gpu()._replace(pci_bus_id=""))
    assert commands.calls == ["nvidia-smi --gpu-reset -i GPU-0"]


def test_whoever_watches_is_told_before_and_allows_more_time_than_the_command_has(commands):
    watch = Watch()
    commands.reset(gpu(), gpu(1), timeout=30.0, watch=watch)
    assert [what for what, _seconds in watch.begun] == ["reset GPU 0, 1"]
    assert watch.begun[0][1] > 2 * 30.0


@pytest.mark.parametrize(
    ("said", "status", "error", "advice"),
    [
        ("  GPU 00000000:00:00.0: In use by another client\n\n1 device is in use", 255, "IN_USE", "gpu_holder_info"),
        ("1 device is currently being used by one or more other processes", 255, "IN_USE", "gpu_holder_info"),
        ("GPU 00000000:00:00.0 is currently in use by another process.", 255, "IN_USE", "gpu_holder_info"),
        ("Resetting GPU 00000000:00:00.0 is not supported.", 3, "NOT_SUPPORTED", "reboot the node"),
        ("Insufficient Permissions", 4, "NO_PERMISSION", "Run as root"),
        ("GPU 00000000:00:00.0: GPU is lost", 15, "GPU_IS_LOST", "power-cycle"),
        (
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
            9,
            "DRIVER_NOT_LOADED",
            "mod",
        ),
        ("GPU 00000000:00:00.0: Unknown Error", 255, "UNKNOWN", "dmesg"),
    ],
)
def test_what_nvidia_smi_says_is_told_with_what_it_means(commands, said, status, error, advice):
    commands.make("nvidia-smi", f"cat <<'END'\n{said}\nEND\nexit {status}")
    failure = commands.failure()
    assert failure.error == error
    assert failure.details["call"] == "nvidia-smi --gpu-reset"
    assert failure.details["gpu"] == 0
    assert failure.details["pci_bus_id"] == "00000000:00:00.0"
    assert failure.details["output"] == " ".join(said.split())
    assert f"exit status {status}" in str(failure)
    assert advice in str(failure)


def test_errors_go_to_standard_error_at_times(commands):
    commands.make("nvidia-smi", "echo 'Insufficient Permissions' >&2; exit 4")
    assert commands.failure().error == "NO_PERMISSION"


def test_output_of_any_kind_becomes_one_line_that_can_be_shown(commands):
    commands.make("nvidia-smi", r"printf 'a\033[2J\377\n\tb'; head -c 5000 /dev/zero | tr '\0' x; exit 1")
    failure = commands.failure()
    assert failure.details["output"].startswith("a?[2J")
    assert failure.details["output"].isprintable()
    assert len(str(failure)) < 1000


def test_a_silent_failure_is_a_failure(commands):
    commands.make("nvidia-smi", "kill -9 $$")
    failure = commands.failure(gpu(), gpu(1))
    assert "signal 9" in str(failure)
    assert "no output" in str(failure)
    assert "GPU 1 (00000000:01:00.0, GPU-1)" in str(failure)
    assert "gpu" not in failure.details


def test_exit_status_0_is_taken_for_no_more_than_it_is(commands):
    """The caller reads the GPUs again: mig-parted has believed it and was wrong."""
    commands.make("nvidia-smi", "echo 'Warning: nothing was done.'")
    commands.reset()


def test_in_use_after_all_names_nvidia_drm_when_it_is_loaded(commands):
    commands.root.load_drm()
    commands.make("nvidia-smi", "echo 'GPU 0: In use by another client'; exit 255")
    assert "nvidia_drm is loaded" in str(commands.failure())


def test_in_use_after_all_says_when_nobody_can_tell_about_nvidia_drm(commands):
    (commands.root.path / "sys/module/nvidia").rmdir()
    commands.make("nvidia-smi", "echo 'GPU 0: In use by another client'; exit 255")
    assert "nvidia_drm is loaded, which holds them too, cannot be told" in str(commands.failure())


def test_a_host_without_nvidia_smi_says_what_is_missing(commands, monkeypatch):
    (commands.folder / "nvidia-smi").unlink()
    monkeypatch.setattr(programs, "_STANDARD_PATH", str(commands.folder))
    monkeypatch.setenv("PATH", str(commands.folder))
    failure = commands.failure()
    assert failure.error == "NOT_FOUND"
    assert "nvidia-smi was not found on this node, which is needed to reset GPU 0" in str(failure)
    assert failure.details["gpu"] == 0


def test_that_of_a_driver_in_a_container_is_used_where_the_host_has_none(commands, monkeypatch):
    (commands.folder / "nvidia-smi").unlink()
    monkeypatch.setattr(programs, "_STANDARD_PATH", "/usr/bin:/bin")
    inside = commands.root.path / "run/nvidia/driver"
    (inside / "usr/bin").mkdir(parents=True)
    (inside / "usr/bin/nvidia-smi").touch()
    commands.make("chroot", "exit 0")
    commands.reset()
    assert commands.calls == [f"chroot {inside} nvidia-smi --gpu-reset -i 00000000:00:00.0"]


def test_a_reset_that_does_not_end_is_ended_with_all_that_it_started(commands):
    commands.make("nvidia-smi", f"sleep 600 & echo $! > {commands.folder}/child; wait")
    started = time.monotonic()
    failure = commands.failure(gpu(), gpu(1), timeout=0.25)
    assert time.monotonic() - started < 20.0
    assert failure.error == "TIMEOUT"
    assert "within 0.5 s" in str(failure)
    assert "reboot the node" in str(failure)
    child = int((commands.folder / "child").read_text())
    deadline = time.monotonic() + 20.0
    while is_running(child) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not is_running(child)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("device", ["/dev/nvidia0", "/dev/nvidiactl", "/run/nvidia/driver/dev/nvidia3"])
def test_a_process_that_has_a_gpu_open_itself_does_not_reset(commands, device):
    (commands.root.path / "proc/self/fd/5").symlink_to(device)
    failure = commands.failure()
    assert device in str(failure)
    assert commands.calls == []


def test_other_open_files_do_not_matter(commands):
    (commands.root.path / "proc/self/fd/5").symlink_to("/var/lib/dev/nvid")
    (commands.root.path / "proc/self/fd/6").symlink_to("/home/dev-nvidia")
    commands.reset()


# --- nvidia_drm around it ------------------------------------------------------------------------------------------


def test_a_reset_by_itself_leaves_nvidia_drm_alone(commands):
    commands.root.load_drm()
    commands.reset()
    assert [call.split()[0] for call in commands.calls] == ["nvidia-smi"]


def test_nvidia_drm_alone_is_unloaded_and_loaded_again(commands):
    commands.root.load_drm()
    reset.unload_drm()
    assert reset.drm_is_loaded(str(commands.root)) is False
    assert reset.load_drm() == ""
    assert reset.drm_is_loaded(str(commands.root)) is True
    assert commands.calls == ["rmmod nvidia_drm", "modprobe nvidia_drm"]


def test_nvidia_drm_in_use_is_a_failure_that_says_so(commands):
    commands.root.load_drm()
    commands.make("rmmod", "echo 'rmmod: ERROR: Module nvidia_drm is in use' >&2; exit 1")
    with pytest.raises(DriverError, match="Module nvidia_drm is in use") as caught:
        reset.unload_drm()
    assert (caught.value.details["call"], caught.value.error) == ("rmmod nvidia_drm", "IN_USE")


def test_nvidia_drm_that_does_not_come_back_is_told(commands):
    commands.make("modprobe", "echo 'modprobe: FATAL: Module nvidia_drm not found' >&2; exit 1")
    assert "was not loaded again (modprobe: FATAL: Module nvidia_drm not found)" in reset.load_drm()
