# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Makes the waves of a rollout from what every host of the play plans. It runs on the controller and asks no host."""

from __future__ import annotations

import os
import time
import typing as t

from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ansible_collections.gpufleet.mig.plugins.module_utils.engine.profiles import counted
from ansible_collections.gpufleet.mig.plugins.plugin_utils import _rollout
from ansible_collections.gpufleet.mig.plugins.plugin_utils._rollout import BadSetting, HostPlan, Settings

_PLAN = "__mig_plan"
_CANARY_GROUP = "mig_canary"
# What a playbook around gpufleet.mig.mig is for, as variables that it sets.
_SAYS = "__mig_playbook_says"
_WAVE_TASKS = "mig_wave_tasks"
# What the scheduler of the hosts has to say to their plans, registered by the task before this one.
_SCHEDULER = "__mig_scheduler"


class ActionModule(ActionBase):
    """One task for all hosts of the play: it reads what they registered, and their settings."""

    _supports_check_mode = True
    _requires_connection = False

    def run(self, tmp: t.Optional[str] = None, task_vars: t.Optional[dict[str, t.Any]] = None) -> dict[str, t.Any]:
        result: dict[str, t.Any] = {**super().run(tmp, task_vars), "changed": False}
        variables = task_vars or {}
        # What hosts have is filled in already, where it is a template.
        names = [*_rollout.VARIABLES, _WAVE_TASKS, _SAYS, *variables.get(_SAYS, {})]
        try:
            own = {name: self._filled_in(name, variables[name]) for name in names if name in variables}
            return {**result, **_rollout_of({**variables, **own})}
        except BadSetting as problem:
            return {**result, "failed": True, "msg": f"{problem} No host was touched."}

    def _filled_in(self, name: str, value: t.Any) -> t.Any:
        try:
            return self._templar.template(value)
        except AnsibleError as error:
            raise BadSetting(f"{name} cannot be filled in: {error}.") from error


def _rollout_of(variables: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    names = list(variables["ansible_play_hosts_all"])
    # Once for each host: to put the variables of a host together takes longer than all that is done with them here.
    hosts = {name: _Variables(variables["hostvars"], name) for name in names}
    _require_what_the_playbook_says(variables)
    _require_files(variables.get(_WAVE_TASKS))
    settings = _settings(variables, hosts)
    scheduler = (variables.get(_SCHEDULER) or {}).get("hosts") or {}
    plans = [_plan_of(host, name, settings, scheduler) for name, host in hosts.items()]
    stopped = _rollout.why_stopped(plans, settings)
    waves = [] if stopped else _rollout.waves(_rollout.in_order(plans, settings.canary), plans, settings)
    Display().display(_rollout.table(plans, waves, settings))
    counts = _rollout.counts_by_state(plans)
    if stopped:
        # Ansible shows the whole result of a task that failed.
        return {"failed": True, "msg": stopped, "counts": counts}
    return {
        "settings": {**settings._asdict(), "serial": ",".join(map(str, settings.serial))},
        "hosts": {plan.name: plan.as_data() for plan in plans},
        "counts": counts,
        "waves": waves,
        "order": [name for wave in waves for name in wave],
        "sizes": [len(wave) for wave in waves] or [1],
        "left_out": _rollout.left_out(plans, settings),
        # A run may have several rollouts; the last one counts.
        "planned": time.time(),
        "msg": f"{counted(len(names), 'host')} planned, {counted(len(waves), 'wave')}.",
    }


def _require_what_the_playbook_says(variables: t.Mapping[str, t.Any]) -> None:
    """Raise BadSetting where -e has turned a playbook that does one thing into one that does another."""
    for name, meant in variables.get(_SAYS, {}).items():
        if str(variables.get(name)).lower() != str(meant).lower():
            raise BadSetting(
                f"{name} is {_shown(variables.get(name))}, and this playbook is for {meant!r}: leave it out of -e, or"
                " run gpufleet.mig.mig, which does what the variables say."
            )


def _require_files(paths: t.Any) -> None:
    """Raise BadSetting for a file of checks that is not there: it would be missed after hosts were changed."""
    if not isinstance(paths, (str, list, tuple, type(None))):
        raise BadSetting(f"{_WAVE_TASKS} is {paths!r}: give the path of a task file, or a list of them.")
    for path in [paths] if isinstance(paths, str) else paths or []:
        # Where a relative path is looked up is known when it is included.
        if os.path.isabs(str(path)) and not os.path.isfile(str(path)):
            raise BadSetting(
                f"{_WAVE_TASKS} has {path!r}, which is no file on the controller: give the path of a task file."
            )


class _Variables:
    """The variables of a host that this task reads, looked up at once.

    A plan has thousands of values and none is a template, so that it is taken as it is: to have Ansible look at each of
    them was most of what a rollout over many hosts cost its controller.
    """

    def __init__(self, hostvars: t.Any, name: str) -> None:
        raw = hostvars.raw_get(name)
        self.plan: t.Optional[t.Mapping[str, t.Any]] = raw.get(_PLAN)
        given = [variable for variable in _rollout.VARIABLES if variable in raw]
        rendered = hostvars[name] if given else {}
        self.settings = {variable: rendered[variable] for variable in given}


def _plan_of(host: _Variables, name: str, settings: Settings, scheduler: t.Mapping[str, t.Any]) -> HostPlan:
    result = None if settings.preflight == "off" else host.plan
    if name not in scheduler:
        return _rollout.read_plan(name, result, settings)
    said = scheduler[name]
    plan = _rollout.read_plan(name, _rollout.as_the_scheduler_remembers(result, said), settings)
    return _rollout.with_scheduler(plan, said)


def _settings(variables: t.Mapping[str, t.Any], hosts: t.Mapping[str, _Variables]) -> Settings:
    values = {name: _value(name, variables, hosts) for name in _rollout.VARIABLES}
    # An empty text, as of a survey, is no answer.
    given = {name: value for name, value in values.items() if value is not None and str(value).strip()}
    settings = _rollout.settings_of(given)
    groups = variables["groups"]
    canary = settings.canary or ((_CANARY_GROUP,) if _CANARY_GROUP in groups else ())
    return settings._replace(canary=_rollout.hosts_named(canary, groups, list(hosts)))


def _value(name: str, variables: t.Mapping[str, t.Any], hosts: t.Mapping[str, _Variables]) -> t.Any:
    """What a variable is for all hosts of the play, or None where nobody set it. Raises BadSetting where they differ.

    A play keyword has one value, and an inventory may have one for each host. What the play or -e says counts for all.
    """
    first, *others = hosts
    value = variables.get(name)
    if value != hosts[first].settings.get(name):
        return value
    for host in others:
        other = hosts[host].settings.get(name)
        if other != value:
            raise BadSetting(
                f"{name} is {_shown(value)} for {first} and {_shown(other)} for {host}, and a rollout has one value for"
                " all its hosts: set it for all of them, or with -e."
            )
    return value


def _shown(value: t.Any) -> str:
    return "not set" if value is None else repr(value)
