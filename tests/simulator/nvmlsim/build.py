# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Compile the simulated library, once for each state of its sources, and keep it.

A driver lacks the functions that came after it, so there is one library per driver branch that brought new ones. They
differ in the names they export and in nothing else. The folder of a build looks like this::

    <cache>/<hash of sources, compiler and flags>/525/libnvidia-ml.so.1
                                                  535/libnvidia-ml.so.1
                                                  ...
                                                  control/nvmlsim-control.so     nvmlsim_* only, for the command
                                                  bin/nvidia-smi                 a stand-in, with the library in it
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tempfile
import typing as t

from nvmlsim.errors import SimulatorError

OLDEST_BRANCH = 525
COMPILE_FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra")
LINK_FLAGS = ("-shared", "-pthread", "-Wl,-Bsymbolic")
CONTROL_NAME = "nvmlsim-control.so"
LIBRARY_NAME = "libnvidia-ml.so.1"
PROGRAM_SOURCE = "nvidia_smi"
# What the record and faults know besides NVML's functions: name in C, and name for people.
OTHER_CALLS = {"nvidia_smi_gpu_reset": "nvidia-smi --gpu-reset"}


class Symbol(t.NamedTuple):
    """A function that the library exports: from driver branch ``since`` on; ``clients`` bind it."""

    name: str
    since: int
    clients: tuple[str, ...]


class Build(t.NamedTuple):
    """A finished build."""

    folder: pathlib.Path
    branches: tuple[int, ...]

    def library_folder(self, branch: int) -> pathlib.Path:
        """The folder with the library of a driver of this branch: that of the newest one that is not newer."""
        suitable = [known for known in self.branches if known <= branch]
        if not suitable:
            raise SimulatorError(f"driver branch {branch} is too old to simulate: {self.branches[0]} is the oldest")
        return self.folder / str(max(suitable))

    @property
    def control(self) -> pathlib.Path:
        """The library that only has the functions of the command."""
        return self.folder / "control" / CONTROL_NAME

    @property
    def programs(self) -> pathlib.Path:
        """The folder with the stand-in for nvidia-smi."""
        return self.folder / "bin"


def source_folder() -> pathlib.Path:
    """Where the C sources are: inside an installed package, beside it in a checkout."""
    here = pathlib.Path(__file__).resolve().parent
    for folder in (here / "src", here.parent / "src"):
        if (folder / "symbols.txt").is_file():
            return folder
    raise SimulatorError(f"the C sources of the simulated library are neither in {here} nor beside it")


def cache_folder() -> pathlib.Path:
    """``NVMLSIM_CACHE``, or inside the virtual environment that runs this, or in the user's cache folder."""
    if os.environ.get("NVMLSIM_CACHE"):
        return pathlib.Path(os.environ["NVMLSIM_CACHE"]).absolute()
    if sys.prefix != sys.base_prefix and os.access(sys.prefix, os.W_OK):
        return pathlib.Path(sys.prefix) / "cache" / "nvmlsim"
    if os.environ.get("XDG_CACHE_HOME"):
        return pathlib.Path(os.environ["XDG_CACHE_HOME"]).absolute() / "nvmlsim"
    return pathlib.Path.home() / ".cache" / "nvmlsim"


def read_symbols(folder: pathlib.Path) -> tuple[Symbol, ...]:
    """The lines ``NAME SINCE CLIENT,CLIENT`` of symbols.txt."""
    symbols = []
    for line in (folder / "symbols.txt").read_text(encoding="utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            name, since, clients = line.split()
            symbols.append(Symbol(name, int(since), tuple(clients.split(","))))
    return tuple(symbols)


def find_compiler() -> tuple[str, ...]:
    """``$CC``, cc, gcc or clang; else the compiler inside the Python package ziglang."""
    if os.environ.get("CC"):
        return tuple(os.environ["CC"].split())
    for name in ("cc", "gcc", "clang"):
        if shutil.which(name):
            return (name,)
    if importlib.util.find_spec("ziglang"):
        return (sys.executable, "-m", "ziglang", "cc")
    raise SimulatorError("no C compiler found: install one (package gcc or clang), or `pip install ziglang`, or set CC")


def ensure_built() -> Build:
    """The library for the sources as they are now. Several processes may ask at the same time: one compiles."""
    sources = source_folder()
    compiler = find_compiler()
    symbols = read_symbols(sources)
    branches = tuple(sorted({OLDEST_BRANCH} | {s.since for s in symbols if s.since > OLDEST_BRANCH}))
    cache = cache_folder()
    folder = cache / _fingerprint(sources, compiler)
    build = Build(folder, branches)
    if build.control.exists():
        return build
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with open(f"{folder}.lock", "w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not build.control.exists():
                _build(build, sources, compiler, symbols)
    except OSError as error:
        raise SimulatorError(f"cannot keep the compiled library in {cache}: {error} (set NVMLSIM_CACHE)") from error
    return build


def _fingerprint(sources: pathlib.Path, compiler: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    digest.update(repr((compiler, COMPILE_FLAGS, LINK_FLAGS, platform.machine())).encode())
    digest.update(pathlib.Path(__file__).read_bytes())
    for path in sorted(sources.iterdir()):
        if path.suffix in (".c", ".h", ".txt"):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:20]


def _build(build: Build, sources: pathlib.Path, compiler: tuple[str, ...], symbols: tuple[Symbol, ...]) -> None:
    """Build in a folder of our own and rename it: a build that is interrupted leaves nothing that looks finished."""
    work = pathlib.Path(tempfile.mkdtemp(prefix=f"{build.folder.name}.", dir=build.folder.parent))
    try:
        work.chmod(0o755)
        objects = _compile(work, sources, compiler, symbols)
        _link_program(compiler, objects, work / "bin", "nvidia-smi")
        objects = [path for path in objects if pathlib.Path(path).stem != PROGRAM_SOURCE]
        _link(compiler, objects, work / "control", CONTROL_NAME, ["nvmlsim_*"])
        for branch in build.branches:
            names = [symbol.name for symbol in symbols if symbol.since <= branch]
            _link(compiler, objects, work / str(branch), LIBRARY_NAME, ["nvmlsim_*", *names])
        shutil.rmtree(work / "objects")
        os.rename(work, build.folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _compile(
    work: pathlib.Path, sources: pathlib.Path, compiler: tuple[str, ...], symbols: tuple[Symbol, ...]
) -> list[str]:
    folder = work / "objects"
    folder.mkdir()
    names = [symbol.name for symbol in symbols]
    (folder / "symbols_generated.h").write_text(
        "enum {\n" + "".join(f"    F_{name},\n" for name in [*names, *OTHER_CALLS]) + "    FUNCTION_COUNT\n};\n",
        encoding="utf-8",
    )
    (folder / "symbols_generated.c").write_text(
        '#include "internal.h"\n\nconst char *const function_names[FUNCTION_COUNT] = {\n'
        + "".join(f'    "{name}",\n' for name in [*names, *OTHER_CALLS.values()])
        + "};\n\n"
        + "".join(f"STUB({name})\n" for name in names),
        encoding="utf-8",
    )
    flags = [*COMPILE_FLAGS, f"-I{folder}", f"-I{sources}"]
    if "ziglang" in compiler:
        flags.append("-fno-sanitize=undefined")  # zig's default would need its run-time library
    objects = []
    for source in [*sorted(sources.glob("*.c")), folder / "symbols_generated.c"]:
        target = str(folder / f"{source.stem}.o")
        _run([*compiler, *flags, "-c", str(source), "-o", target])
        objects.append(target)
    return objects


def _link(
    compiler: tuple[str, ...], objects: list[str], folder: pathlib.Path, name: str, exported: t.Sequence[str]
) -> None:
    folder.mkdir()
    script = folder / "exported.map"
    script.write_text(
        "{ global: " + " ".join(f"{symbol};" for symbol in exported) + " local: *; };\n", encoding="utf-8"
    )
    target = str(folder / name)
    _run([*compiler, *LINK_FLAGS, f"-Wl,-soname,{name}", f"-Wl,--version-script={script}", "-o", target, *objects])


def _link_program(compiler: tuple[str, ...], objects: list[str], folder: pathlib.Path, name: str) -> None:
    folder.mkdir()
    _run([*compiler, "-pthread", "-o", str(folder / name), *objects])


def _run(command: t.Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SimulatorError(f"the simulated library does not compile: {' '.join(command)}\n{done.stderr.strip()}")
