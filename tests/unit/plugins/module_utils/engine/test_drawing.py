# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Pictures of layouts."""

from __future__ import annotations

import pytest

from ansible_collections.gpufleet.mig.plugins.module_utils.engine import drawing
from ansible_collections.gpufleet.mig.plugins.module_utils.engine.model import Problem
from ansible_collections.gpufleet.mig.tests.unit.plugins.module_utils.engine import boards

A100 = "a100-sxm4-40gb"
LOST = Problem("nvmlDeviceGetMigMode", "GPU_IS_LOST", "reset or reboot")


@pytest.mark.parametrize(
    ("gpu", "picture"),
    [
        (
            boards.gpu(A100, instances=[("1g.5gb", start) for start in range(7)]),
            "GPU 0  |1g.5gb |1g.5gb |1g.5gb |1g.5gb |1g.5gb |1g.5gb |1g.5gb |       |",
        ),
        (
            boards.gpu(A100, instances=[("3g.20gb", 4), ("2g.10gb", 0), ("1g.5gb", 2)]),
            "GPU 0  |2g.10gb        |1g.5gb |.......|3g.20gb                        |",
        ),
        (
            boards.gpu(A100, instances=[("1g.5gb", 1)]),
            "GPU 0  |.......|1g.5gb |...............................................|",
        ),
        (
            boards.gpu(A100, instances=[("3g.20gb", 0), ("1g.5gb", 4), ("1g.5gb", 6)]),
            "GPU 0  |3g.20gb                        |1g.5gb |.......|1g.5gb |       |",
        ),
        (
            boards.gpu(A100, instances=[("7g.40gb", 0)]),
            "GPU 0  |7g.40gb                                                        |",
        ),
        (
            boards.gpu("rtx-pro-6000-server", instances=[("2g.48gb+gfx", 0), ("1g.24gb+me.all", 6)]),
            "GPU 0  |2g.48gb+gfx                  |1g.24gb+me.all|..............|",
        ),
        (
            boards.gpu("a30-24gb", instances=[("1g.6gb+me", 0), ("2g.12gb", 2)]),
            "GPU 0  |1g.6gb+me      |...............|2g.12gb                        |",
        ),
    ],
)
def test_boxes_are_as_wide_as_their_share_of_the_memory(gpu, picture):
    assert drawing.draw_gpu(gpu) == picture


@pytest.mark.parametrize(
    ("gpu", "words"),
    [
        (boards.gpu(A100, mode=False), "MIG off"),
        (boards.gpu(A100), "MIG on, no instances"),
        (boards.gpu("tesla-t4"), "cannot do MIG"),
        (boards.gpu(A100, problems=(LOST,)), "cannot tell (GPU_IS_LOST)"),
        (boards.gpu(A100, mode_current=None), "cannot tell"),
        (boards.gpu(A100, mode=False, profiles=None), "MIG off"),
    ],
)
def test_what_has_no_boxes_is_said_in_words(gpu, words):
    assert drawing.draw_gpu(gpu)[len("GPU 0  |") :].strip(" .|") == words


def test_all_pictures_of_a_node_stand_under_each_other():
    instances = [[], [("1g.5gb+me", 0)], [("3g.20gb", 0, [1, 1])], [("4g.20gb", 0, [])], [("1g.10gb", 6)]]
    gpus = [boards.gpu(A100, index, instances=each) for index, each in enumerate(instances)]
    gpus += [boards.gpu(A100, 5, mode=False), boards.gpu("tesla-t4", 6), boards.gpu(A100, 10)]
    assert {len(drawing.draw_gpu(gpu)) for gpu in gpus} == {72}


@pytest.mark.parametrize(
    ("instance", "text"),
    [
        (("3g.20gb", 0, [2, 1]), "|3g.20gb: 2c 1c "),
        (("3g.20gb", 0, [1]), "|3g.20gb: 1c "),
        (("2g.10gb", 0, [1, 1]), "|2g.10gb: 1c 1c |"),
        (("7g.40gb", 0, [1] * 7), "|7g.40gb: 1c 1c 1c 1c 1c 1c 1c "),
        (("3g.20gb", 0, []), "|3g.20gb: no CI "),
        (("1g.5gb", 0, []), "|1g.5gb!|"),
        (("1g.5gb+me", 0), "|1g+me  |"),
    ],
)
def test_what_is_inside_an_instance_is_said_where_there_is_room(instance, text):
    assert text in drawing.draw_gpu(boards.gpu(A100, instances=[instance]))


def test_memory_that_no_profile_can_use_any_more_is_blank_and_other_room_has_dots():
    assert drawing.draw_gpu(boards.gpu(A100, instances=[("1g.5gb", 6)])).endswith("|1g.5gb |       |")
    assert drawing.draw_gpu(boards.gpu(A100, instances=[("3g.20gb", 0)])).endswith("|...............................|")


def test_a_layout_can_be_drawn_that_is_only_planned():
    gpu = boards.gpu(A100, instances=[("7g.40gb", 0)])
    planned = boards.gpu(A100, instances=[("4g.20gb", 0), ("3g.20gb", 4)]).instances
    assert drawing.draw_layout(gpu, planned) == drawing.draw_gpu(
        boards.gpu(A100, instances=[("4g.20gb", 0), ("3g.20gb", 4)])
    )
    assert drawing.draw_layout(gpu, (), enabled=False) == drawing.draw_gpu(boards.gpu(A100, mode=False))


def test_text_from_elsewhere_cannot_move_the_cursor_or_break_the_line():
    gi = boards.gpu(A100, instances=[("3g.20gb", 0)]).instances[0]
    evil = gi._replace(profile=gi.profile._replace(name="\x1b[2J\n\u202e3g"))
    line = drawing.draw_layout(boards.gpu(A100), [evil])
    assert line.isascii()
    assert line.isprintable()
    assert len(line) == 72


def test_slots_show_where_each_profile_can_be():
    by_name = {each.name: each for each in boards.profiles("rtx-pro-6000-server")}
    wanted = [(by_name["2g.48gb"], 2), (by_name["1g.24gb"], 1)]
    assert drawing.draw_slots(wanted, by_name.values()).splitlines() == [
        "memory slice   0    1    2    3    4    5    6    7    8    9    10   11",
        "2 x 2g.48gb   |=============================|=============================|",
        "1 x 1g.24gb   |==============|==============|==============|==============|",
    ]


def test_places_that_overlap_are_drawn_on_lines_of_their_own():
    four = next(each for each in boards.profiles(A100) if each.name == "4g.20gb")
    movable = four._replace(placements=(*four.placements, four.placements[0]._replace(start=2)))
    lines = drawing.draw_slots([(movable, 1)], boards.profiles(A100)).splitlines()
    assert lines[1:] == [
        "1 x 4g.20gb   |===============================|",
        "                              |===============================|",
    ]
