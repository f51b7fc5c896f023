# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""From what every host plans to the waves of a rollout. Pure: nothing here asks a host or knows a driver.

This file is private to the collection gpufleet.mig and may change at any time.

What a host plans is the result of mig_config in check mode. It puts the host into one of these states:

``change``       its GPUs are to be touched
``remember``     its GPUs are right, and only a record of the node is to be written, a drain to be taken back, or
                 something to be mended that a change has left
``right``        there is nothing to do
``refused``      a real run would fail, and says why
``unreachable``  it does not answer
``unplanned``    it was not asked
"""

from __future__ import annotations

import re
import typing as t
from collections import Counter

from ansible.module_utils.parsing.convert_bool import boolean

from ansible_collections.gpufleet.mig.plugins.module_utils.engine.profiles import counted, printable
from ansible_collections.gpufleet.mig.plugins.plugin_utils import _answers

STATES = ("change", "remember", "right", "refused", "unreachable", "unplanned")
_STATES_IN_WORDS = {
    "change": "to change",
    "remember": "right, to be remembered",
    "right": "already right",
    "refused": "refused",
    "unreachable": "unreachable",
    "unplanned": "not asked before",
}
_VISITED = ("change", "remember", "unplanned")
# Why hosts cannot be changed as they are, for the table.
_BUSY, _RESERVED, _IMPOSSIBLE, _CANNOT_TELL, _OTHERWISE = "busy", "reserved", "impossible", "cannot tell", "refused"
_SCHEDULER = "scheduler"

PREFLIGHTS = ("strict", "warn", "off")
# GPUs of which no wish speaks, one and many.
_LEFT_ALONE = {
    "unlisted": ("is named by no wish", "are named by no wish"),
    "without_mig": ("cannot do MIG", "cannot do MIG"),
}
_COUNT = re.compile(r"(?P<count>[0-9]{1,7})\s*x\s*(?P<profile>\S+)")
_SIZE = re.compile(r"(?P<number>[0-9]{1,9}(?:\.[0-9]{1,9})?)(?P<percent>%)?")
# What a line of a GPU begins with.
_GPU = re.compile(r"^GPU \d+ +")
_NAMES_SHOWN = 8


class BadSetting(Exception):
    """A value of the rollout that cannot be used; the message is one sentence for the person who set it."""


class Settings(t.NamedTuple):
    """How a rollout goes. ``serial`` has sizes of waves, each a number of hosts or text such as ``10%``.

    ``max_fail_percentage`` is 0 to 100, ``pause_between_waves`` in seconds. ``keep_available`` has devices by profile.
    ``canary`` are hosts or groups as people name them, and hosts of the play once that is resolved. ``rollback_of`` is
    the label that hosts go back from, where only that one is meant.
    """

    preflight: str = "strict"
    serial: tuple[t.Union[int, str], ...] = (1,)
    max_fail_percentage: float = 0.0
    pause_between_waves: float = 0.0
    keep_available: t.Mapping[str, int] = {}
    canary: tuple[str, ...] = ()
    tolerate_unreachable: bool = False
    take_over_drain: bool = False
    rollback_of: str = ""


_USUAL = Settings()


class HostPlan(t.NamedTuple):
    """What one host plans. ``before`` and ``after`` have a line for each GPU, ``devices_*`` MIG devices by profile.

    ``reason`` is why it is refused, in a word or two, and ``msg`` the whole sentence. ``boards`` are product names.
    So many GPUs are named by no wish (``unlisted``), and so many cannot do MIG (``without_mig``). ``offers`` is what
    the scheduler has of the host before and after, in words, ``notes`` are what it warns of, and ``heal`` is what is to
    be mended there though the GPUs are as wanted; a sentence each. ``leaving`` are its jobs that a change ends there.
    """

    name: str
    state: str
    msg: str = ""
    label: str = ""
    reason: str = ""
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    devices_before: t.Mapping[str, int] = {}
    devices_after: t.Mapping[str, int] = {}
    boards: tuple[str, ...] = ()
    unlisted: int = 0
    without_mig: int = 0
    offers: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    heal: tuple[str, ...] = ()
    leaving: tuple[str, ...] = ()

    def as_data(self) -> dict[str, t.Any]:
        """For the result of a task."""
        data = self._asdict()
        del data["name"]
        return {key: list(value) if isinstance(value, tuple) else value for key, value in data.items()}


# --- what people set ----------------------------------------------------------------------------------------------


def settings_of(values: t.Mapping[str, t.Any]) -> Settings:
    """Settings from the values of variables, by their names; those that nobody set are not there. Raises BadSetting."""
    given = {
        name: read(f"mig_{name}", values[f"mig_{name}"]) for name, read in _READERS.items() if f"mig_{name}" in values
    }
    settings = Settings(**given)
    if settings.keep_available and settings.preflight == "off":
        raise BadSetting("mig_keep_available is computed from what hosts have, so that mig_preflight must not be off.")
    return settings


def serial_of(name: str, value: t.Any) -> tuple[t.Union[int, str], ...]:
    """Sizes of waves from ``10``, ``[1, "10%"]`` or text such as ``1,10%,100%``. Raises BadSetting."""
    sizes = tuple(_size(name, entry) for entry in _entries(value))
    if not sizes:
        raise BadSetting(f"{name} is empty; give sizes of waves, such as 1,10%,100%.")
    return sizes


def _size(name: str, entry: t.Any) -> t.Union[int, str]:
    text = "" if isinstance(entry, bool) else str(entry).strip()
    found = _SIZE.fullmatch(text)
    number = float(found["number"]) if found else 0.0
    if found and found["percent"] and 0 < number <= 100:
        return text
    if found and not found["percent"] and number >= 1 and int(number) == number:
        return int(number)
    raise BadSetting(
        f"{name} has {entry!r}, which is no size of a wave: give numbers of hosts from 1, and percentages up to 100%,"
        " such as 1,10%,100%."
    )


def percentage_of(name: str, value: t.Any) -> float:
    """0 to 100, also from text. Raises BadSetting."""
    return _number(name, value, 100, "%")


def seconds_of(name: str, value: t.Any) -> float:
    """0 to a day, also from text. Raises BadSetting."""
    return _number(name, value, 86400, "s")


def _number(name: str, value: t.Any, largest: float, suffix: str) -> float:
    try:
        number = float("nan") if isinstance(value, bool) else float(str(value).strip().removesuffix(suffix))
    except ValueError:
        number = float("nan")
    if not 0 <= number <= largest:
        raise BadSetting(f"{name} is {value!r}; give a number from 0 to {largest:g}.")
    return number


def preflight_of(name: str, value: t.Any) -> str:
    """One of PREFLIGHTS, in any case. Raises BadSetting."""
    # YAML makes a boolean of a bare off.
    text = "off" if value is False else str(value).strip().lower()
    if text not in PREFLIGHTS:
        raise BadSetting(f"{name} is {value!r}; it must be one of {', '.join(PREFLIGHTS)}.")
    return text


def boolean_of(name: str, value: t.Any) -> bool:
    """What Ansible takes for a boolean. Raises BadSetting."""
    try:
        return bool(boolean(value))
    except TypeError:
        raise BadSetting(f"{name} is {value!r}; give true or false.") from None


def counts_of(name: str, value: t.Any) -> dict[str, int]:
    """Devices by profile from a mapping, or from text such as ``40x1g.10gb,2x3g.40gb``. Raises BadSetting."""
    counts: dict[str, int] = {}
    for entry in (
        [f"{n}x{profile}" for profile, n in value.items()] if isinstance(value, t.Mapping) else _entries(value)
    ):
        found = _COUNT.fullmatch(str(entry).strip())
        if not found:
            raise BadSetting(
                f"{name} has {entry!r}; give numbers of MIG devices with their profile, such as 40x1g.10gb."
            )
        counts[found["profile"]] = int(found["count"])
    return counts


def names_of(name: str, value: t.Any) -> tuple[str, ...]:
    """Names from a list or from text with commas between them."""
    del name
    return tuple(each for each in (str(entry).strip() for entry in _entries(value)) if each)


def text_of(name: str, value: t.Any) -> str:
    """Any value as text."""
    del name
    return str(value).strip()


def _entries(value: t.Any) -> list[t.Any]:
    if isinstance(value, str):
        return value.split(",")
    return list(value) if isinstance(value, (list, tuple)) else [value]


# By the variable without mig_, which is also the name of the setting.
_READERS: dict[str, t.Callable[[str, t.Any], t.Any]] = {
    "preflight": preflight_of,
    "serial": serial_of,
    "max_fail_percentage": percentage_of,
    "pause_between_waves": seconds_of,
    "keep_available": counts_of,
    "canary": names_of,
    "tolerate_unreachable": boolean_of,
    "take_over_drain": boolean_of,
    "rollback_of": text_of,
}
VARIABLES = tuple(f"mig_{name}" for name in _READERS)


def hosts_named(
    names: t.Iterable[str], groups: t.Mapping[str, t.Iterable[str]], hosts: t.Sequence[str]
) -> tuple[str, ...]:
    """The hosts of the play that these names of hosts and groups mean. Raises BadSetting for a name that is neither."""
    found: set[str] = set()
    for name in names:
        if name not in groups and name not in groups.get("all", ()):
            raise BadSetting(f"mig_canary has {name!r}, which is neither a host nor a group of the inventory.")
        found.update(groups.get(name, (name,)))
    return tuple(host for host in hosts if host in found)


# --- what hosts plan ----------------------------------------------------------------------------------------------


def read_plan(name: str, result: t.Optional[t.Mapping[str, t.Any]], settings: Settings = _USUAL) -> HostPlan:
    """What a host plans, from the result of mig_config in check mode; None where it was not asked."""
    if result is None:
        return HostPlan(name, "unplanned")
    said = str(result.get("msg", "")).strip()
    if result.get("unreachable"):
        return HostPlan(name, "unreachable", said, reason=_CANNOT_TELL)
    if "verdict" not in result:
        return HostPlan(name, "refused", said or "mig_config gave no result.", reason=_reason(result))
    before, after = result.get("before", []), result.get("after", result.get("before", []))
    plan = HostPlan(
        name,
        _state(result),
        said,
        str(result.get("label", "")),
        before=tuple(_answers.pictures(before)),
        after=tuple(_answers.pictures(after)),
        devices_before=_answers.devices(before),
        devices_after=_answers.devices(after),
        boards=tuple(str(gpu.get("name", "")) for gpu in before),
        unlisted=len(result.get("unlisted") or []),
        without_mig=len(result.get("without_mig") or []),
    )
    if (result.get("in_progress") or {}).get("running"):
        return plan._replace(state="refused", reason=_BUSY)
    drained_for = str(result.get("drained_for", ""))
    only_for = settings.rollback_of if result.get("label_source") == "previous" else ""
    taken_over = settings.take_over_drain and only_for in ("", drained_for)
    if drained_for not in ("", plan.label) and not result.get("recovered") and not taken_over:
        return plan._replace(state="refused", reason="drained", msg=drained_by_another("this host", drained_for))
    return plan._replace(state="refused", reason="pending") if _would_wait(result) else plan


def drained_by_another(what: str, label: str) -> str:
    """Why a host or node is left to another run, in a sentence that the role mig has too."""
    return (
        f"Another run has drained {what} for {label}, and not given it back. Wait until it has; if there is no such run"
        " any more, run again with -e mig_take_over_drain=true."
    )


def as_the_scheduler_remembers(
    result: t.Optional[t.Mapping[str, t.Any]], said: t.Mapping[str, t.Any]
) -> t.Optional[t.Mapping[str, t.Any]]:
    """The result of a host with what the scheduler remembers in its place.

    A drain may be in the scheduler's record only, and where it has a manager of its own that changes the GPUs nothing
    is kept on the host.
    """
    if result is None or "verdict" not in result:
        return result
    if said.get("drained") and not result.get("drained"):
        result = {**result, "drained": True, "drained_for": str(said.get("drained_for") or "")}
    if said.get("mode") == "operator":
        result = {**result, "converged": result["verdict"] == "match", "binding": ""}
    return result


def with_scheduler(plan: HostPlan, said: t.Mapping[str, t.Any]) -> HostPlan:
    """The plan with what the scheduler of the host has to say. It refuses a change, and nothing that is there."""
    heal = tuple(map(str, said.get("heal") or ()))
    plan = plan._replace(
        state="remember" if heal and plan.state == "right" else plan.state,
        heal=heal,
        offers=tuple(in_words for in_words in (_offer(said.get("before")), _offer(said.get("after")))),
        notes=tuple(map(str, said.get("warnings") or ())),
        leaving=tuple(map(str, said.get("leaving") or ())),
    )
    refusals = [str(each) for each in said.get("refusals") or ()]
    if not refusals or plan.state != "change":
        return plan._replace(notes=(*plan.notes, *refusals))
    return plan._replace(state="refused", reason=_SCHEDULER, msg=" ".join(refusals))


def _offer(resources: t.Any) -> str:
    return ", ".join(f"{count} {name}" for name, count in (resources or {}).items()) or "nothing"


def _state(result: t.Mapping[str, t.Any]) -> str:
    if result["verdict"] != "match" or result.get("recovered"):
        return "change"
    keeps_binding = result.get("binding") == "payload"
    return "right" if result.get("converged") and not keeps_binding and not result.get("drained") else "remember"


def _would_wait(result: t.Mapping[str, t.Any]) -> bool:
    """Whether a real run would end with a mode that is pending, and nobody allowed what makes it current."""
    waits_for_reboot = bool(result.get("reboot_required")) and not result.get("allow_reboot")
    return result["verdict"] != "match" and (bool(result.get("reset_required")) or waits_for_reboot)


def _reason(result: t.Mapping[str, t.Any]) -> str:
    if result.get("holders"):
        return _BUSY
    if result.get("reservations"):
        return _RESERVED
    if "known" in result or "picture" in result:
        return _IMPOSSIBLE
    return _CANNOT_TELL if "error" in result or "exception" in result else _OTHERWISE


# --- waves --------------------------------------------------------------------------------------------------------


def in_order(plans: t.Sequence[HostPlan], canary: t.Collection[str]) -> list[HostPlan]:
    """The hosts that are to be visited, as they come in the inventory, with those first that tell the most.

    That is the canaries, and then one host of each kind, which is the same boards with the same change. Hosts on which
    no GPU is touched come last.
    """
    seen: set[t.Any] = set()
    ranked = []
    visited = [plan for plan in plans if plan.state in _VISITED]
    # Canaries are looked at first, so that their kind counts as tried.
    for plan in sorted(visited, key=lambda each: each.name not in canary):
        kind = (plan.boards, plan.before, plan.after)
        first_of_its_kind = kind not in seen
        seen.add(kind)
        rank = 3 if plan.state == "remember" else 0 if plan.name in canary else 1 if first_of_its_kind else 2
        ranked.append((rank, plan))
    return [plan for _rank, plan in sorted(ranked, key=lambda each: each[0])]


def waves(ordered: t.Sequence[HostPlan], plans: t.Sequence[HostPlan], settings: Settings) -> list[list[str]]:
    """The waves of hosts to change, each as large as ``serial`` says and ``keep_available`` permits.

    The last of them are all hosts on which no GPU is touched. Raises BadSetting where no further wave is permitted.
    """
    left = [plan for plan in ordered if plan.state != "remember"]
    untouched = [plan.name for plan in ordered if plan.state == "remember"]
    total = len(left)
    available = _Available(plans, settings.keep_available)
    found: list[list[str]] = []
    while left:
        size = _hosts_in(settings.serial[min(len(found), len(settings.serial) - 1)], total)
        wave: list[HostPlan] = []
        for plan in left:
            if len(wave) < size and available.permits([*wave, plan]):
                wave.append(plan)
        if not wave:
            raise BadSetting(available.why_not(left[0], len(found) + 1))
        available.change(wave)
        left = [plan for plan in left if plan not in wave]
        found.append([plan.name for plan in wave])
    return [*found, *([untouched] if untouched else [])]


def _hosts_in(size: t.Union[int, str], total: int) -> int:
    """Hosts in a wave, at least one: a percentage is of those that are to be changed, and rounded down."""
    return max(1, int(total * float(size.rstrip("%")) / 100)) if isinstance(size, str) else size


class _Available:
    """MIG devices that can be used while waves go over the hosts: none of a host that is being changed."""

    def __init__(self, plans: t.Iterable[HostPlan], floor: t.Mapping[str, int]) -> None:
        self._floor = floor
        self._now: Counter[str] = Counter()
        for plan in plans:
            self._now.update(plan.devices_before)

    def permits(self, wave: t.Sequence[HostPlan]) -> bool:
        """Whether enough is left while these hosts are out."""
        left = self._without(wave)
        # What is short already does not stop a wave that takes nothing of it.
        return all(left[profile] >= min(count, self._now[profile]) for profile, count in self._floor.items())

    def change(self, wave: t.Sequence[HostPlan]) -> None:
        """These hosts are done."""
        self._now = self._without(wave)
        for plan in wave:
            self._now.update(plan.devices_after)

    def why_not(self, plan: HostPlan, number: int) -> str:
        """Why not even this host may be changed now."""
        left = self._without([plan])
        short = [
            f"{left[profile]} of {count} {profile}"
            for profile, count in self._floor.items()
            if left[profile] < min(count, self._now[profile])
        ]
        return (
            f"mig_keep_available permits no wave {number}: with {plan.name} out, {' and '.join(short)} would be left."
            " Ask for less, or make room on other hosts first."
        )

    def _without(self, wave: t.Sequence[HostPlan]) -> Counter[str]:
        left = Counter(self._now)
        for plan in wave:
            left.subtract(plan.devices_before)
        return left


# --- what stops a rollout before it begins ------------------------------------------------------------------------


def why_stopped(plans: t.Sequence[HostPlan], settings: Settings) -> str:
    """The sentence that ends the rollout before the first host, or nothing."""
    if plans and all(plan.state == "unreachable" for plan in plans):
        return "No host can be reached, and none was touched: look at the inventory and the network, then run again."
    if settings.preflight != "strict":
        return ""
    refused = [plan.name for plan in plans if plan.state == "refused"]
    lost = [plan.name for plan in plans if plan.state == "unreachable" and not settings.tolerate_unreachable]
    told = [
        *([f"{hosts_in_words(refused)} would refuse the change"] if refused else []),
        *([f"{hosts_in_words(lost)} cannot be reached"] if lost else []),
    ]
    if not told:
        return ""
    remedies = [
        "remove the cause",
        "leave the hosts out with --limit",
        *(["set mig_tolerate_unreachable"] if lost else []),
        "or set mig_preflight to warn to go on without them",
    ]
    return f"{' and '.join(told)}, and no host was touched: {', '.join(remedies)}."


def left_out(plans: t.Sequence[HostPlan], settings: Settings) -> list[str]:
    """Hosts that the rollout does not visit and that are not right: the run must not end well."""
    bad = ("refused",) if settings.tolerate_unreachable else ("refused", "unreachable")
    return [plan.name for plan in plans if plan.state in bad]


# --- in words -----------------------------------------------------------------------------------------------------


def table(plans: t.Sequence[HostPlan], found: t.Sequence[t.Sequence[str]], settings: Settings) -> str:
    """The rollout as text for people: counts, who is left out and why, what becomes of the GPUs, the waves if any."""
    lines = [f"{counted(len(plans), 'host')}:"]
    counts = counts_by_state(plans)
    lines += [f"  {counts[state]:>6}  {_STATES_IN_WORDS[state]}" for state in STATES if counts[state]]
    for what, words in _LEFT_ALONE.items():
        gpus = {plan.name: getattr(plan, what) for plan in plans if getattr(plan, what)}
        if gpus:
            one = sum(gpus.values()) == 1
            said = f"{words[not one]}, and {'stays as it is' if one else 'stay as they are'}"
            lines += ["", f"{counted(sum(gpus.values()), 'GPU')} of {hosts_in_words(list(gpus))} {said}"]
    if settings.rollback_of and not counts["change"]:
        lines += ["", f"no host goes back: none has {settings.rollback_of} by its last change"]
    for state in ("refused", "unreachable"):
        for (reason, said), names in _grouped(plans, state, lambda plan: (plan.reason, plan.msg)).items():
            why = f" ({reason})" if reason not in ("", _OTHERWISE) else ""
            lines += ["", f"{_STATES_IN_WORDS[state]}{why}, {hosts_in_words(names)}:", f"  {said}"]
    for (_boards, before, after, offers), names in _grouped(
        plans, "change", lambda plan: (plan.boards, plan.before, plan.after, plan.offers)
    ).items():
        lines += ["", f"to change, {hosts_in_words(names)}:"]
        lines += [f"  {line}" for line in pictures(before, after)]
        lines += [f"  for the scheduler {' -> '.join(offers)}"] if offers else []
    leaving = {plan.name: plan.leaving for plan in plans if plan.state == "change" and plan.leaving}
    if leaving:
        jobs = [job for each in leaving.values() for job in each]
        lines += ["", f"pods that have to leave {hosts_in_words(list(leaving))}: {_some(jobs)}"]
    for mended in dict.fromkeys(each for plan in plans if plan.state in _VISITED for each in plan.heal):
        lines += [
            "",
            f"to mend, {hosts_in_words([plan.name for plan in plans if mended in plan.heal])}:",
            f"  {mended}",
        ]
    for note in dict.fromkeys(note for plan in plans for note in plan.notes):
        lines += ["", f"note, {hosts_in_words([plan.name for plan in plans if note in plan.notes])}:", f"  {note}"]
    lines += ["", *_course(found, settings)] if found else []
    return "\n".join(map(printable, lines))


def _some(names: t.Sequence[str]) -> str:
    more = len(names) - _NAMES_SHOWN
    return ", ".join(names[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def counts_by_state(plans: t.Iterable[HostPlan]) -> dict[str, int]:
    """Number of hosts in each state, all states named."""
    counts = Counter(plan.state for plan in plans)
    return {state: counts[state] for state in STATES}


def _grouped(
    plans: t.Iterable[HostPlan], state: str, key: t.Callable[[HostPlan], tuple[t.Any, ...]]
) -> dict[tuple[t.Any, ...], list[str]]:
    groups: dict[tuple[t.Any, ...], list[str]] = {}
    for plan in plans:
        if plan.state == state:
            groups.setdefault(key(plan), []).append(plan.name)
    return groups


def pictures(before: t.Sequence[str], after: t.Sequence[str]) -> list[str]:
    """What becomes of the GPUs that change, alike ones once, and how many stay."""
    changed = [(_GPU.sub("", was), _GPU.sub("", now)) for was, now in zip(before, after) if was != now]
    lines = []
    for (was, now), alike in Counter(changed).items():
        lines += [f"- {counted(alike, 'GPU')}  {was}", f"+ {' ' * len(counted(alike, 'GPU'))}  {now}"]
    same = len(before) - len(changed)
    return [*lines, *([f"  {counted(same, 'GPU')} as before"] if same else [])]


def _course(found: t.Sequence[t.Sequence[str]], settings: Settings) -> list[str]:
    serial = ",".join(map(str, settings.serial))
    floor = ", ".join(f"{count} {profile}" for profile, count in settings.keep_available.items())
    said = [
        f"{counted(len(found), 'wave')} (mig_serial {serial})",
        f"stopped where more than {settings.max_fail_percentage:g} % of a wave fail or are lost",
        *([f"never with less than {floor} available"] if floor else []),
        *([f"{settings.pause_between_waves:g} s apart"] if settings.pause_between_waves else []),
    ]
    return [f"{', '.join(said)}:", *(f"  {number:>4}  {hosts_in_words(wave)}" for number, wave in enumerate(found, 1))]


def hosts_in_words(names: t.Sequence[str]) -> str:
    """``gpu01 and gpu02``, or ``120 hosts (gpu01, gpu02, ... and 112 more)``."""
    if len(names) <= 2:
        return " and ".join(names)
    shown = ", ".join(names[:_NAMES_SHOWN])
    more = len(names) - _NAMES_SHOWN
    return f"{len(names)} hosts ({shown}{f', and {more} more' if more > 0 else ''})"
