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
import re
import shutil
import tempfile
import types
import typing as t

from .engine import compare, configs, drawing, driver, report
from .engine.model import DriverError, Gpu, GpuWish, MigError, Node, Plan, Wanted, WishError

if t.TYPE_CHECKING:
    from ansible.module_utils.basic import AnsibleModule

    from .engine.transaction import Outcome

Result = dict[str, t.Any]

DEFAULT_STATE_DIR = "/var/lib/gpufleet-mig"

_NVIDIA = 0x10DE
_DEVICE_ID = re.compile(r"0x(?:[0-9a-f]{4}|[0-9a-f]{4}10de)", re.IGNORECASE)

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
        return {**_required(node, waiting), "msg": _waiting_summary(node, wanted, waiting)}
    after = _as_planned(node, plan)
    return {
        "changed": bool(plan.steps),
        "after": _layouts(after),
        "diff": report.diff_text(node, plan),
        "msg": _summary(f"would change {_count(sum(bool(p.steps) for p in plan.gpus), 'GPU')}", after, wanted),
    }


def _waits(gpu: Gpu, wish: GpuWish) -> bool:
    return gpu.mode_current != wish.enabled and gpu.mode_pending == wish.enabled


def _what_was_done(node: Node, wanted: Wanted, outcome: Outcome) -> Result:
    waiting = sorted(outcome.reset_required + outcome.reboot_required)
    result: Result = {
        "changed": outcome.changed,
        "altered": outcome.altered,
        "verdict": "differ" if waiting else "match",
        "after": _layouts(outcome.after),
        "diff": report.diff_text(node, outcome.after),
        "reset_required": list(outcome.reset_required),
        "reboot_required": list(outcome.reboot_required),
        "uuid_map": outcome.uuid_map or {},
    }
    if waiting:
        return {**result, "msg": _waiting_summary(node, wanted, waiting)}
    changed = {step.gpu for step in outcome.steps_done}
    return {
        **result,
        "differences": [],
        "msg": _summary(f"changed {_count(len(changed), 'GPU')}", outcome.after, wanted),
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


def _required(node: Node, waiting: list[int]) -> Result:
    by_reboot = [index for index in waiting if driver.mode_change_needs_reboot(node.gpus[index])]
    return {
        "reset_required": [index for index in waiting if index not in by_reboot],
        "reboot_required": by_reboot,
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
    resolve = functools.partial(
        configs.resolve,
        node,
        configs=params["configs"],
        unlisted=params["unlisted"],
        expected_gpus=params["expected_gpus"],
        allow_empty=params["allow_empty"],
        mode_only=params["mode_only"],
    )
    gpus = "all" if params["gpus"] == ["all"] else params["gpus"]
    if params["label_by_gpu"]:
        return _resolve_by_gpu(node, resolve, gpus, params)
    return resolve(label=params["label"], config=params["config"], gpus=gpus)


def _resolve_by_gpu(node: Node, resolve: t.Callable[..., Wanted], gpus: t.Any, params: dict[str, t.Any]) -> Wanted:
    """One wish for GPUs of several kinds: each label is resolved for its own GPUs, and the answers are put together."""
    selected, by_name = configs._select(node, gpus)
    groups: dict[str, list[Gpu]] = {}
    unlisted: list[Gpu] = []
    skipped: list[Gpu] = []
    for gpu in selected:
        label = _label_for(gpu, params["label_by_gpu"])
        if label is None and gpu.mig_capable is False and not by_name:
            skipped.append(gpu)
        elif label is None and params["label"] is None:
            unlisted.append(gpu)
        else:
            groups.setdefault(label or params["label"], []).append(gpu)
    if unlisted and params["unlisted"] == "fail":
        raise WishError(f"label_by_gpu names no label for {_kinds(unlisted)}, and unlisted is fail")
    if unlisted and params["unlisted"] == "disable":
        groups.setdefault("all-disabled", []).extend(unlisted)
    if not groups:
        raise WishError(f"label_by_gpu names none of the GPUs of this node, which are {_kinds(node.gpus)}")
    parts = [resolve(label=label, gpus=[gpu.index for gpu in gpus]) for label, gpus in groups.items()]
    return Wanted(
        label=" + ".join(dict.fromkeys(part.label for part in parts)),
        source=" + ".join(dict.fromkeys(part.source for part in parts)),
        wishes={index: wish for part in parts for index, wish in part.wishes.items()},
        unlisted=tuple(sorted([*(gpu.index for gpu in unlisted), *(i for part in parts for i in part.unlisted)])),
        skipped=tuple(sorted([*(gpu.index for gpu in skipped), *(i for part in parts for i in part.skipped)])),
    )


def _label_for(gpu: Gpu, label_by_gpu: dict[str, t.Any]) -> t.Optional[str]:
    """The label that a mapping by kind of GPU has for this GPU. Raises WishError where two keys disagree."""
    found = {str(key): label for key, label in label_by_gpu.items() if _is_kind(gpu, str(key))}
    if len(set(map(str, found.values()))) > 1:
        said = " and ".join(f"{key!r} says {label!r}" for key, label in found.items())
        raise WishError(
            f"label_by_gpu disagrees about GPU {gpu.index} ({gpu.name}): {said}; keep one of them",
            gpu=gpu.index,
            pci_bus_id=gpu.pci_bus_id,
            uuid=gpu.uuid,
        )
    return next(iter(found.values()), None)


def _is_kind(gpu: Gpu, key: str) -> bool:
    """Whether a key names this kind of GPU: PCI device id, with or without its vendor, or product name."""
    if key.lower().startswith("0x"):
        if not _DEVICE_ID.fullmatch(key):
            raise WishError(f"label_by_gpu has the key {key!r}; a PCI device id looks like 0x20B010DE or 0x20B0")
        number = int(key, 16)
        return gpu.pci_device_id == (number if len(key) > len("0x20B0") else number << 16 | _NVIDIA)
    return _plain_name(gpu.name) == _plain_name(key)


def _plain_name(name: str) -> str:
    return name.casefold().strip().removeprefix("nvidia ")


def _kinds(gpus: t.Iterable[Gpu]) -> str:
    return ", ".join(f"GPU {gpu.index} ({gpu.name}, 0x{gpu.pci_device_id:08X})" for gpu in gpus) or "none at all"


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
    parts = [f"{what}; {_count(len(gpus), 'GPU')} with {_count(devices, 'MIG device')}"]
    if wanted.unlisted:
        parts.append(f"left alone: {_indices(wanted.unlisted)}")
    if wanted.skipped:
        parts.append(f"without MIG: {_indices(wanted.skipped)}")
    return f"{wanted.label} ({wanted.source}): {'; '.join(parts)}."


def _waiting_summary(node: Node, wanted: Wanted, waiting: list[int]) -> str:
    required = _required(node, waiting)
    actions = []
    if required["reset_required"]:
        actions.append(f"reset {_indices(required['reset_required'])} or reboot the node")
    if required["reboot_required"]:
        actions.append(f"reboot the node for {_indices(required['reboot_required'])}")
    return (
        f"{wanted.label} ({wanted.source}): the MIG mode is pending on {_indices(waiting)}, and no instance was"
        f" touched; {', '.join(actions)}, then run again."
    )


def _indices(indices: t.Iterable[int]) -> str:
    return "GPU " + ", ".join(str(index) for index in indices)


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


# --- the NVML binding ----------------------------------------------------------------------------------------------


def _is_missing_binding(error: MigError) -> bool:
    return isinstance(error, DriverError) and error.error == "BINDING_MISSING"


def _binding_folder(params: dict[str, t.Any]) -> str:
    return os.path.join(params["state_dir"] or DEFAULT_STATE_DIR, "binding")


def _load_binding(params: dict[str, t.Any]) -> types.ModuleType:
    """Import pynvml: what came with this task, else what was installed, else what the node's Python has."""
    places = (params["_binding"], _binding_folder(params))
    return driver.load_binding(*(place for place in places if place and os.path.exists(place)))


def _keep_binding(module: AnsibleModule, binding: types.ModuleType) -> str:
    """Install the binding that came with this task, unless this is check mode; returns where it is now."""
    folder = _binding_folder(module.params)
    archive = module.params["_binding"]
    if not archive:
        return "installed" if str(binding.__file__).startswith(folder + os.sep) else "node"
    if module.check_mode:
        return "payload"
    try:
        _install(archive, folder)
    except OSError as error:
        module.warn(f"The NVML binding could not be kept in {folder} ({error}); it will be brought again by each task.")
        return "payload"
    return "installed"


def _install(archive: str, folder: str) -> None:
    """Unpack and byte-compile the binding; another task that looks meanwhile finds none of it or all of it."""
    os.makedirs(os.path.dirname(folder), mode=0o700, exist_ok=True)
    os.makedirs(folder, mode=0o755, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".new-", dir=folder) as workshop:
        shutil.unpack_archive(archive, workshop, "zip")
        target = os.path.join(folder, "pynvml.py")
        os.replace(os.path.join(workshop, "pynvml.py"), target)
    py_compile.compile(target)
