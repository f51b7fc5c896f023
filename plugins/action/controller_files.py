# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Writes files on the controller. There is no module on the node: everything is done here."""

from __future__ import annotations

import os
import typing as t

from ansible.plugins.action import ActionBase

from ansible_collections.gpufleet.mig.plugins.plugin_utils import _files


class BadInput(Exception):
    """The arguments of the task cannot be used; the message is one sentence."""


class ActionModule(ActionBase):
    """Asks no host for anything, so that it does its work also where none answers."""

    TRANSFERS_FILES = False
    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp: t.Optional[str] = None, task_vars: t.Optional[dict[str, t.Any]] = None) -> dict[str, t.Any]:
        result: dict[str, t.Any] = super().run(tmp, task_vars)
        _validated, arguments = self.validate_argument_spec(
            {
                "files": {"type": "dict", "required": True},
                "folder": {"type": "str"},
                "mark": {"type": "str"},
                "mode": {"type": "str", "default": "0644"},
            }
        )
        try:
            return {**result, **self._write(arguments)}
        except (BadInput, _files.WriteProblem) as problem:
            return {**result, "failed": True, "changed": False, "msg": str(problem)}

    def _write(self, arguments: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
        folder = arguments["folder"] and os.path.abspath(os.path.expanduser(arguments["folder"]))
        files = {_path(folder, str(name)): _bytes(content) for name, content in arguments["files"].items()}
        mark = arguments["mark"]
        if mark:
            _files.require_own(files, mark.encode())
        changed = _files.differing(files)
        if not self._task.check_mode:
            _files.write({path: files[path] for path in changed}, _mode(arguments["mode"]))
        result = {"changed": bool(changed), "paths": list(files), "written": changed}
        if self._task.diff:
            result["diff"] = [_files_diff(path, files[path]) for path in changed]
        return result


def _path(folder: t.Optional[str], name: str) -> str:
    """The path of a file. A name may come from a host, so it does not lead out of a folder. Raises BadInput."""
    path = os.path.abspath(os.path.join(folder or ".", os.path.expanduser(name)))
    if not name or name.endswith("/") or os.path.isdir(path):
        raise BadInput(f"{name!r} is not the name of a file; give the path of a file.")
    if folder and os.path.commonpath([folder, path]) != folder:
        raise BadInput(f"{name!r} is not inside of the folder {folder!r}; give a path below it. Nothing was written.")
    return path


def _bytes(content: t.Any) -> bytes:
    if not isinstance(content, str):
        raise BadInput("The content of a file must be text; make text of data with the filter to_nice_json.")
    return content.encode("utf-8", "replace")


def _mode(text: str) -> int:
    try:
        mode = int(text, 8)
    except ValueError:
        mode = -1
    if not 0 <= mode <= 0o777:
        raise BadInput(f"mode is {text!r}; it must be an octal number such as '0644'.")
    return mode


def _files_diff(path: str, content: bytes) -> dict[str, str]:
    try:
        with open(path, "rb") as file:
            before = file.read()
    except OSError:
        before = b""
    return {
        "before_header": path,
        "after_header": path,
        "before": before.decode("utf-8", "replace"),
        "after": content.decode("utf-8", "replace"),
    }
