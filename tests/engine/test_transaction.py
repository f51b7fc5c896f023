# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A change of a node: what is refused before it, in which order it is done, and what counts as success."""

from __future__ import annotations

import sys

import pytest

from ansible_collections.gpufleet.mig.plugins.module_utils.engine import compare, configs, driver, transaction
from ansible_collections.gpufleet.mig.plugins.module_utils.engine.model import MigError
from ansible_collections.gpufleet.mig.tests.engine.helpers import all_compute, places
from nvmlsim.control import assumptions

WISHES = [
    ("1xa100-sxm4-40gb", "all-1g.5gb"),
    ("1xa100-sxm4-40gb", "all-balanced"),
    ("1xa100-sxm4-40gb", "all-1g.5gb.me"),
    ("1xa30-24gb", "all-2g.12gb"),
    ("2xh100-sxm5-80gb", "all-1g.20gb"),
    ("1xh200-sxm-141gb", "all-balanced"),
    ("1xb200-180gb", "all-3g.90gb"),
    ("1xrtx-pro-6000-server", "all-1g.24gb.gfx"),
    ("1xa100-sxm4-40gb,1xa30-24gb,1xtesla-t4", "all-1g"),
]


# What public facts leave open about real drivers, as the simulator lists it; the first answer is its default.
OPEN_QUESTIONS = {
    "struct_version_code": ["ARGUMENT_VERSION_MISMATCH"],
    "passthrough_activation": ["RESET_REQUIRED"],
    "passthrough_cancel": ["yes"],
    "disable_with_instances": ["pending", "destroy"],
    "hopper_reset_keeps_mode": ["no"],
    "placements_need_root": ["no"],
    "own_destroys_stay_listed": ["no"],
    "ampere_ci_windows": ["listed"],
    "taken_ci_span": ["INSUFFICIENT_RESOURCES"],
    "mode_beside_sessions": ["SUCCESS"],
    "wide_ci_span": ["1"],
    "a30_counts": ["right"],
}


def test_every_open_question_of_the_simulator_is_asked_here():
    assert {line.split("=")[0] for line in assumptions().splitlines()} - set(OPEN_QUESTIONS) == set()


@pytest.mark.parametrize(
    ("question", "answer"), [(question, answer) for question, answers in OPEN_QUESTIONS.items() for answer in answers]
)
@pytest.mark.parametrize("gpus", ["1xa100-sxm4-40gb,1xa30-24gb", "1xh100-sxm5-80gb"])
def test_a_node_goes_on_round_and_off_whatever_real_drivers_answer(make_node, gpus, question, answer):
    node = make_node(gpus, assume={question: answer})
    shared = [{"devices": "all", "mig-enabled": True, "mig-devices": {"1c.2g": 2}}]
    for wish in ({"label": "1x1g"}, {"config": shared}, {"label": "all-1g"}, {"label": "all-disabled"}):
        outcome = node.apply(**wish)
        assert (outcome.error, outcome.reset_required, outcome.reboot_required) == (None, (), ())
    assert node.apply(label="all-disabled").altered is False


@pytest.mark.parametrize(("gpus", "label"), WISHES)
def test_a_node_becomes_what_its_label_says(make_node, gpus, label):
    node = make_node(gpus)
    before, plan, wanted = node.plan(label=label)
    outcome = node.carry_out((before, plan, wanted))

    assert outcome.error is None
    assert (outcome.altered, outcome.changed, outcome.rolled_back) == (True, True, None)
    assert sorted(outcome.steps_done) == sorted(plan.steps)
    after = node.read()
    assert after == outcome.after
    for index, wish in wanted.wishes.items():
        assert compare.differences(after.gpus[index], wish) == ()


def test_a_node_that_is_as_wanted_is_not_written_to(make_node):
    node = make_node("2xa100-sxm4-40gb")
    node.apply(label="all-balanced")
    node.simulator.reset_calls()
    outcome = node.apply(label="all-balanced")

    assert (outcome.altered, outcome.changed, outcome.steps_done) == (False, False, ())
    assert node.simulator.writes() == []


def test_as_many_writes_are_made_as_the_plan_has_steps(make_node):
    node = make_node("2xa100-sxm4-40gb")
    planned = node.plan(label="all-balanced")
    node.simulator.reset_calls()
    node.carry_out(planned)

    assert len(node.simulator.writes()) == len(planned[1].steps)


MIXED = [("2g.10gb", 0, [(0, 2)]), ("1g.5gb", 2, [(0, 1)]), ("1g.5gb", 3, [(0, 1)]), ("3g.20gb", 4, [(0, 3)])]


def test_an_instance_that_stays_is_named_by_no_write(make_node):
    node = make_node("2xa100-sxm4-40gb")
    node.enable(0, 1)
    node.create(0, MIXED)
    node.create(1, MIXED)
    kept = {gi.id for gi in node.read().gpus[0].instances if gi.placement.start >= 2}
    node.simulator.reset_calls()
    outcome = node.apply(label="3g.20gb,4x1g.5gb", gpus=[0])

    assert outcome.error is None
    assert places(outcome.after.gpus[0])[0] == ("1g.5gb", 0, [(0, 1)])
    assert places(outcome.after.gpus[1]) == MIXED
    written = node.simulator.writes()
    assert len(written) == 6
    assert {call.gpu for call in written} == {0}
    assert not kept & {call.gi for call in written}


def test_compute_instances_are_placed_where_the_plan_says(make_node):
    node = make_node()
    entry = {"devices": "all", "mig-enabled": True, "mig-devices": {"1c.3g.20gb": 1, "2c.3g.20gb": 1, "1g.5gb": 2}}
    before, plan, wanted = node.plan(config=[entry])
    outcome = node.carry_out((before, plan, wanted))

    assert outcome.error is None
    planned = {gi.placement: [ci.placement for ci in gi.compute] for gi in plan.gpus[0].after}
    actual = {gi.placement: [ci.placement for ci in gi.compute] for gi in outcome.after.gpus[0].instances}
    assert {place: sorted(inside) for place, inside in actual.items()} == {
        place: sorted(inside) for place, inside in planned.items()
    }


# --- refusals before the first write ---------------------------------------------------------------------------------


def refusal_of(node, planned, **options):
    node.simulator.reset_calls()
    with pytest.raises(MigError) as refusal:
        node.carry_out(planned, **options)
    assert node.simulator.writes() == []
    return refusal.value


def test_a_busy_instance_that_would_go_is_refused_with_process_gpu_and_instance(make_node):
    node = make_node("2xa100-sxm4-40gb")
    node.apply(label="all-3g.20gb")
    victim = node.read().gpus[1].instances[0]
    with node.simulator.occupy(gpu=1, gi=victim.id, ci=0, name="train") as holder:
        refusal = refusal_of(node, node.plan(label="all-1g.5gb"))

    for part in (str(holder.pid), "GPU 1", "3g.20gb at 0:4", "nothing was changed"):
        assert part in str(refusal)
    assert refusal.details["gpu"] == 1
    assert [process["pid"] for process in refusal.details["holders"]] == [holder.pid]


def test_all_busy_gpus_are_named_in_one_refusal(make_node):
    node = make_node("3xa100-sxm4-40gb")
    node.apply(label="all-3g.20gb")
    planned = node.plan(label="all-1g.5gb")
    first, second = (node.read().gpus[index].instances[0].id for index in (0, 2))
    occupy = node.simulator.occupy
    with occupy(gpu=0, gi=first, ci=0) as one, occupy(gpu=2, gi=second, ci=0) as other:
        for made in (planned, node.plan(label="all-1g.5gb")):
            refusal = refusal_of(node, made)
            for part in (
                "GPU 0 and 2 are in use",
                f"process {one.pid} ",
                f"process {other.pid} ",
                "of GPU 0;",
                "of GPU 2.",
            ):
                assert part in str(refusal)
            assert str(refusal).count("Stop what is running there") == 1
            assert refusal.details["gpu"] == 0
            assert [(p["gpu"], p["pid"]) for p in refusal.details["holders"]] == [(0, one.pid), (2, other.pid)]


def test_a_job_that_started_after_the_plan_is_refused_too(make_node):
    node = make_node()
    node.apply(label="all-3g.20gb")
    planned = node.plan(label="all-1g.5gb")
    with node.simulator.occupy(gpu=0, gi=node.read().gpus[0].instances[0].id, ci=0) as holder:
        refusal = refusal_of(node, planned)

    assert str(holder.pid) in str(refusal)


def test_a_job_in_an_instance_that_stays_is_no_obstacle(make_node):
    node = make_node()
    node.enable(0)
    node.create(0, MIXED)
    stays = node.read().gpus[0].instances[-1]
    with node.simulator.occupy(gpu=0, gi=stays.id, ci=0):
        outcome = node.apply(label="3g.20gb,4x1g.5gb")

    assert outcome.error is None


def test_a_mode_change_under_a_running_process_is_refused(make_node):
    node = make_node("2xa100-sxm4-40gb")
    with node.simulator.occupy(gpu=1, name="train") as holder:
        refusal = refusal_of(node, node.plan(label="all-1g.5gb"))

    assert f"process {holder.pid}" in str(refusal)
    assert "uses the GPU" in str(refusal)


def test_a_gpu_that_changed_since_it_was_planned_is_left_alone(make_node):
    node = make_node("2xa100-sxm4-40gb")
    node.apply(label="all-balanced")
    planned = node.plan(label="all-1g.5gb")
    orphan_free = node.read().gpus[1].instances[0]
    node.in_session(
        lambda session: [
            session.destroy_compute_instance(1, orphan_free.id, 0),
            session.destroy_gpu_instance(1, orphan_free.id),
        ]
    )
    refusal = refusal_of(node, planned)

    assert "GPU 1" in str(refusal)
    assert "changed while this was planned" in str(refusal)
    assert "is gone" in str(refusal)


def test_a_gpu_whose_index_moved_since_it_was_planned_is_left_alone(make_node):
    node = make_node("2xa100-sxm4-40gb")
    before, plan, wanted = node.plan(label="all-1g.5gb")
    first, second = before.gpus
    swapped = before._replace(gpus=(first._replace(uuid=second.uuid), second._replace(uuid=first.uuid)))

    assert "another GPU has this index now" in str(refusal_of(node, (swapped, plan, wanted)))


def test_check_mode_can_ask_for_the_same_refusals_without_a_driver(make_node):
    node = make_node()
    node.apply(label="all-3g.20gb")
    with node.simulator.occupy(gpu=0, gi=node.read().gpus[0].instances[0].id, ci=0):
        before, plan, wanted = node.plan(label="all-1g.5gb")

    with pytest.raises(MigError, match="is in use and nothing was changed"):
        transaction.require_possible(before, plan)


# --- holders that no list shows --------------------------------------------------------------------------------------


def test_a_hidden_holder_ends_in_a_rollback_that_says_nobody_is_listed(make_node):
    node = make_node()
    node.apply(label="all-3g.20gb")
    before = node.state()
    second = node.read().gpus[0].instances[1]
    with node.simulator.occupy(gpu=0, gi=second.id, ci=0, kind="hidden"):
        outcome = node.apply(label="all-1g.5gb")

    assert outcome.rolled_back is True
    assert outcome.missing == ()
    assert (outcome.altered, outcome.changed) == (True, False)
    assert outcome.error.details["error"] == "IN_USE"
    for part in ("3g.20gb at 4:4", "GPU 0", "Nobody is found who holds it"):
        assert part in str(outcome.error)
    assert node.state() == before


def test_a_job_that_starts_between_two_writes_is_named(make_node):
    node = make_node()
    node.apply(label="all-3g.20gb")
    planned = node.plan(label="all-1g.5gb")
    second = node.read().gpus[0].instances[1]

    with node.simulator.occupy(gpu=0, gi=second.id, ci=0, kind="compute", name="late") as holder:

        class Unaware(driver.Session):
            """Sees the job only after the first write failed."""

            failed = False

            def destroy_compute_instance(self, *arguments):
                try:
                    super().destroy_compute_instance(*arguments)
                except driver.DriverError:
                    self.failed = True
                    raise

            def read_gpu(self, index, placements=True):
                gpu = super().read_gpu(index, placements)
                if self.failed:
                    return gpu
                return gpu._replace(
                    instances=tuple(
                        gi._replace(compute=tuple(ci._replace(processes=()) for ci in gi.compute))
                        for gi in gpu.instances
                    )
                )

        outcome = node.carry_out(planned, Unaware)

    assert outcome.rolled_back is True
    assert f"It is held by process {holder.pid}" in str(outcome.error)


# --- modes -----------------------------------------------------------------------------------------------------------


def test_a_mode_that_stays_pending_stops_the_run_before_any_instance_is_touched(make_node):
    node = make_node("3xa100-sxm4-40gb")
    node.enable(2)
    node.create(2, [("3g.20gb", 0, [(0, 3)])])
    with node.simulator.occupy(gpu=0, kind="client"):
        outcome = node.apply(label="all-1g.5gb")

        assert outcome.error is None
        assert outcome.reset_required == (0,)
        assert outcome.reboot_required == ()
        assert (outcome.altered, outcome.changed, outcome.rolled_back) == (True, True, None)
        assert [gpu["modes"] for gpu in node.state()] == [(0, 1), (1, 1), (1, 1)]
        assert places(outcome.after.gpus[2]) == [("3g.20gb", 0, [(0, 3)])]

        node.simulator.reset_calls()
        again = node.apply(label="all-1g.5gb")
        assert again.reset_required == (0,)
        assert (again.altered, again.changed) == (False, False)
        assert node.simulator.writes() == []

    node.simulator.reset(gpu=0)
    assert node.apply(label="all-1g.5gb").error is None
    assert len(all_compute(node.read().gpus[2])) == 7


def test_mig_is_turned_off_after_the_instances_are_gone(make_node):
    node = make_node("2xa100-sxm4-40gb")
    node.apply(label="all-balanced")
    outcome = node.apply(label="all-disabled")

    assert outcome.error is None
    assert [gpu["modes"] for gpu in node.state()] == [(0, 0), (0, 0)]
    assert {gpu["modes"] for gpu in node.state()} == {(0, 0)}
    assert not any(gpu.instances for gpu in outcome.after.gpus)


def test_turning_mig_off_under_a_client_stays_pending_and_is_told(make_node):
    node = make_node("2xa100-sxm4-40gb")
    node.apply(label="all-balanced")
    with node.simulator.occupy(gpu=1, kind="client"):
        outcome = node.apply(label="all-disabled")

    assert outcome.error is None
    assert outcome.reset_required == (1,)
    assert [gpu["modes"] for gpu in node.state()] == [(0, 0), (1, 0)]


def test_what_was_destroyed_for_a_mode_that_stays_pending_is_among_the_steps_done(make_node):
    node = make_node("2xa100-sxm4-40gb")
    node.apply(label="all-balanced")
    planned = node.plan(label="all-disabled")
    with node.simulator.occupy(gpu=1, kind="client"):
        outcome = node.carry_out(planned)

    assert outcome.reset_required == (1,)
    assert (outcome.altered, outcome.changed, outcome.rolled_back, outcome.missing) == (True, True, None, ())
    assert outcome.steps_done == planned[1].steps
    kinds = [step.kind for step in outcome.steps_done if step.gpu == 1]
    assert kinds.count("destroy_ci") == kinds.count("destroy_gi") == len(planned[0].gpus[1].instances) > 0
    assert outcome.after.gpus[1].instances == ()


@pytest.mark.parametrize("layout", [[], [("3g.20gb", 0, [(0, 3)])]])
def test_a_contradictory_pending_mode_is_cancelled_and_instances_stay(make_node, layout):
    node = make_node(assume={"disable_with_instances": "pending"})
    node.enable(0)
    node.create(0, layout)
    wish = {"config": configs.as_config(node.read()), "allow_empty": True}
    with node.simulator.occupy(gpu=0, kind="client"):
        node.in_session(lambda session: session.set_mig_mode(0, False))
        before = node.state()
        assert before[0]["modes"] == (1, 0)
        outcome = node.apply(**wish)

    assert outcome.error is None
    assert [step.kind for step in outcome.steps_done] == ["set_mode"]
    assert node.state() == [{**before[0], "modes": (1, 1)}]


def test_a_pending_mode_that_the_platform_cannot_cancel_is_a_failure_that_says_so(make_node):
    node = make_node(virtualization="passthrough")
    node.enable(0)
    outcome = node.apply(label="all-disabled")

    assert "MIG of GPU 0 was to be turned off" in str(outcome.error)
    assert "it is off with on pending" in str(outcome.error)
    assert "reboot the machine, which turns MIG on, and run again" in str(outcome.error)
    assert outcome.rolled_back is True
    assert node.state()[0]["modes"] == (0, 1)


def test_passed_through_ampere_is_refused_before_its_mode_is_stored(make_node):
    node = make_node("1xa100-sxm4-40gb", virtualization="passthrough")
    refusal = refusal_of(node, node.plan(label="all-1g.5gb"))

    for part in ("GPU 0", "passed through to a virtual machine", "reboot", "nvidia-smi -i 0 -mig 1"):
        assert part in str(refusal)
    assert node.state()[0]["modes"] == (0, 0)


def enabled_by_a_reboot(make_node, gpus="2xa100-sxm4-40gb"):
    node = make_node(gpus, virtualization="passthrough")
    node.enable(*range(len(node.read().gpus)))
    node.simulator.reboot()
    node.simulator.reset_calls()
    return node


def test_passed_through_ampere_with_instances_is_refused_with_the_order_that_nvidia_smi_accepts(make_node):
    node = enabled_by_a_reboot(make_node)
    node.create(0, [("3g.20gb", 0, [(0, 3)])])
    node.create(1, [("3g.20gb", 0, [])])
    node.simulator.reset_calls()
    refusal = refusal_of(node, node.plan(label="all-disabled"))

    assert (
        "run 'nvidia-smi mig -dci -i 0', then 'nvidia-smi mig -dgi -i 0,1', then 'nvidia-smi -i 0,1 -mig 0', reboot,"
        " and run again." in str(refusal)
    )
    assert "label all-enabled on GPU 0,1" in str(refusal)
    assert (refusal.details["gpu"], refusal.details["current"], refusal.details["wanted"]) == (0, "on", "off")


def test_the_label_that_the_refusal_names_empties_passed_through_ampere(make_node):
    node = enabled_by_a_reboot(make_node)
    node.create(0, [("3g.20gb", 0, [(0, 3)])])
    assert node.apply(label="all-enabled", allow_empty=True).error is None
    refusal = refusal_after(node, label="all-disabled")

    assert "mig -d" not in refusal
    assert "run 'nvidia-smi -i 0,1 -mig 0', reboot" in refusal


def refusal_after(node, **wish):
    node.simulator.reset_calls()
    return str(refusal_of(node, node.plan(**wish)))


def test_all_passed_through_ampere_gpus_are_named_in_one_refusal(make_node):
    node = make_node("3xa100-sxm4-40gb", virtualization="passthrough")
    node.enable(1)
    node.simulator.reboot()
    layout = [
        {"devices": [0, 2], "mig-enabled": True, "mig-devices": {"1g.5gb": 7}},
        {"devices": [1], "mig-enabled": False},
    ]
    refusal = refusal_after(node, config=layout)

    for part in ("GPU 0 (", "GPU 1 (", "GPU 2 (", "are Ampere GPUs passed through", "on (GPU 0,2) and off (GPU 1)"):
        assert part in refusal
    assert "run 'nvidia-smi -i 0,2 -mig 1', then 'nvidia-smi -i 1 -mig 0', reboot" in refusal


def test_passed_through_ampere_with_the_mode_stored_waits_for_its_reboot_without_a_write(make_node):
    node = make_node("1xa100-sxm4-40gb", virtualization="passthrough")
    node.enable(0)
    assert node.state()[0]["modes"] == (0, 1)
    node.simulator.reset_calls()
    outcome = node.apply(label="all-1g.5gb")

    assert (outcome.reboot_required, outcome.reset_required) == ((0,), ())
    assert (outcome.error, outcome.altered, outcome.changed) == (None, False, False)
    assert node.simulator.writes() == []
    node.simulator.reboot()
    assert node.apply(label="all-1g.5gb").error is None


def test_passed_through_hopper_changes_its_mode_at_once(make_node):
    node = make_node("1xh100-sxm5-80gb", virtualization="passthrough")
    outcome = node.apply(label="all-1g.10gb")

    assert outcome.error is None
    assert (outcome.reset_required, outcome.reboot_required) == ((), ())


@pytest.mark.parametrize(("activation", "reset", "reboot"), [("NOT_SUPPORTED", (), (0,)), ("RESET_REQUIRED", (0,), ())])
def test_where_passthrough_is_hidden_the_drivers_answer_decides_between_reset_and_reboot(
    make_node, activation, reset, reboot
):
    node = make_node(virtualization="passthrough", assume={"passthrough_activation": activation})
    node.simulator.fault("nvmlDeviceGetVirtualizationMode", code="NOT_SUPPORTED")
    outcome = node.apply(label="all-1g.5gb")

    assert outcome.error is None
    assert (outcome.reset_required, outcome.reboot_required) == (reset, reboot)
    assert node.state()[0]["modes"] == (0, 1)


def test_a_mode_that_the_driver_says_is_set_but_is_not_is_a_failure(make_node, monkeypatch):
    class Liar(driver.Session):
        def set_mig_mode(self, index, enabled):
            return "SUCCESS"

    monkeypatch.setattr(transaction, "_SETTLE_SECONDS", 0.0)
    node = make_node()
    outcome = node.carry_out(node.plan(label="all-1g.5gb"), Liar)

    assert "the driver answered SUCCESS, but it is off with off pending" in str(outcome.error)
    assert outcome.rolled_back is True


def test_a_gpu_that_takes_its_time_to_reset_is_waited_for(make_node, monkeypatch):
    class Slow(driver.Session):
        left = 3

        def read_mode(self, index):
            current, pending = super().read_mode(index)
            if current and self.left:
                self.left -= 1
                return False, True
            return current, pending

    monkeypatch.setattr(transaction, "_SETTLE_POLL_SECONDS", 0.0)
    node = make_node()
    outcome = node.carry_out(node.plan(label="all-1g.5gb"), Slow)

    assert (outcome.error, outcome.reset_required) == (None, ())


def test_handles_are_fetched_again_after_a_mode_switch(make_node):
    node = make_node()
    node.apply(label="all-1g.5gb")
    calls = [call.function for call in node.simulator.calls()]
    switched = calls.index("nvmlDeviceSetMigMode")

    first_create = calls.index("nvmlDeviceCreateGpuInstanceWithPlacement")
    assert "nvmlDeviceGetHandleByUUID" in calls[switched:first_create]


# --- success is what was read back -----------------------------------------------------------------------------------


def test_nvml_is_closed_and_opened_between_the_last_write_and_the_verification(make_node):
    node = make_node()
    node.simulator.reset_calls()
    node.apply(label="all-1g.5gb")
    calls = [call.function for call in node.simulator.calls()]
    writes = [call.sequence for call in node.simulator.writes()]
    after_last_write = [call.function for call in node.simulator.calls() if call.sequence > writes[-1]]

    shutdown = after_last_write.index("nvmlShutdown")
    assert after_last_write[shutdown + 1] == "nvmlInitWithFlags"
    assert "nvmlDeviceGetGpuInstances" in after_last_write[shutdown:]
    assert calls.count("nvmlInitWithFlags") == calls.count("nvmlShutdown")


def mig_uuids(session):
    """UUIDs by walking the MIG device handles, the way most clients do."""
    found = []
    for index in range(7):
        try:
            mig = session._call("nvmlDeviceGetMigDeviceHandleByIndex", session._handle(0), index)
        except driver.DriverError:
            continue
        found.append(session._call("nvmlDeviceGetUUID", mig))
    return found


def test_a_session_that_stays_open_lists_destroyed_devices_and_a_new_one_does_not(make_node):
    node = make_node()
    node.apply(label="all-3g.20gb")
    destroy_all = (
        "from ansible_collections.gpufleet.mig.plugins.module_utils.engine import driver\n"
        "with driver.Session() as session:\n"
        "    for gi in session.read_gpu(0).instances:\n"
        "        session.destroy_compute_instance(0, gi.id, 0)\n"
    )

    def look_twice(session):
        first = mig_uuids(session)
        node.simulator.run([sys.executable, "-c", destroy_all], check=True)
        return first, mig_uuids(session)

    first, stale = node.in_session(look_twice)
    assert len(first) == 2
    assert stale == first
    assert node.in_session(mig_uuids) == []


class NeverClosed:
    """Opens one session and hands it out ever after, as a transaction that does not reopen would."""

    def __init__(self):
        self.session = None

    def __call__(self):
        return self

    def __enter__(self):
        if self.session is None:
            self.session = RemembersDevices().__enter__()
        return self.session

    def __exit__(self, *exception):
        return None


class RemembersDevices(driver.Session):
    """A driver that serves each GPU from its session's cache, as NVML may."""

    def __init__(self):
        super().__init__()
        self.seen = {}

    def read_gpu(self, index, placements=True):
        return self.seen.setdefault(index, super().read_gpu(index, placements))


def test_a_stale_session_cannot_pass_for_success(make_node):
    node = make_node()
    node.apply(label="all-3g.20gb")

    honest = node.carry_out(node.plan(label="all-1g.5gb"), RemembersDevices)
    assert honest.error is None
    assert len(all_compute(honest.after.gpus[0])) == 7

    stale = node.carry_out(node.plan(label="all-3g.20gb"), NeverClosed())
    assert "the node is not as wanted" in str(stale.error)


def test_success_is_denied_when_the_layout_read_back_is_not_the_wanted_one(make_node):
    node = make_node()
    sessions = []

    def open_session():
        sessions.append(None)
        if len(sessions) == 2:
            # Somebody else is quicker than the verification.
            with driver.Session() as other:
                other.destroy_compute_instance(0, other.read_gpu(0).instances[0].id, 0)
        return driver.Session()

    outcome = node.carry_out(node.plan(label="all-1g.5gb"), open_session)

    assert "All calls succeeded, but the node is not as wanted" in str(outcome.error)
    assert outcome.rolled_back is True
    assert node.state() == [{"modes": (0, 0), "instances": []}]


def test_uuids_of_devices_that_stay_map_to_themselves_and_others_to_their_successors(make_node):
    node = make_node()
    node.enable(0)
    node.create(0, MIXED)
    before = {(ci.name, gi.placement.start): ci.uuid for gi, ci in all_compute(node.read().gpus[0])}
    outcome = node.apply(label="3g.20gb,4x1g.5gb")

    assert outcome.uuid_map[before["3g.20gb", 4]] == before["3g.20gb", 4]
    assert outcome.uuid_map[before["1g.5gb", 2]] == before["1g.5gb", 2]
    assert outcome.uuid_map[before["2g.10gb", 0]] is None
