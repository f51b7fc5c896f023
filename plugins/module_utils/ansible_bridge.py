# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Module arguments in, engine calls, module results out. The only file that knows both AnsibleModule and the engine.

This file is private to the collection gpufleet.mig and may change at any time.

``planner`` and ``transaction`` are imported where something differs and nowhere else: a node that is as wanted is
read and compared, and pays for nothing more.
"""

from __future__ import annotations

import functools
import os
import py_compile
import shutil
import tempfile
import types
import typing as t

from .engine import compare, configs, drawing, driver, report
from .engine.model import DriverError, Gpu, GpuWish, MigError, Node, Plan, Wanted, WishError
from .engine.profiles import counted

if t.TYPE_CHECKING:
    from ansible.module_utils.basic import AnsibleModule

    from .engine.transaction import Outcome

Result = dict[str, t.Any]

DEFAULT_STATE_DIR = "/var/lib/gpufleet-mig"

# Documented in the fragment gpufleet.mig.state.
COMMON_ARGUMENTS: dict[str, t.Any] = {"state_dir": {"type": "path"}, "_binding": {"type": "path"}}


def run(module: AnsibleModule, work: t.Callable[[AnsibleModule], Result]) -> None:
    """Do the work of a module; this is the one place where an error of the engine becomes a failed task."""
    try:
        result = work(module)
    except MigError as error:
        module.fail_json(**failure(error))
    module.exit_json(**result)


def failure(error: MigError) -> Result:
    """A failed task's result: the sentence, what the engine knows about it, and whether anything was touched."""
    lacks_binding = {"binding_missing": True} if _is_missing_binding(error) else {}
    return {"changed": False, "altered": False, **error.details, **lacks_binding, "msg": str(error)}


# --- mig_info ------------------------------------------------------------------------------------------------------


def info(module: AnsibleModule) -> Result:
    """The node as it is; what keeps NVML from answering is part of the report, not a failure."""
    try:
        with driver.Session(_load_binding(module.params)) as session:
            node = session.read_node()
    except DriverError as error:
        return _unavailable(error)
    return {"changed": False, "available": True, **report.node_report(node)}


def _unavailable(error: DriverError) -> Result:
    problem = {
        "call": error.details.get("call", ""),
        "error": error.error,
        "message": str(error),
        "remedy": driver.remedy(error.error),
    }
    lacks_binding = {"binding_missing": True} if _is_missing_binding(error) else {}
    return {"changed": False, "available": False, "problem": problem, **lacks_binding}


# --- mig_config ----------------------------------------------------------------------------------------------------


def config(module: AnsibleModule) -> Result:
    """Bring the node to what is wanted: read, resolve, compare, and, where it differs, plan and apply."""
    params = module.params
    binding = _load_binding(params)
    open_session = functools.partial(driver.Session, binding)
    with open_session() as session:
        node = session.read_node()
    wanted = _resolve(node, params)
    verdict, differences = compare.verdict(node, wanted)
    if verdict == "unknown":
        reasons = " ".join(_in_words(node, differences))
        raise MigError(f"Cannot tell whether the node is as wanted, and nothing was changed: {reasons}")
    origin = _keep_binding(module, binding)
    result: Result = {
        "changed": False,
        "altered": False,
        "verdict": verdict,
        "label": wanted.label,
        "label_source": wanted.source,
        "before": _layouts(node),
        "after": _layouts(node),
        "unlisted": list(wanted.unlisted),
        "without_mig": list(wanted.skipped),
        "reset_required": [],
        "reboot_required": [],
        "binding": origin,
    }
    if verdict == "match":
        return {**result, "msg": _summary("as wanted", node, wanted)}
    result["differences"] = _in_words(node, differences)
    return {**result, **_change(module, open_session, node, wanted)}


def _change(module: AnsibleModule, open_session: t.Any, node: Node, wanted: Wanted) -> Result:
    """Plan the way to what is wanted, and go it unless this is check mode."""
    from .engine import planner, transaction

    plan = planner.plan_node(node, wanted)
    planned = {"plan": report.plan_report(plan, node)}
    transaction.require_possible(node, plan)
    if module.check_mode:
        return {**planned, **_prediction(node, wanted, plan)}
    outcome = transaction.apply(open_session, node, plan, wanted)
    if outcome.error is not None:
        module.fail_json(**{**failure(outcome.error), **_rollback(outcome)})
    return {**planned, **_what_was_done(node, wanted, outcome)}


def _prediction(node: Node, wanted: Wanted, plan: Plan) -> Result:
    """What a real run would answer. A mode that is pending already ends it before any instance is touched."""
    waiting = [index for index, wish in wanted.wishes.items() if _waits(node.gpus[index], wish)]
    if waiting:
        reboot = [index for index in waiting if driver.mode_change_needs_reboot(node.gpus[index])]
        return _waiting(wanted, reset=[index for index in waiting if index not in reboot], reboot=reboot)
    after = _as_planned(node, plan)
    return {
        "changed": bool(plan.steps),
        "after": _layouts(after),
        "diff": report.diff_text(node, plan),
        "msg": _summary(f"would change {counted(sum(bool(p.steps) for p in plan.gpus), 'GPU')}", after, wanted),
    }


def _waits(gpu: Gpu, wish: GpuWish) -> bool:
    return gpu.mode_current != wish.enabled and gpu.mode_pending == wish.enabled


def _what_was_done(node: Node, wanted: Wanted, outcome: Outcome) -> Result:
    verdict, differences = compare.verdict(outcome.after, wanted)
    changed = {step.gpu for step in outcome.steps_done}
    result: Result = {
        "changed": outcome.changed,
        "altered": outcome.altered,
        "verdict": verdict,
        "differences": _in_words(outcome.after, differences),
        "after": _layouts(outcome.after),
        "diff": report.diff_text(node, outcome.after),
        "uuid_map": outcome.uuid_map or {},
        "msg": _summary(f"changed {counted(len(changed), 'GPU')}", outcome.after, wanted),
    }
    if outcome.reset_required or outcome.reboot_required:
        gone = [step.gpu for step in outcome.steps_done if step.kind == "destroy_gi"]
        result.update(_waiting(wanted, list(outcome.reset_required), list(outcome.reboot_required), gone))
    return result


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
    result: Result = {"changed": outcome.changed, "altered": outcome.altered, "rolled_back": bool(outcome.rolled_back)}
    if outcome.rolled_back:
        return {**result, "msg": f"{outcome.error} The layout from before is restored."}
    return {
        **result,
        "msg": f"{outcome.error} Not everything could be restored: {'; '.join(outcome.missing)}.",
        "missing": list(outcome.missing),
        "after": _layouts(outcome.after),
        "uuid_map": outcome.uuid_map or {},
    }


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


# --- the wish ------------------------------------------------------------------------------------------------------


def _resolve(node: Node, params: dict[str, t.Any]) -> Wanted:
    """The wish for this node in terms of its own GPUs. Raises WishError."""
    options = {name: params[name] for name in ("configs", "unlisted", "expected_gpus", "allow_empty", "mode_only")}
    options["gpus"] = "all" if params["gpus"] == ["all"] else params["gpus"]
    if params["label_by_gpu"]:
        from .engine import kinds

        return kinds.resolve(node, params["label_by_gpu"], label=params["label"], **options)
    return configs.resolve(node, label=params["label"], config=params["config"], **options)


# --- words and pictures --------------------------------------------------------------------------------------------


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
    return f"{wanted.label} ({wanted.source})" if wanted.label else "the config of this task"


def _indices(indices: t.Iterable[int]) -> str:
    return "GPU " + ", ".join(str(index) for index in indices)


# --- the NVML binding ----------------------------------------------------------------------------------------------


def _is_missing_binding(error: MigError) -> bool:
    return isinstance(error, DriverError) and error.error == "BINDING_MISSING"


def _binding_folder(params: dict[str, t.Any]) -> str:
    state_dir = params["state_dir"] or DEFAULT_STATE_DIR
    if not os.path.isabs(state_dir):
        raise WishError(
            f"state_dir is {state_dir!r}; it must be an absolute path on the node, such as {DEFAULT_STATE_DIR}"
        )
    return os.path.join(state_dir, "binding")


def _load_binding(params: dict[str, t.Any]) -> types.ModuleType:
    """Import pynvml: what came with this task, else what was installed, else what the node's Python has."""
    trusted = (params["_binding"],) if params["_binding"] else ()
    return driver.load_binding(_binding_folder(params), trusted=trusted)


def _keep_binding(module: AnsibleModule, binding: types.ModuleType) -> str:
    """Install the binding that came with this task, unless this is check mode; returns where it is now."""
    folder = _binding_folder(module.params)
    archive = module.params["_binding"]
    if not archive:
        return "installed" if str(binding.__file__).startswith(folder + os.sep) else "node"
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
