# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Puts on a node what runs there without a controller: the engine, the NVML binding and the command.

This file is private to the collection gpufleet.mig and may change at any time.

The engine that is installed is the one that this module runs with, so nothing is fetched from anywhere. It lies in a
folder named after its content, to which the link ``engine`` leads:

    STATE/runtime/5f0c…/engine/*.py
    STATE/engine -> runtime/5f0c…/engine
    STATE/binding/pynvml.py

So a command finds all of one version or all of another, also while a new one is being installed. The version that was
there before stays as long as it is the last one: something may still be running with it.

The binding is one file. Wherever it comes from, it is no package that is installed for a Python: those that pip or the
distribution manage are only looked at.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import pkgutil
import pwd
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
import typing as t
import zipfile

from . import ansible_bridge, engine, wheels
from .engine import cli as command  # noqa: F401  # pylint: disable=unused-import  # all that it needs comes along
from .engine import driver, state
from .engine.model import DriverError, MigError, WishError
from .engine.profiles import printable

if t.TYPE_CHECKING:
    from ansible.module_utils.basic import AnsibleModule

Sources = dict[str, bytes]

ARGUMENTS: dict[str, t.Any] = {
    **ansible_bridge.COMMON_ARGUMENTS,
    "python": {"type": "path"},
    "binding": {"type": "str", "choices": ["controller", "wheel_dir", "python"], "default": "controller"},
    "wheel_dir": {"type": "path"},
    "remote_src": {"type": "bool", "default": False},
    "command": {"type": "path"},
    "_binding_digest": {"type": "str"},
}

OLDEST_PYTHON = (3, 9)

# In words that Python 2 knows too.
_ASK_VERSION = "import sys; sys.stdout.write('version %d.%d' % sys.version_info[:2])"
# Prints where the binding is, if there is one that knows MIG; in front of what Python has goes the folder, if given.
_ASK_BINDING = """
import sys
sys.path[:0] = sys.argv[1:]
import pynvml
pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v3
print(pynvml.__file__)
"""
_SECONDS = 60.0

# -I: only what belongs to this Python and to this node's engine is imported. The link is followed once, so that all of
# the engine is of one version.
_COMMAND = """\
#!/bin/sh
# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# Managed by Ansible, module gpufleet.mig.mig_runtime. The node command of gpufleet.mig.
exec {python} -I -c '
import os, sys
engine, state_dir, *words = sys.argv[1:]
sys.path.insert(0, os.path.dirname(os.path.realpath(engine)))
from engine.cli import main
sys.exit(main(["--state-dir", state_dir, *words]))
' {engine} {state_dir} "$@"
"""


def install(module: AnsibleModule) -> ansible_bridge.Result:
    """Bring the node to this version of the engine, and to a binding that its Python finds by itself."""
    params = module.params
    places = state.places(params["state_dir"])
    if os.path.isdir(places.state):
        state.our_folder(places.state)
    python = _interpreter(params["python"])
    place = _Place(places.state, _own_sources())
    ours: dict[str, t.Any] = {
        "engine": {"path": place.link, "version": place.version},
        "python": python,
        "state_dir": places.state,
    }
    program = _Command(params["command"], python, place.link, places.state)
    binding = _Binding(os.path.join(places.state, "binding"), python)
    before = {"engine": place.present(), "binding": binding.present(), **program.present()}
    try:
        new = _wanted_binding(binding, params)
    except MigError as error:
        error.details.update(ours, check_mode=module.check_mode)
        raise
    after = {"engine": place.version, "binding": _name(new) if new else before["binding"], **program.wanted()}
    repair = place.needs_repair()
    changed = before != after or repair
    origin = "payload" if new else binding.origin()
    if changed and not module.check_mode:
        if before["engine"] != after["engine"] or repair:
            place.install(python)
        if new:
            origin = binding.install(new)
        program.install()
    return {
        "changed": changed,
        "binding": origin,
        **ours,
        **({"command": program.path} if program.path else {}),
        "diff": {"before": _lines(before), "after": _lines(after)},
        "msg": f"Engine {place.version} {_is_there(changed, module.check_mode)} in {place.link}.",
    }


def _wanted_binding(binding: _Binding, params: t.Mapping[str, t.Any]) -> t.Optional[bytes]:
    """What is to be put into our folder, or None where nothing is. Raises MigError where there is none to be had."""
    if params["binding"] == "python":
        return binding.missing_of_python()
    if params["binding"] == "wheel_dir":
        return binding.missing_of_wheel(params)
    if params["_binding"]:
        return _unpacked(params["_binding"])
    binding.origin()
    return None


def _is_there(changed: bool, check_mode: bool) -> str:
    if not changed:
        return "is already"
    return "would be installed" if check_mode else "is installed"


def _lines(facts: t.Mapping[str, str]) -> str:
    return "".join(f"{name}: {value}\n" for name, value in facts.items())


def _interpreter(given: t.Optional[str]) -> str:
    """The Python that will run the engine on this node: the given one, or the one that runs this. Raises WishError."""
    python = given or sys.executable
    if python == sys.executable:
        return python
    if not os.path.isabs(python) or not os.access(python, os.X_OK):
        raise WishError(f"python is {python!r}, which is no program on this node; give the absolute path of a Python.")
    answer = re.fullmatch(r"version (\d+)\.(\d+)", _run([python, "-c", _ASK_VERSION]) or "")
    if answer is None:
        raise WishError(f"python is {python!r}, which does not run as a Python; give the absolute path of one.")
    version = (int(answer[1]), int(answer[2]))
    if version < OLDEST_PYTHON:
        raise WishError(
            f"python is {python!r}, which is version {version[0]}.{version[1]}, and the engine needs 3.9 or newer:"
            " install one beside it, and name that."
        )
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

    def __init__(self, folder: str, python: str) -> None:
        self._folder = folder
        self._file = os.path.join(folder, wheels.MODULE)
        self._python = python

    def present(self) -> str:
        """The name of what is in our folder. Raises MigError where root must not use that."""
        unsafe = driver.why_not_safe(self._folder) if os.path.exists(self._folder) else None
        if unsafe:
            raise MigError(f"{unsafe}.")
        content = self._content()
        return "absent" if content is None else _name(content)

    def origin(self) -> str:
        """``installed`` in our folder, or ``node`` for a package of its Python. Raises DriverError for none."""
        found = self._found_by(self._python, self._folder)
        if found is None:
            raise DriverError(
                f"{self._python} finds no NVML binding: install nvidia-ml-py on the controller, or for this Python.",
                call="import pynvml",
                error="BINDING_MISSING",
            )
        return "installed" if found == self._file else "node"

    def missing_of_python(self) -> t.Optional[bytes]:
        """The binding that the Python of the engine has by itself, where our folder needs it too. Raises MigError.

        The modules may run with another Python, which has none; and what lies in our folder goes before what a Python
        has, so it must not be another one.
        """
        found = self._found_by(self._python)
        if found is None:
            raise DriverError(
                f"{self._python} has no NVML binding of its own that knows MIG: install nvidia-ml-py for it, or have"
                " the binding brought from elsewhere.",
                call="import pynvml",
                lacks_binding=True,
            )
        _require_ours_alone(found)
        with open(found, "rb") as file:
            content = file.read()
        here = self._content()
        needed = here is not None or not _modules_find_one()
        return content if needed and here != content else None

    def missing_of_wheel(self, params: t.Mapping[str, t.Any]) -> t.Optional[bytes]:
        """The binding of the wheel, unless it is in our folder. Raises MigError.

        A wheel of the controller is known by its content at first, and only brought where that is missing here.
        """
        if params["wheel_dir"] is None:
            raise WishError("binding is wheel_dir: name the folder of the wheel as wheel_dir.")
        here = self._content()
        if params["remote_src"]:
            wheel = wheels.newest(params["wheel_dir"])
            _require_ours_alone(wheel)
            content = wheels.read(wheel)
        elif here is not None and hashlib.sha256(here).hexdigest() == params["_binding_digest"]:
            return None
        elif params["_binding"]:
            content = _unpacked(params["_binding"])
        else:
            raise DriverError("The binding of the wheel is not on this node.", error="BINDING_MISSING")
        return None if content == here else content

    def install(self, content: bytes) -> str:
        """Put a binding into our folder; returns where the Python of the engine finds it then. Raises MigError."""
        try:
            with tempfile.TemporaryDirectory() as workshop:
                archive = os.path.join(workshop, "binding.zip")
                with zipfile.ZipFile(archive, "w") as packed:
                    packed.writestr(wheels.MODULE, content)
                ansible_bridge.install_binding(archive, self._folder)
        except OSError as error:
            raise MigError(f"The NVML binding could not be installed in {self._folder}: {error}.") from None
        if self._found_by(self._python, self._folder) is None:
            raise MigError(f"{self._python} cannot import the NVML binding that was put into {self._folder}.")
        return "installed"

    def _content(self) -> t.Optional[bytes]:
        try:
            with open(self._file, "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def _found_by(self, python: str, *folders: str) -> t.Optional[str]:
        """The file that a Python imports; None where it has none that can be used."""
        answer = _run([python, "-I", "-c", _ASK_BINDING, *folders])
        return answer.strip() if answer else None


def _modules_find_one() -> bool:
    """Whether modules of this collection find a binding without our folder, as this one runs."""
    try:
        driver.load_binding()
    except DriverError:
        return False
    return True


def _unpacked(archive: str) -> bytes:
    """The binding that came with this task."""
    with zipfile.ZipFile(archive) as packed:
        return packed.read(wheels.MODULE)


def _name(content: bytes) -> str:
    """A short name of a binding, made of its content."""
    return hashlib.sha256(content).hexdigest()[:16]


def _require_ours_alone(path: str) -> None:
    """Raise WishError where this runs as root and others decide what is in a file that becomes part of it."""
    if os.geteuid() != 0:
        return
    real = os.path.realpath(path)
    for each in (real, os.path.dirname(real)):
        status = os.stat(each)
        if status.st_uid != 0 or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise WishError(
                f"{printable(path)} is not used, since this runs as root and others than root can write to"
                f" {printable(each)} (owner {_user(status.st_uid)}, mode {stat.S_IMODE(status.st_mode):04o}): give it"
                " to root alone."
            )


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


class _Command:
    """The command for people on the node, where one is wanted: a few lines of shell that start the engine."""

    def __init__(self, path: t.Optional[str], python: str, link: str, state_dir: str) -> None:
        self.path = path
        words = {"python": python, "engine": link, "state_dir": state_dir}
        text = _COMMAND.format(**{name: shlex.quote(word) for name, word in words.items()})
        self._content = text.encode("utf-8", "surrogateescape")

    def present(self) -> dict[str, str]:
        """What is there, for the comparison with what is wanted. Raises WishError for a path that is none."""
        if self.path is None:
            return {}
        if not os.path.isabs(self.path) or os.path.isdir(self.path):
            raise WishError(f"command is {self.path!r}; give the absolute path of a file.")
        try:
            with open(self.path, "rb") as file:
                mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
                intact = file.read() == self._content
        except (FileNotFoundError, NotADirectoryError):
            return {"command": "absent"}
        except OSError as error:
            raise WishError(f"command {self.path!r} cannot be read: {error.strerror}.") from None
        return {"command": f"{self.path} {mode:04o}" if intact else "another"}

    def wanted(self) -> dict[str, str]:
        return {} if self.path is None else {"command": f"{self.path} 0755"}

    def install(self) -> None:
        """Write it, whole at once, in a folder that minimal systems may lack. Raises MigError."""
        if self.path is None or self.present() == self.wanted():
            return
        new = f"{self.path}.new"
        umask = os.umask(0o022)
        try:
            os.makedirs(os.path.dirname(self.path), exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(new)
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o755)
            with open(descriptor, "wb") as file:
                file.write(self._content)
            os.replace(new, self.path)
        except OSError as error:
            raise MigError(f"The command {self.path} could not be written: {error}.") from None
        finally:
            os.umask(umask)


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
