# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Random cases: a node, what is wanted of it, and what goes wrong meanwhile. One seed and number is one case, always.

A case is plain data, so that it can be printed, made smaller, and played again::

    seed, number, topic
    gpus            board keys; driver, chips, virtualization, persistence, assume: of the simulated node
    starts          per GPU {mode: off | on | on, off pending | off, on pending, layout: [instances]}
    holders         [{gpu, at: [instance, compute instance] | [instance] | [], kind, seen}]   seen: has its device open
    promises        [{gpu, at, holder}]   reservations of compute instances
    units           [{name, kinds, active, enabled, holds: GPU or None, trouble}]   trouble: stop, start, start once
    runs            [{wish, orders, disturb: [...], then: [...]}]   one after the other; then: what happens after it

A wish is {form, ask, expected, refusal}: ``ask`` are the options given to the product, ``expected`` is by GPU
{on, exact, instances: [[kind, [slices of its compute instances]]] | [instance]}, and ``refusal`` says why it cannot be.
"""

from __future__ import annotations

import collections
import random
import typing as t

from ansible_collections.gpufleet.mig.tests.torture.hardware import (
    Hardware,
    Instance,
    boards,
    compute_fits,
    hardware,
    maximum,
    random_layout,
)
from nvmlsim import load_boards

Case = dict[str, t.Any]
Wish = dict[str, t.Any]

DRIVERS = ("525.147.05", "535.183.01", "550.127.05", "570.172.08", "580.95.05", "595.45.04")
CODES = ("IN_USE", "INSUFFICIENT_RESOURCES", "UNKNOWN", "NO_PERMISSION", "TIMEOUT", "INVALID_ARGUMENT", "NOT_SUPPORTED")
WALK = "nvmlDeviceGetGpuInstanceProfileInfo*"
READS = (
    "nvmlInit",
    "nvmlSystemGetDriverVersion",
    "nvmlDeviceGetCount",
    "nvmlDeviceGetHandleByIndex",
    "nvmlDeviceGetHandleByUUID",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetGpuInstanceById",
    "nvmlDeviceGetGpuInstances",
    "nvmlGpuInstanceGetInfo",
    "nvmlGpuInstanceGetComputeInstances",
    "nvmlGpuInstanceGetComputeInstanceById",
    "nvmlComputeInstanceGetInfo",
    "nvmlDeviceGetComputeRunningProcesses",
    WALK,
)
ASSUMPTIONS = {
    "struct_version_code": ("INVALID_ARGUMENT", "ARGUMENT_VERSION_MISMATCH"),
    "passthrough_activation": ("NOT_SUPPORTED", "RESET_REQUIRED"),
    "passthrough_cancel": ("no", "yes"),
    "disable_with_instances": ("IN_USE", "pending", "destroy"),
    "hopper_reset_keeps_mode": ("yes", "no"),
    "placements_need_root": ("yes", "no"),
    "own_destroys_stay_listed": ("yes", "no"),
    "ampere_ci_windows": ("any", "listed"),
    "mode_beside_sessions": ("IN_USE", "SUCCESS"),
    "taken_ci_span": ("IN_USE", "INSUFFICIENT_RESOURCES"),
    "a30_counts": ("wrong", "right"),
    "wide_ci_span": ("2", "1"),
    "double_memory_plain_ci": ("yes", "no"),
}
UNITS = ("nvidia-dcgm.service", "dcgm-exporter.service", "telegraf.service", "slurmd.service")

# What goes wrong in the first run of a case, and how often of a thousand.
TOPICS = {
    "nothing": 70,
    "error": 150,
    "errors": 60,
    "read error": 50,
    "lost": 35,
    "hang": 60,
    "killed worker": 140,
    "killed parent": 50,
    "killed both": 90,
    "killed at a file": 100,
    "full disk": 35,
    "asked to stop": 45,
    "foreign manager": 45,
    "rival": 50,
    "somebody arrives": 20,
}


def generate(seed: t.Union[int, str], number: int) -> Case:
    """The case of this seed and number."""
    dice = random.Random(f"{seed}/{number}")
    case = random_node(dice)
    case = {"seed": seed, "number": number, "topic": pick(dice, TOPICS), **case}
    hw = hardware_of(case)
    case["starts"] = [random_start(dice, each, case["virtualization"]) for each in hw]
    case["holders"], case["promises"] = random_use(dice, case)
    case["units"] = random_units(dice, case)
    case["runs"] = random_runs(dice, case, hw)
    return case


def pick(dice: random.Random, weights: t.Mapping[str, float]) -> str:
    return dice.choices(list(weights), weights=list(weights.values()))[0]


def branch_of(case: Case) -> int:
    return int(case["driver"].partition(".")[0])


def hardware_of(case: Case) -> list[Hardware]:
    """What each GPU of the case allows."""
    wide = int(case["assume"].get("wide_ci_span", "2"))
    plain = case["assume"].get("double_memory_plain_ci", "yes") == "yes"
    return [hardware(key, branch_of(case), wide, plain) for key in case["gpus"]]


# --- the node ------------------------------------------------------------------------------------------------------


def random_node(dice: random.Random) -> Case:
    count = int(pick(dice, {"1": 40, "2": 34, "3": 15, "4": 8, "8": 3}))
    capable = boards(mig=True)
    if dice.random() < 0.65:
        gpus = [dice.choice(capable)] * count
    else:
        gpus = [dice.choice(capable) for _each in range(count)]
    if dice.random() < 0.08:
        gpus.insert(dice.randrange(len(gpus) + 1), dice.choice(boards(mig=False)))
    oldest = max(version(load_boards()[key].min_driver) for key in gpus)
    drivers = [driver for driver in DRIVERS if version(driver) >= oldest]
    assume = {}
    if dice.random() < 0.3:
        for name in dice.sample(sorted(ASSUMPTIONS), dice.randint(1, 4)):
            assume[name] = dice.choice(ASSUMPTIONS[name])
    return {
        "gpus": gpus,
        "driver": dice.choice(drivers),
        "chips": "".join(dice.choice("NS") for _gpu in gpus),
        "virtualization": "passthrough" if dice.random() < 0.1 else "none",
        "persistence": dice.random() < 0.85,
        "assume": assume,
    }


def version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part)


def random_start(dice: random.Random, hw: Hardware, virtualization: str) -> dict[str, t.Any]:
    """Mode and layout of a GPU before anything happens. Where a mode takes a reboot it is to change more often."""
    if not hw.mig:
        return {"mode": "off", "layout": []}
    off = 50 if virtualization == "passthrough" else 20
    mode = pick(dice, {"on": 94 - off, "off": off, "on, off pending": 3, "off, on pending": 3})
    layout: tuple[Instance, ...] = ()
    if mode.startswith("on") and dice.random() < 0.9:
        layout = random_layout(dice, hw, plain=dice.random() < 0.5)
    return {"mode": mode, "layout": as_data(layout)}


def as_data(layout: t.Iterable[Instance]) -> list[t.Any]:
    return [[i.kind, i.start, i.size, [list(c) for c in i.compute]] for i in layout]


def from_data(layout: t.Iterable[t.Any]) -> tuple[Instance, ...]:
    return tuple(
        Instance(kind, start, size, tuple(t.cast("tuple[int, int, int]", tuple(c)) for c in compute))
        for kind, start, size, compute in layout
    )


def random_use(dice: random.Random, case: Case) -> tuple[list[t.Any], list[t.Any]]:
    """Who holds what, and what is promised to whom."""
    holders: list[t.Any] = []
    promises: list[t.Any] = []
    crowded = dice.random() < 0.35
    for gpu, start in enumerate(case["starts"]):
        for number, (_kind, _start, _size, compute) in enumerate(start["layout"]):
            for inner in range(len(compute)):
                if crowded and dice.random() < 0.25 and len(holders) < 6:
                    kind = pick(dice, {"compute": 60, "graphics": 10, "hidden": 30})
                    seen = kind != "hidden" or dice.random() < 0.6
                    holders.append({"gpu": gpu, "at": [number, inner], "kind": kind, "seen": seen})
                if crowded and dice.random() < 0.15 and len(promises) < 4:
                    promises.append({"gpu": gpu, "at": [number, inner], "holder": f"Slurm job {len(promises) + 100}"})
        if dice.random() < 0.06:
            kind = pick(dice, {"compute": 40, "graphics": 10, "hidden": 25, "client": 25})
            seen = kind in ("compute", "graphics") or dice.random() < 0.6
            holders.append({"gpu": gpu, "at": [], "kind": kind, "seen": seen})
    return holders, promises


def random_units(dice: random.Random, case: Case) -> list[t.Any]:
    """Systemd units that use GPUs: clients that the orders may name."""
    if dice.random() < 0.6:
        return []
    units = []
    for name in dice.sample(UNITS, dice.randint(1, 3)):
        kinds = sorted(dice.sample(("instances", "mode", "reset"), dice.randint(1, 3)))
        holds = dice.randrange(len(case["gpus"])) if dice.random() < 0.4 else None
        units.append(
            {
                "name": name,
                "kinds": kinds,
                "active": dice.random() < 0.8,
                "enabled": dice.random() < 0.8,
                "holds": holds,
                "trouble": pick(dice, {"": 82, "stop": 6, "start": 6, "start once": 6}),
            }
        )
    return units


# --- wishes --------------------------------------------------------------------------------------------------------


def wish_of(form: str, ask: Case, expected: t.Mapping[int, t.Any], refusal: str = "") -> Wish:
    return {
        "form": form,
        "ask": ask,
        "expected": {str(gpu): each for gpu, each in expected.items()},
        "refusal": refusal,
    }


def random_wish(dice: random.Random, case: Case, hw: list[Hardware]) -> Wish:
    """Something to want of a node, mostly possible."""
    capable = [gpu for gpu, each in enumerate(hw) if each.mig]
    if not capable:
        return wish_of("label", {"label": "all-disabled"}, {})
    form = pick(dice, {"config": 34, "count": 14, "label": 22, "layout": 20, "impossible": 5, "as it is": 5})
    model = hw[dice.choice(capable)]
    same = [gpu for gpu in capable if hw[gpu] == model]
    if form == "count":
        return count_wish(dice, hw, same)
    if form == "label":
        return label_wish(dice, hw, same)
    if form == "layout":
        return layout_wish({gpu: exact_target(dice, hw[gpu]) for gpu in some_of(dice, capable)})
    if form == "as it is":
        return layout_wish({gpu: as_it_is(case["starts"][gpu]) for gpu in some_of(dice, capable)})
    if form == "impossible":
        return impossible_wish(dice, hw, some_of(dice, capable))
    return config_wish(dice, hw, {gpu: counted_target(dice, hw[gpu]) for gpu in some_of(dice, capable)})


def some_of(dice: random.Random, gpus: list[int]) -> list[int]:
    """Mostly all."""
    return gpus if dice.random() < 0.6 else sorted(dice.sample(gpus, dice.randint(1, len(gpus))))


def exact_target(dice: random.Random, hw: Hardware) -> dict[str, t.Any]:
    if dice.random() < 0.12:
        return {"on": False, "exact": True, "instances": []}
    return {"on": True, "exact": True, "instances": as_data(random_layout(dice, hw, plain=dice.random() < 0.6))}


def as_it_is(start: t.Any) -> dict[str, t.Any]:
    return {"on": start["mode"].startswith("on"), "exact": True, "instances": start["layout"]}


def layout_wish(targets: dict[int, t.Any]) -> Wish:
    return wish_of("layout", {"layout": sorted(targets), "gpus": sorted(targets)}, targets)


def counted_target(dice: random.Random, hw: Hardware) -> dict[str, t.Any]:
    """MIG off, or instances by number: each either with what fills it, or with equal small compute instances."""
    if dice.random() < 0.12:
        return {"on": False, "exact": False, "instances": []}
    instances: list[t.Any] = []
    for instance in random_layout(dice, hw, plain=True):
        kind = hw.kind(instance.kind)
        slices = [kind.slices]
        # The product puts equal small ones of one kind together, so only one GPU instance of a kind is divided.
        alone = all(name != instance.kind for name, _slices in instances)
        if alone and dice.random() < 0.15 and kind.slices > 1 and kind.plain(1):
            slices = [1] * dice.randint(1, kind.slices)
            narrow = kind.plain(1)
            if narrow is None or not compute_fits(hw, kind, (narrow.id,) * len(slices), ()):
                slices = [kind.slices]
        instances.append([instance.kind, slices])
    return {"on": True, "exact": False, "instances": sorted(instances)}


def config_wish(dice: random.Random, hw: list[Hardware], targets: dict[int, t.Any]) -> Wish:
    entries = []
    for gpu, target in targets.items():
        devices: collections.Counter[str] = collections.Counter()
        for name, slices in target["instances"]:
            if slices == [hw[gpu].kind(name).slices]:
                devices[name] += 1
            else:
                devices[f"{slices[0]}c.{name}"] += len(slices)
        entries.append({"devices": [gpu], "mig-enabled": target["on"], "mig-devices": dict(devices)})
    ask: Case = {"config": entries, "allow_empty": True}
    if dice.random() < 0.4:
        ask = {"label": "mine", "configs": {"version": "v1", "mig-configs": {"mine": entries}}, "allow_empty": True}
    return wish_of("config", ask, targets)


def count_wish(dice: random.Random, hw: list[Hardware], gpus: list[int]) -> Wish:
    """``3g.20gb,2x2g.10gb`` on GPUs of one model."""
    names = [instance.kind for instance in random_layout(dice, hw[gpus[0]], plain=True)]
    counts = collections.Counter(names)
    label = ",".join(
        name if count == 1 and dice.random() < 0.5 else f"{count}x{name}" for name, count in counts.items()
    )
    return wish_of("count", {"label": label, "gpus": gpus}, {gpu: whole(hw[gpu], names) for gpu in gpus})


def whole(hw: Hardware, names: t.Iterable[str]) -> dict[str, t.Any]:
    """These kinds, each with what fills it."""
    return {"on": True, "exact": False, "instances": sorted([name, [hw.kind(name).slices]] for name in names)}


def label_wish(dice: random.Random, hw: list[Hardware], gpus: list[int]) -> Wish:
    """A label that needs no config."""
    first = hw[gpus[0]]
    label = pick(dice, {"all-disabled": 20, "all-enabled": 10, "all-balanced": 30, "kind": 40})
    targets = {}
    if label == "kind":
        kind = dice.choice(first.kinds)
        label = "all-" + kind.name.replace("+", ".")
        targets = {gpu: whole(first, [kind.name] * maximum(first, kind.name)) for gpu in gpus}
    elif label == "all-balanced":
        targets = {gpu: whole(first, balanced(first)) for gpu in gpus}
    else:
        targets = {gpu: {"on": label == "all-enabled", "exact": False, "instances": []} for gpu in gpus}
    return wish_of("label", {"label": label, "gpus": gpus}, targets)


def balanced(hw: Hardware) -> list[str]:
    """NVIDIA's all-balanced: 2 x 1g, 1 x 2g, and on GPUs of seven slices 1 x 3g."""
    recipe = {1: 2, 2: 1, 3: 1} if max(kind.slices for kind in hw.kinds) == 7 else {1: 2, 2: 1}
    names = []
    for slices, count in recipe.items():
        base = [kind for kind in hw.kinds if kind.slices == slices and not kind.attributes]
        names += [max(base, key=lambda kind: maximum(hw, kind.name)).name] * count
    return names


def impossible_wish(dice: random.Random, hw: list[Hardware], gpus: list[int]) -> Wish:
    gpu = dice.choice(gpus)
    targets = {each: counted_target(dice, hw[each]) for each in gpus}
    kind = dice.choice(hw[gpu].kinds)
    targets[gpu] = whole(hw[gpu], [kind.name] * (maximum(hw[gpu], kind.name) + 1))
    wish = config_wish(dice, hw, targets)
    return {
        **wish,
        "form": "impossible",
        "refusal": f"GPU {gpu} holds at most {maximum(hw[gpu], kind.name)} {kind.name}",
    }


# --- runs ----------------------------------------------------------------------------------------------------------


def random_runs(dice: random.Random, case: Case, hw: list[Hardware]) -> list[Case]:
    wish = random_wish(dice, case, hw)
    orders = random_orders(dice, case)
    runs: list[Case] = []
    if dice.random() < 0.15:
        capable = [gpu for gpu, each in enumerate(hw) if each.mig and "pending" not in case["starts"][gpu]["mode"]]
        if capable:
            remembered = layout_wish({gpu: as_it_is(case["starts"][gpu]) for gpu in capable})
            runs.append(run_of("remember", remembered, orders))
    first = run_of("change", wish, orders)
    first["disturb"] = disturbances(dice, case, hw, wish)
    first["then"] = aftermath(dice, case)
    runs.append(first)
    if "killed" in case["topic"] and dice.random() < 0.3:
        again = next_run(dice, case, hw, wish, orders)
        point = a_point(dice, case, wish)
        again["disturb"] = [{"what": "kill", "who": dice.choice(("worker", "both")), **point}]
        again["then"] = aftermath(dice, case)
        runs.append(again)
    runs.append(next_run(dice, case, hw, wish, orders))
    return runs


def run_of(title: str, wish: t.Optional[Wish], orders: Case) -> Case:
    return {"title": title, "wish": wish, "orders": dict(orders), "disturb": [], "then": []}


def random_orders(dice: random.Random, case: Case) -> Case:
    evict = {"none": 55, "reserved": 20, "clients": 25} if case["units"] else {"none": 75, "reserved": 25}
    may = {"allow_reboot": dice.random() < 0.6} if case["virtualization"] == "passthrough" else {}
    return {
        **may,
        "evict": pick(dice, evict),
        "allow_reset": dice.random() < 0.3,
        "recover": "forward",
        "who": "ansible on controller-1",
    }


def next_run(dice: random.Random, case: Case, hw: list[Hardware], wish: Wish, orders: Case) -> Case:
    """Whoever comes next, from wherever: with the same wish, another, or only to bring the node in order."""
    choice = pick(dice, {"same": 40, "other": 22, "heal forward": 10, "heal back": 14, "back": 14})
    ordered = {**orders, "who": "ansible on controller-2"}
    if choice.endswith("back"):
        ordered["recover"] = "back"
    if choice.startswith("heal"):
        return run_of(choice, None, ordered)
    return run_of(choice, random_wish(dice, case, hw) if choice == "other" else wish, ordered)


def aftermath(dice: random.Random, case: Case) -> list[str]:
    """What happens between this run and the next."""
    events = []
    likely = {"killed both": 0.5, "killed at a file": 0.5, "hang": 0.25, "lost": 0.25, "killed worker": 0.25}
    rarely = 0.4 if case["virtualization"] == "passthrough" else 0.05
    if dice.random() < likely.get(case["topic"], rarely):
        events.append(dice.choice(("reboot", "reboot", "reboot that keeps run")))
    if dice.random() < 0.06:
        events.append("holders leave")
    return events


def disturbances(dice: random.Random, case: Case, hw: list[Hardware], wish: Wish) -> list[Case]:
    """What goes wrong during the first run, by the topic of the case."""
    topic = case["topic"]
    point = a_point(dice, case, wish)
    write = a_write(dice, case, wish)
    gpu = dice.randrange(len(case["gpus"]))
    code = dice.choice(CODES)
    if topic == "error":
        return [{"what": "error", **write, "code": code}]
    if topic == "errors":
        if dice.random() < 0.5:
            later = {**write, "nth": write["nth"] + dice.randint(1, 5), "when": dice.choice(("before", "after"))}
            return [{"what": "error", **write, "code": code}, {"what": "error", **later, "code": dice.choice(CODES)}]
        only = {"gpu": gpu} if dice.random() < 0.5 else {}
        return [{"what": "errors from", **write, "code": code, **only}]
    if topic == "read error":
        read, code = a_read(dice), dice.choice((*CODES, "GPU_IS_LOST"))
        if read["on"] == WALK and code == "INVALID_ARGUMENT":
            code = "UNKNOWN"  # that code is how the walk over the profiles ends
        return [{"what": "error", **read, "code": code}]
    if topic == "lost":
        return [{"what": "lost", **write, "gpu": gpu}]
    if topic == "hang":
        return [{"what": "hang", **(a_read(dice) if dice.random() < 0.4 else write)}]
    if topic == "killed worker":
        if dice.random() < 0.35:
            return [{"what": "kill", "who": "worker", **write, "when": "before", "store": dice.randint(1, 6)}]
        if dice.random() < 0.2:
            broken = {"what": "error", **a_write(dice, case, wish), "code": code}
            return [broken, {"what": "kill", "who": "worker", **write, "nth": broken["nth"] + dice.randint(1, 6)}]
        return [{"what": "kill", "who": "worker", **write}]
    if topic == "killed parent":
        return [{"what": "kill", "who": "parent", **point}]
    if topic == "killed both":
        return [{"what": "kill", "who": "both", **point}]
    if topic == "killed at a file":
        return [{"what": "kill", "who": dice.choice(("worker", "both", "parent")), **a_file(dice)}]
    if topic == "full disk":
        return [{"what": "full", **a_file(dice), "when": "before"}]
    if topic == "asked to stop":
        return [{"what": "term", "who": dice.choice(("worker", "parent")), **point}]
    if topic == "foreign manager":
        return [{"what": "foreign", **write, "gpu": gpu, "does": dice.choice(("create", "destroy", "wipe", "mode"))}]
    if topic == "rival":
        rival = run_of(
            "rival", random_wish(dice, case, hw), {**random_orders(dice, case), "who": "ansible on controller-3"}
        )
        start = pick(dice, {"together": 35, "waits": 30, "gives up": 35})
        point = {"on": "start"} if start == "together" else {**write, "when": "before"}
        return [{"what": "rival", **point, "start": start, "run": rival}]
    if topic == "somebody arrives":
        return [{"what": "arrive", **write, "gpu": gpu, "kind": dice.choice(("compute", "hidden"))}]
    return []


def expected_writes(case: Case, wish: Wish) -> int:
    """About how many writes the wish takes; only to hit the middle of it."""
    total = 0
    for gpu, target in wish["expected"].items():
        total += sum(1 + len(compute) for _k, _s, _z, compute in case["starts"][int(gpu)]["layout"])
        total += sum(1 + len(each[-1]) for each in target["instances"]) + 1
    return max(1, total)


def a_write(dice: random.Random, case: Case, wish: Wish) -> Case:
    nth = dice.randint(1, max(1, round(0.8 * expected_writes(case, wish))))
    return {"on": "write", "nth": nth, "when": dice.choice(("before", "after"))}


def a_read(dice: random.Random) -> Case:
    nth = dice.choice((1, 2, 3, 4, 5, 6, 8, 10, 14, 20))
    return {"on": dice.choice(READS), "nth": nth, "when": dice.choice(("before", "after"))}


def a_file(dice: random.Random) -> Case:
    return {"on": "file", "nth": dice.randint(1, 18), "when": dice.choice(("before", "after"))}


def a_point(dice: random.Random, case: Case, wish: Wish) -> Case:
    return a_file(dice) if dice.random() < 0.3 else a_write(dice, case, wish)
