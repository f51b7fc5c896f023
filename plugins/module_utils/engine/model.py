# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a node looks like, what is wanted of it, and what is to be done: plain data, no behaviour.

This file is private to the collection gpufleet.mig and may change at any time.

Words and units are NVML's (nvml.h): a *GPU instance* (GI) occupies memory slices, a *compute instance* (CI)
occupies compute slices inside a GI, one MIG device is one CI. Memory is in MiB unless a name says otherwise.
``None`` in a field of an observation means "cannot tell", never "no".
"""

from __future__ import annotations

import typing as t


class Placement(t.NamedTuple):
    """A span of slices: of the GPU's memory slices for a GI, of the GI's compute slices for a CI."""

    start: int
    size: int


class Engines(t.NamedTuple):
    """Engines a GI takes from its GPU. Their sum over all GIs is limited, which is what limits ``+me`` to one."""

    copy: int = 0
    decoder: int = 0
    encoder: int = 0
    jpeg: int = 0
    ofa: int = 0


class ComputeProfile(t.NamedTuple):
    """A kind of CI that one kind of GI offers.

    ``variant`` is ``""``, ``"rev1"`` or ``"nvl"`` after the enum of the profile. ``placements`` is empty where the
    driver does not list them (before R525).
    """

    enum: int
    id: int
    slices: int
    multiprocessors: int
    variant: str = ""
    placements: tuple[Placement, ...] = ()


class Profile(t.NamedTuple):
    """A kind of GI that this driver offers on this GPU.

    ``name`` is the driver's own without its "MIG " prefix (``1g.5gb+me``). ``gb`` is the number in that name.
    ``attributes`` is what follows the memory: ``()``, ``("+me",)``, ``("+gfx",)``, ``("+me.all",)``, ``("-me",)``.
    ``reported_count`` is NVML's instanceCount, wrong on A30: never use it as the maximum, count placements.
    ``compute`` is ``None`` while no GI of this profile exists, since NVML only lists CI profiles of an existing GI.
    """

    enum: int
    id: int
    name: str
    slices: int
    gb: int
    memory_mib: int
    attributes: tuple[str, ...] = ()
    reported_count: int = 0
    engines: Engines = Engines()
    placements: tuple[Placement, ...] = ()
    compute: t.Optional[tuple[ComputeProfile, ...]] = None


class Owner(t.NamedTuple):
    """Whom a process belongs to, as its control group says; what that does not say is empty.

    ``kind`` is ``unit``, ``container``, ``pod``, ``job``, ``session`` or empty. ``unit`` is the systemd unit nearest to
    the process, ``runtime`` is docker, containerd, cri-o or podman, ``container`` and ``pod`` are ids, ``job`` and
    ``step`` are Slurm's, ``session`` is logind's.
    """

    kind: str = ""
    unit: str = ""
    runtime: str = ""
    container: str = ""
    pod: str = ""
    job: str = ""
    step: str = ""
    session: str = ""


class Process(t.NamedTuple):
    """A process that uses a GPU or an instance, because NVML lists it or because it has a device file open.

    ``used_mib`` is ``None`` where the driver does not say. ``kind`` is ``compute`` or ``graphics``, or ``open`` for one
    that is in no list of the driver. ``opened`` are the device files of this GPU or instance that it has open.
    ``cooperative`` ones (nvidia-persistenced, nvidia-fabricmanager) hand over to the driver and keep nothing from being
    changed.
    """

    pid: int
    name: str = ""
    used_mib: t.Optional[int] = None
    kind: str = "compute"
    owner: Owner = Owner()
    listed: bool = True
    opened: tuple[str, ...] = ()
    cooperative: bool = False


class Reservation(t.NamedTuple):
    """An instance that is promised to somebody who has it not open now: ``Slurm job 123``, told by ``source``."""

    holder: str
    source: str = ""


class ComputeInstance(t.NamedTuple):
    """A CI, existing (``id`` is a number) or planned (``id`` is ``None``).

    ``slices`` and ``variant`` identify what it is; ``variant`` is ``""`` whenever the CI fills its GI.
    """

    id: t.Optional[int]
    slices: int
    placement: t.Optional[Placement]
    variant: str = ""
    profile_id: t.Optional[int] = None
    name: str = ""
    uuid: t.Optional[str] = None
    mig_index: t.Optional[int] = None
    processes: tuple[Process, ...] = ()
    reservations: tuple[Reservation, ...] = ()


class GpuInstance(t.NamedTuple):
    """A GI, existing (``id`` is a number) or planned (``id`` is ``None``)."""

    id: t.Optional[int]
    profile: Profile
    placement: Placement
    compute: tuple[ComputeInstance, ...] = ()


class Problem(t.NamedTuple):
    """A call to the driver that failed while reading: NVML's function, its error name (``GPU_IS_LOST``), what to do."""

    call: str
    error: str
    remedy: str


class Gpu(t.NamedTuple):
    """One physical GPU as read.

    ``pci_bus_id`` has an 8-digit domain in upper case (``00000000:07:00.0``). ``pci_device_id`` and
    ``pci_subsystem_id`` are ``(device << 16) | vendor``, as in nvmlPciInfo_t and in mig-parted's device-filter.
    ``resettable`` says whether anything on this machine can reset the GPU, ``None`` where that is not known.
    ``mig_capable``, ``mode_current`` and ``mode_pending`` are ``None`` where the driver did not answer.
    ``profiles`` is ``None`` when the driver cannot list them now (MIG off on R535 and older), ``()`` without MIG.
    ``problems`` names what could not be read; an empty tuple means that everything above is known.
    """

    index: int  # type: ignore[assignment]  # hides tuple.index(), which nobody asks of a GPU
    uuid: str = ""
    pci_bus_id: str = ""
    pci_device_id: int = 0
    pci_subsystem_id: int = 0
    name: str = ""
    memory_mib: t.Optional[int] = None
    architecture: str = ""
    compute_capability: str = ""
    minor: t.Optional[int] = None
    persistence: t.Optional[bool] = None
    virtualization: str = ""
    resettable: t.Optional[bool] = None
    mig_capable: t.Optional[bool] = None
    mode_current: t.Optional[bool] = None
    mode_pending: t.Optional[bool] = None
    profiles: t.Optional[tuple[Profile, ...]] = ()
    instances: tuple[GpuInstance, ...] = ()
    processes: tuple[Process, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    problems: tuple[Problem, ...] = ()


class Node(t.NamedTuple):
    """All GPUs of one host as read in one NVML session, in NVML's index order.

    ``unseen`` says in phrases why there may be more holders than those that are known. ``gone`` are promises of devices
    that are not there any more, in phrases; only a source that people do not type may make such.
    """

    gpus: tuple[Gpu, ...]
    driver_version: str = ""
    nvml_version: str = ""
    cuda_version: str = ""
    unseen: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()


# --- what is wanted -----------------------------------------------------------------------------------------------


class ComputeWish(t.NamedTuple):
    """A wanted CI: of as many ``slices`` as its GI, the one that fills it.

    ``placement``, a ``variant`` of a CI that does not fill its GI, and a ``profile_id`` where the driver has several
    profiles of as many slices, only in exact layouts.
    """

    slices: int
    placement: t.Optional[Placement] = None
    variant: str = ""
    profile_id: t.Optional[int] = None


class InstanceWish(t.NamedTuple):
    """A wanted GI with its CIs, largest CI first. ``placement`` is ``None`` unless the wish is an exact layout."""

    profile: Profile
    compute: tuple[ComputeWish, ...]
    placement: t.Optional[Placement] = None


class GpuWish(t.NamedTuple):
    """What is wanted of one GPU: MIG off, or MIG on with exactly these instances.

    ``mode_only`` leaves the instances of a GPU that keeps MIG on as they are.
    ``said`` is the wish in the words of the person who stated it (``1g.5gb: 7``), for messages and plans.
    """

    enabled: bool
    instances: tuple[InstanceWish, ...] = ()
    mode_only: bool = False
    said: str = ""


class Wanted(t.NamedTuple):
    """The wish for a whole node.

    ``wishes`` maps GPU index to wish; a GPU that is absent is left alone. ``source`` says where the label came from:
    ``given``, ``generated`` or ``count``. ``unlisted`` are MIG-capable GPUs the wish does not speak of, ``skipped``
    those that cannot do MIG, both by index.
    """

    label: str
    source: str
    wishes: dict[int, GpuWish]
    unlisted: tuple[int, ...] = ()
    skipped: tuple[int, ...] = ()


# --- what is to be done -------------------------------------------------------------------------------------------


class Step(t.NamedTuple):
    """One driver write. ``kind`` is one of the six below; the other fields are filled as that kind needs them.

    ========== ================================================================================
    set_mode   gpu, enabled
    reset      gpu; in no plan: what a mode that stays pending needs, or what was asked for by itself
    destroy_ci gpu, gi_id, ci_id, placement (of the GI), name
    destroy_gi gpu, gi_id, placement (of the GI), name
    create_gi  gpu, profile_id, placement, name
    create_ci  gpu, placement (of the GI, which names it: it may not exist yet), slices, compute_placement, name,
               variant, profile_id (None: the driver's default)
    ========== ================================================================================
    """

    kind: str
    gpu: int
    enabled: t.Optional[bool] = None
    gi_id: t.Optional[int] = None
    ci_id: t.Optional[int] = None
    profile_id: t.Optional[int] = None
    placement: t.Optional[Placement] = None
    slices: t.Optional[int] = None
    compute_placement: t.Optional[Placement] = None
    name: str = ""
    variant: str = ""


class GpuPlan(t.NamedTuple):
    """What happens to one GPU. ``after`` is the layout at the end; instances kept have their ids, new ones ``None``.

    ``lost_busy`` are the processes whose CI the plan would destroy: with any of them, nothing may be started.
    ``lost_reserved`` are the promises it would break. ``provisional`` plans were made without the driver's own list of
    profiles, which an old driver does not give while MIG is off; they are made again when MIG is on.
    """

    gpu: int
    enabled: bool
    steps: tuple[Step, ...]
    after: tuple[GpuInstance, ...]
    lost_busy: tuple[Process, ...] = ()
    lost_reserved: tuple[Reservation, ...] = ()
    provisional: bool = False


class Plan(t.NamedTuple):
    """What happens to the node; only GPUs that a wish names. No steps at all means that it is as wanted."""

    gpus: tuple[GpuPlan, ...]

    @property
    def steps(self) -> tuple[Step, ...]:
        """All steps, GPU by GPU."""
        return tuple(step for gpu in self.gpus for step in gpu.steps)


# --- what a change may do ------------------------------------------------------------------------------------------


class Client(t.NamedTuple):
    """A systemd unit that uses GPUs, and the kinds of change it must not run during: instances, mode, reset.

    Or, with an empty ``unit``, the containers of ``runtime`` that have the label ``container`` (LABEL or LABEL=VALUE).
    Without any kind it is one that is never stopped, whatever else names it.
    """

    unit: str
    kinds: frozenset[str] = frozenset(("instances", "mode", "reset"))
    container: str = ""
    runtime: str = ""


class Orders(t.NamedTuple):
    """What whoever asks for a change lets it do, and for how long. Times are in seconds.

    ``evict``               none, reserved (may take instances that are only reserved), clients (may also stop the
                            clients named here)
    ``clients``             in the order in which they are stopped
    ``reservations``        as the caller knows them: dicts with ``device`` and ``holder``, and with ``source`` where it
                            is no person who says so
    ``allow_reset``         whether GPUs whose mode stays pending may be reset
    ``allow_reboot``        whether a mode may be stored that only a reboot makes current; nothing here reboots
    ``manage_drm``          whether the module nvidia_drm may be unloaded for a reset, and loaded again
    ``tells_containers``    whether containers are told of what there is before clients start, on a node that is set up
                            for it; not at boot, where a unit does so that comes after the layout
    ``pods_leave``          whether whoever asks has pods leave before a change, so that a plan passes over them
    ``remember``            whether what is reached is remembered for the next boot; otherwise the record stays as it is
    ``recover``             what becomes of an unfinished change: forward (finished) or back (taken back)
    ``operation_timeout``   of one call to the driver, or of reading one GPU
    ``lease``               how long this node is kept for ``run_id`` when it waits for a reset or reboot
    ``who``                 for records and for others who have to wait
    """

    evict: str = "none"
    clients: tuple[Client, ...] = ()
    reservations: tuple[dict[str, t.Any], ...] = ()
    allow_reset: bool = False
    allow_reboot: bool = False
    manage_drm: bool = False
    tells_containers: bool = True
    pods_leave: bool = False
    remember: bool = True
    recover: str = "forward"
    lock_timeout: float = 300.0
    operation_timeout: float = 60.0
    client_timeout: float = 90.0
    lease: float = 0.0
    run_id: str = ""
    who: str = ""


class Job(t.NamedTuple):
    """One change of one node: what is wanted once the node is read, and what it may do.

    ``resolve`` is None when there is nothing to do but to heal an unfinished change. ``resets`` are GPUs to reset
    whatever their mode is. ``what`` names the job in records: ``mig_config label all-1g.5gb``. A job that ``restores``
    brings back what is remembered, as a boot does: what is remembered, and what the node waits for, stays as it is.
    """

    resolve: t.Optional[t.Callable[[Node], Wanted]]
    orders: Orders = Orders()
    resets: tuple[int, ...] = ()
    what: str = ""
    restores: bool = False


# --- what can go wrong --------------------------------------------------------------------------------------------


class MigError(Exception):
    """A refusal or failure with one sentence for people. ``details`` is plain data for the module result."""

    def __init__(self, message: str, **details: t.Any) -> None:
        super().__init__(message)
        self.details = details


class WishError(MigError):
    """The wish is malformed, unknown, or impossible on this node. Nothing was touched."""


class DriverError(MigError):
    """A call to the driver failed.

    ``details`` has ``call`` (NVML function), ``error`` (NVML name without NVML_ERROR_, or ``BINDING_MISSING``),
    and for a GPU ``gpu`` (index), ``pci_bus_id`` and ``uuid``.
    """

    @property
    def error(self) -> str:
        """NVML's name of the error, such as ``IN_USE``."""
        return str(self.details.get("error", "UNKNOWN"))
