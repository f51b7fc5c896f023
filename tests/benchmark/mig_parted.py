# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""NVIDIA's nvidia-mig-parted on a simulated host, unmodified.

It is no part of this project. Its program is the one that the environment variable NVIDIA_MIG_PARTED names, or the one
on PATH. Beside NVML it looks at the PCI bus and at the list of kernel modules, so it gets a mount namespace in which
these two show the simulated GPUs.
"""

from __future__ import annotations

import functools
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import typing as t

from ansible_collections.gpufleet.mig.tests.benchmark.hosts import Entries, Host
from nvmlsim import Simulator

_IN_NAMESPACE = 'mount --bind "$1/pci" /sys/bus/pci/devices && mount --bind "$1/proc" /proc && shift && exec "$@"'


class MigParted:
    """The tool on one host."""

    def __init__(self, host: Host) -> None:
        self._simulator = host.simulator
        self._root = host.folder / "seen-by-mig-parted"
        shutil.rmtree(self._root, ignore_errors=True)
        _show_gpus(self._root / "pci", host.simulator)
        (self._root / "proc").mkdir()
        (self._root / "proc" / "modules").write_text("nvidia 1 0 - Live 0x0\n", encoding="ascii")

    def apply(self, entries: Entries) -> str:
        """Have it bring the host to a config; what it says kept it from that, or nothing."""
        config = self._root / "config.yaml"
        config.write_text(json.dumps({"version": "v1", "mig-configs": {"wanted": entries}}), encoding="utf-8")
        answer = self._run("apply", "-f", str(config), "-c", "wanted")
        return answer.stderr.strip() or f"exit status {answer.returncode}" if answer.returncode else ""

    def export(self) -> subprocess.CompletedProcess[str]:
        """Have it read the host."""
        return self._run("export")

    def _run(self, *words: str) -> subprocess.CompletedProcess[str]:
        as_root = [] if os.geteuid() == 0 else ["--map-root-user"]
        namespace = ["unshare", *as_root, "--mount", "sh", "-c", _IN_NAMESPACE, "sh", str(self._root)]
        return self._simulator.run([*namespace, str(_program()), *words], stdin=subprocess.DEVNULL, timeout=120)


@functools.cache
def why_not() -> str:
    """Why nothing can be measured with it here, for a cell of a table; empty when it can."""
    if _program() is None:
        return "not measured: nvidia-mig-parted was not found"
    try:
        with tempfile.TemporaryDirectory(prefix="mig-bench-") as folder:
            answer = MigParted(Host(pathlib.Path(folder), "1xa100-sxm4-40gb")).export()
    except OSError as error:
        return f"not measured: {error}"
    if answer.returncode:
        *_earlier, last = answer.stderr.strip().splitlines() or [f"exit status {answer.returncode}"]
        return f"not measured: nvidia-mig-parted cannot be run here ({last})"
    return ""


def version() -> str:
    if why_not():
        return why_not()
    return subprocess.run([str(_program()), "--version"], capture_output=True, text=True, check=True).stdout.split()[-1]


@functools.cache
def _program() -> t.Optional[pathlib.Path]:
    named = os.environ.get("NVIDIA_MIG_PARTED")
    found = shutil.which(named or "nvidia-mig-parted")
    return pathlib.Path(found).absolute() if found else None


def _show_gpus(bus: pathlib.Path, simulator: Simulator) -> None:
    """A folder like /sys/bus/pci/devices with the GPUs of a simulated node, as far as a library for PCI reads it."""
    for gpu in simulator.describe()["gpus"]:
        device = bus / gpu["pci"][len("0000") :].lower()  # the kernel's domain has four digits, NVML's has eight
        device.mkdir(parents=True)
        content = {
            "vendor": "0x10de",
            "device": f"{gpu['device'] >> 16:#06x}",
            "subsystem_vendor": f"{gpu['subsystem'] & 0xFFFF:#06x}",
            "subsystem_device": f"{gpu['subsystem'] >> 16:#06x}",
            "class": "0x030200",
            "numa_node": "0",
            "resource": "\n".join(["0x0000000000000000 0x0000000000000fff 0x0000000000040200"] * 6),
        }
        for name, text in content.items():
            (device / name).write_text(f"{text}\n", encoding="ascii")
        (device / "config").write_bytes(bytes(256))
        (device / "driver").symlink_to("/sys/bus/pci/drivers/nvidia")
