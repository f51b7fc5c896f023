# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The files of examples/awx, and names that the role and its description have to agree on."""

from __future__ import annotations

import re
import subprocess
import typing as t
from pathlib import Path

import pytest
import yaml

from ansible_collections.gpufleet.mig.tests.awx.conftest import EXAMPLE, PROJECT, ROOT, VENV

ROLE = ROOT / "roles" / "awx"
OPTIONS: dict[str, t.Any] = yaml.safe_load((ROLE / "meta" / "argument_specs.yml").read_text())["argument_specs"][
    "main"
]["options"]

# What AWX gives to every job as extra variables, which nothing can overrule: awx_meta_vars of its models.
GIVEN_BY_AWX = re.compile(
    r"awx_(job_(id|launch_type|scm_branch|template_id|template_name)|workflow_job_(id|name|launch_type)"
    r"|parent_job_schedule_(id|name)|schedule_(id|name)|user_(id|name|email|first_name|last_name)"
    r"|inventory_(id|name)|project_(revision|scm_branch)|execution_node|webhook_\w+)"
)


def test_no_variable_of_the_role_is_one_that_awx_gives_to_its_jobs() -> None:
    """So that the role can itself run as a job of AWX."""
    assert [name for name in OPTIONS if GIVEN_BY_AWX.fullmatch(name)] == []


def test_every_question_is_about_a_variable_that_is_read() -> None:
    """A name that nothing reads would be asked in vain: it would say nothing and change nothing."""
    catalogue = yaml.safe_load((ROLE / "vars" / "main.yml").read_text())["__awx_catalogue"]
    read = "".join(
        file.read_text()
        for folder in ("playbooks", "plugins", "roles/mig")
        for file in sorted((ROOT / folder).rglob("*"))
        if file.suffix in (".yml", ".py") and file.name != "awx.yml"
    )

    assert [name for name in catalogue if not re.search(rf"\b{name}\b", read)] == []


def test_every_variable_has_a_default_or_is_shown_in_the_defaults() -> None:
    text = (ROLE / "defaults" / "main.yml").read_text()

    assert [name for name in OPTIONS if not re.search(rf"^(# )?{name}:", text, re.MULTILINE)] == []


def test_defaults_that_are_described_are_those_that_count() -> None:
    defaults = yaml.safe_load((ROLE / "defaults" / "main.yml").read_text())
    described = {name: option["default"] for name, option in OPTIONS.items() if "default" in option}

    assert {name: defaults.get(name) for name in described} == described


def test_every_variable_is_in_the_documentation() -> None:
    text = (ROOT / "docs" / "awx.md").read_text()

    assert [name for name in OPTIONS if f"`{name}`" not in text] == []


def test_the_variables_of_the_example_are_variables_of_the_role() -> None:
    given = yaml.safe_load((EXAMPLE / "awx.yml").read_text())

    assert [name for name in given if name not in OPTIONS] == []


def test_secrets_of_the_example_are_lookups() -> None:
    given = yaml.safe_load((EXAMPLE / "awx.yml").read_text())
    secret = [
        value
        for credential in given["awx_credentials"]
        for name, value in credential["inputs"].items()
        if name not in ("username", "host")
    ]

    assert len(secret) == len(given["awx_credentials"])
    assert all(re.fullmatch(r"{{ lookup\(.*\) }}", value) for value in secret)


@pytest.mark.parametrize("wrapper", sorted(PROJECT.glob("*.yml")), ids=lambda file: file.stem)
def test_a_playbook_of_the_project_is_one_of_the_collection(wrapper: Path) -> None:
    (play,) = yaml.safe_load(wrapper.read_text())
    name = play["ansible.builtin.import_playbook"]

    assert name == f"gpufleet.mig.{wrapper.stem}"
    assert (ROOT / "playbooks" / wrapper.name).exists()


def test_the_execution_environment_can_be_built(tmp_path: Path) -> None:
    """ansible-builder understands it and makes all that an image is built from; building needs a container engine."""
    builder = VENV / "importer" / "bin" / "ansible-builder"
    context = tmp_path / "context"
    words: list[str | Path] = [builder, "create", "-f", EXAMPLE / "execution-environment.yml", "-c", context]

    done = subprocess.run(words, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    assert done.returncode == 0, done.stdout
    built = context / "_build"
    assert "nvidia-ml-py" in (built / "requirements.txt").read_text()
    assert yaml.safe_load((built / "requirements.yml").read_text())["collections"][0]["name"] == "gpufleet.mig"
