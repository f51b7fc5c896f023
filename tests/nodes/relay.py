# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Connects ssh to a node: run in the node's network namespace, as ssh's ProxyCommand with ProxyUseFdpass.

    relay.py                  hands ssh, over its standard output, a socket that is connected to sshd
    relay.py --wait SECONDS   returns as soon as sshd answers

A file of its own that imports little, because it starts once for every connection.
"""

import array
import socket
import sys
import time

SSHD = ("127.0.0.1", 22)


def hand_over() -> None:
    connection = socket.create_connection(SSHD, timeout=10)
    connection.settimeout(None)
    connection.setblocking(True)
    with socket.socket(fileno=1) as ssh:
        ssh.sendmsg([b"\0"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [connection.fileno()]))])


def wait(seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            with socket.create_connection(SSHD, timeout=5) as connection:
                if connection.recv(4) == b"SSH-":
                    return True
        except OSError:
            pass
        time.sleep(0.05)
    return False


if __name__ == "__main__":
    if sys.argv[1:2] == ["--wait"]:
        sys.exit(0 if wait(float(sys.argv[2])) else 1)
    hand_over()
