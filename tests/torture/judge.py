# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Decides what must be true after each run of a case, from what the simulator, the files and the message show.

It shares nothing with the product: what is wanted comes from the generator, what is possible is searched for in
hardware.py, and what happened is in the record of the stage. A *violation* is a sentence; none means that all is well.
"""

from __future__ import annotations

import collections
import functools
import itertools
import re
import typing as t

from ansible_collections.gpufleet.mig.tests.torture.cases import Case, branch_of, from_data, hardware_of
from ansible_collections.gpufleet.mig.tests.torture.hardware import Hardware, Instance, Kind, compute_fits, fits

Record = dict[str, t.Any]
Gpu = dict[str, t.Any]
Target = dict[str, t.Any]

LASTING = ("errors from", "lost", "hang", "foreign", "arrive")
CREATES = ("nvmlDeviceCreateGpuInstance", "nvmlGpuInstanceCreateComputeInstance")
DESTROYS = ("nvmlGpuInstanceDestroy", "nvmlComputeInstanceDestroy")


class Open(t.NamedTuple):
    """A change that has begun and not ended: what there was before it, and what it was for, by GPU.

    ``stopped`` are the units that were stopped for it and ran before, ``ran`` all that it may have meant to stop.
    """

    origin: list[Gpu]
    stopped: frozenset[str]
    ran: frozenset[str]
    targets: dict[int, Target]
    boot: int


class Verdict(t.NamedTuple):
    """``outcome`` is what became of the run, in a word or two."""

    outcome: str
    violations: tuple[str, ...]


def judge(case: Case, records: t.Sequence[Record]) -> list[Verdict]:
    """One verdict for each run."""
    verdicts: list[Verdict] = []
    former: t.Optional[Trial] = None
    for record in records:
        trial = Trial(case, record, former.still_open() if former else None)
        violations = [*trial.violations(), *(trial.after_former(former) if former else ())]
        verdicts.append(Verdict(trial.outcome(), tuple(violations)))
        former = trial
    return verdicts


class Trial:
    """The judgement of one run."""

    def __init__(self, case: Case, record: Record, unfinished: t.Optional[Open]) -> None:
        self.case = case
        self.record = record
        self.unfinished = unfinished
        self.hw = hardware_of(case)
        self.result: Record = record["result"] or {"how": "none", "message": ""}
        self.before: list[Gpu] = record["before"]
        self.after: list[Gpu] = record["after"]
        self.wish: dict[int, Target] = targets_of(record["wish"])
        self.refusal = "" if record["wish"] is None else record["wish"]["refusal"]
        self.back = unfinished is not None and record["orders"]["recover"] == "back"
        # What is remembered for the next boot is done: nothing goes back behind it.
        self.origin = unfinished.origin if unfinished and not self.was_proven() else self.before
        # What this run has to bring about: its own wish, and the unfinished change's where that says nothing.
        self.targets = {**(unfinished.targets if unfinished else {}), **self.wish}
        self.rebooted = unfinished is not None and unfinished.boot != record["boot"]
        if self.rebooted and not self.was_proven():
            self.origin = [started_anew(gpu) for gpu in self.origin]
        self.writes = [call for call in record["calls"] if call["write"]]
        self.journal = "journal.json" in record["files"]
        self.fired = [record["disturb"][index] for index in record["fired"]]
        self.fired += [each for each in record["disturb"] if fault_seen(each, record)]
        self.disturbed = bool(self.fired)
        self.alone = not record["changed_by_others"] and record["rival"] is None

    # --- what became of it -----------------------------------------------------------------------------------------

    def outcome(self) -> str:
        result = self.result
        if result["how"] != "outcome":
            return "killed" if result["how"] == "none" else str(result["how"])
        if result["message"]:
            outcomes = {True: "rolled back", False: "not restored", None: "client missing"}
            return outcomes[result["rolled_back"]]
        if result["recovered"]:
            return f"healed {result['recovered']}"
        if result["reset_required"] or result["reboot_required"]:
            return "pending"
        if result["resumed"]:
            return "resumed"
        return "changed" if self.writes else "remembered"

    def still_open(self) -> t.Optional[Open]:
        if not self.journal:
            return None
        if self.unfinished and not self.record["journals"]:
            return self.unfinished  # what it was about, not whatever this run wanted
        stops = {unit for _time, word, unit in self.record["units_log"] if word == "stop"}
        stopped = frozenset(unit for unit in stops if self.record["units_before"][unit])
        meant = self.record["orders"]["evict"] == "clients"
        ran = frozenset(unit for unit, active in self.record["units_before"].items() if active and meant)
        boot = self.record["boot"]
        if self.unfinished and not self.was_proven():
            boot = self.unfinished.boot  # some of what there was before may be lost since then
        if self.unfinished:
            stopped, ran = stopped | self.unfinished.stopped, ran | self.unfinished.ran
        return Open(self.origin, stopped, ran, self.targets, boot)

    def violations(self) -> t.Iterator[str]:
        record, result = self.record, self.result
        if "stuck" in record["ended"]:
            yield f"processes {record['ended']['stuck']} of the product did not end"
        if result["how"] == "crashed":
            yield f"an error that is not meant for people: {result['message']}"
            return
        yield from record["wrong"]
        if record["locked"]:
            yield "the node is still locked"
        if self.journal and (record["in_progress"] or {}).get("running") is not False:
            yield f"an unfinished change is not reported as one: {record['in_progress']}"
        yield from self.about_writes()
        yield from self.about_users()
        yield from self.about_reboots()
        if record["rival"] is not None:
            yield from self.about_rivals()
        else:
            yield from self.about_result()
        if not self.journal:
            yield from self.about_units()

    def after_former(self, former: Trial) -> t.Iterator[str]:
        """What follows from the run before: nothing to do any more, or a result that nobody has heard of."""
        outcome = self.outcome()
        quiet = ("changed", "remembered", "resumed", "converged", "healed forward")
        was_done = former.outcome() in quiet and former.record["rival"] is None and not former.back
        if self.record["title"] == "again" and was_done and outcome != "converged":
            yield f"the same once more after {former.outcome()} comes to {outcome}: {self.result['message']}"
        same = former.record["wish"] == self.record["wish"] and not self.unfinished and not former.record["then"]
        undelivered = "result.json" in self.record["files_before"]
        if former.outcome() == "killed" and same and undelivered and outcome not in ("resumed", "refused", "killed"):
            yield f"nobody heard the result of the run before, and this one comes to {outcome}"

    # --- what was written, whatever came of it ---------------------------------------------------------------------

    def about_writes(self) -> t.Iterator[str]:
        """Only what the plan names, and that names only GPUs of the wish that are not as wanted."""
        if not self.writes:
            return
        planned: set[tuple[int, t.Any]] = set()
        journals = self.record["journals"] + [self.record["files_before"].get("journal.json")]
        for journal in journals:
            for step in (journal or {}).get("steps", ()):
                place = step.get("placement")
                planned.add((step["gpu"], (place["start"], place["size"]) if place else "mode"))
            if journal and self.rebooted:
                for dump in journal["before"]:
                    planned.add((dump["index"], "mode"))
                    planned.update((dump["index"], tuple(i["placement"].values())) for i in dump["instances"])
        for gpu in self.targets:
            # What others destroyed meanwhile, or a reset took, is rebuilt where the change is taken back.
            if not self.alone or any("reset" in call["function"] and call["gpu"] == gpu for call in self.writes):
                planned |= {(gpu, "mode"), *((gpu, place[1:]) for place in self.origin[gpu]["layout"])}
        rivals = set(targets_of(self.record["rival"]["run"]["wish"])) if self.record["rival"] else set()
        allowed = set(self.targets) | rivals | (set(range(len(self.before))) if self.rebooted else set())
        places = self.places_by_id()
        for call in self.writes:
            gpu, name = call["gpu"], call["function"]
            if gpu not in allowed:
                yield f"{name} on GPU {gpu}, of which nothing is wanted"
            elif gpu in self.wish and not self.unfinished and not rivals and self.is_as_wanted(gpu, self.before):
                yield f"{name} on GPU {gpu}, which was as wanted"
            for place in self.named(call, places):
                if (gpu, place) not in planned:
                    yield f"{name} on GPU {gpu} names {place}, which no plan names"

    def places_by_id(self) -> dict[tuple[int, int], tuple[int, int]]:
        """Places by GPU and GI id, which says where on the chip it is and is the same whenever it is made again."""
        found = {}
        for snapshot in (self.before, self.after, self.origin):
            for index, gpu in enumerate(snapshot):
                found.update({(index, gi): (start, size) for gi, (_kind, start, size) in gpu["ids"].items()})
        for call in self.record["calls"]:
            if call["function"].startswith(CREATES[0]) and call["gi"] is not None and call["detail"]:
                found[call["gpu"], call["gi"]] = place_in(call)
        return found

    def named(self, call: Record, places: t.Mapping[t.Any, t.Any]) -> t.Iterator[t.Any]:
        if call["function"] == "nvmlDeviceSetMigMode":
            yield "mode"
        elif call["function"].startswith(CREATES[0]):
            if call["detail"]:  # a call that failed before it began says nothing about its place
                yield place_in(call)
        elif call["gi"] is not None and (call["gpu"], call["gi"]) in places:
            yield places[call["gpu"], call["gi"]]

    def about_users(self) -> t.Iterator[str]:
        """Nobody loses what they have, and no promise is broken that was not to be."""
        evict = self.record["orders"]["evict"]
        rival = self.record["rival"]
        may_take = evict != "none" or (rival is not None and rival["run"]["orders"]["evict"] != "none")
        tried = {(c["gpu"], c["gi"], c["ci"]) for c in self.writes if c["function"] == DESTROYS[1]}
        for holder in self.record["holders"]:
            place = (holder["gpu"], holder["gi"], holder["ci"])
            if holder["seen"] and holder["ci"] is not None and place in tried:
                yield f"tried to destroy what process {holder['pid']} is known to use: {place}"
            if not there(self.after, *place) and there(self.before, *place):
                yield f"process {holder['pid']} has lost {place}"
        named = {
            (s["gpu"], tuple((s["placement"] or {}).values())) for j in self.record["journals"] for s in j["steps"]
        }
        for gpu, *place in self.record["created_by_others"]:
            # At a place that the plan names too nobody can tell whose it is.
            if tuple(place) not in self.after[gpu]["layout"] and (gpu, tuple(place[1:])) not in named:
                yield f"what another manager made on GPU {gpu} is gone: {place}"
        for promise in self.record["promises"]:
            place = (promise["gpu"], promise["gi"], promise["ci"])
            if place in tried and not may_take:
                yield f"destroyed {place}, which is promised to {promise['holder']}"

    def about_reboots(self) -> t.Iterator[str]:
        """One reboot for one wish, never without permission, and a record of it as long as it is waited for."""
        kept, found = self.record["files"].get("reboot.json"), self.record["files_before"].get("reboot.json")
        asked_for = self.result.get("reboot_required") or []
        if kept and not self.may_reboot() and kept != found:
            yield "a reboot is recorded that nobody allowed"
        for gpu, (was, now) in enumerate(zip(self.before, self.after)):
            stored = now["modes"][1] not in (now["modes"][0], was["modes"][1])
            if stored and self.alone and self.waits_for_reboot(gpu) and not self.may_reboot():
                yield f"the mode of GPU {gpu} is stored for a reboot that nobody allowed: {now['modes']}"
        if asked_for and self.may_reboot():
            if not kept or not kept["wish"]:
                yield f"asks for a reboot for GPU {asked_for}, and there is no record of it"
            elif found and found["wish"] == kept["wish"] and found["boot_id"] != f"boot-{self.record['boot']}":
                yield f"asks for a second reboot for one wish: {found}"
        if succeeded(self.result) and kept and self.record["rival"] is None and not self.disturbed:
            waited = {gpu["pci"].upper() for index, gpu in enumerate(self.after) if index in self.targets}
            if set(kept["pci"]) <= waited:
                yield f"as wanted, and yet it is waited for a reboot: {kept}"

    def may_reboot(self) -> bool:
        orders = [self.record["orders"], *([self.record["rival"]["run"]["orders"]] if self.record["rival"] else [])]
        return any(each.get("allow_reboot") for each in orders)

    def waits_for_reboot(self, gpu: int) -> bool:
        """Whether only a reboot gives this GPU another mode."""
        return self.case["virtualization"] == "passthrough" and self.hw[gpu].ampere

    def was_rebooted(self) -> bool:
        """Whether there was a reboot since somebody began to wait for one."""
        found = self.record["files_before"].get("reboot.json")
        return bool(found) and found["boot_id"] != f"boot-{self.record['boot']}"

    # --- what it must have come to ---------------------------------------------------------------------------------

    def about_result(self) -> t.Iterator[str]:
        how = self.result["how"]
        if how == "converged":
            yield from self.about_converged()
        elif how == "refused":
            yield from self.about_refused()
        elif how == "none":
            yield from self.about_killed()
        elif self.result["message"]:
            yield from self.about_failed()
        else:
            yield from self.about_success()

    def about_converged(self) -> t.Iterator[str]:
        record = self.record
        if self.unfinished:
            yield "said to be as wanted, and there is an unfinished change"
        yield from self.must_be_wanted(self.wish)
        if self.writes or record["units_log"]:
            yield "as wanted, and yet it wrote or stopped something"
        if len({call["pid"] for call in record["calls"]}) > 1:
            yield "as wanted, and yet there was a worker"
        if self.result["file_operations"] or record["files"] != record["files_before"]:
            yield "as wanted, and yet it wrote to its files"
        if record["lock"] != record["lock_before"]:
            yield "as wanted, and yet it took the lock"

    def about_refused(self) -> t.Iterator[str]:
        if any(call["code"] == "SUCCESS" for call in self.writes) or (self.writes and not self.killed("worker")):
            # Only a worker that was killed when it had all but ended leaves no outcome, and then that is said.
            if not self.killed("worker") or not self.result["altered"]:
                yield f"refused after {len(self.writes)} writes: {self.result['message']}"
            if self.journal:
                yield f"an unfinished change is left, and the message says: {self.result['message']}"
            else:
                yield from self.must_be_whole()
            return
        yield from self.must_be(self.before, range(len(self.before)), "a refusal touched")
        if self.journal and not self.unfinished:
            yield "refused, and left a journal"
        if self.unfinished and not self.journal:
            # Unless it was killed when it had found that there is nothing left to do.
            done = all(self.is_as_wanted(gpu, self.after) for gpu in self.targets)
            undone = self.back and all(self.same(gpu, self.origin) for gpu in self.targets)
            if not (done or undone) or not self.killed("worker"):
                yield "refused, and removed the journal of an unfinished change"
        if self.disturbed:
            yield from self.must_name_cause()
            return
        reasons = self.reasons()
        if not reasons:
            yield f"refused without reason: {self.result['message']}"
        elif not any(word in self.result["message"] for words in reasons.values() for word in words):
            words = sum(reasons.values(), [])
            yield f"refused for {', '.join(reasons)}, and named none of {words}: {self.result['message']}"

    def about_killed(self) -> t.Iterator[str]:
        """Nobody heard the result. A worker that nobody killed has completed its work."""
        asked = any(
            each["what"] == "term" and "parent" in (each["who"], "parent" if each["on"] == "file" else "")
            for each in self.fired
        )
        if not self.killed("parent", "both", "worker") and not asked:
            yield f"the module ended with {self.record['ended'].get('main')} and said nothing"
        if not self.journal:
            yield from self.must_be_whole()
        elif not self.killed("both", "worker"):
            yield "the worker outlived its parent and left a journal"

    def about_success(self) -> t.Iterator[str]:
        result, record = self.result, self.record
        waits = bool(result["reset_required"] or result["reboot_required"]) and "journal.json" in record["files_before"]
        if self.journal and not self.could_not_remove_it() and not waits:
            yield "done, and the journal is still there"
        differs = any(not self.same(gpu, self.before) for gpu in range(len(self.before)))
        # A layout that the next boot will have, and would not have had before, is a change too.
        remembered = record["files"].get("wanted.json") != record["files_before"].get("wanted.json")
        changed = remembered or (differs if self.unfinished else bool(self.writes))
        if self.alone and not result["resumed"] and result["changed"] != changed:
            yield f"says changed: {result['changed']} after {len(self.writes)} writes; the node differs: {differs}"
        others = [gpu for gpu in range(len(self.before)) if gpu not in self.targets]
        if not self.rebooted:
            yield from self.must_be(self.before, others, "nothing was wanted of")
        if self.back and self.unfinished:
            if self.was_proven() and result["recovered"] == "forward":
                yield from self.must_be_wanted(self.targets)
            else:
                yield from self.must_be(self.origin, self.unfinished.targets, "taken back, but")
            return
        waiting = [*result["reset_required"], *result["reboot_required"]]
        if waiting:
            yield from self.about_pending(waiting)
            return
        yield from self.must_be_wanted(self.targets)
        yield from self.about_promises()
        yield from self.must_be_remembered()
        # One of an earlier run stays where this one was killed, or out of space, when it was to put its own there.
        prevented = any(each["what"] in ("full", "kill") for each in self.fired)
        kept = record["files"].get("result.json")
        # One of an earlier run with another wish is not this one's to take.
        if kept and kept != record["files_before"].get("result.json") and self.wish and not prevented:
            yield "the result was delivered, and is kept all the same"

    def about_pending(self, waiting: t.Sequence[int]) -> t.Iterator[str]:
        for gpu, target in self.targets.items():
            modes, was = self.after[gpu]["modes"], self.before[gpu]["modes"]
            waits = modes[0] != target["on"] and modes[1] == target["on"]
            if waits != (gpu in waiting):
                how = "waits" if waits else "does not wait"
                yield f"GPU {gpu} {how} for its mode, {modes}: said to wait: {waiting}"
            emptied = not target["on"] and waits and not self.after[gpu]["layout"]
            switched = was[0] != modes[0]
            if not emptied and not switched and self.after[gpu]["layout"] != self.before[gpu]["layout"]:
                yield f"a mode is pending, and instances of GPU {gpu} were changed"
            waited = was[0] != target["on"] and was[1] == target["on"]
            misses = modes[0] != target["on"] and not waits and self.waits_for_reboot(gpu)
            if misses and self.may_reboot() and not self.result["reset_required"]:
                yield f"GPU {gpu} misses the reboot: {modes}"
            if waits and not waited and not self.may_wait(gpu):
                yield f"the mode of GPU {gpu} is pending without reason"
            if waited and any(c["gpu"] == gpu and c["function"] == "nvmlDeviceSetMigMode" for c in self.writes):
                yield f"the pending mode of GPU {gpu} was asked for once more"

    def about_failed(self) -> t.Iterator[str]:
        result = self.result
        if result["rolled_back"] is None and result["not_started"]:
            yield from self.about_success()  # only a client does not run again, of which about_units knows more
            return
        yield from self.must_name_cause()
        if not self.disturbed and self.alone and not self.reasons_to_fail():
            yield f"failed without reason: {result['message']}"
        others = [gpu for gpu in range(len(self.before)) if gpu not in self.targets]
        if not self.rebooted:
            yield from self.must_be(self.before, others, "nothing was wanted of")
        if any(call["code"] == "SUCCESS" for call in self.writes) and not result["altered"]:
            yield f"says that it altered nothing after {len(self.writes)} writes"
        if result["rolled_back"]:
            if result["changed"]:
                yield "rolled back, and says that something is changed"
            yield from self.must_be(self.origin, self.targets, "said to be as before, but")
            if result["missing"]:
                yield f"rolled back, and yet something is missing: {result['missing']}"
            if self.journal and not self.could_not_remove_it():
                yield "rolled back, and the journal is still there"
            if self.record["files"].get("wanted.json") != self.record["files_before"].get("wanted.json"):
                yield "rolled back, and yet another layout is remembered"
            return
        if self.alone and not self.is_excused():
            yield f"not rolled back without reason: {result['message']}; missing: {result['missing']}"
        yield from self.must_list_missing()
        if not result["recovery"] and not self.journal:
            yield "not rolled back, and there is neither a recovery layout nor a journal"
        if result["recovery"]:
            yield from self.must_be_recovery()

    def about_rivals(self) -> t.Iterator[str]:
        """Two at once end with one of the two layouts, whole, on every GPU; each was told the truth."""
        theirs = self.record["rival"]["result"] or {"how": "none", "message": ""}
        wishes = [self.wish, targets_of(self.record["rival"]["run"]["wish"])]
        for result in (self.result, theirs):
            if result["how"] in ("none", "crashed"):
                yield f"one of two ended without a result: {result['message']}"
        if self.journal:
            yield "two at once, and a journal is left"
        if "has this node since" in theirs["message"] and "ansible on controller-1" not in theirs["message"]:
            yield f"locked out, and not told by whom: {theirs['message']}"
        results = (self.result, theirs)
        if any(each.get("reset_required") or each.get("reboot_required") for each in results) or self.held_unseen():
            return  # where one mode waits others are switched; a hidden process can keep a layout from returning
        for gpu in range(len(self.before)):
            wanted = any(gpu in wish and self.is_as_wanted(gpu, self.after, wish[gpu]) for wish in wishes)
            told = any(self.before[gpu]["uuid"] in said for each in results for said in each.get("missing", ()))
            if not wanted and not told and not self.same(gpu, self.before):
                yield f"GPU {gpu} is neither as before nor as one of two wanted it: {self.after[gpu]['layout']}"
        done = [wish for wish, result in zip(wishes, results) if succeeded(result)]
        whole = [wish for wish in done if all(self.is_as_wanted(gpu, self.after, wish[gpu]) for gpu in wish)]
        if done and not whole:
            yield "both or one succeeded, and the node is as neither wanted it"

    # --- what must be ----------------------------------------------------------------------------------------------

    def same(self, gpu: int, snapshot: t.Sequence[Gpu]) -> bool:
        keys = ("modes", "layout")
        return all(self.after[gpu][key] == snapshot[gpu][key] for key in keys)

    def must_be(self, snapshot: t.Sequence[Gpu], gpus: t.Iterable[int], what: str) -> t.Iterator[str]:
        if not self.alone:
            return
        for gpu in gpus:
            if not self.same(gpu, snapshot):
                was, now = ({k: s[gpu][k] for k in ("modes", "layout")} for s in (snapshot, self.after))
                yield f"{what} GPU {gpu}: {now} instead of {was}"

    def must_be_wanted(self, targets: t.Mapping[int, Target]) -> t.Iterator[str]:
        found = self.unfinished.origin if self.unfinished else self.origin
        for gpu, target in targets.items():
            if self.is_as_wanted(gpu, self.after, target):
                continue
            if self.rebooted and gpu not in self.wish and self.is_as_wanted(gpu, found, target):
                continue  # The unfinished change had nothing to do there; what the reboot took is not its matter.
            yield f"GPU {gpu} is not as wanted: {self.after[gpu]['modes']} {self.after[gpu]['layout']}, wanted {target}"

    def must_be_whole(self) -> t.Iterator[str]:
        """One of the two layouts on all GPUs together."""
        if not self.alone:
            return
        wanted = all(self.is_as_wanted(gpu, self.after, target) for gpu, target in self.targets.items())
        origin = all(self.same(gpu, self.origin) for gpu in self.targets)
        told = any(
            name.startswith("recovery-") and name not in self.record["files_before"] for name in self.record["files"]
        )
        if not wanted and not origin and not self.pending_somewhere() and not (told and self.is_excused()):
            yield f"no journal, and the node is neither as wanted nor as before: {[g['layout'] for g in self.after]}"

    def pending_somewhere(self) -> bool:
        return any(self.after[gpu]["modes"][0] != self.after[gpu]["modes"][1] for gpu in self.targets)

    def is_as_wanted(self, gpu: int, snapshot: t.Sequence[Gpu], target: t.Optional[Target] = None) -> bool:
        target = self.targets[gpu] if target is None else target
        now = snapshot[gpu]
        if now["modes"] != (target["on"], target["on"]):
            return False
        if not target["on"]:
            return True
        return shapes(self.hw[gpu], now["layout"], target["exact"]) == wanted_shapes(self.hw[gpu], target)

    def must_be_remembered(self) -> t.Iterator[str]:
        """The next boot restores what is there now."""
        wanted = self.record["files"].get("wanted.json")
        if not isinstance(wanted, dict):
            if self.wish:
                yield "done, and nothing is remembered for the next boot"
            return
        by_uuid = {dump["uuid"]: dump for dump in wanted["gpus"]}
        for gpu in self.wish:
            dump = by_uuid.get(self.after[gpu]["uuid"])
            if dump is None or not is_same_layout(dump, self.after[gpu]):
                yield f"what is remembered of GPU {gpu} is not what it has: {dump}"

    def must_be_recovery(self) -> t.Iterator[str]:
        """The recovery layout is what there was before, on every GPU that is not as it was."""
        name = self.result["recovery"].rpartition("/")[2]
        saved = self.record["files"].get(name)
        if not isinstance(saved, dict):
            yield f"the recovery layout {name} is not there or damaged"
            return
        by_uuid = {dump["uuid"]: dump for dump in saved["gpus"]}
        for gpu in self.targets:
            dump = by_uuid.get(self.origin[gpu]["uuid"])
            if self.same(gpu, self.origin):
                continue
            if dump is None or not is_same_layout(dump, self.origin[gpu]):
                yield f"the recovery layout has not what GPU {gpu} had: {dump}"

    def must_list_missing(self) -> t.Iterator[str]:
        """What is missing is listed, and what is listed is missing."""
        for gpu in self.targets:
            said = [s for s in self.result["missing"] if self.origin[gpu]["uuid"] in s]
            if any(re.search(r"cannot tell|does not answer|not everything could be read", s) for s in said):
                if not any(each["what"] in LASTING or each["what"] in ("error", "kill") for each in self.fired):
                    yield f"says that GPU {gpu} cannot be read without reason: {said}"
                continue
            was, now = self.origin[gpu]["layout"], self.after[gpu]["layout"]
            gone = {in_words(place) for place in set(was) - set(now)}
            new = {in_words(place) for place in set(now) - set(was)}
            for word, things in (("gone", gone), ("new", new)):
                listed = {
                    match[1] for s in said if (match := re.search(rf": GPU instance (\S+ at \d+:\d+) is {word}$", s))
                }
                if listed != things:
                    yield f"GPU {gpu}: {word} are {sorted(things)}, listed are {sorted(listed)}: {said}"
            inside = sum(1 for place in set(was) & set(now) if was[place] != now[place])
            if inside and not any("compute instance" in s for s in said):
                yield f"GPU {gpu}: compute instances differ and none is listed: {said}"
            if self.origin[gpu]["modes"] != self.after[gpu]["modes"] and not any("MIG" in s for s in said):
                yield f"GPU {gpu}: its mode differs, {self.after[gpu]['modes']}, and is not listed: {said}"

    def must_name_cause(self) -> t.Iterator[str]:
        """The message says what went wrong, not only that something did."""
        message = self.result["message"]
        words: list[str] = []
        for each in self.fired:
            if each["what"] in ("error", "errors from"):
                words += [each["code"], "IN_USE", "NOT_FOUND"]
                # To say that it is not supported is also an answer, about the mode or a profile.
                nothing_there = each["code"] in ("NOT_SUPPORTED", "INVALID_ARGUMENT")
                words += (
                    [
                        "does not say whether",
                        "cannot do MIG",
                        "has no profile",
                        "does not offer",
                        "changed while",
                        "is unknown",
                    ]
                    if nothing_there
                    else []
                )
            elif each["what"] == "lost":
                words += ["GPU_IS_LOST"]
            elif each["what"] == "hang":
                words += ["does not answer"]
            elif each["what"] == "kill":
                words += ["killed", "could not be taken back"]
            elif each["what"] == "term":
                words += ["asked to stop"]
            elif each["what"] == "full":
                words += ["No space left on device"]
            else:
                return
        if words and self.reasons_to_fail():
            words += ["IN_USE", *self.reasons_to_fail()]
        named = (self.result["call"], self.result["error"])
        if named in [(call["function"], call["code"]) for call in self.writes if call["code"] != "SUCCESS"]:
            return  # a disturbance that did no harm, beside a write that was refused and is named
        if words and not any(word in message for word in (*words, *sum(self.reasons().values(), []))):
            yield f"{[each['what'] for each in self.fired]} went wrong, and the message says: {message}"

    def about_units(self) -> t.Iterator[str]:
        """Whatever ran before runs again, nothing else does, and what does not is named."""
        record = self.record
        stopped_earlier = self.unfinished.stopped if self.unfinished else frozenset()
        expected = {unit: active or unit in stopped_earlier for unit, active in record["units_before"].items()}
        stops = [unit for _time, word, unit in record["units_log"] if word == "stop"]
        orders = [record["orders"], *([record["rival"]["run"]["orders"]] if record["rival"] else [])]
        if stops and all(each["evict"] != "clients" for each in orders):
            yield f"stopped {stops} without being asked to"
        yield from self.about_order()
        results = [self.result, *([record["rival"]["result"] or {}] if record["rival"] else [])]
        said = " ".join(str([r.get(key) for key in ("message", "not_started", "warnings")]) for r in results)
        for unit, active in record["units"].items():
            if expected[unit] and not active and unit not in said and self.result["how"] != "none":
                yield f"{unit} ran before, does not now, and is not named"
            if expected[unit] and not active and not self.trouble(unit):
                yield f"{unit} was not started again"
            if active and not expected[unit] and not (self.unfinished and unit in self.unfinished.ran):
                yield f"{unit} did not run before, and runs now"

    def about_order(self) -> t.Iterator[str]:
        """Units start in the reverse of the order in which they stopped, and none runs while something is written."""
        log = self.record["units_log"]
        batches = [
            (word, [each[2] for each in group]) for word, group in itertools.groupby(log, key=lambda each: each[1])
        ]
        for (word, stopped), (_word, started) in zip(batches, batches[1:]):
            again = list(dict.fromkeys(unit for unit in started if unit in stopped))
            if (
                word == "stop"
                and self.record["rival"] is None
                and again != [u for u in reversed(stopped) if u in again]
            ):
                yield f"stopped {stopped}, and started again in the order {started}"
        running = {unit for unit, active in self.record["units_before"].items() if active}
        concerned = {unit for _time, word, unit in log if word == "stop"}
        moments = list(map(tuple, log))
        moments += [(call["started"], "write", "") for call in self.writes]
        for _when, word, unit in sorted(moments, key=lambda each: each[0]):
            if word == "stop" and self.trouble(unit) != "stop":
                running.discard(unit)
            elif word == "start" and not self.trouble(unit).startswith("start"):
                running.add(unit)  # one in trouble may or may not run, which is all right
            elif word == "write" and running & concerned and self.record["rival"] is None:
                yield f"wrote to the driver while {sorted(running & concerned)} ran, which are stopped for that"
                return

    def trouble(self, unit: str) -> str:
        return next(str(each["trouble"]) for each in self.case["units"] if each["name"] == unit)

    # --- why it may be refused or fail -----------------------------------------------------------------------------

    def killed(self, *who: str) -> bool:
        """Whether one of these was killed by this run's disturbances; who is at a state file is not always known."""
        return any(each["what"] == "kill" and (each["who"] in who or each.get("on") == "file") for each in self.fired)

    def reasons(self) -> dict[str, list[str]]:
        """Why this run may be refused: each reason with words of which the message must have one."""
        found: dict[str, list[str]] = {}
        if self.refusal:
            found["impossible"] = ["cannot hold", "at most", "holds", "fit"]
        if self.record["orders"]["evict"] == "clients":
            stubborn = [each["name"] for each in self.case["units"] if each["trouble"] == "stop"]
            if stubborn:
                found["a client that does not stop"] = stubborn
        if self.back:
            pids = [str(pid) for gpu in self.before for pid, _kind, _gi, _ci in gpu["holders"]]
            if self.turned_in_a_reboot(self.before):
                found["another reboot"] = ["only another one turns it"]
            return {**found, "used by somebody": pids} if pids else found
        for gpu, target in self.targets.items():
            if gpu < len(self.before) and not self.is_as_wanted(gpu, self.before, target):
                for reason, words in self.reasons_of(gpu, target).items():
                    found[reason] = found.get(reason, []) + words
        return found

    def reasons_of(self, gpu: int, target: Target) -> dict[str, list[str]]:
        current, pending = self.before[gpu]["modes"]
        users = self.users(gpu)
        busy = {place: pids for place, pids in users.items() if place is not None}
        if current != target["on"]:
            found = {}
            pids = [str(pid) for each in users.values() for pid in each]
            if pids:
                found["in use"] = pids
            if self.waits_for_reboot(gpu) and not self.may_reboot():
                found["a reboot is needed"] = ["allow_reboot"]
            elif self.waits_for_reboot(gpu):
                found |= self.what_a_reboot_ends()
                if self.was_rebooted():
                    found["a second reboot"] = ["was rebooted for this wish already"]
            if not target["on"] and self.promised(gpu) and self.record["orders"]["evict"] == "none":
                found["reserved"] = self.promised_to(gpu)
            if pending == target["on"]:
                found["a reset is needed"] = ["reset", *pids]
            return found
        if not target["on"]:
            return {}
        promised = self.promised(gpu)
        listed = [
            pid for pid, kind, gi, _ci in self.before[gpu]["holders"] if gi is None and kind in ("compute", "graphics")
        ]
        if listed:
            pids = [str(pid) for each in users.values() for pid in each]
            return {"in use": pids, "reserved": self.promised_to(gpu)}
        if busy and not self.can_keep(gpu, target, set(busy)):
            return {"in use": [str(pid) for pids in busy.values() for pid in pids], "reserved": self.promised_to(gpu)}
        if (
            promised
            and self.record["orders"]["evict"] == "none"
            and not self.can_keep(gpu, target, set(busy) | promised)
        ):
            return {"reserved": self.promised_to(gpu)}
        return {}

    def what_a_reboot_ends(self) -> dict[str, list[str]]:
        """Who is on the node, on whatever GPU, and to whom something of it is promised."""
        pids = [str(pid) for gpu in range(len(self.before)) for each in self.users(gpu).values() for pid in each]
        promised = [p["holder"] for p in self.record["promises"] if self.record["orders"]["evict"] == "none"]
        return {
            **({"ended by the reboot": pids} if pids else {}),
            **({"lost in the reboot": promised} if promised else {}),
        }

    def users(self, gpu: int) -> dict[t.Any, list[int]]:
        """Who is known to use what, by (GI, CI); None for the whole GPU. A unit that will be stopped is nobody."""
        found: dict[t.Any, list[int]] = collections.defaultdict(list)
        seen = {holder["pid"] for holder in self.record["holders"] if holder["seen"]}
        mine = {holder["pid"] for holder in self.record["holders"]}
        evict = self.record["orders"]["evict"] == "clients"
        for pid, _kind, gi, ci in self.before[gpu]["holders"]:
            is_unit = pid not in mine
            if (pid in seen or is_unit) and not (is_unit and evict and self.unit_goes()):
                found[None if gi is None else (gi, ci)].append(pid)
        return found

    def unit_goes(self) -> bool:
        """Whether all units may be stopped for any kind of change; else one may stay, and that is a reason."""
        return all(len(each["kinds"]) == 3 for each in self.case["units"])

    def promised(self, gpu: int) -> set[tuple[int, int]]:
        return {
            (p["gi"], p["ci"])
            for p in self.record["promises"]
            if p["gpu"] == gpu and there(self.before, gpu, p["gi"], p["ci"])
        }

    def promised_to(self, gpu: int) -> list[str]:
        return [p["holder"] for p in self.record["promises"] if p["gpu"] == gpu]

    def can_keep(self, gpu: int, target: Target, places: t.Collection[tuple[int, t.Optional[int]]]) -> bool:
        """Whether these compute instances, by (GI, CI), can all stay where they are."""
        ids, inner = self.before[gpu]["ids"], self.before[gpu]["compute_ids"]
        kept: dict[tuple[str, int, int], list[tuple[int, int, int]]] = {}
        for gi, ci in places:
            if gi in ids:
                here = kept.setdefault(ids[gi], [])
                here += [inner[gi, ci]] if ci is not None else [inner[key] for key in inner if key[0] == gi]
        return keeps(self.hw[gpu], target, tuple((place, tuple(sorted(set(c)))) for place, c in sorted(kept.items())))

    def is_excused(self) -> bool:
        """Whether this was too much: a driver that goes on failing, a second accident, or what nobody can undo."""
        hidden = any(not holder["seen"] for holder in self.record["holders"])
        broken = any(each["trouble"] for each in self.case["units"]) and self.record["orders"]["evict"] == "clients"
        lasting = any(each["what"] in LASTING for each in self.fired) or len(self.fired) + hidden + broken > 1
        for_good = self.only_pending_kept() or self.turned_in_a_reboot(self.after)
        return lasting or self.only_pending_lost() or self.held_unseen() or for_good

    def turned_in_a_reboot(self, snapshot: t.Sequence[Gpu]) -> bool:
        """Whether a reboot in the middle gave a GPU a mode that only another reboot takes away."""
        return self.rebooted and any(
            self.waits_for_reboot(gpu) and snapshot[gpu]["modes"][0] != self.origin[gpu]["modes"][0]
            for gpu in range(len(snapshot))
        )

    def only_pending_kept(self) -> bool:
        """Whether nothing is left but a mode that is stored for the next boot, which nobody can take back."""
        differing = [gpu for gpu in range(len(self.before)) if not self.same(gpu, self.origin)]
        return bool(differing) and all(
            self.waits_for_reboot(gpu)
            and self.origin[gpu]["modes"][0] == self.after[gpu]["modes"][0]
            and self.origin[gpu]["layout"] == self.after[gpu]["layout"]
            for gpu in differing
        )

    def only_pending_lost(self) -> bool:
        """Whether nothing but a pending mode is lost: on an idle GPU nobody can make it pending again, only current."""
        differing = [gpu for gpu in range(len(self.before)) if not self.same(gpu, self.origin)]
        return bool(differing) and all(
            self.origin[gpu]["modes"][0] != self.origin[gpu]["modes"][1]
            and self.origin[gpu]["modes"][0] == self.after[gpu]["modes"][0]
            and self.origin[gpu]["layout"] == self.after[gpu]["layout"]
            for gpu in differing
        )

    def was_proven(self) -> bool:
        """Whether the unfinished change had all but ended: what it was for is remembered for the next boot already."""
        files = self.record["files_before"]
        journal, wanted = files.get("journal.json"), files.get("wanted.json")
        return bool(journal and wanted and journal["txid"] == wanted["txid"])

    def could_not_remove_it(self) -> bool:
        """Whether the journal is still there because the disk was full just then, and that is said."""
        full = any(each["what"] == "full" for each in self.fired)
        return full and any("journal.json" in warning for warning in self.result["warnings"])

    def held_unseen(self) -> bool:
        """Whether somebody whom no list shows has a whole GPU: it may keep what was destroyed from being made again."""
        unseen = {holder["pid"] for holder in self.record["holders"] if holder["kind"] in ("hidden", "client")}
        return any(
            pid in unseen for gpu in self.targets for pid, _kind, gi, _ci in self.before[gpu]["holders"] if gi is None
        )

    def about_promises(self) -> t.Iterator[str]:
        """No more promises were broken than any solution breaks."""
        for gpu, target in self.wish.items():
            promised = self.promised(gpu)
            broken = {p for p in promised if not there(self.after, gpu, *p)}
            if not broken or not target["on"] or self.before[gpu]["modes"] != (True, True):
                continue
            busy = {place for place in self.users(gpu) if place is not None}
            for number in range(len(broken)):
                for lost in itertools.combinations(sorted(promised), number):
                    if self.can_keep(gpu, target, (busy | promised) - set(lost)):
                        yield f"GPU {gpu}: {sorted(broken)} were taken from those they are promised to, {lost} would do"
                        return

    def may_wait(self, gpu: int) -> bool:
        """Whether the driver may have kept the mode of this GPU pending."""
        held = bool(self.before[gpu]["holders"] or self.after[gpu]["holders"])
        return held or self.case["virtualization"] == "passthrough" or self.disturbed

    def reasons_to_fail(self) -> list[str]:
        """Why a change may fail that nothing disturbed: what nobody can see beforehand."""
        hidden = [str(h["pid"]) for h in self.record["holders"] if not h["seen"]]
        held = [str(pid) for gpu in self.before for pid, _kind, gi, _ci in gpu["holders"] if gi is None]
        broken = [each["name"] for each in self.case["units"] if each["trouble"]]
        if self.case["virtualization"] == "passthrough":
            # A pending mode may be there for good until the next boot.
            held += ["pending" for gpu in self.targets if self.before[gpu]["modes"][0] != self.before[gpu]["modes"][1]]
        return [*hidden, *held, *broken, *(["a pending mode that is lost"] if self.only_pending_lost() else [])]


def started_anew(gpu: Gpu) -> Gpu:
    """What was there before, and then a reboot: a mode that was pending is what is current."""
    current, pending = gpu["modes"]
    return gpu if current == pending else {**gpu, "modes": type(gpu["modes"])((pending, pending)), "layout": {}}


# --- layouts -------------------------------------------------------------------------------------------------------


def targets_of(wish: t.Optional[Record]) -> dict[int, Target]:
    return {} if wish is None else {int(gpu): target for gpu, target in wish["expected"].items()}


def shapes(hw: Hardware, layout: t.Mapping[t.Any, t.Any], exact: bool) -> list[t.Any]:
    """A layout in a form that equals that of a wish which it fulfils."""
    found = []
    for (kind, start, size), compute in layout.items():
        inner = sorted(shape(hw.kind(kind), each, exact) for each in compute)
        found.append(((kind, start, size) if exact else (kind,), tuple(inner)))
    return sorted(found)


def shape(kind: Kind, compute: tuple[int, int, int], exact: bool) -> tuple[t.Any, ...]:
    """A compute instance. An exact layout says of which kind it is, other wishes only how large (and no special one).

    What fills its GPU instance is asked for as that, whichever kind of it there is.
    """
    number, start, size = compute
    profile = next(each for each in kind.compute if each.id == number)
    if exact:
        return (number, start) if profile.slices == kind.slices else (number, start, size)
    if profile.special and profile.slices != kind.slices:
        return (profile.slices, "special", number)
    return (profile.slices,)


def wanted_shapes(hw: Hardware, target: Target) -> list[t.Any]:
    if target["exact"]:
        return shapes(hw, {(i.kind, i.start, i.size): i.compute for i in from_data(target["instances"])}, True)
    return sorted(((kind,), tuple((each,) for each in sorted(slices))) for kind, slices in target["instances"])


def keeps(hw: Hardware, target: Target, kept: tuple[t.Any, ...]) -> bool:
    """Whether a wish can be fulfilled while these GPU instances, and these compute instances in them, stay."""
    if target["exact"]:
        wanted = {(i.kind, i.start, i.size): set(i.compute) for i in from_data(target["instances"])}
        return all(place in wanted and set(compute) <= wanted[place] for place, compute in kept)
    return seat(hw, kept, tuple((kind, tuple(sorted(slices))) for kind, slices in target["instances"]), ())


@functools.lru_cache(maxsize=4096)
def seat(hw: Hardware, kept: tuple[t.Any, ...], wanted: tuple[t.Any, ...], fixed: tuple[t.Any, ...]) -> bool:
    """Give each kept GPU instance one of the wanted ones, in every way, until the rest can be placed around them."""
    if not kept:
        return fits(hw, tuple(sorted(kind for kind, _slices in wanted)), tuple(sorted(fixed)))
    place, compute = kept[0]
    kind = hw.kind(place[0])
    for index, (name, slices) in enumerate(wanted):
        if name == place[0] and can_complete(hw, kind, slices, compute):
            rest = wanted[:index] + wanted[index + 1 :]
            if seat(hw, kept[1:], rest, (*fixed, place)):
                return True
    return False


def can_complete(hw: Hardware, kind: Kind, slices: tuple[int, ...], compute: tuple[t.Any, ...]) -> bool:
    """Whether a GPU instance can get compute instances of these sizes while the given ones stay."""
    missing = list(slices)
    for number, _start, _size in compute:
        profile = next(each for each in kind.compute if each.id == number)
        if profile.slices not in missing or (profile.special and profile.slices != kind.slices):
            return False
        missing.remove(profile.slices)
    plain = [kind.plain(each) for each in missing]
    return None not in plain and compute_fits(hw, kind, tuple(each.id for each in plain if each), tuple(compute))


def is_same_layout(dump: Record, gpu: Gpu) -> bool:
    """Whether a layout in a file is that of a snapshot: mode, GPU instances, starts and number of compute instances."""
    if dump.get("mig_current") != gpu["modes"][0]:
        return False
    saved = {}
    for each in dump.get("instances", ()):
        place = each["placement"]
        compute = [(c["profile_id"], c["placement"]["start"]) for c in each["compute_instances"]]
        saved[each["profile"], place["start"], place["size"]] = sorted(compute)
    return saved == {place: sorted(c[:2] for c in compute) for place, compute in gpu["layout"].items()}


def there(snapshot: t.Sequence[Gpu], gpu: int, gi: t.Optional[int], ci: t.Optional[int]) -> bool:
    if gi is None:
        return True
    return gi in snapshot[gpu]["ids"] if ci is None else (gi, ci) in snapshot[gpu]["compute_ids"]


def in_words(place: tuple[str, int, int]) -> str:
    kind, start, size = place
    return f"{kind} at {start}:{size}"


# --- calls and faults ----------------------------------------------------------------------------------------------


def place_in(call: Record) -> tuple[int, int]:
    """The place that a create call asked for: ``profile=9 start=4 size=4``."""
    words = dict(word.split("=") for word in call["detail"].split())
    return int(words["start"]), int(words["size"])


def fault_seen(each: Record, record: Record) -> bool:
    """Whether a fault that the simulator does by itself has come: it has seen as many calls as it waits for."""
    if each["what"] not in ("error", "hang") and "store" not in each:
        return False
    for text in record["faults"]:
        words = dict(word.split("=", 1) for word in text.split() if "=" in word)
        same = words.get("function") == each["on"] and words.get("nth") == str(each.get("nth"))
        if same and words.get("when") == each["when"] and int(words["seen"]) >= each["nth"]:
            return True
    return False


def succeeded(result: Record) -> bool:
    if result["how"] == "converged":
        return True
    waits = result.get("reset_required") or result.get("reboot_required")
    return result["how"] == "outcome" and not result["message"] and not waits


__all__ = ["Instance", "Verdict", "branch_of", "judge"]
