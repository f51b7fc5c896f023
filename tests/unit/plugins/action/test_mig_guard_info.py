# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A survey's text means what typed values mean, and a question without an answer is none."""

from __future__ import annotations

import datetime

import pytest

from ansible_collections.gpufleet.mig.plugins.action.mig_guard_info import ActionModule
from ansible_collections.gpufleet.mig.plugins.module_utils.engine import guards


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("owner, boot", ["owner", "boot"]),
        ("['owner', 'boot']", ["owner", "boot"]),
        (["owner", "boot"], ["owner", "boot"]),
        ("owner", ["owner"]),
        ([], []),
    ],
)
def test_lists_may_come_as_text(stage, given, meant):
    stage.run(ActionModule, ignore=given, kinds="instances,mode", gpus="0,1")
    (call,) = stage.calls
    del call["now"]
    assert call == {"ignore": meant, "kinds": ["instances", "mode"], "gpus": ["0", "1"]}


def test_what_was_not_answered_is_left_out(stage):
    stage.run(ActionModule, ignore="", deadline="  ", kinds=None)
    assert [sorted(call) for call in stage.calls] == [["now"]]


def test_a_deadline_is_compared_with_the_clock_of_the_controller(stage):
    before = datetime.datetime.now(datetime.timezone.utc).replace(microsecond=0)
    stage.run(ActionModule, deadline="2026-12-24T05:00:00Z")
    stage.run(ActionModule, deadline="2026-12-24T05:00:00Z", now="2026-12-24T04:00:00Z")
    told, given = (call["now"] for call in stage.calls)
    assert before <= guards.parse_time("now", told) <= datetime.datetime.now(datetime.timezone.utc)
    assert given == "2026-12-24T04:00:00Z"
