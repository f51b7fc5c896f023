# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Puts on a node what runs there without a controller: the engine and the NVML binding.

This file is private to the collection gpufleet.mig and may change at any time.

The engine that is installed is the one that this module runs with, so nothing is fetched from anywhere. It lies in a
folder named after its content, to which the link ``engine`` leads:

    STATE/runtime/5f0c…/engine/*.py
    STATE/engine -> runtime/5f0c…/engine
    STATE/binding/pynvml.py

So a command finds all of one version or all of another, also while a new one is being installed. The version that was
there before stays as long as it is the last one: something may still be running with it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import pkgutil
import shutil
import subprocess
import sys
import typing as t

from . import ansible_bridge, engine
from .engine import cli as command  # noqa: F401  # pylint: disable=unused-import  # all that it needs comes along
from .engine import driver, state
from .engine.model import DriverError, MigError, WishError

if t.TYPE_CHECKING:
    from ansible.module_utils.basic import AnsibleModule

Sources = dict[str, bytes]

ARGUMENTS: dict[str, t.Any] = {**ansible_bridge.COMMON_ARGUMENTS, "python": {"type": "path"}}

_IMPORTS_BINDING = "import sys; sys.path.insert(0, sys.argv[1]); import pynvml; print(pynvml.__file__)"
_SECONDS = 60.0


def install(module: AnsibleModule) -> ansible_bridge.Result:
    """Bring the node to this version of the engine, and to a binding that its Python finds by itself."""
    places = state.places(module.params["state_dir"])
    if os.path.isdir(places.state):
        state.our_folder(places.state)
    python = _interpreter(module.params["python"])
    place = _Place(places.state, _own_sources())
    binding = _Binding(os.path.join(places.state, "binding"), module.params["_binding"], python)
    origin = binding.origin()
    before = {"engine": place.present(), "binding": binding.present()}
    after = {"engine": place.version, "binding": "present" if origin == "payload" else before["binding"]}
    changed = before != after or origin == "payload" or place.needs_repair()
    if changed and not module.check_mode:
        place.install(python)
        origin = binding.install() or origin
    return {
        "changed": changed,
        "engine": {"path": place.link, "version": place.version},
        "binding": origin,
        "python": python,
        "state_dir": places.state,
        "diff": {"before": _lines(before), "after": _lines(after)},
        "msg": f"Engine {place.version} {_is_there(changed, module.check_mode)} in {place.link}.",
    }


def _is_there(changed: bool, check_mode: bool) -> str:
    if not changed:
        return "is already"
    return "would be installed" if check_mode else "is installed"


def _lines(facts: t.Mapping[str, str]) -> str:
    return "".join(f"{name}: {value}\n" for name, value in facts.items())


def _interpreter(given: t.Optional[str]) -> str:
    """The Python that will run the engine on this node: the given one, or the one that runs this."""
    python = given or sys.executable
    if not os.path.isabs(python) or not os.access(python, os.X_OK):
        raise WishError(f"python is {python!r}, which is no program on this node; give the absolute path of a Python.")
    return python


def _own_sources() -> Sources:
    """The files of the engine that came with this task, by name. Raises MigError."""
    sources: Sources = {}
    for found in pkgutil.iter_modules(engine.__path__):
        spec = importlib.util.find_spec(f"{engine.__name__}.{found.name}")
        loader = getattr(spec, "loader", None)
        if spec is None or spec.origin is None or loader is None:
            raise MigError(f"The engine came without its file {found.name}.py: install the collection again.")
        sources[f"{found.name}.py"] = loader.get_data(spec.origin)
    sources["__init__.py"] = b""
    return sources


class _Place:
    """Where the engine lies, and what is there now."""

    def __init__(self, folder: str, sources: Sources) -> None:
        self._folder = folder
        self._sources = sources
        content = b"".join(name.encode() + b"\0" + sources[name] + b"\0" for name in sorted(sources))
        self.version = hashlib.sha256(content).hexdigest()[:16]
        self.link = os.path.join(folder, "engine")
        self._versions = os.path.join(folder, "runtime")
        self._target = os.path.join(self._versions, self.version, "engine")

    def present(self) -> str:
        """The version that is installed. Raises MigError where something else has the name of the link."""
        if not os.path.islink(self.link):
            if os.path.exists(self.link):
                raise MigError(f"{self.link} is not a link that gpufleet.mig made: move it away, and run again.")
            return "absent"
        return os.path.basename(os.path.dirname(os.readlink(self.link)))

    def needs_repair(self) -> bool:
        """Whether files are not what they are meant to be, or closed to users who may at least look at the GPUs."""
        return not self._is_intact() or not os.stat(self._folder).st_mode & 0o001

    def _is_intact(self) -> bool:
        return _files_in(self._target) == self._sources

    def install(self, python: str) -> None:
        """Write the files, compile them for this Python, and lead the link to them."""
        umask = os.umask(0o022)
        try:
            state.our_folder(self._folder)
            # To look into a folder and to pass through it are two rights; the files in it stay root's alone.
            os.chmod(self._folder, os.stat(self._folder).st_mode & 0o7777 | 0o011)
            os.makedirs(self._versions, exist_ok=True)
            if not self._is_intact():
                self._write(python)
            before = self.present()
            new = f"{self.link}.new"
            if os.path.islink(new):
                os.unlink(new)
            os.symlink(os.path.relpath(self._target, self._folder), new)
            os.replace(new, self.link)
            self._remove_all_but({self.version, before})
        except OSError as error:
            raise MigError(f"The engine could not be installed in {self._folder}: {error}.") from None
        finally:
            os.umask(umask)

    def _write(self, python: str) -> None:
        new = os.path.join(self._versions, f".{self.version}.new")
        shutil.rmtree(new, ignore_errors=True)
        os.makedirs(os.path.join(new, "engine"))
        for name, content in self._sources.items():
            with open(os.path.join(new, "engine", name), "wb") as file:
                file.write(content)
        shutil.rmtree(os.path.dirname(self._target), ignore_errors=True)
        os.rename(new, os.path.dirname(self._target))
        # Whoever may not write there would compile everything each time. Without it, it only takes longer.
        _run([python, "-I", "-m", "compileall", "-q", self._target])

    def _remove_all_but(self, kept: t.Collection[str]) -> None:
        for version in os.listdir(self._versions):
            if version not in kept:
                shutil.rmtree(os.path.join(self._versions, version), ignore_errors=True)


def _files_in(folder: str) -> Sources:
    """What is in a folder, without what Python compiled."""
    files: Sources = {}
    if os.path.isdir(folder):
        for name in os.listdir(folder):
            path = os.path.join(folder, name)
            if os.path.isfile(path):
                with open(path, "rb") as file:
                    files[name] = file.read()
    return files


class _Binding:
    """The NVML binding of a node, as the command there will find it: with no help from anybody's environment."""

    def __init__(self, folder: str, archive: t.Optional[str], python: str) -> None:
        self._folder = folder
        self._archive = archive
        self._python = python

    def present(self) -> str:
        """Whether there is one in our folder."""
        return "present" if os.path.exists(os.path.join(self._folder, "pynvml.py")) else "absent"

    def origin(self) -> str:
        """``payload`` where it came with this task, ``installed``, or ``node``. Raises DriverError for none."""
        unsafe = driver.why_not_safe(self._folder) if os.path.exists(self._folder) else None
        if unsafe:
            raise MigError(f"{unsafe}.")
        if self._archive:
            return "payload"
        answer = _run([self._python, "-I", "-c", _IMPORTS_BINDING, self._folder])
        if answer is None:
            raise DriverError(
                f"{self._python} finds no NVML binding: install nvidia-ml-py on the controller, or for this Python.",
                call="import pynvml",
                error="BINDING_MISSING",
            )
        return "installed" if answer.startswith(self._folder + os.sep) else "node"

    def install(self) -> str:
        """Unpack the binding that came with this task, if one did; returns where it is then."""
        if not self._archive:
            return ""
        try:
            ansible_bridge.install_binding(self._archive, self._folder)
        except OSError as error:
            raise MigError(f"The NVML binding could not be installed in {self._folder}: {error}.") from None
        return "installed"


def _run(words: t.Sequence[str]) -> t.Optional[str]:
    """What a program prints; None where it fails."""
    try:
        done = subprocess.run(  # pylint: disable=ansible-bad-function  # run_command has no time limit
            words,
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            timeout=_SECONDS,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout
