# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Modes that only a reboot makes current: stored with permission only, all at once, and one reboot for one wish."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import pytest

from ansible_collections.gpufleet.mig.plugins.module_utils.engine import (
    driver,
    foresight,
    reading,
    reset,
    state,
    transaction,
    worker,
)
from ansible_collections.gpufleet.mig.plugins.module_utils.engine.model import Client, DriverError, MigError, Orders
from ansible_collections.gpufleet.mig.tests.engine.helpers import Installation, places

A100, A30, H100 = "1xa100-sxm4-40gb", "1xa30-24gb", "1xh100-sxm5-80gb"
MODE = "nvmlDeviceSetMigMode"
MAY = Orders(allow_reboot=True)


class Machine(Installation):
    """A node that can be booted: each boot has an id of its own, and those after the first may have no effect."""

    boots = 1

    def reboot(self, *, takes_effect=True):
        self.boots += 1
        if takes_effect:
            self.simulator.reboot()
        self.simulator.reset_calls()

    def modes(self):
        return [gpu["modes"] for gpu in self.node.state()]

    def writes(self):
        return [call.function for call in self.simulator.writes()]

    def record(self):
        return state.read_lease(self.places)

    def records(self):
        """What is in the files, byte for byte."""
        folder = self.places.state
        names = sorted(name for name in os.listdir(folder) if name.endswith(".json"))
        return {name: Path(folder, name).read_bytes() for name in names}

    def foresee(self, **options):
        """As check mode does."""
        job = self.job(**options)

        def foresee():
            node = reading.observe(self.opener, job.orders, with_holders=True)
            return foresight.foresee(self.places, node, job, self.manager)

        return self.call(foresee)

    def change_nobody_takes_back(self, **options):
        """A change whose worker is killed, and whose caller is gone too."""
        job = self.job(**options)

        def make():
            with contextlib.suppress(MigError):
                worker._in_a_worker(self.places, self.opener, job, self.manager)

        self.call(make)
        self.simulator.clear_faults()


@pytest.fixture
def install(make_node, tmp_path, monkeypatch):
    """A machine, in a virtual machine that owns its GPUs unless said otherwise."""

    def make(gpus=A100, units=None, virtualization="passthrough", **options):
        machine = Machine(make_node(gpus, virtualization=virtualization, **options), tmp_path / "state", units)
        monkeypatch.setattr(state, "boot_id", lambda: f"boot-{machine.boots}")
        return machine

    return make


# --- with and without permission ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("gpus", "label"), [(A100, "all-1g.5gb"), (A30, "all-1g.6gb")])
def test_without_permission_passed_through_ampere_is_refused_before_its_mode_is_stored(install, gpus, label):
    node = install(gpus)
    with pytest.raises(MigError, match="set allow_reboot to have it stored for a reboot of the node"):
        node.change(label=label)

    assert (node.modes(), node.writes()) == ([(0, 0)], [])
    assert node.record() is None


@pytest.mark.parametrize(("gpus", "label"), [(A100, "all-1g.5gb"), (A30, "all-1g.6gb")])
def test_with_permission_the_mode_is_stored_and_the_reboot_leads_to_what_is_wanted(install, gpus, label):
    node = install(gpus)
    stored = node.change(label=label, orders=MAY)

    assert (stored.error, stored.reboot_required, stored.reset_required) == (None, (0,), ())
    assert (stored.altered, stored.changed) == (True, True)
    assert (node.modes(), node.writes()) == ([(0, 1)], [MODE])
    assert node.record().reason == state.A_REBOOT
    assert state.read_journal(node.places) is None

    node.reboot()
    done = node.change(label=label, orders=MAY)
    assert (done.error, done.reboot_required, done.changed) == (None, (), True)
    assert MODE not in node.writes()
    assert node.record() is None
    again = node.change(label=label, orders=MAY)
    assert (again.changed, again.altered, again.remembered) == (False, False, False)


def test_before_the_reboot_a_second_run_says_the_same_and_writes_nothing(install):
    node = install()
    node.change(label="all-1g.5gb", orders=MAY)
    node.simulator.reset_calls()
    again = node.change(label="all-1g.5gb", orders=MAY)

    assert (again.reboot_required, again.altered, again.changed) == ((0,), False, False)
    assert node.writes() == []


def test_a_mode_that_somebody_stored_already_needs_no_write_and_its_reboot_counts(install):
    node = install()
    node.node.enable(0)
    node.simulator.reset_calls()
    waiting = node.change(label="all-1g.5gb", orders=MAY)
    assert (waiting.reboot_required, waiting.altered) == ((0,), False)

    node.reboot(takes_effect=False)
    with pytest.raises(MigError, match="was rebooted for this wish already"):
        node.change(label="all-1g.5gb", orders=MAY)
    assert node.writes() == []


@pytest.mark.parametrize("virtualization", ["none", "passthrough"])
def test_hopper_never_needs_a_reboot(install, virtualization):
    node = install(H100, virtualization=virtualization)
    outcome = node.change(label="all-1g.10gb", orders=MAY)
    assert (outcome.error, outcome.reboot_required) == (None, ())
    assert node.record() is None


def test_hopper_that_stays_pending_is_not_rebooted_which_would_make_it_forget(install):
    node = install(H100)
    with node.simulator.occupy(gpu=0, kind="client"):
        outcome = node.change(label="all-1g.10gb", orders=MAY)
    assert (outcome.reboot_required, outcome.reset_required) == ((), (0,))
    assert node.record() is None


def test_on_bare_metal_permission_changes_nothing(install):
    node = install(virtualization="none")
    outcome = node.change(label="all-1g.5gb", orders=MAY)
    assert (outcome.error, outcome.reboot_required, outcome.changed) == (None, (), True)
    assert node.record() is None


def test_what_is_in_use_is_no_reason_to_reboot(install):
    node = install(virtualization="none")
    with node.simulator.occupy(gpu=0, kind="client"):
        outcome = node.change(label="all-1g.5gb", orders=MAY)
    assert (outcome.reset_required, outcome.reboot_required) == ((0,), ())
    assert node.record() is None


@pytest.mark.parametrize("label", ["8x1g.5gb", "all-5g.25gb"])
def test_an_impossible_wish_is_no_reason_to_reboot(install, label):
    node = install()
    with pytest.raises(MigError):
        node.change(label=label, orders=MAY)
    assert (node.modes(), node.writes(), node.record()) == ([(0, 0)], [], None)


def test_a_failure_of_the_driver_is_no_reason_to_reboot(install):
    node = install()
    node.simulator.fault(MODE, code="UNKNOWN")
    outcome = node.change(label="all-1g.5gb", orders=MAY)
    assert (outcome.error.details["error"], outcome.reboot_required) == ("UNKNOWN", ())
    assert node.record() is None


# --- everything that waits for the reboot is stored for it ----------------------------------------------------------

SWAPPED = [
    {"devices": [0], "mig-enabled": True, "mig-devices": {"1g.5gb": 7}},
    {"devices": [1], "mig-enabled": False},
]


def one_on_with_instances(node):
    """GPU 0 without MIG, GPU 1 with instances."""
    node.node.enable(1)
    node.simulator.reboot()
    node.node.create(1, [("3g.20gb", 0, [(0, 3)])])
    node.simulator.reset_calls()


def test_one_reboot_is_enough_where_one_gpu_goes_on_and_another_with_instances_goes_off(install):
    node = install("2xa100-sxm4-40gb")
    one_on_with_instances(node)
    stored = node.change(config=SWAPPED, orders=MAY)
    assert (stored.error, stored.reboot_required) == (None, (0, 1))
    assert node.modes() == [(0, 1), (1, 0)]

    node.reboot()
    done = node.change(config=SWAPPED, orders=MAY)
    assert (done.error, done.reboot_required) == (None, ())
    assert node.modes() == [(1, 1), (0, 0)]
    assert len(places(done.after.gpus[0])) == 7


def test_where_only_the_drivers_answer_says_that_a_reboot_is_needed_it_is_one_for_all_too(install):
    node = install("2xa100-sxm4-40gb")
    one_on_with_instances(node)
    node.simulator.fault("nvmlDeviceGetVirtualizationMode", code="NOT_SUPPORTED")
    stored = node.change(config=SWAPPED, orders=MAY)

    assert (stored.error, stored.reboot_required, stored.reset_required) == (None, (0, 1), ())
    assert node.record().gpus == (0, 1)
    again = node.change(config=SWAPPED, orders=MAY)
    assert (again.reboot_required, again.reset_required, again.altered) == ((0, 1), (), False)


def test_instances_of_gpus_that_do_not_wait_are_not_touched_before_the_reboot(install):
    node = install("1xa100-sxm4-40gb,1xh100-sxm5-80gb")
    node.node.enable(1)
    node.node.create(1, [("3g.40gb", 0, [(0, 3)])])
    before = node.node.state()[1]
    stored = node.change(label="all-7g", orders=MAY)

    assert (stored.reboot_required, stored.reset_required) == ((0,), ())
    assert node.node.state()[1] == before


def test_clients_are_stopped_for_storing_a_mode_and_run_again_before_the_reboot(install):
    node = install(units={"nvidia-dcgm.service": "active"})
    orders = MAY._replace(evict="clients", clients=(Client("nvidia-dcgm.service"),))
    stored = node.change(label="all-1g.5gb", orders=orders)

    assert (stored.reboot_required, stored.stopped) == ((0,), ("nvidia-dcgm.service",))
    assert node.manager.log() == ["stop nvidia-dcgm.service", "start nvidia-dcgm.service"]


# --- what a reboot would end ----------------------------------------------------------------------------------------


def test_whoever_computes_on_another_gpu_keeps_the_node_from_being_rebooted(install):
    node = install("2xa100-sxm4-40gb")
    with node.simulator.occupy(gpu=1) as holder, pytest.raises(MigError) as caught:
        node.change(label="all-1g.5gb", gpus=[0], orders=MAY)

    for part in (f"process {holder.pid}", "GPU 1", "The mode of GPU 0 needs a reboot of the node, which would end it"):
        assert part in str(caught.value)
    assert [each["pid"] for each in caught.value.details["holders"]] == [holder.pid]
    assert (node.writes(), node.record()) == ([], None)


def test_so_it_does_where_the_mode_is_stored_already(install):
    node = install("2xa100-sxm4-40gb")
    node.change(label="all-1g.5gb", gpus=[0], orders=MAY)
    with node.simulator.occupy(gpu=1), pytest.raises(MigError, match="needs a reboot of the node"):
        node.change(label="all-1g.5gb", gpus=[0], orders=MAY)


@pytest.mark.parametrize("kind", ["client", "graphics"])
def test_monitoring_and_displays_of_other_gpus_come_back_by_themselves(install, kind):
    node = install("2xa100-sxm4-40gb")
    with node.simulator.occupy(gpu=1, kind=kind):
        assert node.change(label="all-1g.5gb", gpus=[0], orders=MAY).reboot_required == (0,)


def test_an_instance_of_another_gpu_that_is_promised_is_not_lost_in_a_reboot(install):
    node = install("2xa100-sxm4-40gb")
    node.node.enable(1)
    node.reboot()
    node.node.create(1, [("7g.40gb", 0, [(0, 7)])])
    device = node.read().gpus[1].instances[0].compute[0].uuid
    orders = MAY._replace(reservations=({"device": device, "holder": "Slurm job 123"},))
    node.simulator.reset_calls()
    with pytest.raises(MigError, match="Slurm job 123"):
        node.change(label="all-1g.5gb", gpus=[0], orders=orders)
    assert node.writes() == []
    assert node.change(label="all-1g.5gb", gpus=[0], orders=orders._replace(evict="reserved")).reboot_required == (0,)


# --- one reboot for one wish ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("pending", ["stays", "is lost"])
def test_a_reboot_that_had_no_effect_is_not_repeated(install, pending):
    node = install(assume={"passthrough_cancel": "yes"})
    node.change(label="all-1g.5gb", orders=MAY)
    node.reboot(takes_effect=False)
    if pending == "is lost":
        node.node.in_session(lambda session: session.set_mig_mode(0, False))
        node.simulator.reset_calls()
    before = node.records()
    for attempt in (node.change, node.foresee):
        with pytest.raises(MigError) as caught:
            attempt(label="all-1g.5gb", orders=MAY)

        for part in ("was rebooted for this wish already", "GPU 0", "has MIG off", "dmesg", "reboot.json"):
            assert part in str(caught.value)
        assert caught.value.details["gpu"] == 0
    assert node.writes() == []
    assert node.records() == before


def test_another_boot_changes_nothing_about_that(install):
    node = install()
    node.change(label="all-1g.5gb", orders=MAY)
    for _boot in range(3):
        node.reboot(takes_effect=False)
        with pytest.raises(MigError, match="was rebooted for this wish already"):
            node.change(label="all-1g.5gb", orders=MAY)


def test_without_permission_a_mode_that_is_stored_is_only_told_after_such_a_reboot(install):
    node = install()
    node.change(label="all-1g.5gb", orders=MAY)
    node.reboot(takes_effect=False)
    outcome = node.change(label="all-1g.5gb")
    assert (outcome.reboot_required, outcome.altered) == ((0,), False)


def test_another_wish_has_a_reboot_of_its_own(install):
    node = install()
    node.change(label="all-1g.5gb", orders=MAY)
    node.reboot(takes_effect=False)
    assert node.change(label="all-3g.20gb", orders=MAY).reboot_required == (0,)
    assert node.record().boot_id == "boot-2"

    node.reboot()
    assert node.change(label="all-3g.20gb", orders=MAY).error is None
    assert node.record() is None


def test_another_wish_that_succeeds_ends_the_waiting(install):
    node = install()
    node.change(label="all-1g.5gb", orders=MAY)
    node.reboot()
    assert node.change(label="all-3g.20gb").error is None
    assert node.record() is None


def test_a_wish_about_another_gpu_does_not(install):
    node = install("1xa100-sxm4-40gb,1xh100-sxm5-80gb")
    node.change(label="all-1g", gpus=[0], orders=MAY)
    recorded = node.record()
    assert node.change(label="all-1g", gpus=[1]).error is None
    assert node.change(label="all-3g", gpus=[1], orders=MAY).error is None
    assert node.record() == recorded


def test_after_a_success_the_same_wish_may_have_a_reboot_again(install):
    node = install()
    for _time in range(2):
        assert node.change(label="all-1g.5gb", orders=MAY).reboot_required == (0,)
        node.reboot()
        assert node.change(label="all-1g.5gb", orders=MAY).error is None
        assert node.change(label="all-disabled", orders=MAY).reboot_required == (0,)
        node.reboot()
        assert node.change(label="all-disabled", orders=MAY).error is None


def test_a_change_that_fails_after_its_reboot_can_be_tried_again_without_another(install):
    node = install()
    node.change(label="all-1g.5gb", orders=MAY)
    node.reboot()
    node.simulator.fault("nvmlDeviceCreateGpuInstanceWithPlacement", nth=2, code="INSUFFICIENT_RESOURCES")
    assert node.change(label="all-1g.5gb", orders=MAY).rolled_back is True
    assert node.record() is not None
    assert node.change(label="all-1g.5gb", orders=MAY).error is None
    assert node.record() is None


def test_removing_the_record_as_the_refusal_says_allows_one_more(install):
    node = install()
    node.change(label="all-1g.5gb", orders=MAY)
    node.reboot(takes_effect=False)
    with pytest.raises(MigError) as caught:
        node.change(label="all-1g.5gb", orders=MAY)
    path = str(caught.value).split("'rm ")[1].split("'")[0]
    os.unlink(path)
    assert node.change(label="all-1g.5gb", orders=MAY).reboot_required == (0,)


def test_a_mode_that_only_the_answer_shows_to_need_a_second_reboot_is_taken_back(install):
    """The first run was killed when its mode was not stored yet; nobody knows before that this GPU needs a reboot."""
    node = install(assume={"passthrough_cancel": "yes"})
    node.simulator.fault("nvmlDeviceGetVirtualizationMode", code="NOT_SUPPORTED")
    stored = node.change(label="all-1g.5gb", orders=MAY)
    assert stored.reboot_required == (0,)
    state.write_lease(node.places, node.record()._replace(gpus=(), pci=()))
    node.node.in_session(lambda session: session.set_mig_mode(0, False))
    node.reboot(takes_effect=False)

    outcome = node.change(label="all-1g.5gb", orders=MAY)
    assert "was rebooted for this wish already" in str(outcome.error)
    assert (outcome.rolled_back, outcome.reboot_required) == (True, ())
    assert node.modes() == [(0, 0)]
    assert node.record().boot_id == "boot-1"


# --- what is written, and in which order ----------------------------------------------------------------------------


def test_the_record_is_there_before_the_mode_is_stored(install):
    """Killed at that very call, nobody may think that there was no reboot for it."""
    node = install()
    node.simulator.fault(MODE, when="before", kill=True)
    node.change_nobody_takes_back(label="all-1g.5gb", orders=MAY)
    assert node.modes() == [(0, 0)]
    assert node.record().boot_id == "boot-1"
    assert state.read_journal(node.places) is not None


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_the_mode_the_next_run_goes_on_in_the_same_boot(install, when):
    node = install()
    node.simulator.fault(MODE, nth=1, when=when, kill=True)
    node.change_nobody_takes_back(label="all-1g.5gb", orders=MAY)
    outcome = node.change(label="all-1g.5gb", orders=MAY)

    assert (outcome.error, outcome.reboot_required) == (None, (0,))
    assert node.modes() == [(0, 1)]
    node.reboot()
    assert node.change(label="all-1g.5gb", orders=MAY).error is None
    assert (node.record(), state.read_journal(node.places)) == (None, None)


def test_killed_after_the_mode_was_stored_the_reboot_counts(install):
    node = install()
    node.simulator.fault(MODE, nth=1, when="after", kill=True)
    node.change_nobody_takes_back(label="all-1g.5gb", orders=MAY)
    node.reboot(takes_effect=False)
    before = node.records()
    for wish in ({"label": "all-1g.5gb"}, {}):  # its own wish, and nothing but to finish what was begun
        with pytest.raises(MigError, match="was rebooted for this wish already"):
            node.change(orders=MAY, **wish)
    assert (node.writes(), node.records()) == ([], before)


def test_killed_after_the_mode_was_stored_a_reboot_that_helps_is_followed_by_the_rest(install):
    node = install()
    node.simulator.fault(MODE, nth=1, when="after", kill=True)
    node.change_nobody_takes_back(label="all-1g.5gb", orders=MAY)
    node.reboot()
    outcome = node.change(label="all-1g.5gb", orders=MAY)
    assert (outcome.error, outcome.recovered, node.record()) == (None, "forward", None)


def test_a_worker_that_is_killed_leaves_no_record_of_a_reboot_that_never_was(install):
    node = install(assume={"passthrough_cancel": "yes"})
    node.simulator.fault(MODE, nth=1, when="after", kill=True)
    outcome = node.change(label="all-1g.5gb", orders=MAY)
    assert (outcome.rolled_back, node.modes()) == (True, [(0, 0)])
    assert node.record() is None


def test_taken_back_after_a_reboot_it_is_still_known_that_there_was_one(install):
    node = install()
    node.change(label="all-1g.5gb", orders=MAY._replace(run_id="rollout-7", lease=600.0))
    node.reboot()
    node.simulator.fault("nvmlDeviceCreateGpuInstanceWithPlacement", nth=2, kill=True)
    outcome = node.change(label="all-1g.5gb", orders=MAY._replace(run_id="rollout-7", lease=600.0))
    assert (outcome.rolled_back, node.record().boot_id, node.record().run_id) == (True, "boot-1", "")


def test_a_record_that_cannot_be_written_costs_nothing(install, monkeypatch):
    node = install(units={"nvidia-dcgm.service": "active"})

    def full(*_arguments):
        raise state.StateError("reboot.json cannot be written (No space left on device).", file="", reason="io")

    monkeypatch.setattr(state, "write_lease", full)
    orders = MAY._replace(evict="clients", clients=(Client("nvidia-dcgm.service"),))
    with pytest.raises(MigError, match="No space left on device"):
        node.change(label="all-1g.5gb", orders=orders)
    assert (node.writes(), node.manager.log()) == ([], [])
    assert state.read_journal(node.places) is None


def test_a_record_that_is_first_needed_after_the_mode_and_cannot_be_written_means_no_reboot(install, monkeypatch):
    node = install(assume={"passthrough_cancel": "yes"})
    node.simulator.fault("nvmlDeviceGetVirtualizationMode", code="NOT_SUPPORTED")
    real = state.write_lease

    def full(places_, lease):
        if lease.pci:
            raise state.StateError("reboot.json cannot be written (No space left on device).", file="", reason="io")
        real(places_, lease)

    monkeypatch.setattr(state, "write_lease", full)
    outcome = node.change(label="all-1g.5gb", orders=MAY)
    assert "it cannot be recorded that the node is rebooted for it" in str(outcome.error)
    assert (outcome.rolled_back, outcome.reboot_required, node.modes()) == (True, (), [(0, 0)])
    assert node.record() is None


@pytest.mark.parametrize("keeps", [True, False])
def test_with_a_run_id_the_node_is_kept_for_its_run_too(install, keeps):
    node = install()
    orders = MAY._replace(run_id="rollout-7", lease=600.0 if keeps else 0.0)
    node.change(label="all-1g.5gb", orders=orders)
    node.reboot()

    assert state.lease_blocks(node.record(), "other", time.time()) is keeps
    if keeps:
        with pytest.raises(state.LockedError):
            node.change(label="all-1g.5gb", orders=MAY)
    assert node.change(label="all-1g.5gb", orders=orders).error is None


# --- what a boot brings back meanwhile ------------------------------------------------------------------------------


def test_a_boot_that_restores_other_gpus_neither_ends_the_waiting_nor_is_kept_out(install):
    node = install("1xa100-sxm4-40gb,1xh100-sxm5-80gb")
    node.change(label="all-3g", gpus=[1])
    node.change(label="all-1g", gpus=[0], orders=MAY._replace(run_id="rollout-7", lease=600.0))
    assert state.rebooted_for(node.places) is None
    remembered = state.read_wanted(node.places)
    node.reboot()

    awaited = state.rebooted_for(node.places)
    assert awaited.pci == (node.read().gpus[0].pci_bus_id,)
    job = node.job(label="all-3g", gpus=[1])._replace(restores=True)
    outcome = node.call(worker.change, node.places, node.opener, job, node.manager)
    assert (outcome.error, outcome.changed, outcome.remembered) == (None, True, False)
    assert state.rebooted_for(node.places) == awaited
    assert state.read_wanted(node.places) == remembered


def test_a_boot_that_finishes_an_interrupted_change_remembers_what_that_was_for(install):
    node = install("2xa100-sxm4-40gb", virtualization="none")
    node.change(label="all-3g.20gb")
    node.simulator.fault("nvmlGpuInstanceDestroy", nth=1, kill=True)
    node.change_nobody_takes_back(label="all-1g.5gb", gpus=[0])
    node.reboot()

    job = node.job(label="all-3g.20gb", gpus=[1])._replace(restores=True)
    outcome = node.call(worker.change, node.places, node.opener, job, node.manager)
    assert (outcome.error, outcome.recovered) == (None, "forward")
    assert state.persisted_verdict(state.read_wanted(node.places), node.read()) == "match"
    assert [len(places(gpu)) for gpu in node.read().gpus] == [7, 2]


# --- bare metal where nothing can be reset --------------------------------------------------------------------------


@pytest.fixture
def unresettable(monkeypatch):
    """A kernel that has no reset for these GPUs."""
    monkeypatch.setattr(driver, "is_resettable", lambda pci_bus_id, root="/": False)


def test_a_gpu_that_the_kernel_cannot_reset_is_not_switched_without_permission(install, unresettable):
    node = install(virtualization="none")
    with pytest.raises(MigError, match="that nothing on this machine can reset.* set allow_reboot"):
        node.change(label="all-1g.5gb")
    assert node.writes() == []


def test_with_permission_it_is_tried_and_no_reboot_follows_where_the_driver_could_do_it(install, unresettable):
    node = install(virtualization="none")
    outcome = node.change(label="all-1g.5gb", orders=MAY)
    assert (outcome.error, outcome.reboot_required, node.record()) == (None, (), None)


def test_where_it_stays_pending_a_reboot_is_what_helps_and_nobody_tries_to_reset_it(install, unresettable):
    node = install(virtualization="none")
    orders = MAY._replace(allow_reset=True)
    with node.simulator.occupy(gpu=0, kind="client"):
        outcome = node.change(label="all-1g.5gb", orders=orders)
    assert (outcome.error, outcome.reboot_required, outcome.reset_required) == (None, (0,), ())
    assert "nvidia-smi --gpu-reset" not in node.writes()


def test_hopper_without_a_reset_of_the_kernel_switches_as_ever(install, unresettable):
    node = install(H100, virtualization="none")
    assert node.change(label="all-1g.10gb").error is None


def not_supported(*_arguments, **_options):
    raise DriverError("nvidia-smi says that it is not supported.", call=reset.CALL, error="NOT_SUPPORTED")


def pending(node, gpu=0):
    """A mode that somebody's monitoring has kept from becoming current."""
    with node.simulator.occupy(gpu=gpu, kind="client"):
        node.node.enable(gpu)
    node.simulator.reset_calls()


def test_what_nvidia_smi_cannot_reset_waits_for_the_one_reboot(install, monkeypatch):
    node = install(virtualization="none")
    pending(node)
    monkeypatch.setattr(reset, "reset", not_supported)
    orders = MAY._replace(allow_reset=True)
    outcome = node.change(label="all-1g.5gb", orders=orders)
    assert (outcome.error, outcome.reboot_required, outcome.reset_required) == (None, (0,), ())

    node.reboot(takes_effect=False)
    with pytest.raises(MigError, match="was rebooted for this wish already"):
        node.change(label="all-1g.5gb", orders=orders)
    node.reboot()
    assert node.change(label="all-1g.5gb", orders=orders).error is None


def test_without_permission_what_nvidia_smi_cannot_reset_is_a_failure(install, monkeypatch):
    node = install(virtualization="none")
    pending(node)
    monkeypatch.setattr(reset, "reset", not_supported)
    outcome = node.change(label="all-1g.5gb", orders=Orders(allow_reset=True))
    assert "not supported" in str(outcome.error)
    assert (outcome.reboot_required, node.record()) == ((), None)


@pytest.mark.parametrize("error", ["IN_USE", "UNKNOWN", "TIMEOUT"])
def test_any_other_failure_of_a_reset_is_no_reason_to_reboot(install, monkeypatch, error):
    def fail(*_arguments, **_options):
        raise DriverError("It failed.", call=reset.CALL, error=error)

    node = install(virtualization="none")
    pending(node)
    monkeypatch.setattr(reset, "reset", fail)
    outcome = node.change(label="all-1g.5gb", orders=MAY._replace(allow_reset=True))
    assert (outcome.error.details["error"], outcome.reboot_required) == (error, ())
    assert node.record() is None


def test_hopper_that_nvidia_smi_cannot_reset_is_a_failure_since_a_reboot_would_not_help(install, monkeypatch):
    node = install(H100, virtualization="none")
    pending(node)
    monkeypatch.setattr(reset, "reset", not_supported)
    outcome = node.change(label="all-1g.10gb", orders=MAY._replace(allow_reset=True))
    assert "not supported" in str(outcome.error)
    assert outcome.reboot_required == ()


def test_a_gpu_that_could_be_reset_is_not_said_to_wait_because_another_could_not(install, monkeypatch):
    node = install("2xa100-sxm4-40gb", virtualization="none")
    pending(node, 0)
    pending(node, 1)

    def only_the_first(gpus, **_options):
        node.simulator.reset(gpu=0)
        not_supported()

    monkeypatch.setattr(reset, "reset", only_the_first)
    outcome = node.change(label="all-1g.5gb", orders=MAY._replace(allow_reset=True))
    assert (outcome.error, outcome.reboot_required) == (None, (1,))
    assert [step.gpu for step in outcome.steps_done if step.kind == "reset"] == [0]
    assert transaction.known_to_need_a_reboot(outcome.after, node.record().pci).gpus[1].resettable is False


def test_what_is_taken_back_after_a_reboot_leaves_a_mode_that_somebody_had_stored_for_it(install):
    node = install("2xa100-sxm4-40gb")
    node.node.enable(0)
    node.reboot()
    node.node.create(0, [("3g.20gb", 0, [(0, 3)])])
    node.node.enable(1)
    node.simulator.fault("nvmlComputeInstanceDestroy", nth=1, when="after", kill=True)
    node.change_nobody_takes_back(label="all-1g.5gb", gpus=[0])
    node.reboot()

    outcome = node.change(orders=Orders(recover="back"))
    assert (outcome.error, outcome.recovered) == (None, "back")
    assert node.modes() == [(1, 1), (1, 1)]
    assert [places(gpu) for gpu in node.read().gpus] == [[("3g.20gb", 0, [(0, 3)])], []]
    assert MODE not in node.writes()


def rebooted_in_the_middle(node):
    """Killed when the mode was stored, and rebooted: MIG is on, and was off before."""
    node.simulator.fault(MODE, nth=1, when="after", kill=True)
    node.change_nobody_takes_back(label="all-1g.5gb", orders=MAY)
    node.reboot()
    assert node.modes() == [(1, 1)]


def test_what_only_another_reboot_could_take_back_is_not_taken_back(install):
    node = install()
    rebooted_in_the_middle(node)
    before = node.records()
    with pytest.raises(MigError, match="since a reboot, and only another one turns it off again"):
        node.change(orders=Orders(recover="back"))
    assert (node.writes(), node.records()) == ([], before)


def test_a_failure_after_a_reboot_stores_no_mode_for_a_later_boot(install):
    node = install()
    rebooted_in_the_middle(node)
    node.simulator.fault("nvmlDeviceCreateGpuInstanceWithPlacement", nth=3, code="INSUFFICIENT_RESOURCES")
    outcome = node.change(label="all-1g.5gb", orders=MAY)

    assert outcome.rolled_back is False
    assert any("only another reboot turns MIG of GPU 0 off again" in sentence for sentence in outcome.missing)
    assert (node.modes(), outcome.pending_left, outcome.after.gpus[0].instances) == ([(1, 1)], (), ())
    assert node.change(label="all-1g.5gb", orders=MAY).error is None
