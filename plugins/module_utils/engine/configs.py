# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""From a label or config entries to what is wanted of every GPU of a node.

This file is private to the collection gpufleet.mig and may change at any time.

The format is that of NVIDIA's mig-parted, ``version: v1``, already parsed (YAML is read on the controller)::

    version: v1
    mig-configs:
      LABEL:
        - devices: all              # or 3, or [0, 1]
          device-filter: 0x20B010DE # optional; or a list; or with the subsystem, 0x20B010DE:0x134F10DE
          mig-enabled: true
          mig-devices: {1g.5gb: 7}  # {} is MIG without instances

Nothing here touches a GPU: whatever cannot be had is refused before any change, in one sentence.
"""

from __future__ import annotations

import re
import typing as t

from . import profiles as names
from .catalog import profiles_of, what_mig_needs
from .drawing import draw_slots
from .model import ComputeWish, Gpu, GpuInstance, GpuWish, InstanceWish, Node, Profile, Wanted, WishError
from .profiles import ProfileName, counted, quoted

VERSION = "v1"
UNLISTED_POLICIES = ("ignore", "disable", "fail")

# As many as a number given as text may say. What it counts is far fewer; what is above can only be a mistake, and
# Python neither computes quickly with numbers of thousands of digits nor writes them.
_LARGEST_NUMBER = 999_999

_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+,-]{0,252}")
_COUNTED = re.compile(r"(?:(?P<count>\d{1,4})x)?(?P<name>\d+[cg][^,]*)")
_FILTER = re.compile(r"(?:0x)?([0-9a-f]{8})(?::(?:0x)?([0-9a-f]{8}))?", re.IGNORECASE)
_PCI = re.compile(
    r"(?:(?P<domain>[0-9a-f]{4,8}):)?(?P<bus>[0-9a-f]{2}):(?P<slot>[0-9a-f]{2})(?:\.(?P<function>[0-7]))?",
    re.IGNORECASE,
)


class Entry(t.NamedTuple):
    """One config entry. ``devices`` is ``None`` for all GPUs.

    ``filters`` are (PCI device id, PCI subsystem id or ``None``), empty for every kind of GPU; ``instances`` are
    (profile name, count), in the order given and without zeros.
    """

    devices: t.Optional[frozenset[int]] = None
    filters: tuple[tuple[int, t.Optional[int]], ...] = ()
    enabled: bool = True
    instances: tuple[tuple[ProfileName, int], ...] = ()

    def lists(self, gpu: Gpu) -> bool:
        """Whether ``devices`` speaks of this GPU."""
        return self.devices is None or gpu.index in self.devices

    def covers(self, gpu: Gpu) -> bool:
        """Whether ``device-filter`` lets this kind of GPU through."""
        return not self.filters or any(
            device == gpu.pci_device_id and subsystem in (None, gpu.pci_subsystem_id)
            for device, subsystem in self.filters
        )

    def demands(self) -> tuple[bool, tuple[tuple[ProfileName, int], ...]]:
        """What is wanted, for telling whether two entries want the same."""
        return self.enabled, tuple(sorted(self.instances, key=str))


class Configs(t.NamedTuple):
    """A config document that has been checked: entries by label."""

    labels: dict[str, tuple[Entry, ...]]


class _Choice(t.NamedTuple):
    """What the caller decided on: a label with its entries. Those of a generated label get their instances per GPU."""

    label: str
    source: str
    entries: tuple[Entry, ...]

    def __str__(self) -> str:
        return f"label {self.label}" if self.label else "the config"


class _Part(t.NamedTuple):
    """So many MIG devices of one kind: CIs of ``compute`` slices, in GIs of ``profile``."""

    profile: Profile
    compute: int
    number: int

    def __str__(self) -> str:
        return f"{names.name_of(self.profile, self.compute)}: {self.number}"


# --- checking documents ---------------------------------------------------------------------------------------------


def check_configs(data: t.Any) -> Configs:
    """Check a whole config document, given as plain data. Raises WishError that names the label and the key."""
    document = mapping(data, "the config document")
    _known_keys(document, ("version", "mig-configs"), "the config document")
    if "version" not in document:
        raise WishError(f"the config document has no version; it must say version: {VERSION}")
    if document["version"] != VERSION:
        raise WishError(f"version of the config document is {quoted(document['version'])}; only {VERSION} is known")
    if "mig-configs" not in document:
        raise WishError("the config document has no mig-configs, which holds the labels")
    return _check_labels(document["mig-configs"], "mig-configs")


def check_entries(data: t.Any, where: str) -> tuple[Entry, ...]:
    """Check the list of entries that stands under a label. ``where`` names it in messages."""
    if not isinstance(data, (list, tuple)):
        raise WishError(f"{where} must be a list of entries, not {kind(data)}")
    if not data:
        raise WishError(f"{where} has no entries; at least one is needed")
    return tuple(_check_entry(each, f"{where}, entry {number}") for number, each in enumerate(data, start=1))


def _check_labels(data: t.Any, where: str) -> Configs:
    by_label = mapping(data, where)
    if not by_label:
        raise WishError(f"{where} has no labels; at least one is needed")
    labels: dict[str, tuple[Entry, ...]] = {}
    spellings: dict[str, t.Any] = {}
    for given, value in by_label.items():
        label = check_label(given)
        if label in labels:
            raise WishError(
                f"{where} has the labels {quoted(spellings[label])} and {quoted(given)}, which are one and the same; "
                "remove one of them or give it another name"
            )
        spellings[label] = given
        labels[label] = check_entries(value, f"label {label}")
    return Configs(labels)


def check_label(label: t.Any) -> str:
    """A label as it may be used, without blanks around it or after its commas. Raises WishError for any other text."""
    if not isinstance(label, str):
        raise WishError(f"a label must be text, not {kind(label)}")
    if "{{" in label or "{%" in label:
        raise WishError(f"label {quoted(label)} is a template that nobody has filled in; give the label itself")
    cleaned = re.sub(r"\s*,\s*", ",", label.strip())
    if not cleaned:
        raise WishError("the label is empty; give one such as all-disabled or all-balanced")
    if not _LABEL.fullmatch(cleaned):
        raise WishError(f"label {quoted(label)} is not allowed: only letters, digits and the characters . _ + , - are")
    return cleaned


def _check_entry(data: t.Any, where: str) -> Entry:
    entry = mapping(data, where)
    _known_keys(entry, ("devices", "device-filter", "mig-enabled", "mig-devices"), where)
    for key in ("devices", "mig-enabled"):
        if key not in entry:
            raise WishError(f"{where} lacks {key}")
    enabled = entry["mig-enabled"]
    if not isinstance(enabled, bool):
        raise WishError(f"mig-enabled of {where} must be true or false, not {kind(enabled)}")
    if enabled and entry.get("mig-devices") is None:
        raise WishError(f"{where} enables MIG but lacks mig-devices; write {{}} for MIG without instances")
    given = entry.get("mig-devices")
    instances = _check_instances({} if given is None else given, where)
    if instances and not enabled:
        raise WishError(f"{where} wants instances while mig-enabled is false; remove mig-devices or enable MIG")
    return Entry(
        devices=_check_devices(entry["devices"], where),
        filters=_check_filters(entry.get("device-filter"), where),
        enabled=enabled,
        instances=instances,
    )


def _check_devices(data: t.Any, where: str) -> t.Optional[frozenset[int]]:
    if data == "all":
        return None
    items = data if isinstance(data, (list, tuple)) else [data]
    indices = [whole_number(item) for item in items]
    for item, index in zip(items, indices):
        if index is None:
            raise WishError(f"devices of {where} must be all, a GPU index or a list of these, not {quoted(item)}")
    return frozenset(index for index in indices if index is not None)


def _check_filters(data: t.Any, where: str) -> tuple[tuple[int, t.Optional[int]], ...]:
    if data is None or data == "":
        return ()
    return tuple(_check_filter(item, where) for item in (data if isinstance(data, (list, tuple)) else [data]))


def _check_filter(data: t.Any, where: str) -> tuple[int, t.Optional[int]]:
    if isinstance(data, int) and not isinstance(data, bool) and 0 < data <= 0xFFFFFFFF:
        return data, None  # an id without quotes is a number in YAML
    match = _FILTER.fullmatch(data) if isinstance(data, str) else None
    if match is None:
        raise WishError(
            f"device-filter of {where} must be PCI device and vendor id such as 0x20B010DE, with or without a "
            f"subsystem such as 0x20B010DE:0x134F10DE, or a list of these, not {quoted(data)}"
        )
    device, subsystem = match.groups()
    return int(device, 16), None if subsystem is None else int(subsystem, 16)


def _check_instances(data: t.Any, where: str) -> tuple[tuple[ProfileName, int], ...]:
    counts = mapping(data, f"mig-devices of {where}")
    checked = []
    for text, count in counts.items():
        try:
            name = names.parse(text)
        except WishError as error:
            raise WishError(f"mig-devices of {where}: {error}") from None
        if isinstance(count, bool) or not isinstance(count, int):
            raise WishError(f"count of {text} in {where} must be a whole number, not {kind(count)}")
        if count < 0:
            raise WishError(f"count of {text} in {where} is {quoted(count)}; it cannot be negative")
        if count > _LARGEST_NUMBER:
            raise WishError(f"count of {text} in {where} is {quoted(count)}; no GPU holds that many")
        if count:
            checked.append((name, count))
    if counts and not checked:
        raise WishError(f"all counts of {where} are 0; write mig-devices: {{}} for MIG without instances")
    return tuple(checked)


def mapping(data: t.Any, where: str) -> dict[t.Any, t.Any]:
    """Data that must be a mapping, as one. ``where`` names it in the WishError for anything else."""
    if not isinstance(data, dict):
        raise WishError(f"{where} must be a mapping, not {kind(data)}")
    return data


def _known_keys(data: dict[t.Any, t.Any], known: tuple[str, ...], where: str) -> None:
    for key in data:
        if key not in known:
            nearest = _nearest_first(key, known) if isinstance(key, str) else known
            raise WishError(f"{where} has an unknown key {quoted(key)}; known are {', '.join(nearest)}")


def kind(value: t.Any) -> str:
    """A value of a wrong type in words: ``text '7'``, ``a list``, ``nothing``."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f"text {quoted(value)}"
    if isinstance(value, (int, float)):
        return f"the number {quoted(value)}"
    if isinstance(value, dict):
        return "a mapping"
    return "a list" if isinstance(value, (list, tuple)) else f"a value of type {type(value).__name__}"


def whole_number(value: t.Any) -> t.Optional[int]:
    """0, 1, 2 … given as number or as digits, as surveys and command lines do; None above any number of GPUs."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST_NUMBER:
        return value
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,6}", value.strip()):
        return int(value)
    return None


def _nearest_first(word: str, known: t.Iterable[str]) -> list[str]:
    """All known words, those that resemble the given one first."""
    import difflib  # only a refusal pays for this import

    remaining = list(dict.fromkeys(known))
    lowered = {each.lower(): each for each in reversed(remaining)}
    near = [lowered[each] for each in difflib.get_close_matches(word.lower(), list(lowered), n=3, cutoff=0.6)]
    return near + [each for each in remaining if each not in near]


# --- labels that follow from the hardware ---------------------------------------------------------------------------


def generated_labels(node: Node) -> dict[str, dict[int, dict[str, int]]]:
    """Every label that needs no config: ``{label: {GPU index: {profile name: count}}}``, only the GPUs that have it."""
    node = _with_profiles(node)
    labels: dict[str, dict[int, dict[str, int]]] = {"all-disabled": {}, "all-enabled": {}}
    per_kind: dict[tuple[Profile, ...], dict[str, dict[str, int]]] = {}
    for gpu in node.gpus:
        if not gpu.mig_capable:
            continue
        offered = gpu.profiles or ()
        if offered not in per_kind:
            per_kind[offered] = _labels_of(offered)
        labels["all-disabled"][gpu.index] = {}
        labels["all-enabled"][gpu.index] = {}
        for label, counts in per_kind[offered].items():
            labels.setdefault(label, {})[gpu.index] = counts
    return labels


def _labels_of(offered: tuple[Profile, ...]) -> dict[str, dict[str, int]]:
    labels = {names.label_of(each.name): {each.name: names.maximum(each, offered)} for each in offered}
    balanced = _balanced(offered)
    if balanced:
        labels["all-balanced"] = {part.profile.name: part.number for part in balanced}
    return labels


def _balanced(offered: tuple[Profile, ...]) -> tuple[_Part, ...]:
    """mig-parted's formula: 2 x 1g, 1 x 2g, and on boards of seven slices 1 x 3g; nothing where one of these lacks.

    Base profiles only; of two of one size the one that fits more often.
    """
    whole = max((each.slices for each in offered), default=0)
    recipe = {7: ((1, 2), (2, 1), (3, 1)), 4: ((1, 2), (2, 1))}.get(whole, ())
    parts = []
    for slices, count in recipe:
        base = [each for each in offered if each.slices == slices and not each.attributes]
        if not base:
            return ()
        parts.append(_Part(max(base, key=lambda each: names.maximum(each, offered)), slices, count))
    return tuple(parts)


def _generated_parts(label: str, offered: tuple[Profile, ...]) -> tuple[_Part, ...]:
    """What a generated label means on a GPU with these profiles. Raises WishError where it means nothing."""
    if label == "all-balanced":
        parts = _balanced(offered)
        if not parts:
            raise WishError("no balanced layout, which takes base profiles of 1, 2 and (of 7 slices) 3 slices")
        return parts
    profile = names.find(t.cast(ProfileName, names.parse_label(label)), offered)
    return (_Part(profile, profile.slices, names.maximum(profile, offered)),)


def _is_generated(label: str, node: Node) -> bool:
    if label in ("all-disabled", "all-enabled", "all-balanced"):
        return True
    name = names.parse_label(label)
    if name is None:
        return False
    lists = {gpu.profiles for gpu in node.gpus if gpu.mig_capable and gpu.profiles}
    # Where no GPU lists profiles there is nothing to contradict the name.
    return not lists or any(_has(name, offered) for offered in lists)


def _has(name: ProfileName, offered: tuple[Profile, ...]) -> bool:
    try:
        names.find(name, offered)
    except WishError:
        return False
    return True


# --- from the caller's words to entries -----------------------------------------------------------------------------


def resolve(
    node: Node,
    *,
    label: t.Optional[str] = None,
    config: t.Any = None,
    configs: t.Any = None,
    gpus: t.Any = None,
    unlisted: str = "ignore",
    expected_gpus: t.Any = None,
    allow_empty: bool = False,
    mode_only: bool = False,
) -> Wanted:
    """What is wanted of every GPU of this node.

    ``label`` (given in ``configs``, generated from the hardware, or in count form such as ``3g.20gb,2x2g.10gb``) or
    ``config``, the entries themselves. ``configs`` is a document, what check_configs made of it, or entries by label.
    ``gpus`` narrows everything to some GPUs, the others are left alone and not counted as unlisted. ``expected_gpus``
    is the number of all GPUs that the driver counts, also of those without MIG. Raises WishError.
    """
    if unlisted not in UNLISTED_POLICIES:
        raise WishError(f"unlisted is {quoted(unlisted)}; it must be one of {', '.join(UNLISTED_POLICIES)}")
    check_expected(node, expected_gpus)
    node = _with_profiles(node)
    choice = _choose(node, label, config, configs)
    _check_listed_indices(node, choice)
    selected, by_name = select_gpus(node, gpus)
    maker = _WishMaker(choice, allow_empty or choice.label == "all-enabled", mode_only)
    wishes: dict[int, GpuWish] = {}
    left_out: list[int] = []
    skipped: list[int] = []
    for gpu in selected:
        listing = [entry for entry in choice.entries if entry.lists(gpu)]
        if gpu.mig_capable is False:
            _refuse_mig_by_name(gpu, listing, by_name, choice)
            skipped.append(gpu.index)
        elif not listing:
            left_out.append(gpu.index)
            if unlisted == "disable":
                check_readable(gpu)
                wishes[gpu.index] = GpuWish(enabled=False, said="MIG off, as for all GPUs that are not listed")
        else:
            check_readable(gpu)
            wishes[gpu.index] = maker.wish(gpu, _only_entry(gpu, listing, choice))
    if left_out and unlisted == "fail":
        raise WishError(
            f"{choice} does not list {_gpu_numbers(left_out)}, and unlisted is fail; list them under devices or choose "
            "another policy",
            unlisted=left_out,
        )
    return Wanted(choice.label, choice.source, wishes, tuple(left_out), tuple(skipped))


def check_expected(node: Node, expected_gpus: t.Any) -> None:
    """Refuse a node that does not have as many GPUs as its inventory says; None says nothing."""
    if expected_gpus is None:
        return
    expected = whole_number(expected_gpus)
    if expected is None:
        raise WishError(f"expected_gpus must be a number of GPUs, not {kind(expected_gpus)}")
    if expected != len(node.gpus):
        what_differs = "which GPU is missing" if expected > len(node.gpus) else "which GPU was not expected"
        raise WishError(
            f"this node has {counted(len(node.gpus), 'GPU')}, expected_gpus says {expected}; see with 'lspci -d 10de:' "
            f"and 'dmesg' {what_differs}, or correct expected_gpus"
        )


def _choose(node: Node, label: t.Any, config: t.Any, configs: t.Any) -> _Choice:
    if (label is None) == (config is None):
        raise WishError("give label or config, not both" if config is not None else "give a label or a config")
    if config is not None:
        return _Choice("", "given", check_entries(config, "config"))
    given = _as_configs(configs)
    wanted = check_label(label)
    if wanted in given.labels:
        return _Choice(wanted, "given", given.labels[wanted])
    if _is_generated(wanted, node):
        return _Choice(wanted, "generated", (Entry(enabled=wanted != "all-disabled"),))
    counted = _count_form(wanted)
    if counted:
        return _Choice(wanted, "count", (Entry(instances=counted),))
    for gpu in node.gpus:
        if gpu.mig_capable is not False:
            check_readable(gpu)  # a label that only this GPU would offer is not unknown, nobody can tell
    raise _unknown_label(wanted, given, node)


def _as_configs(data: t.Any) -> Configs:
    if data is None:
        return Configs({})
    if isinstance(data, Configs):
        return data
    if isinstance(data, dict) and ("version" in data or "mig-configs" in data):
        return check_configs(data)
    return _check_labels(data, "configs") if data != {} else Configs({})


def _count_form(label: str) -> tuple[tuple[ProfileName, int], ...]:
    """``3g.20gb,2x2g.10gb`` as names and counts; empty for text that does not look like it."""
    matches = [_COUNTED.fullmatch(part) for part in label.split(",")]
    counts: dict[ProfileName, int] = {}
    for match in matches:
        if match is None:
            return ()
        count = int(match.group("count") or 1)
        if count == 0:
            raise WishError(f"label {quoted(label)} has a count of 0; leave {match.group('name')} out")
        name = names.parse(match.group("name"))
        counts[name] = counts.get(name, 0) + count
    return tuple(counts.items())


def _unknown_label(label: str, given: Configs, node: Node) -> WishError:
    known = [*given.labels, *generated_labels(node)]
    name = names.parse_label(label)
    if name is not None:
        # Labels of profiles with as many slices are nearer than any that only look alike.
        lists = {gpu.profiles or () for gpu in node.gpus}
        same = [names.label_of(each.name) for offered in lists for each in offered if each.slices == name.slices]
        known = sorted(same, key=known.index) + known
    known = list(dict.fromkeys(known)) if name is not None else _nearest_first(label, known)
    shown = ", ".join(known[:20]) + (f" and {len(known) - 20} more" if len(known) > 20 else "")
    return WishError(f"label {quoted(label)} is unknown; known here, nearest first: {shown}", known=known)


# --- which GPUs -----------------------------------------------------------------------------------------------------


def _check_listed_indices(node: Node, choice: _Choice) -> None:
    """An index that the node does not have is an error, unless the filter says that the entry is about other nodes."""
    present = {gpu.index for gpu in node.gpus}
    for entry in choice.entries:
        missing = sorted((entry.devices or frozenset()) - present)
        if missing and any(entry.covers(gpu) for gpu in node.gpus):
            raise WishError(
                f"{choice} lists {_gpu_numbers(missing)}, but {_what_there_is(node, _index)}", unknown=missing
            )


def select_gpus(node: Node, gpus: t.Any) -> tuple[tuple[Gpu, ...], bool]:
    """The GPUs that the caller wants to speak of, and whether they were named one by one. Raises WishError."""
    if gpus is None or gpus == "all" or gpus == ["all"]:
        return node.gpus, False
    items = gpus.split(",") if isinstance(gpus, str) else gpus if isinstance(gpus, (list, tuple)) else [gpus]
    if not items:
        raise WishError("gpus is an empty list; give all, or some GPUs by index, UUID or PCI id")
    chosen = {_find_gpu(node, item).index for item in items}
    return tuple(gpu for gpu in node.gpus if gpu.index in chosen), True


def _find_gpu(node: Node, selector: t.Any) -> Gpu:
    """The one GPU that a selector means: a PCI id, else a UUID, else an index."""
    text = selector.strip() if isinstance(selector, str) else ""
    index = whole_number(selector)
    pci = _PCI.fullmatch(text)
    named_by: t.Callable[[Gpu], object] = _index
    if pci is not None:
        named_by = _pci_bus_id
        found = [gpu for gpu in node.gpus if is_at(gpu, text)]
    elif text.upper().startswith("GPU-"):
        named_by = _uuid
        found = [gpu for gpu in node.gpus if gpu.uuid.lower() == text.lower()]
    elif index is not None:
        found = [gpu for gpu in node.gpus if gpu.index == index]
    elif text.upper().startswith("MIG-"):
        raise WishError(f"gpus names {quoted(selector)}, which is a MIG device; name the GPU that it is on")
    else:
        raise WishError(f"gpus names {quoted(selector)}, which is neither an index nor a GPU UUID nor a PCI id")
    if not found:
        raise WishError(f"gpus names {quoted(selector)}, but {_what_there_is(node, named_by)}")
    if len(found) > 1:
        matches = " and ".join(f"GPU {gpu.index} at {gpu.pci_bus_id}" for gpu in found)
        raise WishError(f"gpus names {quoted(selector)}, which is {matches}; write the PCI domain too")
    return found[0]


def _index(gpu: Gpu) -> object:
    return gpu.index


def _pci_bus_id(gpu: Gpu) -> object:
    return gpu.pci_bus_id


def _uuid(gpu: Gpu) -> object:
    return gpu.uuid


def is_pci_id(text: str) -> bool:
    """Whether this can be the PCI id of a GPU: ``00000000:07:00.0``, ``07:00``."""
    return _PCI.fullmatch(text) is not None


def is_at(gpu: Gpu, pci_id: str) -> bool:
    """Whether a GPU is at a PCI id in any of its spellings; without a domain, in any domain."""
    pci, place = _PCI.fullmatch(pci_id), _PCI.fullmatch(gpu.pci_bus_id)
    if pci is None or place is None:
        return False
    same = all(int(place[part], 16) == int(pci[part], 16) for part in ("bus", "slot"))
    same_domain = pci["domain"] is None or int(place["domain"] or "0", 16) == int(pci["domain"], 16)
    return same and same_domain and (pci["function"] or "0") == (place["function"] or "0")


def _what_there_is(node: Node, of: t.Callable[[Gpu], object]) -> str:
    """The GPUs of a node by whatever they were called by."""
    if not node.gpus:
        return "this node has no GPU"
    return f"the GPUs of this node are {', '.join(str(of(gpu)) for gpu in node.gpus)}"


def _gpu_numbers(indices: t.Sequence[int]) -> str:
    return f"GPU{'s' if len(indices) > 1 else ''} {', '.join(map(str, indices))}"


def _refuse_mig_by_name(gpu: Gpu, listing: t.Sequence[Entry], by_name: bool, choice: _Choice) -> None:
    """A GPU without MIG is passed over under ``all``, but not when somebody named it to have MIG."""
    for entry in listing:
        if entry.enabled and entry.covers(gpu) and (by_name or entry.devices is not None):
            raise refusal(
                gpu, f"cannot do MIG, but {choice} wants MIG on it by name; {what_mig_needs(gpu) or 'leave it out'}"
            )


def check_readable(gpu: Gpu) -> None:
    """Refuse a GPU that does not answer, or does not say its mode: whatever is asked of it would be a guess."""
    if gpu.problems:
        denied = [problem for problem in gpu.problems if problem.error == "NO_PERMISSION"]
        problem = (denied or gpu.problems)[0]
        what = "does not answer a user without privilege" if denied else "does not answer"
        raise refusal(gpu, f"{what}: {problem.call} says {problem.error}; {problem.remedy}")
    if gpu.mig_capable is None or gpu.mode_current is None:
        raise refusal(gpu, "does not say whether it is in MIG mode; look at what nvidia-smi says about it")


def offered_profiles(gpu: Gpu) -> tuple[Profile, ...]:
    """The profiles that instances of this GPU can have. Raises WishError where nobody can tell."""
    offered = profiles_of(gpu)
    if offered is None:
        raise refusal(
            gpu,
            "has a driver that lists no profiles while MIG is off, and is of a kind whose profiles are not known "
            "otherwise; turn MIG on first (label all-enabled), or use a newer driver",
        )
    return offered


def _with_profiles(node: Node) -> Node:
    """The node with the catalogue's profiles where an old driver lists none while MIG is off."""
    return node._replace(gpus=tuple(gpu._replace(profiles=profiles_of(gpu)) for gpu in node.gpus))


def _only_entry(gpu: Gpu, listing: t.Sequence[Entry], choice: _Choice) -> Entry:
    """The entry for a GPU that ``devices`` speaks of. None, or two that want different things, is an error."""
    covering = [entry for entry in listing if entry.covers(gpu)]
    if not covering:
        raise refusal(
            gpu,
            f"is meant by {choice}, but no device-filter there covers its id 0x{gpu.pci_device_id:08X} (subsystem "
            f"0x{gpu.pci_subsystem_id:08X}); add it to a filter or list the GPUs that are meant under devices",
        )
    first, *others = covering
    for other in others:
        if other.demands() != first.demands():
            raise refusal(gpu, f"has two entries in {choice} that differ: {_said(first)} and {_said(other)}")
    return first


def _said(entry: Entry) -> str:
    if not entry.enabled:
        return "MIG off"
    return ", ".join(f"{name}: {count}" for name, count in entry.instances) or "MIG on without instances"


# --- from an entry to instances -------------------------------------------------------------------------------------


class _WishMaker:
    """Makes the wish for one GPU after the other; what it worked out for one holds for all of the same kind."""

    def __init__(self, choice: _Choice, allow_empty: bool, mode_only: bool) -> None:
        self._choice = choice
        self._allow_empty = allow_empty
        self._mode_only = mode_only
        self._known: dict[tuple[Entry, str, tuple[Profile, ...]], GpuWish] = {}

    def wish(self, gpu: Gpu, entry: Entry) -> GpuWish:
        """The wish that this entry is for this GPU."""
        if not entry.enabled:
            return GpuWish(enabled=False, said="MIG off")
        if self._mode_only:
            return GpuWish(enabled=True, mode_only=True, said="MIG on, instances as they are")
        if self._is_empty(entry):
            if not self._allow_empty:
                raise refusal(
                    gpu, f"would have MIG on without instances by {self._choice}; if that is meant, set allow_empty"
                )
            return GpuWish(enabled=True, said="MIG on without instances")
        key = (entry, gpu.architecture, offered_profiles(gpu))
        if key not in self._known:
            self._known[key] = self._work_out(gpu, entry)
        return self._known[key]

    def _is_empty(self, entry: Entry) -> bool:
        generated = self._choice.source == "generated"
        return self._choice.label == "all-enabled" if generated else not entry.instances

    def _work_out(self, gpu: Gpu, entry: Entry) -> GpuWish:
        parts = self._parts(gpu, entry)
        instances = _instances(gpu, parts)
        _check_fit(gpu, [each.profile for each in instances])
        return GpuWish(enabled=True, instances=instances, said=", ".join(map(str, parts)))

    def _parts(self, gpu: Gpu, entry: Entry) -> tuple[_Part, ...]:
        offered = gpu.profiles or ()
        try:
            if self._choice.source == "generated":
                return _generated_parts(self._choice.label, offered)
            parts = []
            for name, count in entry.instances:
                profile = names.find(name, offered)
                parts.append(_Part(profile, name.compute or profile.slices, count))
            return tuple(parts)
        except WishError as error:
            raise refusal(gpu, f"has {error}", **error.details) from None


def _instances(gpu: Gpu, parts: t.Iterable[_Part]) -> tuple[InstanceWish, ...]:
    """GIs for these MIG devices, largest first. Partial CIs share as few GIs as possible."""
    by_profile: dict[int, list[_Part]] = {}
    for part in parts:
        by_profile.setdefault(part.profile.id, []).append(part)
    instances: list[InstanceWish] = []
    for alike in by_profile.values():
        instances += _instances_of_one_profile(gpu, alike[0].profile, alike)
    return tuple(sorted(instances, key=lambda each: (-each.profile.slices, -each.profile.gb, each.profile.id)))


def _instances_of_one_profile(gpu: Gpu, profile: Profile, parts: t.Sequence[_Part]) -> list[InstanceWish]:
    at_most = names.maximum(profile, gpu.profiles or ())
    whole = sum(part.number for part in parts if part.compute == profile.slices)
    partial = [part for part in parts if part.compute != profile.slices]
    sizes = names.compute_sizes(profile)
    for part in partial:
        if part.compute not in sizes:
            offered = ", ".join(names.name_of(profile, size) for size in sizes)
            raise refusal(gpu, f"has no {names.name_of(profile, part.compute)}; inside {profile.name} it has {offered}")
    if whole > at_most:
        raise refusal(gpu, f"holds at most {at_most} of {profile.name}, not {whole}", maximum=at_most)
    shared = _share(gpu.architecture, profile, partial, at_most - whole)
    if shared is None:
        raise refusal(
            gpu,
            f"has no room for {', '.join(map(str, parts))}: at most {at_most} GPU instances {profile.name} fit, each "
            f"with {counted(profile.slices, 'compute slice')}",
            maximum=at_most,
        )
    groups = [(profile.slices,)] * whole + shared
    return [InstanceWish(profile, tuple(map(ComputeWish, group))) for group in groups]


def _share(
    architecture: str, profile: Profile, parts: t.Sequence[_Part], at_most: int
) -> t.Optional[list[tuple[int, ...]]]:
    """Sizes of the CIs in each GI such that the fewest GIs are used; ``None`` when more than ``at_most`` are needed."""
    needed = sum(part.compute * part.number for part in parts)
    if needed > at_most * profile.slices:
        return None
    sizes = sorted((part.compute for part in parts for _each in range(part.number)), reverse=True)
    for number in range(-(-needed // profile.slices), at_most + 1):
        groups = _distribute(architecture, profile, sizes, number)
        if groups is not None:
            return groups
    return None


def _distribute(
    architecture: str, profile: Profile, sizes: t.Sequence[int], number: int
) -> t.Optional[list[tuple[int, ...]]]:
    """CIs, largest first, into so many GIs: each into the first that has room, going back where that ends badly."""
    groups: list[tuple[int, ...]] = [()] * number

    def put(position: int) -> bool:
        if position == len(sizes):
            return True
        tried = set()
        for index, group in enumerate(groups):
            if group in tried:
                continue  # an equal one did not do
            tried.add(group)
            grown = (*group, sizes[position])
            if names.fit_compute(architecture, profile, grown) is None:
                continue
            groups[index] = grown
            if put(position + 1):
                return True
            groups[index] = group
        return False

    return groups if put(0) else None


def _check_fit(gpu: Gpu, wanted: t.Sequence[Profile]) -> None:
    """Refuse instances of which each kind would fit alone, but not all of them together."""
    offered = gpu.profiles or ()
    if names.fits(wanted, offered):
        return
    counts: dict[Profile, int] = {}
    for profile in wanted:
        counts[profile] = counts.get(profile, 0) + 1
    said = " and ".join(f"{number} x {profile.name}" for profile, number in counts.items())
    reason = f"has no room for {said} together, though for each kind alone"
    if names.places_for(wanted) is not None:
        exceeded = names.engines_exceeded(wanted, offered)
        engines = " and ".join(f"{needs} {kind} engines of {has}" for kind, (needs, has) in exceeded.items())
        raise refusal(gpu, f"{reason}: they would take {engines}{_remedy(wanted, offered)}")
    picture = draw_slots(list(counts.items()), offered)
    raise refusal(gpu, f"{reason}{_remedy(wanted, offered)}; they can only be here:\n{picture}", picture=picture)


def _remedy(wanted: t.Sequence[Profile], offered: tuple[Profile, ...]) -> str:
    """The smallest thing to give up, if giving up one instance is enough."""
    for profile in sorted(set(wanted), key=lambda each: (each.slices, each.gb)):
        fewer = list(wanted)
        fewer.remove(profile)
        if names.fits(fewer, offered):
            return f"; one {profile.name} less would fit"
    return ""


def refusal(gpu: Gpu, reason: str, **details: t.Any) -> WishError:
    """An error that names its GPU, in words and in its details."""
    named = f"GPU {gpu.index} ({gpu.name})" if gpu.name else f"GPU {gpu.index}"
    return WishError(
        f"{named} {reason}", **{**details, "gpu": gpu.index, "pci_bus_id": gpu.pci_bus_id, "uuid": gpu.uuid}
    )


# --- and back -------------------------------------------------------------------------------------------------------


def as_config(what: t.Union[Gpu, Node]) -> list[dict[str, t.Any]]:
    """The present layout as config entries that resolve to it again; GPUs of equal layout share an entry.

    Left out are GPUs that cannot do MIG or do not answer, and those whose layout this format cannot say: GIs without
    CI, and CIs spread over more GIs than they need.
    """
    entries: list[dict[str, t.Any]] = []
    for gpu in what.gpus if isinstance(what, Node) else (what,):
        content = _content(gpu)
        if content is None:
            continue
        same = next((entry for entry in entries if {**content, "devices": entry["devices"]} == entry), None)
        if same is None:
            entries.append({"devices": [gpu.index], **content})
        else:
            same["devices"].append(gpu.index)
    return entries


def _content(gpu: Gpu) -> t.Optional[dict[str, t.Any]]:
    if gpu.problems or not gpu.mig_capable or gpu.mode_current is None:
        return None
    if not gpu.mode_current:
        return {"mig-enabled": False, "mig-devices": {}}
    if not _can_be_said(gpu):
        return None
    counts: dict[str, int] = {}
    for gi in gpu.instances:
        for ci in gi.compute:
            name = names.name_of(gi.profile, ci.slices)
            counts[name] = counts.get(name, 0) + 1
    return {"mig-enabled": True, "mig-devices": dict(sorted(counts.items()))}


def _can_be_said(gpu: Gpu) -> bool:
    """Whether counts of MIG devices are enough to say which CIs share a GI."""
    by_profile: dict[int, list[GpuInstance]] = {}
    for gi in gpu.instances:
        if not gi.compute or any(ci.variant for ci in gi.compute):
            return False
        by_profile.setdefault(gi.profile.id, []).append(gi)
    for alike in by_profile.values():
        profile = alike[0].profile
        groups = [tuple(sorted((ci.slices for ci in gi.compute), reverse=True)) for gi in alike]
        partial = [group for group in groups if group != (profile.slices,)]
        parts = [_Part(profile, size, 1) for group in partial for size in group]
        shared = _share(gpu.architecture, profile, parts, len(partial))
        if shared is None or sorted(shared) != sorted(partial):
            return False
    return True
