# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The product's own table speaks only where a driver does not, and then says what the driver would."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.mig.plugins.module_utils.engine import catalog, configs, layouts, profiles
from ansible_collections.gpufleet.mig.plugins.module_utils.engine.model import Gpu, Profile, WishError
from ansible_collections.gpufleet.mig.tests.unit.plugins.module_utils.engine import boards

A100 = "a100-sxm4-40gb"


def silent(board: str, **fields: t.Any) -> Gpu:
    """A GPU whose driver lists no profiles, since MIG is off."""
    return boards.gpu(board, mode=False)._replace(profiles=None, **fields)


def what_counts(offered: t.Iterable[Profile]) -> list[tuple[t.Any, ...]]:
    """All that a plan depends on, and the names that it shows."""
    return sorted(
        (each.enum, each.id, each.name, each.slices, each.gb, each.attributes, each.engines, each.placements)
        for each in offered
    )


@pytest.mark.parametrize(
    "board",
    [
        key
        for key in boards.keys(mig=True)
        if boards.gpu(key).architecture in ("ampere", "hopper") and "h200" not in key
    ],
)
def test_the_boards_that_old_drivers_know_are_in_the_table(board: str) -> None:
    found = catalog.profiles_of(silent(board))
    assert found is not None
    assert what_counts(found) == what_counts(boards.profiles(board))
    # Of two profiles of as many slices, a bare 1g is the one with less memory.
    assert (
        profiles.find(profiles.parse("1g"), found).name
        == profiles.find(profiles.parse("1g"), boards.profiles(board)).name
    )


@pytest.mark.parametrize("memory_mib", [40960, 40536, 40537])
def test_a_driver_that_counts_the_memory_a_little_differently_has_the_same_names(memory_mib: int) -> None:
    found = catalog.profiles_of(silent(A100, memory_mib=memory_mib))
    assert what_counts(found or ()) == what_counts(boards.profiles(A100))


@pytest.mark.parametrize("board", [A100, "a30-24gb", "b200-180gb", "tesla-t4"])
def test_what_the_driver_says_goes_before_the_table(board: str) -> None:
    for mode in (True, False):
        gpu = boards.gpu(board, mode=mode)
        assert catalog.profiles_of(gpu) == gpu.profiles
        fewer = gpu._replace(profiles=(gpu.profiles or ())[:1])
        assert catalog.profiles_of(fewer) == fewer.profiles


@pytest.mark.parametrize(
    "gpu",
    [
        silent("b200-180gb"),
        silent(A100, pci_device_id=0xFFFF10DE),
        silent(A100, pci_device_id=0x20B01002),
        silent(A100, memory_mib=None),
        silent(A100, mig_capable=None),
        silent(A100, mode_current=None),
        silent(A100, mode_current=True),
    ],
    ids=["newer board", "unknown board", "other vendor", "unknown memory", "no answer", "unknown mode", "MIG on"],
)
def test_where_nothing_is_known_nothing_is_said(gpu: Gpu) -> None:
    assert catalog.profiles_of(gpu) is None


# --- boards that have to be set up for MIG ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("board", "words"),
    [
        ("rtx-pro-6000-server", ["driver 575.51.03 or newer"]),
        ("rtx-pro-6000-workstation", ["575.51.03", "vBIOS 98.02.55.00.00 or newer", "display mode set to compute"]),
        ("rtx-pro-6000-maxq", ["575.51.03", "vBIOS 98.02.6A.00.00 or newer", "display mode set to compute"]),
        ("rtx-pro-5000-48gb", ["575.57.08", "vBIOS 98.02.73.00.00 or newer", "display mode set to compute"]),
        ("rtx-pro-4500-32gb", ["575.64", "display mode set to compute"]),
    ],
)
def test_a_board_that_could_do_mig_and_whose_driver_denies_it_is_told_what_it_needs(
    board: str, words: list[str]
) -> None:
    gpu = boards.gpu(board, mig_capable=False, mode_current=None, mode_pending=None, profiles=())
    sentence = catalog.what_mig_needs(gpu)
    assert [word for word in words if word not in sentence] == []
    assert ("display" in sentence) is (board != "rtx-pro-6000-server")
    with pytest.raises(
        WishError, match="cannot do MIG, but label all-1g wants MIG on it by name; its model can do MIG"
    ):
        configs.resolve(boards.node(gpu), label="all-1g", gpus=[0])
    there = layouts.dump(boards.gpu(board))
    with pytest.raises(WishError, match="has it on; its model can do MIG, but its driver says that it cannot now"):
        layouts.resolve(boards.node(gpu), [there])


@pytest.mark.parametrize("board", ["tesla-t4", "rtx-pro-6000-server", A100])
def test_who_cannot_do_mig_at_all_or_does_it_already_is_told_nothing(board: str) -> None:
    assert catalog.what_mig_needs(boards.gpu(board)) == ""
