# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Tells a stand-in how to behave from its next start or stop on.

    sim-behave UNIT '{"stop": "hang"}'
    sim-behave --clear

systemd reads its files again only where it has to know as well: for {"stop": "refuse"}.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import typing as t

import simulated

FOLDER = f"{simulated.HOST}/behaviour"


def main(words: t.Sequence[str]) -> int:
    before = refusing()
    if words == ["--clear"]:
        for name in os.listdir(FOLDER):
            os.unlink(f"{FOLDER}/{name}")
    elif len(words) == 2:
        json.loads(words[1])
        os.makedirs(FOLDER, exist_ok=True)
        with open(f"{FOLDER}/{words[0].removesuffix('.service')}", "w", encoding="utf-8") as file:
            file.write(words[1] + "\n")
    else:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    if refusing() != before:
        return subprocess.run(["systemctl", "daemon-reload"], check=False).returncode
    return 0


def refusing() -> set[str]:
    if not os.path.isdir(FOLDER):
        return set()
    return {name for name in os.listdir(FOLDER) if simulated.behaviour(name).get("stop") == "refuse"}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
