# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""In every Python that Ansible starts on a host of the benchmark: what it cost that host, as a line at its end."""

from __future__ import annotations

import atexit
import os
import resource

_FILE = os.environ.get("NODE_TIMES", "")
_PROCESS = os.getpid()


def _tell() -> None:
    if os.getpid() != _PROCESS:
        return  # a child that was forked
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    seconds = sum(each.ru_utime + each.ru_stime for each in used)
    descriptor = os.open(_FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, f"{os.environ['NODE_NAME']} {seconds:.6f}\n".encode())
    os.close(descriptor)


if _FILE:
    atexit.register(_tell)
