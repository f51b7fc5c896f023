# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Containers are told of exactly what there is: in order, proven, and told to have changed only when it has."""

from __future__ import annotations

import json
import os
import typing as t

import pytest

from ansible_collections.gpufleet.mig.plugins.module_utils.engine import cdi
from ansible_collections.gpufleet.mig.plugins.module_utils.engine.model import Node, Problem
from ansible_collections.gpufleet.mig.tests.unit.plugins.module_utils.engine import boards, fake_nvidia_ctk
from ansible_collections.gpufleet.mig.tests.unit.plugins.module_utils.engine.cdi_host import A100, Host

OTHER = "MIG-00000000-0000-0000-0000-000000000000"


@pytest.fixture
def host(tmp_path, monkeypatch):
    return Host(tmp_path, monkeypatch)


# --- the chain -------------------------------------------------------------------------------------------------------


def test_every_mig_device_is_in_the_specification_by_uuid_and_by_index(host):
    outcome = host.refresh()
    assert outcome.changed
    assert outcome.written == (cdi.SPEC,)
    assert outcome.devices == tuple(host.uuids())
    assert len(outcome.missing) == 4
    assert set(host.names()) == {*host.uuids(), "0:0", "0:1", "all"}
    assert os.stat(host.file()).st_mode & 0o777 == 0o644


def test_a_second_run_changes_nothing_and_writes_nothing(host):
    host.refresh()
    before = host.file().stat()
    outcome = host.refresh()
    assert (outcome.changed, outcome.written, outcome.missing) == (False, (), ())
    assert host.file().stat().st_mtime_ns == before.st_mtime_ns
    assert host.file().stat().st_ino == before.st_ino
    assert outcome.msg == "Containers are told of what there is: 2 MIG devices and 0 whole GPUs."


def test_check_mode_tells_and_touches_nothing(host):
    outcome = host.refresh(check=True)
    assert outcome.changed
    assert len(outcome.missing) == 4
    assert "would be" in outcome.msg
    assert not host.file().exists()
    assert list((host.path / "dev/nvidia-caps").iterdir()) == []
    host.refresh()
    assert not host.refresh(check=True).changed


def test_after_another_layout_what_is_gone_is_gone_from_it(host):
    host.refresh()
    former = host.uuids()
    host.have([("3g.20gb", 4)])
    outcome = host.refresh()
    assert outcome.written == (cdi.SPEC,)
    assert set(host.names()) == {*host.uuids(), "0:0", "all"}
    assert not set(former) & set(host.names())


def test_the_same_devices_with_another_driver_are_a_change_of_the_content(host):
    host.refresh()
    host.behave(library="/usr/lib/libcuda.so.580")
    assert host.refresh().written == (cdi.SPEC,)
    assert "580" in host.file().read_text()
    assert not host.refresh().changed


def test_what_was_there_by_another_program_in_yaml_is_right_when_it_says_the_same(host):
    host.refresh()
    data = json.loads(host.file().read_text())
    host.file().write_text(fake_nvidia_ctk.as_yaml(data))
    assert not host.refresh().changed
    assert host.file().read_text().startswith("---")


def test_a_specification_that_cannot_be_understood_is_made_anew(host):
    host.file().parent.mkdir(parents=True)
    host.file().write_text("kind: nvidia.com/gpu\ndevices: [{name: *x}]\n")
    assert host.refresh().written == (cdi.SPEC,)
    assert set(host.uuids()) <= set(host.names())


def test_a_node_with_whole_gpus_beside_mig_has_both(host):
    host.have([("1g.5gb", 0)], [boards.gpu("tesla-t4", index=1, mode=None)._replace(minor=1)])
    outcome = host.refresh()
    assert outcome.devices == tuple(host.uuids())
    assert {"1", host.node.gpus[1].uuid} <= set(host.names())
    assert "1 MIG device and 1 whole GPU" in outcome.msg


# --- MIG on without instances (B50) ----------------------------------------------------------------------------------


def test_mig_on_without_instances_is_a_state_and_no_failure(host):
    host.have([])
    outcome = host.refresh()
    assert (outcome.changed, outcome.empty) == (False, True)
    assert outcome.msg.startswith("MIG is on and there is no instance")
    assert host.calls("nvidia-ctk") == []


@pytest.mark.parametrize("check", [True, False])
def test_and_a_specification_of_what_was_there_goes(host, check):
    host.refresh()
    host.have([])
    outcome = host.refresh(check=check)
    assert (outcome.changed, outcome.removed) == (True, (cdi.SPEC,))
    assert host.file().exists() is check
    assert host.refresh().changed is check
    assert not host.refresh().changed


def test_an_empty_gpu_beside_one_with_instances_is_nothing_special(host):
    host.have([], [boards.gpu(A100, index=1, instances=[("7g.40gb", 0)])._replace(minor=1)])
    outcome = host.refresh()
    assert (outcome.empty, outcome.devices) == (False, tuple(host.uuids()))


def test_a_node_without_gpus_has_nothing_to_tell(host):
    host.node = Node(())
    assert host.refresh().msg.startswith("There is no GPU")


# --- what is not right is refused with its name (B49, B51) -----------------------------------------------------------


def test_a_device_that_lacks_one_of_its_files_is_a_failure_before_anything_is_written(host):
    lost = cdi.devices_of(host.node, str(host.path))[1].files[2]
    host.behave(lose=lost)
    said = host.failure()
    assert "nvidia-ctk makes a specification that is not right" in said
    assert f"{host.uuids()[1]} (compute instance 1g.5gb" in said
    assert f"has no {lost}" in said
    assert not host.file().exists()


def test_a_specification_without_uuids_is_a_failure(host):
    host.behave(names=["index"])
    assert f"it lacks {host.uuids()[0]} (" in host.failure()


def test_a_stale_file_of_another_program_is_named(host):
    host.put("/etc/cdi/nvidia.yaml", "0:0", OTHER)
    said = host.failure()
    assert f"/etc/cdi/nvidia.yaml names {OTHER}, which this node does not have" in said
    assert "remove it" in said


def test_a_mig_index_and_a_whole_gpu_that_are_not_there_any_more_are_stale_too(host):
    host.put("/etc/cdi/a.yaml", "0", "0:7", "GPU-1", "gpu0", "mig0:1")
    assert "/etc/cdi/a.yaml names 0, 0:7, GPU-1 and gpu0, which" in host.failure()


def test_what_stands_for_no_single_device_is_never_stale(host):
    host.put("/etc/cdi/a.yaml", "all", "none", "mig0:1", "tools")
    assert host.refresh().changed


@pytest.mark.parametrize(
    "text", ["kind: [a", "# a comment\nkind: vendor.com/net # b\n", "", "kind: nvidia.com/gpu.coherent"]
)
def test_specifications_of_others_are_their_own_matter_however_they_are_written(host, text):
    (host.path / "etc/cdi/other.yaml").write_text(
        text if "coherent" not in text else f"{text}\ndevices:\n    - name: x\n"
    )
    assert host.refresh().changed


def test_two_files_of_one_folder_with_the_same_device_are_named(host):
    host.refresh()
    host.put("/var/run/cdi/old.yaml", "0:0")
    said = host.failure()
    assert "/var/run/cdi/nvidia.yaml and /var/run/cdi/old.yaml both have nvidia.com/gpu=0:0" in said


def test_the_same_device_in_another_folder_is_what_folders_are_for(host):
    host.put("/etc/cdi/nvidia.yaml", "0:0")
    assert host.refresh().changed


def test_two_names_of_one_folder_are_one_folder(host):
    (host.path / "run").mkdir()
    (host.path / "var").mkdir()
    (host.path / "var/run").symlink_to("../run")
    folders = ("/etc/cdi", "/var/run/cdi", "/run/cdi")
    host.refresh(folders=folders)
    assert not host.refresh(folders=folders).changed


def test_proof_alone_writes_nothing_and_names_what_is_missing(host):
    with pytest.raises(cdi.CdiError, match="/var/run/cdi/nvidia.yaml is not there"):
        cdi.prove(host.node, host.settings)
    host.refresh()
    cdi.prove(host.node, host.settings)
    host.have([("3g.20gb", 4)])
    with pytest.raises(cdi.CdiError, match="it lacks MIG-.*; it names MIG-"):
        cdi.prove(host.node, host.settings)
    assert len(host.calls("nvidia-ctk")) == 1


def test_a_gpu_that_does_not_answer_makes_nobody_call_its_devices_dead(host):
    host.refresh()
    silent = host.node.gpus[0]._replace(
        instances=(), problems=(Problem("nvmlDeviceGetHandleByIndex", "GPU_IS_LOST", ""),)
    )
    host.node = Node((silent,))
    assert "does not answer: nvmlDeviceGetHandleByIndex says GPU_IS_LOST" in host.failure()
    assert host.file().exists()


def test_a_toolkit_that_fails_is_quoted_and_what_was_there_stays(host):
    host.refresh()
    before = host.file().read_text()
    host.behave(fail="failed to initialize NVML: ERROR_LIB_RM_VERSION_MISMATCH")
    assert (
        "'nvidia-ctk cdi generate' failed: failed to initialize NVML: ERROR_LIB_RM_VERSION_MISMATCH" in host.failure()
    )
    assert host.file().read_text() == before


def test_a_node_without_the_toolkit_is_told_what_to_install(host):
    (host.programs / "nvidia-ctk").unlink()
    assert "Install the NVIDIA Container Toolkit" in host.failure()


# --- NVIDIA's own unit -----------------------------------------------------------------------------------------------


def test_where_nvidias_unit_is_installed_it_writes(host):
    host.behave(unit=True)
    host.file().parent.mkdir(parents=True)
    outcome = host.refresh()
    assert (outcome.changed, outcome.unit, outcome.written) == (True, True, (cdi.SPEC,))
    assert host.file().read_text().startswith("---")
    assert ["restart", "--", "nvidia-cdi-refresh.service"] in [
        words for _name, words, _settings in host.calls("systemctl")
    ]
    assert not host.refresh().changed
    assert len([call for call in host.calls("systemctl") if call[1][0] == "restart"]) == 1


def test_its_settings_count_also_for_what_is_compared(host):
    host.behave(unit=True, unit_writes=str(host.path / "run/cdi/mine.yaml"))
    (host.path / "run/cdi").mkdir(parents=True)
    settings = host.path / "etc/nvidia-container-toolkit/nvidia-cdi-refresh.env"
    settings.parent.mkdir()
    settings.write_text(
        '# text\nNVIDIA_CTK_CDI_OUTPUT_FILE_PATH="/run/cdi/mine.yaml"\nNVIDIA_CTK_DRIVER_ROOT=/opt/driver\n'
    )
    outcome = host.refresh(folders=("/etc/cdi", "/run/cdi"))
    assert outcome.written == ("/run/cdi/mine.yaml",)
    asked = host.calls("nvidia-ctk")[0]
    assert asked[2] == {"NVIDIA_CTK_DRIVER_ROOT": "/opt/driver"}
    assert "--output=" in asked[1]


def test_a_unit_that_fails_is_a_failure_with_where_to_look(host):
    host.behave(unit=True, unit_fails=True)
    assert "nvidia-cdi-refresh.service failed: Job for" in host.failure()


def test_a_unit_that_writes_elsewhere_is_found_out(host):
    host.behave(unit=True, unit_writes=str(host.path / "elsewhere.yaml"))
    assert "/var/run/cdi/nvidia.yaml is not there after nvidia-cdi-refresh.service has run" in host.failure()


def test_it_can_be_left_out_and_it_can_be_demanded(host):
    host.behave(unit=True)
    assert not host.refresh(unit="never").unit
    host.behave()
    assert "nvidia-cdi-refresh.service is not installed" in host.failure(unit="always")


# --- the management specification (B53) ------------------------------------------------------------------------------


CAPS = ("/dev/nvidia-caps/nvidia-cap1", "/dev/nvidia-caps/nvidia-cap2")


def manage(host: Host, files: t.Sequence[str] = CAPS) -> None:
    host.behave(management=[*files, "/dev/nvidia0"])
    for file in CAPS:
        (host.path / file[1:]).touch()


def test_it_is_made_in_its_own_mode_and_has_the_files_for_configuring_and_monitoring(host):
    manage(host)
    outcome = host.refresh(management="always")
    assert outcome.written == (cdi.SPEC, cdi.MANAGEMENT_SPEC)
    words = host.calls("nvidia-ctk")[-1][1]
    assert {"--mode=management", "--vendor=management.nvidia.com"} <= set(words)
    spec = json.loads(host.file(cdi.MANAGEMENT_SPEC).read_text())
    assert spec["kind"] == "management.nvidia.com/gpu"
    assert set(CAPS) <= {node["path"] for node in spec["devices"][0]["containerEdits"]["deviceNodes"]}
    assert not host.refresh(management="always").changed


def test_without_them_it_is_not_written(host):
    manage(host, CAPS[:1])
    assert "without /dev/nvidia-caps/nvidia-cap2, and device plugins could not read" in host.failure(
        management="always"
    )
    assert not host.file(cdi.MANAGEMENT_SPEC).exists()


def test_it_is_kept_up_to_date_where_there_is_one_and_else_left_out(host):
    manage(host)
    assert host.refresh().written == (cdi.SPEC,)
    host.put(cdi.MANAGEMENT_SPEC, "all", kind="management.nvidia.com/gpu")
    assert host.refresh().written == (cdi.MANAGEMENT_SPEC,)
    assert not host.refresh().changed
    host.put(cdi.MANAGEMENT_SPEC, "all", kind="management.nvidia.com/gpu")
    assert not host.refresh(management="never").changed


def test_files_that_cannot_be_made_are_named_with_the_command_that_makes_them(host):
    host.behave(management=CAPS)
    said = host.failure(management="always")
    assert "/dev/nvidia-caps/nvidia-cap1 and /dev/nvidia-caps/nvidia-cap2 could not be made" in said
    assert "nvidia-modprobe -f /proc/driver/nvidia/capabilities/mig/config" in said
