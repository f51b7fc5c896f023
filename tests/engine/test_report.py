# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What module results say about a node: plain data, nothing of the engine, and the same words everywhere."""

from __future__ import annotations

import json

import pytest

from ansible_collections.gpufleet.mig.plugins.module_utils.engine import driver, report

MIXED = [("2g.10gb", 0, [(0, 2)]), ("1g.5gb", 2, [(0, 1)]), ("3g.20gb", 4, [(0, 1), (1, 2)])]


@pytest.fixture
def node(make_node):
    made = make_node("2xa100-sxm4-40gb,1xtesla-t4")
    made.enable(0)
    made.create(0, MIXED)
    return made


def test_a_report_is_plain_data_that_json_carries(node):
    told = report.node_report(node.read())

    assert json.loads(json.dumps(told)) == told
    assert (told["driver_version"], len(told["gpus"])) == ("580.95.05", 3)


def test_a_gpu_is_reported_with_identity_mode_and_what_a_change_of_mode_takes(node):
    first, second, third = report.node_report(node.read())["gpus"]

    assert first["pci_device_id"] == "0x20B010DE"
    assert [gpu["mig_capable"] for gpu in (first, second, third)] == [True, True, False]
    assert (first["mig_current"], first["mig_pending"]) == (True, True)
    assert (third["mig_current"], third["profiles"]) == (None, [])
    assert (first["reset_required"], first["reboot_required"]) == (False, False)


@pytest.mark.parametrize(("virtualization", "reset", "reboot"), [("none", True, False), ("passthrough", False, True)])
def test_a_pending_mode_says_whether_reset_or_reboot_makes_it_current(make_node, virtualization, reset, reboot):
    node = make_node(virtualization=virtualization)
    with node.simulator.occupy(gpu=0, kind="client"):
        node.enable(0)
        (gpu,) = report.node_report(node.read())["gpus"]

    assert (gpu["mig_current"], gpu["mig_pending"]) == (False, True)
    assert (gpu["reset_required"], gpu["reboot_required"]) == (reset, reboot)


def test_a_mig_device_has_both_spellings_of_its_uuid(node):
    read = node.read().gpus[0]
    told = report.gpu_report(read)

    for gi, gi_told in zip(read.instances, told["instances"]):
        for ci, ci_told in zip(gi.compute, gi_told["compute_instances"]):
            assert ci_told["uuid"] == ci.uuid
            assert ci_told["legacy_uuid"] == f"MIG-{read.uuid}/{gi.id}/{ci.id}"
            assert ci_told["legacy_uuid"].startswith("MIG-GPU-")

    def resolve_both(session):
        call = session._call
        return [
            call("nvmlDeviceGetUUID", call("nvmlDeviceGetHandleByUUID", ci["legacy_uuid"])) == ci["uuid"]
            for gi in told["instances"]
            for ci in gi["compute_instances"]
        ]

    assert node.in_session(resolve_both) == [True] * 4


def test_profiles_tell_how_many_fit_an_empty_gpu_and_how_many_more_now(node):
    told = {profile["name"]: profile for profile in report.gpu_report(node.read().gpus[0])["profiles"]}

    assert {name: (profile["max"], profile["remaining"]) for name, profile in told.items()} == {
        "1g.5gb": (7, 1),
        "1g.5gb+me": (1, 1),
        "1g.10gb": (4, 0),
        "2g.10gb": (3, 0),
        "3g.20gb": (2, 0),
        "4g.20gb": (1, 0),
        "7g.40gb": (1, 0),
    }


def test_what_is_left_agrees_with_the_drivers_own_count(node):
    def by_driver(session):
        return {
            profile.name: session._call("nvmlDeviceGetGpuInstanceRemainingCapacity", session._handle(0), profile.id)
            for profile in session.read_gpu(0).profiles
        }

    told = {profile["name"]: profile["remaining"] for profile in report.gpu_report(node.read().gpus[0])["profiles"]}
    assert told == node.in_session(by_driver)


def test_what_could_not_be_read_is_among_the_errors_of_that_gpu(node):
    node.simulator.fault("nvmlDeviceGetHandleByIndex_v2", code="GPU_IS_LOST", gpu=1)
    told = report.node_report(node.read())["gpus"]

    assert [len(gpu["errors"]) for gpu in told] == [0, 1, 0]
    assert told[1]["errors"] == [
        {"call": "nvmlDeviceGetHandleByIndex", "error": "GPU_IS_LOST", "remedy": driver.remedy("GPU_IS_LOST")}
    ]
    assert (told[1]["mig_capable"], told[1]["profiles"]) == (None, None)


def test_a_plan_says_what_stays_goes_and_comes_and_who_shares_a_gpu_instance(node):
    entry = {"devices": [0], "mig-enabled": True, "mig-devices": {"1c.2g.10gb": 2, "1g.5gb": 1, "3g.20gb": 1}}
    before, plan, wanted = node.plan(config=[entry])
    (told,) = report.plan_report(plan, before)

    assert json.loads(json.dumps(told)) == told
    assert (told["gpu"], told["uuid"], told["mig"]) == (0, before.gpus[0].uuid, True)
    layout = told["kept"] + told["created"]
    shared = {gi["profile"]: [ci["profile"] for ci in gi["compute_instances"]] for gi in layout}
    assert shared == {"1g.5gb": ["1g.5gb"], "2g.10gb": ["1c.2g.10gb", "1c.2g.10gb"], "3g.20gb": ["3g.20gb"]}
    assert len(told["steps"]) == len(plan.steps)
    assert all(step["kind"] and "gpu" not in step and "" not in step.values() for step in told["steps"])


def test_a_gpu_that_nothing_happens_to_is_not_in_the_plan(node):
    before, plan, wanted = node.plan(label="all-balanced", gpus=[1])
    assert [entry["gpu"] for entry in report.plan_report(plan, before)] == [1]


def test_the_diff_has_a_line_for_each_gpu_and_shows_the_plan_as_it_will_be(node):
    before, plan, wanted = node.plan(label="all-1g.5gb", gpus=[1])
    planned = report.diff_text(before, plan)
    done = report.diff_text(before, node.carry_out((before, plan, wanted)).after)

    assert planned["before"].count("\n") == 3
    assert planned["before"] == done["before"] != planned["after"]
    assert planned["after"] == done["after"]


def test_a_diff_of_nothing_has_two_equal_sides(node):
    before = node.read()
    assert len(set(report.diff_text(before, before).values())) == 1
