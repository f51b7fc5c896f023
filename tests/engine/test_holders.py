# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Real processes with real open files, read from the kernel's own /proc.

There is no GPU here, so /dev/null is one: its number, 1:3, is said to be the driver's. The processes of a test are
linked into a /proc of its own, beside the files that a loaded driver would have there.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import platform
import subprocess
import sys
import time
import typing as t

import pytest

from ansible_collections.gpufleet.mig.plugins.module_utils.engine import bounded, holders
from ansible_collections.gpufleet.mig.tests.engine.helpers import NOBODY, SimulatedNode

NULL_IS_GPU_3 = "Character devices:\n  1 nvidia\n\nBlock devices:\n"
NULL_IS_AN_INSTANCE = "Character devices:\n195 nvidia\n  1 nvidia-caps\n\nBlock devices:\n"

# Ends its first thread and leaves the other one running.
EXIT_OF_A_THREAD = {"x86_64": 60, "aarch64": 93}.get(platform.machine(), 1)
HEADLESS = f"""
import ctypes, threading
threading.Thread(target=threading.Event().wait).start()
ctypes.CDLL(None).syscall({EXIT_OF_A_THREAD}, 0)
"""


class Host:
    """A root folder in which /proc shows the processes that are linked into it, and a driver."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.root = str(folder)
        self._proc = folder / "proc"
        (self._proc / "driver" / "nvidia-caps").mkdir(parents=True)
        self.numbers(NULL_IS_GPU_3)
        self.link(1)

    def numbers(self, devices: str, table: str = "gpu0/gi7/ci0/access 3\n") -> None:
        (self._proc / "devices").write_text(devices)
        (self._proc / "driver" / "nvidia-caps" / "mig-minors").write_text(table)

    def link(self, pid: int) -> None:
        os.symlink(f"/proc/{pid}", self._proc / str(pid))

    @contextlib.contextmanager
    def process(self, *command: str, opening: str = os.devnull) -> t.Iterator[subprocess.Popen[bytes]]:
        """A process that has a file open, until the end of the block."""
        with (
            open(opening, "rb") as file,
            subprocess.Popen(
                command or ("sleep", "600"), stdin=file, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            ) as process,
        ):
            try:
                self.link(process.pid)
                yield process
            finally:
                process.kill()

    def found(self) -> dict[int, list[tuple[str, int, t.Optional[int], t.Optional[int]]]]:
        by_pid: dict[int, list[tuple[str, int, t.Optional[int], t.Optional[int]]]] = {}
        for each in holders.scan(root=self.root):
            by_pid.setdefault(each.pid, []).append((each.path, each.minor, each.gi_id, each.ci_id))
        return by_pid


@pytest.fixture
def host(tmp_path):
    return Host(tmp_path)


def wait_until(condition: t.Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_process_that_has_a_device_number_open_is_found_by_it(host):
    with host.process() as process:
        assert host.found()[process.pid] == [("/dev/null", 3, None, None)]
        found = next(each for each in holders.scan(root=host.root) if each.pid == process.pid)
        assert (found.name, found.uid) == ("sleep", os.geteuid())


def test_a_process_that_has_the_number_of_an_instance_open_is_found_by_it(host):
    host.numbers(NULL_IS_AN_INSTANCE)
    with host.process() as process:
        assert host.found()[process.pid] == [("/dev/null", 0, 7, 0)]


def test_a_process_that_has_a_file_of_a_gpu_open_is_found_by_its_name(host, tmp_path):
    """As on nodes whose GPUs are simulated: the file is there, its number is nobody's."""
    host.numbers("Character devices:\n")
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "nvidia2").touch()
    with host.process(opening=str(tmp_path / "dev" / "nvidia2")) as process:
        assert host.found()[process.pid] == [(str(tmp_path / "dev" / "nvidia2"), 2, None, None)]
        (tmp_path / "dev" / "nvidia2").unlink()
        assert [place[1] for place in host.found()[process.pid]] == [2]


def test_a_file_of_the_same_name_in_another_computers_root_is_none_of_this_node(host, tmp_path):
    """A container or virtual node has a /dev of its own, and its processes are seen from here."""
    host.numbers("Character devices:\n")
    (tmp_path / "dev").mkdir()
    device = tmp_path / "dev" / "nvidia2"
    device.touch()
    with host.process(opening=str(device)) as process:
        device.rename(tmp_path / "elsewhere")
        device.touch()
        # As /proc shows a file of another mount namespace: by the name that it has there.
        found = holders._Devices(str(tmp_path)).place_of(process.pid, str(device), os.stat(tmp_path / "elsewhere"))
    assert found is None


def test_a_process_that_ended_holds_nothing(host):
    with host.process() as process:
        process.kill()
        process.wait()
        assert process.pid not in host.found()


def test_a_process_that_ended_and_was_not_waited_for_holds_nothing(host):
    with host.process() as process:
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert process.pid not in host.found()


def test_a_process_whose_first_thread_ended_still_holds_what_it_has_open(host):
    with host.process(sys.executable, "-c", HEADLESS) as process:
        state = pathlib.Path(f"/proc/{process.pid}/stat")
        wait_until(lambda: ") Z " in state.read_text())
        assert os.listdir(f"/proc/{process.pid}/fd") == []
        assert host.found()[process.pid] == [("/dev/null", 3, None, None)]


def test_processes_come_and_go_while_all_are_read(host):
    """Nothing of it is an error, and who stays is found every time."""
    with host.process() as staying:
        for _round in range(20):
            coming = [subprocess.Popen(["true"], stdin=subprocess.DEVNULL) for _number in range(5)]
            for each in coming:
                with contextlib.suppress(FileExistsError):
                    host.link(each.pid)
            assert staying.pid in host.found()
            for each in coming:
                each.wait()


def test_the_kernels_own_proc_can_be_read_in_a_child_that_is_watched():
    found = bounded.ask(holders.survey, 60)
    assert isinstance(found, holders.Survey)


def test_whoever_may_not_read_the_files_of_others_is_told_so(make_shared_node):
    found = make_shared_node().call(holders.survey, **NOBODY)
    assert any(phrase.endswith("without root") or "does not show all" in phrase for phrase in found.unseen)


def make_instances(node: SimulatedNode) -> None:
    node.enable(0)
    node.create(0, [("1g.5gb", 0, [(0, 1)]), ("3g.20gb", 4, [(0, 3)])])


def test_a_holder_that_no_list_of_the_driver_shows_is_named_after_in_use(host, make_node):
    node = make_node()
    make_instances(node)
    gi_id = node.read().gpus[0].instances[0].id
    host.numbers(NULL_IS_AN_INSTANCE, f"gpu0/gi{gi_id}/ci0/access 3\n")
    with host.process() as process, node.simulator.occupy(gpu=0, gi=gi_id, ci=0, kind="hidden", pid=process.pid):
        before = node.read()
        assert all(each.processes == () for instance in before.gpus[0].instances for each in instance.compute)
        seen = holders.attach(before, holders.scan(root=host.root), root=host.root)
        said = holders.why_in_use(seen, 0, gi_id)
    assert f"process {process.pid} (sleep)" in said
    assert "is in no list of the driver" in said
    assert "Nobody" in holders.why_in_use(before, 0, gi_id)


def test_a_holder_that_the_driver_lists_and_that_has_it_open_is_one_holder(host, make_node):
    node = make_node()
    make_instances(node)
    gi_id = node.read().gpus[0].instances[0].id
    host.numbers(NULL_IS_AN_INSTANCE, f"gpu0/gi{gi_id}/ci0/access 3\n")
    with host.process() as process, node.simulator.occupy(gpu=0, gi=gi_id, ci=0, pid=process.pid):
        seen = holders.attach(node.read(), holders.scan(root=host.root), root=host.root)
    found = [(each.pid, each.listed, each.opened) for each in seen.gpus[0].instances[0].compute[0].processes]
    assert found == [(process.pid, True, ("/dev/null",))]
    assert seen.gpus[0].processes == ()
