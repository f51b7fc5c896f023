# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The jobs of AWX, from the templates that playbooks/awx.yml made, as AWX runs them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.gpufleet.mig.tests.awx.conftest import CORES, Run, SetUp
from ansible_collections.gpufleet.mig.tests.awx.jobs import Host, Launcher, Refused
from ansible_collections.gpufleet.mig.tests.awx.server import Awx

SEVEN = ["1g.5gb"] * 7


@pytest.fixture(scope="session")
def typed_layouts(first_run: tuple[Awx, Run], tmp_path_factory: pytest.TempPathFactory) -> Awx:
    """An AWX whose surveys let people type the layout."""
    awx = first_run[0].copy()
    run = SetUp(awx, tmp_path_factory.mktemp("typed"))("--tags", "templates,workflow", awx_profiles=[], awx_answers={})
    assert run.code == 0, run.output[-3000:]
    return awx


@pytest.fixture
def fleet(typed_layouts: Awx, tmp_path: Path) -> Launcher:
    """Two nodes with one A100 each, MIG off; the first one is the canary."""
    hosts = [Host(name, tmp_path / name) for name in ("gpu01", "gpu02")]
    return Launcher(typed_layouts, tmp_path, hosts, {"gpu_canary": ["gpu01"]})


def nothing_was_written(fleet: Launcher) -> bool:
    return [call for host in fleet.hosts for call in host.simulator.writes()] == []


@pytest.mark.parametrize("core", CORES)
def test_the_plan_shows_the_layout_of_every_host_and_touches_nothing(fleet: Launcher, core: str) -> None:
    job = fleet.launch("MIG plan", {"mig_profile": "all-1g.5gb"}, core=core)

    assert job.code == 0, job.output[-3000:]
    assert "|1g.5gb" in job.output, "the picture of what it would become"
    assert nothing_was_written(fleet)


@pytest.mark.parametrize("core", CORES)
def test_apply_divides_the_gpus_and_does_nothing_the_second_time(fleet: Launcher, core: str) -> None:
    first = fleet.launch("MIG apply", {"mig_profile": "all-1g.5gb"}, core=core)
    for host in fleet.hosts:
        host.simulator.reset_calls()
    second = fleet.launch("MIG apply", {"mig_profile": "all-1g.5gb"}, core=core)

    assert (first.code, second.code) == (0, 0), first.output[-3000:] + second.output[-3000:]
    assert [host.profiles() for host in fleet.hosts] == [SEVEN, SEVEN]
    assert second.changed == {"gpu01": 0, "gpu02": 0}
    assert nothing_was_written(fleet)


def test_apply_launched_as_a_check_touches_nothing(fleet: Launcher) -> None:
    job = fleet.launch("MIG apply", {"mig_profile": "all-1g.5gb"}, job_type="check")

    assert job.code == 0, job.output[-3000:]
    assert nothing_was_written(fleet)


def test_the_plan_cannot_be_launched_as_a_change(fleet: Launcher) -> None:
    with pytest.raises(Refused, match="not configured to prompt"):
        fleet.launch("MIG plan", {"mig_profile": "all-1g.5gb"}, job_type="run")


def test_the_canary_step_of_the_workflow_changes_the_canary_and_no_other(fleet: Launcher) -> None:
    limit = fleet.awx.named("workflow_job_template_nodes", "canary")["limit"]

    job = fleet.launch("MIG apply", {"mig_profile": "all-1g.5gb"}, limit=limit)

    assert job.code == 0, job.output[-3000:]
    assert [host.profiles() for host in fleet.hosts] == [SEVEN, []]


def test_a_limit_that_matches_no_host_is_a_failure_so_that_no_approval_is_asked_for(fleet: Launcher) -> None:
    job = fleet.launch("MIG apply", {"mig_profile": "all-1g.5gb"}, limit="gpu_canaries")

    assert job.code != 0
    assert nothing_was_written(fleet)


def test_the_hosts_of_the_survey_are_a_host_pattern(fleet: Launcher) -> None:
    job = fleet.launch("MIG apply", {"mig_profile": "all-1g.5gb", "mig_hosts": "all:!gpu_canary"})

    assert job.code == 0, job.output[-3000:]
    assert [host.profiles() for host in fleet.hosts] == [[], SEVEN]


def test_questions_that_were_left_open_are_as_if_they_had_not_been_asked(fleet: Launcher) -> None:
    """The form of AWX sends an empty text for each of them."""
    survey = fleet.awx.survey("MIG apply")
    answers = {name: "" for name, question in survey.items() if not question["required"]}

    job = fleet.launch("MIG apply", {**answers, "mig_profile": "  3g.20gb,3g.20gb "})

    assert set(answers) == {"mig_canary", "mig_keep_available"}
    assert job.code == 0, job.output[-3000:]
    assert [host.profiles() for host in fleet.hosts] == [["3g.20gb"] * 2] * 2


def test_a_layout_must_be_typed_because_an_empty_one_would_hide_the_inventory(fleet: Launcher) -> None:
    for answers in ({}, {"mig_profile": ""}):
        with pytest.raises(Refused, match="mig_profile"):
            fleet.launch("MIG apply", answers)


@pytest.mark.parametrize(
    ("typed", "named"),
    [
        ("all 1g.5gb", "'all 1g.5gb'"),
        ("all-1g.5gb'; touch {trap} #", "all-1g.5gb'; touch /"),
        ("all-'1g\".5gb", "'all-\\'1g\".5gb'"),
        ("{{{{ lookup('ansible.builtin.pipe', 'touch {trap}') }}}}", "{{ lookup('ansible.builtin.pipe', 'touch /"),
        ("{{% raw %}}", "'{% raw %}'"),
        ("all-1g.5gb\u2028\u00e4\U0001f98a", "'all-1g.5gb\\u2028\u00e4\U0001f98a'"),
    ],
    ids=["space", "shell", "quotes", "template", "half a template", "unicode"],
)
def test_a_layout_that_is_none_is_named_as_it_was_typed_and_nothing_else_happens(
    fleet: Launcher, tmp_path: Path, typed: str, named: str
) -> None:
    trap = tmp_path / "trap"

    job = fleet.launch("MIG apply", {"mig_profile": typed.format(trap=trap)})

    said = " ".join(str(event["event_data"].get("res", {}).get("msg", "")) for event in job.events)
    assert job.code != 0, job.output[-3000:]
    assert f"label {named}" in said.replace('label "', "label ")
    assert not trap.exists()
    assert nothing_was_written(fleet)


def test_what_the_inventory_says_counts_where_the_survey_does_not_ask(
    typed_layouts: Awx, fleet: Launcher, tmp_path: Path
) -> None:
    fleet.awx = typed_layouts.copy()
    run = SetUp(fleet.awx, tmp_path)(
        "--tags", "templates", awx_questions=["mig_hosts", "mig_serial"], awx_answers={"mig_serial": "100%"}
    )
    fleet.group_variables = {"all": {"mig_profile": "all-1g.5gb"}, "gpu_canary": {"mig_profile": "all-disabled"}}

    job = fleet.launch("MIG apply", {})

    assert (run.code, job.code) == (0, 0), job.output[-3000:]
    assert [host.profiles() for host in fleet.hosts] == [[], SEVEN]


def test_every_question_can_be_answered(fleet: Launcher) -> None:
    answers = {
        "mig_profile": "all-1g.5gb",
        "mig_hosts": "gpu_canary,gpu02",
        "mig_canary": "gpu_canary",
        "mig_serial": "1, 100%",
        "mig_max_fail_percentage": 10,
        "mig_pause_between_waves": 0,
        "mig_keep_available": "",
        "mig_preflight": "warn",
        "mig_evict": "reserved",
        "mig_allow_reset": "yes",
        "mig_allow_reboot": "yes",
        "mig_tolerate_unreachable": "yes",
    }

    job = fleet.launch("MIG apply", answers)

    assert set(answers) == set(fleet.awx.survey("MIG apply"))
    assert job.code == 0, job.output[-3000:]
    assert [host.profiles() for host in fleet.hosts] == [SEVEN, SEVEN]


def test_the_audit_fails_where_hosts_drift_from_the_inventory_and_touches_nothing(fleet: Launcher) -> None:
    fleet.group_variables = {"all": {"mig_profile": "all-1g.5gb"}}

    drift = fleet.launch("MIG audit", {})
    untouched = nothing_was_written(fleet)
    apply = fleet.launch("MIG apply", {"mig_profile": "all-1g.5gb"})
    right = fleet.launch("MIG audit", {})

    assert (drift.code != 0, apply.code, right.code) == (True, 0, 0), right.output[-3000:]
    assert "gpu01" in drift.output
    assert untouched
