# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Settings for Kubernetes are looked at before any host is touched."""

from __future__ import annotations

import pathlib

import pytest
import yaml

from ansible_collections.gpufleet.mig.plugins.plugin_utils import _kubernetes_settings
from ansible_collections.gpufleet.mig.plugins.plugin_utils._kubernetes_settings import wrong


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kubernetes_pods", "gpu"),
        ("kubernetes_drain_timeout", "90.5"),
        ("kubernetes_label_stays", 0),
        ("kubernetes_force", "yes"),
        ("kubernetes_set_policy", True),
        ("kubernetes_ready_timeout", ""),
        ("kubernetes_grace_period", None),
        ("kubernetes_pods", " "),
    ],
)
def test_what_a_setting_may_be_or_was_left_open_is_nothing_to_speak_of(name, value):
    assert wrong({name: value}) == []


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("kubernetes_pods", "gpus", "kubernetes_pods is 'gpus'; it must be one of all, gpu."),
        ("kubernetes_ready_timeout", "5m", "kubernetes_ready_timeout is '5m'; give a number of seconds, such as 300."),
        ("kubernetes_drain_timeout", -1, "kubernetes_drain_timeout is '-1'; give a number of seconds, such as 600."),
        ("kubernetes_drain_timeout", "nan", "kubernetes_drain_timeout is 'nan'; give"),
        ("kubernetes_drain_timeout", "inf", "kubernetes_drain_timeout is 'inf'; give"),
        ("kubernetes_drain_timeout", True, "kubernetes_drain_timeout is 'True'; give"),
        ("kubernetes_grace_period", [60], "kubernetes_grace_period is '[60]'; give"),
        (
            "kubernetes_grace_period",
            7.5,
            "kubernetes_grace_period is '7.5'; give a whole number of seconds",
        ),
        ("kubernetes_force", "ture", "kubernetes_force is 'ture'; it must be true or false."),
    ],
)
def test_what_it_cannot_be_is_named_with_the_variable_and_what_it_may_be(name, value, words):
    (sentence,) = wrong({name: value, "kubernetes_label_stays": 5})
    assert sentence.startswith(words)


def test_the_role_hands_over_all_of_them_and_knows_them():
    role = pathlib.Path(__file__).parents[4] / "roles/kubernetes"
    options = yaml.safe_load((role / "meta/argument_specs.yml").read_text())["argument_specs"]["parts"]["options"]
    handed_over = yaml.safe_load((role / "vars/main.yml").read_text())["__kubernetes_used_later"]
    assert set(handed_over) == set(_kubernetes_settings.NAMES) <= set(options)
