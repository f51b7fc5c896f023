# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Runs a module's main() on a node that is plain data: everything is real but the driver."""

from __future__ import annotations

import json
import time
import types
import typing as t

import pytest
from ansible.module_utils.testing import patch_module_args

from ansible_collections.gpufleet.mig.plugins.module_utils import ansible_bridge
from ansible_collections.gpufleet.mig.plugins.module_utils.engine import layouts, state
from ansible_collections.gpufleet.mig.plugins.module_utils.engine.model import DriverError, Node


class ReadOnlySession:
    """A session that shows one node and has no way to write to it."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def __enter__(self) -> ReadOnlySession:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def read_node(self, placements: bool = True) -> Node:
        return self._node


class Host:
    """A managed host: ``node`` is what its driver shows, the error that NVML answers, or None for a driver that hangs.

    ``remembers`` says whether the node is as it was remembered for the next boot when a module begins.
    """

    def __init__(self, capsys: t.Any, state_dir: str) -> None:
        self._capsys = capsys
        self.state_dir = state_dir
        self.node: t.Union[Node, DriverError, None] = Node(gpus=())
        self.remembers = True
        self.binding = types.ModuleType("pynvml")
        self.binding.__file__ = "/usr/lib/python3/pynvml.py"
        self.binding_places: tuple[str, ...] = ()

    @property
    def places(self) -> state.Places:
        """Where the records of this host are."""
        return state.places(self.state_dir)

    def remember(self) -> None:
        """Have the layout that the driver shows now remembered for the next boot."""
        if isinstance(self.node, Node):
            dumps = tuple(layouts.dump(gpu) for gpu in self.node.gpus)
            state.write_wanted(self.places, state.Persisted("earlier", state.utc_now(), "", "", "", "", dumps))

    def session(self, _binding: object, watch: t.Any) -> ReadOnlySession:
        """What ``driver.Session`` is here."""
        watch.begin("open NVML")
        if self.node is None:
            time.sleep(600)  # longer than any test; the alarm of the watch ends it
        if isinstance(self.node, DriverError):
            raise self.node  # pylint: disable=raising-non-exception  # it takes the type from __init__
        return ReadOnlySession(t.cast(Node, self.node))

    def load_binding(self, *places: str, trusted: t.Sequence[str] = ()) -> types.ModuleType:
        """What ``driver.load_binding`` is here."""
        self.binding_places = (*trusted, *places)
        return self.binding

    def run(self, module: t.Any, check_mode: bool = False, **arguments: t.Any) -> dict[str, t.Any]:
        """Run a module as Ansible would and return its result."""
        if self.remembers:
            self.remember()
        given = {"state_dir": self.state_dir, "_ansible_check_mode": check_mode, **arguments}
        with patch_module_args(given), pytest.raises(SystemExit):
            module.main()
        return t.cast("dict[str, t.Any]", json.loads(self._capsys.readouterr().out))


@pytest.fixture
def host(capsys, monkeypatch, tmp_path):
    """A host without GPUs; set ``host.node``."""
    made = Host(capsys, str(tmp_path / "state"))
    monkeypatch.setattr(ansible_bridge.driver, "Session", made.session)
    monkeypatch.setattr(ansible_bridge.driver, "load_binding", made.load_binding)
    return made
