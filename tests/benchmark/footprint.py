# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a run of mig_config does to its host beside the driver: processes, locks, files, writes to the disk."""

from __future__ import annotations

import pathlib
import statistics
import typing as t

from ansible_collections.gpufleet.mig.plugins.module_utils.engine import driver, reading
from ansible_collections.gpufleet.mig.tests.benchmark.hosts import OPENER, Footprint, Host, timed

Row = dict[str, t.Any]

_BOARD, _GPUS = "a100-sxm4-40gb", 8


def footprint(folder: pathlib.Path) -> list[Row]:
    """Runs one after the other on one host. ``files written`` counts files, by name."""
    host = Host(folder / "host", f"{_GPUS}x{_BOARD}")
    host.bring_to(label="all-7g.40gb")
    too_much = [{"devices": "all", "mig-enabled": True, "mig-devices": {"7g.40gb": 1, "1g.5gb": 1}}]
    return [
        _run(host, "as wanted", label="all-7g.40gb"),
        _run(host, "as wanted, check mode", label="all-7g.40gb", _ansible_check_mode=True),
        _run(host, "impossible", config=too_much),
        _run(host, "to be changed, check mode", label="all-1g.5gb", _ansible_check_mode=True),
        _run(host, "changes 1 GPU", label="all-1g.5gb", gpus=["0"]),
        _run(host, "changes 8 GPUs", label="all-3g.20gb"),
        _run(host, "as wanted again", label="all-3g.20gb"),
    ]


def _run(host: Host, what: str, **arguments: t.Any) -> Row:
    record = Footprint(host.folder / "footprint")

    def watched() -> t.Any:
        record.watch()
        return host.mig_config_here(arguments)

    host.simulator.reset_calls()
    files = _files(host.state_dir)
    host.simulator.call(watched)
    counts = record.counts()
    return {
        "run": what,
        "driver writes": len(host.simulator.writes()),
        "NVML sessions": host.sessions(),
        "processes": counts["process"],
        "detached": counts["detached"],
        "looks at the lock": counts["looked at the lock"],
        "locks taken": counts["locked"],
        "files written": len(record.paths("written")),
        "fsyncs": counts["fsync"],
        "records touched": _files(host.state_dir) != files,
    }


def _files(folder: pathlib.Path) -> dict[str, tuple[int, int, int]]:
    """What is in a folder: inode, size, and when it was written to."""
    stats = ((path, path.stat()) for path in folder.rglob("*"))
    return {str(path): (status.st_ino, status.st_size, status.st_mtime_ns) for path, status in stats}


def reading_time(folder: pathlib.Path) -> list[Row]:
    """What it costs never to open NVML in one's own process: the same read in a child and without one, in turns."""
    rounds, warm_up = 60, 3
    rows = []
    for gpus in (1, _GPUS):
        host = Host(folder / str(gpus), f"{gpus}x{_BOARD}")
        host.bring_to(label="all-1g.5gb")
        pairs = host.simulator.call(lambda: [(timed(_in_a_child), timed(_here)) for _round in range(rounds + warm_up)])
        both = list(zip(*pairs[warm_up:], strict=True))
        in_a_child, here = (statistics.median(times) * 1000 for times in both)
        least_in_a_child, least_here = (min(times) * 1000 for times in both)
        rows.append(
            {
                "GPUs": gpus,
                "reading.observe, ms": round(in_a_child, 2),
                "session alone, ms": round(here, 2),
                "ratio": round(in_a_child / here, 2),
                "reading.observe, ms least": round(least_in_a_child, 2),
                "session alone, ms least": round(least_here, 2),
            }
        )
    return rows


def _in_a_child() -> None:
    reading.observe(OPENER)


def _here() -> None:
    with driver.Session() as session:
        session.read_node()
