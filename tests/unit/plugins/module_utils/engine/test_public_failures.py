# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What operators met with other tools, or with real hardware, as far as no driver is needed to see what happens here.

Each test is named after what is right; its comment says what went wrong elsewhere. The others are on simulated nodes,
in tests/engine/test_public_failures.py.
"""

from __future__ import annotations

import ast
import pathlib
import re

import pytest

from ansible_collections.gpufleet.mig.plugins.module_utils.engine import (
    clients,
    configs,
    foresight,
    layouts,
    planner,
    report,
    state,
)
from ansible_collections.gpufleet.mig.plugins.module_utils.engine.model import Job, Node, Orders
from ansible_collections.gpufleet.mig.tests.unit.plugins.module_utils.engine import boards

ROOT = pathlib.Path(__file__).parents[5]
A100 = "a100-sxm4-40gb"
NOBODY = clients.NoManager()


# --- nothing but NVML -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("forbidden", ["resource0", "/dev/mem", "mmap", "pci.ids"])
def test_gpus_are_read_and_changed_through_nvml_only(forbidden: str) -> None:
    """Kernel lockdown and some kernels forbid the memory of a board to be mapped, and a stale list of PCI names made
    a warning for each GPU that operators took for a failure."""
    plugins = pathlib.Path(configs.__file__).parents[2]
    files = sorted(plugins.rglob("*.py"))
    assert len(files) > 20
    assert [file.name for file in files if forbidden in file.read_text(encoding="utf-8")] == []


# --- names and room -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("board", "label", "memory"),
    [
        ("h100-nvl-94gb", "4x1g.24gb", 94),
        ("h200-sxm-141gb", "2x3g.71gb", 141),
        ("gh200-144gb", "4x1g.36gb", 143),
        ("gh200-144gb", "2x3g.72gb", 143),
        ("gb200-186gb", "4x1g.47gb", 185),
        ("pg506-232-96gb", "4x1g.24gb", 95),
        ("rtx-pro-6000-server", "4x1g.24gb", 95),
    ],
)
def test_room_is_a_matter_of_places_and_not_of_the_gigabytes_in_names(board: str, label: str, memory: int) -> None:
    """The names of a legal layout can add up to more than the board has; a tool that adds them up refuses it."""
    gpu = boards.gpu(board)
    wish = configs.resolve(boards.node(gpu), label=label).wishes[0]
    said = sum(instance.profile.gb for instance in wish.instances)

    assert said > memory >= (gpu.memory_mib or 0) // 1024
    assert planner.plan_gpu(gpu, wish).after


@pytest.mark.parametrize(
    ("board", "smallest", "largest"),
    [
        ("h100-nvl-94gb", "1g.12gb", "7g.94gb"),
        ("h100-sxm5-96gb", "1g.12gb", "7g.96gb"),
        ("h200-sxm-141gb", "1g.18gb", "7g.141gb"),
        ("gh200-144gb", "1g.18gb", "7g.144gb"),
        ("b200-180gb", "1g.23gb", "7g.180gb"),
    ],
)
def test_boards_of_unusual_memory_are_partitioned_by_slices_without_anybody_knowing_their_names(
    board: str, smallest: str, largest: str
) -> None:
    """Tables shipped 1g.11gb for boards that have 1g.12gb, and needed a correction for each new amount of memory."""
    node = boards.dgx(board, 1)
    for label, name, count in (("all-1g", smallest, 7), ("all-7g", largest, 1)):
        wish = configs.resolve(node, label=label).wishes[0]
        assert [instance.profile.name for instance in wish.instances] == [name] * count


# --- which GPU ------------------------------------------------------------------------------------------------------


def interrupted(before: Node, label: str) -> state.Journal:
    """The record of a change of a whole node, none of which was made."""
    plan = planner.plan_node(before, configs.resolve(before, label=label))
    planned = [before.gpus[each.gpu]._replace(instances=each.after) for each in plan.gpus]
    return state.Journal(
        txid="20260131T235959Z-0a1b2c3d",
        boot_id=state.boot_id(),
        started="2026-01-31T23:59:59+00:00",
        who="alice",
        what=f"mig_config label {label}",
        label=label,
        before=tuple(map(layouts.dump, before.gpus)),
        target=tuple(map(layouts.dump, planned)),
        steps=plan.steps,
        gpus=tuple(range(len(before.gpus))),
    )


def without_the_first(node: Node) -> Node:
    """A GPU is gone, and all others have another index."""
    return Node(tuple(gpu._replace(index=index) for index, gpu in enumerate(node.gpus[1:])))


@pytest.mark.parametrize("recover", ["forward", "back"])
def test_an_interrupted_change_is_about_boards_and_not_about_indices(tmp_path: pathlib.Path, recover: str) -> None:
    """An index that was looked up once and kept means another GPU after one was added, removed or lost."""
    pairs = [[("3g.20gb", 0), ("3g.20gb", 4)], [("4g.20gb", 0)], [("2g.10gb", 2)]]
    before = boards.node(*(boards.gpu(A100, index, instances=pair) for index, pair in enumerate(pairs)))
    unfinished = interrupted(before, "all-1g.5gb")
    now = without_the_first(before)
    job = Job(None, Orders(recover=recover))
    places = state.places(str(tmp_path / "state"))
    state.write_journal(places, unfinished)
    foreseen = foresight.foresee(places, now, job, NOBODY)

    assert [gpu.uuid for gpu in foreseen.origin.gpus] == [gpu.uuid for gpu in before.gpus[1:]]
    assert [layouts.dump(gpu)["instances"] for gpu in foreseen.origin.gpus] == [
        dump["instances"] for dump in unfinished.before[1:]
    ]
    assert {step.gpu for step in foreseen.earlier} == {0, 1}
    (lost,) = foresight.lost_gpus(now, unfinished)
    assert f"GPU 0 ({before.gpus[0].pci_bus_id}, {before.gpus[0].uuid}) is not in this node any more" in lost
    if recover == "forward":
        assert foreseen.plan is not None
        assert {each.gpu: len(each.after) for each in foreseen.plan.gpus} == {0: 7, 1: 7}


def test_gpus_that_a_wish_leaves_out_are_counted_and_shown_and_not_touched() -> None:
    """Those that were in MIG mode from earlier were taken for enabled by default, since nobody said otherwise."""
    node = boards.node(*(boards.gpu(A100, index, instances=[("7g.40gb", 0)]) for index in range(4)))
    wish = [{"devices": [2, 3], "mig-enabled": True, "mig-devices": {"1g.5gb": 7}}]
    wanted = configs.resolve(node, config=wish)
    plan = planner.plan_node(node, wanted)

    assert (list(wanted.wishes), wanted.unlisted) == ([2, 3], (0, 1))
    assert {step.gpu for step in plan.steps} == {2, 3}
    shown = report.diff_text(node, plan)
    was, now = shown["before"].splitlines(), shown["after"].splitlines()
    assert (len(now), was[:2]) == (4, now[:2])


def test_a_gpu_without_mig_beside_others_is_skipped_by_all_and_said() -> None:
    """On a workstation with a GPU for the display, tools either failed on it or let it hide what was wrong."""
    node = boards.node(boards.gpu(A100, instances=[("3g.20gb", 0)]), boards.gpu("tesla-t4"), boards.gpu("l40s"))
    wanted = configs.resolve(node, label="all-7g.40gb")

    assert (list(wanted.wishes), wanted.skipped, wanted.unlisted) == ([0], (1, 2), ())
    assert {step.gpu for step in planner.plan_node(node, wanted).steps} == {0}


# --- what operators are told ----------------------------------------------------------------------------------------


def test_the_page_about_failures_quotes_messages_that_there_are() -> None:
    """A message that is looked up has to be found: in italics there, with an ellipsis for what differs."""
    module_utils = pathlib.Path(configs.__file__).parents[1]
    page = ROOT / "docs" / "failure-modes.md"
    quoted = re.findall(r"(?<![*\w])\*([^*\n]+)\*(?![*\w])", page.read_text(encoding="utf-8"))
    said = {
        node.value
        for file in module_utils.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    parts = {part.strip(" ().:;,'") for message in quoted for part in message.split("…")}
    assert len(quoted) > 40
    assert [part for part in sorted(parts) if not any(part in text for text in said)] == []


def test_every_case_of_the_page_about_cases_names_tests_that_there_are() -> None:
    """A test that is renamed or goes has to be missed where it was promised."""
    page = (ROOT / "docs" / "failure-cases.md").read_text(encoding="utf-8")
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if re.match(r"\| B\d", line)]
    numbers = [row[0] for row in rows]
    assert len(numbers) == len(set(numbers)) == 82
    for number, _case, _here, tests in rows:
        promised = re.findall(r"`([^`]+)`", tests)
        assert [each for each in promised if not is_a_test(each)] == [], number
        assert promised or re.match(r"\*\*not covered\*\*: .", tests), number


def is_a_test(reference: str) -> bool:
    """Whether there is such a function in a file of tests, such a scenario, or such a target."""
    path, _colons, function = reference.partition("::")
    if not function:
        return any((ROOT / path / file).is_file() for file in ("molecule.yml", "tasks/main.yml"))
    if not (ROOT / path).is_file():
        return False
    code = ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8")))
    return function in {node.name for node in code if isinstance(node, ast.FunctionDef)}
