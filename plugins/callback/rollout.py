# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Says how a rollout goes. The books are kept in plugin_utils/_progress.py; here is what makes events of callbacks."""

from __future__ import annotations

DOCUMENTATION = r"""
name: rollout
type: aggregate
short_description: Say how a rollout of MIG layouts goes, and how it ended
version_added: 0.1.0
description:
  - Beside the output of Ansible, says at the beginning of each wave of the playbook C(gpufleet.mig.mig) which hosts are
    in it, and for every host that is done what has changed on its GPUs, how many hosts are done and left, and the time
    that has passed. Once a wave is done, it also says about how long the rest takes.
  - At the end it shows one table of the hosts that changed, were right already, were rolled back, refused, are
    incomplete, got lost, or were not reached, with what they said, and what to do next.
  - In a play of your own that uses M(gpufleet.mig.mig_config) or P(gpufleet.mig.mig#role) there are no waves, and only
    the table is shown. A run that uses neither shows nothing.
  - Each of its lines is plain text that begins with C(mig:), the same on a terminal, in the log of a CI system and in
    AWX.
requirements:
  - C(callbacks_enabled=gpufleet.mig.rollout) in C(ansible.cfg), or the environment variable
    C(ANSIBLE_CALLBACKS_ENABLED).
options:
  json:
    description:
      - A file on the controller that gets the table as JSON, with the full messages and the layouts of every host. It
        is written as a whole when the run is over, with missing folders, and replaces what was there.
      - A run that has used no module of MIG leaves it as it is. If it cannot be written there is a warning, and the
        result of the run stays the same.
    type: path
    version_added: 0.1.0
    env:
      - name: GPUFLEET_MIG_ROLLOUT_JSON
    ini:
      - section: callback_gpufleet_mig_rollout
        key: json
author:
  - the gpufleet.mig authors (@gpufleet)
"""

EXAMPLES = r"""
enabled_for_all_runs: |
  # in ansible.cfg
  [defaults]
  callbacks_enabled = gpufleet.mig.rollout

  [callback_gpufleet_mig_rollout]
  json = rollout.json

enabled_for_one_run: |
  ANSIBLE_CALLBACKS_ENABLED=gpufleet.mig.rollout GPUFLEET_MIG_ROLLOUT_JSON=rollout.json \
    ansible-playbook gpufleet.mig.mig -i inventory -e mig_profile=all-1g.5gb -e mig_serial=1,10%,100%
"""

import json
import os
import time
import typing as t

from ansible import context
from ansible.plugins.callback import CallbackBase

from ansible_collections.gpufleet.mig.plugins.plugin_utils import _files
from ansible_collections.gpufleet.mig.plugins.plugin_utils._progress import Lines, Progress

_CONFIG = "gpufleet.mig.mig_config"
_ROLLOUT = "gpufleet.mig.mig_rollout"
# As a task may call them. A short name is ours where Ansible has found that it is.
_OURS = {name: full for full in (_CONFIG, _ROLLOUT) for name in (full, full.rpartition(".")[2])}
# What the role mig calls things by.
_PLAN = "__mig_plan"
_GATE = "Finish | gate"


class CallbackModule(CallbackBase):
    """Looks at few tasks: for any other one that succeeds it costs a look into a dictionary."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "gpufleet.mig.rollout"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self, *args: t.Any, **kwargs: t.Any) -> None:
        super().__init__(*args, **kwargs)
        arguments = context.CLIARGS
        self._check_mode = bool(arguments.get("check"))
        self._progress = Progress(time.monotonic, int(arguments.get("forks") or 5), self._check_mode)

    def v2_playbook_on_play_start(self, play: t.Any) -> None:
        hosts = play.hosts
        self._show(self._progress.play_begins([hosts] if isinstance(hosts, str) else list(hosts or ())))

    def v2_runner_on_ok(self, result: t.Any) -> None:
        if result.task.action in _OURS:
            self._ours(result, failed=False)

    def v2_runner_on_failed(self, result: t.Any, ignore_errors: bool = False) -> None:
        task = result.task
        if _ours(task):
            self._ours(result, failed=True)
        elif not ignore_errors:
            gate = str(task.name) == _GATE
            self._show(self._progress.failed(result.host.name, result.result.get("msg"), for_good=gate))

    def v2_runner_on_unreachable(self, result: t.Any) -> None:
        task, name, said = result.task, result.host.name, result.result.get("msg")
        ours = _ours(task) == _CONFIG
        if ours and _is_plan(task):
            self._show(self._progress.planned(name, {"unreachable": True, "msg": said}))
        elif ours or task.ignore_unreachable is not True:
            self._show(self._progress.lost(name, said, ours=ours))

    def v2_playbook_on_stats(self, stats: t.Any) -> None:
        lines = self._progress.ends({name for name, count in stats.failures.items() if count})
        self._show(lines)
        path = self.get_option("json")
        if lines and path:
            self._write(path)

    def _ours(self, result: t.Any, failed: bool) -> None:
        task, name, data = result.task, result.host.name, result.result
        kind = _ours(task)
        if not kind:
            return
        if kind == _ROLLOUT and failed:
            self._progress.rollout_stopped(data.get("msg"))
        elif kind == _ROLLOUT:
            self._progress.rollout_planned(data)
        elif _is_plan(task):
            # With no_log a result that is good says nothing.
            self._show([] if "censored" in data and not failed else self._progress.planned(name, data))
        else:
            # With a loop there is one result that has those of all items, and the worst of them is to be told last.
            for each in sorted(data.get("results") or [data], key=_gravity):
                self._show(
                    self._progress.applied(name, each, failed and "verdict" not in each, _is_foreseen(task, each))
                )

    def _show(self, lines: Lines) -> None:
        for line in lines:
            self._display.display(line)

    def _write(self, path: str) -> None:
        text = json.dumps(self._progress.as_data(), indent=2) + "\n"
        try:
            if os.path.exists(path) and not os.path.isfile(path):
                raise _files.WriteProblem(f"{path!r} is not a regular file; name one.")
            # A link stays one.
            _files.write({os.path.realpath(path): text.encode()}, 0o644)
        except _files.WriteProblem as problem:
            self._display.warning(f"The result of the rollout was not written. {problem}")


def _ours(task: t.Any) -> str:
    """The full name of the module of ours that a task calls, or an empty text."""
    full = _OURS.get(task.action, "")
    return full if full and (task.action == full or task.resolved_action == full) else ""


def _is_plan(task: t.Any) -> bool:
    # ansible-core 2.21 makes a mapping of the name.
    return task.register == _PLAN or (isinstance(task.register, dict) and _PLAN in task.register)


def _gravity(result: t.Mapping[str, t.Any]) -> tuple[bool, bool, bool]:
    """Orders results of mig_config. One that failed has no verdict."""
    altered = bool(result.get("altered")) and not result.get("rolled_back")
    return "verdict" not in result, altered, bool(result.get("changed"))


def _is_foreseen(task: t.Any, result: t.Mapping[str, t.Any]) -> bool:
    """Whether a task ran in check mode. Where that is a template, ansible-core 2.21 does not say what it came to."""
    if isinstance(task.check_mode, str):
        return "txid" not in result and "resumed" not in result
    return task.check_mode is True
