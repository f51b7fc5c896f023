# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the actions of this collection do on the controller before and after their module runs.

This file is private to the collection gpufleet.mig and may change at any time.

Three things can only be done here: reading a file of the controller, making typed values of a survey's text, and
bringing the NVML binding to a node that has none.
"""

from __future__ import annotations

import os
import re
import shlex
import typing as t

from ansible.errors import AnsibleError, AnsibleFileNotFound
from ansible.plugins.action import ActionBase

from ansible_collections.gpufleet.mig.plugins.module_utils.engine import configs
from ansible_collections.gpufleet.mig.plugins.module_utils.engine.model import WishError
from ansible_collections.gpufleet.mig.plugins.module_utils.engine.profiles import printable
from ansible_collections.gpufleet.mig.plugins.plugin_utils import _binding, _bounded_yaml

CONTROLLER_LACKS_BINDING = (
    "The controller has no NVML binding to bring either: install nvidia-ml-py from PyPI on the controller (or in its "
    "execution environment), or on the node."
)

_LONGEST_QUOTE = 200

OLDEST_PYTHON = (3, 9)
# In words that Python 2 knows too.
_ASK_VERSION = "import sys; sys.stdout.write('version %d.%d' % sys.version_info[:2])"
# What a shell answers for a program that is not there; the shim of a version manager does too, without a version.
_NOT_FOUND = 127


class BadInput(Exception):
    """The arguments of the task cannot be used; the message is one sentence for the person who wrote them."""


class MigAction(ActionBase):
    """Run the module of the same name with typed arguments, and with the binding where the node lacks it."""

    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp: t.Optional[str] = None, task_vars: t.Optional[dict[str, t.Any]] = None) -> dict[str, t.Any]:
        result: dict[str, t.Any] = super().run(tmp, task_vars)
        try:
            arguments = self.arguments(self._task.args)
        except BadInput as problem:
            return {**result, "failed": True, "changed": False, "altered": False, "msg": str(problem)}
        return {**result, **self._run_module(arguments, task_vars)}

    def arguments(self, given: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
        """Return what the module gets for what the task says; options mean the same in all modules. Raises BadInput."""
        arguments = without_unanswered(given)
        for option in ("config", "configs", "label_by_gpu", "layout", "reservations"):
            if option in arguments:
                arguments[option] = data_of(option, arguments[option])
        if "gpus" in arguments:
            arguments["gpus"] = list_of(arguments["gpus"])
        if "clients" in arguments:
            arguments["clients"] = list_of(data_of("clients", arguments["clients"]))
        return arguments

    def _run_module(self, arguments: dict[str, t.Any], task_vars: t.Optional[dict[str, t.Any]]) -> dict[str, t.Any]:
        """Ask the module; if the node lacks the binding, bring it and ask again.

        The first question costs a second call once per node, and saves sending the binding with every other one.
        """
        first = self._call(arguments, task_vars)
        if not first.pop("binding_missing", False):
            return first
        archive = self.archive()
        if archive is None:
            return _with_remedy(first, CONTROLLER_LACKS_BINDING)
        second = self._call({**arguments, "_binding": self._bring(archive)}, task_vars)
        second.pop("binding_missing", None)
        return second

    def archive(self) -> t.Optional[bytes]:
        """Return the binding for a node that asks for one, packed; None where the controller has none."""
        path = _binding.find()
        return None if path is None else _binding.pack(path)

    def _call(self, arguments: dict[str, t.Any], task_vars: t.Optional[dict[str, t.Any]]) -> dict[str, t.Any]:
        outcome: dict[str, t.Any] = self._execute_module(
            module_name=self._task.action, module_args=arguments, task_vars=task_vars
        )
        return self._told_why(outcome) if _did_not_run(outcome) else outcome

    def _told_why(self, outcome: dict[str, t.Any]) -> dict[str, t.Any]:
        """Say it in one sentence where the node's Python is too old for the module, or not there.

        Ansible starts its modules without asking first, and an old Python answers with an error about their syntax.
        Nothing of the module ran then, and so it is asked here, after the fact and only then.
        """
        python = str(getattr(self, "_used_interpreter", None) or "").lstrip("#!").strip()
        if not python:
            return outcome
        asked = self._low_level_execute_command(f"{python} -c {shlex.quote(_ASK_VERSION)}")
        found = re.search(r"version (\d+)\.(\d+)", asked.get("stdout", ""))
        if found is None and asked.get("rc") != _NOT_FOUND:
            return outcome
        version = (int(found[1]), int(found[2])) if found else None
        if version is not None and version >= OLDEST_PYTHON:
            return outcome
        what = f"is version {version[0]}.{version[1]}" if version else self._why_not_found(python, asked)
        return {
            "failed": True,
            "changed": False,
            "altered": False,
            "msg": f"The Python that Ansible uses on this node, {python}, {what}, and gpufleet.mig needs 3.9 or newer."
            " Nothing was changed: install one beside it, as 'dnf install python3.12' does on Enterprise Linux 8, and"
            " set ansible_python_interpreter to it, such as /usr/bin/python3.12.",
        }

    def _why_not_found(self, python: str, asked: t.Mapping[str, t.Any]) -> str:
        """What to say of a Python that a shell, or a program in its place, did not find."""
        if self._low_level_execute_command(f"command -v {python}").get("rc") != 0:
            return "is not there"
        said = " ".join((asked.get("stderr") or asked.get("stdout") or "it said nothing").split())
        return f"is there and starts no Python ({printable(said[:_LONGEST_QUOTE])})"

    def _bring(self, archive: bytes) -> str:
        """Put the archive into the task's own temporary directory on the node, which Ansible removes afterwards."""
        # With pipelining there is none yet.
        folder = self._connection._shell.tmpdir or self._make_tmp_path()
        remote = self._connection._shell.join_path(folder, "binding.zip")
        self._transfer_data(remote, archive)
        self._fixup_perms2([folder, remote])
        return str(remote)

    def read_config_file(self, name: t.Any) -> t.Any:
        """Return the checked content of a config file of the controller. Raises BadInput."""
        path, data = self.read_file("config_file", name)
        try:
            require_version(data)
            configs.check_configs(data)
        except WishError as error:
            raise BadInput(f"config_file {path!r}: {error}") from None
        return data

    def read_file(self, option: str, name: t.Any) -> tuple[str, t.Any]:
        """Return the path of a YAML or JSON file of the controller, and the data in it. Raises BadInput."""
        if not isinstance(name, str):
            raise BadInput(f"{option} must be a path, not {type_in_words(name)}.")
        path = self._find_file(option, name)
        try:
            return path, _bounded_yaml.read_file(self._loader.get_real_file(path))
        except _bounded_yaml.YamlProblem as problem:
            raise BadInput(f"{option} {path!r} {problem}.") from None
        except (OSError, AnsibleError) as error:
            raise BadInput(f"{option} {path!r} cannot be read on the controller: {error}.") from None

    def _find_file(self, option: str, name: str) -> str:
        """Find a file as other plugins do, and else from where ansible-playbook was started.

        The latter is what ``-e mig_config_file=site.yaml`` means to a person who runs a playbook of the collection.
        """
        try:
            found = str(self._find_needle("files", name))
        except AnsibleFileNotFound:
            found = os.path.abspath(os.path.expanduser(name))
        if os.path.isdir(found):
            raise BadInput(f"{option} {found!r} is a directory; name the file.")
        if os.path.exists(found) and not os.path.isfile(found):
            raise BadInput(f"{option} {found!r} is not a regular file; name one.")
        if not os.path.exists(found):
            raise BadInput(
                f"{option} {name!r} was not found on the controller: not in files/ or beside the role or playbook, "
                f"and not in {os.getcwd()!r}."
            )
        return found


def require_version(data: t.Any) -> None:
    """A file states its format, so that a later one is not taken for this one. Raises WishError."""
    if isinstance(data, dict) and "version" not in data:
        raise WishError("it has no version; the first line of NVIDIA's config file format is 'version: v1'.")


def without_unanswered(given: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """Drop options without a value: a survey sends an empty text for a question that was not answered."""
    return {
        name: value
        for name, value in given.items()
        if value is not None and not (isinstance(value, str) and not value.strip())
    }


def answered(action: ActionBase, spec: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """The arguments of a task by this specification.

    What a survey left open is what was not given. Of a text without a default an empty one is a value, too.
    """
    given = action._task.args
    text = [name for name, about in spec.items() if about["type"] == "str" and not {"default", "choices"} & set(about)]
    texts = {name: given[name] for name in text if name in given}
    action._task.args = {**without_unanswered(given), **texts}
    _validated, arguments = action.validate_argument_spec(spec)
    return dict(arguments)


def data_of(option: str, value: t.Any) -> t.Any:
    """Return the data in a text that a survey sent for an option that takes a list or mapping. Raises BadInput."""
    if not isinstance(value, str):
        return value
    try:
        return _bounded_yaml.parse(value)
    except _bounded_yaml.YamlProblem as problem:
        raise BadInput(f"{option} {problem}.") from None


def list_of(value: t.Any) -> t.Any:
    """Return the items of ``"0,1"`` or ``"[0, 1]"``; a list stays as it is, a single item becomes a list."""
    if isinstance(value, int) and not isinstance(value, bool):
        return [str(value)]
    if isinstance(value, t.Mapping):
        return [value]
    if isinstance(value, str):
        return [item.strip().strip("'\"") for item in value.strip().strip("[]").split(",") if item.strip()]
    return value


def type_in_words(value: t.Any) -> str:
    """Name the type of a value the way YAML users do."""
    words = ((bool, "a boolean"), (int, "a number"), (float, "a number"), (str, "text"))
    for kind, word in words:
        if isinstance(value, kind):
            return word
    return "a mapping" if isinstance(value, t.Mapping) else "a list"


def _did_not_run(outcome: t.Mapping[str, t.Any]) -> bool:
    """Whether the module ended without a word of its own, which always says whether anything was altered."""
    return (
        bool(outcome.get("failed"))
        and "altered" not in outcome
        and not {"module_stdout", "exception"}.isdisjoint(outcome)
    )


def _with_remedy(result: dict[str, t.Any], remedy: str) -> dict[str, t.Any]:
    """Say the next step where the module could only say what is missing."""
    if "problem" in result:
        return {**result, "problem": {**result["problem"], "remedy": remedy}}
    return {**result, "msg": f"{result.get('msg', '')} {remedy}".strip()}
