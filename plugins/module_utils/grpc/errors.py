# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What can go wrong with a call."""

from __future__ import annotations

# The names of gRPC's status codes, in the order of their numbers.
STATUS_NAMES = (
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
)


class CallError(Exception):
    """A call had no answer. The text says what happened and does not end with a full stop."""


class NobodyListens(CallError):
    """There is no socket at this path, or no process behind it. ``missing``: there is no socket."""

    def __init__(self, text: str, missing: bool) -> None:
        super().__init__(text)
        self.missing = missing


class NotAllowed(CallError):
    """This user may not open the socket."""


class TooLate(CallError):
    """The answer was not complete when the time was up."""


class Malformed(CallError):
    """What came is not what the protocol allows, or more than was agreed to."""


class Refused(CallError):
    """The server ended the call with a status other than OK, or the stream with an error of HTTP/2."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}" if message else name)
        self.name = name
        self.message = message


def status_name(code: int) -> str:
    """``UNIMPLEMENTED`` for 12."""
    return STATUS_NAMES[code] if 0 <= code < len(STATUS_NAMES) else f"status {code}"
