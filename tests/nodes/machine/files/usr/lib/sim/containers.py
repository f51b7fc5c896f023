# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Container runtimes of this machine: docker with its daemon, podman and nerdctl without one.

A container is a process that holds the GPUs or MIG devices that it was given, in a control group that is named as the
runtime names it. It is described by a file in /var/lib/sim-containers/RUNTIME, which outlives a reboot.

    containers.py client RUNTIME WORD...    the command line of a runtime
    containers.py daemon                    dockerd
    containers.py inside RUNTIME ID         the process in a container

Commands, also with ``container`` before them: run and create [-d] [--name N] [-l LABEL[=VALUE]] [--rm] [-e A=B]
[--gpus all|NUMBER|device=A,B] [--restart POLICY] IMAGE, start, stop [-t SECONDS], kill, pause, unpause, rm [-f], ps
[-aq] [--no-trunc] [--filter KEY=VALUE] [--format TEXT], inspect [--format TEXT], version. A container with
-e SIM_STOP=ignore ends when it is killed and no sooner.
"""

from __future__ import annotations

import getopt
import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
import typing as t

import simulated
import stand_in
import trees

STORE = "/var/lib/sim-containers"
SOCKET = "/run/docker.sock"
STOP_SECONDS = 10.0


class RuntimeFailure(Exception):
    """What the runtime says on stderr, what it prints nevertheless, and its exit status."""

    def __init__(self, text: str, status: int = 1, out: str = "") -> None:
        super().__init__(text)
        self.status = status
        self.out = out


class Kind(t.NamedTuple):
    """How a runtime names control groups, what it says before errors, which unit has to run for it."""

    scope: str
    slice: str
    unit: str
    error: str


KINDS = {
    "docker": Kind("docker", "system.slice", "", "Error response from daemon: "),
    "podman": Kind("libpod", "machine.slice", "", "Error: "),
    "nerdctl": Kind("nerdctl", "system.slice", "containerd.service", "FATA[0000] "),
}

Container = dict[str, t.Any]


# ---- containers ----------------------------------------------------------------------------------------------------


class Runtime:
    def __init__(self, name: str) -> None:
        self.name = name
        self.kind = KINDS[name]
        self.folder = f"{STORE}/{name}"

    def all(self) -> list[Container]:
        """Newest first, as ``ps`` shows them."""
        if not os.path.isdir(self.folder):
            return []
        found = []
        for name in os.listdir(self.folder):
            if name.endswith(".json"):
                with open(f"{self.folder}/{name}", encoding="utf-8") as file:
                    found.append(json.load(file))
        return sorted(found, key=lambda each: -float(each["created"]))

    def find(self, word: str) -> Container:
        for container in self.all():
            if container["name"] == word or (container["id"].startswith(word) and len(word) >= 4):
                return container
        raise RuntimeFailure(f"{self.kind.error}No such container: {word}")

    def keep(self, container: Container) -> None:
        os.makedirs(self.folder, exist_ok=True)
        path = f"{self.folder}/{container['id']}.json"
        with open(f"{path}.new", "w", encoding="utf-8") as file:
            json.dump(container, file)
        os.rename(f"{path}.new", path)

    def forget(self, container: Container) -> None:
        os.unlink(f"{self.folder}/{container['id']}.json")

    def runs(self, container: Container) -> bool:
        return bool(container["pid"]) and started(container["pid"]) == container["started"]

    def start(self, container: Container) -> None:
        if self.runs(container):
            return
        reading, writing = os.pipe()
        words = ["systemd-run", "--scope", "--quiet", "--collect"]
        words += [f"--unit={self.kind.scope}-{container['id']}", f"--slice={self.kind.slice}", "--"]
        words += [sys.executable, "-ESs", __file__, "inside", self.name, container["id"], str(writing)]
        process = subprocess.Popen(
            words,
            pass_fds=(writing,),
            start_new_session=True,
            # What it would keep of ours, a login for one, would not end as long as it runs.
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(writing)
        with os.fdopen(reading) as pipe:
            said = pipe.read()
        if said != "ready":
            raise RuntimeFailure(f"{self.kind.error}failed to create task for container: {said or 'it ended'}")
        facts = {"pid": process.pid, "started": started(process.pid), "wanted": True, "paused": False, "code": 0}
        self.keep({**container, **facts})
        simulated.note(self.name, f"start {container['id'][:12]} {container['name']}")

    def stop(self, container: Container, seconds: float, by_user: bool = True) -> None:
        """``by_user``: it is not to come back by itself."""
        code = container["code"]
        if self.runs(container):
            os.kill(container["pid"], signal.SIGTERM)
            deadline = time.monotonic() + seconds
            while self.runs(container) and time.monotonic() < deadline:
                time.sleep(0.02)
            code = 137 if self.runs(container) else 0
            self.kill(container)
        if container["rm"]:
            self.forget(container)
        else:
            self.keep({**container, "pid": 0, "code": code, "wanted": container["wanted"] and not by_user})
        simulated.note(self.name, f"stop {container['id'][:12]} {container['name']}")

    def kill(self, container: Container) -> None:
        while self.runs(container):
            os.kill(container["pid"], signal.SIGKILL)
            time.sleep(0.02)


def started(pid: int) -> int:
    """When a process started, so that its number is not taken for it later; 0 when it has ended."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in "ZX" else int(fields[19])


# ---- in a container ------------------------------------------------------------------------------------------------


def inside(runtime: Runtime, identity: str, writing: int) -> int:
    container = runtime.find(identity)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        keep = take_devices(container)
    except (OSError, simulated.SimulationError) as error:
        os.write(writing, str(error).encode())
        return 1
    os.write(writing, b"ready")
    os.close(writing)
    while signal.sigwait({signal.SIGTERM}) and container["environment"].get("SIM_STOP") == "ignore":
        pass
    for descriptor in keep:
        os.close(descriptor)
    return 0


def take_devices(container: Container) -> list[int]:
    """Open and hold what the container was given, which has to be there."""
    if not container["devices"]:
        return []
    simulated.rename_process("python")
    node = simulated.node() if simulated.driver_is_loaded() else None
    if node is None:
        raise simulated.SimulationError("nvidia-container-cli: initialization error: nvml error: driver not loaded")
    keep = [os.open("/dev/nvidiactl", os.O_RDWR | os.O_CLOEXEC)]
    for gpu, gi, ci in places(node, container["devices"]):
        keep.append(os.open(f"/dev/nvidia{gpu['minor']}", os.O_RDWR | os.O_CLOEXEC))
        place = f"gpu={gpu['index']}"
        if gi is not None and ci is not None:
            keep += stand_in.open_capabilities(gpu["minor"], gi["id"], ci["id"])
            place += f" gi={gi['id']} ci={ci['id']}"
        simulated.occupy(f"add {place} pid={os.getpid()} kind=compute name=python mem=100")
    return keep


def places(node: simulated.Node, devices: t.Sequence[str]) -> list[tuple[t.Any, t.Any, t.Any]]:
    """GPU, GI and CI (None for a whole GPU) that each device means: an index, GPU:INDEX of a MIG device, or a UUID."""
    known = {}
    for gpu in trees.gpus_of(node):
        migs = [(gpu, gi, ci) for gi in gpu["instances"] for ci in gi["compute"]]
        for mig in migs:
            known[mig[2]["uuid"]] = [mig]
            known[f"{gpu['index']}:{mig[2]['mig_index']}"] = [mig]
        # A GPU in MIG mode means its MIG devices.
        known[str(gpu["index"])] = known[gpu["uuid"]] = migs if gpu["mode_current"] else [(gpu, None, None)]
    found = []
    for device in [str(gpu["index"]) for gpu in node["gpus"]] if devices == ["all"] else devices:
        if device not in known:
            raise simulated.SimulationError(f"nvidia-container-cli: device error: {device}: unknown device: unknown")
        found += known[device]
    return found


# ---- the command line ----------------------------------------------------------------------------------------------


def execute(runtime: Runtime, words: t.Sequence[str]) -> str:
    """What a command prints."""
    words = words[1:] if words[:1] == ["container"] else words
    if not words or words[0] not in COMMANDS:
        raise RuntimeFailure(f"{runtime.name}: this stand-in does not know {' '.join(words[:1]) or 'an empty command'}")
    return COMMANDS[words[0]](runtime, words[1:])


def parse(words: t.Sequence[str], short: str, long: t.Sequence[str]) -> tuple[list[tuple[str, str]], list[str]]:
    try:
        return getopt.getopt(list(words), short, list(long))
    except getopt.GetoptError as error:
        raise RuntimeFailure(str(error), 125) from error


def create(runtime: Runtime, words: t.Sequence[str]) -> str:
    options, rest = parse(words, "de:l:", ("detach", "env=", "label=", "name=", "gpus=", "device=", "restart=", "rm"))
    if not rest:
        raise RuntimeFailure(f'"{runtime.name} create" requires at least 1 argument.')
    identity = secrets.token_hex(32)
    container: Container = {
        "id": identity,
        "name": f"quiet_{identity[:6]}",
        "image": rest[0],
        "labels": {},
        "environment": {},
        "devices": [],
        "restart": "no",
        "created": time.time(),
        "pid": 0,
        "started": 0,
        "wanted": False,
        "paused": False,
        "code": 0,
        "rm": False,
    }
    for option, value in options:
        if option in ("-l", "--label"):
            key, _equals, text = value.partition("=")
            container["labels"][key] = text
        elif option in ("-e", "--env"):
            key, _equals, text = value.partition("=")
            container["environment"][key] = text
        elif option in ("--name", "--restart"):
            container[option[2:]] = value
        elif option in ("--gpus", "--device"):
            container["devices"] += devices_of(value)
        elif option == "--rm":
            container["rm"] = True
            if runtime.name == "nerdctl":
                container["labels"]["nerdctl/auto-remove"] = "true"
    if any(each["name"] == container["name"] for each in runtime.all()):
        raise RuntimeFailure(f"{runtime.kind.error}Conflict. The container name {container['name']} is in use.", 125)
    runtime.keep(container)
    return identity


def devices_of(value: str) -> list[str]:
    """``all``, a number of GPUs, ``device=0,1:2``, or as a CDI device ``nvidia.com/gpu=0``."""
    if re.fullmatch(r"\d+", value):
        return [str(index) for index in range(int(value))]
    return value.strip('"').removeprefix("nvidia.com/gpu=").removeprefix("device=").split(",")


def run(runtime: Runtime, words: t.Sequence[str]) -> str:
    identity = create(runtime, words)
    try:
        runtime.start(runtime.find(identity))
    except RuntimeFailure as failure:
        raise RuntimeFailure(str(failure), 125) from failure
    return identity


def start(runtime: Runtime, words: t.Sequence[str]) -> str:
    _options, names = parse(words, "", ())
    for name in names:
        runtime.start(runtime.find(name))
    return "\n".join(names)


def stop(runtime: Runtime, words: t.Sequence[str]) -> str:
    options, names = parse(words, "t:", ("time=", "timeout="))
    seconds = STOP_SECONDS
    for _option, value in options:
        seconds = float(value)
    for name in names:
        runtime.stop(runtime.find(name), seconds)
    return "\n".join(names)


def kill(runtime: Runtime, words: t.Sequence[str]) -> str:
    _options, names = parse(words, "s:", ("signal=",))
    for name in names:
        runtime.stop(runtime.find(name), 0)
    return "\n".join(names)


def remove(runtime: Runtime, words: t.Sequence[str]) -> str:
    options, names = parse(words, "fv", ("force", "volumes"))
    for name in names:
        container = runtime.find(name)
        if runtime.runs(container):
            if not any(option in ("-f", "--force") for option, _value in options):
                raise RuntimeFailure(f"{runtime.kind.error}cannot remove container {name}: container is running")
            runtime.stop({**container, "rm": False}, 0)
        runtime.forget(container)
    return "\n".join(names)


def pause(runtime: Runtime, words: t.Sequence[str]) -> str:
    return freeze(runtime, words, True)


def unpause(runtime: Runtime, words: t.Sequence[str]) -> str:
    return freeze(runtime, words, False)


def freeze(runtime: Runtime, names: t.Sequence[str], paused: bool) -> str:
    for name in names:
        container = runtime.find(name)
        if not runtime.runs(container):
            raise RuntimeFailure(f"{runtime.kind.error}Container {name} is not running")
        os.kill(container["pid"], signal.SIGSTOP if paused else signal.SIGCONT)
        runtime.keep({**container, "paused": paused})
    return "\n".join(names)


def listing(runtime: Runtime, words: t.Sequence[str]) -> str:
    options, _rest = parse(words, "aqf:", ("all", "quiet", "no-trunc", "filter=", "format="))
    names = [option for option, _value in options]
    filters = [value.partition("=")[::2] for option, value in options if option in ("-f", "--filter")]
    shown = [
        each
        for each in runtime.all()
        if ("-a" in names or "--all" in names or runtime.runs(each) or any(key == "status" for key, _value in filters))
        and all(passes(runtime, each, key, value) for key, value in filters)
    ]
    template = next((value for option, value in options if option == "--format"), "")
    if "-q" in names or "--quiet" in names:
        template = "{{.ID}}"
    if not template:
        template = "{{.ID}}\t{{.Image}}\t{{.State}}\t{{.Names}}"
    return "\n".join(fill(runtime, each, template, whole="--no-trunc" in names) for each in shown)


def passes(runtime: Runtime, container: Container, key: str, value: str) -> bool:
    if key == "label":
        label, equals, text = value.partition("=")
        return label in container["labels"] and (not equals or container["labels"][label] == text)
    if key == "name":
        return value in container["name"]
    if key == "status":
        return value == state(runtime, container)
    if key == "id":
        return str(container["id"]).startswith(value)
    raise RuntimeFailure(f"{runtime.kind.error}invalid filter '{key}'")


def state(runtime: Runtime, container: Container) -> str:
    if runtime.runs(container):
        return "paused" if container["paused"] else "running"
    return "exited" if container["started"] else "created"


def fill(runtime: Runtime, container: Container, template: str, whole: bool) -> str:
    values = {
        "ID": container["id"] if whole else container["id"][:12],
        "Id": container["id"],
        "Names": container["name"],
        "Name": f"/{container['name']}" if runtime.name == "docker" else container["name"],
        "Image": container["image"],
        "State": state(runtime, container),
        "State.Status": state(runtime, container),
        "State.Running": "true" if runtime.runs(container) else "false",
        "State.Pid": str(container["pid"] if runtime.runs(container) else 0),
    }
    text = re.sub(r"\{\{\s*\.([A-Za-z.]+)\s*\}\}", lambda match: values.get(match[1], "<no value>"), template)
    return re.sub(r'\{\{\s*\.Label "([^"]+)"\s*\}\}', lambda match: container["labels"].get(match[1], ""), text)


def inspect(runtime: Runtime, words: t.Sequence[str]) -> str:
    options, names = parse(words, "f:", ("format=", "type="))
    template = next((value for option, value in options if option in ("-f", "--format")), "")
    found, unknown = [], []
    for name in names:
        try:
            found.append(runtime.find(name))
        except RuntimeFailure as failure:
            unknown.append(str(failure))
    if template:
        out = "\n".join(fill(runtime, each, template, whole=True) for each in found)
    else:
        out = json.dumps([details(runtime, each) for each in found], indent=4)
    if unknown:
        raise RuntimeFailure("\n".join(unknown), out=out)
    return out


def details(runtime: Runtime, container: Container) -> dict[str, t.Any]:
    status = state(runtime, container)
    return {
        "Id": container["id"],
        "Name": f"/{container['name']}" if runtime.name == "docker" else container["name"],
        "State": {
            "Status": status,
            "Running": runtime.runs(container),
            "Paused": status == "paused",
            "Restarting": False,
            "Pid": container["pid"] if runtime.runs(container) else 0,
            "ExitCode": container["code"],
        },
        "RestartCount": 0,
        "Config": {"Image": container["image"], "Labels": container["labels"]},
        "HostConfig": {
            "AutoRemove": container["rm"] and runtime.name != "nerdctl",
            "RestartPolicy": {"Name": container["restart"]},
        },
    }


def version(runtime: Runtime, words: t.Sequence[str]) -> str:
    return f"{runtime.name} stand-in"


COMMANDS: dict[str, t.Callable[[Runtime, t.Sequence[str]], str]] = {
    "create": create,
    "inspect": inspect,
    "kill": kill,
    "pause": pause,
    "ps": listing,
    "rm": remove,
    "run": run,
    "start": start,
    "stop": stop,
    "unpause": unpause,
    "version": version,
}


def answer(runtime: Runtime, words: t.Sequence[str]) -> dict[str, t.Any]:
    try:
        out = execute(runtime, words)
    except RuntimeFailure as failure:
        out = f"{failure.out}\n" if failure.out else ""
        return {"status": failure.status, "out": out, "err": f"{failure}\n"}
    return {"status": 0, "out": f"{out}\n" if out else "", "err": ""}


def client(name: str, words: t.Sequence[str]) -> int:
    runtime = Runtime(name)
    if name == "docker":
        said = ask_daemon(words)
    elif runtime.kind.unit and subprocess.call(["systemctl", "--quiet", "is-active", runtime.kind.unit]):
        said = {"status": 1, "out": "", "err": f"{runtime.kind.error}cannot access containerd socket\n"}
    else:
        said = answer(runtime, words)
    sys.stdout.write(said["out"])
    sys.stderr.write(said["err"])
    return int(said["status"])


def ask_daemon(words: t.Sequence[str]) -> dict[str, t.Any]:
    """Through its socket: where systemd listens on it, that starts the daemon."""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(SOCKET)
            connection.sendall(json.dumps(list(words)).encode() + b"\n")
            with connection.makefile() as file:
                return t.cast("dict[str, t.Any]", json.loads(file.read()))
    except (OSError, ValueError):
        simulated.note("docker", "called while it does not run")
        text = f"Cannot connect to the Docker daemon at unix://{SOCKET}. Is the docker daemon running?\n"
        return {"status": 1, "out": "", "err": text}


# ---- dockerd -------------------------------------------------------------------------------------------------------


def daemon() -> int:
    unit, runtime = "docker", Runtime("docker")
    if not stand_in.may_start(unit):
        return 1
    simulated.rename_process("dockerd")
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGHUP})
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # containers end without anybody waiting for them
    server = listen()
    restart_containers(runtime)
    threading.Thread(target=serve, args=(server, runtime), daemon=True).start()
    tell_systemd("READY=1")
    simulated.note(unit, "start")
    stand_in.wait_for_the_end(unit)
    for container in runtime.all():
        if runtime.runs(container):
            runtime.stop(container, STOP_SECONDS, by_user=False)
    simulated.note(unit, "end")
    return 0


def listen() -> socket.socket:
    if os.environ.get("LISTEN_PID") == str(os.getpid()):
        return socket.socket(fileno=3)
    if os.path.exists(SOCKET):
        os.unlink(SOCKET)
    server = socket.socket(socket.AF_UNIX)
    server.bind(SOCKET)
    server.listen()
    return server


def restart_containers(runtime: Runtime) -> None:
    """Those that are to run whenever the daemon does; one that cannot is left as it is."""
    for container in reversed(runtime.all()):
        policy = container["restart"].partition(":")[0]
        if policy == "always" or (policy in ("unless-stopped", "on-failure") and container["wanted"]):
            try:
                runtime.start(container)
            except RuntimeFailure as failure:
                print(failure, file=sys.stderr)


def serve(server: socket.socket, runtime: Runtime) -> None:
    while True:
        connection, _address = server.accept()
        threading.Thread(target=reply, args=(connection, runtime), daemon=True).start()


def reply(connection: socket.socket, runtime: Runtime) -> None:
    with connection, connection.makefile("rw") as file:
        words = json.loads(file.readline())
        if simulated.behaviour("docker").get("answer") == "hang":
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            time.sleep(3600)
        json.dump(answer(runtime, words), file)


def tell_systemd(text: str) -> None:
    place = os.environ.get("NOTIFY_SOCKET", "")
    if place:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
            connection.sendto(text.encode(), place.replace("@", "\0", 1) if place[0] == "@" else place)


def main(words: t.Sequence[str]) -> int:
    if words[:1] == ["daemon"]:
        return daemon()
    if words[:1] == ["inside"]:
        return inside(Runtime(words[1]), words[2], int(words[3]))
    return client(words[1], words[2:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
