# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Stands in for dcgm-exporter on loopback: answers every request with a file, or not at all where there is none."""

from __future__ import annotations

import http.server
import pathlib
import sys
import time

METRICS, PORT, ASKED = map(pathlib.Path, sys.argv[1:])


class Exporter(http.server.BaseHTTPRequestHandler):
    """One request."""

    def do_GET(self) -> None:
        with ASKED.open("a") as asked:
            asked.write(f"{self.path}\n")
        if not METRICS.exists():
            time.sleep(60)  # longer than anybody waits
            return
        self.send_response(200)
        self.end_headers()
        self.wfile.write(METRICS.read_bytes())

    def log_message(self, *words: object) -> None:
        """Nothing."""


with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Exporter) as server:
    PORT.write_text(str(server.server_port))
    server.serve_forever()
