# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A node without the NVML binding gets the controller's, and only such a node does."""

from __future__ import annotations

import io
import sys
import zipfile

import pytest

from ansible_collections.gpufleet.mig.plugins.action.gpu_holder_info import ActionModule as HolderInfoAction
from ansible_collections.gpufleet.mig.plugins.action.gpu_reset import ActionModule as ResetAction
from ansible_collections.gpufleet.mig.plugins.action.mig_config import ActionModule as ConfigAction
from ansible_collections.gpufleet.mig.plugins.action.mig_info import ActionModule as InfoAction
from ansible_collections.gpufleet.mig.plugins.plugin_utils import _binding


def without_binding(arguments):
    """What a node answers that has no binding of its own."""
    if "_binding" in arguments:
        return {"changed": True}
    return {"failed": True, "binding_missing": True, "error": "BINDING_MISSING", "msg": "No binding here."}


def report_without_binding(arguments):
    if "_binding" in arguments:
        return {"available": True}
    problem = {"error": "BINDING_MISSING", "message": "No binding here.", "remedy": "install it"}
    return {"available": False, "binding_missing": True, "problem": problem}


@pytest.mark.parametrize("action", [ConfigAction, InfoAction, ResetAction, HolderInfoAction])
def test_a_node_that_has_the_binding_is_asked_once_and_gets_nothing(stage, action):
    stage.run(action, label="all-1g")
    assert len(stage.calls) == 1
    assert stage.transferred == []


def test_a_node_that_lacks_the_binding_is_asked_again_with_it(stage):
    stage.answer = without_binding
    result = stage.run(ConfigAction, label="all-disabled")
    assert result["changed"]
    assert not result.get("failed")
    [(path, archive)] = stage.transferred
    assert stage.calls == [{"label": "all-disabled"}, {"label": "all-disabled", "_binding": path}]
    assert zipfile.ZipFile(io.BytesIO(archive)).namelist() == ["pynvml.py"]


def test_the_second_answer_is_the_answer(stage):
    stage.answer = without_binding
    assert "binding_missing" not in stage.run(ConfigAction, label="all-disabled")


def test_a_controller_without_the_binding_says_what_to_install_where(stage, monkeypatch):
    monkeypatch.setattr(_binding, "find", lambda: None)
    stage.answer = without_binding
    result = stage.run(ConfigAction, label="all-disabled")
    assert result["failed"]
    assert "install nvidia-ml-py from PyPI on the controller (or in its execution environment)" in result["msg"]
    assert len(stage.calls) == 1


def test_a_report_without_any_binding_is_still_no_failure(stage, monkeypatch):
    monkeypatch.setattr(_binding, "find", lambda: None)
    stage.answer = report_without_binding
    result = stage.run(InfoAction)
    assert not result.get("failed")
    assert "binding_missing" not in result
    assert "execution environment" in result["problem"]["remedy"]


def import_anew(monkeypatch):
    """Let Python look for the binding, and forget what it finds when the test is over."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.delitem(sys.modules, "pynvml")


def test_equal_bindings_give_equal_bytes(tmp_path):
    (tmp_path / "pynvml.py").write_text("NVML_SUCCESS = 0\n")
    assert _binding.pack(str(tmp_path / "pynvml.py")) == _binding.pack(str(tmp_path / "pynvml.py"))


def test_python_imports_from_the_packed_binding(tmp_path, monkeypatch):
    (tmp_path / "pynvml.py").write_text("NVML_SUCCESS = 0\n")
    (tmp_path / "b.zip").write_bytes(_binding.pack(str(tmp_path / "pynvml.py")))
    monkeypatch.syspath_prepend(str(tmp_path / "b.zip"))
    import_anew(monkeypatch)
    assert __import__("pynvml").NVML_SUCCESS == 0


def test_the_discontinued_package_of_the_same_name_is_not_the_binding(tmp_path, monkeypatch):
    (tmp_path / "pynvml").mkdir()
    (tmp_path / "pynvml" / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    import_anew(monkeypatch)
    assert _binding.find() is None
