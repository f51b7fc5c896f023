# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""``gpufleet-mig``: the engine for a person at the node, when there is no controller.

This file is private to the collection gpufleet.mig and may change at any time.

    gpufleet-mig status                what the GPUs have, what the next boot restores, what was left unfinished
    gpufleet-mig verify                whether the GPUs have what they are meant to have
    gpufleet-mig restore [FILE]        give them that, or what they had before (--previous), or what a file says
    gpufleet-mig recover [--back]      finish a change that was interrupted, or take it back
    gpufleet-mig boot                  what the boot unit runs: wait for the GPUs, and give them what they had
    gpufleet-mig cdi                   tell containers of exactly the MIG devices that there are

A command works out one mapping, which is printed as JSON or in words: the two cannot disagree. The exit status is part
of the interface; the numbers and keys are documented in docs/node-command.md.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import pwd
import sys
import time
import typing as t

from . import boot, bounded, cdi, compare, drawing, driver, foresight, layouts, reading, state, worker
from .model import DriverError, Gpu, Job, MigError, Node, Orders, Wanted, WishError
from .profiles import counted
from .report import differences_in_words
from .transaction import Outcome

OK = 0
DIFFERS = 1
USAGE = 2
REFUSED = 3
ROLLED_BACK = 4
NOT_AS_BEFORE = 5
CANNOT_TELL = 6
LOCKED = 7
RESET_OR_REBOOT = 8

_EXIT_STATUS = """\
exit status:
  0  as it should be, or done
  1  differs (verify)
  2  wrong command line
  3  refused, and nothing was touched
  4  failed, and everything is as before
  5  failed, and not everything is as before
  6  cannot tell, or the driver does not answer
  7  another run has this node
  8  a reset or reboot is needed, then run it again
"""

Report = dict[str, t.Any]
_T = t.TypeVar("_T")

_MAX_CHARACTERS = 16 * 1024 * 1024


class Answer(t.NamedTuple):
    """What a command comes to: its exit status, the report for programs, and the same in lines for people.

    ``txid`` is the change of which this is the result, if there was one.
    """

    status: int
    report: Report
    lines: list[str]
    txid: str = ""


def main(arguments: t.Optional[t.Sequence[str]] = None) -> int:
    """Run the command line and return its exit status."""
    options = _parser().parse_args(arguments)
    try:
        places = state.places(options.state_dir)
        answer: Answer = options.work(places, options)
        told = _print(answer, options)
        if told and answer.txid:
            _confirm(places, answer.txid)
    except MigError as error:
        answer = _refusal(error, options)
        _print(answer, options, sys.stderr)
    return answer.status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gpufleet-mig",
        description="The MIG partitioning of the GPUs of this node.",
        epilog=_EXIT_STATUS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(state_dir=None, json=False, timeout=60.0)
    _add_common(parser)
    commands = parser.add_subparsers(required=True, dest="command", metavar="COMMAND")
    status = commands.add_parser("status", help="what there is, what the next boot restores, what is unfinished")
    status.set_defaults(work=_status, otherwise=CANNOT_TELL)
    verify = commands.add_parser("verify", help="whether the GPUs have the layout that is remembered")
    verify.set_defaults(work=_verify, otherwise=CANNOT_TELL)
    restore = commands.add_parser("restore", help="give the GPUs the layout that is remembered, or another saved one")
    source = restore.add_mutually_exclusive_group()
    source.add_argument(
        "file", nargs="?", metavar="FILE", help="a layout as mig_info returns it, as JSON; - is standard input"
    )
    source.add_argument("--previous", action="store_true", help="the layout before the one that is remembered")
    restore.add_argument("--gpus", type=_not_empty, metavar="LIST", help="only these, by index, UUID or PCI id: 0,1")
    restore.add_argument(
        "--accept-replacement", action="store_true", help="also on a board that replaced the saved one"
    )
    restore.add_argument(
        "--not-remembered", action="store_true", help="only until the next boot: what that restores stays as it is"
    )
    restore.set_defaults(work=_restore, otherwise=REFUSED)
    recover = commands.add_parser("recover", help="finish a change that was interrupted")
    recover.add_argument("--back", action="store_true", help="take it back instead")
    recover.set_defaults(work=_recover, otherwise=REFUSED)
    booting = commands.add_parser("boot", help="what the boot unit runs: wait for GPUs, and give them what they had")
    booting.add_argument(
        "--wait",
        type=_seconds,
        default=120.0,
        metavar="S",
        help="seconds to wait for driver, GPUs and other runs (120)",
    )
    booting.add_argument(
        "--fallback-previous",
        action="store_true",
        help="the layout before it for GPUs that cannot have what is remembered",
    )
    booting.set_defaults(work=_boot, otherwise=REFUSED)
    telling = commands.add_parser("cdi", help="tell containers of exactly the MIG devices that there are")
    _add_cdi(telling)
    telling.set_defaults(work=_cdi, otherwise=REFUSED)
    for command in (status, verify, restore, recover, booting, telling):
        _add_common(command)
    for command in (restore, recover, booting):
        command.add_argument("--allow-reset", action="store_true", help="reset GPUs whose MIG mode stays pending")
    for command in (restore, recover):
        command.add_argument(
            "--wait", type=_seconds, default=10.0, metavar="S", help="seconds to wait for another run (10)"
        )
        command.add_argument("--run-id", default="", metavar="ID", help="be the run for which the node is kept")
    return parser


def _add_common(parser: argparse.ArgumentParser) -> None:
    """Options that may stand before the command or after it."""
    common = functools.partial(parser.add_argument, default=argparse.SUPPRESS)
    common("--state-dir", metavar="DIR", help=f"where the node keeps what it remembers ({state.DEFAULT_STATE_DIR})")
    common("--json", action="store_true", help="print one JSON mapping instead of words")
    common("--timeout", type=_some_seconds, metavar="S", help="seconds that one call to the driver may take (60)")


def _add_cdi(parser: argparse.ArgumentParser) -> None:
    """Where the specifications are and who writes them, as in the module mig_cdi."""
    when = ("auto", "always", "never")
    folders = ",".join(cdi.FOLDERS)
    parser.description = "Where the role containers has set this node up, what it has set is the default."
    parser.add_argument("--verify", action="store_true", help="only prove that they are told of what there is")
    parser.add_argument("--spec", metavar="FILE", help=f"the CDI specification ({cdi.SPEC})")
    parser.add_argument("--spec-dirs", type=_some_paths, metavar="LIST", help=f"where engines look ({folders})")
    parser.add_argument("--unit", choices=when, help=f"whether {cdi.UNIT} writes it (auto)")
    parser.add_argument("--management", choices=when, help="whether device plugins have one too (auto)")
    parser.add_argument("--management-spec", metavar="FILE", help="the one of these")


def _some_paths(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(",")))


def _seconds(text: str) -> float:
    number = float(text)
    if not 0 <= number <= 86400:
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds up to one day")
    return number


def _some_seconds(text: str) -> float:
    number = _seconds(text)
    if not number:
        raise argparse.ArgumentTypeError("nothing is done in 0 seconds")
    return number


def _not_empty(text: str) -> str:
    """An empty text must not mean all: it is what a script gives that found none."""
    if not text.strip(" ,"):
        raise argparse.ArgumentTypeError("it is empty; name GPUs, or leave it out for all")
    return text


# --- looking --------------------------------------------------------------------------------------------------------


def _status(places: state.Places, options: argparse.Namespace) -> Answer:
    """As much as this user may know; what could not be read is said, and makes the exit status 6."""
    unreadable: list[str] = []

    def attempt(read: t.Callable[[], _T], otherwise: _T) -> _T:
        try:
            return read()
        except MigError as error:
            unreadable.append(str(error))
            return otherwise

    node = attempt(lambda: _read(places, options), None)
    nothing_known: tuple[str, t.Optional[state.Persisted]] = ("unknown", None)
    persisted, wanted = attempt(lambda: _remembered(places, node), nothing_known)
    previous = attempt(lambda: state.read_previous(places), None)
    wish = attempt(lambda: state.read_wish(places), None)
    booted = attempt(lambda: state.read_boot(places), None)
    lease = attempt(lambda: state.read_lease(places), None)
    unfinished = attempt(lambda: state.read_journal(places), None)
    attempt(lambda: state.holder(places), None)
    progress = state.in_progress(places)
    if progress is not None and "unreadable" in progress:
        progress = None
    gpus = node.gpus if node else ()
    unreadable += [f"{driver.describe(gpu)}: {_problem_in_words(gpu)}" for gpu in gpus if gpu.problems]
    report: Report = {
        "host": os.uname().nodename,
        "driver_version": node.driver_version if node else "",
        "gpus": [_gpu_report(gpu) for gpu in gpus],
        "persisted": persisted,
        "wanted": _about(wanted),
        "previous": _about(previous),
        "wish": wish._asdict() if wish else None,
        "boot": booted,
        "in_progress": progress,
        "lease": lease._asdict() if lease is not None and state.lease_blocks(lease, "", time.time()) else None,
        "unreadable": unreadable,
    }
    proven = foresight.is_proven(wanted, unfinished)
    return Answer(CANNOT_TELL if unreadable else OK, report, _status_lines(report, proven))


def _remembered(places: state.Places, node: t.Optional[Node]) -> tuple[str, t.Optional[state.Persisted]]:
    """Whether the node is as remembered, and what is. ``unknown`` where that cannot be told."""
    wanted = state.read_wanted(places)
    if wanted is not None and (node is None or any(gpu.problems for gpu in node.gpus)):
        return "unknown", wanted
    return state.persisted_verdict(wanted, node or Node(())), wanted


def _status_lines(report: Report, proven: bool) -> list[str]:
    """What is ``proven`` of an unfinished change is all of it; only its record was left."""
    pictures = [gpu["layout"] for gpu in report["gpus"]]
    driver_in_words = f"driver {report['driver_version']}, {counted(len(pictures), 'GPU')}"
    lines = [f"{report['host']}: {driver_in_words if report['driver_version'] else 'no driver answers'}", *pictures]
    lines += [f"GPU {gpu['index']}: {_pending_in_words(gpu)}" for gpu in report["gpus"] if _is_pending(gpu)]
    lines.append(f"Next boot: {_next_boot_in_words(report)}")
    if report["boot"] and report["boot"].get("exit_status"):
        lines.append(f"The last boot failed ({report['boot'].get('finished')}): {report['boot'].get('msg')}")
    if report["previous"]:
        said = _persisted_in_words(report["previous"])
        lines.append(f"Before that: {said}; 'gpufleet-mig restore --previous' brings it back.")
    if report["in_progress"]:
        lines.append(_progress_in_words(report["in_progress"], proven))
    if report["lease"]:
        lease = report["lease"]
        until = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(lease["expires"]))
        lines.append(
            f"Kept until {until} for the run {lease['run_id']} of {lease['who']}, which waits: {lease['reason']}."
        )
    lines += [f"Could not be read: {sentence}" for sentence in report["unreadable"]]
    return lines


def _next_boot_in_words(report: Report) -> str:
    if report["wanted"] is None and report["persisted"] != "absent":
        return "cannot tell what is remembered."
    if report["wanted"] is None:
        wish = report["wish"]
        return f"what the image wants, {_wish_in_words(wish)}." if wish else "nothing is remembered."
    now = {
        "match": "which the GPUs have now",
        "differ": "and the GPUs are not like that now; 'gpufleet-mig verify' says in what",
    }.get(report["persisted"], "and it cannot be told whether the GPUs are like that now")
    return f"{_persisted_in_words(report['wanted'])}, {now}."


def _wish_in_words(wish: Report) -> str:
    """``label all-1g.5gb (another one for NVIDIA A30)``."""
    others = f" for {', '.join(map(str, wish['label_by_gpu']))}" if wish["label_by_gpu"] else ""
    if not wish["label"]:
        return f"labels{others}"
    return f"label {wish['label']}{f' (others{others})' if others else ''}"


def _verify(places: state.Places, options: argparse.Namespace) -> Answer:
    """Compare what there is with what is remembered."""
    progress = state.in_progress(places)
    wanted = state.read_wanted(places)
    if progress is not None and progress.get("running"):
        raise state.LockedError(f"{_progress_in_words(progress)} Ask again when it has ended.", in_progress=progress)
    if wanted is None:
        raise MigError(
            "Nothing is remembered to compare with: a run of mig_config or 'gpufleet-mig restore FILE' writes it down.",
            verdict="absent",
        )
    verdict, differences = _comparison(_read(places, options), wanted)
    if progress is not None:
        verdict = compare.DIFFER if verdict == compare.MATCH else verdict
        differences.append(progress["unreadable"] if "unreadable" in progress else _progress_in_words(progress))
    report: Report = {
        "verdict": verdict,
        "differences": differences,
        "wanted": _about(wanted),
        "in_progress": progress,
    }
    said = {
        compare.MATCH: "The GPUs have what is remembered",
        compare.DIFFER: "The GPUs do not have what is remembered",
        compare.UNKNOWN: "Cannot tell whether the GPUs have what is remembered",
    }[verdict]
    status = {compare.MATCH: OK, compare.DIFFER: DIFFERS, compare.UNKNOWN: CANNOT_TELL}[verdict]
    return Answer(status, report, [f"{said}: {_persisted_in_words(_about(wanted) or {})}.", *differences])


def _comparison(node: Node, wanted: state.Persisted) -> tuple[str, list[str]]:
    """Verdict and sentences. One GPU that is missing or does not answer does not hide what is to be said of others."""
    sentences: list[str] = []
    verdicts = [compare.MATCH]
    remembered: set[int] = set()
    for dump in wanted.gpus:
        try:
            wish = layouts.resolve(node, {"gpus": [dump]})
        except WishError as error:
            sentences.append(f"{str(error).rstrip('.')}.")
            verdicts.append(compare.UNKNOWN if _may_be_silent(node, dump) else compare.DIFFER)
            continue
        remembered.update(wish.wishes)
        verdict, differences = compare.verdict(node, wish)
        verdicts.append(verdict)
        sentences += differences_in_words(node, differences)
    for gpu in node.gpus:
        if gpu.mode_current and gpu.index not in remembered:
            sentences.append(f"{driver.describe(gpu)}: MIG is on, and nothing is remembered of this GPU.")
            verdicts.append(compare.DIFFER)
    return next(v for v in (compare.DIFFER, compare.UNKNOWN, compare.MATCH) if v in verdicts), sentences


def _may_be_silent(node: Node, dump: t.Mapping[str, t.Any]) -> bool:
    """Whether the GPU that this was saved of may be one of those that do not answer now."""
    return any(
        gpu.problems and (not gpu.uuid or gpu.uuid == dump.get("uuid") or gpu.pci_bus_id == dump.get("pci_bus_id"))
        for gpu in node.gpus
    )


# --- changing -------------------------------------------------------------------------------------------------------


def _restore(places: state.Places, options: argparse.Namespace) -> Answer:
    """Bring the GPUs to a saved layout, as any other change is made."""
    name, layout, saved = _layout_to_restore(places, options)

    def resolve(node: Node) -> Wanted:
        gpus = options.gpus or None
        wanted = layouts.resolve(node, layout, gpus=gpus, accept_replacement=options.accept_replacement)
        # The label stays with the layout that it once named.
        return wanted._replace(label=saved.label, source=saved.source) if saved else wanted

    job = Job(resolve, _orders(options), what=f"gpufleet-mig restore {name}")
    return _outcome(worker.change(places, _opener(places), job), f"{name} is restored")


def _layout_to_restore(
    places: state.Places, options: argparse.Namespace
) -> tuple[str, t.Any, t.Optional[state.Persisted]]:
    """The name of the source, the layout in it, and what is known about it."""
    if options.file is not None:
        name = "standard input" if options.file == "-" else state.printable(os.path.abspath(options.file))
        return name, _parsed(options.file, name), None
    name, read = ("previous.json", state.read_previous) if options.previous else ("wanted.json", state.read_wanted)
    saved = read(places)
    if saved is None:
        raise WishError(
            f"{os.path.join(places.state, name)} does not exist, so there is nothing to restore; name a file."
        )
    return name, {"gpus": list(saved.gpus)}, saved


def _parsed(path: str, name: str) -> t.Any:
    try:
        if path == "-":
            content = sys.stdin.read(_MAX_CHARACTERS + 1)
        else:
            with open(path, encoding="utf-8") as file:
                content = file.read(_MAX_CHARACTERS + 1)
        if len(content) > _MAX_CHARACTERS:
            raise WishError(f"{name} has more than {_MAX_CHARACTERS} characters; a layout has a few thousand.")
        return json.loads(content)
    except OSError as error:
        raise WishError(f"{name} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        raise WishError(
            f"{name} is not JSON ({state.printable(str(error))}): save what mig_info returns with the filter to_json."
        ) from None


def _recover(places: state.Places, options: argparse.Namespace) -> Answer:
    """Heal a change that was interrupted; without one there is nothing to do."""
    orders = _orders(options)._replace(recover="back" if options.back else "forward")
    outcome = worker.recover(places, _opener(places), orders)
    if outcome is None or not outcome.recovered:
        said = "There is no unfinished change."
        nothing = outcome or Outcome(after=Node(()), altered=False, changed=False)
        return Answer(OK, {**_changes(nothing), "result": "unchanged", "changed": False, "msg": said}, [said])
    fate = "taken back" if outcome.recovered == "back" else "finished"
    return _outcome(outcome, f"The unfinished change {_change_in_words(outcome.unfinished or {})} is {fate}")


def _outcome(outcome: Outcome, done: str) -> Answer:
    """A change as an answer. ``done`` is what has been reached if nothing failed, without a full stop."""
    pictures = _pictures(outcome.before or outcome.after, outcome.after)
    status, result, said = _judgement(outcome, done, len(pictures))
    report: Report = {"result": result, "msg": said, **_changes(outcome)}
    lines = [said, *(line for pair in pictures for line in pair)]
    lines += [f"Missing: {sentence}." for sentence in outcome.missing]
    if outcome.recovery:
        lines.append(f"'gpufleet-mig restore {outcome.recovery}' restores it once the cause is gone.")
    return Answer(status, report, [*lines, *outcome.warnings], outcome.txid)


def _changes(outcome: Outcome) -> Report:
    """What every report of a change has beside its verdict."""
    return {
        "changed": outcome.changed,
        "txid": outcome.txid,
        "before": [_gpu_report(gpu) for gpu in (outcome.before or outcome.after).gpus],
        "after": [_gpu_report(gpu) for gpu in outcome.after.gpus],
        "missing": list(outcome.missing),
        "recovery": outcome.recovery,
        "reset_required": list(outcome.reset_required),
        "reboot_required": list(outcome.reboot_required),
        "not_started": list(outcome.not_started),
        "warnings": list(outcome.warnings),
    }


def _judgement(outcome: Outcome, done: str, changed: int) -> tuple[int, str, str]:
    """Exit status, result and sentence."""
    if outcome.error is None:
        if outcome.reset_required or outcome.reboot_required:
            return RESET_OR_REBOOT, "pending", f"{_waiting_in_words(outcome)}, then run this again."
        if outcome.changed:
            return OK, "changed", f"{done}: {counted(changed, 'GPU')} changed."
        if outcome.remembered:
            return OK, "remembered", f"{done}: nothing had to be changed, and it is remembered for the next boot now."
        return OK, "unchanged", f"{done}: nothing had to be changed."
    said = str(outcome.error)
    if outcome.error.details.get("error") == "NO_ANSWER":
        return CANNOT_TELL, "no answer", said
    if outcome.rolled_back:
        return ROLLED_BACK, "rolled back", f"{said} The layout from before is restored."
    return NOT_AS_BEFORE, "incomplete", said


def _orders(options: argparse.Namespace) -> Orders:
    return Orders(
        allow_reset=options.allow_reset,
        remember=not getattr(options, "not_remembered", False),
        lock_timeout=options.wait,
        operation_timeout=options.timeout,
        run_id=getattr(options, "run_id", ""),
        who=_who(),
    )


def _who() -> str:
    """The person behind this, as far as that can be known: ``alice at the node``."""
    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        name = str(os.getuid())
    return f"{state.printable(os.environ.get('SUDO_USER') or name)} at the node"


# --- booting --------------------------------------------------------------------------------------------------------


def _boot(places: state.Places, options: argparse.Namespace) -> Answer:
    """Give the GPUs what they had, GPU by GPU where that is needed, and keep what came of it for 'status'."""
    orders = _orders(options)._replace(who="the boot of this node")
    try:
        booted = boot.boot(places, _opener(places), orders, options.wait, fallback=options.fallback_previous)
        answer = _booted(booted)
    except MigError as error:
        answer = _refusal(error, options)
    kept: Report = {key: answer.report[key] for key in ("result", "msg", "failures") if key in answer.report}
    try:
        state.write_boot(places, {"finished": state.utc_now(), "exit_status": answer.status, **kept})
    except state.StateError as error:
        return answer._replace(lines=[*answer.lines, str(error)])
    return answer


def _booted(booted: boot.Booted) -> Answer:
    pictures = _pictures(booted.before, booted.after)
    status, result = OK, "unchanged"
    if booted.failures:
        all_wait = all(failure.waits for failure in booted.failures)
        status, result = (RESET_OR_REBOOT, "pending") if all_wait else (NOT_AS_BEFORE, "incomplete")
    elif booted.left:
        result = "left"
    elif booted.changed:
        result = "changed"
    done = list(booted.done)
    if booted.source and not done:
        done.append(
            f"{booted.source} is restored: {counted(len(pictures), 'GPU')} changed."
            if pictures
            else f"{booted.source} is followed: nothing had to be changed."
        )
    failed = list(dict.fromkeys(failure.sentence for failure in booted.failures))
    report: Report = {
        "result": result,
        "msg": " ".join((*failed, *(() if failed else (*done, *booted.left)))),
        "changed": booted.changed,
        "source": booted.source,
        "before": [_gpu_report(gpu) for gpu in booted.before.gpus],
        "after": [_gpu_report(gpu) for gpu in booted.after.gpus],
        "done": done,
        "left": list(booted.left),
        "failures": [{"gpu": each.gpu, "msg": each.sentence, "waits": each.waits} for each in booted.failures],
        "warnings": list(booted.warnings),
    }
    return Answer(status, report, [*failed, *done, *(now for _then, now in pictures), *booted.left, *booted.warnings])


# --- the driver -----------------------------------------------------------------------------------------------------


def _opener(places: state.Places) -> reading.Opener:
    """Opens NVML with the binding that lies on the node; imported here, before any child is forked."""
    return functools.partial(driver.Session, driver.load_binding(os.path.join(places.state, "binding")))


def _cdi(places: state.Places, options: argparse.Namespace) -> Answer:
    """What containers are told of the GPUs, brought in line or only proven."""
    given = {key: getattr(options, key) for key in ("spec", "management_spec", "unit", "management")}
    given["folders"] = options.spec_dirs
    settings = cdi.settings_of(places) or cdi.Settings()
    settings = settings._replace(**{key: value for key, value in given.items() if value is not None})
    node = _read(places, options)
    if not options.verify:
        outcome = cdi.refresh(node, settings)
        return Answer(OK, outcome._asdict(), [outcome.msg])
    cdi.require_whole(node)
    cdi.prove(node, cdi.located(settings))
    return Answer(OK, {"msg": "Containers are told of what there is."}, ["Containers are told of what there is."])


def _read(places: state.Places, options: argparse.Namespace) -> Node:
    return reading.observe(_opener(places), Orders(operation_timeout=options.timeout))


# --- words ----------------------------------------------------------------------------------------------------------


def _gpu_report(gpu: Gpu) -> Report:
    """A GPU as layout= and 'gpufleet-mig restore' take it, and with what mig_info calls so."""
    pending = gpu.mode_current != gpu.mode_pending
    by_reboot = driver.mode_change_needs_reboot(gpu)
    return {
        **layouts.dump(gpu),
        "reset_required": pending and not by_reboot,
        "reboot_required": pending and by_reboot,
        "errors": [problem._asdict() for problem in gpu.problems],
        "layout": drawing.draw_gpu(gpu),
    }


def _pictures(before: Node, after: Node) -> list[tuple[str, str]]:
    """GPUs that look different now, before and after."""
    then = {gpu.uuid: drawing.draw_gpu(gpu) for gpu in before.gpus}
    now = {gpu.uuid: drawing.draw_gpu(gpu) for gpu in after.gpus}
    return [(f"before {then[uuid]}", f"now    {now[uuid]}") for uuid in then if now.get(uuid, then[uuid]) != then[uuid]]


def _is_pending(gpu: Report) -> bool:
    return bool(gpu["reset_required"] or gpu["reboot_required"])


def _pending_in_words(gpu: Report) -> str:
    mode = "on" if gpu["mig_pending"] else "off"
    event = "reboot" if gpu["reboot_required"] else "reset or reboot"
    return f"MIG is {mode} from the next {event} on."


def _problem_in_words(gpu: Gpu) -> str:
    mode = "" if gpu.mode_current is None else f"MIG is {'on' if gpu.mode_current else 'off'}, but "
    problem = gpu.problems[0]
    return f"{mode}{problem.call} says {problem.error}: {problem.remedy}."


def _about(persisted: t.Optional[state.Persisted]) -> t.Optional[Report]:
    return None if persisted is None else {key: value for key, value in persisted._asdict().items() if key != "gpus"}


def _persisted_in_words(about: Report) -> str:
    """``all-1g.5gb (generated) of 2026-01-31T23:59:59+00:00 by alice``."""
    name = f"{about['label']} ({about['source']})" if about["label"] else "a layout without label"
    return f"{name} of {about['written']}{' by ' + about['who'] if about['who'] else ''}"


def _progress_in_words(progress: Report, proven: bool = False) -> str:
    change = _change_in_words(progress)
    if progress["running"]:
        return f"At work since {progress['started']}: {change}."
    when = ", before the last boot" if progress["boot"] == "earlier" else ""
    back = "" if proven else ", 'gpufleet-mig recover --back' takes it back"
    return f"Unfinished since {progress['started']}{when}: {change}. 'gpufleet-mig recover' finishes it{back}."


def _change_in_words(change: Report) -> str:
    """``20260131T235959Z-0a1b2c3d (mig_config label all-1g.5gb) of alice``."""
    what = f" ({change['what']})" if change.get("what") else ""
    who = f" of {change['who']}" if change.get("who") else ""
    return f"{change.get('txid', '')}{what}{who}"


def _waiting_in_words(outcome: Outcome) -> str:
    parts = []
    if outcome.reset_required:
        parts.append(f"reset {_indices(outcome.reset_required)} (--allow-reset does it) or reboot")
    if outcome.reboot_required:
        parts.append(f"reboot for {_indices(outcome.reboot_required)}")
    return f"The MIG mode is stored and not current yet: {', '.join(parts)}"


def _indices(indices: t.Iterable[int]) -> str:
    return "GPU " + ", ".join(map(str, indices))


# --- output ---------------------------------------------------------------------------------------------------------


def _refusal(error: MigError, options: argparse.Namespace) -> Answer:
    """What kept the command from doing anything."""
    status: int = options.otherwise
    if isinstance(error, state.LockedError):
        status = LOCKED
    elif isinstance(error, (DriverError, bounded.Unfinished, boot.NotReady)):
        status = CANNOT_TELL
    said = f"{str(error).rstrip('.')}."
    return Answer(status, {**error.details, "msg": said}, [f"gpufleet-mig: {said}"])


def _print(answer: Answer, options: argparse.Namespace, people: t.Optional[t.TextIO] = None) -> bool:
    """Print the answer, JSON always to standard output; whether it got there."""
    if options.json:
        report = {"command": options.command, "exit_status": answer.status, **answer.report}
        stream, text = sys.stdout, json.dumps(report, indent=2, default=str)
    else:
        # Labels and names come from elsewhere: nothing in them may move a cursor, whatever the terminal.
        stream, text = people or sys.stdout, "\n".join(map(drawing.printable, answer.lines))
    try:
        stream.write(f"{text}\n")
        stream.flush()
    except BrokenPipeError:
        # Whoever listened has heard enough; what is left in the buffer must not become an error at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return False
    return True


def _confirm(places: state.Places, txid: str) -> None:
    """The result of this change has been told, and need not be kept for anybody."""
    kept = state.read_result(places)
    if kept is not None and kept.get("txid") == txid:
        state.clear_result(places)


if __name__ == "__main__":
    raise SystemExit(main())
