# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""From what happens in a run to what is said about it: lines while it goes on, one table at its end, and data.

This file is private to the collection gpufleet.mig and may change at any time. It knows no Ansible: it is told of
events, with results of mig_config and mig_rollout as plain data, and answers with lines of text.

A host ends in one of these outcomes:

``changed``       it has what was wanted, and that was not so before
``would_change``  the same, foreseen in check mode
``right``         there was nothing to do
``rolled_back``   its change failed, and it is as before
``refused``       it was not touched, and said why
``incomplete``    its change failed, and it is not as before
``lost``          it does not answer (any more)
``not_reached``   its turn has not come
"""

from __future__ import annotations

import dataclasses
import math
import typing as t

from ansible_collections.gpufleet.mig.plugins.module_utils.engine.profiles import counted, printable
from ansible_collections.gpufleet.mig.plugins.plugin_utils import _answers, _rollout

OUTCOMES = ("changed", "would_change", "right", "rolled_back", "refused", "incomplete", "lost", "not_reached")
_WORDS = {name: name.replace("_", " ") for name in OUTCOMES} | {"right": "already right"}
# Hosts of these are named one and all, with what they said.
_BAD = ("rolled_back", "refused", "incomplete", "lost")
_OF_A_PLAN = {"right": "right", "refused": "refused", "unreachable": "lost"}

_PREFIX = "mig: "
_LONGEST = 600
_MOST_SHOWN = 8

Lines = list[str]
Result = t.Mapping[str, t.Any]


@dataclasses.dataclass
class _Host:
    """What is known of a host. ``trouble`` is what a task failed with that may have been rescued.

    ``waits`` is whether mig_config has done its part and the layout is not the wanted one yet, and ``would_wait`` that
    this is only foreseen. ``after`` is what is there in the end, and before that what is planned.
    """

    name: str
    planned: str = ""
    outcome: str = ""
    msg: str = ""
    missing: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    wave: int = 0
    ended: bool = False
    waits: bool = False
    would_wait: bool = False
    trouble: str = ""
    failed_later: str = ""

    def end(self, outcome: str, msg: str = "") -> None:
        self.outcome, self.msg, self.ended = outcome, msg or self.msg, True


@dataclasses.dataclass
class _Section:
    """A rollout, or all that was done without one. ``since`` is when each wave began, ``done`` are hosts that ended.

    ``shown`` has the host whose pictures were shown for a change. ``asked`` is whether nobody was to change anything.
    """

    hosts: dict[str, _Host]
    waves: list[list[str]] = dataclasses.field(default_factory=list)
    stopped: str = ""
    rollout: bool = False
    asked: bool = False
    pause: float = 0.0
    since: list[float] = dataclasses.field(default_factory=list)
    until: float = 0.0
    done: int = 0
    shown: dict[tuple[tuple[str, ...], tuple[str, ...]], str] = dataclasses.field(default_factory=dict)

    @property
    def begun(self) -> int:
        return len(self.since)

    def __post_init__(self) -> None:
        self.order = [name for wave in self.waves for name in wave]

    def names(self, outcome: str) -> list[str]:
        found = [host.name for host in self.hosts.values() if host.outcome == outcome]
        # Without waves they are here in the order in which they answered.
        return found if self.waves else sorted(found)


class Progress:
    """Keeps the books of one run. ``now`` is a clock in seconds; ``forks`` is how many hosts are asked at a time."""

    def __init__(self, now: t.Callable[[], float], forks: int = 5, check_mode: bool = False) -> None:
        self._now = now
        self._forks = max(1, forks)
        self._check_mode = check_mode
        self._told: list[_Section] = []
        self._rollouts: list[_Section] = []
        self._loose = _Section({})
        self._in_wave = False

    # --- events ---------------------------------------------------------------------------------------------------

    def play_begins(self, hosts: t.Sequence[str]) -> Lines:
        """A play begins, or the next batch of it: all hosts of the play are given each time."""
        section = self._rollouts[-1] if self._rollouts else None
        if section is not None and self._in_wave:
            section.until = self._now()
        self._in_wave = (
            section is not None
            and section.begun < len(section.waves)
            and (section.begun == 0 or self._in_wave)
            and list(hosts) == section.order
        )
        if section is None or not self._in_wave:
            return []
        section.since.append(self._now())
        wave = section.waves[section.begun - 1]
        words = f"wave {section.begun} of {len(section.waves)}: {_rollout.hosts_in_words(wave)}"
        return _lines([f"{words}; {self._where(section)}"])

    def planned(self, name: str, result: Result) -> Lines:
        """A host was asked what a change would be, and nothing else."""
        plan = _rollout.read_plan(name, result)
        section, host = self._of_ours(name)
        host.planned, host.before, host.after = plan.state, plan.before, plan.after
        if section is self._loose:
            # For the time being.
            host.outcome = _OF_A_PLAN.get(plan.state, "")
            host.msg = _said(plan.msg)
            return []
        # A host that refuses with a verdict goes on, and is heard of again.
        is_over = plan.state == "right" or "verdict" not in result
        return self._end(section, host, _OF_A_PLAN[plan.state], plan.msg) if is_over else []

    def rollout_planned(self, result: Result) -> None:
        """mig_rollout has made waves; this is its result. One that is hidden by no_log is no plan."""
        if "waves" not in result:
            return
        waves = [list(map(str, wave)) for wave in result.get("waves") or ()]
        number = {name: index for index, wave in enumerate(waves, 1) for name in wave}
        hosts = {}
        for name, plan in (result.get("hosts") or {}).items():
            state = str(plan.get("state", ""))
            hosts[name] = _Host(
                name,
                state,
                _OF_A_PLAN.get(state, ""),
                _said(plan.get("msg")),
                before=tuple(plan.get("before") or ()),
                after=tuple(plan.get("after") or ()),
                wave=number.get(name, 0),
            )
            self._loose.hosts.pop(name, None)
        pause = float((result.get("settings") or {}).get("pause_between_waves") or 0)
        self._rollouts.append(_Section(hosts, waves, rollout=True, pause=0.0 if self._check_mode else pause))
        self._in_wave = False

    def rollout_stopped(self, msg: t.Any) -> None:
        """mig_rollout failed, and nothing begins."""
        self._rollouts.append(_Section(self._loose.hosts, stopped=_said(msg) or "no reason was given.", rollout=True))
        self._loose = _Section({})
        self._in_wave = False

    def applied(self, name: str, result: Result, failed: bool = False, foreseen: bool = False) -> Lines:
        """A call of mig_config has ended, one that makes a change or, in check mode, stands for it."""
        section, host = self._of_ours(name)
        host.before, host.after = _layouts(result, "before", host.before), _layouts(result, "after", host.after)
        msg = result.get("msg") or result.get("censored")
        if failed:
            host.missing = tuple(map(_said, result.get("missing") or result.get("missing_devices") or ()))
            outcome = _outcome_of_failure(result)
            host.after = host.before if outcome != "incomplete" else _layouts(result, "after", ())
            return self._end(section, host, outcome, msg)
        ended = "changed" if result.get("changed") else "right"
        if foreseen and ended == "changed":
            ended = "would_change"
        if _is_waiting(result, foreseen):
            # A reboot is to come, or a failure. If neither does, this is how it ends.
            host.outcome, host.msg, host.waits, host.would_wait = ended, _said(msg), True, foreseen
            return []
        return self._end(section, host, ended, msg)

    def failed(self, name: str, msg: t.Any, for_good: bool = False) -> Lines:
        """A task of no module of ours failed. ``for_good`` when it is known that nothing rescues the host."""
        section, host = self._of(name)
        if host is None:
            return []
        host.trouble = _said(msg)
        if not for_good:
            return []
        if host.ended and host.outcome in _BAD:
            # The same with more words: what became of the drain.
            host.msg = host.trouble or host.msg
            return []
        if host.ended:
            return []
        return self._end(section, host, _outcome_without_success(host), host.trouble)

    def lost(self, name: str, msg: t.Any, ours: bool = False) -> Lines:
        """A host does not answer any more. ``ours`` when a module of ours was to run there."""
        section, host = self._of_ours(name) if ours else self._of(name)
        if host is None:
            return []
        after = " It was lost after its change." if host.ended and host.outcome == "changed" else ""
        return self._end(section, host, "lost", (_said(msg) or "It does not answer.") + after)

    def ends(self, failed: t.Container[str]) -> Lines:
        """The run is over, or a playbook of it; ``failed`` are the hosts that Ansible counts as failed."""
        lines: Lines = []
        loose = [self._loose] if self._loose.hosts else []
        sections = [*self._rollouts, *loose]
        for section in sections:
            if section.until == 0.0 or self._in_wave and section is self._rollouts[-1]:
                section.until = self._now()
            _settle(section, failed)
            lines += _table(section)
        self._told += sections
        self._rollouts, self._loose, self._in_wave = [], _Section({}), False
        return _lines(lines)

    def as_data(self) -> dict[str, t.Any]:
        """All that was told at the end, as data."""
        return {
            "schema": 1,
            "check_mode": self._check_mode,
            "rollouts": [_as_data(section) for section in self._told],
        }

    # --- what it takes --------------------------------------------------------------------------------------------

    def _of(self, name: str) -> tuple[_Section, t.Optional[_Host]]:
        """What an event is about: a host of the wave that is under way, or one outside of any rollout, if known."""
        if self._in_wave:
            section = self._rollouts[-1]
            host = section.hosts.get(name)
            if host is not None and host.wave == section.begun:
                return section, host
        return self._loose, self._loose.hosts.get(name)

    def _of_ours(self, name: str) -> tuple[_Section, _Host]:
        """The same where a module of ours ran, which makes any host known."""
        section, host = self._of(name)
        return section, host or self._loose.hosts.setdefault(name, _Host(name))

    def _end(self, section: _Section, host: _Host, outcome: str, msg: t.Any) -> Lines:
        section.done += not host.ended
        host.end(outcome, _said(msg))
        if section is self._loose:
            return []
        pictures: Lines = []
        words = _WORDS[outcome]
        if outcome in ("changed", "would_change"):
            alike = section.shown.setdefault((host.before, host.after), host.name)
            pictures = [f"  {line}" for line in _rollout.pictures(host.before, host.after)]
            if host.before == host.after:
                words, pictures = f"{words}: only what it remembers, no GPU", []
            elif alike != host.name:
                words, pictures = f"{words} as {alike}", []
        elif outcome in _BAD:
            now = _rollout.pictures(host.before, host.after) if outcome == "incomplete" and host.after else []
            pictures = [f"  {line}" for line in [*_reasons(host), *now]]
        return _lines([f"{host.name}: {words}; {self._where(section)}", *pictures])

    def _where(self, section: _Section) -> str:
        """Hosts done and left, elapsed and expected time."""
        total, done = len(section.order), section.done
        elapsed = self._now() - section.since[0]
        words = f"{done} of {counted(total, 'host')} done, {total - done} left; {_duration(elapsed)} elapsed"
        expected = self._expected(section) if done < total else 0.0
        # A wave that takes longer than those before is no basis either.
        return f"{words}, about {_duration(expected)} to go" if expected >= 1 else words

    def _expected(self, section: _Section) -> float:
        """Seconds to go, from the waves that are done; 0 while none is.

        So many hosts at a time as there are forks take about as long as one, which counts here as one round.
        """
        done = section.begun - 1
        if done < 1:
            return 0.0
        rounds = [math.ceil(len(wave) / self._forks) for wave in section.waves]
        took = section.since[-1] - section.since[0] - section.pause * done
        each = max(0.0, took) / sum(rounds[:done])
        here = max(0.0, each * rounds[done] - (self._now() - section.since[-1]))
        pauses = section.pause * (len(section.waves) - section.begun)
        return here + each * sum(rounds[section.begun :]) + pauses


# --- what an event means ------------------------------------------------------------------------------------------


def _outcome_of_failure(result: Result) -> str:
    """Of a call of mig_config that failed. One that says nothing of itself is not known to have left all as it was."""
    if result.get("altered") is False:
        return "refused"
    return "rolled_back" if result.get("rolled_back") else "incomplete"


def _outcome_without_success(host: _Host) -> str:
    return "incomplete" if host.waits and not host.would_wait else "refused"


def _is_waiting(result: Result, foreseen: bool) -> bool:
    """Whether a call that did not fail left a host with something else than was wanted."""
    if (result.get("recovered") or {}).get("direction") == "back" or "verdict" not in result:
        return False
    pending = bool(result.get("reset_required") or result.get("reboot_required"))
    return bool(result["verdict"] != "match") and (pending or not foreseen)


def _settle(section: _Section, failed: t.Container[str]) -> None:
    """Give every host the outcome that it has when nothing more comes."""
    hosts = list(section.hosts.values())
    for host in hosts:
        its_turn_came = host.wave <= section.begun if host.wave else not section.rollout
        if not its_turn_came or host.name not in failed or host.outcome in _BAD:
            continue
        if host.ended and host.outcome:
            host.failed_later = host.trouble or "A later task failed."
        else:
            host.end(_outcome_without_success(host), host.trouble)
    section.asked = not section.rollout and not any(host.ended or host.waits for host in hosts)
    for host in hosts:
        if not host.outcome:
            host.outcome = "would_change" if section.asked else "not_reached"


# --- in words -----------------------------------------------------------------------------------------------------


def _table(section: _Section) -> Lines:
    total = counted(len(section.hosts), "host")
    lines = []
    if section.stopped:
        lines += [f"the rollout did not begin: {_short(section.stopped)}"]
    if section.waves:
        took = _duration(section.until - section.since[0]) if section.since else "0 s"
        waves = f"{section.begun} of {counted(len(section.waves), 'wave')} begun"
        lines += [f"result of the rollout over {total}, {waves}, {took}:"]
    elif section.hosts:
        lines += [f"result {'of the rollout ' if section.rollout else ''}over {total}:"]
    for outcome in OUTCOMES:
        names = section.names(outcome)
        if names:
            shown = ", ".join(names if outcome in _BAD else _some(names))
            lines += [f"{len(names):>6}  {_WORDS[outcome]:<13}  {shown}"]
            lines += [f"        {line}" for line in _reasons_of(section, outcome)]
    return [*lines, f"next: {_next(section)}"]


def _reasons_of(section: _Section, outcome: str) -> Lines:
    """What hosts of this outcome said, alike ones together."""
    said: dict[tuple[str, ...], list[str]] = {}
    for name in section.names(outcome):
        if reasons := _reasons(section.hosts[name]):
            said.setdefault(tuple(reasons), []).append(name)
    lines = []
    for (reason, *more), names in said.items():
        lines += [f"{', '.join(names)}: {reason}", *(f"  {line}" for line in more)]
    return lines


def _reasons(host: _Host) -> Lines:
    if host.failed_later:
        return [f"a later step failed: {_short(host.failed_later)}"]
    if host.outcome not in _BAD:
        return []
    msg = host.msg
    if host.missing:
        # It can be long, and has lines of its own.
        msg = msg.replace("; ".join(host.missing), "see below")
    return [_short(msg) or "no reason was given.", *(f"missing: {each}" for each in _some(list(host.missing)))]


def _next(section: _Section) -> str:
    """What there is to do now, in one sentence."""
    later = [host.name for host in section.hosts.values() if host.failed_later]
    if section.stopped:
        return "do what that says, and run the same playbook again. No host was touched."
    look = [
        *(f"{', '.join(_some(names))} ({_WORDS[outcome]})" for outcome in _BAD if (names := section.names(outcome))),
        *([f"{', '.join(_some(later))} (right, and failed later)"] if later else []),
    ]
    again = any(section.names(outcome) for outcome in (*_BAD, "not_reached")) or bool(later)
    would = bool(section.names("would_change"))
    how = "with the playbook gpufleet.mig.mig" if section.asked else "with the same playbook, without --check"
    steps = [
        *([f"look at {'; '.join(look)}"] if look else []),
        *(["run the same playbook again: hosts that are right are left alone"] if again and not would else []),
        *([f"make the change {how}"] if would else []),
    ]
    return f"{'; then '.join(steps) or 'nothing, all hosts are right'}."


def _as_data(section: _Section) -> dict[str, t.Any]:
    return {
        "stopped": section.stopped,
        "waves": section.waves,
        "waves_begun": section.begun,
        "seconds": round(section.until - section.since[0], 1) if section.since else 0.0,
        "counts": {outcome: len(section.names(outcome)) for outcome in OUTCOMES},
        "hosts": {
            host.name: {
                "outcome": host.outcome,
                "msg": host.msg,
                "missing": list(host.missing),
                "failed_later": host.failed_later,
                "before": list(host.before),
                # What is only planned is not there.
                "after": list(host.after) if host.ended or host.outcome in ("right", "would_change") else [],
                "wave": host.wave or None,
            }
            for host in section.hosts.values()
        },
        "next": _next(section),
    }


def _some(names: list[str]) -> Lines:
    more = len(names) - _MOST_SHOWN
    return names if more <= 1 else [*names[:_MOST_SHOWN], f"and {more} more"]


def _layouts(result: Result, key: str, otherwise: tuple[str, ...]) -> tuple[str, ...]:
    gpus = result.get(key)
    return tuple(_answers.pictures(gpus)) if isinstance(gpus, list) else otherwise


def _said(msg: t.Any) -> str:
    """What somebody said as one line."""
    return " ".join(str(msg or "").split())


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 4]} ..."


def _duration(seconds: float) -> str:
    """``42 s``, ``3 min 05 s``, ``2 h 10 min``."""
    whole = max(0, round(seconds))
    minutes, rest = divmod(whole, 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def _lines(lines: t.Iterable[str]) -> Lines:
    """As they are shown: each can be found by its beginning, and none can do anything to a terminal."""
    return [_PREFIX + printable(line) for line in lines]
