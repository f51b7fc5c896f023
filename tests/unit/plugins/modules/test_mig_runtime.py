# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What mig_runtime puts on a node: whole, readable, once, and nothing in check mode."""

from __future__ import annotations

import io
import json
import os
import shlex
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from ansible.module_utils.testing import patch_module_args

from ansible_collections.gpufleet.mig.plugins.module_utils import engine, node_runtime
from ansible_collections.gpufleet.mig.plugins.modules import mig_runtime

BINDING = "nvmlDeviceGetMPSComputeRunningProcesses_v3 = None\n"


@pytest.fixture
def node(tmp_path, capsys):
    """A node whose Python has no packages; its binding comes with the task unless ``_binding`` is None."""
    python = tmp_path / "bare-python"
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -S "$@"\n')
    python.chmod(0o755)
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("pynvml.py", BINDING)
    (tmp_path / "binding.zip").write_bytes(content.getvalue())
    given = {"state_dir": str(tmp_path / "state"), "python": str(python), "_binding": str(tmp_path / "binding.zip")}

    def run(check_mode=False, **arguments):
        with (
            patch_module_args({**given, "_ansible_check_mode": check_mode, **arguments}),
            pytest.raises(SystemExit),
        ):
            mig_runtime.main()
        return json.loads(capsys.readouterr().out)

    return run


def installed_engine(tmp_path):
    return tmp_path / "state" / "engine"


def test_check_mode_writes_nothing_and_predicts(node, tmp_path):
    result = node(check_mode=True)
    assert (result["changed"], result["binding"]) == (True, "payload")
    assert "would be installed" in result["msg"]
    assert not (tmp_path / "state").exists()
    assert node()["engine"] == result["engine"]


def test_all_files_of_the_engine_are_installed_and_import_each_other_without_any_package(node, tmp_path):
    node()
    ours = {path.name for path in Path(engine.__path__[0]).glob("*.py")}
    assert {path.name for path in installed_engine(tmp_path).glob("*.py")} == ours
    modules = ", ".join(f"engine.{name[:-3]}" for name in ours if not name.startswith("__"))
    program = (
        f"import sys; sys.path[:0] = [{str(tmp_path / 'state')!r}, {str(tmp_path / 'state/binding')!r}]; import pynvml"
    )
    ran = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"{program}, {modules}"], capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, "")


def test_a_second_run_changes_nothing(node, tmp_path):
    first = node()
    times = {path: path.lstat().st_ctime_ns for path in (tmp_path / "state").rglob("*")}
    second = node(_binding=None)
    assert (first["changed"], second["changed"]) == (True, False)
    assert (first["binding"], second["binding"]) == ("installed", "installed")
    assert "is already in" in second["msg"]
    assert {path: path.lstat().st_ctime_ns for path in (tmp_path / "state").rglob("*")} == times


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_everybody_can_read_it_and_nobody_else_can_write_it_whatever_the_umask(node, tmp_path, umask):
    former = os.umask(umask)
    try:
        node()
    finally:
        os.umask(former)
    paths = [path for path in (tmp_path / "state").rglob("*") if not path.is_symlink()]
    assert paths
    assert all(stat.S_IMODE(path.stat().st_mode) == (0o755 if path.is_dir() else 0o644) for path in paths)
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o711


def test_the_folder_that_a_change_made_is_opened_for_passing_through_only(node, tmp_path):
    (tmp_path / "state").mkdir(mode=0o700)
    assert node()["changed"]
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o711


def test_a_new_version_takes_over_and_the_one_before_stays_for_what_runs_with_it(node, tmp_path, monkeypatch):
    versions = []
    for content in (b"first = 1\n", b"second = 2\n", b"third = 3\n"):
        monkeypatch.setattr(node_runtime, "_own_sources", lambda content=content: {"__init__.py": content})
        versions.append(node()["engine"]["version"])
    assert (installed_engine(tmp_path) / "__init__.py").read_bytes() == b"third = 3\n"
    assert sorted(os.listdir(tmp_path / "state" / "runtime")) == sorted(versions[1:])


@pytest.mark.parametrize("damage", ["changed", "missing", "added"])
def test_a_damaged_engine_is_installed_again(node, tmp_path, damage):
    node()
    file = installed_engine(tmp_path) / "cli.py"
    was = file.read_bytes()
    if damage == "changed":
        file.write_text("raise SystemExit\n")
    elif damage == "missing":
        file.unlink()
    else:
        (file.parent / "added.py").write_text("")
    assert node(check_mode=True, _binding=None)["changed"]
    assert node(_binding=None)["changed"]
    assert file.read_bytes() == was
    assert not (file.parent / "added.py").exists()


def test_what_a_killed_run_left_is_in_nobodys_way(node, tmp_path):
    version = node(check_mode=True)["engine"]["version"]
    (tmp_path / "state" / "runtime" / f".{version}.new" / "engine").mkdir(parents=True)
    (tmp_path / "state" / "engine.new").symlink_to("nowhere")
    (tmp_path / "state").chmod(0o700)
    node()
    assert (installed_engine(tmp_path) / "cli.py").exists()
    assert os.listdir(tmp_path / "state" / "runtime") == [version]
    assert not os.path.lexists(tmp_path / "state" / "engine.new")


@pytest.mark.parametrize("check_mode", [False, True])
def test_a_folder_of_somebody_else_in_the_place_of_the_link_is_not_removed(node, tmp_path, check_mode):
    installed_engine(tmp_path).mkdir(parents=True)
    result = node(check_mode=check_mode)
    assert result["failed"]
    assert (
        result["msg"]
        == f"{installed_engine(tmp_path)} is not a link that gpufleet.mig made: move it away, and run again."
    )
    assert installed_engine(tmp_path).is_dir()


def test_without_any_binding_the_controller_is_asked_for_one(node, tmp_path):
    result = node(_binding=None)
    assert result["binding_missing"]
    assert "finds no NVML binding: install nvidia-ml-py on the controller, or for this Python." in result["msg"]
    assert not (tmp_path / "state").exists()


def test_a_binding_of_the_python_itself_is_enough(node, tmp_path):
    packages = tmp_path / "packages"
    packages.mkdir()
    (packages / "pynvml.py").write_text(BINDING)
    python = tmp_path / "python-with-packages"
    program = shlex.quote(f"import sys; sys.path.append({str(packages)!r}); exec(sys.argv.pop(1))")
    python.write_text(
        f'#!/bin/sh\n[ "$2" = -c ] || exit 0\nshift 2\nexec {shlex.quote(sys.executable)} -I -S -c {program} "$@"\n'
    )
    python.chmod(0o755)
    result = node(_binding=None, python=str(python))
    assert (result["changed"], result["binding"]) == (True, "node")
    assert not (tmp_path / "state" / "binding").exists()


@pytest.mark.parametrize("check_mode", [False, True])
def test_root_installs_nothing_where_others_can_write(node, tmp_path, monkeypatch, check_mode):
    (tmp_path / "state").mkdir()
    (tmp_path / "state").chmod(0o777)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    result = node(check_mode=check_mode)
    assert result["failed"]
    assert "others than root can write to it" in result["msg"]
    assert os.listdir(tmp_path / "state") == []


@pytest.mark.parametrize("python", ["python3", "/nonexistent/python3", "/etc/passwd"])
def test_a_python_that_is_none_is_refused(node, python):
    assert node(python=python)["msg"] == (
        f"python is {python!r}, which is no program on this node; give the absolute path of a Python."
    )


def test_a_disk_that_is_full_is_told_in_one_sentence(node, tmp_path, monkeypatch):
    def symlink(*_arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "symlink", symlink)
    assert node()["msg"] == (
        f"The engine could not be installed in {tmp_path / 'state'}: [Errno 28] No space left on device."
    )
