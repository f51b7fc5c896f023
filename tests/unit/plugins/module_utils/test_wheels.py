# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The binding is taken out of the newest wheel of a folder, and out of nothing else."""

from __future__ import annotations

import zipfile

import pytest

from ansible_collections.gpufleet.mig.plugins.module_utils import wheels
from ansible_collections.gpufleet.mig.plugins.module_utils.engine.model import WishError

BINDING = "nvmlDeviceGetMPSComputeRunningProcesses_v3 = None\n"


def wheel(folder, name, **files):
    with zipfile.ZipFile(folder / name, "w", zipfile.ZIP_DEFLATED) as archive:
        for file, content in (files or {"pynvml.py": BINDING}).items():
            archive.writestr(file, content)
    return str(folder / name)


@pytest.mark.parametrize(
    ("names", "newest"),
    [
        (["nvidia_ml_py-9.1.0-py3-none-any.whl", "nvidia_ml_py-13.580.65-py3-none-any.whl"], 1),
        (["nvidia_ml_py-12.575.51-py3-none-any.whl", "nvidia_ml_py-12.575.6-py3-none-any.whl"], 0),
        (["nvidia_ml_py-12.560.30-py2.py3-none-any.whl", "nvidia_ml_py3-99.0-py3-none-any.whl"], 0),
        (["nvidia_ml_py-12.560.30-1-py3-none-any.whl", "pynvml-13.0-py3-none-any.whl", "nvidia_ml_py-99.tar.gz"], 0),
    ],
)
def test_the_newest_wheel_counts_by_its_version_and_other_files_do_not(tmp_path, names, newest):
    for name in names:
        (tmp_path / name).write_text("")
    assert wheels.newest(str(tmp_path)) == str(tmp_path / names[newest])


def test_a_folder_without_a_wheel_or_that_is_none_is_told(tmp_path):
    (tmp_path / "nvidia_ml_py3-7.352.0-py3-none-any.whl").write_text("")
    with pytest.raises(WishError, match=r"has no nvidia_ml_py-\*\.whl: put one there"):
        wheels.newest(str(tmp_path))
    with pytest.raises(WishError, match="cannot be read: No such file"):
        wheels.newest(str(tmp_path / "nowhere"))


def test_the_module_in_a_wheel_is_read(tmp_path):
    path = wheel(tmp_path, "w.whl", **{"pynvml.py": BINDING, "example.py": "", "../../etc/evil": "x"})
    assert wheels.read(path) == BINDING.encode()


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({"other.py": ""}, "cannot be used"),
        ({"pynvml/__init__.py": BINDING}, "cannot be used"),
        ({"pynvml.py": "nvmlInit = None"}, "has no NVML binding that knows MIG: fetch a newer"),
        ({"pynvml.py": BINDING + " " * (9 << 20)}, "has no NVML binding that knows MIG"),
    ],
)
def test_a_wheel_without_a_usable_module_is_refused(tmp_path, files, told):
    with pytest.raises(WishError, match=told):
        wheels.read(wheel(tmp_path, "w.whl", **files))


def test_a_damaged_wheel_is_refused(tmp_path):
    whole = wheel(tmp_path, "w.whl")
    with open(whole, "rb") as file:
        content = file.read()
    for damaged in (b"", content[:40], content.replace(b"pynvml", b"PYNVML"), content[:60] + b"\xff" + content[61:]):
        (tmp_path / "damaged.whl").write_bytes(damaged)
        with pytest.raises(WishError, match="cannot be used") as error:
            wheels.read(str(tmp_path / "damaged.whl"))
        assert str(error.value).isprintable()
