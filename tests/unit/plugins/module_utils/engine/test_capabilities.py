# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Device files of instances: made on the host and below the root of a driver, looked at, and named when missing.

The trees are folders; the device files in them are real ones, which takes root, and belong to no hardware.
"""

from __future__ import annotations

import os
import stat
import time
import typing as t
from pathlib import Path

import pytest

from ansible_collections.gpufleet.mig.plugins.module_utils.engine import capabilities, commands
from ansible_collections.gpufleet.mig.plugins.module_utils.engine.model import MigError
from ansible_collections.gpufleet.mig.tests.unit.plugins.module_utils.engine import boards

A100 = "a100-sxm4-40gb"
MAJOR = 241
CONTAINER = "run/nvidia/driver"


class Host:
    """A tree with the driver's tables in it, and with programs that write down how they were called."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = path
        self.programs = path / "programs"
        self.programs.mkdir(parents=True)
        (path / "dev/char").mkdir(parents=True)
        (path / "proc/driver/nvidia-caps").mkdir(parents=True)
        monkeypatch.setenv("PATH", f"{self.programs}:/usr/bin:/bin")
        # A real one of the computer that runs the tests must not be found.
        monkeypatch.setattr(commands, "_STANDARD_PATH", "/usr/bin:/bin")
        self.table("config 1\nmonitor 2\ngpu0/gi1/access 12\ngpu0/gi1/ci0/access 13\ngpu0/gi2/access 21\n")
        self.add("gpu0/gi2/ci0/access 22\ngpu0/gi2/ci1/access 23\ngpu1/gi1/access 147\ngpu1/gi1/ci0/access 148\n")
        self.number(MAJOR)

    def table(self, text: str) -> None:
        (self.path / "proc/driver/nvidia-caps/mig-minors").write_text(text)

    def add(self, text: str) -> None:
        with open(self.path / "proc/driver/nvidia-caps/mig-minors", "a", encoding="ascii") as file:
            file.write(text)

    def number(self, major: t.Optional[int]) -> None:
        line = "" if major is None else f"{major} nvidia-caps\n"
        text = f"Character devices:\n  1 mem\n{line}195 nvidia\n\nBlock devices:\n  8 sd\n"
        (self.path / "proc/devices").write_text(text)

    def program(self, name: str, script: str) -> None:
        path = self.programs / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >> {self.programs}/calls\n{script}\n')
        path.chmod(0o755)

    def nvidia_modprobe(self, tree: str = "", status: int = 0) -> None:
        """One that makes what the tables say, with the number of /dev/null where there is none."""
        caps = f"{self.path}/{tree}/dev/nvidia-caps"
        (self.path / tree / "dev").mkdir(parents=True, exist_ok=True)
        name, skip = ("chroot", "shift 2") if tree else ("nvidia-modprobe", ":")
        # The minor number is where the table of this test has it, not where the driver has it.
        self.program(
            name,
            f"""{skip}; mkdir -p {caps}
while [ $# -gt 1 ]; do
  key=$(echo "$2" | sed 's,.*/capabilities/,,; s,/mig/,/,')
  minor=$(sed -n "s,^$key ,,p" {self.path}/proc/driver/nvidia-caps/mig-minors)
  major=$(sed -n 's/^ *\\([0-9]*\\) nvidia-caps$/\\1/p' {self.path}/proc/devices)
  rm -f {caps}/nvidia-cap$minor
  mknod -m 444 {caps}/nvidia-cap$minor c ${{major:-1}} $([ -n "$major" ] && echo $minor || echo 3)
  shift 2
done
exit {status}""",
        )
        if tree:
            (self.path / tree / "usr/bin").mkdir(parents=True, exist_ok=True)
            (self.path / tree / "usr/bin/nvidia-modprobe").touch()

    @property
    def calls(self) -> list[str]:
        record = self.programs / "calls"
        return record.read_text().splitlines() if record.exists() else []

    def device(self, minor: int, tree: str = "") -> Path:
        return self.path / tree / f"dev/nvidia-caps/nvidia-cap{minor}"

    def made(self, tree: str = "") -> dict[str, tuple[int, int, int]]:
        """The device files there are: number and permissions."""
        folder = self.path / tree / "dev/nvidia-caps"
        found = {}
        for path in sorted(folder.iterdir()) if folder.is_dir() else []:
            status = path.stat()
            if stat.S_ISCHR(status.st_mode):
                number = os.major(status.st_rdev), os.minor(status.st_rdev)
                found[path.name] = (*number, stat.S_IMODE(status.st_mode))
        return found

    def ensure(self, *gpus: t.Any, indices: t.Optional[t.Sequence[int]] = None, watch: t.Any = None) -> None:
        node = boards.node(*(gpus or (gpu(),)))
        chosen = [each.index for each in node.gpus] if indices is None else indices
        capabilities.ensure(node, chosen, watch, root=str(self.path))

    def failure(self, *gpus: t.Any) -> MigError:
        with pytest.raises(MigError) as caught:
            self.ensure(*gpus)
        return caught.value


def gpu(index: int = 0, *instances: t.Any) -> t.Any:
    """A GPU whose GIs have the ids 1, 2, and so on."""
    made = boards.gpu(A100, index=index, instances=list(instances or [("3g.20gb", 4)]))
    numbered = tuple(
        gi._replace(id=number, compute=tuple(ci._replace(id=inner) for inner, ci in enumerate(gi.compute)))
        for number, gi in enumerate(made.instances, start=1)
    )
    return made._replace(minor=index, instances=numbered)


@pytest.fixture
def host(tmp_path, monkeypatch):
    return Host(tmp_path / "root", monkeypatch)


EXPECTED = {"nvidia-cap12": (MAJOR, 12, 0o444), "nvidia-cap13": (MAJOR, 13, 0o444)}


# --- made -----------------------------------------------------------------------------------------------------------


def test_nvidia_modprobe_makes_them_where_it_is(host):
    host.nvidia_modprobe()
    host.ensure()
    below = "/proc/driver/nvidia/capabilities/gpu0/mig/gi1"
    assert host.calls == [f"nvidia-modprobe -f {below}/access -f {below}/ci0/access"]
    assert host.made() == EXPECTED


def test_without_it_they_are_made_by_hand_for_everybody_to_read_whatever_the_umask(host):
    before = os.umask(0o077)
    try:
        host.ensure()
    finally:
        os.umask(before)
    assert host.made() == EXPECTED
    assert stat.S_IMODE((host.path / "dev/nvidia-caps").stat().st_mode) & 0o700 == 0o700


def test_made_by_hand_systemd_finds_them_by_their_number(host):
    host.ensure()
    link = host.path / f"dev/char/{MAJOR}:13"
    assert os.readlink(link) == "../nvidia-caps/nvidia-cap13"
    assert link.resolve() == host.device(13)


def test_where_nvidia_modprobe_fails_they_are_made_by_hand_all_the_same(host):
    host.program("nvidia-modprobe", "exit 1")
    host.ensure()
    assert host.made() == EXPECTED


def test_one_for_every_instance_and_compute_instance_of_the_gpus_of_the_change(host):
    two = gpu(0, ("3g.20gb", 4), ("2g.10gb", 0, [1, 1]))
    host.ensure(two, gpu(1), indices=[0])
    assert sorted(host.made()) == ["nvidia-cap12", "nvidia-cap13", "nvidia-cap21", "nvidia-cap22", "nvidia-cap23"]
    host.ensure(two, gpu(1), indices=[1])
    assert {"nvidia-cap147", "nvidia-cap148"} <= set(host.made())


def test_what_is_there_and_right_is_left_alone(host):
    host.nvidia_modprobe()
    host.ensure()
    host.device(12).chmod(0o400)  # as an administrator may want it
    host.ensure()
    assert len(host.calls) == 1
    assert host.made()["nvidia-cap12"] == (MAJOR, 12, 0o400)


@pytest.mark.parametrize("by_program", [True, False])
def test_a_file_with_the_number_that_the_driver_had_before_is_made_anew(host, by_program):
    host.ensure()
    host.number(MAJOR + 1)
    if by_program:
        host.nvidia_modprobe()
    host.ensure()
    assert host.made() == {name: (MAJOR + 1, minor, mode) for name, (_major, minor, mode) in EXPECTED.items()}


def test_a_gpu_without_instances_needs_none(host):
    host.ensure(boards.gpu(A100))
    assert (host.calls, host.made()) == ([], {})


def test_where_the_driver_has_no_table_there_is_nothing_to_do(host):
    (host.path / "proc/driver/nvidia-caps/mig-minors").unlink()
    host.nvidia_modprobe()
    host.ensure()
    assert (host.calls, host.made()) == ([], {})


def test_where_the_kernel_names_no_number_any_device_that_nvidia_modprobe_makes_will_do(host):
    host.number(None)
    host.nvidia_modprobe()
    host.ensure()
    assert sorted(host.made()) == sorted(EXPECTED)


def test_whoever_watches_is_told_and_allows_more_time_than_the_programs_have(host):
    begun = []

    class Watch:
        def begin(self, what: str, seconds: float) -> None:
            begun.append((what, seconds))

        def idle(self) -> None:
            begun.append(("idle", 0))

    host.ensure(watch=Watch())
    assert [what for what, _seconds in begun] == ["make the device files of instances", "idle"]
    assert begun[0][1] > 2 * capabilities._SECONDS


# --- below the root of a driver -------------------------------------------------------------------------------------


def test_a_driver_that_runs_in_a_container_has_them_below_its_root_too(host):
    (host.path / CONTAINER / "dev").mkdir(parents=True)
    host.nvidia_modprobe()
    host.ensure()
    assert host.made() == host.made(CONTAINER) == EXPECTED


def test_its_own_nvidia_modprobe_makes_those_below_its_root(host):
    host.nvidia_modprobe(CONTAINER)
    host.ensure()
    below = "/proc/driver/nvidia/capabilities/gpu0/mig/gi1"
    root = host.path / CONTAINER
    assert host.calls == [f"chroot {root} nvidia-modprobe -f {below}/access -f {below}/ci0/access"]
    assert host.made() == host.made(CONTAINER) == EXPECTED


def test_a_root_without_devices_is_none(host):
    (host.path / CONTAINER).mkdir(parents=True)
    host.ensure()
    assert not (host.path / CONTAINER / "dev").exists()


def test_what_is_missing_below_that_root_alone_is_missing(host):
    (host.path / CONTAINER / "dev").mkdir(parents=True)
    (host.path / CONTAINER / "dev/nvidia-caps").touch()
    failure = host.failure()
    assert failure.details["missing_devices"] == [str(host.device(minor, CONTAINER)) for minor in (12, 13)]
    assert host.made() == EXPECTED


# --- missing --------------------------------------------------------------------------------------------------------


def test_one_that_cannot_be_made_is_named_with_its_minor_its_instance_and_what_to_do(host):
    (host.path / "dev/nvidia-caps").touch()
    failure = host.failure()
    for part in (
        "The instances are as wanted, but",
        f"{host.device(12)} (minor 12, GPU instance 3g.20gb at 4:4 of GPU 0): ",
        "nvidia-modprobe -f /proc/driver/nvidia/capabilities/gpu0/mig/gi1/access",
    ):
        assert part in str(failure)
    assert failure.details["missing_devices"] == [str(host.device(12)), str(host.device(13))]


def test_what_is_no_device_is_not_taken_away(host):
    host.device(12).parent.mkdir(parents=True)
    host.device(12).write_text("somebody's")
    failure = host.failure()
    assert failure.details["missing_devices"] == [str(host.device(12))]
    assert host.device(12).read_text() == "somebody's"


def test_without_a_number_and_without_nvidia_modprobe_it_is_said_what_is_not_there(host):
    host.number(None)
    assert "nvidia-modprobe is not installed" in str(host.failure())
    assert host.made() == {}


def test_what_nvidia_modprobe_says_is_quoted_where_nothing_else_can_help(host):
    host.number(None)
    host.program("nvidia-modprobe", r"printf 'nvidia-modprobe:\033[2J no\n' >&2; exit 1")
    assert "nvidia-modprobe ended with 1 (nvidia-modprobe:?[2J no)" in str(host.failure())


def test_a_program_that_does_not_end_is_ended(host, monkeypatch):
    monkeypatch.setattr(capabilities, "_SECONDS", 0.2)
    host.number(None)
    host.program("nvidia-modprobe", "sleep 600")
    began = time.monotonic()
    assert "did not come back within 0.2 s" in str(host.failure())
    assert time.monotonic() - began < 20


def test_an_instance_that_the_table_does_not_have_is_named(host):
    host.table("gpu0/gi1/access 12\n")
    failure = host.failure()
    for part in ("GPU 0 (", "compute instance 3g.20gb in GPU instance 3g.20gb at 4:4", "mig-minors", "nvidia-smi -L"):
        assert part in str(failure)


def test_of_many_the_first_are_named_and_the_others_counted(host):
    (host.path / "dev/nvidia-caps").touch()
    failure = host.failure(gpu(0, ("3g.20gb", 4), ("2g.10gb", 0, [1, 1])))
    assert len(failure.details["missing_devices"]) == 5
    assert "; and 1 more. " in str(failure)
