# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What playbooks/awx.yml makes in AWX, what it leaves alone, and what it says when AWX does not want it."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpufleet.mig.tests.awx.conftest import ORGANIZATION, PASSWORD, SECRETS, TOKEN, Run, SetUp
from ansible_collections.gpufleet.mig.tests.awx.server import Awx

# What must not be in any output: the lines of every secret that are not common words.
HIDDEN = [TOKEN, PASSWORD, *(line for value in SECRETS.values() for line in value.splitlines() if "nobody" in line)]


def assert_nothing_is_told(run: Run) -> None:
    assert [secret for secret in HIDDEN if secret in run.output] == []


# --- the first run ----------------------------------------------------------------------------------------------


def test_the_first_run_makes_everything_in_the_organization_that_is_there(first_run: tuple[Awx, Run]) -> None:
    awx, run = first_run

    assert run.code == 0, run.output[-3000:]
    assert awx.names("organizations") == [ORGANIZATION]
    assert awx.names("credentials") == ["MIG nodes", "MIG project", "MIG registry"]
    assert awx.names("execution_environments") == ["MIG"]
    assert awx.names("projects") == ["MIG"]
    assert awx.names("inventories") == ["MIG nodes"]
    assert awx.names("inventory_sources") == ["MIG nodes of the project"]
    assert awx.names("job_templates") == ["MIG apply", "MIG audit", "MIG plan", "MIG rollback"]
    assert awx.names("workflow_job_templates") == ["MIG rollout"]
    assert awx.names("schedules") == ["MIG drift, every night"]
    home = awx.named("organizations", ORGANIZATION)["id"]
    for kind in ("credentials", "execution_environments", "projects", "inventories", "job_templates"):
        assert {item["organization"] for item in awx.objects[kind].values()} == {home}, kind


def test_job_templates_run_the_playbooks_of_the_project_with_what_they_need(first_run: tuple[Awx, Run]) -> None:
    awx, _run = first_run
    templates = {name: awx.named("job_templates", name) for name in awx.names("job_templates")}

    assert {name: (item["playbook"], item["job_type"]) for name, item in templates.items()} == {
        "MIG plan": ("mig.yml", "check"),
        "MIG apply": ("mig.yml", "run"),
        "MIG audit": ("audit.yml", "run"),
        "MIG rollback": ("rollback.yml", "run"),
    }
    for name, item in templates.items():
        assert awx.related(item, "credentials") == ["MIG nodes"], name
        assert item["inventory"] == awx.named("inventories", "MIG nodes")["id"], name
        assert item["execution_environment"] == awx.named("execution_environments", "MIG")["id"], name
        assert item["become_enabled"], name


def test_no_job_is_sliced_and_two_changes_do_not_run_at_once(first_run: tuple[Awx, Run]) -> None:
    awx, _run = first_run

    for item in awx.objects["job_templates"].values():
        assert item["job_slice_count"] == 1, item["name"]
        assert not item["ask_job_slice_count_on_launch"], item["name"]
    assert not awx.named("job_templates", "MIG apply")["allow_simultaneous"]
    assert not awx.named("job_templates", "MIG rollback")["allow_simultaneous"]
    assert not awx.named("workflow_job_templates", "MIG rollout")["allow_simultaneous"]


def test_the_plan_cannot_be_launched_as_a_change_and_a_change_can_be_launched_as_a_check(
    first_run: tuple[Awx, Run],
) -> None:
    awx, _run = first_run

    assert not awx.named("job_templates", "MIG plan")["ask_job_type_on_launch"]
    assert awx.named("job_templates", "MIG apply")["ask_job_type_on_launch"]
    assert awx.named("job_templates", "MIG rollback")["ask_job_type_on_launch"]


def test_the_workflow_goes_from_plan_and_canary_over_approval_to_the_fleet(first_run: tuple[Awx, Run]) -> None:
    awx, _run = first_run
    kind = "workflow_job_template_nodes"
    nodes = {name: awx.named(kind, name) for name in awx.names(kind)}

    assert {name: awx.related(node, "success_nodes") for name, node in nodes.items()} == {
        "plan": ["canary"],
        "canary": ["approval"],
        "approval": ["fleet"],
        "fleet": [],
    }
    assert all(awx.related(node, other) == [] for node in nodes.values() for other in ("failure_nodes", "always_nodes"))
    apply = awx.named("job_templates", "MIG apply")["id"]
    assert [nodes[name]["unified_job_template"] for name in ("canary", "fleet")] == [apply, apply]
    assert nodes["plan"]["unified_job_template"] == awx.named("job_templates", "MIG plan")["id"]
    assert (nodes["canary"]["limit"], nodes["fleet"]["limit"]) == ("gpu_canary", None)
    assert awx.objects["workflow_approval_templates"][nodes["approval"]["unified_job_template"]]["timeout"] == 0


def test_the_workflow_asks_what_its_jobs_ask_but_not_for_canaries(first_run: tuple[Awx, Run]) -> None:
    awx, _run = first_run

    jobs = awx.survey("MIG apply")
    assert awx.survey("MIG plan") == jobs
    assert awx.survey("MIG rollout") == {name: question for name, question in jobs.items() if name != "mig_canary"}


def test_a_survey_offers_the_layouts_and_proposes_the_answers_of_the_variables(first_run: tuple[Awx, Run]) -> None:
    awx, _run = first_run
    survey = awx.survey("MIG apply")

    assert survey["mig_profile"]["choices"] == ["all-disabled", "all-balanced", "all-1g"]
    assert survey["mig_serial"]["default"] == "1,10%,100%"
    assert survey["mig_preflight"]["default"] == "strict"
    assert survey["mig_max_fail_percentage"]["default"] == 0


def test_a_question_that_may_stay_open_proposes_nothing_and_every_other_must_be_answered(
    first_run: tuple[Awx, Run],
) -> None:
    """AWX gives every proposed answer to every job, an empty one too, and it would hide what the inventory says."""
    awx, _run = first_run

    for template in ("MIG apply", "MIG audit", "MIG rollback", "MIG rollout"):
        for name, question in awx.survey(template).items():
            assert question["required"] or "default" not in question, name
            assert question.get("default") != "", name


def test_drift_is_looked_for_every_night_with_the_audit(first_run: tuple[Awx, Run]) -> None:
    awx, _run = first_run
    schedule = awx.named("schedules", "MIG drift, every night")

    assert schedule["unified_job_template"] == awx.named("job_templates", "MIG audit")["id"]
    assert "FREQ=DAILY" in schedule["rrule"]
    assert schedule["enabled"]


def test_secrets_reach_awx_and_no_output_even_at_the_third_verbosity(first_run: tuple[Awx, Run]) -> None:
    awx, run = first_run

    assert awx.named("credentials", "MIG nodes")["inputs"] == {
        "username": "ansible",
        "ssh_key_data": SECRETS["MIG_SSH_KEY"],
    }
    assert "EXEC" in run.output, "this is the output of -vvv"
    assert_nothing_is_told(run)


# --- later runs -------------------------------------------------------------------------------------------------


def test_the_second_run_on_the_newest_ansible_writes_nothing(done: SetUp) -> None:
    run = done("-vvv", core="newest")

    assert run.code == 0, run.output[-3000:]
    assert run.writes == []
    assert "changed=0" in run.output
    assert_nothing_is_told(run)


def test_a_changed_variable_changes_the_objects_that_it_concerns_and_no_other(done: SetUp) -> None:
    awx = done.awx
    ids = {name: awx.named("job_templates", name)["id"] for name in ("MIG plan", "MIG apply")}

    run = done(
        awx_image="registry.example.com/gpu/mig-ee:2.0",
        awx_profiles=["all-1g", "3g.20gb,2x2g.10gb"],
        awx_canary="gpu01,gpu02",
        awx_drift_rule="DTSTART;TZID=Europe/Berlin:20260101T030000 RRULE:FREQ=DAILY;INTERVAL=1",
    )

    assert run.code == 0, run.output[-3000:]
    assert run.writes == [
        f"PATCH /api/v2/execution_environments/{awx.named('execution_environments', 'MIG')['id']}/",
        f"POST /api/v2/job_templates/{ids['MIG plan']}/survey_spec/",
        f"POST /api/v2/job_templates/{ids['MIG apply']}/survey_spec/",
        f"POST /api/v2/workflow_job_templates/{awx.named('workflow_job_templates', 'MIG rollout')['id']}/survey_spec/",
        f"PATCH /api/v2/workflow_job_template_nodes/{awx.named('workflow_job_template_nodes', 'canary')['id']}/",
        f"PATCH /api/v2/schedules/{awx.named('schedules', 'MIG drift, every night')['id']}/",
    ]
    assert awx.survey("MIG rollout")["mig_profile"]["choices"] == ["all-1g", "3g.20gb,2x2g.10gb"]
    assert awx.named("workflow_job_template_nodes", "canary")["limit"] == "gpu01,gpu02"


def test_what_somebody_changed_by_hand_is_as_the_variables_say_again(done: SetUp) -> None:
    apply = done.awx.named("job_templates", "MIG apply")
    apply.update(allow_simultaneous=True, job_slice_count=4)
    done.awx.surveys[apply["id"]]["spec"].pop()

    run = done("--tags", "templates")

    assert run.code == 0, run.output[-3000:]
    assert run.writes == [
        f"PATCH /api/v2/job_templates/{apply['id']}/",
        f"POST /api/v2/job_templates/{apply['id']}/survey_spec/",
    ]
    assert (apply["allow_simultaneous"], apply["job_slice_count"]) == (False, 1)


def test_check_mode_tells_of_a_change_and_writes_nothing(done: SetUp) -> None:
    run = done("--check", "--tags", "resources", awx_image="registry.example.com/gpu/mig-ee:2.0")

    assert run.code == 0, run.output[-3000:]
    assert "changed=1" in run.output
    assert run.writes == []


def test_a_secret_is_written_again_only_when_asked(done: SetUp) -> None:
    new = {**SECRETS, "MIG_SSH_KEY": "new-key-that-nobody-may-see", "CONTROLLER_OAUTH_TOKEN": TOKEN}

    kept = done("--tags", "credentials", given=new)
    replaced = done("--tags", "credentials", "-vvv", given=new, awx_update_secrets="true")

    assert (kept.code, kept.writes) == (0, [])
    assert replaced.code == 0
    assert done.awx.named("credentials", "MIG nodes")["inputs"]["ssh_key_data"] == "new-key-that-nobody-may-see"
    assert "new-key-that-nobody-may-see" not in replaced.output
    assert_nothing_is_told(replaced)


def test_whoever_has_no_secrets_can_change_the_rest(done: SetUp) -> None:
    run = done(
        *("--tags", "schedule", "--skip-tags", "credentials"),
        given={"CONTROLLER_OAUTH_TOKEN": TOKEN},
        awx_drift_enabled="false",
    )

    assert run.code == 0, run.output[-3000:]
    assert not done.awx.named("schedules", "MIG drift, every night")["enabled"]
    assert done.awx.named("credentials", "MIG nodes")["inputs"]["ssh_key_data"] == SECRETS["MIG_SSH_KEY"]


def test_tokens_that_a_password_got_are_given_back(done: SetUp) -> None:
    given = {"CONTROLLER_USERNAME": "admin", "CONTROLLER_PASSWORD": PASSWORD, **SECRETS}

    run = done("--tags", "schedule", "-vvv", given=given)

    assert run.code == 0, run.output[-3000:]
    assert "POST /api/v2/tokens/" in run.writes
    assert done.awx.tokens == {}
    assert "made-for-a-password" not in run.output
    assert_nothing_is_told(run)


def test_a_token_in_a_variable_counts_and_is_not_told(done: SetUp) -> None:
    run = done(
        "--tags", "schedule", "-vvv", given={"FROM_A_VAULT": TOKEN, **SECRETS},
        awx_controller_token="{{ lookup('ansible.builtin.env', 'FROM_A_VAULT') }}",
    )  # fmt: skip

    assert (run.code, run.writes) == (0, []), run.output[-3000:]
    assert_nothing_is_told(run)


def test_notifications_are_attached_when_they_are_named(done: SetUp) -> None:
    done.awx.add("notification_templates", "GPU on call")

    run = done("--tags", "templates,workflow", awx_notify=["GPU on call"])

    assert run.code == 0, run.output[-3000:]
    audit = done.awx.named("job_templates", "MIG audit")
    workflow = done.awx.named("workflow_job_templates", "MIG rollout")
    assert done.awx.related(audit, "notification_templates_error") == ["GPU on call"]
    assert done.awx.related(workflow, "notification_templates_approvals") == ["GPU on call"]


def test_playbooks_may_be_in_a_folder_of_the_project(done: SetUp) -> None:
    done.awx.playbooks = {f"ops/{name}" for name in done.awx.playbooks}

    run = done("--tags", "templates", awx_playbook_folder="ops/")

    assert run.code == 0, run.output[-3000:]
    assert {item["playbook"] for item in done.awx.objects["job_templates"].values()} == {
        "ops/mig.yml",
        "ops/audit.yml",
        "ops/rollback.yml",
    }


# --- what is refused before AWX is asked ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"awx_organization": " "}, "awx_organization is not set: the name of an organization that is in AWX."),
        ({"awx_canary": ""}, "awx_canary is not set: the hosts that go first in the workflow"),
        ({"awx_profiles": "all-1g,all-2g"}, "awx_profiles has to be a list. With -e that is said in JSON,"),
        ({"awx_notify": "GPU on call"}, "awx_notify has to be a list."),
        ({"awx_plan": "MIG apply"}, "The name MIG apply is used twice."),
        ({"awx_questions": ["mig_profil"]}, "There is no question for mig_profil. There are questions for mig_"),
        ({"awx_audit_questions": []}, "awx_audit_questions is empty, and AWX has no survey without a question."),
        ({"awx_answers": {"mig_preflight": "lax"}}, "awx_answers.mig_preflight is lax, but the survey offers strict,"),
        ({"awx_answers": {"mig_evict": True}}, "awx_answers.mig_evict is True, but the survey offers none,"),
        ({"awx_image_pull": "sometimes"}, "value of awx_image_pull must be one of: always, missing, never"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_what_can_be_known_to_be_wrong_is_said_before_awx_is_asked(
    empty: SetUp, variables: dict[str, t.Any], said: str
) -> None:
    run = empty(**variables)

    assert run.code == 2
    assert said in " ".join(run.output.split())
    assert run.asked == []


def test_a_secret_that_was_not_found_is_named_before_awx_is_asked(empty: SetUp) -> None:
    given = {"CONTROLLER_OAUTH_TOKEN": TOKEN, **SECRETS, "MIG_SSH_KEY": ""}

    run = empty(given=given)

    assert run.code == 2
    assert "The credential MIG nodes has no value for ssh_key_data: its lookup found nothing." in run.output
    assert run.asked == []
    assert_nothing_is_told(run)


def test_a_secret_that_is_not_a_table_of_fields_is_refused_and_not_told(empty: SetUp) -> None:
    run = empty(
        "-vvv",
        awx_credentials=[
            {"name": "MIG nodes", "type": "Machine", "inputs": "{{ lookup('ansible.builtin.env', 'MIG_SSH_KEY') }}"}
        ],
    )

    assert run.code == 2
    assert "awx_credentials" in run.output
    assert run.asked == []
    assert_nothing_is_told(run)


# --- what AWX refuses -------------------------------------------------------------------------------------------


def test_an_organization_that_is_missing_is_not_made(empty: SetUp) -> None:
    run = empty(awx_organization="Elsewhere", awx_credentials=[], awx_image_credential="")

    assert run.code == 2
    assert "Execution environment: Request to /api/v2/organizations/?name=Elsewhere returned 0 items" in run.output
    assert "Make that organization in AWX, or name one that is there in awx_organization." in run.output
    assert run.writes == []


def test_a_token_that_awx_does_not_know_is_not_told(empty: SetUp) -> None:
    run = empty("-vvv", given={"CONTROLLER_OAUTH_TOKEN": f"{TOKEN}-revoked", **SECRETS})

    assert run.code == 2
    assert "AWX does not know this token or password. Check CONTROLLER_OAUTH_TOKEN" in run.output
    assert run.writes == []
    assert_nothing_is_told(run)


def test_a_password_that_awx_does_not_know_is_not_told(empty: SetUp) -> None:
    given = {"CONTROLLER_USERNAME": "admin", "CONTROLLER_PASSWORD": f"{PASSWORD}-of-last-year", **SECRETS}

    run = empty("-vvv", given=given)

    assert run.code == 2
    assert "AWX does not know this user or password." in run.output
    assert_nothing_is_told(run)


def test_an_awx_that_does_not_answer_is_named(empty: SetUp) -> None:
    run = empty(awx_controller_host="http://127.0.0.1:1")

    assert run.code == 2
    assert "http://127.0.0.1:1/api/v2/" in run.output
    assert "Check CONTROLLER_HOST, or awx_controller_host, and that AWX can be reached from here." in run.output


def test_check_mode_on_an_empty_awx_says_why_it_cannot_go_on(empty: SetUp) -> None:
    run = empty("--check", "--tags", "resources", "--skip-tags", "credentials")

    assert run.code == 2
    assert "In check mode nothing is made, and this needs something that is not there yet." in run.output
    assert run.writes == []


def test_a_project_that_cannot_be_updated_says_where_to_look(empty: SetUp) -> None:
    empty.awx.update_of_project = "failed"

    run = empty("--tags", "resources")

    assert run.code == 2
    assert "Project: Project update failed Look at the last update of the project in AWX" in run.output
    assert empty.awx.names("inventories") == []


def test_a_project_without_the_playbooks_says_which_are_needed(done: SetUp) -> None:
    done.awx.playbooks.remove("audit.yml")
    del done.awx.objects["job_templates"][done.awx.named("job_templates", "MIG audit")["id"]]

    run = done("--tags", "templates")

    assert run.code == 2
    assert "Playbook not found for project." in run.output
    assert "The project has to have the playbooks of examples/awx/project in its root" in run.output


def test_a_rule_that_awx_does_not_accept_is_told_in_its_words(done: SetUp) -> None:
    run = done("--tags", "schedule", awx_drift_rule="DTSTART:20260101T020000Z RRULE:FREQ=DAILY")

    assert run.code == 2
    assert "INTERVAL required in rrule." in run.output
    assert "What was made before this stays; correct what is wrong and run this again." in run.output


def test_a_notification_that_is_missing_is_not_made(done: SetUp) -> None:
    run = done("--tags", "templates", awx_notify=["GPU on call"])

    assert run.code == 2
    assert "Make that notification template in AWX, or take it out of awx_notify." in run.output


def test_a_run_that_was_ended_halfway_is_completed_by_the_next(done: SetUp) -> None:
    awx, kind = done.awx, "workflow_job_template_nodes"
    for name in ("approval", "canary", "plan"):
        del awx.objects[kind][awx.named(kind, name)["id"]]

    run = done("--tags", "workflow")

    assert run.code == 0, run.output[-3000:]
    assert awx.names(kind) == ["approval", "canary", "fleet", "plan"]
    assert awx.related(awx.named(kind, "canary"), "success_nodes") == ["approval"]
    assert awx.related(awx.named(kind, "approval"), "success_nodes") == ["fleet"]
