# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A survey's text means what typed values mean, and a question without an answer is none."""

from __future__ import annotations

import pytest

from ansible_collections.gpufleet.mig.plugins.action.mig_guard_info import ActionModule


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
    assert stage.calls == [{"ignore": meant, "kinds": ["instances", "mode"], "gpus": ["0", "1"]}]


def test_what_was_not_answered_is_left_out(stage):
    stage.run(ActionModule, ignore="", deadline="  ", kinds=None)
    assert stage.calls == [{}]
