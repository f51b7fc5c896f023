# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The filter that chooses devices of a host for containers; what it needs is imported when it is called."""

from __future__ import annotations

import typing as t

from ansible.errors import AnsibleFilterError


def device_requests(
    info: t.Any, wanted: t.Any, unused: bool = False, without: t.Any = (), holders: t.Any = ()
) -> dict[str, t.Any]:
    """Devices of a host, from a result of mig_info, in the words of Docker, Podman and Compose."""
    from ansible_collections.gpufleet.mig.plugins.filter.survey import survey_bool
    from ansible_collections.gpufleet.mig.plugins.plugin_utils import _devices

    gpus = _gpus(info)
    try:
        return _devices.requests(
            _devices.choose(gpus, wanted, survey_bool(unused), _items("without", without), _items("holders", holders))
        )
    except _devices.CannotChoose as problem:
        raise AnsibleFilterError(str(problem)) from None
    except (KeyError, TypeError, AttributeError) as error:
        raise AnsibleFilterError(f"device_requests was given what is no result of mig_info: {error!r}.") from None


def _gpus(info: t.Any) -> t.Any:
    """The GPUs in a result of mig_info. Raises AnsibleFilterError."""
    if not isinstance(info, t.Mapping) or not ("gpus" in info or info.get("available") is False):
        raise AnsibleFilterError("device_requests takes a result of mig_info; register one, and give that.")
    if "gpus" not in info:
        problem = info.get("problem") or {}
        raise AnsibleFilterError(
            f"The devices of this host are not known: {problem.get('message', 'no driver answers')}"
        )
    return info["gpus"]


def _items(option: str, value: t.Any) -> t.Any:
    if not isinstance(value, (list, tuple)):
        raise AnsibleFilterError(f"device_requests: {option} is {value!r}; give a list.")
    return value


class FilterModule:
    """The filters by their names."""

    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        """What Ansible asks for."""
        return {"device_requests": device_requests}
