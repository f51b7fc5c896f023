# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What mig_runtime puts on a node: whole, readable, once, and nothing in check mode."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shlex
import shutil
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from ansible.module_utils.testing import patch_module_args

from ansible_collections.gpufleet.mig.plugins.module_utils import engine, node_runtime
from ansible_collections.gpufleet.mig.plugins.modules import mig_runtime

# Where tools/setup.py puts the interpreters that it finds.
PYTHONS = Path(__file__).resolve().parents[4] / ".venv" / "pythons"
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
        "#!/bin/sh\n"
        f'[ "$1" != -c ] || exec {shlex.quote(sys.executable)} "$@"\n'
        '[ "$2" = -c ] || exit 0\n'
        f'shift 2\nexec {shlex.quote(sys.executable)} -I -S -c {program} "$@"\n'
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


# --- the command ---------------------------------------------------------------------------------------------------


def test_the_command_runs_this_engine_with_this_python_in_a_folder_that_was_not_there(node, tmp_path):
    """A minimal system has no /usr/local/sbin."""
    path = tmp_path / "usr local" / "it's sbin" / "gpufleet-mig"
    assert node(check_mode=True, command=str(path))["changed"]
    assert not path.parent.parent.exists()
    result = node(command=str(path))
    assert result["command"] == str(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o755
    ran = subprocess.run([path, "status", "--json"], capture_output=True, text=True, check=False)
    assert json.loads(ran.stdout)["in_progress"] is None
    assert not node(command=str(path), _binding=None)["changed"]


@pytest.mark.parametrize("damage", ["content", "mode", "python"])
def test_a_command_that_is_not_as_it_should_be_is_written_again_and_the_engine_is_not(node, tmp_path, damage):
    path = tmp_path / "gpufleet-mig"
    node(command=str(path))
    engine_was = installed_engine(tmp_path).resolve().stat().st_mtime_ns
    if damage == "content":
        path.write_text("#!/bin/sh\nexec true\n")
    elif damage == "mode":
        path.chmod(0o644)
    arguments = {"python": sys.executable} if damage == "python" else {}
    assert node(check_mode=True, command=str(path), _binding=None, **arguments)["changed"]
    assert node(command=str(path), _binding=None, **arguments)["changed"]
    assert not node(command=str(path), _binding=None, **arguments)["changed"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o755
    assert installed_engine(tmp_path).resolve().stat().st_mtime_ns == engine_was


def test_a_link_in_the_place_of_the_command_is_replaced_and_what_it_led_to_stays(node, tmp_path):
    (tmp_path / "precious").write_text("keep me")
    (tmp_path / "gpufleet-mig").symlink_to("precious")
    (tmp_path / "gpufleet-mig.new").symlink_to("precious")
    node(command=str(tmp_path / "gpufleet-mig"))
    assert (tmp_path / "precious").read_text() == "keep me"
    assert not (tmp_path / "gpufleet-mig").is_symlink()


@pytest.mark.parametrize("path", ["sbin/gpufleet-mig", "/", "/usr"])
def test_a_command_without_a_place_is_refused_before_anything_is_written(node, tmp_path, path):
    assert f"command is {path!r}; give the absolute path of a file." in node(command=path)["msg"]
    assert not (tmp_path / "state").exists()


# --- where the binding comes from ----------------------------------------------------------------------------------


@pytest.fixture
def wheels(tmp_path):
    def make(version, content=BINDING):
        folder = tmp_path / "wheels"
        folder.mkdir(mode=0o755, exist_ok=True)
        with zipfile.ZipFile(folder / f"nvidia_ml_py-{version}-py3-none-any.whl", "w") as archive:
            archive.writestr("pynvml.py", content)
        return str(folder)

    return make


@pytest.fixture
def no_pip(tmp_path, monkeypatch):
    """Programs that must not be called, in front of all others; the file is there if one was."""
    called = tmp_path / "called"
    for name in ("pip", "pip3", "apt-get", "dnf", "yum", "zypper"):
        program = tmp_path / "forbidden" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\ntouch {shlex.quote(str(called))}\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'forbidden'}:{os.environ['PATH']}")
    return called


def binding_of(tmp_path):
    return (tmp_path / "state" / "binding" / "pynvml.py").read_text()


def test_a_wheel_on_the_node_is_used_without_pip_and_a_newer_one_takes_its_place(node, tmp_path, wheels, no_pip):
    arguments = {"binding": "wheel_dir", "remote_src": True, "wheel_dir": wheels("9.1"), "_binding": None}
    assert node(check_mode=True, **arguments)["binding"] == "payload"
    assert not (tmp_path / "state").exists()
    assert (node(**arguments)["binding"], node(**arguments)["changed"]) == ("installed", False)
    wheels("13.0", BINDING + "# newer\n")
    assert node(check_mode=True, **arguments)["changed"]
    assert "# newer" not in binding_of(tmp_path)
    assert node(**arguments)["changed"]
    assert "# newer" in binding_of(tmp_path)
    assert not node(**arguments)["changed"]
    assert not no_pip.exists()


def test_a_wheel_of_the_controller_is_asked_for_only_where_the_node_has_something_else(node, tmp_path):
    digest = hashlib.sha256(BINDING.encode()).hexdigest()
    arguments = {"binding": "wheel_dir", "wheel_dir": "/on/the/controller", "_binding_digest": digest}
    assert node(**arguments, _binding=None)["binding_missing"]
    assert not (tmp_path / "state").exists()
    assert (node(**arguments)["changed"], node(**arguments, _binding=None)["changed"]) == (True, False)
    (tmp_path / "state" / "binding" / "pynvml.py").write_text("tampered = 1\n")
    assert node(**arguments, _binding=None)["binding_missing"]


@pytest.mark.parametrize("others", ["folder", "wheel"])
def test_root_uses_no_wheel_that_others_can_replace(node, tmp_path, wheels, monkeypatch, others):
    folder = Path(wheels("13.0"))
    (folder if others == "folder" else next(folder.iterdir())).chmod(0o777)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    result = node(binding="wheel_dir", remote_src=True, wheel_dir=str(folder), _binding=None)
    assert "is not used, since this runs as root and others than root can write to" in result["msg"]
    assert not (tmp_path / "state").exists()


def test_a_wheel_that_python_cannot_import_is_told(node, wheels):
    folder = wheels("13.0", BINDING + "import no_such_module\n")
    result = node(binding="wheel_dir", remote_src=True, wheel_dir=folder, _binding=None)
    assert result["failed"]
    assert "cannot import the NVML binding that was put into" in result["msg"]


def environment(tmp_path, content):
    """A virtual environment that a distribution manages, with this binding, if any."""
    folder = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    packages = next(folder.glob("lib/python*/site-packages"))
    (packages.parent / "EXTERNALLY-MANAGED").write_text("[externally-managed]\nError=keep out\n")
    if content:
        (packages / "pynvml.py").write_text(content)
    return str(folder / "bin" / "python"), packages


def test_a_python_with_a_binding_of_its_own_is_used_as_it_is(node, tmp_path, no_pip):
    python, packages = environment(tmp_path, BINDING)
    before = sorted(packages.iterdir())
    arguments = {"binding": "python", "python": python, "_binding": None}
    assert node(check_mode=True, **arguments)["binding"] == "node"
    assert (node(**arguments)["binding"], node(**arguments)["changed"]) == ("node", False)
    assert not (tmp_path / "state" / "binding").exists()
    assert [path for path in sorted(packages.iterdir()) if path.name != "__pycache__"] == before
    assert not no_pip.exists()


def test_what_lies_in_our_folder_is_never_another_binding_than_the_one_asked_for(node, tmp_path):
    node()
    python, packages = environment(tmp_path, BINDING + "# of the environment\n")
    arguments = {"binding": "python", "python": python, "_binding": None}
    assert node(**arguments)["changed"]
    assert binding_of(tmp_path).endswith("# of the environment\n")
    assert not node(**arguments)["changed"]
    (packages / "pynvml.py").write_text(BINDING + "# and of its update\n")
    assert node(check_mode=True, **arguments)["changed"]
    assert node(**arguments)["changed"]
    assert binding_of(tmp_path).endswith("# and of its update\n")


@pytest.mark.parametrize("content", [None, "nvmlInit = None\n", "raise SystemExit(0)\n"])
@pytest.mark.parametrize("check_mode", [False, True])
def test_a_python_without_a_usable_binding_is_told_and_nothing_is_brought(node, tmp_path, content, check_mode):
    python, _packages = environment(tmp_path, content)
    result = node(check_mode=check_mode, binding="python", python=python)
    assert result["failed"]
    assert result["lacks_binding"]
    assert "binding_missing" not in result
    assert (result["check_mode"], result["python"]) == (check_mode, python)
    assert f"{python} has no NVML binding of its own that knows MIG" in result["msg"]
    assert not (tmp_path / "state").exists()


# --- the Python of the engine --------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["2.7", "3.6", "3.8"])
def test_a_python_that_is_too_old_is_refused_before_anything_is_written(node, tmp_path, version):
    python = tmp_path / "platform-python"
    python.write_text(f"#!/bin/sh\nprintf 'version {version}'\n")
    python.chmod(0o755)
    result = node(python=str(python), command=str(tmp_path / "gpufleet-mig"))
    assert f"is version {version}, and the engine needs 3.9 or newer: install one beside it" in result["msg"]
    assert not (tmp_path / "state").exists()
    assert not (tmp_path / "gpufleet-mig").exists()


@pytest.mark.parametrize("version", ["3.9", "3.10", "3.11", "3.12", "3.13", "3.14"])
def test_every_python_that_a_node_may_have_runs_the_command(node, tmp_path, version):
    """On this computer those that it has; the others are taken at their word."""
    found = shutil.which(f"python{version}", path=f"{PYTHONS}:{os.environ['PATH']}")
    python = tmp_path / "python"
    if found:
        python.symlink_to(found)
    else:
        stands_in = f'case "$*" in *version_info*) printf "version {version}"; exit;; esac\nexec {sys.executable} "$@"'
        python.write_text(f"#!/bin/sh\n{stands_in}\n")
        python.chmod(0o755)
    node(python=str(python), command=str(tmp_path / "gpufleet-mig"))
    ran = subprocess.run([tmp_path / "gpufleet-mig", "--help"], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_what_is_no_python_is_refused(node, tmp_path):
    assert "does not run as a Python" in node(python="/usr/bin/true")["msg"]
    assert not (tmp_path / "state").exists()
