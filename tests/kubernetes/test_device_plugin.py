# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The role device_plugin: what it makes is valid, has each option where it belongs, and is made once."""

from __future__ import annotations

import importlib
import json
import re
import stat
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest
import yaml

from ansible_collections.gpufleet.mig.tests.kubernetes.running import environment

ROOT = Path(__file__).resolve().parents[2]
ROLE = ROOT / "roles" / "device_plugin"

models: t.Any = importlib.import_module("kubernetes.client")  # which brings no types

PLUGIN, GFD = "device-plugin.yml.j2", "gfd.yml.j2"
SHARING = {"sharing": {"timeSlicing": {"resources": [{"name": "nvidia.com/gpu", "replicas": 4}]}}}

# What the programs of v0.20.0 read, by their command line's own table.
KNOWN_TO_THE_PLUGIN = {
    *("CDI_ANNOTATION_PREFIX", "CDI_DISABLE_HOOKS", "CDI_FEATURE_FLAGS", "CONFIG_FILE", "DEVICE_DISCOVERY_STRATEGY"),
    *("DEVICE_ID_STRATEGY", "DEVICE_LIST_STRATEGY", "DRIVER_ROOT_CTR_PATH", "FAIL_ON_INIT_ERROR", "GDRCOPY_ENABLED"),
    *(
        "GDS_ENABLED",
        "IMEX_CHANNEL_IDS",
        "IMEX_REQUIRED",
        "KUBELET_SOCKET",
        "MIG_STRATEGY",
        "MOFED_ENABLED",
        "MPS_ROOT",
    ),
    *("NVIDIA_CDI_HOOK_PATH", "NVIDIA_DEV_ROOT", "NVIDIA_DRIVER_ROOT", "PASS_DEVICE_SPECS"),
    "SHARED_DEVICES_ALLOCATION_POLICY",
}
KNOWN_TO_GFD = {
    *("CONFIG_FILE", "DEVICE_DISCOVERY_STRATEGY", "FAIL_ON_INIT_ERROR", "GFD_MACHINE_TYPE_FILE", "GFD_NO_TIMESTAMP"),
    *("GFD_ONESHOT", "GFD_OUTPUT_FILE", "GFD_SLEEP_INTERVAL", "GFD_USE_NODE_FEATURE_API", "MIG_STRATEGY"),
    *("NAMESPACE", "NODE_NAME", "POD_NAME"),
}
KNOWN_TO_THE_RUNTIME = {"NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_MIG_MONITOR_DEVICES"}
# The first level of the values of the chart 0.20.0; what is not there is not looked at by any of its templates.
KNOWN_TO_THE_CHART = {
    *("affinity", "allowDefaultNamespace", "cdi", "compatWithCPUManager", "config", "deviceDiscoveryStrategy"),
    *(
        "deviceIDStrategy",
        "deviceListStrategy",
        "devicePlugin",
        "failOnInitError",
        "fullnameOverride",
        "gdrcopyEnabled",
    ),
    *("gdsEnabled", "gfd", "image", "imagePullSecrets", "migStrategy", "mofedEnabled", "mps", "nameOverride"),
    *("namespaceOverride", "nfd", "nodeSelector", "nvidiaDriverRoot", "podAnnotations", "podSecurityContext"),
    *("priorityClassName", "resources", "runtimeClassName", "securityContext", "selectorLabelsOverride", "tolerations"),
    "updateStrategy",
}

HOSTILE = 'v1"\n  privileged: true\n# {{ 7 * 7 }} ${x} \u2028'
IN_RACK = {"key": "rack", "operator": "In", "values": ["a"]}
CASES: dict[str, dict[str, t.Any]] = {
    **{strategy: {"device_plugin_strategy": strategy} for strategy in ("none", "single", "mixed")},
    "volume-mounts": {"device_plugin_strategy": "none", "device_plugin_device_list_strategy": "envvar, volume-mounts"},
    "cdi": {"device_plugin_device_list_strategy": ["cdi-annotations", "cdi-cri"]},
    "driver root": {"device_plugin_driver_root": "/run/nvidia/driver", "device_plugin_device_list_strategy": "cdi-cri"},
    "specs": {"device_plugin_pass_device_specs": "yes", "device_plugin_device_id_strategy": "index"},
    "context": {"device_plugin_security_context": {"privileged": True}, "device_plugin_gfd_security_context": {}},
    "config": {"device_plugin_config": SHARING},
    "other config": {"device_plugin_config": {**SHARING, "flags": {"migStrategy": "mixed"}}},
    "without gfd": {"device_plugin_gfd": "false"},
    "absent": {"device_plugin_state": "absent"},
    "rolling": {"device_plugin_update_strategy": "RollingUpdate", "device_plugin_max_unavailable": "3"},
    "rolling by percent": {"device_plugin_update_strategy": "RollingUpdate", "device_plugin_max_unavailable": "10%"},
    "pods": {
        "device_plugin_node_selector": {"gpu": "a100"},
        "device_plugin_affinity": {},
        "device_plugin_tolerations": [{"operator": "Exists"}],
        "device_plugin_runtime_class": "nvidia",
        "device_plugin_priority_class": "",
        "device_plugin_image_pull_secrets": "registry, other",
        "device_plugin_resources": {"limits": {"memory": "256Mi"}},
        "device_plugin_gfd_resources": {"requests": {"cpu": "10m"}},
    },
    "affinity": {
        "device_plugin_affinity": {
            "podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "kubernetes.io/hostname"}]
            },
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [IN_RACK]}]
                }
            },
        }
    },
    "names": {
        "device_plugin_namespace": "kube-system",
        "device_plugin_name": "plugin-a100",
        "device_plugin_gfd_name": "gfd-a100",
        "device_plugin_image": "registry.example.com:5000/nvidia/k8s-device-plugin",
        "device_plugin_version": "v0.19.3@sha256:0123",
        "device_plugin_image_pull_policy": "Always",
        "device_plugin_kubelet_dir": "/var/lib/k0s/kubelet",
    },
    "env": {
        "device_plugin_env": {"DP_DISABLE_HEALTHCHECKS": "all", "MIG_STRATEGY": "single", "GDS_ENABLED": True},
        "device_plugin_gfd_env": {"GFD_NO_TIMESTAMP": True},
        "device_plugin_gfd_sleep_interval": "5m",
        "device_plugin_fail_on_init_error": "no",
    },
    "chart": {"device_plugin_chart_values": {"gfd": {"noTimestamp": True}}, "device_plugin_chart_nfd": "no"},
    "empty answers": {
        "device_plugin_device_list_strategy": "",
        "device_plugin_pass_device_specs": "",
        "device_plugin_gfd": "",
        "device_plugin_fail_on_init_error": "",
        "device_plugin_image_pull_secrets": "",
    },
    "hostile": {
        "device_plugin_version": HOSTILE,
        "device_plugin_env": {"A": HOSTILE},
        "device_plugin_config": {"a": HOSTILE},
        "device_plugin_node_selector": {"a": HOSTILE},
    },
}


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, t.Any]]:
    """The objects of each case, by the names of their templates."""
    mixed = {name: {"device_plugin_strategy": "mixed", **variables} for name, variables in CASES.items()}
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("render_role.py"), ROLE],
        check=False,
        input=json.dumps(mixed),
        env=environment(tmp_path_factory.mktemp("home")),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return t.cast("dict[str, dict[str, t.Any]]", json.loads(done.stdout))


def pod(daemonset: dict[str, t.Any]) -> dict[str, t.Any]:
    return t.cast("dict[str, t.Any]", daemonset["spec"]["template"]["spec"])


def container(daemonset: dict[str, t.Any]) -> dict[str, t.Any]:
    (only,) = pod(daemonset)["containers"]
    return t.cast("dict[str, t.Any]", only)


def env(daemonset: dict[str, t.Any]) -> dict[str, t.Any]:
    said = container(daemonset)["env"]
    assert len({each["name"] for each in said}) == len(said), "nothing is said twice"
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in said}


def mounts(daemonset: dict[str, t.Any]) -> dict[str, str]:
    """Where each volume is in the container; every mount has its volume and the other way round."""
    places = {each["name"]: each["mountPath"] for each in container(daemonset)["volumeMounts"]}
    assert sorted(places) == sorted(each["name"] for each in pod(daemonset)["volumes"])
    return places


def host_path(daemonset: dict[str, t.Any], volume: str) -> str:
    (path,) = (each["hostPath"]["path"] for each in pod(daemonset)["volumes"] if each["name"] == volume)
    return t.cast(str, path)


# --- valid objects ---------------------------------------------------------------------------------------------------


def check(value: t.Any, kind: str, where: str) -> None:
    """That a value is of a type of Kubernetes' own description: no field of its own, and none missing."""
    # Both spellings: the client's generator has changed its mind.
    listed, mapped = re.fullmatch(r"[Ll]ist\[(.*)\]", kind), re.fullmatch(r"[Dd]ict[(\[]str, (.*)[)\]]", kind)
    if listed:
        assert isinstance(value, list), where
        for number, each in enumerate(value):
            check(each, listed[1], f"{where}[{number}]")
    elif mapped:
        assert isinstance(value, dict), where
        for name, each in value.items():
            assert isinstance(name, str), where
            check(each, mapped[1], f"{where}.{name}")
    elif kind in ("str", "int", "bool"):
        assert type(value).__name__ == kind, f"{where} is {value!r} and not of the type {kind}"
    elif kind == "object":
        assert isinstance(value, (str, int)), where
    else:
        model = getattr(models, kind)
        named = {name: attribute for attribute, name in model.attribute_map.items()}
        assert isinstance(value, dict), where
        assert set(value) <= set(named), f"{where} has no {set(value) - set(named)}"
        model(**{named[name]: each for name, each in value.items()})  # refuses one without what it must have
        for name, each in value.items():
            check(each, model.openapi_types[named[name]], f"{where}.{name}")


@pytest.mark.parametrize("case", CASES)
def test_every_object_is_one_that_kubernetes_knows(rendered, case):
    kinds = []
    for name, made in rendered[case].items():
        if name.endswith(".yml.j2") and name != "helm-values.yml.j2":
            model = {"RoleBinding": "V1RoleBinding", "Role": "V1Role"}.get(made["kind"], f"V1{made['kind']}")
            check(made, model, name)
            kinds.append(made["kind"])
            assert made["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "gpufleet.mig"
    assert sorted(kinds) == sorted(
        ["Namespace", "ServiceAccount", "ServiceAccount", "ConfigMap", "DaemonSet", "DaemonSet", "Role", "RoleBinding"]
    )


def test_the_check_finds_what_is_wrong():
    good = {"metadata": {"name": "a"}, "spec": {"selector": {}, "template": {"spec": {"containers": [{"name": "a"}]}}}}
    check(good, "V1DaemonSet", "good")
    for wrong in ({"spek": {}}, {"spec": {"selector": {}}}, {"metadata": {"name": 1}}, {"metadata": {"labels": []}}):
        with pytest.raises((AssertionError, ValueError)):
            check({**good, **wrong}, "V1DaemonSet", "wrong")


@pytest.mark.parametrize("case", CASES)
def test_selectors_find_their_own_pods_and_no_others(rendered, case):
    made = rendered[case]
    found = []
    for name in (PLUGIN, GFD):
        selector = made[name]["spec"]["selector"]["matchLabels"]
        labels = made[name]["spec"]["template"]["metadata"]["labels"]
        assert selector.items() <= labels.items()
        found.append(selector)
    assert found[0]["app.kubernetes.io/name"] == "nvidia-device-plugin", "as the role kubernetes looks for it"
    assert found[1]["app.kubernetes.io/name"] == "gpu-feature-discovery"


@pytest.mark.parametrize("case", CASES)
def test_programs_are_told_nothing_that_they_do_not_know(rendered, case):
    said = set(env(rendered[case][PLUGIN])) - set(CASES[case].get("device_plugin_env", ()))
    assert said <= KNOWN_TO_THE_PLUGIN | KNOWN_TO_THE_RUNTIME
    said = set(env(rendered[case][GFD])) - set(CASES[case].get("device_plugin_gfd_env", ()))
    assert said <= KNOWN_TO_GFD | KNOWN_TO_THE_RUNTIME
    assert set(rendered[case]["helm-values.yml.j2"]) <= KNOWN_TO_THE_CHART


def test_what_people_say_is_data(rendered):
    made = rendered["hostile"]
    assert container(made[PLUGIN])["image"] == f"nvcr.io/nvidia/k8s-device-plugin:{HOSTILE}"
    assert env(made[PLUGIN])["A"] == HOSTILE
    assert pod(made[PLUGIN])["nodeSelector"] == {"a": HOSTILE}
    assert yaml.safe_load(made["config.yml.j2"]["data"]["config.yaml"]) == {"a": HOSTILE, "version": "v1"}
    assert made["helm-values.yml.j2"]["image"]["tag"] == HOSTILE


# --- options where they belong ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["none", "single", "mixed"])
def test_both_programs_and_the_chart_have_the_strategy(rendered, strategy):
    made = rendered[strategy]
    for name in (PLUGIN, GFD):
        said = env(made[name])
        assert said["MIG_STRATEGY"] == strategy
        assert said.get("NVIDIA_MIG_MONITOR_DEVICES") == (None if strategy == "none" else "all")
    assert made["helm-values.yml.j2"]["migStrategy"] == strategy


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("none", {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}),
        ("single", {"capabilities": {"add": ["SYS_ADMIN"]}}),
        ("mixed", {"capabilities": {"add": ["SYS_ADMIN"]}}),
        ("volume-mounts", {"capabilities": {"add": ["SYS_ADMIN"]}}),
        ("specs", {"privileged": True}),
        ("context", {"privileged": True}),
    ],
)
def test_the_plugin_may_do_what_it_needs_and_no_more(rendered, case, expected):
    """As NVIDIA's chart decides it."""
    assert container(rendered[case][PLUGIN])["securityContext"] == expected


def test_the_plugin_gets_no_token_of_the_api(rendered):
    assert pod(rendered["mixed"][PLUGIN])["automountServiceAccountToken"] is False
    assert "automountServiceAccountToken" not in pod(rendered["mixed"][GFD])
    rules = rendered["mixed"]["gfd-role.yml.j2"]["rules"]
    assert {resource for rule in rules for resource in rule["resources"]} == {"nodefeatures", "pods"}


def test_devices_are_passed_on_as_it_was_said(rendered):
    assert env(rendered["mixed"][PLUGIN])["DEVICE_LIST_STRATEGY"] == "envvar"
    assert env(rendered["volume-mounts"][PLUGIN])["DEVICE_LIST_STRATEGY"] == "envvar,volume-mounts"
    said = env(rendered["specs"][PLUGIN])
    assert (said["PASS_DEVICE_SPECS"], said["DEVICE_ID_STRATEGY"]) == ("true", "index")
    assert rendered["specs"]["helm-values.yml.j2"]["compatWithCPUManager"] is True
    said = env(rendered["mixed"][PLUGIN])
    assert (said["PASS_DEVICE_SPECS"], said["DEVICE_ID_STRATEGY"]) == ("false", "uuid")


def test_cdi_gets_its_folder_and_the_files_of_the_driver(rendered):
    for case, root in (("cdi", "/"), ("driver root", "/run/nvidia/driver")):
        made = rendered[case][PLUGIN]
        assert mounts(made)["cdi-root"] == "/var/run/cdi"
        assert mounts(made)["driver-root"] == "/driver-root"
        assert host_path(made, "driver-root") == root
        assert env(made)["NVIDIA_DRIVER_ROOT"] == root
        assert rendered[case]["helm-values.yml.j2"]["nvidiaDriverRoot"] == root
    assert mounts(rendered["mixed"][PLUGIN]) == {"device-plugins": "/var/lib/kubelet/device-plugins"}


def test_a_config_is_a_file_of_both_programs_and_another_one_changes_their_pods(rendered):
    made, other, without = rendered["config"], rendered["other config"], rendered["mixed"]
    assert yaml.safe_load(made["config.yml.j2"]["data"]["config.yaml"]) == {"version": "v1", **SHARING}
    for name in (PLUGIN, GFD):
        assert mounts(made[name])["config"] == "/config"
        assert env(made[name])["CONFIG_FILE"] == "/config/config.yaml"
        marks = [each[name]["spec"]["template"]["metadata"]["annotations"] for each in (made, other, without)]
        assert marks[0] != marks[1]
        assert marks[2] == {}
        assert "config" not in mounts(without[name])
    chart = made["helm-values.yml.j2"]["config"]
    assert yaml.safe_load(chart["map"][chart["default"]]) == {"version": "v1", **SHARING}


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("mixed", {"type": "OnDelete"}),
        ("rolling", {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 3}}),
        ("rolling by percent", {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10%"}}),
    ],
)
def test_pods_are_replaced_as_it_was_said(rendered, case, expected):
    for name in (PLUGIN, GFD):
        assert rendered[case][name]["spec"]["updateStrategy"] == expected
    assert rendered[case]["helm-values.yml.j2"]["updateStrategy"] == expected


def test_pods_run_where_and_as_it_was_said(rendered):
    made = rendered["pods"]
    for name in (PLUGIN, GFD):
        spec = pod(made[name])
        assert spec["nodeSelector"] == {"gpu": "a100"}
        assert spec["tolerations"] == [{"operator": "Exists"}]
        assert spec["runtimeClassName"] == "nvidia"
        assert spec["imagePullSecrets"] == [{"name": "registry"}, {"name": "other"}]
        assert "priorityClassName" not in spec
    assert container(made[PLUGIN])["resources"] == {"limits": {"memory": "256Mi"}}
    assert container(made[GFD])["resources"] == {"requests": {"cpu": "10m"}}
    by_default = pod(rendered["mixed"][PLUGIN])
    assert by_default["priorityClassName"] == "system-node-critical"
    assert {"runtimeClassName", "nodeSelector", "imagePullSecrets"}.isdisjoint(by_default)


UNLESS_PAUSED = {"key": "gpufleet.mig/paused", "operator": "DoesNotExist"}


def terms(affinity: dict[str, t.Any]) -> list[list[dict[str, t.Any]]]:
    required = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    return [term["matchExpressions"] for term in required["nodeSelectorTerms"]]


def test_pods_leave_a_node_that_is_paused_whatever_their_affinity_is(rendered):
    """Terms are alternatives: one without it would keep them there."""
    by_default = terms(pod(rendered["mixed"][PLUGIN])["affinity"])
    assert [[each["key"] for each in term] for term in by_default] == [
        ["feature.node.kubernetes.io/pci-10de.present", "gpufleet.mig/paused"],
        ["feature.node.kubernetes.io/cpu-model.vendor_id", "gpufleet.mig/paused"],
        ["nvidia.com/gpu.present", "gpufleet.mig/paused"],
    ]
    assert all(term[-1] == UNLESS_PAUSED for term in by_default)
    for case, expected in (("pods", [[UNLESS_PAUSED]]), ("affinity", [[IN_RACK, UNLESS_PAUSED]])):
        for affinity in (
            pod(rendered[case][PLUGIN])["affinity"],
            pod(rendered[case][GFD])["affinity"],
            rendered[case]["helm-values.yml.j2"]["affinity"],
        ):
            assert terms(affinity) == expected
    assert "podAntiAffinity" in pod(rendered["affinity"][PLUGIN])["affinity"], "the rest stays"


def test_names_and_images_are_those_that_were_said(rendered):
    made = rendered["names"]
    for name, expected in ((PLUGIN, "plugin-a100"), (GFD, "gfd-a100")):
        assert made[name]["metadata"]["name"] == expected
        assert pod(made[name])["serviceAccountName"] == expected
        image = "registry.example.com:5000/nvidia/k8s-device-plugin:v0.19.3@sha256:0123"
        assert (container(made[name])["image"], container(made[name])["imagePullPolicy"]) == (image, "Always")
    assert {
        each["metadata"]["namespace"] for each in made.values() if "metadata" in each and each["kind"] != "Namespace"
    } == {"kube-system"}
    assert host_path(made[PLUGIN], "device-plugins") == "/var/lib/k0s/kubelet/device-plugins"
    assert mounts(made[PLUGIN])["device-plugins"] == "/var/lib/kubelet/device-plugins", "the plugin knows no other"
    binding = made["gfd-role-binding.yml.j2"]
    assert (binding["roleRef"]["name"], binding["subjects"][0]["name"]) == ("gfd-a100", "gfd-a100")
    assert binding["subjects"][0]["namespace"] == "kube-system"


def test_further_variables_come_last_and_are_text(rendered):
    said = env(rendered["env"][PLUGIN])
    assert (said["DP_DISABLE_HEALTHCHECKS"], said["MIG_STRATEGY"], said["GDS_ENABLED"]) == ("all", "single", "True")
    assert said["FAIL_ON_INIT_ERROR"] == "false"
    said = env(rendered["env"][GFD])
    assert (said["GFD_NO_TIMESTAMP"], said["GFD_SLEEP_INTERVAL"]) == ("True", "5m")
    assert said["NODE_NAME"] == {"fieldRef": {"fieldPath": "spec.nodeName"}}


def test_answers_that_were_not_given_are_defaults(rendered):
    assert rendered["empty answers"] == rendered["mixed"]


def test_what_is_said_for_the_chart_alone_comes_last(rendered):
    values = rendered["chart"]["__device_plugin_values"]
    assert values["gfd"]["noTimestamp"] is True
    assert values["gfd"]["enabled"] is True
    assert values["nfd"] == {"enabled": False}


def test_what_is_needed_comes_first_and_goes_last(rendered):
    def order(case: str, wanted: bool) -> list[str]:
        return [
            each["template"].removesuffix(".yml.j2")
            for each in rendered[case]["__device_plugin_order"]
            if each["wanted"] is wanted
        ]

    plugin, gfd = ["device-plugin-account", "device-plugin"], ["gfd-account", "gfd-role", "gfd-role-binding", "gfd"]
    assert order("mixed", True) == plugin + gfd
    assert order("mixed", False) == ["config"]
    assert order("config", True) == ["device-plugin-account", "config", "device-plugin", *gfd]
    assert order("without gfd", True) == plugin
    assert order("without gfd", False) == [*reversed(gfd), "config"]
    assert order("absent", True) == []
    assert order("absent", False) == [*reversed(gfd), "device-plugin", "config", "device-plugin-account"]


def test_every_variable_is_described_with_its_default():
    spec = yaml.safe_load((ROLE / "meta" / "argument_specs.yml").read_text())["argument_specs"]["main"]["options"]
    defaults = yaml.safe_load((ROLE / "defaults" / "main.yml").read_text())
    said = {name: option["default"] for name, option in spec.items() if "default" in option}
    # A mapping that other variables make is none to antsibull-docs; the description says what it is.
    reckoned = {name for name, value in defaults.items() if "{{" in str(value)} - set(said)
    assert reckoned == {"device_plugin_affinity", "device_plugin_auth"}
    assert said == {name: value for name, value in defaults.items() if name not in reckoned}
    page = (ROOT / "docs" / "device-plugin.md").read_text()
    assert [name for name in spec if f"`{name}`" not in page] == []


# --- against an API --------------------------------------------------------------------------------------------------


class Run(t.NamedTuple):
    """How a run of the role ended."""

    code: int
    output: str

    @property
    def changed(self) -> int:
        return sum(int(number) for number in re.findall(r"changed=(\d+)", self.output))


@pytest.fixture
def role(kubeconfig: Path, tmp_path: Path) -> t.Callable[..., Run]:
    """Run the role for a play of these hosts, none of which is ever asked."""

    def run(*options: str, hosts: dict[str, dict[str, t.Any]] | None = None, **variables: t.Any) -> Run:
        inventory = tmp_path / "inventory.json"
        named = hosts or {"gpu01": {}, "gpu02": {}}
        inventory.write_text(json.dumps({"all": {"hosts": named, "vars": {"ansible_connection": "ssh"}}}))
        book = tmp_path / "book.yml"
        play = {"hosts": "all", "gather_facts": False, "become": True, "roles": ["gpufleet.mig.device_plugin"]}
        book.write_text(json.dumps([play]))
        given = {"kubernetes_auth": {"kubeconfig": str(kubeconfig)}, **variables}
        command = ["-m", "ansible", "playbook", "-i", str(inventory), str(book), "-e", json.dumps(given), *options]
        done = subprocess.run(
            [sys.executable, *command],
            check=False,
            cwd=tmp_path,
            env={**environment(tmp_path), "PATH": f"{tmp_path}/bin:{environment(tmp_path)['PATH']}"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return Run(done.returncode, done.stdout)

    return run


SPACE = "/api/v1/namespaces/nvidia-device-plugin"
SETS = "/apis/apps/v1/namespaces/nvidia-device-plugin/daemonsets"


def test_check_do_check_again_do_again_and_remove(api, still, role):
    foretold = role("--check", device_plugin_strategy="mixed")
    assert (foretold.code, foretold.changed, api.writes) == (0, 1, []), foretold.output

    made = role(device_plugin_strategy="mixed")
    assert (made.code, made.changed) == (0, 2), made.output
    assert still.client.find(SPACE)["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "privileged"
    first = still.client.find(f"{SETS}/nvidia-device-plugin")
    assert container(first)["image"].endswith(":v0.20.0")

    api.forget()
    for options in (("--check",), ()):
        again = role(*options, device_plugin_strategy="mixed")
        assert (again.code, again.changed) == (0, 0), again.output
    assert still.client.find(f"{SETS}/nvidia-device-plugin")["spec"] == first["spec"]

    upgraded = role(device_plugin_strategy="none", device_plugin_version="v0.20.1", device_plugin_gfd="no")
    assert (upgraded.code, upgraded.changed) == (0, 1), upgraded.output
    now = still.client.find(f"{SETS}/nvidia-device-plugin")
    assert "NVIDIA_MIG_MONITOR_DEVICES" not in env(now), "what is not said any more is gone"
    assert container(now)["image"].endswith(":v0.20.1")
    assert still.client.find(f"{SETS}/gpu-feature-discovery") is None

    removed = role(device_plugin_state="absent")
    assert (removed.code, removed.changed) == (0, 1), removed.output
    assert still.client.find(f"{SETS}/nvidia-device-plugin") is None
    assert still.client.find(SPACE), "the namespace may have more in it"
    assert role(device_plugin_state="absent").changed == 0


def test_a_device_plugin_of_others_is_named_and_nothing_is_made(api, stage, role):
    stage.node("node-1", **{"nvidia.com/gpu.present": "true"})
    stage.plain("mixed")
    assert stage.settles("node-1", **{"nvidia.com/gpu": 1}), stage
    api.forget()
    refused = role(device_plugin_strategy="mixed")
    assert refused.code != 0
    assert "installs a device plugin too" in " ".join(refused.output.split())
    assert api.writes == []
    beside = role("--check", device_plugin_strategy="mixed", device_plugin_beside_others=True)
    assert (beside.code, beside.changed) == (0, 1), beside.output


WRONG: dict[str, tuple[dict[str, t.Any], str]] = {
    "no strategy": ({"device_plugin_strategy": ""}, "Say none"),
    "a strategy that there is not": ({"device_plugin_strategy": "dual"}, "Say none"),
    "neither yes nor no": ({"device_plugin_gfd": "maybe"}, "device_plugin_gfd is maybe"),
    "a way that there is not": (
        {"device_plugin_device_list_strategy": "envvar,cdi"},
        "There are envvar, volume-mounts",
    ),
    "two strategies": ({"device_plugin_config": {"flags": {"migStrategy": "single"}}}, "Take it out"),
    "MPS": ({"device_plugin_config": {"sharing": {"mps": {}}}}, "control daemon"),
    "not in the chart": ({"device_plugin_method": "helm", "device_plugin_env": {"A": "b"}}, "no value for it"),
    "options of helm": ({"device_plugin_method": "helm", "device_plugin_chart_version": "1 --debug"}, "chart_version"),
    "no file": ({"device_plugin_method": "values"}, "Name that file"),
    "nothing to remove": ({"device_plugin_method": "values", "device_plugin_state": "absent"}, "installs and removes"),
    "waiting without an end": ({"device_plugin_wait": True}, "OnDelete"),
    "no name": ({"device_plugin_name": "No_Name"}, "No_Name"),
    "one name for two": ({"device_plugin_name": "gpu-feature-discovery"}, "different names"),
    "no such update": ({"device_plugin_update_strategy": "Recreate"}, "OnDelete, RollingUpdate"),
}


def test_what_is_wrong_is_said_before_the_cluster_is_asked(api, kubeconfig, tmp_path):
    said = tmp_path / "said.json"
    tasks: list[dict[str, t.Any]] = []
    for case, (variables, _why) in WRONG.items():
        include = {"include_role": {"name": "gpufleet.mig.device_plugin"}, "vars": variables}
        message = "{{ said | default({}) | combine({case: ansible_failed_result.msg}) }}"
        rescue = {"set_fact": {"said": message}, "vars": {"case": case}}
        tasks.append({"block": [include], "rescue": [rescue]})
    tasks.append({"copy": {"content": "{{ said | to_json }}", "dest": str(said)}})
    play = {"hosts": "localhost", "gather_facts": False, "vars": {"device_plugin_strategy": "mixed"}, "tasks": tasks}
    book = tmp_path / "book.yml"
    book.write_text(json.dumps([play]))
    done = subprocess.run(
        [sys.executable, "-m", "ansible", "playbook", "-i", "localhost,", "-c", "local", str(book)],
        check=False,
        env={**environment(tmp_path), "K8S_AUTH_KUBECONFIG": str(kubeconfig)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    messages = json.loads(said.read_text())
    for case, (_variables, why) in WRONG.items():
        assert why in " ".join(messages[case].split()), case
    assert api.requests == []


def test_hosts_that_want_different_strategies_or_none_are_told_how(api, role):
    hosts = {"gpu01": {"device_plugin_strategy": "mixed"}, "gpu02": {"device_plugin_strategy": "single"}}
    refused = role(hosts=hosts)
    assert refused.code != 0
    assert "want mixed and single" in " ".join(refused.output.split())
    unsaid = role()
    assert unsaid.code != 0
    assert 'device_plugin_strategy is ""' in " ".join(unsaid.output.replace("\\", "").split())
    assert api.requests == []


# --- the chart -------------------------------------------------------------------------------------------------------

HELM = """#!{python}
import json, os, sys, pathlib
here = pathlib.Path(__file__).parent
state, words = here / "release.json", sys.argv[1:]
release = json.loads(state.read_text()) if state.exists() else None
with open(here / "log", "a") as log:
    log.write(json.dumps(words) + "\\n")
verbs = [word for word in words if not word.startswith("-")]
def option(name):
    return next((word.partition("=")[2] for word in words if word.startswith("--" + name + "=")), "")
if verbs[:1] == ["version"]:
    print('version.BuildInfo{{Version:"v3.19.0", GitCommit:"0"}}')
elif verbs[:1] == ["plugin"]:
    print("NAME VERSION DESCRIPTION")
elif verbs[:2] == ["show", "chart"]:
    print(json.dumps({{"name": "nvidia-device-plugin", "version": option("version"), "appVersion": option("version")}}))
elif verbs[:1] == ["list"]:
    print(json.dumps([release["about"]] if release else []))
elif verbs[:2] == ["get", "values"]:
    print(json.dumps(release["values"]))
elif verbs[:1] == ["uninstall"]:
    state.unlink()
elif "upgrade" in verbs:
    import yaml
    values = yaml.safe_load(open(next(word[3:] for word in words if word.startswith("-f="))))
    about = {{"name": "nvidia-device-plugin", "namespace": os.environ.get("HELM_NAMESPACE", ""), "revision": 1,
             "status": "deployed", "chart": "nvidia-device-plugin-" + option("version"),
             "app_version": option("version")}}
    state.write_text(json.dumps({{"about": about, "values": values}}))
else:
    sys.exit("this stand-in does not know " + " ".join(words))
"""


def test_the_chart_is_installed_with_the_same_meaning_and_once(api, still, role, tmp_path):
    helm = tmp_path / "bin" / "helm"
    helm.parent.mkdir()
    helm.write_text(HELM.format(python=sys.executable))
    helm.chmod(helm.stat().st_mode | stat.S_IXUSR)
    given = {"device_plugin_method": "helm", "device_plugin_strategy": "single"}

    foretold = role("--check", **given)
    assert (foretold.code, foretold.changed) == (0, 1), foretold.output
    assert not (helm.parent / "release.json").exists()
    made = role(**given)
    assert (made.code, made.changed) == (0, 1), made.output
    release = json.loads((helm.parent / "release.json").read_text())
    assert release["values"]["migStrategy"] == "single"
    assert release["about"]["chart"] == "nvidia-device-plugin-0.20.0"
    again = role(**given)
    assert (again.code, again.changed) == (0, 0), again.output
    removed = role(device_plugin_method="helm", device_plugin_state="absent")
    assert (removed.code, removed.changed) == (0, 1), removed.output
    assert api.writes == []


def test_values_are_a_file_that_is_written_once(api, role, tmp_path):
    given = {
        "device_plugin_method": "values",
        "device_plugin_strategy": "mixed",
        "device_plugin_values_file": "out/values.yaml",
    }
    foretold = role("--check", **given)
    assert (foretold.code, foretold.changed) == (0, 1), foretold.output
    assert not (tmp_path / "out").exists()
    made = role(**given)
    assert (made.code, made.changed) == (0, 1), made.output
    assert yaml.safe_load((tmp_path / "out" / "values.yaml").read_text())["migStrategy"] == "mixed"
    assert role(**given).changed == 0
    (tmp_path / "out" / "values.yaml").write_text("migStrategy: none\n")
    assert role(**given).code != 0, "it is somebody else's now"
    assert api.requests == []
