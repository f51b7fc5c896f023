# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A mapping from kind of GPU to label, so that one inventory serves nodes with boards of several kinds.

This file is private to the collection gpufleet.mig and may change at any time.
"""

from __future__ import annotations

import re
import typing as t

from . import configs
from .model import Gpu, Node, Wanted, WishError
from .profiles import quoted

_DEVICE = re.compile(r"0x([0-9a-f]{4})", re.IGNORECASE)
_DEVICE_AND_VENDOR = re.compile(r"(?:0x)?([0-9a-f]{8})", re.IGNORECASE)
_NVIDIA = 0x10DE


def resolve(
    node: Node,
    label_by_gpu: t.Mapping[t.Any, t.Any],
    *,
    label: t.Optional[str],
    gpus: t.Any,
    unlisted: str,
    expected_gpus: t.Any,
    **options: t.Any,
) -> Wanted:
    """What is wanted of every GPU: each label is resolved for its own GPUs, and the answers are put together.

    ``label`` is for GPUs that no key names; without it these are treated as ``unlisted`` says. ``options`` go to
    configs.resolve as they are. Raises WishError.
    """
    configs.check_expected(node, expected_gpus)
    labels = _checked(label_by_gpu)
    selected, by_name = configs.select_gpus(node, gpus)
    groups: dict[str, list[int]] = {}
    left_out: list[Gpu] = []
    skipped: list[int] = []
    for gpu in selected:
        named = _label_for(gpu, labels)
        if named is None and gpu.mig_capable is False and not by_name:
            skipped.append(gpu.index)
        elif named is None and label is None:
            left_out.append(gpu)
        else:
            groups.setdefault(named or t.cast(str, label), []).append(gpu.index)
    if left_out and unlisted == "fail":
        raise WishError(
            f"label_by_gpu names no label for {_in_words(left_out)}, and unlisted is fail; add a key for this kind, or"
            " a label for all others"
        )
    if left_out and unlisted == "disable":
        groups.setdefault("all-disabled", []).extend(gpu.index for gpu in left_out)
    parts = [
        configs.resolve(node, label=each, gpus=indices, unlisted=unlisted, **options)
        for each, indices in groups.items()
    ]
    return Wanted(
        label=" + ".join(dict.fromkeys(part.label for part in parts)),
        source=" + ".join(dict.fromkeys(part.source for part in parts)),
        wishes={index: wish for part in parts for index, wish in part.wishes.items()},
        unlisted=tuple(sorted([*(gpu.index for gpu in left_out), *(i for part in parts for i in part.unlisted)])),
        skipped=tuple(sorted([*skipped, *(i for part in parts for i in part.skipped)])),
    )


def _checked(label_by_gpu: t.Mapping[t.Any, t.Any]) -> dict[t.Union[int, str], str]:
    """The mapping by id and plain name. Two keys that mean one kind must agree."""
    labels: dict[t.Union[int, str], str] = {}
    for key, value in label_by_gpu.items():
        label = _label(key, value)
        if labels.setdefault(_kind(key), label) != label:
            raise WishError(
                f"label_by_gpu names one kind of GPU twice, the second time as {quoted(key)}, with the labels"
                f" {quoted(labels[_kind(key)])} and {quoted(label)}; keep one of them"
            )
    return labels


def _kind(key: t.Any) -> t.Union[int, str]:
    """A key as PCI device and vendor id, or as plain product name.

    An id without quotes is a number in YAML, and reaches the node as its decimal digits. Eight digits are not such a
    number: they would be a device from before MIG.
    """
    text = str(key).strip()
    device = _DEVICE.fullmatch(text)
    if device:
        return int(device[1], 16) << 16 | _NVIDIA
    both = _DEVICE_AND_VENDOR.fullmatch(text)
    if both and int(both[1], 16) & 0xFFFF == _NVIDIA:
        return int(both[1], 16)
    if re.fullmatch(r"[0-9]{1,10}", text):
        number = int(text)
        return number << 16 | _NVIDIA if number <= 0xFFFF else number
    if both or text.lower().startswith("0x") or not text:
        raise WishError(f"label_by_gpu has the key {quoted(key)}; a PCI device id looks like 0x20B010DE or 0x20B0")
    return _plain_name(text)


def _label(key: t.Any, value: t.Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise WishError(f"label_by_gpu gives {quoted(key)} the label {quoted(value)}; it must be text such as all-1g")
    return value.strip()


def _label_for(gpu: Gpu, labels: t.Mapping[t.Union[int, str], str]) -> t.Optional[str]:
    """The label for the kind of this GPU. Raises WishError where its id and its name have different ones."""
    found = {labels[kind] for kind in (gpu.pci_device_id, _plain_name(gpu.name)) if kind in labels}
    if len(found) > 1:
        raise WishError(
            f"label_by_gpu disagrees about GPU {gpu.index} ({gpu.name}, 0x{gpu.pci_device_id:08X}): its id and its name"
            f" have the labels {' and '.join(map(quoted, sorted(found)))}; keep one of them",
            gpu=gpu.index,
            pci_bus_id=gpu.pci_bus_id,
            uuid=gpu.uuid,
        )
    return next(iter(found), None)


def _plain_name(name: str) -> str:
    plain = name.casefold().strip()
    return plain[len("nvidia ") :] if plain.startswith("nvidia ") else plain


def _in_words(gpus: t.Iterable[Gpu]) -> str:
    return ", ".join(f"GPU {gpu.index} ({gpu.name}, 0x{gpu.pci_device_id:08X})" for gpu in gpus)
