# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What an audit makes of the answers of many hosts: one document, and its text and metrics.

This file is private to the collection gpufleet.mig and may change at any time.

A host is judged twice: against its wish, and against what a boot would bring. What cannot be told is never taken for a
difference, nor for the absence of one. Whatever comes from a host is data: it is escaped where it is written.
"""

from __future__ import annotations

import collections
import datetime
import textwrap
import typing as t

from ansible_collections.gpufleet.mig.plugins.module_utils.engine.profiles import counted, printable
from ansible_collections.gpufleet.mig.plugins.plugin_utils._answers import devices, mapping, pictures, sequence
from ansible_collections.gpufleet.mig.plugins.plugin_utils._answers import text as as_text

Document = dict[str, t.Any]
Answer = t.Mapping[str, t.Any]

SCHEMA = 1

# What a host is, measured by its wish, the worst last; and how that is said of one host and of several.
STATES = {
    "match": ("is as wanted", "are as wanted"),
    "differ": ("differs", "differ"),
    "unfinished": ("is in the middle of a change", "are in the middle of a change"),
    "refused": ("cannot have its wish", "cannot have their wish"),
    "unknown": ("cannot tell", "cannot tell"),
    "unreachable": ("does not answer", "do not answer"),
}
# What a boot would bring, measured by what is there. Where that is remembered ``elsewhere``, nobody asks there.
BOOTS = ("match", "differ", "absent", "elsewhere", "unknown")
_IN_ORDER_AT_A_BOOT = ("match", "elsewhere")

_NEXT = {
    "match": "",
    "differ": "Run the playbook gpufleet.mig.mig on it, with --check --diff first.",
    "unfinished": (
        "If nobody is at work, run the playbook gpufleet.mig.mig on it, which finishes the change, or takes it back"
        " with -e mig_recover=back."
    ),
    "refused": "Correct what is wanted of it, or what stands in the way; nothing was changed.",
    "unknown": "Look at the driver of this host ('nvidia-smi', 'dmesg') and at the message above.",
    "unreachable": "See whether it is up, and whether Ansible can log in.",
}
_NEXT_FOR_BOOT = {
    "differ": "A boot would bring something else than what is there: run the playbook gpufleet.mig.mig on it.",
    "beside": (
        "It remembers another layout than the manager of MIG that changes its GPUs has made, and would bring that at"
        " its next boot: run the playbook gpufleet.mig.uninstall on it, which touches no GPU, or set kubernetes_mode to"
        " engine."
    ),
    "absent": "Nothing is remembered for a boot: run the playbook gpufleet.mig.mig on it, which then touches no GPU.",
    "unknown": "Cannot tell what a boot would bring: the records of the host belong to root, so add --become.",
}
_NO_WISH = "No layout is named for it: set mig_profile, to all-1g.5gb for instance, mig_profile_by_gpu or mig_layout."

# An audit of nobody proves nothing: it is a typing error, or an inventory that lost its hosts.
NOBODY = "There is no host to look at: correct mig_hosts, --limit or the inventory."

_NAMES_SHOWN = 20
_WIDTH = 110


def make(plans: t.Mapping[str, t.Any], seen: t.Mapping[str, t.Any], now: datetime.datetime) -> Document:
    """Judge every host of ``plans``, which are results of mig_config in check mode.

    ``seen`` has results of mig_info, for those hosts for which mig_config had no plan; others in it do not matter.
    """
    hosts = {name: _judge(mapping(plan), mapping(seen.get(name))) for name, plan in plans.items()}
    wrong = [host for host in hosts.values() if not host["ok"]]
    states = collections.Counter(host["state"] for host in hosts.values())
    boots = collections.Counter(host["boot"] for host in hosts.values())
    said = f"{len(wrong)} of {counted(len(hosts), 'host')} {'is' if len(wrong) == 1 else 'are'} not in order"
    return {
        "schema": SCHEMA,
        "finished": now.astimezone(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "timestamp": int(now.timestamp()),
        "ok": bool(hosts) and not wrong,
        "msg": f"{said}: {in_words(states)}{_beside(wrong)}."
        if wrong
        else f"{counted(len(hosts), 'host')}: all in order."
        if hosts
        else NOBODY,
        "counts": {state: states[state] for state in STATES},
        "boots": {boot: boots[boot] for boot in BOOTS},
        "hosts": hosts,
    }


def in_words(states: t.Mapping[str, int]) -> str:
    """``8 are as wanted, 1 differs``."""
    return ", ".join(f"{states[state]} {words[states[state] != 1]}" for state, words in STATES.items() if states[state])


def _beside(wrong: t.Sequence[Document]) -> str:
    """What is wrong with hosts that are as wanted now."""
    right = [host for host in wrong if host["state"] == "match"]
    drained = sum(host["drained"] for host in right)
    boots = sum(host["boot"] not in _IN_ORDER_AT_A_BOOT for host in right)
    return (f", {drained} still drained" if drained else "") + (f", {boots} not after a boot" if boots else "")


# --- one host ------------------------------------------------------------------------------------------------------


def _judge(plan: Answer, seen: Answer) -> Document:
    host = _planned(plan) if "verdict" in plan else _without_plan(plan, seen)
    host["remember"] = plan.get("remember") is not False
    if host["boot"] == "absent" and not host["remember"]:
        host["boot"] = "elsewhere"
    host["ok"] = host["state"] == "match" and host["boot"] in _IN_ORDER_AT_A_BOOT and not host["drained"]
    host["next"] = _next(host)
    return host


def _planned(plan: Answer) -> Document:
    """A host that was compared with its wish."""
    change = plan.get("in_progress") or plan.get("recovered")
    state = "unfinished" if change else "match" if plan["verdict"] == "match" else "differ"
    before, after = sequence(plan.get("before")), sequence(plan.get("after"))
    pending = [*sequence(plan.get("reset_required")), *sequence(plan.get("reboot_required"))]
    # A mode that waits keeps the rest from being planned, and a change that is unfinished may end either way.
    foreseen = state == "match" or (state == "differ" and after != before)
    return {
        **_about(state),
        "boot": _boot(plan.get("persisted")),
        "label": as_text(plan.get("label")),
        "label_source": as_text(plan.get("label_source")),
        "msg": as_text(plan.get("msg")),
        "differences": [as_text(each) for each in sequence(plan.get("differences"))],
        "before": pictures(before),
        "after": pictures(after) if foreseen else [],
        "devices": devices(before),
        "devices_wanted": devices(after) if foreseen else None,
        "drained": bool(plan.get("drained")),
        "pending": sorted(int(index) for index in pending if isinstance(index, int)),
    }


def _without_plan(plan: Answer, seen: Answer) -> Document:
    """A host that gave no plan. Whether its wish or the host is to blame is seen from a second look at its GPUs."""
    answers = bool(seen.get("available"))
    gpus = sequence(seen.get("gpus")) if answers else []
    change = plan.get("in_progress") or seen.get("in_progress")
    said = as_text(plan.get("msg")) or "It was not asked: an earlier task of this host failed."
    if plan.get("unreachable") or (not plan and seen.get("unreachable")):
        state = "unreachable"
    elif change:
        state = "unfinished"
    elif answers and not any(mapping(gpu).get("errors") for gpu in gpus):
        state = "refused"
    else:
        state = "unknown"
    if said.startswith("No layout is named for this host"):
        said = _NO_WISH
    return {
        **_about(state),
        # A GPU that does not answer is none that a boot would bring otherwise.
        "boot": "unknown" if state == "unknown" else _boot(seen.get("persisted")),
        "msg": said,
        "before": pictures(gpus),
        "devices": devices(gpus) if answers else None,
        "pending": sorted(
            int(gpu["index"]) for gpu in map(mapping, gpus) if gpu.get("reset_required") or gpu.get("reboot_required")
        ),
    }


def _about(state: str) -> Document:
    """All keys of a host, in their order, with what is said where nothing is known."""
    return {
        "state": state,
        "ok": False,
        "boot": "unknown",
        "remember": True,
        "label": "",
        "label_source": "",
        "msg": "",
        "next": "",
        "differences": [],
        "before": [],
        "after": [],
        "devices": None,
        "devices_wanted": None,
        "drained": False,
        "pending": [],
    }


def _next(host: Document) -> str:
    """What to do about a host, in a sentence; empty where all is in order."""
    if host["state"] != "match":
        return _NEXT[host["state"]]
    if host["boot"] not in _IN_ORDER_AT_A_BOOT:
        return _NEXT_FOR_BOOT[_kind_of_boot(host)]
    if host["drained"]:
        return (
            "It was drained for a change and never taken back: run the playbook gpufleet.mig.mig on it, with"
            " mig_take_over_drain=true where no run for another layout is at work there."
        )
    return ""


def _kind_of_boot(host: Document) -> str:
    """What a boot would bring, in words of its own where two would bring something."""
    return "beside" if host["boot"] == "differ" and not host["remember"] else str(host["boot"])


def _boot(persisted: t.Any) -> str:
    return persisted if persisted in BOOTS else "unknown"


# --- text ----------------------------------------------------------------------------------------------------------


def text(document: Document) -> str:
    """The audit for people: every host that is not in order, and how many are."""
    lines = [f"MIG audit of {document['finished']}: {document['msg']}"]
    for name, host in document["hosts"].items():
        if not host["ok"]:
            lines += ["", *_host_in_words(name, host)]
    good = [name for name, host in document["hosts"].items() if host["ok"]]
    if good:
        lines += ["", *_wrapped(f"In order: {_names(good)}.", "")]
    elsewhere = [name for name, host in document["hosts"].items() if host["boot"] == "elsewhere"]
    if elsewhere:
        lines += ["", *_wrapped(f"{_ELSEWHERE} {_names(elsewhere)}.", "")]
    return "\n".join(lines)


def _names(hosts: t.Sequence[str]) -> str:
    more = f" and {len(hosts) - _NAMES_SHOWN} more" if len(hosts) > _NAMES_SHOWN else ""
    return ", ".join(map(printable, hosts[:_NAMES_SHOWN])) + more


def _host_in_words(name: str, host: Document) -> list[str]:
    label = f" (wish: {printable(host['label'])}, {printable(host['label_source'])})" if host["label"] else ""
    lines = [f"{printable(name)} {STATES[host['state']][0]}{label}"]
    said = host["differences"] or ([] if host["state"] == "match" else [host["msg"]])
    if host["state"] == "unfinished" and host["differences"]:
        said = [host["msg"], *said]
    for sentence in said:
        lines += _wrapped(printable(sentence), "    ")
    lines += _pictures_in_words(host["before"], host["after"])
    if host["pending"]:
        lines.append(f"    The MIG mode of GPU {', '.join(map(str, host['pending']))} waits for a reset or reboot.")
    if host["state"] != "match" and host["boot"] in ("differ", "absent"):
        lines += _wrapped(_BOOT_BESIDE[_kind_of_boot(host)], "    ")
    if host["drained"]:
        lines.append("    It is drained: a change was begun and the host was not taken back.")
    return [*lines, *_wrapped(host["next"], "    -> ")]


def _pictures_in_words(before: t.Sequence[str], after: t.Sequence[str]) -> list[str]:
    """What is there and what is wanted of each GPU that is to change; of all where that cannot be told."""
    if not after:
        return [f"    now     {printable(now)}" for now in before]
    return [
        f"    {title}  {printable(picture)}"
        for now, wanted in zip(before, after)
        if now != wanted
        for title, picture in (("now   ", now), ("wanted", wanted))
    ]


_BOOT_BESIDE = {
    "differ": "What is there is not what a boot would bring: something else than this collection made it, or took it.",
    "absent": "Nothing is remembered for a boot.",
    "beside": (
        "It remembers a layout of its own beside the manager of MIG that changes its GPUs: the playbook"
        " gpufleet.mig.uninstall has it forget that."
    ),
}
# Not that this is right: the label of a node may be another one by now.
_ELSEWHERE = (
    "What a boot brings these hosts is up to the MIG manager of the operator, which goes by the label of their node and"
    " is not asked here:"
)


def _wrapped(sentence: str, indent: str) -> list[str]:
    return textwrap.wrap(
        sentence,
        _WIDTH,
        initial_indent=indent,
        subsequent_indent=" " * len(indent),
        break_long_words=False,
        break_on_hyphens=False,
    )


# --- metrics -------------------------------------------------------------------------------------------------------

_Sample = tuple[dict[str, str], int]


def metrics(document: Document) -> str:
    """The audit for the textfile collector of node_exporter.

    There is no sample of a thing that cannot be told: a failed read must not look like drift, nor like its absence.
    """
    # A list, since Ansible hands over mappings whose items can be gone through once.
    hosts = list(document["hosts"].items())
    known = [(name, host) for name, host in hosts if host["state"] in ("match", "differ")]
    lines: list[str] = []
    for name, about, samples in (
        ("hosts", "Hosts of the audit by what they are.", [({"state": s}, n) for s, n in document["counts"].items()]),
        (
            "host_state",
            "1 for what the host is: match, differ, unfinished, refused, unknown or unreachable.",
            [({"host": name, "state": host["state"]}, 1) for name, host in hosts],
        ),
        (
            "host_ok",
            "Whether the host is as wanted, boots the same, and is not drained.",
            [({"host": name}, int(host["ok"])) for name, host in hosts],
        ),
        (
            "host_drift",
            "Whether the host differs from its wish; absent where that cannot be told.",
            [({"host": name}, int(host["state"] == "differ")) for name, host in known],
        ),
        (
            "host_boot_drift",
            "Whether a boot would bring something else than what is there; absent where that cannot be told.",
            [
                ({"host": name}, int(host["boot"] != "match"))
                for name, host in hosts
                if host["boot"] not in ("unknown", "elsewhere")
            ],
        ),
        (
            "host_drained",
            "Whether the host was drained for a change and not taken back.",
            [({"host": name}, int(host["drained"])) for name, host in hosts if host["label"]],
        ),
        (
            "host_pending_gpus",
            "GPUs whose MIG mode waits for a reset or reboot; absent where that cannot be told.",
            [({"host": name}, len(host["pending"])) for name, host in hosts if host["devices"] is not None],
        ),
        ("devices", "MIG devices that the host has.", list(_devices_of(document, "devices"))),
        ("devices_wanted", "MIG devices that the host should have.", list(_devices_of(document, "devices_wanted"))),
        ("audit_timestamp_seconds", "When the audit ended.", [({}, document["timestamp"])]),
    ):
        lines += _family(f"gpufleet_mig_{name}", about, samples)
    return "\n".join(lines) + "\n"


def _devices_of(document: Document, key: str) -> t.Iterator[_Sample]:
    for name, host in document["hosts"].items():
        for profile, number in (host[key] or {}).items():
            yield {"host": name, "profile": profile}, number


def _family(name: str, about: str, samples: t.Sequence[_Sample]) -> list[str]:
    lines = [f"# HELP {name} {about}", f"# TYPE {name} gauge"]
    for labels, value in samples:
        said = ",".join(f'{key}="{escaped(text)}"' for key, text in labels.items())
        lines.append(f"{name}{{{said}}} {value}" if labels else f"{name} {value}")
    return lines


def escaped(value: str) -> str:
    """The value of a label as Prometheus reads it back; what is no Unicode is replaced, since it refuses the file."""
    plain = str(value).encode("utf-8", "replace").decode("utf-8")
    return plain.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
