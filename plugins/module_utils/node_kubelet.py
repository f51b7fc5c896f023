# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What kubelet_reservation_info answers: which GPUs and MIG devices the kubelet of this node has given to pods.

This file is private to the collection gpufleet.mig and may change at any time.
"""

from __future__ import annotations

import re
import typing as t

from .engine.profiles import printable
from .grpc import http2, protobuf
from .grpc.errors import CallError, NobodyListens, NotAllowed, Refused

if t.TYPE_CHECKING:
    from ansible.module_utils.basic import AnsibleModule

Result = dict[str, t.Any]

ARGUMENTS: dict[str, t.Any] = {
    "socket": {"type": "path", "default": "/var/lib/kubelet/pod-resources/kubelet.sock"},
    "timeout": {"type": "float", "default": 10},
    "allocatable": {"type": "bool", "default": False},
}

_LIST = "/v1.PodResourcesLister/List"
_ALLOCATABLE = "/v1.PodResourcesLister/GetAllocatableResources"
_EMPTY_REQUEST = b""
_MOST_BYTES = 16 * 1024 * 1024  # what the kubelet itself takes and gives at most

_SOURCE = "kubelet"
_RESOURCES = "nvidia.com/"
_DRA_DRIVERS = "nvidia.com"

_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
# The third is how drivers before 470 named MIG devices; NVML takes both.
_DEVICE = re.compile(rf"GPU-{_UUID}|MIG-{_UUID}|MIG-GPU-{_UUID}/\d+/\d+", re.IGNORECASE)
# What the device plugin puts between a device and the number of its replica, for time-slicing and for MPS.
_REPLICA = "::"


class Given(t.NamedTuple):
    """One device of one container. ``resource`` is the plugin's, or the name of the DRA driver."""

    holder: str
    resource: str
    device: str


def look(module: AnsibleModule) -> None:
    """The module: an answer, or a failure in one sentence."""
    path, timeout = module.params["socket"], module.params["timeout"]
    if not timeout > 0:
        module.fail_json(msg=f"timeout is {timeout:g}; give a number of seconds above 0.")
    try:
        result = _ask(path, timeout, module.params["allocatable"])
    except NobodyListens as error:
        result = _without_kubelet(error, path)
    except CallError as error:
        module.fail_json(
            msg=f"The kubelet cannot tell which devices pods have: {printable(str(error))}. {_remedy(error)}",
            error=error.name if isinstance(error, Refused) else type(error).__name__,
        )
    for sentence in _warnings(result):
        module.warn(sentence)
    module.exit_json(changed=False, **result)


def given(path: str, timeout: float) -> list[Given]:
    """The devices that pods have, as the kubelet names them. Raises CallError."""
    return list(given_to_pods(http2.call(path, _LIST, _EMPTY_REQUEST, timeout=timeout, most_bytes=_MOST_BYTES)))


def _ask(path: str, timeout: float, allocatable: bool) -> Result:
    reservations, unresolved = told_apart(given(path, timeout))
    result: Result = {"available": True, "reservations": reservations, "unresolved": unresolved}
    if allocatable:
        answer = http2.call(path, _ALLOCATABLE, _EMPTY_REQUEST, timeout=timeout, most_bytes=_MOST_BYTES)
        result["allocatable"] = allocatable_devices(answer)
    return result


def _without_kubelet(error: NobodyListens, path: str) -> Result:
    """No kubelet has given anything to anybody. One that was killed leaves its socket, and its pods go on running."""
    if error.missing:
        name, remedy = "NO_SOCKET", "This is not a node of Kubernetes, or its kubelet keeps its socket elsewhere."
    else:
        name, remedy = "NOT_LISTENING", f"Start the kubelet, or remove {path} if there is none any more."
    problem = {"error": name, "message": _sentence(str(error)), "remedy": remedy}
    return {"available": False, "problem": problem, "reservations": [], "unresolved": []}


def _remedy(error: CallError) -> str:
    if isinstance(error, NotAllowed):
        return "Run as root (become: true)."
    if isinstance(error, Refused) and error.name == "UNIMPLEMENTED":
        return "Kubernetes 1.20 or newer answers this, and 1.23 or newer what is allocatable."
    if isinstance(error, Refused) and error.name == "RESOURCE_EXHAUSTED":
        return "Others ask it too often; run again."
    return "Look at the kubelet ('journalctl -u kubelet'), and run again."


def _warnings(result: Result) -> t.Iterator[str]:
    if result.get("problem", {}).get("error") == "NOT_LISTENING":
        yield (
            f"{result['problem']['message']} Pods go on running while their kubelet does not, and which"
            f" devices they have cannot be told. {result['problem']['remedy']}"
        )
    for each in result["unresolved"]:
        yield (
            f"{each['holder']} has {each['device']!r} of {each['resource']}, which is not the UUID of a GPU or MIG"
            " device. What it stands for is not known, and it is in no reservation: drain the pod before its GPU is"
            " changed."
        )


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


# --- what the kubelet says -------------------------------------------------------------------------------------------


def given_to_pods(answer: bytes) -> t.Iterator[Given]:
    """The devices of NVIDIA in a ListPodResourcesResponse, in its order. Raises Malformed."""
    for pod in protobuf.messages(answer, 1):
        name, namespace = protobuf.text(pod, 1), protobuf.text(pod, 2)
        for container in protobuf.messages(pod, 3):
            holder = f"pod {namespace}/{name} (container {protobuf.text(container, 1)})"
            for source, device in (*_plugin_devices(container, 2), *_claimed_devices(container)):
                yield Given(printable(holder), printable(source), printable(device))


def allocatable_devices(answer: bytes) -> dict[str, list[str]]:
    """The devices of each resource in an AllocatableResourcesResponse. Raises Malformed."""
    devices: dict[str, list[str]] = {}
    for resource, device in _plugin_devices(answer, 1):
        devices.setdefault(printable(resource), []).append(printable(device))
    return {resource: sorted(found) for resource, found in sorted(devices.items())}


def _plugin_devices(message: bytes, number: int) -> t.Iterator[tuple[str, str]]:
    """Resource and device of each ContainerDevices in this field; one resource may be there many times."""
    for devices in protobuf.messages(message, number):
        resource = protobuf.text(devices, 1)
        if resource.startswith(_RESOURCES):
            for device in protobuf.texts(devices, 2):
                yield resource, device


def _claimed_devices(container: bytes) -> t.Iterator[tuple[str, str]]:
    """Driver and device of each claim. Kubelets that do not name the driver still tell CDI's names of its devices."""
    for claim in protobuf.messages(container, 5):
        for resource in protobuf.messages(claim, 4):
            names = [protobuf.text(device, 1) for device in protobuf.messages(resource, 1)]
            driver = protobuf.text(resource, 2) or next(iter(names), "").partition("/")[0]
            if driver.endswith(_DRA_DRIVERS):
                yield driver, protobuf.text(resource, 4) or ", ".join(names)


def told_apart(devices: t.Iterable[Given]) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """Reservations as mig_config wants them, and devices that are not named by their UUID.

    Replicas of a device that one container has are one reservation.
    """
    reservations, unresolved = [], []
    for each in devices:
        device = each.device.partition(_REPLICA)[0]
        if _DEVICE.fullmatch(device):
            reservations.append({"device": device, "holder": each.holder, "source": _SOURCE})
        else:
            unresolved.append({**each._asdict(), "source": _SOURCE})
    return _once(reservations), _once(unresolved)


def _once(entries: list[dict[str, str]]) -> list[dict[str, str]]:
    return [dict(entry) for entry in dict.fromkeys(tuple(each.items()) for each in entries)]
