# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Resets GPUs through ``nvidia-smi --gpu-reset``, and says beforehand what keeps them from being reset.

This file is private to the collection gpufleet.mig and may change at any time.

NVML has no function for it, so nvidia-smi is asked, for the named GPUs only: one that is not named is never reset.
Its rules are those of its manual page. Nobody may use the named GPUs, and no process may compute on any other GPU of
the node. On Ampere boards with NVSwitches Fabric Manager has to run, or all linked GPUs have to be named at once. The
kernel module nvidia_drm holds every GPU for as long as it is loaded, though no list shows it. In a virtual machine the
hypervisor owns the reset of an Ampere GPU.

nvidia-persistenced and nvidia-fabricmanager hand over to nvidia-smi by themselves and are left running.
"""

from __future__ import annotations

import os
import re
import typing as t

from . import commands, configs, driver, holders, layouts
from .model import DriverError, Gpu, MigError, Node, Process, Wanted
from .profiles import printable
from .words import identity

if t.TYPE_CHECKING:
    from .bounded import Watch
    from .clients import Manager

CALL = "nvidia-smi --gpu-reset"
DRM = "nvidia_drm"

_MODULE_SECONDS = 60.0
# Between our own deadline, which is told with its cause, and the end of the process that misses it.
_SPARE_SECONDS = 20.0
_LONGEST_QUOTE = 600
# The kernel keeps 15 characters of a name.
_FABRIC_MANAGER, _FABRIC_MANAGER_UNIT = "nv-fabricmanage", "nvidia-fabricmanager.service"
_PERSISTENCED = "nvidia-persiste"
_PERSISTENCED_SOCKETS = ("run/nvidia-persistenced/socket", "var/run/nvidia-persistenced/socket")
_NVIDIA, _NVSWITCH_CLASS = "0x10de", "0x0680"
_GPU_DEVICE = re.compile(r"(?:^|/)dev/nvidia")

# What nvidia-smi says, and NVML's name for it.
_ERRORS = (
    ("not supported", "NOT_SUPPORTED"),
    ("insufficient permissions", "NO_PERMISSION"),
    ("in use by another", "IN_USE"),
    ("currently being used", "IN_USE"),
    ("gpu is lost", "GPU_IS_LOST"),
    ("couldn't communicate with the nvidia driver", "DRIVER_NOT_LOADED"),
)


# --- beforehand ----------------------------------------------------------------------------------------------------


def obstacles(
    node: Node,
    gpus: t.Sequence[int],
    *,
    by_driver: bool,
    manage_drm: bool = False,
    manager: t.Optional[Manager] = None,
    root: str = "/",
) -> tuple[str, ...]:
    """Why these GPUs (by index) cannot be reset now, a sentence each; nothing is touched.

    ``node`` has its holders. ``by_driver`` means the reset that the driver does by itself when the MIG mode of an
    Ampere GPU changes: it asks nothing of other GPUs, and who uses this one is judged by whoever changes the mode.
    ``manage_drm`` says that nvidia_drm will be unloaded before. ``manager`` is asked whether Fabric Manager runs.
    """
    targets = [node.gpus[index] for index in gpus]
    if not targets:
        return ()
    found = [why_never(gpu) for gpu in targets]
    if not by_driver:
        others = [gpu for gpu in node.gpus if gpu not in targets]
        found += [_why_in_use(gpu) for gpu in targets]
        found += [_why_no_handshake(gpu, root) for gpu in targets]
        found += [_why_not_beside(gpu) for gpu in others]
        found.append(_why_not_alone(targets, others, manager, root))
    found.append(_why_drm(targets, manage_drm, root))
    return tuple(sentence for sentence in found if sentence is not None)


def why_never(gpu: Gpu) -> t.Optional[str]:
    """The sentence about what keeps a GPU from ever being reset from this machine, or None."""
    if driver.mode_change_needs_reboot(gpu):
        if gpu.virtualization != "passthrough":
            return (
                f"{driver.describe(gpu)} cannot be reset, since the kernel has no reset for it (its folder below"
                " /sys/bus/pci/devices has no file 'reset'): reboot the machine."
            )
        return (
            f"{driver.describe(gpu)} is an Ampere GPU passed through to this virtual machine, which cannot reset it:"
            " reboot the machine."
        )
    if gpu.virtualization in ("vgpu", "host-vgpu", "host-vsga"):
        return (
            f"{driver.describe(gpu)} serves virtual machines (vGPU) and cannot be reset here: reset it where they are"
            " run."
        )
    return None


def _why_in_use(gpu: Gpu) -> t.Optional[str]:
    blocking = [process for process in _processes(gpu) if not process.cooperative]
    if not blocking:
        return None
    them = "it" if len(blocking) == 1 else "them"
    units = ", ".join(sorted({process.owner.unit for process in blocking if process.owner.kind == "unit"}))
    or_clients = f", or name {units} in clients and set evict to clients" if units else ""
    return (
        f"{driver.describe(gpu)} cannot be reset while it is in use by"
        f" {'; '.join(holders.words(process) for process in blocking)}: stop {them}{or_clients}."
    )


def _why_no_handshake(gpu: Gpu, root: str) -> t.Optional[str]:
    """nvidia-smi asks nvidia-persistenced through its socket to let go of a GPU; one in a container has it there."""
    daemons = [process for process in _processes(gpu) if process.cooperative and process.name.startswith(_PERSISTENCED)]
    if not daemons or any(os.path.exists(os.path.join(root, socket)) for socket in _PERSISTENCED_SOCKETS):
        return None
    return (
        f"{driver.describe(gpu)} cannot be reset while {holders.words(daemons[0])} keeps it initialised, since its"
        " socket /run/nvidia-persistenced/socket is not there and nvidia-smi cannot ask it to let go: stop it, or"
        " restart it so that it has its socket."
    )


def _why_not_beside(gpu: Gpu) -> t.Optional[str]:
    """What keeps every other GPU of the node from being reset: somebody computes on this one."""
    computing = [each for each in _processes(gpu) if each.kind in ("compute", "mps") and not each.cooperative]
    if not computing:
        return None
    them, run = ("it", "computes") if len(computing) == 1 else ("them", "compute")
    return (
        f"{'; '.join(holders.words(process) for process in computing)} {run} on {driver.describe(gpu)}, and nvidia-smi"
        f" resets no GPU while anything computes on another one: stop {them}, or reboot the node."
    )


def _processes(gpu: Gpu) -> tuple[Process, ...]:
    """Who uses a GPU or one of its instances, each process once."""
    everywhere = [
        *gpu.processes,
        *(process for instance in gpu.instances for compute in instance.compute for process in compute.processes),
    ]
    found: dict[int, Process] = {}
    for process in everywhere:
        # Computing on an instance says more than having the GPU open.
        if process.pid not in found or found[process.pid].kind == "open":
            found[process.pid] = process
    return tuple(found.values())


# --- NVSwitch and Fabric Manager -----------------------------------------------------------------------------------


def _why_not_alone(
    targets: t.Sequence[Gpu],
    others: t.Sequence[Gpu],
    manager: t.Optional[Manager],
    root: str,
) -> t.Optional[str]:
    """From Hopper on, NVSwitch boards let a GPU go by itself; on Ampere Fabric Manager has to take it out."""
    missing = [gpu for gpu in others if gpu.architecture == "ampere"]
    concerned = missing and any(gpu.architecture == "ampere" for gpu in targets)
    if not concerned or not has_nvswitch(root) or fabric_manager_runs(manager, root):
        return None
    return (
        "On this NVSwitch board Fabric Manager has to run for a GPU to be reset by itself, and it does not: start"
        f" {_FABRIC_MANAGER_UNIT}, or reset all GPUs that are linked by NVLink at once, which are also"
        f" {', '.join(driver.describe(gpu) for gpu in missing)}."
    )


def has_nvswitch(root: str) -> bool:
    """Whether the GPUs of this node are linked by NVSwitches."""
    if _entries(os.path.join(root, "proc/driver/nvidia-nvswitch/devices")):
        return True
    devices = os.path.join(root, "sys/bus/pci/devices")
    return any(
        _first_word(os.path.join(devices, name, "vendor")) == _NVIDIA
        and _first_word(os.path.join(devices, name, "class")).startswith(_NVSWITCH_CLASS)
        for name in _entries(devices)
    )


def fabric_manager_runs(manager: t.Optional[Manager], root: str) -> bool:
    """Whether Fabric Manager, which NVSwitches need, is at work, as a unit or otherwise."""
    if manager is not None and manager.state(_FABRIC_MANAGER_UNIT).up:
        return True
    return any(_name_of(pid, root) == _FABRIC_MANAGER for pid in _pids(root))


# --- nvidia_drm ----------------------------------------------------------------------------------------------------


def drm_is_loaded(root: str = "/") -> t.Optional[bool]:
    """Whether the kernel module nvidia_drm is loaded; None where neither /sys/module nor /proc/modules can be read."""
    modules = _entries(os.path.join(root, "sys/module"))
    if modules:
        return DRM in modules
    try:
        with open(os.path.join(root, "proc/modules"), encoding="utf-8", errors="replace") as file:
            return any(line.split(" ", 1)[0] == DRM for line in file)
    except OSError:
        return None


def _why_drm(targets: t.Sequence[Gpu], manage_drm: bool, root: str) -> t.Optional[str]:
    if not drm_is_loaded(root):
        return None
    users = [holders.process_in_words(pid, root) for pid in drm_users(root)]
    uses = f"{'; '.join(users)} {'uses' if len(users) == 1 else 'use'} it" if users else ""
    if manage_drm:
        # Where nobody is found who uses it, trying to unload it is the only way to know.
        return f"The kernel module {DRM} cannot be unloaded while {uses}: stop what renders there." if users else None
    gpus = ", ".join(driver.describe(gpu) for gpu in targets)
    return (
        f"The kernel module {DRM} is loaded{f', {uses},' if uses else ''} and keeps {gpus} from being reset: set"
        f" manage_drm to have it unloaded for the reset and loaded again, or unload it with 'rmmod {DRM}'. What renders"
        " through EGL on this node needs it."
    )


def drm_users(root: str) -> list[int]:
    """Processes that have a device of nvidia_drm open (/dev/dri/card1, /dev/dri/renderD128)."""
    nodes = _drm_nodes(root)
    found = []
    for pid in _pids(root) if nodes else ():
        folder = os.path.join(root, "proc", str(pid), "fd")
        if any(_target(os.path.join(folder, number)) in nodes for number in _entries(folder)):
            found.append(pid)
    return found


def _drm_nodes(root: str) -> set[str]:
    """Paths of the devices that belong to the driver nvidia: a node usually has a display of its own besides."""
    classes = os.path.join(root, "sys/class/drm")
    return {
        f"/dev/dri/{name}"
        for name in _entries(classes)
        if os.path.basename(_target(os.path.join(classes, name, "device/driver"))) == "nvidia"
    }


def unload_drm(watch: t.Optional[Watch] = None) -> None:
    """Unload nvidia_drm. Raises DriverError when that is not possible.

    ``rmmod`` takes this one module; ``modprobe -r`` would also take those below it that nobody uses then, down to the
    driver itself.
    """
    unloading = _run(("rmmod", DRM), _MODULE_SECONDS, f"unload {DRM}", watch)
    if unloading.code != 0:
        raise DriverError(
            f"The kernel module {DRM} could not be unloaded ({unloading.said}): stop what renders through /dev/dri, and"
            " run again.",
            call=f"rmmod {DRM}",
            error="IN_USE",
        )


def load_drm(watch: t.Optional[Watch] = None) -> str:
    """Load nvidia_drm with the parameters that the host configured for it. Returns what went wrong, or nothing."""
    try:
        loading = _run(("modprobe", DRM), _MODULE_SECONDS, f"load {DRM}", watch)
    except DriverError as error:
        return f"The kernel module {DRM} was not loaded again: {error}"
    if loading.code == 0:
        return ""
    return (
        f"The kernel module {DRM} was not loaded again ({loading.said}): load it with 'modprobe {DRM}' if anything"
        " renders on this node."
    )


# --- which GPUs, and what they have afterwards ---------------------------------------------------------------------


def choose(node: Node, gpus: t.Any, force: bool) -> tuple[Gpu, ...]:
    """The GPUs of ``gpus`` (as configs.resolve takes them) that have a pending mode, or all of them with ``force``.

    Raises WishError for one that is not there, does not answer, or is named although it cannot do MIG.
    """
    selected, by_name = configs.select_gpus(node, gpus)
    chosen = []
    for gpu in selected:
        if gpu.mig_capable is False:
            if by_name:
                raise configs.refusal(gpu, f"cannot do MIG, so it is none of this module's: use '{CALL}'")
            continue
        configs.check_readable(gpu)
        if force or is_pending(gpu):
            chosen.append(gpu)
    return tuple(chosen)


def foreseen(gpu: Gpu) -> Gpu:
    """The GPU as it is to be after a reset."""
    # Where MIG was on its way off, there is nothing to put back.
    return gpu._replace(mode_current=gpu.mode_pending, instances=gpu.instances if gpu.mode_pending else ())


class AsBefore:
    """The wish of a reset: that GPUs get the layout back that they had before it, in the mode that was pending.

    ``targets`` are the GPUs as they were chosen. The node is looked at again when the wish is first resolved, which is
    when nobody else may change it any more: a GPU that has no pending mode by then is left out, unless ``force``. What
    the node is like later does not matter, since the instances are gone then.
    """

    def __init__(self, targets: t.Sequence[Gpu], force: bool) -> None:
        self._targets = targets
        self._force = force
        self._saved: t.Optional[list[layouts.Layout]] = None

    def __call__(self, node: Node) -> Wanted:
        if self._saved is None:
            chosen = [_same_gpu(node, gpu) for gpu in self._targets]
            self._saved = [layouts.dump(foreseen(gpu)) for gpu in chosen if self._force or is_pending(gpu)]
        return layouts.resolve(node, self._saved) if self._saved else Wanted("", "layout", {})


def is_pending(gpu: Gpu) -> bool:
    """Whether the GPU has a MIG mode that is stored and not current."""
    return gpu.mode_current is not None and gpu.mode_current != gpu.mode_pending


def _same_gpu(node: Node, gpu: Gpu) -> Gpu:
    """A GPU as it is now. What is to be reset goes by index, which another GPU may have got meanwhile."""
    now = next((each for each in node.gpus if each.index == gpu.index), None)
    if now is None or (now.uuid, now.pci_bus_id) != (gpu.uuid, gpu.pci_bus_id):
        raise MigError(
            f"{driver.describe(gpu)} is not GPU {gpu.index} any more: look at the node with mig_info, and run again.",
            **identity(gpu),
        )
    refusal = why_never(now)
    if refusal is not None:
        raise MigError(refusal, **identity(now))
    return now


# --- the reset -----------------------------------------------------------------------------------------------------


def reset(
    gpus: t.Sequence[Gpu],
    *,
    timeout: float = 120.0,
    watch: t.Optional[Watch] = None,
    root: str = "/",
) -> None:
    """Reset these GPUs, in one command; their instances go, and a pending MIG mode becomes current.

    What nvidia-smi says and its exit status are no evidence that it did: the caller reads the GPUs again. ``timeout``
    is in seconds for each GPU, since they are reset one after the other. Raises DriverError (``call``, ``error`` in
    NVML's words, ``output``) when nvidia-smi fails, cannot be run or does not end; some of the GPUs may have been reset
    nevertheless.
    """
    if not gpus:
        return
    _require_nothing_open(gpus, root)
    _ask_nvidia_smi(gpus, timeout * len(gpus), watch, root)


def _ask_nvidia_smi(gpus: t.Sequence[Gpu], timeout: float, watch: t.Optional[Watch], root: str) -> None:
    targets = ",".join(gpu.pci_bus_id or gpu.uuid for gpu in gpus)
    numbers = ", ".join(str(gpu.index) for gpu in gpus)
    about = identity(gpus[0]) if len(gpus) == 1 else {}
    try:
        words = ("nvidia-smi", "--gpu-reset", "-i", targets)
        answer = _run(words, timeout, f"reset GPU {numbers}", watch, os.path.join(root, driver.DRIVER_ROOT.lstrip("/")))
    except DriverError as error:
        error.details.update(about)
        raise
    if answer.code == 0:
        return
    error_name = next((name for words, name in _ERRORS if words in answer.said.lower()), "UNKNOWN")
    raise DriverError(
        f"{CALL} of {', '.join(driver.describe(gpu) for gpu in gpus)} failed with {_exit_in_words(answer.code)}:"
        f' "{answer.said}". {_next_action(error_name, root)}',
        call=CALL,
        error=error_name,
        output=answer.said,
        **about,
    )


def _next_action(error: str, root: str) -> str:
    if error == "NOT_SUPPORTED":
        return "This machine cannot reset it: reboot the node."
    if error != "IN_USE":
        remedy = driver.remedy(error)
        return f"{remedy[0].upper()}{remedy[1:]}."
    loaded = drm_is_loaded(root)
    if loaded:
        return f"The kernel module {DRM} is loaded and holds the GPUs: set manage_drm, or run 'rmmod {DRM}'."
    also = (
        "" if loaded is False else f" Whether the kernel module {DRM} is loaded, which holds them too, cannot be told."
    )
    return (
        "Something uses these GPUs, or computes on another one, though it was not seen before: look with"
        f" gpu_holder_info, stop it, and run again.{also}"
    )


def _require_nothing_open(gpus: t.Sequence[Gpu], root: str) -> None:
    """A reset that waits for ourselves would fail, or worse, end in the middle."""
    folder = os.path.join(root, "proc/self/fd")
    ours = sorted(
        {target for number in _entries(folder) if _GPU_DEVICE.search(target := _target(f"{folder}/{number}"))}
    )
    if ours:
        raise DriverError(
            f"{driver.describe(gpus[0])} cannot be reset by a process that has {', '.join(ours)} open itself; this is a"
            " defect of gpufleet.mig.",
            call=CALL,
            error="IN_USE",
            **identity(gpus[0]),
        )


class _Answer(t.NamedTuple):
    """Exit status, and standard output and errors as one line that can be shown."""

    code: int
    said: str


def _run(words: t.Sequence[str], seconds: float, what: str, watch: t.Optional[Watch], other_root: str = "") -> _Answer:
    """Run a command without a shell. Raises DriverError when it is missing, or not back in time.

    Where this node does not have it, that below ``other_root`` is run. The caller's environment goes along: it says
    where the driver's library lies.
    """
    command = " ".join(words[:2])
    program = commands.find(words[0])
    start = (program,) if program is not None else commands.find_below(other_root, words[0]) if other_root else None
    if start is None:
        raise DriverError(
            f"{words[0]} was not found on this node, which is needed to {what}: install it, or add its folder to PATH.",
            call=command,
            error="NOT_FOUND",
        )
    if watch is not None:
        watch.begin(what, seconds + _SPARE_SECONDS)
    try:
        answer = commands.run((*start, *words[1:]), seconds, os.environ, patience=2.0, merged=True)
    except OSError as error:
        raise DriverError(f"{start[0]} cannot be run: {error.strerror}.", call=command, error="UNKNOWN") from error
    except commands.Late as late:
        ended = "was ended" if late.pid is None else f"is stuck in the kernel (process {late.pid})"
        raise DriverError(
            f"{command} did not come back within {seconds:g} s and {ended}: look into 'dmesg' and reboot the node.",
            call=command,
            error="TIMEOUT",
        ) from None
    return _Answer(answer.code, _line(answer.out) or "no output")


def _exit_in_words(code: int) -> str:
    return f"exit status {code}" if code >= 0 else f"signal {-code}"


def _line(text: str) -> str:
    """Text from outside as one line that can be shown, and not too long a one."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= _LONGEST_QUOTE else f"{line[:_LONGEST_QUOTE]}..."


# --- /proc and /sys ------------------------------------------------------------------------------------------------


def _entries(folder: str) -> list[str]:
    """Names in a folder, sorted; none where it is not there or may not be read."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _target(link: str) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""


def _first_word(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read(64).strip()
    except OSError:
        return ""


def _pids(root: str) -> list[int]:
    return sorted(int(name) for name in _entries(os.path.join(root, "proc")) if name.isdigit())


def _name_of(pid: int, root: str) -> str:
    return _line(_first_word(os.path.join(root, "proc", str(pid), "comm")))
