# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""All or as before: whichever write fails, and however, the layout from before is rebuilt."""

from __future__ import annotations

import pytest

from ansible_collections.gpufleet.mig.plugins.module_utils.engine import driver, transaction
from ansible_collections.gpufleet.mig.plugins.module_utils.engine.model import Placement
from ansible_collections.gpufleet.mig.tests.engine.helpers import places

CODES = ["IN_USE", "INSUFFICIENT_RESOURCES", "UNKNOWN", "GPU_IS_LOST"]
MIXED = [("2g.10gb", 0, [(0, 2)]), ("1g.5gb", 2, [(0, 1)]), ("1g.5gb", 3, [(0, 1)]), ("3g.20gb", 4, [(0, 3)])]
PARTIAL = [("3g.20gb", 4, [(0, 1), (1, 2)]), ("2g.10gb", 0, [(0, 1), (1, 1)]), ("1g.5gb", 3, [])]

# name: (GPUs, layout of each GPU before (None: MIG off), the wish, writes of the change)
TRANSITIONS = {
    "from nothing to seven": ("1xa100-sxm4-40gb", [None], {"label": "all-1g.5gb"}, 15),
    "two halves to a mixture": (
        "1xa100-sxm4-40gb",
        [[("3g.20gb", 0, [(0, 3)]), ("3g.20gb", 4, [(0, 3)])]],
        {"label": "all-balanced"},
        None,
    ),
    "some stay": ("2xa100-sxm4-40gb", [MIXED, MIXED], {"label": "3g.20gb,4x1g.5gb"}, 12),
    "shared instances and an orphan to one": ("1xa100-sxm4-40gb", [PARTIAL], {"label": "all-7g.40gb"}, 9),
    "other compute instances in the same place": (
        "1xa100-sxm4-40gb",
        [[("3g.20gb", 4, [(0, 3)])]],
        {"config": [{"devices": "all", "mig-enabled": True, "mig-devices": {"1c.3g.20gb": 3}}]},
        4,
    ),
    "all off": (
        "2xa30-24gb",
        [[("1g.6gb", start, [(0, 1)]) for start in range(4)], [("4g.24gb", 0, [(0, 4)])]],
        {"label": "all-disabled"},
        12,
    ),
    "some on and some off": (
        "2xh100-sxm5-80gb",
        [None, [("1g.20gb", 2, [(0, 1)])]],
        {
            "config": [
                {"devices": [0], "mig-enabled": True, "mig-devices": {"1g.20gb": 2}},
                {"devices": [1], "mig-enabled": False, "mig-devices": {}},
            ]
        },
        8,
    ),
    "the twelve-slice grid": (
        "1xrtx-pro-6000-server",
        [[("2g.48gb", 0, [(0, 2)]), ("1g.24gb+gfx", 6, [(0, 1)])]],
        {"label": "all-1g.24gb-me"},
        None,
    ),
}


def prepare(make_node, name, **options):
    gpus, layouts, wish, writes = TRANSITIONS[name]
    node = make_node(gpus, **options)
    for index, layout in enumerate(layouts):
        if layout is not None:
            node.enable(index)
            node.create(index, layout)
    return node, wish, writes


@pytest.mark.parametrize("name", TRANSITIONS)
def test_the_change_itself_makes_the_expected_number_of_writes(make_node, name):
    node, wish, writes = prepare(make_node, name)
    planned = node.plan(**wish)
    node.simulator.reset_calls()
    outcome = node.carry_out(planned)

    assert outcome.error is None
    assert len(node.simulator.writes()) == len(planned[1].steps)
    assert writes in (None, len(planned[1].steps))


QUICK = "some stay"


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize(
    "name", [name if name == QUICK else pytest.param(name, marks=pytest.mark.slow) for name in TRANSITIONS]
)
def test_whichever_write_fails_the_layout_from_before_is_rebuilt(make_node, name, code, when):
    node, wish, writes = prepare(make_node, name)
    planned = before, plan, wanted = node.plan(**wish)
    state = node.state()
    named = {(step.gpu, step.placement) for step in plan.steps}
    untouched = {
        (gpu.index, gi.id) for gpu in before.gpus for gi in gpu.instances if (gpu.index, gi.placement) not in named
    }

    def fail_at(nth):
        node.simulator.clear_faults()
        node.simulator.fault("write", nth=nth, when=when, code=code)
        node.simulator.reset_calls()
        outcome = transaction.apply(driver.Session, *planned)
        return outcome, node.state(), {(call.gpu, call.gi) for call in node.simulator.writes()}

    # One child for all: each failure starts from what the rollback before it left.
    results = node.call(lambda: [fail_at(nth) for nth in range(1, len(plan.steps) + 1)])
    for nth, (outcome, state_after, written) in enumerate(results, start=1):
        where = f"write {nth} of {len(plan.steps)}"
        assert outcome.error is not None, where
        assert outcome.error.details["error"] == code, where
        assert (outcome.rolled_back, outcome.missing) == (True, ()), where
        assert (outcome.altered, outcome.changed) == (True, False), where
        assert state_after == state, where
        assert not untouched & written, where
    node.simulator.clear_faults()
    assert node.carry_out(planned).error is None


@pytest.mark.parametrize("driver_version", ["535.183.01", "550.127.05"])
def test_instances_come_back_with_the_mode_on_drivers_that_know_no_profiles_without_it(make_node, driver_version):
    node, wish, writes = prepare(make_node, "all off", driver=driver_version)
    before = node.state()
    planned = node.plan(**wish)
    node.simulator.fault("write", nth=len(planned[1].steps), code="UNKNOWN")
    outcome = node.carry_out(planned)

    assert (outcome.rolled_back, outcome.missing) == (True, ())
    assert node.state() == before


def test_the_first_failure_stays_the_failure_when_the_rollback_fails_too(make_node):
    node, wish, writes = prepare(make_node, "two halves to a mixture")
    planned = node.plan(**wish)
    node.simulator.fault("nvmlDeviceCreateGpuInstanceWithPlacement", code="INSUFFICIENT_RESOURCES")
    outcome = node.carry_out(planned)

    assert outcome.error.details["error"] == "INSUFFICIENT_RESOURCES"
    assert outcome.rolled_back is False
    assert (outcome.altered, outcome.changed) == (True, True)


def test_what_the_rollback_could_not_bring_back_is_listed_and_nothing_else(make_node):
    node, wish, writes = prepare(make_node, "some stay")
    planned = node.plan(**wish)
    # The change and the rollback fail on GPU 1 only; its 2g.10gb is gone by then.
    node.simulator.fault("nvmlDeviceCreateGpuInstanceWithPlacement", code="INSUFFICIENT_RESOURCES", gpu=1)
    outcome = node.carry_out(planned)

    assert outcome.rolled_back is False
    gone = [sentence for sentence in outcome.missing if "is gone" in sentence]
    uuid = planned[0].gpus[1].uuid
    assert len(gone) == 2
    assert all("GPU 1" in sentence and uuid in sentence and "2g.10gb at 0:2" in sentence for sentence in gone)
    assert places(outcome.after.gpus[0]) == MIXED
    assert places(outcome.after.gpus[1]) == MIXED[1:]


def test_a_driver_that_answers_nothing_any_more_leaves_a_list_of_what_was_started(make_node):
    node, wish, writes = prepare(make_node, "two halves to a mixture")
    planned = node.plan(**wish)
    opened = []

    def dies_after_the_change():
        opened.append(None)
        if len(opened) > 1:
            raise driver.DriverError(
                "nvmlInit failed with DRIVER_NOT_LOADED.", call="nvmlInit", error="DRIVER_NOT_LOADED"
            )
        return driver.Session()

    outcome = node.carry_out(planned, dies_after_the_change)

    assert outcome.error.details["error"] == "DRIVER_NOT_LOADED"
    assert outcome.rolled_back is False
    assert len([sentence for sentence in outcome.missing if "cannot tell" in sentence]) == len(planned[1].steps)
    (unknown,) = outcome.after.gpus
    assert unknown.uuid == planned[0].gpus[0].uuid
    assert (unknown.mode_current, unknown.instances) == (None, ())
    assert [problem.error for problem in unknown.problems] == ["DRIVER_NOT_LOADED"]


def test_a_gpu_lost_in_the_middle_is_named_with_what_it_had(make_node):
    node, wish, writes = prepare(make_node, "some stay")
    planned = node.plan(**wish)

    class LosesGpuOne(driver.Session):
        def create_gpu_instance(self, index, profile_id, placement):
            if index == 1:
                node.simulator.fault("nvmlDeviceGetHandleByIndex_v2", code="GPU_IS_LOST", gpu=1)
                node.simulator.fault("nvmlDeviceGetHandleByUUID", code="GPU_IS_LOST", gpu=1)
                node.simulator.fault("write", code="GPU_IS_LOST", gpu=1)
            return super().create_gpu_instance(index, profile_id, placement)

    outcome = node.carry_out(planned, LosesGpuOne)

    assert outcome.rolled_back is False
    (lost,) = [sentence for sentence in outcome.missing if "does not answer" in sentence]
    for part in ("GPU 1", planned[0].gpus[1].uuid, "GPU_IS_LOST", "2g.10gb at 0:2", "3g.20gb at 4:4"):
        assert part in lost
    assert any(sentence.endswith("power-cycle the node") for sentence in outcome.missing)
    assert not [sentence for sentence in outcome.missing if sentence.endswith(".")]
    assert places(outcome.after.gpus[0]) == MIXED


def test_an_instance_that_somebody_else_created_meanwhile_is_not_destroyed_by_the_rollback(make_node):
    node, wish, writes = prepare(make_node, "two halves to a mixture")
    planned = node.plan(label="all-7g.40gb")

    class Intruded(driver.Session):
        def create_gpu_instance(self, index, profile_id, placement):
            with driver.Session() as other:
                profile = next(p for p in other.read_gpu(0).profiles if p.name == "1g.5gb")
                gi = driver.Session.create_gpu_instance(other, 0, profile.id, Placement(0, 1))
                other.create_compute_instance(0, gi, 1, Placement(0, 1))
            return super().create_gpu_instance(index, profile_id, placement)

    outcome = node.carry_out(planned, first_time(Intruded))

    assert outcome.rolled_back is False
    assert places(outcome.after.gpus[0]) == [("1g.5gb", 0, [(0, 1)]), ("3g.20gb", 4, [(0, 3)])]
    listed = " ".join(outcome.missing)
    assert "3g.20gb at 0:4 is gone" in listed
    assert "1g.5gb at 0:1 is new" in listed


def first_time(kind):
    """Open a session of ``kind`` first, and plain ones ever after."""
    opened = []

    def open_session():
        opened.append(None)
        return kind() if len(opened) == 1 else driver.Session()

    return open_session


def test_a_defect_of_our_own_is_rolled_back_like_any_failure(make_node):
    node, wish, writes = prepare(make_node, "two halves to a mixture")
    planned = node.plan(**wish)
    before = node.state()

    class Defective(driver.Session):
        def create_gpu_instance(self, index, profile_id, placement):
            raise TypeError("defect")

    outcome = node.carry_out(planned, first_time(Defective))

    assert str(outcome.error) == "TypeError: defect"
    assert outcome.rolled_back is True
    assert node.state() == before


@pytest.mark.parametrize(("label", "words"), [("all-1g.5gb", "of 1 slice in"), ("all-3g.20gb", "of 3 slices in")])
def test_slices_of_a_compute_instance_are_counted_as_people_do(make_node, label, words):
    node = make_node()
    node.enable(0)
    node.simulator.fault("nvmlGpuInstanceCreateComputeInstanceWithPlacement", code="UNKNOWN")
    assert f"Could not create a compute instance {words} GPU instance" in str(node.apply(label=label).error)
