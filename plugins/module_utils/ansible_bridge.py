# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Module arguments in, engine calls, module results out: here AnsibleModule and the engine meet.

This file is private to the collection gpufleet.mig and may change at any time.

This process never opens NVML: a driver that hangs must not hang the module. It reads in a child, and ``worker.change``
makes changes in one that outlives this process if need be.

What plans and changes is imported where there is something to change and nowhere else (node_change.py): a node where
there is nothing to do is read and compared, and pays for nothing more.
"""

from __future__ import annotations

import collections
import functools
import os
import pwd
import py_compile
import shutil
import sys
import tempfile
import time
import types
import typing as t

from .engine import catalog, compare, configs, drawing, driver, reading, report, state
from .engine.model import Client, Job, MigError, Node, Orders, Wanted, WishError
from .engine.profiles import counted

if t.TYPE_CHECKING:
    from ansible.module_utils.basic import AnsibleModule

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


def brief(result: Result, params: Params) -> Result:
    """A plan for those who look at many: devices are counted by profile, and the steps are left to the host's turn.

    Ansible copies and walks every value of a result several times, one host after the other.
    """
    short = {
        key: [_brief_gpu(gpu) for gpu in value] if key in ("before", "after") else value
        for key, value in result.items()
        if key != "plan"
    }
    # Ansible keeps no arguments of a task, and whether the node is rebooted for it is not in a plan.
    return {**short, "allow_reboot": bool(params["allow_reboot"])}


def _brief_gpu(gpu: Result) -> Result:
    computing = [compute for instance in gpu.get("instances", ()) for compute in instance["compute_instances"]]
    devices = dict(collections.Counter(compute["profile"] for compute in computing))
    return {key: gpu[key] for key in ("gpu", "name", "mig_current", "layout")} | {"devices": devices}


def failure(error: MigError) -> Result:
    """A failed task's result: the sentence, what the engine knows about it, and whether anything was touched."""
    details = dict(error.details)
    if details.get("error") == "BINDING_MISSING":
        details["binding_missing"] = True
    if "lock" in details:
        lock = details.pop("lock")
        # A lease is nobody at work, but a run that will be back.
        details["in_progress"] = {**lock, "running": "expires" not in lock}
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
        allow_reboot=bool(params.get("allow_reboot")),
        manage_drm=params["manage_drm"],
        pods_leave=bool(params.get("pods_leave")),
        remember=params.get("remember", True),
        recover=params.get("recover") or "forward",
        lock_timeout=seconds(params, "lock_timeout", least=0),
        operation_timeout=seconds(params, "operation_timeout"),
        client_timeout=seconds(params, "client_timeout"),
        lease=seconds(params, "lease", least=0) if "lease" in params else 0.0,
        run_id=params.get("run_id") or "",
        who=_who(),
    )


def opener(params: Params) -> reading.Opener:
    """What opens a session of NVML, for the engine to do in a child."""
    return functools.partial(driver.Session, load_binding(params))


def seconds(params: Params, option: str, least: float = 0.001) -> float:
    """An option that is a time, which AnsibleModule does not bound. Raises WishError."""
    value = float(params[option])
    if not least <= value <= _MANY_SECONDS:
        raise WishError(
            f"{option} is {value:g}; it must be a number of seconds, {'above 0' if least else '0 or more'} and at most"
            f" {_MANY_SECONDS:g}, which is a day."
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
    timeout = seconds(module.params, "operation_timeout")
    result: Result = {"changed": False, "in_progress": state.in_progress(places)}
    try:
        node = reading.observe(opener(module.params), Orders(operation_timeout=timeout))
    except MigError as error:
        return {**result, **unavailable(error)}
    return {**result, "available": True, "persisted": _persisted(module, places, node), **report.node_report(node)}


def unavailable(error: MigError) -> Result:
    """What is told instead of GPUs where the driver does not answer."""
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

    timeout = seconds(module.params, "operation_timeout")
    about: Result = {"changed": False, "available": True}
    node: t.Optional[Node] = None
    try:
        node = reading.observe(opener(module.params), Orders(operation_timeout=timeout))
    except MigError as error:
        about.update(unavailable(error))
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


class Task(t.NamedTuple):
    """What a changing module works with. ``resolve`` is None when all there is to do is to end an unfinished change."""

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
    resolve = functools.partial(_resolve, params=params, places=places) if _has_wish(params) else None
    task = Task(module, places, orders(params), load_binding(params), resolve)
    node = reading.observe(task.opener, task.orders)
    unfinished = state.in_progress(places)
    configs.check_expected(node, params["expected_gpus"])
    wanted = resolve(node) if resolve else Wanted("", "unfinished", {})
    _warn_of_what_could(module, node, wanted)
    verdict, differences = compare.verdict(node, wanted)
    if verdict == "unknown":
        reasons = " ".join(report.differences_in_words(node, differences))
        raise MigError(f"Cannot tell whether the node is as wanted, and nothing was changed: {reasons}")
    persisted = state.persisted_verdict(state.read_wanted(places), node, wanted.wishes or None)
    remembered = persisted == "match" or not wanted.wishes or not task.orders.remember
    drained_for = state.read_drain(places)
    untold = _untold(places, wanted)
    as_wanted = verdict == "match" and remembered and unfinished is None and untold is None
    waited = as_wanted and _waited_for(task, node, wanted)
    converged = as_wanted and not waited
    result: Result = {
        "changed": False,
        "altered": False,
        "verdict": verdict,
        "converged": converged,
        **about_wish(wanted),
        "before": layouts_of(node),
        "after": layouts_of(node),
        "reset_required": [],
        "reboot_required": [],
        "persisted": persisted,
        "machine": {"machine_id": state.machine_id(), "boot_id": state.boot_id()},
        "binding": keep_binding(task),
        "drained": drained_for is not None,
        "drained_for": drained_for or "",
    }
    if waited and module.check_mode:
        return {**result, "msg": summary("as wanted, and would wait for nothing any more", node, wanted)}
    if converged:
        return {**result, "msg": summary("as wanted", node, wanted) if resolve else "There is no unfinished change."}
    result["differences"] = report.differences_in_words(node, differences)
    from . import node_change

    if not module.check_mode:
        change = node_change.make(task)
        return change if change.get("failed") else {**result, **change}
    if unfinished is not None and unfinished.get("running"):
        return {**result, **node_change.would_wait(unfinished, wanted)}
    return {**result, **node_change.foresee(task, unfinished, untold)}


def _waited_for(task: Task, node: Node, wanted: Wanted) -> bool:
    """Whether this node waited for a reset or reboot, which is over now and has to be said so."""
    lease = state.read_lease(task.places)
    if lease is None or not wanted.wishes or state.lease_blocks(lease, task.orders.run_id, time.time()):
        return False
    return state.ends_waiting(lease, node, wanted.wishes)


def _warn_of_what_could(module: AnsibleModule, node: Node, wanted: Wanted) -> None:
    """GPUs that cannot do MIG are passed over; that is news where their model can."""
    for gpu in (node.gpus[index] for index in wanted.skipped):
        needs = catalog.what_mig_needs(gpu)
        if needs:
            module.warn(f"{driver.describe(gpu)} is passed over: {needs}.")


def about_wish(wanted: Wanted) -> Result:
    """What results say of every wish."""
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
    from .engine import foresight

    return result if result.get("wish") == foresight.digest(wanted) else None


# --- the wish ------------------------------------------------------------------------------------------------------


def _has_wish(params: Params) -> bool:
    """Whether anything is wished. A wish that is empty is one too, and an error, not the absence of one."""
    return params["previous"] or any(params[name] is not None for name in ("label", "label_by_gpu", "config", "layout"))


def _resolve(node: Node, params: Params, places: state.Places) -> Wanted:
    """The wish for this node in terms of its own GPUs. Raises WishError."""
    gpus = "all" if params["gpus"] == ["all"] else params["gpus"]
    if params["layout"] is not None:
        from .engine import layouts

        configs.check_expected(node, params["expected_gpus"])
        return layouts.resolve(node, params["layout"], gpus=gpus, accept_replacement=params["accept_replacement"])
    if params["previous"]:
        from .engine import undoing

        configs.check_expected(node, params["expected_gpus"])
        return undoing.resolve(node, places, params["previous_of"] or "", gpus=gpus)
    options = {name: params[name] for name in ("configs", "unlisted", "expected_gpus", "allow_empty", "mode_only")}
    if params["label_by_gpu"]:
        from .engine import kinds

        return kinds.resolve(node, params["label_by_gpu"], label=params["label"], gpus=gpus, **options)
    return configs.resolve(node, label=params["label"], config=params["config"], gpus=gpus, **options)


def _what(params: Params) -> str:
    """The task in a few words, for records: ``mig_config label all-1g.5gb``."""
    if params["label"] and not params["label_by_gpu"]:
        return f"mig_config label {state.printable(params['label'])}"
    wishes = ("label_by_gpu", "config", "layout", "previous")
    named = next((name for name in wishes if params[name]), f"recover {params['recover']}")
    return f"mig_config {named}"


# --- words and pictures --------------------------------------------------------------------------------------------


def layouts_of(node: Node) -> list[Result]:
    """The GPUs of a node as ``before`` and ``after`` have them."""
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


def summary(what: str, node: Node, wanted: Wanted) -> str:
    """One line for people: ``all-1g.5gb (generated): as wanted; 8 GPUs with 56 MIG devices.``"""
    gpus = [node.gpus[index] for index in sorted(wanted.wishes)]
    devices = sum(len(instance.compute) for gpu in gpus for instance in gpu.instances)
    parts = [f"{what}; {counted(len(gpus), 'GPU')} with {counted(devices, 'MIG device')}"]
    left_alone = [index for index in wanted.unlisted if index not in wanted.wishes]
    if left_alone:
        parts.append(f"left alone: {in_a_row(left_alone)}")
    if wanted.skipped:
        parts.append(f"without MIG: {in_a_row(wanted.skipped)}")
    return f"{title(wanted)}: {'; '.join(parts)}."


def title(wanted: Wanted) -> str:
    """The wish in words: ``all-1g.5gb (generated)``."""
    unnamed = {
        "layout": "the layout of this task",
        "previous": "the layout before the last change",
        "unfinished": "the unfinished change",
    }
    return (
        f"{wanted.label} ({wanted.source})" if wanted.label else unnamed.get(wanted.source, "the config of this task")
    )


def in_a_row(indices: t.Iterable[int]) -> str:
    """``GPU 0, 3``."""
    return "GPU " + ", ".join(str(index) for index in indices)


# --- the NVML binding ----------------------------------------------------------------------------------------------


def _binding_folder(params: Params) -> str:
    return os.path.join(state.places(params["state_dir"]).state, "binding")


def load_binding(params: Params) -> types.ModuleType:
    """Import pynvml: what came with this task, else what was installed, else what the node's Python has."""
    trusted = (params["_binding"],) if params["_binding"] else ()
    return driver.load_binding(_binding_folder(params), trusted=trusted)


def keep_binding(task: Task) -> str:
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
        install_binding(archive, folder)
    except OSError as error:
        module.warn(f"The NVML binding could not be kept in {folder} ({error}); it will be brought again by each task.")
        return "payload"
    return "installed"


def install_binding(archive: str, folder: str) -> None:
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
