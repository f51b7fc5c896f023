# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Whether the metrics of an exporter have every MIG instance of the node, and no other.

This file is private to the collection gpufleet.mig and may change at any time.

dcgm-exporter has a series for each GPU instance, with the UUID and DCGM's number of its GPU. It never names the UUID
of a MIG device. What an exporter says is data: it is read with a limit of time and size, and only compared.
"""

from __future__ import annotations

import re
import time
import typing as t

from .engine.profiles import printable

if t.TYPE_CHECKING:
    from ansible.module_utils.basic import AnsibleModule

Result = dict[str, t.Any]
Gpus = t.Sequence[t.Mapping[str, t.Any]]

ARGUMENTS: dict[str, t.Any] = {
    "url": {"type": "str", "required": True},
    "gpus": {"type": "list", "elements": "dict", "required": True},
    "timeout": {"type": "float", "default": 60},
    "validate_certs": {"type": "bool", "default": True},
}

_MOST_BYTES = 32 * 1024 * 1024
_PIECE = 64 * 1024
_SHORTEST_ANSWER, _LONGEST_ANSWER = 1.0, 10.0
_POLL_SECONDS = 2.0
# Versions of dcgm-exporter differ in how they call the UUID of a GPU, and some in upper and lower case.
_UUIDS = ("uuid", "gpu_uuid")
_SERIES = re.compile(r"[A-Za-z_:][A-Za-z0-9_:]*\{(?P<labels>.*)\}\s")
_LABEL = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*)"')

_PASSWORD = re.compile(r"//[^/]*@")


class NoMetrics(Exception):
    """The exporter cannot be read; the message says why and does not end with a full stop."""


class Instance(t.NamedTuple):
    """A GPU instance as an exporter knows it: ``gpu`` is the UUID of its GPU, or its number where it has no UUID."""

    gpu: str
    number: int


class Compared(t.NamedTuple):
    """What the exporter lacks, and what it has that is gone, in words."""

    missing: tuple[str, ...]
    stale: tuple[str, ...]

    @property
    def right(self) -> bool:
        return self == Compared((), ())


def look(module: AnsibleModule) -> Result:
    """Read until the exporter has what there is, or the time is over. Never a failure: the layout is not its."""
    url, gpus = module.params["url"], module.params["gpus"]
    give_up_at = time.monotonic() + module.params["timeout"]
    while True:
        compared, trouble = Compared((), ()), ""
        try:
            compared = compare(told_by(_read(url, give_up_at, module.params["validate_certs"])), gpus)
        except NoMetrics as problem:
            trouble = str(problem)
        right = not trouble and compared.right
        if right or time.monotonic() + _POLL_SECONDS >= give_up_at:
            break
        time.sleep(_POLL_SECONDS)
    result: Result = {"changed": False, "right": right, "missing": [*compared.missing], "stale": [*compared.stale]}
    shown = printable(_PASSWORD.sub("//", url))
    if right:
        return {**result, "msg": f"The metrics of {shown} have every MIG instance of this node, and no other."}
    msg = f"{_in_words(shown, compared, trouble)} Look at the log of the exporter, or start it again."
    module.warn(msg)
    return {**result, "msg": msg}


def _in_words(url: str, compared: Compared, trouble: str) -> str:
    if trouble:
        return f"The layout is there, and whether {url} has metrics of it cannot be told: {trouble}."
    said = [
        *([f"lack {', '.join(compared.missing)}"] if compared.missing else []),
        *([f"have {', '.join(compared.stale)}, which are gone"] if compared.stale else []),
    ]
    return f"The layout is there, and the metrics of {url} {' and '.join(said)}."


def told_by(text: str) -> set[Instance]:
    """The GPU instances of which there is a series."""
    found = set()
    for line in text.splitlines():
        series = None if line.startswith("#") else _SERIES.match(line)
        labels = {name.lower(): value for name, value in _LABEL.findall(series["labels"])} if series else {}
        number = labels.get("gpu_i_id", "")
        gpu = next((labels[name] for name in _UUIDS if labels.get(name)), labels.get("gpu", ""))
        if re.fullmatch(r"[0-9]{1,6}", number) and gpu:
            found.add(Instance(gpu.lower(), int(number)))
    return found


def compare(told: t.Collection[Instance], gpus: Gpus) -> Compared:
    """What is told, against the GPUs as mig_info or mig_config report them. Of others nothing is said."""
    missing: list[str] = []
    known: set[Instance] = set()
    numbers: set[str] = set()
    for gpu in gpus:
        index = gpu.get("index", gpu.get("gpu"))
        names = (str(gpu.get("uuid") or "").lower(), str(index))
        numbers.update(names)
        for instance in gpu.get("instances") or []:
            # Of one without a compute instance there is no device.
            if instance.get("id") is None or not instance.get("compute_instances"):
                continue
            as_told = {Instance(name, int(instance["id"])) for name in names}
            known |= as_told
            if as_told.isdisjoint(told):
                missing.append(f"{instance.get('profile')} (GPU {index}, GI {instance['id']})")
    stale = sorted(each for each in set(told) - known if each.gpu in numbers)
    return Compared(tuple(missing), tuple(f"GI {each.number} of GPU {printable(each.gpu)}" for each in stale))


def _read(url: str, give_up_at: float, validate_certs: bool) -> str:
    """The text of the metrics. Raises NoMetrics."""
    from ansible.module_utils.urls import open_url

    if not re.match(r"https?://[^\s/@]+(/|$)", url):
        raise NoMetrics("it is no URL that begins with http:// or https:// and has no password in it")
    allowed = min(_LONGEST_ANSWER, max(_SHORTEST_ANSWER, give_up_at - time.monotonic()))
    end = time.monotonic() + allowed
    pieces, size = [], 0
    try:
        answer = open_url(url, timeout=allowed, use_proxy=False, follow_redirects="none", validate_certs=validate_certs)
        # The timeout is for each piece, and one who sends a byte now and then would never be done.
        while piece := answer.read1(_PIECE):
            pieces.append(piece)
            size += len(piece)
            if size > _MOST_BYTES:
                raise NoMetrics("it sends more than metrics would be")
            if time.monotonic() >= end:
                raise NoMetrics("it does not come to an end")
    except NoMetrics:
        raise
    except Exception as problem:  # what the network, TLS and the protocol may be wrong with has no class in common
        raise NoMetrics(printable(" ".join(str(problem).split())[:200]) or type(problem).__name__) from problem
    return b"".join(pieces).decode("utf-8", "replace")
