# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The same changes with mig_config and with NVIDIA's nvidia-mig-parted: same start, same config, same fault.

Both are whole programs here, from their arguments to their exit status. What they did is read from the simulator's
record, not from what they say.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import functools
import os
import pathlib
import random
import shutil
import typing as t

from ansible_collections.gpufleet.mig.plugins.module_utils.engine import configs, planner
from ansible_collections.gpufleet.mig.plugins.module_utils.engine.model import WishError
from ansible_collections.gpufleet.mig.tests.benchmark import mig_parted
from ansible_collections.gpufleet.mig.tests.benchmark.hosts import Entries, Host
from nvmlsim import Simulator

Row = dict[str, t.Any]
_Result = t.TypeVar("_Result")
# Brings a host to a config; what kept it from that, or nothing.
Apply = t.Callable[[Entries], str]

OURS, THEIRS = "mig_config", "nvidia-mig-parted"


class Done(t.NamedTuple):
    """What a run did: what it says went wrong, MIG devices of the start that it destroyed, calls that write (also those
    that failed), and sessions of NVML."""

    failure: str
    destroyed: int
    writes: int
    sessions: int


def tools_of(host: Host) -> dict[str, Apply]:
    """The programs that can be measured here."""

    def ours(entries: Entries) -> str:
        result = host.mig_config(config=entries, allow_empty=True)
        return str(result["msg"]) if result.get("failed") else ""

    tools: dict[str, Apply] = {OURS: ours}
    if not mig_parted.why_not():
        tools[THEIRS] = mig_parted.MigParted(host).apply
    return tools


def run(host: Host, start: pathlib.Path, apply: Apply, entries: Entries) -> Done:
    host.go_back_to(start)
    failure = apply(entries)
    writes = host.simulator.writes()
    gone = {
        (call.gpu, call.gi, call.ci)
        for call in writes
        if call.function == "nvmlComputeInstanceDestroy" and call.code == "SUCCESS"
    }
    # Ids belong to places: what was created on the way and destroyed again is not counted, unless it had been there.
    return Done(failure, len(gone & devices_in(start)), len(writes), host.sessions())


def devices_in(saved: pathlib.Path) -> set[tuple[int, int, int]]:
    """The MIG devices of a saved layout: GPU, GI and CI."""
    return {
        (gpu["index"], gi["id"], ci["id"])
        for gpu in Simulator(saved).describe()["gpus"]
        for gi in gpu["instances"]
        for ci in gi["compute"]
    }


def all_processors(work: t.Callable[..., _Result], *arguments: t.Iterable[t.Any]) -> list[_Result]:
    """``map`` with one process for each processor: the counts are the same, and the wait is shorter."""
    mig_parted.why_not()  # found out once, before the processes begin
    with concurrent.futures.ProcessPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(work, *arguments))


# --- all transitions ----------------------------------------------------------------------------------------------


def transitions(folder: pathlib.Path, boards: t.Mapping[str, str]) -> list[Row]:
    """From each layout to each other, on one GPU of each board: totals. First between the labels that need no config,
    which have little in common, then between some layouts of different profiles, as a config has them.

    Two programs can place the same wish differently; then both layouts are starts, for both of them. ``fewest`` are
    devices that no way could keep: those of the start by profile, less those of the end. A layout may make that
    impossible, since what could stay can stand in the way.
    """
    jobs = [(title, board, kind, folder / board / kind) for kind in _WISHES for title, board in boards.items()]
    return [row for row in all_processors(_transitions_of, *zip(*jobs, strict=True)) if row["changes"]]


def _transitions_of(title: str, board: str, kind: str, folder: pathlib.Path) -> Row:
    host = Host(folder, f"1x{board}")
    tools = tools_of(host)
    wishes = _WISHES[kind](host)
    starts = _starts(host, tools, wishes)
    totals = {name: collections.Counter[str]() for name in tools}
    number = fewest = 0
    for was, start, profiles in starts:
        for wish, entries in wishes.items():
            if wish == was:
                continue
            number += 1
            fewest += (profiles - collections.Counter(entries[0]["mig-devices"])).total()
            for name, apply in tools.items():
                done = run(host, start, apply, entries)
                reached = not done.failure and _instances(host) == entries[0]["mig-devices"]
                if name == OURS and not reached:
                    raise RuntimeError(f"{name} on {board} from {was} to {wish}: {done.failure or _instances(host)}")
                totals[name].update(destroyed=done.destroyed, writes=done.writes, failed=not reached)
                totals[name]["sessions"] = max(totals[name]["sessions"], done.sessions)
    row: Row = {"board": title, "between": f"{len(wishes)} {kind}", "changes": number, "fewest destroyed": fewest}
    for what in ("destroyed", "writes", "sessions", "failed"):
        row[what] = totals[OURS][what]
        row[f"{what}: mig-parted"] = totals[THEIRS][what] if THEIRS in totals else mig_parted.why_not()
    shutil.rmtree(folder)  # a saved layout takes megabytes, and there are many boards
    return row


def _starts(
    host: Host, tools: t.Mapping[str, Apply], wishes: t.Mapping[str, Entries]
) -> list[tuple[str, pathlib.Path, collections.Counter[str]]]:
    """Every wish as each program lays it out on a new GPU, each layout once: the wish, the layout, its profiles."""
    new = host.save("new")
    starts: dict[tuple[str, str], tuple[str, pathlib.Path, collections.Counter[str]]] = {}
    for number, (wish, entries) in enumerate(wishes.items()):
        for name, apply in tools.items():
            if not run(host, new, apply, entries).failure:
                layout = repr(host.simulator.layouts())
                starts.setdefault((wish, layout), (wish, host.save(f"{number}-{name}"), _instances(host)))
    return list(starts.values())


def _instances(host: Host) -> collections.Counter[str]:
    """How many there are of each profile on the first GPU, by the name that a config has for it."""
    return collections.Counter({name.removeprefix("MIG "): number for name, number in host.profiles()[0].items()})


def _labels(host: Host) -> dict[str, Entries]:
    return host.labels()


def _mixes(host: Host) -> dict[str, Entries]:
    """Five layouts, the same in every run, of at least two plain profiles that leave no room for another instance."""
    node = host.read()
    names = [profile.name for profile in node.gpus[0].profiles or () if not profile.attributes]

    @functools.cache
    def fits(mix: tuple[str, ...]) -> bool:
        try:
            planner.plan_node(node, configs.resolve(node, config=_entries(collections.Counter(mix))))
        except WishError:
            return False
        return True

    some: list[tuple[str, ...]] = [()]
    full = []
    for mix in some:
        larger = [tuple(sorted((*mix, name))) for name in names if fits(tuple(sorted((*mix, name))))]
        some += [each for each in larger if each not in some]
        if not larger and len(set(mix)) > 1:
            full.append(mix)
    chosen = random.Random(20260101).sample(full, min(5, len(full)))
    return {" ".join(mix): _entries(collections.Counter(mix)) for mix in chosen}


def _entries(counts: t.Mapping[str, int]) -> Entries:
    return [{"devices": "all", "mig-enabled": True, "mig-devices": dict(counts)}]


_WISHES: dict[str, t.Callable[[Host], dict[str, Entries]]] = {"labels": _labels, "mixes": _mixes}


# --- wishes that cannot be ----------------------------------------------------------------------------------------


def impossible(folder: pathlib.Path, boards: t.Mapping[str, str]) -> list[Row]:
    """A GPU that is full of its smallest instances, and a wish for more than it can hold."""
    return all_processors(_impossible_on, boards, boards.values(), (folder / board for board in boards.values()))


def _impossible_on(title: str, board: str, folder: pathlib.Path) -> Row:
    host = Host(folder, f"1x{board}")
    labels = host.labels()
    smallest, entries = _too_much(labels)
    host.bring_to(config=labels[smallest])
    start = host.save("full")
    row: Row = {"board": title, "wish": ", ".join(f"{n} x {name}" for name, n in entries[0]["mig-devices"].items())}
    tools = tools_of(host)
    for name, column in ((OURS, ""), (THEIRS, ": mig-parted")):
        done = run(host, start, tools[name], entries) if name in tools else None
        if done and not done.failure:
            raise RuntimeError(f"{name} says that it did what cannot be done on {board}")
        row[f"writes{column}"] = done.writes if done else mig_parted.why_not()
        row[f"devices lost{column}"] = done.destroyed if done else mig_parted.why_not()
        row[f"devices left{column}"] = len(devices_in(host.simulator.path)) if done else mig_parted.why_not()
    return row


def _too_much(labels: t.Mapping[str, Entries]) -> tuple[str, Entries]:
    """The label of the smallest profile, and a balanced layout, which fills a GPU, with one more of these."""
    counts = {label: entries[0]["mig-devices"] for label, entries in labels.items()}
    # Of several profiles that fit equally often, the plain one is the first.
    smallest = max(
        (label for label, wanted in counts.items() if len(wanted) == 1), key=lambda label: sum(counts[label].values())
    )
    (profile,) = counts[smallest]
    wanted = dict(counts.get("all-balanced") or counts[smallest])
    wanted[profile] = wanted.get(profile, 0) + 1
    return smallest, _entries(wanted)


# --- steps that fail ----------------------------------------------------------------------------------------------


class Case(t.NamedTuple):
    """A way for a change to go wrong, and the label that both GPUs of the node are to be brought to when it does.

    ``disturbances`` gets the host, the layout at the start and the number of writes of an undisturbed run; it yields,
    for each run, what makes it go wrong while it lasts.
    """

    fault: str
    label: str
    disturbances: t.Callable[[Host, pathlib.Path, int], t.Iterator[t.ContextManager[None]]]


def _each_write_once(host: Host, _start: pathlib.Path, writes: int) -> t.Iterator[t.ContextManager[None]]:
    for nth in range(1, writes + 1):
        yield _fault(host, "write", nth=nth, code="UNKNOWN")


def _each_instance_held(host: Host, start: pathlib.Path, _writes: int) -> t.Iterator[t.ContextManager[None]]:
    for place in sorted(devices_in(start)):
        yield _held(host, *place)


def _no_new_instance(host: Host, _start: pathlib.Path, _writes: int) -> t.Iterator[t.ContextManager[None]]:
    yield _fault(host, "nvmlDeviceCreateGpuInstance*", gpu=1, code="INSUFFICIENT_RESOURCES")


@contextlib.contextmanager
def _fault(host: Host, function: str, **how: t.Any) -> t.Iterator[None]:
    host.simulator.fault(function, **how)
    yield


@contextlib.contextmanager
def _held(host: Host, gpu: int, gi: int, ci: int) -> t.Iterator[None]:
    with host.simulator.occupy(gpu, gi, ci, kind="hidden"):
        yield


CASES = (
    Case("each write fails once, in turn", "all-3g.20gb", _each_write_once),
    Case("each write fails once, in turn", "all-balanced", _each_write_once),
    Case("each instance in turn is held by a process in no list", "all-3g.20gb", _each_instance_held),
    Case("GPU 1 takes no new instance, not even an old one", "all-3g.20gb", _no_new_instance),
)
_FAULTY_BOARD, _FAULTY_START = "a100-sxm4-40gb", "all-1g.5gb"


def faults(folder: pathlib.Path) -> list[Row]:
    """What is left of a node of two GPUs when a step of a change fails. Every run counts, also one that got by."""
    jobs = [(case, name) for case in CASES for name in (OURS, THEIRS)]
    folders = [folder / str(number) for number in range(len(jobs))]
    return all_processors(_faults_of, *zip(*jobs, strict=True), folders)


def _faults_of(case: Case, name: str, folder: pathlib.Path) -> Row:
    host = Host(folder, f"2x{_FAULTY_BOARD}")
    tools = tools_of(host)
    row: Row = {"fault": case.fault, "change": f"{_FAULTY_START} to {case.label}", "by": name, "runs": 0}
    if name not in tools:
        return {**row, **dict.fromkeys(_COLUMNS.values(), ""), "runs": mig_parted.why_not()}
    entries = host.labels()[case.label]
    host.bring_to(label=_FAULTY_START)
    start = host.save("start")
    before = host.simulator.layouts()
    writes = run(host, start, tools[name], entries).writes
    wanted = host.profiles()
    found = []
    for disturbance in case.disturbances(host, start, writes):
        host.go_back_to(start)
        with disturbance:
            failure = tools[name](entries)
        found.append(_left(host, bool(failure), before, wanted))
    totals = {column: sum(getattr(each, field) for each in found) for field, column in _COLUMNS.items()}
    return {**row, "runs": len(found), **totals}


class Left(t.NamedTuple):
    """What a run left behind.

    ``failed``      the program said that it failed
    ``whole``       the layout of the whole node is the old one or the wanted one
    ``empty_gpus``  GPUs without any instance
    ``half_gpus``   GPUs, the empty ones among them, that are neither as before nor as wanted
    """

    failed: bool
    whole: bool
    empty_gpus: int
    half_gpus: int


_COLUMNS = {"failed": "said so", "whole": "node whole", "empty_gpus": "GPUs left empty", "half_gpus": "GPUs neither"}


def _left(host: Host, failed: bool, before: list[tuple[t.Any, ...]], wanted: list[collections.Counter[str]]) -> Left:
    now, profiles = host.simulator.layouts(), host.profiles()
    as_before = [was == gpu for was, gpu in zip(before, now, strict=True)]
    as_wanted = [want == gpu for want, gpu in zip(wanted, profiles, strict=True)]
    return Left(
        failed=failed,
        whole=all(as_before) or all(as_wanted),
        empty_gpus=sum(not gpu for gpu in now),
        half_gpus=sum(not (old or new) for old, new in zip(as_before, as_wanted, strict=True)),
    )
