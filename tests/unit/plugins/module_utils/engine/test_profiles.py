# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Names of profiles, which profile a name means, and how many fit."""

from __future__ import annotations

import itertools

import pytest

from ansible_collections.gpufleet.mig.plugins.module_utils.engine import profiles
from ansible_collections.gpufleet.mig.plugins.module_utils.engine.model import Engines, Placement, WishError
from ansible_collections.gpufleet.mig.plugins.module_utils.engine.profiles import ProfileName
from ansible_collections.gpufleet.mig.tests.unit.plugins.module_utils.engine import boards

MIG_BOARDS = boards.keys(mig=True)


def profile(board, name):
    return next(each for each in boards.profiles(board) if each.name == name)


# --- grammar ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1g.5gb", ProfileName(None, 1, 5)),
        ("7g.141gb", ProfileName(None, 7, 141)),
        ("1g.5gb+me", ProfileName(None, 1, 5, ("+me",))),
        ("1g.24gb-me", ProfileName(None, 1, 24, ("-me",))),
        ("1g.24gb+me.all", ProfileName(None, 1, 24, ("+me.all",))),
        ("2g.48gb+gfx", ProfileName(None, 2, 48, ("+gfx",))),
        ("1c.3g.20gb", ProfileName(1, 3, 20)),
        ("1c.2g.48gb+me.all", ProfileName(1, 2, 48, ("+me.all",))),
        ("1g", ProfileName(None, 1, None)),
        ("1c.3g", ProfileName(1, 3, None)),
        ("1g+me", ProfileName(None, 1, None, ("+me",))),
    ],
)
def test_a_name_is_taken_apart_and_put_together_again(text, expected):
    assert profiles.parse(text) == expected
    assert str(expected) == text


def test_a_ci_that_fills_its_gi_is_what_the_name_without_c_means():
    assert profiles.parse("3c.3g.20gb") == profiles.parse("3g.20gb")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "g",
        "1",
        "1g.",
        "1g.5",
        "1g.5GB",
        "0g.5gb",
        "1g.5gb.me",
        "1g.5gb+",
        "1g.5gb +me",
        "-1g.5gb",
        "1g.5gb\n",
        "１g.5gb",
    ]
    + [
        "1c",
        "c.3g.20gb",
        "0c.3g.20gb",
        "1.5g.5gb",
        "MIG 1g.5gb",
        "1g.5gb;reboot",
        "{{ x }}",
        "../1g",
        "123g.5gb",
        7,
        None,
    ],
)
def test_what_is_no_profile_name_is_refused_by_quoting_it(text):
    with pytest.raises(WishError, match="is not a profile name such as") as refusal:
        profiles.parse(text)
    assert str(refusal.value).startswith(repr(text))


def test_more_compute_slices_than_the_gi_has_are_refused():
    with pytest.raises(WishError, match=r"4 compute slices .* has 3; at most 3c\.3g"):
        profiles.parse("4c.3g.20gb")


def test_a_quoted_value_is_short_and_printable():
    assert profiles.quoted("a\x1b[2J\u202e") == "'a\\x1b[2J\\u202e'"
    assert len(profiles.quoted("x" * 100_000)) < 120


def test_a_quoted_value_is_shown_in_the_letters_that_it_was_written_in():
    assert profiles.quoted("überall-1g") == "'überall-1g'"
    assert profiles.quoted(["半分", "\udcff"]) == "['半分', '\\udcff']"


# --- which profile a name means --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("board", "text", "found"),
    [
        ("a100-sxm4-40gb", "3g.20gb", "3g.20gb"),
        ("h100-sxm5-80gb", "3g.39gb", "3g.40gb"),
        ("h100-sxm5-80gb", "7g.79gb", "7g.80gb"),
        ("h100-nvl-94gb", "1g.11gb", "1g.12gb"),
        ("b200-180gb", "1g.24gb", "1g.23gb"),
        ("b200-180gb", "1g.24gb+me", "1g.23gb+me"),
        ("gb200-186gb", "1g.24gb", "1g.23gb"),
        ("h100-sxm5-80gb", "2c.3g.39gb", "3g.40gb"),
        ("a100-sxm4-40gb", "1g", "1g.5gb"),
        ("a100-sxm4-80gb", "1g", "1g.10gb"),
        ("b200-180gb", "1g", "1g.23gb"),
        ("rtx-pro-6000-server", "1g", "1g.24gb"),
        ("rtx-pro-6000-server", "4g", "4g.96gb"),
        ("rtx-pro-6000-server", "1g-me", "1g.24gb-me"),
        ("a30-24gb", "2g+me", "2g.12gb+me"),
    ],
)
def test_spellings_of_one_profile_meet(board, text, found):
    assert profiles.find(profiles.parse(text), boards.profiles(board)).name == found


def test_the_profile_with_exactly_that_memory_wins_over_one_within_a_gigabyte():
    one, other = profile("a100-sxm4-40gb", "1g.5gb"), profile("a100-sxm4-40gb", "1g.10gb")._replace(gb=6, name="1g.6gb")
    assert profiles.find(profiles.parse("1g.6gb"), (one, other)) is other


def test_between_two_profiles_within_a_gigabyte_nothing_is_guessed():
    one, other = profile("a100-sxm4-40gb", "1g.5gb"), profile("a100-sxm4-40gb", "1g.10gb")._replace(gb=7, name="1g.7gb")
    with pytest.raises(WishError, match=r"no profile 1g\.6gb"):
        profiles.find(profiles.parse("1g.6gb"), (one, other))


@pytest.mark.parametrize("text", ["1g.7gb", "1g.3gb", "1g.5gb+gfx", "1g.5gb-me", "1g.10gb+me", "3g.40gb"])
def test_memory_further_off_or_other_attributes_are_another_profile(text):
    with pytest.raises(WishError):
        profiles.find(profiles.parse(text), boards.profiles("a100-sxm4-40gb"))


def test_an_unknown_profile_names_those_of_as_many_slices_first():
    with pytest.raises(WishError) as refusal:
        profiles.find(profiles.parse("1c.3g.40gb"), boards.profiles("a100-sxm4-40gb"))
    assert str(refusal.value) == (
        "no profile 3g.40gb; of 3 slices it has 3g.20gb; besides 1g.5gb, 1g.5gb+me, 1g.10gb, 2g.10gb, 4g.20gb, 7g.40gb"
    )


def test_an_unknown_number_of_slices_names_what_there_is():
    with pytest.raises(WishError, match=r"no profile 3g\.12gb and none of 3 slices, only 1g\.6gb, 1g\.6gb\+me, 2g"):
        profiles.find(profiles.parse("3g.12gb"), boards.profiles("a30-24gb"))


# --- labels ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("1g.5gb", "all-1g.5gb"),
        ("1g.5gb+me", "all-1g.5gb.me"),
        ("1g.24gb+me.all", "all-1g.24gb.me.all"),
        ("2g.48gb+gfx", "all-2g.48gb.gfx"),
        ("1g.24gb-me", "all-1g.24gb-me"),
        ("1g+me", "all-1g.me"),
        ("1g", "all-1g"),
    ],
)
def test_a_label_has_dots_for_plus_signs(name, label):
    assert profiles.label_of(name) == label
    assert profiles.parse_label(label) == profiles.parse(name)
    assert profiles.parse_label(f"all-{name}") == profiles.parse(name)


@pytest.mark.parametrize("label", ["all-balanced", "all-disabled", "all-", "1g.5gb", "all-1c.3g.20gb", "my-all-1g"])
def test_other_labels_are_not_about_one_profile(label):
    assert profiles.parse_label(label) is None


# --- how many fit ----------------------------------------------------------------------------------------------------


def test_the_maximum_on_a30_is_what_fits_and_not_what_nvml_reports():
    offered = tuple(each._replace(reported_count=99) for each in boards.profiles("a30-24gb"))
    maxima = {each.name: profiles.maximum(each, offered) for each in offered}
    assert maxima == {"1g.6gb": 4, "1g.6gb+me": 1, "2g.12gb": 2, "2g.12gb+me": 1, "4g.24gb": 1}


def test_engines_limit_media_profiles_to_one():
    offered = boards.profiles("rtx-pro-6000-server")
    assert {each.name: profiles.maximum(each, offered) for each in offered} == {
        "1g.24gb": 4,
        "1g.24gb+me": 1,
        "1g.24gb+gfx": 4,
        "1g.24gb+me.all": 1,
        "1g.24gb-me": 4,
        "2g.48gb": 2,
        "2g.48gb+gfx": 2,
        "2g.48gb+me.all": 1,
        "2g.48gb-me": 2,
        "4g.96gb": 1,
        "4g.96gb+gfx": 1,
    }


@pytest.mark.parametrize("board", MIG_BOARDS)
def test_the_maximum_is_the_largest_number_that_fits_together(board):
    offered = boards.profiles(board)
    for each in offered:
        most = profiles.maximum(each, offered)
        assert profiles.fits([each] * most, offered)
        assert not profiles.fits([each] * (most + 1), offered)


@pytest.mark.parametrize(
    ("board", "total"),
    [
        ("a30-24gb", Engines(copy=4, decoder=4, encoder=0, jpeg=1, ofa=1)),
        ("a100-sxm4-40gb", Engines(copy=7, decoder=5, encoder=0, jpeg=1, ofa=1)),
        ("h100-sxm5-80gb", Engines(copy=8, decoder=7, encoder=0, jpeg=7, ofa=1)),
        ("b200-180gb", Engines(copy=16, decoder=7, encoder=0, jpeg=7, ofa=1)),
        ("rtx-pro-6000-server", Engines(copy=4, decoder=4, encoder=4, jpeg=4, ofa=1)),
    ],
)
def test_the_engine_budget_is_what_the_board_really_has(board, total):
    assert profiles.engine_budget(boards.profiles(board)) == total


@pytest.mark.parametrize(
    ("board", "wanted", "possible"),
    [
        ("a100-sxm4-40gb", ["4g.20gb", "3g.20gb"], True),
        ("a100-sxm4-40gb", ["3g.20gb", "2g.10gb", "1g.5gb", "1g.5gb"], True),
        ("a100-sxm4-40gb", ["1g.5gb", "2g.10gb", "2g.10gb", "2g.10gb"], True),
        ("a100-sxm4-40gb", ["4g.20gb", "2g.10gb", "1g.10gb"], True),
        ("a100-sxm4-40gb", ["4g.20gb", "4g.20gb"], False),
        ("a100-sxm4-40gb", ["4g.20gb", "2g.10gb", "2g.10gb"], False),
        ("a100-sxm4-40gb", ["3g.20gb", "3g.20gb", "1g.5gb"], False),
        ("a100-sxm4-40gb", ["1g.5gb+me", "1g.5gb+me"], False),
        ("rtx-pro-6000-server", ["2g.48gb", "1g.24gb", "1g.24gb"], True),
        ("rtx-pro-6000-server", ["1g.24gb+me.all", "1g.24gb-me", "2g.48gb-me"], True),
        ("rtx-pro-6000-server", ["1g.24gb+me.all", "1g.24gb"], False),
        ("a30-24gb", ["1g.6gb+me", "2g.12gb+me"], False),
        ("a30-24gb", ["1g.6gb+me", "2g.12gb", "1g.6gb"], True),
        ("a30-24gb", [], True),
    ],
)
def test_which_instances_fit_together(board, wanted, possible):
    chosen = [profile(board, name) for name in wanted]
    assert profiles.fits(chosen, boards.profiles(board)) is possible


@pytest.mark.parametrize("board", ["a30-24gb", "a100-sxm4-40gb"])
def test_fitting_agrees_with_trying_every_combination_of_places(board):
    offered = boards.profiles(board)
    for number in (2, 3):
        for wanted in itertools.combinations_with_replacement(offered, number):
            trials = itertools.product(*(each.placements for each in wanted))
            possible = any(_are_apart(places) for places in trials)
            found = profiles.places_for(wanted)
            assert (found is not None) is possible
            if found is not None:
                assert _are_apart(found)
                assert all(place in each.placements for place, each in zip(found, wanted))


def _are_apart(places):
    slices = [number for place in places for number in range(place.start, place.start + place.size)]
    return len(slices) == len(set(slices))


# --- compute instances -----------------------------------------------------------------------------------------------


def starts(architecture, board, name, slices):
    return [place.start for place in profiles.compute_placements(architecture, profile(board, name), slices)]


def test_later_chips_align_compute_instances_and_ampere_prefers_to():
    assert starts("hopper", "h100-sxm5-80gb", "7g.80gb", 2) == [0, 2, 4]
    assert starts("hopper", "h100-sxm5-80gb", "7g.80gb", 3) == [0, 4]
    assert starts("blackwell", "b200-180gb", "3g.90gb", 2) == [0]
    assert starts("ampere", "a100-sxm4-40gb", "7g.40gb", 3) == [0, 4, 1, 2, 3]
    assert starts("ampere", "a100-sxm4-40gb", "3g.20gb", 2) == [0, 1]


def test_places_that_the_driver_lists_count_and_nothing_else():
    listed = boards.compute_profiles("a100-sxm4-40gb", "3g.20gb")
    only_there = tuple(each._replace(placements=(Placement(1, 2),)) if each.slices == 2 else each for each in listed)
    known = profile("a100-sxm4-40gb", "3g.20gb")._replace(compute=only_there)
    assert profiles.compute_placements("ampere", known, 2) == (Placement(1, 2),)


def test_a_ci_that_the_gi_does_not_have_has_no_place():
    assert starts("ampere", "a100-sxm4-40gb", "4g.20gb", 3) == []
    assert starts("ampere", "a100-sxm4-40gb", "7g.40gb", 5) == []


@pytest.mark.parametrize("board", MIG_BOARDS)
def test_expected_sizes_of_compute_instances_are_those_the_driver_lists(board):
    for each in boards.profiles(board):
        listed = each._replace(compute=boards.compute_profiles(board, each.name))
        assert profiles.compute_sizes(each) == profiles.compute_sizes(listed)


def test_the_wide_ci_fills_a_double_memory_gi_and_the_plain_one_is_a_part():
    double = profile("h100-sxm5-80gb", "1g.20gb")
    double = double._replace(compute=boards.compute_profiles("h100-sxm5-80gb", "1g.20gb"))
    assert profiles.compute_profile(double, 1).variant == "rev1"
    two = profile("h100-sxm5-80gb", "2g.20gb")
    two = two._replace(compute=boards.compute_profiles("h100-sxm5-80gb", "2g.20gb"))
    assert profiles.compute_profile(two, 1).variant == ""
    assert profiles.compute_profile(two, 2).slices == 2


def test_a_3c_blocks_four_slices_on_hopper_but_not_on_ampere():
    assert profiles.compute_footprint("hopper", Placement(0, 3)) == Placement(0, 4)
    assert profiles.compute_footprint("ampere", Placement(0, 3)) == Placement(0, 3)
    whole = profile("h100-sxm5-80gb", "7g.80gb")
    assert profiles.fit_compute("hopper", whole, [3, 3, 1]) is None
    assert profiles.fit_compute("ampere", whole, [3, 3, 1]) is not None
    assert profiles.fit_compute("hopper", whole, [3, 2, 2]) is not None


def test_a_device_of_a_partial_ci_has_its_c_in_the_name():
    three = profile("a100-sxm4-40gb", "3g.20gb")
    assert [profiles.name_of(three, slices) for slices in (1, 3)] == ["1c.3g.20gb", "3g.20gb"]
