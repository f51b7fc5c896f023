# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A reset touches the named GPUs alone, waits for nobody's work to be lost, and gives the layout back."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import typing as t

import pytest

from ansible_collections.gpufleet.mig.plugins.module_utils.engine import driver, reset, state, transaction, worker
from ansible_collections.gpufleet.mig.plugins.module_utils.engine.model import DriverError, MigError, Orders
from ansible_collections.gpufleet.mig.plugins.module_utils.engine.transaction import Outcome
from ansible_collections.gpufleet.mig.tests.engine.helpers import Installation, Instances, places

MIXED: Instances = (
    ("2g.10gb", 0, [(0, 2)]),
    ("1g.5gb", 2, [(0, 1)]),
    ("1g.5gb", 3, []),
    ("3g.20gb", 4, [(0, 1), (1, 2)]),
)
H100: Instances = (("1g.10gb", 0, [(0, 1)]), ("3g.40gb", 4, [(0, 3)]))
ALLOWED = Orders(allow_reset=True)


@pytest.fixture
def install(make_node, tmp_path):
    """A simulated node with a state directory of its own."""

    def make(gpus: str = "1xa100-sxm4-40gb", **options: t.Any) -> Installation:
        return Installation(make_node(gpus, **options), tmp_path / "state")

    return make


def partitioned(install, gpus="2xa100-sxm4-40gb", layout=MIXED, **options):
    """An installation with the same instances on every GPU."""
    node = install(gpus, **options)
    indices = range(len(node.read().gpus))
    node.node.enable(*indices)
    for index in indices:
        node.node.create(index, layout)
    node.simulator.reset_calls()
    return node


def with_pending_mode(install, gpus="2xa100-sxm4-40gb", pending=(1,), **options):
    """An installation where somebody asked for MIG while the GPU was in use."""
    node = install(gpus, **options)
    for gpu in pending:
        with node.simulator.occupy(gpu=gpu, kind="client"):
            node.node.enable(gpu)
    node.simulator.reset_calls()
    return node


def reset_gpus(node: Installation, *gpus: int, force: bool = False, orders: Orders = ALLOWED) -> Outcome:
    """What the module gpu_reset does."""
    targets = [node.read().gpus[index] for index in gpus]
    resets = tuple(gpus) if force else ()
    return node.change(resolve=reset.AsBefore(targets, force), orders=orders, resets=resets)


def modes(node: Installation) -> list[tuple[bool, bool]]:
    return [(bool(gpu.mode_current), bool(gpu.mode_pending)) for gpu in node.read().gpus]


def resets(node: Installation) -> list[tuple[t.Optional[int], str]]:
    """The resets that nvidia-smi was asked for, with what it answered."""
    return [(call.gpu, call.code) for call in node.simulator.calls() if call.function == "nvidia-smi --gpu-reset"]


# --- the command ---------------------------------------------------------------------------------------------------


def test_only_the_named_gpus_are_reset(install):
    node = partitioned(install, "3xa100-sxm4-40gb")
    gpus = node.read().gpus
    node.call(reset.reset, (gpus[0], gpus[2]))
    assert resets(node) == [(0, "SUCCESS"), (2, "SUCCESS")]
    assert [len(gpu.instances) for gpu in node.read().gpus] == [0, 4, 0]


@pytest.mark.parametrize("inside", [False, True], ids=["as a whole", "an instance"])
@pytest.mark.parametrize(("gpu", "kind"), [(0, "compute"), (0, "graphics"), (1, "compute")])
def test_whom_nvidia_smi_would_trip_over_is_foreseen(install, gpu, kind, inside):
    node = partitioned(install)
    where = {"gi": node.read().gpus[gpu].instances[-1].id, "ci": 1} if inside else {}
    with node.simulator.occupy(gpu, kind=kind, **where) as holder:
        seen = node.read()
        foreseen = node.call(reset.obstacles, seen, (0,), by_driver=False)
        with pytest.raises(DriverError) as caught:
            node.call(reset.reset, seen.gpus[:1])
    assert caught.value.error == "IN_USE"
    assert len(foreseen) == 1
    assert f"process {holder.pid}" in foreseen[0]


@pytest.mark.parametrize("inside", [False, True], ids=["as a whole", "an instance"])
def test_who_draws_on_another_gpu_is_no_obstacle(install, inside):
    node = partitioned(install)
    where = {"gi": node.read().gpus[1].instances[-1].id, "ci": 1} if inside else {}
    with node.simulator.occupy(1, kind="graphics", **where):
        seen = node.read()
        assert node.call(reset.obstacles, seen, (0,), by_driver=False) == ()
        node.call(reset.reset, seen.gpus[:1])
    assert resets(node) == [(0, "SUCCESS")]


@pytest.mark.parametrize(
    ("virtualization", "gpus", "status"),
    [("passthrough", "1xa100-sxm4-40gb", "NOT_SUPPORTED"), ("passthrough", "1xh100-sxm5-80gb", "SUCCESS")],
)
def test_what_cannot_be_reset_is_foreseen_too(install, virtualization, gpus, status):
    node = install(gpus, virtualization=virtualization)
    seen = node.read()
    foreseen = node.call(reset.obstacles, seen, (0,), by_driver=False)
    if status == "SUCCESS":
        node.call(reset.reset, seen.gpus)
        assert foreseen == ()
    else:
        with pytest.raises(DriverError) as caught:
            node.call(reset.reset, seen.gpus)
        assert caught.value.error == status
        assert "reboot" in foreseen[0]


@pytest.mark.parametrize("kind", ["hidden", "client"])
def test_who_is_in_no_list_is_looked_for_where_the_files_are(install, kind):
    node = partitioned(install)
    with node.simulator.occupy(gpu=0, kind=kind), pytest.raises(DriverError, match="gpu_holder_info") as caught:
        node.call(reset.reset, node.read().gpus[:1])
    assert caught.value.error == "IN_USE"
    assert "In use by another client" in caught.value.details["output"]


def test_without_fabric_manager_the_gpus_that_are_missing_are_told(install):
    node = partitioned(install, "3xa100-sxm4-40gb", fabric_manager=False)
    seen = node.read()
    with pytest.raises(DriverError, match="Fabric Manager") as caught:
        node.call(reset.reset, seen.gpus[:1])
    assert seen.gpus[1].pci_bus_id in caught.value.details["output"]
    assert seen.gpus[2].pci_bus_id in caught.value.details["output"]
    node.call(reset.reset, seen.gpus)
    assert [len(gpu.instances) for gpu in node.read().gpus] == [0, 0, 0]


def test_a_lost_gpu_is_called_that(install):
    node = install()
    node.simulator.fault("nvidia-smi", code="GPU_IS_LOST")
    with pytest.raises(DriverError) as caught:
        node.call(reset.reset, node.read().gpus)
    assert caught.value.error == "GPU_IS_LOST"


# --- a pending mode ------------------------------------------------------------------------------------------------


def test_a_pending_mode_becomes_current_and_only_that_gpu_is_reset(install):
    node = with_pending_mode(install, "3xa100-sxm4-40gb", pending=(1,))
    outcome = reset_gpus(node, 0, 1, 2)

    assert outcome.error is None
    assert outcome.changed
    assert resets(node) == [(1, "SUCCESS")]
    assert modes(node) == [(False, False), (True, True), (False, False)]
    assert [step.kind for step in outcome.steps_done] == ["reset"]


def test_another_gpu_keeps_its_instances_and_is_not_written_to(install):
    node = partitioned(install, "2xa100-sxm4-40gb")
    node.simulator.reset(gpu=1)
    node.node.in_session(lambda session: session.set_mig_mode(1, False))
    with node.simulator.occupy(gpu=1, kind="client"):
        node.node.enable(1)
    node.simulator.reset_calls()
    before = node.node.state()[0]

    assert reset_gpus(node, 1).error is None
    assert node.node.state()[0] == before
    assert {call.gpu for call in node.simulator.writes()} == {1}


def test_a_mode_that_is_on_its_way_off_takes_the_instances_along(install):
    node = partitioned(install, "1xa100-sxm4-40gb", assume={"disable_with_instances": "pending"})
    node.node.in_session(lambda session: session.set_mig_mode(0, False))
    assert modes(node) == [(True, False)]

    assert reset_gpus(node, 0).error is None
    assert modes(node) == [(False, False)]
    assert node.read().gpus[0].instances == ()


def test_where_nothing_is_pending_nothing_is_reset(install):
    node = partitioned(install)
    outcome = reset_gpus(node, 0, 1)

    assert (outcome.error, outcome.changed, outcome.altered) == (None, False, False)
    assert node.simulator.writes() == []


def test_what_another_run_has_reset_meanwhile_is_not_reset_again(install):
    node = with_pending_mode(install, "1xa100-sxm4-40gb", pending=(0,))
    wish = reset.AsBefore(node.read().gpus, force=False)
    node.simulator.reset(gpu=0)
    node.node.create(0, MIXED)
    node.simulator.reset_calls()

    outcome = node.change(resolve=wish, orders=ALLOWED)
    assert (outcome.error, outcome.changed) == (None, False)
    assert node.simulator.writes() == []


@pytest.mark.parametrize("force", [True, False])
def test_an_index_that_means_another_gpu_by_now_is_not_reset(install, force):
    node = with_pending_mode(install)
    first, second = node.read().gpus
    moved = [first._replace(index=1), second._replace(index=0)]
    with pytest.raises(MigError, match="is not GPU 1 any more"):
        node.change(resolve=reset.AsBefore(moved, force), orders=ALLOWED, resets=(0, 1) if force else ())
    with pytest.raises(MigError, match="is not GPU 2 any more"):
        node.change(resolve=reset.AsBefore([second._replace(index=2)], force), orders=ALLOWED)
    assert node.simulator.writes() == []


def test_a_reset_that_says_it_succeeded_and_did_not_is_found_out(install, tmp_path):
    """mig-parted believed the exit status, and the next step failed on a node without MIG."""
    node = with_pending_mode(install, "1xa100-sxm4-40gb", pending=(0,))
    liar = tmp_path / "bin" / "nvidia-smi"
    liar.parent.mkdir()
    liar.write_text("#!/bin/sh\necho 'GPU 00000000:07:00.0 was successfully reset.'\necho 'All done.'\n")
    liar.chmod(0o755)

    def change(job):
        os.environ["PATH"] = f"{liar.parent}:{os.environ['PATH']}"
        return worker.change(node.places, node.opener, job, node.manager)

    job = node.job(resolve=reset.AsBefore(node.read().gpus, force=False), orders=ALLOWED)
    outcome = node.call(change, job)
    assert "was reset, and MIG is still off with on pending" in str(outcome.error)
    assert modes(node) == [(False, True)]


# --- in the way ----------------------------------------------------------------------------------------------------


def test_a_refusal_names_who_uses_the_gpu_and_who_computes_elsewhere_and_touches_nothing(install):
    node = with_pending_mode(install, "3xa100-sxm4-40gb", pending=(1,))
    with (
        node.simulator.occupy(gpu=1, kind="graphics", name="Xorg") as first,
        node.simulator.occupy(gpu=2, name="python") as second,
        pytest.raises(MigError) as caught,
    ):
        reset_gpus(node, 1)
    assert f"process {first.pid}" in str(caught.value)
    assert f"process {second.pid}" in str(caught.value)
    assert "GPU 2" in str(caught.value)
    assert "Nothing was changed." in str(caught.value)
    assert node.simulator.writes() == []
    assert state.read_journal(node.places) is None


def test_ampere_in_a_virtual_machine_is_told_to_reboot(install):
    node = install(virtualization="passthrough")
    node.node.enable(0)
    node.simulator.reset_calls()
    for force in (False, True):
        with pytest.raises(MigError, match="reboot the machine"):
            reset_gpus(node, 0, force=force)
    assert node.simulator.writes() == []


@contextlib.contextmanager
def client(node: Installation, then: str) -> t.Iterator[None]:
    """A client that nobody knows, as a device plugin: it has NVML open, is in no list, and does what ``then`` says."""
    code = f"import pynvml, sys, time; pynvml.nvmlInit(); print(flush=True)\n{then}"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, env=node.simulator.env(), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield
        finally:
            process.kill()


def monitoring(node: Installation) -> t.ContextManager[None]:
    """A client that stays."""
    return client(node, "sys.stdin.read()")


def passing_by(node: Installation) -> t.ContextManager[None]:
    """A client that stays until it sees a mode that it keeps pending, and is gone then."""
    return client(
        node,
        "gpu = pynvml.nvmlDeviceGetHandleByIndex(0)\n"
        "deadline = time.monotonic() + 60\n"
        "while len(set(pynvml.nvmlDeviceGetMigMode(gpu))) == 1 and time.monotonic() < deadline: time.sleep(0.01)\n",
    )


@pytest.mark.parametrize("answer", ["IN_USE", "SUCCESS"])
def test_beside_a_client_with_nvml_open_ampere_is_divided_or_waits_and_then_goes_on(install, answer):
    """No public record says whether such a session alone keeps Ampere's mode pending; either is answered in full."""
    node = install("1xa100-sxm4-40gb", assume={"mode_beside_sessions": answer})
    with monitoring(node):
        beside = node.change(label="all-1g.5gb")
        assert beside.error is None
        assert beside.reset_required == ((0,) if answer == "IN_USE" else ())
        assert len(node.read().gpus[0].instances) == (0 if answer == "IN_USE" else 7)
        if answer == "IN_USE":
            refused = node.change(label="all-1g.5gb", orders=ALLOWED)
            assert "gpu_holder_info" in str(refused.error), "who is in the way has to be found by whoever reads this"
    after = node.change(label="all-1g.5gb", orders=ALLOWED)
    assert (after.error, after.reset_required) == (None, ())
    assert len(node.read().gpus[0].instances) == 7


@pytest.mark.parametrize("answer", ["IN_USE", "SUCCESS"])
def test_a_session_that_ends_at_once_leaves_no_mode_pending(install, answer):
    node = install("1xa100-sxm4-40gb", assume={"mode_beside_sessions": answer})
    with passing_by(node):
        outcome = node.change(label="all-1g.5gb")
    assert (outcome.error, outcome.reset_required) == (None, ())
    assert len(node.read().gpus[0].instances) == 7
    asked = [call for call in node.simulator.calls() if call.function == "nvmlDeviceSetMigMode"]
    assert len(asked) == (2 if answer == "IN_USE" else 1)
    assert [step.kind for step in outcome.steps_done].count("set_mode") == 1


def test_a_session_that_ends_at_once_costs_no_layout_on_the_way_back(install):
    node = install("1xa100-sxm4-40gb")
    node.change(label="all-3g.20gb")
    before, was = node.node.state(), node.read()
    gone = node.change(label="all-disabled")
    with passing_by(node):
        outcome = node.call(transaction.roll_back, driver.Session, was, gone.steps_done)
    assert (outcome.rolled_back, node.node.state()) == (True, before)


def test_who_stays_is_asked_around_no_more_than_a_few_times(install):
    node = install("1xa100-sxm4-40gb")
    with monitoring(node):
        node.simulator.reset_calls()
        assert node.change(label="all-1g.5gb").reset_required == (0,)
    assert len(node.simulator.writes()) == 4


def test_nobody_of_us_has_nvml_open_while_a_gpu_is_reset(install):
    """The record tells which sessions were open; nvidia-smi would refuse, as it does on a real node."""
    node = with_pending_mode(install, "1xa100-sxm4-40gb", pending=(0,))
    assert reset_gpus(node, 0).error is None

    open_sessions = set()
    for call in node.simulator.calls():
        if call.function.startswith("nvmlInit"):
            open_sessions.add(call.pid)
        elif call.function == "nvmlShutdown":
            open_sessions.discard(call.pid)
        elif call.function == "nvidia-smi --gpu-reset":
            assert open_sessions == {call.pid}
    assert open_sessions == set()


# --- by force ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keeps", ["yes", "no"])
@pytest.mark.parametrize(("gpus", "layout"), [("2xa100-sxm4-40gb", MIXED), ("2xh100-sxm5-80gb", H100)])
def test_a_reset_by_force_puts_every_instance_back_in_its_place(install, gpus, layout, keeps):
    node = partitioned(install, gpus, layout, assume={"hopper_reset_keeps_mode": keeps})
    before = node.node.state()
    outcome = reset_gpus(node, 1, force=True)

    assert outcome.error is None
    assert outcome.changed
    assert resets(node) == [(1, "SUCCESS")]
    assert node.node.state() == before
    assert places(outcome.after.gpus[1]) == sorted(layout, key=lambda each: each[1])


def test_a_gpu_without_mig_is_reset_by_force_and_stays_without(install):
    node = install()
    assert reset_gpus(node, 0, force=True).error is None
    assert resets(node) == [(0, "SUCCESS")]
    assert modes(node) == [(False, False)]


def test_a_gpu_without_instances_keeps_none(install):
    node = install()
    node.node.enable(0)
    assert reset_gpus(node, 0, force=True).error is None
    assert modes(node) == [(True, True)]
    assert node.read().gpus[0].instances == ()


# --- what goes wrong -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_reset_that_fails_leaves_the_layout_as_it_was(install, when):
    node = partitioned(install, "2xa100-sxm4-40gb")
    before = node.node.state()
    node.simulator.fault("nvidia-smi", nth=1, code="UNKNOWN", when=when)
    outcome = reset_gpus(node, 0, force=True)

    assert "Unknown Error" in str(outcome.error)
    assert outcome.rolled_back
    assert node.node.state() == before
    assert state.read_journal(node.places) is None


def test_of_two_gpus_one_is_reset_and_the_other_fails_and_both_are_as_before(install):
    node = partitioned(install, "2xa100-sxm4-40gb")
    before = node.node.state()
    node.simulator.fault("nvidia-smi", gpu=1, code="UNKNOWN")
    outcome = reset_gpus(node, 0, 1, force=True)

    assert resets(node) == [(0, "SUCCESS"), (1, "UNKNOWN")]
    assert outcome.rolled_back
    assert node.node.state() == before


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_reset_that_hangs_is_ended_and_the_layout_is_as_it_was(install, when):
    node = partitioned(install, "1xa100-sxm4-40gb")
    before = node.node.state()
    node.simulator.fault("nvidia-smi", nth=1, hang=True, when=when)
    outcome = reset_gpus(node, 0, force=True, orders=ALLOWED._replace(operation_timeout=3.0))

    assert "did not come back within 3 s" in str(outcome.error)
    assert outcome.rolled_back
    assert node.node.state() == before


def test_an_instance_that_cannot_be_put_back_is_told(install):
    node = partitioned(install, "1xa100-sxm4-40gb")
    node.simulator.fault("nvmlDeviceCreateGpuInstanceWithPlacement", code="INSUFFICIENT_RESOURCES")
    outcome = reset_gpus(node, 0, force=True)

    assert outcome.rolled_back is False
    assert any("3g.20gb" in sentence for sentence in outcome.missing)
    assert outcome.recovery
    assert os.path.exists(outcome.recovery)


def test_a_wish_is_what_the_node_was_when_it_was_first_asked_for(install):
    node = partitioned(install, "1xa100-sxm4-40gb")
    wish = reset.AsBefore(node.read().gpus, force=True)

    def wished() -> list[t.Any]:
        return [(each.profile.name, each.placement, each.compute) for each in wish(node.read()).wishes[0].instances]

    first = wished()
    node.simulator.reset(gpu=0)
    assert node.read().gpus[0].instances == ()
    assert wished() == first
