# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A host with instances, NVIDIA's container toolkit and NVIDIA's refresh unit, for tests.

Device files are plain files below a folder: what makes them is tested with capabilities.py.
"""

from __future__ import annotations

import json
import sys
import typing as t
from pathlib import Path

import pytest

from ansible_collections.gpufleet.mig.plugins.module_utils.engine import capabilities, cdi, cdi_yaml, clients, commands
from ansible_collections.gpufleet.mig.plugins.module_utils.engine.model import MigError, Node
from ansible_collections.gpufleet.mig.tests.unit.plugins.module_utils.engine import boards, fake_nvidia_ctk

A100 = "a100-sxm4-40gb"


class Host:
    """A tree of files with programs of NVIDIA's, and a node that the test changes."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = path
        self.programs = path / "programs"
        for folder in (self.programs, path / "proc/driver/nvidia-caps", path / "dev/nvidia-caps", path / "etc/cdi"):
            folder.mkdir(parents=True)
        monkeypatch.setenv("PATH", str(self.programs))
        monkeypatch.setattr(commands, "_STANDARD_PATH", str(self.programs))
        monkeypatch.setattr(capabilities, "ensure", self._ensure)
        monkeypatch.setattr(clients, "manager_of", lambda: clients.Systemd(settle=0))
        self.program("nvidia-ctk")
        self.program("systemctl")
        self.settings = cdi.Settings(root=str(path))
        self.behave()
        self.node = Node(gpus=())
        self.have([("1g.5gb", 0), ("1g.5gb", 1)])

    def program(self, name: str) -> None:
        place = self.programs / name
        place.write_text(f"#!{sys.executable} -ES\n{Path(fake_nvidia_ctk.__file__).read_text()}")
        place.chmod(0o755)

    def behave(self, **behaviour: t.Any) -> None:
        behaviour.setdefault("unit_writes", str(self.path / "var/run/cdi/nvidia.yaml"))
        (self.programs / "behaviour.json").write_text(json.dumps(behaviour))

    def have(self, instances: t.Any, others: t.Sequence[t.Any] = ()) -> None:
        """Give GPU 0 these instances, and the node these other GPUs; nvidia-ctk and the driver's table follow."""
        board = boards.gpu(A100, instances=instances) if instances is not None else boards.gpu(A100, mode=False)
        self.node = Node((board._replace(minor=0), *others))
        table = ["config 1", "monitor 2"]
        for gpu in self.node.gpus:
            for instance in gpu.instances:
                first = 100 * ((gpu.minor or 0) + 1) + 10 * (instance.id or 0)
                table.append(f"gpu{gpu.minor}/gi{instance.id}/access {first}")
                table += [
                    f"gpu{gpu.minor}/gi{instance.id}/ci{ci.id}/access {first + 1 + (ci.id or 0)}"
                    for ci in instance.compute
                ]
        (self.path / "proc/driver/nvidia-caps/mig-minors").write_text("\n".join(table) + "\n")
        found = [
            {"uuid": device.uuid, "index": device.place, "files": device.files}
            for device in cdi.devices_of(self.node, str(self.path))
        ]
        (self.programs / "devices.json").write_text(json.dumps(found))

    def _ensure(self, node: Node, gpus: t.Any, watch: t.Any = None, root: str = "/") -> None:
        for device in cdi.devices_of(node, root):
            for file in device.files:
                Path(root, file.lstrip("/")).touch()

    def refresh(self, check: bool = False, **settings: t.Any) -> cdi.Outcome:
        return cdi.refresh(self.node, self.settings._replace(**settings), check)

    def failure(self, **settings: t.Any) -> str:
        with pytest.raises(MigError) as caught:
            self.refresh(**settings)
        return str(caught.value)

    def file(self, path: str = cdi.SPEC) -> Path:
        return self.path / path.lstrip("/")

    def names(self, path: str = cdi.SPEC) -> list[str]:
        return [device["name"] for device in cdi_yaml.parse(self.file(path).read_text())["devices"]]

    def put(self, path: str, *names: str, kind: str = "nvidia.com/gpu") -> None:
        self.file(path).parent.mkdir(parents=True, exist_ok=True)
        devices = [{"name": name, "containerEdits": {"deviceNodes": []}} for name in names]
        self.file(path).write_text(fake_nvidia_ctk.as_yaml({"kind": kind, "devices": devices}))

    def calls(self, program: str) -> list[t.Any]:
        text = (self.programs / "calls").read_text() if (self.programs / "calls").exists() else ""
        return [call for call in map(json.loads, text.splitlines()) if call[0] == program]

    def uuids(self) -> list[str]:
        return [device.uuid for device in cdi.devices_of(self.node, str(self.path)) if device.mig]
