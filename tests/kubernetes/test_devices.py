# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""kubernetes_devices: a node offers exactly the devices that it has, or it is said what is missing and why."""

from __future__ import annotations

import collections
import math
import threading
import typing as t

import pytest

from ansible_collections.gpufleet.mig.tests.kubernetes.gpus import gpus, shared

MODELS = {"a100-sxm4-40gb": "NVIDIA A100-SXM4-40GB"}
SELECTORS = {"plugin_selector": ["app=nvidia-device-plugin"], "discovery_selector": "app=gpu-discovery"}
WHOLE = {"nvidia.com/gpu": 1}
SEVEN = {"nvidia.com/mig-1g.5gb": 7}


def as_results_have_them(layout):
    """GPUs as a brief plan of mig_config has them."""
    return [
        {
            "gpu": index,
            "name": MODELS[gpu.board],
            "mig_current": gpu.mig is not None,
            "devices": dict(collections.Counter(gpu.mig or ())),
        }
        for index, gpu in enumerate(layout)
    ]


@pytest.fixture
def devices(play, kubeconfig, stage):
    """Runs kubernetes_devices for what the node has, once or several times."""

    def run(times: int = 1, check: bool = False, **options: t.Any) -> t.Any:
        asked = {
            "name": "node-1",
            "gpus": as_results_have_them(stage.gpus["node-1"]),
            "auth": {"kubeconfig": str(kubeconfig)},
            "timeout": 20,
            **SELECTORS,
            **options,
        }
        results = play(*[{"gpufleet.mig.kubernetes_devices": asked}] * times, check=check)
        return results if times > 1 else results[0]

    return run


def test_check_do_and_do_again_after_a_layout_change(api, stage, devices):
    stage.node("node-1")
    stage.plain("mixed")
    assert stage.settles("node-1", **WHOLE)
    stage.gpus["node-1"] = gpus(1, mig="7x1g.5gb")
    assert stage.allocatable("node-1") == {"nvidia.com/gpu": "1"}, "a plugin does not see a change"
    api.forget()

    foretold = devices(check=True)
    assert foretold["changed"]
    assert foretold["resources"] == SEVEN
    assert api.writes == []

    first, second = devices(times=2)
    assert (first["changed"], second["changed"]) == (True, False)
    assert first["msg"] == "Node node-1 offers 7 nvidia.com/mig-1g.5gb."
    assert first["stale"] == ["nvidia.com/gpu"]
    # One after the other, and the plugin first.
    assert ["nvidia-device-plugin" in first["restarted"][0], "gpu-discovery" in first["restarted"][1]] == [True, True]
    assert stage.allocatable("node-1") == {"nvidia.com/gpu": "0", "nvidia.com/mig-1g.5gb": "7"}
    assert stage.labels("node-1")["nvidia.com/mig-1g.5gb.count"] == "7"
    assert not devices(check=True)["changed"]


def test_a_node_that_shares_its_devices_offers_what_it_has_and_so_it_does_when_they_are_others(stage, devices):
    machine = stage.node("node-1")
    machine.outcome = shared(mig_1g_5gb=2, gpu=3)
    stage.plain("mixed")
    assert stage.settles("node-1", **{"nvidia.com/gpu": 3})
    assert devices(check=True)["resources"] == {"nvidia.com/gpu": 3}
    assert not devices(check=True)["changed"]
    stage.gpus["node-1"] = gpus(1, mig="7x1g.5gb")
    first, second = devices(times=2)
    assert not first.get("failed"), first
    assert (first["changed"], second["changed"]) == (True, False)
    assert second["msg"] == "Node node-1 offers 14 nvidia.com/mig-1g.5gb."


def test_devices_that_were_replaced_by_others_of_the_same_profile_are_offered_by_a_restart(stage, devices):
    stage.node("node-1", gpus(1, mig="7x1g.5gb"))
    stage.plain("mixed")
    assert stage.settles("node-1", **SEVEN)
    before = {pod["metadata"]["uid"] for pod in stage.pods("node-1")}
    assert devices(restart=True)["changed"]
    assert before.isdisjoint(pod["metadata"]["uid"] for pod in stage.pods("node-1"))


def test_a_node_goes_over_to_the_strategy_that_its_daemonset_has_by_now(stage, devices):
    """With OnDelete a plugin has the strategy that it was started with until somebody deletes its pod."""
    stage.node("node-1", gpus(1, mig="7x1g.5gb"))
    stage.plain("mixed")
    assert stage.settles("node-1", **SEVEN)
    stage.next_pods("single")
    assert stage.settles("node-1", **SEVEN), "nobody deleted a pod"
    gone_over = devices(restart=True)
    assert gone_over["resources"] == {"nvidia.com/gpu": 7}
    assert stage.labels("node-1")["nvidia.com/gpu.product"] == "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb"
    assert stage.settles("node-1", **{"nvidia.com/gpu": 7})


def test_only_the_pods_of_this_node_are_touched(stage, devices):
    stage.node("node-1")
    stage.node("node-2")
    stage.plain("mixed")
    assert stage.settles("node-2", **WHOLE)
    assert stage.settles("node-1", **WHOLE)
    others = {pod["metadata"]["uid"] for pod in stage.pods("node-2")}
    stage.gpus["node-1"] = gpus(1, mig="7x1g.5gb")
    assert devices()["changed"]
    assert {pod["metadata"]["uid"] for pod in stage.pods("node-2")} == others


def test_a_plugin_that_does_not_start_is_a_verdict_of_its_own(stage, devices):
    """What is told to be there is not there: the layout of a node that mixes profiles, and a plugin for single."""
    machine = stage.node("node-1", gpus(1, mig="7x1g.5gb"))
    stage.plain("single")
    assert stage.settles("node-1", **{"nvidia.com/gpu": 7})
    told = as_results_have_them(stage.gpus["node-1"])
    stage.gpus["node-1"] = gpus(1, mig="2x1g.5gb,1x2g.10gb,1x3g.20gb")
    machine.crash_pause = math.inf
    failed = devices(gpus=told, restart=True, timeout=3)
    assert failed["failed"]
    assert "The layout of node node-1 is right, and Kubernetes does not offer it after 3 s" in failed["msg"]
    assert "is not ready (nvidia-device-plugin-ctr: " in failed["msg"]


def test_a_layout_that_the_strategy_cannot_have_is_told_before_any_restart(api, stage, devices):
    stage.node("node-1", gpus(1, mig="7x1g.5gb"))
    stage.plain("single")
    assert stage.settles("node-1", **{"nvidia.com/gpu": 7})
    stage.gpus["node-1"] = gpus(1, mig="2x1g.5gb,1x2g.10gb,1x3g.20gb")
    api.forget()
    failed = devices()
    assert failed["failed"]
    assert "choose the strategy mixed" in failed["msg"]
    assert api.writes == []


def test_a_node_without_a_device_plugin_is_told_which_labels_were_looked_for(stage, devices):
    stage.node("node-1")
    failed = devices(strategy="mixed", timeout=2)
    assert failed["failed"]
    assert "no device plugin runs there that could offer it" in failed["msg"]
    assert "app=nvidia-device-plugin" in failed["msg"]


def test_a_plugin_whose_daemonset_has_not_made_it_yet_is_waited_for(stage, devices):
    """As after a pause: the label is there again, and the pod not yet."""
    stage.node("node-1", gpus(1, mig="7x1g.5gb"))
    maker = threading.Timer(4, lambda: stage.plain("mixed"))
    maker.start()
    assert devices(strategy="mixed")["resources"] == SEVEN
    maker.join()
    assert stage.settles("node-1", **SEVEN)
