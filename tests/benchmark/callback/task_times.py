# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Writes how long each task took to the file that TASK_TIMES names, one ``action seconds changed`` a line."""

from __future__ import annotations

import os
import time
import typing as t

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = """
name: task_times
type: aggregate
short_description: Writes how long each task took
description: Writes how long each task took to the file that the environment variable E(TASK_TIMES) names.
author: the gpufleet.mig authors
"""


class CallbackModule(CallbackBase):
    """From the start of a task to its result on the only host: what an operator waits for."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "task_times"

    def __init__(self, *arguments: t.Any, **options: t.Any) -> None:
        super().__init__(*arguments, **options)
        self._started = 0.0
        self._file = os.environ["TASK_TIMES"]

    def v2_playbook_on_task_start(self, task: t.Any, is_conditional: bool) -> None:
        self._started = time.perf_counter()

    def v2_runner_on_ok(self, result: t.Any) -> None:
        seconds = time.perf_counter() - self._started
        details = result.result if hasattr(result, "result") else result._result
        action = (result.task if hasattr(result, "task") else result._task).action
        with open(self._file, "a", encoding="utf-8") as file:
            file.write(f"{action} {seconds:.6f} {bool(details.get('changed'))}\n")
