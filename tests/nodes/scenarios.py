# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Runs the Molecule scenarios, in an environment in which nothing of this machine's user or Ansible counts."""

from __future__ import annotations

import os
import subprocess
import typing as t
from pathlib import Path

from .places import ROOT, SCENARIOS, STORE

BIN = ROOT / ".venv" / "bin"
HOME = STORE / "home"


def names() -> list[str]:
    """All scenarios: the folders with a molecule.yml."""
    return sorted(file.parent.name for file in SCENARIOS.glob("*/molecule.yml"))


def environment() -> dict[str, str]:
    """Molecule finds Ansible by PATH only, and keeps what it makes in HOME."""
    HOME.mkdir(parents=True, exist_ok=True)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ANSIBLE_", "MOLECULE_"))}
    folders = [
        folder for folder in kept.get("PATH", os.defpath).split(":") if not folder.rstrip("/").endswith("/shims")
    ]
    return {
        **kept,
        "PATH": ":".join([str(BIN), *folders]),
        "HOME": str(HOME),
        "LC_ALL": "C.UTF-8",
        "ANSIBLE_HOME": str(HOME / ".ansible"),
        "ANSIBLE_COLLECTIONS_PATH": str(ROOT / ".venv" / "collections"),
        "ANSIBLE_NOCOWS": "1",
        "MOLECULE_COMMAND_BORDERS": "false",  # they break lines
    }


def run(scenario: str, *words: str, log: t.Optional[Path] = None) -> int:
    """``molecule WORDS --scenario-name SCENARIO``; its exit status. What it prints goes into a file if there is one."""
    command = [str(BIN / "molecule"), *(words or ("test",)), "--scenario-name", scenario]
    if log is None:
        return subprocess.run(command, cwd=ROOT, env=environment(), check=False).returncode
    plain = {**environment(), "NO_COLOR": "1", "ANSIBLE_NOCOLOR": "1", "PY_COLORS": "0"}
    with open(log, "wb") as output:
        options: dict[str, t.Any] = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT}
        return subprocess.run(command, cwd=ROOT, env=plain, check=False, **options).returncode
