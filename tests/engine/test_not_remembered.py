# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A layout that is not to be remembered leaves the record of the node as it is, whoever ends the change."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.gpufleet.mig.plugins.module_utils.engine import cli, state
from ansible_collections.gpufleet.mig.plugins.module_utils.engine.model import Orders
from ansible_collections.gpufleet.mig.tests.engine.helpers import places
from ansible_collections.gpufleet.mig.tests.engine.test_cli import command, interrupt

THIRDS = "2g.10gb,2g.10gb,2g.10gb"
FOR_NOW = Orders(remember=False)


def records(installed):
    """What the node remembers, by file: nothing else may be left of a change that is over."""
    folder = Path(installed.places.state)
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.json")) if path.name != "result.json"}


def profiles(installed, gpu=0):
    return [name for name, _start, _compute in places(installed.read().gpus[gpu])]


def boot(installed):
    installed.simulator.reboot()
    assert command(installed, "boot", "--wait", "0").status == cli.OK


def test_it_lasts_until_the_next_boot_which_brings_back_what_is_remembered(install):
    installed = install("all-1g.5gb")
    remembered = records(installed)
    for altered in (True, False):
        outcome = installed.change(label=THIRDS, orders=FOR_NOW)
        assert (outcome.error, outcome.altered, outcome.changed, outcome.remembered) == (None, altered, altered, False)
        assert profiles(installed) == ["2g.10gb"] * 3
        assert records(installed) == remembered
    boot(installed)
    assert profiles(installed) == ["1g.5gb"] * 7


def test_a_node_that_remembers_nothing_goes_on_so(install):
    installed = install()
    assert installed.change(label=THIRDS, orders=FOR_NOW).altered
    assert records(installed) == {}
    boot(installed)
    assert profiles(installed) == []


def test_the_same_wish_is_remembered_by_the_run_that_may(install):
    installed = install()
    installed.change(label=THIRDS, orders=FOR_NOW)
    outcome = installed.change(label=THIRDS)
    assert (outcome.altered, outcome.remembered) == (False, True)
    assert state.read_wanted(installed.places).label == THIRDS


def recover(installed):
    assert command(installed, "recover").status == cli.OK


def wish_for_the_other_gpu(installed):
    assert installed.change(label="all-7g.40gb", gpus=[1]).error is None


@pytest.mark.parametrize("end", [recover, boot, wish_for_the_other_gpu])
def test_whoever_ends_a_change_remembers_it_only_where_it_was_to_be(install, end):
    installed = install("all-1g.5gb", gpus="2xa100-sxm4-40gb")
    remembered = {dump["index"]: dump for dump in state.read_wanted(installed.places).gpus}
    interrupt(installed, label=THIRDS, gpus=[0], orders=FOR_NOW)
    end(installed)
    assert state.in_progress(installed.places) is None
    now = {dump["index"]: dump for dump in state.read_wanted(installed.places).gpus}
    assert now[0] == remembered[0]
    # A boot ends the change and then restores what is remembered, of every GPU.
    assert profiles(installed) == (["1g.5gb"] * 7 if end is boot else ["2g.10gb"] * 3)


def test_whoever_is_not_to_be_remembered_remembers_a_change_that_it_ends_and_that_was_to_be(install):
    installed = install("all-1g.5gb", gpus="2xa100-sxm4-40gb")
    interrupt(installed, label=THIRDS, gpus=[0])
    outcome = installed.change(label="all-7g.40gb", gpus=[1], orders=FOR_NOW)
    assert (outcome.error, outcome.recovered) == (None, "forward")
    now = {dump["index"]: len(dump["instances"]) for dump in state.read_wanted(installed.places).gpus}
    assert now == {0: 3, 1: 7}
    assert profiles(installed, 1) == ["7g.40gb"]


def test_a_change_that_is_not_to_be_remembered_can_be_taken_back(install):
    installed = install("all-1g.5gb")
    remembered = records(installed)
    interrupt(installed, label=THIRDS, orders=FOR_NOW)
    assert command(installed, "recover", "--back").status == cli.OK
    assert profiles(installed) == ["1g.5gb"] * 7
    assert records(installed) == remembered


def test_the_command_restores_a_layout_until_the_next_boot(install, tmp_path):
    installed = install("all-1g.5gb")
    saved = tmp_path / "saved.json"
    saved.write_text(command(installed, "status", "--json").out)
    installed.change(label=THIRDS)
    remembered = records(installed)
    for words in ("1 GPU changed", "nothing had to be changed."):
        ran = command(installed, "restore", str(saved), "--not-remembered")
        assert ran.status == cli.OK
        assert words in ran.out.splitlines()[0]
        assert profiles(installed) == ["1g.5gb"] * 7
        assert records(installed) == remembered
    boot(installed)
    assert profiles(installed) == ["2g.10gb"] * 3
