# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Who has a GPU or an instance open is found in a tree of /proc, put where it belongs, and said in words."""

from __future__ import annotations

import os
import pathlib
import stat
import types
import typing as t

import pytest

from ansible_collections.gpufleet.mig.plugins.module_utils.engine import holders
from ansible_collections.gpufleet.mig.plugins.module_utils.engine.model import (
    Node,
    Owner,
    Process,
    Reservation,
    WishError,
)
from ansible_collections.gpufleet.mig.tests.unit.plugins.module_utils.engine import boards

DCGM = "0::/system.slice/nvidia-dcgm.service\n"
PERSISTENCED = "0::/system.slice/nvidia-persistenced.service\n"
CONTAINER = "3f2a9c51d7e04b8896a1f0c2d3e4b5a697887766554433221100ffeeddccbbaa"
JOB = "0::/system.slice/slurmstepd.scope/job_123/step_0/user/task_0\n"


def capability(gpu: int, gi: int, ci: t.Optional[int] = None) -> int:
    """Minor number of a capability file, as the driver's table has it."""
    base = 3 + 135 * gpu + 9 * gi
    return base if ci is None else base + 1 + ci


def capability_file(gpu: int, gi: int, ci: t.Optional[int] = None) -> str:
    return f"/dev/nvidia-caps/nvidia-cap{capability(gpu, gi, ci)}"


class Tree:
    """A folder with a /proc of our own making."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.root = str(folder)
        self._proc = folder / "proc"
        self.process(1, "systemd", "0::/init.scope\n")

    def write(self, path: str, text: str) -> None:
        file = pathlib.Path(self.root, path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def driver(
        self, devices: str = "Character devices:\n195 nvidia\n234 nvidia-caps\n\nBlock devices:\n  8 sd\n"
    ) -> None:
        """A loaded driver: its device numbers, and the table of its capability files."""
        lines = ["config 1", "monitor 2"]
        for gpu in range(32):
            for gi in range(15):
                lines.append(f"gpu{gpu}/gi{gi}/access {capability(gpu, gi)}")
                lines += [f"gpu{gpu}/gi{gi}/ci{ci}/access {capability(gpu, gi, ci)}" for ci in range(8)]
        self.write("proc/devices", devices)
        self.write("proc/driver/nvidia-caps/mig-minors", "".join(f"{line}\n" for line in lines))

    def process(
        self,
        pid: int,
        name: str,
        cgroup: str = "0::/\n",
        files: t.Sequence[str] = (),
        uid: int = 0,
        file_system: str = "",
        task: str = "",
    ) -> None:
        """A process with these open files; of which file system they are is only there where it is given."""
        folder = self._proc / str(pid) / task
        (folder / "fd").mkdir(parents=True)
        (folder / "fdinfo").mkdir()
        (folder / "comm").write_text(f"{name}\n")
        (folder / "cgroup").write_text(cgroup)
        (folder / "status").write_text(f"Name:\t{name}\nState:\tS (sleeping)\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")
        for number, target in enumerate(files):
            os.symlink(target, folder / "fd" / str(number))
            if file_system:
                (folder / "fdinfo" / str(number)).write_text("pos:\t0\nflags:\t02100002\nmnt_id:\t27\nino:\t9\n")
        if file_system:
            (folder / "mountinfo").write_text(
                f"27 1 0:5 / /dev rw,nosuid shared:2 - {file_system} udev rw,size=1k\n"
                "28 1 0:9 / /proc rw - proc proc rw\n"
            )

    def scan(self) -> list[tuple[int, str, int, t.Optional[int], t.Optional[int]]]:
        return [(each.pid, each.path, each.minor, each.gi_id, each.ci_id) for each in holders.scan(root=self.root)]

    def attach(self, node: Node, *reservations: dict[str, t.Any]) -> Node:
        opened = holders.scan(root=self.root)
        return holders.attach(node, opened, holders.reservations_of(reservations), root=self.root)


@pytest.fixture
def tree(tmp_path):
    made = Tree(tmp_path)
    made.driver()
    return made


def a100(*instances: t.Any, **fields: t.Any) -> Node:
    """A node with one A100: 1g.5gb at 0 has GI id 7, 3g.20gb at 4 has GI id 2."""
    return boards.node(boards.gpu("a100-sxm4-40gb", instances=instances, **fields))


# --- what is open ---------------------------------------------------------------------------------------------------


def test_a_gpu_is_known_by_the_name_of_its_device_file(tree):
    tree.process(811, "nv-hostengine", DCGM, ["/dev/null", "/dev/nvidiactl", "/dev/nvidia3", "socket:[4711]"])
    assert tree.scan() == [(811, "/dev/nvidia3", 3, None, None)]
    found = holders.scan(root=tree.root)[0]
    assert (found.name, found.uid, found.owner.unit) == ("nv-hostengine", 0, "nvidia-dcgm.service")


def test_an_instance_is_known_by_the_names_of_its_capability_files(tree):
    files = ["/dev/nvidia1", capability_file(1, 7), capability_file(1, 7, 0)]
    tree.process(900, "python", JOB, files)
    assert sorted(tree.scan(), key=str) == sorted(
        [(900, files[0], 1, None, None), (900, files[1], 1, 7, None), (900, files[2], 1, 7, 0)], key=str
    )


def test_a_driver_that_runs_in_a_container_has_its_files_below_its_own_root(tree):
    caps = capability_file(0, 2).replace("/dev/", "/run/nvidia/driver/dev/")
    tree.process(900, "python", JOB, ["/run/nvidia/driver/dev/nvidia0", caps])
    assert {each[2:] for each in tree.scan()} == {(0, None, None), (0, 2, None)}


@pytest.mark.parametrize(
    "path",
    [
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/nvidia-modeset",
        "/dev/nvidia255",
        "/dev/nvidia-caps/nvidia-cap1",
        "/dev/nvidia-caps/nvidia-cap2",
        "/home/alice/dev/nvidia0",
        "/dev/nvidia0.log",
        "/dev/nvidia",
    ],
)
def test_what_is_neither_of_a_gpu_nor_of_an_instance_holds_none(tree, path):
    tree.process(900, "python", files=[path])
    assert tree.scan() == []


def test_a_device_file_that_was_made_anew_under_a_process_is_still_open(tree):
    tree.process(900, "python", files=["/dev/nvidia0 (deleted)"])
    assert tree.scan() == [(900, "/dev/nvidia0", 0, None, None)]


# /dev/null is a character device with the number 1:3 on every Linux, and here 1 is a number of NVIDIA's.
NULL_IS_A_GPU = "Character devices:\n  1 nvidia-frontend\n\nBlock devices:\n"
NULL_IS_A_GI = "Character devices:\n195 nvidia\n195 nvidiactl\n  1 nvidia-caps\n\nBlock devices:\n"


@pytest.mark.parametrize("name", ["/dev/null"])
@pytest.mark.parametrize("file_system", ["devtmpfs", "tmpfs", "overlay", "ext4"])
def test_a_gpu_is_known_by_its_device_number_under_any_name(tree, name, file_system):
    tree.driver(NULL_IS_A_GPU)
    tree.process(900, "python", files=[name], file_system=file_system)
    assert tree.scan() == [(900, name, 3, None, None)]


def test_an_instance_is_known_by_its_device_number(tree):
    tree.driver(NULL_IS_A_GI)
    tree.process(900, "python", files=["/dev/null"], file_system="devtmpfs")
    assert tree.scan() == [(900, "/dev/null", 0, 0, None)]


def test_the_number_of_a_block_device_is_no_gpu(tree):
    tree.driver("Character devices:\n 29 fb\n\nBlock devices:\n  1 nvidia\n")
    tree.process(900, "python", files=["/dev/null"], file_system="devtmpfs")
    assert tree.scan() == []


def test_a_block_device_with_the_number_of_a_gpu_is_none(tree, monkeypatch):
    tree.process(900, "python", files=["/dev/null"], file_system="devtmpfs")
    status = {"st_mode": stat.S_IFBLK | 0o600, "st_rdev": os.makedev(195, 0)}
    monkeypatch.setattr(holders._Folder, "status", lambda _folder, _name: types.SimpleNamespace(**status))
    assert tree.scan() == []
    status["st_mode"] = stat.S_IFCHR | 0o600
    assert tree.scan() == [(900, "/dev/null", 0, None, None)]


def test_the_number_goes_before_the_name(tree, tmp_path):
    """A container can be given any GPU under any name."""
    tree.driver(NULL_IS_A_GPU)
    (tmp_path / "dev").mkdir()
    os.symlink("/dev/null", tmp_path / "dev" / "nvidia0")
    tree.process(900, "python", files=[f"{tmp_path}/dev/nvidia0"], file_system="devtmpfs")
    assert [each[2] for each in tree.scan()] == [3]


@pytest.mark.parametrize("file_system", ["nfs4", "cifs", "fuse.sshfs", "lustre", "proc"])
def test_a_file_on_a_file_system_that_may_hang_is_not_asked_for_its_number(tree, file_system, monkeypatch):
    tree.driver(NULL_IS_A_GPU)
    tree.process(900, "python", files=["/dev/null"], file_system=file_system)
    asked: list[str] = []
    monkeypatch.setattr(holders._Folder, "status", lambda _folder, name: asked.append(name))
    assert tree.scan() == []
    assert asked == []


def test_the_list_of_mounts_is_read_once_for_a_process_with_files_that_are_on_none_of_them(tree, monkeypatch):
    tree.process(900, "python", files=["/memfd:shared (deleted)"] * 20, file_system="tmpfs")
    for number in range(20):
        tree.write(f"proc/900/fdinfo/{number}", "mnt_id:\t1\n")
    tree.process(901, "python", files=["/dev/nvidia0"], file_system="devtmpfs")
    read: list[str] = []
    method = holders._Folder.read
    monkeypatch.setattr(holders._Folder, "read", lambda folder, name: read.append(name) or method(folder, name))
    assert [each[0] for each in tree.scan()] == [901]
    assert read.count("mountinfo") == 1


def test_the_name_of_a_device_file_can_be_printed(tree):
    tree.driver(NULL_IS_A_GPU)
    hostile = f"{tree.root}/\x1b[2J\u2028{'a' * 100}"
    os.symlink("/dev/null", hostile)
    tree.process(900, "python", files=[hostile], file_system="tmpfs")
    ((_pid, path, *_place),) = tree.scan()
    assert path.isprintable()
    assert path == hostile.replace("\x1b", "?").replace("\u2028", "?")[:256]


def test_files_of_threads_are_found_when_the_first_thread_has_ended(tree):
    tree.process(900, "python")
    tree.process(900, "python", JOB, ["/dev/nvidia0"], task="task/905")
    assert tree.scan() == [(900, "/dev/nvidia0", 0, None, None)]


def test_a_process_that_has_a_file_open_twice_has_it_once(tree):
    tree.process(900, "python", files=["/dev/nvidia0", "/dev/nvidia0"])
    assert len(tree.scan()) == 1


def test_what_a_process_calls_itself_can_be_printed(tree):
    tree.process(900, "\x1b[2J\u202eevil", files=["/dev/nvidia0"])
    assert holders.scan(root=tree.root)[0].name == "?[2J?evil"


# --- what changes or is hidden while it is read ---------------------------------------------------------------------


class Ending:
    """Ends a process when one of its files is about to be read."""

    def __init__(self, tree: Tree, monkeypatch: t.Any, when: str, error: OSError) -> None:
        method = getattr(holders._Folder, when)

        def read(folder: t.Any, name: str) -> t.Any:
            if name in ("comm", "fd", "0"):
                raise error
            return method(folder, name)

        monkeypatch.setattr(holders._Folder, when, read)


@pytest.mark.parametrize("when", ["folder", "link", "read"])
@pytest.mark.parametrize("error", [FileNotFoundError(2, "gone"), ProcessLookupError(3, "gone")])
def test_a_process_that_ends_while_it_is_read_holds_nothing(tree, monkeypatch, when, error):
    tree.process(900, "python", files=["/dev/nvidia0"])
    Ending(tree, monkeypatch, when, error)
    assert holders.survey(root=tree.root) == holders.Survey(())


def test_a_process_that_is_gone_when_its_turn_comes_is_passed_over(tree, monkeypatch):
    tree.process(900, "python", files=["/dev/nvidia0"])
    names = os.listdir(os.path.join(tree.root, "proc"))
    listing = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: [*names, "901"] if str(path).endswith("proc") else listing(path))
    assert [each[0] for each in tree.scan()] == [900]


@pytest.mark.parametrize("when", ["folder", "link"])
def test_what_may_not_be_read_is_told(tree, monkeypatch, when):
    tree.process(900, "python", files=["/dev/nvidia0"])
    Ending(tree, monkeypatch, when, PermissionError(13, "no"))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    found = holders.survey(root=tree.root)
    assert found.opened == ()
    unread = "1 process" if when == "link" else "2 processes"  # the first process has no file to be read
    assert found.unseen == (f"the open files of {unread} cannot be read without root",)


def test_an_error_of_any_other_kind_is_told_too(tree, monkeypatch):
    tree.process(900, "python", files=["/dev/nvidia0"])
    Ending(tree, monkeypatch, "link", OSError(5, "Input/output error"))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert holders.survey(root=tree.root).unseen == ("the open files of 1 process cannot be read",)


def test_a_proc_that_hides_processes_is_told(tmp_path):
    tree = Tree(tmp_path)
    os.rename(tmp_path / "proc" / "1", tmp_path / "proc" / "2")
    assert holders.survey(root=tree.root).unseen == ("/proc does not show all processes",)


@pytest.mark.parametrize(("namespace", "told"), [("pid:[4026531836]", 0), ("pid:[4026532382]", 1)])
def test_to_be_in_a_container_is_told(tree, tmp_path, namespace, told):
    (tmp_path / "proc" / "self" / "ns").mkdir(parents=True)
    os.symlink(namespace, tmp_path / "proc" / "self" / "ns" / "pid")
    unseen = holders.survey(root=tree.root).unseen
    assert len(unseen) == told
    assert all("container" in phrase for phrase in unseen)


def test_an_instance_that_cannot_be_named_is_told(tree, tmp_path):
    (tmp_path / "proc" / "driver" / "nvidia-caps" / "mig-minors").unlink()
    tree.process(900, "python", files=[capability_file(0, 7)])
    found = holders.survey(root=tree.root)
    assert found.opened == ()
    assert "process 900" in found.unseen[0]
    assert "mig-minors" in found.unseen[0]


def test_where_all_was_seen_nothing_is_told(tree):
    tree.process(900, "python", files=["/dev/nvidia0"])
    assert holders.survey(root=tree.root).unseen == ()


class Watch:
    """Notes what is begun."""

    def __init__(self) -> None:
        self.begun: list[str] = []

    def begin(self, what: str, seconds: t.Optional[float] = None) -> None:
        self.begun.append(what)

    def idle(self) -> None:
        self.begun.append("idle")


def test_each_process_is_begun_before_it_is_read_since_that_can_hang(tree):
    tree.process(900, "python", files=["/dev/nvidia0"])
    watch = Watch()
    holders.scan(watch, tree.root)
    assert watch.begun == ["read /proc of process 1", "read /proc of process 900", "idle"]


# --- daemons that hand over -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "cgroup", "uid", "cooperative"),
    [
        ("nvidia-persiste", PERSISTENCED, 143, True),
        ("nv-fabricmanage", "0::/system.slice/nvidia-fabricmanager.service\n", 0, True),
        ("nvidia-persiste", "0::/user.slice/user-0.slice/session-3.scope\n", 0, True),
        ("nvidia-persiste", "0::/user.slice/user-1000.slice/session-3.scope\n", 1000, False),
        (
            "nvidia-persiste",
            "0::/user.slice/user-1000.slice/user@1000.service/app.slice/nvidia-persistenced.service\n",
            1000,
            False,
        ),
        ("nvidia-persiste", f"0::/system.slice/docker-{CONTAINER}.scope\n", 0, False),
        ("nv-hostengine", DCGM, 0, False),
        ("python", JOB, 1000, False),
    ],
)
def test_only_the_drivers_own_daemons_hand_over(tree, name, cgroup, uid, cooperative):
    tree.process(900, name, cgroup, ["/dev/nvidia0"], uid=uid)
    assert holders.scan(root=tree.root)[0].cooperative is cooperative
    assert tree.attach(a100()).gpus[0].processes[0].cooperative is cooperative


# --- put where it belongs -------------------------------------------------------------------------------------------


def inside(node: Node, gi_id: int, ci_id: int = 0) -> tuple[Process, ...]:
    found = [
        compute.processes
        for instance in node.gpus[0].instances
        for compute in instance.compute
        if (instance.id, compute.id) == (gi_id, ci_id)
    ]
    return found[0]


def test_who_has_a_compute_instance_open_is_in_it_and_nowhere_else(tree):
    files = ("/dev/nvidia0", capability_file(0, 2), capability_file(0, 2, 0))
    tree.process(900, "python", JOB, files)
    node = tree.attach(a100(("1g.5gb", 0), ("3g.20gb", 4)))
    expected = Process(
        900,
        "python",
        kind="open",
        owner=Owner("job", unit="slurmstepd.scope", job="123", step="0"),
        listed=False,
        opened=tuple(sorted(files)),
    )
    (found,) = inside(node, 2)
    assert found._replace(opened=tuple(sorted(found.opened))) == expected
    assert inside(node, 7) == ()
    assert node.gpus[0].processes == ()


def test_who_has_a_gpu_instance_open_is_in_all_of_its_compute_instances(tree):
    tree.process(900, "python", JOB, [capability_file(0, 2)])
    node = tree.attach(a100(("1g.5gb", 0), ("3g.20gb", 4, [1, 1, 1])))
    assert [[each.pid for each in inside(node, 2, ci)] for ci in range(3)] == [[900], [900], [900]]
    assert inside(node, 7) == ()


def test_who_has_one_compute_instance_open_is_not_in_its_neighbours(tree):
    tree.process(900, "python", JOB, [capability_file(0, 2), capability_file(0, 2, 1)])
    node = tree.attach(a100(("3g.20gb", 4, [1, 1, 1])))
    assert [len(inside(node, 2, ci)) for ci in range(3)] == [0, 1, 0]


def test_who_has_two_instances_open_is_in_both_with_the_files_of_each(tree):
    tree.process(900, "python", JOB, [capability_file(0, 2), capability_file(0, 7)])
    node = tree.attach(a100(("1g.5gb", 0), ("3g.20gb", 4)))
    assert inside(node, 2)[0].opened == (capability_file(0, 2),)
    assert inside(node, 7)[0].opened == (capability_file(0, 7),)


def test_who_has_two_compute_instances_open_is_in_both_with_the_files_of_each(tree):
    gpu_instance, first, second = capability_file(0, 2), capability_file(0, 2, 0), capability_file(0, 2, 1)
    tree.process(900, "python", JOB, [gpu_instance, first, second])
    node = tree.attach(a100(("3g.20gb", 4, [1, 1, 1])))
    assert [set(each.opened) for ci in range(3) for each in inside(node, 2, ci)] == [
        {gpu_instance, first},
        {gpu_instance, second},
    ]


def test_who_has_only_the_gpu_open_holds_the_gpu(tree):
    tree.process(811, "nv-hostengine", DCGM, ["/dev/nvidia0"])
    node = tree.attach(a100(("1g.5gb", 0)))
    assert [each.pid for each in node.gpus[0].processes] == [811]
    assert inside(node, 7) == ()


@pytest.mark.parametrize("gone", [capability_file(0, 9), capability_file(0, 7, 5)])
def test_who_has_something_open_that_is_gone_holds_the_gpu(tree, gone):
    tree.process(811, "nv-hostengine", DCGM, [gone])
    node = tree.attach(a100(("1g.5gb", 0)))
    assert [each.opened for each in node.gpus[0].processes] == [(gone,)]
    assert inside(node, 7) == ()


def test_an_instance_without_compute_instance_is_held_through_the_gpu(tree):
    tree.process(811, "nv-hostengine", DCGM, [capability_file(0, 7)])
    node = tree.attach(a100(("1g.5gb", 0, [])))
    assert [each.pid for each in node.gpus[0].processes] == [811]


def test_gpus_are_told_apart_by_the_number_of_their_device_file_not_by_their_index(tree):
    tree.process(900, "python", files=["/dev/nvidia5"])
    gpus = (boards.gpu("a30-24gb", minor=7), boards.gpu("a30-24gb", index=1, minor=5))
    node = tree.attach(Node(gpus=gpus))
    assert [[each.pid for each in gpu.processes] for gpu in node.gpus] == [[], [900]]


def test_a_gpu_that_does_not_say_its_number_may_be_any(tree):
    tree.process(900, "python", files=["/dev/nvidia5"])
    node = tree.attach(Node(gpus=(boards.gpu("a30-24gb", minor=None),)))
    assert [each.pid for each in node.gpus[0].processes] == [900]


def test_a_process_that_nvml_lists_too_is_there_once_and_its_owner_is_known(tree):
    tree.process(1000, "python", JOB, ["/dev/nvidia0", capability_file(0, 7), capability_file(0, 7, 0)])
    node = tree.attach(a100(("1g.5gb", 0), busy={0}, processes=()))
    (found,) = inside(node, 7)
    assert (found.pid, found.kind, found.listed, found.used_mib) == (1000, "compute", True, 512)
    assert found.owner.job == "123"
    assert len(found.opened) == 3


def test_a_process_that_only_nvml_lists_is_told_whose_it_is(tree):
    tree.process(1000, "python", JOB)
    (found,) = inside(tree.attach(a100(("1g.5gb", 0), busy={0}, processes=())), 7)
    assert (found.owner.job, found.listed, found.opened) == ("123", True, ())


def test_a_process_that_nvml_lists_and_that_cannot_be_seen_stays(tree):
    (found,) = inside(tree.attach(a100(("1g.5gb", 0), busy={0}, processes=())), 7)
    assert (found.pid, found.owner, found.listed) == (1000, Owner(), True)


def test_to_attach_twice_changes_nothing(tree):
    tree.process(1000, "python", JOB, ["/dev/nvidia0", capability_file(0, 7)])
    tree.process(811, "nv-hostengine", DCGM, ["/dev/nvidia0"])
    once = tree.attach(a100(("1g.5gb", 0), busy={0}, processes=()))
    assert tree.attach(once) == once


# --- reservations ---------------------------------------------------------------------------------------------------


def test_a_reservation_is_found_by_uuid_in_either_spelling_and_for_the_gpu(tree):
    node = a100(("1g.5gb", 0), ("3g.20gb", 4))
    gpu = node.gpus[0]
    uuid = gpu.instances[0].compute[0].uuid
    assert uuid is not None
    other = gpu.instances[1]
    reserved = tree.attach(
        node,
        {"device": uuid.upper().replace("MIG", "MIG"), "holder": "Slurm job 1"},
        {"device": f"MIG-{gpu.uuid}/{other.id}/0", "holder": "pod 2"},
        {"device": gpu.uuid, "holder": "a virtual machine"},
    ).gpus[0]
    assert reserved.instances[0].compute[0].reservations == (Reservation("Slurm job 1", "given"),)
    assert reserved.instances[1].compute[0].reservations == (Reservation("pod 2", "given"),)
    assert reserved.reservations == (Reservation("a virtual machine", "given"),)


def test_an_instance_can_be_promised_to_several(tree):
    node = a100(("1g.5gb", 0))
    device = node.gpus[0].instances[0].compute[0].uuid
    reserved = tree.attach(node, {"device": device, "holder": "a"}, {"device": device, "holder": "b"})
    assert [each.holder for each in reserved.gpus[0].instances[0].compute[0].reservations] == ["a", "b"]


def test_to_reserve_what_is_not_there_is_an_error_that_names_it(tree):
    with pytest.raises(WishError, match="MIG-nowhere is reserved for Slurm job 1, but this node has no such device"):
        tree.attach(a100(("1g.5gb", 0)), {"device": "MIG-nowhere", "holder": "Slurm job 1"})


def test_what_an_unfinished_change_took_already_can_still_be_named(tree):
    source = holders.reservations_of([{"device": "MIG-nowhere", "holder": "Slurm job 1"}])
    node = a100(("1g.5gb", 0))
    assert holders.attach(node, (), source, root=tree.root, tolerant=True) == node


@pytest.mark.parametrize(
    "entry", ["MIG-1", {}, {"device": "MIG-1"}, {"device": "MIG-1", "holder": " "}, {"device": 3, "holder": "a"}]
)
def test_a_reservation_that_is_not_in_form_is_an_error_that_says_which(entry):
    with pytest.raises(WishError, match=r"reservations\[1\]"):
        holders.reservations_of([{"device": "MIG-0", "holder": "a"}, entry])


def test_another_source_plugs_in(tree):
    node = a100(("1g.5gb", 0))

    def kubelet(seen: Node) -> list[tuple[str, Reservation]]:
        return [(str(seen.gpus[0].instances[0].compute[0].uuid), Reservation("pod 7", "kubelet"))]

    reserved = holders.attach(node, (), [kubelet], root=tree.root)
    assert reserved.gpus[0].instances[0].compute[0].reservations == (Reservation("pod 7", "kubelet"),)


# --- words ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("process", "said"),
    [
        (
            Process(4711, "python", owner=Owner("job", unit="slurmstepd.scope", job="123", step="0")),
            "process 4711 (python) of Slurm job 123",
        ),
        (
            Process(4711, "python", owner=Owner("container", runtime="docker", container=CONTAINER)),
            "process 4711 (python) in container 3f2a9c51d7e0 (docker)",
        ),
        (
            Process(4711, "python", owner=Owner("pod", pod="214f3ba8-4b69", container=CONTAINER, runtime="containerd")),
            "process 4711 (python) of pod 214f3ba8-4b69, container 3f2a9c51d7e0 (containerd)",
        ),
        (
            Process(4711, "python", owner=Owner("pod", pod="214f3ba8-4b69", container=CONTAINER)),
            "process 4711 (python) of pod 214f3ba8-4b69, container 3f2a9c51d7e0",
        ),
        (
            Process(4711, "python", owner=Owner("session", unit="session-3.scope", session="3")),
            "process 4711 (python) of login session 3",
        ),
        (
            Process(4711, "python", owner=Owner("unit", unit="user@1000.service/jupyter.service")),
            "process 4711 (python) of jupyter.service of user@1000.service",
        ),
        (
            Process(
                811,
                "dcgm",
                kind="open",
                owner=Owner("unit", unit="nvidia-dcgm.service"),
                listed=False,
                opened=("/dev/nvidia0",),
            ),
            "process 811 (dcgm) of nvidia-dcgm.service, which has /dev/nvidia0 open and is in no list of the driver",
        ),
        (Process(811), "process 811"),
    ],
)
def test_a_process_is_said_with_whom_it_belongs_to(process, said):
    assert holders.words(process) == said


def test_what_is_held_is_said_with_who_holds_it(tree):
    tree.process(900, "python", JOB, [capability_file(0, 7)])
    tree.process(811, "nv-hostengine", DCGM, ["/dev/nvidia0"])
    node = tree.attach(a100(("1g.5gb", 0), ("3g.20gb", 4)))
    said = holders.why_in_use(node, 0, 7)
    assert "process 900 (python) of Slurm job 123" in said
    assert "nv-hostengine" not in said
    assert "process 900" not in holders.why_in_use(node, 0, 2)


def test_monitoring_that_leaks_is_named_when_nobody_is_in_the_instance(tree):
    tree.process(811, "nv-hostengine", DCGM, ["/dev/nvidia0"])
    said = holders.why_in_use(tree.attach(a100(("1g.5gb", 0))), 0, 7)
    assert "No process is seen in the instance itself" in said
    assert "process 811 (nv-hostengine) of nvidia-dcgm.service" in said


def test_who_holds_the_gpu_is_everybody_on_it(tree):
    tree.process(900, "python", JOB, [capability_file(0, 7)])
    tree.process(811, "nv-hostengine", DCGM, ["/dev/nvidia0"])
    said = holders.why_in_use(tree.attach(a100(("1g.5gb", 0))), 0)
    assert "process 900" in said
    assert "process 811" in said


def test_that_nobody_is_found_is_said(tree):
    assert holders.why_in_use(tree.attach(a100(("1g.5gb", 0))), 0, 7).startswith(
        "Nobody is found who holds it: no process"
    )


def test_that_nobody_is_found_is_not_said_as_if_it_were_known(tree):
    said = holders.why_in_use(tree.attach(a100(("1g.5gb", 0))), 0, 7, unseen=("/proc does not show all processes",))
    assert said == (
        "Nobody is found who holds it, but not everything could be seen: /proc does not show all processes."
    )


def test_many_holders_are_counted(tree):
    for pid in range(900, 920):
        tree.process(pid, "python", JOB, ["/dev/nvidia0"])
    said = holders.why_in_use(tree.attach(a100()), 0)
    assert said.count("python") == 8
    assert "12 more" in said


# --- an inventory ---------------------------------------------------------------------------------------------------


def test_an_inventory_has_an_entry_for_each_process_and_place(tree):
    tree.write(
        "etc/passwd", "root:x:0:0:root:/root:/bin/bash\ntoor:x:0:0::/root:/bin/sh\nalice:x:1000:1000::/:/bin/sh\n"
    )
    tree.process(811, "nv-hostengine", DCGM, ["/dev/nvidia0"])
    tree.process(1000, "python", JOB, uid=1000)
    tree.process(900, "python", JOB, [capability_file(0, 2), capability_file(0, 7)], uid=4242)
    found = holders.inventory(a100(("1g.5gb", 0), ("3g.20gb", 4), busy={0}, processes=()), root=tree.root)
    assert [(each.gpu, each.minor, each.gi_id, each.ci_id, each.process.pid, each.user) for each in found.holdings] == [
        (0, 0, None, None, 811, "root"),
        (0, 0, 2, 0, 900, "4242"),
        (0, 0, 7, 0, 1000, "alice"),
        (0, 0, 7, 0, 900, "4242"),
    ]
    assert found.unseen == ()


def test_an_inventory_without_nvml_is_what_the_open_files_tell(tree):
    tree.process(811, "nv-hostengine", DCGM, ["/dev/nvidia0", "/dev/nvidia1"])
    tree.process(900, "python", JOB, ["/dev/nvidia1", capability_file(1, 7), capability_file(1, 7, 0)])
    tree.process(901, "python", JOB, ["/dev/nvidia1", capability_file(1, 7), capability_file(1, 2)])
    found = holders.inventory(None, root=tree.root).holdings
    assert [(each.gpu, each.minor, each.gi_id, each.ci_id, each.process.pid) for each in found] == [
        (None, 0, None, None, 811),
        (None, 1, None, None, 811),
        (None, 1, 7, 0, 900),
        (None, 1, 2, None, 901),
        (None, 1, 7, None, 901),
    ]
    assert not any(each.process.listed for each in found)
    assert set(found[2].process.opened) == {"/dev/nvidia1", capability_file(1, 7), capability_file(1, 7, 0)}


def test_the_inventory_of_a_node_where_nothing_is_held_is_empty(tree):
    assert holders.inventory(a100(("1g.5gb", 0)), root=tree.root) == holders.Inventory(())
