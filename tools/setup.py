# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Makes everything that demo, checks and tests need below ``.venv/``; does nothing where it is there already.

    setup.py               the main environment: enough for `make demo` and `make check`
    setup.py --nodes       also what nodes are booted of: enough for `make demo-fleet`
    setup.py --kubernetes  also other collections: enough for `make demo-kubernetes`
    setup.py --all         all environments: what `make test` needs

========================== ===========================================================================
.venv                      ansible-core's last line for Python 3.11, the lint tools, the simulator
.venv/newest               the newest ansible-core, on Python 3.12 or newer, the simulator
.venv/importer             Galaxy's import checks, which do not get along with the rest
.venv/collections          ansible_collections/gpufleet/mig -> this repository; for tests the other TEST_COLLECTIONS
.venv/pythons              pythonX.Y -> every interpreter found that a managed node may have
.venv/nodes                what tests/nodes boots nodes of, where nodes can be booted
.venv/home                 HOMEs of ansible-test: its caches, and pip's settings of whoever runs this
========================== ===========================================================================

Each environment carries a stamp, the hash of what it was made from. Run by the interpreter that `.venv` will have
(the Makefile finds it); standard library only.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
SIMULATOR = ROOT / "tests" / "simulator"
FIND_PYTHON = ROOT / "tools" / "find_python.sh"

NEWEST_CORE_PYTHONS = ("3.14", "3.13", "3.12")
NODE_PYTHONS = ("3.9", "3.10", "3.11", "3.12", "3.13", "3.14")
TEST_COLLECTIONS = ("community/general", "awx/awx", "kubernetes/core")

GET_PIP = '''\
"""Stands in for get-pip.py, which ansible-test would fetch from a host of its own: Python brings a pip."""

import subprocess
import sys

options = [option for option in sys.argv[1:] if option not in ("--no-setuptools", "--no-wheel")]
# In a child, because ensurepip turns off pip's settings for its own process.
subprocess.check_call([sys.executable, "-m", "ensurepip", "--default-pip"])
subprocess.check_call([sys.executable, "-m", "pip", "install", "--upgrade"] + options)
'''


def say(text: str) -> None:
    print(f"setup: {text}", flush=True)


def run(*command: str | Path) -> None:
    """Runs a command quietly; what it printed is shown when it fails."""
    done = subprocess.run(
        command,
        check=False,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode:
        sys.stdout.buffer.write(done.stdout)
        sys.exit(f"setup: failed ({done.returncode}): {' '.join(map(str, command))}")


def find_python(*versions: str) -> str | None:
    """The first of these versions that really runs, as a path."""
    done = subprocess.run([FIND_PYTHON, *versions], check=False, stdout=subprocess.PIPE, text=True)
    return done.stdout.strip() or None


def recipe(python: str | Path, sources: list[Path]) -> str:
    """Hash of all that an environment is made from: its kind of interpreter, its place and its requirements."""
    ask = "import sys; print(*sys.version_info[:2])"
    version = subprocess.run([python, "-c", ask], check=True, stdout=subprocess.PIPE).stdout
    digest = hashlib.sha256(version + bytes(ROOT))
    for source in sources:
        digest.update(source.read_bytes())
    return digest.hexdigest()


def runs(python: Path) -> bool:
    """Whether an environment still works: the interpreter that it was made from may be gone."""
    return (
        python.exists() and subprocess.run([python, "-c", ""], check=False, stderr=subprocess.DEVNULL).returncode == 0
    )


def make_environment(folder: Path, python: str, requirements: list[Path]) -> None:
    """A virtual environment with these requirements; made anew when they changed."""
    stamp = folder / ".stamp"
    wanted = recipe(python, requirements)
    if stamp.exists() and stamp.read_text() == wanted and runs(folder / "bin" / "python"):
        return
    say(f"making {folder.relative_to(ROOT)} with {python}")
    started = time.monotonic()
    for leftover in (".stamp", ".stamp-simulator", "bin", "lib", "lib64", "include"):
        path = folder / leftover
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
    run(python, "-m", "venv", folder)
    pip_install(folder, *(word for file in requirements for word in ("-r", file)))
    stamp.write_text(wanted)
    say(f"{folder.relative_to(ROOT)} took {time.monotonic() - started:.0f} s")


def install_simulator(folder: Path) -> None:
    """The simulator as an editable package: what is changed in its sources counts at once."""
    stamp = folder / ".stamp-simulator"
    wanted = recipe(folder / "bin" / "python", [SIMULATOR / "pyproject.toml"])
    if stamp.exists() and stamp.read_text() == wanted:
        return
    # setuptools is pinned among the requirements, so that nothing unpinned is fetched to build this.
    pip_install(folder, "--no-deps", "--no-build-isolation", "--editable", SIMULATOR)
    stamp.write_text(wanted)


def pip_install(folder: Path, *words: str | Path) -> None:
    run(folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *words)


def link_collection() -> None:
    """The tree in which Ansible and Python find this repository as the collection gpufleet.mig."""
    link = VENV / "collections" / "ansible_collections" / "gpufleet" / "mig"
    link.parent.mkdir(parents=True, exist_ok=True)
    target = os.path.relpath(ROOT, link.parent)
    if not link.is_symlink() or os.readlink(link) != target:
        link.unlink(missing_ok=True)
        link.symlink_to(target)


def unpack_collections() -> None:
    """The collections that tests need. They come from PyPI, as packages do, not from Galaxy."""
    source = ROOT / "requirements" / "collections.txt"
    root = VENV / "collections" / "ansible_collections"
    stamp = VENV / "collections" / ".stamp"
    wanted = hashlib.sha256(source.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return
    for name in TEST_COLLECTIONS:
        shutil.rmtree(root / name, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=VENV) as scratch:
        words = ["download", "--quiet", "--disable-pip-version-check", "--no-deps", "--dest", scratch]
        run(VENV / "bin" / "python", "-m", "pip", *words, "-r", source)
        (wheel,) = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            wanted_folders = tuple(f"ansible_collections/{name}/" for name in TEST_COLLECTIONS)
            names = [name for name in archive.namelist() if name.startswith(wanted_folders)]
            archive.extractall(VENV / "collections", names)
    stamp.write_text(wanted)


def start_building_nodes() -> subprocess.Popen[bytes]:
    """What nodes are booted of, made beside all else: it waits for the network most of the time."""
    words: list[str | Path] = [VENV / "bin" / "python", "-m", "tests.nodes", "build"]
    return subprocess.Popen(words, cwd=ROOT, stdin=subprocess.DEVNULL)


def finish_building_nodes(building: subprocess.Popen[bytes]) -> None:
    if building.wait():
        # Not an end here either: on a machine without root or namespaces all other tests are worth running.
        say("the tests on nodes will be missing")


def link_pythons() -> None:
    """Interpreters by name for ansible-test, which would otherwise stumble over a version manager's dead shims."""
    folder = VENV / "pythons"
    folder.mkdir(exist_ok=True)
    for version in NODE_PYTHONS:
        link = folder / f"python{version}"
        python = find_python(version)
        if python and (not link.is_symlink() or os.readlink(link) != python):
            link.unlink(missing_ok=True)
            link.symlink_to(python)


def make_homes(environments: list[Path]) -> None:
    """HOMEs for ansible-test: it forgets pip's environment variables and asks the network for a get-pip.py."""
    settings = pip_settings()
    for environment in environments:
        home = VENV / "home" / ("main" if environment == VENV else environment.name)
        pip_conf = home / ".config" / "pip" / "pip.conf"
        pip_conf.parent.mkdir(parents=True, exist_ok=True)
        pip_conf.touch(mode=0o600)
        pip_conf.write_text(settings)
        cache = home / ".ansible" / "test" / "cache"
        cache.mkdir(parents=True, exist_ok=True)
        source = next(environment.glob("lib/python*/site-packages/ansible_test/_internal/python_requirements.py"))
        for version in set(re.findall(r"\bpip='([\d.]+)'", source.read_text())):
            (cache / f"get_pip_{version.replace('.', '_')}.py").write_text(GET_PIP)


def pip_settings() -> str:
    """pip's settings of whoever runs this, from all files and variables, as one file."""
    listed = subprocess.run(
        [VENV / "bin" / "python", "-m", "pip", "config", "list"], check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    # Lines such as  global.cert='/a/file'  and  :env:.find-links='/a/folder'  ; \\n separates the values of a list.
    # The same name again wins: variables come after files.
    settings = dict(re.findall(r"^(?:global|:env:)\.([\w-]+)='(.*)'$", listed, re.MULTILINE))
    lines = [f"{name} = " + value.replace("\\n", "\n    ") for name, value in settings.items()]
    return "\n".join(["[global]", *lines, ""])


def make_what_tests_need(compiler: list[Path]) -> None:
    requirements = ROOT / "requirements"
    link_pythons()
    make_environment(VENV / "importer", sys.executable, [requirements / "importer.txt"])
    environments = [VENV]
    newest = find_python(*NEWEST_CORE_PYTHONS)
    if newest:
        make_environment(VENV / "newest", newest, [requirements / "newest.txt", *compiler])
        install_simulator(VENV / "newest")
        environments.append(VENV / "newest")
    else:
        # Not an end here: the other tests are worth running. Those that need it will be red.
        say("no Python 3.12 or newer that runs: the steps on the newest ansible-core will fail")
    make_homes(environments)


def main() -> None:
    parser = argparse.ArgumentParser(description="Makes what demo, checks and tests need below .venv/.")
    parser.add_argument("--nodes", action="store_true", help="also what nodes are booted of")
    parser.add_argument("--kubernetes", action="store_true", help="also the collections of others that tests use")
    parser.add_argument("--all", action="store_true", help="also what only `make test` needs")
    options = parser.parse_args()

    VENV.mkdir(exist_ok=True)
    with open(VENV / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # somebody else may be at it in the same checkout
        requirements = ROOT / "requirements"
        main_requirements = [requirements / "main.txt"]
        if not any(shutil.which(name) for name in ("cc", "gcc", "clang")):
            main_requirements.append(requirements / "compiler.txt")
        compiler = main_requirements[1:]

        make_environment(VENV, sys.executable, main_requirements)
        install_simulator(VENV)
        link_collection()
        building = start_building_nodes() if options.nodes or options.all else None
        if options.kubernetes or options.all:
            unpack_collections()
        if options.all:
            make_what_tests_need(compiler)
        if building:
            finish_building_nodes(building)


if __name__ == "__main__":
    main()
