# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What operators met with other tools, or with real hardware, on simulated nodes: what happens here instead.

Each test is named after what is right; its comment says what went wrong elsewhere. Failures that another file of these
tests is about as a whole (rollback, verification in a new session, saved layouts, resets) are not repeated here.
docs/failure-modes.md is the operators' side of the same list.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
import shutil
import signal
import stat
import sys
import time

import pytest

from ansible_collections.gpufleet.mig.plugins.module_utils.engine import (
    bounded,
    compare,
    configs,
    driver,
    foresight,
    holders,
    layouts,
    reading,
    report,
    reset,
    state,
    worker,
)
from ansible_collections.gpufleet.mig.plugins.module_utils.engine.model import Client, MigError, Orders, WishError
from ansible_collections.gpufleet.mig.tests.engine.helpers import FakeManager, Installation, places
from nvmlsim import Simulator
from nvmlsim.errors import ChildKilled

DCGM = "nvidia-dcgm.service"
MODE = "nvmlDeviceSetMigMode"


@pytest.fixture
def install(make_node, tmp_path):
    """A simulated node with a state directory of its own."""
    made: list[Installation] = []

    def make(gpus="1xa100-sxm4-40gb", units=None, **options):
        made.append(Installation(make_node(gpus, **options), tmp_path / f"state{len(made)}", units))
        return made[-1]

    return make


@pytest.fixture
def programs(tmp_path):
    """Programs that a node finds first on its PATH; each says in a log that it was called."""
    return Programs(tmp_path / "programs")


class Programs:
    """A folder of shell scripts, and what they were called with, in order."""

    def __init__(self, folder: pathlib.Path) -> None:
        folder.mkdir()
        self._folder = folder
        self.log = folder / "log"
        self.log.touch()

    def add(self, name: str, script: str = "") -> None:
        file = self._folder / name
        file.write_text(f'#!/bin/sh\necho "{name} $*" >>{self.log}\n{script}\n')
        file.chmod(file.stat().st_mode | stat.S_IXUSR)

    def called(self) -> list[str]:
        return self.log.read_text().splitlines()

    def use(self) -> None:
        """From now on this process finds them."""
        os.environ["PATH"] = f"{self._folder}:{os.environ['PATH']}"


class Proc:
    """A /proc of our own with processes that have GPUs open, for the process that looks at it."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        (folder / "proc").mkdir(parents=True)
        (folder / "proc" / "devices").write_text("Character devices:\n195 nvidia\n\nBlock devices:\n")

    def process(self, pid: int, name: str, unit: str, *files: str) -> None:
        process = self._folder / "proc" / str(pid)
        (process / "fd").mkdir(parents=True)
        (process / "comm").write_text(f"{name}\n")
        (process / "cgroup").write_text(f"0::/system.slice/{unit}\n")
        (process / "status").write_text("Uid:\t0\t0\t0\t0\n")
        for number, file in enumerate(files):
            os.symlink(file, process / "fd" / str(number))

    def end(self, pid: int) -> None:
        shutil.rmtree(self._folder / "proc" / str(pid), ignore_errors=True)

    def show(self) -> None:
        """From now on this process looks here for whoever has something open."""
        survey = functools.partial(holders.survey, root=str(self._folder))
        holders.survey = survey
        holders.scan = lambda watch=None, root="": survey(watch).opened


def change_where(node, prepare, *, opener=None, manager=None, **options):
    """Make a change in a process that ``prepare`` was called in first."""

    def make():
        prepare()
        return worker.change(node.places, opener or node.opener, node.job(**options), manager or node.manager)

    return node.call(make)


def written(node):
    """The GPUs that some write was about, and the functions."""
    calls = node.simulator.writes()
    return {call.gpu for call in calls}, [call.function for call in calls]


def names(gpu):
    return [name for name, _start, _compute in places(gpu)]


# --- modes, resets and reboots --------------------------------------------------------------------------------------


def test_passed_through_ampere_is_rebooted_once_for_one_mode_and_never_asked_twice(install):
    """Elsewhere the mode was stored, the reset refused, and each boot stored and refused again."""
    node = install("2xa100-sxm4-40gb", virtualization="passthrough")
    with pytest.raises(MigError, match="takes effect at a reboot only and cannot be taken back"):
        node.change(label="all-1g.5gb")
    assert node.simulator.writes() == []

    node.node.enable(0, 1)  # by hand, as the refusal says
    node.simulator.reset_calls()
    for _run in range(2):
        waiting = node.change(label="all-1g.5gb", orders=Orders(allow_reset=True))
        assert (waiting.reboot_required, waiting.altered, waiting.changed) == ((0, 1), False, False)
    assert node.simulator.writes() == []

    node.simulator.reboot()
    done = node.change(label="all-1g.5gb")
    assert (done.error, done.reboot_required, done.changed) == (None, (), True)
    assert MODE not in written(node)[1]
    assert node.change(label="all-1g.5gb").changed is False


def test_a_mode_that_stays_pending_is_a_change_in_the_run_that_set_it_and_in_no_other(install):
    """Elsewhere it was set, and reported as changed, by each run again, or never reported at all."""
    node = install()
    with node.simulator.occupy(gpu=0, kind="client"):
        runs = [node.change(label="all-1g.5gb")]
        node.simulator.reset_calls()
        runs += [node.change(label="all-1g.5gb") for _run in range(2)]

    assert [(run.changed, run.altered, run.reset_required) for run in runs] == [
        (True, True, (0,)),
        (False, False, (0,)),
        (False, False, (0,)),
    ]
    assert MODE not in written(node)[1]


def test_of_a_mixed_node_only_the_gpu_that_waits_is_said_to(install):
    """The same driver leaves an A100 pending and switches an H100 at once; nothing is decided by the first GPU."""
    node = install("1xa100-sxm4-40gb,1xh100-sxm5-80gb")
    with node.simulator.occupy(gpu=0, kind="client"):
        outcome = node.change(label="all-7g")

    assert (outcome.reset_required, outcome.reboot_required) == ((0,), ())
    assert [gpu["modes"] for gpu in node.node.state()] == [(0, 1), (1, 1)]
    node.simulator.reset(gpu=0)
    assert [names(gpu) for gpu in node.change(label="all-7g").after.gpus] == [["7g.40gb"], ["7g.80gb"]]


def test_whoever_would_keep_a_mode_pending_is_named_with_unit_and_file_before_the_mode_is_set(install, tmp_path):
    """Elsewhere the compute list was empty, the mode stayed pending, and the next step found MIG disabled."""
    node = install("1xa100-sxm4-40gb,1xh100-sxm5-80gb")
    proc = Proc(tmp_path / "root")
    proc.process(4711, "nv-hostengine", DCGM, "/dev/nvidia0", "/dev/nvidia1")
    proc.process(4712, "nvidia-persiste", "nvidia-persistenced.service", "/dev/nvidia0", "/dev/nvidia1")
    with pytest.raises(MigError) as caught:
        change_where(node, proc.show, label="all-7g")

    for part in ("GPU 0 and 1 are in use", "process 4711 (nv-hostengine)", DCGM, "/dev/nvidia0", "nothing was changed"):
        assert part in str(caught.value)
    assert "4712" not in str(caught.value)
    assert node.simulator.writes() == []
    assert [holder["unit"] for holder in caught.value.details["holders"]] == [DCGM, DCGM]


@pytest.mark.parametrize(
    ("kinds", "told"),
    [
        ({"mode"}, "run again with evict: clients (in the playbooks mig_evict=clients)"),
        ({"reset"}, "Stop what is running there"),
        (set(), "Stop what is running there"),
    ],
)
def test_where_only_clients_are_in_the_way_it_is_said_that_they_may_be_stopped(install, tmp_path, kinds, told):
    node = install("1xh100-sxm5-80gb", units={DCGM: "active"})
    proc = Proc(tmp_path / "root")
    proc.process(4711, "nv-hostengine", DCGM, "/dev/nvidia0")
    orders = Orders(clients=(Client(DCGM, frozenset(kinds)),))
    with pytest.raises(MigError) as caught:
        change_where(node, proc.show, label="all-7g", orders=orders)

    assert told in str(caught.value)
    assert node.manager.log() == []
    assert node.simulator.writes() == []


def test_a_service_that_may_be_stopped_makes_way_and_runs_again(install, tmp_path):
    """Monitoring leaks handles: an instance is in use without a process, until monitoring is restarted."""
    node = install(units={DCGM: "active"})
    proc = Proc(tmp_path / "root")
    proc.process(4711, "nv-hostengine", DCGM, "/dev/nvidia0")

    class Ending(FakeManager):
        """Its processes end with the unit."""

        def stop(self, unit, timeout):
            super().stop(unit, timeout)
            proc.end(4711)

    manager = Ending(tmp_path / "units", {DCGM: "active"})
    orders = Orders(evict="clients", clients=(Client(DCGM),))
    outcome = change_where(node, proc.show, manager=manager, label="all-1g.5gb", orders=orders)

    assert outcome.error is None
    assert manager.log() == [f"stop {DCGM}", f"start {DCGM}"]
    assert outcome.stopped == (DCGM,)


def test_a_gpu_that_was_added_gets_mig_while_somebody_computes_on_the_other(install):
    """Elsewhere one pending mode reset every GPU of the node, which the busy one refused, and all of it failed."""
    node = install("2xa100-sxm4-40gb")
    node.node.enable(0)
    node.node.create(0, [("3g.20gb", 0, [(0, 3)])])
    gi_id = node.read().gpus[0].instances[0].id
    wish = [{"devices": [1], "mig-enabled": True, "mig-devices": {"3g.20gb": 2}}]
    node.simulator.reset_calls()
    with node.simulator.occupy(gpu=0, gi=gi_id, ci=0):
        outcome = node.change(config=wish, orders=Orders(allow_reset=True))

    assert (outcome.error, outcome.reset_required) == (None, ())
    assert written(node)[0] == {1}
    told = report.plan_report(outcome.plan, outcome.before)
    assert [gpu_plan["gpu"] for gpu_plan in told] == [1]
    was, now = (report.diff_text(outcome.before, outcome.after)[key].splitlines() for key in ("before", "after"))
    assert (was[0] == now[0], was[1] == now[1]) == (True, False)


def test_a_reset_that_another_gpus_job_would_forbid_is_refused_before_anything_is_touched(install):
    """nvidia-smi resets no GPU while anything computes on another one, however idle the one to reset is."""
    node = install("2xa100-sxm4-40gb")
    with node.simulator.occupy(gpu=1, kind="client"):
        node.node.enable(1)
    node.simulator.reset_calls()
    wish = [{"devices": [1], "mig-enabled": True, "mig-devices": {"3g.20gb": 2}}]
    with node.simulator.occupy(gpu=0, name="train") as job, pytest.raises(MigError) as caught:
        node.change(config=wish, orders=Orders(allow_reset=True))

    for part in (f"process {job.pid}", "GPU 0", "resets no GPU while anything computes on another one"):
        assert part in str(caught.value)
    assert node.simulator.writes() == []


def test_a_mode_is_what_the_gpu_says_after_a_reset_whatever_the_reset_said(install, programs):
    """Elsewhere the reset printed success and ended with 0, and the next step failed on a GPU without MIG."""
    node = install()
    with node.simulator.occupy(gpu=0, kind="client"):
        node.node.enable(0)
    programs.add("nvidia-smi", "echo 'All done.'")
    outcome = change_where(node, programs.use, label="all-1g.5gb", orders=Orders(allow_reset=True))

    assert "was reset, and MIG is still off with on pending" in str(outcome.error)
    assert programs.called()[0].startswith("nvidia-smi --gpu-reset -i 00000000:07:00.0")
    assert node.simulator.layouts() == [()]
    assert state.read_wanted(node.places) is None


class DrmMatters(driver.Session):
    """The driver of a host with nvidia_drm, whose Ampere GPUs change no mode while that is loaded."""

    flag: pathlib.Path

    def set_mig_mode(self, index, enabled):
        if self.flag.exists():
            raise driver.DriverError("nvidia_drm is loaded", call=MODE, error="IN_USE")
        return super().set_mig_mode(index, enabled)


@pytest.fixture
def drm(tmp_path, programs):
    """Let the process that calls this have nvidia_drm loaded, with programs that load and unload it."""
    flag = tmp_path / "loaded"
    flag.touch()
    programs.add("rmmod", f"rm {flag}")
    programs.add("modprobe", f"touch {flag}")
    DrmMatters.flag = flag

    def have() -> None:
        programs.use()
        reset.drm_is_loaded = lambda root="/": flag.exists()
        reset.drm_users = lambda root: []

    return have


WITH_DRM = functools.partial(DrmMatters, None)


def test_nvidia_drm_is_named_before_the_mode_is_set(install, drm, programs):
    """No process on any GPU, and the reset refused as in use: the kernel module has them all open."""
    node = install("2xa100-sxm4-40gb")
    with pytest.raises(MigError, match=r"kernel module nvidia_drm is loaded and keeps GPU 0 .* from being reset"):
        change_where(node, drm, opener=WITH_DRM, label="all-1g.5gb")

    assert node.simulator.writes() == []
    assert programs.called() == []


def test_nvidia_drm_is_of_no_interest_where_no_gpu_has_to_be_reset(install, drm, programs):
    node = install("1xa100-sxm4-40gb")
    node.node.enable(0)
    assert change_where(node, drm, opener=WITH_DRM, label="all-1g.5gb").error is None
    later = install("1xh100-sxm5-80gb")
    assert change_where(later, drm, label="all-1g.10gb").error is None
    assert programs.called() == []


@pytest.mark.parametrize("fails", [False, True])
def test_nvidia_drm_that_may_be_unloaded_is_away_for_the_switch_and_back_whatever_happens(
    install, drm, programs, fails
):
    node = install()
    if fails:
        node.simulator.fault("nvmlDeviceCreateGpuInstanceWithPlacement", nth=3, code="INSUFFICIENT_RESOURCES")
    outcome = change_where(node, drm, opener=WITH_DRM, label="all-1g.5gb", orders=Orders(manage_drm=True))

    assert (outcome.error is not None, outcome.rolled_back) == (fails, True if fails else None)
    assert programs.called() == ["rmmod nvidia_drm", "modprobe nvidia_drm"]
    assert DrmMatters.flag.exists()


@pytest.mark.parametrize("gpus", ["1xa100-sxm4-40gb", "1xh100-sxm5-80gb"])
def test_nvidia_drm_is_away_for_the_reset_of_a_mode_that_was_pending_and_back_again(install, drm, programs, gpus):
    node = install(gpus)
    with node.simulator.occupy(gpu=0, kind="client"):
        node.node.enable(0)
    reset_it = f"{sys.executable} -m nvmlsim reset {node.simulator.path} --gpu 0"
    programs.add("nvidia-smi", f"test ! -e {DrmMatters.flag} && exec {reset_it}")
    outcome = change_where(node, drm, label="all-7g", orders=Orders(manage_drm=True, allow_reset=True))

    assert (outcome.error, outcome.changed) == (None, True)
    assert [call.split()[0] for call in programs.called()] == ["rmmod", "nvidia-smi", "modprobe"]
    assert DrmMatters.flag.exists()


def test_nvidia_drm_that_a_killed_run_had_unloaded_comes_back_with_the_next_one(install, drm, programs):
    node = install()
    node.simulator.fault("nvmlDeviceCreateGpuInstanceWithPlacement", nth=3, kill=True)

    def killed() -> None:
        drm()
        with contextlib.suppress(MigError):
            worker._in_a_worker(node.places, WITH_DRM, node.job(label="all-1g.5gb", orders=may), node.manager)

    may = Orders(manage_drm=True)
    node.call(killed)
    node.simulator.clear_faults()
    assert not DrmMatters.flag.exists()
    assert state.read_journal(node.places).drm is True

    assert change_where(node, drm, opener=WITH_DRM, label="all-1g.5gb").error is None
    assert DrmMatters.flag.exists()
    assert programs.called() == ["rmmod nvidia_drm", "modprobe nvidia_drm"]


@pytest.mark.parametrize(
    ("board", "label", "kept"),
    [("a100-sxm4-40gb", "all-1g.5gb", True), ("a30-24gb", "all-1g.6gb", True), ("h100-sxm5-80gb", "all-1g.10gb", False)]
    + [("b200-180gb", "all-1g.23gb", False), ("rtx-pro-6000-server", "all-1g.24gb", False)],
)
def test_after_a_reboot_exactly_what_that_generation_lost_is_made_again(install, board, label, kept):
    """Ampere comes back with MIG on and empty, later GPUs without MIG; tools that restore one of the two fail."""
    node = install(f"2x{board}")
    made = node.change(label=label).after
    node.simulator.reboot()
    assert [gpu["modes"] for gpu in node.node.state()] == [(kept, kept)] * 2
    assert state.persisted_verdict(state.read_wanted(node.places), node.read()) == "differ"

    node.simulator.reset_calls()
    again = node.change(label=label)
    assert (again.error, again.changed, again.remembered) == (None, True, False)
    assert written(node)[1].count(MODE) == (0 if kept else 2)
    assert [layouts.dump(gpu) for gpu in again.after.gpus] == [layouts.dump(gpu) for gpu in made.gpus]
    assert state.persisted_verdict(state.read_wanted(node.places), again.after) == "match"


def test_a_pending_mode_that_a_reboot_lost_is_asked_for_again(install):
    """A mode that was shown as pending came back disabled: what a boot makes of it is read and not assumed."""
    node = install("1xh100-sxm5-80gb")
    with node.simulator.occupy(gpu=0, kind="client"):
        assert node.change(label="all-1g.10gb").reset_required == (0,)
    node.simulator.reboot()
    assert node.node.state()[0]["modes"] == (0, 0)

    outcome = node.change(label="all-1g.10gb")
    assert (outcome.error, outcome.reset_required) == (None, ())
    assert names(outcome.after.gpus[0]) == ["1g.10gb"] * 7


# --- what cannot be told --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("label", ["all-disabled", "all-1g.5gb", "all-enabled"])
@pytest.mark.parametrize("error", ["NO_PERMISSION", "UNKNOWN", "GPU_IS_LOST", "TIMEOUT"])
def test_a_mode_that_cannot_be_read_is_neither_a_difference_nor_a_gpu_without_mig(install, label, error):
    """Elsewhere a probe that failed made a play that skipped everything and was green, or "not as wanted"."""
    node = install("2xa100-sxm4-40gb")
    node.simulator.fault("nvmlDeviceGetMigMode", code=error, gpu=1)
    with pytest.raises(MigError) as caught:
        node.change(label=label)

    assert "GPU 1 (NVIDIA A100-SXM4-40GB) does not answer" in str(caught.value)
    assert error in str(caught.value)
    assert node.simulator.writes() == []
    told = report.gpu_report(node.read().gpus[1])
    assert told["mig_capable"] is None
    assert [each["error"] for each in told["errors"]] == [error]


@pytest.mark.parametrize("error", ["LIBRARY_NOT_FOUND", "DRIVER_NOT_LOADED", "LIB_RM_VERSION_MISMATCH"])
def test_a_driver_that_is_away_is_a_failure_of_its_own_that_changed_nothing(install, error):
    """Clients that started while the driver was being replaced stayed failed, with nothing said to do about it."""
    node = install()
    node.change(label="all-3g.20gb")
    node.simulator.fault("nvmlInit", code=error)
    with pytest.raises(driver.DriverError) as caught:
        node.change(label="all-1g.5gb")

    assert (caught.value.error, caught.value.details["call"]) == (error, "nvmlInit")
    assert driver.remedy(error) in str(caught.value)
    node.simulator.clear_faults()
    assert state.in_progress(node.places) is None
    assert node.change(label="all-1g.5gb").error is None


def interrupted(node, label, nth):
    """A change that is killed with its caller after so many destroyed GPU instances, when the power goes."""
    node.simulator.fault("nvmlGpuInstanceDestroy", nth=nth, kill=True)

    def alone():
        ask = bounded.ask

        def ask_and_die(*arguments, **options):
            try:
                return ask(*arguments, **options)
            except bounded.Died:
                os.kill(os.getpid(), signal.SIGKILL)

        bounded.ask = ask_and_die
        state.boot_id = lambda: "before"

    with pytest.raises(ChildKilled):
        change_where(node, alone, label=label)


@pytest.mark.parametrize(("boards", "left"), [("1xh100-sxm5-80gb,1xh100-pcie-80gb", 2), ("1xh100-sxm5-80gb", 1)])
@pytest.mark.parametrize("recover", ["forward", "back"])
def test_a_board_that_was_replaced_or_is_gone_is_named_and_an_interrupted_change_ends_on_the_others(
    install, boards, left, recover
):
    """Index and PCI id are the old ones, the UUID is not; tools that know an index partition the new board instead."""
    node = install("2xh100-sxm5-80gb")
    node.change(label="all-3g.40gb")
    gone = node.read().gpus[1].uuid
    interrupted(node, "all-1g.10gb", nth=3)  # the third is on the second board
    Simulator.create(node.simulator.path, boards)

    outcome = change_where(node, lambda: None, orders=Orders(recover=recover))
    now = outcome.after.gpus
    assert len(now) == left
    assert names(now[0]) == (["1g.10gb"] * 7 if recover == "forward" else ["3g.40gb"] * 2)
    assert [gpu.mode_current for gpu in now[1:]] == [False] * (left - 1)
    told = " ".join((*outcome.warnings, *outcome.missing))
    assert gone in told
    assert "is not in this node any more" in told
    assert bool(outcome.recovery) is (recover == "back")
    assert state.in_progress(node.places) is None


# --- instances ------------------------------------------------------------------------------------------------------


def test_a_mix_that_cannot_be_costs_no_slice_and_a_check_says_the_same(install):
    """Elsewhere everything was destroyed first, every order was tried, and what there had been was gone."""
    node = install()
    node.change(label="all-3g.20gb")
    before = node.node.state()
    node.simulator.reset_calls()
    said = []
    for mix in ("4g.20gb,2x2g.10gb", "3x3g.20gb", "1g.5gb+me,2g.10gb,1g.5gb+me"):
        with pytest.raises(WishError) as really:
            node.change(label=mix)
        job = node.job(label=mix)
        with pytest.raises(WishError) as checked:
            foresight.foresee(node.places, node.read(), job, node.manager)
        assert str(checked.value) == str(really.value)
        said.append(str(really.value))

    assert all(sentence.startswith("GPU 0 (NVIDIA A100-SXM4-40GB)") for sentence in said), said
    assert node.node.state() == before
    assert node.simulator.writes() == []


def test_a_gpu_instance_that_is_left_without_compute_instance_is_seen_told_and_removed(install):
    """It has no MIG device, so tools that look at those find an empty GPU, on which nothing fits."""
    node = install()
    node.change(label="all-3g.20gb")
    node.simulator.fault("nvmlGpuInstanceCreateComputeInstance*", code="INSUFFICIENT_RESOURCES")
    node.simulator.fault("nvmlGpuInstanceDestroy", nth=3, code="IN_USE")  # two of the change, one of the way back
    failed = node.change(label="all-7g.40gb")
    assert failed.rolled_back is False
    assert any("GPU instance 7g.40gb at 0:8 is new" in sentence for sentence in failed.missing)
    node.simulator.clear_faults()

    gpu = node.read().gpus[0]
    (orphan,) = report.gpu_report(gpu)["instances"]
    assert (orphan["profile"], orphan["compute_instances"]) == ("7g.40gb", [])
    wanted = configs.resolve(node.read(), label="all-enabled")
    (difference,) = compare.verdict(node.read(), wanted).differences[0]
    assert difference == "1 x 7g.40gb without compute instance is not wanted"

    outcome = node.change(label="all-1g.5gb")
    assert (outcome.error, outcome.changed) == (None, True)
    assert names(outcome.after.gpus[0]) == ["1g.5gb"] * 7


@pytest.mark.parametrize(
    ("board", "wish", "offered"),
    [
        ("rtx-pro-6000-server", {"1g.12gb": 4}, ("1g.24gb", "1g.24gb+gfx", "1g.24gb-me")),
        ("a100-sxm4-80gb", {"1g.5gb": 7}, ("1g.10gb", "1g.10gb+me", "1g.20gb")),
        ("a100-sxm4-80gb", {"4g.20gb": 1, "3g.20gb": 1}, ("3g.40gb", "4g.40gb")),
    ],
)
def test_a_profile_that_the_board_does_not_have_is_refused_with_those_it_has(install, board, wish, offered):
    """Elsewhere it was dropped while parsing: nothing was wanted, nothing was made, and that was a success."""
    node = install(f"1x{board}")
    with pytest.raises(WishError) as caught:
        node.change(config=[{"devices": "all", "mig-enabled": True, "mig-devices": wish}])

    for part in ("GPU 0", *offered):
        assert part in str(caught.value)
    assert node.simulator.writes() == []


def test_a_board_that_could_do_mig_if_it_were_set_up_for_it_is_told_what_it_needs(install):
    """A workstation board in display mode says that it cannot do MIG, and tools say no more than that."""
    node = install("1xrtx-pro-6000-maxq,1xtesla-t4")
    node.simulator.fault("nvmlDeviceGetMigMode", code="NOT_SUPPORTED", gpu=0)
    with pytest.raises(WishError) as caught:
        node.change(label="all-1g", gpus=[0])
    for part in ("GPU 0", "its model can do MIG", "driver 575.51.03 or newer", "vBIOS", "display mode"):
        assert part in str(caught.value)

    with pytest.raises(WishError, match=r"GPU 1 \(Tesla T4\) cannot do MIG, .*; leave it out"):
        node.change(label="all-1g", gpus=[1])


def test_boards_that_other_tools_have_in_no_table_get_what_is_wanted(install):
    node = install("1xrtx-pro-6000-server")
    outcome = node.change(config=[{"devices": "all", "mig-enabled": True, "mig-devices": {"1g.24gb": 4}}])

    assert outcome.error is None
    assert names(outcome.after.gpus[0]) == ["1g.24gb"] * 4


@pytest.mark.parametrize("printed", ["1g.23gb", "1g.24gb"])
@pytest.mark.parametrize("label", ["all-1g.23gb", "all-1g.24gb", "all-1g", "7x1g.24gb"])
def test_a_name_from_an_early_table_means_the_profile_that_the_board_prints_differently(install, printed, label):
    """Boards in production print 1g.23gb where the tables of the early ones say 1g.24gb, and sometimes back."""
    node = install("1xgb200-186gb", rename={"1g.23gb": printed})
    outcome = node.change(label=label)

    assert outcome.error is None
    (told,) = report.plan_report(outcome.plan, outcome.before)
    assert [instance["profile"] for instance in told["created"]] == [printed] * 7


def test_an_instance_with_media_engines_is_of_another_kind_than_one_without(install):
    """Elsewhere both are counted as one resource, and nobody can ask for the one with the engines."""
    node = install("2xa100-sxm4-80gb")
    wish = {"1g.10gb": 5, "1g.10gb+me": 1, "1g.20gb": 1}
    outcome = node.change(config=[{"devices": "all", "mig-enabled": True, "mig-devices": wish}])

    assert outcome.error is None
    for gpu in report.node_report(outcome.after)["gpus"]:
        counted = [instance["profile"] for instance in gpu["instances"]]
        assert {name: counted.count(name) for name in counted} == wish
        assert len({ci["uuid"] for gi in gpu["instances"] for ci in gi["compute_instances"]}) == 7
        assert {name: count for entry in gpu["config"] for name, count in entry["mig-devices"].items()} == wish


def test_every_mig_device_is_told_with_all_its_names(install):
    """UUID, GPU with GI and CI, GPU with MIG index: one tool prints this, the next only knows that."""
    node = install("4xa100-sxm4-40gb")
    node.change(label="2x1c.3g.20gb,2g.10gb,2x1g.5gb")
    told = {
        (gpu["uuid"], gi["id"], ci["id"]): ci
        for gpu in report.node_report(node.read())["gpus"]
        for gi in gpu["instances"]
        for ci in gi["compute_instances"]
    }
    there = {
        (gpu["uuid"], gi["id"], ci["id"]): ci["uuid"]
        for gpu in node.simulator.describe()["gpus"]
        for gi in gpu["instances"]
        for ci in gi["compute"]
    }
    assert {place: ci["uuid"] for place, ci in told.items()} == there
    assert len(set(there.values())) == 20
    for (gpu, gi_id, ci_id), ci in told.items():
        assert ci["legacy_uuid"] == f"MIG-{gpu}/{gi_id}/{ci_id}"
    for gpu in {place[0] for place in told}:
        assert sorted(ci["mig_index"] for place, ci in told.items() if place[0] == gpu) == [0, 1, 2, 3, 4]


def test_smaller_compute_instances_take_the_place_of_the_one_that_fills_its_gpu_instance(install):
    """Created beside it they fail for want of room; created with a fixed number of a profile, as not supported."""
    node = install("1xa100-sxm4-80gb", driver="535")
    node.node.enable(0)
    node.node.create(0, [("4g.40gb", 0, [(0, 4)]), ("3g.40gb", 4, [(0, 3)])])
    gpu = node.read().gpus[0]
    whole = {gi.profile.name: gi.id for gi in gpu.instances}
    node.simulator.reset_calls()
    outcome = node.change(label="4g.40gb,3x1c.3g.40gb")

    assert outcome.error is None
    assert places(outcome.after.gpus[0]) == [
        ("4g.40gb", 0, [(0, 4)]),
        ("3g.40gb", 4, [(0, 1), (1, 1), (2, 1)]),
    ]
    assert {gi.profile.name: gi.id for gi in outcome.after.gpus[0].instances} == whole
    assert {call.gi for call in node.simulator.writes()} == {whole["3g.40gb"]}


@pytest.mark.parametrize("version", ["525", "535", "550", "580", "615"])
def test_the_same_wish_has_the_same_result_on_every_driver(install, version):
    """Tables of which driver can do what are wrong in places, so each is asked and none is looked up."""
    node = install("1xa100-sxm4-40gb,1xh100-sxm5-80gb", driver=version)
    outcome = node.change(label="3g,2x1g")

    assert outcome.error is None
    assert [names(gpu) for gpu in outcome.after.gpus] == [
        ["1g.5gb", "1g.5gb", "3g.20gb"],
        ["1g.10gb", "1g.10gb", "3g.40gb"],
    ]
    assert node.change(label="3g,2x1g").changed is False


# --- many GPUs ------------------------------------------------------------------------------------------------------


def test_time_limits_are_for_one_gpu_however_many_there_are(install):
    """With 56 slices a query of everything takes longer than with one, and time limits for everything are hit."""
    node = install("8xb200-180gb")
    node.change(label="all-1g.23gb")
    node.simulator.fault("nvmlGpuInstanceGetComputeInstanceById", delay_ms=45)  # 7 times for each GPU
    began = time.monotonic()
    read = node.call(reading.observe, node.opener, Orders(operation_timeout=2.0))

    assert time.monotonic() - began > 2.0
    assert [len(gpu.instances) for gpu in read.gpus] == [7] * 8


def test_a_change_opens_as_many_sessions_for_one_gpu_as_for_eight(install):
    """Opening NVML takes seconds on a node without persistence, and tools that call one another open it for each."""

    def sessions(gpus):
        node = install(gpus)
        outcome = node.change(label="all-1g.5gb")
        assert outcome.error is None
        return sum(call.function.startswith("nvmlInit") for call in node.simulator.calls())

    assert sessions("8xa100-sxm4-40gb") == sessions("1xa100-sxm4-40gb") <= 4
