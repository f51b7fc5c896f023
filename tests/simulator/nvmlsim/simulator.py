# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A simulated node from Python: make it, use it from this process or from others, watch it and disturb it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pathlib
import pickle
import select
import signal
import subprocess
import time
import traceback
import typing as t

from nvmlsim import control, description, drawing
from nvmlsim.build import LIBRARY_NAME
from nvmlsim.errors import ChildKilled, SimulatorError

HOLDER_KINDS = ("compute", "graphics", "hidden", "client")
VIRTUALIZATIONS = ("none", "passthrough")
REMAPS = ("none", "pending", "failed")
PRIVILEGED = ("owner", "root", "nobody")

_attached_library: t.Optional[pathlib.Path] = None  # the library that this process has loaded for good


class Call(t.NamedTuple):
    """One call of an NVML function, in the order in which the calls began.

    ``gpu``, ``gi`` and ``ci`` are ``None`` where the function has no such thing. ``code`` is NVML's name of the result
    without NVML_ERROR_, ``UNFINISHED`` for a call that has not returned (or never will). ``detail`` says what a write
    asked for: ``mode=1``, ``profile=19``, ``profile=9 start=4 size=4``. ``started`` is in seconds since the epoch.
    """

    sequence: int
    pid: int
    function: str
    gpu: t.Optional[int]
    gi: t.Optional[int]
    ci: t.Optional[int]
    code: str
    seconds: float
    detail: str
    started: float
    write: bool


class Holder:
    """A process that holds a GPU or an instance until ``release`` or the end of a ``with`` block."""

    def __init__(self, simulator: Simulator, pid: int, process: t.Optional[subprocess.Popen[bytes]]) -> None:
        self.pid = pid
        self._simulator = simulator
        self._process = process

    def release(self) -> None:
        """It holds nothing any more; a process that was started for this ends."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process.wait()
            self._process = None
        control.occupy(str(self._simulator.path), f"remove pid={self.pid}")

    def __enter__(self) -> Holder:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class Simulator:
    """A simulated node. Its whole state is the file ``path``, which any number of processes share."""

    def __init__(self, path: t.Union[str, os.PathLike[str]]) -> None:
        self.path = pathlib.Path(path).absolute()
        if not self.path.is_file():
            raise SimulatorError(f"{self.path} is not a simulated node: no such file")
        self.driver: str = control.describe(str(self.path))["driver"]

    @classmethod
    def create(
        cls,
        path: t.Union[str, os.PathLike[str]],
        gpus: str = "1xa100-sxm4-40gb",
        *,
        driver: str = description.DEFAULT_DRIVER,
        chips: str = "N",
        virtualization: str = "none",
        persistence: bool = True,
        privileged: str = "owner",
        seed: str = "",
        assume: t.Optional[t.Mapping[str, t.Any]] = None,
        rename: t.Optional[t.Mapping[str, str]] = None,
        fabric_manager: t.Optional[bool] = None,
        resettable: bool = True,
    ) -> Simulator:
        """Make a node, or make it anew where there is one.

        ``gpus`` is ``8xa100-sxm4-40gb``, a list of such, or a system's name. ``driver`` is a branch or a full version.
        ``chips`` has one letter per GPU, N or S, and repeats. ``privileged`` says who passes NVML's check for root:
        root and the ``owner`` of the state file, only ``root``, or ``nobody``. ``seed`` changes all UUIDs.
        ``assume`` answers open questions (``nvmlsim create --help``). ``rename`` gives profiles the name that another
        driver prints, as ``{"3g.40gb": "3g.39gb"}``. ``fabric_manager`` makes a node with NVSwitches, and says whether
        its Fabric Manager runs. One that is not ``resettable`` has no way to reset a GPU, as some servers have none.
        """
        full = description.full_version(driver)
        answers = {name: str(value) for name, value in (assume or {}).items()}
        _check_board_assumptions(answers)
        placed = description.place_gpus(gpus, driver=full, chips=chips, seed=seed, assume=answers)
        text = description.describe_node(
            placed,
            driver=full,
            virtualization=virtualization,
            persistence=persistence,
            privileged=privileged,
            assume=answers,
            rename=rename or {},
            fabric_manager=fabric_manager,
            resettable=resettable,
        )
        control.build().library_folder(description.branch_of(full))
        control.create(str(path), text)
        return cls(path)

    # ---- use -----------------------------------------------------------------------------------------------------

    @property
    def library(self) -> pathlib.Path:
        """The folder with this node's libnvidia-ml.so.1."""
        return control.build().library_folder(description.branch_of(self.driver))

    def env(self, base: t.Optional[t.Mapping[str, str]] = None) -> dict[str, str]:
        """An environment in which programs see this node: ``base``, or that of this process, and three variables."""
        env = dict(os.environ if base is None else base)
        others = env.get("LD_LIBRARY_PATH")
        env["LD_LIBRARY_PATH"] = f"{self.library}:{others}" if others else str(self.library)
        env["NVMLSIM_STATE"] = str(self.path)
        env["PATH"] = _with_programs(env.get("PATH"))
        return env

    def run(self, command: t.Sequence[str], **options: t.Any) -> subprocess.CompletedProcess[str]:
        """``subprocess.run`` in ``env()``, with output as text in the result."""
        options = {"env": self.env(), "text": True, "capture_output": True, "check": False, **options}
        return subprocess.run(list(command), **options)

    def attach(self) -> None:
        """Let this process see this node, for good: the library stays loaded.

        A process can attach to several nodes one after the other, but only of the same driver branch: the dynamic
        linker loads one libnvidia-ml.so.1 per process.
        """
        global _attached_library
        library = self.library / LIBRARY_NAME
        if _attached_library not in (None, library):
            raise SimulatorError(
                f"this process has loaded {_attached_library}; {library} needs another process (Simulator.call)"
            )
        os.environ["NVMLSIM_STATE"] = str(self.path)
        os.environ["PATH"] = _with_programs(os.environ.get("PATH"))
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
        _attached_library = library

    def call(
        self,
        function: t.Callable[..., t.Any],
        *args: t.Any,
        uid: t.Optional[int] = None,
        timeout: float = 60.0,
        **kwargs: t.Any,
    ) -> t.Any:
        """What ``function`` returns, or raises, in a forked child that sees this node; as user ``uid`` when given.

        A child that is killed raises ``ChildKilled``, one that takes longer than ``timeout`` seconds ``TimeoutError``.
        """
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            self._answer(writer, function, args, kwargs, uid)
        os.close(writer)
        try:
            answer = _read_all(reader, timeout)
        except BaseException:
            os.kill(child, signal.SIGKILL)
            raise
        finally:
            os.close(reader)
            _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            raise ChildKilled(os.WTERMSIG(status))
        kind, value = pickle.loads(answer)
        if kind == "raised":
            raise value
        return value

    def _answer(
        self, writer: int, function: t.Callable[..., t.Any], args: t.Any, kwargs: t.Any, uid: t.Optional[int]
    ) -> t.NoReturn:
        """The child's part of ``call``. It ends here and runs nothing that its parent meant to run at exit."""
        try:
            self.attach()
            if uid is not None:
                os.setgroups([])
                os.setgid(uid)
                os.setuid(uid)
            answer = _pickled("returned", function(*args, **kwargs))
        except BaseException as error:
            answer = _pickled("raised", error)
        with contextlib.suppress(BrokenPipeError), os.fdopen(writer, "wb") as pipe:
            pipe.write(answer)
        os._exit(0)

    # ---- watch ---------------------------------------------------------------------------------------------------

    def describe(self) -> dict[str, t.Any]:
        """The whole live state, as ``nvmlsim show --json`` prints it."""
        return drawing.mark_inferred(control.describe(str(self.path)))

    def show(self) -> str:
        """The state for people."""
        return drawing.draw_node(self.describe())

    def layouts(self) -> list[tuple[t.Any, ...]]:
        """Per GPU what is where: ``(name, start, size, ((CI name, start, size), ...))``, sorted by place."""
        return [
            tuple(
                sorted(
                    (
                        gi["name"],
                        gi["start"],
                        gi["size"],
                        tuple((c["name"], c["start"], c["size"]) for c in gi["compute"]),
                    )
                    for gi in gpu["instances"]
                )
            )
            for gpu in self.describe()["gpus"]
        ]

    def calls(self, reset: bool = False) -> list[Call]:
        """The recorded calls, oldest first. The record keeps the last 65,536."""
        return [_call(entry) for entry in control.calls(str(self.path), reset)["calls"]]

    def writes(self, ok: bool = False) -> list[Call]:
        """The calls that change something on the GPU, or try to. ``ok``: only those that succeeded."""
        return [call for call in self.calls() if call.write and (call.code == "SUCCESS" or not ok)]

    def counts(self) -> dict[str, int]:
        """How often each function was called, also when the record no longer has the calls themselves."""
        counts: dict[str, int] = control.calls(str(self.path), False)["counts"]
        return counts

    def reset_calls(self) -> None:
        """Start the record anew."""
        control.calls(str(self.path), True)

    # ---- disturb -------------------------------------------------------------------------------------------------

    def occupy(
        self,
        gpu: int,
        gi: t.Optional[int] = None,
        ci: t.Optional[int] = None,
        *,
        kind: str = "compute",
        name: str = "python",
        memory_mib: int = 100,
        pid: t.Optional[int] = None,
    ) -> Holder:
        """A process that holds a GPU, a GPU instance, or a compute instance (an instance by its id).

        ``kind``: ``compute`` and ``graphics`` stand in NVML's lists; ``hidden`` stands in none and holds all the same;
        ``client`` has the GPU open for monitoring. Without ``pid`` a process is started, which ends with the holder.
        """
        process = None
        if pid is None:
            # It ends when its input closes: also when we die without a word.
            process = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
            pid = process.pid
        places = "".join(f" {word}={value}" for word, value in (("gi", gi), ("ci", ci)) if value is not None)
        holder = Holder(self, pid, process)
        try:
            control.occupy(
                str(self.path), f'add gpu={gpu}{places} pid={pid} kind={kind} name="{name}" mem={memory_mib}'
            )
        except SimulatorError:
            if process is not None and process.stdin is not None:
                process.stdin.close()
                process.wait()
            raise
        return holder

    def fault(
        self,
        function: str,
        *,
        nth: t.Optional[int] = None,
        when: str = "before",
        code: t.Optional[str] = None,
        hang: bool = False,
        kill: bool = False,
        store: t.Optional[int] = None,
        delay_ms: t.Optional[int] = None,
        gpu: t.Optional[int] = None,
    ) -> None:
        """Let calls of ``function`` go wrong; see the fault grammar in README.md."""
        words = [f'function="{function}"', f"when={when}"]
        words += [
            f"{word}={value}" for word, value in (("nth", nth), ("code", code), ("gpu", gpu)) if value is not None
        ]
        words += [f"delay_ms={delay_ms}"] if delay_ms is not None else []
        words += ["hang=1"] if hang else []
        words += ["kill=1"] if kill else []
        words += [f"store={store}"] if store is not None else []
        control.fault(str(self.path), " ".join(words))

    def clear_faults(self) -> None:
        """From now on nothing goes wrong."""
        control.fault(str(self.path), "clear")

    def memory(self, gpu: int, *, ecc: t.Optional[bool] = None, remap: t.Optional[str] = None) -> None:
        """The state of a GPU's memory: ECC as it is to be after the next reset, and rows that are to be remapped.

        ``remap``: ``none``, ``pending`` (until the next reset) or ``failed`` (for ever). What is None stays.
        """
        words = [f"gpu={gpu}"]
        words += [f"ecc={'on' if ecc else 'off'}"] if ecc is not None else []
        words += [f"remap={remap}"] if remap is not None else []
        control.memory(str(self.path), " ".join(words))

    def event(self, request: str) -> None:
        """``reboot``, ``reload``, ``reset gpu=N``, ``persistence on|off`` or ``fabric-manager on|off``.

        The last two are what nvidia-persistenced and Fabric Manager do when they start and end.
        """
        control.event(str(self.path), request)

    def reboot(self) -> None:
        """The node starts anew."""
        self.event("reboot")

    def reload(self) -> None:
        """The kernel modules of the driver are unloaded and loaded again."""
        self.event("reload")

    def reset(self, gpu: int) -> None:
        """The effect of ``nvidia-smi --gpu-reset -i N``, without what that command asks of the other GPUs."""
        self.event(f"reset gpu={gpu}")


def _with_programs(path: t.Optional[str]) -> str:
    """A search path on which the stand-in for nvidia-smi comes first."""
    ours = str(control.build().programs)
    others = [folder for folder in (path or os.defpath).split(os.pathsep) if folder != ours]
    return os.pathsep.join([ours, *others])


def _check_board_assumptions(answers: t.Mapping[str, str]) -> None:
    for name, (values, _) in description.BOARD_ASSUMPTIONS.items():
        if answers.get(name, values[0]) not in values:
            raise SimulatorError(f"assumption {name} is one of {', '.join(values)}, not {answers[name]!r}")


def _call(entry: dict[str, t.Any]) -> Call:
    return Call(
        sequence=entry["seq"],
        pid=entry["pid"],
        function=entry["function"],
        gpu=entry["gpu"],
        gi=entry["gi"],
        ci=entry["ci"],
        code=entry["name"],
        seconds=entry["took_us"] / 1e6,
        detail=entry.get("detail", ""),
        started=entry["us"] / 1e6,
        write=entry["write"],
    )


def _pickled(kind: str, value: t.Any) -> bytes:
    """What travels to the parent. Something that cannot is described instead."""
    try:
        answer = pickle.dumps((kind, value))
        pickle.loads(answer)
    except Exception:
        text = (
            "".join(traceback.format_exception(type(value), value, value.__traceback__))
            if kind == "raised"
            else repr(value)
        )
        return pickle.dumps(("raised", SimulatorError(f"this cannot be handed to the parent process: {text}")))
    return answer


def _read_all(reader: int, timeout: float) -> bytes:
    deadline = time.monotonic() + timeout
    chunks: list[bytes] = []
    while True:
        ready, _, _ = select.select([reader], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            raise TimeoutError(f"no answer from the process that uses the simulated driver in {timeout:g} s")
        chunk = os.read(reader, 1 << 16)
        if not chunk:
            return b"".join(chunks)
        chunks.append(chunk)
