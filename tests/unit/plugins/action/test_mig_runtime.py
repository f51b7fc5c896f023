# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What is in a wheel of the controller reaches the node once; an old Python there is told in one sentence."""

from __future__ import annotations

import hashlib
import io
import zipfile

import pytest

from ansible_collections.gpufleet.mig.plugins.action.mig_config import ActionModule as ConfigAction
from ansible_collections.gpufleet.mig.plugins.action.mig_info import ActionModule as InfoAction
from ansible_collections.gpufleet.mig.plugins.action.mig_runtime import ActionModule as RuntimeAction

BINDING = b"nvmlDeviceGetMPSComputeRunningProcesses_v3 = None\n"
DIGEST = hashlib.sha256(BINDING).hexdigest()
CRASHED = {"failed": True, "msg": "Module result deserialization failed.", "module_stdout": "", "module_stderr": "x"}


@pytest.fixture(name="folder")
def folder_with_a_wheel(tmp_path):
    with zipfile.ZipFile(tmp_path / "nvidia_ml_py-13.580.65-py3-none-any.whl", "w") as archive:
        archive.writestr("pynvml.py", BINDING)
    return str(tmp_path)


def test_a_node_is_asked_for_what_is_in_the_wheel_and_gets_it_only_where_it_lacks_it(stage, folder):
    stage.run(RuntimeAction, binding="wheel_dir", wheel_dir=folder)
    asked = {"binding": "wheel_dir", "wheel_dir": folder, "_binding_digest": DIGEST}
    assert stage.calls == [asked]
    assert stage.transferred == []

    stage.answer = lambda given: {"changed": True} if "_binding" in given else {"failed": True, "binding_missing": True}
    assert stage.run(RuntimeAction, binding="wheel_dir", wheel_dir=folder) == {"changed": True}
    [(path, archive)] = stage.transferred
    assert stage.calls[-1] == {**asked, "_binding": path}
    assert zipfile.ZipFile(io.BytesIO(archive)).read("pynvml.py") == BINDING


def test_a_folder_of_the_playbook_is_found_as_its_files_are(stage, folder):
    (stage.folder / "files" / "wheels").symlink_to(folder)
    stage.run(RuntimeAction, binding="wheel_dir", wheel_dir="wheels")
    assert stage.calls[0]["_binding_digest"] == DIGEST


@pytest.mark.parametrize("given", [{"remote_src": "yes"}, {"remote_src": True}, {"remote_src": "maybe"}])
def test_a_wheel_of_the_node_is_left_to_the_node(stage, given):
    stage.run(RuntimeAction, binding="wheel_dir", wheel_dir="/srv/wheels", **given)
    assert stage.calls == [{"binding": "wheel_dir", "wheel_dir": "/srv/wheels", **given}]


def test_a_folder_of_the_controller_without_a_wheel_is_told_without_asking_the_node(stage, tmp_path):
    result = stage.run(RuntimeAction, binding="wheel_dir", wheel_dir=str(tmp_path))
    assert result["failed"]
    assert result["msg"].startswith(f"On the controller, wheel_dir '{tmp_path}' has no nvidia_ml_py-*.whl")
    assert stage.calls == []


# --- the Python of the node ----------------------------------------------------------------------------------------


def run_where(stage, action, python, *answers):
    """Run an action whose module crashes, on a node where a shell answers this to one question after the other."""
    asked = []

    class There(action):
        def _call(self, arguments, task_vars):
            self._used_interpreter = python
            return super()._call(arguments, task_vars)

        def _low_level_execute_command(self, command):
            asked.append(command)
            return answers[len(asked) - 1]

    stage.answer = lambda given: CRASHED
    return stage.run(There, label="all-1g"), asked


@pytest.mark.parametrize("action", [RuntimeAction, ConfigAction, InfoAction])
@pytest.mark.parametrize("version", ["2.7", "3.6", "3.8"])
def test_a_python_that_is_too_old_for_the_module_is_told_with_what_to_do(stage, action, version):
    python = "/usr/libexec/platform-python"
    result, asked = run_where(stage, action, f"#!{python}", {"rc": 0, "stdout": f"version {version}\r\n"})
    assert result == {
        "failed": True,
        "changed": False,
        "altered": False,
        "msg": f"The Python that Ansible uses on this node, {python}, is version {version}, and gpufleet.mig needs 3.9"
        " or newer. Nothing was changed: install one beside it, as 'dnf install python3.12' does on Enterprise Linux 8,"
        " and set ansible_python_interpreter to it, such as /usr/bin/python3.12.",
    }
    assert len(asked) == 1
    assert asked[0].startswith(f"{python} -c '")


def test_a_python_that_is_not_there_is_told(stage):
    result, asked = run_where(
        stage, RuntimeAction, "/usr/bin/python3", {"rc": 127, "stdout": ""}, {"rc": 127, "stdout": ""}
    )
    assert "/usr/bin/python3, is not there, and gpufleet.mig needs 3.9 or newer" in result["msg"]
    assert asked[1] == "command -v /usr/bin/python3"


def test_a_shim_that_finds_no_version_of_python_is_not_said_to_be_missing(stage):
    shim = "/opt/pyenv/shims/python3.12"
    silent = {
        "rc": 127,
        "stdout": "",
        "stderr": "pyenv: python3.12: command not found\r\n\x1b[31mThe command exists in:",
    }
    result, _asked = run_where(stage, RuntimeAction, shim, silent, {"rc": 0, "stdout": shim})
    assert (
        f"{shim}, is there and starts no Python (pyenv: python3.12: command not found ?[31mThe command exists in:), and"
        in result["msg"]
    )
    assert "set ansible_python_interpreter to it" in result["msg"]


@pytest.mark.parametrize(
    ("python", "answer"),
    [
        ("#!/usr/bin/python3", {"rc": 0, "stdout": "version 3.14"}),
        ("#!/usr/bin/python3", {"rc": 0, "stdout": "version 3.9"}),
        ("#!/usr/bin/python3", {"rc": 1, "stdout": "sorry"}),
        (None, {"rc": 0, "stdout": "version 2.7"}),
    ],
)
def test_what_else_goes_wrong_is_told_as_ansible_tells_it(stage, python, answer):
    assert run_where(stage, RuntimeAction, python, answer)[0] == CRASHED


@pytest.mark.parametrize(
    "result",
    [
        {"changed": True},
        {"failed": True, "msg": "unsupported parameter"},
        {"failed": True, "altered": False, "msg": "in use", "exception": "(traceback unavailable)"},
    ],
)
def test_a_module_that_ran_is_believed_and_costs_no_further_question(stage, result):
    class There(RuntimeAction):
        _used_interpreter = "#!/usr/bin/python3"

        def _low_level_execute_command(self, command):
            raise AssertionError(command)

    stage.answer = lambda given: dict(result)
    assert stage.run(There) == result
