# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What NVIDIA's device plugin and gpu-feature-discovery make of a node's GPUs, as recorded.

``recorded.json`` was written down from the two, unmodified (v0.20.0, driver 580.95.05), on simulated boards. It is a
judge of our own rules, here and in the unit tests of _kubernetes.py, so nothing may be added to it by reckoning. Each
case is a layout: ``gpus`` are groups of equal GPUs, how many, the model, whether MIG is on, MIG devices by profile;
``seen`` has by strategy the exit status of the plugin (null: it runs), its resources, and labels that depend on MIG.
Those with a ``key``, a layout as it is called here, have all of these labels; those with ``sharing`` were made with
that in the configuration of both.
"""

from __future__ import annotations

import collections
import functools
import itertools
import json
import typing as t
from pathlib import Path

RECORDED = Path(__file__).with_name("recorded.json")


class Gpu(t.NamedTuple):
    """One GPU: ``mig`` is None while MIG is off, else the profiles of its MIG devices in any order."""

    board: str
    mig: tuple[str, ...] | None = None


class Outcome(t.NamedTuple):
    """``exit``: the exit status of a device plugin that refuses the layout, or None."""

    exit: int | None
    resources: dict[str, int]
    labels: dict[str, str]


def key_of(gpus: t.Iterable[Gpu]) -> str:
    """How the recording calls a layout: ``1x a30-24gb 2x1g.6gb,1x2g.12gb; 1x a30-24gb off``."""
    groups = [(text, len(list(group))) for text, group in itertools.groupby(map(_one, gpus))]
    return "; ".join(f"{count}x {text}" for text, count in groups)


def _one(gpu: Gpu) -> str:
    if gpu.mig is None:
        return f"{gpu.board} off"
    counts = collections.Counter(gpu.mig)
    return f"{gpu.board} " + (",".join(f"{count}x{profile}" for profile, count in sorted(counts.items())) or "on")


@functools.cache
def _table() -> dict[str, dict[str, dict[str, t.Any]]]:
    return {case["key"]: case["seen"] for case in reversed(_cases()) if "key" in case and "sharing" not in case}


@functools.cache
def _cases() -> list[dict[str, t.Any]]:
    return t.cast("list[dict[str, t.Any]]", json.loads(RECORDED.read_text(encoding="utf-8")))


def shared(**replicas: int) -> t.Callable[[t.Sequence[Gpu], str], Outcome]:
    """What is recorded with time-slicing: ``shared(gpu=3)``, with ``mig_1g_5gb=2`` as MIG devices are called here."""
    resources = {f"nvidia.com/{_resource(name)}": count for name, count in replicas.items()}

    def outcome(gpus: t.Sequence[Gpu], strategy: str) -> Outcome:
        for case in _cases():
            slicing = case.get("sharing", {}).get("timeSlicing") or {"resources": [], "renameByDefault": True}
            configured = {each["name"]: each["replicas"] for each in slicing["resources"]}
            if configured == resources and not slicing["renameByDefault"] and case["key"] == key_of(gpus):
                return Outcome(**case["seen"][strategy])
        raise LookupError(f"{RECORDED.name} has no {key_of(gpus)!r} with {resources}")

    return outcome


def _resource(name: str) -> str:
    kind, _underscore, profile = name.partition("_")
    return f"{kind}-{profile.replace('_', '.')}" if profile else kind


def recorded(gpus: t.Sequence[Gpu], strategy: str) -> Outcome:
    """The recorded outcome; a layout that nobody recorded is the test's mistake."""
    key = key_of(gpus)
    if key not in _table():
        raise LookupError(f"{RECORDED.name} has no {key!r}; it has: {', '.join(map(repr, _table()))}")
    return Outcome(**_table()[key][strategy])


def gpus(count: int, board: str = "a100-sxm4-40gb", mig: str | None = None) -> list[Gpu]:
    """Equal GPUs: ``gpus(8, mig="7x1g.5gb")``, ``mig="on"`` for MIG without devices, None for off."""
    if mig is None:
        return [Gpu(board)] * count
    profiles: list[str] = []
    for part in mig.split(",") if mig != "on" else []:
        number, _x, profile = part.partition("x")
        profiles += [profile] * int(number)
    return [Gpu(board, tuple(sorted(profiles)))] * count
