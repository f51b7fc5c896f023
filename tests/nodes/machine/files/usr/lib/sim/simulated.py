# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What all programs of the simulated machine share: its state, its log, how its parts are told to behave.

The state is the file that the simulated driver works on. It is there whether or not the driver is loaded, as the GPUs
of a computer are; only /run/nvmlsim/state, a link to it, comes and goes with the driver.
"""

from __future__ import annotations

import ctypes
import json
import os
import typing as t

HOST = "/run/sim-host"  # a folder that this machine shares with the one that runs it
STATE = f"{HOST}/gpus"
CAPABILITIES = f"{STATE}.capabilities"
RUN = "/run/nvmlsim"
LINK = f"{RUN}/state"

Node = dict[str, t.Any]


class SimulationError(Exception):
    """What could not be simulated, in one sentence."""


def library() -> t.Any:
    return ctypes.CDLL("libnvidia-ml.so.1")


def driver_is_loaded() -> bool:
    return os.path.exists(LINK)


def node(path: str = STATE) -> t.Optional[Node]:
    """The GPUs and all about them; None on a machine without any."""
    if not os.path.exists(path):
        return None
    describe = library().nvmlsim_describe
    size = 1 << 17
    while True:
        buffer = ctypes.create_string_buffer(size)
        needed = describe(path.encode(), buffer, size)
        if needed < 0:
            raise SimulationError(f"{path} is not the state of a simulated node, or of another version")
        if needed <= size:
            return t.cast(Node, json.loads(buffer.value))
        size = needed + (1 << 16)


def event(request: str) -> None:
    """Let something happen to the node, without a call of NVML."""
    _ask("nvmlsim_event", request)


def occupy(request: str) -> None:
    """``add gpu=0 pid=1 kind=client``, or ``remove pid=1``."""
    _ask("nvmlsim_occupy", request)


def _ask(function: str, request: str) -> None:
    error = ctypes.create_string_buffer(1024)
    if getattr(library(), function)(STATE.encode(), request.encode(), error, len(error)):
        raise SimulationError(error.value.decode(errors="replace"))


def settings() -> dict[str, t.Any]:
    """What this machine is to be like: driver.json."""
    return _object(f"{HOST}/driver.json")


def behaviour(unit: str) -> dict[str, t.Any]:
    """How a part is to behave, read when it is about to: behaviour/UNIT, with or without .service."""
    return _object(f"{HOST}/behaviour/{unit}") or _object(f"{HOST}/behaviour/{unit}.service")


def _object(path: str) -> dict[str, t.Any]:
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except FileNotFoundError:
        return {}
    if not isinstance(found, dict):
        raise SimulationError(f"{path} has to hold an object")
    return found


def note(unit: str, what: str) -> None:
    """A line in log/units: seconds since the computer below booted, as all its nodes count them; unit; what it does."""
    line = f"{clock():.3f} {unit} {what}\n"
    try:
        os.makedirs(f"{HOST}/log", exist_ok=True)
        with open(f"{HOST}/log/units", "a", encoding="utf-8") as file:
            file.write(line)
    except OSError:
        pass  # a machine that nobody watches


def clock() -> float:
    import time

    return time.clock_gettime(time.CLOCK_MONOTONIC)


def rename_process(name: str) -> None:
    """Be called what the real program is called, as far as the kernel keeps it."""
    with open("/proc/self/comm", "w", encoding="ascii") as file:
        file.write(name[:15])


def has_open(path_starts: tuple[str, ...]) -> list[int]:
    """Processes that have a file open whose path begins like one of these."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            numbers = os.listdir(f"/proc/{name}/fd")
        except OSError:
            continue
        for number in numbers:
            try:
                target = os.readlink(f"/proc/{name}/fd/{number}")
            except OSError:
                continue
            if target.startswith(path_starts):
                found.append(int(name))
                break
    return sorted(found)
