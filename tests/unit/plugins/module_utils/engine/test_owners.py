# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Whom a process belongs to is read from what each runtime, scheduler and service manager writes into its cgroup."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.mig.plugins.module_utils.engine.model import Owner
from ansible_collections.gpufleet.mig.plugins.module_utils.engine.owners import owner

ID = "24fce7291bc6d7f8a5965a5920740b0df25dda9bb4e84ffb889d8ea2927acec5"
OTHER = "9bca8d63d5fa610783847915bcff0ecac1273e5b4bed3f6fa1b07350e0135961"
POD = "214f3ba8-4b69-4bdb-a7d5-5ecc73f04ae9"
POD_IN_A_SLICE = POD.replace("-", "_")
STATIC_POD = "d8fd0c6e3c3ea9b6e3b8e0cc4ed9ed35"

CONTROLLERS = (
    "pids",
    "devices",
    "freezer",
    "net_cls,net_prio",
    "cpuset",
    "hugetlb",
    "memory",
    "perf_event",
    "rdma",
    "cpu,cpuacct",
    "blkio",
)


def v1(path: str, systemd: t.Optional[str] = None, unified: t.Optional[str] = None, **others: str) -> str:
    """The text under cgroup v1: ``path`` in the hierarchies of all controllers, except where another one is given."""
    numbered = list(enumerate(CONTROLLERS, start=2))
    lines = [f"{number}:{names}:{others.get(names.split(',')[0], path)}" for number, names in reversed(numbered)]
    lines.append(f"1:name=systemd:{path if systemd is None else systemd}")
    if unified is not None:
        lines.append(f"0::{unified}")
    return "".join(f"{line}\n" for line in lines)


def v2(path: str) -> str:
    return f"0::{path}\n"


def container(runtime: str, unit: str = "", identity: str = ID) -> Owner:
    return Owner("container", unit=unit, runtime=runtime, container=identity)


def pod(uid: str, runtime: str = "", unit: str = "", identity: str = ID) -> Owner:
    return Owner("pod", unit=unit, runtime=runtime, container=identity, pod=uid)


DOCKER = {
    "v1 cgroupfs": (v1(f"/docker/{ID}"), container("docker")),
    "v1 cgroupfs hybrid": (v1(f"/docker/{ID}", unified=f"/docker/{ID}"), container("docker")),
    "v1 systemd": (v1(f"/system.slice/docker-{ID}.scope"), container("docker", f"docker-{ID}.scope")),
    "v2 systemd": (v2(f"/system.slice/docker-{ID}.scope"), container("docker", f"docker-{ID}.scope")),
    "v2 cgroupfs": (v2(f"/docker/{ID}"), container("docker")),
    "v2 own init inside": (v2(f"/system.slice/docker-{ID}.scope/init"), container("docker", f"docker-{ID}.scope")),
    "v2 parent group of the site": (v2(f"/batch.slice/docker-{ID}.scope"), container("docker", f"docker-{ID}.scope")),
    "v1 parent group of the site": (v1(f"/batch/{ID}"), container("")),
    "v2 rootless": (
        v2(f"/user.slice/user-1000.slice/user@1000.service/user.slice/docker-{ID}.scope"),
        container("docker", f"user@1000.service/docker-{ID}.scope"),
    ),
    "v2 below the daemon": (v2(f"/system.slice/docker.service/docker/{ID}"), container("docker")),
    "v1 without a group around it": (v1(f"/{ID}"), container("")),
}

CONTAINERD = {
    "ctr": (v2("/default/gpu-test"), container("containerd", identity="gpu-test")),
    "nerdctl systemd": (v2(f"/system.slice/nerdctl-{ID}.scope"), container("containerd", f"nerdctl-{ID}.scope")),
    "nerdctl cgroupfs": (v1(f"/default/{ID}"), container("containerd")),
    "nerdctl rootless": (
        v2(f"/user.slice/user-1000.slice/user@1000.service/user.slice/nerdctl-{ID}.scope"),
        container("containerd", f"user@1000.service/nerdctl-{ID}.scope"),
    ),
}

PODMAN = {
    "root v2 crun": (v2(f"/machine.slice/libpod-{ID}.scope/container"), container("podman", f"libpod-{ID}.scope")),
    "root v2 runc": (v2(f"/machine.slice/libpod-{ID}.scope"), container("podman", f"libpod-{ID}.scope")),
    "root v1 crun": (
        v1(f"/machine.slice/libpod-{ID}.scope/container", systemd=f"/machine.slice/libpod-{ID}.scope"),
        container("podman", f"libpod-{ID}.scope"),
    ),
    "root v1 cgroupfs": (v1(f"/libpod_parent/libpod-{ID}"), container("podman")),
    "pod of podman": (
        v2(f"/machine.slice/machine-libpod_pod_{OTHER}.slice/libpod-{ID}.scope/container"),
        container("podman", f"libpod-{ID}.scope"),
    ),
    "monitor": (v2(f"/machine.slice/libpod-conmon-{ID}.scope"), container("podman", f"libpod-conmon-{ID}.scope")),
    "rootless v2": (
        v2(f"/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope/container"),
        container("podman", f"user@1000.service/libpod-{ID}.scope"),
    ),
    "rootless v1 has no group of its own": (
        v1("/user.slice", systemd="/user.slice/user-1000.slice/session-4.scope"),
        Owner("session", unit="session-4.scope", session="4"),
    ),
    "unit of systemd, cgroups split": (
        v2(f"/system.slice/inference.service/libpod-payload-{ID}"),
        container("podman", "inference.service"),
    ),
    "unit of the user's systemd, cgroups split": (
        v2(f"/user.slice/user-1000.slice/user@1000.service/app.slice/inference.service/libpod-payload-{ID}"),
        container("podman", "user@1000.service/inference.service"),
    ),
}

KUBERNETES = {
    "v2 systemd besteffort containerd": (
        v2(
            "/kubepods.slice/kubepods-besteffort.slice/"
            f"kubepods-besteffort-pod{POD_IN_A_SLICE}.slice/cri-containerd-{ID}.scope"
        ),
        pod(POD, "containerd", f"cri-containerd-{ID}.scope"),
    ),
    "v2 systemd burstable cri-o": (
        v2(
            "/kubepods.slice/kubepods-burstable.slice/"
            f"kubepods-burstable-pod{POD_IN_A_SLICE}.slice/crio-{ID}.scope/container"
        ),
        pod(POD, "cri-o", f"crio-{ID}.scope"),
    ),
    "v2 systemd guaranteed": (
        v2(f"/kubepods.slice/kubepods-pod{POD_IN_A_SLICE}.slice/cri-containerd-{ID}.scope"),
        pod(POD, "containerd", f"cri-containerd-{ID}.scope"),
    ),
    "v1 systemd docker": (
        v1(
            f"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{POD_IN_A_SLICE}.slice/docker-{ID}.scope"
        ),
        pod(POD, "docker", f"docker-{ID}.scope"),
    ),
    "v1 systemd, dashes of the pod as they are": (
        v1(f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{POD}.slice/docker-{ID}.scope"),
        pod(POD, "docker", f"docker-{ID}.scope"),
    ),
    "v1 cgroupfs besteffort": (v1(f"/kubepods/besteffort/pod{POD}/{ID}"), pod(POD)),
    "v1 cgroupfs burstable": (v1(f"/kubepods/burstable/pod{POD}/{ID}"), pod(POD)),
    "v1 cgroupfs guaranteed": (v1(f"/kubepods/pod{POD}/{ID}"), pod(POD)),
    "v2 cgroupfs burstable": (v2(f"/kubepods/burstable/pod{POD}/{ID}"), pod(POD)),
    "v1 cgroupfs cri-o": (v1(f"/kubepods/besteffort/pod{POD}/crio-{ID}"), pod(POD, "cri-o")),
    "static pod, systemd": (
        v2(
            "/kubepods.slice/kubepods-burstable.slice/"
            f"kubepods-burstable-pod{STATIC_POD}.slice/cri-containerd-{ID}.scope"
        ),
        pod(STATIC_POD, "containerd", f"cri-containerd-{ID}.scope"),
    ),
    "static pod, cgroupfs": (v1(f"/kubepods/burstable/pod{STATIC_POD}/{ID}"), pod(STATIC_POD)),
    "v1 containerd that was not told to use systemd": (
        v1(
            f"/system.slice/containerd.service/kubepods-besteffort-pod{POD_IN_A_SLICE}.slice:cri-containerd:{ID}",
            freezer=f"/kubepods-besteffort-pod{POD_IN_A_SLICE}.slice:cri-containerd:{ID}",
            rdma="/",
        ),
        pod(POD, "containerd"),
    ),
    "v2 containerd that was not told to use systemd": (
        v2(f"/system.slice/containerd.service/kubepods-pod{POD_IN_A_SLICE}.slice:cri-containerd:{ID}"),
        pod(POD, "containerd"),
    ),
    "seen from a container with a cgroup namespace": (
        v2(f"/../../kubepods-besteffort-pod{POD_IN_A_SLICE}.slice/cri-containerd-{ID}.scope"),
        pod(POD, "containerd", f"cri-containerd-{ID}.scope"),
    ),
    "docker inside of a pod": (
        v2(
            "/kubepods.slice/kubepods-burstable.slice/"
            f"kubepods-burstable-pod{POD_IN_A_SLICE}.slice/cri-containerd-{ID}.scope/docker/{OTHER}"
        ),
        pod(POD, "containerd", f"cri-containerd-{ID}.scope"),
    ),
    "node that is a container (kind)": (
        v2(
            f"/system.slice/docker-{ID}.scope/kubelet.slice/kubelet-kubepods.slice/"
            f"kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-pod{POD_IN_A_SLICE}.slice/"
            f"cri-containerd-{OTHER}.scope"
        ),
        Owner("container", unit=f"docker-{ID}.scope", runtime="docker", container=ID, pod=POD),
    ),
}

SLURM = {
    "v2 task": (
        v2("/system.slice/slurmstepd.scope/job_1392969/step_0/user/task_0"),
        Owner("job", unit="slurmstepd.scope", job="1392969", step="0"),
    ),
    "v2 batch": (
        v2("/system.slice/slurmstepd.scope/job_101/step_batch/user/task_special"),
        Owner("job", unit="slurmstepd.scope", job="101", step="batch"),
    ),
    "v2 slurmstepd itself": (
        v2("/system.slice/slurmstepd.scope/job_101/step_extern/slurm"),
        Owner("job", unit="slurmstepd.scope", job="101", step="extern"),
    ),
    "v2 several slurmd on a node": (
        v2("/system.slice/gpu01_slurmstepd.scope/job_101/step_interactive/user/task_0"),
        Owner("job", unit="gpu01_slurmstepd.scope", job="101", step="interactive"),
    ),
    "v2 part of a heterogeneous job": (
        v2("/system.slice/slurmstepd.scope/job_101/step_0+1/user/task_3"),
        Owner("job", unit="slurmstepd.scope", job="101", step="0+1"),
    ),
    "v2 no job": (v2("/system.slice/slurmstepd.scope/system"), Owner("unit", unit="slurmstepd.scope")),
    "v1": (
        v1(
            "/system.slice/slurmd.service",
            devices="/slurm/uid_2101171/job_280678/step_interactive/task_0",
            memory="/slurm/uid_2101171/job_280678/step_interactive/task_0",
        ),
        Owner("job", unit="slurmd.service", job="280678", step="interactive"),
    ),
    "v1 several slurmd on a node": (
        v1("/", freezer="/slurm_gpu01/uid_1000/job_77/step_0", systemd="/system.slice/slurmd.service"),
        Owner("job", unit="slurmd.service", job="77", step="0"),
    ),
    "v1 a login that Slurm adopted into the job": (
        v1(
            "/user.slice",
            memory="/slurm/uid_1000/job_77/step_extern/task_0",
            systemd="/user.slice/user-1000.slice/session-12.scope",
        ),
        Owner("job", unit="session-12.scope", job="77", step="extern", session="12"),
    ),
    "processes without groups of Slurm": (v2("/system.slice/slurmd.service"), Owner("unit", unit="slurmd.service")),
    "slurmd in a pod": (
        v2(
            f"/kubepods.slice/kubepods-pod{POD_IN_A_SLICE}.slice/cri-containerd-{ID}.scope"
            "/system.slice/slurmstepd.scope/job_9/step_0/user/task_0"
        ),
        Owner("pod", unit=f"cri-containerd-{ID}.scope", runtime="containerd", container=ID, pod=POD, job="9", step="0"),
    ),
}

SYSTEMD = {
    "unit v2": (v2("/system.slice/nvidia-dcgm.service"), Owner("unit", unit="nvidia-dcgm.service")),
    "unit v1": (
        v1("/", systemd="/system.slice/nvidia-dcgm.service", pids="/system.slice/nvidia-dcgm.service"),
        Owner("unit", unit="nvidia-dcgm.service"),
    ),
    "unit in a slice of its template": (
        v2("/system.slice/system-getty.slice/getty@tty1.service"),
        Owner("unit", unit="getty@tty1.service"),
    ),
    "groups that a unit makes for itself": (
        v2("/system.slice/jupyterhub.service/users/alice"),
        Owner("unit", unit="jupyterhub.service"),
    ),
    "unit of a systemd that a unit runs": (
        v2("/machine.slice/systemd-nspawn@build.service/payload/system.slice/nvidia-dcgm.service"),
        Owner("unit", unit="systemd-nspawn@build.service"),
    ),
    "virtual machine": (
        v2(r"/machine.slice/machine-qemu\x2d1\x2dwin.scope/libvirt/emulator"),
        Owner("unit", unit=r"machine-qemu\x2d1\x2dwin.scope"),
    ),
    "name that the kernel could take for its own": (
        v2("/system.slice/_cpu.service"),
        Owner("unit", unit="cpu.service"),
    ),
    "unit whose group was removed": (
        v2("/system.slice/nvidia-dcgm.service (deleted)"),
        Owner("unit", unit="nvidia-dcgm.service"),
    ),
    "first process": (v2("/init.scope"), Owner("unit", unit="init.scope")),
    "unit of a user": (
        v2("/user.slice/user-1000.slice/user@1000.service/app.slice/jupyter.service"),
        Owner("unit", unit="user@1000.service/jupyter.service"),
    ),
    "desktop of a user": (
        v2("/user.slice/user-1000.slice/user@1000.service/session.slice/org.gnome.Shell@wayland.service"),
        Owner("unit", unit="user@1000.service/org.gnome.Shell@wayland.service"),
    ),
    "manager of a user": (
        v2("/user.slice/user-1000.slice/user@1000.service/init.scope"),
        Owner("unit", unit="user@1000.service/init.scope"),
    ),
    "login v2": (
        v2("/user.slice/user-1000.slice/session-3.scope"),
        Owner("session", unit="session-3.scope", session="3"),
    ),
    "login v1": (
        v1("/user.slice", systemd="/user.slice/user-1000.slice/session-3.scope", rdma="/"),
        Owner("session", unit="session-3.scope", session="3"),
    ),
    "greeter of a display manager": (
        v2("/user.slice/user-42.slice/session-c1.scope"),
        Owner("session", unit="session-c1.scope", session="c1"),
    ),
}

OTHERS = {
    "nobody v1": (v1("/"), Owner()),
    "nobody v2": (v2("/"), Owner()),
    "kernel without control groups": ("", Owner()),
    "lxc v2": (v2("/lxc.payload.trainer/system.slice/a.service"), container("lxc", identity="trainer")),
    "lxc, seen from another group": (v2("/../lxc/101"), container("lxc", identity="101")),
    "group of a unit that is called like one of containerd": (
        v2("/system.slice/render.service/default/queue"),
        Owner("unit", unit="render.service"),
    ),
    "lxc of Proxmox": (v2("/lxc/101/ns/system.slice/a.service"), container("lxc", identity="101")),
    "systemd inside of a container": (
        v2(f"/docker/{ID}/system.slice/nvidia-dcgm.service"),
        container("docker"),
    ),
}

WRITTEN_BY = {
    "docker": DOCKER,
    "containerd": CONTAINERD,
    "podman": PODMAN,
    "kubernetes": KUBERNETES,
    "slurm": SLURM,
    "systemd": SYSTEMD,
    "others": OTHERS,
}
CASES = [
    pytest.param(text, expected, id=f"{who}: {case}")
    for who, cases in WRITTEN_BY.items()
    for case, (text, expected) in cases.items()
]


@pytest.mark.parametrize(("text", "expected"), CASES)
def test_the_owner_is_found_in_what_is_written(text, expected):
    assert owner(text) == expected


HOSTILE = {
    "a user's unit that has the name of one of the system's": (
        v2("/user.slice/user-1000.slice/user@1000.service/app.slice/nvidia-persistenced.service"),
        "user@1000.service/nvidia-persistenced.service",
    ),
    "a user's group that has the path of a unit of the system": (
        v2("/user.slice/user-1000.slice/user@1000.service/system.slice/nvidia-persistenced.service"),
        "user@1000.service/nvidia-persistenced.service",
    ),
    "a user's group with an end of a line in its name": (
        v2(
            "/user.slice/user-1000.slice/user@1000.service/a\u2028"
            "1:name=systemd:/system.slice/nvidia-persistenced.service"
        ),
        "user@1000.service/nvidia-persistenced.service",
    ),
    "a unit inside of a container": (
        v2(f"/system.slice/docker-{ID}.scope/system.slice/nvidia-persistenced.service"),
        f"docker-{ID}.scope",
    ),
}


@pytest.mark.parametrize(("text", "unit"), HOSTILE.values(), ids=HOSTILE)
def test_nobody_passes_for_a_unit_of_the_system(text, unit):
    assert owner(text).unit == unit


def test_a_container_cannot_hide_behind_a_job_of_its_own_making():
    found = owner(v2(f"/system.slice/docker-{ID}.scope/slurm/uid_0/job_1/step_0"))
    assert (found.kind, found.container) == ("container", ID)


@pytest.mark.parametrize("path", ["/job_12/step_0", "/system.slice/render.service/job_12", "/uid_1000/job_12"])
def test_a_group_that_is_called_like_a_job_is_none_without_slurm_around_it(path):
    assert owner(v2(path)).job == ""


@pytest.mark.parametrize(
    "text",
    [
        "no colon at all",
        ":::::",
        "0::",
        "0::" + "/" * 5000,
        "0::/" + "a" * 100_000,
        "0::/" + "/".join(["x"] * 50_000),
        "0::/" + "-" * 60_000,
        "0::/kubepods-pod",
        "0::/pod",
        "0::/docker/short",
        f"0::/docker/{ID.upper()}",
        "\n\n0::\n::/\n",
        "\x00\x1b[31m",
    ],
)
def test_text_that_nobody_writes_names_nobody(text):
    assert owner(text).kind == ""


def test_what_is_found_can_be_printed():
    found = owner("0::/system.slice/\x1b[2Jclear\u202e\udc80.service\n")
    assert found.unit == "?[2Jclear??.service"


def test_what_is_found_is_short():
    assert len(owner(v2(f"/lxc/{'a' * 5000}")).container) == 256


@pytest.mark.parametrize(
    "text",
    [
        "4:cpu:/system.slice/other.service\n1:name=systemd:/system.slice/own.service\n",
        "1:name=systemd:/system.slice/own.service\n0::/system.slice/other.service\n",
        "0::/system.slice/other.service\n1:name=systemd:/system.slice/own.service\n",
        "4:cpu:/system.slice/other.service\n0::/system.slice/own.service\n",
    ],
)
def test_the_unit_is_the_one_that_systemd_itself_wrote(text):
    assert owner(text).unit == "own.service"


def test_lines_in_any_order_say_the_same():
    lines = SLURM["v1"][0].splitlines(keepends=True)
    assert owner("".join(reversed(lines))) == owner("".join(lines))
