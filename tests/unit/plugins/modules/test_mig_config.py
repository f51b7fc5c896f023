# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""mig_config decides before it touches: what it answers for a node that it only reads."""

from __future__ import annotations

import json
import sys
import zipfile

import pytest

from ansible_collections.gpufleet.mig.plugins.module_utils.engine import (
    configs,
    foresight,
    holders,
    layouts,
    reset,
    state,
)
from ansible_collections.gpufleet.mig.plugins.module_utils.engine.model import DriverError, Owner, Placement, Step
from ansible_collections.gpufleet.mig.plugins.modules import mig_config, mig_info
from ansible_collections.gpufleet.mig.tests.unit.plugins.module_utils.engine import boards

A100 = "a100-sxm4-40gb"
ENGINE = "ansible_collections.gpufleet.mig.plugins.module_utils.engine"
SEVEN = [("1g.5gb", start) for start in range(7)]


def a100(index=0, **fields):
    return boards.gpu(A100, index=index, **fields)


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """Whatever runs on the machine of the tests has nothing open on the host of a test."""
    monkeypatch.setattr(holders, "survey", lambda *_arguments, **_options: holders.Survey(()))
    monkeypatch.setattr(reset, "obstacles", lambda *_arguments, **_options: ())


@pytest.fixture
def archive(tmp_path):
    """A binding as the action brings it."""
    path = tmp_path / "binding.zip"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("pynvml.py", "NVML_SUCCESS = 0\n")
    return str(path)


# --- nothing to do ---


def test_a_node_where_there_is_nothing_to_do_needs_nothing_that_plans_or_changes(host, monkeypatch):
    unneeded = "planner foresight transaction worker refusals holders owners clients reset layouts kinds"
    for name in unneeded.split():
        monkeypatch.setitem(sys.modules, f"{ENGINE}.{name}", None)  # importing it fails
    host.node = boards.node(a100(instances=SEVEN))
    result = host.run(mig_config, label="all-1g.5gb")
    assert result["verdict"] == "match"
    assert result["changed"] is False
    assert result["converged"] is True
    assert result["persisted"] == "match"
    assert result["msg"] == "all-1g.5gb (generated): as wanted; 1 GPU with 7 MIG devices."
    assert result["before"] == result["after"]
    assert not {"plan", "diff", "uuid_map", "rolled_back"} & set(result)


def test_a_node_where_there_is_nothing_to_do_is_left_without_lock_and_result(host, tmp_path):
    host.node = boards.node(a100(instances=SEVEN))
    host.run(mig_config, label="all-1g.5gb")
    assert [path.name for path in (tmp_path / "state").iterdir()] == ["wanted.json"]


def test_gpus_left_alone_are_listed_and_said(host):
    host.node = boards.node(a100(mode=False), a100(1), boards.gpu("tesla-t4", index=2))
    entries = [{"devices": [0], "mig-enabled": False, "mig-devices": {}}]
    result = host.run(mig_config, config=entries)
    assert result["unlisted"] == [1]
    assert "left alone: GPU 1" in result["msg"]


def test_gpus_that_cannot_do_mig_are_skipped_and_said(host):
    host.node = boards.node(a100(mode=False), boards.gpu("tesla-t4", index=1))
    result = host.run(mig_config, label="all-disabled")
    assert result["without_mig"] == [1]
    assert "without MIG: GPU 1" in result["msg"]


def test_no_result_says_skipped_which_ansible_takes_for_a_task_that_did_not_run(host):
    host.node = boards.node(a100(mode=False), boards.gpu("tesla-t4", index=1))
    assert "skipped" not in host.run(mig_config, label="all-disabled")


# --- what would be done ---


def test_check_mode_shows_plan_and_pictures(host):
    host.node = boards.node(a100(mode=False), a100(1, instances=SEVEN))
    result = host.run(mig_config, check_mode=True, label="all-1g.5gb")
    assert result["changed"] is True
    assert result["altered"] is False
    assert result["verdict"] == "differ"
    assert [plan["gpu"] for plan in result["plan"]] == [0]
    assert result["diff"]["before"] != result["diff"]["after"]
    assert len(result["diff"]["after"].splitlines()) == 2
    assert [len(gpu["instances"]) for gpu in result["before"]] == [0, 7]
    assert [len(gpu["instances"]) for gpu in result["after"]] == [7, 7]
    assert result["msg"] == "all-1g.5gb (generated): would change 1 GPU; 2 GPUs with 14 MIG devices."
    assert any("GPU 0" in sentence and "MIG is off" in sentence for sentence in result["differences"])


def test_check_mode_predicts_that_a_pending_mode_stops_the_run(host):
    host.node = boards.node(a100(mode=False, mode_pending=True, architecture="ampere"))
    result = host.run(mig_config, check_mode=True, label="all-1g.5gb")
    assert result["changed"] is False
    assert result["verdict"] == "differ"
    assert result["reset_required"] == [0]
    assert "reset GPU 0, which allow_reset has done here, or reboot the node, then run again" in result["msg"]


def test_check_mode_shows_what_comes_after_a_reset_that_is_allowed(host):
    host.node = boards.node(a100(mode=False, mode_pending=True, architecture="ampere"))
    result = host.run(mig_config, check_mode=True, label="all-1g.5gb", allow_reset=True)
    assert (result["changed"], result["reset_required"]) == (True, [])
    assert [len(gpu["instances"]) for gpu in result["after"]] == [7]
    assert "would reset GPU 0, would change 1 GPU" in result["msg"]


def test_check_mode_counts_the_modes_that_are_switched_although_another_one_is_pending(host):
    host.node = boards.node(a100(mode=False, mode_pending=True, architecture="ampere"), a100(1, mode=False))
    result = host.run(mig_config, check_mode=True, label="all-1g.5gb")
    assert (result["changed"], result["verdict"], result["reset_required"]) == (True, "differ", [0])


def test_check_mode_refuses_what_a_real_run_would_refuse(host):
    host.node = boards.node(a100(instances=[("7g.40gb", 0)], busy={0}))
    result = host.run(mig_config, check_mode=True, label="all-1g.5gb")
    assert result["failed"]
    assert result["altered"] is False
    assert result["gpu"] == 0
    assert "in use" in result["msg"]


# --- failures ---


def test_a_failure_of_the_driver_has_call_and_error_and_says_that_nothing_was_touched(host):
    host.node = DriverError("nvmlInit failed.", call="nvmlInit", error="DRIVER_NOT_LOADED")
    result = host.run(mig_config, label="all-disabled")
    assert result["failed"]
    assert (result["call"], result["error"], result["altered"]) == ("nvmlInit", "DRIVER_NOT_LOADED", False)


def test_a_missing_binding_is_said_to_the_action(host):
    host.node = DriverError("No binding.", call="import pynvml", error="BINDING_MISSING")
    assert host.run(mig_config, label="all-disabled")["binding_missing"] is True


def test_a_gpu_that_does_not_answer_is_named(host):
    host.node = boards.node(a100(mode=None))
    result = host.run(mig_config, label="all-disabled")
    assert result["failed"]
    assert result["gpu"] == 0
    assert result["uuid"].startswith("GPU-")
    assert result["pci_bus_id"]


@pytest.mark.parametrize("wish", [{}, {"label": "a", "config": [{}]}, {"label": "a", "unlisted": "maybe"}])
def test_options_that_do_not_go_together_are_refused(host, wish):
    assert host.run(mig_config, **wish)["failed"]


# --- labels by kind of GPU ---


def mixed():
    return boards.node(
        a100(mode=True, instances=SEVEN),
        boards.gpu("h100-sxm5-80gb", index=1, instances=[("3g.40gb", 0), ("3g.40gb", 4)]),
        boards.gpu("tesla-t4", index=2),
    )


@pytest.mark.parametrize("key", ["NVIDIA A100-SXM4-40GB", "a100-sxm4-40gb", "0x20B010DE", "0x20b0"])
def test_a_kind_of_gpu_is_named_by_product_or_device_id(host, key):
    host.node = mixed()
    result = host.run(mig_config, label_by_gpu={key: "all-1g.5gb"})
    assert result["verdict"] == "match"
    assert result["unlisted"] == [1]
    assert result["without_mig"] == [2]


def test_each_kind_of_gpu_has_its_own_label(host):
    host.node = mixed()
    by_gpu = {"NVIDIA A100-SXM4-40GB": "all-1g.5gb", "NVIDIA H100 80GB HBM3": "2x3g.40gb"}
    result = host.run(mig_config, label_by_gpu=by_gpu)
    assert result["verdict"] == "match"
    assert result["label"] == "all-1g.5gb + 2x3g.40gb"
    assert result["label_source"] == "generated + count"


def test_the_label_is_for_gpus_that_no_key_names(host):
    host.node = mixed()
    result = host.run(mig_config, check_mode=True, label="all-disabled", label_by_gpu={"0x20B0": "all-1g.5gb"})
    assert [plan["gpu"] for plan in result["plan"]] == [1]


def test_a_key_wins_over_the_label(host):
    host.node = mixed()
    result = host.run(mig_config, label="all-disabled", gpus=["0"], label_by_gpu={"0x20B0": "all-1g.5gb"})
    assert result["verdict"] == "match"


def test_unlisted_counts_for_gpus_that_no_key_names(host):
    host.node = mixed()
    off = host.run(mig_config, check_mode=True, unlisted="disable", label_by_gpu={"0x20B0": "all-1g.5gb"})
    assert [(plan["gpu"], plan["mig"]) for plan in off["plan"]] == [(1, False)]
    refused = host.run(mig_config, unlisted="fail", label_by_gpu={"0x20B0": "all-1g.5gb"})
    assert refused["failed"]
    assert "GPU 1 (NVIDIA H100 80GB HBM3" in refused["msg"]


def test_two_keys_for_one_gpu_that_disagree_are_refused(host):
    host.node = mixed()
    result = host.run(mig_config, label_by_gpu={"0x20B0": "all-1g.5gb", "A100-SXM4-40GB": "all-disabled"})
    assert result["failed"]
    assert "disagrees about GPU 0 (NVIDIA A100-SXM4-40GB, 0x20B010DE)" in result["msg"]
    assert "'all-1g.5gb' and 'all-disabled'" in result["msg"]
    assert result["gpu"] == 0


def test_two_spellings_of_one_kind_that_disagree_are_refused(host):
    host.node = mixed()
    result = host.run(mig_config, label_by_gpu={"NVIDIA A30": "all-1g", "a30": "all-disabled"})
    assert result["failed"]
    assert "names one kind of GPU twice" in result["msg"]


def test_keys_that_match_no_gpu_of_the_node_leave_it_alone(host):
    host.node = boards.node(a100(instances=[("3g.20gb", 4)]))
    result = host.run(mig_config, label_by_gpu={"NVIDIA A30": "all-1g.6gb"})
    assert (result["changed"], result["verdict"], result["unlisted"]) == (False, "match", [0])
    assert "left alone: GPU 0" in result["msg"]


def test_keys_that_match_no_gpu_are_an_error_when_unlisted_gpus_are(host):
    host.node = boards.node(a100())
    result = host.run(mig_config, label_by_gpu={"NVIDIA A30": "all-1g.6gb"}, unlisted="fail")
    assert "GPU 0 (NVIDIA A100-SXM4-40GB, 0x20B010DE)" in result["msg"]


def test_a_host_without_mig_follows_a_mapping_as_it_follows_a_label(host):
    host.node = boards.node(boards.gpu("tesla-t4"))
    result = host.run(mig_config, label_by_gpu={"NVIDIA A30": "all-1g"}, label="all-disabled")
    assert (result["verdict"], result["without_mig"]) == ("match", [0])


@pytest.mark.parametrize("key", ["0x20B0", "0x20b010de", "20B010DE", str(0x20B010DE), "a100-sxm4-40gb"])
def test_a_kind_is_named_by_its_id_in_every_spelling_also_as_the_number_that_yaml_makes_of_it(host, key):
    host.node = boards.node(a100(mode=False))
    result = host.run(mig_config, check_mode=True, label_by_gpu={key: "all-1g.5gb"}, label="all-disabled")
    assert result["changed"] is True


@pytest.mark.parametrize("key", ["0x20", "0xGGGG", "0x20B01234"])
def test_a_key_that_is_no_device_id_is_refused(host, key):
    host.node = boards.node(a100())
    assert f"'{key}'" in host.run(mig_config, label_by_gpu={key: "all-disabled"})["msg"]


@pytest.mark.parametrize("label", [["all-1g"], {"all-1g": 1}, "", False, None, 7])
def test_a_label_by_gpu_that_is_no_text_is_refused_with_its_key(host, label):
    host.node = boards.node(boards.gpu("a30-24gb"))
    result = host.run(mig_config, label_by_gpu={"NVIDIA A30": label}, label="all-disabled")
    assert result["failed"]
    assert "'NVIDIA A30'" in result["msg"]


def test_gpus_that_are_disabled_because_nobody_lists_them_are_not_said_to_be_left_alone(host):
    host.node = boards.node(a100(), a100(index=1, instances=[("3g.20gb", 4)]))
    entries = [{"devices": [0], "mig-enabled": True, "mig-devices": {"1g.5gb": 7}}]
    result = host.run(mig_config, check_mode=True, config=entries, unlisted="disable")
    assert result["unlisted"] == [1]
    assert "left alone" not in result["msg"]


def test_a_relative_state_dir_is_refused(host):
    host.node = boards.node(a100())
    host.state_dir, host.remembers = "rel/ative", False
    assert "must be an absolute path" in host.run(mig_config, label="all-1g")["msg"]


# --- the binding ---


def test_a_binding_that_came_along_is_installed_and_byte_compiled(host, archive, tmp_path):
    host.node = boards.node(a100(mode=False))
    result = host.run(mig_config, label="all-disabled", _binding=archive)
    assert result["binding"] == "installed"
    assert result["changed"] is False
    folder = tmp_path / "state" / "binding"
    assert sorted(path.name for path in folder.iterdir()) == ["__pycache__", "pynvml.py"]
    assert [path.suffix for path in (folder / "__pycache__").iterdir()] == [".pyc"]
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700


def test_check_mode_keeps_no_binding(host, archive, tmp_path):
    host.remembers = False
    host.node = boards.node(a100(mode=False))
    assert host.run(mig_config, check_mode=True, label="all-disabled", _binding=archive)["binding"] == "payload"
    assert not (tmp_path / "state").exists()


def test_a_refused_wish_keeps_no_binding(host, archive, tmp_path):
    host.remembers = False
    host.node = boards.node(a100(mode=False))
    assert host.run(mig_config, label="all-nonsense", _binding=archive)["failed"]
    assert not (tmp_path / "state").exists()


def test_an_installed_binding_is_used_before_the_one_of_the_node(host, tmp_path):
    folder = tmp_path / "state" / "binding"
    folder.mkdir(parents=True)
    host.binding.__file__ = str(folder / "pynvml.py")
    host.node = boards.node(a100(mode=False))
    assert host.run(mig_config, label="all-disabled")["binding"] == "installed"
    assert host.binding_places == (str(folder),)


def test_a_binding_that_cannot_be_kept_is_a_warning(host, archive, tmp_path, monkeypatch):
    warnings = []
    monkeypatch.setattr("ansible.module_utils.basic.AnsibleModule.warn", lambda _module, text: warnings.append(text))
    host.node = boards.node(a100(mode=False))
    host.remember()
    (tmp_path / "state" / "binding").touch()
    result = host.run(mig_config, label="all-disabled", _binding=archive)
    assert result["binding"] == "payload"
    assert result["verdict"] == "match"
    assert "could not be kept" in str(warnings)


def test_placements_are_plain_data_in_results(host):
    host.node = boards.node(a100(instances=[("3g.20gb", 4)]))
    result = host.run(mig_config, label="3g.20gb")
    assert result["after"][0]["instances"][0]["placement"] == Placement(4, 4)._asdict()


def test_a_gpu_that_is_passed_over_although_its_model_can_do_mig_is_a_warning_with_what_it_needs(host, monkeypatch):
    warnings = []
    monkeypatch.setattr("ansible.module_utils.basic.AnsibleModule.warn", lambda _module, text: warnings.append(text))
    workstation = boards.gpu("tesla-t4", index=1)._replace(pci_device_id=0x2BB110DE)
    host.node = boards.node(a100(mode=False), workstation, boards.gpu("tesla-t4", index=2))
    result = host.run(mig_config, label="all-disabled")
    assert result["without_mig"] == [1, 2]
    [warning] = warnings
    assert warning.startswith("GPU 1 ")
    assert "its model can do MIG" in warning
    assert [bool(gpu["hint"]) for gpu in host.run(mig_info)["gpus"]] == [False, True, False]


# --- what the node remembers -----------------------------------------------------------------------------------------


def test_a_layout_that_is_not_to_be_remembered_is_as_wanted_without_a_record(host, tmp_path):
    host.node, host.remembers = boards.node(a100(instances=SEVEN)), False
    would = host.run(mig_config, check_mode=True, label="all-1g.5gb")
    assert (would["changed"], would["converged"]) == (True, False)
    assert "as wanted, and would be remembered for the next boot" in would["msg"]
    for check_mode in (True, False):
        result = host.run(mig_config, check_mode=check_mode, label="all-1g.5gb", remember=False)
        assert (result["changed"], result["converged"], result["persisted"]) == (False, True, "absent")
        assert result["msg"] == "all-1g.5gb (generated): as wanted; 1 GPU with 7 MIG devices."
    assert not (tmp_path / "state").exists()


def test_a_node_that_is_as_wanted_but_was_never_remembered_is_remembered_once(host):
    host.node, host.remembers = boards.node(a100(instances=SEVEN)), False
    checked = host.run(mig_config, check_mode=True, label="all-1g.5gb")
    assert (checked["changed"], checked["converged"], checked["persisted"]) == (True, False, "absent")
    assert "as wanted, and would be remembered for the next boot" in checked["msg"]
    done = host.run(mig_config, label="all-1g.5gb")
    assert (done["changed"], done["altered"], done["persisted"]) == (True, False, "match")
    assert "as wanted, and remembered for the next boot now" in done["msg"]
    again = host.run(mig_config, label="all-1g.5gb")
    assert (again["changed"], again["converged"]) == (False, True)


def test_only_the_gpus_of_the_task_have_to_be_remembered(host):
    host.node, host.remembers = boards.node(a100(instances=SEVEN), a100(1, instances=SEVEN)), False
    host.run(mig_config, label="all-1g.5gb", gpus=["0"])
    assert host.run(mig_config, label="all-1g.5gb", gpus=["0"])["converged"] is True
    assert host.run(mig_config, check_mode=True, label="all-1g.5gb")["persisted"] == "differ"


def test_a_damaged_record_is_named_with_what_to_do_and_nothing_is_changed(host, tmp_path):
    host.node = boards.node(a100(instances=SEVEN))
    host.remember()
    (tmp_path / "state" / "wanted.json").write_text("{")
    host.remembers = False
    result = host.run(mig_config, label="all-1g.5gb")
    assert result["failed"]
    assert result["altered"] is False
    assert result["file"].endswith("wanted.json")
    assert "move it away with" in result["msg"]


# --- changes of others -----------------------------------------------------------------------------------------------


def unfinished(host, *, before=(), target=SEVEN, gpu=None):
    """Leave a change of GPU 0 unfinished on the host."""
    gpu = gpu or a100()
    was, goal = gpu._replace(instances=a100(instances=before).instances), a100(instances=target)
    made = tuple(
        step
        for gi in goal.instances
        for step in (
            Step("create_gi", 0, profile_id=gi.profile.id, placement=gi.placement, name=gi.profile.name),
            Step("create_ci", 0, placement=gi.placement, slices=1, name=gi.profile.name),
        )
    )
    state.write_journal(
        host.places,
        state.Journal(
            txid="20260101T000000Z-00000001",
            boot_id=state.boot_id(),
            started="2026-01-01T00:00:00+00:00",
            who="alice",
            what="mig_config label all-1g.5gb",
            label="all-1g.5gb",
            before=(layouts.dump(was),),
            target=(layouts.dump(goal),),
            steps=made,
            gpus=(0,),
        ),
    )


def test_check_mode_shows_that_an_unfinished_change_would_be_finished(host):
    host.node = boards.node(a100(instances=SEVEN[:3]))
    unfinished(host)
    result = host.run(mig_config, check_mode=True, recover="forward")
    assert result["changed"] is True
    assert result["recovered"]["direction"] == "forward"
    assert [len(gpu["instances"]) for gpu in result["after"]] == [7]
    assert (
        "would end the unfinished change 20260101T000000Z-00000001 (mig_config label all-1g.5gb) of alice"
        in result["msg"]
    )


def test_check_mode_shows_that_an_unfinished_change_would_be_taken_back(host):
    host.node = boards.node(a100(instances=SEVEN[:3]))
    unfinished(host)
    result = host.run(mig_config, check_mode=True, recover="back", label="all-1g.5gb")
    assert result["changed"] is True
    assert result["recovered"]["direction"] == "back"
    assert [gpu["instances"] for gpu in result["after"]] == [[]]
    assert "would be taken back" in result["msg"]


def test_the_wish_of_a_task_wins_over_the_unfinished_change_on_its_gpus_which_is_finished_on_the_others(host):
    host.node = boards.node(a100(instances=SEVEN[:3]), a100(1))
    unfinished(host)
    result = host.run(mig_config, check_mode=True, label="2x3g.20gb", gpus=["1"])
    assert [len(gpu["instances"]) for gpu in result["after"]] == [7, 2]
    result = host.run(mig_config, check_mode=True, label="2x3g.20gb")
    assert [len(gpu["instances"]) for gpu in result["after"]] == [2, 2]


def test_a_node_that_reached_the_wish_in_a_change_that_was_not_finished_is_tidied_up(host):
    host.node = boards.node(a100(instances=SEVEN))
    unfinished(host)
    result = host.run(mig_config, label="all-1g.5gb")
    assert (result["verdict"], result["recovered"]["direction"]) == ("match", "forward")
    assert state.in_progress(host.places) is None
    assert host.run(mig_config, label="all-1g.5gb")["converged"] is True


def test_to_recover_where_nothing_is_unfinished_is_no_change(host):
    host.node = boards.node(a100(instances=SEVEN))
    result = host.run(mig_config, recover="back")
    assert (result["changed"], result["converged"]) == (False, True)
    assert result["msg"] == "There is no unfinished change."


def test_a_run_that_finds_another_at_work_says_who_it_is(host):
    host.node = boards.node(a100())
    with state.Lock.acquire(host.places, "20260101T000000Z-00000002", "bob", "mig_config label all-2g.10gb", 1.0):
        checked = host.run(mig_config, check_mode=True, label="all-1g.5gb")
        refused = host.run(mig_config, label="all-1g.5gb", lock_timeout=0)
    assert checked["in_progress"]["running"] is True
    assert (
        "(mig_config label all-2g.10gb) of bob is running on this node. What is left to do then cannot be planned"
        in checked["msg"]
    )
    assert refused["failed"]
    assert refused["altered"] is False
    assert refused["in_progress"]["who"] == "bob"
    assert "bob" in refused["msg"]
    assert "lock_timeout" in refused["msg"]


def untold(host, label="all-1g.5gb"):
    """Leave the result of a change from nothing to what the node shows, whose caller is gone."""
    node = host.node
    before = [layouts.dump(gpu._replace(instances=())) for gpu in node.gpus]
    state.write_result(
        host.places,
        {
            "txid": "20260101T000000Z-00000003",
            "wish": foresight.digest(configs.resolve(node, label=label)),
            "label": label,
            "changed": True,
            "finished": "2026-01-01T00:00:00+00:00",
            "before": before,
            "uuid_map": {"MIG-old": None},
        },
    )


def test_a_result_that_reached_nobody_is_told_once_by_the_next_run_for_the_same_wish(host):
    host.node = boards.node(a100(instances=SEVEN))
    untold(host)
    told = host.run(mig_config, label="all-1g.5gb")
    assert (told["changed"], told["altered"], told["verdict"]) == (True, False, "match")
    assert told["resumed"]["txid"] == "20260101T000000Z-00000003"
    assert told["uuid_map"] == {"MIG-old": None}
    assert [len(gpu["instances"]) for gpu in told["before"]] == [0]
    assert [len(gpu["instances"]) for gpu in told["after"]] == [7]
    assert told["diff"]["before"] != told["diff"]["after"]
    again = host.run(mig_config, label="all-1g.5gb")
    assert (again["changed"], again["converged"]) == (False, True)


def test_a_result_that_reached_nobody_stays_when_it_is_for_another_wish_or_only_looked_at(host):
    host.node = boards.node(a100(instances=SEVEN))
    untold(host)
    looked = host.run(mig_config, check_mode=True, label="all-1g.5gb")
    assert (looked["changed"], looked["converged"]) == (True, False)
    assert "would tell what the change 20260101T000000Z-00000003 did" in looked["msg"]
    assert host.run(mig_config, label="7x1g.5gb")["converged"] is True
    assert state.read_result(host.places) is not None


def test_a_result_stays_for_the_next_run_when_the_connection_is_gone(host, monkeypatch):
    host.node = boards.node(a100(instances=SEVEN))
    untold(host)

    def gone():
        raise BrokenPipeError

    with monkeypatch.context() as connection:
        connection.setattr(sys.stdout, "flush", gone)
        with pytest.raises(BrokenPipeError):
            host.run(mig_config, label="all-1g.5gb")
    assert state.read_result(host.places) is not None


# --- a driver that hangs ---------------------------------------------------------------------------------------------


def test_a_driver_that_does_not_answer_is_a_failure_in_time_that_says_so(host):
    host.node = None
    result = host.run(mig_config, label="all-1g.5gb", operation_timeout=0.2)
    assert result["failed"]
    assert result["altered"] is False
    assert (result["error"], result["operation"]) == ("NO_ANSWER", "open NVML")
    assert "The driver does not answer" in result["msg"]
    assert "reboot the node" in result["msg"]


@pytest.mark.parametrize("option", ["operation_timeout", "client_timeout"])
@pytest.mark.parametrize("seconds", [0, -1, "nan", 1e9])
def test_a_time_limit_that_is_none_is_refused(host, option, seconds):
    result = host.run(mig_config, label="all-1g.5gb", **{option: seconds})
    assert result["failed"]
    assert option in result["msg"]


# --- exact layouts ---------------------------------------------------------------------------------------------------


def test_what_mig_info_reports_is_a_layout_that_can_be_restored(host):
    saved = boards.node(a100(instances=[("3g.20gb", 4), ("1g.5gb", 1)]), a100(1, mode=False))
    host.node = saved
    layout = host.run(mig_info)
    host.node = boards.node(a100(instances=[("1g.5gb", 0)]), a100(1, mode=False))
    for given in (layout, layout["gpus"], json.dumps(layout["gpus"])):
        result = host.run(mig_config, check_mode=True, layout=json.loads(given) if isinstance(given, str) else given)
        places = [instance["placement"]["start"] for instance in result["after"][0]["instances"]]
        assert (result["changed"], sorted(places), result["label_source"]) == (True, [1, 4], "layout")
    host.node = saved
    assert host.run(mig_config, layout=layout)["converged"] is True


def test_what_mig_config_returned_as_before_is_the_way_back(host):
    was, now = boards.node(a100(instances=SEVEN)), boards.node(a100(instances=[("7g.40gb", 0)]))
    host.node = was
    before = host.run(mig_config, check_mode=True, label="all-7g.40gb")["before"]
    host.node = now
    result = host.run(mig_config, check_mode=True, layout=before)
    assert [len(gpu["instances"]) for gpu in result["after"]] == [7]


def test_a_layout_of_another_board_is_refused_unless_that_is_meant(host):
    host.node = boards.node(a100(instances=SEVEN))
    layout = host.run(mig_info)["gpus"]
    layout[0]["uuid"] = "GPU-00000000-0000-0000-0000-00000000dead"
    host.node = boards.node(a100())
    refused = host.run(mig_config, layout=layout)
    assert refused["failed"]
    assert refused["altered"] is False
    assert "GPU-00000000-0000-0000-0000-00000000dead" in refused["msg"]
    assert host.run(mig_config, check_mode=True, layout=layout, accept_replacement=True)["changed"] is True


def test_a_layout_counts_the_gpus_as_a_label_does(host):
    host.node = boards.node(a100(instances=SEVEN))
    layout = host.run(mig_info)["gpus"]
    assert "expected_gpus says 8" in host.run(mig_config, layout=layout, expected_gpus=8)["msg"]


@pytest.mark.parametrize("layout", [{}, [], "all-1g.5gb", 7, [{"index": 0}], {"gpus": []}])
def test_a_layout_that_is_none_is_refused(host, layout):
    host.node = boards.node(a100())
    result = host.run(mig_config, layout=layout)
    assert result["failed"]
    assert result["altered"] is False
    assert "Traceback" not in result["msg"]


# --- what may be taken away ------------------------------------------------------------------------------------------


def test_a_reserved_instance_is_kept_from_being_destroyed_until_that_is_allowed(host):
    host.node = boards.node(a100(instances=[("7g.40gb", 0)]))
    device = host.node.gpus[0].instances[0].compute[0].uuid
    wish = {"label": "all-1g.5gb", "reservations": [{"device": device, "holder": "Slurm job 4711"}]}
    refused = host.run(mig_config, check_mode=True, **wish)
    assert refused["failed"]
    assert [each["holder"] for each in refused["reservations"]] == ["Slurm job 4711"]
    assert "Slurm job 4711" in refused["msg"]
    assert host.run(mig_config, check_mode=True, evict="reserved", **wish)["changed"] is True


def test_who_is_in_the_way_is_in_the_failure_with_all_that_is_known(host):
    host.node = boards.node(a100(instances=[("7g.40gb", 0)], busy={0}))
    [holder] = host.run(mig_config, check_mode=True, label="all-1g.5gb")["holders"]
    assert holder["gpu"] == 0
    assert {"pid", "name", "kind", "unit", "container", "pod", "job", "listed", "opened"} <= set(holder)


def test_a_plan_for_a_node_whose_pods_leave_passes_over_pods_and_nobody_else(host, monkeypatch):
    """A device plugin has all GPUs open, and so has a pod its GPU: no node would ever come to its drain."""
    host.node = boards.node(a100(mode=False))
    minor = host.node.gpus[0].minor
    pod = holders.OpenDevice(811, "plugin", "/dev/nvidia0", minor, owner=Owner("pod", pod="0a1b"))
    monitoring = holders.OpenDevice(812, "dcgm", "/dev/nvidia0", minor, owner=Owner("unit", unit="dcgm.service"))
    monkeypatch.setattr(holders, "survey", lambda *_arguments, **_options: holders.Survey((pod,)))
    assert "of pod 0a1b" in host.run(mig_config, check_mode=True, label="all-1g.5gb")["msg"]
    assert host.run(mig_config, check_mode=True, label="all-1g.5gb", pods_leave=True)["changed"] is True

    monkeypatch.setattr(holders, "survey", lambda *_arguments, **_options: holders.Survey((pod, monitoring)))
    refused = host.run(mig_config, check_mode=True, label="all-1g.5gb", pods_leave=True)
    assert [holder["pid"] for holder in refused["holders"]] == [812]


def test_clients_are_only_names_of_units(host):
    host.node = boards.node(a100())
    result = host.run(mig_config, label="all-1g.5gb", clients=["$(reboot).service"])
    assert result["failed"]
    assert "no name of a systemd unit" in result["msg"]
