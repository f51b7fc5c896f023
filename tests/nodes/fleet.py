# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Fleets of nodes: boot them, talk to them, cut their power, and clear everything away."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import typing as t
from pathlib import Path

from . import build, cgroups, supervisor
from .places import CHECKOUT, CLUSTERS, FLEETS, HERE, KEY, ROOT, SOCKETS

if t.TYPE_CHECKING:
    from nvmlsim import Simulator

NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,22}[a-z0-9])?")
BOOT_SECONDS = 120.0
NETWORKS = Path("/run/netns")
INOTIFY_LIMIT = Path("/proc/sys/fs/inotify/max_user_instances")
ROOM_SECONDS = 300.0
INOTIFY_INSTANCES = 11  # ten, seen on a node that somebody is logged in to, and one to spare


class NodeError(Exception):
    """What went wrong with a node, in one sentence."""


@dataclasses.dataclass(frozen=True)
class Computer:
    """What a node is to be.

    ``gpus`` and ``options`` are those of ``Simulator.create``; no ``gpus``: none. ``lower`` are trees that lie over the
    one that all nodes share, topmost first.
    """

    name: str
    gpus: str = ""
    options: dict[str, t.Any] = dataclasses.field(default_factory=dict)
    lower: t.Sequence[str] = ()

    @classmethod
    def parse(cls, text: str) -> Computer:
        """From ``a=8xa100-sxm4-40gb,driver=580,virtualization=passthrough``."""
        name, _equals, description = text.partition("=")
        words = [word for word in description.split(",") if word]
        gpus = ",".join(word for word in words if "=" not in word)
        options = dict(word.split("=", 1) for word in words if "=" in word)
        refuse_unknown(options)
        return cls(name, gpus, {key: OPTIONS[key](value) for key, value in options.items()})

    @classmethod
    def from_platform(cls, platform: dict[str, t.Any]) -> Computer:
        """From a platform of molecule.yml, whose keys are ours beside those that Molecule knows."""
        options = {key: value for key, value in platform.items() if key not in ("name", "groups", "gpus", "lower")}
        refuse_unknown(options)
        return cls(platform["name"], platform.get("gpus", ""), options, platform.get("lower", ()))

    def layers(self) -> list[Path]:
        """The trees that it boots, topmost first: with the driver, unless it has neither GPUs nor a driver."""
        lower = [*map(Path, self.lower)]
        if not self.gpus and "driver" not in self.options:
            return [*lower, build.base_tree()]
        from nvmlsim import description

        branch = description.branch_of(description.full_version(self.options.get("driver", description.DEFAULT_DRIVER)))
        return [*lower, build.driver_layer(branch), build.base_tree()]


def refuse_unknown(options: t.Iterable[str]) -> None:
    unknown = sorted(set(options) - set(OPTIONS))
    if unknown:
        raise NodeError(f"{unknown[0]!r} is no option of a node. There are: {', '.join(OPTIONS)}.")


def _switch(text: str) -> bool:
    if text not in ("on", "off"):
        raise NodeError(f"{text!r} is neither 'on' nor 'off'.")
    return text == "on"


# The options of Simulator.create that can be said in text.
OPTIONS: dict[str, t.Callable[[str], t.Any]] = {
    **dict.fromkeys(("driver", "chips", "virtualization", "privileged", "seed"), str),
    **dict.fromkeys(("persistence", "fabric_manager", "resettable"), _switch),
    "assume": lambda text: dict([text.split(":", 1)]),
}


class Node:
    """One computer. All that is known about it lies in its folder, so that any process can go on with it."""

    def __init__(self, fleet: str, name: str) -> None:
        self.fleet = fleet
        self.name = name
        self.folder = FLEETS / fleet / name
        self.id = f"{CHECKOUT}-{fleet}.{name}"  # of its control group and its network namespace

    @property
    def record(self) -> dict[str, t.Any]:
        """What the supervisor goes by."""
        record: dict[str, t.Any] = json.loads((self.folder / "node.json").read_text())
        return record

    @property
    def sim(self) -> Path:
        """The folder that the node sees as /run/sim-host."""
        return self.folder / "sim"

    @property
    def simulator(self) -> Simulator:
        """The node's GPUs, looked at and disturbed from outside."""
        from nvmlsim import Simulator

        return Simulator(self.sim / "gpus")

    # ---- power ---------------------------------------------------------------------------------------------------

    def make(self, computer: Computer, layers: t.Sequence[Path], nspawn: t.Sequence[str]) -> None:
        """Its disk, its GPUs and its network. ``layers`` lie over the tree that all nodes share, topmost first."""
        for name in ("upper/etc/ssh", "work", "merged", "sim/behaviour", "sim/log"):
            (self.folder / name).mkdir(parents=True)
        identity = hashlib.md5(f"{CHECKOUT}/{self.fleet}/{self.name}".encode()).hexdigest()
        files = {
            "etc/hostname": f"{self.name}\n",
            "etc/machine-id": f"{identity}\n",
            "etc/hosts": f"127.0.0.1 localhost\n127.0.1.1 {self.name}\n",
            "etc/ssh/authorized_keys": KEY.with_name("key.pub").read_text(),
        }
        for name, content in files.items():
            (self.folder / "upper" / name).write_text(content)
        if computer.gpus:
            from nvmlsim import Simulator
            from nvmlsim.errors import SimulatorError

            try:
                Simulator.create(self.sim / "gpus", computer.gpus, **computer.options)
            except SimulatorError as error:
                raise NodeError(f"{self.name}: {error}") from None
        # The driver loads only where it finds a GPU.
        (self.sim / "driver.json").write_text(json.dumps({"load": bool(computer.gpus), "delay": 0}))
        record = {
            "name": self.name,
            "id": self.id,
            "layers": [str(layer.absolute()) for layer in layers],
            "nspawn": list(nspawn),
            "computer": dataclasses.asdict(computer),
        }
        (self.folder / "node.json").write_text(json.dumps(record, indent=1))

    def start(self, wait: bool = True) -> None:
        """Switches it on."""
        if self.is_on():
            return
        cgroups.end(self.id)  # what is left of one whose supervisor was killed
        if not (NETWORKS / self.id).exists():
            build.run("ip", "netns", "add", self.id)
            build.run("ip", "-n", self.id, "link", "set", "lo", "up")
        (self.folder / "process.json").unlink(missing_ok=True)
        with open(self.folder / "console.log", "ab") as console:
            # setsid --fork: neither Ctrl-C nor the end of whoever starts a node reaches it.
            words = ["setsid", "--fork", *supervisor.COMMAND, str(self.folder)]
            options: dict[str, t.Any] = {"stdin": subprocess.DEVNULL, "stdout": console, "stderr": console}
            subprocess.run(words, cwd=ROOT, check=True, **options)
        self._wait_until(self.is_on, 20, "its supervisor did not start")
        if wait:
            self.wait()

    def stop(self) -> None:
        """Switches it off in an orderly way."""
        process = self._process()
        if process and self.is_on():
            children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
            for child in children:
                os.kill(int(child), signal.SIGTERM)
            self._wait_until(lambda: not self.is_on(), 90, "it did not stop")
        self.kill()

    def kill(self) -> None:
        """Cuts its power."""
        process = self._process()
        if process and self.is_on():
            os.kill(process, signal.SIGKILL)
        cgroups.end(self.id)

    def reboot(self) -> None:
        """Reboots it in an orderly way, and waits until it is up again."""
        before = self.boot_id()
        self.run("systemctl reboot", check=False)
        self._wait_until(lambda: self._boot_id_if_up() not in ("", before), BOOT_SECONDS, "it did not come back")
        self.wait()

    def is_on(self) -> bool:
        return self._process() != 0

    def _process(self) -> int:
        """The pid of its supervisor; 0 when that is gone, even if its pid is somebody else's now."""
        try:
            recorded = json.loads((self.folder / "process.json").read_text())
        except FileNotFoundError:
            return 0
        alive = supervisor.start_time(recorded["pid"]) == recorded["started"]
        return recorded["pid"] if alive else 0

    def _wait_until(self, condition: t.Callable[[], bool], seconds: float, otherwise: str) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                raise NodeError(f"{self.name}: {otherwise} within {seconds:.0f} s.{self._console()}")
            time.sleep(0.02)

    # ---- talking to it -------------------------------------------------------------------------------------------

    def wait_for_ssh(self, seconds: float = BOOT_SECONDS) -> None:
        """Until sshd answers."""
        with subprocess.Popen([*relay(self.id), "--wait", str(seconds)]) as waiting:
            while waiting.poll() is None:
                if not self.is_on():
                    waiting.kill()
                    raise NodeError(f"{self.name} went off instead of booting.{self._console()}")
                try:
                    waiting.wait(0.2)
                except subprocess.TimeoutExpired:
                    continue
        if waiting.returncode:
            raise NodeError(f"sshd on {self.name} did not answer within {seconds:.0f} s.{self._console()}")

    def wait(self, seconds: float = BOOT_SECONDS) -> str:
        """Until it has booted; ``running``, or ``degraded`` when a unit has failed."""
        deadline = time.monotonic() + seconds
        self.wait_for_ssh(seconds)
        left = max(1.0, deadline - time.monotonic())
        try:
            state = self.run("systemctl is-system-running --wait", check=False, timeout=left).stdout.strip()
        except subprocess.TimeoutExpired:
            state = ""
        if state not in ("running", "degraded"):
            jobs = self.run("systemctl list-jobs --no-legend", check=False).stdout.strip()
            raise NodeError(f"{self.name} had not booted after {seconds:.0f} s; still to do: {jobs or 'nothing'}.")
        return state

    def run(
        self, command: str | t.Sequence[str], *, check: bool = True, timeout: float = 60.0, text: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command as root, over ssh: a line for the shell, or words that are taken as they are."""
        line = command if isinstance(command, str) else shlex.join(command)
        words = ["ssh", *ssh_options(self.id), f"root@{self.name}", line]
        stdin: dict[str, t.Any] = {"stdin": subprocess.DEVNULL} if text is None else {"input": text}
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=timeout, **stdin)
        if check and done.returncode:
            said = (done.stderr or done.stdout).strip()
            raise NodeError(f"'{line}' on {self.name} ended with {done.returncode}: {said}")
        return done

    def boot_id(self) -> str:
        return self.run("cat /proc/sys/kernel/random/boot_id").stdout.strip()

    def _boot_id_if_up(self) -> str:
        return self.run("cat /proc/sys/kernel/random/boot_id", check=False).stdout.strip()

    def boots(self) -> int:
        """How often it has booted since it was made."""
        log = self.folder / "boots"
        return log.read_text().count(" boot\n") if log.exists() else 0

    def _console(self) -> str:
        log = self.folder / "console.log"
        said = log.read_text(errors="replace").splitlines()[-10:] if log.exists() else []
        return "".join(f"\n    {line}" for line in said)

    # ---- the end -------------------------------------------------------------------------------------------------

    def forget(self) -> None:
        """Cuts its power and removes all that there is of it."""
        self.kill()
        if (NETWORKS / self.id).exists():
            build.run("ip", "netns", "delete", self.id)
        if self.folder.exists():
            shutil.rmtree(self.folder)


class Fleet:
    """Nodes that belong together, under a name of their own: fleets do not know of each other."""

    def __init__(self, name: str) -> None:
        if not NAME.fullmatch(name):
            raise NodeError(f"{name!r} is no name of a fleet: lower case letters, digits and inner dashes, at most 24.")
        self.name = name
        self.folder = FLEETS / name

    def up(
        self,
        computers: t.Sequence[Computer | str],
        *,
        lower: t.Sequence[Path | str] = (),
        nspawn: t.Sequence[str] = (),
        wait: str = "boot",
    ) -> list[Node]:
        """Makes and boots nodes, all at once. What an earlier run left of this fleet goes first.

        ``lower`` are trees that lie over the one that all nodes share, topmost first. ``wait`` says for what:
        ``boot``, ``ssh``, or ``nothing``.
        """
        wanted = [Computer.parse(each) if isinstance(each, str) else each for each in computers]
        for computer in wanted:
            if not NAME.fullmatch(computer.name) or len(computer.name) > 16:
                raise NodeError(f"{computer.name!r} is no name of a node: like that of a fleet, at most 16.")
        build.build()
        self.down()
        nodes = [Node(self.name, computer.name) for computer in wanted]
        try:
            for node, computer in zip(nodes, wanted):
                node.make(computer, [*map(Path, lower), *computer.layers()], nspawn)
        except NodeError:
            self.down()  # a fleet that was never on is not one that is off
            raise
        with room_for(len(nodes)):
            for node in nodes:
                node.start(wait=False)
        for node in nodes:
            if wait == "boot":
                node.wait()
            elif wait == "ssh":
                node.wait_for_ssh()
        return nodes

    def down(self) -> None:
        """Cuts the power of all nodes and removes everything, also what a killed run left."""
        for name in sorted(self._remains()):
            Node(self.name, name).forget()
        for folder in (self.folder, CLUSTERS / self.name, SOCKETS / f"{CHECKOUT}-{self.name}"):
            if folder.exists():
                shutil.rmtree(folder)

    def _remains(self) -> set[str]:
        """The names of all nodes of which there is something: a folder, a control group, a network namespace."""
        ours = f"{CHECKOUT}-{self.name}."
        folders = {folder.name for folder in self.folder.iterdir()} if self.folder.is_dir() else set()
        networks = {path.name for path in NETWORKS.glob(f"{ours}*")}
        return folders | {name[len(ours) :] for name in cgroups.names(ours) | networks}

    def nodes(self) -> list[Node]:
        if not self.folder.is_dir():
            return []
        return [Node(self.name, folder.name) for folder in sorted(self.folder.iterdir()) if folder.is_dir()]

    def node(self, name: str) -> Node:
        found = Node(self.name, name)
        if not found.folder.is_dir():
            raise NodeError(f"There is no node {name} in the fleet {self.name}.")
        return found

    def simulator(self, name: str) -> Simulator:
        return self.node(name).simulator

    def inventory(self) -> dict[str, t.Any]:
        """This fleet as what Ansible takes from an inventory script. There is no ansible_host, on purpose."""
        sockets = SOCKETS / f"{CHECKOUT}-{self.name}"
        sockets.mkdir(parents=True, exist_ok=True)
        hosts = {
            node.name: {
                "node_fleet": self.name,
                "node_folder": str(node.folder),
                "node_sim": str(node.sim),
                "node_state": str(node.sim / "gpus"),
            }
            for node in self.nodes()
        }
        variables = {
            "ansible_user": "root",
            "ansible_python_interpreter": "/usr/bin/python3",
            "ansible_ssh_common_args": shlex.join(ssh_options(f"{CHECKOUT}-{self.name}.%h")),
            # Of its own: a node of the same name in another fleet is another node, to ssh's shared connections too.
            "ansible_control_path_dir": str(sockets),
            "ansible_pipelining": True,
            "node_cluster": str(CLUSTERS / self.name),
        }
        return {"_meta": {"hostvars": hosts}, "nodes": {"hosts": list(hosts), "vars": variables}}


@contextlib.contextmanager
def room_for(nodes: int, seconds: float = ROOM_SECONDS) -> t.Iterator[None]:
    """Waits until this machine has room for more nodes, and lets nobody else take it until they are switched on.

    Without room they would hang in the middle of their boot, and say nothing: systemd has to watch files.
    """
    deadline = time.monotonic() + seconds
    SOCKETS.mkdir(parents=True, exist_ok=True)
    with open(SOCKETS / "lock", "w") as lock:
        while True:
            fcntl.flock(lock, fcntl.LOCK_EX)
            most = most_nodes()
            others = len(cgroups.names("gf"))  # of all checkouts
            if nodes <= most - others:
                break
            if nodes > most or time.monotonic() > deadline:
                raise NodeError(
                    f"There is no room for {nodes} more nodes: this machine bears {most}, and {others} are on. Remove"
                    " other fleets (python -m tests.nodes status), or raise a limit: sysctl"
                    " fs.inotify.max_user_instances=1024."
                )
            fcntl.flock(lock, fcntl.LOCK_UN)  # whoever waits here must not keep those from going on that it waits for
            time.sleep(0.3)
        yield


def most_nodes() -> int:
    """How many nodes can be on at once, given what else watches files as root."""
    watching = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if "/gf" not in (process / "cgroup").read_text():
                watching += sum(os.readlink(file) == "anon_inode:inotify" for file in (process / "fd").iterdir())
        except OSError:
            continue  # the process or the file is gone
    return (int(INOTIFY_LIMIT.read_text()) - watching) // INOTIFY_INSTANCES


def fleets() -> list[Fleet]:
    """All fleets of this checkout, switched on or not."""
    if not FLEETS.is_dir():
        return []
    return [Fleet(folder.name) for folder in sorted(FLEETS.iterdir()) if folder.is_dir()]


def all_nodes() -> list[Node]:
    return [node for fleet in fleets() for node in fleet.nodes() if (node.folder / "node.json").exists()]


def relay(netns: str) -> list[str]:
    """The command that connects to the sshd in a network namespace."""
    return ["nsenter", f"--net={NETWORKS / netns}", sys.executable, "-IS", str(HERE / "relay.py")]


def ssh_options(netns: str) -> list[str]:
    """Options with which ssh reaches a node: there is no address, the way leads through its network namespace."""
    options = {
        "BatchMode": "yes",
        "IdentitiesOnly": "yes",
        "IdentityFile": KEY,
        "LogLevel": "ERROR",
        "ProxyCommand": shlex.join(relay(netns)),
        "ProxyUseFdpass": "yes",
        "StrictHostKeyChecking": "no",
        "UserKnownHostsFile": "/dev/null",
    }
    return ["-F", "/dev/null", *(word for key, value in options.items() for word in ("-o", f"{key}={value}"))]
