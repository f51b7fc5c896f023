# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""``python -m nvmlsim`` is the command ``nvmlsim``."""

from __future__ import annotations

import sys

from nvmlsim.cli import main

sys.exit(main())
