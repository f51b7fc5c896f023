# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""One unary call of gRPC over a unix socket: a connection, a request, an answer, all of it bounded.

HTTP/2 without TLS or upgrade (RFC 9113, "prior knowledge"). Each call has a connection of its own, on which it is
stream 1. What a server may do within the protocol is followed; anything else ends the call.
"""

from __future__ import annotations

import socket
import struct
import time
import typing as t
import urllib.parse

from . import hpack
from .errors import CallError, Malformed, NobodyListens, NotAllowed, Refused, TooLate, status_name

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_STREAM = 1

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM = ACK = 0x1
END_HEADERS, PADDED, HAS_PRIORITY = 0x4, 0x8, 0x20

_ENABLE_PUSH = 2

# We never allow more, and this is what a connection begins with.
_LARGEST_FRAME = 16384
_MOST_HEADER_BYTES = 64 * 1024
# Beyond the answer itself: headers, pings and the rest. More is somebody who keeps us busy.
_MOST_OTHER_BYTES = 1024 * 1024

_ERROR_NAMES = (
    "NO_ERROR",
    "PROTOCOL_ERROR",
    "INTERNAL_ERROR",
    "FLOW_CONTROL_ERROR",
    "SETTINGS_TIMEOUT",
    "STREAM_CLOSED",
    "FRAME_SIZE_ERROR",
    "REFUSED_STREAM",
    "CANCEL",
    "COMPRESSION_ERROR",
    "CONNECT_ERROR",
    "ENHANCE_YOUR_CALM",
    "INADEQUATE_SECURITY",
    "HTTP_1_1_REQUIRED",
)


def call(path: str, method: str, message: bytes, *, timeout: float, most_bytes: int) -> bytes:
    """The answer to ``message``, a request of the method ``/SERVICE/METHOD`` of the server at this socket.

    ``timeout`` is for all of it, in seconds; an answer of more than ``most_bytes`` is refused. Raises CallError.
    """
    with _Wire(path, timeout, most_bytes + _MOST_OTHER_BYTES) as wire:
        wire.send(_PREFACE + _frame(SETTINGS, 0, 0, struct.pack(">HI", _ENABLE_PUSH, 0)))
        wire.send(_request(method, message))
        return _Answer(wire, most_bytes).read()


def _frame(kind: int, flags: int, stream: int, content: bytes) -> bytes:
    return struct.pack(">I", len(content))[1:] + struct.pack(">BBI", kind, flags, stream) + content


def _request(method: str, message: bytes) -> bytes:
    headers = hpack.encode(
        (
            (":method", "POST"),
            (":scheme", "http"),
            (":path", method),
            (":authority", "localhost"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
            ("user-agent", "gpufleet-mig"),
        )
    )
    prefixed = struct.pack(">BI", 0, len(message)) + message
    return _frame(HEADERS, END_HEADERS, _STREAM, headers) + _frame(DATA, END_STREAM, _STREAM, prefixed)


class Frame(t.NamedTuple):
    """A frame as it came."""

    kind: int
    flags: int
    stream: int
    content: bytes

    def has(self, flag: int) -> bool:
        return bool(self.flags & flag)


class _Wire:
    """The connection: frames in, bytes out, until the time is up or too much has come."""

    def __init__(self, path: str, timeout: float, most_bytes: int) -> None:
        self._deadline = time.monotonic() + timeout
        self._timeout = timeout
        self._most_bytes = most_bytes
        self._received = 0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._connect(path)
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> _Wire:
        return self

    def __exit__(self, *exception: object) -> None:
        self._socket.close()

    def _connect(self, path: str) -> None:
        try:
            self._wait_no_longer()
            self._socket.connect(path)
        except FileNotFoundError as error:
            raise NobodyListens(f"there is no {path}", missing=True) from error
        except ConnectionRefusedError as error:
            raise NobodyListens(f"no process listens on {path}", missing=False) from error
        except PermissionError as error:
            raise NotAllowed(f"this user may not open {path}") from error
        except BlockingIOError as error:
            raise TooLate(f"so many wait for an answer from {path} that it takes no more") from error
        except OSError as error:
            raise CallError(f"{path} cannot be opened: {error.strerror or error}") from error

    def _wait_no_longer(self) -> None:
        """Let the next wait end when the time is up."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise self._too_late()
        self._socket.settimeout(left)

    def _too_late(self) -> TooLate:
        return TooLate(f"the answer was not complete after {self._timeout:g} seconds")

    def send(self, data: bytes) -> None:
        try:
            self._wait_no_longer()
            self._socket.sendall(data)
        except socket.timeout as error:
            raise self._too_late() from error
        except OSError as error:
            raise CallError(f"the connection broke: {error.strerror or error}") from error

    def reply(self, data: bytes) -> None:
        """Say what the server may want to hear; one that has closed already has perhaps sent all there is before."""
        try:
            self._wait_no_longer()
            self._socket.sendall(data)
        except socket.timeout as error:
            raise self._too_late() from error
        except OSError:
            pass  # the next read tells

    def receive(self) -> Frame:
        head = self._exactly(9)
        size = int.from_bytes(head[:3], "big")
        kind, flags, stream = struct.unpack(">BBI", head[3:])
        if size > _LARGEST_FRAME:
            raise Malformed(f"a frame of {size} bytes came, and no more than {_LARGEST_FRAME} are allowed")
        return Frame(kind, flags, stream & 0x7FFFFFFF, self._exactly(size))

    def _exactly(self, size: int) -> bytes:
        self._received += size
        if self._received > self._most_bytes:
            raise Malformed(f"more than {self._most_bytes} bytes came")
        data = bytearray()
        while len(data) < size:
            part = self._some(size - len(data))
            if not part:
                raise CallError("the connection was closed before the answer was complete")
            data += part
        return bytes(data)

    def _some(self, size: int) -> bytes:
        try:
            self._wait_no_longer()
            return self._socket.recv(size)
        except socket.timeout as error:
            raise self._too_late() from error
        except OSError as error:
            raise CallError(f"the connection broke: {error.strerror or error}") from error


class _Answer:
    """What has come of the answer, frame by frame."""

    def __init__(self, wire: _Wire, most_bytes: int) -> None:
        self._wire = wire
        self._most_bytes = most_bytes
        self._decoder = hpack.Decoder()
        self._body = bytearray()
        self._began = False
        self._trailers: t.Optional[dict[str, str]] = None

    def read(self) -> bytes:
        """The message, once all of it and its status are there."""
        frame = self._wire.receive()
        if frame.kind != SETTINGS or frame.has(ACK):
            raise Malformed("what answers does not speak HTTP/2")
        self._settings(frame)
        while self._trailers is None:
            self._take(self._wire.receive())
        self._require_ok(self._trailers)
        return self._message()

    def _take(self, frame: Frame) -> None:
        if frame.kind == DATA:
            self._data(frame)
        elif frame.kind == HEADERS:
            self._headers(frame)
        elif frame.kind == SETTINGS:
            self._settings(frame)
        elif frame.kind == PING:
            self._ping(frame)
        elif frame.kind == RST_STREAM:
            self._reset(frame)
        elif frame.kind == GOAWAY:
            self._goaway(frame)
        elif frame.kind in (PUSH_PROMISE, CONTINUATION):
            raise Malformed(f"a frame of the kind {frame.kind} came where none is allowed")
        # WINDOW_UPDATE and PRIORITY are about what we would send next. Frames of other kinds are to be ignored.

    # ---- about the connection ---------------------------------------------------------------------------------------

    def _settings(self, frame: Frame) -> None:
        if frame.stream != 0 or len(frame.content) % 6 or (frame.has(ACK) and frame.content):
            raise Malformed("settings came in a wrong form")
        if not frame.has(ACK):
            self._wire.reply(_frame(SETTINGS, ACK, 0, b""))

    def _ping(self, frame: Frame) -> None:
        if frame.stream != 0 or len(frame.content) != 8:
            raise Malformed("a ping came in a wrong form")
        if not frame.has(ACK):
            self._wire.reply(_frame(PING, ACK, 0, frame.content))

    def _goaway(self, frame: Frame) -> None:
        """A server that shuts down finishes the calls that it names, and no later ones."""
        if frame.stream != 0 or len(frame.content) < 8:
            raise Malformed("a farewell came in a wrong form")
        last, code = struct.unpack(">II", frame.content[:8])
        if code != 0 or last & 0x7FFFFFFF < _STREAM:
            said = frame.content[8:].decode("utf-8", "replace")
            raise Refused(_error_name(code), said or "the server is going away")

    # ---- about the call ---------------------------------------------------------------------------------------------

    def _reset(self, frame: Frame) -> None:
        self._require_our_stream(frame)
        if len(frame.content) != 4:
            raise Malformed("the end of a stream came in a wrong form")
        raise Refused(_error_name(int.from_bytes(frame.content, "big")), "the server gave the call up")

    def _data(self, frame: Frame) -> None:
        self._require_our_stream(frame)
        if not self._began:
            raise Malformed("an answer came without headers")
        self._body += _without_padding(frame)
        if len(self._body) > self._most_bytes + 5:
            raise Malformed(f"the answer has more than {self._most_bytes} bytes")
        if frame.has(END_STREAM):
            raise Malformed("an answer ended without a status")
        if frame.content:
            # Padding counts too. All of it has been taken in, so that the server may send as much again.
            more = struct.pack(">I", len(frame.content))
            self._wire.reply(_frame(WINDOW_UPDATE, 0, 0, more) + _frame(WINDOW_UPDATE, 0, _STREAM, more))

    def _headers(self, frame: Frame) -> None:
        self._require_our_stream(frame)
        block = bytearray(_without_priority(frame, _without_padding(frame)))
        last = frame
        while not last.has(END_HEADERS):
            last = self._wire.receive()
            if last.kind != CONTINUATION or last.stream != _STREAM:
                raise Malformed("headers were interrupted")
            block += last.content
            if len(block) > _MOST_HEADER_BYTES:
                raise Malformed(f"there are more than {_MOST_HEADER_BYTES} bytes of headers")
        headers = dict(self._decoder.decode(bytes(block)))
        ends = frame.has(END_STREAM)
        if not self._began and headers.get(":status", "").startswith("1"):
            return  # an interim answer
        if not self._began:
            self._begin(headers, ends)
        elif not ends:
            raise Malformed("headers came twice")
        self._began = True
        if ends:
            self._trailers = headers

    def _begin(self, headers: t.Mapping[str, str], ends: bool) -> None:
        """An answer that is nothing but a status has it where the headers are."""
        if headers.get(":status") != "200":
            raise Refused(f"HTTP {headers.get(':status', 'without a status')[:40]}", "this is no server of gRPC")
        if not headers.get("content-type", "").startswith("application/grpc"):
            raise Malformed("the answer is not one of gRPC")
        if ends and headers.get("grpc-status") == "0":
            raise Malformed("the answer has a status and no message")

    def _require_our_stream(self, frame: Frame) -> None:
        if frame.stream != _STREAM:
            raise Malformed(f"a frame came for stream {frame.stream}, which there is not")

    @staticmethod
    def _require_ok(trailers: t.Mapping[str, str]) -> None:
        status = trailers.get("grpc-status", "")
        if not (status.isascii() and status.isdigit()):
            raise Malformed("an answer ended without a status")
        if int(status[:9]) != 0:
            said = urllib.parse.unquote(trailers.get("grpc-message", ""), errors="replace")
            raise Refused(status_name(int(status[:9])), said)

    def _message(self) -> bytes:
        if len(self._body) < 5:
            raise Malformed("the answer has no message")
        compressed, size = struct.unpack(">BI", self._body[:5])
        if compressed:
            raise Malformed("the message is compressed, which was not agreed to")
        if size != len(self._body) - 5:
            raise Malformed(f"the message has {len(self._body) - 5} bytes and says that it has {size}")
        return bytes(self._body[5:])


def _without_padding(frame: Frame) -> bytes:
    if not frame.has(PADDED):
        return frame.content
    if not frame.content or frame.content[0] >= len(frame.content):
        raise Malformed("a frame has more padding than content")
    return frame.content[1 : len(frame.content) - frame.content[0]]


def _without_priority(frame: Frame, content: bytes) -> bytes:
    if not frame.has(HAS_PRIORITY):
        return content
    if len(content) < 5:
        raise Malformed("headers came in a wrong form")
    return content[5:]


def _error_name(code: int) -> str:
    return _ERROR_NAMES[code] if code < len(_ERROR_NAMES) else f"error {code}"
