# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Puts the simulated driver and the stand-ins for the services of a GPU node into a tree.

The tree may be empty, a layer over that of a Debian, or the Debian itself. Only files and links are written: nothing is
run in it, and nothing is derived from a GPU.
"""

from __future__ import annotations

import json
import os
import shutil
import typing as t
from pathlib import Path

FILES = Path(__file__).resolve().parent / "files"
LIBRARY_FOLDER = "usr/lib/x86_64-linux-gnu"
UNITS = "usr/lib/systemd/system"

# Programs of a node, and the script that each one is.
PROGRAMS = {
    "usr/bin/docker": "containers.py client docker",
    "usr/bin/sim-behave": "behave.py",
    "usr/bin/sim-driver": "driver.py",
    "usr/bin/sim-hold": "hold.py",
    # Not there by default: link them to where programs are.
    "usr/lib/sim/optional/nerdctl": "containers.py client nerdctl",
    "usr/lib/sim/optional/podman": "containers.py client podman",
    # In place of those of kmod, which have no module to handle here.
    "usr/sbin/lsmod": "modules.py lsmod",
    "usr/sbin/modprobe": "modules.py modprobe",
    "usr/sbin/rmmod": "modules.py rmmod",
}
PROGRAM = '#!/bin/sh\nexec /usr/bin/python3 -ESs /usr/lib/sim/{script} "$@"\n'
# Units that come with the machine, like its kernel; all others are enabled by whoever wants them.
ALWAYS = {"sysinit.target.wants": ("sim-machine.service",), "multi-user.target.wants": ("sim-driver.service",)}
# The name that DCGM's unit had before.
ALIASES = {"dcgm.service": "nvidia-dcgm.service"}


def install(tree: Path | str, driver_branch: str | int) -> None:
    """Make the computer of a tree one with GPUs and a driver of this branch (``580``), as far as files can."""
    from nvmlsim.build import LIBRARY_NAME, ensure_built

    tree = Path(tree)
    build = ensure_built()
    for source in sorted(FILES.rglob("*")):
        if source.is_file() and "__pycache__" not in source.parts:
            _place(source, tree / source.relative_to(FILES))
    for program, script in PROGRAMS.items():
        _program(tree / program, script)
    for target, units in ALWAYS.items():
        for unit in units:
            _link(tree / UNITS / target / unit, f"../{unit}")
    for alias, unit in ALIASES.items():
        _link(tree / UNITS / alias, unit)
    branch = int(str(driver_branch).partition(".")[0])
    _place(build.library_folder(branch) / LIBRARY_NAME, tree / LIBRARY_FOLDER / LIBRARY_NAME)
    _place(build.programs / "nvidia-smi", tree / "usr/bin/nvidia-smi")


def _place(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    shutil.copyfile(source, target)
    # What may run is decided by the first line: a checkout does not always keep modes.
    with open(source, "rb") as file:
        start = file.read(4)
    target.chmod(0o755 if start[:2] == b"#!" or start == b"\x7fELF" else 0o644)


def _program(path: Path, script: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_text(PROGRAM.format(script=script))
    path.chmod(0o755)


def _link(path: Path, target: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(target)


# ---- from outside of a node ----------------------------------------------------------------------------------------


def behave(sim: Path | str, unit: str, **behaviour: t.Any) -> None:
    """Tell a stand-in how to behave from its next start or stop on; ``sim`` is the folder that the node sees.

    For ``stop="refuse"`` systemd has to be told as well: use ``sim-behave`` in the node, or call this before it boots.
    """
    folder = Path(sim) / "behaviour"
    folder.mkdir(parents=True, exist_ok=True)
    half = folder / f".{unit}.{os.getpid()}"
    half.write_text(json.dumps(behaviour) + "\n")
    half.rename(folder / unit.removesuffix(".service"))


def clear_behaviour(sim: Path | str) -> None:
    """All stand-ins behave well again."""
    for file in (Path(sim) / "behaviour").glob("*"):
        file.unlink()
