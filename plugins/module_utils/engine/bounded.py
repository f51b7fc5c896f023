# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Work in a forked child, so that whatever hangs there hangs nobody else, and goes on when nobody listens any more.

This file is private to the collection gpufleet.mig and may change at any time.

A call to a driver that hangs does not come back, and Python cannot interrupt it: signal handlers run between two
instructions of Python. So the child arms an alarm of the kernel before each operation, with the default action: the
process ends at the deadline, wherever it is. Where even that has to wait, because the call sleeps uninterruptibly in
the kernel, the process ends the moment the call returns. Either way no further operation follows, and nobody has to
be alive to see to it.

The child is forked, not executed: all that it needs is imported already, and Ansible may remove the files of a module
whose process has ended.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import struct
import time
import traceback
import types
import typing as t

from .model import MigError

_T = t.TypeVar("_T")

# How long after an alarm its process may take to end before it counts as stuck in the kernel.
_GRACE_SECONDS = 5.0
_LENGTH = struct.Struct(">I")
_Handler = t.Union[t.Callable[[int, t.Optional[types.FrameType]], t.Any], int, signal.Handlers, None]


class Interrupted(MigError):
    """Somebody asked the work to stop (SIGTERM)."""


class Unfinished(MigError):
    """The child ended without an answer. ``doing`` is what it had begun last, ``done`` what it told to be done."""

    def __init__(self, message: str, doing: str = "", done: t.Sequence[t.Any] = (), **details: t.Any) -> None:
        super().__init__(message, **details)
        self.doing = doing
        self.done = tuple(done)


class NoAnswer(Unfinished):
    """An operation did not return in time."""


class Died(Unfinished):
    """The child was killed."""


class Watch:
    """The child's side: tells the parent what it begins, and sees to it that nothing takes longer than allowed."""

    def __init__(self, seconds: float, tell: t.Callable[[str, t.Any], None]) -> None:
        self._seconds = seconds
        self._tell = tell
        self._asked_to_stop = False
        self._goes_through = False

    def begin(self, what: str, seconds: t.Optional[float] = None) -> None:
        """From now on this is being done, and this process ends if nothing else is begun within ``seconds``.

        ``what`` continues the words "it was to": ``read GPU 3``.
        """
        # A timer of 0 would be none at all.
        allowed = max(0.001, self._seconds if seconds is None else seconds)
        self._tell("begin", (what, allowed))
        signal.setitimer(signal.ITIMER_REAL, allowed)

    def idle(self) -> None:
        """Nothing is being done now that has to end in time."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        self._tell("idle", None)

    def did(self, what: t.Any) -> None:
        """Tell the parent what is done, for the case that this process does not live to give its answer."""
        self._tell("did", what)

    def check(self) -> None:
        """Raise Interrupted if somebody asked this process to stop. Call it where stopping is safe."""
        if self._asked_to_stop and not self._goes_through:
            raise Interrupted("The change was asked to stop (SIGTERM).")

    def go_through(self) -> None:
        """From now on what is being done is brought to its end: on the way back there is nothing to stop for."""
        self._goes_through = True

    def _stop(self, *_signal: t.Any) -> None:
        self._asked_to_stop = True


def ask(work: t.Callable[[Watch], _T], seconds: float, *, outlive: bool = False) -> _T:
    """Do ``work`` in a forked child and return what it returns, or raise what it raises.

    ``seconds`` is how long one operation (``Watch.begin``) may take. A child that is to ``outlive`` its parent leaves
    the session and terminal, and completes its work whatever becomes of the parent; what asks the parent to stop
    (SIGTERM, SIGINT) is passed on to it. Raises NoAnswer or Died where the child ends without an answer.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _be_the_child(work, seconds, writing, outlive)
    os.close(writing)
    previous = _pass_on_signals(child) if outlive else {}
    try:
        return t.cast(_T, _Listener(child, reading).answer())
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        os.close(reading)


# --- the child -----------------------------------------------------------------------------------------------------


def _be_the_child(work: t.Callable[[Watch], t.Any], seconds: float, writing: int, outlive: bool) -> t.NoReturn:
    """Do the work, tell the result, and end without running anything that belongs to the parent."""
    try:
        watch = Watch(seconds, _Teller(writing).tell)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGALRM,))
        signal.signal(signal.SIGINT, signal.SIG_IGN if outlive else signal.SIG_DFL)
        signal.signal(signal.SIGHUP, signal.SIG_IGN if outlive else signal.SIG_DFL)
        signal.signal(signal.SIGTERM, watch._stop if outlive else signal.SIG_DFL)
        if outlive:
            os.setsid()
            os.chdir("/")
        # Whoever waits for the end of the parent's output must not have to wait for this process.
        nowhere = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(nowhere, standard)
        try:
            answer = ("returned", work(watch))
        except BaseException as error:  # pylint: disable=broad-except  # the parent raises it
            answer = ("raised", _portable(error))
        watch.idle()
        _Teller(writing).tell(*answer)
        os._exit(0)
    finally:
        os._exit(1)


class _Teller:
    """Sends messages to the parent, as long as there is one."""

    def __init__(self, writing: int) -> None:
        self._writing = writing

    def tell(self, kind: str, content: t.Any) -> None:
        message = pickle.dumps((kind, content))
        rest = memoryview(_LENGTH.pack(len(message)) + message)
        try:
            while rest:
                rest = rest[os.write(self._writing, rest) :]
        except OSError:
            pass  # nobody listens any more; the work goes on


def _portable(error: BaseException) -> BaseException:
    """An error as the parent can raise it; one that nobody foresaw with where it happened."""
    if isinstance(error, MigError):
        try:
            pickle.loads(pickle.dumps(error))
            return error
        except Exception:  # pylint: disable=broad-except  # whatever keeps it from being sent
            return MigError(str(error))
    trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return MigError(f"{type(error).__name__}: {error}", traceback=trace)


# --- the parent ----------------------------------------------------------------------------------------------------


def _pass_on_signals(child: int) -> dict[signal.Signals, _Handler]:
    """Let SIGTERM and SIGINT reach the child instead of this process; returns the handlers from before."""

    def pass_on(*_signal: t.Any) -> None:
        try:
            os.kill(child, signal.SIGTERM)
        except ProcessLookupError:
            pass  # it has ended meanwhile, and its answer is on the way

    return {number: signal.signal(number, pass_on) for number in (signal.SIGTERM, signal.SIGINT)}


class _Listener:
    """Reads what the child tells until it has the answer, or knows that there will be none."""

    def __init__(self, child: int, reading: int) -> None:
        self._child = child
        self._reading = reading
        self._buffer = b""
        self._doing: tuple[str, float] = ("", 0.0)
        self._deadline: t.Optional[float] = None
        self._done: list[t.Any] = []

    def answer(self) -> t.Any:
        while True:
            for kind, content in self._messages():
                if kind == "begin":
                    self._doing = content
                    self._deadline = time.monotonic() + content[1] + _GRACE_SECONDS
                elif kind == "idle":
                    self._deadline = None
                elif kind == "did":
                    self._done.append(content)
                else:
                    os.waitpid(self._child, 0)
                    if kind == "raised":
                        raise content
                    return content

    def _messages(self) -> t.Iterator[tuple[str, t.Any]]:
        """The messages that have come, waiting for the next ones when there are none."""
        left = None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
        if not select.select([self._reading], [], [], left)[0]:
            raise self._stuck()
        chunk = os.read(self._reading, 1 << 16)
        if not chunk:
            raise self._ended()
        self._buffer += chunk
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if len(self._buffer) < _LENGTH.size + length:
                return
            message = self._buffer[_LENGTH.size : _LENGTH.size + length]
            self._buffer = self._buffer[_LENGTH.size + length :]
            yield pickle.loads(message)

    def _ended(self) -> Unfinished:
        _pid, status = os.waitpid(self._child, 0)
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        if number == signal.SIGALRM:
            return self._no_answer()
        how = f"was killed by signal {number} ({signal.Signals(number).name})" if number else "ended without an answer"
        when = f" when it was to {self._doing[0]}" if self._doing[0] else ""
        return Died(f"The process that did the work {how}{when}.", self._doing[0], self._done)

    def _stuck(self) -> NoAnswer:
        """The alarm came and the child is still there: it sleeps in the kernel, and a kill will find it there too."""
        os.kill(self._child, signal.SIGKILL)
        deadline = time.monotonic() + 1.0
        while time.monotonic() < deadline:
            if os.waitpid(self._child, os.WNOHANG)[0]:
                return self._no_answer()
            select.select([self._reading], [], [], 0.05)
        return self._no_answer(stuck=True)

    def _no_answer(self, stuck: bool = False) -> NoAnswer:
        what, seconds = self._doing
        kept = f" Process {self._child} is stuck in the kernel and ends when that call returns." if stuck else ""
        return NoAnswer(
            f"The driver does not answer: it was to {what}, and has not within {seconds:g} s.{kept}"
            " Look into 'dmesg' and reboot the node.",
            what,
            self._done,
            error="NO_ANSWER",
            operation=what,
        )
