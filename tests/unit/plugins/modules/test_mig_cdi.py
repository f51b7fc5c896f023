# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""mig_cdi brings what containers are told in line with the node, and says in its result what that took."""

from __future__ import annotations

import pytest

from ansible_collections.gpufleet.mig.plugins.module_utils import node_cdi
from ansible_collections.gpufleet.mig.plugins.module_utils.engine.model import DriverError
from ansible_collections.gpufleet.mig.plugins.modules import mig_cdi
from ansible_collections.gpufleet.mig.tests.unit.plugins.module_utils.engine.cdi_host import Host


@pytest.fixture
def tree(tmp_path, monkeypatch, host):
    """A tree of files with the toolkit, of the host that modules see."""
    made = Host(tmp_path / "tree", monkeypatch)
    host.node = made.node
    return made


def test_check_do_do_again(host, tree):
    root = str(tree.path)
    checked = host.run(mig_cdi, check_mode=True, root=root)
    assert (checked["changed"], checked["written"], tree.file().exists()) == (True, ["/var/run/cdi/nvidia.yaml"], False)
    done = host.run(mig_cdi, root=root)
    assert (done["changed"], done["empty"], done["devices"], len(done["device_files"])) == (
        True,
        False,
        tree.uuids(),
        4,
    )
    again = host.run(mig_cdi, root=root)
    assert (again["changed"], again["written"], again["removed"], again["unit"]) == (False, [], [], False)
    assert set(again) - {"invocation"} == {
        *("changed", "empty", "devices", "device_files", "written", "removed", "unit", "msg"),
    }


def test_verification_alone_fails_with_what_is_wrong_and_changes_nothing(host, tree):
    root = str(tree.path)
    refused = host.run(mig_cdi, root=root, verify_only=True)
    assert (refused["failed"], refused["changed"]) == (True, False)
    assert "/var/run/cdi/nvidia.yaml is not there" in refused["msg"]
    host.run(mig_cdi, root=root)
    proven = host.run(mig_cdi, root=root, verify_only=True)
    assert (proven["changed"], proven["devices"]) == (False, tree.uuids())


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"spec": "nvidia.yaml"}, "give absolute paths"),
        (
            {"spec": "/srv/nvidia.yaml"},
            "container engines read files .yaml and .json in /etc/cdi and /var/run/cdi only",
        ),
        ({"spec": "/etc/cdi/nvidia.conf"}, "container engines read files .yaml and .json"),
        ({"management_spec": "/srv/x.yaml"}, "management_spec is '/srv/x.yaml'"),
        ({"spec_dirs": ["cdi"]}, "spec_dirs has 'cdi'"),
        ({"operation_timeout": 0}, "operation_timeout is 0"),
    ],
)
def test_a_place_where_no_engine_would_look_is_refused(host, tree, options, why):
    result = host.run(mig_cdi, root=str(tree.path), **options)
    assert result["failed"]
    assert why in result["msg"]
    assert tree.calls("nvidia-ctk") == []


def test_half_a_layout_of_a_change_that_goes_on_is_not_told(host, tree, monkeypatch):
    progress = {"running": True, "who": "alice", "what": "mig_config label all-1g.5gb"}
    monkeypatch.setattr(node_cdi.state, "in_progress", lambda places: progress)
    result = host.run(mig_cdi, root=str(tree.path))
    assert "alice is changing this node (mig_config label all-1g.5gb)" in result["msg"]
    assert tree.calls("nvidia-ctk") == []
    progress["running"] = False
    assert host.run(mig_cdi, root=str(tree.path))["changed"]


def test_a_driver_that_does_not_answer_is_a_failure_and_nothing_is_written(host, tree):
    host.node = DriverError(
        "nvmlInit failed with DRIVER_NOT_LOADED: see dmesg.", call="nvmlInit", error="DRIVER_NOT_LOADED"
    )
    result = host.run(mig_cdi, root=str(tree.path))
    assert result["failed"]
    assert "DRIVER_NOT_LOADED" in result["msg"]
    assert tree.calls("nvidia-ctk") == []
