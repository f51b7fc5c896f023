# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""mig_config decides before it touches: what it answers for a node that it only reads."""

from __future__ import annotations

import sys
import zipfile

import pytest

from ansible_collections.gpufleet.mig.plugins.module_utils.engine.model import DriverError, Placement
from ansible_collections.gpufleet.mig.plugins.modules import mig_config
from ansible_collections.gpufleet.mig.tests.unit.plugins.module_utils.engine import boards

A100 = "a100-sxm4-40gb"
ENGINE = "ansible_collections.gpufleet.mig.plugins.module_utils.engine"
SEVEN = [("1g.5gb", start) for start in range(7)]


def a100(index=0, **fields):
    return boards.gpu(A100, index=index, **fields)


@pytest.fixture
def archive(tmp_path):
    """A binding as the action brings it."""
    path = tmp_path / "binding.zip"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("pynvml.py", "NVML_SUCCESS = 0\n")
    return str(path)


# --- nothing to do ---


def test_a_node_where_there_is_nothing_to_do_needs_nothing_that_plans_or_changes(host, monkeypatch):
    for name in ("planner", "transaction", "worker", "refusals", "holders", "clients", "reset", "layouts", "kinds"):
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
    assert "reset GPU 0 or reboot the node, then run again" in result["msg"]


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
