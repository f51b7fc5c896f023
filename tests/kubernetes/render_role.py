# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Fills in the templates of a role as Ansible does, for many sets of variables: a program, since Ansible's loader of
collections stays in the process that it was set up in.

    render_role.py ROLE < {"case": {"variable": value}} > {"case": {"template": object}}
"""

from __future__ import annotations

import json
import sys
import typing as t
from pathlib import Path

import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.plugins.loader import init_plugin_loader
from ansible.template import Templar, trust_as_template

# What a role decides in its variables and not in a template.
DECIDED = ("__device_plugin_order", "__device_plugin_values")


def main() -> None:
    role = Path(sys.argv[1])
    init_plugin_loader()
    loader = DataLoader()
    said: dict[str, t.Any] = {"ansible_search_path": [str(role)]}
    for part in ("defaults", "vars"):
        said.update(loader.load_from_file(str(role / part / "main.yml"), trusted_as_template=True))
    result = {}
    for case, variables in json.load(sys.stdin).items():
        templar = Templar(loader=loader, variables={**said, **variables})
        rendered = {
            path.name: yaml.safe_load(templar.template(trust_as_template(path.read_text(encoding="utf-8"))))
            for path in sorted((role / "templates").glob("*.j2"))
        }
        result[case] = {**rendered, **{name: templar.template(said[name]) for name in DECIDED}}
    json.dump(result, sys.stdout, default=str)


if __name__ == "__main__":
    main()
