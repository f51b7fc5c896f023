# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Module arguments in, engine calls, module results out. The only file that knows both AnsibleModule and the engine.

This file is private to the collection gpufleet.mig and may change at any time.

This process never opens NVML: a driver that hangs must not hang the module. It reads in a child, and ``worker.change``
makes changes in one that outlives this process if need be.

What plans and changes is imported where there is something to change and nowhere else: a node where there is nothing to
do is read and compared, and pays for nothing more. But it is imported here, before the worker is forked: the worker may
live on when this process has ended and Ansible has removed the files that it would import from.
"""

from __future__ import annotations

import functools
import json
import os
import pwd
import py_compile
import shutil
import sys
import tempfile
import types
import typing as t

from .engine import catalog, compare, configs, drawing, driver, reading, report, state
from .engine.model import Client, Gpu, GpuWish, Job, MigError, Node, Orders, Plan, Wanted, WishError
from .engine.profiles import counted

if t.TYPE_CHECKING:
    from ansible.module_utils.basic import AnsibleModule

    from .engine.transaction import Outcome

Result = dict[str, t.Any]
Params = dict[str, t.Any]

# Documented in the fragment gpufleet.mig.state.
COMMON_ARGUMENTS: dict[str, t.Any] = {"state_dir": {"type": "path"}, "_binding": {"type": "path"}}

READ_ARGUMENTS: dict[str, t.Any] = {"operation_timeout": {"type": "float", "default": 60}}

# Documented in the fragment gpufleet.mig.change.
CHANGE_ARGUMENTS: dict[str, t.Any] = {
    **READ_ARGUMENTS,
    "evict": {"type": "str", "choices": ["none", "reserved", "clients"], "default": "none"},
    "clients": {"type": "list", "elements": "raw", "default": []},
    "reservations": {"type": "list", "elements": "dict", "default": []},
    "manage_drm": {"type": "bool", "default": False},
    "lock_timeout": {"type": "float", "default": 300},
    "client_timeout": {"type": "float", "default": 90},
}


def run(module: AnsibleModule, work: t.Callable[[AnsibleModule], Result]) -> None:
    """Do the work of a module; this is the one place where an error of the engine becomes a failed task."""
    try:
        result = work(module)
    except MigError as error:
        result = failure(error)
    answer = module.fail_json if result.get("failed") else module.exit_json
    try:
        answer(**result)
    except SystemExit:
        # If nobody listens this fails, and the next run finds the result where it was kept.
        sys.stdout.flush()
        _confirm(module, result)
        raise


def failure(error: MigError) -> Result:
    """A failed task's result: the sentence, what the engine knows about it, and whether anything was touched."""
    details = dict(error.details)
    if details.get("error") == "BINDING_MISSING":
        details["binding_missing"] = True
    if "lock" in details:
        details["in_progress"] = {**details.pop("lock"), "running": True}
    return {"failed": True, "changed": False, "altered": False, **details, "msg": str(error)}


def orders(params: Params) -> Orders:
    """What the task lets a change do, from the options that all changing modules have. Raises WishError."""
    named: tuple[Client, ...] = ()
    if params["clients"]:
        from .engine import clients

        named = clients.parse(params["clients"])
    return Orders(
        evict=params["evict"],
        clients=named,
        reservations=tuple(params["reservations"]),
        allow_reset=bool(params.get("allow_reset")),
        manage_drm=params["manage_drm"],
        recover=params.get("recover") or "forward",
        lock_timeout=_seconds(params, "lock_timeout", least=0),
        operation_timeout=_seconds(params, "operation_timeout"),
        client_timeout=_seconds(params, "client_timeout"),
        lease=_seconds(params, "lease", least=0) if "lease" in params else 0.0,
        run_id=params.get("run_id") or "",
        who=_who(),
    )


def opener(params: Params) -> reading.Opener:
    """What opens a session of NVML, for the engine to do in a child."""
    return functools.partial(driver.Session, load_binding(params))


def _seconds(params: Params, option: str, least: float = 0.001) -> float:
    value = float(params[option])
    if not least <= value <= _MANY_SECONDS:
        raise WishError(
            f"{option} is {value:g}; it must be a number of seconds{' above 0' if least else ', 0 or more'}."
        )
    return value


# A day. Whoever means "for ever" gets a number that the kernel takes for a timer.
_MANY_SECONDS = 86400.0


def _who() -> str:
    """Who runs this, for the records of the node and for others who have to wait: ``alice (as root)``."""
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        user = f"user {os.geteuid()}"
    login = os.environ.get("SUDO_USER") or user
    return login if login == user else f"{login} (as {user})"


def _confirm(module: AnsibleModule, result: Result) -> None:
    """The caller has the result of its change, or of the one that it resumed: it need not be kept any longer."""
    if "txid" not in result or module.check_mode:
        return
    told = (result["txid"], (result.get("resumed") or {}).get("txid"))
    places = state.places(module.params["state_dir"])
    try:
        kept = state.read_result(places)
        if kept is not None and kept.get("txid") in told:
            state.clear_result(places)
    except MigError:
        pass  # then the next run says it once more


# --- mig_info ------------------------------------------------------------------------------------------------------


def info(module: AnsibleModule) -> Result:
    """The node as it is; what keeps NVML from answering is part of the report, not a failure."""
    places = state.places(module.params["state_dir"])
    timeout = _seconds(module.params, "operation_timeout")
    result: Result = {"changed": False, "in_progress": state.in_progress(places)}
    try:
        node = reading.observe(opener(module.params), Orders(operation_timeout=timeout))
    except MigError as error:
        return {**result, **_unavailable(error)}
    return {**result, "available": True, "persisted": _persisted(module, places, node), **report.node_report(node)}


def _unavailable(error: MigError) -> Result:
    name = str(error.details.get("error", "UNKNOWN"))
    problem = {
        "call": error.details.get("call") or error.details.get("operation", ""),
        "error": name,
        "message": str(error),
        "remedy": driver.remedy(name),
    }
    lacks_binding = {"binding_missing": True} if name == "BINDING_MISSING" else {}
    return {"available": False, "problem": problem, **lacks_binding}


def _persisted(module: AnsibleModule, places: state.Places, node: Node) -> t.Optional[str]:
    """Whether a boot would restore what is there; None when that cannot be told, which is only news to root."""
    try:
        return state.persisted_verdict(state.read_wanted(places), node)
    except state.StateError as error:
        if error.details["reason"] != "permission":
            module.warn(str(error))
        return None


def holders(module: AnsibleModule) -> Result:
    """Who has which GPU open. What keeps NVML or /proc from answering is part of the report, not a failure."""
    from .engine import bounded
    from .engine import holders as engine_holders

    timeout = _seconds(module.params, "operation_timeout")
    about: Result = {"changed": False, "available": True}
    node: t.Optional[Node] = None
    try:
        node = reading.observe(opener(module.params), Orders(operation_timeout=timeout))
    except MigError as error:
        about.update(_unavailable(error))
    if node is not None:
        node = node._replace(gpus=configs.select_gpus(node, module.params["gpus"])[0])
    try:
        found = bounded.ask(lambda watch: engine_holders.inventory(node, watch), timeout)
    except bounded.Unfinished as error:
        listed = () if node is None else engine_holders.holdings_of(node)
        found = engine_holders.Inventory(listed, (str(error).rstrip("."),))
    return {
        **about,
        "holders": [
            {
                "gpu": each.gpu,
                "minor": each.minor,
                "gi": each.gi_id,
                "ci": each.ci_id,
                "user": each.user,
                **report.process_report(each.process),
                "description": engine_holders.words(each.process),
            }
            for each in found.holdings
        ],
        "unseen": list(found.unseen),
    }


# --- mig_config ----------------------------------------------------------------------------------------------------


class _Task(t.NamedTuple):
    """What mig_config works with. ``resolve`` is None when all there is to do is to end an unfinished change."""

    module: AnsibleModule
    places: state.Places
    orders: Orders
    binding: types.ModuleType
    resolve: t.Optional[t.Callable[[Node], Wanted]]

    @property
    def opener(self) -> reading.Opener:
        return functools.partial(driver.Session, self.binding)

    @property
    def job(self) -> Job:
        return Job(self.resolve, self.orders, what=_what(self.module.params))


def config(module: AnsibleModule) -> Result:
    """Bring the node to what is wanted: read, resolve, compare, and, where there is something to do, have it done."""
    params = module.params
    places = state.places(params["state_dir"])
    resolve = functools.partial(_resolve, params=params) if _has_wish(params) else None
    task = _Task(module, places, orders(params), load_binding(params), resolve)
    node = reading.observe(task.opener, task.orders)
    unfinished = state.in_progress(places)
    wanted = resolve(node) if resolve else Wanted("", "unfinished", {})
    _warn_of_what_could(module, node, wanted)
    verdict, differences = compare.verdict(node, wanted)
    if verdict == "unknown":
        reasons = " ".join(_in_words(node, differences))
        raise MigError(f"Cannot tell whether the node is as wanted, and nothing was changed: {reasons}")
    persisted = state.persisted_verdict(state.read_wanted(places), node, wanted.wishes)
    remembered = persisted == "match" or not wanted.wishes
    untold = _untold(places, wanted)
    converged = verdict == "match" and remembered and unfinished is None and untold is None
    result: Result = {
        "changed": False,
        "altered": False,
        "verdict": verdict,
        "converged": converged,
        **_about_wish(wanted),
        "before": _layouts(node),
        "after": _layouts(node),
        "reset_required": [],
        "reboot_required": [],
        "persisted": persisted,
        "binding": _keep_binding(task),
    }
    if converged:
        return {**result, "msg": _summary("as wanted", node, wanted) if resolve else "There is no unfinished change."}
    result["differences"] = _in_words(node, differences)
    if not module.check_mode:
        change = _change(task)
        return change if change.get("failed") else {**result, **change}
    if unfinished is not None and unfinished.get("running"):
        return {**result, **_would_wait(unfinished, wanted)}
    return {**result, **_prediction(task, unfinished, untold)}


def _warn_of_what_could(module: AnsibleModule, node: Node, wanted: Wanted) -> None:
    """GPUs that cannot do MIG are passed over; that is news where their model can."""
    for gpu in (node.gpus[index] for index in wanted.skipped):
        needs = catalog.what_mig_needs(gpu)
        if needs:
            module.warn(f"{driver.describe(gpu)} is passed over: {needs}.")


def _about_wish(wanted: Wanted) -> Result:
    return {
        "label": wanted.label,
        "label_source": wanted.source,
        "unlisted": list(wanted.unlisted),
        "without_mig": list(wanted.skipped),
    }


def _untold(places: state.Places, wanted: Wanted) -> t.Optional[Result]:
    """The result of an earlier change for this wish, of which nobody has heard."""
    result = state.read_result(places)
    if result is None:
        return None
    from .engine import worker

    return result if result.get("wish") == worker.digest(wanted) else None


# --- check mode ----------------------------------------------------------------------------------------------------


def _prediction(task: _Task, unfinished: t.Optional[Result], untold: t.Optional[Result]) -> Result:
    """What a real run would answer: from the plan that it would make, and refused where it would refuse.

    ``untold`` is the result of an earlier run for this wish of which nobody has heard.
    """
    from .engine import foresight, planner

    node = reading.observe(task.opener, task.orders, with_holders=True)
    foreseen = foresight.foresee(task.places, node, task.job)
    recovered = {**(unfinished or {}), "direction": foreseen.recovered}
    result: Result = {"recovered": recovered} if foreseen.recovered else {}
    wanted = foreseen.wanted or Wanted("", "unfinished", {})
    if foreseen.plan is None:
        said = f"The unfinished change {_change_in_words(recovered)} would be taken back."
        return {**result, "changed": True, **_pictures(node, foreseen.origin), "msg": said}
    plan, base = foreseen.plan, node
    waiting = [index for index, wish in wanted.wishes.items() if _waits(node.gpus[index], wish)]
    reboot = [index for index in waiting if driver.mode_change_needs_reboot(node.gpus[index])]
    if reboot or (waiting and not task.orders.allow_reset):
        switched = any(step.kind == "set_mode" for step in plan.steps)
        reset = [index for index in waiting if index not in reboot]
        plan_told = {"changed": switched, "plan": report.plan_report(plan, node)}
        return {**result, **plan_told, **_waiting(wanted, reset, reboot)}
    if waiting:
        base = _with_pending_modes(node, waiting)
        plan = planner.plan_node(base, wanted)
    after = _as_planned(base, plan)
    changing = sum(bool(gpu_plan.steps) for gpu_plan in plan.gpus)
    parts = [
        *([f"would finish the change {_change_in_words(recovered)}"] if foreseen.recovered else []),
        *([f"would stop {', '.join(foreseen.stopping)}"] if foreseen.stopping else []),
        *([f"would reset {_indices(waiting)}"] if waiting else []),
        *([f"would change {counted(changing, 'GPU')}"] if changing else []),
    ]
    if not parts and untold is not None:
        parts.append(f"as wanted, and would tell what the change {_change_in_words(untold)} did")
    return {
        **result,
        "changed": True,
        "plan": report.plan_report(plan, base),
        "clients": {"stopped": list(foreseen.stopping), "not_started": []},
        **_pictures(node, after),
        "msg": _summary(", ".join(parts or ["as wanted, and would be remembered for the next boot"]), after, wanted),
    }


def _with_pending_modes(node: Node, waiting: t.Sequence[int]) -> Node:
    """The node after these GPUs were reset."""
    return node._replace(
        gpus=tuple(
            gpu._replace(mode_current=gpu.mode_pending, instances=()) if gpu.index in waiting else gpu
            for gpu in node.gpus
        )
    )


def _would_wait(running: Result, wanted: Wanted) -> Result:
    """Nothing can be planned on a node that somebody else changes at this moment."""
    return {
        "changed": True,
        "in_progress": running,
        "msg": f"{_title(wanted)}: the change {_change_in_words(running)} is running on this node; a real run would"
        " wait for it and then do what is left to do.",
    }


def _waits(gpu: Gpu, wish: GpuWish) -> bool:
    return gpu.mode_current != wish.enabled and gpu.mode_pending == wish.enabled


def _as_planned(node: Node, plan: Plan) -> Node:
    planned = {p.gpu: p for p in plan.gpus if p.steps}
    return node._replace(
        gpus=tuple(
            gpu._replace(
                mode_current=planned[gpu.index].enabled,
                mode_pending=planned[gpu.index].enabled,
                instances=planned[gpu.index].after,
            )
            if gpu.index in planned
            else gpu
            for gpu in node.gpus
        )
    )


# --- a real run ----------------------------------------------------------------------------------------------------


def _change(task: _Task) -> Result:
    """Have the change made, and say what became of it."""
    # kinds is not used by the worker alone; it must find it loaded, whatever becomes of the files of this module.
    from .engine import kinds, worker  # noqa: F401  # pylint: disable=unused-import

    outcome = worker.change(task.places, task.opener, task.job)
    for warning in (*outcome.warnings, *outcome.not_started):
        task.module.warn(warning)
    result = _what_happened(outcome)
    if outcome.error is not None:
        return {**failure(outcome.error), **result, **_rollback(outcome)}
    wanted = outcome.wanted or Wanted("", "unfinished", {})
    before = outcome.before or outcome.after
    verdict, differences = compare.verdict(outcome.after, wanted)
    result.update(
        verdict=verdict,
        differences=_in_words(outcome.after, differences),
        **_about_wish(wanted),
        persisted=state.persisted_verdict(state.read_wanted(task.places), outcome.after, wanted.wishes),
        uuid_map=outcome.uuid_map or {},
        plan=report.plan_report(outcome.plan, before) if outcome.plan else [],
    )
    if outcome.resumed:
        return {**result, **_resumed(outcome.resumed, outcome.after, wanted)}
    result.update(_pictures(before, outcome.after), before=_layouts(before), msg=_done_in_words(outcome, wanted))
    if outcome.reset_required or outcome.reboot_required:
        gone = [step.gpu for step in outcome.steps_done if step.kind == "destroy_gi"]
        result.update(_waiting(wanted, list(outcome.reset_required), list(outcome.reboot_required), gone))
    return result


def _what_happened(outcome: Outcome) -> Result:
    """What is told of every change, whether it ended well or not."""
    result: Result = {
        "changed": outcome.changed or outcome.remembered,
        "altered": outcome.altered,
        "txid": outcome.txid,
        "clients": {"stopped": list(outcome.stopped), "not_started": list(outcome.not_started)},
    }
    if outcome.recovered:
        result["recovered"] = {**(outcome.unfinished or {}), "direction": outcome.recovered}
    if outcome.pending_left:
        result["pending_left"] = list(outcome.pending_left)
    return result


def _done_in_words(outcome: Outcome, wanted: Wanted) -> str:
    unfinished = _change_in_words(outcome.unfinished or {})
    if outcome.recovered == "back":
        said = f"The unfinished change {unfinished} was taken back."
        return f"{said} What this task wishes was not followed; run again for it." if wanted.wishes else said
    changed = {step.gpu for step in outcome.steps_done}
    parts = [f"finished the change {unfinished}"] if outcome.recovered else []
    if changed:
        parts.append(f"changed {counted(len(changed), 'GPU')}")
    if not parts:
        parts.append("as wanted, and remembered for the next boot now" if outcome.remembered else "as wanted")
    return _summary(", ".join(parts), outcome.after, wanted)


def _resumed(untold: Result, node: Node, wanted: Wanted) -> Result:
    """What an earlier run did for this wish, told by the run that found the node as wanted."""
    from .engine import layouts

    dumps = {dump.get("uuid"): dump for dump in untold["before"]}
    before = node._replace(
        gpus=tuple(layouts.load(dumps[gpu.uuid], gpu) if gpu.uuid in dumps else gpu for gpu in node.gpus)
    )
    said = f"as wanted since the change {_change_in_words(untold)}, whose result had reached nobody"
    return {
        "changed": True,
        "resumed": {key: untold.get(key) for key in ("txid", "label", "finished")},
        **_pictures(before, node),
        "before": _layouts(before),
        "uuid_map": untold.get("uuid_map", {}),
        "msg": _summary(said, node, wanted),
    }


def _waiting(wanted: Wanted, reset: list[int], reboot: list[int], gone: t.Sequence[int] = ()) -> Result:
    """A mode that is stored but not current. ``gone`` has the GPU of each GI that had to go before that was known."""
    actions = []
    if reset:
        actions.append(f"reset {_indices(reset)} or reboot the node")
    if reboot:
        actions.append(f"reboot the node for {_indices(reboot)}")
    touched = "no instance was touched"
    if gone:
        counts = ", ".join(f"{counted(gone.count(gpu), 'GPU instance')} of GPU {gpu}" for gpu in sorted(set(gone)))
        touched = (
            f"{counts} had to be destroyed for it, since MIG cannot be turned off beside them; no other was touched"
        )
    return {
        "reset_required": reset,
        "reboot_required": reboot,
        "msg": f"{_title(wanted)}: the MIG mode is pending on {_indices(sorted(reset + reboot))}, and {touched};"
        f" {', '.join(actions)}, then run again.",
    }


def _rollback(outcome: Outcome) -> Result:
    """What a failure leaves behind; these win over what the error itself says.

    The layouts are only there where they tell something new: a failed task's result is shown as a whole.
    """
    result: Result = {"rolled_back": bool(outcome.rolled_back)}
    if outcome.rolled_back:
        return {**result, "msg": f"{outcome.error} The layout from before is restored."}
    result.update(
        msg=f"{outcome.error} Not everything could be restored: {'; '.join(outcome.missing)}.",
        missing=list(outcome.missing),
        after=_layouts(outcome.after),
        uuid_map=outcome.uuid_map or {},
    )
    if outcome.recovery:
        with open(outcome.recovery, encoding="utf-8") as file:
            result["recovery"] = {"path": outcome.recovery, "layout": json.load(file)["gpus"]}
        result["msg"] += f" The layout from before is in {outcome.recovery}, and in this result as recovery.layout."
    return result


# --- the wish ------------------------------------------------------------------------------------------------------


def _has_wish(params: Params) -> bool:
    return any(params[name] for name in ("label", "label_by_gpu", "config")) or params["layout"] is not None


def _resolve(node: Node, params: Params) -> Wanted:
    """The wish for this node in terms of its own GPUs. Raises WishError."""
    gpus = "all" if params["gpus"] == ["all"] else params["gpus"]
    if params["layout"] is not None:
        from .engine import layouts

        configs.check_expected(node, params["expected_gpus"])
        return layouts.resolve(node, params["layout"], gpus=gpus, accept_replacement=params["accept_replacement"])
    options = {name: params[name] for name in ("configs", "unlisted", "expected_gpus", "allow_empty", "mode_only")}
    if params["label_by_gpu"]:
        from .engine import kinds

        return kinds.resolve(node, params["label_by_gpu"], label=params["label"], gpus=gpus, **options)
    return configs.resolve(node, label=params["label"], config=params["config"], gpus=gpus, **options)


def _what(params: Params) -> str:
    """The task in a few words, for records: ``mig_config label all-1g.5gb``."""
    if params["label"] and not params["label_by_gpu"]:
        return f"mig_config label {state.printable(params['label'])}"
    wishes = ("label_by_gpu", "config", "layout")
    named = next((name for name in wishes if params[name] is not None), f"recover {params['recover']}")
    return f"mig_config {named}"


# --- words and pictures --------------------------------------------------------------------------------------------


def _pictures(before: Node, after: Node) -> Result:
    return {"after": _layouts(after), "diff": report.diff_text(before, after)}


def _change_in_words(change: Result) -> str:
    """``20260101T000000Z-0a1b2c3d (mig_config label all-1g.5gb) of alice``."""
    if "unreadable" in change:
        return str(change["unreadable"])
    what = f" ({state.printable(change['what'])})" if change.get("what") else ""
    who = f" of {state.printable(change['who'])}" if change.get("who") else ""
    return f"{change.get('txid', '')}{what}{who}"


def _layouts(node: Node) -> list[Result]:
    return [
        {
            "gpu": gpu.index,
            "name": gpu.name,
            "pci_bus_id": gpu.pci_bus_id,
            "uuid": gpu.uuid,
            "mig_current": gpu.mode_current,
            "mig_pending": gpu.mode_pending,
            "instances": [report.instance_report(gpu, instance) for instance in gpu.instances],
            "layout": drawing.draw_gpu(gpu),
        }
        for gpu in node.gpus
    ]


def _in_words(node: Node, differences: t.Mapping[int, tuple[str, ...]]) -> list[str]:
    return [
        f"{driver.describe(node.gpus[index])}: {sentence}."
        for index, sentences in differences.items()
        for sentence in sentences
    ]


def _summary(what: str, node: Node, wanted: Wanted) -> str:
    """One line for people: ``all-1g.5gb (generated): as wanted; 8 GPUs with 56 MIG devices.``"""
    gpus = [node.gpus[index] for index in sorted(wanted.wishes)]
    devices = sum(len(instance.compute) for gpu in gpus for instance in gpu.instances)
    parts = [f"{what}; {counted(len(gpus), 'GPU')} with {counted(devices, 'MIG device')}"]
    left_alone = [index for index in wanted.unlisted if index not in wanted.wishes]
    if left_alone:
        parts.append(f"left alone: {_indices(left_alone)}")
    if wanted.skipped:
        parts.append(f"without MIG: {_indices(wanted.skipped)}")
    return f"{_title(wanted)}: {'; '.join(parts)}."


def _title(wanted: Wanted) -> str:
    unnamed = {"layout": "the layout of this task", "unfinished": "the unfinished change"}
    return (
        f"{wanted.label} ({wanted.source})" if wanted.label else unnamed.get(wanted.source, "the config of this task")
    )


def _indices(indices: t.Iterable[int]) -> str:
    return "GPU " + ", ".join(str(index) for index in indices)


# --- the NVML binding ----------------------------------------------------------------------------------------------


def _binding_folder(params: Params) -> str:
    return os.path.join(state.places(params["state_dir"]).state, "binding")


def load_binding(params: Params) -> types.ModuleType:
    """Import pynvml: what came with this task, else what was installed, else what the node's Python has."""
    trusted = (params["_binding"],) if params["_binding"] else ()
    return driver.load_binding(_binding_folder(params), trusted=trusted)


def _keep_binding(task: _Task) -> str:
    """Install the binding that came with this task, unless this is check mode; returns where it is now."""
    module = task.module
    folder = _binding_folder(module.params)
    archive = module.params["_binding"]
    if not archive:
        return "installed" if str(task.binding.__file__).startswith(folder + os.sep) else "node"
    if module.check_mode:
        return "payload"
    unsafe = driver.why_not_safe(folder)
    if unsafe:
        module.warn(f"{unsafe}.")
        return "payload"
    try:
        _install(archive, folder)
    except OSError as error:
        module.warn(f"The NVML binding could not be kept in {folder} ({error}); it will be brought again by each task.")
        return "payload"
    return "installed"


def _install(archive: str, folder: str) -> None:
    """Unpack and byte-compile the binding; another task that looks meanwhile finds none of it or all of it."""
    # Root refuses a binding that others can write to, so a lax umask must not make one.
    umask = os.umask(0o022)
    try:
        os.makedirs(os.path.dirname(folder), mode=0o700, exist_ok=True)
        os.makedirs(folder, mode=0o755, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".new-", dir=folder) as workshop:
            shutil.unpack_archive(archive, workshop, "zip")
            target = os.path.join(folder, "pynvml.py")
            os.replace(os.path.join(workshop, "pynvml.py"), target)
        py_compile.compile(target)
    finally:
        os.umask(umask)


# --- gpu_reset -----------------------------------------------------------------------------------------------------


def reset(module: AnsibleModule) -> Result:
    """Reset the GPUs whose MIG mode is pending, or all that are named, and give them back the layout from before."""
    from .engine import reset as resets

    params = module.params
    places = state.places(params["state_dir"])
    may = orders(params)._replace(allow_reset=True)
    binding = load_binding(params)
    node = reading.observe(functools.partial(driver.Session, binding), may)
    targets = resets.choose(node, params["gpus"], params["force"])
    task = _Task(module, places, may, binding, resets.AsBefore(targets, params["force"]))
    indices = tuple(gpu.index for gpu in targets)
    what = f"gpu_reset {_indices(indices)}" if targets else "gpu_reset"
    job = Job(task.resolve, may, indices if params["force"] else (), what)
    unfinished = state.in_progress(places)
    result: Result = {
        "changed": False,
        "altered": False,
        "reset": [],
        "before": _layouts(node),
        "after": _layouts(node),
        "binding": _keep_binding(task),
    }
    if not targets and unfinished is None:
        return {**result, "msg": "No MIG mode is pending, so nothing was reset."}
    if not module.check_mode:
        change = _reset(task, job)
        return change if change.get("failed") else {**result, **change}
    if unfinished is not None and unfinished.get("running"):
        return {**result, **_would_wait(unfinished, Wanted("", "layout", {}))}
    return {**result, **_foreseen_reset(task, job, indices)}


def _foreseen_reset(task: _Task, job: Job, indices: t.Sequence[int]) -> Result:
    """What a real run would answer, refused where it would refuse."""
    from .engine import foresight
    from .engine import reset as resets

    node = reading.observe(task.opener, task.orders, with_holders=True)
    plan = foresight.foresee(task.places, node, job).plan
    after = _as_planned(node, plan) if plan else node
    after = after._replace(gpus=tuple(resets.foreseen(gpu) if gpu.index in indices else gpu for gpu in after.gpus))
    said = f"would reset {_indices(indices)}" if indices else "would finish the change that is not finished"
    return {"changed": True, "reset": list(indices), **_pictures(node, after), "msg": f"This {said}."}


def _reset(task: _Task, job: Job) -> Result:
    from .engine import kinds, worker  # noqa: F401  # pylint: disable=unused-import  # see _change

    outcome = worker.change(task.places, task.opener, job)
    for warning in (*outcome.warnings, *outcome.not_started):
        task.module.warn(warning)
    done = sorted({step.gpu for step in outcome.steps_done if step.kind == "reset"})
    result = {**_what_happened(outcome), "changed": outcome.changed, "reset": done}
    if outcome.error is not None:
        return {**failure(outcome.error), **result, **_rollback(outcome)}
    before = outcome.before or outcome.after
    if done:
        said = f"{_indices(done)} {'was' if len(done) == 1 else 'were'} reset: " + "; ".join(
            f"{_indices([index])} has MIG {'on' if outcome.after.gpus[index].mode_current else 'off'} and"
            f" {counted(len(outcome.after.gpus[index].instances), 'GPU instance')}"
            for index in done
        )
    elif outcome.recovered:
        said = f"No MIG mode is pending; finished the change {_change_in_words(outcome.unfinished or {})}"
    else:
        said = "No MIG mode is pending any more, so nothing was reset"
    pictures = {"before": _layouts(before), **_pictures(before, outcome.after)}
    return {**result, **pictures, "uuid_map": outcome.uuid_map or {}, "msg": f"{said}."}
