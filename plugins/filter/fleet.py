# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Filters over the answers of many hosts: what is not as it should be, and files that ask for what is there.

Ansible loads every file of filters of a collection to find one of them, anew in the worker of each host and task. So
what these filters need is imported when one of them is called, which is once in a run.
"""

from __future__ import annotations

import typing as t

from ansible.errors import AnsibleFilterError


def audit(plans: t.Any, seen: t.Any = None) -> dict[str, t.Any]:
    """Judge every host by its results of mig_config in check mode and mig_info."""
    import datetime

    from ansible_collections.gpufleet.mig.plugins.plugin_utils import _audit

    _require_mapping("audit", plans)
    return _audit.make(plans, seen or {}, datetime.datetime.now(datetime.timezone.utc))


def audit_text(document: t.Any) -> str:
    """An audit as text for people."""
    from ansible_collections.gpufleet.mig.plugins.plugin_utils import _audit

    _require_audit("audit_text", document)
    return _audit.text(document)


def audit_metrics(document: t.Any) -> str:
    """An audit as metrics for the textfile collector of node_exporter."""
    from ansible_collections.gpufleet.mig.plugins.plugin_utils import _audit

    _require_audit("audit_metrics", document)
    return _audit.metrics(document)


def audit_files(document: t.Any, variables: t.Any) -> dict[str, str]:
    """The files that the variables of the playbook ask for, by their paths."""
    import json

    from ansible_collections.gpufleet.mig.plugins.plugin_utils import _audit

    _require_audit("audit_files", document)
    _require_mapping("audit_files", variables)
    written = {
        "mig_audit_text": lambda: f"{_audit.text(document)}\n",
        "mig_audit_json": lambda: f"{json.dumps(document, ensure_ascii=False, indent=2)}\n",
        "mig_audit_textfile": lambda: _audit.metrics(document),
    }
    paths = {name: str(variables.get(name) or "").strip() for name in written}
    textfile = paths["mig_audit_textfile"]
    if textfile and not textfile.endswith(".prom"):
        raise AnsibleFilterError(
            f"mig_audit_textfile is {textfile!r}, and node_exporter only reads files that end in .prom: rename it."
        )
    return {path: written[name]() for name, path in paths.items() if path}


def export(seen: t.Any, config_file: str = "mig-configs.yaml", exact: bool = False) -> dict[str, t.Any]:
    """The files that ask for what the hosts have now, by their names."""
    from ansible_collections.gpufleet.mig.plugins.plugin_utils import _export

    _require_mapping("export", seen)
    return _export.make(seen, str(config_file), exact)


def _require_mapping(name: str, value: t.Any) -> None:
    if not isinstance(value, t.Mapping):
        raise AnsibleFilterError(
            f"{name} takes results by host, a mapping; see 'ansible-doc -t filter gpufleet.mig.{name}'."
        )


def _require_audit(name: str, document: t.Any) -> None:
    from ansible_collections.gpufleet.mig.plugins.plugin_utils import _audit

    if not isinstance(document, t.Mapping) or document.get("schema") != _audit.SCHEMA:
        raise AnsibleFilterError(f"{name} takes what the filter gpufleet.mig.audit returned.")


class FilterModule:
    """The filters by their names."""

    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        """What Ansible asks for."""
        return {
            "audit": audit,
            "audit_files": audit_files,
            "audit_metrics": audit_metrics,
            "audit_text": audit_text,
            "export": export,
        }
