# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The playbook mig where the operator's MIG manager has the GPUs: it is told, and nothing of ours is on the hosts."""

from __future__ import annotations

import json
import re
import signal
import time

import pytest

from ansible_collections.gpufleet.mig.plugins.plugin_utils import _cordon, _mig_manager
from ansible_collections.gpufleet.mig.tests.kubernetes.gpus import gpus
from ansible_collections.gpufleet.mig.tests.kubernetes.hosts import fleet_of, gpus_of, have, managed_node
from ansible_collections.gpufleet.mig.tests.kubernetes.running import kill_all_of

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


def make(fleet, label="all-1g.5gb", *arguments, **variables):
    return fleet.run("mig", *arguments, mig_profile=label, **variables)


def patch(stage, labels=None, annotations=None, **spec):
    body = {"metadata": {"labels": labels or {}, "annotations": annotations or {}}, "spec": spec}
    stage.client.patch(NODE, body)


def restart_manager(stage):
    for pod in stage.pods("node-1", app="nvidia-mig-manager"):
        stage.client.delete(f"/api/v1/namespaces/gpu-operator/pods/{pod['metadata']['name']}")


def test_a_layout_that_was_edited_under_its_label_acts(stage, fleet):
    def team(**devices):
        return {"team": [{"devices": "all", "mig-enabled": True, "mig-devices": devices}]}

    assert make(fleet, "team", mig_configs=team(**{"1g.5gb": 7})).rc == 0
    edited = make(fleet, "team", mig_configs=team(**{"3g.20gb": 2}))
    assert edited.rc == 0, edited.out
    assert edited.changed == {"node-1"}
    assert stage.settles("node-1", **{"nvidia.com/mig-3g.20gb": 2}), stage


def test_a_manager_that_fails_goes_back_and_the_node_is_given_back_with_what_it_had_paused(stage, fleet):
    """After its first success a manager that fails leaves labels paused, and so it does when it finds all as before."""
    assert make(fleet).rc == 0
    before = stage.labels("node-1")

    def refuse(_config):
        raise RuntimeError("the driver said no")

    manager = stage.cluster.machines["node-1"].manager
    apply, manager.apply = manager.apply, refuse
    failed = make(fleet, "all-3g.20gb")
    assert failed.rc == 2
    assert "says failed of all-3g.20gb-" in failed.out
    assert f"The node has {before[_mig_manager.CONFIG]} again, as before" in failed.out
    assert "Its GPUs are as before." in failed.out
    assert stage.settles("node-1", **SEVEN), stage
    assert stage.labels("node-1") == before
    assert (stage.is_cordoned("node-1"), notes(stage)) == (False, {})

    manager.apply = apply
    assert make(fleet, "all-3g.20gb").rc == 0
    assert stage.settles("node-1", **{"nvidia.com/mig-3g.20gb": 2}), stage


def test_a_manager_that_gets_stuck_fails_the_host_which_stays_cordoned_until_the_next_run_mends_it(stage, fleet):
    stage.cluster.machines["node-1"].manager.dies_at = "paused"
    failed = make(fleet, kubernetes_manager_timeout=15)
    assert failed.rc == 2
    assert "says pending of all-1g.5gb-" in failed.out
    assert "look at the log of its pod, and run again" in failed.out
    assert "This host stays drained." in failed.out
    assert stage.is_cordoned("node-1")
    assert notes(stage)[_cordon.ANNOTATION]["drained_for"] == "all-1g.5gb"

    other = make(fleet, "all-3g.20gb")
    assert other.rc == 2
    assert "refused (drained), node-1:\n  Another run has drained this host for all-1g.5gb" in other.out

    restart_manager(stage)
    mended = make(fleet)
    assert mended.rc == 0, mended.out
    assert stage.settles("node-1", **SEVEN), stage
    assert (stage.is_cordoned("node-1"), notes(stage)) == (False, {})
    assert _cordon.PAUSED not in stage.labels("node-1").values()


def test_a_manager_whose_success_is_another_layout_is_told_so_and_the_node_stays_cordoned(stage, fleet):
    stage.cluster.machines["node-1"].manager.apply = lambda _config: None
    failed = make(fleet)
    assert failed.rc == 2
    assert "says success of all-1g.5gb-" in failed.out
    assert "and its GPUs have another layout." in failed.out
    assert stage.is_cordoned("node-1")


def test_a_node_whose_manager_is_switched_off_is_refused_before_any_drain(api, stage, fleet):
    patch(stage, {_mig_manager.DEPLOYED: "false"})
    api.forget()
    refused = make(fleet)
    assert refused.rc == 2
    assert "refused (scheduler), node-1:" in refused.out
    assert "switches its MIG manager off: remove it, or set kubernetes_mode to engine." in refused.out
    assert (api.writes, fleet.writes()) == ([], {})


# --- what was left behind -----------------------------------------------------------------------------------------

STUCK = {_mig_manager.STATE: "pending"}
PAUSED = {f"{DEPLOY}device-plugin": _cordon.PAUSED, f"{DEPLOY}nvsm": _cordon.PAUSED, f"{DEPLOY}dcgm": "false"}


def test_a_host_that_is_right_is_mended_where_a_change_has_left_something(api, stage, fleet):
    """All three at once: labels that are paused, a manager that is stuck, a cordon of a rollout that was killed."""
    assert make(fleet).rc == 0
    called = stage.labels("node-1")[_mig_manager.CONFIG]
    cordon = {"run": "killed", "was_unschedulable": False, "drained_for": "all-1g.5gb"}
    patch(stage, {**PAUSED, **STUCK}, {_cordon.ANNOTATION: json.dumps(cordon)}, unschedulable=True)
    fleet.writes()
    api.forget()

    live = make(fleet, "all-1g.5gb", "--check")
    assert "note, node-1:\n  The MIG manager of node node-1 is at work (pending since " in live.out
    time.sleep(2)
    checked = make(fleet, "all-1g.5gb", "--check", kubernetes_manager_timeout=1)
    assert checked.rc == 0, checked.out
    assert "to mend, node-1:" in checked.out
    assert "was cordoned for all-1g.5gb by the run 'killed', and not given back since." in checked.out
    assert "node-1: all-1g.5gb (generated): as wanted; 1 GPU with 7 MIG devices." in checked.out
    assert checked.changed == {"node-1"}
    assert api.writes == []

    # The timeout is also what the manager gets for an answer now.
    mended = make(fleet, kubernetes_manager_timeout=20)
    assert mended.rc == 0, mended.out
    assert mended.changed == {"node-1"}
    labels = stage.labels("node-1")
    assert labels[_mig_manager.CONFIG] == _mig_manager.other_name(called, called)
    assert labels[_mig_manager.STATE] == "success"
    assert (labels[f"{DEPLOY}device-plugin"], labels[f"{DEPLOY}nvsm"], labels[f"{DEPLOY}dcgm"]) == (
        "true",
        "true",
        "false",
    )
    assert (stage.is_cordoned("node-1"), notes(stage)) == (False, {})
    assert fleet.writes() == {}
    again = make(fleet)
    assert again.changed == set()


def test_a_manager_that_failed_while_the_driver_was_away_is_started_anew_where_the_gpus_are_right(api, stage, fleet):
    assert make(fleet).rc == 0
    manager = stage.cluster.machines["node-1"].manager
    manager.without_driver.update(pod["metadata"]["uid"] for pod in stage.pods("node-1", app="nvidia-mig-manager"))
    patch(stage, {_mig_manager.STATE: "failed"})
    fleet.writes()
    api.forget()
    checked = make(fleet, "all-1g.5gb", "--check")
    assert checked.rc == 0, checked.out
    assert "The MIG manager of node node-1 says failed since " in checked.out
    assert checked.changed == {"node-1"}
    assert api.writes == []

    mended = make(fleet)
    assert mended.rc == 0, mended.out
    assert mended.changed == {"node-1"}
    assert stage.labels("node-1")[_mig_manager.STATE] == "success"
    assert stage.settles("node-1", **SEVEN), stage
    assert (stage.is_cordoned("node-1"), notes(stage), fleet.writes()) == (False, {}, {})
    assert make(fleet).changed == set()


# --- the audit ------------------------------------------------------------------------------------------------------


def audit(fleet, label):
    """The audit and, of node-1, what it says of a boot, and its sample of a drift at the next one."""
    files = {"mig_audit_json": "audit.json", "mig_audit_textfile": "audit.prom"}
    ran = fleet.run("audit", mig_profile=label, **files)
    host = json.loads((fleet.folder / "audit.json").read_text())["hosts"]["node-1"]
    drift = re.findall(r'host_boot_drift\{host="node-1"\} (\d)', (fleet.folder / "audit.prom").read_text())
    return ran, host, drift


def test_an_audit_compares_the_layout_and_leaves_the_next_boot_to_the_manager(api, fleet):
    api.forget()
    ran, host, drift = audit(fleet, "all-disabled")
    assert ran.rc == 0, ran.out
    assert (host["state"], host["boot"], drift) == ("match", "elsewhere", [])
    assert "up to the MIG manager of the operator" in ran.out
    ran, host, drift = audit(fleet, "all-1g.5gb")
    assert ran.rc == 2
    assert (host["state"], host["boot"], drift) == ("differ", "elsewhere", [])
    assert "Nothing is remembered" not in ran.out
    ran, host, drift = audit(fleet, "all-2g.6gb")
    assert (host["state"], host["boot"], drift) == ("refused", "elsewhere", [])
    assert (api.requests, state_of(fleet)) == ([], []), "an audit is of hosts, and leaves nothing on them"


def test_an_audit_names_a_layout_that_a_host_remembers_beside_the_manager(fleet):
    engine = {"mig_scheduler": "", "kubernetes_mode": ""}
    assert make(fleet, "all-1g.5gb", **engine, mig_ignore_guards="owner").rc == 0
    have(fleet.simulators["node-1"], gpus(1, mig="3x2g.10gb"))
    ran, host, drift = audit(fleet, "3x2g.10gb")
    assert ran.rc == 2
    assert (host["state"], host["boot"], drift) == ("match", "differ", ["1"])
    assert "run the playbook gpufleet.mig.uninstall on it" in " ".join(ran.out.split())
    assert fleet.run("uninstall", mig_profile="3x2g.10gb").rc == 0
    ran, host, drift = audit(fleet, "3x2g.10gb")
    assert ran.rc == 0, ran.out
    assert host["boot"] == "elsewhere"


# --- a run that is killed -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(1, 7))
def test_wherever_a_run_is_killed_the_next_one_ends_what_it_began(api, stage, fleet, number):
    """Its writes are the cordon, the config map twice, the policy, the label, and what ends the change."""
    running = fleet.start("mig", mig_profile="all-1g.5gb")
    seen = []

    def kill(request):
        if request.is_write:
            seen.append(str(request))
            if len(seen) == number:
                kill_all_of(running.pid)

    api.after_each = kill
    running.communicate()
    api.after_each = None
    assert running.returncode == -signal.SIGKILL, seen

    ended = make(fleet)
    assert ended.rc == 0, ended.out
    assert gpus_of(fleet.simulators["node-1"]) == gpus(1, mig="7x1g.5gb")
    assert stage.settles("node-1", **SEVEN), stage
    assert (stage.is_cordoned("node-1"), notes(stage)) == (False, {})
    assert stage.labels("node-1")[_mig_manager.STATE] == "success"
