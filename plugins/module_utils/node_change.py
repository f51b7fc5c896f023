# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What mig_config and gpu_reset answer where there is something to do: foreseen in check mode, or done.

This file is private to the collection gpufleet.mig and may change at any time. It is the part of ansible_bridge.py that
a node does without where there is nothing to do.

All that the worker needs is imported here, before it is forked: it may live on when this process has ended and Ansible
has removed the files that it would import from.
"""

from __future__ import annotations

import functools
import json
import typing as t

from . import ansible_bridge as bridge
from .ansible_bridge import Result, Task

# kinds is not used here: the worker resolves the wish again, and must find loaded what that takes.
from .engine import (  # noqa: F401  # pylint: disable=unused-import
    compare,
    driver,
    foresight,
    holders,
    kinds,
    layouts,
    planner,
    reading,
    refusals,
    report,
    state,
    worker,
)
from .engine import reset as resets
from .engine.model import Job, MigError, Node, Plan, Wanted
from .engine.profiles import counted
from .engine.transaction import Outcome

if t.TYPE_CHECKING:
    from ansible.module_utils.basic import AnsibleModule


# --- check mode ----------------------------------------------------------------------------------------------------


def foresee(task: Task, unfinished: t.Optional[Result], untold: t.Optional[Result]) -> Result:
    """What a real run would answer: from the plan that it would make, and refused where it would refuse.

    ``untold`` is the result of an earlier run for this wish of which nobody has heard.
    """
    state.require_room(task.places)
    node = reading.observe(task.opener, task.orders, with_holders=True)
    if node.gone:
        task.module.warn(holders.gone_in_words(node))
    foreseen = foresight.foresee(task.places, node, task.job)
    recovered = {**(unfinished or {}), "direction": foreseen.recovered}
    result: Result = {"recovered": recovered} if foreseen.recovered else {}
    wanted = foreseen.wanted or Wanted("", "unfinished", {})
    if foreseen.plan is None:
        journal = state.read_journal(task.places)
        lost = foresight.lost_gpus(node, journal) if journal else []
        if lost:
            raise MigError(
                f"The unfinished change {_change_in_words(recovered)} could not be taken back: {'; '.join(lost)}. The"
                " other GPUs would be as before."
            )
        said = f"The unfinished change {_change_in_words(recovered)} would be taken back."
        return {**result, "changed": True, **_pictures(node, foreseen.origin), "msg": said}
    plan, node = foreseen.plan, foreseen.before
    base = node
    waiting = [index for index, wish in wanted.wishes.items() if compare.waits(node.gpus[index], wish.enabled)]
    reboot = [gpu.index for gpu in refusals.need_reboot(node, plan)]
    if set(waiting) & set(reboot) or (waiting and not task.orders.allow_reset):
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
        *([f"would end the unfinished change {_change_in_words(recovered)}"] if foreseen.recovered else []),
        *([f"would stop {', '.join(foreseen.stopping)}"] if foreseen.stopping else []),
        *([f"would reset {bridge.in_a_row(waiting)}"] if waiting else []),
        *([f"would change {counted(changing, 'GPU')}"] if changing else []),
        *([f"after a reboot of the node for {bridge.in_a_row(reboot)}"] if reboot else []),
    ]
    if not parts and untold is not None:
        parts.append(f"as wanted, and would tell what the change {_change_in_words(untold)} did")
    return {
        **result,
        "changed": True,
        "plan": report.plan_report(plan, base),
        "reboot_required": reboot,
        "clients": {"stopped": list(foreseen.stopping), "not_started": []},
        **_pictures(node, after),
        "msg": bridge.summary(
            ", ".join(parts or ["as wanted, and would be remembered for the next boot"]), after, wanted
        ),
    }


def _with_pending_modes(node: Node, waiting: t.Sequence[int]) -> Node:
    """The node after these GPUs were reset."""
    return node._replace(
        gpus=tuple(
            gpu._replace(mode_current=gpu.mode_pending, instances=()) if gpu.index in waiting else gpu
            for gpu in node.gpus
        )
    )


def would_wait(running: Result, wanted: Wanted) -> Result:
    """Nothing can be planned on a node that somebody else changes at this moment."""
    return {
        "changed": True,
        "in_progress": running,
        "msg": f"{bridge.title(wanted)}: the change {_change_in_words(running)} is running on this node. What is"
        " left to do then cannot be planned before it ends: run again afterwards.",
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


# --- a real run ----------------------------------------------------------------------------------------------------


def make(task: Task) -> Result:
    """Have the change made, and say what became of it."""
    outcome = worker.change(task.places, task.opener, task.job)
    for warning in (*outcome.warnings, *outcome.not_started):
        task.module.warn(warning)
    result = _what_happened(outcome)
    if outcome.error is not None:
        return {**bridge.failure(outcome.error), **result, **_rollback(outcome)}
    wanted = outcome.wanted or Wanted("", "unfinished", {})
    before = outcome.before or outcome.after
    verdict, differences = compare.verdict(outcome.after, wanted)
    result.update(
        verdict=verdict,
        differences=report.differences_in_words(outcome.after, differences),
        **bridge.about_wish(wanted),
        persisted=state.persisted_verdict(state.read_wanted(task.places), outcome.after, wanted.wishes or None),
        uuid_map=outcome.uuid_map or {},
        plan=report.plan_report(outcome.plan, before) if outcome.plan else [],
    )
    if outcome.resumed:
        return {**result, **_resumed(outcome.resumed, outcome.after, wanted)}
    result.update(
        _pictures(before, outcome.after), before=bridge.layouts_of(before), msg=_done_in_words(outcome, wanted)
    )
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
    if outcome.cdi:
        result["cdi"] = outcome.cdi
    if outcome.pending_left:
        result["pending_left"] = list(outcome.pending_left)
    return result


def _done_in_words(outcome: Outcome, wanted: Wanted) -> str:
    unfinished = _change_in_words(outcome.unfinished or {})
    if outcome.recovered == "back":
        said = f"The unfinished change {unfinished} was taken back."
        return f"{said} What this task wishes was not followed; run again for it." if wanted.wishes else said
    changed = {step.gpu for step in outcome.steps_done}
    parts = [f"ended the unfinished change {unfinished}"] if outcome.recovered else []
    if changed:
        parts.append(f"changed {counted(len(changed), 'GPU')}")
    if not parts:
        parts.append("as wanted, and remembered for the next boot now" if outcome.remembered else "as wanted")
    return bridge.summary(", ".join(parts), outcome.after, wanted)


def _resumed(untold: Result, node: Node, wanted: Wanted) -> Result:
    """What an earlier run did for this wish, told by the run that found the node as wanted."""
    dumps = {dump.get("uuid"): dump for dump in untold["before"]}
    before = node._replace(
        gpus=tuple(layouts.load(dumps[gpu.uuid], gpu) if gpu.uuid in dumps else gpu for gpu in node.gpus)
    )
    said = f"as wanted since the change {_change_in_words(untold)}, whose result had reached nobody"
    return {
        "changed": True,
        "resumed": {key: untold.get(key) for key in ("txid", "label", "finished")},
        **_pictures(before, node),
        "before": bridge.layouts_of(before),
        "uuid_map": untold.get("uuid_map", {}),
        "msg": bridge.summary(said, node, wanted),
    }


def _waiting(wanted: Wanted, reset: list[int], reboot: list[int], gone: t.Sequence[int] = ()) -> Result:
    """A mode that is stored but not current. ``gone`` has the GPU of each GI that had to go before that was known."""
    actions = []
    if reset:
        actions.append(f"reset {bridge.in_a_row(reset)}, which allow_reset has done here, or reboot the node")
    if reboot:
        actions.append(f"reboot the node for {bridge.in_a_row(reboot)}")
    touched = "no instance was touched"
    if gone:
        counts = ", ".join(f"{counted(gone.count(gpu), 'GPU instance')} of GPU {gpu}" for gpu in sorted(set(gone)))
        touched = (
            f"{counts} had to be destroyed for it, since MIG cannot be turned off beside them; no other was touched"
        )
    pending = bridge.in_a_row(sorted(reset + reboot))
    return {
        "reset_required": reset,
        "reboot_required": reboot,
        "msg": f"{bridge.title(wanted)}: the MIG mode is pending on {pending}, and {touched};"
        f" {', '.join(actions)}, then run again.",
    }


def _rollback(outcome: Outcome) -> Result:
    """What a failure leaves behind; these win over what the error itself says.

    The layouts are only there where they tell something new: a failed task's result is shown as a whole.
    """
    if outcome.rolled_back is None:
        return {}  # the layout is as it should be, and the failure is about something else
    result: Result = {"rolled_back": outcome.rolled_back}
    if outcome.rolled_back:
        return {**result, "msg": f"{outcome.error} The layout from before is restored."}
    result.update(
        msg=f"{outcome.error} Not everything could be restored: {'; '.join(outcome.missing)}.",
        missing=list(outcome.missing),
        after=bridge.layouts_of(outcome.after),
        uuid_map=outcome.uuid_map or {},
    )
    if outcome.recovery:
        with open(outcome.recovery, encoding="utf-8") as file:
            result["recovery"] = {"path": outcome.recovery, "layout": json.load(file)["gpus"]}
        result["msg"] += f" The layout from before is in {outcome.recovery}, and in this result as recovery.layout."
    return result


# --- words and pictures --------------------------------------------------------------------------------------------


def _pictures(before: Node, after: Node) -> Result:
    return {"after": bridge.layouts_of(after), "diff": report.diff_text(before, after)}


def _change_in_words(change: Result) -> str:
    """``20260101T000000Z-0a1b2c3d (mig_config label all-1g.5gb) of alice``."""
    if "unreadable" in change:
        return str(change["unreadable"])
    what = f" ({state.printable(change['what'])})" if change.get("what") else ""
    who = f" of {state.printable(change['who'])}" if change.get("who") else ""
    return f"{change.get('txid', '')}{what}{who}"


# --- gpu_reset -----------------------------------------------------------------------------------------------------


def reset(module: AnsibleModule) -> Result:
    """Reset the GPUs whose MIG mode is pending, or all that are named, and give them back the layout from before."""
    params = module.params
    places = state.places(params["state_dir"])
    may = bridge.orders(params)._replace(allow_reset=True)
    binding = bridge.load_binding(params)
    node = reading.observe(functools.partial(driver.Session, binding), may)
    targets = resets.choose(node, params["gpus"], params["force"])
    task = Task(module, places, may, binding, resets.AsBefore(targets, params["force"]))
    indices = tuple(gpu.index for gpu in targets)
    what = f"gpu_reset {bridge.in_a_row(indices)}" if targets else "gpu_reset"
    job = Job(task.resolve, may, indices if params["force"] else (), what)
    unfinished = state.in_progress(places)
    result: Result = {
        "changed": False,
        "altered": False,
        "reset": [],
        "before": bridge.layouts_of(node),
        "after": bridge.layouts_of(node),
        "binding": bridge.keep_binding(task),
    }
    if not targets and unfinished is None:
        return {**result, "msg": "No MIG mode is pending, so nothing was reset."}
    if not module.check_mode:
        change = _reset(task, job)
        return change if change.get("failed") else {**result, **change}
    if unfinished is not None and unfinished.get("running"):
        return {**result, **would_wait(unfinished, Wanted("", "layout", {}))}
    return {**result, **_foreseen_reset(task, job, indices)}


def _foreseen_reset(task: Task, job: Job, indices: t.Sequence[int]) -> Result:
    """What a real run would answer, refused where it would refuse."""
    node = reading.observe(task.opener, task.orders, with_holders=True)
    plan = foresight.foresee(task.places, node, job).plan
    after = _as_planned(node, plan) if plan else node
    after = after._replace(gpus=tuple(resets.foreseen(gpu) if gpu.index in indices else gpu for gpu in after.gpus))
    said = f"would reset {bridge.in_a_row(indices)}" if indices else "would end the unfinished change"
    return {"changed": True, "reset": list(indices), **_pictures(node, after), "msg": f"This {said}."}


def _reset(task: Task, job: Job) -> Result:
    """Have the reset made, and say what became of it."""
    outcome = worker.change(task.places, task.opener, job)
    for warning in (*outcome.warnings, *outcome.not_started):
        task.module.warn(warning)
    done = sorted({step.gpu for step in outcome.steps_done if step.kind == "reset"})
    result = {**_what_happened(outcome), "changed": outcome.changed, "reset": done}
    if outcome.error is not None:
        return {**bridge.failure(outcome.error), **result, **_rollback(outcome)}
    before = outcome.before or outcome.after
    if done:
        said = f"{bridge.in_a_row(done)} {'was' if len(done) == 1 else 'were'} reset: " + "; ".join(
            f"{bridge.in_a_row([index])} has MIG {'on' if outcome.after.gpus[index].mode_current else 'off'} and"
            f" {counted(len(outcome.after.gpus[index].instances), 'GPU instance')}"
            for index in done
        )
    elif outcome.recovered:
        said = f"No MIG mode is pending; ended the unfinished change {_change_in_words(outcome.unfinished or {})}"
    else:
        said = "No MIG mode is pending any more, so nothing was reset"
    pictures = {"before": bridge.layouts_of(before), **_pictures(before, outcome.after)}
    return {**result, **pictures, "uuid_map": outcome.uuid_map or {}, "msg": f"{said}."}
