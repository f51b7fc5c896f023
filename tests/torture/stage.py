# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Plays a case: makes its node, runs the product in it, lets things go wrong, and writes down all that can be seen.

The stage is the process that everything else comes from. A run of the product is a forked child, as a module is a
process of its own; what outlives that child becomes a child of the stage, so that none is ever lost. The record of a
run is plain data for the judge; nothing in it comes from the product but ``result``, ``journals`` and ``files``.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import pathlib
import select
import shutil
import signal
import time
import traceback
import typing as t

import pynvml

from ansible_collections.gpufleet.mig.plugins.module_utils.engine import state
from ansible_collections.gpufleet.mig.tests.torture import product
from ansible_collections.gpufleet.mig.tests.torture.cases import Case, from_data, hardware_of
from ansible_collections.gpufleet.mig.tests.torture.traps import Traps, is_locked
from ansible_collections.gpufleet.mig.tests.torture.units import Units
from nvmlsim import Simulator, SimulatorError, control

Snapshot = list[dict[str, t.Any]]
Record = dict[str, t.Any]

PATIENCE = 40.0  # seconds; whatever of the product takes longer hangs
HANG_TIMEOUT = 1.0
NORMAL_TIMEOUT = 30.0
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None)
_sleepers: list[int] = []


def become_a_stage() -> None:
    """Once per process, before the first case: orphans of the product become our children."""
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def sleeper(number: int) -> int:
    """The pid of a process that does nothing, to be said to hold something. It ends with us."""
    while len(_sleepers) <= number:
        pid = os.fork()
        if pid == 0:
            _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            while True:
                signal.pause()
        _sleepers.append(pid)
    return _sleepers[number]


def play(case: Case, folder: pathlib.Path) -> list[Record]:
    """Everything that happened in a case, run by run."""
    stage = Stage(case, folder)
    try:
        stage.set_up()
        records = [stage.perform(run) for run in case["runs"]]
        records.append(stage.quiet_run())
        return records + stage.restore_runs()
    finally:
        stage.tidy_up()


class Stage:
    """A node in a folder, with everything around it."""

    def __init__(self, case: Case, folder: pathlib.Path) -> None:
        self.case = case
        self.folder = folder
        shutil.rmtree(folder, ignore_errors=True)
        self.notes = folder / "notes"
        self.places = state.places(str(folder / "state"))
        for name in ("notes", "units"):
            (folder / name).mkdir(parents=True)
        self.sim = Simulator.create(
            folder / "node",
            ",".join(case["gpus"]),
            driver=case["driver"],
            chips=case["chips"],
            virtualization=case["virtualization"],
            persistence=case["persistence"],
            assume=case["assume"],
        )
        self.units = Units(str(folder / "units"), str(self.sim.path))
        self.boots = 0
        self.last_call = 0
        self.seen: set[int] = set()
        self.unit_of: dict[int, str] = {}
        self.foreign: set[int] = set()
        self.holders: list[Record] = []
        self.promises: list[Record] = []
        self.ask_reader, self.ask_writer = os.pipe()
        self.answer_reader, self.answer_writer = os.pipe()

    def tidy_up(self) -> None:
        for descriptor in (self.ask_reader, self.ask_writer, self.answer_reader, self.answer_writer):
            os.close(descriptor)
        for pid in self.children():
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        shutil.rmtree(self.folder, ignore_errors=True)

    # --- the node as the case begins -------------------------------------------------------------------------------

    def set_up(self) -> None:
        passthrough = self.case["virtualization"] == "passthrough"
        hw = hardware_of(self.case)
        starts = self.case["starts"]
        on = [gpu for gpu, start in enumerate(starts) if start["mode"].startswith("on")]
        self.set_modes([gpu for gpu in on if hw[gpu].ampere], True)
        if passthrough:
            self.sim.reboot()
        self.set_modes([gpu for gpu in on if not hw[gpu].ampere], True)
        for gpu, start in enumerate(starts):
            if "pending" in start["mode"]:
                control.occupy(str(self.sim.path), f"add gpu={gpu} pid={sleeper(0)} kind=client")
                self.set_modes([gpu], "on pending" in start["mode"])
                control.occupy(str(self.sim.path), f"remove pid={sleeper(0)}")
        self.sim.call(create_layouts, hw, [from_data(start["layout"]) for start in starts])
        self.check_start()
        ids = [{(i["start"], i["size"]): i for i in gpu["instances"]} for gpu in self.sim.describe()["gpus"]]
        for number, each in enumerate(self.case["holders"]):
            self.add_holder(each, ids[each["gpu"]], sleeper(number))
        self.promises = [self.promise(each, ids[each["gpu"]]) for each in self.case["promises"]]
        for number, unit in enumerate(self.case["units"]):
            pid = sleeper(len(self.case["holders"]) + number)
            self.unit_of[pid] = unit["name"]
            self.units.add(unit["name"], unit["active"], unit["enabled"], unit["trouble"], unit["holds"], pid)
        self.sim.reset_calls()

    def set_modes(self, gpus: t.Sequence[int], enabled: bool) -> None:
        if gpus:
            self.sim.call(set_modes, gpus, enabled)

    def check_start(self) -> None:
        """The generator and the simulator agree on what can be created."""
        for gpu, (start, now) in enumerate(zip(self.case["starts"], self.snapshot())):
            wanted = {(i.kind, i.start, i.size): i.compute for i in from_data(start["layout"])}
            current, _comma, pending = start["mode"].partition(", ")
            modes = (current == "on", pending.startswith("on") if pending else current == "on")
            if (now["layout"], now["modes"]) != (wanted, modes):
                raise SimulatorError(f"GPU {gpu} does not begin as the case says: {now} instead of {start}")

    def find(self, each: Record, ids: t.Mapping[t.Any, t.Any]) -> tuple[t.Optional[int], t.Optional[int], str]:
        """GI id, CI id and UUID of what a holder or a promise of the case is at; as far as it says."""
        if not each["at"]:
            return None, None, ""
        kind, start, size, compute = self.case["starts"][each["gpu"]]["layout"][each["at"][0]]
        instance = ids[start, size]
        if len(each["at"]) == 1:
            return instance["id"], None, ""
        place = tuple(compute[each["at"][1]])
        inner = next(c for c in instance["compute"] if (c["profile_id"], c["start"], c["size"]) == place)
        return instance["id"], inner["id"], inner["uuid"]

    def add_holder(self, each: Record, ids: t.Mapping[t.Any, t.Any], pid: int) -> None:
        gi, ci, _uuid = self.find(each, ids)
        self.hold(pid, each["gpu"], gi, ci, each["kind"], each["seen"])

    def hold(self, pid: int, gpu: int, gi: t.Optional[int], ci: t.Optional[int], kind: str, seen: bool) -> None:
        place = "".join(f" {word}={value}" for word, value in (("gi", gi), ("ci", ci)) if value is not None)
        control.occupy(str(self.sim.path), f'add gpu={gpu}{place} pid={pid} kind={kind} name="job" mem=1')
        self.holders.append({"pid": pid, "gpu": gpu, "gi": gi, "ci": ci, "kind": kind, "seen": seen})
        if seen:
            self.seen.add(pid)

    def promise(self, each: Record, ids: t.Mapping[t.Any, t.Any]) -> Record:
        gi, ci, uuid = self.find(each, ids)
        return {"gpu": each["gpu"], "gi": gi, "ci": ci, "device": uuid, "holder": each["holder"]}

    # --- what there is ---------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Each GPU in the simulator's words: identity, modes, layout by (kind, start, size), ids, holders."""
        return [
            {
                "uuid": gpu["uuid"],
                "pci": gpu["pci"],
                "name": gpu["name"],
                "mig": gpu["mig"],
                "modes": (bool(gpu["mode_current"]), bool(gpu["mode_pending"])),
                "layout": {
                    (plain_name(gi["name"]), gi["start"], gi["size"]): tuple(
                        sorted(
                            ((ci["profile_id"], ci["start"], ci["size"]) for ci in gi["compute"]), key=lambda c: c[1:]
                        )
                    )
                    for gi in gpu["instances"]
                },
                "ids": {gi["id"]: (plain_name(gi["name"]), gi["start"], gi["size"]) for gi in gpu["instances"]},
                "compute_ids": {
                    (gi["id"], ci["id"]): (ci["profile_id"], ci["start"], ci["size"])
                    for gi in gpu["instances"]
                    for ci in gi["compute"]
                },
                "holders": [(h["pid"], h["kind"], h["gi"], h["ci"]) for h in gpu["holders"]],
            }
            for gpu in self.sim.describe()["gpus"]
        ]

    def opened(self) -> list[Record]:
        """Who has a device file open that a look into /proc would show."""
        return [
            {
                "pid": holder["pid"],
                "name": holder["name"],
                "gpu": gpu["minor"],
                "gi": holder["gi"],
                "ci": holder["ci"],
                "unit": self.unit_of.get(holder["pid"], ""),
            }
            for gpu in self.sim.describe()["gpus"]
            for holder in gpu["holders"]
            if holder["pid"] in self.seen or holder["pid"] in self.unit_of
        ]

    def files(self) -> dict[str, t.Any]:
        """The product's files, parsed; what is not JSON as text."""
        found: dict[str, t.Any] = {}
        for place in self.places:
            for path in sorted(pathlib.Path(place).glob("*")) if os.path.isdir(place) else []:
                if path.is_file() and path.name != "lock":
                    text = path.read_text(errors="replace")
                    try:
                        found[path.name] = json.loads(text)
                    except ValueError:
                        found[path.name] = text
        return found

    def lock_text(self) -> str:
        """Who had the lock last; it changes with every run that takes it."""
        path = pathlib.Path(self.places.run) / "lock"
        return path.read_text() if path.exists() else ""

    # --- a run -----------------------------------------------------------------------------------------------------

    def perform(self, run: Record) -> Record:
        """One run of the product, with what goes wrong in it, and what happens after it."""
        record: Record = {
            "title": run["title"],
            "wish": run["wish"],
            "orders": run["orders"],
            "disturb": run["disturb"],
            "before": self.snapshot(),
            "files_before": self.files(),
            "units_before": self.units.active(),
            "holders": [dict(each) for each in self.holders],
            "promises": self.promises,
            "boot": self.boots,
            "rival": None,
            "changed_by_others": [],
            "created_by_others": [],
            "lock_before": self.lock_text(),
        }
        shutil.rmtree(self.notes)
        self.notes.mkdir()
        log_before = len(self.units.log())
        self.sim.clear_faults()
        for each in run["disturb"]:
            self.set_fault(each)
        began = time.monotonic()
        rivals = [each for each in run["disturb"] if each["what"] == "rival" and each["start"] == "together"]
        children = {self.start(run, self.asked(run), "result"): "main"}
        for rival in rivals:
            children[self.start(rival["run"], self.asked(rival["run"]), "rival")] = "rival"
            record["rival"] = {"run": rival["run"]}
        record["ended"] = self.wait(children, run, record)
        record["seconds"] = time.monotonic() - began
        record["faults"] = self.sim.describe()["faults"]
        self.sim.clear_faults()
        calls = [call for call in self.sim.calls() if call.sequence > self.last_call]
        self.last_call = max([self.last_call, *(call.sequence for call in calls)])
        record.update(
            calls=[call._asdict() for call in calls if call.pid not in self.foreign],
            after=self.snapshot(),
            files=self.files(),
            units=self.units.active(),
            units_log=self.units.log()[log_before:],
            locked=is_locked(os.path.join(self.places.run, "lock")),
            lock=self.lock_text(),
            in_progress=state.in_progress(self.places),
            wrong=self.read_notes("wrong"),
            fired=[int(line) for line in self.read_notes("fired")],
            journals=[json.loads(line) for line in self.read_notes("journals")],
            result=self.read_result("result"),
        )
        if record["rival"] is not None:
            record["rival"]["result"] = self.read_result("rival")
        record["then"] = [self.happen(event) for event in run["then"]]
        record["later"] = self.snapshot()
        return record

    def quiet_run(self) -> Record:
        """The last run once more: with nothing left to do, nothing is done."""
        last = self.case["runs"][-1]
        return self.perform({**last, "title": "again", "disturb": [], "then": []})

    def restore_runs(self) -> list[Record]:
        """What could not be restored is restored by its file, once nothing goes wrong and nobody is in the way."""
        saved = [content for name, content in self.files().items() if name.startswith("recovery-")]
        if not saved or not isinstance(saved[-1], dict):
            return []
        self.happen("holders leave")
        self.promises = []
        hw = hardware_of(self.case)
        gpus = {gpu["uuid"]: index for index, gpu in enumerate(self.sim.describe()["gpus"])}
        dumps = {gpus[dump["uuid"]]: dump for dump in saved[-1]["gpus"]}
        expected = {str(gpu): target_of(hw[gpu], dump) for gpu, dump in dumps.items() if hw[gpu].mig}
        wish = {
            "form": "recovery",
            "ask": {"layout": {"gpus": list(dumps.values())}},
            "expected": expected,
            "refusal": "",
        }
        orders = {"evict": "none", "allow_reset": False, "recover": "forward", "who": "ansible on controller-4"}
        return [self.perform({"title": "restore", "wish": wish, "orders": orders, "disturb": [], "then": []})]

    def asked(self, run: Record) -> t.Optional[Record]:
        """The options of a wish; an exact layout in the form in which mig_info returns it."""
        if run["wish"] is None:
            return None
        ask = dict(run["wish"]["ask"])
        if run["wish"]["form"] == "layout":
            now = self.sim.describe()["gpus"]
            hw = hardware_of(self.case)
            ask["layout"] = [saved(now[gpu], hw[gpu], run["wish"]["expected"][str(gpu)]) for gpu in ask["layout"]]
        return ask

    def ordered(self, run: Record) -> Record:
        orders = run["orders"]
        hangs = any(each["what"] == "hang" for each in run["disturb"])
        # Who promises instances knows those that are there.
        devices = {ci["uuid"] for gpu in self.sim.describe()["gpus"] for gi in gpu["instances"] for ci in gi["compute"]}
        return {
            **{key: orders[key] for key in ("evict", "allow_reset", "recover", "who")},
            "allow_reboot": orders.get("allow_reboot", False),
            "clients": [[unit["name"], unit["kinds"]] for unit in self.case["units"]],
            "reservations": [
                {"device": each["device"], "holder": each["holder"]}
                for each in self.promises
                if each["device"] in devices
            ],
            "lock_timeout": orders.get("lock_timeout", 30.0),
            "operation_timeout": HANG_TIMEOUT if hangs else NORMAL_TIMEOUT,
            "client_timeout": 5.0,
        }

    def start(self, run: Record, ask: t.Optional[Record], answer: str) -> int:
        """Fork a process that is a module. It writes its result as a file, since its pipe may outlive it."""
        ordered = self.ordered(run)
        child = os.fork()
        if child:
            return child
        try:
            self.sim.attach()
            traps = Traps(
                self.places.state, self.places.run, str(self.notes), run["disturb"], self.ask_writer, self.answer_reader
            )
            product.prepare(f"boot-{self.boots}", self.units, self.opened, traps)
            try:
                result = product.run(self.places, ask, ordered)
                result["file_operations"] = traps.seen("file")
            except BaseException:
                result = {"how": "crashed", "message": traceback.format_exc()}
            path = self.folder / f"{answer}.json"
            path.with_suffix(".new").write_text(json.dumps(result))
            path.with_suffix(".new").rename(path)
        finally:
            os._exit(0)

    def read_result(self, answer: str) -> t.Optional[Record]:
        path = self.folder / f"{answer}.json"
        if not path.exists():
            return None
        result = json.loads(path.read_text())
        path.unlink()
        return t.cast(Record, result)

    def read_notes(self, kind: str) -> list[str]:
        path = self.notes / kind
        return path.read_text().splitlines() if path.exists() else []

    def wait(self, children: dict[int, str], run: Record, record: Record) -> dict[str, t.Any]:
        """Until all processes of the product have ended; how the modules did. Serves their traps meanwhile."""
        ended: dict[str, t.Any] = {}
        deadline = time.monotonic() + PATIENCE
        while True:
            for pid in self.children():
                done, status = os.waitpid(pid, os.WNOHANG)
                if done and pid in children:
                    ended[children[pid]] = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
                elif done:
                    ended.setdefault("orphans", []).append(status)
            if not self.children():
                return ended
            if time.monotonic() > deadline:
                ended["stuck"] = self.children()
                for pid in self.children():
                    os.kill(pid, signal.SIGKILL)
                deadline += PATIENCE
            if select.select([self.ask_reader], [], [], 0.005)[0]:
                self.serve(run["disturb"][os.read(self.ask_reader, 1)[0]], children, record)

    def children(self) -> list[int]:
        """Our children that are not ours: processes of the product, wherever they came from."""
        path = f"/proc/self/task/{os.getpid()}/children"
        with open(path, encoding="ascii") as file:
            return [int(pid) for pid in file.read().split() if int(pid) not in _sleepers]

    # --- what goes wrong -------------------------------------------------------------------------------------------

    def set_fault(self, each: Record) -> None:
        """What the simulator does by itself."""
        where = {"nth": each["nth"], "when": each["when"]} if "nth" in each else {}
        if each["what"] == "error":
            self.sim.fault(each["on"], code=each["code"], **where)
        elif each["what"] == "hang":
            self.sim.fault(each["on"], hang=True, **where)
        elif "store" in each:
            self.sim.fault(each["on"], kill=True, store=each["store"], nth=each["nth"])

    def serve(self, each: Record, children: dict[int, str], record: Record) -> None:
        """A process of the product stands at a trap and waits until this is done."""
        what = each["what"]
        before = self.snapshot()
        if what == "errors from":
            self.sim.fault("write", code=each["code"], gpu=each.get("gpu"))
        elif what == "lost":
            self.sim.fault("nvmlDevice*", code="GPU_IS_LOST", gpu=each["gpu"])
            self.sim.fault("nvmlGpuInstance*", code="GPU_IS_LOST", gpu=each["gpu"])
            self.sim.fault("nvmlComputeInstance*", code="GPU_IS_LOST", gpu=each["gpu"])
        elif what == "foreign":
            self.foreign.add(self.sim.call(interfere, each["gpu"], each["does"]))
        elif what == "arrive":
            self.arrive(each)
        elif what == "rival":
            record["rival"] = {"run": each["run"]}
            late = {**each["run"], "orders": {**each["run"]["orders"]}}
            if each["start"] == "gives up":
                late["orders"]["lock_timeout"] = 0.2
            pid = self.start(late, self.asked(late), "rival")
            if each["start"] == "gives up":
                os.waitpid(pid, 0)
            else:
                children[pid] = "rival"
        after = self.snapshot()
        if after != before:
            record["changed_by_others"].append(each)
        if what == "foreign":
            for gpu, (was, now) in enumerate(zip(before, after)):
                record["created_by_others"] += [(gpu, *place) for place in set(now["layout"]) - set(was["layout"])]
        os.write(self.answer_writer, b".")

    def arrive(self, each: Record) -> None:
        """A process takes the first compute instance of a GPU that nobody has."""
        gpu = self.sim.describe()["gpus"][each["gpu"]]
        taken = {(holder["gi"], holder["ci"]) for holder in gpu["holders"]}
        free = [(gi["id"], ci["id"]) for gi in gpu["instances"] for ci in gi["compute"]]
        free = [place for place in free if place not in taken]
        if free:
            pid = sleeper(len(self.case["holders"]) + len(self.case["units"]) + 1)
            self.hold(pid, each["gpu"], *free[0], each["kind"], each["kind"] == "compute")

    def happen(self, event: str) -> str:
        """What happens between two runs."""
        if event.startswith("reboot"):
            self.boots += 1
            self.sim.reboot()
            if event == "reboot":  # and not one that keeps the folder of the lock, as below a state_dir
                shutil.rmtree(self.places.run, ignore_errors=True)
            self.holders.clear()
            self.seen.clear()
            self.promises = []
            self.units.reboot()
        elif event == "holders leave":
            for holder in self.holders:
                control.occupy(str(self.sim.path), f"remove pid={holder['pid']}")
            self.holders.clear()
            self.seen.clear()
        return event


def plain_name(name: str) -> str:
    return name[len("MIG ") :] if name.startswith("MIG ") else name


def saved(gpu: Record, hw: t.Any, target: Record) -> Record:
    """A GPU as mig_info returns it, with the layout of a wish."""
    instances = []
    for kind, start, size, compute in target["instances"]:
        profile = hw.kind(kind)
        instances.append(
            {
                "profile": kind,
                "profile_id": profile.id,
                "slices": profile.slices,
                "placement": {"start": start, "size": size},
                "compute_instances": [
                    {
                        "slices": next(c.slices for c in profile.compute if c.id == number),
                        "profile_id": number,
                        "placement": {"start": inner, "size": width},
                    }
                    for number, inner, width in compute
                ],
            }
        )
    return {
        "index": gpu["index"],
        "uuid": gpu["uuid"],
        "pci_bus_id": gpu["pci"],
        "name": gpu["name"],
        "mig_current": target["on"],
        "instances": instances,
    }


def target_of(hw: t.Any, dump: Record) -> Record:
    """What a layout in a file means, as the expectation of a wish."""
    instances = [
        [
            each["profile"],
            *each["placement"].values(),
            [[c["profile_id"], *c["placement"].values()] for c in each["compute_instances"]],
        ]
        for each in dump["instances"]
    ]
    return {"on": dump["mig_current"], "exact": True, "instances": instances}


# --- in a process that sees the node -------------------------------------------------------------------------------


@contextlib.contextmanager
def nvml() -> t.Iterator[None]:
    pynvml.nvmlInit()
    try:
        yield
    finally:
        pynvml.nvmlShutdown()


def set_modes(gpus: t.Sequence[int], enabled: bool) -> None:
    with nvml():
        for gpu in gpus:
            pynvml.nvmlDeviceSetMigMode(pynvml.nvmlDeviceGetHandleByIndex(gpu), int(enabled))


def create_layouts(hw: t.Sequence[t.Any], layouts: t.Sequence[t.Sequence[t.Any]]) -> None:
    """Make the instances of a case, as whoever managed this node before did."""
    with nvml():
        for gpu, layout in enumerate(layouts):
            device = pynvml.nvmlDeviceGetHandleByIndex(gpu)
            for instance in layout:
                place = pynvml.c_nvmlGpuInstancePlacement_t(instance.start, instance.size)
                number = hw[gpu].kind(instance.kind).id
                made = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(device, number, ctypes.byref(place))
                for profile, start, size in instance.compute:
                    inner = pynvml.c_nvmlComputeInstancePlacement_t(start, size)
                    pynvml.nvmlGpuInstanceCreateComputeInstanceWithPlacement(made, profile, ctypes.byref(inner))


def interfere(gpu: int, does: str) -> int:
    """Another manager at work on this node, which knows nothing of locks. Returns its pid."""
    with contextlib.suppress(pynvml.NVMLError), nvml():
        device = pynvml.nvmlDeviceGetHandleByIndex(gpu)
        if does == "mode":
            current, _pending = pynvml.nvmlDeviceGetMigMode(device)
            pynvml.nvmlDeviceSetMigMode(device, 1 - current)
        elif does == "create":
            create_anything(device)
        else:
            destroy_something(device, everything=does == "wipe")
    return os.getpid()


def profiles_of(device: t.Any) -> t.Iterator[int]:
    for number in range(18):
        with contextlib.suppress(pynvml.NVMLError):
            yield pynvml.nvmlDeviceGetGpuInstanceProfileInfo(device, number).id


def create_anything(device: t.Any) -> None:
    for profile in profiles_of(device):
        with contextlib.suppress(pynvml.NVMLError):
            made = pynvml.nvmlDeviceCreateGpuInstance(device, profile)
            for number in range(8):
                with contextlib.suppress(pynvml.NVMLError):
                    info = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(made, number, 0)
                    pynvml.nvmlGpuInstanceCreateComputeInstance(made, info.id)
                    return
            return


def destroy_something(device: t.Any, everything: bool) -> None:
    for gi in range(15):
        with contextlib.suppress(pynvml.NVMLError):
            instance = pynvml.nvmlDeviceGetGpuInstanceById(device, gi)
            for ci in range(8):
                with contextlib.suppress(pynvml.NVMLError):
                    pynvml.nvmlComputeInstanceDestroy(pynvml.nvmlGpuInstanceGetComputeInstanceById(instance, ci))
            pynvml.nvmlGpuInstanceDestroy(instance)
            if not everything:
                return
