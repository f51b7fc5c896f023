# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Drivers that list no profiles while MIG is off: the plan before the mode switch is the one after it."""

from __future__ import annotations

import pytest

from ansible_collections.gpufleet.mig.plugins.module_utils.engine import configs, planner
from ansible_collections.gpufleet.mig.plugins.module_utils.engine.model import WishError
from nvmlsim import SimulatorError, load_boards

OLD_DRIVERS = ("525", "535")


def boards_of(make_node, driver):
    """A node of one GPU for every Ampere and Hopper board that this driver knows, by the simulator's word."""
    nodes = {}
    for key, board in load_boards().items():
        if not board.profiles or board.architecture not in ("ampere", "hopper"):
            continue
        try:
            nodes[key] = make_node(f"1x{key}", driver=driver)
        except SimulatorError:
            continue  # too new a board for this driver
    return nodes


def plans(node, labels):
    """Steps and layout of every label; the sentence of the refusal where there is one."""
    found = {}
    for label in labels:
        try:
            wanted = configs.resolve(node, label=label)
            plan = planner.plan_gpu(node.gpus[0], wanted.wishes[0])
        except WishError as error:
            found[label] = str(error)
            continue
        found[label] = (
            [step for step in plan.steps if step.kind != "set_mode"],
            [(gi.profile.id, gi.profile.name, gi.placement, gi.compute) for gi in plan.after],
        )
    return found


@pytest.mark.parametrize("driver", OLD_DRIVERS)
def test_the_plan_before_mig_is_on_is_the_one_after(make_node, driver):
    compared = 0
    for key, node in boards_of(make_node, driver).items():
        before = node.read()
        assert before.gpus[0].profiles is None, key
        known = configs.generated_labels(before)
        labels = [*known, "all-1g", "3g,2x1g", "2x3g", "1g+me", "2x1g+me", "1c.2g,1c.2g", "3c.4g,1c.4g", "5g", "9x1g"]
        provisional = plans(before, labels)
        off = configs.resolve(before, label="all-1g").wishes[0]
        assert planner.plan_gpu(before.gpus[0], off).provisional, key
        node.enable(0)
        after = node.read()
        assert configs.generated_labels(after) == known, key
        assert plans(after, labels) == provisional, key
        compared += 1
    assert compared >= 18


@pytest.mark.parametrize("driver", OLD_DRIVERS)
def test_a_board_whose_profiles_nobody_knows_is_refused_before_the_switch(make_node, driver):
    node = make_node("1xa100-sxm4-40gb", driver=driver).read()
    stranger = node._replace(gpus=(node.gpus[0]._replace(pci_device_id=0xFFFF10DE),))
    with pytest.raises(WishError, match="lists no profiles while MIG is off"):
        configs.resolve(stranger, label="all-1g")


def test_a_driver_that_lists_profiles_at_any_time_needs_no_provisional_plan(make_node):
    before, plan, _wanted = make_node("1xa100-sxm4-40gb", driver="550").plan(label="all-1g")
    assert before.gpus[0].profiles
    assert not plan.gpus[0].provisional
