# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Building the library, and the Python side of a node."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time

import nvml_client as client
import pynvml as nv
import pytest

from nvmlsim import ChildKilled, Simulator, SimulatorError, build


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("NVMLSIM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def changed_sources(tmp_path, monkeypatch):
    """Append a line to a copy of the sources, which is what is compiled from now on."""
    copy = tmp_path / "src"
    shutil.copytree(build.source_folder(), copy)

    def change(line):
        with open(copy / "mode.c", "a", encoding="utf-8") as source:
            source.write(f"\n{line}\n")
        monkeypatch.setattr(build, "source_folder", lambda: copy)
        return copy

    return change


def test_processes_that_build_at_the_same_time_get_one_build_and_it_is_kept(empty_cache):
    code = "from nvmlsim import build; print(build.ensure_built().control.stat().st_ino)"
    builders = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    inodes = {builder.communicate()[0].strip() for builder in builders}
    assert len(inodes) == 1
    again = build.ensure_built()
    assert str(again.control.stat().st_ino) in inodes
    assert sorted(path.name for path in empty_cache.iterdir()) == [again.folder.name, f"{again.folder.name}.lock"]


def test_there_is_a_library_for_every_driver_that_brought_something_new():
    built = build.ensure_built()
    assert built.branches[0] == build.OLDEST_BRANCH
    assert built.library_folder(580).name == "580"
    assert built.library_folder(589).name == "580"
    assert built.library_folder(9999).name == str(built.branches[-1])
    for branch in built.branches:
        assert (built.library_folder(branch) / build.LIBRARY_NAME).is_file()
    with pytest.raises(SimulatorError, match="too old"):
        built.library_folder(520)


def test_other_sources_or_another_compiler_are_another_build(changed_sources):
    original = build.source_folder()
    names = {
        build._fingerprint(original, ("cc",)),
        build._fingerprint(original, ("clang",)),
        build._fingerprint(changed_sources("/* changed */"), ("cc",)),
    }
    assert len(names) == 3


def test_an_error_of_the_compiler_is_shown_and_leaves_nothing(empty_cache, changed_sources):
    changed_sources("this is not C")
    with pytest.raises(SimulatorError, match="does not compile"):
        build.ensure_built()
    assert [path.suffix for path in empty_cache.iterdir()] == [".lock"]


def test_where_a_build_is_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("NVMLSIM_CACHE", str(tmp_path))
    assert build.cache_folder() == tmp_path
    monkeypatch.delenv("NVMLSIM_CACHE")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert build.cache_folder() == tmp_path / "cache" / "nvmlsim"
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/cache")
    assert str(build.cache_folder()) == "/var/cache/nvmlsim"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert str(build.cache_folder()) == "/home/somebody/.cache/nvmlsim"


def test_without_a_compiler_the_way_out_is_named(monkeypatch):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(build.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(SimulatorError, match="pip install ziglang"):
        build.find_compiler()


def test_the_compiler_can_come_from_pypi(monkeypatch):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(build.importlib.util, "find_spec", lambda name: name == "ziglang")
    assert build.find_compiler() == (sys.executable, "-m", "ziglang", "cc")


def test_the_compiler_does_not_warn(tmp_path, monkeypatch):
    """Warnings in the simulator's own sources are errors here."""
    monkeypatch.setattr(build, "COMPILE_FLAGS", (*build.COMPILE_FLAGS, "-Werror", "-fsyntax-only"))
    sources = build.source_folder()
    build._compile(tmp_path, sources, build.find_compiler(), build.read_symbols(sources))


def test_the_library_needs_nothing_but_the_c_library(node):
    headers = subprocess.run(
        ["readelf", "-d", str(node().library / build.LIBRARY_NAME)], capture_output=True, text=True, check=True
    )
    needed = [line.split("[")[1].rstrip("]") for line in headers.stdout.splitlines() if "(NEEDED)" in line]
    assert [name for name in needed if not name.startswith(("libc.", "libpthread.", "ld-linux"))] == []


# ---- Simulator -----------------------------------------------------------------------------------------------------


def test_a_node_can_be_opened_again(node):
    first = node("2xa30-24gb", driver="550")
    again = Simulator(first.path)
    assert again.describe() == first.describe()
    assert again.library == first.library


def test_results_and_exceptions_come_back_from_the_child(node):
    simulator = node()
    assert simulator.call(lambda a, b=0: (os.getpid() != 0, a, b), 1, b=2) == (True, 1, 2)
    with pytest.raises(nv.NVMLError_InvalidArgument):
        simulator.call(lambda: client.gpu(3))
    with pytest.raises(ZeroDivisionError):
        simulator.call(lambda: 1 // 0)
    with pytest.raises(SystemExit):
        simulator.call(sys.exit, 3)
    with pytest.raises(SimulatorError, match="cannot be handed"):
        simulator.call(lambda: lambda: None)


def test_a_child_that_dies_or_takes_too_long_is_told_apart(node):
    simulator = node()
    with pytest.raises(ChildKilled) as death:
        simulator.call(lambda: os.kill(os.getpid(), 9))
    assert death.value.signal == 9
    start = time.monotonic()
    with pytest.raises(TimeoutError):
        simulator.call(lambda: time.sleep(60), timeout=0.2)
    assert time.monotonic() - start < 10


def test_the_parent_of_a_child_sees_no_node(node):
    node().call(client.turn_on)
    assert "NVMLSIM_STATE" not in os.environ
    with open("/proc/self/maps", encoding="utf-8") as maps:
        assert "libnvidia-ml" not in maps.read()


def test_a_process_that_is_attached_sees_one_node_after_the_other(node):
    first, second, other_driver = node("1xa30-24gb"), node("2xa30-24gb"), node(driver="535")

    def both():
        counts = []
        for simulator in (first, second):
            simulator.attach()
            nv.nvmlInit()
            counts.append(nv.nvmlDeviceGetCount())
            nv.nvmlShutdown()
        with pytest.raises(SimulatorError, match="needs another process"):
            other_driver.attach()
        return counts

    assert first.call(both) == [1, 2]


def test_a_state_file_of_another_version_is_refused(node):
    simulator = node()
    with open(simulator.path, "r+b") as state:
        state.seek(8)
        state.write(b"\xff\xff\xff\xff")
    with pytest.raises(SimulatorError, match="another version"):
        simulator.describe()
    assert simulator_cannot_start(simulator)


def simulator_cannot_start(simulator):
    code = "import pynvml\ntry: pynvml.nvmlInit()\nexcept pynvml.NVMLError as error: print(error.value)"
    env = {**os.environ, "NVMLSIM_STATE": str(simulator.path), "LD_LIBRARY_PATH": str(simulator.library)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    return done.stdout == f"{nv.NVML_ERROR_DRIVER_NOT_LOADED}\n"
