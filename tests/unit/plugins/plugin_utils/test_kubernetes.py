# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What is foretold for a layout is what NVIDIA's device plugin and gpu-feature-discovery make of it.

tests/kubernetes/recorded.json has what both made of 83 layouts with each strategy: version 0.20.0, unmodified, each on
a simulated node; tests/kubernetes/gpus.py says how to read it.
"""

from __future__ import annotations

import json
import pathlib

import pytest

from ansible_collections.gpufleet.mig.plugins.plugin_utils import _kubernetes
from ansible_collections.gpufleet.mig.plugins.plugin_utils._kubernetes import Gpu, Offer

RECORDED = pathlib.Path(__file__).parents[3] / "kubernetes" / "recorded.json"
SEEN = json.loads(RECORDED.read_text(encoding="utf-8"))


def recorded(is_meant):
    """Cases for a test: groups of GPUs, strategy, and what was seen."""
    return [
        pytest.param(case["gpus"], strategy, seen, id=f"{case['layout']} {strategy}")
        for case in SEEN
        for strategy, seen in case["seen"].items()
        if is_meant(case, strategy, seen)
    ]


def works_shared(case, strategy, seen):
    return "sharing" in case and strategy != "none" and seen["exit"] is None


def breaks_shared(case, _strategy, seen):
    return "sharing" in case and seen["exit"] == 1 and any(on for _count, _name, on, _devices in case["gpus"])


A100 = "NVIDIA A100-SXM4-40GB"


def gpus_of(groups):
    each = [(name, on, devices) for count, name, on, devices in groups for _number in range(count)]
    return [Gpu(index, *gpu) for index, gpu in enumerate(each)]


def a100(index=0, mig=True, **devices):
    return Gpu(index, A100, mig, {name.replace("_", "."): count for name, count in devices.items()})


SEVEN = {"1g_5gb": 7}


@pytest.mark.parametrize(("groups", "strategy", "seen"), recorded(lambda case, *_others: "sharing" not in case))
def test_what_is_foretold_is_what_nvidia_makes_of_it(groups, strategy, seen):
    foretold = _kubernetes.offer(gpus_of(groups), strategy, (0, 20))
    if foretold.refusals:
        assert foretold.resources == {}
        assert is_useless(gpus_of(groups), strategy, seen), foretold.refusals
        return
    assert seen["exit"] is None
    assert foretold.resources == seen["resources"]
    assert _kubernetes.missing_resources(foretold, {**seen["resources"], "cpu": "8"}) == []
    assert _kubernetes.missing_labels(foretold, seen["labels"]) == []


# --- devices that are shared ----------------------------------------------------------------------------------------


def says(labels, allocatable):
    """A node as the API shows it."""
    return {"metadata": {"labels": labels}, "status": {"allocatable": {**allocatable, "cpu": "8"}}}


@pytest.mark.parametrize(("groups", "strategy", "seen"), recorded(works_shared))
def test_of_a_node_that_says_how_it_shares_all_is_foretold(groups, strategy, seen):
    resources = {name: str(count) for name, count in seen["resources"].items()}
    sharing = _kubernetes.sharing_of(says(seen["labels"], resources))
    foretold = _kubernetes.offer(gpus_of(groups), strategy, (0, 20), sharing)
    assert foretold.resources == seen["resources"]
    assert (foretold.refusals, foretold.warnings, foretold.unknown) == ((), (), frozenset())
    assert _kubernetes.missing_resources(foretold, resources) == []
    assert _kubernetes.missing_labels(foretold, seen["labels"]) == []
    fewer = {name: str(count - 1) for name, count in seen["resources"].items()}
    assert len(_kubernetes.missing_resources(foretold, fewer)) == len(resources)


@pytest.mark.parametrize(("groups", "strategy", "seen"), recorded(works_shared))
def test_of_resources_that_are_new_to_a_node_any_multiple_is_right_and_nothing_else(groups, strategy, seen):
    resources = {name: str(count) for name, count in seen["resources"].items()}
    # What is there now has another name, so nothing is said of what comes.
    now = {"nvidia.com/mig-7g.40gb.replicas": "2", "nvidia.com/mig-7g.40gb.sharing-strategy": "time-slicing"}
    foretold = _kubernetes.offer(gpus_of(groups), strategy, (0, 20), _kubernetes.sharing_of(says(now, {})))
    assert _kubernetes.missing_resources(foretold, resources) == []
    assert _kubernetes.missing_labels(foretold, seen["labels"]) == []
    (warning,) = foretold.warnings
    assert "shares devices (time-slicing)" in warning
    for name, count in seen["resources"].items():
        if foretold.resources[name.removesuffix(".shared")] > 1:
            assert _kubernetes.missing_resources(foretold, {**resources, name: str(count + 1)}) != []
        assert _kubernetes.missing_resources(foretold, {**resources, name: "0"}) != []


@pytest.mark.parametrize(("groups", "strategy", "seen"), recorded(breaks_shared))
def test_mps_with_mig_is_refused_since_the_plugin_ends_with_an_error(groups, strategy, seen):
    now = {"nvidia.com/gpu.replicas": "2", "nvidia.com/gpu.sharing-strategy": "mps"}
    sharing = _kubernetes.sharing_of(says(now, {"nvidia.com/gpu": "2"}))
    (refusal,) = _kubernetes.offer(gpus_of(groups), strategy, (0, 20), sharing).refusals
    assert "MPS, which it does not do with MIG devices" in refusal
    assert seen["resources"] == {}


def test_a_node_that_shares_nothing_has_exact_numbers_of_what_it_says_and_no_warning():
    labels = {"nvidia.com/gpu.replicas": "0", "nvidia.com/mig-1g.5gb.replicas": "1"}
    sharing = _kubernetes.sharing_of(says(labels, {"nvidia.com/mig-1g.5gb": "7"}))
    foretold = _kubernetes.offer([a100(**SEVEN)], "mixed", (0, 20), sharing)
    assert (foretold.resources, foretold.warnings) == ({"nvidia.com/mig-1g.5gb": 7}, ())
    assert _kubernetes.missing_resources(foretold, {"nvidia.com/mig-1g.5gb": "14"}) != []


def is_useless(gpus, strategy, seen):
    """Whether a node is rightly refused: what NVIDIA's components do with it, or what we want nobody to have."""
    breaks = seen["exit"] == 1 or seen["labels"].get("nvidia.com/gpu.product", "").endswith("-MIG-INVALID")
    whole_gpus_that_cannot_be_used = strategy == "none" and any(gpu.mig for gpu in gpus)
    nothing_of_a_gpu = any(gpu.mig and not gpu.devices for gpu in gpus)
    partial = any(profile.startswith(("1c", "2c", "4c")) for gpu in gpus for profile in gpu.devices)
    return breaks or whole_gpus_that_cannot_be_used or nothing_of_a_gpu or partial


def test_all_kinds_of_layouts_were_seen():
    unshared = [case for case in SEEN if "sharing" not in case]
    answers = {(strategy, seen["exit"]) for case in unshared for strategy, seen in case["seen"].items()}
    assert {("none", None), ("single", None), ("single", 1), ("mixed", None), ("mixed", 1)} <= answers
    assert sum(len(case["seen"]) for case in unshared) == 249


# Seen with 0.19.3.
@pytest.mark.parametrize(
    ("devices", "resources"),
    [
        ({"1g.5gb+me": 1, "1g.5gb": 6}, {"nvidia.com/mig-1g.5gb": 7}),
        ({"1g.24gb+me.all": 1, "1g.24gb-me": 3}, {"nvidia.com/mig-1g.24gb": 4}),
        ({"1g.24gb+gfx": 1, "1g.24gb": 3}, {"nvidia.com/mig-1g.24gb": 4}),
    ],
)
def test_a_device_plugin_before_0_20_has_one_resource_for_all_kinds_of_a_profile_and_that_is_told(devices, resources):
    gpus = [Gpu(0, "a", True, devices)]
    old = _kubernetes.offer(gpus, "mixed", (0, 19))
    assert old.resources == resources
    assert "as the plain profile, so that pods cannot ask for it" in old.warnings[0]
    unknown = _kubernetes.offer(gpus, "mixed", None)
    assert unknown.resources == _kubernetes.offer(gpus, "mixed", (0, 20)).resources
    assert "cannot be told from its image" in unknown.warnings[0]
    assert _kubernetes.offer(gpus, "mixed", (0, 20)).warnings == ()


@pytest.mark.parametrize(
    ("gpus", "strategy", "words"),
    [
        ([a100(**SEVEN), a100(1, False)], "none", "MIG is on for GPU 0, and with the strategy none"),
        ([a100(), a100(1), a100(2, **SEVEN)], "single", "GPUs 0, 1 would have MIG on and no MIG device"),
        ([a100(**SEVEN), a100(1)], "mixed", "offers nothing of it"),
        ([a100(**{"1c_3g_20gb": 2})], "mixed", "smaller than their GPU instance (1c.3g.20gb)"),
        ([a100(**SEVEN), a100(1, False)], "single", f"GPU 1 ({A100}) would have no MIG beside GPUs that do"),
        ([a100(**SEVEN), a100(1, **{"2g_10gb": 3})], "single", "2 kinds (1g.5gb, 2g.10gb)"),
        ([a100(**SEVEN), Gpu(1, "NVIDIA H100", True, {"1g.5gb": 7})], "single", "2 models of GPU"),
    ],
)
def test_a_layout_that_a_strategy_cannot_have_is_refused_with_the_gpu_and_what_to_choose(gpus, strategy, words):
    (refusal,) = _kubernetes.offer(gpus, strategy).refusals
    assert words in refusal
    assert any(word in refusal for word in ("choose", "give it instances"))


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("nvcr.io/nvidia/k8s-device-plugin:v0.20.0", (0, 20)),
        ("registry.example:5000/k8s-device-plugin:v0.17.1-ubi9", (0, 17)),
        ("k8s-device-plugin:0.14", (0, 14)),
        ("k8s-device-plugin:v1.2.3@sha256:0123", (1, 2)),
        ("k8s-device-plugin", None),
        ("registry.example:5000/k8s-device-plugin", None),
        ("k8s-device-plugin:latest", None),
        ("k8s-device-plugin@sha256:0123", None),
        ("", None),
    ],
)
def test_the_version_of_the_plugin_is_that_of_its_image(image, version):
    assert _kubernetes.version_of(image) == version


def test_gpus_are_read_from_results_brief_or_not():
    whole = {
        "gpu": 1,
        "name": A100,
        "mig_current": True,
        "instances": [{"compute_instances": [{"profile": "1g.5gb"}]}, {"compute_instances": []}],
    }
    brief = {"gpu": 1, "name": A100, "mig_current": True, "devices": {"1g.5gb": 1}}
    without_mig = {"index": 0, "name": "Tesla T4", "mig_current": None, "instances": []}
    assert _kubernetes.gpus_of([without_mig, whole]) == [
        Gpu(0, "Tesla T4", None, {}),
        Gpu(1, A100, True, {"1g.5gb": 1}),
    ]
    assert _kubernetes.gpus_of([brief]) == _kubernetes.gpus_of([whole])


WANTED = Offer(
    resources={"nvidia.com/mig-1g.5gb": 7},
    labels={"nvidia.com/mig.strategy": "mixed", "nvidia.com/mig-1g.5gb.count": "7"},
)


def test_a_resource_that_the_kubelet_keeps_with_zero_is_none_and_is_named():
    kept = {"nvidia.com/mig-1g.5gb": "7", "nvidia.com/gpu": "0", "cpu": "64"}
    assert _kubernetes.missing_resources(WANTED, kept) == []
    assert _kubernetes.stale_resources(WANTED, kept) == ["nvidia.com/gpu"]


@pytest.mark.parametrize(
    ("allocatable", "missing"),
    [
        ({}, ["nvidia.com/mig-1g.5gb is 0 and not 7"]),
        ({"nvidia.com/mig-1g.5gb": "0"}, ["nvidia.com/mig-1g.5gb is 0 and not 7"]),
        (
            {"nvidia.com/mig-1g.5gb": "6", "nvidia.com/gpu": 1},
            ["nvidia.com/gpu is 1 and not 0", "nvidia.com/mig-1g.5gb is 6 and not 7"],
        ),
    ],
)
def test_what_is_missing_or_too_much_is_told(allocatable, missing):
    assert _kubernetes.missing_resources(WANTED, allocatable) == missing


def test_labels_of_before_are_told():
    before = {"nvidia.com/mig.strategy": "single", "nvidia.com/mig-2g.10gb.count": "3", "example/other": "x"}
    assert _kubernetes.missing_labels(WANTED, before) == [
        "nvidia.com/mig.strategy is single and not mixed",
        "nvidia.com/mig-1g.5gb.count is not there and not 7",
        "nvidia.com/mig-2g.10gb.count is 3 and no such device is there",
    ]


def test_resources_in_words():
    assert _kubernetes.in_words({"nvidia.com/gpu": 1, "nvidia.com/mig-1g.5gb": 7}) == (
        "1 nvidia.com/gpu, 7 nvidia.com/mig-1g.5gb"
    )
    assert _kubernetes.in_words({}) == "0 devices"


# --- what a node says ---------------------------------------------------------------------------------------------


def pod(name="plugin-1", node="n1", ready="True", image="k8s-device-plugin:v0.20.0", **container):
    return {
        "metadata": {"namespace": "gpu", "name": name},
        "spec": {"nodeName": node, "containers": [{"image": image, **container}]},
        "status": {"conditions": [{"type": "Ready", "status": ready}]},
    }


@pytest.mark.parametrize(
    ("container", "strategy"),
    [
        ({"env": [{"name": "MIG_STRATEGY", "value": "mixed"}]}, "mixed"),
        ({"args": ["--mig-strategy=single"]}, "single"),
        ({"command": ["nvidia-device-plugin", "--mig-strategy", "none"]}, "none"),
        ({"args": ["--mig-strategy=single"], "env": [{"name": "MIG_STRATEGY", "value": "mixed"}]}, "single"),
        ({"args": ["--mig-strategy"]}, ""),
        ({"env": [{"name": "MIG_STRATEGY", "valueFrom": {}}]}, ""),
        ({}, ""),
    ],
)
def test_the_strategy_is_what_the_plugin_of_the_node_was_started_with(container, strategy):
    others = [pod(node="n2", args=["--mig-strategy=none"])]
    plugin = _kubernetes.plugin_of([*others, pod(**container)], "n1")
    assert plugin == ("gpu/plugin-1", True, strategy, (0, 20), strategy, (0, 20))


def test_of_two_pods_of_a_node_the_one_that_is_ready_counts():
    pods = [pod("old", ready="False", args=["--mig-strategy=none"]), pod("new", args=["--mig-strategy=mixed"])]
    assert _kubernetes.plugin_of(pods, "n1").pod == "gpu/new"
    assert _kubernetes.plugin_of(pods, "n3") is None


def test_the_next_pod_of_a_node_is_as_its_daemonset_says():
    """With the update strategy OnDelete the pod that is there goes on as it was."""
    template = {"spec": {"containers": [{"image": "k8s-device-plugin:v0.21.0", "args": ["--mig-strategy=single"]}]}}
    there = pod(args=["--mig-strategy=mixed"])
    there["metadata"]["ownerReferences"] = [{"kind": "DaemonSet", "uid": "a"}]
    daemonsets = {"a": {"spec": {"template": template}}, "b": {"spec": {"template": {}}}}
    plugin = _kubernetes.plugin_of([there], "n1", daemonsets)
    assert plugin == ("gpu/plugin-1", True, "mixed", (0, 20), "single", (0, 21))


def node(labels=None, **allocatable):
    named = {f"nvidia.com/{name.replace('__', '-').replace('_', '.')}": count for name, count in allocatable.items()}
    return {"metadata": {"name": "n1", "labels": labels or {}}, "status": {"allocatable": named}}


def with_strategy(strategy):
    return _kubernetes.Plugin("gpu/plugin-1", True, strategy, (0, 20), strategy, (0, 20))


MIXED = with_strategy("mixed")
OFF = [a100(mig=False)]


def test_a_plan_comes_with_what_the_node_offers_before_and_after():
    says = _kubernetes.says("n1", node(gpu="1"), MIXED, OFF, [a100(**SEVEN)])
    assert (says.strategy, says.refusals, says.missing) == ("mixed", (), ())
    assert says.before.resources == {"nvidia.com/gpu": 1}
    assert says.after.resources == {"nvidia.com/mig-1g.5gb": 7}


def test_a_plan_goes_by_the_strategy_that_the_next_plugin_has():
    goes_over = MIXED._replace(next_strategy="single")
    says = _kubernetes.says("n1", node(mig__1g_5gb="7"), goes_over, [a100(**SEVEN)], [a100(**SEVEN)])
    assert (says.strategy, says.refusals, says.missing) == ("single", (), ())
    assert (says.before.resources, says.after.resources) == ({"nvidia.com/mig-1g.5gb": 7}, {"nvidia.com/gpu": 7})
    (refusal,) = _kubernetes.says("n1", node(), goes_over, OFF, [a100(**{"1g_5gb": 2, "2g_10gb": 1})]).refusals
    assert "choose the strategy mixed" in refusal
    (refusal,) = _kubernetes.says("n1", node(), goes_over, OFF, OFF, "mixed").refusals
    assert "runs with the strategy single, and kubernetes_strategy is mixed" in refusal


def test_a_node_that_does_not_offer_what_it_has_is_told():
    says = _kubernetes.says("n1", node(gpu="0"), MIXED, OFF, OFF)
    assert says.missing == ("nvidia.com/gpu is 0 and not 1",)


@pytest.mark.parametrize(
    ("seen", "plugin", "strategy", "words"),
    [
        (None, MIXED, "", "Kubernetes has no node n1: set kubernetes_node"),
        (node(), None, "", "node n1, which has no device plugin, makes of MIG cannot be told,"),
        (
            node(),
            with_strategy(""),
            "",
            "the device plugin of node n1 (gpu/plugin-1) makes of MIG",
        ),
        (
            node(),
            with_strategy("both"),
            "",
            "is 'both', and must be one of none, single, mixed",
        ),
        (node(), MIXED, "single", "runs with the strategy mixed, and kubernetes_strategy is single"),
        (
            node(),
            with_strategy("none"),
            "",
            "with the strategy none a container would get a whole GPU",
        ),
    ],
)
def test_a_node_that_cannot_have_the_layout_or_of_which_too_little_is_known_is_refused(seen, plugin, strategy, words):
    (refusal,) = _kubernetes.says("n1", seen, plugin, OFF, [a100(**SEVEN)], strategy).refusals
    assert words in refusal


def test_without_a_plugin_the_label_of_the_node_or_people_say_the_strategy():
    labelled = node({"nvidia.com/mig.strategy": "mixed"})
    assert _kubernetes.says("n1", labelled, None, OFF, OFF).strategy == "mixed"
    assert _kubernetes.says("n1", node(), None, OFF, OFF, "single").strategy == "single"


# --- which machine a node is -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "machine"),
    [
        ({}, {"machine_id": "m", "boot_id": "b"}),
        ({"machineID": "m", "bootID": "b"}, {}),
        ({"machineID": "m", "bootID": "b"}, {"machine_id": "m", "boot_id": "b"}),
        ({"machineID": "m", "bootID": "before"}, {"machine_id": "m", "boot_id": "b"}),
        ({"machineID": "of a kubelet in a container", "bootID": "b"}, {"machine_id": "m", "boot_id": "b"}),
        ({"machineID": "m"}, {"machine_id": "", "boot_id": "b"}),
    ],
)
def test_a_node_may_be_the_host_where_one_name_is_the_same_or_none_can_be_compared(said, machine):
    assert _kubernetes.of_another_machine("n", {"status": {"nodeInfo": said}}, machine) == ""
    assert _kubernetes.of_another_machine("n", None, machine) == ""


@pytest.mark.parametrize(
    ("said", "machine", "words"),
    [
        ({"machineID": "m", "bootID": "b"}, {"machine_id": "x", "boot_id": "y"}, "(m there, x here)"),
        ({"machineID": "m"}, {"machine_id": "x", "boot_id": "y"}, "(m there, x here)"),
        ({"machineID": "m", "bootID": "b"}, {"machine_id": "", "boot_id": "y"}, "(b there, y here)"),
    ],
)
def test_a_node_is_another_machine_where_no_name_is_the_same(said, machine, words):
    assert words in _kubernetes.of_another_machine("n", {"status": {"nodeInfo": said}}, machine)
