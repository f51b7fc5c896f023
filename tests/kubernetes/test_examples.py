# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The files of examples/kubernetes: groups, variables that roles know, and the playbook for the device plugin."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from ansible_collections.gpufleet.mig.tests.fleet.fleet import Fleet
from ansible_collections.gpufleet.mig.tests.kubernetes.gpus import gpus
from ansible_collections.gpufleet.mig.tests.kubernetes.hosts import gpus_of, have
from ansible_collections.gpufleet.mig.tests.kubernetes.running import ROOT, environment, kill_all_of

EXAMPLE = ROOT / "examples/kubernetes"
ROLES = ("mig", "kubernetes", "device_plugin")


def hosts(home: Path) -> dict[str, dict[str, object]]:
    """The variables of each host, as Ansible reads them."""
    command = [sys.executable, "-m", "ansible", "inventory", "-i", str(EXAMPLE / "inventory"), "--list"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment(home))
    found: dict[str, dict[str, object]] = json.loads(done.stdout)["_meta"]["hostvars"]
    return found


def known() -> set[str]:
    names = {"mig_serial"}  # of the playbook
    for role in ROLES:
        specs = yaml.safe_load((ROOT / f"roles/{role}/meta/argument_specs.yml").read_text())["argument_specs"]
        names |= {name for spec in specs.values() for name in spec["options"]}
    return names


def test_every_host_of_the_inventory_is_a_node_and_has_variables_that_there_are(tmp_path):
    found = hosts(tmp_path)
    assert len(found) == 12
    for variables in found.values():
        assert variables["mig_scheduler"] == "kubernetes"
        assert variables["kubernetes_auth"] == {"context": "production"}
        ours = {name for name in variables if name.startswith(("mig_", "kubernetes_", "device_plugin_"))}
        assert ours <= known()
    assert found["train01.example.com"]["kubernetes_mode"] == "operator"
    assert found["infer08.example.com"]["device_plugin_strategy"] == "mixed"


@pytest.fixture
def fleet(stage, kubeconfig, tmp_path):
    """A host that is a node with an A100."""
    (tmp_path / "fleet").mkdir()
    made = Fleet(tmp_path / "fleet", {"node-1": "1xa100-sxm4-40gb"})
    simulator = made.simulators["node-1"]
    stage.node("node-1", lambda: gpus_of(simulator))
    made.group(
        "kubernetes_without_operator",
        "node-1",
        kubernetes_node="node-1",
        kubernetes_auth={"kubeconfig": str(kubeconfig)},
    )
    return made


def run(fleet, *words, **variables):
    return fleet.run(str(EXAMPLE / "device-plugin.yml"), *words, **variables)


def test_the_playbook_installs_the_device_plugin_once_and_removes_it(api, stage, fleet):
    api.forget()
    checked = run(fleet, "--check", device_plugin_strategy="mixed")
    assert checked.rc == 0, checked.out
    assert api.writes == []

    ran = run(fleet, device_plugin_strategy="mixed")
    assert ran.rc == 0, ran.out
    assert stage.settles("node-1", **{"nvidia.com/gpu": 1}), stage
    again = run(fleet, device_plugin_strategy="mixed")
    assert (again.rc, again.changed) == (0, set()), again.out

    removed = run(fleet, device_plugin_strategy="mixed", device_plugin_state="absent")
    assert removed.rc == 0, removed.out
    assert stage.cluster.wait_for(lambda: stage.pods("node-1") == []), stage


def test_a_node_whose_layout_the_strategy_cannot_have_is_not_drained_for_it(api, stage, fleet):
    assert run(fleet, device_plugin_strategy="mixed").rc == 0
    simulator = fleet.simulators["node-1"]
    have(simulator, gpus(1, mig="2x1g.5gb,1x2g.10gb,1x3g.20gb"))
    api.forget()
    ran = run(fleet, device_plugin_strategy="single")
    assert ran.rc == 2
    assert "choose the strategy mixed" in " ".join(ran.out.split())
    assert not stage.is_cordoned("node-1")
    assert gpus_of(simulator)[0].mig is not None


def test_a_host_that_is_no_node_is_told_so_and_nothing_is_installed(api, fleet):
    api.forget()
    ran = run(fleet, device_plugin_strategy="mixed", kubernetes_node="node-9")
    assert ran.rc == 2
    assert "Kubernetes has no node node-9: set kubernetes_node" in " ".join(ran.out.split())
    assert api.writes == []


def test_a_node_that_a_killed_run_left_cordoned_is_given_back_by_the_next_one(api, stage, fleet):
    assert run(fleet, device_plugin_strategy="mixed").rc == 0
    assert stage.settles("node-1", **{"nvidia.com/gpu": 1}), stage
    running = fleet.start(str(EXAMPLE / "device-plugin.yml"), device_plugin_strategy="single")
    restarted = []

    def kill(request):
        """When plugin and discovery have been told to start anew, with the other strategy."""
        if request.verb == "delete" and "/pods/" in request.path:
            restarted.append(request.path)
            if len(restarted) == 2:
                kill_all_of(running.pid)

    api.after_each = kill
    running.communicate()
    api.after_each = None
    assert (running.returncode, stage.is_cordoned("node-1")) == (-signal.SIGKILL, True), restarted

    ended = run(fleet, device_plugin_strategy="single")
    assert (ended.rc, stage.is_cordoned("node-1")) == (0, False), ended.out
    again = run(fleet, device_plugin_strategy="single")
    assert (again.rc, again.changed) == (0, set()), again.out
