# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Lets the Python of a simulated host see a running systemd, whatever the host of the tests has."""

from __future__ import annotations

import os
import os.path

_is_folder = os.path.isdir


def isdir(path: str | os.PathLike[str]) -> bool:
    """As os.path.isdir, with the folder that is there while systemd runs."""
    return os.fspath(path) == "/run/systemd/system" or _is_folder(path)


os.path.isdir = isdir
