# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The filters take what Ansible gives them, and say what they need where it is something else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from ansible.errors import AnsibleFilterError

from ansible_collections.gpufleet.mig.plugins.filter import fleet

FILTERS = fleet.FilterModule().filters()
FOLDER = Path(fleet.__file__).parent
MATCH = {"verdict": "match", "label": "x", "persisted": "match", "before": [], "after": [], "msg": "as wanted"}


@pytest.mark.parametrize("name", FILTERS)
def test_every_filter_has_its_documentation(name):
    with open(FOLDER / f"{name}.yml", encoding="utf-8") as file:
        document = yaml.safe_load(file)
    assert document["DOCUMENTATION"]["name"] == name
    assert f"gpufleet.mig.{name}" in document["EXAMPLES"]
    assert document["RETURN"]["_value"]["description"]


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("given", [None, "text", 7, ["x"]])
def test_other_input_is_refused_with_what_is_needed(name, given):
    variables: list[dict[str, str]] = [{}] if name == "audit_files" else []
    with pytest.raises(AnsibleFilterError, match=rf"^{name} takes .*gpufleet\.mig\.a?"):
        FILTERS[name](given, *variables)


@pytest.mark.parametrize("name", ["audit_text", "audit_metrics", "audit_files"])
def test_an_audit_of_another_version_is_refused(name):
    document = {**fleet.audit({"a": MATCH}), "schema": 2}
    with pytest.raises(AnsibleFilterError, match="takes what the filter gpufleet.mig.audit returned"):
        FILTERS[name](document, *([{}] if name == "audit_files" else []))


def test_files_are_those_whose_variables_are_set():
    document = fleet.audit({"Größe": MATCH})
    files = fleet.audit_files(
        document, {"mig_audit_json": " a.json ", "mig_audit_text": "", "mig_audit_textfile": None}
    )
    assert list(files) == ["a.json"]
    assert json.loads(files["a.json"]) == document
    assert "Größe" in files["a.json"]
    assert fleet.audit_files(document, {}) == {}


def test_all_files_of_an_audit():
    document = fleet.audit({"a": MATCH})
    files = fleet.audit_files(document, {"mig_audit_text": "t", "mig_audit_json": "j", "mig_audit_textfile": "p.prom"})
    assert files["t"] == f"{fleet.audit_text(document)}\n"
    assert files["p.prom"] == fleet.audit_metrics(document)
    assert all(content.endswith("\n") for content in files.values())


def test_a_file_that_node_exporter_would_not_read_is_refused():
    with pytest.raises(AnsibleFilterError, match="'mig.txt', and node_exporter only reads files that end in .prom"):
        fleet.audit_files(fleet.audit({"a": MATCH}), {"mig_audit_textfile": "mig.txt"})
