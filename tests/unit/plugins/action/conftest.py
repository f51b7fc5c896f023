# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""An action without Ansible around it: its module is a function, and what it transfers is remembered."""

from __future__ import annotations

import typing as t
from unittest.mock import MagicMock

import pytest
from ansible.errors import AnsibleFileNotFound
from ansible.parsing.dataloader import DataLoader


class Stage:
    """Runs an action against a stand-in for the node; ``calls`` are the arguments its module was given."""

    def __init__(self, folder: t.Any, answer: t.Callable[[dict[str, t.Any]], dict[str, t.Any]]) -> None:
        self.folder = folder
        self.answer = answer
        self.calls: list[dict[str, t.Any]] = []
        self.transferred: list[tuple[str, bytes]] = []

    def run(self, action_class: type, **arguments: t.Any) -> dict[str, t.Any]:
        """Run the action with these task arguments and return its result."""
        task = MagicMock(args=arguments, async_val=0, check_mode=False, diff=False, action="gpufleet.mig.x")
        connection = MagicMock()
        connection._shell.tmpdir = None
        connection._shell.join_path = lambda *parts: "/".join(parts)
        action = action_class(task, connection, MagicMock(), DataLoader(), MagicMock(), MagicMock())
        action._execute_module = self._module
        action._make_tmp_path = lambda: "/remote/tmp"
        action._transfer_data = lambda path, data: self.transferred.append((path, data))
        action._fixup_perms2 = lambda paths: None
        action._find_needle = self._find
        return action.run(task_vars={})

    def _module(self, module_name: str, module_args: dict[str, t.Any], task_vars: t.Any) -> dict[str, t.Any]:
        self.calls.append(module_args)
        return self.answer(module_args)

    def _find(self, folder: str, name: str) -> str:
        path = self.folder / folder / name
        if not path.exists():
            raise AnsibleFileNotFound(file_name=name)
        return str(path)


@pytest.fixture
def stage(tmp_path, monkeypatch):
    """A stage whose module answers that all is well; ``files/`` is a folder of the playbook."""
    (tmp_path / "files").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return Stage(tmp_path, lambda arguments: {"changed": False})
