# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Runs random cases until one shows that a layout can be lost.

    torture.py --seed S --count N [--jobs 2] [--seconds T]    so many cases, or as many as fit into the time
    torture.py --seed S --case K                              one of them, told run by run
    torture.py --replay FILE                                  a case from a file, as a violation prints it
    torture.py --shrink --seed S --case K                     the smallest case that still shows what this one shows

Exit status: 0 no violation, and everything that is to happen happened often enough; 1 otherwise. docs/torture.md tells
what a case is.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import contextlib
import copy
import json
import multiprocessing
import os
import pathlib
import sys
import tempfile
import time
import traceback
import typing as t

ROOT = pathlib.Path(__file__).resolve().parents[2]
for place in (ROOT / "tests" / "simulator", ROOT / ".venv" / "collections"):
    if str(place) not in sys.path:
        sys.path.insert(0, str(place))

from ansible_collections.gpufleet.mig.tests.torture import cases, stage  # noqa: E402
from ansible_collections.gpufleet.mig.tests.torture.judge import Verdict, judge  # noqa: E402

Case = cases.Case

# A campaign in which these happen less often, of a thousand cases, has not tested what it is for.
LEAST_OUTCOMES = {
    "changed": 300,
    "converged": 300,
    "refused": 80,
    "rolled back": 150,
    "not restored": 15,
    "killed": 60,
    "healed forward": 20,
    "healed back": 15,
    "pending": 10,
}
LEAST_FIRED = {
    "error": 90,
    "errors from": 8,
    "lost": 10,
    "hang": 15,
    "kill": 120,
    "full": 8,
    "term": 10,
    "foreign": 10,
    "rival": 15,
    "arrive": 4,
}


class Played(t.NamedTuple):
    """What became of a case: the outcome of each run, what fired, and the violations with the run they are of."""

    number: int
    topic: str
    outcomes: tuple[str, ...]
    fired: tuple[str, ...]
    violations: tuple[tuple[str, str], ...]


def play(case: Case) -> Played:
    """Play a case and judge it. A defect of the campaign itself counts as a violation too."""
    try:
        with tempfile.TemporaryDirectory(prefix="case-", dir=scratch()) as folder:
            records = stage.play(case, pathlib.Path(folder))
        verdicts = judge(case, records)
    except Exception:
        return Played(case["number"], case["topic"], (), (), (("", f"the campaign failed: {traceback.format_exc()}"),))
    fired = [each["what"] for record in records for each in fired_in(record)]
    violations = [
        (record["title"], sentence) for record, verdict in zip(records, verdicts) for sentence in verdict.violations
    ]
    outcomes = tuple(verdict.outcome for verdict in verdicts)
    return Played(case["number"], case["topic"], outcomes, tuple(fired), tuple(violations))


def fired_in(record: dict[str, t.Any]) -> list[dict[str, t.Any]]:
    from ansible_collections.gpufleet.mig.tests.torture.judge import fault_seen

    fired = [record["disturb"][index] for index in record["fired"]]
    fired += [each for each in record["disturb"] if fault_seen(each, record)]
    return fired + [each for each in record["disturb"] if each["what"] == "rival" and each["start"] == "together"]


def scratch() -> pathlib.Path:
    """Where nodes lie; in memory if that is possible, since fsync is what a disk is slow at."""
    memory = pathlib.Path("/dev/shm")
    return memory if os.access(memory, os.W_OK) else pathlib.Path(tempfile.gettempdir())


def play_number(seed: str, number: int) -> Played:
    return play(cases.generate(seed, number))


# --- many cases ----------------------------------------------------------------------------------------------------


class Tally:
    """Counts what happened."""

    def __init__(self) -> None:
        self.cases: collections.Counter[str] = collections.Counter()
        self.outcomes: collections.Counter[str] = collections.Counter()
        self.fired: collections.Counter[str] = collections.Counter()
        self.bad: list[Played] = []

    def add(self, played: Played) -> None:
        self.cases[played.topic] += 1
        self.outcomes.update(set(played.outcomes))
        self.fired.update(set(played.fired))
        if played.violations:
            self.bad.append(played)

    @property
    def total(self) -> int:
        return sum(self.cases.values())

    def too_rare(self) -> list[str]:
        """What happened too seldom for the campaign to count, in words. Small campaigns are given some slack."""
        rare = []
        for wanted, seen in ((LEAST_OUTCOMES, self.outcomes), (LEAST_FIRED, self.fired)):
            for what, least in wanted.items():
                needed = int(least * self.total / 1000 * (0.6 if self.total < 1000 else 0.8))
                if seen[what] < needed:
                    rare.append(f"{what}: in {seen[what]} cases, at least {needed} needed")
        return rare

    def table(self) -> str:
        rows = [f"{'cases by topic':26}{self.total:7}"]
        rows += [f"  {topic:24}{number:7}" for topic, number in sorted(self.cases.items())]
        rows.append("cases in which it came to")
        rows += [f"  {outcome:24}{number:7}" for outcome, number in sorted(self.outcomes.items())]
        rows.append("cases in which went wrong")
        rows += [f"  {what:24}{number:7}" for what, number in sorted(self.fired.items())]
        return "\n".join(rows)


def campaign(
    seed: str,
    count: int,
    jobs: int = 2,
    seconds: float = 0,
    tell: t.Callable[[Played, Tally], None] = lambda *_played: None,
) -> Tally:
    """Play cases 0 to ``count``, or until the time is over."""
    tally = Tally()
    play_all(seed, range(count), tally, jobs, seconds, tell)
    return tally


def play_all(
    seed: str,
    numbers: t.Iterable[int],
    tally: Tally,
    jobs: int = 2,
    seconds: float = 0,
    tell: t.Callable[[Played, Tally], None] = lambda *_played: None,
) -> Tally:
    """Play these cases, several at a time, and count them in ``tally``; returns a tally of these alone."""
    mine = Tally()
    stop_at = time.monotonic() + seconds if seconds else None
    context = multiprocessing.get_context("fork")
    with concurrent.futures.ProcessPoolExecutor(jobs, context, initializer=stage.become_a_stage) as pool:
        waiting = iter(numbers)
        running: set[concurrent.futures.Future[Played]] = set()
        while True:
            while len(running) < 2 * jobs and not (stop_at and time.monotonic() > stop_at):
                number = next(waiting, None)
                if number is None:
                    break
                running.add(pool.submit(play_number, seed, number))
            if not running:
                return mine
            done, running = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)
            for future in done:
                played = future.result()
                for each in (mine, tally):
                    each.add(played)
                tell(played, tally)


def in_words(seed: str, played: Played) -> str:
    lines = [
        f"VIOLATION in case {played.number} of seed {seed} ({played.topic}); its runs: {', '.join(played.outcomes)}"
    ]
    lines += [f"  in run {title!r}: {sentence}" for title, sentence in played.violations]
    lines.append(f"  again: python tests/torture/torture.py --seed {seed} --case {played.number}")
    return "\n".join(lines)


# --- one case ------------------------------------------------------------------------------------------------------


def told(case: Case) -> bool:
    """Play one case and tell what happened; whether it had no violation."""
    stage.become_a_stage()
    print(json.dumps(case))
    with tempfile.TemporaryDirectory(prefix="case-", dir=scratch()) as folder:
        records = stage.play(case, pathlib.Path(folder))
    verdicts = judge(case, records)
    for record, verdict in zip(records, verdicts):
        print(run_in_words(record, verdict))
    return not any(verdict.violations for verdict in verdicts)


def run_in_words(record: dict[str, t.Any], verdict: Verdict) -> str:
    """A run for whoever looks for the cause of a violation."""
    lines = [f"--- {record['title']}: {verdict.outcome} in {record['seconds']:.2f} s, ended {record['ended']}"]
    lines.append(f"    orders {record['orders']}, goes wrong: {fired_in(record)} of {record['disturb']}")
    if record["wish"]:
        lines.append(f"    wish {json.dumps(record['wish']['ask'])}")
    for when in ("before", "after"):
        for index, gpu in enumerate(record[when]):
            lines.append(f"    {when:7} GPU {index} {gpu['modes']} {gpu['layout']} {gpu['holders'] or ''}")
    for call in record["calls"]:
        if call["write"]:
            place = " ".join(f"{key}={call[key]}" for key in ("gpu", "gi", "ci") if call[key] is not None)
            lines.append(f"      {call['pid']} {call['function']} {place} {call['detail']}: {call['code']}")
    lines.append(f"    units {record['units_before']} -> {record['units']} {[e[1:] for e in record['units_log']]}")
    lines.append(f"    files {sorted(record['files'])}; then: {record['then']}; others: {record['changed_by_others']}")
    lines.append(f"    result {json.dumps(record['result'])}")
    if record["rival"]:
        lines.append(f"    rival {json.dumps(record['rival'])}")
    lines += [f"    VIOLATION {sentence}" for sentence in verdict.violations]
    return "\n".join(lines)


def shrunk(case: Case) -> Case:
    """A smaller case with a violation of the same kind."""
    kind = kinds(play(case))
    if not kind:
        return case
    shrinking = True
    while shrinking:
        shrinking = False
        for smaller in smaller_cases(case):
            with contextlib.suppress(Exception):
                if kinds(play(smaller)) & kind:
                    case, shrinking = smaller, True
                    break
    return case


def kinds(played: Played) -> set[str]:
    """Violations without their figures."""
    return {
        sentence.partition(":")[0].translate(str.maketrans("", "", "0123456789"))[:40]
        for _title, sentence in played.violations
    }


def smaller_cases(case: Case) -> t.Iterator[Case]:
    """Everything that can be left out of a case, one thing at a time."""
    for key in ("units", "holders", "promises"):
        yield from without_each(case, (key,))
    if len(case["runs"]) > 1:
        yield from without_each(case, ("runs",))
    for run in range(len(case["runs"])):
        for part in ("disturb", "then"):
            yield from without_each(case, ("runs", run, part))
    if case["assume"]:
        yield {**case, "assume": {}}
    for index, run in enumerate(case["runs"]):
        wish = run["wish"]
        if wish and wish["form"] in ("config", "layout") and len(wish["expected"]) > 1:
            for gpu in list(wish["expected"]):
                smaller = copy.deepcopy(case)
                leave_out(smaller["runs"][index]["wish"], gpu)
                yield smaller
    used = {each["gpu"] for key in ("holders", "promises") for each in case[key]}
    for gpu in range(len(case["starts"])):
        if gpu not in used:
            yield from without_each(case, ("starts", gpu, "layout"))


def without_each(case: Case, path: tuple[t.Any, ...]) -> t.Iterator[Case]:
    """The case without one entry of the list at this path, for each entry."""

    def at(some: t.Any) -> list[t.Any]:
        for step in path:
            some = some[step]
        return t.cast("list[t.Any]", some)

    for index in range(len(at(case))):
        smaller = copy.deepcopy(case)
        at(smaller).pop(index)
        yield smaller


def leave_out(wish: dict[str, t.Any], gpu: str) -> None:
    """A wish that does not speak of one GPU."""
    wish["expected"].pop(gpu)
    ask = wish["ask"]
    if "layout" in ask:
        ask["layout"].remove(int(gpu))
        ask["gpus"].remove(int(gpu))
        return
    for entries in [ask["config"]] if "config" in ask else list(ask["configs"]["mig-configs"].values()):
        entries[:] = [entry for entry in entries if entry["devices"] != [int(gpu)]]


# --- the command line ----------------------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(description="Random changes of simulated nodes, with everything going wrong.")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=max(2, os.cpu_count() or 2))
    parser.add_argument("--seconds", type=float, default=0, help="begin no case after so many seconds")
    parser.add_argument("--case", type=int, help="only this one, told run by run")
    parser.add_argument("--replay", type=pathlib.Path, help="a case as JSON")
    parser.add_argument("--shrink", action="store_true", help="make the case as small as possible first")
    options = parser.parse_args()

    if options.case is not None or options.replay:
        case = json.loads(options.replay.read_text()) if options.replay else cases.generate(options.seed, options.case)
        if options.shrink:
            stage.become_a_stage()
            case = shrunk(case)
        return 0 if told(case) else 1

    started = time.monotonic()

    def passed() -> float:
        return time.monotonic() - started

    def tell(played: Played, tally: Tally) -> None:
        if played.violations:
            print(in_words(options.seed, played), flush=True)
        if tally.total % 500 == 0:
            print(
                f"{tally.total} cases, {len(tally.bad)} with violations, {time.monotonic() - started:.0f} s", flush=True
            )

    tally = campaign(options.seed, options.count, options.jobs, options.seconds, tell)
    print(tally.table())
    rare = tally.too_rare()
    for sentence in rare:
        print(f"TOO RARE: {sentence}")
    print(f"seed {options.seed}: {tally.total} cases, {len(tally.bad)} with violations, {passed():.0f} s")
    return 1 if tally.bad or rare else 0


if __name__ == "__main__":
    sys.exit(main())
