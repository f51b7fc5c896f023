# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Stand-ins for the services of a GPU node: each holds what the real one holds, and obeys behaviour/UNIT.

stand_in.py UNIT          run as this unit
stand_in.py --stop UNIT   what a unit without a process of its own does when it is stopped
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
import typing as t

import mig_parted
import simulated
import trees

CDI = "/run/cdi/nvidia.yaml"


class Part(t.NamedTuple):
    """What a service has open. ``name`` is that of its process.

    ``holds`` is how it shows to the driver: as a ``client`` that monitors, as one that does ``graphics``, or not at all
    (empty), because it hands over when the driver asks. ``forks``: its first process ends when it is ready.
    """

    name: str
    gpus: bool = False
    files: tuple[str, ...] = ()
    holds: str = ""
    session: bool = False
    forks: str = ""  # file for its pid
    ready: t.Optional[t.Callable[[], None]] = None
    over: t.Optional[t.Callable[[], None]] = None


def main(words: t.Sequence[str]) -> int:
    stopping = words[:1] == ["--stop"]
    if len(words) != 1 + stopping:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    unit = words[-1]
    if stopping:
        return stop_oneshot(unit)
    if not may_start(unit):
        return 1
    if unit in ONESHOTS:
        simulated.note(unit, "start")
        return ONESHOTS[unit]()
    return run(unit, PARTS[unit])


# ---- behaviour -----------------------------------------------------------------------------------------------------


def may_start(unit: str) -> bool:
    word, seconds = order(simulated.behaviour(unit).get("start", ""))
    if word == "delay":
        time.sleep(seconds)
    if word == "fail":
        simulated.note(unit, "start failed")
        print(f"{unit}: told to fail", file=sys.stderr)
        return False
    return True


def order(text: str) -> tuple[str, float]:
    """``delay:5`` is ("delay", 5.0)."""
    word, _colon, number = text.partition(":")
    return word, float(number or 0)


def stop_oneshot(unit: str) -> int:
    simulated.note(unit, "stop")
    word, seconds = order(simulated.behaviour(unit).get("stop", ""))
    if word == "hang":
        while True:
            time.sleep(3600)
    if word == "delay":
        time.sleep(seconds)
    simulated.note(unit, "end")
    return 0


# ---- daemons -------------------------------------------------------------------------------------------------------


def run(unit: str, part: Part) -> int:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGHUP})
    told = None
    if part.forks:
        reading, told = os.pipe()
        if os.fork():
            os.close(told)
            return 0 if os.read(reading, 1) else 1
        os.setsid()
    try:
        keep = begin(unit, part)
    except (OSError, simulated.SimulationError) as error:
        simulated.note(unit, "start failed")
        print(f"{part.name}: {error}", file=sys.stderr)
        return 1
    simulated.note(unit, "start")
    if told is not None:
        os.makedirs(os.path.dirname(part.forks), exist_ok=True)
        with open(part.forks, "w", encoding="ascii") as file:
            file.write(f"{os.getpid()}\n")
        os.write(told, b"1")
        os.close(told)
    wait_for_the_end(unit)
    if part.over:
        part.over()
    del keep
    simulated.note(unit, "end")
    return 0


def begin(unit: str, part: Part) -> list[int]:
    """Open what it has open; the descriptors."""
    simulated.rename_process(part.name)
    node = simulated.node() if simulated.driver_is_loaded() else None
    if part.ready:
        part.ready()
    if node is None:
        return []
    files = [*part.files, *(f"/dev/nvidia{gpu['minor']}" for gpu in node["gpus"] if part.gpus)]
    keep = [os.open(path, os.O_RDWR | os.O_CLOEXEC) for path in files if os.path.exists(path)]
    if part.session and simulated.library().nvmlInit_v2():
        raise simulated.SimulationError("NVML cannot be initialised")
    if part.holds:
        for gpu in node["gpus"]:
            request = f"add gpu={gpu['index']} pid={os.getpid()} kind={part.holds} name={part.name}"
            simulated.occupy(f"{request} mem=4")
    if simulated.behaviour(unit).get("leak"):
        keep += leak(node, part.name)
    return keep


def leak(node: simulated.Node, name: str) -> list[int]:
    """Keep all instances that there are, in no list: what monitoring is known to do."""
    keep = []
    for gpu in node["gpus"]:
        for gi in gpu["instances"]:
            for ci in gi["compute"]:
                place = f"gpu={gpu['index']} gi={gi['id']} ci={ci['id']}"
                simulated.occupy(f"add {place} pid={os.getpid()} kind=hidden name={name}")
                keep += open_capabilities(gpu["minor"], gi["id"], ci["id"])
    return keep


def open_capabilities(gpu: int, gi: int, ci: t.Optional[int] = None) -> list[int]:
    """The files by which an instance is used, made where they are not there yet, as CUDA does."""
    import subprocess

    wanted = {f"gpu{gpu}/gi{gi}/access": f"gpu{gpu}/mig/gi{gi}/access"}
    if ci is not None:
        wanted[f"gpu{gpu}/gi{gi}/ci{ci}/access"] = f"gpu{gpu}/mig/gi{gi}/ci{ci}/access"
    with open("/proc/driver/nvidia-caps/mig-minors", encoding="ascii") as file:
        minors = dict(line.split() for line in file)
    keep = []
    for name, path in wanted.items():
        device = f"/dev/nvidia-caps/nvidia-cap{minors[name]}"
        if not os.path.exists(device):
            subprocess.run(["nvidia-modprobe", "-f", f"/proc/driver/nvidia/capabilities/{path}"], check=False)
        keep.append(os.open(device, os.O_RDONLY | os.O_CLOEXEC))
    return keep


def wait_for_the_end(unit: str) -> None:
    """Until it is told to end and has no reason to go on."""
    while True:
        if signal.sigwait({signal.SIGTERM, signal.SIGHUP}) != signal.SIGTERM:
            continue
        simulated.note(unit, "stop")
        word, seconds = order(simulated.behaviour(unit).get("stop", ""))
        if word in ("hang", "refuse"):
            continue  # until somebody uses force
        if word == "delay":
            time.sleep(seconds)
        return


# ---- what each of them does ----------------------------------------------------------------------------------------


def require_driver() -> None:
    if not simulated.driver_is_loaded():
        raise simulated.SimulationError("the NVIDIA driver is not loaded")


def persistence_begins() -> None:
    require_driver()
    simulated.event("persistence on")
    # nvidia-smi asks it through this to let go of a GPU.
    os.makedirs("/run/nvidia-persistenced", exist_ok=True)
    server = socket.socket(socket.AF_UNIX)
    path = "/run/nvidia-persistenced/socket"
    if os.path.exists(path):
        os.unlink(path)
    server.bind(path)
    server.listen()
    persistence_begins.server = server  # type: ignore[attr-defined]


def persistence_ends() -> None:
    simulated.event("persistence off")


def fabric_begins() -> None:
    require_driver()
    simulated.event("fabric-manager on")  # says so where there is no NVSwitch


def fabric_ends() -> None:
    simulated.event("fabric-manager off")


def display_begins() -> None:
    import driver

    require_driver()
    driver.load_drm()


def slurm_begins() -> None:
    """It looks at the devices when it starts, and at the driver never again. A GPU in MIG mode has to have some."""
    if not simulated.driver_is_loaded():
        return
    node = simulated.node()
    for gpu in trees.gpus_of(node):
        if gpu["mode_current"] and not any(gi["compute"] for gi in gpu["instances"]):
            raise simulated.SimulationError(f"fatal: GPU {gpu['index']} has MIG mode on and no MIG device")


PARTS = {
    "nvidia-persistenced": Part(
        "nvidia-persistenced",
        gpus=True,
        files=("/dev/nvidiactl",),
        forks="/run/nvidia-persistenced/nvidia-persistenced.pid",
        ready=persistence_begins,
        over=persistence_ends,
    ),
    "nvidia-fabricmanager": Part(
        "nv-fabricmanager",
        gpus=True,
        files=("/dev/nvidiactl", "/dev/nvidia-nvswitchctl", *(f"/dev/nvidia-nvswitch{n}" for n in range(6))),
        forks="/run/nvidia-fabricmanager/nv-fabricmanager.pid",
        ready=fabric_begins,
        over=fabric_ends,
    ),
    # It runs without a driver too, and then monitors nothing until it is restarted.
    "nvidia-dcgm": Part(
        "nv-hostengine", gpus=True, files=("/dev/nvidiactl", "/dev/nvidia-uvm"), holds="client", session=True
    ),
    "dcgm-exporter": Part(
        "dcgm-exporter",
        gpus=True,
        files=("/dev/nvidiactl", "/dev/nvidia-uvm"),
        holds="client",
        session=True,
        ready=require_driver,
    ),
    "nvsm-core": Part("nvsm_core", gpus=True, files=("/dev/nvidiactl",), holds="client", session=True),
    "nvsm-mqtt": Part("mosquitto"),
    "nvsm-api-gateway": Part("nvsm_api_gateway"),
    "nvsm-notifier": Part("nvsm_notifier"),
    "kubelet": Part("kubelet"),
    "containerd": Part("containerd"),
    "slurmd": Part("slurmd", ready=slurm_begins),
    "gdm": Part(
        "Xorg",
        gpus=True,
        files=("/dev/nvidiactl", "/dev/nvidia-modeset", "/dev/dri/card1", "/dev/dri/renderD128"),
        holds="graphics",
        ready=display_begins,
    ),
    "nvidia-mps": Part("nvidia-cuda-mps-control", forks="/run/nvidia-mps/control.pid", ready=require_driver),
}


def nothing() -> int:
    return 0


def refresh_cdi() -> int:
    """List the devices for container runtimes. With MIG mode on and no instance the real one fails."""
    if not simulated.driver_is_loaded():
        print("nvidia-ctk: no NVIDIA device found", file=sys.stderr)
        return 1
    names = []
    for gpu in trees.gpus_of(simulated.node()):
        if not gpu["mode_current"]:
            names.append((str(gpu["index"]), gpu["uuid"]))
            continue
        devices = [ci for gi in gpu["instances"] for ci in gi["compute"]]
        if not devices:
            print(f"nvidia-ctk: GPU {gpu['index']} has MIG mode on and no MIG device", file=sys.stderr)
            return 1
        names += [(f"{gpu['index']}:{ci['mig_index']}", ci["uuid"]) for ci in devices]
    os.makedirs(os.path.dirname(CDI), exist_ok=True)
    with open(f"{CDI}.new", "w", encoding="utf-8") as file:
        file.write("cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n")
        file.write("".join(f'- name: "{name}"\n' for pair in names for name in pair))
    os.rename(f"{CDI}.new", CDI)
    return 0


ONESHOTS = {
    "nvsm": nothing,
    "nvidia-mig-manager": mig_parted.compare,
    "nvidia-cdi-refresh": refresh_cdi,
}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
