# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The boards of ``boards.yaml`` as plain data. That file explains its fields and where its figures come from."""

from __future__ import annotations

import functools
import pathlib
import typing as t

import yaml

from nvmlsim.errors import SimulatorError

Span = tuple[int, int]  # start, size

# nvml.h: number of the compute instance profile with N slices
COMPUTE_ENUMS = {1: 0, 2: 1, 3: 2, 4: 3, 7: 4}
WIDE_COMPUTE_ENUM = 7  # NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE_REV1: one slice with the multiprocessors of two
# nvidia-smi mig -lcip: how wide the compute instances of a GPU instance with N slices can be
COMPUTE_WIDTHS = {1: (1,), 2: (1, 2), 3: (1, 2, 3), 4: (1, 2, 4), 7: (1, 2, 3, 4, 7)}
CAN_DRAW = 2  # NVML_GPU_INSTANCE_PROFILE_CAPS_GFX


class Engines(t.NamedTuple):
    """Numbers of engines: of a profile, or of a whole GPU."""

    copy: int
    decoder: int
    encoder: int
    jpeg: int
    ofa: int


class ComputeInstanceProfile(t.NamedTuple):
    """A kind of compute instance inside one kind of GPU instance. ``placements`` are in its compute slices."""

    name: str
    enum: int
    id: int
    slices: int
    count: int  # type: ignore[assignment]  # hides the method of tuples
    multiprocessors: int
    engines: Engines
    placements: tuple[Span, ...]


class GpuInstanceProfile(t.NamedTuple):
    """A kind of GPU instance. ``placements`` are in the board's memory slices; ``inferred`` names guessed figures.

    ``reported_count`` is what NVML says, ``count`` what fits. ``since`` is a driver branch, 0 for always.
    """

    name: str
    enum: int
    id: int
    slices: int
    count: int  # type: ignore[assignment]  # hides the method of tuples
    reported_count: int
    multiprocessors: int
    engines: Engines
    memory_mib: int
    p2p: int
    capabilities: int
    placements: tuple[Span, ...]
    default_ci: int
    since: int
    inferred: tuple[str, ...]
    compute: tuple[ComputeInstanceProfile, ...]


class Board(t.NamedTuple):
    """A kind of GPU. ``device_ids`` are ``(device << 16) | vendor``. ``not_simulated`` says why not, where so."""

    key: str
    name: str
    architecture: str
    compute_capability: str
    device_ids: tuple[int, ...]
    subsystem_ids: tuple[int, ...]
    memory_mib: int
    mig_capable: bool
    grid: int
    compute_slices: int
    needs_reset: bool
    keeps_mode: bool
    min_driver: str
    engines: Engines
    confidence: str
    inferred_from: str
    inferred: tuple[str, ...]
    profiles: tuple[GpuInstanceProfile, ...]
    not_simulated: str = ""


class System(t.NamedTuple):
    """A computer: its GPUs in NVML's order, and their PCI buses where these are known."""

    gpus: tuple[str, ...]
    buses: tuple[int, ...]


class _OpenAnswers(t.NamedTuple):
    """The parameters of ``load_boards``."""

    wide_ci_span: int
    double_memory_plain_ci: bool


@functools.cache
def load_boards(*, wide_ci_span: int = 2, double_memory_plain_ci: bool = True) -> dict[str, Board]:
    """All boards by key. The parameters answer questions that public listings leave open.

    On boards where a double-memory GPU instance has more multiprocessors than a plain 1g (H100: 26 instead of 16),
    ``wide_ci_span`` is the number of compute slices that the compute instance with all of them is placed on, and
    ``double_memory_plain_ci`` says that the plain compute instance of one slice is offered there too.
    """
    data = _data()
    open_answers = _OpenAnswers(wide_ci_span, double_memory_plain_ci)
    return {key: _board(data, key, open_answers) for key in data["boards"]}


@functools.cache
def load_systems() -> dict[str, System]:
    """All computers by name."""
    return {
        name: System(tuple(split_gpus(system["gpus"])), tuple(int(bus, 16) for bus in system.get("buses", ())))
        for name, system in _data()["systems"].items()
    }


def split_gpus(text: str) -> list[str]:
    """``2xa30-24gb,tesla-t4`` as one board key per GPU."""
    keys: list[str] = []
    for part in text.split(","):
        count, times, key = part.strip().partition("x")
        if times and count.isdigit():
            keys += [key] * int(count)
        else:
            keys.append(part.strip())
    return keys


@functools.cache
def _data() -> dict[str, t.Any]:
    text = pathlib.Path(__file__).with_name("boards.yaml").read_text(encoding="utf-8")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # every command that shows a node reads this file
    data: dict[str, t.Any] = yaml.load(text, Loader=loader)
    return data


def _with_sibling(data: dict[str, t.Any], key: str) -> dict[str, t.Any]:
    """The board's own fields over those of the board that it is like. What is inferred is never inherited."""
    own = data["boards"][key]
    if "like" not in own:
        return dict(own)
    sibling = _with_sibling(data, own["like"])
    sibling.pop("inferred", None)
    return {**sibling, **own}


def _board(data: dict[str, t.Any], key: str, answers: _OpenAnswers) -> Board:
    fields = _with_sibling(data, key)
    shape = data["shapes"].get(fields.get("shape"), {})
    inferred: dict[str, t.Any] = fields.get("inferred", {})
    try:
        profiles = tuple(_profiles(key, fields, shape, inferred, answers))
        return Board(
            key=key,
            name=fields["name"],
            architecture=fields.get("architecture", shape.get("architecture", "")),
            compute_capability=fields.get("compute_capability", shape.get("compute_capability", "")),
            device_ids=_numbers(fields["device_ids"]),
            subsystem_ids=_numbers(fields.get("subsystem_ids", ())),
            memory_mib=fields.get("memory_mib", 0),
            mig_capable=fields.get("mig_capable", bool(shape)),
            grid=shape.get("grid", 0),
            compute_slices=shape.get("compute_slices", 0),
            needs_reset=shape.get("needs_reset", False),
            keeps_mode=shape.get("keeps_mode", False),
            min_driver=fields.get("min_driver", ""),
            engines=Engines(*(max(column) for column in zip(*(p.engines for p in profiles)))) if profiles else NONE,
            confidence=fields["confidence"],
            inferred_from=fields.get("like", "") if inferred else "",
            inferred=tuple(inferred),
            profiles=profiles,
            not_simulated=fields.get("not_simulated", ""),
        )
    except (KeyError, ValueError, TypeError) as error:
        raise SimulatorError(f"boards.yaml: board {key!r} is not well described: {error!r}") from error


NONE = Engines(0, 0, 0, 0, 0)


def _profiles(
    key: str, fields: dict[str, t.Any], shape: dict[str, t.Any], inferred: dict[str, t.Any], answers: _OpenAnswers
) -> t.Iterator[GpuInstanceProfile]:
    if not shape:
        return
    rows = shape["profiles"]
    if not len(rows) == len(fields["gb"]) == len(fields["mib"]) == len(fields["sm"]):
        raise ValueError(f"{key}: gb, mib and sm must have one figure for each of {', '.join(rows)}")
    multiprocessors = dict(zip(rows, fields["sm"]))
    for kind, gb, mib in zip(rows, fields["gb"], fields["mib"]):
        row = rows[kind]
        name = _name(kind, gb)
        engines = Engines(*row["engines"])
        compute = tuple(_compute(kind, name, row["slices"], engines, multiprocessors, answers))
        yield GpuInstanceProfile(
            name=name,
            enum=row["enum"],
            id=row["id"],
            slices=row["slices"],
            count=row["count"],
            reported_count=row.get("reported", row["count"]),
            multiprocessors=multiprocessors[kind],
            engines=engines,
            memory_mib=mib,
            p2p=0,
            capabilities=CAN_DRAW if row.get("gfx") else 0,
            placements=tuple((start, row["size"]) for start in row["starts"]),
            default_ci=compute[-1].id,
            since=row.get("since", 0),
            inferred=tuple(word for word, kinds in inferred.items() if kinds == "all" or kind in kinds),
            compute=compute,
        )


def _name(kind: str, gb: int) -> str:
    """``1g+me`` with 5 GB is ``1g.5gb+me``; ``1g-double`` differs from ``1g`` in nothing but its memory."""
    slices = kind[:2]
    attributes = "" if kind == "1g-double" else kind[2:]
    return f"{slices}.{gb}gb{attributes}"


def _compute(
    kind: str, name: str, slices: int, engines: Engines, multiprocessors: dict[str, int], answers: _OpenAnswers
) -> t.Iterator[ComputeInstanceProfile]:
    """The compute instances of a GPU instance, the one that fills it last."""
    wide = multiprocessors.get("1g-double", 0)
    has_wide = wide > multiprocessors["1g"]
    if kind == "1g-double" and has_wide:
        if answers.double_memory_plain_ci:
            plain = COMPUTE_ENUMS[1]
            yield ComputeInstanceProfile(name, plain, plain, 1, 1, multiprocessors["1g"], engines, ((0, 1),))
        enum = WIDE_COMPUTE_ENUM
        yield ComputeInstanceProfile(name, enum, enum, 1, 1, wide, engines, ((0, answers.wide_ci_span),))
        return
    if kind == "2g" and has_wide:
        enum = WIDE_COMPUTE_ENUM
        yield ComputeInstanceProfile(f"1c.{name}", enum, enum, 1, 1, wide, engines, ((0, 2),))
    for width in COMPUTE_WIDTHS[slices]:
        fills = width == slices
        starts = range(0, slices - width + 1, {1: 1, 2: 2, 3: 4, 4: 4, 7: 8}[width])
        enum = COMPUTE_ENUMS[width]
        yield ComputeInstanceProfile(
            name=name if fills else f"{width}c.{name}",
            enum=enum,
            id=enum,
            slices=width,
            count=len(starts),
            multiprocessors=multiprocessors[kind] if fills else width * multiprocessors["1g"],
            engines=engines,
            placements=tuple((start, width) for start in starts),
        )


def _numbers(texts: t.Iterable[str]) -> tuple[int, ...]:
    return tuple(int(text, 16) for text in texts)
