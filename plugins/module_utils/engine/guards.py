# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What speaks against starting a change now, each in one sentence with the next action. Nothing is touched.

This file is private to the collection gpufleet.mig and may change at any time.

A guard has three answers. It finds something, it finds nothing, or it cannot tell; the last is a sentence of its own
and keeps nothing from being changed, since a file that cannot be read says nothing about the GPUs. Only a driver that
does not answer does: then nobody knows what would be changed.

Programs are known by their names as the kernel keeps them, which are 15 characters long.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import stat
import typing as t

from . import commands, configs, driver, holders, reset
from .model import Gpu, MigError, Node, Problem, Process, WishError
from .owners import owner
from .profiles import counted, printable, quoted

if t.TYPE_CHECKING:
    from .bounded import Watch
    from .driver import MemoryHealth
    from .reading import Opener

# What can be passed over. That NVML does not answer cannot: a finding of the name "nvml" always stops.
NAMES = ("owner", "boot", "memory", "driver", "persistence", "drm", "vgpu", "mps", "fabric", "deadline")
KINDS = ("instances", "mode", "reset")

_MIG_MANAGER_UNIT = "nvidia-mig-manager.service"
_MIG_MANAGER_LABEL = "nvidia.com/gpu.deploy.mig-manager"
_FABRIC_MANAGER_UNIT = "nvidia-fabricmanager.service"
_UP = ("active", "activating", "reloading")

# How long systemd has for an answer, and how much longer until its asker is ended from outside.
_ANSWER_SECONDS = 20.0
_SPARE_SECONDS = 10.0
_LONGEST_QUOTE = 300
_LARGEST_FILE = 1 << 23


class Finding(t.NamedTuple):
    """What a guard found. ``advice`` is worth knowing and stops nothing.

    ``units`` are the system's units without which it would be gone; for another owner those that can be switched off
    for good, which is never the unit that some program happens to run in. ``labels`` are those of the node in
    Kubernetes by which another owner is deployed there.
    """

    name: str
    sentence: str
    units: tuple[str, ...] = ()
    advice: bool = False
    labels: tuple[str, ...] = ()


class Report(t.NamedTuple):
    """What guards found, and in sentences what they could not tell."""

    findings: tuple[Finding, ...] = ()
    unknown: tuple[str, ...] = ()

    def __add__(self, other: Report) -> Report:  # type: ignore[override]  # two reports are one, not a longer tuple
        return Report(self.findings + other.findings, self.unknown + other.unknown)


NOTHING = Report()


def _found(
    name: str, sentence: str, units: t.Iterable[str] = (), advice: bool = False, labels: t.Iterable[str] = ()
) -> Report:
    return Report((Finding(name, sentence, tuple(units), advice, tuple(labels)),))


def _cannot_tell(sentence: str) -> Report:
    return Report((), (sentence,))


# --- what NVML says ------------------------------------------------------------------------------------------------


class Sight(t.NamedTuple):
    """A node as NVML shows it, and of the GPUs that are concerned, by index, how their memory is."""

    node: Node
    health: dict[int, MemoryHealth]

    @property
    def concerned(self) -> list[Gpu]:
        return [gpu for gpu in self.node.gpus if gpu.index in self.health]


def read(opener: Opener, watch: Watch, gpus: t.Any) -> Sight:
    """Read the node, and the memory of the GPUs that ``gpus`` chooses, as configs.resolve takes it.

    GPUs that cannot do MIG are never concerned. Raises DriverError, and WishError for a GPU that is not there.
    """
    with opener(watch) as session:
        node = session.read_node(placements=False)
        chosen = [gpu for gpu in configs.select_gpus(node, gpus)[0] if gpu.mig_capable is not False]
        return Sight(node, {gpu.index: session.read_memory_health(gpu.index) for gpu in chosen})


def on_gpus(sight: Sight, kinds: t.Collection[str], root: str = "/") -> Report:
    """What the GPUs and their driver say against a change of these kinds."""
    report = NOTHING
    for gpu in sight.concerned:
        report += _memory(gpu, sight.health[gpu.index], kinds) + _vgpu(sight.node, gpu, root)
    return report + _persistence(sight.concerned) + _bad_driver(sight.node.driver_version, root)


def without_nvml(error: MigError, root: str = "/") -> Report:
    """NVML does not answer, so nobody knows what is there: the one thing that cannot be passed over."""
    no_module = _no_module_for_this_kernel(root) if error.details.get("error") == "DRIVER_NOT_LOADED" else ""
    return _found("nvml", f"{error}{no_module}")


def _no_module_for_this_kernel(root: str) -> str:
    """A sentence where the driver was not built for the kernel that runs, as after an update of the kernel alone."""
    if os.path.exists(os.path.join(root, driver.DRIVER_ROOT[1:])):
        return ""  # it comes in a container, and its module with it
    kernel = printable((_text(os.path.join(root, "proc/sys/kernel/osrelease")) or "").strip())
    if not kernel or driver.is_built_for(kernel, root) is not False:
        return ""
    installed = _entries(os.path.join(root, "lib/modules"))
    others = ", ".join(printable(name) for name in installed if driver.is_built_for(name, root))
    return (
        f" The driver has no module for the kernel {kernel}, which runs{f', only for {others}' if others else ''}:"
        f" build it for this one, with DKMS by 'dkms autoinstall -k {kernel}', or boot a kernel that has it."
    )


def _memory(gpu: Gpu, health: MemoryHealth, kinds: t.Collection[str]) -> Report:
    who = driver.describe(gpu)
    problems: tuple[Problem, ...] = health.problems or (gpu.problems if gpu.mig_capable is None else ())
    if problems:
        return _cannot_tell(
            f"Whether the memory of {who} is in order cannot be told, since {problems[0].call} failed with"
            f" {problems[0].error}; {problems[0].remedy}."
        )
    report = NOTHING
    if health.remap_failed:
        report += _found(
            "memory",
            f"The memory of {who} has rows that could not be remapped and will fail again: take it out of service and"
            " have the board replaced.",
        )
    # A change that is nothing but a reset is the cure for what waits for one.
    waits = set(kinds) != {"reset"}
    if waits and health.remap_pending:
        report += _found(
            "memory",
            f"The memory of {who} has rows that wait to be remapped, and instances may lie on them: reset the GPU with"
            " 'nvidia-smi --gpu-reset', or reboot, before it is partitioned.",
        )
    if waits and health.ecc_current != health.ecc_pending:
        now = health.ecc_current
        report += _found(
            "memory",
            f"ECC of {who} is {'on' if now else 'off'} and will be {'off' if now else 'on'} after the next reset, which"
            " may change the memory of instances: reset the GPU or reboot first, or take it back with"
            f" 'nvidia-smi -e {1 if now else 0}'.",
        )
    return report


def _vgpu(node: Node, gpu: Gpu, root: str) -> Report:
    """A GPU that serves virtual machines, or is a slice of one itself."""
    if gpu.virtualization in ("vgpu", "host-vgpu", "host-vsga"):
        return _found("vgpu", driver.why_not_writable(node.driver_version, gpu) or "")
    functions = _virtual_functions(gpu, root)
    if not functions:
        return NOTHING
    return _found(
        "vgpu",
        f"{driver.describe(gpu)} has {counted(functions, 'virtual function')} (sriov_numvfs), which vGPUs are made of:"
        " MIG of vGPU hosts is not supported, change it where they are run.",
    )


def _virtual_functions(gpu: Gpu, root: str) -> int:
    # NVML writes 00000000:07:00.0 what the kernel writes 0000:07:00.0.
    domain, _colon, place = gpu.pci_bus_id.lower().partition(":")
    if not re.fullmatch("[0-9a-f]{4,8}", domain):
        return 0
    text = _text(os.path.join(root, "sys/bus/pci/devices", f"{int(domain, 16):04x}:{place}", "sriov_numvfs"))
    return int(text) if text and text.strip().isdigit() else 0


def _persistence(gpus: t.Sequence[Gpu]) -> Report:
    off = ", ".join(str(gpu.index) for gpu in gpus if gpu.persistence is False)
    if not off:
        return NOTHING
    return _found(
        "persistence",
        f"Persistence mode of GPU {off} is off, so that each program that asks the driver waits until the GPU has been"
        " started anew: start nvidia-persistenced.service.",
        advice=True,
    )


# --- drivers known to be bad with MIG ------------------------------------------------------------------------------


class BadDriver(t.NamedTuple):
    """Drivers from ``first`` to ``last``, both included, of which it is public that MIG does not work with them.

    ``told`` is the day on which ``source`` said so. ``kubernetes``: it only concerns nodes with a kubelet.
    """

    first: str
    last: str
    what: str
    remedy: str
    told: str
    source: str
    kubernetes: bool = False


_PODS_HANG = "on nodes with MIG devices beside whole GPUs the device plugin hangs and pods stay pending"
_PODS_REMEDY = "use 570.172.08, 580.65.06 or later"
_PODS_SOURCE = "https://github.com/NVIDIA/gpu-operator/issues/1361"

# A row needs a source, and stays for as long as somebody may run such a driver.
BAD_DRIVERS = (
    # NVIDIA names 570.124.06, .133.20, .148.08 and .158.01, and 570.86.15 as good (notes on GPU Operator 25.3.2).
    BadDriver("570.124.06", "570.158.01", _PODS_HANG, _PODS_REMEDY, "2025-07-25", _PODS_SOURCE, kubernetes=True),
    # NVIDIA says in the thread that 575.57.08 was released before the repair.
    BadDriver("575", "575.57.08", _PODS_HANG, _PODS_REMEDY, "2025-08-11", _PODS_SOURCE, kubernetes=True),
)


def _bad_driver(version: str, root: str) -> Report:
    kubelet = os.path.exists(os.path.join(root, "var/lib/kubelet/device-plugins/kubelet.sock"))
    report = NOTHING
    for bad in BAD_DRIVERS:
        is_it = _numbers(bad.first) <= _numbers(version) <= _numbers(bad.last)
        if is_it and (kubelet or not bad.kubernetes):
            report += _found(
                "driver",
                f"Driver {version} is known to be bad with MIG, since {bad.what} ({bad.source}, {bad.told}):"
                f" {bad.remedy}.",
            )
    return report


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


# --- what the host says --------------------------------------------------------------------------------------------


def on_host(
    kinds: t.Collection[str], sight: t.Optional[Sight], watch: t.Optional[Watch] = None, root: str = "/"
) -> Report:
    """What units and processes of this host say against it. ``sight`` is None where NVML does not answer."""
    systemd = _Systemd(watch, root)
    running = _processes(watch, root)
    report = _mig_manager_unit(systemd) + _other_owners(running, root) + _booting(systemd, root) + _mps(running)
    report += _fabric(systemd, sight, root) + _drm(running, kinds, sight, root) + _hidden(running)
    if watch is not None:
        watch.idle()
    return report + Report((), tuple(systemd.silent))


class _Running(t.NamedTuple):
    """A process. ``folder`` is where /proc has it."""

    facts: Process
    folder: str
    by_root: bool

    @property
    def words(self) -> str:
        """At the beginning of a sentence."""
        words = holders.words(self.facts)
        return words[0].upper() + words[1:]

    @property
    def unit(self) -> tuple[str, ...]:
        """The system's unit that it belongs to, if it does."""
        belongs_to = self.facts.owner
        return (belongs_to.unit,) if belongs_to.kind == "unit" and "/" not in belongs_to.unit else ()

    def arguments(self) -> list[str]:
        return (_text(f"{self.folder}/cmdline") or "").split("\0")

    def environment(self) -> t.Optional[dict[str, str]]:
        """None where it cannot be read, which takes root."""
        text = _text(f"{self.folder}/environ")
        return None if text is None else dict(each.split("=", 1) for each in text.split("\0") if "=" in each)


def _processes(watch: t.Optional[Watch], root: str) -> dict[int, _Running]:
    """The programs that run on this node, by their numbers."""
    proc = os.path.join(root, "proc")
    found = {}
    for pid in sorted(int(name) for name in _entries(proc) if name.isdigit()):
        if watch is not None:
            watch.begin(f"read /proc of process {pid}")
        running = _running(pid, os.path.join(proc, str(pid)))
        if running is not None:
            found[pid] = running
    return found


def _running(pid: int, folder: str) -> t.Optional[_Running]:
    """None for a thread of the kernel and for what has ended: neither has memory of its own."""
    status = dict(line.split(":\t", 1) for line in (_text(f"{folder}/status") or "").split("\n") if ":\t" in line)
    if "Name" not in status or "VmSize" not in status:
        return None
    facts = Process(pid, printable(status["Name"]), owner=owner(_text(f"{folder}/cgroup") or ""))
    return _Running(facts, folder, status.get("Uid", "").split("\t")[0] == "0")


def _hidden(running: t.Mapping[int, _Running]) -> Report:
    if 1 in running:
        return NOTHING
    return _cannot_tell(
        "Whether another manager of MIG, an MPS daemon or a display server runs cannot be told, since /proc does not"
        " show all processes: run as root."
    )


# --- other owners of the switch ------------------------------------------------------------------------------------


def _mig_manager_unit(systemd: _Systemd) -> Report:
    """NVIDIA's mig-parted as a service: it applies its own config at each boot, and what does not fit it goes."""
    shown = systemd.show(_MIG_MANAGER_UNIT, "UnitFileState", "ActiveState")
    is_set = {
        "enabled": shown.get("UnitFileState") in ("enabled", "enabled-runtime"),
        "active": shown.get("ActiveState") in _UP,
    }
    if not any(is_set.values()):
        return NOTHING
    return _found(
        "owner",
        f"{_MIG_MANAGER_UNIT} is {' and '.join(word for word in is_set if is_set[word])}, and partitions the GPUs by a"
        f" config of its own: take them over with 'systemctl disable --now {_MIG_MANAGER_UNIT}', or leave them to it.",
        units=(_MIG_MANAGER_UNIT,),
    )


def _other_owners(running: t.Mapping[int, _Running], root: str) -> Report:
    """Programs that partition GPUs. Only root may: what another user calls so is none of them."""
    report = NOTHING
    for process in running.values():
        judge = _OWNERS.get(process.facts.name)
        if judge is not None and process.by_root:
            report += judge(process)
    return report + _unseen_dra_driver(running, root)


def _kubernetes_mig_manager(process: _Running) -> Report:
    return _found(
        "owner",
        f"{process.words} is NVIDIA's MIG manager for Kubernetes, which partitions the GPUs by the node's label"
        f" nvidia.com/mig.config: set the node's label {_MIG_MANAGER_LABEL} to false, or leave them to it.",
        labels=(_MIG_MANAGER_LABEL,),
    )


def _mig_parted(process: _Running) -> Report:
    return _found(
        "owner",
        f"{process.words} is partitioning the GPUs right now: wait until it has ended, and run again.",
    )


def _dra_driver(process: _Running) -> Report:
    """It partitions GPUs only with a feature gate, which is off by default."""
    environment = process.environment()
    if environment is None:
        return _mode_unknown(process, "NVIDIA's DRA driver for Kubernetes")
    gates = ",".join((environment.get("FEATURE_GATES", ""), *process.arguments())).lower()
    named = re.findall(r"\bdynamicmig=(\w+)", gates) or re.findall(r"\ballalpha=(\w+)", gates)
    if "true" not in named:
        return NOTHING
    return _found(
        "owner",
        f"{process.words} is NVIDIA's DRA driver for Kubernetes with the feature gate DynamicMIG, which makes and"
        " removes MIG devices as pods ask for them: switch the gate off, or leave the GPUs of this node to it.",
    )


def _unseen_dra_driver(running: t.Mapping[int, _Running], root: str) -> Report:
    """Its socket outlives it when it is killed, so it says something only where processes are hidden."""
    folder = "var/lib/kubelet/plugins/gpu.nvidia.com"
    if 1 in running or not os.path.exists(os.path.join(root, folder)):
        return NOTHING
    return _cannot_tell(
        f"Whether NVIDIA's DRA driver for Kubernetes, which has /{folder}, runs and makes MIG devices cannot be told:"
        " run as root."
    )


def _hami(process: _Running) -> Report:
    """HAMi's device plugin is called as NVIDIA's own, and partitions GPUs where its config says so of this node."""
    environment = process.environment()
    by_arguments = any(word.startswith("--disable-core-limit") for word in process.arguments())
    if not by_arguments and "HOOK_PATH" not in (environment or {}):
        return NOTHING
    mode = None if environment is None else _hami_mode(process, environment.get("NODE_NAME", ""))
    if mode is None:
        return _mode_unknown(process, "HAMi's device plugin")
    if mode != "mig":
        return NOTHING
    return _found(
        "owner",
        f"{process.words} is HAMi's device plugin with the operatingmode mig, which makes and removes MIG devices as"
        " pods ask for them: set the operatingmode of this node to hami-core, or leave its GPUs to it.",
    )


def _hami_mode(process: _Running, node_name: str) -> t.Optional[str]:
    """What the config of the plugin says of its node; None where it cannot be read."""
    try:
        nodes = json.loads(_text(f"{process.folder}/root/config/config.json") or "")["nodeconfig"]
        modes = [node.get("operatingmode") for node in nodes if node.get("name") == node_name]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return next((mode for mode in reversed(modes) if mode), "hami-core")


def _mode_unknown(process: _Running, what: str) -> Report:
    words = holders.words(process.facts)
    return _cannot_tell(f"Whether {words}, which is {what}, makes MIG devices cannot be told: run as root.")


_OWNERS: dict[str, t.Callable[[_Running], Report]] = {
    "nvidia-mig-mana": _kubernetes_mig_manager,  # nvidia-mig-manager
    "nvidia-k8s-mig-": _kubernetes_mig_manager,  # nvidia-k8s-mig-manager
    "nvidia-mig-part": _mig_parted,  # nvidia-mig-parted
    "gpu-kubelet-plu": _dra_driver,  # gpu-kubelet-plugin
    "nvidia-device-p": _hami,  # nvidia-device-plugin
}


# --- boot ----------------------------------------------------------------------------------------------------------


def _booting(systemd: _Systemd, root: str) -> Report:
    """What is being started is not to be stopped: a kubelet that is restarted now may never become ready."""
    state = systemd.state_of_system()
    if state == "stopping":
        return _found("boot", "The node is shutting down: run again when it is up.")
    cloud_init = ["cloud-init runs"] if _cloud_init_runs(root) else []
    if state in ("initializing", "starting"):
        busy = "; ".join(cloud_init + systemd.jobs())
        return _found(
            "boot",
            f"The node is still starting{f' ({busy})' if busy else ''}: wait until 'systemctl is-system-running --wait'"
            " ends, and run again.",
        )
    # Under systemd a start lasts until cloud-init has ended: what one leaves behind that was killed means nothing.
    if not state and cloud_init:
        return _found(
            "boot",
            "cloud-init is still setting this node up: wait until 'cloud-init status --wait' ends, and run again.",
        )
    return NOTHING


def _cloud_init_runs(root: str) -> bool:
    """As cloud-init tells it: it has a status, and no result yet."""
    folder = os.path.join(root, "run/cloud-init")
    return os.path.exists(f"{folder}/status.json") and not os.path.exists(f"{folder}/result.json")


# --- MPS, Fabric Manager, nvidia_drm -------------------------------------------------------------------------------


def _mps(running: t.Mapping[int, _Running]) -> Report:
    """Its servers, which have the same name for the kernel, hold GPUs and are told as holders."""
    report = NOTHING
    for process in running.values():
        if process.facts.name != "nvidia-cuda-mps":
            continue
        if os.path.basename(process.arguments()[0]) != "nvidia-cuda-mps-server":
            report += _found(
                "mps",
                f"{process.words} is the control daemon of MPS, which keeps to the devices that were there when it was"
                " started: stop it ('echo quit | nvidia-cuda-mps-control', or its unit or pod), and start it again"
                " after the change.",
                process.unit,
            )
    return report


def _fabric(systemd: _Systemd, sight: t.Optional[Sight], root: str) -> Report:
    """On a board with NVSwitches instances can be made without Fabric Manager, but no CUDA program starts on them."""
    if sight is None or not reset.has_nvswitch(root) or reset.fabric_manager_runs(None, root):
        return NOTHING
    shown = systemd.show(_FABRIC_MANAGER_UNIT, "LoadState", "ActiveState")
    if shown.get("ActiveState") in _UP:
        return NOTHING
    state = shown.get("LoadState") if shown.get("LoadState") == "not-found" else shown.get("ActiveState")
    how = f" ({_FABRIC_MANAGER_UNIT} is {printable(state)})" if state else ""
    return _found(
        "fabric",
        f"This node has NVSwitches and Fabric Manager does not run{how}, so that no CUDA program starts on its GPUs:"
        f" start {_FABRIC_MANAGER_UNIT} in the version of the driver.",
    )


def _drm(running: t.Mapping[int, _Running], kinds: t.Collection[str], sight: t.Optional[Sight], root: str) -> Report:
    """What has a display device open keeps the module nvidia_drm in use, and that keeps GPUs from being reset."""
    if not _resets(kinds, sight):
        return NOTHING
    loaded = reset.drm_is_loaded(root)
    if loaded is None:
        return _cannot_tell(
            f"Whether the kernel module {reset.DRM} is loaded, which keeps GPUs from being reset, cannot be told, since"
            " neither /sys/module nor /proc/modules can be read."
        )
    users = [running[pid] for pid in reset.drm_users(root) if pid in running] if loaded else []
    if not users:
        return NOTHING
    use, them = ("uses", "it") if len(users) == 1 else ("use", "them")
    units = tuple(dict.fromkeys(unit for process in users for unit in process.unit))
    by_units = f" ('systemctl stop {' '.join(units)}')" if units else ""
    return _found(
        "drm",
        f"{'; '.join(process.words for process in users)} {use} the kernel module {reset.DRM}, which keeps GPUs from"
        f" being reset: stop {them}{by_units} for the time of the change.",
        units,
    )


def _resets(kinds: t.Collection[str], sight: t.Optional[Sight]) -> bool:
    """Whether GPUs are reset: because that is to be done, or because Ampere does it to change the MIG mode."""
    ampere = sight is not None and any(
        gpu.architecture == "ampere" and not driver.mode_change_needs_reboot(gpu) for gpu in sight.concerned
    )
    return "reset" in kinds or ("mode" in kinds and ampere)


# --- systemd -------------------------------------------------------------------------------------------------------


class _Systemd:
    """The systemd of the host, asked with a deadline; ``silent`` is a sentence where it did not answer."""

    def __init__(self, watch: t.Optional[Watch], root: str) -> None:
        self._watch = watch
        # The test of sd_booted(3).
        self._runs = os.path.isdir(os.path.join(root, "run/systemd/system"))
        self.silent: list[str] = []

    def show(self, unit: str, *properties: str) -> dict[str, str]:
        """Properties of a unit; none where there is no answer."""
        answer = self._ask("show", f"--property={','.join(properties)}", "--", unit)
        return dict(line.split("=", 1) for line in answer.splitlines() if "=" in line)

    def state_of_system(self) -> str:
        """``running``, ``degraded``, ``starting`` ...; empty where there is no answer."""
        state = self._ask("is-system-running").strip()
        if state in ("unknown", "offline"):
            self._note(f"it says that the system is {state}")
        return "" if state in ("unknown", "offline") else state

    def jobs(self) -> list[str]:
        """What is being started now, in a few words."""
        lines = [line.split() for line in self._ask("list-jobs", "--no-legend", "--plain").splitlines()]
        units = [printable(words[1]) for words in lines if len(words) == 4 and words[3] == "running"]
        more = f" and {len(units) - 3} more" if len(units) > 3 else ""
        return [f"waits for {', '.join(units[:3])}{more}"] if units else []

    def _ask(self, *words: str) -> str:
        """What systemctl prints. One that did not answer once is not asked again."""
        if not self._runs or self.silent:
            return ""
        program = commands.find("systemctl")
        if program is None:
            return self._note("systemctl was not found")
        if self._watch is not None:
            self._watch.begin("ask systemd", _ANSWER_SECONDS + _SPARE_SECONDS)
        try:
            command = (program, "--no-pager", "--no-ask-password", *words)
            answer = commands.run(command, _ANSWER_SECONDS, {}, patience=1.0)
        except commands.Late:
            return self._note(f"it did not answer systemctl within {_ANSWER_SECONDS:g} s")
        except (OSError, ValueError) as error:
            return self._note(f"systemctl could not be run ({error})")
        # The state of the system is told by the exit status too, so a bad one is none.
        if answer.code == 0 or answer.out.strip():
            return answer.out
        said = printable(" ".join(answer.err.split()))[:_LONGEST_QUOTE].rstrip(".")
        return self._note(f"systemctl says: {said}" if said else f"systemctl ended with {answer.code}")

    def _note(self, why: str) -> str:
        self.silent.append(
            f"Whether {_MIG_MANAGER_UNIT} is set up and whether the node still boots cannot be told by systemd: {why};"
            " see whether 'systemctl status' answers on this node."
        )
        return ""


# --- the deadline --------------------------------------------------------------------------------------------------

_TIME = re.compile(
    r"(?P<day>\d{4}-\d{2}-\d{2})[Tt ](?P<time>\d{2}:\d{2}(?::\d{2})?)(?:\.\d+)?"
    r" *(?P<zone>[Zz]|(?P<hours>[+-]\d{2})(?::?(?P<minutes>\d{2}))?)?"
)
_SUCH_AS = "write it as 2026-12-24T06:00:00+01:00 or 2026-12-24T05:00:00Z"


def parse_time(option: str, text: str) -> datetime.datetime:
    """A time in ISO 8601 with its offset from UTC. Raises WishError, also for one without that."""
    match = _TIME.fullmatch(text.strip())
    if match is None:
        raise WishError(f"{option} is {quoted(text)}, which is no time; {_SUCH_AS}.")
    if match["zone"] is None:
        raise WishError(
            f"{option} is {quoted(text)} without an offset from UTC, which is another time on each host; {_SUCH_AS}."
        )
    offset = f"{match['hours'] or '+00'}:{match['minutes'] or '00'}"
    try:
        return datetime.datetime.fromisoformat(f"{match['day']}T{match['time']}{offset}")
    except ValueError as error:
        raise WishError(f"{option} is {quoted(text)}, which is no time ({error}); {_SUCH_AS}.") from None


def on_deadline(deadline: datetime.datetime, needs: float, now: datetime.datetime) -> Report:
    """Whether a change that may take ``needs`` seconds would end too late."""
    left = (deadline - now).total_seconds()
    if left >= needs and left > 0:
        return NOTHING
    much = f"is in {left:.0f} s, and the change may take {needs:.0f} s" if left > 0 else "is over"
    return _found(
        "deadline", f"The deadline {deadline.isoformat()} {much}: set a later one, or run in the next window."
    )


# --- files ---------------------------------------------------------------------------------------------------------


def _text(path: str) -> t.Optional[str]:
    """The text of a file, up to a length; None where it cannot be had."""
    try:
        # In a container anything can be called so. A pipe, for one, would keep its reader waiting.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return None
            return file.read(_LARGEST_FILE).decode("utf-8", "replace")
    except OSError:
        return None


def _entries(folder: str) -> list[str]:
    """Names in a folder, sorted; none where it is not there or may not be read."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []
