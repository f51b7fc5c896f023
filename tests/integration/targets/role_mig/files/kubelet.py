# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Stands in for a kubelet: tells on a socket which devices the pods in a file have, until it is ended.

    kubelet.py SOCKET PODS

PODS is JSON, a list of [pod, resource, device], and read anew for each question. A line for each question is added to
PODS.asked. Without PODS it breaks off in the middle of an answer.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import socket
import sys

from ansible_collections.gpufleet.mig.tests.unit.plugins.module_utils.grpc.stand_in import HEADERS, Peer, answer, frame


def field(number: int, content: str | bytes) -> bytes:
    """A field of a message; a size takes one byte up to 127, and two here beyond that."""
    data = content.encode() if isinstance(content, str) else content
    size = bytes([len(data)]) if len(data) < 0x80 else bytes([len(data) & 0x7F | 0x80, len(data) >> 7])
    return bytes([number << 3 | 2]) + size + data


def pod(name: str, resource: str, device: str) -> bytes:
    """One pod with one container that has one device."""
    container = field(1, "main") + field(2, field(1, resource) + field(2, device))
    return field(1, field(1, name) + field(2, "work") + field(3, container))


def main() -> None:
    path, pods = sys.argv[1], pathlib.Path(sys.argv[2])
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{path}.new")
    listener.listen()
    os.rename(f"{path}.new", path)  # whoever waits for the socket finds one that listens
    while True:
        connection, _address = listener.accept()
        with contextlib.suppress(OSError), connection:
            peer = Peer(connection)
            peer.request()
            with open(f"{pods}.asked", "a", encoding="utf-8") as file:
                file.write("asked\n")
            if pods.exists():
                peer.send(answer(b"".join(pod(*each) for each in json.loads(pods.read_text()))))
                peer.wait_for_the_end()
            else:
                peer.send(frame(1, HEADERS, 4))


if __name__ == "__main__":
    main()
