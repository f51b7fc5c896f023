# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""From the state of many hosts to files that ask for it again: one config file, and a file of variables for each host.

This file is private to the collection gpufleet.mig and may change at any time.

Variables of hosts are templates to Ansible, and names of files are paths to the system, so nothing that a host said
gets into either unless it is spelled as such things are. A host whose state cannot be told, or is about to change by
itself, is named and left out: half of a state is not one.
"""

from __future__ import annotations

import hashlib
import json
import re
import typing as t

import yaml

from ansible_collections.gpufleet.mig.plugins.module_utils.engine.profiles import counted, printable
from ansible_collections.gpufleet.mig.plugins.plugin_utils._audit import NOBODY

Document = dict[str, t.Any]
Answer = t.Mapping[str, t.Any]

MARK = "# Written by the playbook gpufleet.mig.export: what was there when it ran."

CONFIG_NAME = "mig-configs.yaml"

# What names of boards, profiles, UUIDs and PCI ids are made of; nothing that a template or a path is made of.
_PLAIN = re.compile(r"[A-Za-z0-9 ._+:-]*")
# A name that is safe as the name of a file, and as a host in an inventory, where brackets are ranges and : is a port.
_HOST = re.compile(r"\w[\w.-]*")
# Ansible would take the file of such a host for that of the host without the ending.
_VARIABLE_FILES = (".yml", ".yaml", ".json")
_LONGEST_HOST = 200
_LONGEST_LAYOUT = 60

# What a saved layout has of each GPU, instance and compute instance.
_OF_GPU = ("index", "uuid", "pci_bus_id", "name", "mig_capable", "mig_current")
_OF_INSTANCE = ("profile", "profile_id", "slices", "placement")
_OF_COMPUTE = (*_OF_INSTANCE, "variant")


class NotExported(Exception):
    """The state of a host cannot be kept; the message continues a sentence about the host."""


def make(seen: t.Mapping[str, t.Any], config_file: str, exact: bool) -> Document:
    """Make the files. ``seen`` has a result of mig_info for each host.

    ``config_file`` is what the variables call the config file. With ``exact`` every host gets its layout with all
    places, and its boards, instead of a label.
    """
    if not seen:
        return {"content": {}, "mark": MARK, "hosts": {}, "ok": False, "problems": [], "msg": NOBODY}
    labels: dict[str, list[t.Any]] = {}
    owners: dict[str, list[str]] = {}
    files: dict[str, str] = {}
    hosts: Document = {}
    for name, result in plain(seen).items():
        try:
            variables, entries = _variables(name, result if isinstance(result, dict) else {}, config_file, exact)
        except NotExported as problem:
            hosts[name] = {"exported": False, "label": "", "exact": False, "msg": f"{printable(name)} {problem}"}
            continue
        label = variables.get("mig_profile", "")
        if entries:
            labels[label] = entries
            owners.setdefault(label, []).append(name)
        files[f"host_vars/{name}.yml"] = _as_yaml(variables)
        hosts[name] = {"exported": True, "label": label, "exact": "mig_layout" in variables, "msg": ""}
    kept = [name for name, host in hosts.items() if host["exported"]]
    files["hosts.yml"] = _as_yaml({"all": {"hosts": dict.fromkeys(kept)}})
    # A config file without labels is refused by everybody who reads it; all-disabled is known anyway.
    everything = labels or {"all-disabled": [{"devices": "all", "mig-enabled": False}]}
    files[CONFIG_NAME] = _config_file(everything, owners)
    problems = [host["msg"] for host in hosts.values() if not host["exported"]]
    said = f"{counted(len(kept), 'host')} exported, with {counted(len(labels), 'label')}."
    if problems:
        said += f" Not exported: {len(problems)}, and what an earlier export wrote for them is out of date."
        said = " ".join([said, *problems])
    return {"content": files, "mark": MARK, "hosts": hosts, "ok": not problems, "problems": problems, "msg": said}


def plain(value: t.Any) -> t.Any:
    """Data of Ansible without what it keeps about it: YAML and JSON are made of nothing but Python's own types."""
    if isinstance(value, t.Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return str(value) if isinstance(value, str) else value


# --- one host ------------------------------------------------------------------------------------------------------


def _variables(name: str, result: Answer, config_file: str, exact: bool) -> tuple[Document, list[t.Any]]:
    """The variables of a host, and the entries of its label, none where it has an exact layout. Raises NotExported."""
    _check_name(name)
    gpus = _gpus_of(result)
    capable = [gpu for gpu in gpus if gpu.get("mig_capable")]
    entries = result.get("config") or []
    told = {index for entry in entries for index in entry["devices"]}
    variables: Document = {
        # Those that are empty keep groups from having their say.
        "mig_profile": "all-disabled",
        "mig_profile_by_gpu": {},
        "mig_layout": "",
        "mig_configs": "",
        "mig_config_file": "",
        "mig_gpus": "all",
        "mig_allow_empty": any(gpu["mig_current"] and not gpu["instances"] for gpu in capable),
        "mig_expected_gpus": len(gpus),
    }
    if not capable:
        return variables, []
    # Counts of devices do not say everything, such as GPU instances without a compute instance.
    if exact or told != {gpu["index"] for gpu in capable}:
        del variables["mig_profile"]
        return {**variables, "mig_layout": [_saved(gpu) for gpu in gpus]}, []
    return {**variables, "mig_profile": _label(entries), "mig_config_file": config_file}, entries


def _check_name(name: str) -> None:
    if not _HOST.fullmatch(name) or len(name.encode()) > _LONGEST_HOST:
        raise NotExported("is not exported: its name cannot be the name of a file and of a host in a file of hosts.")
    if name.lower().endswith(_VARIABLE_FILES):
        raise NotExported("is not exported: Ansible would take its file for that of another host, so rename it.")


def _gpus_of(result: Answer) -> list[Document]:
    """The GPUs of a host whose state is certain and lasts. Raises NotExported for any other."""
    if result.get("unreachable"):
        raise NotExported(f"does not answer: {_sentence(result.get('msg'))}")
    if not result.get("available"):
        problem = result.get("problem")
        why = problem.get("message") if isinstance(problem, t.Mapping) else result.get("msg")
        raise NotExported(f"cannot tell what it has: {_sentence(why)}")
    if result.get("in_progress"):
        raise NotExported("is in the middle of a change: wait for it, or end it with the playbook gpufleet.mig.mig.")
    gpus = result.get("gpus") or []
    for gpu in gpus:
        if gpu.get("errors") or gpu.get("mig_capable") is None or (gpu["mig_capable"] and gpu["mig_current"] is None):
            raise NotExported(f"cannot tell what GPU {int(gpu['index'])} has: see 'nvidia-smi' and 'dmesg' on it.")
        if gpu["mig_capable"] and gpu.get("mig_pending") not in (None, gpu["mig_current"]):
            raise NotExported(
                f"has a MIG mode of GPU {int(gpu['index'])} that waits for a reset or reboot: export it afterwards."
            )
    if not _is_plain([_saved(gpu) for gpu in gpus]) or not _is_plain(result.get("config")):
        raise NotExported("has said something that is no name of a GPU or profile: nothing of it is written.")
    return t.cast("list[Document]", gpus)


def _sentence(said: t.Any) -> str:
    return f"{printable(str(said or 'it did not say why')).rstrip('. ')}."


def _is_plain(value: t.Any) -> bool:
    """Whether there is nothing but numbers, booleans, and text that is spelled as names of hardware are."""
    if isinstance(value, t.Mapping):
        return all(_is_plain(key) and _is_plain(each) for key, each in value.items())
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int)) or (isinstance(value, str) and bool(_PLAIN.fullmatch(value)))


def _saved(gpu: Answer) -> Document:
    """A GPU as the module option layout takes it, without what changes from day to day."""
    saved = {key: gpu.get(key) for key in _OF_GPU}
    saved["instances"] = [
        {
            **{key: instance.get(key) for key in _OF_INSTANCE},
            "compute_instances": [
                {key: compute.get(key) for key in _OF_COMPUTE} for compute in instance.get("compute_instances") or []
            ],
        }
        for instance in gpu.get("instances") or []
    ]
    return saved


# --- files ---------------------------------------------------------------------------------------------------------


def _label(entries: list[t.Any]) -> str:
    """A name for what entries ask for: readable, the same for the same entries, in every export."""
    digest = hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()[:8]
    said = "mixed"
    if len(entries) == 1:
        counts = entries[0].get("mig-devices") or {}
        said = ",".join(f"{count}x{profile}" for profile, count in counts.items())
        if not said:
            said = "empty" if entries[0]["mig-enabled"] else "off"
        elif len(said) > _LONGEST_LAYOUT:
            said = "mixed"
    return f"export-{said}-{digest}"


def _config_file(labels: dict[str, list[t.Any]], owners: t.Mapping[str, t.Sequence[str]]) -> str:
    """The config file, with the hosts of each label in a comment above it."""
    parts = [f"{MARK}\nversion: v1\nmig-configs:\n"]
    for label, entries in sorted(labels.items()):
        names = owners.get(label, ())
        parts.append(f"  # {', '.join(names)}\n" if names else "")
        lines = _yaml({label: entries}).splitlines()
        parts.append("".join(f"  {line}\n" for line in lines))
    return "".join(parts)


def _as_yaml(data: Document) -> str:
    return f"{MARK}\n---\n{_yaml(data)}"


# The fast one where it was built: a fleet with all places is megabytes.
_Dumper: t.Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def _yaml(data: t.Any) -> str:
    return str(yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10**6))
