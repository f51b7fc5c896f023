# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""One change of one node as a whole: lock, journal, clients, verification, and what is remembered."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import threading
from pathlib import Path

import pytest

from ansible_collections.gpufleet.mig.plugins.module_utils.engine import (
    bounded,
    capabilities,
    clients,
    driver,
    layouts,
    reading,
    state,
    transaction,
    undoing,
    worker,
)
from ansible_collections.gpufleet.mig.plugins.module_utils.engine.model import Client, MigError, Orders, WishError
from ansible_collections.gpufleet.mig.tests.engine.helpers import Installation, places
from nvmlsim.errors import ChildKilled

OPENER = functools.partial(driver.Session, None)
MIXED = [("2g.10gb", 0, [(0, 2)]), ("1g.5gb", 2, [(0, 1)]), ("1g.5gb", 3, [(0, 1)]), ("3g.20gb", 4, [(0, 3)])]


@pytest.fixture
def install(make_node, tmp_path):
    """A simulated node with a state directory of its own."""

    def make(gpus="1xa100-sxm4-40gb", units=None, refuses_to_stop=(), refuses_to_start=(), **options):
        refusals = {"refuses_to_stop": refuses_to_stop, "refuses_to_start": refuses_to_start}
        return Installation(make_node(gpus, **options), tmp_path / "state", units, **refusals)

    return make


# --- the whole way --------------------------------------------------------------------------------------------------


def test_a_change_is_made_and_leaves_neither_journal_nor_lock(install):
    node = install()
    outcome = node.change(label="all-1g.5gb")

    assert outcome.error is None
    assert (outcome.changed, outcome.remembered) == (True, True)
    assert len(outcome.after.gpus[0].instances) == 7
    assert state.read_journal(node.places) is None
    assert state.holder(node.places) is None


def test_what_was_proven_is_remembered_exactly_and_the_one_before_it_too(install):
    node = install()
    node.change(label="all-1g.5gb")
    node.change(label="all-3g.20gb")

    wanted, previous = state.read_wanted(node.places), state.read_previous(node.places)
    assert [len(dump["instances"]) for dump in (*wanted.gpus, *previous.gpus)] == [2, 7]
    assert (wanted.label, previous.label) == ("all-3g.20gb", "all-1g.5gb")
    assert state.persisted_verdict(wanted, node.read()) == "match"


def test_a_failed_change_is_not_remembered(install):
    node = install()
    node.change(label="all-3g.20gb")
    node.simulator.fault("nvmlDeviceCreateGpuInstanceWithPlacement", nth=2, code="INSUFFICIENT_RESOURCES")
    outcome = node.change(label="all-1g.5gb")

    assert outcome.rolled_back is True
    assert state.read_wanted(node.places).label == "all-3g.20gb"
    assert state.read_journal(node.places) is None


def test_a_node_that_is_as_wanted_is_not_written_to_again(install):
    node = install()
    node.change(label="all-1g.5gb")
    node.simulator.reset_calls()
    outcome = node.change(label="all-1g.5gb")

    assert (outcome.changed, outcome.altered, outcome.remembered) == (False, False, False)
    assert node.simulator.writes() == []


def test_a_layout_that_was_there_already_is_remembered_without_a_write_to_the_driver(install):
    node = install()
    node.node.enable(0)
    node.node.create(0, [("7g.40gb", 0, [(0, 7)])])
    node.simulator.reset_calls()
    outcome = node.change(label="all-7g.40gb")

    assert (outcome.changed, outcome.remembered) == (False, True)
    assert node.simulator.writes() == []
    assert state.persisted_verdict(state.read_wanted(node.places), node.read()) == "match"


def test_a_refusal_touches_nothing_and_leaves_no_journal(install):
    node = install()
    node.change(label="all-3g.20gb")
    victim = node.read().gpus[0].instances[0]
    node.simulator.reset_calls()
    with (
        node.simulator.occupy(gpu=0, gi=victim.id, ci=0) as holder,
        pytest.raises(MigError, match=f"process {holder.pid}"),
    ):
        node.change(label="all-1g.5gb")

    assert node.simulator.writes() == []
    assert state.read_journal(node.places) is None


def test_the_caller_never_opens_nvml(install):
    node = install()
    parent = os.getpid()
    node.change(label="all-1g.5gb")
    callers = {call.pid for call in node.simulator.calls()}

    # change() itself runs in a child of this test: its pid is told by the test's own call.
    assert node.caller not in callers
    assert parent not in callers


def test_a_change_takes_seven_fsyncs_however_large_it_is(install):
    node = install("8xa100-sxm4-40gb")
    node.change(label="all-7g.40gb")
    small = node.count_fsyncs(label="all-1g.5gb", gpus=[0])
    large = node.count_fsyncs(label="all-1g.5gb")
    none = node.count_fsyncs(label="all-1g.5gb")

    assert small[1] < large[1]
    # Journal, wanted and result: the file and its folder each; and the folder once more when the journal goes.
    assert (small[0], large[0]) == (7, 7)
    assert none == (0, 0)


# --- clients --------------------------------------------------------------------------------------------------------


def test_clients_that_run_are_stopped_before_the_first_write_and_started_after_the_last(install):
    node = install(units={"nvidia-dcgm.service": "active", "exporter.service": "active", "off.service": "inactive"})
    orders = Orders(evict="clients", clients=tuple(map(Client, node.manager.names)))
    outcome = node.change(label="all-1g.5gb", orders=orders)

    assert outcome.error is None
    assert outcome.stopped == ("nvidia-dcgm.service", "exporter.service")
    assert node.manager.log() == [
        "stop nvidia-dcgm.service",
        "stop exporter.service",
        "start exporter.service",
        "start nvidia-dcgm.service",
    ]
    assert node.manager.states() == {
        "nvidia-dcgm.service": "active",
        "exporter.service": "active",
        "off.service": "inactive",
    }


def test_clients_are_not_touched_when_nothing_is_to_change_or_nobody_allowed_it(install):
    node = install(units={"nvidia-dcgm.service": "active"})
    allowed = Orders(evict="clients", clients=(Client("nvidia-dcgm.service"),))
    node.change(label="all-1g.5gb", orders=Orders(clients=allowed.clients))
    node.change(label="all-1g.5gb", orders=allowed)

    assert node.manager.log() == []


def test_a_client_that_does_not_stop_costs_nothing(install):
    node = install(
        units={"first.service": "active", "stubborn.service": "active"}, refuses_to_stop={"stubborn.service"}
    )
    node.simulator.reset_calls()
    orders = Orders(evict="clients", clients=(Client("first.service"), Client("stubborn.service")))
    with pytest.raises(MigError, match="stubborn.service"):
        node.change(label="all-1g.5gb", orders=orders)

    assert node.simulator.writes() == []
    assert node.manager.states() == {"first.service": "active", "stubborn.service": "active"}
    assert state.read_journal(node.places) is None


def test_what_went_wrong_before_a_client_did_not_stop_is_told_with_it(install, monkeypatch):
    """Where systemd falls silent in the middle, the timer stays, and whoever reads the failure has to know of it."""
    node = install(units={"stubborn.service": "active"}, refuses_to_stop={"stubborn.service"})
    monkeypatch.setattr(clients, "disarm", lambda txid: "The timer that starts clients could not be stopped.")
    orders = Orders(evict="clients", clients=(Client("stubborn.service"),))
    with pytest.raises(MigError) as caught:
        node.change(label="all-1g.5gb", orders=orders)

    assert str(caught.value).startswith("stubborn.service could not be stopped")
    assert str(caught.value).endswith(" The timer that starts clients could not be stopped.")
    assert "not_started" not in caught.value.details


def test_a_client_that_does_not_come_back_after_another_did_not_stop_is_told_with_it(install):
    node = install(
        units={"first.service": "active", "stubborn.service": "active"},
        refuses_to_stop={"stubborn.service"},
        refuses_to_start={"first.service"},
    )
    orders = Orders(evict="clients", clients=(Client("first.service"), Client("stubborn.service")))
    with pytest.raises(MigError, match="stubborn.service could not be stopped") as caught:
        node.change(label="all-1g.5gb", orders=orders)

    (sentence,) = caught.value.details["not_started"]
    assert sentence.startswith("first.service ran before and does not run again: ")
    assert str(caught.value).endswith(sentence)


def test_a_client_that_does_not_run_with_the_new_layout_brings_the_old_one_back(install):
    node = install(units={"slurmd.service": "active"}, refuses_to_start={"slurmd.service"})
    node.change(label="all-3g.20gb")
    before = node.node.state()
    orders = Orders(evict="clients", clients=(Client("slurmd.service"),))
    outcome = node.change(label="all-1g.5gb", orders=orders)

    assert "The layout was changed, but slurmd.service does not run with it: " in str(outcome.error)
    (sentence,) = outcome.not_started
    assert sentence.startswith("slurmd.service ran before and does not run again: ")
    assert outcome.rolled_back is True
    assert node.node.state() == before
    assert state.read_journal(node.places) is None
    assert state.read_wanted(node.places).label == "all-3g.20gb"


def test_a_failed_change_starts_its_clients_again(install):
    node = install(units={"nvidia-dcgm.service": "active"})
    node.simulator.fault("nvmlDeviceCreateGpuInstanceWithPlacement", nth=2, code="INSUFFICIENT_RESOURCES")
    orders = Orders(evict="clients", clients=(Client("nvidia-dcgm.service"),))
    outcome = node.change(label="all-1g.5gb", orders=orders)

    assert outcome.rolled_back is True
    assert node.manager.states() == {"nvidia-dcgm.service": "active"}


# --- who may, and when ----------------------------------------------------------------------------------------------


def test_a_call_that_never_returns_ends_the_change_with_what_was_done_and_without_a_further_write(install):
    node = install()
    node.change(label="all-3g.20gb")
    node.simulator.reset_calls()
    node.simulator.fault("nvmlGpuInstanceDestroy", nth=2, hang=True)
    outcome = node.change(label="all-1g.5gb", orders=Orders(operation_timeout=0.5))

    assert "The driver does not answer: it was to destroy GPU instance" in str(outcome.error)
    assert "reboot the node" in str(outcome.error)
    assert "Done before that: destroy compute instance" in str(outcome.error)
    assert (outcome.altered, outcome.rolled_back) == (True, False)
    assert outcome.missing
    assert [call.function for call in node.simulator.writes()].count("nvmlGpuInstanceDestroy") <= 2
    assert not any("Create" in call.function for call in node.simulator.writes())
    assert state.read_journal(node.places) is not None
    assert state.holder(node.places) is None


def test_a_read_that_never_returns_is_an_error_that_touched_nothing(install):
    node = install()
    node.simulator.fault("nvmlDeviceGetMigMode", hang=True)
    with pytest.raises(bounded.NoAnswer, match="it was to read GPU 0"):
        node.call(reading.observe, OPENER, Orders(operation_timeout=0.5))


def test_who_comes_second_waits_and_gets_its_own_layout_whole(install):
    node = install("2xa100-sxm4-40gb")
    node.simulator.fault("write", delay_ms=5)
    threads = [threading.Thread(target=node.change, kwargs={"label": label}) for label in ("all-1g.5gb", "all-3g.20gb")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    found = {tuple(name for name, _start, _cis in places(gpu)) for gpu in node.read().gpus}
    assert found in ({("1g.5gb",) * 7}, {("3g.20gb",) * 2})
    assert state.read_journal(node.places) is None


def test_who_will_not_wait_longer_is_told_who_is_at_work(install):
    node = install()
    with (
        state.Lock.acquire(node.places, "tx", "alice", "mig_config label all-1g.5gb", 1.0),
        pytest.raises(state.LockedError, match="alice"),
    ):
        node.change(label="all-1g.5gb", orders=Orders(lock_timeout=0.2))


def test_a_lease_keeps_others_out_until_it_expires_or_its_own_run_returns(install):
    node = install()
    with node.simulator.occupy(gpu=0, kind="client"):
        waiting = node.change(label="all-1g.5gb", orders=Orders(lease=600, run_id="rollout-7", who="alice"))
    assert waiting.reset_required == (0,)

    with pytest.raises(state.LockedError, match="alice keeps this node"):
        node.change(label="all-1g.5gb", orders=Orders(run_id="other"))
    node.simulator.reset(gpu=0)
    assert node.change(label="all-1g.5gb", orders=Orders(run_id="rollout-7")).error is None
    assert state.read_lease(node.places) is None


def test_a_reservation_keeps_its_instance_unless_that_is_allowed(install):
    node = install()
    node.change(label="all-3g.20gb")
    device = node.read().gpus[0].instances[0].compute[0].uuid
    reservations = ({"device": device, "holder": "Slurm job 123"},)
    node.simulator.reset_calls()
    with pytest.raises(MigError, match="Slurm job 123"):
        node.change(label="all-1g.5gb", orders=Orders(reservations=reservations))

    assert node.simulator.writes() == []
    assert node.change(label="all-1g.5gb", orders=Orders(reservations=reservations, evict="reserved")).error is None


@pytest.mark.parametrize("kept", [0, 1])
def test_promises_are_known_too_when_the_plan_is_made_again_after_a_mode_switch(install, kept):
    node = install("2xa100-sxm4-40gb", driver="535")
    node.node.enable(1)
    node.node.create(1, [("1g.5gb", 2, [(0, 1)]), ("1g.5gb", 3, [(0, 1)])])
    device = node.read().gpus[1].instances[kept].compute[0].uuid
    outcome = node.change(label="1g.5gb", orders=Orders(reservations=({"device": device, "holder": "Slurm job 123"},)))

    assert outcome.error is None
    assert [ci.uuid for gi in outcome.after.gpus[1].instances for ci in gi.compute] == [device]


def test_a_reservation_of_a_whole_gpu_keeps_its_instances_and_its_mode(install):
    node = install("2xa100-sxm4-40gb")
    node.change(label="all-3g.20gb", gpus=[0])
    promised = tuple({"device": gpu.uuid, "holder": "Slurm job 123"} for gpu in node.read().gpus)
    node.simulator.reset_calls()
    for label, gpu in (("all-1g.5gb", 0), ("all-disabled", 0), ("all-1g.5gb", 1)):
        with pytest.raises(MigError, match="is reserved, and nothing was changed: Slurm job 123 .*the whole GPU"):
            node.change(label=label, gpus=[gpu], orders=Orders(reservations=promised))

    assert node.simulator.writes() == []


GONE = {"device": "MIG-b80c8fef-a677-5340-85fb-2c162d75df03", "holder": "pod training/bert-0 (container worker)"}


def test_what_a_person_reserves_has_to_be_there(install):
    node = install()
    node.change(label="all-3g.20gb")
    node.simulator.reset_calls()
    with pytest.raises(WishError, match="MIG-b80c8fef.* is reserved for pod training/bert-0"):
        node.change(label="all-1g.5gb", orders=Orders(reservations=(GONE,)))
    assert node.simulator.writes() == []


def test_a_device_that_the_kubelet_still_lists_and_that_is_gone_is_passed_over_with_a_word(install):
    node = install()
    node.change(label="all-3g.20gb")
    outcome = node.change(label="all-1g.5gb", orders=Orders(reservations=({**GONE, "source": "kubelet"},)))
    assert outcome.error is None
    (warning,) = outcome.warnings
    assert "no such device any more: MIG-b80c8fef-a677-5340-85fb-2c162d75df03 of pod training/bert-0" in warning


def test_a_device_of_a_pod_that_may_be_on_any_gpu_keeps_all_of_them(install):
    node = install("2xa100-sxm4-40gb")
    node.change(label="all-3g.20gb")
    node.simulator.reset_calls()
    passed_on = {"device": "0000:41:00.0", "holder": "pod vms/windows (container compute)", "source": "kubelet"}
    for gpu in (0, 1):
        with pytest.raises(MigError, match="pod vms/windows .*kubelet; on which GPU 0000:41:00.0 is, is not known"):
            node.change(label="all-1g.5gb", gpus=[gpu], orders=Orders(reservations=(passed_on,)))
    assert node.simulator.writes() == []
    assert node.change(label="all-1g.5gb", orders=Orders(reservations=(passed_on,), evict="reserved")).error is None


def test_what_is_promised_to_somebody_since_is_not_taken_back(install):
    node = install()
    node.change(label="all-3g.20gb")
    node.simulator.fault("write", nth=7, kill=True)

    def be_killed():
        worker._ended_for = lambda *arguments: os.kill(os.getpid(), signal.SIGKILL)
        return worker.change(node.places, node.opener, node.job(label="all-1g.5gb"), node.manager)

    with contextlib.suppress(ChildKilled):
        node.call(be_killed)
    made = [ci for gi in node.read().gpus[0].instances for ci in gi.compute if gi.profile.name == "1g.5gb"]
    promised = ({"device": made[0].uuid, "holder": "Slurm job 123"},)
    with pytest.raises(MigError, match="Slurm job 123"):
        node.change(orders=Orders(recover="back", reservations=promised))
    assert state.read_journal(node.places) is not None
    assert node.change(orders=Orders(recover="back")).error is None


def test_a_reset_that_is_allowed_makes_a_pending_mode_current_in_the_same_run(install):
    node = install()
    with node.simulator.occupy(gpu=0, kind="client"):
        pending = node.change(label="all-1g.5gb")
    outcome = node.change(label="all-1g.5gb", orders=Orders(allow_reset=True))

    assert pending.reset_required == (0,)
    assert outcome.error is None
    assert [step.kind for step in outcome.steps_done][:1] == ["reset"]
    assert len(outcome.after.gpus[0].instances) == 7


# --- an exact layout ------------------------------------------------------------------------------------------------


def test_a_saved_layout_comes_back_exactly(install):
    node = install()
    node.node.enable(0)
    node.node.create(0, MIXED)
    saved = json.loads(json.dumps([layouts.dump(gpu) for gpu in node.read().gpus]))
    before = node.node.state()
    node.change(label="all-1g.5gb")
    outcome = node.change(resolve=lambda now: layouts.resolve(now, saved))

    assert outcome.error is None
    assert node.node.state() == before


# --- asked to stop, and out of space --------------------------------------------------------------------------------


def in_the_worker(node, disturb, label, orders=None):
    """Make a change in whose worker ``disturb`` runs first."""

    def make():
        work = worker._Worker.run

        def disturbed(self):
            disturb()
            return work(self)

        worker._Worker.run = disturbed
        return worker.change(node.places, node.opener, node.job(label=label, orders=orders), node.manager)

    return node.call(make)


def test_who_is_asked_to_stop_before_anything_was_written_leaves_everything_as_it_was(install):
    node = install()
    node.change(label="all-3g.20gb")
    node.simulator.reset_calls()
    with pytest.raises(bounded.Interrupted):
        in_the_worker(node, lambda: os.kill(os.getpid(), signal.SIGTERM), "all-1g.5gb")

    assert node.simulator.writes() == []
    assert state.read_journal(node.places) is None


@pytest.mark.parametrize("after", range(1, 5))
def test_who_is_asked_to_stop_in_the_middle_takes_the_change_back(install, after):
    node = install()
    node.change(label="all-3g.20gb")
    before = node.node.state()

    def stop_after_some_steps():
        done = []
        finish = transaction._Run.finish

        def count(self, step):
            finish(self, step)
            done.append(step)
            if len(done) == after:
                os.kill(os.getpid(), signal.SIGTERM)

        transaction._Run.finish = count

    outcome = in_the_worker(node, stop_after_some_steps, "all-1g.5gb")

    assert "asked to stop (SIGTERM)" in str(outcome.error)
    assert (len(outcome.steps_done), outcome.rolled_back) == (after, True)
    assert node.node.state() == before
    assert state.read_journal(node.places) is None


def test_a_request_to_stop_that_comes_late_lets_no_client_run_on_the_way_back(install):
    units = {"telegraf.service": "active", "slurmd.service": "active"}
    node = install(units=units, refuses_to_start={"slurmd.service"})
    node.change(label="all-3g.20gb")

    def stop_when_clients_start():
        start = node.manager.start

        def asked_to_stop(unit, timeout):
            os.kill(os.getpid(), signal.SIGTERM)
            start(unit, timeout)

        node.manager.start = asked_to_stop

    orders = Orders(evict="clients", clients=tuple(map(Client, units)))
    outcome = in_the_worker(node, stop_when_clients_start, "all-1g.5gb", orders)

    assert ("slurmd.service" in str(outcome.error), outcome.rolled_back) == (True, True)
    assert [line for line in node.manager.log() if "telegraf" in line] == [
        "stop telegraf.service",
        "start telegraf.service",
    ] * 2


def test_a_layout_that_cannot_be_remembered_is_taken_back(install):
    node = install()
    node.change(label="all-3g.20gb")
    before = node.node.state()

    def fill_the_disk():
        def full(*_arguments, **_options):
            raise state.StateError("No space left on device.", file="wanted.json", reason="io")

        state.write_wanted = full

    outcome = in_the_worker(node, fill_the_disk, "all-1g.5gb")

    assert "could not be remembered for the next boot" in str(outcome.error)
    assert outcome.rolled_back is True
    assert node.node.state() == before


def test_a_damaged_record_is_refused_before_anything_is_touched(install):
    node = install()
    node.change(label="all-3g.20gb")
    (Path(node.places.state) / "wanted.json").write_text("{")
    node.simulator.reset_calls()
    with pytest.raises(state.StateError, match="wanted.json"):
        node.change(label="all-1g.5gb")

    assert node.simulator.writes() == []


def test_a_journal_that_cannot_be_written_costs_nothing(install):
    node = install()
    node.change(label="all-3g.20gb")
    node.simulator.reset_calls()

    def fill_the_disk():
        def full(*_arguments):
            raise state.StateError("No space left on device.", file="journal.json", reason="io")

        state.write_journal = full

    with pytest.raises(state.StateError, match="No space left"):
        in_the_worker(node, fill_the_disk, "all-1g.5gb")
    assert node.simulator.writes() == []


# --- what cannot be taken back --------------------------------------------------------------------------------------


def test_what_cannot_be_restored_is_written_down_as_a_layout_that_can_be_had_again(install):
    node = install()
    node.change(label="all-3g.20gb")
    before = node.node.state()
    # The first create fails, and so does every one on the way back.
    node.simulator.fault("nvmlDeviceCreateGpuInstanceWithPlacement", code="INSUFFICIENT_RESOURCES")
    outcome = node.change(label="all-1g.5gb")

    assert (outcome.rolled_back, outcome.changed) == (False, True)
    assert any("GPU instance 3g.20gb at 0:4 is gone" in sentence for sentence in outcome.missing)
    node.simulator.clear_faults()
    saved = json.loads(Path(outcome.recovery).read_text())
    assert node.change(resolve=lambda now: layouts.resolve(now, saved)).error is None
    assert node.node.state() == before


# --- device files of what was made ----------------------------------------------------------------------------------


def no_devices(*_arguments, **_options):
    raise MigError("Device files could not be made.", missing_devices=["/dev/nvidia-caps/nvidia-cap12"])


def test_instances_without_device_files_are_a_failure_that_takes_nothing_back_and_is_not_over(install, monkeypatch):
    node = install(units={"nvidia-dcgm.service": "active"})
    orders = Orders(evict="clients", clients=(Client("nvidia-dcgm.service"),))
    monkeypatch.setattr(capabilities, "ensure", no_devices)
    outcome = node.change(label="all-1g.5gb", orders=orders)

    assert "Device files could not be made" in str(outcome.error)
    assert (outcome.rolled_back, outcome.altered, outcome.changed) == (None, True, True)
    assert len(outcome.after.gpus[0].instances) == 7
    assert node.manager.states() == {"nvidia-dcgm.service": "active"}
    assert state.read_wanted(node.places) is None
    assert state.read_journal(node.places).clients == ()

    again = node.change(label="all-1g.5gb", orders=orders)
    assert "Device files could not be made" in str(again.error)
    assert (again.altered, again.changed) == (False, False)

    monkeypatch.undo()
    node.simulator.reset_calls()
    done = node.change(label="all-1g.5gb", orders=orders)
    assert (done.error, done.recovered, done.remembered) == (None, "forward", True)
    assert node.simulator.writes() == []
    assert state.read_journal(node.places) is None


def test_device_files_are_made_for_the_gpus_of_the_change_before_any_client_starts(install, tmp_path, monkeypatch):
    node = install("2xa100-sxm4-40gb", units={"nvidia-dcgm.service": "active"})
    seen = tmp_path / "seen"

    def ensure(found, gpus, *_arguments):
        made = [len(found.gpus[index].instances) for index in sorted(gpus)]
        seen.write_text(json.dumps([made, node.manager.states()["nvidia-dcgm.service"]]))

    monkeypatch.setattr(capabilities, "ensure", ensure)
    orders = Orders(evict="clients", clients=(Client("nvidia-dcgm.service"),))
    assert node.change(label="all-1g.5gb", gpus=[1], orders=orders).error is None
    assert json.loads(seen.read_text()) == [[7], "inactive"]


def test_device_files_that_are_missing_after_a_way_back_are_told_beside_the_failure(install, monkeypatch):
    node = install()
    node.change(label="all-3g.20gb")
    monkeypatch.setattr(capabilities, "ensure", no_devices)
    node.simulator.fault("nvmlDeviceCreateGpuInstanceWithPlacement", nth=2, code="INSUFFICIENT_RESOURCES")
    outcome = node.change(label="all-1g.5gb")

    assert (outcome.error.details["error"], outcome.rolled_back) == ("INSUFFICIENT_RESOURCES", True)
    assert "Device files could not be made." in outcome.warnings


# --- what there was before the last change --------------------------------------------------------------------------


def back(node, of_label=""):
    """A run that goes back to what there was before the last change."""
    return node.change(resolve=lambda read: undoing.resolve(read, node.places, of_label))


def test_what_there_was_before_the_first_change_comes_back_and_stays_when_asked_for_again(install):
    node = install()
    blank = node.node.state()
    assert node.change(label="all-1g.5gb").error is None
    outcome = back(node)

    assert outcome.error is None
    assert outcome.changed
    assert node.node.state() == blank
    node.simulator.reset_calls()
    again = back(node)
    assert again.error is None
    assert not again.changed
    assert node.simulator.writes() == []


def test_what_somebody_made_by_hand_comes_back_rather_than_what_was_wanted_before_it(install):
    node = install()
    assert node.change(label="all-enabled").error is None
    node.node.create(0, MIXED)
    by_hand = node.node.state()
    assert node.change(label="all-3g.20gb").error is None
    assert back(node).error is None
    assert node.node.state() == by_hand


def test_a_change_to_another_label_is_not_taken_back(install):
    node = install()
    assert node.change(label="all-1g.5gb").error is None
    assert node.change(label="all-3g.20gb").error is None
    node.simulator.reset_calls()
    outcome = back(node, "all-1g.5gb")
    assert (outcome.error, outcome.changed) == (None, False)
    assert node.simulator.writes() == []
    assert back(node, "all-3g.20gb").changed


def test_a_node_that_was_never_changed_has_nothing_to_go_back_to(install):
    node = install()
    with pytest.raises(MigError, match="no record of a layout before its last change"):
        back(node)
    assert not back(node, "all-1g.5gb").changed
