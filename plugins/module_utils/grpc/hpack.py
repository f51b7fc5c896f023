# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Headers of HTTP/2 as they travel: the decoder of RFC 7541, and the plainest encoding there is.

Servers written in Go use all of it: entries of the static and the dynamic table, and Huffman codes.
"""

from __future__ import annotations

import functools
import typing as t

from .errors import Malformed

Header = tuple[str, str]

# RFC 7541, appendix A. The first entry has the number 1; these are the last ones, which are names without a value.
# fmt: off
_NAMES_ALONE = (
    "accept-language", "accept-ranges", "accept", "access-control-allow-origin", "age", "allow",
    "authorization", "cache-control", "content-disposition", "content-encoding", "content-language",
    "content-length", "content-location", "content-range", "content-type", "cookie", "date", "etag", "expect",
    "expires", "from", "host", "if-match", "if-modified-since", "if-none-match", "if-range",
    "if-unmodified-since", "last-modified", "link", "location", "max-forwards", "proxy-authenticate",
    "proxy-authorization", "range", "referer", "refresh", "retry-after", "server", "set-cookie",
    "strict-transport-security", "transfer-encoding", "user-agent", "vary", "via", "www-authenticate",
)
# fmt: on
_STATIC: tuple[Header, ...] = (
    (":authority", ""),
    (":method", "GET"),
    (":method", "POST"),
    (":path", "/"),
    (":path", "/index.html"),
    (":scheme", "http"),
    (":scheme", "https"),
    (":status", "200"),
    (":status", "204"),
    (":status", "206"),
    (":status", "304"),
    (":status", "400"),
    (":status", "404"),
    (":status", "500"),
    ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"),
    *((name, "") for name in _NAMES_ALONE),
)

# RFC 7541, appendix B: how many bits the code of each byte has, and of the mark for the end (256). That is enough,
# since codes of one length are numbers in a row, in the order of the bytes, and shorter ones come before longer ones.
# fmt: off
_CODE_LENGTHS = (
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28,
    28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7,
    8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19,
    13, 14, 6, 15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13,
    28, 20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21,
    22, 23, 22, 23, 23, 24, 22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23,
    22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25,
    19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25,
    25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26, 30,
)
# fmt: on
_END = 256
_LONGEST_PADDING = 7

_TABLE_SIZE = 4096  # what HTTP/2 begins with; we never offer another
_ENTRY_OVERHEAD = 32


@functools.cache
def _codes() -> dict[tuple[int, int], int]:
    """The byte that each code stands for, by length and code."""
    codes = {}
    code = length = 0
    for symbol in sorted(range(len(_CODE_LENGTHS)), key=lambda each: (_CODE_LENGTHS[each], each)):
        code <<= _CODE_LENGTHS[symbol] - length
        length = _CODE_LENGTHS[symbol]
        codes[length, code] = symbol
        code += 1
    return codes


def decode_huffman(data: bytes) -> bytes:
    """The bytes behind Huffman codes. What is left of the last byte must be the first bits of the mark for the end."""
    codes = _codes()
    decoded = bytearray()
    code = length = 0
    for byte in data:
        for bit in range(7, -1, -1):
            code = code << 1 | byte >> bit & 1
            length += 1
            symbol = codes.get((length, code))
            if symbol == _END or length > max(_CODE_LENGTHS):
                raise Malformed("a header has a Huffman code that stands for nothing")
            if symbol is not None:
                decoded.append(symbol)
                code = length = 0
    if length > _LONGEST_PADDING or code != (1 << length) - 1:
        raise Malformed("a header ends in the middle of a Huffman code")
    return bytes(decoded)


def encode(headers: t.Iterable[Header]) -> bytes:
    """Headers as literals that no table takes up, without Huffman codes. Names and values have under 127 bytes."""
    block = bytearray()
    for name, value in headers:
        block.append(0)
        for text in (name, value):
            data = text.encode("ascii")
            if len(data) >= 0x7F:
                raise ValueError(f"{name} is too long for this encoder")
            block.append(len(data))
            block += data
    return bytes(block)


class _Reader:
    """A header block and how far it has been read."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def more(self) -> bool:
        return self._at < len(self._data)

    def byte(self) -> int:
        if not self.more():
            raise Malformed("a header block ends too early")
        self._at += 1
        return self._data[self._at - 1]

    def number(self, first: int, bits: int) -> int:
        """An integer whose beginning are the low bits of ``first``."""
        value = first & (1 << bits) - 1
        if value < (1 << bits) - 1:
            return value
        for shift in range(0, 28, 7):
            byte = self.byte()
            value += (byte & 0x7F) << shift
            if not byte & 0x80:
                return value
        raise Malformed("a header block has a number that is too large")

    def text(self) -> str:
        first = self.byte()
        length = self.number(first, 7)
        data = self._data[self._at : self._at + length]
        if len(data) < length:
            raise Malformed("a header block ends too early")
        self._at += length
        # Values are bytes. Those that are not ASCII are kept, and shown as what they are.
        return (decode_huffman(data) if first & 0x80 else data).decode("latin-1")


class Decoder:
    """The decoder of one connection: blocks refer to headers of the blocks before them."""

    def __init__(self) -> None:
        self._dynamic: list[Header] = []  # newest first
        self._limit = _TABLE_SIZE

    def decode(self, block: bytes) -> list[Header]:
        """The headers of one block, in order. Raises Malformed."""
        reader = _Reader(block)
        headers: list[Header] = []
        while reader.more():
            first = reader.byte()
            if first & 0x80:
                headers.append(self._entry(reader.number(first, 7)))
            elif first & 0xC0 == 0x40:
                header = self._literal(reader, reader.number(first, 6))
                self._remember(header)
                headers.append(header)
            elif first & 0xE0 == 0x20:
                if headers:
                    raise Malformed("a header block changes the size of its table after its first header")
                self._resize(reader.number(first, 5))
            else:
                headers.append(self._literal(reader, reader.number(first, 4)))
        return headers

    def _entry(self, number: int) -> Header:
        if 1 <= number <= len(_STATIC):
            return _STATIC[number - 1]
        if len(_STATIC) < number <= len(_STATIC) + len(self._dynamic):
            return self._dynamic[number - len(_STATIC) - 1]
        raise Malformed(f"a header block names entry {number} of its tables, which is not there")

    def _literal(self, reader: _Reader, number: int) -> Header:
        name = self._entry(number)[0] if number else reader.text()
        return name, reader.text()

    def _remember(self, header: Header) -> None:
        self._dynamic.insert(0, header)
        self._forget()

    def _resize(self, limit: int) -> None:
        if limit > _TABLE_SIZE:
            raise Malformed("a header block wants a larger table than was offered")
        self._limit = limit
        self._forget()

    def _forget(self) -> None:
        while self._dynamic and sum(len(n) + len(v) + _ENTRY_OVERHEAD for n, v in self._dynamic) > self._limit:
            self._dynamic.pop()
