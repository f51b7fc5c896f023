# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""NVIDIA's Python binding of NVML as the controller has it, packed for a node that has none.

This file is private to the collection gpufleet.mig and may change at any time.
"""

from __future__ import annotations

import importlib.util
import io
import typing as t
import zipfile

FILE_NAME = "pynvml.py"
# Any constant will do: the same binding gives the same bytes, so that a transfer can be compared and cached.
EPOCH = (1980, 1, 1, 0, 0, 0)


def find() -> t.Optional[str]:
    """Return the path of the controller's ``pynvml.py``, or None when nvidia-ml-py is not installed there."""
    spec = importlib.util.find_spec("pynvml")
    # The discontinued package of the same name is a folder with an __init__.py: it is not NVIDIA's binding.
    if spec is None or spec.origin is None or not spec.origin.endswith(f"/{FILE_NAME}"):
        return None
    return spec.origin


def pack(path: str) -> bytes:
    """Return the binding at ``path`` as a zip that Python can import from."""
    with open(path, "rb") as source:
        return pack_content(source.read())


def pack_content(content: bytes) -> bytes:
    """Return a binding as a zip that Python can import from; equal input gives equal bytes."""
    entry = zipfile.ZipInfo(FILE_NAME, date_time=EPOCH)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = 0o644 << 16
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(entry, content, compresslevel=9)
    return buffer.getvalue()
