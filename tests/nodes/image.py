# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Trees as image builders have them: a Debian that does not run, with neither GPU nor driver."""

from __future__ import annotations

import os
import subprocess
import typing as t
from pathlib import Path

from . import build
from .fleet import NodeError

# In a mount namespace of its own: whatever ends this, no mount stays.
MOUNT = r"""
mount -t overlay overlay -o "lowerdir=$1,upperdir=$2/upper,workdir=$2/work" "$2/tree"
mount -t proc proc "$2/tree/proc"
mount --rbind /dev "$2/tree/dev"
mount -t tmpfs tmpfs "$2/tree/run"
shift 2
exec "$@"
"""


def run(folder: Path, command: t.Sequence[str]) -> int:
    """Runs a command that finds such a tree at ``$IMAGE``; its exit status.

    What it changes stays in FOLDER/upper, over which nodes can be booted: ``up --lower FOLDER/upper``.
    """
    reason = build.why_not()
    if reason:
        raise NodeError(f"There can be no tree: {reason}.")
    base = build.build()
    for name in ("upper", "work", "tree"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    words = ["unshare", "--mount", "--propagation", "private", "sh", "-ec", MOUNT, "sh", str(base), str(folder)]
    environment = {**os.environ, "IMAGE": str(folder / "tree")}
    return subprocess.run([*words, *command], env=environment, check=False).returncode
