# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The product's own table speaks only where a driver does not, and then says what the driver would."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.mig.plugins.module_utils.engine import catalog, profiles
from ansible_collections.gpufleet.mig.plugins.module_utils.engine.model import Gpu, Profile
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
