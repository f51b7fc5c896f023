# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The command ``nvmlsim``.

Exit status: 0 done, 1 the simulator refuses (one sentence on stderr says why), 2 the command line is wrong;
``exec`` and ``occupy`` end with the status of the command they run (127 not found, 126 not executable, 128+N signal N).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import typing as t

from nvmlsim import control, description
from nvmlsim.boards import load_boards, load_systems
from nvmlsim.errors import SimulatorError
from nvmlsim.simulator import PRIVILEGED, REMAPS, VIRTUALIZATIONS, Call, Simulator

NOT_EXECUTABLE = 126
NOT_FOUND = 127


def main(arguments: t.Optional[t.Sequence[str]] = None) -> int:
    """Run one command; return its exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    words, command = _split_command(words)
    options = _parser().parse_args(words)
    options.command = command
    if options.action in (_exec, _occupy) and not command:
        _parser().error(f"{options.word} needs a command after --")
    if options.action not in (_exec, _occupy) and command:
        _parser().error(f"{options.word} takes no command after --")
    try:
        status = options.action(options)
        sys.stdout.flush()
    except SimulatorError as error:
        print(f"nvmlsim: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader of our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return int(status or 0)


def _split_command(words: list[str]) -> tuple[list[str], list[str]]:
    """What follows the first ``--`` is not for us."""
    if "--" in words:
        at = words.index("--")
        return words[:at], words[at + 1 :]
    return words, []


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="nvmlsim", description="simulated GPUs behind a simulated libnvidia-ml.so.1")
    words = parser.add_subparsers(dest="word", required=True, metavar="COMMAND")

    def add(word: str, action: t.Callable[[argparse.Namespace], t.Any], text: str) -> argparse.ArgumentParser:
        sub = words.add_parser(
            word, help=text, description=text, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
        )
        sub.add_argument("state", metavar="STATE", help="the file that holds the node's state")
        sub.set_defaults(action=action)
        return sub

    create = add("create", _create, "make a node, or make it anew")
    create.add_argument(
        "--gpus", required=True, metavar="LIST", help="8xa100-sxm4-40gb or 1xa30-24gb,1xtesla-t4 or dgx-a100"
    )
    create.add_argument("--driver", default=description.DEFAULT_DRIVER, help="branch (535) or version (535.183.06)")
    create.add_argument("--chips", default="N", metavar="LETTERS", help="N or S for each GPU, repeating (default N)")
    create.add_argument("--virtualization", choices=VIRTUALIZATIONS, default="none")
    create.add_argument("--persistence", choices=("on", "off"), default="on")
    create.add_argument(
        "--privileged",
        choices=PRIVILEGED,
        default="owner",
        help="who passes for root: root and owner of STATE, root, nobody",
    )
    create.add_argument("--seed", default="", metavar="TEXT", help="other UUIDs than those of other nodes")
    create.add_argument(
        "--rename", action="append", default=[], metavar="OLD=NEW", help="profile name: 3g.40gb=3g.39gb"
    )
    create.add_argument(
        "--fabric-manager", choices=("on", "off"), help="a node with NVSwitches: whether its Fabric Manager runs"
    )
    create.add_argument("--resettable", choices=("on", "off"), default="on", help="off: no GPU can be reset")
    create.add_argument("--assume", action="append", default=[], metavar="NAME=VALUE", help="see `nvmlsim assumptions`")

    add("exec", _exec, "run the command after -- so that it sees the node")

    show = add("show", _show, "layouts, modes, holders, waiting faults")
    show.add_argument("--json", action="store_true", help="the whole state as JSON")

    calls = add("calls", _calls, "the record of NVML calls, in order, and a summary")
    calls.add_argument("--json", action="store_true", help="as JSON")
    calls.add_argument("--writes", action="store_true", help="only calls that change something, or try to")
    calls.add_argument("--reset", action="store_true", help="start the record anew after printing it")

    occupy = add("occupy", _occupy, "run the command after -- as a process that holds a GPU or an instance")
    occupy.add_argument("--gpu", type=int, required=True, metavar="INDEX")
    occupy.add_argument("--gi", type=int, metavar="ID", help="GPU instance")
    occupy.add_argument("--ci", type=int, metavar="ID", help="compute instance in it")
    kind = occupy.add_mutually_exclusive_group()
    kind.add_argument("--hidden", dest="kind", action="store_const", const="hidden", help="in none of NVML's lists")
    kind.add_argument(
        "--graphics", dest="kind", action="store_const", const="graphics", help="in the list of graphics processes"
    )
    kind.add_argument(
        "--client", dest="kind", action="store_const", const="client", help="has the GPU open, computes nothing"
    )
    occupy.add_argument("--name", help="process name in NVML (default: that of the command)")
    occupy.add_argument("--memory", type=int, default=100, metavar="MIB")
    occupy.set_defaults(kind="compute")

    fault = add("fault", _fault, "let calls of an NVML function go wrong")
    fault.add_argument(
        "function", nargs="?", metavar="FUNCTION", help="nvmlGpuInstanceDestroy, or `write`: any driver write"
    )
    fault.add_argument("--nth", type=int, metavar="N", help="only the Nth call from now on (default: every call)")
    fault.add_argument(
        "--when", choices=("before", "after"), default="before", help="before or after the call took effect"
    )
    effect = fault.add_mutually_exclusive_group()
    effect.add_argument("--code", metavar="NAME", help="return this code: IN_USE, GPU_IS_LOST ...")
    effect.add_argument("--hang", action="store_true", help="never return")
    effect.add_argument("--kill", action="store_true", help="kill the caller (SIGKILL)")
    effect.add_argument("--delay-ms", type=int, metavar="N", help="take this much longer")
    effect.add_argument("--clear", action="store_true", help="forget all faults")
    fault.add_argument("--store", type=int, metavar="1..6", help="with --kill: at this step inside the call")
    fault.add_argument("--gpu", type=int, metavar="INDEX", help="only calls about this GPU")

    memory = add("memory", _memory, "the state of a GPU's memory")
    memory.add_argument("--gpu", type=int, required=True, metavar="INDEX")
    memory.add_argument("--ecc", choices=("on", "off"), help="as it is to be after the next reset or reboot")
    memory.add_argument("--remap", choices=REMAPS, help="rows that are to be remapped; failed stays for ever")

    add("reboot", lambda options: Simulator(options.state).reboot(), "the node starts anew")
    add("reload", lambda options: Simulator(options.state).reload(), "the driver's kernel modules are loaded anew")
    reset = add(
        "reset", lambda options: Simulator(options.state).reset(options.gpu), "a GPU is reset, as by nvidia-smi"
    )
    reset.add_argument("--gpu", type=int, required=True, metavar="INDEX")

    boards = words.add_parser("boards", help="what `create --gpus` takes: boards, and computers of several")
    boards.set_defaults(action=_boards)

    assumptions = words.add_parser("assumptions", help="the open questions that `create --assume` answers")
    assumptions.set_defaults(action=_assumptions)
    return parser


def _create(options: argparse.Namespace) -> None:
    Simulator.create(
        options.state,
        options.gpus,
        driver=options.driver,
        chips=options.chips,
        virtualization=options.virtualization,
        persistence=options.persistence == "on",
        privileged=options.privileged,
        seed=options.seed,
        assume=_pairs("--assume", options.assume),
        rename=_pairs("--rename", options.rename),
        fabric_manager={None: None, "on": True, "off": False}[options.fabric_manager],
        resettable=options.resettable == "on",
    )


def _pairs(option: str, texts: t.Sequence[str]) -> dict[str, str]:
    pairs = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise SimulatorError(f"{option} {text!r} is not of the form NAME=VALUE")
        pairs[name] = value
    return pairs


def _exec(options: argparse.Namespace) -> int:
    return _become(options.command, Simulator(options.state).env())


def _become(command: t.Sequence[str], env: t.Mapping[str, str]) -> int:
    """Replace this process by the command. Only returns when that is not possible."""
    sys.stdout.flush()
    try:
        os.execvpe(command[0], list(command), dict(env))
    except OSError as error:
        print(f"nvmlsim: cannot run {command[0]}: {error.strerror}", file=sys.stderr)
        return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE


def _show(options: argparse.Namespace) -> None:
    simulator = Simulator(options.state)
    if options.json:
        print(json.dumps(simulator.describe(), indent=2))
    else:
        print(simulator.show(), end="")


def _calls(options: argparse.Namespace) -> None:
    simulator = Simulator(options.state)
    counts = simulator.counts()
    calls = simulator.calls(reset=options.reset)
    total, writes = sum(counts.values()), sum(call.write for call in calls)
    if options.writes:
        calls = [call for call in calls if call.write]
    if options.json:
        record = {"total": total, "writes": writes, "calls": [call._asdict() for call in calls], "counts": counts}
        print(json.dumps(record, indent=2))
        return
    for call in calls:
        print(_call_line(call))
    print(f"{total} calls, {writes} of them writes")
    for function, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        print(f"{count:8} {function}")


def _call_line(call: Call) -> str:
    place = " ".join(
        f"{word} {value}" for word, value in (("GPU", call.gpu), ("GI", call.gi), ("CI", call.ci)) if value is not None
    )
    words = " ".join(word for word in (call.function, place, call.detail) if word)
    return f"{call.sequence:6}  pid {call.pid:<7} {call.seconds * 1e6:8.0f} us  {words}: {call.code}"


def _occupy(options: argparse.Namespace) -> int:
    """The command runs as a child, which waits until it is registered; SIGTERM and SIGINT go on to it."""
    simulator = Simulator(options.state)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writer)
        registered = os.read(reader, 1)
        os.close(reader)
        os._exit(_become(options.command, simulator.env()) if registered else 1)
    os.close(reader)
    try:
        holder = simulator.occupy(
            options.gpu,
            options.gi,
            options.ci,
            kind=options.kind,
            name=options.name or os.path.basename(options.command[0]),
            memory_mib=options.memory,
            pid=child,
        )
    except SimulatorError:
        os.close(writer)
        os.waitpid(child, 0)
        raise
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda received, _: os.kill(child, received))
    with holder:
        os.write(writer, b"x")
        os.close(writer)
        _, status = os.waitpid(child, 0)
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _fault(options: argparse.Namespace) -> None:
    simulator = Simulator(options.state)
    if options.clear:
        simulator.clear_faults()
        return
    if options.function is None:
        raise SimulatorError("fault needs the name of an NVML function, nvidia-smi, or --clear")
    if not (options.code or options.hang or options.kill or options.delay_ms is not None):
        raise SimulatorError("fault needs one of --code, --hang, --kill, --delay-ms")
    simulator.fault(
        options.function,
        nth=options.nth,
        when=options.when,
        code=options.code,
        hang=options.hang,
        kill=options.kill,
        store=options.store,
        delay_ms=options.delay_ms,
        gpu=options.gpu,
    )


def _memory(options: argparse.Namespace) -> None:
    ecc = None if options.ecc is None else options.ecc == "on"
    Simulator(options.state).memory(options.gpu, ecc=ecc, remap=options.remap)


def _boards(_: argparse.Namespace) -> None:
    for key, board in load_boards().items():
        if not board.not_simulated:
            print(f"{key:26}{board.name}{'' if board.mig_capable else ', without MIG'}")
    for name, system in load_systems().items():
        print(f"{name:26}{len(system.gpus)} GPUs: {', '.join(dict.fromkeys(system.gpus))}")


def _assumptions(_: argparse.Namespace) -> None:
    print(control.assumptions().rstrip("\n"))
    for name, (values, text) in description.BOARD_ASSUMPTIONS.items():
        print(f"{name}={'|'.join(values)}: {text}")
