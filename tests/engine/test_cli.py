# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The node command: what it says, what it does, and what its exit status means."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
import typing as t
from pathlib import Path

import pynvml
import pytest

from ansible_collections.gpufleet.mig.plugins.module_utils.engine import __file__ as engine_file
from ansible_collections.gpufleet.mig.plugins.module_utils.engine import cli, state, worker
from ansible_collections.gpufleet.mig.tests.engine.helpers import NOBODY, Installation, places
from nvmlsim import ChildKilled

THIRDS = "2g.10gb,2g.10gb,2g.10gb"


class Ran(t.NamedTuple):
    status: int
    out: str
    err: str

    @property
    def report(self) -> dict[str, t.Any]:
        return t.cast(dict[str, t.Any], json.loads(self.out))


def command(installed, *arguments, stdin="", **options) -> Ran:
    """Run the node command where it sees this node; ``options`` are those of Simulator.call."""

    def work() -> Ran:
        out, err = io.StringIO(), io.StringIO()
        sys.stdin = io.StringIO(stdin)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                status = cli.main(["--state-dir", installed.places.state, *arguments])
            except SystemExit as end:
                status = int(end.code or 0)
        return Ran(status, out.getvalue(), err.getvalue())

    return t.cast(Ran, installed.call(work, **options))


def layout_of(installed, gpu=0):
    return places(installed.read().gpus[gpu])


def destroy_everything(installed, gpu=0):
    """What a person with nvidia-smi does."""

    def destroy(session):
        for gi in session.read_gpu(gpu).instances:
            for ci in gi.compute:
                session.destroy_compute_instance(gpu, gi.id, ci.id)
            session.destroy_gpu_instance(gpu, gi.id)

    installed.node.in_session(destroy)
    installed.simulator.reset_calls()


def interrupt(installed, nth=2, **wish):
    """Kill a change and whoever waits for it, so that nobody is there to heal it."""

    def change():
        worker._ended_for = lambda *_arguments: os.kill(os.getpid(), signal.SIGKILL)
        worker.change(installed.places, installed.opener, installed.job(**wish), installed.manager)

    installed.simulator.fault("nvmlDeviceCreateGpuInstanceWithPlacement", nth=nth, when="after", kill=True)
    with pytest.raises(ChildKilled):
        installed.call(change)
    installed.simulator.clear_faults()
    installed.simulator.reset_calls()


def written(installed, name, **changes):
    """A copy of a file of the node with other values."""
    content = json.loads(Path(installed.places.state, name).read_text())
    path = Path(installed.places.state).parent / "layout.json"
    path.write_text(json.dumps({**content, **changes}))
    return path


# --- status ---------------------------------------------------------------------------------------------------------


def test_status_shows_layouts_as_pictures_and_what_the_next_boot_restores(install):
    installed = install("all-balanced", gpus="1xa100-sxm4-40gb,1xa30-24gb")
    ran = command(installed, "status")
    lines = ran.out.splitlines()
    assert ran.status == cli.OK
    assert lines[0].endswith("driver 580.95.05, 2 GPUs")
    assert lines[1].startswith("GPU 0  |1g.5gb |1g.5gb |2g.10gb")
    assert lines[2].startswith("GPU 1  |1g.6gb ")
    assert lines[3].startswith("Next boot: all-balanced (generated) of 20")
    assert lines[3].endswith(", which the GPUs have now.")
    assert installed.simulator.writes() == []


def test_status_of_a_node_that_was_never_changed(install):
    ran = command(install(), "status")
    assert (ran.status, ran.out.splitlines()[-1]) == (cli.OK, "Next boot: nothing is remembered.")


def test_status_has_stable_keys_as_json_before_and_after_the_word(install):
    installed = install("all-1g.5gb")
    report = command(installed, "status", "--json").report
    assert {**report, "gpus": [], "host": "", "wanted": None, "previous": None} == {
        "command": "status",
        "exit_status": 0,
        "host": "",
        "driver_version": "580.95.05",
        "gpus": [],
        "persisted": "match",
        "wanted": None,
        "previous": None,
        "wish": None,
        "boot": None,
        "in_progress": None,
        "lease": None,
        "unreadable": [],
    }
    for record in ("wanted", "previous"):
        assert sorted(report[record]) == ["driver_version", "label", "source", "txid", "who", "written"]
    assert {
        "index",
        "uuid",
        "pci_bus_id",
        "name",
        "mig_current",
        "mig_pending",
        "instances",
        "layout",
        "errors",
    } <= set(report["gpus"][0])
    assert command(installed, "--json", "status").report == report


def test_status_says_which_layout_can_be_had_back_and_that_the_gpus_are_not_as_remembered(install):
    installed = install("all-1g.5gb")
    installed.change(label=THIRDS)
    destroy_everything(installed)
    ran = command(installed, "status")
    assert "'gpufleet-mig verify' says in what" in ran.out
    assert "Before that: all-1g.5gb (generated) of 20" in ran.out
    assert "'gpufleet-mig restore --previous' brings it back" in ran.out


def test_status_says_what_makes_a_pending_mode_current(install):
    installed = install()
    with installed.simulator.occupy(gpu=0, kind="client"):
        installed.node.enable(0)
    ran = command(installed, "status")
    assert "GPU 0: MIG is on from the next reset or reboot on." in ran.out


def test_status_without_privilege_says_all_it_can_and_what_it_cannot(make_shared_node):
    node = make_shared_node()
    folder = Path(node.simulator.path).parent / "state"
    installed = Installation(node, folder)
    assert installed.change(label="all-1g.5gb").error is None
    if NOBODY:
        folder.chmod(0o711)
    else:
        Path(folder, "wanted.json").chmod(0)
    node.simulator.reset_calls()
    ran = command(installed, "status", **NOBODY)
    said = ran.out.replace("\n", " ")
    assert ran.status == cli.CANNOT_TELL
    assert "driver 580.95.05, 1 GPU " in said
    assert "Next boot: cannot tell what is remembered." in said
    assert f"Could not be read: {folder}/wanted.json is readable by root only: run as root" in said
    assert node.simulator.writes() == []


def test_status_says_the_mode_of_a_gpu_whose_instances_it_may_not_see(make_shared_node):
    node = make_shared_node(privileged="nobody")
    ran = command(Installation(node, Path(node.simulator.path).parent / "state"), "status", **NOBODY)
    assert ran.status in (cli.OK, cli.CANNOT_TELL)
    assert "MIG off" in ran.out or "MIG is off" in ran.out


def test_status_without_a_driver_still_says_what_is_remembered(install):
    installed = install("all-1g.5gb")
    installed.simulator.fault("nvmlInit", code="DRIVER_NOT_LOADED")
    ran = command(installed, "status")
    assert ran.status == cli.CANNOT_TELL
    assert "Next boot: all-1g.5gb (generated)" in ran.out
    assert "and it cannot be told whether the GPUs are like that now" in ran.out
    assert "load the kernel module with 'modprobe nvidia'" in ran.out


def test_status_of_a_new_node_without_a_driver(install):
    installed = install()
    installed.simulator.fault("nvmlInit", code="DRIVER_NOT_LOADED")
    lines = command(installed, "status").out.splitlines()
    assert lines[0].endswith(": no driver answers")
    assert lines[1] == "Next boot: nothing is remembered."


def test_status_of_a_driver_that_hangs_comes_back(install):
    installed = install("all-1g.5gb")
    installed.simulator.fault("nvmlDeviceGetMigMode", hang=True)
    ran = command(installed, "status", "--timeout", "0.3")
    assert ran.status == cli.CANNOT_TELL
    assert "The driver does not answer: it was to read GPU 0" in ran.out


def test_status_names_a_damaged_file_and_still_shows_the_gpus(install):
    installed = install("all-1g.5gb")
    Path(installed.places.state, "journal.json").write_text("{")
    ran = command(installed, "status")
    assert ran.status == cli.CANNOT_TELL
    assert "|1g.5gb |" in ran.out
    assert "journal.json is damaged" in ran.out


def test_status_tells_of_an_unfinished_change_and_of_one_that_runs(install):
    installed = install("all-1g.5gb")
    interrupt(installed, label=THIRDS)
    left = command(installed, "status")
    assert left.status == cli.OK
    assert (
        "(a change of a test). 'gpufleet-mig recover' finishes it, 'gpufleet-mig recover --back' takes it" in left.out
    )
    with state.Lock.acquire(installed.places, "tx", "bob", "a change", 5):
        running = command(installed, "status")
    assert "At work since 20" in running.out


def test_status_tells_of_a_lease(install):
    installed = install()
    lease = state.Lease("run-1", "", time.time() + 600, "bob", "a reboot")
    state.write_lease(installed.places, lease)
    assert "for the run run-1 of bob, which waits: a reboot." in command(installed, "status").out


def test_a_label_cannot_move_the_cursor(install):
    installed = install("all-1g.5gb")
    wanted = state.read_wanted(installed.places)
    state.write_wanted(installed.places, wanted._replace(label="\x1b[2Jevil\n", who="\u202eeve"))
    out = command(installed, "status").out
    assert "?[2Jevil?" in out
    assert all(" " <= character <= "~" for line in out.splitlines() for character in line)


def test_status_does_not_offer_to_take_back_what_was_proven(install):
    installed = install("all-1g.5gb")
    wanted = state.read_wanted(installed.places)
    assert wanted is not None
    dumps = wanted.gpus
    left = state.Journal(wanted.txid, state.boot_id(), wanted.written, "alice", "a change", "", dumps, dumps, ())
    state.write_journal(installed.places, left)
    ran = command(installed, "status")
    assert "'gpufleet-mig recover' finishes it." in ran.out
    assert "--back" not in ran.out


# --- verify ---------------------------------------------------------------------------------------------------------


def test_verify_a_node_that_is_as_remembered(install):
    installed = install("all-1g.5gb")
    ran = command(installed, "verify")
    assert ran.status == cli.OK
    assert ran.out.startswith("The GPUs have what is remembered: all-1g.5gb (generated) of 20")
    assert installed.simulator.writes() == []
    assert command(installed, "verify", "--json").report["verdict"] == "match"


def test_verify_says_what_differs(install):
    installed = install("all-1g.5gb")
    destroy_everything(installed)
    ran = command(installed, "verify")
    assert ran.status == cli.DIFFERS
    assert "GPU 0 (00000000:07:00.0, GPU-" in ran.out
    assert "1g.5gb" in ran.out.splitlines()[1]
    assert "missing" in ran.out.splitlines()[1]


def test_verify_without_anything_to_compare_with_cannot_tell(install):
    ran = command(install(), "verify")
    assert ran.status == cli.CANNOT_TELL
    assert ran.err.startswith("gpufleet-mig: Nothing is remembered to compare with")


def test_verify_a_gpu_that_does_not_answer_cannot_tell(install):
    installed = install("all-1g.5gb", gpus="2xa100-sxm4-40gb")
    installed.simulator.fault("nvmlDeviceGetMigMode", gpu=1, code="GPU_IS_LOST")
    ran = command(installed, "verify")
    assert ran.status == cli.CANNOT_TELL
    assert "GPU_IS_LOST" in ran.out
    destroy_everything(installed, 0)
    assert command(installed, "verify").status == cli.DIFFERS


def test_verify_speaks_of_all_gpus_also_when_one_is_not_there(install):
    installed = install("all-1g.5gb")
    wanted = state.read_wanted(installed.places)
    elsewhere = {**wanted.gpus[0], "pci_bus_id": "00000000:F0:00.0", "uuid": "GPU-gone"}
    state.write_wanted(installed.places, wanted._replace(gpus=(elsewhere,)))
    ran = command(installed, "verify")
    assert ran.status == cli.DIFFERS
    assert "GPU-gone" in ran.out
    destroy_everything(installed)
    both = command(installed, "verify").out
    assert "GPU-gone" in both
    assert "missing" in both


def test_verify_tells_of_mig_that_nobody_remembers(install):
    installed = install("all-1g.5gb", gpus="2xa100-sxm4-40gb")
    wanted = state.read_wanted(installed.places)
    path = Path(installed.places.state, "wanted.json")
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "gpus": [wanted.gpus[0]]}))
    ran = command(installed, "verify")
    assert ran.status == cli.DIFFERS
    assert "MIG is on, and nothing is remembered of this GPU." in ran.out


def test_verify_a_node_with_an_unfinished_change_differs(install):
    installed = install("all-1g.5gb")
    interrupt(installed, label=THIRDS)
    ran = command(installed, "verify")
    assert ran.status == cli.DIFFERS
    assert "Unfinished since 20" in ran.out


def test_verify_while_somebody_is_at_work_says_who(install):
    installed = install("all-1g.5gb")
    with state.Lock.acquire(installed.places, "tx", "bob", "a change", 5):
        ran = command(installed, "verify")
    assert ran.status == cli.LOCKED
    assert "tx (a change) of bob" in ran.err


def test_verify_with_a_damaged_file_cannot_tell(install):
    installed = install("all-1g.5gb")
    Path(installed.places.state, "wanted.json").write_text("")
    ran = command(installed, "verify", "--json")
    assert ran.status == cli.CANNOT_TELL
    assert ran.report["reason"] == "damaged"
    assert ran.err == ""


# --- restore --------------------------------------------------------------------------------------------------------


def test_restore_brings_back_exactly_what_was_there_and_then_has_nothing_to_do(install):
    installed = install("1g.5gb,3g.20gb")
    was = installed.node.state()
    destroy_everything(installed)
    ran = command(installed, "restore")
    assert ran.status == cli.OK
    assert ran.out.splitlines()[0] == "wanted.json is restored: 1 GPU changed."
    assert [line.split("|")[0] for line in ran.out.splitlines()[1:]] == ["before GPU 0  ", "now    GPU 0  "]
    assert installed.node.state() == was
    installed.simulator.reset_calls()
    again = command(installed, "restore")
    assert (again.status, again.out) == (cli.OK, "wanted.json is restored: nothing had to be changed.\n")
    assert installed.simulator.writes() == []


def test_restore_previous_goes_back_one_layout_with_its_label_and_can_be_undone(install):
    installed = install("all-1g.5gb")
    first = installed.node.state()
    installed.change(label=THIRDS)
    second = installed.node.state()
    assert command(installed, "restore", "--previous").status == cli.OK
    assert installed.node.state() == first
    assert state.read_wanted(installed.places).label == "all-1g.5gb"
    assert command(installed, "restore", "--previous").status == cli.OK
    assert installed.node.state() == second


@pytest.mark.parametrize("from_stdin", [False, True])
def test_what_status_printed_can_be_restored(install, tmp_path, from_stdin):
    installed = install("1g.5gb,3g.20gb")
    was = installed.node.state()
    saved = command(installed, "status", "--json").out
    destroy_everything(installed)
    file = tmp_path / "saved.json"
    file.write_text(saved)
    ran = command(installed, "restore", *(["-"] if from_stdin else [str(file)]), stdin=saved)
    assert ran.status == cli.OK
    assert installed.node.state() == was


def test_a_checkpoint_of_mig_parted_can_be_restored(install, tmp_path):
    installed = install("all-disabled")
    gi = {
        "ProfileID": 2,
        "Placement": {"Start": 4, "Size": 4},
        "ComputeInstances": [{"ProfileID": 2, "EngProfileID": 0}],
    }
    device = {"UUID": installed.read().gpus[0].uuid, "MigMode": 1, "GpuInstances": [gi]}
    file = tmp_path / "checkpoint.json"
    file.write_text(json.dumps({"Version": "v1", "MigState": {"Devices": [device]}}))
    assert command(installed, "restore", str(file)).status == cli.OK
    assert layout_of(installed) == [("3g.20gb", 4, [(0, 3)])]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read: No such file or directory"),
        ("gpus:\n- index: 0\n", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("\udc80", "is not JSON"),
        ("{}", "the layout must be a list of GPUs"),
        ('{"schema": 9, "gpus": []}', "schema of the layout is 9"),
        ('[{"index": 7, "mig_current": false}]', "is not in this node"),
    ],
)
def test_a_file_that_is_no_layout_of_this_node_is_refused_and_nothing_is_touched(install, tmp_path, content, words):
    installed = install("all-1g.5gb")
    file = tmp_path / "layout.json"
    if content is not None:
        file.write_bytes(content.encode("utf-8", "surrogateescape"))
    ran = command(installed, "restore", str(file))
    assert ran.status == cli.REFUSED
    assert words in ran.err
    assert installed.simulator.writes() == []


def test_restore_without_anything_remembered_is_refused(install):
    ran = command(install(), "restore")
    assert ran.status == cli.REFUSED
    assert "wanted.json does not exist, so there is nothing to restore; name a file." in ran.err


def test_restore_takes_no_instance_from_a_process(install):
    installed = install("all-1g.5gb")
    installed.change(label=THIRDS)
    gpu = installed.read().gpus[0]
    with installed.simulator.occupy(gpu=0, gi=gpu.instances[0].id, ci=0) as holder:
        installed.simulator.reset_calls()
        ran = command(installed, "restore", "--previous")
    assert ran.status == cli.REFUSED
    assert f"process {holder.pid}" in ran.err
    assert installed.simulator.writes() == []


def test_a_restore_that_fails_leaves_everything_as_before(install):
    installed = install("all-1g.5gb")
    installed.change(label=THIRDS)
    was = installed.node.state()
    installed.simulator.fault("nvmlDeviceCreateGpuInstanceWithPlacement", nth=3, code="INSUFFICIENT_RESOURCES")
    ran = command(installed, "restore", "--previous")
    assert ran.status == cli.ROLLED_BACK
    assert "The layout from before is restored." in ran.out
    assert installed.node.state() == was
    assert state.read_journal(installed.places) is None


def test_a_restore_that_cannot_be_taken_back_leaves_a_layout_that_can_be_restored(install):
    installed = install("all-1g.5gb")
    installed.change(label=THIRDS)
    was = installed.node.state()
    installed.simulator.fault("nvmlDeviceCreateGpuInstanceWithPlacement", code="INSUFFICIENT_RESOURCES")
    ran = command(installed, "restore", "--previous", "--json")
    assert ran.status == cli.NOT_AS_BEFORE
    assert ran.report["missing"]
    installed.simulator.clear_faults()
    assert command(installed, "restore", ran.report["recovery"]).status == cli.OK
    assert installed.node.state() == was


def test_restore_waits_for_another_run_and_then_says_who_it_is(install):
    installed = install("all-1g.5gb")
    with state.Lock.acquire(installed.places, "tx", "bob", "a change", 5):
        ran = command(installed, "restore", "--wait", "0")
    assert ran.status == cli.LOCKED
    assert "of bob (a change) has this node since" in ran.err


def test_a_lease_of_another_run_keeps_restore_off(install):
    installed = install("all-1g.5gb")
    state.write_lease(installed.places, state.Lease("run-1", "", time.time() + 600, "bob", "a reboot"))
    assert command(installed, "restore").status == cli.LOCKED


def test_a_mode_that_stays_pending_is_told_with_the_next_action(install):
    installed = install("all-disabled")
    saved = installed.read().gpus[0]
    content = [{"index": 0, "uuid": saved.uuid, "mig_current": True, "instances": []}]
    with installed.simulator.occupy(gpu=0, kind="client"):
        ran = command(installed, "restore", "-", stdin=json.dumps(content))
    assert ran.status == cli.RESET_OR_REBOOT
    assert "reset GPU 0 (--allow-reset does it) or reboot, then run this again." in ran.out


def test_another_board_in_the_place_of_the_saved_one_is_refused_unless_it_is_accepted(install):
    installed = install("all-1g.5gb")
    saved = written(installed, "wanted.json")
    content = json.loads(saved.read_text())
    content["gpus"][0]["uuid"] = "GPU-00000000-0000-0000-0000-000000000000"
    saved.write_text(json.dumps(content))
    destroy_everything(installed)
    refused = command(installed, "restore", str(saved))
    assert (refused.status, installed.simulator.writes()) == (cli.REFUSED, [])
    assert "was replaced" in refused.err
    assert command(installed, "restore", str(saved), "--accept-replacement").status == cli.OK
    assert len(layout_of(installed)) == 7


def test_restore_of_some_gpus_leaves_the_others(install):
    installed = install("all-1g.5gb", gpus="2xa100-sxm4-40gb")
    destroy_everything(installed, 0)
    destroy_everything(installed, 1)
    assert command(installed, "restore", "--gpus", "1").status == cli.OK
    assert (len(layout_of(installed, 0)), len(layout_of(installed, 1))) == (0, 7)


def test_a_driver_that_hangs_during_a_restore_is_told_as_that(install):
    installed = install("all-1g.5gb")
    destroy_everything(installed)
    installed.simulator.fault("nvmlDeviceCreateGpuInstanceWithPlacement", nth=2, hang=True)
    ran = command(installed, "restore", "--timeout", "0.5", "--json")
    assert ran.status == cli.CANNOT_TELL
    assert ran.report["result"] == "no answer"
    assert "reboot" in ran.report["msg"]


def test_a_result_that_was_printed_is_not_kept_for_others(install):
    installed = install("all-1g.5gb")
    destroy_everything(installed)
    command(installed, "restore")
    assert state.read_result(installed.places) is None


def test_a_layout_that_is_there_already_is_remembered_for_the_next_boot(install, tmp_path):
    installed = install("all-1g.5gb")
    saved = command(installed, "status", "--json").out
    Path(installed.places.state, "wanted.json").unlink()
    ran = command(installed, "restore", "-", stdin=saved)
    assert "nothing had to be changed, and it is remembered for the next boot now." in ran.out
    assert command(installed, "verify").status == cli.OK


def test_records_say_who_did_it(install):
    installed = install("all-1g.5gb")
    installed.change(label=THIRDS)
    command(installed, "restore", "--previous")
    assert state.read_wanted(installed.places).who.endswith(" at the node")


# --- recover --------------------------------------------------------------------------------------------------------


def test_recover_without_an_unfinished_change_does_nothing(install):
    installed = install("all-1g.5gb")
    ran = command(installed, "recover")
    assert (ran.status, ran.out) == (cli.OK, "There is no unfinished change.\n")
    assert installed.simulator.writes() == []


def test_recover_has_the_same_keys_where_there_is_nothing_to_do(install):
    installed = install("all-1g.5gb")
    nothing = command(installed, "recover", "--json").report
    assert set(nothing) == set(command(installed, "restore", "--json").report)
    assert (nothing["result"], nothing["txid"], nothing["before"], nothing["missing"]) == ("unchanged", "", [], [])


def test_recover_finishes_a_change_that_was_killed(install):
    installed = install("all-1g.5gb")
    interrupt(installed, label=THIRDS)
    ran = command(installed, "recover")
    assert ran.status == cli.OK
    assert "(a change of a test)" in ran.out
    assert "is finished: 1 GPU changed." in ran.out
    assert [name for name, _start, _compute in layout_of(installed)] == ["2g.10gb"] * 3
    assert state.in_progress(installed.places) is None
    assert command(installed, "verify").status == cli.OK


def test_recover_back_takes_a_change_back_that_was_killed(install):
    installed = install("all-1g.5gb")
    was = installed.node.state()
    interrupt(installed, label=THIRDS)
    ran = command(installed, "recover", "--back")
    assert ran.status == cli.OK
    assert "is taken back" in ran.out
    assert installed.node.state() == was
    assert state.in_progress(installed.places) is None


# --- the command line -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("repair",),
        ("restore", "--previous", "file"),
        ("status", "--timeout", "soon"),
        ("verify", "--timeout", "-1"),
    ],
)
def test_a_wrong_command_line_is_told_as_that(install, arguments):
    ran = command(install(), *arguments)
    assert ran.status == cli.USAGE
    assert ran.err.startswith("usage: gpufleet-mig")


def test_help_has_all_exit_statuses(install):
    out = command(install(), "--help").out
    assert all(f"\n  {status}  " in out for status in range(9))


@pytest.fixture
def engine_alone(tmp_path):
    """The engine's folder by itself, as it lies on a node."""
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / "engine").symlink_to(Path(engine_file).parent)
    return alone


def test_the_folder_runs_by_itself_with_the_binding_beside_it_and_nothing_of_ansible(install, engine_alone):
    installed = install("all-1g.5gb")
    binding = Path(installed.places.state, "binding")
    binding.mkdir(mode=0o755)
    (binding / "pynvml.py").write_bytes(Path(pynvml.__file__).read_bytes())
    program = (
        f"import sys; sys.path.insert(0, {str(engine_alone)!r}); from engine.cli import main; status = main();"
        " sys.exit(status or any(name.split('.')[0] in ('ansible', 'ansible_collections') for name in sys.modules))"
    )
    words = [sys.executable, "-I", "-S", "-B", "-c", program, "--state-dir", installed.places.state, "status"]
    ran = installed.simulator.run(words, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "|1g.5gb |" in ran.stdout


def test_python_runs_the_command_as_a_module(install, engine_alone):
    installed = install("all-1g.5gb")
    words = [sys.executable, "-m", "engine.cli", "verify", "--state-dir", installed.places.state]
    ran = installed.simulator.run(words, text=True, cwd=engine_alone)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_a_reader_that_goes_away_is_no_error(install, engine_alone):
    installed = install("all-1g.5gb")
    reading, writing = os.pipe()
    os.close(reading)
    words = [sys.executable, "-m", "engine.cli", "status", "--state-dir", installed.places.state]
    with os.fdopen(writing, "wb") as gone:
        ran = subprocess.run(
            words,
            check=False,
            stdout=gone,
            stderr=subprocess.PIPE,
            text=True,
            cwd=engine_alone,
            env=installed.simulator.env(),
        )
    assert (ran.returncode, ran.stderr) == (0, "")
