# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Runs the tests, two steps at a time, and says how many there were.

    run_tests.py                  all steps
    run_tests.py --fast           the fast ones
    run_tests.py unit lint ...    these (a name, or the beginning of one up to a dash: `sanity` is both)
    run_tests.py --write-counts   all steps, and remember how many tests each ran

A step is red when its command fails, when one of its tests was skipped, or when it ran fewer tests than
``tests/expected_counts.json`` says: a test that silently stops running is a failure. The log of each step is
``.venv/log/STEP.log``; the last line of the output is ``N passed, N failed``.

ansible-test wants a real folder ``ansible_collections/gpufleet/mig`` and keeps its own environments in it; so each of
its steps has a copy of the working tree (tracked and untracked files, not the ignored ones) below ``.venv/trees``.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import functools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import typing as t
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
BIN = VENV / "bin"
NEWEST = VENV / "newest" / "bin"
LOGS = VENV / "log"
COLLECTION = VENV / "collections" / "ansible_collections" / "gpufleet" / "mig"
SIMULATOR = ROOT / "tests" / "simulator"
EXPECTED = ROOT / "tests" / "expected_counts.json"

AT_A_TIME = 2
LINES_SHOWN_OF_A_FAILURE = 60


class Count(t.NamedTuple):
    """How many tests a step ran. ``skipped`` are named, since each has to be looked at."""

    passed: int
    failed: int = 0
    skipped: tuple[str, ...] = ()


class Result(t.NamedTuple):
    """How a step ended. ``complaints`` is empty when it is green."""

    step: Step
    seconds: float
    tests: Count
    complaints: tuple[str, ...]


class CannotRunError(Exception):
    """What a step needs is not on this machine. The step is red all the same: nothing was tested."""


class Command(t.NamedTuple):
    """What a step runs: in ``folder``, with ``path`` in front of PATH and ``environment`` on top of what is there."""

    words: t.Sequence[str | Path]
    folder: Path = ROOT
    path: tuple[Path, ...] = (BIN,)
    environment: dict[str, str] = {}


class Step(t.NamedTuple):
    """One row of the table.

    ``commands`` run one after the other when their turn comes, not before: some need a tree copied first.
    ``count_tests`` reads the number of tests from the log. ``seconds`` orders the steps, longest first. What uses the
    whole machine is ``alone`` and comes after all others. Tests that another step runs too are ``only_when_asked``.
    """

    name: str
    commands: t.Callable[[], list[Command]]
    count_tests: t.Callable[[str], Count]
    fast: bool = False
    seconds: float = 10
    alone: bool = False
    only_when_asked: bool = False


# --- running ----------------------------------------------------------------------------------------------------


def environment_of(command: Command) -> dict[str, str]:
    """The environment of a command: no settings of this machine's user or Ansible, and no folder of a shim manager."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("ANSIBLE_", "PYTEST_"))}
    rest = [
        folder for folder in variables.get("PATH", os.defpath).split(":") if not folder.rstrip("/").endswith("/shims")
    ]
    variables.update(
        PATH=":".join([*map(str, command.path), *rest]),
        HOME=str(home_of(BIN)),
        LC_ALL="C.UTF-8",
        PYTHONDONTWRITEBYTECODE="1",
        PY_COLORS="0",
        ANSIBLE_NOCOLOR="1",
        ANSIBLE_NOCOWS="1",
        ANSIBLE_HOME=str(VENV / "home" / "main" / ".ansible"),
        ANSIBLE_COLLECTIONS_PATH=str(VENV / "collections"),
    )
    variables.pop("FORCE_COLOR", None)
    variables.update(command.environment)
    return variables


def run_step(step: Step, expected: dict[str, int]) -> Result:
    """Runs the commands of one step into its log and judges it."""
    log = LOGS / f"{step.name}.log"
    started = time.monotonic()
    try:
        complaints = run_commands(step, log)
    except CannotRunError as error:
        log.write_text(f"{error}\n")
        return Result(step, 0.0, Count(0), (str(error),))
    try:
        count = step.count_tests(log.read_text(errors="replace"))
    except (OSError, ElementTree.ParseError) as error:
        count = Count(0)
        complaints.append(f"its tests cannot be counted: {error}")
    least = expected.get(step.name, 1)
    if count.passed + count.failed < least:
        complaints.append(f"ran {count.passed + count.failed} tests, {least} expected")
    if count.failed:
        complaints.append(f"{count.failed} failed")
    if count.skipped:
        complaints.append(f"{len(count.skipped)} skipped: {', '.join(count.skipped[:3])}")
    return Result(step, time.monotonic() - started, count, tuple(complaints))


def run_commands(step: Step, log: Path) -> list[str]:
    """Runs the commands of one step until one fails; what is wrong, if something is."""
    with open(log, "wb") as output:
        for command in step.commands():
            output.write(f"$ {shlex.join(map(str, command.words))}\n".encode())
            output.flush()
            code = subprocess.run(
                command.words,
                check=False,
                cwd=command.folder,
                env=environment_of(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            ).returncode
            if code:
                return [f"exit code {code} of {Path(command.words[0]).name}"]
    return []


# --- counting ---------------------------------------------------------------------------------------------------


def one(_log: str) -> Count:
    """A tool that has one verdict. Its exit code says which."""
    return Count(1)


def lines_that_match(pattern: str, skipped: str = r"(?!)") -> t.Callable[[str], Count]:
    """One test for each name that the pattern finds in the log; what ``skipped`` matches was left out."""

    def count(log: str) -> Count:
        return Count(
            passed=len(set(re.findall(pattern, log, re.MULTILINE))),
            skipped=tuple(re.findall(skipped, log, re.MULTILINE)),
        )

    return count


def junit(*patterns: str) -> t.Callable[[str], Count]:
    """The tests in the JUnit files that these patterns below the repository find."""

    def count(_log: str) -> Count:
        passed, failed, skipped = 0, 0, []
        files = [file for pattern in patterns for file in ROOT.glob(pattern)]
        if not files:
            raise OSError(f"no {patterns[0]}")
        for file in files:
            for case in ElementTree.parse(file).iter("testcase"):
                kinds = {child.tag for child in case}
                if kinds & {"failure", "error"}:
                    failed += 1
                elif "skipped" in kinds:
                    skipped.append(f"{case.get('classname')}.{case.get('name')}")
                else:
                    passed += 1
        return Count(passed, failed, tuple(skipped))

    return count


# --- trees ------------------------------------------------------------------------------------------------------


@functools.cache
def files_of_the_repository() -> tuple[str, ...]:
    """What a commit of the working tree would hold."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    ).stdout
    return tuple(name for name in listed.split("\0") if name and os.path.lexists(ROOT / name))


def tree(name: str) -> Path:
    """A copy of the repository at a path that ansible-test accepts; what an earlier run left in tests/output stays.

    Sanity does not see the simulator, a project of its own: rules for code of Ansible, down to the names of variables,
    are not made for it.
    """
    root = VENV / "trees" / name / "ansible_collections" / "gpufleet" / "mig"
    left_out = "tests/simulator/" if name.startswith("sanity") else "\0"
    wanted = {file for file in files_of_the_repository() if not file.startswith(left_out)}
    for folder, _folders, files in os.walk(root):
        relative = os.path.relpath(folder, root)
        if relative.startswith((".git", os.path.join("tests", "output"))):
            continue
        for file in files:
            if os.path.normpath(os.path.join(relative, file)) not in wanted:
                os.unlink(os.path.join(folder, file))
    for file in wanted:
        source, target = ROOT / file, root / file
        if not is_the_same(source, target):
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
    shutil.rmtree(root / "tests" / "output" / "junit", ignore_errors=True)
    if not (root / ".git").exists():
        # Otherwise ansible-test finds the repository around it, and that ignores everything below .venv.
        subprocess.run(["git", "init", "--quiet"], cwd=root, check=True)
    return root


def is_the_same(source: Path, target: Path) -> bool:
    if source.is_symlink() or target.is_symlink() or not target.exists():
        return False
    ours, theirs = source.stat(), target.stat()
    return (ours.st_mtime_ns, ours.st_size, ours.st_mode) == (theirs.st_mtime_ns, theirs.st_size, theirs.st_mode)


# --- the steps --------------------------------------------------------------------------------------------------


def python_tests(folder: str, *options: str) -> t.Callable[[], list[Command]]:
    """pytest on one folder, in this checkout; its JUnit file is named after the folder."""
    report = VENV / "log" / f"{folder.replace('/', '-')}.xml"

    def commands() -> list[Command]:
        report.unlink(missing_ok=True)
        words: list[str | Path] = [BIN / "python", "-m", "pytest", "-q", f"--junitxml={report}", *options, folder]
        return [Command(words, environment={"PYTHONPATH": str(VENV / "collections")})]

    return commands


def ansible_test(tree_name: str, environment: Path, *words: str, python: str = "") -> t.Callable[[], list[Command]]:
    """ansible-test in a tree of its own, which needs a certain Python perhaps. It sees only HOME and PATH."""

    def commands() -> list[Command]:
        if not (environment / "ansible-test").exists():
            raise OSError(
                "No Python 3.12 or newer was found that runs, so there is no newest ansible-core to test with."
            )
        if python and not (VENV / "pythons" / f"python{python}").exists():
            raise CannotRunError(
                f"No Python {python} was found that runs. The oldest that a node may have is tested with it."
            )
        return [
            Command(
                ["ansible-test", *words, "--color", "no"],
                folder=tree(tree_name),
                path=(environment, VENV / "pythons"),
                environment={"HOME": str(home_of(environment))},
            )
        ]

    return commands


def home_of(environment: Path) -> Path:
    """Where this environment's ansible-test keeps its caches: two of them in one place trip over each other."""
    return VENV / "home" / ("main" if environment == BIN else environment.parent.name)


def python_of(environment: Path) -> str:
    """Major and minor version of an environment's interpreter, as ansible-test wants it said."""
    config = (environment.parent / "pyvenv.cfg").read_text() if (environment.parent / "pyvenv.cfg").exists() else ""
    found = re.search(r"^version\S*\s*=\s*(\d+\.\d+)", config, re.MULTILINE)
    return found.group(1) if found else "3.12"


def lint_commands() -> list[Command]:
    return [Command(["ansible-lint", "--offline", "--nocolor"], folder=COLLECTION)]


def import_commands() -> list[Command]:
    """Builds the archive as a release would, and has Galaxy's own checks look at it."""
    scratch = VENV / "dist"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    importer = VENV / "importer" / "bin"
    settings = scratch / "galaxy-importer.cfg"
    settings.write_text("[galaxy-importer]\nCHECK_REQUIRED_TAGS = True\nANSIBLE_LOCAL_TMP = .venv/dist/tmp\n")
    version = re.search(r"^version: (\S+)$", (ROOT / "galaxy.yml").read_text(), re.MULTILINE)
    assert version, "galaxy.yml has a version"
    return [
        Command(["ansible-galaxy", "collection", "build", "--output-path", scratch, tree("build")]),
        Command(
            [importer / "python", "-m", "galaxy_importer.main", f"gpufleet-mig-{version.group(1)}.tar.gz"],
            folder=scratch,
            path=(importer,),
            environment={
                "GALAXY_IMPORTER_CONFIG": str(settings),
                "ANSIBLE_COLLECTIONS_PATH": "",
            },
        ),
    ]


def typing_commands() -> list[Command]:
    """Types of everything; through the collection's tree, except for the simulator, which is a project of its own."""
    tests = ("awx", "benchmark", "engine", "fleet", "kubernetes", "nodes", "torture", "unit")
    folders = [COLLECTION / name for name in ("plugins", *(f"tests/{name}" for name in tests), "tools")]
    folders.append(SIMULATOR / "nvmlsim")
    # What runs inside simulated nodes finds its own by name.
    inside = COLLECTION / "tests/nodes/machine/files/usr/lib/sim"
    search_path = f"{VENV / 'collections'}:{SIMULATOR}:{inside}"
    return [Command([BIN / "mypy", *folders], environment={"MYPYPATH": search_path})]


# A sanity test counts once, however many Pythons it ran on; one for which a program is missing was skipped.
SANITY = lines_that_match(
    r"^Running sanity test \"([^\"]+)\"", skipped=r"^WARNING: (?:Required program .*|Skipping (?!.*Python).*)$"
)


def assertions(log: str) -> Count:
    """The assertions of the integration targets that held. A target that made none has not tested anything."""
    targets = re.split(r"^Running (\S+) integration test role$", log, flags=re.MULTILINE)[1:]
    made = {
        name: len(re.findall(r"All assertions passed", text))
        for name, text in zip(targets[::2], targets[1::2], strict=True)
    }
    idle = tuple(f"{name} (made no assertion)" for name, number in made.items() if number == 0)
    left_out = tuple(re.findall(r"^WARNING: Excluding.*$", log, re.MULTILINE))
    return Count(passed=sum(made.values()), skipped=idle + left_out)


# What these do with a node is the same whoever calls them: one ansible-core is enough. Those of roles have both.
MODULES_ON_A_NODE = (
    "gpu_reset",
    "mig_config_clients",
    "mig_config_failures",
    "mig_config_interrupted",
    "mig_config_layout",
    "mig_config_reboot",
)


def steps() -> list[Step]:
    newest = python_of(NEWEST)
    integration = ("integration", "--local", "--continue-on-error")
    excluded = [word for name in MODULES_ON_A_NODE for word in ("--exclude", name)]
    sanity = ("sanity", "--local", "--allow-disabled", "--skip-test", "pslint")
    return [
        Step(
            "format",
            lambda: [
                Command([BIN / "ruff", "check", "."]),
                Command([BIN / "ruff", "format", "--check", "."]),
            ],
            one,
            fast=True,
            seconds=1,
        ),
        Step("types", typing_commands, one, fast=True, seconds=15),
        Step("yaml", lambda: [Command([BIN / "yamllint", "--strict", "."])], one, fast=True, seconds=2),
        Step("headers", lambda: [Command([BIN / "python", "tools/check_headers.py"])], one, fast=True, seconds=1),
        Step(
            "quick-unit",
            python_tests("tests/unit", "-m", "not slow", "-n", "2"),
            junit(".venv/log/tests-unit.xml"),
            fast=True,
            only_when_asked=True,
        ),
        Step(
            "unit",
            python_tests("tests/unit"),
            junit(".venv/log/tests-unit.xml"),
            seconds=60,
            only_when_asked=True,
        ),
        Step("simulator", python_tests("tests/simulator"), junit(".venv/log/tests-simulator.xml"), seconds=60),
        Step("engine", python_tests("tests/engine"), junit(".venv/log/tests-engine.xml"), seconds=60),
        Step("torture", python_tests("tests/torture"), junit(".venv/log/tests-torture.xml"), seconds=150),
        Step(
            "nodes",
            python_tests("tests/nodes", "-n", "2"),
            junit(".venv/log/tests-nodes.xml"),
            seconds=600,
            alone=True,
        ),
        Step("fleet", python_tests("tests/fleet", "-n", "2"), junit(".venv/log/tests-fleet.xml"), seconds=240),
        Step("demo", python_tests("tests/demo"), junit(".venv/log/tests-demo.xml"), seconds=180),
        Step(
            "kubernetes",
            python_tests("tests/kubernetes", "-n", "2"),
            junit(".venv/log/tests-kubernetes.xml"),
            seconds=300,
        ),
        Step("awx", python_tests("tests/awx"), junit(".venv/log/tests-awx.xml"), seconds=200),
        Step(
            "integration-2.19",
            ansible_test("integration-2.19", BIN, *integration, *excluded),
            assertions,
            seconds=900,
        ),
        Step(
            "integration-newest",
            ansible_test("integration-newest", NEWEST, *integration),
            assertions,
            seconds=1100,
        ),
        Step("sanity-2.19", ansible_test("sanity-2.19", BIN, *sanity), SANITY, seconds=100),
        Step("sanity-newest", ansible_test("sanity-newest", NEWEST, *sanity), SANITY, seconds=100),
        Step(
            "units-2.19",
            ansible_test("units-2.19", BIN, "units", "--local", "--python", python_of(BIN)),
            junit(".venv/trees/units-2.19/**/tests/output/junit/*.xml"),
            seconds=90,
        ),
        Step(
            "units-newest",
            ansible_test("units-newest", NEWEST, "units", "--local", "--python", newest),
            junit(".venv/trees/units-newest/**/tests/output/junit/*.xml"),
            seconds=90,
        ),
        Step(
            "units-python3.9",
            ansible_test("units-python3.9", BIN, "units", "--venv", "--python", "3.9", python="3.9"),
            junit(".venv/trees/units-python3.9/**/tests/output/junit/*.xml"),
            seconds=90,
        ),
        Step("lint", lint_commands, one, seconds=15),
        Step(
            "docs",
            lambda: [
                Command(
                    [
                        *("antsibull-docs", "lint-collection-docs", "--plugin-docs"),
                        *("--validate-collection-refs", "self", "--disallow-unknown-collection-refs", "."),
                    ],
                    folder=COLLECTION,
                )
            ],
            one,
            seconds=5,
        ),
        Step("changelog", lambda: [Command(["antsibull-changelog", "lint"], folder=COLLECTION)], one, seconds=2),
        Step("galaxy", import_commands, one, seconds=30),
    ]


def chosen(options: argparse.Namespace) -> list[Step]:
    """The steps that the command line asks for, longest first."""
    everything = steps()
    if options.fast:
        picked = [step for step in everything if step.fast]
    elif options.steps:
        names = {step.name for step in everything} | {step.name.split("-")[0] for step in everything}
        unknown = [name for name in options.steps if name not in names]
        if unknown:
            sys.exit(f"There is no step {unknown[0]}. There are: {', '.join(step.name for step in everything)}.")
        picked = [step for step in everything if step.name in options.steps or step.name.split("-")[0] in options.steps]
    else:
        picked = [step for step in everything if not step.only_when_asked and not is_left_out(step)]
    return sorted(picked, key=lambda step: -step.seconds)


def is_left_out(step: Step) -> bool:
    """Whether a step cannot run on this machine and need not: what boots nodes needs root, but CI must have it."""
    if step.name != "nodes" or os.environ.get("NODES_REQUIRED"):
        return False
    asked = subprocess.run(
        [BIN / "python", "-m", "tests.nodes", "why-not"], check=False, cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    if asked.returncode:
        print(f"left out: nodes, since {asked.stdout.strip()}", flush=True)
    return asked.returncode != 0


# --- the table --------------------------------------------------------------------------------------------------


def table(results: list[Result], total_seconds: float) -> str:
    """A row per step, and the sums."""
    width = max(len(result.step.name) for result in results)
    rows = [f"{'step':{width}}  result  seconds  tests"]
    for result in results:
        verdict = "RED" if result.complaints else "ok"
        why = "  " + "; ".join(result.complaints) if result.complaints else ""
        ran = result.tests.passed + result.tests.failed
        rows.append(f"{result.step.name:{width}}  {verdict:6}  {result.seconds:7.1f}  {ran:5}{why}")
    rows.append(f"{'together':{width}}          {total_seconds:7.1f}")
    return "\n".join(rows)


def tail_of(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    shown = lines[-LINES_SHOWN_OF_A_FAILURE:]
    return "\n".join(f"    {line}" for line in shown)


def totals(results: list[Result]) -> tuple[int, int]:
    """Passed and failed tests; a step that is red without a failed test counts as one failure."""
    passed = sum(result.tests.passed for result in results if not result.complaints or result.tests.failed)
    failed = sum(max(result.tests.failed, 1) for result in results if result.complaints)
    return passed, failed


def write_counts(results: list[Result], expected: dict[str, int]) -> None:
    counts = {result.step.name: result.tests.passed for result in results if not result.complaints}
    EXPECTED.write_text(json.dumps(dict(sorted({**expected, **counts}.items())), indent=2) + "\n")
    print(f"wrote {EXPECTED.relative_to(ROOT)}")


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs the tests, two steps at a time.")
    parser.add_argument("--fast", action="store_true", help="only what takes seconds")
    parser.add_argument("--write-counts", action="store_true", help="remember how many tests each step ran")
    parser.add_argument("steps", nargs="*", metavar="STEP")
    options = parser.parse_args()

    LOGS.mkdir(parents=True, exist_ok=True)
    home_of(BIN).mkdir(parents=True, exist_ok=True)
    expected: dict[str, int] = json.loads(EXPECTED.read_text()) if EXPECTED.exists() else {}
    required = {} if options.write_counts else expected
    started = time.monotonic()
    results: list[Result] = []
    picked = chosen(options)
    for at_a_time, group in ((AT_A_TIME, [s for s in picked if not s.alone]), (1, [s for s in picked if s.alone])):
        with concurrent.futures.ThreadPoolExecutor(at_a_time) as pool:
            running = [pool.submit(run_step, step, required) for step in group]
            for future in concurrent.futures.as_completed(running):
                result = future.result()
                results.append(result)
                verdict = "RED" if result.complaints else "ok "
                print(f"{verdict} {result.step.name} ({result.seconds:.0f} s)", flush=True)

    for result in results:
        if result.complaints:
            log = LOGS / f"{result.step.name}.log"
            print(f"\n--- {result.step.name}: {'; '.join(result.complaints)} ({log.relative_to(ROOT)})\n{tail_of(log)}")
    if options.write_counts:
        write_counts(results, expected)
    order = [step.name for step in steps()]
    results.sort(key=lambda result: order.index(result.step.name))
    print(f"\n{table(results, time.monotonic() - started)}\n")
    passed, failed = totals(results)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
