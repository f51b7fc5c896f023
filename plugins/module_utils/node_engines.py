# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Settings of container engines for NVIDIA's runtime and for CDI, in the files of each, with all others kept.

This file is private to the collection gpufleet.mig and may change at any time.

``nvidia-ctk runtime configure`` is NVIDIA's way, and used where it does exactly this. For containerd it does: only it
knows how its versions merge files. It always writes, so it works on a copy, and what it makes is compared. For Docker
it does not: it drops the other ``features`` and the arguments of a runtime that is there, so daemon.json is changed as
data here. CRI-O and Podman read a file of ours beside their own, so none of theirs is touched.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import time
import typing as t

from . import ansible_bridge as bridge
from .engine import commands, state
from .engine.model import MigError, WishError
from .engine.profiles import printable

if t.TYPE_CHECKING:
    from ansible.module_utils.basic import AnsibleModule

RUNTIME = "nvidia"
RUNTIME_PROGRAM = "/usr/bin/nvidia-container-runtime"

ARGUMENTS: dict[str, t.Any] = {
    **bridge.COMMON_ARGUMENTS,
    "engine": {"type": "str", "choices": ["docker", "containerd", "crio", "podman"], "required": True},
    "cdi": {"type": "bool", "default": True},
    "runtime": {"type": "bool", "default": False},
    "default_runtime": {"type": "bool", "default": False},
    "runtime_path": {"type": "path", "default": RUNTIME_PROGRAM},
    "config": {"type": "path"},
    "root": {"type": "path", "default": "/"},
}

_SECONDS = 60.0
_MARK = "# Written by gpufleet.mig (module mig_container_engine); settings of yours belong into another file.\n"
_IMPORTS = re.compile(r"^[ \t]*imports[ \t]*=[ \t]*\[(?P<items>[^\]]*)\]", re.MULTILINE)
_COMMENT = re.compile(r"#.*$", re.MULTILINE)
_DISABLED = re.compile(r"^[ \t]*disabled_plugins[ \t]*=[ \t]*\[(?P<items>[^\]]*)\]", re.MULTILINE)
_OURS_BY_DEFAULT = re.compile(rf"^[ \t]*default_runtime_name[ \t]*=[ \t]*[\"']{RUNTIME}[\"']", re.MULTILINE)
_LONGEST_QUOTE = 600

# Text by path. None stands for a file that is not there, or is to go.
Files = dict[str, t.Optional[str]]


class EngineError(MigError):
    """The settings of an engine cannot be changed, and none was."""


class Engine(t.NamedTuple):
    """A container engine: the program by which it is known to be there, its unit, the file with its settings."""

    title: str
    program: str
    unit: str
    config: str


ENGINES = {
    "docker": Engine("Docker", "dockerd", "docker.service", "/etc/docker/daemon.json"),
    "containerd": Engine("containerd", "containerd", "containerd.service", "/etc/containerd/config.toml"),
    "crio": Engine("CRI-O", "crio", "crio.service", "/etc/crio/crio.conf.d/99-gpufleet-mig.conf"),
    "podman": Engine("Podman", "podman", "", "/etc/containers/containers.conf.d/60-gpufleet-mig.conf"),
}


class Wish(t.NamedTuple):
    """What an engine shall know."""

    cdi: bool
    runtime: bool
    default: bool
    path: str


class Plan(t.NamedTuple):
    """Files before and after; ``shown`` is what may be shown of them. ``obstacle`` says why an engine is left alone."""

    before: Files
    after: Files
    shown: tuple[str, str] = ("", "")
    obstacle: str = ""


def configure(module: AnsibleModule) -> bridge.Result:
    """Bring the files of one engine in line, and say whether it has yet to read them."""
    params = module.params
    wish = Wish(
        params["cdi"], params["runtime"] or params["default_runtime"], params["default_runtime"], params["runtime_path"]
    )
    if not os.path.isabs(wish.path):
        raise WishError(f"runtime_path is {wish.path!r}; give the absolute path of nvidia-container-runtime.")
    engine = ENGINES[params["engine"]]
    drained = state.read_drain(state.places(params["state_dir"])) is not None
    about = {"changed": False, "engine": params["engine"], "unit": engine.unit, "files": [], "drained": drained}
    if commands.find(engine.program) is None:
        return {**about, "present": False, "restart_pending": False, "msg": f"There is no {engine.title} on this node."}
    place = os.path.join(params["root"], (params["config"] or engine.config).lstrip("/"))
    plan = _PLANS[params["engine"]](place, wish)
    if plan.obstacle:
        return {
            **about,
            "present": False,
            "restart_pending": False,
            "msg": f"{engine.title} is left alone: {plan.obstacle}.",
        }
    changed = [path for path, text in plan.after.items() if text != plan.before[path]]
    if changed and not module.check_mode:
        _write(module, {path: plan.after[path] for path in changed})
    pending = bool(engine.unit) and _is_active(engine.unit) and (bool(changed) or _is_older(engine.unit, plan.after))
    return {
        **about,
        "present": True,
        "changed": bool(changed),
        "files": changed,
        "restart_pending": pending,
        "msg": _in_words(engine, changed, pending, module.check_mode),
        "diff": {"before": plan.shown[0], "after": plan.shown[1]},
    }


def _in_words(engine: Engine, changed: t.Sequence[str], pending: bool, check: bool) -> str:
    if not changed and not pending:
        return f"{engine.title} is set up."
    files = f"{' and '.join(changed)} {'would be' if check else 'is'} changed" if changed else "The settings are right"
    if not pending:
        return f"{engine.title}: {files}."
    return (
        f"{engine.title}: {files}, and {engine.unit} has yet to be restarted to read them, which ends its containers"
        f" unless it is told to keep them. Restart it when the node is drained: 'systemctl restart {engine.unit}'."
    )


# --- Docker ---------------------------------------------------------------------------------------------------------


def _docker(path: str, wish: Wish) -> Plan:
    """daemon.json with our settings. Raises EngineError for one that Docker could not read either."""
    text = _read(path)
    try:
        data = json.loads(text) if text is not None and text.strip() else {}
    except (ValueError, RecursionError) as error:
        raise EngineError(f"{path} is no JSON ({error}), and Docker would not start with it: correct it.") from None
    if not isinstance(data, dict):
        raise EngineError(f"{path} is not a JSON mapping, and Docker would not start with it: correct it.")
    wanted = dict(data)
    if wish.cdi:
        wanted["features"] = {**_mapping(data, "features", path), "cdi": True}
    if wish.runtime:
        runtimes = _mapping(data, "runtimes", path)
        wanted["runtimes"] = {**runtimes, RUNTIME: _docker_runtime(runtimes.get(RUNTIME), wish.path)}
    if wish.default:
        wanted["default-runtime"] = RUNTIME
    after = text if wanted == data else f"{json.dumps(wanted, indent=4)}\n"
    return Plan({path: text}, {path: after}, (_shown(data), _shown(wanted)))


def _docker_runtime(there: t.Any, path: str) -> dict[str, t.Any]:
    """The runtime as it is where it is NVIDIA's already, by whatever path it is found."""
    if isinstance(there, dict) and os.path.basename(str(there.get("path") or "")) == os.path.basename(path):
        return there
    return {"path": path, "args": []}


def _mapping(data: t.Mapping[str, t.Any], key: str, path: str) -> dict[str, t.Any]:
    value = data.get(key) or {}
    if not isinstance(value, dict):
        raise EngineError(f"{path} has {key}, which is not a mapping, and Docker would not start with it: correct it.")
    return value


def _shown(data: t.Mapping[str, t.Any]) -> str:
    """What of daemon.json concerns us. The rest may have passwords."""
    ours = {key: data[key] for key in ("features", "runtimes", "default-runtime") if key in data}
    return f"{json.dumps(ours, indent=4)}\n"


# --- containerd -----------------------------------------------------------------------------------------------------


def _containerd(path: str, wish: Wish) -> Plan:
    """What nvidia-ctk would make of the settings, of which it gets a copy. Raises EngineError."""
    text = _read(path)
    if _has(_DISABLED, text or "", "cri"):
        return Plan({}, {}, obstacle="its CRI plugin is disabled, as where it only serves Docker")
    folder = os.path.join(os.path.dirname(path), "conf.d")
    drop_in = os.path.join(folder, "99-nvidia.toml")
    before: Files = {path: text, drop_in: _read(drop_in)}
    top, own = _by_nvidia_ctk(text, before[drop_in], folder, wish)
    if own is None:
        # A toolkit before 1.18 changes the file itself.
        return Plan(before, {**before, path: top}, (text or "", top or ""))
    after: Files = {path: _with_import(text, f"{folder}/*.toml", top), drop_in: own}
    return Plan(before, after, (before[drop_in] or "", own))


def _by_nvidia_ctk(
    text: t.Optional[str], own: t.Optional[str], folder: str, wish: Wish
) -> tuple[t.Optional[str], t.Optional[str]]:
    """The settings and the file beside them as nvidia-ctk makes them; None for the latter where it makes none."""
    program = commands.find("nvidia-ctk")
    if program is None:
        raise EngineError("There is no nvidia-ctk on this node. Install the NVIDIA Container Toolkit.")
    keeps_default = any(_OURS_BY_DEFAULT.search(each or "") for each in (text, own))
    with tempfile.TemporaryDirectory(prefix="gpufleet-mig-") as trial:
        copy, beside = os.path.join(trial, "config.toml"), os.path.join(trial, "conf.d", "99-nvidia.toml")
        if text is not None:
            with open(copy, "w", encoding="utf-8") as file:
                file.write(text.replace(f"{folder}/*.toml", f"{trial}/conf.d/*.toml"))
        words = [program, "runtime", "configure", "--runtime=containerd", f"--config={copy}"]
        words += [f"--nvidia-runtime-path={wish.path}"]
        words += ["--cdi.enabled"] if wish.cdi else []
        words += ["--nvidia-set-as-default"] if wish.default or keeps_default else []
        answer = _run([*words, f"--drop-in-config={beside}"])
        if answer.code != 0 and "drop-in-config" in answer.err + answer.out:
            answer = _run(words)
        if answer.code != 0:
            said = printable(" ".join((answer.err or answer.out).split())[-_LONGEST_QUOTE:])
            raise EngineError(f"'nvidia-ctk runtime configure' failed: {said}. Nothing of containerd was changed.")
        made = [_read(each) for each in (copy, beside)]
    top, mine = (None if each is None else each.replace(f"{trial}/conf.d", folder) for each in made)
    return top, mine


def _with_import(text: t.Optional[str], pattern: str, made: t.Optional[str]) -> t.Optional[str]:
    """The settings with this import and otherwise letter by letter as they were, comments too, where that can be."""
    if text is None or not text.strip():
        return made
    if _has(_IMPORTS, text, pattern):
        return text
    if not _IMPORTS.search(_COMMENT.sub("", text)):
        # What stands before all tables belongs to none of them.
        return f'imports = ["{pattern}"]\n{text}'
    return made


def _has(listing: re.Pattern[str], text: str, item: str) -> bool:
    """Whether a list in settings has an item, of which a comment says nothing."""
    found = listing.search(_COMMENT.sub("", text))
    return (
        found is not None
        and re.search(rf"[\"'](?:io\.containerd\.grpc\.v1\.)?{re.escape(item)}[\"']", found["items"]) is not None
    )


# --- CRI-O and Podman -----------------------------------------------------------------------------------------------


def _crio(path: str, wish: Wish) -> Plan:
    """CRI-O looks for CDI devices by itself; only a runtime has to be named."""
    if not wish.runtime:
        return _own_file(path, "")
    default = f'[crio.runtime]\ndefault_runtime = "{RUNTIME}"\n\n' if wish.default else ""
    runtime = f'[crio.runtime.runtimes.{RUNTIME}]\nruntime_path = {_toml(wish.path)}\nruntime_type = "oci"\n'
    return _own_file(path, f"{default}{runtime}")


def _podman(path: str, wish: Wish) -> Plan:
    """Podman looks for CDI devices by itself; only a runtime has to be named."""
    if not wish.runtime:
        return _own_file(path, "")
    default = f'[engine]\nruntime = "{RUNTIME}"\n\n' if wish.default else ""
    return _own_file(path, f"{default}[engine.runtimes]\n{RUNTIME} = [{_toml(wish.path)}]\n")


def _toml(text: str) -> str:
    return json.dumps(text)


def _own_file(path: str, settings: str) -> Plan:
    """A file that is ours alone; without settings there is none. One of somebody else is never touched."""
    text = _read(path)
    if text is not None and not text.startswith(_MARK):
        raise EngineError(f"{path} is there and was not written by this module. Remove it, or choose another config.")
    wanted = f"{_MARK}{settings}" if settings else None
    return Plan({path: text}, {path: wanted}, (text or "", wanted or ""))


_PLANS: dict[str, t.Callable[[str, Wish], Plan]] = {
    "docker": _docker,
    "containerd": _containerd,
    "crio": _crio,
    "podman": _podman,
}


# --- files and units ------------------------------------------------------------------------------------------------


def _read(path: str) -> t.Optional[str]:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise EngineError(f"{path} cannot be read: {error}. Run as root, or see what is there.") from None


def _write(module: AnsibleModule, files: t.Mapping[str, t.Optional[str]]) -> None:
    """Each file as a whole; owner, mode and a link that stands for it stay."""
    for path, text in files.items():
        place = os.path.realpath(path)
        try:
            if text is None:
                os.unlink(place)
                continue
            os.makedirs(os.path.dirname(place), mode=0o755, exist_ok=True)
            descriptor, new = tempfile.mkstemp(dir=module.tmpdir)
            with open(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
            os.chmod(new, 0o644)
        except OSError as error:
            raise EngineError(
                f"{path} cannot be written: {error.strerror}. Run as root, or see what is there."
            ) from None
        module.atomic_move(new, place)


def _is_active(unit: str) -> bool:
    return _shown_by_systemd(unit).get("ActiveState") == "active"


def _is_older(unit: str, files: Files) -> bool:
    """Whether a unit was started before one of these files was written."""
    since = _shown_by_systemd(unit).get("ActiveEnterTimestampMonotonic", "")
    if not since.isdigit():
        return False
    started = time.time() - (time.clock_gettime(time.CLOCK_MONOTONIC) - int(since) / 1e6)
    written = [os.stat(path).st_mtime for path, text in files.items() if text is not None and os.path.exists(path)]
    return any(each > started for each in written)


def _shown_by_systemd(unit: str) -> dict[str, str]:
    program = commands.find("systemctl")
    if program is None:
        return {}
    answer = _run([program, "show", "--property=ActiveState,ActiveEnterTimestampMonotonic", "--", unit])
    return dict(line.split("=", 1) for line in answer.out.splitlines() if "=" in line)


def _run(words: t.Sequence[str]) -> commands.Answer:
    name = os.path.basename(words[0])
    try:
        return commands.run(words, _SECONDS, {}, patience=2.0)
    except (OSError, ValueError) as error:
        raise EngineError(f"{name} cannot be run: {error}.") from None
    except commands.Late:
        raise EngineError(
            f"{name} did not come back within {_SECONDS:g} s and was ended. See what it waits for."
        ) from None
