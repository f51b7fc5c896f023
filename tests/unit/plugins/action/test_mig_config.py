# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The controller's half of mig_config: files are read here, survey text becomes data here."""

from __future__ import annotations

import json

import pytest
import yaml

from ansible_collections.gpufleet.mig.plugins.action.mig_config import ActionModule

FILE = """\
version: v1
mig-configs:
  halves:
    - devices: all
      mig-enabled: true
      mig-devices: {3g.20gb: 2}
"""
LABELS = {"halves": [{"devices": "all", "mig-enabled": True, "mig-devices": {"3g.20gb": 2}}]}

BAD_FILES = {
    "wrong version": (FILE.replace("v1", "v2"), "version"),
    "no version": (FILE.replace("version: v1\n", ""), "no version"),
    "no labels": ("version: v1\n", "mig-configs"),
    "a list": ("- version: v1\n", "must be a mapping, not a list"),
    "text": ("halves\n", "must be a mapping, not text 'halves'"),
    "empty": ("", "must be a mapping, not nothing"),
    "labels are a list": ("version: v1\nmig-configs: [halves]\n", "must be a mapping, not a list"),
    "count is text": (FILE.replace("3g.20gb: 2", "3g.20gb: two"), "text 'two'"),
    "negative count": (FILE.replace("3g.20gb: 2", "3g.20gb: -2"), "-2"),
    "unknown key": (FILE.replace("mig-devices", "mig-device"), "'mig-device'"),
    "tab": (FILE.replace("  halves", "\thalves"), "line 3 has a tab; indent with spaces"),
    "not YAML": ("{version: v1", "is not YAML"),
    "key twice": (FILE + "  halves: []\n", "has the key 'halves' twice, again in line 7"),
    "anchor in itself": ("version: v1\nmig-configs: &a\n  x: *a\n", "inside its own anchor"),
    "tag": (FILE.replace("v1", "!!python/name:os.system v1"), "uses the tag"),
    "too large": (FILE + "#" * 1024 * 1024, "at most 1048576 bytes (1 MiB) are read"),
}


def write(stage, name, text):
    (stage.folder / name).write_text(text)


def test_a_config_file_beside_the_playbook_reaches_the_module_as_data(stage):
    write(stage, "files/site.yaml", FILE)
    result = stage.run(ActionModule, label="halves", config_file="site.yaml")
    assert not result.get("failed")
    assert stage.calls == [{"label": "halves", "configs": {"version": "v1", "mig-configs": LABELS}}]


def test_a_config_file_is_also_looked_for_where_the_command_was_started(stage):
    write(stage, "here/site.yaml", FILE)
    assert not stage.run(ActionModule, label="halves", config_file="site.yaml").get("failed")
    assert stage.calls[0]["configs"]["mig-configs"] == LABELS


def test_a_config_file_beside_the_playbook_wins(stage):
    write(stage, "files/site.yaml", FILE)
    write(stage, "here/site.yaml", "nonsense")
    assert not stage.run(ActionModule, label="halves", config_file="site.yaml").get("failed")


def test_a_config_file_may_be_absolute(stage):
    write(stage, "site.yaml", FILE)
    assert not stage.run(ActionModule, label="halves", config_file=str(stage.folder / "site.yaml")).get("failed")


@pytest.mark.parametrize(("text", "words"), BAD_FILES.values(), ids=BAD_FILES)
def test_a_bad_config_file_is_one_sentence_with_its_path_and_the_node_is_not_asked(stage, text, words):
    write(stage, "files/site.yaml", text)
    result = stage.run(ActionModule, label="halves", config_file="site.yaml")
    assert result["failed"]
    assert result["altered"] is False
    assert result["msg"].startswith(f"config_file '{stage.folder}/files/site.yaml'")
    assert words in result["msg"]
    assert "\n" not in result["msg"]
    assert stage.calls == []


def test_a_missing_config_file_says_where_it_was_looked_for(stage):
    result = stage.run(ActionModule, label="halves", config_file="gone.yaml")
    assert result["failed"]
    assert "config_file 'gone.yaml' was not found on the controller" in result["msg"]
    assert str(stage.folder / "here") in result["msg"]


def test_a_directory_is_no_config_file(stage):
    assert "is a directory" in stage.run(ActionModule, label="halves", config_file=str(stage.folder))["msg"]


def test_a_config_file_must_be_a_path(stage):
    assert stage.run(ActionModule, label="a", config_file=["x"])["msg"] == "config_file must be a path, not a list."


def test_labels_have_one_source(stage):
    result = stage.run(ActionModule, label="halves", configs=LABELS, config_file="site.yaml")
    assert result["failed"]
    assert "configs and config_file both give labels" in result["msg"]


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("all", ["all"]),
        ("0", ["0"]),
        ("0,1", ["0", "1"]),
        (" 0, 1 ", ["0", "1"]),
        ("[0, 1]", ["0", "1"]),
        ("['0', '1']", ["0", "1"]),
        ("0000:07:00.0,GPU-5f", ["0000:07:00.0", "GPU-5f"]),
        (0, ["0"]),
        ([0, "GPU-5f"], [0, "GPU-5f"]),
    ],
)
def test_gpus_of_a_survey_become_a_list(stage, given, wanted):
    stage.run(ActionModule, label="all-disabled", gpus=given)
    assert stage.calls[0]["gpus"] == wanted


@pytest.mark.parametrize("text", ['{"halves": [{"devices": "all", "mig-enabled": false}]}', FILE])
def test_configs_of_a_survey_become_data(stage, text):
    stage.run(ActionModule, label="halves", configs=text)
    assert isinstance(stage.calls[0]["configs"], dict)


def test_entries_of_a_survey_become_data(stage):
    stage.run(ActionModule, config="- devices: all\n  mig-enabled: false\n")
    assert stage.calls[0]["config"] == [{"devices": "all", "mig-enabled": False}]


def test_a_mapping_of_a_survey_becomes_data(stage):
    stage.run(ActionModule, label_by_gpu='{"NVIDIA A30": "all-1g.6gb"}')
    assert stage.calls[0]["label_by_gpu"] == {"NVIDIA A30": "all-1g.6gb"}


def test_survey_text_that_is_not_yaml_is_one_sentence(stage):
    result = stage.run(ActionModule, config="- devices: [")
    assert result["failed"]
    assert result["msg"].startswith("config is not YAML")
    assert stage.calls == []


def test_a_question_that_was_not_answered_is_not_given(stage):
    stage.run(
        ActionModule, label="all-disabled", gpus="", configs=" ", config_file="", expected_gpus="", state_dir=None
    )
    assert stage.calls == [{"label": "all-disabled"}]


def test_template_syntax_is_handed_on_as_the_data_it_is(stage):
    stage.run(ActionModule, label="{{ lookup('pipe', 'id') }}")
    assert stage.calls == [{"label": "{{ lookup('pipe', 'id') }}"}]


LAYOUT = [{"pci_bus_id": "00000000:07:00.0", "mig_current": False, "instances": []}]


@pytest.mark.parametrize("text", [json.dumps(LAYOUT), json.dumps({"gpus": LAYOUT}), yaml.safe_dump(LAYOUT)])
def test_a_layout_of_a_survey_or_a_file_becomes_data(stage, text):
    write(stage, "files/saved.json", text)
    stage.run(ActionModule, layout=text)
    stage.run(ActionModule, layout_file="saved.json")
    assert stage.calls[0] == stage.calls[1]
    assert stage.calls[0]["layout"] in (LAYOUT, {"gpus": LAYOUT})


def test_a_layout_that_is_data_already_stays_as_it_is(stage):
    stage.run(ActionModule, layout=LAYOUT)
    assert stage.calls == [{"layout": LAYOUT}]


def test_a_layout_has_one_source(stage):
    result = stage.run(ActionModule, layout=LAYOUT, layout_file="saved.json")
    assert result["failed"]
    assert "layout and layout_file both give a layout" in result["msg"]


@pytest.mark.parametrize(("text", "words"), [("", "is empty"), ("{", "is not YAML"), ("a: &a [*a]", "inside its own")])
def test_a_bad_layout_file_is_one_sentence_with_its_path_and_the_node_is_not_asked(stage, text, words):
    write(stage, "files/saved.json", text)
    result = stage.run(ActionModule, layout_file="saved.json")
    assert result["failed"]
    assert result["altered"] is False
    assert result["msg"].startswith(f"layout_file '{stage.folder}/files/saved.json'")
    assert words in result["msg"]
    assert stage.calls == []


def test_a_missing_layout_file_is_named_as_such(stage):
    result = stage.run(ActionModule, layout_file="gone.json")
    assert "layout_file 'gone.json' was not found on the controller" in result["msg"]


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("nvidia-dcgm.service", ["nvidia-dcgm.service"]),
        ("nvidia-dcgm, nvidia-persistenced.service", ["nvidia-dcgm", "nvidia-persistenced.service"]),
        ("[a.service, {unit: b.service, for: [mode]}]", ["a.service", {"unit": "b.service", "for": ["mode"]}]),
        ({"unit": "b.service"}, [{"unit": "b.service"}]),
        (["a.service"], ["a.service"]),
        ([], []),
    ],
)
def test_clients_of_a_survey_become_a_list(stage, given, wanted):
    stage.run(ActionModule, label="all-disabled", clients=given)
    assert stage.calls[0]["clients"] == wanted


def test_reservations_of_a_survey_become_data(stage):
    stage.run(ActionModule, label="all-disabled", reservations='[{"device": "MIG-5f", "holder": "Slurm job 1"}]')
    assert stage.calls[0]["reservations"] == [{"device": "MIG-5f", "holder": "Slurm job 1"}]


@pytest.mark.parametrize("said", [False, "no", "false", 0])
def test_a_result_says_that_nothing_was_to_be_remembered_also_where_the_node_was_not_asked(stage, said):
    assert stage.run(ActionModule, label="halves", remember=said)["remember"] is False
    refused = stage.run(ActionModule, remember=said)
    assert (refused["failed"], refused["remember"]) == (True, False)


@pytest.mark.parametrize("said", [True, "yes", "", None])
def test_a_result_does_not_say_what_is_so_by_default(stage, said):
    assert "remember" not in stage.run(ActionModule, label="halves", remember=said)
