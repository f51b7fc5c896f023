# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A server on a unix socket that does what a test says, frame by frame: also what no real server does."""

from __future__ import annotations

import contextlib
import pathlib
import socket
import struct
import tempfile
import threading
import typing as t

import yaml

from ansible_collections.gpufleet.mig.plugins.module_utils.grpc import http2

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_WAIT = 30  # seconds after which a test has gone wrong


def recorded() -> dict[str, bytes]:
    """What real servers answered, by name."""
    text = (pathlib.Path(__file__).parent / "recorded.yaml").read_text(encoding="utf-8")
    return {name: bytes.fromhex(digits) for name, digits in yaml.safe_load(text).items()}


def literal(*headers: tuple[str, str]) -> bytes:
    """A header block without tables and Huffman codes, of any length."""
    block = bytearray()
    for pair in headers:
        block.append(0)
        for text in pair:
            data = text.encode("latin-1")
            if len(data) < 0x7F:
                block.append(len(data))
            else:
                rest = len(data) - 0x7F
                block.append(0x7F)
                while rest >= 0x80:
                    block.append(rest & 0x7F | 0x80)
                    rest >>= 7
                block.append(rest)
            block += data
    return bytes(block)


HEADERS = literal((":status", "200"), ("content-type", "application/grpc"))
OK = literal(("grpc-status", "0"), ("grpc-message", ""))


def frame(kind: int, content: bytes = b"", flags: int = 0, stream: int = 1) -> bytes:
    return struct.pack(">I", len(content))[1:] + struct.pack(">BBI", kind, flags, stream) + content


def message(content: bytes) -> bytes:
    """A message of gRPC, with its prefix."""
    return b"\0" + struct.pack(">I", len(content)) + content


def answer(content: bytes) -> bytes:
    """A whole answer, of frames as they come from a server that knows no finesse."""
    return (
        frame(http2.SETTINGS, stream=0)
        + frame(http2.HEADERS, HEADERS, http2.END_HEADERS)
        + frame(http2.DATA, message(content))
        + frame(http2.HEADERS, OK, http2.END_HEADERS | http2.END_STREAM)
    )


class Peer:
    """One connection, seen from the server."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._connection.settimeout(_WAIT)
        self.frames: list[http2.Frame] = []

    def send(self, data: bytes) -> None:
        self._connection.sendall(data)

    def close(self) -> None:
        self._connection.close()

    def exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self._connection.recv(size - len(data))
            if not part:
                raise ConnectionError("the client has gone")
            data += part
        return data

    def frame(self) -> http2.Frame:
        """The next frame of the client."""
        head = self.exactly(9)
        kind, flags, stream = struct.unpack(">BBI", head[3:])
        self.frames.append(http2.Frame(kind, flags, stream, self.exactly(int.from_bytes(head[:3], "big"))))
        return self.frames[-1]

    def request(self) -> None:
        """Take the request in."""
        if self.exactly(len(PREFACE)) != PREFACE:
            raise ConnectionError("this is no client of HTTP/2")
        while not (self.frame().kind == http2.DATA and self.frames[-1].has(http2.END_STREAM)):
            pass

    def wait_for_the_end(self) -> None:
        """Until the client has closed the connection."""
        with contextlib.suppress(OSError):
            while True:
                self.frame()


Script = t.Callable[[Peer], None]


def sends(data: bytes) -> Script:
    """Take a request, and answer with these bytes, whatever they are."""

    def play(peer: Peer) -> None:
        peer.request()
        peer.send(data)

    return play


class Server:
    """Where the server listens, and what came on each connection."""

    def __init__(self, path: str, scripts: t.Sequence[Script]) -> None:
        self.path = path
        self.peers: list[Peer] = []
        self._scripts = scripts
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        for script in self._scripts:
            try:
                connection, _address = self._listener.accept()
            except OSError:
                return  # closed before the last script had its turn
            peer = Peer(connection)
            self.peers.append(peer)
            with contextlib.suppress(OSError):  # a client that hangs up is what many a test wants
                script(peer)
                peer.wait_for_the_end()
            peer.close()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(_WAIT)


@contextlib.contextmanager
def serving(*scripts: Script) -> t.Iterator[Server]:
    """A server that plays one script for each connection. Its path is short, as paths of sockets have to be."""
    with tempfile.TemporaryDirectory() as folder:
        server = Server(f"{folder}/kubelet.sock", scripts)
        try:
            yield server
        finally:
            server.close()
