# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the unit nvidia-mig-manager does with the config that it is given: it compares the GPUs with it.

The real one would change them where they differ; this one fails, and says where. Nodes have no YAML, so that only its
plainest form is read here: mappings and lists in blocks, as Ansible writes them.
"""

from __future__ import annotations

import collections
import os
import re
import typing as t

import simulated
import trees

# A line without its indentation, and how far it is indented.
Line = tuple[int, str]


def compare() -> int:
    """Compare the GPUs with the config that the unit's variables name. Without them nothing is looked at."""
    path = os.environ.get("MIG_PARTED_CONFIG_FILE")
    if path is None:
        return 0
    selected = os.environ["MIG_PARTED_SELECTED_CONFIG"]
    with open(path, encoding="utf-8") as file:
        config = read(file.read())
    node = simulated.node() if simulated.driver_is_loaded() else None
    differ = differences(trees.gpus_of(node) if node else [], config["mig-configs"][selected])
    simulated.note("nvidia-mig-manager", "; ".join(differ) or f"nothing to change for {selected}")
    return 1 if differ else 0


def differences(gpus: t.Sequence[t.Mapping[str, t.Any]], entries: t.Sequence[t.Mapping[str, t.Any]]) -> list[str]:
    """Where GPUs are not as a config wants them, each in some words."""
    found = []
    for entry in entries:
        unknown = set(entry) - {"devices", "mig-enabled", "mig-devices"}
        if unknown:
            raise simulated.SimulationError(f"{', '.join(sorted(unknown))} of a config is not simulated")
        for gpu in gpus:
            if entry["devices"] != "all" and gpu["index"] not in entry["devices"]:
                continue
            if bool(gpu["mode_current"]) != entry["mig-enabled"]:
                found.append(f"GPU {gpu['index']} has another mode")
            there = [ci["name"].removeprefix("MIG ") for gi in gpu["instances"] for ci in gi["compute"]]
            if collections.Counter(there) != collections.Counter(entry.get("mig-devices") or {}):
                found.append(f"GPU {gpu['index']} has other devices")
    return found


def read(text: str) -> t.Any:
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return _block([(len(line) - len(line.lstrip()), line.strip()) for line in lines])


def _block(lines: list[Line]) -> t.Any:
    """The mapping or list that begins with the first line; its lines are taken away."""
    indent, words = lines[0]
    if words.startswith("- "):
        return list(_items(lines, indent))
    if re.match(r"[^\s:]+:(\s|$)", words):
        return dict(_pairs(lines, indent))
    lines.pop(0)
    return _scalar(words)


def _items(lines: list[Line], indent: int) -> t.Iterator[t.Any]:
    while lines and lines[0][0] == indent and lines[0][1].startswith("- "):
        words = lines[0][1]
        rest = words[1:].lstrip()
        lines[0] = (indent + len(words) - len(rest), rest)
        yield _block(lines)


def _pairs(lines: list[Line], indent: int) -> t.Iterator[tuple[str, t.Any]]:
    while lines and lines[0][0] == indent and not lines[0][1].startswith("- "):
        key, _colon, value = lines.pop(0)[1].partition(":")
        if value:
            yield key, _scalar(value.strip())
        else:
            yield key, _block(lines)


def _scalar(words: str) -> t.Any:
    known = {"true": True, "false": False, "{}": {}, "[]": []}
    return known[words] if words in known else int(words) if words.isdigit() else words.strip("'\"")
