# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A list or boolean may be text, and text that is none is not lost."""

from __future__ import annotations

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.gpufleet.mig.plugins.filter.survey import survey_bool, survey_list

UNIT = {"unit": "nv_peer_mem.service", "for": ["mode", "reset"]}


@pytest.mark.parametrize(
    ("value", "items"),
    [
        (["a.service", UNIT], ["a.service", UNIT]),
        (("a.service",), ["a.service"]),
        (UNIT, [UNIT]),
        ("a.service", ["a.service"]),
        ("a.service, b.service,", ["a.service", "b.service"]),
        ('["a.service", "b.service"]', ["a.service", "b.service"]),
        ("[a.service, {unit: nv_peer_mem.service, for: [mode, reset]}]", ["a.service", UNIT]),
        ("{unit: nv_peer_mem.service, for: [mode, reset]}", [UNIT]),
        ("[]", []),
        ([], []),
        (",", []),
    ],
)
def test_names_with_commas_and_yaml_and_lists_mean_lists(value, items):
    assert survey_list(value, ["default.service"]) == items


@pytest.mark.parametrize("value", ["", "  ", None])
def test_a_question_that_was_not_answered_means_the_default(value):
    assert survey_list(value, ["default.service"]) == ["default.service"]
    assert survey_list(value) == []


@pytest.mark.parametrize(
    ("value", "items"),
    [("{unit: a", ["{unit: a"]), ("a b", ["a b"]), ("{{ never }}", ["{{ never }}"]), (7, ["7"]), (True, [True])],
)
def test_what_is_no_list_is_an_item_for_its_user_to_refuse(value, items):
    assert survey_list(value, ["default.service"]) == items


@pytest.mark.parametrize(
    ("value", "means"),
    [(True, True), ("yes", True), ("On", True), (1, True), (False, False), ("no", False), ("0", False)],
)
def test_a_boolean_may_be_a_word(value, means):
    assert survey_bool(value) is means
    assert survey_bool(value, not means) is means


@pytest.mark.parametrize("value", ["", "  ", None])
def test_a_question_without_an_answer_means_the_default(value):
    assert survey_bool(value) is False
    assert survey_bool(value, True) is True


@pytest.mark.parametrize("value", ["maybe", "yess", 2, [], "{{ x }}"])
def test_a_word_that_says_neither_yes_nor_no_is_not_taken_for_no(value):
    with pytest.raises(AnsibleFilterError, match="says neither yes nor no"):
        survey_bool(value)
