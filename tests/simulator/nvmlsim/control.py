# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Functions of the library that are not NVML's: how the command and the tests make, watch and disturb a node."""

from __future__ import annotations

import ctypes
import functools
import json
import typing as t

from nvmlsim.build import Build, ensure_built
from nvmlsim.errors import SimulatorError

ERROR_SIZE = 1024


@functools.cache
def build() -> Build:
    """The build that this process works with."""
    return ensure_built()


@functools.cache
def _library() -> t.Any:
    """The library without NVML's functions: loading it does not make this process see a simulated GPU."""
    library = ctypes.CDLL(str(build().control))
    library.nvmlsim_assumptions.restype = ctypes.c_char_p
    return library


def create(path: str, description: str) -> None:
    """Make the state file."""
    _ask("nvmlsim_create", path, description)


def occupy(path: str, request: str) -> None:
    """Add or remove a holder."""
    _ask("nvmlsim_occupy", path, request)


def fault(path: str, request: str) -> None:
    """Set a fault, or clear them all."""
    _ask("nvmlsim_fault", path, request)


def memory(path: str, request: str) -> None:
    """Say what state the memory of a GPU is in."""
    _ask("nvmlsim_memory", path, request)


def event(path: str, request: str) -> None:
    """Let something happen to the node: reboot, reload, reset, a daemon that starts or ends."""
    _ask("nvmlsim_event", path, request)


def describe(path: str) -> dict[str, t.Any]:
    """The live state."""
    return _answer(path, lambda buffer, size: _library().nvmlsim_describe(path.encode(), buffer, size))


def calls(path: str, reset: bool) -> dict[str, t.Any]:
    """The record of calls; with ``reset`` it starts anew after this."""
    return _answer(path, lambda buffer, size: _library().nvmlsim_calls(path.encode(), int(reset), buffer, size))


def assumptions() -> str:
    """What the library assumes, as text."""
    return str(_library().nvmlsim_assumptions().decode())


def _ask(function: str, path: str, request: str) -> None:
    error = ctypes.create_string_buffer(ERROR_SIZE)
    if getattr(_library(), function)(path.encode(), request.encode(), error, ERROR_SIZE):
        raise SimulatorError(error.value.decode(errors="replace") or f"{function} failed without saying why")


def _answer(path: str, ask: t.Callable[[t.Any, int], int]) -> dict[str, t.Any]:
    """JSON of unknown length: the function says how much room it needs, which may grow until it is asked again."""
    size = 1 << 16
    while True:
        buffer = ctypes.create_string_buffer(size)
        needed = ask(buffer, size)
        if needed < 0:
            raise SimulatorError(f"{path} is not the state of a simulated node, or of another version of the simulator")
        if needed <= size:
            return t.cast("dict[str, t.Any]", json.loads(buffer.value))
        size = needed + (1 << 16)
