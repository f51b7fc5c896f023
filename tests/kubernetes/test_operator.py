# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The playbook mig where the operator's MIG manager has the GPUs: it is told, and nothing of ours is on the hosts."""

from __future__ import annotations

import json

import pytest

from ansible_collections.gpufleet.mig.plugins.plugin_utils import _mig_manager
from ansible_collections.gpufleet.mig.tests.kubernetes.gpus import gpus
from ansible_collections.gpufleet.mig.tests.kubernetes.hosts import fleet_of, gpus_of, managed_node

NODE = "/api/v1/nodes/node-1"
WHOLE = {"nvidia.com/gpu": 1}
SEVEN = {"nvidia.com/mig-1g.5gb": 7}
DEPLOY = "nvidia.com/gpu.deploy."


@pytest.fixture
def fleet(stage, tmp_path):
    """Host node-1 with an A100, whose manager has done what it was told, and reads our config map."""
    made = fleet_of(stage, tmp_path / "fleet", ("node-1",))
    made.variables.update(
        kubernetes_mode="operator",
        kubernetes_set_policy=True,
        kubernetes_config_map_delay=0,
        kubernetes_label_stays=0,
        kubernetes_manager_timeout=20,
    )
    stage.operator()
    managed_node(stage, "node-1", made.simulators["node-1"], **{_mig_manager.CONFIG: "all-disabled"})
    assert stage.settles("node-1", **WHOLE)
    assert stage.cluster.wait_for(lambda: stage.labels("node-1").get(_mig_manager.STATE) == "success")
    return made


def notes(stage):
    found = stage.client.get(NODE)["metadata"].get("annotations") or {}
    return {key: json.loads(value) for key, value in found.items() if key.startswith("gpufleet.mig/")}


def state_of(fleet, name="node-1"):
    """What is on the host of ours: the files in the folder for it."""
    return sorted(path.name for path in (fleet.folder / "state" / name).glob("**/*"))


def test_check_do_do_again_and_check_again(api, stage, fleet):
    stage.pod("train", "node-1", grace=0, **WHOLE)
    assert stage.runs("train")
    manager = stage.cluster.machines["node-1"].manager
    runs = list(manager.runs)
    api.forget()
    checked = fleet.run("mig", "--check", mig_profile="all-1g.5gb")
    assert checked.rc == 0, checked.out
    assert "for the scheduler 1 nvidia.com/gpu -> 7 nvidia.com/mig-1g.5gb" in checked.out
    assert checked.changed == {"node-1"}
    assert (api.writes, fleet.writes(), manager.runs) == ([], {}, runs)

    ran = fleet.run("mig", mig_profile="all-1g.5gb")
    assert ran.rc == 0, ran.out
    assert gpus_of(fleet.simulators["node-1"]) == gpus(1, mig="7x1g.5gb")
    assert stage.settles("node-1", **SEVEN), stage
    assert stage.labels("node-1")[_mig_manager.CONFIG].startswith("all-1g.5gb-")
    assert (stage.is_cordoned("node-1"), notes(stage), stage.names("node-1")) == (False, {}, [])
    assert state_of(fleet) == [], "nothing of ours is on a host that the MIG manager has"

    fleet.writes()
    runs = list(manager.runs)
    for arguments in ([], ["--check"]):
        api.forget()
        again = fleet.run("mig", *arguments, mig_profile="all-1g.5gb")
        assert again.rc == 0, again.out
        assert "1  already right" in again.out
        assert again.changed == set()
        assert (api.writes, fleet.writes(), manager.runs) == ([], {}, runs)
