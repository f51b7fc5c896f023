# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""``gpufleet-mig cdi``, which the unit of the role containers runs at boot, on simulated GPUs."""

from __future__ import annotations

import json

from ansible_collections.gpufleet.mig.plugins.module_utils.engine import cdi, cli
from ansible_collections.gpufleet.mig.tests.engine.test_cli import command


def test_containers_are_told_of_what_there_is_and_it_is_proven(install, toolkit, monkeypatch):
    installed = install("all-1g.5gb")
    # A process sees the node by itself, but the programs that it starts do so by their environment.
    monkeypatch.setenv("LD_LIBRARY_PATH", installed.simulator.env()["LD_LIBRARY_PATH"])
    options = ["cdi", "--json", "--spec", str(toolkit), "--spec-dirs", str(toolkit.parent), "--unit", "never"]
    missing = command(installed, *options, "--verify")
    assert (missing.status, "is not there" in missing.out + missing.err) == (cli.REFUSED, True)
    told = command(installed, *options)
    assert (told.status, told.report["changed"]) == (cli.OK, True)
    names = [device["name"] for device in json.loads(toolkit.read_text())["devices"]]
    assert len([name for name in names if name.startswith("MIG-")]) == 7
    assert command(installed, *options).report["changed"] is False
    assert command(installed, *options, "--verify").status == cli.OK


def test_what_the_role_containers_has_set_is_the_default(install, toolkit, set_up_for_cdi):
    installed = install("all-1g.5gb")
    set_up_for_cdi(installed)
    assert command(installed, "cdi", "--json").report["written"] == [str(toolkit)]
    other = toolkit.parent / "other.json"
    assert command(installed, "cdi", "--json", "--spec", str(other)).status == cli.REFUSED
    assert other.exists()


def test_its_help_is_what_the_role_asks_for(install):
    installed = install()
    assert command(installed, "cdi", "--help").status == cli.OK
    assert cdi.SPEC in command(installed, "cdi", "--help").out
