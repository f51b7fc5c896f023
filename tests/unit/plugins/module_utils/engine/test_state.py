# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Files of the node: whole or not at all, never ignored, for root only; and one run at a time."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import stat
import subprocess
import sys
import time

import pytest

from ansible_collections.gpufleet.mig.plugins.module_utils.engine import bounded, layouts, state
from ansible_collections.gpufleet.mig.plugins.module_utils.engine.model import Gpu, Placement, Problem, Step, WishError
from ansible_collections.gpufleet.mig.tests.unit.plugins.module_utils.engine import boards

A100 = "a100-sxm4-40gb"
STEPS = (
    Step("set_mode", 0, enabled=True),
    Step("destroy_ci", 1, gi_id=2, ci_id=0, placement=Placement(4, 4), name="3g.20gb"),
    Step("destroy_gi", 1, gi_id=2, placement=Placement(4, 4), name="3g.20gb"),
    Step("create_gi", 1, profile_id=19, placement=Placement(0, 1), name="1g.5gb"),
    Step("create_ci", 1, placement=Placement(0, 1), slices=1, compute_placement=Placement(0, 1), name="1g.5gb"),
    Step("create_ci", 1, placement=Placement(0, 4), slices=1, name="1c.3g.20gb", variant="rev1"),
)
# What a process asks of the operating system while it writes a file; it can be killed before and after each.
OPERATIONS = ("mkdir", "open", "write", "fsync", "close", "link", "replace", "unlink")


@pytest.fixture
def places(tmp_path):
    return state.places(str(tmp_path / "state"))


def dump(index=0, *instances, board=A100, **fields):
    return layouts.dump(boards.gpu(board, index=index, instances=list(instances), **fields))


def journal(**fields):
    default = state.Journal(
        txid="20260131T120000Z-0badcafe",
        boot_id=state.boot_id(),
        started=state.utc_now(),
        who="alice from 10.0.0.1",
        what="mig_config label all-1g.5gb",
        label="all-1g.5gb",
        before=(dump(0), dump(1, ("3g.20gb", 4))),
        target=(dump(1, ("1g.5gb", 0)),),
        steps=STEPS,
        clients=("nvidia-dcgm.service",),
        gpus=(0, 1),
    )
    return default._replace(**fields)


def persisted(*dumps, txid="20260131T120000Z-0badcafe", label="all-1g.5gb"):
    return state.Persisted(txid, state.utc_now(), "alice", label, "generated", "580.95.05", dumps)


def lease(**fields):
    default = state.Lease("run-1", state.boot_id(), time.time() + 600, "alice", "waits for a reboot", (0, 1))
    return default._replace(**fields)


def file_of(places, name):
    return os.path.join(places.state, name)


def mode_of(path):
    return stat.S_IMODE(os.stat(path).st_mode)


# --- what is written is read again ----------------------------------------------------------------------------------


def test_nothing_is_there_on_a_new_node_and_looking_makes_nothing(places):
    assert state.read_journal(places) is None
    assert state.read_wanted(places) is None
    assert state.read_previous(places) is None
    assert state.read_lease(places) is None
    assert state.read_result(places) is None
    assert state.holder(places) is None
    assert state.in_progress(places) is None
    assert not os.path.exists(places.state)


@pytest.mark.parametrize(
    "folder",
    ["/", "//", "/etc", "/opt", "/new", "/var/lib", "/usr/local/etc", "/home/somebody", "/var/lib/x/..", "mig", "./x"],
)
def test_a_folder_of_the_system_or_one_that_is_nowhere_is_no_state_folder(folder):
    with pytest.raises(WishError, match=r"state_dir is '.*choose one .* such as /var/lib/gpufleet-mig\.$"):
        state.places(folder)


def test_a_folder_that_others_use_is_no_state_folder_since_it_goes_as_a_whole(tmp_path):
    (tmp_path / "precious.txt").touch()
    with pytest.raises(WishError, match=r"state_dir is '.*', which has 'precious\.txt' of somebody else: choose"):
        state.places(str(tmp_path))


@pytest.mark.parametrize(
    "there", [[], ["lost+found"], ["notes", "wanted.json"], [".journal.json.new"], ["wanted.json.damaged"]]
)
def test_a_folder_that_is_empty_or_has_records_of_ours_is_one(tmp_path, there):
    for name in there:
        (tmp_path / name).touch()
    assert state.places(str(tmp_path)).state == str(tmp_path)
    assert state.places(str(tmp_path / "new")).run == str(tmp_path / "new" / "run")


def test_all_files_are_read_as_they_were_written(places):
    state.write_journal(places, journal())
    state.write_wanted(places, persisted(dump(0, ("3g.20gb", 4, [2, 1]))))
    state.write_lease(places, lease())
    state.write_result(places, {"txid": "x", "changed": True})
    assert state.read_journal(places) == journal(started=state.read_journal(places).started)
    assert state.read_wanted(places).gpus == (dump(0, ("3g.20gb", 4, [2, 1])),)
    assert state.read_lease(places).run_id == "run-1"
    assert state.read_result(places) == {"txid": "x", "changed": True}


def test_what_was_cleared_is_gone_and_clearing_again_is_no_error(places):
    state.write_journal(places, journal())
    state.write_lease(places, lease())
    state.write_result(places, {})
    for _time in (1, 2):
        state.clear_journal(places)
        state.clear_lease(places)
        state.clear_result(places)
    assert os.listdir(places.state) == ["run"]
    assert os.listdir(places.run) == []


def test_a_recovery_layout_is_one_that_layouts_can_resolve(places):
    before = boards.gpu(A100, instances=[("3g.20gb", 4, [2, 1])])
    path = state.write_recovery(places, "20260131T120000Z-0badcafe", [layouts.dump(before)])
    with open(path, encoding="utf-8") as file:
        wanted = layouts.resolve(boards.node(boards.gpu(A100)), json.load(file))
    assert [wish.placement for wish in wanted.wishes[0].instances] == [Placement(4, 4)]


def test_a_relative_state_dir_is_refused():
    with pytest.raises(WishError, match="must be an absolute path"):
        state.places("var/lib")


@pytest.mark.parametrize("state_dir", [None, "", "/var/lib/gpufleet-mig", "/var/lib//gpufleet-mig/"])
def test_a_real_node_has_one_lock_however_its_folder_is_spelled(state_dir):
    assert state.places(state_dir) == ("/var/lib/gpufleet-mig", "/run/gpufleet-mig")


def test_names_of_changes_differ_and_are_fit_for_file_and_unit_names():
    first, second = state.new_txid(), state.new_txid()
    assert first != second
    assert all(character.isalnum() or character == "-" for character in first)


# --- files that cannot be understood ----------------------------------------------------------------------------------

READERS = {
    "journal.json": state.read_journal,
    "wanted.json": state.read_wanted,
    "previous.json": state.read_previous,
    "reboot.json": state.read_lease,
}
DAMAGED = {
    "empty": b"",
    "cut": b'{"schema": 1, "txid": "2026',
    "zeros": b"\0" * 4096,
    "not UTF-8": b"\xff\xfe{}",
    "a list": b"[]",
    "without schema": b"{}",
    "schema is text": b'{"schema": "1"}',
    "schema is true": b'{"schema": true}',
    "without content": b'{"schema": 1}',
    "nested": b'{"schema": 1, "gpus": ' + b"[" * 100_000,
    "huge number": b'{"schema": 1, "expires": ' + b"9" * 5000 + b"}",
}


def put(path, content):
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    with open(path, "wb") as file:
        file.write(content)


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_file_is_an_error_that_names_it_and_the_next_action(places, name, content):
    path = file_of(places, name)
    put(path, content)
    with pytest.raises(state.StateError) as caught:
        READERS[name](places)
    assert caught.value.details == {"file": path, "reason": "damaged"}
    assert str(caught.value).startswith(f"{path} is damaged (")
    assert f"move it away with 'mv {path} {path}.damaged'" in str(caught.value)
    assert os.path.exists(path)


@pytest.mark.parametrize("name", READERS)
def test_a_file_of_another_version_is_neither_guessed_at_nor_removed(places, name):
    path = file_of(places, name)
    put(path, b'{"schema": 7}')
    with pytest.raises(state.StateError, match="another version of gpufleet.mig .schema 7, this one reads 1") as caught:
        READERS[name](places)
    assert caught.value.details == {"file": path, "reason": "schema"}
    assert os.path.exists(path)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("txid", "../../etc/passwd", "txid is not one"),
        ("txid", 5, "txid is not text"),
        ("who", None, "who is not text"),
        ("drm", 1, "drm is not a boolean"),
        ("remember", None, "remember is not a boolean"),
        ("gpus", [0, True], "gpus is not a list of numbers"),
        ("gpus", "01", "gpus is not a list of numbers"),
        ("clients", [1], "clients is not a list of texts"),
        ("before", [[]], "before is not a list of mappings"),
        ("steps", [{"kind": "create_gi", "name": 1}], "name is not text"),
        ("steps", [{"name": ""}], "kind is not text"),
        ("steps", [{"kind": "create_gi", "name": "", "gpu": "0"}], "gpu is not a number"),
        ("steps", [{"kind": "create_gi", "name": "", "gpu": 0, "placement": [0, 1]}], "a placement is not a mapping"),
        ("steps", [{"kind": "set_mode", "name": "", "gpu": 0, "enabled": 1}], "enabled is not a boolean"),
    ],
)
def test_a_value_of_the_journal_that_is_not_what_it_must_be_is_named(places, key, value, words):
    state.write_journal(places, journal())
    path = file_of(places, "journal.json")
    with open(path, encoding="utf-8") as file:
        content = json.load(file)
    put(path, json.dumps({**content, key: value}).encode())
    with pytest.raises(state.StateError, match=words):
        state.read_journal(places)


@pytest.mark.parametrize(
    "gpu",
    [
        {"mig_current": "yes", "instances": []},
        {"mig_current": True, "instances": None},
        {"mig_current": True, "instances": [{"profile_id": 9, "compute_instances": []}]},
        {"mig_current": True, "instances": [{"placement": {"start": 0, "size": 4}, "compute_instances": []}]},
    ],
)
def test_a_remembered_layout_that_is_none_is_an_error(places, gpu):
    state.write_wanted(places, persisted(dump(0)))
    path = file_of(places, "wanted.json")
    with open(path, encoding="utf-8") as file:
        content = json.load(file)
    put(path, json.dumps({**content, "gpus": [gpu]}).encode())
    with pytest.raises(state.StateError, match="is damaged"):
        state.read_wanted(places)


@pytest.mark.parametrize("kind", ["folder", "fifo", "link"])
def test_something_else_than_a_file_is_an_error_and_no_wait(places, kind):
    path = file_of(places, "wanted.json")
    os.makedirs(places.state, mode=0o700)
    {"folder": os.mkdir, "fifo": os.mkfifo, "link": lambda it: os.symlink("/dev/zero", it)}[kind](path)
    with pytest.raises(state.StateError, match="move it away"):
        state.read_wanted(places)


def test_a_damaged_wanted_file_is_not_overwritten(places):
    put(file_of(places, "wanted.json"), b"{")
    with pytest.raises(state.StateError):
        state.write_wanted(places, persisted(dump(0)))
    with open(file_of(places, "wanted.json"), "rb") as file:
        assert file.read() == b"{"


def test_a_full_disk_is_told_and_leaves_the_old_file_and_no_other(places, monkeypatch):
    state.write_journal(places, journal(label="old"))

    def write(*_arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(state.StateError, match="journal.json cannot be written .No space left on device.: make room"):
        state.write_journal(places, journal(label="new"))
    assert state.read_journal(places).label == "old"
    assert os.listdir(places.state) == ["journal.json"]


class FileSystem:
    """What statvfs says of a file system with room."""

    f_frsize, f_bfree, f_files, f_ffree, f_flag = 4096, 64, 1000, 1, 0

    def __init__(self, **differently):
        vars(self).update(differently)


@pytest.mark.parametrize(
    ("differently", "words"),
    [
        ({"f_bfree": 63}, "No space left on device.: make room"),
        ({"f_ffree": 0}, "No space left on device.: make room"),
        ({"f_flag": os.ST_RDONLY}, "Read-only file system.: .*make its file system writable"),
    ],
)
def test_before_a_change_is_planned_a_disk_without_room_for_its_records_is_told(
    places, monkeypatch, differently, words
):
    asked = []
    monkeypatch.setattr(os, "statvfs", lambda path: asked.append(path) or FileSystem(**differently))
    with pytest.raises(state.StateError, match=f"{re.escape(places.state)} cannot be written .{words}"):
        state.require_room(places)
    assert os.path.isdir(asked[0])


def test_where_no_folder_can_be_another_one_is_to_be_chosen(tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    places = state.places(str(tmp_path / "file" / "state"))
    with pytest.raises(state.StateError, match="no folder can be there, so choose another one .state_dir"):
        state.write_journal(places, journal())


def test_a_disk_with_some_room_is_enough(places, monkeypatch):
    state.require_room(places)
    monkeypatch.setattr(os, "statvfs", lambda path: FileSystem())
    state.require_room(places)
    # There are file systems that do not count their files.
    monkeypatch.setattr(os, "statvfs", lambda path: FileSystem(f_files=0, f_ffree=0))
    state.require_room(places)


# --- whole or not at all ----------------------------------------------------------------------------------------------


def count_fsyncs(monkeypatch):
    counted = []
    real = os.fsync

    def fsync(descriptor):
        counted.append(stat.S_ISDIR(os.fstat(descriptor).st_mode))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    return counted


@pytest.mark.parametrize("size", [1, 500])
def test_the_number_of_fsyncs_does_not_depend_on_the_size_of_the_change(places, monkeypatch, size):
    state.write_wanted(places, persisted(dump(0)))
    fsyncs = count_fsyncs(monkeypatch)
    counts = {}
    for name, work in (
        ("journal", lambda: state.write_journal(places, journal(steps=STEPS * size))),
        ("wanted", lambda: state.write_wanted(places, persisted(*(dump(i, ("1g.5gb", 0)) for i in range(8))))),
        ("clear", lambda: state.clear_journal(places)),
    ):
        fsyncs.clear()
        work()
        counts[name] = list(fsyncs)
    # The content first, then the folder.
    assert counts == {"journal": [False, True], "wanted": [False, True], "clear": [True]}


def in_child(work):
    """Run ``work`` in a child; the signal that ended it, or its exit code negated."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    _pid, status = os.waitpid(child, 0)
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else -os.WEXITSTATUS(status)


def killing(number, after):
    """Let this process die at its operation of this number, before or after it is done."""
    left = number

    def counted(operation):
        def run(*arguments, **options):
            nonlocal left
            left -= 1
            if left == 0 and not after:
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                return operation(*arguments, **options)
            finally:
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        return run

    for name in OPERATIONS:
        setattr(os, name, counted(getattr(os, name)))


def kill_everywhere(work, check):
    """Kill ``work`` before and after each of its operations and check each time; how often it was killed."""
    for after in (False, True):
        for number in range(1, 100):

            def die(number=number, after=after):
                killing(number, after)
                work()

            ended = in_child(die)
            assert ended in (signal.SIGKILL, 0)
            check()
            if ended == 0:
                break
        else:
            raise AssertionError("it was never done")
    return number


def test_a_kill_while_the_journal_is_written_leaves_the_old_or_the_new_one(places):
    state.write_journal(places, journal(label="old"))

    def check():
        assert state.read_journal(places).label in ("old", "new")
        assert state.in_progress(places)["running"] is False

    operations = kill_everywhere(lambda: state.write_journal(places, journal(label="new")), check)
    assert operations > 6
    assert state.read_journal(places).label == "new"


def test_a_kill_while_the_first_journal_is_written_leaves_none_or_the_new_one(places):
    def check():
        found = state.read_journal(places)
        assert found is None or found.label == "new"

    kill_everywhere(lambda: state.write_journal(places, journal(label="new")), check)
    assert state.read_journal(places).label == "new"


def test_a_kill_while_wanted_is_written_leaves_the_old_or_the_new_one_and_the_right_previous_in_the_end(places):
    first, second, third = (persisted(dump(0, ("1g.5gb", start)), label=str(start)) for start in (0, 1, 2))
    state.write_wanted(places, first)
    state.write_wanted(places, second)

    def check():
        assert state.read_wanted(places).label in ("1", "2")
        assert state.read_previous(places).label in ("0", "1")

    kill_everywhere(lambda: state.write_wanted(places, third), check)
    assert state.read_wanted(places).label == "2"
    assert state.read_previous(places).label == "1"


def test_a_kill_while_the_journal_is_cleared_leaves_it_or_none(places):
    def work():
        state.clear_journal(places)

    def check():
        assert state.read_journal(places) in (None, journal(started="now"))
        state.write_journal(places, journal(started="now"))

    state.write_journal(places, journal(started="now"))
    kill_everywhere(work, check)


def test_what_a_killed_writer_left_is_in_nobodys_way(places):
    state.write_wanted(places, persisted(dump(0), label="first"))
    for name in (".wanted.json.new", ".previous.json.new", ".journal.json.new"):
        put(file_of(places, name), b"{")
    state.write_wanted(places, persisted(dump(0, ("1g.5gb", 0)), label="second"))
    state.write_journal(places, journal())
    assert state.read_wanted(places).label == "second"
    assert state.read_previous(places).label == "first"
    assert sorted(os.listdir(places.state)) == ["journal.json", "previous.json", "wanted.json"]


# --- for root only ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("umask", [0o000, 0o077, 0o777])
def test_files_and_folders_are_private_whatever_the_umask(places, umask):
    if os.geteuid() != 0:
        umask &= 0o077  # without root's privilege nobody writes into a folder that is closed to its owner too
    former = os.umask(umask)
    try:
        state.write_journal(places, journal())
        state.write_wanted(places, persisted(dump(0)))
        state.write_result(places, {})
        with state.Lock.acquire(places, "x", "alice", "test", 0):
            pass
    finally:
        os.umask(former)
    paths = [file_of(places, name) for name in ("journal.json", "wanted.json")]
    paths += [os.path.join(places.run, name) for name in ("lock", "result.json")]
    assert all(mode_of(path) & 0o077 == 0 for path in [*paths, places.state, places.run])
    assert all(mode_of(path) & ~0o600 == 0 for path in paths)


def as_somebody_else(path, work):
    """Run ``work`` as a user who may not read ``path``; its result as JSON."""
    reading, writing = os.pipe()

    def child():
        if os.geteuid() == 0:
            os.setgroups([])
            os.setuid(65534)
        else:
            os.chmod(path, 0)
        os.write(writing, json.dumps(work()).encode())

    ended = in_child(child)
    os.close(writing)
    with open(reading, "rb") as pipe:
        assert ended == 0
        return json.load(pipe)


def test_whoever_may_not_read_the_state_is_told_so_and_learns_nothing_else(places):
    state.write_journal(places, journal())

    def read():
        try:
            state.read_journal(places)
        except state.StateError as error:
            return [error.details["reason"], str(error), state.in_progress(places)]
        return None

    path = file_of(places, "journal.json")
    expected = f"{path} is readable by root only: run as root, which 'sudo' or 'become: true' does."
    assert as_somebody_else(path, read) == ["permission", expected, None]


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o707, 0o1777])
def test_root_neither_believes_nor_writes_a_folder_that_others_can_write_to(places, monkeypatch, mode):
    state.write_journal(places, journal())
    os.chmod(places.state, mode)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    for work in (lambda: state.read_journal(places), lambda: state.write_journal(places, journal())):
        with pytest.raises(state.StateError, match="others than root can write to it") as caught:
            work()
        assert caught.value.details == {"file": places.state, "reason": "unsafe"}
        assert f"'chown root {places.state}; chmod go-w {places.state}'" in str(caught.value)


def test_a_link_in_the_place_of_the_new_file_is_not_followed(places, tmp_path):
    state.write_journal(places, journal(label="old"))
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    os.symlink(victim, file_of(places, ".journal.json.new"))
    state.write_journal(places, journal(label="new"))
    assert victim.read_text() == "untouched"
    assert state.read_journal(places).label == "new"


# --- wanted and previous ----------------------------------------------------------------------------------------------


def test_what_was_wanted_becomes_the_previous_layout(places):
    state.write_wanted(places, persisted(dump(0), label="first"))
    assert state.read_previous(places) is None
    state.write_wanted(places, persisted(dump(0, ("1g.5gb", 0)), label="second"))
    assert (state.read_wanted(places).label, state.read_previous(places).label) == ("second", "first")


def test_the_same_layout_again_leaves_the_previous_one(places):
    state.write_wanted(places, persisted(dump(0), label="first"))
    for label in ("second", "again"):
        state.write_wanted(places, persisted(dump(0, ("1g.5gb", 0)), label=label))
    assert (state.read_wanted(places).label, state.read_previous(places).label) == ("again", "first")


def test_a_run_that_covers_some_gpus_leaves_what_is_remembered_of_the_others(places):
    state.write_wanted(places, persisted(dump(0, ("1g.5gb", 0)), dump(1, ("3g.20gb", 4))))
    state.write_wanted(places, persisted(dump(1, ("7g.40gb", 0))))
    remembered = {gpu["index"]: gpu for gpu in state.read_wanted(places).gpus}
    assert remembered == {0: dump(0, ("1g.5gb", 0)), 1: dump(1, ("7g.40gb", 0))}


@pytest.mark.parametrize("fields", [{"pci_bus_id": "00000000:FF:00.0"}, {"uuid": "GPU-another"}])
def test_a_board_that_moved_or_was_replaced_is_remembered_once(places, fields):
    state.write_wanted(places, persisted(dump(0, ("1g.5gb", 0))))
    state.write_wanted(places, persisted(dump(0, ("3g.20gb", 0), **fields)))
    assert state.read_wanted(places).gpus == (dump(0, ("3g.20gb", 0), **fields),)


def gpu(*instances, **fields):
    return boards.gpu(A100, instances=list(instances), **fields)


@pytest.mark.parametrize(
    ("remembered", "now", "verdict"),
    [
        (None, gpu(), "absent"),
        ([dump(0, ("3g.20gb", 4, [2, 1]))], gpu(("3g.20gb", 4, [2, 1])), "match"),
        ([dump(0, ("1g.5gb", 0), ("1g.5gb", 1))], gpu(("1g.5gb", 1), ("1g.5gb", 0)), "match"),
        ([dump(0, mode=False)], gpu(mode=False), "match"),
        ([dump(0, ("1g.5gb", 0))], gpu(("1g.5gb", 1)), "differ"),
        ([dump(0, ("3g.20gb", 4, [2, 1]))], gpu(("3g.20gb", 4, [1, 1, 1])), "differ"),
        ([dump(0, ("3g.20gb", 4))], gpu(("3g.20gb", 4, [])), "differ"),
        ([dump(0)], gpu(mode=False), "differ"),
        ([dump(0)], gpu(problems=(Problem("nvmlDeviceGetMigMode", "GPU_IS_LOST", ""),)), "differ"),
        ([dump(0)], gpu(uuid="GPU-another"), "differ"),
        ([dump(0)], gpu(pci_bus_id="00000000:FF:00.0"), "match"),
        ([dump(1)], gpu(), "differ"),
        ([dump(1)], gpu(mode=False), "differ"),
        ([dump(0), dump(1)], gpu(), "differ"),
        ([], boards.gpu("tesla-t4"), "match"),
    ],
)
def test_whether_a_boot_would_restore_what_is_there_now(remembered, now, verdict):
    known = None if remembered is None else persisted(*remembered)
    assert state.persisted_verdict(known, boards.node(now)) == verdict


def test_the_verdict_on_some_gpus_demands_that_each_is_remembered_and_ignores_the_others():
    node = boards.node(gpu(index=0, mode=False), gpu(("1g.5gb", 0), index=1), gpu(("3g.20gb", 0), index=2))
    known = persisted(dump(1, ("1g.5gb", 0)), dump(2, ("3g.20gb", 4)))
    assert state.persisted_verdict(known, node, [1]) == "match"
    assert state.persisted_verdict(known, node, [0, 1]) == "differ"
    assert state.persisted_verdict(known, node, [2]) == "differ"


def test_a_board_that_is_gone_is_forgotten_by_a_run_over_the_whole_node_and_by_no_other(places):
    state.write_wanted(places, persisted(dump(0), dump(1)))
    node = boards.node(gpu())
    assert state.persisted_verdict(state.read_wanted(places), node, [0]) == "differ"
    assert state.persisted_verdict(state.read_wanted(places), boards.node(gpu(), gpu(index=2)), [0]) == "match"

    state.write_wanted(places, persisted(dump(0)))
    assert len(state.read_wanted(places).gpus) == 2
    state.write_wanted(places, persisted(dump(0)), whole_node=True)
    assert len(state.read_wanted(places).gpus) == 1
    assert state.persisted_verdict(state.read_wanted(places), node) == "match"


def test_a_board_that_does_not_answer_is_not_taken_for_one_that_is_gone():
    silent = Gpu(1, problems=(Problem("nvmlDeviceGetHandleByIndex", "GPU_IS_LOST", ""),))
    node = boards.node(gpu(), silent)
    assert state.persisted_verdict(persisted(dump(0), dump(1)), node, [0, 1]) == "differ"
    assert state.persisted_verdict(persisted(dump(0), dump(1)), node, [0]) == "match"


def test_where_only_the_mode_is_remembered_the_instances_may_be_any():
    only_mode = dump(0)
    del only_mode["instances"]
    for present in (gpu(), gpu(("1g.5gb", 0))):
        assert state.persisted_verdict(persisted(only_mode), boards.node(present)) == "match"
    assert state.persisted_verdict(persisted(only_mode), boards.node(gpu(mode=False))) == "differ"


def test_another_spelling_of_a_profile_by_another_driver_is_the_same_layout():
    present = gpu(("3g.20gb", 4))
    renamed = layouts.dump(present)
    renamed["instances"][0]["profile"] = "3g.19gb"
    assert state.persisted_verdict(persisted(renamed), boards.node(present)) == "match"


# --- the lease --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expires_in", "run_id", "blocks"),
    [
        (600, "run-2", True),
        (600, "", True),
        (600, "run-1", False),
        (0, "run-2", False),
        (-1, "run-2", False),
        (state.MAX_LEASE, "run-2", True),
        (state.MAX_LEASE + 1, "run-2", False),
        (float("inf"), "run-2", False),
        (float("nan"), "run-2", False),
    ],
)
def test_a_lease_keeps_others_off_until_it_ends_and_never_for_ever(expires_in, run_id, blocks):
    now = 1_800_000_000.0
    assert state.lease_blocks(lease(expires=now + expires_in), run_id, now) is blocks


@pytest.mark.parametrize(("jump", "blocks"), [(-7200, False), (-300, True), (300, True), (7200, False)])
def test_a_clock_that_is_set_does_not_make_a_lease_endless(jump, blocks):
    granted = 1_800_000_000.0
    assert state.lease_blocks(lease(expires=granted + 1800), "run-2", granted + jump) is blocks


def test_a_lease_of_nobody_and_none_at_all_keep_nobody_off():
    assert not state.lease_blocks(None, "run-2", time.time())
    assert not state.lease_blocks(lease(run_id=""), "run-2", time.time())


def test_a_lease_that_was_asked_for_too_long_is_one_that_is_believed(places):
    state.write_lease(places, lease(expires=time.time() + 10 * state.MAX_LEASE))
    assert state.lease_blocks(state.read_lease(places), "run-2", time.time())


def test_a_lease_holds_over_a_reboot(places, monkeypatch):
    state.write_lease(places, lease())
    monkeypatch.setattr(state, "boot_id", lambda: "another boot")
    assert state.lease_blocks(state.read_lease(places), "run-2", time.time())


# --- one at a time ----------------------------------------------------------------------------------------------------


class Holding:
    """A process that has the lock; ``beside`` runs in it once it has, and may leave processes behind."""

    def __init__(self, places, beside=None):
        self._leave, self._until = os.pipe()[::-1]
        ready, tell = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(self._leave)
                with state.Lock.acquire(
                    places, "tx-1", "alice from 10.0.0.1", "mig_config label all-1g.5gb", 5
                ) as lock:
                    if beside:
                        beside(lock)
                    os.write(tell, b"!")
                    os.read(self._until, 1)
            finally:
                os._exit(0)
        os.close(tell)
        os.close(self._until)
        assert os.read(ready, 1) == b"!"
        os.close(ready)

    def end(self):
        os.close(self._leave)
        os.waitpid(self.pid, 0)

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)
        self.end()


@contextlib.contextmanager
def held(places, beside=None):
    holding = Holding(places, beside)
    try:
        yield holding
    finally:
        holding.kill()


def try_to_lock(places, timeout=0.0):
    with state.Lock.acquire(places, "tx-2", "bob", "test", timeout):
        return True


def test_who_has_the_lock_can_be_seen_without_waiting_and_who_waited_is_told(places):
    with held(places) as holding:
        seen = state.holder(places)
        with pytest.raises(state.LockedError) as caught:
            try_to_lock(places)
    assert (seen["pid"], seen["txid"], seen["who"]) == (holding.pid, "tx-1", "alice from 10.0.0.1")
    assert caught.value.details["lock"] == seen
    assert str(caught.value) == (
        f"Process {holding.pid} of alice from 10.0.0.1 (mig_config label all-1g.5gb) has this node since"
        f" {seen['since']}: run again when it has ended, or wait longer with lock_timeout."
    )


def test_whoever_waits_gets_the_lock_when_the_other_run_ends(places):
    holding = Holding(places)

    class Watch:
        def begin(self, what, seconds=None):
            assert what == "wait for the lock of this node"

        def check(self):
            if holding.pid:
                holding.end()
                holding.pid = 0

    with state.Lock.acquire(places, "tx-2", "bob", "test", 30, Watch()):
        assert state.holder(places)["who"] == "bob"
    assert state.holder(places) is None


def test_whoever_waits_can_be_asked_to_stop(places):
    class Watch:
        def begin(self, what, seconds=None):
            pass

        def check(self):
            raise bounded.Interrupted("stop")

    with (
        held(places),
        pytest.raises(bounded.Interrupted),
        state.Lock.acquire(places, "tx-2", "bob", "test", 300, Watch()),
    ):
        pass


def test_the_lock_of_a_killed_run_is_free_and_its_file_says_nothing(places):
    Holding(places).kill()
    assert os.path.getsize(os.path.join(places.run, "lock")) > 0
    assert state.holder(places) is None
    assert state.in_progress(places) is None
    assert try_to_lock(places)


def test_a_lock_file_of_an_earlier_boot_or_of_anything_else_does_not_block(places):
    put(os.path.join(places.run, "lock"), b'{"pid": 1, "who": "another boot"')
    assert state.holder(places) is None
    assert try_to_lock(places)


def leave_behind(places, start):
    """Kill a run that has the lock and has started a process, which lives on; the pid of that process."""
    told, tell = os.pipe()
    holding = Holding(places, beside=lambda lock: os.write(tell, str(start(lock)).encode()))
    left = int(os.read(told, 20))
    os.close(told)
    os.close(tell)
    holding.kill()
    return left


def fork_and_wait(_lock=None):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, b".")
        signal.pause()
    os.read(reader, 1)  # by then it has dropped what it is not to keep
    return child


def start_and_wait(_lock):
    return subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], close_fds=False).pid


def fork_with_a_copy(lock):
    os.dup(lock._descriptor)
    return fork_and_wait()


@pytest.mark.parametrize("start", [fork_and_wait, start_and_wait])
def test_what_a_killed_run_has_started_does_not_keep_the_lock(places, start):
    left = leave_behind(places, start)
    try:
        # A program that has just begun may be about to close what it is not to keep.
        assert try_to_lock(places, timeout=30)
    finally:
        os.kill(left, signal.SIGKILL)


def test_a_lock_that_is_kept_for_a_dead_run_all_the_same_is_told_as_that(places):
    left = leave_behind(places, fork_with_a_copy)
    try:
        with pytest.raises(state.LockedError, match="has ended, but a process that it started keeps the lock"):
            try_to_lock(places)
    finally:
        os.kill(left, signal.SIGKILL)


def test_a_lock_file_that_was_removed_meanwhile_does_not_stop_the_next_run(places):
    with held(places):
        os.unlink(os.path.join(places.run, "lock"))
        assert try_to_lock(places)


def test_looking_at_the_lock_does_not_make_a_run_fail(places):
    """Many who look all the time, and one who takes the lock without any patience."""
    state.write_result(places, {})
    stop, stopping = os.pipe()

    def look():
        os.close(stopping)
        while not select.select([stop], [], [], 0)[0]:
            state.holder(places)

    children = []
    for _number in range(3):
        child = os.fork()
        if child == 0:
            try:
                look()
            finally:
                os._exit(0)
        children.append(child)
    try:
        assert all(try_to_lock(places) for _time in range(200))
    finally:
        os.close(stopping)
        for child in children:
            os.waitpid(child, 0)


def process_status(tmp_path, text):
    folder = tmp_path / "proc" / "4711"
    folder.mkdir(parents=True)
    (folder / "status").write_text(text)
    return str(tmp_path)


@pytest.mark.parametrize(
    ("status", "deadline", "words"),
    [
        ("State:\tS (sleeping)\nShdPnd:\t0000000000000000\n", None, "run again when it has ended"),
        ("State:\tR (running)\n", "later", "run again when it has ended"),
        ("State:\tS (sleeping)\n", "past", "was told to end and has not: the driver hangs, reboot the node"),
        ("State:\tD (disk sleep)\nShdPnd:\t0000000000000100\n", None, "was told to end and has not"),
        ("State:\tD (disk sleep)\n", None, "if that lasts, the driver hangs, reboot the node"),
        ("State:\tD (disk sleep)\nShdPnd:\tnonsense\n", None, "the driver hangs, reboot the node"),
        ("", None, "run again when it has ended"),
    ],
)
def test_a_run_that_hangs_in_the_driver_is_told_as_that(tmp_path, status, deadline, words):
    times = {None: None, "later": time.monotonic() + 1000, "past": time.monotonic() - 1}
    said = {"pid": 4711, "who": "alice", "what": "test", "since": "then", "deadline": times[deadline]}
    assert words in state._who_has_it("/run/lock", said, process_status(tmp_path, status))


def test_a_deadline_that_the_holder_has_written_is_seen_by_others(places):
    with held(places, beside=lambda lock: lock.expect(-1)), pytest.raises(state.LockedError, match="was told to end"):
        try_to_lock(places)


def test_whoever_has_not_said_yet_who_it_is_is_told_as_that(places):
    def beside(lock):
        os.ftruncate(lock._descriptor, 0)

    with held(places, beside), pytest.raises(state.LockedError, match="Another run has this node and has not said"):
        try_to_lock(places)


def test_names_from_elsewhere_cannot_break_the_line():
    who = "eve\x1b[2J\nroot" + "x" * 1000
    said = state._who_has_it("/run/lock", {"pid": os.getpid(), "who": who})
    assert said.isprintable()
    assert len(said) < 400


# --- what is going on -------------------------------------------------------------------------------------------------


def test_a_change_that_runs_and_one_that_was_left_unfinished_are_told_apart(places):
    state.write_journal(places, journal())
    with held(places):
        running = state.in_progress(places)
    left = state.in_progress(places)
    assert running == {**left, "running": True}
    assert left == {
        "txid": "20260131T120000Z-0badcafe",
        "who": "alice from 10.0.0.1",
        "what": "mig_config label all-1g.5gb",
        "label": "all-1g.5gb",
        "started": left["started"],
        "running": False,
        "boot": "this",
    }


def test_a_change_that_an_earlier_boot_left_is_told_as_that(places):
    state.write_journal(places, journal(boot_id="another"))
    assert state.in_progress(places)["boot"] == "earlier"


def test_a_run_that_has_not_begun_its_change_is_told_too(places):
    with held(places):
        told = state.in_progress(places)
    assert (told["running"], told["txid"], told["boot"]) == (True, "tx-1", "this")


def test_a_damaged_journal_is_told_and_not_ignored(places):
    put(file_of(places, "journal.json"), b"{")
    told = state.in_progress(places)
    assert list(told) == ["unreadable"]
    assert "journal.json is damaged" in told["unreadable"]
