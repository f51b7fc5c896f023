# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""From instances to what container engines are told of them: device files, then the CDI specification, then the proof.

This file is private to the collection gpufleet.mig and may change at any time.

A specification names devices and lists the files of each. It is right when every MIG device of the node is in it by its
UUID with all of its files, when nothing is in it that the node has no more, and when it says what nvidia-ctk would
write now. Whether it was written is no evidence of any of that, so it is read back.

``nvidia-ctk cdi generate`` says what it would write as JSON, and that is what is compared and, where no unit of NVIDIA
does so, written: JSON is YAML too, and needs no other reader. It fails when there is no device at all, which is a state
and no failure here.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import typing as t

from . import capabilities, cdi_yaml, clients, commands, driver, holders, state
from .model import Gpu, MigError, Node
from .profiles import counted, printable
from .words import compute_in_words

KIND = "nvidia.com/gpu"
MANAGEMENT_KIND = "management.nvidia.com/gpu"
SPEC = "/var/run/cdi/nvidia.yaml"
MANAGEMENT_SPEC = "/var/run/cdi/management.nvidia.com-gpu.yaml"
FOLDERS = ("/etc/cdi", "/var/run/cdi")
UNIT = "nvidia-cdi-refresh.service"
UNIT_SETTINGS = "/etc/nvidia-container-toolkit/nvidia-cdi-refresh.env"

_PROGRAM = "nvidia-ctk"
_SECONDS = 120.0
# All that refresh() may take: four programs of so many seconds, the device files, and what is asked of systemd.
MOST_SECONDS = 5 * _SECONDS
_MOST_NAMED = 4
_LONGEST_QUOTE = 600
# Who may configure and who may monitor all instances, as the driver's table calls them.
_MANAGEMENT_FILES = ("config", "monitor")
_SETTING = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)=(?P<value>.*)")
# It would send what is asked for on standard output into a file.
_OUTPUT_SETTING = "NVIDIA_CTK_CDI_OUTPUT_FILE_PATH"
# Where a unit has settings of its own for the names, these are the names.
_NAMES_SETTING = "NVIDIA_CTK_CDI_GENERATE_DEVICE_NAME_STRATEGIES"

Spec = dict[str, t.Any]


class CdiError(MigError):
    """What containers are told of the GPUs is not right, and why."""


class Settings(t.NamedTuple):
    """Where specifications are and who writes them.

    ``unit`` is ``auto`` (NVIDIA's refresh unit where it is installed), ``always`` or ``never``. ``management`` is
    ``auto`` (where there is such a specification), ``always`` or ``never``. ``root`` is where /dev and /proc are; the
    paths of specifications are below it too.
    """

    spec: str = SPEC
    management_spec: str = MANAGEMENT_SPEC
    folders: tuple[str, ...] = FOLDERS
    unit: str = "auto"
    management: str = "auto"
    root: str = "/"


def settings_of(places: state.Places) -> t.Optional[Settings]:
    """How this node was set up by the role containers; None where it was not. Raises StateError."""
    record = state.read_cdi(places)
    return None if record is None else Settings(**record)


class Outcome(t.NamedTuple):
    """What was done, or in check mode would be. ``missing`` are device files that were not there before."""

    changed: bool
    empty: bool
    devices: tuple[str, ...]
    missing: tuple[str, ...]
    written: tuple[str, ...]
    removed: tuple[str, ...]
    unit: bool
    msg: str


class Device(t.NamedTuple):
    """A MIG device, or a GPU without MIG: the names that containers ask for it by, and the files that make it up."""

    uuid: str
    place: str
    what: str
    files: tuple[str, ...]
    mig: bool


class _Found(t.NamedTuple):
    """A file with a specification of one kind."""

    path: str
    spec: Spec


def refresh(node: Node, settings: Settings, check: bool = False) -> Outcome:
    """Bring what containers are told in line with the node. With ``check`` nothing is touched. Raises MigError."""
    require_whole(node)
    missing = _device_files(node, settings, check)
    devices = devices_of(node, settings.root)
    by_unit = uses_unit(settings)
    settings = located(settings)
    written: list[str] = []
    removed: list[str] = []
    if devices:
        written += _bring(node, devices, settings, by_unit, check)
    else:
        removed += _take_away(node, settings, check)
    written += _bring_management(settings, check)
    changed = bool(missing or written or removed)
    said = _in_words(node, devices, missing, written, removed, check)
    names = tuple(device.uuid for device in devices if device.mig)
    return Outcome(changed, not devices, names, tuple(missing), tuple(written), tuple(removed), by_unit, said)


def _in_words(
    node: Node,
    devices: t.Sequence[Device],
    missing: t.Sequence[str],
    written: t.Sequence[str],
    removed: t.Sequence[str],
    check: bool,
) -> str:
    did = "would be " if check else ""
    parts = []
    if missing:
        parts.append(f"{counted(len(missing), 'device file')} {did}made")
    if written:
        parts.append(f"{' and '.join(written)} {did}brought up to date")
    if removed:
        parts.append(f"{' and '.join(removed)} {did}removed")
    if not devices:
        why = "MIG is on and there is no instance" if node.gpus else "There is no GPU"
        return f"{why}: no container can get a device, and there is no specification{', '.join(['', *parts])}."
    mig = sum(device.mig for device in devices)
    there = f"{counted(mig, 'MIG device')} and {counted(len(devices) - mig, 'whole GPU')}"
    if not parts:
        return f"Containers are told of what there is: {there}."
    return f"Containers {'would be' if check else 'are'} told of what there is, {there}: {', '.join(parts)}."


def require_whole(node: Node) -> None:
    """Raise CdiError for a GPU that does not answer: what is on it might be called dead."""
    for gpu in node.gpus:
        # One that cannot do MIG has no mode.
        if gpu.problems or (gpu.mode_current is None and gpu.mig_capable is not False):
            why = f": {gpu.problems[0].call} says {gpu.problems[0].error}" if gpu.problems else ""
            raise CdiError(
                f"{driver.describe(gpu)} does not answer{why}, so nothing is said to containers about this node. See"
                " 'nvidia-smi' and 'dmesg', and run again."
            )


# --- what there is --------------------------------------------------------------------------------------------------


def devices_of(node: Node, root: str = "/") -> tuple[Device, ...]:
    """The devices that a container can be given, in the order of their indices."""
    minors = holders.capability_minors(root)
    found = []
    for gpu in node.gpus:
        whole = () if gpu.minor is None else (f"/dev/nvidia{gpu.minor}",)
        if not gpu.mode_current:
            found.append(Device(gpu.uuid, str(gpu.index), driver.describe(gpu), whole, False))
            continue
        found += _mig_devices(gpu, whole, minors)
    return tuple(found)


def _mig_devices(gpu: Gpu, whole: tuple[str, ...], minors: t.Mapping[t.Any, int]) -> list[Device]:
    found = []
    for instance in gpu.instances:
        for compute in instance.compute:
            places = ((gpu.minor, instance.id, None), (gpu.minor, instance.id, compute.id))
            caps = tuple(f"/dev/nvidia-caps/nvidia-cap{minors[place]}" for place in places if place in minors)
            what = f"{compute_in_words(instance, compute)} of GPU {gpu.index}"
            index = "" if compute.mig_index is None else f"{gpu.index}:{compute.mig_index}"
            found.append(Device(compute.uuid or "", index, what, (*whole, *caps), True))
    return sorted(found, key=lambda device: [int(number) for number in device.place.split(":") if number])


def _device_files(node: Node, settings: Settings, check: bool) -> list[str]:
    """See to the capability files of all instances; returns those that were missing. Raises MigError."""
    devices = devices_of(node, settings.root)
    caps = [file for device in devices if device.mig for file in device.files if "/nvidia-caps/" in file]
    missing = [file for file in dict.fromkeys(caps) if not os.path.exists(_below(settings.root, file))]
    if not check:
        capabilities.ensure(node, [gpu.index for gpu in node.gpus], root=settings.root)
    return missing


# --- the specification ----------------------------------------------------------------------------------------------


def _bring(node: Node, devices: t.Sequence[Device], settings: Settings, by_unit: bool, check: bool) -> list[str]:
    """Have the specification say what there is; returns its path if what it says has changed. Raises MigError."""
    fresh = _generated(settings, KIND, by_unit)
    path = settings.spec
    # In check mode a device file may be missing now that would be made.
    if not check:
        _require(_wrong_with(fresh, node, devices), f"{_PROGRAM} makes a specification that is not right")
    before = _before(path, settings.root, KIND)
    if before != fresh:
        if check:
            return [path]
        if by_unit:
            _restart_unit()
        else:
            _write(path, fresh, settings.root)
    after = before if check else _read(path, settings.root)
    if after is None:
        raise CdiError(f"{path} is not there after {UNIT} has run. Look into 'journalctl -u {UNIT}'.")
    if not check or before == fresh:
        prove(node, settings)
    return [path] if after != before else []


def prove(node: Node, settings: Settings) -> None:
    """Raise CdiError unless containers are told of every MIG device, with all its files, and of nothing that is gone.

    Reads and calls nothing that would change anything. What counts is what is in all folders together.
    """
    devices = devices_of(node, settings.root)
    path = settings.spec
    everything = _all_specs(settings, KIND)
    _require_one_each(everything)
    ours = next((found.spec for found in everything if found.path == path), None)
    if ours is None and devices:
        raise CdiError(
            f"{path} is not there, and containers that ask for CDI devices do not start. Run the tasks refresh.yml of"
            " the role gpufleet.mig.containers."
        )
    if ours is not None:
        _require(_wrong_with(ours, node, devices), f"{path} is not right")
    for found in everything:
        dead = [] if found.path == path else _dead(found.spec, node)
        if dead:
            raise CdiError(
                f"{found.path} names {_some(dead)}, which this node does not have. Another program made this file:"
                " remove it, or have that program make it again."
            )


def is_proven(node: Node, settings: Settings) -> bool:
    """Whether containers are told of what there is, as prove() says."""
    try:
        prove(node, located(settings))
    except MigError:
        return False
    return True


def _require(wrong: t.Sequence[str], what: str) -> None:
    if wrong:
        raise CdiError(
            f"{what}: {'; '.join(wrong)}. See what '{_PROGRAM} cdi generate' says on the node, and run again."
        )


def _wrong_with(spec: Spec, node: Node, devices: t.Sequence[Device]) -> list[str]:
    """Phrases about what a specification lacks, and what is in it that is not there any more."""
    files_of = _files_by_name(spec)
    wrong = []
    absent = [device for device in devices if device.mig and device.uuid.lower() not in files_of]
    if absent:
        wrong.append(f"it lacks {_some([f'{device.uuid} ({device.what})' for device in absent])}")
    for device in devices:
        listed = files_of.get(device.uuid.lower())
        missing = [] if listed is None else [file for file in device.files if file not in listed]
        if missing and device.mig:
            wrong.append(
                f"{device.uuid} ({device.what}) has no {_some(missing)}, without which a container cannot use it"
            )
    dead = _dead(spec, node)
    if dead:
        wrong.append(f"it names {_some(dead)}, which this node does not have")
    return wrong


def _dead(spec: Spec, node: Node) -> list[str]:
    """The names in a specification that stand for nothing any more; what names nothing is left out (``all``)."""
    known = {"all", "none"}
    for device in devices_of(node):
        place = device.place.lower()
        known |= {device.uuid.lower(), place, f"{'mig' if device.mig else 'gpu'}{place}"}
    return [name for name in _names(spec) if _names_a_device(name) and name.lower() not in known]


def _names_a_device(name: str) -> bool:
    return bool(re.fullmatch(r"(?i:(?:gpu|mig)?\d+(?::\d+)?|(?:GPU|MIG)-.+)", name))


def _names(spec: Spec) -> list[str]:
    return [str(device["name"]) for device in spec["devices"]]


def _files_by_name(spec: Spec) -> dict[str, set[str]]:
    """The paths of device files in the container, by the name of the device in lower case."""
    found: dict[str, set[str]] = {}
    for device in spec["devices"]:
        nodes = (device.get("containerEdits") or {}).get("deviceNodes") or []
        found[str(device["name"]).lower()] = {str(node.get("path")) for node in nodes}
    return found


def _require_one_each(everything: t.Sequence[_Found]) -> None:
    """Two files of one folder that name one device cancel each other out, and no container gets it."""
    seen: dict[tuple[str, str], str] = {}
    for found in everything:
        for name in _names(found.spec):
            other = seen.setdefault((os.path.dirname(found.path), name), found.path)
            if other != found.path:
                raise CdiError(
                    f"{other} and {found.path} both have {KIND}={name}, and so no container can get it. Remove the one"
                    " that no program keeps up to date."
                )


def _take_away(node: Node, settings: Settings, check: bool) -> list[str]:
    """Remove the specification of devices that are all gone. A container that asks for one is then told so."""
    before = _before(settings.spec, settings.root, KIND)
    if before is None or not _dead(before, node):
        return []
    if not check:
        os.unlink(_below(settings.root, settings.spec))
    return [settings.spec]


# --- the management specification -----------------------------------------------------------------------------------


def _bring_management(settings: Settings, check: bool) -> list[str]:
    """The specification for what manages the GPUs (device plugins, exporters): all files, and no single device.

    It is made in a mode of its own; made as the other one is, it would lack the files for configuring and monitoring.
    """
    path = settings.management_spec
    there = os.path.exists(_below(settings.root, path))
    if settings.management == "never" or (settings.management == "auto" and not there):
        return []
    needed = _management_files(settings.root)
    if not check:
        _make_management_files(settings.root, needed)
    fresh = _generated(settings, MANAGEMENT_KIND, False)
    listed = set().union(*_files_by_name(fresh).values())
    lacking = [file for file in needed if file not in listed]
    if lacking and not check:
        raise CdiError(
            f"{_PROGRAM} makes a management specification without {_some(lacking)}, and device plugins could not read"
            f" the instances with it. See whether {'it is' if len(lacking) == 1 else 'they are'} in /dev/nvidia-caps."
        )
    before = _before(path, settings.root, MANAGEMENT_KIND)
    if before == fresh:
        return []
    if not check:
        _write(path, fresh, settings.root)
    return [path]


def _management_files(root: str) -> list[str]:
    """The files for configuring and monitoring all instances, by the driver's table; none where there is no table."""
    table = _text(_below(root, "/proc/driver/nvidia-caps/mig-minors")) or ""
    minors = dict(re.findall(r"^(\w+) (\d+)$", table, re.MULTILINE))
    return [f"/dev/nvidia-caps/nvidia-cap{minors[name]}" for name in _MANAGEMENT_FILES if name in minors]


def _make_management_files(root: str, needed: t.Sequence[str]) -> None:
    missing = [file for file in needed if not os.path.exists(_below(root, file))]
    if not missing:
        return
    program = commands.find("nvidia-modprobe")
    words = [word for name in _MANAGEMENT_FILES for word in ("-f", f"/proc/driver/nvidia/capabilities/mig/{name}")]
    said = "nvidia-modprobe is not installed"
    if program is not None:
        answer = _run((program, *words), {})
        said = _said(answer) or "nvidia-modprobe ended without an error"
    missing = [file for file in missing if not os.path.exists(_below(root, file))]
    if missing:
        raise CdiError(
            f"{_some(missing)} could not be made ({said}), and what manages the GPUs could not read the instances. Run"
            f" 'nvidia-modprobe {' '.join(words)}' on the host to see why, and run again."
        )


# --- nvidia-ctk and its unit ----------------------------------------------------------------------------------------


def uses_unit(settings: Settings) -> bool:
    """Whether NVIDIA's own unit writes the specification on this node. Raises MigError."""
    if settings.unit == "never":
        return False
    installed = _unit_is_installed()
    if settings.unit == "always" and not installed:
        raise CdiError(
            f"{UNIT} is not installed on this node; it comes with the NVIDIA Container Toolkit from 1.18 on. Install"
            " that, or let the unit be auto."
        )
    return installed


def located(settings: Settings) -> Settings:
    """The settings with the path that the unit writes to, where it is the unit that does."""
    if not uses_unit(settings):
        return settings
    return settings._replace(spec=_unit_settings(settings).get(_OUTPUT_SETTING, settings.spec))


def _unit_is_installed() -> bool:
    manager = clients.manager_of()
    return manager.state(UNIT).load == "loaded"


def _restart_unit() -> None:
    """Have the unit run now. It ends by itself, and is not waited for beyond its time."""
    program = commands.find("systemctl")
    if program is None:
        raise CdiError(f"{UNIT} cannot be started: there is no systemctl on this node.")
    answer = _run((program, "restart", "--", UNIT), {})
    if answer.code != 0:
        raise CdiError(f"{UNIT} failed: {_said(answer)}. Look into 'journalctl -u {UNIT}'.")


def _unit_settings(settings: Settings) -> dict[str, str]:
    """The variables that the unit gives nvidia-ctk, from the file that administrators may write."""
    found = {}
    for line in (_text(_below(settings.root, UNIT_SETTINGS)) or "").splitlines():
        setting = _SETTING.fullmatch(line.strip())
        if setting:
            found[setting["name"]] = setting["value"].strip().strip("\"'")
    return found


def _generated(settings: Settings, kind: str, by_unit: bool) -> Spec:
    """What nvidia-ctk would write now. Raises MigError."""
    program = commands.find(_PROGRAM)
    if program is None:
        raise CdiError(
            f"There is no {_PROGRAM} on this node, which knows what containers need. Install the NVIDIA Container"
            " Toolkit."
        )
    # What a login says of where the driver's library is counts here as it does for ourselves.
    environment = {**os.environ, **(_unit_settings(settings) if by_unit else {})}
    environment.pop(_OUTPUT_SETTING, "")
    words = [program, "cdi", "generate", "--format=json", "--output="]
    if kind == MANAGEMENT_KIND:
        words += ["--mode=management", f"--vendor={kind.partition('/')[0]}"]
    elif _NAMES_SETTING not in environment:
        # Up to version 1.17 there were no UUIDs by default.
        words += ["--device-name-strategy=index", "--device-name-strategy=uuid"]
    answer = _run(words, environment)
    if answer.code != 0:
        raise CdiError(
            f"'{_PROGRAM} cdi generate' failed: {_said(answer)}. Run it on the node to see why, and run again."
        )
    for spec in _documents(answer.out):
        if spec.get("kind") == kind:
            return _checked(spec, f"What {_PROGRAM} prints")
    raise CdiError(
        f"'{_PROGRAM} cdi generate' ended without a specification of {kind}: {_said(answer) or 'it said nothing'}."
    )


def _documents(text: str) -> t.Iterator[Spec]:
    """The JSON documents in a text: for GPUs with coherent memory there is more than one."""
    decoder = json.JSONDecoder()
    at = text.find("{")
    while at >= 0:
        try:
            document, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            return
        if isinstance(document, dict):
            yield document
        at = text.find("{", at)


def _run(words: t.Sequence[str], environment: t.Mapping[str, str]) -> commands.Answer:
    name = os.path.basename(words[0])
    try:
        return commands.run(words, _SECONDS, environment, patience=2.0)
    except (OSError, ValueError) as error:
        raise CdiError(f"{name} cannot be run: {error}.") from None
    except commands.Late:
        raise CdiError(
            f"{name} did not come back within {_SECONDS:g} s and was ended. See what it waits for, and run again."
        ) from None


def _said(answer: commands.Answer) -> str:
    return printable(" ".join((answer.err or answer.out).split())[-_LONGEST_QUOTE:])


# --- files ----------------------------------------------------------------------------------------------------------


def _below(root: str, path: str) -> str:
    return os.path.join(root, path.lstrip("/"))


def _text(path: str) -> t.Optional[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CdiError(f"{path} cannot be read: {error.strerror}. Run as root, or see what is there.") from None


def _before(path: str, root: str, kind: str) -> t.Optional[Spec]:
    """What is there now; None also where that is no such specification, since it is about to be made anew."""
    try:
        return _read(path, root, kind)
    except CdiError:
        return None


def _read(path: str, root: str, kind: str = KIND) -> t.Optional[Spec]:
    """The specification in a file; None where it is not there or is of another kind, however that is written."""
    text = _text(_below(root, path))
    if text is None or kind not in text:
        return None
    try:
        spec = cdi_yaml.parse(text)
    except cdi_yaml.Unreadable as error:
        raise CdiError(
            f"{path} cannot be understood: {error}. Remove it, so that it is made anew, or have it made as JSON (role"
            " containers, containers_unit=never)."
        ) from None
    return _checked(spec, path) if isinstance(spec, dict) and spec.get("kind") == kind else None


def _checked(spec: Spec, where: str) -> Spec:
    """The specification, if it has devices with names. Raises CdiError."""
    devices = spec.get("devices")
    if not isinstance(devices, list) or not all(isinstance(each, dict) and "name" in each for each in devices):
        raise CdiError(f"{where} is no CDI specification: its devices are not a list of things with a name.")
    return spec


def _all_specs(settings: Settings, kind: str) -> list[_Found]:
    """The specifications of one kind in all folders. A folder is seen once, also where two names lead to it."""
    found = []
    seen = set()
    for folder in settings.folders:
        place = os.path.realpath(_below(settings.root, folder))
        names = sorted(os.listdir(place)) if os.path.isdir(place) and place not in seen else []
        seen.add(place)
        for name in names:
            if name.endswith((".json", ".yaml")):
                path = os.path.join(folder, name)
                spec = _read(path, settings.root, kind)
                if spec is not None:
                    found.append(_Found(path, spec))
    return found


def _write(path: str, spec: Spec, root: str) -> None:
    """Put the file there as a whole. Raises CdiError."""
    place = _below(root, path)
    folder = os.path.dirname(place)
    try:
        os.makedirs(folder, mode=0o755, exist_ok=True)
        descriptor, new = tempfile.mkstemp(prefix=".gpufleet-mig-", dir=folder)
        try:
            with open(descriptor, "w", encoding="utf-8") as file:
                json.dump(spec, file, indent=1)
                file.write("\n")
            os.chmod(new, 0o644)
            os.rename(new, place)
        except OSError:
            os.unlink(new)
            raise
    except OSError as error:
        raise CdiError(f"{path} cannot be written: {error.strerror}. Run as root, or see what is there.") from None


def _some(things: t.Sequence[str]) -> str:
    shown = [printable(thing) for thing in things[:_MOST_NAMED]]
    if len(things) > len(shown):
        shown.append(f"{len(things) - len(shown)} more")
    return f"{', '.join(shown[:-1])} and {shown[-1]}" if len(shown) > 1 else shown[0]
