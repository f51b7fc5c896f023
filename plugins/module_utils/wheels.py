# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The NVML binding out of a wheel, without pip: a wheel is a zip file, and this one has a single module in it.

This file is private to the collection gpufleet.mig and may change at any time. It is used on the controller and on
nodes.
"""

from __future__ import annotations

import os
import re
import zipfile
import zlib

from .engine.model import WishError
from .engine.profiles import printable

MODULE = "pynvml.py"

# The discontinued wheels nvidia_ml_py3-... are not NVIDIA's binding of today.
_NAME = re.compile(r"nvidia_ml_py-(?P<version>[0-9][0-9A-Za-z.]*)(?:-[0-9][^-]*)?-py[0-9.py]+-none-any\.whl")
# The binding has some 300 KiB. A zip file may pretend to be small.
_LARGEST = 8 << 20
# A function that the oldest usable nvidia-ml-py has.
_NEWEST_NEEDED = b"nvmlDeviceGetMPSComputeRunningProcesses_v3"


def newest(folder: str) -> str:
    """The path of the newest wheel of nvidia-ml-py in a folder. Raises WishError."""
    try:
        names = os.listdir(folder)
    except OSError as error:
        raise WishError(f"wheel_dir {_shown(folder)} cannot be read: {error.strerror}.") from None
    wheels = [name for name in names if _NAME.fullmatch(name)]
    if not wheels:
        raise WishError(
            f"wheel_dir {_shown(folder)} has no nvidia_ml_py-*.whl: put one there, as 'pip download --no-deps"
            " nvidia-ml-py' fetches it elsewhere."
        )
    return os.path.join(folder, max(wheels, key=_age))


def read(wheel: str) -> bytes:
    """The module in a wheel. Raises WishError for one that is damaged, too old, or not what its name says."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(MODULE) as file:
            content = file.read(_LARGEST + 1)
    except (OSError, EOFError, KeyError, RuntimeError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise WishError(f"{_shown(wheel)} cannot be used ({printable(str(error))}): fetch it again.") from None
    if len(content) > _LARGEST or _NEWEST_NEEDED not in content:
        raise WishError(f"{_shown(wheel)} has no NVML binding that knows MIG: fetch a newer nvidia-ml-py.")
    return content


def _age(name: str) -> tuple[int, ...]:
    found = _NAME.fullmatch(name)
    return tuple(map(int, re.findall(r"\d+", found["version"]))) if found else ()


def _shown(path: str) -> str:
    return f"'{printable(path)}'"
