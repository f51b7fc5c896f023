# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The numbers that this project watches, as tables; all of them also in ``.venv/bench.json``.

    make bench                              everything, about three minutes of processor time
    python tests/benchmark/bench.py module  these parts: engine, writes, planner, module, simulator, reading, footprint,
                                            transitions, impossible, faults
    python tests/benchmark/bench.py --all-boards transitions impossible
                                            every board that the simulator knows instead of a few; ten minutes and more

Counts (calls, writes, bytes) repeat exactly, but for those of nvidia-mig-parted, which tries things in no fixed
order. Times depend on the machine, so they are medians; two that are compared were taken in turns in the same run.
Nothing here fails because a machine is slow. What the numbers mean: docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import collections
import datetime
import functools
import importlib.metadata
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import typing as t

ROOT = pathlib.Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv"
sys.path.insert(0, str(VENV / "collections"))

from ansible_collections.gpufleet.mig.plugins.module_utils.engine import (  # noqa: E402
    compare,
    configs,
    driver,
    planner,
    reading,
)
from ansible_collections.gpufleet.mig.plugins.module_utils.engine.model import (  # noqa: E402
    Gpu,
    GpuWish,
    Node,
    Wanted,
    WishError,
)
from ansible_collections.gpufleet.mig.tests.benchmark import footprint, mig_parted, versus  # noqa: E402
from ansible_collections.gpufleet.mig.tests.benchmark.hosts import OPENER, Host, timed  # noqa: E402
from ansible_collections.gpufleet.mig.tests.unit.plugins.module_utils.engine import oracle  # noqa: E402
from nvmlsim import load_boards  # noqa: E402

BOARDS = {
    "A30": "a30-24gb",
    "A100-40": "a100-sxm4-40gb",
    "H100-80": "h100-sxm5-80gb",
    "B200": "b200-180gb",
    "RTX PRO 6000": "rtx-pro-6000-server",
}
# Enough of them for a run that somebody waits for: one of each kind of layout that is in wide use.
FEW_BOARDS = {title: BOARDS[title] for title in ("A30", "A100-40", "H100-80")}
GPUS = 8
FULL = "all-1g"
MIXED = "all-balanced"

Row = dict[str, t.Any]


# --- inside the engine --------------------------------------------------------------------------------------------


def engine(folder: pathlib.Path) -> list[Row]:
    """A converged run: open NVML in a child, read eight GPUs, resolve, compare. NVML calls and milliseconds of one."""
    rounds = 20
    rows = []
    for title, board in BOARDS.items():
        host = Host(folder / board, f"{GPUS}x{board}")
        host.bring_to(label=FULL)
        node = host.simulator
        node.call(converged_run)
        node.reset_calls()
        node.call(converged_run)
        calls = node.calls()
        times = node.call(lambda: [timed(converged_run) for _round in range(rounds)])
        functions = collections.Counter(call.function for call in calls)
        rows.append(
            {
                "board": title,
                "devices": len(host.read().gpus[0].instances) * GPUS,
                "NVML calls": len(calls),
                "calls per GPU": round(len(calls) / GPUS, 1),
                "of which writes": sum(call.write for call in calls),
                "ms": round(statistics.median(times) * 1000, 2),
                "ms least": round(min(times) * 1000, 2),
                "functions": dict(functions.most_common()),
            }
        )
    return rows


def converged_run() -> None:
    """What mig_config does with the driver on a node that is as wanted, without Ansible."""
    node = reading.observe(OPENER)
    wanted = configs.resolve(node, label=FULL)
    answer = compare.verdict(node, wanted)
    if answer[0] != "match":
        raise RuntimeError(f"the node is not as wanted: {answer}")


# --- writes -------------------------------------------------------------------------------------------------------


def writes(folder: pathlib.Path) -> list[Row]:
    """Driver writes of a change, from the simulator's record, beside the fewest that any way could do with.

    The fewest: each instance that is not in both layouts, by profile, is created or destroyed once, with its compute
    instance. A layout may make that impossible (what could stay stands in the way), so a ratio over 1 is not a fault;
    that no better way exists is for the tests against the brute-force search to say. Beside it, what destroying and
    creating everything takes.
    """
    rows = []
    for title, board in BOARDS.items():
        host = Host(folder / board, f"{GPUS}x{board}")
        host.bring_to(label=FULL)
        was = FULL
        for label in (MIXED, FULL, "all-2g", MIXED):
            before = host.profiles()
            host.simulator.reset_calls()
            host.bring_to(label=label)
            done = len(host.simulator.writes(ok=True))
            after = host.profiles()
            # two writes each: the GI and the CI that fills it
            least = sum(2 * (((b - a) + (a - b)).total()) for b, a in zip(before, after, strict=True))
            anew = sum(2 * (b + a).total() for b, a in zip(before, after, strict=True))
            rows.append(
                {
                    "board": title,
                    "change": f"{was} to {label}",
                    "writes": done,
                    "fewest": least,
                    "ratio": round(done / least, 2) if least else 1.0,
                    "all anew": anew,
                }
            )
            was = label
    return rows


# --- planner ------------------------------------------------------------------------------------------------------


def planning() -> list[Row]:
    """Time to plan one GPU, on a seeded sample with busy sets, pure Python. The largest is the goal: below 20 ms.

    Processor time, and the slowest cases are taken again and their least counts: what else the machine did meanwhile is
    not the planner's.
    """
    number, slowest = 1000, 20
    rows = []
    for title, board in BOARDS.items():
        cases = [(case.gpu, case.wish) for case in oracle.CaseMaker(board, 20260101).cases(number)]
        times = sorted(((plan_seconds(gpu, wish), at) for at, (gpu, wish) in enumerate(cases)), reverse=True)
        again = [min(seconds, *(plan_seconds(*cases[at]) for _again in range(3))) for seconds, at in times[:slowest]]
        rows.append(
            {
                "board": title,
                "cases": number,
                "with busy instances": sum(is_busy(gpu) for gpu, _wish in cases),
                "ms median": round(statistics.median(seconds for seconds, _at in times) * 1000, 2),
                "ms largest": round(max(again) * 1000, 2),
                "goal ms": 20,
            }
        )
    return rows


def plan_seconds(gpu: Gpu, wish: GpuWish) -> float:
    wanted = Wanted("", "given", {gpu.index: wish})
    started = time.process_time()
    try:
        planner.plan_node(Node((gpu,)), wanted)
    except WishError:
        pass  # to find out that there is no way is planning too
    return time.process_time() - started


def is_busy(gpu: Gpu) -> bool:
    return any(compute.processes for instance in gpu.instances for compute in instance.compute)


# --- the module ---------------------------------------------------------------------------------------------------


def module(folder: pathlib.Path) -> list[Row]:
    """What an operator waits for on a converged host: mig_config beside ping, in turns, on the same host in one run."""
    rounds, warm_up = 25, 3
    board = BOARDS["A100-40"]
    host = Host(folder / "module", f"{GPUS}x{board}")
    host.bring_to(label=FULL)
    records = {"state_dir": str(host.state_dir)}
    tasks: list[dict[str, t.Any]] = [
        {"name": "Nothing but Ansible", "ansible.builtin.ping": None},
        {"name": "Nothing to do", "gpufleet.mig.mig_config": {"label": FULL, **records}},
        {"name": "Nothing but reading", "gpufleet.mig.mig_info": records},
    ]
    play = {"hosts": "localhost", "gather_facts": False, "tasks": tasks * (rounds + warm_up)}
    times, _sizes = run_play(host, folder, play)
    for action in times:
        times[action] = times[action][warm_up:]
    _times, sizes = run_play(host, folder, {**play, "tasks": tasks}, ANSIBLE_KEEP_REMOTE_FILES="1")
    ping = statistics.median(times["ansible.builtin.ping"])
    rows = []
    for action, seconds in times.items():
        name = action.rpartition(".")[2]
        rows.append(
            {
                "task": name,
                "times": len(seconds),
                "ms median": round(statistics.median(seconds) * 1000, 1),
                "ms least": round(min(seconds) * 1000, 1),
                "of ping": round(statistics.median(seconds) / ping, 2),
                "goal": 1.5 if name == "mig_config" else "",
                "payload bytes": sizes.get(name, 0),
            }
        )
    return rows


def run_play(
    host: Host, folder: pathlib.Path, play: Row, **environment: str
) -> tuple[dict[str, list[float]], dict[str, int]]:
    """Seconds of each task by action, and the size of the file that each module was sent as, where these are kept."""
    playbook, times, remote = folder / "bench.yml", folder / "times", folder / "remote"
    playbook.write_text(json.dumps([play]), encoding="utf-8")
    times.unlink(missing_ok=True)
    subprocess.run(
        [VENV / "bin" / "ansible-playbook", "-i", "localhost,", "-c", "local", playbook],
        check=True,
        stdout=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
        env=host.simulator.env(
            {
                **{name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")},
                "PATH": f"{VENV / 'bin'}:{os.environ.get('PATH', os.defpath)}",
                "ANSIBLE_CALLBACK_PLUGINS": str(ROOT / "tests" / "benchmark" / "callback"),
                "ANSIBLE_CALLBACKS_ENABLED": "task_times",
                "ANSIBLE_COLLECTIONS_PATH": str(VENV / "collections"),
                "ANSIBLE_HOME": str(folder / "ansible"),
                "ANSIBLE_PYTHON_INTERPRETER": str(VENV / "bin" / "python"),
                "ANSIBLE_REMOTE_TEMP": str(remote),
                "TASK_TIMES": str(times),
                **environment,
            }
        ),
    )
    seconds: dict[str, list[float]] = {}
    for line in times.read_text(encoding="utf-8").splitlines():
        action, took, changed = line.split()
        if changed != "False":
            raise RuntimeError(f"{action} changed something on a converged node")
        seconds.setdefault(action, []).append(float(took))
    sizes = {file.stem.partition("_")[2]: file.stat().st_size for file in remote.glob("*/AnsiballZ_*.py")}
    return seconds, sizes


# --- the simulator ------------------------------------------------------------------------------------------------


def simulator(folder: pathlib.Path) -> list[Row]:
    """What one reading call costs through nvidia-ml-py, in microseconds, with all MIG devices there."""
    host = Host(folder / "simulator", f"{GPUS}x{BOARDS['A100-40']}")
    host.bring_to(label=FULL)
    rows: list[Row] = host.simulator.call(reading_calls)
    return rows


def reading_calls() -> list[Row]:
    nvml = driver.load_binding()
    nvml.nvmlInit()
    gpu = nvml.nvmlDeviceGetHandleByIndex(0)
    questions: dict[str, t.Callable[[], t.Any]] = {
        "nvmlDeviceGetHandleByIndex": lambda: nvml.nvmlDeviceGetHandleByIndex(0),
        "nvmlDeviceGetMigMode": lambda: nvml.nvmlDeviceGetMigMode(gpu),
        "nvmlDeviceGetUUID": lambda: nvml.nvmlDeviceGetUUID(gpu),
        "nvmlDeviceGetGpuInstanceProfileInfo": lambda: nvml.nvmlDeviceGetGpuInstanceProfileInfo(gpu, 0),
        "nvmlDeviceGetMigDeviceHandleByIndex": lambda: nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 3),
    }
    rows = []
    for name, question in questions.items():
        times = [timed(question) for _round in range(2000)]
        rows.append(
            {
                "call": name,
                "us median": round(statistics.median(times) * 1e6, 1),
                "us least": round(min(times) * 1e6, 1),
            }
        )
    nvml.nvmlShutdown()
    return rows


# --- showing ------------------------------------------------------------------------------------------------------

Part = tuple[str, t.Callable[[pathlib.Path], list[Row]]]


def parts(all_boards: bool) -> dict[str, Part]:
    few, some = (every_board(), every_board()) if all_boards else (FEW_BOARDS, BOARDS)
    with_theirs = "with mig_config and with nvidia-mig-parted"
    return {
        "engine": (f"A converged run inside the engine, {GPUS} GPUs with {FULL}", engine),
        "writes": (f"Driver writes of a change, {GPUS} GPUs", writes),
        "planner": ("The planner, one GPU, without simulator", lambda _folder: planning()),
        "module": (f"Modules on a converged node of {GPUS} A100-40, in turns with ping", module),
        "simulator": ("A reading call of the simulator, from nvidia-ml-py", simulator),
        "reading": ("Reading in a child and without one, A100-40, in turns", footprint.reading_time),
        "footprint": (f"What a run of mig_config does to a host of {GPUS} A100-40", footprint.footprint),
        "transitions": (
            f"From each layout to each other, one GPU, {with_theirs}",
            functools.partial(versus.transitions, boards=few),
        ),
        "impossible": (
            f"A wish for more than a GPU can hold, {with_theirs}",
            functools.partial(versus.impossible, boards=some),
        ),
        "faults": (f"A change of two A100-40 that goes wrong, {with_theirs}", versus.faults),
    }


def every_board() -> dict[str, str]:
    """All boards that the simulator has figures of."""
    return {key: key for key, board in load_boards().items() if board.mig_capable and board.profiles}


def as_table(rows: list[Row]) -> str:
    columns = [name for name in rows[0] if not isinstance(rows[0][name], dict)]
    cells = [columns] + [[str(row[name]) for name in columns] for row in rows]
    widths = [max(len(line[at]) for line in cells) for at in range(len(columns))]
    return "\n".join(
        "  " + "  ".join(cell.ljust(width) if at == 0 else cell.rjust(width) for at, (cell, width) in enumerate(pairs))
        for pairs in ([*zip(line, widths, strict=True)] for line in cells)
    )


def versions() -> dict[str, str]:
    return {
        "ansible-core": importlib.metadata.version("ansible-core"),
        "nvidia-ml-py": importlib.metadata.version("nvidia-ml-py"),
        "nvidia-mig-parted": mig_parted.version(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="The numbers that this project watches.")
    parser.add_argument("--all-boards", action="store_true", help="transitions and impossible on every board")
    parser.add_argument("part", nargs="*", help=f"of {', '.join(parts(False))}; all of them if none is named")
    arguments = parser.parse_args()
    known = parts(arguments.all_boards)
    unknown = set(arguments.part) - set(known)
    if unknown:
        parser.error(f"there is no part {', '.join(sorted(unknown))}")
    report: dict[str, t.Any] = {
        "taken": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.machine()}, {os.cpu_count()} processors, Python {platform.python_version()}",
        "versions": versions(),
    }
    with tempfile.TemporaryDirectory(prefix="mig-bench-") as scratch:
        for part in arguments.part or known:
            title, measure = known[part]
            folder = pathlib.Path(scratch) / part
            folder.mkdir()
            started = time.monotonic()
            report[part] = measure(folder)
            print(f"{title} ({time.monotonic() - started:.0f} s)\n{as_table(report[part])}\n", flush=True)
    target = VENV / "bench.json"
    target.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(f"{report['machine']}; {', '.join(f'{name} {version}' for name, version in report['versions'].items())}")
    print(f"The same is in {target.relative_to(ROOT)}.")


if __name__ == "__main__":
    main()
