# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A layout as data, exact to the slice, and back: to save what a GPU has and to have it again.

This file is private to the collection gpufleet.mig and may change at any time.

One GPU is one mapping, as mig_info, the results of mig_config and the files of a node have it. Only what is marked
with * is needed, and a GPU must be named in at least one of the three ways; everything else may be there too::

    index: 0                              # of these three, the PCI id goes before the UUID before the index
    uuid: GPU-5fd0...
    pci_bus_id: 00000000:07:00.0
    name: NVIDIA A100-SXM4-40GB
    mig_capable: true
    mig_current: true                     # *
    mig_pending: true
    instances:                            # without it, only the mode is wanted and instances stay as they are
      - id: 2
        profile: 3g.20gb                  # * or its id
        profile_id: 9
        slices: 3
        placement: {start: 4, size: 4}    # * in memory slices
        compute_instances:                # * an empty list is a GPU instance without any
          - id: 0
            profile: 1c.3g.20gb           # * or slices
            slices: 1
            variant: ""                   # rev1 and nvl are other kinds of as many slices
            profile_id: 0
            placement: {start: 2, size: 1}   # in compute slices; without it any place will do
            uuid: MIG-...

A checkpoint of NVIDIA's mig-parted, which has the same without the places of compute instances, is read too::

    {"Version": "v1", "MigState": {"Devices": [{"UUID": "GPU-5fd0...", "MigMode": 1, "GpuInstances": [
        {"ProfileID": 2, "Placement": {"Start": 4, "Size": 4},
         "ComputeInstances": [{"ProfileID": 2, "EngProfileID": 0}]}]}]}}

The numbers of profiles there are those of NVML's enums, not the ids.
"""

from __future__ import annotations

import re
import typing as t

from . import configs
from . import profiles as names
from .catalog import profiles_of, what_mig_needs
from .model import (
    ComputeInstance,
    ComputeWish,
    Gpu,
    GpuInstance,
    GpuWish,
    InstanceWish,
    Node,
    Placement,
    Profile,
    Wanted,
    WishError,
)
from .profiles import quoted

Layout = dict[str, t.Any]

SCHEMA = 1
_CHECKPOINT_VERSION = "v1"
_UNKNOWN_ENUM = -1


class _Compute(t.NamedTuple):
    """A saved CI."""

    id: t.Optional[int]
    name: str
    slices: int
    variant: str
    placement: t.Optional[Placement]
    profile_id: t.Optional[int]
    uuid: t.Optional[str]


class _Instance(t.NamedTuple):
    """A saved GI: its profile by NVML's enum, or by id, or by name; whichever the file has.

    ``slices`` is None together with the name, ``attributes`` also where a name is not of the usual form.
    """

    id: t.Optional[int]
    enum: t.Optional[int]
    profile_id: t.Optional[int]
    name: str
    slices: t.Optional[int]
    attributes: t.Optional[tuple[str, ...]]
    placement: Placement
    compute: tuple[_Compute, ...]

    def __str__(self) -> str:
        return self.name or f"the profile of number {self.enum if self.profile_id is None else self.profile_id}"


class _Saved(t.NamedTuple):
    """A saved GPU. ``where`` names it in messages: ``GPU 1 of the layout``; ``number`` is its index.

    ``instances`` is None where only the mode was saved.
    """

    where: str
    number: t.Optional[int]
    uuid: str
    pci_bus_id: str
    name: str
    capable: t.Optional[bool]
    current: t.Optional[bool]
    pending: t.Optional[bool]
    instances: t.Optional[tuple[_Instance, ...]]

    def __str__(self) -> str:
        facts = [fact for fact in (self.pci_bus_id, self.uuid, self.name) if fact]
        return f"{self.where} ({', '.join(map(_plain, facts))})" if facts else self.where


# --- to data and back -----------------------------------------------------------------------------------------------


def dump(gpu: Gpu) -> Layout:
    """The layout of a GPU as plain data."""
    return {
        "index": gpu.index,
        "uuid": gpu.uuid,
        "pci_bus_id": gpu.pci_bus_id,
        "name": gpu.name,
        "mig_capable": gpu.mig_capable,
        "mig_current": gpu.mode_current,
        "mig_pending": gpu.mode_pending,
        "instances": [
            {
                "id": gi.id,
                "profile": gi.profile.name,
                "profile_id": gi.profile.id,
                "slices": gi.profile.slices,
                "placement": gi.placement._asdict(),
                "compute_instances": [
                    {
                        "id": ci.id,
                        "profile": names.name_of(gi.profile, ci.slices),
                        "slices": ci.slices,
                        "variant": ci.variant,
                        "profile_id": ci.profile_id,
                        "placement": None if ci.placement is None else ci.placement._asdict(),
                        "uuid": ci.uuid,
                    }
                    for ci in gi.compute
                ],
            }
            for gi in gpu.instances
        ],
    }


def load(data: Layout, gpu: t.Optional[Gpu] = None) -> Gpu:
    """The GPU with the layout that ``dump`` made: identity, modes and instances of then.

    ``gpu`` is the same GPU as it is now, where it is there: it lends its index, its profiles and all else that a layout
    does not have. A profile that it does not list is put together from what the layout says. Nobody uses the GPU that
    comes back: processes and reservations are of now, not of then. Raises WishError that names the key.
    """
    saved = _read_gpu(data, "the saved layout")
    base = Gpu(index=0 if saved.number is None else saved.number) if gpu is None else gpu
    offered = profiles_of(base) or ()
    return base._replace(
        uuid=saved.uuid or base.uuid,
        pci_bus_id=saved.pci_bus_id or base.pci_bus_id,
        name=saved.name or base.name,
        mig_capable=base.mig_capable if saved.capable is None else saved.capable,
        mode_current=saved.current,
        mode_pending=saved.current if saved.pending is None else saved.pending,
        instances=tuple(_loaded(each, offered, saved) for each in saved.instances or ()),
        processes=(),
        reservations=(),
        problems=(),
    )


def _loaded(saved: _Instance, offered: tuple[Profile, ...], where: _Saved) -> GpuInstance:
    profile = _offered(saved, offered) or _made_up(saved, where)
    return GpuInstance(
        id=saved.id,
        profile=profile,
        placement=saved.placement,
        compute=tuple(
            ComputeInstance(
                id=ci.id,
                slices=ci.slices,
                placement=ci.placement,
                variant="" if ci.slices == profile.slices else ci.variant,
                profile_id=ci.profile_id,
                name=names.name_of(profile, ci.slices),
                uuid=ci.uuid,
            )
            for ci in saved.compute
        ),
    )


def _made_up(saved: _Instance, where: _Saved) -> Profile:
    """A profile that nobody offers now, by its name: enough to draw it and to recognize it by its id."""
    if saved.profile_id is None or saved.slices is None:
        raise WishError(f"{where} has a GPU instance of which neither the profile nor its id is known here")
    memory = re.search(r"\.(\d+)gb", saved.name)
    return Profile(
        enum=_UNKNOWN_ENUM,
        id=saved.profile_id,
        name=saved.name,
        slices=saved.slices,
        gb=int(memory[1]) if memory else 0,
        memory_mib=0,
        attributes=saved.attributes or (),
        placements=(saved.placement,),
    )


def _offered(saved: _Instance, offered: tuple[Profile, ...]) -> t.Optional[Profile]:
    """The profile of the GPU that a saved GI has, None where it has none of that kind.

    An id means the same slices and attributes on all boards of one family, not on all boards: A30 and A100 give 5 to
    different ones. The gigabytes may differ: drivers print them differently.
    """
    if saved.enum is not None:
        return next((each for each in offered if each.enum == saved.enum), None)
    if saved.profile_id is None:
        try:
            return names.find(names.parse(saved.name), offered)
        except WishError:
            return None
    for profile in offered:
        if profile.id == saved.profile_id and profile.slices == saved.slices:
            return profile if saved.attributes in (None, profile.attributes) else None
    return None


# --- what is wanted -------------------------------------------------------------------------------------------------


def resolve(node: Node, layout: t.Any, *, gpus: t.Any = None, accept_replacement: bool = False) -> Wanted:
    """What is wanted of a node by a saved layout: modes, and instances in exactly these places.

    ``layout`` is one GPU, a list of GPUs, anything that has these under ``gpus`` (the result of mig_info, the files of
    a node), or a checkpoint of mig-parted. ``gpus`` narrows it to some GPUs of the node, as configs.resolve takes it.

    A GPU is looked for at its PCI id; a UUID that is found elsewhere is the same board, moved. Another board, by UUID
    or by model, at the place of a saved one is refused unless ``accept_replacement``. GPUs of the node that can do MIG
    and are not in the layout are in ``unlisted``. Raises WishError, before anything is touched, for whatever the node
    or its GPUs do not have.
    """
    selected, by_name = configs.select_gpus(node, gpus)
    chosen = {gpu.index for gpu in selected}
    found: dict[int, _Saved] = {}
    for saved in _read(layout):
        gpu = _find(node, saved)
        if gpu is None:
            if not by_name:
                _require_all_known(selected)
                raise WishError(f"{saved} is not in this node: {_what_there_is(node)}; restore the others with gpus")
            continue
        if gpu.index not in chosen:
            continue
        if gpu.index in found:
            raise WishError(
                f"{found[gpu.index]} and {saved} are both GPU {gpu.index} at {gpu.pci_bus_id} of this node; remove one"
            )
        if gpu.mig_capable is not False:
            configs.check_readable(gpu)
        if not accept_replacement:
            _require_same_board(gpu, saved)
        found[gpu.index] = saved
    wishes: dict[int, GpuWish] = {}
    unlisted: list[int] = []
    skipped: list[int] = []
    for gpu in selected:
        if gpu.mig_capable is False:
            _refuse_mig(gpu, found.get(gpu.index))
            skipped.append(gpu.index)
        elif gpu.index in found:
            wishes[gpu.index] = _wish(gpu, found[gpu.index])
        elif by_name:
            configs.check_readable(gpu)
            raise configs.refusal(gpu, "is not in the layout; leave it out of gpus")
        else:
            unlisted.append(gpu.index)
    return Wanted("", "layout", wishes, tuple(unlisted), tuple(skipped))


def _find(node: Node, saved: _Saved) -> t.Optional[Gpu]:
    """The GPU of the node that a saved one is, or that stands in its place."""
    there = next((gpu for gpu in node.gpus if configs.is_at(gpu, saved.pci_bus_id)), None)
    if saved.uuid and (there is None or not _same(there.uuid, saved.uuid)):
        moved = next((gpu for gpu in node.gpus if _same(gpu.uuid, saved.uuid)), None)
        there = moved or there
    if there is None and not saved.pci_bus_id and not saved.uuid:
        there = next((gpu for gpu in node.gpus if gpu.index == saved.number), None)
    return there


def _require_all_known(gpus: t.Iterable[Gpu]) -> None:
    """Refuse to call a board missing while there is one that does not say who it is."""
    for gpu in gpus:
        if not gpu.uuid:
            configs.check_readable(gpu)


def _require_same_board(gpu: Gpu, saved: _Saved) -> None:
    if saved.uuid:
        replaced = not _same(gpu.uuid, saved.uuid)
    else:
        replaced = bool(saved.name) and _model(saved.name) != _model(gpu.name)
    if replaced:
        was = " ".join(_plain(fact) for fact in (saved.name, saved.uuid) if fact)
        raise configs.refusal(
            gpu,
            f"was replaced: at {gpu.pci_bus_id} the layout has {was}, and now there is {gpu.name} {gpu.uuid}; set"
            " accept_replacement if the new one is to get the layout of the old one",
            old_uuid=saved.uuid,
            old_name=saved.name,
        )


def _refuse_mig(gpu: Gpu, saved: t.Optional[_Saved]) -> None:
    if saved is not None and saved.current:
        remedy = what_mig_needs(gpu) or "leave it out with gpus"
        raise configs.refusal(gpu, f"cannot do MIG, but {saved} has it on; {remedy}")


def _wish(gpu: Gpu, saved: _Saved) -> GpuWish:
    if saved.current is None:
        raise configs.refusal(
            gpu, f"cannot be restored, since {saved} does not say whether MIG was on; leave it out with gpus"
        )
    if not saved.current:
        return GpuWish(enabled=False, said="MIG off, as saved")
    if saved.instances is None:
        return GpuWish(enabled=True, mode_only=True, said="MIG on, as saved, and instances as they are")
    if not saved.instances:
        return GpuWish(enabled=True, said="MIG on without instances, as saved")
    offered = configs.offered_profiles(gpu)
    instances = tuple(_instance_wish(gpu, offered, saved, each) for each in saved.instances)
    said = ", ".join(f"{wish.profile.name} at {each.placement.start}" for wish, each in zip(instances, saved.instances))
    return GpuWish(enabled=True, instances=instances, said=f"{said}, as saved")


def _instance_wish(gpu: Gpu, offered: tuple[Profile, ...], saved: _Saved, instance: _Instance) -> InstanceWish:
    profile = _offered(instance, offered)
    if profile is None:
        raise configs.refusal(
            gpu,
            f"does not offer {_plain(str(instance))}{_id_in_words(instance)}, which {saved} has; it offers"
            f" {', '.join(f'{each.name} (id {each.id})' for each in offered)}",
        )
    # In the order of their numbers, which is the order in which they came.
    compute = sorted(instance.compute, key=lambda ci: (ci.id is None, ci.id))
    return InstanceWish(profile, tuple(_compute_wish(profile, ci) for ci in compute), instance.placement)


def _id_in_words(instance: _Instance) -> str:
    return f" (id {instance.profile_id})" if instance.name and instance.profile_id is not None else ""


def _compute_wish(profile: Profile, saved: _Compute) -> ComputeWish:
    """The CI that fills its GI has one place there, which only the driver knows, and sometimes one of several kinds."""
    if saved.slices == profile.slices:
        return ComputeWish(saved.slices, profile_id=saved.profile_id)
    return ComputeWish(saved.slices, saved.placement, saved.variant)


def _what_there_is(node: Node) -> str:
    if not node.gpus:
        return "it has no GPU"
    return "it has " + ", ".join(f"{gpu.pci_bus_id} {gpu.uuid} ({gpu.name})" for gpu in node.gpus)


def _same(uuid: str, other: str) -> bool:
    return uuid.lower() == other.lower()


def _model(name: str) -> str:
    """A product name as it is comparable: drivers before R470 left the vendor out."""
    plain = name.casefold().strip()
    return plain[len("nvidia ") :] if plain.startswith("nvidia ") else plain


def _plain(text: str) -> str:
    """Text from a file, safe to print, without the quotes of ``quoted``."""
    return quoted(text)[1:-1]


# --- reading --------------------------------------------------------------------------------------------------------


def _read(layout: t.Any) -> tuple[_Saved, ...]:
    """All GPUs of a layout in any of its forms. Raises WishError that names the key."""
    if isinstance(layout, dict) and "MigState" in layout:
        return _read_checkpoint(layout)
    if isinstance(layout, dict) and "gpus" in layout:
        schema = layout.get("schema", SCHEMA)
        if schema != SCHEMA:
            raise WishError(f"schema of the layout is {quoted(schema)}; only {SCHEMA} is known")
        layout = layout["gpus"]
    elif isinstance(layout, dict) and "mig_current" in layout:
        layout = [layout]
    elif isinstance(layout, dict):
        results = [key for key in ("before", "after", "layout") if key in layout]
        hint = f"; give what it has under {' or '.join(results)}" if results else ""
        raise WishError(
            "the layout must be a list of GPUs as mig_info returns it, or a checkpoint of mig-parted; this is a mapping"
            f" of {', '.join(map(quoted, list(layout)[:8])) or 'nothing'}{hint}"
        )
    gpus = _list(layout, "the layout")
    if not gpus:
        raise WishError("the layout names no GPU")
    return tuple(_read_gpu(each, f"GPU {number} of the layout") for number, each in enumerate(gpus, start=1))


def _read_gpu(data: t.Any, where: str) -> _Saved:
    gpu = configs.mapping(data, where)
    key = "index" if "index" in gpu else "gpu"
    index = _number(gpu, key, where, needed=False)
    uuid, pci_bus_id, name = (_text(gpu, each, where) for each in ("uuid", "pci_bus_id", "name"))
    if index is None and not uuid and not pci_bus_id:
        raise WishError(f"{where} has none of pci_bus_id, uuid and index; say which GPU it is")
    if pci_bus_id and not configs.is_pci_id(pci_bus_id):
        raise WishError(f"pci_bus_id of {where} is {quoted(pci_bus_id)}, which is no PCI id such as 00000000:07:00.0")
    current = _flag(gpu, "mig_current", where, needed=gpu.get("mig_capable") is not False)
    instances = None
    if "instances" in gpu:
        instances = tuple(
            _read_instance(each, f"instance {number} of {where}")
            for number, each in enumerate(_list(gpu["instances"], f"instances of {where}"), start=1)
        )
    if instances and not current:
        raise WishError(f"{where} has instances while mig_current is not true")
    return _Saved(
        where=where,
        number=index,
        uuid=uuid,
        pci_bus_id=pci_bus_id,
        name=name,
        capable=_flag(gpu, "mig_capable", where, needed=False),
        current=current,
        pending=_flag(gpu, "mig_pending", where, needed=False),
        instances=instances,
    )


def _read_instance(data: t.Any, where: str) -> _Instance:
    """A GI. Its name only has to be one that people use where the id and the slices do not say what it is."""
    instance = configs.mapping(data, where)
    profile_id = _number(instance, "profile_id", where, needed=False)
    slices = _number(instance, "slices", where, needed=False)
    text = _text(instance, "profile", where)
    if not text:
        raise WishError(f"{where} lacks profile, a name such as 3g.20gb")
    name = _profile_name(text, f"profile of {where}", needed=profile_id is None or slices is None)
    if "compute_instances" not in instance:
        raise WishError(f"{where} lacks compute_instances; write [] for a GPU instance without any")
    compute = _list(instance["compute_instances"], f"compute_instances of {where}")
    gi_slices = name.slices if name else t.cast(int, slices)
    return _Instance(
        id=_number(instance, "id", where, needed=False),
        enum=None,
        profile_id=profile_id,
        name=text,
        slices=gi_slices,
        attributes=name.attributes if name else None,
        placement=_placement(instance, where),
        compute=tuple(
            _read_compute(each, gi_slices, f"compute instance {number} of {where}")
            for number, each in enumerate(compute, start=1)
        ),
    )


def _read_compute(data: t.Any, gi_slices: int, where: str) -> _Compute:
    """A CI; the name says its slices where nothing else does, and NVML's number of its profile says its variant."""
    compute = configs.mapping(data, where)
    profile_id = _number(compute, "profile_id", where, needed=False)
    name = _text(compute, "profile", where)
    slices = _number(compute, "slices", where, needed=not name)
    if slices is None:
        parsed = t.cast(names.ProfileName, _profile_name(name, f"profile of {where}", needed=True))
        slices = parsed.compute or gi_slices
    if not 1 <= slices <= gi_slices:
        raise WishError(f"{where} has {slices} compute slices, in a GPU instance of {gi_slices}")
    variant = compute.get("variant")
    if variant is None:
        variant = names.COMPUTE_PROFILE_ENUMS.get(profile_id, (slices, ""))[1] if profile_id is not None else ""
    if variant not in names.COMPUTE_VARIANTS:
        raise WishError(f"variant of {where} is {quoted(variant)}; known are rev1, nvl and empty text")
    return _Compute(
        id=_number(compute, "id", where, needed=False),
        name=name,
        slices=slices,
        variant=variant,
        placement=None if compute.get("placement") is None else _placement(compute, where),
        profile_id=profile_id,
        uuid=_text(compute, "uuid", where) or None,
    )


def _read_checkpoint(data: Layout) -> tuple[_Saved, ...]:
    """A checkpoint of mig-parted. Its compute instances have no places; it creates them anywhere, in their order."""
    version = data.get("Version")
    if version != _CHECKPOINT_VERSION:
        raise WishError(f"Version of the checkpoint is {quoted(version)}; only {_CHECKPOINT_VERSION} is known")
    state = configs.mapping(data["MigState"], "MigState of the checkpoint")
    devices = _list(state.get("Devices") or [], "Devices of the checkpoint")
    if not devices:
        raise WishError("the checkpoint names no GPU")
    return tuple(_read_device(each, f"GPU {number} of the checkpoint") for number, each in enumerate(devices, start=1))


def _read_device(data: t.Any, where: str) -> _Saved:
    device = configs.mapping(data, where)
    uuid = _text(device, "UUID", where)
    if not uuid:
        raise WishError(f"{where} lacks UUID")
    mode = _number(device, "MigMode", where)
    if mode not in (0, 1):
        raise WishError(f"MigMode of {where} is {quoted(mode)}; it must be 0 or 1")
    instances = _list(device.get("GpuInstances") or [], f"GpuInstances of {where}")
    if instances and not mode:
        raise WishError(f"{where} has GpuInstances while MigMode is 0")
    return _Saved(
        where=where,
        number=None,
        uuid=uuid,
        pci_bus_id="",
        name="",
        capable=True,
        current=mode == 1,
        pending=None,
        instances=tuple(
            _read_device_instance(each, f"instance {number} of {where}")
            for number, each in enumerate(instances, start=1)
        ),
    )


def _read_device_instance(data: t.Any, where: str) -> _Instance:
    instance = configs.mapping(data, where)
    compute = []
    for number, each in enumerate(_list(instance.get("ComputeInstances") or [], f"ComputeInstances of {where}"), 1):
        inside = f"compute instance {number} of {where}"
        enum = _number(configs.mapping(each, inside), "ProfileID", inside)
        if enum not in names.COMPUTE_PROFILE_ENUMS:
            raise WishError(f"ProfileID of {inside} is {quoted(enum)}, which is no compute instance profile of NVML")
        slices, variant = names.COMPUTE_PROFILE_ENUMS[enum]
        # Ids of these profiles are the numbers of the enum in every listing that is public.
        compute.append(_Compute(None, "", slices, variant, None, enum, None))
    return _Instance(
        id=None,
        enum=_number(instance, "ProfileID", where),
        profile_id=None,
        name="",
        slices=None,
        attributes=None,
        placement=_placement(instance, where, "Placement", "Start", "Size"),
        compute=tuple(compute),
    )


def _placement(
    data: Layout, where: str, key: str = "placement", start_key: str = "start", size_key: str = "size"
) -> Placement:
    if data.get(key) is None:
        raise WishError(f"{where} lacks {key}")
    inside = f"{key} of {where}"
    place = configs.mapping(data[key], inside)
    start, size = _number(place, start_key, inside), _number(place, size_key, inside)
    if not size:
        raise WishError(f"{size_key} of {inside} must be at least 1")
    return Placement(t.cast(int, start), size)


def _profile_name(text: str, where: str, needed: bool) -> t.Optional[names.ProfileName]:
    try:
        return names.parse(text)
    except WishError as error:
        if not needed:
            return None
        raise WishError(f"{where}: {error}") from None


def _number(data: Layout, key: str, where: str, needed: bool = True) -> t.Optional[int]:
    value = data.get(key)
    if value is None and not needed:
        return None
    number = configs.whole_number(value)
    if number is None:
        raise WishError(f"{key} of {where} must be a whole number from 0 on, not {configs.kind(value)}")
    return number


def _flag(data: Layout, key: str, where: str, needed: bool) -> t.Optional[bool]:
    if needed and key not in data:
        raise WishError(f"{where} lacks {key}")
    value = data.get(key)
    if value is not None and not isinstance(value, bool):
        raise WishError(f"{key} of {where} must be true or false, not {configs.kind(value)}")
    return value


def _text(data: Layout, key: str, where: str) -> str:
    """Text, empty where there is none."""
    value = data.get(key)
    if value is not None and not isinstance(value, str):
        raise WishError(f"{key} of {where} must be text, not {configs.kind(value)}")
    return value or ""


def _list(data: t.Any, where: str) -> t.Sequence[t.Any]:
    if not isinstance(data, (list, tuple)):
        raise WishError(f"{where} must be a list, not {configs.kind(data)}")
    return data
