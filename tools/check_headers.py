# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Every source file says whose it is and under which licence, within its first lines; names each that does not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = {".py", ".c", ".h", ".sh", ".yml", ".yaml", ".toml", ".cfg"}
ALSO = {"Makefile", ".ci/run"}
# Written by antsibull-changelog.
GENERATED = ("changelogs/changelog.yaml", "changelogs/fragments/")
WANTED = (
    "Copyright (c) 2026, the gpufleet.mig authors",
    "GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)",
    "SPDX-License-Identifier: GPL-3.0-or-later",
)
LINES = 8


def sources() -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    ).stdout.split("\0")
    return [
        name
        for name in sorted(listed)
        if (Path(name).suffix in SOURCES or name in ALSO) and not name.startswith(GENERATED) and (ROOT / name).is_file()
    ]


def without_header(name: str) -> bool:
    text = (ROOT / name).read_text(encoding="utf-8")
    head = "\n".join(text.splitlines()[:LINES])
    return bool(text.strip()) and not all(line in head for line in WANTED)


def main() -> int:
    bare = [name for name in sources() if without_header(name)]
    for name in bare:
        print(f"{name}: the licence header is missing from its first {LINES} lines")
    if bare:
        print("It reads, as comments:\n" + "\n".join(f"    {line}" for line in WANTED))
    return 1 if bare else 0


if __name__ == "__main__":
    sys.exit(main())
