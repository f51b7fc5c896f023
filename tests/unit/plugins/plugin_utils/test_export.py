# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""An export asks for what was there, host by host, and nothing that a host said can become a path or a template."""

from __future__ import annotations

import copy
import re
import typing as t

import pytest
import yaml

from ansible_collections.gpufleet.mig.plugins.module_utils.engine import configs
from ansible_collections.gpufleet.mig.plugins.plugin_utils import _export

ENTRY = {"devices": [0], "mig-enabled": True, "mig-devices": {"1g.5gb": 7}}
COMPUTE = {
    "id": 0,
    "profile": "1g.5gb",
    "profile_id": 0,
    "slices": 1,
    "variant": "",
    "placement": {"start": 0, "size": 1},
}
INSTANCE = {
    "id": 7,
    "profile": "1g.5gb",
    "profile_id": 19,
    "slices": 1,
    "placement": {"start": 0, "size": 1},
    "compute_instances": [{**COMPUTE, "uuid": "MIG-1", "processes": [{"pid": 1}]}],
}
GPU: dict[str, t.Any] = {
    "index": 0,
    "uuid": "GPU-1",
    "pci_bus_id": "00000000:07:00.0",
    "name": "NVIDIA A100-SXM4-40GB",
    "mig_capable": True,
    "mig_current": True,
    "mig_pending": True,
    "instances": [INSTANCE],
    "errors": [],
    "layout": "GPU 0 |...|",
}
T4 = {
    **GPU,
    "index": 1,
    "name": "Tesla T4",
    "mig_capable": False,
    "mig_current": None,
    "mig_pending": None,
    "instances": [],
}
NODE: dict[str, t.Any] = {
    "available": True,
    "in_progress": None,
    "persisted": "match",
    "gpus": [GPU],
    "config": [ENTRY],
}


def node(config=None, **of_gpu):
    """A node with one GPU that is as said."""
    return {**copy.deepcopy(NODE), "config": [ENTRY] if config is None else config, "gpus": [{**GPU, **of_gpu}]}


def make(seen, exact=False):
    return _export.make(seen, "/srv/ex/mig-configs.yaml", exact)


def variables(document, name="a"):
    return yaml.safe_load(document["content"][f"host_vars/{name}.yml"])


def labels(document):
    """The config file, checked as the product checks what it is given."""
    data = yaml.safe_load(document["content"]["mig-configs.yaml"])
    configs.check_configs(data)
    return data["mig-configs"]


def test_a_host_asks_for_its_label_and_for_nothing_that_a_group_says():
    document = make({"a": NODE})
    (label,) = labels(document)
    assert labels(document)[label] == [ENTRY]
    assert variables(document) == {
        "mig_profile": label,
        "mig_profile_by_gpu": {},
        "mig_layout": "",
        "mig_configs": "",
        "mig_config_file": "/srv/ex/mig-configs.yaml",
        "mig_gpus": "all",
        "mig_allow_empty": False,
        "mig_expected_gpus": 1,
    }
    assert yaml.safe_load(document["content"]["hosts.yml"]) == {"all": {"hosts": {"a": None}}}
    assert (document["ok"], document["problems"]) == (True, [])
    assert document["msg"] == "1 host exported, with 1 label."


def test_hosts_of_equal_layout_share_a_label_that_names_them():
    other = node([{"devices": [0], "mig-enabled": True, "mig-devices": {"3g.20gb": 2}}])
    document = make({"b": NODE, "a": other, "c": NODE})
    assert [re.sub("-[0-9a-f]{8}$", "", label) for label in labels(document)] == ["export-2x3g.20gb", "export-7x1g.5gb"]
    assert "  # b, c\n  export-7x1g.5gb-" in document["content"]["mig-configs.yaml"]
    assert variables(document, "b") == variables(document, "c") != variables(document, "a")


LABELS: dict[str, list[dict[str, t.Any]]] = {
    "off": [{"devices": [0], "mig-enabled": False, "mig-devices": {}}],
    "empty": [{"devices": [0], "mig-enabled": True, "mig-devices": {}}],
    "1x1g.5gb+me,1x3g.20gb": [{"devices": [0], "mig-enabled": True, "mig-devices": {"1g.5gb+me": 1, "3g.20gb": 1}}],
    "mixed": [ENTRY, {"devices": [1], "mig-enabled": False, "mig-devices": {}}],
}


@pytest.mark.parametrize("said", LABELS)
def test_a_label_says_what_it_is_and_is_the_same_in_every_export(said):
    entries = LABELS[said]
    gpus = [{**GPU, "index": index} for entry in entries for index in entry["devices"]]
    seen = {**NODE, "gpus": gpus, "config": entries}
    (label,) = labels(make({"a": seen}))
    assert re.fullmatch(rf"export-{re.escape(said)}-[0-9a-f]{{8}}", label)
    assert label in labels(make({"z": NODE, "a": seen}))
    assert configs.check_label(label) == label


def test_the_same_devices_on_other_gpus_are_another_label():
    second = {**NODE, "gpus": [{**T4, "index": 0}, {**GPU, "index": 1}], "config": [{**ENTRY, "devices": [1]}]}
    assert len(labels(make({"a": NODE, "b": second}))) == 2


def test_mig_without_instances_is_allowed_where_it_is_so():
    document = make({"a": node(LABELS["empty"], instances=[]), "b": NODE})
    assert variables(document, "a")["mig_allow_empty"]
    assert not variables(document, "b")["mig_allow_empty"]


def test_a_host_without_mig_asks_for_no_mig_and_for_all_its_gpus():
    document = make({"a": {**NODE, "gpus": [{**T4, "index": 0}, T4], "config": []}})
    assert variables(document)["mig_profile"] == "all-disabled"
    assert variables(document)["mig_expected_gpus"] == 2
    assert list(labels(document)) == ["all-disabled"]


def test_a_layout_that_counts_do_not_say_is_kept_with_its_places():
    orphan = {**INSTANCE, "compute_instances": []}
    document = make({"a": {**node([], instances=[orphan, INSTANCE]), "config": []}})
    assert "mig_profile" not in variables(document)
    (saved,) = variables(document)["mig_layout"]
    assert [len(instance["compute_instances"]) for instance in saved["instances"]] == [0, 1]
    assert document["hosts"]["a"] == {"exported": True, "label": "", "exact": True, "msg": ""}


def test_exact_keeps_places_and_boards_and_nothing_that_changes_by_the_day():
    (saved, other) = variables(make({"a": {**NODE, "gpus": [GPU, T4]}}, exact=True))["mig_layout"]
    assert (saved["uuid"], saved["pci_bus_id"], other["mig_capable"]) == ("GPU-1", "00000000:07:00.0", False)
    assert saved["instances"] == [
        {
            **{key: INSTANCE[key] for key in ("profile", "profile_id", "slices", "placement")},
            "compute_instances": [{key: value for key, value in COMPUTE.items() if key != "id"}],
        }
    ]


def test_files_are_the_same_for_the_same_state():
    assert make({"a": NODE, "b": NODE}) == make({"a": NODE, "b": NODE})


LEFT_OUT = {
    "does not answer": ({"unreachable": True, "msg": "no route\nto host"}, "a does not answer: no route?to host."),
    "no driver": (
        {"available": False, "problem": {"message": "nvmlInit failed."}},
        "cannot tell what it has: nvmlInit failed.",
    ),
    "the module failed": (
        {"failed": True, "msg": "sudo wants a password"},
        "cannot tell what it has: sudo wants a password.",
    ),
    "was never asked": ({}, "cannot tell what it has"),
    "says nonsense": ("nonsense", "cannot tell what it has"),
    "in the middle of a change": ({**NODE, "in_progress": {"txid": "1"}}, "is in the middle of a change"),
    "a GPU with errors": (node(errors=[{"call": "x"}]), "cannot tell what GPU 0 has"),
    "a GPU that may have MIG": (node(mig_capable=None), "cannot tell what GPU 0 has"),
    "a mode that cannot be told": (node(mig_current=None), "cannot tell what GPU 0 has"),
    "a mode that waits": (node(mig_pending=False), "waits for a reset or reboot: export it afterwards"),
}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_a_host_whose_state_is_not_certain_is_named_and_left_out(name):
    seen, said = LEFT_OUT[name]
    document = make({"a": seen, "b": NODE})
    assert not document["ok"]
    assert not document["hosts"]["a"]["exported"]
    assert said in document["problems"][0]
    assert document["problems"][0] in document["msg"]
    assert document["msg"].startswith("1 host exported, with 1 label. Not exported: 1,")
    assert set(document["content"]) == {"mig-configs.yaml", "hosts.yml", "host_vars/b.yml"}


@pytest.mark.parametrize(
    "text", ["{{ lookup('pipe', 'id') }}", "{% x %}", "{# x #}", "a\nb: c", "!unsafe 'x'", "x\u2028", "a'b"]
)
@pytest.mark.parametrize("where", ["name", "uuid", "pci_bus_id", "profile", "compute", "config"])
@pytest.mark.parametrize("exact", [False, True])
def test_what_a_host_says_never_becomes_a_template(where, text, exact):
    seen = copy.deepcopy(NODE)
    if where == "profile":
        seen["gpus"][0]["instances"][0]["profile"] = text
    elif where == "compute":
        seen["gpus"][0]["instances"][0]["compute_instances"][0]["profile"] = text
    elif where == "config":
        seen["config"][0]["mig-devices"] = {text: 1}
    else:
        seen["gpus"][0][where] = text
    document = make({"a": seen}, exact)
    assert "is no name of a GPU or profile" in document["msg"]
    assert not any(text in content for content in document["content"].values())


@pytest.mark.parametrize(
    "name", ["../x", "a/b", "/etc/x", ".hidden", "a[1:3]", "a b", "a\nb", "~x", "!x", "x" * 201, "{{ x }}", ""]
)
def test_a_name_that_is_a_path_or_a_pattern_makes_no_file(name):
    document = make({name: NODE})
    assert set(document["content"]) == {"mig-configs.yaml", "hosts.yml"}
    assert "its name cannot be the name of a file" in document["msg"]


@pytest.mark.parametrize("name", ["a.yml", "a.YAML", "a.json"])
def test_a_name_whose_file_would_be_that_of_another_host_makes_no_file(name):
    assert "Ansible would take its file for that of another host" in make({"a": NODE, name: NODE})["msg"]


@pytest.mark.parametrize("name", ["node-01.example.com", "10.0.0.1", "123", "yes", "größe", "_x", "x" * 200])
def test_any_other_name_is_the_name_of_its_file_and_of_its_host(name):
    document = make({name: NODE})
    assert document["ok"]
    assert f"host_vars/{name}.yml" in document["content"]
    assert list(yaml.safe_load(document["content"]["hosts.yml"])["all"]["hosts"]) == [name]


def test_an_export_of_nobody_writes_nothing():
    document = make({})
    assert (document["ok"], document["content"]) == (False, {})
    assert "correct mig_hosts" in document["msg"]


def test_every_file_begins_with_the_mark_that_tells_it_from_files_of_people():
    document = make({"a": NODE, "b": {"unreachable": True}})
    assert all(content.startswith(document["mark"]) for content in document["content"].values())
