# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Programs of the node, run without a shell and with an end.

This file is private to the collection gpufleet.mig and may change at any time. Whoever uses it says what it means for
the GPUs that a program is missing, late or unhappy.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import typing as t

_STANDARD_PATH = "/usr/bin:/bin:/usr/sbin:/sbin"


class Answer(t.NamedTuple):
    """Exit status of a program (negative: the signal that ended it), and what it printed."""

    code: int
    out: str
    err: str


class Late(Exception):
    """A program did not come back in time. ``pid`` is its process where it could not be ended either, else None."""

    def __init__(self, pid: t.Optional[int]) -> None:
        super().__init__()
        self.pid = pid


def search_path() -> str:
    """Where programs are looked for: a login may know of fewer places than root needs."""
    return f"{os.environ.get('PATH', '')}:{_STANDARD_PATH}".lstrip(":")


def find(program: str) -> t.Optional[str]:
    """The absolute path of a program; None where it is not on this node."""
    found = shutil.which(program, path=search_path())
    return None if found is None else os.path.abspath(found)


def find_below(root: str, program: str) -> t.Optional[tuple[str, ...]]:
    """The words that run a program of another root, such as that of a driver in a container; None where it is not."""
    chroot = find("chroot")
    folders = ("usr/bin", "usr/sbin", "bin", "sbin")
    there = any(os.path.exists(os.path.join(root, folder, program)) for folder in folders)
    return (chroot, root, program) if chroot is not None and there else None


def run(
    words: t.Sequence[str],
    seconds: float,
    environment: t.Mapping[str, str],
    *,
    patience: float,
    merged: bool = False,
) -> Answer:
    """Run ``words`` (an absolute path first), in the language C; ``merged`` has its errors in ``out``, in their order.

    Raises OSError or ValueError when it cannot be run, and Late when it takes longer than ``seconds``. Then it was
    killed with all that it started, and ``patience`` is how many seconds that may take.
    """
    process = subprocess.Popen(  # pylint: disable=ansible-bad-function  # there is no AnsibleModule here
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if merged else subprocess.PIPE,
        env={**environment, "PATH": search_path(), "LC_ALL": "C"},
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        raise Late(None if _end(process, patience) else process.pid) from None
    return Answer(process.returncode, out.decode("utf-8", "replace"), (err or b"").decode("utf-8", "replace"))


def _end(process: subprocess.Popen[bytes], patience: float) -> bool:
    """Kill a program with all that it started; False when it does not die, since it sleeps in the kernel."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=patience)
    except subprocess.TimeoutExpired:
        return False
    except OSError:
        pass  # it has ended meanwhile
    return True
