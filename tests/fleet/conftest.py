# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A fixture that makes fleets."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.mig.tests.fleet.fleet import Fleet

A30 = "1xa30-24gb"


@pytest.fixture
def make_fleet(tmp_path) -> t.Callable[..., Fleet]:
    """Make hosts of these names, all with an A30 unless said otherwise."""

    def make(*names: str, **gpus: str) -> Fleet:
        return Fleet(tmp_path, {**dict.fromkeys(names, A30), **gpus})

    return make
