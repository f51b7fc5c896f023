# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A node as the text that ``nvmlsim_create`` reads: one item per line, ``word key=value ...``."""

from __future__ import annotations

import typing as t
import uuid

from nvmlsim.boards import (
    Board,
    ComputeInstanceProfile,
    GpuInstanceProfile,
    Span,
    load_boards,
    load_systems,
    split_gpus,
)
from nvmlsim.errors import SimulatorError

# A full version number for those who only name the branch.
DRIVERS = {
    525: "525.147.05",
    530: "530.41.03",
    535: "535.183.06",
    545: "545.29.06",
    550: "550.127.05",
    555: "555.58.02",
    560: "560.35.05",
    565: "565.57.01",
    570: "570.172.08",
    575: "575.64.05",
    580: "580.95.05",
    590: "590.48.01",
    595: "595.45.04",
    610: "610.43.02",
    615: "615.10",
}
DEFAULT_DRIVER = DRIVERS[580]

# First driver branch that speaks this CUDA version (major * 1000 + minor * 10).
CUDA_SINCE = {
    525: 12000, 530: 12010, 535: 12020, 545: 12030, 550: 12040, 555: 12050, 560: 12060, 565: 12070, 570: 12080,
    575: 12090, 580: 13000, 590: 13010, 595: 13020, 610: 13030, 615: 13040,
}  # fmt: skip

# PCI buses of eight GPUs on a DGX A100; a second domain serves nodes with more.
BUSES = (0x07, 0x0F, 0x47, 0x4E, 0x87, 0x90, 0xB7, 0xBD)
MOST_GPUS = 32

NAMESPACE = uuid.UUID("8c1b6a0e-2f43-5d0c-9d3a-6e5a2f0f7c11")

# Assumptions that are about the boards' data and so are settled before the library sees them.
BOARD_ASSUMPTIONS = {
    "a30_counts": (
        ("wrong", "right"),
        "whether NVML reports other instance counts than fit on an A30 (the wrong numbers are made up)",
    ),
    "wide_ci_span": (
        ("2", "1"),
        "compute slices that the one compute instance of a double-memory 1g GPU instance spans on Hopper and later",
    ),
    "double_memory_plain_ci": (
        ("yes", "no"),
        "whether that GPU instance also offers the plain compute instance of one slice (mig-parted asks for it)",
    ),
}


class Placed(t.NamedTuple):
    """A board in its slot. ``pci`` has an 8-digit domain."""

    number: int
    board: Board
    pci: str
    uuid: str
    chip: str


def full_version(driver: str) -> str:
    """``580`` is ``580.95.05``; a version with dots is taken as it is."""
    parts = driver.split(".")
    if not all(part.isdigit() for part in parts) or len(parts) > 3:
        raise SimulatorError(f"driver version {driver!r} is not of the form 580 or 580.95.05")
    if len(parts) == 1:
        return DRIVERS.get(int(driver), f"{driver}.10")
    return driver


def branch_of(driver: str) -> int:
    """580 of 580.95.05."""
    return int(driver.split(".")[0])


def cuda_version(branch: int) -> int:
    """13000 for driver branch 580."""
    return CUDA_SINCE[max((known for known in CUDA_SINCE if known <= branch), default=min(CUDA_SINCE))]


def boards_under(assume: t.Mapping[str, str]) -> dict[str, Board]:
    """The boards, with these answers to the open questions about their data."""
    return load_boards(
        wide_ci_span=int(assume.get("wide_ci_span", "2")),
        double_memory_plain_ci=assume.get("double_memory_plain_ci", "yes") == "yes",
    )


def place_gpus(gpus: str, *, driver: str, chips: str, seed: str, assume: t.Mapping[str, str]) -> list[Placed]:
    """The GPUs of a node, in slots. ``gpus`` is a system's name or ``8xa100-sxm4-40gb,1xtesla-t4``."""
    system = load_systems().get(gpus)
    keys = list(system.gpus) if system else split_gpus(gpus)
    buses = system.buses if system and system.buses else ()
    if not 1 <= len(keys) <= MOST_GPUS:
        raise SimulatorError(f"{gpus!r} describes {len(keys)} GPUs; a simulated node has 1 to {MOST_GPUS}")
    if not chips or set(chips) - {"N", "S"}:
        raise SimulatorError(f"chips {chips!r} must be made of the letters N and S, one per GPU; they repeat")
    known = boards_under(assume)
    boards = [_board(key, driver, known) for key in keys]
    placed = []
    for index, board in enumerate(boards):
        domain, bus = (0, buses[index]) if buses else (index // len(BUSES), BUSES[index % len(BUSES)])
        name = f"{seed}/{board.key}/{index}"
        placed.append(
            Placed(
                number=index,
                board=board,
                pci=f"{domain:08X}:{bus:02X}:00.0",
                uuid=f"GPU-{uuid.uuid5(NAMESPACE, name)}",
                chip=chips[index % len(chips)],
            )
        )
    return placed


def _board(key: str, driver: str, boards: t.Mapping[str, Board]) -> Board:
    if key not in boards:
        known = ", ".join(k for k, board in boards.items() if not board.not_simulated)
        raise SimulatorError(f"no board {key!r} is known; boards: {known}; systems: {', '.join(load_systems())}")
    board = boards[key]
    if board.not_simulated:
        raise SimulatorError(f"board {key!r} is not simulated: {board.not_simulated}")
    if board.min_driver and _numbers(driver) < _numbers(board.min_driver):
        raise SimulatorError(f"{key} needs driver {board.min_driver} or newer, not {driver}")
    return board


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def describe_node(
    gpus: t.Sequence[Placed],
    *,
    driver: str,
    virtualization: str,
    persistence: bool,
    privileged: str,
    assume: t.Mapping[str, str],
    rename: t.Mapping[str, str],
    fabric_manager: t.Optional[bool] = None,
    resettable: bool = True,
) -> str:
    """The whole text. ``fabric_manager`` is None on a node without NVSwitches."""
    cuda = cuda_version(branch_of(driver))
    node = _line(
        "node",
        driver=driver,
        nvml=f"{cuda // 1000}.{driver}",
        cuda=cuda,
        persistence="on" if persistence else "off",
        never_reset=_yes(not resettable),
        privileged=privileged,
        fabric_manager={None: "none", True: "on", False: "off"}[fabric_manager],
    )
    broken_counts = assume.get("a30_counts", "wrong") == "wrong"
    lines = [node]
    for gpu in gpus:
        lines.append(_gpu_line(gpu, virtualization, broken_counts))
        for profile in gpu.board.profiles:
            lines.append(_gi_line(profile, rename))
            lines += [_ci_line(compute, rename) for compute in profile.compute]
    lines += [f"assume {name}={value}" for name, value in assume.items() if name not in BOARD_ASSUMPTIONS]
    return "\n".join(lines) + "\n"


def _gpu_line(gpu: Placed, virtualization: str, broken_counts: bool) -> str:
    board = gpu.board
    fields: dict[str, t.Any] = {
        "key": board.key,
        "name": board.name,
        "uuid": gpu.uuid,
        "pci": gpu.pci,
        "device": f"0x{board.device_ids[0]:08X}",
        "subsystem": f"0x{board.subsystem_ids[0] if board.subsystem_ids else 0:08X}",
        "memory_mib": board.memory_mib,
        "reserved_mib": board.memory_mib // 128,
        "arch": board.architecture,
        "cc": board.compute_capability,
        "minor": gpu.number,
        "virtualization": virtualization,
        "mig": _yes(board.mig_capable),
    }
    if board.mig_capable:
        fields.update(
            chip=gpu.chip,
            grid=board.grid,
            compute_slices=board.compute_slices,
            **board.engines._asdict(),
            needs_reset=_yes(board.needs_reset),
            keeps_mode=_yes(board.keeps_mode),
            broken_counts=_yes(broken_counts and any(p.reported_count != p.count for p in board.profiles)),
        )
    return _line("gpu", **fields)


def _gi_line(profile: GpuInstanceProfile, rename: t.Mapping[str, str]) -> str:
    return _line(
        "gi",
        enum=profile.enum,
        id=profile.id,
        slices=profile.slices,
        count=profile.count,
        reported_count=profile.reported_count,
        sm=profile.multiprocessors,
        **profile.engines._asdict(),
        memory_mib=profile.memory_mib,
        p2p=profile.p2p,
        caps=profile.capabilities,
        name=_mig_name(profile.name, rename),
        places=_places(profile.placements),
        default_ci=profile.default_ci,
        since=profile.since,
    )


def _ci_line(profile: ComputeInstanceProfile, rename: t.Mapping[str, str]) -> str:
    return _line(
        "ci",
        enum=profile.enum,
        id=profile.id,
        slices=profile.slices,
        count=profile.count,
        sm=profile.multiprocessors,
        **profile.engines._asdict(),
        name=_mig_name(profile.name, rename),
        places=_places(profile.placements),
    )


def _mig_name(name: str, rename: t.Mapping[str, str]) -> str:
    """NVML's name, ``MIG 1c.3g.20gb``. A new name for ``3g.20gb`` also changes ``1c.3g.20gb``."""
    for old, new in rename.items():
        if name == old or name.endswith(f"c.{old}"):
            name = name[: len(name) - len(old)] + new
            break
    return f"MIG {name}"


def _places(placements: t.Iterable[Span]) -> str:
    return ",".join(f"{start}:{size}" for start, size in placements)


def _yes(flag: bool) -> str:
    return "yes" if flag else "no"


def _line(word: str, **fields: t.Any) -> str:
    return " ".join([word, *(f"{key}={_quoted(str(value))}" for key, value in fields.items())])


def _quoted(value: str) -> str:
    return f'"{value}"' if " " in value or not value else value
