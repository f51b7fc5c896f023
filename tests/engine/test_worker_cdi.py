# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A change on a node that is set up for CDI: instances, device files, specification, proof, and only then clients."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ansible_collections.gpufleet.mig.plugins.module_utils.engine import state
from ansible_collections.gpufleet.mig.plugins.module_utils.engine.model import Client, Orders
from ansible_collections.gpufleet.mig.tests.engine.helpers import FakeManager

CONTAINER = f"docker:{'ab' * 32}"
UNIT = "nvidia-dcgm.service"
ORDERS = Orders(evict="clients", clients=(Client(CONTAINER), Client(UNIT)))


class Watching(FakeManager):
    """Remembers which devices containers are told of whenever a client starts."""

    spec = Path()
    refuses = ""

    def start(self, unit, timeout):
        names = told(self.spec) if self.spec.exists() else []
        with open(f"{self.spec}.seen", "a", encoding="utf-8") as file:
            file.write(json.dumps([unit, names]) + "\n")
        super().start(unit, timeout)
        if unit == self.refuses and len(names) == 7:
            self._become(unit, "failed", f"{unit} fails")


def told(spec):
    """The MIG devices that containers are told of."""
    return sorted(each["name"] for each in json.loads(spec.read_text())["devices"] if each["name"].startswith("MIG-"))


def seen(spec):
    """What containers were told of when each client started."""
    return [tuple(json.loads(line)) for line in Path(f"{spec}.seen").read_text().splitlines()]


def there(node):
    return sorted(ci.uuid for gpu in node.read().gpus for gi in gpu.instances for ci in gi.compute)


def behave(toolkit, **behaviour):
    (toolkit.parent.parent / "programs" / "behaviour.json").write_text(json.dumps(behaviour))


@pytest.fixture
def node(install, toolkit, set_up_for_cdi, tmp_path):
    """A node with three devices that containers are told of, a container on it and a service."""
    installed = install()
    set_up_for_cdi(installed)
    first = installed.change(label="all-2g.10gb")
    assert (first.error, told(toolkit)) == (None, there(installed))
    installed.manager = Watching(tmp_path / "watched.json", {CONTAINER: "active", UNIT: "active"})
    installed.manager.spec = toolkit
    return installed


def test_clients_start_when_containers_are_told_of_the_new_devices_and_of_no_other(node, toolkit):
    outcome = node.change(label="all-1g.5gb", orders=ORDERS)
    assert outcome.error is None
    assert len(there(node)) == 7
    assert seen(toolkit) == [(UNIT, there(node)), (CONTAINER, there(node))]
    assert "7 MIG devices" in outcome.cdi


def test_after_a_change_that_failed_they_start_with_what_there_was_before(node, toolkit):
    before = there(node)
    node.simulator.fault("nvmlDeviceCreateGpuInstanceWithPlacement", nth=3, code="INSUFFICIENT_RESOURCES")
    outcome = node.change(label="all-1g.5gb", orders=ORDERS)
    assert (outcome.rolled_back, there(node)) == (True, before)
    assert seen(toolkit) == [(UNIT, before), (CONTAINER, before)]


def test_a_client_that_does_not_run_with_it_starts_again_with_what_there_was_before(node, toolkit):
    node.manager.refuses = UNIT
    before = there(node)
    outcome = node.change(label="all-1g.5gb", orders=ORDERS)
    assert (outcome.rolled_back, there(node)) == (True, before)
    assert seen(toolkit)[-2:] == [(UNIT, before), (CONTAINER, before)]


def test_a_node_that_is_not_set_up_for_it_is_left_alone(node, toolkit):
    before = told(toolkit)
    (Path(node.places.state) / "cdi.json").unlink()
    outcome = node.change(label="all-1g.5gb", orders=ORDERS)
    assert (outcome.error, outcome.cdi, told(toolkit)) == (None, "", before)
    assert node.manager.states() == {CONTAINER: "active", UNIT: "active"}


def test_a_boot_leaves_it_to_its_unit(node, toolkit):
    before = told(toolkit)
    assert node.change(label="all-1g.5gb", orders=Orders(tells_containers=False)).error is None
    assert told(toolkit) == before


def test_what_cannot_be_told_fails_the_run_keeps_the_layout_and_holds_containers_until_it_is_told(node, toolkit):
    behave(toolkit, fail="no driver library")
    outcome = node.change(label="all-1g.5gb", orders=ORDERS)
    assert str(outcome.error).startswith("The layout is there, but containers are not told of it: 'nvidia-ctk")
    assert "no driver library" in str(outcome.error)
    assert (outcome.rolled_back, outcome.changed, len(there(node))) == (None, True, 7)
    assert [unit for unit, _names in seen(toolkit)] == [UNIT]
    assert node.manager.states() == {CONTAINER: "inactive", UNIT: "active"}
    assert "it could get a device that is gone" in outcome.not_started[0]
    assert state.read_journal(node.places).clients == (CONTAINER,)

    again = node.change(label="all-1g.5gb", orders=ORDERS)
    assert "containers are not told of it" in str(again.error)
    assert node.manager.states()[CONTAINER] == "inactive"

    behave(toolkit)
    node.simulator.reset_calls()
    done = node.change(label="all-1g.5gb", orders=ORDERS)
    assert (done.error, done.recovered) == (None, "forward")
    assert node.simulator.writes() == []
    assert seen(toolkit)[-1] == (CONTAINER, there(node))
    assert state.read_journal(node.places) is None


def test_a_container_starts_after_a_way_back_for_which_the_old_specification_is_right(node, toolkit):
    before = there(node)
    behave(toolkit, fail="no driver library")
    node.simulator.fault("nvmlDeviceCreateGpuInstanceWithPlacement", nth=3, code="INSUFFICIENT_RESOURCES")
    outcome = node.change(label="all-1g.5gb", orders=ORDERS)
    assert (outcome.rolled_back, there(node)) == (True, before)
    assert any("containers are not told of it" in warning for warning in outcome.warnings)
    assert node.manager.states() == {CONTAINER: "active", UNIT: "active"}


def test_settings_that_cannot_be_read_refuse_the_change_before_anything_is_touched(node):
    file = Path(node.places.state) / "cdi.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "folders": "/etc/cdi"}))
    node.simulator.reset_calls()
    with pytest.raises(state.StateError, match="folders is not a list of texts"):
        node.change(label="all-1g.5gb", orders=ORDERS)
    assert node.simulator.writes() == []
    assert node.manager.log() == []
