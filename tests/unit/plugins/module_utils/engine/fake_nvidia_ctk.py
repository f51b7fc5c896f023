# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Stands in for nvidia-ctk, and under the name systemctl for a systemd that has NVIDIA's refresh unit.

Beside the program lie ``devices.json`` (what ``cdi generate`` finds, a list of {uuid, index, files}; without it what
NVML shows), ``behaviour.json``, and ``calls``, which gets a line of JSON for each call. Behaviour: ``fail`` (a text,
with exit status 1), ``lose`` (a file that gets into no specification), ``library`` (a path that all containers get),
``unit`` (whether the refresh unit is there), ``unit_fails``, ``unit_writes`` (its file), ``names`` (index, uuid or
both), ``management`` (its files), ``old`` (a version of nvidia-ctk before 1.18), ``started`` (when engines were, in
microseconds; a restart sets it), ``active`` (their state), ``system`` (that of the system).
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import sys
import time

REFRESH = "nvidia-cdi-refresh.service"
ENGINES = ("docker.service", "containerd.service", "crio.service")
FOLDER = pathlib.Path(sys.argv[0]).resolve().parent


def main() -> int:
    name, words = os.path.basename(sys.argv[0]), sys.argv[1:]
    behaviour = json.loads((FOLDER / "behaviour.json").read_text())
    settings = {key: value for key, value in os.environ.items() if key.startswith("NVIDIA_")}
    with open(FOLDER / "calls", "a", encoding="utf-8") as file:
        file.write(json.dumps([name, words, settings]) + "\n")
    if name == "systemctl":
        return systemctl(words, behaviour)
    if words[:2] == ["cdi", "generate"]:
        return generate(words[2:], behaviour)
    if words[:2] == ["runtime", "configure"]:
        return configure(words[2:], behaviour)
    print(f"nvidia-ctk: this stand-in does not know {words}", file=sys.stderr)
    return 2


def systemctl(words, behaviour) -> int:
    while words[0].startswith("-"):
        words = words[1:]
    if words[0] == "show":
        if "ActiveEnterTimestampMonotonic" in words[1]:
            active = "inactive" if behaviour.get("started") is None else "active"
            print(f"ActiveState={active}\nActiveEnterTimestampMonotonic={behaviour.get('started', 0)}")
            return 0
        engine = words[-1] in ENGINES
        loaded = "loaded" if engine or (words[-1] == REFRESH and behaviour.get("unit")) else "not-found"
        active = behaviour.get("active", "inactive") if engine else "inactive"
        print(f"Id={words[-1]}\nLoadState={loaded}\nActiveState={active}\nSubState=dead\nResult=success\nType=oneshot")
        return 0
    if words[0] == "is-system-running":
        print(behaviour.get("system", "running"))
        return 0
    if words[0] == "restart" and words[-1] != REFRESH:
        started = int(time.clock_gettime(time.CLOCK_MONOTONIC) * 1e6)
        (FOLDER / "behaviour.json").write_text(json.dumps({**behaviour, "started": started}))
        return 0
    if words[0] == "restart":
        if behaviour.get("unit_fails"):
            print("Job for nvidia-cdi-refresh.service failed", file=sys.stderr)
            return 1
        pathlib.Path(behaviour["unit_writes"]).write_text(as_yaml(specification([], behaviour)))
        return 0
    return 0


def generate(words, behaviour) -> int:
    if behaviour.get("fail"):
        print(behaviour["fail"], file=sys.stderr)
        return 1
    spec = specification(words, behaviour)
    if not spec["devices"]:
        # As the real one does while MIG is on and there is no instance.
        print("failed to generate CDI spec: invalid device count: 0", file=sys.stderr)
        return 1
    print(json.dumps(spec, indent=2))
    return 0


def configure(words, behaviour) -> int:
    """For containerd: settings are written anew without comments, and a runtime goes into a file beside them."""
    options = dict(word[2:].partition("=")[::2] for word in words)
    if behaviour.get("old") and "drop-in-config" in options:
        print("Incorrect Usage: flag provided but not defined: -drop-in-config", file=sys.stderr)
        return 1
    if behaviour.get("fail"):
        print(behaviour["fail"], file=sys.stderr)
        return 1
    config = pathlib.Path(options["config"])
    text = config.read_text() if config.exists() else ""
    lines_there = [line.partition("#")[0].rstrip() for line in text.splitlines()]
    others = [line for line in lines_there if line and not line.startswith(("imports", "version"))]
    version = "3" if "version = 3" in lines_there else "2"
    own = ['[plugins."cri"]', *(line for line in others if line.startswith("  ")), "  [runtimes.nvidia]"]
    own += [f'    BinaryName = "{options["nvidia-runtime-path"]}"']
    own += ["  enable_cdi = true"] if "cdi.enabled" in options else []
    own += ['  default_runtime_name = "nvidia"'] if "nvidia-set-as-default" in options else []
    own = list(dict.fromkeys(own))
    imports = re.search(r"^imports = \[(.*)\]", text, re.MULTILINE)
    items = [item.strip() for item in imports[1].split(",") if item.strip()] if imports else []
    top = [f"version = {version}"]
    if "drop-in-config" in options:
        beside = pathlib.Path(options["drop-in-config"])
        beside.parent.mkdir(exist_ok=True)
        beside.write_text("\n".join([f"version = {version}", *own, ""]))
        items += [f'"{beside.parent}/*.toml"'] if f'"{beside.parent}/*.toml"' not in items else []
        own = []
    top += [f"imports = [{', '.join(items)}]"] if items else []
    others = [line for line in others if line not in own] if own else others
    config.write_text("\n".join([*top, *others, *own, ""]))
    return 0


def specification(words, behaviour):
    library = {"hostPath": behaviour.get("library", "/usr/lib/libcuda.so.570"), "options": ["ro"]}
    common = {"containerEdits": {"mounts": [library]}}
    if "--mode=management" in words:
        vendor = next(word.partition("=")[2] for word in words if word.startswith("--vendor="))
        files = [{"path": path} for path in behaviour.get("management", [])]
        return {
            "cdiVersion": "0.5.0",
            "kind": f"{vendor}/gpu",
            **common,
            "devices": [{"name": "all", "containerEdits": {"deviceNodes": files}}],
        }
    devices = []
    listed = FOLDER / "devices.json"
    for device in json.loads(listed.read_text()) if listed.exists() else seen_by_nvml():
        nodes = [{"path": path} for path in device["files"] if path != behaviour.get("lose")]
        names = [device[which] for which in behaviour.get("names", ["index", "uuid"])]
        devices += [{"name": name, "containerEdits": {"deviceNodes": nodes}} for name in names]
    if devices:
        devices.append({"name": "all", "containerEdits": devices[0]["containerEdits"]})
    return {"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", **common, "devices": devices}


def seen_by_nvml():
    """The devices of a simulated node."""
    import pynvml

    pynvml.nvmlInit()
    for number in range(pynvml.nvmlDeviceGetCount()):
        gpu = pynvml.nvmlDeviceGetHandleByIndex(number)
        file = f"/dev/nvidia{pynvml.nvmlDeviceGetMinorNumber(gpu)}"
        try:
            mode = pynvml.nvmlDeviceGetMigMode(gpu)[0]
        except pynvml.NVMLError_NotSupported:
            mode = 0
        if not mode:
            yield {"uuid": pynvml.nvmlDeviceGetUUID(gpu), "index": str(number), "files": [file]}
            continue
        for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
            try:
                mig = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index)
            except pynvml.NVMLError_NotFound:
                continue
            gi, ci = pynvml.nvmlDeviceGetGpuInstanceId(mig), pynvml.nvmlDeviceGetComputeInstanceId(mig)
            caps = capability_files(f"gpu{file[11:]}/gi{gi}/", f"gpu{file[11:]}/gi{gi}/ci{ci}/")
            yield {"uuid": pynvml.nvmlDeviceGetUUID(mig), "index": f"{number}:{index}", "files": [file, *caps]}


def capability_files(*names):
    """Those that exist of these capabilities; the real one too says nothing of one that is missing."""
    table = pathlib.Path("/proc/driver/nvidia-caps/mig-minors")
    minors = dict(line.split(" ", 1) for line in table.read_text().splitlines()) if table.exists() else {}
    paths = [f"/dev/nvidia-caps/nvidia-cap{minors[f'{name}access']}" for name in names if f"{name}access" in minors]
    return [path for path in paths if os.path.exists(path)]


def as_yaml(spec) -> str:
    """As nvidia-ctk writes it."""
    return "\n".join(["---", *lines(spec, 0), ""])


def lines(value, pad):
    space = " " * pad
    if isinstance(value, dict):
        for key, inner in value.items():
            if isinstance(inner, (dict, list)):
                yield f"{space}{key}:"
                yield from lines(inner, pad + 4)
            else:
                yield f"{space}{key}: {scalar(inner)}"
    for inner in value if isinstance(value, list) else []:
        first, *others = lines(inner, pad + 2) if isinstance(inner, dict) else [scalar(inner)]
        yield f"{space}- {first.strip()}"
        yield from others


def scalar(value) -> str:
    return json.dumps(value) if isinstance(value, str) and value[:1].isdigit() else str(value)


if __name__ == "__main__":
    sys.exit(main())
