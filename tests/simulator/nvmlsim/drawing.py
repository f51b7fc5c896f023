# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A node's state as text for people: what is there, not what a client saw."""

from __future__ import annotations

import typing as t

from nvmlsim.boards import load_boards

WIDTH = 88  # divides by 8 and leaves room for "1g.10gb+me" in an eighth; 12 slices get 84


def mark_inferred(state: dict[str, t.Any]) -> dict[str, t.Any]:
    """Say for each GPU which of its board's figures nobody published (``inferred``) and whose they are."""
    boards = load_boards()
    for gpu in state["gpus"]:
        board = boards.get(gpu["key"])
        gpu["confidence"] = board.confidence if board else ""
        gpu["inferred"] = list(board.inferred) if board else []
        gpu["inferred_from"] = board.inferred_from if board else ""
    return state


def draw_node(state: dict[str, t.Any]) -> str:
    """All GPUs, then the faults that wait."""
    lines = [f"driver {state['driver']}, NVML {state['nvml']}, {len(state['gpus'])} GPUs"]
    for gpu in state["gpus"]:
        lines += _gpu(gpu)
    for fault in state.get("faults", ()):
        lines.append(f"fault: {fault}")
    return "\n".join(lines) + "\n"


def _gpu(gpu: dict[str, t.Any]) -> t.Iterator[str]:
    yield f"GPU {gpu['index']}  {gpu['name']}  {gpu['pci']}  {gpu['uuid']}  {_mode(gpu)}"
    if gpu["inferred"]:
        source = f" from {gpu['inferred_from']}" if gpu["inferred_from"] else ""
        yield f"    partly inferred{source}: {', '.join(gpu['inferred'])} (evidence: {gpu['confidence']})"
    if gpu["mode_current"]:
        yield f"    {_slots(gpu)}"
        for instance in gpu["instances"]:
            yield from _instance(instance)
    for holder in gpu["holders"]:
        yield f"    {_holder(holder)}"


def _mode(gpu: dict[str, t.Any]) -> str:
    if not gpu["mig"]:
        return "no MIG"
    words = ["off", "on"]
    text = f"MIG {words[gpu['mode_current']]}"
    if gpu["mode_pending"] != gpu["mode_current"]:
        text += f", {words[gpu['mode_pending']]} after a reset or reboot"
    return text


def _slots(gpu: dict[str, t.Any]) -> str:
    """``|1g.5gb    |..........|3g.20gb                 |``: every instance as wide as its memory slices."""
    grid = gpu["grid"]
    unit = WIDTH // grid
    line = ["." if column % unit else "|" for column in range(grid * unit)]
    for instance in gpu["instances"]:
        first, width = instance["start"] * unit, instance["size"] * unit
        name = instance["name"].replace("MIG ", "")[: width - 1]
        line[first : first + width] = ("|" + name.ljust(width - 1))[:width]
    return "".join(line) + "|"


def _instance(instance: dict[str, t.Any]) -> t.Iterator[str]:
    where = f"{instance['start']}:{instance['size']}"
    yield f"    GI {instance['id']:<2}  {instance['name']} at {where}" + (
        "" if instance["compute"] else ", no compute instance"
    )
    for compute in instance["compute"]:
        what = f"CI {compute['id']}  {compute['name']} at {compute['start']}:{compute['size']}"
        yield f"      {what}  {compute['uuid']}  MIG device {compute['mig_index']}"


def _holder(holder: dict[str, t.Any]) -> str:
    place = "the GPU"
    if holder["gi"] is not None:
        place = f"GI {holder['gi']}"
        if holder["ci"] is not None:
            place += f" CI {holder['ci']}"
    return f"held by {holder['pid']} ({holder['name']}, {holder['kind']}): {place}"
