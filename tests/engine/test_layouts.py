# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What mig_info said of a simulated node is given back to it, and the node is as it was, to the last UUID."""

from __future__ import annotations

import functools
import json

import pytest

from ansible_collections.gpufleet.mig.plugins.module_utils.engine import layouts, report
from ansible_collections.gpufleet.mig.plugins.module_utils.engine.model import MigError, Orders, Placement
from ansible_collections.gpufleet.mig.tests.engine.helpers import Installation, SimulatedNode

# GIs as SimulatedNode.create takes them: partial compute instances, a GPU instance without any, media engines, and a
# place that the driver would not choose.
LAYOUTS = {
    "a30-24gb": [("2g.12gb", 2, [(0, 1), (1, 1)]), ("1g.6gb+me", 1, [(0, 1)])],
    "a100-sxm4-40gb": [("3g.20gb", 0, [(1, 2)]), ("1g.5gb", 5, [(0, 1)]), ("1g.10gb", 6, []), ("1g.5gb+me", 4, [])],
    "h100-sxm5-80gb": [("4g.40gb", 0, [(2, 2), (0, 1)]), ("1g.20gb", 6, [(0, 1)]), ("2g.20gb", 4, [])],
    "rtx-pro-6000-server": [("2g.48gb", 6, [(0, 1)]), ("1g.24gb+gfx", 0, [(0, 1)]), ("1g.24gb-me", 3, [])],
}


def saved(node: SimulatedNode) -> object:
    """What mig_info would say, after it was a file."""
    return json.loads(json.dumps(report.node_report(node.read())))


def restore(installation: Installation, layout: object, **options: object) -> object:
    return installation.change(resolve=functools.partial(layouts.resolve, layout=layout), **options)


@pytest.fixture
def make_installation(make_node, tmp_path):
    def make(gpus, **options):
        return Installation(make_node(gpus, **options), tmp_path / "state")

    return make


@pytest.mark.parametrize("board", LAYOUTS)
@pytest.mark.parametrize("meanwhile", ["all-enabled", "all-disabled", "all-balanced"])
def test_a_saved_node_is_had_again_exactly(make_installation, board, meanwhile):
    installation = make_installation(f"2x{board}")
    node = installation.node
    node.enable(0)
    node.create(0, LAYOUTS[board])
    before, layout = node.state(), saved(node)
    installation.change(label=meanwhile, allow_empty=True)
    assert node.state() != before
    outcome = restore(installation, layout)
    assert outcome.error is None
    assert node.state() == before


@pytest.mark.parametrize("board", ["a100-sxm4-40gb", "h100-sxm5-80gb"])
def test_a_saved_node_is_had_again_after_a_reboot(make_installation, board):
    installation = make_installation(f"1x{board}")
    node = installation.node
    node.enable(0)
    node.create(0, LAYOUTS[board])
    before, layout = node.state(), saved(node)
    node.simulator.reboot()
    assert node.state() != before
    restore(installation, layout)
    assert node.state() == before


def test_a_wide_compute_instance_beside_none_is_had_again_as_such(make_installation):
    installation = make_installation("1xh100-sxm5-80gb")
    node = installation.node
    node.enable(0)

    def create(session):
        profiles = {profile.name: profile for profile in session.read_gpu(0).profiles}
        for name, start in (("2g.20gb", 2), ("1g.20gb", 0)):
            place = next(place for place in profiles[name].placements if place.start == start)
            gi_id = session.create_gpu_instance(0, profiles[name].id, place)
            session.create_compute_instance(0, gi_id, 1, None, "rev1" if name == "2g.20gb" else "")

    node.in_session(create)
    before, layout = node.state(), saved(node)
    variants = [ci.variant for gi in node.read().gpus[0].instances for ci in gi.compute]
    assert sorted(variants) == ["", "rev1"]
    installation.change(label="all-1g.10gb")
    restore(installation, layout)
    assert node.state() == before


@pytest.mark.parametrize("profile_id", [0, 7])
def test_of_two_kinds_that_fill_a_double_memory_instance_the_saved_one_is_had_again(make_installation, profile_id):
    # mig-parted makes the plain one, which the engine would not choose.
    installation = make_installation("1xh100-sxm5-80gb")
    node = installation.node
    node.enable(0)

    def create(session):
        profile = next(profile for profile in session.read_gpu(0).profiles if profile.name == "1g.20gb")
        gi_id = session.create_gpu_instance(0, profile.id, profile.placements[1])
        session.create_compute_instance(0, gi_id, 1, None, "", profile_id)

    node.in_session(create)
    before, layout = node.state(), saved(node)
    assert before[0]["instances"][0][4][0][2] == profile_id
    for meanwhile in ("all-1g.10gb", "all-1g.20gb"):
        installation.change(label=meanwhile)
        restore(installation, layout)
        assert node.state() == before


def test_what_is_right_already_is_not_touched(make_installation):
    installation = make_installation("1xa100-sxm4-40gb")
    node = installation.node
    node.enable(0)
    node.create(0, [("3g.20gb", 0, [(0, 3)]), ("3g.20gb", 4, [(0, 3)])])
    layout = saved(node)
    node.simulator.reset_calls()
    restore(installation, layout)
    assert node.simulator.writes(ok=True) == []
    second = node.read().gpus[0].instances[1]
    node.in_session(lambda session: session.destroy_compute_instance(0, second.id, 0))
    node.in_session(lambda session: session.destroy_gpu_instance(0, second.id))
    node.simulator.reset_calls()
    restore(installation, layout)
    assert len(node.simulator.writes(ok=True)) == 2


def test_a_checkpoint_of_mig_parted_is_restored(make_installation):
    installation = make_installation("2xa100-sxm4-40gb")
    node = installation.node
    first, second = node.read().gpus
    devices = [
        {
            "UUID": first.uuid,
            "MigMode": 1,
            "GpuInstances": [
                {
                    "ProfileID": 2,
                    "Placement": {"Start": 4, "Size": 4},
                    "ComputeInstances": [{"ProfileID": 0, "EngProfileID": 0}, {"ProfileID": 1, "EngProfileID": 0}],
                },
                {"ProfileID": 9, "Placement": {"Start": 0, "Size": 2}, "ComputeInstances": None},
            ],
        },
        {"UUID": second.uuid, "MigMode": 0, "GpuInstances": None},
    ]
    node.enable(1)
    restore(installation, {"Version": "v1", "MigState": {"Devices": devices}})
    first, second = node.read().gpus
    assert [(gi.profile.name, gi.placement, [ci.slices for ci in gi.compute]) for gi in first.instances] == [
        ("1g.10gb", Placement(0, 2), []),
        ("3g.20gb", Placement(4, 4), [2, 1]),
    ]
    assert second.mode_current is False


@pytest.mark.parametrize("driver", ["525", "535"])
def test_a_saved_node_is_had_again_although_the_driver_lists_no_profiles_while_mig_is_off(make_installation, driver):
    installation = make_installation("1xa100-sxm4-40gb", driver=driver)
    node = installation.node
    node.enable(0)
    node.create(0, LAYOUTS["a100-sxm4-40gb"])
    before, layout = node.state(), saved(node)
    installation.change(label="all-disabled")
    restore(installation, layout)
    assert node.state() == before


def test_a_busy_instance_that_the_saved_layout_does_not_have_is_not_taken(make_installation):
    installation = make_installation("1xa100-sxm4-40gb")
    node = installation.node
    node.enable(0)
    layout = saved(node)
    node.create(0, [("3g.20gb", 0, [(0, 3)])])
    gi = node.read().gpus[0].instances[0]
    before = node.state()
    with node.simulator.occupy(gpu=0, gi=gi.id, ci=0), pytest.raises(MigError, match="in use"):
        restore(installation, layout, orders=Orders(evict="reserved"))
    assert node.state() == before


@pytest.mark.parametrize("instances", [[], [("1g.5gb", 0, [(0, 1)])]])
def test_beside_a_process_on_the_whole_gpu_no_layout_is_begun(make_installation, instances):
    # NVML creates no first GPU instance then, so what is there could not even be restored.
    installation = make_installation("1xa100-sxm4-40gb")
    node = installation.node
    node.enable(0)
    node.create(0, [("3g.20gb", 0, [(0, 3)])])
    layout = saved(node)
    node.in_session(lambda session: session.destroy_compute_instance(0, node_gi(session), 0))
    node.in_session(lambda session: session.destroy_gpu_instance(0, node_gi(session)))
    node.create(0, instances)
    before = node.state()
    node.simulator.reset_calls()
    with node.simulator.occupy(gpu=0), pytest.raises(MigError, match="uses the GPU"):
        restore(installation, layout)
    assert node.simulator.writes() == []
    assert node.state() == before


def node_gi(session):
    return session.read_gpu(0).instances[0].id
