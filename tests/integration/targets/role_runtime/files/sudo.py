# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A sudo for hosts that exist in tests only: everybody is root already.

Called sudo-tty it does as sudo with use_pty: the command gets a terminal of its own for what it prints, and that is
gone when the command ends.
"""

import contextlib
import os
import subprocess
import sys

with open(f"{sys.argv[0]}.used", "a", encoding="utf-8"):
    words = sys.argv[1:]
while words[0].startswith("-"):
    del words[: 2 if words[0] == "-u" else 1]
if not sys.argv[0].endswith("-tty"):
    os.execvp(words[0], words)
ours, theirs = os.openpty()
command = subprocess.Popen(words, stdout=theirs, stderr=theirs, start_new_session=True)
os.close(theirs)
with contextlib.suppress(OSError):
    while said := os.read(ours, 65536):
        sys.stdout.buffer.write(said)
        sys.stdout.buffer.flush()
os.close(ours)
sys.exit(command.wait())
