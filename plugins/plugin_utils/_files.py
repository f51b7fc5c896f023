# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Write files of the controller: all of them or none, and each at once for whoever reads it.

This file is private to the collection gpufleet.mig and may change at any time.
"""

from __future__ import annotations

import os
import tempfile
import typing as t


class WriteProblem(Exception):
    """A file cannot be written, and none was; the message is one sentence."""


def differing(files: t.Mapping[str, bytes]) -> list[str]:
    """Return those paths whose files do not have this content now. Raises WriteProblem for one that cannot be read."""
    return [path for path, content in files.items() if _content(path) != content]


def require_own(paths: t.Iterable[str], mark: bytes) -> None:
    """Raise WriteProblem when one of these files is there and does not begin with ``mark``: somebody else wrote it."""
    for path in paths:
        content = _content(path)
        if content is not None and not content.startswith(mark):
            raise WriteProblem(
                f"{path!r} is there and was not written by this task; move it away, or choose another folder. Nothing"
                " was written."
            )


def _content(path: str) -> t.Optional[bytes]:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise WriteProblem(_in_words(path, error)) from None


def write(files: t.Mapping[str, bytes], mode: int) -> None:
    """Write all files, with missing folders. Raises WriteProblem.

    All of the content is on the disk before the first name changes, so a full disk changes nothing. Until then it has
    names that begin with a dot and end in ``.tmp``, which neither node_exporter nor Ansible reads.
    """
    drafts: list[tuple[str, str]] = []
    path = ""
    try:
        try:
            for path, content in files.items():
                drafts.append((_draft(path, content, mode), path))
            while drafts:
                draft, path = drafts[0]
                os.replace(draft, path)
                del drafts[0]
        finally:
            for draft, _path in drafts:
                os.unlink(draft)
    except OSError as error:
        raise WriteProblem(_in_words(path, error)) from None


def _draft(path: str, content: bytes, mode: int) -> str:
    """Put the content beside its place, for good; returns where. Nothing is left where that fails."""
    folder = os.path.dirname(path)
    os.makedirs(folder, exist_ok=True)
    descriptor, draft = tempfile.mkstemp(prefix=f".{os.path.basename(path)[:100]}.", suffix=".tmp", dir=folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
    except BaseException:
        os.unlink(draft)
        raise
    return draft


def _in_words(path: str, error: OSError) -> str:
    return f"{path!r} cannot be written on the controller: {error.strerror or error}. Correct that, and run again."
