# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Messages of Protocol Buffers, read without their schema: whoever reads says which fields he knows."""

from __future__ import annotations

import typing as t

from .errors import Malformed

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_MOST_VARINT_BYTES = 10


def fields(message: bytes) -> t.Iterator[tuple[int, t.Union[int, bytes]]]:
    """Number and value of each field in order: a number, or the bytes of a text or of a message. Raises Malformed."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        number, kind = tag >> 3, tag & 7
        if number == 0:
            raise Malformed("a message has a field without a number")
        if kind == VARINT:
            value, at = _varint(message, at)
            yield number, value
            continue
        if kind == BYTES:
            size, at = _varint(message, at)
        elif kind in (FIXED32, FIXED64):
            size = 4 if kind == FIXED32 else 8
        else:
            raise Malformed(f"a message has a field of the unknown kind {kind}")
        if size > len(message) - at:
            raise Malformed("a message ends in the middle of a field")
        content = message[at : at + size]
        at += size
        yield number, content if kind == BYTES else int.from_bytes(content, "little")


def messages(message: bytes, number: int) -> t.Iterator[bytes]:
    """The content of each field with this number, which is a message or a text."""
    for each, value in fields(message):
        if each == number:
            if not isinstance(value, bytes):
                raise Malformed(f"field {number} of a message is a number where a text or a message belongs")
            yield value


def texts(message: bytes, number: int) -> tuple[str, ...]:
    """The texts with this number."""
    try:
        return tuple(value.decode("utf-8") for value in messages(message, number))
    except UnicodeDecodeError as error:
        raise Malformed(f"field {number} of a message is no text: {error}") from error


def text(message: bytes, number: int) -> str:
    """The text with this number; of several the last one counts, and of none it is empty."""
    found = texts(message, number)
    return found[-1] if found else ""


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """A number of variable length, and where the next thing begins."""
    value = 0
    for count, byte in enumerate(message[at : at + _MOST_VARINT_BYTES]):
        value |= (byte & 0x7F) << 7 * count
        if not byte & 0x80:
            return value, at + count + 1
    raise Malformed("a message has a number without an end")
